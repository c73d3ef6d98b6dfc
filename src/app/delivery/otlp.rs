//! Sends the spans of messages that are over to a collector: OTLP over HTTP, protobuf, in batches.
//!
//! In: ids of messages that ended. Out: one request a batch to `telemetry.otlp`, path `/v1/traces`, through the guard of all outbound calls.
//! Delivery never waits for it: a full queue or a collector that stays away costs spans, counted in `reach_spans_lost_total`, nothing else.
//! Not here: what the spans are (`dispatch::spans`).

use crate::dispatch::engine::Outcome;
use crate::dispatch::guard::{Call, Guard};
use crate::dispatch::port::{MessageStore, OutcomeSink};
use crate::dispatch::spans::{of_message, text};
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Counter, count, count_by};
use crate::types::AgentKey;
use crate::types::envelope::ReachId;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Messages that may wait.
const QUEUE: usize = 8_192;
/// Messages of one request.
const BATCH: usize = 256;
/// Time for company: a batch is sent when it is this old.
const GATHER: Duration = Duration::from_millis(500);
/// Time that the collector has.
const WITHIN: Duration = Duration::from_secs(10);
/// Attempts for one batch, with a pause of a second that doubles.
const TRIES: u32 = 3;

/// The sink.
pub struct Spans {
    queue: mpsc::Sender<ReachId>,
}

impl Spans {
    /// Starts the task that sends to the collector at `address`.
    pub fn start(address: &str, store: Arc<dyn MessageStore>, guard: Guard, tasks: &Tasks) -> Self {
        let (queue, mut ended) = mpsc::channel(QUEUE);
        let (url, stop) = (format!("{}/v1/traces", address.trim_end_matches('/')), tasks.stop(Stage::Work));
        drop(tasks.spawn(Stage::Work, "spans", async move {
            let mut stopping = false;
            while !stopping {
                let mut batch: Vec<ReachId> = Vec::new();
                tokio::select! {
                    n = ended.recv_many(&mut batch, BATCH) => stopping = n == 0,
                    () = stop.cancelled() => stopping = true,
                }
                if !stopping && batch.len() < BATCH {
                    tokio::select! { () = tokio::time::sleep(GATHER) => {}, () = stop.cancelled() => stopping = true }
                }
                while let Some(id) = if batch.len() < BATCH { ended.try_recv().ok() } else { None } {
                    batch.push(id);
                }
                let spans = spans_of(&*store, &batch).await;
                let lost = spans.len() as u64;
                if !spans.is_empty() && !send(&guard, &url, spans, if stopping { 1 } else { TRIES }).await {
                    count_by(Counter::SpansLost, &[], lost);
                }
            }
        }));
        Self { queue }
    }
}

async fn spans_of(store: &dyn MessageStore, ids: &[ReachId]) -> Vec<Span> {
    let mut out = Vec::new();
    for id in ids {
        match (store.get(*id).await, store.log(*id).await) {
            (Ok(Some(message)), Ok(log)) => out.extend(of_message(&message, &log)),
            (Ok(None), _) => {} // kept no longer
            (Err(error), _) | (_, Err(error)) => tracing::debug!(%error, %id, "no spans of a message that can't be read"),
        }
    }
    out
}

/// Whether the collector took them. What it calls our own fault is not repeated.
async fn send(guard: &Guard, url: &str, spans: Vec<Span>, tries: u32) -> bool {
    let scope = InstrumentationScope { name: "agent-reach".into(), version: env!("CARGO_PKG_VERSION").into(), ..Default::default() };
    let resource = Resource {
        attributes: vec![text("service.name", "agent-reach"), text("service.version", env!("CARGO_PKG_VERSION"))],
        ..Default::default()
    };
    let all = ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }],
        ..Default::default()
    };
    let body = ExportTraceServiceRequest { resource_spans: vec![all] }.encode_to_vec();
    for n in 0..tries {
        if n > 0 {
            tokio::time::sleep(Duration::from_secs(1 << (n - 1))).await;
        }
        let headers = vec![("content-type".to_owned(), "application/x-protobuf".to_owned())];
        let call = Call { method: reqwest::Method::POST, url: url.into(), headers, body: body.clone(), within: WITHIN, max_body: 64 << 10 };
        match guard.call(call).await {
            Ok(answer) if (200..300).contains(&answer.status) => return true,
            Ok(answer) => {
                tracing::warn!(status = answer.status, url, "the collector did not take spans");
                if !matches!(answer.status, 429 | 502..=504) {
                    return false;
                }
            }
            Err(error) => tracing::warn!(%error, url, "the collector was not reached"),
        }
    }
    false
}

impl OutcomeSink for Spans {
    fn outcome(&self, _: &Outcome) {}

    fn load(&self, _: &AgentKey, _: u32, _: u32) {}

    fn ended(&self, id: ReachId) {
        if self.queue.try_send(id).is_err() {
            count(Counter::SpansLost, &[]);
        }
    }
}
