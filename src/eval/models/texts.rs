//! Every text that a comparison needs a vector of: the fleet's, the queries' with their parts, and the pools of the scale.
//!
//! Found by running the real thing with an encoder that only writes down what it is asked, so that nothing is forgotten.

use super::Task;
use crate::embed::models::Models;
use crate::embed::worker::WorkerConfig;
use crate::embed::{Embed, EmbedError, Embedding, ModelInfo};
use crate::error::Error;
use crate::eval::run::Bench;
use crate::types::Lang;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

struct Recorder {
    info: ModelInfo,
    seen: Mutex<BTreeSet<String>>,
}

impl Embed for Recorder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        self.seen.lock().extend(texts.iter().map(|t| (*t).to_string()));
        let one = Embedding { vector: Arc::from([1.0, 0.0]), tokens: 0, truncated: false };
        Ok(vec![one; texts.len()])
    }
}

/// All texts, sorted, each once.
pub async fn needed(task: &Task, folder: &Path) -> Result<Vec<String>, Error> {
    let info = ModelInfo {
        name: "texts".into(),
        lang: Lang::Mixed,
        dim: 2,
        max_tokens: usize::MAX,
        precision: "none",
        fingerprint: "texts/none/0".into(),
        proven: false,
    };
    let recorder = Arc::new(Recorder { info, seen: Mutex::default() });
    let models = Models::from_arms(vec![recorder.clone()], &WorkerConfig { threads: 1, ..WorkerConfig::default() }, 1 << 20)?;
    let bench = Bench::untaught(Arc::new(models), task.manifests.clone(), task.policy.clone(), folder).await?;
    for query in &task.queries {
        bench.ask(query, 1, 5).await?;
    }
    let seen = recorder.seen.lock().iter().cloned().collect();
    Ok(seen)
}
