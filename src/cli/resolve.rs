//! `reach resolve`: asks who can do something.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::routing::Routing;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::types::span;
use clap::Args;
use std::io::Read;
use std::path::Path;

/// Asks who can do something.
#[derive(Args, Debug, Default)]
pub struct Resolve {
    /// What you want done, in words; `-` reads it from standard input. May be left out with --capability or --target.
    #[arg(required_unless_present_any = ["capability", "target"])]
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
    /// How long you are willing to wait, such as 500ms.
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub deadline: Option<std::time::Duration>,
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
    /// Who may take it, and how candidates are ranked.
    #[command(flatten)]
    pub routing: Routing,
}

impl Resolve {
    /// The message that these options stand for.
    pub fn request(&self) -> Result<pb::ResolveRequest, Failure> {
        let query = self.query.as_deref().map(read_text).transpose()?.unwrap_or_default();
        let payload = self.payload.as_deref().map(|p| read_json(p, "--payload")).transpose()?;
        let of = &self.routing;
        Ok(pb::ResolveRequest {
            query,
            capability: self.capability.clone(),
            payload,
            caller: of.caller.clone(),
            tenant: of.tenant.clone(),
            namespaces: of.namespaces.clone(),
            scopes: of.scope_list(),
            region: of.region.clone(),
            attributes: of.attribute_object()?,
            target: of.target.clone(),
            preferred: of.preferred.clone(),
            only: of.only,
            exclude: of.exclude.clone(),
            max_cost: of.max_cost,
            deadline_ms: self.deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            preset: of.preset.clone(),
            fallback: of.fallback(),
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

#[cfg(test)]
mod tests {
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
        assert!(Cli::try_parse_from(["reach", "resolve", "--target", "n/a"]).is_ok(), "an agent by its name, whatever it does");
        let Command::Resolve(odd) = Cli::parse_from(["reach", "resolve", "q", "--attr", "x"]).command else { panic!("not resolve") };
        assert!(odd.request().is_err());
    }
}
