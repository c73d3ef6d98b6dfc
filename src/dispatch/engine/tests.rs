//! The engine alone, one call at a time.

use super::*;
use crate::dispatch::state::tests::agent;
use crate::types::envelope::SubmitRequest;
use crate::types::principal::Principal;

fn envelope(id: u128) -> Envelope {
    let r = SubmitRequest { intent: Some("work".into()), idempotency_key: Some("k".into()), ..Default::default() };
    r.check(Principal::local("me"), 1_000, ReachId(id)).unwrap()
}

fn asking(n: u32) -> (Engine, Target) {
    let (mut engine, target) = (Engine::new(EngineConfig::default(), 7), Target::plain(agent("a"), "work"));
    engine.demand(1_000, &target, n);
    engine.take();
    (engine, target)
}

/// The writes among the effects, and whom something was sent.
fn split(effects: Vec<Effect>) -> (Vec<Write>, Vec<ReachId>) {
    let (mut writes, mut sent) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Write(w) => writes.push(*w),
            Effect::Send(d) => sent.push(d.id),
            Effect::Cancel { .. } | Effect::Route { .. } | Effect::CallBack(_) | Effect::Escalate(_) => {}
            Effect::Outcome(_) | Effect::Load { .. } | Effect::Breaker { .. } => {}
        }
    }
    (writes, sent)
}

#[test]
fn the_first_delivery_to_an_idle_agent_is_part_of_the_write_that_takes_the_message_in() {
    let (mut engine, target) = asking(1);
    let id = engine.submit(1_000, envelope(1), target).unwrap();
    let (writes, sent) = split(engine.take());
    assert_eq!(writes.len(), 1);
    assert_eq!((writes[0].head().state, writes[0].head().delivery, writes[0].log().len()), (State::Dispatched, 1, 4));
    assert!(sent.is_empty(), "nothing leaves before it is durable");
    engine.wrote(1_001, id, writes[0].head().seq, &Wrote::Stored);
    let (writes, sent) = split(engine.take());
    assert_eq!((writes.len(), sent), (0, vec![id]));
    let c = engine.counters();
    assert_eq!((c.submitted, c.deliveries, c.retries), (1, 1, 0));
}

#[test]
fn a_repetition_takes_nothing_from_the_agent() {
    let (mut engine, target) = asking(1);
    let id = engine.submit(1_000, envelope(2), target.clone()).unwrap();
    let (writes, _) = split(engine.take());
    let first = Message { envelope: Arc::new(envelope(1)), head: writes[0].head().clone() };
    engine.wrote(1_001, id, writes[0].head().seq, &Wrote::Existing(Box::new(first)));
    assert!(split(engine.take()).1.is_empty());
    let (c, lane) = (engine.counters(), engine.lane(&target.agent, 1_001).unwrap());
    assert_eq!((c.submitted, c.deliveries, lane.in_flight, engine.open_len()), (0, 0, 0, 0));
    // what the agent asked for is still to be had
    engine.submit(1_002, envelope(3), target).unwrap();
    assert_eq!(split(engine.take()).0[0].head().state, State::Dispatched);
}

#[test]
fn who_is_not_asking_or_has_others_waiting_is_not_handed_a_newcomer() {
    let (mut engine, target) = asking(0);
    let first = engine.submit(1_000, envelope(1), target.clone()).unwrap();
    let (writes, _) = split(engine.take());
    assert_eq!(writes[0].head().state, State::Queued);
    engine.wrote(1_001, first, writes[0].head().seq, &Wrote::Stored);
    engine.submit(1_002, envelope(2), target.clone()).unwrap();
    assert_eq!(split(engine.take()).0[0].head().state, State::Queued);
    engine.demand(1_003, &target, 1);
    let (writes, _) = split(engine.take());
    assert_eq!((writes.len(), writes[0].id()), (1, first), "first come, first served");
}

/// Submits for `target`, lets it be stored and sent; the lease that it got.
fn out(engine: &mut Engine, now_ms: i64, id: u128, target: &Target) -> i64 {
    let r = SubmitRequest { intent: Some(target.capability.to_string()), ttl_ms: Some(600_000), ..Default::default() };
    let e = r.check(Principal::local("me"), now_ms, ReachId(id)).unwrap();
    engine.submit(now_ms, e, target.clone()).unwrap();
    let (writes, _) = split(engine.take());
    engine.wrote(now_ms, ReachId(id), writes[0].head().seq, &Wrote::Stored);
    engine.take();
    writes[0].head().lease_until_ms.unwrap() - now_ms
}

#[test]
fn how_long_one_capability_takes_says_nothing_of_another() {
    let mut engine = Engine::new(EngineConfig::default(), 7);
    let quick = Target { reach: crate::dispatch::port::Reach::Push, ..Target::plain(agent("a"), "quick") };
    let slow = Target { capability: Arc::from("slow"), ..quick.clone() };
    for id in 0..40 {
        out(&mut engine, 1_000, id, &quick);
        let ack = Receipt::Acked(Default::default());
        engine.receipt(1_010, ReachId(id), Some(&quick.agent), 1, ack).unwrap();
        engine.take();
    }
    assert_eq!(out(&mut engine, 2_000, 100, &quick), 5_000, "measured, but not under the quickest class");
    assert_eq!(out(&mut engine, 2_000, 101, &slow), 60_000, "not measured yet");
    engine.receipt(2_100, ReachId(100), Some(&quick.agent), 1, Receipt::Accepted).unwrap();
    let until = engine.message(ReachId(100)).unwrap().head.lease_until_ms.unwrap();
    assert_eq!(until - 2_100, 30_000, "to accept is a sign of life");
}

#[test]
fn pushed_work_that_may_have_run_is_repeated_only_where_that_is_safe() {
    for (idempotent, state) in [(false, State::DeadLetter), (true, State::RetryPending)] {
        let mut engine = Engine::new(EngineConfig::default(), 7);
        let target = Target { reach: crate::dispatch::port::Reach::Push, idempotent, ..Target::plain(agent("a"), "work") };
        let lease = out(&mut engine, 1_000, 1, &target);
        engine.tick(1_000 + lease);
        let head = engine.message(ReachId(1)).unwrap().head;
        assert_eq!(head.state, state, "idempotent: {idempotent}");
        assert_eq!(head.tag, (!idempotent).then_some(DeadTag::ProcessingTimeout));
        // the same when it was our own end that cut the call
        let mut engine = Engine::new(EngineConfig::default(), 7);
        out(&mut engine, 1_000, 2, &target);
        let stored = engine.message(ReachId(2)).unwrap();
        let mut next = Engine::new(EngineConfig::default(), 7);
        next.resume(2_000, stored, Some(target));
        assert_eq!(next.message(ReachId(2)).unwrap().head.state, state, "after a restart, idempotent: {idempotent}");
    }
}

#[test]
fn a_task_that_is_asked_about_is_looked_at_again_after_a_restart() {
    let mut engine = Engine::new(EngineConfig::default(), 7);
    let target = Target { reach: crate::dispatch::port::Reach::Push, ..Target::plain(agent("a"), "work") };
    out(&mut engine, 1_000, 1, &target);
    engine.receipt(1_100, ReachId(1), Some(&target.agent), 1, Receipt::Task(Arc::from("http://o/tasks/9"))).unwrap();
    let stored = engine.message(ReachId(1)).unwrap();
    assert_eq!((stored.head.state, stored.head.task.as_deref()), (State::Accepted, Some("http://o/tasks/9")));
    let mut next = Engine::new(EngineConfig::default(), 7);
    next.resume(90_000, stored, Some(target));
    let sent: Vec<_> =
        next.take().into_iter().filter_map(|e| if let Effect::Send(d) = e { Some((d.delivery, d.task)) } else { None }).collect();
    assert_eq!(sent, [(1, Some(Arc::from("http://o/tasks/9")))]);
    assert!(next.message(ReachId(1)).unwrap().head.lease_until_ms.unwrap() > 90_000, "its lease ran out while we were away");
}
