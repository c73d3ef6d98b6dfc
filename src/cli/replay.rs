//! `reach replay`: the arguments; what they do is `eval::replay`, wired in `app`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What to vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SweepArg {
    /// Where `auto` and `suggest` begin.
    Threshold,
    /// Weights of the ranking.
    Weights,
    /// Ranking presets.
    Preset,
    /// Embedding models, each with thresholds of its own.
    Model,
}

/// Decides history again under other settings, and says what each would have been worth.
///
/// LOG is an export of the decision log, a data folder (a server may be running on it), or queries with labels or outcomes, which are routed once.
/// docs/replay.md describes every form. Exit code 1: the gate was not passed, or no setting can be recommended.
#[derive(Args, Debug, Default)]
pub struct Replay {
    /// Decision log: a JSON lines file or a data folder; the folder of --data when left out.
    pub log: Option<PathBuf>,
    /// What became of the requests: expected answers or outcomes, as JSON lines; may be repeated. A data folder's own outcomes when left out.
    #[arg(long = "labels", value_name = "FILE")]
    pub labels: Vec<PathBuf>,
    /// What to try: threshold, weights, preset, model.
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub sweep: Vec<SweepArg>,
    /// Models for `--sweep model`, named as in `reach eval models`; beside those in use, all that are installed when left out.
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    pub models: Vec<String>,
    /// Share of the requests that settings are not chosen on, such as 0.3.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub holdout: f64,
    /// Limits that the current configuration must keep (TOML).
    #[arg(long, value_name = "FILE")]
    pub gate: Option<PathBuf>,
    /// What is wanted, such as "auto precision >= 0.95, miss <= 1%; maximize auto share".
    #[arg(long, value_name = "WORDS")]
    pub aim: Option<String>,
    /// Writes the report as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Fleet to route plain queries over, or to ask other models about; the registry of --data when left out.
    #[arg(long, value_name = "FILE")]
    pub manifests: Option<PathBuf>,
    /// Only plain queries of this split.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<String>,
    /// At most this many decisions.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only decisions from this time on, RFC 3339 (data folders).
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only decisions before this time, RFC 3339 (data folders).
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Moved decisions shown in full.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub moves: usize,
    /// Keeps vectors of the fleet in this folder between runs.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Seed of the split and of the bounds.
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub seed: u64,
}
