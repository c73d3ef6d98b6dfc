//! The dispatcher as a service: the engine behind one short lock, a pump that makes its writes durable, tasks that carry messages to agents.
//!
//! In: requests of callers, receipts of agents. Out: messages as they are, once that is durable.
//! The pump takes everything that waits to be written in one commit, then lets the engine act on it: sending, answering and queueing happen only
//! after the commit. A store that fails stops the acting; the engine begins anew from what the store holds as soon as it takes writes again.
//! Invariants: the lock is never held across an await; writes leave in the order in which the engine made them.
//! Cost: one commit for all messages of a few milliseconds. Not here: the rules (`engine`), HTTP itself (`http`), doors (`api`).

use crate::clock::Clock;
use crate::dispatch::backpressure::{Admission, Newcomer};
use crate::dispatch::callback::{self, Secret};
use crate::dispatch::dedup;
use crate::dispatch::dice::Dice;
use crate::dispatch::engine::{Counters, Delivery, Effect, Engine, EngineConfig, LaneView, NoReceipt, Outcome, Receipt};
use crate::dispatch::guard::{Call, Guard};
use crate::dispatch::http;
use crate::dispatch::port::{Choice, Filter, MessageStore, NextTarget, Page, Reach, Retention, Target, Write, Wrote, replayed};
use crate::dispatch::state::Refused;
use crate::dispatch::steady::Steady;
use crate::error::{Code, Error};
use crate::tasks::{Stage, Tasks};
use crate::types::envelope::{Envelope, ReachId, SubmitRequest};
use crate::types::message::{Cause, Entry, Head, Message, State};
use crate::types::principal::{Grant, Principal};
use crate::types::{AgentKey, Decision};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};

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
}

impl Default for Settings {
    fn default() -> Self {
        Self { engine: EngineConfig::default(), retention: Retention::default(), secrets: Vec::new(), callback_tries: 5 }
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
    pulls: Mutex<HashMap<AgentKey, mpsc::UnboundedSender<Pulled>>>,
    outcomes: broadcast::Sender<Outcome>,
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

/// Draws a fresh id from the operating system's randomness.
pub fn fresh_id() -> Result<ReachId, Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::internal(format!("no randomness: {e}")))?;
    Ok(ReachId::from_bytes(bytes))
}

impl Dispatcher {
    /// Starts the service: takes up what the store holds, then pumps until the tasks are stopped.
    pub async fn start(
        store: Arc<dyn MessageStore>,
        next: Arc<dyn NextTarget>,
        guard: Guard,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        settings: Settings,
    ) -> Result<Self, Error> {
        let seed = fresh_id()?.0 as u64;
        let inner = Arc::new(Inner {
            engine: Mutex::new(Engine::new(settings.engine.clone(), seed)),
            outbox: Mutex::default(),
            store,
            next,
            guard,
            steady: Steady::new(clock),
            tasks,
            settings,
            dice: Mutex::new(Dice::new(seed)),
            pump: Notify::new(),
            durable: Mutex::default(),
            finals: Mutex::default(),
            watchers: Mutex::default(),
            pulls: Mutex::default(),
            outcomes: broadcast::channel(4_096).0,
            failing: AtomicBool::new(false),
        });
        let this = Self { inner };
        this.take_up().await?;
        let pump = this.clone();
        this.inner.tasks.spawn(Stage::Store, "dispatch-pump", async move { pump.pump().await });
        let sweep = this.clone();
        this.inner.tasks.spawn(Stage::Work, "dispatch-sweep", async move { sweep.sweep().await });
        Ok(this)
    }

    /// Milliseconds since the epoch, as the dispatcher counts them.
    pub fn now_ms(&self) -> i64 {
        self.inner.steady.now_ms()
    }

    /// Outcomes as they come, for what learns from them.
    pub fn outcomes(&self) -> broadcast::Receiver<Outcome> {
        self.inner.outcomes.subscribe()
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.inner.engine.lock().counters()
    }

    /// Every agent's lane.
    pub fn lanes(&self) -> Vec<LaneView> {
        let now = self.now_ms();
        self.inner.engine.lock().lanes(now)
    }

    /// Reads every open message from the store into the engine.
    async fn take_up(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = self.inner.store.open(after, 1_000).await?;
            after = page.next;
            self.with(|engine, now| {
                for message in page.messages {
                    let (agent, capability) = (message.head.agent.clone(), message.head.capability.clone());
                    let target = agent.zip(capability).and_then(|(a, c)| self.inner.next.describe(&a, &c));
                    engine.resume(now, message, target);
                }
            });
            if after.is_none() {
                return Ok(());
            }
        }
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
                    other @ (Effect::CallBack(_) | Effect::Outcome(_) | Effect::Breaker { .. }) => rest.push(other),
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
                if let Some(pull) = self.inner.pulls.lock().get(&agent) {
                    // a session that has just ended needs no telling
                    pull.send(Pulled::Cancel { id, delivery }).ok();
                }
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
            Effect::Outcome(outcome) => {
                // nobody may be listening
                self.inner.outcomes.send(outcome).ok();
            }
            Effect::Breaker { agent, state } => tracing::warn!(%agent, state = state.as_str(), "breaker"),
        }
    }

    fn send(&self, delivery: Box<Delivery>) {
        let this = self.clone();
        let (id, number, agent) = (delivery.id, delivery.delivery, delivery.target.agent.clone());
        if delivery.target.reach == Reach::Pull {
            let session = self.inner.pulls.lock().get(&agent).cloned();
            let sent = session.is_some_and(|s| s.send(Pulled::Work(delivery)).is_ok());
            if !sent {
                self.inner.tasks.spawn(Stage::Work, "dispatch-unsent", async move {
                    let gone = Receipt::Nacked { cause: Cause::Connect, reason: Arc::from("the agent went away"), retry_after: None };
                    this.with(|engine, now| {
                        engine.undemand(&agent);
                        engine.receipt(now, id, Some(&agent), number, gone).ok();
                    });
                });
            }
            return;
        }
        self.inner.tasks.spawn(Stage::Work, "dispatch-push", async move {
            let address = http::choose(&delivery.target.endpoints, &mut this.inner.dice.lock()).map(|e| e.address.clone());
            let receipt = match address {
                Some(address) => http::deliver(&this.inner.guard, &delivery, &address).await,
                None => Receipt::Nacked { cause: Cause::Connect, reason: Arc::from("no address to call"), retry_after: None },
            };
            let receipt = this.checked(&agent, &delivery.target.capability, receipt);
            this.with(|engine, now| engine.receipt(now, id, Some(&agent), number, receipt).ok());
        });
    }

    /// Holds a result against the output schema: what does not fit becomes a failed attempt with the reasons.
    fn checked(&self, agent: &AgentKey, capability: &str, receipt: Receipt) -> Receipt {
        let Receipt::Acked(reply) = &receipt else { return receipt };
        let data = reply.data.as_ref().map(|d| d.value()).unwrap_or(serde_json::Value::Null);
        let faults = self.inner.next.faults_of_result(agent, capability, &data);
        let Some(first) = faults.first() else { return receipt };
        let more = if faults.len() > 1 { format!(" (and {} more)", faults.len() - 1) } else { String::new() };
        Receipt::Nacked { cause: Cause::Schema, reason: Arc::from(format!("the result does not fit: {first}{more}")), retry_after: None }
    }

    /// Writes what waits and lets the engine act on it, for ever.
    async fn pump(&self) {
        let stop = self.inner.tasks.stop(Stage::Store);
        loop {
            let writes = std::mem::take(&mut *self.inner.outbox.lock());
            if !writes.is_empty() {
                self.commit(writes).await;
                continue;
            }
            if stop.is_cancelled() {
                return;
            }
            let now = self.now_ms();
            let wake = self.inner.engine.lock().next_wake_ms(now);
            let pause = wake.map_or(Duration::from_secs(60), |at| Duration::from_millis(u64::try_from(at - now).unwrap_or(0)));
            tokio::select! {
                () = self.inner.pump.notified() => {}
                () = tokio::time::sleep(pause) => self.with(|engine, now| engine.tick(now)),
                () = stop.cancelled() => {}
            }
        }
    }

    async fn commit(&self, writes: Vec<Write>) {
        let marks: Vec<Mark> = {
            let watched = self.inner.watchers.lock();
            let log = |w: &Write| if watched.contains_key(&w.id()) { w.log().to_vec() } else { Vec::new() };
            let end = |w: &Write| w.head().state.is_terminal().then(|| w.head().clone());
            writes.iter().map(|w| Mark { id: w.id(), seq: w.head().seq, end: end(w), log: log(w) }).collect()
        };
        match self.inner.store.commit(writes).await {
            Ok(wrote) => {
                self.inner.failing.store(false, Ordering::Relaxed);
                self.with(|engine, now| {
                    for (mark, how) in marks.iter().zip(&wrote) {
                        engine.wrote(now, mark.id, mark.seq, how);
                    }
                });
                for (mark, how) in marks.into_iter().zip(wrote) {
                    self.tell(mark, how);
                }
            }
            Err(e) => self.begin_anew(e.into()).await,
        }
    }

    fn tell(&self, mark: Mark, how: Wrote) {
        let Mark { id, seq, end, log } = mark;
        let over = end.is_some();
        {
            let mut waiting = self.inner.durable.lock();
            if let Some(list) = waiting.get_mut(&id) {
                let all = std::mem::take(list);
                let (ready, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at <= seq || how != Wrote::Stored);
                *list = later;
                if list.is_empty() {
                    waiting.remove(&id);
                }
                for (_, tell) in ready {
                    // who asked may have left
                    tell.send(Ok(how.clone())).ok();
                }
            }
        }
        if let (Some(head), Wrote::Stored) = (end, &how) {
            for tell in self.inner.finals.lock().remove(&id).unwrap_or_default() {
                // who waited may have left
                tell.send(head.clone()).ok();
            }
        }
        let mut watchers = self.inner.watchers.lock();
        if let Some(watcher) = watchers.get(&id) {
            let last = log.len().saturating_sub(1);
            for (n, entry) in log.into_iter().enumerate() {
                watcher.send((entry, over && n == last)).ok();
            }
            if over {
                watchers.remove(&id);
            }
        }
    }

    /// The store failed: nothing of what was in memory counts any more. Waits until it works again, then reads it.
    async fn begin_anew(&self, error: Error) {
        tracing::error!(%error, "the message store failed; the dispatcher stops until it works again");
        self.inner.failing.store(true, Ordering::Relaxed);
        {
            let mut engine = self.inner.engine.lock();
            engine.forget_messages();
            self.inner.outbox.lock().clear();
        }
        for (_, list) in self.inner.durable.lock().drain() {
            for (_, tell) in list {
                tell.send(Err(error.clone())).ok();
            }
        }
        self.inner.watchers.lock().clear();
        self.inner.finals.lock().clear();
        let stop = self.inner.tasks.stop(Stage::Store);
        for n in 0u32.. {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(200u64 << n.min(5))) => {}
            }
            // an empty commit asks whether it takes writes
            if self.inner.store.commit(Vec::new()).await.is_ok() && self.take_up().await.is_ok() {
                self.inner.failing.store(false, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Waits until log position `seq` of a message is durable. Registered before the engine is asked, so that no commit is missed.
    fn when_durable(&self, id: ReachId, seq: u32) -> oneshot::Receiver<Told> {
        let (tell, told) = oneshot::channel();
        self.inner.durable.lock().entry(id).or_default().push((seq, tell));
        told
    }

    /// Takes in a message; answers when that is durable.
    pub async fn submit(&self, principal: Principal, request: SubmitRequest) -> Result<Submitted, Error> {
        let envelope = request.check(principal, self.now_ms(), fresh_id()?).map_err(refused_request)?;
        self.submit_envelope(envelope).await
    }

    async fn submit_envelope(&self, envelope: Envelope) -> Result<Submitted, Error> {
        if self.inner.failing.load(Ordering::Relaxed) {
            return Err(Error::overloaded("the message store takes no writes now", Duration::from_secs(1)));
        }
        if let Some(url) = &envelope.callback {
            if self.inner.settings.secrets.is_empty() {
                return Err(Error::new(Code::FailedPrecondition, "callbacks are signed and no secret is configured"));
            }
            crate::types::outbound::canonical(url, self.inner.guard.policy())
                .map_err(|why| Error::invalid_at("/callback", "an address that may be called", format!("{}: {why}", why.as_str())))?;
        }
        let shared = Arc::new(envelope);
        let mut exclude = shared.options.exclude.clone();
        let mut turned_away: Option<(Code, Duration)> = None;
        let (mut target, mut nobody) = (None, None);
        for _ in 0..4 {
            match self.inner.next.next(shared.clone(), exclude.clone()).await? {
                Choice::Deliver(targets) => {
                    let who = Newcomer { priority: shared.priority, retry: false, left: left(&shared, self.now_ms()) };
                    for t in targets {
                        match self.with(|engine, now| engine.admit(now, &t, &who)) {
                            Admission::Take { .. } => {
                                target = Some(t);
                                break;
                            }
                            Admission::Refuse { code, retry_after } => {
                                exclude.push(t.agent);
                                turned_away.get_or_insert((code, retry_after));
                            }
                        }
                    }
                    if target.is_some() || shared.target.is_some() {
                        break;
                    }
                }
                Choice::Nobody { code, reason, decision } => {
                    nobody = Some((code, reason, decision));
                    break;
                }
            }
        }
        if let (None, Some((code, retry_after))) = (&target, turned_away) {
            if let Some(message) = self.known(&shared).await? {
                return Ok(Submitted { message, existing: true, decision: None });
            }
            let e = Error::new(code, "the agent takes no more work now");
            return Err(Error { retry_after: Some(retry_after), ..e });
        }
        let (code, reason, decision) = nobody.unwrap_or((Code::NoMatchedAgent, "nobody fits".into(), None));
        let id = shared.reach_id;
        let told = self.when_durable(id, 1);
        let envelope = Arc::unwrap_or_clone(shared);
        let message = self.with(|engine, now| {
            let taken = match target {
                Some(target) => engine.submit(now, envelope, target),
                None => {
                    let decision_id = decision.as_ref().map(|d| d.decision_id.clone()).unwrap_or_default();
                    engine.submit_unrouted(now, envelope, code, &reason, &decision_id)
                }
            };
            taken.ok().and_then(|id| engine.message(id))
        });
        let message = message.ok_or_else(|| Error::internal("a fresh message was refused"))?;
        match told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped")))? {
            Wrote::Stored => Ok(Submitted { message, existing: false, decision }),
            Wrote::Existing(message) => Ok(Submitted { message: *message, existing: true, decision: None }),
            Wrote::Conflict(_) => {
                Err(Error::new(Code::Conflict, "this key was used for another request; choose another key, or send the same request"))
            }
            Wrote::Quota => Err(Error::overloaded("too many keys of this caller are remembered", Duration::from_secs(60))),
            Wrote::Moved => Err(Error::internal("the id was taken")),
        }
    }

    /// The message that this one repeats, if any: a repetition is answered even when the agent takes no more work.
    async fn known(&self, envelope: &Envelope) -> Result<Option<Message>, Error> {
        for scope in [dedup::key_scope(envelope), dedup::id_scope(envelope)].into_iter().flatten() {
            if let Some(message) = self.inner.store.find(scope).await? {
                let same = dedup::digest(&message.envelope) == dedup::digest(envelope);
                return if same { Ok(Some(message)) } else { Err(Error::new(Code::Conflict, "this key was used for another request")) };
            }
        }
        Ok(None)
    }

    /// Follows a message: entries from now on, with a flag on the last one. Ask for the log after this, so that nothing is missed.
    pub fn watch(&self, id: ReachId) -> broadcast::Receiver<(Entry, bool)> {
        let mut watchers = self.inner.watchers.lock();
        watchers.entry(id).or_insert_with(|| broadcast::channel(256).0).subscribe()
    }

    /// Waits until a message is over, at most `within`; answers it as it is then. Out of time is no fault: the message goes on.
    pub async fn wait(&self, id: ReachId, within: Duration) -> Result<Message, Error> {
        let (tell, told) = oneshot::channel();
        // registered before it is looked for: a message that is open now will tell
        self.inner.finals.lock().entry(id).or_default().push(tell);
        let open = self.inner.engine.lock().message(id);
        let ended = match &open {
            Some(_) => tokio::time::timeout(within, told).await.ok().and_then(Result::ok),
            None => {
                drop(told);
                None
            }
        };
        if let (Some(open), Some(head)) = (open, ended) {
            return Ok(Message { envelope: open.envelope, head });
        }
        {
            let mut finals = self.inner.finals.lock();
            if let Some(list) = finals.get_mut(&id) {
                list.retain(|t| !t.is_closed());
                if list.is_empty() {
                    finals.remove(&id);
                }
            }
        }
        self.stored(id).await
    }

    async fn stored(&self, id: ReachId) -> Result<Message, Error> {
        self.inner.store.get(id).await?.ok_or_else(|| Error::not_found("message"))
    }

    /// A message that `principal` may see, by reach id or by its own message id.
    pub async fn get(&self, principal: &Principal, id: &str) -> Result<Message, Error> {
        let by_reach = match id.parse::<ReachId>() {
            Ok(id) => self.inner.store.get(id).await?,
            Err(_) => None,
        };
        let found = match by_reach {
            Some(message) => Some(message),
            None => self.inner.store.find_id(owner(principal), Arc::from(id)).await?,
        };
        found.filter(|m| may_see(principal, m)).ok_or_else(|| Error::not_found("message"))
    }

    /// The whole log of a message.
    pub async fn log(&self, id: ReachId) -> Result<Vec<Entry>, Error> {
        Ok(self.inner.store.log(id).await?)
    }

    /// Messages that `principal` may see.
    pub async fn list(&self, principal: &Principal, mut filter: Filter) -> Result<Page, Error> {
        if let Grant::Only(spaces) = &principal.namespaces {
            filter.owner = Some(owner(principal));
            filter.namespaces = Some(spaces.iter().filter_map(|s| crate::types::Namespace::new(s).ok()).collect());
        }
        Ok(self.inner.store.list(filter).await?)
    }

    /// Calls a message off; answers it as it is then. A message that is over stays as it is.
    pub async fn cancel(&self, principal: &Principal, id: &str, reason: &str) -> Result<Message, Error> {
        let message = self.get(principal, id).await?;
        if message.envelope.owner() != owner(principal) && principal.namespaces != Grant::All {
            return Err(Error::new(Code::Forbidden, "only its sender may call a message off"));
        }
        let id = message.id();
        match self.with(|engine, now| engine.cancel(now, id, reason).map(|seq| self.when_durable(id, seq))) {
            Ok(told) => {
                told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped")))?;
            }
            Err(NoReceipt::Unknown | NoReceipt::Refused(_) | NoReceipt::NotYours) => {}
        }
        self.stored(id).await
    }

    /// A receipt of an agent; answered when it is durable.
    pub async fn receipt(&self, agent: &AgentKey, id: ReachId, delivery: u32, receipt: Receipt) -> Result<(), Error> {
        let capability = self.inner.engine.lock().message(id).and_then(|m| m.head.capability).unwrap_or_default();
        let receipt = self.checked(agent, &capability, receipt);
        let told = self.with(|engine, now| engine.receipt(now, id, Some(agent), delivery, receipt).map(|seq| self.when_durable(id, seq)));
        match told {
            Ok(told) => told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped"))).map(|_| ()),
            Err(NoReceipt::Refused(Refused::Already)) => Ok(()),
            Err(NoReceipt::Unknown | NoReceipt::NotYours) => Err(Error::not_found("delivery")),
            Err(NoReceipt::Refused(why)) => Err(Error::new(Code::Conflict, refusal_words(why))),
        }
    }

    /// Opens the session of a pulling agent; a session before it gets nothing more.
    pub fn work(&self, target: &Target) -> mpsc::UnboundedReceiver<Pulled> {
        let (give, take) = mpsc::unbounded_channel();
        self.inner.pulls.lock().insert(target.agent.clone(), give);
        self.inner.engine.lock().undemand(&target.agent);
        take
    }

    /// The pulling agent asks for up to `n` messages more.
    pub fn demand(&self, target: &Target, n: u32) {
        self.with(|engine, now| engine.demand(now, target, n));
    }

    /// The session is over.
    pub fn leave(&self, agent: &AgentKey) {
        let mut pulls = self.inner.pulls.lock();
        if pulls.get(agent).is_some_and(mpsc::UnboundedSender::is_closed) {
            pulls.remove(agent);
            drop(pulls);
            self.inner.engine.lock().undemand(agent);
        }
    }

    /// An agent started anew: slow start.
    pub fn agent_started(&self, target: &Target) {
        self.with(|engine, now| engine.agent_started(now, target));
    }

    /// Delivers a dead letter once more, as a reach of its own.
    pub async fn replay(&self, principal: &Principal, id: &str, ttl: Option<Duration>) -> Result<Submitted, Error> {
        let dead = self.get(principal, id).await?;
        if dead.head.state != State::DeadLetter {
            return Err(Error::new(Code::FailedPrecondition, "only a dead letter can be replayed"));
        }
        self.submit_envelope(replayed(&dead, self.now_ms(), fresh_id()?, ttl)).await
    }

    async fn call_back(&self, message: Message) {
        let (id, url) = (message.id(), message.envelope.callback.clone());
        if let (Some(url), false) = (url, self.inner.settings.secrets.is_empty()) {
            let body = serde_json::to_vec(&crate::dispatch::reply::envelope(&message)).unwrap_or_default();
            for n in 0..self.inner.settings.callback_tries {
                let signed = callback::sign(&self.inner.settings.secrets, &format!("msg_{id}"), self.now_ms() / 1_000, &body);
                let mut headers: Vec<(String, String)> = signed.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
                headers.push(("content-type".into(), "application/json".into()));
                let (url, body) = (url.to_string(), body.clone());
                let call = Call { method: reqwest::Method::POST, url, headers, body, within: Duration::from_secs(10), max_body: 4_096 };
                if self.inner.guard.call(call).await.is_ok_and(|a| (200..300).contains(&a.status)) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500u64 << n.min(6))).await;
            }
        }
        self.with(|engine, now| engine.called_back(now, id));
    }

    /// Removes what is past its retention, once a minute.
    async fn sweep(&self) {
        let stop = self.inner.tasks.stop(Stage::Work);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(60)) => {}
            }
            while self.inner.store.prune(self.now_ms(), self.inner.settings.retention, 500).await.is_ok_and(|n| n == 500) {
                tokio::task::yield_now().await;
            }
        }
    }
}

fn refused_request(faults: Vec<crate::types::Fault>) -> Error {
    let large = faults.iter().any(|f| f.pointer == "/payload" && f.hint.contains("data_ref"));
    let e = Error::invalid(faults);
    if large { Error { code: Code::PayloadTooLarge, ..e } } else { e }
}

fn left(envelope: &Envelope, now_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(envelope.expires_ms() - now_ms).unwrap_or(0))
}

fn owner(principal: &Principal) -> Arc<str> {
    crate::types::envelope::owner_of(principal)
}

/// The sender, who owns the agent's namespace, and who sees everything.
fn may_see(principal: &Principal, m: &Message) -> bool {
    principal.namespaces == Grant::All
        || m.envelope.owner() == owner(principal)
        || m.head.agent.as_ref().is_some_and(|a| principal.owns(&a.namespace))
}

fn refusal_words(why: Refused) -> String {
    match why {
        Refused::Terminal(state) => format!("the message is over: {}", state.as_str()),
        Refused::Stale { named, running } => format!("delivery {named} is over; {running} is running"),
        Refused::NotOut(state) => format!("the delivery is over; the message is {}", state.as_str()),
        Refused::Already => "this receipt came before".into(),
        Refused::Order(state) => format!("not in this order; the message is {}", state.as_str()),
    }
}

#[cfg(test)]
mod tests;
