//! Vectors of texts: from the store where they are known, else from the model, and then kept. Nothing is embedded twice.
//!
//! In: texts and an arm. Out: a vector a distinct text, and how many had to be computed. Keys are (model fingerprint, exact text).
//! Cost: one read of the store for all texts; one embedding a new text, in chunks that leave room for queries.

use crate::embed::models::{ArmId, Models};
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::store::{Store, StoredVector};
use crate::types::hash::ContentHash;
use std::collections::HashMap;
use std::sync::Arc;

/// Texts handed to the worker at once.
const CHUNK: usize = 64;

/// Vectors by exact text.
pub type ByText = HashMap<Arc<str>, Arc<[f32]>>;

/// What was found and what is missing.
pub struct Known {
    /// Vectors that the store had.
    pub found: ByText,
    /// Distinct texts it did not have.
    pub missing: Vec<Arc<str>>,
}

/// Looks texts up in the store.
pub fn known(store: &Store, fingerprint: &str, dim: usize, texts: &[Arc<str>]) -> Result<Known, Error> {
    let mut distinct: Vec<Arc<str>> = texts.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let hashes: Vec<ContentHash> = distinct.iter().map(|t| ContentHash::of_text(t)).collect();
    let mut known = Known { found: HashMap::with_capacity(distinct.len()), missing: Vec::new() };
    for (text, vector) in distinct.into_iter().zip(store.vectors(fingerprint, dim, &hashes)?) {
        match vector {
            Some(v) => {
                known.found.insert(text, v.vector);
            }
            None => known.missing.push(text),
        }
    }
    Ok(known)
}

/// Vectors of all `texts`; computes and keeps what is missing. Returns them and the number of embeddings computed.
pub async fn vectors(
    store: &Arc<Store>,
    models: &Models,
    arm: ArmId,
    texts: &[Arc<str>],
    class: WorkClass,
) -> Result<(ByText, usize), Error> {
    let Some(info) = models.info(arm).cloned() else { return Err(Error::internal(format!("there is no arm {}", arm.0))) };
    let (store_, fingerprint, dim, wanted) = (store.clone(), info.fingerprint.clone(), info.dim, texts.to_vec());
    let known = tokio::task::spawn_blocking(move || known(&store_, &fingerprint, dim, &wanted)).await.map_err(Error::internal)??;
    let mut out = known.found;
    let computed = known.missing.len();
    for chunk in known.missing.chunks(CHUNK) {
        let embedded = models.embed(arm, chunk, class).await?;
        let mut rows = Vec::with_capacity(chunk.len());
        for (text, e) in chunk.iter().zip(embedded) {
            rows.push((ContentHash::of_text(text), StoredVector { vector: e.vector.clone(), tokens: e.tokens, truncated: e.truncated }));
            out.insert(text.clone(), e.vector);
        }
        store.put_vectors(&info.fingerprint, rows).await?;
    }
    Ok((out, computed))
}
