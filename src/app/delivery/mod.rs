//! The dispatcher's place in the process: its store on the same file, the matcher behind its port, what it learns fed into the live state.

pub mod alarms;
mod feed;
mod lessons;
mod meter;
mod next;
mod otlp;

use crate::api::grpc::worker::WorkerCodec;
use crate::clock::Clock;
use crate::config::{AgentLabels, Config, Outbound, OutboundSecret};
use crate::dispatch::breaker::BreakerConfig;
use crate::dispatch::callback::Secret;
use crate::dispatch::engine::EngineConfig;
use crate::dispatch::guard::Guard;
use crate::dispatch::port::{MessageStore, OutcomeSink};
use crate::dispatch::rest::HeaderSecret;
use crate::dispatch::service::{Dispatcher, Ports, Settings};
use crate::dispatch::sqlite::SqliteMessages;
use crate::error::{Code, Error};
use crate::ingest::Ingest;
use crate::route::resolver::Resolver;
use crate::store::Store;
use crate::tasks::Tasks;
use crate::types::outbound::OutboundPolicy;
use crate::types::stored::Retention;
use crate::view::Views;
pub use feed::LiveFeed;
use lessons::Lessons;
pub use next::Matched;
use otlp::Spans;
use std::sync::Arc;
use std::time::Duration;

/// What may be called, by the configuration.
pub fn policy(outbound: &Outbound) -> OutboundPolicy {
    // the ranges were checked when the configuration was read
    let allow = outbound.allow.iter().filter_map(|range| range.parse().ok()).collect();
    OutboundPolicy { loopback: outbound.loopback, private: outbound.private, allow, plain_http: outbound.plain_http }
}

/// The client of all outbound calls.
pub fn guard(config: &Config) -> Result<Guard, Error> {
    Guard::new(policy(&config.outbound), config.outbound.connect_timeout).map_err(Error::internal)
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The secrets by reference, taken from the environment.
fn header_secrets(config: &Config) -> Result<Vec<HeaderSecret>, Error> {
    let one = |s: &OutboundSecret| {
        let value = std::env::var(&s.variable).ok().filter(|v| !v.is_empty()).ok_or_else(|| {
            let hint = format!("outbound.secrets {:?}: the variable {} is not set", s.name, s.variable);
            Error::new(Code::FailedPrecondition, hint)
        })?;
        Ok(HeaderSecret { name: s.name.clone(), below: s.below.clone(), value })
    };
    config.outbound.secrets.iter().map(one).collect()
}

/// Settings of the dispatcher by the configuration.
fn settings(config: &Config) -> Result<Settings, Error> {
    let d = &config.dispatch;
    let secrets = d.callback_secrets.iter().map(|text| Secret::parse(text)).collect::<Result<Vec<_>, _>>();
    let breaker = BreakerConfig {
        window_ms: ms(d.breaker_window),
        min_success: d.breaker_success,
        min_samples: d.breaker_samples,
        pause_ms: ms(d.breaker_pause),
        good_probes: d.breaker_probes,
    };
    Ok(Settings {
        engine: EngineConfig {
            breaker,
            poison_limit: d.deliveries_max,
            escalations: d.escalation.clone().into(),
            ..EngineConfig::default()
        },
        retention: Retention { keep_ms: ms(d.retention), keep_dead_ms: ms(d.retention_dead), most: d.retention_count as u64 },
        secrets: secrets.map_err(|e| Error::new(Code::FailedPrecondition, format!("dispatch.callback_secrets: {e}")))?,
        callback_tries: d.callback_tries,
        header_secrets: header_secrets(config)?,
        local: config.auth.tokens.is_empty(),
    })
}

/// What the dispatcher is put together from.
pub struct Around<'a> {
    /// Settings.
    pub config: &'a Config,
    /// Durable state.
    pub store: &'a Arc<Store>,
    /// Current View.
    pub views: &'a Arc<Views>,
    /// Read path.
    pub resolver: &'a Arc<Resolver>,
    /// Write path.
    pub ingest: &'a Arc<Ingest>,
    /// Time.
    pub clock: &'a Arc<dyn Clock>,
    /// Owner of all tasks.
    pub tasks: &'a Tasks,
}

/// Starts the dispatcher: from here on it takes up what the store holds.
pub async fn start(around: Around<'_>) -> Result<Dispatcher, Error> {
    let Around { config, store, views, resolver, ingest, clock, tasks } = around;
    let messages: Arc<dyn MessageStore> = Arc::new(SqliteMessages::new(store.clone()));
    let text_chars = config.decision_log.keep_text.then_some(config.server.limits.text_chars);
    let lessons = Lessons::start(ingest, text_chars, tasks);
    let mut sinks: Vec<Arc<dyn OutcomeSink>> =
        vec![Arc::new(LiveFeed::new(ingest.live().clone())), Arc::new(meter::Durations), Arc::new(lessons)];
    if let Some(collector) = &config.telemetry.otlp {
        sinks.push(Arc::new(Spans::start(collector, messages.clone(), guard(config)?, tasks)));
    }
    let ports = Ports {
        store: messages,
        next: Arc::new(Matched::new(resolver.clone(), views.clone())),
        guard: guard(config)?,
        grpc: Arc::new(WorkerCodec),
        clock: clock.clone(),
        sinks,
    };
    let dispatcher = Dispatcher::start(ports, tasks.clone(), settings(config)?).await?;
    let named = match config.telemetry.agent_labels {
        AgentLabels::WithoutTokens => config.auth.tokens.is_empty(),
        AgentLabels::Always => true,
        AgentLabels::Never => false,
    };
    meter::start(&dispatcher, views, config.dispatch.alarm_webhook.clone(), named, tasks);
    Ok(dispatcher)
}
