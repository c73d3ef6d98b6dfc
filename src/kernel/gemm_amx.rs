//! The product's micro-kernel on AMX: two tiles of up to 16 rows by two tiles of 16 outputs, 1,024 multiply-adds a cycle.
//!
//! The packed panels and the blocks of activations are what the tile registers load as they are. The sums leave the tiles by way of 4 KB of
//! memory and become floats with AVX-512. Tiles have one shape a product ([`Shape`]): where rows don't divide, the last block overlaps the one
//! before and computes a few rows twice, to the same bits. Compilers have no stable names for these instructions yet, so they are written out.
//! The system must allow a process the tile registers ([`is_allowed`]). Not here: the order of panels (`gemm`).

use super::aligned::LINE;
use super::gemm::{Tile, fetch};
use super::panel::PANEL;
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile register.
const TILE: usize = 16;

/// How the rows of a product are cut: blocks of `span` rows in one or two tiles of `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of a tile.
    pub rows: usize,
    /// Rows of a block.
    pub span: usize,
    /// Blocks.
    pub blocks: usize,
}

impl Shape {
    /// For a product of `rows ≥ 1` rows.
    pub(super) fn of(rows: usize) -> Self {
        if rows <= TILE {
            return Self { rows, span: rows, blocks: 1 };
        }
        let blocks = rows.div_ceil(2 * TILE);
        let tile = rows.div_ceil(2 * blocks);
        Self { rows: tile, span: (2 * tile).min(rows), blocks }
    }

    /// First row of a block.
    pub(super) fn start(self, block: usize, rows: usize) -> usize {
        (block * self.span).min(rows - self.span)
    }
}

/// Whether this CPU has the instructions and the system lets this process use them. Asks the system: call it once.
pub(super) fn is_allowed() -> bool {
    // leaf 7: AMX-TILE and AMX-INT8; the system saves both parts of the tile state
    if __cpuid(0).eax < 7 {
        return false;
    }
    let (features, basic) = (__cpuid_count(7, 0).edx, __cpuid(1).ecx);
    let has_xsave = basic & (1 << 27) != 0;
    if !has_xsave || features & (1 << 24) == 0 || features & (1 << 25) == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: reads a register of the CPU that exists where OSXSAVE is set.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low & (0b11 << 17) == 0b11 << 17 && ask_system()
}

/// Linux gives the large tile state only to processes that ask for it.
#[cfg(target_os = "linux")]
fn ask_system() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: a system call that reads and writes no memory of ours; it enlarges what the system saves for this process's threads.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_system() -> bool {
    false
}

#[repr(C, align(64))]
struct Config([u8; 64]);

/// Sets the tile registers of this thread up for `shape`; [`release`] them afterwards.
///
/// # Safety
/// [`is_allowed`] said yes.
unsafe fn configure(shape: Shape) {
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        // 0..4 sums, 4 and 5 activations, 6 and 7 weights: all 64 bytes wide
        config.0[16 + 2 * tile] = LINE as u8;
        config.0[48 + tile] = if tile < 6 { shape.rows as u8 } else { TILE as u8 };
    }
    // SAFETY: reads the 64 bytes of the configuration; the caller promises the instruction.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}

/// Gives the tile registers back, so that switching threads costs nothing more.
///
/// # Safety
/// [`is_allowed`] said yes.
unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

#[repr(C, align(64))]
struct Sums([i32; 2 * TILE * PANEL]);

/// Prefetches of the 32 lines of the next panel that belong to a step of 64 columns: all, every second, none.
macro_rules! lines {
    (none) => {
        ""
    };
    (half) => {
        concat!(lines!(@ "0" "128" "256" "384"), lines!(@ "512" "640" "768" "896"), lines!(@ "1024" "1152" "1280" "1408"), lines!(@ "1536" "1664" "1792" "1920"))
    };
    (all) => {
        concat!(
            lines!(half),
            lines!(@ "64" "192" "320" "448"), lines!(@ "576" "704" "832" "960"), lines!(@ "1088" "1216" "1344" "1472"), lines!(@ "1600" "1728" "1856" "1984")
        )
    };
    (@ $($at:literal)*) => {
        concat!($("prefetcht0 [{ahead} + ", $at, "]\n"),*)
    };
}

macro_rules! products {
    ($how:expr, $two:expr, $t:ident, $sums:ident, $a1:ident) => {{
        let (full, half) = ($how == fetch::ALL, $how == fetch::HALF);
        macro_rules! code {
                    ($zero:literal, $second:literal, $last:literal, $fetch:ident, $store:literal) => {
                        asm!(
                            "tilezero tmm0", "tilezero tmm2", $zero,
                            "2:",
                            "tileloadd tmm6, [{w} + {wide}*1]",
                            "tileloadd tmm4, [{a0} + {line}*1]",
                            "tdpbusd tmm0, tmm4, tmm6",
                            $second,
                            "tileloadd tmm7, [{w} + {wide}*1 + 64]",
                            "tdpbusd tmm2, tmm4, tmm7",
                            $last,
                            lines!($fetch),
                            "add {a0}, {step}", "add {a1}, {step}", "add {w}, 2048", "add {ahead}, 2048",
                            "dec {n}",
                            "jnz 2b",
                            "tilestored [{s0} + {wide}*1], tmm0", "tilestored [{s0} + {wide}*1 + 64], tmm2", $store,
                            a0 = inout(reg) $t.a => _, a1 = inout(reg) $a1 => _, w = inout(reg) $t.w => _, ahead = inout(reg) $t.ahead => _,
                            n = inout(reg) $t.blocks => _, step = in(reg) $t.a_step, line = in(reg) LINE, wide = in(reg) 2 * LINE,
                            s0 = in(reg) $sums.0.as_mut_ptr(), s1 = in(reg) $sums.0.as_mut_ptr().add(TILE * PANEL),
                            options(nostack)
                        )
                    };
                }
        macro_rules! fetches {
            ($fetch:ident) => {
                if $two {
                    code!(
                        "tilezero tmm1\ntilezero tmm3",
                        "tileloadd tmm5, [{a1} + {line}*1]\ntdpbusd tmm1, tmm5, tmm6",
                        "tdpbusd tmm3, tmm5, tmm7",
                        $fetch,
                        "tilestored [{s1} + {wide}*1], tmm1\ntilestored [{s1} + {wide}*1 + 64], tmm3"
                    )
                } else {
                    code!("", "", "", $fetch, "/* {s1} */")
                }
            };
        }
        match (full, half) {
            (true, _) => fetches!(all),
            (false, true) => fetches!(half),
            (false, false) => fetches!(none),
        }
    }};
}

/// The tile registers of this thread, set up for products of one shape; dropped, they are given back.
pub(super) struct Registers(Shape);

impl Registers {
    /// Takes them.
    ///
    /// # Safety
    /// [`is_allowed`] said yes. Until they are given back, nobody else on this thread uses them.
    pub(super) unsafe fn take(shape: Shape) -> Self {
        // SAFETY: the caller's promise.
        unsafe { configure(shape) };
        Self(shape)
    }

    /// How rows are cut.
    pub(super) fn shape(&self) -> Shape {
        self.0
    }

    /// A block of rows times one panel.
    ///
    /// # Safety
    /// The tile's pointers reach what it says, for `shape.span` rows.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile(&self, how: usize, t: &Tile) {
        let Shape { rows, span, .. } = self.0;
        let second = span - rows;
        let two = second > 0;
        let mut sums = std::mem::MaybeUninit::<Sums>::uninit();
        // SAFETY: the products write every sum that is read below: `rows` rows of each tile that is used. All offsets stay inside what the
        // caller promises; prefetching is allowed anywhere. The registers are set up.
        unsafe {
            let sums = &mut *sums.as_mut_ptr();
            let a1 = t.a.add(second * LINE);
            products!(how, two, t, sums, a1);
            floats(sums.0.as_ptr(), 0, rows, t);
            if two {
                floats(sums.0.as_ptr().add(TILE * PANEL), second, rows, t);
            }
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: made only where the instructions are.
        unsafe { release() };
    }
}

/// Turns the sums of `rows` rows, the first being row `first` of the block, into results.
///
/// # Safety
/// As [`Registers::tile`].
#[target_feature(enable = "avx512f")]
unsafe fn floats(sums: *const i32, first: usize, rows: usize, t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        let w_sums = [_mm512_loadu_si512(t.sums.cast()), _mm512_loadu_si512(t.sums.add(16).cast())];
        let w_scale = [_mm512_loadu_ps(t.w_scale), _mm512_loadu_ps(t.w_scale.add(16))];
        let bias = [_mm512_loadu_ps(t.bias), _mm512_loadu_ps(t.bias.add(16))];
        for row in 0..rows {
            let (zero, a_scale) = (_mm512_set1_epi32(t.zero.add(first + row).read()), _mm512_set1_ps(t.scale.add(first + row).read()));
            let out = t.out.add((first + row) * t.stride);
            for half in 0..2 {
                let sum = _mm512_load_si512(sums.add(row * PANEL + half * 16).cast());
                let whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_mullo_epi32(zero, w_sums[half])));
                _mm512_storeu_ps(out.add(half * 16), _mm512_fmadd_ps(whole, _mm512_mul_ps(a_scale, w_scale[half]), bias[half]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_rows_in_tiles_of_one_shape() {
        for rows in 1..200 {
            let shape = Shape::of(rows);
            assert!((1..=TILE).contains(&shape.rows) && shape.span <= rows && shape.span <= 2 * shape.rows, "{rows}: {shape:?}");
            let mut seen = vec![false; rows];
            for block in 0..shape.blocks {
                let start = shape.start(block, rows);
                for tile in [0, shape.span - shape.rows] {
                    seen[start + tile..start + tile + shape.rows].fill(true);
                }
            }
            assert!(seen.iter().all(|s| *s), "{rows}: {shape:?}");
        }
    }
}
