//! What follows when a delivery ends without a result: another agent, the same one after a pause, or the dead letters.
//!
//! Invariants: whoever failed or rejected is left out when the matcher is asked; a retry is spent from both budgets before it is queued; without
//! budget or room it is put off, never dropped, until its life is over. Not here: the arithmetic of pauses (`retry`), of budgets (`budget`).

use super::{Effect, Engine, Open, Sign, Timer, ms, routed};
use crate::dispatch::backpressure::{Admission, Newcomer};
use crate::dispatch::breaker::{BreakerState, Verdict};
use crate::dispatch::budget;
use crate::dispatch::poison;
use crate::dispatch::port::{Choice, Reach, Target};
use crate::dispatch::retry::{self, Failure, Next};
use crate::error::Error;
use crate::types::AgentKey;
use crate::types::envelope::{ReachId, Source};
use crate::types::escalation::rule_for;
use crate::types::message::{Cause, DeadTag, Event, Message, State, default_retry};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// Messages that leave a tripped lane at once.
const EVACUATE: usize = 1_000;

impl Engine {
    /// Frees what a message holds: its place in a queue, its place among the calls.
    pub(super) fn leave(&mut self, now_ms: i64, id: ReachId, verdict: Verdict) {
        self.uncount_retry(id);
        let Some(o) = self.open.get_mut(&id) else { return };
        let Some(agent) = o.target.as_ref().map(|t| t.agent.clone()) else { return };
        let (queued, class) = (std::mem::take(&mut o.queued), o.class);
        let (in_call, permit) = (std::mem::take(&mut o.in_call), o.permit.take());
        let started = o.head.leased_ms.unwrap_or(now_ms);
        let Some(lane) = self.lanes.get_mut(&agent) else { return };
        if queued {
            lane.queue.remove(class, id);
            self.touched.insert(agent.clone());
        }
        if !in_call {
            return;
        }
        lane.calls.give_back();
        lane.running.remove(&(started, id));
        if let Some(state) = permit.and_then(|p| lane.breaker.on(now_ms, p, verdict)) {
            self.out.push(Effect::Breaker { agent: agent.clone(), state });
            match state {
                BreakerState::Passing => lane.calls.start_slow(now_ms),
                BreakerState::Tripped => self.evacuate(&agent),
                BreakerState::Probing => {}
            }
        }
        self.pump(now_ms, &agent);
    }

    /// A delivery ended: frees its place, measures, tells.
    pub(super) fn finish(&mut self, now_ms: i64, id: ReachId, kind: &'static str, verdict: Verdict, good: bool) {
        if let Some(outcome) = self.open.get(&id).and_then(|o| o.outcome(now_ms, id, kind)) {
            // quick failures say nothing about how long the work takes
            let measured = matches!(kind, "acked" | "timeout");
            if let Some(lane) = self.lanes.get_mut(&outcome.agent).filter(|_| measured) {
                lane.measure(now_ms, &outcome.capability, outcome.took_ms, good);
            }
            self.out.push(Effect::Outcome(outcome));
        }
        self.leave(now_ms, id, verdict);
    }

    /// Messages that wait for a tripped agent ask for another one.
    fn evacuate(&mut self, agent: &AgentKey) {
        let mut waiting: Vec<ReachId> = self
            .open
            .iter()
            .filter(|(_, o)| o.queued && !o.asking && o.target.as_ref().is_some_and(|t| t.agent == *agent) && o.envelope.target.is_none())
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        waiting.truncate(EVACUATE);
        for id in waiting {
            self.ask(id, Some(agent.clone()));
        }
    }

    /// Asks the matcher for another agent.
    fn ask(&mut self, id: ReachId, also: Option<AgentKey>) {
        let Some(o) = self.open.get_mut(&id).filter(|o| !o.asking) else { return };
        o.asking = true;
        let mut exclude: Vec<AgentKey> = o.envelope.options.exclude.clone();
        exclude.extend(o.head.failed.iter().chain(&o.head.rejected).cloned());
        exclude.extend(also);
        exclude.dedup();
        self.out.push(Effect::Route { id, envelope: o.envelope.clone(), exclude });
    }

    pub(super) fn after_reject(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get_mut(&id) else { return };
        o.same_after = None;
        o.after_reject = true;
        if poison::attempts(&o.head) >= o.policy().max_attempts {
            return self.give_up(now_ms, id, DeadTag::AgentRejected, "everybody who was asked said \"not mine\"");
        }
        self.ask(id, None);
    }

    pub(super) fn after_failure(&mut self, now_ms: i64, id: ReachId, cause: Cause, retry_after: Option<Duration>) {
        let roll = self.dice.share();
        let Some(o) = self.open.get_mut(&id) else { return };
        o.after_reject = false;
        if cause == Cause::Schema {
            return self.after_schema(now_ms, id);
        }
        let lane = o.head.agent.as_ref().and_then(|a| self.lanes.get(a));
        let p50 = lane.and_then(|l| l.pace_of(now_ms, o.head.capability.as_ref()).p50_ms).map(Duration::from_millis);
        let pushed = o.target.as_ref().is_some_and(|t| t.reach == Reach::Push);
        let failure = Failure {
            cause,
            attempts: poison::attempts(&o.head),
            retry_after,
            // a call that broke, took too long or was cut by our own end had left: connecting fails under a name of its own
            may_have_run: o.head.accepted_ms.is_some() || (pushed && (o.head.delivered_ms.is_some() || retry::is_unclear(cause))),
            idempotent: o.target.as_ref().is_some_and(|t| t.idempotent),
            p50,
            left: ms(o.head.expires_ms - now_ms),
        };
        match retry::plan(&o.policy(), &failure, roll) {
            Next::Retry { same_after } => {
                o.same_after = same_after;
                self.ask(id, None);
            }
            Next::Dead(tag) => {
                let reason = o.head.reason.clone().unwrap_or_else(|| Arc::from("no answer in time"));
                self.give_up(now_ms, id, tag, &reason);
            }
            Next::Failed => self.give_up(now_ms, id, DeadTag::RetriesExhausted, "no further attempt can help"),
        }
    }

    /// A result that does not fit: one corrective attempt at the same agent, then a clear end.
    fn after_schema(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get(&id) else { return };
        if o.head.source == Source::Fix {
            let reason = o.head.reason.clone().unwrap_or_default();
            return self.give_up(now_ms, id, DeadTag::SchemaValidationFailed, &reason);
        }
        self.step(now_ms, id, vec![Event::Requeued { source: Source::Fix }]).ok();
    }

    /// The matcher answered a question for another agent.
    pub fn rerouted(&mut self, now_ms: i64, id: ReachId, answer: Result<Choice, Error>) {
        let Some(o) = self.open.get_mut(&id) else { return };
        o.asking = false;
        let waiting = o.queued && o.head.state == State::Queued;
        if !waiting && !matches!(o.head.state, State::RetryPending | State::Rejected | State::Received | State::Routing) {
            return;
        }
        let (targets, told) = match answer {
            Ok(Choice::Deliver(targets)) => (targets, true),
            Ok(Choice::Nobody { .. }) => (Vec::new(), true),
            Err(_) => (Vec::new(), false),
        };
        let never: Vec<AgentKey> = o.head.failed.iter().chain(&o.head.rejected).cloned().collect();
        let mut others = false;
        for target in targets.into_iter().filter(|t| !never.contains(&t.agent)) {
            others = true;
            if self.place(now_ms, id, target) {
                return;
            }
        }
        if waiting {
            return;
        }
        self.nobody_else(now_ms, id, others || !told);
    }

    /// Puts a message into another agent's queue, if there is room and budget.
    fn place(&mut self, now_ms: i64, id: ReachId, target: Target) -> bool {
        let Some(o) = self.open.get(&id) else { return false };
        let again = o.head.delivery > poison_free(o);
        let who = Newcomer { priority: o.envelope.priority, retry: again, left: ms(o.head.expires_ms - now_ms) };
        let source = if again { Source::Retry } else { o.envelope.source };
        let first_time = matches!(o.head.state, State::Received);
        let routing = matches!(o.head.state, State::Routing);
        if matches!(self.admit(now_ms, &target, &who), Admission::Refuse { .. }) {
            return false;
        }
        if again && !self.spend(now_ms, id, &target.agent) {
            return false;
        }
        self.leave(now_ms, id, Verdict::Neutral);
        let exclude = self.open.get(&id).map(|o| o.head.failed.clone()).unwrap_or_default();
        let mut events = vec![routed(&target, if first_time { Source::Client } else { source })];
        if !routing {
            events.insert(0, Event::Routing { exclude });
        }
        if let Some(o) = self.open.get_mut(&id) {
            o.target = Some(target.clone());
            o.same_after = None;
            o.ask_when_due = false;
        }
        if again {
            self.count_retry(id, &target.agent);
        }
        self.step(now_ms, id, events).is_ok()
    }

    /// Spends a retry from both budgets; a message that was rejected pays nothing.
    fn spend(&mut self, now_ms: i64, id: ReachId, agent: &AgentKey) -> bool {
        if !self.config.protect.budget || self.open.get(&id).is_some_and(|o| o.after_reject) {
            return true;
        }
        let Some(lane) = self.lanes.get_mut(agent) else { return true };
        let ok = lane.budget.allows(now_ms) && self.all_retries.allows(now_ms);
        if ok {
            lane.budget.take(now_ms);
            self.all_retries.take(now_ms);
        } else {
            self.counters.budget_refused += 1;
        }
        ok
    }

    /// No other agent takes it now. `maybe_later`: there is one, without room or budget, or the matcher could not be asked.
    fn nobody_else(&mut self, now_ms: i64, id: ReachId, maybe_later: bool) {
        let Some(o) = self.open.get_mut(&id) else { return };
        if let Some(pause) = o.same_after.take() {
            o.ask_when_due = false;
            let agent = o.head.agent.clone();
            let fits = agent.as_ref().and_then(|a| self.lanes.get(a)).is_none_or(|l| budget::fits_queue(l.retries, l.places));
            if !fits && self.config.protect.budget {
                return self.give_up(now_ms, id, DeadTag::AgentBusy, "too many messages wait for another attempt at this agent");
            }
            if let Some(agent) = agent {
                self.count_retry(id, &agent);
            }
            return self.postpone(now_ms, id, pause, "the same agent again, after a pause");
        }
        if maybe_later {
            o.ask_when_due = true;
            let pause = self.next_pause(now_ms, id);
            return self.postpone(now_ms, id, pause, "other agents have no room now");
        }
        let rejected = !o.head.rejected.is_empty() && o.head.failed.is_empty();
        let (tag, reason) = match (rejected, o.head.failed.is_empty()) {
            (true, _) => (DeadTag::AgentRejected, "everybody who was asked said \"not mine\""),
            (false, true) => (DeadTag::NoMatchedAgent, "nobody is left who could take it"),
            (false, false) => (DeadTag::RetriesExhausted, "nobody else could take it in the time that was left"),
        };
        self.give_up(now_ms, id, tag, reason);
    }

    /// The pause is over.
    pub(super) fn due(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get(&id) else { return };
        if poison::attempts(&o.head) >= o.policy().max_attempts {
            // it failed for the last time just before a restart
            return self.give_up(now_ms, id, DeadTag::RetriesExhausted, "all attempts were used");
        }
        let Some(target) = o.target.clone().filter(|t| !o.ask_when_due && !o.head.rejected.contains(&t.agent)) else {
            return self.ask(id, None);
        };
        let who = Newcomer { priority: o.envelope.priority, retry: false, left: ms(o.head.expires_ms - now_ms) };
        let room = !matches!(self.admit(now_ms, &target, &who), Admission::Refuse { .. });
        if !room || !self.spend(now_ms, id, &target.agent) {
            let pause = self.next_pause(now_ms, id);
            return self.postpone(now_ms, id, pause, "no room or no budget for another attempt now");
        }
        self.step(now_ms, id, vec![Event::Requeued { source: Source::Retry }]).ok();
    }

    /// A pause that grows each time a message is put off.
    fn next_pause(&mut self, _now_ms: i64, id: ReachId) -> Duration {
        let roll = self.dice.share();
        let Some(o) = self.open.get_mut(&id) else { return Duration::from_secs(1) };
        o.put_off += 1;
        retry::delay(&o.policy(), o.put_off.saturating_add(2), None, None, roll)
    }

    fn postpone(&mut self, now_ms: i64, id: ReachId, pause: Duration, reason: &str) {
        let due_ms = now_ms.saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX).max(1));
        self.timers.push(Reverse((due_ms, id, Timer::Due)));
        self.step(now_ms, id, vec![Event::Postponed { due_ms, reason: Arc::from(reason) }]).ok();
    }

    /// Dead letter.
    pub(super) fn give_up(&mut self, now_ms: i64, id: ReachId, tag: DeadTag, reason: &str) {
        let out = self.open.get(&id).filter(|o| o.head.state.is_out()).map(|o| (o.head.agent.clone(), o.head.delivery));
        let escalated = self.escalation(id, tag).map(|to| Event::Escalated { to });
        let events = escalated.into_iter().chain([Event::Dead { tag, reason: Arc::from(reason) }]).collect();
        if self.step(now_ms, id, events).is_ok() {
            if let Some((Some(agent), delivery)) = out {
                self.out.push(Effect::Cancel { agent, id, delivery });
            }
            self.leave(now_ms, id, Verdict::Neutral);
        }
    }

    /// Who is told that a message is given up, by the operator's rules. What takes over a dead letter is escalated no further.
    fn escalation(&self, id: ReachId, tag: DeadTag) -> Option<Arc<str>> {
        let o = self.open.get(&id).filter(|o| o.envelope.escalation.is_none() && !self.config.escalations.is_empty())?;
        let namespace = o.head.agent.as_ref().or(o.envelope.target.as_ref()).map(|a| &a.namespace);
        rule_for(&self.config.escalations, namespace, tag).map(|rule| Arc::from(rule.to.shown()))
    }

    /// The ttl is over. What is being worked on under a live lease is waited for; everything else is given up.
    pub(super) fn life_over(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get(&id) else { return };
        let alive = o.head.state.is_out() && o.head.lease_until_ms.is_some_and(|t| t > now_ms);
        if o.head.state == State::Acked || o.head.state.is_terminal() || alive {
            return;
        }
        if o.head.state.is_out() {
            return self.lease_over(now_ms, id);
        }
        self.give_up(now_ms, id, DeadTag::TtlExpired, "its time is over");
    }

    /// The lease ran out: the agent is told to stop, then what the policy says.
    pub(super) fn lease_over(&mut self, now_ms: i64, id: ReachId) {
        let Some(o) = self.open.get(&id) else { return };
        let (delivery, agent) = (o.head.delivery, o.head.agent.clone());
        self.counters.expired_leases += 1;
        if let Some(agent) = agent {
            self.out.push(Effect::Cancel { agent, id, delivery });
        }
        if self.step(now_ms, id, vec![Event::LeaseExpired { delivery, crashed: false }]).is_ok() {
            self.finish(now_ms, id, "timeout", Verdict::Bad, false);
            self.after_failure(now_ms, id, Cause::Timeout, None);
        }
    }

    /// Takes up a message that was found in the store at start. `target` is what is known about its agent now.
    pub fn resume(&mut self, now_ms: i64, message: Message, target: Option<Target>) {
        let (id, state) = (message.id(), message.head.state);
        if state.is_terminal() || self.open.contains_key(&id) {
            return;
        }
        self.timers.push(Reverse((message.head.expires_ms.max(now_ms), id, Timer::Life)));
        let (delivery, due_ms, lease) = (message.head.delivery, message.head.due_ms, message.head.lease_until_ms);
        let again = delivery > message.head.crashes;
        let leased = message.head.leased_ms;
        let acked = (state == State::Acked).then(|| Box::new(message.clone()));
        let known = target.or_else(|| {
            let (agent, capability) = (message.head.agent.clone()?, message.head.capability.clone()?);
            Some(Target::plain(agent, &capability))
        });
        let mut open = Open::new(message, known.clone());
        open.stored = true;
        self.open.insert(id, open);
        match state {
            State::Queued => {
                if let (true, Some(t)) = (again, &known) {
                    self.count_retry(id, &t.agent.clone());
                }
                self.enqueue(now_ms, id);
            }
            State::RetryPending if known.is_some() => {
                self.timers.push(Reverse((due_ms.max(now_ms), id, Timer::Due)));
            }
            State::Received | State::Routing | State::Rejected | State::RetryPending => self.ask(id, None),
            State::Dispatched | State::Delivered | State::Accepted | State::Executing => {
                let push = known.as_ref().is_some_and(|t| t.reach == Reach::Push);
                let task = push && self.open.get(&id).is_some_and(|o| o.head.task.is_some());
                if let Some(o) = self.open.get_mut(&id) {
                    o.in_call = true;
                }
                if let Some(t) = &known {
                    let lane = self.lane_of(now_ms, t);
                    lane.calls.occupy();
                    lane.running.insert((leased.unwrap_or(now_ms), id));
                }
                if push && matches!(state, State::Dispatched | State::Delivered) {
                    // its answer would have come over a connection that is no more
                    if self.step(now_ms, id, vec![Event::LeaseExpired { delivery, crashed: true }]).is_ok() {
                        self.leave(now_ms, id, Verdict::Neutral);
                        self.after_failure(now_ms, id, Cause::Restart, None);
                    }
                } else if task {
                    // it works on without us: we look again
                    let until_ms = self.until(now_ms, id, Sign::Life);
                    self.step(now_ms, id, vec![Event::Progress { delivery, until_ms, partial: None }]).ok();
                    self.send(now_ms, id);
                } else {
                    self.timers.push(Reverse((lease.unwrap_or(now_ms).max(now_ms), id, Timer::Lease)));
                }
            }
            State::Acked => {
                if let Some(message) = acked {
                    if message.envelope.callback.is_some() {
                        self.out.push(Effect::CallBack(message));
                    } else {
                        self.step(now_ms, id, vec![Event::HandedBack]).ok();
                    }
                }
            }
            State::Done | State::RouteFailed | State::Failed | State::Cancelled | State::DeadLetter => {}
        }
    }

    /// Forgets every open message (they are in the store); what is known about agents stays.
    pub fn forget_messages(&mut self) {
        self.open.clear();
        self.timers.clear();
        self.blocked.clear();
        self.out.clear();
        self.batch += 1;
        self.touched.extend(self.lanes.keys().cloned());
        for lane in self.lanes.values_mut() {
            lane.queue = crate::dispatch::priority::ClassQueue::default();
            lane.retries = 0;
            lane.breaker.abandon();
            lane.running.clear();
            while lane.calls.in_flight() > 0 {
                lane.calls.give_back();
            }
        }
    }

    fn count_retry(&mut self, id: ReachId, agent: &AgentKey) {
        self.uncount_retry(id);
        if let (Some(o), Some(lane)) = (self.open.get_mut(&id), self.lanes.get_mut(agent)) {
            o.retry_at = Some(agent.clone());
            lane.retries += 1;
        }
    }

    pub(super) fn uncount_retry(&mut self, id: ReachId) {
        let agent = self.open.get_mut(&id).and_then(|o| o.retry_at.take());
        if let Some(lane) = agent.and_then(|a| self.lanes.get_mut(&a)) {
            lane.retries = lane.retries.saturating_sub(1);
        }
    }
}

impl Open {
    /// The retry policy that holds: the caller's, the agent's, the default.
    fn policy(&self) -> crate::types::manifest::Retry {
        let own = self.envelope.retry.clone().or_else(|| self.target.as_ref().and_then(|t| t.retry.clone()));
        let mut policy = own.unwrap_or_else(default_retry);
        policy.max_attempts = policy.max_attempts.clamp(1, 5);
        policy
    }
}

/// Deliveries that don't make the next one a retry: those that ended with our own process.
fn poison_free(o: &Open) -> u32 {
    o.head.crashes
}
