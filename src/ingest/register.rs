//! Registration: one manifest, or many at once with one publication.

use super::engine::{Engine, pieces_of};
use super::vectors::{ByText, vectors};
use super::{Ingest, Quota, lint};
use crate::catalog::{CapEntry, Catalog, Delta, check_schemas};
use crate::embed::models::{ArmId, Models};
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::store::Registration;
use crate::types::fault::Fault;
use crate::types::hash::ContentHash;
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{self, Checked};
use crate::types::request::Registered;
use crate::types::{AgentKey, Grant, Principal};
use crate::view::View;
use futures::StreamExt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::MutexGuard;

/// Writes that wait for the same commit in a batch.
const WRITES: usize = 128;

/// What a batch of registrations did.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Agents that are registered now.
    pub agents: usize,
    /// Of them, those that changed.
    pub changed: usize,
    /// Capabilities that are registered now.
    pub capabilities: usize,
    /// Texts embedded.
    pub embedded: usize,
    /// Manifests that were refused: the agent, and why.
    pub refused: Vec<(AgentKey, Error)>,
    /// Warnings (schemas kept as words, characters taken out …).
    pub warnings: Vec<Fault>,
}

impl Ingest {
    /// Checks, stores, indexes and publishes one manifest. All faults are reported at once; the lint only advises.
    pub async fn register(&self, who: &Principal, document: &Value) -> Result<Registered, Error> {
        let checked = manifest_check::check(document, &self.config.rules).map_err(Error::invalid)?;
        let key = checked.manifest.key();
        Self::may_write(who, &key)?;
        Self::may_grant(who, &checked.manifest)?;
        check_schemas(&checked.manifest, &self.schemas).map_err(Error::invalid)?;
        self.may_be_called(&checked.manifest)?;
        let Checked { manifest, mut warnings } = checked;
        let manifest = Arc::new(manifest);
        // the same content again: nothing to embed, nothing to publish
        let hash = ContentHash::of_manifest(&manifest);
        if let Some(same) = self.views.load().catalog.agent(&key).filter(|a| a.entry.hash == hash && *a.entry.owner == *Self::owner(who)) {
            warnings.extend(self.advice(who, &manifest));
            warnings.extend(self.leads_astray(&manifest).await);
            let generation = Self::shown_generation(who, same.entry.generation, same.entry.changed_ms);
            return Ok(self.receipt(&same.entry.key, generation, &hash, false, &manifest, 0, warnings));
        }
        let before = self.views.load().catalog.agent(&key).map(|a| a.entry.manifest.agent_version.clone());
        if before.is_some_and(|version| !version.is_empty() && version == manifest.agent_version) {
            warnings.push(Fault::new(
                "/agent_version",
                "a new version for new content",
                format!(
                    "it was \"{}\" before with other content, which is now found by its content hash alone: count the version up",
                    manifest.agent_version
                ),
            ));
        }
        let (quota, owner) = (self.quota_of(who), Self::owner(who));
        Self::within_quota(quota, &self.views.load().catalog, owner, &key)?;
        self.pace.take(quota, owner, self.clock.now_ms())?;
        let (mut engine, by_arm, computed) = self.ready_to_index(std::slice::from_ref(&manifest)).await?;
        let embedded = if who.is_operator() { computed } else { self.new_texts(&engine, &manifest) };
        let generation = {
            // again, now that nobody else registers
            Self::within_quota(quota, &engine.catalog, owner, &key)?;
            let now = self.clock.now_ms();
            let (_, registered) = self.store.register(manifest.clone(), Self::owner(who), false, now).await?;
            let delta = engine.catalog.register(&registered, &self.schemas);
            self.live.lock().register(&manifest, registered.draining, now);
            engine.apply(&delta, Some(&by_arm));
            let before = self.views.load();
            engine.publish();
            self.carry_over(&before, &delta.added);
            Self::shown_generation(who, registered.generation, registered.changed_ms)
        };
        drop(engine);
        self.refresh_live_of(&key);
        self.tell("registered", Some(key.clone()));
        warnings.extend(self.advice(who, &manifest));
        warnings.extend(self.leads_astray(&manifest).await);
        Ok(self.receipt(&key, generation, &hash, true, &manifest, embedded, warnings))
    }

    /// Registers many checked manifests and publishes once. A manifest that can't be taken is told and the others go on.
    pub async fn register_many(&self, who: &Principal, manifests: Vec<Manifest>) -> Result<Batch, Error> {
        let mut batch = Batch::default();
        let mut taken: Vec<Arc<Manifest>> = Vec::with_capacity(manifests.len());
        for mut manifest in manifests {
            let key = manifest.key();
            if let Err(e) = Self::may_write(who, &key).and_then(|()| Self::may_grant(who, &manifest)) {
                batch.refused.push((key, e));
                continue;
            }
            if let Err(faults) = check_schemas(&manifest, &self.schemas) {
                if self.config.lenient_schemas {
                    batch.warnings.extend(faults);
                    keep_schemas_as_words(&mut manifest, &self.schemas);
                } else {
                    batch.refused.push((key, Error::invalid(faults)));
                    continue;
                }
            }
            taken.push(Arc::new(manifest));
        }
        let (mut engine, by_arm, embedded) = self.ready_to_index(&taken).await?;
        batch.embedded = embedded;
        let now = self.clock.now_ms();
        let owner = Self::owner(who).to_string();
        let writes = taken.into_iter().map(|manifest| {
            let owner = owner.as_str();
            async move { (manifest.key(), self.store.register(manifest, owner, false, now).await) }
        });
        let stored: Vec<_> = futures::stream::iter(writes).buffered(WRITES).collect().await;
        let mut all = Delta::default();
        for (key, result) in stored {
            match result {
                Ok((what, registered)) => {
                    batch.agents += 1;
                    batch.capabilities += registered.manifest.capabilities.len();
                    batch.changed += usize::from(what != Registration::Unchanged);
                    let known = engine.catalog.agent(&key).is_some_and(|a| a.entry.hash == registered.hash);
                    if known {
                        continue;
                    }
                    let delta = engine.catalog.register(&registered, &self.schemas);
                    self.live.lock().register(&registered.manifest, registered.draining, now);
                    all.added.extend(delta.added);
                    all.removed.extend(delta.removed);
                }
                Err(e) => batch.refused.push((key, e.into())),
            }
        }
        // an agent that stands twice in the batch: only its last version is indexed
        let catalog = engine.catalog.clone();
        all.added.retain(|cap| catalog.capability(cap.slot).is_some());
        engine.apply(&all, Some(&by_arm));
        engine.settle();
        let before = self.views.load();
        engine.publish();
        self.carry_over(&before, &all.added);
        drop(engine);
        self.refresh_live();
        self.learning.ring();
        Ok(batch)
    }

    fn carry_over(&self, before: &View, added: &[Arc<CapEntry>]) {
        self.views.update(|now| View { learned: Arc::new(super::carry::over(before, now, added)), ..now.clone() });
    }

    /// Vectors of `manifests` by the models in use, and the writer's lock. Embedding comes before the lock; when the models were swapped in between, it
    /// is done again with the new ones.
    async fn ready_to_index(&self, manifests: &[Arc<Manifest>]) -> Result<(MutexGuard<'_, Engine>, Vec<ByText>, usize), Error> {
        let mut embedded = 0;
        loop {
            let models = self.models();
            let (by_arm, n) = self.vectors_of(&models, manifests, WorkClass::Ingest).await?;
            embedded += n;
            let engine = self.engine.lock().await;
            if Arc::ptr_eq(&models, &engine.models) {
                return Ok((engine, by_arm, embedded));
            }
        }
    }

    /// Vectors of every text of `manifests`, by arm, and how many were computed.
    pub(crate) async fn vectors_of(
        &self,
        models: &Models,
        manifests: &[Arc<Manifest>],
        class: WorkClass,
    ) -> Result<(Vec<ByText>, usize), Error> {
        let mut by_arm = Vec::new();
        let mut computed = 0;
        let arms: Vec<_> = models.arms().map(|(id, info)| (id, info.clone())).collect();
        for (id, info) in arms {
            let mut wanted = Vec::new();
            for manifest in manifests {
                for capability in &manifest.capabilities {
                    let words = capability.input_schema.as_ref().map(|s| self.words_of(s)).unwrap_or_default();
                    wanted.extend(super::texts::pieces(manifest, capability, &words, info.lang).into_iter().map(|p| p.text));
                }
            }
            let (found, n) = vectors(&self.store, models, id, &wanted, class).await?;
            computed += n;
            by_arm.push(found);
        }
        Ok((by_arm, computed))
    }

    /// Vectors of capabilities that are in the catalog, by arm.
    pub(crate) async fn vectors_of_caps(
        &self,
        models: &Models,
        caps: &[Arc<CapEntry>],
        class: WorkClass,
    ) -> Result<(Vec<ByText>, usize), Error> {
        let mut by_arm = Vec::new();
        let mut computed = 0;
        let arms: Vec<(ArmId, _)> = models.arms().map(|(id, info)| (id, info.clone())).collect();
        for (id, info) in arms {
            let wanted: Vec<Arc<str>> = caps.iter().flat_map(|cap| pieces_of(cap, &info)).map(|p| p.text).collect();
            let (found, n) = vectors(&self.store, models, id, &wanted, class).await?;
            computed += n;
            by_arm.push(found);
        }
        Ok((by_arm, computed))
    }

    /// Texts of `manifest` that its last version did not have. What a tenant is told was embedded: whether somebody else's agent has the same text
    /// (then nothing is computed) is not its business.
    fn new_texts(&self, engine: &Engine, manifest: &Manifest) -> usize {
        let before = engine.catalog.agent(&manifest.key()).map(|a| a.entry.manifest.clone());
        let texts = |of: &Manifest, lang| {
            let mut all = BTreeSet::new();
            for capability in &of.capabilities {
                let words = capability.input_schema.as_ref().map(|s| self.words_of(s)).unwrap_or_default();
                all.extend(super::texts::pieces(of, capability, &words, lang).into_iter().map(|p| p.text));
            }
            all
        };
        let langs = engine.models.arms().map(|(_, info)| info.lang);
        langs
            .map(|lang| {
                let known = before.as_ref().map(|b| texts(b, lang)).unwrap_or_default();
                texts(manifest, lang).difference(&known).count()
            })
            .sum()
    }

    /// Addresses of `manifest` whose names lead, right now, to where nothing may be called: the registration stands, and its owner is warned, for every
    /// call will be refused. Names that lead nowhere yet are not a fault.
    async fn leads_astray(&self, manifest: &Manifest) -> Vec<Fault> {
        let Some(judge) = self.judge.get() else { return Vec::new() };
        let looks = addresses(manifest).map(|(pointer, address)| {
            let address = address.to_string();
            async move { judge.refuses(&address).await.map(|why| (pointer, why)) }
        });
        let found = futures::future::join_all(looks).await;
        let fault = |(pointer, why): (String, &'static str)| {
            let hint = format!(
                "{why}: calls will be refused and the agent counts as blocked_url; name an address that may be called, or open it in [outbound]"
            );
            Fault::new(pointer, "an address that may be called", hint)
        };
        found.into_iter().flatten().map(fault).collect()
    }

    fn words_of(&self, schema: &Arc<Value>) -> String {
        self.schemas.resolve(schema).map(|s| crate::catalog::schema::schema_words(&s)).unwrap_or_default()
    }

    /// Every address of a manifest that is plainly one that may not be called, at once. Names are judged when they are resolved.
    fn may_be_called(&self, manifest: &Manifest) -> Result<(), Error> {
        let faults: Vec<Fault> = addresses(manifest)
            .filter_map(|(pointer, address)| {
                let why = self.config.outbound.check_url(address).err()?;
                Some(Fault::new(pointer, "an address that may be called", format!("{}: {why}", why.as_str())))
            })
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(Error::invalid(faults)) }
    }

    /// The limits of who registers. The local principal has none: it is the operator.
    fn quota_of(&self, who: &Principal) -> Quota {
        match who.namespaces {
            Grant::All => Quota::default(),
            Grant::Only(_) => self.config.quota,
        }
    }

    /// Whether `owner` may register `key` beside what it has.
    fn within_quota(quota: Quota, catalog: &Catalog, owner: &str, key: &AgentKey) -> Result<(), Error> {
        if quota.agents == 0 || catalog.agent(key).is_some() {
            return Ok(());
        }
        quota.admits(owner, catalog.agents().filter(|a| *a.entry.owner == *owner).count())
    }

    fn advice(&self, who: &Principal, manifest: &Manifest) -> Vec<Fault> {
        if self.config.lint { lint::advise(&self.views.load(), who, manifest) } else { Vec::new() }
    }

    #[allow(clippy::too_many_arguments)]
    fn receipt(
        &self,
        key: &AgentKey,
        generation: u64,
        hash: &ContentHash,
        changed: bool,
        manifest: &Manifest,
        embedded: usize,
        lint: Vec<Fault>,
    ) -> Registered {
        Registered {
            agent: key.clone(),
            generation,
            content_hash: hash.to_string(),
            changed,
            capabilities: manifest.capabilities.len(),
            embedded,
            lint,
        }
    }
}

/// Every address of a manifest that would be called, with its place.
fn addresses(manifest: &Manifest) -> impl Iterator<Item = (String, &str)> {
    let endpoints = manifest.endpoints.iter().enumerate().map(|(i, e)| (format!("/endpoints/{i}/address"), e.address.as_str()));
    let health = manifest.health_check.iter().map(|h| ("/health_check/address".to_string(), h.address.as_str()));
    let told = manifest.notification_endpoint.iter().map(|a| ("/notification_endpoint".to_string(), a.as_str()));
    endpoints.chain(health).chain(told).filter(|(_, address)| !address.is_empty())
}

/// Takes out what can't be compiled and keeps its words in the tags' place, so that they still count as evidence.
fn keep_schemas_as_words(manifest: &mut Manifest, schemas: &crate::catalog::schema::Schemas) {
    for capability in &mut manifest.capabilities {
        for schema in [&mut capability.input_schema, &mut capability.output_schema] {
            let usable =
                schema.as_ref().is_some_and(|s| schemas.resolve(s).is_ok_and(|s| crate::catalog::schema::CompiledSchema::new(&s).is_ok()));
            if !usable {
                // an object without types keeps names and descriptions and accepts everything
                *schema = schema.take().map(|s| Arc::new(crate::ingest::texts::untyped(&s, 0)));
            }
        }
    }
}
