//! Where dead letters go: an agent that takes over, or a URL that is told (people on call), by the namespace of the agent that failed.
//!
//! In: the operator's rules. Out: the rule of a dead letter, if one holds. Invariant: the rule of the very namespace comes before the one for all, and
//! among those the first that is written. Not here: sending (`dispatch`), that a message is escalated once (`dispatch::engine`).

use crate::types::envelope::ReachId;
use crate::types::id::{AgentKey, Namespace};
use crate::types::message::DeadTag;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Who is told of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// This agent takes over, with a message of its own.
    Agent {
        /// Who.
        agent: AgentKey,
        /// For which of its capabilities.
        capability: Arc<str>,
        /// How long the message lives.
        ttl: Duration,
    },
    /// This URL is told, signed.
    Callback(Arc<str>),
}

impl To {
    /// As it is shown: never a URL, which may hold a key.
    pub fn shown(&self) -> String {
        match self {
            Self::Agent { agent, capability, .. } => format!("{agent} {capability}"),
            Self::Callback(_) => "callback".into(),
        }
    }
}

/// A rule of the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Namespace of the agent that had the message last; `None` = every namespace.
    pub namespace: Option<Namespace>,
    /// Why it was given up; empty = whatever the reason.
    pub tags: Vec<DeadTag>,
    /// Who is told.
    pub to: To,
}

/// The rule of a message that is given up.
pub fn rule_for<'a>(rules: &'a [Rule], namespace: Option<&Namespace>, tag: DeadTag) -> Option<&'a Rule> {
    let holds = |r: &&Rule| r.tags.is_empty() || r.tags.contains(&tag);
    let own = || rules.iter().filter(|r| r.namespace.is_some() && r.namespace.as_ref() == namespace).find(holds);
    own().or_else(|| rules.iter().filter(|r| r.namespace.is_none()).find(holds))
}

/// The dead letter behind a message that takes it over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalated {
    /// The dead letter.
    pub reach_id: ReachId,
    /// Why it was given up.
    pub tag: DeadTag,
    /// In words.
    pub reason: Arc<str>,
    /// Who had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentKey>,
    /// What was wanted of whom had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(namespace: Option<&str>, tags: &[DeadTag], to: &str) -> Rule {
        Rule { namespace: namespace.map(|n| Namespace::new(n).unwrap()), tags: tags.to_vec(), to: To::Callback(Arc::from(to)) }
    }

    #[test]
    fn the_nearest_rule_holds() {
        let rules = [
            rule(None, &[], "all"),
            rule(Some("orders"), &[DeadTag::Poison], "orders poison"),
            rule(Some("orders"), &[DeadTag::TtlExpired, DeadTag::Poison], "orders"),
        ];
        let to = |namespace: Option<&str>, tag: DeadTag| {
            let namespace = namespace.map(|n| Namespace::new(n).unwrap());
            rule_for(&rules, namespace.as_ref(), tag).map(|r| match &r.to {
                To::Callback(url) => url.to_string(),
                To::Agent { .. } => panic!("none here"),
            })
        };
        assert_eq!(to(Some("orders"), DeadTag::Poison).as_deref(), Some("orders poison"));
        assert_eq!(to(Some("orders"), DeadTag::TtlExpired).as_deref(), Some("orders"));
        assert_eq!(to(Some("orders"), DeadTag::AgentBusy).as_deref(), Some("all"));
        assert_eq!(to(Some("orders/eu"), DeadTag::Poison).as_deref(), Some("all"), "another namespace");
        assert_eq!(to(None, DeadTag::NoMatchedAgent).as_deref(), Some("all"));
        assert!(rule_for(&rules[1..], None, DeadTag::Poison).is_none());
        assert_eq!(rules[0].to.shown(), "callback", "a URL is never shown");
    }
}
