//! Schemas by reference: `schema://folder/name.json` from one configured folder; web addresses only when they are allowed and something fetches.
//!
//! Invariants: nothing outside the folder is read (no `..`, no link that leads out); a document is read once and kept until it is
//! forgotten; a web address is never asked while a decision is made. Cost: one file read a reference.
//! Not here: fetching (the caller brings a [`Fetch`]), what a schema may contain (`guard`).

use super::guard::MAX_SCHEMA;
use crate::types::{Fault, address, document, text};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Most documents that are kept.
const MAX_CACHED: usize = 10_000;

/// Fetches a schema from the web, within limits of its own (no redirects, addresses checked and pinned, small, quick).
pub trait Fetch: Send + Sync {
    /// The bytes at a canonical `http` or `https` URL, at most `limit`.
    fn fetch(&self, url: &str, limit: usize) -> Result<Vec<u8>, String>;
}

/// Where schemas by reference come from.
#[derive(Default)]
pub struct Schemas {
    folder: Option<PathBuf>,
    fetch: Option<Arc<dyn Fetch>>,
    known: Mutex<HashMap<String, Arc<Value>>>,
}

impl std::fmt::Debug for Schemas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schemas({:?}, fetch: {})", self.folder, self.fetch.is_some())
    }
}

impl Schemas {
    /// Inline schemas only.
    pub fn inline() -> Self {
        Self::default()
    }

    /// With a local folder, and with something that fetches when web addresses are allowed.
    pub fn new(folder: Option<PathBuf>, fetch: Option<Arc<dyn Fetch>>) -> Self {
        Self { folder, fetch, known: Mutex::default() }
    }

    /// The schema itself: an inline one as it is, a reference by its document. May read a file; not for the path of a decision.
    pub fn resolve(&self, schema: &Arc<Value>) -> Result<Arc<Value>, Fault> {
        let Value::String(reference) = &**schema else { return Ok(schema.clone()) };
        if let Some(known) = self.known.lock().get(reference) {
            return Ok(known.clone());
        }
        let bytes = match reference.strip_prefix("schema://") {
            Some(path) => self.read(path)?,
            None => self.download(reference)?,
        };
        let value = Arc::new(
            document::json(&bytes).map_err(|f| Fault { expected: format!("{} to hold {}", text::quoted(reference), f.expected), ..f })?,
        );
        if value.is_string() {
            return Err(Fault::new("", "a schema, not a further reference", "put the schema itself into the file"));
        }
        let mut known = self.known.lock();
        if known.len() >= MAX_CACHED {
            known.clear();
        }
        known.insert(reference.clone(), value.clone());
        Ok(value)
    }

    /// Forgets what was read, so that changed files are read anew.
    pub fn forget(&self) {
        self.known.lock().clear();
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        let fault =
            |hint: String| Fault::new("", "a reference such as \"schema://orders/refund.json\" to a file of the schema folder", hint);
        let Some(folder) = &self.folder else {
            return Err(fault("no schema folder is configured: set schemas.folder, or write the schema inline".into()));
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let inner = Path::new(path);
        let straight = inner.components().all(|c| matches!(c, Component::Normal(_)));
        if path.is_empty() || path.len() > 200 || !path.chars().all(plain) || !straight || path.contains("..") {
            return Err(fault("letters, digits, '_', '-', '.' and '/' only, without '..'".into()));
        }
        let missing = || fault("there is no such file in the schema folder".into());
        let root = folder.canonicalize().map_err(|_| fault("the schema folder can't be read".into()))?;
        let target = root.join(inner).canonicalize().map_err(|_| missing())?;
        if !target.starts_with(&root) || !target.is_file() {
            return Err(missing());
        }
        let mut bytes = Vec::new();
        let limit = MAX_SCHEMA as u64 + 1;
        File::open(&target)
            .and_then(|f| f.take(limit).read_to_end(&mut bytes))
            .map_err(|e| fault(format!("the file can't be read: {e}")))?;
        if bytes.len() > MAX_SCHEMA {
            return Err(fault("the file is larger than 64 KiB".into()));
        }
        Ok(bytes)
    }

    fn download(&self, url: &str) -> Result<Vec<u8>, Fault> {
        let Some(fetch) = &self.fetch else {
            return Err(Fault::new(
                "",
                "an inline schema or a \"schema://\" reference",
                "schemas from the web are not allowed here: copy it into the schema folder",
            ));
        };
        let url = address::canonical(url, address::Use::Web).map_err(|why| Fault::new("", address::Use::Web.expected(), why.hint()))?;
        let bytes = fetch.fetch(&url, MAX_SCHEMA).map_err(|e| Fault::new("", "a schema that can be fetched", text::quoted(&e)))?;
        if bytes.len() > MAX_SCHEMA {
            return Err(Fault::new("", "a schema of at most 64 KiB", "shorten it"));
        }
        Ok(bytes)
    }
}
