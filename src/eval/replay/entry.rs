//! One logged decision, from a line of `reach log export`, from a record of the store, or freshly routed.
//!
//! Invariant: a line of a format that this program does not know is refused by name and place, never skipped.

use crate::config::files::open_text;
use crate::error::Error;
use crate::route::logged::Logged;
use crate::store::{DecisionRecord, Packed};
use serde::Deserialize;
use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;

/// A decision that can be replayed.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Id of the decision.
    pub id: String,
    /// When it was made, milliseconds since the epoch.
    pub at_ms: i64,
    /// Who asked.
    pub caller: String,
    /// The text, unless it was not kept.
    pub text: Option<String>,
    /// Everything else.
    pub logged: Logged,
}

/// An entry before it is parsed, so that parsing can be spread over the cores.
pub enum Raw {
    /// A line of an export: its place, and the text.
    Line(String, String),
    /// A record of the store.
    Record(Box<DecisionRecord>),
    /// The same, still packed.
    Packed(Box<Packed>),
    /// An entry as it is.
    Entry(Box<Entry>),
}

#[derive(Deserialize)]
struct Line {
    decision_id: String,
    #[serde(default)]
    at: Option<jiff::Timestamp>,
    #[serde(default)]
    caller: String,
    #[serde(default)]
    query: Option<String>,
    body: Logged,
}

impl Raw {
    /// Parses it.
    pub fn entry(self) -> Result<Entry, Error> {
        let expected = "a decision as `reach log export` writes it";
        match self {
            Self::Line(place, text) => {
                let line: Line = serde_json::from_str(&text).map_err(|e| Error::invalid_at(&place, expected, e.to_string()))?;
                let logged = line.body.checked().map_err(|e| Error::invalid_at(&place, expected, e))?;
                let at_ms = line.at.map_or(0, jiff::Timestamp::as_millisecond);
                Ok(Entry { id: line.decision_id, at_ms, caller: line.caller, text: line.query, logged })
            }
            Self::Record(record) => {
                let DecisionRecord { id, at_ms, caller, text, body, .. } = *record;
                let place = format!("decision {id}");
                let logged: Logged = serde_json::from_value(body).map_err(|e| Error::invalid_at(&place, expected, e.to_string()))?;
                let logged = logged.checked().map_err(|e| Error::invalid_at(&place, expected, e))?;
                Ok(Entry { id, at_ms, caller, text, logged })
            }
            Self::Packed(packed) => {
                let logged: Logged = packed.body()?;
                let place = format!("decision {}", packed.id);
                let logged = logged.checked().map_err(|e| Error::invalid_at(&place, expected, e))?;
                let Packed { id, at_ms, caller, text, .. } = *packed;
                Ok(Entry { id, at_ms, caller, text, logged })
            }
            Self::Entry(entry) => Ok(*entry),
        }
    }
}

/// Lets each decision through once: logs that were put together may hold one twice. Cost: eight bytes a decision.
#[derive(Default)]
pub struct Once {
    seen: HashSet<u64>,
    /// Those that came again.
    pub again: u64,
}

impl Once {
    /// Whether a decision comes for the first time.
    pub fn first(&mut self, id: &str) -> bool {
        let first = self.seen.insert(hash(id));
        self.again += u64::from(!first);
        first
    }

    /// How many came again, in words.
    pub fn told(&self) -> Option<String> {
        (self.again > 0).then(|| format!("{} decisions stand in the log more than once and count once", self.again))
    }
}

/// FNV-1a.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Decisions, as `reach log export` writes them.
    Decisions,
    /// Queries, with labels or outcomes.
    Queries,
}

fn unreadable(path: &Path, e: &std::io::Error) -> Error {
    Error::invalid_at(&path.display().to_string(), "a readable JSON lines file", e.to_string())
}

/// Tells by its first line what a file holds.
pub fn holds(path: &Path) -> Result<Holds, Error> {
    for line in open_text(path, 1 << 16).map_err(|e| unreadable(path, &e))?.lines() {
        let line = line.map_err(|e| unreadable(path, &e))?;
        if line.trim().is_empty() {
            continue;
        }
        let first: serde_json::Value = serde_json::from_str(&line)
            .map_err(|e| Error::invalid_at(&format!("{}:1", path.display()), "a JSON object a line", e.to_string()))?;
        return match (first.get("body"), first.get("query")) {
            (Some(_), _) => Ok(Holds::Decisions),
            (None, Some(_)) => Ok(Holds::Queries),
            (None, None) => Err(Error::invalid_at(
                &format!("{}:1", path.display()),
                "a logged decision (with `body`) or a query (with `query`)",
                "see docs/replay.md for both forms",
            )),
        };
    }
    Err(Error::invalid_at(&path.display().to_string(), "at least one line", "the file is empty"))
}

/// Lines of an export.
pub fn lines(path: &Path) -> Result<impl Iterator<Item = Result<Raw, Error>> + Send + use<>, Error> {
    let lines = open_text(path, 1 << 20).map_err(|e| unreadable(path, &e))?.lines().enumerate();
    let path = path.to_path_buf();
    Ok(lines
        .filter(|(_, line)| !line.as_ref().is_ok_and(|l| l.trim().is_empty()))
        .map(move |(i, line)| line.map(|text| Raw::Line(format!("{}:{}", path.display(), i + 1), text)).map_err(|e| unreadable(&path, &e))))
}
