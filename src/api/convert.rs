//! Between the messages of the wire and the types of the service: the same for every door.
//!
//! Invariant: lossless both ways but for what [`response`] leaves out when nobody asked for an explanation.
//! Manifests go through their one serialised form, so that no field has to be listed again here.
//!
//! Not here: checks that need the catalog or the configuration (behind the ports).

use crate::api::json;
use crate::api::pb;
use crate::api::ports::Resolved;
use crate::error::Error;
use crate::route::explain::words;
use crate::types::decision::{Candidate, Dropped, Note, Term};
use crate::types::manifest::{Attribute, Manifest};
use crate::types::request::{AgentPage, AgentState, Heartbeat, ListRequest, Registered, RegistryEvent, ResolveRequest};
use crate::types::{AgentKey, DecisionKind, Fault, Namespace, id};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads a request to resolve. Faults carry JSON pointers into the request.
pub fn request(message: pb::ResolveRequest) -> Result<ResolveRequest, Error> {
    let mut faults = Vec::new();
    let mut free = |text: Option<String>, pointer: &str| {
        text.and_then(|text| json::read_free(&text, pointer).map_err(|e| faults.extend(e.faults)).ok()).filter(|v| !v.is_null())
    };
    let payload = free(message.payload, "/payload").map(Arc::new);
    let attributes = free(message.attributes, "/attributes");
    let attributes = selectors(attributes, &mut faults);
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(ResolveRequest {
        query: message.query,
        capability: message.capability,
        payload,
        caller: message.caller,
        tenant: message.tenant,
        namespaces: message.namespaces,
        scopes: message.scopes.map(|list| list.items),
        region: message.region,
        attributes,
        target: message.target,
        preferred: message.preferred,
        only: message.only,
        exclude: message.exclude,
        max_cost: message.max_cost,
        deadline_ms: message.deadline_ms,
        preset: message.preset,
        fallback: message.fallback,
        depth: message.depth,
        previous: message.previous,
        k: message.k,
        at: message.at,
        seed: message.seed,
        explain: message.explain,
    })
}

pub(crate) fn selectors(attributes: Option<Value>, faults: &mut Vec<Fault>) -> BTreeMap<String, Attribute> {
    let mut read = BTreeMap::new();
    match attributes {
        None => {}
        Some(Value::Object(map)) => {
            for (name, value) in map {
                let pointer = format!("/attributes/{}", name.replace('~', "~0").replace('/', "~1"));
                match serde_json::from_value::<Attribute>(value) {
                    Ok(attribute) => drop(read.insert(name, attribute)),
                    Err(_) => faults.push(Fault::new(
                        pointer,
                        "a text, a number, true, false, or a list of texts",
                        "write the value the agent must have",
                    )),
                }
            }
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            faults.push(Fault::new("/attributes", "an object of attributes", "write {\"name\": value}"));
        }
    }
    read
}

/// Writes the answer. Without `explain`, terms and evidence are left out, and what was dropped unless the answer is short of `auto`.
pub fn response(resolved: &Resolved, explain: bool) -> pb::ResolveResponse {
    let d = &resolved.decision;
    let first = if d.kind == DecisionKind::None { None } else { d.candidates.first() };
    pb::ResolveResponse {
        decision: d.kind.as_str().into(),
        confidence: d.confidence.get(),
        margin: d.margin,
        calibrated: d.calibrated,
        agent: first.map(|c| agent_ref(&c.agent)),
        agent_version: first.map(|c| c.agent_version.clone()),
        capability: first.map(|c| c.capability.to_string()),
        candidates: d.candidates.iter().map(|c| candidate(c, explain)).collect(),
        dropped: if explain || d.kind != DecisionKind::Auto { d.dropped.iter().map(dropped).collect() } else { Vec::new() },
        reasons: notes(&d.reasons),
        warnings: d.warnings.iter().chain(&resolved.notes).map(note).collect(),
        preset: d.preset.clone(),
        generations: Some(pb::Generations {
            catalog: d.generations.catalog,
            models: d.generations.models.iter().map(ToString::to_string).collect(),
            policy: d.generations.policy,
        }),
        decision_id: d.decision_id.clone(),
        took_us: resolved.took_us,
        query_lang: resolved.lang.as_str().into(),
    }
}

fn candidate(c: &Candidate, explain: bool) -> pb::Candidate {
    pb::Candidate {
        agent: Some(agent_ref(&c.agent)),
        agent_version: c.agent_version.clone(),
        capability: c.capability.to_string(),
        score: c.score,
        probability: c.probability.get(),
        under_floor: c.under_floor,
        found_by: c.found_by.iter().map(ToString::to_string).collect(),
        terms: if explain { terms(&c.terms) } else { Vec::new() },
        evidence: if explain { terms(&c.evidence) } else { Vec::new() },
    }
}

fn terms(terms: &[Term]) -> Vec<pb::Term> {
    terms.iter().map(|t| pb::Term { name: t.name.to_string(), weight: t.weight, value: t.value }).collect()
}

fn note(note: &Note) -> pb::Note {
    pb::Note { code: note.code.to_string(), text: note.text.clone() }
}

fn notes(all: &[Note]) -> Vec<pb::Note> {
    all.iter().map(note).collect()
}

fn dropped(d: &Dropped) -> pb::Dropped {
    let mut detail = serde_json::to_value(&d.why).unwrap_or_default();
    let reason = detail.as_object_mut().and_then(|map| map.shift_remove("reason")).and_then(|v| v.as_str().map(str::to_string));
    let detail = detail.as_object().filter(|map| !map.is_empty()).map(|_| detail.to_string());
    pb::Dropped {
        agent: Some(agent_ref(&d.agent)),
        capability: d.capability.to_string(),
        similarity: d.similarity,
        reason: reason.unwrap_or_default(),
        text: words(&d.why),
        detail,
    }
}

/// Identity of an agent on the wire.
pub fn agent_ref(key: &AgentKey) -> pb::AgentRef {
    pb::AgentRef { domain: key.domain.to_string(), namespace: key.namespace.to_string(), agent_id: key.agent_id.to_string() }
}

/// Reads the identity of an agent; faults stand under `/agent`.
pub fn agent_key(agent: Option<&pb::AgentRef>) -> Result<AgentKey, Error> {
    let Some(agent) = agent else {
        return Err(Error::invalid_at("/agent", "the agent's namespace and agent_id", "name the agent"));
    };
    let mut faults = Vec::new();
    let namespace = Namespace::new(&agent.namespace)
        .map_err(|expected| faults.push(Fault::new("/agent/namespace", expected, "write the namespace that the agent was registered in")))
        .ok();
    let domain = if agent.domain.is_empty() { "local" } else { &agent.domain };
    for (pointer, text) in [("/agent/agent_id", agent.agent_id.as_str()), ("/agent/domain", domain)] {
        if !id::is_agent_id(text) {
            faults.push(Fault::new(
                pointer,
                "letters, digits, '_', '.' or '-', beginning with a letter or digit",
                "write it as it was registered",
            ));
        }
    }
    match namespace {
        Some(namespace) if faults.is_empty() => {
            Ok(AgentKey { domain: Arc::from(domain), namespace, agent_id: Arc::from(agent.agent_id.as_str()) })
        }
        Some(_) | None => Err(Error::invalid(faults)),
    }
}

/// The manifest of a gRPC registration as the document that an HTTP body would have been.
pub fn manifest_document(message: Option<pb::Manifest>) -> Result<Value, Error> {
    let message = message.ok_or_else(|| Error::invalid_at("/manifest", "a manifest", "fill the field manifest"))?;
    let mut faults = Vec::new();
    let mut free = |text: &Option<String>, pointer: String| {
        if let Some(e) = text.as_ref().and_then(|text| json::read_free(text, &pointer).err()) {
            faults.extend(e.faults);
        }
    };
    free(&message.attributes, "/attributes".into());
    for (i, capability) in message.capabilities.iter().enumerate() {
        free(&capability.input_schema, format!("/capabilities/{i}/input_schema"));
        free(&capability.output_schema, format!("/capabilities/{i}/output_schema"));
    }
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    serde_json::to_value(&message).map_err(Error::internal)
}

/// A stored manifest on the wire.
pub fn manifest(manifest: &Manifest) -> Result<pb::Manifest, Error> {
    serde_json::to_value(manifest).and_then(serde_json::from_value).map_err(Error::internal)
}

/// Receipt of a registration.
pub fn registered(r: Registered) -> pb::RegisterResponse {
    pb::RegisterResponse {
        agent: Some(agent_ref(&r.agent)),
        generation: r.generation,
        content_hash: r.content_hash,
        changed: r.changed,
        capabilities: u32::try_from(r.capabilities).unwrap_or(u32::MAX),
        embedded: u32::try_from(r.embedded).unwrap_or(u32::MAX),
        lint: r.lint.into_iter().map(fault).collect(),
    }
}

/// A fault on the wire.
pub fn fault(f: Fault) -> pb::Fault {
    pb::Fault { pointer: f.pointer, expected: f.expected, hint: f.hint }
}

/// An error on the wire: the same on every door.
pub fn error(e: &Error) -> pb::Error {
    pb::Error {
        code: e.code.as_str().into(),
        message: e.message.clone(),
        faults: e.faults.iter().cloned().map(fault).collect(),
        retry_after_ms: e.retry_after.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// A heartbeat; the agent is read by [`agent_key`].
pub fn heartbeat(m: &pb::HeartbeatRequest) -> Result<Heartbeat, Error> {
    if m.load.is_some_and(|load| !(0.0..=1.0).contains(&load)) {
        return Err(Error::invalid_at("/load", "a number from 0 to 1", "write the share of the agent's capacity that is in use"));
    }
    Ok(Heartbeat { load: m.load, queue_length: m.queue_length, in_flight: m.in_flight, draining: m.draining })
}

/// State of an agent.
pub fn state(s: &AgentState) -> Result<pb::AgentState, Error> {
    Ok(pb::AgentState {
        agent: Some(agent_ref(&s.manifest.key())),
        status: s.status.into(),
        generation: s.generation,
        content_hash: s.content_hash.clone(),
        registered_at: time(s.registered_at_ms),
        lease_until: s.lease_until_ms.map(time),
        load: s.load,
        queue_length: s.queue_length,
        in_flight: s.in_flight,
        manifest: Some(manifest(&s.manifest)?),
    })
}

/// Which agents to list.
pub fn list(m: pb::ListRequest) -> ListRequest {
    ListRequest { namespace: m.namespace, tag: m.tag, capability: m.capability, limit: m.limit, after: m.after }
}

/// A page of agents.
pub fn page(p: &AgentPage) -> Result<pb::ListResponse, Error> {
    Ok(pb::ListResponse { agents: p.agents.iter().map(state).collect::<Result<_, _>>()?, next: p.next.clone() })
}

/// A change of the registry.
pub fn event(e: &RegistryEvent) -> pb::RegistryEvent {
    pb::RegistryEvent { generation: e.generation, kind: e.kind.into(), agent: e.agent.as_ref().map(agent_ref) }
}

/// RFC 3339 of milliseconds since the epoch, in UTC.
pub fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX }).to_string()
}
