//! The one writer of catalog and indexes: applies changes in order and publishes a View after each.
//!
//! Invariant: what is published is consistent: a capability is in the catalog, the names, the words and (unless pending) every arm at once.
//! Cost of one registration: its own documents and the recent deltas, never the fleet. Not here: checking, embedding, storing.

use crate::catalog::{CapEntry, Catalog, Delta};
use crate::embed::ModelInfo;
use crate::embed::models::Models;
use crate::index::Slots;
use crate::index::dense::{DenseConfig, DenseDoc, DenseIndex, Role};
use crate::index::keyword::{LexConfig, LexDoc, LexIndex};
use crate::index::names::{NameDoc, NameIndex};
use crate::ingest::texts::{self, Piece};
use crate::ingest::upkeep::{Renewed, Upkeep};
use crate::ingest::vectors::ByText;
use crate::types::Lang;
use crate::types::policy::Policy;
use crate::view::{Arm, Background, Ceilings, Hubs, View, Views};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One arm of the writer.
pub struct ArmWriter {
    /// The model.
    pub model: ModelInfo,
    index: DenseIndex,
    background: Arc<Background>,
    hubs: Hubs,
    ceilings: Ceilings,
    lone: Slots,
}

impl ArmWriter {
    /// An empty arm.
    pub fn new(model: ModelInfo, config: DenseConfig, background: Arc<Background>) -> Self {
        let index = DenseIndex::with_anchors(model.dim, config, background.anchors());
        let ceilings = Ceilings::new(background.requests.len());
        Self { index, model, background, hubs: Hubs::default(), ceilings, lone: Slots::default() }
    }

    /// As it stands, for a View.
    pub fn arm(&self) -> Arm {
        Arm {
            model: self.model.clone(),
            dense: self.index.snapshot(),
            background: self.background.clone(),
            hubs: self.hubs.clone(),
            ceilings: self.ceilings.clone(),
            lone: self.lone.clone(),
        }
    }

    /// Takes capabilities in and slots out.
    pub fn apply_caps(&mut self, removed: &[u32], added: &[Arc<CapEntry>], vectors: &ByText, catalog: &Catalog) {
        let docs = added.iter().filter_map(|cap| dense_doc(cap, &self.model, vectors)).collect();
        self.lone.extend(added.iter().filter(|cap| speaks_alone(cap, self.model.lang)).map(|cap| cap.slot));
        self.apply(removed, docs, catalog);
    }

    /// Upkeep that is due.
    pub fn settle(&mut self) {
        self.index.settle();
    }

    fn apply(&mut self, removed: &[u32], added: Vec<DenseDoc>, catalog: &Catalog) {
        for slot in removed {
            self.hubs.remove(*slot);
        }
        for doc in &added {
            let texts: Vec<&[f32]> = doc
                .vectors
                .iter()
                .filter(|(role, _)| matches!(role, Role::Name | Role::Description | Role::Both))
                .map(|(_, v)| &**v)
                .collect();
            self.hubs.set(doc.slot, self.background.hub(&texts));
        }
        let known: Vec<(u32, u32)> = added.iter().map(|doc| (doc.class, doc.slot)).collect();
        self.index.apply(removed, added);
        self.ceil(removed, &known, catalog);
    }

    /// Keeps the ceilings true after a change: without what went, and with what came (class and slot), as the index has it.
    fn ceil(&mut self, removed: &[u32], added: &[(u32, u32)], catalog: &Catalog) {
        let pool = &self.background.strangers;
        let dense = self.index.snapshot();
        let texts = |slot: u32| dense.vectors(slot).filter(|(role, _)| role.is_scanned()).map(|(_, v)| v).collect::<Vec<_>>();
        for slot in removed {
            self.ceilings.remove(*slot, pool, |class| {
                let kept = catalog.capabilities().filter(move |c| class.is_none_or(|class| c.class == class)).map(|c| c.slot);
                kept.map(|slot| (slot, texts(slot)))
            });
        }
        for (class, slot) in added {
            self.ceilings.add(*class, *slot, pool, &texts(*slot));
        }
    }
}

/// Catalog and indexes, and the holder of what was published.
pub struct Engine {
    /// The catalog; its clone goes into each View.
    pub catalog: Catalog,
    /// One writer a model.
    pub arms: Vec<ArmWriter>,
    /// The models of the writers.
    pub models: Arc<Models>,
    words: LexIndex,
    names: NameIndex,
    /// Slots whose vectors are not computed yet.
    pub pending: BTreeSet<u32>,
    views: Arc<Views>,
}

/// Texts of a capability for a model.
pub fn pieces_of(cap: &CapEntry, model: &ModelInfo) -> Vec<Piece> {
    texts::pieces(&cap.agent.manifest, cap.capability(), &cap.schema_words(), model.lang)
}

/// Whether a capability has texts for a model of one language and none for models of the other.
fn speaks_alone(cap: &CapEntry, lang: Lang) -> bool {
    let texts = |lang| !texts::pieces(&cap.agent.manifest, cap.capability(), "", lang).is_empty();
    match lang {
        Lang::Zh => texts(Lang::Zh) && !texts(Lang::En),
        Lang::En => texts(Lang::En) && !texts(Lang::Zh),
        Lang::Mixed => false,
    }
}

fn dense_doc(cap: &CapEntry, model: &ModelInfo, vectors: &ByText) -> Option<DenseDoc> {
    let vectors: Vec<_> = pieces_of(cap, model).into_iter().filter_map(|p| Some((p.role, vectors.get(&p.text)?.clone()))).collect();
    (!vectors.is_empty()).then_some(DenseDoc { slot: cap.slot, class: cap.class, vectors })
}

impl Engine {
    /// An empty engine that publishes into `views`.
    pub fn new(models: Arc<Models>, arms: Vec<ArmWriter>, words: LexConfig, views: Arc<Views>) -> Self {
        Self {
            catalog: Catalog::default(),
            arms,
            models,
            words: LexIndex::new(words),
            names: NameIndex::new(),
            pending: BTreeSet::new(),
            views,
        }
    }

    /// Applies a change of the catalog to every index. `vectors` holds the vectors of the added capabilities, by arm; an arm without them
    /// leaves the capabilities pending.
    pub fn apply(&mut self, delta: &Delta, vectors: Option<&[ByText]>) {
        for slot in &delta.removed {
            self.pending.remove(slot);
        }
        match vectors {
            Some(by_arm) => {
                for (arm, vectors) in self.arms.iter_mut().zip(by_arm) {
                    arm.apply_caps(&delta.removed, &delta.added, vectors, &self.catalog);
                }
            }
            None => {
                self.pending.extend(delta.added.iter().map(|c| c.slot));
                for arm in &mut self.arms {
                    arm.apply(&delta.removed, Vec::new(), &self.catalog);
                }
            }
        }
        let words = delta
            .added
            .iter()
            .map(|cap| LexDoc {
                slot: cap.slot,
                class: cap.class,
                fields: texts::fields(&cap.agent.manifest, cap.capability(), &cap.schema_words()),
            })
            .collect();
        self.words.apply(&delta.removed, words);
        let names = delta
            .added
            .iter()
            .map(|cap| NameDoc {
                slot: cap.slot,
                class: cap.class,
                name: cap.capability().intent.to_string(),
                aliases: cap.capability().aliases.clone(),
            })
            .collect();
        self.names.apply(&delta.removed, names);
    }

    /// Adds the vectors of capabilities that were pending.
    pub fn fill(&mut self, slots: &[u32], by_arm: &[ByText]) {
        let caps: Vec<Arc<CapEntry>> =
            slots.iter().filter(|s| self.pending.contains(s)).filter_map(|s| self.catalog.capability(*s).cloned()).collect();
        for (arm, vectors) in self.arms.iter_mut().zip(by_arm) {
            arm.apply_caps(&[], &caps, vectors, &self.catalog);
        }
        for slot in slots {
            self.pending.remove(slot);
        }
    }

    /// The most useful piece of upkeep of any index, to be run away from the writer. Cheap.
    pub fn plan(&self) -> Option<Upkeep> {
        let words = self.words.plan().map(Upkeep::Words);
        words.or_else(|| self.arms.iter().find_map(|arm| Some(Upkeep::Vectors(arm.model.fingerprint.clone(), arm.index.plan()?))))
    }

    /// Takes in upkeep that was run, and publishes. Whether it still fitted; what came too late is thrown away.
    pub fn install(&mut self, done: Renewed) -> bool {
        let fitted = match done {
            Renewed::Words(done) => self.words.install(*done).is_some(),
            Renewed::Vectors(model, done) => {
                let arm = self.arms.iter_mut().find(|arm| arm.model.fingerprint == model);
                arm.is_some_and(|arm| arm.index.install(done).is_some())
            }
        };
        if fitted {
            self.publish();
        }
        fitted
    }

    /// Runs all upkeep of the indexes (merging, purging, sketches and lists) here and now: for loads in bulk. While serving, `Ingest::upkeep` runs it beside.
    pub fn settle(&mut self) {
        for arm in &mut self.arms {
            arm.settle();
        }
        self.words.settle();
    }

    /// Publishes the current state. Returns the generation of the View.
    pub fn publish(&self) -> u64 {
        self.publish_under(None)
    }

    /// Publishes the current state and, in the same step, another policy.
    pub fn publish_under(&self, policy: Option<Arc<Policy>>) -> u64 {
        let arms: Vec<Arm> = self.arms.iter().map(ArmWriter::arm).collect();
        let (catalog, words, names, pending) = (self.catalog.clone(), self.words.snapshot(), self.names.snapshot(), self.pending.len());
        self.views.update(|old| View {
            catalog: catalog.clone(),
            models: self.models.clone(),
            arms: arms.clone(),
            policy: policy.clone().unwrap_or_else(|| old.policy.clone()),
            words: words.clone(),
            names: names.clone(),
            pending,
            ..old.clone()
        })
    }
}
