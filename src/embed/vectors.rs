//! Vectors of recent queries, so that the same question costs no inference twice.
//!
//! Key: model fingerprint and exact text. Value: the vector, never a decision. Bounded by bytes, least recently used first out.
//! Not here: the vectors of manifests (`store`).

use super::Embedding;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes counted for an entry beside its vector and text.
const OVERHEAD: usize = 160;

/// Fingerprint of the model and exact text.
type Key = (Arc<str>, Arc<str>);

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorCacheStats {
    /// Texts found.
    pub hits: u64,
    /// Texts not found.
    pub misses: u64,
    /// Entries now, about.
    pub entries: u64,
    /// Bytes now, about.
    pub bytes: u64,
}

/// The cache.
pub struct VectorCache {
    entries: Option<Cache<Key, Embedding>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl VectorCache {
    /// A cache of at most `max_bytes`; 0 switches it off.
    pub fn new(max_bytes: u64) -> Self {
        let weigh = |key: &Key, e: &Embedding| {
            u32::try_from(key.1.len().saturating_add(e.vector.len() * 4).saturating_add(OVERHEAD)).unwrap_or(u32::MAX)
        };
        let entries =
            (max_bytes > 0).then(|| Cache::builder().max_capacity(max_bytes).weigher(weigh).eviction_policy(EvictionPolicy::lru()).build());
        Self { entries, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The vector of a text, if it is there.
    pub fn get(&self, fingerprint: &Arc<str>, text: &Arc<str>) -> Option<Embedding> {
        let found = self.entries.as_ref()?.get(&(fingerprint.clone(), text.clone()));
        if found.is_some() { &self.hits } else { &self.misses }.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// The vector of a text, if it is there; not counted.
    pub fn peek(&self, fingerprint: &Arc<str>, text: &Arc<str>) -> Option<Embedding> {
        self.entries.as_ref()?.get(&(fingerprint.clone(), text.clone()))
    }

    /// Keeps a vector.
    pub fn put(&self, fingerprint: &Arc<str>, text: &Arc<str>, embedding: &Embedding) {
        if let Some(entries) = &self.entries {
            entries.insert((fingerprint.clone(), text.clone()), embedding.clone());
        }
    }

    /// Counters.
    pub fn stats(&self) -> VectorCacheStats {
        VectorCacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            entries: self.entries.as_ref().map_or(0, Cache::entry_count),
            bytes: self.entries.as_ref().map_or(0, Cache::weighted_size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(x: f32) -> Embedding {
        Embedding { vector: vec![x; 4].into(), tokens: 3, truncated: false }
    }

    #[test]
    fn keyed_by_model_and_exact_text_and_bounded() {
        let cache = VectorCache::new(10_000);
        let (a, b, text): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "退款".into());
        cache.put(&a, &text, &vector(1.0));
        assert_eq!(cache.get(&a, &text), Some(vector(1.0)));
        assert_eq!(cache.get(&b, &text), None);
        assert_eq!(cache.get(&a, &"退款 ".into()), None);
        assert_eq!((cache.stats().hits, cache.stats().misses), (1, 2));
        for i in 0..1_000 {
            cache.put(&a, &format!("{i}").into(), &vector(0.0));
        }
        cache.entries.as_ref().unwrap().run_pending_tasks();
        assert!(cache.stats().bytes <= 10_000 && cache.stats().entries > 10);
        assert_eq!(cache.get(&a, &text), None, "the oldest went first");
    }

    #[test]
    fn it_can_be_switched_off() {
        let cache = VectorCache::new(0);
        cache.put(&"a".into(), &"x".into(), &vector(1.0));
        assert_eq!(cache.get(&"a".into(), &"x".into()), None);
        assert_eq!(cache.stats(), VectorCacheStats::default());
    }
}
