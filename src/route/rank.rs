//! Orders a shortlist by expected usefulness under a preset.
//!
//! In: a shortlist and the policy. Out: the same items with named terms, best first; score = Σ weight·value (tested).
//! Between *different* capabilities live terms reorder only inside `live_margin` of similarity around the best, so that a busy
//! right agent is not beaten by an idle wrong one; between agents of one capability they decide. A margin of 1 gives the plain sum.
//! Invariant: drops nothing; equal scores are spread by the dice, everything else is deterministic. Cost: O(n log n).
//! Not here: thresholds (`decide`), liveness (`filter`).

use crate::route::dice::Dice;
use crate::route::shortlist::{Item, LiveTerms, Named, Shortlist};
use crate::types::decision::Term;
use crate::types::policy::{LoadCurve, Policy, Preset};
use std::borrow::Cow;

/// Value of a term without data: a stated prior, neither zero nor perfect.
pub mod prior {
    /// Success rate of an agent nobody has called yet.
    pub const HEALTH: f32 = 0.9;
    /// Share of acks.
    pub const ACK_RATE: f32 = 0.8;
    /// Share of adopted results.
    pub const QUALITY: f32 = 0.5;
    /// Latency value of an agent without durations.
    pub const LATENCY: f32 = 0.75;
    /// Share of the concurrency in use.
    pub const IN_FLIGHT: f32 = 0.2;
}

/// An item with its score.
#[derive(Clone, Debug)]
pub struct Ranked<'a> {
    /// The item.
    pub item: &'a Item,
    /// Sum of the terms.
    pub score: f32,
    /// Parts of the score.
    pub terms: Vec<Term>,
}

fn load_value(live: &LiveTerms, curve: LoadCurve) -> f32 {
    let load = live.queue_share.or(live.load).unwrap_or(0.0).clamp(0.0, 1.0);
    match curve {
        LoadCurve::Linear => 1.0 - load * 0.5,
        LoadCurve::Exponential if load <= 0.7 => 1.0,
        LoadCurve::Exponential => (-5.0 * (load - 0.7)).exp(),
    }
}

fn latency_value(item: &Item) -> f32 {
    item.live.p50_ms.map_or(prior::LATENCY, |p50| (1.5 - p50 / item.ttl_ms.max(1.0)).clamp(0.0, 1.0))
}

/// Terms of one item under a preset. Their weighted sum is the score.
pub fn terms(item: &Item, preset: &Preset, policy: &Policy) -> Vec<Term> {
    let live = &item.live;
    let mut terms = Vec::with_capacity(12);
    let mut push = |name: &'static str, weight: f32, value: f32| {
        if weight != 0.0 && value.is_finite() {
            terms.push(Term { name: Cow::Borrowed(name), weight, value });
        }
    };
    for (name, weight) in preset.weights.named().into_iter().filter(|(_, weight)| *weight != 0.0) {
        let value = match name {
            "semantic" => item.similarity,
            "load" => load_value(live, preset.load_curve),
            "health" => live.health.unwrap_or(prior::HEALTH),
            "latency" => latency_value(item),
            "capacity" => 1.0 - live.in_flight_share.unwrap_or(prior::IN_FLIGHT).clamp(0.0, 1.0),
            "ack_rate" => live.ack_rate.unwrap_or(prior::ACK_RATE),
            "success_24h" => live.success_24h.unwrap_or(prior::HEALTH),
            "cost" => 1.0 / (1.0 + item.cost.max(0.0)),
            _ => item.quality,
        };
        push(name, weight, value);
    }
    if preset.penalty > 0.0 && live.success_24h.or(live.health).is_some_and(|s| s < preset.low_success) {
        push("low_success", -preset.penalty, 1.0);
    }
    if item.preferred {
        push("preferred", policy.bonus.preferred, 1.0);
    }
    if item.cooccurrence > 0.0 {
        push("cooccurrence", preset.weights.semantic.max(0.1), history_gain(item, policy));
    }
    if item.tenant > 0.0 {
        push("tenant", policy.bonus.tenant, item.tenant.min(1.0));
    }
    if live.traffic_share < 1.0 {
        push("slow_start", -0.2, 1.0 - live.traffic_share.clamp(0.0, 1.0));
    }
    terms
}

/// Sum of `weight · value`.
pub fn total(terms: &[Term]) -> f32 {
    terms.iter().map(|t| t.weight * t.value).sum()
}

/// What shared history adds to the similarity: similarity × history, bounded, so that it never overrides a clear semantic winner.
pub fn history_gain(item: &Item, policy: &Policy) -> f32 {
    (item.similarity * policy.bonus.cooccurrence * item.cooccurrence.clamp(0.0, 1.0)).min(policy.bonus.cooccurrence_cap)
}

/// Similarity as ordering sees it.
fn reach(item: &Item, policy: &Policy) -> f32 {
    let bonus = if item.preferred { policy.bonus.preferred } else { 0.0 };
    item.similarity + bonus + history_gain(item, policy)
}

/// A number that stands for agent and capability, the same on every machine (FNV-1a).
fn identity(item: &Item) -> u64 {
    let parts = [&*item.agent.domain, item.agent.namespace.as_str(), &*item.agent.agent_id, &*item.folded];
    parts.iter().flat_map(|p| p.bytes().chain([0])).fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Ranks a shortlist: rules that force first, then names in the query, then the rest.
pub fn order<'a>(list: &'a Shortlist, preset: &Preset, policy: &Policy, dice: &mut Dice) -> Vec<Ranked<'a>> {
    let mut ranked: Vec<Ranked<'a>> = list
        .items
        .iter()
        .map(|item| {
            let terms = terms(item, preset, policy);
            Ranked { item, score: total(&terms), terms }
        })
        .collect();
    let tier = |item: &Item| match (&item.forced, item.named) {
        (Some(_), _) => 0,
        (None, Some(Named::Exact)) => 1,
        (None, Some(Named::InText)) => 2,
        (None, None) => 3,
    };
    // each item rolls by itself: a candidate more or less changes nobody else's luck, so that a log may leave the hopeless ones out
    let luck = dice.roll();
    // groups of one capability share the best reach of the group, so that its agents stand together and live terms order them
    let mut keyed: Vec<(u8, f32, u64, Ranked<'a>)> = Vec::with_capacity(ranked.len());
    let mut reaches: Vec<f32> = ranked.iter().map(|r| reach(r.item, policy)).collect();
    let mut by_name: Vec<usize> = (0..ranked.len()).collect();
    by_name.sort_unstable_by(|a, b| ranked[*a].item.folded.cmp(&ranked[*b].item.folded));
    for group in by_name.chunk_by(|a, b| ranked[*a].item.folded == ranked[*b].item.folded) {
        let best = group.iter().map(|i| reaches[*i]).fold(f32::MIN, f32::max);
        for i in group {
            // the same name with another meaning is not the same capability
            if best - reaches[*i] <= 2.0 * policy.live_margin.max(0.05) {
                reaches[*i] = best;
            }
        }
    }
    for (r, reach) in ranked.drain(..).zip(reaches) {
        keyed.push((tier(r.item), reach, Dice::new(luck ^ identity(r.item)).roll(), r));
    }
    let mut out = Vec::with_capacity(keyed.len());
    for level in 0..4 {
        let mut rest: Vec<_> = keyed.extract_if(.., |k| k.0 == level).collect();
        while !rest.is_empty() {
            let best = rest.iter().map(|k| k.1).fold(f32::MIN, f32::max);
            let mut near: Vec<_> = rest.extract_if(.., |k| k.1 >= best - policy.live_margin).collect();
            near.sort_by(|a, b| (b.3.score).total_cmp(&a.3.score).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
            // a margin of 1 is the verbatim sum; otherwise only the leading group mixes, the others follow group by group
            out.extend(near.into_iter().map(|k| k.3));
        }
    }
    explore(&mut out, preset, policy, dice);
    out
}

/// Now and then an agent without data takes the lead among agents of the same capability, so that it can earn some.
/// A tail that spreads (p90 − p50 over the preset's limit) gives half of the lead away.
fn explore(out: &mut [Ranked<'_>], preset: &Preset, policy: &Policy, dice: &mut Dice) {
    let Some(first) = out.first() else { return };
    let folded = first.item.folded.clone();
    let same = |r: &Ranked<'_>| r.item.folded == folded;
    let has_data = |r: &Ranked<'_>| r.item.live.health.is_some() || r.item.live.success_24h.is_some();
    let chance = dice.unit();
    let lead_has_data = has_data(first);
    let spread = match (first.item.live.p50_ms, first.item.live.p90_ms) {
        (Some(p50), Some(p90)) => preset.tail_spread_ms > 0.0 && p90 - p50 > preset.tail_spread_ms,
        _ => false,
    };
    if lead_has_data && chance < policy.explore {
        if let Some(i) = out.iter().position(|r| same(r) && !has_data(r) && r.item.live.traffic_share >= 1.0) {
            out[..=i].rotate_right(1);
        }
    } else if spread
        && dice.unit() < 0.5
        && let Some(i) = out.iter().skip(1).position(same)
    {
        out[..=i + 1].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::shortlist::testing::item;

    fn scored(items: Vec<Item>, preset: &str, policy: &Policy) -> Vec<(String, f32)> {
        let list = Shortlist { items, ..Default::default() };
        order(&list, &policy.presets[preset], policy, &mut Dice::new(1))
            .iter()
            .map(|r| (r.item.agent.agent_id.to_string(), r.score))
            .collect()
    }

    #[test]
    fn reachability_gives_the_published_figures() {
        let policy = Policy { explore: 0.0, ..Default::default() };
        let mut a = item("a", "x", 0.9);
        a.live = LiveTerms { health: Some(1.0), in_flight_share: Some(0.5), ack_rate: Some(0.9), traffic_share: 1.0, ..Default::default() };
        let mut b = item("b", "x", 0.9);
        b.live = LiveTerms { health: Some(1.0), in_flight_share: Some(0.1), ack_rate: Some(0.5), traffic_share: 1.0, ..Default::default() };
        let out = scored(vec![a, b], "reachability", &policy);
        assert_eq!(out[0].0, "b");
        assert!((out[0].1 - 0.87).abs() < 1e-5 && (out[1].1 - 0.83).abs() < 1e-5, "{out:?}");
    }

    #[test]
    fn balanced_is_the_published_sum() {
        let policy = Policy { explore: 0.0, ..Default::default() };
        let mut a = item("a", "x", 0.8);
        a.live = LiveTerms { queue_share: Some(0.4), health: Some(0.95), p50_ms: Some(15_000.0), traffic_share: 1.0, ..Default::default() };
        a.ttl_ms = 30_000.0;
        let terms = terms(&a, &policy.presets["balanced"], &policy);
        let expected = 0.5 * 0.8 + 0.15 * (1.0 - 0.4 * 0.5) + 0.2 * 0.95 + 0.15 * 1.0;
        assert!((total(&terms) - expected).abs() < 1e-5, "{terms:?}");
    }

    #[test]
    fn a_busy_right_agent_is_not_beaten_by_an_idle_wrong_one() {
        let policy = Policy { explore: 0.0, ..Default::default() };
        let mut right = item("right", "refund", 0.9);
        right.live = LiveTerms { queue_share: Some(1.0), health: Some(0.5), traffic_share: 1.0, ..Default::default() };
        let mut wrong = item("wrong", "translate", 0.3);
        wrong.live = LiveTerms { queue_share: Some(0.0), health: Some(1.0), traffic_share: 1.0, ..Default::default() };
        assert_eq!(scored(vec![right.clone(), wrong.clone()], "balanced", &policy)[0].0, "right");
        // a margin of 1 is the plain sum
        let verbatim = Policy { live_margin: 1.0, explore: 0.0, ..Default::default() };
        let out = scored(vec![right, wrong], "reachability", &verbatim);
        assert_eq!(out[0].0, "wrong");
        assert!(out[0].1 >= out[1].1);
    }

    #[test]
    fn equals_are_spread_and_order_of_registration_does_not_matter() {
        let policy = Policy { explore: 0.0, ..Default::default() };
        let list = Shortlist { items: (0..4).map(|i| item(&format!("a{i}"), "x", 0.9)).collect(), ..Default::default() };
        let mut wins = std::collections::BTreeMap::new();
        for seed in 0..400 {
            let first = order(&list, &policy.presets["balanced"], &policy, &mut Dice::new(seed))[0].item.agent.agent_id.to_string();
            *wins.entry(first).or_insert(0) += 1;
        }
        assert!(wins.len() == 4 && wins.values().all(|n| (60..=140).contains(n)), "{wins:?}");
    }

    #[test]
    fn nothing_is_dropped_and_every_score_is_its_terms() {
        let policy = Policy::default();
        let mut items: Vec<Item> = (0..20).map(|i| item(&format!("a{i}"), &format!("c{}", i % 7), i as f32 / 20.0)).collect();
        items[3].preferred = true;
        items[4].cooccurrence = 0.7;
        items[5].live.traffic_share = 0.05;
        let list = Shortlist { items, ..Default::default() };
        for preset in policy.presets.values() {
            let out = order(&list, preset, &policy, &mut Dice::new(9));
            assert_eq!(out.len(), 20);
            assert!(out.iter().all(|r| (r.score - total(&r.terms)).abs() < 1e-6));
        }
    }

    #[test]
    fn an_agent_without_data_gets_a_share() {
        let policy = Policy { explore: 0.1, ..Default::default() };
        let mut old = item("old", "x", 0.9);
        old.live = LiveTerms { health: Some(1.0), success_24h: Some(1.0), traffic_share: 1.0, ..Default::default() };
        let list = Shortlist { items: vec![old, item("new", "x", 0.9)], ..Default::default() };
        let wins = (0..1000)
            .filter(|s| &*order(&list, &policy.presets["balanced"], &policy, &mut Dice::new(*s))[0].item.agent.agent_id == "new")
            .count();
        assert!((50..200).contains(&wins), "{wins} of 1000");
    }
}
