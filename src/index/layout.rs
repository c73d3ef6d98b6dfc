//! Where the documents of one part stand: ordered by class, then slot, so that what a principal sees is a few ranges.
//!
//! Invariant: no two documents of a part have the same slot. Cost: finding a slot is one look where slots lie close together (they are given
//! out in a row), else a binary search; finding a class is a binary search.

use super::visible::Visible;
use std::ops::Range;

/// Order of the documents of a part.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Slot of each document.
    slots: Vec<u32>,
    /// Class and its first document, ascending.
    classes: Vec<(u32, u32)>,
    by_slot: BySlot,
}

/// Documents by slot.
#[derive(Debug)]
enum BySlot {
    /// The document of each slot from the first on, [`NONE`] for those of other parts.
    Row(u32, Vec<u32>),
    /// Slot and document, ascending by slot.
    Pairs(Vec<(u32, u32)>),
}

/// No document.
const NONE: u32 = u32::MAX;
/// Slots that are given a place in a row, for each document.
const SPREAD: usize = 4;

impl Default for BySlot {
    fn default() -> Self {
        Self::Pairs(Vec::new())
    }
}

impl BySlot {
    fn new(slots: &[u32]) -> Self {
        let (first, last) = slots.iter().fold((u32::MAX, 0), |(first, last), slot| (first.min(*slot), last.max(*slot)));
        let span = (last.saturating_sub(first) as usize).saturating_add(1);
        if slots.is_empty() || span > slots.len().saturating_mul(SPREAD) {
            let mut pairs: Vec<(u32, u32)> = slots.iter().copied().zip(0..).collect();
            pairs.sort_unstable();
            return Self::Pairs(pairs);
        }
        let mut docs = vec![NONE; span];
        for (doc, slot) in (0u32..).zip(slots) {
            if let Some(place) = docs.get_mut((slot - first) as usize) {
                *place = doc;
            }
        }
        Self::Row(first, docs)
    }

    fn find(&self, slot: u32) -> Option<usize> {
        match self {
            Self::Row(first, docs) => docs.get(slot.checked_sub(*first)? as usize).filter(|doc| **doc != NONE).map(|doc| *doc as usize),
            Self::Pairs(pairs) => {
                // slots only grow, so parts hold mostly disjoint ranges of them
                let (first, last) = (pairs.first()?.0, pairs.last()?.0);
                if slot < first || slot > last {
                    return None;
                }
                let at = pairs.binary_search_by_key(&slot, |(s, _)| *s).ok()?;
                pairs.get(at).map(|(_, doc)| *doc as usize)
            }
        }
    }
}

impl Layout {
    /// Takes (class, slot) of documents that are in order already.
    pub(crate) fn new(keys: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut layout = Self::default();
        for (doc, (class, slot)) in (0u32..).zip(keys) {
            layout.slots.push(slot);
            if layout.classes.last().is_none_or(|(last, _)| *last != class) {
                layout.classes.push((class, doc));
            }
        }
        layout.slots.shrink_to_fit();
        layout.by_slot = BySlot::new(&layout.slots);
        layout
    }

    /// Number of documents, deleted ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Slot of a document.
    pub(crate) fn slot(&self, doc: usize) -> u32 {
        self.slots.get(doc).copied().unwrap_or(u32::MAX)
    }

    /// Document of a slot.
    pub(crate) fn find(&self, slot: u32) -> Option<usize> {
        self.by_slot.find(slot)
    }

    /// Number of classes.
    pub(crate) fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Class and its documents, by rank of the class.
    pub(crate) fn class(&self, rank: usize) -> Option<(u32, Range<usize>)> {
        let (class, first) = *self.classes.get(rank)?;
        let end = self.classes.get(rank + 1).map_or(self.slots.len(), |(_, next)| *next as usize);
        Some((class, first as usize..end))
    }

    /// Rank of the class of a document.
    pub(crate) fn rank_of(&self, doc: usize) -> usize {
        self.classes.partition_point(|(_, first)| *first as usize <= doc).saturating_sub(1)
    }

    /// Class of a document.
    pub(crate) fn class_of(&self, doc: usize) -> u32 {
        self.classes.get(self.rank_of(doc)).map_or(u32::MAX, |(class, _)| *class)
    }

    /// Ranks of the visible classes, ascending. Looks at the visible classes only, unless everything is visible.
    pub(crate) fn visible_ranks(&self, visible: &Visible) -> Vec<usize> {
        match visible {
            Visible::All => (0..self.classes.len()).collect(),
            Visible::Some(classes) => {
                classes.iter().filter_map(|class| self.classes.binary_search_by_key(class, |(c, _)| *c).ok()).collect()
            }
        }
    }

    /// Ranges of documents that are visible, ascending, neighbouring ones joined.
    pub(crate) fn runs(&self, visible: &Visible) -> Vec<Range<usize>> {
        if matches!(visible, Visible::All) {
            return if self.slots.is_empty() { Vec::new() } else { std::iter::once(0..self.slots.len()).collect() };
        }
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (_, docs) in self.visible_ranks(visible).into_iter().filter_map(|rank| self.class(rank)) {
            match runs.last_mut() {
                Some(last) if last.end == docs.start => last.end = docs.end,
                Some(_) | None => runs.push(docs),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;

    #[test]
    fn a_slot_is_found_whether_slots_lie_close_together_or_not() {
        for step in [1u32, 3, 5, 1_000_000] {
            let keys: Vec<(u32, u32)> = (0..200u32).map(|i| (i % 3, 40 + i * step)).collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            let layout = Layout::new(sorted.clone());
            assert_eq!(matches!(layout.by_slot, BySlot::Row(..)), step < 4);
            for (doc, (_, slot)) in sorted.iter().enumerate() {
                assert_eq!((layout.find(*slot), layout.slot(doc)), (Some(doc), *slot));
            }
            for other in [0, 39, 41, 40 + 199 * step + 1, u32::MAX] {
                assert_eq!(layout.find(other), sorted.iter().position(|(_, slot)| *slot == other));
            }
        }
        assert_eq!(Layout::default().find(0), None);
    }

    #[test]
    fn visible_classes_are_ranges() {
        let layout = Layout::new([(1, 10), (1, 30), (4, 5), (6, 20), (6, 21)]);
        let runs = |visible: &Visible| layout.runs(visible).into_iter().map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(runs(&Visible::all()), [(0, 5)]);
        assert_eq!(runs(&Visible::of([1, 4])), [(0, 3)]);
        assert_eq!(runs(&Visible::of([1, 6, 9])), [(0, 2), (3, 5)]);
        assert!(layout.runs(&Visible::of([2])).is_empty());
        assert_eq!((layout.find(21), layout.find(22), layout.find(6)), (Some(4), None, None));
        assert_eq!((layout.class_of(0), layout.class_of(2), layout.class_of(4)), (1, 4, 6));
    }
}
