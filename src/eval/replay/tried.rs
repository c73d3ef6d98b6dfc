//! What other embedding models would have been worth on the same history: thresholds fitted for each on one part of the requests, figures on the other.
//!
//! In: the counts of every model over the same decisions (`eval::again`). Out: [`Tried`]: a row a model, and which one to take. Pure.
//! Another model is recommended only when its gain over the models in use, on requests that no threshold was fitted on, is above 0 with its bound.

use super::Config;
use super::figures::{Counts, Figures, Metric};
use super::recommend::{self, Advice};
use super::settings::{Axis, Setting, Sweep, point_of};
use super::tally::{Group, Tally, gain};
use crate::error::Error;
use crate::types::policy::{OperatingPoint, Policy};
use serde::Serialize;
use std::collections::BTreeMap;

/// Share of the requests held out when none is asked for: a threshold is never judged on what it was fitted on here.
pub const HOLDOUT: f64 = 0.5;

/// One model's counts.
pub struct Counted {
    /// As it was named.
    pub name: String,
    /// Fingerprints.
    pub fingerprints: Vec<String>,
    /// Whether the shipped calibration was fitted for it.
    pub calibrated: bool,
    /// Counts.
    pub tally: Tally,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfModel {
    /// As it was named.
    pub model: String,
    /// Fingerprints.
    pub fingerprints: Vec<String>,
    /// Whether these are the models in use.
    pub in_use: bool,
    /// Whether the shipped calibration was fitted for it; else its confidence is provisional.
    pub calibrated: bool,
    /// Thresholds fitted for it; `None` = none reaches the aim, and the figures are those of the thresholds it came with.
    pub setting: Option<String>,
    /// Whether their bounds keep the aim on the part they were fitted on.
    pub surely: bool,
    /// The thresholds.
    pub point: OperatingPoint,
    /// Figures on the part that they were not fitted on.
    pub held_out: Figures,
    /// What is gained of the aim (what is maximized, less five times what is broken of its limits) over the models in use, with its 95 % interval.
    pub gain: Option<(f64, f64, f64)>,
    /// The same of `top1`, which thresholds hardly move.
    pub top1_gain: Option<(f64, f64, f64)>,
    /// Decisions that are other than they were.
    pub moved: u64,
    /// The same by what they were and became.
    pub moved_by: BTreeMap<String, u64>,
    /// Auto threshold, auto share and auto precision of the sweep, all requests.
    pub curve: Vec<(f64, f64, f64)>,
    /// What is thin, or why there are no thresholds.
    pub note: String,
}

impl OfModel {
    /// What should be known of its figures, in words.
    pub fn doubts(&self) -> Option<String> {
        let calibration = if self.calibrated { "" } else { "its confidence is not calibrated" };
        let all: Vec<&str> = [calibration, self.note.as_str()].into_iter().filter(|t| !t.is_empty()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Decisions asked again.
    pub decisions: u64,
    /// Decisions that were left out because their text was not kept.
    pub left_out: u64,
    /// Share of the requests that no threshold was fitted on.
    pub holdout: f64,
    /// Models: those in use first.
    pub models: Vec<OfModel>,
    /// Which one to take; `None` = the evidence is too thin, or none reaches the aim.
    pub recommended: Option<String>,
    /// In words.
    pub why: String,
}

/// The policy that thresholds of another model are fitted from: those of the models in use mean nothing for it.
pub fn start(policy: &Policy) -> Policy {
    policy.without_points()
}

/// A model's counts, with the setting that was fitted for it.
struct Fitted<'a> {
    of: &'a Counted,
    group: &'a Group,
    advice: Advice,
    index: usize,
}

fn fitted<'a>(of: &'a Counted, config: &Config) -> Result<Fitted<'a>, Error> {
    let Some(group) = of.tally.groups.values().max_by_key(|g| g.decisions) else {
        return Err(Error::invalid_at(
            "--sweep model",
            "decisions with their texts, which other models can embed",
            "the log keeps no text (decision_log.keep_text = false): replay a log that does, or plain queries with --manifests",
        ));
    };
    let advice = recommend::advise(&config.aim, &of.tally.settings, group, &[Sweep::Threshold], true);
    let current = of.tally.settings.iter().position(|s| s.axis == Axis::Current).unwrap_or(0);
    let index = advice.recommended.as_ref().map_or(current, |r| r.index);
    Ok(Fitted { of, group, advice, index })
}

fn row(f: &Fitted<'_>, in_use: Option<&Fitted<'_>>, config: &Config) -> Option<OfModel> {
    let (counts, setting): (_, &Setting) = (f.group.settings.get(f.index)?, f.of.tally.settings.get(f.index)?);
    let before = in_use.and_then(|u| u.group.settings.get(u.index));
    let compared = |of: &dyn Fn(&Counts) -> Option<f64>| before.map(|b| gain(&b.held, &counts.held, of));
    let on_axis = f.of.tally.settings.iter().zip(&f.group.settings).filter(|(s, _)| s.axis == Axis::Auto);
    let curve = on_axis.filter_map(|(s, of)| {
        let all = of.fit.with(&of.held).data;
        Some((s.at, Metric::AutoShare.of(&all)?, Metric::AutoPrecision.of(&all)?))
    });
    let recommended = f.advice.recommended.as_ref();
    Some(OfModel {
        model: f.of.name.clone(),
        fingerprints: f.of.fingerprints.clone(),
        in_use: in_use.is_none(),
        calibrated: f.of.calibrated,
        setting: recommended.map(|r| {
            let plain = if in_use.is_none() { "as configured" } else { "as shipped" };
            if setting.axis == Axis::Current { plain.into() } else { r.setting.clone() }
        }),
        surely: recommended.is_some_and(|r| r.surely),
        point: point_of(&setting.policy),
        held_out: Figures::of(&counts.held.data, &counts.held.resamples()),
        gain: compared(&|c| Some(config.aim.worth(c))),
        top1_gain: compared(&|c| Metric::Top1.of(c)),
        moved: counts.moved.values().sum(),
        moved_by: counts.moved.clone(),
        curve: curve.collect(),
        note: if recommended.is_some() { f.advice.thin.join("; ") } else { f.advice.why.clone() },
    })
}

/// Compares models; the first one is that in use.
pub fn of(all: &[Counted], left_out: u64, config: &Config) -> Result<Tried, Error> {
    let fits: Vec<Fitted<'_>> = all.iter().map(|c| fitted(c, config)).collect::<Result<_, _>>()?;
    let models: Vec<OfModel> = fits.iter().enumerate().filter_map(|(i, f)| row(f, fits.first().filter(|_| i > 0), config)).collect();
    let better = models
        .iter()
        .filter(|m| m.setting.is_some() && m.gain.is_some_and(|g| g.1 > 0.0))
        .max_by(|a, b| a.gain.map_or(0.0, |g| g.0).total_cmp(&b.gain.map_or(0.0, |g| g.0)));
    let (recommended, why) = match (better, models.first()) {
        (Some(m), _) => {
            let (value, low, _) = m.gain.unwrap_or_default();
            (Some(m.model.clone()), format!("its gain of the aim on held-out requests is {value:.3}, at least {low:.3}"))
        }
        (None, Some(used)) if used.setting.is_some() => {
            (Some(used.model.clone()), "no other model gains on held-out requests with its bound above 0: stay".to_string())
        }
        (None, used) => (None, used.map(|m| m.note.clone()).unwrap_or_default()),
    };
    let decisions = fits.first().map_or(0, |f| f.group.decisions);
    Ok(Tried { decisions, left_out, holdout: config.holdout, models, recommended, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::replay::entry::Entry;
    use crate::eval::replay::labels::Labels;
    use crate::eval::replay::settings;
    use crate::eval::replay::testing::planted_threshold;

    fn config() -> Config {
        Config { seed: 7, holdout: HOLDOUT, aim: "auto precision >= 0.95".parse().unwrap(), moves: 0, swept: Vec::new() }
    }

    fn counted(name: &str, entries: &[Entry], labels: &Labels) -> Counted {
        let policy = start(&Policy::default());
        let mut tally = Tally::new(settings::with_base(&policy, settings::thresholds(&policy)), &config());
        let wants = tally.wants_moves();
        for e in entries {
            let row = tally.judge(e, &labels.of(e), &wants);
            tally.add(row);
        }
        Counted { name: name.into(), fingerprints: vec![name.into()], calibrated: true, tally }
    }

    /// The same history as a worse model sees it: right and wrong answers stand at confidences that tell nothing.
    fn damaged(entries: &[Entry]) -> Vec<Entry> {
        let mut out = entries.to_vec();
        for (i, e) in out.iter_mut().enumerate() {
            e.logged.shortlist.facts.confidence = (i * 37 % 100) as f32 / 100.0;
        }
        out
    }

    #[test]
    fn each_model_gets_thresholds_of_its_own_and_the_better_one_is_named() {
        let (entries, labels) = planted_threshold(3, 800, 0.7);
        let worse = damaged(&entries);
        let (good, bad) = (|n| counted(n, &entries, &labels), |n| counted(n, &worse, &labels));
        let tried = of(&[bad("used"), good("other")], 0, &config()).unwrap();
        assert_eq!(tried.recommended.as_deref(), Some("other"), "{}", tried.why);
        let (used, other) = (&tried.models[0], &tried.models[1]);
        assert!(used.in_use && used.gain.is_none() && !other.in_use);
        assert!(other.gain.unwrap().1 > 0.0 && other.held_out.auto.unwrap().value > used.held_out.auto.map_or(0.0, |a| a.value));
        assert!((0.6..0.8).contains(&other.point.auto), "{:?}", other.setting);
        // the other way round there is nothing to gain
        let tried = of(&[good("used"), bad("other")], 0, &config()).unwrap();
        assert_eq!(tried.recommended.as_deref(), Some("used"), "{}", tried.why);
        assert!(tried.why.contains("stay") && tried.models[1].gain.unwrap().2 < 0.0);
        // the same model gains exactly nothing
        let tried = of(&[good("used"), good("same")], 0, &config()).unwrap();
        assert_eq!((tried.models[1].gain, tried.models[1].top1_gain), (Some((0.0, 0.0, 0.0)), Some((0.0, 0.0, 0.0))));
    }

    #[test]
    fn a_log_without_texts_is_refused_with_the_way_out() {
        let e = of(&[counted("used", &[], &Labels::default())], 9, &config()).unwrap_err().to_string();
        assert!(e.contains("--sweep model") && e.contains("keep_text") && e.contains("--manifests"), "{e}");
    }
}
