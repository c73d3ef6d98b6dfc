//! `reach tune`: fits weights and thresholds on history, applies what wins, rolls back. What is fitted is `eval::tune`, wired in `app`.

use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, say};
use crate::types::policy::PolicyChange;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Fits rank weights and thresholds on history, keeps only what wins on requests it was not fitted on, and can put that in force.
///
/// LOG and --labels are those of `reach replay`. --apply, --versions and --rollback go to the server, or to the store of --data when no server holds it.
/// Exit code 1: nothing won.
#[derive(Args, Debug, Default)]
pub struct Tune {
    /// Decision log: a JSON lines file or a data folder; the folder of --data when left out.
    pub log: Option<PathBuf>,
    /// What became of the requests, as JSON lines; may be repeated.
    #[arg(long = "labels", value_name = "FILE")]
    pub labels: Vec<PathBuf>,
    /// Share of the requests that nothing is fitted on.
    #[arg(long, default_value_t = 0.3, value_name = "SHARE")]
    pub holdout: f64,
    /// What is wanted, such as "auto precision >= 0.95, miss <= 1%; maximize auto share".
    #[arg(long, value_name = "WORDS")]
    pub aim: Option<String>,
    /// Puts in force what won.
    #[arg(long)]
    pub apply: bool,
    /// Shows the versions of the policy, and fits nothing.
    #[arg(long, conflicts_with_all = ["apply", "rollback"])]
    pub versions: bool,
    /// Goes back to a version (0: the configuration alone), or to the one before.
    #[arg(long, value_name = "N", num_args = 0..=1, conflicts_with = "apply")]
    pub rollback: Option<Option<u64>>,
    /// Fleet to route plain queries over; the registry of --data when left out.
    #[arg(long, value_name = "FILE")]
    pub manifests: Option<PathBuf>,
    /// Only plain queries of this split.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<String>,
    /// At most this many decisions, the last ones; they are kept in memory (about 10 KB each).
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub limit: usize,
    /// Keeps vectors of plain queries' fleet in this folder between runs.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Seed of the split and of the bounds.
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub seed: u64,
}

/// What came of a tuning.
pub struct Won {
    /// Exit of the command.
    pub exit: Exit,
    /// What is to be applied, if anything won.
    pub change: Option<PolicyChange>,
    /// Why, for those who read the versions later.
    pub why: String,
    /// Fingerprints of the models whose decisions it was fitted on; it is put in force with the same ones in use alone.
    pub fitted_on: Vec<String>,
}

/// The store of `--data`, or the server when that store is in use.
async fn backend(common: &Common, app: &dyn App) -> Result<Backend, Failure> {
    match Backend::open(common, app).await {
        Ok(backend) => Ok(backend),
        Err(e) if common.data.is_some() => {
            let server = Backend::open(&Common { data: None, ..common.clone() }, app).await?;
            match server.admin("policy", None).await {
                Ok(_) => Ok(server),
                Err(_) => Err(e),
            }
        }
        Err(e) => Err(e),
    }
}

fn versions(state: &Value) -> String {
    let active = state["active"].as_u64().unwrap_or(0);
    let mark = |n: u64| if n == active { "*" } else { " " };
    let mut lines = vec![format!("{} 0  the configuration alone", mark(0))];
    for v in state["versions"].as_array().into_iter().flatten() {
        let n = v["n"].as_u64().unwrap_or(0);
        let word = |key: &str| v[key].as_str().unwrap_or("").to_string();
        lines.push(format!("{} {n}  {}  {}  {}", mark(n), word("at"), word("by"), word("why")));
    }
    lines.join("\n")
}

impl Tune {
    /// Runs it.
    pub async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        if self.versions || self.rollback.is_some() {
            let backend = backend(common, app).await?;
            let state = match self.rollback {
                Some(to) => backend.admin("policy", Some(json!({ "rollback": to }))).await?,
                None => backend.admin("policy", None).await?,
            };
            if out.json {
                out.json(&state)?
            } else {
                out.line(&versions(&state))?
            }
            return Ok(Exit::Ok);
        }
        let Won { exit, change, why, fitted_on } = app.tune(common.config(vec![])?, self, out).await?;
        if !self.apply {
            return Ok(exit);
        }
        let Some(change) = change else {
            say("nothing won; nothing is applied");
            return Ok(exit);
        };
        let request = json!({ "apply": change, "by": "tune", "why": why, "fitted_on": fitted_on });
        let state = backend(common, app).await?.admin("policy", Some(request)).await?;
        say(&format!("version {} of the policy is in force; `reach tune --rollback` goes back", state["active"]));
        Ok(exit)
    }
}
