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
        let vectors = self.width.div_ceil(S::LANES);
        for row in self.x.chunks_exact_mut(self.stride) {
            let p = row.as_mut_ptr();
            // SAFETY: a row has `stride` floats; the short ways are taken only if that many whole vectors fit.
            unsafe {
                match vectors {
                    1 if S::LANES <= self.stride => short::<S, 1>(s, p, self.width, self.factor),
                    2 if 2 * S::LANES <= self.stride => short::<S, 2>(s, p, self.width, self.factor),
                    3 if 3 * S::LANES <= self.stride => short::<S, 3>(s, p, self.width, self.factor),
                    4 if 4 * S::LANES <= self.stride => short::<S, 4>(s, p, self.width, self.factor),
                    _ => {
                        long(s, p, self.width, self.factor);
                        for i in self.width..(vectors * S::LANES).min(self.stride) {
                            p.add(i).write(0.0);
                        }
                    }
                }
                // the short ways leave zeros up to the end of their last vector
                for i in vectors * S::LANES..self.stride {
                    p.add(i).write(0.0);
                }
            }
        }
    }
}

/// A row of `C` vectors, of which the last may be partial: everything stays in registers.
///
/// # Safety
/// `C` whole vectors can be read and written at `p`; `width` ends in the last of them.
#[inline(always)]
unsafe fn short<S: Simd, const C: usize>(s: S, p: *mut f32, width: usize, factor: f32) {
    let rest = width - (C - 1) * S::LANES;
    let (nothing, least) = (s.splat(0.0), s.splat(f32::MIN / 2.0));
    let mut v = [least; C];
    let mut top = least;
    for (c, v) in v.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *v = unsafe { s.load(p.add(c * S::LANES)) };
        if c == C - 1 {
            *v = s.keep(*v, rest, least);
        }
        top = s.max(top, *v);
    }
    let (top, factor) = (s.splat(s.top(top)), s.splat(factor));
    let mut sum = nothing;
    for (c, v) in v.iter_mut().enumerate() {
        *v = simd::exp(s, s.mul(s.sub(*v, top), factor));
        if c == C - 1 {
            *v = s.keep(*v, rest, nothing);
        }
        sum = s.add(sum, *v);
    }
    let share = s.splat(1.0 / s.sum(sum));
    for (c, v) in v.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { s.store(p.add(c * S::LANES), s.mul(v, share)) }
    }
}

/// A row of any width.
///
/// # Safety
/// `width` floats can be read and written at `p`.
#[inline(always)]
unsafe fn long<S: Simd>(s: S, p: *mut f32, width: usize, factor: f32) {
    let (factor, mut top, mut sum) = (s.splat(factor), [s.splat(f32::MIN); 4], [s.splat(0.0); 4]);
    // SAFETY (all three): `for_lanes` stays below `width`.
    for_lanes!(S, width, (i, n, k) => top[k] = s.max(top[k], unsafe { simd::read(s, p, i, n, f32::MIN) }));
    let top = s.splat(s.top(s.max(s.max(top[0], top[1]), s.max(top[2], top[3]))));
    for_lanes!(S, width, (i, n, k) => unsafe {
        // lanes past the end become e^-87: nothing
        let e = simd::exp(s, s.mul(s.sub(simd::read(s, p, i, n, f32::MIN / 2.0), top), factor));
        sum[k] = s.add(sum[k], e);
        simd::write(s, p, i, n, e);
    });
    let share = s.splat(1.0 / s.sum(s.add(s.add(sum[0], sum[1]), s.add(sum[2], sum[3]))));
    for_lanes!(S, width, (i, n) => unsafe { simd::write(s, p, i, n, s.mul(simd::read(s, p, i, n, 0.0), share)) });
}

impl Kernel {
    /// For each row of `stride` floats: the first `width` become softmax(factor · x), the rest 0.
    ///
    /// # Panics
    /// If `width` is 0 or more than `stride`, or `x` is not whole rows.
    pub fn softmax(self, x: &mut [f32], stride: usize, width: usize, factor: f32) {
        assert!(0 < width && width <= stride && x.len().is_multiple_of(stride), "rows of {width} in {stride}, {} in all", x.len());
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
