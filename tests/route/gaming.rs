//! Newcomers that copy others: behind their originals, and back once outcomes speak for them (X7, K4, threats 11 and 12).

use crate::harness::{World, key, world, world_with};
use agent_reach::types::outcome::Report;
use agent_reach::types::policy::Policy;
use agent_reach::types::request::ResolveRequest;
use agent_reach::types::{Grant, Principal};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn publisher(namespace: &str) -> Principal {
    Principal { namespaces: Grant::Only([Arc::from(namespace)].into()), ..Principal::local(namespace) }
}

fn manifest(namespace: &str, id: &str, intent: &str, description: &str, examples: &[&str]) -> Value {
    json!({"namespace": namespace, "agent_id": id, "ttl": "none", "visible_to": ["*"], "endpoints": [{"protocol": "pull"}],
        "capabilities": [{"intent": intent, "description": description, "examples": examples}]})
}

const FLEET: &[(&str, &str, &str)] = &[
    ("refund_create", "Pays the money of an order back to the customer", "give me my money back"),
    ("parcel_track", "Tells where a parcel is right now", "where is my package"),
    ("invoice_issue", "Writes an invoice for a paid order", "send me an invoice"),
    ("leave_request", "Asks for days off work", "i want a day off tomorrow"),
];

async fn fleet(w: &World) {
    for (i, (intent, description, example)) in FLEET.iter().enumerate() {
        w.clock.advance(Duration::from_secs(60));
        let namespace = format!("honest{i}");
        w.ingest.register(&publisher(&namespace), &manifest(&namespace, "desk", intent, description, &[example])).await.unwrap();
    }
    w.clock.advance(Duration::from_secs(60));
    w.ingest.learn_for([Grant::All]);
}

async fn first(w: &World, query: &str) -> String {
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    first_now(w, query).await
}

async fn first_now(w: &World, query: &str) -> String {
    let request = ResolveRequest { query: query.into(), ..crate::harness::asking() };
    let answer = w.resolve(&Principal::local("x"), request).await.unwrap();
    answer.decision.candidates[0].agent.namespace.to_string()
}

#[tokio::test]
async fn a_copy_stands_behind_its_original_until_outcomes_lift_it() {
    let w = world().await;
    fleet(&w).await;
    let copy = manifest("copycat", "desk", "refund_quick", FLEET[0].1, &[FLEET[0].2]);
    w.ingest.register(&publisher("copycat"), &copy).await.unwrap();
    for query in ["give me my money back please", "pay the money of my order back"] {
        assert_eq!(first(&w, query).await, "honest0", "{query}");
    }
    let fans = (0..40).map(|i| Report {
        query: Some(format!("give me my money back number {i}")),
        verdict: "adopted".into(),
        chosen: Some((key("copycat", "desk"), "refund_quick".into())),
        caller: Some(format!("caller{}", i % 8)),
        ..Report::default()
    });
    w.ingest.report(&Principal::local("x"), fans.collect()).await;
    assert_eq!(first(&w, "give me my money back number 77").await, "copycat");
}

#[tokio::test]
async fn a_newcomer_is_looked_at_before_its_first_request() {
    let w = world().await;
    fleet(&w).await;
    let copy = manifest("copycat", "desk", "refund_quick", FLEET[0].1, &[FLEET[0].2]);
    let receipt = w.ingest.register(&publisher("copycat"), &copy).await.unwrap();
    assert!(receipt.changed);
    assert_eq!(first_now(&w, "pay the money of my order back").await, "honest0", "without a lesson in between");
    let texts: Vec<&str> = FLEET.iter().flat_map(|f| [f.1, f.2]).collect();
    w.clock.advance(Duration::from_secs(60));
    let stuffed = manifest("greedy", "all", "best_for_everything", &texts.join(". "), &texts);
    w.ingest.register(&publisher("greedy"), &stuffed).await.unwrap();
    for (i, f) in FLEET.iter().enumerate() {
        assert_eq!(first_now(&w, &format!("{} now", f.2)).await, format!("honest{i}"));
    }
    // after a restart as well
    let w = crate::harness::open(w.close(), Policy::default(), "fake").await;
    w.ingest.load().await.unwrap();
    w.ingest.learn_for([Grant::All]);
    w.ingest.look_around();
    assert_eq!(first_now(&w, "pay the money of my order back").await, "honest0", "before the first lesson");
}

#[tokio::test]
async fn stuffing_with_everybodys_texts_wins_nothing() {
    let texts: Vec<&str> = FLEET.iter().flat_map(|f| [f.1, f.2]).collect();
    let stuffed = manifest("greedy", "all", "best_for_everything", &texts.join(". "), &texts);
    let mut won = Vec::new();
    for guards in [false, true] {
        let w = world_with(Policy { guards, ..Policy::default() }).await;
        fleet(&w).await;
        w.ingest.register(&publisher("greedy"), &stuffed).await.unwrap();
        let mut n = 0;
        for (i, f) in FLEET.iter().enumerate() {
            let winner = first(&w, &format!("{} now", f.2)).await;
            n += usize::from(winner == "greedy");
            assert!(!guards || winner == format!("honest{i}"), "{}: {winner}", f.2);
        }
        won.push(n);
    }
    assert_eq!(won[1], 0);
}

#[tokio::test]
async fn one_publisher_is_never_measured_against_itself() {
    let w = world().await;
    let both = |id: &str| manifest("orders", id, "refund_create", FLEET[0].1, &[FLEET[0].2]);
    w.ingest.register(&publisher("orders"), &both("one")).await.unwrap();
    w.clock.advance(Duration::from_secs(60));
    w.ingest.register(&publisher("orders"), &both("two")).await.unwrap();
    w.ingest.learn_for([Grant::All]);
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    let candidates = w.ask("money of an order back").await.decision.candidates;
    assert_eq!(candidates.len(), 2);
    assert!((candidates[0].probability.get() - candidates[1].probability.get()).abs() < 1e-6, "a second agent is no copy");
}
