//! The settings that a sweep tries: one change each of the current policy, and a few of two thresholds together.
//!
//! Invariant: names are stable and say the change in the words of the configuration (`policy.point.auto = 0.85`), so that a setting can be written down.

use crate::route::confidence;
use crate::types::policy::{OperatingPoint, Policy, Preset, Weights};
use serde::Serialize;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sweep {
    /// Where `auto` and `suggest` begin, and the lead that `auto` needs.
    Threshold,
    /// Weights of the ranking, the window of live terms, what history is worth.
    Weights,
    /// Every ranking preset.
    Preset,
}

/// What a setting changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Nothing: what was answered then.
    Logged,
    /// Nothing: the configuration as it is.
    Current,
    /// `policy.point.auto`.
    Auto,
    /// `policy.point.suggest`.
    Suggest,
    /// `policy.point.auto_margin`.
    Margin,
    /// `auto` and `suggest` together.
    Both,
    /// A weight of the preset.
    Weight,
    /// `policy.live_margin` or a bonus.
    Extra,
    /// The preset.
    Preset,
}

/// One setting.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The change in the words of the configuration.
    pub name: String,
    /// What it changes.
    pub axis: Axis,
    /// Place on the axis.
    pub at: f64,
    /// The whole policy.
    pub policy: Policy,
}

impl Setting {
    /// A setting of `axis` at `at`.
    pub fn new(name: String, axis: Axis, at: f64, policy: Policy) -> Self {
        Self { name, axis, at, policy }
    }

    /// The setting for decisions of models that the current points were not fitted for: serving takes the shipped point then, and a swept threshold goes
    /// over that one.
    pub fn elsewhere(&self) -> Self {
        let own = point_of(&self.policy);
        let mut point = confidence::shipped_point();
        match self.axis {
            Axis::Auto | Axis::Both => {
                (point.auto, point.auto_learned) = (own.auto, None);
                point.suggest = if self.axis == Axis::Both { own.suggest } else { point.suggest.min(own.auto) };
            }
            Axis::Suggest => {
                point.suggest = own.suggest;
                point.auto = point.auto.max(own.suggest);
                point.auto_learned = point.auto_learned.map(|v| v.max(own.suggest));
            }
            Axis::Margin => point.auto_margin = own.auto_margin,
            Axis::Logged | Axis::Current | Axis::Weight | Axis::Extra | Axis::Preset => {
                return Self { policy: self.policy.without_points(), ..self.clone() };
            }
        }
        Self { policy: Policy { point: Some(point), ..self.policy.without_points() }, ..self.clone() }
    }
}

/// The current operating point.
pub fn point_of(policy: &Policy) -> OperatingPoint {
    policy.point.clone().unwrap_or_else(confidence::shipped_point)
}

/// What was answered then, the current policy, and the settings to try, in this order.
pub fn with_base(current: &Policy, tried: Vec<Setting>) -> Vec<Setting> {
    let mut all = vec![
        Setting::new("as logged".into(), Axis::Logged, 0.0, current.clone()),
        Setting::new("current".into(), Axis::Current, 0.0, current.clone()),
    ];
    all.extend(tried);
    all
}

fn with_point(current: &Policy, change: impl Fn(&mut OperatingPoint)) -> Policy {
    let mut point = point_of(current);
    change(&mut point);
    Policy { point: Some(point), ..current.clone() }
}

fn round(x: f32) -> f32 {
    (x * 1000.0).round() / 1000.0
}

/// Thresholds on a grid: 28 of `auto`, 10 of `suggest`, 4 of the lead, 6 of two together.
pub fn thresholds(current: &Policy) -> Vec<Setting> {
    let mut out = Vec::new();
    let name = |key: &str, v: f32| format!("policy.point.{key} = {v}");
    let autos: Vec<f32> = (0..28).map(|i| round(0.30 + 0.025 * i as f32)).collect();
    for auto in autos.iter().copied().chain([0.99]) {
        out.push(Setting::new(
            name("auto", auto),
            Axis::Auto,
            f64::from(auto),
            with_point(current, |p| {
                p.auto = auto;
                p.auto_learned = None;
                p.suggest = p.suggest.min(auto);
            }),
        ));
    }
    for i in 0..10 {
        let suggest = round(0.02 + 0.06 * i as f32);
        out.push(Setting::new(
            name("suggest", suggest),
            Axis::Suggest,
            f64::from(suggest),
            with_point(current, |p| {
                p.suggest = suggest;
                p.auto = p.auto.max(suggest);
                p.auto_learned = p.auto_learned.map(|v| v.max(suggest));
            }),
        ));
    }
    for margin in [0.0, 0.05, 0.2, 0.3] {
        out.push(Setting::new(
            name("auto_margin", margin),
            Axis::Margin,
            f64::from(margin),
            with_point(current, |p| p.auto_margin = margin),
        ));
    }
    for auto in [0.7, 0.8, 0.9] {
        for suggest in [0.1, 0.4] {
            let both = format!("{}, {}", name("auto", auto), name("suggest", suggest));
            out.push(Setting::new(
                both,
                Axis::Both,
                f64::from(auto),
                with_point(current, |p| {
                    p.auto = auto;
                    p.auto_learned = None;
                    p.suggest = suggest;
                }),
            ));
        }
    }
    out
}

/// Weights scaled to a sum of 1.
pub fn normalised(weights: &Weights) -> Weights {
    let sum: f32 = weights.named().iter().map(|(_, w)| w).sum();
    let mut out = weights.clone();
    if sum > 0.0 {
        for (name, weight) in weights.named() {
            set(&mut out, name, weight / sum);
        }
    }
    out
}

/// Sets a weight by name.
pub fn set(weights: &mut Weights, name: &str, value: f32) {
    let place = match name {
        "semantic" => &mut weights.semantic,
        "load" => &mut weights.load,
        "health" => &mut weights.health,
        "latency" => &mut weights.latency,
        "capacity" => &mut weights.capacity,
        "ack_rate" => &mut weights.ack_rate,
        "success_24h" => &mut weights.success_24h,
        "cost" => &mut weights.cost,
        "quality" => &mut weights.quality,
        _ => return,
    };
    *place = value;
}

/// The current policy with other weights of its default preset.
pub fn with_weights(current: &Policy, weights: Weights) -> Policy {
    let mut policy = current.clone();
    let preset: &mut Preset = policy.presets.entry(policy.default_preset.clone()).or_default();
    preset.weights = normalised(&weights);
    policy
}

/// Every weight of the default preset at 0, 0.1, 0.3 and 0.6 before all are scaled to a sum of 1; the window of live terms; bonuses.
pub fn weights(current: &Policy) -> Vec<Setting> {
    let mut out = Vec::new();
    let base = current.presets.get(&current.default_preset).cloned().unwrap_or_default();
    for (name, now) in base.weights.named() {
        for weight in [0.0, 0.1, 0.3, 0.6] {
            let mut weights = base.weights.clone();
            set(&mut weights, name, weight);
            let all: f32 = weights.named().iter().map(|(_, w)| w).sum();
            if (weight - now).abs() < 1e-6 || all <= 0.0 {
                continue;
            }
            let label = format!("policy.presets.{}.weights.{name} = {weight} (then scaled)", current.default_preset);
            out.push(Setting::new(label, Axis::Weight, f64::from(weight), with_weights(current, weights)));
        }
    }
    for margin in [0.0, 0.02, 0.1, 0.2, 1.0] {
        out.push(Setting::new(
            format!("policy.live_margin = {margin}"),
            Axis::Extra,
            f64::from(margin),
            Policy { live_margin: margin, ..current.clone() },
        ));
    }
    for (key, values) in [("cooccurrence", [0.0f32, 1.0, 6.0]), ("preferred", [0.0, 0.2, 0.4])] {
        for value in values {
            let mut policy = current.clone();
            if key == "preferred" {
                policy.bonus.preferred = value
            } else {
                policy.bonus.cooccurrence = value
            }
            out.push(Setting::new(format!("policy.bonus.{key} = {value}"), Axis::Extra, f64::from(value), policy));
        }
    }
    out
}

/// Every preset as the default one.
pub fn presets(current: &Policy) -> Vec<Setting> {
    let other = |name: &&String| **name != current.default_preset;
    let one = |(i, name): (usize, &String)| {
        let policy = Policy { default_preset: name.clone(), ..current.clone() };
        Setting::new(format!("policy.default_preset = \"{name}\""), Axis::Preset, i as f64, policy)
    };
    current.presets.keys().filter(other).enumerate().map(one).collect()
}

/// All settings of some sweeps.
pub fn of(sweeps: &[Sweep], current: &Policy) -> Vec<Setting> {
    let one = |sweep: &Sweep| match sweep {
        Sweep::Threshold => thresholds(current),
        Sweep::Weights => weights(current),
        Sweep::Preset => presets(current),
    };
    sweeps.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_a_policy_that_could_be_configured() {
        let current = Policy::default();
        let all = of(&[Sweep::Threshold, Sweep::Weights, Sweep::Preset], &current);
        let names: std::collections::BTreeSet<_> = all.iter().map(|s| &s.name).collect();
        assert_eq!(names.len(), all.len(), "a name means one setting");
        for setting in &all {
            let preset = &setting.policy.presets[&setting.policy.default_preset];
            let sum: f32 = preset.weights.named().iter().map(|(_, w)| w).sum();
            assert!((sum - 1.0).abs() < 1e-3, "{}", setting.name);
            for point in [point_of(&setting.policy), point_of(&setting.elsewhere().policy)] {
                assert!(point.suggest <= point.auto.min(point.auto_at(1.0)), "{}", setting.name);
            }
        }
    }
}
