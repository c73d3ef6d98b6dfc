//! `reach log`: the arguments; what they do is wired in `app`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Reads the decision log.
#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Writes entries of the decision log as JSON lines, oldest first.
    Export(LogExport),
}

/// Which entries, and where to.
#[derive(Args, Debug)]
pub struct LogExport {
    /// File to write; standard output when left out.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Only entries from this time on, RFC 3339.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only entries before this time, RFC 3339.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Most entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}
