//! What the doors need from the inside, as object-safe traits, so that they can be tested against fakes.
//!
//! Invariant: every call carries the principal, and whoever implements a port enforces it (a door only establishes it).
//! Futures must be safe to drop: a caller that leaves ends the work that was done for it alone.

use crate::error::Error;
use crate::types::decision::{Decision, Note};
use crate::types::outcome::{OutcomeFilter, OutcomePage, Report};
use crate::types::request::{AgentPage, AgentState, Heartbeat, ListRequest, Registered, RegistryEvent, ResolveRequest};
use crate::types::{AgentKey, Lang, Principal};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde_json::Value;

/// The registry.
pub trait RegistryPort: Send + Sync {
    /// Checks, stores and publishes a manifest.
    fn register<'a>(&'a self, who: &'a Principal, manifest: Value) -> BoxFuture<'a, Result<Registered, Error>>;
    /// Renews a lease.
    fn heartbeat<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, beat: Heartbeat) -> BoxFuture<'a, Result<AgentState, Error>>;
    /// Takes an agent out of new work, or back into it.
    fn drain<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, draining: bool) -> BoxFuture<'a, Result<AgentState, Error>>;
    /// Removes an agent.
    fn deregister<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey) -> BoxFuture<'a, Result<(), Error>>;
    /// One agent, at its current version or an older one.
    fn get<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, version: Option<&'a str>) -> BoxFuture<'a, Result<AgentState, Error>>;
    /// A page of agents.
    fn list<'a>(&'a self, who: &'a Principal, which: ListRequest) -> BoxFuture<'a, Result<AgentPage, Error>>;
    /// What is there, then each change. Ends only with the server.
    fn watch(&self, who: &Principal) -> BoxStream<'static, RegistryEvent>;
}

/// The matcher.
pub trait MatcherPort: Send + Sync {
    /// Resolves one request.
    fn resolve<'a>(&'a self, who: &'a Principal, request: ResolveRequest) -> BoxFuture<'a, Result<Resolved, Error>>;
    /// Resolves several; one result each, in their order.
    fn resolve_batch<'a>(&'a self, who: &'a Principal, requests: Vec<ResolveRequest>) -> BoxFuture<'a, Vec<Result<Resolved, Error>>>;
}

/// Outcomes of decisions.
pub trait FeedbackPort: Send + Sync {
    /// Takes reports; one answer each, in their order: the id it is kept under.
    fn report<'a>(&'a self, who: &'a Principal, reports: Vec<Report>) -> BoxFuture<'a, Vec<Result<String, Error>>>;
    /// A page of what is kept, newest first.
    fn list<'a>(
        &'a self,
        who: &'a Principal,
        which: OutcomeFilter,
        limit: Option<u32>,
        after: Option<String>,
    ) -> BoxFuture<'a, Result<OutcomePage, Error>>;
    /// Forgets outcomes; how many.
    fn forget<'a>(&'a self, who: &'a Principal, which: OutcomeFilter) -> BoxFuture<'a, Result<usize, Error>>;
}

/// A decision and how it came about.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The decision.
    pub decision: Decision,
    /// Language of the query by its script.
    pub lang: Lang,
    /// Microseconds from request to decision, embedding included.
    pub took_us: u64,
    /// Warnings of the way there (text cut, language without a model …), beside those of the decision.
    pub notes: Vec<Note>,
}

/// State of the service as a whole.
pub trait StatusPort: Send + Sync {
    /// Whether a query can really be answered now; otherwise why not.
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>>;
    /// What is running.
    fn version(&self) -> Version;
}

/// What is running.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Version {
    /// Version of the program.
    pub version: String,
    /// Generation of the catalog.
    pub catalog: u64,
    /// Fingerprints of the loaded models.
    pub models: Vec<String>,
    /// Durability of the store, as it is in force.
    pub durability: String,
}

/// What an operator does to a running service. JSON in, JSON out: docs/replay.md describes both.
pub trait AdminPort: Send + Sync {
    /// The policy in force and its versions.
    fn policy(&self) -> BoxFuture<'_, Result<Value, Error>>;
    /// Puts a change of the policy in force, or rolls back.
    fn change_policy(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>>;
    /// The models in use, and how far a swap is.
    fn models(&self) -> BoxFuture<'_, Result<Value, Error>>;
    /// Prepares, makes, undoes or drops a swap of models.
    fn swap_models(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>>;
}
