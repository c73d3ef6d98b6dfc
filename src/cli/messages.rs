//! `reach messages` and `reach dead-letters`: what became of messages, one message's whole life, calling off, replay.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::invoke::labels;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::telemetry::log::escaped;
use crate::types::span;
use clap::{Args, Subcommand};
use std::time::Duration;

/// Which messages to list.
#[derive(Args, Debug, Default)]
pub struct Which {
    /// At this agent.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
    agent: Option<String>,
    /// With this label; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    tag: Vec<String>,
    /// Led to by the message of this id: the parts of a broadcast, what an agent sent on.
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Taken in at or after, RFC 3339.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Taken in before, RFC 3339.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Most messages to show.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// Lists messages; shows one with its whole life, or calls it off.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Messages {
    #[command(subcommand)]
    command: Option<MessageCommand>,
    /// In this state, such as queued, executing or done.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// What to do with one message.
#[derive(Subcommand, Debug)]
enum MessageCommand {
    /// Shows a message with everything that happened to it.
    Show {
        /// Reach id, or your own message id.
        id: String,
        /// Caller whose message id it is, where no token says it.
        #[arg(long, value_name = "NAME")]
        caller: Option<String>,
    },
    /// Calls a message off.
    Cancel {
        /// Reach id, or your own message id.
        id: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Caller whose message id it is, where no token says it.
        #[arg(long, value_name = "NAME")]
        caller: Option<String>,
    },
}

/// Lists dead letters, and delivers them once more.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DeadLetters {
    #[command(subcommand)]
    command: Option<LetterCommand>,
    /// Given up for this reason, such as retries_exhausted or ttl_expired.
    #[arg(long, value_name = "REASON")]
    why: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// What to do with dead letters.
#[derive(Subcommand, Debug)]
enum LetterCommand {
    /// Delivers dead letters once more, each as a reach of its own.
    Replay {
        /// Reach ids; or use the filters below.
        #[arg(required_unless_present_any = ["why", "agent", "limit"], conflicts_with_all = ["why", "agent", "limit"])]
        ids: Vec<String>,
        /// Given up for this reason.
        #[arg(long, value_name = "REASON")]
        why: Option<String>,
        /// Given up at this agent.
        #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
        agent: Option<String>,
        /// Most of them, the oldest first.
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
        /// New life, such as 10m.
        #[arg(long, value_name = "DURATION", value_parser = span::parse)]
        ttl: Option<Duration>,
    },
}

impl Which {
    fn request(&self, state: Option<&String>, why: Option<&String>) -> Result<pb::ListMessagesRequest, Failure> {
        Ok(pb::ListMessagesRequest {
            state: state.cloned(),
            agent: self.agent.clone(),
            since: self.since.clone(),
            until: self.until.clone(),
            tag_name: None,
            tag_value: None,
            tags: labels(&self.tag, "--tag")?.into_iter().collect(),
            dead_tag: why.cloned(),
            parent_id: self.parent.clone(),
            limit: None,
            after: None,
        })
    }
}

/// Prints pages until `most` messages were shown.
async fn list(
    backend: &Backend,
    mut which: pb::ListMessagesRequest,
    most: usize,
    dead: bool,
    common: &Common,
    out: &Out,
) -> Result<Exit, Failure> {
    let mut rows = Vec::new();
    let mut shown = 0;
    while shown < most {
        which.limit = Some(u32::try_from((most - shown).min(1_000)).unwrap_or(1_000));
        let page = backend.messages(which.clone(), dead).await?;
        for m in &page.messages {
            shown += 1;
            if common.json {
                out.json(m)?;
            } else {
                rows.push(row(m));
            }
        }
        which.after = page.next;
        if which.after.is_none() {
            break;
        }
    }
    for line in print::table(rows) {
        out.line(&line)?;
    }
    Ok(if shown == 0 { Exit::Negative } else { Exit::Ok })
}

fn row(m: &pb::Message) -> Vec<String> {
    let what = m.capability.clone().or(m.intent.clone()).or(m.query.clone()).unwrap_or_default();
    let what: String = what.chars().take(40).collect();
    let state = m.dead_tag.as_ref().map_or_else(|| m.state.clone(), |tag| format!("{} {tag}", m.state));
    let at = m.received_at.get(..19).unwrap_or(&m.received_at).to_string();
    vec![m.reach_id.clone(), at, state, format!("#{}", m.delivery), escaped(&what), escaped(m.agent.as_deref().unwrap_or("-"))]
}

fn life(m: &pb::Message) -> Vec<String> {
    let whose = if m.reach_id.is_empty() { &m.message_id } else { &m.reach_id };
    let mut lines = vec![format!("{}  {}", escaped(whose), m.state)];
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            lines.push(format!("{name:<11}{}", escaped(&value)));
        }
    };
    fact("message", Some(m.message_id.clone()).filter(|id| id != whose));
    fact("from", Some(m.caller.clone()));
    fact("wanted", m.intent.clone().or(m.query.clone()));
    fact("agent", m.agent.clone().map(|a| format!("{a}  {}", m.capability.clone().unwrap_or_default())));
    fact("failed", Some(m.failed.join(", ")));
    fact("rejected", Some(m.rejected.join(", ")));
    fact("replays", m.replayed_from.clone());
    fact("escalated", m.escalated_to.clone());
    fact("takes over", m.escalated_from.clone());
    let labels: Vec<String> = m.biz_tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
    fact("labels", Some(labels.join(" ")));
    let status = m.reply.as_ref().and_then(|r| r.status.clone());
    fact("status", status.map(|s| format!("{} {}: {}", s.code, s.r#type, s.message)));
    let parts = m.reply.as_ref().map_or(&[][..], |r| &r.parts);
    let part = |p: &pb::Reply| vec![p.reach_id.clone(), p.state.clone(), escaped(p.agent_id.as_deref().unwrap_or("-"))];
    lines.extend(print::table(parts.iter().map(part).collect()));
    let rows = m.log.iter().map(|e| {
        let time = e.at.get(11..).map_or(&*e.at, |t| t.trim_end_matches('Z'));
        // milliseconds are left out where they are zero
        let time = if time.contains('.') { format!("{time:0<12}") } else { format!("{time}.000") };
        vec![format!("{:>3}", e.seq), time, e.state.clone(), e.event.clone(), escaped(&e.detail.clone().unwrap_or_default())]
    });
    lines.extend(print::table(rows.collect()));
    lines
}

impl Messages {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        match &self.command {
            None => list(&backend, self.which.request(self.state.as_ref(), None)?, self.which.limit, false, common, out).await,
            Some(MessageCommand::Show { id, caller }) => {
                let m = backend.message(pb::GetMessageRequest { message_id: id.clone(), caller: caller.clone(), tenant: None }).await?;
                if common.json {
                    out.json(&m)?;
                } else {
                    life(&m).iter().try_for_each(|line| out.line(line))?;
                }
                Ok(Exit::Ok)
            }
            Some(MessageCommand::Cancel { id, reason, caller }) => {
                let which = pb::CancelRequest { message_id: id.clone(), reason: reason.clone(), caller: caller.clone(), tenant: None };
                let reply = backend.cancel(which).await?;
                if common.json {
                    out.json(&reply)?;
                } else {
                    let parts = if reply.parts.is_empty() { std::slice::from_ref(&reply) } else { &reply.parts[..] };
                    parts.iter().try_for_each(|p| out.line(&format!("{}  {}", p.reach_id, p.state)))?;
                }
                Ok(if reply.state == "cancelled" { Exit::Ok } else { Exit::Negative })
            }
        }
    }
}

impl DeadLetters {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        let Some(LetterCommand::Replay { ids, why, agent, limit, ttl }) = &self.command else {
            return list(&backend, self.which.request(None, self.why.as_ref())?, self.which.limit, true, common, out).await;
        };
        let which = pb::ReplayRequest {
            ids: ids.clone(),
            dead_tag: why.clone(),
            agent: agent.clone(),
            limit: *limit,
            ttl_ms: ttl.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        };
        let replayed = backend.replay(which).await?;
        let mut exit = if replayed.results.is_empty() { Exit::Negative } else { Exit::Ok };
        for result in &replayed.results {
            if common.json {
                out.json(result)?;
            } else if let Some(reply) = &result.reply {
                out.line(&format!("{}  replays {}", reply.reach_id, result.replayed_from))?;
            }
            if let Some(e) = &result.error {
                exit = Exit::Negative;
                crate::cli::say(&format!("{}: {}", escaped(&result.replayed_from), print::refusal(e)));
            }
        }
        Ok(exit)
    }
}
