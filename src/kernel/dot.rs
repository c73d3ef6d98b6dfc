//! Dot products of the index: f32 pairs, int8 pairs, and a scan of one query over many int8 rows.
//!
//! In: slices of equal length (the shorter length counts otherwise). Out: sums; the int8 results are exact.
//! The scan takes the query as two int8 planes (`hi`, `lo`): the lower one carries what the upper rounds away, so that only the
//! rows' own rounding is left as an error. It also takes the sum of every row: the 8-bit products of x86 want one unsigned
//! operand, so the query is shifted by 128 and the shift taken back by `128 · sum`.
//! Cost: about a row of 512 dimensions in 5 ns from the second-level cache (AVX-512 VNNI).
//! Not here: scales, error bounds, top-k (`index::dense`).

use super::Kernel;

/// Σ aᵢ·bᵢ with the best kernel of this machine.
#[inline]
pub fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    // SAFETY: `best` returns available kernels only
    unsafe { f32_by(Kernel::best(), &a[..n], &b[..n]) }
}

/// Σ aᵢ·bᵢ with a given kernel; one that this machine lacks is replaced by the scalar twin.
pub fn dot_f32_with(kernel: Kernel, a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    // SAFETY: `usable` checked the instruction set
    unsafe { f32_by(usable(kernel), &a[..n], &b[..n]) }
}

/// Σ aᵢ·bᵢ of int8 values, exact, with the best kernel of this machine.
#[inline]
pub fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    let n = a.len().min(b.len());
    // SAFETY: `best` returns available kernels only
    unsafe { i8_by(Kernel::best(), &a[..n], &b[..n]) }
}

/// Σ aᵢ·bᵢ of int8 values with a given kernel; one that this machine lacks is replaced by the scalar twin.
pub fn dot_i8_with(kernel: Kernel, a: &[i8], b: &[i8]) -> i32 {
    let n = a.len().min(b.len());
    // SAFETY: `usable` checked the instruction set
    unsafe { i8_by(usable(kernel), &a[..n], &b[..n]) }
}

/// A query in two int8 planes of one length: `query ≈ scale · (254·hi + lo)`.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// Upper plane.
    pub hi: &'a [i8],
    /// Lower plane.
    pub lo: &'a [i8],
}

/// Exact dot products of both planes with every row: `out[i] = (hi·rowᵢ, lo·rowᵢ)`.
///
/// `rows` holds `sums.len()` rows of `query.hi.len()` values one after the other, `sums[i]` = Σ of row i. Scans as many rows as
/// `rows`, `sums` and `out` all have.
pub fn scan_i8(query: Planes<'_>, rows: &[i8], sums: &[i32], out: &mut [(i32, i32)]) {
    // SAFETY: `best` returns available kernels only
    unsafe { scan_by(Kernel::best(), query, rows, sums, out) }
}

/// [`scan_i8`] with a given kernel; one that this machine lacks is replaced by the scalar twin.
pub fn scan_i8_with(kernel: Kernel, query: Planes<'_>, rows: &[i8], sums: &[i32], out: &mut [(i32, i32)]) {
    // SAFETY: `usable` checked the instruction set
    unsafe { scan_by(usable(kernel), query, rows, sums, out) }
}

/// [`scan_i8`] over chosen rows: `out[i]` belongs to row `ids[i]` of `rows`. A row that is not there counts as zeros.
pub fn gather_i8(query: Planes<'_>, rows: &[i8], sums: &[i32], ids: &[u32], out: &mut [(i32, i32)]) {
    // SAFETY: `best` returns available kernels only
    unsafe { gather_by(Kernel::best(), query, rows, sums, ids, out) }
}

/// [`gather_i8`] with a given kernel; one that this machine lacks is replaced by the scalar twin.
pub fn gather_i8_with(kernel: Kernel, query: Planes<'_>, rows: &[i8], sums: &[i32], ids: &[u32], out: &mut [(i32, i32)]) {
    // SAFETY: `usable` checked the instruction set
    unsafe { gather_by(usable(kernel), query, rows, sums, ids, out) }
}

fn usable(kernel: Kernel) -> Kernel {
    if kernel.is_available() { kernel } else { Kernel::Scalar }
}

/// # Safety
/// `kernel` is available on this CPU.
#[inline]
unsafe fn f32_by(kernel: Kernel, a: &[f32], b: &[f32]) -> f32 {
    match kernel {
        Kernel::Scalar => f32_scalar(a, b),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 | Kernel::AvxVnni => unsafe { x86::f32_avx2(a, b) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 | Kernel::Amx => unsafe { x86::f32_avx512(a, b) },
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Avx2 | Kernel::AvxVnni | Kernel::Avx512 | Kernel::Amx => f32_scalar(a, b),
    }
}

/// # Safety
/// `kernel` is available on this CPU.
#[inline]
unsafe fn i8_by(kernel: Kernel, a: &[i8], b: &[i8]) -> i32 {
    match kernel {
        Kernel::Scalar => i8_scalar(a, b),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 | Kernel::AvxVnni => unsafe { x86::i8_avx2(a, b) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 | Kernel::Amx => unsafe { x86::i8_avx512(a, b) },
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Avx2 | Kernel::AvxVnni | Kernel::Avx512 | Kernel::Amx => i8_scalar(a, b),
    }
}

/// # Safety
/// `kernel` is available on this CPU.
unsafe fn scan_by(kernel: Kernel, query: Planes<'_>, rows: &[i8], sums: &[i32], out: &mut [(i32, i32)]) {
    let width = query.hi.len().min(query.lo.len());
    if width == 0 {
        out.fill((0, 0));
        return;
    }
    let query = Planes { hi: &query.hi[..width], lo: &query.lo[..width] };
    let n = out.len().min(sums.len()).min(rows.len() / width);
    let (rows, sums, out) = (&rows[..n * width], &sums[..n], &mut out[..n]);
    match kernel {
        Kernel::Scalar => scan_scalar(query, rows, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => unsafe { x86::scan_avx2(query, rows, out) },
        #[cfg(target_arch = "x86_64")]
        Kernel::AvxVnni => unsafe { x86::scan_avxvnni(query, rows, sums, out) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 | Kernel::Amx => unsafe { x86::scan_avx512(query, rows, sums, out) },
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Avx2 | Kernel::AvxVnni | Kernel::Avx512 | Kernel::Amx => scan_scalar(query, rows, out),
    }
    // only x86 needs the sums
    let _: &[i32] = sums;
}

/// # Safety
/// `kernel` is available on this CPU.
unsafe fn gather_by(kernel: Kernel, query: Planes<'_>, rows: &[i8], sums: &[i32], ids: &[u32], out: &mut [(i32, i32)]) {
    let width = query.hi.len().min(query.lo.len());
    #[cfg(target_arch = "x86_64")]
    if kernel >= Kernel::Avx512 && width > 0 {
        let query = Planes { hi: &query.hi[..width], lo: &query.lo[..width] };
        for (ids, out) in ids.chunks(4).zip(out.chunks_mut(4)) {
            let within = |id: &u32| ((*id as usize) < sums.len()).then(|| rows.get(*id as usize * width..)?.get(..width)).flatten();
            // four rows that are there, or one at a time
            if let [a, b, c, d] = ids
                && let (Some(a), Some(b), Some(c), Some(d)) = (within(a), within(b), within(c), within(d))
                && out.len() == 4
            {
                // SAFETY: four rows of the query's width
                let (hi, lo) = unsafe { x86::four_avx512(query, [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()], 0) };
                for (k, out) in out.iter_mut().enumerate() {
                    let shift = x86::SHIFT * sums[ids[k] as usize];
                    *out = (hi[k] - shift, lo[k] - shift);
                }
                continue;
            }
            for (id, out) in ids.iter().zip(out) {
                let row = within(id).unwrap_or_default();
                // SAFETY: available, see above; the lengths are equal or the row is empty
                *out = unsafe { (x86::i8_avx512(&query.hi[..row.len()], row), x86::i8_avx512(&query.lo[..row.len()], row)) };
            }
        }
        return;
    }
    for (id, out) in ids.iter().zip(out) {
        let at = *id as usize * width;
        let one = rows.get(at..at + width).zip(sums.get(*id as usize..=*id as usize));
        *out = (0, 0);
        if let Some((row, sum)) = one {
            // SAFETY: as the caller promised
            unsafe { scan_by(kernel, query, row, sum, std::slice::from_mut(out)) };
        }
    }
}

/// Sixteen running sums, like the lanes of a wide register.
fn f32_scalar(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (a_blocks, a_rest) = a.as_chunks::<16>();
    let (b_blocks, b_rest) = b.as_chunks::<16>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for i in 0..16 {
            lanes[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    lanes.iter().sum::<f32>() + rest
}

fn i8_scalar(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum()
}

fn scan_scalar(query: Planes<'_>, rows: &[i8], out: &mut [(i32, i32)]) {
    for (row, out) in rows.chunks_exact(query.hi.len()).zip(out) {
        *out = (i8_scalar(query.hi, row), i8_scalar(query.lo, row));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Planes, i8_scalar};
    use std::arch::x86_64::*;

    /// Value added to a signed byte to make it unsigned.
    pub(super) const SHIFT: i32 = 128;

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn f32_avx2(a: &[f32], b: &[f32]) -> f32 {
        let n = a.len();
        let (pa, pb) = (a.as_ptr(), b.as_ptr());
        let mut acc = [_mm256_setzero_ps(); 4];
        let mut i = 0;
        while i + 32 <= n {
            for (lane, acc) in acc.iter_mut().enumerate() {
                // SAFETY: i + 32 ≤ n, so 8 values from i + 8·lane are inside both slices
                let (x, y) = unsafe { (_mm256_loadu_ps(pa.add(i + 8 * lane)), _mm256_loadu_ps(pb.add(i + 8 * lane))) };
                *acc = _mm256_fmadd_ps(x, y, *acc);
            }
            i += 32;
        }
        let sum = _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
        let half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        let half = _mm_add_ss(half, _mm_movehdup_ps(half));
        _mm_cvtss_f32(half) + a[i..].iter().zip(&b[i..]).map(|(x, y)| x * y).sum::<f32>()
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn f32_avx512(a: &[f32], b: &[f32]) -> f32 {
        let n = a.len();
        let (pa, pb) = (a.as_ptr(), b.as_ptr());
        let mut acc = [_mm512_setzero_ps(); 4];
        let mut i = 0;
        while i + 64 <= n {
            for (lane, acc) in acc.iter_mut().enumerate() {
                // SAFETY: i + 64 ≤ n, so 16 values from i + 16·lane are inside both slices
                let (x, y) = unsafe { (_mm512_loadu_ps(pa.add(i + 16 * lane)), _mm512_loadu_ps(pb.add(i + 16 * lane))) };
                *acc = _mm512_fmadd_ps(x, y, *acc);
            }
            i += 64;
        }
        while i < n {
            let mask: __mmask16 = if n - i >= 16 { !0 } else { (1u16 << (n - i)) - 1 };
            // SAFETY: the mask keeps lanes past the end unread
            let (x, y) = unsafe { (_mm512_maskz_loadu_ps(mask, pa.add(i)), _mm512_maskz_loadu_ps(mask, pb.add(i))) };
            acc[0] = _mm512_fmadd_ps(x, y, acc[0]);
            i += 16;
        }
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])))
    }

    #[target_feature(enable = "avx2")]
    fn sum_epi32(v: __m256i) -> i32 {
        let half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
        let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b00_00_00_01>(half));
        _mm_cvtsi128_si32(half)
    }

    /// Products by way of 16 bits: exact for every int8, −128 included.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn i8_avx2(a: &[i8], b: &[i8]) -> i32 {
        let n = a.len();
        let mut acc = _mm256_setzero_si256();
        let mut i = 0;
        while i + 16 <= n {
            // SAFETY: i + 16 ≤ n
            let (x, y) = unsafe { (_mm_loadu_si128(a.as_ptr().add(i).cast()), _mm_loadu_si128(b.as_ptr().add(i).cast())) };
            acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_cvtepi8_epi16(x), _mm256_cvtepi8_epi16(y)));
            i += 16;
        }
        sum_epi32(acc) + i8_scalar(&a[i..], &b[i..])
    }

    /// Shifted product minus the shift, both by `vpdpbusd`, so no sums are needed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn i8_avx512(a: &[i8], b: &[i8]) -> i32 {
        let n = a.len();
        let flip = _mm512_set1_epi8(i8::MIN);
        let shift = flip;
        let (mut acc, mut off) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        let mut i = 0;
        while i < n {
            let mask: __mmask64 = if n - i >= 64 { !0 } else { (1u64 << (n - i)) - 1 };
            // SAFETY: the mask keeps lanes past the end unread
            let (x, y) = unsafe { (_mm512_maskz_loadu_epi8(mask, a.as_ptr().add(i)), _mm512_maskz_loadu_epi8(mask, b.as_ptr().add(i))) };
            acc = _mm512_dpbusd_epi32(acc, _mm512_xor_si512(x, flip), y);
            off = _mm512_dpbusd_epi32(off, shift, y);
            i += 64;
        }
        _mm512_reduce_add_epi32(_mm512_sub_epi32(acc, off))
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn scan_avx2(query: Planes<'_>, rows: &[i8], out: &mut [(i32, i32)]) {
        let width = query.hi.len();
        for (row, out) in rows.chunks_exact(width).zip(out) {
            let (mut hi, mut lo) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            let mut i = 0;
            while i + 16 <= width {
                // SAFETY: i + 16 ≤ width, the length of the row and of both planes
                let (r, h, l) = unsafe {
                    (
                        _mm_loadu_si128(row.as_ptr().add(i).cast()),
                        _mm_loadu_si128(query.hi.as_ptr().add(i).cast()),
                        _mm_loadu_si128(query.lo.as_ptr().add(i).cast()),
                    )
                };
                let r = _mm256_cvtepi8_epi16(r);
                hi = _mm256_add_epi32(hi, _mm256_madd_epi16(r, _mm256_cvtepi8_epi16(h)));
                lo = _mm256_add_epi32(lo, _mm256_madd_epi16(r, _mm256_cvtepi8_epi16(l)));
                i += 16;
            }
            let (rest, h, l) = (&row[i..], &query.hi[i..], &query.lo[i..]);
            *out = (sum_epi32(hi) + i8_scalar(h, rest), sum_epi32(lo) + i8_scalar(l, rest));
        }
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn scan_avxvnni(query: Planes<'_>, rows: &[i8], sums: &[i32], out: &mut [(i32, i32)]) {
        let width = query.hi.len();
        let flip = _mm256_set1_epi8(i8::MIN);
        for ((row, sum), out) in rows.chunks_exact(width).zip(sums).zip(out) {
            let (mut hi, mut lo) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            let mut i = 0;
            while i + 32 <= width {
                // SAFETY: i + 32 ≤ width, the length of the row and of both planes
                let (r, h, l) = unsafe {
                    (
                        _mm256_loadu_si256(row.as_ptr().add(i).cast()),
                        _mm256_loadu_si256(query.hi.as_ptr().add(i).cast()),
                        _mm256_loadu_si256(query.lo.as_ptr().add(i).cast()),
                    )
                };
                hi = _mm256_dpbusd_avx_epi32(hi, _mm256_xor_si256(h, flip), r);
                lo = _mm256_dpbusd_avx_epi32(lo, _mm256_xor_si256(l, flip), r);
                i += 32;
            }
            let (rest, h, l) = (&row[i..], &query.hi[i..], &query.lo[i..]);
            let shift = SHIFT * (sum - rest.iter().map(|v| i32::from(*v)).sum::<i32>());
            *out = (sum_epi32(hi) - shift + i8_scalar(h, rest), sum_epi32(lo) - shift + i8_scalar(l, rest));
        }
    }

    /// Sums of four registers at once.
    #[target_feature(enable = "avx512f,avx2")]
    fn sums_of_four(v: [__m512i; 4]) -> [i32; 4] {
        let fold = |v: __m512i| _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
        let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(fold(v[0]), fold(v[1])), _mm256_hadd_epi32(fold(v[2]), fold(v[3])));
        let four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        [_mm_extract_epi32::<0>(four), _mm_extract_epi32::<1>(four), _mm_extract_epi32::<2>(four), _mm_extract_epi32::<3>(four)]
    }

    /// Both planes against four rows, so that a load of the query serves four products. Fetches what lies `ahead` of each row, unless 0.
    ///
    /// # Safety
    /// AVX-512 VNNI is there, both planes have one length, and each pointer has as many bytes behind it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
    pub(super) unsafe fn four_avx512(query: Planes<'_>, start: [*const i8; 4], ahead: usize) -> ([i32; 4], [i32; 4]) {
        let width = query.hi.len();
        let flip = _mm512_set1_epi8(i8::MIN);
        let whole = width / 64 * 64;
        let rest: __mmask64 = (1u64 << (width - whole)) - 1;
        let (mut hi, mut lo) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        let mut i = 0;
        while i < whole {
            // SAFETY: i + 64 ≤ width, the length of the planes and of every row
            let (h, l) =
                unsafe { (_mm512_loadu_si512(query.hi.as_ptr().add(i).cast()), _mm512_loadu_si512(query.lo.as_ptr().add(i).cast())) };
            let (h, l) = (_mm512_xor_si512(h, flip), _mm512_xor_si512(l, flip));
            for k in 0..4 {
                if ahead > 0 {
                    // a hint, never read
                    _mm_prefetch::<_MM_HINT_T0>(start[k].wrapping_add(ahead + i).cast());
                }
                // SAFETY: as above
                let r = unsafe { _mm512_loadu_si512(start[k].add(i).cast()) };
                hi[k] = _mm512_dpbusd_epi32(hi[k], h, r);
                lo[k] = _mm512_dpbusd_epi32(lo[k], l, r);
            }
            i += 64;
        }
        if rest != 0 {
            // SAFETY: the mask keeps lanes past the end of planes and rows unread
            let (h, l) = unsafe {
                (_mm512_maskz_loadu_epi8(rest, query.hi.as_ptr().add(i)), _mm512_maskz_loadu_epi8(rest, query.lo.as_ptr().add(i)))
            };
            let (h, l) = (_mm512_xor_si512(h, flip), _mm512_xor_si512(l, flip));
            for k in 0..4 {
                // SAFETY: as above
                let r = unsafe { _mm512_maskz_loadu_epi8(rest, start[k].add(i)) };
                hi[k] = _mm512_dpbusd_epi32(hi[k], h, r);
                lo[k] = _mm512_dpbusd_epi32(lo[k], l, r);
            }
        }
        (sums_of_four(hi), sums_of_four(lo))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
    pub(super) unsafe fn scan_avx512(query: Planes<'_>, rows: &[i8], sums: &[i32], out: &mut [(i32, i32)]) {
        let (width, n) = (query.hi.len(), out.len());
        let mut first = 0;
        while first < n {
            let take = (n - first).min(4);
            // a short last group reads its last row again and drops the copies
            let row = |k: usize| rows.as_ptr().wrapping_add((first + k.min(take - 1)) * width);
            // SAFETY: four beginnings of rows inside `rows`
            let (hi, lo) = unsafe { four_avx512(query, [row(0), row(1), row(2), row(3)], 4 * width) };
            for k in 0..take {
                let shift = SHIFT * sums[first + k];
                out[first + k] = (hi[k] - shift, lo[k] - shift);
            }
            first += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn f32_kernels_agree(pairs in proptest::collection::vec((-1.0f32..1.0, -1.0f32..1.0), 0..600)) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let want: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            for kernel in Kernel::available() {
                let got = f64::from(dot_f32_with(kernel, &a, &b));
                prop_assert!((got - want).abs() < 1e-4, "{kernel:?}: {got} is not {want}");
            }
        }

        #[test]
        fn int8_kernels_agree(pairs in proptest::collection::vec(any::<(i8, i8)>(), 0..600)) {
            let (a, b): (Vec<i8>, Vec<i8>) = pairs.into_iter().unzip();
            for kernel in Kernel::available() {
                prop_assert_eq!(dot_i8_with(kernel, &a, &b), i8_scalar(&a, &b), "{:?}", kernel);
            }
        }

        #[test]
        fn scans_agree(width in 0usize..140, n in 0usize..11, seed in any::<u64>()) {
            let mut state = seed | 1;
            let mut byte = || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; (state >> 32) as i8 };
            let hi: Vec<i8> = (0..width).map(|_| byte()).collect();
            let lo: Vec<i8> = (0..width).map(|_| byte()).collect();
            let rows: Vec<i8> = (0..width * n).map(|_| byte()).collect();
            let sums: Vec<i32> = (0..n).map(|i| rows[i * width..(i + 1) * width].iter().map(|v| i32::from(*v)).sum()).collect();
            let want: Vec<(i32, i32)> =
                (0..n).map(|i| &rows[i * width..(i + 1) * width]).map(|r| (i8_scalar(&hi, r), i8_scalar(&lo, r))).collect();
            for kernel in Kernel::available() {
                let mut out = vec![(7, 7); n];
                scan_i8_with(kernel, Planes { hi: &hi, lo: &lo }, &rows, &sums, &mut out);
                prop_assert_eq!(&out, &want, "{:?}", kernel);
                let ids: Vec<u32> = (0..n as u32 + 3).rev().chain([u32::MAX, 0, 0]).collect();
                let mut out = vec![(7, 7); ids.len()];
                gather_i8_with(kernel, Planes { hi: &hi, lo: &lo }, &rows, &sums, &ids, &mut out);
                let want: Vec<(i32, i32)> = ids.iter().map(|id| want.get(*id as usize).copied().unwrap_or_default()).collect();
                prop_assert_eq!(&out, &want, "{:?}", kernel);
            }
        }
    }

    #[test]
    fn unequal_lengths_count_the_shorter() {
        assert_eq!(dot_i8(&[1, 2, 3], &[4, 5]), 14);
        assert_eq!(dot_f32(&[1.0, 2.0, 3.0], &[4.0, 5.0]), 14.0);
        let mut out = [(9, 9); 3];
        scan_i8(Planes { hi: &[1, 1], lo: &[1, 1] }, &[1, 2, 3, 4], &[3, 7], &mut out);
        assert_eq!(out, [(3, 3), (7, 7), (9, 9)]);
    }
}
