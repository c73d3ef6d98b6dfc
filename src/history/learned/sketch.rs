//! A text as a short row of numbers: its vector, centred, beside a sketch of its words.
//!
//! In: a text, its vector by a model, the model's mean vector of such texts. Out: dimension + [`WORDS`] numbers. The sketch hashes words, pairs
//! of neighbouring words and groups of letters to signed places, weighted by how rare they are among the texts that were learned from.
//! What is common to all requests (or to all descriptions) is taken away with the centre, so that style is no evidence.
//! Cost: about 30 µs a text. Not here: which texts (`head`).

use crate::index::text::{TokenKind, analyze};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Places of the sketch.
pub const WORDS: usize = 512;
/// Length of a row's vector part relative to the difference from the centre.
const VECTOR_SCALE: f32 = 8.0;
/// Length of a row's words part.
const WORDS_SCALE: f32 = 3.0;

/// Counts of a text's features by their hash, ordered by hash: sums over them are the same in every run.
pub struct Features(Vec<(u32, f32)>);

fn hash(kind: u8, parts: &[&str]) -> u32 {
    // FNV-1a, then mixed: the low bits choose place and sign
    let bytes = std::iter::once(kind).chain(parts.iter().flat_map(|p| p.bytes().chain([0u8])));
    let mut h = bytes.fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    h ^= h >> 15;
    h = h.wrapping_mul(0x2c1b_3c6d);
    h ^ (h >> 12)
}

impl Features {
    /// Of a text.
    pub fn of(text: &str) -> Self {
        let tokens = analyze(text);
        let mut found: Vec<u32> = Vec::with_capacity(tokens.len() * 6);
        let mut last: Option<&str> = None;
        for token in &tokens {
            found.push(hash(b'w', &[&token.text]));
            if token.kind != TokenKind::Word {
                continue;
            }
            if let Some(last) = last {
                found.push(hash(b'b', &[last, &token.text]));
            }
            last = Some(&token.text);
            if token.text.is_ascii() {
                let marked = format!("^{}$", token.text);
                for n in [3, 4] {
                    found.extend(marked.as_bytes().windows(n).filter_map(|g| std::str::from_utf8(g).ok()).map(|g| hash(b'c', &[g])));
                }
            }
        }
        found.sort_unstable();
        let mut counts: Vec<(u32, f32)> = Vec::with_capacity(found.len());
        for h in found {
            match counts.last_mut() {
                Some((last, n)) if *last == h => *n += 1.0,
                Some(_) | None => counts.push((h, 1.0)),
            }
        }
        Self(counts)
    }
}

/// How rare features are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rarity {
    texts: f32,
    found_in: HashMap<u32, f32>,
}

impl Rarity {
    /// Of the texts that are learned from.
    pub fn of<'a>(texts: impl Iterator<Item = &'a Features>) -> Self {
        let mut rarity = Self::default();
        for features in texts {
            rarity.texts += 1.0;
            for (h, _) in &features.0 {
                *rarity.found_in.entry(*h).or_default() += 1.0;
            }
        }
        rarity
    }

    fn weight(&self, h: u32) -> f32 {
        ((1.0 + self.texts) / (1.0 + self.found_in.get(&h).copied().unwrap_or(0.0))).ln()
    }

    /// Writes a row: the centred vector and the sketch.
    pub fn row(&self, features: &Features, vector: &[f32], centre: &[f32], out: &mut Vec<f32>) {
        let centre = if centre.len() == vector.len() { Some(centre) } else { None };
        out.extend(vector.iter().enumerate().map(|(i, v)| VECTOR_SCALE * (v - centre.map_or(0.0, |c| c[i]))));
        let first = out.len();
        out.resize(first + WORDS, 0.0);
        let values: Vec<(u32, f32)> = features.0.iter().map(|(h, n)| (*h, (1.0 + n.ln()) * self.weight(*h))).collect();
        let length = values.iter().map(|(_, v)| v * v).sum::<f32>().sqrt();
        if length > 0.0 {
            for (h, v) in values {
                let sign = if h & 1 == 0 { 1.0 } else { -1.0 };
                out[first + (h >> 1) as usize % WORDS] += sign * WORDS_SCALE * v / length;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(texts: &[&str]) -> Vec<Vec<f32>> {
        let features: Vec<Features> = texts.iter().map(|t| Features::of(t)).collect();
        let rarity = Rarity::of(features.iter());
        features
            .iter()
            .map(|f| {
                let mut row = Vec::new();
                rarity.row(f, &[0.6, 0.8], &[0.5, 0.5], &mut row);
                row
            })
            .collect()
    }

    #[test]
    fn like_texts_have_like_sketches() {
        let r = rows(&["refund my order please", "please refund the order", "what is the weather", "查一下明天的天气", "明天天气怎么样"]);
        let near = |a: usize, b: usize| r[a][2..].iter().zip(&r[b][2..]).map(|(x, y)| x * y).sum::<f32>();
        assert!(near(0, 1) > near(0, 2) + 0.5 && near(3, 4) > near(0, 4) + 0.5);
        assert!((r[0][0] - 0.8).abs() < 1e-5 && r[0].len() == 2 + WORDS);
        let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!(r.iter().all(|row| length(&row[2..]) < 2.0 * WORDS_SCALE));
    }

    #[test]
    fn an_empty_text_is_a_row_too() {
        assert!(rows(&["", "x"])[0][2..].iter().all(|v| *v == 0.0));
    }
}
