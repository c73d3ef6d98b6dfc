//! Versions of the policy: what tuning and swapping changed over the configuration, kept in the store, one of them (or none) in force.
//!
//! Invariant: a version never changes; rolling back is choosing an older one, and counts as a change. Kept as one small value of the store, so a
//! reader that peeks sees all of it or none.

use crate::error::{Code, Error};
use crate::store::{Peek, Store};
use crate::types::fault::Fault;
use crate::types::policy::{OperatingPoint, Policy, PolicyChange, same_models};
use serde::{Deserialize, Serialize};

/// Name of the value in the store.
const KEY: &str = "policy.versions";
/// Versions kept.
const MOST: usize = 100;

/// One version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// Number, from 1.
    pub n: u64,
    /// When it was made, RFC 3339.
    pub at: String,
    /// `tune`, `swap` or `hand`.
    pub by: String,
    /// Why, in words.
    pub why: String,
    /// Number that was in force before; 0 = the configuration alone.
    pub before: u64,
    /// What it changes over the configuration.
    pub change: PolicyChange,
}

/// All versions and the one in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// Number in force; 0 = the configuration alone.
    pub active: u64,
    /// How often the number in force changed.
    pub changes: u64,
    /// Oldest first.
    pub versions: Vec<Version>,
}

fn read(text: Option<String>) -> Result<Versions, Error> {
    let Some(text) = text else { return Ok(Versions::default()) };
    serde_json::from_str(&text).map_err(|e| Error::internal(format!("the policy versions in the store can't be read: {e}")))
}

impl Versions {
    /// Out of an open store.
    pub fn of(store: &Store) -> Result<Self, Error> {
        read(store.meta(KEY)?)
    }

    /// Out of a store that another process may have open.
    pub fn peek(store: &Peek) -> Result<Self, Error> {
        read(store.meta(KEY)?)
    }

    /// Writes them.
    pub async fn save(&self, store: &Store) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(Error::internal)?;
        Ok(store.set_meta(KEY, &text).await?)
    }

    /// One version.
    pub fn get(&self, n: u64) -> Option<&Version> {
        self.versions.iter().find(|v| v.n == n)
    }

    /// The configured policy with the version in force.
    pub fn effective(&self, configured: &Policy) -> Policy {
        let mut policy = self.get(self.active).map_or_else(|| configured.clone(), |v| v.change.apply(configured));
        policy.generation = configured.generation + self.changes;
        policy
    }

    /// Adds a version on top of the one in force and puts it in force.
    pub fn add(&mut self, now_ms: i64, by: &str, why: &str, change: PolicyChange) -> u64 {
        let before = self.active;
        let change = self.get(before).map_or_else(|| change.clone(), |v| over(&v.change, &change));
        let n = self.versions.last().map_or(0, |v| v.n) + 1;
        let at = jiff::Timestamp::from_millisecond(now_ms).map(|t| t.to_string()).unwrap_or_default();
        self.versions.push(Version { n, at, by: by.into(), why: why.into(), before, change });
        if self.versions.len() > MOST {
            self.versions.remove(0);
        }
        self.active = n;
        self.changes += 1;
        n
    }

    /// Goes back to `to`, or to what was in force before the version in force.
    pub fn roll_back(&mut self, to: Option<u64>) -> Result<u64, Error> {
        let to = match to {
            Some(to) => to,
            None => self.get(self.active).map(|v| v.before).ok_or_else(|| {
                Error::new(Code::FailedPrecondition, "the configuration alone is in force; there is nothing to roll back")
            })?,
        };
        if to != 0 && self.get(to).is_none() {
            let known: Vec<String> = self.versions.iter().map(|v| v.n.to_string()).collect();
            return Err(Error::new(
                Code::NotFound,
                format!("there is no policy version {to}; there are 0 (the configuration), {}", known.join(", ")),
            ));
        }
        if to != self.active {
            self.active = to;
            self.changes += 1;
        }
        Ok(to)
    }
}

/// A change on top of another.
fn over(old: &PolicyChange, new: &PolicyChange) -> PolicyChange {
    let mut out = old.clone();
    if new.point.is_some() || !new.points.is_empty() {
        // thresholds of other models don't stay beside new ones
        let same_models = same_models(&old.fitted_for, &new.fitted_for);
        out.points = if same_models { old.points.clone() } else { Default::default() };
        out.points.extend(new.points.clone());
        out.point = new.point.clone().or_else(|| old.point.clone().filter(|_| same_models));
        out.fitted_for.clone_from(&new.fitted_for);
    }
    out.presets.extend(new.presets.clone());
    out.default_preset = new.default_preset.clone().or(out.default_preset);
    out.live_margin = new.live_margin.or(out.live_margin);
    out.bonus = new.bonus.clone().or(out.bonus);
    out
}

/// Refuses what was fitted on decisions of other models than those in use. `fitted_on` = the models of those decisions, where the change itself does not
/// say: weights don't, and lean on the scale of a model's scores all the same.
pub fn fits(change: &PolicyChange, fitted_on: &[String], in_use: &[&str]) -> Result<(), Error> {
    for (what, models) in [("these thresholds were fitted for", &change.fitted_for[..]), ("this was fitted on decisions of", fitted_on)] {
        if !models.is_empty() && !same_models(models, in_use) {
            let named = if in_use.is_empty() { "no model".to_string() } else { in_use.join(", ") };
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("{what} {}, in use: {named}; it must be the same set: fit again, or say force", models.join(", ")),
            ));
        }
    }
    Ok(())
}

/// Namespaces that have a point of their own and no agent: mistyped, or not registered yet. In order.
pub fn idle_points<'a>(policy: &'a Policy, namespaces: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let known: std::collections::HashSet<&str> = namespaces.collect();
    policy.points.keys().map(String::as_str).filter(|n| !known.contains(n)).collect()
}

/// Whether a change can be put in force over `configured`; all faults at once.
pub fn check(change: &PolicyChange, configured: &Policy) -> Result<(), Error> {
    let mut faults = Vec::new();
    let mut point = |at: String, p: &OperatingPoint| {
        let learned = p.auto_learned.map(|v| ("auto_learned", v));
        let always = [("auto", p.auto), ("auto_margin", p.auto_margin), ("suggest", p.suggest), ("floor", p.floor)];
        for (name, value) in always.into_iter().chain(learned) {
            if !(0.0..=1.0).contains(&value) {
                faults.push(Fault::new(format!("{at}/{name}"), "a number from 0 to 1", format!("it is {value}")));
            }
        }
        if p.suggest > p.auto.min(p.auto_at(1.0)) {
            faults.push(Fault::new(format!("{at}/suggest"), "at most auto and auto_learned", "lower it, or raise those"));
        }
    };
    if let Some(p) = &change.point {
        point("/point".into(), p);
    }
    for (namespace, p) in &change.points {
        point(format!("/points/{namespace}"), p);
    }
    for (name, preset) in &change.presets {
        let sum: f32 = preset.weights.named().iter().map(|(_, w)| w).sum();
        if !(0.999..=1.001).contains(&sum) || preset.weights.named().iter().any(|(_, w)| *w < 0.0) {
            faults.push(Fault::new(
                format!("/presets/{name}/weights"),
                "weights from 0 on that add up to 1",
                format!("they add up to {sum:.3}"),
            ));
        }
    }
    if let Some(name) = change.default_preset.as_ref().filter(|n| !configured.presets.contains_key(*n) && !change.presets.contains_key(*n))
    {
        faults.push(Fault::new("/default_preset", "the name of a preset", format!("{name:?} is none")));
    }
    if change.live_margin.is_some_and(|m| !(0.0..=1.0).contains(&m)) {
        faults.push(Fault::new("/live_margin", "a number from 0 to 1", "0.05 is the shipped one"));
    }
    if let Some(b) = &change.bonus {
        let shares = [b.preferred, b.cooccurrence_cap, b.tenant];
        if !(0.0..=10.0).contains(&b.cooccurrence) || shares.iter().any(|s| !(0.0..=1.0).contains(s)) {
            faults.push(Fault::new("/bonus", "cooccurrence from 0 to 10, the others from 0 to 1", "see policy.bonus in reach.toml"));
        }
    }
    if change.is_empty() {
        faults.push(Fault::new("", "a change", "it changes nothing"));
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::invalid(faults)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(auto: f32) -> PolicyChange {
        PolicyChange {
            point: Some(OperatingPoint { auto, ..OperatingPoint::default() }),
            fitted_for: vec!["m".into()],
            ..PolicyChange::default()
        }
    }

    #[test]
    fn versions_are_kept_and_rolled_back() {
        let configured = Policy::default();
        let mut v = Versions::default();
        assert_eq!(v.effective(&configured), configured);
        assert!(v.roll_back(None).is_err());
        assert_eq!(v.add(0, "tune", "a", point(0.9)), 1);
        assert_eq!(v.add(0, "tune", "b", PolicyChange { live_margin: Some(0.1), ..PolicyChange::default() }), 2);
        let both = v.effective(&configured);
        assert_eq!((both.point.unwrap().auto, both.live_margin, both.generation), (0.9, 0.1, configured.generation + 2));
        assert_eq!(v.roll_back(None).unwrap(), 1);
        assert_eq!(v.effective(&configured).live_margin, configured.live_margin);
        assert_eq!(v.roll_back(Some(0)).unwrap(), 0);
        let plain = v.effective(&configured);
        assert_eq!((&plain.point, plain.generation), (&configured.point, configured.generation + 4));
        assert!(v.roll_back(Some(9)).unwrap_err().to_string().contains("version 9"));
        assert_eq!(v.add(0, "swap", "c", point(0.5)), 3, "numbers are never used twice");
    }

    /// A set that merely contains the models in use is another set, and weights are refused as thresholds are.
    #[test]
    fn what_other_models_taught_is_refused() {
        let of = |models: &[&str]| models.iter().map(|m| m.to_string()).collect::<Vec<_>>();
        let change = PolicyChange { fitted_for: of(&["zh", "en"]), ..point(0.9) };
        assert!(fits(&change, &[], &["en", "zh"]).is_ok() && fits(&point(0.9), &[], &["m"]).is_ok());
        for in_use in [&["zh"][..], &["zh", "en", "m3"], &["m3"]] {
            let e = fits(&change, &[], in_use).unwrap_err();
            assert!(e.code == Code::FailedPrecondition && e.to_string().contains(&in_use.join(", ")), "{e}");
        }
        let weights = PolicyChange { live_margin: Some(0.1), ..PolicyChange::default() };
        assert!(fits(&weights, &of(&["old"]), &["new"]).unwrap_err().to_string().contains("decisions of old"));
        assert!(fits(&weights, &of(&["new"]), &["new"]).is_ok() && fits(&weights, &[], &["new"]).is_ok());
    }

    #[test]
    fn a_point_of_nobody_is_noticed() {
        let points = ["hr", "hr/payrol"].map(|n| (n.to_string(), OperatingPoint::shipped()));
        let policy = Policy { points: points.into(), ..Policy::default() };
        assert_eq!(idle_points(&policy, ["hr", "hr/payroll", "hr"].into_iter()), ["hr/payrol"]);
    }

    #[test]
    fn unsound_changes_are_refused_with_all_their_faults() {
        let mut bad = point(2.0);
        bad.default_preset = Some("none such".into());
        bad.points.insert("hr".into(), OperatingPoint { auto: 0.1, suggest: 0.5, ..OperatingPoint::default() });
        let e = check(&bad, &Policy::default()).unwrap_err();
        assert_eq!(e.faults.len(), 3, "{e}");
        assert!(check(&PolicyChange::default(), &Policy::default()).is_err() && check(&point(0.9), &Policy::default()).is_ok());
    }
}
