//! `reach replay --sweep model`: loads one model after the other, and asks the logged texts again on each.

use super::admin::ACTIVE_MODELS;
use super::commands::Bars;
use super::evaluation::store_folder;
use super::parts::models_config;
use super::replay::{History, bar, fleet};
use crate::cli::{Failure, Replay, say};
use crate::config::Config;
use crate::embed::EmbedError;
use crate::embed::cache::Cache;
use crate::embed::catalog::Catalog;
use crate::embed::models::{Models, ModelsConfig};
use crate::error::Error;
use crate::eval::again;
use crate::eval::models::spec::Spec;
use crate::eval::replay::{self, settings, tried};
use crate::eval::run::Bench;
use crate::route::confidence;
use crate::store::Peek;
use crate::types::Grant;
use crate::types::policy::Policy;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Entries that are looked at for who asks, so that heads are trained for the parts of the fleet that callers see.
const LOOKED_AT: usize = 2_000;

/// The models in use, as a specification: those of the last switch of a data folder, else those of the configuration.
fn in_use(config: &Config, settings: &ModelsConfig, folder: &Path) -> Result<String, Failure> {
    let switched = if folder.is_dir() { Peek::open(folder).and_then(|p| p.meta(ACTIVE_MODELS)).ok().flatten() } else { None };
    let arithmetic = if config.models.f32 { "@f32" } else { "" };
    let configured = || settings.names.iter().map(|n| format!("{n}{arithmetic}")).collect::<Vec<_>>().join("+");
    let spec = switched.filter(|s| !s.is_empty()).unwrap_or_else(configured);
    if spec.is_empty() {
        return Err(Failure::words("--sweep model: the configuration names no model to compare with; set models.zh or models.en"));
    }
    Ok(spec)
}

/// Models to try: those in use, then those that were named, else those that are installed.
fn names(config: &Config, settings: &ModelsConfig, command: &Replay, folder: &Path) -> Result<Vec<Spec>, Failure> {
    let used = in_use(config, settings, folder)?;
    let mut all = vec![used.clone()];
    if command.models.is_empty() {
        let cache = Cache::new(&settings.dir);
        let beside: HashSet<&str> = used.split('+').map(|n| n.split(['@', ':']).next().unwrap_or(n)).collect();
        let others = Catalog::shipped().models.into_iter().map(|m| m.name).filter(|n| cache.holds(n) && !beside.contains(n.as_str()));
        all.extend(others);
        if all.len() == 1 {
            return Err(Failure::words(
                "--sweep model: only the models in use are installed; name others with --models A,B (`reach models list` shows the catalogue)",
            ));
        }
    }
    all.extend(command.models.iter().filter(|m| **m != used).cloned());
    all.iter().map(|m| m.parse::<Spec>().map_err(|e| Failure::words(format!("--models {m}: {e}")))).collect()
}

fn load(spec: &Spec, settings: &ModelsConfig, bars: &Bars) -> Result<Models, EmbedError> {
    let (arms, _) = spec.load(&settings.dir, settings.fetch.as_ref(), bars)?;
    Models::from_arms(arms, &settings.worker, settings.vector_cache_bytes)
}

/// The parts of the fleet that callers of the history see.
fn seen(history: &History) -> Result<Vec<Grant>, Error> {
    let mut grants = vec![Grant::All];
    for raw in history.entries()?.take(LOOKED_AT) {
        let namespaces = raw?.entry()?.logged.principal.namespaces;
        if !grants.contains(&namespaces) {
            grants.push(namespaces);
        }
    }
    Ok(grants)
}

/// Decides the history again by every model. `folder` is that of the registry.
pub(super) async fn tried(
    config: &Config,
    command: &Replay,
    history: &History,
    policy: &Policy,
    folder: &Path,
    wanted: &replay::Config,
) -> Result<tried::Tried, Failure> {
    let settings_of_models = models_config(config);
    let specs = names(config, &settings_of_models, command, folder)?;
    let mut manifests = fleet(command, folder)?;
    for manifest in &mut manifests {
        // who was away then stands in the log
        (manifest.ttl, manifest.health_check) = (None, None);
    }
    let grants = seen(history)?;
    let (place, _temporary) = store_folder(command.cache.as_deref())?;
    let most = command.limit.unwrap_or(usize::MAX);
    let holdout = if wanted.holdout > 0.0 { wanted.holdout } else { tried::HOLDOUT };
    let config = replay::Config { holdout, moves: 0, swept: Vec::new(), ..wanted.clone() };
    let bars = Bars::new();
    let (mut counted, mut left_out) = (Vec::<tried::Counted>::new(), 0);
    for (i, spec) in specs.iter().enumerate() {
        say(&format!("{}: loading", spec.name));
        let models = tokio::task::block_in_place(|| load(spec, &settings_of_models, &bars)).map_err(Error::from)?;
        let models = Arc::new(models);
        let fingerprints: Vec<String> = models.fingerprints().iter().map(ToString::to_string).collect();
        if counted.iter().any(|c| c.fingerprints == fingerprints) {
            say(&format!("{}: the same as one before, left out", spec.name));
            continue;
        }
        let calibrated = confidence::knows(models.arms().map(|(_, info)| info));
        // thresholds of the models in use are no start for others
        let from = if i == 0 && policy.holds_for(&fingerprints) { policy.clone() } else { tried::start(policy) };
        // each model has a store of its own, named after what it is, so that a kept one holds its vectors
        let store = place.join(format!("model-{}", slug(&spec.name)));
        let bench = Bench::untaught(models.clone(), manifests.clone(), from.clone(), &store).await?;
        bench.learn_for(grants.clone()).await?;
        let bar = bar(history.len().min(most as u64), "asking again");
        let all = settings::with_base(&from, settings::thresholds(&from));
        let entries = history.entries()?.take(most);
        let of = again::count(&bench, entries, &history.labels, all, &config, |n| bar.inc(n as u64)).await?;
        bar.finish_and_clear();
        models.stop();
        left_out = of.left_out;
        counted.push(tried::Counted { name: spec.name.clone(), fingerprints, calibrated, tally: of.tally });
    }
    bars.finish();
    Ok(tried::of(&counted, left_out, &config)?)
}

/// A name as a folder.
fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}
