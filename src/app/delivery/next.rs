//! The matcher as the dispatcher asks it: an envelope becomes a request to resolve, a decision becomes targets or the reason why not.
//!
//! Rules: `auto` is delivered; `suggest` only when the envelope says `deliver: best` or names its target (a target skips the semantics, never
//! permission); `none` never. Next in line are other agents of the same capability: another capability would be other work.
//! Not here: how it is decided (`route`).

use crate::catalog::schema::SchemaSlot;
use crate::catalog::{AgentRecord, CapEntry};
use crate::dispatch::port::{Choice, NextTarget, Reach, Target};
use crate::error::{Code, Error};
use crate::route::explain;
use crate::route::resolver::Resolver;
use crate::types::decision::{Candidate, Decision, DecisionKind, DropReason};
use crate::types::envelope::{Deliver, Envelope, Mode};
use crate::types::manifest::{Capability, Endpoint, Manifest, Protocol};
use crate::types::request::ResolveRequest;
use crate::types::text::fold_name;
use crate::types::{AgentKey, Fault};
use crate::view::{View, Views};
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Candidates asked for: whoever is next in line must be among them.
const LINE: u32 = 10;
/// Most agents of one broadcast.
const ALL: u32 = 50;

/// The route behind the dispatcher's port. Cheap to clone.
#[derive(Clone)]
pub struct Matched {
    resolver: Arc<Resolver>,
    views: Arc<Views>,
}

impl Matched {
    /// Over the read path.
    pub fn new(resolver: Arc<Resolver>, views: Arc<Views>) -> Self {
        Self { resolver, views }
    }

    async fn choose(&self, e: &Envelope, exclude: &[AgentKey]) -> Result<Choice, Error> {
        let request = request(e, exclude);
        let resolved = self.resolver.resolve(&e.principal, &request).await?;
        let decision = Arc::new(resolved.decision);
        let deliverable = match decision.kind {
            DecisionKind::Auto => true,
            DecisionKind::Suggest => e.deliver == Deliver::Best || e.target.is_some(),
            DecisionKind::None => false,
        };
        let view = self.views.load();
        let targets = if deliverable { targets(&view, &decision) } else { Vec::new() };
        if targets.is_empty() {
            return Ok(nobody(decision));
        }
        let (able, faults) = with_what_is_there(&view, e, targets);
        if able.is_empty() {
            let reason = "the work can't be done without a payload".to_string();
            return Ok(Choice::Nobody { code: Code::PayloadInvalid, reason, faults, decision: Some(decision) });
        }
        Ok(Choice::Deliver(able))
    }
}

impl NextTarget for Matched {
    fn next(&self, envelope: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>> {
        let this = self.clone();
        Box::pin(async move { this.choose(&envelope, &exclude).await })
    }

    fn describe(&self, agent: &AgentKey, capability: &str) -> Option<Target> {
        let view = self.views.load();
        let record = view.catalog.agent(agent)?;
        cap_of(&view, record, capability).and_then(|cap| target(&cap))
    }

    fn agent(&self, agent: &AgentKey) -> Option<Target> {
        let view = self.views.load();
        let first = view.catalog.agent(agent)?.slots.first().copied()?;
        let mut target = target(view.cap(first)?)?;
        target.reach = Reach::Pull;
        Some(target)
    }

    fn faults_of_result(&self, agent: &AgentKey, capability: &str, data: &Value) -> Vec<Fault> {
        let view = self.views.load();
        let cap = view.catalog.agent(agent).and_then(|record| cap_of(&view, record, capability));
        cap.as_ref().and_then(|c| c.output()).and_then(|schema| schema.validate(data).err()).unwrap_or_default()
    }
}

fn cap_of(view: &View, record: &AgentRecord, capability: &str) -> Option<Arc<CapEntry>> {
    let folded = fold_name(capability);
    record.slots.iter().filter_map(|slot| view.cap(*slot)).find(|cap| cap.is_called(&folded)).cloned()
}

fn request(e: &Envelope, exclude: &[AgentKey]) -> ResolveRequest {
    let o = &e.options;
    ResolveRequest {
        query: e.query.as_deref().unwrap_or_default().to_string(),
        capability: e.intent.as_deref().map(str::to_string),
        payload: e.payload.as_ref().map(|p| Arc::new(p.value())),
        caller: None,
        tenant: None,
        namespaces: Vec::new(),
        scopes: None,
        region: o.region.clone(),
        attributes: o.attributes.clone(),
        target: e.target.as_ref().map(ToString::to_string),
        preferred: o.preferred.iter().map(ToString::to_string).collect(),
        only: o.only,
        exclude: exclude.iter().map(ToString::to_string).collect(),
        max_cost: o.max_cost,
        deadline_ms: u64::try_from(e.ttl.as_millis()).ok().map(|ms| ms.max(1)),
        preset: o.preset.clone(),
        fallback: Some(!o.no_fallback),
        depth: u32::from(o.depth),
        previous: o.previous.clone(),
        k: Some(if e.mode == Mode::Broadcast { ALL } else { LINE }),
        at: None,
        seed: None,
        explain: false,
    }
}

/// Whom the decision names, best first: the choice and the other agents of its capability.
fn targets(view: &View, decision: &Decision) -> Vec<Target> {
    let Some(first) = decision.candidates.first() else { return Vec::new() };
    let wanted = fold_name(&first.capability);
    let same = |c: &&Candidate| fold_name(&c.capability) == wanted && (c.under_floor == first.under_floor);
    let described = |c: &Candidate| {
        let cap = cap_of(view, view.catalog.agent(&c.agent)?, &c.capability)?;
        let mut t = target(&cap)?;
        (t.score, t.probability, t.decision_id) = (c.score, c.probability.get(), Arc::from(decision.decision_id.as_str()));
        Some(t)
    };
    decision.candidates.iter().filter(same).filter_map(described).collect()
}

/// Those who can work with what the message brings. One with a payload was held against the schemas when the matcher filtered, and what is fetched
/// elsewhere is the agent's to judge; a message without either suits only those whose schema takes nothing, or an empty object. Else what is missing.
fn with_what_is_there(view: &View, e: &Envelope, targets: Vec<Target>) -> (Vec<Target>, Vec<Fault>) {
    if e.payload.is_some() || e.data_ref.is_some() {
        return (targets, Vec::new());
    }
    let mut missing = Vec::new();
    let able = targets
        .into_iter()
        .filter(|t| {
            let cap = view.catalog.agent(&t.agent).and_then(|record| cap_of(view, record, &t.capability));
            let faults = cap.as_ref().and_then(|c| c.input()).map(absent).unwrap_or_default();
            let suits = faults.is_empty();
            if missing.is_empty() {
                missing = faults;
            }
            suits
        })
        .collect();
    (able, missing)
}

/// What a schema misses when there is no payload.
fn absent(schema: &SchemaSlot) -> Vec<Fault> {
    if schema.validate(&Value::Null).is_ok() {
        return Vec::new();
    }
    let Err(faults) = schema.validate(&Value::Object(Map::new())) else { return Vec::new() };
    let whole = |f: &Fault| f.pointer.is_empty();
    let hint = "send a payload: words alone, or nothing, are not enough for this capability";
    match faults.iter().find(|f| whole(f)) {
        Some(fault) => vec![Fault::new("/payload", fault.expected.clone(), hint)],
        None => faults
            .into_iter()
            .map(|f| Fault::new(format!("/payload{}", f.pointer), f.expected, format!("there is no payload: {hint}, with {}", f.pointer)))
            .collect(),
    }
}

/// How an agent is reached: called where it has an address, else it pulls. Nothing for one that can be reached in neither way.
fn reach(endpoints: &[Endpoint], manifest: &Manifest) -> Option<Reach> {
    if !endpoints.is_empty() {
        Some(Reach::Push)
    } else if manifest.endpoints.iter().any(|e| e.protocol == Protocol::Pull) {
        Some(Reach::Pull)
    } else {
        None
    }
}

/// The endpoints that a capability is called at: a mapped service only over HTTP.
fn called(manifest: &Manifest, capability: &Capability) -> Arc<[Endpoint]> {
    let fits = |e: &&Endpoint| match e.protocol {
        Protocol::Http => true,
        Protocol::Grpc | Protocol::Mcp => capability.rest.is_none(),
        Protocol::Pull => false,
    };
    manifest.endpoints.iter().filter(fits).cloned().collect()
}

fn target(cap: &CapEntry) -> Option<Target> {
    let (m, c) = (&cap.agent.manifest, cap.capability());
    let endpoints = called(m, c);
    Some(Target {
        agent: cap.agent.key.clone(),
        capability: c.intent.clone(),
        score: 1.0,
        probability: 1.0,
        decision_id: Arc::from(""),
        reach: reach(&endpoints, m)?,
        endpoints,
        places: m.max_queue_depth,
        concurrency: m.concurrency,
        retry: m.retry.as_deref().cloned(),
        connect: m.timeouts.connect,
        processing: m.timeouts.processing,
        hint: c.latency_hint,
        rate_limit: c.rate_limit.clone(),
        idempotent: c.idempotent,
        rest: c.rest.clone(),
        states: c.state_machine.as_deref().cloned(),
        tool: c.tool.clone(),
    })
}

/// Why it goes to nobody: what the payload lacks, who is away, or that nobody fits.
fn nobody(decision: Arc<Decision>) -> Choice {
    let misfit = |why: &DropReason| match why {
        DropReason::Payload { pointer, expected } => {
            Some(Fault::new(format!("/payload{pointer}"), expected.clone(), "correct the payload"))
        }
        DropReason::ScopeMissing { .. } | DropReason::Region { .. } | DropReason::Closed { .. } | DropReason::Attribute { .. } => None,
        DropReason::Cost { .. } | DropReason::LeaseExpired | DropReason::Unreachable | DropReason::Draining | DropReason::Breaker => None,
        DropReason::Overloaded | DropReason::Rule { .. } | DropReason::NotPreferred | DropReason::NotTarget => None,
        DropReason::Excluded | DropReason::UnderFloor => None,
    };
    let away = |why: &DropReason| {
        matches!(
            why,
            DropReason::LeaseExpired | DropReason::Unreachable | DropReason::Draining | DropReason::Breaker | DropReason::Overloaded
        )
    };
    let only_misfits = decision.warnings.iter().any(|w| w.code == "payload_invalid");
    let faults: Vec<Fault> = if only_misfits { decision.dropped.iter().filter_map(|d| misfit(&d.why)).collect() } else { Vec::new() };
    let code = if !faults.is_empty() {
        Code::PayloadInvalid
    } else if decision.candidates.is_empty() && decision.dropped.iter().any(|d| away(&d.why)) {
        Code::AgentUnavailable
    } else {
        Code::NoMatchedAgent
    };
    // the best that was dropped is a reason already: it is told once, below
    let told = decision.reasons.iter().filter(|r| r.code != "better_dropped" || !decision.candidates.is_empty()).take(2);
    let mut words: Vec<String> = told.map(|r| r.text.clone()).collect();
    if decision.kind == DecisionKind::Suggest {
        words.insert(0, "not sure enough to deliver: choose a candidate, or send it with deliver = best".into());
    }
    if let Some(d) = decision.dropped.first().filter(|_| decision.candidates.is_empty()) {
        words.push(format!("{} {}: {}", d.agent, d.capability, explain::words(&d.why)));
    }
    if decision.kind == DecisionKind::Auto {
        words.insert(0, "the agents that fit can't be reached: no address for this capability, and they don't pull".into());
    }
    Choice::Nobody { code, reason: words.join("; "), faults, decision: Some(decision) }
}
