//! Ends of deliveries into what is learned: done is praise of the agent for itself, "not mine" is a word against it. Other ends say nothing about
//! who was meant. A full queue drops the event: delivery never waits for learning.

use crate::dispatch::engine::Outcome;
use crate::dispatch::port::OutcomeSink;
use crate::ingest::{Ingest, ReceiptEvent};
use crate::tasks::{Stage, Tasks};
use crate::types::{AgentKey, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that may wait.
const QUEUE: usize = 4096;

/// Events that are gathered.
const BATCH: usize = 256;

/// Events of one write: messages wait for one of them at most.
const WRITTEN: usize = 16;

/// Time for company, and for the decisions behind the events to reach their log.
const GATHER: Duration = Duration::from_millis(200);

/// The sink.
pub struct Lessons {
    queue: mpsc::Sender<ReceiptEvent>,
}

impl Lessons {
    /// Starts the task that writes.
    pub fn start(ingest: &Arc<Ingest>, tasks: &Tasks) -> Self {
        let (queue, mut events) = mpsc::channel(QUEUE);
        let (ingest, stop) = (ingest.clone(), tasks.stop(Stage::Work));
        drop(tasks.spawn(Stage::Work, "lessons", async move {
            loop {
                let mut batch = Vec::new();
                let taken = tokio::select! { () = stop.cancelled() => return, n = events.recv_many(&mut batch, BATCH) => n };
                if taken == 0 {
                    return;
                }
                if taken < BATCH {
                    tokio::select! { () = tokio::time::sleep(GATHER) => {}, () = stop.cancelled() => {} }
                }
                while let Some(event) = if batch.len() < BATCH { events.try_recv().ok() } else { None } {
                    batch.push(event);
                }
                while !batch.is_empty() {
                    let some = batch.drain(..batch.len().min(WRITTEN)).collect();
                    if let Err(error) = ingest.delivered(some).await {
                        tracing::debug!(%error, "deliveries taught nothing");
                    }
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
        if self.queue.try_send(event).is_err() {
            tracing::debug!("too many deliveries end at once to learn from each");
        }
    }

    fn load(&self, _: &AgentKey, _: u32, _: u32) {}
}
