//! The published schema of a manifest, made from the same tables that the reader uses.
//!
//! Out: JSON Schema 2020-12 and the reference pages of `docs/manifest.md`; tests hold the files against this.
//! The reader accepts a little more (upper-case day names, null for absent); it never accepts less.

use super::keys::{Key, MANIFEST, Shape, TABLES, Table};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Where the schema is published.
pub const SCHEMA_ID: &str = "urn:agent-reach:manifest:v1";

/// The JSON Schema of a manifest.
pub fn json_schema() -> Value {
    let mut defs = Map::new();
    for table in TABLES.iter().filter(|t| t.name != MANIFEST.name) {
        defs.insert(def_name(table), object(table));
    }
    let mut root = Map::from_iter([
        ("$schema".to_string(), json!("https://json-schema.org/draft/2020-12/schema")),
        ("$id".to_string(), json!(SCHEMA_ID)),
        ("title".to_string(), json!("Agent-Reach manifest, version 1")),
    ]);
    if let Value::Object(manifest) = object(&MANIFEST) {
        root.extend(manifest);
    }
    root.insert("$defs".into(), Value::Object(defs));
    Value::Object(root)
}

fn def_name(table: &Table) -> String {
    table.name.replace(' ', "_")
}

fn object(table: &Table) -> Value {
    let properties: Map<String, Value> = table.keys.iter().map(|k| (k.name.to_string(), property(k))).collect();
    let required: Vec<&str> = table.keys.iter().filter(|k| k.required).map(|k| k.name).collect();
    let mut out = Map::from_iter([
        ("description".to_string(), json!(table.doc)),
        ("type".to_string(), json!("object")),
        ("properties".to_string(), Value::Object(properties)),
        ("additionalProperties".to_string(), json!(false)),
    ]);
    if !required.is_empty() {
        out.insert("required".into(), json!(required));
    }
    Value::Object(out)
}

fn property(key: &Key) -> Value {
    let mut out = Map::from_iter([("description".to_string(), json!(key.doc))]);
    if let Ok(default) = serde_json::from_str::<Value>(key.default) {
        out.insert("default".into(), default);
    }
    if let Value::Object(shape) = shape(&key.shape) {
        out.extend(shape);
    }
    Value::Object(out)
}

fn shape(shape_of: &Shape) -> Value {
    let text = |max: usize| json!({"type": "string", "minLength": 1, "maxLength": max});
    match *shape_of {
        Shape::Text { max } => text(max),
        Shape::Name(name) => json!({"type": "string", "pattern": name.pattern()}),
        Shape::Word(words) => json!({"enum": words}),
        Shape::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Shape::Number { min, above: true, max } => json!({"type": "number", "exclusiveMinimum": min, "maximum": max}),
        Shape::Number { min, above: false, max } => json!({"type": "number", "minimum": min, "maximum": max}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Span { or_none, .. } => {
            let none = if or_none { "|none" } else { "" };
            json!({"type": "string", "pattern": format!("^([0-9]+(\\.[0-9]+)?(ms|s|m|min|h|d){none})$")})
        }
        Shape::Url => json!({"type": "string", "pattern": "^https?://", "maxLength": crate::types::address::MAX_ADDRESS}),
        Shape::Address => json!({"type": "string", "pattern": "^(https?|grpcs?)://", "maxLength": crate::types::address::MAX_ADDRESS}),
        Shape::Minute => json!({"type": "string", "pattern": "^(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)$"}),
        Shape::TimeZone => json!({"type": "string", "minLength": 1}),
        Shape::Texts { max } => json!({"anyOf": [
            text(max),
            {"type": "object", "properties": {"zh": text(max), "en": text(max)}, "additionalProperties": false, "minProperties": 1},
        ]}),
        Shape::Examples { items, max } => {
            let list = json!({"type": "array", "items": text(max), "maxItems": items});
            json!({"anyOf": [list, {"type": "object", "properties": {"zh": list, "en": list}, "additionalProperties": false}]})
        }
        Shape::Tags => json!({"type": "array", "items": text(64), "maxItems": 50}),
        Shape::List { item, min, max } => json!({"type": "array", "items": shape(item), "minItems": min, "maxItems": max}),
        Shape::Object(table) => json!({"$ref": format!("#/$defs/{}", def_name(table))}),
        Shape::Attributes => json!({
            "type": "object",
            "maxProperties": 50,
            "additionalProperties": {"anyOf": [text(200), {"type": "number"}, {"type": "boolean"}, {"type": "array", "items": text(200), "maxItems": 50}]},
        }),
        Shape::Schema => json!({"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string", "pattern": "^(schema|https?)://"}]}),
    }
}

/// The reference part of `docs/manifest.md`: one table for each object.
pub fn reference() -> String {
    let mut out = String::new();
    for table in TABLES {
        // writing to a String does not fail
        writeln!(out, "### {}\n\n{}\n\n| key | what | default | |\n|---|---|---|---|", table.name, table.doc).ok();
        for key in table.keys {
            let default = if key.required {
                "required".to_string()
            } else if key.default.is_empty() {
                "–".into()
            } else {
                format!("`{}`", key.default)
            };
            writeln!(out, "| `{}` | {} | {} | {} |", key.name, words(&key.shape), default, key.doc).ok();
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn words(shape: &Shape) -> String {
    let span = |ms| crate::types::span::format(std::time::Duration::from_millis(ms));
    match *shape {
        Shape::Text { max } => format!("text ≤ {max}"),
        Shape::Name(name) => format!("name `{}`", name.pattern().replace('|', "\\|")),
        Shape::Word(words) => words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "),
        Shape::Integer { min, max } => format!("whole number {min} … {max}"),
        Shape::Number { min, above, max } => format!("number {}{min} … {max:e}", if above { "> " } else { "" }),
        Shape::Bool => "`true`, `false`".into(),
        Shape::Span { min_ms, max_ms, or_none } => {
            format!("duration {} … {}{}", span(min_ms), span(max_ms), if or_none { " or `none`" } else { "" })
        }
        Shape::Url => "URL (http, https)".into(),
        Shape::Address => "URL (http, https; grpc, grpcs for `grpc`)".into(),
        Shape::Minute => "`\"HH:MM\"`".into(),
        Shape::TimeZone => "IANA time zone".into(),
        Shape::Texts { max } => format!("text ≤ {max}, or `{{zh, en}}`"),
        Shape::Examples { items, max } => format!("≤ {items} texts ≤ {max}, or `{{zh: […], en: […]}}`"),
        Shape::Tags => "≤ 50 tags ≤ 64".into(),
        Shape::List { item, min, max } => format!("{min} … {max} of: {}", words(item)),
        Shape::Object(table) => format!("object [{}](#{})", table.name, table.name.replace(' ', "-")),
        Shape::Attributes => "≤ 50 attributes".into(),
        Shape::Schema => "JSON Schema or reference".into(),
    }
}
