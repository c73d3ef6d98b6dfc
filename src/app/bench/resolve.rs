//! `reach bench resolve`: whole answers through each door under load, with the pure speed of the encoder measured before and after.

use super::doors::{Caller, Encoded, Server, library};
use super::fleet::{self, Folder};
use super::print;
use crate::app::parts::{load_models, models_config};
use crate::bench::figures::round;
use crate::bench::load::{self, Outcome, Pace};
use crate::bench::machine::{Machine, cpu_seconds, rss_mib};
use crate::bench::{corpus, embed};
use crate::cli::{BenchResolve, DoorKind, Exit, Failure, Out, say};
use crate::config::Config;
use crate::embed::models::{ArmId, Models};
use crate::error::Error;
use crate::types::Lang;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    mode: &'static str,
    capabilities: usize,
    /// Texts embedded while the fleet was registered, and how long that took.
    registered_texts: usize,
    registration_s: f64,
    registration_texts_per_s: f64,
    /// Share of the time of all cores that the encoders worked meanwhile: 1 = registering costs nothing but embedding.
    registration_encoder_share: f64,
    /// The encoder alone on the same texts and cores, median of before and after.
    embedding_texts_per_s: f64,
    doors: Vec<DoorReport>,
    #[serde(flatten)]
    machine: Machine,
}

#[derive(Serialize)]
struct DoorReport {
    door: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
    /// What was reached with calls under way, when an open loop was asked for as a multiple of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_per_s: Option<f64>,
    /// Answers a second against the texts a second of the encoder alone.
    of_embedding: f64,
    /// Texts embedded for one answer: the request itself, its parts where it asks for several things or says what it does not want, and once more
    /// by the other model where part of the fleet is written only in its language.
    texts_per_answer: Option<f64>,
    /// Share of the time of all cores that the encoders worked.
    encoder_share: Option<f64>,
    /// Cores kept busy by the server, and by this program that asks.
    server_cores: Option<f64>,
    client_cores: Option<f64>,
    /// Answers a second of server CPU.
    per_server_core_s: Option<f64>,
    server_rss_mib: Option<f64>,
    /// From the start of the server's process until it served.
    ready_s: Option<f64>,
}

/// Texts of both languages in turns.
fn requests() -> Result<Vec<Arc<str>>, Error> {
    let (zh, en) = (corpus::texts(Lang::Zh, None)?.0, corpus::texts(Lang::En, None)?.0);
    Ok(zh.into_iter().zip(en).flat_map(|(a, b)| [Arc::from(a), Arc::from(b)]).collect())
}

/// Speed of the encoders on texts of both languages in turns, all cores.
async fn pure(models: &Arc<Models>, seconds: f64) -> Result<f64, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut each = Vec::new();
    for (lang, arm) in [(Lang::Zh, ArmId(0)), (Lang::En, ArmId(1))] {
        let Some(model) = models.encoder(arm) else { continue };
        let texts = corpus::texts(lang, None)?.0;
        let ways = [(cores, 1), (cores, 8)];
        let found = tokio::task::spawn_blocking(move || embed::settings(&*model, &texts, &ways, seconds / 4.0, 1))
            .await
            .map_err(Error::internal)??;
        each.push(found.iter().map(|s| s.texts_per_s).fold(0.0, f64::max));
    }
    // half of the texts in each language: the times add up
    Ok(each.len() as f64 / each.iter().map(|rate| 1.0 / rate.max(1e-9)).sum::<f64>())
}

/// Runs it.
pub async fn run(config: Config, args: &BenchResolve, out: &Out) -> Result<Exit, Failure> {
    let folder = Folder::new()?;
    let mut config = config;
    config.data.dir = folder.0.clone();
    let mode = if args.exact {
        "exact"
    } else if args.cached {
        "cached"
    } else {
        "distinct"
    };
    if mode == "distinct" {
        config.models.query_cache_bytes = 0;
    }
    let filled = fleet::fill(config.clone(), &args.manifests, args.capabilities).await?;
    say(&format!("{} capabilities, {} texts embedded in {:.1} s", filled.capabilities, filled.embedded, filled.seconds));
    let texts: Arc<[Arc<str>]> = match mode {
        "exact" => filled.names.iter().map(|n| Arc::from(n.as_str())).collect(),
        "cached" => requests()?.into_iter().take(200).collect(),
        _ => requests()?.into(),
    };
    let (models, _) = load_models(models_config(&config), &crate::embed::fetch::Quiet).await?;
    let before = pure(&models, args.seconds).await?;
    let mut doors = Vec::new();
    for door in &args.doors {
        doors.push(one(*door, &config, args, &texts).await?);
    }
    let after = pure(&models, args.seconds).await?;
    let embedding = (before + after) / 2.0;
    for door in &mut doors {
        door.of_embedding = round(door.outcome.per_s / embedding.max(1e-9));
    }
    let report = Report {
        bench: "resolve",
        mode,
        capabilities: filled.capabilities,
        registered_texts: filled.embedded,
        registration_s: round(filled.seconds),
        registration_encoder_share: round(filled.encoder_share),
        registration_texts_per_s: round(filled.embedded as f64 / filled.seconds.max(1e-9)),
        embedding_texts_per_s: round(embedding),
        doors,
        machine: Machine::here(),
    };
    print(out, &report)?;
    Ok(Exit::Ok)
}

async fn one(door: DoorKind, config: &Config, args: &BenchResolve, texts: &Arc<[Arc<str>]>) -> Result<DoorReport, Error> {
    match door {
        DoorKind::Lib => {
            let parts = library(config.clone()).await?;
            let report = measured("lib", Caller::Lib(parts.resolver.clone(), parts.views.load().models.clone()), None, args, texts).await;
            parts.close().await;
            report
        }
        DoorKind::Grpc | DoorKind::Http => {
            let settings = [format!("models.query_cache_bytes={}", config.models.query_cache_bytes)];
            let server = Server::start(&config.data.dir, &settings).await?;
            let name = if door == DoorKind::Grpc { "grpc" } else { "http" };
            let caller = Caller::of(door, &server).await?;
            let report = measured(name, caller, Some(&server), args, texts).await;
            server.stop().await?;
            report
        }
    }
}

async fn measured(
    door: &'static str,
    caller: Caller,
    server: Option<&Server>,
    args: &BenchResolve,
    texts: &Arc<[Arc<str>]>,
) -> Result<DoorReport, Error> {
    let call = |number: u64| {
        let (caller, text) = (caller.clone(), texts[number as usize % texts.len()].clone());
        caller.ask(number, text)
    };
    // every text once, so that what is kept is kept and every page is there
    let warm: Vec<u64> = (0..texts.len().min(400) as u64).collect();
    for chunk in warm.chunks(16) {
        futures::future::join_all(chunk.iter().map(|n| call(*n))).await;
    }
    let most = Pace::Max(args.in_flight);
    let capacity = match args.load {
        Some(_) => Some(load::run(most, args.seconds, call).await.per_s),
        None => None,
    };
    let pace = match (args.rate, args.load, capacity) {
        (Some(rate), _, _) => Pace::Rate(rate),
        (None, Some(times), Some(capacity)) => Pace::Rate(times * capacity),
        (None, _, _) => most,
    };
    let pid = server.and_then(Server::pid);
    let cpu = || (pid.and_then(|p| cpu_seconds(Some(p))), cpu_seconds(None));
    let encoded = async || match (&caller, server) {
        (Caller::Lib(_, models), _) => Some(Encoded::by(models)),
        (_, Some(server)) => server.encoded().await,
        (_, None) => None,
    };
    let (begin, encoded_before) = (cpu(), encoded().await);
    let outcome = load::run(pace, args.seconds, call).await;
    let end = cpu();
    let work = encoded().await.zip(encoded_before).map(|(now, before)| now.since(before));
    let used = |a: Option<f64>, b: Option<f64>| Some(b? - a?);
    let (of_server, of_client) = (used(begin.0, end.0), used(begin.1, end.1));
    let per = |cpu: Option<f64>| cpu.map(|c| round(c / outcome.seconds.max(1e-9)));
    Ok(DoorReport {
        door,
        capacity_per_s: capacity,
        of_embedding: 0.0,
        texts_per_answer: work.filter(|_| outcome.done > 0).map(|w| round(w.texts / outcome.done as f64)),
        encoder_share: work.map(|w| round(w.share(outcome.seconds))),
        server_cores: per(of_server),
        client_cores: per(of_client),
        per_server_core_s: of_server.filter(|c| *c > 0.0).map(|c| round(outcome.done as f64 / c)),
        server_rss_mib: pid.and_then(|p| rss_mib(Some(p))).map(f64::round),
        ready_s: server.map(|s| round(s.ready_s)),
        outcome,
    })
}
