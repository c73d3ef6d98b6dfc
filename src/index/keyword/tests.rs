//! The keyword index against a plain one, the cases others got wrong, and what hidden documents may not do.

use super::*;
use crate::index::text::{TokenKind, analyze};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

fn doc(slot: u32, class: u32, fields: &[(Field, &str)]) -> LexDoc {
    LexDoc { slot, class, fields: fields.iter().map(|(f, t)| (*f, (*t).to_owned())).collect() }
}

fn ask(snapshot: &LexSnapshot, visible: &Visible, text: &str, k: usize) -> Vec<(u32, f32)> {
    snapshot.bind(&LexQuery::new(text), visible).search(k, &mut |_| true).into_iter().map(|h| (h.slot, h.bm25)).collect()
}

fn slots(snapshot: &LexSnapshot, text: &str) -> Vec<u32> {
    ask(snapshot, &Visible::all(), text, 10).into_iter().map(|(slot, _)| slot).collect()
}

fn small() -> StackConfig {
    StackConfig { delta_max: 8, fan: 2, ..StackConfig::default() }
}

/// BM25 the plain way, in f64, straight from the definition.
fn plain(docs: &BTreeMap<u32, LexDoc>, visible: &Visible, text: &str, cfg: &LexConfig) -> HashMap<u32, f64> {
    let seen: Vec<&LexDoc> = docs.values().filter(|d| visible.contains(d.class)).collect();
    let words: HashMap<u32, HashMap<String, HashSet<Field>>> = seen
        .iter()
        .map(|d| {
            let mut words: HashMap<String, HashSet<Field>> = HashMap::new();
            for (field, text) in &d.fields {
                for token in analyze(text) {
                    words.entry(token.text).or_default().insert(*field);
                }
            }
            (d.slot, words)
        })
        .collect();
    let weight = |field: Field| f64::from(cfg.weights[field as usize]);
    let length = |d: &LexDoc| {
        let mut distinct: HashSet<(Field, String)> = HashSet::new();
        for (field, text) in &d.fields {
            distinct.extend(analyze(text).into_iter().filter(|t| t.kind == TokenKind::Word).map(|t| (*field, t.text)));
        }
        (distinct.iter().map(|(field, _)| weight(*field) * 16.0).sum::<f64>() + 1e-4).floor()
    };
    let n = seen.len() as f64;
    let mean = (seen.iter().map(|d| length(d)).sum::<f64>() / n.max(1.0)).max(1.0);
    let query = LexQuery::new(text);
    let mut out = HashMap::new();
    // function words find nothing where others do
    let holds = |slot: &u32| query.terms.iter().any(|t| !t.stop && words[slot].contains_key(&t.text));
    let any_telling = words.keys().any(&holds);
    for d in seen.iter().filter(|d| !any_telling || holds(&d.slot)) {
        let mut score = 0.0;
        for term in &query.terms {
            let df = words.values().filter(|w| w.contains_key(&term.text)).count() as f64;
            let of_kind = match term.kind {
                TokenKind::Word => 1.0,
                TokenKind::Inner => cfg.inner,
                TokenKind::Joined => cfg.joined,
                TokenKind::Pair => cfg.pair,
            };
            let of_kind = if term.stop { of_kind * cfg.stop } else { of_kind };
            let tf: f64 = words[&d.slot].get(&term.text).map_or(0.0, |fields| fields.iter().map(|f| weight(*f)).sum());
            let (k1, b) = (f64::from(cfg.k1), f64::from(cfg.b));
            if tf > 0.0 {
                score += f64::from(of_kind) * (1.0 + (n - df + 0.5) / (df + 0.5)).ln() * tf * (k1 + 1.0)
                    / (k1 * (1.0 - b + b * length(d) / mean) + tf);
            }
        }
        if score > 0.0 {
            out.insert(d.slot, score);
        }
    }
    out
}

const VOCABULARY: [&str; 24] = [
    "refund",
    "refunds",
    "order",
    "orders",
    "create_edge",
    "createEdge",
    "check",
    "the",
    "of",
    "email",
    "e-mail",
    "data",
    "退款",
    "订单",
    "退款申请",
    "的",
    "查询",
    "JWT令牌",
    "weather",
    "天气预报",
    "report",
    "v2",
    "search",
    "graph",
];

fn any_text(words: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    proptest::collection::vec(0..VOCABULARY.len(), words).prop_map(|w| w.into_iter().map(|i| VOCABULARY[i]).collect::<Vec<_>>().join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn scores_are_the_definition_whatever_the_history(
        steps in proptest::collection::vec((proptest::collection::vec((0u32..60, 0u32..3, any_text(1..4), any_text(0..12), any_text(0..5)), 0..14), proptest::collection::vec(0u32..60, 0..6)), 1..8),
        query in any_text(1..9), settle in any::<bool>(), common in prop_oneof![Just(3u64), Just(20_000)],
    ) {
        let cfg = LexConfig { stack: small(), common: 20_000, ..LexConfig::default() };
        let mut index = LexIndex::new(cfg.clone());
        let mut docs: BTreeMap<u32, LexDoc> = BTreeMap::new();
        for (adds, gone) in steps {
            let add: Vec<LexDoc> = adds.iter().map(|(slot, class, name, text, example)| doc(*slot, *class, &[(Field::Name, name), (Field::Description, text), (Field::Example, example)])).collect();
            for slot in &gone { docs.remove(slot); }
            for doc in &add { docs.insert(doc.slot, doc.clone()); }
            index.apply(&gone, add);
            if settle { index.settle(); }
        }
        let snapshot = index.snapshot();
        prop_assert_eq!(snapshot.len(), docs.len());
        // the same documents in one go, and with others that are hidden
        let mut fresh = LexIndex::new(cfg.clone());
        let strangers = (100..140).map(|slot| doc(slot, 9, &[(Field::Name, "refund order"), (Field::Description, "退款 订单 data data check")]));
        let fresh = fresh.apply(&[], docs.values().rev().cloned().chain(strangers).collect());
        for visible in [Visible::of([0, 1, 2]), Visible::of([1]), Visible::of([0, 2])] {
            let got = ask(&snapshot, &visible, &query, 100);
            let want = plain(&docs, &visible, &query, &cfg);
            prop_assert_eq!(got.len(), want.len());
            for (slot, score) in &got {
                prop_assert!((f64::from(*score) - want[slot]).abs() < 1e-3, "{} is not {}", score, want[slot]);
            }
            prop_assert_eq!(&ask(&fresh, &visible, &query, 100), &got, "bit for bit");
            let q = LexQuery::new(&query);
            let (mine, theirs) = (snapshot.bind(&q, &visible), fresh.bind(&q, &visible));
            for slot in docs.keys() {
                prop_assert_eq!(mine.evidence(*slot), theirs.evidence(*slot));
                if let Some((_, score)) = got.iter().find(|(s, _)| s == slot) { prop_assert_eq!(mine.evidence(*slot).map(|e| e.bm25), Some(*score)); }
            }
            // pruning is invisible: fewer hits are the first of more, with a gate the first that pass
            for k in [1, 3] {
                prop_assert_eq!(&ask(&snapshot, &visible, &query, k)[..], &got[..k.min(got.len())]);
                let gated: Vec<(u32, f32)> = mine.search(k, &mut |slot| slot % 2 == 0).into_iter().map(|h| (h.slot, h.bm25)).collect();
                prop_assert_eq!(gated, got.iter().copied().filter(|(slot, _)| slot % 2 == 0).take(k).collect::<Vec<_>>());
            }
            for (_, score) in got { prop_assert!(score <= mine.max_bm25() * 1.001); }
        }
        // words that are common are only scored: what is found keeps its score
        let sparing = LexIndex::new(LexConfig { common, ..cfg }).apply(&[], docs.values().cloned().collect());
        let all = ask(&snapshot, &Visible::all(), &query, 100);
        for hit in ask(&sparing, &Visible::all(), &query, 100) { prop_assert!(all.contains(&hit)); }
    }
}

/// So many documents that documents of the rarest words are scored first: the outcome is still that of scoring everything.
#[test]
fn pruning_is_invisible_where_postings_are_many() {
    let mut state = 7u64;
    let mut roll = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    let docs: Vec<LexDoc> = (0..16_000)
        .map(|slot| {
            let mut words = |n: usize| {
                let word = |_| format!("w{}x", (0..3).map(|_| roll(40)).min().unwrap_or_default());
                (0..n).map(word).collect::<Vec<_>>().join(" ")
            };
            let (name, text) = (words(2), words(4 + slot as usize % 9));
            doc(slot, slot % 3, &[(Field::Name, &name), (Field::Description, &text)])
        })
        .collect();
    let mut index = LexIndex::new(LexConfig { stack: small(), ..LexConfig::default() });
    index.apply(&[], docs.clone());
    let gone: Vec<u32> = (0..16_000).step_by(7).collect();
    index.apply(&gone, Vec::new());
    let snapshot = index.snapshot();
    let everything = 16_000;
    for text in ["w0x w1x w2x w3x w4x w5x w6x w7x w8x w9x w20x", "w39x w38x w0x w1x w2x w3x w4x w5x w6x w7x w8x w9x", "w5x w6x"] {
        for visible in [Visible::all(), Visible::of([0, 2])] {
            let query = LexQuery::new(text);
            let bound = snapshot.bind(&query, &visible);
            // every visible document by its own score
            let mut want: Vec<(u32, f32)> =
                (0..everything).filter_map(|slot| Some((slot, bound.evidence(slot)?.bm25))).filter(|(_, score)| *score > 0.0).collect();
            want.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            for k in [1, 10, 32] {
                let got: Vec<(u32, f32)> = bound.search(k, &mut |_| true).into_iter().map(|h| (h.slot, h.bm25)).collect();
                assert_eq!(got, want[..k], "{text}");
                let gated: Vec<(u32, f32)> = bound.search(k, &mut |slot| slot % 5 == 0).into_iter().map(|h| (h.slot, h.bm25)).collect();
                assert_eq!(gated, want.iter().copied().filter(|(slot, _)| slot % 5 == 0).take(k).collect::<Vec<_>>(), "{text}");
            }
        }
    }
}

#[test]
fn short_queries_find_long_identifiers_in_any_style() {
    let names = ["canvas_create_edge", "canvas-delete-node", "canvasMoveNode", "list_emails"];
    let docs =
        (0u32..).zip(names).map(|(slot, name)| doc(slot, 0, &[(Field::Name, name), (Field::Description, "works on the board")])).collect();
    let snapshot = LexIndex::new(LexConfig::default()).apply(&[], docs);
    for (query, want) in [
        ("create edge", 0),
        ("createEdge", 0),
        ("createedge", 0),
        ("delete a node", 1),
        ("move node", 2),
        ("moveNode", 2),
        ("list email", 3),
    ] {
        assert_eq!(slots(&snapshot, query).first(), Some(&want), "{query}");
    }
}

#[test]
fn the_name_weighs_more_than_the_description() {
    let snapshot = LexIndex::new(LexConfig::default()).apply(
        &[],
        vec![
            doc(0, 0, &[(Field::Name, "report_build"), (Field::Description, "makes a refund sheet")]),
            doc(1, 0, &[(Field::Name, "refund_create"), (Field::Description, "makes a report sheet")]),
        ],
    );
    assert_eq!(slots(&snapshot, "refund"), [1, 0]);
    assert_eq!(slots(&snapshot, "report"), [0, 1]);
}

#[test]
fn japanese_and_chinese_keywords_are_found() {
    let snapshot = LexIndex::new(LexConfig::default()).apply(
        &[],
        vec![
            doc(0, 0, &[(Field::Name, "law_search"), (Field::Description, "日本の法令を検索します。条文の全文も取得できます")]),
            doc(1, 0, &[(Field::Name, "auth"), (Field::Description, "认证系统使用JWT令牌")]),
            doc(2, 0, &[(Field::Name, "wetter"), (Field::Description, "查询天气预报")]),
            doc(3, 0, &[(Field::Name, "translate"), (Field::Description, "日本の天気を調べます")]),
        ],
    );
    assert_eq!(slots(&snapshot, "法令を調べて").first(), Some(&0));
    assert_eq!(slots(&snapshot, "认证"), [1]);
    assert_eq!(slots(&snapshot, "用JWT做认证").first(), Some(&1));
    assert_eq!(slots(&snapshot, "認證系統").first(), Some(&1), "traditional");
}

#[test]
fn no_word_in_common_is_no_hit_and_never_negative() {
    // a word in every document still counts for something, and a document without it for nothing
    let mut docs: Vec<LexDoc> = (0..3).map(|slot| doc(slot, 0, &[(Field::Description, "refund order")])).collect();
    docs.push(doc(3, 0, &[(Field::Description, "weather forecast")]));
    let snapshot = LexIndex::new(LexConfig::default()).apply(&[], docs);
    let hits = ask(&snapshot, &Visible::all(), "refund order now", 10);
    assert_eq!(hits.len(), 3);
    assert!(hits.iter().all(|(_, score)| *score > 0.0));
    let query = LexQuery::new("refund order now");
    let bound = snapshot.bind(&query, &Visible::All);
    assert_eq!(bound.evidence(3).map(|e| (e.bm25, e.covered)), Some((0.0, 0.0)));
    let all = LexIndex::new(LexConfig::default()).apply(&[], (0..5).map(|slot| doc(slot, 0, &[(Field::Description, "refund")])).collect());
    assert!(ask(&all, &Visible::all(), "refund", 10).iter().all(|(_, score)| *score > 0.0), "in every document");
    assert!(ask(&all, &Visible::all(), "zebra", 10).is_empty());
    assert!(ask(&all, &Visible::all(), "", 10).is_empty());
}

#[test]
fn length_gains_nothing() {
    let short = "create a refund for an order";
    let texts = [
        short.to_owned(),
        format!("{short} ").repeat(50),
        format!("{short} {}", "and many other words about goods shops bills ".repeat(50)),
    ];
    let docs = (0u32..).zip(&texts).map(|(slot, text)| doc(slot, 0, &[(Field::Description, text)])).collect();
    let snapshot = LexIndex::new(LexConfig::default()).apply(&[], docs);
    let hits: HashMap<u32, f32> = ask(&snapshot, &Visible::all(), "refund an order", 10).into_iter().collect();
    assert!(hits[&0] >= hits[&1] && hits[&0] > hits[&2], "{hits:?}");
}

#[test]
fn many_foreign_documents_do_not_starve_mine() {
    let mut index = LexIndex::new(LexConfig::default());
    index.apply(
        &[],
        (0..10_000).map(|slot| doc(slot, 1, &[(Field::Name, "refund_create"), (Field::Description, "refund an order")])).collect(),
    );
    let snapshot =
        index.apply(&[], vec![doc(20_000, 2, &[(Field::Description, "a long text in which a refund is named at the very end")])]);
    assert_eq!(ask(&snapshot, &Visible::of([2]), "refund an order", 5).len(), 1);
    let query = LexQuery::new("refund an order");
    let gated = snapshot.bind(&query, &Visible::All).search(5, &mut |slot| slot == 20_000);
    assert_eq!(gated.len(), 1, "a gate is part of the search");
    assert!(snapshot.bind(&query, &Visible::of([2])).evidence(5).is_none(), "no evidence on what is hidden");
}

#[test]
fn evidence_says_where_and_how_much() {
    let snapshot = LexIndex::new(LexConfig::default()).apply(
        &[],
        vec![
            doc(
                0,
                0,
                &[
                    (Field::Name, "refund_create"),
                    (Field::Alias, "退款申请"),
                    (Field::Description, "Creates a refund for a paid order"),
                    (Field::Tag, "billing"),
                ],
            ),
            doc(1, 0, &[(Field::Name, "weather"), (Field::Description, "Tells the weather")]),
        ],
    );
    let evidence = |text: &str, slot| snapshot.bind(&LexQuery::new(text), &Visible::All).evidence(slot).unwrap();
    let e = evidence("please create a refund for order 17", 0);
    assert!(e.covered > 0.3 && e.covered < 1.0, "17 is not there: {e:?}");
    assert!(e.field(Field::Description) >= e.field(Field::Name) && e.field(Field::Tag) == 0.0);
    assert_eq!((e.name_covered, e.name_run, e.name_phrase), (1.0, 1, false), "both words, in another order");
    let e = evidence("run refund create for me", 0);
    assert_eq!((e.name_run, e.name_run_share, e.name_phrase), (2, 1.0, true));
    assert!(evidence("我要退款申请", 0).name_phrase);
    assert!(evidence("refnud craete", 0).name_grams > 0.4, "typos: {:?}", evidence("refnud craete", 0));
    assert_eq!(evidence("weather", 1).covered, 1.0);
    assert!(evidence("weather", 1).name_phrase && !evidence("the weather in Berlin", 1).name_phrase);
    assert_eq!(evidence("zebra", 1).bm25, 0.0);
    let query = LexQuery::new("refund zebra");
    let bound = snapshot.bind(&query, &Visible::All);
    assert!(bound.known() > 0.2 && bound.known() < 0.8, "{}", bound.known());
}

#[test]
fn hostile_queries_are_text() {
    let snapshot = LexIndex::new(LexConfig::default())
        .apply(&[], vec![doc(0, 0, &[(Field::Name, "refund"), (Field::Description, "field secret a b c")])]);
    for text in ["- *", "(((((((", "field:secret", "a* b* c*", "\"", "AND OR NOT", "the of and", "\u{0}", "refund\u{202e}"] {
        ask(&snapshot, &Visible::all(), text, 5);
    }
    assert_eq!(slots(&snapshot, "field:secret"), [0]);
    let many: String = (0..5_000).map(|i| format!("w{i} ")).collect();
    assert!(slots(&snapshot, &many).is_empty());
    ask(&snapshot, &Visible::all(), &"x".repeat(1_000_000), 5);
}
