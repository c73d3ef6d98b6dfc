//! The product's micro-kernel on AVX-VNNI: up to 6 rows by half a panel (16 outputs) in 12 registers of sums.

use super::aligned::LINE;
use super::gemm::{Tile, fetch};
use super::panel::PANEL;
use std::arch::x86_64::*;

/// Rows in a block.
pub(super) const MAX_ROWS: usize = 6;

/// `rows` rows times one panel.
///
/// # Safety
/// The CPU has AVX2, FMA and AVX-VNNI; the tile's pointers reach what it says, for `rows <= MAX_ROWS` rows.
pub(super) unsafe fn tile(rows: usize, how: usize, t: &Tile) {
    // SAFETY: the caller's promise, with the number of rows now a constant.
    unsafe {
        match rows {
            1 => block::<1>(how, t),
            2 => block::<2>(how, t),
            3 => block::<3>(how, t),
            4 => block::<4>(how, t),
            5 => block::<5>(how, t),
            6 => block::<6>(how, t),
            _ => unreachable!("a block has 1 to 6 rows"),
        }
    }
}

/// # Safety
/// As [`tile`], for `R` rows.
#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn block<const R: usize>(how: usize, t: &Tile) {
    // SAFETY: all offsets stay below `blocks` blocks, `R` rows and one panel, which the caller promises; prefetching is allowed anywhere.
    unsafe {
        for half in 0..2 {
            let column = half * 16;
            let mut sums = [[_mm256_setzero_si256(); 2]; R];
            let (mut a, mut w, mut ahead) = (t.a, t.w.add(column * 4), t.ahead.wrapping_add(column * 4));
            for _ in 0..t.blocks {
                for group in 0..LINE / 4 {
                    let w0 = _mm256_load_si256(w.add(group * PANEL * 4).cast());
                    let w1 = _mm256_load_si256(w.add(group * PANEL * 4 + LINE / 2).cast());
                    if how == fetch::ALL || (how == fetch::HALF && half == 0) {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.add(group * PANEL * 4));
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let four = _mm256_set1_epi32(a.add(row * LINE + group * 4).cast::<i32>().read_unaligned());
                        sums[0] = _mm256_dpbusd_avx_epi32(sums[0], four, w0);
                        sums[1] = _mm256_dpbusd_avx_epi32(sums[1], four, w1);
                    }
                }
                a = a.add(t.a_step);
                w = w.add(LINE * PANEL);
                ahead = ahead.wrapping_add(LINE * PANEL);
            }
            for quarter in 0..2 {
                let column = column + quarter * 8;
                for (row, sums) in sums.iter().enumerate() {
                    super::gemm_avx2::finish(t, row, column, sums[quarter]);
                }
            }
        }
    }
}
