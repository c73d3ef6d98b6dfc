//! Models swapped while the service runs: I11, I13 (indexes and dimensions never meet), T1, T3 (thresholds belong to models), A3, A11 (proof before the switch).

use crate::harness::*;
use agent_reach::clock::{Clock, ManualClock};
use agent_reach::embed::Embed;
use agent_reach::embed::models::Models;
use agent_reach::embed::testing::Fake;
use agent_reach::embed::worker::WorkerConfig;
use agent_reach::eval::agree::{How, agree};
use agent_reach::eval::replay::entry::Entry;
use agent_reach::eval::replay::labels::{Labels, RawLabel};
use agent_reach::route::logged::Body;
use agent_reach::route::pipeline;
use agent_reach::store::Store;
use agent_reach::types::policy::{OperatingPoint, Policy};
use agent_reach::types::query::Query;
use agent_reach::types::{Lang, Principal};
use std::sync::Arc;

/// One model for both languages under the name of the old Chinese one, with other dimensions.
fn others(dim: usize) -> (Arc<Fake>, Arc<Models>) {
    let fake = Arc::new(Fake::new("fake-zh", Lang::Mixed, dim));
    let worker = WorkerConfig { threads: 1, ..WorkerConfig::default() };
    let models = Models::from_arms(vec![fake.clone() as Arc<dyn Embed>], &worker, 1 << 20).unwrap();
    (fake, Arc::new(models))
}

async fn pumps(w: &World, numbers: std::ops::Range<usize>) {
    for i in numbers {
        w.register(agent("ns", &format!("a{i}"), &[(&format!("fix_pump_{i}"), &format!("repairs the water pump number {i}"))])).await;
    }
}

fn first(d: &agent_reach::types::decision::Decision) -> String {
    d.candidates.first().map(|c| c.capability.to_string()).unwrap_or_default()
}

#[tokio::test]
async fn the_old_index_serves_until_the_new_one_holds_everything() {
    let w = world().await;
    pumps(&w, 0..90).await;
    let before = w.ask("repairs the water pump number 7").await.decision;
    let (new, models) = others(128);
    // the new encoder stands still: a preparation that takes its time
    new.close();
    let (ingest, to_come) = (w.ingest.clone(), models.clone());
    let tasks = agent_reach::tasks::Tasks::new();
    let (done, told) = tokio::sync::oneshot::channel();
    drop(tasks.spawn(agent_reach::tasks::Stage::Work, "preparing", async move {
        drop(done.send(ingest.beside(to_come, |_, _| ()).await));
    }));
    while new.entered() == 0 {
        tokio::task::yield_now().await;
    }
    let meanwhile = w.ask("repairs the water pump number 7").await.decision;
    assert_eq!((first(&meanwhile), meanwhile.confidence), (first(&before), before.confidence), "nothing changed for callers");
    pumps(&w, 90..95).await;
    new.open();
    let beside = told.await.unwrap().unwrap();
    assert!(beside.len() >= 90);
    // and some that come after the preparation
    pumps(&w, 95..97).await;
    assert_eq!(w.ask("repairs the water pump number 92").await.decision.generations.models, w.models.fingerprints());

    let policy = Policy { point: Some(OperatingPoint { auto: 0.7, ..OperatingPoint::default() }), ..Policy::default() };
    let old = w.ingest.swap(beside, policy.clone()).await.map_err(|(e, _)| e).unwrap();
    let view = w.views.load();
    assert_eq!((view.models.fingerprints(), view.arms.len(), view.pending), (models.fingerprints(), 1, 0));
    assert_eq!(view.policy.point, policy.point, "models and thresholds change in one step");
    assert_eq!(view.arms[0].dense.len(), 97, "and what came meanwhile is in");
    assert_eq!(first(&w.ask("repairs the water pump number 95").await.decision), "fix_pump_95");

    // what is registered now is embedded by the new models alone, and is there after the way back
    let seen = w.embedded();
    pumps(&w, 97..99).await;
    assert_eq!(w.embedded(), seen, "the old models are asked no more");
    let again = w.ingest.swap(old, Policy::default()).await.map_err(|(e, _)| e).unwrap();
    assert_eq!(w.views.load().models.fingerprints(), w.models.fingerprints());
    assert_eq!(first(&w.ask("repairs the water pump number 98").await.decision), "fix_pump_98");
    let back = w.ask("repairs the water pump number 7").await.decision;
    assert_eq!(first(&back), first(&before));
    assert_eq!(again.len(), 99);
}

#[tokio::test]
async fn two_models_of_one_name_never_meet() {
    let w = world().await;
    pumps(&w, 0..20).await;
    let (small, first_models) = others(64);
    let (large, second_models) = others(128);
    let a = w.ingest.beside(first_models, |_, _| ()).await.unwrap();
    let b = w.ingest.beside(second_models.clone(), |_, _| ()).await.unwrap();
    assert_eq!((a.len(), b.len()), (20, 20));
    let (n, m) = (small.seen().len(), large.seen().len());
    // once more: the store knows every vector by its fingerprint
    let c = w.ingest.beside(second_models, |_, _| ()).await.unwrap();
    assert_eq!((small.seen().len(), large.seen().len(), c.len()), (n, m, 20));
    let folder = w.close();
    drop((a, b, c));
    let counts = loop {
        // the writer ends when the last handle of the store is gone
        match Store::open(folder.path(), agent_reach::store::Durability::Process) {
            Ok(store) => break store.vector_counts().unwrap(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let of = |name: &str| counts.iter().find(|(f, _)| f == name).map(|(_, n)| *n).unwrap_or(0);
    assert!(of("fake-zh/fake/64") > 0 && of("fake-zh/fake/128") > 0, "{counts:?}");
}

/// T1: thresholds that name other models than those in use don't hold, and the decision says so; it holds again when they do.
#[tokio::test]
async fn thresholds_of_another_model_are_said_to_be() {
    let lax = OperatingPoint { auto: 0.0, auto_learned: None, auto_margin: 0.0, suggest: 0.0, floor: 0.0, keep_under_floor: 2 };
    let policy = Policy { point: Some(lax), fitted_for: vec!["fake-zh/fake/64".into(), "fake-en/fake/64".into()], ..Policy::default() };
    let w = world_with(policy.clone()).await;
    pumps(&w, 0..10).await;
    let d = w.ask("somebody should look after water pump 3").await.decision;
    assert!(d.calibrated && !d.warnings.iter().any(|n| n.code == "uncalibrated"));
    // fitted for these and one more: scores are weighed differently beside a third, so that it is another set
    let mut wider = policy.clone();
    wider.fitted_for.push("bge-m3/int8/1".into());
    w.ingest.set_policy(wider);
    let d = w.ask("somebody should look after water pump 3").await.decision;
    assert!(!d.calibrated && d.warnings.iter().any(|n| n.code == "uncalibrated"));
    w.ingest.set_policy(policy.clone());
    let (_, models) = others(128);
    let beside = w.ingest.beside(models, |_, _| ()).await.unwrap();
    drop(w.ingest.swap(beside, policy).await.map_err(|(e, _)| e).unwrap());
    let d = w.ask("somebody should look after water pump 3").await.decision;
    assert!(!d.calibrated && d.warnings.iter().any(|n| n.code == "uncalibrated"));
    assert!(d.reasons.iter().all(|r| r.code != "clear"), "the lax thresholds don't hold: {:?}", d.reasons);
}

fn logged(w: &World, texts: &[String]) -> Vec<Entry> {
    let policy = w.views.load().policy.clone();
    let entry = |(i, text): (usize, &String)| {
        let mut query = Query::new(Principal::local("t"), text, MONDAY, i as u64);
        query.k = 5;
        let (list, mut decision) = pipeline::decide(&w.views.load(), &query);
        decision.decision_id = format!("d{i}");
        let body = Body::of(&query, &list, &decision, &policy, true).json();
        Entry {
            id: format!("d{i}"),
            at_ms: MONDAY,
            caller: "t".into(),
            text: Some(text.clone()),
            logged: serde_json::from_value(body).unwrap(),
        }
    };
    texts.iter().enumerate().map(entry).collect()
}

/// A11, A3: before a switch, both are asked the same; thresholds for the new ones come from labels, or only keep shares and say so.
#[tokio::test]
async fn agreement_and_thresholds_come_before_the_switch() {
    let w = world().await;
    pumps(&w, 0..60).await;
    let (_, models) = others(256);
    let beside = w.ingest.beside(models.clone(), |_, _| ()).await.unwrap();
    let view = w.views.load();
    let texts: Vec<String> = (0..60)
        .map(|i| format!("please, the water pump number {i} needs repairs"))
        .chain((0..40).map(|i| format!("zxq {i} vwk jjh ggf {}", i * 7)))
        .collect();
    let recent = logged(&w, &texts);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(MONDAY));
    let then = || w.ingest.view_beside(&beside, (*view.policy).clone());
    let aim = "auto precision >= 0.8".parse().unwrap();

    let none = Labels::default();
    let report = agree(view.clone(), then(), clock.clone(), &recent, &none, &aim, &mut || ()).await.unwrap();
    assert_eq!((report.requests, report.how), (100, How::Shares));
    assert!(report.change.fitted_for.is_empty() && report.notes.iter().any(|n| n.contains("no labels")), "{:?}", report.notes);
    assert!(report.same_first.is_some_and(|s| s > 0.4), "{:?}", report.same_first);

    let mut labels = Labels::default();
    for (i, entry) in recent.iter().enumerate() {
        let expected = if i < 60 { vec![(format!("a{i}"), format!("fix_pump_{i}"))] } else { Vec::new() };
        labels.add(RawLabel { decision_id: Some(entry.id.clone()), expected: Some(expected), ..RawLabel::default() });
    }
    let report = agree(view.clone(), then(), clock.clone(), &recent, &labels, &aim, &mut || ()).await.unwrap();
    assert!(report.figures_now.is_some(), "{:?}", report.notes);
    if report.how == How::Labels {
        assert_eq!(report.change.fitted_for, models.fingerprints().iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(report.figures_then.is_some());
    } else {
        assert!(
            report.notes.iter().any(|n| n.contains("no setting") || n.contains("too little") || n.contains("too thin")),
            "{:?}",
            report.notes
        );
    }
    let again = agree(view.clone(), then(), clock, &recent, &labels, &aim, &mut || ()).await.unwrap();
    assert_eq!(report, again, "deterministic");
    assert_eq!(w.views.load().models.fingerprints(), w.models.fingerprints(), "nothing was switched");
}
