//! Taking messages in: one, one to each agent that matches, a dead letter once more. Answered when it is durable.
//!
//! Invariant: a message that nobody takes now is refused and leaves no trace, or is stored as `route_failed` with the reason; never both.
//! Not here: waiting for the end (`ask`).

use super::{Dispatcher, Submitted, fresh_id};
use crate::dispatch::backpressure::{Admission, Newcomer};
use crate::dispatch::dedup;
use crate::dispatch::port::{Choice, Target, Wrote, replayed};
use crate::error::{Class, Code, Error};
use crate::types::envelope::{Envelope, Mode, SubmitRequest};
use crate::types::message::{Message, State};
use crate::types::principal::Principal;
use crate::types::{Decision, Fault, text};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When a caller may come again whose agents are all away.
const AWAY: Duration = Duration::from_secs(5);

/// To whom a message goes, or why to nobody.
enum Goes {
    To { target: Box<Target>, slow_down: Option<Duration> },
    Nowhere { code: Code, reason: String, decision: Option<Arc<Decision>> },
}

impl Dispatcher {
    /// Who calls: the credential's principal, with the name that the request gives where names are taken at their word.
    pub fn named(&self, principal: Principal, caller: Option<&str>, tenant: Option<&str>) -> Principal {
        if !self.inner.settings.local {
            return principal;
        }
        let short = |t: &str| -> Arc<str> { Arc::from(text::clean(t).chars().take(128).collect::<String>()) };
        let given = |t: Option<&str>| t.filter(|t| !t.is_empty()).map(short);
        Principal { caller: given(caller).unwrap_or(principal.caller), tenant: given(tenant).or(principal.tenant), ..principal }
    }

    /// Takes in a message; answers when that is durable.
    pub async fn submit(&self, principal: Principal, request: SubmitRequest) -> Result<Submitted, Error> {
        self.submit_envelope(self.checked_request(principal, request)?).await
    }

    fn checked_request(&self, principal: Principal, request: SubmitRequest) -> Result<Envelope, Error> {
        let principal = self.named(principal, request.caller.as_deref(), request.tenant.as_deref());
        request.check(principal, self.now_ms(), fresh_id(self.now_ms())?).map_err(refused_request)
    }

    async fn submit_envelope(&self, envelope: Envelope) -> Result<Submitted, Error> {
        self.may_take(&envelope)?;
        let shared = Arc::new(envelope);
        let goes = match self.whereto(&shared).await {
            Ok(goes @ Goes::To { .. }) => goes,
            // a repetition is answered even when nobody takes it now
            other => match self.known(&shared).await? {
                Some(message) => return Ok(Submitted { message, existing: true, decision: None, slow_down: None }),
                None => other?,
            },
        };
        self.take(Arc::unwrap_or_clone(shared), goes).await
    }

    /// Takes in a message, or puts on record why nobody can have it. A second time it is the first.
    pub(super) async fn submit_or_record(&self, envelope: Envelope) -> Result<(), Error> {
        if self.inner.failing.load(Ordering::Relaxed) {
            return Err(Error::overloaded("the message store takes no writes now", Duration::from_secs(1)));
        }
        if self.known(&envelope).await?.is_some() {
            return Ok(());
        }
        let shared = Arc::new(envelope);
        let goes = match self.whereto(&shared).await {
            Ok(goes) => goes,
            Err(e) if e.class() == Class::Retry => return Err(e),
            Err(e) => Goes::Nowhere { code: e.code, reason: e.message, decision: None },
        };
        self.take(Arc::unwrap_or_clone(shared), goes).await.map(|_| ())
    }

    /// One message to each agent that matches: each a reach of its own under the same parent. Empty when nobody does.
    pub async fn broadcast(&self, principal: Principal, request: SubmitRequest) -> Result<Vec<Submitted>, Error> {
        let base = Arc::new(self.checked_request(principal, request)?);
        self.may_take(&base)?;
        let targets = match self.inner.next.next(base.clone(), base.options.exclude.clone()).await? {
            Choice::Deliver(targets) => targets,
            Choice::Nobody { code: Code::PayloadInvalid, reason, faults, .. } => return Err(payload_error(reason, faults)),
            Choice::Nobody { code, reason, decision, .. } => {
                return Ok(vec![self.take(Arc::unwrap_or_clone(base), Goes::Nowhere { code, reason, decision }).await?]);
            }
        };
        let mut all = Vec::with_capacity(targets.len());
        for target in targets {
            let mut copy = Envelope::clone(&base);
            copy.reach_id = fresh_id(self.now_ms())?;
            copy.parent_id = Some(base.message_id.clone());
            copy.message_id = Arc::from(format!("{}#{}", base.message_id, target.agent));
            copy.idempotency_key = base.idempotency_key.as_ref().map(|k| Arc::from(format!("{k}#{}", target.agent)));
            copy.target = Some(target.agent.clone());
            copy.intent = Some(target.capability.clone());
            copy.mode = Mode::Broadcast;
            let who = Newcomer { priority: copy.priority, retry: false, left: left(&copy, self.now_ms()) };
            let goes = match self.with(|engine, now| engine.admit(now, &target, &who)) {
                Admission::Take { slow_down } => Goes::To { target: Box::new(target), slow_down },
                Admission::Refuse { code, .. } => Goes::Nowhere { code, reason: "the agent takes no more work now".into(), decision: None },
            };
            all.push(self.take(copy, goes).await?);
        }
        Ok(all)
    }

    /// The message itself, or what a dead letter was replayed as: who asks for it again wants to know what became of it.
    async fn newest(&self, message: Message) -> Result<Message, Error> {
        if message.head.state != State::DeadLetter {
            return Ok(message);
        }
        Ok(self.later_reach(&message).await?.unwrap_or(message))
    }

    /// Whether a later reach of the same message exists: then this one was replayed.
    pub async fn later_reach(&self, dead: &Message) -> Result<Option<Message>, Error> {
        let newest = self.inner.store.find_id(dead.envelope.owner(), dead.envelope.message_id.clone()).await?;
        Ok(newest.filter(|m| m.id() != dead.id()))
    }

    /// Delivers a dead letter once more, as a reach of its own. One that was replayed is not replayed again: its last reach may be.
    pub async fn replay(&self, principal: &Principal, id: &str, ttl: Option<Duration>) -> Result<Submitted, Error> {
        let dead = self.get(principal, id).await?;
        if dead.head.state != State::DeadLetter {
            return Err(Error::new(Code::FailedPrecondition, "only a dead letter can be replayed"));
        }
        if let Some(later) = self.later_reach(&dead).await? {
            let (id, state) = (later.id(), later.head.state);
            let hint = if state == State::DeadLetter { "; replay that one" } else { "" };
            return Err(Error::new(Code::FailedPrecondition, format!("it was replayed as {id}, which is `{}`{hint}", state.as_str())));
        }
        self.submit_envelope(replayed(&dead, self.now_ms(), fresh_id(self.now_ms())?, ttl)).await
    }

    /// Whether anything is taken in now, and whether the callback may be called.
    fn may_take(&self, envelope: &Envelope) -> Result<(), Error> {
        if self.inner.failing.load(Ordering::Relaxed) {
            return Err(Error::overloaded("the message store takes no writes now", Duration::from_secs(1)));
        }
        let Some(url) = &envelope.callback else { return Ok(()) };
        if self.inner.settings.secrets.is_empty() {
            let hint =
                "callbacks are signed and no secret is configured: set dispatch.callback_secrets, or leave the callback out and ask by id";
            return Err(Error::new(Code::FailedPrecondition, hint));
        }
        self.inner
            .guard
            .check(url)
            .map(|_| ())
            .map_err(|why| Error::invalid_at("/callback", "an address that may be called", format!("{}: {why}", why.as_str())))
    }

    /// Asks the matcher, then the queues of whom it names.
    async fn whereto(&self, envelope: &Arc<Envelope>) -> Result<Goes, Error> {
        let mut exclude = envelope.options.exclude.clone();
        let mut turned_away: Option<(Code, Duration)> = None;
        let who = Newcomer { priority: envelope.priority, retry: false, left: left(envelope, self.now_ms()) };
        for _ in 0..4 {
            match self.inner.next.next(envelope.clone(), exclude.clone()).await? {
                Choice::Deliver(targets) => {
                    for target in targets {
                        match self.with(|engine, now| engine.admit(now, &target, &who)) {
                            Admission::Take { slow_down } => return Ok(Goes::To { target: Box::new(target), slow_down }),
                            Admission::Refuse { code, retry_after } => {
                                exclude.push(target.agent);
                                turned_away.get_or_insert((code, retry_after));
                            }
                        }
                    }
                    if envelope.target.is_some() {
                        break;
                    }
                }
                Choice::Nobody { code: Code::PayloadInvalid, reason, faults, .. } => return Err(payload_error(reason, faults)),
                // they are away for now: nothing is kept, and the caller may come again
                Choice::Nobody { code: Code::AgentUnavailable, reason, .. } if turned_away.is_none() => {
                    return Err(Error { retry_after: Some(AWAY), ..Error::new(Code::AgentUnavailable, reason) });
                }
                Choice::Nobody { code, reason, decision, .. } if turned_away.is_none() => {
                    return Ok(Goes::Nowhere { code, reason, decision });
                }
                Choice::Nobody { .. } => break,
            }
        }
        let (code, retry_after) = turned_away.unwrap_or((Code::AgentBusy, Duration::from_secs(1)));
        Err(Error { retry_after: Some(retry_after), ..Error::new(code, "the agent takes no more work now") })
    }

    /// Hands a message to the engine and waits until it is durable.
    async fn take(&self, envelope: Envelope, goes: Goes) -> Result<Submitted, Error> {
        let told = self.when_durable(envelope.reach_id, 1);
        let (taken, decision, slow_down) = match goes {
            Goes::To { target, slow_down } => {
                (self.with(|engine, now| engine.submit(now, envelope, *target).ok().and_then(|id| engine.message(id))), None, slow_down)
            }
            Goes::Nowhere { code, reason, decision } => {
                let decision_id = decision.as_ref().map(|d| d.decision_id.clone()).unwrap_or_default();
                let unrouted = |now, engine: &mut crate::dispatch::engine::Engine| {
                    engine.submit_unrouted(now, envelope, code, &reason, &decision_id).ok().and_then(|id| engine.message(id))
                };
                (self.with(|engine, now| unrouted(now, engine)), decision, None)
            }
        };
        let message = taken.ok_or_else(|| Error::internal("a fresh message was refused"))?;
        match told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped")))? {
            Wrote::Stored => Ok(Submitted { message, existing: false, decision, slow_down }),
            Wrote::Existing(message) => {
                let message = self.newest(*message).await?;
                Ok(Submitted { message, existing: true, decision: None, slow_down: None })
            }
            Wrote::Conflict(_) => {
                Err(Error::new(Code::Conflict, "this key was used for another request; choose another key, or send the same request"))
            }
            Wrote::Quota => Err(Error::overloaded("too many keys of this caller are remembered", Duration::from_secs(60))),
            Wrote::Moved => Err(Error::internal("the id was taken")),
        }
    }

    /// The message that this one repeats, if any: a repetition is answered even when the agent takes no more work.
    async fn known(&self, envelope: &Envelope) -> Result<Option<Message>, Error> {
        for scope in [dedup::key_scope(envelope), dedup::id_scope(envelope)].into_iter().flatten() {
            if let Some(message) = self.inner.store.find(scope).await? {
                let same = dedup::digest(&message.envelope) == dedup::digest(envelope);
                return if same {
                    Ok(Some(self.newest(message).await?))
                } else {
                    Err(Error::new(Code::Conflict, "this key was used for another request"))
                };
            }
        }
        Ok(None)
    }
}

fn refused_request(faults: Vec<Fault>) -> Error {
    let large = faults.iter().any(|f| f.pointer == "/payload" && f.hint.contains("data_ref"));
    let e = Error::invalid(faults);
    if large { Error { code: Code::PayloadTooLarge, ..e } } else { e }
}

fn payload_error(reason: String, faults: Vec<Fault>) -> Error {
    let e = Error::invalid(faults);
    Error { code: Code::PayloadInvalid, message: if e.faults.is_empty() { reason } else { e.message.clone() }, ..e }
}

fn left(envelope: &Envelope, now_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(envelope.expires_ms() - now_ms).unwrap_or(0))
}
