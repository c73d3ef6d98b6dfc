//! The product of quantised rows with packed weights: 88 % of the time of an encoder.
//!
//! `out[row][output] = scale_a[row] · scale_w[output] · (Σ a·w − zero[row] · Σ w) + bias[output]`; the sums are exact integers, the same for every kernel.
//! Order: a panel of weights at a time, and for each the rows in blocks whose sums fit the registers. Rows are split evenly (18 = 9 + 9, not 12 + 6),
//! and while a panel is used the next one is fetched: weights stream through once. Cost: `rows · outputs · inputs` multiply-adds, up to 128 a cycle.

use super::Kernel;
use super::aligned::LINE;
use super::panel::{PANEL, Weights};
use super::quant::Activations;
use std::ops::Range;

/// Where a block of rows meets a panel.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// First row, first block of 64 columns.
    pub a: *const u8,
    /// Bytes from a block of 64 columns to the next.
    pub a_step: usize,
    /// Blocks of 64 columns.
    pub blocks: usize,
    /// The panel.
    pub w: *const i8,
    /// What to fetch meanwhile.
    pub ahead: *const i8,
    /// Zero points of the rows.
    pub zero: *const i32,
    /// Scales of the rows.
    pub scale: *const f32,
    /// Sums of the panel's weights.
    pub sums: *const i32,
    /// Scales of the panel's outputs.
    pub w_scale: *const f32,
    /// Bias of the panel's outputs.
    pub bias: *const f32,
    /// First row's first output of this panel.
    pub out: *mut f32,
    /// Floats from a row of results to the next.
    pub stride: usize,
}

/// How much of the next panel a block of rows fetches.
pub(super) mod fetch {
    /// Nothing.
    pub const NONE: usize = 0;
    /// Every second line.
    pub const HALF: usize = 1;
    /// All of it.
    pub const ALL: usize = 2;
}

/// How a kernel takes the rows of a product: in blocks of about equal size, or in tiles of one shape.
enum Cut {
    Blocks {
        most: usize,
        micro: Micro,
    },
    #[cfg(target_arch = "x86_64")]
    Tiles(super::gemm_amx::Registers),
}

impl Cut {
    fn of(kernel: Kernel, rows: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if kernel.usable() == Kernel::Amx {
            // SAFETY: the kernel is usable, and a product is finished before another begins on this thread.
            return Self::Tiles(unsafe { super::gemm_amx::Registers::take(super::gemm_amx::Shape::of(rows)) });
        }
        let (most, micro) = micro(kernel);
        // no rows, no blocks: `gemm` has returned before
        Self::Blocks { most: most.min(rows.max(1)), micro }
    }

    fn parts(&self, rows: usize) -> usize {
        match self {
            Self::Blocks { most, .. } => rows.div_ceil(*most),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(registers) => registers.shape().blocks,
        }
    }

    /// First row of a part, and the row after its last.
    fn rows(&self, part: usize, parts: usize, rows: usize) -> (usize, usize) {
        match self {
            Self::Blocks { .. } => (rows * part / parts, rows * (part + 1) / parts),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(registers) => (registers.shape().start(part, rows), registers.shape().start(part, rows) + registers.shape().span),
        }
    }
}

/// Rows of a product that one call of a micro-kernel may take, and the call. `F` is one of [`fetch`].
///
/// # Safety
/// The CPU has the kernel's instructions, and the tile's pointers reach what it says they reach, for `rows` rows.
type Micro = unsafe fn(rows: usize, fetch: usize, tile: &Tile);

/// Most rows in a block, and the micro-kernel.
fn micro(kernel: Kernel) -> (usize, Micro) {
    match kernel.usable() {
        #[cfg(target_arch = "x86_64")]
        // tiles are cut elsewhere; its plainer twin does as well
        Kernel::Avx512 | Kernel::Amx => (super::gemm_avx512::MAX_ROWS, super::gemm_avx512::tile),
        #[cfg(target_arch = "x86_64")]
        Kernel::AvxVnni => (super::gemm_avxvnni::MAX_ROWS, super::gemm_avxvnni::tile),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => (super::gemm_avx2::MAX_ROWS, super::gemm_avx2::tile),
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Amx | Kernel::Avx512 | Kernel::AvxVnni | Kernel::Avx2 => (super::gemm_scalar::MAX_ROWS, super::gemm_scalar::tile),
        Kernel::Scalar => (super::gemm_scalar::MAX_ROWS, super::gemm_scalar::tile),
    }
}

impl Kernel {
    /// Multiplies all rows of `a` with the outputs `outputs` of `w` into `out`, rows `stride` floats apart.
    ///
    /// # Panics
    /// If widths differ, `outputs` is not whole panels of `w`, or `out` is too short.
    pub fn gemm(self, a: &Activations, w: &Weights, outputs: Range<usize>, out: &mut [f32], stride: usize) {
        let (rows, width) = (a.rows(), outputs.len());
        assert!(a.width() == w.inputs(), "{} columns for {} inputs", a.width(), w.inputs());
        assert!(
            outputs.start.is_multiple_of(PANEL) && outputs.end.is_multiple_of(PANEL) && outputs.end <= w.width(),
            "outputs {outputs:?} of {}",
            w.width()
        );
        if rows == 0 || width == 0 {
            return;
        }
        assert!(width <= stride && out.len() >= (rows - 1) * stride + width, "{} floats for {rows} rows of {width}", out.len());
        let blocks = w.inputs().div_ceil(LINE);
        let panel_bytes = blocks * LINE * PANEL;
        assert!(a.bytes().len() >= blocks * rows * LINE && w.packed().len() == w.width() / PANEL * panel_bytes);
        assert!(a.zeros().len() == rows && a.scales().len() == rows && w.sums().len() == w.width() && w.bias().len() == w.width());

        let cut = Cut::of(self, rows);
        let parts = cut.parts(rows);
        let last = w.width() / PANEL - 1;
        for panel in outputs.start / PANEL..outputs.end / PANEL {
            let column = panel * PANEL;
            for part in 0..parts {
                let (row, end) = cut.rows(part, parts, rows);
                let fetch = if parts == 1 { fetch::ALL } else { usize::from(part < 2) * fetch::HALF };
                let next = (panel + 1).min(last) * panel_bytes + if part == 1 { LINE } else { 0 };
                // SAFETY: `micro` belongs to a kernel that this CPU has. The asserts above say that `a` has `rows` rows in `blocks` blocks, `w` whole panels
                // with one sum, scale and bias an output, and `out` room for `rows` rows of `width`. `row < end <= rows` and `panel <= last`.
                unsafe {
                    let tile = Tile {
                        a: a.bytes().as_ptr().add(row * LINE),
                        a_step: rows * LINE,
                        blocks,
                        w: w.packed().as_ptr().cast::<i8>().add(panel * panel_bytes),
                        ahead: w.packed().as_ptr().cast::<i8>().add(next),
                        zero: a.zeros().as_ptr().add(row),
                        scale: a.scales().as_ptr().add(row),
                        sums: w.sums().as_ptr().add(column),
                        w_scale: w.scales().as_ptr().add(column),
                        bias: w.bias().as_ptr().add(column),
                        out: out.as_mut_ptr().add(row * stride + column - outputs.start),
                        stride,
                    };
                    match &cut {
                        Cut::Blocks { micro, .. } => micro(end - row, fetch, &tile),
                        #[cfg(target_arch = "x86_64")]
                        Cut::Tiles(registers) => registers.tile(fetch, &tile),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The formula of the head comment, by indices.
    fn plain(a: &Activations, w: &Weights) -> Vec<f32> {
        let mut out = vec![];
        for row in 0..a.rows() {
            for output in 0..w.outputs() {
                let sum: i64 = (0..w.inputs())
                    .map(|i| (i64::from(a.get(row, i).unwrap()) - i64::from(a.zeros()[row])) * i64::from(w.get(output, i).unwrap()))
                    .sum();
                out.push((sum as f64 * f64::from(a.scales()[row] * w.scales()[output]) + f64::from(w.bias()[output])) as f32);
            }
        }
        out
    }

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    fn check(rows: usize, outputs: usize, inputs: usize, seed: u32) {
        let w = Weights::quantise(&noise(outputs * inputs, seed), &noise(outputs, seed + 1), &vec![1.0; inputs]);
        let x = noise(rows * inputs, seed + 2);
        let mut a = Activations::default();
        Kernel::Scalar.quantise(&x, &vec![1.0; inputs], &mut a);
        let want = plain(&a, &w);
        let stride = w.width() + 3;
        for kernel in Kernel::available() {
            let mut out = vec![f32::NAN; rows * stride];
            kernel.gemm(&a, &w, 0..w.width(), &mut out, stride);
            for (got, want) in out.chunks(stride).zip(want.chunks(outputs)) {
                for (g, w) in got.iter().zip(want) {
                    assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{} {rows}x{inputs}x{outputs}: {g} for {w}", kernel.name());
                }
                assert!(got[w.width()..].iter().all(|x| x.is_nan()), "wrote past the row");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_gives_the_product(rows in 1usize..45, outputs in 1usize..100, inputs in 1usize..300, seed: u32) {
            check(rows, outputs, inputs, seed % 1_000_000);
        }
    }

    #[test]
    fn shapes_of_the_real_models() {
        for (rows, outputs, inputs) in [(1, 512, 2048), (18, 128, 512), (14, 64, 384), (97, 96, 1024)] {
            check(rows, outputs, inputs, 7);
        }
    }

    #[test]
    fn the_largest_bytes_neither_saturate_nor_wrap() {
        let (n, k) = (32, 4096);
        let w = Weights::pack(&vec![127; n * k], &vec![1.0; n], &vec![0.0; n]);
        let x = [vec![255.0; k], (0..k).map(|i| if i == 0 { -255.0 } else { 0.0 }).collect()].concat();
        let mut a = Activations::default();
        Kernel::Scalar.quantise(&x, &vec![1.0; k], &mut a);
        for kernel in Kernel::available() {
            let mut out = vec![0.0; 2 * n];
            kernel.gemm(&a, &w, 0..n, &mut out, n);
            assert!(out[..n].iter().all(|x| *x == 255.0 * 127.0 * k as f32), "{}", kernel.name());
            assert!(out[n..].iter().all(|x| *x == -255.0 * 127.0), "{}", kernel.name());
        }
    }

    #[test]
    fn part_of_the_outputs() {
        let (rows, inputs) = (5, 70);
        let w = Weights::quantise(&noise(96 * inputs, 3), &noise(96, 4), &vec![1.0; inputs]);
        let mut a = Activations::default();
        Kernel::Scalar.quantise(&noise(rows * inputs, 5), &vec![1.0; inputs], &mut a);
        for kernel in Kernel::available() {
            let (mut all, mut part) = (vec![0.0; rows * 96], vec![0.0; rows * 32]);
            kernel.gemm(&a, &w, 0..96, &mut all, 96);
            kernel.gemm(&a, &w, 32..64, &mut part, 32);
            for (a, p) in all.chunks(96).zip(part.chunks(32)) {
                assert_eq!(&a[32..64], p);
            }
        }
    }
}
