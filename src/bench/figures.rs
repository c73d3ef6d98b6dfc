//! Quantiles and medians.

use serde::Serialize;

/// Quantiles of a latency, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl Quantiles {
    /// Of values in milliseconds, in any order; zeros of none.
    pub fn of(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self {
            p50_ms: at(values, 0.5),
            p95_ms: at(values, 0.95),
            p99_ms: at(values, 0.99),
            max_ms: values.last().map_or(0.0, |v| round(*v)),
        }
    }
}

fn at(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).map_or(0.0, |v| round(*v))
}

/// To four digits that mean something.
pub fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let unit = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * unit).round() / unit
}

/// The middle value; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    at(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let q = Quantiles::of(&mut values);
        assert_eq!((q.p50_ms, q.p95_ms, q.p99_ms, q.max_ms), (51.0, 96.0, 100.0, 100.0));
        assert_eq!(Quantiles::of(&mut []), Quantiles::default());
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((round(1234.567), round(0.0123456), round(0.0)), (1235.0, 0.01235, 0.0));
    }
}
