//! The snapshot: one immutable value that holds everything a decision reads, swapped whole.
//!
//! Large parts are shared between snapshots (persistent maps, sealed index segments), so that publishing one registration costs a few
//! pointers and the recent delta. A decision takes one `Arc<View>` at its start and never looks anywhere else.
//! Not here: how the parts change (`ingest`), what is made of them (`route`).

mod ceiling;
mod cell;
mod hubs;
mod pools;

pub use ceiling::{Ceilings, Reach};
pub use cell::Views;
pub use hubs::Hubs;
pub use pools::{Background, POOLS, Pool, background};

use crate::catalog::{CapEntry, Catalog};
use crate::embed::ModelInfo;
use crate::embed::models::Models;
use crate::history::{Cooccurrence, Learned};
use crate::index::dense::DenseSnapshot;
use crate::index::keyword::LexSnapshot;
use crate::index::names::NameTable;
use crate::index::{Slots, Visible};
use crate::live::LiveSnapshot;
use crate::types::Principal;
use crate::types::policy::Policy;
use crate::types::rules::RuleSet;
use std::sync::Arc;

/// One model with the vectors of the fleet.
#[derive(Clone)]
pub struct Arm {
    /// The model.
    pub model: ModelInfo,
    /// The vectors.
    pub dense: Arc<DenseSnapshot>,
    /// The model's own scale, from fixed texts.
    pub background: Arc<Background>,
    /// How near each capability stands to requests of all kinds, by slot.
    pub hubs: Hubs,
    /// How near the fleet comes to requests that were not made for it.
    pub ceilings: Ceilings,
    /// Capabilities that have texts for this model's language and none for another's: only they are looked for when the request is in another one.
    pub lone: Slots,
}

/// Everything a decision reads.
#[derive(Clone)]
pub struct View {
    /// Raised by every publication.
    pub generation: u64,
    /// Agents and capabilities.
    pub catalog: Catalog,
    /// The models that texts of queries go to; arm by arm those of `arms`, so that a swap of models changes both at once.
    pub models: Arc<Models>,
    /// One for each loaded model.
    pub arms: Vec<Arm>,
    /// Words of the capabilities.
    pub words: Arc<LexSnapshot>,
    /// Exact names.
    pub names: Arc<NameTable>,
    /// State of the agents.
    pub live: LiveSnapshot,
    /// Who asks for what.
    pub history: Arc<Cooccurrence>,
    /// What requests of a kind turned out to mean.
    pub learned: Arc<Learned>,
    /// What the operator decided.
    pub policy: Arc<Policy>,
    /// The policy's rules, compiled.
    pub rules: Arc<RuleSet>,
    /// Capabilities whose vectors are still being computed.
    pub pending: usize,
}

impl View {
    /// The part of the fleet that `principal` may see.
    pub fn visible(&self, principal: &Principal) -> Visible {
        match self.catalog.classes().visible(principal) {
            None => Visible::all(),
            Some(classes) => Visible::of(classes),
        }
    }

    /// One capability.
    pub fn cap(&self, slot: u32) -> Option<&Arc<CapEntry>> {
        self.catalog.capability(slot)
    }
}
