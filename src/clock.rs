//! The only place that reads a clock. Everything else gets the time as a value or a [`Clock`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Source of time, so that tests and replay decide what time it is.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
    /// A monotonic instant.
    fn instant(&self) -> Instant;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn now_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    #[allow(clippy::disallowed_methods)]
    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still until it is told to move.
#[derive(Clone, Debug)]
pub struct ManualClock {
    ms: Arc<AtomicI64>,
    origin: Instant,
    start_ms: i64,
}

impl ManualClock {
    /// A clock that shows `at_ms`.
    pub fn at(at_ms: i64) -> Self {
        Self { ms: Arc::new(AtomicI64::new(at_ms)), origin: SystemClock.instant(), start_ms: at_ms }
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Sets it, forward or back.
    pub fn set(&self, at_ms: i64) {
        self.ms.store(at_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.ms.load(Ordering::SeqCst)
    }

    fn instant(&self) -> Instant {
        let since = u64::try_from(self.now_ms() - self.start_ms).unwrap_or(0);
        self.origin + Duration::from_millis(since)
    }
}
