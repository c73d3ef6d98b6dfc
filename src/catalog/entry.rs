//! Manifests compiled for deciding: what a filter asks of an agent or a capability costs no parsing.
//!
//! Invariants: an entry never changes; a capability that can't be compiled (hours, regions) is closed and says why, never open by mistake.
//! Not here: what the live state says (`live`), vectors and words (`index`).

use super::schema::{SchemaSlot, Schemas, schema_words};
use crate::store::Registered;
use crate::types::hours::OpenHours;
use crate::types::{AgentKey, Capability, ContentHash, Manifest, text};
use globset::{Glob, GlobSet, GlobSetBuilder};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// One registered agent.
#[derive(Debug)]
pub struct AgentEntry {
    /// Its identity.
    pub key: AgentKey,
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// Hash of the manifest's content.
    pub hash: ContentHash,
    /// Generation of the registry at its last change.
    pub generation: u64,
    /// When it was registered first, milliseconds since the epoch.
    pub registered_ms: i64,
    /// When this version came.
    pub changed_ms: i64,
    /// Caller that owns the id.
    pub owner: Arc<str>,
    /// Whether an operator or its owner drains it (a heartbeat may drain it too, see `live`).
    pub draining: bool,
    /// Visibility class.
    pub class: u32,
}

impl AgentEntry {
    pub(super) fn new(registered: &Registered, class: u32) -> Self {
        Self {
            key: registered.manifest.key(),
            manifest: registered.manifest.clone(),
            hash: registered.hash,
            generation: registered.generation,
            registered_ms: registered.registered_ms,
            changed_ms: registered.changed_ms,
            owner: registered.owner.clone(),
            draining: registered.draining,
            class,
        }
    }
}

/// What was made of one capability, shared by the versions of its agent in which it is the same.
#[derive(Debug)]
pub(super) struct Compiled {
    folded: Arc<str>,
    name_id: u64,
    aliases: Vec<Arc<str>>,
    regions: Option<GlobSet>,
    hours: Option<OpenHours>,
    // boxed: most capabilities have none, and a place for one is a hundred bytes
    input: Option<Box<SchemaSlot>>,
    output: Option<Box<SchemaSlot>>,
    broken: Vec<String>,
}

/// One capability of one agent.
#[derive(Clone, Debug)]
pub struct CapEntry {
    /// Number of the document in the indexes; never reused while the process lives.
    pub slot: u32,
    /// Visibility class.
    pub class: u32,
    /// The agent.
    pub agent: Arc<AgentEntry>,
    /// Which of the agent's capabilities.
    pub index: usize,
    pub(super) compiled: Arc<Compiled>,
}

impl CapEntry {
    /// The capability as the manifest has it.
    pub fn capability(&self) -> &Capability {
        // made from this manifest with this index; an empty list of capabilities does not pass the reader
        &self.agent.manifest.capabilities[self.index]
    }

    /// Name of this capability of this agent that survives a restart: `namespace/agent_id#folded_name`, as in [`crate::types::CapKey`].
    pub fn key_text(&self) -> String {
        let mut out = String::new();
        self.write_key(&mut out);
        out
    }

    /// Puts [`CapEntry::key_text`] in the place of what `out` held.
    pub fn write_key(&self, out: &mut String) {
        out.clear();
        self.agent.key.parts().into_iter().for_each(|part| out.push_str(part));
        out.push('#');
        out.push_str(self.folded());
    }

    /// Folded name: entries with the same one are the same capability offered by several agents.
    pub fn folded(&self) -> &Arc<str> {
        &self.compiled.folded
    }

    /// A number that stands for [`CapEntry::folded`]: equal names have equal ones.
    pub fn name_id(&self) -> u64 {
        self.compiled.name_id
    }

    /// Folded aliases.
    pub fn folded_aliases(&self) -> &[Arc<str>] {
        &self.compiled.aliases
    }

    /// Whether a folded name is its name or an alias.
    pub fn is_called(&self, folded: &str) -> bool {
        *self.compiled.folded == *folded || self.compiled.aliases.iter().any(|a| **a == *folded)
    }

    /// Whether it serves `region`; every region when it names none. Case does not count.
    pub fn serves(&self, region: &str) -> bool {
        self.compiled.regions.as_ref().is_none_or(|set| set.is_match(region.to_ascii_lowercase()))
    }

    /// Whether it is open at `at_ms`; always when it has no hours.
    pub fn is_open(&self, at_ms: i64) -> bool {
        self.compiled.broken.is_empty() && self.compiled.hours.as_ref().is_none_or(|h| h.is_open(at_ms))
    }

    /// When it opens next, in words, if it is closed by its hours.
    pub fn next_open(&self, at_ms: i64) -> Option<String> {
        self.compiled.hours.as_ref().and_then(|h| h.next_open(at_ms))
    }

    /// Schema of the payload, if it has one.
    pub fn input(&self) -> Option<&SchemaSlot> {
        self.compiled.input.as_deref()
    }

    /// Schema of the result, if it has one.
    pub fn output(&self) -> Option<&SchemaSlot> {
        self.compiled.output.as_deref()
    }

    /// Its input schema as keyword evidence; empty without one.
    pub fn schema_words(&self) -> String {
        self.compiled.input.as_ref().map(|s| schema_words(s.source())).unwrap_or_default()
    }

    /// What could not be compiled; such a capability is closed.
    pub fn broken(&self) -> &[String] {
        &self.compiled.broken
    }
}

impl Compiled {
    pub(super) fn new(capability: &Capability, schemas: &Schemas) -> Self {
        let mut broken = Vec::new();
        let folded = text::fold_name(&capability.intent);
        let mut aliases: Vec<Arc<str>> = capability.aliases.iter().map(|a| Arc::from(text::fold_name(a))).collect();
        aliases.retain(|a| !a.is_empty() && **a != *folded);
        aliases.dedup();
        let hours = capability.hours.as_ref().and_then(|h| OpenHours::new(h).map_err(|e| broken.push(format!("hours: expected {e}"))).ok());
        let regions = match regions(&capability.regions) {
            Ok(set) => set,
            Err(e) => {
                broken.push(format!("regions: {e}"));
                None
            }
        };
        let mut hasher = DefaultHasher::new();
        folded.hash(&mut hasher);
        Self {
            name_id: hasher.finish(),
            folded: Arc::from(folded),
            aliases,
            regions,
            hours,
            input: capability.input_schema.as_ref().and_then(|s| slot(s, schemas)),
            output: capability.output_schema.as_ref().and_then(|s| slot(s, schemas)),
            broken,
        }
    }
}

/// A schema whose document can't be read says nothing about payloads; registering such a manifest is refused beforehand (`check_schemas`).
fn slot(schema: &Arc<Value>, schemas: &Schemas) -> Option<Box<SchemaSlot>> {
    schemas.resolve(schema).ok().map(|document| Box::new(SchemaSlot::new(document)))
}

fn regions(globs: &[String]) -> Result<Option<GlobSet>, String> {
    if globs.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(Glob::new(&glob.to_ascii_lowercase()).map_err(|e| e.to_string())?);
    }
    set.build().map(Some).map_err(|e| e.to_string())
}
