//! Puts the write path together: an empty View, the models' own scales, one index writer a model.
//!
//! In: store, models, policy. Out: the holder of Views and the write path around it, ready to `load`. Serving and evaluation begin the same way.

use super::vectors::vectors;
use super::{ArmWriter, Engine, Ingest, IngestConfig};
use crate::catalog::Catalog;
use crate::catalog::schema::Schemas;
use crate::clock::Clock;
use crate::embed::models::Models;
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::history::{Cooccurrence, Learned};
use crate::index::dense::DenseConfig;
use crate::index::keyword::{LexConfig, LexIndex};
use crate::index::names::NameIndex;
use crate::live::LiveSnapshot;
use crate::store::Store;
use crate::types::lang::Lang;
use crate::types::policy::Policy;
use crate::types::rules::RuleSet;
use crate::view::{Background, POOLS, View, Views, background};
use std::sync::Arc;

/// What the write path is made of.
pub struct Boot {
    /// Durable state.
    pub store: Arc<Store>,
    /// Loaded models.
    pub models: Arc<Models>,
    /// Where schemas come from.
    pub schemas: Schemas,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// What the operator decided.
    pub policy: Policy,
    /// Settings of the dense indexes.
    pub dense: DenseConfig,
    /// Settings of the keyword index.
    pub words: LexConfig,
    /// Settings of the write path.
    pub config: IngestConfig,
}

fn lines(text: &str) -> Vec<Arc<str>> {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).map(Arc::from).collect()
}

/// Vectors of the pools of a model's language; of both languages for a model that speaks both.
pub(super) async fn scale(store: &Arc<Store>, models: &Models, arm: crate::embed::models::ArmId, lang: Lang) -> Result<Background, Error> {
    let pools = match lang {
        Lang::Zh => &POOLS[..1],
        Lang::En => &POOLS[1..],
        Lang::Mixed => &POOLS[..],
    };
    let gather = |of: fn(&crate::view::Pool) -> &'static str| pools.iter().flat_map(|p| lines(of(p))).collect::<Vec<_>>();
    let (requests, descriptions, talk) = (gather(|p| p.requests), gather(|p| p.descriptions), gather(|p| p.talk));
    let all: Vec<Arc<str>> = requests.iter().chain(&descriptions).chain(&talk).cloned().collect();
    let (found, _) = vectors(store, models, arm, &all, WorkClass::Ingest).await?;
    let take = |texts: Vec<Arc<str>>| texts.iter().filter_map(|t| found.get(t).cloned()).collect();
    Ok(background(take(requests), take(descriptions), take(talk)))
}

/// Builds the write path. Embeds the pools the first time a model is used with this store.
pub async fn start(boot: Boot) -> Result<(Arc<Views>, Arc<Ingest>), Error> {
    let rules = RuleSet::new(&boot.policy.rules).map_err(Error::invalid)?;
    let view = View {
        generation: 0,
        catalog: Catalog::default(),
        models: boot.models.clone(),
        arms: Vec::new(),
        words: LexIndex::new(boot.words.clone()).snapshot(),
        names: NameIndex::new().snapshot(),
        live: LiveSnapshot::default(),
        history: Arc::new(Cooccurrence::default()),
        learned: Arc::new(Learned::default()),
        policy: Arc::new(boot.policy),
        rules: Arc::new(rules),
        pending: 0,
    };
    let views = Arc::new(Views::new(view));
    let mut arms = Vec::new();
    let infos: Vec<_> = boot.models.arms().map(|(id, info)| (id, info.clone())).collect();
    for (id, info) in infos {
        let background = scale(&boot.store, &boot.models, id, info.lang).await?;
        arms.push(ArmWriter::new(info, boot.dense.clone(), Arc::new(background)));
    }
    let engine = Engine::new(boot.models, arms, boot.words, views.clone());
    engine.publish();
    let ingest = Ingest::new(boot.store, boot.schemas, boot.clock, views.clone(), engine, boot.dense, boot.config);
    Ok((views, Arc::new(ingest)))
}
