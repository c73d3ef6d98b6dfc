//! Outcomes of deliveries into the live state: success and latency windows, ack rate, calls under way, messages that wait. The next View shows
//! the windows; the load of this process is seen at once.
//!
//! Who failed counts as failed; "not mine", a refused payload and "busy" say nothing against an agent's health, but they are no acks.

use crate::dispatch::engine::Outcome;
use crate::dispatch::port::OutcomeSink;
use crate::live::{CallOutcome, LiveTable};
use crate::types::AgentKey;
use parking_lot::Mutex;
use std::sync::Arc;

/// The sink.
pub struct LiveFeed {
    live: Arc<Mutex<LiveTable>>,
}

impl LiveFeed {
    /// Into this table.
    pub fn new(live: Arc<Mutex<LiveTable>>) -> Self {
        Self { live }
    }
}

impl OutcomeSink for LiveFeed {
    fn outcome(&self, o: &Outcome) {
        let mut live = self.live.lock();
        let demoted = match o.kind {
            "acked" => {
                live.receipt(&o.agent, true, o.at_ms);
                live.finished(&o.agent, CallOutcome { good: true, latency_ms: Some(o.took_ms as f32) }, o.at_ms)
            }
            "nacked" | "timeout" => {
                live.receipt(&o.agent, false, o.at_ms);
                live.finished(&o.agent, CallOutcome { good: false, latency_ms: None }, o.at_ms)
            }
            "rejected" | "refused" | "busy" => {
                live.receipt(&o.agent, false, o.at_ms);
                false
            }
            _ => false,
        };
        drop(live);
        if demoted {
            tracing::warn!(agent = %o.agent, "three failures in a row: no new work for a while");
        }
    }

    fn load(&self, agent: &AgentKey, in_flight: u32, waiting: u32) {
        self.live.lock().load(agent, in_flight, waiting);
    }
}
