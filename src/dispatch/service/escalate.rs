//! Dead letters are handed on: to an agent that takes over, or to a URL that is told, as the operator's rules say.
//!
//! Invariants: a dead letter is escalated once: the mark is written with its end, and the message that takes over has an id made of the dead letter's, so that
//! a second try, after a crash too, finds the first; what takes over is never escalated itself (`engine`). Whatever becomes of it is on record: who
//! can't be asked leaves a message that says so. Not here: the rules (`types::escalation`), when a message is given up (`engine`).

use super::Dispatcher;
use crate::dispatch::dedup::KEEP_MS;
use crate::dispatch::port::Filter;
use crate::dispatch::reply::{ReplyEnvelope, envelope};
use crate::error::{Class, Error};
use crate::tasks::Stage;
use crate::types::AgentKey;
use crate::types::envelope::{Deliver, Envelope, Mode, ReachId, RouteOptions, Source};
use crate::types::escalation::{Escalated, Rule, To, rule_for};
use crate::types::message::{Message, State};
use crate::types::principal::{Grant, Principal};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Tries while nothing is taken in.
const TRIES: u32 = 6;

/// What a URL is told: the answer that the caller gets, and what people need to look after it.
#[derive(Serialize)]
struct Told<'a> {
    /// `dead_letter`.
    event: &'static str,
    #[serde(flatten)]
    reply: ReplyEnvelope,
    dead_tag: &'static str,
    caller: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'a str>,
    deliveries: u32,
    failed: Vec<String>,
    rejected: Vec<String>,
    biz_tags: &'a BTreeMap<String, String>,
}

fn told(m: &Message) -> Told<'_> {
    let (e, h) = (&m.envelope, &m.head);
    let names = |list: &[AgentKey]| list.iter().map(ToString::to_string).collect();
    Told {
        event: "dead_letter",
        reply: envelope(m),
        dead_tag: h.tag.map_or("", |t| t.as_str()),
        caller: &e.principal.caller,
        intent: h.capability.as_deref().or(e.intent.as_deref()),
        query: e.query.as_deref(),
        deliveries: h.delivery,
        failed: names(&h.failed),
        rejected: names(&h.rejected),
        biz_tags: &e.biz_tags,
    }
}

/// The id of the message that takes over a dead letter.
pub fn id_of(dead: ReachId) -> String {
    format!("escalation-{dead}")
}

/// The message that takes over `dead`: the same work, for another agent, with a life of its own. The operator chose the agent, so it is found wherever
/// it lives; the caller's scopes stay what they are.
fn takes_over(dead: &Message, agent: &AgentKey, capability: &Arc<str>, ttl: Duration, now_ms: i64, reach_id: ReachId) -> Option<Envelope> {
    let (e, h) = (&dead.envelope, &dead.head);
    let from = Escalated {
        reach_id: dead.id(),
        tag: h.tag?,
        reason: h.reason.clone().unwrap_or_default(),
        agent: h.agent.clone(),
        intent: h.capability.clone().or_else(|| e.intent.clone()),
    };
    Some(Envelope {
        reach_id,
        message_id: Arc::from(id_of(dead.id())),
        parent_id: Some(e.message_id.clone()),
        timestamp_ms: now_ms,
        principal: Principal { namespaces: Grant::All, ..e.principal.clone() },
        target: Some(agent.clone()),
        intent: Some(capability.clone()),
        ttl,
        timeout: None,
        budget: None,
        retry: None,
        mode: Mode::OneWay,
        deliver: Deliver::Best,
        callback: None,
        idempotency_key: None,
        source: Source::Escalation,
        replayed_from: None,
        escalation: Some(Box::new(from)),
        options: RouteOptions { depth: e.options.depth, no_fallback: true, ..RouteOptions::default() },
        ..Envelope::clone(e)
    })
}

impl Dispatcher {
    fn rule_of(&self, dead: &Message) -> Option<&Rule> {
        let namespace = dead.head.agent.as_ref().or(dead.envelope.target.as_ref()).map(|a| &a.namespace);
        rule_for(&self.inner.settings.engine.escalations, namespace, dead.head.tag?)
    }

    /// Hands a dead letter on.
    pub(super) async fn escalate(&self, dead: &Message) {
        let id = dead.id();
        match self.rule_of(dead).map(|r| r.to.clone()) {
            Some(To::Agent { agent, capability, ttl }) => {
                if let Err(error) = self.take_over(dead, &agent, &capability, ttl).await {
                    tracing::error!(reach_id = %id, %agent, %error, "a dead letter could not be handed on");
                }
            }
            Some(To::Callback(url)) => {
                let body = serde_json::to_vec(&told(dead)).unwrap_or_default();
                if !self.post_signed(&url, &id_of(id), body).await {
                    tracing::error!(reach_id = %id, "nobody took the news of a dead letter at the callback of its escalation");
                }
            }
            // the rules changed since it was marked
            None => {}
        }
    }

    async fn take_over(&self, dead: &Message, agent: &AgentKey, capability: &Arc<str>, ttl: Duration) -> Result<(), Error> {
        let stop = self.inner.tasks.stop(Stage::Work);
        let mut last = None;
        for n in 0..TRIES {
            let Some(envelope) = takes_over(dead, agent, capability, ttl, self.now_ms(), super::fresh_id(self.now_ms())?) else {
                return Ok(());
            };
            match self.submit_or_record(envelope).await {
                Ok(()) => return Ok(()),
                Err(e) if e.class() == Class::Retry => last = Some(e),
                Err(e) => return Err(e),
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(Duration::from_millis(500u64 << n)) => {}
            }
        }
        last.map_or(Ok(()), Err)
    }

    /// What the last life of this process marked and may not have handed on. A URL is not told again: it may have been told.
    pub(super) async fn escalate_again(&self) {
        if self.inner.settings.engine.escalations.is_empty() {
            return;
        }
        let filter = Filter { state: Some(State::DeadLetter), limit: 1_000, ..Filter::default() };
        let Ok(page) = self.inner.store.list(filter).await else { return };
        // the id of what took over is remembered as long as this at least
        let since = self.now_ms() - KEEP_MS;
        for dead in page.messages.into_iter().filter(|m| m.head.escalated.is_some() && m.head.updated_ms > since) {
            if let Some(To::Agent { .. }) = self.rule_of(&dead).map(|r| &r.to) {
                self.escalate(&dead).await;
            }
        }
    }
}
