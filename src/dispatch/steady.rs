//! Milliseconds that only go forward: the wall clock read once, then the monotonic clock.
//!
//! A step of the wall clock by an hour neither expires nor revives a message. Not here: reading clocks (`clock`).

use crate::clock::Clock;
use std::sync::Arc;
use std::time::Instant;

/// A clock for leases and lives.
#[derive(Clone)]
pub struct Steady {
    clock: Arc<dyn Clock>,
    wall_ms: i64,
    since: Instant,
}

impl Steady {
    /// Starts at the wall clock's time.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { wall_ms: clock.now_ms(), since: clock.instant(), clock }
    }

    /// Milliseconds since the epoch, by the time that passed since the start.
    pub fn now_ms(&self) -> i64 {
        let passed = self.clock.instant().saturating_duration_since(self.since);
        self.wall_ms.saturating_add(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    /// A wall clock that jumps while the other one walks.
    struct Jumpy {
        wall: AtomicI64,
        start: Instant,
        walked_ms: AtomicI64,
    }

    impl Clock for Jumpy {
        fn now_ms(&self) -> i64 {
            self.wall.load(Ordering::SeqCst)
        }

        fn instant(&self) -> Instant {
            self.start + Duration::from_millis(self.walked_ms.load(Ordering::SeqCst) as u64)
        }
    }

    #[test]
    fn steps_of_the_wall_clock_do_not_move_it() {
        let start = crate::clock::SystemClock.instant();
        let clock = Arc::new(Jumpy { wall: AtomicI64::new(1_000), start, walked_ms: AtomicI64::new(0) });
        let steady = Steady::new(clock.clone());
        for step in [3_600_000, -3_600_000] {
            clock.wall.store(1_000 + step, Ordering::SeqCst);
            clock.walked_ms.fetch_add(5, Ordering::SeqCst);
        }
        assert_eq!(steady.now_ms(), 1_010);
    }
}
