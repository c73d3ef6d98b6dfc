//! Whether an agent's queue takes one more message.
//!
//! In: how full the queue is and what the message is. Out: [`Admission`].
//! Rules, in order: a tripped breaker → `agent_unavailable`; no place → `agent_busy`; from 80 % on only priority 0; priority 2 in its fifth; a retry
//! in its third; a message that would be over before its turn came → `agent_busy` (it would only be carried to its grave).
//! Invariant: with room and a working agent, priority 0 is always taken. Cost: O(1). Not here: the payload's size (`types::envelope`).

use crate::dispatch::budget::fits_queue;
use crate::dispatch::priority::low_fits;
use crate::error::Code;
use crate::types::envelope::Priority;
use std::time::Duration;

/// From this share of the places on, the queue is closing.
pub const CLOSING: f64 = 0.8;

/// The queue of an agent, as a newcomer finds it.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Places.
    pub places: u32,
    /// Messages that wait.
    pub waiting: usize,
    /// Of these, priority 2.
    pub low: usize,
    /// Messages that wait here for another attempt, in the queue or in a pause.
    pub retries: usize,
    /// Calls at once.
    pub concurrency: u32,
    /// Median duration of a call in milliseconds, if known.
    pub p50_ms: Option<u64>,
    /// Until when the breaker lets nothing through, as a pause from now.
    pub closed_for: Option<Duration>,
}

/// A message that asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// Its priority.
    pub priority: Priority,
    /// Whether it is a further attempt.
    pub retry: bool,
    /// Time until it is over.
    pub left: Duration,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    /// Take it. With a pause when the caller should slow down.
    Take {
        /// How long the caller should wait before the next one.
        slow_down: Option<Duration>,
    },
    /// Refuse it.
    Refuse {
        /// `agent_busy` or `agent_unavailable`.
        code: Code,
        /// When it makes sense to ask again.
        retry_after: Duration,
    },
}

impl Room {
    /// Time until a message that comes now would be begun, by the median: 0 when nobody waits. Calls end one by one, not in rounds.
    pub fn expected_wait(&self) -> Duration {
        if self.waiting == 0 {
            return Duration::ZERO;
        }
        let before = (self.waiting as u64 + 1).saturating_mul(self.p50_ms.unwrap_or(0));
        Duration::from_millis(before / u64::from(self.concurrency.max(1)))
    }

    /// Decides.
    pub fn admit(&self, who: &Newcomer) -> Admission {
        let pause = Duration::from_millis(self.p50_ms.unwrap_or(1_000).clamp(100, 60_000));
        let busy = Admission::Refuse { code: Code::AgentBusy, retry_after: pause };
        if let Some(closed_for) = self.closed_for {
            return Admission::Refuse { code: Code::AgentUnavailable, retry_after: closed_for };
        }
        let closing = self.waiting as f64 >= CLOSING * f64::from(self.places);
        if self.waiting >= self.places as usize || (closing && who.priority != Priority::High) {
            return busy;
        }
        if who.priority == Priority::Low && !low_fits(self.low, self.places) {
            return busy;
        }
        if who.retry && !fits_queue(self.retries, self.places) {
            return busy;
        }
        let needed = self.expected_wait() + Duration::from_millis(self.p50_ms.unwrap_or(0));
        if self.waiting > 0 && needed > who.left {
            return busy;
        }
        Admission::Take { slow_down: closing.then_some(pause) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { places: 1_000, waiting: 0, low: 0, retries: 0, concurrency: 5, p50_ms: None, closed_for: None };
    const NEW: Newcomer = Newcomer { priority: Priority::Normal, retry: false, left: Duration::from_secs(30) };

    fn code(room: Room, who: Newcomer) -> Option<Code> {
        match room.admit(&who) {
            Admission::Take { .. } => None,
            Admission::Refuse { code, retry_after } => {
                assert!(retry_after > Duration::ZERO);
                Some(code)
            }
        }
    }

    #[test]
    fn a_closing_queue_takes_priority_zero_only() {
        let high = Newcomer { priority: Priority::High, ..NEW };
        assert_eq!(code(Room { waiting: 799, ..ROOM }, NEW), None);
        assert_eq!(code(Room { waiting: 800, ..ROOM }, NEW), Some(Code::AgentBusy));
        assert!(matches!(Room { waiting: 800, ..ROOM }.admit(&high), Admission::Take { slow_down: Some(_) }));
        assert_eq!(code(Room { waiting: 1_000, ..ROOM }, high), Some(Code::AgentBusy));
    }

    #[test]
    fn shares_of_low_priority_and_of_retries() {
        let low = Newcomer { priority: Priority::Low, ..NEW };
        assert_eq!(code(Room { waiting: 300, low: 200, ..ROOM }, low), Some(Code::AgentBusy));
        assert_eq!(code(Room { waiting: 300, low: 199, ..ROOM }, low), None);
        let retry = Newcomer { retry: true, ..NEW };
        assert_eq!(code(Room { retries: 300, ..ROOM }, retry), Some(Code::AgentBusy));
        assert_eq!(code(Room { retries: 300, ..ROOM }, NEW), None);
    }

    #[test]
    fn a_tripped_breaker_says_so_and_until_when() {
        let room = Room { closed_for: Some(Duration::from_secs(9)), ..ROOM };
        assert_eq!(room.admit(&NEW), Admission::Refuse { code: Code::AgentUnavailable, retry_after: Duration::from_secs(9) });
    }

    #[test]
    fn a_message_that_would_die_waiting_is_refused() {
        // 20 at once, 12 s each: a message of 30 s can wait 18 s
        let slow = Room { concurrency: 20, p50_ms: Some(12_000), ..ROOM };
        assert_eq!(code(Room { waiting: 29, ..slow }, NEW), None);
        assert_eq!(code(Room { waiting: 30, ..slow }, NEW), Some(Code::AgentBusy));
        assert_eq!(code(Room { waiting: 39, ..slow }, NEW), Some(Code::AgentBusy));
        assert_eq!(code(Room { waiting: 39, ..slow }, Newcomer { left: Duration::from_secs(3_600), ..NEW }), None, "a patient one waits");
        assert_eq!(code(Room { waiting: 0, p50_ms: Some(60_000), ..slow }, NEW), None, "an empty queue always gives it a try");
    }
}
