//! Requests and replies of the service functions that every front door shares.

use crate::types::fault::Fault;
use crate::types::id::AgentKey;
use crate::types::manifest::{Attribute, Manifest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a caller wants resolved. Unchecked: the resolver checks, cuts and narrows it into a [`crate::types::Query`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolveRequest {
    /// What is wanted, in words.
    pub query: String,
    /// Exact capability name or alias.
    pub capability: Option<String>,
    /// Payload that the capability must accept.
    pub payload: Option<Arc<serde_json::Value>>,
    /// Caller's name; taken at its word only when no tokens are configured.
    pub caller: Option<String>,
    /// Tenant's name; the same rule.
    pub tenant: Option<String>,
    /// Namespaces to narrow the credential to; empty = all of the credential's.
    pub namespaces: Vec<String>,
    /// Scopes to narrow the credential to; `None` = all of the credential's.
    pub scopes: Option<Vec<String>>,
    /// Region of the caller.
    pub region: Option<String>,
    /// Attributes the agent must have.
    pub attributes: BTreeMap<String, Attribute>,
    /// `namespace/agent_id` that must take it.
    pub target: Option<String>,
    /// `namespace/agent_id`s that get a bonus.
    pub preferred: Vec<String>,
    /// Only the preferred may take it.
    pub only: bool,
    /// `namespace/agent_id`s that must not take it.
    pub exclude: Vec<String>,
    /// Highest cost.
    pub max_cost: Option<f64>,
    /// Milliseconds the caller is willing to wait.
    pub deadline_ms: Option<u64>,
    /// Ranking preset.
    pub preset: Option<String>,
    /// Whether a fallback agent may take it; default true.
    pub fallback: Option<bool>,
    /// Hops so far, 0..=8.
    pub depth: u32,
    /// Capability used before this one.
    pub previous: Option<String>,
    /// Candidates wanted, 1..=50, default 5.
    pub k: Option<u32>,
    /// Time to decide at, RFC 3339; now when absent (explains "would it be open on Sunday?").
    pub at: Option<String>,
    /// Seed of the dice; drawn when absent.
    pub seed: Option<u64>,
    /// Whether the answer carries score terms, evidence and dropped candidates.
    pub explain: bool,
}

/// Receipt of a registration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Registered {
    /// Agent.
    pub agent: AgentKey,
    /// Registry generation after the call; for who is no operator the time of the change in milliseconds, which tells nothing of strangers.
    pub generation: u64,
    /// SHA-256 of the canonical manifest, hex.
    pub content_hash: String,
    /// Whether anything changed: false when the same manifest was there already.
    pub changed: bool,
    /// Number of capabilities.
    pub capabilities: usize,
    /// Texts embedded by this call (0 when every vector was known).
    pub embedded: usize,
    /// What the lint advises; never a refusal.
    pub lint: Vec<Fault>,
}

/// A heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heartbeat {
    /// Load 0..=1.
    pub load: Option<f64>,
    /// Messages that wait at the agent.
    pub queue_length: Option<u32>,
    /// Calls under way.
    pub in_flight: Option<u32>,
    /// Takes no new work.
    pub draining: Option<bool>,
}

/// State of an agent as the registry shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentState {
    /// Manifest as stored.
    pub manifest: Arc<Manifest>,
    /// Registry generation at which this version came.
    pub generation: u64,
    /// SHA-256 of the canonical manifest, hex.
    pub content_hash: String,
    /// When this version was registered, milliseconds since the epoch.
    pub registered_at_ms: i64,
    /// `live`, `expired`, `unreachable`, `draining` or `static`.
    pub status: &'static str,
    /// When the lease ends, milliseconds since the epoch.
    pub lease_until_ms: Option<i64>,
    /// Last load, 0..=1.
    pub load: Option<f64>,
    /// Last queue length.
    pub queue_length: Option<u32>,
    /// Calls under way.
    pub in_flight: Option<u32>,
}

/// Which agents to list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListRequest {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only agents that carry this tag.
    pub tag: Option<String>,
    /// Only agents that offer this capability (folded name or alias).
    pub capability: Option<String>,
    /// Page size, 1..=1000, default 100.
    pub limit: Option<u32>,
    /// Cursor of the page before.
    pub after: Option<String>,
}

/// A page of agents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentPage {
    /// Agents, ordered by key.
    pub agents: Vec<AgentState>,
    /// Cursor of the next page, absent at the end.
    pub next: Option<String>,
}

/// A change of the registry, as a watcher sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegistryEvent {
    /// Registry generation after the change, or of the entry that was there when the watch began; see `Registered` for who sees which.
    pub generation: u64,
    /// `present`, `registered`, `deregistered`, `draining`, `resumed`, `expired`, `recovered` or `resync` (events were missed: list again).
    pub kind: &'static str,
    /// Agent; absent for `resync`.
    pub agent: Option<AgentKey>,
}
