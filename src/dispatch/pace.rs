//! How long one agent takes: P50, P95 and share of good calls of the last minute.
//!
//! In: durations in milliseconds of finished calls (a call that ran out of time counts with the time it had). Kept in logarithmic buckets, 12 % wide,
//! in six slots of 10 s. Invariant: a quantile is never below the true one and at most 12 % above. Cost: 6 × 128 counters an agent.
//! Not here: what others measured (`live`), time limits (`timeouts`).

/// Slots of [`SLOT_MS`] in the window.
const SLOTS: usize = 6;
/// Width of a slot.
const SLOT_MS: i64 = 10_000;
/// Ratio between two buckets.
const GROWTH: f64 = 1.12;
/// 1.12^127 ms is about half an hour; what takes longer counts as that.
const BUCKETS: usize = 128;

#[derive(Clone, Debug)]
struct Slot {
    number: i64,
    counts: [u32; BUCKETS],
    good: u32,
    bad: u32,
}

/// The window of one agent.
#[derive(Clone, Debug)]
pub struct Pace {
    slots: Vec<Slot>,
}

/// What the window says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PaceView {
    /// Finished calls in the window.
    pub samples: u32,
    /// Median, milliseconds.
    pub p50_ms: Option<u64>,
    /// 90 % are faster, milliseconds.
    pub p90_ms: Option<u64>,
    /// 95 % are faster, milliseconds.
    pub p95_ms: Option<u64>,
    /// Share of good calls; `None` without samples.
    pub success: Option<f64>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { slots: Vec::with_capacity(SLOTS) }
    }
}

impl Pace {
    /// Counts a call that took `ms`.
    pub fn add(&mut self, now_ms: i64, ms: u64, good: bool) {
        let number = now_ms.div_euclid(SLOT_MS);
        self.slots.retain(|s| s.number > number - SLOTS as i64 && s.number <= number);
        if self.slots.last().is_none_or(|s| s.number != number) {
            self.slots.push(Slot { number, counts: [0; BUCKETS], good: 0, bad: 0 });
        }
        if let Some(slot) = self.slots.last_mut() {
            if let Some(count) = slot.counts.get_mut(bucket(ms)) {
                *count += 1;
            }
            if good { slot.good += 1 } else { slot.bad += 1 }
        }
    }

    /// Median of the last 10 to 20 s if at least five calls ended in them, else of the minute, milliseconds.
    pub fn recent_p50(&self, now_ms: i64) -> Option<u64> {
        let recent = self.over(now_ms, 2);
        if recent.samples >= 5 { recent.p50_ms } else { self.view(now_ms).p50_ms }
    }

    /// What the last minute says.
    pub fn view(&self, now_ms: i64) -> PaceView {
        self.over(now_ms, SLOTS as i64)
    }

    fn over(&self, now_ms: i64, slots: i64) -> PaceView {
        let number = now_ms.div_euclid(SLOT_MS);
        let inside = || self.slots.iter().filter(|s| s.number > number - slots && s.number <= number);
        let mut counts = [0u32; BUCKETS];
        for slot in inside() {
            counts.iter_mut().zip(slot.counts).for_each(|(sum, n)| *sum += n);
        }
        let (good, bad) = inside().fold((0, 0), |(g, b), s| (g + s.good, b + s.bad));
        let samples = good + bad;
        if samples == 0 {
            return PaceView::default();
        }
        let quantile = |q: f64| {
            let rank = (f64::from(samples) * q).ceil() as u32;
            let mut seen = 0;
            counts.iter().position(|n| {
                seen += n;
                seen >= rank
            })
        };
        PaceView {
            samples,
            p50_ms: quantile(0.5).map(upper),
            p90_ms: quantile(0.9).map(upper),
            p95_ms: quantile(0.95).map(upper),
            success: Some(f64::from(good) / f64::from(samples)),
        }
    }
}

fn bucket(ms: u64) -> usize {
    let b = (ms.max(1) as f64).ln() / GROWTH.ln();
    (b.ceil() as usize).min(BUCKETS - 1)
}

fn upper(bucket: usize) -> u64 {
    GROWTH.powi(bucket as i32).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forgets_after_a_minute() {
        let mut p = Pace::default();
        p.add(0, 100, true);
        assert_eq!(p.view(59_999).samples, 1);
        assert_eq!(p.view(60_000), PaceView::default());
    }

    proptest! {
        #[test]
        fn a_quantile_is_close_and_not_below(mut ms in proptest::collection::vec(1u64..1_000_000, 1..200)) {
            let mut p = Pace::default();
            ms.iter().for_each(|m| p.add(0, *m, true));
            ms.sort_unstable();
            let v = p.view(0);
            for (q, got) in [(0.5, v.p50_ms), (0.95, v.p95_ms)] {
                let truth = ms[((ms.len() as f64 * q).ceil() as usize).max(1) - 1] as f64;
                let got = got.unwrap() as f64;
                prop_assert!(got >= truth && got <= truth * 1.121 + 1.0, "{got} for {truth}");
            }
        }
    }
}
