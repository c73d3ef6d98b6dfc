//! Top-k over the parts of a stack.
//!
//! Exact: every visible document gets an approximate score and an upper bound from the int8 scan. Candidates are then taken by falling bound and
//! rescored with both planes until no bound left can reach the k-th hit: the outcome is that of a scan of both planes. Approximate, where much is
//! visible: sketches choose some hundred rows, and these go the same way. A gate that lets few through makes the search look further, and at everything in the end.
//! Statistics are added up as integers, so neither the order of documents nor their distribution over parts shows in them.

use super::PartConfig;
use super::near::{Near, Nearest, Stretch};
use super::part::{DensePart, Seen};
use super::quant::Probe;
use crate::index::slots::Slots;
use crate::index::stack::{Live, Part, Stack};
use crate::index::visible::Visible;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseHits {
    /// Slot and cosine (−1.0..=1.0), best first; equal scores by slot.
    pub hits: Vec<(u32, f32)>,
    /// How all visible slots stand to the query.
    pub background: Background,
}

/// Distribution of the best cosine a slot over all visible slots, the gate left aside. From int8: each cosine is off by about 0.001 at most in practice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Background {
    /// Number of visible slots with scanned vectors.
    pub count: u64,
    /// Mean of their best cosine.
    pub mean: f32,
    /// Standard deviation of their best cosine; 0 for fewer than two.
    pub std: f32,
}

impl Background {
    /// How many standard deviations a cosine stands above the mean; 0 where there is no spread.
    pub fn z(&self, cosine: f32) -> f32 {
        if self.std > 1e-6 { (cosine - self.mean) / self.std } else { 0.0 }
    }
}

/// Sums in units of 2⁻¹⁹ (and its square), exact in any order, for up to 2²⁵ slots.
#[derive(Clone, Copy, Default)]
struct Tally {
    count: u64,
    sum: i64,
    squares: u64,
}

impl Tally {
    const UNIT: f32 = 524_288.0;

    fn add(&mut self, score: f32) {
        let whole = i64::from((score * Self::UNIT) as i32);
        self.count += 1;
        self.sum += whole;
        self.squares += whole.unsigned_abs().pow(2);
    }

    /// Adds visible documents by a sample spread evenly over them, as if all had been seen.
    fn estimate(&mut self, sight: &[Sight<'_>], probe: &Probe) {
        let total: usize = sight.iter().map(|of| of.docs.len()).sum();
        let mut sample = Self::default();
        let (blocks, length) = SAMPLE;
        let (mut rest, mut skipped) = (sight.iter(), 0);
        let Some(mut of) = rest.next() else { return };
        for block in 0..blocks {
            let at = total * block / blocks;
            while at - skipped >= of.docs.len() {
                skipped += of.docs.len();
                let Some(next) = rest.next() else { return };
                of = next;
            }
            let from = of.docs.start + at - skipped;
            of.live.part.scan(from..(from + length).min(of.docs.end), &of.live.dead, probe, |seen| sample.add(seen.score));
        }
        let alive = sight.iter().map(|of| of.docs.len() - of.live.dead.count_in(of.docs.clone())).sum::<usize>() as u64;
        if sample.count > 0 {
            self.count += alive;
            self.sum += (i128::from(sample.sum) * i128::from(alive) / i128::from(sample.count)) as i64;
            self.squares += sample.squares / sample.count * alive;
        }
    }

    fn background(&self) -> Background {
        if self.count == 0 {
            return Background::default();
        }
        let (n, unit) = (self.count as f64, f64::from(Self::UNIT));
        let mean = self.sum as f64 / n;
        let spread = if self.count > 1 { (self.squares as f64 / n - mean * mean).max(0.0).sqrt() } else { 0.0 };
        Background { count: self.count, mean: (mean / unit) as f32, std: (spread / unit) as f32 }
    }
}

/// A document that may be a hit.
#[derive(Clone, Copy)]
struct Candidate {
    seen: Seen,
    part: u32,
}

/// A hit; the worst is the greatest, so that a max-heap gives it up first.
#[derive(Clone, Copy, PartialEq)]
struct Hit {
    score: f32,
    slot: u32,
}

impl Eq for Hit {}

impl Ord for Hit {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.slot.cmp(&other.slot))
    }
}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Share of the visible rows above which looking at chosen ones is dearer than scanning all.
const SCAN_FROM: usize = 8;
/// Blocks of neighbouring documents, and their length, from which statistics are estimated where not all are scanned.
const SAMPLE: (usize, usize) = (128, 4);
/// Rows that are looked at closely, for each hit that is wanted.
const PER_HIT: usize = 16;
/// Visible rows for each that is looked at closely: the more there are, the more are nearly equal.
const ROWS_A_KEPT: usize = 1024;
/// How far a gate may thin out what was chosen before more is.
const THINNED: usize = 4;

/// A visible range of documents.
struct Sight<'a> {
    part: u32,
    live: &'a Live<DensePart>,
    docs: Range<usize>,
}

fn sight<'a>(stack: &'a Stack<DensePart>, visible: &Visible) -> Vec<Sight<'a>> {
    let of_part =
        |(part, live): (u32, &'a Live<DensePart>)| live.part.layout().runs(visible).into_iter().map(move |docs| Sight { part, live, docs });
    (0u32..).zip(&stack.parts).flat_map(of_part).collect()
}

fn rows(sight: &[Sight<'_>]) -> usize {
    sight.iter().map(|of| of.live.part.rows_of(&of.docs).len()).sum()
}

/// Whether so much is visible that searches are approximate.
pub(crate) fn is_approximate(stack: &Stack<DensePart>, cfg: &PartConfig, visible: &Visible) -> bool {
    let sight = sight(stack, visible);
    rows(&sight) >= cfg.near.min_rows && sight.iter().any(|of| of.live.part.near().is_some())
}

/// What a search looks at.
pub(crate) struct Scope<'a> {
    /// What the caller sees.
    pub(crate) visible: &'a Visible,
    /// Of it, what can be a hit; statistics are over all that is visible.
    pub(crate) among: Option<&'a Slots>,
    /// Whether nothing may be left to sketches.
    pub(crate) exact: bool,
}

pub(crate) fn run(
    stack: &Stack<DensePart>,
    cfg: &PartConfig,
    probe: &Probe,
    scope: &Scope<'_>,
    k: usize,
    gate: &mut dyn FnMut(u32) -> bool,
) -> DenseHits {
    let Scope { visible, among, exact } = *scope;
    let sight = sight(stack, visible);
    let all = rows(&sight);
    let by_sketch = |of: &Sight<'_>| !exact && all >= cfg.near.min_rows && of.live.part.near().is_some();
    let (chosen, scanned): (Vec<Sight<'_>>, Vec<Sight<'_>>) = sight.into_iter().partition(by_sketch);
    let mut tally = Tally::default();
    let mut candidates = Vec::new();
    for of in &scanned {
        of.scan(probe, among, &mut candidates, |seen| tally.add(seen.score));
    }
    tally.estimate(&chosen, probe);
    let background = tally.background();
    if chosen.is_empty() || k == 0 {
        return DenseHits { hits: rescore(stack, &mut candidates, probe, k, gate), background };
    }
    let search = Search { stack, cfg, among, probe, stretches: stretches(&chosen) };
    let hits = search.near(&candidates, k, all, gate).unwrap_or_else(|| {
        for of in &chosen {
            of.scan(probe, among, &mut candidates, |_| ());
        }
        rescore(stack, &mut candidates, probe, k, gate)
    });
    DenseHits { hits, background }
}

impl Sight<'_> {
    fn scan(&self, probe: &Probe, among: Option<&Slots>, candidates: &mut Vec<Candidate>, mut seen: impl FnMut(&Seen)) {
        candidates.reserve(if among.is_some() { 0 } else { self.docs.len() });
        let layout = self.live.part.layout();
        self.live.part.scan(self.docs.clone(), &self.live.dead, probe, |found| {
            seen(&found);
            if among.is_none_or(|slots| slots.contains(layout.slot(found.doc as usize))) {
                candidates.push(Candidate { seen: found, part: self.part });
            }
        });
    }
}

/// Stretches of visible rows with the part they belong to.
type Stretches<'a> = Vec<(u32, &'a Live<DensePart>, &'a Near, Stretch<'a>)>;

fn stretches<'a>(chosen: &[Sight<'a>]) -> Stretches<'a> {
    let mut out = Vec::new();
    for of_part in chosen.chunk_by(|a, b| a.part == b.part) {
        let Some(first) = of_part.first() else { continue };
        let Some(near) = first.live.part.near() else { continue };
        let runs: Vec<Range<usize>> = of_part.iter().map(|of| of.docs.clone()).collect();
        out.extend(near.stretches(&first.live.part, &runs).into_iter().map(|stretch| (first.part, first.live, near, stretch)));
    }
    out
}

/// An approximate search.
struct Search<'a> {
    stack: &'a Stack<DensePart>,
    cfg: &'a PartConfig,
    among: Option<&'a Slots>,
    probe: &'a Probe,
    stretches: Stretches<'a>,
}

impl Search<'_> {
    /// The hits among `scanned` and what sketches choose; nothing where the gate lets so few through that all must be scanned. `all`: visible rows.
    fn near(&self, scanned: &[Candidate], k: usize, all: usize, gate: &mut dyn FnMut(u32) -> bool) -> Option<Vec<(u32, f32)>> {
        let asked = self.cfg.sketcher.ask(&self.probe.vector);
        let keep = self.cfg.near.keep.max(k.saturating_mul(PER_HIT)).max(all / ROWS_A_KEPT);
        let mut breadth = 1;
        while keep.saturating_mul(breadth) < all / SCAN_FROM {
            let mut top = Nearest::new(keep * breadth);
            for (part, live, near, stretch) in &self.stretches {
                let layout = live.part.layout();
                let counts = |doc: usize| !live.dead.has(doc) && self.among.is_none_or(|slots| slots.contains(layout.slot(doc)));
                near.offer(stretch, (self.probe, &asked), breadth, &self.cfg.near, (*part, counts), &mut top);
            }
            let chosen = top.finish();
            // fewer than were wanted, and no list left unread: there are no more
            let all_chosen = chosen.len() < keep.saturating_mul(breadth) && self.stretches.iter().all(|(.., of)| of.is_whole());
            let mut candidates = scanned.to_vec();
            for rows in chosen.chunk_by(|a, b| a.part == b.part) {
                let Some(part) = rows.first().map(|row| row.part) else { continue };
                let Some(live) = self.stack.parts.get(part as usize) else { continue };
                let Some(near) = live.part.near() else { continue };
                let rows: Vec<u32> = rows.iter().map(|row| row.row).collect();
                live.part.look(near, &rows, self.probe, |seen| candidates.push(Candidate { seen, part }));
            }
            let (mut tried, mut passed) = (0usize, 0usize);
            let hits = rescore(self.stack, &mut candidates, self.probe, k, &mut |slot| {
                let passes = gate(slot);
                (tried, passed) = (tried + 1, passed + usize::from(passes));
                passes
            });
            // where the gate thins out what was chosen, as much more is chosen; where there are too few hits, too
            let thinned = tried.div_ceil(passed.max(1));
            let wanted = match (hits.len() < k, tried > 0 && passed == 0) {
                (false, _) => thinned.div_ceil(THINNED),
                (true, false) => thinned.max(breadth.saturating_mul(4)),
                (true, true) => usize::MAX,
            };
            if wanted <= breadth || all_chosen {
                return Some(hits);
            }
            breadth = wanted.max(breadth.saturating_mul(2));
        }
        None
    }
}

/// Candidates by falling bound, a slice at a time, until no bound reaches the k-th hit.
fn rescore(
    stack: &Stack<DensePart>,
    candidates: &mut [Candidate],
    probe: &Probe,
    k: usize,
    gate: &mut dyn FnMut(u32) -> bool,
) -> Vec<(u32, f32)> {
    if k == 0 {
        return Vec::new();
    }
    let falling = |a: &Candidate, b: &Candidate| b.seen.most.total_cmp(&a.seen.most);
    let mut hits: BinaryHeap<Hit> = BinaryHeap::with_capacity(k.min(candidates.len()) + 1);
    let mut rest = candidates;
    let mut slice = k.saturating_mul(4).max(64);
    loop {
        let take = slice.min(rest.len());
        if take < rest.len() {
            rest.select_nth_unstable_by(take, falling);
        }
        let (head, tail) = rest.split_at_mut(take);
        head.sort_unstable_by(falling);
        for candidate in head.iter() {
            if hits.len() == k && hits.peek().is_some_and(|worst| candidate.seen.most < worst.score) {
                return ordered(hits);
            }
            let Some(live) = stack.parts.get(candidate.part as usize) else { continue };
            let Some(score) = live.part.exact_after(&candidate.seen, probe) else { continue };
            let hit = Hit { score, slot: live.part.layout().slot(candidate.seen.doc as usize) };
            if (hits.len() < k || hits.peek().is_some_and(|worst| hit < *worst)) && gate(hit.slot) {
                hits.push(hit);
                if hits.len() > k {
                    hits.pop();
                }
            }
        }
        if tail.is_empty() {
            return ordered(hits);
        }
        rest = tail;
        slice = slice.saturating_mul(4);
    }
}

fn ordered(hits: BinaryHeap<Hit>) -> Vec<(u32, f32)> {
    hits.into_sorted_vec().into_iter().map(|hit| (hit.slot, hit.score)).collect()
}
