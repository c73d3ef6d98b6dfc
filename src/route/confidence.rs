//! How sure: the probability that the best candidate is right, and that anybody here can do it. Out of scope counts as wrong.
//!
//! In: the rows and fused scores of one query, best first, and facts of the recall. Out: two calibrated probabilities.
//! A fused score says nothing across queries; this reads margins, how unusual the best cosine is for the model, word coverage, agreement of
//! the arms and likeness to talk. Fitted for the models that `weights/confidence.json` names, and believed for weights that are proven to be theirs
//! (`embed::golden`); for any other model the decision says `uncalibrated`.

use crate::embed::ModelInfo;
use crate::route::features;
use crate::route::fusion::shares;
use crate::route::recall::Recall;
use crate::route::scorer::{Scorer, sigmoid};
use crate::types::policy::OperatingPoint;
use crate::view::View;
use serde::Deserialize;
use std::sync::LazyLock;

/// Features taken over from the best candidate's row.
const OF_TOP: &[&str] = &[
    "pool_mean",
    "pool_dense",
    "over_pool",
    "absolute",
    "bm25",
    "covered",
    "cov_name",
    "cov_description",
    "cov_example",
    "name_covered",
    "name_run",
    "name_grams",
    "grams",
    "rank_dense",
    "rank_words",
    "gap_dense",
    "z_dense",
    "z_mean",
    "z_bm25",
    "q_words",
    "q_known",
    "q_covered",
    "q_margin_dense",
    "q_margin_words",
    "q_fleet",
    "q_examples",
    "q_schema",
    "q_agree",
];

/// Places of [`OF_TOP`] in a row.
static PLACES: LazyLock<Vec<Option<usize>>> = LazyLock::new(|| OF_TOP.iter().map(|n| features::index(n)).collect());

/// Probability of the best candidate from which on it is no question whether anybody fits.
const SURE: f32 = 0.65;

/// Names of the features of a confidence, in order.
pub const NAMES: &[&str] = &[
    "pool_mean",
    "pool_dense",
    "over_pool",
    "absolute",
    "bm25",
    "covered",
    "cov_name",
    "cov_description",
    "cov_example",
    "name_covered",
    "name_run",
    "name_grams",
    "grams",
    "rank_dense",
    "rank_words",
    "gap_dense",
    "z_dense",
    "z_mean",
    "z_bm25",
    "q_words",
    "q_known",
    "q_covered",
    "q_margin_dense",
    "q_margin_words",
    "q_fleet",
    "q_examples",
    "q_schema",
    "q_agree",
    "fused",
    "lead",
    "share_1",
    "share_2",
    "share_3",
    "entropy",
    "talk",
    "fleet_z",
    "over_talk_ceiling",
    "over_foreign_talk",
    "reach",
];

/// Both heads, the models they were fitted for, and the operating point.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Models (by name in the catalogue) whose scores it was fitted on.
    pub models: Vec<String>,
    /// Logit that the best candidate is right.
    pub right: Scorer,
    /// Logit that any candidate is right.
    pub in_scope: Scorer,
    /// Where `auto`, `suggest` and `none` begin.
    pub point: OperatingPoint,
}

impl Calibration {
    /// Whether it was fitted for a model: by its name, and by what its weights make of a few texts.
    fn knows(&self, model: &ModelInfo) -> bool {
        model.proven && self.models.iter().any(|m| **m == *model.name)
    }

    fn parse(json: &str) -> Result<Self, String> {
        let mut c: Self = serde_json::from_str(json).map_err(|e| e.to_string())?;
        c.right = c.right.bound(NAMES)?;
        c.in_scope = c.in_scope.bound(NAMES)?;
        Ok(c)
    }
}

static SHIPPED: LazyLock<Option<Calibration>> = LazyLock::new(|| Calibration::parse(include_str!("weights/confidence.json")).ok());

/// The shipped operating point.
pub fn shipped_point() -> OperatingPoint {
    SHIPPED.as_ref().map_or_else(OperatingPoint::shipped, |c| c.point.clone())
}

/// Whether the shipped calibration was fitted for every model that was asked. The precision of the encoder does not matter: it is bounded by
/// its own accuracy test.
pub fn covers(view: &View, recall: &Recall) -> bool {
    SHIPPED.as_ref().is_some_and(|c| {
        let known = |a: &crate::view::Arm| c.knows(&a.model);
        if recall.arms.is_empty() {
            // nothing was found: no model had a say, and none would have been unknown
            return !view.arms.is_empty() && view.arms.iter().all(known);
        }
        recall.arms.iter().filter_map(|u| view.arms.get(u.arm)).all(known)
    })
}

/// Whether the shipped calibration was fitted for these models, all of them.
pub fn knows<'m>(mut models: impl Iterator<Item = &'m ModelInfo>) -> bool {
    SHIPPED.as_ref().is_some_and(|c| models.all(|m| c.knows(m)))
}

/// Probabilities for one query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Confidence {
    /// The best candidate is right, 0..=1.
    pub right: f32,
    /// Anybody here can do it, 0..=1, where requests in and out of scope are equally common; not under `right` where that is at least 0.65.
    pub in_scope: f32,
    /// What they were computed from, in the order of [`NAMES`].
    pub features: Vec<f32>,
}

/// Where the best of a fleet must lie over what talk reaches on the same fleet, and over the likeness to talk that the fleet does not answer, both in
/// model spreads. Chosen by `eval/fit/fit_reach.py` on dev splits.
const REACH: (f32, f32) = (-0.70, -1.10);

/// Whether anybody is near enough at all: the lesser of two distances, for a request is out of scope when *either* nothing of the fleet is near to it
/// or talk is much nearer. A weighted sum can't say so: much of one would make up for none of the other.
fn reach(over_talk_ceiling: f32, over_foreign_talk: f32) -> f32 {
    (over_talk_ceiling - REACH.0).min(over_foreign_talk - REACH.1)
}

/// Features of the confidence. `order` = places of the rows, best first; `capability` tells rows of one capability apart from others, so that
/// several agents offering the same thing are no doubt about which thing it is.
pub fn features(
    recall: &Recall,
    view: &View,
    rows: &[[f32; features::COUNT]],
    fused: &[f32],
    order: &[usize],
    capability: impl Fn(usize) -> u64,
) -> Vec<f32> {
    let Some(top) = order.first().and_then(|i| rows.get(*i)) else { return vec![0.0; NAMES.len()] };
    let mut out: Vec<f32> = Vec::with_capacity(NAMES.len());
    out.extend(PLACES.iter().map(|place| place.and_then(|i| top.get(i)).copied().unwrap_or(0.0)));
    // one score a capability: its best agent's
    let mut distinct: Vec<(u64, f32)> = Vec::new();
    for i in order {
        let (c, s) = (capability(*i), fused.get(*i).copied().unwrap_or(f32::MIN));
        if !distinct.iter().any(|(d, _)| *d == c) {
            distinct.push((c, s));
        }
    }
    let scores: Vec<f32> = distinct.iter().map(|d| d.1).collect();
    let p = shares(&scores);
    let share = |i: usize| p.get(i).copied().unwrap_or(0.0);
    let lead = if scores.len() > 1 { (scores[0] - scores[1]).clamp(0.0, 12.0) } else { 12.0 };
    let entropy: f32 = p.iter().filter(|p| **p > 1e-9).map(|p| -p * p.ln()).sum();
    let best_arm =
        recall.arms.iter().position(|a| a.lead).or_else(|| recall.arms.iter().position(|a| !a.cross)).or(recall.arms.first().map(|_| 0));
    // the best of all candidates, in whatever order they stand
    let scope = best_arm.and_then(|at| recall.arms.get(at).map(|used| (at, used))).map_or([0.0; 3], |(at, used)| {
        let Some(arm) = view.arms.get(used.arm) else { return [0.0; 3] };
        let best = recall.found.iter().filter_map(|f| f.dense.get(at).copied().flatten()).map(|e| e.dense).fold(f32::MIN, f32::max);
        if best == f32::MIN {
            return [-8.0; 3];
        }
        let over = |what: f32| ((best - what) / arm.background.spread).clamp(-8.0, 8.0);
        let (talk_ceiling, foreign) = (over(used.talk_ceiling), over(used.foreign_talk));
        [talk_ceiling, foreign, reach(talk_ceiling, foreign)]
    });
    let best_arm = best_arm.and_then(|at| recall.arms.get(at));
    let (talk, fleet_z) = best_arm.and_then(|used| view.arms.get(used.arm).map(|arm| (used, arm))).map_or((0.0, 0.0), |(used, arm)| {
        let dense = order
            .first()
            .and_then(|i| recall.found.get(*i))
            .and_then(|f| f.dense.iter().flatten().next())
            .map_or(used.fleet.0, |e| e.dense);
        let z = if used.fleet.1 > 1e-4 { (dense - used.fleet.0) / used.fleet.1 } else { 0.0 };
        (((dense - used.talk) / arm.background.spread).clamp(-8.0, 8.0), z.clamp(-4.0, 12.0))
    });
    out.extend([scores[0].clamp(-30.0, 30.0), lead, share(0), share(1), share(2), entropy, talk, fleet_z]);
    out.extend(scope);
    out
}

/// What counts where outcomes or examples speak: constant, logit of the best one's share after learning, and the two logits without learning.
/// Fitted by `eval/fit/fit_learned.py` on dev splits after up to 10 and 50 outcomes of train splits, and with examples.
const LEARNED: [f32; 4] = [0.25, 1.322, 0.017, 0.415];

/// Probabilities where learning had a say. `evidence` of the best candidate, 0..1, is how far its share after learning is believed; `nobody` =
/// probability that nobody can do it, by reports; learning makes the best no surer than `most`: in a small fleet, where shares say nothing (see [`of`]), than the text is in scope.
pub fn with_learned(mut confidence: Confidence, evidence: f32, nobody: f32, most: f32) -> Confidence {
    if evidence > 0.0 {
        let logit = |p: f32| (p.clamp(1e-4, 1.0 - 1e-4) / (1.0 - p.clamp(1e-4, 1.0 - 1e-4))).ln();
        let share = NAMES.iter().position(|n| *n == "share_1").and_then(|i| confidence.features.get(i)).copied().unwrap_or(0.0);
        let (right, in_scope) = (logit(confidence.right), logit(confidence.in_scope));
        let learned = LEARNED[0] + LEARNED[1] * logit(share) + LEARNED[2] * right + LEARNED[3] * in_scope;
        confidence.right = sigmoid((1.0 - evidence) * right + evidence * learned).min(most);
        confidence.in_scope = confidence.in_scope.max(confidence.right);
    }
    confidence.right *= 1.0 - nobody;
    confidence.in_scope *= 1.0 - nobody;
    confidence
}

/// How far doubt that anybody can do it is doubt that the best is right: constant, weight of the right head's logit, weight of the scope head's where
/// that is below 0. The right head was fitted where hardly anything was out of scope; fitted by `eval/fit/fit_doubt.py` on dev splits in which 15 % are.
const DOUBT: [f32; 3] = [0.03, 1.008, 0.408];

/// Probabilities from the features. In a `small` fleet leads and shares say nothing, for there is hardly anybody to lead: the best is right at most as
/// surely as anybody is.
pub fn of(features: Vec<f32>, small: bool) -> Confidence {
    let Some(c) = SHIPPED.as_ref() else { return Confidence { features, ..Confidence::default() } };
    let (plain, of_scope) = (c.right.score(&features), c.in_scope.score(&features));
    let (right, scope) = (sigmoid(DOUBT[0] + DOUBT[1] * plain + DOUBT[2] * of_scope.min(0.0)), sigmoid(of_scope));
    if small {
        return Confidence { right: right.min(scope), in_scope: scope, features };
    }
    // whether anybody fits is not doubted twice
    let in_scope = if sigmoid(plain) >= SURE { scope.max(sigmoid(plain)) } else { scope };
    Confidence { right, in_scope, features }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a configuration leaves out of a point is what was fitted: after a refit the numbers of `OperatingPoint::shipped` (and reach.toml) follow.
    #[test]
    fn the_shipped_point_is_that_of_the_calibration() {
        assert_eq!(SHIPPED.as_ref().unwrap().point, OperatingPoint::shipped());
    }

    #[test]
    fn learning_moves_the_confidence_by_its_evidence_and_nothing_else() {
        let mut features = vec![0.0; NAMES.len()];
        features[NAMES.iter().position(|n| *n == "share_1").unwrap()] = 0.99;
        let plain = Confidence { right: 0.6, in_scope: 0.8, features };
        assert_eq!(with_learned(plain.clone(), 0.0, 0.0, 1.0), plain);
        let (some, much) = (with_learned(plain.clone(), 0.3, 0.0, 1.0), with_learned(plain.clone(), 0.95, 0.0, 1.0));
        assert!(plain.right < some.right && some.right < much.right && much.right > 0.95, "{some:?} {much:?}");
        assert!(much.in_scope >= much.right);
        assert!(with_learned(plain.clone(), 0.95, 0.9, 1.0).right < 0.11);
        let doubtful = Confidence { right: 0.1, in_scope: 0.2, ..plain };
        assert!(with_learned(doubtful.clone(), 0.95, 0.0, 0.2).right <= 0.2 && with_learned(doubtful, 0.95, 0.0, 1.0).right > 0.5);
    }

    #[test]
    fn who_is_hardly_in_scope_is_hardly_right() {
        let at = |reach: f32| {
            let mut features = vec![0.0; NAMES.len()];
            for (name, value) in [("lead", 12.0), ("share_1", 1.0), ("pool_dense", 5.0), ("absolute", 5.0), ("reach", reach)] {
                features[NAMES.iter().position(|n| *n == name).unwrap()] = value;
            }
            of(features, false)
        };
        let (near, nearer, far) = (at(3.0), at(6.0), at(-2.0));
        assert_eq!(near.right, nearer.right, "above even odds more says nothing more");
        assert!(far.right < near.right - 0.05, "{far:?} {near:?}");
        assert_eq!(far.in_scope, near.in_scope, "whether anybody fits is not doubted twice");
    }

    #[test]
    fn the_shipped_calibration_is_sound() {
        let c = Calibration::parse(include_str!("weights/confidence.json")).unwrap();
        assert!(c.models.iter().any(|m| m == "bge-small-zh-v1.5"));
        assert!(c.point.auto > c.point.suggest);
        assert!(NAMES.starts_with(OF_TOP) && OF_TOP.iter().all(|n| features::index(n).is_some()));
    }
}
