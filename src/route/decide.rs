//! Turns a ranked shortlist into `auto`, `suggest` or `none`, with reasons.
//!
//! In: ranked items, facts about the query, the policy's operating point. Out: a decision without an id.
//! Thresholds apply to calibrated probabilities only, never to fused rank scores. Candidates under the floor and candidates
//! reached only through the other language's model are never better than `suggest`. Pure.

use crate::route::dice::Dice;
use crate::route::rank::{self, Ranked};
use crate::route::shortlist::{Item, Named, Shortlist};
use crate::types::decision::{Candidate, Decision, DecisionKind, DropReason, Dropped, Generations, Note, Term};
use crate::types::policy::{OperatingPoint, Policy, Preset};
use crate::types::score::Probability;
use crate::types::text::fold_name;
use std::borrow::Cow;

/// What the pick needs beside the shortlist.
#[derive(Clone, Debug)]
pub struct PickOptions<'a> {
    /// Preset by name; the policy's default when absent or unknown (a warning says so).
    pub preset: Option<&'a str>,
    /// Operating point shipped with the calibration; used when the policy sets none.
    pub shipped: OperatingPoint,
    /// Largest number of candidates.
    pub k: usize,
    /// Seed of the dice.
    pub seed: u64,
}

fn floor_cut<'a>(ranked: Vec<Ranked<'a>>, point: &OperatingPoint) -> Vec<(Ranked<'a>, bool)> {
    let mut kept_under = 0;
    ranked
        .into_iter()
        .filter_map(|r| {
            let under = r.item.similarity < point.floor && r.item.named.is_none() && r.item.forced.is_none();
            if under {
                kept_under += 1;
            }
            (!under || kept_under <= point.keep_under_floor).then_some((r, under))
        })
        .collect()
}

/// Share of candidates one publisher may hold while others are in the list too.
fn cap_publishers<'a>(list: Vec<(Ranked<'a>, bool)>, per_publisher: usize, k: usize) -> Vec<(Ranked<'a>, bool)> {
    let several = list.first().is_some_and(|(f, _)| list.iter().any(|(r, _)| r.item.agent.namespace != f.item.agent.namespace));
    if per_publisher == 0 || !several {
        return list.into_iter().take(k).collect();
    }
    let (mut kept, mut over) = (Vec::new(), Vec::new());
    for entry in list {
        let same = kept.iter().filter(|(r, _): &&(Ranked<'a>, bool)| r.item.agent.namespace == entry.0.item.agent.namespace).count();
        if same < per_publisher || entry.0.item.named.is_some() { kept.push(entry) } else { over.push(entry) }
    }
    kept.extend(over);
    kept.truncate(k);
    kept
}

fn candidate(r: &Ranked<'_>, under_floor: bool) -> Candidate {
    let item = r.item;
    let mut found_by: Vec<Cow<'static, str>> = Vec::new();
    match item.named {
        Some(Named::Exact) => found_by.push("exact_name".into()),
        Some(Named::InText) => found_by.push("name_in_text".into()),
        None => {}
    }
    if item.forced.is_some() {
        found_by.push("rule".into());
    }
    if item.cosine.is_some() {
        found_by.push("dense".into());
    }
    if item.bm25 > 0.0 {
        found_by.push("keyword".into());
    }
    let mut evidence =
        vec![Term { name: "bm25".into(), weight: 0.0, value: item.bm25 }, Term { name: "fused".into(), weight: 0.0, value: item.fused }];
    if item.habit != 0.0 {
        evidence.push(Term { name: "habit".into(), weight: 0.0, value: item.habit });
    }
    if item.learned != 0.0 {
        evidence.push(Term { name: "learned".into(), weight: 0.0, value: item.learned });
    }
    if let Some(cosine) = item.cosine {
        evidence.insert(0, Term { name: "cosine".into(), weight: 0.0, value: cosine });
    }
    Candidate {
        agent: item.agent.clone(),
        agent_version: item.agent_version.clone(),
        capability: item.capability.clone(),
        score: r.score,
        probability: Probability::new(item.similarity),
        under_floor,
        found_by,
        terms: r.terms.clone(),
        evidence,
    }
}

/// Picks from a shortlist. Pure in (shortlist, policy, options).
pub fn pick(list: &Shortlist, policy: &Policy, options: &PickOptions<'_>) -> Decision {
    let mut dice = Dice::new(options.seed);
    let mut warnings = list.warnings.clone();
    let wanted = options.preset.unwrap_or(&policy.default_preset);
    let plain = Preset::default();
    let (preset_name, preset) = match policy.presets.get_key_value(wanted).or_else(|| policy.presets.get_key_value(&policy.default_preset))
    {
        Some((name, preset)) => (name.clone(), preset),
        None => ("none".into(), &plain),
    };
    if preset_name != wanted {
        warnings.push(Note::new("unknown_preset", format!("no ranking preset is called {wanted:?}; {preset_name} was used")));
    }
    let facts = &list.facts;
    // thresholds of other models mean nothing here
    let holds = policy.fitted_for.is_empty() || facts.calibrated || facts.exact;
    let point = policy.point.as_ref().filter(|_| holds).unwrap_or(&options.shipped);
    if !facts.calibrated && !facts.exact {
        warnings.push(Note::new("uncalibrated", "no thresholds were fitted for the models in use: confidence is provisional"));
    }

    let ranked = rank::order(list, preset, policy, &mut dice);
    let own = ranked.first().and_then(|r| policy.points.get(r.item.agent.namespace.as_str())).filter(|_| holds);
    let point = own.unwrap_or(point);
    let kept = cap_publishers(floor_cut(ranked, point), policy.per_publisher, options.k.clamp(1, 50));
    let candidates: Vec<Candidate> = kept.iter().map(|(r, under)| candidate(r, *under)).collect();

    let mut reasons = Vec::new();
    let margin = margin_of(&kept);
    let (kind, confidence) = judge(list, policy, &kept, point, margin, &mut reasons);
    let mut candidates = candidates;
    if let Some(first) = candidates.first_mut().filter(|_| kind == DecisionKind::Auto) {
        // what is delivered is worth what the decision says it is
        first.probability = Probability::new(first.probability.get().max(confidence));
    }
    let margin = if kind == DecisionKind::Auto { margin.max(confidence - second_of(&kept)) } else { margin };
    let mut decision = Decision {
        decision_id: String::new(),
        kind,
        confidence: Probability::new(confidence),
        margin,
        calibrated: facts.calibrated || facts.exact,
        candidates,
        dropped: list.dropped.clone(),
        reasons,
        warnings,
        preset: preset_name,
        generations: Generations::default(),
    };
    // said once: where it is why this is no `auto`, it stands there already
    let said = decision.reasons.iter().any(|r| r.code == "better_unavailable");
    let better = decision.dropped.first().filter(|d| decision.candidates.first().is_none_or(|c| d.similarity > c.probability.get()));
    if let Some(best) = better.filter(|_| !said) {
        decision.reasons.push(Note::new("better_dropped", crate::route::explain::why_not(best).to_string()));
    }
    decision
}

/// Lead of the first over the next *different* capability.
fn margin_of(kept: &[(Ranked<'_>, bool)]) -> f32 {
    kept.first().map_or(0.0, |(first, _)| first.item.similarity - second_of(kept))
}

/// Similarity of the next different capability.
fn second_of(kept: &[(Ranked<'_>, bool)]) -> f32 {
    let Some((first, _)) = kept.first() else { return 0.0 };
    kept.iter().skip(1).filter(|(r, _)| r.item.folded != first.item.folded).map(|(r, _)| r.item.similarity).fold(0.0, f32::max)
}

/// Share of the best candidate's similarity from which on one that can't be had now is as likely meant.
const AS_LIKELY: f32 = 0.7;

/// A candidate for something else that is as likely meant, and can't take it now: who asks for the one is not served by the other.
fn better_away<'a>(list: &'a Shortlist, first: &Item) -> Option<&'a Dropped> {
    let away = |why: &DropReason| match why {
        DropReason::ScopeMissing { .. }
        | DropReason::Region { .. }
        | DropReason::Closed { .. }
        | DropReason::Attribute { .. }
        | DropReason::Cost { .. }
        | DropReason::LeaseExpired
        | DropReason::Unreachable
        | DropReason::Draining
        | DropReason::Breaker
        | DropReason::Overloaded => true,
        // what the caller or the operator chose, and what the payload says
        DropReason::Payload { .. }
        | DropReason::Rule { .. }
        | DropReason::NotPreferred
        | DropReason::NotTarget
        | DropReason::Excluded
        | DropReason::UnderFloor => false,
    };
    list.dropped.iter().find(|d| away(&d.why) && d.similarity >= AS_LIKELY * first.similarity && fold_name(&d.capability) != *first.folded)
}

fn judge(
    list: &Shortlist,
    policy: &Policy,
    kept: &[(Ranked<'_>, bool)],
    point: &OperatingPoint,
    margin: f32,
    reasons: &mut Vec<Note>,
) -> (DecisionKind, f32) {
    let facts = &list.facts;
    let Some((first, under)) = kept.first() else {
        reasons.push(Note::new(
            "no_candidate",
            if list.dropped.is_empty() {
                "nothing in the visible fleet is like this request".to_string()
            } else {
                format!("all {} candidates were dropped", list.dropped.len())
            },
        ));
        return (DecisionKind::None, 0.0);
    };
    if let Some(rule) = &first.item.forced {
        reasons.push(Note::new("rule", format!("rule {rule:?} forces it")));
        return (DecisionKind::Auto, 1.0);
    }
    let named: Vec<_> = kept.iter().filter(|(r, _)| r.item.named.is_some()).collect();
    let different_named = named.iter().any(|(r, _)| r.item.folded != first.item.folded);
    if first.item.named == Some(Named::Exact) {
        if different_named
            && named.iter().filter(|(r, _)| r.item.named == Some(Named::Exact)).any(|(r, _)| r.item.folded != first.item.folded)
        {
            reasons.push(Note::new("several_names", "the name fits several capabilities"));
            return (DecisionKind::Suggest, 1.0);
        }
        reasons.push(Note::new("exact_name", format!("{} was asked for by name", first.item.capability)));
        return (DecisionKind::Auto, 1.0);
    }
    if first.item.named == Some(Named::InText) {
        if different_named {
            reasons.push(Note::new("several_names", format!("{} capabilities are named in the request", named.len())));
            return (DecisionKind::Suggest, first.item.similarity.max(0.9));
        }
        if facts.negated {
            reasons.push(Note::new("negated", "a capability is named, but the request negates something"));
            return (DecisionKind::Suggest, first.item.similarity.max(0.5));
        }
        if facts.used && facts.clauses < 2 {
            reasons.push(Note::new("name_in_text", format!("the request names {}", first.item.capability)));
            return (DecisionKind::Auto, first.item.similarity.max(0.95));
        }
        // named, but among other things: the whole text decides whether it is meant
    }

    // the confidence was computed for the most similar candidate; whoever was ranked before it is worth what it is itself
    let semantic_best = list.items.first().map(|i| &i.folded);
    let confidence = if semantic_best == Some(&first.item.folded) {
        facts.confidence
    } else {
        facts.confidence.min(first.item.similarity + rank::history_gain(first.item, policy))
    };
    if facts.in_scope < point.suggest {
        reasons.push(Note::new(
            "out_of_scope",
            format!("probability {:.2} that anybody here can do this, below {:.2}", facts.in_scope, point.suggest),
        ));
        return (DecisionKind::None, confidence);
    }
    let auto = point.auto_at(facts.proven);
    let blocker = if *under {
        Some(Note::new("under_floor", format!("similarity {:.2} is under the floor of {:.2}", first.item.similarity, point.floor)))
    } else if first.item.cross_language {
        Some(Note::new("cross_language", "described only in another language than the request's"))
    } else if facts.clauses > 1 {
        Some(Note::new("several_requests", "the request seems to ask for several things"))
    } else if facts.told {
        Some(Note::new("not_asked", "the text reports it, or asks about it, and does not ask for it"))
    } else if facts.opposite {
        Some(Note::new("opposite", "the request asks for the opposite of what the best candidate does"))
    } else if let Some(better) = better_away(list, first.item) {
        Some(Note::new("better_unavailable", format!("as likely meant: {}", crate::route::explain::why_not(better))))
    } else if facts.thin {
        Some(Note::new("too_short", "the request is one word that is nobody's name: it could mean several things"))
    } else if confidence < auto {
        Some(Note::new("unsure", format!("confidence {confidence:.2} is below {auto:.2}")))
    } else if margin < point.auto_margin {
        Some(Note::new("close_call", format!("the lead of {margin:.2} over the next capability is below {:.2}", point.auto_margin)))
    } else {
        None
    };
    match blocker {
        Some(note) => {
            reasons.push(note);
            (DecisionKind::Suggest, confidence)
        }
        None => {
            reasons.push(Note::new("clear", format!("confidence {confidence:.2}, lead {margin:.2} over the next capability")));
            (DecisionKind::Auto, confidence)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::shortlist::QueryFacts;
    use crate::route::shortlist::testing::item;

    fn decide(items: Vec<Item>, confidence: f32, in_scope: f32) -> Decision {
        decide_with(items, confidence, in_scope, &Policy::default())
    }

    fn decide_with(items: Vec<Item>, confidence: f32, in_scope: f32, policy: &Policy) -> Decision {
        let list = Shortlist {
            items,
            facts: QueryFacts { confidence, in_scope, calibrated: true, used: true, ..Default::default() },
            ..Default::default()
        };
        pick(&list, policy, &PickOptions { preset: None, shipped: OperatingPoint::default(), k: 5, seed: 1 })
    }

    #[test]
    fn the_three_answers() {
        assert_eq!(decide(vec![item("a", "x", 0.95), item("b", "y", 0.02)], 0.93, 0.97).kind, DecisionKind::Auto);
        assert_eq!(decide(vec![item("a", "x", 0.5), item("b", "y", 0.45)], 0.5, 0.9).kind, DecisionKind::Suggest);
        assert_eq!(decide(vec![item("a", "x", 0.1)], 0.05, 0.05).kind, DecisionKind::None);
        let empty = decide(vec![], 0.0, 0.0);
        assert_eq!((empty.kind, empty.candidates.len()), (DecisionKind::None, 0));
    }

    #[test]
    fn under_the_floor_is_shown_but_never_auto() {
        let d = decide(vec![item("a", "x", 0.001), item("b", "y", 0.0005), item("c", "z", 0.0)], 0.99, 0.99);
        assert_eq!(d.kind, DecisionKind::Suggest);
        assert_eq!(d.candidates.len(), 2);
        assert!(d.candidates.iter().all(|c| c.under_floor));
    }

    #[test]
    fn a_threshold_of_zero_is_a_threshold() {
        let point = OperatingPoint { auto: 0.0, auto_learned: None, auto_margin: 0.0, suggest: 0.0, floor: 0.0, keep_under_floor: 0 };
        let policy = Policy { point: Some(point), ..Default::default() };
        assert_eq!(decide_with(vec![item("a", "x", 0.3)], 0.0, 0.0, &policy).kind, DecisionKind::Auto);
    }

    #[test]
    fn a_namespace_may_have_a_point_of_its_own() {
        let strict = OperatingPoint { auto: 0.95, ..OperatingPoint::default() };
        let policy = Policy { points: [("test".to_string(), strict)].into(), ..Policy::default() };
        let sure = || vec![item("a", "x", 0.9)];
        assert_eq!(decide_with(sure(), 0.9, 0.95, &policy).kind, DecisionKind::Suggest);
        let mut other = sure();
        other[0].agent.namespace = crate::types::Namespace::new("elsewhere").unwrap();
        assert_eq!(decide_with(other, 0.9, 0.95, &policy).kind, DecisionKind::Auto);
    }

    #[test]
    fn what_was_learned_here_is_trusted_sooner() {
        let point = OperatingPoint { auto: 0.9, auto_learned: Some(0.7), ..OperatingPoint::default() };
        let policy = Policy { point: Some(point), ..Policy::default() };
        let kind = |proven: f32| {
            let facts = QueryFacts { confidence: 0.8, in_scope: 0.95, calibrated: true, used: true, proven, ..Default::default() };
            let list = Shortlist { items: vec![item("a", "x", 0.8)], facts, ..Default::default() };
            pick(&list, &policy, &PickOptions { preset: None, shipped: OperatingPoint::default(), k: 5, seed: 1 }).kind
        };
        assert_eq!([0.0, 0.3, 0.6, 0.9].map(kind), [DecisionKind::Suggest, DecisionKind::Suggest, DecisionKind::Auto, DecisionKind::Auto]);
    }

    #[test]
    fn thresholds_of_other_models_do_not_hold() {
        // PEERS T1: a threshold set that names other models than those in use
        let lax = OperatingPoint { auto: 0.0, auto_learned: None, auto_margin: 0.0, suggest: 0.0, floor: 0.0, keep_under_floor: 2 };
        let policy = Policy { point: Some(lax), fitted_for: vec!["old".into()], ..Policy::default() };
        let mut list = Shortlist { items: vec![item("a", "x", 0.3)], ..Default::default() };
        list.facts = QueryFacts { confidence: 0.3, in_scope: 0.9, calibrated: false, ..Default::default() };
        let options = PickOptions { preset: None, shipped: OperatingPoint::default(), k: 5, seed: 1 };
        let d = pick(&list, &policy, &options);
        assert_eq!((d.kind, d.calibrated), (DecisionKind::Suggest, false));
        assert!(d.warnings.iter().any(|w| w.code == "uncalibrated"));
        list.facts.calibrated = true;
        assert_eq!(pick(&list, &policy, &options).kind, DecisionKind::Auto);
    }

    #[test]
    fn names_and_their_negation() {
        let mut named = item("a", "refund_create", 0.4);
        named.named = Some(Named::InText);
        assert_eq!(decide(vec![named.clone(), item("b", "y", 0.6)], 0.4, 0.4).kind, DecisionKind::Auto);
        let mut second = item("b", "return_goods", 0.4);
        second.named = Some(Named::InText);
        assert_eq!(decide(vec![named.clone(), second], 0.4, 0.4).kind, DecisionKind::Suggest);
        let list =
            Shortlist { items: vec![named], facts: QueryFacts { negated: true, used: true, ..Default::default() }, ..Default::default() };
        let d = pick(&list, &Policy::default(), &PickOptions { preset: None, shipped: OperatingPoint::default(), k: 5, seed: 1 });
        assert_eq!(d.kind, DecisionKind::Suggest);
    }

    #[test]
    fn who_asks_for_one_that_is_away_is_not_served_by_another() {
        let facts = QueryFacts { confidence: 0.97, in_scope: 0.98, calibrated: true, used: true, ..Default::default() };
        let decide = |capability: &str, similarity: f32, why: DropReason| {
            let dropped = vec![Dropped { agent: item("b", capability, 0.9).agent, capability: capability.into(), similarity, why }];
            let list = Shortlist { items: vec![item("a", "card_unfreeze", 0.97)], dropped, facts: facts.clone(), ..Default::default() };
            let d = pick(&list, &Policy::default(), &PickOptions { preset: None, shipped: OperatingPoint::default(), k: 5, seed: 1 });
            (d.kind, d.reasons.first().map(|r| r.code.to_string()).unwrap_or_default())
        };
        let away = (DecisionKind::Suggest, "better_unavailable".to_string());
        assert_eq!(decide("card_freeze", 0.9, DropReason::Draining), away);
        assert_eq!(decide("card_freeze", 0.9, DropReason::Closed { opens: None }), away);
        assert_eq!(decide("card_freeze", 0.9, DropReason::Excluded).0, DecisionKind::Auto, "the caller chose");
        assert_eq!(decide("card_freeze", 0.1, DropReason::Draining).0, DecisionKind::Auto, "hardly meant");
        assert_eq!(decide("Card-Unfreeze", 0.99, DropReason::Draining).0, DecisionKind::Auto, "another agent does the same");
    }

    #[test]
    fn cross_language_is_suggested_at_most() {
        let mut only = item("a", "x", 0.95);
        only.cross_language = true;
        assert_eq!(decide(vec![only], 0.99, 0.99).kind, DecisionKind::Suggest);
    }

    #[test]
    fn one_publisher_does_not_fill_the_list() {
        let mut items: Vec<Item> = (0..8).map(|i| item(&format!("a{i}"), &format!("c{i}"), 0.3 - i as f32 * 0.01)).collect();
        let mut other = item("z", "other", 0.2);
        other.agent.namespace = crate::types::Namespace::new("other").unwrap();
        items.push(other);
        let policy = Policy { per_publisher: 3, ..Default::default() };
        let d = decide_with(items, 0.3, 0.9, &policy);
        assert!(
            d.candidates.iter().take(4).any(|c| c.agent.namespace.as_str() == "other"),
            "{:?}",
            d.candidates.iter().map(|c| c.agent.to_string()).collect::<Vec<_>>()
        );
    }
}
