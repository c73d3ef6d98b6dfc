//! Reads what an agent answered: JSON out of plain text, and whether it is a success.
//!
//! JSON is looked for in this order: the whole text; the text inside code fences; the first complete object or array. Nothing found: the text itself
//! with the warning `text_response`. A success is read by a [`Reading`]: what the endpoint's mapping says, else the usual signs of an error
//! inside a 200 (`code` other than 0 or 2xx, `success: false`, a filled `error`, `status: error`).
//! Invariant: never panics, never reads deeper than the parser allows; linear in the text. Not here: schemas, HTTP.

use crate::types::decision::Note;
use crate::types::envelope::{MAX_PAYLOAD, Payload};
use crate::types::message::Reply;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Deepest JSON that is handed on, as everywhere else.
const MAX_DEPTH: usize = 64;

/// How to read success out of a body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reading {
    /// JSON pointer of the field that tells.
    pub field: Option<String>,
    /// Its values that mean success, as text (`0`, `true`, `OK`).
    pub good: Vec<String>,
    /// Its values that mean "try again".
    pub retryable: Vec<String>,
    /// JSON pointer of the words of an error.
    pub message: Option<String>,
    /// JSON pointer of the result; the whole body when absent.
    pub data: Option<String>,
}

/// What a body says about itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// It worked.
    Good,
    /// It did not; the agent says it may work later.
    Again(String),
    /// It did not.
    Bad(String),
}

/// Takes the answer of an agent as text.
pub fn read(text: &str) -> Reply {
    if let Some((json, payload)) = find_json(text).and_then(|json| Payload::new(json).ok().map(|p| (json, p))) {
        let whole = json.len() == text.trim().len();
        let warning = Note::new("json_extracted", "the result was taken out of a longer text");
        return Reply { data: Some(payload), text: None, warnings: if whole { vec![] } else { vec![warning] } };
    }
    let (cut, was_cut) = cut_at(text, MAX_PAYLOAD);
    let mut warnings = vec![Note::new("text_response", "the agent answered with text, not with JSON")];
    if was_cut {
        warnings.push(Note::new("field_truncated", format!("the text was cut at {MAX_PAYLOAD} bytes")));
    }
    Reply { data: None, text: Some(Arc::from(cut)), warnings }
}

/// Whether `text` is JSON that others can read too: what is nested deeper than any reader takes is text.
fn is_json(text: &str) -> bool {
    depth(text) <= MAX_DEPTH && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Deepest nesting of brackets outside strings.
fn depth(text: &str) -> usize {
    let (mut now, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for b in text.bytes() {
        match (in_string, b) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => {
                now += 1;
                deepest = deepest.max(now);
            }
            (false, b'}' | b']') => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The JSON of a text: whole, fenced, or the first complete object or array.
pub fn find_json(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return None;
    }
    if is_json(text) {
        return Some(text);
    }
    let mut rest = text;
    while let Some(open) = rest.find("```") {
        let inner = &rest[open + 3..];
        let Some(close) = inner.find("```") else { break };
        let body = &inner[..close];
        // the word after the fence names a language
        let body =
            body.split_once('\n').map_or(body, |(tag, after)| if tag.trim().chars().all(char::is_alphanumeric) { after } else { body });
        if is_json(body.trim()) {
            return Some(body.trim());
        }
        rest = &inner[close + 3..];
    }
    first_complete(text)
}

/// The first balanced object or array that parses. One pass: after a balanced stretch that does not parse the search goes on behind its bracket,
/// for a bounded number of tries.
fn first_complete(text: &str) -> Option<&str> {
    let mut from = 0;
    for _ in 0..32 {
        let start = from + text[from..].find(['{', '['])?;
        match balanced(&text[start..]) {
            Some(len) if is_json(&text[start..start + len]) => return Some(&text[start..start + len]),
            _ => from = start + 1,
        }
    }
    None
}

/// Length of the bracketed stretch at the start of `text`, strings respected.
fn balanced(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, b) in text.bytes().enumerate() {
        match (in_string, b) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => in_string = false,
            (true, _) => {}
            (false, b'"') => in_string = true,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            (false, _) => {}
        }
    }
    None
}

fn cut_at(text: &str, max: usize) -> (&str, bool) {
    if text.len() <= max {
        return (text, false);
    }
    let end = (0..=max).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    (&text[..end], true)
}

/// Reads success out of a body by `reading`, or by the usual signs when it names no field.
pub fn said(body: &Value, reading: &Reading) -> Said {
    let words = |body: &Value| words(body, reading.message.as_deref());
    if let Some(field) = &reading.field {
        let value = body.pointer(field).map(as_text).unwrap_or_default();
        return if reading.good.contains(&value) {
            Said::Good
        } else if reading.retryable.contains(&value) {
            Said::Again(words(body))
        } else {
            Said::Bad(words(body))
        };
    }
    let Some(map) = body.as_object() else { return Said::Good };
    let code_bad = match map.get("code") {
        Some(Value::Number(n)) => n.as_i64().is_some_and(|n| n != 0 && !(200..300).contains(&n)),
        Some(Value::String(s)) => !s.is_empty() && s.parse::<i64>().is_ok_and(|n| n != 0 && !(200..300).contains(&n)),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => false,
    };
    let success_false = map.get("success").or_else(|| map.get("ok")) == Some(&Value::Bool(false));
    let error_filled = ["error", "errors"].iter().filter_map(|k| map.get(*k)).any(|v| match v {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => n.as_i64() != Some(0),
        Value::String(s) => !s.is_empty(),
        Value::Array(a) => !a.is_empty(),
        Value::Object(o) => !o.is_empty(),
    });
    let status_error =
        map.get("status").and_then(Value::as_str).is_some_and(|s| matches!(s, "error" | "failed" | "failure" | "ERROR" | "FAILED"));
    // a success that is said in so many words outweighs a stray `code` or `status` of the business itself
    let success_true = map.get("success") == Some(&Value::Bool(true));
    if success_false || error_filled || (!success_true && (code_bad || status_error)) { Said::Bad(words(body)) } else { Said::Good }
}

/// The words of an error in a body: at `named`, else where they usually stand; bounded, without control characters.
pub fn words(body: &Value, named: Option<&str>) -> String {
    let usual = ["/message", "/msg", "/error/message", "/error", "/detail", "/reason"];
    let found = named.and_then(|p| body.pointer(p)).or_else(|| usual.iter().find_map(|p| body.pointer(p).filter(|v| v.is_string())));
    let text = found.map_or_else(|| "the agent reports an error".to_string(), as_text);
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_no_reader_takes_is_text() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let reply = read(&deep);
        assert!(reply.data.is_none() && reply.text.is_some());
        assert!(read(&format!("{}1{}", "[".repeat(60), "]".repeat(60))).data.is_some());
    }

    #[test]
    fn json_is_found_in_what_models_write() {
        for (text, json) in [
            ("{\"a\":1}", Some("{\"a\":1}")),
            ("  [1,2]\n", Some("[1,2]")),
            ("\u{feff}{\"a\":1}", Some("{\"a\":1}")),
            ("Here you are:\n```json\n{\"a\": 1}\n```\nBye", Some("{\"a\": 1}")),
            ("```\n[1]\n```", Some("[1]")),
            ("```rust\nfn main() {}\n```\n```json\n{\"b\":2}\n```", Some("{\"b\":2}")),
            ("The set {x} is {\"a\": \"}\"} I think", Some("{\"a\": \"}\"}")),
            ("好的，结果是 {\"价格\": 12} 。", Some("{\"价格\": 12}")),
            ("no braces at all", None),
            ("{ never closed", None),
            ("", None),
        ] {
            assert_eq!(find_json(text), json, "{text:?}");
        }
        let r = read("plain words");
        assert_eq!((r.text.as_deref(), r.warnings[0].code.as_ref()), (Some("plain words"), "text_response"));
    }

    #[test]
    fn an_error_inside_a_200_is_an_error() {
        let usual = Reading::default();
        for good in [
            json!({"code": 0}),
            json!({"success": true}),
            json!({"code": 200}),
            json!([1]),
            json!({"error": null, "x": 1}),
            json!({"code": "EUR"}),
            json!(null),
            json!({"errors": []}),
        ] {
            assert_eq!(said(&good, &usual), Said::Good, "{good}");
        }
        for bad in [
            json!({"code": 500, "message": "boom"}),
            json!({"success": false}),
            json!({"error": {"message": "x"}}),
            json!({"status": "failed"}),
            json!({"code": "40001"}),
            json!({"ok": false}),
        ] {
            assert!(matches!(said(&bad, &usual), Said::Bad(_)), "{bad}");
        }
        assert_eq!(said(&json!({"code": 500, "message": "boom\u{1b}[2J"}), &usual), Said::Bad("boom[2J".into()));
    }

    #[test]
    fn a_mapping_says_it_by_itself() {
        let r = Reading {
            field: Some("/result/state".into()),
            good: vec!["DONE".into()],
            retryable: vec!["BUSY".into()],
            ..Default::default()
        };
        assert_eq!(said(&json!({"result": {"state": "DONE"}, "error": "old"}), &r), Said::Good);
        assert!(matches!(said(&json!({"result": {"state": "BUSY"}}), &r), Said::Again(_)));
        assert!(matches!(said(&json!({}), &r), Said::Bad(_)));
    }

    #[test]
    fn deep_nesting_is_text() {
        let deep = "[".repeat(100_000);
        assert_eq!(find_json(&deep), None);
        let closed = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let _reply = read(&closed);
    }

    proptest! {
        #[test]
        fn what_is_found_parses(text in "[\\[\\]{}\", a1:`\n]{0,80}") {
            if let Some(json) = find_json(&text) {
                prop_assert!(serde_json::from_str::<Value>(json).is_ok());
            }
        }

        #[test]
        fn an_object_in_chatter_is_found(before in "[a-z ,.]{0,20}", n in any::<i32>(), after in "[a-z ,.]{0,20}") {
            let json = format!("{{\"n\": {n}}}");
            let text = format!("{before}{json}{after}");
            prop_assert_eq!(find_json(&text), Some(json.as_str()));
        }
    }
}
