//! The product's micro-kernel on AVX-512 VNNI: up to 14 rows by 32 outputs in 28 registers of sums.

use super::aligned::LINE;
use super::gemm::{Tile, fetch};
use super::panel::PANEL;
use std::arch::x86_64::*;

/// Rows in a block.
pub(super) const MAX_ROWS: usize = 14;

/// `rows` rows times one panel.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VNNI; the tile's pointers reach what it says, for `rows <= MAX_ROWS` rows.
pub(super) unsafe fn tile(rows: usize, how: usize, t: &Tile) {
    macro_rules! by_rows {
        ($($n:literal)*) => {
            match (rows, how) {
                $(($n, fetch::NONE) => unsafe { block::<$n, { fetch::NONE }>(t) },
                  ($n, fetch::HALF) => unsafe { block::<$n, { fetch::HALF }>(t) },
                  ($n, _) => unsafe { block::<$n, { fetch::ALL }>(t) },)*
                _ => unreachable!("a block has 1 to 14 rows"),
            }
        };
    }
    // SAFETY: the caller's promise, with the number of rows now a constant.
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// # Safety
/// As [`tile`], for `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn block<const R: usize, const F: usize>(t: &Tile) {
    // SAFETY: all offsets stay below `blocks` blocks, `R` rows and one panel, which the caller promises; prefetching is allowed anywhere.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; R];
        let (mut a, mut w, mut ahead) = (t.a, t.w, t.ahead);
        for _ in 0..t.blocks {
            for group in 0..LINE / 4 {
                let w0 = _mm512_load_si512(w.add(group * PANEL * 4).cast());
                let w1 = _mm512_load_si512(w.add(group * PANEL * 4 + LINE).cast());
                if F != fetch::NONE {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.add(group * PANEL * 4));
                }
                if F == fetch::ALL {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.add(group * PANEL * 4 + LINE));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let four = _mm512_set1_epi32(a.add(row * LINE + group * 4).cast::<i32>().read_unaligned());
                    sums[0] = _mm512_dpbusd_epi32(sums[0], four, w0);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], four, w1);
                }
            }
            a = a.add(t.a_step);
            w = w.add(LINE * PANEL);
            ahead = ahead.wrapping_add(LINE * PANEL);
        }
        for half in 0..2 {
            let column = half * 16;
            let w_sums = _mm512_loadu_si512(t.sums.add(column).cast());
            let (w_scale, bias) = (_mm512_loadu_ps(t.w_scale.add(column)), _mm512_loadu_ps(t.bias.add(column)));
            for (row, sums) in sums.iter().enumerate() {
                let zero = _mm512_set1_epi32(t.zero.add(row).read());
                let whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[half], _mm512_mullo_epi32(zero, w_sums)));
                let scale = _mm512_mul_ps(_mm512_set1_ps(t.scale.add(row).read()), w_scale);
                _mm512_storeu_ps(t.out.add(row * t.stride + column), _mm512_fmadd_ps(whole, scale, bias));
            }
        }
    }
}
