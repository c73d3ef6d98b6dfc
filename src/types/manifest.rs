//! The capability manifest: what an agent is, how it is reached and what it can do.
//!
//! These are the checked values. Reading a document, with all its faults at once, is `types::manifest_check`.
//! Serialised form = the published schema (`docs/manifest.md`); durations are strings such as `30s`.

use crate::types::id::{AgentKey, Namespace};
use crate::types::span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A checked manifest of one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Administrative domain, default `local`.
    pub domain: Arc<str>,
    /// Owning namespace.
    pub namespace: Namespace,
    /// Id inside the namespace.
    pub agent_id: Arc<str>,
    /// Free-form version of the agent, at most 64 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_version: String,
    /// Team or person that owns the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// How to reach the owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub contact: String,
    /// What the agent is as a whole.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    pub description: Texts,
    /// Where and how it is called; at least one.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// Where its health can be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<Box<HealthCheck>>,
    /// Lease: without a heartbeat inside it the agent is gone. `None` = static, never expires.
    #[serde(with = "ttl")]
    pub ttl: Option<Duration>,
    /// Messages that may wait for this agent; default 1,000.
    pub max_queue_depth: u32,
    /// Calls it takes at once; default 5.
    pub concurrency: u32,
    /// Timeouts it suggests.
    #[serde(default, skip_serializing_if = "Timeouts::is_empty")]
    pub timeouts: Timeouts,
    /// Its own retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Box<Retry>>,
    /// Where it wants to be told of results and alarms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notification_endpoint: Option<String>,
    /// Free attributes that queries can select by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Attribute>,
    /// Namespaces it is granted to beside its own; `*` = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visible_to: Vec<Arc<str>>,
    /// Tags of the agent, folded (`code_review` = `code-review`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What it can do; at least one.
    pub capabilities: Vec<Capability>,
}

impl Manifest {
    /// The identity of the agent.
    pub fn key(&self) -> AgentKey {
        AgentKey { domain: self.domain.clone(), namespace: self.namespace.clone(), agent_id: self.agent_id.clone() }
    }
}

/// One text in several languages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    /// Chinese.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zh: Option<String>,
    /// English.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub en: Option<String>,
}

impl Texts {
    /// Whether no language is given.
    pub fn is_empty(&self) -> bool {
        self.zh.is_none() && self.en.is_none()
    }
}

/// How a client speaks to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// `POST` of the envelope.
    Http,
    /// gRPC push.
    Grpc,
    /// The agent pulls over a gRPC stream; no address.
    Pull,
    /// An MCP server.
    Mcp,
}

/// One way to reach an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Protocol.
    pub protocol: Protocol,
    /// Canonical URL; empty for `pull`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Share among the endpoints, 1..=10,000; default 100.
    pub weight: u32,
}

/// Where the health of an agent is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// URL that answers 2xx when the agent works.
    pub address: String,
    /// Pause between probes; `None` = the operator's `live.probe_interval`.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
}

/// Timeouts an agent suggests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    /// To connect.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub connect: Option<Duration>,
    /// From accepted to done.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub processing: Option<Duration>,
}

impl Timeouts {
    /// Whether nothing is suggested.
    pub fn is_empty(&self) -> bool {
        self.connect.is_none() && self.processing.is_none()
    }
}

/// An agent's own retry policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts in all, 1..=10.
    pub max_attempts: u32,
    /// First delay.
    #[serde(with = "span")]
    pub base: Duration,
    /// Largest delay.
    #[serde(with = "span")]
    pub max: Duration,
    /// Random share added, 0..=1.
    pub jitter: f64,
}

/// A free attribute: what a query's selector is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attribute {
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// Several texts; a selector matches any of them.
    List(Vec<String>),
}

impl Attribute {
    /// Whether a selector's value `wanted` is satisfied by this attribute: equal, or contained when this is a list.
    /// Every text of a wanted list must be contained.
    pub fn satisfies(&self, wanted: &Attribute) -> bool {
        match (self, wanted) {
            (Self::List(have), Self::List(want)) => want.iter().all(|w| have.contains(w)),
            (Self::List(have), Self::Text(want)) => have.contains(want),
            (Self::Text(have), Self::List(want)) => want.iter().all(|w| w == have),
            (have, want) => have == want,
        }
    }
}

/// One thing an agent can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capability {
    /// Name as written; matching folds case and separators.
    pub intent: Arc<str>,
    /// Other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// What it does, per language.
    #[serde(default)]
    pub description: Texts,
    /// Requests it serves, in the caller's words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// Tags, folded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// JSON Schema of the payload, or a text `schema://…` that names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Arc<serde_json::Value>>,
    /// JSON Schema of the result, or a text `schema://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Arc<serde_json::Value>>,
    /// Rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Price of one call in a free unit, ≥ 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Typical duration, until it has been measured.
    #[serde(default, with = "span::option", skip_serializing_if = "Option::is_none")]
    pub latency_hint: Option<Duration>,
    /// When it is open; always when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<Box<Hours>>,
    /// Regions it serves, as globs (`cn-*`); everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Scopes a caller needs, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Whether doing it twice is the same as once.
    #[serde(default)]
    pub idempotent: bool,
    /// How to read the states of a task-id polling service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_machine: Option<Box<StateMachine>>,
    /// The capability that undoes this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<String>,
    /// How an existing REST service is called for it, instead of with the whole delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Arc<Rest>>,
    /// Name of the tool at an `mcp` endpoint, at most 128 characters; the intent when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Arc<str>>,
}

/// How a call to an existing REST service is made of a payload, and a result of its answer. Places in a JSON document are JSON pointers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Path behind the endpoint's address; `{name}` is the payload's field of that name.
    pub path: String,
    /// Fields of the body; the payload itself when empty. A `GET` has no body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<RestField>,
    /// Query parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<RestField>,
    /// Header with a secret of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<RestAuth>,
    /// How success and result are read; by the usual signs when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RestAnswer>,
    /// The answer is a task that is asked about until it is over (see `state_machine`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<RestPoll>,
}

/// One field of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestField {
    /// Its name.
    pub to: String,
    /// Where it stands in the payload.
    pub from: String,
}

/// A header with a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestAuth {
    /// Name of the header.
    pub header: String,
    /// Name of the secret in the configuration of the node (`outbound.secrets`).
    pub secret: String,
}

/// How an answer is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestAnswer {
    /// The field that tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Its values that mean success, as text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub good: Vec<String>,
    /// Its values that mean "try again".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retryable: Vec<String>,
    /// The words of an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result; the whole answer when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// How a task is asked about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestPoll {
    /// Path behind the endpoint's address; `{name}` is the first answer's field of that name.
    pub path: String,
    /// Where its state stands in the answer.
    pub state: String,
    /// Pause between two looks.
    #[serde(with = "span")]
    pub every: Duration,
}

/// A token bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Calls a second, > 0.
    pub per_second: f64,
    /// Calls at once; default = `per_second` rounded up.
    pub burst: u32,
}

/// Which words of a polled state mean what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StateMachine {
    /// Still at work: ask again.
    #[serde(default)]
    pub processing: Vec<String>,
    /// Failed, may be tried again.
    #[serde(default)]
    pub retryable: Vec<String>,
    /// Failed for good.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// When a capability is open: any of several windows, in one time zone. Evaluated in `types::hours`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hours {
    /// IANA time zone name.
    pub time_zone: String,
    /// Open when any window is.
    pub windows: Vec<Window>,
}

/// One daily window. `to` is inclusive to the minute; `to < from` runs past midnight and belongs to the day it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Days it begins on, 0 = Monday … 6 = Sunday.
    #[serde(with = "days")]
    pub days: Vec<u8>,
    /// First minute of the day, 0..1440.
    #[serde(with = "minute")]
    pub from: u16,
    /// Last minute of the day, 0..1440, inclusive.
    #[serde(with = "minute")]
    pub to: u16,
}

/// Names of days in manifests, Monday first.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Serde of the lease: a duration, or `none` for a static agent.
mod ttl {
    use super::*;

    pub fn serialize<S: serde::Serializer>(ttl: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&ttl.map_or("none".into(), span::format))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        match String::deserialize(d)?.as_str() {
            "none" => Ok(None),
            text => span::parse(text).map(Some).map_err(serde::de::Error::custom),
        }
    }
}

/// Serde of days as `mon` … `sun`.
mod days {
    use super::*;

    pub fn serialize<S: serde::Serializer>(days: &[u8], s: S) -> Result<S::Ok, S::Error> {
        days.iter().map(|d| DAYS[usize::from(*d) % 7]).collect::<Vec<_>>().serialize(s)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        Vec::<String>::deserialize(d)?
            .iter()
            .map(|t| DAYS.iter().position(|d| d == t).map(|i| i as u8).ok_or_else(|| serde::de::Error::custom("a day mon … sun")))
            .collect()
    }
}

/// Serde of a minute of the day as `HH:MM`.
mod minute {
    use super::*;

    pub fn serialize<S: serde::Serializer>(minute: &u16, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{:02}:{:02}", minute / 60, minute % 60))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
        super::parse_minute(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// Reads `HH:MM`, 00:00 to 24:00 (24:00 means the last minute, 23:59).
pub fn parse_minute(text: &str) -> Result<u16, String> {
    let expected = "a time of day \"HH:MM\" between 00:00 and 24:00";
    let (h, m) = text.split_once(':').ok_or(expected)?;
    let ok = |t: &str| (1..=2).contains(&t.len()) && t.chars().all(|c| c.is_ascii_digit());
    if !ok(h) || m.len() != 2 || !ok(m) {
        return Err(expected.into());
    }
    let (h, m): (u16, u16) = (h.parse().map_err(|_| expected)?, m.parse().map_err(|_| expected)?);
    match (h, m) {
        (24, 0) => Ok(1439),
        (0..=23, 0..=59) => Ok(h * 60 + m),
        _ => Err(expected.into()),
    }
}
