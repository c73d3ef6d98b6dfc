//! Top-k over the parts of a stack.
//!
//! Every visible document gets an approximate score and an upper bound from the int8 scan. Candidates are then taken by falling bound and
//! rescored in f32 until no bound left can reach the k-th hit: the outcome is that of a plain f32 scan. Where a graph answers for a
//! stretch of documents, its finds are candidates like the others, and it is asked again, wider, or scanned, if what it did not look at
//! could still belong to the hits. Statistics are added up as
//! integers, so neither the order of documents nor their distribution over parts shows in them.

use super::PartConfig;
use super::part::{Covered, DensePart, Seen, Stretch};
use super::quant::{LANES, Probe};
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

    /// Adds a stretch of documents by a sample spread evenly over it, as if all had been seen.
    fn estimate(&mut self, live: &Live<DensePart>, docs: &Range<usize>, probe: &Probe) {
        let mut sample = Self::default();
        let (blocks, length) = SAMPLE;
        for block in 0..blocks {
            let from = docs.start + docs.len() * block / blocks;
            live.part.scan(from..(from + length).min(docs.end), &live.dead, probe, |seen| sample.add(seen.score));
        }
        let alive = (docs.len() - live.dead.count_in(docs.clone())) as u64;
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

/// Share of a stretch's documents above which widening a graph search is dearer than scanning.
const SCAN_FROM: usize = 8;
/// Blocks of neighbouring documents, and their length, from which statistics are estimated where a graph is asked.
const SAMPLE: (usize, usize) = (64, 4);

pub(crate) fn run(
    stack: &Stack<DensePart>,
    cfg: &PartConfig,
    query: &[f32],
    visible: &Visible,
    k: usize,
    gate: &mut dyn FnMut(u32) -> bool,
    exact: bool,
) -> DenseHits {
    if query.len() != cfg.dim || cfg.dim == 0 || query.iter().any(|v| !v.is_finite()) {
        return DenseHits::default();
    }
    let probe = Probe::new(query, cfg.dim.div_ceil(LANES) * LANES);
    let mut tally = Tally::default();
    let mut candidates = Vec::new();
    // stretches that graphs answered, with how wide they were searched
    let mut graphs: Vec<Asked<'_>> = Vec::new();
    for (part, live) in (0u32..).zip(&stack.parts) {
        let runs = live.part.layout().runs(visible);
        let stretches = if exact { runs.into_iter().map(Stretch::Scan).collect() } else { live.part.stretches(runs) };
        for stretch in stretches {
            match stretch {
                Stretch::Scan(docs) => {
                    candidates.reserve(docs.len());
                    live.part.scan(docs, &live.dead, &probe, |seen| {
                        tally.add(seen.score);
                        candidates.push(Candidate { seen, part });
                    });
                }
                Stretch::Graph(graph, docs) => {
                    tally.estimate(live, &docs, &probe);
                    graphs.push(Asked { part, live, graph, docs, ef: cfg.graph.ef_search.max(k.saturating_mul(4)) });
                }
            }
        }
    }
    let background = tally.background();
    if graphs.is_empty() {
        return DenseHits { hits: rescore(stack, &mut candidates, query, k, gate), background };
    }
    // a graph whose unseen documents may belong to the hits (a gate that lets few through) is asked for more, and in the end scanned
    let scanned = candidates.len();
    loop {
        let mut floors: Vec<f32> = Vec::with_capacity(graphs.len());
        for asked in &graphs {
            let rows = asked.graph.len();
            if asked.ef >= rows / SCAN_FROM {
                asked
                    .live
                    .part
                    .scan(asked.docs.clone(), &asked.live.dead, &probe, |seen| candidates.push(Candidate { seen, part: asked.part }));
                floors.push(f32::NEG_INFINITY);
                continue;
            }
            let (seen, floor) = asked.live.part.ask(asked.graph, &asked.live.dead, &probe, asked.ef);
            candidates.extend(seen.into_iter().map(|seen| Candidate { seen, part: asked.part }));
            floors.push(floor);
        }
        let hits = rescore(stack, &mut candidates, query, k, gate);
        let last = if hits.len() < k { f32::NEG_INFINITY } else { hits.last().map_or(f32::INFINITY, |(_, score)| *score) };
        let mut again = false;
        for (asked, _) in graphs.iter_mut().zip(floors).filter(|(_, floor)| *floor > last) {
            asked.ef = asked.ef.saturating_mul(4);
            again = true;
        }
        if !again || k == 0 {
            return DenseHits { hits, background };
        }
        // `rescore` only reorders, but not within what was scanned before the graphs
        candidates.retain(|c| !graphs.iter().any(|g| g.part == c.part && g.docs.contains(&(c.seen.doc as usize))));
        debug_assert_eq!(candidates.len(), scanned, "what was scanned stays");
    }
}

/// A stretch that a graph answers.
struct Asked<'a> {
    part: u32,
    live: &'a Live<DensePart>,
    graph: &'a Covered,
    docs: Range<usize>,
    ef: usize,
}

/// Candidates by falling bound, a slice at a time, until no bound reaches the k-th hit.
fn rescore(
    stack: &Stack<DensePart>,
    candidates: &mut [Candidate],
    query: &[f32],
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
            let Some(score) = live.part.exact_after(&candidate.seen, query) else { continue };
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
