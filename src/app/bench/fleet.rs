//! Fleets for the measurements: registered in a data folder, or as the base of recombined ones.

use super::doors::Encoded;
use crate::app::parts::Parts;
use crate::bench::{corpus, scale};
use crate::catalog::schema::Schemas;
use crate::cli::{BenchScale, say};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::embed::models::{ArmId, Models};
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::index::dense::DenseConfig;
use crate::index::keyword::LexConfig;
use crate::ingest::{self, Boot, ByText, IngestConfig};
use crate::store::{Durability, Store};
use crate::types::manifest::Manifest;
use crate::types::query::QueryVector;
use crate::types::{Lang, Principal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Texts embedded at once.
const CHUNK: usize = 256;

/// A folder that goes with the run.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one among the temporary files.
    pub fn new() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("reach-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Error::internal(format!("{}: {e}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // what stays behind is in the temporary folder
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What registering a fleet took.
pub struct Filled {
    /// Capabilities registered.
    pub capabilities: usize,
    /// Texts embedded.
    pub embedded: usize,
    /// Seconds.
    pub seconds: f64,
    /// Share of the time of all cores that the encoders worked.
    pub encoder_share: f64,
    /// Names of capabilities.
    pub names: Vec<String>,
}

/// Registers a fleet of `n` capabilities in the data folder of `config`.
pub async fn fill(config: Config, manifests: &[PathBuf], n: usize) -> Result<Filled, Error> {
    let places = if manifests.is_empty() { corpus::places() } else { manifests.to_vec() };
    let mut fleet = corpus::take(&corpus::read(&places)?, n, 7);
    for manifest in &mut fleet {
        plain(manifest);
    }
    let names = fleet.iter().flat_map(|m| m.capabilities.iter().map(|c| c.intent.to_string())).collect();
    let parts = Parts::open(config, &crate::embed::fetch::Quiet).await?;
    let models = parts.views.load().models.clone();
    let (begin, before) = (SystemClock.instant(), Encoded::by(&models));
    let batch = parts.ingest.register_many(&Principal::local("bench"), fleet).await?;
    let seconds = SystemClock.instant().duration_since(begin).as_secs_f64();
    let encoder_share = Encoded::by(&models).since(before).share(seconds);
    for (agent, error) in batch.refused.iter().take(3) {
        say(&format!("warning: {agent} is left out: {error}"));
    }
    let filled = Filled { capabilities: batch.capabilities, embedded: batch.embedded, seconds, encoder_share, names };
    parts.close().await;
    Ok(filled)
}

/// Without leases, probes and schemas that can't be compiled: nothing of the fleet may change while it is measured.
fn plain(manifest: &mut Manifest) {
    manifest.ttl = None;
    manifest.health_check = None;
    for capability in &mut manifest.capabilities {
        (capability.input_schema, capability.output_schema) = (None, None);
    }
}

async fn embedded(models: &Models, texts: &[Arc<str>], class: WorkClass) -> Result<Vec<crate::embed::Embedding>, Error> {
    let mut out = Vec::with_capacity(texts.len());
    for chunk in texts.chunks(CHUNK) {
        out.extend(models.embed(ArmId(0), chunk, class).await?);
    }
    Ok(out)
}

/// Manifests in one language with their vectors, and requests with theirs.
pub async fn base(models: &Arc<Models>, config: &Config, args: &BenchScale, lang: Lang) -> Result<scale::Base, Error> {
    let places = if args.manifests.is_empty() { corpus::places() } else { args.manifests.clone() };
    let all = corpus::read(&places)?;
    let speaks = |m: &&Manifest| m.capabilities.first().is_some_and(|c| corpus::lang_of(c) == lang);
    let native: Vec<Manifest> = all.iter().filter(speaks).cloned().collect();
    let mut manifests = corpus::take(&native, args.base, args.seed);
    for manifest in &mut manifests {
        plain(manifest);
        manifest.capabilities.truncate(1);
    }
    let folder = Folder::new()?;
    let (model, background) = scaled(models, config, &folder.0).await?;
    let mut texts: Vec<Arc<str>> =
        manifests.iter().flat_map(|m| m.capabilities.iter().flat_map(|c| ingest::texts::pieces(m, c, "", lang)).map(|p| p.text)).collect();
    texts.sort_unstable();
    texts.dedup();
    let vectors: ByText =
        texts.iter().cloned().zip(embedded(models, &texts, WorkClass::Ingest).await?.into_iter().map(|e| e.vector)).collect();
    let asked: Vec<Arc<str>> = corpus::texts(lang, None)?.0.into_iter().take(args.queries).map(Arc::from).collect();
    let found = embedded(models, &asked, WorkClass::Query).await?;
    let requests = asked
        .into_iter()
        .zip(found)
        .map(|(text, e)| {
            (text, QueryVector { model: model.fingerprint.clone(), vector: e.vector, tokens: e.tokens, truncated: e.truncated })
        })
        .collect();
    Ok(scale::Base { models: models.clone(), model, background, manifests, vectors, requests })
}

/// The model and its scale, as a start makes them.
async fn scaled(
    models: &Arc<Models>,
    config: &Config,
    folder: &Path,
) -> Result<(crate::embed::ModelInfo, Arc<crate::view::Background>), Error> {
    let boot = Boot {
        store: Arc::new(Store::open(folder, Durability::Process)?),
        models: models.clone(),
        schemas: Schemas::inline(),
        clock: Arc::new(SystemClock),
        policy: config.policy.clone(),
        dense: DenseConfig::default(),
        words: LexConfig::default(),
        config: IngestConfig::default(),
    };
    let (views, _ingest) = ingest::start(boot).await?;
    let view = views.load();
    let arm = view.arms.first().ok_or_else(|| Error::internal("no model is loaded"))?;
    Ok((arm.model.clone(), arm.background.clone()))
}
