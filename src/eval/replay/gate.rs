//! Limits that a change of the configuration must keep, for CI.
//!
//! In: a TOML file of limits, and the figures of the current configuration and of what was answered then. Out: what is broken, in words.

use super::figures::{Figures, METRICS, Metric, Share};
use crate::config::files::read_text;
use crate::error::Error;
use crate::types::fault::Fault;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Limits of one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Least.
    pub min: Option<f64>,
    /// Most.
    pub max: Option<f64>,
    /// By how much it may be worse than what was answered then.
    pub worse_by: Option<f64>,
}

/// A gate file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Whether bounds must keep the limits, not only values.
    #[serde(default)]
    pub surely: bool,
    /// By figure: `auto_precision`, `miss`, `wrong`, `top1`, `auto_share` …, `moved` (share of the decisions), `labelled` (number), `ece` (calibration error
    /// of the current confidence).
    #[serde(default)]
    pub limits: BTreeMap<String, Limits>,
}

impl Gate {
    /// Reads a gate file; reports every fault.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let text = read_text(path).map_err(|e| Error::invalid_at(&shown, "a readable gate file", e.to_string()))?;
        let gate: Self = toml::from_str(&text).map_err(|e| {
            Error::invalid_at(&shown, "a gate file as docs/replay.md describes it", e.to_string().trim_end().replace('\n', " | "))
        })?;
        let mut faults: Vec<Fault> = gate
            .limits
            .keys()
            .filter(|k| Metric::named(k).is_none() && !matches!(k.as_str(), "moved" | "labelled" | "ece"))
            .map(|k| {
                let known: Vec<String> = METRICS.iter().map(|(_, n)| n.replace(' ', "_")).collect();
                Fault::new(format!("{shown}: limits.{k}"), "a figure", format!("known: {}, moved, labelled, ece", known.join(", ")))
            })
            .collect();
        if gate.limits.is_empty() {
            faults.push(Fault::new(
                &shown,
                "limits of at least one figure",
                "such as [limits.miss] with max = 0.02: a gate without limits passes anything",
            ));
        }
        for (name, limits) in &gate.limits {
            let at = format!("{shown}: limits.{name}");
            let all = [("min", limits.min), ("max", limits.max), ("worse_by", limits.worse_by)];
            if all.iter().all(|(_, limit)| limit.is_none()) {
                faults.push(Fault::new(&at, "min, max or worse_by", "without one it passes anything"));
            }
            let most = if name == "labelled" { f64::INFINITY } else { 1.0 };
            for (what, limit) in all {
                if limit.is_some_and(|v| !(0.0..=most).contains(&v)) {
                    let hint = "figures are shares: 2 % is written 0.02";
                    faults.push(Fault::new(format!("{at}.{what}"), "a number from 0 to 1", hint));
                }
            }
        }
        if faults.is_empty() { Ok(gate) } else { Err(Error::invalid(faults)) }
    }

    /// What the current configuration breaks. `moved` = how many decisions it changes; `ece` = the calibration error of its confidence.
    pub fn broken(&self, then: &Figures, now: &Figures, moved: u64, ece: Option<f64>) -> Vec<String> {
        let mut out = Vec::new();
        for (name, limits) in &self.limits {
            let plain = |v: f64| Share { value: v, low: v, high: v, of: now.decisions };
            let (is, was) = match (name.as_str(), Metric::named(name)) {
                ("moved", _) => (Some(plain(moved as f64 / now.decisions.max(1) as f64)), None),
                ("labelled", _) => (Some(plain(now.labelled as f64)), None),
                ("ece", _) => (ece.map(plain), None),
                (_, Some(metric)) => (now.get(metric), then.get(metric)),
                (_, None) => (None, None),
            };
            let Some(is) = is else {
                out.push(format!("{name}: no labelled decision tells; a gate can't pass on nothing"));
                continue;
            };
            let (low, high) = if self.surely { (is.low, is.high) } else { (is.value, is.value) };
            let bounds =
                if self.surely { format!(" (between {:.4} and {:.4}, {} decisions)", is.low, is.high, is.of) } else { String::new() };
            if limits.min.is_some_and(|min| low < min) {
                out.push(format!("{name} is {:.4}{bounds}, at least {} is asked", is.value, limits.min.unwrap_or_default()));
            }
            if limits.max.is_some_and(|max| high > max) {
                out.push(format!("{name} is {:.4}{bounds}, at most {} is allowed", is.value, limits.max.unwrap_or_default()));
            }
            if let (Some(by), Some(was)) = (limits.worse_by, was) {
                let lower_is_better =
                    matches!(Metric::named(name), Some(Metric::Miss | Metric::Wrong | Metric::OutOfScopeAuto | Metric::NoneShare));
                let worse = if lower_is_better { is.value - was.value } else { was.value - is.value };
                if worse > by {
                    out.push(format!("{name} went from {:.4} to {:.4}, {by} worse is the most", was.value, is.value));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::replay::figures::{CELLS, Cell, Counts};

    #[test]
    fn limits_are_kept_or_named() {
        let share = |v| Some(Share { value: v, low: v - 0.05, high: v + 0.05, of: 100 });
        let then = Figures { decisions: 100, labelled: 100, miss: share(0.05), auto_precision: share(0.97), ..Figures::default() };
        let now = Figures { miss: share(0.08), auto_precision: share(0.96), ..then.clone() };
        let gate: Gate = toml::from_str(
            "[limits.auto_precision]\nmin = 0.95\n[limits.miss]\nmax = 0.1\nworse_by = 0.02\n[limits.moved]\nmax = 0.1\n[limits.wrong]\nmax = 0.5",
        )
        .unwrap();
        let broken = gate.broken(&then, &now, 11, None);
        assert_eq!(broken.len(), 3, "{broken:?}");
        assert!(broken[0].contains("miss went from 0.0500 to 0.0800") && broken[1].contains("moved") && broken[2].contains("wrong"));
        // 13 of 13 may be 0.77
        let mut counts: Counts = [0; CELLS];
        counts[Cell::AutoRight as usize] = 13;
        let few = Figures::of(&counts, &[counts; 9]);
        let strict: Gate = toml::from_str("surely = true\n[limits.auto_precision]\nmin = 0.95").unwrap();
        let broken = strict.broken(&few, &few, 0, None);
        assert!(broken.len() == 1 && broken[0].contains("1.0000 (between 0.7719 and 1.0000, 13 decisions)"), "{broken:?}");
        assert!(Gate { surely: false, ..strict }.broken(&few, &few, 0, None).is_empty());
        let calibrated: Gate = toml::from_str("[limits.ece]\nmax = 0.05").unwrap();
        assert!(calibrated.broken(&now, &now, 0, Some(0.04)).is_empty());
        assert!(calibrated.broken(&now, &now, 0, Some(0.06))[0].contains("ece is 0.0600"));
        assert!(calibrated.broken(&now, &now, 0, None)[0].contains("no labelled decision"));
        let surely = Gate { surely: true, ..gate };
        assert!(surely.broken(&then, &now, 0, None).iter().any(|b| b.contains("auto_precision")));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate.toml");
        std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), b"[limits.joy]\nmin = 1").unwrap();
        assert!(Gate::read(&path).unwrap_err().to_string().contains("joy"));
        for (text, fault) in [("", "at least one figure"), ("[limits.miss]", "min, max or worse_by"), ("[limits.miss]\nmax = 2", "0 to 1")]
        {
            crate::config::files::write_atomic(&path, text.as_bytes()).unwrap();
            let told = format!("{:?}", Gate::read(&path).unwrap_err());
            assert!(told.contains(fault), "{text}: {told}");
        }
        crate::config::files::write_atomic(&path, b"[limits.labelled]\nmin = 200").unwrap();
        assert!(Gate::read(&path).is_ok());
    }
}
