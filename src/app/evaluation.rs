//! `reach eval run`: loads the models, registers a set's manifests in a store of its own, asks its queries, prints the figures.

use super::commands::Bars;
use super::parts::{load_models, models_config};
use crate::cli::{EvalCommand, EvalGaming, EvalHistory, EvalSet, Exit, Failure, Out, say};
use crate::config::Config;
use crate::error::Error;
use crate::eval::queries::Labelled;
use crate::eval::{dump, gaming, history, outcomes, queries, run};
use crate::ingest::files;
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{Long, Rules};
use crate::types::policy::Policy;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Runs an evaluation.
pub async fn run(config: Config, command: &EvalCommand, out: &Out) -> Result<Exit, Failure> {
    let args = match command {
        EvalCommand::Run(args) => args,
        EvalCommand::Models(args) => return super::compare::run(config, args, out).await,
        EvalCommand::Gaming(args) => return self::gaming(config, args, out).await,
        EvalCommand::History(args) => return self::history(config, args, out).await,
    };
    can_hold(args.features.as_ref())?;
    let (manifests, labelled) = set(&args.set)?;
    let lessons = match &args.outcomes {
        Some(path) => {
            let split = args.outcomes_split.as_deref();
            Some(outcomes::chosen(outcomes::read(path)?, split, args.per_capability, args.set.seed)?)
        }
        None => None,
    };
    let bars = Bars::new();
    let (models, _) = load_models(models_config(&config), &bars).await?;
    bars.finish();
    // vectors are kept beside the models, so that a second run embeds no fleet again
    let (folder, _temporary) = store_folder(args.data.as_deref())?;
    let mut bench = run::Bench::build(models.clone(), manifests, config.policy.clone(), &folder).await?;
    for fault in run::warnings(&bench).iter().take(3) {
        say(&format!("warning: {fault}"));
    }
    if !bench.batch.warnings.is_empty() {
        say(&format!("warning: {} schemas are not valid JSON Schema and are kept as words", bench.batch.warnings.len()));
    }
    for (agent, error) in bench.batch.refused.iter().take(5) {
        say(&format!("warning: {agent} is left out: {error}"));
    }
    say(&format!(
        "{} capabilities of {} agents, {} texts embedded; {} queries",
        bench.batch.capabilities,
        bench.batch.agents,
        bench.batch.embedded,
        labelled.len()
    ));
    if let Some(lessons) = lessons {
        bench.teach(lessons).await?;
        let taught = &bench.taught;
        say(&format!(
            "{} outcomes learned of {} capabilities; {} contradicted, {} unknown",
            taught.outcomes, taught.classes, taught.doubted, taught.unknown
        ));
    }
    let bar = indicatif::ProgressBar::new(labelled.len() as u64);
    let mut features = match &args.features {
        Some(path) => {
            let mut file =
                std::io::BufWriter::new(std::fs::File::create(path).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?);
            writeln!(file, "{}", dump::head()).map_err(Failure::Io)?;
            Some(file)
        }
        None => None,
    };
    let settings = run::RunConfig { manifests: Vec::new(), queries: labelled, seed: args.set.seed, policy: config.policy.clone(), k: 5 };
    let mut failed: Option<std::io::Error> = None;
    let report = run::run(&bench, &models, &settings, |query, asked| {
        bar.inc(1);
        if let Some(file) = &mut features
            && let Err(e) = writeln!(file, "{}", dump::line(query, asked))
        {
            failed.get_or_insert(e);
        }
    })
    .await?;
    bar.finish_and_clear();
    if let Some(mut file) = features {
        file.flush().map_err(Failure::Io)?;
    }
    if let Some(e) = failed {
        return Err(Failure::Io(e));
    }
    if out.json {
        out.json(&report)?;
    } else {
        out.line(&serde_json::to_string_pretty(&report).map_err(Error::internal)?)?;
    }
    Ok(Exit::Ok)
}

/// Refuses a file whose folder is not there before anything is computed, as `log export --out` does.
pub(super) fn can_hold(path: Option<&std::path::PathBuf>) -> Result<(), Failure> {
    let folder = path.and_then(|p| Some((p, p.parent().filter(|f| !f.as_os_str().is_empty() && !f.is_dir())?)));
    folder.map_or(Ok(()), |(path, folder)| Err(Failure::words(format!("{}: there is no folder {}", path.display(), folder.display()))))
}

/// The fleet to be evaluated; what is wrong with its manifests is told, and a fleet of none is a fault.
fn fleet(path: &Path) -> Result<Vec<Manifest>, Failure> {
    let read = files::read(path, &Rules { long: Long::Cut })?;
    if !read.faults.is_empty() {
        for fault in read.faults.iter().take(20) {
            say(&format!("warning: {fault}"));
        }
        say(&format!("warning: {} faults in the manifests; those capabilities are left out", read.faults.len()));
    }
    if read.manifests.is_empty() {
        return Err(Error::invalid(read.faults).into());
    }
    Ok(read.manifests)
}

/// The fleet, and the queries that it is asked.
pub(super) fn set(args: &EvalSet) -> Result<(Vec<Manifest>, Vec<Labelled>), Failure> {
    if args.limit == Some(0) {
        return Err(Failure::words("--limit 0: nothing would be asked; write 1 or more"));
    }
    let queries = queries::sample(queries::read(&args.queries, args.split.as_deref())?, args.limit, args.seed);
    let manifests = fleet(&args.manifests)?;
    if let Some(told) = queries::strangers(&queries, &manifests) {
        say(&format!("warning: {told}"));
    }
    Ok((manifests, queries))
}

/// How much an attacker wins, guards off and on.
async fn gaming(config: Config, args: &EvalGaming, out: &Out) -> Result<Exit, Failure> {
    let (manifests, asked) = set(&args.set)?;
    let bars = Bars::new();
    let (models, _) = load_models(models_config(&config), &bars).await?;
    bars.finish();
    let (folder, _temporary) = store_folder(args.data.as_deref())?;
    let mut by_owner: BTreeMap<String, Vec<Manifest>> = BTreeMap::new();
    for manifest in &manifests {
        let seen_by_all = Manifest { visible_to: vec![Arc::from("*")], ..manifest.clone() };
        by_owner.entry(manifest.namespace.to_string()).or_default().push(seen_by_all);
    }
    let mut benches = Vec::new();
    for guards in [false, true] {
        let policy = Policy { guards, ..config.policy.clone() };
        let place = folder.join(if guards { "on" } else { "off" });
        let mut bench = run::Bench::build(models.clone(), Vec::new(), policy, &place).await?;
        for (owner, manifests) in &by_owner {
            bench.publish(owner, manifests.clone()).await?;
        }
        benches.push(bench);
    }
    let [off, on] = benches.as_mut_slice() else { return Err(Error::internal("two benches").into()) };
    for (name, attack) in gaming::Attack::ALL {
        let report = gaming::run(name, attack, off, on, &manifests, &asked, args.share).await?;
        out.json(&report)?;
    }
    Ok(Exit::Ok)
}

/// What shared history is worth.
async fn history(config: Config, args: &EvalHistory, out: &Out) -> Result<Exit, Failure> {
    let manifests = fleet(&args.manifests)?;
    let split = args.split.as_deref();
    let (lines, ambiguous, plain) =
        (outcomes::read(&args.outcomes)?, queries::read(&args.ambiguous, split)?, queries::read(&args.queries, split)?);
    let bars = Bars::new();
    let (models, _) = load_models(models_config(&config), &bars).await?;
    bars.finish();
    let (folder, _temporary) = store_folder(args.data.as_deref())?;
    let mut bench = run::Bench::build(models, manifests, config.policy.clone(), &folder).await?;
    let report = history::run(&mut bench, lines, ambiguous, plain).await?;
    if out.json {
        out.json(&report)?;
    } else {
        out.line(&serde_json::to_string_pretty(&report).map_err(Error::internal)?)?;
    }
    Ok(Exit::Ok)
}

/// A folder for the run's store: the given one, or a temporary one that goes with the run.
pub(super) fn store_folder(given: Option<&std::path::Path>) -> Result<(std::path::PathBuf, Option<Temporary>), Failure> {
    if let Some(given) = given {
        return Ok((given.to_path_buf(), None));
    }
    let folder = std::env::temp_dir().join(format!("reach-eval-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| Failure::words(format!("{}: {e}", folder.display())))?;
    Ok((folder.clone(), Some(Temporary(folder))))
}

pub(super) struct Temporary(std::path::PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // what stays behind is in the temporary folder
        drop(std::fs::remove_dir_all(&self.0));
    }
}
