//! What follows a failed attempt: classify → budget → clamp → jitter, each pure.
//!
//! In: how the attempt ended, how many there were, what the agent asked for, what is known of its pace. Out: [`Next`].
//! delay = clamp(max(min(base·2ⁿ, max), hint, P50 of the same agent)) + random(0..max(jitter·delay, 50 ms)); the jitter lies outside the cap.
//! Invariants: at most `max_attempts` attempts in all; nothing is planned past the ttl; the same agent is never asked sooner than its P50; a
//! pending delivery is waited for, never repeated. Cost: a few operations. Not here: the budget itself (`budget`), who else could do it (`NextTarget`).

use crate::error::Class;
use crate::types::manifest::Retry;
use crate::types::message::{Cause, DeadTag};
use std::time::Duration;

/// Longest pause that an agent's `Retry-After` can ask for.
pub const MAX_HINT: Duration = Duration::from_secs(60);
/// Least spread of the jitter.
pub const JITTER_FLOOR: Duration = Duration::from_millis(50);

/// An attempt that ended badly.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// Attempts so far, this one included.
    pub attempts: u32,
    /// What the agent asked for.
    pub retry_after: Option<Duration>,
    /// Whether the work may have been done although no answer came: it was accepted, or sent whole over a call that gives no receipts.
    pub may_have_run: bool,
    /// Whether doing it twice is the same as once.
    pub idempotent: bool,
    /// Median duration of the same agent in the last minute, if known.
    pub p50: Option<Duration>,
    /// Time left until the message is over.
    pub left: Duration,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Ask another agent at once; the same one after the pause when there is no other.
    Retry {
        /// Pause before the *same* agent; `None` when it must not be asked again.
        same_after: Option<Duration>,
    },
    /// Give up: dead letter.
    Dead(DeadTag),
    /// Tell the caller: no attempt can help.
    Failed,
}

/// What a caller of the agent may do about a cause.
pub fn class(cause: Cause) -> Class {
    match cause {
        Cause::Connect | Cause::Broken | Cause::Busy | Cause::Timeout | Cause::Nack | Cause::Restart | Cause::Blocked => Class::Retry,
        Cause::Refused | Cause::Payload | Cause::Schema => Class::Final,
    }
}

/// Whether the request had left and nothing says that it was not carried out: a limit that passed, a connection that broke before the whole answer was
/// here, our own end while it was out.
pub fn is_unclear(cause: Cause) -> bool {
    matches!(cause, Cause::Timeout | Cause::Broken | Cause::Restart)
}

/// The pause before attempt `retry` (1 = the first repetition). `roll` is even chance, 0..1.
pub fn delay(policy: &Retry, retry: u32, hint: Option<Duration>, p50: Option<Duration>, roll: f64) -> Duration {
    let doubled = policy.base.saturating_mul(1u32.checked_shl(retry.saturating_sub(1)).unwrap_or(u32::MAX));
    let mut pause = doubled.min(policy.max);
    if let Some(hint) = hint {
        pause = pause.max(hint.clamp(policy.base, MAX_HINT.max(policy.base)));
    }
    if let Some(p50) = p50 {
        pause = pause.max(p50);
    }
    let spread = pause.mul_f64(policy.jitter.clamp(0.0, 1.0)).max(JITTER_FLOOR);
    pause + spread.mul_f64(roll.clamp(0.0, 1.0))
}

/// Decides what follows. The budget is asked by the caller when the retry would really be spent.
pub fn plan(policy: &Retry, failure: &Failure, roll: f64) -> Next {
    match class(failure.cause) {
        Class::Final | Class::Wait => return Next::Failed,
        Class::Retry => {}
    }
    if is_unclear(failure.cause) && failure.may_have_run && !failure.idempotent {
        return Next::Dead(if failure.cause == Cause::Timeout { DeadTag::ProcessingTimeout } else { DeadTag::RetriesExhausted });
    }
    if failure.attempts >= policy.max_attempts {
        let tag = if failure.cause == Cause::Busy {
            DeadTag::AgentBusy
        } else if failure.cause == Cause::Timeout && failure.attempts == 1 {
            DeadTag::ProcessingTimeout
        } else {
            DeadTag::RetriesExhausted
        };
        return Next::Dead(tag);
    }
    if failure.left.is_zero() {
        return Next::Dead(DeadTag::TtlExpired);
    }
    let pause = delay(policy, failure.attempts, failure.retry_after, failure.p50, roll);
    let again = failure.cause != Cause::Blocked && pause < failure.left;
    Next::Retry { same_after: again.then_some(pause) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::message::default_retry;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn failure(cause: Cause, attempts: u32) -> Failure {
        Failure { cause, attempts, retry_after: None, may_have_run: false, idempotent: false, p50: None, left: Duration::from_secs(30) }
    }

    #[test]
    fn the_pause_doubles_up_to_its_cap_and_the_jitter_lies_outside() {
        let p = default_retry();
        let bare: Vec<u128> = (1..=6).map(|n| delay(&p, n, None, None, 0.0).as_millis()).collect();
        assert_eq!(bare, [200, 400, 800, 1600, 3200, 5000]);
        assert_eq!(delay(&p, 6, None, None, 1.0).as_millis(), 6250);
        assert_eq!(delay(&p, 1, None, None, 1.0).as_millis(), 250, "at least 50 ms of jitter");
        assert_eq!(delay(&p, 400, None, None, 0.0).as_millis(), 5000, "no overflow");
    }

    #[test]
    fn hints_are_honoured_and_bounded() {
        let p = default_retry();
        assert_eq!(delay(&p, 1, Some(Duration::from_secs(20)), None, 0.0), Duration::from_secs(20));
        assert_eq!(delay(&p, 1, Some(Duration::from_secs(86_400)), None, 0.0), MAX_HINT);
        assert_eq!(delay(&p, 1, Some(Duration::ZERO), None, 0.0), 200 * MS, "a zero hint is no licence to hammer");
        assert_eq!(delay(&p, 1, None, Some(Duration::from_secs(12)), 0.0), Duration::from_secs(12), "never sooner than its P50");
    }

    #[test]
    fn only_what_can_help_is_repeated() {
        let p = default_retry();
        for cause in [Cause::Refused, Cause::Payload, Cause::Schema] {
            assert_eq!(plan(&p, &failure(cause, 1), 0.5), Next::Failed, "{cause:?}");
        }
        for cause in [Cause::Connect, Cause::Broken, Cause::Busy, Cause::Nack] {
            assert!(matches!(plan(&p, &failure(cause, 1), 0.5), Next::Retry { same_after: Some(_) }), "{cause:?}");
            let tag = if cause == Cause::Busy { DeadTag::AgentBusy } else { DeadTag::RetriesExhausted };
            assert_eq!(plan(&p, &failure(cause, 5), 0.5), Next::Dead(tag));
        }
        assert_eq!(plan(&p, &failure(Cause::Blocked, 1), 0.5), Next::Retry { same_after: None }, "a blocked address is not asked again");
    }

    #[test]
    fn work_that_may_have_run_is_repeated_only_when_that_is_safe() {
        let p = default_retry();
        let ran = Failure { may_have_run: true, ..failure(Cause::Timeout, 1) };
        assert_eq!(plan(&p, &ran, 0.5), Next::Dead(DeadTag::ProcessingTimeout));
        assert!(matches!(plan(&p, &Failure { idempotent: true, ..ran }, 0.5), Next::Retry { .. }));
        let restart = Failure { cause: Cause::Restart, ..ran };
        assert_eq!(plan(&p, &restart, 0.5), Next::Dead(DeadTag::RetriesExhausted), "our own end says nothing of what the agent did");
        // a connection that broke after the request had left
        let broken = Failure { cause: Cause::Broken, ..ran };
        assert_eq!(plan(&p, &broken, 0.5), Next::Dead(DeadTag::RetriesExhausted));
        assert!(matches!(plan(&p, &Failure { idempotent: true, ..broken }, 0.5), Next::Retry { .. }));
        assert!(
            matches!(plan(&p, &Failure { may_have_run: true, ..failure(Cause::Connect, 1) }, 0.5), Next::Retry { .. }),
            "it never left"
        );
        assert!(matches!(plan(&p, &failure(Cause::Timeout, 1), 0.5), Next::Retry { .. }), "never accepted: safe");
    }

    #[test]
    fn nothing_is_planned_past_the_ttl() {
        let p = default_retry();
        let late = Failure { left: 100 * MS, ..failure(Cause::Nack, 1) };
        assert_eq!(plan(&p, &late, 0.0), Next::Retry { same_after: None });
        assert_eq!(plan(&p, &Failure { left: Duration::ZERO, ..late }, 0.0), Next::Dead(DeadTag::TtlExpired));
    }

    proptest! {
        #[test]
        fn a_pause_is_bounded_and_spread(n in 1u32..50, hint in proptest::option::of(0u64..10_000_000), p50 in proptest::option::of(0u64..100_000), roll in 0.0f64..1.0) {
            let p = default_retry();
            let d = delay(&p, n, hint.map(Duration::from_millis), p50.map(Duration::from_millis), roll);
            let cap = p.max.max(if hint.is_some() { MAX_HINT } else { Duration::ZERO }).max(Duration::from_millis(p50.unwrap_or(0)));
            prop_assert!(d >= p.base && d >= Duration::from_millis(p50.unwrap_or(0)));
            prop_assert!(d <= cap.mul_f64(1.25) + JITTER_FLOOR);
        }
    }
}
