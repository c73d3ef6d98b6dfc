//! Everything goes wrong at once; afterwards the books are checked.
//!
//! Checked, in the manner of Jepsen's total-queue with receipts: every acknowledged message ended exactly once (lost = 0), no message ended that
//! nobody sent (unexpected = 0), logs without gaps, `accepted` ⇒ `delivered`, `acked` ⇒ `accepted`, a second run only where a delivery ended without a
//! result, nothing is left open, the log rebuilds the head.

use super::world::{Ev, Faults, Manners, World};
use crate::dispatch::engine::EngineConfig;
use crate::dispatch::memory::Mischief;
use crate::dispatch::port::Reach;
use crate::dispatch::state;
use crate::types::Principal;
use crate::types::envelope::{ReachId, SubmitRequest};
use crate::types::message::{Event, State};
use std::collections::BTreeSet;

const SUBMIT: u64 = 1 << 40;
const CRASH: u64 = 2 << 40;
const MISCHIEF: u64 = 3 << 40;
const CANCEL: u64 = 4 << 40;
const DOWN: u64 = 5 << 40;
const UP: u64 = 6 << 40;

fn history(seed: u64) -> World {
    let mut w = World::new(EngineConfig::default(), seed);
    let share = |w: &mut World, most: f64| w.dice.share() * most;
    w.faults = Faults { lose: share(&mut w, 0.05), double: share(&mut w, 0.05), delay_ms: 1 + w.dice.below(40) };
    for (n, name) in ["a", "b", "c"].iter().enumerate() {
        let manners = Manners {
            median_ms: 5.0 + 50.0 * w.dice.share(),
            reject: share(&mut w, 0.1),
            nack: share(&mut w, 0.1),
            refuse: share(&mut w, 0.05),
            hang: share(&mut w, 0.03),
            receipts: w.dice.share() < 0.7,
            ..Manners::default()
        };
        let reach = if n == 0 { Reach::Pull } else { Reach::Push };
        w.agent(name, if n == 2 { "other" } else { "work" }, reach, 1 + n as u32 * 3, manners);
    }
    let start = w.now;
    let count = 40 + w.dice.below(60);
    for i in 0..count {
        let at = start + w.dice.below(20_000) as i64;
        w.at(at, Ev::Custom(SUBMIT + i));
    }
    for _ in 0..w.dice.below(4) {
        let at = start + w.dice.below(25_000) as i64;
        w.at(at, Ev::Custom(CRASH));
    }
    for _ in 0..w.dice.below(3) {
        let at = start + w.dice.below(25_000) as i64;
        w.at(at, Ev::Custom(MISCHIEF));
    }
    for i in 0..w.dice.below(5) {
        let at = start + w.dice.below(20_000) as i64;
        w.at(at, Ev::Custom(CANCEL + i));
    }
    let down = start + w.dice.below(10_000) as i64;
    w.at(down, Ev::Custom(DOWN));
    w.at(down + 8_000, Ev::Custom(UP));
    let mut sent = 0u128;
    w.run(start + 4 * 3_600_000, &mut |w, what| {
        let n = what & ((1 << 40) - 1);
        match what - n {
            SUBMIT => {
                sent += 1;
                let r = SubmitRequest {
                    intent: Some(if n % 5 == 0 { "other" } else { "work" }.into()),
                    idempotency_key: Some(format!("k{}", n % 50)),
                    priority: Some((n % 3) as u32),
                    ttl_ms: Some(60_000 + 1_000 * n),
                    callback: (n % 7 == 0).then(|| "http://127.0.0.1:9/cb".to_string()),
                    ..Default::default()
                };
                let e = r.check(Principal::local("sim"), w.now, ReachId(sent)).unwrap();
                w.submit(e).ok();
            }
            CRASH => w.crash(),
            MISCHIEF => {
                let how = [Mischief::Before, Mischief::After, Mischief::Half][w.dice.below(3) as usize];
                w.store.mischief(how);
            }
            CANCEL => {
                let ids: Vec<ReachId> = w.acknowledged.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[w.dice.below(ids.len() as u64) as usize];
                    w.engine.cancel(w.now, id, "the caller changed its mind").ok();
                }
            }
            DOWN => w.agents.values_mut().nth(1).unwrap().manners.down = true,
            UP => w.agents.values_mut().nth(1).unwrap().manners.down = false,
            _ => {}
        }
    });
    w
}

/// A calm world with a few messages of every fate, in which the `at`-th commit goes wrong.
fn calm(at: Option<(u64, Mischief)>) -> World {
    let mut w = World::new(EngineConfig::default(), 11);
    w.faults = Faults { lose: 0.0, double: 0.0, delay_ms: 10 };
    for (name, reach, reject, nack) in [("a", Reach::Pull, 0.2, 0.2), ("b", Reach::Push, 0.0, 0.3)] {
        w.agent(name, "work", reach, 3, Manners { reject, nack, ..Manners::default() });
    }
    if let Some((n, how)) = at {
        w.store.mischief_at(n, how);
    }
    let start = w.now;
    for i in 0..12 {
        w.at(start + 40 * i as i64, Ev::Custom(i));
    }
    w.run(start + 3_600_000, &mut |w, n| {
        let r = SubmitRequest {
            intent: Some("work".into()),
            idempotency_key: (n % 3 == 0).then(|| format!("k{n}")),
            ttl_ms: Some(60_000),
            ..Default::default()
        };
        let e = r.check(Principal::local("sim"), w.now, ReachId(u128::from(n) + 1)).unwrap();
        w.submit(e).ok();
    });
    w
}

/// Every commit of a history fails once: before it is written, in its middle, and after it was written (an error all the same). Nothing that was
/// acknowledged is lost, nothing is done twice beyond what the books allow.
#[test]
fn any_commit_may_fail() {
    let commits = calm(None).store.commits();
    assert!(commits > 25, "{commits} commits are too few to say much");
    for n in 1..=commits {
        for how in [Mischief::Before, Mischief::Half, Mischief::After] {
            let w = calm(Some((n, how)));
            assert_eq!(w.commit_errors, 1, "commit {n}, {how:?}");
            check(n, &w);
        }
    }
}

fn check(seed: u64, w: &World) {
    let all = w.store.all();
    let ids: BTreeSet<ReachId> = all.iter().map(|(m, _)| m.id()).collect();
    for id in w.acknowledged.keys() {
        assert!(ids.contains(id), "seed {seed}: {id} was acknowledged and is lost");
    }
    for (m, log) in &all {
        let id = m.id();
        assert!(m.head.state.is_terminal(), "seed {seed}: {id} is still {:?}; log {log:#?}", m.head.state);
        assert_eq!(log.iter().filter(|e| e.state.is_terminal()).count(), 1, "seed {seed}: {id} ended more than once");
        assert!(log.iter().enumerate().all(|(i, e)| e.seq as usize == i + 1), "seed {seed}: {id} has gaps");
        assert_eq!(state::replay(&m.envelope, log).as_ref(), Some(&m.head), "seed {seed}: {id} is not what its log says");
        let (mut delivered, mut accepted) = (false, false);
        let mut ended_without_result = 0;
        for e in log {
            match &e.event {
                Event::Leased { .. } => (delivered, accepted) = (false, false),
                Event::Delivered { .. } => delivered = true,
                Event::Accepted { .. } => {
                    assert!(delivered, "seed {seed}: {id} accepted before delivered");
                    accepted = true;
                }
                Event::Acked { .. } => assert!(accepted, "seed {seed}: {id} done before accepted"),
                Event::LeaseExpired { .. } | Event::Nacked { .. } => ended_without_result += 1,
                Event::Received | Event::Routing { .. } | Event::Routed { .. } | Event::Unrouted { .. } | Event::Progress { .. } => {}
                Event::HandedBack | Event::Refused { .. } | Event::Rejected { .. } | Event::Postponed { .. } => {}
                Event::Requeued { .. } | Event::Cancelled { .. } | Event::Escalated { .. } | Event::Dead { .. } => {}
            }
        }
        let runs: u32 = w.agents.values().filter_map(|a| a.runs.get(&id)).sum();
        assert!(
            runs <= 1 + ended_without_result,
            "seed {seed}: {id} ran {runs} times, {ended_without_result} deliveries ended badly; {log:#?}"
        );
        if m.head.state == State::Done {
            assert!(runs >= 1, "seed {seed}: {id} is done and nobody did it");
        }
    }
    for a in w.agents.values() {
        assert!(a.runs.keys().all(|id| ids.contains(id)), "seed {seed}: an agent ran what is not on record");
    }
    for lane in w.engine.lanes(w.now) {
        assert_eq!((lane.waiting, lane.in_flight, lane.retries), (0, 0, 0), "seed {seed}: {} is not empty", lane.agent);
    }
    assert_eq!(w.engine.open_len(), 0, "seed {seed}");
}

#[test]
fn two_hundred_histories_balance() {
    let only = std::env::var("SIM_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    let (mut done, mut dead, mut errors) = (0, 0, 0);
    for seed in only.map_or(0..200, |s| s..s + 1) {
        let w = history(seed);
        check(seed, &w);
        done += w.store.all().iter().filter(|(m, _)| m.head.state == State::Done).count();
        dead += w.store.all().iter().filter(|(m, _)| m.head.state == State::DeadLetter).count();
        errors += w.commit_errors;
    }
    if only.is_none() {
        assert!(done > 5_000 && dead > 20 && errors > 20, "the histories must be eventful: {done} done, {dead} dead, {errors} errors");
    }
}

#[test]
fn a_history_repeats_by_its_seed() {
    let (a, b) = (history(7), history(7));
    assert_eq!(a.store.all().len(), b.store.all().len());
    for ((x, lx), (y, ly)) in a.store.all().into_iter().zip(b.store.all()) {
        assert_eq!((x, lx), (y, ly));
    }
}
