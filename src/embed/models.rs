//! The loaded models ("arms"), and the way a text takes to its vector: the arm of its language, the cache of recent vectors, the worker.
//!
//! Invariant: an arm's vectors are only ever compared with vectors of the same fingerprint; with at least one arm loaded, every text has one; without any, nothing is embedded and routing is by names.
//! Cost: loading both small models takes well under a second when they are in the models folder. Not here: vectors kept over a restart (`store`).

use super::bundle::Bundle;
use super::cache::{Cache, default_dir};
use super::catalog::{Catalog, ModelSpec};
use super::fetch::{FetchConfig, Fetcher, Progress};
use super::fp32::Fp32;
use super::int8::Int8;
use super::vectors::{VectorCache, VectorCacheStats};
use super::worker::{WorkClass, Worker, WorkerConfig, WorkerStats};
use super::{Embed, EmbedError, Embedding, ModelInfo};
use crate::types::Lang;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Arithmetic of the encoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 8-bit weights and activations on our kernels: about ten times as fast, cosine to the reference about 0.9997.
    #[default]
    Int8,
    /// The reference, f32 on candle.
    Fp32,
}

/// What to load and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsConfig {
    /// Names in the catalogue, one an arm.
    pub names: Vec<String>,
    /// Models folder.
    pub dir: PathBuf,
    /// Whether and how a missing model is fetched; `None` = never.
    pub fetch: Option<FetchConfig>,
    /// Arithmetic.
    pub precision: Precision,
    /// Threads and queue.
    pub worker: WorkerConfig,
    /// Size of the cache of query vectors in bytes; 0 = off.
    pub vector_cache_bytes: u64,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            names: vec!["bge-small-zh-v1.5".into(), "bge-small-en-v1.5".into()],
            dir: default_dir(),
            fetch: Some(FetchConfig::default()),
            precision: Precision::default(),
            worker: WorkerConfig::default(),
            vector_cache_bytes: 64 << 20,
        }
    }
}

/// Place of an arm among the loaded ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArmId(pub usize);

/// The loaded models.
pub struct Models {
    arms: Vec<Arc<dyn Embed>>,
    specs: Vec<Option<ModelSpec>>,
    worker: Worker,
    vectors: Arc<VectorCache>,
}

/// Counters of the models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelsStats {
    /// The worker's.
    pub worker: WorkerStats,
    /// The cache's.
    pub vectors: VectorCacheStats,
}

impl Models {
    /// Fetches what is missing, loads every arm side by side and starts the worker. Blocks: call it on a thread of its own.
    pub fn load(config: &ModelsConfig, progress: &dyn Progress) -> Result<Self, EmbedError> {
        let catalog = Catalog::shipped();
        let cache = Cache::new(&config.dir);
        let spec = |name: &String| {
            let known = || catalog.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ");
            catalog
                .get(name)
                .cloned()
                .ok_or_else(|| EmbedError::Missing(format!("no model is called `{name}`; the catalogue has {}", known())))
        };
        let specs: Vec<ModelSpec> = config.names.iter().map(spec).collect::<Result<_, _>>()?;
        if let Some(fetch) = &config.fetch {
            let fetcher = Fetcher::new(catalog.clone(), cache.clone(), fetch.clone());
            for spec in &specs {
                fetcher.ensure_present(&spec.name, progress)?;
            }
        }
        let arms = std::thread::scope(|scope| {
            let threads: Vec<_> = specs.iter().map(|spec| scope.spawn(|| load_one(spec, &cache, config.precision))).collect();
            let joined =
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(EmbedError::Failed("loading a model panicked".into()))));
            joined.collect::<Result<Vec<_>, _>>()
        })?;
        let mut models = Self::from_arms(arms, &config.worker, config.vector_cache_bytes)?;
        models.specs = specs.into_iter().map(Some).collect();
        Ok(models)
    }

    /// Models out of encoders that are already there. None at all is a node that routes by names.
    pub fn from_arms(arms: Vec<Arc<dyn Embed>>, worker: &WorkerConfig, vector_cache_bytes: u64) -> Result<Self, EmbedError> {
        let specs = vec![None; arms.len()];
        let vectors = Arc::new(VectorCache::new(vector_cache_bytes));
        Ok(Self { arms, specs, worker: Worker::start(worker, Some(vectors.clone()))?, vectors })
    }

    /// Every arm.
    pub fn arms(&self) -> impl Iterator<Item = (ArmId, &ModelInfo)> {
        self.arms.iter().enumerate().map(|(i, m)| (ArmId(i), m.info()))
    }

    /// What an arm is.
    pub fn info(&self, arm: ArmId) -> Option<&ModelInfo> {
        self.arms.get(arm.0).map(|m| m.info())
    }

    /// The encoder of an arm, for measuring it by itself.
    pub fn encoder(&self, arm: ArmId) -> Option<Arc<dyn Embed>> {
        self.arms.get(arm.0).cloned()
    }

    /// The catalogue's entry of an arm, when it was loaded from the catalogue.
    pub fn spec(&self, arm: ArmId) -> Option<&ModelSpec> {
        self.specs.get(arm.0)?.as_ref()
    }

    /// The arm with this fingerprint.
    pub fn by_fingerprint(&self, fingerprint: &str) -> Option<ArmId> {
        self.arms().find(|(_, info)| &*info.fingerprint == fingerprint).map(|(id, _)| id)
    }

    /// Fingerprints of all arms, in their order.
    pub fn fingerprints(&self) -> Vec<Arc<str>> {
        self.arms().map(|(_, info)| info.fingerprint.clone()).collect()
    }

    /// Whether an arm speaks a language; mixed text is spoken by all.
    pub fn speaks(&self, arm: ArmId, lang: Lang) -> bool {
        self.info(arm).is_some_and(|info| info.lang == lang || info.lang == Lang::Mixed || lang == Lang::Mixed)
    }

    /// The arms that a text in `lang` goes to: those that speak it, all for mixed text, and all when none speaks it (their scores are worth less:
    /// ask [`Models::speaks`]). Empty only without models.
    pub fn for_lang(&self, lang: Lang) -> Vec<ArmId> {
        let all = (0..self.arms.len()).map(ArmId);
        let native: Vec<ArmId> = all.clone().filter(|a| self.speaks(*a, lang)).collect();
        if native.is_empty() { all.collect() } else { native }
    }

    /// Embeds texts with one arm, in order. Texts of queries are looked up and kept in the cache of recent vectors; texts of ingest are looked up only,
    /// so that a large registration does not empty it.
    pub async fn embed(&self, arm: ArmId, texts: &[Arc<str>], class: WorkClass) -> Result<Vec<Embedding>, EmbedError> {
        let model = self.arms.get(arm.0).ok_or_else(|| EmbedError::Failed(format!("there is no arm {}", arm.0)))?;
        let fingerprint = &model.info().fingerprint;
        let mut found: Vec<Option<Embedding>> = texts.iter().map(|t| self.vectors.get(fingerprint, t)).collect();
        let missing: Vec<Arc<str>> = texts.iter().zip(&found).filter(|(_, f)| f.is_none()).map(|(t, _)| t.clone()).collect();
        if !missing.is_empty() {
            let fresh = self.worker.embed(model, missing, class).await?;
            let mut fresh = fresh.into_iter();
            for (text, slot) in texts.iter().zip(&mut found).filter(|(_, f)| f.is_none()) {
                *slot = fresh.next();
                // the worker keeps what it computed for a query; what was in flight for a registration is kept here
                if let (WorkClass::Query, Some(e)) = (class, slot.as_ref())
                    && self.vectors.peek(fingerprint, text).is_none()
                {
                    self.vectors.put(fingerprint, text, e);
                }
            }
        }
        found.into_iter().map(|f| f.ok_or_else(|| EmbedError::Failed("a vector is missing".into()))).collect()
    }

    /// Embeds one text of a query with every arm of its language, side by side.
    pub async fn embed_query(&self, text: &Arc<str>, lang: Lang) -> Result<Vec<(ArmId, Embedding)>, EmbedError> {
        let one = |arm: ArmId| async move {
            let vectors = self.embed(arm, std::slice::from_ref(text), WorkClass::Query).await?;
            vectors.into_iter().next().map(|v| (arm, v)).ok_or_else(|| EmbedError::Failed("a vector is missing".into()))
        };
        futures::future::try_join_all(self.for_lang(lang).into_iter().map(one)).await
    }

    /// Counters.
    pub fn stats(&self) -> ModelsStats {
        ModelsStats { worker: self.worker.stats(), vectors: self.vectors.stats() }
    }

    /// Runs one short text through every arm, so that the first caller doesn't pay for cold memory; tells the time each took in milliseconds.
    /// Blocks.
    pub fn warm_up(&self) -> Result<HashMap<Arc<str>, f64>, EmbedError> {
        use crate::clock::{Clock, SystemClock};
        let clock = SystemClock;
        let mut took = HashMap::new();
        for arm in &self.arms {
            arm.embed(&["warm-up 预热"])?;
            let start = clock.instant();
            arm.embed(&["查一下我的订单 where is my order"])?;
            took.insert(arm.info().name.clone(), clock.instant().duration_since(start).as_secs_f64() * 1e3);
        }
        Ok(took)
    }

    /// Ends the worker; see [`Worker::stop`].
    pub fn stop(&self) {
        self.worker.stop();
    }
}

/// Loads one model of the cache.
pub fn load_one(spec: &ModelSpec, cache: &Cache, precision: Precision) -> Result<Arc<dyn Embed>, EmbedError> {
    match precision {
        Precision::Int8 => Ok(Arc::new(Int8::load(spec, cache)?.prove())),
        Precision::Fp32 => Ok(Arc::new(Fp32::load(Bundle::read(spec, cache)?)?.prove())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::fetch::Quiet;
    use crate::embed::testing::{Fake, fakes};

    fn ids(arms: &[ArmId]) -> Vec<usize> {
        arms.iter().map(|a| a.0).collect()
    }

    #[tokio::test]
    async fn each_text_goes_to_the_arm_of_its_language() {
        let models = fakes();
        assert_eq!(ids(&models.for_lang(Lang::Zh)), [0]);
        assert_eq!(ids(&models.for_lang(Lang::En)), [1]);
        assert_eq!(ids(&models.for_lang(Lang::Mixed)), [0, 1]);
        let both = models.embed_query(&"review 代码".into(), Lang::Mixed).await.unwrap();
        assert_eq!(both.iter().map(|(a, _)| a.0).collect::<Vec<_>>(), [0, 1]);
        let print = models.fingerprints()[1].clone();
        assert_eq!(models.by_fingerprint(&print), Some(ArmId(1)));
        assert!(models.embed(ArmId(7), &[], WorkClass::Query).await.is_err());

        let one: Arc<dyn Embed> = Arc::new(Fake::new("only-zh", Lang::Zh, 8));
        let one = Models::from_arms(vec![one], &WorkerConfig::default(), 0).unwrap();
        assert_eq!(ids(&one.for_lang(Lang::En)), [0], "better than nothing");
        assert!(!one.speaks(ArmId(0), Lang::En));
        let none = Models::from_arms(vec![], &WorkerConfig::default(), 0).unwrap();
        assert!(none.for_lang(Lang::En).is_empty() && none.embed_query(&"x".into(), Lang::En).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_repeated_query_costs_no_inference_and_ingest_does_not_fill_the_cache() {
        let models = fakes();
        let texts: Vec<Arc<str>> = vec!["退款".into(), "退款".into(), "物流".into()];
        let first = models.embed(ArmId(0), &texts, WorkClass::Query).await.unwrap();
        let again = models.embed(ArmId(0), &texts, WorkClass::Query).await.unwrap();
        assert_eq!(first, again);
        assert_eq!(models.stats().worker.embedded, 2);
        assert_eq!((models.stats().vectors.hits, models.stats().vectors.misses), (3, 3));
        models.embed(ArmId(0), &["描述".into()], WorkClass::Ingest).await.unwrap();
        models.embed(ArmId(0), &["描述".into()], WorkClass::Ingest).await.unwrap();
        assert_eq!(models.stats().worker.embedded, 4);
        models.embed(ArmId(0), &["退款".into()], WorkClass::Ingest).await.unwrap();
        assert_eq!(models.stats().worker.embedded, 4, "but it may read");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let config = ModelsConfig { dir: dir.path().into(), fetch: None, ..ModelsConfig::default() };
        let error = Models::load(&config, &Quiet).err().unwrap().to_string();
        assert!(error.contains("bge-small-zh-v1.5") && error.contains("reach models pull"), "{error}");
        let config = ModelsConfig { names: vec!["gpt".into()], ..config };
        assert!(Models::load(&config, &Quiet).err().unwrap().to_string().contains("`gpt`"));
    }
}
