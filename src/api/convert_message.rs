//! Messages between the wire and the dispatcher: the same for every door.
//!
//! Not here: who may see what (`dispatch`), bytes (`grpc`, `http`), checks of a submission (`types::envelope`).

use crate::api::convert::{error, response, selectors, time};
use crate::api::json;
use crate::api::pb;
use crate::api::ports::Resolved;
use crate::dispatch::engine::{Delivery, LaneView, Receipt};
use crate::dispatch::http::pushed;
use crate::dispatch::port::Filter;
use crate::dispatch::reply;
use crate::dispatch::service::Submitted;
use crate::error::{Code, Error};
use crate::types::decision::Note;
use crate::types::envelope::{MAX_TAGS, Payload, RawPayload, ReachId, SubmitRequest, parse_agent};
use crate::types::message::{Cause, DeadTag, Entry, Event, Message, Reply, State};
use crate::types::{Fault, Lang};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A submission as it was sent; what is wrong with its JSON fields is told at once.
pub fn submit(m: pb::SubmitRequest) -> Result<SubmitRequest, Error> {
    let mut faults = Vec::new();
    if let Some(text) = &m.payload {
        // the size is the envelope's to judge: it knows the way out
        if text.len() <= crate::types::envelope::MAX_PAYLOAD
            && let Err(e) = json::read_free(text, "/payload")
        {
            faults.extend(e.faults);
        }
    }
    let attributes = m.attributes.as_deref().and_then(|t| json::read_free(t, "/attributes").map_err(|e| faults.extend(e.faults)).ok());
    let attributes = selectors(attributes.filter(|v| !v.is_null()), &mut faults);
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(SubmitRequest {
        message_id: m.message_id,
        parent_id: m.parent_id,
        trace_id: m.trace_id,
        caller: m.caller,
        tenant: m.tenant,
        target: m.target,
        intent: m.intent,
        query: m.query,
        payload: m.payload.filter(|p| p.trim() != "null").map(|p| Box::new(RawPayload(p))),
        data_ref: m.data_ref,
        priority: m.priority,
        ttl_ms: m.ttl_ms,
        timeout_ms: m.timeout_ms,
        budget_ms: m.budget_ms,
        max_attempts: m.max_attempts,
        mode: m.mode,
        deliver: m.deliver,
        callback: m.callback,
        idempotency_key: m.idempotency_key,
        biz_tags: m.biz_tags,
        scopes: m.scopes.map(|list| list.items),
        namespaces: m.namespaces,
        depth: m.depth,
        region: m.region,
        attributes,
        preferred: m.preferred,
        only: m.only,
        exclude: m.exclude,
        max_cost: m.max_cost,
        preset: m.preset,
        fallback: m.fallback,
        previous: m.previous,
    })
}

fn note(n: &Note) -> pb::Note {
    pb::Note { code: n.code.to_string(), text: n.text.clone() }
}

fn text_of(payload: Option<&Payload>) -> Option<String> {
    payload.map(|p| p.as_str().to_string())
}

/// The answer that a message is now.
pub fn reply(m: &Message) -> pb::Reply {
    let r = reply::envelope(m);
    pb::Reply {
        protocol_version: r.protocol_version,
        reach_id: r.reach_id,
        message_id: r.message_id.to_string(),
        trace_id: r.trace_id.to_string(),
        agent_id: r.agent_id,
        state: r.state.as_str().into(),
        status: Some(pb::ReplyStatus { code: u32::from(r.status.code), r#type: r.status.kind.into(), message: r.status.message }),
        duration_ms: r.duration_ms,
        data: text_of(r.data.as_ref()),
        text: r.text.as_deref().map(str::to_string),
        warnings: r.warnings.iter().map(note).collect(),
        existing: false,
        decision: None,
        parts: Vec::new(),
        slow_down_ms: None,
    }
}

/// The answer to a submission, with what to choose from when it went to nobody.
pub fn submitted(s: &Submitted) -> pb::Reply {
    let decision = s.decision.as_deref().map(|d| {
        let resolved = Resolved {
            decision: d.clone(),
            lang: Lang::of(s.message.envelope.query.as_deref().unwrap_or("")),
            took_us: 0,
            notes: Vec::new(),
        };
        response(&resolved, false)
    });
    let slow_down_ms = s.slow_down.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    pb::Reply { existing: s.existing, decision, slow_down_ms, ..reply(&s.message) }
}

/// A message; `whole` with its payload.
pub fn message(m: &Message, log: Option<&[Entry]>) -> pb::Message {
    let (e, h) = (&m.envelope, &m.head);
    let agents = |list: &[crate::types::AgentKey]| list.iter().map(ToString::to_string).collect();
    pb::Message {
        reach_id: m.id().to_string(),
        message_id: e.message_id.to_string(),
        parent_id: e.parent_id.as_deref().map(str::to_string),
        trace_id: e.trace_id.to_string(),
        caller: e.principal.caller.to_string(),
        received_at: time(e.timestamp_ms),
        expires_at: time(h.expires_ms),
        target: e.target.as_ref().map(ToString::to_string),
        intent: e.intent.as_deref().map(str::to_string),
        query: e.query.as_deref().map(str::to_string),
        payload: log.and_then(|_| text_of(e.payload.as_ref())),
        data_ref: e.data_ref.as_deref().map(str::to_string),
        priority: u32::from(e.priority.number()),
        mode: e.mode.as_str().into(),
        biz_tags: e.biz_tags.clone(),
        idempotency_key: e.idempotency_key.as_deref().map(str::to_string),
        source: h.source.as_str().into(),
        replayed_from: e.replayed_from.map(|id| id.to_string()),
        state: h.state.as_str().into(),
        delivery: h.delivery,
        agent: h.agent.as_ref().map(ToString::to_string),
        capability: h.capability.as_deref().map(str::to_string),
        delivered_at: h.delivered_ms.map(time),
        accepted_at: h.accepted_ms.map(time),
        acked_at: h.acked_ms.map(time),
        lease_until: h.lease_until_ms.map(time),
        failed: agents(&h.failed),
        rejected: agents(&h.rejected),
        dead_tag: h.tag.map(|t| t.as_str().to_string()),
        updated_at: time(h.updated_ms),
        reply: Some(reply(m)),
        log: log.unwrap_or_default().iter().map(entry).collect(),
        escalated_to: h.escalated.as_deref().map(str::to_string),
        escalated_from: e.escalation.as_ref().map(|x| x.reach_id.to_string()),
    }
}

/// The answer that a broadcast is now, by its parts; `None` without any. Open while a part is; then `done` when all are, else as the first that is not.
pub fn broadcast_reply(parts: &[Message], existing: bool) -> Option<pb::Reply> {
    let open = parts.iter().find(|m| !m.head.state.is_terminal());
    let first = open.or_else(|| parts.iter().find(|m| m.head.state != State::Done)).or(parts.first())?;
    let ended = parts.iter().map(|m| m.head.updated_ms).max()?;
    let begun = parts.iter().map(|m| m.envelope.timestamp_ms).min()?;
    let count = |wanted: fn(State) -> bool| parts.iter().filter(|m| wanted(m.head.state)).count();
    let (done, over) = (count(|s| s == State::Done), count(State::is_terminal));
    let code = match (open, done == parts.len()) {
        (Some(_), _) => 202,
        (None, true) => 200,
        (None, false) => reply(first).status.map_or(500, |s| s.code),
    };
    let message = format!("sent to {} agents: {done} done, {} ended otherwise, {} open", parts.len(), over - done, parts.len() - over);
    let id: String = first.envelope.parent_id.as_deref().unwrap_or_default().into();
    Some(pb::Reply {
        reach_id: id.clone(),
        message_id: id,
        agent_id: None,
        state: first.head.state.as_str().into(),
        status: Some(pb::ReplyStatus { code, r#type: "broadcast".into(), message }),
        duration_ms: ended.saturating_sub(begun),
        data: None,
        text: None,
        warnings: Vec::new(),
        existing,
        parts: parts.iter().map(reply).collect(),
        ..reply(first)
    })
}

/// A broadcast as one message: what was sent, and how its parts stand. It has no life of its own, so no agent, receipts or log.
pub fn broadcast(parts: &[Message]) -> Option<pb::Message> {
    let reply = broadcast_reply(parts, false)?;
    let newest = parts.iter().max_by_key(|m| m.head.updated_ms)?;
    let sent = message(parts.first()?, Some(&[]));
    Some(pb::Message {
        reach_id: reply.reach_id.clone(),
        message_id: reply.message_id.clone(),
        parent_id: None,
        target: None,
        idempotency_key: None,
        state: reply.state.clone(),
        delivery: 0,
        agent: None,
        delivered_at: None,
        accepted_at: None,
        acked_at: None,
        lease_until: None,
        failed: Vec::new(),
        rejected: Vec::new(),
        dead_tag: None,
        updated_at: time(newest.head.updated_ms),
        reply: Some(reply),
        escalated_to: None,
        ..sent
    })
}

/// A line of the log: the name of the event, and what belongs to it.
pub fn entry(e: &Entry) -> pb::LogEntry {
    // where a task is asked about is between us and the agent
    let shown = if let Event::Accepted { delivery, until_ms, task: Some(_) } = e.event {
        Some(Event::Accepted { delivery, until_ms, task: None })
    } else {
        None
    };
    let text = serde_json::to_string(shown.as_ref().unwrap_or(&e.event)).unwrap_or_default();
    let (event, detail) = match serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(&text) {
        Ok(map) => map.into_iter().next().unzip(),
        // an event without anything that belongs to it is its name alone
        Err(_) => (serde_json::from_str::<String>(&text).ok(), None),
    };
    let event = event.unwrap_or_default();
    let detail = detail.filter(|d| d.get() != "{}").map(|d| match event.as_str() {
        // results stay as they are, digit for digit
        "acked" | "progress" => d.get().to_string(),
        _ => serde_json::from_str(d.get()).map_or_else(|_| d.get().to_string(), |value| named(value).to_string()),
    });
    pb::LogEntry { seq: e.seq, at: time(e.at_ms), state: e.state.as_str().into(), event, detail }
}

/// Identities of agents as `namespace/agent_id`, as they are written everywhere else.
fn named(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) => match serde_json::from_value::<crate::types::AgentKey>(Value::Object(map.clone())) {
            Ok(agent) if map.len() == 3 => Value::String(agent.to_string()),
            Ok(_) | Err(_) => Value::Object(map.into_iter().map(|(k, v)| (k, named(v))).collect()),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(named).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

/// A delivery as a pulling agent gets it.
pub fn work(d: &Delivery) -> pb::Work {
    let p = pushed(d, &d.envelope);
    pb::Work {
        protocol_version: p.protocol_version,
        reach_id: p.reach_id,
        message_id: p.message_id.into(),
        parent_id: p.parent_id.map(str::to_string),
        trace_id: p.trace_id.into(),
        delivery: p.delivery,
        idempotency_key: p.idempotency_key,
        source: p.source.as_str().into(),
        intent: p.intent.into(),
        query: p.query.map(str::to_string),
        payload: text_of(p.payload),
        data_ref: p.data_ref.map(str::to_string),
        caller: p.caller.into(),
        scopes: p.scopes.iter().map(ToString::to_string).collect(),
        depth: u32::from(p.depth),
        budget_ms: p.budget_ms,
        timeout_ms: p.timeout_ms,
        biz_tags: p.biz_tags.clone(),
        fix: p.fix.map(str::to_string),
        escalation: p.escalation.map(|g| pb::Escalation {
            reach_id: g.reach_id,
            tag: g.tag.into(),
            reason: g.reason.into(),
            agent: g.agent,
            intent: g.intent.map(str::to_string),
        }),
    }
}

/// What delivery knows of an agent.
pub fn lane(l: &LaneView) -> pb::Lane {
    let few = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    pb::Lane {
        agent: l.agent.to_string(),
        waiting: few(l.waiting),
        places: l.places,
        retries: few(l.retries),
        in_flight: l.in_flight,
        limit: l.limit,
        breaker: l.breaker.into(),
        p50_ms: l.p50_ms,
        p95_ms: l.p95_ms,
        success: l.success,
        calls: l.calls,
    }
}

/// The words of a receipt, fit for its caller, as those of an answer are.
fn words(reason: Option<String>, otherwise: &str) -> Arc<str> {
    let text = reason.unwrap_or_default();
    if text.trim().is_empty() { Arc::from(otherwise) } else { Arc::from(crate::dispatch::echo::says(&text)) }
}

fn result(data: Option<String>, text: Option<String>) -> Result<Reply, Error> {
    let data = data.filter(|d| d.trim() != "null").map(|d| Payload::new(&d)).transpose().map_err(|fault| {
        let at = Fault { pointer: fault.pointer.replace("/payload", "/data"), ..fault };
        Error::invalid(vec![at])
    })?;
    match (data, text) {
        (Some(data), _) => Ok(Reply { data: Some(data), ..Reply::default() }),
        (None, Some(text)) => Ok(crate::dispatch::response::read(&text)),
        (None, None) => Ok(Reply::default()),
    }
}

fn partial(data: Option<String>) -> Result<Option<Payload>, Error> {
    result(data, None).map(|r| r.data)
}

/// "Done".
pub fn ack(m: pb::AckRequest) -> Result<Receipt, Error> {
    result(m.data, m.text).map(Receipt::Acked)
}

fn nacked(reason: Option<String>, retry_after_ms: Option<u64>) -> Receipt {
    let reason = words(reason, "the agent asks for another attempt");
    Receipt::Nacked { cause: Cause::Nack, reason, retry_after: retry_after_ms.map(Duration::from_millis) }
}

/// "Not done", in three kinds.
pub fn nack(m: pb::NackRequest) -> Result<Receipt, Error> {
    match m.kind.as_deref().unwrap_or("retry") {
        "retry" => Ok(nacked(m.reason, m.retry_after_ms)),
        "refuse" => Ok(Receipt::Refused { code: Code::AgentRejected, reason: words(m.reason, "the agent refused it") }),
        "reject" => Ok(Receipt::Rejected(words(m.reason, "not mine"))),
        _ => Err(Error::invalid_at("/kind", "retry, refuse or reject", "leave it out for retry")),
    }
}

/// A receipt on the way.
pub fn receipt(m: pb::ReceiptRequest) -> Result<Receipt, Error> {
    match m.kind.as_str() {
        "delivered" => Ok(Receipt::Delivered),
        "accepted" => Ok(Receipt::Accepted),
        "progress" => partial(m.partial).map(Receipt::Progress),
        _ => Err(Error::invalid_at("/kind", "delivered, accepted or progress", "the end of the work is told by ack or nack")),
    }
}

/// A receipt over the stream.
pub fn work_receipt(m: pb::WorkReceipt) -> Result<Receipt, Error> {
    match m.kind.as_str() {
        "delivered" => Ok(Receipt::Delivered),
        "accepted" => Ok(Receipt::Accepted),
        "progress" => partial(m.data).map(Receipt::Progress),
        "ack" => result(m.data, m.text).map(Receipt::Acked),
        "nack" => Ok(nacked(m.reason, m.retry_after_ms)),
        "broken" => Ok(Receipt::Nacked { cause: Cause::Broken, reason: words(m.reason, "it broke off"), retry_after: None }),
        "refuse" => Ok(Receipt::Refused { code: Code::AgentRejected, reason: words(m.reason, "the agent refused it") }),
        "reject" => Ok(Receipt::Rejected(words(m.reason, "not mine"))),
        _ => Err(Error::invalid_at("/kind", "delivered, accepted, progress, ack, nack, broken, refuse or reject", "correct it")),
    }
}

/// What became of a receipt.
pub fn receipt_reply(id: &str, delivery: u32, answer: Result<State, Error>) -> pb::ReceiptReply {
    let (state, refused) = match answer {
        Ok(state) => (Some(state.as_str().to_string()), None),
        Err(e) => (None, Some(error(&e))),
    };
    pb::ReceiptReply { reach_id: id.into(), delivery, state, error: refused }
}

/// A reach id, as agents name it. What is none is no message of ours.
pub fn reach_id(text: &str) -> Result<ReachId, Error> {
    text.parse().map_err(|_| Error::not_found("message"))
}

/// Which messages to list.
pub fn filter(m: &pb::ListMessagesRequest) -> Result<Filter, Error> {
    let mut faults = Vec::new();
    let mut bad = |pointer: &str, expected: String| faults.push(Fault::new(pointer, expected, "correct it, or leave it out"));
    let state = m.state.as_deref().filter(|t| !t.is_empty()).and_then(|t| {
        State::parse(t).or_else(|| {
            bad("/state", format!("one of {}", State::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ")));
            None
        })
    });
    let dead_tag = m.dead_tag.as_deref().filter(|t| !t.is_empty()).and_then(|t| {
        DeadTag::parse(t).or_else(|| {
            bad("/dead_tag", format!("one of {}", DeadTag::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ")));
            None
        })
    });
    let agent = m.agent.as_deref().filter(|t| !t.is_empty()).and_then(|t| parse_agent(t).map_err(|e| bad("/agent", e)).ok());
    let mut at = |pointer: &str, text: &Option<String>| {
        let text = text.as_deref().filter(|t| !t.is_empty())?;
        match text.parse::<jiff::Timestamp>() {
            Ok(t) => Some(t.as_millisecond()),
            Err(_) => {
                bad(pointer, "an RFC 3339 time such as 2026-11-29T09:30:00Z".into());
                None
            }
        }
    };
    let (since_ms, until_ms) = (at("/since", &m.since), at("/until", &m.until));
    let limit = m.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        bad("/limit", "a number from 1 to 1000".into());
    }
    let after = m
        .after
        .as_deref()
        .filter(|a| !a.is_empty())
        .and_then(|a| a.parse::<i64>().map_err(|_| bad("/after", "the cursor `next` of the page before".into())).ok());
    if m.tag_name.is_some() != m.tag_value.is_some() {
        bad("/tag_value", "name and value of a label, both".into());
    }
    let one = m.tag_name.clone().zip(m.tag_value.clone());
    let tags: Vec<(String, String)> = one.into_iter().chain(m.tags.clone()).collect();
    if tags.len() > MAX_TAGS {
        bad("/tags", format!("at most {MAX_TAGS} labels"));
    }
    if m.parent_id.as_deref() == Some("") {
        bad("/parent_id", "the id of a message or of a broadcast".into());
    }
    let parent = m.parent_id.as_deref().map(Arc::from);
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(Filter { owner: None, namespaces: None, state, agent, since_ms, until_ms, tags, dead_tag, parent, after, limit: limit as usize })
}
