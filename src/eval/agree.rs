//! Before models are swapped: how the new ones agree with those in use on recent requests, and thresholds refitted for them by replay.
//!
//! In: a View of each, recent logged decisions with their texts, labels. Out: an [`Agreement`], as data. Both Views decide the same requests now, over the
//! same fleet; only the models differ. Not here: the swap itself (`ingest`, `app`).

use crate::clock::Clock;
use crate::error::Error;
use crate::eval::replay::aim::Aim;
use crate::eval::replay::entry::{Entry, Raw};
use crate::eval::replay::figures::Figures;
use crate::eval::replay::labels::Labels;
use crate::eval::replay::recommend::{Advice, Recommended};
use crate::eval::replay::settings::{self, Axis, Sweep, point_of};
use crate::eval::replay::{self};
use crate::route::confidence;
use crate::route::logged::{Answer, Body, Logged, Who};
use crate::route::resolver::{DecisionSink, Resolver, ResolverConfig};
use crate::route::shortlist::Shortlist;
use crate::types::decision::{Decision, DecisionKind};
use crate::types::policy::{OperatingPoint, Policy, PolicyChange};
use crate::types::query::Query;
use crate::types::request::ResolveRequest;
use crate::view::{View, Views};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Requests shown on which the models differ.
const SHOWN: usize = 20;

/// Said when labels don't move thresholds.
const KEPT: &str = "; the thresholds shipped with these models are kept";

/// The fit that is taken, if any, and what should be known of it. One that may be luck takes the place of the shipped thresholds only where none were
/// shipped for the models (`known`).
fn taken<'a>(advice: &'a Advice, aim: &Aim, known: bool) -> (Option<&'a Recommended>, Option<String>) {
    match &advice.recommended {
        Some(r) if r.surely => (Some(r), None),
        Some(r) if known => {
            (None, Some(format!("the labels are too thin to refit thresholds: {}{KEPT}", doubts(aim, &advice.why, &r.chosen_on))))
        }
        Some(r) => (Some(r), Some(doubts(aim, &advice.why, &r.chosen_on))),
        None => (None, Some(if known { format!("{}{KEPT}", advice.why) } else { advice.why.clone() })),
    }
}

/// Why a fit is not sure: the bounds of the figures that are limited.
fn doubts(aim: &Aim, why: &str, f: &Figures) -> String {
    let bounds = aim.limits.iter().filter_map(|l| {
        let s = f.get(l.metric)?;
        Some(format!("{} between {:.2} and {:.2} on {} decisions", l.metric.name(), s.low, s.high, s.of))
    });
    format!("{why} ({})", bounds.collect::<Vec<_>>().join(", "))
}

/// How thresholds for the new models were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Fitted to labels of recent requests, for the aim.
    Labels,
    /// The calibration that ships was fitted for these models.
    Shipped,
    /// Only so that the shares of `auto` and `none` stay what they are.
    Shares,
}

/// A request on which they differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Differs {
    /// Text.
    pub query: String,
    /// Answer of the models in use.
    pub now: String,
    /// Answer of the new ones.
    pub then: String,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Recent requests asked.
    pub requests: usize,
    /// Share with the same first capability (of those that have one).
    pub same_first: Option<f64>,
    /// Share with the same answer (`auto`, `suggest`, `none`), at the refitted thresholds.
    pub same_answer: Option<f64>,
    /// Some on which they differ.
    pub differs: Vec<Differs>,
    /// How thresholds were found.
    pub how: How,
    /// The thresholds.
    pub point: OperatingPoint,
    /// What is put in force with the models.
    pub change: PolicyChange,
    /// Figures of the models in use on labelled requests, under the policy in force.
    pub figures_now: Option<Figures>,
    /// Figures of the new ones: at refitted thresholds on the half they were not chosen on, at shipped ones on all labelled requests.
    pub figures_then: Option<Figures>,
    /// What should be known.
    pub notes: Vec<String>,
}

#[derive(Default)]
struct Last(Mutex<Option<Body>>);

impl DecisionSink for Last {
    fn take(&self, query: &Query, list: &Shortlist, decision: &Decision, policy: &Policy) {
        *self.0.lock() = Some(Body::of(query, list, decision, policy, true));
    }
}

/// Decides the texts of `entries` on a View.
async fn decide(view: Arc<Views>, clock: Arc<dyn Clock>, entries: &[Entry], tick: &mut (dyn FnMut() + Send)) -> Result<Vec<Entry>, Error> {
    let last = Arc::new(Last::default());
    let resolver = Resolver::new(view, clock, Some(last.clone()), ResolverConfig { local: false, ..ResolverConfig::default() });
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        let request = ResolveRequest {
            query: entry.text.clone().unwrap_or_default(),
            preset: entry.logged.preset.clone(),
            k: u32::try_from(entry.logged.k).ok(),
            seed: Some(entry.logged.seed),
            fallback: Some(false),
            ..ResolveRequest::default()
        };
        // what can't be decided now (a text that is refused) is left out on both sides, because both fail alike
        if resolver.resolve(&entry.logged.principal, &request).await.is_ok()
            && let Some(body) = last.0.lock().take()
        {
            let logged: Logged = serde_json::from_value(body.json()).map_err(Error::internal)?;
            out.push(Entry { logged, ..entry.clone() });
        }
        tick();
    }
    Ok(out)
}

fn count(entries: &[Entry], policy: &Policy, kind: DecisionKind) -> usize {
    entries.iter().filter(|e| e.logged.repick(policy).kind == kind).count()
}

/// Thresholds with which the new models answer `auto` and `none` as often as those in use.
fn by_shares(now: &[Entry], then: &[Entry], policy: &Policy) -> OperatingPoint {
    let wanted = |kind| count(now, policy, kind);
    let grid = |from: u32, to: u32| (from..=to).map(|i| i as f32 / 100.0);
    let with = |point: &OperatingPoint| Policy {
        point: Some(point.clone()),
        points: Default::default(),
        fitted_for: Vec::new(),
        ..policy.clone()
    };
    let mut point = point_of(policy);
    let nones = wanted(DecisionKind::None);
    let nearest = |candidates: Vec<OperatingPoint>, kind, target: usize| {
        candidates.into_iter().min_by_key(|p| count(then, &with(p), kind).abs_diff(target))
    };
    let suggests = grid(0, 60).map(|s| OperatingPoint { suggest: s, auto: point.auto.max(s), ..point.clone() }).collect();
    point = nearest(suggests, DecisionKind::None, nones).unwrap_or(point);
    let autos = grid(20, 99).map(|a| OperatingPoint { auto: a.max(point.suggest), auto_learned: None, ..point.clone() }).collect();
    nearest(autos, DecisionKind::Auto, wanted(DecisionKind::Auto)).unwrap_or(point)
}

fn shown(answer: &Answer) -> String {
    let who: Option<&Who> = answer.candidates.first().filter(|_| answer.kind != DecisionKind::None);
    who.map_or_else(|| answer.kind.as_str().to_string(), |w| format!("{} {} {}", answer.kind.as_str(), w.agent, w.capability))
}

fn replayed(entries: &[Entry], labels: &Labels, policy: &Policy, config: &replay::Config) -> Result<replay::report::Report, Error> {
    let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
    replay::replay(source, labels, policy, settings::of(&config.swept, policy), config, |_| {})
}

/// Compares the models of two Views on recent decisions and refits thresholds. `now` is the View in use.
pub async fn agree(
    now: Arc<View>,
    then: View,
    clock: Arc<dyn Clock>,
    recent: &[Entry],
    labels: &Labels,
    aim: &Aim,
    tick: &mut (dyn FnMut() + Send),
) -> Result<Agreement, Error> {
    let policy = (*now.policy).clone();
    let fingerprints: Vec<String> = then.models.fingerprints().iter().map(ToString::to_string).collect();
    let known = confidence::knows(then.models.arms().map(|(_, i)| i));
    let (old, new) = (Arc::new(Views::new(View::clone(&now))), Arc::new(Views::new(then)));
    let of_now = decide(old, clock.clone(), recent, tick).await?;
    let of_then = decide(new, clock, recent, tick).await?;
    let mut notes = Vec::new();
    if recent.is_empty() {
        notes.push("no recent request with its text is in the decision log: nothing could be compared".into());
    }
    notes.extend(labels.unfit(&of_then.iter().flat_map(|e| labels.about(e)).collect()));
    // thresholds of other models are no starting point
    let plain = policy.without_points();
    let config = replay::Config { seed: 7, holdout: 0.5, aim: aim.clone(), moves: 0, swept: vec![Sweep::Threshold] };
    let labelled = of_then.iter().any(|e| labels.of(e).is_known());
    let (mut figures_now, mut figures_then, mut fitted) = (None, None, None);
    if labelled {
        let report = replayed(&of_then, labels, &plain, &config)?;
        let (taken, why) = taken(&report.advice, aim, known);
        notes.extend(why);
        if let Some(r) = taken {
            fitted = settings::with_base(&plain, settings::of(&config.swept, &plain)).into_iter().nth(r.index).map(|s| point_of(&s.policy));
            figures_then.clone_from(&r.held_out);
        }
        if fitted.is_none() && known {
            figures_then = report.settings.iter().find(|s| s.axis == Axis::Current).map(|s| s.figures.clone());
        }
        notes.extend(report.advice.thin.clone());
        let in_use = replayed(&of_now, labels, &policy, &replay::Config { swept: Vec::new(), ..config })?;
        figures_now = in_use.settings.iter().find(|s| s.axis == Axis::Current).map(|s| s.figures.clone());
    }
    let (how, point) = match fitted {
        Some(point) => (How::Labels, point),
        None if known => (How::Shipped, confidence::shipped_point()),
        None => {
            notes.push(
                "no labels to fit thresholds to: they only keep the shares of auto and none; give labels, or expect confidence to mean little".into(),
            );
            (How::Shares, by_shares(&of_now, &of_then, &policy))
        }
    };
    // thresholds that only keep shares name no models: they hold, and decisions go on saying `uncalibrated`
    let fitted_for = if how == How::Shares { Vec::new() } else { fingerprints };
    let change = PolicyChange { point: Some(point.clone()), fitted_for, ..PolicyChange::default() };
    let under = change.apply(&plain);
    let of_then: HashMap<&str, &Entry> = of_then.iter().map(|e| (e.id.as_str(), e)).collect();
    let (mut firsts, mut same_first, mut same_answer, mut differs) = (0usize, 0usize, 0usize, Vec::new());
    for (a, b) in of_now.iter().filter_map(|a| Some((a, of_then.get(a.id.as_str())?))) {
        let again = b.logged.repick(&under);
        let first = again.candidates.first().map(|c| Who { agent: c.agent.clone(), capability: c.capability.clone() });
        let before = a.logged.decision.candidates.first();
        if before.is_some() || first.is_some() {
            firsts += 1;
            same_first += usize::from(before.map(|w| &w.capability) == first.as_ref().map(|w| &w.capability));
        }
        same_answer += usize::from(a.logged.decision.kind == again.kind);
        let then = Answer { kind: again.kind, candidates: first.into_iter().collect(), ..b.logged.decision.clone() };
        let (now, then) = (shown(&a.logged.decision), shown(&then));
        if now != then && differs.len() < SHOWN {
            differs.push(Differs { query: a.text.clone().unwrap_or_default(), now, then });
        }
    }
    let share = |part: usize, of: usize| (of > 0).then(|| part as f64 / of as f64);
    Ok(Agreement {
        requests: of_then.len(),
        same_first: share(same_first, firsts),
        same_answer: share(same_answer, of_then.len()),
        differs,
        how,
        point,
        change,
        figures_now,
        figures_then,
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::replay::testing::planted_threshold;

    /// A fit on few labels does not take the place of what ships with a model, and says why with its bounds; where nothing ships it is better than nothing.
    #[test]
    fn thin_labels_leave_the_shipped_thresholds() {
        let aim: Aim = "auto precision >= 0.9".parse().unwrap();
        let config = replay::Config { seed: 7, holdout: 0.5, aim: aim.clone(), moves: 0, swept: vec![Sweep::Threshold] };
        let of = |n: usize| {
            let (entries, labels) = planted_threshold(3, n, 0.7);
            replayed(&entries, &labels, &Policy::default(), &config).unwrap().advice
        };
        let few = of(60);
        let (kept, why) = taken(&few, &aim, true);
        let why = why.unwrap();
        assert!(
            kept.is_none() && why.contains("too thin") && why.contains("auto precision between 0.") && why.contains("are kept"),
            "{why}"
        );
        let (fitted, why) = taken(&few, &aim, false);
        assert!(fitted.is_some() && why.unwrap().contains("it may be luck"));
        let many = of(800);
        assert!(matches!(taken(&many, &aim, true), (Some(r), None) if r.surely));
    }
}
