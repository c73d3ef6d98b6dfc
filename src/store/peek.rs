//! A look at a store that another process may have open: reads only, takes no lock, changes nothing.
//!
//! In: a data folder. Out: decisions, registry, small values. WAL lets readers and the one writer pass each other.
//! Invariant: a folder without a store, a foreign file and another format are refused by name; nothing is made or migrated.

use super::decisions::{Export, Span};
use super::readers::Readers;
use super::{FILE, Loaded, StoreError, decisions, meta, outcomes, registry, schema};
use crate::types::outcome::Outcome;
use std::path::Path;

/// First format whose outcomes have the columns that are read.
const WITH_OUTCOMES: i64 = 4;

/// A store, to be read.
pub struct Peek {
    readers: Readers,
    format: i64,
}

impl Peek {
    /// Opens the store in `folder` for reading.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let shown = path.display().to_string();
        if !path.is_file() {
            return Err(StoreError::Folder { path: folder.display().to_string(), cause: format!("there is no {FILE} in it") });
        }
        let readers = Readers::new(&path);
        let (application, found) = readers.read(|c| {
            let pragma = |name: &str| c.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            Ok((pragma("application_id")?, pragma("user_version")?))
        })?;
        if application != schema::APPLICATION_ID {
            return Err(StoreError::NotAStore { path: shown });
        }
        if found > schema::newest() {
            return Err(StoreError::NewerFormat { path: shown, found, known: schema::newest() });
        }
        Ok(Self { readers, format: found })
    }

    /// Decisions made in `from_ms..to_ms`, oldest first.
    pub fn decisions(&self, from_ms: i64, to_ms: i64) -> Export<'_> {
        Export::new(&self.readers, from_ms, to_ms)
    }

    /// What the decision log holds.
    pub fn span(&self) -> Result<Span, StoreError> {
        decisions::span(&self.readers)
    }

    /// Every outcome that was reported, oldest first; none where the store is older than outcomes.
    pub fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        if self.format < WITH_OUTCOMES { Ok(Vec::new()) } else { outcomes::all(&self.readers) }
    }

    /// Everything that is registered.
    pub fn registry(&self) -> Result<Loaded, StoreError> {
        registry::load(&self.readers)
    }

    /// A small value by its name.
    pub fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.readers.read(|c| meta::get(c, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Durability, Store};

    #[tokio::test]
    async fn a_store_in_use_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Peek::open(folder.path()).err().unwrap().to_string().contains(FILE));
        let store = Store::open(folder.path(), Durability::Process).unwrap();
        store.set_meta("a", "1").await.unwrap();
        let peek = Peek::open(folder.path()).unwrap();
        assert_eq!(peek.meta("a").unwrap().as_deref(), Some("1"));
        assert_eq!((peek.decisions(0, i64::MAX).count(), peek.span().unwrap().records, peek.registry().unwrap().agents.len()), (0, 0, 0));
        store.set_meta("a", "2").await.unwrap();
        assert_eq!(peek.meta("a").unwrap().as_deref(), Some("2"));
    }
}
