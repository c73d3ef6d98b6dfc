//! The two seams of the dispatcher: where messages are kept, and who is asked for a target.
//!
//! [`MessageStore`] = whole operations, each atomic for one message and keyed by its reach id, so that SQLite and Redis Streams both fit and
//! messages can be sharded by that id. Contract: `commit` takes its writes in the order of the calls; it answers when they are durable; a write
//! whose `from_seq` is not the stored one changes nothing; after an I/O error it refuses until it is opened again.
//! [`NextTarget`] = the matcher as the dispatcher sees it. Not here: implementations.

use crate::dispatch::dedup;
use crate::dispatch::engine::Outcome;
use crate::dispatch::limit;
use crate::dispatch::state::{self, Refused};
use crate::error::{Code, Error};
use crate::types::Fault;
use crate::types::envelope::{Envelope, ReachId, Source};
use crate::types::manifest::{Endpoint, RateLimit, Rest, Retry, StateMachine};
use crate::types::message::{Entry, Event, Message, State};
pub use crate::types::stored::{Filter, Page, Retention, Scope, Write, Wrote};
use crate::types::{AgentKey, Decision};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The store can't do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// An I/O error; nothing of this call is acknowledged, and it refuses from now on.
    #[error("the message store failed: {0}")]
    Io(String),
    /// It refuses because of an earlier error or because it is closed.
    #[error("the message store takes no writes: {0}")]
    Refusing(String),
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        Error::overloaded(e.to_string(), Duration::from_secs(1))
    }
}

/// An answer that is awaited; the order of the calls is the order of the work.
pub type Pending<T> = BoxFuture<'static, Result<T, StoreError>>;

/// Where messages are kept. See the module for the contract.
pub trait MessageStore: Send + Sync + 'static {
    /// Writes, in order, each atomic for its message; answers one [`Wrote`] a write when all are durable. The writes are queued when the call
    /// returns, before its answer is awaited.
    fn commit(&self, writes: Vec<Write>) -> Pending<Vec<Wrote>>;
    /// A message.
    fn get(&self, id: ReachId) -> Pending<Option<Message>>;
    /// The newest message that holds a key.
    fn find(&self, scope: Scope) -> Pending<Option<Message>>;
    /// The newest message of an owner under a message id, replays included.
    fn find_id(&self, owner: Arc<str>, message_id: Arc<str>) -> Pending<Option<Message>>;
    /// The whole log of a message, oldest first.
    fn log(&self, id: ReachId) -> Pending<Vec<Entry>>;
    /// Open messages, in the order they came; `after` is the cursor of the batch before.
    fn open(&self, after: Option<i64>, limit: usize) -> Pending<Page>;
    /// Messages by filter, newest first.
    fn list(&self, filter: Filter) -> Pending<Page>;
    /// How many messages are in each state.
    fn counts(&self) -> Pending<BTreeMap<State, u64>>;
    /// Removes what is past its retention; at most `limit` messages a call. Answers how many.
    fn prune(&self, now_ms: i64, keep: Retention, limit: usize) -> Pending<u64>;
}

/// Applies one event to a stored message: reads, decides by `state::on`, writes if nothing came between. For messages nobody holds in memory.
pub async fn record(store: &dyn MessageStore, now_ms: i64, id: ReachId, event: Event) -> Result<Result<Message, Refused>, Error> {
    for _ in 0..16 {
        let Some(message) = store.get(id).await? else { return Err(Error::not_found("message")) };
        let t = match state::on(&message.head, now_ms, event.clone()) {
            Ok(t) => t,
            Err(refused) => return Ok(Err(refused)),
        };
        let write = Write::Record { id, from_seq: message.head.seq, head: t.head.clone(), log: t.log };
        match store.commit(vec![write]).await?.first() {
            Some(Wrote::Stored) => return Ok(Ok(Message { envelope: message.envelope, head: t.head })),
            Some(Wrote::Moved) | None => {}
            Some(Wrote::Existing(_) | Wrote::Conflict(_) | Wrote::Quota) => {
                return Err(Error::internal("a record was answered like a submit"));
            }
        }
    }
    Err(Error::new(Code::Overloaded, "the message changes too fast"))
}

/// A write that takes in `envelope` with further `events` at once.
pub fn submission(now_ms: i64, envelope: Envelope, events: Vec<Event>) -> Result<Write, Refused> {
    let first = state::begin(now_ms, &envelope);
    let rest = state::on_all(&first.head, now_ms, events)?;
    // what went to nobody ran nowhere: its keys stay free for another try
    let keys = [dedup::key_scope(&envelope), dedup::id_scope(&envelope)].into_iter().flatten();
    let scopes: Vec<Scope> = keys.filter(|_| rest.head.state != State::RouteFailed).collect();
    // nothing is compared without a key
    let digest = if scopes.is_empty() { [0; 32] } else { dedup::digest(&envelope) };
    let log = first.log.into_iter().chain(rest.log).collect();
    Ok(Write::Submit { message: Message { envelope: Arc::new(envelope), head: rest.head }, log, scopes, digest })
}

/// The envelope of a replay of a dead letter: the same message once more, as a reach of its own with a life of its own.
pub fn replayed(dead: &Message, now_ms: i64, reach_id: ReachId, ttl: Option<Duration>) -> Envelope {
    let mut e = (*dead.envelope).clone();
    e.replayed_from = Some(e.reach_id);
    e.reach_id = reach_id;
    e.timestamp_ms = now_ms;
    e.source = Source::Replay;
    e.budget = None;
    if let Some(ttl) = ttl {
        e.ttl = ttl;
    }
    e
}

/// How an agent is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// We call it and its answer comes over the same connection.
    Push,
    /// It asks for work.
    Pull,
}

/// What the dispatcher must know about an agent and one of its capabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Agent.
    pub agent: AgentKey,
    /// Capability.
    pub capability: Arc<str>,
    /// Score by the preset.
    pub score: f32,
    /// Calibrated probability.
    pub probability: f32,
    /// The decision behind it.
    pub decision_id: Arc<str>,
    /// How it is reached.
    pub reach: Reach,
    /// Where it is called; empty for one that pulls.
    pub endpoints: Arc<[Endpoint]>,
    /// Places in its queue.
    pub places: u32,
    /// Calls at once.
    pub concurrency: u32,
    /// Its own retry policy.
    pub retry: Option<Retry>,
    /// Its limit to connect.
    pub connect: Option<Duration>,
    /// Its suggested processing time.
    pub processing: Option<Duration>,
    /// Typical duration of the capability.
    pub hint: Option<Duration>,
    /// Rate limit of the capability.
    pub rate_limit: Option<RateLimit>,
    /// Whether doing it twice is the same as once.
    pub idempotent: bool,
    /// How an existing REST service is called for it.
    pub rest: Option<Arc<Rest>>,
    /// What the states of a polled task mean.
    pub states: Option<StateMachine>,
    /// Name of the tool, where the agent is an MCP server; the capability when absent.
    pub tool: Option<Arc<str>>,
}

impl Target {
    /// A target with the defaults of the design; for tests and for agents that are no longer registered.
    pub fn plain(agent: AgentKey, capability: &str) -> Self {
        Self {
            agent,
            capability: Arc::from(capability),
            score: 1.0,
            probability: 1.0,
            decision_id: Arc::from(""),
            reach: Reach::Pull,
            endpoints: Arc::from([]),
            places: 1_000,
            concurrency: 5,
            retry: None,
            connect: None,
            processing: None,
            hint: None,
            rate_limit: None,
            idempotent: false,
            rest: None,
            states: None,
            tool: None,
        }
    }

    /// A bucket of its capability.
    pub fn bucket(&self, now_ms: i64) -> Option<limit::Paced> {
        self.rate_limit.as_ref().map(|r| limit::Paced::new(r, now_ms))
    }
}

/// What the matcher said.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Deliver to the first; the others are next in line (all of them for a broadcast).
    Deliver(Vec<Target>),
    /// Deliver to nobody: back to the caller.
    Nobody {
        /// `no_matched_agent`, or why else.
        code: Code,
        /// In words.
        reason: String,
        /// Places of the payload at fault, when that is why.
        faults: Vec<Fault>,
        /// The decision, to choose from.
        decision: Option<Arc<Decision>>,
    },
}

/// Who is told what becomes of deliveries, in line and in order: must return at once. Those that may lag subscribe to `Dispatcher::outcomes`.
pub trait OutcomeSink: Send + Sync + 'static {
    /// An attempt went on or ended.
    fn outcome(&self, outcome: &Outcome);
    /// How busy an agent is with us now.
    fn load(&self, agent: &AgentKey, in_flight: u32, waiting: u32);
    /// A message is over, and that is durable.
    fn ended(&self, _id: ReachId) {}
}

/// The matcher, as the dispatcher asks it. The decision logic stays on the other side.
pub trait NextTarget: Send + Sync + 'static {
    /// Who should take this message, leaving out `exclude`.
    fn next(&self, envelope: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>>;
    /// What is known about an agent that was chosen before; `None` when it is gone.
    fn describe(&self, agent: &AgentKey, capability: &str) -> Option<Target>;
    /// The same for its first capability: what a session of a pulling agent needs.
    fn agent(&self, agent: &AgentKey) -> Option<Target>;
    /// What is wrong with a result, by the capability's output schema; empty when it fits or when there is no schema.
    fn faults_of_result(&self, _agent: &AgentKey, _capability: &str, _data: &serde_json::Value) -> Vec<Fault> {
        Vec::new()
    }
}
