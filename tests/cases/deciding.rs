//! What is decided, and from what: thresholds and their models, ranks that are no confidence, evidence that is missing.

use crate::harness::*;
use agent_reach::embed::Embed;
use agent_reach::embed::catalog::Catalog;
use agent_reach::embed::models::Models;
use agent_reach::embed::testing::Fake;
use agent_reach::embed::worker::WorkerConfig;
use agent_reach::types::policy::{OperatingPoint, Policy};
use agent_reach::types::request::ResolveRequest;
use agent_reach::types::{Candidate, DecisionKind, Lang, Principal};
use std::sync::Arc;

fn evidence(candidate: &Candidate, name: &str) -> f32 {
    candidate.evidence.iter().find(|t| t.name == name).map_or(f32::NAN, |t| t.value)
}

/// T1, T3: thresholds stand for the models they were fitted with. Under other models the decision says `uncalibrated` and names the models it asked,
/// also where the operator wrote the thresholds.
#[tokio::test]
async fn thresholds_of_other_models_are_not_trusted() {
    let written = Policy { point: Some(OperatingPoint { auto: 0.1, suggest: 0.1, ..OperatingPoint::default() }), ..Policy::default() };
    for policy in [Policy::default(), written] {
        let w = world_with(policy).await;
        w.register(agent("orders", "desk", &[("refund_create", "give the money of an order back to the customer")])).await;
        let d = w.ask("the customer wants the money of the order back").await.decision;
        assert!(!d.calibrated && d.warnings.iter().any(|n| n.code == "uncalibrated"), "{d:#?}");
        assert!(d.generations.models.iter().any(|m| m.starts_with("fake-en/")), "{:?}", d.generations);
        // a name needs no threshold
        let d = w.ask("refund_create").await.decision;
        assert!(d.kind == DecisionKind::Auto && d.warnings.iter().all(|n| n.code != "uncalibrated"), "{:?}", d.warnings);
    }
}

/// What is reported, denied or asked about is offered and not carried out, unless explaining is what the capability is for (A19).
#[tokio::test]
async fn what_is_told_is_not_taken_for_a_request() {
    let lax = Policy { point: Some(OperatingPoint { auto: 0.0, suggest: 0.0, ..OperatingPoint::default() }), ..Policy::default() };
    let w = world_with(lax).await;
    w.register(agent(
        "orders",
        "desk",
        &[("order_cancel", "cancel an order of a customer"), ("word_define", "explains what a word means")],
    ))
    .await;
    assert_eq!(w.ask("cancel an order of that customer").await.decision.kind, DecisionKind::Auto);
    for text in ["the customer cancelled an order already", "what happens if a customer cancels an order"] {
        let d = w.ask(text).await.decision;
        assert!(d.kind == DecisionKind::Suggest && d.reasons.iter().any(|r| r.code == "not_asked"), "{text}: {d:#?}");
    }
    let d = w.ask("explain what a word means").await.decision;
    assert!(d.reasons.iter().all(|r| r.code != "not_asked"), "{d:#?}");
}

/// A target that can't is told apart from one that is not there; one that may not be seen is not there.
#[tokio::test]
async fn a_target_that_cannot_is_named() {
    let w = world().await;
    w.register(agent("orders", "desk", &[("order_cancel", "cancel an order")])).await;
    let why = |target: &str, capability: &str| {
        let request = ResolveRequest { target: Some(target.into()), capability: Some(capability.into()), ..ResolveRequest::default() };
        let w = &w;
        async move { w.resolver.resolve(&Principal::local("t"), &request).await.unwrap().decision.reasons[0].text.clone() }
    };
    assert_eq!(why("orders/desk", "fly").await, "orders/desk offers no capability \"fly\"");
    assert_eq!(why("orders/none", "order_cancel").await, "no agent orders/none is there");
}

/// T1, T3: a name is not enough: weights that are not proven to be those of the name are read without thresholds.
#[tokio::test]
async fn a_name_does_not_bring_its_thresholds() {
    for proven in [false, true] {
        let names = [("bge-small-zh-v1.5", Lang::Zh, 512), ("bge-small-en-v1.5", Lang::En, 384)];
        let fakes: Vec<_> = names
            .map(|(name, lang, dim)| Fake::new(name, lang, dim))
            .map(|fake| Arc::new(if proven { fake.proven() } else { fake }))
            .into();
        let arms = fakes.iter().map(|f| f.clone() as Arc<dyn Embed>).collect();
        let models = Models::from_arms(arms, &WorkerConfig { threads: 1, ..WorkerConfig::default() }, 1 << 20).unwrap();
        let w = build(tempfile::tempdir().unwrap(), Policy::default(), Arc::new(models), fakes).await;
        w.register(agent("orders", "desk", &[("refund_create", "give the money of an order back to the customer")])).await;
        let d = w.ask("the customer wants the money of the order back").await.decision;
        assert_eq!((d.calibrated, d.warnings.iter().any(|n| n.code == "uncalibrated")), (proven, !proven), "{d:#?}");
    }
}

/// T1: the shipped calibration names models of the catalogue. How those read a text (pooling, instruction, case, window) is part of what it was fitted
/// with: whoever changes that refits it (`eval/fit/README.md`) and writes the new reading here.
#[test]
fn the_calibrated_models_read_as_when_they_were_fitted() {
    let fitted = [("bge-small-zh-v1.5", 512, false), ("bge-small-en-v1.5", 384, false)];
    let weights: serde_json::Value = serde_json::from_str(include_str!("../../src/route/weights/confidence.json")).unwrap();
    let named: Vec<&str> = weights["models"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    assert_eq!(named, fitted.map(|(name, ..)| name));
    let catalog = Catalog::shipped();
    for (name, dim, lowercase) in fitted {
        let spec = catalog.get(name).unwrap();
        assert_eq!((spec.dim, spec.max_tokens, spec.lowercase), (dim, 512, lowercase), "{name}: refit the calibration");
        assert_eq!(format!("{:?}", spec.pooling), "Cls", "{name}: refit the calibration");
    }
}

/// T5: one document, no word in common, far away: whatever its rank (it is the first of one), the answer is not `auto`, and the fused score is no probability.
#[tokio::test]
async fn the_first_of_one_is_not_the_right_one() {
    let w = world().await;
    w.register(agent("zoo", "keeper", &[("feed_zebra", "zz zzz xx xxx")])).await;
    let request = ResolveRequest { query: "hmm mummum".into(), namespaces: vec!["zoo".into()], ..asking() };
    let d = w.resolve(&Principal::local("t"), request).await.unwrap().decision;
    assert_ne!(d.kind, DecisionKind::Auto, "{d:#?}");
    let Some(first) = d.candidates.first() else { return };
    assert_eq!(evidence(first, "bm25"), 0.0);
    assert!(d.confidence.get() < 0.8 && (0.0..=1.0).contains(&first.probability.get()), "{d:#?}");
}

/// L9: where no word fits, the words say nothing (0), not something bad: the nearest by meaning keeps its place in the list.
#[tokio::test]
async fn missing_words_are_zero_and_never_less() {
    let point = OperatingPoint { floor: 0.0, suggest: 0.0, ..OperatingPoint::default() };
    let w = world_with(Policy { point: Some(point), ..Policy::default() }).await;
    w.register(agent(
        "house",
        "a",
        &[
            ("one_candle", "light qqqq wwww vvvv jjjj kkkk"),
            ("two_candle", "light uuuu iiii oooo pppp bbbb"),
            ("three_candle", "light xxxx cccc gggg ffff dddd"),
            ("near_by", "lampost lightt atth nightt"),
        ],
    ))
    .await;
    let d = w.ask("lampost2 light atth2 night2").await.decision;
    assert_eq!(d.candidates.len(), 4, "{d:#?}");
    let near = d.candidates.iter().find(|c| &*c.capability == "near_by").unwrap();
    assert_eq!(evidence(near, "bm25"), 0.0);
    for other in d.candidates.iter().filter(|c| &*c.capability != "near_by") {
        assert!(evidence(other, "bm25") > 0.0 && evidence(other, "cosine") < evidence(near, "cosine"), "{other:#?}");
    }
}

/// K4, A21: what else an agent offers is no evidence: the same capability in a manifest of one and in a manifest of fifty scores the same.
#[tokio::test]
async fn the_size_of_a_manifest_is_no_score() {
    let w = world().await;
    let offer = ("translate_text", "translate a text into another language");
    w.register(agent("small", "desk", &[offer])).await;
    let names: Vec<String> = (0..49).map(|i| format!("other_thing_{i}")).collect();
    let many: Vec<(&str, &str)> =
        std::iter::once(offer).chain(names.iter().map(|n| (n.as_str(), "does some other thing for somebody in the house"))).collect();
    w.register(agent("large", "desk", &many)).await;
    let mut first = 0;
    for seed in 0..60 {
        let r = ResolveRequest { query: "please translate this letter into French".into(), seed: Some(seed), ..asking() };
        let d = w.resolve(&Principal::local("t"), r).await.unwrap().decision;
        let of = |namespace: &str| {
            let it = |c: &&Candidate| c.agent.namespace.as_str() == namespace && &*c.capability == "translate_text";
            d.candidates.iter().find(it).unwrap().clone()
        };
        let (small, large) = (of("small"), of("large"));
        assert!((small.probability.get() - large.probability.get()).abs() < 0.01 && (small.score - large.score).abs() < 0.01, "{d:#?}");
        first += usize::from(d.candidates[0].agent == small.agent);
    }
    assert!((15..=45).contains(&first), "the small one is first in {first} of 60");
}

/// I8, A4: who is gone by the time of the decision is not in it, though it was there when the request came.
#[tokio::test]
async fn who_left_while_the_text_was_read_is_not_answered() {
    let w = world().await;
    w.register(agent("ns", "stays", &[("translate_text", "translate a text into another language")])).await;
    w.register(agent("ns", "leaves", &[("translate_text", "translate a text into another language")])).await;
    w.fakes.iter().for_each(|f| f.close());
    let begun: u64 = w.fakes.iter().map(|f| f.entered()).sum();
    let asking = w.ask("please translate this letter");
    let leaving = async {
        while w.fakes.iter().map(|f| f.entered()).sum::<u64>() == begun {
            tokio::task::yield_now().await;
        }
        w.ingest.deregister(&Principal::local("t"), &key("ns", "leaves")).await.unwrap();
        w.fakes.iter().for_each(|f| f.open());
    };
    let (answer, ()) = tokio::join!(asking, leaving);
    let who: Vec<String> = answer.decision.candidates.iter().map(|c| c.agent.agent_id.to_string()).collect();
    assert_eq!(who, ["stays"]);
}

/// E5, A9: inference stands still, and on one thread everything that needs none goes on: names, lists, heartbeats, removals.
#[tokio::test]
async fn inference_holds_up_nobody_else() {
    let w = world().await;
    w.register(agent("ns", "a", &[("translate_text", "translate a text into another language")])).await;
    w.fakes.iter().for_each(|f| f.close());
    let begun: u64 = w.fakes.iter().map(|f| f.entered()).sum();
    let names: Vec<String> = (0..300).map(|i| format!("do_thing_{i}")).collect();
    let rows: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "does a thing that takes long to read")).collect();
    let long = w.register(agent("ns", "big", &rows));
    let others = async {
        while w.fakes.iter().map(|f| f.entered()).sum::<u64>() == begun {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            assert_eq!(w.ask("translate_text").await.decision.kind, DecisionKind::Auto);
            let page = w.ingest.list(&Principal::local("t"), &Default::default()).unwrap();
            assert_eq!(page.agents.len(), 1, "the long one is not there yet");
            w.ingest.heartbeat(&Principal::local("t"), &key("ns", "a"), Default::default()).await.unwrap();
        }
        w.fakes.iter().for_each(|f| f.open());
    };
    let (registered, ()) = tokio::join!(long, others);
    assert_eq!(registered.capabilities, 300);
}
