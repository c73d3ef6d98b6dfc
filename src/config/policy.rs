//! Reads `[policy]`: presets, operating point, operator rules, the fallback agent. What they are is [`crate::types::policy`].

use crate::config::reader::Reader;
use crate::types::policy::{Bonus, Fallback, LoadCurve, OperatingPoint, Policy, Preset, Rule, RuleAction, Weights};
use crate::types::{AgentKey, Namespace, id};
use std::collections::BTreeMap;

/// Reads the policy; what is not written stays as shipped.
pub(super) fn read(r: &mut Reader<'_>) -> Policy {
    let shipped = Policy::default();
    let default_preset = r.text("default_preset", &shipped.default_preset);
    let presets = r.section("presets", |r| {
        let mut names: Vec<String> = shipped.presets.keys().cloned().collect();
        names.extend(r.names().into_iter().filter(|n| !shipped.presets.contains_key(n)));
        let mut read_one = |name: String| {
            let base = shipped.presets.get(&name).cloned().unwrap_or_default();
            let preset = r.section(&name, |r| preset(r, &base));
            (name, preset)
        };
        names.into_iter().map(&mut read_one).collect::<BTreeMap<_, _>>()
    });
    if !presets.contains_key(&default_preset) {
        let known: Vec<&str> = presets.keys().map(String::as_str).collect();
        r.fault("default_preset", "the name of a preset", format!("known: {}", known.join(", ")));
    }
    let bonus = r.section("bonus", |r| Bonus {
        preferred: share(r, "preferred", shipped.bonus.preferred),
        cooccurrence: ranged(r, "cooccurrence", shipped.bonus.cooccurrence, 10.0),
        cooccurrence_cap: share(r, "cooccurrence_cap", shipped.bonus.cooccurrence_cap),
        tenant: share(r, "tenant", shipped.bonus.tenant),
    });
    let point = r.section("point", |r| read_point(r, &OperatingPoint::shipped()));
    // what a namespace leaves out is as for all
    let common = point.clone().unwrap_or_else(OperatingPoint::shipped);
    Policy {
        generation: shipped.generation,
        default_preset,
        presets,
        bonus,
        live_margin: share(r, "live_margin", shipped.live_margin),
        point,
        points: r.section("points", |r| {
            let names = r.names();
            names.into_iter().filter_map(|n| r.section(&n, |r| read_point(r, &common)).map(|p| (n, p))).collect()
        }),
        fitted_for: r.list("fitted_for", &[]),
        rules: r.tables("rules", rule),
        fallback: r.section("fallback", fallback),
        explore: share(r, "explore", shipped.explore),
        per_publisher: r.int("per_publisher", shipped.per_publisher, 0..=50),
        guards: r.flag("guards", shipped.guards),
    }
}

/// A number from 0 to 1, written as short as it was meant.
fn share(r: &mut Reader<'_>, name: &str, default: f32) -> f32 {
    ranged(r, name, default, 1.0)
}

fn ranged(r: &mut Reader<'_>, name: &str, default: f32, most: f64) -> f32 {
    // through text, so that 0.15 as f32 is shown as 0.15
    let shown: f64 = default.to_string().parse().unwrap_or_default();
    r.number(name, shown, 0.0..=most) as f32
}

fn preset(r: &mut Reader<'_>, base: &Preset) -> Preset {
    let weights = r.section("weights", |r| {
        let weights = Weights {
            semantic: share(r, "semantic", base.weights.semantic),
            load: share(r, "load", base.weights.load),
            health: share(r, "health", base.weights.health),
            latency: share(r, "latency", base.weights.latency),
            capacity: share(r, "capacity", base.weights.capacity),
            ack_rate: share(r, "ack_rate", base.weights.ack_rate),
            success_24h: share(r, "success_24h", base.weights.success_24h),
            cost: share(r, "cost", base.weights.cost),
            quality: share(r, "quality", base.weights.quality),
        };
        let sum: f32 = weights.named().iter().map(|(_, w)| w).sum();
        if (sum - 1.0).abs() > 1e-3 {
            let largest = weights.named().iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("semantic", |w| w.0);
            r.fault(largest, "weights of a preset that add up to 1", format!("they add up to {sum:.3}"));
        }
        weights
    });
    let curve = if base.load_curve == LoadCurve::Exponential { "exponential" } else { "linear" };
    let exponential = r.word("load_curve", curve, &["linear", "exponential"]) == "exponential";
    Preset {
        weights,
        load_curve: if exponential { LoadCurve::Exponential } else { LoadCurve::Linear },
        low_success: share(r, "low_success", base.low_success),
        penalty: share(r, "penalty", base.penalty),
        max_load: share(r, "max_load", base.max_load),
        tail_spread_ms: ranged(r, "tail_spread_ms", base.tail_spread_ms, 3_600_000.0),
    }
}

/// A point, when any of its keys is written; the others are those of `base`. `auto_learned` goes with `auto`: where `auto` is written and it is not, it
/// is the same.
fn read_point(r: &mut Reader<'_>, base: &OperatingPoint) -> Option<OperatingPoint> {
    let written = r.names();
    let has = |name: &str| written.iter().any(|n| n == name);
    let auto = share(r, "auto", base.auto);
    let learned = share(r, "auto_learned", base.auto_learned.unwrap_or(base.auto));
    let point = OperatingPoint {
        auto,
        auto_learned: if has("auto_learned") { Some(learned) } else { base.auto_learned.filter(|_| !has("auto")) },
        auto_margin: share(r, "auto_margin", base.auto_margin),
        suggest: share(r, "suggest", base.suggest),
        floor: share(r, "floor", base.floor),
        keep_under_floor: r.int("keep_under_floor", base.keep_under_floor, 0..=10),
    };
    if point.suggest > point.auto.min(point.auto_at(1.0)) {
        r.fault("suggest", "at most auto and auto_learned of the same point", "lower it, or raise those");
    }
    (!written.is_empty()).then_some(point)
}

fn rule(r: &mut Reader<'_>) -> Rule {
    let name = r.text("name", "");
    if name.is_empty() {
        r.fault("name", "a name", "answers name the rule that decided");
    }
    let action = match r.word("action", "deny", &["allow", "deny", "force", "open", "close"]).as_str() {
        "allow" => RuleAction::Allow,
        "force" => RuleAction::Force,
        "open" => RuleAction::Open,
        "close" => RuleAction::Close,
        _ => RuleAction::Deny,
    };
    let mut globs = |field: &str| {
        let globs = r.list(field, &[]);
        for glob in &globs {
            if let Err(e) = globset::Glob::new(glob) {
                r.fault(field, "globs such as \"hr/*\"", format!("{glob:?}: {}", e.kind()));
            }
        }
        globs
    };
    let (callers, namespaces, agents, capabilities) = (globs("callers"), globs("namespaces"), globs("agents"), globs("capabilities"));
    let rule = Rule { name, action, callers, namespaces, agents, capabilities, words: r.list("words", &[]) };
    if rule.action != RuleAction::Allow
        && [&rule.callers, &rule.namespaces, &rule.agents, &rule.capabilities, &rule.words].iter().all(|part| part.is_empty())
    {
        r.fault("name", "a rule that says whom it is about", "give it callers, namespaces, agents, capabilities or words; \"*\" is all");
    }
    rule
}

fn fallback(r: &mut Reader<'_>) -> Option<Fallback> {
    let (agent, capability) = (r.optional("agent"), r.optional("capability"));
    let Some(agent) = agent else {
        if capability.is_some() {
            r.fault("agent", "namespace/agent_id", "a capability alone names nobody");
        }
        return None;
    };
    if capability.is_none() {
        r.fault("capability", "one of the agent's capabilities", "say which one takes what nobody fits");
    }
    let parts = agent.rsplit_once('/').and_then(|(namespace, id)| Some((Namespace::new(namespace).ok()?, id)));
    match parts.filter(|(_, id)| id::is_agent_id(id)) {
        Some((namespace, id)) => Some(Fallback { agent: AgentKey::local(namespace, id), capability: capability? }),
        None => {
            r.fault("agent", "namespace/agent_id", format!("{agent:?} is none"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::types::policy::{OperatingPoint, Policy, RuleAction};

    #[test]
    fn nothing_written_is_the_shipped_policy() {
        assert_eq!(Config::default().policy, Policy::default());
    }

    #[test]
    fn own_presets_can_be_added_and_must_add_up() {
        let text = "[policy]\ndefault_preset = \"mine\"\n[policy.presets.mine.weights]\nsemantic = 0.9\nhealth = 0.1";
        let policy = Config::parse(text, &[]).unwrap().policy;
        assert_eq!((policy.presets["mine"].weights.semantic, policy.presets.len()), (0.9, 5));
        let e = Config::parse("[policy.presets.mine.weights]\nsemantic = 0.9", &[]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "policy.presets.mine.weights.semantic");
        let e = Config::parse("[policy.presets.gateway.weights]\ncost = 0.9", &[]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "policy.presets.gateway.weights.cost");
    }

    #[test]
    fn a_point_is_one_only_when_written() {
        assert_eq!(Config::parse("[policy.point]\n", &[]).unwrap().policy.point, None);
        assert_eq!(Config::parse("[policy.point]\nauto = 0.9\n", &[]).unwrap().policy.point.unwrap().auto, 0.9);
        let e = Config::parse("[policy.point]\nauto = 0.1\n", &[]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "policy.point.suggest");
    }

    /// Keys that are left out keep the shipped point, in the file, in flags, and for namespaces that of all.
    #[test]
    fn one_key_of_a_point_moves_no_other() {
        let shipped = OperatingPoint::shipped();
        let point = |text: &str| Config::parse(text, &[]).unwrap().policy.point.unwrap();
        assert_eq!(point("[policy.point]\nsuggest = 0.3\n"), OperatingPoint { suggest: 0.3, ..shipped.clone() });
        assert_eq!(point("[policy.point]\nfloor = 0.05\n"), OperatingPoint { floor: 0.05, ..shipped.clone() });
        let flag = crate::config::Override::new("policy.point.suggest", "0.3", "--set");
        assert_eq!(Config::parse("", &[flag]).unwrap().policy.point.unwrap().auto, shipped.auto);
        // learned candidates are not delivered sooner than an operator says
        assert_eq!(point("[policy.point]\nauto = 0.95\n"), OperatingPoint { auto: 0.95, auto_learned: None, ..shipped.clone() });
        let both = Config::parse("[policy.point]\nauto = 0.85\n[policy.points.hr]\nsuggest = 0.4\n", &[]).unwrap().policy;
        assert_eq!(both.points["hr"], OperatingPoint { suggest: 0.4, ..both.point.unwrap() });
        let own = Config::parse("[policy.points.hr]\nsuggest = 0.4\n", &[]).unwrap().policy;
        assert_eq!((&own.point, &own.points["hr"]), (&None, &OperatingPoint { suggest: 0.4, ..shipped }));
    }

    #[test]
    fn rules_and_fallback_are_checked() {
        let good = r#"
            [policy.fallback]
            agent = "ops/desk/front-desk"
            capability = "take_anything"
            [[policy.rules]]
            name = "no payroll for bots"
            callers = ["bot-*"]
            namespaces = ["hr/payroll"]
            [[policy.rules]]
            name = "night shift"
            action = "open"
            agents = ["ops/desk"]
        "#;
        let policy = Config::parse(good, &[]).unwrap().policy;
        let fallback = policy.fallback.unwrap();
        assert_eq!((fallback.agent.namespace.as_str(), &*fallback.agent.agent_id), ("ops/desk", "front-desk"));
        assert_eq!(policy.rules[1].action, RuleAction::Open);
        let bad = r#"
            [policy.fallback]
            agent = "front-desk"
            [[policy.rules]]
            name = "everything"
            [[policy.rules]]
            action = "hide"
            agents = ["[x"]
        "#;
        let e = Config::parse(bad, &[]).unwrap_err();
        for key in [
            "policy.fallback.agent",
            "policy.fallback.capability",
            "policy.rules[0].name",
            "policy.rules[1].name",
            "policy.rules[1].action",
            "policy.rules[1].agents",
        ] {
            assert!(e.faults.iter().any(|f| f.pointer == key), "{key} is missing in {e}");
        }
    }
}
