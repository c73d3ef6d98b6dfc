//! How the cost of a route grows with the fleet: the whole View of so many capabilities in memory, asked with real requests.
//!
//! In: a model, base manifests of its language with their vectors, a size, requests with theirs. Out: latency of recall and of the whole
//! route, recall against an exact scan, filtered search, time until an addition is seen, memory.
//! Vectors of recombined capabilities are made, not embedded: the mean of the parents' vectors in the same role, with the weight and the noise of
//! [`WEIGHT`] and [`NOISE`], L2-normalised. Everything else (catalog, words, names, sketches, lists) is the real thing. Not here: the store.

use super::corpus::{self, Draw, SHARES};
use super::figures::{Quantiles, round};
use super::machine;
use crate::catalog::Delta;
use crate::catalog::schema::Schemas;
use crate::clock::{Clock, SystemClock};
use crate::embed::ModelInfo;
use crate::embed::models::Models;
use crate::error::Error;
use crate::history::Cooccurrence;
use crate::index::dense::{DenseConfig, Role};
use crate::index::keyword::{LexConfig, LexIndex};
use crate::index::names::NameIndex;
use crate::ingest::texts::pieces;
use crate::ingest::{ArmWriter, ByText, Engine};
use crate::live::LiveSnapshot;
use crate::route::filter::Gate;
use crate::route::prepare::{Limits, prepare};
use crate::route::{pipeline, recall};
use crate::store::Registered;
use crate::types::manifest::Manifest;
use crate::types::query::{Query, QueryVector};
use crate::types::request::ResolveRequest;
use crate::types::{ContentHash, Grant, Principal};
use crate::view::{Background, View, Views};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Share of the first parent in a made vector.
pub const WEIGHT: f32 = 0.65;
/// Length of the noise in a made vector, against parents of length 1.
pub const NOISE: f32 = 0.45;
/// Capabilities whose additions are timed.
const ADDED: usize = 20;
/// Capabilities that are put in at once, so that texts and vectors of a large fleet are not held twice.
const CHUNK: usize = 65_536;
/// Neighbours that recall is measured over.
const NEAR: usize = 10;

/// What to measure with.
pub struct Base {
    /// The loaded models.
    pub models: Arc<Models>,
    /// The model.
    pub model: ModelInfo,
    /// Its scale.
    pub background: Arc<Background>,
    /// Agents of one capability in the model's language.
    pub manifests: Vec<Manifest>,
    /// Vectors of their texts.
    pub vectors: ByText,
    /// Requests with their vectors.
    pub requests: Vec<(Arc<str>, QueryVector)>,
}

/// Search in a part of the fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Filtered {
    /// Share of the fleet that is visible.
    pub share: f64,
    /// Visible capabilities.
    pub visible: u64,
    /// Of recall, both arms.
    #[serde(flatten)]
    pub latency: Quantiles,
    /// Of the dense arm, against an exact scan of the same part.
    pub recall_at_10: f64,
}

/// Figures of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Size {
    /// Capabilities.
    pub capabilities: usize,
    /// Vectors that searches look at.
    pub scanned_vectors: usize,
    /// Recall stage, both arms, filter on.
    pub recall: Quantiles,
    /// The whole route beside embedding.
    pub route: Quantiles,
    /// Dense arm alone.
    pub dense: Quantiles,
    /// Words alone: analysing, binding, searching.
    pub words: Quantiles,
    /// Dense arm against an exact scan.
    pub recall_at_10: f64,
    /// Parts of the fleet.
    pub filtered: Vec<Filtered>,
    /// From the registration of one capability to a View that shows it.
    pub visible: Quantiles,
    /// Ranges of vectors that are parted into lists.
    pub lists: usize,
    /// Seconds to fill catalog and indexes, sketches and lists included.
    pub build_s: f64,
    /// Memory of the process, MiB.
    pub rss_mib: f64,
    /// Of it, since before the fleet was built.
    pub fleet_mib: f64,
}

struct Made {
    manifest: Arc<Manifest>,
    vectors: Vec<(Arc<str>, Arc<[f32]>)>,
}

/// The `number`th capability with its vectors.
fn made(base: &Base, number: usize, seed: u64) -> Option<Made> {
    let born = corpus::recombined(&base.manifests, base.model.lang, number, seed)?;
    let parents = [born.parents.0, born.parents.1].map(|p| base.manifests.get(p).map(|m| of_roles(base, m)).unwrap_or_default());
    let capability = born.manifest.capabilities.first()?;
    let mut draw = Draw::new(seed ^ 0x5EED ^ (number as u64) << 20);
    let vectors = pieces(&born.manifest, capability, "", base.model.lang)
        .into_iter()
        .filter_map(|piece| {
            // an example is like what its second parent does
            let role = if piece.role == Role::Example { Role::Both } else { piece.role };
            let (a, b) = (parents[0].get(&role)?, parents[1].get(&role)?);
            let (a, b) = if piece.role == Role::Example { (b, a) } else { (a, b) };
            Some((piece.text, mixed(a, b, &mut draw)))
        })
        .collect();
    Some(Made { manifest: Arc::new(born.manifest), vectors })
}

fn of_roles<'a>(base: &'a Base, manifest: &Manifest) -> BTreeMap<Role, &'a Arc<[f32]>> {
    let Some(capability) = manifest.capabilities.first() else { return BTreeMap::new() };
    pieces(manifest, capability, "", base.model.lang).into_iter().filter_map(|p| Some((p.role, base.vectors.get(&p.text)?))).collect()
}

fn mixed(a: &[f32], b: &[f32], draw: &mut Draw) -> Arc<[f32]> {
    let noise = NOISE / (a.len().max(1) as f32).sqrt();
    let raw: Vec<f32> = a.iter().zip(b).map(|(a, b)| WEIGHT * a + (1.0 - WEIGHT) * b + noise * draw.normal()).collect();
    let length = raw.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-9);
    raw.into_iter().map(|v| v / length).collect()
}

fn registered(manifest: &Arc<Manifest>, generation: u64) -> Registered {
    Registered {
        manifest: manifest.clone(),
        hash: ContentHash::of_text(&manifest.agent_id),
        generation,
        owner: Arc::from("local"),
        registered_ms: 0,
        changed_ms: 0,
        draining: false,
    }
}

fn empty_view(base: &Base, words: &LexConfig) -> View {
    View {
        generation: 0,
        catalog: Default::default(),
        models: base.models.clone(),
        arms: Vec::new(),
        words: LexIndex::new(words.clone()).snapshot(),
        names: NameIndex::new().snapshot(),
        live: LiveSnapshot::default(),
        history: Arc::new(Cooccurrence::default()),
        policy: Default::default(),
        rules: Default::default(),
        pending: 0,
        learned: Arc::default(),
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let clock = SystemClock;
    let begin = clock.instant();
    let out = work();
    (out, clock.instant().duration_since(begin).as_secs_f64() * 1e3)
}

fn query(who: &Principal, text: &str, vector: &QueryVector, seed: u64) -> Result<Query, Error> {
    let request = ResolveRequest { query: text.to_owned(), ..ResolveRequest::default() };
    let (mut query, _) = prepare(who, &request, true, &Limits::default(), 1_767_578_400_000, seed)?;
    query.vectors = vec![vector.clone()];
    Ok(query)
}

/// Share of `truth` that is in `found`.
fn share(found: &[(u32, f32)], truth: &[(u32, f32)]) -> Option<f64> {
    (!truth.is_empty()).then(|| truth.iter().filter(|(slot, _)| found.iter().any(|(f, _)| f == slot)).count() as f64 / truth.len() as f64)
}

/// Builds a fleet of `n` capabilities and measures it. `exact` = requests that are also answered by an exact scan.
pub fn run(base: &Base, dense: &DenseConfig, words: &LexConfig, n: usize, exact: usize, seed: u64) -> Result<Size, Error> {
    let before = machine::rss_mib(None).unwrap_or(0.0);
    let views = Arc::new(Views::new(empty_view(base, words)));
    let writer = ArmWriter::new(base.model.clone(), dense.clone(), base.background.clone());
    let mut engine = Engine::new(base.models.clone(), vec![writer], words.clone(), views.clone());
    let schemas = Schemas::inline();
    let ((), build_ms) = timed(|| {
        let (mut all, mut vectors) = (Delta::default(), ByText::new());
        for number in 0..n {
            let Some(made) = made(base, number, seed) else { continue };
            all.added.extend(engine.catalog.register(&registered(&made.manifest, number as u64), &schemas).added);
            vectors.extend(made.vectors);
            if all.added.len() >= CHUNK {
                engine.apply(&std::mem::take(&mut all), Some(&[std::mem::take(&mut vectors)]));
            }
        }
        engine.apply(&all, Some(&[vectors]));
        engine.settle();
        engine.publish();
    });
    let view = views.load();
    let Some(arm) = view.arms.first() else { return Err(Error::internal("the fleet has no vectors")) };
    let everyone = Principal::local("bench");
    let queries: Vec<Query> =
        base.requests.iter().enumerate().map(|(i, (text, v))| query(&everyone, text, v, i as u64)).collect::<Result<_, _>>()?;
    let recall_of = |view: &View, query: &Query| {
        let visible = view.visible(&query.principal);
        let mut gate = Gate::new(view, query);
        let ask = recall::Ask { text: &query.text, vectors: &query.vectors, per_arm: recall::PER_ARM, cross: true };
        recall::recall(view, query, ask, &[], &visible, &mut gate).fleet
    };
    let each = |work: &dyn Fn(&Query)| {
        queries.iter().take(20).for_each(work);
        let mut took: Vec<f64> = queries.iter().map(|q| timed(|| work(q)).1).collect();
        Quantiles::of(&mut took)
    };
    let vector = |q: &Query| q.vectors.first().map(|v| v.vector.clone()).unwrap_or_default();
    let all = crate::index::Visible::all();
    let of_arm = each(&|q| drop(arm.dense.search(&vector(q), &all, recall::PER_ARM, &mut |_| true)));
    let of_words = each(&|q| {
        let asked = crate::index::keyword::LexQuery::new(&q.text);
        drop(view.words.bind(&asked, &all).search(recall::PER_ARM, &mut |_| true));
    });
    let of_recall = each(&|q| {
        std::hint::black_box(recall_of(&view, q));
    });
    let of_route = each(&|q| drop(pipeline::decide(&view, q)));
    let against = |visible: &crate::index::Visible| {
        let shares: Vec<f64> = queries
            .iter()
            .take(exact)
            .filter_map(|q| {
                let truth = arm.dense.search_exact(&vector(q), visible, NEAR, &mut |_| true);
                share(&arm.dense.search(&vector(q), visible, NEAR, &mut |_| true).hits, &truth.hits)
            })
            .collect();
        round(shares.iter().sum::<f64>() / shares.len().max(1) as f64)
    };
    let recall_at_10 = against(&all);
    let mut filtered = Vec::new();
    for (namespace, part) in SHARES {
        let who = Principal { namespaces: Grant::Only([Arc::from(namespace)].into()), ..Principal::local("bench") };
        let visible = view.visible(&who);
        let narrowed: Vec<Query> =
            base.requests.iter().enumerate().map(|(i, (text, v))| query(&who, text, v, i as u64)).collect::<Result<_, _>>()?;
        let mut took: Vec<f64> = narrowed.iter().map(|q| timed(|| recall_of(&view, q)).1).collect();
        let seen = narrowed.first().map_or(0, |q| recall_of(&view, q));
        filtered.push(Filtered { share: part, visible: seen, latency: Quantiles::of(&mut took), recall_at_10: against(&visible) });
    }
    let (lists, scanned_vectors) = (arm.dense.lists(), arm.dense.len());
    let mut added = Vec::new();
    for number in n..n + ADDED {
        let Some(made) = made(base, number, seed) else { continue };
        let ((), ms) = timed(|| {
            let delta = engine.catalog.register(&registered(&made.manifest, number as u64), &schemas);
            engine.apply(&delta, Some(&[made.vectors.into_iter().collect()]));
            engine.publish();
        });
        added.push(ms);
    }
    let rss = machine::rss_mib(None).unwrap_or(0.0);
    Ok(Size {
        capabilities: n,
        scanned_vectors: scanned_vectors * 2,
        recall: of_recall,
        route: of_route,
        dense: of_arm,
        words: of_words,
        recall_at_10,
        filtered,
        visible: Quantiles::of(&mut added),
        lists,
        build_s: round(build_ms / 1e3),
        rss_mib: rss.round(),
        fleet_mib: (rss - before).round(),
    })
}
