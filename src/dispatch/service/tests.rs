//! The service with its real parts: SQLite, sockets, tasks. Agents and matcher are small fakes.

use super::*;
use crate::clock::SystemClock;
use crate::dispatch::engine::Receipt;
use crate::dispatch::memory::{MemoryStore, Mischief};
use crate::dispatch::port::{Choice, Filter, Reach, Target};
use crate::dispatch::sqlite::SqliteMessages;
use crate::dispatch::state::tests::agent;
use crate::error::Code;
use crate::store::{Durability, Store};
use crate::types::envelope::{Envelope, SubmitRequest};
use crate::types::envelope::{Payload, RawPayload};
use crate::types::manifest::{Endpoint, Protocol};
use crate::types::message::{DeadTag, Reply};
use crate::types::outbound::OutboundPolicy;
use crate::types::{Grant, Principal};
use axum::http::StatusCode;
use futures::future::BoxFuture;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

/// Chooses the first agent that is not left out.
struct Fixed(Vec<Target>);

impl NextTarget for Fixed {
    fn next(&self, envelope: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>> {
        let fit = |t: &&Target| {
            !exclude.contains(&t.agent)
                && envelope.intent.as_deref() == Some(&*t.capability)
                && envelope.target.as_ref().is_none_or(|w| *w == t.agent)
        };
        let list: Vec<Target> = self.0.iter().filter(fit).cloned().collect();
        let choice = if list.is_empty() {
            Choice::Nobody { code: Code::NoMatchedAgent, reason: "nobody".into(), faults: Vec::new(), decision: None }
        } else {
            Choice::Deliver(list)
        };
        Box::pin(async move { Ok(choice) })
    }

    fn describe(&self, agent: &AgentKey, capability: &str) -> Option<Target> {
        self.0.iter().find(|t| t.agent == *agent && &*t.capability == capability).cloned()
    }

    fn agent(&self, agent: &AgentKey) -> Option<Target> {
        self.0.iter().find(|t| t.agent == *agent).cloned()
    }
}

/// No agent here speaks gRPC (those that do: `tests/protocols`).
struct NoGrpc;

impl Codec for NoGrpc {
    fn work(&self, _: &Delivery) -> Vec<u8> {
        Vec::new()
    }

    fn receipt(&self, _: &Delivery, _: &[u8]) -> Result<Receipt, String> {
        Err("not spoken here".into())
    }
}

pub(super) fn pull(name: &str) -> Target {
    Target::plain(agent(name), "work")
}

fn push(name: &str, address: String) -> Target {
    let endpoints = Arc::from([Endpoint { protocol: Protocol::Http, address, weight: 100 }]);
    Target { reach: Reach::Push, endpoints, ..Target::plain(agent(name), "work") }
}

pub(super) async fn start(store: Arc<dyn MessageStore>, targets: Vec<Target>) -> (Dispatcher, Tasks) {
    let tasks = Tasks::new();
    let guard = Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap();
    let next = Arc::new(Fixed(targets));
    let ports = Ports { store, next, guard, grpc: Arc::new(NoGrpc), clock: Arc::new(SystemClock), sinks: Vec::new() };
    let d = Dispatcher::start(ports, tasks.clone(), Settings::default()).await.unwrap();
    (d, tasks)
}

pub(super) fn sqlite(folder: &std::path::Path) -> Arc<SqliteMessages> {
    Arc::new(SqliteMessages::new(Arc::new(Store::open(folder, Durability::Full).unwrap())))
}

pub(super) fn ask(key: Option<&str>) -> SubmitRequest {
    SubmitRequest {
        intent: Some("work".into()),
        idempotency_key: key.map(Into::into),
        payload: Some(Box::new(RawPayload("{\"n\": 1}".into()))),
        ttl_ms: Some(20_000),
        ..Default::default()
    }
}

pub(super) fn me() -> Principal {
    Principal::local("me")
}

/// A pulling agent that does everything it gets, until it is dropped.
fn echo(d: &Dispatcher, tasks: &Tasks, target: Target) {
    let mut work = d.work(&target);
    let d = d.clone();
    tasks.spawn(Stage::Work, "test-echo", async move {
        work.demand(10);
        while let Some(told) = work.recv().await {
            if let Pulled::Work(w) = told {
                let reply = Reply { data: w.envelope.payload.clone(), ..Reply::default() };
                d.receipt(&target.agent, w.id, w.delivery, Receipt::Acked(reply)).await.ok();
                work.demand(1);
            }
        }
    });
}

/// An HTTP agent that answers by turns.
async fn http_agent(tasks: &Tasks, answers: Vec<(u16, &'static str)>) -> (String, Arc<AtomicU32>) {
    let (calls, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = seen.clone();
    let handler = move || {
        let n = calls.fetch_add(1, Ordering::SeqCst) as usize;
        count.fetch_add(1, Ordering::SeqCst);
        let (status, body) = answers[n.min(answers.len() - 1)];
        async move { (StatusCode::from_u16(status).unwrap(), body) }
    };
    let app = axum::Router::new().route("/invoke", axum::routing::post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/invoke", listener.local_addr().unwrap());
    tasks.spawn(Stage::Accept, "test-agent", async move { axum::serve(listener, app).await });
    (address, seen)
}

async fn over(d: &Dispatcher, id: ReachId) -> Message {
    d.wait(id, Duration::from_secs(30)).await.unwrap()
}

#[tokio::test]
async fn a_pulling_agent_gets_work_and_the_caller_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let (d, tasks) = start(sqlite(folder.path()), vec![pull("a")]).await;
    echo(&d, &tasks, pull("a"));
    let s = d.submit(me(), ask(Some("k"))).await.unwrap();
    let done = over(&d, s.message.id()).await;
    assert_eq!(done.head.state, State::Done);
    assert_eq!(done.head.reply.unwrap().data, Some(Payload::new("{\"n\": 1}").unwrap()));
    let states: Vec<State> = d.log(s.message.id()).await.unwrap().iter().map(|e| e.state).collect();
    use State::{Accepted, Acked, Delivered, Dispatched, Done, Queued, Received, Routing};
    assert_eq!(states, [Received, Routing, Queued, Dispatched, Delivered, Accepted, Acked, Done]);
    let again = d.submit(me(), ask(Some("k"))).await.unwrap();
    assert!(again.existing && again.message.id() == s.message.id());
    let other = SubmitRequest { payload: Some(Box::new(RawPayload("2".into()))), ..ask(Some("k")) };
    assert_eq!(d.submit(me(), other).await.unwrap_err().code, Code::Conflict);
}

#[tokio::test]
async fn who_rejects_or_fails_is_left_out_and_the_next_one_does_it() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let (no, _) = http_agent(&tasks, vec![(409, "not mine")]).await;
    let (broken, _) = http_agent(&tasks, vec![(500, "boom")]).await;
    let (yes, seen) = http_agent(&tasks, vec![(200, "{\"ok\": true}")]).await;
    let targets = vec![push("a", no), push("b", broken), push("c", yes)];
    let (d, _own) = start(sqlite(folder.path()), targets).await;
    let s = d.submit(me(), ask(None)).await.unwrap();
    let done = over(&d, s.message.id()).await;
    assert_eq!((done.head.state, done.head.agent), (State::Done, Some(agent("c"))));
    assert_eq!((done.head.rejected, done.head.failed, done.head.delivery), (vec![agent("a")], vec![agent("b")], 3));
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_same_agent_is_asked_again_after_a_pause_and_a_final_no_is_final() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let (shaky, _) = http_agent(&tasks, vec![(503, "later"), (200, "{}")]).await;
    let (d, _own) = start(sqlite(folder.path()), vec![push("a", shaky)]).await;
    let done = over(&d, d.submit(me(), ask(None)).await.unwrap().message.id()).await;
    assert_eq!((done.head.state, done.head.delivery), (State::Done, 2));
    let (strict, seen) = http_agent(&tasks, vec![(422, "{\"message\": \"order is missing\"}")]).await;
    let other = tempfile::tempdir().unwrap();
    let (d, _own) = start(sqlite(other.path()), vec![push("a", strict)]).await;
    let failed = over(&d, d.submit(me(), ask(None)).await.unwrap().message.id()).await;
    assert_eq!((failed.head.state, failed.head.code), (State::Failed, Some(Code::PayloadInvalid)));
    assert_eq!((failed.head.reason.as_deref(), seen.load(Ordering::SeqCst)), (Some("the agent says: order is missing"), 1));
}

#[tokio::test]
async fn a_task_of_an_existing_service_is_polled_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let looks = Arc::new(AtomicU32::new(0));
    let seen = looks.clone();
    let app = axum::Router::new()
        .route(
            "/orders/7/refunds",
            axum::routing::put(|body: String| async move { (StatusCode::ACCEPTED, body.replace("orderId", "task")) }),
        )
        .route(
            "/tasks/7",
            axum::routing::get(move || {
                let n = seen.fetch_add(1, Ordering::SeqCst);
                async move { if n < 3 { "{\"state\": \"RUNNING\"}" } else { "{\"state\": \"OK\", \"result\": {\"refund\": 9}}" } }
            }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/", listener.local_addr().unwrap());
    tasks.spawn(Stage::Accept, "test-service", async move { axum::serve(listener, app).await });
    let mapping = serde_json::json!({
        "method": "put", "path": "/orders/{n}/refunds", "fields": [{"to": "orderId", "from": "/n"}], "answer": {"data": "/result"},
        "poll": {"path": "/tasks/{task}", "state": "/state", "every": "50ms"},
    });
    let states = crate::types::manifest::StateMachine { processing: vec!["RUNNING".into()], ..Default::default() };
    let target = Target { rest: Some(Arc::new(serde_json::from_value(mapping).unwrap())), states: Some(states), ..push("a", base) };
    let (d, _own) = start(sqlite(folder.path()), vec![target]).await;
    let sent = SubmitRequest { payload: Some(Box::new(RawPayload("{\"n\": 7}".into()))), ..ask(None) };
    let done = over(&d, d.submit(me(), sent).await.unwrap().message.id()).await;
    assert_eq!((done.head.state, done.head.delivery), (State::Done, 1), "{:?}", done.head);
    assert_eq!(done.head.reply.unwrap().data, Some(Payload::new("{\"refund\":9}").unwrap()));
    assert_eq!(looks.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn receipts_of_others_and_of_old_deliveries_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (d, _tasks) = start(sqlite(folder.path()), vec![pull("a"), pull("b")]).await;
    let mut work = d.work(&pull("a"));
    work.demand(1);
    let s = d.submit(me(), ask(None)).await.unwrap();
    let Some(Pulled::Work(w)) = work.recv().await else { panic!("work") };
    let ack = || Receipt::Acked(Reply::default());
    assert_eq!(d.receipt(&agent("b"), w.id, w.delivery, ack()).await.unwrap_err().code, Code::NotFound, "another's task");
    assert_eq!(d.receipt(&agent("a"), w.id, w.delivery + 1, ack()).await.unwrap_err().code, Code::Conflict);
    d.receipt(&agent("a"), w.id, w.delivery, Receipt::Accepted).await.unwrap();
    d.receipt(&agent("a"), w.id, w.delivery, Receipt::Accepted).await.unwrap();
    d.receipt(&agent("a"), w.id, w.delivery, ack()).await.unwrap();
    assert_eq!(over(&d, s.message.id()).await.head.state, State::Done);
    assert!(d.receipt(&agent("a"), w.id, w.delivery, Receipt::Accepted).await.is_err(), "accepted after done");
    let stranger = Principal { namespaces: Grant::Only([Arc::from("elsewhere")].into()), ..Principal::local("you") };
    assert_eq!(d.get(&stranger, &w.id.to_string()).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn a_restart_takes_up_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let ids = {
        let (d, tasks) = start(sqlite(folder.path()), vec![pull("a")]).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(d.submit(me(), ask(None)).await.unwrap().message.id());
        }
        tasks.shutdown(Duration::from_secs(2)).await;
        ids
    };
    // the store is released when the last task of the old process is gone
    let store = loop {
        match Store::open(folder.path(), Durability::Full) {
            Ok(store) => break Arc::new(SqliteMessages::new(Arc::new(store))),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let (d, tasks) = start(store, vec![pull("a")]).await;
    echo(&d, &tasks, pull("a"));
    for id in ids {
        assert_eq!(over(&d, id).await.head.state, State::Done);
    }
}

#[tokio::test]
async fn dead_letters_are_kept_and_replayed_as_a_reach_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let (broken, seen) = http_agent(&tasks, vec![(500, ""), (200, "{}")]).await;
    let (d, _own) = start(sqlite(folder.path()), vec![push("a", broken)]).await;
    let once = SubmitRequest { max_attempts: Some(1), message_id: Some("m1".into()), ..ask(None) };
    let dead = over(&d, d.submit(me(), once).await.unwrap().message.id()).await;
    assert_eq!((dead.head.state, dead.head.tag), (State::DeadLetter, Some(DeadTag::RetriesExhausted)));
    let listed = d.list(&me(), Filter { state: Some(State::DeadLetter), limit: 10, ..Filter::default() }).await.unwrap();
    assert_eq!(listed.messages.len(), 1);
    let replay = d.replay(&me(), &dead.id().to_string(), None).await.unwrap();
    let done = over(&d, replay.message.id()).await;
    assert_eq!((done.head.state, done.envelope.replayed_from), (State::Done, Some(dead.id())));
    assert_ne!(done.envelope.agent_key(), dead.envelope.agent_key());
    assert_eq!(d.get(&me(), &dead.id().to_string()).await.unwrap().head.state, State::DeadLetter, "a terminal state never changes");
    assert_eq!(d.get(&me(), "m1").await.unwrap().id(), done.id(), "its message id names the newest reach");
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    assert!(d.replay(&me(), &done.id().to_string(), None).await.is_err());
    let again = d.replay(&me(), &dead.id().to_string(), None).await.unwrap_err();
    assert!(again.code == Code::FailedPrecondition && again.message.contains(&done.id().to_string()), "{again}");
    assert_eq!(seen.load(Ordering::SeqCst), 2, "what was replayed and done is not done again");
}

#[tokio::test]
async fn a_dead_letter_that_two_replay_at_once_runs_once() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let (broken, seen) = http_agent(&tasks, vec![(500, ""), (200, "{}")]).await;
    let (d, _own) = start(sqlite(folder.path()), vec![push("a", broken)]).await;
    let once = SubmitRequest { max_attempts: Some(1), ..ask(None) };
    let dead = over(&d, d.submit(me(), once).await.unwrap().message.id()).await.id().to_string();
    let who = me();
    let (a, b) = tokio::join!(d.replay(&who, &dead, None), d.replay(&who, &dead, None));
    let ids: std::collections::BTreeSet<ReachId> = [a, b].into_iter().flatten().map(|s| s.message.id()).collect();
    assert_eq!(ids.len(), 1, "both name the same reach");
    over(&d, *ids.first().unwrap()).await;
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_store_that_fails_acknowledges_nothing_and_recovers() {
    let store = MemoryStore::default();
    let (d, tasks) = start(Arc::new(store.clone()), vec![pull("a")]).await;
    store.mischief(Mischief::After);
    let e = d.submit(me(), ask(Some("k"))).await.unwrap_err();
    assert_eq!(e.code, Code::Overloaded);
    assert!(d.submit(me(), ask(None)).await.is_err(), "refused while it fails");
    store.reopen();
    echo(&d, &tasks, pull("a"));
    // written though not acknowledged: the same key finds it, and it ran once
    let again = loop {
        match d.submit(me(), ask(Some("k"))).await {
            Ok(s) => break s,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(again.existing);
    let done = over(&d, again.message.id()).await;
    assert_eq!((done.head.state, done.head.delivery), (State::Done, 1));
}

#[tokio::test]
async fn a_message_is_called_off_and_expires() {
    let folder = tempfile::tempdir().unwrap();
    let (d, _tasks) = start(sqlite(folder.path()), vec![pull("a")]).await;
    let mut work = d.work(&pull("a"));
    work.demand(1);
    let id = d.submit(me(), ask(None)).await.unwrap().message.id();
    assert!(matches!(work.recv().await, Some(Pulled::Work(_))));
    assert_eq!(d.cancel(&me(), &id.to_string(), "no longer needed").await.unwrap().head.state, State::Cancelled);
    assert!(matches!(work.recv().await, Some(Pulled::Cancel { delivery: 1, .. })));
    let short = d.submit(me(), SubmitRequest { ttl_ms: Some(100), ..ask(None) }).await.unwrap();
    let dead = over(&d, short.message.id()).await;
    assert_eq!((dead.head.state, dead.head.tag), (State::DeadLetter, Some(DeadTag::TtlExpired)));
}

#[tokio::test]
async fn what_went_to_nobody_leaves_its_key_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(folder.path());
    let (d, tasks) = start(store.clone(), vec![]).await;
    let none = d.submit(me(), ask(Some("k"))).await.unwrap();
    assert_eq!(none.message.head.state, State::RouteFailed);
    drop(tasks.shutdown(Duration::from_secs(5)).await);
    let (d, tasks) = start(store, vec![pull("a")]).await;
    echo(&d, &tasks, pull("a"));
    let taken = d.submit(me(), ask(Some("k"))).await.unwrap();
    assert!(!taken.existing && taken.message.id() != none.message.id());
    assert_eq!(over(&d, taken.message.id()).await.head.state, State::Done);
    assert!(d.submit(me(), ask(Some("k"))).await.unwrap().existing, "what ran holds it");
}

#[tokio::test]
async fn a_receipt_belongs_to_the_session_that_has_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let (d, _tasks) = start(sqlite(folder.path()), vec![pull("a")]).await;
    let mut work = d.work(&pull("a"));
    work.demand(1);
    let mut request = ask(None);
    request.message_id = Some("mine-1".into());
    let sent = d.submit(me(), request).await.unwrap();
    let Some(Pulled::Work(w)) = work.recv().await else { panic!("no work") };
    let ack = || Receipt::Acked(Reply::default());
    let stranger = agent("b");
    let refused = d.receipt_of(&me(), Some(&stranger), w.id, w.delivery, ack()).await;
    assert_eq!(refused.unwrap_err().code, Code::NotFound, "another agent's session");
    assert_eq!(d.out_under(&me(), "mine-1"), Some(sent.message.id()), "an agent may name the message id");
    let elsewhere = Principal { namespaces: Grant::Only([Arc::from("elsewhere")].into()), ..Principal::local("you") };
    assert_eq!(d.out_under(&elsewhere, "mine-1"), None);
    assert_eq!(d.receipt_of(&me(), Some(&agent("a")), w.id, w.delivery, ack()).await.unwrap(), State::Done);
}

#[tokio::test]
async fn who_was_taken_away_gets_nothing_that_waited() {
    let folder = tempfile::tempdir().unwrap();
    let (address, calls) = http_agent(&Tasks::new(), vec![(200, "{}")]).await;
    let gone = push("gone", address);
    // the matcher still names it, the registry no longer knows it
    struct Stale(Target, Fixed);
    impl NextTarget for Stale {
        fn next(&self, e: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>> {
            if exclude.contains(&self.0.agent) {
                return self.1.next(e, exclude);
            }
            let first = self.0.clone();
            Box::pin(async move { Ok(Choice::Deliver(vec![first])) })
        }

        fn describe(&self, agent: &AgentKey, capability: &str) -> Option<Target> {
            self.1.describe(agent, capability)
        }

        fn agent(&self, agent: &AgentKey) -> Option<Target> {
            self.1.agent(agent)
        }
    }
    let tasks = Tasks::new();
    let guard = Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap();
    let next = Arc::new(Stale(gone, Fixed(vec![pull("a")])));
    let store = sqlite(folder.path());
    let ports = Ports { store, next, guard, grpc: Arc::new(NoGrpc), clock: Arc::new(SystemClock), sinks: Vec::new() };
    let d = Dispatcher::start(ports, tasks.clone(), Settings::default()).await.unwrap();
    echo(&d, &tasks, pull("a"));
    let m = over(&d, d.submit(me(), ask(None)).await.unwrap().message.id()).await;
    assert_eq!((m.head.state, m.head.agent), (State::Done, Some(agent("a"))));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_callback_that_nobody_takes_is_told_and_the_result_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let guard = Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap();
    let (store, next) = (sqlite(folder.path()), Arc::new(Fixed(vec![pull("a")])));
    let ports = Ports { store, next, guard, grpc: Arc::new(NoGrpc), clock: Arc::new(SystemClock), sinks: Vec::new() };
    let secrets = vec![crate::dispatch::callback::Secret::parse("a secret of sixteen bytes").unwrap()];
    let d = Dispatcher::start(ports, tasks.clone(), Settings { secrets, callback_tries: 1, ..Settings::default() }).await.unwrap();
    echo(&d, &tasks, pull("a"));
    // a port that nobody listens at
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let request = SubmitRequest { callback: Some(format!("http://{free}/done")), ..ask(None) };
    let m = over(&d, d.submit(me(), request).await.unwrap().message.id()).await;
    assert!(m.head.state == State::Done && m.head.reply.is_some());
    let told = crate::telemetry::metrics::render();
    assert!(told.lines().any(|l| l.starts_with("reach_callbacks_given_up_total") && !l.ends_with(" 0")), "it is counted");
}
