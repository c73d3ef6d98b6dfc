//! A query bound to a snapshot and a view: every word looked up, counted and weighed.
//!
//! Rarity is ln(1 + (N − df + ½) / (df + ½)), never negative, with N and df over the visible, living documents of all parts.

use super::part::LexPart;
use super::query::{LexQuery, MAX_TERMS};
use super::{Field, LexConfig};
use crate::index::stack::Stack;
use crate::index::stack::{Live, Part};
use crate::index::text::TokenKind;
use crate::index::visible::Visible;
use std::ops::Range;

/// A word of the query where it occurs in some part.
pub(crate) struct BoundTerm {
    /// Visible documents that hold it.
    pub(crate) df: u64,
    /// Rarity times the weight of its kind.
    pub(crate) weight: f32,
    /// Whether it is a function word among words that are not.
    pub(crate) stop: bool,
    /// Number of the word a part, if it is there.
    pub(crate) ids: Vec<Option<u32>>,
}

/// The query's words as numbers of one part, so that a document's words are compared with them in one pass.
pub(crate) struct Asked {
    /// Numbers that may be among them, by their low bits: most words of a document are not.
    maybe: [u64; 8],
    /// Number and place in the query's terms, ascending.
    terms: Vec<(u32, u32)>,
    /// Words of the text in order; `u32::MAX` for those that the part does not know.
    pub(crate) words: Vec<u32>,
    /// Numbers of `words` with their places, ascending.
    pub(crate) places: Vec<(u32, usize)>,
}

/// Fields in which each term of a query stands in a document, in the order of the query.
pub(crate) type Fields = [u8; MAX_TERMS];

impl Asked {
    fn new(part: usize, terms: &[BoundTerm], words: &[u32]) -> Self {
        let id = |term: &BoundTerm| term.ids.get(part).copied().flatten();
        let mut asked = Self { maybe: [0; 8], terms: Vec::with_capacity(terms.len()), words: Vec::new(), places: Vec::new() };
        for (place, term) in (0u32..).zip(terms) {
            if let Some(id) = id(term) {
                asked.terms.push((id, place));
                asked.maybe[(id as usize / 64) % 8] |= 1 << (id % 64);
            }
        }
        asked.terms.sort_unstable();
        asked.words.extend(words.iter().map(|w| terms.get(*w as usize).and_then(id).unwrap_or(u32::MAX)));
        asked.places.extend(asked.words.iter().copied().zip(0..).filter(|(id, _)| *id != u32::MAX));
        asked.places.sort_unstable();
        asked
    }

    /// Whether a word may be asked for; `false` is sure.
    #[inline]
    pub(crate) fn maybe(&self, id: u32) -> bool {
        self.maybe[(id as usize / 64) % 8] & (1 << (id % 64)) != 0
    }

    /// Fields of every term in a document.
    pub(crate) fn fields(&self, part: &LexPart, doc: usize) -> Fields {
        let mut out = [0; MAX_TERMS];
        for (id, mask) in part.words_of(doc) {
            if self.maybe(id)
                && let Ok(at) = self.terms.binary_search_by_key(&id, |(asked, _)| *asked)
                && let Some(place) = self.terms.get(at).and_then(|(_, place)| out.get_mut(*place as usize))
            {
                *place = mask;
            }
        }
        out
    }
}

/// See the head of this file.
pub struct Bound<'a> {
    pub(crate) stack: &'a Stack<LexPart>,
    pub(crate) cfg: &'a LexConfig,
    pub(crate) query: &'a LexQuery,
    pub(crate) visible: &'a Visible,
    /// Visible ranges a part.
    pub(crate) runs: Vec<Vec<Range<usize>>>,
    /// One a word of the query.
    pub(crate) terms: Vec<BoundTerm>,
    /// One a part.
    pub(crate) asked: Vec<Asked>,
    /// Visible documents.
    docs: u64,
    /// k1·(1 − b), and what one unit of length adds.
    norm: (f32, f32),
    /// Weight of every set of fields.
    by_fields: [f32; 64],
    mass: f32,
    most: f32,
    known: f32,
}

impl<'a> Bound<'a> {
    pub(crate) fn new(stack: &'a Stack<LexPart>, cfg: &'a LexConfig, query: &'a LexQuery, visible: &'a Visible) -> Self {
        let runs: Vec<Vec<Range<usize>>> = stack.parts.iter().map(|live| live.part.layout().runs(visible)).collect();
        let (mut docs, mut length) = (0u64, 0u64);
        for live in &stack.parts {
            for rank in live.part.layout().visible_ranks(visible) {
                let total = live.part.total(rank, &live.dead.scar);
                docs += total.docs;
                length += total.length;
            }
        }
        let mean = if docs == 0 { 1.0 } else { (length as f64 / docs as f64).max(1.0) };
        let norm = (cfg.k1 * (1.0 - cfg.b), (f64::from(cfg.k1 * cfg.b) / mean) as f32);
        let mut by_fields = [0f32; 64];
        for (mask, sum) in by_fields.iter_mut().enumerate() {
            *sum = Field::ALL.iter().zip(&cfg.weights).filter(|(f, _)| mask & usize::from(f.bit()) != 0).map(|(_, w)| w).sum();
        }
        let mut bound = Self {
            stack,
            cfg,
            query,
            visible,
            runs,
            terms: Vec::new(),
            asked: Vec::new(),
            docs,
            norm,
            by_fields,
            mass: 0.0,
            most: 0.0,
            known: 0.0,
        };
        bound.terms = query.terms.iter().map(|term| bound.term(&term.text, term.kind, term.stop)).collect();
        let best = bound.by_fields.last().copied().unwrap_or_default();
        let mut known = 0.0;
        for (term, of) in bound.terms.iter().zip(&query.terms) {
            if of.kind == TokenKind::Word && !of.stop {
                bound.mass += term.weight;
                known += if term.df > 0 { term.weight } else { 0.0 };
            }
            if term.df > 0 {
                bound.most += term.weight * saturate(best, bound.norm.0, cfg.k1);
            }
        }
        bound.asked = (0..stack.parts.len()).map(|part| Asked::new(part, &bound.terms, &query.words)).collect();
        bound.known = share(known, bound.mass);
        bound
    }

    fn term(&self, text: &str, kind: TokenKind, stop: bool) -> BoundTerm {
        let ids: Vec<Option<u32>> = self.stack.parts.iter().map(|live| live.part.id(text)).collect();
        let df = self.stack.parts.iter().zip(&ids).zip(&self.runs).map(|((live, id), runs)| id.map_or(0, |id| count(live, id, runs))).sum();
        let of_kind = match kind {
            TokenKind::Word => 1.0,
            TokenKind::Inner => self.cfg.inner,
            TokenKind::Joined => self.cfg.joined,
            TokenKind::Pair => self.cfg.pair,
        };
        let weight = of_kind * self.rarity(df) * if stop { self.cfg.stop } else { 1.0 };
        BoundTerm { df, weight, stop, ids }
    }

    fn rarity(&self, df: u64) -> f32 {
        let (n, df) = (self.docs as f64, df as f64);
        (1.0 + (n - df + 0.5).max(0.0) / (df + 0.5)).ln() as f32
    }

    /// Visible documents.
    pub fn docs(&self) -> u64 {
        self.docs
    }

    /// Sum of the rarity of the query's words, function words aside, those that no visible document knows included: what full coverage would be.
    pub fn mass(&self) -> f32 {
        self.mass
    }

    /// Share of [`Bound::mass`] in words that some visible document holds. Range 0..=1.
    pub fn known(&self) -> f32 {
        self.known
    }

    /// More than any document can score.
    pub fn max_bm25(&self) -> f32 {
        self.most
    }

    /// What a word adds to a document that holds it in these fields and has this length.
    #[inline]
    pub(crate) fn gain(&self, weight: f32, fields: u8, length: u32) -> f32 {
        let tf = self.by_fields.get(usize::from(fields & 63)).copied().unwrap_or_default();
        weight * saturate(tf, self.norm.0 + self.norm.1 * length as f32, self.cfg.k1)
    }

    /// Most that a word can add to any document, whose fields weigh `peak` at most and whose length is `shortest` at least.
    pub(crate) fn ceiling(&self, weight: f32, (peak, shortest): (f32, u32)) -> f32 {
        weight * saturate(peak, self.norm.0 + self.norm.1 * shortest as f32, self.cfg.k1)
    }

    /// Score of a document; words in the order of the query, so that equal documents score equal bits.
    pub(crate) fn score(&self, part: usize, doc: usize) -> f32 {
        let (Some(live), Some(asked)) = (self.stack.parts.get(part), self.asked.get(part)) else { return 0.0 };
        self.score_of(&asked.fields(&live.part, doc), live.part.length(doc))
    }

    /// [`Bound::score`] from the fields of the terms and the length of the document.
    pub(crate) fn score_of(&self, fields: &Fields, length: u32) -> f32 {
        let mut sum = 0.0;
        for (term, fields) in self.terms.iter().zip(fields) {
            if term.weight > 0.0 && *fields != 0 {
                sum += self.gain(term.weight, *fields, length);
            }
        }
        sum
    }
}

/// tf·(k1 + 1) / (norm + tf); 0 for nothing.
#[inline]
fn saturate(tf: f32, norm: f32, k1: f32) -> f32 {
    if tf > 0.0 { tf * (k1 + 1.0) / (norm + tf) } else { 0.0 }
}

/// A part of a whole; 0 of nothing.
pub(crate) fn share(part: f32, whole: f32) -> f32 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

/// Living documents of a word in the given ranges.
fn count(live: &Live<LexPart>, id: u32, runs: &[Range<usize>]) -> u64 {
    let within = |docs: &[u32]| -> u64 {
        let below = |edge: usize| docs.partition_point(|doc| (*doc as usize) < edge);
        runs.iter().map(|run| (below(run.end) - below(run.start)) as u64).sum()
    };
    within(live.part.postings(id).0) - within(live.dead.scar.of(id))
}
