//! `reach bench log`: writes a made history as an export of the decision log with its labels, or into a data folder with its outcomes.

use crate::app::commands::{Bars, exported};
use crate::app::evaluation::{set, store_folder};
use crate::app::parts::{load_models, models_config};
use crate::app::replay::bar;
use crate::cli::{BenchLog, Exit, Failure, say};
use crate::config::Config;
use crate::error::Error;
use crate::eval::past::{Made, Past};
use crate::eval::run::Bench;
use crate::store::{Durability, Store};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Decisions of one transaction.
const BATCH: usize = 256;

fn file(path: Option<&PathBuf>) -> Result<Option<BufWriter<File>>, Failure> {
    let open = |path: &PathBuf| File::create(path).map(BufWriter::new).map_err(|e| Failure::words(format!("{}: {e}", path.display())));
    path.map(open).transpose()
}

async fn keep(store: &Store, batch: &mut Vec<Made>) -> Result<(), Error> {
    let (records, outcomes) = batch.drain(..).map(|m| (m.record, m.outcome)).unzip();
    store.log_decisions(records).await?;
    store.put_outcomes(outcomes).await?;
    Ok(())
}

fn open(path: &Path) -> Result<Store, Error> {
    Ok(Store::open(path, Durability::Process)?)
}

/// Makes the history.
pub async fn run(config: Config, args: &BenchLog) -> Result<Exit, Failure> {
    if args.out.is_none() && args.store.is_none() {
        return Err(Failure::words("say where the history goes: --out FILE (with --labels FILE), or --store DIR"));
    }
    let (manifests, queries) = set(&args.set)?;
    let bars = Bars::new();
    let (models, _) = load_models(models_config(&config), &bars).await?;
    bars.finish();
    let (folder, _temporary) = store_folder(None)?;
    let bench = Bench::build(models, manifests, config.policy.clone(), &folder).await?;
    let store = args.store.as_deref().map(open).transpose()?;
    let (mut log, mut labels) = (file(args.out.as_ref())?, file(args.labels.as_ref())?);
    let mut past = Past::new(&bench, &queries, config.policy.clone(), args.set.seed, args.decisions);
    let bar = bar(args.decisions as u64, "deciding");
    let mut batch = Vec::with_capacity(BATCH);
    for _ in 0..args.decisions {
        let made = past.next().await?;
        if let Some(file) = &mut log {
            writeln!(file, "{}", exported(&made.record)).map_err(Failure::Io)?;
        }
        if let Some(file) = &mut labels {
            writeln!(file, "{}", json!({"decision_id": made.record.id, "expected": made.query.expected})).map_err(Failure::Io)?;
        }
        if let Some(store) = &store {
            batch.push(made);
            if batch.len() == BATCH {
                keep(store, &mut batch).await?;
            }
        }
        bar.inc(1);
    }
    if let Some(store) = &store {
        keep(store, &mut batch).await?;
    }
    for mut file in [log, labels].into_iter().flatten() {
        file.flush().map_err(Failure::Io)?;
    }
    bar.finish_and_clear();
    say(&format!("{} decisions over {} queries", args.decisions, queries.len()));
    Ok(Exit::Ok)
}
