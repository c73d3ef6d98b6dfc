//! A message that brings down who touches it is set aside.
//!
//! In: how often it was delivered and how many of these deliveries ended with our own process. Out: whether another delivery may begin.
//! The delivery number is durable *before* the message goes out, so that crashes count. Invariant: never more than `limit` deliveries.
//! Not here: ordinary failures, which have their attempts (`retry`).

use crate::types::message::Head;

/// Deliveries in all, crashes included.
pub const LIMIT: u32 = 20;

/// Whether another delivery would be one too many.
pub fn is_poison(head: &Head, limit: u32) -> bool {
    head.delivery >= limit
}

/// Attempts that count for the retry policy: deliveries that did not end with our own process.
pub fn attempts(head: &Head) -> u32 {
    head.delivery.saturating_sub(head.crashes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::state::{begin, on_all, tests as made};
    use crate::types::envelope::Source;
    use crate::types::message::Event;
    use std::sync::Arc;

    #[test]
    fn crashes_count_for_poison_but_not_as_attempts() {
        let mut head = begin(0, &made::envelope(1)).head;
        let first = Event::Routed {
            agent: made::agent("a"),
            capability: Arc::from("c"),
            score: 1.0,
            probability: 1.0,
            decision_id: Arc::from("d"),
            source: Source::Client,
        };
        head = on_all(&head, 0, vec![Event::Routing { exclude: vec![] }, first]).unwrap().head;
        for n in 1..=LIMIT {
            assert!(!is_poison(&head, LIMIT), "delivery {n} may begin");
            let crash = Event::LeaseExpired { delivery: n, crashed: true };
            head = on_all(&head, 0, vec![Event::Leased { until_ms: 1 }, crash, Event::Requeued { source: Source::Retry }]).unwrap().head;
            assert_eq!(attempts(&head), 0);
        }
        assert!(is_poison(&head, LIMIT));
    }
}
