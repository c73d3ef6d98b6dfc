//! The life of one message, as a pure machine.
//!
//! In: the [`Head`] as it is, the time, an [`Event`]. Out: the head after it and the log entries that led there, or why not.
//! Invariants: a terminal state never changes; a receipt that names another delivery than the running one is refused; `accepted` implies
//! `delivered` and `acked` implies `accepted` (a receipt that skips one writes both); replaying the log gives the same head.
//! Cost: one clone of the head. Not here: whether a retry follows (`retry`), durability (the store), time limits (`timeouts`).

use crate::types::Envelope;
use crate::types::message::{Entry, Event, Head, State};

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The message is over; this is how.
    Terminal(State),
    /// A receipt of another delivery than the running one.
    Stale {
        /// The delivery the receipt names.
        named: u32,
        /// The running delivery.
        running: u32,
    },
    /// The delivery is over: its lease ran out or it was answered already.
    NotOut(State),
    /// The same receipt of the same delivery came before: nothing to do.
    Already,
    /// This event does not belong to this state.
    Order(State),
}

/// What an event did.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The head after it.
    pub head: Head,
    /// New log entries, in order; at least one.
    pub log: Vec<Entry>,
}

/// The first transition of a message: taken in.
pub fn begin(now_ms: i64, envelope: &Envelope) -> Transition {
    let head = Head {
        state: State::Received,
        seq: 1,
        delivery: 0,
        crashes: 0,
        source: envelope.source,
        agent: None,
        capability: None,
        task: None,
        delivered_ms: None,
        accepted_ms: None,
        acked_ms: None,
        leased_ms: None,
        lease_until_ms: None,
        due_ms: now_ms,
        expires_ms: envelope.expires_ms(),
        failed: Vec::new(),
        rejected: Vec::new(),
        reply: None,
        code: None,
        reason: None,
        tag: None,
        escalated: None,
        updated_ms: now_ms,
    };
    Transition { log: vec![Entry { seq: 1, at_ms: now_ms, state: State::Received, event: Event::Received }], head }
}

/// Applies `event` at `now_ms`. See the module for what is refused.
pub fn on(head: &Head, now_ms: i64, event: Event) -> Result<Transition, Refused> {
    if head.state.is_terminal() {
        return Err(Refused::Terminal(head.state));
    }
    if let Some(named) = delivery_of(&event) {
        if named != head.delivery || named == 0 {
            return Err(Refused::Stale { named, running: head.delivery });
        }
        if !head.state.is_out() {
            let repeated = matches!(event, Event::Acked { .. }) && head.state == State::Acked;
            return Err(if repeated { Refused::Already } else { Refused::NotOut(head.state) });
        }
    }
    let mut t = Transition { head: head.clone(), log: Vec::with_capacity(1) };
    for step in implied(head, &event) {
        t.push(now_ms, step)?;
    }
    t.push(now_ms, event)?;
    Ok(t)
}

/// Applies several events as one change: all or none.
pub fn on_all(head: &Head, now_ms: i64, events: Vec<Event>) -> Result<Transition, Refused> {
    let mut all = Transition { head: head.clone(), log: Vec::with_capacity(events.len()) };
    for event in events {
        let t = on(&all.head, now_ms, event)?;
        all.head = t.head;
        all.log.extend(t.log);
    }
    Ok(all)
}

/// Rebuilds a head from its log.
pub fn replay(envelope: &Envelope, log: &[Entry]) -> Option<Head> {
    let (first, rest) = log.split_first()?;
    let mut t = begin(first.at_ms, envelope);
    for entry in rest {
        t.push(entry.at_ms, entry.event.clone()).ok()?;
    }
    Some(t.head)
}

fn delivery_of(event: &Event) -> Option<u32> {
    match event {
        Event::Delivered { delivery }
        | Event::Accepted { delivery, .. }
        | Event::Progress { delivery, .. }
        | Event::Acked { delivery, .. }
        | Event::Nacked { delivery, .. }
        | Event::Refused { delivery, .. }
        | Event::Rejected { delivery, .. }
        | Event::LeaseExpired { delivery, .. } => Some(*delivery),
        Event::Received | Event::Routing { .. } | Event::Routed { .. } | Event::Unrouted { .. } | Event::Leased { .. } => None,
        Event::HandedBack | Event::Postponed { .. } | Event::Requeued { .. } | Event::Cancelled { .. } => None,
        Event::Escalated { .. } | Event::Dead { .. } => None,
    }
}

/// Receipts that this one implies and that were not seen.
fn implied(head: &Head, event: &Event) -> Vec<Event> {
    let delivery = head.delivery;
    let until_ms = head.lease_until_ms.unwrap_or(head.updated_ms);
    let (delivered, accepted) = match event {
        Event::Accepted { .. } => (true, false),
        Event::Progress { .. } | Event::Acked { .. } => (true, true),
        Event::Received | Event::Routing { .. } | Event::Routed { .. } | Event::Unrouted { .. } | Event::Leased { .. } => (false, false),
        Event::Delivered { .. } | Event::HandedBack | Event::Nacked { .. } | Event::Refused { .. } => (false, false),
        Event::Rejected { .. } | Event::LeaseExpired { .. } | Event::Postponed { .. } | Event::Requeued { .. } => (false, false),
        Event::Cancelled { .. } | Event::Escalated { .. } | Event::Dead { .. } => (false, false),
    };
    let mut steps = Vec::new();
    if delivered && head.delivered_ms.is_none() {
        steps.push(Event::Delivered { delivery });
    }
    if accepted && head.accepted_ms.is_none() {
        steps.push(Event::Accepted { delivery, until_ms, task: None });
    }
    steps
}

impl Transition {
    /// One step; checks that it belongs to the state.
    fn push(&mut self, now_ms: i64, event: Event) -> Result<(), Refused> {
        let h = &mut self.head;
        let from = h.state;
        let order = Err(Refused::Order(from));
        let waiting = matches!(from, State::RetryPending | State::Rejected);
        h.state = match &event {
            Event::Received => return order,
            Event::Routing { .. } if from == State::Received || waiting => State::Routing,
            // a message may change its agent as long as nobody has it (its agent went away)
            Event::Routing { .. } if from == State::Queued => State::Routing,
            Event::Routed { agent, capability, source, .. } if from == State::Routing => {
                (h.agent, h.capability, h.source, h.due_ms) = (Some(agent.clone()), Some(capability.clone()), *source, now_ms);
                State::Queued
            }
            Event::Unrouted { code, reason, .. } if from == State::Routing => {
                (h.code, h.reason) = (Some(*code), Some(reason.clone()));
                State::RouteFailed
            }
            Event::Leased { until_ms } if from == State::Queued => {
                h.delivery += 1;
                (h.delivered_ms, h.accepted_ms, h.leased_ms, h.lease_until_ms) = (None, None, Some(now_ms), Some(*until_ms));
                h.task = None;
                State::Dispatched
            }
            Event::Delivered { .. } if from == State::Dispatched => {
                h.delivered_ms = Some(now_ms);
                State::Delivered
            }
            Event::Delivered { .. } if from.is_out() => return Err(Refused::Already),
            Event::Accepted { until_ms, task, .. } if from == State::Delivered => {
                (h.accepted_ms, h.lease_until_ms, h.task) = (Some(now_ms), Some(*until_ms), task.clone());
                State::Accepted
            }
            Event::Accepted { .. } if from.is_out() => return Err(Refused::Already),
            Event::Progress { until_ms, .. } if matches!(from, State::Accepted | State::Executing) => {
                h.lease_until_ms = Some(*until_ms);
                State::Executing
            }
            Event::Acked { reply, .. } if matches!(from, State::Accepted | State::Executing) => {
                (h.acked_ms, h.lease_until_ms, h.reply) = (Some(now_ms), None, Some(reply.clone()));
                State::Acked
            }
            Event::HandedBack if from == State::Acked => State::Done,
            Event::Nacked { reason, .. } if from.is_out() => {
                h.give_up_delivery(now_ms);
                h.reason = Some(reason.clone());
                State::RetryPending
            }
            Event::LeaseExpired { crashed: true, .. } if from.is_out() => {
                // our fault, not the agent's
                (h.lease_until_ms, h.due_ms) = (None, now_ms);
                h.crashes += 1;
                State::RetryPending
            }
            Event::LeaseExpired { .. } if from.is_out() => {
                h.give_up_delivery(now_ms);
                State::RetryPending
            }
            Event::Refused { code, reason, .. } if from.is_out() => {
                h.lease_until_ms = None;
                (h.code, h.reason) = (Some(*code), Some(reason.clone()));
                State::Failed
            }
            Event::Rejected { reason, .. } if from.is_out() => {
                h.lease_until_ms = None;
                if let Some(agent) = h.agent.clone().filter(|a| !h.rejected.contains(a)) {
                    h.rejected.push(agent);
                }
                h.reason = Some(reason.clone());
                State::Rejected
            }
            Event::Postponed { due_ms, .. } if waiting || matches!(from, State::Received | State::Routing) => {
                h.due_ms = *due_ms;
                State::RetryPending
            }
            Event::Requeued { source } if from == State::RetryPending && h.agent.is_some() => {
                (h.source, h.due_ms) = (*source, now_ms);
                State::Queued
            }
            Event::Cancelled { reason } if from != State::Acked => {
                h.lease_until_ms = None;
                h.reason = Some(reason.clone());
                State::Cancelled
            }
            Event::Escalated { to } if from != State::Acked && h.escalated.is_none() => {
                h.escalated = Some(to.clone());
                from
            }
            Event::Dead { tag, reason } if from != State::Acked => {
                h.lease_until_ms = None;
                (h.tag, h.code, h.reason) = (Some(*tag), Some(tag.code()), Some(reason.clone()));
                State::DeadLetter
            }
            Event::Routing { .. } | Event::Routed { .. } | Event::Unrouted { .. } | Event::Leased { .. } => return order,
            Event::Delivered { .. } | Event::Accepted { .. } | Event::Progress { .. } | Event::Acked { .. } => return order,
            Event::HandedBack | Event::Nacked { .. } | Event::LeaseExpired { .. } | Event::Refused { .. } => return order,
            Event::Rejected { .. } | Event::Postponed { .. } | Event::Requeued { .. } => return order,
            Event::Cancelled { .. } | Event::Escalated { .. } | Event::Dead { .. } => return order,
        };
        h.seq += 1;
        h.updated_ms = now_ms;
        self.log.push(Entry { seq: h.seq, at_ms: now_ms, state: h.state, event });
        Ok(())
    }
}

impl Head {
    /// The running delivery is over and its agent failed at it.
    fn give_up_delivery(&mut self, now_ms: i64) {
        self.lease_until_ms = None;
        self.due_ms = now_ms;
        if let Some(agent) = self.agent.clone().filter(|a| !self.failed.contains(a)) {
            self.failed.push(agent);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::Code;
    use crate::types::envelope::{ReachId, Source, SubmitRequest};
    use crate::types::message::{Cause, DeadTag, Reply};
    use crate::types::{AgentKey, Namespace, Principal};
    use proptest::prelude::*;
    use std::sync::Arc;

    pub(crate) fn envelope(id: u128) -> Envelope {
        SubmitRequest { intent: Some("price".into()), ..Default::default() }.check(Principal::local("t"), 0, ReachId(id)).unwrap()
    }

    pub(crate) fn agent(name: &str) -> AgentKey {
        AgentKey::local(Namespace::new("shop").unwrap(), name)
    }

    fn routed() -> Event {
        Event::Routed {
            agent: agent("a"),
            capability: Arc::from("price"),
            score: 0.9,
            probability: 0.9,
            decision_id: Arc::from("d"),
            source: Source::Client,
        }
    }

    fn out() -> Head {
        let t = begin(0, &envelope(1));
        on_all(&t.head, 1, vec![Event::Routing { exclude: vec![] }, routed(), Event::Leased { until_ms: 5_000 }]).unwrap().head
    }

    fn ack(delivery: u32) -> Event {
        Event::Acked { delivery, reply: Reply::default() }
    }

    #[test]
    fn an_ack_writes_the_receipts_it_implies() {
        let t = on(&out(), 10, ack(1)).unwrap();
        let states: Vec<_> = t.log.iter().map(|e| e.state).collect();
        assert_eq!(states, [State::Delivered, State::Accepted, State::Acked]);
        assert!(t.head.delivered_ms.is_some() && t.head.accepted_ms.is_some());
        let done = on(&t.head, 11, Event::HandedBack).unwrap().head;
        assert_eq!(done.state, State::Done);
        assert_eq!(
            on(&done, 12, Event::Accepted { delivery: 1, until_ms: 99, task: None }),
            Err(Refused::Terminal(State::Done)),
            "accepted after done"
        );
    }

    #[test]
    fn receipts_of_an_expired_delivery_are_refused() {
        let expired = on(&out(), 5_001, Event::LeaseExpired { delivery: 1, crashed: false }).unwrap().head;
        assert_eq!(expired.state, State::RetryPending);
        assert_eq!(expired.failed, vec![agent("a")]);
        assert_eq!(on(&expired, 5_002, ack(1)), Err(Refused::NotOut(State::RetryPending)));
        let again =
            on_all(&expired, 5_003, vec![Event::Requeued { source: Source::Retry }, Event::Leased { until_ms: 9_000 }]).unwrap().head;
        assert_eq!(on(&again, 5_004, ack(1)), Err(Refused::Stale { named: 1, running: 2 }));
        assert_eq!(on(&again, 5_004, ack(0)), Err(Refused::Stale { named: 0, running: 2 }));
        assert!(on(&again, 5_005, ack(2)).is_ok());
    }

    #[test]
    fn a_repeated_receipt_changes_nothing() {
        let accepted = on(&out(), 2, Event::Accepted { delivery: 1, until_ms: 9, task: None }).unwrap().head;
        assert_eq!(on(&accepted, 3, Event::Accepted { delivery: 1, until_ms: 99, task: None }), Err(Refused::Already));
        assert_eq!(on(&accepted, 3, Event::Delivered { delivery: 1 }), Err(Refused::Already));
        let acked = on(&accepted, 4, ack(1)).unwrap().head;
        assert_eq!(on(&acked, 5, ack(1)), Err(Refused::Already));
        assert_eq!(
            on(&acked, 5, Event::Cancelled { reason: Arc::from("late") }),
            Err(Refused::Order(State::Acked)),
            "work that is done can't be called off"
        );
    }

    #[test]
    fn a_reject_remembers_who() {
        let t = on(&out(), 2, Event::Rejected { delivery: 1, reason: Arc::from("not mine") }).unwrap();
        assert_eq!((t.head.state, t.head.rejected.as_slice()), (State::Rejected, [agent("a")].as_slice()));
        assert!(t.head.failed.is_empty(), "a rejection is no failure");
        assert!(on(&t.head, 3, Event::Requeued { source: Source::Retry }).is_err(), "never back to who rejected it");
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let d = 0u32..4;
        let text = || Arc::<str>::from("r");
        prop_oneof![
            Just(Event::Routing { exclude: vec![] }),
            Just(routed()),
            Just(Event::Unrouted { code: Code::NoMatchedAgent, reason: text(), decision_id: text() }),
            (0i64..100).prop_map(|until_ms| Event::Leased { until_ms }),
            d.clone().prop_map(|delivery| Event::Delivered { delivery }),
            (d.clone(), 0i64..100).prop_map(|(delivery, until_ms)| Event::Accepted { delivery, until_ms, task: None }),
            (d.clone(), 0i64..100).prop_map(|(delivery, until_ms)| Event::Progress { delivery, until_ms, partial: None }),
            d.clone().prop_map(ack),
            Just(Event::HandedBack),
            d.clone().prop_map(move |delivery| Event::Nacked { delivery, cause: Cause::Nack, reason: text(), retry_after_ms: None }),
            d.clone().prop_map(move |delivery| Event::Refused { delivery, code: Code::PayloadInvalid, reason: text() }),
            d.clone().prop_map(move |delivery| Event::Rejected { delivery, reason: text() }),
            (d, any::<bool>()).prop_map(|(delivery, crashed)| Event::LeaseExpired { delivery, crashed }),
            (0i64..100).prop_map(move |due_ms| Event::Postponed { due_ms, reason: text() }),
            Just(Event::Requeued { source: Source::Retry }),
            Just(Event::Cancelled { reason: text() }),
            Just(Event::Escalated { to: text() }),
            Just(Event::Dead { tag: DeadTag::TtlExpired, reason: text() }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..Default::default() })]
        /// Toy model: what the log says, read without the machine.
        #[test]
        fn the_log_keeps_its_promises(events in proptest::collection::vec(any_event(), 1..60)) {
            let e = envelope(1);
            let first = begin(0, &e);
            let (mut head, mut log) = (first.head, first.log);
            for (i, event) in events.into_iter().enumerate() {
                if let Ok(t) = on(&head, i as i64, event) {
                    prop_assert!(!head.state.is_terminal(), "a terminal state changed");
                    head = t.head;
                    log.extend(t.log);
                }
            }
            prop_assert!(log.iter().enumerate().all(|(i, e)| e.seq as usize == i + 1), "seq has gaps");
            prop_assert!(log.iter().filter(|e| e.state.is_terminal()).count() <= 1);
            let (mut delivered, mut accepted, mut leases) = (false, false, 0u32);
            for entry in &log {
                match &entry.event {
                    Event::Leased { .. } => (delivered, accepted, leases) = (false, false, leases + 1),
                    Event::Delivered { delivery } => { prop_assert_eq!(*delivery, leases); delivered = true; }
                    Event::Accepted { delivery, .. } => { prop_assert!(delivered && *delivery == leases); accepted = true; }
                    Event::Acked { delivery, .. } => prop_assert!(accepted && *delivery == leases),
                    Event::Received | Event::Routing { .. } | Event::Routed { .. } | Event::Unrouted { .. } | Event::Progress { .. } => {}
                    Event::HandedBack | Event::Nacked { .. } | Event::Refused { .. } | Event::Rejected { .. } => {}
                    Event::LeaseExpired { .. } | Event::Postponed { .. } | Event::Requeued { .. } => {}
                    Event::Cancelled { .. } | Event::Escalated { .. } | Event::Dead { .. } => {}
                }
            }
            prop_assert_eq!(head.delivery, leases);
            prop_assert_eq!(replay(&e, &log), Some(head));
        }
    }
}
