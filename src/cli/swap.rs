//! `reach swap`: other models in a running service: put beside, compared, switched to, taken back.

use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, say};
use crate::config::files::read_text;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Swaps the models of a running service.
#[derive(Subcommand, Debug)]
pub enum SwapCommand {
    /// Loads models beside those in use, embeds the fleet, compares both on recent requests and refits thresholds. Nothing changes for callers.
    Prepare {
        /// Models, as `reach eval models --models` names them; paths are those of the server.
        models: String,
        /// What thresholds are refitted for.
        #[arg(long, value_name = "WORDS")]
        aim: Option<String>,
        /// Labels of recent requests (JSON lines), to refit thresholds to.
        #[arg(long, value_name = "FILE")]
        labels: Option<PathBuf>,
        /// Returns at once instead of waiting for the report.
        #[arg(long)]
        no_wait: bool,
    },
    /// Shows the models in use, how far a preparation is, and its report.
    Status,
    /// Serves with the prepared models from the next decision on.
    Switch,
    /// Serves with the models before the switch again, under the policy before it.
    Rollback,
    /// Lets go of the models beside.
    Drop,
}

fn labels(path: &Path) -> Result<Vec<Value>, Failure> {
    let text = read_text(path).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
    let all: Vec<Value> = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty())
        .map(|(i, l)| serde_json::from_str(l).map_err(|e| Failure::words(format!("{}:{}: {e}", path.display(), i + 1))))
        .collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err(Failure::words(format!("{}: there is no label in it", path.display())));
    }
    Ok(all)
}

/// A share in percent with its 95 % bounds and how many decisions it is a share of.
fn bounded(share: &Value) -> String {
    let percent = |key: &str| share[key].as_f64().map(|x| format!("{:.1}", x * 100.0));
    match (percent("value"), percent("low"), percent("high")) {
        (Some(value), Some(low), Some(high)) => format!("{value} % [{low}, {high}] of {}", share["of"]),
        _ => "–".into(),
    }
}

/// A threshold in at most four digits: JSON carries single precision as 0.44999998807907104.
fn threshold(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".into(), |x| ((x * 1e4).round() / 1e4).to_string())
}

fn text(state: &Value) -> String {
    let words = |v: &Value| v.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!("in use: {}", words(&state["models"])), format!("swap: {}", state["state"].as_str().unwrap_or(""))];
    if let Some(spec) = state["prepare"].as_str() {
        lines.push(format!("models: {spec}"));
    }
    if let Some(why) = state["why"].as_str() {
        lines.push(format!("why: {why}"));
    }
    if let Some(done) = state.pointer("/capabilities/done") {
        lines.push(format!("capabilities: {done} of {}", state["capabilities"]["of"]));
    }
    let report = &state["report"];
    if report.is_object() {
        let share = |v: &Value| v.as_f64().map_or("–".into(), |x| format!("{:.1} %", x * 100.0));
        lines.push(format!(
            "on {} recent requests: same first capability {}, same answer {}",
            report["requests"],
            share(&report["same_first"]),
            share(&report["same_answer"])
        ));
        lines.push(format!(
            "thresholds ({}): auto {}, suggest {}",
            report["how"].as_str().unwrap_or(""),
            threshold(&report["point"]["auto"]),
            threshold(&report["point"]["suggest"])
        ));
        for (name, key) in [("in use", "figures_now"), ("prepared", "figures_then")] {
            let f = &report[key];
            if f.is_object() {
                let of = |figure: &str| bounded(&f[figure]);
                lines.push(format!(
                    "{name}: auto {}, precision {}, miss {}, top-1 {}",
                    of("auto"),
                    of("auto_precision"),
                    of("miss"),
                    of("top1")
                ));
            }
        }
        for d in report["differs"].as_array().into_iter().flatten().take(10) {
            let word = |key: &str| d[key].as_str().unwrap_or("");
            lines.push(format!("  {}: {} → {}", word("query").chars().take(60).collect::<String>(), word("now"), word("then")));
        }
        for note in report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            lines.push(format!("note: {note}"));
        }
    }
    lines.join("\n")
}

impl SwapCommand {
    /// Runs it.
    pub async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        // a swap is an operation on a running service: a store that is opened for one command has nothing to swap
        let backend = Backend::open(&Common { data: None, ..common.clone() }, app).await?;
        let mut state = match self {
            Self::Prepare { models, aim, labels: file, .. } => {
                let labels = file.as_deref().map(labels).transpose()?.unwrap_or_default();
                backend.admin("models", Some(json!({ "prepare": models, "aim": aim, "labels": labels }))).await?
            }
            Self::Status => backend.admin("models", None).await?,
            Self::Switch => backend.admin("models", Some(json!({ "switch": true }))).await?,
            Self::Rollback => backend.admin("models", Some(json!({ "rollback": true }))).await?,
            Self::Drop => backend.admin("models", Some(json!({ "drop": true }))).await?,
        };
        if matches!(self, Self::Prepare { no_wait: false, .. }) {
            let mut told = String::new();
            while state["state"] == "preparing" {
                tokio::time::sleep(Duration::from_millis(500)).await;
                state = backend.admin("models", None).await?;
                let now = format!("{} of {} capabilities", state["capabilities"]["done"], state["capabilities"]["of"]);
                if state["state"] == "preparing" && now != told {
                    say(&now);
                    told = now;
                }
            }
        }
        if out.json {
            out.json(&state)?
        } else {
            out.line(&text(&state))?
        }
        Ok(if state["state"] == "failed" { Exit::Negative } else { Exit::Ok })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_with_their_bounds_and_thresholds_are_short() {
        let share = json!({"value": 1.0, "low": 0.7719, "high": 1.0, "of": 13});
        let state = json!({"state": "ready", "models": ["a"], "report": {
            "requests": 40, "how": "labels", "point": {"auto": f64::from(0.45f32), "suggest": 0.2},
            "figures_then": {"auto": null, "auto_precision": share},
        }});
        let told = text(&state);
        assert!(told.contains("auto 0.45, suggest 0.2") && told.contains("precision 100.0 % [77.2, 100.0] of 13"), "{told}");
    }
}
