//! The dispatcher as a service: the engine behind one short lock, a pump that makes its writes durable, tasks that carry messages to agents.
//!
//! In: requests of callers, receipts of agents. Out: messages as they are, once that is durable.
//! The pump takes everything that waits to be written in one commit, then lets the engine act on it: sending, answering and queueing happen only
//! after the commit. A store that fails stops the acting; the engine begins anew from what the store holds as soon as it takes writes again.
//! Invariants: the lock is never held across an await; writes leave in the order in which the engine made them.
//! Cost: one commit for all messages of a few milliseconds. Not here: the rules (`engine`), HTTP itself (`http`), doors (`api`).

mod ask;
mod escalate;
mod mapped;
mod pump;
mod push;
mod session;
mod submit;
mod upkeep;

use crate::clock::Clock;
use crate::dispatch::callback::Secret;
use crate::dispatch::dice::Dice;
use crate::dispatch::engine::{Counters, Delivery, Effect, Engine, EngineConfig, LaneView, Outcome};
use crate::dispatch::grpc::Codec;
use crate::dispatch::guard::Guard;
use crate::dispatch::mcp;
use crate::dispatch::port::{MessageStore, NextTarget, OutcomeSink, Retention, Write, Wrote};
use crate::dispatch::rest::HeaderSecret;
use crate::dispatch::steady::Steady;
use crate::error::Error;
use crate::tasks::{Stage, Tasks};
use crate::types::envelope::ReachId;
use crate::types::id::time_ordered;
use crate::types::message::{Entry, Head, Message, State};
use crate::types::{AgentKey, Decision};
use parking_lot::Mutex;
pub use session::{Asker, Session};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio_util::sync::CancellationToken;

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rules.
    pub engine: EngineConfig,
    /// How long ended messages stay.
    pub retention: Retention,
    /// Secrets that callbacks are signed with; none = callbacks are not sent.
    pub secrets: Vec<Secret>,
    /// Tries of one callback.
    pub callback_tries: u32,
    /// Secrets that mapped calls may carry.
    pub header_secrets: Vec<HeaderSecret>,
    /// No tokens are configured: the caller and tenant that a request names are taken at their word.
    pub local: bool,
}

/// What the service stands on.
pub struct Ports {
    /// Where messages are kept.
    pub store: Arc<dyn MessageStore>,
    /// The matcher.
    pub next: Arc<dyn NextTarget>,
    /// The client of all outbound calls.
    pub guard: Guard,
    /// The messages of a push over gRPC.
    pub grpc: Arc<dyn Codec>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Who is told of outcomes in line.
    pub sinks: Vec<Arc<dyn OutcomeSink>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            retention: Retention::default(),
            secrets: Vec::new(),
            callback_tries: 5,
            header_secrets: Vec::new(),
            local: true,
        }
    }
}

/// What came of a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The message as it is stored.
    pub message: Message,
    /// Whether the same thing had been asked before.
    pub existing: bool,
    /// What to choose from, when it went to nobody.
    pub decision: Option<Arc<Decision>>,
    /// The agent's queue is closing: how long to wait before the next one.
    pub slow_down: Option<Duration>,
}

type Told = Result<Wrote, Error>;
/// A log position, and who is told when it is durable.
type Awaited = (u32, oneshot::Sender<Told>);

/// A write under way: what to tell whom when it is durable.
struct Mark {
    id: ReachId,
    seq: u32,
    end: Option<Head>,
    log: Vec<Entry>,
}

struct Inner {
    engine: Mutex<Engine>,
    outbox: Mutex<Vec<Write>>,
    store: Arc<dyn MessageStore>,
    next: Arc<dyn NextTarget>,
    guard: Guard,
    grpc: Arc<dyn Codec>,
    mcp: mcp::Sessions,
    /// Calls under way: how each is dropped.
    calls: Mutex<HashMap<(ReachId, u32), CancellationToken>>,
    steady: Steady,
    tasks: Tasks,
    settings: Settings,
    dice: Mutex<Dice>,
    /// There is something to write or the next wake came nearer.
    pump: Notify,
    /// Those who wait until a log position of a message is durable.
    durable: Mutex<HashMap<ReachId, Vec<Awaited>>>,
    /// Those who wait for the end of a message.
    finals: Mutex<HashMap<ReachId, Vec<oneshot::Sender<Head>>>>,
    /// Those who follow a message.
    watchers: Mutex<HashMap<ReachId, broadcast::Sender<(Entry, bool)>>>,
    pulls: Mutex<HashMap<AgentKey, Vec<session::Open>>>,
    sessions: Mutex<u64>,
    outcomes: broadcast::Sender<Outcome>,
    sinks: Vec<Arc<dyn OutcomeSink>>,
    failing: AtomicBool,
}

/// What a pulling agent is told.
#[derive(Clone, Debug)]
pub enum Pulled {
    /// Do this.
    Work(Box<Delivery>),
    /// Stop doing this.
    Cancel {
        /// Which message.
        id: ReachId,
        /// Which delivery.
        delivery: u32,
    },
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
}

/// A fresh id: the time, then the operating system's randomness.
pub fn fresh_id(now_ms: i64) -> Result<ReachId, Error> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|e| Error::internal(format!("no randomness: {e}")))?;
    Ok(ReachId::from_bytes(time_ordered(now_ms, random)))
}

impl Dispatcher {
    /// Starts the service: takes up what the store holds, then pumps until the tasks are stopped.
    pub async fn start(ports: Ports, tasks: Tasks, settings: Settings) -> Result<Self, Error> {
        let Ports { store, next, guard, grpc, clock, sinks } = ports;
        let seed = fresh_id(clock.now_ms())?.0 as u64;
        let inner = Arc::new(Inner {
            engine: Mutex::new(Engine::new(settings.engine.clone(), seed)),
            outbox: Mutex::default(),
            store,
            next,
            guard,
            grpc,
            mcp: mcp::Sessions::default(),
            calls: Mutex::default(),
            steady: Steady::new(clock),
            tasks,
            settings,
            dice: Mutex::new(Dice::new(seed)),
            pump: Notify::new(),
            durable: Mutex::default(),
            finals: Mutex::default(),
            watchers: Mutex::default(),
            pulls: Mutex::default(),
            sessions: Mutex::default(),
            outcomes: broadcast::channel(4_096).0,
            sinks,
            failing: AtomicBool::new(false),
        });
        let this = Self { inner };
        this.take_up().await?;
        let pump = this.clone();
        this.inner.tasks.spawn(Stage::Store, "dispatch-pump", async move { pump.pump().await });
        let (hold, stop) = (this.clone(), this.inner.tasks.stop(Stage::Accept));
        this.inner.tasks.spawn(Stage::Accept, "dispatch-hold", async move {
            stop.cancelled().await;
            // what is out may be answered; nothing new goes out any more
            hold.with(|engine, _| engine.hold());
        });
        let remaining = this.clone();
        this.inner.tasks.spawn(Stage::Work, "dispatch-escalate", async move { remaining.escalate_again().await });
        let sweep = this.clone();
        this.inner.tasks.spawn(Stage::Work, "dispatch-sweep", async move { sweep.sweep().await });
        Ok(this)
    }

    /// Milliseconds since the epoch, as the dispatcher counts them.
    pub fn now_ms(&self) -> i64 {
        self.inner.steady.now_ms()
    }

    /// How many messages are in each state.
    pub async fn counts(&self) -> Result<BTreeMap<State, u64>, Error> {
        Ok(self.inner.store.counts().await?)
    }

    /// The client of all outbound calls.
    pub fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    /// Outcomes as they come, for what learns from them. Who lags loses the oldest.
    pub fn outcomes(&self) -> broadcast::Receiver<Outcome> {
        self.inner.outcomes.subscribe()
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.inner.engine.lock().counters()
    }

    /// Messages that are not over.
    pub fn open_len(&self) -> usize {
        self.inner.engine.lock().open_len()
    }

    /// How long ended messages stay.
    pub fn retention(&self) -> Retention {
        self.inner.settings.retention
    }

    /// The secrets that what goes out is signed with.
    pub fn secrets(&self) -> &[Secret] {
        &self.inner.settings.secrets
    }

    /// Every agent's lane.
    pub fn lanes(&self) -> Vec<LaneView> {
        let now = self.now_ms();
        self.inner.engine.lock().lanes(now)
    }

    /// Runs `f` on the engine and sees to its effects.
    fn with<T>(&self, f: impl FnOnce(&mut Engine, i64) -> T) -> T {
        let mut rest = Vec::new();
        let value = {
            let mut engine = self.inner.engine.lock();
            let now = self.now_ms();
            let value = f(&mut engine, now);
            let mut outbox = self.inner.outbox.lock();
            for effect in engine.take() {
                match effect {
                    Effect::Write(write) => outbox.push(*write),
                    other @ (Effect::Send(_) | Effect::Cancel { .. } | Effect::Route { .. }) => rest.push(other),
                    other @ (Effect::CallBack(_)
                    | Effect::Escalate(_)
                    | Effect::Outcome(_)
                    | Effect::Load { .. }
                    | Effect::Breaker { .. }) => rest.push(other),
                }
            }
            value
        };
        for effect in rest {
            self.carry_out(effect);
        }
        self.inner.pump.notify_one();
        value
    }

    fn carry_out(&self, effect: Effect) {
        let this = self.clone();
        match effect {
            Effect::Write(_) => {}
            Effect::Send(delivery) => self.send(delivery),
            Effect::Cancel { agent, id, delivery } => {
                self.hang_up(id, delivery);
                self.tell_cancel(&agent, &Pulled::Cancel { id, delivery });
            }
            Effect::Route { id, envelope, exclude } => {
                self.inner.tasks.spawn(Stage::Work, "dispatch-route", async move {
                    let answer = this.inner.next.next(envelope, exclude).await;
                    this.with(|engine, now| engine.rerouted(now, id, answer));
                });
            }
            Effect::CallBack(message) => {
                self.inner.tasks.spawn(Stage::Work, "dispatch-callback", async move { this.call_back(*message).await });
            }
            Effect::Escalate(message) => {
                self.inner.tasks.spawn(Stage::Work, "dispatch-escalate", async move { this.escalate(&message).await });
            }
            Effect::Load { agent, in_flight, waiting } => self.inner.sinks.iter().for_each(|s| s.load(&agent, in_flight, waiting)),
            Effect::Outcome(outcome) => {
                self.inner.sinks.iter().for_each(|s| s.outcome(&outcome));
                // nobody may be listening
                self.inner.outcomes.send(outcome).ok();
            }
            Effect::Breaker { agent, state } => tracing::warn!(%agent, state = state.as_str(), "breaker"),
        }
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
