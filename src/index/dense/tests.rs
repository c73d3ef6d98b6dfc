//! The dense index against a plain scan, and what hidden rows may not do.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// Random vectors that are reproducible and lie in clusters, as embeddings do.
pub(super) struct Cloud {
    state: u64,
    dim: usize,
    centres: Vec<Vec<f32>>,
}

impl Cloud {
    pub(super) fn new(seed: u64, dim: usize, clusters: usize) -> Self {
        let mut cloud = Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, dim, centres: Vec::new() };
        let common: Vec<f32> = (0..dim).map(|_| cloud.normal()).collect();
        cloud.centres = (0..clusters).map(|_| common.iter().map(|c| c + cloud.normal()).collect()).collect();
        cloud
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }

    fn normal(&mut self) -> f32 {
        (0..6).map(|_| (self.next() % 100_003) as f32 / 100_003.0 - 0.5).sum()
    }

    pub(super) fn vector(&mut self) -> Arc<[f32]> {
        let at = self.next() as usize % self.centres.len();
        let raw: Vec<f32> = (0..self.dim).map(|i| self.centres[at][i] + 0.8 * self.normal()).collect();
        let norm = raw.iter().map(|v| v * v).sum::<f32>().sqrt();
        raw.into_iter().map(|v| v / norm).collect()
    }

    pub(super) fn doc(&mut self, slot: u32, class: u32) -> DenseDoc {
        let mut vectors = vec![(Role::Name, self.vector()), (Role::Both, self.vector())];
        vectors.extend((0..self.next() % 3).map(|_| (Role::Example, self.vector())).collect::<Vec<_>>());
        DenseDoc { slot, class, vectors }
    }
}

fn plain(docs: &HashMap<u32, DenseDoc>, q: &[f32], visible: &Visible, k: usize, gate: impl Fn(u32) -> bool) -> Vec<(u32, f32)> {
    let best = |doc: &DenseDoc| {
        doc.vectors.iter().filter(|(r, _)| r.is_scanned()).map(|(_, v)| crate::kernel::dot::dot_f32(q, v)).fold(f32::MIN, f32::max)
    };
    let mut all: Vec<(u32, f32)> =
        docs.values().filter(|d| visible.contains(d.class) && gate(d.slot)).map(|d| (d.slot, best(d).clamp(-1.0, 1.0))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(k);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_search_is_the_plain_scan(seed in any::<u64>(), steps in proptest::collection::vec((0usize..40, 0usize..30), 1..12), dim in 3usize..90, settle in any::<bool>()) {
        let mut cloud = Cloud::new(seed, dim, 5);
        let stack = StackConfig { delta_max: 16, fan: 3, ..StackConfig::default() };
        let mut index = DenseIndex::new(dim, DenseConfig { stack, ..DenseConfig::default() });
        let mut docs: HashMap<u32, DenseDoc> = HashMap::new();
        let mut next = 0u32;
        for (adds, removes) in steps {
            let gone: Vec<u32> = (0..removes).map(|_| cloud.next() as u32 % (next + 1)).collect();
            let mut add: Vec<DenseDoc> = (0..adds as u32).map(|i| { let class = cloud.next() as u32 % 4; cloud.doc(next + i, class) }).collect();
            // and one that replaces
            if next > 0 { let slot = cloud.next() as u32 % next; add.push(cloud.doc(slot, 2)); }
            next += adds as u32;
            let held = index.snapshot();
            let before = held.len();
            index.apply(&gone, add.clone());
            prop_assert_eq!(held.len(), before, "a snapshot never changes");
            for slot in gone { docs.remove(&slot); }
            for doc in add { docs.insert(doc.slot, doc); }
            if settle { index.settle(); }
        }
        let snapshot = index.snapshot();
        prop_assert_eq!(snapshot.len(), docs.len());
        for visible in [Visible::all(), Visible::of([1]), Visible::of([0, 2, 3])] {
            let q = cloud.vector();
            let got = snapshot.search(&q, &visible, 7, &mut |slot| slot % 3 != 0);
            prop_assert_eq!(&got.hits, &plain(&docs, &q, &visible, 7, |slot| slot % 3 != 0));
            prop_assert_eq!(got.background.count as usize, docs.values().filter(|d| visible.contains(d.class)).count());
        }
        for (slot, doc) in &docs {
            prop_assert_eq!(snapshot.vectors(*slot).count(), doc.vectors.len());
        }
    }
}

#[test]
fn hidden_rows_change_nothing() {
    let mut cloud = Cloud::new(5, 64, 4);
    let mut index = DenseIndex::new(64, DenseConfig::default());
    let mine: Vec<DenseDoc> = (0..300).map(|slot| cloud.doc(slot, 1)).collect();
    let before = index.apply(&[], mine.clone());
    let queries: Vec<Arc<[f32]>> = (0..20).map(|_| cloud.vector()).collect();
    let ask = |s: &DenseSnapshot| queries.iter().map(|q| s.search(q, &Visible::of([1]), 10, &mut |_| true)).collect::<Vec<_>>();
    let want = ask(&before);
    for round in 0..5 {
        let foreign = (0..200).map(|i| cloud.doc(1_000 + round * 200 + i, i % 3 * 2)).collect();
        index.apply(&[], foreign);
        assert_eq!(ask(&index.snapshot()), want, "bit for bit, statistics included");
    }
    assert_eq!(ask(&index.settle()), want, "and after merging");
    // another order of registration
    let mut other = DenseIndex::new(64, DenseConfig::default());
    for doc in mine.into_iter().rev() {
        other.apply(&[], vec![doc]);
    }
    assert_eq!(ask(&other.snapshot()), want);
}

#[test]
fn ten_thousand_nearer_strangers_do_not_starve_mine() {
    let mut cloud = Cloud::new(9, 32, 1);
    let mut index = DenseIndex::new(32, DenseConfig::default());
    let q = cloud.vector();
    let near = |slot| DenseDoc { slot, class: 1, vectors: vec![(Role::Both, Arc::clone(&q))] };
    index.apply(&[], (0..10_000).map(near).collect());
    let mine = DenseDoc { slot: 20_000, class: 2, vectors: vec![(Role::Both, q.iter().map(|v| -v).collect())] };
    let snapshot = index.apply(&[], vec![mine]);
    assert_eq!(snapshot.search(&q, &Visible::of([2]), 5, &mut |_| true).hits, [(20_000, snapshot.score(&q, 20_000).unwrap())]);
    let gated = snapshot.search(&q, &Visible::all(), 5, &mut |slot| slot == 20_000);
    assert_eq!(gated.hits.len(), 1, "a gate is part of the search, not of what comes after");
    assert_eq!(gated.background.count, 10_001);
}

#[test]
fn deleted_slots_stay_away_and_k_is_still_filled() {
    let mut cloud = Cloud::new(3, 48, 3);
    let mut index = DenseIndex::new(48, DenseConfig::default());
    index.apply(&[], (0..1000).map(|slot| cloud.doc(slot, slot % 5)).collect());
    let q = cloud.vector();
    let gone: Vec<u32> = index.snapshot().search(&q, &Visible::all(), 500, &mut |_| true).hits.into_iter().map(|(slot, _)| slot).collect();
    for snapshot in [index.apply(&gone, Vec::new()), index.settle()] {
        let hits = snapshot.search(&q, &Visible::all(), 50, &mut |_| true).hits;
        assert_eq!(hits.len(), 50);
        assert!(hits.iter().all(|(slot, _)| !gone.contains(slot)));
    }
    assert_eq!(index.snapshot().parts(), 1, "the graves are gone");
}

#[test]
fn upkeep_from_an_old_state_keeps_what_happened_since() {
    let mut cloud = Cloud::new(4, 16, 3);
    let stack = StackConfig { delta_max: 8, fan: 2, ..StackConfig::default() };
    let mut index = DenseIndex::new(16, DenseConfig { stack, ..DenseConfig::default() });
    for slot in 0..32 {
        index.apply(&[], vec![cloud.doc(slot, 0)]);
    }
    let work = index.plan().expect("four sealed parts of one size");
    index.apply(&[3, 9], vec![cloud.doc(100, 0)]);
    let late = index.plan().expect("still the same work");
    let snapshot = index.install(work.run()).expect("nothing it was made from is gone");
    assert_eq!(snapshot.len(), 31);
    assert!(snapshot.score(&cloud.vector(), 3).is_none() && snapshot.score(&cloud.vector(), 100).is_some());
    assert!(index.install(late.run()).is_none(), "its parts are gone: void");
    assert_eq!(index.snapshot().len(), 31);
}

#[test]
fn wrong_vectors_are_left_out() {
    let mut index = DenseIndex::new(4, DenseConfig::default());
    let doc = |slot, v: &[f32]| DenseDoc { slot, class: 0, vectors: vec![(Role::Both, v.into())] };
    let snapshot = index.apply(&[], vec![doc(1, &[1.0, 0.0, 0.0, 0.0]), doc(2, &[1.0]), doc(3, &[f32::NAN; 4]), doc(4, &[0.0; 4])]);
    let hits = snapshot.search(&[1.0, 0.0, 0.0, 0.0], &Visible::all(), 9, &mut |_| true);
    assert_eq!(hits.hits, [(1, 1.0), (4, 0.0)]);
    assert_eq!(hits.background.count, 2);
    assert!(snapshot.search(&[1.0], &Visible::all(), 9, &mut |_| true).hits.is_empty());
    assert!(snapshot.search(&[f32::NAN; 4], &Visible::all(), 9, &mut |_| true).hits.is_empty());
    assert_eq!(snapshot.search(&[1.0, 0.0, 0.0, 0.0], &Visible::all(), 0, &mut |_| true).hits, []);
}
