//! Namespaces are a boundary: in candidates, reasons, scores, lists and errors.

use crate::harness::*;
use agent_reach::error::Code;
use agent_reach::types::Principal;
use agent_reach::types::request::{ListRequest, ResolveRequest};
use serde_json::json;

/// I5: exact segments, never prefixes.
#[tokio::test]
async fn prefixes_see_nothing() {
    let w = world().await;
    for namespace in ["acme", "acme-corp", "acme/x"] {
        w.register(agent(namespace, "bot", &[("send_invoice", "send an invoice to a customer")])).await;
    }
    for namespace in ["acme", "acme-corp", "acme/x"] {
        let who = member(&[namespace], &[]);
        let d = w.resolve(&who, ResolveRequest { query: "send_invoice".into(), ..asking() }).await.unwrap().decision;
        assert_eq!(d.candidates.iter().map(|c| c.agent.namespace.as_str()).collect::<Vec<_>>(), [namespace]);
        let page = w.ingest.list(&who, &ListRequest::default()).unwrap();
        assert_eq!(page.agents.len(), 1);
    }
}

/// F4, I3: the filter is inside the search: ten thousand nearer strangers leave my one capability findable.
#[tokio::test]
async fn strangers_do_not_starve_a_small_namespace() {
    let w = world().await;
    let names: Vec<String> = (0..400).map(|i| format!("translate_letter_{i}")).collect();
    let rows: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "translate this letter into French please")).collect();
    for i in 0..5 {
        w.register(agent("big", &format!("a{i}"), &rows)).await;
    }
    w.register(agent("small", "mine", &[("translate_post", "translates letters")])).await;
    let d = w
        .resolve(&member(&["small"], &[]), ResolveRequest { query: "translate this letter into French".into(), ..asking() })
        .await
        .unwrap()
        .decision;
    assert_eq!(d.candidates.iter().map(|c| &*c.agent.agent_id).collect::<Vec<_>>(), ["mine"]);
}

/// I4, THREATS 16: what others register changes not one bit of my scores, and their agents don't exist for me.
#[tokio::test]
async fn strangers_leave_no_trace() {
    let w = world().await;
    w.register(agent("a", "desk", &[("refund_create", "give money of an order back"), ("order_status", "tell where an order is")])).await;
    let me = member(&["a"], &[]);
    let ask = || async {
        let mut d =
            w.resolve(&me, ResolveRequest { query: "where is my order, I want my money back".into(), ..asking() }).await.unwrap().decision;
        d.decision_id.clear();
        d.generations = Default::default();
        d
    };
    let before = ask().await;
    for i in 0..30 {
        w.register(agent("b", &format!("x{i}"), &[("order_money", "order order money money back where status refund")])).await;
    }
    assert_eq!(ask().await, before);
    let hidden = w.ingest.get(&me, &key("b", "x1"), None).await.unwrap_err();
    let absent = w.ingest.get(&me, &key("b", "nobody"), None).await.unwrap_err();
    assert_eq!((hidden.code, hidden.message), (absent.code, absent.message));
    let e = w.ingest.register(&me, &agent("b", "mine", &[("steal_it", "take what is not mine")])).await.unwrap_err();
    assert_eq!(e.code.as_str(), "forbidden");
    assert_eq!(w.ingest.deregister(&me, &key("b", "x1")).await.unwrap_err().code.as_str(), "not_found");
}

/// A grant opens an agent to another namespace, and only to that one.
#[tokio::test]
async fn grants_open_exactly_one_door() {
    let w = world().await;
    let mut shared = agent("hr/payroll", "clerk", &[("salary_slip", "show the salary slip of a month")]);
    shared["visible_to"] = json!(["finance", "secret-partner"]);
    shared["health_check"] = json!({"address": "http://127.0.0.1:9001/health"});
    w.register(shared).await;
    // whom else it is shown to, and where it is looked after, is its owner's business
    let read = async |ns: &str| {
        let state = w.ingest.get(&member(&[ns], &[]), &key("hr/payroll", "clerk"), None).await.unwrap();
        (state.manifest.visible_to.iter().map(ToString::to_string).collect::<Vec<_>>(), state.manifest.health_check.is_some())
    };
    assert_eq!(read("finance").await, (vec!["finance".to_string()], false));
    assert_eq!(read("hr/payroll").await, (vec!["finance".to_string(), "secret-partner".to_string()], true));
    let sees = |ns: &'static str| {
        let w = &w;
        async move {
            !w.resolve(&member(&[ns], &[]), ResolveRequest { query: "salary_slip".into(), ..asking() })
                .await
                .unwrap()
                .decision
                .candidates
                .is_empty()
        }
    };
    assert!(sees("finance").await && sees("hr/payroll").await && !sees("hr").await && !sees("sales").await);
}

/// A registered id stays with its owner, also after it was removed.
#[tokio::test]
async fn ids_never_pass_to_another_owner() {
    let w = world().await;
    let anna = Principal { caller: "anna".into(), ..member(&["a"], &[]) };
    let ben = Principal { caller: "ben".into(), ..member(&["a"], &[]) };
    w.ingest.register(&anna, &agent("a", "bot", &[("send_mail", "send a mail")])).await.unwrap();
    assert_eq!(
        w.ingest.register(&ben, &agent("a", "bot", &[("send_mail", "send another mail")])).await.unwrap_err().code.as_str(),
        "conflict"
    );
    let e = w.ingest.drain(&ben, &key("a", "bot"), true).await.unwrap_err();
    assert!(e.code == Code::Conflict && e.message.contains("another owner"), "{e:?}");
    let operator = Principal { scopes: agent_reach::types::Grant::Only(["admin".into()].into()), ..ben.clone() };
    for (who, draining) in [(&operator, true), (&anna, false)] {
        w.ingest.drain(who, &key("a", "bot"), draining).await.unwrap();
    }
    w.ingest.deregister(&anna, &key("a", "bot")).await.unwrap();
    assert_eq!(
        w.ingest.register(&ben, &agent("a", "bot", &[("send_mail", "send another mail")])).await.unwrap_err().code.as_str(),
        "conflict"
    );
    w.ingest.register(&anna, &agent("a", "bot", &[("send_mail", "send a mail again")])).await.unwrap();
}

/// THREATS 12: one owner can neither fill the fleet nor keep the encoder busy; the same content again costs it nothing, others don't notice.
#[tokio::test]
async fn a_flood_of_one_owner_is_bounded() {
    let w = world().await;
    let (flood, other) = (member(&["spam"], &[]), member(&["shop"], &[]));
    let other = Principal { caller: "someone-else".into(), ..other };
    let manifest = |i: usize, text: &str| agent("spam", &format!("copy{i}"), &[("best_agent", text)]);
    for i in 0..40 {
        w.ingest.register(&flood, &manifest(i, "the best agent for everything")).await.unwrap();
    }
    let full = w.ingest.register(&flood, &manifest(40, "the best agent for everything")).await.unwrap_err();
    assert_eq!(full.code, Code::Conflict);
    assert!(full.faults[0].expected.contains("registry.agents_per_owner"), "{full:?}");
    // changing what it has goes on until the pace is met; repeating goes on after that
    let mut paced = None;
    for i in 0..100 {
        if let Err(e) = w.ingest.register(&flood, &manifest(0, &format!("the best agent, edition {i}"))).await {
            paced = Some(e);
            break;
        }
    }
    let paced = paced.unwrap();
    assert_eq!(paced.code, Code::Overloaded);
    assert!(paced.retry_after.is_some());
    assert!(!w.ingest.register(&flood, &manifest(1, "the best agent for everything")).await.unwrap().changed);
    w.ingest.register(&other, &agent("shop", "till", &[("take_money", "takes money at the till")])).await.unwrap();
}

/// H4: showing agents to namespaces that are not one's own needs a scope; the local principal may, and one's own namespaces are no question.
#[tokio::test]
async fn granting_to_strangers_needs_a_scope() {
    let w = world().await;
    let shown_to = |to: &[&str]| {
        let mut document = agent("acme", "bot", &[("send_invoice", "send an invoice to a customer")]);
        document["visible_to"] = json!(to);
        document
    };
    let may = |scopes: &'static [&'static str], to: &'static [&'static str]| {
        let (ingest, document) = (w.ingest.clone(), shown_to(to));
        async move { ingest.register(&member(&["acme", "acme/x"], scopes), &document).await }
    };
    for to in [&["*"][..], &["rival"], &["acme/x", "rival"]] {
        let e = may(&["refund:write"], to).await.unwrap_err();
        assert_eq!((e.code, e.faults[0].pointer.as_str()), (Code::Forbidden, "/visible_to"), "{to:?}");
        assert!(e.faults[0].hint.contains("`publish`") && !e.faults[0].expected.contains("acme/x"), "{e:?}");
    }
    assert!(w.ingest.list(&Principal::local("t"), &ListRequest::default()).unwrap().agents.is_empty(), "nothing of it was taken");
    may(&[], &["acme/x"]).await.unwrap();
    may(&["publish:rival"], &["rival"]).await.unwrap();
    assert_eq!(may(&["publish:rival"], &["rival", "*"]).await.unwrap_err().code, Code::Forbidden);
    may(&["publish"], &["rival", "*"]).await.unwrap();
    let mut operators = shown_to(&["*", "anybody"]);
    operators["agent_id"] = json!("operators");
    w.register(operators).await;
}

/// M11: what a tenant is told of its own registration does not depend on what others have: neither what was embedded for it, nor the generation.
#[tokio::test]
async fn counts_tell_nothing_of_strangers() {
    let texts = [("send_invoice", "send an invoice to a customer")];
    let me = member(&["mine"], &[]);
    let mut told = Vec::new();
    for strangers in [0, 3] {
        let w = world().await;
        for i in 0..strangers {
            // the very texts that I am going to register
            w.register(agent("theirs", &format!("a{i}"), &texts)).await;
        }
        let mine = w.ingest.register(&me, &agent("mine", "bot", &texts)).await.unwrap();
        let again = w.ingest.register(&me, &agent("mine", "bot", &texts)).await.unwrap();
        let state = w.ingest.get(&me, &key("mine", "bot"), None).await.unwrap();
        assert!(mine.embedded > 0 && again.embedded == 0);
        told.push((mine.embedded, mine.generation, again.generation, state.generation));
        let seen = w.ingest.get(&Principal::local("t"), &key("mine", "bot"), None).await.unwrap();
        assert_eq!(seen.generation, strangers + 1, "operators see the count");
    }
    assert_eq!(told[0], told[1]);
}

/// M12: a name that leads to where nothing may be called is told at registration, not only by the first probe.
#[tokio::test]
async fn a_name_that_leads_inward_is_told_at_registration() {
    struct Inward;
    impl agent_reach::ingest::Judge for Inward {
        fn refuses<'a>(&'a self, address: &'a str) -> futures::future::BoxFuture<'a, Option<&'static str>> {
            Box::pin(async move { address.contains("inward").then_some("private_address") })
        }
    }
    let w = world().await;
    w.ingest.judge_with(std::sync::Arc::new(Inward));
    let mut document = agent("acme", "bot", &[("send_invoice", "send an invoice to a customer")]);
    document["endpoints"] =
        json!([{"protocol": "http", "address": "https://fine.example/a"}, {"protocol": "http", "address": "https://inward.example/a"}]);
    for _ in 0..2 {
        let told = w.register(document.clone()).await;
        let warned: Vec<_> = told.lint.iter().filter(|f| f.hint.contains("blocked_url")).collect();
        assert_eq!(warned.iter().map(|f| f.pointer.as_str()).collect::<Vec<_>>(), ["/endpoints/1/address"], "{:?}", told.lint);
        assert!(warned[0].hint.starts_with("private_address"));
    }
}

/// New content under an old version is taken, with advice: the version would name two things.
#[tokio::test]
async fn new_content_under_an_old_version_is_told() {
    let w = world().await;
    let me = Principal::local("me");
    let told = async |version: &str, description: &str| {
        let mut document = agent("orders", "desk", &[("refund_create", description)]);
        document["agent_version"] = json!(version);
        let warnings = w.ingest.register(&me, &document).await.unwrap().lint;
        warnings.iter().any(|f| f.pointer == "/agent_version")
    };
    assert!(!told("1.0", "gives the money of an order back").await);
    assert!(!told("1.0", "gives the money of an order back").await, "the same content again");
    assert!(told("1.0", "gives money back within a week").await);
    assert!(!told("1.1", "gives money back within a month").await);
}
