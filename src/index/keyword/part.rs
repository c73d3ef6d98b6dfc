//! One immutable set of analysed documents: postings one way, words of a document the other way.
//!
//! Postings are ordered by document, and documents by class, so that counting a word over the visible documents is a binary search a
//! range. Deleted documents leave their number behind at each of their words ([`Scar`]), so that counts stay exact.
//! Memory: about 5 bytes a posting, 5 more a word of a document, 2 bytes a distinct pair of characters, a byte a document for each
//! word of very many documents.

use super::{Field, LexConfig, LexDoc};
use crate::index::layout::Layout;
use crate::index::stack::Part;
use crate::index::text::{Token, TokenKind, analyze, grams};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Words of a description whose order is kept.
const MAX_SEQUENCE: usize = 160;
/// Characters of a field whose pairs are kept.
const MAX_GRAM_CHARS: usize = 2_000;
/// Distinct pairs of characters that are kept of one document.
const MAX_GRAMS: usize = 1_200;
/// Documents of a part from which on words that one in [`WIDE`] of them holds have their fields in one place: looking them up document by document
/// is what a search of many documents spends its time on.
const WIDE_FROM: usize = 1_024;
const WIDE: usize = 16;
/// A length of 1 in the fixed-point unit of document lengths.
const LENGTH_UNIT: f32 = 16.0;

/// A document's words, ready to be indexed.
#[derive(Clone)]
pub struct Analyzed {
    slot: u32,
    class: u32,
    /// Distinct tokens with the fields they stand in, and whether as a word.
    terms: Vec<(Arc<str>, u8)>,
    /// Distinct words a field.
    lengths: [u16; 6],
    /// Words of the name and of each alias, in order.
    names: Vec<Vec<Arc<str>>>,
    /// Words of the description, in order.
    description: Vec<Arc<str>>,
    name_grams: Vec<u16>,
    text_grams: Vec<u16>,
}

impl Analyzed {
    /// Analyses the texts of a document: about 50 µs for a usual one.
    pub fn new(doc: &LexDoc) -> Self {
        let mut terms: HashMap<Arc<str>, u8> = HashMap::new();
        let mut lengths = [0u16; 6];
        let mut seen: HashMap<Arc<str>, u8> = HashMap::new();
        let (mut names, mut description) = (Vec::new(), Vec::new());
        let (mut name_grams, mut text_grams) = (Vec::new(), Vec::new());
        for (field, text) in &doc.fields {
            let tokens = analyze(text);
            let mut sequence: Vec<Arc<str>> = Vec::new();
            for Token { text, kind, .. } in tokens {
                let text: Arc<str> = text.into();
                *terms.entry(Arc::clone(&text)).or_default() |= field.bit();
                if kind == TokenKind::Word {
                    let fields = seen.entry(Arc::clone(&text)).or_default();
                    if *fields & field.bit() == 0 {
                        *fields |= field.bit();
                        if let Some(length) = lengths.get_mut(*field as usize) {
                            *length = length.saturating_add(1);
                        }
                    }
                    sequence.push(text);
                }
            }
            match field {
                Field::Name | Field::Alias => {
                    name_grams.extend(grams(text, MAX_GRAM_CHARS));
                    names.push(sequence);
                }
                Field::Description => description.extend(sequence),
                Field::Example | Field::Tag | Field::Schema => {}
            }
            text_grams.extend(grams(text, MAX_GRAM_CHARS));
        }
        description.truncate(MAX_SEQUENCE);
        for grams in [&mut name_grams, &mut text_grams] {
            grams.sort_unstable();
            grams.dedup();
            grams.truncate(MAX_GRAMS);
        }
        Self { slot: doc.slot, class: doc.class, terms: terms.into_iter().collect(), lengths, names, description, name_grams, text_grams }
    }
}

/// Lists of numbers, one a document, end to end.
struct Lists<T> {
    at: Vec<u32>,
    items: Vec<T>,
}

impl<T> Lists<T> {
    fn new() -> Self {
        Self { at: vec![0], items: Vec::new() }
    }

    fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.at.push(self.items.len() as u32);
    }

    fn range(&self, i: usize) -> Range<usize> {
        let edge = |i: usize| self.at.get(i).map_or(0, |v| *v as usize);
        edge(i)..edge(i + 1)
    }

    fn get(&self, i: usize) -> &[T] {
        self.items.get(self.range(i)).unwrap_or_default()
    }
}

/// End of a name in a list of names.
const END: u32 = u32::MAX;

pub(crate) struct LexPart {
    layout: Layout,
    words: Vec<Arc<str>>,
    dictionary: HashMap<Arc<str>, u32>,
    /// Documents of a word, ascending, and the fields it stands in there.
    postings: Lists<u32>,
    fields: Vec<u8>,
    /// Of each word that very many documents hold: the fields it stands in, a byte a document.
    wide: HashMap<u32, Vec<u8>>,
    /// Of each word: most that the fields of one document weigh for it, and the shortest of its documents.
    peaks: Vec<(f32, u32)>,
    /// Words of a document, ascending, and the fields in which each stands.
    forward: Lists<u32>,
    forward_fields: Vec<u8>,
    /// Weighted length of a document in units of 1/16.
    lengths: Vec<u32>,
    raw_lengths: Vec<[u16; 6]>,
    /// Documents and their lengths, a class.
    totals: Vec<Total>,
    names: Lists<u32>,
    descriptions: Lists<u32>,
    name_grams: Lists<u16>,
    text_grams: Lists<u16>,
}

/// Number of documents and sum of their lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) docs: u64,
    pub(crate) length: u64,
}

/// What deleted documents leave behind.
#[derive(Clone, Default)]
pub(crate) struct Scar {
    /// Deleted documents of a word, ascending.
    words: imbl::HashMap<u32, Arc<Vec<u32>>>,
    /// What is gone from a class, by rank.
    totals: imbl::HashMap<usize, Total>,
}

impl Part for LexPart {
    type Doc = Analyzed;
    type Scar = Scar;
    type Config = Arc<LexConfig>;

    fn slot(doc: &Analyzed) -> u32 {
        doc.slot
    }

    fn build(mut docs: Vec<Analyzed>, cfg: &Arc<LexConfig>) -> Self {
        docs.sort_unstable_by_key(|doc| (doc.class, doc.slot));
        let mut part = Self {
            layout: Layout::new(docs.iter().map(|doc| (doc.class, doc.slot))),
            words: Vec::new(),
            dictionary: HashMap::new(),
            postings: Lists::new(),
            fields: Vec::new(),
            wide: HashMap::new(),
            peaks: Vec::new(),
            forward: Lists::new(),
            forward_fields: Vec::new(),
            lengths: Vec::with_capacity(docs.len()),
            raw_lengths: Vec::with_capacity(docs.len()),
            totals: Vec::new(),
            names: Lists::new(),
            descriptions: Lists::new(),
            name_grams: Lists::new(),
            text_grams: Lists::new(),
        };
        let weight = |mask: u8| -> f32 { Field::ALL.iter().zip(&cfg.weights).filter(|(f, _)| mask & f.bit() != 0).map(|(_, w)| w).sum() };
        let mut by_word: Vec<Vec<(u32, u8)>> = Vec::new();
        for (doc, analyzed) in (0u32..).zip(docs) {
            let mut own: Vec<(u32, u8)> = Vec::with_capacity(analyzed.terms.len());
            for (text, mask) in &analyzed.terms {
                let id = part.intern(text);
                if by_word.len() <= id as usize {
                    by_word.resize_with(id as usize + 1, Vec::new);
                }
                if let Some(list) = by_word.get_mut(id as usize) {
                    list.push((doc, *mask));
                }
                own.push((id, *mask));
            }
            own.sort_unstable();
            part.forward_fields.extend(own.iter().map(|(_, mask)| *mask));
            part.forward.push(own.into_iter().map(|(id, _)| id));
            let length: f32 = analyzed.lengths.iter().zip(&cfg.weights).map(|(n, w)| f32::from(*n) * w * LENGTH_UNIT).sum();
            part.lengths.push(length as u32);
            part.raw_lengths.push(analyzed.lengths);
            let mut names = Vec::new();
            for name in &analyzed.names {
                names.extend(name.iter().map(|w| part.intern(w)));
                names.push(END);
            }
            part.names.push(names);
            let description: Vec<u32> = analyzed.description.iter().map(|w| part.intern(w)).collect();
            part.descriptions.push(description);
            part.name_grams.push(analyzed.name_grams);
            part.text_grams.push(analyzed.text_grams);
        }
        let docs = part.layout.len();
        for (id, list) in (0u32..).zip(by_word) {
            if docs >= WIDE_FROM && list.len() >= docs / WIDE {
                let mut fields = vec![0; docs];
                for (doc, mask) in &list {
                    if let Some(place) = fields.get_mut(*doc as usize) {
                        *place = *mask;
                    }
                }
                part.wide.insert(id, fields);
            }
            let shortest = list.iter().map(|(doc, _)| part.length(*doc as usize)).min().unwrap_or_default();
            part.peaks.push((list.iter().map(|(_, mask)| weight(*mask)).fold(0.0, f32::max), shortest));
            part.fields.extend(list.iter().map(|(_, mask)| *mask));
            part.postings.push(list.into_iter().map(|(doc, _)| doc));
        }
        for rank in 0..part.layout.class_count() {
            let docs = part.layout.class(rank).map_or(0..0, |(_, docs)| docs);
            let total = docs.fold(Total::default(), |t, doc| Total { docs: t.docs + 1, length: t.length + u64::from(part.length(doc)) });
            part.totals.push(total);
        }
        part
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn extract(&self, doc: usize) -> Option<Analyzed> {
        let word = |id: &u32| self.words.get(*id as usize).map_or_else(|| Arc::from(""), Arc::clone);
        let name = |ids: &[u32]| ids.iter().map(word).collect::<Vec<_>>();
        let names = self.names.get(doc);
        Some(Analyzed {
            slot: self.layout.slot(doc),
            class: self.layout.class_of(doc),
            terms: self.words_of(doc).map(|(id, mask)| (word(&id), mask)).collect(),
            lengths: *self.raw_lengths.get(doc)?,
            names: names.strip_suffix(&[END]).map(|names| names.split(|id| *id == END).map(name).collect()).unwrap_or_default(),
            description: name(self.descriptions.get(doc)),
            name_grams: self.name_grams.get(doc).to_vec(),
            text_grams: self.text_grams.get(doc).to_vec(),
        })
    }

    fn bury(&self, doc: usize, scar: &mut Scar) {
        for id in self.forward.get(doc) {
            let docs = Arc::make_mut(scar.words.entry(*id).or_default());
            if let Err(at) = docs.binary_search(&(doc as u32)) {
                docs.insert(at, doc as u32);
            }
        }
        let total = scar.totals.entry(self.layout.rank_of(doc)).or_default();
        total.docs += 1;
        total.length += u64::from(self.length(doc));
    }

    fn finish(&self, _cfg: &Arc<LexConfig>) -> Option<Self> {
        None
    }

    fn unfinished(&self, _cfg: &Arc<LexConfig>) -> bool {
        false
    }
}

impl LexPart {
    fn intern(&mut self, text: &Arc<str>) -> u32 {
        if let Some(id) = self.dictionary.get(text) {
            return *id;
        }
        let id = self.words.len() as u32;
        self.words.push(Arc::clone(text));
        self.dictionary.insert(Arc::clone(text), id);
        id
    }

    /// Number of a word.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.dictionary.get(text).copied()
    }

    /// Documents of a word, ascending, with fields.
    pub(crate) fn postings(&self, id: u32) -> (&[u32], &[u8]) {
        let range = self.postings.range(id as usize);
        (self.postings.items.get(range.clone()).unwrap_or_default(), self.fields.get(range).unwrap_or_default())
    }

    /// Fields in which a word stands, a byte a document; kept for words of very many documents.
    pub(crate) fn wide(&self, id: u32) -> Option<&[u8]> {
        self.wide.get(&id).map(Vec::as_slice)
    }

    /// Most that the fields of one document weigh for a word, and the length of the shortest document that holds it.
    pub(crate) fn peak(&self, id: u32) -> (f32, u32) {
        self.peaks.get(id as usize).copied().unwrap_or_default()
    }

    /// Weighted length of a document in units of 1/16.
    #[inline]
    pub(crate) fn length(&self, doc: usize) -> u32 {
        self.lengths.get(doc).copied().unwrap_or_default()
    }

    /// Fields in which a word stands in a document; 0 for none.
    #[inline]
    pub(crate) fn fields(&self, doc: usize, id: u32) -> u8 {
        let range = self.forward.range(doc);
        let words = self.forward.items.get(range.clone()).unwrap_or_default();
        words.binary_search(&id).ok().and_then(|at| self.forward_fields.get(range.start + at)).copied().unwrap_or_default()
    }

    /// Words of a document, ascending, and the fields in which each stands.
    pub(crate) fn words_of(&self, doc: usize) -> impl Iterator<Item = (u32, u8)> {
        let range = self.forward.range(doc);
        let fields = self.forward_fields.get(range.clone()).unwrap_or_default();
        self.forward.items.get(range).unwrap_or_default().iter().copied().zip(fields.iter().copied())
    }

    /// Words of each name of a document, in order.
    pub(crate) fn names(&self, doc: usize) -> impl Iterator<Item = &[u32]> {
        self.names.get(doc).split(|id| *id == END).filter(|name| !name.is_empty())
    }

    /// Words of the description, in order.
    pub(crate) fn description(&self, doc: usize) -> &[u32] {
        self.descriptions.get(doc)
    }

    /// Pairs of characters of the names, and of everything.
    pub(crate) fn grams(&self, doc: usize) -> (&[u16], &[u16]) {
        (self.name_grams.get(doc), self.text_grams.get(doc))
    }

    /// Living documents of a class and their length.
    pub(crate) fn total(&self, rank: usize, scar: &Scar) -> Total {
        let all = self.totals.get(rank).copied().unwrap_or_default();
        let gone = scar.totals.get(&rank).copied().unwrap_or_default();
        Total { docs: all.docs.saturating_sub(gone.docs), length: all.length.saturating_sub(gone.length) }
    }
}

impl Scar {
    /// Deleted documents of a word, ascending.
    pub(crate) fn of(&self, id: u32) -> &[u32] {
        self.words.get(&id).map_or(&[], |docs| docs.as_slice())
    }
}
