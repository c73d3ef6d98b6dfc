//! Sessions of pulling agents: one agent may have several (as many processes as it likes); each gets what it asked for.
//!
//! Invariants: a session is handed no more messages than it asked for; what a session that ends had asked for is asked for no longer, what it
//! already has keeps its lease. Not here: whose session it may be (the doors), leases (`engine`).

use super::{Dispatcher, Pulled};
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::port::Target;
use crate::tasks::Stage;
use crate::types::AgentKey;
use crate::types::message::Cause;
use std::sync::Arc;
use tokio::sync::mpsc;

/// One open session, as the service sees it.
pub(super) struct Open {
    id: u64,
    give: mpsc::UnboundedSender<Pulled>,
    wants: u32,
}

/// The session of an agent that asks for work. Ends when it is dropped.
pub struct Session {
    asker: Asker,
    take: mpsc::UnboundedReceiver<Pulled>,
}

/// Asks for more in a session. Cheap to clone.
#[derive(Clone)]
pub struct Asker {
    dispatcher: Dispatcher,
    target: Arc<Target>,
    id: u64,
}

impl Asker {
    /// Asks for up to `n` messages more.
    pub fn demand(&self, n: u32) {
        let d = &self.dispatcher;
        {
            let mut pulls = d.inner.pulls.lock();
            let Some(open) = pulls.get_mut(&self.target.agent).and_then(|all| all.iter_mut().find(|o| o.id == self.id)) else { return };
            open.wants = open.wants.saturating_add(n);
        }
        d.with(|engine, now| engine.demand(now, &self.target, n));
    }
}

impl Session {
    /// Whose it is.
    pub fn agent(&self) -> &AgentKey {
        &self.asker.target.agent
    }

    /// The next thing the agent is told; `None` when the service has ended.
    pub async fn recv(&mut self) -> Option<Pulled> {
        self.take.recv().await
    }

    /// Asks for up to `n` messages more.
    pub fn demand(&self, n: u32) {
        self.asker.demand(n);
    }

    /// The part that asks, for another task.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (d, agent) = (&self.asker.dispatcher, &self.asker.target.agent);
        let mut unused = 0;
        {
            let mut pulls = d.inner.pulls.lock();
            if let Some(all) = pulls.get_mut(agent) {
                unused = all.iter().filter(|o| o.id == self.asker.id).map(|o| o.wants).sum();
                all.retain(|o| o.id != self.asker.id);
                if all.is_empty() {
                    pulls.remove(agent);
                }
            }
        }
        d.inner.engine.lock().undemand(agent, unused);
        // what was handed over but never read goes to somebody else at once
        self.take.close();
        while let Ok(told) = self.take.try_recv() {
            if let Pulled::Work(delivery) = told {
                d.unsent(&delivery, "the agent went away");
            }
        }
    }
}

impl Dispatcher {
    /// Opens a session of a pulling agent.
    pub fn work(&self, target: &Target) -> Session {
        let (give, take) = mpsc::unbounded_channel();
        let id = {
            let mut count = self.inner.sessions.lock();
            *count += 1;
            *count
        };
        self.inner.pulls.lock().entry(target.agent.clone()).or_default().push(Open { id, give, wants: 0 });
        Session { asker: Asker { dispatcher: self.clone(), target: Arc::new(target.clone()), id }, take }
    }

    /// Open sessions of an agent.
    pub fn sessions_of(&self, agent: &AgentKey) -> usize {
        self.inner.pulls.lock().get(agent).map_or(0, Vec::len)
    }

    /// Hands a delivery to the session that waits for most.
    pub(super) fn hand_over(&self, delivery: Box<Delivery>) {
        let refused = {
            let mut pulls = self.inner.pulls.lock();
            let waiting =
                pulls.get_mut(&delivery.target.agent).and_then(|all| all.iter_mut().filter(|o| o.wants > 0).max_by_key(|o| o.wants));
            match waiting {
                Some(open) => {
                    open.wants -= 1;
                    match open.give.send(Pulled::Work(delivery)) {
                        Ok(()) => None,
                        Err(mpsc::error::SendError(Pulled::Work(delivery))) => Some(delivery),
                        Err(mpsc::error::SendError(Pulled::Cancel { .. })) => None,
                    }
                }
                None => Some(delivery),
            }
        };
        if let Some(delivery) = refused {
            self.unsent(&delivery, "the agent went away");
        }
    }

    /// Tells every session of an agent to stop a delivery.
    pub(super) fn tell_cancel(&self, agent: &AgentKey, told: &Pulled) {
        if let Some(all) = self.inner.pulls.lock().get(agent) {
            // a session that has just ended needs no telling
            all.iter().for_each(|open| drop(open.give.send(told.clone())));
        }
    }

    /// A delivery that reached nobody: no attempt of the agent's, so it is given back as "no connection".
    pub(super) fn unsent(&self, delivery: &Delivery, why: &'static str) {
        let (this, id, number, agent) = (self.clone(), delivery.id, delivery.delivery, delivery.target.agent.clone());
        self.inner.tasks.spawn(Stage::Work, "dispatch-unsent", async move {
            let gone = Receipt::Nacked { cause: Cause::Connect, reason: Arc::from(why), retry_after: None };
            this.with(|engine, now| engine.receipt(now, id, Some(&agent), number, gone).ok());
        });
    }
}
