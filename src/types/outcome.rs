//! What came of a decision, as a label: who was chosen, who would have been right, who says so.
//!
//! Pure words: reading them from callers (`ingest::feedback`), keeping them (`store`) and learning from them (`history`) are elsewhere.

use crate::types::id::{AgentKey, parse_agent};
use crate::types::text::fold_name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// How a choice turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The caller used the result as it was.
    Adopted,
    /// The agent reported it done.
    Acked,
    /// The caller used the result after changing it.
    Modified,
    /// The caller chose another one (`correct`, when it says which).
    Overridden,
    /// The agent said "not mine".
    Rejected,
    /// No answer in time, or a failure: says nothing about who was meant.
    Timeout,
    /// Nobody in the visible fleet can do it.
    Nobody,
}

impl Verdict {
    /// Every one.
    pub const ALL: [Self; 7] = [Self::Adopted, Self::Acked, Self::Modified, Self::Overridden, Self::Rejected, Self::Timeout, Self::Nobody];

    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Acked => "acked",
            Self::Modified => "modified",
            Self::Overridden => "overridden",
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::Nobody => "nobody",
        }
    }

    /// By its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.as_str() == text)
    }
}

/// One capability of one agent, by names that survive a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CapKey {
    /// The agent.
    pub agent: AgentKey,
    /// Folded name of the capability.
    pub capability: Arc<str>,
}

impl CapKey {
    /// Of an agent and a capability name as written.
    pub fn new(agent: AgentKey, capability: &str) -> Self {
        Self { agent, capability: Arc::from(fold_name(capability)) }
    }

    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (agent, capability) = text.split_once('#').ok_or("a capability as \"namespace/agent_id#name\"")?;
        Ok(Self { agent: parse_agent(agent)?, capability: Arc::from(capability) })
    }
}

impl fmt::Display for CapKey {
    /// `namespace/agent_id#folded_name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.agent, self.capability)
    }
}

/// One labelled outcome, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Id, unique with its reporter: the same id again replaces.
    pub id: String,
    /// When it happened, milliseconds since the epoch.
    pub at_ms: i64,
    /// Decision it is about, when known.
    pub decision_id: Option<String>,
    /// What was asked, in words; absent when texts are not kept.
    pub text: Option<String>,
    /// Tenant of who asked.
    pub tenant: Option<String>,
    /// Who asked.
    pub caller: String,
    /// Who reports it.
    pub reporter: String,
    /// Whether the reporter speaks for the very agent it praises: such votes count only up to a bound.
    pub own: bool,
    /// What the reporter could see: `*`, or namespaces joined by commas. A verdict that nobody fits holds for this part of the fleet alone.
    pub scope: String,
    /// How it turned out.
    pub verdict: Verdict,
    /// What was chosen.
    pub chosen: Option<CapKey>,
    /// What would have been right, when another than the chosen one.
    pub correct: Option<CapKey>,
    /// Folded name of the capability that the caller used before.
    pub previous: Option<String>,
}

impl Outcome {
    /// The capability that was right, and how much this counts, 0..=1; `None` when it does not say.
    pub fn right(&self) -> Option<(&CapKey, f32)> {
        match self.verdict {
            Verdict::Adopted => self.chosen.as_ref().map(|c| (c, 1.0)),
            Verdict::Acked => self.chosen.as_ref().map(|c| (c, 0.7)),
            Verdict::Modified => self.chosen.as_ref().map(|c| (c, 0.5)),
            Verdict::Overridden | Verdict::Rejected => self.correct.as_ref().map(|c| (c, 1.0)),
            Verdict::Timeout | Verdict::Nobody => None,
        }
    }

    /// The capability that was wrong, when it says so.
    pub fn wrong(&self) -> Option<&CapKey> {
        match self.verdict {
            Verdict::Overridden | Verdict::Rejected => self.chosen.as_ref(),
            Verdict::Adopted | Verdict::Acked | Verdict::Modified | Verdict::Timeout | Verdict::Nobody => None,
        }
    }
}

/// What a caller reports. Unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Id of the reporter's choice; the same again replaces. Made from the decision, or drawn, when absent.
    pub id: Option<String>,
    /// Decision it is about; text, caller and choice are taken from the log where they are not given.
    pub decision_id: Option<String>,
    /// What was asked.
    pub query: Option<String>,
    /// Verdict by its name.
    pub verdict: String,
    /// What was chosen.
    pub chosen: Option<(AgentKey, String)>,
    /// What would have been right.
    pub correct: Option<(AgentKey, String)>,
    /// Who asked; taken at its word only when no tokens are configured.
    pub caller: Option<String>,
    /// Tenant of who asked; the same rule.
    pub tenant: Option<String>,
    /// Capability used before.
    pub previous: Option<String>,
    /// When it happened, RFC 3339; now when absent.
    pub at: Option<String>,
}

/// Which outcomes are meant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeFilter {
    /// Those that name this agent as chosen or correct.
    pub agent: Option<AgentKey>,
    /// Of these, those that name this capability (as written).
    pub capability: Option<String>,
    /// Those of this reporter.
    pub reporter: Option<String>,
    /// The one with this id.
    pub id: Option<String>,
}

/// A page of outcomes, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomePage {
    /// The outcomes.
    pub outcomes: Vec<Outcome>,
    /// Cursor of the next page; absent at the end.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Namespace;

    #[test]
    fn keys_read_back() {
        let key = CapKey::new(AgentKey::local(Namespace::new("hr/payroll").unwrap(), "desk-1"), "RefundCreate");
        assert_eq!(key.to_string(), format!("hr/payroll/desk-1#{}", fold_name("RefundCreate")));
        assert_eq!(CapKey::parse(&key.to_string()).unwrap(), key);
        assert!(CapKey::parse("hr/payroll").is_err() && CapKey::parse("x#y").is_err());
    }

    #[test]
    fn verdicts_have_names() {
        assert!(Verdict::ALL.iter().all(|v| Verdict::parse(v.as_str()) == Some(*v)));
        assert_eq!(Verdict::parse("great"), None);
    }
}
