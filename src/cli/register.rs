//! `reach register`: registers the manifests of files and folders.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::out::say;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::error::{Code, Error};
use crate::telemetry::log::escaped;
use crate::types::Fault;
use crate::types::document::{self, Format};
use crate::types::manifest_check::{self, Rules};
use clap::Args;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

/// Registers the manifests of files and folders (.yaml, .yml, .json, .jsonl).
#[derive(Args, Debug)]
pub struct Register {
    /// Files, or folders that are searched with everything below them.
    #[arg(required = true, value_name = "FILE|FOLDER")]
    pub paths: Vec<PathBuf>,
    /// Manifests under way at once.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub parallel: u16,
}

/// A manifest, or what is wrong with it, and where it was written.
struct Found {
    place: String,
    manifest: Result<Value, Error>,
}

/// What came of the manifests.
#[derive(Default)]
struct Tally {
    done: usize,
    changed: usize,
    embedded: u64,
    refused: usize,
}

impl Register {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let mut found = Vec::new();
        for file in files(&self.paths)? {
            found.extend(read(&file));
        }
        if found.is_empty() {
            return Err(Failure::words("no manifests were found: files end in .yaml, .yml, .json or .jsonl"));
        }
        refuse_doubles(&mut found);
        let backend = Backend::open(common, app).await?;
        let bar = progress(found.len());
        let backend = &backend;
        let work = futures::stream::iter(found).map(|f| async move {
            let answer = match f.manifest {
                Ok(manifest) => backend.register(manifest).await,
                Err(e) => Err(e.into()),
            };
            (f.place, answer)
        });
        let mut answers = work.buffered(usize::from(self.parallel));
        let mut tally = Tally::default();
        while let Some((place, answer)) = answers.next().await {
            bar.inc(1);
            bar.suspend(|| tally.take(&place, answer, common.json, out))?;
        }
        bar.finish_and_clear();
        let Tally { done, changed, embedded, refused } = tally;
        say(&format!("{done} manifests: {changed} registered, {} unchanged, {embedded} texts embedded; {refused} refused", done - changed));
        if refused > 0 { Err(Failure::Told(format!("{refused} manifests or files were refused"))) } else { Ok(Exit::Ok) }
    }
}

/// An agent that stands there twice would be whichever came last to the server: the second is refused.
fn refuse_doubles(found: &mut [Found]) {
    let mut first: HashMap<(String, String), String> = HashMap::new();
    for Found { place, manifest } in found {
        let Ok(value) = &manifest else { continue };
        let part = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_string();
        match first.entry((part("namespace"), part("agent_id"))) {
            Entry::Vacant(free) => drop(free.insert(place.clone())),
            Entry::Occupied(known) => {
                let (namespace, id) = known.key();
                let hint = format!("{namespace}/{id} stands in {} already: remove one, or give it another agent_id", known.get());
                *manifest = Err(Error::invalid_at("/agent_id", "each agent once", hint));
            }
        }
    }
}

impl Tally {
    /// Shows one answer and counts it. What is not about this manifest alone ends the command.
    fn take(&mut self, place: &str, answer: Result<pb::RegisterResponse, Failure>, json: bool, out: &Out) -> Result<(), Failure> {
        match answer {
            Ok(receipt) => {
                self.done += 1;
                self.changed += usize::from(receipt.changed);
                self.embedded += u64::from(receipt.embedded);
                let who = print::who(receipt.agent.as_ref(), "");
                for advice in &receipt.lint {
                    let (pointer, expected, hint) = (escaped(&advice.pointer), escaped(&advice.expected), escaped(&advice.hint));
                    say(&format!("advice: {who} {pointer}: {expected}; {hint}"));
                }
                if json {
                    return out.json(&receipt);
                }
                let state = if receipt.changed { "registered" } else { "unchanged " };
                out.line(&format!("{state}  {who}  {} capabilities, {} embedded", receipt.capabilities, receipt.embedded))
            }
            Err(Failure::Service(e)) if e.code != Code::Unauthenticated.as_str() => {
                self.refused += 1;
                say(&format!("{}: {}", escaped(place), print::refusal(&e)));
                if json { out.json(&json!({"file": place, "error": e})) } else { Ok(()) }
            }
            Err(other) => Err(other),
        }
    }
}

fn progress(n: usize) -> ProgressBar {
    let bar = if n > 1 { ProgressBar::new(n as u64) } else { ProgressBar::hidden() };
    // drawn on standard error, and only on a terminal
    if let Ok(style) = ProgressStyle::with_template("registering {bar:30} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// The files under the paths, in a stable order. A path that is not there is a fault.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let meta = std::fs::metadata(path).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?;
        if meta.is_dir() { walk(path, &mut all, 0)? } else { all.push(path.clone()) }
    }
    Ok(all)
}

fn walk(folder: &Path, all: &mut Vec<PathBuf>, depth: usize) -> Result<(), Failure> {
    if depth > 16 {
        return Err(Failure::words(format!("{}: more than 16 folders deep", folder.display())));
    }
    let failed = |e: std::io::Error| Failure::words(format!("{}: {e}", folder.display()));
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).map_err(failed)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed)?;
    entries.sort();
    for entry in entries {
        let name = entry.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if entry.is_dir() && !name.starts_with('.') {
            walk(&entry, all, depth + 1)?;
        } else if Format::of_name(&name).is_some() {
            all.push(entry);
        }
    }
    Ok(())
}

/// The manifests of a file. Lines of the flat form are grouped into agents.
fn read(file: &Path) -> Vec<Found> {
    let name = file.display().to_string();
    let refused = |place: String, faults| Found { place, manifest: Err(Error::invalid(faults)) };
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) => return vec![refused(name, vec![Fault::new("", "a readable file", e.to_string())])],
    };
    let documents = match document::read(&bytes, Format::of_name(&name)) {
        Ok(documents) => documents,
        Err(faults) => return vec![refused(name, faults)],
    };
    let all = manifest_check::check_all(&documents, &Rules::default());
    let passed = all
        .manifests
        .iter()
        .map(|checked| Found { place: name.clone(), manifest: serde_json::to_value(&checked.manifest).map_err(Error::internal) });
    passed.chain(all.faulty.into_iter().map(|(place, faults)| refused(format!("{name}:{place}"), faults))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_stands_twice_is_refused_by_place() {
        let one = |place: &str, id: &str| Found { place: place.into(), manifest: Ok(json!({"namespace": "orders", "agent_id": id})) };
        let mut found = vec![one("a.yaml", "desk"), one("b.yaml", "clerk"), one("c.yaml", "desk")];
        refuse_doubles(&mut found);
        assert!(found[0].manifest.is_ok() && found[1].manifest.is_ok());
        let e = found[2].manifest.as_ref().unwrap_err();
        assert!(e.faults[0].pointer == "/agent_id" && e.faults[0].hint.contains("a.yaml"), "{e:?}");
    }
}
