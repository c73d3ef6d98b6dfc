//! Names of metrics as enumerations, with unit and labels, and the Prometheus text of what was counted.
//!
//! Invariant: label values are `'static` text of the program or interned with a cap ([`bounded`]), so that no caller can
//! make a new series. Cost: one hash look-up an event. No listener: the HTTP door serves [`render`].

use metrics::{Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::OnceLock;

macro_rules! metric_names {
    ($(#[$doc:meta])* $kind:ident { $($(#[doc = $help:literal])+ $name:ident = $text:literal, $unit:ident, [$($label:literal),*];)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind { $($(#[doc = $help])+ $name,)* }
        impl $kind {
            /// Every one.
            pub const ALL: &'static [$kind] = &[$($kind::$name,)*];
            /// Name in the exposition.
            pub const fn name(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// What it measures.
            pub const fn help(self) -> &'static str { match self { $(Self::$name => concat!($($help),+),)* } }
            /// Unit.
            pub const fn unit(self) -> Unit { match self { $(Self::$name => Unit::$unit,)* } }
            /// Names of its labels, in the order their values are given.
            pub const fn labels(self) -> &'static [&'static str] { match self { $(Self::$name => &[$($label),*],)* } }
        }
    };
}

metric_names! {
    /// What only grows.
    Counter {
        /// Requests answered.
        Requests = "reach_requests_total", Count, ["door", "method", "code"];
        /// Requests without a valid credential.
        AuthFailures = "reach_auth_failures_total", Count, ["door"];
        /// Requests or jobs refused for want of room.
        Shed = "reach_shed_total", Count, ["place"];
        /// Panics that were caught.
        Panics = "reach_panics_total", Count, ["place"];
        /// Decisions made.
        Decisions = "reach_decisions_total", Count, ["decision"];
        /// Texts that went through a model.
        EmbeddedTexts = "reach_embedded_texts_total", Count, ["model", "class"];
        /// Vectors asked of a cache.
        VectorCache = "reach_vector_cache_total", Count, ["cache", "result"];
        /// Registrations: `changed`, `unchanged`, `refused`.
        Registrations = "reach_registrations_total", Count, ["result"];
        /// Heartbeats: `taken`, `refused`.
        Heartbeats = "reach_heartbeats_total", Count, ["result"];
        /// Probes of agents.
        Probes = "reach_probes_total", Count, ["result"];
        /// Parts of the indexes merged, purged or given sketches.
        IndexRebuilds = "reach_index_rebuilds_total", Count, [];
        /// What happened to messages: submitted, unrouted, deliveries, retries, delivered, accepted, acked, rejected, failed, dead, cancelled, leases that expired, newcomers turned away, retries without budget, receipts refused.
        Dispatch = "reach_dispatch_total", Count, ["event"];
        /// Callbacks that nobody took: the result has to be asked for.
        CallbacksGivenUp = "reach_callbacks_given_up_total", Count, [];
        /// Alarms raised.
        AlarmsRaised = "reach_alarms_total", Count, ["alarm"];
        /// Decision log entries that could not be written.
        DecisionsNotLogged = "reach_decisions_not_logged_total", Count, [];
        /// Spans, or messages whose spans, did not reach the collector.
        SpansLost = "reach_spans_lost_total", Count, [];
    }
}

metric_names! {
    /// What goes up and down.
    Gauge {
        /// Capabilities whose vectors are still being computed.
        Pending = "reach_pending_capabilities", Count, [];
        /// Requests under way.
        InFlight = "reach_requests_in_flight", Count, [];
        /// Watches and streams that are open.
        Streams = "reach_streams_open", Count, [];
        /// Connections that are open.
        Connections = "reach_connections", Count, ["door"];
        /// Agents by status.
        Agents = "reach_agents", Count, ["status"];
        /// Capabilities that are registered.
        Capabilities = "reach_capabilities", Count, [];
        /// Texts that wait to be embedded.
        EmbedQueue = "reach_embed_queue", Count, [];
        /// Capabilities with vectors in the index.
        IndexVectors = "reach_index_vectors", Count, ["model"];
        /// Measured recall of approximate searches against the exact scan, 0..=1.
        IndexRecall = "reach_index_recall_ratio", Count, ["model"];
        /// Messages that are not over.
        MessagesOpen = "reach_messages_open", Count, [];
        /// Messages that wait for an agent; agents beyond the first 60 are summed up as `other`.
        AgentQueue = "reach_agent_queue", Count, ["agent"];
        /// Share of its queue that is taken, 0..=1; of `other`, the fullest.
        AgentQueueShare = "reach_agent_queue_ratio", Count, ["agent"];
        /// Calls under way at an agent.
        AgentInFlight = "reach_agent_in_flight", Count, ["agent"];
        /// Agents by the state of their breaker.
        Breakers = "reach_breakers", Count, ["state"];
        /// 1 while an alarm is on.
        Alarm = "reach_alarm", Count, ["alarm"];
        /// 1 when a query can be answered.
        Ready = "reach_ready", Count, [];
    }
}

metric_names! {
    /// What is spread.
    Histogram {
        /// Seconds from request to answer.
        Request = "reach_request_seconds", Seconds, ["door", "method"];
        /// Seconds of a stage of a route: `embed` (checking and waiting for vectors), `decide`.
        Route = "reach_route_seconds", Seconds, ["stage"];
        /// Seconds of one batch in a model.
        Embed = "reach_embed_seconds", Seconds, ["model"];
        /// Texts in one batch.
        EmbedBatch = "reach_embed_batch_texts", Count, ["model"];
        /// Seconds from the start of a delivery to its end.
        Delivery = "reach_delivery_seconds", Seconds, ["end"];
        /// Seconds of one write of the store: `commit`, a transaction of everything that waited.
        StoreWrite = "reach_store_write_seconds", Seconds, ["what"];
    }
}

const SECONDS: [f64; 16] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
const COUNTS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

fn recorder() -> &'static PrometheusRecorder {
    static RECORDER: OnceLock<PrometheusRecorder> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let mut builder = PrometheusBuilder::new();
        for histogram in Histogram::ALL {
            let buckets: &[f64] = if histogram.unit() == Unit::Seconds { &SECONDS } else { &COUNTS };
            builder = builder
                .set_buckets_for_metric(Matcher::Full(histogram.name().into()), buckets)
                .unwrap_or_else(|_| PrometheusBuilder::new());
        }
        let recorder = builder.build_recorder();
        for c in Counter::ALL {
            recorder.describe_counter(c.name().into(), Some(c.unit()), c.help().trim().into());
        }
        for g in Gauge::ALL {
            recorder.describe_gauge(g.name().into(), Some(g.unit()), g.help().trim().into());
        }
        for h in Histogram::ALL {
            recorder.describe_histogram(h.name().into(), Some(h.unit()), h.help().trim().into());
        }
        recorder
    })
}

const META: Metadata<'static> = Metadata::new("agent_reach", Level::INFO, None);

fn key(name: &'static str, labels: &'static [&'static str], values: &[&'static str]) -> Key {
    debug_assert_eq!(labels.len(), values.len(), "{name} has the labels {labels:?}");
    Key::from_parts(name, labels.iter().zip(values).map(|(l, v)| Label::from_static_parts(l, v)).collect::<Vec<_>>())
}

/// Counts one.
pub fn count(counter: Counter, labels: &[&'static str]) {
    count_by(counter, labels, 1);
}

/// Counts several.
pub fn count_by(counter: Counter, labels: &[&'static str], by: u64) {
    recorder().register_counter(&key(counter.name(), counter.labels(), labels), &META).increment(by);
}

/// Sets a gauge.
pub fn set(gauge: Gauge, labels: &[&'static str], value: f64) {
    recorder().register_gauge(&key(gauge.name(), gauge.labels(), labels), &META).set(value);
}

/// Moves a gauge up or down.
pub fn add(gauge: Gauge, labels: &[&'static str], by: f64) {
    recorder().register_gauge(&key(gauge.name(), gauge.labels(), labels), &META).increment(by);
}

/// Notes one value of a histogram: seconds or a number, by its unit.
pub fn observe(histogram: Histogram, labels: &[&'static str], value: f64) {
    recorder().register_histogram(&key(histogram.name(), histogram.labels(), labels), &META).record(value);
}

/// Folds the values noted since the last time into their histograms. To be called every few seconds: until then each value takes memory.
pub fn upkeep() {
    recorder().handle().run_upkeep();
}

/// The Prometheus text of everything so far.
pub fn render() -> String {
    upkeep();
    recorder().handle().render()
}

/// Makes a label value of a name that the configuration or the catalogue gave (a model, a preset). At most 64 different
/// ones live; further ones become `other`.
pub fn bounded(name: &str) -> &'static str {
    static NAMES: RwLock<BTreeSet<&'static str>> = RwLock::new(BTreeSet::new());
    if let Some(known) = NAMES.read().get(name) {
        return known;
    }
    let mut names = NAMES.write();
    match names.get(name) {
        Some(known) => known,
        None if names.len() < 64 && name.len() <= 128 => {
            let kept: &'static str = Box::leak(name.to_string().into_boxed_str());
            names.insert(kept);
            kept
        }
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut names: Vec<&str> = Counter::ALL.iter().map(|c| c.name()).collect();
        assert!(names.iter().all(|n| n.ends_with("_total")));
        assert!(Histogram::ALL.iter().all(|h| h.unit() != Unit::Seconds || h.name().ends_with("_seconds")));
        names.extend(Gauge::ALL.iter().map(|g| g.name()));
        names.extend(Histogram::ALL.iter().map(|h| h.name()));
        assert!(names.iter().all(|n| n.starts_with("reach_")));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn what_is_counted_is_rendered() {
        count_by(Counter::IndexRebuilds, &[], 3);
        observe(Histogram::Embed, &["test-model"], 0.003);
        set(Gauge::Ready, &[], 1.0);
        let text = render();
        assert!(text.contains("reach_index_rebuilds_total 3"), "{text}");
        assert!(text.contains("# HELP reach_embed_seconds Seconds of one batch in a model."), "{text}");
        assert!(text.contains("reach_embed_seconds_bucket{model=\"test-model\",le=\"0.005\"} 1"), "{text}");
    }

    #[test]
    fn label_values_are_bounded() {
        let mut seen = BTreeSet::new();
        for i in 0..1000 {
            seen.insert(bounded(&format!("name-{i}")));
        }
        assert!(seen.len() <= 65 && seen.contains("other"));
        assert_eq!(bounded("name-1"), "name-1");
    }
}
