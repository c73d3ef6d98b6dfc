//! Small named values: the generation of the registry, marks of background work.

use super::{Store, StoreError};
use rusqlite::{Connection, OptionalExtension};

impl Store {
    /// Reads a value.
    pub fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.readers.read(|c| get(c, key))
    }

    /// Writes a value.
    pub async fn set_meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let (key, value) = (key.to_string(), value.to_string());
        self.writer.write(move |c| set(c, &key, &value)).await
    }
}

/// Reads a value on a connection.
pub(super) fn get(connection: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    Ok(connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?.query_row([key], |row| row.get(0)).optional()?)
}

/// Writes a value on a connection.
pub(super) fn set(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value")?
        .execute([key, value])?;
    Ok(())
}
