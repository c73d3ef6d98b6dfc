//! Which instruction sets this CPU has, and which of them to use.
//!
//! Invariant: naming a kernel that this CPU lacks is harmless: the doors fall back to the plainest. Cost: one load a call.

use std::sync::OnceLock;

/// Environment variable that forces a kernel (its [`Kernel::name`]) for a whole process; unknown or unavailable names are ignored.
pub const KERNEL_ENV: &str = "REACH_KERNEL";

/// One family of instructions, from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// Plain Rust; runs anywhere and is the reference of the others.
    Scalar,
    /// 256-bit vectors with FMA; 8-bit products by way of 16 bits.
    Avx2,
    /// AVX2 with 256-bit `vpdpbusd`.
    AvxVnni,
    /// 512-bit vectors with `vpdpbusd` (AVX-512 F, BW, DQ, VL, VNNI).
    Avx512,
    /// As `Avx512`, with 8-bit products in tile registers (AMX-INT8) where the system allows them.
    Amx,
}

impl Kernel {
    /// Every kernel there is, plainest first.
    pub const ALL: [Kernel; 5] = [Kernel::Scalar, Kernel::Avx2, Kernel::AvxVnni, Kernel::Avx512, Kernel::Amx];

    /// Name in reports, flags and [`KERNEL_ENV`].
    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Scalar => "scalar",
            Kernel::Avx2 => "avx2",
            Kernel::AvxVnni => "avx-vnni",
            Kernel::Avx512 => "avx512-vnni",
            Kernel::Amx => "amx-int8",
        }
    }

    /// The kernel of that name.
    pub fn parse(name: &str) -> Option<Kernel> {
        Kernel::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            Kernel::Scalar => true,
            Kernel::Avx2 => has_avx2(),
            Kernel::AvxVnni => has_avx2() && has_avx_vnni(),
            Kernel::Avx512 => has_avx2() && has_avx512(),
            Kernel::Amx => has_avx2() && has_avx512() && has_amx(),
        }
    }

    /// Itself if this CPU can run it, else the plainest: what every door passes through before it enters `unsafe` code.
    #[inline]
    pub(super) fn usable(self) -> Kernel {
        static HERE: OnceLock<[bool; 5]> = OnceLock::new();
        let here = HERE.get_or_init(|| Kernel::ALL.map(Kernel::is_available));
        if here[self as usize] { self } else { Kernel::Scalar }
    }

    /// Those that this CPU can run, plainest first; never empty.
    pub fn available() -> impl Iterator<Item = Kernel> {
        Kernel::ALL.into_iter().filter(|k| k.is_available())
    }

    /// The fastest that this CPU can run, or the one that [`KERNEL_ENV`] names. Decided once a process.
    pub fn best() -> Kernel {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let forced = std::env::var(KERNEL_ENV).ok().and_then(|name| Kernel::parse(&name)).filter(|k| k.is_available());
            forced.or_else(|| Kernel::available().last()).unwrap_or(Kernel::Scalar)
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
fn has_avx_vnni() -> bool {
    is_x86_feature_detected!("avxvnni")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(super::gemm_amx::is_allowed)
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx_vnni() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_best_is_available() {
        assert_eq!(Kernel::available().next(), Some(Kernel::Scalar));
        assert!(Kernel::best().is_available());
    }

    #[test]
    fn names_are_unique_and_parse_back() {
        for kernel in Kernel::ALL {
            assert_eq!(Kernel::parse(kernel.name()), Some(kernel));
        }
        assert_eq!(Kernel::parse("abacus"), None);
    }
}
