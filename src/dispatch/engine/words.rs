//! The words of the engine: its settings, what it asks of the shell, what it is told, what it counts.
//!
//! Not here: what is done with them (`engine`).

use crate::dispatch::breaker::{BreakerConfig, BreakerState};
use crate::dispatch::poison;
use crate::dispatch::port::{Target, Write};
use crate::dispatch::state::Refused;
use crate::dispatch::timeouts::Limits;
use crate::error::Code;
use crate::types::AgentKey;
use crate::types::envelope::{Envelope, Payload, ReachId, Source};
use crate::types::escalation::Rule;
use crate::types::message::{Cause, Message, Reply};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// When breakers trip.
    pub breaker: BreakerConfig,
    /// Deliveries in all, crashes included.
    pub poison_limit: u32,
    /// Who is told of dead letters.
    pub escalations: Arc<[Rule]>,
    /// Switches for the comparison with an unprotected dispatcher; all on in service.
    pub protect: Protect,
}

/// Which protections are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protect {
    /// Refuse what has no room or would die waiting.
    pub admission: bool,
    /// Limit retries.
    pub budget: bool,
    /// Keep work away from failing agents.
    pub breaker: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let protect = Protect { admission: true, budget: true, breaker: true };
        Self { breaker: BreakerConfig::default(), poison_limit: poison::LIMIT, escalations: Arc::from([]), protect }
    }
}

/// Work for the shell.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Make it durable, in order, then call `Engine::wrote`.
    Write(Box<Write>),
    /// Hand a message to its agent.
    Send(Box<Delivery>),
    /// Tell the agent to stop.
    Cancel {
        /// Who has it.
        agent: AgentKey,
        /// Which message.
        id: ReachId,
        /// Which delivery.
        delivery: u32,
    },
    /// Ask the matcher, then call `Engine::rerouted`.
    Route {
        /// Which message.
        id: ReachId,
        /// What it is.
        envelope: Arc<Envelope>,
        /// Who is left out.
        exclude: Vec<AgentKey>,
    },
    /// Tell the caller by callback, then call `Engine::called_back`.
    CallBack(Box<Message>),
    /// Tell whoever the operator named that a message was given up.
    Escalate(Box<Message>),
    /// Something the matcher should learn from.
    Outcome(Outcome),
    /// How busy an agent is with us now, as absolute numbers.
    Load {
        /// Who.
        agent: AgentKey,
        /// Calls under way.
        in_flight: u32,
        /// Messages that wait for it.
        waiting: u32,
    },
    /// A breaker changed.
    Breaker {
        /// Whose.
        agent: AgentKey,
        /// To what.
        state: BreakerState,
    },
}

/// A message on its way to its agent.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Which message.
    pub id: ReachId,
    /// Which delivery.
    pub delivery: u32,
    /// What is sent.
    pub envelope: Arc<Envelope>,
    /// To whom.
    pub target: Target,
    /// Why.
    pub source: Source,
    /// What was wrong with the result before, for a corrective attempt.
    pub fix: Option<Arc<str>>,
    /// Where the task that it has become is asked about: it is not begun again, only looked at.
    pub task: Option<Arc<str>>,
    /// Time limits.
    pub limits: Limits,
}

/// How an attempt ended, for ranking and statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which message.
    pub id: ReachId,
    /// Who.
    pub agent: AgentKey,
    /// For what.
    pub capability: Arc<str>,
    /// Which delivery.
    pub delivery: u32,
    /// Who sent the message.
    pub caller: Arc<str>,
    /// Their tenant.
    pub tenant: Option<Arc<str>>,
    /// What they asked for in words.
    pub query: Option<Arc<str>>,
    /// Capability that they used before.
    pub previous: Option<String>,
    /// When, milliseconds since the epoch.
    pub at_ms: i64,
    /// `acked`, `rejected`, `refused`, `nacked`, `busy`, `timeout`, or `delivered`, `accepted` on the way.
    pub kind: &'static str,
    /// From the start of the delivery, milliseconds.
    pub took_ms: u64,
    /// The decision behind it.
    pub decision_id: Arc<str>,
}

/// A receipt of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Receipt {
    /// It has it.
    Delivered,
    /// It will do it.
    Accepted,
    /// It will do it, as a task that is asked about at this address.
    Task(Arc<str>),
    /// It is still at it.
    Progress(Option<Payload>),
    /// It has done it.
    Acked(Reply),
    /// Another attempt may help.
    Nacked {
        /// Why.
        cause: Cause,
        /// In words.
        reason: Arc<str>,
        /// When to ask again.
        retry_after: Option<Duration>,
    },
    /// No attempt can help.
    Refused {
        /// Stable code.
        code: Code,
        /// In words.
        reason: Arc<str>,
    },
    /// Not its work.
    Rejected(Arc<str>),
}

/// Why a receipt changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReceipt {
    /// No such open message.
    Unknown,
    /// Another agent has it.
    NotYours,
    /// The state machine refuses it.
    Refused(Refused),
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Messages taken in.
    pub submitted: u64,
    /// Of these, messages that went to nobody.
    pub unrouted: u64,
    /// Deliveries begun.
    pub deliveries: u64,
    /// Of these, further attempts.
    pub retries: u64,
    /// First receipts.
    pub delivered: u64,
    /// Second receipts.
    pub accepted: u64,
    /// Third receipts.
    pub acked: u64,
    /// "Not mine".
    pub rejected: u64,
    /// Refused for good.
    pub failed: u64,
    /// Given up.
    pub dead: u64,
    /// Of these, dead letters that somebody else was told of.
    pub escalated: u64,
    /// Called off.
    pub cancelled: u64,
    /// Leases that ran out.
    pub expired_leases: u64,
    /// Newcomers refused for want of room.
    pub turned_away: u64,
    /// Retries put off for want of budget.
    pub budget_refused: u64,
    /// Receipts refused.
    pub receipts_refused: u64,
}

impl Counters {
    /// Every count with its name.
    pub fn named(&self) -> [(&'static str, u64); 16] {
        [
            ("submitted", self.submitted),
            ("unrouted", self.unrouted),
            ("deliveries", self.deliveries),
            ("retries", self.retries),
            ("delivered", self.delivered),
            ("accepted", self.accepted),
            ("acked", self.acked),
            ("rejected", self.rejected),
            ("failed", self.failed),
            ("dead", self.dead),
            ("escalated", self.escalated),
            ("cancelled", self.cancelled),
            ("expired_leases", self.expired_leases),
            ("turned_away", self.turned_away),
            ("budget_refused", self.budget_refused),
            ("receipts_refused", self.receipts_refused),
        ]
    }
}
