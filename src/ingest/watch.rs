//! Watching the registry: what is there, then each change. A watcher that falls behind is told to list again; it never blocks the writer.

use super::Ingest;
use crate::clock::Clock;
use crate::live::Reach;
use crate::types::request::RegistryEvent;
use crate::types::{AgentKey, Principal};
use crate::view::Views;
use futures::Stream;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Name of a change of reach.
pub(super) fn kind_of(reach: Reach) -> &'static str {
    match reach {
        Reach::Live | Reach::Static => "recovered",
        Reach::Expired => "expired",
        Reach::Unreachable => "unreachable",
    }
}

struct Watch {
    changes: broadcast::Receiver<RegistryEvent>,
    views: Arc<Views>,
    clock: Arc<dyn Clock>,
    who: Principal,
    /// Agents this watcher was told of.
    known: BTreeSet<AgentKey>,
    first: VecDeque<RegistryEvent>,
}

impl Watch {
    /// What this watcher is told of a change; nothing when it may not see the agent and never saw it.
    fn tell(&mut self, event: RegistryEvent) -> Option<RegistryEvent> {
        let Some(agent) = event.agent.clone() else { return Some(event) };
        let view = self.views.load();
        let visible = view.catalog.agent(&agent).is_some_and(|r| self.who.sees(&agent.namespace, &r.entry.manifest.visible_to));
        if visible {
            self.known.insert(agent);
            return Some(event);
        }
        // gone, or no longer granted: the same to those who saw it
        self.known.remove(&agent).then_some(RegistryEvent { kind: "deregistered", ..event })
    }

    async fn next(mut self) -> Option<(RegistryEvent, Self)> {
        if let Some(event) = self.first.pop_front() {
            return Some((event, self));
        }
        let shown = |w: &Self, event: RegistryEvent| {
            let generation = Ingest::shown_generation(&w.who, event.generation, w.clock.now_ms());
            RegistryEvent { generation, ..event }
        };
        loop {
            match self.changes.recv().await {
                Ok(event) => {
                    if let Some(event) = self.tell(event) {
                        return Some((shown(&self, event), self));
                    }
                }
                Err(RecvError::Lagged(_)) => {
                    let generation = self.views.load().catalog.generation();
                    return Some((shown(&self, RegistryEvent { generation, kind: "resync", agent: None }), self));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Ingest {
    /// The agents that `who` sees, then what happens to them.
    pub fn watch(&self, who: &Principal) -> impl Stream<Item = RegistryEvent> + Send + use<> {
        // subscribed before the list is taken: a change in between is told twice rather than never
        let changes = self.events.subscribe();
        let view = self.views.load();
        let first: VecDeque<RegistryEvent> = view
            .catalog
            .page(who, None)
            .map(|record| {
                let generation = Self::shown_generation(who, record.entry.generation, record.entry.changed_ms);
                RegistryEvent { generation, kind: "present", agent: Some(record.entry.key.clone()) }
            })
            .collect();
        let known = first.iter().filter_map(|e| e.agent.clone()).collect();
        let watch = Watch { changes, views: self.views.clone(), clock: self.clock.clone(), who: who.clone(), known, first };
        futures::stream::unfold(watch, Watch::next)
    }
}
