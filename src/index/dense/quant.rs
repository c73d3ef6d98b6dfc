//! Vectors as int8, with a bound on what the rounding can change.
//!
//! A row is `scale · int8`, one scale a vector; `loss` is the norm of what rounding took away. A query is two planes, so its own loss is
//! about 1/250 of a row's. With r̂ and q̂ the rounded vectors, |q·r − q̂·r̂| ≤ ‖q̂‖·loss(r) + loss(q)·‖r‖, by Cauchy and Schwarz; `FLOAT`
//! covers the rounding of the f32 sums themselves.

/// Widest int8 value used; −128 is left out so that the scale is symmetric.
const TOP: f32 = 127.0;
/// Steps of the lower plane in one step of the upper.
const FINER: f32 = 254.0;
/// Bound on the error of f32 dot products of vectors of norm 1 in up to 4,096 dimensions.
const FLOAT: f32 = 2e-5;

/// Values of a row are a multiple of this many, filled with zeros.
pub(crate) const LANES: usize = 64;

/// Appends `vector` as int8, padded to `width`; its scale and its loss.
pub(crate) fn push_row(vector: &[f32], width: usize, rows: &mut Vec<i8>) -> (f32, f32) {
    let scale = peak(vector) / TOP;
    let (inverse, end) = (if scale > 0.0 { 1.0 / scale } else { 0.0 }, rows.len() + width);
    let mut lost = 0f64;
    rows.extend(vector.iter().take(width).map(|v| {
        let whole = nearest(v * inverse);
        lost += f64::from(v - whole * scale).powi(2);
        whole as i8
    }));
    rows.resize(end, 0);
    (scale, lost.sqrt() as f32 * 1.000_01)
}

/// A query ready to be scanned.
pub(crate) struct Probe {
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
        let upper = peak(query) / TOP;
        let (step, inverse) = (upper / FINER, if upper > 0.0 { 1.0 / upper } else { 0.0 });
        let fine = if step > 0.0 { 1.0 / step } else { 0.0 };
        let (mut hi, mut lo) = (Vec::with_capacity(width), Vec::with_capacity(width));
        let (mut lost, mut square) = (0f64, 0f64);
        for v in query.iter().take(width) {
            let whole = nearest(v * inverse);
            let rest = nearest((v - whole * upper) * fine).clamp(-TOP, TOP);
            let back = f64::from(whole) * f64::from(upper) + f64::from(rest) * f64::from(step);
            lost += (f64::from(*v) - back).powi(2);
            square += back * back;
            hi.push(whole as i8);
            lo.push(rest as i8);
        }
        hi.resize(width, 0);
        lo.resize(width, 0);
        Self { hi, lo, step, norm: square.sqrt() as f32 * 1.000_01, loss: lost.sqrt() as f32 * 1.000_01 }
    }

    /// Approximate dot product from the two integer ones.
    #[inline]
    pub(crate) fn score(&self, dots: (i32, i32), scale: f32) -> f32 {
        (dots.0 as f32 * FINER + dots.1 as f32) * (self.step * scale)
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
            let mut row = Vec::new();
            let (scale, loss) = push_row(&b, width, &mut row);
            let probe = Probe::new(&a, width);
            let got = probe.score((dot_i8(&probe.hi, &row), dot_i8(&probe.lo, &row)), scale);
            let want: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            prop_assert!((f64::from(got) - want).abs() <= f64::from(probe.margin(loss, 1.0)), "{got} {want}");
            prop_assert!(probe.loss < 3e-4, "the second plane makes the query's own loss small: {}", probe.loss);
        }
    }

    #[test]
    fn zero_vectors_are_no_trouble() {
        let mut row = Vec::new();
        assert_eq!(push_row(&[0.0; 8], LANES, &mut row), (0.0, 0.0));
        assert_eq!(row.len(), LANES);
        assert_eq!(Probe::new(&[0.0; 8], LANES).score((5, 5), 0.0), 0.0);
    }
}
