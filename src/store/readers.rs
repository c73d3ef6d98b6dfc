//! A few connections for reading beside the writer. WAL: readers and the writer do not wait for each other.
//!
//! Cost: opened on first use, at most [`READERS`]; when all are taken a reader waits up to 5 s, then is told to come back.

use super::error::StoreError;
use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most reading connections.
pub const READERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(5);

/// The pool. A slot is a connection, or leave to open one.
pub struct Readers {
    path: PathBuf,
    give: Sender<Option<Connection>>,
    take: Receiver<Option<Connection>>,
}

impl Readers {
    /// A pool on the file at `path`; opens nothing yet.
    pub fn new(path: &Path) -> Self {
        let (give, take) = bounded(READERS);
        for _ in 0..READERS {
            drop(give.try_send(None));
        }
        Self { path: path.to_path_buf(), give, take }
    }

    /// Runs `work` on a reading connection. Blocks: not for an async thread when the answer may be long.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let slot = self.take.recv_timeout(PATIENCE).map_err(|_| StoreError::Overloaded)?;
        let mut back = Back { give: &self.give, connection: None };
        back.connection = Some(match slot {
            Some(connection) => connection,
            None => self.open()?,
        });
        match &back.connection {
            Some(connection) => work(connection),
            None => Err(StoreError::Closed),
        }
    }

    fn open(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        // a reader that goes last leaves the log to the writer: the mark beside it counts on it (`store::mark`)
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -8000; PRAGMA trusted_schema = OFF;")?;
        Ok(connection)
    }
}

/// Gives the slot back, also when `work` panics.
struct Back<'p> {
    give: &'p Sender<Option<Connection>>,
    connection: Option<Connection>,
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        // as many slots as places: never full
        drop(self.give.try_send(self.connection.take()));
    }
}
