//! Bytes from strangers, read as JSON, YAML or JSON lines, safely.
//!
//! In: bytes. Out: [`serde_json::Value`]s with the line they begin on, or faults that say where and what.
//! Invariants: one document is at most 1 MiB, 64 levels and 100,000 nodes; nesting is counted before anything recursive looks at it; a key
//! stands once in an object; every number is finite; YAML aliases can't multiply a document. Never panics.
//! Cost: linear. Not here: what the document means (`manifest_check`), reading files (`app`, `cli`).

use crate::types::fault::Fault;
use crate::types::{plain, text};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Largest single document, bytes.
pub const MAX_DOCUMENT: usize = 1 << 20;
/// Largest file of several documents, bytes.
pub const MAX_FILE: usize = 64 << 20;
/// Deepest nesting of objects and lists.
pub const MAX_DEPTH: usize = 64;
/// Most values in one document, keys not counted.
pub const MAX_NODES: usize = 100_000;
/// Most documents in one file.
pub const MAX_DOCUMENTS: usize = 100_000;

/// How the bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON value; a list is several documents.
    Json,
    /// One JSON object a line.
    JsonLines,
    /// YAML, several documents divided by `---`.
    Yaml,
}

impl Format {
    /// The format a file name promises: `.json`, `.jsonl`/`.ndjson`, `.yaml`/`.yml`.
    pub fn of_name(name: &str) -> Option<Self> {
        let ending = name.rsplit_once('.')?.1.to_ascii_lowercase();
        match ending.as_str() {
            "json" => Some(Self::Json),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// A guess from the first character: `{` or `[` is JSON (several lines that each begin with `{` and end with `}` are JSON lines), all else YAML.
    fn guess(text: &str) -> Self {
        let text = text.trim_start();
        if !text.starts_with(['{', '[']) {
            return Self::Yaml;
        }
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty()).take(3);
        let whole = |l: &str| l.starts_with('{') && l.ends_with('}');
        match (lines.next(), lines.next()) {
            (Some(a), Some(b)) if whole(a) && whole(b) => Self::JsonLines,
            _ => Self::Json,
        }
    }
}

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it holds.
    pub value: Value,
    /// Line it begins on, from 1; for YAML, the number of the document, from 1.
    pub place: usize,
}

/// Reads every document of `bytes`. All faulty lines of a JSON-lines file are reported, up to 100.
pub fn read(bytes: &[u8], format: Option<Format>) -> Result<Vec<Document>, Vec<Fault>> {
    if bytes.len() > MAX_FILE {
        return Err(vec![Fault::new("", "at most 64 MiB", "split the file")]);
    }
    let text = utf8(bytes).map_err(|f| vec![f])?;
    match format.unwrap_or_else(|| Format::guess(text)) {
        Format::Json => {
            let value = json_text(text).map_err(|f| vec![f])?;
            Ok(match value {
                Value::Array(items) => items.into_iter().map(|value| Document { value, place: 1 }).collect(),
                value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                    vec![Document { value, place: 1 }]
                }
            })
        }
        Format::JsonLines => json_lines(text),
        Format::Yaml => yaml(text).map_err(|f| vec![f]),
    }
}

/// Reads one JSON value, such as a request body.
pub fn json(bytes: &[u8]) -> Result<Value, Fault> {
    json_text(utf8(bytes)?)
}

fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    plain::text(bytes).map_err(|why| Fault::new("", "UTF-8 text", why))
}

fn too_large() -> Fault {
    Fault::new("", "a document of at most 1 MiB", "shorten it, or split it into several agents")
}

fn json_text(text: &str) -> Result<Value, Fault> {
    if text.len() > MAX_DOCUMENT {
        return Err(too_large());
    }
    shallow(text)?;
    serde_json::from_str::<Strict>(text).map(|s| s.value).map_err(|e| json_fault(&e))
}

fn json_fault(e: &serde_json::Error) -> Fault {
    let words = e.to_string();
    let words = words.split(" at line ").next().unwrap_or_default();
    let expected = match e.classify() {
        serde_json::error::Category::Eof => "a complete JSON value",
        serde_json::error::Category::Syntax | serde_json::error::Category::Data | serde_json::error::Category::Io => "valid JSON",
    };
    Fault::new("", expected, format!("line {}, column {}: {}", e.line(), e.column(), text::cut(&text::clean(words), 200)))
}

/// Counts brackets outside of strings, without recursion: refuses a document deeper than [`MAX_DEPTH`] before a parser descends into it.
fn shallow(text: &str) -> Result<(), Fault> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for b in text.bytes() {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match b {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
    }
    Ok(())
}

fn too_deep() -> Fault {
    Fault::new("", format!("at most {MAX_DEPTH} levels of nesting"), "flatten the document")
}

fn json_lines(text: &str) -> Result<Vec<Document>, Vec<Fault>> {
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        if documents.len() == MAX_DOCUMENTS {
            return Err(vec![Fault::new("", format!("at most {MAX_DOCUMENTS} documents"), "split the file")]);
        }
        match json_text(line) {
            Ok(value) => documents.push(Document { value, place: index + 1 }),
            Err(fault) => faults.push(Fault { hint: format!("line {} of the file: {}", index + 1, fault.hint), ..fault }),
        }
        if faults.len() == 100 {
            break;
        }
    }
    if faults.is_empty() { Ok(documents) } else { Err(faults) }
}

fn yaml(text: &str) -> Result<Vec<Document>, Fault> {
    // several documents may be larger together than one may be; aliases are bounded by nodes and bytes either way
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: MAX_DOCUMENTS,
            max_nodes: 2_000_000,
            max_events: 5_000_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: MAX_DOCUMENT,
            max_merge_keys: 1_000,
            max_inclusion_depth: 0,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
            max_replay_stack_depth: 16,
            max_alias_expansions_per_anchor: 1_000,
        },
        strict_booleans: true,
        with_snippet: false,
        emit_comments: false,
    };
    let values: Vec<Strict> = serde_saphyr::from_multiple_with_options(text, options).map_err(|e| yaml_fault(&e))?;
    let mut documents = Vec::with_capacity(values.len());
    for (index, strict) in values.into_iter().enumerate() {
        if strict.bytes > MAX_DOCUMENT {
            return Err(too_large());
        }
        if !strict.value.is_null() {
            documents.push(Document { value: strict.value, place: index + 1 });
        }
    }
    Ok(documents)
}

fn yaml_fault(e: &serde_saphyr::Error) -> Fault {
    let words = text::clean(&e.to_string());
    Fault::new("", "valid YAML within the limits", text::cut(&words, 300))
}

/// A value in which no key stands twice and every number is finite; counts what it holds.
struct Strict {
    value: Value,
    nodes: usize,
    bytes: usize,
}

impl Strict {
    fn leaf(value: Value, bytes: usize) -> Self {
        Self { value, nodes: 1, bytes }
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Strict, E> {
        Ok(Strict::leaf(Value::Null, 4))
    }

    fn visit_none<E: de::Error>(self) -> Result<Strict, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Strict, D::Error> {
        Strict::deserialize(d)
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Strict, E> {
        Ok(Strict::leaf(Value::Bool(v), 4))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Strict, E> {
        Ok(Strict::leaf(Value::Number(v.into()), 8))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Strict, E> {
        Ok(Strict::leaf(Value::Number(v.into()), 8))
    }

    fn visit_i128<E: de::Error>(self, v: i128) -> Result<Strict, E> {
        self.visit_f64(v as f64)
    }

    fn visit_u128<E: de::Error>(self, v: u128) -> Result<Strict, E> {
        self.visit_f64(v as f64)
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Strict, E> {
        let number = Number::from_f64(v).ok_or_else(|| E::custom("a number must be finite (no NaN, no infinity)"))?;
        Ok(Strict::leaf(Value::Number(number), 8))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Strict, E> {
        Ok(Strict::leaf(Value::String(v.into()), v.len()))
    }

    fn visit_string<E: de::Error>(self, v: String) -> Result<Strict, E> {
        let bytes = v.len();
        Ok(Strict::leaf(Value::String(v), bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
        let (mut items, mut nodes, mut bytes) = (Vec::new(), 1, 2);
        while let Some(item) = seq.next_element::<Strict>()? {
            nodes += item.nodes;
            bytes += item.bytes + 1;
            items.push(item.value);
            bounded(nodes, bytes)?;
        }
        Ok(Strict { value: Value::Array(items), nodes, bytes })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let (mut members, mut nodes, mut bytes) = (Map::new(), 1, 2);
        while let Some(Key(key)) = map.next_key::<Key>()? {
            if members.contains_key(&key) {
                return Err(de::Error::custom(format!("the key {} stands twice in one object", text::quoted(&key))));
            }
            let item = map.next_value::<Strict>()?;
            nodes += item.nodes;
            bytes += item.bytes + key.len() + 2;
            members.insert(key, item.value);
            bounded(nodes, bytes)?;
        }
        Ok(Strict { value: Value::Object(members), nodes, bytes })
    }
}

fn bounded<E: de::Error>(nodes: usize, bytes: usize) -> Result<(), E> {
    if nodes > MAX_NODES {
        return Err(E::custom(format!("at most {MAX_NODES} values in one document")));
    }
    if bytes > 2 * MAX_DOCUMENT {
        return Err(E::custom("at most 1 MiB in one document, aliases expanded"));
    }
    Ok(())
}

/// A key: text; YAML numbers and booleans as keys are taken by their spelling.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn values(bytes: &[u8], format: Option<Format>) -> Vec<Value> {
        read(bytes, format).unwrap().into_iter().map(|d| d.value).collect()
    }

    fn hint(bytes: &[u8], format: Format) -> String {
        read(bytes, Some(format)).unwrap_err()[0].to_string()
    }

    #[test]
    fn the_same_document_in_every_format() {
        let expected = json!({"a": 1, "b": [true, null, "退款", 0.5]});
        for (bytes, format) in [
            (r#"{"a":1,"b":[true,null,"退款",0.5]}"#, None),
            ("\u{feff}{\"a\":1,\"b\":[true,null,\"退款\",0.5]}", Some(Format::Json)),
            ("a: 1\nb: [true, null, 退款, 0.5]\n", None),
            ("---\na: 1\nb:\n  - true\n  -\n  - \"退款\"\n  - 0.5\n", Some(Format::Yaml)),
        ] {
            assert_eq!(values(bytes.as_bytes(), format), std::slice::from_ref(&expected), "{bytes}");
        }
    }

    #[test]
    fn several_documents() {
        assert_eq!(values(b"a: 1\n---\na: 2\n---\n", None), [json!({"a": 1}), json!({"a": 2})]);
        assert_eq!(values(b"[{\"a\":1},{\"a\":2}]", None), [json!({"a": 1}), json!({"a": 2})]);
        let lines = read(b"{\"a\":1}\n\n{\"a\":2}\n", None).unwrap();
        assert_eq!(lines.iter().map(|d| d.place).collect::<Vec<_>>(), [1, 3]);
        let faults = read(b"{\"a\":1}\n{\n{\"a\":3}\nx\n", Some(Format::JsonLines)).unwrap_err();
        assert_eq!(faults.len(), 2);
        assert!(faults[0].hint.contains("line 2") && faults[1].hint.contains("line 4"), "{faults:?}");
    }

    #[test]
    fn malformed_input_says_where() {
        assert!(hint(b"{\"a\": 1,\n \"b\" 2}", Format::Json).contains("line 2, column"));
        assert!(hint(b"{\"a\":1", Format::Json).contains("complete JSON"));
        assert!(hint(b"", Format::Json).contains("complete JSON"));
        assert!(hint(b"{\"a\":1,\"a\":2}", Format::Json).contains("\"a\" stands twice"));
        assert!(hint(b"{\"a\":1,\"\\u0061\":2}", Format::Json).contains("stands twice"), "an escaped spelling of the same key");
        assert!(hint(b"{\"a\":1e999999}", Format::Json).contains("out of range"));
        assert!(hint(b"{\"a\":\"\\ud800\"}", Format::Json).contains("hex escape"), "a lone surrogate");
        assert!(hint(b"{\"a\":\"\xff\"}", Format::Json).contains("not UTF-8"));
        assert!(hint(b"\xff\xfe{\0}\0", Format::Json).contains("UTF-16"));
        assert!(hint(b"{\"a\":NaN}", Format::Json).contains("line 1"));
        assert!(hint(b"a: 1\na: 2\n", Format::Yaml).to_lowercase().contains("duplicate"));
        assert!(hint(b"a: [1, 2\n", Format::Yaml).contains("YAML"));
        assert!(read(b"a: .nan\n", Some(Format::Yaml)).is_err() && read(b"a: .inf\n", Some(Format::Yaml)).is_err());
        assert!(hint(&vec![b' '; MAX_DOCUMENT + 1], Format::Json).contains("1 MiB"));
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        for opener in ["[", "{\"a\":"] {
            assert!(hint(opener.repeat(100_000).as_bytes(), Format::Json).contains("64 levels"));
        }
        assert!(read("[".repeat(100_000).as_bytes(), Some(Format::Yaml)).is_err());
        assert!(read("- ".repeat(100_000).as_bytes(), Some(Format::Yaml)).is_err());
        assert!(read("{a: ".repeat(50_000).as_bytes(), Some(Format::Yaml)).is_err());
        let brackets_in_text = format!("{{\"a\":\"{}\"}}", "[".repeat(1000));
        assert_eq!(values(brackets_in_text.as_bytes(), Some(Format::Json)).len(), 1);
        let allowed = format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(json(allowed.as_bytes()).is_ok());
    }

    #[test]
    fn aliases_cannot_multiply() {
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
        for (next, last) in ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
            bomb += &format!("{next}: &{next} [{}]\n", vec![format!("*{last}"); 9].join(", "));
        }
        assert!(read(bomb.as_bytes(), Some(Format::Yaml)).is_err());
        assert_eq!(values(b"a: &x {k: 1}\nb: *x\n", None), [json!({"a": {"k": 1}, "b": {"k": 1}})], "a few are fine");
        let wide = format!("a: &x \"{}\"\nb: [{}]\n", "y".repeat(100_000), vec!["*x"; 500].join(", "));
        assert!(read(wide.as_bytes(), Some(Format::Yaml)).is_err());
    }

    #[test]
    fn hostile_yaml_is_refused_or_read_quickly() {
        let started = crate::clock::Clock::instant(&crate::clock::SystemClock);
        for piece in [
            "? ", "- ", "a: ", "&a ", "*a ", "!!str ", "[", "{", "{a: [", "'", "\"\\x", "| ", "> \n", "%TAG ", "---\n", "<<: ", "#", "\t",
            ": ", ",", "a\n",
        ] {
            let text = piece.repeat(300_000 / piece.len());
            assert!(read(text.as_bytes(), Some(Format::Yaml)).map_or_else(|f| !f.is_empty(), |_| true));
            println!("{piece:?} {:?}", started.elapsed());
        }
        assert!(started.elapsed().as_secs() < 30, "took {:?}", started.elapsed());
    }

    #[test]
    fn many_values_are_bounded() {
        let many = format!("[{}1]", "1,".repeat(MAX_NODES));
        assert!(json(many.as_bytes()).unwrap_err().hint.contains("100000 values"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for format in [None, Some(Format::Json), Some(Format::JsonLines), Some(Format::Yaml)] {
                prop_assert!(read(&bytes, format).map_or_else(|f| !f.is_empty(), |_| true));
            }
        }

        #[test]
        fn yaml_like_text_never_panics(text in "[-a-c:#&*!|>'\"%@`{}\\[\\],? \\n0-9.~<\\t]{0,120}") {
            prop_assert!(read(text.as_bytes(), Some(Format::Yaml)).map_or_else(|f| !f.is_empty(), |_| true));
        }
    }
}
