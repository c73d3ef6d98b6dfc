//! JSON of the HTTP doors: strict reading with the place of every fault, and the serde forms of fields that differ from
//! protobuf.
//!
//! In: a body of at most the configured size. Out: a message, or `invalid_argument` with a JSON pointer. Two passes: the
//! first looks at the shape alone (depth, number of values, duplicate keys, numbers and texts that JSON can't hold), the
//! second builds the message. Cost: linear in the body; recursion is bounded by [`MAX_DEPTH`].
//!
//! Not here: what the fields mean (`convert`, and behind the ports), manifests (`types::document`).

use crate::error::{Code, Error};
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

/// Deepest nesting of arrays and objects in a JSON document.
pub const MAX_DEPTH: usize = 64;
/// Largest number of values (and keys) in a JSON document.
pub const MAX_VALUES: usize = 200_000;
/// Largest number of requests in a batch.
pub const MAX_BATCH: usize = 256;

/// Reads a message from a JSON body.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let text = text(body, "")?;
    check(text, "")?;
    let mut de = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut de).map(|Object(message)| message).map_err(|e| fault(&pointer_of(e.path()), e.inner()))
}

/// Reads a JSON document that travelled as text in a field, strictly. `pointer` is the place of the field in its message.
pub fn read_free(text: &str, pointer: &str) -> Result<Value, Error> {
    check(text, pointer)?;
    serde_json::from_str(text).map_err(|e| fault(pointer, &e))
}

/// Writes a message. Our own messages always serialise; a failure is a fault of ours.
pub fn write<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(message).map_err(Error::internal)
}

fn text<'a>(body: &'a [u8], pointer: &str) -> Result<&'a str, Error> {
    let text = std::str::from_utf8(body)
        .map_err(|e| Error::invalid_at(pointer, "UTF-8 text", format!("byte {} is not part of a UTF-8 character", e.valid_up_to())))?;
    match text.strip_prefix('\u{feff}') {
        Some(_) => Err(Error::invalid_at(pointer, "JSON", "remove the byte order mark at the beginning")),
        None if text.trim().is_empty() => Err(Error::invalid_at(pointer, "a JSON object", "the body is empty")),
        None => Ok(text),
    }
}

/// The first pass: shape only.
fn check(text: &str, pointer: &str) -> Result<(), Error> {
    let mut values = 0;
    let mut de = serde_json::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    let seed = Shape { depth: 0, values: &mut values, twice: false };
    match seed.deserialize(serde_path_to_error::Deserializer::new(&mut de, &mut track)) {
        Ok(()) => de.end().map_err(|e| fault(pointer, &e)),
        Err(e) => Err(fault(&format!("{pointer}{}", pointer_of(&track.path())), &e)),
    }
}

fn fault(pointer: &str, e: &serde_json::Error) -> Error {
    let words = e.to_string();
    // "… at line 1 column 7" goes into the hint, what is wrong is what was expected
    let (what, place) = words.rsplit_once(" at line ").map_or((words.as_str(), None), |(w, p)| (w, Some(p)));
    let expected = expectation(what);
    // what was found there; what was expected is told beside
    let what = what.rsplit_once(", expected ").filter(|_| what.starts_with("invalid type: ")).map_or_else(
        || what.to_string(),
        |(found, _)| found.replacen("invalid type: ", "it is ", 1).replace("floating point", "the number").replace("integer", "the number"),
    );
    let hint = match (e.classify(), place) {
        (serde_json::error::Category::Data, None) => format!("correct this value: {what}"),
        (serde_json::error::Category::Data, Some(p)) => format!("correct the value at line {p}: {what}"),
        (_, Some(p)) => format!("correct the JSON at line {p}: {what}"),
        (_, None) => format!("correct the JSON: {what}"),
    };
    Error::invalid_at(pointer, expected, hint)
}

/// What was expected, taken from serde's words.
fn expectation(what: &str) -> String {
    match what.rsplit_once(", expected ") {
        Some((_, expected)) => plain(expected).to_string(),
        None if what.starts_with("duplicate") => "each name once".into(),
        None => "valid JSON of this message".into(),
    }
}

/// A type as its users know it.
fn plain(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "u128" => "a whole number, 0 or more, without a decimal point",
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number, without a decimal point",
        "f32" | "f64" => "a number",
        other if other.starts_with("struct ") || other == "a map" => "an object",
        other if other == "a sequence" || other.starts_with("tuple ") => "a list",
        other => other,
    }
}

/// A JSON pointer of a path.
pub fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                let short: String = key.chars().take(80).collect();
                pointer.push_str(&format!("/{}", short.replace('~', "~0").replace('/', "~1")));
            }
            // not known how far it got: the place is the value around
            Segment::Unknown => break,
        }
    }
    pointer
}

/// A value that is only looked at.
struct Shape<'a> {
    depth: usize,
    values: &'a mut usize,
    /// Whether it stands under a name that its object had before.
    twice: bool,
}

impl Shape<'_> {
    fn count<E: serde::de::Error>(&mut self) -> Result<(), E> {
        *self.values += 1;
        if *self.values > MAX_VALUES {
            return Err(E::custom(format!("too many values, expected at most {MAX_VALUES}")));
        }
        Ok(())
    }

    fn deeper<E: serde::de::Error>(&mut self) -> Result<Shape<'_>, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format!("nested too deeply, expected at most {MAX_DEPTH} levels")));
        }
        Ok(Shape { depth: self.depth + 1, values: self.values, twice: false })
    }
}

impl<'de> DeserializeSeed<'de> for Shape<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        if self.twice {
            return Err(serde::de::Error::custom("duplicate name"));
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(mut self) -> Result<(), E> {
        self.count()
    }

    fn visit_bool<E: serde::de::Error>(mut self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: serde::de::Error>(mut self, _: i64) -> Result<(), E> {
        self.count()
    }

    fn visit_u64<E: serde::de::Error>(mut self, _: u64) -> Result<(), E> {
        self.count()
    }

    fn visit_f64<E: serde::de::Error>(mut self, _: f64) -> Result<(), E> {
        self.count()
    }

    fn visit_str<E: serde::de::Error>(mut self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        self.count()?;
        let inner = self.deeper()?;
        while seq.next_element_seed(Shape { depth: inner.depth, values: &mut *inner.values, twice: false })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.count()?;
        let mut inner = self.deeper()?;
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            inner.count()?;
            // the fault is raised inside the value, where the path already has the name
            let twice = !seen.insert(key);
            map.next_value_seed(Shape { depth: inner.depth, values: &mut *inner.values, twice })?;
        }
        Ok(())
    }
}

/// Serde of a JSON document that is text in the message: it stands as itself, digit for digit.
pub mod free {
    use super::*;

    /// Writes the document.
    pub fn serialize<S: Serializer>(text: &Option<String>, s: S) -> Result<S::Ok, S::Error> {
        match text {
            None => s.serialize_none(),
            Some(text) => RawValue::from_string(text.clone()).map_err(serde::ser::Error::custom)?.serialize(s),
        }
    }

    /// Keeps the document as text.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
        let raw = Option::<Box<RawValue>>::deserialize(d)?;
        Ok(raw.map(|raw| raw.get().to_string()))
    }
}

/// Serde of the scopes: a plain list.
pub mod scopes {
    use super::*;
    use crate::api::pb::ScopeList;

    /// Writes the list.
    pub fn serialize<S: Serializer>(scopes: &Option<ScopeList>, s: S) -> Result<S::Ok, S::Error> {
        scopes.as_ref().map(|list| &list.items).serialize(s)
    }

    /// Reads the list.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ScopeList>, D::Error> {
        Ok(Option::<Vec<String>>::deserialize(d)?.map(|items| ScopeList { items }))
    }
}

/// A message that must stand as an object: serde would take a list of its fields in their order, too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }
        d.deserialize_map(Members(PhantomData)).map(Object)
    }
}

/// Reads a message inside a message: an object, or nothing.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(d)?.map(|Object(message)| message))
}

/// Reads the requests of a batch, never more than [`MAX_BATCH`] of them: an empty one is 3 bytes of text and much more in memory.
pub fn batch<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of 1 to {MAX_BATCH} requests")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(Object(one)) = seq.next_element()? {
                if all.len() == MAX_BATCH {
                    return Err(serde::de::Error::custom(format!("too many requests, expected at most {MAX_BATCH} in one batch")));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    d.deserialize_seq(Few(PhantomData))
}

/// The error that says a message is larger than `limit` bytes.
pub fn too_large(limit: usize) -> Error {
    Error::new(
        Code::PayloadTooLarge,
        format!("the message is larger than {limit} bytes; send a reference, or raise server.limits.message_bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pb;

    #[test]
    fn types_are_told_in_the_words_of_their_users() {
        let fault = |body: &str| read::<pb::ResolveRequest>(body.as_bytes()).unwrap_err().faults.remove(0);
        let float = fault(r#"{"query":"x","deadline_ms":1000.0}"#);
        assert!(float.pointer == "/deadline_ms" && float.expected.starts_with("a whole number"), "{float:?}");
        assert!(float.hint.contains("it is the number `1000.0`") && !float.hint.contains("u64"), "{float:?}");
        let text = fault(r#"{"query":"x","namespaces":7}"#);
        assert!(text.pointer == "/namespaces" && text.expected == "a list", "{text:?}");
    }

    fn pointer(body: &str) -> String {
        let e = read::<pb::ResolveRequest>(body.as_bytes()).unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument, "{body}");
        e.faults[0].pointer.clone()
    }

    #[test]
    fn faults_name_their_place() {
        assert_eq!(pointer(r#"{"query": 7}"#), "/query");
        assert_eq!(pointer(r#"{"query": "a", "colour": 1}"#), "/colour");
        assert_eq!(pointer(r#"{"query": "a", "query": "b"}"#), "/query");
        assert_eq!(pointer(r#"{"payload": {"a": [1, {"b": 1, "b": 2}]}}"#), "/payload/a/1/b");
        assert_eq!(pointer(r#"{"max_cost": 1e999999}"#), "/max_cost");
        assert_eq!(pointer(r#"{"payload": 1e999999}"#), "/payload");
        assert_eq!(pointer(r#"{"max_cost": NaN}"#), "/max_cost");
        assert_eq!(pointer(r#"{"query": "\ud800"}"#), "/query");
        assert_eq!(pointer(r#"{"preferred": ["a/b", null]}"#), "/preferred/1");
        let listed = read::<pb::HeartbeatRequest>(br#"{"agent": ["local", "orders", "desk"]}"#).unwrap_err();
        assert_eq!(listed.faults[0].pointer, "/agent", "a list is no object");
        assert_eq!(read::<pb::ResolveBatchRequest>(br#"{"requests": [{}, []]}"#).unwrap_err().faults[0].pointer, "/requests/1");
        for document in ["", "  ", "[]", "7", "{", "{\"query\": \"a\"} x", "\u{feff}{}", "null"] {
            assert_eq!(pointer(document), "", "{document:?}");
        }
        assert!(read::<pb::ResolveRequest>(b"\xff\xfe{}").is_err());
    }

    #[test]
    fn depth_and_number_are_bounded() {
        for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000), format!("{{\"payload\":{}", "[".repeat(100_000))] {
            let e = read::<pb::ResolveRequest>(deep.as_bytes()).unwrap_err();
            assert!(e.message.contains("nested too deeply"), "{}", e.message);
        }
        let many = format!("{{\"payload\":[{}0]}}", "0,".repeat(MAX_VALUES));
        assert!(read::<pb::ResolveRequest>(many.as_bytes()).unwrap_err().message.contains("too many values"));
        let batch = format!("{{\"requests\":[{}{{}}]}}", "{},".repeat(MAX_BATCH));
        assert!(read::<pb::ResolveBatchRequest>(batch.as_bytes()).unwrap_err().message.contains("too many requests"));
    }

    #[test]
    fn free_json_keeps_every_digit() {
        let body = r#"{"query":"","payload":{"id":123456789012345678901234567890,"x":1.10,"y":9007199254740993},"only":false,"depth":0,"explain":false}"#;
        let request: pb::ResolveRequest = read(body.as_bytes()).unwrap();
        assert_eq!(request.payload.as_deref().unwrap(), r#"{"id":123456789012345678901234567890,"x":1.10,"y":9007199254740993}"#);
        let back = String::from_utf8(write(&request).unwrap()).unwrap();
        assert_eq!(back, body);
    }

    #[test]
    fn absent_and_empty_scopes_differ() {
        let none: pb::ResolveRequest = read(br#"{"query":"a"}"#).unwrap();
        let empty: pb::ResolveRequest = read(br#"{"query":"a","scopes":[]}"#).unwrap();
        assert_eq!(none.scopes, None);
        assert_eq!(empty.scopes, Some(pb::ScopeList::default()));
    }
}
