//! The catalog: every registered agent and capability, compiled, in a persistent map that is cheap to copy.
//!
//! In: registrations and deregistrations (`store`). Out: look-ups by slot and by agent, visibility classes, and for each change the [`Delta`]
//! that the indexes need. Invariants: slots and classes are never reused while the process lives; a capability that a new version leaves as it
//! was keeps its slot, so nothing is indexed twice; a clone never changes. Cost of a change: the agent's capabilities, not the fleet.
//! Not here: embedding and indexing (`ingest`), who is alive (`live`).

mod classes;
mod entry;
pub mod lint;
pub mod schema;

pub use classes::Classes;
pub use entry::{AgentEntry, CapEntry};

use crate::store::Registered;
use crate::types::{AgentKey, Fault, Manifest, Principal};
use entry::Compiled;
use schema::{CompiledSchema, Schemas};
use std::sync::Arc;

/// One agent with its capabilities.
#[derive(Clone, Debug)]
pub struct AgentRecord {
    /// The agent.
    pub entry: Arc<AgentEntry>,
    /// Slots of its capabilities, in the order of the manifest.
    pub slots: Arc<[u32]>,
}

/// What a change means for the indexes.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Capabilities to be indexed.
    pub added: Vec<Arc<CapEntry>>,
    /// Slots to be taken out.
    pub removed: Vec<u32>,
    /// Capabilities whose agent changed but which are indexed as they are.
    pub kept: Vec<u32>,
}

/// The catalog. Clone it to have a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    agents: imbl::OrdMap<AgentKey, AgentRecord>,
    /// By slot; empty where it was taken out.
    capabilities: imbl::Vector<Option<Arc<CapEntry>>>,
    classes: Classes,
    live: usize,
    generation: u64,
}

impl Catalog {
    /// Registers or replaces an agent.
    pub fn register(&mut self, registered: &Registered, schemas: &Schemas) -> Delta {
        let class = self.classes.intern(&registered.manifest);
        let entry = Arc::new(AgentEntry::new(registered, class));
        let before = self.agents.get(&entry.key).cloned();
        let mut old: Vec<Arc<CapEntry>> = before.iter().flat_map(|r| r.slots.iter()).filter_map(|s| self.capability(*s).cloned()).collect();
        let mut delta = Delta::default();
        let mut slots = Vec::with_capacity(entry.manifest.capabilities.len());
        for (index, capability) in entry.manifest.capabilities.iter().enumerate() {
            // the same capability in the same class keeps its place in the indexes
            let same = old.iter().position(|o| o.class == class && o.capability() == capability);
            let kept = same.map(|at| old.swap_remove(at));
            let (slot, compiled) = match &kept {
                Some(old) => (old.slot, old.compiled.clone()),
                None => (self.next_slot(), Arc::new(Compiled::new(capability, schemas))),
            };
            let capability = Arc::new(CapEntry { slot, class, agent: entry.clone(), index, compiled });
            if kept.is_some() {
                delta.kept.push(slot);
                self.set(slot, Some(capability));
            } else {
                self.capabilities.push_back(Some(capability.clone()));
                self.live += 1;
                delta.added.push(capability);
            }
            slots.push(slot);
        }
        for gone in old {
            self.take(gone.slot, &mut delta);
        }
        self.generation = self.generation.max(entry.generation);
        self.agents.insert(entry.key.clone(), AgentRecord { entry, slots: slots.into() });
        delta
    }

    /// Takes an agent out. `generation` is that of the registry after the change.
    pub fn deregister(&mut self, key: &AgentKey, generation: u64) -> Delta {
        let mut delta = Delta::default();
        if let Some(record) = self.agents.remove(key) {
            for slot in record.slots.iter() {
                self.take(*slot, &mut delta);
            }
        }
        self.generation = self.generation.max(generation);
        delta
    }

    fn next_slot(&self) -> u32 {
        u32::try_from(self.capabilities.len()).unwrap_or(u32::MAX)
    }

    fn set(&mut self, slot: u32, value: Option<Arc<CapEntry>>) {
        if let Some(place) = self.capabilities.get_mut(slot as usize) {
            *place = value;
        }
    }

    fn take(&mut self, slot: u32, delta: &mut Delta) {
        if self.capability(slot).is_some() {
            self.live -= 1;
            self.set(slot, None);
            delta.removed.push(slot);
        }
    }

    /// One agent.
    pub fn agent(&self, key: &AgentKey) -> Option<&AgentRecord> {
        self.agents.get(key)
    }

    /// One capability.
    pub fn capability(&self, slot: u32) -> Option<&Arc<CapEntry>> {
        self.capabilities.get(slot as usize)?.as_ref()
    }

    /// Every agent, ordered by key.
    pub fn agents(&self) -> impl Iterator<Item = &AgentRecord> {
        self.agents.values()
    }

    /// Agents after `after` (from the first when absent), ordered by key, that `principal` sees.
    pub fn page<'c>(&'c self, principal: &'c Principal, after: Option<&AgentKey>) -> impl Iterator<Item = &'c AgentRecord> {
        let from = after.map_or(std::ops::Bound::Unbounded, |key| std::ops::Bound::Excluded(key.clone()));
        self.agents
            .range((from, std::ops::Bound::Unbounded))
            .map(|(_, record)| record)
            .filter(|r| principal.sees(&r.entry.key.namespace, &r.entry.manifest.visible_to))
    }

    /// Every capability, ordered by slot.
    pub fn capabilities(&self) -> impl Iterator<Item = &Arc<CapEntry>> {
        self.capabilities.iter().flatten()
    }

    /// The visibility classes.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Number of agents.
    pub fn agent_count(&self) -> usize {
        self.agents.len()
    }

    /// Number of capabilities.
    pub fn capability_count(&self) -> usize {
        self.live
    }

    /// Generation of the registry that this catalog shows.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Compiles every schema of a manifest once, to refuse what can't be used; pointers lead into the manifest.
pub fn check_schemas(manifest: &Manifest, schemas: &Schemas) -> Result<(), Vec<Fault>> {
    let mut faults = Vec::new();
    for (i, capability) in manifest.capabilities.iter().enumerate() {
        for (key, schema) in [("input_schema", &capability.input_schema), ("output_schema", &capability.output_schema)] {
            let Some(schema) = schema else { continue };
            let found = match schemas.resolve(schema) {
                Ok(resolved) => CompiledSchema::new(&resolved).err().unwrap_or_default(),
                Err(fault) => vec![fault],
            };
            faults.extend(found.into_iter().map(|f| Fault { pointer: format!("/capabilities/{i}/{key}{}", f.pointer), ..f }));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

#[cfg(test)]
mod tests;
