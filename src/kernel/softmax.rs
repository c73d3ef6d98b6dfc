//! Softmax of rows: scores to weights that add up to 1.
//!
//! In: finite scores and a positive factor. Invariant: weights are in 0..=1 and sum to 1 within rounding, however large the scores.
//! Cost: three passes over a row that fits the first cache. Not here: masks; texts are never padded.

use super::Kernel;
use super::simd::{self, Simd, Task, for_lanes};

struct Softmax<'a> {
    x: &'a mut [f32],
    stride: usize,
    width: usize,
    factor: f32,
}

impl Task for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.x.chunks_mut(self.stride) {
            let (row, rest) = row.split_at_mut(self.width.min(row.len()));
            let (p, width) = (row.as_mut_ptr(), row.len());
            let (factor, mut top, mut sum) = (s.splat(self.factor), s.splat(f32::NEG_INFINITY), s.splat(0.0));
            // SAFETY (all three): `for_lanes` stays below the length of the row.
            for_lanes!(S, width, (i, n) => top = s.max(top, unsafe { simd::read(s, p, i, n, f32::NEG_INFINITY) }));
            let top = s.splat(s.top(top));
            for_lanes!(S, width, (i, n) => unsafe {
                // lanes past the end become e^-87 or less: nothing
                let x = simd::read(s, p, i, n, f32::MIN / 2.0);
                let e = simd::exp(s, s.mul(s.sub(x, top), factor));
                sum = s.add(sum, e);
                simd::write(s, p, i, n, e);
            });
            let share = s.splat(1.0 / s.sum(sum));
            for_lanes!(S, width, (i, n) => unsafe { simd::write(s, p, i, n, s.mul(simd::read(s, p, i, n, 0.0), share)) });
            rest.fill(0.0);
        }
    }
}

impl Kernel {
    /// For each row of `stride` floats: the first `width` become softmax(factor · x), the rest 0.
    ///
    /// # Panics
    /// If `width` is 0 or more than `stride`.
    pub fn softmax(self, x: &mut [f32], stride: usize, width: usize, factor: f32) {
        assert!(0 < width && width <= stride, "rows of {width} in {stride}");
        simd::run(self, Softmax { x, stride, width, factor });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(row: &[f32], factor: f32) -> Vec<f64> {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = row.iter().map(|x| (f64::from(x - top) * f64::from(factor)).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect()
    }

    proptest! {
        #[test]
        fn every_kernel_gives_the_softmax(row in prop::collection::vec(-30f32..30.0, 1..67), pad in 0usize..5, factor in 0.01f32..2.0) {
            let stride = row.len() + pad;
            let want = exact(&row, factor);
            for kernel in Kernel::available() {
                let mut x = [row.clone(), vec![7.0; pad], row.clone(), vec![7.0; pad]].concat();
                kernel.softmax(&mut x, stride, row.len(), factor);
                for got in x.chunks(stride) {
                    for (g, w) in got.iter().zip(&want) {
                        prop_assert!((f64::from(*g) - w).abs() < 2e-6, "{}: {g} for {w}", kernel.name());
                    }
                    prop_assert!(got[row.len()..].iter().all(|x| *x == 0.0));
                }
            }
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        for kernel in Kernel::available() {
            let mut x = [3e4, -3e4, 3e4];
            kernel.softmax(&mut x, 3, 3, 1.0);
            assert_eq!(x, [0.5, 0.0f32.max(x[1]), 0.5]);
            assert!(x[1] < 1e-30);
        }
    }
}
