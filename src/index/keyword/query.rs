//! A query as distinct words.

use crate::index::text::{TokenKind, analyze, grams};
use std::collections::HashMap;

/// Distinct tokens of a query that are looked up.
pub(crate) const MAX_TERMS: usize = 384;
/// Characters of a query whose pairs are compared.
const MAX_GRAM_CHARS: usize = 1_000;

/// A word of a query.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) text: String,
    pub(crate) kind: TokenKind,
    /// Whether it is a function word among words that are not.
    pub(crate) stop: bool,
}

/// A query text, analysed once and then bound to any number of snapshots.
#[derive(Clone, Debug)]
pub struct LexQuery {
    /// Distinct, in the order of first occurrence.
    pub(crate) terms: Vec<Term>,
    /// Words of the text as ranks in `terms`, in order.
    pub(crate) words: Vec<u32>,
    /// Pairs of characters.
    pub(crate) grams: Grams,
}

/// A set of pairs of characters: one bit each of the 65,536 there can be.
#[derive(Clone, Debug)]
pub(crate) struct Grams {
    bits: Vec<u64>,
    len: usize,
}

impl Grams {
    /// Of distinct pairs.
    fn new(grams: &[u16]) -> Self {
        let mut bits = vec![0; 1 << 10];
        for gram in grams {
            if let Some(word) = bits.get_mut(usize::from(gram >> 6)) {
                *word |= 1 << (gram & 63);
            }
        }
        Self { bits, len: grams.len() }
    }

    /// Number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many of distinct pairs are among them.
    pub(crate) fn common(&self, grams: &[u16]) -> usize {
        let Some(bits) = self.bits.first_chunk::<1024>() else { return 0 };
        grams.iter().map(|gram| (bits[usize::from(gram >> 6)] >> (gram & 63) & 1) as usize).sum()
    }
}

impl LexQuery {
    /// Analyses a text. Any text will do; operators mean nothing.
    pub fn new(text: &str) -> Self {
        let tokens = analyze(text);
        let only_stops = tokens.iter().all(|t| t.stop || t.kind != TokenKind::Word);
        let mut terms: Vec<Term> = Vec::new();
        let mut words = Vec::new();
        let mut rank: HashMap<String, u32> = HashMap::new();
        let mut before: Option<(u32, String)> = None;
        let mut add = |text: String, kind: TokenKind, stop: bool| -> Option<u32> {
            if let Some(at) = rank.get(&text) {
                // a word that also occurs as part of another is a word
                if kind == TokenKind::Word
                    && let Some(term) = terms.get_mut(*at as usize)
                {
                    term.kind = kind;
                    term.stop &= stop;
                }
                return Some(*at);
            }
            if terms.len() >= MAX_TERMS {
                return None;
            }
            let at = terms.len() as u32;
            rank.insert(text.clone(), at);
            terms.push(Term { text, kind, stop });
            Some(at)
        };
        for token in tokens {
            let is_word = token.kind == TokenKind::Word;
            // "e mail" and "check in" may be written as one in a document
            if is_word && token.text.is_ascii() {
                if let Some((at, last)) = before.as_ref()
                    && at + 1 == token.at
                {
                    add(crate::index::text::stem(&format!("{last}{}", token.text)), TokenKind::Joined, false);
                }
                before = Some((token.at, token.text.clone()));
            }
            if let Some(at) = add(token.text, token.kind, token.stop && !only_stops)
                && is_word
            {
                words.push(at);
            }
        }
        Self { terms, words, grams: Grams::new(&grams(text, MAX_GRAM_CHARS)) }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The distinct tokens that are looked up, in the order of first occurrence. For traces.
    pub fn term_texts(&self) -> Vec<String> {
        self.terms.iter().map(|term| term.text.clone()).collect()
    }

    /// Number of words, repeats and function words included.
    pub fn words(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_in_common_are_counted() {
        let asked = Grams::new(&[1, 4, 6, 65_535]);
        assert_eq!((asked.len(), asked.common(&[2, 4, 6, 8]), asked.common(&[65_535]), asked.common(&[])), (4, 2, 1, 0));
    }
}
