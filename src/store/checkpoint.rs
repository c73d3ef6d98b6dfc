//! Carries the write-ahead log into the store's file on a thread of its own, so that commits don't wait for it.
//!
//! In: a word after each commit. How: when the log has grown, this thread copies what it holds (a passive checkpoint, which stops nobody). Commits go on
//! meanwhile, so the copy is always a little behind and the log would never begin anew; when it has grown long all the same, the writer copies
//! the little that is left between two commits.
//! Invariant: the log stays near [`LONG`] pages. Cost: a read of 96 bytes every [`EVERY`] commits. Not here: what a log holds (`mark`).

use super::mark;
use crate::clock::{Clock, SystemClock};
use crate::telemetry::metrics::{Histogram, observe};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Commits between two looks at the log.
const EVERY: u32 = 32;
/// Pages in the log from which on it is copied beside the commits.
const GROWN: u32 = 1_000;
/// Pages in the log from which on the writer copies the rest.
const LONG: u32 = 8_000;

/// The thread, as the writer knows it.
pub struct Checkpoints {
    db: PathBuf,
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    commits: u32,
}

impl Checkpoints {
    /// Starts the thread for the store in the file `db`, with `beside` as its connection; `writer` no longer copies by itself.
    ///
    /// # Errors
    /// No thread, or SQLite refused the setting: the writer then copies by itself as before.
    pub fn start(db: &Path, beside: Connection, writer: &Connection) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel::<()>(1);
        let thread = std::thread::Builder::new().name("reach-checkpoint".into()).spawn(move || {
            while asked.recv().is_ok() {
                passive(&beside);
            }
        })?;
        let own = Self { db: db.to_path_buf(), ask: Some(ask), thread: Some(thread), commits: 0 };
        writer.pragma_update(None, "wal_autocheckpoint", 0).map_err(std::io::Error::other)?;
        Ok(own)
    }

    /// A commit of `writer` is durable.
    pub fn committed(&mut self, writer: &Connection) {
        self.commits += 1;
        if self.commits < EVERY {
            return;
        }
        self.commits = 0;
        let pages = mark::pages(&self.db).unwrap_or(0);
        if pages >= LONG {
            passive(writer);
        } else if pages >= GROWN
            && let Some(ask) = &self.ask
        {
            // asked already: one look is as good as two
            ask.try_send(()).ok();
        }
    }
}

fn passive(connection: &Connection) {
    let begin = SystemClock.instant();
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        tracing::debug!(%error, "the log was not carried into the store this time");
    }
    observe(Histogram::StoreWrite, &["checkpoint"], SystemClock.instant().duration_since(begin).as_secs_f64());
}

impl Drop for Checkpoints {
    /// Ends the thread after the copy it is at.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_begins_anew_although_commits_never_stop() {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("x.db");
        let open = || {
            let c = Connection::open(&db).unwrap();
            c.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE IF NOT EXISTS t (x BLOB)").unwrap();
            c
        };
        let writer = open();
        let mut checkpoints = Checkpoints::start(&db, open(), &writer).unwrap();
        let (mut longest, mut shrunk, mut before) = (0, false, 0);
        for _ in 0..6_000 {
            writer.execute("INSERT INTO t VALUES (randomblob(6000))", []).unwrap();
            checkpoints.committed(&writer);
            let pages = mark::pages(&db).unwrap();
            (longest, shrunk) = (longest.max(pages), shrunk || pages < before);
            before = pages;
        }
        assert!(shrunk && longest < 2 * LONG, "{longest}");
        drop(checkpoints);
        assert_eq!(writer.query_row("SELECT count(*) FROM t", [], |r| r.get::<_, i64>(0)).unwrap(), 6_000);
    }
}
