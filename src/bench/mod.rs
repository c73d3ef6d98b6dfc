//! Measuring: how fast the encoder, a route and an index of a given size are on this machine. What `reach bench` and the reports of `eval/perf/` are made of.
//!
//! In: models, texts, manifests. Out: figures with the machine they were measured on. Every figure names its unit; ratios of two programs are
//! taken in one run, turn about. Not here: quality (`eval`), doors and processes (`app`).

pub mod corpus;
pub mod embed;
pub mod figures;
pub mod load;
pub mod machine;
pub mod scale;
