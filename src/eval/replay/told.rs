//! Outcomes that a store keeps, as labels: what a replay of a live node knows without a labels file.
//!
//! In: outcomes, oldest first. Out: [`Labels`]. Rules: acked, adopted and modified = the chosen one was right; rejected ("not mine") and overridden = it
//! was wrong, and `correct`, when given, was right, which makes an answer of `none` that somebody resolved by hand a miss; nobody = nobody can do it;
//! timeout tells nothing. Where a caller spoke of a decision, what the agents said of themselves does not count. Later words go over earlier ones.
//! Not here: what a label means for a decision ([`super::labels`]).

use super::labels::{Labels, Outcome as Said, Pair, RawLabel};
use crate::types::outcome::{CapKey, Outcome, Verdict};
use std::collections::HashSet;

fn said(verdict: Verdict) -> Option<Said> {
    match verdict {
        Verdict::Adopted => Some(Said::Adopted),
        Verdict::Acked => Some(Said::Acked),
        Verdict::Modified => Some(Said::Modified),
        Verdict::Overridden => Some(Said::Overridden),
        Verdict::Rejected => Some(Said::Rejected),
        Verdict::Nobody => Some(Said::Nobody),
        Verdict::Timeout => None,
    }
}

fn pair(key: CapKey) -> Pair {
    (key.agent.to_string(), key.capability.to_string())
}

/// Labels of outcomes that are oldest first.
pub fn labels(outcomes: Vec<Outcome>) -> Labels {
    let telling: Vec<(Said, Outcome)> = outcomes.into_iter().filter_map(|o| Some((said(o.verdict)?, o))).collect();
    let by_callers: HashSet<String> = telling.iter().filter(|(_, o)| !o.own).filter_map(|(_, o)| o.decision_id.clone()).collect();
    let mut out = Labels::of_store();
    for (outcome, o) in telling {
        let about_itself = o.own && o.decision_id.as_ref().is_some_and(|id| by_callers.contains(id));
        if about_itself || (o.decision_id.is_none() && o.text.is_none()) {
            continue;
        }
        out.add(RawLabel {
            query: o.text.filter(|_| o.decision_id.is_none()),
            decision_id: o.decision_id,
            caller: Some(o.caller),
            outcome: Some(outcome),
            chosen: o.chosen.map(pair),
            correct: o.correct.map(pair),
            ..RawLabel::default()
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::*;
    use crate::eval::replay::testing::entry;
    use crate::route::logged::Who;
    use crate::route::shortlist::Shortlist;
    use crate::route::shortlist::testing::item;
    use crate::types::policy::Policy;
    use crate::types::{AgentKey, Namespace};

    fn key(agent: &str) -> AgentKey {
        AgentKey::local(Namespace::new("test").unwrap(), agent)
    }

    fn outcome(verdict: Verdict, own: bool, chosen: Option<&str>, correct: Option<&str>) -> Outcome {
        let cap = |c: &str| CapKey::new(key(c), "doWork");
        Outcome {
            id: "o".into(),
            at_ms: 0,
            decision_id: Some("d1".into()),
            text: Some("request 1".into()),
            tenant: None,
            caller: "t".into(),
            reporter: if own { "agent:test/a".into() } else { "t".into() },
            own,
            scope: "*".into(),
            verdict,
            chosen: chosen.map(cap),
            correct: correct.map(cap),
            previous: None,
        }
    }

    fn decision() -> Entry {
        // the store folds names of capabilities, the log writes them as the manifest does
        let mut items = vec![item("a", "doWork", 0.6), item("b", "doWork", 0.5), item("c", "doWork", 0.4)];
        items.iter_mut().for_each(|i| i.folded = "do_work".into());
        entry(1, &Shortlist { items, ..Shortlist::default() }, &Policy::default())
    }

    fn of(all: Vec<Outcome>) -> ([Option<bool>; 3], Option<bool>) {
        let truth = labels(all).of(&decision());
        (["a", "b", "c"].map(|a| truth.of(&Who { agent: key(a), capability: "doWork".into() })), truth.in_scope())
    }

    #[test]
    fn every_verdict_says_what_it_says() {
        for right in [Verdict::Adopted, Verdict::Acked, Verdict::Modified] {
            assert_eq!(of(vec![outcome(right, false, Some("a"), None)]), ([Some(true), None, None], Some(true)), "{right:?}");
        }
        assert_eq!(of(vec![outcome(Verdict::Rejected, true, Some("a"), None)]), ([Some(false), None, None], None));
        let resolved_by_hand = outcome(Verdict::Overridden, false, None, Some("b"));
        assert_eq!(of(vec![resolved_by_hand]).1, Some(true), "an answer of none is a miss then");
        assert_eq!(of(vec![outcome(Verdict::Nobody, false, None, None)]), ([Some(false); 3], Some(false)));
        assert_eq!(of(vec![outcome(Verdict::Timeout, true, Some("a"), None)]), ([None; 3], None));
    }

    #[test]
    fn the_caller_knows_better_than_the_agent_and_later_words_count() {
        let acked = outcome(Verdict::Acked, true, Some("a"), None);
        let overridden = outcome(Verdict::Overridden, false, Some("a"), Some("b"));
        for all in [vec![acked.clone(), overridden.clone()], vec![overridden.clone(), acked.clone()]] {
            assert_eq!(of(all).0, [Some(false), Some(true), None]);
        }
        let adopted = outcome(Verdict::Adopted, false, Some("a"), None);
        assert_eq!(of(vec![adopted.clone(), overridden.clone()]).0[0], Some(false));
        assert_eq!(of(vec![overridden, adopted.clone()]).0[0], Some(true));
        // two words for the same one say nothing about the others
        assert_eq!(of(vec![acked.clone(), Outcome { reporter: "x".into(), ..acked }]).0, [Some(true), None, None]);
        assert_eq!(of(vec![adopted.clone(), Outcome { reporter: "x".into(), ..adopted }]).0, [Some(true), None, None]);
    }

    #[test]
    fn what_was_said_without_a_decision_holds_for_the_text() {
        let by_text = Outcome { decision_id: None, ..outcome(Verdict::Adopted, false, Some("b"), None) };
        assert_eq!(of(vec![by_text.clone()]).0[1], Some(true));
        let of_another = Outcome { caller: "somebody".into(), ..by_text.clone() };
        assert_eq!(of(vec![of_another]).1, None, "what another caller means by it is not known");
        assert_eq!(of(vec![Outcome { text: None, ..by_text }]).1, None);
    }
}
