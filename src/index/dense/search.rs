//! Top-k over the parts of a stack.
//!
//! Every visible document gets an approximate score and an upper bound from the int8 scan. Candidates are then taken by falling bound and
//! rescored in f32 until no bound left can reach the k-th hit: the outcome is that of a plain f32 scan. Statistics are added up as
//! integers, so neither the order of documents nor their distribution over parts shows in them.

use super::part::DensePart;
use super::quant::{LANES, Probe};
use crate::index::stack::{Part, Stack};
use crate::index::visible::Visible;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

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

/// Sums in units of 2⁻²⁴ (and its square), exact in any order.
#[derive(Clone, Copy, Default)]
struct Tally {
    count: u64,
    sum: i64,
    squares: i128,
}

impl Tally {
    const UNIT: f32 = 16_777_216.0;

    fn add(&mut self, score: f32) {
        let whole = (score * Self::UNIT) as i64;
        self.count += 1;
        self.sum += whole;
        self.squares += i128::from(whole) * i128::from(whole);
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
    most: f32,
    part: u32,
    doc: u32,
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

pub(crate) fn run(
    stack: &Stack<DensePart>,
    dim: usize,
    query: &[f32],
    visible: &Visible,
    k: usize,
    gate: &mut dyn FnMut(u32) -> bool,
) -> DenseHits {
    if query.len() != dim || dim == 0 || query.iter().any(|v| !v.is_finite()) {
        return DenseHits::default();
    }
    let probe = Probe::new(query, dim.div_ceil(LANES) * LANES);
    let mut tally = Tally::default();
    let mut candidates = Vec::new();
    for (part, live) in (0u32..).zip(&stack.parts) {
        for run in live.part.layout().runs(visible) {
            candidates.reserve(run.len());
            live.part.scan(run, &live.dead, &probe, |doc, score, most| {
                tally.add(score);
                candidates.push(Candidate { most, part, doc: doc as u32 });
            });
        }
    }
    let hits = rescore(stack, &mut candidates, query, k, gate);
    DenseHits { hits, background: tally.background() }
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
    let falling = |a: &Candidate, b: &Candidate| b.most.total_cmp(&a.most);
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
            if hits.len() == k && hits.peek().is_some_and(|worst| candidate.most < worst.score) {
                return ordered(hits);
            }
            let Some(live) = stack.parts.get(candidate.part as usize) else { continue };
            let Some(score) = live.part.exact(candidate.doc as usize, query) else { continue };
            let hit = Hit { score, slot: live.part.layout().slot(candidate.doc as usize) };
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
