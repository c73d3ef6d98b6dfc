//! What delivery does, as metrics and alarms: counters, queues, breakers, durations; who should look is told by a log event and a webhook.

use super::alarms::{ALARMS, Alarms, Change, Sample};
use crate::dispatch::callback::sign;
use crate::dispatch::engine::{Counters, LaneView, Outcome};
use crate::dispatch::guard::Call;
use crate::dispatch::port::OutcomeSink;
use crate::dispatch::service::Dispatcher;
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Counter, Gauge, Histogram, bounded, count, count_by, observe, set};
use crate::types::AgentKey;
use crate::view::Views;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause between looks.
const EVERY: Duration = Duration::from_secs(5);

/// Durations of deliveries.
pub struct Durations;

impl OutcomeSink for Durations {
    fn outcome(&self, o: &Outcome) {
        if matches!(o.kind, "acked" | "rejected" | "refused" | "nacked" | "busy" | "timeout") {
            observe(Histogram::Delivery, &[o.kind], o.took_ms as f64 / 1_000.0);
        }
    }

    fn load(&self, _: &AgentKey, _: u32, _: u32) {}
}

/// Starts the looks. `named`: whether labels may name agents.
pub fn start(dispatcher: &Dispatcher, views: &Arc<Views>, webhook: Option<String>, named: bool, tasks: &Tasks) {
    let (dispatcher, views, stop) = (dispatcher.clone(), views.clone(), tasks.stop(Stage::Work));
    drop(tasks.spawn(Stage::Work, "dispatch-meter", async move {
        let mut tick = tokio::time::interval(EVERY);
        let (mut alarms, mut before) = (Alarms::default(), Counters::default());
        loop {
            tokio::select! { () = stop.cancelled() => return, _ = tick.tick() => {} }
            let sample = sample(&dispatcher, &views);
            counted(&before, &sample.counters);
            before = sample.counters;
            set(Gauge::MessagesOpen, &[], dispatcher.open_len() as f64);
            lanes(&sample.lanes, named);
            let changes = alarms.look(dispatcher.now_ms(), &sample);
            for (alarm, ..) in ALARMS {
                set(Gauge::Alarm, &[alarm], f64::from(u8::from(alarms.is_on(alarm))));
            }
            for change in changes {
                raise(&dispatcher, webhook.as_deref(), &change).await;
            }
        }
    }));
}

fn sample(dispatcher: &Dispatcher, views: &Views) -> Sample {
    let view = views.load();
    let gone = |status: &str| matches!(status, "expired" | "unreachable" | "blocked_url");
    Sample {
        counters: dispatcher.counters(),
        lanes: dispatcher.lanes(),
        lost: view.live.iter().filter(|(_, l)| gone(l.status())).count(),
        spread_ms: view.live.iter().filter_map(|(_, l)| l.latency).map(|q| f64::from(q.p90 - q.p50)).fold(0.0, f64::max),
    }
}

fn counted(before: &Counters, now: &Counters) {
    for ((event, now), (_, before)) in now.named().into_iter().zip(before.named()) {
        count_by(Counter::Dispatch, &[event], now.saturating_sub(before));
    }
}

/// Labels are a bounded set: what has no name of its own is summed up.
fn lanes(all: &[LaneView], named: bool) {
    let mut by_label: BTreeMap<&'static str, (f64, f64, f64)> = BTreeMap::new();
    let mut breakers: BTreeMap<&'static str, usize> = [("passing", 0), ("tripped", 0), ("probing", 0)].into();
    for lane in all {
        let entry = by_label.entry(if named { bounded(&lane.agent.to_string()) } else { "all" }).or_default();
        entry.0 += lane.waiting as f64;
        entry.1 = entry.1.max(lane.waiting as f64 / f64::from(lane.places.max(1)));
        entry.2 += f64::from(lane.in_flight);
        *breakers.entry(lane.breaker).or_default() += 1;
    }
    for (label, (waiting, share, in_flight)) in by_label {
        set(Gauge::AgentQueue, &[label], waiting);
        set(Gauge::AgentQueueShare, &[label], share);
        set(Gauge::AgentInFlight, &[label], in_flight);
    }
    for (state, n) in breakers {
        set(Gauge::Breakers, &[state], n as f64);
    }
}

async fn raise(dispatcher: &Dispatcher, webhook: Option<&str>, change: &Change) {
    let Change { alarm, on, value, limit, text } = change;
    if *on {
        count(Counter::AlarmsRaised, &[alarm]);
        tracing::warn!(alarm, value, limit, "alarm: {text}");
    } else {
        tracing::info!(alarm, value, limit, "alarm is off: {text}");
    }
    let Some(url) = webhook else { return };
    let body = serde_json::to_vec(change).unwrap_or_default();
    let now = dispatcher.now_ms();
    let signed = sign(dispatcher.secrets(), &format!("alarm_{alarm}_{now}"), now / 1_000, &body);
    let mut headers: Vec<(String, String)> = signed.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    headers.push(("content-type".into(), "application/json".into()));
    let call = Call { method: reqwest::Method::POST, url: url.into(), headers, body, within: Duration::from_secs(5), max_body: 4_096 };
    if let Err(error) = dispatcher.guard().call(call).await {
        tracing::warn!(alarm, %error, "the alarm webhook was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::render;
    use crate::types::Namespace;

    fn lane(agent: &str) -> LaneView {
        LaneView {
            agent: AgentKey::local(Namespace::new("hr").unwrap(), agent),
            waiting: 2,
            places: 10,
            retries: 0,
            in_flight: 1,
            limit: 5,
            breaker: "passing",
            p50_ms: None,
            p95_ms: None,
            success: None,
            calls: 0,
        }
    }

    /// Whoever reads `/metrics` of a node with tokens learns no names.
    #[test]
    fn agents_are_named_only_where_they_may_be() {
        lanes(&[lane("meter-hidden-one"), lane("meter-hidden-two")], false);
        let text = render();
        assert!(text.contains("reach_agent_queue{agent=\"all\"}") && !text.contains("meter-hidden"), "{text}");
        lanes(&[lane("meter-shown")], true);
        assert!(render().contains("reach_agent_queue{agent=\"hr/meter-shown\"}"));
    }
}
