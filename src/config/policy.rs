//! How candidates are ranked and decided upon: presets, thresholds, operator rules, the fallback agent.
//!
//! Not here: what the terms measure (`route::rank`), thresholds that were fitted to a model (stored with its fingerprint;
//! the ones here serve until there are some).

use crate::config::reader::Reader;
use crate::types::manifest::{DAYS, Hours, Window, parse_minute};
use std::collections::BTreeMap;

/// `[policy]`
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// Preset of a query that names none.
    pub default_preset: String,
    /// Calibrated similarity under which a candidate is only shown. Range 0..=1.
    pub floor: f64,
    /// Candidates under the floor that are kept to be shown.
    pub keep_under_floor: usize,
    /// Calibrated similarity behind the best inside which live terms may reorder different capabilities. Range 0..=1.
    pub reorder_margin: f64,
    /// Share of equal choices that goes to agents without data. Range 0..=0.5.
    pub explore: f64,
    /// Where `auto` and `suggest` begin.
    pub thresholds: Thresholds,
    /// Bounded extras on top of each preset.
    pub bonus: Bonus,
    /// Ranking presets by name.
    pub presets: BTreeMap<String, Preset>,
    /// Operator rules, in order.
    pub rules: Vec<Rule>,
    /// Who takes what nobody fits.
    pub fallback: Option<Fallback>,
}

/// `[policy.thresholds]`: probabilities, 0..=1.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Least probability of the first candidate for `auto`.
    pub auto: f64,
    /// Least lead of the first over the next different capability for `auto`.
    pub auto_margin: f64,
    /// Least probability of the first candidate for `suggest`.
    pub suggest: f64,
}

/// `[policy.bonus]`: added to a score, each 0..=0.5.
#[derive(Clone, Debug, PartialEq)]
pub struct Bonus {
    /// The query prefers this agent.
    pub preferred: f64,
    /// Callers of the capability before often went on to this one.
    pub cooccurrence: f64,
    /// Same domain as the caller.
    pub same_domain: f64,
}

/// `[policy.presets.NAME]`: weights of the terms (0 = not used) and their shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Calibrated similarity.
    pub semantic: f64,
    /// Room in the queue.
    pub load: f64,
    /// Success rate of the last minute.
    pub health: f64,
    /// Speed against the time left.
    pub latency: f64,
    /// Success rate of the last day.
    pub success: f64,
    /// Cheapness.
    pub cost: f64,
    /// Free share of the calls it takes at once.
    pub free: f64,
    /// Share of receipts that came in the last minute.
    pub acks: f64,
    /// Share of results that callers adopted.
    pub adoption: f64,
    /// Load from which the load term falls exponentially; 1 = it falls in a straight line.
    pub load_knee: f64,
    /// Load above which no new work is taken; 1 = only when the queue is full.
    pub load_max: f64,
    /// Success rate of the last day under which `success_penalty` is taken off.
    pub success_floor: f64,
    /// What is taken off.
    pub success_penalty: f64,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Takes an earlier `deny` back.
    Allow,
    /// Drops the agents.
    Deny,
    /// Puts the agents first, whatever the similarity.
    Force,
    /// Replaces the hours of the capabilities.
    Hours,
}

/// `[[policy.rules]]`: an operator rule. Globs; an absent one fits everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name, for reasons.
    pub name: String,
    /// What it does.
    pub action: RuleAction,
    /// Callers.
    pub caller: Option<String>,
    /// Namespaces of agents.
    pub namespace: Option<String>,
    /// Agent ids.
    pub agent: Option<String>,
    /// Capabilities.
    pub capability: Option<String>,
    /// Words that the query must contain, any of them; empty = any query.
    pub contains: Vec<String>,
    /// Hours for the action `hours`.
    pub hours: Option<Hours>,
}

/// `[policy.fallback]`
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// `namespace/agent_id`.
    pub agent: String,
    /// Its capability; its first one when absent.
    pub capability: Option<String>,
}

/// Weights of the shipped presets, in the order of [`Preset::weights`].
const PRESETS: [(&str, [f64; 9]); 4] = [
    ("balanced", [0.5, 0.15, 0.2, 0.15, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ("gateway", [0.45, 0.15, 0.2, 0.0, 0.1, 0.1, 0.0, 0.0, 0.0]),
    ("reachability", [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.3, 0.2, 0.0]),
    ("quality", [0.3, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.6]),
];
/// Knee, largest load, success floor and penalty of `gateway`; the others use [`PLAIN`].
const GATEWAY: [f64; 4] = [0.7, 0.9, 0.8, 0.3];
const PLAIN: [f64; 4] = [1.0, 1.0, 0.0, 0.0];

impl PolicyConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let default_preset = r.text("default_preset", "balanced");
        let presets = r.section("presets", |r| {
            let mut names: Vec<String> = PRESETS.iter().map(|(name, _)| name.to_string()).collect();
            names.extend(r.names());
            names.into_iter().map(|name| (name.clone(), r.section(&name, |r| Preset::read(r, &name)))).collect::<BTreeMap<_, _>>()
        });
        if !presets.contains_key(&default_preset) {
            let known: Vec<&str> = presets.keys().map(String::as_str).collect();
            r.fault("default_preset", "the name of a preset", format!("known: {}", known.join(", ")));
        }
        Self {
            default_preset,
            floor: r.number("floor", 0.3, 0.0..=1.0),
            keep_under_floor: r.int("keep_under_floor", 2, 0..=10),
            reorder_margin: r.number("reorder_margin", 0.1, 0.0..=1.0),
            explore: r.number("explore", 0.05, 0.0..=0.5),
            thresholds: r.section("thresholds", Thresholds::read),
            bonus: r.section("bonus", |r| Bonus {
                preferred: r.number("preferred", 0.1, 0.0..=0.5),
                cooccurrence: r.number("cooccurrence", 0.05, 0.0..=0.5),
                same_domain: r.number("same_domain", 0.02, 0.0..=0.5),
            }),
            presets,
            rules: r.tables("rules", Rule::read),
            fallback: r.section("fallback", |r| {
                let (agent, capability) = (r.optional("agent"), r.optional("capability"));
                match agent {
                    Some(agent) if !agent.contains('/') => {
                        r.fault("agent", "namespace/agent_id", "write the agent's namespace before its id");
                        None
                    }
                    Some(agent) => Some(Fallback { agent, capability }),
                    None => {
                        if capability.is_some() {
                            r.fault("agent", "namespace/agent_id", "a capability alone names nobody");
                        }
                        None
                    }
                }
            }),
        }
    }
}

impl Thresholds {
    fn read(r: &mut Reader<'_>) -> Self {
        let t = Self {
            auto: r.number("auto", 0.8, 0.0..=1.0),
            auto_margin: r.number("auto_margin", 0.1, 0.0..=1.0),
            suggest: r.number("suggest", 0.3, 0.0..=1.0),
        };
        if t.suggest > t.auto {
            r.fault("suggest", "at most policy.thresholds.auto", "lower it, or raise auto");
        }
        t
    }
}

impl Preset {
    fn read(r: &mut Reader<'_>, name: &str) -> Self {
        let [semantic, load, health, latency, success, cost, free, acks, adoption] =
            PRESETS.iter().find(|(known, _)| *known == name).map_or([0.0; 9], |(_, weights)| *weights);
        let [knee, max, floor, penalty] = if name == "gateway" { GATEWAY } else { PLAIN };
        let preset = Self {
            semantic: r.number("semantic", semantic, 0.0..=1.0),
            load: r.number("load", load, 0.0..=1.0),
            health: r.number("health", health, 0.0..=1.0),
            latency: r.number("latency", latency, 0.0..=1.0),
            success: r.number("success", success, 0.0..=1.0),
            cost: r.number("cost", cost, 0.0..=1.0),
            free: r.number("free", free, 0.0..=1.0),
            acks: r.number("acks", acks, 0.0..=1.0),
            adoption: r.number("adoption", adoption, 0.0..=1.0),
            load_knee: r.number("load_knee", knee, 0.0..=1.0),
            load_max: r.number("load_max", max, 0.0..=1.0),
            success_floor: r.number("success_floor", floor, 0.0..=1.0),
            success_penalty: r.number("success_penalty", penalty, 0.0..=1.0),
        };
        let sum: f64 = preset.weights().iter().map(|(_, w)| w).sum();
        if (sum - 1.0).abs() > 1e-6 {
            let other = preset.weights().iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("semantic", |w| w.0);
            r.fault(other, "weights of a preset that add up to 1", format!("they add up to {sum:.4}"));
        }
        preset
    }

    /// Terms and their weights.
    pub fn weights(&self) -> [(&'static str, f64); 9] {
        [
            ("semantic", self.semantic),
            ("load", self.load),
            ("health", self.health),
            ("latency", self.latency),
            ("success", self.success),
            ("cost", self.cost),
            ("free", self.free),
            ("acks", self.acks),
            ("adoption", self.adoption),
        ]
    }
}

impl Rule {
    fn read(r: &mut Reader<'_>) -> Self {
        let name = r.text("name", "");
        if name.is_empty() {
            r.fault("name", "a name", "answers name the rule that decided");
        }
        let action = match r.word("action", "deny", &["allow", "deny", "force", "hours"]).as_str() {
            "allow" => RuleAction::Allow,
            "force" => RuleAction::Force,
            "hours" => RuleAction::Hours,
            _ => RuleAction::Deny,
        };
        let mut glob = |field: &str| {
            let text = r.optional(field)?;
            if let Err(e) = globset::Glob::new(&text) {
                r.fault(field, "a glob such as \"hr/*\"", e.kind().to_string());
            }
            Some(text)
        };
        let (caller, namespace, agent, capability) = (glob("caller"), glob("namespace"), glob("agent"), glob("capability"));
        let contains = r.list("contains", &[]);
        let hours = r.section("hours", read_hours);
        if (action == RuleAction::Hours) != hours.is_some() {
            r.fault("hours", "hours for the action \"hours\", and only for it", "write time_zone, from and to");
        }
        if [&caller, &namespace, &agent, &capability].iter().all(|g| g.is_none()) && contains.is_empty() {
            r.fault("name", "a rule that says whom it is about", "give it caller, namespace, agent, capability or contains");
        }
        Self { name, action, caller, namespace, agent, capability, contains, hours }
    }
}

fn read_hours(r: &mut Reader<'_>) -> Option<Hours> {
    let zone = r.optional("time_zone");
    let mut days = Vec::new();
    for name in r.list("days", &DAYS) {
        match DAYS.iter().position(|day| **day == name) {
            Some(day) => days.push(day as u8),
            None => r.fault("days", "days mon to sun", format!("{name:?} is none")),
        }
    }
    let mut minute = |field: &str, default: &str| {
        let text = r.text(field, default);
        parse_minute(&text).unwrap_or_else(|expected| {
            r.fault(field, expected, format!("it says {text:?}"));
            0
        })
    };
    let (from, to) = (minute("from", "00:00"), minute("to", "24:00"));
    let time_zone = zone?;
    if jiff::tz::TimeZone::get(&time_zone).is_err() {
        r.fault("time_zone", "an IANA name such as \"Asia/Shanghai\"", format!("{time_zone:?} is none"));
    }
    Some(Hours { time_zone, windows: vec![Window { days, from, to }] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn shipped_presets_add_up_to_one() {
        let presets = Config::default().policy.presets;
        assert_eq!(presets.len(), 4);
        for (name, preset) in presets {
            let sum: f64 = preset.weights().iter().map(|(_, w)| w).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{name}");
        }
    }

    #[test]
    fn own_presets_can_be_added_and_must_add_up() {
        let config = Config::parse("[policy]\ndefault_preset = \"mine\"\n[policy.presets.mine]\nsemantic = 0.9\nhealth = 0.1", &[]).unwrap();
        assert_eq!(config.policy.presets["mine"].semantic, 0.9);
        let e = Config::parse("[policy.presets.mine]\nsemantic = 0.9", &[]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "policy.presets.mine.semantic");
    }

    #[test]
    fn rules_and_fallback_are_checked() {
        let good = r#"
            [policy.fallback]
            agent = "ops/front-desk"
            [[policy.rules]]
            name = "no payroll for bots"
            caller = "bot-*"
            namespace = "hr/payroll"
            [[policy.rules]]
            name = "night shift"
            action = "hours"
            agent = "desk"
            hours = {time_zone = "Asia/Shanghai", days = ["sat", "sun"], from = "22:00", to = "06:00"}
        "#;
        let policy = Config::parse(good, &[]).unwrap().policy;
        assert_eq!(policy.fallback.unwrap().agent, "ops/front-desk");
        assert_eq!(policy.rules[1].hours.as_ref().unwrap().windows[0].days, vec![5, 6]);
        let bad = r#"
            [policy.fallback]
            agent = "front-desk"
            [[policy.rules]]
            name = "everything"
            [[policy.rules]]
            name = "zone"
            action = "hours"
            agent = "[x"
            hours = {time_zone = "Mars/Olympus", from = "25:00"}
        "#;
        let e = Config::parse(bad, &[]).unwrap_err();
        for key in ["policy.fallback.agent", "policy.rules[0].name", "policy.rules[1].agent", "policy.rules[1].hours.time_zone", "policy.rules[1].hours.from"] {
            assert!(e.faults.iter().any(|f| f.pointer == key), "{key} is missing in {e}");
        }
    }
}
