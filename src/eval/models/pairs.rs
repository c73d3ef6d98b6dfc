//! Whether one model is better than another on the same queries, or lucky.
//!
//! McNemar's exact test on who has a right answer first (only queries where they differ count), and a paired bootstrap on the mean reciprocal rank. Pure.

use super::{Each, OfModel};
use crate::eval::replay::figures::{percentile, unseen};
use crate::route::dice::Dice;
use serde::Serialize;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 1000;

/// A comparison of two models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The better one.
    pub better: String,
    /// The other.
    pub worse: String,
    /// Queries that only the better one has right first.
    pub only_better: u64,
    /// Queries that only the other has right first.
    pub only_worse: u64,
    /// Chance of a difference at least as large if neither were better (two-sided).
    pub p: f64,
    /// Gain in mean reciprocal rank, with its 95 % interval.
    pub mrr_gain: (f64, f64, f64),
}

/// McNemar's exact test: two-sided binomial probability of `b` against `c` at even odds.
pub fn mcnemar(b: u64, c: u64) -> f64 {
    let n = b + c;
    if n == 0 {
        return 1.0;
    }
    // ln of n! by summing: n is at most the number of queries
    let ln_fact = |k: u64| (2..=k).map(|i| (i as f64).ln()).sum::<f64>();
    let all = ln_fact(n) - n as f64 * std::f64::consts::LN_2;
    let mut term = all - ln_fact(n);
    let mut sum = 0.0;
    for k in 0..=b.min(c) {
        if k > 0 {
            term += ((n - k + 1) as f64).ln() - (k as f64).ln();
        }
        sum += term.exp();
    }
    (2.0 * sum).min(1.0)
}

fn gain(a: &[Each], b: &[Each], seed: u64) -> (f64, f64, f64) {
    let differences: Vec<f64> = a.iter().zip(b).map(|(x, y)| x.rr - y.rr).collect();
    let n = differences.len().max(1);
    let mean = |sum: f64| sum / n as f64;
    let mut dice = Dice::new(seed ^ 0x9a1c);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = |_| differences.get((dice.roll() % n as u64) as usize).copied().unwrap_or(0.0);
            mean((0..differences.len()).map(drawn).sum())
        })
        .collect();
    let (low, high) = (percentile(&mut means, 0.025), percentile(&mut means, 0.975));
    let value = mean(differences.iter().sum());
    if value != 0.0 && (high - low).abs() < 1e-12 {
        // the same on every query: as many as these don't rule out may go the other way
        let doubt = 2.0 * unseen(n as f64) * value.abs();
        return (value, low - doubt, high + doubt);
    }
    (value, low, high)
}

/// Every pair, the better one first. `models` are sorted, best first.
pub fn all(models: &[OfModel], seed: u64) -> Vec<Pair> {
    let mut out = Vec::new();
    for (i, a) in models.iter().enumerate() {
        for b in models.iter().skip(i + 1) {
            let only = |x: &[Each], y: &[Each]| x.iter().zip(y).filter(|(x, y)| x.first && !y.first).count() as u64;
            let (only_better, only_worse) = (only(&a.each, &b.each), only(&b.each, &a.each));
            out.push(Pair {
                better: a.name.clone(),
                worse: b.name.clone(),
                only_better,
                only_worse,
                p: mcnemar(only_better, only_worse),
                mrr_gain: gain(&a.each, &b.each, seed),
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_test_is_exact() {
        // 2 · (1 + 10 + 45) / 2^10 for 2 against 8
        assert!((mcnemar(2, 8) - 2.0 * 56.0 / 1024.0).abs() < 1e-12);
        assert_eq!((mcnemar(0, 0), mcnemar(5, 5)), (1.0, 1.0));
        assert!(mcnemar(0, 10) < 0.01 && mcnemar(300, 900) < 1e-60);
    }

    #[test]
    fn equal_models_differ_by_nothing() {
        let each = vec![Each { first: true, rr: 1.0 }; 50];
        assert_eq!(gain(&each, &each, 1), (0.0, 0.0, 0.0));
    }
}
