//! `reach bench`: loads what is measured, runs it, prints the figures with the machine they come from.

mod doors;
mod fleet;
mod log;
mod resolve;

use super::commands::Bars;
use super::parts::{load_models, models_config};
use crate::bench::figures::Quantiles;
use crate::bench::machine::{Machine, rss_mib};
use crate::bench::{corpus, embed, scale};
use crate::cli::{Arithmetic, BenchCommand, BenchEmbed, BenchScale, Exit, Failure, Out, Speech, say};
use crate::config::Config;
use crate::embed::fetch::Progress;
use crate::embed::models::{ArmId, Models, ModelsConfig, Precision};
use crate::embed::{Embed, EmbedError};
use crate::error::Error;
use crate::index::dense::DenseConfig;
use crate::index::keyword::LexConfig;
use crate::types::Lang;
use serde::Serialize;
use std::sync::Arc;

/// Runs a measurement.
pub async fn run(config: Config, command: &BenchCommand, out: &Out) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Embed(args) => encoder(&config, args, out),
        BenchCommand::Resolve(args) => resolve::run(config, args, out).await,
        BenchCommand::Scale(args) => growth(&config, args, out).await,
        BenchCommand::Log(args) => log::run(config, args).await,
    }
}

fn lang(speech: Speech) -> Lang {
    match speech {
        Speech::Zh => Lang::Zh,
        Speech::En => Lang::En,
    }
}

/// Prints figures as one line of JSON, or as indented JSON for people.
fn print<T: Serialize>(out: &Out, figures: &T) -> Result<(), Failure> {
    if out.json { out.json(figures) } else { out.line(&serde_json::to_string_pretty(figures).map_err(Error::internal)?) }
}

#[derive(Serialize)]
struct EmbedReport {
    bench: &'static str,
    model: String,
    lang: &'static str,
    precision: &'static str,
    threads: usize,
    texts: usize,
    texts_from: String,
    tokens_a_text: f64,
    /// Best setting.
    texts_per_s: f64,
    /// One text alone.
    #[serde(flatten)]
    alone: Quantiles,
    settings: Vec<embed::Setting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<embed::Accuracy>,
    load_ms: f64,
    rss_mib: Option<f64>,
    #[serde(flatten)]
    machine: Machine,
}

/// Loads the model of one language.
fn one_model(config: &Config, lang: Lang, precision: Precision, progress: &dyn Progress) -> Result<Models, EmbedError> {
    let settings = models_config(config);
    let name = if lang == Lang::Zh { &config.models.zh } else { &config.models.en };
    let names = name.iter().cloned().collect();
    Models::load(&ModelsConfig { names, precision, ..settings }, progress)
}

fn first(models: &Models) -> Result<Arc<dyn Embed>, Error> {
    models.encoder(ArmId(0)).ok_or_else(|| Error::internal("no model is loaded"))
}

fn encoder(config: &Config, args: &BenchEmbed, out: &Out) -> Result<Exit, Failure> {
    use crate::clock::{Clock, SystemClock};
    let bars = Bars::new();
    let spoken = lang(args.lang);
    let precision = match args.precision {
        Arithmetic::Int8 => Precision::Int8,
        Arithmetic::F32 => Precision::Fp32,
    };
    let begin = SystemClock.instant();
    let models = one_model(config, spoken, precision, &bars).map_err(Error::from)?;
    let load_ms = SystemClock.instant().duration_since(begin).as_secs_f64() * 1e3;
    bars.finish();
    let model = first(&models)?;
    let (texts, texts_from) = corpus::texts(spoken, args.texts.as_deref())?;
    let machine = Machine::here();
    let n = machine.cores;
    let mut ways = vec![(1, 1), (1, 16), (n, 1), (n, 4), (n, 8), (n, 16)];
    ways.dedup();
    model.embed(&["warm up"]).map_err(Error::from)?;
    let settings = embed::settings(&*model, &texts, &ways, args.seconds, args.rounds).map_err(Error::from)?;
    let accuracy = if args.accuracy > 0 {
        let reference = one_model(config, spoken, Precision::Fp32, &bars).map_err(Error::from)?;
        let some = texts.get(..args.accuracy.min(texts.len())).unwrap_or_default();
        Some(embed::accuracy(&*model, &*first(&reference)?, some).map_err(Error::from)?)
    } else {
        None
    };
    let report = EmbedReport {
        bench: "embed",
        model: model.info().name.to_string(),
        lang: spoken.as_str(),
        precision: model.info().precision,
        threads: n,
        texts: texts.len(),
        texts_from,
        tokens_a_text: embed::mean_tokens(&*model, &texts).map_err(Error::from)?,
        texts_per_s: settings.iter().filter(|s| s.threads == n).map(|s| s.texts_per_s).fold(0.0, f64::max),
        alone: settings.first().map(|s| s.latency).unwrap_or_default(),
        settings,
        accuracy,
        load_ms: load_ms.round(),
        rss_mib: rss_mib(None),
        machine,
    };
    print(out, &report)?;
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct ScaleReport {
    bench: &'static str,
    model: String,
    /// Capabilities whose vectors were embedded; the others are made from them.
    base: usize,
    requests: usize,
    compared: usize,
    seed: u64,
    sizes: Vec<scale::Size>,
    /// Route at the largest size against the smallest, medians.
    route_growth: f64,
    #[serde(flatten)]
    machine: Machine,
}

async fn growth(config: &Config, args: &BenchScale, out: &Out) -> Result<Exit, Failure> {
    let bars = Bars::new();
    let spoken = lang(args.lang);
    let mut settings = models_config(config);
    settings.names = if spoken == Lang::Zh { config.models.zh.iter() } else { config.models.en.iter() }.cloned().collect();
    let (models, _) = load_models(settings, &bars).await?;
    bars.finish();
    crate::index::text::warm();
    let base = fleet::base(&models, config, args, spoken).await?;
    say(&format!("{} base capabilities, {} texts embedded, {} requests", base.manifests.len(), base.vectors.len(), base.requests.len()));
    let mut sizes = Vec::new();
    for n in &args.capabilities {
        let size = scale::run(&base, &DenseConfig::default(), &LexConfig::default(), *n, args.compared, args.seed)?;
        say(&format!(
            "{n} capabilities: recall p99 {} ms, route p50 {} ms, recall@10 {}, {} MiB",
            size.recall.p99_ms, size.route.p50_ms, size.recall_at_10, size.rss_mib
        ));
        sizes.push(size);
    }
    let p50 = |s: Option<&scale::Size>| s.map_or(0.0, |s| s.route.p50_ms);
    let route_growth = p50(sizes.last()) / p50(sizes.first()).max(1e-9);
    let report = ScaleReport {
        bench: "scale",
        model: base.model.name.to_string(),
        base: base.manifests.len(),
        requests: base.requests.len(),
        compared: args.compared,
        seed: args.seed,
        sizes,
        route_growth: crate::bench::figures::round(route_growth),
        machine: Machine::here(),
    };
    print(out, &report)?;
    Ok(Exit::Ok)
}
