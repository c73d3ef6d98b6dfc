//! Everything the dispatcher knows about one agent: its queue, its limits, its pace, whether it works.
//!
//! Lanes share nothing but the budget of all retries, so that a slow or broken agent delays nobody else's messages.
//! Not here: messages (`engine`).

use crate::dispatch::backpressure::Room;
use crate::dispatch::breaker::{Breaker, BreakerConfig, BreakerState};
use crate::dispatch::budget::RetryBudget;
use crate::dispatch::limit::{Concurrency, Paced};
use crate::dispatch::pace::{Pace, PaceView};
use crate::dispatch::port::{Reach, Target};
use crate::dispatch::priority::{ClassQueue, QueueClass};
use crate::types::AgentKey;
use crate::types::envelope::ReachId;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// One agent's lane.
pub(super) struct Lane {
    pub queue: ClassQueue,
    pub calls: Concurrency,
    pub breaker: Breaker,
    pub budget: RetryBudget,
    pub buckets: HashMap<Arc<str>, Paced>,
    pub pace: Pace,
    /// The same for each capability: a quick one says nothing of how long another takes.
    pub paces: HashMap<Arc<str>, Pace>,
    pub places: u32,
    /// Messages that wait here for a further attempt, in the queue or in a pause.
    pub retries: usize,
    /// Messages a pulling agent asked for; `None` for an agent that is called.
    pub credits: Option<u32>,
    /// Share of its own queue that the agent reports, 0..=1.
    pub backlog: f64,
    /// Calls under way by their start.
    pub running: BTreeSet<(i64, ReachId)>,
}

/// What an observer sees of a lane.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneView {
    /// Agent.
    pub agent: AgentKey,
    /// Messages that wait.
    pub waiting: usize,
    /// Places.
    pub places: u32,
    /// Of the waiting, further attempts.
    pub retries: usize,
    /// Calls under way.
    pub in_flight: u32,
    /// Calls that may be under way now.
    pub limit: u32,
    /// `passing`, `tripped` or `probing`.
    pub breaker: &'static str,
    /// Median of the last minute, milliseconds.
    pub p50_ms: Option<u64>,
    /// 95 % of the last minute, milliseconds.
    pub p95_ms: Option<u64>,
    /// Share of good calls in the last minute.
    pub success: Option<f64>,
    /// Finished calls in the last minute.
    pub calls: u32,
}

impl Lane {
    pub fn new(target: &Target, breaker: BreakerConfig) -> Self {
        Self {
            queue: ClassQueue::default(),
            calls: Concurrency::new(target.concurrency),
            breaker: Breaker::new(breaker),
            budget: RetryBudget::of_target(),
            buckets: HashMap::new(),
            pace: Pace::default(),
            paces: HashMap::new(),
            places: target.places.max(1),
            retries: 0,
            credits: (target.reach == Reach::Pull).then_some(0),
            backlog: 0.0,
            running: BTreeSet::new(),
        }
    }

    /// Counts a call that ended.
    pub fn measure(&mut self, now_ms: i64, capability: &Arc<str>, ms: u64, good: bool) {
        self.pace.add(now_ms, ms, good);
        self.paces.entry(capability.clone()).or_default().add(now_ms, ms, good);
    }

    /// What the last minute says of a capability.
    pub fn pace_of(&self, now_ms: i64, capability: Option<&Arc<str>>) -> PaceView {
        capability.and_then(|c| self.paces.get(c)).map(|pace| pace.view(now_ms)).unwrap_or_default()
    }

    /// Takes over what a new manifest says.
    pub fn adopt(&mut self, now_ms: i64, target: &Target) {
        self.calls.set_full(target.concurrency);
        self.places = target.places.max(1);
        match target.reach {
            Reach::Pull => self.credits = Some(self.credits.unwrap_or(0)),
            Reach::Push => self.credits = None,
        }
        if let Some(bucket) = target.bucket(now_ms) {
            self.buckets.entry(target.capability.clone()).or_insert(bucket);
        }
    }

    /// The queue as a newcomer finds it.
    pub fn room(&self, now_ms: i64) -> Room {
        let pause = self.breaker.until_ms(now_ms).map(|until| Duration::from_millis(u64::try_from(until - now_ms).unwrap_or(0).max(1)));
        Room {
            places: self.places,
            waiting: self.queue.len(),
            low: self.queue.len_of(QueueClass::Low),
            retries: self.retries,
            concurrency: self.calls.limit(now_ms),
            p50_ms: self.typical_ms(now_ms),
            closed_for: pause,
        }
    }

    /// How long a call takes now: the recent median, or the age of the calls under way when these are older. So a sudden slowness is seen before the
    /// first slow call has ended.
    fn typical_ms(&self, now_ms: i64) -> Option<u64> {
        let median = self.pace.recent_p50(now_ms);
        let old = self.running.iter().nth(self.running.len() / 4).map(|(at, _)| u64::try_from(now_ms - at).unwrap_or(0));
        match (median, old) {
            // a call that is still running after `age` will take half as long again, by the tail of such times
            (Some(m), Some(age)) => Some(m.max(age * 3 / 2)),
            // nothing has ended yet: one running call says little
            (None, Some(age)) if age >= 1_000 => Some(age * 3 / 2),
            (median, _) => median,
        }
    }

    /// Whether a call could begin now, rate limits aside. `None` = not before something happens; `Some(false)` = the time alone may change it.
    pub fn ready(&mut self, now_ms: i64) -> Option<bool> {
        if self.queue.is_empty() || self.credits == Some(0) {
            return None;
        }
        if !self.breaker.would_admit(now_ms) {
            return (self.breaker.state(now_ms) == BreakerState::Tripped).then_some(false);
        }
        if self.calls.free(now_ms) == 0 {
            return self.calls.is_slow(now_ms).then_some(false);
        }
        Some(true)
    }

    /// Whether a call to `capability` may begin now before anybody else's: nobody waits, there is room, and neither the breaker nor a rate has a say.
    pub fn idle(&mut self, now_ms: i64, capability: &str) -> bool {
        self.queue.is_empty()
            && self.credits != Some(0)
            && self.calls.free(now_ms) > 0
            && self.breaker.state(now_ms) == BreakerState::Passing
            && !self.buckets.contains_key(capability)
    }

    pub fn view(&self, agent: &AgentKey, now_ms: i64) -> LaneView {
        let pace = self.pace.view(now_ms);
        LaneView {
            agent: agent.clone(),
            waiting: self.queue.len(),
            places: self.places,
            retries: self.retries,
            in_flight: self.calls.in_flight(),
            limit: self.calls.limit(now_ms),
            breaker: self.breaker.state(now_ms).as_str(),
            p50_ms: pace.p50_ms,
            p95_ms: pace.p95_ms,
            success: pace.success,
            calls: pace.samples,
        }
    }
}
