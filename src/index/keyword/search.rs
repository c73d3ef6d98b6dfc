//! Top-k by score, without looking at most of the documents.
//!
//! Documents are taken in windows. In each, the words that can still decide are added up in a small table; the others, whose ceilings
//! together can't lift a document into the hits, are looked up only for documents that come near (the idea of MaxScore). What is left is
//! scored again in the order of the query, so that pruning leaves no trace in the bits. Where postings are very many, some documents of the rarest
//! words are scored first, so that the bar is high from the first window on.

use super::bound::{Bound, BoundTerm};
use crate::index::stack::Part;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

/// Documents of a window; its sums stay in the first-level cache.
const WINDOW: usize = 4096;
/// Postings of a query from which on documents of its rarest words are scored first.
const SEED_FROM: u64 = 32_768;
/// How many of them, for each hit that is wanted.
const SEEDS: usize = 16;
/// One in so many hits may be held back by a gate before the search is made again with the gate inside.
const SPARE: usize = 3;
/// Postings that cost as much as looking a word up in one document.
const LOOK: usize = 32;
/// What rounding may do to sums in another order.
const SLACK: f32 = 1.000_1;

/// A capability found by words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LexHit {
    /// Capability slot.
    pub slot: u32,
    /// BM25 over weighted fields. > 0.
    pub bm25: f32,
}

/// The worst hit is the greatest, so that a max-heap gives it up first.
#[derive(PartialEq)]
struct Ranked(LexHit);

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.bm25.total_cmp(&self.0.bm25).then(self.0.slot.cmp(&other.0.slot))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A word's postings within a run.
struct Cursor<'a> {
    id: u32,
    docs: &'a [u32],
    fields: &'a [u8],
    /// Fields of every document, where the word is one of very many documents.
    wide: Option<&'a [u8]>,
    weight: f32,
    ceiling: f32,
    /// Never searched for, only scored.
    common: bool,
    /// Whether what it really adds stands in the table of this window.
    added: bool,
}

impl Cursor<'_> {
    /// Drops postings before `doc`.
    fn advance(&mut self, doc: usize) {
        let n = self.docs.partition_point(|d| (*d as usize) < doc);
        self.docs = self.docs.get(n..).unwrap_or_default();
        self.fields = self.fields.get(n..).unwrap_or_default();
    }

    /// Gives the postings of a window, and drops them and those before; `false` where there are more than `most`.
    fn add(&mut self, window: Range<usize>, most: usize, mut each: impl FnMut(usize, u8, f32)) -> bool {
        self.advance(window.start);
        let n = self.docs.partition_point(|doc| (*doc as usize) < window.end);
        if n > most {
            return false;
        }
        self.docs.iter().zip(self.fields).take(n).for_each(|(doc, fields)| each(*doc as usize, *fields, self.weight));
        self.docs = self.docs.get(n..).unwrap_or_default();
        self.fields = self.fields.get(n..).unwrap_or_default();
        true
    }
}

impl Bound<'_> {
    /// The `k` visible slots with the highest score that `gate` lets through; score descending, then slot ascending.
    ///
    /// `gate` is asked only for slots that would be hits, best first as long as it lets most of them through. Documents that hold none of the query's words, or nothing but function words and
    /// words that stand everywhere although the query has others, are not hits.
    pub fn search(&self, k: usize, gate: &mut dyn FnMut(u32) -> bool) -> Vec<LexHit> {
        if k == 0 {
            return Vec::new();
        }
        // on the way up to the best many are hits for a while: asking a gate for each of them costs more than finding a few too many
        let most = k.saturating_add(k / SPARE).saturating_add(1);
        let found = self.best(most, &mut |_| true);
        let all = found.len() < most;
        let passed: Vec<LexHit> = found.into_iter().filter(|hit| gate(hit.slot)).take(k).collect();
        if all || passed.len() == k { passed } else { self.best(k, gate) }
    }

    fn best(&self, k: usize, gate: &mut dyn FnMut(u32) -> bool) -> Vec<LexHit> {
        let rare = |term: &BoundTerm| term.df <= self.cfg.common.max(self.docs() / 20);
        let known = |t: &&BoundTerm| t.df > 0 && t.weight > 0.0 && !t.stop;
        let (any_word, any_rare) = (self.terms.iter().any(|t| known(&t)), self.terms.iter().filter(known).any(rare));
        let common = |term: &BoundTerm| if term.stop { any_word } else { any_rare && !rare(term) };
        let mut top = Top { k, hits: BinaryHeap::with_capacity(k.min(1024) + 1), gate, seeds: HashSet::new() };
        let searched = || self.terms.iter().filter(|t| t.weight > 0.0 && t.df > 0 && !common(t));
        if searched().map(|t| t.df).sum::<u64>() >= SEED_FROM {
            let mut rarest: Vec<&BoundTerm> = searched().collect();
            rarest.sort_by_key(|t| t.df);
            self.seed(&rarest, k.saturating_mul(SEEDS), &mut top);
        }
        let mut table = vec![0f32; WINDOW];
        for (part, runs) in self.runs.iter().enumerate() {
            for run in runs {
                let mut cursors: Vec<Cursor<'_>> = Vec::new();
                let Some(live) = self.stack.parts.get(part) else { continue };
                for term in self.terms.iter().filter(|t| t.weight > 0.0) {
                    let Some(Some(id)) = term.ids.get(part) else { continue };
                    let (docs, fields) = live.part.postings(*id);
                    let ceiling = self.ceiling(term.weight, live.part.peak(*id));
                    let mut cursor = Cursor {
                        id: *id,
                        docs,
                        fields,
                        wide: live.part.wide(*id),
                        weight: term.weight,
                        ceiling,
                        common: common(term),
                        added: false,
                    };
                    cursor.advance(run.start);
                    cursors.push(cursor);
                }
                // those that decide least first
                cursors.sort_by(|a, b| b.common.cmp(&a.common).then(a.ceiling.total_cmp(&b.ceiling)));
                self.run(part, run.clone(), &mut cursors, &mut table, &mut top);
            }
        }
        top.hits.into_sorted_vec().into_iter().map(|ranked| ranked.0).collect()
    }

    /// Offers up to `n` documents of the given words, the first word's first.
    fn seed(&self, terms: &[&BoundTerm], n: usize, top: &mut Top<'_>) {
        for term in terms {
            for (part, runs) in self.runs.iter().enumerate() {
                let (Some(live), Some(Some(id))) = (self.stack.parts.get(part), term.ids.get(part)) else { continue };
                let (docs, _) = live.part.postings(*id);
                for run in runs {
                    let first = docs.partition_point(|doc| (*doc as usize) < run.start);
                    for doc in docs.iter().skip(first).take_while(|doc| (**doc as usize) < run.end) {
                        if top.seeds.len() >= n {
                            return;
                        }
                        let at = *doc as usize;
                        if !live.dead.has(at) && top.seeds.insert((part, *doc)) {
                            top.offer(LexHit { slot: live.part.layout().slot(at), bm25: self.score(part, at) });
                        }
                    }
                }
            }
        }
    }

    fn run(&self, part: usize, run: Range<usize>, cursors: &mut [Cursor<'_>], table: &mut [f32], top: &mut Top<'_>) {
        let Some(live) = self.stack.parts.get(part) else { return };
        let mut touched: Vec<u32> = Vec::new();
        loop {
            // words whose ceilings together stay below the worst hit are not searched for
            let (mut idle, mut idle_sum) = (0, 0.0);
            for cursor in cursors.iter() {
                if !cursor.common && (idle_sum + cursor.ceiling) * SLACK >= top.floor() {
                    break;
                }
                idle_sum += cursor.ceiling;
                idle += 1;
            }
            let Some((idlers, active)) = cursors.split_at_mut_checked(idle) else { return };
            let next = active.iter().filter_map(|c| c.docs.first()).min().map(|doc| *doc as usize);
            let Some(start) = next.filter(|doc| *doc < run.end) else { return };
            let end = (start + WINDOW).min(run.end);
            touched.clear();
            for cursor in active.iter_mut() {
                let n = cursor.docs.partition_point(|doc| (*doc as usize) < end);
                for (doc, fields) in cursor.docs.iter().zip(cursor.fields).take(n) {
                    let at = *doc as usize - start;
                    let Some(sum) = table.get_mut(at) else { break };
                    if *sum == 0.0 {
                        touched.push(at as u32);
                    }
                    *sum += self.gain(cursor.weight, *fields, live.part.length(*doc as usize));
                }
                cursor.docs = cursor.docs.get(n..).unwrap_or_default();
                cursor.fields = cursor.fields.get(n..).unwrap_or_default();
            }
            // words that decide little: those that few documents hold are added up too, unless looking at what was found is less work
            let mut open = 0.0;
            for cursor in idlers.iter_mut() {
                cursor.added = cursor.wide.is_none()
                    && cursor.add(start..end, touched.len().saturating_mul(LOOK), |doc, fields, weight| {
                        if let Some(sum) = table.get_mut(doc - start).filter(|sum| **sum != 0.0) {
                            *sum += self.gain(weight, fields, live.part.length(doc));
                        }
                    });
                open += if cursor.added { 0.0 } else { cursor.ceiling };
            }
            for at in &touched {
                let Some(slot) = table.get_mut(*at as usize) else { continue };
                let sum = std::mem::take(slot);
                let doc = start + *at as usize;
                let mut bound = sum + open;
                if bound * SLACK < top.floor() || live.dead.has(doc) {
                    continue;
                }
                // what the other words really add, the weightiest first, until it is clear that it is not enough: first those that cost one look
                let length = live.part.length(doc);
                let mut still = |cursor: &Cursor<'_>, fields: u8| {
                    bound += if fields == 0 { 0.0 } else { self.gain(cursor.weight, fields, length) } - cursor.ceiling;
                    bound * SLACK >= top.floor()
                };
                let wide = |cursor: &Cursor<'_>| cursor.wide.and_then(|fields| fields.get(doc).copied());
                let enough = idlers.iter().rev().filter_map(|c| Some((c, wide(c)?))).all(|(cursor, fields)| still(cursor, fields))
                    && idlers
                        .iter()
                        .rev()
                        .filter(|c| c.wide.is_none() && !c.added)
                        .all(|cursor| still(cursor, live.part.fields(doc, cursor.id)));
                if enough && !top.seeds.contains(&(part, doc as u32)) {
                    top.offer(LexHit { slot: live.part.layout().slot(doc), bm25: self.score(part, doc) });
                }
            }
        }
    }
}

/// The hits so far.
struct Top<'a> {
    k: usize,
    hits: BinaryHeap<Ranked>,
    /// Part and document of what was offered before everything else.
    seeds: HashSet<(usize, u32)>,
    gate: &'a mut dyn FnMut(u32) -> bool,
}

impl Top<'_> {
    /// Score of the worst hit once there are enough; below it nothing matters.
    fn floor(&self) -> f32 {
        if self.hits.len() < self.k { f32::NEG_INFINITY } else { self.hits.peek().map_or(f32::NEG_INFINITY, |worst| worst.0.bm25) }
    }

    fn offer(&mut self, hit: LexHit) {
        let hit = Ranked(hit);
        if (self.hits.len() < self.k || self.hits.peek().is_some_and(|worst| hit < *worst)) && hit.0.bm25 > 0.0 && (self.gate)(hit.0.slot) {
            self.hits.push(hit);
            if self.hits.len() > self.k {
                self.hits.pop();
            }
        }
    }
}
