//! Delivery among agents of which one is no good.

use crate::harness::key;
use agent_reach::api::grpc::worker::WorkerCodec;
use agent_reach::clock::SystemClock;
use agent_reach::dispatch::engine::Receipt;
use agent_reach::dispatch::guard::Guard;
use agent_reach::dispatch::memory::MemoryStore;
use agent_reach::dispatch::port::{Choice, NextTarget, Reach, Target};
use agent_reach::dispatch::service::{Dispatcher, Ports, Pulled, Settings};
use agent_reach::error::{Code, Error};
use agent_reach::tasks::{Stage, Tasks};
use agent_reach::types::envelope::{Envelope, ReachId, SubmitRequest};
use agent_reach::types::manifest::{Endpoint, Protocol};
use agent_reach::types::message::{Reply, State};
use agent_reach::types::outbound::OutboundPolicy;
use agent_reach::types::{AgentKey, Principal};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// All agents in turn, or the one that is asked for.
struct Turns(Vec<Target>, AtomicUsize);

impl NextTarget for Turns {
    fn next(&self, envelope: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>> {
        let fits = |t: &&Target| !exclude.contains(&t.agent) && envelope.target.as_ref().is_none_or(|w| *w == t.agent);
        let mut list: Vec<Target> = self.0.iter().filter(fits).cloned().collect();
        if list.is_empty() {
            let nobody = Choice::Nobody { code: Code::NoMatchedAgent, reason: "nobody".into(), faults: Vec::new(), decision: None };
            return Box::pin(async move { Ok(nobody) });
        }
        let turn = self.1.fetch_add(1, Ordering::SeqCst) % list.len();
        list.rotate_left(turn);
        Box::pin(async move { Ok(Choice::Deliver(list)) })
    }

    fn describe(&self, agent: &AgentKey, _: &str) -> Option<Target> {
        self.agent(agent)
    }

    fn agent(&self, agent: &AgentKey) -> Option<Target> {
        self.0.iter().find(|t| t.agent == *agent).cloned()
    }
}

pub async fn start(targets: &[Target]) -> (Dispatcher, Tasks) {
    start_with(Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap(), targets).await
}

/// A dispatcher over agents that are asked in turn.
pub async fn start_with(guard: Guard, targets: &[Target]) -> (Dispatcher, Tasks) {
    start_all(Arc::new(MemoryStore::default()), guard, Settings::default(), targets).await
}

/// The same with everything as it is given.
pub async fn start_all(store: Arc<MemoryStore>, guard: Guard, settings: Settings, targets: &[Target]) -> (Dispatcher, Tasks) {
    let tasks = Tasks::new();
    let ports = Ports {
        store,
        next: Arc::new(Turns(targets.to_vec(), AtomicUsize::new(0))),
        guard,
        grpc: Arc::new(WorkerCodec),
        clock: Arc::new(SystemClock),
        sinks: Vec::new(),
    };
    (Dispatcher::start(ports, tasks.clone(), settings).await.unwrap(), tasks)
}

pub fn pull(id: &str) -> Target {
    Target::plain(key("ns", id), "work")
}

fn work() -> SubmitRequest {
    SubmitRequest { intent: Some("work".into()), ttl_ms: Some(60_000), ..SubmitRequest::default() }
}

/// Does everything it gets.
pub fn echo(d: &Dispatcher, tasks: &Tasks, target: &Target) {
    let (d, target, mut session) = (d.clone(), target.clone(), d.work(target));
    drop(tasks.spawn(Stage::Work, "case-echo", async move {
        session.demand(5);
        while let Some(told) = session.recv().await {
            if let Pulled::Work(w) = told {
                d.receipt(&target.agent, w.id, w.delivery, Receipt::Acked(Reply::default())).await.ok();
                session.demand(1);
            }
        }
    }));
}

async fn over(d: &Dispatcher, id: ReachId) -> State {
    d.wait(id, Duration::from_secs(60)).await.unwrap().head.state
}

/// R1: one member of twenty takes work and never says a word more. Whoever was sent to the others has its result; only the silent one's own wait.
#[tokio::test]
async fn a_silent_member_holds_up_its_own_messages_only() {
    let all: Vec<Target> = (0..20).map(|i| pull(&format!("m{i}"))).collect();
    let (d, tasks) = start(&all).await;
    let silent = d.work(&all[0]);
    silent.demand(100);
    all[1..].iter().for_each(|t| echo(&d, &tasks, t));
    let mut sent = Vec::new();
    for _ in 0..100 {
        let s = d.submit(Principal::local("me"), work()).await.unwrap();
        sent.push((s.message.head.agent.clone().unwrap(), s.message.id()));
    }
    let (held, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(agent, _)| *agent == all[0].agent);
    assert_eq!((held.len(), others.len()), (5, 95));
    for (_, id) in others {
        assert_eq!(over(&d, id).await, State::Done);
    }
    let lanes = d.lanes();
    assert!(lanes.iter().all(|l| l.in_flight == if l.agent == all[0].agent { 5 } else { 0 }), "{lanes:?}");
    tasks.shutdown(Duration::from_secs(1)).await;
}

/// R5: the first target of a broadcast is dead. The others have their message and their result; what failed is told for the one that failed.
#[tokio::test]
async fn a_dead_target_first_in_line_does_not_end_a_broadcast() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let endpoints = Arc::from([Endpoint { protocol: Protocol::Http, address: format!("http://{free}/invoke"), weight: 100 }]);
    let all = [Target { reach: Reach::Push, endpoints, ..pull("dead") }, pull("b"), pull("c")];
    let (d, tasks) = start(&all).await;
    all[1..].iter().for_each(|t| echo(&d, &tasks, t));
    let parts = d.broadcast(Principal::local("me"), SubmitRequest { max_attempts: Some(1), ..work() }).await.unwrap();
    let mut ends = Vec::new();
    for part in &parts {
        ends.push((part.message.head.agent.as_ref().unwrap().agent_id.to_string(), over(&d, part.message.id()).await));
    }
    let is = |id: &str, state| (id.to_string(), state);
    assert_eq!(ends, [is("dead", State::DeadLetter), is("b", State::Done), is("c", State::Done)]);
    tasks.shutdown(Duration::from_secs(1)).await;
}
