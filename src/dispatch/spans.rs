//! A message's life as spans of OpenTelemetry: route, queue, deliver, with its receipts as events, under the message's own trace.
//!
//! In: a message and its log. Out: spans of the wire format (`https://opentelemetry.io/docs/specs/otlp/`), the message's own first. The log is the
//! only source, so that a span tells what was durable, also across a restart of ours.
//! Invariant: equal logs give equal spans, ids included: who sends them twice tells nothing twice. The id of a message's own span is the one that
//! agents get in `traceparent`, so what an agent does hangs below it.
//! Not here: sending them (`app::delivery::otlp`).

use crate::types::envelope::ReachId;
use crate::types::message::{Entry, Event, Message, State};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::{Event as SpanEvent, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

/// Id of a message's own span: what `traceparent` names.
pub fn span_id(id: ReachId) -> u64 {
    (id.0 as u64) | 1
}

/// Id of its `n`th inner span, n ≥ 1: splitmix64 of both.
fn inner_id(id: ReachId, n: u64) -> u64 {
    let mut z = span_id(id).wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).max(1)
}

fn nanos(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// An attribute with a text.
pub fn text(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(Value::StringValue(value.into())) }), ..KeyValue::default() }
}

fn number(key: &str, value: i64) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(Value::IntValue(value)) }), ..KeyValue::default() }
}

fn share(key: &str, value: f32) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(Value::DoubleValue(f64::from(value))) }), ..KeyValue::default() }
}

fn event(name: &str, at_ms: i64, attributes: Vec<KeyValue>) -> SpanEvent {
    SpanEvent { name: name.into(), time_unix_nano: nanos(at_ms), attributes, ..SpanEvent::default() }
}

fn failed(why: &str) -> Option<Status> {
    Some(Status { code: StatusCode::Error.into(), message: why.into() })
}

/// The spans of one message while its log is read.
struct Life<'m> {
    message: &'m Message,
    trace: Vec<u8>,
    own: Span,
    done: Vec<Span>,
    open: Option<Span>,
}

impl<'m> Life<'m> {
    fn new(message: &'m Message) -> Self {
        let e = &message.envelope;
        let trace = hex::decode(&*e.trace_id).ok().filter(|t| t.len() == 16).unwrap_or_else(|| e.reach_id.to_bytes().into());
        let what = message.head.capability.as_deref().or(e.intent.as_deref()).unwrap_or("message");
        let parent =
            e.parent_id.as_deref().and_then(|p| p.parse::<ReachId>().ok()).map_or_else(Vec::new, |p| span_id(p).to_be_bytes().into());
        let mut attributes = vec![
            text("reach.id", e.reach_id.to_string()),
            text("reach.message_id", &*e.message_id),
            text("reach.caller", &*e.principal.caller),
            text("reach.state", message.head.state.as_str()),
            number("reach.deliveries", i64::from(message.head.delivery)),
        ];
        attributes.extend(message.head.agent.as_ref().map(|a| text("reach.agent", a.to_string())));
        attributes.extend(e.biz_tags.iter().map(|(name, value)| text(format!("biz.{name}"), value)));
        let own = Span {
            trace_id: trace.clone(),
            span_id: span_id(e.reach_id).to_be_bytes().into(),
            parent_span_id: parent,
            name: format!("reach {what}"),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: nanos(e.timestamp_ms),
            attributes,
            ..Span::default()
        };
        Self { message, trace, own, done: Vec::new(), open: None }
    }

    /// Begins an inner span; one that is open ends with it.
    fn begin(&mut self, name: &str, kind: SpanKind, at_ms: i64, attributes: Vec<KeyValue>) {
        self.end(at_ms, None, Vec::new());
        let number = self.done.len() as u64 + 1;
        self.open = Some(Span {
            trace_id: self.trace.clone(),
            span_id: inner_id(self.message.envelope.reach_id, number).to_be_bytes().into(),
            parent_span_id: self.own.span_id.clone(),
            name: name.into(),
            kind: kind.into(),
            start_time_unix_nano: nanos(at_ms),
            attributes,
            ..Span::default()
        });
    }

    fn end(&mut self, at_ms: i64, status: Option<Status>, attributes: Vec<KeyValue>) {
        if let Some(mut span) = self.open.take() {
            span.end_time_unix_nano = nanos(at_ms).max(span.start_time_unix_nano);
            span.status = status;
            span.attributes.extend(attributes);
            self.done.push(span);
        }
    }

    /// Something that happened inside the open span, else to the message itself.
    fn note(&mut self, name: &str, at_ms: i64, attributes: Vec<KeyValue>) {
        self.open.as_mut().unwrap_or(&mut self.own).events.push(event(name, at_ms, attributes));
    }

    fn read(&mut self, entry: &Entry) {
        let at = entry.at_ms;
        match &entry.event {
            Event::Received => {}
            Event::Routing { exclude } => {
                let without = exclude.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                self.begin(
                    "route",
                    SpanKind::Internal,
                    at,
                    (!without.is_empty()).then(|| text("reach.exclude", without)).into_iter().collect(),
                );
            }
            Event::Routed { agent, capability, score, probability, decision_id, .. } => {
                let chosen = vec![
                    text("reach.agent", agent.to_string()),
                    text("reach.capability", &**capability),
                    text("reach.decision_id", &**decision_id),
                    share("reach.score", *score),
                    share("reach.probability", *probability),
                ];
                self.end(at, None, chosen);
                self.begin("queue", SpanKind::Internal, at, vec![text("reach.agent", agent.to_string())]);
            }
            Event::Unrouted { code, reason, decision_id } => {
                self.end(at, failed(reason), vec![text("reach.code", code.as_str()), text("reach.decision_id", &**decision_id)]);
            }
            Event::Requeued { .. } => self.begin("queue", SpanKind::Internal, at, Vec::new()),
            Event::Leased { .. } => {
                let number_of = 1 + self.done.iter().filter(|s| s.name == "deliver").count() as i64;
                self.begin("deliver", SpanKind::Client, at, vec![number("reach.delivery", number_of)]);
            }
            Event::Delivered { .. } => self.note("delivered", at, Vec::new()),
            Event::Accepted { .. } => self.note("accepted", at, Vec::new()),
            Event::Progress { .. } => self.note("progress", at, Vec::new()),
            Event::Acked { .. } => self.end(at, None, Vec::new()),
            Event::HandedBack => self.note("handed_back", at, Vec::new()),
            Event::Nacked { cause, reason, .. } => self.end(at, failed(reason), vec![text("error.type", cause.as_str())]),
            Event::Refused { code, reason, .. } => self.end(at, failed(reason), vec![text("error.type", code.as_str())]),
            Event::Rejected { reason, .. } => self.end(at, failed(reason), vec![text("error.type", "rejected")]),
            Event::LeaseExpired { crashed, .. } => {
                let why = if *crashed { "our own process ended" } else { "no sign of life in time" };
                self.end(at, failed(why), vec![text("error.type", "lease_expired")]);
            }
            Event::Postponed { due_ms, reason } => {
                self.note("postponed", at, vec![number("reach.due_ms", *due_ms), text("reach.reason", &**reason)]);
            }
            Event::Cancelled { reason } => {
                self.end(at, None, Vec::new());
                self.note("cancelled", at, vec![text("reach.reason", &**reason)]);
            }
            Event::Escalated { to } => self.note("escalated", at, vec![text("reach.to", &**to)]),
            Event::Dead { tag, reason } => {
                self.end(at, failed(reason), Vec::new());
                self.own.status = failed(reason);
                self.own.attributes.push(text("error.type", tag.as_str()));
            }
        }
    }
}

/// Spans of a message by its log, oldest entry first.
pub fn of_message(message: &Message, log: &[Entry]) -> Vec<Span> {
    let mut life = Life::new(message);
    log.iter().for_each(|entry| life.read(entry));
    let end = log.last().map_or(message.envelope.timestamp_ms, |e| e.at_ms);
    life.end(end, None, Vec::new());
    let Life { mut own, done, .. } = life;
    own.end_time_unix_nano = nanos(end).max(own.start_time_unix_nano);
    match message.head.state {
        State::Done => own.status = Some(Status { code: StatusCode::Ok.into(), message: String::new() }),
        State::RouteFailed | State::Failed => {
            let why = done.last().and_then(|s| s.status.as_ref()).map_or("", |s| s.message.as_str());
            own.status = failed(why);
        }
        State::Received | State::Routing | State::Queued | State::Dispatched | State::Delivered | State::Accepted => {}
        State::Executing | State::Acked | State::RetryPending | State::Rejected | State::Cancelled | State::DeadLetter => {}
    }
    std::iter::once(own).chain(done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::state::begin;
    use crate::dispatch::state::tests::{agent, envelope};
    use crate::types::envelope::Source;
    use crate::types::message::{Cause, Head};
    use std::sync::Arc;

    #[test]
    fn a_life_with_a_retry_becomes_spans_below_one() {
        let mut envelope = envelope(7);
        envelope.biz_tags.insert("order".into(), "42".into());
        envelope.parent_id = Some(ReachId(8).to_string().into());
        let head = Head { state: State::Done, delivery: 2, agent: Some(agent("a")), ..begin(1_000, &envelope).head };
        let message = Message { envelope: Arc::new(envelope), head };
        let routed = || Event::Routed {
            agent: agent("a"),
            capability: "refund".into(),
            score: 0.9,
            probability: 0.8,
            decision_id: "d1".into(),
            source: Source::Client,
        };
        let events = [
            (0, Event::Received),
            (0, Event::Routing { exclude: Vec::new() }),
            (3, routed()),
            (10, Event::Leased { until_ms: 99 }),
            (12, Event::Delivered { delivery: 1 }),
            (20, Event::Nacked { delivery: 1, cause: Cause::Broken, reason: "broke".into(), retry_after_ms: None }),
            (21, Event::Postponed { due_ms: 40, reason: "pause".into() }),
            (40, Event::Requeued { source: Source::Retry }),
            (41, Event::Leased { until_ms: 199 }),
            (45, Event::Accepted { delivery: 2, until_ms: 199, task: None }),
            (60, Event::Acked { delivery: 2, reply: Default::default() }),
            (60, Event::HandedBack),
        ];
        let log: Vec<Entry> =
            (1..).zip(events).map(|(seq, (ms, event))| Entry { seq, at_ms: 1_000 + ms, state: State::Queued, event }).collect();
        let spans = of_message(&message, &log);
        let told: Vec<(&str, i64, i64, bool)> = spans
            .iter()
            .map(|s| {
                let ms = |nanos: u64| (nanos / 1_000_000) as i64 - 1_000;
                (s.name.as_str(), ms(s.start_time_unix_nano), ms(s.end_time_unix_nano), s.status.as_ref().is_some_and(|s| s.code == 2))
            })
            .collect();
        assert_eq!(
            told[1..],
            [
                ("route", 0, 3, false),
                ("queue", 3, 10, false),
                ("deliver", 10, 20, true),
                ("queue", 40, 41, false),
                ("deliver", 41, 60, false)
            ]
        );
        let (own, inner) = spans.split_first().unwrap();
        assert!(inner.iter().all(|s| s.parent_span_id == own.span_id && s.trace_id == own.trace_id));
        assert_eq!(own.parent_span_id, span_id(ReachId(8)).to_be_bytes(), "below the message that led to it");
        assert_eq!(own.events.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["postponed", "handed_back"]);
        assert_eq!(inner[4].events[0].name, "accepted");
        assert!(own.attributes.iter().any(|a| a.key == "biz.order"), "labels come along");
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|s| s.span_id.clone()).collect();
        assert_eq!(ids.len(), spans.len());
        assert_eq!(spans, of_message(&message, &log));
    }
}
