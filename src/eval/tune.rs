//! Fits rank weights and thresholds on history, and keeps only what wins on requests it was not fitted on.
//!
//! In: labelled decisions in memory, the current policy, an aim. Out: [`Tuned`]: each part (weights, thresholds, points of namespaces) with its figures
//! before and after on both halves, whether it is kept and why, and the change of the policy that is left.
//! A part is kept when its gain on the held-out requests is above 0 with its 95 % bound (paired bootstrap over distinct requests). Deterministic.
//! Cost: one `pick` a decision and candidate, some hundred candidates. Not here: applying it (`app`).

use crate::error::Error;
use crate::eval::replay::Config;
use crate::eval::replay::aim::Aim;
use crate::eval::replay::entry::Entry;
use crate::eval::replay::figures::{Figures, Metric};
use crate::eval::replay::labels::Labels;
use crate::eval::replay::settings::{Axis, Setting, point_of, set, with_weights};
use crate::eval::replay::tally::{Group, OfSetting, Part, Tally, gain};
use crate::types::policy::{OperatingPoint, Policy, PolicyChange};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// Distinct labelled requests below which nothing is tuned.
pub const LEAST: usize = 60;
/// Distinct labelled requests below which a namespace gets no point of its own.
pub const LEAST_OF_NAMESPACE: usize = 80;
/// Rounds over all coordinates.
const ROUNDS: usize = 3;

/// One part of a tuning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// `weights`, `thresholds`, or `thresholds of NAMESPACE`.
    pub part: String,
    /// Before, on the requests it was fitted on.
    pub before: Figures,
    /// After, on the same.
    pub after: Figures,
    /// Before, held out.
    pub held_before: Figures,
    /// After, held out.
    pub held_after: Figures,
    /// Gain on the held-out requests, with its 95 % interval: what is maximized, less five times what is broken of the limits.
    pub gain: (f64, f64, f64),
    /// Whether it is kept.
    pub kept: bool,
    /// In words.
    pub why: String,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Labelled decisions.
    pub decisions: usize,
    /// Distinct labelled requests.
    pub requests: usize,
    /// Models whose decisions these are.
    pub models: Vec<String>,
    /// The aim in words.
    pub aim: String,
    /// Each part.
    pub parts: Vec<Fitted>,
    /// What is left to apply.
    pub change: PolicyChange,
    /// What is thin, or why nothing was tuned.
    pub notes: Vec<String>,
}

/// Counts `entries` under every policy.
fn count(entries: &[&Entry], labels: &Labels, policies: Vec<Policy>, config: &Config) -> Vec<OfSetting> {
    let settings = policies.into_iter().map(|p| Setting::new(String::new(), Axis::Extra, 0.0, p)).collect();
    let mut tally = Tally::new(settings, config);
    let wants = tally.wants_moves();
    for chunk in entries.chunks(1024) {
        let rows: Vec<_> = chunk.par_iter().map(|e| tally.judge(e, &labels.of(e), &wants)).collect();
        for row in rows {
            tally.add(row);
        }
    }
    tally.groups.into_values().max_by_key(|g| g.labelled).map(|g: Group| g.settings).unwrap_or_default()
}

/// A coordinate: its candidates as whole policies.
type Coordinate = Box<dyn Fn(&Policy) -> Vec<Policy>>;

fn weight_coordinates(policy: &Policy) -> Vec<Coordinate> {
    let names: Vec<&'static str> =
        policy.presets.get(&policy.default_preset).map(|p| p.weights.named().map(|(n, _)| n).to_vec()).unwrap_or_default();
    let mut out: Vec<Coordinate> = names
        .into_iter()
        .map(|name| -> Coordinate {
            Box::new(move |p: &Policy| {
                let base = p.presets.get(&p.default_preset).map(|x| x.weights.clone()).unwrap_or_default();
                [0.0, 0.05, 0.1, 0.2, 0.35, 0.6]
                    .iter()
                    .filter_map(|w| {
                        let mut weights = base.clone();
                        set(&mut weights, name, *w);
                        let sum: f32 = weights.named().iter().map(|(_, w)| w).sum();
                        (sum > 0.0).then(|| with_weights(p, weights))
                    })
                    .collect()
            })
        })
        .collect();
    out.push(Box::new(|p| [0.0, 0.02, 0.05, 0.1, 0.2].iter().map(|m| Policy { live_margin: *m, ..p.clone() }).collect()));
    out.push(Box::new(|p| {
        [0.0, 1.0, 2.0, 3.0, 5.0]
            .iter()
            .map(|c| {
                let mut p = p.clone();
                p.bonus.cooccurrence = *c;
                p
            })
            .collect()
    }));
    out
}

fn grid(from: f32, to: f32, steps: usize) -> Vec<f32> {
    (0..=steps).map(|i| ((from + (to - from) * i as f32 / steps as f32) * 1000.0).round() / 1000.0).collect()
}

/// Candidates of one threshold; `place` writes the point where it belongs.
fn threshold_coordinates(
    read: fn(&Policy, &str) -> OperatingPoint,
    place: fn(&mut Policy, &str, OperatingPoint),
    of: &str,
) -> Vec<Coordinate> {
    let one = |values: Vec<f32>, change: fn(&mut OperatingPoint, f32)| -> Coordinate {
        let of = of.to_string();
        Box::new(move |p: &Policy| {
            values
                .iter()
                .map(|v| {
                    let mut point = read(p, &of);
                    change(&mut point, *v);
                    let mut p = p.clone();
                    place(&mut p, &of, point);
                    p
                })
                .collect()
        })
    };
    vec![
        one(grid(0.3, 0.99, 46), |p, v| {
            p.auto = v;
            p.auto_learned = None;
            p.suggest = p.suggest.min(v);
        }),
        one(grid(0.02, 0.6, 29), |p, v| {
            p.suggest = v;
            p.auto = p.auto.max(v);
        }),
        one(vec![0.0, 0.05, 0.1, 0.15, 0.2, 0.3], |p, v| p.auto_margin = v),
    ]
}

fn whole_point(policy: &Policy, _: &str) -> OperatingPoint {
    point_of(policy)
}

fn put_whole(policy: &mut Policy, _: &str, point: OperatingPoint) {
    policy.point = Some(point);
}

fn own_point(policy: &Policy, namespace: &str) -> OperatingPoint {
    policy.points.get(namespace).cloned().unwrap_or_else(|| point_of(policy))
}

fn put_own(policy: &mut Policy, namespace: &str, point: OperatingPoint) {
    policy.points.insert(namespace.to_string(), point);
}

/// Climbs coordinate by coordinate on the requests to fit on. Equal worth keeps what is.
fn climb(entries: &[&Entry], labels: &Labels, start: &Policy, coordinates: &[Coordinate], aim: &Aim, config: &Config) -> Policy {
    let mut best = start.clone();
    for _ in 0..ROUNDS {
        let before = best.clone();
        for coordinate in coordinates {
            let mut candidates = vec![best.clone()];
            candidates.extend(coordinate(&best).into_iter().filter(|p| *p != best));
            let counted = count(entries, labels, candidates.clone(), config);
            let worths: Vec<f64> = counted.iter().map(|c| aim.worth(&c.fit.data)).collect();
            let Some((place, _)) = worths.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))) else { continue };
            best = candidates.swap_remove(place);
        }
        if best == before {
            break;
        }
    }
    best
}

/// Judges a fitted policy on the held-out requests.
fn judge(part: String, entries: &[&Entry], labels: &Labels, before: &Policy, after: &Policy, aim: &Aim, config: &Config) -> Option<Fitted> {
    let counted = count(entries, labels, vec![before.clone(), after.clone()], config);
    let [b, a] = counted.as_slice() else { return None };
    let figures = |p: &Part| Figures::of(&p.data, &p.resamples());
    let gain = gain(&b.held, &a.held, |c| Some(aim.worth(c)));
    let same = before == after;
    let kept = !same && gain.1 > 0.0;
    let why = if same {
        "nothing better was found".to_string()
    } else if kept {
        format!("the gain on held-out requests is {:.3}, at least {:.3}", gain.0, gain.1)
    } else {
        format!("the gain on held-out requests is {:.3}, but may be as low as {:.3}: not kept", gain.0, gain.1)
    };
    Some(Fitted {
        part,
        before: figures(&b.fit),
        after: figures(&a.fit),
        held_before: figures(&b.held),
        held_after: figures(&a.held),
        gain,
        kept,
        why,
    })
}

fn namespace_of(entry: &Entry) -> Option<&str> {
    entry.logged.decision.candidates.first().map(|c| c.agent.namespace.as_str())
}

/// Fits what can be fitted. `entries` may hold unlabelled ones and those of other models; they are left out.
pub fn tune(
    entries: &[Entry],
    labels: &Labels,
    current: &Policy,
    aim: &Aim,
    config: &Config,
    mut tick: impl FnMut(&str),
) -> Result<Tuned, Error> {
    let mut by_models: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|e| labels.of(e).is_known()) {
        by_models.entry(entry.logged.decision.generations.models.join(" + ")).or_default().push(entry);
    }
    let (models, known) = by_models.into_iter().max_by_key(|(_, e)| e.len()).unwrap_or_default();
    let models: Vec<String> = models.split(" + ").filter(|m| !m.is_empty()).map(str::to_string).collect();
    let requests = |entries: &[&Entry]| {
        let texts: std::collections::HashSet<&str> = entries.iter().map(|e| e.text.as_deref().unwrap_or(&e.id).trim()).collect();
        texts.len()
    };
    let mut out = Tuned {
        decisions: known.len(),
        requests: requests(&known),
        models: models.clone(),
        aim: aim.to_string(),
        parts: Vec::new(),
        change: PolicyChange::default(),
        notes: Vec::new(),
    };
    if out.requests < LEAST {
        out.notes.push(format!("too little evidence: {} distinct labelled requests, {LEAST} are the least", out.requests));
        return Ok(out);
    }
    let mut policy = current.clone();
    if !current.holds_for(&models) {
        out.notes.push(format!(
            "the thresholds in force were fitted for {}, not for the models of these decisions: the shipped ones were taken to start from",
            current.fitted_for.join(", ")
        ));
        policy = current.without_points();
    }

    tick("weights");
    let ranking = Aim { limits: Vec::new(), most: Metric::Top1 };
    let fitted = climb(&known, labels, &policy, &weight_coordinates(&policy), &ranking, config);
    if let Some(part) = judge("weights".into(), &known, labels, &policy, &fitted, &ranking, config) {
        if part.kept {
            policy = fitted;
        }
        out.parts.push(part);
    }

    let negative = |e: &&&Entry| {
        let t = labels.of(e);
        t.nobody || !t.wrong.is_empty()
    };
    if known.iter().filter(negative).count() == 0 {
        out.notes.push(
            "no negatives, cannot fit thresholds: add requests that nobody can do, or outcomes such as rejected and overridden".into(),
        );
    } else {
        tick("thresholds");
        let coordinates = threshold_coordinates(whole_point, put_whole, "");
        let fitted = climb(&known, labels, &policy, &coordinates, aim, config);
        if let Some(part) = judge("thresholds".into(), &known, labels, &policy, &fitted, aim, config) {
            if part.kept {
                policy = Policy { fitted_for: models.clone(), ..fitted };
            }
            out.parts.push(part);
        }
        let mut of_namespace: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &known {
            if let Some(namespace) = namespace_of(entry) {
                of_namespace.entry(namespace).or_default().push(entry);
            }
        }
        for (namespace, own) in of_namespace.iter().filter(|(_, own)| requests(own) >= LEAST_OF_NAMESPACE) {
            tick(namespace);
            let coordinates = threshold_coordinates(own_point, put_own, namespace);
            let fitted = climb(own, labels, &policy, &coordinates, aim, config);
            if let Some(part) = judge(format!("thresholds of {namespace}"), own, labels, &policy, &fitted, aim, config) {
                if part.kept {
                    policy = Policy { fitted_for: models.clone(), ..fitted };
                }
                out.parts.push(part);
            }
        }
        let few = of_namespace.len() - of_namespace.values().filter(|own| requests(own) >= LEAST_OF_NAMESPACE).count();
        if few > 0 {
            out.notes.push(format!(
                "{few} namespaces have fewer than {LEAST_OF_NAMESPACE} distinct labelled requests and keep the common point"
            ));
        }
    }
    out.change = PolicyChange::between(current, &policy);
    if !out.change.points.is_empty() && out.change.point.is_none() {
        // a point of a namespace stands on the common one as it was when it was fitted
        out.change.point = Some(point_of(&policy));
    }
    if out.change.point.is_some() {
        out.change.fitted_for = models;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::replay::settings;
    use crate::eval::replay::testing::{planted_threshold, planted_weights};

    fn config() -> Config {
        Config { seed: 7, holdout: 0.3, aim: Aim::default(), moves: 0, swept: Vec::new() }
    }

    #[test]
    fn planted_weights_win_and_are_kept() {
        let current = Policy { explore: 0.0, ..Policy::default() };
        let planted = settings::weights(&current).into_iter().find(|s| s.name.contains("health = 0.6")).unwrap();
        let (entries, labels) = planted_weights(3, 250, &planted.policy, &current);
        let tuned = tune(&entries, &labels, &current, &Aim::default(), &config(), |_| {}).unwrap();
        let weights = &tuned.parts[0];
        assert!(weights.kept, "{}", weights.why);
        let held = |f: &Figures| f.top1.unwrap().value;
        assert!(held(&weights.held_after) > held(&weights.held_before) + 0.05, "{weights:?}");
        let preset = &tuned.change.presets["balanced"].weights;
        assert!(preset.health > preset.load && preset.health > preset.latency, "{preset:?}");
        // positives alone: weights may be fitted, thresholds not (PEERS T2)
        assert!(tuned.notes.iter().any(|n| n.contains("no negatives")) && tuned.change.point.is_none());
    }

    #[test]
    fn a_planted_threshold_wins_is_kept_and_names_its_models() {
        let (entries, labels) = planted_threshold(11, 500, 0.6);
        let aim: Aim = "auto precision >= 0.97".parse().unwrap();
        let tuned = tune(&entries, &labels, &Policy::default(), &aim, &config(), |_| {}).unwrap();
        let point = tuned.change.point.as_ref().unwrap();
        assert!((point.auto - 0.6).abs() < 0.06, "{point:?}");
        assert_eq!(tuned.change.fitted_for, ["fake/int8/1"]);
    }

    /// Thresholds of other models are no start, and what is fitted does not go on naming those models.
    #[test]
    fn tuning_starts_from_the_shipped_point_where_that_in_force_is_of_other_models() {
        let (entries, labels) = planted_threshold(11, 500, 0.6);
        let aim: Aim = "auto precision >= 0.97".parse().unwrap();
        let foreign = Policy {
            point: Some(OperatingPoint { auto: 0.0, suggest: 0.0, auto_margin: 0.3, ..OperatingPoint::default() }),
            fitted_for: vec!["fake/int8/1".into(), "another".into()],
            ..Policy::default()
        };
        let of = |current: &Policy| tune(&entries, &labels, current, &aim, &config(), |_| {}).unwrap();
        let (tuned, plain) = (of(&foreign), of(&Policy::default()));
        assert_eq!((&tuned.change.point, &tuned.change.fitted_for), (&plain.change.point, &vec!["fake/int8/1".to_string()]));
        assert!(tuned.notes.iter().any(|n| n.contains("another")), "{:?}", tuned.notes);
    }

    #[test]
    fn what_does_not_win_is_not_applied() {
        // outcomes that have nothing to do with the weights
        let current = Policy { explore: 0.0, ..Policy::default() };
        let (entries, labels) = planted_weights(5, 120, &current, &current);
        let tuned = tune(&entries, &labels, &current, &Aim::default(), &config(), |_| {}).unwrap();
        assert!(tuned.change.is_empty(), "{:?}", tuned.change);
        let (few, labels) = planted_threshold(1, 30, 0.7);
        let tuned = tune(&few, &labels, &current, &Aim::default(), &config(), |_| {}).unwrap();
        assert!(tuned.parts.is_empty() && tuned.notes[0].contains("too little evidence"));
    }
}
