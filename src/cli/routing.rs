//! Options of every command that has a request routed: who may take it, from where it comes, how it is ranked.
//!
//! In: flags. Out: the same fields of the messages that are sent. Not here: what is asked, and what is done with the answer.

use crate::api::pb;
use crate::cli::Failure;
use clap::Args;
use serde_json::{Map, Value};

/// Who may take it, and how candidates are ranked.
#[derive(Args, Clone, Debug, Default)]
pub struct Routing {
    /// Agent that must take it.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
    pub target: Option<String>,
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
    /// Ranking preset: balanced, gateway, reachability, quality.
    #[arg(long)]
    pub preset: Option<String>,
    /// No fallback agent.
    #[arg(long)]
    pub no_fallback: bool,
    /// Caller's name, where no token says it.
    #[arg(long, value_name = "NAME")]
    pub caller: Option<String>,
    /// Tenant's name, where no token says it.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

impl Routing {
    /// The scopes, where any are named.
    pub fn scope_list(&self) -> Option<pb::ScopeList> {
        (!self.scopes.is_empty()).then(|| pb::ScopeList { items: self.scopes.clone() })
    }

    /// The attributes as a JSON object; a value that is JSON is taken as such, all else is text.
    pub fn attribute_object(&self) -> Result<Option<String>, Failure> {
        let mut map = Map::new();
        for pair in &self.attributes {
            let (name, value) = pair.split_once('=').ok_or_else(|| Failure::words(format!("--attr {pair}: write NAME=VALUE")))?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_string()));
            map.insert(name.to_string(), value);
        }
        Ok(Some(map).filter(|m| !m.is_empty()).map(|m| Value::Object(m).to_string()))
    }

    /// Whether the fallback agent may take it; nothing when that is not said.
    pub fn fallback(&self) -> Option<bool> {
        self.no_fallback.then_some(false)
    }
}
