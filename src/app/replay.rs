//! `reach replay`: opens what is to be replayed, routes what was never routed, writes the report.

use super::commands::{Bars, time};
use super::evaluation::{can_hold, store_folder};
use super::parts::{load_models, models_config};
use super::policies::Versions;
use super::replay_models;
use crate::cli::{Exit, Failure, Out, Replay, SweepArg, say};
use crate::config::Config;
use crate::config::files::{read_text, write_atomic};
use crate::error::Error;
use crate::eval::queries;
use crate::eval::replay::aim::Aim;
use crate::eval::replay::entry::{self, Entry, Holds, Raw};
use crate::eval::replay::gate::Gate;
use crate::eval::replay::labels::{Labels, RawLabel};
use crate::eval::replay::report::Report;
use crate::eval::replay::settings::{self, Sweep};
use crate::eval::replay::{self, page, table, told};
use crate::eval::run::Bench;
use crate::ingest::files;
use crate::route::logged::{Body, Logged};
use crate::store::Peek;
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{Long, Rules};
use crate::types::policy::Policy;
use crate::types::request::ResolveRequest;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;

/// Entries and labels of a replay.
pub(super) struct History {
    /// What is known of them.
    pub labels: Labels,
    source: Source,
}

enum Source {
    File(std::path::PathBuf, u64),
    Store(Box<Peek>, i64, i64, u64),
    Routed(Vec<Entry>),
}

impl History {
    /// Decisions it holds, as far as that is known beforehand.
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::File(_, n) | Source::Store(_, _, _, n) => *n,
            Source::Routed(all) => all.len() as u64,
        }
    }

    /// Its entries, oldest first. May be called again.
    pub fn entries(&self) -> Result<Box<dyn Iterator<Item = Result<Raw, Error>> + Send + '_>, Error> {
        Ok(match &self.source {
            Source::File(path, _) => Box::new(entry::lines(path)?),
            Source::Store(peek, from, to, _) => {
                Box::new(peek.decisions(*from, *to).packed().map(|r| r.map(|r| Raw::Packed(Box::new(r))).map_err(Error::from)))
            }
            Source::Routed(all) => Box::new(all.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))))),
        })
    }
}

/// A bar that counts decisions.
pub(super) fn bar(len: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {eta}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len).with_style(style).with_message(what)
}

fn count_lines(path: &Path) -> Result<u64, Failure> {
    let fault = |e: std::io::Error| Failure::words(format!("{}: {e}", path.display()));
    let mut file = std::io::BufReader::with_capacity(1 << 20, std::fs::File::open(path).map_err(fault)?);
    let mut n = 0u64;
    loop {
        let used = {
            let buffer = file.fill_buf().map_err(fault)?;
            n += buffer.iter().filter(|b| **b == b'\n').count() as u64;
            buffer.len()
        };
        if used == 0 {
            return Ok(n);
        }
        file.consume(used);
    }
}

/// A line of plain queries.
#[derive(Deserialize)]
struct Plain {
    query: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    caller: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    split: String,
    #[serde(flatten)]
    label: RawLabel,
}

/// The fleet that requests are routed over: that of --manifests, else the registry in `folder`.
pub(super) fn fleet(command: &Replay, folder: &Path) -> Result<Vec<Manifest>, Failure> {
    let Some(path) = &command.manifests else {
        let found = Peek::open(folder).and_then(|p| p.registry()).map_err(Error::from)?;
        if found.agents.is_empty() {
            return Err(Failure::words(
                "requests need a fleet to be routed over: give --manifests, or a --data folder with registered agents",
            ));
        }
        return Ok(found.agents.into_iter().map(|a| (*a.manifest).clone()).collect());
    };
    let read = files::read(path, &Rules { long: Long::Cut })?;
    if !read.faults.is_empty() {
        say(&format!("warning: {} faults in the manifests; those capabilities are left out: {}", read.faults.len(), read.faults[0]));
    }
    if read.manifests.is_empty() {
        return Err(Error::invalid(read.faults).into());
    }
    Ok(read.manifests)
}

/// Routes plain queries through the real pipeline, each at its own time.
async fn route(path: &Path, command: &Replay, config: &Config, labels: &mut Labels) -> Result<Vec<Entry>, Failure> {
    let text = read_text(path).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
    let mut plain = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let fault =
            |why: String| Error::invalid_at(&format!("{}:{}", path.display(), i + 1), "a query as docs/replay.md describes it", why);
        let map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).map_err(|e| fault(e.to_string()))?;
        if let Some(why) = queries::mistyped(&map) {
            return Err(fault(why).into());
        }
        let one: Plain = serde_json::from_value(map.into()).map_err(|e| fault(e.to_string()))?;
        if one.label.expected.is_some() || one.label.outcome.is_some() {
            let label = RawLabel { query: Some(one.query.clone()), ..one.label.clone() };
            label.check().map_err(fault)?;
        }
        plain.push((i + 1, one));
    }
    let there = queries::splits(plain.iter().map(|(_, q)| q.split.as_str()));
    plain.retain(|(_, q)| command.split.as_ref().is_none_or(|s| *s == q.split));
    if let Some(split) = command.split.as_ref().filter(|_| plain.is_empty()) {
        return Err(Error::invalid_at("--split", format!("at least one query of split {split:?}"), there).into());
    }
    plain.truncate(command.limit.unwrap_or(usize::MAX));
    let manifests = fleet(command, &config.data.dir)?;
    let bars = Bars::new();
    let (models, _) = load_models(models_config(config), &bars).await?;
    bars.finish();
    let (folder, _temporary) = store_folder(command.cache.as_deref())?;
    let bench = Bench::build(models, manifests, config.policy.clone(), &folder).await?;
    let bar = bar(plain.len() as u64, "routing");
    let mut out = Vec::with_capacity(plain.len());
    let mut ids = HashSet::new();
    for (line, one) in plain {
        let place = || format!("{}:{line}", path.display());
        // two lines are two queries, whatever they are called
        let id = one.id.clone().filter(|id| ids.insert(id.clone())).unwrap_or_else(|| format!("line-{line}"));
        let request = ResolveRequest {
            query: one.query.clone(),
            caller: one.caller.clone(),
            tenant: one.tenant.clone(),
            region: one.region.clone(),
            at: one.at.clone(),
            seed: Some(command.seed.wrapping_add(line as u64)),
            fallback: Some(false),
            ..ResolveRequest::default()
        };
        let mut asked =
            bench.resolve(&request).await.map_err(|e| Error::invalid_at(&place(), "a query that can be routed", e.to_string()))?;
        asked.decision.decision_id.clone_from(&id);
        let body = Body::of(&asked.query, &asked.list, &asked.decision, &config.policy, true).json();
        let logged: Logged = serde_json::from_value(body).map_err(Error::internal)?;
        let at_ms = asked.query.at_ms;
        out.push(Entry { id: id.clone(), at_ms, caller: one.caller.clone().unwrap_or_default(), text: Some(one.query.clone()), logged });
        if one.label.expected.is_some() || one.label.outcome.is_some() {
            labels.add(RawLabel { decision_id: Some(id), query: None, ..one.label });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    out.sort_by_key(|e| e.at_ms);
    Ok(out)
}

/// Opens what is to be replayed, with the policy that stands for "current": that of the configuration, under the version in force where it is a data folder.
pub(super) async fn open(config: &Config, command: &Replay) -> Result<(History, Policy), Failure> {
    let mut labels = Labels::default();
    for path in &command.labels {
        labels.extend(Labels::read(path)?);
    }
    let path = command.log.clone().unwrap_or_else(|| config.data.dir.clone());
    let no_split = || match &command.split {
        Some(split) => {
            Err(Failure::words(format!("--split {split}: only plain queries have splits, and {} holds decisions", path.display())))
        }
        None => Ok(()),
    };
    if path.is_dir() {
        no_split()?;
        let peek = Peek::open(&path).map_err(Error::from)?;
        if command.labels.is_empty() {
            labels = told::labels(peek.outcomes().map_err(Error::from)?);
            say(&format!("labels: {} outcomes that were reported to this node; --labels FILE takes others", labels.len()));
        }
        let (from, to) = (time(command.since.as_ref(), "since")?.unwrap_or(0), time(command.until.as_ref(), "until")?.unwrap_or(i64::MAX));
        let n = peek.span().map_err(Error::from)?.records;
        let policy = Versions::peek(&peek)?.effective(&config.policy);
        return Ok((History { labels, source: Source::Store(Box::new(peek), from, to, n) }, policy));
    }
    if command.since.is_some() || command.until.is_some() {
        return Err(Failure::words(format!(
            "--since and --until are for data folders, and {} is a file: cut it when it is exported, with `reach log export --since … --until …`",
            path.display()
        )));
    }
    let source = match entry::holds(&path)? {
        Holds::Decisions => {
            no_split()?;
            Source::File(path.clone(), count_lines(&path)?)
        }
        Holds::Queries => Source::Routed(route(&path, command, config, &mut labels).await?),
    };
    Ok((History { labels, source }, config.policy.clone()))
}

/// The aim in words, or the shipped one.
pub(super) fn aim(words: Option<&String>) -> Result<Aim, Failure> {
    words.map_or_else(|| Ok(Aim::default()), |w| w.parse().map_err(|e: String| Failure::words(format!("--aim {w}: {e}"))))
}

/// Runs a replay.
pub async fn run(config: Config, command: &Replay, out: &Out) -> Result<Exit, Failure> {
    if !(0.0..0.9).contains(&command.holdout) {
        return Err(Failure::words(format!("--holdout {}: write a share from 0 to 0.9, such as 0.3", command.holdout)));
    }
    if command.limit == Some(0) {
        return Err(Failure::words("--limit 0: no decision would be replayed; write 1 or more"));
    }
    can_hold(command.html.as_ref())?;
    let gate = command.gate.as_deref().map(Gate::read).transpose()?;
    let mut swept: Vec<Sweep> = Vec::new();
    let models = command.sweep.contains(&SweepArg::Model);
    if !models && !command.models.is_empty() {
        return Err(Failure::words("--models: models are tried with --sweep model"));
    }
    for sweep in &command.sweep {
        let sweep = match sweep {
            SweepArg::Threshold => Sweep::Threshold,
            SweepArg::Weights => Sweep::Weights,
            SweepArg::Preset => Sweep::Preset,
            SweepArg::Model => continue,
        };
        if !swept.contains(&sweep) {
            swept.push(sweep);
        }
    }
    let wanted = aim(command.aim.as_ref())?;
    let (history, policy) = open(&config, command).await?;
    let settings = replay::Config { seed: command.seed, holdout: command.holdout, aim: wanted, moves: command.moves, swept };
    let bar = bar(history.len().min(command.limit.unwrap_or(usize::MAX) as u64), "deciding again");
    let mut report = tokio::task::block_in_place(|| -> Result<Report, Error> {
        let entries = history.entries()?.take(command.limit.unwrap_or(usize::MAX));
        let tried = settings::of(&settings.swept, &policy);
        replay::replay(entries, &history.labels, &policy, tried, &settings, |n| bar.inc(n as u64))
    })?;
    bar.finish_and_clear();
    if models {
        let folder = command.log.as_ref().filter(|l| l.is_dir()).unwrap_or(&config.data.dir);
        report.tried = Some(replay_models::tried(&config, command, &history, &policy, folder, &settings).await?);
        if settings.swept.is_empty() {
            // no setting was swept: what is advised is about the models alone
            report.advice.why.clear();
        }
    }
    if let (Some(gate), Some(then), Some(now)) = (&gate, report.settings.first(), report.settings.get(1)) {
        report.gate = Some(gate.broken(&then.figures, &now.figures, now.moved, report.calibration_error));
    }
    if let Some(path) = &command.html {
        write_atomic(path, page::html(&report).as_bytes()).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
    }
    if out.json {
        out.json(&report)?
    } else {
        out.line(&table::text(&report))?
    }
    let gate_broken = report.gate.as_ref().is_some_and(|b| !b.is_empty());
    let nothing =
        !settings.swept.is_empty() && report.advice.recommended.is_none() || report.tried.as_ref().is_some_and(|t| t.recommended.is_none());
    Ok(if gate_broken || nothing { Exit::Negative } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::fakes;
    use crate::eval::past::Past;
    use crate::store::{Durability, Store};
    use std::sync::Arc;

    fn at(folder: &Path) -> Config {
        let mut config = Config::default();
        config.data.dir = folder.to_path_buf();
        config
    }

    async fn labelled(config: &Config, command: &Replay) -> Report {
        let (history, policy) = open(config, command).await.unwrap();
        let settings = replay::Config { seed: 7, holdout: 0.0, aim: Aim::default(), moves: 0, swept: Vec::new() };
        replay::replay(history.entries().unwrap(), &history.labels, &policy, Vec::new(), &settings, |_| {}).unwrap()
    }

    /// What callers reported to a node labels its log, without a labels file; a labels file goes before it.
    #[tokio::test]
    async fn a_store_brings_its_own_labels() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
        let manifests = files::read(&root.join("fleet"), &Rules::default()).unwrap().manifests;
        let (place, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let policy = Policy::default();
        let bench = Bench::untaught(Arc::new(fakes()), manifests, policy.clone(), place.path()).await.unwrap();
        let all = queries::sample(queries::read(&root.join("queries.jsonl"), Some("dev")).unwrap(), Some(30), 3);
        let mut past = Past::new(&bench, &all, policy, 7, 20);
        let store = Store::open(folder.path(), Durability::Process).unwrap();
        let mut made = Vec::new();
        for _ in 0..20 {
            made.push(past.next().await.unwrap());
        }
        let nobody = made.iter().filter(|m| m.query.expected.is_empty()).count() as u64;
        let outcomes = made.iter().take(15).map(|m| m.outcome.clone()).collect();
        store.log_decisions(made.iter().map(|m| m.record.clone()).collect()).await.unwrap();
        let config = at(folder.path());
        assert_eq!(labelled(&config, &Replay::default()).await.labelled, 0, "nothing was reported yet");
        store.put_outcomes(outcomes).await.unwrap();
        let report = labelled(&config, &Replay::default()).await;
        assert_eq!((report.decisions, report.labelled), (20, 15));
        // the same through the folder as LOG
        let given = Replay { log: Some(folder.path().to_path_buf()), ..Replay::default() };
        assert_eq!(labelled(&at(place.path()), &given).await.labelled, 15);
        let file = place.path().join("labels.jsonl");
        let lines: Vec<String> =
            made.iter().map(|m| serde_json::json!({"decision_id": m.record.id, "expected": m.query.expected}).to_string()).collect();
        write_atomic(&file, lines.join("\n").as_bytes()).unwrap();
        let report = labelled(&config, &Replay { labels: vec![file], ..Replay::default() }).await;
        assert_eq!(report.labelled, 20);
        assert!(report.negatives >= nobody && nobody > 0);
    }

    /// A file is cut when it is exported: a limit that would be passed over is refused.
    #[tokio::test]
    async fn a_time_does_not_cut_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.jsonl");
        write_atomic(&log, b"").unwrap();
        let command = Replay { log: Some(log), since: Some("2026-01-01T00:00:00Z".into()), ..Replay::default() };
        let Err(Failure::Words(told)) = open(&Config::default(), &command).await else { panic!("it is refused") };
        assert!(told.contains("reach log export --since"), "{told}");
    }

    /// A flag that would be passed over is refused.
    #[tokio::test]
    async fn a_split_of_decisions_and_a_limit_of_nothing_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.jsonl");
        write_atomic(&log, b"{\"decision_id\": \"d\", \"body\": {}}\n").unwrap();
        let command = Replay { log: Some(log.clone()), split: Some("dev".into()), ..Replay::default() };
        let Err(Failure::Words(told)) = open(&Config::default(), &command).await else { panic!("it is refused") };
        assert!(told.contains("--split dev") && told.contains("decisions"), "{told}");
        let command = Replay { log: Some(log.clone()), limit: Some(0), ..Replay::default() };
        let Err(Failure::Words(told)) = run(Config::default(), &command, &Out::to(std::io::sink())).await else { panic!("it is refused") };
        assert!(told.contains("--limit 0"), "{told}");
        let html = folder.path().join("not/there/report.html");
        let command = Replay { log: Some(log.clone()), html: Some(html.clone()), ..Replay::default() };
        let Err(Failure::Words(told)) = run(Config::default(), &command, &Out::to(std::io::sink())).await else { panic!("it is refused") };
        assert!(told.contains("there is no folder") && !html.exists(), "{told}");
        write_atomic(&log, b"{\"query\": \"q\", \"expcted\": []}\n").unwrap();
        let command = Replay { log: Some(log.clone()), ..Replay::default() };
        let told = format!("{:?}", open(&Config::default(), &command).await.err().unwrap());
        assert!(told.contains("expcted") && told.contains("log.jsonl:1"), "{told}");
        write_atomic(&log, b"{\"query\": \"q\", \"split\": \"test\"}\n").unwrap();
        let command = Replay { log: Some(log), split: Some("dev".into()), ..Replay::default() };
        let told = format!("{:?}", open(&Config::default(), &command).await.err().unwrap());
        assert!(told.contains("there are test"), "{told}");
    }

    #[tokio::test]
    async fn models_without_their_sweep_are_refused() {
        let command = Replay { models: vec!["bge-m3".into()], ..Replay::default() };
        let out = Out::to(std::io::sink());
        let Err(Failure::Words(told)) = run(Config::default(), &command, &out).await else { panic!("it is refused") };
        assert!(told.contains("--sweep model"), "{told}");
    }
}
