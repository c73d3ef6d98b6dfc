//! `reach register`: registers the manifests of files and folders.

use crate::api::documents::{self as document, Document, Format};
use crate::cli::backend::Backend;
use crate::cli::out::say;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::telemetry::log::escaped;
use clap::Args;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
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

/// A manifest and where it was written.
struct Found {
    place: String,
    document: Document,
}

impl Register {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let mut found = Vec::new();
        let mut broken = 0;
        for file in files(&self.paths)? {
            match read(&file) {
                Ok(documents) => found.extend(documents),
                Err(words) => {
                    broken += 1;
                    say(&format!("error: {words}"));
                }
            }
        }
        if found.is_empty() && broken == 0 {
            return Err(Failure::words("no manifests were found: files end in .yaml, .yml, .json or .jsonl"));
        }
        let backend = Backend::open(common, app).await?;
        let bar = progress(found.len());
        let backend = &backend;
        let work = futures::stream::iter(found).map(|f| async move { (f.place, backend.register(f.document.value).await) });
        let mut answers = work.buffered(usize::from(self.parallel));
        let (mut done, mut changed, mut embedded, mut failed) = (0usize, 0usize, 0u64, broken);
        while let Some((place, answer)) = answers.next().await {
            bar.inc(1);
            match answer {
                Ok(receipt) => {
                    done += 1;
                    changed += usize::from(receipt.changed);
                    embedded += u64::from(receipt.embedded);
                    let who = print::who(receipt.agent.as_ref(), "");
                    for advice in &receipt.lint {
                        bar.suspend(|| {
                            say(&format!(
                                "advice: {who} {}: {}; {}",
                                escaped(&advice.pointer),
                                escaped(&advice.expected),
                                escaped(&advice.hint)
                            ))
                        });
                    }
                    if common.json {
                        bar.suspend(|| out.json(&receipt))?;
                    } else {
                        let state = if receipt.changed { "registered" } else { "unchanged " };
                        bar.suspend(|| {
                            out.line(&format!("{state}  {who}  {} capabilities, {} embedded", receipt.capabilities, receipt.embedded))
                        })?;
                    }
                }
                Err(Failure::Service(e)) => {
                    failed += 1;
                    bar.suspend(|| say(&format!("{}: {}", escaped(&place), print::refusal(&e))));
                    if common.json {
                        bar.suspend(|| out.json(&json!({"file": place, "error": e})))?;
                    }
                }
                Err(other) => return Err(other),
            }
        }
        bar.finish_and_clear();
        say(&format!("{done} manifests: {changed} registered, {} unchanged, {embedded} texts embedded, {failed} refused", done - changed));
        if failed > 0 { Err(Failure::words(format!("{failed} manifests or files were refused"))) } else { Ok(Exit::Ok) }
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

fn read(file: &Path) -> Result<Vec<Found>, String> {
    let name = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|e| format!("{name}: {e}"))?;
    let documents = document::read(&bytes, Format::of_name(&name)).map_err(|faults| {
        let words: Vec<String> = faults.iter().map(|f| f.to_string()).collect();
        format!("{name}: {}", words.join("\n  "))
    })?;
    let several = documents.len() > 1;
    let place = |d: &Document| if several { format!("{name} ({})", d.place) } else { name.clone() };
    Ok(documents.into_iter().map(|document| Found { place: place(&document), document }).collect())
}
