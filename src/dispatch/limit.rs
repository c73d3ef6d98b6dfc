//! How much one agent gets at once: concurrency with slow start, and a token bucket for each capability that slows down with the agent's backlog.
//!
//! Slow start (after a restart, or when a breaker passes again): 5 % of the concurrency for 30 s, then doubled every 10 s; at least one call.
//! Bucket: `per_second`, cut in proportion to the backlog that the agent reports, to a tenth at most.
//! Invariants: in flight is never negative and never above the limit when it takes; a bucket never holds more than its burst; time that goes
//! backwards gives nothing and takes nothing. Cost: O(1). Not here: who is next (`priority`), whether the agent works (`breaker`).

use crate::types::bucket::Bucket;
use crate::types::manifest::RateLimit;

/// First share of a slow start.
const START_SHARE: f64 = 0.05;
/// How long the first share holds, milliseconds.
const START_HOLD_MS: i64 = 30_000;
/// How long until it doubles, milliseconds.
const DOUBLE_MS: i64 = 10_000;

/// Calls at once to one agent.
#[derive(Clone, Debug)]
pub struct Concurrency {
    full: u32,
    in_flight: u32,
    slow_since_ms: Option<i64>,
}

impl Concurrency {
    /// At most `full` calls at once, at least one.
    pub fn new(full: u32) -> Self {
        Self { full: full.max(1), in_flight: 0, slow_since_ms: None }
    }

    /// Changes the full limit (a new manifest). Calls under way stay.
    pub fn set_full(&mut self, full: u32) {
        self.full = full.max(1);
    }

    /// Begins a slow start.
    pub fn start_slow(&mut self, now_ms: i64) {
        self.slow_since_ms = Some(now_ms);
    }

    /// Calls that may be under way now.
    pub fn limit(&self, now_ms: i64) -> u32 {
        let Some(since) = self.slow_since_ms else { return self.full };
        let past = now_ms.saturating_sub(since) - START_HOLD_MS;
        let doublings = if past < 0 { 0 } else { 1 + past / DOUBLE_MS };
        let share = START_SHARE * f64::powi(2.0, doublings.min(16) as i32);
        if share >= 1.0 { self.full } else { ((f64::from(self.full) * share) as u32).max(1) }
    }

    /// Whether it is still starting slowly.
    pub fn is_slow(&self, now_ms: i64) -> bool {
        self.slow_since_ms.is_some() && self.limit(now_ms) < self.full
    }

    /// Calls under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Calls that could be taken now.
    pub fn free(&self, now_ms: i64) -> u32 {
        self.limit(now_ms).saturating_sub(self.in_flight)
    }

    /// Takes a place if one is free.
    pub fn take(&mut self, now_ms: i64) -> bool {
        let ok = self.free(now_ms) > 0;
        self.in_flight += u32::from(ok);
        ok
    }

    /// Takes a place without asking: a call that is under way already (found in the store at start).
    pub fn occupy(&mut self) {
        self.in_flight += 1;
    }

    /// Gives a place back.
    pub fn give_back(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

/// Calls a second to one capability of one agent.
#[derive(Clone, Debug)]
pub struct Paced(Bucket);

impl Paced {
    /// A full bucket.
    pub fn new(limit: &RateLimit, now_ms: i64) -> Self {
        Self(Bucket::full(limit.per_second, f64::from(limit.burst), now_ms))
    }

    /// Whether a call may go. `backlog` is the agent's own queue as a share of its places, 0..=1.
    pub fn ready(&mut self, now_ms: i64, backlog: f64) -> bool {
        self.0.refill(now_ms, (1.0 - backlog.clamp(0.0, 1.0)).max(0.1));
        self.0.has()
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now_ms: i64, backlog: f64) -> bool {
        self.ready(now_ms, backlog) && self.0.take()
    }

    /// Milliseconds until the next token at the full rate; 0 when there is one.
    pub fn wait_ms(&self) -> i64 {
        self.0.wait_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slow_start_holds_then_doubles() {
        let mut c = Concurrency::new(100);
        c.start_slow(0);
        let at: Vec<u32> = [0, 29_999, 30_000, 40_000, 50_000, 60_000, 70_000].iter().map(|t| c.limit(*t)).collect();
        assert_eq!(at, [5, 5, 10, 20, 40, 80, 100]);
        let mut small = Concurrency::new(5);
        small.start_slow(0);
        assert_eq!(small.limit(0), 1, "one call at least");
    }

    #[test]
    fn in_flight_never_goes_negative() {
        let mut c = Concurrency::new(2);
        c.give_back();
        assert!(c.take(0) && c.take(0) && !c.take(0));
        c.set_full(1);
        c.give_back();
        assert!(!c.take(0), "one is still under way");
        c.give_back();
        c.give_back();
        assert_eq!(c.in_flight(), 0);
        assert!(c.take(0));
    }

    #[test]
    fn a_backlog_slows_the_bucket_down() {
        let limit = RateLimit { per_second: 10.0, burst: 10 };
        let count = |backlog: f64| {
            let mut b = Paced::new(&limit, 0);
            (0..10_000).filter(|ms| b.take(*ms, backlog)).count()
        };
        assert!((108..=110).contains(&count(0.0)), "{}", count(0.0));
        assert!((58..=61).contains(&count(0.5)), "{}", count(0.5));
        assert!((18..=21).contains(&count(1.0)), "{}", count(1.0));
    }

    proptest! {
        #[test]
        fn a_bucket_keeps_its_rate(pauses in proptest::collection::vec(-500i64..2_000, 1..200), rate in 1u32..50, burst in 1u32..20) {
            let mut b = Paced::new(&RateLimit { per_second: f64::from(rate), burst }, 0);
            let (mut now, mut forward, mut taken) = (0i64, 0i64, 0u32);
            for p in pauses {
                now += p;
                forward += p.max(0);
                taken += u32::from(b.take(now, 0.0));
                prop_assert!(f64::from(taken) <= f64::from(burst) + f64::from(rate) * forward as f64 / 1_000.0 + 1e-6);
            }
        }
    }
}
