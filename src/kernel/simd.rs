//! One name for a vector of floats, whatever its width, so that an algorithm is written once and compiled for each [`Kernel`].
//!
//! In: a [`Task`], generic over [`Simd`]. Out: its result, run with the instructions of the kernel asked for.
//! Invariant: [`run`] enters code for an instruction set only after [`Kernel::usable`] said this CPU has it.
//! Cost: one branch a task, so give it whole rows. No closures inside: they would be compiled without the instructions. Not here: 8-bit products (`gemm`).

use super::Kernel;

/// A vector of floats and what can be done with it. The `unsafe` methods follow the rules of raw pointers, nothing else.
pub(super) trait Simd: Copy {
    /// The vector.
    type V: Copy;
    /// Floats in it; 8 or 16.
    const LANES: usize;
    /// Rows of two vectors of sums that fit the registers beside what is multiplied.
    const ROWS: usize;
    /// Reads `LANES` floats.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Writes `LANES` floats.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Reads `n <= LANES` floats; the other lanes are `fill`.
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> Self::V;
    /// Writes the first `n <= LANES` floats.
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V);
    /// The same float in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the CPU can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each lane.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of each lane.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `1 / a` to about 22 bits; `a` finite, normal and not 0.
    fn recip(self, a: Self::V) -> Self::V;
    /// `1 / a` to 14 bits or more; `a` as above.
    #[inline(always)]
    fn recip_rough(self, a: Self::V) -> Self::V {
        self.recip(a)
    }
    /// To the nearest whole number, ties to even; `|a| < 2^22`.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^a` for whole `a` in −126..=127.
    fn pow2(self, a: Self::V) -> Self::V;
    /// Rounds to the nearest, clamps to 0..=255 and writes `LANES` bytes.
    unsafe fn store_u8(self, p: *mut u8, v: Self::V);
    /// As `store_u8`, for four vectors, one after the other.
    unsafe fn store_u8x4(self, p: *mut u8, v: [Self::V; 4]);
    /// The first `n` lanes of `v`; the others of `rest`.
    fn keep(self, v: Self::V, n: usize, rest: Self::V) -> Self::V;
    /// Reads `rows <= 8` rows of 8 floats, `stride` apart, the missing rows being 0, and writes their columns as 8 rows of 8, `out_stride` apart.
    unsafe fn turn8(self, p: *const f32, stride: usize, rows: usize, out: *mut f32, out_stride: usize);
    /// Sum of the lanes.
    fn sum(self, v: Self::V) -> f32;
    /// Largest lane.
    fn top(self, v: Self::V) -> f32;
    /// Smallest lane.
    fn bottom(self, v: Self::V) -> f32;
}

/// Work that is the same for every width of vector. `run` must be `#[inline(always)]`, or it is compiled for the wrong instructions.
pub(super) trait Task {
    /// What it gives.
    type Out;
    /// Does it.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// Does `task` with the instructions of `kernel`, or of the portable one when this CPU lacks them.
pub(super) fn run<T: Task>(kernel: Kernel, task: T) -> T::Out {
    match kernel.usable() {
        Kernel::Scalar => task.run(Portable),
        // SAFETY: `usable` returns a kernel only if this CPU has its instructions.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 | Kernel::AvxVnni => unsafe { super::simd_x86::run_avx2(task) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 | Kernel::Amx => unsafe { super::simd_x86::run_avx512(task) },
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Avx2 | Kernel::AvxVnni | Kernel::Avx512 | Kernel::Amx => task.run(Portable),
    }
}

/// Reads the `n` floats of a row that start at column `i`, all lanes at once where there are enough; the other lanes are `fill`.
///
/// # Safety
/// `n` floats can be read at `p + i`; `1 <= n <= LANES`.
#[inline(always)]
pub(super) unsafe fn read<S: Simd>(s: S, p: *const f32, i: usize, n: usize, fill: f32) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { if n == S::LANES { s.load(p.add(i)) } else { s.load_part(p.add(i), n, fill) } }
}

/// Writes `n` floats at column `i`.
///
/// # Safety
/// `n` floats can be written at `p + i`; `1 <= n <= LANES`.
#[inline(always)]
pub(super) unsafe fn write<S: Simd>(s: S, p: *mut f32, i: usize, n: usize, v: S::V) {
    // SAFETY: the caller's promise.
    unsafe { if n == S::LANES { s.store(p.add(i), v) } else { s.store_part(p.add(i), n, v) } }
}

/// `for_lanes!(S, width, (i, n) => body)`: does `body` for columns 0, LANES, 2·LANES … below `width`, `n` being how many lanes from `i` belong to the row.
/// With `(i, n, k)`, `k` goes 0, 1, 2, 3, 0 …: for sums in four parts, which don't wait for each other.
/// A macro because a closure would be compiled without the vector instructions of the function around it.
macro_rules! for_lanes {
    ($s:ty, $width:expr, ($i:ident, $n:ident) => $body:expr) => {
        for_lanes!($s, $width, ($i, $n, _k) => $body)
    };
    ($s:ty, $width:expr, ($i:ident, $n:ident, $k:ident) => $body:expr) => {{
        let width: usize = $width;
        let mut $i = 0;
        let $n = <$s>::LANES;
        while $i + 4 * <$s>::LANES <= width {
            for $k in 0..4usize {
                $body;
                $i += <$s>::LANES;
            }
        }
        while $i < width {
            let ($n, $k) = (usize::min(width - $i, <$s>::LANES), 0usize);
            $body;
            $i += <$s>::LANES;
        }
    }};
}
pub(super) use for_lanes;

/// `e^x` for `x <= 88`, relative error below 2e-7; 0 or nearly so below −87.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(x, s.splat(-87.0));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, so that n·ln 2 is exact enough
    let r = s.mul_add(n, s.splat(-0.693_359_4), x);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    // 1 + r + r²/2 + … + r⁷/7!, |r| <= 0.347
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.mul_add(p, r, s.splat(c));
    }
    s.mul(p, s.pow2(n))
}

/// Eight lanes of plain Rust: the scalar twin of the others, in a shape that compilers turn into whatever vectors the target has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const P: usize = 8;

#[inline(always)]
fn lanes(a: [f32; P], b: [f32; P], f: impl Fn(f32, f32) -> f32) -> [f32; P] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; P];
    const LANES: usize = P;
    const ROWS: usize = 6;
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller gives `LANES` readable floats.
        unsafe { p.cast::<[f32; P]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller gives room for `LANES` floats.
        unsafe { p.cast::<[f32; P]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> Self::V {
        // SAFETY: the caller gives `n` readable floats.
        std::array::from_fn(|i| if i < n { unsafe { p.add(i).read() } } else { fill })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V) {
        for (i, x) in v.into_iter().take(n).enumerate() {
            // SAFETY: the caller gives room for `n` floats.
            unsafe { p.add(i).write(x) }
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; P]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn recip(self, a: Self::V) -> Self::V {
        a.map(|a| 1.0 / a)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const SHIFT: f32 = 12_582_912.0; // 1.5·2²³: no room for fractions is left beside it
        a.map(|a| (a + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        a.map(|a| f32::from_bits(((a as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn store_u8(self, p: *mut u8, v: Self::V) {
        // SAFETY: the caller gives room for `LANES` bytes. (`as` clamps.)
        unsafe { p.cast::<[u8; P]>().write_unaligned(self.round(v).map(|x| x as u8)) }
    }
    #[inline(always)]
    unsafe fn store_u8x4(self, p: *mut u8, v: [Self::V; 4]) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: the caller gives room for 4 · LANES bytes.
            unsafe { self.store_u8(p.add(i * P), v) }
        }
    }
    #[inline(always)]
    fn keep(self, v: Self::V, n: usize, rest: Self::V) -> Self::V {
        std::array::from_fn(|i| if i < n { v[i] } else { rest[i] })
    }
    #[inline(always)]
    unsafe fn turn8(self, p: *const f32, stride: usize, rows: usize, out: *mut f32, out_stride: usize) {
        for r in 0..8 {
            for c in 0..8 {
                // SAFETY: the caller gives `rows` rows to read and 8 to write, of 8 floats each.
                unsafe { out.add(c * out_stride + r).write(if r < rows { p.add(r * stride + c).read() } else { 0.0 }) }
            }
        }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        v.into_iter().sum()
    }
    #[inline(always)]
    fn top(self, v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn bottom(self, v: Self::V) -> f32 {
        v.into_iter().fold(f32::INFINITY, f32::min)
    }
}
