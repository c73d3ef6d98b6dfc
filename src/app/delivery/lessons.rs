//! Ends of deliveries into what is learned: done is praise of the agent for itself, "not mine" is a word against it. Other ends say nothing about
//! who was meant. A full queue drops the event: delivery never waits for learning.

use crate::clock::{Clock, SystemClock};
use crate::dispatch::engine::Outcome;
use crate::dispatch::port::OutcomeSink;
use crate::ingest::{Ingest, ReceiptEvent};
use crate::tasks::{Stage, Tasks};
use crate::types::{AgentKey, Verdict};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Events that may wait.
const QUEUE: usize = 4096;

/// Age of an event from which on the decision behind it is in its log.
const RIPE: Duration = Duration::from_millis(60);

/// Pause between writes.
const PAUSE: Duration = Duration::from_millis(10);

/// Events of one write: few, for messages wait for it; more where so many wait that few would never be enough.
const WRITTEN: usize = 16;
const WRITTEN_BEHIND: usize = 256;
const BEHIND: usize = 512;

/// The sink.
pub struct Lessons {
    queue: mpsc::Sender<(Instant, ReceiptEvent)>,
}

impl Lessons {
    /// Starts the task that writes.
    pub fn start(ingest: &Arc<Ingest>, tasks: &Tasks) -> Self {
        let (queue, mut events) = mpsc::channel::<(Instant, ReceiptEvent)>(QUEUE);
        let (ingest, stop) = (ingest.clone(), tasks.stop(Stage::Work));
        drop(tasks.spawn(Stage::Work, "lessons", async move {
            let mut waiting: VecDeque<(Instant, ReceiptEvent)> = VecDeque::new();
            loop {
                if waiting.is_empty() {
                    tokio::select! { () = stop.cancelled() => return, event = events.recv() => match event {
                        Some(event) => waiting.push_back(event),
                        None => return,
                    }}
                } else {
                    tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(PAUSE) => {} }
                }
                let room = QUEUE.saturating_sub(waiting.len());
                waiting.extend(std::iter::from_fn(|| events.try_recv().ok()).take(room));
                let now = SystemClock.instant();
                let ripe = waiting.partition_point(|(at, _)| now.duration_since(*at) >= RIPE);
                let some = ripe.min(if waiting.len() > BEHIND { WRITTEN_BEHIND } else { WRITTEN });
                let some: Vec<ReceiptEvent> = waiting.drain(..some).map(|(_, event)| event).collect();
                if some.is_empty() {
                    continue;
                }
                if let Err(error) = ingest.delivered(some).await {
                    tracing::debug!(%error, "deliveries taught nothing");
                }
            }
        }));
        Self { queue }
    }
}

impl OutcomeSink for Lessons {
    fn outcome(&self, o: &Outcome) {
        let verdict = match o.kind {
            "acked" => Verdict::Acked,
            "rejected" => Verdict::Rejected,
            _ => return,
        };
        if o.decision_id.is_empty() {
            return;
        }
        let event =
            ReceiptEvent { decision_id: o.decision_id.to_string(), agent: o.agent.clone(), capability: o.capability.to_string(), verdict };
        if self.queue.try_send((SystemClock.instant(), event)).is_err() {
            tracing::debug!("too many deliveries end at once to learn from each");
        }
    }

    fn load(&self, _: &AgentKey, _: u32, _: u32) {}
}
