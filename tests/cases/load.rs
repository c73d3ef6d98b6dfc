//! Load and health in the choice: counters that lie, starts from nothing, agents that are slow, ill, or new.

use crate::harness::*;
use agent_reach::live::CallOutcome;
use agent_reach::types::decision::DropReason;
use agent_reach::types::request::{Heartbeat, ResolveRequest};
use agent_reach::types::{AgentKey, DecisionKind, Principal};
use std::collections::BTreeMap;
use std::time::Duration;

const OFFER: [(&str, &str); 1] = [("translate_text", "translate a text into another language")];

async fn equals(w: &World, n: usize) -> Vec<AgentKey> {
    let mut keys = Vec::new();
    for i in 0..n {
        w.register(agent("ns", &format!("m{i}"), &OFFER)).await;
        keys.push(key("ns", &format!("m{i}")));
    }
    keys
}

impl World {
    fn finished(&self, agent: &AgentKey, good: bool, latency_ms: f32) {
        let outcome = CallOutcome { good, latency_ms: Some(latency_ms) };
        self.ingest.live().lock().finished(agent, outcome, agent_reach::clock::Clock::now_ms(&self.clock));
    }

    async fn first_of(&self, seed: Option<u64>) -> Option<String> {
        let r = ResolveRequest { capability: Some("translate_text".into()), seed, k: Some(30), ..asking() };
        let d = self.resolve(&Principal::local("t"), r).await.unwrap().decision;
        d.candidates.first().map(|c| c.agent.agent_id.to_string())
    }

    async fn wins(&self, routes: u64) -> BTreeMap<String, usize> {
        let mut wins = BTreeMap::new();
        for seed in 0..routes {
            *wins.entry(self.first_of(Some(seed)).await.unwrap_or_default()).or_default() += 1;
        }
        wins
    }
}

/// K1: completions that nobody counted as begun (a counter that expired, a restart) push no counter under zero, and nobody takes all the traffic.
#[tokio::test]
async fn completions_without_a_start_draw_no_traffic() {
    let w = world().await;
    let all = equals(&w, 4).await;
    for k in &all {
        w.finished(k, true, 100.0);
    }
    for _ in 0..50 {
        w.finished(&all[2], true, 100.0);
        w.ingest.live().lock().load(&all[2], 0, 0);
    }
    w.ingest.refresh_live();
    let view = w.views.load();
    assert!(all.iter().all(|k| view.live.get(k).unwrap().local_in_flight() == 0));
    let wins = w.wins(200).await;
    assert!(wins.len() == 4 && wins.values().all(|n| (20..=90).contains(n)), "{wins:?}");
    // and load that is there moves it away at once, between two snapshots
    w.ingest.live().lock().load(&all[2], 5, 900);
    let wins = w.wins(100).await;
    assert!(!wins.contains_key("m2") && wins.len() == 3, "{wins:?}");
}

/// K3: at a cold start all agents are equal; a hundred requests at once do not all pick the first.
#[tokio::test]
async fn a_cold_start_spreads() {
    let w = world().await;
    equals(&w, 4).await;
    let firsts = futures::future::join_all((0..200).map(|_| w.first_of(None))).await;
    let mut wins: BTreeMap<String, usize> = BTreeMap::new();
    for first in firsts.into_iter().flatten() {
        *wins.entry(first).or_default() += 1;
    }
    assert!(wins.len() == 4 && wins.values().all(|n| *n >= 20), "{wins:?}");
}

/// K5: no data is a stated prior, neither zero nor perfect, and a share of the traffic to earn some.
#[tokio::test]
async fn a_newcomer_is_worth_the_prior_and_gets_a_share() {
    let w = world().await;
    let all = equals(&w, 2).await;
    (0..30).for_each(|_| w.finished(&all[0], true, 300.0));
    w.ingest.refresh_live();
    let r = ResolveRequest { capability: Some("translate_text".into()), ..asking() };
    let d = w.resolve(&Principal::local("t"), r).await.unwrap().decision;
    let new = d.candidates.iter().find(|c| c.agent == all[1]).unwrap();
    let value = |name: &str| new.terms.iter().find(|t| t.name == name).map(|t| t.value);
    assert_eq!((value("health"), value("latency"), value("load")), (Some(0.9), Some(0.75), Some(1.0)));
    let wins = w.wins(1_000).await;
    assert!((5..=60).contains(&wins["m1"]), "about one in fifty: {wins:?}");
}

/// R1: one of twenty answers after 25 s, or not at all. It costs no other its place; the slow one comes last, the silent one is left out.
#[tokio::test]
async fn one_slow_member_of_twenty_is_passed_over() {
    let w = world().await;
    let all = equals(&w, 20).await;
    for k in &all[1..] {
        (0..5).for_each(|_| w.finished(k, true, 200.0));
    }
    (0..5).for_each(|_| w.finished(&all[0], true, 25_000.0));
    w.ingest.refresh_live();
    let wins = w.wins(400).await;
    assert!(!wins.contains_key("m0") && wins.len() == 19 && wins.values().all(|n| *n >= 5), "{wins:?}");
    for n in 0..3 {
        assert!(w.first_of(Some(n)).await.is_some());
        w.finished(&all[0], false, 60_000.0);
    }
    w.ingest.refresh_live();
    let r = ResolveRequest { capability: Some("translate_text".into()), k: Some(30), ..asking() };
    let d = w.resolve(&Principal::local("t"), r).await.unwrap().decision;
    assert_eq!(d.candidates.len(), 19);
    assert!(d.dropped.iter().any(|x| x.agent == all[0] && matches!(x.why, DropReason::Breaker)), "{:?}", d.dropped);
}

/// R6: eight seconds are no outage. What takes long and ends well is live, and comes after the quick ones.
#[tokio::test]
async fn slow_and_good_is_not_offline() {
    let w = world().await;
    let all = equals(&w, 1).await;
    (0..20).for_each(|_| w.finished(&all[0], true, 8_000.0));
    w.ingest.refresh_live();
    let d = w.ask("translate_text").await.decision;
    assert_eq!((d.kind, d.dropped.len()), (DecisionKind::Auto, 0));
    let view = w.views.load();
    let live = view.live.get(&all[0]).unwrap();
    assert_eq!((live.status(), live.traffic_share, live.success_1m), ("static", 1.0, Some(1.0)));
}

/// R7: the process beats and nothing it does works. Heartbeats keep its lease, not its place; after the pause it comes back slowly.
#[tokio::test]
async fn alive_and_unable_is_left_out() {
    let w = world().await;
    for id in ["m0", "m1"] {
        let mut leased = agent("ns", id, &OFFER);
        leased["ttl"] = "30s".into();
        w.register(leased).await;
    }
    let (ill, well) = (key("ns", "m0"), key("ns", "m1"));
    let beat = async || {
        for k in [&ill, &well] {
            w.ingest.heartbeat(&Principal::local("t"), k, Heartbeat { load: Some(0.1), ..Heartbeat::default() }).await.unwrap();
        }
        w.ingest.refresh_live();
    };
    (0..5).for_each(|_| w.finished(&well, true, 100.0));
    (0..3).for_each(|_| w.finished(&ill, false, 100.0));
    for _ in 0..4 {
        beat().await;
        let wins = w.wins(20).await;
        assert_eq!(wins, BTreeMap::from([("m1".to_string(), 20)]));
        w.clock.advance(Duration::from_secs(5));
    }
    w.clock.advance(Duration::from_secs(15));
    beat().await;
    assert_eq!(w.views.load().live.get(&ill).unwrap().traffic_share, 0.05, "five in a hundred of its share, not all at once");
    let wins = w.wins(50).await;
    assert!(wins["m1"] >= 45, "{wins:?}");
}
