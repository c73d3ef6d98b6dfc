//! The product's micro-kernel on plain AVX2: up to 3 rows by half a panel (16 outputs) in 12 registers of sums.
//!
//! `vpmaddubsw` would saturate on full bytes, so both sides are widened to 16 bits for `vpmaddwd`: exact, and 16 multiply-adds an instruction.
//! A register holds four outputs with two partial sums each; they are added at the end.

use super::aligned::LINE;
use super::gemm::{Tile, fetch};
use super::panel::PANEL;
use std::arch::x86_64::*;

/// Rows in a block.
pub(super) const MAX_ROWS: usize = 3;

/// `rows` rows times one panel.
///
/// # Safety
/// The CPU has AVX2 and FMA; the tile's pointers reach what it says, for `rows <= MAX_ROWS` rows.
pub(super) unsafe fn tile(rows: usize, how: usize, t: &Tile) {
    // SAFETY: the caller's promise, with the number of rows now a constant.
    unsafe {
        match rows {
            1 => block::<1>(how, t),
            2 => block::<2>(how, t),
            3 => block::<3>(how, t),
            _ => unreachable!("a block has 1 to 3 rows"),
        }
    }
}

/// # Safety
/// As [`tile`], for `R` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn block<const R: usize>(how: usize, t: &Tile) {
    // SAFETY: all offsets stay below `blocks` blocks, `R` rows and one panel, which the caller promises; prefetching is allowed anywhere.
    unsafe {
        for half in 0..2 {
            let column = half * 16;
            let mut sums = [[_mm256_setzero_si256(); 4]; R];
            let (mut a, mut w, mut ahead) = (t.a, t.w.add(column * 4), t.ahead.wrapping_add(column * 4));
            for _ in 0..t.blocks {
                for group in 0..LINE / 4 {
                    if how == fetch::ALL || (how == fetch::HALF && half == 0) {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.add(group * PANEL * 4));
                    }
                    let mut fours = [_mm256_setzero_si256(); R];
                    for (row, four) in fours.iter_mut().enumerate() {
                        *four = _mm256_cvtepu8_epi16(_mm_set1_epi32(a.add(row * LINE + group * 4).cast::<i32>().read_unaligned()));
                    }
                    for quarter in 0..4 {
                        let w = _mm256_cvtepi8_epi16(_mm_load_si128(w.add(group * PANEL * 4 + quarter * 16).cast()));
                        for (sums, four) in sums.iter_mut().zip(fours) {
                            sums[quarter] = _mm256_add_epi32(sums[quarter], _mm256_madd_epi16(four, w));
                        }
                    }
                }
                a = a.add(t.a_step);
                w = w.add(LINE * PANEL);
                ahead = ahead.wrapping_add(LINE * PANEL);
            }
            for eight in 0..2 {
                for (row, sums) in sums.iter().enumerate() {
                    let pairs = _mm256_hadd_epi32(sums[eight * 2], sums[eight * 2 + 1]);
                    finish(t, row, column + eight * 8, _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs));
                }
            }
        }
    }
}

/// Turns eight sums of a row into floats and writes them.
///
/// # Safety
/// As [`tile`]; `column + 8 <= 32`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn finish(t: &Tile, row: usize, column: usize, sums: __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = _mm256_set1_epi32(t.zero.add(row).read());
        let shift = _mm256_mullo_epi32(zero, _mm256_loadu_si256(t.sums.add(column).cast()));
        let whole = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, shift));
        let scale = _mm256_mul_ps(_mm256_set1_ps(t.scale.add(row).read()), _mm256_loadu_ps(t.w_scale.add(column)));
        _mm256_storeu_ps(t.out.add(row * t.stride + column), _mm256_fmadd_ps(whole, scale, _mm256_loadu_ps(t.bias.add(column))));
    }
}
