//! Sliding windows: success of the last minute and the last day, latency of the last minute. Bounded memory, no clock inside.
//!
//! In: outcomes with `now_ms`. Out: rates (0..=1) and quantiles (ms); `None` without data, never a made-up number.
//! Invariant: a count is never negative; a step back of the clock loses data, never panics. Cost: O(1) to record; memory ≤ 2.5 KB an agent.

/// Samples kept for quantiles: in a busy minute these are the newest.
const SAMPLES: usize = 128;
/// Length of the short window, ms.
pub const MINUTE_MS: i64 = 60_000;

/// Counts in a ring of equal buckets that together cover one window.
#[derive(Clone, Debug)]
pub struct Counts {
    bucket_ms: i64,
    /// Number of the newest bucket since the epoch.
    newest: i64,
    ring: Box<[[u32; 2]]>,
}

impl Counts {
    /// A window of `buckets` × `bucket_ms`.
    pub fn new(buckets: usize, bucket_ms: i64) -> Self {
        Self { bucket_ms: bucket_ms.max(1), newest: i64::MIN, ring: vec![[0; 2]; buckets.max(1)].into() }
    }

    fn len(&self) -> i64 {
        i64::try_from(self.ring.len()).unwrap_or(i64::MAX)
    }

    /// Records one outcome.
    pub fn add(&mut self, now_ms: i64, good: bool) {
        let bucket = now_ms.div_euclid(self.bucket_ms);
        if bucket > self.newest {
            // forget the buckets that were passed over
            let passed = bucket.saturating_sub(self.newest).min(self.len());
            for back in 0..passed {
                self.clear(bucket - back);
            }
            self.newest = bucket;
        } else if self.newest - bucket >= self.len() {
            return;
        }
        let at = usize::try_from(bucket.rem_euclid(self.len())).unwrap_or(0);
        if let Some(count) = self.ring.get_mut(at).and_then(|b| b.get_mut(usize::from(!good))) {
            *count = count.saturating_add(1);
        }
    }

    fn clear(&mut self, bucket: i64) {
        let at = usize::try_from(bucket.rem_euclid(self.len())).unwrap_or(0);
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = [0; 2];
        }
    }

    /// Good and bad ones inside the window that ends at `now_ms`.
    pub fn totals(&self, now_ms: i64) -> (u64, u64) {
        let now = now_ms.div_euclid(self.bucket_ms);
        let oldest = now.saturating_sub(self.len() - 1).max(self.newest.saturating_sub(self.len() - 1));
        let (mut good, mut bad) = (0, 0);
        for bucket in oldest..=now.min(self.newest) {
            let at = usize::try_from(bucket.rem_euclid(self.len())).unwrap_or(0);
            if let Some([g, b]) = self.ring.get(at) {
                good += u64::from(*g);
                bad += u64::from(*b);
            }
        }
        (good, bad)
    }

    /// Share of good ones, if there is any.
    pub fn rate(&self, now_ms: i64) -> Option<f32> {
        let (good, bad) = self.totals(now_ms);
        (good + bad > 0).then(|| (good as f64 / (good + bad) as f64) as f32)
    }
}

/// Durations of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    ring: Vec<(i64, f32)>,
    next: usize,
}

/// Quantiles of the last minute, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Median.
    pub p50: f32,
    /// 90th percentile.
    pub p90: f32,
    /// 95th percentile.
    pub p95: f32,
}

impl Latency {
    /// Records a duration; one that is no duration is ignored.
    pub fn add(&mut self, now_ms: i64, ms: f32) {
        if !ms.is_finite() || ms < 0.0 {
            return;
        }
        match self.ring.get_mut(self.next) {
            Some(slot) => *slot = (now_ms, ms),
            None => self.ring.push((now_ms, ms)),
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    /// Quantiles (nearest rank) over what was recorded in the last minute.
    pub fn quantiles(&self, now_ms: i64) -> Option<Quantiles> {
        let mut recent: Vec<f32> = self.ring.iter().filter(|(at, _)| now_ms.saturating_sub(*at) < MINUTE_MS).map(|(_, ms)| *ms).collect();
        recent.sort_unstable_by(f32::total_cmp);
        let rank = |share: f64| {
            let at = ((share * recent.len() as f64).ceil() as usize).max(1) - 1;
            recent.get(at).copied()
        };
        Some(Quantiles { p50: rank(0.5)?, p90: rank(0.9)?, p95: rank(0.95)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_window_forgets() {
        let mut counts = Counts::new(12, 5_000);
        assert_eq!(counts.rate(0), None);
        for _ in 0..3 {
            counts.add(1_000, true);
        }
        counts.add(4_000, false);
        assert_eq!(counts.rate(4_000), Some(0.75));
        assert_eq!(counts.rate(59_000), Some(0.75));
        assert_eq!(counts.rate(61_000), None, "a minute later");
        counts.add(61_000, false);
        assert_eq!(counts.rate(61_000), Some(0.0));
    }

    #[test]
    fn quantiles_are_of_the_last_minute() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantiles(0), None);
        for i in 1..=100 {
            latency.add(i, i as f32);
        }
        assert_eq!(latency.quantiles(100), Some(Quantiles { p50: 50.0, p90: 90.0, p95: 95.0 }));
        latency.add(100, f32::NAN);
        latency.add(100, -1.0);
        latency.add(61_000, 7.0);
        assert_eq!(latency.quantiles(61_000), Some(Quantiles { p50: 7.0, p90: 7.0, p95: 7.0 }));
        for i in 0..10_000 {
            latency.add(61_000 + i, 1.0);
        }
        assert!(latency.ring.len() <= SAMPLES);
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_plain_list(events in prop::collection::vec((0i64..200_000, any::<bool>()), 0..60), now in 0i64..260_000) {
            let mut events = events;
            events.sort_unstable();
            let mut counts = Counts::new(12, 5_000);
            for (at, good) in &events {
                counts.add(*at, *good);
            }
            let last = events.last().map_or(0, |e| e.0);
            let now = now.max(last);
            // a bucket counts as a whole
            let from = (now.div_euclid(5_000) - 11) * 5_000;
            let expected = events.iter().filter(|(at, _)| *at >= from).count() as u64;
            let (good, bad) = counts.totals(now);
            prop_assert_eq!(good + bad, expected);
        }

        #[test]
        fn any_clock_is_safe(events in prop::collection::vec((any::<i64>(), any::<bool>()), 0..20), now in any::<i64>()) {
            let mut counts = Counts::new(24, 3_600_000);
            let mut latency = Latency::default();
            for (at, good) in events {
                counts.add(at, good);
                latency.add(at, 1.0);
            }
            prop_assert!(counts.rate(now).is_none_or(|r| (0.0..=1.0).contains(&r)));
            prop_assert!(latency.quantiles(now).is_none_or(|q| q.p50 == 1.0));
        }
    }
}
