//! A set of slots, a bit each: what a search may look at beyond visibility.
//!
//! Slots are numbers that only grow, so the set is as long as the largest. Cost: a look-up is one read.

use std::sync::Arc;

/// See the head of this file. Cheap to clone; a change copies it where a clone is held.
#[derive(Clone, Debug, Default)]
pub struct Slots(Arc<Vec<u64>>);

impl Slots {
    /// Whether a slot is in it.
    #[inline]
    pub fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Puts slots in.
    pub fn extend(&mut self, slots: impl IntoIterator<Item = u32>) {
        let mut slots = slots.into_iter().peekable();
        if slots.peek().is_none() {
            return;
        }
        let words = Arc::make_mut(&mut self.0);
        for slot in slots {
            let at = slot as usize / 64;
            if words.len() <= at {
                words.resize(at + 1, 0);
            }
            if let Some(word) = words.get_mut(at) {
                *word |= 1 << (slot % 64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_there_and_clones_stand_still() {
        let mut slots = Slots::default();
        let empty = slots.clone();
        slots.extend([0, 63, 64, 1_000]);
        assert!([0, 63, 64, 1_000].into_iter().all(|s| slots.contains(s)));
        assert!([1, 62, 65, 999, 1_001, u32::MAX].into_iter().all(|s| !slots.contains(s)));
        assert!(!empty.contains(0));
    }
}
