//! The durable store: one SQLite file in the data folder, one writing thread, a few reading connections.
//!
//! In: a data folder. Out: [`Store`] with its parts: registry, vectors, decision log, meta.
//! Invariants: one process at a time (a locked file); what was answered as written survives a crash (`Durability::Full`: also a power cut);
//! a file of a later format, a damaged one and a foreign one are refused by name: pages by SQLite's check, rows by their checksums (`sum`), the end of the
//! log by its mark (`mark`). A missing file is a new store; an empty one is damaged.
//! Cost: opening reads the file once when it is small (check), memory is a few MB. Not here: what the rows mean to routing.

mod checkpoint;
mod decisions;
mod error;
mod mark;
mod messages;
mod meta;
mod outcomes;
mod peek;
mod readers;
mod registry;
mod schema;
mod sum;
mod vectors;
mod writer;

pub use decisions::{DecisionRecord, Export, Packed, Retention, Span};
pub use error::StoreError;
pub use outcomes::{Keep, OutcomeQuery};
pub use peek::Peek;
pub use registry::{Change, Loaded, Registered, Registration, Version};
pub use vectors::StoredVector;
pub use writer::WriterStats;

use checkpoint::Checkpoints;
use mark::Mark;
use readers::Readers;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use writer::Writer;

/// Name of the store's file in the data folder.
pub const FILE: &str = "reach.db";
/// Name of the file that is locked while the store is open.
pub const LOCK: &str = "reach.lock";
/// Files up to this size are checked as a whole when they are opened, indexes against tables included, bytes.
const CHECKED_WHOLLY: u64 = 32 << 20;
/// Files up to this size are checked page by page when they are opened, bytes.
const CHECKED_SIZE: u64 = 256 << 20;
/// Statements that the writer keeps parsed: more than there are.
const STATEMENTS: usize = 128;
/// No file of SQLite is smaller, bytes.
const SMALLEST: u64 = 512;

/// What an answered write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: every commit is synced.
    #[default]
    Full,
    /// A crash of the process; a power cut may lose the last moments, never the file.
    Process,
}

/// An open store.
pub struct Store {
    writer: Writer,
    readers: Readers,
    path: PathBuf,
    /// What SQLite said to the settings of durability.
    durability: String,
    /// Held while the store is open; released with it, also when the process dies.
    _lock: File,
}

impl Store {
    /// Opens the store in `folder`, making both if they are not there.
    pub fn open(folder: &Path, durability: Durability) -> Result<Self, StoreError> {
        make_folder(folder)?;
        let lock = take_lock(folder)?;
        let path = folder.join(FILE);
        let shown = path.display().to_string();
        let damaged = |what: String| StoreError::Damaged { path: shown.clone(), what };
        let size = match std::fs::metadata(&path) {
            Ok(m) if m.len() < SMALLEST => return Err(damaged(format!("it was cut off: it has {} bytes", m.len()))),
            Ok(m) => m.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if let Some(part) = mark::orphaned(&path) {
                    return Err(damaged(format!("it is missing, and {} of it is there", part.display())));
                }
                begin(folder, &path)?;
                0
            }
            Err(e) => return Err(StoreError::Folder { path: shown, cause: e.to_string() }),
        };
        mark::verify(&path).map_err(damaged)?;
        let named = |e: rusqlite::Error| name_file(e.into(), &shown);
        let (mut connection, durability) = connect(&path, durability).map_err(|e| name_file(e, &shown))?;
        // a start that fails below leaves the log as it found it; the writer empties it at its end, after the mark
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(named)?;
        if size <= CHECKED_SIZE {
            let how = if size <= CHECKED_WHOLLY { "integrity_check" } else { "quick_check" };
            let finding: String = connection.query_row(&format!("PRAGMA {how}(1)"), [], |row| row.get(0)).map_err(named)?;
            if finding != "ok" {
                return Err(StoreError::Damaged { path: shown, what: finding });
            }
        }
        schema::migrate(&mut connection, &shown).map_err(|e| name_file(e, &shown))?;
        let mark = if durability.full { Mark::open(&path) } else { mark::forget(&path) };
        let checkpoints = checkpoints(&path, &connection);
        Ok(Self {
            writer: Writer::start(connection, mark, checkpoints)?,
            readers: Readers::new(&path),
            path,
            durability: durability.words,
            _lock: lock,
        })
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The durability in force: `journal_mode=wal synchronous=2` syncs every commit.
    pub fn durability(&self) -> &str {
        &self.durability
    }

    /// Counters of the writer.
    pub fn stats(&self) -> &WriterStats {
        self.writer.stats()
    }

    /// Size of the file and its log, bytes.
    pub fn size(&self) -> u64 {
        let log = self.path.with_extension("db-wal");
        [&self.path, &log].iter().map(|p| std::fs::metadata(p).map_or(0, |m| m.len())).sum()
    }
}

/// What SQLite said to the settings of durability.
struct InForce {
    words: String,
    full: bool,
}

/// Checkpoints beside the commits; where they can't be had, SQLite makes its own between two commits.
fn checkpoints(path: &Path, writer: &Connection) -> Option<Checkpoints> {
    let beside = || -> Result<Connection, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // a copy is synced whatever the commits are
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(connection)
    };
    let started = beside().map_err(std::io::Error::other).and_then(|c| Checkpoints::start(path, c, writer));
    started.inspect_err(|error| tracing::warn!(%error, "the store's log is carried over between commits")).ok()
}

/// The connection that writes.
fn connect(path: &Path, durability: Durability) -> Result<(Connection, InForce), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.execute_batch("PRAGMA page_size = 4096; PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;")?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Folder {
            path: path.display().to_string(),
            cause: format!("no write-ahead log on this file system ({mode})"),
        });
    }
    let level = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.execute_batch(&format!("PRAGMA synchronous = {level}; PRAGMA cache_size = -32000;"))?;
    // asked, not believed: what is in force stands in `/health` and is asserted by the kill test
    let synchronous: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    Ok((connection, InForce { words: format!("journal_mode={mode} synchronous={synchronous}"), full: durability == Durability::Full }))
}

/// Makes an empty store under another name and puts it in place whole: a file that is there and empty was damaged, never just begun.
fn begin(folder: &Path, path: &Path) -> Result<(), StoreError> {
    let fault = |e: std::io::Error| StoreError::Folder { path: folder.display().to_string(), cause: e.to_string() };
    let new = folder.join(format!("{FILE}-new"));
    for name in [new.clone(), mark::log_path(&new)] {
        match std::fs::remove_file(&name) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fault(e)),
        }
    }
    let shown = new.display().to_string();
    let (mut connection, _) = connect(&new, Durability::Full).map_err(|e| name_file(e, &shown))?;
    schema::migrate(&mut connection, &shown).map_err(|e| name_file(e, &shown))?;
    connection.close().map_err(|(_, e)| name_file(e.into(), &shown))?;
    std::fs::rename(&new, path).map_err(fault)?;
    #[cfg(unix)]
    File::open(folder).and_then(|f| f.sync_all()).map_err(fault)?;
    Ok(())
}

fn make_folder(folder: &Path) -> Result<(), StoreError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|e| StoreError::Folder { path: folder.display().to_string(), cause: e.to_string() })
}

fn take_lock(folder: &Path) -> Result<File, StoreError> {
    let fault = |e: &std::io::Error| StoreError::Folder { path: folder.display().to_string(), cause: e.to_string() };
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(LOCK)).map_err(|e| fault(&e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let known = Read::by_ref(&mut file).take(32).read_to_string(&mut holder).is_ok() && holder.trim().parse::<u32>().is_ok();
            let holder = if known { format!(" (process {})", holder.trim()) } else { String::new() };
            return Err(StoreError::Locked { path: folder.display().to_string(), holder });
        }
        Err(TryLockError::Error(e)) => return Err(fault(&e)),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(|e| fault(&e))?;
    Ok(file)
}

/// Puts the name of the file into errors that SQLite reports without one.
fn name_file(error: StoreError, path: &str) -> StoreError {
    match error {
        StoreError::NotAStore { .. } => StoreError::NotAStore { path: path.into() },
        StoreError::Damaged { what, .. } => StoreError::Damaged { path: path.into(), what },
        StoreError::Io(cause) => StoreError::Folder { path: path.into(), cause },
        other @ (StoreError::Folder { .. }
        | StoreError::Locked { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::DiskFull
        | StoreError::Overloaded
        | StoreError::Closed
        | StoreError::OtherOwner(_)
        | StoreError::Row { .. }
        | StoreError::Internal(_)) => other,
    }
}

#[cfg(test)]
mod tests;
