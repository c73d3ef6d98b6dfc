//! What is wanted, as the pure part of the matcher reads it.

use crate::types::id::AgentKey;
use crate::types::lang::Lang;
use crate::types::manifest::Attribute;
use crate::types::principal::Principal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request to find a capability. Everything a decision depends on besides the View: no clock, no dice outside `at` and `seed`.
#[derive(Clone, Debug)]
pub struct Query {
    /// What is wanted, in words; cleaned (no control characters), at most `limits.text_chars` characters. May be empty when `capability` is given.
    pub text: Arc<str>,
    /// Language of `text`.
    pub lang: Lang,
    /// Vectors of `text`, one for each model it was given to.
    pub vectors: Vec<QueryVector>,
    /// Parts of the text that are looked at on their own: what is wanted, what is not, and clauses that may be requests of their own.
    pub parts: Vec<QueryPart>,
    /// Exact capability name or alias; skips semantics.
    pub capability: Option<String>,
    /// Payload the capability must accept.
    pub payload: Option<Arc<serde_json::Value>>,
    /// Who asks; already narrowed by the request.
    pub principal: Principal,
    /// Region of the caller, matched against region globs.
    pub region: Option<String>,
    /// Attributes the agent must have.
    pub selectors: BTreeMap<String, Attribute>,
    /// Agent that must take it: skips semantics between agents, never permission.
    pub target: Option<AgentKey>,
    /// Agents that get a bonus.
    pub preferred: Vec<AgentKey>,
    /// Whether only the preferred may take it.
    pub only_preferred: bool,
    /// Agents that must not take it (they failed already).
    pub exclude: Vec<AgentKey>,
    /// Highest cost, in the manifests' unit.
    pub max_cost: Option<f64>,
    /// Time left, milliseconds.
    pub deadline_ms: Option<u64>,
    /// Ranking preset by name; the policy's default when absent.
    pub preset: Option<String>,
    /// Whether the configured fallback agent may take what nobody fits.
    pub fallback: bool,
    /// Hops so far, 0..=8.
    pub depth: u8,
    /// Capability the caller used before this one (co-occurrence).
    pub previous: Option<String>,
    /// Largest number of candidates in the answer, 1..=50.
    pub k: usize,
    /// Milliseconds since the Unix epoch at which the decision is made.
    pub at_ms: i64,
    /// Seed of the dice that spreads equal scores and explores.
    pub seed: u64,
}

/// One vector of the query text.
#[derive(Clone, Serialize, Deserialize)]
pub struct QueryVector {
    /// Fingerprint of the model that made it.
    pub model: Arc<str>,
    /// L2-normalised, as long as the model's dimension.
    pub vector: Arc<[f32]>,
    /// Tokens read.
    pub tokens: u32,
    /// Whether the text was cut at the model's window.
    pub truncated: bool,
}

/// What a part of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The text without what it negates.
    Wanted,
    /// What it negates.
    Unwanted,
    /// A clause that may be a request of its own.
    Clause,
}

/// A part of the query text with its vectors.
#[derive(Clone, Debug)]
pub struct QueryPart {
    /// What it is.
    pub kind: PartKind,
    /// Its text.
    pub text: Arc<str>,
    /// Its vectors, one for each model it was given to.
    pub vectors: Vec<QueryVector>,
}

impl std::fmt::Debug for QueryVector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueryVector({}, {} dims, {} tokens)", self.model, self.vector.len(), self.tokens)
    }
}

impl Query {
    /// A plain query by `principal` for `text` with every option at its default. `at_ms` and `seed` are the caller's.
    pub fn new(principal: Principal, text: &str, at_ms: i64, seed: u64) -> Self {
        Self {
            text: Arc::from(text),
            lang: Lang::of(text),
            vectors: Vec::new(),
            parts: Vec::new(),
            capability: None,
            payload: None,
            principal,
            region: None,
            selectors: BTreeMap::new(),
            target: None,
            preferred: Vec::new(),
            only_preferred: false,
            exclude: Vec::new(),
            max_cost: None,
            deadline_ms: None,
            preset: None,
            fallback: true,
            depth: 0,
            previous: None,
            k: 5,
            at_ms,
            seed,
        }
    }
}
