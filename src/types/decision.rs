//! What was decided, with everything that explains it.

use crate::types::id::AgentKey;
use crate::types::score::Probability;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The three answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Sure enough to deliver.
    Auto,
    /// Let the caller or a person choose.
    Suggest,
    /// Nobody fits.
    None,
}

impl DecisionKind {
    /// `auto`, `suggest` or `none`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Suggest => "suggest",
            Self::None => "none",
        }
    }
}

/// One named part of a score. The score is the sum of `weight * value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Name of the term, such as `semantic` or `load`.
    pub name: std::borrow::Cow<'static, str>,
    /// Weight by the preset.
    pub weight: f32,
    /// Value, mostly 0..=1.
    pub value: f32,
}

/// Agent × capability that survived the filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Agent.
    pub agent: AgentKey,
    /// Version of the agent's manifest.
    pub agent_version: String,
    /// Capability name as written in the manifest.
    pub capability: Arc<str>,
    /// Sum of the terms.
    pub score: f32,
    /// Calibrated probability that this is the right one.
    pub probability: Probability,
    /// Kept although its similarity is under the floor; never better than `suggest`.
    pub under_floor: bool,
    /// How it was found: `exact_name`, `name_in_text`, `dense`, `keyword`, `target`, `fallback`, `rule`.
    pub found_by: Vec<std::borrow::Cow<'static, str>>,
    /// Parts of the score.
    pub terms: Vec<Term>,
    /// Raw evidence behind the similarity (`cosine`, `bm25`, `coverage` …): name and value, for people, not part of the sum.
    pub evidence: Vec<Term>,
}

/// Why a candidate was dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum DropReason {
    /// A scope of the capability is not held.
    ScopeMissing {
        /// The first missing scope.
        scope: String,
    },
    /// The caller's region is not served.
    Region {
        /// Regions served.
        serves: Vec<String>,
    },
    /// Closed now.
    Closed {
        /// When it opens next, such as `09:00 Asia/Shanghai`, if it ever does.
        opens: Option<String>,
    },
    /// An attribute selector is not satisfied.
    Attribute {
        /// Name of the attribute.
        name: String,
    },
    /// Costs more than the budget.
    Cost {
        /// Price of one call.
        cost: f64,
        /// Highest allowed.
        max: f64,
    },
    /// No heartbeat inside the lease.
    LeaseExpired,
    /// Probes failed.
    Unreachable,
    /// Takes no new work.
    Draining,
    /// Its breaker is tripped.
    Breaker,
    /// Its queue is full.
    Overloaded,
    /// The payload does not fit its input schema.
    Payload {
        /// JSON pointer into the payload.
        pointer: String,
        /// What was expected there.
        expected: String,
    },
    /// An operator rule denies it.
    Rule {
        /// Name of the rule.
        name: String,
    },
    /// Not among the agents that were asked for.
    NotPreferred,
    /// Not the target.
    NotTarget,
    /// Excluded by the caller (it failed before).
    Excluded,
    /// Similar enough to be looked at, not enough to be kept.
    UnderFloor,
}

/// A candidate that was dropped, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// Agent.
    pub agent: AgentKey,
    /// Capability.
    pub capability: Arc<str>,
    /// Calibrated similarity it would have had, if it was computed.
    pub similarity: f32,
    /// Why.
    #[serde(flatten)]
    pub why: DropReason,
}

/// A reason or a warning: a stable code and words for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Stable code such as `clear_margin` or `uncalibrated`.
    pub code: std::borrow::Cow<'static, str>,
    /// The same in words.
    pub text: String,
}

impl Note {
    /// A note with a fixed code.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code: std::borrow::Cow::Borrowed(code), text: text.into() }
    }
}

/// Which state of the world a decision was made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generations {
    /// Generation of the catalog.
    pub catalog: u64,
    /// Fingerprints of the models that were asked.
    pub models: Vec<Arc<str>>,
    /// Generation of the policy.
    pub policy: u64,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// 128-bit random id, hex.
    pub decision_id: String,
    /// The answer.
    pub kind: DecisionKind,
    /// Calibrated probability that the first candidate is right (`auto`), or that a right one is among them (`suggest`); for `none`, of the best that was seen.
    pub confidence: Probability,
    /// Probability of the first minus that of the next *different* capability.
    pub margin: f32,
    /// Whether thresholds fitted for these models stand behind the decision.
    pub calibrated: bool,
    /// Ranked, best first; for `auto` the first one is the choice and the others are alternates.
    pub candidates: Vec<Candidate>,
    /// The best that were dropped, and why.
    pub dropped: Vec<Dropped>,
    /// Why it was decided so.
    pub reasons: Vec<Note>,
    /// What the caller should know: `uncalibrated`, `truncated`, `stale_registry` …
    pub warnings: Vec<Note>,
    /// Ranking preset that was used.
    pub preset: String,
    /// State of the world.
    pub generations: Generations,
}
