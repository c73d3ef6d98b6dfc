//! Products of a query with one-bit rows: what a scan of sketches is made of.
//!
//! A row is so many words of bits, a query four planes of as many: `product = p₀·r + 2·p₁·r + 4·p₂·r − 8·p₃·r`, where `p·r` counts the bits that
//! both have. That is Σ uᵢ over the row's set bits, for query values uᵢ of −8..=7 in two's complement. Results are exact.
//! Cost: one pass over the rows; AVX-512 with VPOPCNTDQ where it is there, else plain popcnt.
//! Not here: what the bits mean (`index::dense`).

use super::Kernel;

/// Planes of a query.
pub const PLANES: usize = 4;

/// Products of a query with every row. `query` = [`PLANES`] planes of `words` words one after the other, `rows` = rows of `words` words.
/// Scans as many rows as `rows` and `out` both have; without words, or with a query of another length, every product is 0.
pub fn scan_bits(query: &[u64], words: usize, rows: &[u64], out: &mut [i32]) {
    scan_bits_with(Kernel::best(), query, words, rows, out);
}

/// [`scan_bits`] with a given kernel; one that this machine lacks is replaced by the scalar twin.
pub fn scan_bits_with(kernel: Kernel, query: &[u64], words: usize, rows: &[u64], out: &mut [i32]) {
    if words == 0 || query.len() != PLANES * words {
        out.fill(0);
        return;
    }
    let n = out.len().min(rows.len() / words);
    let (rows, out) = (&rows[..n * words], &mut out[..n]);
    #[cfg(target_arch = "x86_64")]
    match kernel.usable() {
        Kernel::Scalar => {}
        Kernel::Avx512 | Kernel::Amx if words.is_multiple_of(8) && is_x86_feature_detected!("avx512vpopcntdq") => {
            // SAFETY: both instruction sets are there; the lengths are as checked above
            unsafe { x86::scan_avx512(query, words, rows, out) };
            return;
        }
        Kernel::Avx2 | Kernel::AvxVnni | Kernel::Avx512 | Kernel::Amx => {
            if is_x86_feature_detected!("popcnt") {
                // SAFETY: the instruction is there
                unsafe { x86::scan_popcnt(query, words, rows, out) };
                return;
            }
        }
    }
    // only x86 has a choice
    let _: Kernel = kernel;
    scan_scalar(query, words, rows, out);
}

#[inline(always)]
fn scan_scalar(query: &[u64], words: usize, rows: &[u64], out: &mut [i32]) {
    let (low, high) = query.split_at(2 * words);
    let ((p0, p1), (p2, p3)) = (low.split_at(words), high.split_at(words));
    for (row, out) in rows.chunks_exact(words).zip(out) {
        let mut sum = 0;
        for ((((r, a), b), c), d) in row.iter().zip(p0).zip(p1).zip(p2).zip(p3) {
            let count = |plane: &u64| (plane & r).count_ones() as i32;
            sum += count(a) + 2 * count(b) + 4 * count(c) - 8 * count(d);
        }
        *out = sum;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{PLANES, scan_scalar};
    use std::arch::x86_64::*;

    #[target_feature(enable = "popcnt")]
    pub(super) unsafe fn scan_popcnt(query: &[u64], words: usize, rows: &[u64], out: &mut [i32]) {
        scan_scalar(query, words, rows, out);
    }

    /// Eight sums of 64 bits each become one sum a row.
    #[target_feature(enable = "avx512f,avx2")]
    fn sums(acc: [__m512i; 8]) -> __m256i {
        let narrow = acc.map(|acc| _mm512_cvtepi64_epi32(acc));
        let pair = |i: usize| _mm256_hadd_epi32(narrow[i], narrow[i + 1]);
        let (a, b) = (_mm256_hadd_epi32(pair(0), pair(2)), _mm256_hadd_epi32(pair(4), pair(6)));
        _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
    }

    #[target_feature(enable = "avx512f,avx512vpopcntdq")]
    fn product(acc: __m512i, query: [__m512i; PLANES], row: __m512i) -> __m512i {
        let count = |plane: __m512i| _mm512_popcnt_epi64(_mm512_and_si512(plane, row));
        let double = |sum: __m512i| _mm512_add_epi64(sum, sum);
        let sum = _mm512_sub_epi64(count(query[2]), double(count(query[3])));
        let sum = _mm512_add_epi64(double(sum), count(query[1]));
        _mm512_add_epi64(acc, _mm512_add_epi64(double(sum), count(query[0])))
    }

    #[target_feature(enable = "avx512f,avx512vpopcntdq,avx2")]
    pub(super) unsafe fn scan_avx512(query: &[u64], words: usize, rows: &[u64], out: &mut [i32]) {
        // SAFETY (all loads below): `at` is a multiple of 8 below `words`, the length of a plane and of a row
        let planes = |at: usize| [0, 1, 2, 3].map(|plane| unsafe { _mm512_loadu_si512(query.as_ptr().add(plane * words + at).cast()) });
        let first = planes(0);
        for (rows, out) in rows.chunks(8 * words).zip(out.chunks_mut(8)) {
            let mut acc = [_mm512_setzero_si512(); 8];
            for (acc, row) in acc.iter_mut().zip(rows.chunks_exact(words)) {
                *acc = product(*acc, first, unsafe { _mm512_loadu_si512(row.as_ptr().cast()) });
                let mut at = 8;
                while at < words {
                    *acc = product(*acc, planes(at), unsafe { _mm512_loadu_si512(row.as_ptr().add(at).cast()) });
                    at += 8;
                }
            }
            let sums = sums(acc);
            if let Some(out) = out.first_chunk_mut::<8>() {
                // SAFETY: eight places
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sums) };
            } else {
                let mut all = [0i32; 8];
                // SAFETY: eight places
                unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), sums) };
                out.copy_from_slice(&all[..out.len()]);
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
        fn kernels_agree(words in 0usize..20, wide in any::<bool>(), n in 0usize..19, seed in any::<u64>()) {
            let words = if wide { words / 8 * 8 } else { words };
            let mut state = seed | 1;
            let mut word = || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
            let query: Vec<u64> = (0..PLANES * words).map(|_| word()).collect();
            let rows: Vec<u64> = (0..n * words).map(|_| word()).collect();
            let value = |bit: usize| (0..PLANES).map(|p| (query[p * words + bit / 64] >> (bit % 64) & 1) as i32 * [1, 2, 4, -8][p]).sum::<i32>();
            let want: Vec<i32> = (0..n)
                .map(|row| (0..words * 64).filter(|bit| rows[row * words + bit / 64] >> (bit % 64) & 1 == 1).map(value).sum())
                .collect();
            for kernel in Kernel::available() {
                let mut out = vec![77; n];
                scan_bits_with(kernel, &query, words, &rows, &mut out);
                prop_assert_eq!(&out, &want, "{:?}", kernel);
            }
        }
    }

    #[test]
    fn other_lengths_are_nothing() {
        let mut out = [5; 2];
        scan_bits(&[1, 2, 3], 1, &[1, 2], &mut out);
        assert_eq!(out, [0, 0]);
        let mut out = [5; 3];
        scan_bits(&[1, 0, 0, 0], 1, &[1, 2], &mut out);
        assert_eq!(out, [1, 0, 5], "as many as there are");
    }
}
