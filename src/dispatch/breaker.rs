//! Keeps work away from an agent that fails: `Passing`, `Tripped`, `Probing`.
//!
//! In: the time in milliseconds, and how a call ended. Out: whether a call may go, and changes of state.
//! `Passing` → `Tripped` when less than `min_success` of at least `min_samples` calls of the last `window` went well; `Tripped` for `pause`, then
//! `Probing`: one call at a time, `good_probes` good ones in a row → `Passing`, one bad one → `Tripped`.
//! Invariants: at most one probe is out; a busy answer (429) is neither good nor bad; a result of a call that was let go before the breaker
//! tripped moves nothing afterwards. Cost: O(window in seconds). Not here: slow start after it passes again (`limit`).

use std::collections::VecDeque;

/// When to trip and when to trust again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerConfig {
    /// Span of the window in milliseconds.
    pub window_ms: i64,
    /// Share of good calls below which it trips. Range 0..=1.
    pub min_success: f64,
    /// Calls that it takes to judge.
    pub min_samples: u32,
    /// How long it stays tripped, milliseconds.
    pub pause_ms: i64,
    /// Good probes in a row that it takes to pass again.
    pub good_probes: u32,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { window_ms: 10_000, min_success: 0.3, min_samples: 5, pause_ms: 15_000, good_probes: 3 }
    }
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything goes.
    Passing,
    /// Nothing goes.
    Tripped,
    /// One call at a time goes.
    Probing,
}

impl BreakerState {
    /// The name in metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Tripped => "tripped",
            Self::Probing => "probing",
        }
    }
}

/// How a call ended, as the breaker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent answered: done, rejected, refused the payload.
    Good,
    /// The agent failed: no connection, broken, out of time, asked for another attempt.
    Bad,
    /// The agent is busy or the call was called off: says nothing about whether it works.
    Neutral,
}

/// Leave to make one call; handed back with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Which stretch of passing or probing gave it.
    epoch: u64,
    /// Whether it is a probe.
    pub probe: bool,
}

/// The breaker of one agent.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: BreakerState,
    epoch: u64,
    tripped_ms: i64,
    probe_out: bool,
    good_in_row: u32,
    /// One slot a second: (second, good, bad).
    slots: VecDeque<(i64, u32, u32)>,
}

impl Breaker {
    /// A passing breaker.
    pub fn new(config: BreakerConfig) -> Self {
        let slots = VecDeque::new();
        Self { config, state: BreakerState::Passing, epoch: 0, tripped_ms: 0, probe_out: false, good_in_row: 0, slots }
    }

    /// Where it stands now.
    pub fn state(&self, now_ms: i64) -> BreakerState {
        match self.state {
            BreakerState::Tripped if now_ms.saturating_sub(self.tripped_ms) >= self.config.pause_ms => BreakerState::Probing,
            BreakerState::Tripped => BreakerState::Tripped,
            BreakerState::Passing => BreakerState::Passing,
            BreakerState::Probing => BreakerState::Probing,
        }
    }

    /// Whether a call may go now, without taking leave for it.
    pub fn would_admit(&self, now_ms: i64) -> bool {
        match self.state(now_ms) {
            BreakerState::Passing => true,
            BreakerState::Tripped => false,
            BreakerState::Probing => !self.probe_out,
        }
    }

    /// When it is worth asking again: the end of the pause.
    pub fn until_ms(&self, now_ms: i64) -> Option<i64> {
        (self.state(now_ms) == BreakerState::Tripped).then(|| self.tripped_ms.saturating_add(self.config.pause_ms))
    }

    /// Leave for one call, if it may go. Every permit must come back through [`Breaker::on`].
    pub fn admit(&mut self, now_ms: i64) -> Option<Permit> {
        self.tick(now_ms);
        match self.state {
            BreakerState::Passing => Some(Permit { epoch: self.epoch, probe: false }),
            BreakerState::Tripped => None,
            BreakerState::Probing if self.probe_out => None,
            BreakerState::Probing => {
                self.probe_out = true;
                Some(Permit { epoch: self.epoch, probe: true })
            }
        }
    }

    /// Takes the verdict of a call. Answers the new state when it changed.
    pub fn on(&mut self, now_ms: i64, permit: Permit, verdict: Verdict) -> Option<BreakerState> {
        self.tick(now_ms);
        if permit.epoch != self.epoch {
            return None;
        }
        match (self.state, verdict) {
            (BreakerState::Passing, Verdict::Neutral) | (BreakerState::Tripped, _) => None,
            (BreakerState::Passing, verdict) => {
                self.count(now_ms, verdict == Verdict::Good);
                self.too_bad(now_ms).then(|| self.trip(now_ms))
            }
            (BreakerState::Probing, _) if !permit.probe => None,
            (BreakerState::Probing, Verdict::Neutral) => {
                self.probe_out = false;
                None
            }
            (BreakerState::Probing, Verdict::Bad) => Some(self.trip(now_ms)),
            (BreakerState::Probing, Verdict::Good) => {
                self.probe_out = false;
                self.good_in_row += 1;
                if self.good_in_row < self.config.good_probes {
                    return None;
                }
                self.epoch += 1;
                self.slots.clear();
                self.state = BreakerState::Passing;
                Some(BreakerState::Passing)
            }
        }
    }

    /// Lets the time pass: after the pause it probes. Answers the new state when it changed.
    pub fn tick(&mut self, now_ms: i64) -> Option<BreakerState> {
        if self.state == BreakerState::Tripped && self.state(now_ms) == BreakerState::Probing {
            self.state = BreakerState::Probing;
            self.epoch += 1;
            self.probe_out = false;
            self.good_in_row = 0;
            return Some(BreakerState::Probing);
        }
        None
    }

    /// Forgets calls that are out: their results will not come (messages were given up in bulk).
    pub fn abandon(&mut self) {
        self.probe_out = false;
        self.epoch += 1;
    }

    fn trip(&mut self, now_ms: i64) -> BreakerState {
        self.epoch += 1;
        self.state = BreakerState::Tripped;
        self.tripped_ms = now_ms;
        self.probe_out = false;
        self.slots.clear();
        BreakerState::Tripped
    }

    fn count(&mut self, now_ms: i64, good: bool) {
        let second = now_ms.div_euclid(1_000);
        if self.slots.back().is_none_or(|s| s.0 != second) {
            self.slots.push_back((second, 0, 0));
        }
        if let Some(slot) = self.slots.back_mut() {
            if good { slot.1 += 1 } else { slot.2 += 1 }
        }
        let oldest = (now_ms - self.config.window_ms).div_euclid(1_000);
        // a clock that stepped back leaves slots of the future: they are dropped as well
        self.slots.retain(|s| s.0 > oldest && s.0 <= second);
    }

    fn too_bad(&self, _now_ms: i64) -> bool {
        let (good, bad) = self.slots.iter().fold((0u32, 0u32), |(g, b), s| (g + s.1, b + s.2));
        good + bad >= self.config.min_samples && f64::from(good) < self.config.min_success * f64::from(good + bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: i64 = 1_000;

    fn fail(b: &mut Breaker, now: i64, n: u32) {
        for _ in 0..n {
            if let Some(p) = b.admit(now) {
                b.on(now, p, Verdict::Bad);
            }
        }
    }

    #[test]
    fn trips_pauses_probes_and_passes() {
        let mut b = Breaker::new(BreakerConfig::default());
        fail(&mut b, 0, 4);
        assert_eq!(b.state(0), BreakerState::Passing, "four samples are too few to judge");
        fail(&mut b, 0, 1);
        assert_eq!(b.state(0), BreakerState::Tripped);
        assert!(b.admit(15 * S - 1).is_none());
        for i in 0..3 {
            let p = b.admit(15 * S + i).expect("a probe");
            assert!(p.probe && b.admit(15 * S + i).is_none(), "one at a time");
            let change = b.on(15 * S + i, p, Verdict::Good);
            assert_eq!(change, (i == 2).then_some(BreakerState::Passing));
        }
    }

    #[test]
    fn a_bad_probe_trips_again() {
        let mut b = Breaker::new(BreakerConfig::default());
        fail(&mut b, 0, 5);
        let p = b.admit(15 * S).unwrap();
        assert_eq!(b.on(16 * S, p, Verdict::Bad), Some(BreakerState::Tripped));
        assert!(b.admit(31 * S - 1).is_none() && b.admit(31 * S).is_some());
    }

    #[test]
    fn a_third_of_good_calls_is_enough() {
        let mut b = Breaker::new(BreakerConfig::default());
        for i in 0..30 {
            let p = b.admit(0).unwrap();
            b.on(0, p, if i % 3 == 0 { Verdict::Good } else { Verdict::Bad });
        }
        assert_eq!(b.state(0), BreakerState::Passing);
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut b = Breaker::new(BreakerConfig::default());
        fail(&mut b, 0, 4);
        fail(&mut b, 11 * S, 1);
        assert_eq!(b.state(11 * S), BreakerState::Passing);
    }

    #[test]
    fn busy_answers_never_trip_and_free_the_probe() {
        let mut b = Breaker::new(BreakerConfig::default());
        for _ in 0..100 {
            let p = b.admit(0).unwrap();
            b.on(0, p, Verdict::Neutral);
        }
        assert_eq!(b.state(0), BreakerState::Passing);
        fail(&mut b, 0, 5);
        let p = b.admit(15 * S).unwrap();
        b.on(15 * S, p, Verdict::Neutral);
        assert!(b.admit(15 * S).is_some(), "the next probe may go");
    }

    #[test]
    fn late_results_from_before_the_trip_move_nothing() {
        let mut b = Breaker::new(BreakerConfig::default());
        let early: Vec<Permit> = (0..10).map(|_| b.admit(0).unwrap()).collect();
        fail(&mut b, 0, 5);
        for p in early {
            assert_eq!(b.on(16 * S, p, Verdict::Good), None);
        }
        assert_eq!(b.state(16 * S), BreakerState::Probing);
    }

    /// Toy model of the window: keep every sample, count them all again each time.
    #[derive(Default)]
    struct Toy {
        samples: Vec<(i64, bool)>,
    }

    impl Toy {
        fn trips(&mut self, now: i64, good: bool) -> bool {
            self.samples.push((now, good));
            let inside: Vec<bool> =
                self.samples.iter().filter(|s| s.0.div_euclid(1_000) > (now - 10_000).div_euclid(1_000)).map(|s| s.1).collect();
            inside.len() >= 5 && (inside.iter().filter(|g| **g).count() as f64) < 0.3 * inside.len() as f64
        }
    }

    proptest! {
        #[test]
        fn trips_exactly_when_the_toy_does(steps in proptest::collection::vec((0i64..4_000, any::<bool>()), 1..120)) {
            let (mut b, mut toy, mut now) = (Breaker::new(BreakerConfig::default()), Toy::default(), 0);
            for (pause, good) in steps {
                now += pause;
                let p = b.admit(now).expect("passing");
                let tripped = b.on(now, p, if good { Verdict::Good } else { Verdict::Bad }) == Some(BreakerState::Tripped);
                prop_assert_eq!(tripped, toy.trips(now, good));
                if tripped { break; }
            }
        }

        #[test]
        fn never_two_probes(steps in proptest::collection::vec((0i64..20_000, 0u8..4), 1..200)) {
            let (mut b, mut now, mut out) = (Breaker::new(BreakerConfig::default()), 0, Vec::new());
            for (pause, what) in steps {
                now += pause;
                match what {
                    0 | 1 => out.extend(b.admit(now)),
                    2 => if let Some(p) = out.pop() { b.on(now, p, Verdict::Bad); },
                    _ => if let Some(p) = out.pop() { b.on(now, p, Verdict::Good); },
                }
                let epoch = b.epoch;
                prop_assert!(out.iter().filter(|p: &&Permit| p.probe && p.epoch == epoch).count() <= 1);
            }
        }
    }
}
