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

struct Product<'a> {
    a: View<'a>,
    b: View<'a>,
    /// Borrowed for as long as the product runs.
    out: *mut f32,
    stride: usize,
    rows: usize,
    columns: usize,
    inner: usize,
}

impl Task for Product<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // a strip of columns at a time: it stays in the first cache while all rows pass by
        let mut column = 0;
        while column < self.columns {
            let left = self.columns - column;
            // SAFETY: `matmul` checked that the matrices have the rows and columns it names; the strip has at most `left` columns.
            unsafe {
                if left >= 2 * S::LANES {
                    strip::<S, 2>(s, &self, column, S::LANES);
                    column += 2 * S::LANES;
                } else {
                    strip::<S, 1>(s, &self, column, left.min(S::LANES));
                    column += S::LANES;
                }
            }
        }
    }
}

/// All rows of `C` vectors of columns; the last vector has `n` of them.
///
/// # Safety
/// The matrices have those columns.
#[inline(always)]
unsafe fn strip<S: Simd, const C: usize>(s: S, p: &Product<'_>, column: usize, n: usize) {
    let parts = p.rows.div_ceil(S::ROWS);
    let mut row = 0;
    for part in 0..parts {
        let end = p.rows * (part + 1) / parts;
        // SAFETY: `row < end <= rows`, and `S::ROWS` is at most 12.
        unsafe {
            let (a, b) = (p.a.data.as_ptr().add(row * p.a.stride), p.b.data.as_ptr().add(column));
            let out = p.out.add(row * p.stride + column);
            match end - row {
                1 => block::<S, 1, C>(s, p, a, b, out, n),
                2 => block::<S, 2, C>(s, p, a, b, out, n),
                3 => block::<S, 3, C>(s, p, a, b, out, n),
                4 => block::<S, 4, C>(s, p, a, b, out, n),
                5 => block::<S, 5, C>(s, p, a, b, out, n),
                6 => block::<S, 6, C>(s, p, a, b, out, n),
                7 => block::<S, 7, C>(s, p, a, b, out, n),
                8 => block::<S, 8, C>(s, p, a, b, out, n),
                9 => block::<S, 9, C>(s, p, a, b, out, n),
                10 => block::<S, 10, C>(s, p, a, b, out, n),
                11 => block::<S, 11, C>(s, p, a, b, out, n),
                _ => block::<S, 12, C>(s, p, a, b, out, n),
            }
        }
        row = end;
    }
}

/// `R` rows by `C` vectors; the last vector has `n` columns.
///
/// # Safety
/// `a` and `out` point to `R` rows of the product's matrices; `b` and `out` point to at least `(C - 1) · LANES + n` columns.
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

struct Turn<'a> {
    a: View<'a>,
    rows: usize,
    columns: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl Task for Turn<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.columns - self.columns % 8;
        for row in (0..self.rows).step_by(8) {
            for column in (0..whole).step_by(8) {
                // SAFETY: `transpose` checked both matrices; `out` has room for the eighth row even where `a` ends before.
                unsafe {
                    let a = self.a.data.as_ptr().add(row * self.a.stride + column);
                    s.turn8(a, self.a.stride, (self.rows - row).min(8), self.out.as_mut_ptr().add(column * self.stride + row), self.stride);
                }
            }
            for column in whole..self.columns {
                for r in row..(row + 8).min(self.rows) {
                    self.out[column * self.stride + r] = self.a.data[r * self.a.stride + column];
                }
            }
        }
    }
}

impl Kernel {
    /// `out[c · stride + r] = a[r][c]` for `rows × columns` of `a`. Columns of `out` up to the next multiple of 8 may become 0.
    ///
    /// # Panics
    /// If a matrix is too small; `out` needs columns up to the next multiple of 8.
    pub fn transpose(self, a: View<'_>, rows: usize, columns: usize, out: &mut [f32], stride: usize) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(fits(a.data.len(), a.stride, rows, columns), "transposing {rows} by {columns}");
        assert!(fits(out.len(), stride, columns, rows.next_multiple_of(8)), "transposing into {columns} by {rows}");
        simd::run(self, Turn { a, rows, columns, out, stride });
    }

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
        simd::run(self, Product { a, b, out: out.as_mut_ptr(), stride, rows, columns, inner });
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
            let stride = rows.next_multiple_of(8) + pad;
            for kernel in Kernel::available() {
                let mut turned = vec![f32::NAN; inner * stride];
                kernel.transpose(View { data: &a, stride: sa }, rows, inner, &mut turned, stride);
                for r in 0..rows {
                    for i in 0..inner {
                        prop_assert_eq!(turned[i * stride + r], a[r * sa + i]);
                    }
                }
                prop_assert!((0..inner).all(|i| turned[i * stride + stride - pad..(i + 1) * stride].iter().all(|x| x.is_nan())));
            }
        }
    }
}
