//! Capabilities that are announced and not searchable yet: a fleet that comes in many pieces counts as a whole from the first one on.
//!
//! In: how many will come, then how many came. Out: how many are left, which readiness reads beside `View::pending`.
//! Invariant: whatever was announced is taken back when its holder goes, also on an error. Not here: who announces.

use super::Ingest;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An announcement; what has not come is taken back with it.
#[derive(Debug)]
pub struct Awaited {
    all: Arc<AtomicUsize>,
    left: usize,
}

impl Awaited {
    /// `count` of the announced capabilities are searchable, or will never be.
    pub fn came(&mut self, count: usize) {
        let count = count.min(self.left);
        self.left -= count;
        self.all.fetch_sub(count, Ordering::AcqRel);
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.came(self.left);
    }
}

impl Ingest {
    /// Says that `count` capabilities are about to be registered: until they came nothing is ready.
    pub fn await_many(&self, count: usize) -> Awaited {
        self.awaited.fetch_add(count, Ordering::AcqRel);
        Awaited { all: self.awaited.clone(), left: count }
    }

    /// Capabilities that are known or announced and can't be found by meaning yet.
    pub fn left(&self) -> usize {
        self.awaited.load(Ordering::Acquire) + self.views.load().pending
    }
}
