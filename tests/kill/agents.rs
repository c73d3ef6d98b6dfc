//! Agents: one does everything, one fails and hangs and is idempotent, two of one kind reject and are asked in turn, one is called over HTTP.

use crate::Chance;
use crate::clients::World;
use crate::server::Server;
use agent_reach::api::pb;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Shares, in percent, of what an agent does instead of the work.
#[derive(Clone, Copy)]
struct Manners {
    fail: u64,
    reject: u64,
    hang: u64,
}

fn manifest(id: &str, intent: &str, endpoint: &Value, idempotent: bool) -> Value {
    json!({
        "namespace": "kill", "agent_id": id, "ttl": "none", "concurrency": 20, "max_queue_depth": 100_000, "endpoints": [endpoint],
        "capabilities": [{"intent": intent, "description": "does the work that is tried here", "idempotent": idempotent}],
    })
}

pub async fn start(server: &Server, world: Arc<World>, seed: u64) -> Vec<JoinHandle<()>> {
    let pull = json!({"protocol": "pull"});
    let (push, pushed) = push_agent(world.clone()).await;
    let all = [
        ("acker", "ack_work", &pull, false, Manners { fail: 0, reject: 0, hang: 0 }),
        ("shaky", "shaky_work", &pull, true, Manners { fail: 15, reject: 0, hang: 3 }),
        ("mixed-1", "mixed_work", &pull, false, Manners { fail: 5, reject: 30, hang: 1 }),
        ("mixed-2", "mixed_work", &pull, false, Manners { fail: 5, reject: 10, hang: 1 }),
        ("pushed", "push_work", &push, true, Manners { fail: 0, reject: 0, hang: 0 }),
    ];
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut tasks = vec![pushed];
    for (i, (id, intent, endpoint, idempotent, manners)) in all.into_iter().enumerate() {
        let document = manifest(id, intent, endpoint, idempotent);
        let response = http.post(server.url("/v1/agents")).body(document.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        if endpoint == &pull {
            let chance = Chance::new(seed * 77 + i as u64);
            tasks.push(tokio::spawn(pull_for_ever(server.grpc(), id, manners, world.clone(), chance)));
        }
    }
    tasks
}

/// Called over HTTP: takes a moment, then answers 200, sometimes 503.
async fn push_agent(world: Arc<World>) -> (Value, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/invoke", listener.local_addr().unwrap());
    let chance = Arc::new(Mutex::new(Chance::new(5)));
    let handler = move |body: String| {
        let world = world.clone();
        let (busy, pause) = {
            let mut chance = chance.lock().unwrap();
            (chance.below(10) == 0, chance.below(10))
        };
        async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if busy {
                return (axum::http::StatusCode::SERVICE_UNAVAILABLE, String::new());
            }
            let told: Value = serde_json::from_str(&body).unwrap();
            let delivery = u32::try_from(told["delivery"].as_u64().unwrap()).unwrap();
            world.done.lock().unwrap().entry(told["reach_id"].as_str().unwrap().to_string()).or_default().push(delivery);
            (axum::http::StatusCode::OK, told["payload"].to_string())
        }
    };
    let app = axum::Router::new().route("/invoke", axum::routing::post(handler));
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (json!({"protocol": "http", "address": address}), serving)
}

type Unanswered = HashMap<(String, u32), pb::WorkReceipt>;

/// Pulls, and comes back whenever the server was killed. Receipts that were not answered are sent again.
async fn pull_for_ever(grpc: String, id: &'static str, manners: Manners, world: Arc<World>, mut chance: Chance) {
    let mut unanswered: Unanswered = HashMap::new();
    loop {
        session(&grpc, id, manners, &world, &mut chance, &mut unanswered).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn session(grpc: &str, id: &str, manners: Manners, world: &World, chance: &mut Chance, unanswered: &mut Unanswered) -> Option<()> {
    let endpoint = tonic::transport::Endpoint::from_shared(grpc.to_string()).ok()?;
    let channel = endpoint.connect_timeout(Duration::from_secs(1)).connect().await.ok()?;
    let (send, take) = mpsc::unbounded_channel();
    let agent = Some(pb::AgentRef { domain: String::new(), namespace: "kill".into(), agent_id: id.into() });
    send.send(pb::WorkRequest { agent, want: 50, receipts: unanswered.values().cloned().collect(), started: false }).ok()?;
    let mut client = pb::dispatch_client::DispatchClient::new(channel);
    let mut items = client.work(UnboundedReceiverStream::new(take)).await.ok()?.into_inner();
    while let Some(item) = items.message().await.ok()? {
        if let Some(work) = item.work {
            let roll = chance.below(100);
            let kind = if roll < manners.hang {
                None
            } else if roll < manners.hang + manners.fail {
                Some("nack")
            } else if roll < manners.hang + manners.fail + manners.reject {
                Some("reject")
            } else {
                Some("ack")
            };
            let mut receipts = Vec::new();
            if let Some(kind) = kind {
                if kind == "ack" {
                    world.done.lock().unwrap().entry(work.reach_id.clone()).or_default().push(work.delivery);
                }
                let receipt = pb::WorkReceipt {
                    reach_id: work.reach_id.clone(),
                    delivery: work.delivery,
                    kind: kind.into(),
                    data: (kind == "ack").then(|| work.payload.clone()).flatten(),
                    ..Default::default()
                };
                unanswered.insert((work.reach_id.clone(), work.delivery), receipt.clone());
                receipts.push(receipt);
            }
            send.send(pb::WorkRequest { want: 1, receipts, ..Default::default() }).ok()?;
        }
        if let Some(reply) = item.receipt {
            let sent = unanswered.remove(&(reply.reach_id.clone(), reply.delivery));
            if reply.error.is_none()
                && let Some(sent) = sent
            {
                let kind = if sent.kind == "ack" { "acked" } else { "not acked" };
                world.receipts.lock().unwrap().push((reply.reach_id, reply.delivery, kind));
            }
        }
    }
    None
}
