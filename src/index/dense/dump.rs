//! Graphs as bytes, so that a restart need not build them again. A cache: damaged or outdated means built anew, never a wrong answer.
//!
//! ```text
//! dump  := "RCHGRAF" version(u8 = 1) count(u32) graph*count sha256(of all before)
//! graph := fingerprint[32] neighbours(u32) entry(u32) top(u32) base upper_at upper      (each list: length(u32) values(u32)*)
//! ```
//! All numbers are little-endian. The fingerprint is SHA-256 over the int8 rows, their scales and how the graph is built: a graph fits only
//! the very rows it was made for, in their order. Not here: files (`store`).

use super::graph::{Graph, GraphConfig, NONE, Rows, TOP};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use thiserror::Error;

const MAGIC: &[u8; 8] = b"RCHGRAF\x01";
const SUM: usize = 32;

/// Which rows a graph belongs to.
pub(crate) type Fingerprint = [u8; 32];

/// Why a dump of graphs can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DumpError {
    /// It does not begin like a dump of this version.
    #[error("not a graph dump of format 1")]
    Format,
    /// It was cut off or changed.
    #[error("the graph dump is damaged: its checksum does not fit")]
    Checksum,
    /// Its checksum fits, but it holds what no graph holds.
    #[error("the graph dump holds an impossible graph")]
    Content,
}

/// Fingerprint of the rows under a graph.
pub(crate) fn fingerprint(rows: Rows<'_>, cfg: &GraphConfig) -> Fingerprint {
    let mut sum = Sha256::new();
    for number in [rows.width, rows.sums.len(), cfg.neighbours, cfg.ef_build] {
        sum.update((number as u64).to_le_bytes());
    }
    // int8 as bytes, a block at a time
    let mut block = Vec::with_capacity(65_536);
    for values in rows.rows.chunks(65_536) {
        block.clear();
        block.extend(values.iter().map(|v| v.to_le_bytes()[0]));
        sum.update(&block);
    }
    for scale in rows.scales {
        sum.update(scale.to_le_bytes());
    }
    sum.finalize().into()
}

/// Writes graphs as a dump.
pub(crate) fn write<'a>(graphs: impl Iterator<Item = (Fingerprint, &'a Graph)>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([0; 4]);
    let mut count = 0u32;
    for (fingerprint, graph) in graphs {
        count += 1;
        out.extend(fingerprint);
        for number in [graph.neighbours as u32, graph.entry, graph.top as u32] {
            out.extend(number.to_le_bytes());
        }
        for list in [&graph.base, &graph.upper_at, &graph.upper] {
            out.extend((list.len() as u32).to_le_bytes());
            out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
        }
    }
    if let Some(place) = out.get_mut(MAGIC.len()..MAGIC.len() + 4) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    let sum = Sha256::digest(&out);
    out.extend(sum);
    out
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], DumpError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(DumpError::Content)?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self) -> Result<u32, DumpError> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| DumpError::Content)
    }

    fn list(&mut self) -> Result<Vec<u32>, DumpError> {
        let n = self.number()? as usize;
        let bytes = self.take(n.checked_mul(4).ok_or(DumpError::Content)?)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|v| u32::from_le_bytes(*v)).collect())
    }
}

/// Reads a dump.
pub(crate) fn read(dump: &[u8]) -> Result<HashMap<Fingerprint, Arc<Graph>>, DumpError> {
    let body = dump.strip_prefix(MAGIC.as_slice()).ok_or(DumpError::Format)?;
    let (body, sum) = body.len().checked_sub(SUM).and_then(|at| body.split_at_checked(at)).ok_or(DumpError::Checksum)?;
    let mut digest = Sha256::new();
    digest.update(MAGIC);
    digest.update(body);
    if digest.finalize().as_slice() != sum {
        return Err(DumpError::Checksum);
    }
    let mut reader = Reader(body);
    let mut out = HashMap::new();
    for _ in 0..reader.number()? {
        let fingerprint: Fingerprint = reader.take(32)?.try_into().map_err(|_| DumpError::Content)?;
        let (neighbours, entry, top) = (reader.number()? as usize, reader.number()?, reader.number()? as usize);
        let (base, upper_at, upper) = (reader.list()?, reader.list()?, reader.list()?);
        let n = upper_at.len();
        let node = |id: &u32| *id == NONE || (*id as usize) < n;
        let sound = (4..=64).contains(&neighbours)
            && top <= TOP
            && base.len() == n * 2 * neighbours
            && node(&entry)
            && base.iter().chain(&upper).all(node)
            && upper_at.iter().all(|at| *at == NONE || (*at as usize) < upper.len());
        if !sound {
            return Err(DumpError::Content);
        }
        out.insert(fingerprint, Arc::new(Graph { neighbours, base, upper_at, upper, entry, top }));
    }
    if reader.0.is_empty() { Ok(out) } else { Err(DumpError::Content) }
}
