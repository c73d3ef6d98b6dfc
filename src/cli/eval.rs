//! `reach eval`: the arguments; what they do is `eval`, wired in `app`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Measures quality on labelled queries.
#[derive(Subcommand, Debug)]
pub enum EvalCommand {
    /// Registers a set's manifests in a store of its own, routes its queries, and counts what came out.
    Run(EvalRun),
    /// Compares embedding models on one's own fleet and queries.
    Models(EvalModels),
    /// Asks before and after an outcome log was reported: what the habits of callers are worth.
    History(EvalHistory),
    /// Attacks a fleet with manifests made to win others' requests: how much they win with the guards on and off.
    Gaming(EvalGaming),
}

/// A fleet and labelled queries.
#[derive(Args, Debug)]
pub struct EvalSet {
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
}

/// What shared history is worth.
#[derive(Args, Debug)]
pub struct EvalHistory {
    /// Manifests, as a file or a folder.
    #[arg(long, value_name = "FILE")]
    pub manifests: PathBuf,
    /// Outcome log (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub outcomes: PathBuf,
    /// Ambiguous requests with their callers (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub ambiguous: PathBuf,
    /// Plain requests, that must not suffer (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,
    /// Only requests of this split.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<String>,
    /// Keeps the run's vectors in this folder.
    #[arg(long = "cache", value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// How much an attacker wins.
#[derive(Args, Debug)]
pub struct EvalGaming {
    /// The fleet and what it is asked.
    #[command(flatten)]
    pub set: EvalSet,
    /// Capabilities of the attacker as a share of the fleet's.
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    pub share: f64,
    /// Keeps the run's vectors in this folder and one beside it.
    #[arg(long = "cache", value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// One evaluation.
#[derive(Args, Debug)]
pub struct EvalRun {
    /// The fleet and what it is asked.
    #[command(flatten)]
    pub set: EvalSet,
    /// Learns from these outcomes first: labelled queries, or an outcome log (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub outcomes: Option<PathBuf>,
    /// Only labelled queries of this split are learned from; `train` when left out.
    #[arg(long, value_name = "SPLIT", requires = "outcomes")]
    pub outcomes_split: Option<String>,
    /// At most this many labelled queries a capability, drawn with the seed.
    #[arg(long, value_name = "N", requires = "outcomes")]
    pub per_capability: Option<usize>,
    /// Writes the features of each query to this file, for fitting.
    #[arg(long, value_name = "FILE")]
    pub features: Option<PathBuf>,
    /// Keeps the run's vectors in this folder, so that the next run embeds nothing twice.
    #[arg(long = "cache", value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// A comparison of models.
///
/// A model is a NAME of the catalogue, a folder with model.safetensors (BERT or XLM-R; written with a / in it), or vectors from elsewhere (.jsonl, .npy);
/// then @f32 or @int8, then :zh or :en. Several joined by + run side by side, each text going to the model of its language.
#[derive(Args, Debug)]
pub struct EvalModels {
    /// Models, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "MODEL", required_unless_present = "texts")]
    pub models: Vec<String>,
    /// The fleet and what it is asked.
    #[command(flatten)]
    pub set: EvalSet,
    /// What thresholds are refitted for.
    #[arg(long, value_name = "WORDS")]
    pub aim: Option<String>,
    /// Writes the report as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes every text that vectors are needed of (one JSON string a line), and compares nothing.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// Keeps vectors in this folder between runs.
    #[arg(long = "cache", value_name = "DIR")]
    pub data: Option<PathBuf>,
}
