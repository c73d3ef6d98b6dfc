//! Demotion: three failures in a row take an agent out for a while; then it comes back slowly.
//!
//! Words: `Full` (all of its traffic), `Out` (none, until the cool-down is over), `Slow` (a growing share). A pure machine over `now_ms`.
//! Numbers: out for 30 s; then 5 % for 30 s, doubled every 10 s until 100 %. A failure while it comes back takes it out again.

/// Failures in a row that demote.
pub const FAILURES: u32 = 3;
/// How long a demoted agent is out, ms.
pub const COOL_DOWN_MS: i64 = 30_000;
/// First share of its traffic when it comes back.
const FIRST_SHARE: f32 = 0.05;
/// How long the first share holds, ms.
const FIRST_MS: i64 = 30_000;
/// After that the share doubles this often, ms.
const DOUBLE_MS: i64 = 10_000;

/// State of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demotion {
    failures: u32,
    /// When it was demoted last.
    since_ms: Option<i64>,
}

impl Demotion {
    /// Takes an outcome; whether it demoted the agent just now.
    pub fn on(&mut self, now_ms: i64, good: bool) -> bool {
        if good {
            self.failures = 0;
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let coming_back = self.since_ms.is_some() && self.share(now_ms) > 0.0 && self.share(now_ms) < 1.0;
        let demoted = self.failures >= FAILURES || coming_back;
        if demoted {
            self.since_ms = Some(now_ms);
            self.failures = 0;
        }
        demoted
    }

    /// Failures in a row so far.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Share of its normal traffic that it may take, 0..=1.
    pub fn share(&self, now_ms: i64) -> f32 {
        let Some(since) = self.since_ms else { return 1.0 };
        let back = now_ms.saturating_sub(since).saturating_sub(COOL_DOWN_MS);
        if back < 0 {
            return 0.0;
        }
        let doublings = back.saturating_sub(FIRST_MS).div_euclid(DOUBLE_MS).saturating_add(1).clamp(0, 10);
        (FIRST_SHARE * 2f32.powi(i32::try_from(doublings).unwrap_or(10))).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_row_and_a_slow_return() {
        let mut d = Demotion::default();
        assert!(!d.on(0, false) && !d.on(0, false) && !d.on(0, true) && !d.on(0, false) && !d.on(0, false));
        assert_eq!((d.share(0), d.failures()), (1.0, 2));
        assert!(d.on(0, false));
        for (at, share) in [
            (0, 0.0),
            (29_999, 0.0),
            (30_000, 0.05),
            (59_999, 0.05),
            (60_000, 0.1),
            (69_999, 0.1),
            (70_000, 0.2),
            (80_000, 0.4),
            (90_000, 0.8),
            (100_000, 1.0),
            (i64::MAX, 1.0),
        ] {
            assert!((d.share(at) - share).abs() < 1e-6, "at {at}: {}", d.share(at));
        }
    }

    #[test]
    fn a_failure_on_the_way_back_takes_it_out_again() {
        let mut d = Demotion::default();
        for _ in 0..2 {
            assert!(!d.on(0, false));
        }
        assert!(d.on(0, false));
        assert!(!d.on(65_000, true));
        assert!(d.on(65_000, false), "one is enough while it comes back");
        assert_eq!((d.share(90_000), d.share(95_000)), (0.0, 0.05));
        assert!(!d.on(200_000, false), "not when it is back");
    }
}
