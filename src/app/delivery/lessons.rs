//! Ends of deliveries into what is learned: done is praise of the agent for itself, "not mine" is a word against it. Other ends say nothing about
//! who was meant. A full queue drops the event: delivery never waits for learning.

use crate::dispatch::engine::Outcome;
use crate::dispatch::port::OutcomeSink;
use crate::ingest::{Ingest, ReceiptEvent};
use crate::route::prepare::words;
use crate::tasks::{Stage, Tasks};
use crate::types::{AgentKey, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that may wait.
const QUEUE: usize = 4096;

/// Time for company: what ends so close together is one write.
const GATHER: Duration = Duration::from_millis(20);

/// Events of one write: few, for messages wait for it; more where so many wait that few would never be enough.
const WRITTEN: usize = 32;
const WRITTEN_BEHIND: usize = 256;
const BEHIND: usize = 512;

/// The sink.
pub struct Lessons {
    queue: mpsc::Sender<ReceiptEvent>,
    text_chars: Option<usize>,
}

impl Lessons {
    /// Starts the task that writes. `text_chars`: characters of a text that decisions read; `None` = texts are not kept.
    pub fn start(ingest: &Arc<Ingest>, text_chars: Option<usize>, tasks: &Tasks) -> Self {
        let (queue, mut events) = mpsc::channel::<ReceiptEvent>(QUEUE);
        let (ingest, stop) = (ingest.clone(), tasks.stop(Stage::Work));
        drop(tasks.spawn(Stage::Work, "lessons", async move {
            let mut some = Vec::new();
            loop {
                let most = if events.len() > BEHIND { WRITTEN_BEHIND } else { WRITTEN };
                tokio::select! { () = stop.cancelled() => return, n = events.recv_many(&mut some, most) => if n == 0 { return } }
                if some.len() < WRITTEN {
                    tokio::select! { () = stop.cancelled() => {}, () = tokio::time::sleep(GATHER) => {} }
                    some.extend(std::iter::from_fn(|| events.try_recv().ok()).take(WRITTEN - some.len()));
                }
                if let Err(error) = ingest.delivered(std::mem::take(&mut some)).await {
                    tracing::debug!(%error, "deliveries taught nothing");
                }
            }
        }));
        Self { queue, text_chars }
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
        let Ok(place) = self.queue.try_reserve() else {
            tracing::debug!("too many deliveries end at once to learn from each");
            return;
        };
        place.send(ReceiptEvent {
            decision_id: o.decision_id.to_string(),
            agent: o.agent.clone(),
            capability: o.capability.to_string(),
            verdict,
            at_ms: o.at_ms,
            text: self.text_chars.zip(o.query.as_deref()).map(|(most, text)| words(text, most).0),
            caller: o.caller.to_string(),
            tenant: o.tenant.as_deref().map(str::to_string),
            previous: o.previous.clone(),
        });
    }

    fn load(&self, _: &AgentKey, _: u32, _: u32) {}
}
