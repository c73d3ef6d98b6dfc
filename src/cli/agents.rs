//! `reach agents`: shows and manages registered agents.

use crate::api::pb;
use crate::cli::backend::{Backend, agent_ref};
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::error::{Code, Error};
use crate::telemetry::log::escaped;
use clap::Subcommand;
use std::time::Duration;

/// Shows and manages registered agents.
#[derive(Subcommand, Debug)]
pub enum AgentsCommand {
    /// Lists agents; all of them unless a limit is given.
    List {
        /// Only this namespace.
        #[arg(long)]
        namespace: Option<String>,
        /// Only agents that carry this tag.
        #[arg(long)]
        tag: Option<String>,
        /// Only agents that offer this capability.
        #[arg(long)]
        capability: Option<String>,
        /// Most agents to show.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Shows one agent.
    Get {
        /// Agent.
        #[arg(value_name = "NAMESPACE/AGENT_ID", value_parser = agent_ref)]
        agent: pb::AgentRef,
        /// An older version.
        #[arg(long, value_name = "VERSION")]
        agent_version: Option<String>,
    },
    /// Takes an agent out of new work.
    Drain {
        /// Agent.
        #[arg(value_name = "NAMESPACE/AGENT_ID", value_parser = agent_ref)]
        agent: pb::AgentRef,
        /// Puts it back.
        #[arg(long)]
        resume: bool,
    },
    /// Removes an agent.
    Deregister {
        /// Agent.
        #[arg(value_name = "NAMESPACE/AGENT_ID", value_parser = agent_ref)]
        agent: pb::AgentRef,
    },
}

impl AgentsCommand {
    pub(super) async fn run(self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        match self {
            Self::List { namespace, tag, capability, limit } => {
                let which = pb::ListRequest { namespace, tag, capability, limit: None, after: None };
                list(&backend, which, limit.unwrap_or(usize::MAX), common, out).await
            }
            Self::Get { agent, agent_version } => {
                let looking = async {
                    loop {
                        match backend.get(agent.clone(), agent_version.clone()).await {
                            // with --wait an agent that is still starting is waited for
                            Err(Failure::Service(e)) if common.wait.is_some() && e.code == Code::NotFound.as_str() => {
                                tokio::time::sleep(Duration::from_millis(100)).await;
                            }
                            answer => return answer,
                        }
                    }
                };
                let found = match common.wait {
                    Some(within) => tokio::time::timeout(within, looking)
                        .await
                        .unwrap_or_else(|_| Err(Error::not_found("agent, not within the time that was given").into())),
                    None => looking.await,
                };
                show(&found?, common, out)
            }
            Self::Drain { agent, resume } => show_line(&backend.drain(agent, !resume).await?, common, out),
            Self::Deregister { agent } => {
                let gone = backend.deregister(agent).await?;
                if common.json {
                    out.json(&gone)?
                } else {
                    out.line(&format!("removed  {}", print::who(gone.agent.as_ref(), "")))?
                }
                Ok(Exit::Ok)
            }
        }
    }
}

async fn list(backend: &Backend, mut which: pb::ListRequest, most: usize, common: &Common, out: &Out) -> Result<Exit, Failure> {
    let (mut left, mut shown) = (most, 0);
    while left > 0 {
        which.limit = Some(u32::try_from(left.min(500)).unwrap_or(500));
        let page = backend.list(which.clone()).await?;
        left = left.saturating_sub(page.agents.len().max(1));
        shown += page.agents.len();
        if common.json {
            for agent in &page.agents {
                out.json(agent)?;
            }
        } else {
            for row in print::table(page.agents.iter().map(row).collect()) {
                out.line(&row)?;
            }
        }
        match page.next {
            Some(after) => which.after = Some(after),
            None => break,
        }
    }
    Ok(if shown == 0 { Exit::Negative } else { Exit::Ok })
}

fn row(state: &pb::AgentState) -> Vec<String> {
    let manifest = state.manifest.clone().unwrap_or_default();
    let names: Vec<&str> = manifest.capabilities.iter().map(|c| c.intent.as_str()).collect();
    let more = if names.len() > 4 { format!(" … {} in all", names.len()) } else { String::new() };
    let shown: Vec<String> = names.iter().take(4).map(|n| escaped(n)).collect();
    vec![
        print::who(state.agent.as_ref(), ""),
        escaped(manifest.agent_version.as_deref().unwrap_or("-")),
        escaped(&state.status),
        format!("{}{more}", shown.join(", ")),
    ]
}

fn show_line(state: &pb::AgentState, common: &Common, out: &Out) -> Result<Exit, Failure> {
    if common.json {
        out.json(state)?;
    } else {
        out.line(print::table(vec![row(state)]).first().map_or("", String::as_str))?;
    }
    Ok(Exit::Ok)
}

fn show(state: &pb::AgentState, common: &Common, out: &Out) -> Result<Exit, Failure> {
    if common.json {
        out.json(state)?;
        return Ok(Exit::Ok);
    }
    let manifest = state.manifest.clone().unwrap_or_default();
    out.line(&format!(
        "{}  {}",
        print::who(state.agent.as_ref(), manifest.agent_version.as_deref().unwrap_or("")),
        escaped(&state.status)
    ))?;
    let mut facts = vec![format!("registered {}", state.registered_at), format!("generation {}", state.generation)];
    facts.extend(state.lease_until.as_ref().map(|t| format!("lease until {t}")));
    facts.extend(state.load.map(|l| format!("load {l:.2}")));
    facts.extend(state.queue_length.map(|n| format!("{n} waiting")));
    facts.extend(state.in_flight.map(|n| format!("{n} under way")));
    out.line(&format!("  {}", facts.join(" · ")))?;
    for endpoint in &manifest.endpoints {
        out.line(&format!("  {}  {}", escaped(&endpoint.protocol), escaped(endpoint.address.as_deref().unwrap_or(""))))?;
    }
    let rows = manifest.capabilities.iter().map(|c| {
        let texts = c.description.clone().unwrap_or_default();
        vec![format!("  {}", escaped(&c.intent)), escaped(texts.en.as_deref().or(texts.zh.as_deref()).unwrap_or(""))]
    });
    for row in print::table(rows.collect()) {
        out.line(&row)?;
    }
    Ok(Exit::Ok)
}
