//! Which texts of a capability are embedded, by which model, in which role; and which words go to the keyword index.
//!
//! In: a checked capability and the languages the loaded models speak. Out: texts with roles. Pure.
//! `Both` = the name in words, a full stop and the description (first [`DESCRIPTION_CHARS`] characters): the document text of the
//! dense arm. Each example is a vector of its own. Name, description, label and schema texts are for rescoring only.

use crate::index::dense::Role;
use crate::index::keyword::Field;
use crate::types::lang::Lang;
use crate::types::manifest::{Capability, Manifest};
use crate::types::text::words_of_name;
use std::sync::Arc;

/// Characters of a description that are embedded.
pub const DESCRIPTION_CHARS: usize = 1200;
/// Characters of the words of a schema that are embedded.
pub const SCHEMA_CHARS: usize = 500;
/// Examples of one capability that are embedded; more are kept as words.
pub const MAX_EXAMPLES: usize = 64;

/// A text to embed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub role: Role,
    /// The text as the model reads it.
    pub text: Arc<str>,
}

fn first_chars(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(at, _)| &text[..at])
}

/// Languages a single text counts as: mixed text belongs to both.
pub fn langs_of(text: &str) -> &'static [Lang] {
    match Lang::of(text) {
        Lang::Zh => &[Lang::Zh],
        Lang::En => &[Lang::En],
        Lang::Mixed => &[Lang::Zh, Lang::En],
    }
}

/// Texts of `capability` for a model that speaks `lang` (`Mixed` = speaks everything). Empty when nothing is written in it.
pub fn pieces(manifest: &Manifest, capability: &Capability, schema_words: &str, lang: Lang) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut push = |role, text: &str| {
        let text = text.trim();
        if !text.is_empty() {
            out.push(Piece { role, text: Arc::from(text) });
        }
    };
    let name = words_of_name(&capability.intent);
    let descriptions: Vec<&str> = match lang {
        Lang::Zh => capability.description.zh.as_deref().into_iter().collect(),
        Lang::En => capability.description.en.as_deref().into_iter().collect(),
        Lang::Mixed => [capability.description.zh.as_deref(), capability.description.en.as_deref()].into_iter().flatten().collect(),
    };
    let undescribed = capability.description.is_empty() && (lang == Lang::En || lang == Lang::Mixed);
    for description in &descriptions {
        let description = first_chars(description, DESCRIPTION_CHARS);
        push(Role::Description, description);
        push(Role::Both, first_chars(&format!("{name}. {description}"), DESCRIPTION_CHARS));
    }
    if undescribed {
        push(Role::Both, &name);
    }
    let reads = |text: &str| lang == Lang::Mixed || langs_of(text).contains(&lang);
    for example in capability.examples.iter().filter(|e| reads(e)).take(MAX_EXAMPLES) {
        push(Role::Example, first_chars(example, DESCRIPTION_CHARS));
    }
    if !descriptions.is_empty() || undescribed {
        push(Role::Name, &name);
        let mut label = vec![words_of_name(&manifest.agent_id), name.clone()];
        label.extend(manifest.tags.iter().chain(&capability.tags).map(|t| words_of_name(t)));
        label.extend(capability.aliases.iter().filter(|a| reads(a)).map(|a| words_of_name(a)));
        push(Role::Label, first_chars(&label.join(", "), DESCRIPTION_CHARS));
        push(Role::Schema, first_chars(schema_words, SCHEMA_CHARS));
    }
    out
}

/// Words of `capability` for the keyword index, by field.
pub fn fields(manifest: &Manifest, capability: &Capability, schema_words: &str) -> Vec<(Field, String)> {
    let mut out = vec![(Field::Name, capability.intent.to_string())];
    out.extend(capability.aliases.iter().map(|a| (Field::Alias, a.clone())));
    out.extend([&capability.description.zh, &capability.description.en].into_iter().flatten().map(|d| (Field::Description, d.clone())));
    out.extend(capability.examples.iter().map(|e| (Field::Example, e.clone())));
    out.push((Field::Tag, manifest.agent_id.to_string()));
    out.push((Field::Tag, manifest.namespace.to_string()));
    out.extend(manifest.tags.iter().chain(&capability.tags).map(|t| (Field::Tag, t.clone())));
    if !schema_words.is_empty() {
        out.push((Field::Schema, schema_words.to_string()));
    }
    out
}

/// A schema that can't be compiled, reduced to names, descriptions, enumerations and examples: it accepts everything and keeps its words.
pub fn untyped(schema: &serde_json::Value, depth: usize) -> serde_json::Value {
    use serde_json::{Map, Value};
    let mut out = Map::new();
    let Value::Object(map) = schema else { return Value::Object(out) };
    if depth > 8 {
        return Value::Object(out);
    }
    if let Some(Value::String(text)) = map.get("description") {
        out.insert("description".into(), Value::String(text.clone()));
    }
    if let Some(Value::Object(properties)) = map.get("properties") {
        let inner = properties.iter().take(200).map(|(name, value)| (name.clone(), untyped(value, depth + 1))).collect();
        out.insert("properties".into(), Value::Object(inner));
    }
    if let Some(items) = map.get("items").filter(|i| i.is_object()) {
        out.insert("items".into(), untyped(items, depth + 1));
    }
    Value::Object(out)
}
