//! A graph of near neighbours over the int8 rows of a part (HNSW: Malkov and Yashunin, 2016), for parts too large to scan.
//!
//! Flat arrays of row numbers, built one row after the other, levels drawn from a hash of the row: the same rows give the same graph.
//! When a node has too many neighbours, the ones to keep are chosen anew by diversity; cutting off the farthest is what loses nodes.
//! A search is approximate and says so by its floor: below it there may be rows that were not seen.
//! Memory: about 140 bytes a row. Cost: building about 0.1 ms a row and core; a search looks at about 15·`ef` rows.
//! Not here: visibility (a graph covers whole classes only), deleted documents, f32.

use super::quant::Probe;
use crate::kernel::dot::{Planes, dot_i8, gather_i8};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

pub(super) const NONE: u32 = u32::MAX;
/// Highest level of a node.
pub(super) const TOP: usize = 12;

/// How graphs are built and searched.
#[derive(Clone, Debug)]
pub struct GraphConfig {
    /// Scanned vectors of a part, or of a class within it, from which on it gets a graph; below, it is scanned exactly.
    pub min_rows: usize,
    /// Neighbours a node keeps on the upper levels; twice as many on the lowest. 4..=64.
    pub neighbours: usize,
    /// Rows that are kept in view while a node is inserted.
    pub ef_build: usize,
    /// Rows that are kept in view during a search, at least; four times `k` if that is more.
    pub ef_search: usize,
}

impl Default for GraphConfig {
    fn default() -> Self {
        Self { min_rows: 32_768, neighbours: 16, ef_build: 120, ef_search: 160 }
    }
}

/// Rows as the graph sees them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) width: usize,
    pub(crate) rows: &'a [i8],
    pub(crate) sums: &'a [i32],
    pub(crate) scales: &'a [f32],
}

impl<'a> Rows<'a> {
    fn row(&self, id: u32) -> &'a [i8] {
        let at = id as usize * self.width;
        self.rows.get(at..at + self.width).unwrap_or_default()
    }

    fn scale(&self, id: u32) -> f32 {
        self.scales.get(id as usize).copied().unwrap_or_default()
    }

    fn between(&self, a: u32, b: u32) -> f32 {
        dot_i8(self.row(a), self.row(b)) as f32 * self.scale(a) * self.scale(b)
    }

    /// The part of these rows that a graph covers.
    pub(crate) fn cut(&self, range: &Range<usize>) -> Rows<'a> {
        Rows {
            width: self.width,
            rows: self.rows.get(range.start * self.width..range.end * self.width).unwrap_or_default(),
            sums: self.sums.get(range.clone()).unwrap_or_default(),
            scales: self.scales.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// A node and how near it is; nearer is greater, of equals the lower number.
#[derive(Clone, Copy, PartialEq)]
struct Near {
    score: f32,
    id: u32,
}

impl Eq for Near {}

impl Ord for Near {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What is asked: a query's planes and how to turn products into a score.
struct Asked<'a> {
    planes: Planes<'a>,
    score: &'a dyn Fn((i32, i32), f32) -> f32,
}

/// Numbers seen so far; open addressing, so that a search does not touch memory in the size of the graph.
struct Visited {
    table: Vec<u32>,
    used: usize,
}

impl Visited {
    fn new(expected: usize) -> Self {
        Self { table: vec![NONE; (expected * 2).next_power_of_two().max(64)], used: 0 }
    }

    /// Whether `id` is new.
    fn insert(&mut self, id: u32) -> bool {
        if self.used * 2 >= self.table.len() {
            let old = std::mem::replace(&mut self.table, vec![NONE; 0]);
            self.table = vec![NONE; old.len() * 2];
            self.used = 0;
            for id in old.into_iter().filter(|id| *id != NONE) {
                self.insert(id);
            }
        }
        let mask = self.table.len() - 1;
        let mut at = (id.wrapping_mul(0x9E37_79B1) >> 7) as usize & mask;
        while let Some(place) = self.table.get_mut(at) {
            if *place == id {
                return false;
            }
            if *place == NONE {
                *place = id;
                self.used += 1;
                return true;
            }
            at = (at + 1) & mask;
        }
        false
    }
}

/// See the head of this file.
#[derive(PartialEq, Eq)]
pub(crate) struct Graph {
    pub(super) neighbours: usize,
    /// Neighbours on the lowest level, `2·neighbours` places a node.
    pub(super) base: Vec<u32>,
    /// Where the upper levels of a node begin in `upper`, in blocks of `neighbours` places; `NONE` for most.
    pub(super) upper_at: Vec<u32>,
    pub(super) upper: Vec<u32>,
    pub(super) entry: u32,
    pub(super) top: usize,
}

fn level(id: u32, neighbours: usize) -> usize {
    // splitmix64
    let mut z = u64::from(id).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
    ((-uniform.max(1e-300).ln() / (neighbours as f64).ln()) as usize).min(TOP)
}

impl Graph {
    /// Builds the graph over `rows`, whose numbers become those of the nodes.
    pub(crate) fn build(rows: Rows<'_>, cfg: &GraphConfig) -> Self {
        let m = cfg.neighbours.clamp(4, 64);
        let n = rows.sums.len();
        let mut graph =
            Self { neighbours: m, base: vec![NONE; n * 2 * m], upper_at: vec![NONE; n], upper: Vec::new(), entry: NONE, top: 0 };
        for id in 0..n as u32 {
            graph.insert(rows, id, cfg.ef_build.max(m));
        }
        graph
    }

    fn places(&self, id: u32, level: usize) -> Range<usize> {
        if level == 0 {
            let at = id as usize * 2 * self.neighbours;
            return at..at + 2 * self.neighbours;
        }
        match self.upper_at.get(id as usize) {
            Some(at) if *at != NONE => {
                let at = *at as usize + (level - 1) * self.neighbours;
                at..at + self.neighbours
            }
            Some(_) | None => 0..0,
        }
    }

    fn links(&self, id: u32, level: usize) -> &[u32] {
        let places = self.places(id, level);
        let all = if level == 0 { self.base.get(places) } else { self.upper.get(places) }.unwrap_or_default();
        all.get(..all.iter().position(|id| *id == NONE).unwrap_or(all.len())).unwrap_or_default()
    }

    fn set_links(&mut self, id: u32, level: usize, links: &[u32]) {
        let places = self.places(id, level);
        let all = if level == 0 { self.base.get_mut(places) } else { self.upper.get_mut(places) }.unwrap_or_default();
        all.fill(NONE);
        for (place, link) in all.iter_mut().zip(links) {
            *place = *link;
        }
    }

    fn insert(&mut self, rows: Rows<'_>, id: u32, ef: usize) {
        let own = level(id, self.neighbours);
        if own > 0
            && let Some(at) = self.upper_at.get_mut(id as usize)
        {
            *at = self.upper.len() as u32;
            self.upper.resize(self.upper.len() + own * self.neighbours, NONE);
        }
        if self.entry == NONE {
            (self.entry, self.top) = (id, own);
            return;
        }
        let row = rows.row(id);
        let scale = rows.scale(id);
        let score = |dots: (i32, i32), other: f32| dots.0 as f32 * scale * other;
        let asked = Asked { planes: Planes { hi: row, lo: row }, score: &score };
        let mut at = self.descend(rows, &asked, own);
        for level in (0..=own.min(self.top)).rev() {
            let found = self.walk(rows, &asked, &at, ef, level);
            let room = if level == 0 { 2 * self.neighbours } else { self.neighbours };
            let chosen = diverse(rows, &found, self.neighbours);
            self.set_links(id, level, &chosen);
            for other in chosen {
                let links = self.links(other, level);
                if links.len() < room {
                    let places = self.places(other, level);
                    let free = places.start + links.len();
                    let all = if level == 0 { &mut self.base } else { &mut self.upper };
                    if let Some(place) = all.get_mut(free) {
                        *place = id;
                    }
                    continue;
                }
                let mut near: Vec<Near> =
                    links.iter().copied().chain([id]).map(|link| Near { score: rows.between(other, link), id: link }).collect();
                near.sort_unstable_by(|a, b| b.cmp(a));
                let kept = diverse(rows, &near, room);
                self.set_links(other, level, &kept);
            }
            at = found;
        }
        if own > self.top {
            (self.entry, self.top) = (id, own);
        }
    }

    /// The nearest node on the levels above `level`, greedily.
    fn descend(&self, rows: Rows<'_>, asked: &Asked<'_>, level: usize) -> Vec<Near> {
        let mut at = self.score(rows, asked, &[self.entry]);
        for level in (level + 1..=self.top).rev() {
            at = self.walk(rows, asked, &at, 1, level);
        }
        at
    }

    fn score(&self, rows: Rows<'_>, asked: &Asked<'_>, ids: &[u32]) -> Vec<Near> {
        let mut out = vec![(0, 0); ids.len()];
        gather_i8(asked.planes, rows.rows, rows.sums, ids, &mut out);
        ids.iter().zip(out).map(|(id, dots)| Near { score: (asked.score)(dots, rows.scale(*id)), id: *id }).collect()
    }

    /// The `ef` nearest nodes that a walk along the links of one level finds, nearest first.
    fn walk(&self, rows: Rows<'_>, asked: &Asked<'_>, from: &[Near], ef: usize, level: usize) -> Vec<Near> {
        let mut visited = Visited::new(ef * 16);
        let mut open: BinaryHeap<Near> = BinaryHeap::new();
        let mut found: BinaryHeap<Reverse<Near>> = BinaryHeap::with_capacity(ef + 1);
        for near in from {
            visited.insert(near.id);
            open.push(*near);
            found.push(Reverse(*near));
        }
        while found.len() > ef {
            found.pop();
        }
        let (mut fresh, mut dots) = (Vec::with_capacity(64), vec![(0, 0); 0]);
        while let Some(next) = open.pop() {
            if found.len() >= ef && found.peek().is_some_and(|worst| next < worst.0) {
                break;
            }
            fresh.clear();
            fresh.extend(self.links(next.id, level).iter().copied().filter(|id| visited.insert(*id)));
            dots.resize(fresh.len(), (0, 0));
            gather_i8(asked.planes, rows.rows, rows.sums, &fresh, &mut dots);
            for (id, dots) in fresh.iter().zip(&dots) {
                let near = Near { score: (asked.score)(*dots, rows.scale(*id)), id: *id };
                if found.len() < ef || found.peek().is_some_and(|worst| near > worst.0) {
                    open.push(near);
                    found.push(Reverse(near));
                    if found.len() > ef {
                        found.pop();
                    }
                }
            }
        }
        found.into_sorted_vec().into_iter().map(|Reverse(near)| near).collect()
    }

    /// About the `ef` rows nearest to the query, nearest first, with approximate cosines. `rows`: those that it was built over.
    pub(crate) fn search(&self, rows: Rows<'_>, probe: &Probe, ef: usize) -> Vec<(u32, f32)> {
        if self.entry == NONE {
            return Vec::new();
        }
        let score = |dots: (i32, i32), scale: f32| probe.score(dots, scale);
        let asked = Asked { planes: Planes { hi: &probe.hi, lo: &probe.lo }, score: &score };
        let at = self.descend(rows, &asked, 0);
        self.walk(rows, &asked, &at, ef, 0).into_iter().map(|near| (near.id, near.score)).collect()
    }
}

/// At most `room` of `near` (nearest first): those that are nearer to the node than to any that was chosen before, then the nearest of the rest.
fn diverse(rows: Rows<'_>, near: &[Near], room: usize) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::with_capacity(room);
    let mut left: Vec<u32> = Vec::new();
    for candidate in near {
        if chosen.len() >= room {
            break;
        }
        if chosen.iter().all(|other| rows.between(*other, candidate.id) < candidate.score) {
            chosen.push(candidate.id)
        } else {
            left.push(candidate.id)
        }
    }
    let free = room - chosen.len();
    chosen.extend(left.into_iter().take(free));
    chosen
}
