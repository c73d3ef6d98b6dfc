//! `reach invoke`: has something done. Finds the agent, delivers, waits for the result and prints it.
//!
//! Inside a command that `reach wrap` runs, the chain is passed on by itself: trace, parent, hops and what is left of the budget.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::resolve::{read_json, read_text};
use crate::cli::routing::Routing;
use crate::cli::{App, Common, Exit, Failure, Out, print, say};
use crate::clock::{Clock, SystemClock};
use crate::telemetry::log::escaped;
use crate::types::span;
use clap::Args;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause between looks at a message that takes longer than the server lets a caller wait.
const LOOK: Duration = Duration::from_millis(500);

/// Has something done: finds the agent, delivers, waits for the result.
#[derive(Args, Debug, Default)]
pub struct Invoke {
    /// What you want done, in words; `-` reads it from standard input. May be left out with --intent or --target.
    #[arg(required_unless_present_any = ["intent", "target"])]
    pub query: Option<String>,
    /// Exact capability name or alias.
    #[arg(long, value_name = "NAME")]
    pub intent: Option<String>,
    /// The work as JSON, or @FILE, or - for standard input.
    #[arg(long, value_name = "JSON|@FILE|-")]
    pub payload: Option<String>,
    /// Where the work can be fetched, when it is larger than 2 MiB.
    #[arg(long, value_name = "ADDRESS")]
    pub data_ref: Option<String>,
    /// Prints the id at once instead of waiting for the result.
    #[arg(long = "async", conflicts_with_all = ["one_way", "broadcast"])]
    pub later: bool,
    /// Wants no result.
    #[arg(long, conflicts_with = "broadcast")]
    pub one_way: bool,
    /// Sends it to every agent that matches.
    #[arg(long)]
    pub broadcast: bool,
    /// Delivers to the best candidate even when the matcher is not sure.
    #[arg(long)]
    pub best: bool,
    /// 0 goes first, 1 is usual, 2 takes what is left.
    #[arg(long, value_name = "0|1|2")]
    pub priority: Option<u32>,
    /// How long the message lives, such as 30s or 24h.
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub ttl: Option<Duration>,
    /// Time for one attempt.
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub timeout: Option<Duration>,
    /// Attempts in all, 1 to 5.
    #[arg(long, value_name = "N")]
    pub attempts: Option<u32>,
    /// URL that is told the result, signed.
    #[arg(long, value_name = "URL")]
    pub callback: Option<String>,
    /// Idempotency key: the same key again is the same message.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Your id of the message.
    #[arg(long, value_name = "ID")]
    pub message_id: Option<String>,
    /// Label; may be repeated. Messages are found by them.
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    pub tags: Vec<String>,
    /// Who may take it, and how candidates are ranked.
    #[command(flatten)]
    pub routing: Routing,
}

/// What a wrapped command was told about the chain that it is part of.
#[derive(Default)]
struct Chain {
    trace_id: Option<String>,
    parent_id: Option<String>,
    depth: u32,
    budget_ms: Option<u64>,
}

impl Chain {
    fn of_environment() -> Self {
        let var = |name: &str| std::env::var(name).ok().filter(|t| !t.is_empty());
        let left = var("REACH_DEADLINE_MS").and_then(|t| t.parse::<i64>().ok()).map(|at| at.saturating_sub(SystemClock.now_ms()).max(1));
        Self {
            trace_id: var("REACH_TRACE_ID"),
            parent_id: var("REACH_MESSAGE_ID"),
            depth: var("REACH_DEPTH").and_then(|t| t.parse().ok()).unwrap_or(0),
            budget_ms: left.and_then(|ms| u64::try_from(ms).ok()),
        }
    }
}

/// Reads `NAME=VALUE`s.
pub fn labels(pairs: &[String], flag: &str) -> Result<BTreeMap<String, String>, Failure> {
    let one = |pair: &String| {
        pair.split_once('=')
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .ok_or_else(|| Failure::words(format!("{flag} {pair}: write NAME=VALUE")))
    };
    pairs.iter().map(one).collect()
}

fn millis(span: Option<Duration>) -> Option<u64> {
    span.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

impl Invoke {
    fn request(&self, chain: Chain) -> Result<pb::SubmitRequest, Failure> {
        let mode = match (self.later, self.one_way, self.broadcast) {
            (true, ..) => "async",
            (_, true, _) => "one_way",
            (.., true) => "broadcast",
            _ if self.callback.is_some() => "async",
            _ => "sync",
        };
        let of = &self.routing;
        Ok(pb::SubmitRequest {
            message_id: self.message_id.clone(),
            parent_id: chain.parent_id,
            trace_id: chain.trace_id,
            caller: of.caller.clone(),
            tenant: of.tenant.clone(),
            target: of.target.clone(),
            intent: self.intent.clone(),
            query: self.query.as_deref().map(read_text).transpose()?,
            payload: self.payload.as_deref().map(|p| read_json(p, "--payload")).transpose()?,
            data_ref: self.data_ref.clone(),
            priority: self.priority,
            ttl_ms: millis(self.ttl),
            timeout_ms: millis(self.timeout),
            budget_ms: chain.budget_ms,
            max_attempts: self.attempts,
            mode: Some(mode.into()),
            deliver: self.best.then(|| "best".into()),
            callback: self.callback.clone(),
            idempotency_key: self.key.clone(),
            biz_tags: labels(&self.tags, "--tag")?,
            scopes: of.scope_list(),
            namespaces: of.namespaces.clone(),
            depth: chain.depth,
            region: of.region.clone(),
            attributes: of.attribute_object()?,
            preferred: of.preferred.clone(),
            only: of.only,
            exclude: of.exclude.clone(),
            max_cost: of.max_cost,
            preset: of.preset.clone(),
            fallback: of.fallback(),
            previous: None,
        })
    }

    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let request = self.request(Chain::of_environment())?;
        let backend = Backend::open(common, app).await?;
        let waits = request.mode.as_deref() == Some("sync");
        let mut reply = backend.submit(request).await?;
        // the server lets a caller wait for a while; the message goes on, and so do we
        while waits && code(&reply) == 202 {
            tokio::time::sleep(LOOK).await;
            let which = pb::GetMessageRequest { message_id: reply.reach_id.clone(), caller: None, tenant: None };
            let now = backend.message(which).await?;
            reply = now.reply.unwrap_or(reply);
        }
        show(&reply, common, out)
    }
}

fn code(reply: &pb::Reply) -> u32 {
    reply.status.as_ref().map_or(0, |s| s.code)
}

/// Prints a reply: the result as data; everything else as words.
pub fn show(reply: &pb::Reply, common: &Common, out: &Out) -> Result<Exit, Failure> {
    let exit = if code(reply) < 300 { Exit::Ok } else { Exit::Negative };
    if common.json {
        out.json(reply)?;
        return Ok(exit);
    }
    for warning in &reply.warnings {
        say(&format!("warning: {}", escaped(&warning.text)));
    }
    let status = reply.status.clone().unwrap_or_default();
    match (code(reply), &reply.data, &reply.text) {
        (200, Some(data), _) => out.line(data)?,
        (200, None, Some(text)) => out.line(text)?,
        (200, None, None) => say("done, without a result"),
        (202, ..) if reply.parts.is_empty() => out.line(&reply.reach_id)?,
        (202, ..) => {
            for part in &reply.parts {
                let who = part.agent_id.clone().unwrap_or_default();
                out.line(&format!("{}  {}  {}", part.reach_id, escaped(&who), escaped(&part.state)))?;
            }
        }
        _ => {
            let who = reply.agent_id.as_deref().map(|a| format!(" at {a}")).unwrap_or_default();
            say(&format!("{}{}: {}: {}", escaped(&reply.state), escaped(&who), escaped(&status.r#type), escaped(&status.message)));
            if !reply.reach_id.is_empty() {
                say(&format!("its whole life: reach messages show {}", reply.reach_id));
            }
            if let Some(decision) = &reply.decision {
                say(&print::answer(decision, false, false));
            }
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn every_option_reaches_the_request() {
        let line = "reach invoke 我要退款 --intent c --target n/a --payload {\"a\":1} --data-ref s3://b/k --async --best --priority 2 --ttl 1m --timeout 5s \
             --attempts 3 --callback http://127.0.0.1:9001/done --key k --message-id m --tag order=7 --region cn --scope s --namespace n --attr tier=gold \
             --prefer n/b --only --exclude n/c --max-cost 0.5 --preset gateway --no-fallback --caller me --tenant t";
        let Command::Invoke(invoke) = Cli::parse_from(line.split_whitespace()).command else { panic!("not invoke") };
        let chain = Chain { trace_id: Some("ab".repeat(16)), parent_id: Some("p".into()), depth: 2, budget_ms: Some(900) };
        let json = serde_json::to_value(invoke.request(chain).unwrap()).unwrap();
        let expected = serde_json::json!({
            "message_id": "m", "parent_id": "p", "trace_id": "ab".repeat(16), "caller": "me", "tenant": "t", "target": "n/a", "intent": "c",
            "query": "我要退款", "payload": {"a": 1}, "data_ref": "s3://b/k", "priority": 2, "ttl_ms": 60000, "timeout_ms": 5000, "budget_ms": 900,
            "max_attempts": 3, "mode": "async", "deliver": "best", "callback": "http://127.0.0.1:9001/done", "idempotency_key": "k",
            "biz_tags": {"order": "7"}, "scopes": ["s"], "namespaces": ["n"], "depth": 2, "region": "cn", "attributes": {"tier": "gold"},
            "preferred": ["n/b"], "only": true, "exclude": ["n/c"], "max_cost": 0.5, "preset": "gateway", "fallback": false
        });
        assert_eq!(json, expected);
        assert!(Cli::try_parse_from(["reach", "invoke"]).is_err());
    }
}
