//! SIMD kernels behind a safe door: the only folder where `unsafe` is allowed.
//!
//! Every kernel has a scalar twin that says what it computes; property tests compare the two for each [`Kernel`] of this CPU.
//! The choice is made at run time, once ([`Kernel::best`]); benches and tests may force another one.
//! Not here: models, tokenising, or anything that knows what the numbers mean.
#![allow(unsafe_code)]

pub mod aligned;
pub mod bits;
pub mod detect;
pub mod dot;
mod gelu;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gemm_amx;
#[cfg(target_arch = "x86_64")]
mod gemm_avx2;
#[cfg(target_arch = "x86_64")]
mod gemm_avx512;
#[cfg(target_arch = "x86_64")]
mod gemm_avxvnni;
mod gemm_scalar;
mod norm;
pub mod panel;
pub mod quant;
pub mod sgemm;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_x86;
mod softmax;

pub use detect::Kernel;
