//! A stack of immutable parts: large sealed ones and a small delta, the shape that dense and keyword index share.
//!
//! One change copies the delta, never a sealed part; removing a sealed document sets a bit. Sealed parts are merged from a copy of the
//! stack, away from the writer, and swapped in; what was removed meanwhile is removed again then.
//! Invariant: a slot is alive in at most one part. Cost of a change: the delta; of a lookup: one binary search a part.
//! Not here: what a part holds ([`Part`]).

use super::layout::Layout;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// An immutable set of documents with its own index over them.
pub(crate) trait Part: Sized + Send + Sync {
    /// A document as it is given and as it can be had back.
    type Doc: Send;
    /// What a deletion must leave behind beside a bit.
    type Scar: Clone + Default + Send + Sync;
    /// How parts are built.
    type Config: Clone + Send + Sync;
    /// Slot of a document.
    fn slot(doc: &Self::Doc) -> u32;
    /// Builds a part; no two documents share a slot.
    fn build(docs: Vec<Self::Doc>, cfg: &Self::Config) -> Self;
    /// Where its documents stand.
    fn layout(&self) -> &Layout;
    /// Gives a document back.
    fn extract(&self, doc: usize) -> Option<Self::Doc>;
    /// Notes that a document is gone.
    fn bury(&self, doc: usize, scar: &mut Self::Scar);
    /// The slow half of building, if this part wants one and lacks it; searches work without.
    fn finish(&self, cfg: &Self::Config) -> Option<Self>;
    /// Whether [`Part::finish`] has work.
    fn unfinished(&self, cfg: &Self::Config) -> bool;
}

/// Deleted documents of a part.
#[derive(Clone, Debug)]
pub(crate) struct Dead<S> {
    bits: Vec<u64>,
    count: usize,
    /// What the part itself needs to know.
    pub(crate) scar: S,
}

impl<S: Default> Dead<S> {
    fn none(len: usize) -> Self {
        Self { bits: vec![0; len.div_ceil(64)], count: 0, scar: S::default() }
    }
}

impl<S> Dead<S> {
    /// Whether the document is deleted.
    #[inline]
    pub(crate) fn has(&self, doc: usize) -> bool {
        self.count != 0 && self.bits.get(doc / 64).is_some_and(|word| word >> (doc % 64) & 1 == 1)
    }

    /// Number of deleted documents in a range.
    pub(crate) fn count_in(&self, docs: Range<usize>) -> usize {
        if self.count == 0 || docs.is_empty() {
            return 0;
        }
        let (first, last) = (docs.start / 64, (docs.end - 1) / 64);
        let words = self.bits.get(first..=last).unwrap_or_default().iter().enumerate();
        let mask = |word: usize| {
            let low = if word == first { !0u64 << (docs.start % 64) } else { !0 };
            let high = if word == last { !0u64 >> (63 - (docs.end - 1) % 64) } else { !0 };
            low & high
        };
        words.map(|(i, bits)| (bits & mask(first + i)).count_ones() as usize).sum()
    }

    fn set(&mut self, doc: usize) -> bool {
        let Some(word) = self.bits.get_mut(doc / 64) else { return false };
        let bit = 1 << (doc % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(fresh);
        fresh
    }
}

/// A part and its deletions.
pub(crate) struct Live<P: Part> {
    id: u64,
    /// The documents.
    pub(crate) part: Arc<P>,
    /// Which of them are gone.
    pub(crate) dead: Arc<Dead<P::Scar>>,
}

impl<P: Part> Clone for Live<P> {
    fn clone(&self) -> Self {
        Self { id: self.id, part: Arc::clone(&self.part), dead: Arc::clone(&self.dead) }
    }
}

impl<P: Part> Live<P> {
    /// Number of documents that are not deleted.
    pub(crate) fn alive(&self) -> usize {
        self.part.layout().len() - self.dead.count
    }

    fn bury(&mut self, doc: usize) {
        let dead = Arc::make_mut(&mut self.dead);
        if dead.set(doc) {
            self.part.bury(doc, &mut dead.scar);
        }
    }

    fn living(&self) -> impl Iterator<Item = P::Doc> {
        (0..self.part.layout().len()).filter(|doc| !self.dead.has(*doc)).filter_map(|doc| self.part.extract(doc))
    }
}

/// Sizes that steer sealing and merging.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Documents the delta holds before it is sealed.
    pub delta_max: usize,
    /// Parts of similar size that are merged into one.
    pub fan: usize,
    /// Share of deleted documents above which a part is rewritten. Range 0..=1.
    pub purge_share: f64,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self { delta_max: 256, fan: 6, purge_share: 0.1 }
    }
}

/// The parts, oldest first; the last one is the delta.
pub(crate) struct Stack<P: Part> {
    /// Oldest first.
    pub(crate) parts: Vec<Live<P>>,
}

impl<P: Part> Clone for Stack<P> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

impl<P: Part> Stack<P> {
    /// Part and document of a slot that is alive.
    pub(crate) fn find(&self, slot: u32) -> Option<(usize, usize)> {
        self.parts
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, live)| live.part.layout().find(slot).filter(|doc| !live.dead.has(*doc)).map(|doc| (at, doc)))
    }

    /// Number of documents that are not deleted.
    pub(crate) fn alive(&self) -> usize {
        self.parts.iter().map(Live::alive).sum()
    }
}

/// The writer's side of a [`Stack`].
pub(crate) struct StackWriter<P: Part> {
    stack: Stack<P>,
    /// Whether the last part is a delta that the next change rewrites.
    open: bool,
    next_id: u64,
    part_cfg: P::Config,
    cfg: StackConfig,
}

impl<P: Part> StackWriter<P> {
    pub(crate) fn new(cfg: StackConfig, part_cfg: P::Config) -> Self {
        Self { stack: Stack { parts: Vec::new() }, open: false, next_id: 0, part_cfg, cfg }
    }

    /// The stack as it stands.
    pub(crate) fn stack(&self) -> Stack<P> {
        self.stack.clone()
    }

    fn live(&mut self, part: P) -> Live<P> {
        self.next_id += 1;
        let dead = Arc::new(Dead::none(part.layout().len()));
        Live { id: self.next_id, part: Arc::new(part), dead }
    }

    /// Removes slots, then adds documents. A document whose slot is there already replaces it; of two with one slot the last counts.
    pub(crate) fn apply(&mut self, remove: &[u32], add: Vec<P::Doc>) {
        let mut fresh: HashMap<u32, P::Doc> = HashMap::with_capacity(add.len());
        for doc in add {
            fresh.insert(P::slot(&doc), doc);
        }
        let gone: HashSet<u32> = remove.iter().copied().chain(fresh.keys().copied()).collect();
        let delta = if self.open { self.stack.parts.pop() } else { None };
        for slot in &gone {
            if let Some((at, doc)) = self.stack.find(*slot)
                && let Some(live) = self.stack.parts.get_mut(at)
            {
                live.bury(doc);
            }
        }
        self.stack.parts.retain(|live| live.alive() > 0);
        let mut docs: Vec<P::Doc> = fresh.into_values().collect();
        if let Some(delta) = delta {
            if docs.is_empty() && !gone.iter().any(|slot| delta.part.layout().find(*slot).is_some()) {
                self.stack.parts.push(delta);
                return;
            }
            docs.extend(delta.living().filter(|doc| !gone.contains(&P::slot(doc))));
        }
        self.open = !docs.is_empty() && docs.len() < self.cfg.delta_max;
        if !docs.is_empty() {
            let part = P::build(docs, &self.part_cfg);
            let live = self.live(part);
            self.stack.parts.push(live);
        }
    }

    /// The most useful piece of upkeep, or nothing. Cheap; [`Upkeep::run`] is the work.
    pub(crate) fn plan(&self) -> Option<Upkeep<P>> {
        let sealed = self.stack.parts.len() - usize::from(self.open);
        let sealed = self.stack.parts.get(..sealed).unwrap_or_default();
        let job = |parts: Vec<Live<P>>| Some(Upkeep { parts, cfg: self.part_cfg.clone() });
        // many parts of one size become one of the next
        let tier = |live: &Live<P>| (live.alive() / self.cfg.delta_max.max(1) + 1).ilog(self.cfg.fan.max(2));
        let mut tiers: HashMap<u32, Vec<Live<P>>> = HashMap::new();
        for live in sealed {
            tiers.entry(tier(live)).or_default().push(live.clone());
        }
        if let Some((_, parts)) = tiers.into_iter().filter(|(_, parts)| parts.len() >= self.cfg.fan.max(2)).min_by_key(|(tier, _)| *tier) {
            return job(parts);
        }
        // too many graves
        let dug = |live: &&Live<P>| live.dead.count as f64 > (self.cfg.purge_share * live.part.layout().len() as f64).max(16.0);
        if let Some(live) = sealed.iter().find(dug) {
            return job(vec![live.clone()]);
        }
        sealed.iter().find(|live| live.part.unfinished(&self.part_cfg)).and_then(|live| job(vec![live.clone()]))
    }

    /// Swaps the outcome of a piece of upkeep in, with what was removed meanwhile removed. Whether anything changed: if one of its parts is gone, the work is void.
    pub(crate) fn install(&mut self, done: Renewed<P>) -> bool {
        let place = |id: u64| self.stack.parts.iter().position(|live| live.id == id);
        let Some(places) = done.from.iter().map(|(id, _)| place(*id)).collect::<Option<Vec<usize>>>() else { return false };
        let mut live = self.live(done.part);
        for ((_, before), at) in done.from.iter().zip(&places) {
            let Some(now) = self.stack.parts.get(*at) else { return false };
            for doc in (0..now.part.layout().len()).filter(|doc| now.dead.has(*doc) && !before.has(*doc)) {
                if let Some(moved) = live.part.layout().find(now.part.layout().slot(doc)) {
                    live.bury(moved);
                }
            }
        }
        let first = places.iter().copied().min().unwrap_or_default();
        let mut at = 0;
        self.stack.parts.retain(|_| {
            at += 1;
            !places.contains(&(at - 1))
        });
        if live.alive() > 0 {
            self.stack.parts.insert(first.min(self.stack.parts.len()), live);
        }
        true
    }
}

/// Upkeep to be done: parts to merge, purge or finish.
pub(crate) struct Upkeep<P: Part> {
    parts: Vec<Live<P>>,
    cfg: P::Config,
}

/// Upkeep that was done.
pub(crate) struct Renewed<P: Part> {
    from: Vec<(u64, Arc<Dead<P::Scar>>)>,
    part: P,
}

impl<P: Part> Upkeep<P> {
    /// Does the work: seconds of CPU for a large part. Touches nothing that others see.
    pub(crate) fn run(self) -> Renewed<P> {
        let from = self.parts.iter().map(|live| (live.id, Arc::clone(&live.dead))).collect();
        let whole = match self.parts.as_slice() {
            [one] if one.dead.count == 0 => one.part.finish(&self.cfg),
            _ => None,
        };
        let part = whole.unwrap_or_else(|| {
            let part = P::build(self.parts.iter().flat_map(Live::living).collect(), &self.cfg);
            part.finish(&self.cfg).unwrap_or(part)
        });
        Renewed { from, part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_documents_are_counted_by_range() {
        let mut dead: Dead<()> = Dead::none(300);
        for doc in [0, 63, 64, 127, 128, 200, 299] {
            assert!(dead.set(doc) && !dead.set(doc));
        }
        for range in [0..300, 0..1, 1..63, 63..65, 64..128, 65..127, 128..300, 299..300, 10..10, 201..299] {
            assert_eq!(dead.count_in(range.clone()), range.clone().filter(|doc| dead.has(*doc)).count(), "{range:?}");
        }
    }
}
