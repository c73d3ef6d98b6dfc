//! The checker: what callers and agents saw against what the server says in the end.

use crate::clients::World;
use crate::server::Server;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// What came of it.
#[derive(Debug, Default)]
pub struct Figures {
    pub attempted: u64,
    pub acknowledged: u64,
    /// Stored although the caller heard nothing.
    pub recovered: u64,
    pub ended: u64,
    pub lost: u64,
    pub unexpected: u64,
    pub terminal_twice: u64,
    pub receipts_wrong: u64,
    pub done: u64,
    pub dead: u64,
    pub failed: u64,
    pub others: u64,
    pub deliveries: u64,
    pub expired: u64,
    pub crashed: u64,
    /// Carried out more than once.
    pub twice: u64,
    /// Of these, without a lease that ran out for the delivery before.
    pub twice_without_reason: u64,
    pub faults: Vec<String>,
}

const TERMINAL: [&str; 5] = ["done", "route_failed", "failed", "cancelled", "dead_letter"];

pub async fn check(server: &Server, world: &World) -> Figures {
    let all = server.all("").await;
    let attempted = world.attempted.lock().unwrap().clone();
    let acknowledged = world.acknowledged.lock().unwrap().clone();
    let done = world.done.lock().unwrap().clone();
    let receipts = world.receipts.lock().unwrap().clone();
    let mut f = Figures { attempted: attempted.len() as u64, acknowledged: acknowledged.len() as u64, ..Figures::default() };
    let by_reach: HashMap<&str, &Value> = all.iter().map(|m| (m["reach_id"].as_str().unwrap(), m)).collect();
    let mut names = HashSet::new();
    for m in &all {
        let name = m["message_id"].as_str().unwrap();
        f.unexpected += u64::from(!attempted.contains(name));
        f.recovered += u64::from(!acknowledged.contains_key(name));
        if !names.insert(name) {
            f.faults.push(format!("{name} is there twice"));
        }
        match m["state"].as_str().unwrap() {
            "done" => f.done += 1,
            "dead_letter" => f.dead += 1,
            "failed" => f.failed += 1,
            _ => f.others += 1,
        }
    }
    for (name, reach) in &acknowledged {
        match by_reach.get(reach.as_str()) {
            Some(m) if TERMINAL.contains(&m["state"].as_str().unwrap()) => f.ended += 1,
            Some(m) => f.faults.push(format!("{name} has not ended: {m}")),
            None => {
                f.lost += 1;
                f.faults.push(format!("{name} was acknowledged as {reach} and is not there"));
            }
        }
    }
    for reach in by_reach.keys() {
        let life = server.get(&format!("/v1/messages/{reach}")).await;
        life_is_sound(&life, done.get(*reach).map_or(&[], Vec::as_slice), &mut f);
    }
    // a receipt that was acknowledged stands in the log
    let acked: HashSet<(&str, u32)> =
        receipts.iter().filter(|(_, _, kind)| *kind == "acked").map(|(reach, delivery, _)| (reach.as_str(), *delivery)).collect();
    for (reach, delivery) in acked {
        let ended = by_reach.get(reach).map(|m| (m["state"].as_str().unwrap_or(""), m["delivery"].as_u64().unwrap_or(0)));
        if ended != Some(("done", u64::from(delivery))) {
            f.receipts_wrong += 1;
            f.faults.push(format!("{reach}: the ack of delivery {delivery} was acknowledged, but the message is {ended:?}"));
        }
    }
    for reach in done.keys().filter(|r| !by_reach.contains_key(r.as_str())) {
        f.unexpected += 1;
        f.faults.push(format!("{reach} was carried out and is not there"));
    }
    f
}

fn life_is_sound(life: &Value, done: &[u32], f: &mut Figures) {
    let reach = life["reach_id"].as_str().unwrap();
    let log = life["log"].as_array().unwrap();
    let number = |e: &Value| e["detail"]["delivery"].as_u64().unwrap_or(0);
    let (mut ends, mut delivery) = (0, 0u64);
    let (mut delivered, mut accepted) = (HashSet::new(), HashSet::new());
    let mut expired = HashSet::new();
    for (i, e) in log.iter().enumerate() {
        if e["seq"].as_u64() != Some(i as u64 + 1) {
            f.faults.push(format!("{reach}: a gap in its log at {}", i + 1));
        }
        if ends > 0 {
            f.terminal_twice += 1;
            f.faults.push(format!("{reach}: something happened after its end: {e}"));
        }
        ends += u32::from(TERMINAL.contains(&e["state"].as_str().unwrap()));
        let mut wrong = |what: &str| {
            f.receipts_wrong += 1;
            f.faults.push(format!("{reach}: {what} at {}", i + 1));
        };
        match e["event"].as_str().unwrap() {
            "leased" => {
                delivery += 1;
                f.deliveries += 1;
            }
            "delivered" => {
                delivered.insert(number(e));
                if number(e) != delivery {
                    wrong("received for another delivery");
                }
            }
            "accepted" => {
                accepted.insert(number(e));
                if !delivered.contains(&number(e)) {
                    wrong("accepted, but not received");
                }
            }
            "acked" if !accepted.contains(&number(e)) || number(e) != delivery => wrong("done, but not accepted"),
            "lease_expired" => {
                f.expired += 1;
                f.crashed += u64::from(e["detail"]["crashed"] == true);
                expired.insert(number(e));
            }
            // no answer came over its connection: the same as a lease that ran out
            "nacked" if matches!(e["detail"]["cause"].as_str(), Some("timeout" | "broken")) => {
                expired.insert(number(e));
            }
            _ => {}
        }
    }
    if ends != 1 {
        f.faults.push(format!("{reach} has {ends} terminal states"));
    }
    // carried out more than once: every time but the last must have lost its lease
    let mut times = done.to_vec();
    times.sort_unstable();
    times.dedup();
    if times.len() > 1 {
        f.twice += 1;
        let last = times.last().copied().unwrap_or_default();
        let excused = times.iter().filter(|d| **d != last).all(|d| expired.contains(&u64::from(*d)));
        if !excused {
            f.twice_without_reason += 1;
            f.faults.push(format!("{reach} was carried out in the deliveries {times:?} without a lease that ran out: {life:#}"));
        }
    }
}
