//! What became of a message: its states, its receipts, its log.
//!
//! [`Message`] = the envelope (never changes) + the [`Head`] (small, changes) ; the log is a list of [`Entry`], append-only, one for each change.
//! Invariant: `head.seq` is the number of log entries; the log alone rebuilds the head (`dispatch::state` proves it).
//! Not here: which change is allowed (`dispatch::state`), where it is kept (the store).

use crate::error::Code;
use crate::types::decision::Note;
use crate::types::envelope::{Envelope, Payload, ReachId, Source, words};
use crate::types::id::AgentKey;
use crate::types::manifest::Retry;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

words! {
    /// Where a message is.
    State {
        /// Taken in; durable.
        Received = "received",
        /// The matcher is being asked.
        Routing = "routing",
        /// Waits for its agent.
        Queued = "queued",
        /// Given to a transport or a pulling agent.
        Dispatched = "dispatched",
        /// The agent has it (its first receipt).
        Delivered = "delivered",
        /// The agent will do it (its second receipt).
        Accepted = "accepted",
        /// The agent is at it.
        Executing = "executing",
        /// The agent has done it (its third receipt).
        Acked = "acked",
        /// The result was handed back. Terminal.
        Done = "done",
        /// The matcher is not sure enough, or nobody fits: back to the caller. Terminal.
        RouteFailed = "route_failed",
        /// An attempt failed; another one will follow.
        RetryPending = "retry_pending",
        /// The agent said "not mine"; the next candidate is asked.
        Rejected = "rejected",
        /// The agent refused for good. Terminal.
        Failed = "failed",
        /// The caller called it off. Terminal.
        Cancelled = "cancelled",
        /// Given up; kept for replay. Terminal.
        DeadLetter = "dead_letter",
    }
}

impl State {
    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Done | Self::RouteFailed | Self::Failed | Self::Cancelled | Self::DeadLetter => true,
            Self::Received | Self::Routing | Self::Queued | Self::Dispatched | Self::Delivered => false,
            Self::Accepted | Self::Executing | Self::Acked | Self::RetryPending | Self::Rejected => false,
        }
    }

    /// Whether an agent holds it now: it has a lease.
    pub fn is_out(self) -> bool {
        match self {
            Self::Dispatched | Self::Delivered | Self::Accepted | Self::Executing => true,
            Self::Received | Self::Routing | Self::Queued | Self::Acked | Self::Done | Self::RouteFailed => false,
            Self::RetryPending | Self::Rejected | Self::Failed | Self::Cancelled | Self::DeadLetter => false,
        }
    }
}

words! {
    /// Why a message was given up.
    DeadTag {
        /// Nobody was left to ask.
        NoMatchedAgent = "no_matched_agent",
        /// Everybody who was asked said "not mine".
        AgentRejected = "agent_rejected",
        /// The agent took too long and the work can't be repeated safely.
        ProcessingTimeout = "processing_timeout",
        /// It outlived its ttl.
        TtlExpired = "ttl_expired",
        /// All attempts were used.
        RetriesExhausted = "retries_exhausted",
        /// The target's queue has its share of retries already.
        AgentBusy = "agent_busy",
        /// It was delivered too often without an answer.
        Poison = "poison",
        /// The result did not fit the output schema, twice.
        SchemaValidationFailed = "schema_validation_failed",
    }
}

impl DeadTag {
    /// The error code that a caller sees.
    pub fn code(self) -> Code {
        match self {
            Self::NoMatchedAgent => Code::NoMatchedAgent,
            Self::AgentRejected => Code::AgentRejected,
            Self::ProcessingTimeout => Code::UpstreamTimeout,
            Self::TtlExpired => Code::TtlExpired,
            Self::RetriesExhausted | Self::Poison => Code::AllAgentsFailed,
            Self::AgentBusy => Code::AgentBusy,
            Self::SchemaValidationFailed => Code::SchemaValidationFailed,
        }
    }
}

words! {
    /// What ended an attempt.
    Cause {
        /// No connection.
        Connect = "connect",
        /// The connection broke or the answer made no sense.
        Broken = "broken",
        /// 429, 503 or a busy answer.
        Busy = "busy",
        /// No answer in time; the lease ran out.
        Timeout = "timeout",
        /// The agent asks for another attempt.
        Nack = "nack",
        /// The agent refused for good.
        Refused = "refused",
        /// The payload is refused.
        Payload = "payload",
        /// The result does not fit the output schema.
        Schema = "schema",
        /// The address may not be called.
        Blocked = "blocked",
        /// Our own process ended while the message was out.
        Restart = "restart",
    }
}

/// What the agent made of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
    /// Text, when the result is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Arc<str>>,
    /// What the caller should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Note>,
}

/// One thing that happened to a message. Receipts name the delivery they answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It was taken in.
    Received,
    /// The matcher is asked, without those who failed.
    Routing {
        /// Who is left out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        exclude: Vec<AgentKey>,
    },
    /// The matcher chose.
    Routed {
        /// Who.
        agent: AgentKey,
        /// For what.
        capability: Arc<str>,
        /// Score by the preset.
        score: f32,
        /// Calibrated probability.
        probability: f32,
        /// The decision, for its reasons.
        decision_id: Arc<str>,
        /// Why there is a delivery.
        source: Source,
    },
    /// The matcher chose nobody.
    Unrouted {
        /// Stable code.
        code: Code,
        /// In words.
        reason: Arc<str>,
        /// The decision.
        decision_id: Arc<str>,
    },
    /// A delivery begins; the number of deliveries rises by one.
    Leased {
        /// Without a sign of life until then the delivery is over, milliseconds since the epoch.
        until_ms: i64,
    },
    /// First receipt: the agent has it.
    Delivered {
        /// Which delivery.
        delivery: u32,
    },
    /// Second receipt: the agent will do it.
    Accepted {
        /// Which delivery.
        delivery: u32,
        /// The lease, extended.
        until_ms: i64,
        /// Where the task that it has become is asked about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<Arc<str>>,
    },
    /// A sign of life while it works; may carry a partial result.
    Progress {
        /// Which delivery.
        delivery: u32,
        /// The lease, extended.
        until_ms: i64,
        /// Partial result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<Payload>,
    },
    /// Third receipt: the agent has done it.
    Acked {
        /// Which delivery.
        delivery: u32,
        /// The result.
        reply: Reply,
    },
    /// The result was handed back.
    HandedBack,
    /// The attempt failed and may be repeated.
    Nacked {
        /// Which delivery.
        delivery: u32,
        /// Why.
        cause: Cause,
        /// In words.
        reason: Arc<str>,
        /// When the agent wants to be asked again, milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The agent refused for good.
    Refused {
        /// Which delivery.
        delivery: u32,
        /// Stable code.
        code: Code,
        /// In words.
        reason: Arc<str>,
    },
    /// The agent said "not mine".
    Rejected {
        /// Which delivery.
        delivery: u32,
        /// In words.
        reason: Arc<str>,
    },
    /// The lease ran out.
    LeaseExpired {
        /// Which delivery.
        delivery: u32,
        /// It ended because our own process did.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        crashed: bool,
    },
    /// The same agent is tried again, not before this time.
    Postponed {
        /// Milliseconds since the epoch.
        due_ms: i64,
        /// In words.
        reason: Arc<str>,
    },
    /// The pause is over: back into the agent's queue.
    Requeued {
        /// Why there is a delivery.
        source: Source,
    },
    /// Called off.
    Cancelled {
        /// In words.
        reason: Arc<str>,
    },
    /// Somebody else is told that it is given up; written with that.
    Escalated {
        /// Who: an agent and its capability, or `callback`.
        to: Arc<str>,
    },
    /// Given up.
    Dead {
        /// Why.
        tag: DeadTag,
        /// In words.
        reason: Arc<str>,
    },
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// 1 for the first entry, without gaps.
    pub seq: u32,
    /// When, milliseconds since the epoch.
    pub at_ms: i64,
    /// State after it.
    pub state: State,
    /// What happened.
    pub event: Event,
}

/// The part of a message that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Where it is.
    pub state: State,
    /// Log entries so far.
    pub seq: u32,
    /// Deliveries begun; the number that receipts must name.
    pub delivery: u32,
    /// Of these, deliveries that ended because our own process did.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub crashes: u32,
    /// Why the last delivery takes place.
    pub source: Source,
    /// Who has it or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentKey>,
    /// For what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Arc<str>>,
    /// Where the task that this delivery has become is asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Arc<str>>,
    /// First receipt of this delivery, milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_ms: Option<i64>,
    /// Second receipt of this delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_ms: Option<i64>,
    /// Third receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked_ms: Option<i64>,
    /// When this delivery began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_ms: Option<i64>,
    /// When the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until_ms: Option<i64>,
    /// Not before this time.
    pub due_ms: i64,
    /// Not after this time.
    pub expires_ms: i64,
    /// Who failed at it, in order, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<AgentKey>,
    /// Who said "not mine".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<AgentKey>,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Reply>,
    /// Error of a terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Error in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// Why it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<DeadTag>,
    /// Who was told that it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated: Option<Arc<str>>,
    /// Last change, milliseconds since the epoch.
    pub updated_ms: i64,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A message as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What was sent.
    pub envelope: Arc<Envelope>,
    /// What became of it.
    pub head: Head,
}

impl Message {
    /// Its identity.
    pub fn id(&self) -> ReachId {
        self.envelope.reach_id
    }
}

/// Retry policy of the design: 200 ms doubled up to 5 s, a quarter of it as jitter, five attempts in all.
pub fn default_retry() -> Retry {
    Retry { max_attempts: 5, base: Duration::from_millis(200), max: Duration::from_secs(5), jitter: 0.25 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_wire_are_the_words_of_serde() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(State::parse(state.as_str()), Some(*state));
            assert!(!(state.is_terminal() && state.is_out()), "{state:?}");
        }
        for tag in DeadTag::ALL {
            assert_eq!(serde_json::to_value(tag).unwrap(), tag.as_str());
        }
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.as_str());
        }
    }

    #[test]
    fn a_log_line_keeps_payloads_to_the_letter() {
        let entry = Entry { seq: 4, at_ms: 9, state: State::Dispatched, event: Event::Leased { until_ms: 12 } };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(text, r#"{"seq":4,"at_ms":9,"state":"dispatched","event":{"leased":{"until_ms":12}}}"#);
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        let data = Some(Payload::new("{\"n\": 123456789012345678901234567890, \"n\": 1.0}").unwrap());
        let event = Event::Acked { delivery: 1, reply: Reply { data, ..Reply::default() } };
        let acked = Entry { seq: 5, at_ms: 9, state: State::Acked, event };
        assert_eq!(serde_json::from_str::<Entry>(&serde_json::to_string(&acked).unwrap()).unwrap(), acked);
    }
}
