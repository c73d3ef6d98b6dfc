//! Registration, restarts, leases: what is embedded how often, what survives, what disappears.

use crate::harness::*;
use agent_reach::types::DecisionKind::{Auto, None as Nobody};
use agent_reach::types::Principal;
use agent_reach::types::policy::Policy;
use agent_reach::types::request::{Heartbeat, ListRequest, ResolveRequest};
use futures::StreamExt;
use serde_json::json;
use std::time::Duration;

/// I7, I9, I10, I12: three restarts change nothing and embed nothing; one registration embeds one agent.
#[tokio::test]
async fn restarts_embed_nothing_twice() {
    let w = world().await;
    for i in 0..5 {
        w.register(agent("ns", &format!("a{i}"), &[(&format!("do_thing_{i}"), &format!("does the thing number {i} for somebody"))])).await;
    }
    let before = w.embedded();
    let again = w.register(agent("ns", "a1", &[("do_thing_1", "does the thing number 1 for somebody")])).await;
    assert!(!again.changed && again.embedded == 0 && w.embedded() == before, "the same manifest again");
    let one = w.register(agent("ns", "a9", &[("do_other", "does something else entirely")])).await;
    assert_eq!(w.embedded() - before, one.embedded, "only the new agent's texts");
    assert!(one.embedded > 0 && one.embedded <= 8, "{}", one.embedded);
    w.ingest.deregister(&Principal::local("t"), &key("ns", "a0")).await.unwrap();
    let mut folder = w.close();
    for _ in 0..3 {
        let w = open(folder, Policy::default(), "fake").await;
        assert_eq!((w.loaded.agents, w.loaded.capabilities, w.loaded.pending), (5, 5, 0));
        assert_eq!(w.embedded(), 0, "a restart embeds nothing");
        assert_eq!(w.ask("do_thing_1").await.decision.kind, Auto);
        assert_eq!(w.ask("do_thing_0").await.decision.candidates.iter().filter(|c| &*c.capability == "do_thing_0").count(), 0);
        folder = w.close();
    }
}

/// I11, I13, T14: another model under the same data: words and names serve at once, vectors follow in the background, old ones are ignored.
#[tokio::test]
async fn another_model_is_filled_while_serving() {
    let w = world().await;
    for i in 0..70 {
        w.register(agent("ns", &format!("a{i}"), &[(&format!("fix_pump_{i}"), &format!("repairs the water pump number {i}"))])).await;
    }
    let folder = w.close();
    let w = open(folder, Policy::default(), "other").await;
    assert_eq!(w.loaded.pending, 70);
    assert_eq!(w.ask("fix_pump_3").await.decision.kind, Auto, "names serve at once");
    let words = w.ask("somebody should repair the water pump number 7").await.decision;
    assert!(words.warnings.iter().any(|n| n.code == "warming"));
    assert!(words.candidates.iter().any(|c| &*c.capability == "fix_pump_7"), "words serve at once");
    while w.ingest.fill().await.unwrap() > 0 {}
    assert_eq!(w.views.load().pending, 0);
    assert!(!w.ask("repair the water pump number 7").await.decision.warnings.iter().any(|n| n.code == "warming"));
}

/// I16: a changed description is embedded again and the old one no longer counts; the old version stays readable.
#[tokio::test]
async fn a_new_version_replaces_the_old_one() {
    let w = world().await;
    let mut first = agent("ns", "bot", &[("handle_it", "repairs bicycles in the workshop")]);
    first["agent_version"] = json!("1");
    let before = w.register(first).await;
    let mut second = agent("ns", "bot", &[("handle_it", "bakes bread and cakes for weddings")]);
    second["agent_version"] = json!("2");
    let after = w.register(second).await;
    assert!(after.changed && after.generation > before.generation && after.content_hash != before.content_hash);
    let d = w.ask("bake a cake for a wedding").await.decision;
    let bread =
        d.candidates.iter().find(|c| &*c.capability == "handle_it").unwrap().evidence.iter().find(|t| t.name == "bm25").unwrap().value;
    assert!(bread > 0.0);
    let d = w.ask("repair my bicycle in the workshop").await.decision;
    assert!(d.candidates.iter().all(|c| c.evidence.iter().all(|t| t.name != "bm25" || t.value == 0.0)), "the old words are gone");
    let old = w.ingest.get(&Principal::local("t"), &key("ns", "bot"), Some("1")).await.unwrap();
    assert_eq!(old.manifest.capabilities[0].description.en.as_deref(), Some("repairs bicycles in the workshop"));
    assert_eq!(w.ingest.get(&Principal::local("t"), &key("ns", "bot"), None).await.unwrap().content_hash, after.content_hash);
}

/// R13: a second provider does not empty the list; drain and deregister show at once.
#[tokio::test]
async fn drain_and_deregister_show_at_once() {
    let w = world().await;
    for id in ["a", "b"] {
        w.register(agent("ns", id, &[("translate_text", "translate a text")])).await;
    }
    let who = Principal::local("t");
    let offered = || async {
        w.ask("translate_text")
            .await
            .decision
            .candidates
            .iter()
            .map(|c| c.agent.agent_id.to_string())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(offered().await.len(), 2);
    let state = w.ingest.drain(&who, &key("ns", "a"), true).await.unwrap();
    assert_eq!(state.status, "draining");
    assert_eq!(offered().await, ["b".to_string()].into());
    w.ingest.drain(&who, &key("ns", "a"), false).await.unwrap();
    assert_eq!(offered().await.len(), 2);
    w.ingest.deregister(&who, &key("ns", "b")).await.unwrap();
    assert_eq!(offered().await, ["a".to_string()].into());
    assert_eq!(w.ingest.deregister(&who, &key("ns", "b")).await.unwrap_err().code.as_str(), "not_found");
}

/// An agent's own word that it takes work doesn't take back what the operator said, nor the other way round.
#[tokio::test]
async fn an_operators_drain_outlives_heartbeats() {
    let w = world().await;
    let mut leased = agent("ns", "a", &[("translate_text", "translate a text")]);
    leased["ttl"] = json!("30s");
    w.register(leased).await;
    let (who, key) = (Principal::local("t"), key("ns", "a"));
    let beat = |draining| Heartbeat { draining, ..Heartbeat::default() };
    let state = || async { w.ingest.get(&who, &key, None).await.unwrap().status };
    w.ingest.drain(&who, &key, true).await.unwrap();
    for word in [None, Some(false), Some(true), Some(false)] {
        w.ingest.heartbeat(&who, &key, beat(word)).await.unwrap();
        assert_eq!(state().await, "draining", "after {word:?}");
    }
    w.ingest.drain(&who, &key, false).await.unwrap();
    assert_eq!(state().await, "live");
    w.ingest.heartbeat(&who, &key, beat(Some(true))).await.unwrap();
    assert_eq!(state().await, "draining", "its own word");
    w.ingest.heartbeat(&who, &key, beat(Some(false))).await.unwrap();
    assert_eq!(state().await, "live");
}

/// Leases: no heartbeat, no work; a heartbeat brings the agent back; load is taken and NaN is not.
#[tokio::test]
async fn leases_end_and_return() {
    let w = world().await;
    let mut leased = agent("ns", "a", &[("translate_text", "translate a text")]);
    leased["ttl"] = json!("30s");
    w.register(leased).await;
    let who = Principal::local("t");
    assert_eq!(w.ask("translate_text").await.decision.kind, Auto);
    w.clock.advance(Duration::from_secs(40));
    let late = w.ask("translate_text").await.decision;
    assert_eq!(late.kind, Nobody);
    assert!(late.dropped.iter().any(|d| matches!(d.why, agent_reach::types::DropReason::LeaseExpired)));
    w.ingest.heartbeat(&who, &key("ns", "a"), Heartbeat { load: Some(0.4), queue_length: Some(3), ..Heartbeat::default() }).await.unwrap();
    assert_eq!(w.ask("translate_text").await.decision.kind, Auto);
    let e = w.ingest.heartbeat(&who, &key("ns", "a"), Heartbeat { load: Some(f64::NAN), ..Heartbeat::default() }).await.unwrap_err();
    assert_eq!(e.code.as_str(), "invalid_argument");
    assert_eq!(w.ingest.heartbeat(&who, &key("ns", "nobody"), Heartbeat::default()).await.unwrap_err().code.as_str(), "not_found");
}

/// Watchers see what is there, then each change; they are told of what they may see only.
#[tokio::test]
async fn watchers_see_changes() {
    let w = world().await;
    w.register(agent("mine", "a", &[("x_one", "does one thing")])).await;
    let mut watch = Box::pin(w.ingest.watch(&member(&["mine"], &[])));
    let first = watch.next().await.unwrap();
    assert_eq!((first.kind, first.agent.unwrap()), ("present", key("mine", "a")));
    w.register(agent("other", "hidden", &[("x_two", "does another thing")])).await;
    w.register(agent("mine", "b", &[("x_three", "does a third thing")])).await;
    let second = watch.next().await.unwrap();
    assert_eq!((second.kind, second.agent.unwrap()), ("registered", key("mine", "b")));
    w.ingest.deregister(&Principal::local("t"), &key("mine", "b")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().kind, "deregistered");
}

/// Lists are pages in a stable order, filtered by namespace, tag and capability.
#[tokio::test]
async fn lists_are_pages() {
    let w = world().await;
    for i in 0..7 {
        let mut a = agent("ns", &format!("a{i}"), &[(if i < 3 { "send_mail" } else { "send_fax" }, "sends something to somebody")]);
        a["tags"] = json!([if i % 2 == 0 { "code_review" } else { "other" }]);
        w.register(a).await;
    }
    let who = Principal::local("t");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = w.ingest.list(&who, &ListRequest { limit: Some(3), after, ..ListRequest::default() }).unwrap();
        seen.extend(page.agents.iter().map(|a| a.manifest.agent_id.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..7).map(|i| format!("a{i}")).collect::<Vec<_>>());
    let by = |r: ListRequest| w.ingest.list(&who, &r).unwrap().agents.len();
    assert_eq!(by(ListRequest { capability: Some("Send-Mail".into()), ..ListRequest::default() }), 3);
    assert_eq!(by(ListRequest { tag: Some("code-review".into()), ..ListRequest::default() }), 4);
    assert!(w.ingest.list(&who, &ListRequest { limit: Some(0), ..ListRequest::default() }).is_err());
}

/// E4: fifty first requests at once: one embedding of one text, all answered, and others are answered meanwhile.
#[tokio::test]
async fn fifty_first_requests_share_one_embedding() {
    let w = world().await;
    w.register(agent("ns", "a", &[("translate_text", "translate a text into another language")])).await;
    let before = w.embedded();
    let who = Principal::local("t");
    let asks = (0..50).map(|_| w.resolve(&who, ResolveRequest { query: "please translate my letter".into(), ..asking() }));
    let answers = futures::future::join_all(asks).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(w.embedded() - before <= 2, "{} embeddings", w.embedded() - before);
}

/// A deadline that passes is an error, not a decision from nothing; an encoder that fails is one too (T13).
#[tokio::test]
async fn no_decision_from_nothing() {
    let w = world().await;
    w.register(agent("ns", "a", &[("translate_text", "translate a text into another language")])).await;
    for fake in &w.fakes {
        fake.close();
    }
    let r = ResolveRequest { query: "please translate this".into(), deadline_ms: Some(50), ..asking() };
    assert_eq!(w.resolve(&Principal::local("t"), r).await.unwrap_err().code.as_str(), "deadline_exceeded");
    for fake in &w.fakes {
        fake.open();
    }
    assert!(w.resolve(&Principal::local("t"), ResolveRequest { query: "translate it, please fail".into(), ..asking() }).await.is_err());
    assert!(w.resolve(&Principal::local("t"), ResolveRequest { query: "translate it, please panic".into(), ..asking() }).await.is_err());
    assert!(
        w.resolve(&Principal::local("t"), ResolveRequest { query: "translate it please".into(), ..asking() }).await.is_ok(),
        "the next one is served"
    );
}

/// R2: the canary is routed on an empty fleet.
#[tokio::test]
async fn readiness_routes_a_canary() {
    let w = world().await;
    let canary = w.ingest.canary().await.unwrap();
    assert_eq!(canary.load().catalog.capability_count(), 1);
    assert_eq!(w.views.load().catalog.capability_count(), 0, "the canary is not in the fleet");
}
