//! Where the documents of one part stand: ordered by class, then slot, so that what a principal sees is a few ranges.
//!
//! Invariant: no two documents of a part have the same slot. Cost: finding a slot or a class is a binary search.

use super::visible::Visible;
use std::ops::Range;

/// Order of the documents of a part.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Slot of each document.
    slots: Vec<u32>,
    /// Class and its first document, ascending.
    classes: Vec<(u32, u32)>,
    /// Slot and document, ascending by slot.
    by_slot: Vec<(u32, u32)>,
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
            layout.by_slot.push((slot, doc));
        }
        layout.by_slot.sort_unstable();
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
        // slots only grow, so parts hold mostly disjoint ranges of them
        let (first, last) = (self.by_slot.first()?.0, self.by_slot.last()?.0);
        if slot < first || slot > last {
            return None;
        }
        let at = self.by_slot.binary_search_by_key(&slot, |(s, _)| *s).ok()?;
        self.by_slot.get(at).map(|(_, doc)| *doc as usize)
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
