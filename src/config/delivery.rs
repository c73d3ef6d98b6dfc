//! Settings of delivery: how long messages stay, how callbacks are signed, when an agent is left alone, what may be called.

use crate::config::reader::Reader;
use crate::types::Namespace;
use crate::types::address::{Use, canonical};
use crate::types::escalation::{Rule, To};
use crate::types::id::parse_agent;
use crate::types::message::DeadTag;
use std::sync::Arc;
use std::time::Duration;

/// `[dispatch]`
#[derive(Clone, PartialEq)]
pub struct Dispatch {
    /// How long ended messages stay.
    pub retention: Duration,
    /// How long dead letters stay.
    pub retention_dead: Duration,
    /// Most ended messages that are kept.
    pub retention_count: usize,
    /// Secrets that callbacks are signed with.
    pub callback_secrets: Vec<String>,
    /// Tries of one callback.
    pub callback_tries: u32,
    /// Deliveries of one message after which it is a dead letter.
    pub deliveries_max: u32,
    /// Share of good calls below which a breaker trips. Range 0..=1.
    pub breaker_success: f64,
    /// Calls that it takes to judge.
    pub breaker_samples: u32,
    /// Span of calls that is judged.
    pub breaker_window: Duration,
    /// How long a tripped breaker lets nothing through.
    pub breaker_pause: Duration,
    /// Good probes in a row that it takes to pass again.
    pub breaker_probes: u32,
    /// Callers that wait for a result at once.
    pub waiting: usize,
    /// URL that is told when an alarm goes on or off, signed.
    pub alarm_webhook: Option<String>,
    /// Who is told of dead letters.
    pub escalation: Vec<Rule>,
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // secrets stay out of logs
        f.debug_struct("Dispatch").field("secrets", &self.callback_secrets.len()).finish_non_exhaustive()
    }
}

impl Dispatch {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let callback_secrets = r.list("callback_secrets", &[]);
        for (i, secret) in callback_secrets.iter().enumerate() {
            let long_enough = match secret.strip_prefix("whsec_") {
                Some(b64) => {
                    use base64::Engine;
                    base64::engine::general_purpose::STANDARD.decode(b64).is_ok_and(|bytes| bytes.len() >= 16)
                }
                None => secret.len() >= 16,
            };
            if !long_enough {
                let hint = "make one with `openssl rand -base64 24` and write whsec_ before it";
                r.fault(
                    &format!("callback_secrets[{i}]"),
                    "\"whsec_\" and base64 of at least 16 bytes, or a text of at least 16 bytes",
                    hint,
                );
            }
        }
        let alarm_webhook = r.optional("alarm_webhook");
        if let Some(Err(why)) = alarm_webhook.as_deref().map(|url| canonical(url, Use::Web)) {
            r.fault("alarm_webhook", Use::Web.expected(), why.hint());
        }
        if alarm_webhook.is_some() && callback_secrets.is_empty() {
            r.fault("callback_secrets", "a secret that the webhook is signed with", "add one, or leave alarm_webhook empty");
        }
        let escalation: Vec<Rule> = r.tables("escalation", rule).into_iter().flatten().collect();
        if callback_secrets.is_empty() && escalation.iter().any(|rule| matches!(rule.to, To::Callback(_))) {
            r.fault("callback_secrets", "a secret that the callback of an escalation is signed with", "add one, or name an agent instead");
        }
        Self {
            retention: r.span("retention", "24h", "1h", "365d"),
            retention_dead: r.span("retention_dead", "7d", "1h", "3650d"),
            retention_count: r.int("retention_count", 5_000_000, 1_000..=1_000_000_000),
            callback_secrets,
            callback_tries: small(r.int("callback_tries", 5, 1..=20)),
            deliveries_max: small(r.int("deliveries_max", 20, 5..=1_000)),
            breaker_success: r.number("breaker_success", 0.3, 0.0..=1.0),
            breaker_samples: small(r.int("breaker_samples", 5, 1..=10_000)),
            breaker_window: r.span("breaker_window", "10s", "1s", "10m"),
            breaker_pause: r.span("breaker_pause", "15s", "100ms", "1h"),
            breaker_probes: small(r.int("breaker_probes", 3, 1..=100)),
            waiting: r.int("waiting", 4096, 1..=1_000_000),
            alarm_webhook,
            escalation,
        }
    }
}

/// `[[dispatch.escalation]]`
fn rule(r: &mut Reader<'_>) -> Option<Rule> {
    let namespace = r.text("namespace", "*");
    let namespace = match namespace.as_str() {
        "*" => Some(None),
        text => Namespace::new(text)
            .map_err(|expected| {
                r.fault("namespace", format!("\"*\", or {expected}"), "the namespace of the agents whose dead letters are meant")
            })
            .ok()
            .map(Some),
    };
    let mut tags = Vec::new();
    for text in r.list("tags", &[]) {
        match DeadTag::parse(&text) {
            Some(tag) => tags.push(tag),
            None => {
                let known = DeadTag::ALL.iter().map(|t| t.as_str()).collect::<Vec<_>>().join(", ");
                r.fault("tags", format!("reasons among {known}"), format!("{text:?} is none; leave the list empty for all of them"));
            }
        }
    }
    let (to, capability) = (r.text("to", ""), r.optional("capability"));
    let ttl = r.span("ttl", "1h", "1s", "24h");
    let to = if to.contains("://") {
        if capability.is_some() {
            r.fault("capability", "nothing beside a URL", "it belongs to an agent: remove it, or name the agent");
        }
        canonical(&to, Use::Web).map_err(|why| r.fault("to", Use::Web.expected(), why.hint())).ok().map(|url| To::Callback(Arc::from(url)))
    } else {
        let hint = "who takes a dead letter over, or a URL that is told of it";
        let agent = parse_agent(&to).map_err(|expected| r.fault("to", format!("{expected}, or a URL"), hint)).ok();
        if capability.is_none() {
            r.fault("capability", "the name of a capability of that agent", "what it is asked to do with a dead letter");
        }
        agent.zip(capability).map(|(agent, capability)| To::Agent { agent, capability: Arc::from(capability), ttl })
    };
    Some(Rule { namespace: namespace?, tags, to: to? })
}

/// `[outbound]`
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    /// Whether this machine may be called.
    pub loopback: bool,
    /// Whether private networks may be called.
    pub private: bool,
    /// Further ranges that may be called.
    pub allow: Vec<String>,
    /// Whether plain http is called at all.
    pub plain_http: bool,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// Secrets that calls to existing services carry.
    pub secrets: Vec<OutboundSecret>,
}

/// `[[outbound.secrets]]`: a secret by reference.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundSecret {
    /// Name by which manifests ask for it.
    pub name: String,
    /// Variable of the environment that holds it.
    pub variable: String,
    /// Beginnings of addresses that it may be sent to.
    pub below: Vec<String>,
}

impl OutboundSecret {
    fn read(r: &mut Reader<'_>) -> Self {
        let secret = Self { name: r.text("name", ""), variable: r.text("variable", ""), below: r.list("below", &[]) };
        if secret.name.is_empty() {
            r.fault("name", "a name", "manifests ask for the secret by it");
        }
        if secret.variable.is_empty() {
            r.fault("variable", "the name of a variable of the environment", "the secret itself stands in no file");
        }
        if secret.below.is_empty() || secret.below.iter().any(|b| !b.starts_with("https://") && !b.starts_with("http://")) {
            r.fault("below", "beginnings of http or https addresses", "the secret is sent nowhere else");
        }
        secret
    }
}

impl Outbound {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let allow = r.list("allow", &[]);
        for range in &allow {
            if let Err(expected) = range.parse::<crate::types::outbound::Cidr>() {
                r.fault("allow", expected, format!("{range:?} is none"));
            }
        }
        Self {
            loopback: r.flag("loopback", true),
            private: r.flag("private", true),
            allow,
            plain_http: r.flag("plain_http", true),
            connect_timeout: r.span("connect_timeout", "2s", "10ms", "1m"),
            secrets: r.tables("secrets", OutboundSecret::read),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn escalations_are_checked_and_read() {
        let good = "[[dispatch.escalation]]\nnamespace = \"orders\"\nto = \"ops/desk\"\ncapability = \"take_over\"\ntags = [\"poison\"]\nttl = \"2h\"";
        let rules = Config::parse(good, &[]).unwrap().dispatch.escalation;
        assert_eq!((rules.len(), rules[0].to.shown().as_str()), (1, "ops/desk take_over"));
        assert_eq!(rules[0].tags, [crate::types::message::DeadTag::Poison]);
        for (text, at) in [
            ("", "dispatch.escalation[0].to"),
            ("to = \"ops/desk\"", "dispatch.escalation[0].capability"),
            ("to = \"desk\"\ncapability = \"a\"", "dispatch.escalation[0].to"),
            ("to = \"https://a/\"\ncapability = \"a\"", "dispatch.escalation[0].capability"),
            ("to = \"https://a/\"", "dispatch.callback_secrets"),
            ("to = \"ftp://a/\"", "dispatch.escalation[0].to"),
            ("to = \"ops/desk\"\ncapability = \"a\"\ntags = [\"tired\"]", "dispatch.escalation[0].tags"),
            ("to = \"ops/desk\"\ncapability = \"a\"\nnamespace = \"Orders\"", "dispatch.escalation[0].namespace"),
            ("to = \"ops/desk\"\ncapability = \"a\"\nurl = \"x\"", "dispatch.escalation[0].url"),
        ] {
            let faults = Config::parse(&format!("[[dispatch.escalation]]\n{text}"), &[]).unwrap_err().faults;
            assert!(faults.iter().any(|f| f.pointer == at), "{text}: {faults:?}");
        }
    }

    #[test]
    fn secrets_and_ranges_are_checked() {
        let e = Config::parse("[dispatch]\ncallback_secrets = [\"short\"]\nretention = \"1m\"\n[outbound]\nallow = [\"10/8\"]", &[])
            .unwrap_err();
        let at: Vec<&str> = e.faults.iter().map(|f| f.pointer.as_str()).collect();
        assert_eq!(at, ["dispatch.callback_secrets[0]", "dispatch.retention", "outbound.allow"]);
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let config = Config::parse(&format!("[dispatch]\ncallback_secrets = [{secret:?}]"), &[]).unwrap();
        assert!(!format!("{config:?}").contains("MfKQ"), "secrets stay out of logs");
    }
}
