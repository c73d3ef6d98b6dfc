//! The report of a replay, as data: figures of every setting, what moved, advice, reliability, coverage.
//!
//! Invariant: the same input gives the same bytes: no time, no host, no map without order.

use super::Config;
use super::figures::Figures;
use super::labels::Labels;
use super::recommend::{self, Advice};
use super::settings::Axis;
use super::tally::{BINS, Coverage, Group, Move, Tally};
use super::tried::Tried;
use crate::error::Error;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfSetting {
    /// Its name.
    pub setting: String,
    /// What it changes.
    pub axis: Axis,
    /// Place on the axis.
    pub at: f64,
    /// Figures over all decisions.
    pub figures: Figures,
    /// How many decisions are other than they were.
    pub moved: u64,
    /// The same by what they were and became.
    pub moved_by: BTreeMap<String, u64>,
    /// Some of them, for the current and the recommended setting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
}

/// A bin of confidence under the current policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Lower end.
    pub from: f64,
    /// Right first answers.
    pub right: u64,
    /// Wrong first answers.
    pub wrong: u64,
    /// Requests that nobody can do.
    pub nobody: u64,
    /// Not known.
    pub unknown: u64,
    /// Mean confidence of the labelled ones.
    pub confidence: Option<f64>,
    /// Share of right ones among them.
    pub share_right: Option<f64>,
}

/// What is known of one capability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfCapability {
    /// `agent_id capability`.
    pub capability: String,
    /// Its counts.
    #[serde(flatten)]
    pub counts: Coverage,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Fingerprints of the models whose decisions these are: thresholds hold for them alone.
    pub models: Vec<String>,
    /// Decisions by other models, which are left out.
    pub by_other_models: BTreeMap<String, u64>,
    /// Decisions.
    pub decisions: u64,
    /// Labelled decisions.
    pub labelled: u64,
    /// Distinct labelled requests.
    pub requests: usize,
    /// Labelled decisions that say nobody, or wrong.
    pub negatives: u64,
    /// Agents that labels name and that were a candidate of no decision: mistyped, or never found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_agents: Vec<String>,
    /// What should be known of the input, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Time of the first and of the last decision.
    pub span: Option<(String, String)>,
    /// Decided again under the logged policy: how many came out as logged, of how many that hold their policy.
    pub reproduced: (u64, u64),
    /// Decisions for which the log holds everything that could have come first under every setting.
    pub exact: u64,
    /// Share of requests held out.
    pub holdout: f64,
    /// Expected calibration error of the current confidence over these decisions, 10 equal bins, as `ece` of `reach eval run`.
    pub calibration_error: Option<f64>,
    /// Settings: as logged, current, then what was swept.
    pub settings: Vec<OfSetting>,
    /// Advice.
    pub advice: Advice,
    /// Confidence under the current policy.
    pub bins: Vec<Bin>,
    /// By capability, fewest labels first.
    pub coverage: Vec<OfCapability>,
    /// What other embedding models would have been worth; `None` = none was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried: Option<Tried>,
    /// Limits of the gate that are broken; `None` = no gate was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Vec<String>>,
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map(|t| t.to_string()).unwrap_or_default()
}

fn bins(group: &Group) -> Vec<Bin> {
    (0..BINS)
        .map(|b| {
            let [right, wrong, nobody, unknown] = group.bins[b];
            let known = right + wrong + nobody;
            let mean = |sum: f64| (known > 0).then(|| sum / known as f64);
            Bin {
                from: b as f64 / BINS as f64,
                right,
                wrong,
                nobody,
                unknown,
                confidence: mean(group.sums[b]),
                share_right: mean(right as f64),
            }
        })
        .collect()
}

/// Makes the report of the models with most labelled decisions. `about` = the labels that are about a decision.
pub fn of(tally: Tally, labels: &Labels, about: &HashSet<usize>, config: &Config) -> Result<Report, Error> {
    let Tally { mut settings, groups, .. } = tally;
    let Some((models, group)) = groups.iter().max_by_key(|(_, g)| (g.labelled, g.decisions)) else {
        return Err(Error::invalid_at("LOG", "at least one decision", "the log is empty"));
    };
    if !labels.is_empty() && !labels.of_store && group.labelled == 0 {
        let (expected, hint) = if about.is_empty() {
            let hint =
                format!("none of the {} labels fits one of the {} decisions: compare decision ids or texts", labels.len(), group.decisions);
            ("labels of decisions that are in the log", hint)
        } else {
            let hint = format!(
                "{} of the {} labels fit decisions, and none of them says who was right: timeout and failed don't, no_matched_agent needs correct",
                about.len(),
                labels.len()
            );
            ("labels that say who was right, or that nobody can", hint)
        };
        return Err(Error::invalid_at("--labels", expected, hint));
    }
    let models_of: Vec<String> = models.split(" + ").filter(|m| !m.is_empty()).map(str::to_string).collect();
    let mut notes = Vec::new();
    for setting in settings.iter_mut().filter(|s| !s.policy.holds_for(&models_of)) {
        if setting.axis == Axis::Current {
            notes.push(format!(
                "the thresholds of the current policy were fitted for {}, not for the models of these decisions: they don't hold, and the shipped ones were taken",
                setting.policy.fitted_for.join(", ")
            ));
        }
        *setting = setting.elsewhere();
    }
    let mut advice = recommend::advise(&config.aim, &settings, group, &config.swept, config.holdout > 0.0);
    let chosen = advice.recommended.as_ref().map(|r| r.index);
    if let Some(r) = advice.recommended.as_mut().filter(|r| r.write.starts_with("[policy.point]")) {
        // thresholds hold for these models alone
        let names: Vec<String> = models_of.iter().map(|m| format!("{m:?}")).collect();
        r.write = format!("[policy]\nfitted_for = [{}]\n\n{}", names.join(", "), r.write);
    }
    let rows = settings
        .iter()
        .zip(&group.settings)
        .enumerate()
        .map(|(i, (setting, of))| {
            let all = of.fit.with(&of.held);
            OfSetting {
                setting: setting.name.clone(),
                axis: setting.axis,
                at: setting.at,
                figures: Figures::of(&all.data, &all.resamples()),
                moved: of.moved.values().sum(),
                moved_by: of.moved.clone(),
                moves: if setting.axis == Axis::Current || chosen == Some(i) { of.moves.clone() } else { Vec::new() },
            }
        })
        .collect();
    let bins = bins(group);
    let labelled: u64 = bins.iter().map(|b| b.right + b.wrong + b.nobody).sum();
    let gap = |b: &Bin| {
        let n = (b.right + b.wrong + b.nobody) as f64;
        b.confidence.zip(b.share_right).map_or(0.0, |(c, r)| (c - r).abs() * n)
    };
    let mut coverage: Vec<OfCapability> =
        group.coverage.iter().map(|(capability, counts)| OfCapability { capability: capability.clone(), counts: counts.clone() }).collect();
    coverage.sort_by(|a, b| a.counts.labelled.cmp(&b.counts.labelled).then(a.capability.cmp(&b.capability)));
    Ok(Report {
        models: models_of,
        notes,
        unknown_agents: Vec::new(),
        by_other_models: groups.iter().filter(|(m, _)| *m != models).map(|(m, g)| (m.clone(), g.decisions)).collect(),
        decisions: group.decisions,
        labelled: group.labelled,
        requests: group.requests.len(),
        negatives: group.negatives,
        span: (group.span.0 <= group.span.1).then(|| (time(group.span.0), time(group.span.1))),
        reproduced: group.reproduced,
        exact: group.exact,
        holdout: config.holdout,
        calibration_error: (labelled > 0).then(|| bins.iter().map(gap).sum::<f64>() / labelled as f64),
        settings: rows,
        advice,
        bins,
        coverage,
        tried: None,
        gate: None,
    })
}
