//! Vectors by model fingerprint and exact text: nothing is embedded twice.
//!
//! In: SHA-256 of the text. Out: the vector with the number of its tokens. Form at rest: f32 little-endian with a CRC-32.
//! Invariant: a row of another dimension, with a wrong checksum or with a value that is not finite counts as missing and heals when it is put again.
//! Cost: one indexed look-up a text.

use super::{Store, StoreError};
use crate::types::ContentHash;
use rusqlite::{Connection, OptionalExtension};
use std::sync::Arc;

/// A vector as the embedding engine made it.
#[derive(Clone, PartialEq)]
pub struct StoredVector {
    /// L2-normalised.
    pub vector: Arc<[f32]>,
    /// Tokens read.
    pub tokens: u32,
    /// Whether the text was longer than the model's window.
    pub truncated: bool,
}

impl std::fmt::Debug for StoredVector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredVector({} dims, {} tokens)", self.vector.len(), self.tokens)
    }
}

impl Store {
    /// Vectors of `model` (a fingerprint) for `texts`, in their order; `None` where there is no sound one of dimension `dim`. Blocks.
    pub fn vectors(&self, model: &str, dim: usize, texts: &[ContentHash]) -> Result<Vec<Option<StoredVector>>, StoreError> {
        self.readers.read(|c| {
            let Some(model) = model_id(c, model)? else { return Ok(vec![None; texts.len()]) };
            let mut statement = c.prepare_cached("SELECT tokens, truncated, crc, data FROM vectors WHERE model = ?1 AND text = ?2")?;
            texts
                .iter()
                .map(|text| {
                    let row = statement.query_row((model, &text.0), |row| {
                        let data = row.get_ref(3)?.as_blob()?;
                        let vector = decode(data, dim, row.get::<_, i64>(2)?);
                        let tokens = u32::try_from(row.get::<_, i64>(0)?).unwrap_or(u32::MAX);
                        let truncated = row.get(1)?;
                        Ok(vector.map(|vector| StoredVector { vector, tokens, truncated }))
                    });
                    Ok(row.optional()?.flatten())
                })
                .collect()
        })
    }

    /// Keeps vectors of `model`.
    pub async fn put_vectors(&self, model: &str, vectors: Vec<(ContentHash, StoredVector)>) -> Result<(), StoreError> {
        let model = model.to_string();
        self.writer
            .write(move |c| {
                c.prepare_cached("INSERT INTO models (fingerprint) VALUES (?1) ON CONFLICT DO NOTHING")?.execute([&model])?;
                let id = model_id(c, &model)?.ok_or_else(|| StoreError::Internal("a model just written is not there".into()))?;
                let mut statement = c.prepare_cached(
                    "INSERT INTO vectors (model, text, tokens, truncated, crc, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT (model, text) DO UPDATE SET
                         tokens = excluded.tokens, truncated = excluded.truncated, crc = excluded.crc, data = excluded.data",
                )?;
                for (text, stored) in &vectors {
                    let data = encode(&stored.vector);
                    statement.execute((id, &text.0, i64::from(stored.tokens), stored.truncated, checksum(&data), data))?;
                }
                Ok(())
            })
            .await
    }

    /// Number of vectors for each model fingerprint.
    pub fn vector_counts(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.readers.read(|c| {
            let mut statement = c.prepare_cached(
                "SELECT m.fingerprint, (SELECT count(*) FROM vectors v WHERE v.model = m.id) FROM models m ORDER BY m.fingerprint",
            )?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Forgets at most `limit` vectors of a model; how many were forgotten. Call again until it is 0: the writer stays free in between.
    pub async fn forget_vectors(&self, model: &str, limit: u32) -> Result<usize, StoreError> {
        let model = model.to_string();
        self.writer
            .write(move |c| {
                let Some(id) = model_id(c, &model)? else { return Ok(0) };
                let gone = c
                    .prepare_cached("DELETE FROM vectors WHERE id IN (SELECT id FROM vectors WHERE model = ?1 LIMIT ?2)")?
                    .execute((id, limit))?;
                if gone == 0 {
                    c.prepare_cached("DELETE FROM models WHERE id = ?1")?.execute([id])?;
                }
                Ok(gone)
            })
            .await
    }
}

fn model_id(c: &Connection, fingerprint: &str) -> Result<Option<i64>, StoreError> {
    Ok(c.prepare_cached("SELECT id FROM models WHERE fingerprint = ?1")?.query_row([fingerprint], |row| row.get(0)).optional()?)
}

fn encode(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn decode(data: &[u8], dim: usize, crc: i64) -> Option<Arc<[f32]>> {
    if data.len() != dim * 4 || checksum(data) != crc {
        return None;
    }
    let (values, _) = data.as_chunks::<4>();
    let vector: Arc<[f32]> = values.iter().map(|v| f32::from_le_bytes(*v)).collect();
    vector.iter().all(|v| v.is_finite()).then_some(vector)
}

fn checksum(data: &[u8]) -> i64 {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    i64::from(crc.sum())
}
