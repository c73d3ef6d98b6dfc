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

// SAFETY of every block below: a `V256` exists only inside `run_avx2`, so AVX2 and FMA are there; pointers are the caller's promise.
impl Simd for V256 {
    type V = __m256;
    const LANES: usize = 8;
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
