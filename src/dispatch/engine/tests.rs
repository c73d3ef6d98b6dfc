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
