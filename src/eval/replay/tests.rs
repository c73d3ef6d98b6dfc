use super::aim::Aim;
use super::entry::{Entry, Raw};
use super::labels::{Labels, RawLabel};
use super::report::Report;
use super::settings::{self, Axis, Sweep};
use super::testing::{entry, planted_threshold, planted_weights};
use super::{Config, page, replay, table};
use crate::embed::testing::fakes;
use crate::eval::metrics::{self, Judged};
use crate::eval::queries;
use crate::eval::run::Bench;
use crate::ingest::files;
use crate::route::logged::{Body, Logged, Who};
use crate::route::pipeline;
use crate::route::shortlist::testing::item;
use crate::route::shortlist::{QueryFacts, Shortlist};
use crate::types::manifest_check::Rules;
use crate::types::policy::{OperatingPoint, Policy};
use crate::view::View;
use std::path::Path;
use std::sync::Arc;

fn config(aim: &str, swept: &[Sweep], holdout: f64) -> Config {
    Config { seed: 7, holdout, aim: aim.parse::<Aim>().unwrap(), moves: 5, swept: swept.to_vec() }
}

fn run(entries: &[Entry], labels: &Labels, current: &Policy, config: &Config) -> Report {
    let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
    replay(source, labels, current, settings::of(&config.swept, current), config, |_| {}).unwrap()
}

#[test]
fn a_planted_threshold_is_found_within_its_bounds() {
    for seed in 0..20u64 {
        let best = [0.6f32, 0.7, 0.8][seed as usize % 3];
        let (entries, labels) = planted_threshold(seed, 300, best);
        let config = config("auto precision >= 0.95", &[Sweep::Threshold], 0.0);
        let current = Policy::default();
        let tried = settings::thresholds(&current).into_iter().filter(|s| s.axis == Axis::Auto).step_by(2).collect();
        let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
        let report = replay(source, &labels, &current, tried, &config, |_| {}).unwrap();
        let r = report.advice.recommended.as_ref().unwrap_or_else(|| panic!("seed {seed}: {}", report.advice.why));
        let (low, high) = r.range.unwrap().auto;
        let best = f64::from(best);
        assert!(low - 1e-6 <= best && best <= high + 1e-6, "seed {seed}: {best} not in {low}..{high} ({})", r.setting);
        assert!(high - low < 0.25, "seed {seed}: {low}..{high} says nothing");
    }
}

#[test]
fn planted_weights_are_found_within_their_bounds() {
    let current = Policy { explore: 0.0, ..Policy::default() };
    for seed in 0..20u64 {
        let name = ["health", "load", "latency"][seed as usize % 3];
        let planted = settings::weights(&current).into_iter().find(|s| s.name.contains(&format!("{name} = 0.6"))).unwrap();
        let (entries, labels) = planted_weights(seed, 120, &planted.policy, &current);
        let tried = settings::weights(&current).into_iter().filter(|s| s.axis == Axis::Weight).collect();
        let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
        let report = replay(source, &labels, &current, tried, &config("maximize top1", &[Sweep::Weights], 0.0), |_| {}).unwrap();
        let r = report.advice.recommended.as_ref().unwrap();
        assert!(r.setting == planted.name || r.rivals.contains(&planted.name), "seed {seed}: {} for {}", r.setting, planted.name);
    }
}

#[test]
fn two_runs_give_the_same_bytes() {
    let (entries, labels) = planted_threshold(3, 200, 0.7);
    let config = config("auto precision >= 0.95, miss <= 0.05", &[Sweep::Threshold, Sweep::Preset], 0.3);
    let bytes = || {
        let report = run(&entries, &labels, &Policy::default(), &config);
        (serde_json::to_string(&report).unwrap(), page::html(&report), table::text(&report))
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn positives_alone_fit_nothing() {
    // PEERS T2
    let (entries, _) = planted_threshold(1, 200, 0.7);
    let mut labels = Labels::default();
    for e in &entries {
        labels.add(RawLabel { decision_id: Some(e.id.clone()), expected: Some(vec![("a".into(), "x".into())]), ..RawLabel::default() });
    }
    let report = run(&entries, &labels, &Policy::default(), &config("auto precision >= 0.95", &[Sweep::Threshold], 0.0));
    assert!(report.advice.recommended.is_none());
    assert!(report.advice.why.contains("no negatives, cannot fit"), "{}", report.advice.why);
    let x = report.coverage.iter().find(|c| c.capability == "a x").unwrap();
    assert_eq!(x.counts.labelled, 200, "coverage is reported all the same");
}

/// 13 of 13 and 60 of 60 are 100 %, and neither is surely 95 %: Wilson's lower ends are 0.77 and 0.94. 120 of 120 is.
#[test]
fn a_handful_of_auto_is_never_sure() {
    for (autos, sure) in [(13, false), (60, false), (120, true)] {
        let (mut entries, mut labels) = (Vec::new(), Labels::default());
        for i in 0..autos + 40 {
            let c = if i < autos { 0.95 } else { 0.05 };
            let facts = QueryFacts { confidence: c, in_scope: c, calibrated: true, ..Default::default() };
            let list = Shortlist { items: vec![item("a", "x", c)], facts, ..Default::default() };
            let expected = if i < autos { vec![("a".to_string(), "x".to_string())] } else { Vec::new() };
            labels.add(RawLabel { decision_id: Some(format!("d{i}")), expected: Some(expected), ..RawLabel::default() });
            entries.push(entry(i, &list, &Policy::default()));
        }
        let report = run(&entries, &labels, &Policy::default(), &config("auto precision >= 0.95", &[Sweep::Threshold], 0.0));
        let r = report.advice.recommended.as_ref().unwrap();
        let precision = r.chosen_on.auto_precision.unwrap();
        assert_eq!((precision.value, r.surely), (1.0, sure), "{autos}: {precision:?}");
        assert!(precision.low < 1.0 && report.advice.why.contains("it may be luck") != sure, "{}", report.advice.why);
    }
}

#[test]
fn thin_evidence_is_said_and_foreign_labels_are_refused() {
    let (entries, labels) = planted_threshold(1, 20, 0.7);
    let config = config("auto precision >= 0.95", &[Sweep::Threshold], 0.0);
    let report = run(&entries, &labels, &Policy::default(), &config);
    assert!(report.advice.recommended.is_none() && report.advice.why.contains("too little evidence"));
    let mut other = Labels::default();
    other.add(RawLabel { decision_id: Some("elsewhere".into()), expected: Some(vec![]), ..RawLabel::default() });
    let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
    let e = replay(source, &other, &Policy::default(), Vec::new(), &config, |_| {}).unwrap_err();
    assert!(e.to_string().contains("--labels"), "{e}");
}

/// Labels that are about nothing, and those that say two things, are counted and told; those that say nothing of right and wrong are told for what they are.
#[test]
fn labels_that_fit_nothing_or_say_nothing_are_told() {
    let (entries, mut labels) = planted_threshold(1, 40, 0.7);
    let config = config("auto precision >= 0.95", &[], 0.0);
    assert!(run(&entries, &labels, &Policy::default(), &config).notes.is_empty());
    let label = |id: &str, expected: Vec<(String, String)>| RawLabel {
        decision_id: Some(id.into()),
        expected: Some(expected),
        ..RawLabel::default()
    };
    for i in 0..560 {
        labels.add(label(&format!("elsewhere-{i}"), Vec::new()));
    }
    labels.add(label("d7", vec![("z".into(), "q".into())]));
    let notes = run(&entries, &labels, &Policy::default(), &config).notes;
    assert!(notes.iter().any(|n| n.contains("560 of 601 labels fit none of the decisions, such as \"elsewhere-0\"")), "{notes:?}");
    assert!(notes.iter().any(|n| n.contains("1 decisions are labelled twice") && n.contains("d7")), "{notes:?}");
    let mut silent = Labels::default();
    for e in &entries {
        silent.add(serde_json::from_value(serde_json::json!({"decision_id": e.id, "outcome": "timeout"})).unwrap());
    }
    let source = entries.iter().map(|e| Ok(Raw::Entry(Box::new(e.clone()))));
    let e = replay(source, &silent, &Policy::default(), Vec::new(), &config, |_| {}).unwrap_err().to_string();
    assert!(e.contains("40 of the 40 labels fit decisions") && e.contains("timeout"), "{e}");
}

/// An operator who says that all are needed means it: half an answer is a wrong `auto`, right first, and no suggestion that holds.
#[test]
fn half_an_answer_is_no_right_auto() {
    let facts = |c: f32| QueryFacts { confidence: c, in_scope: 0.95, calibrated: true, ..Default::default() };
    let list = |c: f32| Shortlist { items: vec![item("a", "x", c), item("b", "y", c * 0.5)], facts: facts(c), ..Default::default() };
    let entries = vec![entry(0, &list(0.97), &Policy::default()), entry(1, &list(0.5), &Policy::default())];
    let of = |expected: serde_json::Value| {
        let mut labels = Labels::default();
        for e in &entries {
            labels.add(serde_json::from_value(serde_json::json!({"decision_id": e.id, "mode": "all", "expected": expected})).unwrap());
        }
        run(&entries, &labels, &Policy::default(), &config("auto precision >= 0.95", &[], 0.0)).settings[1].figures.clone()
    };
    let value = |s: Option<super::figures::Share>| s.unwrap().value;
    let both = of(serde_json::json!([["a", "x"], ["b", "y"]]));
    assert_eq!((value(both.auto_precision), value(both.wrong), value(both.top1), value(both.suggest_holds)), (0.0, 0.5, 1.0, 1.0));
    let missing = of(serde_json::json!([["a", "x"], ["c", "z"]]));
    assert_eq!((value(missing.top1), value(missing.suggest_holds)), (1.0, 0.0));
    let twins = of(serde_json::json!([["a", "x"], ["c", "x"]]));
    assert_eq!((value(twins.auto_precision), value(twins.suggest_holds)), (1.0, 1.0));
}

#[test]
fn a_decision_that_stands_twice_counts_once() {
    let (entries, labels) = planted_threshold(1, 60, 0.7);
    let config = config("auto precision >= 0.95", &[], 0.0);
    let plain = run(&entries, &labels, &Policy::default(), &config);
    let mut twice = entries.clone();
    twice.extend(entries.iter().take(15).cloned());
    let report = run(&twice, &labels, &Policy::default(), &config);
    assert_eq!((report.decisions, &report.settings), (60, &plain.settings));
    assert!(report.notes.iter().any(|n| n.starts_with("15 decisions stand in the log more than once")), "{:?}", report.notes);
}

/// One history, one calibration error, whichever command counts it.
#[test]
fn the_calibration_error_is_that_of_an_evaluation() {
    let (entries, labels) = planted_threshold(9, 300, 0.7);
    let report = run(&entries, &labels, &Policy::default(), &config("auto precision >= 0.95", &[], 0.0));
    let judged: Vec<Judged> = entries
        .iter()
        .map(|e| {
            let (truth, d) = (labels.of(e), e.logged.repick(&Policy::default()));
            let first = d.candidates.first().map(|c| Who { agent: c.agent.clone(), capability: c.capability.clone() });
            let right = first.as_ref().and_then(|w| truth.of(w)) == Some(true);
            let confidence = if first.is_none() { 0.0 } else { f64::from(d.confidence.get()) };
            Judged { kind: d.kind, in_scope: !truth.nobody, right, whole: right, held: right, confidence }
        })
        .collect();
    let (here, there) = (report.calibration_error.unwrap(), metrics::ece(&judged));
    assert!((here - there).abs() < 1e-6 && report.bins.len() == 10, "{here} {there}");
}

#[test]
fn decisions_of_other_models_are_kept_apart() {
    // PEERS T3, A3: thresholds belong to the models whose scores they were fitted on
    let (mut entries, labels) = planted_threshold(1, 200, 0.7);
    for e in entries.iter_mut().take(80) {
        e.logged.decision.generations.models = vec!["another/int8/2".into()];
    }
    let report = run(&entries, &labels, &Policy::default(), &config("auto precision >= 0.95", &[], 0.0));
    assert_eq!((report.models.as_slice(), report.decisions), (&["fake/int8/1".to_string()][..], 120));
    assert_eq!(report.by_other_models.get("another/int8/2"), Some(&80));
}

/// PEERS T1: the current line does not apply thresholds of other models, a superset included; what is swept and advised goes over the shipped ones.
#[test]
fn thresholds_of_other_models_are_not_replayed() {
    let (entries, labels) = planted_threshold(3, 300, 0.7);
    let lax = OperatingPoint { auto: 0.0, auto_learned: None, auto_margin: 0.0, suggest: 0.0, floor: 0.0, keep_under_floor: 2 };
    let of = |fitted_for: &[&str]| Policy {
        point: Some(lax.clone()),
        points: [("test".to_string(), lax.clone())].into(),
        fitted_for: fitted_for.iter().map(|m| m.to_string()).collect(),
        ..Policy::default()
    };
    let config = config("auto precision >= 0.9", &[Sweep::Threshold], 0.0);
    let plain = run(&entries, &labels, &Policy::default(), &config);
    for foreign in [&["another/int8/2"][..], &["fake/int8/1", "another/int8/2"]] {
        let report = run(&entries, &labels, &of(foreign), &config);
        assert_eq!(report.settings[1].figures, plain.settings[1].figures);
        assert!(report.notes.iter().any(|n| n.contains("fitted for") && n.contains("another/int8/2")), "{:?}", report.notes);
        assert!(table::text(&report).contains("warning: the thresholds of the current policy were fitted for"));
        let written = |r: &Report| r.advice.recommended.as_ref().map(|r| r.write.clone());
        assert_eq!(written(&report), written(&plain), "nothing of the foreign point is advised");
    }
    let own = run(&entries, &labels, &of(&["fake/int8/1"]), &config);
    assert!(own.notes.is_empty() && own.settings[1].figures.auto.unwrap().value > 0.9, "{:?}", own.settings[1].figures.auto);
}

#[test]
fn what_moves_is_told_with_its_reason() {
    let (entries, labels) = planted_threshold(5, 300, 0.7);
    let strict = Policy { point: Some(OperatingPoint { auto: 0.99, ..settings::point_of(&Policy::default()) }), ..Policy::default() };
    let report = run(&entries, &labels, &strict, &config("auto precision >= 0.95", &[], 0.0));
    let now = &report.settings[1];
    assert!(now.moved > 15 && now.moved_by["auto → suggest"] == now.moved, "{:?}", now.moved_by);
    assert!(now.moves[0].why.contains("below 0.99"), "{}", now.moves[0].why);
    assert_eq!(report.reproduced, (300, 300));
    assert!(table::text(&report).contains("auto → suggest") || table::text(&report).contains("suggest"));
}

/// Picking again from the log equals deciding on the View, for the logged policy and for others, over a real fleet.
#[tokio::test]
async fn a_repick_is_the_full_function() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    let manifests = files::read(&root.join("fleet"), &Rules::default()).unwrap().manifests;
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { explore: 0.3, ..Policy::default() };
    let bench = Bench::untaught(Arc::new(fakes()), manifests, policy.clone(), folder.path()).await.unwrap();
    let all = queries::sample(queries::read(&root.join("queries.jsonl"), Some("dev")).unwrap(), Some(40), 3);
    let others = settings::of(&[Sweep::Threshold, Sweep::Weights, Sweep::Preset], &policy);
    let (mut compared, mut inexact) = (0, 0);
    for (i, query) in all.iter().enumerate() {
        let asked = bench.ask(query, i as u64, 5).await.unwrap();
        let body = Body::of(&asked.query, &asked.list, &asked.decision, &policy, true).json();
        let text = serde_json::to_string(&body).unwrap();
        let logged = serde_json::from_str::<Logged>(&text).unwrap().checked().unwrap();
        let view = bench.view();
        for policy in std::iter::once(&policy).chain(others.iter().step_by(11).map(|s| &s.policy)) {
            let (_, full) = pipeline::decide(&View { policy: Arc::new(policy.clone()), ..(*view).clone() }, &asked.query);
            let again = logged.repick(policy);
            if !logged.exact_under(policy) {
                inexact += 1;
                continue;
            }
            compared += 1;
            assert_eq!((again.kind, again.confidence), (full.kind, full.confidence), "{}", query.query);
            let over = |d: &crate::types::decision::Decision| {
                d.candidates.iter().filter(|c| !c.under_floor).map(|c| (c.agent.clone(), c.capability.clone(), c.score)).collect::<Vec<_>>()
            };
            assert_eq!(over(&again), over(&full), "{}", query.query);
            assert_eq!(again.candidates.first().map(|c| &c.agent), full.candidates.first().map(|c| &c.agent), "{}", query.query);
        }
    }
    assert!(compared > 200 && inexact * 4 < compared, "{compared} compared, {inexact} not comparable");
}
