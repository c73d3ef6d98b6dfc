//! The dispatcher without its sockets: all open messages, all lanes, one clock value at a time.
//!
//! In: what happened (`submit`, `wrote`, `receipt`, `rerouted`, `cancel`, `demand`, `tick`), each with the time in milliseconds. Out: [`Effect`]s, taken by
//! [`Engine::take`] and carried out by the shell, in order. The real shell and the simulation drive the same engine.
//! Invariants: nothing leaves (`Send`, an answer) before the state that says so is durable; every change of a message is one [`Write`] that names the
//! log position it follows; a message is in exactly one place (queue, out, pause, asking the matcher, over).
//! Cost: O(log n) an event; memory for open messages only. Not here: I/O, tasks, locks (`shell`), what follows a failure (`flow`).

mod flow;
mod lane;
mod words;

pub use lane::LaneView;
pub use words::{Counters, Delivery, Effect, EngineConfig, NoReceipt, Outcome, Protect, Receipt};

use crate::dispatch::backpressure::{Admission, Newcomer};
use crate::dispatch::breaker::{Permit, Verdict};
use crate::dispatch::budget::RetryBudget;
use crate::dispatch::dice::Dice;
use crate::dispatch::poison;
use crate::dispatch::port::{Target, Write, Wrote, submission};
use crate::dispatch::priority::QueueClass;
use crate::dispatch::state::{self, Refused};
use crate::dispatch::timeouts::{self, Known, Limits};
use crate::error::Code;
use crate::types::AgentKey;
use crate::types::envelope::{Envelope, ReachId, Source};
use crate::types::message::{Cause, DeadTag, Event, Head, Message, State};
use lane::Lane;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What the engine remembers of an open message.
struct Open {
    envelope: Arc<Envelope>,
    head: Head,
    target: Option<Target>,
    class: QueueClass,
    /// Waits in its agent's queue.
    queued: bool,
    /// Holds a place among the calls of its agent.
    permit: Option<Permit>,
    in_call: bool,
    /// Counted among the retries of this agent.
    retry_at: Option<AgentKey>,
    /// The matcher is being asked.
    asking: bool,
    /// Pause before the same agent, while the matcher is asked for another.
    same_after: Option<Duration>,
    /// At the end of the pause the matcher is asked again.
    ask_when_due: bool,
    /// Came here by "not mine": costs no retry budget.
    after_reject: bool,
    /// Times it was put off for want of budget or room.
    put_off: u32,
    /// Batch and place of its last write among the effects that were not taken yet.
    written: (u64, usize),
    /// The write that took it in is durable.
    stored: bool,
}

/// What was heard of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    None,
    /// Accepted, or still at work.
    Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Due,
    Lease,
    Life,
}

/// See the module.
pub struct Engine {
    config: EngineConfig,
    lanes: HashMap<AgentKey, Lane>,
    open: HashMap<ReachId, Open>,
    all_retries: RetryBudget,
    timers: BinaryHeap<Reverse<(i64, ReachId, Timer)>>,
    /// Lanes that wait for the time alone.
    blocked: BTreeSet<AgentKey>,
    /// Lanes whose load changed since the effects were taken last.
    touched: HashSet<AgentKey>,
    /// Nothing new is handed to agents (the process is about to stop).
    held: bool,
    dice: Dice,
    out: Vec<Effect>,
    /// Number of the batch of effects that is being gathered, from 1.
    batch: u64,
    counters: Counters,
}

impl Engine {
    /// An empty engine; `seed` is the chance of its jitter.
    pub fn new(config: EngineConfig, seed: u64) -> Self {
        Self {
            config,
            lanes: HashMap::new(),
            open: HashMap::new(),
            all_retries: RetryBudget::of_all(),
            timers: BinaryHeap::new(),
            blocked: BTreeSet::new(),
            touched: HashSet::new(),
            held: false,
            dice: Dice::new(seed),
            out: Vec::new(),
            batch: 1,
            counters: Counters::default(),
        }
    }

    /// The effects so far, in order.
    pub fn take(&mut self) -> Vec<Effect> {
        self.batch += 1;
        for agent in std::mem::take(&mut self.touched) {
            if let Some(lane) = self.lanes.get(&agent) {
                let (in_flight, waiting) = (lane.calls.in_flight(), u32::try_from(lane.queue.len()).unwrap_or(u32::MAX));
                self.out.push(Effect::Load { agent, in_flight, waiting });
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Hands nothing new to agents from now on; what is out may be answered. For the end of the process.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Open messages.
    pub fn open_len(&self) -> usize {
        self.open.len()
    }

    /// An open message as it is in memory (its last change may not be durable yet).
    pub fn message(&self, id: ReachId) -> Option<Message> {
        self.open.get(&id).map(|o| Message { envelope: o.envelope.clone(), head: o.head.clone() })
    }

    /// What is out under a message id, and to whom. Cost: one pass over the open messages.
    pub fn out_under(&self, message_id: &str) -> Vec<(ReachId, AgentKey)> {
        let out = self.open.iter().filter(|(_, o)| *o.envelope.message_id == *message_id && o.head.state.is_out());
        out.filter_map(|(id, o)| Some((*id, o.head.agent.clone()?))).collect()
    }

    /// Every lane, by agent.
    pub fn lanes(&self, now_ms: i64) -> Vec<LaneView> {
        let mut all: Vec<LaneView> = self.lanes.iter().map(|(agent, lane)| lane.view(agent, now_ms)).collect();
        all.sort_by(|a, b| a.agent.cmp(&b.agent));
        all
    }

    /// One lane.
    pub fn lane(&self, agent: &AgentKey, now_ms: i64) -> Option<LaneView> {
        self.lanes.get(agent).map(|l| l.view(agent, now_ms))
    }

    /// Whether `target` would take a new message now.
    pub fn admit(&mut self, now_ms: i64, target: &Target, who: &Newcomer) -> Admission {
        if !self.config.protect.admission {
            return Admission::Take { slow_down: None };
        }
        let lane = self.lane_of(now_ms, target);
        let answer = lane.room(now_ms).admit(who);
        self.counters.turned_away += u64::from(matches!(answer, Admission::Refuse { .. }));
        answer
    }

    /// Takes in a message for `target`. It is taken in when its write is.
    pub fn submit(&mut self, now_ms: i64, envelope: Envelope, target: Target) -> Result<ReachId, Refused> {
        let events = vec![Event::Routing { exclude: Vec::new() }, routed(&target, envelope.source)];
        let (agent, capability) = (target.agent.clone(), target.capability.clone());
        let at_once = envelope.expires_ms() > now_ms && !self.held && self.lane_of(now_ms, &target).idle(now_ms, &capability);
        let id = self.take_in(now_ms, envelope, events, Some(target))?;
        if at_once {
            // nobody is before it: its first delivery is part of the write that takes it in
            self.touched.insert(agent.clone());
            self.lease(now_ms, id, &agent);
        }
        Ok(id)
    }

    /// Takes in a message that goes to nobody: it comes back at once, and stays on record.
    pub fn submit_unrouted(&mut self, now_ms: i64, e: Envelope, code: Code, reason: &str, decision_id: &str) -> Result<ReachId, Refused> {
        let (reason, decision_id) = (Arc::from(reason), Arc::from(decision_id));
        let events = vec![Event::Routing { exclude: Vec::new() }, Event::Unrouted { code, reason, decision_id }];
        self.take_in(now_ms, e, events, None)
    }

    fn take_in(&mut self, now_ms: i64, envelope: Envelope, events: Vec<Event>, target: Option<Target>) -> Result<ReachId, Refused> {
        let id = envelope.reach_id;
        let write = submission(now_ms, envelope, events)?;
        let Write::Submit { message, .. } = &write else { return Err(Refused::Order(State::Received)) };
        self.timers.push(Reverse((message.head.expires_ms, id, Timer::Life)));
        let mut open = Open::new(message.clone(), target);
        open.written = (self.batch, self.out.len());
        self.open.insert(id, open);
        self.out.push(Effect::Write(Box::new(write)));
        Ok(id)
    }

    /// A write became durable, or was refused. `seq` is the log position after it.
    pub fn wrote(&mut self, now_ms: i64, id: ReachId, seq: u32, how: &Wrote) {
        match how {
            Wrote::Stored => self.durable(now_ms, id, seq),
            // a submit that repeats another one, or a message that somebody else has changed: not ours to move
            Wrote::Existing(_) | Wrote::Conflict(_) | Wrote::Quota | Wrote::Moved => {
                self.unlease(id);
                self.leave(now_ms, id, Verdict::Neutral);
                self.open.remove(&id);
            }
        }
    }

    fn durable(&mut self, now_ms: i64, id: ReachId, seq: u32) {
        let Some(o) = self.open.get_mut(&id) else { return };
        if !std::mem::replace(&mut o.stored, true) {
            self.counters.submitted += 1;
            self.counters.unrouted += u64::from(o.head.state == State::RouteFailed);
            if o.in_call
                && let Some(lane) = o.target.as_ref().and_then(|t| self.lanes.get_mut(&t.agent))
            {
                lane.budget.first(now_ms);
                self.all_retries.first(now_ms);
            }
        }
        if o.head.seq != seq {
            return; // a newer change is under way and will be acted upon
        }
        let head = &o.head;
        match head.state {
            State::Queued => self.enqueue(now_ms, id),
            State::Dispatched => self.send(now_ms, id),
            State::Acked => self.out.push(Effect::CallBack(Box::new(Message { envelope: o.envelope.clone(), head: head.clone() }))),
            s if s.is_terminal() => {
                if s == State::DeadLetter && head.escalated.is_some() {
                    self.out.push(Effect::Escalate(Box::new(Message { envelope: o.envelope.clone(), head: head.clone() })));
                }
                if s != State::Done && o.envelope.callback.is_some() {
                    self.out.push(Effect::CallBack(Box::new(Message { envelope: o.envelope.clone(), head: head.clone() })));
                }
                self.open.remove(&id);
            }
            State::Received | State::Routing | State::Delivered | State::Accepted | State::Executing | State::RetryPending => {}
            State::Rejected | State::Done | State::RouteFailed | State::Failed | State::Cancelled | State::DeadLetter => {}
        }
    }

    /// A pulling agent asks for up to `n` messages more. Answers nothing: they come as [`Effect::Send`].
    pub fn demand(&mut self, now_ms: i64, target: &Target, n: u32) {
        let lane = self.lane_of(now_ms, target);
        lane.credits = Some(lane.credits.unwrap_or(0).saturating_add(n));
        self.pump(now_ms, &target.agent.clone());
    }

    /// The agent no longer asks for `n` of the messages that it asked for. What it has keeps its lease.
    pub fn undemand(&mut self, agent: &AgentKey, n: u32) {
        if let Some(lane) = self.lanes.get_mut(agent) {
            lane.credits = lane.credits.map(|c| c.saturating_sub(n));
        }
    }

    /// The agent started anew (or came back): slow start.
    pub fn agent_started(&mut self, now_ms: i64, target: &Target) {
        self.lane_of(now_ms, target).calls.start_slow(now_ms);
    }

    /// The agent reports its own queue as a share of its places.
    pub fn backlog(&mut self, agent: &AgentKey, share: f64) {
        if let Some(lane) = self.lanes.get_mut(agent) {
            lane.backlog = share.clamp(0.0, 1.0);
        }
    }

    /// A receipt of `agent` for its delivery. Answers the log position that must be durable before the agent is answered.
    pub fn receipt(
        &mut self,
        now_ms: i64,
        id: ReachId,
        agent: Option<&AgentKey>,
        delivery: u32,
        receipt: Receipt,
    ) -> Result<u32, NoReceipt> {
        let checked = self.open.get(&id).ok_or(NoReceipt::Unknown).and_then(|o| match agent {
            Some(a) if o.head.agent.as_ref() != Some(a) => Err(NoReceipt::NotYours),
            _ => Ok(()),
        });
        let answer = checked.and_then(|()| self.apply_receipt(now_ms, id, delivery, receipt).map_err(NoReceipt::Refused));
        self.counters.receipts_refused += u64::from(answer.as_ref().is_err_and(|e| *e != NoReceipt::Refused(Refused::Already)));
        answer
    }

    fn apply_receipt(&mut self, now_ms: i64, id: ReachId, delivery: u32, receipt: Receipt) -> Result<u32, Refused> {
        let sign = match receipt {
            Receipt::Accepted | Receipt::Task(_) | Receipt::Progress(_) => Sign::Life,
            Receipt::Delivered | Receipt::Acked(_) | Receipt::Nacked { .. } | Receipt::Refused { .. } | Receipt::Rejected(_) => Sign::None,
        };
        let until_ms = self.until(now_ms, id, sign);
        match receipt {
            Receipt::Delivered => self.step(now_ms, id, vec![Event::Delivered { delivery }]),
            Receipt::Accepted => self.step(now_ms, id, vec![Event::Accepted { delivery, until_ms, task: None }]),
            Receipt::Task(url) => {
                let delivered = self.open.get(&id).is_some_and(|o| o.head.delivered_ms.is_some());
                let first = (!delivered).then_some(Event::Delivered { delivery });
                let accepted = Event::Accepted { delivery, until_ms, task: Some(url) };
                self.step(now_ms, id, first.into_iter().chain([accepted]).collect())
            }
            Receipt::Progress(partial) => self.step(now_ms, id, vec![Event::Progress { delivery, until_ms, partial }]),
            Receipt::Acked(reply) => {
                let waits = self.open.get(&id).is_some_and(|o| o.envelope.callback.is_some());
                let mut events = vec![Event::Acked { delivery, reply }];
                if !waits {
                    events.push(Event::HandedBack);
                }
                let seq = self.step(now_ms, id, events)?;
                self.finish(now_ms, id, "acked", Verdict::Good, true);
                Ok(seq)
            }
            Receipt::Rejected(reason) => {
                let seq = self.step(now_ms, id, vec![Event::Rejected { delivery, reason }])?;
                self.finish(now_ms, id, "rejected", Verdict::Good, false);
                self.after_reject(now_ms, id);
                Ok(seq)
            }
            Receipt::Refused { code, reason } => {
                let seq = self.step(now_ms, id, vec![Event::Refused { delivery, code, reason }])?;
                self.finish(now_ms, id, "refused", Verdict::Good, false);
                Ok(seq)
            }
            Receipt::Nacked { cause, reason, retry_after } => {
                let ms = retry_after.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
                let seq = self.step(now_ms, id, vec![Event::Nacked { delivery, cause, reason, retry_after_ms: ms }])?;
                let verdict = match cause {
                    Cause::Busy | Cause::Restart => Verdict::Neutral,
                    Cause::Schema | Cause::Refused | Cause::Payload => Verdict::Good,
                    Cause::Connect | Cause::Broken | Cause::Timeout | Cause::Nack | Cause::Blocked => Verdict::Bad,
                };
                let kind = match cause {
                    Cause::Timeout => "timeout",
                    Cause::Busy | Cause::Restart => "busy",
                    Cause::Connect | Cause::Broken | Cause::Nack | Cause::Refused | Cause::Payload | Cause::Schema | Cause::Blocked => {
                        "nacked"
                    }
                };
                self.finish(now_ms, id, kind, verdict, false);
                self.after_failure(now_ms, id, cause, retry_after);
                Ok(seq)
            }
        }
    }

    /// Calls a message off. Answers the log position.
    pub fn cancel(&mut self, now_ms: i64, id: ReachId, reason: &str) -> Result<u32, NoReceipt> {
        let o = self.open.get(&id).ok_or(NoReceipt::Unknown)?;
        let out = o.head.state.is_out().then(|| (o.head.agent.clone(), o.head.delivery));
        let seq = self.step(now_ms, id, vec![Event::Cancelled { reason: Arc::from(reason) }]).map_err(NoReceipt::Refused)?;
        if let Some((Some(agent), delivery)) = out {
            self.out.push(Effect::Cancel { agent, id, delivery });
        }
        self.leave(now_ms, id, Verdict::Neutral);
        Ok(seq)
    }

    /// The callback was taken, or given up.
    pub fn called_back(&mut self, now_ms: i64, id: ReachId) {
        if self.open.get(&id).is_some_and(|o| o.head.state == State::Acked) {
            self.step(now_ms, id, vec![Event::HandedBack]).ok();
        }
    }

    /// Lets the time pass: leases, pauses, lives, lanes that wait for the clock.
    pub fn tick(&mut self, now_ms: i64) {
        while let Some(Reverse((at, id, what))) = self.timers.peek().copied().filter(|Reverse((at, ..))| *at <= now_ms) {
            self.timers.pop();
            let Some(o) = self.open.get(&id) else { continue };
            let h = &o.head;
            match what {
                Timer::Life if h.expires_ms <= now_ms => self.life_over(now_ms, id),
                Timer::Lease if h.state.is_out() && h.lease_until_ms.is_some_and(|t| t <= now_ms) => self.lease_over(now_ms, id),
                Timer::Due if h.state == State::RetryPending && !o.asking && h.due_ms <= at => self.due(now_ms, id),
                Timer::Life | Timer::Lease | Timer::Due => {}
            }
        }
        for agent in std::mem::take(&mut self.blocked) {
            self.pump(now_ms, &agent);
        }
    }

    /// When [`Engine::tick`] is needed next; `None` = not before something happens.
    pub fn next_wake_ms(&self, now_ms: i64) -> Option<i64> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let lanes = (!self.blocked.is_empty()).then_some(now_ms + 20);
        [timer, lanes].into_iter().flatten().min()
    }

    fn lane_of(&mut self, now_ms: i64, target: &Target) -> &mut Lane {
        let breaker = self.config.breaker;
        let lane = self.lanes.entry(target.agent.clone()).or_insert_with(|| Lane::new(target, breaker));
        lane.adopt(now_ms, target);
        lane
    }

    /// Applies events to an open message and writes them.
    fn step(&mut self, now_ms: i64, id: ReachId, events: Vec<Event>) -> Result<u32, Refused> {
        let Some(o) = self.open.get_mut(&id) else { return Err(Refused::Terminal(State::Done)) };
        let from_seq = o.head.seq;
        let t = state::on_all(&o.head, now_ms, events)?;
        let was_leased = o.head.lease_until_ms;
        o.head = t.head;
        let seq = o.head.seq;
        if let Some(until) = o.head.lease_until_ms.filter(|u| Some(*u) != was_leased) {
            self.timers.push(Reverse((until, id, Timer::Lease)));
        }
        for entry in &t.log {
            let c = &mut self.counters;
            if matches!(entry.event, Event::Escalated { .. }) {
                // the state is the one before
                c.escalated += 1;
                continue;
            }
            let kind = match entry.state {
                State::Delivered => {
                    c.delivered += 1;
                    "delivered"
                }
                State::Accepted => {
                    c.accepted += 1;
                    "accepted"
                }
                State::Acked => {
                    c.acked += 1;
                    continue;
                }
                State::Rejected => {
                    c.rejected += 1;
                    continue;
                }
                State::Failed => {
                    c.failed += 1;
                    continue;
                }
                State::DeadLetter => {
                    c.dead += 1;
                    continue;
                }
                State::Cancelled => {
                    c.cancelled += 1;
                    continue;
                }
                State::Dispatched => {
                    c.deliveries += 1;
                    continue;
                }
                State::Received | State::Routing | State::Queued | State::Executing | State::Done => continue,
                State::RouteFailed | State::RetryPending => continue,
            };
            self.out.extend(o.outcome(now_ms, id, kind).map(Effect::Outcome));
        }
        // what follows within one call is one write: no crash can part a failure from what was decided about it
        let written = o.written;
        let earlier = if written.0 == self.batch { self.out.get_mut(written.1) } else { None };
        match earlier {
            Some(Effect::Write(w)) if w.id() == id => {
                let (Write::Record { head, log, .. } | Write::Submit { message: Message { head, .. }, log, .. }) = &mut **w;
                *head = o.head.clone();
                log.extend(t.log);
            }
            _ => {
                o.written = (self.batch, self.out.len());
                self.out.push(Effect::Write(Box::new(Write::Record { id, from_seq, head: o.head.clone(), log: t.log })));
            }
        }
        Ok(seq)
    }

    /// Into its agent's queue.
    fn enqueue(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get_mut(&id).filter(|o| !o.queued) else { return };
        let Some(target) = o.target.clone() else { return };
        o.class = QueueClass::of(o.envelope.priority, o.envelope.source);
        o.queued = true;
        let class = o.class;
        self.lane_of(now_ms, &target).queue.push(class, &target.capability, id);
        self.pump(now_ms, &target.agent);
    }

    /// Begins as many deliveries as the lane allows now.
    fn pump(&mut self, now_ms: i64, agent: &AgentKey) {
        self.touched.insert(agent.clone());
        if self.held {
            return;
        }
        loop {
            let Some(lane) = self.lanes.get_mut(agent) else { return };
            match lane.ready(now_ms) {
                None => return,
                Some(false) => {
                    self.blocked.insert(agent.clone());
                    return;
                }
                Some(true) => {}
            }
            let (buckets, backlog) = (&mut lane.buckets, lane.backlog);
            let Some(id) = lane.queue.pop(|c| buckets.get_mut(c).is_none_or(|b| b.ready(now_ms, backlog))) else {
                if !lane.queue.is_empty() {
                    self.blocked.insert(agent.clone());
                }
                return;
            };
            self.lease(now_ms, id, agent);
        }
    }

    fn lease(&mut self, now_ms: i64, id: ReachId, agent: &AgentKey) {
        let poison_limit = self.config.poison_limit;
        let Some(o) = self.open.get_mut(&id) else { return };
        o.queued = false;
        let (first, stored) = (o.head.delivery == 0, o.stored);
        if o.head.state != State::Queued {
            return;
        }
        if o.head.expires_ms <= now_ms {
            return self.give_up(now_ms, id, DeadTag::TtlExpired, "its time was over before its turn came");
        }
        if poison::is_poison(&o.head, poison_limit) {
            return self.give_up(now_ms, id, DeadTag::Poison, "it was delivered too often without an answer");
        }
        let capability = o.head.capability.clone();
        let (Some(lane), Some(capability)) = (self.lanes.get_mut(agent), capability) else { return };
        let backlog = lane.backlog;
        if let Some(bucket) = lane.buckets.get_mut(&capability) {
            bucket.take(now_ms, backlog);
        }
        lane.credits = lane.credits.map(|c| c.saturating_sub(1));
        lane.calls.take(now_ms);
        lane.running.insert((now_ms, id));
        let permit = if self.config.protect.breaker { lane.breaker.admit(now_ms) } else { None };
        match (first, stored) {
            (true, true) => {
                lane.budget.first(now_ms);
                self.all_retries.first(now_ms);
            }
            // counted when it is known to be no repetition
            (true, false) => {}
            (false, _) => self.counters.retries += 1,
        }
        if let Some(o) = self.open.get_mut(&id) {
            o.permit = permit;
            o.in_call = true;
        }
        self.uncount_retry(id);
        let until_ms = self.until(now_ms, id, Sign::None);
        if self.step(now_ms, id, vec![Event::Leased { until_ms }]).is_err() {
            self.leave(now_ms, id, Verdict::Neutral);
        }
    }

    /// Takes back the delivery that was part of a submission which was not taken in (a repetition): it asked the agent for nothing.
    fn unlease(&mut self, id: ReachId) {
        let Some(o) = self.open.get(&id).filter(|o| !o.stored && o.in_call) else { return };
        if let Some(lane) = o.target.as_ref().and_then(|t| self.lanes.get_mut(&t.agent)) {
            lane.credits = lane.credits.map(|c| c.saturating_add(1));
        }
        self.counters.deliveries = self.counters.deliveries.saturating_sub(1);
    }

    /// `left` instead of what is left of the ttl.
    fn limits(&self, now_ms: i64, id: ReachId, left: Option<Duration>) -> Limits {
        let known = self.open.get(&id).map(|o| {
            let lane = o.head.agent.as_ref().and_then(|a| self.lanes.get(a));
            let pace = lane.map(|l| l.pace_of(now_ms, o.head.capability.as_ref())).unwrap_or_default();
            let t = o.target.as_ref();
            Known {
                connect: t.and_then(|t| t.connect),
                suggested: t.and_then(|t| t.processing),
                hint: t.and_then(|t| t.hint),
                pace,
                caller: o.envelope.timeout,
                left: left.unwrap_or_else(|| ms(o.head.expires_ms - now_ms)),
            }
        });
        timeouts::limits(&known.unwrap_or_default())
    }

    /// The end of a lease that begins or is renewed now. Work that was accepted is waited for past the ttl; a sign of life is good for 30 s.
    fn until(&self, now_ms: i64, id: ReachId, sign: Sign) -> i64 {
        let caller = self.open.get(&id).and_then(|o| o.envelope.timeout).unwrap_or(timeouts::LONGEST);
        let span = match sign {
            Sign::None => self.limits(now_ms, id, None).processing,
            Sign::Life => self.limits(now_ms, id, Some(timeouts::LONGEST)).processing.max(Duration::from_secs(30)).min(caller),
        };
        now_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1))
    }

    fn send(&mut self, now_ms: i64, id: ReachId) {
        let limits = self.limits(now_ms, id, None);
        let Some(o) = self.open.get(&id) else { return };
        let Some(target) = o.target.clone() else { return };
        let fix = (o.head.source == Source::Fix).then(|| o.head.reason.clone()).flatten();
        self.out.push(Effect::Send(Box::new(Delivery {
            id,
            delivery: o.head.delivery,
            envelope: o.envelope.clone(),
            target,
            source: o.head.source,
            fix,
            task: o.head.task.clone(),
            limits,
        })));
    }
}

impl Open {
    fn new(message: Message, target: Option<Target>) -> Self {
        Self {
            class: QueueClass::of(message.envelope.priority, message.envelope.source),
            envelope: message.envelope,
            head: message.head,
            target,
            queued: false,
            permit: None,
            in_call: false,
            retry_at: None,
            asking: false,
            same_after: None,
            ask_when_due: false,
            after_reject: false,
            put_off: 0,
            written: (0, 0),
            stored: false,
        }
    }

    /// What is told of its delivery; nothing while it has no agent.
    fn outcome(&self, now_ms: i64, id: ReachId, kind: &'static str) -> Option<Outcome> {
        let (e, h) = (&self.envelope, &self.head);
        Some(Outcome {
            id,
            agent: h.agent.clone()?,
            capability: h.capability.clone()?,
            delivery: h.delivery,
            caller: e.principal.caller.clone(),
            tenant: e.principal.tenant.clone(),
            query: e.query.clone(),
            previous: e.options.previous.clone(),
            at_ms: now_ms,
            kind,
            took_ms: h.leased_ms.map_or(0, |l| u64::try_from(now_ms - l).unwrap_or(0)),
            decision_id: self.target.as_ref().map(|t| t.decision_id.clone()).unwrap_or_default(),
        })
    }
}

fn routed(target: &Target, source: Source) -> Event {
    Event::Routed {
        agent: target.agent.clone(),
        capability: target.capability.clone(),
        score: target.score,
        probability: target.probability,
        decision_id: target.decision_id.clone(),
        source,
    }
}

fn ms(n: i64) -> Duration {
    Duration::from_millis(u64::try_from(n).unwrap_or(0))
}

#[cfg(test)]
mod tests;
