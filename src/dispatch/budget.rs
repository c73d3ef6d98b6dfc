//! How many repetitions are paid for, so that a fault is not multiplied by everyone who tries again.
//!
//! Three limits: per target, retries ≤ 20 % of the first attempts of the last 10 s, at least 1 a second; over everything, retries of the last
//! minute ≤ max(first attempts, 60); in a target's queue, retries ≤ 30 % of its places.
//! In: the time in milliseconds. Invariant: over any span of `window_ms` that ends at a retry, the limit held. Cost: O(window in seconds).
//! Not here: pauses (`retry`), which message (`engine`).

use std::collections::VecDeque;

/// A limit on retries in relation to first attempts, over a sliding window.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    window_s: i64,
    share: f64,
    floor: u32,
    /// One slot a second: (second, first attempts, retries).
    slots: VecDeque<(i64, u32, u32)>,
}

impl RetryBudget {
    /// At most `share` of the first attempts of `window_s` seconds, but `floor` retries in that window anyway.
    pub fn new(window_s: i64, share: f64, floor: u32) -> Self {
        Self { window_s: window_s.max(1), share, floor, slots: VecDeque::new() }
    }

    /// 20 % of the first attempts of 10 s, at least 1 a second.
    pub fn of_target() -> Self {
        Self::new(10, 0.2, 10)
    }

    /// No more retries than first attempts in a minute, 60 anyway.
    pub fn of_all() -> Self {
        Self::new(60, 1.0, 60)
    }

    /// Counts a first attempt.
    pub fn first(&mut self, now_ms: i64) {
        self.slot(now_ms).1 += 1;
    }

    /// Whether a retry would be paid for now.
    pub fn allows(&mut self, now_ms: i64) -> bool {
        let (first, retries) = self.sums(now_ms);
        f64::from(retries + 1) <= (self.share * f64::from(first)).max(f64::from(self.floor))
    }

    /// Spends one retry if it is paid for.
    pub fn take(&mut self, now_ms: i64) -> bool {
        let ok = self.allows(now_ms);
        if ok {
            self.slot(now_ms).2 += 1;
        }
        ok
    }

    /// First attempts and retries that count now. Retries of the second that is half outside count, its first attempts don't: the safe side.
    pub fn sums(&mut self, now_ms: i64) -> (u32, u32) {
        let second = now_ms.div_euclid(1_000);
        self.forget(second);
        let half_out = second - self.window_s;
        self.slots.iter().fold((0, 0), |(f, r), s| (if s.0 == half_out { f } else { f + s.1 }, r + s.2))
    }

    fn forget(&mut self, second: i64) {
        let half_out = second - self.window_s;
        while self.slots.front().is_some_and(|s| s.0 < half_out) {
            self.slots.pop_front();
        }
        // after a step back of the clock
        while self.slots.back().is_some_and(|s| s.0 > second) {
            self.slots.pop_back();
        }
    }

    fn slot(&mut self, now_ms: i64) -> &mut (i64, u32, u32) {
        let second = now_ms.div_euclid(1_000);
        self.forget(second);
        if self.slots.back().is_none_or(|s| s.0 != second) {
            self.slots.push_back((second, 0, 0));
        }
        let last = self.slots.len() - 1;
        &mut self.slots[last]
    }
}

/// Whether one more retry may wait at a target that holds `retries` and has `places` in its queue.
pub fn fits_queue(retries: usize, places: u32) -> bool {
    retries < (places as usize * 3 / 10).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fifth_of_the_first_attempts_and_one_a_second() {
        let mut b = RetryBudget::of_target();
        assert_eq!((0..50).filter(|_| b.take(0)).count(), 10, "the floor, all at once");
        assert!(!b.take(9_999) && !b.take(10_999) && b.take(11_000));
        let mut b = RetryBudget::of_target();
        (0..1_000).for_each(|_| b.first(500));
        assert_eq!((0..500).filter(|_| b.take(600)).count(), 200);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_lock_it() {
        let mut b = RetryBudget::of_target();
        while b.take(3_600_000) {}
        assert!(b.take(0), "an hour back");
    }

    #[test]
    fn a_third_of_the_queue() {
        assert!(fits_queue(0, 1) && fits_queue(299, 1_000) && !fits_queue(300, 1_000) && fits_queue(0, 0));
    }

    proptest! {
        /// Toy model: a list of all times. Over any window that ends at a retry: retries ≤ max(share · first, floor).
        #[test]
        fn holds_over_every_window(steps in proptest::collection::vec((0i64..3_000, 0u8..4), 1..300)) {
            let mut b = RetryBudget::of_target();
            let (mut now, mut first, mut spent) = (0i64, Vec::new(), Vec::new());
            for (pause, what) in steps {
                now += pause;
                if what == 0 { b.first(now); first.push(now); }
                else if b.take(now) {
                    spent.push(now);
                    let inside = |list: &[i64]| list.iter().filter(|t| **t > now - 10_000).count() as f64;
                    prop_assert!(inside(&spent) <= (0.2 * inside(&first)).max(10.0));
                }
            }
        }

        /// It is not stricter than the same limit over one second more.
        #[test]
        fn is_not_needlessly_strict(steps in proptest::collection::vec((0i64..3_000, 0u8..4), 1..300)) {
            let mut b = RetryBudget::of_target();
            let (mut now, mut spent) = (0i64, Vec::new());
            for (pause, what) in steps {
                now += pause;
                if what == 0 { b.first(now); }
                else if b.take(now) { spent.push(now); }
                else { prop_assert!(spent.iter().filter(|t| **t > now - 11_000).count() >= 10); }
            }
        }
    }
}
