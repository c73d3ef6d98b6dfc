//! `reach eval models`: loads one model after the other, asks all of them the same, prints what came out.

use super::commands::Bars;
use super::evaluation::{can_hold, set, store_folder};
use super::parts::models_config;
use super::replay::{aim, bar};
use crate::cli::{EvalModels, Exit, Failure, Out, say};
use crate::config::{Config, files::write_atomic};
use crate::embed::EmbedError;
use crate::embed::models::Models;
use crate::error::Error;
use crate::eval::models::spec::{self, Spec};
use crate::eval::models::speed::{self, Speed};
use crate::eval::models::{self, Task, page, table, texts};
use std::sync::Arc;

/// Loads a specification and measures it alone. Blocks.
fn load(spec: &Spec, config: &Config, bars: &Bars, sample: &[Arc<str>]) -> Result<(Models, Speed), EmbedError> {
    let settings = models_config(config);
    let before = speed::resident();
    let (arms, weights_bytes) = spec.load(&settings.dir, settings.fetch.as_ref(), bars)?;
    // vectors from elsewhere have no speed
    let runs = arms.iter().all(|a| a.info().precision != "precomputed");
    let one_text_ms = if runs { speed::one_text(&arms, sample)? } else { 0.0 };
    let memory_bytes = speed::resident().saturating_sub(before);
    Ok((spec::models(arms)?, Speed { one_text_ms, memory_bytes, weights_bytes, ..Speed::default() }))
}

/// Runs a comparison.
pub async fn run(config: Config, args: &EvalModels, out: &Out) -> Result<Exit, Failure> {
    let specs: Vec<Spec> = args
        .models
        .iter()
        .map(|m| m.parse::<Spec>().map_err(|e| Failure::words(format!("--models {m}: {e}"))))
        .collect::<Result<_, _>>()?;
    can_hold(args.html.as_ref())?;
    can_hold(args.texts.as_ref())?;
    let (manifests, queries) = set(&args.set)?;
    let task = Task { manifests, queries, aim: aim(args.aim.as_ref())?, policy: config.policy.clone(), seed: args.set.seed };
    let (folder, _temporary) = store_folder(args.data.as_deref())?;
    if let Some(path) = &args.texts {
        let needed = texts::needed(&task, &folder.join("texts")).await?;
        let lines: Vec<String> = needed.iter().map(|t| serde_json::to_string(t).unwrap_or_default()).collect();
        write_atomic(path, format!("{}\n", lines.join("\n")).as_bytes()).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
        say(&format!("{} texts", needed.len()));
        return Ok(Exit::Ok);
    }
    let sample: Vec<Arc<str>> = task.queries.iter().map(|q| Arc::from(q.query.as_str())).collect();
    let bars = Bars::new();
    let (mut all, mut capabilities) = (Vec::new(), 0);
    for (i, spec) in specs.iter().enumerate() {
        say(&format!("{}: loading", spec.name));
        let (models, mut speed) = tokio::task::block_in_place(|| load(spec, &config, &bars, &sample)).map_err(Error::from)?;
        let models = Arc::new(models);
        if speed.one_text_ms > 0.0 {
            speed.texts_a_second = speed::together(&models, &sample).await.map_err(Error::from)?;
        }
        let bar = bar(task.queries.len() as u64, "asking");
        // each model has a store of its own: vectors are kept by fingerprint, and two arms of one name never meet
        let (of, n) = models::measure(&task, &spec.name, models.clone(), speed, &folder.join(format!("model-{i}")), || bar.inc(1)).await?;
        bar.finish_and_clear();
        models.stop();
        capabilities = n;
        all.push(of);
    }
    bars.finish();
    let report = models::report(&task, capabilities, all);
    if let Some(path) = &args.html {
        write_atomic(path, page::html(&report).as_bytes()).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
    }
    if out.json {
        out.json(&report)?
    } else {
        out.line(&table::text(&report))?
    }
    Ok(Exit::Ok)
}
