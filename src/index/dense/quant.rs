//! Vectors as int8, with a bound on what the rounding can change.
//!
//! A vector is two planes: `scale · (upper + lower / 254)`, one scale a vector. A scan reads the upper plane alone; `loss` is the norm of what the
//! lower one holds. With r the row, r̂ its upper plane and q̂ the query's two planes, |q̂·r − q̂·r̂| ≤ ‖q̂‖·loss(r), by Cauchy and Schwarz; what the
//! query's own rounding could change, loss(q)·‖r‖, is added, and `FLOAT` covers the rounding of the f32 sums.

use crate::kernel::dot::dot_f32;

/// Widest int8 value used; −128 is left out so that the scale is symmetric.
const TOP: f32 = 127.0;
/// Steps of the lower plane in one step of the upper.
const FINER: f32 = 254.0;
/// Bound on the error of f32 dot products of vectors of norm 1 in up to 4,096 dimensions.
const FLOAT: f32 = 2e-5;

/// Values of a row are a multiple of this many, filled with zeros.
pub(crate) const LANES: usize = 64;

/// What is known of a row beside its planes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    /// Value of a step of the upper plane.
    pub(crate) scale: f32,
    /// Norm of what the lower plane holds: what is lost with the upper one alone.
    pub(crate) loss: f32,
    /// Sum of the upper plane.
    pub(crate) sum: i32,
    /// Sum of the lower plane.
    pub(crate) lower_sum: i32,
}

/// How values become two planes: the steps of both, and what a value is multiplied by to count them.
struct Steps {
    upper: f32,
    lower: f32,
    per_upper: f32,
    per_lower: f32,
}

impl Steps {
    /// For a vector whose largest value takes the whole upper plane.
    fn of(vector: &[f32]) -> Self {
        let per = |step: f32| if step > 0.0 { 1.0 / step } else { 0.0 };
        let upper = peak(vector) / TOP;
        let lower = upper / FINER;
        Self { upper, lower, per_upper: per(upper), per_lower: per(lower) }
    }

    /// Whole steps of the upper plane, and of the lower one what they leave.
    #[inline]
    fn split(&self, v: f32) -> (f32, f32) {
        let whole = nearest(v * self.per_upper);
        (whole, nearest((v - whole * self.upper) * self.per_lower).clamp(-TOP, TOP))
    }
}

/// Appends the upper plane of `vector`, padded to `width`, to `upper`; `lower` becomes its lower plane.
pub(crate) fn push_row(vector: &[f32], width: usize, upper: &mut Vec<i8>, lower: &mut Vec<i8>) -> Row {
    let steps = Steps::of(vector);
    let (mut lost, mut sum, mut lower_sum) = (0f64, 0, 0);
    let end = upper.len() + width;
    lower.clear();
    for v in vector.iter().take(width) {
        let (whole, rest) = steps.split(*v);
        let part = f64::from(rest) * f64::from(steps.lower);
        lost += part * part;
        (sum, lower_sum) = (sum + whole as i32, lower_sum + rest as i32);
        upper.push(whole as i8);
        lower.push(rest as i8);
    }
    upper.resize(end, 0);
    lower.resize(width, 0);
    Row { scale: steps.upper, loss: lost.sqrt() as f32 * 1.000_01, sum, lower_sum }
}

/// The vector that two planes stand for; without a lower one, the upper alone.
pub(crate) fn restored(upper: &[i8], lower: &[i8], scale: f32, dim: usize) -> Vec<f32> {
    let step = scale / FINER;
    let lower = lower.iter().copied().chain(std::iter::repeat(0));
    upper.iter().zip(lower).take(dim).map(|(whole, rest)| f32::from(*whole) * scale + f32::from(rest) * step).collect()
}

/// A query as the index compares it.
pub struct Probe {
    /// As it was given.
    pub(crate) vector: Vec<f32>,
    /// Upper plane, padded.
    pub(crate) hi: Vec<i8>,
    /// Lower plane, padded.
    pub(crate) lo: Vec<i8>,
    step: f32,
    norm: f32,
    loss: f32,
}

impl Probe {
    pub(crate) fn new(query: &[f32], width: usize) -> Self {
        let steps = Steps::of(query);
        let (mut hi, mut lo) = (vec![0i8; width], vec![0i8; width]);
        for ((v, hi), lo) in query.iter().zip(&mut hi).zip(&mut lo) {
            let (whole, rest) = steps.split(*v);
            (*hi, *lo) = (whole as i8, rest as i8);
        }
        // no value is off by more than half a step of the lower plane
        let loss = 0.5 * steps.lower * (query.len() as f32).sqrt() * 1.001;
        let norm = (dot_f32(query, query).sqrt() + loss) * 1.000_1;
        Self { vector: query.to_vec(), hi, lo, step: steps.lower, norm, loss }
    }

    /// Approximate dot product from the two integer ones.
    #[inline]
    pub(crate) fn score(&self, dots: (i32, i32), scale: f32) -> f32 {
        (dots.0 as f32 * FINER + dots.1 as f32) * (self.step * scale)
    }

    /// Dot product with both planes of a row, from the integer ones. All four are exact, and so is their sum.
    #[inline]
    pub(crate) fn fine(&self, upper: (i32, i32), lower: (i32, i32), scale: f32) -> f32 {
        const WIDE: i64 = FINER as i64;
        let sum = (i64::from(upper.0) * WIDE + i64::from(upper.1) + i64::from(lower.0)) * WIDE + i64::from(lower.1);
        (sum as f64 * f64::from(self.step) * f64::from(scale / FINER)) as f32
    }

    /// What one step of the upper plane is worth.
    pub(crate) fn scale(&self) -> f32 {
        self.step * FINER
    }

    /// Most that the true dot product with a row of this loss and of norm ≤ `longest` can differ from [`Probe::score`].
    #[inline]
    pub(crate) fn margin(&self, loss: f32, longest: f32) -> f32 {
        self.norm * (loss + FLOAT * longest) + self.loss * longest
    }
}

/// The nearest whole number of a value below 2²², by the rounding of the addition itself (a call to the library is ten times as slow).
#[inline]
fn nearest(v: f32) -> f32 {
    const BIG: f32 = 12_582_912.0;
    (v + BIG) - BIG
}

fn peak(vector: &[f32]) -> f32 {
    let (blocks, rest) = vector.as_chunks::<16>();
    let mut lanes = [0f32; 16];
    for block in blocks {
        for (lane, v) in lanes.iter_mut().zip(block) {
            *lane = if v.abs() > *lane { v.abs() } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(0f32, |top, v| top.max(v.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::dot::dot_i8;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_margin_holds(pairs in proptest::collection::vec((-1.0f32..1.0, -1.0f32..1.0), 1..130), tilt in 0.0f32..4.0) {
            let unit = |v: Vec<f32>| { let n = v.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-9); v.into_iter().map(|x| x / n).collect::<Vec<_>>() };
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().map(|(x, y)| (x, y + tilt * x)).unzip();
            let (a, b) = (unit(a), unit(b));
            let width = a.len().div_ceil(LANES) * LANES;
            let (mut upper, mut lower) = (Vec::new(), Vec::new());
            let row = push_row(&b, width, &mut upper, &mut lower);
            prop_assert_eq!((row.sum, row.lower_sum), (upper.iter().map(|v| i32::from(*v)).sum(), lower.iter().map(|v| i32::from(*v)).sum()));
            let probe = Probe::new(&a, width);
            let dots = |plane: &[i8]| (dot_i8(&probe.hi, plane), dot_i8(&probe.lo, plane));
            let got = probe.score(dots(&upper), row.scale);
            let want: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            prop_assert!((f64::from(got) - want).abs() <= f64::from(probe.margin(row.loss, 1.0)) + 4e-4, "{got} {want}");
            let fine = probe.fine(dots(&upper), dots(&lower), row.scale);
            prop_assert!((f64::from(got) - f64::from(fine)).abs() <= f64::from(probe.margin(row.loss, 1.0)), "{got} {fine}");
            prop_assert!((f64::from(fine) - want).abs() < 4e-4, "{fine} {want}");
            let back: f64 = a.iter().zip(restored(&upper, &lower, row.scale, b.len())).map(|(x, y)| f64::from(*x) * f64::from(y)).sum();
            prop_assert!((back - want).abs() < 4e-4, "{back} {want}");
            prop_assert!(probe.loss < 3e-4, "the second plane makes the query's own loss small: {}", probe.loss);
        }
    }

    #[test]
    fn zero_vectors_are_no_trouble() {
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        let row = push_row(&[0.0; 8], LANES, &mut upper, &mut lower);
        assert_eq!((row.scale, row.loss, row.sum, row.lower_sum), (0.0, 0.0, 0, 0));
        assert_eq!((upper.len(), lower.len()), (LANES, LANES));
        assert_eq!(Probe::new(&[0.0; 8], LANES).score((5, 5), 0.0), 0.0);
    }
}
