//! Rows parted by nearness, so that a search of very many looks at a few per cent of them (inverted lists over k-means).
//!
//! Coarse centres part a sample of the rows into groups, and each group has centres of its own; a row goes to the nearest centre of its nearest
//! groups. int8 throughout, samples spread evenly over the rows: the same rows give the same lists. A search reads lists from the nearest centre on
//! until enough rows were seen, so a query between clusters gets as many as one inside.
//! Memory: 76 bytes a row (number and a copy of its sketch, list after list). Cost: choosing lists compares the query with every centre.
//! Not here: visibility (lists cover whole classes only), what is near enough (`search`).

use super::quant::{Probe, push_row};
use super::sketch::{Asked, Sketches};
use crate::kernel::dot::{Planes, dot_f32, scan_i8};
use std::ops::Range;

/// Lists of `n` rows: so many times √n.
const LISTS: f64 = 3.0;
/// Rows that centres are trained on, each.
const TRAINED: usize = 48;
/// Groups whose lists a row may go to.
const GROUPS: usize = 4;
/// Times that the centres are moved.
const ROUNDS: usize = 10;
/// Of them, the first ones after which the smallest lists, one in so many, move to rows that no centre is near to.
const RESEEDED: (usize, usize) = (6, 8);

/// int8 rows of one width, as they lie in a part.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) width: usize,
    pub(crate) rows: &'a [i8],
    pub(crate) scales: &'a [f32],
}

impl<'a> Rows<'a> {
    fn row(&self, id: usize) -> &'a [i8] {
        self.rows.get(id * self.width..(id + 1) * self.width).unwrap_or_default()
    }

    fn scale(&self, id: usize) -> f32 {
        self.scales.get(id).copied().unwrap_or_default()
    }

    /// Adds what a row does not share with all others.
    fn add(&self, id: usize, common: &[f32], sum: &mut [f32]) {
        let scale = self.scale(id);
        for ((sum, v), c) in sum.iter_mut().zip(self.row(id)).zip(common) {
            *sum += f32::from(*v) * scale - c;
        }
    }

    /// A range of these rows.
    pub(crate) fn cut(&self, range: &Range<usize>) -> Rows<'a> {
        Rows {
            width: self.width,
            rows: self.rows.get(range.start * self.width..range.end * self.width).unwrap_or_default(),
            scales: self.scales.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Unit vectors in int8.
struct Centres {
    width: usize,
    rows: Vec<i8>,
    sums: Vec<i32>,
    scales: Vec<f32>,
    /// Each one's product with what is common to all rows.
    shifts: Vec<f32>,
}

impl Centres {
    fn of(width: usize, common: &[f32], centres: impl Iterator<Item = Vec<f32>>) -> Self {
        let mut out = Self { width, rows: Vec::new(), sums: Vec::new(), scales: Vec::new(), shifts: Vec::new() };
        let mut lower = Vec::new();
        for mut centre in centres {
            let norm = dot_f32(&centre, &centre).sqrt().max(1e-9);
            centre.iter_mut().for_each(|v| *v /= norm);
            let row = push_row(&centre, width, &mut out.rows, &mut lower);
            out.sums.push(row.sum);
            out.scales.push(row.scale);
            out.shifts.push(dot_f32(&centre, common));
        }
        out
    }

    /// The nearest centre of each of `rows`, and its product with what is not common in it; two rows a pass.
    fn nearest(&self, rows: Rows<'_>, ids: &[usize]) -> Vec<(f32, u32)> {
        let mut out = Vec::with_capacity(ids.len());
        let mut dots = vec![(0, 0); self.sums.len()];
        for pair in ids.chunks(2) {
            let (Some(a), Some(b)) = (pair.first(), pair.last()) else { continue };
            scan_i8(Planes { hi: rows.row(*a), lo: rows.row(*b) }, &self.rows, &self.sums, &mut dots);
            let (of_a, of_b) = (rows.scale(*a), rows.scale(*b));
            let (mut best_a, mut best_b) = ((f32::NEG_INFINITY, 0), (f32::NEG_INFINITY, 0));
            for (list, ((dots, scale), shift)) in (0u32..).zip(dots.iter().zip(&self.scales).zip(&self.shifts)) {
                let (a, b) = (dots.0 as f32 * scale * of_a - shift, dots.1 as f32 * scale * of_b - shift);
                best_a = if a > best_a.0 { (a, list) } else { best_a };
                best_b = if b > best_b.0 { (b, list) } else { best_b };
            }
            out.push(best_a);
            if pair.len() == 2 {
                out.push(best_b);
            }
        }
        out
    }

    /// Centres of `range` with their products with what is not common in a row: `scale` times the upper plane.
    fn scored(&self, row: Planes<'_>, scale: f32, range: Range<usize>, out: &mut Vec<(f32, u32)>) {
        let (Some(rows), Some(sums), Some(scales), Some(shifts)) = (
            self.rows.get(range.start * self.width..range.end * self.width),
            self.sums.get(range.clone()),
            self.scales.get(range.clone()),
            self.shifts.get(range.clone()),
        ) else {
            return;
        };
        let mut dots = vec![(0, 0); sums.len()];
        scan_i8(row, rows, sums, &mut dots);
        let score = |((dots, own), shift): ((&(i32, i32), &f32), &f32)| dots.0 as f32 * own * scale - shift;
        out.extend(dots.iter().zip(scales).zip(shifts).map(score).zip(range.start as u32..));
    }

    fn len(&self) -> usize {
        self.sums.len()
    }

    /// Trains `n` centres on chosen rows.
    fn trained(rows: Rows<'_>, dim: usize, common: &[f32], sample: &[usize], n: usize) -> Self {
        let single = |id: usize| {
            let mut sum = vec![0f32; dim];
            rows.add(id, common, &mut sum);
            sum
        };
        let seeds = (0..n).filter_map(|i| sample.get(i * sample.len() / n)).map(|id| single(*id));
        let mut centres = Self::of(rows.width, common, seeds);
        for round in 0..ROUNDS {
            let nearest = centres.nearest(rows, sample);
            let mut sums = vec![(0usize, vec![0f32; dim]); centres.len()];
            for (id, (_, list)) in sample.iter().zip(&nearest) {
                if let Some((n, sum)) = sums.get_mut(*list as usize) {
                    *n += 1;
                    rows.add(*id, common, sum);
                }
            }
            let spare = if round < RESEEDED.0 { n / RESEEDED.1 } else { 0 };
            for (list, seed) in reseeded(&sums, &nearest, spare) {
                if let (Some((_, sum)), Some(id)) = (sums.get_mut(list), sample.get(seed)) {
                    *sum = single(*id);
                }
            }
            centres = Self::of(rows.width, common, sums.into_iter().map(|(_, sum)| sum));
        }
        centres
    }

    /// Appends others.
    fn append(&mut self, mut other: Self) {
        self.rows.append(&mut other.rows);
        self.sums.append(&mut other.sums);
        self.scales.append(&mut other.scales);
        self.shifts.append(&mut other.shifts);
    }
}

/// The empty lists and the `spare` smallest others, each with the place of a row to begin anew from: one of those that are farthest from all centres.
fn reseeded(lists: &[(usize, Vec<f32>)], nearest: &[(f32, u32)], spare: usize) -> Vec<(usize, usize)> {
    let mut smallest: Vec<usize> = (0..lists.len()).collect();
    let size = |list: &usize| lists.get(*list).map_or(0, |(n, _)| *n);
    smallest.sort_by_key(size);
    let taken = spare.max(smallest.partition_point(|list| size(list) == 0));
    let mut farthest: Vec<usize> = (0..nearest.len()).collect();
    let fit = |place: &usize| nearest.get(*place).map_or(0.0, |(fit, _)| *fit);
    farthest.sort_by(|a, b| fit(a).total_cmp(&fit(b)));
    // spread over the farthest tenth, so that they are not all of one kind
    let tenth = (farthest.len() / 10).max(taken).min(farthest.len());
    let seeds = (0..taken).filter_map(|i| farthest.get(i * tenth / taken.max(1)).copied());
    smallest.iter().copied().take(taken).zip(seeds).collect()
}

/// The list of every row: the nearest centre of its nearest groups.
fn assigned(rows: Rows<'_>, coarse: &Centres, centres: &Centres, ranges: &[Range<usize>]) -> Vec<u32> {
    let mut near: Vec<(f32, u32)> = Vec::new();
    let nearer = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let zeros = vec![0i8; rows.width];
    (0..rows.scales.len())
        .map(|id| {
            let probe = Planes { hi: rows.row(id), lo: &zeros };
            near.clear();
            coarse.scored(probe, rows.scale(id), 0..coarse.len(), &mut near);
            let groups = GROUPS.min(near.len());
            if groups < near.len() {
                near.select_nth_unstable_by(groups, nearer);
            }
            let chosen: Vec<u32> = near.iter().take(groups).map(|(_, group)| *group).collect();
            near.clear();
            for range in chosen.iter().filter_map(|group| ranges.get(*group as usize)) {
                centres.scored(probe, rows.scale(id), range.clone(), &mut near);
            }
            near.iter().min_by(|a, b| nearer(a, b)).map_or(0, |(_, list)| *list)
        })
        .collect()
}

/// See the head of this file.
pub(crate) struct Lists {
    centres: Centres,
    /// Where each list begins in `rows`, and the end.
    at: Vec<u32>,
    /// Numbers of rows, list after list.
    rows: Vec<u32>,
    /// Their sketches in that order.
    sketches: Sketches,
}

impl Lists {
    /// Parts `rows`; `common` is what all of them share, `sketches` holds theirs, from `first` on.
    pub(crate) fn build(rows: Rows<'_>, dim: usize, common: &[f32], sketches: &Sketches, first: usize) -> Self {
        let n = rows.scales.len();
        let wanted = ((n as f64).sqrt() * LISTS) as usize;
        let spread = |over: &[usize], n: usize| -> Vec<usize> {
            let n = n.min(over.len());
            (0..n).filter_map(|i| over.get(i * over.len() / n).copied()).collect()
        };
        let sample: Vec<usize> = spread(&(0..n).collect::<Vec<_>>(), wanted * TRAINED);
        let groups = ((wanted as f64).sqrt() as usize).max(1);
        let coarse = Centres::trained(rows, dim, common, &spread(&sample, groups * TRAINED * 4), groups);
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); coarse.len()];
        for (id, (_, group)) in sample.iter().zip(coarse.nearest(rows, &sample)) {
            if let Some(members) = members.get_mut(group as usize) {
                members.push(*id);
            }
        }
        let mut centres = Centres::of(rows.width, common, std::iter::empty());
        let mut ranges = Vec::with_capacity(members.len());
        for members in &members {
            let from = centres.len();
            let own = members.len().div_ceil(TRAINED).min(members.len());
            if own > 0 {
                centres.append(Centres::trained(rows, dim, common, members, own));
            }
            ranges.push(from..centres.len());
        }
        let lists = centres.len();
        let nearest = assigned(rows, &coarse, &centres, &ranges);
        let mut at = vec![0u32; lists + 1];
        for list in &nearest {
            if let Some(end) = at.get_mut(*list as usize + 1) {
                *end += 1;
            }
        }
        let mut sum = 0;
        for end in &mut at {
            sum += *end;
            *end = sum;
        }
        let (mut next, mut ordered) = (at.clone(), vec![0u32; n]);
        for (row, list) in (first as u32..).zip(&nearest) {
            if let Some(next) = next.get_mut(*list as usize) {
                if let Some(place) = ordered.get_mut(*next as usize) {
                    *place = row;
                }
                *next += 1;
            }
        }
        let sketches = sketches.chosen(&ordered);
        Self { centres, at, rows: ordered, sketches }
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Compares the lists nearest to a query until `enough` rows were seen: `found` gets the numbers of rows and their estimated cosines.
    pub(crate) fn compare(&self, probe: &Probe, asked: &Asked, enough: usize, mut found: impl FnMut(&[u32], &[f32])) {
        let mut order = Vec::with_capacity(self.centres.len());
        self.centres.scored(Planes { hi: &probe.hi, lo: &probe.lo }, probe.scale(), 0..self.centres.len(), &mut order);
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut seen = 0;
        for (_, list) in order {
            let edge = |i: usize| self.at.get(i).map_or(0, |at| *at as usize);
            let places = edge(list as usize)..edge(list as usize + 1);
            seen += places.len();
            self.sketches.compare(asked, places, |from, scores| {
                found(self.rows.get(from..from + scores.len()).unwrap_or_default(), scores);
            });
            if seen >= enough {
                return;
            }
        }
    }
}
