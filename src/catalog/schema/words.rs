//! A schema as keyword evidence: field names in words, titles, descriptions, values and examples, bounded.
//!
//! In: any JSON that stands in a schema's place, valid or not (evaluation sets have `dict` and `float` types). Out: one line of words.
//! Cost: linear, at most 2,000 nodes and 32 levels are read.

use crate::types::text;
use serde_json::Value;
use std::collections::HashSet;

/// Longest result, characters.
pub const MAX_WORDS: usize = 2_000;
const MAX_PIECE: usize = 200;
const MAX_NODES: usize = 2_000;
const MAX_DEPTH: usize = 32;

/// The words of a schema: first the names of fields, outer ones first, then what describes them. Each piece once.
pub fn schema_words(schema: &Value) -> String {
    let (mut names, mut notes) = (Pieces::default(), Pieces::default());
    let mut level = vec![schema];
    let mut seen = 0;
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for value in level {
            seen += 1;
            if seen > MAX_NODES {
                break;
            }
            match value {
                Value::Object(members) => {
                    for (key, value) in members {
                        match (key.as_str(), value) {
                            ("properties", Value::Object(fields)) => {
                                fields.keys().for_each(|f| names.add(&text::words_of_name(text::cut(f, MAX_PIECE))));
                                next.extend(fields.values());
                            }
                            ("title" | "description", Value::String(note)) => notes.add(&text::clean(text::cut(note, MAX_PIECE))),
                            ("const" | "default", Value::String(word)) => notes.add(&text::words_of_name(text::cut(word, MAX_PIECE))),
                            ("enum" | "examples", Value::Array(options)) => options
                                .iter()
                                .filter_map(Value::as_str)
                                .take(50)
                                .for_each(|word| notes.add(&text::words_of_name(text::cut(word, MAX_PIECE)))),
                            ("required" | "$ref" | "type" | "pattern" | "format", _) => {}
                            (_, Value::Object(_) | Value::Array(_)) => next.push(value),
                            _ => {}
                        }
                    }
                }
                Value::Array(items) => next.extend(items.iter().filter(|v| v.is_object() || v.is_array())),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        if next.is_empty() {
            break;
        }
        level = next;
    }
    let mut out = names.list.join(" ");
    for note in notes.list {
        if out.len() > 4 * MAX_WORDS {
            break;
        }
        if !out.is_empty() {
            out.push_str(". ");
        }
        out.push_str(&note);
    }
    text::cut(&out, MAX_WORDS).trim_end().to_string()
}

/// Texts, each once, in order.
#[derive(Default)]
struct Pieces {
    list: Vec<String>,
    known: HashSet<String>,
}

impl Pieces {
    fn add(&mut self, piece: &str) {
        if !piece.is_empty() && self.known.insert(piece.to_lowercase()) {
            self.list.push(piece.to_string());
        }
    }
}
