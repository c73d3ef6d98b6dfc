//! Start: fills catalog and indexes from the store, without embedding anything that is known.
//!
//! Capabilities whose vectors are not in the store (another model was chosen) are indexed by their words at once and get their vectors in
//! chunks afterwards, while the service answers; `View::pending` says how many are left.

use super::Ingest;
use super::vectors;
use crate::catalog::{CapEntry, Delta};
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::types::AgentKey;
use std::collections::HashMap;
use std::sync::Arc;

/// Capabilities embedded between two publications of a fill.
const FILL: usize = 64;

/// What a start found.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Agents.
    pub agents: usize,
    /// Capabilities.
    pub capabilities: usize,
    /// Capabilities whose vectors must be computed.
    pub pending: usize,
    /// Agents whose stored manifest is damaged, and why.
    pub damaged: Vec<(AgentKey, String)>,
}

impl Ingest {
    /// Loads the registry and every known vector, and publishes.
    pub async fn load(&self) -> Result<Loaded, Error> {
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || store.load_registry()).await.map_err(Error::internal)??;
        let mut engine = self.engine.lock().await;
        let now = self.clock.now_ms();
        let mut all = Delta::default();
        for registered in &found.agents {
            let delta = engine.catalog.register(registered, &self.schemas);
            self.live.lock().register(&registered.manifest, registered.draining, now);
            all.added.extend(delta.added);
        }
        // vectors that the store has, by arm; a capability counts as known when all its texts are
        let models = engine.models.clone();
        let mut by_arm = Vec::new();
        let mut unknown: HashMap<u32, Arc<CapEntry>> = HashMap::new();
        for (_, info) in models.arms() {
            let texts: Vec<Arc<str>> = all.added.iter().flat_map(|cap| super::engine::pieces_of(cap, info)).map(|p| p.text).collect();
            let (store, fingerprint, dim) = (self.store.clone(), info.fingerprint.clone(), info.dim);
            let known =
                tokio::task::spawn_blocking(move || vectors::known(&store, &fingerprint, dim, &texts)).await.map_err(Error::internal)??;
            if !known.missing.is_empty() {
                for cap in &all.added {
                    if super::engine::pieces_of(cap, info).iter().any(|p| !known.found.contains_key(&p.text)) {
                        unknown.insert(cap.slot, cap.clone());
                    }
                }
            }
            by_arm.push(known.found);
        }
        let (pending, ready): (Vec<_>, Vec<_>) = all.added.into_iter().partition(|cap| unknown.contains_key(&cap.slot));
        let loaded = Loaded {
            agents: found.agents.len(),
            capabilities: pending.len() + ready.len(),
            pending: pending.len(),
            damaged: found.damaged,
        };
        engine.apply(&Delta { added: ready, ..Delta::default() }, Some(&by_arm));
        engine.apply(&Delta { added: pending, ..Delta::default() }, None);
        engine.settle();
        engine.publish();
        drop(engine);
        self.refresh_live();
        self.learning.ring();
        Ok(loaded)
    }

    /// Embeds one chunk of what is pending and publishes it. Returns how many capabilities are left; call it until 0.
    pub async fn fill(&self) -> Result<usize, Error> {
        let (models, caps): (_, Vec<Arc<CapEntry>>) = {
            let engine = self.engine.lock().await;
            let caps = engine.pending.iter().take(FILL).filter_map(|slot| engine.catalog.capability(*slot).cloned()).collect();
            (engine.models.clone(), caps)
        };
        if caps.is_empty() {
            let mut engine = self.engine.lock().await;
            engine.pending.clear();
            engine.publish();
            return Ok(0);
        }
        let (by_arm, _) = self.vectors_of_caps(&models, &caps, WorkClass::Ingest).await?;
        let mut engine = self.engine.lock().await;
        if !Arc::ptr_eq(&models, &engine.models) {
            // other models meanwhile: these vectors are of no use
            return Ok(engine.pending.len());
        }
        let slots: Vec<u32> = caps.iter().map(|c| c.slot).collect();
        engine.fill(&slots, &by_arm);
        engine.settle();
        engine.publish();
        Ok(engine.pending.len())
    }
}
