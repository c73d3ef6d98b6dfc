//! LayerNorm of rows, with the residual added first.
//!
//! In: rows of one width, gain and offset of the same width. Out: `(r − mean r) / √(var r + eps) · gain + offset` for r = x + add.
//! Cost: three passes over a row that fits the first cache.

use super::Kernel;
use super::quant::{Activations, Range, Scaled};
use super::simd::{self, Simd, Task, for_lanes, read, write};

struct Norm<'a> {
    x: &'a mut [f32],
    add: &'a [f32],
    gain: &'a [f32],
    offset: &'a [f32],
    eps: f32,
    bytes: Option<(&'a [f32], &'a mut Activations)>,
}

impl Task for Norm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let width = self.gain.len();
        let (gain, offset) = (self.gain.as_ptr(), self.offset.as_ptr());
        let mut add = self.add.chunks_exact(width);
        for (at, row) in self.x.chunks_exact_mut(width).enumerate() {
            let p = row.as_mut_ptr();
            let mut sum = [s.splat(0.0); 4];
            // SAFETY (all blocks): row, addition, gain and offset have `width` floats, and `for_lanes` stays below that.
            if let Some(add) = add.next() {
                for_lanes!(S, width, (i, n, k) => unsafe {
                    let x = s.add(read(s, p, i, n, 0.0), read(s, add.as_ptr(), i, n, 0.0));
                    sum[k] = s.add(sum[k], x);
                    write(s, p, i, n, x);
                });
            } else {
                for_lanes!(S, width, (i, n, k) => sum[k] = s.add(sum[k], unsafe { read(s, p, i, n, 0.0) }));
            }
            let mean = total(s, sum) / width as f32;
            let (centre, mut var) = (s.splat(mean), [s.splat(0.0); 4]);
            for_lanes!(S, width, (i, n, k) => {
                let d = s.sub(unsafe { read(s, p, i, n, mean) }, centre);
                var[k] = s.mul_add(d, d, var[k]);
            });
            let scale = s.splat(1.0 / (total(s, var) / width as f32 + self.eps).sqrt());
            let factors = self.bytes.as_ref().map_or(gain, |(factors, _)| factors.as_ptr());
            let mut range = Range::new(s);
            for_lanes!(S, width, (i, n, k) => unsafe {
                let x = s.mul(s.sub(read(s, p, i, n, mean), centre), scale);
                let x = s.mul_add(x, read(s, gain, i, n, 0.0), read(s, offset, i, n, 0.0));
                range.see(s, k, s.mul(x, read(s, factors, i, n, 0.0)));
                write(s, p, i, n, x);
            });
            if let Some((_, out)) = &mut self.bytes {
                out.write(s, at, range.ends(s), &Scaled(p, factors));
            }
        }
    }
}

/// Sum of all lanes of the four parts.
#[inline(always)]
fn total<S: Simd>(s: S, [a, b, c, d]: [S::V; 4]) -> f32 {
    s.sum(s.add(s.add(a, b), s.add(c, d)))
}

impl Kernel {
    /// LayerNorm of each row of `x` plus the row of `add`; an empty `add` adds nothing. Rows are as wide as `gain`.
    ///
    /// # Panics
    /// If the widths don't fit each other.
    pub fn layer_norm(self, x: &mut [f32], add: &[f32], gain: &[f32], offset: &[f32], eps: f32) {
        check(x, add, gain, offset);
        simd::run(self, Norm { x, add, gain, offset, eps, bytes: None });
    }

    /// As [`Kernel::layer_norm`], and quantises the result times `factors` into `out`, as [`Kernel::quantise`] does.
    ///
    /// # Panics
    /// If the widths don't fit each other.
    #[allow(clippy::too_many_arguments)]
    pub fn layer_norm_quantise(
        self,
        x: &mut [f32],
        add: &[f32],
        gain: &[f32],
        offset: &[f32],
        eps: f32,
        factors: &[f32],
        out: &mut Activations,
    ) {
        check(x, add, gain, offset);
        assert!(factors.len() == gain.len(), "{} factors for {} columns", factors.len(), gain.len());
        out.reset(x.len() / gain.len(), gain.len());
        simd::run(self, Norm { x, add, gain, offset, eps, bytes: Some((factors, out)) });
    }
}

fn check(x: &[f32], add: &[f32], gain: &[f32], offset: &[f32]) {
    assert!(
        !gain.is_empty() && gain.len() == offset.len() && x.len().is_multiple_of(gain.len()),
        "layer norm of {} by {}",
        x.len(),
        gain.len()
    );
    assert!(add.is_empty() || add.len() == x.len(), "layer norm of {} plus {}", x.len(), add.len());
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
                let (mut again, mut bytes, mut separate) = (x.clone(), Activations::default(), Activations::default());
                kernel.layer_norm_quantise(&mut again, &add, &gain, &offset, eps, &gain, &mut bytes);
                kernel.quantise(&got, &gain, &mut separate);
                prop_assert_eq!(again, got);
                prop_assert_eq!((bytes.scales(), bytes.zeros()), (separate.scales(), separate.zeros()));
                for row in 0..rows {
                    prop_assert!((0..width).all(|c| bytes.get(row, c) == separate.get(row, c)));
                }
            }
        }
    }
}
