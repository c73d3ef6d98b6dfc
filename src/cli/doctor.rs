//! `reach doctor`: twelve checks of a running node and its fleet, each with what to do.
//!
//! In: what the doors tell (nothing is changed, nothing is sent to agents). Out: a line a check; exit 0 when nothing is wrong, 1 otherwise.
//! `warn` is advice, `fail` wants mending.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::telemetry::log::escaped;
use crate::types::span;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Agents looked at.
const AGENTS: usize = 1_000;
/// Capabilities whose examples are asked.
const ASKED: usize = 30;
/// Messages looked at.
const MESSAGES: u32 = 200;

/// Checks a node and its fleet, and says what to do.
#[derive(Args, Debug)]
pub struct Doctor {}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// In order.
    Ok,
    /// Could be better.
    Warn,
    /// Wants mending.
    Fail,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do.
    pub mend: String,
}

fn check(name: &'static str, bad: Verdict, wrong: &[String], good: impl Into<String>, mend: &str) -> Check {
    if wrong.is_empty() {
        return Check { name, verdict: Verdict::Ok, found: good.into(), mend: String::new() };
    }
    let more = if wrong.len() > 3 { format!(" and {} more", wrong.len() - 3) } else { String::new() };
    let found = format!("{}{more}", wrong.iter().take(3).map(|w| escaped(w)).collect::<Vec<_>>().join("; "));
    Check { name, verdict: bad, found, mend: mend.into() }
}

/// What the node told.
#[derive(Default)]
pub struct Seen {
    agents: Vec<pb::AgentState>,
    stats: pb::StatsResponse,
    messages: Vec<pb::Message>,
    /// Metrics by name with labels.
    metrics: BTreeMap<String, f64>,
    /// Capability asked by its own example → what was found first.
    routed: Vec<(String, Option<String>)>,
    durability: String,
    ready: Option<String>,
}

fn name_of(state: &pb::AgentState) -> String {
    print::who(state.agent.as_ref(), "")
}

impl Seen {
    async fn gather(backend: &Backend) -> Result<Self, Failure> {
        let mut seen = Self { stats: backend.stats().await?, ..Self::default() };
        let mut after = None;
        while seen.agents.len() < AGENTS {
            let page = backend.list(pb::ListRequest { limit: Some(200), after, ..Default::default() }).await?;
            seen.agents.extend(page.agents);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let recent = pb::ListMessagesRequest { limit: Some(MESSAGES), ..Default::default() };
        seen.messages = backend.messages(recent, false).await?.messages;
        seen.metrics = backend.text("/metrics").await?.map(|t| metrics(&t)).unwrap_or_default();
        seen.ready = backend.text("/ready").await?.is_none().then(|| "GET /ready is refused".to_string());
        let health: serde_json::Value = backend.text("/health").await?.and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
        seen.durability = health["durability"].as_str().unwrap_or("unknown").to_string();
        let capabilities = seen.agents.iter().filter_map(|a| a.manifest.as_ref()).flat_map(|m| &m.capabilities);
        let mut names = BTreeSet::new();
        let asked: Vec<(String, String)> = capabilities
            .filter_map(|c| Some((c.intent.clone(), c.examples.first()?.clone())))
            .filter(|(intent, _)| names.insert(intent.clone()))
            .take(ASKED)
            .collect();
        for (intent, example) in asked {
            let answer = backend.resolve(pb::ResolveRequest { query: example, fallback: Some(false), ..Default::default() }).await?;
            let first = answer.candidates.first().map(|c| c.capability.clone()).filter(|_| answer.decision != "none");
            seen.routed.push((intent, first));
        }
        Ok(seen)
    }

    fn each<'a>(&'a self, wrong: impl Fn(&'a pb::AgentState, &'a pb::Manifest) -> Option<String>) -> Vec<String> {
        self.agents
            .iter()
            .filter_map(|a| Some((a, a.manifest.as_ref()?)))
            .filter_map(|(a, m)| wrong(a, m).map(|w| format!("{}: {w}", name_of(a))))
            .collect()
    }

    /// The twelve checks.
    pub fn checks(&self) -> Vec<Check> {
        use Verdict::{Fail, Warn};
        let n = self.agents.len();
        let lacking = self.each(|_, m| {
            let none = |text: &Option<String>| text.as_deref().unwrap_or("").is_empty();
            let unspoken = m.capabilities.iter().any(|c| c.description.is_none());
            let missing = [(none(&m.owner), "owner"), (none(&m.contact), "contact"), (unspoken, "a description of each capability")];
            let missing: Vec<&str> = missing.iter().filter(|(m, _)| *m).map(|(_, what)| *what).collect();
            (!missing.is_empty()).then(|| format!("no {}", missing.join(", no ")))
        });
        let unwell: Vec<String> = self
            .agents
            .iter()
            .filter(|a| matches!(a.status.as_str(), "expired" | "unreachable" | "blocked_url"))
            .map(|a| format!("{} is {}", name_of(a), a.status))
            .chain(self.ready.clone())
            .collect();
        let unwatched =
            self.each(|a, m| (a.status == "static" && m.health_check.is_none()).then(|| "neither a lease nor a health check".into()));
        let astray: Vec<String> = self
            .routed
            .iter()
            .filter(|(intent, first)| first.as_ref() != Some(intent))
            .map(|(intent, first)| format!("an example of {intent} leads to {}", first.as_deref().unwrap_or("nobody")))
            .collect();
        let untimed = self.each(|_, m| {
            let all = m.timeouts.as_ref().is_some_and(|t| t.processing.is_some());
            let open = m.capabilities.iter().filter(|c| c.latency_hint.is_none()).count();
            (!all && open > 0).then(|| format!("{open} capabilities without latency_hint, and no timeouts.processing"))
        });
        let steady = self.each(|_, m| {
            let r = m.retry.as_ref()?;
            let jitter = r.jitter.is_some_and(|j| j <= 0.0);
            (jitter || r.max_attempts.is_some_and(|n| n > 5))
                .then(|| if jitter { "retries without jitter".into() } else { "more than 5 attempts".into() })
        });
        let keyed = self.messages.iter().filter(|m| m.idempotency_key.is_some() || m.message_id != m.reach_id).count();
        let unkeyed: Vec<String> = if self.durability != "journal_mode=wal synchronous=2" {
            vec![format!("the store runs with {}", self.durability)]
        } else if keyed == 0 && !self.messages.is_empty() {
            vec![format!("none of the last {} messages has a key or an id of its own", self.messages.len())]
        } else {
            Vec::new()
        };
        let too_large: f64 = self
            .metrics
            .iter()
            .filter(|(k, _)| k.starts_with("reach_requests_total") && k.contains("payload_too_large"))
            .map(|(_, v)| v)
            .sum();
        let large = if too_large > 0.0 { vec![format!("{too_large} messages were refused as too large")] } else { Vec::new() };
        let urgencies: BTreeSet<u32> = self.messages.iter().map(|m| m.priority).collect();
        let flat = if self.messages.len() >= 100 && urgencies.len() == 1 {
            vec!["the last messages all have one priority".to_string()]
        } else {
            Vec::new()
        };
        let crowded: Vec<String> = self
            .stats
            .lanes
            .iter()
            .filter(|l| f64::from(l.waiting) > 0.5 * f64::from(l.places.max(1)))
            .map(|l| format!("{} has {} of {} places taken at {} calls at once", l.agent, l.waiting, l.places, l.limit))
            .chain(self.each(|_, m| {
                let (c, d) = (m.concurrency.unwrap_or(5), m.max_queue_depth.unwrap_or(1_000));
                (c > d).then(|| format!("{c} calls at once, but only {d} may wait"))
            }))
            .collect();
        let by_id: BTreeMap<&str, &pb::Message> = self.messages.iter().map(|m| (m.message_id.as_str(), m)).collect();
        let torn: Vec<String> = self
            .messages
            .iter()
            .filter_map(|m| Some((m, by_id.get(m.parent_id.as_deref()?)?)))
            .filter(|(m, parent)| m.trace_id != parent.trace_id)
            .map(|(m, parent)| format!("{} has another trace than its parent {}", m.reach_id, parent.reach_id))
            .collect();
        let tripped: Vec<String> = self
            .stats
            .lanes
            .iter()
            .filter(|l| l.breaker != "passing")
            .map(|l| format!("the breaker of {} is {}", l.agent, l.breaker))
            .chain(self.metrics.iter().filter(|(k, v)| k.starts_with("reach_alarm{") && **v > 0.0).map(|(k, _)| format!("{k} is on")))
            .collect();
        let hours = |ms: u64| span::format(Duration::from_millis(ms));
        let short = if self.stats.retention_dead_ms < self.stats.retention_ms {
            vec!["dead letters are kept for less long than other messages".to_string()]
        } else {
            Vec::new()
        };
        let mut health =
            check("health", Fail, &unwell, format!("{n} agents, none gone, ready"), "start the agent, or mend its lease and health_check");
        if health.verdict == Verdict::Ok && !unwatched.is_empty() {
            health = check("health", Warn, &unwatched, "", "give it a ttl and heartbeats, or a health_check, so that it is known to work");
        }
        vec![
            check("registration", Warn, &lacking, format!("{n} agents, complete"), "complete the manifest and register it again"),
            health,
            check(
                "routes",
                Warn,
                &astray,
                format!("{} examples lead where they belong", self.routed.len()),
                "sharpen descriptions; `reach resolve TEXT --explain` says why",
            ),
            check(
                "timeouts",
                Warn,
                &untimed,
                "every agent says how long it takes",
                "set latency_hint for each capability, or timeouts.processing",
            ),
            check("retries", Warn, &steady, "bounded, with jitter", "at most 5 attempts and a jitter of 0.25"),
            check(
                "idempotency",
                Warn,
                &unkeyed,
                format!("keys are kept durably; {keyed} of the last {} messages had one", self.messages.len()),
                "send idempotency_key or message_id, so that a repetition is no second run",
            ),
            check("large payloads", Warn, &large, "none was refused", "store large data and send its address as data_ref"),
            check(
                "priorities",
                Warn,
                &flat,
                format!("{} in use", urgencies.len()),
                "mark what people wait for with priority 0 and batches with 2",
            ),
            check("concurrency", Fail, &crowded, "queues are short", "raise the agent's concurrency, add instances, or send less"),
            check("traces", Warn, &torn, "parents and children share their trace", "hand trace_id on with parent_id"),
            check(
                "breakers and alarms",
                Fail,
                &tripped,
                "all passing, none on",
                "`reach messages --agent A --state dead_letter` shows what fails",
            ),
            check(
                "retention",
                Warn,
                &short,
                format!("messages {}, dead letters {}", hours(self.stats.retention_ms), hours(self.stats.retention_dead_ms)),
                "raise dispatch.retention_dead",
            ),
        ]
    }
}

/// Samples of the Prometheus text, by name with labels.
fn metrics(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.rsplit_once(' ')).filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?))).collect()
}

impl Doctor {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        let checks = Seen::gather(&backend).await?.checks();
        for c in &checks {
            if common.json {
                out.json(c)?;
                continue;
            }
            let mark = match c.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            out.line(&format!("{mark}  {:<20} {}", c.name, c.found))?;
            if !c.mend.is_empty() {
                out.line(&format!("      {:<20} → {}", "", c.mend))?;
            }
        }
        Ok(if checks.iter().any(|c| c.verdict == Verdict::Fail) { Exit::Negative } else { Exit::Ok })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(seen: &Seen) -> Vec<(&'static str, Verdict)> {
        seen.checks().iter().filter(|c| c.verdict != Verdict::Ok).map(|c| (c.name, c.verdict)).collect()
    }

    #[test]
    fn a_sound_node_passes_twelve_checks() {
        let seen = Seen { durability: "journal_mode=wal synchronous=2".into(), ..Seen::default() };
        assert_eq!(seen.checks().len(), 12);
        assert_eq!(verdicts(&seen), []);
    }

    #[test]
    fn each_fault_is_found_and_says_what_to_do() {
        let retry = pb::Retry { max_attempts: Some(9), jitter: Some(0.0), ..Default::default() };
        let capability = pb::Capability { intent: "x".into(), ..Default::default() };
        let manifest = pb::Manifest {
            retry: Some(retry),
            concurrency: Some(9),
            max_queue_depth: Some(3),
            capabilities: vec![capability],
            ..Default::default()
        };
        let agent = pb::AgentState { status: "expired".into(), manifest: Some(manifest), ..Default::default() };
        let lane = pb::Lane { agent: "a/b".into(), breaker: "tripped".into(), ..Default::default() };
        let parent = pb::Message { message_id: "p".into(), reach_id: "p".into(), trace_id: "1".into(), ..Default::default() };
        let child = pb::Message {
            message_id: "c".into(),
            reach_id: "c".into(),
            parent_id: Some("p".into()),
            trace_id: "2".into(),
            ..Default::default()
        };
        let mut messages = vec![parent, child];
        messages.resize(150, pb::Message::default());
        let seen = Seen {
            agents: vec![agent],
            stats: pb::StatsResponse { lanes: vec![lane], retention_ms: 2, retention_dead_ms: 1, ..Default::default() },
            messages,
            metrics: metrics("# HELP\nreach_requests_total{door=\"http\",code=\"payload_too_large\"} 2\nreach_alarm{alarm=\"queue\"} 1\n"),
            routed: vec![("x".into(), Some("y".into()))],
            durability: "journal_mode=wal synchronous=1".into(),
            ready: None,
        };
        assert_eq!(verdicts(&seen).len(), 12, "{:#?}", verdicts(&seen));
        assert!(seen.checks().iter().all(|c| !c.mend.is_empty()));
    }
}
