//! Outcomes: who may report, read and forget what, and what is learned from them.

use crate::harness::{agent, asking, key, member, world};
use agent_reach::error::Code;
use agent_reach::types::outcome::{OutcomeFilter, Report, Verdict};
use agent_reach::types::policy::Policy;
use agent_reach::types::request::ResolveRequest;
use agent_reach::types::{AgentKey, Grant, Principal};
use std::sync::Arc;

fn adopted(query: &str, agent: AgentKey, capability: &str) -> Report {
    Report { query: Some(query.into()), verdict: "adopted".into(), chosen: Some((agent, capability.into())), ..Report::default() }
}

#[tokio::test]
async fn reports_are_checked_and_every_one_is_answered() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("refund_create", "Refund an order")])).await;
    let who = Principal::local("me");
    let reports = vec![
        adopted("refund it", key("orders", "desk"), "RefundCreate"),
        Report { verdict: "great".into(), ..adopted("x", key("orders", "desk"), "refund_create") },
        adopted("x", key("orders", "desk"), "no_such_thing"),
        Report { query: None, ..adopted("x", key("orders", "desk"), "refund_create") },
        Report { chosen: None, ..adopted("x", key("orders", "desk"), "refund_create") },
        Report { at: Some("2099-01-01T00:00:00Z".into()), ..adopted("x", key("orders", "desk"), "refund_create") },
        Report { verdict: "nobody".into(), chosen: None, query: Some("sing".into()), ..Report::default() },
    ];
    let answers = w.ingest.report(&who, reports).await;
    let codes: Vec<Option<Code>> = answers.iter().map(|a| a.as_ref().err().map(|e| e.code)).collect();
    let bad = Some(Code::InvalidArgument);
    assert_eq!(codes, [None, bad, Some(Code::NotFound), bad, bad, bad, None]);
    let kept = w.ingest.outcomes(&who, &OutcomeFilter::default(), None, None).unwrap();
    assert_eq!(kept.outcomes.iter().map(|o| o.verdict).collect::<Vec<_>>(), [Verdict::Nobody, Verdict::Adopted]);
}

#[tokio::test]
async fn a_principal_reports_only_on_what_it_sees_and_reads_only_its_part() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("refund_create", "Refund an order")])).await;
    w.register(agent("secret", "vault", &[("vault_open", "Open the vault")])).await;
    let (orders, other) = (member(&["orders"], &[]), Principal { caller: Arc::from("other"), ..member(&["secret"], &[]) });
    let hidden = w.ingest.report(&orders, vec![adopted("open it", key("secret", "vault"), "vault_open")]).await;
    let absent = w.ingest.report(&orders, vec![adopted("open it", key("secret", "nobody"), "vault_open")]).await;
    let words = |a: &[Result<String, agent_reach::error::Error>]| a[0].as_ref().unwrap_err().to_string();
    assert_eq!(words(&hidden), words(&absent), "hidden and absent are the same");
    assert!(w.ingest.report(&orders, vec![adopted("refund it", key("orders", "desk"), "refund_create")]).await[0].is_ok());
    assert!(w.ingest.report(&other, vec![adopted("open it", key("secret", "vault"), "vault_open")]).await[0].is_ok());
    let read = |who: &Principal| w.ingest.outcomes(who, &OutcomeFilter::default(), None, None).unwrap().outcomes.len();
    assert_eq!((read(&orders), read(&other), read(&Principal::local("admin"))), (1, 1, 2));
    // nobody forgets what others reported, but for the operator
    let of_member = OutcomeFilter { reporter: Some("member".into()), ..OutcomeFilter::default() };
    assert_eq!(w.ingest.forget(&other, &of_member).await.unwrap_err().code, Code::Forbidden);
    let of_desk = OutcomeFilter { agent: Some(key("orders", "desk")), ..OutcomeFilter::default() };
    assert_eq!(w.ingest.forget(&other, &of_desk).await.unwrap(), 0);
    assert_eq!(w.ingest.forget(&orders, &of_desk).await.unwrap(), 1);
    assert_eq!(w.ingest.forget(&Principal::local("admin"), &OutcomeFilter::default()).await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn an_id_counts_once_and_survives_a_restart() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("refund_create", "Refund an order"), ("order_query", "Look up an order")])).await;
    let who = Principal::local("me");
    let with_id = |capability: &str| Report { id: Some("one".into()), ..adopted("where is it", key("orders", "desk"), capability) };
    for capability in ["refund_create", "order_query"] {
        assert_eq!(w.ingest.report(&who, vec![with_id(capability)]).await[0].as_deref().unwrap(), "one");
    }
    let w = crate::harness::open(w.close(), Default::default(), "fake").await;
    let kept = w.ingest.outcomes(&who, &OutcomeFilter::default(), None, None).unwrap().outcomes;
    assert_eq!(kept.len(), 1);
    assert_eq!(&*kept[0].chosen.as_ref().unwrap().capability, "order_query");
}

/// Two capabilities that the words of the requests don't tell apart; outcomes do.
async fn taught(queries: usize) -> crate::harness::World {
    let w = world().await;
    w.register(agent("orders", "desk", &[("alpha_task", "Handles a customer request"), ("beta_task", "Handles a customer request too")]))
        .await;
    w.ingest.learn_for([Grant::All]);
    let mut reports = Vec::new();
    for i in 0..queries {
        reports.push(adopted(&format!("purple elephant number {i}"), key("orders", "desk"), "beta_task"));
        reports.push(adopted(&format!("green turtle number {i}"), key("orders", "desk"), "alpha_task"));
    }
    assert!(w.ingest.report(&Principal::local("me"), reports).await.iter().all(Result::is_ok));
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    w
}

#[tokio::test]
async fn outcomes_move_the_order_and_are_forgotten_again() {
    let w = taught(8).await;
    let first = |r: &agent_reach::route::resolver::Resolved| r.decision.candidates[0].capability.to_string();
    let (a, b) = (w.ask("a green turtle").await, w.ask("a purple elephant").await);
    assert_eq!((first(&a).as_str(), first(&b).as_str()), ("alpha_task", "beta_task"));
    let evidence =
        |r: &agent_reach::route::resolver::Resolved| r.decision.candidates[0].evidence.iter().find(|t| t.name == "learned").cloned();
    assert!(evidence(&a).is_some_and(|t| t.value > 0.0), "what was learned is shown");
    let all = OutcomeFilter { agent: Some(key("orders", "desk")), ..OutcomeFilter::default() };
    assert_eq!(w.ingest.forget(&Principal::local("me"), &all).await.unwrap(), 16);
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    assert!(evidence(&w.ask("a green turtle").await).is_none(), "nothing of it is left");
}

#[tokio::test]
async fn what_was_learned_stays_while_the_fleet_changes() {
    let w = taught(8).await;
    let capabilities = [("alpha_task", "Handles a customer request"), ("beta_task", "Handles a customer request too")];
    let mut again = agent("orders", "desk", &capabilities);
    again["agent_version"] = "2".into();
    w.register(again).await;
    w.register(agent("elsewhere", "other", &[("gamma_task", "Waters the flowers")])).await;
    let (a, b) = (w.ask("a green turtle").await, w.ask("a purple elephant").await);
    let first = |r: &agent_reach::route::resolver::Resolved| r.decision.candidates[0].capability.to_string();
    assert_eq!((first(&a).as_str(), first(&b).as_str()), ("alpha_task", "beta_task"), "without a lesson in between");
    assert!(a.decision.candidates[0].evidence.iter().any(|t| t.name == "learned" && t.value > 0.0));
}

#[tokio::test]
async fn a_restart_knows_what_the_last_lesson_taught() {
    let w = taught(8).await;
    let before = w.ask("a green turtle").await.decision;
    let w = crate::harness::open(w.close(), Policy::default(), "fake").await;
    w.ingest.load().await.unwrap();
    assert_eq!(w.ingest.recall_lessons().await, 1);
    let after = w.ask("a green turtle").await.decision;
    let bits =
        |d: &agent_reach::types::Decision| d.candidates.iter().map(|c| (c.capability.to_string(), c.score.to_bits())).collect::<Vec<_>>();
    assert_eq!(bits(&before), bits(&after), "to the bit, without a lesson in between");
    let lesson = w.ingest.learn(Arc::new(|| true)).await.unwrap();
    assert_eq!((lesson.parts, lesson.trained), (1, 0), "and nothing is trained twice");
    let w = crate::harness::open(w.close(), Policy::default(), "other").await;
    w.ingest.load().await.unwrap();
    assert_eq!(w.ingest.recall_lessons().await, 0, "heads of other models are of no use");
    let w = crate::harness::open(w.close(), Policy::default(), "fake").await;
    w.ingest.load().await.unwrap();
    assert_eq!(w.ingest.recall_lessons().await, 1);
    let all = OutcomeFilter { agent: Some(key("orders", "desk")), ..OutcomeFilter::default() };
    assert_eq!(w.ingest.forget(&Principal::local("me"), &all).await.unwrap(), 16);
    let w = crate::harness::open(w.close(), Policy::default(), "fake").await;
    w.ingest.load().await.unwrap();
    assert_eq!(w.ingest.recall_lessons().await, 0, "what was forgotten is not taken up again");
}

#[tokio::test]
async fn what_a_principal_cannot_see_teaches_it_nothing() {
    let w = world().await;
    let texts = &[("alpha_task", "Handles a customer request"), ("beta_task", "Handles a customer request too")];
    w.register(agent("orders", "desk", texts)).await;
    w.register(agent("secret", "vault", texts)).await;
    let mine = member(&["orders"], &[]);
    w.ingest.learn_for([mine.namespaces.clone(), Grant::All]);
    let report = |agent: &str, namespace: &str, text: &str, capability: &str, n: usize| -> Vec<Report> {
        (0..n).map(|i| adopted(&format!("{text} {i}"), key(namespace, agent), capability)).collect()
    };
    let all = Principal::local("all");
    let mut open = report("desk", "orders", "green turtle", "alpha_task", 5);
    open.extend(report("desk", "orders", "purple elephant", "beta_task", 5));
    w.ingest.report(&all, open).await;
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    let ask = || async {
        let request = ResolveRequest { query: "green elephant".into(), ..asking() };
        let r = w.resolve(&mine, request).await.unwrap();
        r.decision
            .candidates
            .iter()
            .map(|c| (c.capability.to_string(), c.score.to_bits(), c.probability.get().to_bits()))
            .collect::<Vec<_>>()
    };
    let before = ask().await;
    let mut hidden = report("vault", "secret", "green elephant", "beta_task", 20);
    hidden.extend(report("vault", "secret", "green turtle", "beta_task", 20));
    w.ingest.report(&all, hidden).await;
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    assert_eq!(before, ask().await, "not a bit of its scores changes");
}

#[tokio::test]
async fn an_agent_does_not_vote_itself_up() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("alpha_task", "Handles a customer request")])).await;
    w.register(agent("shop", "greedy", &[("gamma_task", "Handles shop matters")])).await;
    w.ingest.learn_for([Grant::All]);
    let honest = (0..10).map(|i| adopted(&format!("green turtle {i}"), key("orders", "desk"), "alpha_task")).collect();
    w.ingest.report(&Principal::local("me"), honest).await;
    for chunk in 0..4 {
        let votes = (0..200).map(|i| adopted(&format!("green turtle {chunk} {i}"), key("shop", "greedy"), "gamma_task")).collect();
        w.ingest.report(&Principal::local("greedy"), votes).await;
    }
    w.ingest.learn(Arc::new(|| true)).await.unwrap();
    let answer = w.ask("one green turtle").await;
    assert_eq!(&*answer.decision.candidates[0].capability, "alpha_task");
    let own =
        w.ingest.outcomes(&Principal::local("x"), &OutcomeFilter { reporter: Some("greedy".into()), ..Default::default() }, Some(1), None);
    assert!(own.unwrap().outcomes[0].own);
}

#[tokio::test]
async fn callers_have_habits_and_strangers_have_none() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("return_goods", "Customer sends goods back"), ("exchange_goods", "Customer swaps goods")])).await;
    let ask = |caller: &str| ResolveRequest { query: "goods back and swaps".into(), caller: Some(caller.into()), ..asking() };
    let of = |r: agent_reach::route::resolver::Resolved| {
        let c = r.decision.candidates;
        c.iter().map(|c| (c.capability.to_string(), c.score.to_bits())).collect::<Vec<_>>()
    };
    let who = Principal::local("x");
    let before = of(w.resolve(&who, ask("stranger")).await.unwrap());
    let other = before[1].0.clone();
    let reports = (0..20)
        .map(|i| Report { caller: Some("warehouse".into()), ..adopted(&format!("别的事情 {i}"), key("orders", "desk"), &other) });
    w.ingest.report(&who, reports.collect()).await;
    let stranger = of(w.resolve(&who, ask("stranger")).await.unwrap());
    assert_eq!(before, stranger, "an unknown caller sees no history at all");
    let known = w.resolve(&who, ask("warehouse")).await.unwrap().decision.candidates;
    let term = known.iter().find(|c| *c.capability == *other).unwrap().terms.iter().find(|t| t.name == "cooccurrence").cloned();
    assert!(term.is_some_and(|t| t.value > 0.0), "its habit is a named term: {known:?}");
}

/// A service that stops doesn't wait for its lesson, and half a lesson changes nothing.
#[tokio::test]
async fn a_lesson_that_is_broken_off_changes_nothing() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("alpha_task", "Handles a customer request"), ("beta_task", "Handles a customer request too")]))
        .await;
    w.ingest.learn_for([Grant::All]);
    let reported = |i: usize| ["alpha_task", "beta_task"].map(|c| adopted(&format!("{c} number {i}"), key("orders", "desk"), c));
    w.ingest.report(&Principal::local("me"), (0..6).flat_map(reported).collect()).await;
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = asked.clone();
    // goes on once, then no more
    let lesson = w.ingest.learn(Arc::new(move || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0)).await.unwrap();
    assert_eq!(lesson, Default::default());
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed) > 1, "it was asked whether to go on");
    let seen = |w: &crate::harness::World| w.views.load().learned.parts().len();
    assert_eq!(seen(&w), 0);
    let whole = w.ingest.learn(Arc::new(|| true)).await.unwrap();
    assert!(whole.trained == 1 && seen(&w) == 1, "{whole:?}");
}
