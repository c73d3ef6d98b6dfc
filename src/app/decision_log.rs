//! Takes decisions off the route and writes them to the store in batches; keeps the log within its age and size.
//!
//! A full queue drops the entry and counts it: routing never waits for its own log.

use crate::config::DecisionLog as Settings;
use crate::route::resolver::DecisionSink;
use crate::route::shortlist::{Item, Shortlist};
use crate::store::{DecisionRecord, Retention, Store};
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Counter, count};
use crate::types::decision::Decision;
use crate::types::query::Query;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Entries that may wait.
const QUEUE: usize = 8192;
/// Entries of one transaction.
const BATCH: usize = 256;
/// Candidates kept of a shortlist.
const KEPT: usize = 20;
/// Pause between prunings.
const PRUNE: Duration = Duration::from_secs(300);

/// The sink of a serving process.
pub struct DecisionLog {
    queue: mpsc::Sender<Entry>,
    keep_text: bool,
}

struct Entry {
    query: Query,
    list: Shortlist,
    decision: Decision,
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
                if !batch.is_empty() {
                    let n = batch.len();
                    let records: Vec<DecisionRecord> = batch.drain(..).map(|e| record(e, keep_text)).collect();
                    if let Err(error) = store.log_decisions(records).await {
                        tracing::warn!(%error, n, "decisions were not logged");
                        for _ in 0..n {
                            count(Counter::DecisionsNotLogged, &[]);
                        }
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
    fn take(&self, query: &Query, list: &Shortlist, decision: &Decision) {
        count(Counter::Decisions, &[decision.kind.as_str()]);
        let entry = || {
            let mut query = query.clone();
            if self.keep_text {
                query.vectors.clear();
            }
            query.parts.clear();
            query.payload = None;
            let items: Vec<Item> = list.items.iter().take(KEPT).map(|i| Item { features: Vec::new(), ..i.clone() }).collect();
            let list = Shortlist { items, dropped: list.dropped.clone(), facts: list.facts.clone(), warnings: Vec::new() };
            Entry { query, list, decision: decision.clone() }
        };
        match self.queue.try_reserve() {
            Ok(place) => place.send(entry()),
            Err(_) => count(Counter::DecisionsNotLogged, &[]),
        }
    }
}

fn record(entry: Entry, keep_text: bool) -> DecisionRecord {
    let Entry { query, list, decision } = entry;
    let vectors: Value = if keep_text { Value::Null } else { serde_json::to_value(&query.vectors).unwrap_or_default() };
    let body = json!({
        "version": 1,
        "principal": query.principal,
        "capability": query.capability,
        "region": query.region,
        "target": query.target,
        "preferred": query.preferred,
        "only_preferred": query.only_preferred,
        "exclude": query.exclude,
        "max_cost": query.max_cost,
        "preset": query.preset,
        "previous": query.previous,
        "depth": query.depth,
        "k": query.k,
        "seed": query.seed,
        "lang": query.lang,
        "vectors": vectors,
        "shortlist": list,
        "decision": decision,
    });
    DecisionRecord {
        id: decision.decision_id,
        at_ms: query.at_ms,
        caller: query.principal.caller.to_string(),
        kind: decision.kind,
        text: keep_text.then(|| query.text.to_string()),
        body,
    }
}
