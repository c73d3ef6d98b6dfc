//! The dense index against a plain scan, and what hidden rows may not do.

use super::*;
use crate::kernel::dot::dot_f32;
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
    let best = |doc: &DenseDoc| doc.vectors.iter().filter(|(r, _)| r.is_scanned()).map(|(_, v)| dot_f32(q, v)).fold(f32::MIN, f32::max);
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
            let want = plain(&docs, &q, &visible, 7, |slot| slot % 3 != 0);
            prop_assert_eq!(got.hits.len(), want.len());
            let all = plain(&docs, &q, &visible, usize::MAX, |slot| slot % 3 != 0);
            for ((slot, cosine), (_, due)) in got.hits.iter().zip(&want) {
                // in f32 or in two planes: the same to the fifth digit, so only near ties may change places
                let own = all.iter().find(|(s, _)| s == slot).map(|(_, c)| *c).unwrap_or(f32::NAN);
                prop_assert!((cosine - own).abs() < TOLD && (cosine - due).abs() < TOLD, "{slot}: {cosine}, {own} in f32, {due} due here");
                prop_assert_eq!(score(&snapshot, &q, *slot), Some(*cosine));
            }
            prop_assert_eq!(got.background.count as usize, docs.values().filter(|d| visible.contains(d.class)).count());
        }
        for (slot, doc) in &docs {
            let mut given = doc.vectors.clone();
            given.sort_by_key(|(role, _)| !role.is_scanned());
            let q = cloud.vector();
            let probe = snapshot.probe(&q).unwrap();
            let mut cosines = Vec::new();
            snapshot.cosines(&probe, *slot, |role, cosine, _| cosines.push((role, cosine)));
            prop_assert_eq!(cosines.len(), given.len());
            for (((role, kept), (told, cosine)), (was, vector)) in snapshot.vectors(*slot).zip(cosines).zip(given) {
                prop_assert_eq!((role, told), (was, was));
                let most = if role.is_scanned() { TOLD } else { 200.0 * TOLD };
                prop_assert!(kept.iter().zip(vector.iter()).all(|(a, b)| (a - b).abs() < most));
                prop_assert!((cosine - dot_f32(&q, &vector)).abs() < most, "{cosine}");
            }
        }
    }
}

/// Most that a cosine of two planes is off.
const TOLD: f32 = 5e-5;

fn score(snapshot: &DenseSnapshot, query: &[f32], slot: u32) -> Option<f32> {
    snapshot.score(&snapshot.probe(query)?, slot)
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
    assert_eq!(snapshot.search(&q, &Visible::of([2]), 5, &mut |_| true).hits, [(20_000, score(&snapshot, &q, 20_000).unwrap())]);
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
    assert!(snapshot.vectors(3).next().is_none() && snapshot.vectors(100).next().is_some());
    assert!(index.install(late.run()).is_none(), "its parts are gone: void");
    assert_eq!(index.snapshot().len(), 31);
}

#[test]
fn wrong_vectors_are_left_out() {
    let mut index = DenseIndex::new(4, DenseConfig::default());
    let doc = |slot, v: &[f32]| DenseDoc { slot, class: 0, vectors: vec![(Role::Both, v.into())] };
    let snapshot = index.apply(&[], vec![doc(1, &[1.0, 0.0, 0.0, 0.0]), doc(2, &[1.0]), doc(3, &[f32::NAN; 4]), doc(4, &[0.0; 4])]);
    let hits = snapshot.search(&[1.0, 0.0, 0.0, 0.0], &Visible::all(), 9, &mut |_| true);
    assert_eq!(hits.hits.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [1, 4]);
    assert!(hits.hits.iter().zip([1.0, 0.0]).all(|((_, cosine), due)| (cosine - due).abs() < 1e-6), "{hits:?}");
    assert_eq!(hits.background.count, 2);
    assert!(snapshot.search(&[1.0], &Visible::all(), 9, &mut |_| true).hits.is_empty());
    assert!(snapshot.search(&[f32::NAN; 4], &Visible::all(), 9, &mut |_| true).hits.is_empty());
    assert_eq!(snapshot.search(&[1.0, 0.0, 0.0, 0.0], &Visible::all(), 0, &mut |_| true).hits, []);
}

/// Sketches from 200 rows on and lists from 1,000 on, so that small tests use them.
fn approximate(dim: usize) -> DenseIndex {
    let near = NearConfig { min_rows: 200, list_rows: 1_000, keep: 100, probe: 0.6, probe_rows: 500 };
    DenseIndex::new(dim, DenseConfig { near, ..DenseConfig::default() })
}

fn single(cloud: &mut Cloud, slot: u32, class: u32) -> DenseDoc {
    DenseDoc { slot, class, vectors: vec![(Role::Both, cloud.vector())] }
}

#[test]
fn exact_below_the_threshold_and_measured_above() {
    let (mut found, mut measured) = (0.0, 0);
    for seed in 0..8 {
        for n in [16, 64, 257, 1024, 3000] {
            let mut cloud = Cloud::new(seed * 31 + n as u64, 64, 30);
            let docs: Vec<DenseDoc> = (0..n).map(|slot| single(&mut cloud, slot, 0)).collect();
            let mut plain = DenseIndex::new(64, DenseConfig::default());
            plain.apply(&[], docs.clone());
            let mut near = approximate(64);
            near.apply(&[], docs);
            let (plain, near) = (plain.settle(), near.settle());
            assert_eq!((plain.is_approximate(), near.is_approximate()), (false, n >= 200));
            assert_eq!((plain.lists(), near.lists()), (0, usize::from(n >= 1_000)));
            assert_eq!(plain.measured_recall(20, 5), 1.0);
            if n >= 1_000 {
                found += near.measured_recall(40, 5);
                measured += 1;
            }
            for _ in 0..20 {
                let q = cloud.vector();
                let (got, want) =
                    (plain.search(&q, &Visible::All, 5, &mut |_| true), plain.search_exact(&q, &Visible::All, 5, &mut |_| true));
                assert_eq!(got, want, "below the threshold nothing is lost");
                let near_hits = near.search(&q, &Visible::All, 5, &mut |_| true);
                assert_eq!(near_hits.background.count, u64::from(n));
                assert!((near_hits.background.mean - want.background.mean).abs() < 0.05);
                // what is found has its true score
                assert!(near_hits.hits.iter().all(|(slot, cosine)| score(&near, &q, *slot) == Some(*cosine)));
            }
        }
    }
    let recall = found / f64::from(measured);
    assert!(recall >= 0.97, "recall@5 on average: {recall}");
}

#[test]
fn approximate_searches_neither_starve_nor_leak_nor_return_the_dead() {
    let mut cloud = Cloud::new(77, 64, 30);
    let mut index = approximate(64);
    let class = |slot: u32| if slot.is_multiple_of(100) { 7 } else { slot % 2 };
    let docs: Vec<DenseDoc> = (0..6_000).map(|slot| single(&mut cloud, slot, class(slot))).collect();
    index.apply(&[], docs);
    let snapshot = index.settle();
    assert_eq!(snapshot.lists(), 3, "everything, and two large classes");
    let share = |got: &[(u32, f32)], want: &[(u32, f32)]| got.iter().filter(|hit| want.contains(hit)).count();
    let (mut found, mut wanted) = (0, 0);
    for _ in 0..30 {
        let q = cloud.vector();
        for visible in [Visible::of([7]), Visible::of([0]), Visible::of([0, 7]), Visible::all()] {
            let got = snapshot.search(&q, &visible, 10, &mut |_| true).hits;
            let want = snapshot.search_exact(&q, &visible, 10, &mut |_| true).hits;
            assert!(got.len() == 10 && got.iter().all(|(slot, _)| visible.contains(class(*slot))));
            assert!(visible != Visible::of([7]) || got == want, "a small class is scanned");
            found += share(&got, &want);
            wanted += 10;
        }
        // one in five hundred passes: exact in the end
        let mut rare = |slot: u32| slot % 500 == 3;
        let got = snapshot.search(&q, &Visible::All, 5, &mut rare);
        assert_eq!(got.hits, snapshot.search_exact(&q, &Visible::All, 5, &mut rare).hits);
        assert!(snapshot.search(&q, &Visible::All, 5, &mut |_| false).hits.is_empty());
        assert_eq!(snapshot.search(&q, &Visible::of([0, 7]), 7_000, &mut |_| true).hits.len(), 3_000, "all there are");
    }
    // delete what is around one query
    let q = cloud.vector();
    let gone: Vec<u32> = snapshot.search_exact(&q, &Visible::All, 250, &mut |_| true).hits.into_iter().map(|(slot, _)| slot).collect();
    for snapshot in [index.apply(&gone, Vec::new()), index.settle()] {
        let got = snapshot.search(&q, &Visible::All, 10, &mut |_| true);
        assert_eq!(got.hits.len(), 10);
        assert!(got.hits.iter().all(|(slot, _)| !gone.contains(slot)));
        assert_eq!(got.background.count, 5_750);
        found += share(&got.hits, &snapshot.search_exact(&q, &Visible::All, 10, &mut |_| true).hits);
        wanted += 10;
    }
    assert!(found * 100 >= wanted * 97, "{found} of {wanted}");
}

#[test]
fn what_is_hidden_changes_no_bit_of_an_approximate_search() {
    let mut cloud = Cloud::new(31, 64, 5);
    let mine: Vec<DenseDoc> = (0..2_000).map(|slot| single(&mut cloud, slot, 1 + slot % 2)).collect();
    let queries: Vec<Arc<[f32]>> = (0..20).map(|_| cloud.vector()).collect();
    let build = |others: Vec<DenseDoc>| {
        let mut index = approximate(64);
        index.apply(&[], mine.iter().cloned().chain(others).collect());
        index.settle()
    };
    let ask = |s: &DenseSnapshot| queries.iter().map(|q| s.search(q, &Visible::of([1, 2]), 10, &mut |_| true)).collect::<Vec<_>>();
    let (few, many) = (vec![single(&mut cloud, 9_000, 0)], (0..3_000).map(|i| single(&mut cloud, 3_000 + i, i % 2 * 5)).collect());
    let (few, many) = (build(few), build(many));
    assert_eq!((few.lists(), many.lists()), (3, 5));
    assert_eq!(ask(&few), ask(&many));
}

#[test]
fn the_same_rows_give_the_same_lists() {
    let mut cloud = Cloud::new(8, 64, 4);
    let docs: Vec<DenseDoc> = (0..1_500).map(|slot| single(&mut cloud, slot, 0)).collect();
    let (mut a, mut b) = (approximate(64), approximate(64));
    a.apply(&[], docs.clone());
    b.apply(&[], docs.into_iter().rev().collect());
    let (a, b) = (a.settle(), b.settle());
    for _ in 0..50 {
        let q = cloud.vector();
        assert_eq!(a.search(&q, &Visible::All, 10, &mut |_| true), b.search(&q, &Visible::All, 10, &mut |_| true));
    }
}

#[test]
fn many_vectors_of_one_document_do_not_push_others_out() {
    let mut cloud = Cloud::new(14, 64, 3);
    let q = cloud.vector();
    let mut index = approximate(64);
    let crowd = |slot| DenseDoc { slot, class: 0, vectors: vec![(Role::Example, Arc::clone(&q)); 200] };
    let docs = (0..4).map(crowd).chain((4..900).map(|slot| single(&mut cloud, slot, 0))).collect();
    index.apply(&[], docs);
    let snapshot = index.settle();
    assert!(snapshot.is_approximate());
    assert_eq!(snapshot.search(&q, &Visible::All, 10, &mut |_| true).hits.len(), 10);
}

#[test]
fn among_a_set_is_what_a_gate_that_lets_only_it_through_finds() {
    let mut cloud = Cloud::new(21, 64, 20);
    let (mut plain, mut near) = (DenseIndex::new(64, DenseConfig::default()), approximate(64));
    let docs: Vec<DenseDoc> = (0..900).map(|slot| single(&mut cloud, slot, slot % 3)).collect();
    plain.apply(&[], docs.clone());
    near.apply(&[], docs);
    let (plain, near) = (plain.settle(), near.settle());
    assert!(near.is_approximate() && near.lists() == 0);
    for step in [2, 50, 2_000] {
        let mut some = Slots::default();
        some.extend((0..900).filter(|slot| slot % step == 1));
        for _ in 0..10 {
            let q = cloud.vector();
            for visible in [Visible::All, Visible::of([0, 2])] {
                let want = plain.search(&q, &visible, 10, &mut |slot| some.contains(slot));
                assert_eq!(
                    plain.nearest(&plain.probe(&q).unwrap(), &visible, Some(&some), 10, &mut |_| true),
                    want,
                    "statistics are of all"
                );
                let mut asked = 0;
                let got = near.nearest(&near.probe(&q).unwrap(), &visible, Some(&some), 10, &mut |_| {
                    asked += 1;
                    true
                });
                let share = got.hits.iter().filter(|hit| want.hits.contains(hit)).count();
                assert!(got.hits.len() == want.hits.len() && share * 10 >= want.hits.len() * 8, "{share} of {}", want.hits.len());
                assert!(asked < 400 && got.background.count == want.background.count, "{asked}");
            }
        }
    }
}
