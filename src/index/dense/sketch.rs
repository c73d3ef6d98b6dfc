//! Vectors as one bit a dimension, to find the few that are worth a closer look.
//!
//! What is common to all texts (`centre`) is taken away, the rest is turned by a fixed rotation that spreads it evenly over all dimensions, and
//! the signs are kept, with two numbers that make the product with a query an unbiased estimate of the cosine (the idea of RaBitQ: Gao and Long,
//! 2024). The query keeps four bits a dimension.
//! Invariant: a row's sketch depends on its vector and the index's settings, on no other row. Memory: 72 bytes a row of up to 512 dimensions.
//! Cost: a search of 100,000 rows takes about 0.65 ms, the closer look included. Not here: which rows are looked at (`search`, `lists`).

use crate::kernel::bits::{PLANES, scan_bits};
use crate::kernel::dot::dot_f32;
use std::ops::Range;

/// Rows compared in one go.
pub(super) const BLOCK: usize = 512;
/// Times that signs are flipped and everything is mixed.
const ROUNDS: usize = 2;
/// Bounds of a query's values.
const LEAST: f32 = -8.0;
const MOST: f32 = 7.0;

/// How sketches are made: the same for all rows and queries of an index.
pub(crate) struct Sketcher {
    dim: usize,
    /// Bits of a sketch: a power of two, 64 at least.
    bits: usize,
    /// One of ±1 a dimension and round.
    flips: Vec<f32>,
    /// What is taken away first.
    centre: Vec<f32>,
}

impl Sketcher {
    /// For vectors of `dim` dimensions around `centre`; around 0 if that has another length.
    pub(crate) fn new(dim: usize, centre: &[f32]) -> Self {
        let bits = dim.next_power_of_two().max(64);
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let flips = (0..bits * ROUNDS)
            .map(|_| {
                // xorshift: the same on every machine
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if state >> 40 & 1 == 0 { 1.0 } else { -1.0 }
            })
            .collect();
        let centre = if centre.len() == dim && centre.iter().all(|v| v.is_finite()) { centre.to_vec() } else { vec![0.0; dim] };
        Self { dim, bits, flips, centre }
    }

    pub(super) fn centre(&self) -> &[f32] {
        &self.centre
    }

    /// `vector` − centre, turned. Lengths and angles stay.
    fn turned(&self, vector: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.extend(vector.iter().zip(&self.centre).map(|(v, c)| v - c));
        out.resize(self.bits, 0.0);
        for flips in self.flips.chunks_exact(self.bits) {
            out.iter_mut().zip(flips).for_each(|(v, flip)| *v *= flip);
            mix(out);
        }
        let scale = (self.bits as f32).powf(-0.5 * ROUNDS as f32);
        out.iter_mut().for_each(|v| *v *= scale);
    }

    /// A query, ready to be compared.
    pub(crate) fn ask(&self, query: &[f32]) -> Asked {
        let mut turned = Vec::with_capacity(self.bits);
        self.turned(query, &mut turned);
        let peak = turned.iter().fold(0f32, |top, v| top.max(v.abs()));
        let step = peak / (MOST + 0.5);
        let words = self.bits / 64;
        let mut planes = vec![0u64; PLANES * words];
        let mut sum = 0.0;
        for (i, v) in turned.iter().enumerate() {
            let whole = if step > 0.0 { (v / step).round().clamp(LEAST, MOST) } else { 0.0 };
            sum += whole;
            for plane in 0..PLANES {
                if let Some(word) = planes.get_mut(plane * words + i / 64) {
                    *word |= (whole as i64 as u64 >> plane & 1) << (i % 64);
                }
            }
        }
        Asked { planes, step: 2.0 * step, sum: sum * step, to_centre: dot_f32(query, &self.centre) - dot_f32(&self.centre, &self.centre) }
    }
}

/// The Walsh–Hadamard transform, without its scale.
fn mix(values: &mut [f32]) {
    let mut half = values.len() / 2;
    while half > 0 {
        for block in values.chunks_exact_mut(2 * half) {
            let (a, b) = block.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half /= 2;
    }
}

/// A query in planes of bits.
pub(crate) struct Asked {
    planes: Vec<u64>,
    /// Twice the step of its values.
    step: f32,
    /// Sum of its values.
    sum: f32,
    /// (query − centre) · centre.
    to_centre: f32,
}

/// Sketches of rows, one after the other.
#[derive(Default)]
pub(crate) struct Sketches {
    words: usize,
    bits: Vec<u64>,
    /// Of each row: centre · row, and what its product of signs is worth.
    terms: Vec<(f32, f32)>,
}

impl Sketches {
    /// Sketches of vectors.
    pub(crate) fn of(sketcher: &Sketcher, n: usize, vectors: impl Iterator<Item = Vec<f32>>) -> Self {
        let words = sketcher.bits / 64;
        let mut out = Self { words, bits: Vec::with_capacity(n * words), terms: Vec::with_capacity(n) };
        let mut turned = Vec::with_capacity(sketcher.bits);
        for vector in vectors.filter(|v| v.len() == sketcher.dim) {
            sketcher.turned(&vector, &mut turned);
            let (square, total) = turned.iter().fold((0.0, 0.0), |(square, total), v| (square + v * v, total + v.abs()));
            out.bits.extend(turned.chunks(64).map(|chunk| chunk.iter().rev().fold(0, |word, v| word << 1 | u64::from(*v > 0.0))));
            out.terms.push((dot_f32(&vector, &sketcher.centre), if total > 0.0 { square / total } else { 0.0 }));
        }
        out
    }

    /// Copies of chosen rows.
    pub(crate) fn chosen(&self, rows: &[u32]) -> Self {
        let mut out = Self { words: self.words, bits: Vec::with_capacity(rows.len() * self.words), terms: Vec::with_capacity(rows.len()) };
        for row in rows {
            let at = *row as usize * self.words;
            out.bits.extend(self.bits.get(at..at + self.words).unwrap_or_default());
            out.terms.extend(self.terms.get(*row as usize));
        }
        out
    }

    /// Estimated cosines of a range of rows, a block at a time: `found` gets the first row of each block and its estimates.
    pub(crate) fn compare(&self, asked: &Asked, rows: Range<usize>, mut found: impl FnMut(usize, &[f32])) {
        let (mut products, mut scores) = ([0i32; BLOCK], [0f32; BLOCK]);
        let mut from = rows.start;
        while from < rows.end {
            let n = BLOCK.min(rows.end - from);
            let (Some(bits), Some(terms), Some(products), Some(scores)) = (
                self.bits.get(from * self.words..(from + n) * self.words),
                self.terms.get(from..from + n),
                products.get_mut(..n),
                scores.get_mut(..n),
            ) else {
                return;
            };
            scan_bits(&asked.planes, self.words, bits, products);
            for ((score, product), (offset, worth)) in scores.iter_mut().zip(&*products).zip(terms) {
                *score = asked.to_centre + offset + worth * (asked.step * *product as f32 - asked.sum);
            }
            found(from, scores);
            from += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Cloud;
    use super::*;

    #[test]
    fn turning_keeps_lengths_and_estimates_are_near() {
        for dim in [24, 100, 384, 512] {
            let mut cloud = Cloud::new(dim as u64, dim, 5);
            let vectors: Vec<_> = (0..600).map(|_| cloud.vector()).collect();
            let centre: Vec<f32> = (0..dim).map(|i| vectors.iter().map(|v| v[i]).sum::<f32>() / 600.0).collect();
            for centre in [centre.as_slice(), &[]] {
                let sketcher = Sketcher::new(dim, centre);
                let mut turned = Vec::new();
                sketcher.turned(&vectors[0], &mut turned);
                let plain: f32 = vectors[0].iter().zip(&sketcher.centre).map(|(a, b)| (a - b).powi(2)).sum();
                assert!((dot_f32(&turned, &turned) - plain).abs() < 1e-4, "{dim}");
                let sketches = Sketches::of(&sketcher, 600, vectors.iter().map(|v| v.to_vec()));
                let (mut error, mut n) = (0f64, 0);
                for query in vectors.iter().step_by(60) {
                    sketches.compare(&sketcher.ask(query), 0..600, |first, scores| {
                        for (score, vector) in scores.iter().zip(&vectors[first..]) {
                            error += f64::from(score - dot_f32(query, vector)).powi(2);
                            n += 1;
                        }
                    });
                }
                assert_eq!(n, 6_000);
                let error = (error / f64::from(n)).sqrt();
                assert!(error < 0.9 / (sketcher.bits as f64).sqrt(), "{dim} dimensions: off by {error}");
            }
        }
    }

    #[test]
    fn zeros_are_no_trouble() {
        let sketcher = Sketcher::new(4, &[]);
        let sketches = Sketches::of(&sketcher, 1, std::iter::once(vec![0.0; 4]));
        sketches.compare(&sketcher.ask(&[0.0; 4]), 0..1, |_, scores| assert_eq!(scores, [0.0]));
        sketches.chosen(&[0, 9]).compare(&sketcher.ask(&[1.0, 0.0, 0.0, 0.0]), 0..1, |_, scores| assert_eq!(scores, [0.0]));
    }
}
