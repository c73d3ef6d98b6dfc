//! The registry's other operations: heartbeat, drain, deregister, get, list. What a principal can't see does not exist for it.

use super::Ingest;
use crate::catalog::AgentRecord;
use crate::error::{Code, Error};
use crate::types::hash::ContentHash;
use crate::types::manifest::Manifest;
use crate::types::principal::ADMIN;
use crate::types::request::{AgentPage, AgentState, Heartbeat, ListRequest};
use crate::types::text::fold_name;
use crate::types::{AgentKey, Principal};
use std::sync::Arc;

/// A manifest as a principal may read it: whom else it is shown to, and where its owner is told things, is not the business of who merely uses it.
fn shown(who: &Principal, manifest: &Arc<Manifest>) -> Arc<Manifest> {
    if who.owns(&manifest.namespace) {
        return manifest.clone();
    }
    let mut shown = Manifest::clone(manifest);
    shown.visible_to.retain(|n| **n == *"*" || who.namespaces.has(n));
    shown.notification_endpoint = None;
    shown.health_check = None;
    Arc::new(shown)
}

impl Ingest {
    fn seen(&self, who: &Principal, key: &AgentKey) -> Result<AgentRecord, Error> {
        let view = self.views.load();
        view.catalog
            .agent(key)
            .filter(|a| who.sees(&key.namespace, &a.entry.manifest.visible_to))
            .cloned()
            .ok_or_else(|| Error::not_found("agent"))
    }

    /// The record of an agent that the principal may change; hidden ones don't exist.
    fn owned(&self, who: &Principal, key: &AgentKey) -> Result<AgentRecord, Error> {
        let record = self.seen(who, key)?;
        Self::may_write(who, key)?;
        Ok(record)
    }

    fn state(&self, who: &Principal, record: &AgentRecord) -> AgentState {
        let view = self.views.load();
        let live = view.live.get(&record.entry.key);
        AgentState {
            manifest: shown(who, &record.entry.manifest),
            generation: Self::shown_generation(who, record.entry.generation, record.entry.changed_ms),
            content_hash: record.entry.hash.to_string(),
            registered_at_ms: record.entry.registered_ms,
            status: live.map_or("static", |l| l.status()),
            lease_until_ms: live.and_then(|l| l.lease_until_ms),
            load: live.and_then(|l| l.load).map(f64::from),
            queue_length: live.and_then(|l| l.queue_length),
            in_flight: live.and_then(|l| l.in_flight),
        }
    }

    /// Renews the lease and takes what the agent says of its load. That it takes no new work is its own word, beside the operator's (`drain`): neither
    /// takes back the other.
    pub async fn heartbeat(&self, who: &Principal, key: &AgentKey, beat: Heartbeat) -> Result<AgentState, Error> {
        let record = self.owned(who, key)?;
        let now = self.clock.now_ms();
        let before = self.views.load().live.get(key).map(|l| (l.status(), l.draining, l.lease_until_ms));
        let known = self.live.lock().heartbeat(key, &beat, now).map_err(|fault| Error::invalid(vec![fault]))?;
        if known.is_none() {
            return Err(Error::not_found("agent"));
        }
        // load shows with the next refresh; who comes back, drains, or would run out before the next refresh shows at once
        let soon = record.entry.manifest.ttl.map_or(0, |ttl| i64::try_from(ttl.as_millis() / 4).unwrap_or(0)).min(5_000);
        let snapshot_is_behind = before.is_none_or(|(status, draining, until)| {
            status != "live" || beat.draining.is_some_and(|d| d != draining) || until.is_some_and(|u| u - now <= soon)
        });
        if snapshot_is_behind {
            self.refresh_live_of(key);
        }
        let mut state = self.state(who, &record);
        state.load = beat.load.or(state.load);
        state.queue_length = beat.queue_length.or(state.queue_length);
        state.in_flight = beat.in_flight.or(state.in_flight);
        if let Some(Some(until)) = known {
            state.lease_until_ms = Some(until);
        }
        Ok(state)
    }

    async fn set_draining(&self, key: &AgentKey, draining: bool) -> Result<(), Error> {
        let now = self.clock.now_ms();
        let mut engine = self.engine.lock().await;
        if self.store.set_draining(key, draining, now).await?.is_some() {
            if let Some(registered) = self.store.registered(key)? {
                let delta = engine.catalog.register(&registered, &self.schemas);
                self.live.lock().register(&registered.manifest, draining, now);
                engine.apply(&delta, None);
                engine.publish();
            }
            drop(engine);
            self.tell(if draining { "draining" } else { "resumed" }, Some(key.clone()));
        }
        Ok(())
    }

    /// Takes an agent out of new work, or back into it.
    pub async fn drain(&self, who: &Principal, key: &AgentKey, draining: bool) -> Result<AgentState, Error> {
        let record = self.owned(who, key)?;
        // as it is removed: by its owner, or by an operator
        if *record.entry.owner != *Self::owner(who) && !who.scopes.has(ADMIN) {
            let words =
                format!("the agent {key} belongs to another owner: only that owner, or a principal with the scope `{ADMIN}`, may drain it");
            return Err(Error::new(Code::Conflict, words));
        }
        self.set_draining(key, draining).await?;
        self.refresh_live_of(key);
        let record = self.seen(who, key)?;
        Ok(self.state(who, &record))
    }

    /// Removes an agent. Its id stays with its owner.
    pub async fn deregister(&self, who: &Principal, key: &AgentKey) -> Result<(), Error> {
        self.owned(who, key)?;
        let now = self.clock.now_ms();
        let mut engine = self.engine.lock().await;
        let Some(generation) = self.store.deregister(key, Self::owner(who), false, now).await? else {
            return Err(Error::not_found("agent"));
        };
        let delta = engine.catalog.deregister(key, generation);
        self.live.lock().remove(key);
        engine.apply(&delta, None);
        engine.publish();
        drop(engine);
        self.refresh_live_of(key);
        self.tell("deregistered", Some(key.clone()));
        Ok(())
    }

    /// One agent at its current version, or at an older one by content hash or `agent_version`.
    pub async fn get(&self, who: &Principal, key: &AgentKey, version: Option<&str>) -> Result<AgentState, Error> {
        let record = self.seen(who, key)?;
        let mut state = self.state(who, &record);
        let Some(version) = version.filter(|v| !v.is_empty() && *v != state.content_hash && *v != record.entry.manifest.agent_version)
        else {
            return Ok(state);
        };
        let (store, key, version) = (self.store.clone(), key.clone(), version.to_string());
        let old = tokio::task::spawn_blocking(move || -> Result<_, Error> {
            for known in store.versions(&key)?.into_iter().rev() {
                let by_hash = ContentHash::from_hex(&version).is_some_and(|h| h == known.hash);
                let Some(manifest) = store.manifest_version(&key, &known.hash)? else { continue };
                // an old version is shown by the same rule as the current one
                if by_hash || manifest.agent_version == version {
                    return Ok(Some((manifest, known)));
                }
            }
            Ok(None)
        })
        .await
        .map_err(Error::internal)??;
        let Some((manifest, known)) = old else { return Err(Error::not_found("version of this agent")) };
        state.manifest = shown(who, &manifest);
        state.content_hash = known.hash.to_string();
        state.registered_at_ms = known.first_ms;
        Ok(state)
    }

    /// A page of the agents that the principal sees, ordered by key.
    pub fn list(&self, who: &Principal, which: &ListRequest) -> Result<AgentPage, Error> {
        let limit = which.limit.unwrap_or(100);
        if !(1..=1000).contains(&limit) {
            return Err(Error::invalid_at("/limit", "a number from 1 to 1000", "leave it out for 100"));
        }
        let after = match which.after.as_deref().filter(|a| !a.is_empty()) {
            None => None,
            Some(cursor) => Some(
                crate::types::id::parse_agent(cursor)
                    .map_err(|expected| Error::invalid_at("/after", expected, "send the cursor `next` of the page before"))?,
            ),
        };
        let namespace = which.namespace.as_deref().filter(|n| !n.is_empty());
        if let Some(namespace) = namespace {
            crate::types::Namespace::new(namespace).map_err(|expected| Error::invalid_at("/namespace", expected, "such as \"orders\""))?;
        }
        let capability = which.capability.as_deref().filter(|c| !c.is_empty()).map(fold_name);
        let tag = which.tag.as_deref().filter(|t| !t.is_empty()).map(fold_name);
        let view = self.views.load();
        let mut page = AgentPage { agents: Vec::new(), next: None };
        let fits = |record: &&AgentRecord| {
            let manifest: &Arc<_> = &record.entry.manifest;
            let tags = || manifest.tags.iter().chain(manifest.capabilities.iter().flat_map(|c| &c.tags));
            namespace.is_none_or(|n| manifest.namespace.as_str() == n)
                && tag.as_ref().is_none_or(|t| tags().any(|have| fold_name(have) == *t))
                && capability.as_ref().is_none_or(|c| record.slots.iter().filter_map(|s| view.cap(*s)).any(|cap| cap.is_called(c)))
        };
        for record in view.catalog.page(who, after.as_ref()).filter(fits) {
            if page.agents.len() == limit as usize {
                page.next = page.agents.last().map(|a: &AgentState| a.manifest.key().to_string());
                break;
            }
            page.agents.push(self.state(who, record));
        }
        Ok(page)
    }
}
