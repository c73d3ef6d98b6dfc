//! `reach eval`: the arguments; what they do is `eval`, wired in `app`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Measures quality on labelled queries.
#[derive(Subcommand, Debug)]
pub enum EvalCommand {
    /// Registers a set's manifests in a store of its own, routes its queries, and counts what came out.
    Run(EvalRun),
}

/// One evaluation.
#[derive(Args, Debug)]
pub struct EvalRun {
    /// Manifests, as a file or a folder.
    #[arg(long, value_name = "FILE")]
    pub manifests: PathBuf,
    /// Queries with the answers expected (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,
    /// Only queries of this split.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<String>,
    /// At most this many queries, drawn with the seed.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Seed of every draw.
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub seed: u64,
    /// Writes the features of each query to this file, for fitting.
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Keeps the run's vectors in this folder, so that the next run embeds nothing twice.
    #[arg(long = "cache", value_name = "DIR")]
    pub data: Option<PathBuf>,
}
