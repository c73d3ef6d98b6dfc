//! [`Simd`] on AVX2 (8 lanes) and AVX-512 (16 lanes).
//!
//! Invariant: the two vector types are only made inside `run_avx2` and `run_avx512`, whose callers know that the CPU has the instructions;
//! everything here is inlined into them. Cost: one instruction a method, where the comment doesn't say otherwise.

use super::simd::{Simd, Task};
use std::arch::x86_64::*;

/// Does a task with AVX2 and FMA.
///
/// # Safety
/// The CPU must have both.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<T: Task>(task: T) -> T::Out {
    task.run(V256(()))
}

/// Does a task with AVX-512.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ, VL and AVX2 with FMA.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn run_avx512<T: Task>(task: T) -> T::Out {
    task.run(V512(()))
}

/// AVX2 and FMA are there.
#[derive(Clone, Copy)]
pub(super) struct V256(());

/// AVX-512 is there.
#[derive(Clone, Copy)]
pub(super) struct V512(());

/// All ones in the first `n` lanes.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn mask256(n: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// Ones for the first `n` lanes.
#[inline(always)]
fn mask512(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// [`Simd::turn8`] in 24 shuffles.
///
/// # Safety
/// AVX is there; the pointers reach what `turn8` says.
#[inline(always)]
unsafe fn turn8(p: *const f32, stride: usize, rows: usize, out: *mut f32, out_stride: usize) {
    // SAFETY: the caller's promise; rows past `rows` are not read.
    unsafe {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            if i < rows {
                *r = _mm256_loadu_ps(p.add(i * stride));
            }
        }
        // pairs, then fours, then the two halves
        let mut t = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for half in 0..2 {
            let (a, b) = (half * 4, half * 4 + 2);
            r[a] = _mm256_shuffle_ps::<0b01_00_01_00>(t[a], t[b]);
            r[a + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(t[a], t[b]);
            r[a + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(t[a + 1], t[b + 1]);
            r[a + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(t[a + 1], t[b + 1]);
        }
        for i in 0..4 {
            _mm256_storeu_ps(out.add(i * out_stride), _mm256_permute2f128_ps::<0x20>(r[i], r[i + 4]));
            _mm256_storeu_ps(out.add((i + 4) * out_stride), _mm256_permute2f128_ps::<0x31>(r[i], r[i + 4]));
        }
    }
}

// SAFETY of every block below: a `V256` exists only inside `run_avx2`, so AVX2 and FMA are there; pointers are the caller's promise.
impl Simd for V256 {
    type V = __m256;
    const LANES: usize = 8;
    const ROWS: usize = 6;
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> __m256 {
        unsafe {
            let mask = mask256(n);
            _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask))
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: __m256) {
        unsafe { _mm256_maskstore_ps(p, mask256(n), v) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    /// Four instructions: an estimate and one step of Newton's.
    #[inline(always)]
    fn recip(self, a: __m256) -> __m256 {
        unsafe {
            let r = _mm256_rcp_ps(a);
            _mm256_mul_ps(r, _mm256_fnmadd_ps(a, r, _mm256_set1_ps(2.0)))
        }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, a: __m256) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)))) }
    }
    /// Four instructions: the packing works on halves.
    #[inline(always)]
    unsafe fn store_u8(self, p: *mut u8, v: __m256) {
        unsafe {
            let words = _mm256_packus_epi32(_mm256_cvtps_epi32(v), _mm256_setzero_si256());
            let words = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(words));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words))
        }
    }
    #[inline(always)]
    unsafe fn store_u8x4(self, p: *mut u8, [a, b, c, d]: [__m256; 4]) {
        unsafe {
            let ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
            let cd = _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
            // each half now holds four bytes of a, b, c, d: bring a's together, then b's …
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_storeu_si256(p.cast(), _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order))
        }
    }
    #[inline(always)]
    fn keep(self, v: __m256, n: usize, rest: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(rest, v, _mm256_castsi256_ps(mask256(n))) }
    }
    #[inline(always)]
    unsafe fn turn8(self, p: *const f32, stride: usize, rows: usize, out: *mut f32, out_stride: usize) {
        unsafe { turn8(p, stride, rows, out, out_stride) }
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn top(self, v: __m256) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn bottom(self, v: __m256) -> f32 {
        unsafe {
            let v = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_min_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)))
        }
    }
}

// SAFETY of every block below: a `V512` exists only inside `run_avx512`, so AVX-512 is there; pointers are the caller's promise.
impl Simd for V512 {
    type V = __m512;
    const LANES: usize = 16;
    const ROWS: usize = 12;
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> __m512 {
        unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask512(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: __m512) {
        unsafe { _mm512_mask_storeu_ps(p, mask512(n), v) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    /// Four instructions: an estimate and one step of Newton's.
    #[inline(always)]
    fn recip(self, a: __m512) -> __m512 {
        unsafe {
            let r = _mm512_rcp14_ps(a);
            _mm512_mul_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0)))
        }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }
    #[inline(always)]
    fn pow2(self, a: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)))) }
    }
    /// Three instructions.
    #[inline(always)]
    unsafe fn store_u8(self, p: *mut u8, v: __m512) {
        unsafe {
            let whole = _mm512_max_epi32(_mm512_cvtps_epi32(v), _mm512_setzero_si512());
            _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(whole))
        }
    }
    #[inline(always)]
    fn recip_rough(self, a: __m512) -> __m512 {
        unsafe { _mm512_rcp14_ps(a) }
    }
    #[inline(always)]
    unsafe fn store_u8x4(self, p: *mut u8, [a, b, c, d]: [__m512; 4]) {
        unsafe {
            let ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
            let cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
            // each quarter now holds four bytes of a, b, c, d: bring a's together, then b's …
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_storeu_si512(p.cast(), _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd)))
        }
    }
    #[inline(always)]
    fn keep(self, v: __m512, n: usize, rest: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(mask512(n), rest, v) }
    }
    #[inline(always)]
    unsafe fn turn8(self, p: *const f32, stride: usize, rows: usize, out: *mut f32, out_stride: usize) {
        unsafe { turn8(p, stride, rows, out, out_stride) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    fn top(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    fn bottom(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_min_ps(v) }
    }
}
