//! What an operator wants of a setting: limits, and what to have most of.
//!
//! In: words such as `auto precision >= 0.95, miss <= 1%; maximize auto share`. Out: an [`Aim`], or what was expected where.

use super::figures::{Counts, METRICS, Metric};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// What a broken limit costs against what is maximized.
const BROKEN: f64 = 5.0;

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// Figure.
    pub metric: Metric,
    /// Whether it must be at least `value`; otherwise at most.
    pub at_least: bool,
    /// The limit, a fraction.
    pub value: f64,
}

/// Limits, and what to maximize among the settings that keep them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aim {
    /// All of them must hold.
    pub limits: Vec<Limit>,
    /// Maximized.
    pub most: Metric,
}

impl Default for Aim {
    fn default() -> Self {
        Self {
            limits: vec![
                Limit { metric: Metric::AutoPrecision, at_least: true, value: 0.95 },
                Limit { metric: Metric::Miss, at_least: false, value: 0.05 },
            ],
            most: Metric::AutoShare,
        }
    }
}

impl Limit {
    /// Whether a value keeps it.
    pub fn keeps(&self, value: f64) -> bool {
        if self.at_least { value >= self.value } else { value <= self.value }
    }

    /// By how much a value breaks it; 0 = it keeps it.
    pub fn broken_by(&self, value: f64) -> f64 {
        if self.at_least { (self.value - value).max(0.0) } else { (value - self.value).max(0.0) }
    }
}

impl Aim {
    /// The limits alone, in words.
    pub fn limits_in_words(&self) -> String {
        let all: Vec<String> = self.limits.iter().map(ToString::to_string).collect();
        if all.is_empty() { "the aim".into() } else { all.join(", ") }
    }

    /// What some counts are worth: the share that is maximized, less five times what is broken of the limits.
    pub fn worth(&self, counts: &Counts) -> f64 {
        let broken: f64 = self.limits.iter().map(|l| l.metric.of(counts).map_or(0.0, |v| l.broken_by(v))).sum();
        self.most.of(counts).unwrap_or(0.0) - BROKEN * broken
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.metric.name(), if self.at_least { ">=" } else { "<=" }, self.value)
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<String> = self.limits.iter().map(ToString::to_string).collect();
        write!(f, "{}; maximize {}", limits.join(", "), self.most.name())
    }
}

fn metric(text: &str) -> Result<Metric, String> {
    Metric::named(text).ok_or_else(|| {
        let known: Vec<&str> = METRICS.iter().map(|(_, n)| *n).collect();
        format!("{:?} is no figure; known: {}", text.trim(), known.join(", "))
    })
}

impl FromStr for Aim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut aim = Self { limits: Vec::new(), most: Metric::AutoShare };
        for part in text.split([',', ';']).map(str::trim).filter(|p| !p.is_empty()) {
            if let Some(most) = part.strip_prefix("maximize ") {
                aim.most = metric(most)?;
                continue;
            }
            let (at_least, sides) = match (part.split_once(">="), part.split_once("<=")) {
                (Some(sides), None) => (true, sides),
                (None, Some(sides)) => (false, sides),
                (Some(_), Some(_)) | (None, None) => {
                    return Err(format!("{part:?}: write FIGURE >= NUMBER, FIGURE <= NUMBER, or maximize FIGURE"));
                }
            };
            let number = sides.1.trim();
            let value = match number.strip_suffix('%') {
                Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
                None => number.parse::<f64>(),
            };
            let value =
                value.ok().filter(|v| (0.0..=1.0).contains(v)).ok_or_else(|| format!("{number:?}: write a share such as 0.95 or 95%"))?;
            aim.limits.push(Limit { metric: metric(sides.0)?, at_least, value });
        }
        Ok(aim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_read_and_written_alike() {
        let aim: Aim = "auto precision >= 95%, miss <= 0.01; maximize top1".parse().unwrap();
        assert_eq!(aim.to_string(), "auto precision >= 0.95, miss <= 0.01; maximize top1");
        assert_eq!(aim.to_string().parse::<Aim>().unwrap(), aim);
        for bad in ["joy >= 0.5", "miss = 0", "miss <= 7", "maximize luck"] {
            assert!(bad.parse::<Aim>().is_err(), "{bad}");
        }
    }
}
