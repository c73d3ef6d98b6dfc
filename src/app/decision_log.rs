//! Takes decisions off the route and writes them to the store in batches; keeps the log within its age and size.
//!
//! A full queue drops the entry and counts it: routing never waits for its own log.

use crate::config::DecisionLog as Settings;
use crate::route::logged::Body;
use crate::route::resolver::DecisionSink;
use crate::route::shortlist::Shortlist;
use crate::store::{DecisionRecord, Retention, Store};
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Counter, count, count_by};
use crate::types::decision::{Decision, DecisionKind};
use crate::types::policy::Policy;
use crate::types::query::Query;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Entries that may wait.
const QUEUE: usize = 8192;
/// Entries that are gathered.
const BATCH: usize = 256;
/// Entries of one transaction: messages wait for one of them at most.
const WRITTEN: usize = 32;
/// Time for company: entries that come so close are one transaction, and messages wait for fewer.
const GATHER: Duration = Duration::from_millis(20);
/// Pause between prunings.
const PRUNE: Duration = Duration::from_secs(300);

/// The sink of a serving process.
pub struct DecisionLog {
    queue: mpsc::Sender<Entry>,
    keep_text: bool,
}

struct Entry {
    id: String,
    at_ms: i64,
    caller: String,
    kind: DecisionKind,
    text: Option<String>,
    body: Body,
}

impl DecisionLog {
    /// Starts the writer.
    pub fn start(store: Arc<Store>, settings: &Settings, tasks: &Tasks) -> Self {
        let (queue, mut entries) = mpsc::channel::<Entry>(QUEUE);
        let keep_text = settings.keep_text;
        let retention = Retention { age_ms: i64::try_from(settings.max_age.as_millis()).unwrap_or(i64::MAX), bytes: settings.max_bytes };
        let stop = tasks.stop(Stage::Work);
        drop(tasks.spawn(Stage::Work, "decision-log", async move {
            let mut prune = tokio::time::interval(PRUNE);
            let mut batch = Vec::with_capacity(BATCH);
            loop {
                let stopping = tokio::select! {
                    n = entries.recv_many(&mut batch, BATCH) => n == 0,
                    _ = prune.tick() => {
                        use crate::clock::Clock;
                        if let Err(error) = store.prune_decisions(retention, crate::clock::SystemClock.now_ms()).await {
                            tracing::warn!(%error, "the decision log was not pruned");
                        }
                        false
                    }
                    () = stop.cancelled() => {
                        entries.close();
                        while let Ok(entry) = entries.try_recv() { batch.push(entry); }
                        true
                    }
                };
                if !stopping && !batch.is_empty() && batch.len() < BATCH {
                    tokio::select! { () = tokio::time::sleep(GATHER) => {}, () = stop.cancelled() => {} }
                    while let Some(entry) = if batch.len() < BATCH { entries.try_recv().ok() } else { None } {
                        batch.push(entry);
                    }
                }
                while !batch.is_empty() {
                    let n = batch.len().min(WRITTEN);
                    let records: Vec<DecisionRecord<Body>> = batch.drain(..n).map(record).collect();
                    if let Err(error) = store.log_decisions(records).await {
                        tracing::warn!(%error, n, "decisions were not logged");
                        count_by(Counter::DecisionsNotLogged, &[], n as u64);
                    }
                }
                if stopping {
                    return;
                }
            }
        }));
        Self { queue, keep_text }
    }
}

impl DecisionSink for DecisionLog {
    fn take(&self, query: &Query, list: &Shortlist, decision: &Decision, policy: &Policy) {
        count(Counter::Decisions, &[decision.kind.as_str()]);
        match self.queue.try_reserve() {
            Ok(place) => place.send(Entry {
                at_ms: query.at_ms,
                caller: query.principal.caller.to_string(),
                text: self.keep_text.then(|| query.text.to_string()),
                id: decision.decision_id.clone(),
                kind: decision.kind,
                body: Body::of(query, list, decision, policy, self.keep_text),
            }),
            Err(_) => count(Counter::DecisionsNotLogged, &[]),
        }
    }
}

fn record(entry: Entry) -> DecisionRecord<Body> {
    DecisionRecord { id: entry.id, at_ms: entry.at_ms, caller: entry.caller, kind: entry.kind, text: entry.text, body: entry.body }
}
