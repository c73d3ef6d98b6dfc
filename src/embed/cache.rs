//! The folder of models on this host: `<cache>/<name>/{model.safetensors, tokenizer.json, config.json, SHA256SUMS}`.
//!
//! Invariant: a model's folder appears whole or not at all (built beside it, then renamed), and only under a lock file, so that two processes
//! that pull the same model don't meet. `SHA256SUMS` is in the format of `sha256sum -c`; its first line says where the files came from.
//! Cost: checking reads every byte, about 0.1 s for a small model. Not here: where files come from (`fetch`).

use super::EmbedError;
use super::catalog::is_model_name;
use crate::clock::{Clock, SystemClock};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Weights.
pub const WEIGHTS: &str = "model.safetensors";
/// Tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Shape of the encoder.
pub const CONFIG: &str = "config.json";
/// Checksums of the three others.
pub const SUMS: &str = "SHA256SUMS";

/// How long a pull waits for another process that is pulling the same model.
const LOCK_WAIT: Duration = Duration::from_secs(900);

/// Where models are kept when nothing else is said: `$REACH_MODELS`, else `$XDG_CACHE_HOME/agent-reach/models`, else `~/.cache/agent-reach/models`.
pub fn default_dir() -> PathBuf {
    dir_from(|key| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from))
}

fn dir_from(var: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    if let Some(own) = var("REACH_MODELS") {
        return own;
    }
    let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache"))).unwrap_or_else(|| PathBuf::from(".cache"));
    base.join("agent-reach").join("models")
}

/// What the checksums of a model say about its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in the cache.
    Absent,
    /// In the cache, every file as it was written.
    Good,
    /// A file is missing or changed.
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Checksums of a model and where it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Where the files came from, in words.
    pub source: String,
    /// Lower-case hex by file name.
    pub files: BTreeMap<String, String>,
}

impl Sums {
    /// Reads the format of `sha256sum`, with the source in a comment.
    pub fn parse(text: &str) -> Option<Self> {
        let mut sums = Self::default();
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            if let Some(comment) = line.strip_prefix('#') {
                if let Some(source) = comment.trim().strip_prefix("source:") {
                    sums.source = source.trim().to_owned();
                }
                continue;
            }
            let (hex, name) = line.split_once("  ")?;
            let sound = hex.len() == 64 && hex.chars().all(|c| c.is_ascii_hexdigit()) && [WEIGHTS, TOKENIZER, CONFIG].contains(&name);
            sound.then(|| sums.files.insert(name.to_owned(), hex.to_ascii_lowercase()))?;
        }
        (sums.files.len() == 3).then_some(sums)
    }

    fn text(&self) -> String {
        let files: String = self.files.iter().map(|(name, hex)| format!("{hex}  {name}\n")).collect();
        format!("# source: {}\n{files}", self.source.replace(['\n', '\r'], " "))
    }
}

/// The cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// A cache in `dir`; the folder is made when the first model comes.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of the model `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether the model's folder is there; says nothing about its content.
    pub fn holds(&self, name: &str) -> bool {
        is_model_name(name) && self.path(name).is_dir()
    }

    /// Checksums on file and their source, without reading the model.
    pub fn sums(&self, name: &str) -> Option<Sums> {
        Sums::parse(&fs::read_to_string(self.path(name).join(SUMS)).ok()?)
    }

    /// Reads every file of a model and compares it with its checksum.
    pub fn verify(&self, name: &str) -> State {
        if !self.holds(name) {
            return State::Absent;
        }
        match self.read(name) {
            Ok(_) => State::Good,
            Err(EmbedError::Damaged { file, why }) => State::Damaged { file: file.into(), why },
            Err(e) => State::Damaged { file: self.path(name), why: e.to_string() },
        }
    }

    /// Reads the three files of a model, checked. The error names the file at fault.
    pub fn read(&self, name: &str) -> Result<Files, EmbedError> {
        let mut files = self.read_light(name)?;
        files.weights = files.read_checked(WEIGHTS)?;
        Ok(files)
    }

    /// As [`Cache::read`], but leaves the weights unread and empty: they are a hundred times the rest.
    pub fn read_light(&self, name: &str) -> Result<Files, EmbedError> {
        if !self.holds(name) {
            return Err(EmbedError::Missing(format!(
                "the model `{name}` is not in {}; fetch it with `reach models pull {name}`",
                self.dir.display()
            )));
        }
        let folder = self.path(name);
        let damaged = |why: String| EmbedError::Damaged { file: folder.join(SUMS).display().to_string(), why };
        let text = fs::read_to_string(folder.join(SUMS)).map_err(|e| damaged(e.to_string()))?;
        let sums = Sums::parse(&text).ok_or_else(|| damaged("not the checksums of three files".into()))?;
        let mut files = Files { weights: Vec::new(), tokenizer: Vec::new(), config: Vec::new(), folder, sums };
        files.tokenizer = files.read_checked(TOKENIZER)?;
        files.config = files.read_checked(CONFIG)?;
        Ok(files)
    }

    /// Takes the lock of a model; waits while another process holds it, calling `waiting` once.
    pub fn lock(&self, name: &str, waiting: impl FnOnce()) -> io::Result<Lock> {
        if !is_model_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` can't name a model")));
        }
        fs::create_dir_all(&self.dir)?;
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join(format!(".{name}.lock")))?;
        let clock = SystemClock;
        let start = clock.instant();
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::Error(e)) => return Err(e),
                Err(TryLockError::WouldBlock) => {
                    if let Some(tell) = waiting.take() {
                        tell();
                    }
                    if clock.instant().duration_since(start) > LOCK_WAIT {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "another process has been fetching this model for 15 minutes"));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// An empty folder to build a model in; removes what a killed pull left behind. Call it under the model's lock.
    pub fn stage(&self, name: &str, _lock: &Lock) -> io::Result<Stage> {
        let prefix = format!(".tmp-{name}-");
        for entry in fs::read_dir(&self.dir)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let dir = self.dir.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Stage { dir, target: self.path(name) })
    }
}

/// Exclusive right to change one model; ends when dropped or when the process dies.
pub struct Lock {
    _file: File,
}

/// A folder in which a model is being built. Dropped without [`Stage::publish`], it is removed.
pub struct Stage {
    dir: PathBuf,
    target: PathBuf,
}

impl Stage {
    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates a file in it and writes `data`.
    pub fn put(&self, file: &str, data: &[u8]) -> io::Result<()> {
        let mut out = File::create(self.dir.join(file))?;
        out.write_all(data)?;
        out.sync_all()
    }

    /// Computes the checksums, writes them, and renames the folder into place.
    pub fn publish(self, source: &str) -> io::Result<Sums> {
        let mut sums = Sums { source: source.to_owned(), ..Sums::default() };
        for file in [WEIGHTS, TOKENIZER, CONFIG] {
            let path = self.dir.join(file);
            File::open(&path)?.sync_all()?;
            sums.files.insert(file.to_owned(), file_sha256(&path)?);
        }
        self.put(SUMS, sums.text().as_bytes())?;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let keep = [WEIGHTS, TOKENIZER, CONFIG, SUMS].iter().any(|k| entry.file_name() == *k);
            if !keep && entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else if !keep {
                fs::remove_file(entry.path())?;
            }
        }
        if self.target.exists() {
            let mut old = self.dir.clone().into_os_string();
            old.push("-old");
            fs::rename(&self.target, &old)?;
            fs::rename(&self.dir, &self.target)?;
            fs::remove_dir_all(old)?;
        } else {
            fs::rename(&self.dir, &self.target)?;
        }
        if let Some(parent) = self.target.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(sums)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.dir.exists()
            && let Err(e) = fs::remove_dir_all(&self.dir)
        {
            tracing::warn!(folder = %self.dir.display(), error = %e, "a half-built model could not be removed");
        }
    }
}

/// The files of one model, in memory, checked against their checksums.
pub struct Files {
    /// Content of `model.safetensors`.
    pub weights: Vec<u8>,
    /// Content of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// Content of `config.json`.
    pub config: Vec<u8>,
    /// Where they were read.
    pub folder: PathBuf,
    /// Their checksums.
    pub sums: Sums,
}

impl Files {
    /// Reads one of the files again and compares it with its checksum.
    pub fn read_checked(&self, file: &str) -> Result<Vec<u8>, EmbedError> {
        let data = fs::read(self.folder.join(file)).map_err(|e| self.damaged(file, e))?;
        if self.sums.files.get(file) == Some(&hex_sha256(&data)) {
            Ok(data)
        } else {
            Err(self.damaged(file, format!("{} bytes that don't match the checksum in {SUMS}", data.len())))
        }
    }

    /// An error that names one of the files.
    pub fn damaged(&self, file: &str, why: impl ToString) -> EmbedError {
        EmbedError::Damaged { file: self.folder.join(file).display().to_string(), why: why.to_string() }
    }
}

/// SHA-256 of bytes, lower-case hex.
pub fn hex_sha256(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

/// SHA-256 of a file, lower-case hex.
pub fn file_sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            n => hash.update(buffer.get(..n).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(cache: &Cache, name: &str, weights: &[u8]) {
        let lock = cache.lock(name, || {}).unwrap();
        let stage = cache.stage(name, &lock).unwrap();
        stage.put(WEIGHTS, weights).unwrap();
        stage.put(TOKENIZER, b"{}").unwrap();
        stage.put(CONFIG, b"{}").unwrap();
        stage.put("left-over.jar", b"x").unwrap();
        stage.publish("test").unwrap();
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        assert_eq!(cache.verify("m"), State::Absent);
        fill(&cache, "m", b"abc");
        assert_eq!(cache.verify("m"), State::Good);
        assert_eq!(cache.sums("m").unwrap().source, "test");
        assert!(!cache.path("m").join("left-over.jar").exists());

        let weights = cache.path("m").join(WEIGHTS);
        File::create(&weights).unwrap().write_all(b"abd").unwrap();
        assert!(matches!(cache.verify("m"), State::Damaged { file, .. } if file == weights));
        assert!(cache.read("m").err().unwrap().to_string().contains(WEIGHTS));
        fs::remove_file(cache.path("m").join(TOKENIZER)).unwrap();
        fill(&cache, "m", b"abc");
        assert_eq!(cache.verify("m"), State::Good, "a pull mends a damaged model");
    }

    #[test]
    fn half_built_folders_vanish_and_names_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("deep"));
        let lock = cache.lock("m", || {}).unwrap();
        let stage = cache.stage("m", &lock).unwrap();
        stage.put(WEIGHTS, b"half").unwrap();
        drop(stage);
        fs::create_dir(cache.dir().join(".tmp-m-999999")).unwrap();
        let stage = cache.stage("m", &lock).unwrap();
        assert!(stage.publish("test").is_err(), "two files are missing");
        let names: Vec<_> = fs::read_dir(cache.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [".m.lock"]);
        assert!(cache.lock("../m", || {}).is_err() && !cache.holds(".."));
    }

    #[test]
    fn a_second_puller_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        let first = cache.lock("m", || {}).unwrap();
        let (told, tells) = std::sync::mpsc::channel();
        let second = {
            let cache = cache.clone();
            std::thread::spawn(move || cache.lock("m", || told.send(()).unwrap()).map(|_| ()).unwrap())
        };
        tells.recv().unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap();
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let pick = |have: &[(&str, &str)]| {
            let have: BTreeMap<String, PathBuf> = have.iter().map(|(k, v)| ((*k).to_owned(), PathBuf::from(*v))).collect();
            dir_from(|k| have.get(k).cloned())
        };
        assert_eq!(pick(&[("REACH_MODELS", "m"), ("HOME", "h")]), PathBuf::from("m"));
        assert_eq!(pick(&[("XDG_CACHE_HOME", "c"), ("HOME", "h")]), PathBuf::from("c/agent-reach/models"));
        assert_eq!(pick(&[("HOME", "h")]), PathBuf::from("h/.cache/agent-reach/models"));
    }

    #[test]
    fn checksum_files_are_read_strictly() {
        let hex = "a".repeat(64);
        let good = format!("# source: x\n{hex}  model.safetensors\n{hex}  tokenizer.json\n{hex}  config.json\n");
        assert_eq!(Sums::parse(&good).unwrap().source, "x");
        assert_eq!(Sums::parse(&good).unwrap().text().lines().count(), 4);
        for bad in ["", "zz  model.safetensors\n", &good.replace("config.json", "../../x"), &good.replace("  config", " config")] {
            assert!(Sums::parse(bad).is_none(), "{bad:?}");
        }
    }
}
