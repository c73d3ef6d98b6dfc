//! SIMD kernels behind a safe door: the only folder where `unsafe` is allowed.
//!
//! Every kernel has a scalar twin that says what it computes; property tests compare the two for each [`Kernel`] of this CPU.
//! The choice is made at run time, once ([`Kernel::best`]); benches and tests may force another one.
//! Not here: models, tokenising, or anything that knows what the numbers mean.
#![allow(unsafe_code)]

pub mod detect;
pub mod dot;

pub use detect::Kernel;
