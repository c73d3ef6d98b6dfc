//! What a caller hands over for delivery, checked once.
//!
//! In: [`SubmitRequest`], unchecked, as any door read it. Out: [`Envelope`], whose every field is inside its bounds.
//! Invariant: an envelope has something to route by (target, intent or text), a payload of at most [`MAX_PAYLOAD`] bytes and a ttl of at most
//! [`MAX_TTL`]; it serialises to JSON and back without loss. Cost: one pass over the payload to see that it is JSON.
//! Not here: what became of it ([`crate::types::message`]), schemas, permission, time.

use crate::types::escalation::Escalated;
use crate::types::fault::Fault;
use crate::types::id::{AgentKey, Namespace, is_agent_id};
use crate::types::manifest::{Attribute, Retry};
use crate::types::principal::{Grant, Principal};
use crate::types::span;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Version of the envelope that this build writes.
pub const PROTOCOL_VERSION: u32 = 1;
/// Largest payload in bytes; larger data goes by `data_ref`.
pub const MAX_PAYLOAD: usize = 2 * 1024 * 1024;
/// Time a message lives unless it says otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// Longest life of a message.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// Most hops of a chain of messages.
pub const MAX_DEPTH: u8 = 8;
/// Most business tags of one message.
pub const MAX_TAGS: usize = 16;
/// Longest key, id or tag in characters.
pub const MAX_KEY: usize = 128;
/// Longest request text in bytes; the matcher cuts further by its own limit.
pub const MAX_QUERY: usize = 64 * 1024;

/// The identity of one reach: 128 random bits, 32 hexadecimal digits in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReachId(pub u128);

impl ReachId {
    /// The id as 16 bytes, big-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id of 16 bytes, big-endian.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for ReachId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ReachId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for ReachId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let ok = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let wrong = || "32 hexadecimal digits".to_string();
        if ok { u128::from_str_radix(text, 16).map(Self).map_err(|_| wrong()) } else { Err(wrong()) }
    }
}

impl Serialize for ReachId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReachId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// JSON text, kept as it was written. At most [`MAX_PAYLOAD`] bytes when it came through [`Payload::new`].
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Arc<str>);

impl Payload {
    /// Checks that `text` is one JSON value of a bounded size.
    pub fn new(text: &str) -> Result<Self, Fault> {
        if text.len() > MAX_PAYLOAD {
            return Err(too_large(text.len()));
        }
        match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Ok(Self(Arc::from(text))),
            Err(e) => Err(Fault::new("/payload", "one JSON value", format!("the text is not JSON: {e}"))),
        }
    }

    /// A value as a payload.
    pub fn of(value: &serde_json::Value) -> Result<Self, Fault> {
        let text = value.to_string();
        if text.len() > MAX_PAYLOAD { Err(too_large(text.len())) } else { Ok(Self(Arc::from(text))) }
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parsed value; `null` when it can't be parsed (nested too deeply).
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }
}

fn too_large(bytes: usize) -> Fault {
    let hint = format!("it has {bytes}; put the data where the agent can fetch it and send its address as `data_ref`");
    Fault::new("/payload", format!("at most {MAX_PAYLOAD} bytes"), hint)
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(d).map(|raw| Self(Arc::from(raw.get())))
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The name on the wire.
            pub fn as_str(self) -> &'static str { match self { $(Self::$variant => $text,)* } }
            /// Reads the name on the wire.
            pub fn parse(text: &str) -> Option<Self> { Self::ALL.iter().copied().find(|v| v.as_str() == text) }
        }
    };
}
pub(crate) use words;

words! {
    /// How urgent a message is.
    Priority {
        /// Before everything else, by weight.
        High = "0",
        /// The usual.
        Normal = "1",
        /// Takes what is left, at least its share.
        Low = "2",
    }
}

impl Priority {
    /// 0, 1 or 2.
    pub fn number(self) -> u8 {
        match self {
            Self::High => 0,
            Self::Normal => 1,
            Self::Low => 2,
        }
    }
}

words! {
    /// How the caller wants its answer.
    Mode {
        /// Waits for the result.
        Sync = "sync",
        /// Takes the id at once; the result comes by callback or by asking.
        Async = "async",
        /// Watches states and partial results as they come.
        Stream = "stream",
        /// Wants no result.
        OneWay = "one_way",
        /// One message to each agent that matches.
        Broadcast = "broadcast",
    }
}

words! {
    /// What may be delivered.
    Deliver {
        /// Only what the matcher is sure of; the rest comes back undelivered.
        Auto = "auto",
        /// The best candidate, even when it is only a suggestion.
        Best = "best",
    }
}

words! {
    /// Why there is a delivery.
    Source {
        /// The caller sent it.
        Client = "client",
        /// A further attempt.
        Retry = "retry",
        /// Taken out of the dead letters.
        Replay = "replay",
        /// The corrective attempt after a result that does not fit its schema.
        Fix = "fix",
        /// Takes over a dead letter of another agent.
        Escalation = "escalation",
    }
}

/// How the matcher is asked, beside the text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteOptions {
    /// Whether no fallback agent may take it.
    pub no_fallback: bool,
    /// Hops so far, 0..=[`MAX_DEPTH`].
    pub depth: u8,
    /// Region of the caller.
    pub region: Option<String>,
    /// Attributes the agent must have.
    pub attributes: BTreeMap<String, Attribute>,
    /// Agents that get a bonus.
    pub preferred: Vec<AgentKey>,
    /// Only the preferred may take it.
    pub only: bool,
    /// Agents that must not take it.
    pub exclude: Vec<AgentKey>,
    /// Highest cost.
    pub max_cost: Option<f64>,
    /// Ranking preset.
    pub preset: Option<String>,
    /// Capability used before this one.
    pub previous: Option<String>,
}

/// A checked message as it is stored and delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Version of this form.
    pub protocol_version: u32,
    /// Identity of this reach; ours.
    pub reach_id: ReachId,
    /// Identity of the message; the caller's, or the reach id in text.
    pub message_id: Arc<str>,
    /// The message that led to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<Arc<str>>,
    /// Trace, 32 hexadecimal digits.
    pub trace_id: Arc<str>,
    /// When it came, milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// Who sent it, already narrowed.
    pub principal: Principal,
    /// The agent that must take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<AgentKey>,
    /// Exact capability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Arc<str>>,
    /// What is wanted, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<Arc<str>>,
    /// The work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// Where the work can be fetched, when it is too large to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<Arc<str>>,
    /// Urgency.
    pub priority: Priority,
    /// How long it lives from its timestamp.
    #[serde(with = "span")]
    pub ttl: Duration,
    /// Processing time the caller allows for one attempt.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What is left of the budget of the whole chain.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub budget: Option<Duration>,
    /// The caller's own retry policy; the agent's, else the default, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How the answer goes back.
    pub mode: Mode,
    /// What may be delivered.
    pub deliver: Deliver,
    /// Where the result is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Arc<str>>,
    /// Same key and body again = the same message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Arc<str>>,
    /// The caller's own labels, indexed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub biz_tags: BTreeMap<String, String>,
    /// Scopes handed down the chain; never more than the principal's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope_chain: Vec<Arc<str>>,
    /// Why there is a delivery.
    pub source: Source,
    /// The dead letter that this one replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_from: Option<ReachId>,
    /// The dead letter that this one takes over. Whatever holds this is escalated no further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalation: Option<Box<Escalated>>,
    /// How the matcher is asked.
    #[serde(default)]
    pub options: RouteOptions,
}

impl Envelope {
    /// When it is over, milliseconds since the epoch: the ttl or the budget of the chain, whichever ends first.
    pub fn expires_ms(&self) -> i64 {
        let life = self.budget.map_or(self.ttl, |b| b.min(self.ttl));
        self.timestamp_ms.saturating_add(i64::try_from(life.as_millis()).unwrap_or(i64::MAX))
    }

    /// Tenant and caller in one text: whose message it is.
    pub fn owner(&self) -> Arc<str> {
        owner_of(&self.principal)
    }

    /// Whether the message id is the reach id: the caller chose none.
    pub fn has_own_id(&self) -> bool {
        self.message_id.len() == 32 && self.message_id.parse() == Ok(self.reach_id)
    }

    /// The key that an agent sees: unique to a message and to why it is delivered, so that a replay runs again but a retry does not.
    pub fn agent_key(&self) -> String {
        match self.source {
            Source::Client | Source::Retry | Source::Escalation => format!("{}:{}", self.principal.caller, self.message_id),
            Source::Replay | Source::Fix => {
                format!("{}:{}:{}:{}", self.principal.caller, self.message_id, self.source.as_str(), self.reach_id)
            }
        }
    }
}

/// Tenant and caller in one text.
pub fn owner_of(principal: &Principal) -> Arc<str> {
    match &principal.tenant {
        Some(tenant) => Arc::from(format!("{tenant}\u{1f}{}", principal.caller)),
        None => principal.caller.clone(),
    }
}

/// What a caller wants delivered. Unchecked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubmitRequest {
    /// The caller's id of the message.
    pub message_id: Option<String>,
    /// The message that led to this one.
    pub parent_id: Option<String>,
    /// Trace, 32 hexadecimal digits.
    pub trace_id: Option<String>,
    /// Caller's name; taken at its word only when no tokens are configured.
    pub caller: Option<String>,
    /// Tenant's name; the same rule.
    pub tenant: Option<String>,
    /// `namespace/agent_id`.
    pub target: Option<String>,
    /// Exact capability.
    pub intent: Option<String>,
    /// What is wanted, in words.
    pub query: Option<String>,
    /// The work, as JSON text.
    pub payload: Option<Box<RawPayload>>,
    /// Where the work can be fetched.
    pub data_ref: Option<String>,
    /// 0, 1 or 2.
    pub priority: Option<u32>,
    /// Life in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Processing time of one attempt in milliseconds.
    pub timeout_ms: Option<u64>,
    /// What is left of the chain's budget in milliseconds.
    pub budget_ms: Option<u64>,
    /// Attempts in all, 1..=5.
    pub max_attempts: Option<u32>,
    /// `sync`, `async`, `stream`, `one_way` or `broadcast`.
    pub mode: Option<String>,
    /// `auto` or `best`.
    pub deliver: Option<String>,
    /// Where the result is told.
    pub callback: Option<String>,
    /// Same key and body again = the same message.
    pub idempotency_key: Option<String>,
    /// The caller's own labels.
    pub biz_tags: BTreeMap<String, String>,
    /// Scopes to hand down.
    pub scopes: Option<Vec<String>>,
    /// Namespaces to narrow the credential to.
    pub namespaces: Vec<String>,
    /// Hops so far.
    pub depth: u32,
    /// Region of the caller.
    pub region: Option<String>,
    /// Attributes the agent must have.
    pub attributes: BTreeMap<String, Attribute>,
    /// Agents that get a bonus.
    pub preferred: Vec<String>,
    /// Only the preferred.
    pub only: bool,
    /// Agents that must not take it.
    pub exclude: Vec<String>,
    /// Highest cost.
    pub max_cost: Option<f64>,
    /// Ranking preset.
    pub preset: Option<String>,
    /// Whether a fallback agent may take it; default true.
    pub fallback: Option<bool>,
    /// Capability used before this one.
    pub previous: Option<String>,
}

/// JSON text that was not looked at yet.
#[derive(Clone, Debug, PartialEq)]
pub struct RawPayload(pub String);

impl Serialize for RawPayload {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(s)
    }
}

impl<'de> Deserialize<'de> for RawPayload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(d).map(|raw| Self(raw.get().to_string()))
    }
}

/// Reads `namespace/agent_id` or `domain:namespace/agent_id`.
pub fn parse_agent(text: &str) -> Result<AgentKey, String> {
    let (domain, rest) = text.split_once(':').unwrap_or(("local", text));
    let (namespace, agent_id) = rest.rsplit_once('/').ok_or("namespace/agent_id")?;
    if !is_agent_id(agent_id) || !is_agent_id(domain) {
        return Err("namespace/agent_id, ids of letters, digits, '_', '.' and '-'".into());
    }
    Ok(AgentKey { domain: Arc::from(domain), namespace: Namespace::new(namespace)?, agent_id: Arc::from(agent_id) })
}

/// Whether `text` may be an id, a key or a tag: printable, bounded, not empty.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= MAX_KEY && !text.chars().any(char::is_control)
}

impl SubmitRequest {
    /// Checks everything, reports every fault at once. `principal` comes from the credential and is only narrowed; `reach_id` is fresh chance.
    pub fn check(self, principal: Principal, now_ms: i64, reach_id: ReachId) -> Result<Envelope, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut bad = |pointer: &str, expected: String, hint: &str| faults.push(Fault::new(pointer, expected, hint));

        let key = format!("1 to {MAX_KEY} printable characters");
        for (pointer, text) in [
            ("/message_id", &self.message_id),
            ("/parent_id", &self.parent_id),
            ("/idempotency_key", &self.idempotency_key),
            ("/intent", &self.intent),
            ("/region", &self.region),
            ("/preset", &self.preset),
            ("/previous", &self.previous),
        ] {
            if text.as_deref().is_some_and(|t| !is_key(t)) {
                bad(pointer, key.clone(), "shorten it and leave out control characters");
            }
        }
        if self.message_id.as_deref().is_some_and(|id| id == "." || id == "..") {
            bad("/message_id", "an id that can stand in a path".into(), "\".\" and \"..\" can't be fetched: choose another");
        }
        let trace_ok = |t: &str| t.len() == 32 && t.bytes().all(|b| b.is_ascii_hexdigit()) && t.bytes().any(|b| b != b'0');
        if self.trace_id.as_deref().is_some_and(|t| !trace_ok(t)) {
            bad("/trace_id", "32 hexadecimal digits, not all zero".into(), "leave it out to have one drawn");
        }
        let query = self.query.as_deref().map(str::trim).filter(|q| !q.is_empty());
        if query.is_some_and(|q| q.len() > MAX_QUERY) {
            bad("/query", format!("at most {MAX_QUERY} bytes"), "say what is wanted in a sentence and put the rest in the payload");
        }
        if self.target.is_none() && self.intent.is_none() && query.is_none() {
            bad("", "a target, an intent or a query text".into(), "say who, what, or in words what is wanted");
        }
        let mut agent = |pointer: &str, text: &str| match parse_agent(text) {
            Ok(key) => Some(key),
            Err(expected) => {
                bad(pointer, expected, "name the agent as it is registered");
                None
            }
        };
        let target = self.target.as_deref().and_then(|t| agent("/target", t));
        let mut agents =
            |pointer: &str, list: &[String]| -> Vec<AgentKey> { list.iter().take(64).filter_map(|t| agent(pointer, t)).collect() };
        let (preferred, exclude) = (agents("/preferred", &self.preferred), agents("/exclude", &self.exclude));

        let payload = match self.payload.as_deref().map(|p| Payload::new(&p.0)).transpose() {
            Ok(payload) => payload,
            Err(fault) => {
                faults.push(fault);
                None
            }
        };
        let mut bad = |pointer: &str, expected: String, hint: &str| faults.push(Fault::new(pointer, expected, hint));
        if self.data_ref.as_deref().is_some_and(|r| r.len() > 2048 || r.is_empty() || r.chars().any(char::is_control)) {
            bad("/data_ref", "an address of 1 to 2,048 bytes".into(), "shorten it");
        }
        let priority = match self.priority {
            None | Some(1) => Priority::Normal,
            Some(0) => Priority::High,
            Some(2) => Priority::Low,
            Some(_) => {
                bad("/priority", "0, 1 or 2".into(), "0 goes first");
                Priority::Normal
            }
        };
        let mut span = |pointer: &str, ms: Option<u64>| {
            if ms.is_some_and(|ms| ms == 0 || u128::from(ms) > MAX_TTL.as_millis()) {
                bad(pointer, format!("1 to {} milliseconds", MAX_TTL.as_millis()), "a message lives for a day at most");
                return None;
            }
            ms.map(Duration::from_millis)
        };
        let (ttl, timeout, budget) =
            (span("/ttl_ms", self.ttl_ms), span("/timeout_ms", self.timeout_ms), span("/budget_ms", self.budget_ms));
        if self.max_attempts.is_some_and(|n| !(1..=5).contains(&n)) {
            bad("/max_attempts", "1 to 5".into(), "five attempts is the most");
        }
        let mode = self.mode.as_deref().map_or(Some(Mode::Sync), Mode::parse);
        if mode.is_none() {
            bad("/mode", "sync, async, stream, one_way or broadcast".into(), "leave it out for sync");
        }
        let deliver = self.deliver.as_deref().map_or(Some(Deliver::Auto), Deliver::parse);
        if deliver.is_none() {
            bad("/deliver", "auto or best".into(), "leave it out for auto");
        }
        if self.biz_tags.len() > MAX_TAGS || self.biz_tags.iter().any(|(k, v)| !is_key(k) || !is_key(v)) {
            bad("/biz_tags", format!("at most {MAX_TAGS} tags, each name and value {key}"), "keep tags for what you will look for");
        }
        if self.depth > u32::from(MAX_DEPTH) {
            bad("/depth", format!("at most {MAX_DEPTH} hops"), "the chain of agents is too long or goes in a circle");
        }
        if self.max_cost.is_some_and(|c| !c.is_finite() || c < 0.0) {
            bad("/max_cost", "a number ≥ 0".into(), "leave it out for no limit");
        }
        if self.attributes.len() > 32 {
            bad("/attributes", "at most 32".into(), "select by fewer attributes");
        }
        let (Some(mode), Some(deliver), true) = (mode, deliver, faults.is_empty()) else { return Err(faults) };

        let mut principal = principal;
        if !self.namespaces.is_empty() {
            principal.namespaces = principal.namespaces.narrowed(&self.namespaces);
        }
        if let Some(scopes) = &self.scopes {
            principal.scopes = principal.scopes.narrowed(scopes);
        }
        let scope_chain = match &principal.scopes {
            Grant::All => Vec::new(),
            Grant::Only(set) => set.iter().cloned().collect(),
        };
        let retry = self.max_attempts.map(|max_attempts| Retry { max_attempts, ..crate::types::message::default_retry() });
        Ok(Envelope {
            protocol_version: PROTOCOL_VERSION,
            reach_id,
            message_id: self.message_id.map_or_else(|| Arc::from(reach_id.to_string()), Arc::from),
            parent_id: self.parent_id.map(Arc::from),
            trace_id: self.trace_id.map_or_else(|| Arc::from(reach_id.to_string()), |t| Arc::from(t.to_ascii_lowercase())),
            timestamp_ms: now_ms,
            principal,
            target,
            intent: self.intent.map(Arc::from),
            query: query.map(Arc::from),
            payload,
            data_ref: self.data_ref.map(Arc::from),
            priority,
            ttl: ttl.unwrap_or(DEFAULT_TTL),
            timeout,
            budget,
            retry,
            mode,
            deliver,
            callback: self.callback.map(Arc::from),
            idempotency_key: self.idempotency_key.map(Arc::from),
            biz_tags: self.biz_tags,
            scope_chain,
            source: Source::Client,
            replayed_from: None,
            escalation: None,
            options: RouteOptions {
                no_fallback: self.fallback == Some(false),
                depth: self.depth as u8,
                region: self.region,
                attributes: self.attributes,
                preferred,
                only: self.only,
                exclude,
                max_cost: self.max_cost,
                preset: self.preset,
                previous: self.previous,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask() -> SubmitRequest {
        SubmitRequest {
            intent: Some("refund_create".into()),
            payload: Some(Box::new(RawPayload("{\"order\": 7}".into()))),
            ..Default::default()
        }
    }

    fn check(r: SubmitRequest) -> Result<Envelope, Vec<Fault>> {
        r.check(Principal::local("t"), 1_000, ReachId(7))
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let e = check(ask()).unwrap();
        assert_eq!((e.ttl, e.priority, e.mode, e.deliver), (Duration::from_secs(30), Priority::Normal, Mode::Sync, Deliver::Auto));
        assert_eq!(e.expires_ms(), 31_000);
        assert_eq!(&*e.message_id, "00000000000000000000000000000007");
        let short = check(SubmitRequest { budget_ms: Some(500), ..ask() }).unwrap();
        assert_eq!(short.expires_ms(), 1_500, "the chain's budget ends a message before its ttl");
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let r = SubmitRequest {
            priority: Some(9),
            ttl_ms: Some(0),
            mode: Some("later".into()),
            depth: 99,
            target: Some("no slash".into()),
            trace_id: Some("0".repeat(32)),
            max_attempts: Some(6),
            idempotency_key: Some("a\nb".into()),
            ..Default::default()
        };
        let faults = check(r).unwrap_err();
        let at: Vec<_> = faults.iter().map(|f| f.pointer.as_str()).collect();
        for pointer in ["/priority", "/ttl_ms", "/mode", "/depth", "/target", "/trace_id", "/max_attempts", "/idempotency_key"] {
            assert!(at.contains(&pointer), "{pointer} is missing in {at:?}");
        }
        assert!(check(SubmitRequest { query: Some("  ".into()), ..Default::default() }).is_err(), "blanks are nothing to route by");
    }

    #[test]
    fn a_large_payload_is_shown_the_way_out() {
        let big = format!("\"{}\"", "x".repeat(MAX_PAYLOAD));
        let faults = check(SubmitRequest { payload: Some(Box::new(RawPayload(big))), ..ask() }).unwrap_err();
        assert!(faults[0].hint.contains("data_ref"), "{faults:?}");
    }

    #[test]
    fn a_request_narrows_its_credential() {
        let p = Principal { scopes: Grant::Only([Arc::from("a"), Arc::from("b")].into()), ..Principal::local("t") };
        let e = SubmitRequest { scopes: Some(vec!["b".into(), "root".into()]), ..ask() }.check(p, 0, ReachId(1)).unwrap();
        assert_eq!(e.scope_chain, vec![Arc::<str>::from("b")]);
    }

    #[test]
    fn a_replay_has_a_key_of_its_own_for_the_agent() {
        let e = check(ask()).unwrap();
        let retry = Envelope { source: Source::Retry, ..e.clone() };
        let replay = Envelope { source: Source::Replay, reach_id: ReachId(8), ..e.clone() };
        assert_eq!(e.agent_key(), retry.agent_key());
        assert_ne!(e.agent_key(), replay.agent_key());
    }

    proptest! {
        #[test]
        fn what_is_stored_is_what_was_sent(query in "\\PC{1,40}", tag in "[a-z]{1,8}", ttl in 1u64..86_400_000, n in any::<i32>()) {
            let r = SubmitRequest {
                query: Some(query.clone()), ttl_ms: Some(ttl), biz_tags: [(tag.clone(), tag)].into(),
                payload: Some(Box::new(RawPayload(format!("{{ \"n\" :  {n} }}")))), ..Default::default()
            };
            if let Ok(e) = check(r) {
                let text = serde_json::to_string(&e).unwrap();
                let back: Envelope = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(back, e);
            }
        }
    }
}
