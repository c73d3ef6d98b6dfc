//! Reads labelled query sets (JSONL): id, query, expected pairs, language, split, mode. All faults name file and line.
//!
//! Invariant: a line without `expected` is a fault that names the keys which nothing reads: a query whose label is mistyped would count as out of scope.
//! Beside `expected` such keys are passed over: sets carry what they like.

use crate::config::files::read_text;
use crate::error::Error;
use crate::types::fault::Fault;
use crate::types::manifest::Manifest;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

/// Keys that say what is right.
const LABELS: [&str; 2] = ["expected", "outcome"];
/// Keys of a query line, whichever command reads it. Some are for people alone.
pub const KEYS: [&str; 17] = [
    "id",
    "query",
    "expected",
    "lang",
    "split",
    "mode",
    "caller",
    "tenant",
    "department",
    "tags",
    "at",
    "region",
    "outcome",
    "chosen",
    "correct",
    "source",
    "note",
];

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

impl Labelled {
    /// Whether (agent, capability) is expected.
    pub fn is_right(&self, agent: &str, capability: &str) -> bool {
        self.expected.iter().any(|(a, c)| a == agent && c == capability)
    }

    /// Distinct capabilities that it needs: all expected ones with `mode: all`, else one of them.
    fn needed(&self) -> HashSet<&str> {
        self.expected.iter().map(|(_, c)| c.as_str()).collect()
    }

    /// Whether one agent is enough for it.
    pub fn wants_one(&self) -> bool {
        self.mode == Mode::Any || self.needed().len() < 2
    }
}

/// What is wrong with the keys of a query line, if anything: it has no label, and a key that looks like one.
pub fn mistyped(line: &Map<String, Value>) -> Option<String> {
    if LABELS.iter().any(|label| line.contains_key(*label)) {
        return None;
    }
    let like = |key: &str, label: &str| {
        let shared = label.chars().filter(|c| key.contains(*c)).count();
        key.len().abs_diff(label.len()) <= 2 && shared + 2 >= label.len()
    };
    let key = line.keys().find(|k| !KEYS.contains(&k.as_str()) && LABELS.iter().any(|label| like(k, label)))?;
    Some(format!("the key {key:?} is none of a query; there are {}", KEYS.join(", ")))
}

/// Splits in order, for people.
pub fn splits<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let found: BTreeSet<&str> = all.filter(|s| !s.is_empty()).collect();
    if found.is_empty() { "there are no splits".into() } else { format!("there are {}", found.into_iter().collect::<Vec<_>>().join(", ")) }
}

fn line(text: &str) -> Result<Labelled, String> {
    let map: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if let Some(why) = mistyped(&map) {
        return Err(why);
    }
    if !map.contains_key("expected") {
        return Err("it has no expected; write [] where nobody can do it".into());
    }
    serde_json::from_value(Value::Object(map)).map_err(|e| e.to_string())
}

/// Reads a query set; `split` keeps only that split.
pub fn read(path: &Path, split: Option<&str>) -> Result<Vec<Labelled>, Error> {
    let text = read_text(path)
        .map_err(|e| Error::invalid_at(&path.display().to_string(), "a readable JSONL file of labelled queries", e.to_string()))?;
    let mut faults = Vec::new();
    let mut all = Vec::new();
    for (i, one) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        match line(one) {
            Ok(q) => all.push(q),
            Err(why) if faults.len() < 20 => faults.push(Fault::new(
                format!("{}:{}", path.display(), i + 1),
                "an object with query and expected = [[agent_id, capability], …]",
                why,
            )),
            Err(_) => {}
        }
    }
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    let there = splits(all.iter().map(|q| q.split.as_str()));
    all.retain(|q| split.is_none_or(|s| q.split == s));
    if all.is_empty() {
        let which = split.map(|s| format!(" of split {s:?}")).unwrap_or_default();
        return Err(Error::invalid_at(&path.display().to_string(), format!("at least one query{which}"), there));
    }
    Ok(all)
}

/// Says which queries expect an agent or a capability that no manifest has: nobody can be right there, and they count as misses.
pub fn strangers(queries: &[Labelled], manifests: &[Manifest]) -> Option<String> {
    let mut known: HashMap<&str, HashSet<&str>> = HashMap::new();
    for manifest in manifests {
        known.entry(&manifest.agent_id).or_default().extend(manifest.capabilities.iter().map(|c| &*c.intent));
    }
    let strange = |(agent, capability): &&(String, String)| known.get(agent.as_str()).is_none_or(|c| !c.contains(capability.as_str()));
    let found: Vec<&(String, String)> = queries.iter().filter_map(|q| q.expected.iter().find(strange)).collect();
    let (agent, capability) = found.first()?;
    Some(format!(
        "{} of {} queries expect an agent or a capability that no manifest has, such as {agent} {capability}; mistyped?",
        found.len(),
        queries.len()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::files::write_atomic;

    fn read_lines(lines: &str, split: Option<&str>) -> Result<Vec<Labelled>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.jsonl");
        write_atomic(&path, lines.as_bytes()).unwrap();
        read(&path, split)
    }

    #[test]
    fn a_mistyped_label_is_a_fault_and_not_out_of_scope() {
        let good = r#"{"query":"a","expected":[]}"#;
        for (bad, told) in [(r#"{"query":"b","expcted":[["a","x"]]}"#, "expcted"), (r#"{"query":"b"}"#, "no expected")] {
            let e = read_lines(&format!("{good}\n{bad}\n"), None).unwrap_err().to_string();
            assert!(e.contains("q.jsonl:2") && e.contains(told), "{e}");
        }
        assert_eq!(read_lines(good, None).unwrap().len(), 1);
        let more = r#"{"query":"b","expected":[["a","x"]],"annotator":7,"expectations":[]}"#;
        assert_eq!(read_lines(more, None).unwrap().len(), 1, "sets carry what they like");
    }

    #[test]
    fn a_request_may_need_several() {
        let of = |text: &str| read_lines(text, None).unwrap().remove(0);
        let all = of(r#"{"query":"q","mode":"all","expected":[["a","x"],["b","y"]]}"#);
        assert!(!all.wants_one());
        // two agents of one capability are one need
        assert!(of(r#"{"query":"q","mode":"all","expected":[["a","x"],["b","x"]]}"#).wants_one());
        assert!(of(r#"{"query":"q","expected":[["a","x"],["b","y"]]}"#).wants_one());
    }

    #[test]
    fn a_split_that_is_not_there_names_those_that_are() {
        let two = "{\"query\":\"a\",\"expected\":[],\"split\":\"dev\"}\n{\"query\":\"b\",\"expected\":[],\"split\":\"test\"}";
        assert_eq!(read_lines(two, Some("dev")).unwrap().len(), 1);
        let e = read_lines(two, Some("trian")).unwrap_err().to_string();
        assert!(e.contains("trian") && e.contains("dev, test"), "{e}");
    }

    #[test]
    fn answers_that_no_manifest_has_are_told() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
        let manifests = crate::ingest::files::read(&root.join("fleet"), &Default::default()).unwrap().manifests;
        let mut queries = read(&root.join("queries.jsonl"), Some("dev")).unwrap();
        assert_eq!(strangers(&queries, &manifests), None);
        let n = queries.len();
        queries[3].expected = vec![("order-desk".into(), "order_qery".into())];
        let told = strangers(&queries, &manifests).unwrap();
        assert!(told.starts_with(&format!("1 of {n} queries")) && told.contains("order-desk order_qery"), "{told}");
    }
}
