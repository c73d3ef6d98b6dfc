//! Documents in JSON or YAML. Stands in for `types::document` until that is merged, with the same functions.

use crate::types::Fault;
use serde_json::Value;

/// How the bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json,
    /// One JSON object a line.
    JsonLines,
    /// YAML.
    Yaml,
}

impl Format {
    /// The format a file name promises.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "json" => Some(Self::Json),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it holds.
    pub value: Value,
    /// Line or number.
    pub place: usize,
}

/// Reads one JSON value.
pub fn json(bytes: &[u8]) -> Result<Value, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|e| Fault::new("", "UTF-8 text", e.to_string()))?;
    crate::api::json::read_free(text, "").map_err(|e| e.faults.into_iter().next().unwrap_or_else(|| Fault::new("", "JSON", e.message)))
}

/// Reads every document of `bytes`.
pub fn read(bytes: &[u8], format: Option<Format>) -> Result<Vec<Document>, Vec<Fault>> {
    match format {
        Some(Format::JsonLines) => {
            let lines = bytes.split(|b| *b == b'\n').enumerate().filter(|(_, l)| !l.trim_ascii().is_empty());
            lines.map(|(i, l)| json(l).map(|value| Document { value, place: i + 1 }).map_err(|f| vec![f])).collect()
        }
        Some(Format::Json) => Ok(vec![Document { value: json(bytes).map_err(|f| vec![f])?, place: 1 }]),
        Some(Format::Yaml) | None => {
            let value = serde_saphyr::from_slice(bytes).map_err(|e| vec![Fault::new("", "YAML", e.to_string())])?;
            Ok(vec![Document { value, place: 1 }])
        }
    }
}
