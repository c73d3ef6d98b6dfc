//! Turns raw evidence into features that mean the same for every model, language and fleet.
//!
//! In: a recall. Out: one row of [`NAMES`] a candidate. Cosines become distances to the best candidate in units of the model's own spread,
//! z-scores over the candidates, and z-scores against the model's pool of unrelated descriptions; keyword scores become shares of what the
//! query could score at most. Where several models were asked, a feature is the mean over those that know the candidate.
//! Invariant: every value is finite and clamped. Cost: O(candidates × features).

use crate::index::keyword::Field;
use crate::route::recall::{ArmEvidence, Recall};
use crate::view::View;

/// Names of the features, in the order of a row.
pub const NAMES: &[&str] = &[
    // distance to the best candidate in model spreads (−8..=0) and z-score over the candidates (−4..=6), by text
    "gap_name",
    "z_name",
    "gap_description",
    "z_description",
    "gap_both",
    "z_both",
    "gap_mean",
    "z_mean",
    "gap_label",
    "z_label",
    "gap_dense",
    "z_dense",
    "gap_example",
    "z_example",
    "gap_examples",
    "z_examples",
    "gap_schema",
    "z_schema",
    "gap_centred",
    "z_centred",
    // against the pool of unrelated descriptions, and on the model's absolute scale
    "pool_mean",
    "pool_dense",
    "over_pool",
    "absolute",
    "hub",
    "rich",
    // words
    "bm25",
    "gap_bm25",
    "z_bm25",
    "covered",
    "cov_name",
    "cov_alias",
    "cov_description",
    "cov_example",
    "cov_tag",
    "cov_schema",
    "name_covered",
    "name_run",
    "name_phrase",
    "name_grams",
    "grams",
    "description_run",
    "schema_covered",
    "schema_grams",
    // place in each arm
    "rank_dense",
    "rank_words",
    // the query and the fleet
    "q_words",
    "q_known",
    "q_covered",
    "q_name",
    "q_margin_dense",
    "q_margin_words",
    "q_pool",
    "q_fleet",
    "q_examples",
    "q_schema",
    "q_agree",
];

/// Features that come from vectors; the others follow.
const DENSE: usize = 26;
/// Number of features.
pub const COUNT: usize = NAMES.len();

/// Adds (distance to the best in spreads, z-score) of each candidate's value to two places of its row; nothing where there is no value.
fn shape(rows: &mut [[f32; COUNT]], place: usize, values: &[Option<f32>], spread: f32) {
    let known = || values.iter().flatten().copied();
    let n = known().count() as f32;
    if n == 0.0 {
        return;
    }
    let best = known().fold(f32::MIN, f32::max);
    let mean = known().sum::<f32>() / n;
    let std = (known().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n).sqrt();
    for (row, value) in rows.iter_mut().zip(values) {
        if let (Some(v), Some([gap, z])) = (value, row.get_mut(place..place + 2)) {
            *gap += ((v - best) / spread).clamp(-8.0, 0.0);
            *z += ((v - mean) / (std + 1e-3)).clamp(-4.0, 6.0);
        }
    }
}

/// How much labelled text a capability has, 0..1: n / (n + 2). Among capabilities of unequal richness the rich ones are nearer to everything.
fn richness(e: &ArmEvidence) -> f32 {
    e.count as f32 / (e.count as f32 + 2.0)
}

fn mean_of(e: &ArmEvidence) -> Option<f32> {
    let parts = || [e.name, e.description, e.both].into_iter().flatten();
    let n = parts().count();
    (n > 0).then(|| parts().sum::<f32>() / n as f32)
}

/// Reciprocal of the place by a score, 1 for the first; equal scores share the better place.
fn reciprocal_ranks(scores: &[f32]) -> Vec<f32> {
    scores.iter().map(|s| 1.0 / (1.0 + scores.iter().filter(|o| **o > *s).count() as f32)).collect()
}

fn best_two(scores: impl Iterator<Item = f32>) -> (f32, f32) {
    scores.fold((f32::MIN, f32::MIN), |(a, b), s| if s > a { (s, a) } else { (a, b.max(s)) })
}

fn margin(pair: (f32, f32)) -> f32 {
    if pair.1 > f32::MIN { pair.0 - pair.1 } else { 0.0 }
}

type Text = fn(&ArmEvidence) -> Option<f32>;

/// Features of every candidate of a recall.
pub fn rows(view: &View, recall: &Recall) -> Vec<[f32; COUNT]> {
    let found = &recall.found;
    let n = found.len();
    let mut rows = vec![[0.0f32; COUNT]; n];
    if n == 0 {
        return rows;
    }
    let texts: [Text; 10] = [
        |e| e.name,
        |e| e.description,
        |e| e.both,
        mean_of,
        |e| e.label,
        |e| Some(e.dense),
        |e| e.example.or(e.both),
        |e| e.examples.or(e.both),
        |e| e.schema,
        |e| e.centred,
    ];

    // dense features: sums over the arms that know a candidate, divided at the end
    let mut arms_of = vec![0.0f32; n];
    let mut dense_score = vec![f32::MIN; n];
    let (mut q_margin, mut q_pool) = (0.0f32, f32::MIN);
    let mut values: Vec<Option<f32>> = Vec::with_capacity(n);
    for (at, used) in recall.arms.iter().enumerate() {
        let Some(arm) = view.arms.get(used.arm) else { continue };
        let spread = arm.background.spread;
        let evidence: Vec<Option<&ArmEvidence>> = found.iter().map(|f| f.dense.get(at).and_then(Option::as_ref)).collect();
        let has_examples = evidence.iter().flatten().any(|e| e.example.is_some());
        for (t, text) in texts.iter().enumerate() {
            if (t == 6 || t == 7) && !has_examples {
                continue;
            }
            values.clear();
            values.extend(evidence.iter().map(|e| e.and_then(text)));
            // cosines of centred vectors spread about twice as far
            shape(&mut rows, 2 * t, &values, if t == 9 { 2.0 * spread } else { spread });
        }
        let (pool_mean, pool_std, pool_best) = used.pool;
        let known = || evidence.iter().flatten();
        let several = known().count().max(1) as f32;
        let rich_mean = known().map(|e| richness(e)).sum::<f32>() / several;
        let hub_mean = known().map(|e| e.hub).sum::<f32>() / several;
        let lead = best_two(known().map(|e| e.dense));
        for (i, e) in evidence.iter().enumerate().filter_map(|(i, e)| Some((i, (*e)?))) {
            arms_of[i] += 1.0;
            let z = (e.dense - pool_mean) / pool_std;
            let mean = mean_of(e).unwrap_or(e.dense);
            rows[i][20] += ((mean - pool_mean) / pool_std).clamp(-6.0, 15.0);
            rows[i][21] += z.clamp(-6.0, 15.0);
            rows[i][22] += ((e.dense - pool_best) / spread).clamp(-8.0, 8.0);
            rows[i][23] += ((e.dense - arm.background.mean) / spread).clamp(-8.0, 12.0);
            rows[i][24] += ((e.hub - hub_mean) / spread).clamp(-6.0, 6.0);
            rows[i][25] += richness(e) - rich_mean;
            dense_score[i] = dense_score[i].max(z);
            q_pool = q_pool.max(z);
        }
        q_margin = q_margin.max(margin(lead) / spread);
    }
    for (row, arms) in rows.iter_mut().zip(&arms_of) {
        if *arms > 1.0 {
            for value in row.iter_mut().take(DENSE) {
                *value /= arms;
            }
        }
    }

    // words
    let most = recall.max_bm25.max(1e-6);
    let bm25: Vec<f32> = found.iter().map(|f| (f.words.bm25 / most).clamp(0.0, 1.0)).collect();
    let mean = bm25.iter().sum::<f32>() / n as f32;
    let std = (bm25.iter().map(|b| (b - mean) * (b - mean)).sum::<f32>() / n as f32).sqrt();
    let best = bm25.iter().copied().fold(0.0, f32::max);
    let (rank_dense, rank_words) = (reciprocal_ranks(&dense_score), reciprocal_ranks(&bm25));
    let q_covered = found.iter().map(|f| f.words.covered).fold(0.0, f32::max);
    let q_name = found.iter().map(|f| f.words.name_covered).fold(0.0, f32::max);
    let with_examples = found.iter().filter(|f| f.dense.iter().flatten().any(|e| e.example.is_some())).count() as f32 / n as f32;
    let with_schema = found.iter().filter(|f| f.dense.iter().flatten().any(|e| e.schema.is_some())).count() as f32 / n as f32;
    let top = |scores: &[f32]| scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).map(|(i, _)| i);
    let agree = best > 0.0 && top(&dense_score) == top(&bm25);
    let q_margin_words = margin(best_two(bm25.iter().copied()));
    for (i, (row, f)) in rows.iter_mut().zip(found).enumerate() {
        let w = &f.words;
        let tail = [
            bm25[i],
            bm25[i] - best,
            ((bm25[i] - mean) / (std + 0.02)).clamp(-4.0, 6.0),
            w.covered,
            w.field(Field::Name),
            w.field(Field::Alias),
            w.field(Field::Description),
            w.field(Field::Example),
            w.field(Field::Tag),
            w.field(Field::Schema),
            w.name_covered,
            w.name_run_share,
            f32::from(u8::from(w.name_phrase)),
            w.name_grams,
            w.grams,
            (w.description_run.min(6) as f32) / 6.0,
            w.covered * with_schema,
            w.grams * with_schema,
            if dense_score[i] > f32::MIN { rank_dense[i] } else { 0.0 },
            if bm25[i] > 0.0 { rank_words[i] } else { 0.0 },
            (1.0 + recall.words as f32).ln(),
            recall.known,
            q_covered,
            q_name,
            q_margin.clamp(0.0, 8.0),
            q_margin_words,
            if q_pool > f32::MIN { q_pool.clamp(-6.0, 15.0) } else { 0.0 },
            (1.0 + recall.fleet as f32).ln(),
            with_examples,
            with_schema,
            f32::from(u8::from(agree)),
        ];
        for (place, value) in row.iter_mut().skip(DENSE).zip(tail) {
            *place = if value.is_finite() { value } else { 0.0 };
        }
    }
    rows
}

/// Place of a feature in a row.
pub fn index(name: &str) -> Option<usize> {
    NAMES.iter().position(|n| *n == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formulas of `shape`, by the book.
    fn by_the_book(values: &[Option<f32>], spread: f32) -> Vec<(f32, f32)> {
        let known: Vec<f32> = values.iter().flatten().copied().collect();
        let n = known.len() as f32;
        let best = known.iter().copied().fold(f32::MIN, f32::max);
        let mean = known.iter().sum::<f32>() / n;
        let std = (known.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n).sqrt();
        let one = |v: f32| (((v - best) / spread).clamp(-8.0, 0.0), ((v - mean) / (std + 1e-3)).clamp(-4.0, 6.0));
        values.iter().map(|v| v.map_or((0.0, 0.0), one)).collect()
    }

    proptest::proptest! {
        #[test]
        fn shapes_are_those_of_the_book_to_the_bit(values in proptest::collection::vec(proptest::option::of(-1.0f32..1.0), 0..70), spread in 0.01f32..0.3) {
            let mut rows = vec![[0.0f32; COUNT]; values.len()];
            shape(&mut rows, 4, &values, spread);
            let got: Vec<(f32, f32)> = rows.iter().map(|r| (r[4], r[5])).collect();
            proptest::prop_assert_eq!(got, by_the_book(&values, spread));
        }
    }

    #[test]
    fn dense_features_come_first() {
        assert_eq!(index("rich"), Some(DENSE - 1));
        assert_eq!(index("bm25"), Some(DENSE));
        assert_eq!(index("pool_mean"), Some(20));
        assert_eq!(index("q_agree"), Some(COUNT - 1));
    }
}
