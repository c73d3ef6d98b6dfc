//! `reach bench`: the arguments; what is measured is `bench`, wired in `app`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Measures speed on this machine.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// The encoder alone: texts a second, time of one text, accuracy.
    Embed(BenchEmbed),
    /// Whole answers through a door, under load.
    Resolve(BenchResolve),
    /// How the cost of a route grows with the fleet.
    Scale(BenchScale),
    /// Makes a history to measure `reach replay` on.
    Log(BenchLog),
}

/// A language with an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Speech {
    /// Chinese.
    Zh,
    /// English.
    En,
}

/// Arithmetic of the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arithmetic {
    /// 8 bits.
    Int8,
    /// 32-bit floats, the reference.
    F32,
}

/// The encoder alone. `REACH_KERNEL` forces a kernel.
#[derive(Args, Debug)]
pub struct BenchEmbed {
    /// Language of the model.
    #[arg(long, value_enum)]
    pub lang: Speech,
    /// Texts, one a line.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "int8")]
    pub precision: Arithmetic,
    /// Seconds a setting and round.
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    pub seconds: f64,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub rounds: usize,
    /// Also compares so many texts with the 32-bit reference.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub accuracy: usize,
}

/// Where a request goes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoorKind {
    /// gRPC, a server of its own process.
    Grpc,
    /// HTTP, a server of its own process.
    Http,
    /// The library, in this process.
    Lib,
}

/// Whole answers under load.
#[derive(Args, Debug)]
pub struct BenchResolve {
    /// Doors, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "grpc")]
    pub doors: Vec<DoorKind>,
    /// Every text is embedded (the default).
    #[arg(long, group = "texts_are")]
    pub distinct: bool,
    /// Texts whose vectors are known.
    #[arg(long, group = "texts_are")]
    pub cached: bool,
    /// Names of capabilities.
    #[arg(long, group = "texts_are")]
    pub exact: bool,
    /// Capabilities of the fleet.
    #[arg(long, default_value = "1000", value_parser = number, value_name = "N")]
    pub capabilities: usize,
    /// Manifests, as files or folders; the scale corpora by default.
    #[arg(long, value_name = "FILE")]
    pub manifests: Vec<PathBuf>,
    /// Requests a second, open loop.
    #[arg(long, value_name = "R", group = "pace")]
    pub rate: Option<f64>,
    /// Open loop at this multiple of what was reached with `--in-flight` calls just before.
    #[arg(long, value_name = "X", group = "pace")]
    pub load: Option<f64>,
    /// As fast as it goes (the default).
    #[arg(long, group = "pace")]
    pub max: bool,
    /// Calls under way with `--max`.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub in_flight: usize,
    /// Seconds of load.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    pub seconds: f64,
}

/// How the cost of a route grows.
#[derive(Args, Debug)]
pub struct BenchScale {
    /// Sizes of the fleet.
    #[arg(long, value_delimiter = ',', default_value = "1e3,1e4,1e5", value_parser = number, value_name = "N,…")]
    pub capabilities: Vec<usize>,
    /// Language of the model.
    #[arg(long, value_enum, default_value = "en")]
    pub lang: Speech,
    /// Manifests to recombine, as files or folders; the scale corpora by default.
    #[arg(long, value_name = "FILE")]
    pub manifests: Vec<PathBuf>,
    /// Base capabilities that are embedded for real.
    #[arg(long, default_value = "2000", value_parser = number, value_name = "N")]
    pub base: usize,
    /// Requests.
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub queries: usize,
    /// Of them, those that are compared with an exact scan.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub compared: usize,
    /// Seed of every draw.
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub seed: u64,
}

/// A made history: labelled queries, asked again and again over 30 days.
#[derive(Args, Debug)]
pub struct BenchLog {
    /// The fleet and what it is asked.
    #[command(flatten)]
    pub set: super::EvalSet,
    /// Decisions.
    #[arg(long, default_value = "1e5", value_parser = number, value_name = "N")]
    pub decisions: usize,
    /// File for the decisions, as `reach log export` writes them.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// File for their labels.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Data folder for the decisions with their outcomes, as a node keeps them.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
}

/// Reads `1000` or `1e3`.
fn number(text: &str) -> Result<usize, String> {
    let value: f64 = text.trim().parse().map_err(|_| "a number such as 1000 or 1e3".to_owned())?;
    if value.fract() == 0.0 && (1.0..=1e8).contains(&value) { Ok(value as usize) } else { Err("a whole number from 1 to 1e8".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_both_ways() {
        assert_eq!((number("1e3"), number("250")), (Ok(1_000), Ok(250)));
        assert!(number("0").is_err() && number("1.5").is_err() && number("many").is_err());
    }
}
