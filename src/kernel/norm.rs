//! LayerNorm of rows, with the residual added first.
//!
//! In: rows of one width, gain and offset of the same width. Out: `(r − mean r) / √(var r + eps) · gain + offset` for r = x + add.
//! Cost: three passes over a row that fits the first cache.

use super::Kernel;
use super::simd::{self, Simd, Task};

struct Norm<'a> {
    x: &'a mut [f32],
    add: &'a [f32],
    gain: &'a [f32],
    offset: &'a [f32],
    eps: f32,
}

impl Task for Norm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.gain.len();
        let mut add = self.add.chunks_exact(width);
        for row in self.x.chunks_exact_mut(width) {
            if let Some(add) = add.next() {
                zip(s, row, add, add, |x, a, _| s.add(x, a));
            }
            let mean = s.sum(simd::fold(s, row, 0.0, s.splat(0.0), |all, x| s.add(all, x))) / width as f32;
            let centre = s.splat(mean);
            let var = simd::fold(s, row, mean, s.splat(0.0), |all, x| {
                let d = s.sub(x, centre);
                s.mul_add(d, d, all)
            });
            let scale = s.splat(1.0 / (s.sum(var) / width as f32 + self.eps).sqrt());
            zip(s, row, self.gain, self.offset, |x, gain, offset| s.mul_add(s.mul(s.sub(x, centre), scale), gain, offset));
        }
    }
}

/// `row[i] = f(row[i], a[i], b[i])`
#[inline(always)]
fn zip<S: Simd>(s: S, row: &mut [f32], a: &[f32], b: &[f32], f: impl Fn(S::V, S::V, S::V) -> S::V) {
    let n = row.len().min(a.len()).min(b.len());
    let (whole, rest) = (n - n % S::LANES, n % S::LANES);
    let (row, a, b) = (row.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    // SAFETY: all three have at least `n` floats; the loop reads and writes `LANES` at a time below `whole <= n`, then the `rest` up to `n`.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            s.store(row.add(i), f(s.load(row.add(i)), s.load(a.add(i)), s.load(b.add(i))));
        }
        if rest > 0 {
            let load = |p: *const f32| s.load_part(p.add(whole), rest, 0.0);
            s.store_part(row.add(whole), rest, f(load(row), load(a), load(b)));
        }
    }
}

impl Kernel {
    /// LayerNorm of each row of `x` plus the row of `add`; an empty `add` adds nothing. Rows are as wide as `gain`.
    ///
    /// # Panics
    /// If the widths don't fit each other.
    pub fn layer_norm(self, x: &mut [f32], add: &[f32], gain: &[f32], offset: &[f32], eps: f32) {
        assert!(!gain.is_empty() && gain.len() == offset.len() && x.len() % gain.len() == 0, "layer norm of {} by {}", x.len(), gain.len());
        assert!(add.is_empty() || add.len() == x.len(), "layer norm of {} plus {}", x.len(), add.len());
        simd::run(self, Norm { x, add, gain, offset, eps });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_gives_the_norm(width in 1usize..67, rows in 1usize..4, seed in prop::collection::vec(-9f32..9.0, 67 * 4), residual: bool) {
            let x: Vec<f32> = seed.iter().copied().take(width * rows).collect();
            let add: Vec<f32> = if residual { x.iter().rev().copied().collect() } else { vec![] };
            let gain: Vec<f32> = (0..width).map(|i| 0.5 + i as f32 / 50.0).collect();
            let offset: Vec<f32> = (0..width).map(|i| i as f32 / 9.0 - 2.0).collect();
            let eps = 1e-5;
            let sums: Vec<f64> = x.iter().enumerate().map(|(i, x)| f64::from(*x) + add.get(i).copied().map_or(0.0, f64::from)).collect();
            let mut want = vec![];
            for row in sums.chunks(width) {
                let mean = row.iter().sum::<f64>() / width as f64;
                let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                for (i, x) in row.iter().enumerate() {
                    want.push((x - mean) / (var + f64::from(eps)).sqrt() * f64::from(gain[i]) + f64::from(offset[i]));
                }
            }
            for kernel in Kernel::available() {
                let mut got = x.clone();
                kernel.layer_norm(&mut got, &add, &gain, &offset, eps);
                for (g, w) in got.iter().zip(&want) {
                    prop_assert!((f64::from(*g) - w).abs() < 3e-4 * w.abs().max(1.0), "{}: {g} for {w}", kernel.name());
                }
            }
        }
    }
}
