//! Where the current View hangs: readers take it without a lock, the one writer swaps it whole.

use super::View;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// Holder of the current [`View`].
pub struct Views {
    current: ArcSwap<View>,
}

impl Views {
    /// Starts with `view`.
    pub fn new(view: View) -> Self {
        Self { current: ArcSwap::from_pointee(view) }
    }

    /// The current View. Cheap; take it once a decision.
    pub fn load(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Publishes what `change` makes of the current View, with the next generation. Several writers don't lose each other's changes.
    pub fn update(&self, change: impl Fn(&View) -> View) -> u64 {
        let mut generation = 0;
        self.current.rcu(|old| {
            let mut new = change(old);
            new.generation = old.generation + 1;
            generation = new.generation;
            new
        });
        generation
    }
}
