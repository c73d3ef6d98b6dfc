//! GELU in its exact form, x·Φ(x), with Φ the normal distribution.
//!
//! In and out: floats of any size. Accuracy: within 1e-5 of the exact value for |x| <= 8, within |x|·2e-6 beyond.
//! Cost: about 16 vector instructions for 16 floats. Not here: the "tanh" approximation, which bge does not use.

use super::Kernel;
use super::simd::{self, Simd, Task, for_lanes};

/// erf(x/√2) = x·P(x²)/Q(x²) for |x| <= 4.8, and nearly ±1 beyond. Fitted by iterated weighted least squares so that the error of x·Φ(x) is even.
const EDGE: f32 = 4.8;
const P: [f32; 4] = [6.310_217e-5, 7.565_558e-3, 5.651_811e-2, 7.978_41e-1];
const Q: [f32; 4] = [1.127_493_2e-3, 2.411_799e-2, 2.373_781_4e-1, 1.0];

/// `t`, `P` and `Q` of each lane.
#[inline(always)]
fn parts<S: Simd>(s: S, x: S::V) -> (S::V, S::V, S::V) {
    let t = s.max(s.min(x, s.splat(EDGE)), s.splat(-EDGE));
    let u = s.mul(t, t);
    let (mut p, mut q) = (s.splat(P[0]), s.splat(Q[0]));
    for i in 1..4 {
        p = s.mul_add(p, u, s.splat(P[i]));
        q = s.mul_add(q, u, s.splat(Q[i]));
    }
    (t, p, q)
}

/// GELU of each lane.
#[inline(always)]
pub(super) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let (t, p, q) = parts(s, x);
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(s.mul(half, t), s.mul(p, s.recip(q)), half)
}

/// GELU of each lane to 1e-4 of its size: for values that are rounded to a byte next.
#[inline(always)]
pub(super) fn gelu_rough<S: Simd>(s: S, x: S::V) -> S::V {
    let (t, p, q) = parts(s, x);
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(s.mul(half, t), s.mul(p, s.recip_rough(q)), half)
}

struct Gelu<'a>(&'a mut [f32]);

impl Task for Gelu<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.0.as_mut_ptr();
        // SAFETY: `for_lanes` stays below the length of the slice.
        for_lanes!(S, self.0.len(), (i, n) => unsafe { simd::write(s, p, i, n, gelu(s, simd::read(s, p, i, n, 0.0))) });
    }
}

impl Kernel {
    /// Replaces every `x` by `x·Φ(x)`.
    pub fn gelu(self, x: &mut [f32]) {
        simd::run(self, Gelu(x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// erf by its Taylor series (|x| < 3) or continued fraction: slow, and right to 1e-12.
    fn erf(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..120 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let tail = (1..80).rev().fold(x.abs(), |f, k| x.abs() + f64::from(k) / 2.0 / f);
        x.signum() * (1.0 - (-x * x).exp() / tail / std::f64::consts::PI.sqrt())
    }

    fn exact(x: f32) -> f32 {
        let x = f64::from(x);
        (0.5 * x * (1.0 + erf(x / 2f64.sqrt()))) as f32
    }

    #[test]
    fn every_kernel_is_exact_enough() {
        for kernel in Kernel::available() {
            let x: Vec<f32> = (-12_000..=12_000).map(|i| i as f32 / 1000.0).collect();
            let mut got = x.clone();
            kernel.gelu(&mut got);
            for (x, got) in x.iter().zip(&got) {
                let want = exact(*x);
                assert!((got - want).abs() <= 1e-5f32.max(x.abs() * 2e-6), "{}: {got} for {want}", kernel.name());
            }
        }
    }

    #[test]
    fn far_out_it_is_the_line_or_nothing() {
        for kernel in Kernel::available() {
            let mut x = [1e30, -1e30, 50.0, -50.0, 0.0];
            kernel.gelu(&mut x);
            assert!((x[0] - 1e30).abs() <= 2e24 && (x[2] - 50.0).abs() < 1e-4 && x[4] == 0.0, "{x:?}");
            assert!(x[1].abs() <= 2e24 && x[3].abs() <= 1e-4, "{x:?}");
        }
    }

    proptest! {
        #[test]
        fn kernels_agree_with_the_scalar_twin(x in prop::collection::vec(-20f32..20.0, 0..67)) {
            let mut want = x.clone();
            Kernel::Scalar.gelu(&mut want);
            for kernel in Kernel::available() {
                let mut got = x.clone();
                kernel.gelu(&mut got);
                for ((g, w), x) in got.iter().zip(&want).zip(&x) {
                    prop_assert!((g - w).abs() <= 1e-6 + x.abs() * 3e-7);
                }
            }
        }
    }
}
