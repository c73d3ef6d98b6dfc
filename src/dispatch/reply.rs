//! The one envelope in which every answer goes back: by the open connection, by callback, by asking.
//!
//! Not here: reading what the agent said (`response`), transport.

use crate::types::Note;
use crate::types::envelope::{PROTOCOL_VERSION, Payload};
use crate::types::message::{Message, State};
use serde::Serialize;
use std::sync::Arc;

/// How it ended, or where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// 200 when done, 202 while open, else the status of its error code.
    pub code: u16,
    /// State, or the stable error code.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// In words.
    pub message: String,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplyEnvelope {
    /// Version of this form.
    pub protocol_version: u32,
    /// Identity of the reach.
    pub reach_id: String,
    /// Identity of the message.
    pub message_id: Arc<str>,
    /// Trace.
    pub trace_id: Arc<str>,
    /// Who did it, `namespace/agent_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Where the message is.
    pub state: State,
    /// How it ended.
    pub status: Status,
    /// From its coming in to its last change, milliseconds.
    pub duration_ms: i64,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
    /// The result, when it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Arc<str>>,
    /// What the caller should know.
    pub warnings: Vec<Note>,
}

/// The answer that a message is now.
pub fn envelope(m: &Message) -> ReplyEnvelope {
    let h = &m.head;
    let status = match (h.state, h.code) {
        (State::Done | State::Acked, _) => Status { code: 200, kind: "ok", message: "done".into() },
        (State::Cancelled, _) => Status { code: 410, kind: "cancelled", message: words(&h.reason, "called off") },
        (state, Some(code)) if state.is_terminal() => {
            Status { code: code.http(), kind: code.as_str(), message: words(&h.reason, "failed") }
        }
        (state, _) => Status { code: 202, kind: state.as_str(), message: "under way".into() },
    };
    let mut reply = h.reply.clone().unwrap_or_default();
    if let Some(to) = &h.escalated {
        reply.warnings.push(Note::new("escalated", format!("it was given up and handed on: {to}")));
    }
    ReplyEnvelope {
        protocol_version: PROTOCOL_VERSION,
        reach_id: m.id().to_string(),
        message_id: m.envelope.message_id.clone(),
        trace_id: m.envelope.trace_id.clone(),
        agent_id: h.agent.as_ref().map(ToString::to_string),
        // what is done is only still to be handed back: with this answer it is
        state: if h.state == State::Acked { State::Done } else { h.state },
        status,
        duration_ms: (h.updated_ms - m.envelope.timestamp_ms).max(0),
        data: reply.data,
        text: reply.text,
        warnings: reply.warnings,
    }
}

fn words(reason: &Option<Arc<str>>, otherwise: &str) -> String {
    reason.as_deref().unwrap_or(otherwise).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::state::{begin, on, tests as made};
    use crate::types::message::{DeadTag, Event};

    #[test]
    fn a_dead_letter_says_why() {
        let e = made::envelope(1);
        let first = begin(0, &e).head;
        let open = envelope(&Message { envelope: Arc::new(e.clone()), head: first.clone() });
        assert_eq!((open.status.code, open.status.kind), (202, "received"));
        let dead = on(&first, 40, Event::Dead { tag: DeadTag::TtlExpired, reason: Arc::from("its time is over") }).unwrap().head;
        let r = envelope(&Message { envelope: Arc::new(e), head: dead });
        assert_eq!((r.status.code, r.status.kind, r.status.message.as_str(), r.duration_ms), (504, "ttl_expired", "its time is over", 40));
    }
}
