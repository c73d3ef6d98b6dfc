//! The simulated world: time, network, agents, callers' bookkeeping.

use crate::dispatch::backpressure::{Admission, Newcomer};
use crate::dispatch::dice::Dice;
use crate::dispatch::engine::{Delivery, Effect, Engine, EngineConfig, Receipt};
use crate::dispatch::memory::MemoryStore;
use crate::dispatch::port::{Choice, Reach, Target, Write, Wrote};
use crate::error::Code;
use crate::types::envelope::{Envelope, ReachId};
use crate::types::message::{Cause, Message, Reply};
use crate::types::{AgentKey, Namespace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How an agent treats a message.
#[derive(Clone, Debug)]
pub struct Manners {
    pub workers: usize,
    /// Median of the service time, milliseconds, and the spread of its logarithm.
    pub median_ms: f64,
    pub sigma: f64,
    /// Shares: "not mine", nack, refused, never answers.
    pub reject: f64,
    pub nack: f64,
    pub refuse: f64,
    pub hang: f64,
    /// Whether it sends `accepted` and signs of life.
    pub receipts: bool,
    /// Works at most this many without saying busy.
    pub busy_above: usize,
    pub down: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            workers: 5,
            median_ms: 20.0,
            sigma: 0.5,
            reject: 0.0,
            nack: 0.0,
            refuse: 0.0,
            hang: 0.0,
            receipts: true,
            busy_above: usize::MAX,
            down: false,
        }
    }
}

pub struct Agent {
    pub target: Target,
    pub manners: Manners,
    inbox: VecDeque<(ReachId, u32)>,
    working: BTreeSet<(ReachId, u32)>,
    cancelled: BTreeSet<(ReachId, u32)>,
    seen: BTreeSet<(ReachId, u32)>,
    /// Runs begun, by message.
    pub runs: BTreeMap<ReachId, u32>,
    pub busy_answers: u64,
    pub most_working: usize,
}

/// Faults of network and disk, as shares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lose: f64,
    pub double: f64,
    pub delay_ms: u64,
}

pub enum Ev {
    CommitDone(Vec<Write>),
    Arrive(Box<Delivery>),
    Work(AgentKey, ReachId, u32),
    Beat(AgentKey, ReachId, u32),
    Finish(AgentKey, ReachId, u32),
    Told(AgentKey, ReachId, u32, Receipt),
    Stop(AgentKey, ReachId, u32),
    Routed(ReachId, Vec<AgentKey>, Arc<Envelope>),
    CalledBack(ReachId),
    Custom(u64),
}

pub struct World {
    pub now: i64,
    pub engine: Engine,
    pub config: EngineConfig,
    pub store: MemoryStore,
    pub agents: BTreeMap<AgentKey, Agent>,
    pub dice: Dice,
    pub faults: Faults,
    heap: BinaryHeap<Reverse<(i64, u64)>>,
    events: BTreeMap<u64, Ev>,
    n: u64,
    outbox: Vec<Write>,
    committing: bool,
    pub sync_ms: i64,
    pub acknowledged: BTreeMap<ReachId, i64>,
    pub ended: BTreeMap<ReachId, (i64, Message)>,
    pub commit_errors: u64,
}

pub fn key(name: &str) -> AgentKey {
    AgentKey::local(Namespace::new("sim").unwrap(), name)
}

impl World {
    pub fn new(config: EngineConfig, seed: u64) -> Self {
        Self {
            now: 1_000_000,
            engine: Engine::new(config.clone(), seed),
            config,
            store: MemoryStore::default(),
            agents: BTreeMap::new(),
            dice: Dice::new(seed ^ 0xABCD),
            faults: Faults::default(),
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            n: 0,
            outbox: Vec::new(),
            committing: false,
            sync_ms: 2,
            acknowledged: BTreeMap::new(),
            ended: BTreeMap::new(),
            commit_errors: 0,
        }
    }

    pub fn agent(&mut self, name: &str, capability: &str, reach: Reach, concurrency: u32, manners: Manners) -> AgentKey {
        let key = key(name);
        let mut target = Target::plain(key.clone(), capability);
        target.reach = reach;
        target.concurrency = concurrency;
        target.idempotent = true;
        let a = Agent {
            target: target.clone(),
            manners,
            inbox: VecDeque::new(),
            working: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            seen: BTreeSet::new(),
            runs: BTreeMap::new(),
            busy_answers: 0,
            most_working: 0,
        };
        self.agents.insert(key.clone(), a);
        if reach == Reach::Pull {
            self.engine.demand(self.now, &target, u32::MAX / 2);
        }
        key
    }

    pub fn at(&mut self, when: i64, ev: Ev) {
        self.n += 1;
        self.heap.push(Reverse((when.max(self.now), self.n)));
        self.events.insert(self.n, ev);
    }

    pub fn after(&mut self, ms: i64, ev: Ev) {
        self.at(self.now + ms, ev);
    }

    pub fn lognormal(&mut self, median: f64, sigma: f64) -> i64 {
        // sum of twelve dice: close enough to a normal for service times
        let z: f64 = (0..12).map(|_| self.dice.share()).sum::<f64>() - 6.0;
        (median * (sigma * z).exp()).round().max(1.0) as i64
    }

    /// Network: lost, doubled, late.
    fn net(&mut self, make: impl Fn() -> Ev) {
        let copies = 1 + usize::from(self.dice.share() < self.faults.double);
        for _ in 0..copies {
            if self.dice.share() < self.faults.lose {
                continue;
            }
            let late = 1 + self.dice.below(self.faults.delay_ms + 1) as i64;
            self.after(late, make());
        }
    }

    fn choices(&self, envelope: &Envelope, exclude: &[AgentKey]) -> Vec<Target> {
        let wanted = |t: &Target| envelope.intent.as_deref() == Some(&*t.capability) && !exclude.contains(&t.agent);
        self.agents.values().filter(|a| !a.manners.down || a.target.reach == Reach::Push).map(|a| a.target.clone()).filter(wanted).collect()
    }

    /// Submits as the shell does: admission, alternates, then the engine.
    pub fn submit(&mut self, envelope: Envelope) -> Result<ReachId, Code> {
        let who = Newcomer {
            priority: envelope.priority,
            retry: false,
            left: Duration::from_millis((envelope.expires_ms() - self.now).max(0) as u64),
        };
        let mut refused = Code::NoMatchedAgent;
        let mut targets = self.choices(&envelope, &envelope.options.exclude);
        if !targets.is_empty() {
            let shift = self.dice.below(targets.len() as u64) as usize;
            targets.rotate_left(shift);
        }
        for target in targets {
            match self.engine.admit(self.now, &target, &who) {
                Admission::Take { .. } => {
                    let id = self.engine.submit(self.now, envelope, target).expect("a fresh message");
                    self.effects();
                    return Ok(id);
                }
                Admission::Refuse { code, .. } => refused = code,
            }
        }
        Err(refused)
    }

    pub fn effects(&mut self) {
        loop {
            let effects = self.engine.take();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Write(w) => self.outbox.push(*w),
                    Effect::Send(d) => {
                        let push_down = self.agents.get(&d.target.agent).is_some_and(|a| a.manners.down && d.target.reach == Reach::Push);
                        if push_down {
                            let reason = Arc::from("no connection");
                            let nack = Receipt::Nacked { cause: Cause::Connect, reason, retry_after: None };
                            self.after(1, Ev::Told(d.target.agent.clone(), d.id, d.delivery, nack));
                        } else {
                            self.net(|| Ev::Arrive(d.clone()));
                        }
                    }
                    Effect::Cancel { agent, id, delivery } => self.net(|| Ev::Stop(agent.clone(), id, delivery)),
                    Effect::Route { id, envelope, exclude } => self.after(1, Ev::Routed(id, exclude, envelope)),
                    Effect::CallBack(m) => self.after(3, Ev::CalledBack(m.id())),
                    Effect::Escalate(_) | Effect::Outcome(_) | Effect::Load { .. } | Effect::Breaker { .. } => {}
                }
            }
        }
        if !self.committing && !self.outbox.is_empty() {
            self.committing = true;
            let batch = std::mem::take(&mut self.outbox);
            self.after(self.sync_ms, Ev::CommitDone(batch));
        }
    }

    /// The process dies and starts again from the store. A commit under way may or may not have reached the disk.
    pub fn crash(&mut self) {
        let under_way: Vec<u64> = self.events.iter().filter(|(_, e)| matches!(e, Ev::CommitDone(_))).map(|(n, _)| *n).collect();
        for n in under_way {
            if let Some(Ev::CommitDone(batch)) = self.events.remove(&n) {
                let keep = self.dice.below(batch.len() as u64 + 1) as usize;
                self.store.commit_now(batch.into_iter().take(keep).collect()).ok();
            }
        }
        self.store.reopen();
        self.outbox.clear();
        self.committing = false;
        let lost = |e: &Ev| matches!(e, Ev::Routed(..) | Ev::CalledBack(_));
        self.events.retain(|_, e| !lost(e));
        self.engine = Engine::new(self.config.clone(), self.dice.bits());
        self.reload();
    }

    pub fn reload(&mut self) {
        for a in self.agents.values() {
            if a.target.reach == Reach::Pull {
                self.engine.demand(self.now, &a.target.clone(), u32::MAX / 2);
            }
        }
        for (message, _) in self.store.all() {
            let target = message.head.agent.as_ref().and_then(|a| self.agents.get(a)).map(|a| a.target.clone());
            self.engine.resume(self.now, message, target);
        }
        self.effects();
    }

    /// Runs until `end`, or until nothing is left to happen. `custom` handles the caller's own events.
    pub fn run(&mut self, end: i64, custom: &mut dyn FnMut(&mut World, u64)) {
        loop {
            let next = self.heap.peek().map(|Reverse((t, _))| *t);
            let wake = self.engine.next_wake_ms(self.now);
            let Some(when) = [next, wake].into_iter().flatten().min() else { break };
            if when > end {
                self.now = end;
                break;
            }
            self.now = self.now.max(when);
            if next.is_none_or(|t| t > self.now) {
                self.engine.tick(self.now);
                self.effects();
                continue;
            }
            let Some(Reverse((_, n))) = self.heap.pop() else { break };
            let Some(ev) = self.events.remove(&n) else { continue };
            if let Ev::Custom(what) = ev {
                custom(self, what);
            } else {
                self.handle(ev);
            }
            self.engine.tick(self.now);
            self.effects();
        }
    }

    fn handle(&mut self, ev: Ev) {
        match ev {
            Ev::CommitDone(batch) => {
                self.committing = false;
                let seen: Vec<(ReachId, u32, bool, bool)> =
                    batch.iter().map(|w| (w.id(), w.head().seq, matches!(w, Write::Submit { .. }), w.head().state.is_terminal())).collect();
                match self.store.commit_now(batch) {
                    Ok(wrote) => {
                        for ((id, seq, submit, over), how) in seen.into_iter().zip(wrote) {
                            if submit && how == Wrote::Stored {
                                self.acknowledged.insert(id, self.now);
                            }
                            if let Some(m) = self.engine.message(id).filter(|_| over && how == Wrote::Stored) {
                                self.ended.insert(id, (self.now, m));
                            }
                            self.engine.wrote(self.now, id, seq, &how);
                        }
                    }
                    Err(_) => {
                        // nothing was acknowledged: begin again from what the store holds, as the shell does
                        self.commit_errors += 1;
                        self.store.reopen();
                        self.outbox.clear();
                        self.engine.forget_messages();
                        self.reload();
                    }
                }
            }
            Ev::Arrive(d) => self.arrive(*d),
            Ev::Work(agent, id, delivery) => self.work(agent, id, delivery),
            Ev::Beat(agent, id, delivery) => {
                let at_it = self.agents.get(&agent).is_some_and(|a| a.working.contains(&(id, delivery)));
                if at_it {
                    self.net(|| Ev::Told(agent.clone(), id, delivery, Receipt::Progress(None)));
                    self.after(5_000, Ev::Beat(agent, id, delivery));
                }
            }
            Ev::Finish(agent, id, delivery) => self.done(agent, id, delivery),
            Ev::Told(agent, id, delivery, receipt) => {
                self.engine.receipt(self.now, id, Some(&agent), delivery, receipt).ok();
            }
            Ev::Stop(agent, id, delivery) => {
                if let Some(a) = self.agents.get_mut(&agent) {
                    a.cancelled.insert((id, delivery));
                    a.inbox.retain(|m| *m != (id, delivery));
                    if a.working.remove(&(id, delivery)) {
                        self.next_work(&agent);
                    }
                }
            }
            Ev::Routed(id, exclude, envelope) => {
                let targets = self.choices(&envelope, &exclude);
                let choice = if targets.is_empty() {
                    Choice::Nobody { code: Code::NoMatchedAgent, reason: "nobody".into(), faults: Vec::new(), decision: None }
                } else {
                    Choice::Deliver(targets)
                };
                self.engine.rerouted(self.now, id, Ok(choice));
            }
            Ev::CalledBack(id) => self.engine.called_back(self.now, id),
            Ev::Custom(_) => {}
        }
    }

    fn arrive(&mut self, d: Delivery) {
        let agent = d.target.agent.clone();
        let Some(a) = self.agents.get_mut(&agent).filter(|a| !a.manners.down) else { return };
        if a.cancelled.contains(&(d.id, d.delivery)) || !a.seen.insert((d.id, d.delivery)) {
            return;
        }
        if a.working.len() + a.inbox.len() >= a.manners.busy_above {
            a.busy_answers += 1;
            let nack = Receipt::Nacked { cause: Cause::Busy, reason: Arc::from("busy"), retry_after: Some(Duration::from_secs(1)) };
            return self.net(|| Ev::Told(agent.clone(), d.id, d.delivery, nack.clone()));
        }
        a.inbox.push_back((d.id, d.delivery));
        if a.manners.receipts {
            self.net(|| Ev::Told(agent.clone(), d.id, d.delivery, Receipt::Delivered));
        }
        self.next_work(&agent);
    }

    fn next_work(&mut self, agent: &AgentKey) {
        while let Some(a) = self.agents.get_mut(agent).filter(|a| a.working.len() < a.manners.workers) {
            let Some((id, delivery)) = a.inbox.pop_front() else { return };
            a.working.insert((id, delivery));
            a.most_working = a.most_working.max(a.working.len());
            self.after(0, Ev::Work(agent.clone(), id, delivery));
        }
    }

    fn work(&mut self, agent: AgentKey, id: ReachId, delivery: u32) {
        let Some(a) = self.agents.get_mut(&agent) else { return };
        if !a.working.contains(&(id, delivery)) {
            return;
        }
        let m = a.manners.clone();
        let roll = self.dice.share();
        if roll < m.reject {
            a.working.remove(&(id, delivery));
            self.net(|| Ev::Told(agent.clone(), id, delivery, Receipt::Rejected(Arc::from("not mine"))));
            return self.next_work(&agent);
        }
        *a.runs.entry(id).or_default() += 1;
        if m.receipts {
            self.net(|| Ev::Told(agent.clone(), id, delivery, Receipt::Accepted));
            self.after(5_000, Ev::Beat(agent.clone(), id, delivery));
        }
        if roll < m.reject + m.hang {
            // holds its place and says nothing more: no signs of life either
            if let Some(a) = self.agents.get_mut(&agent) {
                a.working.remove(&(id, delivery));
            }
            return;
        }
        let took = self.lognormal(m.median_ms, m.sigma);
        self.after(took, Ev::Finish(agent, id, delivery));
    }

    fn done(&mut self, agent: AgentKey, id: ReachId, delivery: u32) {
        let Some(a) = self.agents.get_mut(&agent) else { return };
        if !a.working.remove(&(id, delivery)) {
            return;
        }
        let m = a.manners.clone();
        let roll = self.dice.share();
        let receipt = if roll < m.nack {
            Receipt::Nacked { cause: Cause::Nack, reason: Arc::from("try again"), retry_after: None }
        } else if roll < m.nack + m.refuse {
            Receipt::Refused { code: Code::PayloadInvalid, reason: Arc::from("never") }
        } else {
            Receipt::Acked(Reply::default())
        };
        self.net(|| Ev::Told(agent.clone(), id, delivery, receipt.clone()));
        self.next_work(&agent);
    }
}
