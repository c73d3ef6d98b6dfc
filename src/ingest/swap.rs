//! Other models beside those in use: filled while the old ones serve, then swapped in one step, and back.
//!
//! In: loaded models. Out: [`Beside`], a second set of dense indexes over the same fleet; a View of it, to compare; the swap.
//! Invariants: the indexes in use serve until the new ones hold every capability; models, vectors and policy change in one publication, so that no
//! decision ever mixes two sets; a registration that comes in between is in both. Vectors are kept in the store by fingerprint: dimensions never meet,
//! and a second preparation embeds nothing.
//! Cost: one embedding a text and model; the swap itself indexes what came since the last catching up. Not here: whether the swap is wise (`app`).

use super::boot::scale;
use super::{ArmWriter, Ingest};
use crate::catalog::{CapEntry, Catalog};
use crate::embed::models::Models;
use crate::embed::worker::WorkClass;
use crate::error::{Code, Error};
use crate::types::policy::Policy;
use crate::view::{Arm, View};
use std::collections::HashSet;
use std::sync::Arc;

/// Capabilities embedded at a time.
const CHUNK: usize = 64;
/// Rounds of catching up before a swap gives up on a registry that changes faster than it can be embedded.
const ROUNDS: usize = 20;

/// A second set of models and their indexes.
pub struct Beside {
    /// The models.
    pub models: Arc<Models>,
    arms: Vec<ArmWriter>,
    built: HashSet<u32>,
}

impl Beside {
    /// Capabilities it holds.
    pub fn len(&self) -> usize {
        self.built.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.built.is_empty()
    }

    fn missing(&self, catalog: &Catalog) -> (Vec<u32>, Vec<Arc<CapEntry>>) {
        let gone = self.built.iter().copied().filter(|s| catalog.capability(*s).is_none()).collect();
        let new = catalog.capabilities().filter(|c| !self.built.contains(&c.slot)).cloned().collect();
        (gone, new)
    }
}

impl Ingest {
    /// Embeds pools and fleet with `models` and indexes them, beside those in use. `tick` is told (done, of all).
    pub async fn beside(&self, models: Arc<Models>, mut tick: impl FnMut(usize, usize)) -> Result<Beside, Error> {
        let mut arms = Vec::new();
        let infos: Vec<_> = models.arms().map(|(id, info)| (id, info.clone())).collect();
        for (id, info) in infos {
            let background = scale(&self.store, &models, id, info.lang).await?;
            arms.push(ArmWriter::new(info, self.dense.clone(), Arc::new(background)));
        }
        let mut beside = Beside { models, arms, built: HashSet::new() };
        self.catch_up(&mut beside, &self.views.load().catalog, &mut tick).await?;
        Ok(beside)
    }

    /// Takes in what came and out what went since; how much that was.
    async fn catch_up(&self, beside: &mut Beside, catalog: &Catalog, tick: &mut impl FnMut(usize, usize)) -> Result<usize, Error> {
        let (gone, new) = beside.missing(catalog);
        for arm in &mut beside.arms {
            arm.apply_caps(&gone, &[], &Default::default(), catalog);
        }
        for slot in &gone {
            beside.built.remove(slot);
        }
        for chunk in new.chunks(CHUNK) {
            let (by_arm, _) = self.vectors_of_caps(&beside.models, chunk, WorkClass::Ingest).await?;
            for (arm, vectors) in beside.arms.iter_mut().zip(&by_arm) {
                arm.apply_caps(&[], chunk, vectors, catalog);
            }
            beside.built.extend(chunk.iter().map(|c| c.slot));
            tick(beside.built.len(), catalog.capability_count());
        }
        for arm in &mut beside.arms {
            arm.settle();
        }
        Ok(gone.len() + new.len())
    }

    /// The current View as it would be with the models beside, under `policy`.
    pub fn view_beside(&self, beside: &Beside, policy: Policy) -> View {
        let arms: Vec<Arm> = beside.arms.iter().map(ArmWriter::arm).collect();
        View { models: beside.models.clone(), arms, pending: 0, policy: Arc::new(policy), ..View::clone(&self.views.load()) }
    }

    /// Serves with the models beside from now on, under `policy`; what served until now is beside afterwards. On an error nothing has changed, and what
    /// was beside is given back.
    pub async fn swap(&self, mut beside: Beside, policy: Policy) -> Result<Beside, (Error, Beside)> {
        for _ in 0..ROUNDS {
            let catalog = self.views.load().catalog.clone();
            if let Err(e) = self.catch_up(&mut beside, &catalog, &mut |_, _| {}).await {
                return Err((e, beside));
            }
            let mut engine = self.engine.lock().await;
            let (gone, new) = beside.missing(&engine.catalog);
            if !new.is_empty() {
                continue;
            }
            for arm in &mut beside.arms {
                arm.apply_caps(&gone, &[], &Default::default(), &engine.catalog);
            }
            let served: HashSet<u32> = engine.catalog.capabilities().map(|c| c.slot).filter(|s| !engine.pending.contains(s)).collect();
            let old = Beside {
                models: std::mem::replace(&mut engine.models, beside.models),
                arms: std::mem::replace(&mut engine.arms, beside.arms),
                built: served,
            };
            engine.pending.clear();
            engine.publish_under(Some(Arc::new(policy)));
            drop(engine);
            self.refresh_live();
            return Ok(old);
        }
        let e = Error::new(Code::Conflict, "agents register faster than the new models can embed them; try again when it is quieter");
        Err((e, beside))
    }
}
