//! The decision log: what replay needs, compressed, with retention by age and size.
//!
//! In: records with a JSON body and, apart from it, the text (which may be left out or forgotten later). Out: records by id or by time.
//! Invariants: a record is written once; order is time, then arrival; the log never refuses because it is full, it forgets the oldest.
//! Cost: about 30 µs a record on a thread for blocking work (compression), one batch commit for many. Not here: what the body holds (`route`).

use super::readers::Readers;
use super::{Store, StoreError};
use crate::types::DecisionKind;
use flate2::{Compress, Compression, FlushCompress, Status, read::ZlibDecoder};
use rusqlite::{OptionalExtension, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Read;
use std::ops::ControlFlow;

/// Largest body after decompression, bytes.
const MAX_BODY: u64 = 16 << 20;
/// Records read at once by an export.
const PAGE: usize = 200;
/// Records deleted in one transaction.
const CHUNK: usize = 5_000;

/// One decision as it is logged; `B` = its body, anything that becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRecord<B = Value> {
    /// Id of the decision.
    pub id: String,
    /// When it was made, milliseconds since the epoch.
    pub at_ms: i64,
    /// Who asked.
    pub caller: String,
    /// The answer.
    pub kind: DecisionKind,
    /// The text of the query, unless it is not to be kept.
    pub text: Option<String>,
    /// Everything else that replay needs.
    pub body: B,
}

impl<B: Serialize> DecisionRecord<B> {
    fn packed(self, packer: &mut Packer) -> Result<DecisionRecord<Vec<u8>>, StoreError> {
        let body = packer.pack(&self.body)?;
        Ok(DecisionRecord { id: self.id, at_ms: self.at_ms, caller: self.caller, kind: self.kind, text: self.text, body })
    }
}

/// How long decisions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Oldest kept, milliseconds.
    pub age_ms: i64,
    /// Most kept, bytes as stored.
    pub bytes: u64,
}

/// What the log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Number of records.
    pub records: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Time of the oldest, if there is one.
    pub oldest_ms: Option<i64>,
    /// Time of the newest.
    pub newest_ms: Option<i64>,
}

impl Store {
    /// Writes records and waits until they are durable; a record with a known id is ignored.
    pub async fn log_decisions<B: Serialize + Send + 'static>(&self, records: Vec<DecisionRecord<B>>) -> Result<(), StoreError> {
        let pack_all = move || {
            let mut packer = Packer::default();
            records.into_iter().map(|record| record.packed(&mut packer)).collect::<Result<Vec<_>, _>>()
        };
        let packed = tokio::task::spawn_blocking(pack_all).await.map_err(|e| StoreError::Internal(e.to_string()))??;
        self.writer.write_beside(move |c| packed.iter().try_for_each(|record| insert(c, record))).await
    }

    /// One decision by its id.
    pub fn decision(&self, id: &str) -> Result<Option<DecisionRecord>, StoreError> {
        let row = self.readers.read(|c| {
            let mut statement = c.prepare_cached(&format!("{SELECT} WHERE id = ?1"))?;
            Ok(statement.query_row([id], raw).optional()?)
        })?;
        row.map(|(_, packed)| packed.unpack()).transpose()
    }

    /// Decisions made in `from_ms..to_ms`, oldest first. Holds no transaction between pages; what is logged meanwhile may or may not appear.
    pub fn export_decisions(&self, from_ms: i64, to_ms: i64) -> Export<'_> {
        Export::new(&self.readers, from_ms, to_ms)
    }

    /// The last `n` decisions, oldest first.
    pub fn last_decisions(&self, n: usize) -> Result<Vec<DecisionRecord>, StoreError> {
        last(&self.readers, n)
    }

    /// What the log holds.
    pub fn decisions_span(&self) -> Result<Span, StoreError> {
        span(&self.readers)
    }

    /// Forgets what retention does not keep; how many records. Works in small transactions, so that others are written in between.
    pub async fn prune_decisions(&self, retention: Retention, now_ms: i64) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        loop {
            let span = self.decisions_span()?;
            let over = span.bytes.saturating_sub(retention.bytes);
            let gone = self
                .writer
                .write(move |c| {
                    let mut oldest = c.prepare_cached("SELECT seq, at_ms, bytes FROM decisions ORDER BY at_ms, seq LIMIT ?1")?;
                    let mut rows = oldest.query([i64::try_from(CHUNK).unwrap_or(i64::MAX)])?;
                    let (mut freed, mut last) = (0u64, None);
                    while let Some(row) = rows.next()? {
                        let (seq, at_ms, bytes): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                        if at_ms >= now_ms.saturating_sub(retention.age_ms) && freed >= over {
                            break;
                        }
                        freed += u64::try_from(bytes).unwrap_or(0);
                        last = Some((at_ms, seq));
                    }
                    match last {
                        None => Ok(0),
                        Some((at_ms, seq)) => {
                            Ok(c.prepare_cached("DELETE FROM decisions WHERE (at_ms, seq) <= (?1, ?2)")?.execute((at_ms, seq))?)
                        }
                    }
                })
                .await?;
            forgotten += gone as u64;
            if gone < CHUNK {
                return Ok(forgotten);
            }
        }
    }

    /// Forgets the texts of decisions older than `before_ms`; the rest stays for replay.
    pub async fn forget_texts(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.writer
            .write(move |c| {
                Ok(c.prepare_cached("UPDATE decisions SET text = NULL WHERE at_ms < ?1 AND text IS NOT NULL")?.execute([before_ms])?)
            })
            .await
    }
}

/// What the log holds, by any reader.
pub(super) fn span(readers: &Readers) -> Result<Span, StoreError> {
    readers.read(|c| {
        Ok(c.prepare_cached("SELECT count(*), coalesce(sum(bytes), 0), min(at_ms), max(at_ms) FROM decisions INDEXED BY decisions_at")?
            .query_row([], |row| {
                let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
                Ok(Span { records: unsigned(row.get(0)?), bytes: unsigned(row.get(1)?), oldest_ms: row.get(2)?, newest_ms: row.get(3)? })
            })?)
    })
}

/// The last `n` decisions, oldest first.
pub(super) fn last(readers: &Readers, n: usize) -> Result<Vec<DecisionRecord>, StoreError> {
    let rows: Vec<(i64, Packed)> = readers.read(|c| {
        let mut statement = c.prepare_cached(&format!("{SELECT} ORDER BY at_ms DESC, seq DESC LIMIT ?1"))?;
        let rows = statement.query_map([i64::try_from(n).unwrap_or(i64::MAX)], raw)?;
        Ok(rows.collect::<Result<_, _>>()?)
    })?;
    rows.into_iter().rev().map(|(_, raw)| raw.unpack()).collect()
}

/// Decisions in order of time, read page by page.
pub struct Export<'s> {
    readers: &'s Readers,
    after: (i64, i64),
    to_ms: i64,
    page: std::vec::IntoIter<(i64, Packed)>,
    done: bool,
}

impl<'s> Export<'s> {
    /// Decisions made in `from_ms..to_ms`.
    pub(super) fn new(readers: &'s Readers, from_ms: i64, to_ms: i64) -> Self {
        Self { readers, after: (from_ms, -1), to_ms, page: Vec::new().into_iter(), done: false }
    }

    /// The next page, or the end.
    fn turn(&mut self) -> Result<ControlFlow<()>, StoreError> {
        let ((at_ms, seq), to_ms) = (self.after, self.to_ms);
        let rows: Vec<(i64, Packed)> = self.readers.read(|c| {
            let sql = format!("{SELECT} WHERE (at_ms, seq) > (?1, ?2) AND at_ms < ?3 ORDER BY at_ms, seq LIMIT ?4");
            let mut statement = c.prepare_cached(&sql)?;
            let rows = statement.query_map((at_ms, seq, to_ms, i64::try_from(PAGE).unwrap_or(i64::MAX)), raw)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let Some((seq, last)) = rows.last() else { return Ok(ControlFlow::Break(())) };
        self.after = (last.at_ms, *seq);
        self.page = rows.into_iter();
        Ok(ControlFlow::Continue(()))
    }
}

impl Iterator for Export<'_> {
    type Item = Result<DecisionRecord, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_packed()?.and_then(Packed::unpack))
    }
}

impl<'s> Export<'s> {
    /// The same decisions with their bodies still packed.
    pub fn packed(mut self) -> impl Iterator<Item = Result<Packed, StoreError>> + Send + use<'s> {
        std::iter::from_fn(move || self.next_packed())
    }

    fn next_packed(&mut self) -> Option<Result<Packed, StoreError>> {
        loop {
            if let Some((_, raw)) = self.page.next() {
                return Some(Ok(raw));
            }
            if self.done {
                return None;
            }
            match self.turn() {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => self.done = true,
                Err(e) => {
                    self.done = true;
                    return Some(Err(e));
                }
            }
        }
    }
}

const SELECT: &str = "SELECT seq, id, at_ms, caller, kind, text, body FROM decisions";

/// A decision as it is stored, so that unpacking its body can be spread over the cores.
#[derive(Clone, PartialEq)]
pub struct Packed {
    /// Id of the decision.
    pub id: String,
    /// When it was made, milliseconds since the epoch.
    pub at_ms: i64,
    /// Who asked.
    pub caller: String,
    /// The text of the query, unless it was not to be kept.
    pub text: Option<String>,
    kind: String,
    body: Vec<u8>,
}

fn raw(row: &Row<'_>) -> rusqlite::Result<(i64, Packed)> {
    let raw = Packed { id: row.get(1)?, at_ms: row.get(2)?, caller: row.get(3)?, kind: row.get(4)?, text: row.get(5)?, body: row.get(6)? };
    Ok((row.get(0)?, raw))
}

impl Packed {
    fn damaged(&self, what: String) -> StoreError {
        StoreError::Damaged { path: format!("decision {}", self.id), what }
    }

    /// The body as a type of the reader's.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        let mut json = Vec::new();
        ZlibDecoder::new(self.body.as_slice()).take(MAX_BODY).read_to_end(&mut json).map_err(|e| self.damaged(e.to_string()))?;
        serde_json::from_slice(&json).map_err(|e| self.damaged(e.to_string()))
    }

    fn unpack(self) -> Result<DecisionRecord, StoreError> {
        let body = self.body()?;
        let kind = [DecisionKind::Auto, DecisionKind::Suggest, DecisionKind::None]
            .into_iter()
            .find(|k| k.as_str() == self.kind)
            .ok_or_else(|| self.damaged(format!("unknown kind {}", self.kind)))?;
        Ok(DecisionRecord { id: self.id, at_ms: self.at_ms, caller: self.caller, kind, text: self.text, body })
    }
}

/// Makes bodies small, one after the other: what compressing needs (300 KiB) is made ready once.
struct Packer {
    json: Vec<u8>,
    zlib: Compress,
}

impl Default for Packer {
    fn default() -> Self {
        Self { json: Vec::new(), zlib: Compress::new(Compression::fast(), true) }
    }
}

impl Packer {
    fn pack(&mut self, body: &impl Serialize) -> Result<Vec<u8>, StoreError> {
        self.json.clear();
        serde_json::to_writer(&mut self.json, body).map_err(|e| StoreError::Internal(e.to_string()))?;
        self.zlib.reset();
        let mut out = Vec::with_capacity(self.json.len() / 2 + 64);
        loop {
            let rest = usize::try_from(self.zlib.total_in()).ok().and_then(|read| self.json.get(read..)).unwrap_or_default();
            match self.zlib.compress_vec(rest, &mut out, FlushCompress::Finish) {
                Ok(Status::StreamEnd) => return Ok(out),
                Ok(Status::Ok | Status::BufError) => out.reserve(out.capacity() / 2 + 64),
                Err(e) => return Err(StoreError::Internal(e.to_string())),
            }
        }
    }
}

fn insert(c: &rusqlite::Connection, record: &DecisionRecord<Vec<u8>>) -> Result<(), StoreError> {
    let bytes = record.body.len() + record.text.as_ref().map_or(0, String::len) + record.id.len() + record.caller.len() + 64;
    c.prepare_cached(
        "INSERT INTO decisions (id, at_ms, caller, kind, text, bytes, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO NOTHING",
    )?
    .execute((
        &record.id,
        record.at_ms,
        &record.caller,
        record.kind.as_str(),
        &record.text,
        i64::try_from(bytes).unwrap_or(i64::MAX),
        &record.body,
    ))?;
    Ok(())
}
