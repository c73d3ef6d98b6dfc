//! Names of things: namespaces and agents. Validated once, compared by exact segments.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Largest length of a namespace in characters.
pub const MAX_NAMESPACE: usize = 200;
/// Largest number of `/`-separated segments in a namespace.
pub const MAX_SEGMENTS: usize = 8;
/// Largest length of an agent id or a domain in characters.
pub const MAX_AGENT_ID: usize = 128;

/// A namespace such as `orders` or `hr/payroll`: lower-case segments joined by `/`.
///
/// Two namespaces are the same only when all segments are equal: `acme` neither sees nor covers `acme-corp` or `acme/x`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks and takes a namespace. Errors say what was expected.
    pub fn new(text: &str) -> Result<Self, String> {
        let segment_ok = |s: &str| {
            let mut chars = s.chars();
            chars.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
                && s.len() <= 63
                && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
        };
        let segments: Vec<&str> = text.split('/').collect();
        if text.len() > MAX_NAMESPACE || segments.len() > MAX_SEGMENTS || !segments.iter().all(|s| segment_ok(s)) {
            return Err(format!(
                "segments of a-z, 0-9, '-' or '_' that begin with a letter or digit, joined by '/', at most {MAX_SEGMENTS} segments and {MAX_NAMESPACE} characters"
            ));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The text of the namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Namespace {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

/// The identity of an agent: domain / namespace / agent id. The version is not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AgentKey {
    /// Administrative domain; `local` on a node that federates with nobody.
    pub domain: Arc<str>,
    /// Namespace that owns the agent.
    pub namespace: Namespace,
    /// Id inside the namespace.
    pub agent_id: Arc<str>,
}

impl AgentKey {
    /// Builds a key in the `local` domain.
    pub fn local(namespace: Namespace, agent_id: &str) -> Self {
        Self { domain: Arc::from("local"), namespace, agent_id: Arc::from(agent_id) }
    }

    /// What `Display` shows, in parts: putting them together is several times as fast as formatting.
    pub fn parts(&self) -> [&str; 5] {
        let (domain, colon) = if &*self.domain == "local" { ("", "") } else { (&*self.domain, ":") };
        [domain, colon, self.namespace.as_str(), "/", &self.agent_id]
    }
}

impl fmt::Display for AgentKey {
    /// `namespace/agent_id`, with `domain:` before it when the domain is not `local`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().into_iter().try_for_each(|part| f.write_str(part))
    }
}

/// Whether `text` can be an agent id: `[A-Za-z0-9][A-Za-z0-9_.-]*`, at most [`MAX_AGENT_ID`] characters.
pub fn is_agent_id(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.len() <= MAX_AGENT_ID
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Reads `[domain:]namespace/agent_id`; the last `/` separates the two.
pub fn parse_agent(text: &str) -> Result<AgentKey, String> {
    let expected = "an agent as \"namespace/agent_id\"";
    let (domain, rest) = match text.split_once(':') {
        Some((domain, rest)) if is_agent_id(domain) => (domain, rest),
        Some(_) => return Err(expected.into()),
        None => ("local", text),
    };
    let (namespace, agent_id) = rest.rsplit_once('/').ok_or(expected)?;
    let namespace = Namespace::new(namespace).map_err(|e| format!("{expected}, the namespace made of {e}"))?;
    if !is_agent_id(agent_id) {
        return Err(expected.into());
    }
    Ok(AgentKey { domain: Arc::from(domain), namespace, agent_id: Arc::from(agent_id) })
}

/// An id that sorts by time (UUID version 7, RFC 9562 §5.7): 48 bits of milliseconds since the epoch, then 74 of the `random` bits. Ids that were made
/// together lie together in an index, so that storing them touches few pages.
pub fn time_ordered(now_ms: i64, random: [u8; 16]) -> [u8; 16] {
    let mut id = random;
    let [_, _, ms @ ..] = now_ms.max(0).to_be_bytes();
    id[..6].copy_from_slice(&ms);
    id[6] = 0x70 | (id[6] & 0x0f);
    id[8] = 0x80 | (id[8] & 0x3f);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_exact_segments() {
        assert!(Namespace::new("acme").is_ok() && Namespace::new("acme-corp").is_ok() && Namespace::new("acme/x").is_ok());
        for bad in ["", "/", "a//b", "A", "a/", "-a", "a b", "退款"] {
            assert!(Namespace::new(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn agent_ids_are_plain() {
        assert!(is_agent_id("order-desk_2.v1") && !is_agent_id("") && !is_agent_id("../x") && !is_agent_id("a/b"));
    }

    #[test]
    fn ids_sort_by_time_and_keep_their_chance() {
        let (early, late) = (time_ordered(1_000, [0xff; 16]), time_ordered(1_001, [0; 16]));
        assert!(early < late);
        assert_eq!((early[6] >> 4, early[8] >> 6), (7, 2));
        assert_eq!(time_ordered(1_645_557_742_000, [0; 16])[..6], [0x01, 0x7f, 0x22, 0xe2, 0x79, 0xb0]);
        assert_ne!(time_ordered(5, [1; 16]), time_ordered(5, [2; 16]));
    }
}
