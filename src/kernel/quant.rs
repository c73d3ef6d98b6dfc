//! Rows of floats as unsigned bytes, each row with a scale and a zero point of its own.
//!
//! `x ≈ scale · (q − zero)`, q in 0..=255; the range of a row always contains 0, and 0 is exact.
//! Layout: blocks of 64 columns, in a block row after row, 64 bytes a row, so that the products find every row of a block at a fixed distance.
//! Columns past the width are undefined bytes; the weights there are 0. Cost: two passes over a row.

use super::Kernel;
use super::aligned::{Aligned, LINE};
use super::gelu::gelu_rough;
use super::simd::{self, Simd, Task, for_lanes, read};

/// Quantised rows: the left side of an 8-bit product.
#[derive(Default)]
pub struct Activations {
    data: Aligned,
    scale: Vec<f32>,
    zero: Vec<i32>,
    rows: usize,
    width: usize,
}

impl Activations {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Value of a step of each row.
    pub fn scales(&self) -> &[f32] {
        &self.scale
    }

    /// The byte that stands for 0, of each row.
    pub fn zeros(&self) -> &[i32] {
        &self.zero
    }

    /// All bytes, in the layout of the head comment.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// The byte at a row and column.
    pub fn get(&self, row: usize, column: usize) -> Option<u8> {
        if row >= self.rows || column >= self.width {
            return None;
        }
        self.bytes().get((column / LINE * self.rows + row) * LINE + column % LINE).copied()
    }

    /// Makes room for `rows` of `width`; what was there is lost.
    pub(super) fn reset(&mut self, rows: usize, width: usize) {
        self.data.grow(rows * width.div_ceil(LINE) * LINE);
        self.scale.clear();
        self.scale.resize(rows, 0.0);
        self.zero.clear();
        self.zero.resize(rows, 0);
        (self.rows, self.width) = (rows, width);
    }
}

/// A row of floats on its way to bytes.
pub(super) trait Row {
    /// The `n` floats from column `i` on; other lanes are 0.
    ///
    /// # Safety
    /// The row has them.
    unsafe fn at<S: Simd>(&self, s: S, i: usize, n: usize) -> S::V;
}

/// Floats as they are.
struct Plain(*const f32);

/// Each float times its factor.
pub(super) struct Scaled(pub *const f32, pub *const f32);

impl Row for Plain {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, s: S, i: usize, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { read(s, self.0, i, n, 0.0) }
    }
}

impl Row for Scaled {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, s: S, i: usize, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.mul(read(s, self.0, i, n, 0.0), read(s, self.1, i, n, 0.0)) }
    }
}

/// Smallest and largest value of a row so far, and 0, in four parts that don't wait for each other.
pub(super) struct Range<S: Simd>([S::V; 4], [S::V; 4]);

impl<S: Simd> Range<S> {
    #[inline(always)]
    pub(super) fn new(s: S) -> Self {
        Self([s.splat(0.0); 4], [s.splat(0.0); 4])
    }

    /// Takes in a vector, in part `k`.
    #[inline(always)]
    pub(super) fn see(&mut self, s: S, k: usize, v: S::V) {
        self.0[k] = s.min(self.0[k], v);
        self.1[k] = s.max(self.1[k], v);
    }

    #[inline(always)]
    pub(super) fn ends(self, s: S) -> (f32, f32) {
        let [a, b, c, d] = self.0;
        let low = s.bottom(s.min(s.min(a, b), s.min(c, d)));
        let [a, b, c, d] = self.1;
        (low, s.top(s.max(s.max(a, b), s.max(c, d))))
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    factors: &'a [f32],
    out: &'a mut Activations,
}

impl Task for Quantise<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.factors.len();
        for (row, x) in self.x.chunks_exact(width).enumerate() {
            let x = Scaled(x.as_ptr(), self.factors.as_ptr());
            let mut range = Range::new(s);
            for_lanes!(S, width, (i, n, k) => {
                // SAFETY: both slices have `width` floats.
                let v = unsafe { x.at(s, i, n) };
                range.see(s, k, v);
            });
            self.out.write(s, row, range.ends(s), &x);
        }
    }
}

struct GeluQuantise<'a> {
    x: &'a mut [f32],
    width: usize,
    out: &'a mut Activations,
}

impl Task for GeluQuantise<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, x) in self.x.chunks_exact_mut(self.width).enumerate() {
            let p = x.as_mut_ptr();
            let mut range = Range::new(s);
            for_lanes!(S, self.width, (i, n, k) => {
                // SAFETY: the row has `width` floats.
                let v = unsafe {
                    let v = gelu_rough(s, read(s, p, i, n, 0.0));
                    simd::write(s, p, i, n, v);
                    v
                };
                range.see(s, k, v);
            });
            self.out.write(s, row, range.ends(s), &Plain(p));
        }
    }
}

impl Activations {
    /// Writes row `row`, whose floats lie in `low..=high` (0 included).
    #[inline(always)]
    pub(super) fn write<S: Simd>(&mut self, s: S, row: usize, (low, high): (f32, f32), x: &impl Row) {
        let span = high - low;
        let inverse = if span > 0.0 { 255.0 / span } else { 0.0 };
        let zero = (-low * inverse + 0.5).floor();
        self.scale[row] = span / 255.0;
        self.zero[row] = zero as i32;
        let (inverse, zero) = (s.splat(inverse), s.splat(zero));
        let (rows, width) = (self.rows, self.width);
        let out = self.data.bytes_mut();
        assert!(row < rows && out.len() >= rows * width.div_ceil(LINE) * LINE);
        let step = 4 * S::LANES;
        let whole = width - width % step;
        // SAFETY (both loops): `i / LINE < width.div_ceil(LINE)` and `row < rows`, so the row's line is inside `out`; `step` and LANES divide LINE, so what is
        // written stays in the line.
        for i in (0..whole).step_by(step) {
            unsafe {
                let mut four = [zero; 4];
                for (k, v) in four.iter_mut().enumerate() {
                    *v = s.mul_add(x.at(s, i + k * S::LANES, S::LANES), inverse, zero);
                }
                s.store_u8x4(out.as_mut_ptr().add((i / LINE * rows + row) * LINE + i % LINE), four);
            }
        }
        for i in (whole..width).step_by(S::LANES) {
            unsafe {
                let v = s.mul_add(x.at(s, i, (width - i).min(S::LANES)), inverse, zero);
                s.store_u8(out.as_mut_ptr().add((i / LINE * rows + row) * LINE + i % LINE), v);
            }
        }
    }
}

impl Kernel {
    /// Quantises rows as wide as `factors`, after multiplying each column by its factor.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn quantise(self, x: &[f32], factors: &[f32], out: &mut Activations) {
        let width = factors.len();
        assert!(width > 0 && x.len().is_multiple_of(width), "{} floats in rows of {width}", x.len());
        out.reset(x.len() / width, width);
        simd::run(self, Quantise { x, factors, out });
    }

    /// Replaces `x` by its GELU and quantises that.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn gelu_quantise(self, x: &mut [f32], width: usize, out: &mut Activations) {
        assert!(width > 0 && x.len().is_multiple_of(width), "{} floats in rows of {width}", x.len());
        out.reset(x.len() / width, width);
        simd::run(self, GeluQuantise { x, width, out });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(kernel: Kernel, want: &[f32], width: usize, a: &Activations) -> Result<(), TestCaseError> {
        for (row, x) in want.chunks(width).enumerate() {
            let (low, high) = x.iter().fold((0f32, 0f32), |(l, h), x| (l.min(*x), h.max(*x)));
            prop_assert!((a.scales()[row] - (high - low) / 255.0).abs() <= 1e-6 * (high - low));
            for (column, x) in x.iter().enumerate() {
                let q = i32::from(a.get(row, column).unwrap());
                let back = a.scales()[row] * (q - a.zeros()[row]) as f32;
                prop_assert!((back - x).abs() <= a.scales()[row] * 1.01 + 1e-6, "{}: {back} for {x}", kernel.name());
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn rows_come_back_within_a_step(width in 1usize..150, rows in 1usize..4, seed in prop::collection::vec(-9f32..5.0, 150 * 4), positive: bool) {
            let x: Vec<f32> = seed.iter().take(width * rows).map(|x| if positive { x.abs() } else { *x }).collect();
            let factors: Vec<f32> = (0..width).map(|i| 0.25 + (i % 7) as f32).collect();
            let scaled: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * factors[i % width]).collect();
            for kernel in Kernel::available() {
                let mut a = Activations::default();
                kernel.quantise(&x, &factors, &mut a);
                prop_assert_eq!((a.rows(), a.width()), (rows, width));
                check(kernel, &scaled, width, &a)?;
                let mut g = x.clone();
                kernel.gelu_quantise(&mut g, width, &mut a);
                check(kernel, &g, width, &a)?;
                let mut want = x.clone();
                kernel.gelu(&mut want);
                for ((g, w), x) in g.iter().zip(&want).zip(&x) {
                    prop_assert!((g - w).abs() <= 1e-5 + x.abs() * 1e-4);
                }
            }
        }
    }

    #[test]
    fn zeros_are_exact_and_a_row_of_zeros_is_fine() {
        for kernel in Kernel::available() {
            let mut a = Activations::default();
            kernel.quantise(&[0.0, 0.0, 0.0, 5.0, 0.0, -1.0], &[1.0; 3], &mut a);
            assert_eq!((a.scales()[0], a.zeros()[0], a.get(0, 1)), (0.0, 0, Some(0)));
            assert_eq!(i32::from(a.get(1, 1).unwrap()), a.zeros()[1]);
            assert_eq!((a.get(1, 3), a.get(2, 0)), (None, None));
        }
    }
}
