//! The retry storm and its kin, on the toy clock: what isolation, budget, breaker, dedup and admission are for.

use super::world::{Ev, Manners, World, key};
use crate::dispatch::engine::{EngineConfig, Protect};
use crate::dispatch::port::Reach;
use crate::types::Principal;
use crate::types::envelope::{ReachId, SubmitRequest};
use crate::types::message::State;
use std::collections::BTreeMap;

const MINUTE: i64 = 60_000;
const ASK: u64 = 1 << 50;
const CHECK: u64 = 2 << 50;
const SLOW: u64 = 3 << 50;
const FAST: u64 = 4 << 50;
const PROBE: u64 = 5 << 50;
const LOW: u64 = (1 << 50) - 1;

#[derive(Default)]
struct Seen {
    deepest: usize,
    /// Acknowledged work of the price agent by minute.
    goodput: BTreeMap<i64, u64>,
    retries: BTreeMap<i64, (u64, u64)>,
    /// (intent, phase) → latencies.
    latency: BTreeMap<(usize, i64), Vec<i64>>,
    depth_at: BTreeMap<i64, usize>,
}

/// One ask of one caller: intent, key, tries left, when it was first asked, the message it waits for.
struct Ask {
    intent: usize,
    caller: usize,
    left: u32,
    sent: Vec<ReachId>,
    serial: u64,
}

const INTENTS: [&str; 3] = ["price", "stock", "mail"];

fn storm(protected: bool, seed: u64) -> Seen {
    let on = protected;
    let config = EngineConfig { protect: Protect { admission: on, budget: on, breaker: on }, ..EngineConfig::default() };
    let mut w = World::new(config, seed);
    let manners = |median_ms: f64| Manners { workers: 20, median_ms, ..Manners::default() };
    w.agent("price", "price", Reach::Push, 20, manners(2_000.0));
    w.agent("stock", "stock", Reach::Push, 20, manners(2_000.0));
    w.agent("mail", "mail", Reach::Push, 20, manners(2_000.0));
    let start = w.now;
    let (slow_at, fast_at, end) = (start + 5 * MINUTE, start + 15 * MINUTE, start + 20 * MINUTE);
    // mean service time of a lognormal: median · e^(σ²/2); 60 % of 20 workers
    let gap = 2_000.0 * (0.125f64).exp() / (0.6 * 20.0);
    for intent in 0..3u64 {
        let mut t = start as f64;
        while (t as i64) < end {
            t += -gap * (1.0 - w.dice.share()).ln();
            let serial = w.dice.below(1 << 30);
            w.at(t as i64, Ev::Custom(ASK + (serial << 8) + intent));
        }
    }
    w.at(slow_at, Ev::Custom(SLOW));
    w.at(fast_at, Ev::Custom(FAST));
    for s in 0..(20 * 60) {
        w.at(start + s * 1_000, Ev::Custom(PROBE));
    }
    let mut seen = Seen::default();
    let mut asks: Vec<Ask> = Vec::new();
    let (mut next_id, mut last) = (0u128, (0u64, 0u64));
    let send = |w: &mut World, ask: &mut Ask, n: usize, next_id: &mut u128| {
        *next_id += 1;
        let r = SubmitRequest {
            intent: Some(INTENTS[ask.intent].into()),
            // unprotected = without dedup: every repetition is a message of its own
            idempotency_key: on.then(|| format!("{}-{}", ask.serial, n)),
            ..Default::default()
        };
        let e = r.check(Principal::local(&format!("c{}", ask.caller)), w.now, ReachId(*next_id)).unwrap();
        if let Ok(id) = w.submit(e) {
            ask.sent.push(id);
        }
        let patience = if ask.caller < 5 { 5_000 } else { 8_000 };
        w.after(patience, Ev::Custom(CHECK + n as u64));
    };
    w.run(end + 2 * MINUTE, &mut |w, what| {
        let n = what & LOW;
        match what - n {
            ASK => {
                let caller = w.dice.below(10) as usize;
                let mut ask =
                    Ask { intent: (n & 0xff) as usize, caller, left: if caller < 5 { 2 } else { 3 }, sent: vec![], serial: n >> 8 };
                let index = asks.len();
                send(w, &mut ask, index, &mut next_id);
                asks.push(ask);
            }
            CHECK => {
                let index = n as usize;
                let Some(ask) = asks.get_mut(index) else { return };
                let over = ask.sent.iter().any(|id| w.ended.contains_key(id));
                if !over && ask.left > 0 {
                    ask.left -= 1;
                    send(w, ask, index, &mut next_id);
                }
            }
            SLOW => w.agents.get_mut(&key("price")).unwrap().manners.median_ms = 12_000.0,
            FAST => w.agents.get_mut(&key("price")).unwrap().manners.median_ms = 2_000.0,
            PROBE => {
                let lane = w.engine.lane(&key("price"), w.now);
                let depth = lane.as_ref().map_or(0, |l| l.waiting);
                seen.deepest = seen.deepest.max(depth);
                seen.depth_at.insert((w.now - start) / 1_000, depth);
                let c = w.engine.counters();
                let entry = seen.retries.entry((w.now - start) / MINUTE).or_default();
                entry.0 += c.deliveries - c.retries - last.0;
                entry.1 += c.retries - last.1;
                last = (c.deliveries - c.retries, c.retries);
            }
            _ => {}
        }
    });
    for (m, _) in w.store.all() {
        if m.head.state != State::Done {
            continue;
        }
        let intent = INTENTS.iter().position(|i| m.envelope.intent.as_deref() == Some(*i)).unwrap();
        let at = m.head.updated_ms - start;
        if intent == 0 {
            *seen.goodput.entry(at / MINUTE).or_default() += 1;
        }
        let phase = if at < 5 * MINUTE {
            0
        } else if at < 15 * MINUTE {
            1
        } else {
            2
        };
        seen.latency.entry((intent, phase)).or_default().push(m.head.updated_ms - m.envelope.timestamp_ms);
    }
    seen
}

fn p95(list: &[i64]) -> i64 {
    let mut l = list.to_vec();
    l.sort_unstable();
    l[(l.len() * 95 / 100).min(l.len() - 1)]
}

#[test]
fn a_slow_agent_does_not_become_a_storm() {
    let bare = storm(false, 1);
    let mut lines = Vec::new();
    for seed in 1..=3 {
        let safe = storm(true, seed);
        let slow: u64 = (6..15).filter_map(|m| safe.goodput.get(&m)).sum();
        // nine whole minutes of 20 workers at a mean of 12 s · e^(σ²/2)
        let could = 9.0 * 60.0 * 20.0 / (12.0 * (0.125f64).exp());
        let share = slow as f64 / could;
        lines.push(format!("seed {seed}: depth {} (bare {}), goodput {:.0} % of {could:.0}", safe.deepest, bare.deepest, share * 100.0));
        assert!(safe.deepest * 10 <= bare.deepest, "{lines:?}");
        assert!(share >= 0.9, "{lines:?}");
        for (minute, (first, retries)) in &safe.retries {
            assert!(retries < first || *retries == 0, "minute {minute}: {retries} retries, {first} first attempts");
        }
        for (intent, name) in INTENTS.iter().enumerate().skip(1) {
            let (before, during) = (p95(&safe.latency[&(intent, 0)]), p95(&safe.latency[&(intent, 1)]));
            assert!(during as f64 <= before as f64 * 1.1, "{name}: p95 {before} ms before, {during} ms during");
        }
        let calm = safe.depth_at.range(15 * 60 + 90..).map(|(_, d)| *d).max().unwrap_or(0);
        assert!(calm <= 10, "90 s after the recovery {calm} still wait");
    }
    println!("{}", lines.join("\n"));
}

#[test]
fn an_agent_that_restarts_in_front_of_a_hundred_thousand_starts_slowly() {
    let mut w = World::new(EngineConfig::default(), 5);
    let n = if cfg!(debug_assertions) { 20_000u128 } else { 100_000 };
    let manners = Manners { workers: 100, median_ms: 200.0, ..Manners::default() };
    let agent = w.agent("big", "work", Reach::Push, 100, manners);
    w.agents.get_mut(&agent).unwrap().target.places = 200_000;
    w.agents.get_mut(&agent).unwrap().manners.down = true;
    let ids: Vec<ReachId> = (1..=n).map(ReachId).collect();
    // they were stored while the agent was away
    let target = w.agents[&agent].target.clone();
    for id in ids {
        let r = SubmitRequest { intent: Some("work".into()), ttl_ms: Some(24 * 3_600_000), ..Default::default() };
        let e = r.check(Principal::local("c"), w.now, id).unwrap();
        let routed = crate::types::message::Event::Routed {
            agent: agent.clone(),
            capability: target.capability.clone(),
            score: 1.0,
            probability: 1.0,
            decision_id: std::sync::Arc::from(""),
            source: crate::types::envelope::Source::Client,
        };
        let events = vec![crate::types::message::Event::Routing { exclude: vec![] }, routed];
        let write = crate::dispatch::port::submission(w.now, e, events).unwrap();
        w.store.commit_now(vec![write]).unwrap();
    }
    // a cold agent can take a twentieth of its load at first, then more
    let a = w.agents.get_mut(&agent).unwrap();
    a.manners.down = false;
    a.manners.busy_above = 5;
    w.engine.agent_started(w.now, &target);
    w.reload();
    let start = w.now;
    for (s, able) in [(30, 10), (40, 20), (50, 40), (60, 80), (70, usize::MAX)] {
        w.at(start + s * 1_000, Ev::Custom(able as u64 & LOW));
    }
    w.run(start + 100_000, &mut |w, able| {
        w.agents.get_mut(&key("big")).unwrap().manners.busy_above = able as usize;
    });
    let a = &w.agents[&agent];
    let done = w.store.all().iter().filter(|(m, _)| m.head.state == State::Done).count();
    assert!(a.busy_answers <= 20, "{} busy answers", a.busy_answers);
    assert_eq!(a.most_working, 100, "it gets its full load in the end");
    assert!(done > 10_000, "{done} done in 100 s");
}

#[test]
fn low_priority_floods_do_not_delay_high_priority() {
    let run = |flood: bool| {
        let mut w = World::new(EngineConfig::default(), 9);
        w.agent("x", "work", Reach::Push, 20, Manners { workers: 20, median_ms: 200.0, ..Manners::default() });
        let start = w.now;
        let mut id = 0u128;
        for ms in 0..60_000i64 {
            if ms % 50 == 0 {
                w.at(start + ms, Ev::Custom(0));
            }
            if flood && ms % 5 == 0 {
                w.at(start + ms, Ev::Custom(2));
            }
        }
        w.run(start + 90_000, &mut |w, priority| {
            id += 1;
            let r = SubmitRequest { intent: Some("work".into()), priority: Some(priority as u32), ..Default::default() };
            let e = r.check(Principal::local("c"), w.now, ReachId(id)).unwrap();
            w.submit(e).ok();
        });
        let all = w.store.all();
        let of = |p: u8| -> Vec<i64> {
            let done = all.iter().filter(|(m, _)| m.head.state == State::Done && m.envelope.priority.number() == p);
            done.map(|(m, _)| m.head.updated_ms - m.envelope.timestamp_ms).collect()
        };
        (of(0), of(2))
    };
    let (calm, none) = run(false);
    let (flooded, low) = run(true);
    assert!(none.is_empty() && low.len() > 500, "priority 2 moves: {}", low.len());
    assert!(p95(&flooded) as f64 <= p95(&calm) as f64 * 1.2, "p95 {} ms alone, {} ms in the flood", p95(&calm), p95(&flooded));
}
