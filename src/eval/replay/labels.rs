//! What became of a request: from people (expected answers) or from outcomes (acks, adoptions, rejections, corrections).
//!
//! In: JSON lines, each for one decision (`decision_id`) or for all with the same text (`query`, and `caller` where given). Out: a [`Truth`] a decision.
//! Outcomes: acked, adopted and modified = the chosen one is right; rejected, not_mine and overridden = it is wrong (and `correct`, when given, is right);
//! no_matched_agent with `correct` = a miss; timeout and failed say nothing about who was right.
//! An outcome says nothing about other agents that offer the same capability: they are unknown, never counted as wrong. Of two outcomes, and of two lists
//! of expected answers, the later one counts; expected answers go over outcomes said before. Names of capabilities are compared folded (`refundCreate` is `refund_create`).

use crate::config::files::read_text;
use crate::error::Error;
use crate::eval::queries::Mode;
use crate::eval::replay::entry::Entry;
use crate::route::logged::Who;
use crate::route::shortlist::Item;
use crate::types::AgentKey;
use crate::types::fault::Fault;
use crate::types::text::fold_name;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

/// Agent (`agent_id`, `namespace/agent_id`, or `*` for any) and capability.
pub type Pair = (String, String);

/// A line of a labels file. Other fields are ignored, so that a set of queries can be a labels file.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RawLabel {
    /// Decision it is about.
    #[serde(default)]
    pub decision_id: Option<String>,
    /// Text it is about.
    #[serde(default)]
    pub query: Option<String>,
    /// Caller it is about; any when absent.
    #[serde(default)]
    pub caller: Option<String>,
    /// Right answers; empty = nobody can do it.
    #[serde(default)]
    pub expected: Option<Vec<Pair>>,
    /// Whether one of them is enough, or all are needed.
    #[serde(default)]
    pub mode: Mode,
    /// What came of it.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Who got it; the first candidate of the logged decision when absent.
    #[serde(default)]
    pub chosen: Option<Pair>,
    /// Who should have got it.
    #[serde(default)]
    pub correct: Option<Pair>,
}

impl RawLabel {
    /// What is wrong with it, if anything: it is about nothing, says nothing, or says two things of which one is not so.
    pub fn check(&self) -> Result<(), String> {
        if self.decision_id.is_none() && self.query.is_none() || self.expected.is_none() && self.outcome.is_none() {
            return Err("it needs decision_id or query, and expected or outcome".into());
        }
        let Some(expected) = &self.expected else { return Ok(()) };
        let done = matches!(self.outcome, Some(Outcome::Acked | Outcome::Adopted | Outcome::Modified));
        if expected.is_empty() && (done || self.correct.is_some()) {
            return Err(
                "it contradicts itself: expected [] says that nobody can do it, and outcome or correct that somebody did or should have"
                    .into(),
            );
        }
        if !expected.is_empty() && self.outcome == Some(Outcome::Nobody) {
            return Err("it contradicts itself: expected says who can do it, and the outcome that nobody can".into());
        }
        Ok(())
    }
}

/// What came of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The agent did it.
    Acked,
    /// The caller used the result.
    Adopted,
    /// The caller used it with changes.
    Modified,
    /// The caller took another one.
    Overridden,
    /// The agent said no.
    Rejected,
    /// The agent said that it is not its job.
    NotMine,
    /// Nobody was found.
    NoMatchedAgent,
    /// Nobody in the fleet can do it.
    Nobody,
    /// No answer in time.
    Timeout,
    /// The agent tried and failed.
    Failed,
}

/// What is known of one decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// Right answers.
    pub right: Vec<Pair>,
    /// Wrong answers.
    pub wrong: Vec<Pair>,
    /// Nobody can do it.
    pub nobody: bool,
    /// Whether whoever is in neither list is wrong; otherwise nothing is known of them.
    pub closed: bool,
    /// Whether another agent with the right capability is unknown instead of wrong.
    pub twins: bool,
    /// Whether all right answers are needed, not one of them.
    pub all: bool,
    /// Whether right answers were listed, so that no outcome takes one away.
    listed: bool,
    /// Whether they were listed twice, and not the same: the later list holds.
    pub contradicted: bool,
}

fn is_agent(name: &str, agent: &AgentKey) -> bool {
    name == "*" || *name == *agent.agent_id || (name.contains('/') && name == agent.to_string())
}

fn is(pair: &Pair, who: &Who) -> bool {
    *pair.1 == *who.capability && is_agent(&pair.0, &who.agent)
}

impl Truth {
    /// Whether an answer is right; `None` = not known.
    pub fn of(&self, who: &Who) -> Option<bool> {
        if self.nobody {
            return Some(false);
        }
        if self.right.iter().any(|p| is(p, who)) {
            return Some(true);
        }
        if self.wrong.iter().any(|p| is(p, who)) {
            return Some(false);
        }
        if self.twins && self.right.iter().any(|p| *p.1 == *who.capability) {
            return None;
        }
        self.closed.then_some(false)
    }

    /// Whether anybody can do it; `None` = not known.
    pub fn in_scope(&self) -> Option<bool> {
        if self.nobody { Some(false) } else { (!self.right.is_empty()).then_some(true) }
    }

    /// Whether several capabilities are needed, so that one agent is half an answer.
    pub fn several(&self) -> bool {
        let first = self.right.first();
        self.all && self.right.iter().any(|p| first.is_some_and(|f| f.1 != p.1))
    }

    /// Whether some answers hold a right one: one of each capability, where several are needed.
    pub fn held_by(&self, answers: &[Who]) -> bool {
        let is_there = |p: &Pair| answers.iter().any(|w| *w.capability == *p.1 && self.of(w) == Some(true));
        if self.several() { self.right.iter().all(is_there) } else { answers.iter().any(|w| self.of(w) == Some(true)) }
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.nobody || !self.right.is_empty() || !self.wrong.is_empty()
    }

    /// Adds what one label says. `first` = the first candidate of the logged decision.
    fn learn(&mut self, label: &RawLabel, first: Option<Pair>) {
        if let Some(expected) = &label.expected {
            let same = |a: &[Pair], b: &[Pair]| a.iter().all(|p| b.contains(p)) && b.iter().all(|p| a.contains(p));
            self.contradicted |= self.listed && !same(expected, &self.right);
            self.closed = true;
            self.twins = false;
            self.listed = true;
            self.nobody = expected.is_empty();
            self.all = label.mode == Mode::All;
            self.right.clone_from(expected);
            self.wrong.retain(|w| !expected.contains(w));
        }
        let Some(outcome) = label.outcome else { return };
        let chosen = label.chosen.clone().or(first);
        match outcome {
            Outcome::Acked | Outcome::Adopted | Outcome::Modified => {
                if let Some(chosen) = chosen {
                    self.is_right(chosen);
                }
            }
            Outcome::Overridden | Outcome::Rejected | Outcome::NotMine => {
                if let Some(chosen) = chosen.filter(|c| !self.listed || !self.right.contains(c)) {
                    self.right.retain(|r| *r != chosen);
                    self.closed = !self.right.is_empty() || self.listed;
                    self.wrong.push(chosen);
                }
                if let Some(correct) = &label.correct {
                    self.is_right(correct.clone());
                }
            }
            Outcome::NoMatchedAgent => {
                if let Some(correct) = &label.correct {
                    self.is_right(correct.clone());
                }
            }
            Outcome::Nobody if self.listed => self.nobody = self.right.is_empty(),
            Outcome::Nobody => *self = Self { nobody: true, wrong: std::mem::take(&mut self.wrong), ..Self::default() },
            Outcome::Timeout | Outcome::Failed => {}
        }
    }

    /// An outcome says that this one is right.
    fn is_right(&mut self, pair: Pair) {
        self.wrong.retain(|w| *w != pair);
        self.right.push(pair);
        self.nobody = false;
        (self.closed, self.twins) = (true, !self.listed);
    }

    /// Writes capabilities as the candidates' manifests do. A label may come from a store, which folds names, or from a person.
    fn as_written(&mut self, items: &[Item]) {
        for pair in self.right.iter_mut().chain(&mut self.wrong) {
            if items.iter().any(|i| *i.capability == *pair.1) {
                continue;
            }
            let folded = fold_name(&pair.1);
            let same = |i: &&Item| *i.folded == *folded;
            let own = items.iter().find(|i| same(i) && is_agent(&pair.0, &i.agent)).or_else(|| items.iter().find(same));
            if let Some(item) = own {
                pair.1 = item.capability.to_string();
            }
        }
    }
}

/// Labels by decision and by text.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// In the order they were said.
    all: Vec<RawLabel>,
    /// Places in it.
    by_id: HashMap<String, Vec<usize>>,
    by_text: HashMap<String, Vec<usize>>,
    /// Whether they are the outcomes of a store, so that none may fit the decisions that are replayed.
    pub of_store: bool,
}

impl Labels {
    /// None yet, to be filled with the outcomes of a store.
    pub fn of_store() -> Self {
        Self { of_store: true, ..Self::default() }
    }

    /// Reads a labels file. All faults name file and line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let text = read_text(path).map_err(|e| Error::invalid_at(&shown, "a readable JSON lines file of labels", e.to_string()))?;
        let mut out = Self::default();
        let mut faults = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let told = serde_json::from_str::<RawLabel>(line).map_err(|e| e.to_string()).and_then(|l| l.check().map(|()| l));
            match told {
                Ok(label) => out.add(label),
                Err(why) if faults.len() < 20 => {
                    faults.push(Fault::new(format!("{shown}:{}", i + 1), "a label as docs/replay.md describes it", why));
                }
                Err(_) => {}
            }
        }
        if faults.is_empty() && out.is_empty() {
            return Err(Error::invalid_at(&shown, "at least one label", "the file is empty"));
        }
        if faults.is_empty() { Ok(out) } else { Err(Error::invalid(faults)) }
    }

    /// Adds one label.
    pub fn add(&mut self, label: RawLabel) {
        let place = self.all.len();
        match (&label.decision_id, &label.query) {
            (Some(id), _) => self.by_id.entry(id.clone()).or_default().push(place),
            (None, Some(query)) => self.by_text.entry(query.trim().to_string()).or_default().push(place),
            (None, None) => {}
        }
        self.all.push(label);
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        other.all.into_iter().for_each(|l| self.add(l));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Places of the labels that are about a decision, in the order they were said.
    pub fn about(&self, entry: &Entry) -> Vec<usize> {
        let mut places = self.by_id.get(&entry.id).cloned().unwrap_or_default();
        let caller = |place: &&usize| self.all.get(**place).is_some_and(|l| l.caller.as_ref().is_none_or(|c| *c == entry.caller));
        let of_text = entry.text.as_ref().and_then(|t| self.by_text.get(t.trim()));
        places.extend(of_text.into_iter().flatten().filter(caller));
        places.sort_unstable();
        places
    }

    /// Says how many labels are about none of the decisions, from the places of those that are. A store's outcomes may be older than what is replayed.
    pub fn unfit(&self, about: &HashSet<usize>) -> Option<String> {
        let (n, first) = (self.len() - about.len().min(self.len()), (0..self.len()).find(|place| !about.contains(place)));
        let label = first.and_then(|place| self.all.get(place)).filter(|_| !self.of_store)?;
        let shown: String = label.decision_id.as_ref().or(label.query.as_ref()).map(|s| s.chars().take(60).collect()).unwrap_or_default();
        Some(format!("{n} of {} labels fit none of the decisions, such as {shown:?}", self.len()))
    }

    /// Agents that labels name as right or chosen and that are not among `seen` (`namespace/agent_id`): mistyped, or never a candidate. In order.
    pub fn strangers(&self, seen: &BTreeSet<String>) -> BTreeSet<String> {
        let named =
            self.all.iter().flat_map(|l| l.expected.iter().flatten().chain(&l.chosen).chain(&l.correct)).map(|(agent, _)| agent.as_str());
        let ids: BTreeSet<&str> = seen.iter().filter_map(|s| s.rsplit('/').next()).collect();
        let known = |name: &str| name == "*" || ids.contains(name) || seen.contains(name);
        named.filter(|name| !known(name)).map(str::to_string).collect()
    }

    /// What is known of a decision.
    pub fn of(&self, entry: &Entry) -> Truth {
        let mut truth = Truth::default();
        let decision = &entry.logged.decision;
        let first = decision.candidates.first().map(|c| (c.agent.to_string(), c.capability.to_string()));
        for label in self.about(entry).into_iter().filter_map(|place| self.all.get(place)) {
            truth.learn(label, first.clone());
        }
        truth.as_written(&entry.logged.shortlist.items);
        truth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Namespace;

    fn who(agent: &str, capability: &str) -> Who {
        Who { agent: AgentKey::local(Namespace::new("ns").unwrap(), agent), capability: capability.into() }
    }

    fn truth(lines: &[&str]) -> Truth {
        let mut t = Truth::default();
        for line in lines {
            t.learn(&serde_json::from_str(line).unwrap(), Some(("ns/a".into(), "x".into())));
        }
        t
    }

    #[test]
    fn outcomes_become_labels() {
        let acked = truth(&[r#"{"outcome":"acked"}"#]);
        assert_eq!((acked.of(&who("a", "x")), acked.of(&who("b", "x")), acked.of(&who("a", "y"))), (Some(true), None, Some(false)));
        let rejected = truth(&[r#"{"outcome":"not_mine"}"#]);
        assert_eq!((rejected.of(&who("a", "x")), rejected.of(&who("b", "y")), rejected.in_scope()), (Some(false), None, None));
        let overridden = truth(&[r#"{"outcome":"overridden","chosen":["a","x"],"correct":["b","y"]}"#]);
        assert_eq!(
            (overridden.of(&who("a", "x")), overridden.of(&who("b", "y")), overridden.in_scope()),
            (Some(false), Some(true), Some(true))
        );
        let missed = truth(&[r#"{"outcome":"no_matched_agent","correct":["b","y"]}"#]);
        assert_eq!((missed.of(&who("b", "y")), missed.in_scope()), (Some(true), Some(true)));
        let unresolved = truth(&[r#"{"outcome":"no_matched_agent"}"#, r#"{"outcome":"timeout"}"#]);
        assert!(!unresolved.is_known());
    }

    #[test]
    fn expected_answers_are_the_whole_truth() {
        let t = truth(&[r#"{"expected":[["a","x"],["ns/b","x"]]}"#]);
        assert_eq!((t.of(&who("b", "x")), t.of(&who("c", "x")), t.in_scope()), (Some(true), Some(false), Some(true)));
        let nobody = truth(&[r#"{"expected":[]}"#]);
        assert_eq!((nobody.of(&who("a", "x")), nobody.in_scope()), (Some(false), Some(false)));
        let any = truth(&[r#"{"expected":[["*","x"]]}"#]);
        assert_eq!(any.of(&who("z", "x")), Some(true));
    }

    #[test]
    fn all_that_are_needed_are_one_truth() {
        let t = truth(&[r#"{"mode":"all","expected":[["a","x"],["b","x"],["b","y"]]}"#]);
        assert!(t.several() && !t.held_by(&[who("a", "x"), who("c", "y")]) && t.held_by(&[who("b", "y"), who("a", "x")]));
        let any = truth(&[r#"{"expected":[["a","x"],["b","y"]]}"#]);
        assert!(!any.several() && any.held_by(&[who("b", "y")]) && !any.held_by(&[who("c", "y")]));
        assert!(!truth(&[r#"{"mode":"all","expected":[["a","x"],["b","x"]]}"#]).several(), "two agents of one capability are one need");
    }

    #[test]
    fn of_two_lists_the_later_one_holds() {
        let t = truth(&[r#"{"expected":[["a","x"]]}"#, r#"{"expected":[["b","x"]]}"#]);
        assert_eq!((t.of(&who("a", "x")), t.of(&who("b", "x")), t.contradicted), (Some(false), Some(true), true));
        let nobody = truth(&[r#"{"expected":[["a","x"]]}"#, r#"{"expected":[]}"#]);
        assert_eq!((nobody.in_scope(), nobody.contradicted), (Some(false), true));
        let somebody = truth(&[r#"{"expected":[]}"#, r#"{"expected":[["a","x"]]}"#]);
        assert_eq!((somebody.of(&who("a", "x")), somebody.in_scope()), (Some(true), Some(true)));
        let same = truth(&[r#"{"expected":[["a","x"],["b","y"]]}"#, r#"{"expected":[["b","y"],["a","x"]]}"#]);
        assert!(!same.contradicted && same.of(&who("b", "y")) == Some(true));
    }

    #[test]
    fn a_label_that_contradicts_itself_is_a_fault_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.jsonl");
        let put = |lines: &str| crate::config::files::write_atomic(&path, lines.as_bytes()).unwrap();
        for bad in [
            r#"{"decision_id":"2","expected":[],"outcome":"adopted"}"#,
            r#"{"decision_id":"2","expected":[],"outcome":"overridden","correct":["a","x"]}"#,
            r#"{"decision_id":"2","expected":[["a","x"]],"outcome":"nobody"}"#,
        ] {
            put(&format!("{{\"decision_id\":\"1\",\"expected\":[]}}\n{bad}\n"));
            let e = Labels::read(&path).unwrap_err().to_string();
            assert!(e.contains("labels.jsonl:2") && e.contains("contradicts itself"), "{e}");
        }
        put("{\"decision_id\":\"1\",\"expected\":[],\"outcome\":\"rejected\"}\n");
        assert_eq!(Labels::read(&path).unwrap().len(), 1);
        put("\u{feff}{\"decision_id\":\"1\",\"expected\":[]}\n");
        assert_eq!(Labels::read(&path).unwrap().len(), 1, "a byte order mark is no text");
        put("\n");
        assert!(Labels::read(&path).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn agents_that_nothing_ever_named_are_told() {
        let mut labels = Labels::default();
        for line in [
            r#"{"decision_id":"1","expected":[["refnd-desk","x"],["ns/b","x"],["*","y"]]}"#,
            r#"{"query":"q","outcome":"overridden","chosen":["a","x"],"correct":["other/b","x"]}"#,
        ] {
            labels.add(serde_json::from_str(line).unwrap());
        }
        let seen = ["ns/a".to_string(), "ns/b".to_string()].into();
        assert_eq!(labels.strangers(&seen).into_iter().collect::<Vec<_>>(), ["other/b", "refnd-desk"]);
    }
}
