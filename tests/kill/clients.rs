//! Callers: they submit, note what they tried and what was acknowledged, and sometimes ask again with the same id.

use crate::Chance;
use crate::server::Server;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// What callers and agents saw.
#[derive(Default)]
pub struct World {
    /// Message ids that somebody tried to submit.
    pub attempted: Mutex<HashSet<String>>,
    /// Message id → reach id, when the submission was acknowledged.
    pub acknowledged: Mutex<HashMap<String, String>>,
    /// Reach id → deliveries that were carried out to the end.
    pub done: Mutex<HashMap<String, Vec<u32>>>,
    /// Receipts that the server acknowledged: reach id, delivery, kind.
    pub receipts: Mutex<Vec<(String, u32, &'static str)>>,
    stopped: AtomicBool,
    count: AtomicU64,
}

impl World {
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

pub fn start(server: &Server, world: Arc<World>, seed: u64, n: u64) -> Vec<JoinHandle<()>> {
    (0..n)
        .map(|i| {
            let (url, world, chance) = (server.url("/v1/messages"), world.clone(), Chance::new(seed * 1_000 + i));
            tokio::spawn(client(url, world, chance, i))
        })
        .collect()
}

async fn client(url: String, world: Arc<World>, mut chance: Chance, number: u64) {
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
    let mut again: Vec<Value> = Vec::new();
    while !world.stopped.load(Ordering::SeqCst) {
        let repeat = !again.is_empty() && chance.below(3) == 0;
        let body = if repeat {
            again.swap_remove(usize::try_from(chance.below(again.len() as u64)).unwrap())
        } else {
            let n = world.count.fetch_add(1, Ordering::SeqCst);
            let intent = ["ack_work", "shaky_work", "mixed_work", "push_work"][usize::try_from(chance.below(4)).unwrap()];
            json!({
                "intent": intent, "mode": "async", "message_id": format!("m{n}"), "caller": format!("client-{number}"), "payload": {"n": n},
                "ttl_ms": 600_000, "timeout_ms": 800, "priority": chance.below(3),
            })
        };
        let id = body["message_id"].as_str().unwrap().to_string();
        world.attempted.lock().unwrap().insert(id.clone());
        match http.post(&url).body(body.to_string()).send().await {
            Ok(response) => {
                let status = response.status().as_u16();
                if let Ok(reply) = response.json::<Value>().await
                    && (status == 200 || status == 202)
                {
                    let reach_id = reply["reach_id"].as_str().unwrap().to_string();
                    let before = world.acknowledged.lock().unwrap().insert(id.clone(), reach_id.clone());
                    assert!(before.is_none_or(|b| b == reach_id), "{id} was acknowledged as two messages");
                } else if status == 503 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            // killed meanwhile: nobody knows; some ask again with the same id
            Err(_) => {
                again.push(body);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(chance.below(12))).await;
    }
}
