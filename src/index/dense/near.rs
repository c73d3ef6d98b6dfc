//! What a large part has beside its rows, so that a search need not scan them all: sketches of all rows, and lists where they are very many.
//!
//! Sketches stand in the order of the rows, so whatever is visible is a few ranges of them. Lists cover all rows of a part, for those who see all
//! of them, and each large class, for those who see it: what is found never depends on what is hidden.
//! Not here: searching (`search`).

use super::lists::{Lists, Rows};
use super::part::DensePart;
use super::sketch::{Asked, Sketches};
use super::{PartConfig, quant::Probe};
use crate::index::stack::Part;
use std::cmp::Ordering;
use std::ops::Range;

/// When searches are approximate, and how near they come.
#[derive(Clone, Debug)]
pub struct NearConfig {
    /// Visible scanned vectors from which on a search looks at sketches first; below, it is exact.
    pub min_rows: usize,
    /// Scanned vectors of a part, or of a class within it, from which on they are parted into lists.
    pub list_rows: usize,
    /// Vectors that sketches choose for a closer look, at least; more where more is visible or wanted.
    pub keep: usize,
    /// Share of listed vectors whose sketches are compared. Range 0..=1.
    pub probe: f64,
    /// Listed vectors whose sketches are compared, at least.
    pub probe_rows: usize,
}

impl Default for NearConfig {
    fn default() -> Self {
        Self { min_rows: 32_768, list_rows: 131_072, keep: 1_024, probe: 0.15, probe_rows: 32_768 }
    }
}

/// Vectors of a part from which on it gets sketches; smaller ones are scanned, whatever else is visible.
const SKETCHED: usize = 4_096;

/// See the head of this file.
pub(crate) struct Near {
    /// Document of each row.
    docs: Vec<u32>,
    sketches: Sketches,
    /// Over nested ranges of rows, widest first.
    lists: Vec<Covered>,
}

/// A range of rows and the lists over it.
pub(crate) struct Covered {
    rows: Range<usize>,
    lists: Lists,
}

/// Visible rows, and how they are looked through.
pub(crate) enum Stretch<'a> {
    /// By comparing every sketch.
    Sketches(Range<usize>),
    /// By reading the nearest lists.
    Lists(&'a Covered),
}

impl Stretch<'_> {
    /// Whether looking through it looks at every row.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Sketches(_))
    }
}

impl Near {
    /// Whether a part of so many rows gets one.
    pub(crate) fn wanted(rows: usize, cfg: &PartConfig) -> bool {
        rows >= SKETCHED.min(cfg.near.min_rows).max(1)
    }

    /// Makes sketches and lists. `docs`: of each row, its document; `classes`: rows of each class.
    pub(crate) fn build(
        rows: Rows<'_>,
        docs: Vec<u32>,
        vectors: impl Iterator<Item = Vec<f32>>,
        classes: impl Iterator<Item = Range<usize>>,
        cfg: &PartConfig,
    ) -> Self {
        let sketches = Sketches::of(&cfg.sketcher, docs.len(), vectors);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in std::iter::once(0..docs.len()).chain(classes) {
            if range.len() >= cfg.near.list_rows.max(2) && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        let over = |range: Range<usize>| {
            let lists = Lists::build(rows.cut(&range), cfg.dim, cfg.sketcher.centre(), &sketches, range.start);
            Covered { rows: range, lists }
        };
        let lists = ranges.into_iter().map(over).collect();
        Self { docs, sketches, lists }
    }

    /// Document of a row.
    #[inline]
    pub(crate) fn doc(&self, row: u32) -> u32 {
        self.docs.get(row as usize).copied().unwrap_or(u32::MAX)
    }

    /// Number of ranges with lists.
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// Splits visible ranges of documents of its part into what lists cover exactly and the rest.
    pub(crate) fn stretches(&self, part: &DensePart, runs: &[Range<usize>]) -> Vec<Stretch<'_>> {
        let mut out: Vec<Stretch<'_>> = Vec::new();
        let covers = |rows: &Range<usize>| self.lists.iter().find(|covered| covered.rows == *rows);
        for run in runs {
            let rows = part.rows_of(run);
            if self.lists.is_empty() {
                out.push(Stretch::Sketches(rows));
                continue;
            }
            if let Some(covered) = covers(&rows) {
                out.push(Stretch::Lists(covered));
                continue;
            }
            // class by class
            let mut from = run.start;
            while let Some((_, docs)) = part.layout().class(part.layout().rank_of(from)).filter(|_| from < run.end) {
                from = docs.end;
                let rows = part.rows_of(&docs);
                match (covers(&rows), out.last_mut()) {
                    (Some(covered), _) => out.push(Stretch::Lists(covered)),
                    (None, Some(Stretch::Sketches(last))) if last.end == rows.start => last.end = rows.end,
                    (None, Some(_) | None) => out.push(Stretch::Sketches(rows)),
                }
            }
        }
        out
    }

    /// Offers those rows of a stretch to `top` whose documents count. `breadth`: how many times as many as usual are wanted.
    pub(crate) fn offer(
        &self,
        stretch: &Stretch<'_>,
        ask: (&Probe, &Asked),
        breadth: usize,
        cfg: &NearConfig,
        (part, counts): (u32, impl Fn(usize) -> bool),
        top: &mut Nearest,
    ) {
        let alive = |row: u32| counts(self.doc(row) as usize);
        match stretch {
            Stretch::Sketches(rows) => self.sketches.compare(ask.1, rows.clone(), |first, scores| {
                top.offer(scores, |place| (part, (first + place) as u32), alive);
            }),
            Stretch::Lists(covered) => {
                let share = ((covered.lists.len() as f64 * cfg.probe) as usize).max(cfg.probe_rows);
                covered.lists.compare(ask.0, ask.1, share.saturating_mul(breadth.isqrt()), |rows, scores| {
                    top.offer(scores, |place| (part, rows.get(place).copied().unwrap_or(u32::MAX)), alive);
                });
            }
        }
    }
}

/// The rows that look best so far.
pub(crate) struct Nearest {
    keep: usize,
    floor: f32,
    found: Vec<Row>,
}

/// A row that looks near.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    score: f32,
    pub(crate) part: u32,
    pub(crate) row: u32,
}

impl Row {
    fn order(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then((self.part, self.row).cmp(&(other.part, other.row)))
    }
}

impl Nearest {
    pub(crate) fn new(keep: usize) -> Self {
        Self { keep: keep.max(1), floor: f32::NEG_INFINITY, found: Vec::with_capacity(2 * keep.max(1)) }
    }

    /// Takes in what is better than the worst of the best so far. `place`: part and row of a score; `alive`: whether a row counts.
    #[inline]
    fn offer(&mut self, scores: &[f32], place: impl Fn(usize) -> (u32, u32), alive: impl Fn(u32) -> bool) {
        for (block, some) in scores.chunks(16).enumerate() {
            let floor = self.floor;
            if !some.iter().fold(false, |any, score| any | (*score > floor)) {
                continue;
            }
            for (i, score) in some.iter().enumerate().filter(|(_, score)| **score > floor) {
                let (part, row) = place(block * 16 + i);
                if alive(row) {
                    self.found.push(Row { score: *score, part, row });
                }
            }
            if self.found.len() + 16 > 2 * self.keep {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.found.len() > self.keep {
            self.found.select_nth_unstable_by(self.keep, Row::order);
            self.floor = self.found.get(self.keep).map_or(self.floor, |row| row.score);
            self.found.truncate(self.keep);
        }
    }

    /// The best, ordered by part and row.
    pub(crate) fn finish(mut self) -> Vec<Row> {
        self.cut();
        self.found.sort_unstable_by_key(|row| (row.part, row.row));
        self.found
    }
}
