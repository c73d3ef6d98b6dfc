//! `reach models` and `reach log`, and the progress bars.

use super::parts::models_config;
use crate::cli::{Exit, Failure, LogCommand, ModelsCommand, Out, say};
use crate::config::Config;
use crate::embed::cache::{Cache, State};
use crate::embed::catalog::Catalog;
use crate::embed::fetch::{Event, Fetcher, Progress};
use crate::error::Error;
use crate::store::{DecisionRecord, Peek};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;

/// Progress bars on standard error.
pub struct Bars {
    all: MultiProgress,
    bars: Mutex<HashMap<String, ProgressBar>>,
}

impl Bars {
    /// No bar yet.
    pub fn new() -> Self {
        Self { all: MultiProgress::new(), bars: Mutex::default() }
    }

    /// Takes the bars away.
    pub fn finish(&self) {
        for bar in self.bars.lock().values() {
            bar.finish_and_clear();
        }
    }

    fn bar(&self, key: String, total: Option<u64>) -> ProgressBar {
        let mut bars = self.bars.lock();
        let bar = bars.entry(key.clone()).or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg:40!} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            self.all.add(ProgressBar::new(0).with_style(style).with_message(key))
        });
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.clone()
    }

    fn tell(&self, text: &str) {
        // a bar that can't be drawn is no fault
        drop(self.all.println(text));
        if self.all.is_hidden() {
            say(text);
        }
    }
}

impl Progress for Bars {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Waiting { model } => self.tell(&format!("{model}: another process is fetching it; waiting")),
            Event::Trying { model, source } => self.tell(&format!("{model}: trying {source}")),
            Event::Bytes { model, file, done, total } => self.bar(format!("{model} {file}"), *total).set_position(*done),
            Event::Converting { model } => self.tell(&format!("{model}: converting and checking")),
            Event::Failed { model, source, why } => self.tell(&format!("{model}: {source} failed: {why}")),
            Event::Done { model, source } => self.tell(&format!("{model}: here, from {source}")),
        }
    }
}

/// `reach models …`
pub async fn models(config: Config, command: &ModelsCommand, out: &Out) -> Result<Exit, Failure> {
    let settings = models_config(&config);
    let fetcher = Fetcher::new(Catalog::shipped(), Cache::new(&settings.dir), settings.fetch.clone().unwrap_or_default());
    let as_json = out.json;
    match command {
        ModelsCommand::List => {
            for listed in fetcher.list() {
                let spec = &listed.spec;
                let from = listed.sums.as_ref().map(|s| s.source.clone());
                if as_json {
                    out.json(&json!({
                        "name": spec.name, "lang": spec.lang, "dim": spec.dim, "max_tokens": spec.max_tokens, "licence": spec.licence,
                        "cached": listed.cached, "source": from, "active": settings.names.contains(&spec.name),
                    }))?;
                } else {
                    let here = if listed.cached { from.unwrap_or_else(|| "here".into()) } else { "not here".into() };
                    let active = if settings.names.contains(&spec.name) { "*" } else { " " };
                    out.line(&format!(
                        "{active} {:22} {:5} {:5} dims  {:5} tokens  {here}",
                        spec.name,
                        spec.lang.as_str(),
                        spec.dim,
                        spec.max_tokens
                    ))?;
                }
            }
            Ok(Exit::Ok)
        }
        ModelsCommand::Pull { names } => {
            let bars = Bars::new();
            let names = names.clone();
            let done = blocking(move || -> Result<Vec<(String, String)>, Error> {
                let mut done = Vec::new();
                for name in names {
                    let sums = fetcher.pull(&name, &bars)?;
                    done.push((name, sums.source));
                }
                bars.finish();
                Ok(done)
            })
            .await?;
            for (name, source) in done {
                if as_json { out.json(&json!({"name": name, "source": source}))? } else { out.line(&format!("{name}: {source}"))? }
            }
            Ok(Exit::Ok)
        }
        ModelsCommand::Import { path, name } => {
            let (path, name) = (path.clone(), name.clone());
            let bars = Bars::new();
            let name = blocking(move || Ok(fetcher.import(&path, name.as_deref(), &bars)?)).await?;
            if as_json {
                out.json(&json!({"name": name}))?
            } else {
                out.line(&name)?
            }
            Ok(Exit::Ok)
        }
        ModelsCommand::Verify { names } => {
            let names: Vec<String> = if names.is_empty() {
                fetcher.list().into_iter().filter(|l| l.cached).map(|l| l.spec.name).collect()
            } else {
                names.clone()
            };
            let states =
                blocking(move || names.into_iter().map(|n| Ok((n.clone(), fetcher.verify(&n)?))).collect::<Result<Vec<_>, Error>>())
                    .await?;
            let mut sound = true;
            for (name, state) in states {
                let (ok, words) = match state {
                    State::Good => (true, "sound".to_string()),
                    State::Absent => (false, "not here".to_string()),
                    State::Damaged { file, why } => (false, format!("damaged: {}: {why}", file.display())),
                };
                sound &= ok;
                if as_json {
                    out.json(&json!({"name": name, "sound": ok, "state": words}))?
                } else {
                    out.line(&format!("{name}: {words}"))?
                }
            }
            Ok(if sound { Exit::Ok } else { Exit::Negative })
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Failure> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(Error::internal)??)
}

pub(super) fn time(text: Option<&String>, name: &str) -> Result<Option<i64>, Failure> {
    text.map(|t| {
        t.parse::<jiff::Timestamp>()
            .map(|t| t.as_millisecond())
            .map_err(|_| Failure::words(format!("--{name} {t}: write an RFC 3339 time such as 2026-11-29T09:30:00Z")))
    })
    .transpose()
}

/// A line of an export of the decision log, as `reach replay` reads it.
pub fn exported(record: &DecisionRecord) -> Value {
    json!({
        "decision_id": record.id,
        "at": jiff::Timestamp::from_millisecond(record.at_ms).map(|t| t.to_string()).unwrap_or_default(),
        "caller": record.caller,
        "decision": record.kind,
        "query": record.text,
        "body": record.body,
    })
}

/// `reach log export`
pub async fn log(config: Config, command: &LogCommand, out: &Out) -> Result<Exit, Failure> {
    let LogCommand::Export(which) = command;
    let (from, to) = (time(which.since.as_ref(), "since")?.unwrap_or(0), time(which.until.as_ref(), "until")?.unwrap_or(i64::MAX));
    let limit = which.limit.unwrap_or(usize::MAX);
    let dir = config.data.dir.clone();
    let store = Peek::open(&dir).map_err(Error::from)?;
    let mut file = match &which.out {
        Some(path) => {
            Some(std::io::BufWriter::new(std::fs::File::create(path).map_err(|e| Failure::words(format!("{}: {e}", path.display())))?))
        }
        None => None,
    };
    let mut count = 0usize;
    for record in store.decisions(from, to).take(limit) {
        let record = record.map_err(Error::from)?;
        let line = exported(&record);
        match &mut file {
            Some(file) => writeln!(file, "{line}").map_err(Failure::Io)?,
            None => out.line(&line.to_string())?,
        }
        count += 1;
    }
    if let Some(mut file) = file {
        file.flush().map_err(Failure::Io)?;
    }
    say(&format!("{count} decisions"));
    Ok(if count == 0 { Exit::Negative } else { Exit::Ok })
}
