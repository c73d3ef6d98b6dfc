//! Dead letters that are handed on: once, on record, and never in circles.

use crate::delivery::{echo, pull, start_all};
use crate::harness::key;
use agent_reach::dispatch::callback::{Secret, Verifier};
use agent_reach::dispatch::engine::{EngineConfig, Receipt};
use agent_reach::dispatch::guard::Guard;
use agent_reach::dispatch::memory::MemoryStore;
use agent_reach::dispatch::port::{Filter, MessageStore, Target};
use agent_reach::dispatch::service::{Dispatcher, Pulled, Settings};
use agent_reach::error::Code;
use agent_reach::tasks::{Stage, Tasks};
use agent_reach::types::Principal;
use agent_reach::types::envelope::{RawPayload, Source, SubmitRequest};
use agent_reach::types::escalation::{Rule, To};
use agent_reach::types::message::{DeadTag, Event, Message, State};
use agent_reach::types::outbound::OutboundPolicy;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Headers and body of each call that a callback made.
type Heard = Arc<Mutex<Vec<(Vec<(String, String)>, Vec<u8>)>>>;

fn desk() -> To {
    To::Agent { agent: key("ns", "desk"), capability: "take_over".into(), ttl: Duration::from_secs(60) }
}

fn rule(to: To) -> Rule {
    Rule { namespace: None, tags: Vec::new(), to }
}

async fn node(store: &Arc<MemoryStore>, rules: Vec<Rule>, targets: &[Target]) -> (Dispatcher, Tasks) {
    let engine = EngineConfig { escalations: rules.into(), ..EngineConfig::default() };
    let secrets = vec![Secret::parse(SECRET).unwrap()];
    let settings = Settings { engine, secrets, callback_tries: 2, ..Settings::default() };
    let guard = Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap();
    start_all(store.clone(), guard, settings, targets).await
}

/// Refuses everything, so that there is a dead letter at once.
fn refuses(d: &Dispatcher, tasks: &Tasks, target: &Target) {
    let (d, target, mut session) = (d.clone(), target.clone(), d.work(target));
    drop(tasks.spawn(Stage::Work, "case-refuses", async move {
        session.demand(5);
        while let Some(told) = session.recv().await {
            if let Pulled::Work(w) = told {
                d.receipt(&target.agent, w.id, w.delivery, Receipt::Rejected("not mine".into())).await.ok();
                session.demand(1);
            }
        }
    }));
}

fn me() -> Principal {
    Principal::local("me")
}

async fn dies(d: &Dispatcher) -> Message {
    let request = SubmitRequest {
        target: Some("ns/bad".into()),
        payload: Some(Box::new(RawPayload("{\"order\": 7}".into()))),
        biz_tags: [("order".to_string(), "7".to_string())].into(),
        ttl_ms: Some(60_000),
        ..SubmitRequest::default()
    };
    let s = d.submit(me(), request).await.unwrap();
    let dead = d.wait(s.message.id(), Duration::from_secs(20)).await.unwrap();
    assert_eq!((dead.head.state, dead.head.tag), (State::DeadLetter, Some(DeadTag::AgentRejected)), "{dead:?}");
    dead
}

async fn successor(d: &Dispatcher, dead: &Message) -> Message {
    for _ in 0..1_000 {
        if let Ok(m) = d.get(&me(), &format!("escalation-{}", dead.id())).await {
            return d.wait(m.id(), Duration::from_secs(20)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody took over");
}

async fn count(store: &MemoryStore) -> usize {
    store.list(Filter { limit: 100, ..Filter::default() }).await.unwrap().messages.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_agent_takes_over_once() {
    let store = Arc::new(MemoryStore::default());
    let targets = [pull("bad"), Target { capability: "take_over".into(), ..pull("desk") }];
    let (d, tasks) = node(&store, vec![rule(desk())], &targets).await;
    refuses(&d, &tasks, &targets[0]);
    echo(&d, &tasks, &targets[1]);
    let dead = dies(&d).await;
    assert_eq!(dead.head.escalated.as_deref(), Some("ns/desk take_over"));
    let log = d.log(dead.id()).await.unwrap();
    let tail: Vec<&Event> = log.iter().rev().take(2).map(|e| &e.event).collect();
    assert!(matches!(tail.as_slice(), [Event::Dead { .. }, Event::Escalated { to }] if &**to == "ns/desk take_over"), "{log:?}");
    let over = successor(&d, &dead).await;
    assert_eq!((over.head.state, over.envelope.source), (State::Done, Source::Escalation), "{over:?}");
    let e = &over.envelope;
    let from = e.escalation.as_ref().unwrap();
    assert_eq!((from.reach_id, from.tag, from.agent.as_ref()), (dead.id(), DeadTag::AgentRejected, Some(&key("ns", "bad"))));
    assert_eq!((e.parent_id.as_deref(), e.intent.as_deref()), (Some(&*dead.envelope.message_id), Some("take_over")));
    assert_eq!((&e.payload, &e.biz_tags, &e.trace_id), (&dead.envelope.payload, &dead.envelope.biz_tags, &dead.envelope.trace_id));
    assert_eq!(d.counters().escalated, 1);
    // another life of the process finds it done
    let (again, _tasks) = node(&store, vec![rule(desk())], &targets).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((count(&store).await, again.counters().submitted), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_cut_off_is_made_good() {
    let store = Arc::new(MemoryStore::default());
    let targets = [pull("bad"), Target { capability: "take_over".into(), ..pull("desk") }];
    // marked, and the process ended before anything followed: here the first life has no desk to ask and no time to try again
    let (d, tasks) = node(&store, vec![rule(To::Callback("http://127.0.0.1:1/".into()))], &targets).await;
    refuses(&d, &tasks, &targets[0]);
    let dead = dies(&d).await;
    assert_eq!(count(&store).await, 1);
    let (d, tasks) = node(&store, vec![rule(desk())], &targets).await;
    echo(&d, &tasks, &targets[1]);
    assert_eq!(successor(&d, &dead).await.head.state, State::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_in_no_circle_and_leaves_a_trace_when_nobody_is_there() {
    let store = Arc::new(MemoryStore::default());
    let targets = [pull("bad"), Target { capability: "take_over".into(), ..pull("desk") }];
    let (d, tasks) = node(&store, vec![rule(desk())], &targets).await;
    refuses(&d, &tasks, &targets[0]);
    refuses(&d, &tasks, &targets[1]);
    let dead = dies(&d).await;
    let over = successor(&d, &dead).await;
    assert_eq!((over.head.state, over.head.escalated.as_deref()), (State::DeadLetter, None), "escalated no further");
    let replayed = d.replay(&me(), &over.id().to_string(), None).await.unwrap();
    let again = d.wait(replayed.message.id(), Duration::from_secs(20)).await.unwrap();
    assert_eq!((again.head.state, again.head.escalated.as_deref()), (State::DeadLetter, None), "nor when it is replayed");
    // nobody of that name
    let store = Arc::new(MemoryStore::default());
    let (d, tasks) = node(&store, vec![rule(desk())], &targets[..1]).await;
    refuses(&d, &tasks, &targets[0]);
    let over = successor(&d, &dies(&d).await).await;
    assert_eq!((over.head.state, over.head.code), (State::RouteFailed, Some(Code::NoMatchedAgent)), "{over:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_on_call_are_told_by_a_signed_call() {
    let heard: Heard = Arc::default();
    let own = heard.clone();
    let handler = move |headers: axum::http::HeaderMap, body: axum::body::Bytes| {
        let list = headers.iter().map(|(k, v)| (k.to_string(), v.to_str().unwrap_or_default().to_string())).collect();
        own.lock().push((list, body.to_vec()));
        async { "" }
    };
    let app = axum::Router::new().route("/key-in-the-path", axum::routing::post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/key-in-the-path", listener.local_addr().unwrap());
    let tasks = Tasks::new();
    drop(tasks.spawn(Stage::Accept, "case-on-call", async move { axum::serve(listener, app).await }));
    let store = Arc::new(MemoryStore::default());
    let rules = vec![Rule { namespace: None, tags: vec![DeadTag::TtlExpired], to: desk() }, rule(To::Callback(url.as_str().into()))];
    let targets = [pull("bad")];
    let (d, tasks) = node(&store, rules, &targets).await;
    refuses(&d, &tasks, &targets[0]);
    let dead = dies(&d).await;
    for _ in 0..1_000 {
        if !heard.lock().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (headers, body) = heard.lock().first().cloned().expect("nobody was told");
    let mut verifier = Verifier::new(vec![Secret::parse(SECRET).unwrap()], 100);
    let of = |name: &str| headers.iter().filter(|(k, _)| k == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
    assert_eq!(of("webhook-id"), [format!("escalation-{}", dead.id())]);
    assert!(verifier.check(d.now_ms() / 1_000, &headers, &body).is_ok());
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&told["event"], &told["dead_tag"]), (&"dead_letter".into(), &"agent_rejected".into()), "{told}");
    assert_eq!((&told["reach_id"], &told["biz_tags"]["order"]), (&dead.id().to_string().into(), &"7".into()), "{told}");
    assert_eq!(told["rejected"][0], "ns/bad");
    // the URL may hold a key: it is shown nowhere
    assert_eq!(dead.head.escalated.as_deref(), Some("callback"));
    assert!(!format!("{dead:?}{:?}", d.log(dead.id()).await.unwrap()).contains("key-in-the-path"));
    assert_eq!(heard.lock().len(), 1);
}
