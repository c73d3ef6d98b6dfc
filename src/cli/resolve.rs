//! `reach resolve`: asks who can do something.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::types::span;
use clap::Args;
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

/// Asks who can do something.
#[derive(Args, Debug, Default)]
pub struct Resolve {
    /// What you want done, in words; `-` reads it from standard input. May be left out with --capability.
    #[arg(required_unless_present = "capability")]
    pub query: Option<String>,
    /// Shows the terms of every score, the evidence, and what was dropped.
    #[arg(long)]
    pub explain: bool,
    /// Exact capability name or alias.
    #[arg(long, value_name = "NAME")]
    pub capability: Option<String>,
    /// Payload as JSON, or @FILE: it must fit the capability's input schema.
    #[arg(long, value_name = "JSON|@FILE")]
    pub payload: Option<String>,
    /// Region you are in, such as cn-east.
    #[arg(long)]
    pub region: Option<String>,
    /// Scope you hold; may be repeated. Narrows a token, never widens it.
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// Namespace to look in; may be repeated. Narrows a token, never widens it.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    pub namespaces: Vec<String>,
    /// Attribute the agent must have; may be repeated.
    #[arg(long = "attr", value_name = "NAME=VALUE")]
    pub attributes: Vec<String>,
    /// Agent that must take it.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
    pub target: Option<String>,
    /// Agent that gets a bonus; may be repeated.
    #[arg(long = "prefer", value_name = "NAMESPACE/AGENT_ID")]
    pub preferred: Vec<String>,
    /// Only the preferred agents.
    #[arg(long, requires = "preferred")]
    pub only: bool,
    /// Agent that must not take it; may be repeated.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
    pub exclude: Vec<String>,
    /// Highest cost of one call.
    #[arg(long, value_name = "COST")]
    pub max_cost: Option<f64>,
    /// How long you are willing to wait, such as 500ms.
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub deadline: Option<std::time::Duration>,
    /// Ranking preset: balanced, gateway, reachability, quality.
    #[arg(long)]
    pub preset: Option<String>,
    /// No fallback agent.
    #[arg(long)]
    pub no_fallback: bool,
    /// Hops so far, 0 to 8.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub depth: u32,
    /// Capability you used before this one.
    #[arg(long, value_name = "NAME")]
    pub previous: Option<String>,
    /// Number of candidates, 1 to 50; 5 when left out.
    #[arg(short, long = "k", value_name = "N")]
    pub k: Option<u32>,
    /// Time to decide at, RFC 3339, such as 2026-01-04T03:00:00+08:00.
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Seed of the dice, for an answer that can be repeated.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Caller's name, where no token says it.
    #[arg(long, value_name = "NAME")]
    pub caller: Option<String>,
    /// Tenant's name, where no token says it.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

impl Resolve {
    /// The message that these options stand for.
    pub fn request(&self) -> Result<pb::ResolveRequest, Failure> {
        let query = self.query.as_deref().map(read_text).transpose()?.unwrap_or_default();
        let payload = self.payload.as_deref().map(|p| read_json(p, "--payload")).transpose()?;
        Ok(pb::ResolveRequest {
            query,
            capability: self.capability.clone(),
            payload,
            caller: self.caller.clone(),
            tenant: self.tenant.clone(),
            namespaces: self.namespaces.clone(),
            scopes: Some(pb::ScopeList { items: self.scopes.clone() }).filter(|s| !s.items.is_empty()),
            region: self.region.clone(),
            attributes: attributes(&self.attributes)?,
            target: self.target.clone(),
            preferred: self.preferred.clone(),
            only: self.only,
            exclude: self.exclude.clone(),
            max_cost: self.max_cost,
            deadline_ms: self.deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            preset: self.preset.clone(),
            fallback: self.no_fallback.then_some(false),
            depth: self.depth,
            previous: self.previous.clone(),
            k: self.k,
            at: self.at.clone(),
            seed: self.seed,
            explain: self.explain,
        })
    }

    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let request = self.request()?;
        let answer = Backend::open(common, app).await?.resolve(request).await?;
        if common.json {
            out.json(&answer)?;
        } else {
            out.line(&print::answer(&answer, self.explain, out.terminal))?;
        }
        Ok(if answer.decision == "none" { Exit::Negative } else { Exit::Ok })
    }
}

/// Words of the command line; `-` is standard input.
pub fn read_text(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_string());
    }
    let mut read = String::new();
    std::io::stdin().read_to_string(&mut read).map_err(|e| Failure::words(format!("standard input: {e}")))?;
    Ok(read.trim_end().to_string())
}

/// JSON of the command line: itself, `@FILE`, or `-` for standard input.
pub fn read_json(text: &str, flag: &str) -> Result<String, Failure> {
    let json = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(Path::new(file)).map_err(|e| Failure::words(format!("{flag} {file}: {e}")))?,
        None => read_text(text)?,
    };
    serde_json::from_str::<serde::de::IgnoredAny>(&json).map_err(|e| Failure::words(format!("{flag} is no JSON: {e}")))?;
    Ok(json)
}

/// `NAME=VALUE`s as a JSON object; a value that is JSON is taken as such, all else is text.
pub fn attributes(pairs: &[String]) -> Result<Option<String>, Failure> {
    let mut map = Map::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| Failure::words(format!("--attr {pair}: write NAME=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_string()));
        map.insert(name.to_string(), value);
    }
    Ok(Some(map).filter(|m| !m.is_empty()).map(|m| Value::Object(m).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn every_option_reaches_the_request() {
        let line = "reach resolve 我要退款 --explain --capability c --payload {\"a\":1} --region cn --scope s --namespace n --attr tier=gold --attr n=3 \
             --target n/a --prefer n/b --only --exclude n/c --max-cost 0.5 --deadline 2s --preset gateway --no-fallback --depth 2 --previous p \
             --k 7 --at 2026-01-01T00:00:00Z --seed 9 --caller me --tenant t";
        let cli = Cli::parse_from(line.split_whitespace());
        let Command::Resolve(resolve) = cli.command else { panic!("not resolve") };
        let request = resolve.request().unwrap();
        let json = serde_json::to_value(&request).unwrap();
        let expected = serde_json::json!({
            "query": "我要退款", "explain": true, "capability": "c", "payload": {"a": 1}, "region": "cn", "scopes": ["s"], "namespaces": ["n"],
            "attributes": {"tier": "gold", "n": 3}, "target": "n/a", "preferred": ["n/b"], "only": true, "exclude": ["n/c"], "max_cost": 0.5,
            "deadline_ms": 2000, "preset": "gateway", "fallback": false, "depth": 2, "previous": "p", "k": 7, "at": "2026-01-01T00:00:00Z",
            "seed": 9, "caller": "me", "tenant": "t"
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_query_or_a_name_is_needed() {
        assert!(Cli::try_parse_from(["reach", "resolve"]).is_err());
        assert!(Cli::try_parse_from(["reach", "resolve", "--capability", "x"]).is_ok());
        assert!(attributes(&["x".into()]).is_err());
    }
}
