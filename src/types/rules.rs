//! Operator rules, compiled: which of them touch a given caller, query and capability. Pure; globs are checked when compiled.

use crate::types::fault::Fault;
use crate::types::policy::{Rule, RuleAction};
use globset::{Glob, GlobSet, GlobSetBuilder};

/// What the rules say of one candidate for one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Name of the rule that denies it (a deny, or an allow list it is not on).
    pub denied: Option<String>,
    /// Name of the rule that forces it.
    pub forced: Option<String>,
    /// Hours overridden: `Some(true)` open, `Some(false)` closed.
    pub open: Option<bool>,
}

#[derive(Clone, Debug)]
struct Compiled {
    name: String,
    action: RuleAction,
    callers: Option<GlobSet>,
    namespaces: Option<GlobSet>,
    agents: Option<GlobSet>,
    capabilities: Option<GlobSet>,
    words: Vec<String>,
}

/// All rules of a policy.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<Compiled>,
}

fn globs(list: &[String], pointer: &str, faults: &mut Vec<Fault>) -> Option<GlobSet> {
    if list.is_empty() {
        return None;
    }
    let mut set = GlobSetBuilder::new();
    for (i, text) in list.iter().enumerate() {
        match Glob::new(text) {
            Ok(glob) => {
                set.add(glob);
            }
            Err(e) => faults.push(Fault::new(format!("{pointer}/{i}"), "a glob such as \"orders/*\"", e.kind().to_string())),
        }
    }
    set.build().map_err(|e| faults.push(Fault::new(pointer, "globs that compile", e.to_string()))).ok()
}

impl RuleSet {
    /// Compiles rules; every faulty glob is reported.
    pub fn new(rules: &[Rule]) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let compiled = rules
            .iter()
            .enumerate()
            .map(|(i, rule)| {
                let mut part = |list: &[String], name: &str| globs(list, &format!("policy.rules.{i}.{name}"), &mut faults);
                Compiled {
                    name: rule.name.clone(),
                    action: rule.action.clone(),
                    callers: part(&rule.callers, "callers"),
                    namespaces: part(&rule.namespaces, "namespaces"),
                    agents: part(&rule.agents, "agents"),
                    capabilities: part(&rule.capabilities, "capabilities"),
                    words: rule.words.iter().map(|w| w.to_lowercase()).collect(),
                }
            })
            .collect();
        if faults.is_empty() { Ok(Self { rules: compiled }) } else { Err(faults) }
    }

    /// Whether there is any rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules as far as they depend on the query only: a view for its candidates.
    pub fn for_query<'a>(&'a self, caller: &str, text: &str) -> QueryRules<'a> {
        let lower = if self.rules.iter().any(|r| !r.words.is_empty()) { text.to_lowercase() } else { String::new() };
        QueryRules {
            rules: self
                .rules
                .iter()
                .filter(|r| {
                    r.callers.as_ref().is_none_or(|g| g.is_match(caller))
                        && (r.words.is_empty() || r.words.iter().any(|w| lower.contains(w.as_str())))
                })
                .collect(),
        }
    }
}

/// Rules that touch one query.
#[derive(Debug, Default)]
pub struct QueryRules<'a> {
    rules: Vec<&'a Compiled>,
}

impl QueryRules<'_> {
    /// Whether no rule touches the query.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether some rule may force a candidate.
    pub fn may_force(&self) -> bool {
        self.rules.iter().any(|r| r.action == RuleAction::Force)
    }

    /// What the rules say of a candidate; `agent` is `namespace/agent_id`, `capability` the folded name.
    pub fn effect(&self, namespace: &str, agent: &str, capability: &str) -> Effect {
        let mut effect = Effect::default();
        let (mut allow_seen, mut allowed) = (None, false);
        for rule in &self.rules {
            let hit = rule.namespaces.as_ref().is_none_or(|g| g.is_match(namespace))
                && rule.agents.as_ref().is_none_or(|g| g.is_match(agent))
                && rule.capabilities.as_ref().is_none_or(|g| g.is_match(capability));
            if rule.action == RuleAction::Allow {
                allow_seen.get_or_insert_with(|| rule.name.clone());
                allowed |= hit;
            }
            if !hit {
                continue;
            }
            match rule.action {
                RuleAction::Allow => {}
                RuleAction::Deny => effect.denied = Some(rule.name.clone()),
                RuleAction::Force => effect.forced = Some(rule.name.clone()),
                RuleAction::Open => effect.open = Some(true),
                RuleAction::Close => effect.open = Some(false),
            }
        }
        if !allowed && effect.denied.is_none() {
            effect.denied = allow_seen;
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, action: RuleAction) -> Rule {
        Rule { name: name.into(), action, callers: vec![], namespaces: vec![], agents: vec![], capabilities: vec![], words: vec![] }
    }

    #[test]
    fn deny_allow_and_force() {
        let set = RuleSet::new(&[
            Rule { agents: vec!["orders/*".into()], ..rule("no orders", RuleAction::Deny) },
            Rule { callers: vec!["bot-*".into()], namespaces: vec!["kb".into()], ..rule("bots read", RuleAction::Allow) },
            Rule { words: vec!["紧急".into()], capabilities: vec!["page_oncall".into()], ..rule("page", RuleAction::Force) },
        ])
        .unwrap();
        let person = set.for_query("ann", "hi");
        assert_eq!(person.effect("orders", "orders/desk", "refund").denied.as_deref(), Some("no orders"));
        assert_eq!(person.effect("kb", "kb/a", "search").denied, None);
        let bot = set.for_query("bot-7", "紧急！服务挂了");
        assert_eq!(bot.effect("ops", "ops/a", "restart").denied.as_deref(), Some("bots read"));
        assert_eq!(bot.effect("kb", "kb/a", "page_oncall").forced.as_deref(), Some("page"));
    }

    #[test]
    fn faulty_globs_name_their_place() {
        let faults = RuleSet::new(&[Rule { agents: vec!["a[".into()], ..rule("x", RuleAction::Deny) }]).unwrap_err();
        assert_eq!(faults[0].pointer, "policy.rules.0.agents/0");
    }
}
