//! The registry and the index while agents come, go, fall silent and fail their probes.

use crate::harness::*;
use agent_reach::index::StackConfig;
use agent_reach::ingest::Probe;
use agent_reach::live::Probed;
use agent_reach::types::request::{Heartbeat, ListRequest, ResolveRequest};
use agent_reach::types::{DecisionKind, Principal};
use futures::future::{BoxFuture, FutureExt};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// I2: half of a fleet goes, those around the query first: k is still filled, and nobody comes back from the dead.
#[tokio::test]
async fn those_who_left_leave_no_hole() {
    let w = world().await;
    for i in 0..40 {
        let names: Vec<String> = (0..5).map(|j| format!("repair_pump_{i}_{j}")).collect();
        let rows: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "repairs the water pump of a house that leaks")).collect();
        w.register(agent("ns", &format!("a{i}"), &rows)).await;
    }
    let ask = || async {
        let r = ResolveRequest { query: "somebody repair the pump that leaks water in my house".into(), k: Some(40), ..asking() };
        w.resolve(&Principal::local("t"), r).await.unwrap().decision.candidates
    };
    let mut gone: BTreeSet<String> = BTreeSet::new();
    while gone.len() < 20 {
        let nearest = ask().await;
        let id = nearest.iter().map(|c| c.agent.agent_id.to_string()).find(|id| !gone.contains(id)).unwrap();
        w.ingest.deregister(&Principal::local("t"), &key("ns", &id)).await.unwrap();
        gone.insert(id);
    }
    let left = ask().await;
    assert!(left.len() >= 30, "{} of 40", left.len());
    assert!(left.iter().all(|c| !gone.contains(&*c.agent.agent_id)));
}

/// I1, I2, R14: agents change their manifests for days. The index is tidied beside the service: parts are merged, deleted documents go, answers stay the same.
#[tokio::test]
async fn changes_for_days_leave_no_litter() {
    let w = world_of_parts(StackConfig { delta_max: 8, fan: 3, purge_share: 0.1 }).await;
    let parts = || (w.views.load().words.parts(), w.views.load().arms.iter().map(|a| a.dense.parts()).max().unwrap_or(0));
    for round in 0..6 {
        for i in 0..40 {
            let text = format!("repairs the water pump of a house, edition {round} for street {i}");
            w.register(agent("ns", &format!("a{i}"), &[("repair_pump", &text)])).await;
        }
    }
    let before = (w.ask("please repair the pump of my house in street 7").await.decision, parts());
    assert!(before.1.0 > 3 && before.1.1 > 3, "there is something to do: {:?}", before.1);
    while w.ingest.upkeep().await.unwrap() {}
    let after = (w.ask("please repair the pump of my house in street 7").await.decision, parts());
    let essence = |d: &agent_reach::types::Decision| d.candidates.iter().map(|c| (c.agent.clone(), c.score.to_bits())).collect::<Vec<_>>();
    assert_eq!(essence(&before.0), essence(&after.0));
    assert!(after.1.0 < before.1.0 && after.1.1 < before.1.1, "{:?} parts before, {:?} after", before.1, after.1);
    assert_eq!(
        w.ingest.measured_recall().await.unwrap().iter().map(|(_, r)| *r).fold(1.0, f64::min),
        1.0,
        "an exact search misses nothing"
    );
}

/// R9, R10 (what needs no registry beside ours): four in five heartbeats are cut at once. The table is kept, and decisions say that it is stale.
#[tokio::test]
async fn a_cut_network_does_not_empty_the_table() {
    let w = world().await;
    let who = Principal::local("t");
    for i in 0..20 {
        let mut leased = agent("ns", &format!("a{i}"), &[("translate_text", "translate a text")]);
        leased["ttl"] = json!("30s");
        w.register(leased).await;
    }
    for _ in 0..4 {
        w.clock.advance(Duration::from_secs(10));
        for i in 0..4 {
            w.ingest.heartbeat(&who, &key("ns", &format!("a{i}")), Heartbeat::default()).await.unwrap();
        }
        w.ingest.refresh_live();
    }
    let d = w.resolve(&who, ResolveRequest { query: "translate_text".into(), k: Some(30), ..asking() }).await.unwrap().decision;
    assert_eq!((d.kind, d.candidates.len()), (DecisionKind::Auto, 20));
    assert!(d.warnings.iter().any(|n| n.code == "stale_registry"), "{:?}", d.warnings);
    assert_eq!(w.ingest.list(&who, &ListRequest::default()).unwrap().agents.len(), 20);
}

/// Answers 405 for one address, well for the others; counts.
#[derive(Default)]
struct Faulty(Mutex<BTreeMap<String, u32>>);

impl Probe for Faulty {
    fn ask<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Probed> {
        *self.0.lock().unwrap().entry(address.to_string()).or_default() += 1;
        let answer = if address.contains("/bad") { Probed::Failed } else { Probed::Good };
        async move { answer }.boxed()
    }
}

fn watched(id: &str, interval: Option<&str>) -> serde_json::Value {
    let mut a = agent("ns", id, &[("translate_text", "translate a text")]);
    a["health_check"] = json!({"address": format!("http://127.0.0.1:9001/{id}")});
    if let Some(interval) = interval {
        a["health_check"]["interval"] = json!(interval);
    }
    a
}

/// R11: one member answers its probe wrongly. It is asked no more often than any other, and nobody else's tools come and go.
#[tokio::test]
async fn a_member_that_fails_its_probes_is_alone_with_it() {
    let w = world().await;
    for id in ["bad", "b", "c", "d"] {
        w.register(watched(id, Some("30s"))).await;
    }
    let (probe, mut offered) = (Arc::new(Faulty::default()), Vec::new());
    for _ in 0..120 {
        w.ingest.probe_due(&*probe).await;
        let d = w.ask("translate_text").await.decision;
        offered.push(d.candidates.iter().map(|c| c.agent.agent_id.to_string()).collect::<BTreeSet<_>>());
        w.clock.advance(Duration::from_secs(5));
    }
    let asked = probe.0.lock().unwrap().clone();
    assert!(asked.len() == 4 && asked.values().all(|n| (19..=21).contains(n)), "every 30 s for ten minutes: {asked:?}");
    let well: BTreeSet<String> = ["b", "c", "d"].map(String::from).into();
    assert!(offered.iter().all(|o| well.is_subset(o)));
    assert_eq!(offered.iter().filter(|o| o.contains("bad")).count(), offered.iter().take_while(|o| o.contains("bad")).count(), "gone once");
    assert_eq!(offered.last(), Some(&well));
}

/// R4: `live.probe_interval` holds for agents that name no interval of their own.
#[tokio::test]
async fn the_operators_pause_holds_where_the_manifest_names_none() {
    let w = world().await;
    w.register(watched("own", Some("10s"))).await;
    w.register(watched("none", None)).await;
    let shown = w.ingest.get(&Principal::local("t"), &key("ns", "none"), None).await.unwrap();
    assert_eq!(shown.manifest.health_check.as_ref().unwrap().interval, None);
    let probe = Faulty::default();
    for _ in 0..120 {
        w.ingest.probe_due(&probe).await;
        w.clock.advance(Duration::from_secs(5));
    }
    let asked = probe.0.lock().unwrap().clone();
    let of = |id: &str| asked[&format!("http://127.0.0.1:9001/{id}")];
    assert!((58..=61).contains(&of("own")), "{asked:?}");
    // the default of the setting is 30 s
    assert!((19..=21).contains(&of("none")), "{asked:?}");
}

/// R14: a day of texts that never come again stays inside its bounds.
#[tokio::test]
async fn unique_texts_do_not_fill_the_memory() {
    let w = world().await;
    let (arm, _) = w.models.arms().next().unwrap();
    for round in 0..20 {
        let texts: Vec<Arc<str>> = (0..500).map(|i| format!("text {round} {i} {}", "x".repeat(100)).into()).collect();
        w.models.embed(arm, &texts, agent_reach::embed::worker::WorkClass::Query).await.unwrap();
    }
    let vectors = w.models.stats().vectors;
    // 10,000 texts of about 530 bytes into a cache of 1 MiB
    assert!(vectors.bytes <= 1 << 20 && vectors.entries < 3_000, "{vectors:?}");
}
