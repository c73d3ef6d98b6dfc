//! What an operator decides: ranking presets, floors and thresholds, rules, the fallback agent. Plain data, swapped whole.

use crate::types::id::AgentKey;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weights of one ranking preset; a score is the sum of weight × value over the terms (DESIGN §5).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Calibrated similarity, 0..=1.
    pub semantic: f32,
    /// 1 − min(queue/max_queue, 1)·0.5, or the exponential fall of the gateway preset.
    pub load: f32,
    /// Success rate of the last minute.
    pub health: f32,
    /// clamp(1.5 − p50/ttl, 0, 1).
    pub latency: f32,
    /// 1 − in_flight/concurrency.
    pub capacity: f32,
    /// Recent share of acks.
    pub ack_rate: f32,
    /// Success over 24 h.
    pub success_24h: f32,
    /// Cheaper is higher.
    pub cost: f32,
    /// Share of adopted results.
    pub quality: f32,
}

impl Weights {
    /// Every field with its name, for checks and for tuning.
    pub fn named(&self) -> [(&'static str, f32); 9] {
        [
            ("semantic", self.semantic),
            ("load", self.load),
            ("health", self.health),
            ("latency", self.latency),
            ("capacity", self.capacity),
            ("ack_rate", self.ack_rate),
            ("success_24h", self.success_24h),
            ("cost", self.cost),
            ("quality", self.quality),
        ]
    }
}

/// How the load of an agent becomes the value of the `load` term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadCurve {
    /// 1 − min(queue/max_queue, 1)·0.5.
    #[default]
    Linear,
    /// 1 up to the knee at 0.7, then exp(−5·(load − 0.7)).
    Exponential,
}

/// A ranking preset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Preset {
    /// Weights of the terms.
    pub weights: Weights,
    /// Shape of the load term.
    pub load_curve: LoadCurve,
    /// A success rate under this takes `penalty` from the total; 0 = never.
    pub low_success: f32,
    /// What a low success rate costs.
    pub penalty: f32,
    /// An agent whose load is above this takes no new work; 0 = no limit.
    pub max_load: f32,
    /// p90 − p50 above this many milliseconds halves the agent's chance among equals; 0 = never.
    pub tail_spread_ms: f32,
}

/// Bounded extras on top of each preset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bonus {
    /// A preferred agent.
    pub preferred: f32,
    /// How much shared history multiplies the similarity by, at most (a caller all of whose work goes to one capability).
    pub cooccurrence: f32,
    /// Largest similarity that shared history may add.
    pub cooccurrence_cap: f32,
    /// Same tenant or domain.
    pub tenant: f32,
}

impl Default for Bonus {
    fn default() -> Self {
        Self { preferred: 0.1, cooccurrence: 3.0, cooccurrence_cap: 0.3, tenant: 0.02 }
    }
}

/// Where `auto`, `suggest` and `none` begin, on the calibrated scale. What a document leaves out is as shipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default = "OperatingPoint::shipped")]
pub struct OperatingPoint {
    /// Confidence from which the first candidate is delivered without asking.
    #[serde(serialize_with = "short")]
    pub auto: f32,
    /// The same where eight outcomes and more stand behind the first candidate: a confidence that rests on what this very fleet was asked can be
    /// trusted sooner. As `auto` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "short_if_any")]
    pub auto_learned: Option<f32>,
    /// Smallest lead over the next different capability for `auto`.
    #[serde(serialize_with = "short")]
    pub auto_margin: f32,
    /// Probability that a right one is among the candidates, from which they are suggested.
    #[serde(serialize_with = "short")]
    pub suggest: f32,
    /// Similarity floor on the calibrated scale (the original's 0.55 cosine).
    #[serde(serialize_with = "short")]
    pub floor: f32,
    /// How many candidates under the floor are kept for ranking.
    pub keep_under_floor: usize,
}

/// Writes 0.45 as 0.45: as a JSON value, single precision would be 0.44999998807907104. What is read back is the same number.
fn short<S: serde::Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.to_string().parse().unwrap_or(f64::from(*value)))
}

fn short_if_any<S: serde::Serializer>(value: &Option<f32>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => short(value, to),
        None => to.serialize_none(),
    }
}

impl Default for OperatingPoint {
    fn default() -> Self {
        Self { auto: 0.8, auto_learned: None, auto_margin: 0.1, suggest: 0.25, floor: 0.02, keep_under_floor: 2 }
    }
}

/// What outcomes must say for `auto_learned` to hold in full: eight of them, n / (n + 2).
const PROVEN: f32 = 0.8;

impl OperatingPoint {
    /// The point that was fitted with the shipped calibration: what holds where nothing else is said. A test of `route::confidence` holds it to the
    /// calibration's file.
    pub fn shipped() -> Self {
        Self { auto: 0.91, auto_learned: Some(0.81), auto_margin: 0.0, suggest: 0.2, floor: 0.01, keep_under_floor: 2 }
    }

    /// Confidence from which `auto` begins where outcomes say so much (0..=1) about the first candidate; from eight outcomes on it is `auto_learned`.
    pub fn auto_at(&self, proven: f32) -> f32 {
        self.auto + (self.auto_learned.unwrap_or(self.auto) - self.auto) * (proven / PROVEN).clamp(0.0, 1.0)
    }
}

/// What an operator rule does to the candidates it matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Only what some allow rule with the same callers matches may be used.
    Allow,
    /// Never used.
    Deny,
    /// Used, whatever the text says, if it passes the filter.
    Force,
    /// Open now, whatever its hours say.
    Open,
    /// Closed now, whatever its hours say.
    Close,
}

/// An operator rule. Every part that is given must match; empty parts match everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name, shown in reasons.
    pub name: String,
    /// What it does.
    pub action: RuleAction,
    /// Callers (globs).
    #[serde(default)]
    pub callers: Vec<String>,
    /// Namespaces (globs).
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Agents, `namespace/agent_id` (globs).
    #[serde(default)]
    pub agents: Vec<String>,
    /// Capabilities (globs over folded names).
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Words of the query, any of them, compared without case.
    #[serde(default)]
    pub words: Vec<String>,
}

/// The agent that takes what nobody fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Agent.
    pub agent: AgentKey,
    /// One of its capabilities.
    pub capability: String,
}

/// Everything a decision reads that an operator sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Generation, raised by each change.
    pub generation: u64,
    /// Preset of queries that name none.
    pub default_preset: String,
    /// Presets by name.
    pub presets: BTreeMap<String, Preset>,
    /// Extras.
    pub bonus: Bonus,
    /// Live terms reorder *different* capabilities only inside this much of calibrated similarity around the best; 1 gives the plain sum.
    pub live_margin: f32,
    /// Where the three answers begin; `None` = the point shipped with the calibration of the models in use.
    pub point: Option<OperatingPoint>,
    /// Where they begin when the first candidate belongs to a namespace that has enough evidence of its own.
    pub points: BTreeMap<String, OperatingPoint>,
    /// Fingerprints of the models that `point` and `points` were fitted for; empty = not said. With any other set of models in use they don't hold, and
    /// decisions say `uncalibrated`.
    pub fitted_for: Vec<String>,
    /// Operator rules, all of them applied.
    pub rules: Vec<Rule>,
    /// Fallback agent.
    pub fallback: Option<Fallback>,
    /// Share of routes on which an agent without data may win among equals, 0..=1.
    pub explore: f32,
    /// Largest number of candidates of one publisher (namespace) in an answer, when others are in it too; 0 = no limit.
    pub per_publisher: usize,
    /// Whether newcomers that look like another publisher's work, or like everything at once, lose score.
    pub guards: bool,
}

impl Default for Policy {
    fn default() -> Self {
        let weights = |pairs: &[(&str, f32)]| {
            let mut w = Weights::default();
            for (name, value) in pairs {
                match *name {
                    "semantic" => w.semantic = *value,
                    "load" => w.load = *value,
                    "health" => w.health = *value,
                    "latency" => w.latency = *value,
                    "capacity" => w.capacity = *value,
                    "ack_rate" => w.ack_rate = *value,
                    "success_24h" => w.success_24h = *value,
                    "cost" => w.cost = *value,
                    _ => w.quality = *value,
                }
            }
            w
        };
        let presets = BTreeMap::from([
            (
                "balanced".to_string(),
                Preset { weights: weights(&[("semantic", 0.5), ("load", 0.15), ("health", 0.2), ("latency", 0.15)]), ..Preset::default() },
            ),
            (
                "gateway".to_string(),
                Preset {
                    weights: weights(&[("semantic", 0.45), ("health", 0.2), ("load", 0.15), ("success_24h", 0.1), ("cost", 0.1)]),
                    load_curve: LoadCurve::Exponential,
                    low_success: 0.8,
                    penalty: 0.3,
                    max_load: 0.9,
                    tail_spread_ms: 1500.0,
                },
            ),
            (
                "reachability".to_string(),
                Preset { weights: weights(&[("health", 0.5), ("capacity", 0.3), ("ack_rate", 0.2)]), ..Preset::default() },
            ),
            (
                "quality".to_string(),
                Preset { weights: weights(&[("semantic", 0.3), ("quality", 0.6), ("health", 0.1)]), ..Preset::default() },
            ),
        ]);
        Self {
            generation: 1,
            default_preset: "balanced".into(),
            presets,
            bonus: Bonus::default(),
            live_margin: 0.05,
            point: None,
            points: BTreeMap::new(),
            fitted_for: Vec::new(),
            rules: Vec::new(),
            fallback: None,
            explore: 0.02,
            per_publisher: 0,
            guards: true,
        }
    }
}

/// Whether two lists of fingerprints name the same models. Thresholds fitted for two models beside each other don't hold where one of them is alone, for
/// its scores are weighed differently then.
pub fn same_models<A: AsRef<str>, B: AsRef<str>>(a: &[A], b: &[B]) -> bool {
    let set = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_string).collect::<std::collections::BTreeSet<_>>();
    set(&mut a.iter().map(AsRef::as_ref)) == set(&mut b.iter().map(AsRef::as_ref))
}

impl Policy {
    /// Whether its points hold with these models in use: they were fitted for the same ones, or don't say for which.
    pub fn holds_for<A: AsRef<str>>(&self, models: &[A]) -> bool {
        self.fitted_for.is_empty() || same_models(&self.fitted_for, models)
    }

    /// The policy without its points: what holds where they were fitted for other models.
    pub fn without_points(&self) -> Self {
        Self { point: None, points: BTreeMap::new(), fitted_for: Vec::new(), ..self.clone() }
    }
}

/// A fitted change of a policy, kept as a version: what is `None` or empty stays as configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyChange {
    /// Operating point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<OperatingPoint>,
    /// Operating points of namespaces.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub points: BTreeMap<String, OperatingPoint>,
    /// Fingerprints of the models the points were fitted for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fitted_for: Vec<String>,
    /// Presets, whole.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub presets: BTreeMap<String, Preset>,
    /// Preset of queries that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_preset: Option<String>,
    /// Window of live terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_margin: Option<f32>,
    /// Extras.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bonus: Option<Bonus>,
}

impl PolicyChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What makes `before` into `after`, as far as a change can say it.
    pub fn between(before: &Policy, after: &Policy) -> Self {
        let differs = |name: &String, preset: &Preset| before.presets.get(name) != Some(preset);
        Self {
            point: after.point.clone().filter(|_| after.point != before.point),
            points: if after.points == before.points { BTreeMap::new() } else { after.points.clone() },
            fitted_for: if after.fitted_for == before.fitted_for { Vec::new() } else { after.fitted_for.clone() },
            presets: after.presets.iter().filter(|(n, p)| differs(n, p)).map(|(n, p)| (n.clone(), p.clone())).collect(),
            default_preset: (after.default_preset != before.default_preset).then(|| after.default_preset.clone()),
            live_margin: (after.live_margin != before.live_margin).then_some(after.live_margin),
            bonus: (after.bonus != before.bonus).then(|| after.bonus.clone()),
        }
    }

    /// The policy with the change.
    pub fn apply(&self, to: &Policy) -> Policy {
        let mut out = to.clone();
        if self.point.is_some() || !self.points.is_empty() {
            out.point = self.point.clone().or(out.point);
            out.points.extend(self.points.clone());
            out.fitted_for.clone_from(&self.fitted_for);
        }
        out.presets.extend(self.presets.clone());
        if let Some(name) = self.default_preset.as_ref().filter(|n| out.presets.contains_key(*n)) {
            out.default_preset.clone_from(name);
        }
        out.live_margin = self.live_margin.unwrap_or(out.live_margin);
        out.bonus = self.bonus.clone().unwrap_or(out.bonus);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_written_as_short_as_they_were_meant() {
        let point = OperatingPoint { auto: 0.45, auto_learned: Some(0.7), suggest: 0.1, ..OperatingPoint::shipped() };
        let value = serde_json::to_value(&point).unwrap();
        assert!(value.to_string().contains("\"auto\":0.45,\"auto_learned\":0.7"), "{value}");
        assert_eq!(serde_json::from_value::<OperatingPoint>(value).unwrap(), point);
    }

    #[test]
    fn points_hold_for_the_same_models_and_no_others() {
        let policy = Policy { fitted_for: vec!["zh".into(), "en".into()], ..Policy::default() };
        assert!(policy.holds_for(&["en", "zh"]) && Policy::default().holds_for(&["any"]));
        for other in [&["zh"][..], &["zh", "en", "m3"], &["m3"], &[]] {
            assert!(!policy.holds_for(other), "{other:?}");
        }
    }

    #[test]
    fn a_change_is_what_lies_between() {
        let before = Policy::default();
        let mut after = before.clone();
        after.point = Some(OperatingPoint { auto: 0.9, ..OperatingPoint::default() });
        after.points.insert("hr".into(), OperatingPoint { auto: 0.7, ..OperatingPoint::default() });
        after.fitted_for = vec!["m".into()];
        after.live_margin = 0.1;
        if let Some(preset) = after.presets.get_mut("balanced") {
            preset.weights.health = 0.3;
        }
        let change = PolicyChange::between(&before, &after);
        assert_eq!((change.presets.len(), change.apply(&before)), (1, after));
        assert!(PolicyChange::between(&before, &before).is_empty() && PolicyChange::default().apply(&before) == before);
        let json = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<PolicyChange>(&json).unwrap(), change);
        let odd = PolicyChange { default_preset: Some("none such".into()), ..PolicyChange::default() };
        assert_eq!(odd.apply(&before).default_preset, before.default_preset);
    }
}
