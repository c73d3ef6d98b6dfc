//! What is decided, and what it says.

use crate::harness::*;
use agent_reach::types::DecisionKind::{Auto, None as Nobody, Suggest};
use agent_reach::types::decision::DropReason;
use agent_reach::types::policy::{Fallback, OperatingPoint, Policy, Rule, RuleAction};
use agent_reach::types::request::ResolveRequest;
use agent_reach::types::{DecisionKind, Principal};
use serde_json::json;

fn names(decision: &agent_reach::types::Decision) -> Vec<String> {
    decision.candidates.iter().map(|c| c.capability.to_string()).collect()
}

async fn office() -> World {
    let w = world().await;
    w.register(agent(
        "orders",
        "desk",
        &[("refund_create", "give the money of an order back to the customer"), ("order_status", "tell where an order is")],
    ))
    .await;
    w.register(agent(
        "kb",
        "librarian",
        &[("search_articles", "search the knowledge base for articles"), ("summarise_text", "write a summary of a long text")],
    ))
    .await;
    w
}

/// T9: nothing fits, so nobody gets it: not the first in the list, not at random.
#[tokio::test]
async fn nothing_fits_is_none() {
    let w = world().await;
    let empty = w.ask("is anybody there").await;
    assert_eq!((empty.decision.kind, empty.decision.candidates.len()), (Nobody, 0));
    assert!(!empty.decision.reasons.is_empty());
}

/// T8: a configured fallback is used when nobody fits and says so; an unusable one is named.
#[tokio::test]
async fn the_fallback_takes_what_nobody_fits() {
    let policy = |id: &str| Policy {
        fallback: Some(Fallback { agent: key("people", id), capability: "human-desk".into() }),
        point: Some(OperatingPoint { suggest: 1.1, ..OperatingPoint::default() }),
        ..Policy::default()
    };
    let w = world_with(policy("pool")).await;
    w.register(agent("people", "pool", &[("human_desk", "people who answer what no agent can")])).await;
    for _ in 0..3 {
        let d = w.ask("sing me a song about turbines").await.decision;
        assert_eq!(d.kind, Auto);
        assert!(d.candidates[0].found_by.iter().any(|f| f == "fallback") && d.reasons.iter().any(|r| r.code == "fallback"));
    }
    let declined =
        w.resolve(&Principal::local("t"), ResolveRequest { query: "sing".into(), fallback: Some(false), ..asking() }).await.unwrap();
    assert_eq!(declined.decision.kind, Nobody);
    let missing = world_with(policy("nobody")).await;
    let d = missing.ask("sing me a song").await.decision;
    assert_eq!(d.kind, Nobody);
    assert!(d.warnings.iter().any(|n| n.code == "fallback_missing"));
}

/// T10: a threshold of 0.0 is a threshold, and the shape of an answer does not depend on how many there are.
#[tokio::test]
async fn zero_is_a_threshold() {
    let point = OperatingPoint { auto: 0.0, auto_learned: None, auto_margin: 0.0, suggest: 0.0, floor: 0.0, keep_under_floor: 0 };
    let w = world_with(Policy { point: Some(point), live_margin: 0.0, ..Policy::default() }).await;
    w.register(agent("a", "x", &[("translate_text", "translate a text")])).await;
    assert_eq!(w.ask("please translate this letter").await.decision.kind, Auto);
}

/// A name given outright, an alias, and any spelling of it; L13: a second provider of an intent changes no id.
#[tokio::test]
async fn names_are_found_in_any_spelling() {
    let w = office().await;
    for name in ["refund_create", "refundCreate", "REFUND-CREATE", "ｒｅｆｕｎｄ＿ｃｒｅａｔｅ", "refund create"] {
        let d = w.resolve(&Principal::local("t"), ResolveRequest { capability: Some(name.into()), ..asking() }).await.unwrap().decision;
        assert_eq!((d.kind, names(&d)), (Auto, vec!["refund_create".to_string()]), "{name}");
        let before = w.embedded();
        let d = w.ask(name).await.decision;
        assert_eq!((d.kind, names(&d)[0].as_str()), (Auto, "refund_create"), "{name} as the whole text");
        assert_eq!(w.embedded(), before, "a name is not embedded");
    }
    w.register(agent("orders2", "desk", &[("refund_create", "refund orders of the other shop")])).await;
    let d = w.ask("refund_create").await.decision;
    assert_eq!(names(&d), ["refund_create", "refund_create"]);
    assert_eq!(d.kind, Auto, "two agents of one capability are no doubt about the capability");
}

/// L1: every exact name that a query lists comes back, ahead of ranked hits.
#[tokio::test]
async fn every_listed_name_comes_back_first() {
    let w = world().await;
    let tools = ["search_graph", "trace_path", "get_code_snippet", "query_graph", "search_code", "index_repository", "codebase_memory"];
    let described: Vec<_> = tools.iter().map(|t| (*t, "works on a code base")).collect();
    w.register(agent("code", "tools", &described)).await;
    let others: Vec<String> = (0..60).map(|i| format!("graph_code_path_{i}")).collect();
    w.register(agent(
        "code",
        "others",
        &others.iter().map(|o| (o.as_str(), "search graph trace path get code snippet query index repository")).collect::<Vec<_>>(),
    ))
    .await;
    let query = "search_graph trace_path get_code_snippet query_graph search_code index_repository codebase-memory";
    let d = w.resolve(&Principal::local("t"), ResolveRequest { query: query.into(), k: Some(20), ..asking() }).await.unwrap().decision;
    let mut first: Vec<String> = names(&d).into_iter().take(7).collect();
    first.sort();
    let mut wanted: Vec<String> = tools.iter().map(ToString::to_string).collect();
    wanted.sort();
    assert_eq!(first, wanted);
    assert_eq!(d.kind, Suggest, "several capabilities are named");
}

/// T12: the order of registration is no priority; equal agents share the work.
#[tokio::test]
async fn equal_agents_share() {
    let w = world().await;
    for id in ["a", "b"] {
        w.register(agent("ns", id, &[("translate_text", "translate a text into another language")])).await;
    }
    let mut wins = std::collections::BTreeMap::new();
    for seed in 0..100 {
        let r = ResolveRequest { query: "translate_text".into(), seed: Some(seed), ..asking() };
        let d = w.resolve(&Principal::local("t"), r).await.unwrap().decision;
        *wins.entry(d.candidates[0].agent.agent_id.to_string()).or_insert(0) += 1;
    }
    assert!(wins.len() == 2 && wins.values().all(|n| *n >= 30), "{wins:?}");
}

/// T15, L12: one request, alone and in a batch: the same decision.
#[tokio::test]
async fn a_batch_decides_as_one_by_one() {
    let w = office().await;
    let queries = ["where is my order", "money back please", "find articles about turbines", "summary of this report"];
    let requests: Vec<_> = queries.iter().map(|q| ResolveRequest { query: (*q).into(), ..asking() }).collect();
    let batch = w.resolver.resolve_batch(&Principal::local("t"), &requests).await;
    for (request, together) in requests.into_iter().zip(batch) {
        let (mut alone, mut together) = (w.resolve(&Principal::local("t"), request).await.unwrap().decision, together.unwrap().decision);
        alone.decision_id.clear();
        together.decision_id.clear();
        assert_eq!(alone, together);
    }
}

/// Why-not: the best that were dropped come with their reasons.
#[tokio::test]
async fn what_was_dropped_says_why() {
    let w = world().await;
    let mut night = agent("ops", "night", &[("restart_service", "restart a service that hangs")]);
    night["capabilities"][0]["hours"] = json!({"time_zone": "Asia/Shanghai", "windows": [{"from": "22:00", "to": "03:00"}]});
    let mut scoped = agent("ops", "scoped", &[("restart_service", "restart a service that hangs")]);
    scoped["capabilities"][0]["scopes"] = json!(["ops:write"]);
    let mut eu = agent("ops", "eu", &[("restart_service", "restart a service that hangs")]);
    eu["capabilities"][0]["regions"] = json!(["eu-*"]);
    let mut dear = agent("ops", "dear", &[("restart_service", "restart a service that hangs")]);
    dear["capabilities"][0]["cost"] = json!(10.0);
    for m in [night, scoped, eu, dear] {
        w.register(m).await;
    }
    let r = ResolveRequest {
        query: "restart the service that hangs".into(),
        scopes: Some(vec![]),
        region: Some("cn-east".into()),
        max_cost: Some(1.0),
        ..asking()
    };
    let d = w.resolve(&Principal::local("t"), r).await.unwrap().decision;
    assert_eq!((d.kind, d.candidates.len()), (Nobody, 0));
    let why: Vec<_> = d.dropped.iter().map(|d| (&*d.agent.agent_id, &d.why)).collect();
    assert!(
        why.iter().any(|(a, w)| *a == "night" && matches!(w, DropReason::Closed { opens: Some(o) } if o.contains("22:00 Asia/Shanghai"))),
        "{why:?}"
    );
    assert!(why.iter().any(|(a, w)| *a == "scoped" && matches!(w, DropReason::ScopeMissing { .. })));
    assert!(why.iter().any(|(a, w)| *a == "eu" && matches!(w, DropReason::Region { .. })));
    assert!(why.iter().any(|(a, w)| *a == "dear" && matches!(w, DropReason::Cost { .. })));
}

/// F1: hours that run past midnight.
#[tokio::test]
async fn open_past_midnight() {
    let w = world().await;
    let mut night = agent("ops", "night", &[("restart_service", "restart a service")]);
    night["capabilities"][0]["hours"] = json!({"time_zone": "Asia/Shanghai", "windows": [{"from": "22:00", "to": "03:00"}]});
    w.register(night).await;
    let at = |at: &str| ResolveRequest { query: "restart_service".into(), at: Some(at.into()), ..asking() };
    for (time, open) in [("01:30", true), ("03:00", true), ("03:01", false), ("21:59", false), ("22:00", true)] {
        let d = w.resolve(&Principal::local("t"), at(&format!("2026-01-06T{time}:00+08:00"))).await.unwrap().decision;
        assert_eq!(d.kind == Auto, open, "{time}");
    }
}

/// A payload that does not fit drops the candidate with the place; T: schema as evidence before ranking.
#[tokio::test]
async fn payloads_are_checked_before_anything_is_chosen() {
    let w = world().await;
    let mut strict = agent("orders", "strict", &[("refund_create", "give money back")]);
    strict["capabilities"][0]["input_schema"] =
        json!({"type": "object", "required": ["order_id"], "properties": {"order_id": {"type": "string"}, "amount": {"type": "number"}}});
    w.register(strict).await;
    let with = |payload| ResolveRequest { query: "refund_create".into(), payload: Some(std::sync::Arc::new(payload)), ..asking() };
    let good = w.resolve(&Principal::local("t"), with(json!({"order_id": "SO-1", "amount": 3}))).await.unwrap().decision;
    assert_eq!(good.kind, Auto);
    let bad = w.resolve(&Principal::local("t"), with(json!({"order_id": 7}))).await.unwrap().decision;
    assert_eq!(bad.kind, Nobody);
    assert!(matches!(&bad.dropped[0].why, DropReason::Payload { pointer, .. } if pointer == "/order_id"), "{:?}", bad.dropped);
    assert!(bad.warnings.iter().any(|n| n.code == "payload_invalid"));
}

/// Operator rules: deny, force and hours.
#[tokio::test]
async fn operator_rules_apply() {
    let rule = |name: &str, action, capability: &str| Rule {
        name: name.into(),
        action,
        callers: vec![],
        namespaces: vec![],
        agents: vec![],
        capabilities: vec![capability.into()],
        words: vec![],
    };
    let policy = Policy {
        rules: vec![
            rule("frozen", RuleAction::Deny, "refund_create"),
            Rule { words: vec!["紧急".into()], ..rule("page", RuleAction::Force, "page_oncall") },
        ],
        ..Policy::default()
    };
    let w = world_with(policy).await;
    w.register(agent("orders", "desk", &[("refund_create", "give money back")])).await;
    w.register(agent("ops", "pager", &[("page_oncall", "wakes whoever is on call")])).await;
    let d = w.ask("refund_create").await.decision;
    assert!(d.dropped.iter().any(|d| matches!(&d.why, DropReason::Rule { name } if name == "frozen")));
    let d = w.ask("紧急！网站打不开了").await.decision;
    assert_eq!((d.kind, names(&d)[0].as_str()), (Auto, "page_oncall"));
}

/// Target and preferred agents: a target skips the choice, never permission; `only` means only.
#[tokio::test]
async fn targets_and_preferences() {
    let w = world().await;
    for id in ["a", "b"] {
        w.register(agent("ns", id, &[("translate_text", "translate a text into another language")])).await;
    }
    let with = |r: ResolveRequest| ResolveRequest { query: "translate_text".into(), ..r };
    for seed in 0..20 {
        let d = w
            .resolve(&Principal::local("t"), with(ResolveRequest { preferred: vec!["ns/b".into()], seed: Some(seed), ..asking() }))
            .await
            .unwrap()
            .decision;
        assert_eq!(&*d.candidates[0].agent.agent_id, "b");
    }
    let d = w.resolve(&Principal::local("t"), with(ResolveRequest { target: Some("ns/a".into()), ..asking() })).await.unwrap().decision;
    assert_eq!((d.candidates.len(), &*d.candidates[0].agent.agent_id), (1, "a"));
    let d = w
        .resolve(&Principal::local("t"), with(ResolveRequest { preferred: vec!["ns/b".into()], only: true, ..asking() }))
        .await
        .unwrap()
        .decision;
    assert_eq!((d.candidates.len(), &*d.candidates[0].agent.agent_id), (1, "b"));
    let d = w.resolve(&Principal::local("t"), with(ResolveRequest { exclude: vec!["ns/b".into()], ..asking() })).await.unwrap().decision;
    assert!(d.candidates.iter().all(|c| &*c.agent.agent_id == "a"));
    let stranger =
        w.resolve(&member(&["other"], &[]), with(ResolveRequest { target: Some("ns/a".into()), ..asking() })).await.unwrap().decision;
    assert_eq!((stranger.kind, stranger.candidates.len(), stranger.dropped.len()), (Nobody, 0, 0));
}

/// THREATS 9: hostile and odd texts get an answer or a clear fault, never a panic; operators are plain text.
#[tokio::test]
async fn odd_texts_are_answered() {
    let w = office().await;
    let long_word = "x".repeat(1_000_000);
    let emoji = "😀".repeat(100_000);
    for text in [
        "- *",
        "(((((((((",
        "field:secret",
        "a* b* c*",
        "the of and",
        &long_word,
        &emoji,
        "\u{202e}\u{1b}[2Jrefund",
        "AND OR NOT",
        "\"",
        "退",
    ] {
        let r = w.resolve(&Principal::local("t"), ResolveRequest { query: text.into(), ..asking() }).await;
        assert!(r.is_ok(), "{:?}", r.err());
    }
    for text in ["", "   ", "\u{0}\u{1}"] {
        let e = w.resolve(&Principal::local("t"), ResolveRequest { query: text.into(), ..asking() }).await.unwrap_err();
        assert_eq!((e.code.as_str(), e.faults[0].pointer.as_str()), ("invalid_argument", "/query"));
    }
}

/// The same View, query and seed: the same decision, bit for bit.
#[tokio::test]
async fn a_decision_is_a_function() {
    let w = office().await;
    let decide = || async {
        let mut d = w.ask("where is my order and can I have my money back").await.decision;
        d.decision_id.clear();
        d
    };
    let first = decide().await;
    for _ in 0..5 {
        assert_eq!(decide().await, first);
    }
    assert!(first.candidates.iter().all(|c| (c.score - c.terms.iter().map(|t| t.weight * t.value).sum::<f32>()).abs() < 1e-5));
    assert_ne!(first.kind, DecisionKind::None);
}
