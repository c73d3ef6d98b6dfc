//! Small products of float matrices: what attention needs.
//!
//! In: row-major views with a stride. Cost: `rows · columns · inner` multiply-adds, two an instruction port and lane; no packing, so the right side should fit a cache.
//! Not here: large matrices with weights (`gemm`).

use super::Kernel;
use super::simd::{self, Simd, Task};

/// A row-major matrix inside a slice of floats.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// First row's first float is `data[0]`.
    pub data: &'a [f32],
    /// Floats from a row to the next.
    pub stride: usize,
}

/// Rows in a block of sums.
const ROWS: usize = 6;

struct Product<'a> {
    a: View<'a>,
    b: View<'a>,
    out: &'a mut [f32],
    stride: usize,
    rows: usize,
    columns: usize,
    inner: usize,
}

impl Task for Product<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let parts = self.rows.div_ceil(ROWS);
        let mut row = 0;
        for part in 0..parts {
            let end = self.rows * (part + 1) / parts;
            // SAFETY: `matmul` checked that the three matrices have the rows and columns it names; `row < end <= rows`.
            unsafe {
                let (a, out) = (self.a.data.as_ptr().add(row * self.a.stride), self.out.as_mut_ptr().add(row * self.stride));
                match end - row {
                    1 => columns::<S, 1>(s, &self, a, out),
                    2 => columns::<S, 2>(s, &self, a, out),
                    3 => columns::<S, 3>(s, &self, a, out),
                    4 => columns::<S, 4>(s, &self, a, out),
                    5 => columns::<S, 5>(s, &self, a, out),
                    _ => columns::<S, ROWS>(s, &self, a, out),
                }
            }
            row = end;
        }
    }
}

/// All columns of `R` rows.
///
/// # Safety
/// `a` and `out` point to `R` rows of the product's matrices.
#[inline(always)]
unsafe fn columns<S: Simd, const R: usize>(s: S, p: &Product<'_>, a: *const f32, out: *mut f32) {
    let mut column = 0;
    // SAFETY: `column` stays below the product's columns, and `n` is what is left of them.
    unsafe {
        while column < p.columns {
            let (b, out, left) = (p.b.data.as_ptr().add(column), out.add(column), p.columns - column);
            if left >= 2 * S::LANES {
                block::<S, R, 2>(s, p, a, b, out, S::LANES);
                column += 2 * S::LANES;
            } else {
                block::<S, R, 1>(s, p, a, b, out, left.min(S::LANES));
                column += S::LANES;
            }
        }
    }
}

/// `R` rows by `C` vectors; the last vector has `n` columns.
///
/// # Safety
/// As [`columns`]; `b` and `out` point to at least `(C - 1) · LANES + n` columns.
#[inline(always)]
unsafe fn block<S: Simd, const R: usize, const C: usize>(s: S, p: &Product<'_>, a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's promise; vectors are partial when `n` is.
    unsafe {
        let whole = n == S::LANES;
        let mut sums = [[s.splat(0.0); C]; R];
        for i in 0..p.inner {
            let b = b.add(i * p.b.stride);
            let mut bs = [s.splat(0.0); C];
            for (c, v) in bs.iter_mut().enumerate() {
                *v = if whole { s.load(b.add(c * S::LANES)) } else { s.load_part(b.add(c * S::LANES), n, 0.0) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(a.add(row * p.a.stride + i).read());
                for (sum, b) in sums.iter_mut().zip(bs) {
                    *sum = s.mul_add(x, b, *sum);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                let out = out.add(row * p.stride + c * S::LANES);
                if whole { s.store(out, sum) } else { s.store_part(out, n, sum) }
            }
        }
    }
}

/// Whether `rows` rows of `columns` fit.
fn fits(len: usize, stride: usize, rows: usize, columns: usize) -> bool {
    columns <= stride && len >= (rows - 1) * stride + columns
}

impl Kernel {
    /// `out = a · b` for `a` of `rows × inner` and `b` of `inner × columns`; rows of `out` are `stride` floats apart.
    ///
    /// # Panics
    /// If a matrix is too small.
    #[allow(clippy::too_many_arguments)]
    pub fn matmul(self, a: View<'_>, b: View<'_>, out: &mut [f32], stride: usize, rows: usize, columns: usize, inner: usize) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(inner > 0 && fits(a.data.len(), a.stride, rows, inner), "left side of {rows} by {inner}");
        assert!(fits(b.data.len(), b.stride, inner, columns), "right side of {inner} by {columns}");
        assert!(fits(out.len(), stride, rows, columns), "result of {rows} by {columns}");
        simd::run(self, Product { a, b, out, stride, rows, columns, inner });
    }
}

/// `out[c · stride + r] = a[r][c]` for `rows × columns` of `a`.
///
/// # Panics
/// If a matrix is too small.
pub fn transpose(a: View<'_>, rows: usize, columns: usize, out: &mut [f32], stride: usize) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(fits(a.data.len(), a.stride, rows, columns) && fits(out.len(), stride, columns, rows), "transposing {rows} by {columns}");
    // eight rows at a time, so that what is written to one line is written together
    for first in (0..rows).step_by(8) {
        let end = (first + 8).min(rows);
        for c in 0..columns {
            for r in first..end {
                out[c * stride + r] = a.data[r * a.stride + c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_gives_the_product(
            rows in 1usize..20, columns in 1usize..70, inner in 1usize..40, pad in 0usize..3, seed in prop::collection::vec(-2f32..2.0, 97),
        ) {
            let fill = |n: usize, step: usize| -> Vec<f32> { (0..n).map(|i| seed[i * step % 97]).collect() };
            let (sa, sb, so) = (inner + pad, columns + pad, columns + pad);
            let (a, b) = (fill(rows * sa, 5), fill(inner * sb, 11));
            for kernel in Kernel::available() {
                let mut out = vec![f32::NAN; rows * so];
                kernel.matmul(View { data: &a, stride: sa }, View { data: &b, stride: sb }, &mut out, so, rows, columns, inner);
                for r in 0..rows {
                    for c in 0..so {
                        let want: f64 = (0..inner).map(|i| f64::from(a[r * sa + i]) * f64::from(b[i * sb + c.min(columns - 1)])).sum();
                        let got = out[r * so + c];
                        prop_assert!(if c < columns { (f64::from(got) - want).abs() < 1e-4 } else { got.is_nan() }, "{}", kernel.name());
                    }
                }
            }
            let mut turned = vec![0.0; inner * (rows + pad)];
            transpose(View { data: &a, stride: sa }, rows, inner, &mut turned, rows + pad);
            for r in 0..rows {
                for i in 0..inner {
                    prop_assert_eq!(turned[i * (rows + pad) + r], a[r * sa + i]);
                }
            }
        }
    }
}
