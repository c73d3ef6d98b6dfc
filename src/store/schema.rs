//! The tables, as a list of migrations. Format n = the first n migrations ran; it stands in `user_version`.
//!
//! Rule: a migration that was released never changes; new tables (messages, outcomes, history) come as further ones.
//! A file with more migrations than we know is refused by name.

use super::error::StoreError;
use rusqlite::Connection;

/// `PRAGMA application_id` of our files: "RCH1".
pub const APPLICATION_ID: i64 = 0x5243_4831;

const MIGRATIONS: &[&str] = &[
    // 1: meta, registry, vectors, decision log
    "CREATE TABLE meta (
        key TEXT NOT NULL PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;

    -- every version ever registered; stays while the decision log may refer to it
    CREATE TABLE manifests (
        id INTEGER PRIMARY KEY,
        domain TEXT NOT NULL,
        namespace TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        hash BLOB NOT NULL CHECK (length(hash) = 32),
        body TEXT NOT NULL,
        first_ms INTEGER NOT NULL,
        UNIQUE (domain, namespace, agent_id, hash)
    ) STRICT;

    -- what holds now; manifest NULL = deregistered, the id stays with its owner
    CREATE TABLE agents (
        domain TEXT NOT NULL,
        namespace TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        owner TEXT NOT NULL,
        manifest INTEGER REFERENCES manifests (id),
        generation INTEGER NOT NULL,
        registered_ms INTEGER NOT NULL,
        changed_ms INTEGER NOT NULL,
        draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
        PRIMARY KEY (domain, namespace, agent_id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX agents_generation ON agents (generation);

    CREATE TABLE models (
        id INTEGER PRIMARY KEY,
        fingerprint TEXT NOT NULL UNIQUE
    ) STRICT;

    -- data: f32 little-endian, dim * 4 bytes; crc: CRC-32 of data
    CREATE TABLE vectors (
        id INTEGER PRIMARY KEY,
        model INTEGER NOT NULL REFERENCES models (id),
        text BLOB NOT NULL CHECK (length(text) = 32),
        tokens INTEGER NOT NULL,
        truncated INTEGER NOT NULL CHECK (truncated IN (0, 1)),
        crc INTEGER NOT NULL,
        data BLOB NOT NULL,
        UNIQUE (model, text)
    ) STRICT;

    -- body: JSON, zlib; text apart, so that it can be left out or forgotten
    CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        at_ms INTEGER NOT NULL,
        caller TEXT NOT NULL,
        kind TEXT NOT NULL,
        text TEXT,
        bytes INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX decisions_at ON decisions (at_ms, seq, bytes);",
    // 2: messages
    super::messages::TABLES,
    // 3: outcomes
    super::outcomes::TABLES,
    // 4: checksums of rows; NULL = written before
    "ALTER TABLE meta ADD COLUMN crc INTEGER;
    ALTER TABLE agents ADD COLUMN crc INTEGER;
    ALTER TABLE messages ADD COLUMN crc INTEGER;
    ALTER TABLE envelopes ADD COLUMN crc INTEGER;
    ALTER TABLE message_log ADD COLUMN crc INTEGER;
    ALTER TABLE message_keys ADD COLUMN crc INTEGER;
    ALTER TABLE outcomes ADD COLUMN crc INTEGER;",
    // 5: what a message led to; NULL = nothing led to it, or written before
    "ALTER TABLE messages ADD COLUMN parent TEXT;
    CREATE INDEX messages_parent ON messages (parent, seq) WHERE parent IS NOT NULL;",
];

/// The newest format this program reads and writes.
pub fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Brings the file at `path` to the newest format, or refuses it by name.
pub fn migrate(connection: &mut Connection, path: &str) -> Result<(), StoreError> {
    let pragma = |c: &Connection, name: &str| c.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let found = pragma(connection, "user_version")?;
    let application = pragma(connection, "application_id")?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (application != 0 || found != 0 || tables != 0) {
        return Err(StoreError::NotAStore { path: path.into() });
    }
    if found > newest() || found < 0 {
        return Err(StoreError::NewerFormat { path: path.into(), found, known: newest() });
    }
    for (index, sql) in MIGRATIONS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0)) {
        let step = connection.transaction()?;
        // tables that are there already, or are not: the number of the format is wrong
        step.execute_batch(sql).map_err(|e| {
            let error = StoreError::from(e);
            if let StoreError::Internal(what) = &error {
                return StoreError::Damaged { path: path.into(), what: format!("its format is not {found}: {what}") };
            }
            error
        })?;
        step.pragma_update(None, "application_id", APPLICATION_ID)?;
        step.pragma_update(None, "user_version", i64::try_from(index + 1).unwrap_or(i64::MAX))?;
        step.commit()?;
    }
    Ok(())
}
