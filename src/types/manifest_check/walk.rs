//! The walker: holds a value against a shape, collects every fault with its place, and returns the value in canonical form.
//!
//! In: any JSON value. Out: the cleaned value (defaults filled in, texts cleaned, tags folded, durations and URLs in one spelling) or nothing
//! when it is faulty; faults and warnings beside. Invariant: recursion is bounded by the tables; a schema is measured before it is entered.
//! Not here: rules between keys (`cross`), what a JSON Schema may contain (`catalog::schema`).

use super::keys::{Name, Shape, Table};
use super::{Long, Rules, hint};
use crate::types::address::{self, Use};
use crate::types::fault::Fault;
use crate::types::id::{self, Namespace};
use crate::types::lang::Lang;
use crate::types::{hours, manifest, span, text};
use serde_json::{Map, Value, json};

/// Most faults that are reported; the rest are counted.
const MAX_FAULTS: usize = 100;
/// Deepest schema that is entered; `catalog::schema` refuses less deep ones with better words.
const MAX_SCHEMA_DEPTH: usize = 64;
const MAX_ATTRIBUTES: usize = 50;
const MAX_TAGS: usize = 50;
const MAX_TAG: usize = 64;

/// State of one walk.
pub struct Walk<'r> {
    rules: &'r Rules,
    pointer: String,
    faults: Vec<Fault>,
    unreported: usize,
    warnings: Vec<Fault>,
}

impl<'r> Walk<'r> {
    /// A walk that begins at the root.
    pub fn new(rules: &'r Rules) -> Self {
        Self { rules, pointer: String::new(), faults: Vec::new(), unreported: 0, warnings: Vec::new() }
    }

    /// What was found: faults (at most 100, then one that counts the others) and warnings.
    pub fn finish(mut self) -> (Vec<Fault>, Vec<Fault>) {
        if self.unreported > 0 {
            self.faults.push(Fault::new("", "a valid manifest", format!("{} more faults are not listed", self.unreported)));
        }
        (self.faults, self.warnings)
    }

    /// Reports a fault here.
    pub fn fault(&mut self, expected: impl Into<String>, hint: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault::new(self.pointer.clone(), expected, hint));
        } else {
            self.unreported += 1;
        }
    }

    /// Reports something odd that is no fault.
    pub fn warn(&mut self, expected: impl Into<String>, hint: impl Into<String>) {
        if self.warnings.len() < MAX_FAULTS {
            self.warnings.push(Fault::new(self.pointer.clone(), expected, hint));
        }
    }

    /// Runs `f` one step deeper.
    pub fn inside<T>(&mut self, segment: impl std::fmt::Display, f: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.pointer.len();
        let segment = segment.to_string();
        self.pointer.push('/');
        self.pointer.push_str(&text::cut(&text::clean(&segment), 80).replace('~', "~0").replace('/', "~1"));
        let result = f(self);
        self.pointer.truncate(length);
        result
    }

    /// Holds `value` against `shape`; the canonical value, unless it is faulty.
    pub fn value(&mut self, shape: &Shape, value: &Value) -> Option<Value> {
        match *shape {
            Shape::Text { max } => self.text(value, max).map(Value::String),
            Shape::Name(name) => self.name(name, value).map(Value::String),
            Shape::Word(words) => self.word(words, value),
            Shape::Integer { min, max } => self.integer(value, min, max),
            Shape::Number { min, above, max } => self.number(value, min, above, max),
            Shape::Bool => self.boolean(value),
            Shape::Span { min_ms, max_ms, or_none } => self.span(value, min_ms, max_ms, or_none),
            Shape::Url => {
                let text = self.raw_text(value)?;
                self.address(text, Use::Web).map(Value::String)
            }
            Shape::Address => self.raw_text(value).map(|t| Value::String(t.to_string())),
            Shape::Minute => {
                let text = self.raw_text(value)?;
                match manifest::parse_minute(text) {
                    Ok(minute) => Some(Value::String(format!("{:02}:{:02}", minute / 60, minute % 60))),
                    Err(expected) => self.none(expected, "write it with quotes, such as \"09:00\""),
                }
            }
            Shape::TimeZone => {
                let text = self.raw_text(value)?;
                match hours::time_zone(text) {
                    Ok(zone) => Some(Value::String(zone.iana_name().unwrap_or(text).to_string())),
                    Err(expected) => self.none(expected, format!("{} is not known", text::quoted(text))),
                }
            }
            Shape::Texts { max } => self.texts(value, max),
            Shape::Examples { items, max } => self.examples(value, items, max),
            Shape::Tags => self.tags(value),
            Shape::List { item, min, max } => self.list(value, item, min, max),
            Shape::Object(table) => self.object(value, table).map(Value::Object),
            Shape::Attributes => self.attributes(value),
            Shape::Schema => self.schema(value),
        }
    }

    /// Reports a fault and returns nothing.
    pub fn none<T>(&mut self, expected: impl Into<String>, hint: impl Into<String>) -> Option<T> {
        self.fault(expected, hint);
        None
    }

    fn wrong_type<T>(&mut self, expected: &str, value: &Value) -> Option<T> {
        let hint = match value {
            Value::Number(_) | Value::Bool(_) if expected.starts_with("text") => "this is not text: put it in quotes".to_string(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                format!("this is {}", kind(value))
            }
        };
        self.none(expected, hint)
    }

    /// Known keys only, each against its shape; null counts as absent; defaults filled in.
    pub fn object(&mut self, value: &Value, table: &'static Table) -> Option<Map<String, Value>> {
        let Value::Object(members) = value else {
            return self.wrong_type(&format!("an object ({})", table.name), value);
        };
        let known: Vec<&str> = table.keys.iter().map(|k| k.name).collect();
        let mut sound = true;
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            sound = false;
            let hint = match hint::nearest(name, &known) {
                Some(word) => format!("unknown key; did you mean \"{word}\"?"),
                None => format!("unknown key {}: remove it; known are {}", text::quoted(name), known.join(", ")),
            };
            self.inside(name, |w| w.fault(format!("a key of {}", table.name), hint));
        }
        let mut out = Map::new();
        for key in table.keys {
            match members.get(key.name) {
                Some(Value::Null) | None => {
                    if key.required {
                        sound = false;
                        self.inside(key.name, |w| w.fault(expectation(&key.shape), format!("add \"{}\": {}", key.name, key.doc)));
                    } else if !key.default.is_empty()
                        && let Ok(value) = serde_json::from_str(key.default)
                    {
                        out.insert(key.name.to_string(), value);
                    }
                }
                Some(value) => match self.inside(key.name, |w| w.value(&key.shape, value)) {
                    Some(Value::Null) => {}
                    Some(value) => {
                        out.insert(key.name.to_string(), value);
                    }
                    None => sound = false,
                },
            }
        }
        // what could be read is returned even beside faults, so that rules between keys are checked too
        (sound || !out.is_empty()).then_some(out)
    }

    fn list(&mut self, value: &Value, item: &Shape, min: usize, max: usize) -> Option<Value> {
        let Value::Array(items) = value else {
            return self.wrong_type("a list", value);
        };
        if items.len() < min {
            return self.none(format!("at least {min} in this list"), format!("add {}", expectation(item)));
        }
        if items.len() > max {
            return self.none(format!("at most {max} in this list"), format!("there are {}: remove some, or split the agent", items.len()));
        }
        // a faulty item leaves a hole, so that the places of the others stay right
        Some(Value::Array(items.iter().enumerate().map(|(i, v)| self.inside(i, |w| w.value(item, v)).unwrap_or(Value::Null)).collect()))
    }

    fn raw_text<'v>(&mut self, value: &'v Value) -> Option<&'v str> {
        match value {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => self.wrong_type("text", value),
        }
    }

    /// Cleans a text; flags what was removed and what speaks to a language model rather than to a reader.
    fn text(&mut self, value: &Value, max: usize) -> Option<String> {
        let raw = self.raw_text(value)?;
        // cleaning is linear, but a text far over its limit is not worth it
        let cleaned = text::clean_flagged(text::cut(raw, 4 * max + 64));
        if cleaned.removed {
            self.warn("plain text", "control, invisible or direction-changing characters were removed");
        }
        if steers(&cleaned.text) {
            self.warn(
                "a description for people",
                "this reads like an instruction to a language model; it is kept as data and never obeyed",
            );
        }
        if cleaned.text.is_empty() {
            return self.none("text that is not empty", "write something, or remove the key");
        }
        if cleaned.text.chars().nth(max).is_some() || raw.chars().nth(4 * max + 64).is_some() {
            return match self.rules.long {
                Long::Refuse => self.none(format!("at most {max} characters"), "shorten it"),
                Long::Cut => {
                    self.warn(format!("at most {max} characters"), "it was cut");
                    Some(text::cut(&cleaned.text, max).trim_end().to_string())
                }
            };
        }
        Some(cleaned.text)
    }

    fn name(&mut self, name: Name, value: &Value) -> Option<String> {
        let text = self.raw_text(value)?;
        let shown = text::quoted(text);
        match name {
            Name::AgentId if id::is_agent_id(text) => Some(text.to_string()),
            Name::AgentId => {
                self.none("1 to 128 letters, digits, '_', '.' or '-', beginning with a letter or digit", format!("change {shown}"))
            }
            Name::Grant if text == "*" => Some(text.to_string()),
            Name::Namespace | Name::Grant => match Namespace::new(text) {
                Ok(_) => Some(text.to_string()),
                Err(expected) => self.none(expected, format!("change {shown}")),
            },
            Name::Intent if is_intent(text) => Some(text.to_string()),
            Name::Intent => self.none(
                "a name of 1 to 128 letters and digits, with '_', '-', '.', ':', '/' or spaces between them",
                format!("change {shown}, best to snake_case such as refund_create"),
            ),
            Name::Region if in_alphabet(text, 64, "*?_.-") => Some(text.to_ascii_lowercase()),
            Name::Region => self
                .none("a region or a glob such as \"cn-*\"", format!("change {shown}: letters, digits, '-', '_', '.', '*' and '?' only")),
            Name::Scope if in_alphabet(text, 128, "_.:/*-") && text.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
                Some(text.to_string())
            }
            Name::Scope => self
                .none("a scope such as \"refund:write\"", format!("change {shown}: letters, digits, '_', '.', ':', '/', '*' and '-' only")),
        }
    }

    fn word(&mut self, words: &'static [&'static str], value: &Value) -> Option<Value> {
        let text = self.raw_text(value)?;
        let lower = text::cut(text, 80).to_lowercase();
        if let Some(word) = words.iter().find(|w| **w == lower) {
            return Some(json!(word));
        }
        let hint = hint::of_word(text, words).unwrap_or_else(|| format!("{} is none of them", text::quoted(text)));
        self.none(format!("one of {}", words.join(", ")), hint)
    }

    fn integer(&mut self, value: &Value, min: u64, max: u64) -> Option<Value> {
        let expected = format!("a whole number from {min} to {max}");
        let Value::Number(number) = value else {
            return self.wrong_type(&expected, value);
        };
        let whole = number.as_u64().or_else(|| number.as_f64().filter(|f| f.fract() == 0.0 && (0.0..=9e15).contains(f)).map(|f| f as u64));
        match whole.filter(|n| (min..=max).contains(n)) {
            Some(n) => Some(json!(n)),
            None => self.none(expected, format!("{number} is not")),
        }
    }

    fn number(&mut self, value: &Value, min: f64, above: bool, max: f64) -> Option<Value> {
        let expected = format!("a number {} {min} and at most {max}", if above { "above" } else { "of at least" });
        let Value::Number(number) = value else {
            return self.wrong_type(&expected, value);
        };
        match number.as_f64().filter(|n| n.is_finite() && *n <= max && (*n > min || (!above && *n == min))) {
            Some(n) => Some(json!(n + 0.0)),
            None => self.none(expected, format!("{number} is not")),
        }
    }

    fn boolean(&mut self, value: &Value) -> Option<Value> {
        match value {
            Value::Bool(_) => Some(value.clone()),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                self.wrong_type("true or false", value)
            }
        }
    }

    fn span(&mut self, value: &Value, min_ms: u64, max_ms: u64, or_none: bool) -> Option<Value> {
        let limits = |ms| span::format(std::time::Duration::from_millis(ms));
        let none = if or_none { ", or \"none\"" } else { "" };
        let expected = format!("a duration from {} to {}{none}", limits(min_ms), limits(max_ms));
        let Value::String(text) = value else {
            return self.none(expected, "write it as text with its unit, such as \"250ms\", \"30s\" or \"5m\"");
        };
        if or_none && text == "none" {
            return Some(json!("none"));
        }
        match span::parse(text::cut(text, 40)) {
            Ok(d) if (u128::from(min_ms)..=u128::from(max_ms)).contains(&d.as_millis()) => Some(json!(span::format(d))),
            Ok(_) => self.none(expected, format!("{} is outside", text::quoted(text))),
            Err(how) => self.none(expected, format!("write {how}")),
        }
    }

    /// Checks an address for its use.
    pub fn address(&mut self, text: &str, usage: Use) -> Option<String> {
        match address::canonical(text, usage) {
            Ok(url) => Some(url),
            Err(why) => self.none(usage.expected(), why.hint()),
        }
    }

    fn texts(&mut self, value: &Value, max: usize) -> Option<Value> {
        match value {
            Value::String(_) => {
                let text = self.text(value, max)?;
                Some(match Lang::of(&text) {
                    Lang::Zh => json!({ "zh": text }),
                    Lang::En => json!({ "en": text }),
                    Lang::Mixed => json!({ "zh": text, "en": text }),
                })
            }
            Value::Object(members) => {
                let mut out = Map::new();
                let mut sound = true;
                for (lang, value) in members {
                    if !matches!(lang.as_str(), "zh" | "en") {
                        sound = false;
                        self.inside(lang, |w| w.fault("a language: zh or en", "give Chinese text as \"zh\" and English text as \"en\""));
                    } else if !value.is_null() {
                        match self.inside(lang, |w| w.text(value, max)) {
                            Some(text) => drop(out.insert(lang.clone(), Value::String(text))),
                            None => sound = false,
                        }
                    }
                }
                if sound && out.is_empty() {
                    return self.none("a text for at least one language", "add \"zh\" or \"en\"");
                }
                sound.then_some(Value::Object(out))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => self.wrong_type("text, or {zh: …, en: …}", value),
        }
    }

    fn examples(&mut self, value: &Value, items: usize, max: usize) -> Option<Value> {
        let mut out: Vec<Value> = Vec::new();
        let mut sound = true;
        let mut add = |w: &mut Self, list: &Vec<Value>| {
            for (i, value) in list.iter().enumerate() {
                match w.inside(i, |w| w.text(value, max)) {
                    Some(text) if out.iter().any(|o| *o == text) => {}
                    Some(text) => out.push(Value::String(text)),
                    None => sound = false,
                }
            }
        };
        match value {
            Value::Array(list) if list.len() <= items => add(self, list),
            Value::Object(members) => {
                for (lang, list) in members {
                    self.inside(lang, |w| match (lang.as_str(), list) {
                        ("zh" | "en", Value::Array(list)) if list.len() <= items => add(w, list),
                        ("zh" | "en", _) => w.fault(format!("a list of at most {items} texts"), format!("this is {}", kind(list))),
                        _ => w.fault("a language: zh or en", "give a plain list, or one list for each language"),
                    });
                }
            }
            Value::Array(list) => {
                return self.none(format!("at most {items} examples"), format!("there are {}: keep the most different ones", list.len()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return self.wrong_type("a list of texts", value),
        }
        if out.len() > items {
            return self.none(format!("at most {items} examples"), format!("there are {}: keep the most different ones", out.len()));
        }
        sound.then_some(Value::Array(out))
    }

    fn tags(&mut self, value: &Value) -> Option<Value> {
        let Value::Array(items) = value else {
            return self.wrong_type("a list of tags", value);
        };
        if items.len() > MAX_TAGS {
            return self.none(format!("at most {MAX_TAGS} tags"), format!("there are {}", items.len()));
        }
        let mut out: Vec<Value> = Vec::new();
        let mut sound = true;
        for (i, item) in items.iter().enumerate() {
            let folded = self.inside(i, |w| {
                let tag = text::fold_name(&w.text(item, MAX_TAG)?);
                if tag.is_empty() { w.none("a tag with a letter or digit", "remove it") } else { Some(tag) }
            });
            match folded {
                Some(tag) if out.iter().any(|o| *o == tag) => {}
                Some(tag) => out.push(Value::String(tag)),
                None => sound = false,
            }
        }
        sound.then_some(Value::Array(out))
    }

    fn attributes(&mut self, value: &Value) -> Option<Value> {
        let Value::Object(members) = value else {
            return self.wrong_type("an object of attributes", value);
        };
        if members.len() > MAX_ATTRIBUTES {
            return self.none(format!("at most {MAX_ATTRIBUTES} attributes"), format!("there are {}", members.len()));
        }
        let mut out = Map::new();
        let mut sound = true;
        for (name, value) in members {
            let read = self.inside(name, |w| {
                if !in_alphabet(name, 64, "_.-/") {
                    return w.none("a name of 1 to 64 letters, digits, '_', '.', '-' or '/'", "rename the attribute");
                }
                match value {
                    Value::Bool(_) | Value::Number(_) => Some(value.clone()),
                    Value::String(_) => w.text(value, 200).map(Value::String),
                    Value::Array(_) => w
                        .list(value, &Shape::Text { max: 200 }, 0, 50)
                        .filter(|l| l.as_array().is_some_and(|l| l.iter().all(Value::is_string))),
                    Value::Null | Value::Object(_) => w.wrong_type("text, a number, true, false or a list of texts", value),
                }
            });
            match read {
                Some(value) => drop(out.insert(name.clone(), value)),
                None => sound = false,
            }
        }
        sound.then_some(Value::Object(out))
    }

    fn schema(&mut self, value: &Value) -> Option<Value> {
        match value {
            Value::String(reference) => {
                let known = ["schema://", "https://", "http://"].iter().any(|p| reference.starts_with(p));
                if known && reference.len() <= 500 && reference.chars().all(|c| c.is_ascii_graphic()) {
                    Some(value.clone())
                } else {
                    self.none(
                        "a JSON Schema, or a reference such as \"schema://orders/refund.json\"",
                        format!("{} is neither", text::quoted(reference)),
                    )
                }
            }
            Value::Object(_) => {
                if deeper_than(value, MAX_SCHEMA_DEPTH) {
                    return self.none(format!("at most {MAX_SCHEMA_DEPTH} levels of nesting"), "flatten the schema");
                }
                let mut schema = value.clone();
                if clean_notes(&mut schema) {
                    self.warn(
                        "plain text",
                        "control, invisible or direction-changing characters were removed from titles and descriptions",
                    );
                }
                Some(schema)
            }
            Value::Bool(_) => Some(value.clone()),
            Value::Null | Value::Number(_) | Value::Array(_) => self.wrong_type("a JSON Schema (an object), or a reference", value),
        }
    }
}

/// Whether a value nests deeper than `max`; without recursion.
pub fn deeper_than(value: &Value, max: usize) -> bool {
    let mut open = vec![(value, 1usize)];
    while let Some((value, depth)) = open.pop() {
        if depth > max {
            return true;
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|v| (v, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|v| (v, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    false
}

/// Cleans titles, descriptions and comments of a schema in place; whether anything was removed. The depth is bounded by the caller.
fn clean_notes(schema: &mut Value) -> bool {
    match schema {
        Value::Array(items) => items.iter_mut().map(clean_notes).fold(false, |a, b| a | b),
        Value::Object(members) => {
            let mut removed = false;
            for (key, value) in members.iter_mut() {
                match value {
                    Value::String(note) if matches!(key.as_str(), "title" | "description" | "$comment") => {
                        let cleaned = text::clean_flagged(note);
                        if cleaned.removed {
                            removed = true;
                            *note = cleaned.text;
                        }
                    }
                    Value::Array(_) | Value::Object(_) => removed |= clean_notes(value),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                }
            }
            removed
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What a shape expects, in a few words.
fn expectation(shape: &Shape) -> String {
    match *shape {
        Shape::Text { .. } => "text".into(),
        Shape::Name(Name::AgentId) => "an id".into(),
        Shape::Name(Name::Namespace | Name::Grant) => "a namespace".into(),
        Shape::Name(Name::Intent) => "a capability name".into(),
        Shape::Name(Name::Region) => "a region glob".into(),
        Shape::Name(Name::Scope) => "a scope".into(),
        Shape::Word(words) => format!("one of {}", words.join(", ")),
        Shape::Integer { .. } => "a whole number".into(),
        Shape::Number { .. } => "a number".into(),
        Shape::Bool => "true or false".into(),
        Shape::Span { .. } => "a duration such as \"30s\"".into(),
        Shape::Url | Shape::Address => "a URL".into(),
        Shape::Minute => "a time of day \"HH:MM\"".into(),
        Shape::TimeZone => "an IANA time zone".into(),
        Shape::Texts { .. } => "text, or {zh: …, en: …}".into(),
        Shape::Examples { .. } => "a list of texts".into(),
        Shape::Tags => "a list of tags".into(),
        Shape::List { min, .. } => format!("a list of at least {min}"),
        Shape::Object(table) => format!("an object ({})", table.name),
        Shape::Attributes => "an object of attributes".into(),
        Shape::Schema => "a JSON Schema".into(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn in_alphabet(text: &str, max: usize, extra: &str) -> bool {
    (1..=max).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
}

/// Whether `text` can name a capability: letters and digits of any script at both ends, separators between.
fn is_intent(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.chars().nth(128).is_none()
        && edge(text.chars().next())
        && (edge(text.chars().next_back()) || text.chars().next_back().is_some_and(unicode_normalization::char::is_combining_mark))
        && text.chars().all(|c| c.is_alphanumeric() || "_-.:/ ".contains(c) || unicode_normalization::char::is_combining_mark(c))
}

/// Phrases that address a language model instead of describing a capability.
fn steers(text: &str) -> bool {
    let lower = text.to_lowercase();
    let squeezed: String = lower.split_whitespace().collect::<Vec<_>>().join(" ");
    let instruction = |verb: &str| {
        ["previous instruction", "prior instruction", "above instruction", "all instruction", "your instruction"]
            .iter()
            .any(|i| squeezed.find(verb).is_some_and(|at| squeezed.get(at..).is_some_and(|rest| rest.find(i).is_some_and(|d| d < 60))))
    };
    [
        "<important>",
        "</system>",
        "<system>",
        "<|im_start|>",
        "[inst]",
        "system prompt",
        "you are now ",
        "忽略以上",
        "忽略之前",
        "忽略前面",
        "系统提示词",
    ]
    .iter()
    .any(|p| squeezed.contains(p))
        || ["ignore", "disregard", "forget"].iter().any(|v| instruction(v))
}
