//! What tests need: the real models by the ordinary way, and an encoder without weights that can be stopped, counted and made to fail.

use super::fetch::Quiet;
use super::fp32::normalised;
use super::models::{Models, ModelsConfig, Precision};
use super::worker::WorkerConfig;
use super::{Embed, EmbedError, Embedding, ModelInfo};
use crate::types::Lang;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The two small models, fetched by the ordinary sources into the ordinary folder on first use, loaded once a process.
/// Without optimisation the f32 reference, which is a dependency and optimised, is the faster one.
pub fn models() -> Result<Arc<Models>, EmbedError> {
    static LOADED: OnceLock<Result<Arc<Models>, EmbedError>> = OnceLock::new();
    let precision = if cfg!(debug_assertions) { Precision::Fp32 } else { Precision::default() };
    LOADED.get_or_init(|| Models::load(&ModelsConfig { precision, ..ModelsConfig::default() }, &Quiet).map(Arc::new)).clone()
}

/// Two fake arms, Chinese and English, of 64 dimensions, on a small worker.
pub fn fakes() -> Models {
    let arms: Vec<Arc<dyn Embed>> = vec![Arc::new(Fake::new("fake-zh", Lang::Zh, 64)), Arc::new(Fake::new("fake-en", Lang::En, 64))];
    let worker = WorkerConfig { threads: 1, ..WorkerConfig::default() };
    #[allow(clippy::unwrap_used)]
    Models::from_arms(arms, &worker, 1 << 20).unwrap()
}

/// An encoder without weights: texts that share characters and pairs of characters are close. A text with `please panic` in it panics, one with `please fail` fails.
pub struct Fake {
    info: ModelInfo,
    closed: Mutex<bool>,
    opened: Condvar,
    entered: AtomicU64,
    seen: Mutex<Vec<String>>,
}

impl Fake {
    /// A fake with a name, a language and a number of dimensions.
    pub fn new(name: &str, lang: Lang, dim: usize) -> Self {
        let info = ModelInfo {
            name: name.into(),
            lang,
            dim,
            max_tokens: 512,
            precision: "fake",
            fingerprint: format!("{name}/fake/{dim}").into(),
            proven: false,
        };
        Self { info, closed: Mutex::new(false), opened: Condvar::new(), entered: AtomicU64::new(0), seen: Mutex::new(Vec::new()) }
    }

    /// The same, taken for proven: its name's calibration is believed.
    pub fn proven(mut self) -> Self {
        self.info.proven = true;
        self
    }

    /// Makes calls stand still from now on.
    pub fn close(&self) {
        *self.closed.lock() = true;
    }

    /// Lets calls go on.
    pub fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    /// Calls that have begun.
    pub fn entered(&self) -> u64 {
        self.entered.load(Ordering::SeqCst)
    }

    /// Texts that were embedded, in order.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }

    fn vector(&self, text: &str) -> Vec<f32> {
        let mut v = vec![0.0f32; self.info.dim];
        let chars: Vec<u64> = text.chars().flat_map(char::to_lowercase).map(u64::from).collect();
        let pairs = chars.windows(2).map(|w| w.iter().fold(17u64, |h, c| h.wrapping_mul(1_000_003).wrapping_add(*c)));
        for h in chars.iter().copied().chain(pairs).chain([7]) {
            let h = h.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let place = usize::try_from(h >> 33).unwrap_or(0) % self.info.dim.max(1);
            if let Some(x) = v.get_mut(place) {
                *x += if h & 1 == 0 { 1.0 } else { 0.5 };
            }
        }
        normalised(v).unwrap_or_default()
    }
}

impl Embed for Fake {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let mut closed = self.closed.lock();
        while *closed {
            self.opened.wait(&mut closed);
        }
        drop(closed);
        assert!(!texts.iter().any(|t| t.contains("please panic")), "the fake was asked to panic");
        if texts.iter().any(|t| t.contains("please fail")) {
            return Err(EmbedError::Failed("the fake was asked to fail".into()));
        }
        self.seen.lock().extend(texts.iter().map(|t| (*t).to_owned()));
        let one = |t: &&str| {
            let tokens = u32::try_from(t.chars().count()).unwrap_or(u32::MAX).saturating_add(2);
            Embedding { vector: self.vector(t).into(), tokens: tokens.min(512), truncated: tokens > 512 }
        };
        Ok(texts.iter().map(one).collect())
    }
}
