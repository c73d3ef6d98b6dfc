//! When somebody should look: alarms over the last minute of deliveries, with what they measured and the limit.
//!
//! In: counters and lanes every few seconds. Out: alarms that went on or off. Rates need [`ENOUGH`] messages, so that one failure in a quiet minute is no
//! alarm. Pure. The same alarms as rules for Prometheus: `deploy/prometheus-rules.yml`. Not here: who is told (`meter`).

use crate::dispatch::engine::{Counters, LaneView};
use std::collections::{BTreeMap, VecDeque};

/// Span that rates are measured over, milliseconds.
const SPAN_MS: i64 = 60_000;
/// Fewest messages of a rate.
const ENOUGH: u64 = 20;

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Counts since the start.
    pub counters: Counters,
    /// Every agent's lane.
    pub lanes: Vec<LaneView>,
    /// Agents whose lease is over or whose probes fail.
    pub lost: usize,
    /// Largest distance between the 90th percentile and the median of an agent, milliseconds.
    pub spread_ms: f64,
}

/// An alarm that went on or off.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// Its name.
    pub alarm: &'static str,
    /// Whether it is on now.
    pub on: bool,
    /// What was measured.
    pub value: f64,
    /// What is allowed.
    pub limit: f64,
    /// In words.
    pub text: &'static str,
}

/// Every alarm: name, limit, words.
pub const ALARMS: &[(&str, f64, &str)] = &[
    ("match_rate", 0.01, "share of messages that nobody fits"),
    ("failures", 0.05, "share of ended messages that failed or became dead letters"),
    ("retries", 0.15, "retries as a share of messages"),
    ("queue", 0.5, "fullest queue of an agent, as a share of its places"),
    ("heartbeat_lost", 0.0, "agents whose lease is over or that don't answer probes"),
    ("dead_letters", 0.0, "new dead letters in the last minute"),
    ("tail_spread", 1_500.0, "milliseconds between the median and the 90th percentile of an agent"),
];

/// See the module.
#[derive(Debug, Default)]
pub struct Alarms {
    past: VecDeque<(i64, Counters)>,
    on: BTreeMap<&'static str, bool>,
}

impl Alarms {
    /// Looks at the last minute.
    pub fn look(&mut self, now_ms: i64, s: &Sample) -> Vec<Change> {
        while self.past.get(1).is_some_and(|(at, _)| now_ms - at >= SPAN_MS) {
            self.past.pop_front();
        }
        let before = self.past.front().map_or(s.counters, |(_, c)| *c);
        self.past.push_back((now_ms, s.counters));
        let since = |of: fn(&Counters) -> u64| of(&s.counters).saturating_sub(of(&before));
        let share = |part: u64, whole: u64| if whole >= ENOUGH { part as f64 / whole as f64 } else { 0.0 };
        let submitted = since(|c| c.submitted);
        let bad = since(|c| c.failed) + since(|c| c.dead);
        let queue = s.lanes.iter().map(|l| l.waiting as f64 / f64::from(l.places.max(1))).fold(0.0, f64::max);
        let values = [
            share(since(|c| c.unrouted), submitted),
            share(bad, bad + since(|c| c.acked)),
            share(since(|c| c.retries), submitted),
            queue,
            s.lost as f64,
            since(|c| c.dead) as f64,
            s.spread_ms,
        ];
        let mut changes = Vec::new();
        for ((alarm, limit, text), value) in ALARMS.iter().zip(values) {
            let on = value > *limit;
            if self.on.insert(alarm, on).unwrap_or(false) != on {
                changes.push(Change { alarm, on, value, limit: *limit, text });
            }
        }
        changes
    }

    /// Whether an alarm is on.
    pub fn is_on(&self, alarm: &str) -> bool {
        self.on.get(alarm).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{Counter, Gauge, Histogram};

    fn counters(submitted: u64, acked: u64, dead: u64, retries: u64, unrouted: u64) -> Counters {
        Counters { submitted, acked, dead, retries, unrouted, ..Counters::default() }
    }

    fn names(changes: &[Change]) -> Vec<(&'static str, bool)> {
        changes.iter().map(|c| (c.alarm, c.on)).collect()
    }

    #[test]
    fn they_go_on_and_off() {
        let mut a = Alarms::default();
        let sample = |counters| Sample { counters, ..Sample::default() };
        assert!(a.look(0, &sample(counters(0, 0, 0, 0, 0))).is_empty());
        assert_eq!(names(&a.look(10_000, &sample(counters(10, 5, 1, 9, 5)))), [("dead_letters", true)], "too few for a rate");
        let all = a.look(20_000, &sample(counters(100, 80, 9, 20, 5)));
        assert_eq!(names(&all), [("match_rate", true), ("failures", true), ("retries", true)]);
        assert_eq!(all[0].value, 0.05);
        let later = a.look(85_000, &sample(counters(300, 280, 9, 20, 5)));
        assert_eq!(names(&later), [("match_rate", false), ("failures", false), ("retries", false), ("dead_letters", false)]);
        assert!(!a.is_on("failures"));
        let lost = Sample { lost: 1, spread_ms: 1_600.0, ..sample(counters(300, 280, 9, 20, 5)) };
        assert_eq!(names(&a.look(86_000, &lost)), [("heartbeat_lost", true), ("tail_spread", true)]);
    }

    #[test]
    fn the_rules_for_prometheus_name_every_alarm_and_only_metrics_that_exist() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus-rules.yml");
        let rules = std::fs::read_to_string(file).unwrap();
        for (alarm, ..) in ALARMS {
            assert!(rules.contains(&format!("reach_{alarm}")), "deploy/prometheus-rules.yml lacks reach_{alarm}");
        }
        let known: Vec<&str> = Counter::ALL
            .iter()
            .map(|c| c.name())
            .chain(Gauge::ALL.iter().map(|g| g.name()))
            .chain(Histogram::ALL.iter().map(|h| h.name()))
            .collect();
        for expr in rules.lines().filter_map(|l| l.trim().strip_prefix("expr: ")) {
            for word in expr.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| w.starts_with("reach_")) {
                let base = word.trim_end_matches("_bucket");
                assert!(known.contains(&base), "{word} in {expr:?} is no metric");
            }
        }
    }
}
