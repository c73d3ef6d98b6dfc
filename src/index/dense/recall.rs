//! How much of the truth approximate searches find: searches against exact scans, on queries made from the stored vectors.

use super::DenseSnapshot;
use crate::index::stack::Part;
use crate::index::visible::Visible;

/// Share of the true `k` nearest slots that were found.
pub(crate) fn measure(snapshot: &DenseSnapshot, sample: usize, k: usize) -> f64 {
    if !snapshot.is_approximate() || sample == 0 || k == 0 {
        return 1.0;
    }
    let (mut found, mut wanted) = (0usize, 0usize);
    for live in snapshot.stack.parts.iter().filter(|live| live.part.near().is_some()) {
        let docs = live.part.layout().len();
        for i in 0..sample.min(docs) {
            let vector = |doc: usize| live.part.vector(doc % docs, 0);
            let at = i * docs / sample.min(docs);
            // between two vectors, nearer to the first: not a stored one, but near where they are
            let (Some(a), Some(b)) = (vector(at), vector(at + docs / 2 + i)) else { continue };
            let query: Vec<f32> = a.iter().zip(b.iter()).map(|(a, b)| a + 0.5 * b).collect();
            let norm = query.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-9);
            let query: Vec<f32> = query.into_iter().map(|v| v / norm).collect();
            let truth = snapshot.search_exact(&query, &Visible::All, k, &mut |_| true).hits;
            let got = snapshot.search(&query, &Visible::All, k, &mut |_| true).hits;
            wanted += truth.len();
            // an equal score is as good
            let last = truth.last().map_or(f32::INFINITY, |(_, score)| *score);
            found += got.iter().filter(|(_, score)| *score >= last).count().min(truth.len());
        }
    }
    if wanted == 0 { 1.0 } else { found as f64 / wanted as f64 }
}
