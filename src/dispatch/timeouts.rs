//! The three time limits of a delivery.
//!
//! connect = 2 s unless the manifest says otherwise; processing = what the caller asked for, else the P95 of the agent at this capability × 1.75, until that
//! is known by the class of the capability (5 s, 60 s, 15 min by its latency hint); total = what is left of the ttl and of the chain's budget.
//! Invariants: no limit is longer than what is left; a measured limit is never under the hint's headroom, nor under the shortest class.
//! Cost: a few operations. Not here: measuring (`pace`), what follows (`retry`).

use crate::dispatch::pace::PaceView;
use std::time::Duration;

/// Headroom over the measured P95.
pub const HEADROOM: f64 = 1.75;
/// Calls that it takes to trust the measurement.
pub const MIN_SAMPLES: u32 = 20;
/// Longest processing time that a measurement can lead to.
pub const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Shortest processing time that a measurement can lead to: that of the quickest class, for quick answers say nothing of the odd slow one.
pub const SHORTEST: Duration = Duration::from_secs(5);
/// Time to connect.
pub const CONNECT: Duration = Duration::from_secs(2);

/// What is known about a delivery.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The manifest's limit to connect.
    pub connect: Option<Duration>,
    /// The manifest's processing time.
    pub suggested: Option<Duration>,
    /// The capability's latency hint.
    pub hint: Option<Duration>,
    /// What was measured.
    pub pace: PaceView,
    /// The caller's own limit for one attempt.
    pub caller: Option<Duration>,
    /// What is left of ttl and chain.
    pub left: Duration,
}

/// The limits of one delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// To connect.
    pub connect: Duration,
    /// From the start of the delivery, or from the last sign of life, to the end.
    pub processing: Duration,
    /// Everything.
    pub total: Duration,
}

/// The class of a capability whose pace is not known.
pub fn class_of(hint: Option<Duration>) -> Duration {
    match hint {
        Some(h) if h <= Duration::from_secs(2) => SHORTEST,
        None => Duration::from_secs(60),
        Some(h) if h <= Duration::from_secs(30) => Duration::from_secs(60),
        Some(_) => LONGEST,
    }
}

/// The limits of a delivery that begins now.
pub fn limits(known: &Known) -> Limits {
    let unknown = known.suggested.unwrap_or_else(|| class_of(known.hint));
    let measured = known.pace.p95_ms.filter(|_| known.pace.samples >= MIN_SAMPLES).map(|p95| Duration::from_millis(p95).mul_f64(HEADROOM));
    let floor = known.hint.map_or(SHORTEST, |h| h.mul_f64(HEADROOM).max(SHORTEST)).min(LONGEST);
    let own = match (measured, known.suggested) {
        // what the owner wrote is a floor: a measurement of a quiet hour must not cut its long jobs
        (Some(m), Some(s)) => m.clamp(floor, LONGEST).max(s),
        (Some(m), None) => m.clamp(floor, LONGEST),
        (None, _) => unknown,
    };
    let processing = known.caller.unwrap_or(own).min(known.left);
    Limits { connect: known.connect.unwrap_or(CONNECT).min(known.left), processing, total: known.left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn known() -> Known {
        Known { left: S(3_600), ..Known::default() }
    }

    #[test]
    fn classes_hold_until_the_pace_is_known() {
        let at = |hint: Option<u64>| limits(&Known { hint: hint.map(Duration::from_millis), ..known() }).processing;
        assert_eq!([at(Some(800)), at(None), at(Some(20_000)), at(Some(120_000))], [S(5), S(60), S(60), S(900)]);
    }

    #[test]
    fn a_measured_pace_gets_headroom() {
        let pace = PaceView { samples: 20, p95_ms: Some(4_000), ..PaceView::default() };
        assert_eq!(limits(&Known { pace, ..known() }).processing, S(7));
        let few = PaceView { samples: 19, ..pace };
        assert_eq!(limits(&Known { pace: few, ..known() }).processing, S(60));
        assert_eq!(limits(&Known { pace, suggested: Some(S(240)), ..known() }).processing, S(240), "a configured timeout is applied");
    }

    #[test]
    fn nothing_outlives_the_chain() {
        let l = limits(&Known { left: Duration::from_millis(700), ..known() });
        assert_eq!(
            (l.connect, l.processing, l.total),
            (Duration::from_millis(700), Duration::from_millis(700), Duration::from_millis(700))
        );
        assert_eq!(limits(&Known { caller: Some(S(1)), ..known() }).processing, S(1));
        let pace = PaceView { samples: 50, p95_ms: Some(20), ..PaceView::default() };
        assert_eq!(limits(&Known { pace, ..known() }).processing, S(5), "quick answers cut no slow one short");
        assert_eq!(limits(&Known { pace, caller: Some(S(10)), ..known() }).processing, S(10), "who waits says how long");
    }

    proptest! {
        #[test]
        fn limits_are_ordered(hint in proptest::option::of(0u64..1_000_000), p95 in proptest::option::of(1u64..10_000_000), left in 0u64..10_000_000, caller in proptest::option::of(1u64..1_000_000)) {
            let ms = Duration::from_millis;
            let pace = PaceView { samples: 99, p95_ms: p95, ..PaceView::default() };
            let l = limits(&Known { hint: hint.map(ms), pace, left: ms(left), caller: caller.map(ms), ..Known::default() });
            prop_assert!(l.processing <= l.total && l.connect <= l.total && l.processing <= caller.map_or(LONGEST, ms));
        }
    }
}
