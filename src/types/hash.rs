//! Content hashes: SHA-256 of an exact text, and of a manifest independent of the order of its keys.
//!
//! Invariant: two manifests with equal hashes mean the same; the same manifest in YAML and JSON has one hash.

use crate::types::manifest::Manifest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt;

/// A SHA-256 digest. Written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Hash of the exact bytes of `text`.
    pub fn of_text(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Hash of a manifest's canonical serialised form, keys sorted.
    pub fn of_manifest(manifest: &Manifest) -> Self {
        Self::of_value(&serde_json::to_value(manifest).unwrap_or(Value::Null))
    }

    /// Hash of a JSON value, the order of keys aside: what was written once keeps its hash when the types change.
    pub fn of_value(value: &Value) -> Self {
        let mut hasher = Sha256::new();
        feed(value, &mut hasher);
        Self(hasher.finalize().into())
    }

    /// Takes 32 bytes; anything else is no digest.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Reads 64 hex digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        Self::from_slice(&hex::decode(text).ok()?)
    }
}

/// Feeds a value in a form in which objects have their keys sorted and everything has its length. The depth is bounded by the manifest reader.
fn feed(value: &Value, hasher: &mut Sha256) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let text = value.to_string();
            hasher.update(text.as_bytes());
            hasher.update(b",");
        }
        Value::Array(items) => {
            hasher.update(b"[");
            items.iter().for_each(|item| feed(item, hasher));
            hasher.update(b"]");
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            hasher.update(b"{");
            for (key, item) in sorted {
                hasher.update(Value::String(key.clone()).to_string().as_bytes());
                hasher.update(b":");
                feed(item, hasher);
            }
            hasher.update(b"}");
        }
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::from_hex(&String::deserialize(d)?).ok_or_else(|| serde::de::Error::custom("64 hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::manifest_check::{Rules, check};
    use serde_json::json;

    fn manifest(schema: Value, description: &str) -> Manifest {
        let value = json!({"namespace": "a", "agent_id": "b", "endpoints": [{"protocol": "pull"}],
            "capabilities": [{"intent": "x_y", "description": description, "input_schema": schema}]});
        check(&value, &Rules::default()).unwrap().manifest
    }

    #[test]
    fn order_of_keys_does_not_count_content_does() {
        let a = ContentHash::of_manifest(&manifest(json!({"type": "object", "properties": {"a": {}, "b": {}}}), "do x"));
        let b = ContentHash::of_manifest(&manifest(json!({"properties": {"b": {}, "a": {}}, "type": "object"}), "do x"));
        let c = ContentHash::of_manifest(&manifest(json!({"type": "object", "properties": {"a": {}, "c": {}}}), "do x"));
        let d = ContentHash::of_manifest(&manifest(json!({"type": "object", "properties": {"a": {}, "b": {}}}), "do y"));
        assert_eq!(a, b);
        assert!(a != c && a != d);
        assert_eq!(serde_json::from_value::<ContentHash>(json!(a.to_string())).unwrap(), a);
        assert_eq!(ContentHash::of_text("").to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
