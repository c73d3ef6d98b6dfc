//! What can go wrong with the store, and what a caller is told.

use crate::error::{Code, Error};
use rusqlite::ErrorCode;
use std::time::Duration;

/// A fault of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The data folder can't be made or written.
    #[error("the data folder {path} can't be used: {cause}; choose another with --data, or change its permissions")]
    Folder {
        /// The folder.
        path: String,
        /// Words of the operating system.
        cause: String,
    },
    /// Another process has it open.
    #[error(
        "the data folder {path} is in use by another process{holder}; stop that one, talk to it with --server, or choose another folder with --data"
    )]
    Locked {
        /// The folder.
        path: String,
        /// ` (process 123)` when it is known.
        holder: String,
    },
    /// The file is something else, or its beginning is damaged.
    #[error("{path} is not a store of Agent-Reach; move it away, or choose another folder with --data")]
    NotAStore {
        /// The file.
        path: String,
    },
    /// Written by a later version.
    #[error("{path} has format {found}, this program reads formats up to {known}; use a newer program")]
    NewerFormat {
        /// The file.
        path: String,
        /// Format of the file.
        found: i64,
        /// Newest format known.
        known: i64,
    },
    /// The file failed its check.
    #[error("{path} is damaged ({what}); restore a copy, or move it and what is beside it (reach.db*) away to begin anew")]
    Damaged {
        /// The file.
        path: String,
        /// First finding.
        what: String,
    },
    /// One row failed its check; the others are sound.
    #[error("{row} in the store is damaged ({what}); restore a copy of the data folder")]
    Row {
        /// Which one.
        row: String,
        /// What is wrong with it.
        what: String,
    },
    /// No space left. Nothing was written; reads still work.
    #[error("the disk is full: nothing was written; free some space and try again")]
    DiskFull,
    /// The device failed while writing: no further write is taken until the store is opened again.
    #[error("the store takes no writes after an I/O error ({0}); restart when the device works again")]
    Io(String),
    /// More waits to be written than fits the queue.
    #[error("too much waits to be written; try again shortly")]
    Overloaded,
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
    /// The id belongs to someone else, also after it was deregistered.
    #[error("the id {0} belongs to another owner; choose another agent_id")]
    OtherOwner(String),
    /// A fault of ours: a statement that does not fit, an operation that panicked.
    #[error("store: {0}")]
    Internal(String),
}

impl From<rusqlite::Error> for StoreError {
    fn from(e: rusqlite::Error) -> Self {
        use rusqlite::Error as Sql;
        if let Sql::InvalidColumnType(..) | Sql::FromSqlConversionFailure(..) | Sql::IntegralValueOutOfRange(..) | Sql::Utf8Error(..) = &e {
            return Self::Row { row: "a row".into(), what: e.to_string() };
        }
        // every statement of ours is run by a test: one that finds no table or column stands before a store whose description was changed
        if let Sql::SqlInputError { msg, .. } | Sql::SqliteFailure(_, Some(msg)) = &e
            && (msg.starts_with("no such table") || msg.starts_with("no such column"))
        {
            return Self::Damaged { path: "the store".into(), what: format!("its tables are not those that were made: {msg}") };
        }
        match e.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull,
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => Self::Io(e.to_string()),
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path: "the store".into(), what: e.to_string() },
            Some(ErrorCode::NotADatabase) => Self::NotAStore { path: "the store".into() },
            _ => Self::Internal(e.to_string()),
        }
    }
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        let words = e.to_string();
        match e {
            StoreError::OtherOwner(_) => Self::new(Code::Conflict, words),
            StoreError::Overloaded | StoreError::DiskFull => Self::overloaded(words, Duration::from_secs(1)),
            StoreError::Closed => Self::overloaded(words, Duration::from_secs(5)),
            StoreError::Folder { .. } | StoreError::Locked { .. } | StoreError::NotAStore { .. } | StoreError::NewerFormat { .. } => {
                Self::new(Code::FailedPrecondition, words)
            }
            StoreError::Damaged { .. } | StoreError::Row { .. } | StoreError::Io(_) | StoreError::Internal(_) => {
                Self::new(Code::Internal, words)
            }
        }
    }
}
