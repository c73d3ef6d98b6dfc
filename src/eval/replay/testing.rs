//! Logs with a known best setting, for tests and for measuring.

use super::entry::Entry;
use super::labels::{Labels, RawLabel};
use crate::route::decide;
use crate::route::dice::Dice;
use crate::route::logged::Body;
use crate::route::pipeline::options;
use crate::route::rank;
use crate::route::shortlist::testing::item;
use crate::route::shortlist::{LiveTerms, QueryFacts, Shortlist};
use crate::types::Principal;
use crate::types::policy::Policy;
use crate::types::query::Query;

/// A logged decision over `list`.
pub fn entry(n: usize, list: &Shortlist, policy: &Policy) -> Entry {
    let text = format!("request {n}");
    let query = Query::new(Principal::local("t"), &text, 1_767_578_400_000 + n as i64 * 1000, n as u64);
    let mut decision = decide::pick(list, policy, &options(&query));
    decision.decision_id = format!("d{n}");
    decision.generations.models = vec!["fake/int8/1".into()];
    let body = Body::of(&query, list, &decision, policy, true).json();
    Entry { id: format!("d{n}"), at_ms: query.at_ms, caller: "t".into(), text: Some(text), logged: serde_json::from_value(body).unwrap() }
}

fn label(n: usize, expected: Vec<(String, String)>) -> RawLabel {
    RawLabel { decision_id: Some(format!("d{n}")), expected: Some(expected), ..RawLabel::default() }
}

/// A log in which answers are right with 0.999 from confidence `best` on, and with 0.2 below it; one request in ten is nobody's.
pub fn planted_threshold(seed: u64, n: usize, best: f32) -> (Vec<Entry>, Labels) {
    let mut dice = Dice::new(seed);
    let mut labels = Labels::default();
    let entries = (0..n)
        .map(|i| {
            let nobody = dice.unit() < 0.1;
            let c = if nobody { dice.unit() * 0.3 } else { 0.2 + 0.8 * dice.unit() };
            let facts = QueryFacts { confidence: c, in_scope: if nobody { c } else { 0.9 }, calibrated: true, ..Default::default() };
            let list = Shortlist { items: vec![item("a", "x", c), item("b", "y", c * 0.1)], facts, ..Default::default() };
            let right = dice.unit() < if c >= best { 0.999 } else { 0.2 };
            let who = if right { ("a", "x") } else { ("c", "z") };
            labels.add(label(i, if nobody { Vec::new() } else { vec![(who.0.into(), who.1.into())] }));
            entry(i, &list, &Policy::default())
        })
        .collect();
    (entries, labels)
}

/// A log in which the right one of four equal agents is the one that `truth` ranks first, but for one in twenty.
pub fn planted_weights(seed: u64, n: usize, truth: &Policy, current: &Policy) -> (Vec<Entry>, Labels) {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let mut labels = Labels::default();
    let entries = (0..n)
        .map(|i| {
            let mut items = Vec::new();
            for agent in ["a", "b", "c", "d"] {
                let mut one = item(agent, "x", 0.9);
                one.live = LiveTerms {
                    queue_share: Some(dice.unit()),
                    health: Some(0.5 + 0.5 * dice.unit()),
                    p50_ms: Some(30_000.0 * dice.unit()),
                    traffic_share: 1.0,
                    ..Default::default()
                };
                items.push(one);
            }
            let facts = QueryFacts { confidence: 0.9, in_scope: 0.95, calibrated: true, ..Default::default() };
            let list = Shortlist { items, facts, ..Default::default() };
            let first =
                rank::order(&list, &truth.presets[&truth.default_preset], truth, &mut Dice::new(1))[0].item.agent.agent_id.to_string();
            let right = if dice.unit() < 0.05 { "d".to_string() } else { first };
            labels.add(label(i, vec![(right, "x".into())]));
            entry(i, &list, current)
        })
        .collect();
    (entries, labels)
}
