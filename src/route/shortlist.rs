//! The shortlist: everything that ranking and deciding need about a query's candidates, as plain data.
//!
//! `shortlist` (filter, recall, features) reads the View; `pick` (rank, decide) reads only this. A slow judge may look at it in
//! between, and replay re-picks many settings over one logged shortlist.
//! Not here: thresholds and weights (policy), which are applied when it is picked from.

use crate::types::decision::{Dropped, Note};
use crate::types::id::AgentKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a candidate's name stood in the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    /// Given as the capability name, or the whole text is its name.
    Exact,
    /// A distinctive exact name inside the text.
    InText,
}

/// What is known of an agent's state, each in its own unit; `None` = no data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveTerms {
    /// Queue length / `max_queue_depth`, 0..=1.
    pub queue_share: Option<f32>,
    /// Load the agent reports, 0..=1.
    pub load: Option<f32>,
    /// Success rate of the last minute, 0..=1.
    pub health: Option<f32>,
    /// Median duration of the last minute, ms.
    pub p50_ms: Option<f32>,
    /// 90th percentile of the last minute, ms.
    pub p90_ms: Option<f32>,
    /// In flight / concurrency, 0..=1.
    pub in_flight_share: Option<f32>,
    /// Share of acks among receipts of the last minute.
    pub ack_rate: Option<f32>,
    /// Success rate of the last 24 h.
    pub success_24h: Option<f32>,
    /// Share of its normal traffic it may take now (slow start, demotion), 0..=1.
    pub traffic_share: f32,
}

/// One candidate: agent × capability that survived the filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Agent.
    pub agent: AgentKey,
    /// Version of the agent's manifest.
    pub agent_version: String,
    /// Capability name as written.
    pub capability: Arc<str>,
    /// Folded name: candidates with the same one are the same capability offered by several agents.
    pub folded: Arc<str>,
    /// Feature values in the order of `features::NAMES`.
    pub features: Vec<f32>,
    /// Fused score on the fusion model's own scale; orders candidates, means nothing across queries.
    pub fused: f32,
    /// What outcomes and examples changed of `fused`, logits; it is part of it.
    #[serde(default)]
    pub learned: f32,
    /// What the caller's habits changed of `fused`, logits; it is part of it.
    #[serde(default)]
    pub habit: f32,
    /// Probability that this candidate is a right one, given the query and the others, 0..=1.
    pub similarity: f32,
    /// Whether and how its name stood in the query.
    pub named: Option<Named>,
    /// Best cosine over its vectors, on its own model's scale.
    pub cosine: Option<f32>,
    /// Keyword score, ≥ 0.
    pub bm25: f32,
    /// It was reached only through the model of the other language: worth `suggest` at most.
    pub cross_language: bool,
    /// State of the agent.
    pub live: LiveTerms,
    /// Deadline or ttl the latency is compared with, ms.
    pub ttl_ms: f32,
    /// Price of one call.
    pub cost: f32,
    /// Among the caller's preferred agents.
    pub preferred: bool,
    /// Shared history of the caller with the capability, 0..=1.
    pub cooccurrence: f32,
    /// Same tenant or domain, 0 or 1.
    pub tenant: f32,
    /// Share of adopted results, with its prior, 0..=1.
    pub quality: f32,
    /// An operator rule forces it.
    pub forced: Option<String>,
}

/// Facts about the query that the confidence is computed from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueryFacts {
    /// Values in the order of `confidence::NAMES`.
    pub features: Vec<f32>,
    /// Probability that the best candidate is right (out of scope counts as wrong).
    pub confidence: f32,
    /// Probability that anything in the fleet is right.
    pub in_scope: f32,
    /// Whether the text negates something it names.
    pub negated: bool,
    /// Clauses that ask for different things, when there are several.
    pub clauses: usize,
    /// Whether a capability name or a target was given outright.
    pub exact: bool,
    /// Whether the text says too little to be carried out on its word: one word that is no name and no example.
    #[serde(default)]
    pub thin: bool,
    /// Whether the text speaks of the thing instead of asking for it: reports that it is done, or asks what it means.
    #[serde(default)]
    pub told: bool,
    /// Whether the text asks for the opposite of what the best candidate does.
    #[serde(default)]
    pub opposite: bool,
    /// Whether a name in the text is used rather than talked about.
    #[serde(default)]
    pub used: bool,
    /// How much outcomes say about the best candidate, 0..=1: n / (n + 2) for n of them.
    #[serde(default)]
    pub proven: f32,
    /// Whether the confidence comes from a calibration fitted for the models in use.
    pub calibrated: bool,
}

/// Candidates of one query before policy is applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shortlist {
    /// Best fused score first; names that stand in the query ahead of all.
    pub items: Vec<Item>,
    /// The best that were dropped, best first.
    pub dropped: Vec<Dropped>,
    /// Facts for the confidence.
    pub facts: QueryFacts,
    /// Warnings gathered on the way.
    pub warnings: Vec<Note>,
}

/// Items for tests of the stages that read a shortlist.
#[cfg(test)]
pub mod testing {
    use super::*;
    use crate::types::id::Namespace;

    /// An item of agent `id` with a capability and a similarity, everything else neutral.
    pub fn item(id: &str, capability: &str, similarity: f32) -> Item {
        Item {
            agent: AgentKey::local(Namespace::new("test").unwrap(), id),
            agent_version: String::new(),
            capability: Arc::from(capability),
            folded: Arc::from(capability),
            features: Vec::new(),
            fused: similarity,
            learned: 0.0,
            habit: 0.0,
            similarity,
            named: None,
            cosine: Some(similarity),
            bm25: 0.0,
            cross_language: false,
            live: LiveTerms { traffic_share: 1.0, ..Default::default() },
            ttl_ms: 30_000.0,
            cost: 0.0,
            preferred: false,
            cooccurrence: 0.0,
            tenant: 0.0,
            quality: 0.5,
            forced: None,
        }
    }
}
