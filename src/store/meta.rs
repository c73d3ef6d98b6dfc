//! Small named values: the generation of the registry, marks of background work.

use super::sum::Sum;
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
    let mut find = connection.prepare_cached("SELECT value, crc FROM meta WHERE key = ?1")?;
    let row = find.query_row([key], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).optional()?;
    let Some((value, crc)) = row else { return Ok(None) };
    sum(key, &value).check(crc, || format!("the value {key}"))?;
    Ok(Some(value))
}

/// Writes a value on a connection.
pub(super) fn set(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO meta (key, value, crc) VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc",
        )?
        .execute((key, value, sum(key, value).done()))?;
    Ok(())
}

fn sum(key: &str, value: &str) -> Sum {
    Sum::default().text(key).text(value)
}
