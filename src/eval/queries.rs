//! Reads labelled query sets (JSONL): id, query, expected pairs, language, split, mode. All faults name file and line.

use crate::error::Error;
use crate::types::fault::Fault;
use serde::Deserialize;
use std::path::Path;

/// Whether one expected entry is enough or the set is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each expected entry is right.
    #[default]
    Any,
    /// The request needs all of them.
    All,
}

/// One labelled query.
#[derive(Clone, Debug, Deserialize)]
pub struct Labelled {
    /// Id inside the set.
    #[serde(default)]
    pub id: String,
    /// The request.
    pub query: String,
    /// Right answers as (agent id, capability); empty = out of scope.
    #[serde(default)]
    pub expected: Vec<(String, String)>,
    /// Language as labelled.
    #[serde(default)]
    pub lang: String,
    /// Split: train, dev or test.
    #[serde(default)]
    pub split: String,
    /// Any or all.
    #[serde(default)]
    pub mode: Mode,
    /// Caller, for history.
    #[serde(default)]
    pub caller: Option<String>,
    /// Tenant, for history.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Kinds of difficulty (`neighbour`, `negation` …).
    #[serde(default)]
    pub tags: Vec<String>,
}

/// Reads a query set; `split` keeps only that split.
pub fn read(path: &Path, split: Option<&str>) -> Result<Vec<Labelled>, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::invalid_at(&path.display().to_string(), "a readable JSONL file of labelled queries", e.to_string()))?;
    let mut faults = Vec::new();
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        match serde_json::from_str::<Labelled>(line) {
            Ok(q) if split.is_none_or(|s| q.split == s) => out.push(q),
            Ok(_) => {}
            Err(e) if faults.len() < 20 => faults.push(Fault::new(
                format!("{}:{}", path.display(), i + 1),
                "an object with query and expected = [[agent_id, capability], …]",
                e.to_string(),
            )),
            Err(_) => {}
        }
    }
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    if out.is_empty() {
        let which = split.map(|s| format!(" of split {s:?}")).unwrap_or_default();
        return Err(Error::invalid_at(&path.display().to_string(), format!("at least one query{which}"), "choose another split or file"));
    }
    Ok(out)
}

/// Shuffles with a seed (Fisher–Yates) and keeps at most `limit`.
pub fn sample(mut queries: Vec<Labelled>, limit: Option<usize>, seed: u64) -> Vec<Labelled> {
    if let Some(limit) = limit.filter(|l| *l < queries.len()) {
        let mut dice = crate::route::dice::Dice::new(seed);
        for i in (1..queries.len()).rev() {
            let j = (dice.roll() % (i as u64 + 1)) as usize;
            queries.swap(i, j);
        }
        queries.truncate(limit);
    }
    queries
}
