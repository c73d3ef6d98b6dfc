//! Everything about messages that are there: following, waiting, showing, calling off; receipts of agents and their sessions.
//!
//! Invariant: a message that a principal may not see does not exist for it: the same `not_found`, whatever is asked. Not here: taking in (`submit`).

use super::{Dispatcher, Told};
use crate::dispatch::engine::{NoReceipt, Receipt};
use crate::dispatch::port::{Filter, Page, Target};
use crate::dispatch::state::Refused;
use crate::error::{Code, Error};
use crate::types::AgentKey;
use crate::types::envelope::{Mode, ReachId};
use crate::types::message::{Entry, Message, State};
use crate::types::principal::{Grant, Principal};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};

impl Dispatcher {
    /// Waits until log position `seq` of a message is durable. Registered before the engine is asked, so that no commit is missed.
    pub(super) fn when_durable(&self, id: ReachId, seq: u32) -> oneshot::Receiver<Told> {
        let (tell, told) = oneshot::channel();
        self.inner.durable.lock().entry(id).or_default().push((seq, tell));
        told
    }

    /// Follows a message: entries from now on, with a flag on the last one. Ask for the log after this, so that nothing is missed.
    pub fn watch(&self, id: ReachId) -> broadcast::Receiver<(Entry, bool)> {
        let mut watchers = self.inner.watchers.lock();
        watchers.entry(id).or_insert_with(|| broadcast::channel(256).0).subscribe()
    }

    /// Waits until a message is over, at most `within`; answers it as it is then. Out of time is no fault: the message goes on.
    pub async fn wait(&self, id: ReachId, within: Duration) -> Result<Message, Error> {
        let (tell, told) = oneshot::channel();
        // registered before it is looked for: a message that is open now will tell
        self.inner.finals.lock().entry(id).or_default().push(tell);
        let open = self.inner.engine.lock().message(id);
        let ended = match &open {
            Some(_) => tokio::time::timeout(within, told).await.ok().and_then(Result::ok),
            None => {
                drop(told);
                None
            }
        };
        if let (Some(open), Some(head)) = (open, ended) {
            return Ok(Message { envelope: open.envelope, head });
        }
        {
            let mut finals = self.inner.finals.lock();
            if let Some(list) = finals.get_mut(&id) {
                list.retain(|t| !t.is_closed());
                if list.is_empty() {
                    finals.remove(&id);
                }
            }
        }
        self.stored(id).await
    }

    /// A message by its reach id, whoever asks.
    pub async fn stored(&self, id: ReachId) -> Result<Message, Error> {
        self.inner.store.get(id).await?.ok_or_else(|| Error::not_found("message"))
    }

    /// A message that `principal` may see, by reach id or by its own message id.
    pub async fn get(&self, principal: &Principal, id: &str) -> Result<Message, Error> {
        let by_reach = match id.parse::<ReachId>() {
            Ok(id) => self.inner.store.get(id).await?,
            Err(_) => None,
        };
        let found = match by_reach {
            Some(message) => Some(message),
            None => self.inner.store.find_id(owner(principal), Arc::from(id)).await?,
        };
        found.filter(|m| may_see(principal, m)).ok_or_else(|| Error::not_found("message"))
    }

    /// The parts of a broadcast that `principal` sent or may see, in the order they were sent; none where there is no such broadcast.
    pub async fn parts(&self, principal: &Principal, id: &str) -> Result<Vec<Message>, Error> {
        let (mut parts, mut after) = (Vec::new(), None);
        loop {
            let page = self.list(principal, Filter { parent: Some(Arc::from(id)), after, limit: 1_000, ..Filter::default() }).await?;
            parts.extend(page.messages.into_iter().filter(|m| m.envelope.mode == Mode::Broadcast));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // an id of somebody else may be the same: one sender's it is, the newest's
        if let Some(owner) = parts.first().map(|m| m.envelope.owner()) {
            parts.retain(|m| m.envelope.owner() == owner);
        }
        parts.reverse();
        Ok(parts)
    }

    /// The whole log of a message.
    pub async fn log(&self, id: ReachId) -> Result<Vec<Entry>, Error> {
        Ok(self.inner.store.log(id).await?)
    }

    /// Messages that `principal` may see.
    pub async fn list(&self, principal: &Principal, mut filter: Filter) -> Result<Page, Error> {
        if let Grant::Only(spaces) = &principal.namespaces {
            filter.owner = Some(owner(principal));
            filter.namespaces = Some(spaces.iter().filter_map(|s| crate::types::Namespace::new(s).ok()).collect());
        }
        Ok(self.inner.store.list(filter).await?)
    }

    /// Calls a message off; answers it as it is then. A message that is over stays as it is.
    pub async fn cancel(&self, principal: &Principal, id: &str, reason: &str) -> Result<Message, Error> {
        let message = self.get(principal, id).await?;
        if message.envelope.owner() != owner(principal) && principal.namespaces != Grant::All {
            return Err(Error::new(Code::Forbidden, "only its sender may call a message off"));
        }
        let id = message.id();
        match self.with(|engine, now| engine.cancel(now, id, reason).map(|seq| self.when_durable(id, seq))) {
            Ok(told) => {
                told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped")))?;
            }
            Err(NoReceipt::Unknown | NoReceipt::Refused(_) | NoReceipt::NotYours) => {}
        }
        self.stored(id).await
    }

    /// A receipt of an agent's owner; answered with the state when it is durable. It reaches the engine when this is called, not when it is awaited, so
    /// that receipts keep their order. A message of somebody else's agent does not exist. A repeated receipt changes nothing and is no fault.
    pub fn receipt_of(
        &self,
        who: &Principal,
        session: Option<&AgentKey>,
        id: ReachId,
        delivery: u32,
        receipt: Receipt,
    ) -> impl Future<Output = Result<State, Error>> + Send + use<> {
        let this = self.clone();
        let who = who.clone();
        let done = matches!(receipt, Receipt::Acked(_));
        let session = session.cloned();
        let agent = self.inner.engine.lock().message(id).and_then(|m| m.head.agent);
        let agent = agent.filter(|a| who.owns(&a.namespace) && session.as_ref().is_none_or(|own| own == a));
        let begun = agent.map(|agent| self.begin_receipt(&agent, id, delivery, receipt));
        async move {
            match begun {
                Some(Ok((told, state))) => {
                    told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped")))?;
                    Ok(state)
                }
                Some(Err(NoReceipt::Refused(Refused::Already))) => Ok(this.stored(id).await?.head.state),
                Some(Err(NoReceipt::Refused(why))) => Err(Error::new(Code::Conflict, refusal_words(why))),
                Some(Err(NoReceipt::Unknown | NoReceipt::NotYours)) | None => {
                    // not open: over, or never there
                    let m = this.stored(id).await?;
                    if !m.head.agent.as_ref().is_some_and(|a| who.owns(&a.namespace) && session.as_ref().is_none_or(|own| own == a)) {
                        return Err(Error::not_found("message"));
                    }
                    let repeated = done && m.head.state == State::Done && m.head.delivery == delivery;
                    if repeated { Ok(State::Done) } else { Err(Error::new(Code::Conflict, refusal_words(Refused::Terminal(m.head.state)))) }
                }
            }
        }
    }

    fn begin_receipt(
        &self,
        agent: &AgentKey,
        id: ReachId,
        delivery: u32,
        receipt: Receipt,
    ) -> Result<(oneshot::Receiver<Told>, State), NoReceipt> {
        let capability = self.inner.engine.lock().message(id).and_then(|m| m.head.capability).unwrap_or_default();
        let receipt = self.checked(agent, &capability, receipt);
        self.with(|engine, now| {
            let seq = engine.receipt(now, id, Some(agent), delivery, receipt)?;
            let state = engine.message(id).map_or(State::Done, |m| m.head.state);
            Ok((self.when_durable(id, seq), state))
        })
    }

    /// The message under this message id that is out to an agent of the principal's; nothing where there are several (of different senders).
    pub fn out_under(&self, who: &Principal, message_id: &str) -> Option<ReachId> {
        let all = self.inner.engine.lock().out_under(message_id);
        let mut own = all.into_iter().filter(|(_, agent)| who.owns(&agent.namespace)).map(|(id, _)| id);
        own.next().filter(|_| own.next().is_none())
    }

    /// A receipt of an agent; answered when it is durable.
    pub async fn receipt(&self, agent: &AgentKey, id: ReachId, delivery: u32, receipt: Receipt) -> Result<(), Error> {
        match self.begin_receipt(agent, id, delivery, receipt) {
            Ok((told, _)) => told.await.unwrap_or_else(|_| Err(Error::internal("the dispatcher stopped"))).map(|_| ()),
            Err(NoReceipt::Refused(Refused::Already)) => Ok(()),
            Err(NoReceipt::Unknown | NoReceipt::NotYours) => Err(Error::not_found("message")),
            Err(NoReceipt::Refused(why)) => Err(Error::new(Code::Conflict, refusal_words(why))),
        }
    }

    /// What is known about an agent, for its session.
    pub fn target_of(&self, agent: &AgentKey) -> Option<Target> {
        self.inner.next.agent(agent)
    }

    /// Nobody may be following a message any more.
    pub fn unwatch(&self, id: ReachId) {
        let mut watchers = self.inner.watchers.lock();
        if watchers.get(&id).is_some_and(|w| w.receiver_count() == 0) {
            watchers.remove(&id);
        }
    }

    /// An agent started anew: slow start.
    pub fn agent_started(&self, target: &Target) {
        self.with(|engine, now| engine.agent_started(now, target));
    }
}

fn owner(principal: &Principal) -> Arc<str> {
    crate::types::envelope::owner_of(principal)
}

/// The sender, who owns the agent's namespace, and who sees everything.
fn may_see(principal: &Principal, m: &Message) -> bool {
    principal.namespaces == Grant::All
        || m.envelope.owner() == owner(principal)
        || m.head.agent.as_ref().is_some_and(|a| principal.owns(&a.namespace))
}

fn refusal_words(why: Refused) -> String {
    match why {
        Refused::Terminal(state) => format!("the message is over: {}", state.as_str()),
        Refused::Stale { named: 0, running } => format!("a receipt names its delivery: delivery {running} is running"),
        Refused::Stale { named, running } if named > running => format!("there was no delivery {named} yet; {running} is running"),
        Refused::Stale { named, running } => format!("delivery {named} is over; {running} is running"),
        Refused::NotOut(state) => format!("the delivery is over; the message is {}", state.as_str()),
        Refused::Already => "this receipt came before".into(),
        Refused::Order(state) => format!("not in this order; the message is {}", state.as_str()),
    }
}
