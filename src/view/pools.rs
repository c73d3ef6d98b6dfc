//! A model's own scale: how cosines of unrelated texts are distributed, from fixed pools of everyday requests and descriptions.
//!
//! Raw cosines of two models can't be compared; distances in units of a model's own spread can. The pools are ours, in both languages:
//! requests of all kinds, descriptions of capabilities of all kinds, and talk that asks for nothing.
//! Cost: a few hundred embeddings a model, once; their vectors are kept in the store like all others.

use crate::index::dense::{DenseConfig, DenseDoc, DenseIndex, DenseSnapshot, Probe, Role};
use std::sync::Arc;

/// A pool of fixed texts, one a line.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Requests of all kinds.
    pub requests: &'static str,
    /// Descriptions of capabilities of all kinds.
    pub descriptions: &'static str,
    /// Small talk and questions about the world.
    pub talk: &'static str,
}

/// Pools of Chinese and of English texts.
pub const POOLS: [Pool; 2] = [
    Pool {
        requests: include_str!("pools/requests_zh.txt"),
        descriptions: include_str!("pools/descriptions_zh.txt"),
        talk: include_str!("pools/talk_zh.txt"),
    },
    Pool {
        requests: include_str!("pools/requests_en.txt"),
        descriptions: include_str!("pools/descriptions_en.txt"),
        talk: include_str!("pools/talk_en.txt"),
    },
];

/// What the pools say of one model.
#[derive(Clone, Debug, Default)]
pub struct Background {
    /// Vectors of the requests.
    pub requests: Vec<Arc<[f32]>>,
    /// Vectors of the descriptions.
    pub descriptions: Vec<Arc<[f32]>>,
    /// Vectors of the talk.
    pub talk: Vec<Arc<[f32]>>,
    /// Mean cosine of a pool request to a pool description.
    pub mean: f32,
    /// Standard deviation of those cosines; never under 0.01.
    pub spread: f32,
    /// What the pool's talk reaches at best on a small fleet of the pool's own descriptions, on average: the least that a fleet too small to say
    /// so itself is taken to reach.
    pub generic_talk: f32,
    /// The requests, then the talk: what ceilings are measured with.
    pub strangers: Vec<Arc<[f32]>>,
    /// Mean vector of the requests.
    pub request_centre: Vec<f32>,
    /// Mean vector of the descriptions.
    pub description_centre: Vec<f32>,
    /// Descriptions, then talk, as an index compares them: the vectors of one document.
    pool: Option<Arc<DenseSnapshot>>,
}

/// Descriptions of the small fleet behind [`Background::generic_talk`].
const GENERIC: usize = 24;
/// Requests of the pool that a hub is near to: so many of the nearest are averaged.
const HUB_NEAREST: usize = 10;

impl Background {
    /// Cosines of a query to the descriptions, then to the talk.
    pub fn cosines(&self, probe: &Probe) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.descriptions.len() + self.talk.len());
        if let Some(pool) = &self.pool {
            pool.cosines(probe, 0, |_, cosine, _| out.push(cosine));
        }
        out
    }

    /// Fixed vectors of the scale to which the index keeps the dot products of every text: the means of the descriptions and of the requests.
    pub fn anchors(&self) -> Vec<Arc<[f32]>> {
        [&self.description_centre, &self.request_centre].map(|centre| Arc::from(centre.as_slice())).into()
    }

    /// How near a capability stands to requests of all kinds: the mean of its `HUB_NEAREST` best cosines to the pool's requests, averaged over
    /// its texts. A text that resembles everything resembles the right request for no reason.
    pub fn hub(&self, texts: &[&[f32]]) -> f32 {
        if texts.is_empty() || self.requests.is_empty() {
            return self.mean;
        }
        let mut all: Vec<f32> = self
            .requests
            .iter()
            .map(|r| texts.iter().map(|t| crate::kernel::dot::dot_f32(r, t)).sum::<f32>() / texts.len() as f32)
            .collect();
        let n = HUB_NEAREST.min(all.len());
        all.sort_by(|a, b| b.total_cmp(a));
        all.iter().take(n).sum::<f32>() / n as f32
    }
}

fn centre(vectors: &[Arc<[f32]>]) -> Vec<f32> {
    let Some(first) = vectors.first() else { return Vec::new() };
    let mut sum = vec![0.0f32; first.len()];
    for vector in vectors {
        for (s, v) in sum.iter_mut().zip(vector.iter()) {
            *s += v / vectors.len() as f32;
        }
    }
    sum
}

/// Scale of a model from the vectors of the pools.
pub fn background(requests: Vec<Arc<[f32]>>, descriptions: Vec<Arc<[f32]>>, talk: Vec<Arc<[f32]>>) -> Background {
    let (mut n, mut sum, mut squares) = (0.0f64, 0.0f64, 0.0f64);
    for request in &requests {
        for description in &descriptions {
            let cosine = f64::from(crate::kernel::dot::dot_f32(request, description));
            n += 1.0;
            sum += cosine;
            squares += cosine * cosine;
        }
    }
    let mean = if n > 0.0 { sum / n } else { 0.0 };
    let variance = if n > 0.0 { (squares / n - mean * mean).max(0.0) } else { 1.0 };
    let best = |r: &Arc<[f32]>| descriptions.iter().take(GENERIC).map(|d| crate::kernel::dot::dot_f32(r, d)).fold(-1.0, f32::max);
    let generic_talk = talk.iter().map(best).sum::<f32>() / talk.len().max(1) as f32;
    let strangers = requests.iter().chain(&talk).cloned().collect();
    let (request_centre, description_centre) = (centre(&requests), centre(&descriptions));
    let vectors: Vec<(Role, Arc<[f32]>)> = descriptions.iter().chain(&talk).map(|v| (Role::Both, v.clone())).collect();
    let pool = vectors.first().map(|(_, first)| {
        DenseIndex::new(first.len(), DenseConfig::default()).apply(&[], vec![DenseDoc { slot: 0, class: 0, vectors: vectors.clone() }])
    });
    Background {
        requests,
        descriptions,
        talk,
        mean: mean as f32,
        spread: (variance.sqrt() as f32).max(0.01),
        generic_talk,
        strangers,
        request_centre,
        description_centre,
        pool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_there_in_both_languages() {
        for pool in POOLS {
            for text in [pool.requests, pool.descriptions, pool.talk] {
                let lines: Vec<_> = text.lines().filter(|l| !l.trim().is_empty()).collect();
                assert!(lines.len() >= 50, "{} lines", lines.len());
                let distinct: std::collections::BTreeSet<_> = lines.iter().collect();
                assert_eq!(distinct.len(), lines.len(), "no line twice");
            }
        }
    }

    #[test]
    fn an_empty_pool_is_no_fault() {
        let b = background(vec![], vec![], vec![]);
        assert!(b.spread > 0.0 && b.mean == 0.0);
    }
}
