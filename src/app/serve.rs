//! `reach up` and `reach serve`: start in order, run until told to stop, stop in order.
//!
//! Start: store → models → registry → delivery → doors → background work → (demo) → "ready", which means that everything registered can be found. Stop: doors → work under way → background work → store; whoever is
//! late is named.

use super::demo::Demo;
use super::parts::Parts;
use super::policies;
use super::probe::{ByGuard, HttpProbe};
use crate::api;
use crate::api::service::Service;
use crate::cli::{Exit, Failure, Out, Up};
use crate::clock::Clock;
use crate::config::Config;
use crate::error::{Code, Error};
use crate::ingest::Ingest;
use crate::store::Keep;
use crate::tasks::Stage;
use crate::telemetry;
use crate::telemetry::metrics::{Counter, Gauge, bounded, count_by, set};
use std::sync::Arc;
use std::time::Duration;

/// Pause between looks at readiness.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between looks at what the indexes need.
const UPKEEP: Duration = Duration::from_secs(5);
/// Such looks between two measurements of what approximate searches find: ten minutes.
const MEASURED: u64 = 120;

/// Runs a server.
pub async fn run(config: Config, up: &Up, out: &Out) -> Result<Exit, Failure> {
    telemetry::log::install(&config.telemetry.log, config.telemetry.json);
    refuse_open_address(&config)?;
    // a port in use is told before models are loaded
    api::check(&config.server).await?;
    let progress = super::commands::Bars::new();
    let mut parts = Parts::open(config, &progress).await?;
    progress.finish();
    for (model, ms) in &parts.embed_ms {
        tracing::info!(%model, ms_a_text = format!("{ms:.1}"), threads = parts.ingest.models().stats().worker.threads, "model loaded");
    }
    tracing::info!(
        agents = parts.loaded.agents,
        capabilities = parts.loaded.capabilities,
        pending = parts.loaded.pending,
        "registry loaded"
    );
    if !up.demo {
        let view = parts.views.load();
        for namespace in policies::idle_points(&view.policy, view.catalog.agents().map(|a| a.entry.key.namespace.as_str())) {
            tracing::warn!(namespace, "policy.points names a namespace of which no agent is registered; mistyped?");
        }
    }
    parts.deliver().await?;
    // announced before the doors open: until the demo fleet can be found, nothing is ready
    let demo = if up.demo { Some(Demo::read(&parts)?) } else { None };
    let service = parts.service();
    let doors = api::open(&service, &parts.config.server, &parts.tasks).await?;
    background(&parts);
    tracing::info!(grpc = %doors.grpc, http = %doors.http, "serving");
    crate::cli::say(&format!("gRPC on {}, HTTP on http://{}", doors.grpc, doors.http));
    if let Some(demo) = demo {
        demo.run(&parts, &service, &doors, out).await?;
    }
    if !up.exit {
        tokio::select! {
            () = wait_for_signal() => {}
            () = announce(&parts, &service, !up.demo) => {}
        }
        crate::cli::say("stopping");
    }
    for late in parts.close().await {
        tracing::warn!(task = late.name, count = late.count, "still running when the grace was over");
    }
    Ok(Exit::Ok)
}

/// Waits until what the registry held and what was announced can be found by meaning, and a query is really routed; says how much is left.
pub(super) async fn ready(parts: &Parts, service: &Service) -> Result<(), Error> {
    let mut told = usize::MAX;
    loop {
        let left = parts.ingest.left();
        if left > 0 && left < told {
            crate::cli::say(&format!("warming: {left} capabilities are still being embedded"));
            told = left;
        }
        match service.ready().await {
            Ok(()) if left == 0 => return Ok(()),
            Ok(()) => {}
            Err(e) if e.code == Code::Warming => {}
            Err(e) => return Err(e),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Says that the service is ready once it is, then waits for ever.
async fn announce(parts: &Parts, service: &Service, wanted: bool) {
    if wanted {
        match ready(parts, service).await {
            Ok(()) => {
                let view = parts.views.load();
                let (agents, capabilities) = (view.catalog.agents().count(), view.catalog.capability_count());
                crate::cli::say(&format!("ready: {agents} agents with {capabilities} capabilities can be found"));
            }
            Err(error) => tracing::warn!(%error, "the service is not ready"),
        }
    }
    std::future::pending::<()>().await;
}

fn refuse_open_address(config: &Config) -> Result<(), Error> {
    let server = &config.server;
    for (name, addr) in [("server.grpc_addr", server.grpc_addr), ("server.http_addr", server.http_addr)] {
        if !addr.ip().is_loopback() && !server.insecure_bind {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!(
                    "{name} = {addr} can be reached from other machines, without encryption; bind a loopback address, or say --insecure-bind"
                ),
            ));
        }
    }
    Ok(())
}

/// Live state, probes, pending vectors, gauges.
fn background(parts: &Parts) {
    let tasks = &parts.tasks;
    let live = &parts.config.live;
    let (ingest, every, stop) = (parts.ingest.clone(), live.refresh, tasks.stop(Stage::Work));
    drop(tasks.spawn(Stage::Work, "live", async move {
        let mut tick = tokio::time::interval(every);
        loop {
            tokio::select! { () = stop.cancelled() => return, _ = tick.tick() => ingest.refresh_live() }
        }
    }));
    if let Some(dispatcher) = &parts.dispatcher {
        parts.ingest.judge_with(Arc::new(ByGuard(dispatcher.guard().clone())));
        let probe = HttpProbe { guard: dispatcher.guard().clone(), timeout: live.probe_timeout };
        let (ingest, stop) = (parts.ingest.clone(), tasks.stop(Stage::Work));
        let every = live.probe_interval.min(Duration::from_secs(5));
        drop(tasks.spawn(Stage::Work, "probe", async move {
            let mut tick = tokio::time::interval(every);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = tick.tick() => {
                        let round = ingest.probe_due(&probe).await;
                        count_by(Counter::Probes, &["failed"], round.failed as u64);
                        count_by(Counter::Probes, &["ok"], (round.asked - round.failed) as u64);
                    }
                }
            }
        }));
    }
    let (ingest, stop) = (parts.ingest.clone(), tasks.stop(Stage::Work));
    drop(tasks.spawn(Stage::Work, "fill", async move {
        loop {
            let left = tokio::select! { () = stop.cancelled() => return, left = ingest.fill() => left };
            match left {
                Ok(0) => return,
                Ok(left) => tracing::info!(left, "embedding what the registry holds"),
                Err(error) => {
                    tracing::warn!(%error, "embedding what the registry holds failed; trying again");
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            }
        }
    }));
    let (ingest, stop) = (parts.ingest.clone(), tasks.stop(Stage::Work));
    drop(tasks.spawn(Stage::Work, "upkeep", async move {
        tokio::select! { () = stop.cancelled() => {}, () = keep_up(&ingest) => {} }
    }));
    let (ingest, stop, settle) = (parts.ingest.clone(), tasks.stop(Stage::Work), parts.config.feedback.settle);
    drop(tasks.spawn(Stage::Work, "learning", async move {
        let stopping = stop.clone();
        let pause: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || {
            std::thread::sleep(Duration::from_millis(1));
            !stopping.is_cancelled()
        });
        loop {
            // several outcomes at once are one lesson
            tokio::select! { () = stop.cancelled() => return, () = ingest.lesson_due() => {} }
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(settle) => {} }
            match ingest.learn(pause.clone()).await {
                Ok(lesson) => tracing::info!(?lesson, "learned"),
                Err(error) => tracing::warn!(%error, "learning failed; it goes on with the next outcome"),
            }
        }
    }));
    let (store, ingest, stop, settings) =
        (parts.store.clone(), parts.ingest.clone(), tasks.stop(Stage::Work), parts.config.feedback.clone());
    drop(tasks.spawn(Stage::Work, "outcomes", async move {
        let keep = Keep { age_ms: i64::try_from(settings.max_age.as_millis()).unwrap_or(i64::MAX), records: settings.max_records };
        let mut tick = tokio::time::interval(Duration::from_secs(300));
        loop {
            tokio::select! { () = stop.cancelled() => return, _ = tick.tick() => {} }
            match store.prune_outcomes(keep, crate::clock::SystemClock.now_ms()).await {
                Ok(0) => {}
                Ok(gone) => {
                    tracing::info!(gone, "outcomes beyond their age or number were forgotten");
                    if let Err(error) = ingest.recall_history().await {
                        tracing::warn!(%error, "the history was not rebuilt");
                    }
                }
                Err(error) => tracing::warn!(%error, "outcomes were not pruned"),
            }
        }
    }));
    let (views, stop) = (parts.views.clone(), tasks.stop(Stage::Work));
    drop(tasks.spawn(Stage::Work, "gauges", async move {
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        let mut before = views.load().models.stats();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    let view = views.load();
                    for status in ["live", "static", "draining", "expired", "unreachable", "blocked_url"] {
                        let n = view.live.iter().filter(|(_, l)| l.status() == status).count();
                        set(Gauge::Agents, &[status], n as f64);
                    }
                    set(Gauge::Capabilities, &[], view.catalog.capability_count() as f64);
                    set(Gauge::Pending, &[], view.pending as f64);
                    let now = view.models.stats();
                    set(Gauge::EmbedQueue, &[], now.worker.queued as f64);
                    count_by(Counter::EmbeddedTexts, &["all", "all"], now.worker.embedded.saturating_sub(before.worker.embedded));
                    count_by(Counter::VectorCache, &["query", "hit"], now.vectors.hits.saturating_sub(before.vectors.hits));
                    count_by(Counter::VectorCache, &["query", "miss"], now.vectors.misses.saturating_sub(before.vectors.misses));
                    count_by(Counter::Shed, &["encoder"], now.worker.shed.saturating_sub(before.worker.shed));
                    before = now;
                }
            }
        }
    }));
}

/// Tidies the indexes beside the service, and measures now and then what approximate searches find.
async fn keep_up(ingest: &Ingest) {
    for round in 0u64.. {
        tokio::time::sleep(UPKEEP).await;
        loop {
            match ingest.upkeep().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "upkeep of the index failed; trying again");
                    break;
                }
            }
        }
        for (model, slots) in ingest.index_size() {
            set(Gauge::IndexVectors, &[bounded(&model)], slots as f64);
        }
        if round.is_multiple_of(MEASURED) {
            match ingest.measured_recall().await {
                Ok(all) => all.iter().for_each(|(model, recall)| set(Gauge::IndexRecall, &[bounded(model)], *recall)),
                Err(error) => tracing::warn!(%error, "the recall of the index could not be measured"),
            }
        }
    }
}

#[cfg(unix)]
async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn wait_for_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
