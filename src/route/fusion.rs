//! Weighs the arms for each query: one fused score a candidate from its features, fitted once for all models and sets.
//!
//! In: feature rows. Out: fused scores, whose differences within one query are logits. They order candidates; they are not confidence.
//! The shipped weights are in `src/route/weights/`, with the recipe of their fit in `eval/fit/README.md`.

use crate::route::features;
use crate::route::scorer::Scorer;
use std::sync::LazyLock;

static SHIPPED: LazyLock<Scorer> = LazyLock::new(|| {
    // the file is part of the program and covered by a test; if it could not be read, nothing would be fused
    Scorer::parse(include_str!("weights/fusion.json"), features::NAMES).unwrap_or_default()
});

/// The shipped scorer.
pub fn shipped() -> &'static Scorer {
    &SHIPPED
}

/// Fused scores of the rows of one query.
pub fn scores(rows: &[[f32; features::COUNT]]) -> Vec<f32> {
    rows.iter().map(|row| SHIPPED.score(row)).collect()
}

/// Softmax of scores: the share of each, given that one of them is right.
pub fn shares(scores: &[f32]) -> Vec<f32> {
    let best = scores.iter().copied().fold(f32::MIN, f32::max);
    let raised: Vec<f32> = scores.iter().map(|s| (s - best).exp()).collect();
    let sum: f32 = raised.iter().sum::<f32>().max(1e-9);
    raised.iter().map(|r| r / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_weights_are_sound() {
        let s = Scorer::parse(include_str!("weights/fusion.json"), features::NAMES).unwrap();
        assert!(!s.members.is_empty());
    }

    #[test]
    fn shares_sum_to_one() {
        let s = shares(&[3.0, 2.0, -50.0]);
        assert!((s.iter().sum::<f32>() - 1.0).abs() < 1e-6 && s[0] > s[1]);
        assert!(shares(&[]).is_empty());
    }
}
