//! Brings models into the cache folder: pull by name, import from a folder, list, verify.
//!
//! In: names of the catalogue. Out: a whole, checksummed folder in the cache, or an error that lists every source that was tried, why each failed,
//! and the three ways out. Sources in order: a given folder, the hub, the Maven artifact.
//! Invariant: a source that can't be reached fails within seconds; one process at a time builds a model; nothing half-built is ever visible.
//! Cost: blocks for as long as the network takes: call it on a thread of its own. Not here: the files on disk (`cache`), the encoders.

mod folder;
mod hub;
mod maven;

use super::EmbedError;
use super::cache::{Cache, Stage, State, Sums};
use super::catalog::{Catalog, ModelSpec, Pin};
use parking_lot::Mutex;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A place where a model can come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A folder on this host.
    Folder,
    /// The hub.
    Hub,
    /// The Maven artifact.
    Maven,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Folder => "folder",
            Self::Hub => "hub",
            Self::Maven => "maven",
        })
    }
}

/// What is going on, for whoever shows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Another process is pulling this model; this one waits.
    Waiting {
        /// Model.
        model: &'a str,
    },
    /// A source is being tried.
    Trying {
        /// Model.
        model: &'a str,
        /// Source.
        source: Source,
    },
    /// Bytes came in.
    Bytes {
        /// Model.
        model: &'a str,
        /// File.
        file: &'a str,
        /// So far.
        done: u64,
        /// In all, if known.
        total: Option<u64>,
    },
    /// The files are here and are being converted and checked.
    Converting {
        /// Model.
        model: &'a str,
    },
    /// A source failed; the next one is tried.
    Failed {
        /// Model.
        model: &'a str,
        /// Source.
        source: Source,
        /// Why.
        why: &'a str,
    },
    /// The model is in the cache.
    Done {
        /// Model.
        model: &'a str,
        /// Where it came from.
        source: Source,
    },
}

/// Shows progress. Called from the thread that pulls and from threads it owns.
pub trait Progress: Send + Sync {
    /// Something happened.
    fn on(&self, event: &Event<'_>);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn on(&self, _: &Event<'_>) {}
}

/// How models are fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchConfig {
    /// A folder to look into first: a model's own folder, or one with a folder a model.
    pub folder: Option<PathBuf>,
    /// Whether the hub may be asked.
    pub hub: bool,
    /// Address of the hub or a mirror; `None` = `$HF_ENDPOINT`, else the public one.
    pub hub_endpoint: Option<String>,
    /// Whether the Maven client may be started.
    pub maven: bool,
    /// How long the hub may take to answer at all.
    pub hub_answer: Duration,
    /// How long the hub may send nothing in the middle of a file.
    pub hub_stall: Duration,
    /// How long the Maven client may run in all.
    pub maven_limit: Duration,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            folder: None,
            hub: true,
            hub_endpoint: None,
            maven: true,
            hub_answer: Duration::from_secs(4),
            hub_stall: Duration::from_secs(20),
            maven_limit: Duration::from_secs(600),
        }
    }
}

/// A model of the catalogue and its state on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What it is.
    pub spec: ModelSpec,
    /// Whether its folder is in the cache (not whether it is sound: see [`Fetcher::verify`]).
    pub cached: bool,
    /// Its checksums and source, when it is in the cache.
    pub sums: Option<Sums>,
    /// Its folder.
    pub path: PathBuf,
}

/// Brings models into a cache.
pub struct Fetcher {
    catalog: Catalog,
    cache: Cache,
    config: FetchConfig,
    hub_down: Mutex<Option<String>>,
}

impl Fetcher {
    /// A fetcher for the models of `catalog` into `cache`.
    pub fn new(catalog: Catalog, cache: Cache, config: FetchConfig) -> Self {
        Self { catalog, cache, config, hub_down: Mutex::new(None) }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The catalogue.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Every model of the catalogue and whether it is here.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |spec: &ModelSpec| Listed {
            cached: self.cache.holds(&spec.name),
            sums: self.cache.sums(&spec.name),
            path: self.cache.path(&spec.name),
            spec: spec.clone(),
        };
        self.catalog.models.iter().map(listed).collect()
    }

    /// Checks every file of a model against its checksum.
    pub fn verify(&self, name: &str) -> Result<State, EmbedError> {
        Ok(self.cache.verify(&self.spec(name)?.name))
    }

    /// Makes sure that a model is in the cache and sound; a damaged one is fetched again. Returns its checksums.
    pub fn pull(&self, name: &str, progress: &dyn Progress) -> Result<Sums, EmbedError> {
        let spec = self.spec(name)?;
        self.ensure(spec, progress, |have| have.verify(name) == State::Good)
    }

    /// Makes sure that a model is in the cache, without reading it.
    pub fn ensure_present(&self, name: &str, progress: &dyn Progress) -> Result<Sums, EmbedError> {
        let spec = self.spec(name)?;
        self.ensure(spec, progress, |have| have.holds(name))
    }

    /// Imports a model from a folder that holds it as safetensors or as ONNX fp32. Its name is `name`, or else the name of the folder.
    /// Replaces what is in the cache. Returns the name under which it is kept.
    pub fn import(&self, path: &Path, name: Option<&str>, progress: &dyn Progress) -> Result<String, EmbedError> {
        let folder_name = || path.canonicalize().ok()?.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = name.map(str::to_owned).or_else(folder_name).unwrap_or_default();
        let spec = self.spec(&name)?;
        let lock = self.lock(spec, progress)?;
        let stage = self.cache.stage(&spec.name, &lock).map_err(|e| self.unwritable(&e))?;
        let source = folder::fill(path, spec, &stage).map_err(|why| EmbedError::Missing(format!("{}: {why}", path.display())))?;
        progress.on(&Event::Converting { model: &spec.name });
        stage.publish(&source).map_err(|e| self.unwritable(&e))?;
        progress.on(&Event::Done { model: &spec.name, source: Source::Folder });
        Ok(spec.name.clone())
    }

    fn spec(&self, name: &str) -> Result<&ModelSpec, EmbedError> {
        self.catalog.get(name).ok_or_else(|| {
            let known: Vec<_> = self.catalog.models.iter().map(|m| m.name.as_str()).collect();
            EmbedError::Missing(format!("no model is called `{name}`; the catalogue has {}", known.join(", ")))
        })
    }

    fn lock(&self, spec: &ModelSpec, progress: &dyn Progress) -> Result<super::cache::Lock, EmbedError> {
        self.cache.lock(&spec.name, || progress.on(&Event::Waiting { model: &spec.name })).map_err(|e| self.unwritable(&e))
    }

    fn unwritable(&self, e: &std::io::Error) -> EmbedError {
        EmbedError::Missing(format!(
            "the models folder {} can't be written: {e}; set REACH_MODELS to a folder that can",
            self.cache.dir().display()
        ))
    }

    fn ensure(&self, spec: &ModelSpec, progress: &dyn Progress, fine: impl Fn(&Cache) -> bool) -> Result<Sums, EmbedError> {
        if let (true, Some(sums)) = (fine(&self.cache), self.cache.sums(&spec.name)) {
            return Ok(sums);
        }
        let lock = self.lock(spec, progress)?;
        // another process may have brought it while this one waited
        if let (true, Some(sums)) = (fine(&self.cache), self.cache.sums(&spec.name)) {
            return Ok(sums);
        }
        let mut tried = Vec::new();
        for source in [Source::Folder, Source::Hub, Source::Maven] {
            let stage = self.cache.stage(&spec.name, &lock).map_err(|e| self.unwritable(&e))?;
            progress.on(&Event::Trying { model: &spec.name, source });
            match self.fill(source, spec, &stage, progress) {
                Ok(words) => {
                    progress.on(&Event::Converting { model: &spec.name });
                    let sums = stage.publish(&words).map_err(|e| self.unwritable(&e))?;
                    progress.on(&Event::Done { model: &spec.name, source });
                    return Ok(sums);
                }
                Err(why) => {
                    tracing::info!(model = %spec.name, source = %source, why = %why, "a source of models failed");
                    progress.on(&Event::Failed { model: &spec.name, source, why: &why });
                    tried.push((source, why));
                }
            }
        }
        Err(nothing_worked(&spec.name, &tried))
    }

    /// Fills a stage from one source; says where the files came from, or why it failed.
    fn fill(&self, source: Source, spec: &ModelSpec, stage: &Stage, progress: &dyn Progress) -> Result<String, String> {
        match source {
            Source::Folder => {
                let given = self.config.folder.as_deref().ok_or("no folder was given")?;
                let own = given.join(&spec.name);
                folder::fill(if own.is_dir() { &own } else { given }, spec, stage)
            }
            Source::Hub => {
                let hub = spec.hub.as_ref().ok_or("the catalogue names no repository")?;
                if !self.config.hub {
                    return Err("switched off".into());
                }
                if let Some(why) = self.hub_down.lock().clone() {
                    return Err(why);
                }
                hub::fill(hub, spec, stage, &self.config, progress).map_err(|e| {
                    if e.unreachable {
                        *self.hub_down.lock() = Some(e.why.clone());
                    }
                    e.why
                })
            }
            Source::Maven => {
                let artifact = spec.maven.as_ref().ok_or("there is no Maven artifact of this model")?;
                if !self.config.maven {
                    return Err("switched off".into());
                }
                maven::fill(artifact, spec, stage, &self.config, progress)
            }
        }
    }
}

fn nothing_worked(name: &str, tried: &[(Source, String)]) -> EmbedError {
    let list: String = tried.iter().map(|(source, why)| format!("\n  - {source}: {why}")).collect();
    EmbedError::Missing(format!(
        "the model `{name}` could not be had. Tried:{list}\nThree ways out:\n  1. copy a folder with its safetensors or ONNX (fp32) and tokenizer.json here, then `reach models import PATH`\n  2. let this host reach the hub (or a mirror named in HF_ENDPOINT), then `reach models pull {name}`\n  3. install Maven (`mvn`) where it can reach a repository, then `reach models pull {name}`"
    ))
}

/// Compares bytes with a pin of the catalogue.
fn check_pin(file: &str, seen: &str, pin: Option<&Pin>) -> Result<(), String> {
    match pin {
        Some(pin) if pin.contradicts(seen) => Err(format!("{file} has the checksum {seen}, the catalogue expects another; not used")),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::cache::{CONFIG, TOKENIZER, WEIGHTS};
    use std::collections::HashMap;
    use std::fs;
    use std::io::Write;

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Progress for Seen {
        fn on(&self, event: &Event<'_>) {
            if let Event::Trying { source, .. } | Event::Failed { source, .. } | Event::Done { source, .. } = event {
                let kind = format!("{event:?}").split(' ').next().unwrap().to_owned();
                self.0.lock().push(format!("{kind} {source}"));
            }
        }
    }

    fn put(path: &Path, data: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::File::create(path).unwrap().write_all(data).unwrap();
    }

    /// A folder as somebody would copy it: not a real model, but files that look like one.
    fn give(folder: &Path, dim: usize) {
        let data: Vec<u8> = vec![0; dim * 4];
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, dim], &data).unwrap();
        let weights = safetensors::serialize(HashMap::from([("embeddings.word_embeddings.weight", view)]), None).unwrap();
        put(&folder.join(WEIGHTS), &weights);
        put(&folder.join(CONFIG), format!("{{\"hidden_size\": {dim}}}").as_bytes());
        put(&folder.join(TOKENIZER), br#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#);
    }

    fn offline(dir: &Path, folder: Option<PathBuf>) -> Fetcher {
        let config = FetchConfig { folder, hub: false, maven: false, ..FetchConfig::default() };
        Fetcher::new(Catalog::shipped(), Cache::new(dir), config)
    }

    #[test]
    fn a_given_folder_is_first_and_a_second_pull_does_nothing() {
        let dir = tempfile::tempdir().unwrap();
        give(&dir.path().join("usb/bge-base-en-v1.5"), 768);
        let fetcher = offline(&dir.path().join("cache"), Some(dir.path().join("usb")));
        let seen = Seen::default();
        let sums = fetcher.pull("bge-base-en-v1.5", &seen).unwrap();
        assert!(sums.source.starts_with("folder"), "{}", sums.source);
        assert_eq!(*seen.0.lock(), ["Trying folder", "Done folder"]);
        assert_eq!(fetcher.verify("bge-base-en-v1.5").unwrap(), State::Good);
        fetcher.pull("bge-base-en-v1.5", &seen).unwrap();
        assert_eq!(seen.0.lock().len(), 2);
        assert_eq!(fetcher.list().iter().filter(|l| l.cached).count(), 1);

        fs::File::create(fetcher.cache().path("bge-base-en-v1.5").join(CONFIG)).unwrap();
        assert!(matches!(fetcher.verify("bge-base-en-v1.5").unwrap(), State::Damaged { file, .. } if file.ends_with(CONFIG)));
        fetcher.pull("bge-base-en-v1.5", &seen).unwrap();
        assert_eq!(fetcher.verify("bge-base-en-v1.5").unwrap(), State::Good);
    }

    #[test]
    fn when_nothing_works_the_error_lists_sources_and_ways_out() {
        let dir = tempfile::tempdir().unwrap();
        let seen = Seen::default();
        let error = offline(dir.path(), None).pull("bge-small-zh-v1.5", &seen).err().unwrap();
        assert_eq!(error.code(), crate::error::Code::FailedPrecondition);
        let words = error.to_string();
        for part in
            ["folder: no folder was given", "hub: switched off", "maven: switched off", "reach models import PATH", "HF_ENDPOINT", "mvn"]
        {
            assert!(words.contains(part), "{part:?} is missing in {words}");
        }
        assert_eq!(seen.0.lock().iter().filter(|s| s.starts_with("Failed")).count(), 3);
        let unknown = offline(dir.path(), None).pull("gpt", &Quiet).err().unwrap().to_string();
        assert!(unknown.contains("`gpt`") && unknown.contains("bge-m3"));
    }

    #[test]
    fn an_import_takes_the_folder_name_and_says_what_does_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let fetcher = offline(&dir.path().join("cache"), None);
        let folder = dir.path().join("bge-small-en-v1.5");
        give(&folder, 384);
        assert_eq!(fetcher.import(&folder, None, &Quiet).unwrap(), "bge-small-en-v1.5");
        let words = fetcher.import(&folder, Some("bge-large-en-v1.5"), &Quiet).err().unwrap().to_string();
        assert!(words.contains("384") && words.contains("1024"), "{words}");
        put(&folder.join(WEIGHTS), b"garbage");
        assert!(fetcher.import(&folder, None, &Quiet).err().unwrap().to_string().contains(WEIGHTS));
        fs::remove_file(folder.join(WEIGHTS)).unwrap();
        assert!(fetcher.import(&folder, None, &Quiet).err().unwrap().to_string().contains("model.onnx"));
        fs::remove_file(folder.join(TOKENIZER)).unwrap();
        assert!(fetcher.import(&folder, None, &Quiet).err().unwrap().to_string().contains(TOKENIZER));
        assert_eq!(fetcher.verify("bge-small-en-v1.5").unwrap(), State::Good, "a failed import leaves what was there");
    }

    #[test]
    fn two_pullers_at_once_make_one_whole_model() {
        let dir = tempfile::tempdir().unwrap();
        give(&dir.path().join("usb/bge-base-zh-v1.5"), 768);
        let pullers: Vec<_> = (0..4)
            .map(|_| {
                let (cache, usb) = (dir.path().join("cache"), dir.path().join("usb"));
                std::thread::spawn(move || {
                    let seen = Seen::default();
                    offline(&cache, Some(usb)).pull("bge-base-zh-v1.5", &seen).unwrap();
                    seen.0.lock().len()
                })
            })
            .collect();
        let events: usize = pullers.into_iter().map(|p| p.join().unwrap()).sum();
        assert_eq!(events, 2, "only one of the four fetches");
        assert_eq!(offline(&dir.path().join("cache"), None).verify("bge-base-zh-v1.5").unwrap(), State::Good);
    }

    /// A hub on this host: answers `files` of one repository, or nothing at all.
    fn hub(files: Option<Vec<(String, Vec<u8>)>>) -> String {
        use std::io::{BufRead, BufReader};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(files) = &files else {
                    kept.push(stream);
                    continue;
                };
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                while lines.next().is_some_and(|l| l.is_ok_and(|l| !l.is_empty())) {}
                let body = files.iter().find(|(path, _)| request.split(' ').nth(1) == Some(path)).map(|(_, data)| data.as_slice());
                let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
                let body = body.unwrap_or_default();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).unwrap();
                if !request.starts_with("HEAD") {
                    stream.write_all(body).unwrap();
                }
            }
        });
        address
    }

    fn from_hub(dir: &Path, endpoint: String) -> Fetcher {
        let config = FetchConfig {
            hub_endpoint: Some(endpoint),
            maven: false,
            hub_answer: Duration::from_millis(600),
            hub_stall: Duration::from_secs(5),
            ..FetchConfig::default()
        };
        Fetcher::new(Catalog::shipped(), Cache::new(dir), config)
    }

    #[test]
    fn the_hub_gives_the_files_of_one_commit() {
        let dir = tempfile::tempdir().unwrap();
        let name = "bge-base-en-v1.5";
        give(&dir.path().join(name), 768);
        let file = |f: &str| (format!("/BAAI/{name}/resolve/c0ffee/{f}"), fs::read(dir.path().join(name).join(f)).unwrap());
        let info = (format!("/api/models/BAAI/{name}/revision/main"), format!(r#"{{"id":"BAAI/{name}","sha":"c0ffee"}}"#).into_bytes());
        let whole = vec![info.clone(), file(CONFIG), file(TOKENIZER), file(WEIGHTS)];
        let fetcher = from_hub(&dir.path().join("cache"), hub(Some(whole)));
        let sums = fetcher.pull(name, &Quiet).unwrap();
        assert_eq!(sums.source, format!("hub BAAI/{name} revision c0ffee"));
        assert_eq!(fetcher.verify(name).unwrap(), State::Good);

        let half = from_hub(&dir.path().join("other"), hub(Some(vec![info, file(CONFIG)])));
        let words = half.pull(name, &Quiet).err().unwrap().to_string();
        assert!(words.contains("hub: tokenizer.json"), "{words}");
    }

    #[test]
    fn a_silent_hub_costs_little_and_is_asked_once() {
        use crate::clock::{Clock, SystemClock};
        let dir = tempfile::tempdir().unwrap();
        let fetcher = from_hub(dir.path(), hub(None));
        let begin = SystemClock.instant();
        for name in ["bge-small-zh-v1.5", "bge-small-en-v1.5", "bge-m3"] {
            let words = fetcher.pull(name, &Quiet).err().unwrap().to_string();
            assert!(words.contains("hub: not reachable: no answer within 0.6 s"), "{words}");
        }
        assert!(SystemClock.instant().duration_since(begin) < Duration::from_secs(5));
    }

    #[test]
    fn a_full_or_locked_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        put(&dir.path().join("file"), b"");
        let words = offline(&dir.path().join("file"), None).pull("bge-m3", &Quiet).err().unwrap().to_string();
        assert!(words.contains("REACH_MODELS"), "{words}");
    }
}
