//! One evaluation: registers a set's manifests and asks its labelled queries, through the same ingest and route code as serving.
//!
//! In: manifests, queries, models. Out: quality of the arms and of the whole, shares and precision of the decisions, latency.
//! The caller sees every namespace of the set. Clock and dice are fixed, so two runs give the same figures (latency aside).
//! Vectors go to a store of their own, which may be kept between runs.

use crate::catalog::schema::Schemas;
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::embed::models::Models;
use crate::error::Error;
use crate::eval::metrics::{self, Judged, RankSum};
use crate::eval::outcomes;
use crate::eval::parts;
use crate::eval::queries::{Labelled, Mode};
use crate::index::dense::DenseConfig;
use crate::index::keyword::LexConfig;
use crate::ingest::{self, Boot, Ingest, IngestConfig};
use crate::route::pipeline;
use crate::route::resolver::{DecisionSink, Resolver, ResolverConfig};
use crate::route::shortlist::{Item, Shortlist};
use crate::store::{Durability, OutcomeQuery, Store};
use crate::types::decision::Decision;
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{Long, Rules};
use crate::types::policy::Policy;
use crate::types::query::Query;
use crate::types::request::ResolveRequest;
use crate::types::{Fault, Grant, Principal};
use crate::view::Views;
use parking_lot::Mutex;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// 2026-01-05 10:00 in Shanghai, a Monday: the fixed time of evaluations.
pub const AT_MS: i64 = 1_767_578_400_000;

/// What to evaluate.
pub struct RunConfig {
    /// Checked manifests.
    pub manifests: Vec<Manifest>,
    /// Labelled queries.
    pub queries: Vec<Labelled>,
    /// Seed of the dice.
    pub seed: u64,
    /// Policy; the shipped one by default.
    pub policy: Policy,
    /// Candidates suggested.
    pub k: usize,
}

/// Ranks of one arm.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArmRanks {
    /// Share with a right answer first.
    pub top1: f64,
    /// Share with a right answer among the first three.
    pub top3: f64,
}

/// Ranks of the arms.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Arms {
    /// Meaning alone: the best cosine over name-and-description and examples.
    pub dense: ArmRanks,
    /// Words alone.
    pub keyword: ArmRanks,
    /// Both, weighed.
    pub fused: ArmRanks,
}

/// Quantiles of one route, embedding included, milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Figures of one run. Shares are fractions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Queries with a right answer.
    pub n_in_scope: usize,
    /// Queries that nobody can do.
    pub n_out_of_scope: usize,
    /// Share with a right answer first.
    pub top1: f64,
    /// Share with a right answer among the first three.
    pub top3: f64,
    /// Mean reciprocal rank.
    pub mrr: f64,
    /// Share of right answers within the first ten.
    pub recall_at_10: f64,
    /// Each arm alone.
    pub arms: Arms,
    /// The three answers.
    pub decisions: metrics::Decisions,
    /// Expected calibration error of the top confidence, ten equal bins.
    pub ece: f64,
    /// Brier score of the same.
    pub brier: f64,
    /// AUROC of the same: right top answer against not.
    pub auroc: Option<f64>,
    /// The same by language and by kind of difficulty.
    pub by: parts::Parts,
    /// Latency of one route.
    pub latency_ms: Latency,
    /// Median of the route beside embedding, milliseconds.
    pub route_ms_p50: f64,
    /// Fingerprints of the models.
    pub models: Vec<String>,
    /// Agents registered.
    pub agents: usize,
    /// Capabilities registered.
    pub capabilities: usize,
    /// Texts embedded for the fleet by this run.
    pub embedded: usize,
    /// What was learned before the first query.
    pub taught: outcomes::Taught,
}

/// Notes the last shortlist, whose order of the arms the decision does not carry.
#[derive(Default)]
struct Last(Mutex<Option<(Query, Shortlist)>>);

impl DecisionSink for Last {
    fn take(&self, query: &Query, list: &Shortlist, _: &Decision, _: &Policy) {
        *self.0.lock() = Some((query.clone(), list.clone()));
    }
}

/// A fleet in memory, ready to be asked.
pub struct Bench {
    ingest: Arc<Ingest>,
    resolver: Resolver,
    clock: ManualClock,
    last: Arc<Last>,
    /// What the registration did.
    pub batch: ingest::Batch,
    /// What was learned.
    pub taught: outcomes::Taught,
    /// Time of the questions, RFC 3339; [`AT_MS`] when absent.
    pub at: Option<String>,
    views: Arc<Views>,
}

impl Bench {
    /// Registers `manifests`. `data` keeps vectors between runs.
    pub async fn build(models: Arc<Models>, manifests: Vec<Manifest>, policy: Policy, data: &Path) -> Result<Self, Error> {
        let mut bench = Self::untaught(models, manifests, policy, data).await?;
        let lesson = outcomes::learn(&bench.ingest).await?;
        bench.taught = outcomes::Taught { classes: lesson.classes, texts: lesson.texts, ..outcomes::Taught::default() };
        Ok(bench)
    }

    /// The same without anything learned from the fleet's own texts: what a model alone is worth.
    pub async fn untaught(models: Arc<Models>, manifests: Vec<Manifest>, policy: Policy, data: &Path) -> Result<Self, Error> {
        let store = Arc::new(Store::open(data, Durability::Process)?);
        // vectors may be kept between runs, what was learned may not
        store.forget_outcomes(OutcomeQuery::default()).await?;
        let manual = ManualClock::at(AT_MS);
        let clock: Arc<dyn Clock> = Arc::new(FixedClock(manual.clone()));
        let boot = Boot {
            store,
            models,
            schemas: Schemas::inline(),
            clock: clock.clone(),
            policy,
            dense: DenseConfig::default(),
            words: LexConfig::default(),
            config: IngestConfig { rules: Rules { long: Long::Cut }, lenient_schemas: true, lint: false, ..IngestConfig::default() },
        };
        let (views, ingest) = ingest::start(boot).await?;
        let batch = ingest.register_many(&Principal::local("eval"), manifests).await?;
        let last = Arc::new(Last::default());
        let resolver = Resolver::new(views.clone(), clock, Some(last.clone()), ResolverConfig::default());
        Ok(Self { ingest, resolver, clock: manual, last, batch, taught: outcomes::Taught::default(), at: None, views })
    }

    /// Reports outcomes and learns from them, as a live node does.
    pub async fn teach(&mut self, lines: Vec<outcomes::Line>) -> Result<(), Error> {
        self.taught = outcomes::teach(&self.views.load(), &self.ingest, lines).await?;
        Ok(())
    }

    /// Reports outcomes without training on them: they are remembered in the history alone. Returns how many were taken.
    pub async fn remember(&mut self, lines: Vec<outcomes::Line>) -> Result<usize, Error> {
        let taught = outcomes::report_all(&self.views.load(), &self.ingest, lines).await?;
        Ok(taught.outcomes)
    }

    /// Registers manifests as one publisher, a minute after what was there.
    pub async fn publish(&mut self, publisher: &str, manifests: Vec<Manifest>) -> Result<(), Error> {
        self.clock.advance(Duration::from_secs(60));
        let batch = self.ingest.register_many(&owner(publisher), manifests).await?;
        if let Some((agent, error)) = batch.refused.first() {
            return Err(Error::internal(format!("{agent} was refused: {error}")));
        }
        self.batch.agents += batch.agents;
        self.batch.capabilities += batch.capabilities;
        Ok(())
    }

    /// Learns from what is there.
    pub async fn learn(&self) -> Result<(), Error> {
        outcomes::learn(&self.ingest).await.map(drop)
    }

    /// Removes what a publisher registered.
    pub async fn withdraw(&mut self, publisher: &str) -> Result<(), Error> {
        let keys: Vec<_> =
            self.views.load().catalog.agents().map(|a| a.entry.key.clone()).filter(|k| k.namespace.as_str() == publisher).collect();
        for key in keys {
            self.ingest.deregister(&owner(publisher), &key).await?;
        }
        Ok(())
    }

    /// The write path, for runs that register more.
    pub fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }

    /// The View that is asked.
    pub fn view(&self) -> Arc<crate::view::View> {
        self.views.load()
    }

    /// Learns from what is there for callers who see these parts of the fleet.
    pub async fn learn_for(&self, grants: impl IntoIterator<Item = Grant>) -> Result<(), Error> {
        self.ingest.learn_for(grants);
        self.learn().await
    }

    /// Candidates of a request by whom it may be. Several may be under way at once.
    pub async fn shortlist(&self, who: &Principal, request: &ResolveRequest) -> Result<Shortlist, Error> {
        let (query, _) = self.resolver.prepared(who, request).await?;
        Ok(pipeline::decide(&self.view(), &query).0)
    }

    /// Asks one query.
    pub async fn ask(&self, query: &Labelled, seed: u64, k: usize) -> Result<Asked, Error> {
        let request = ResolveRequest {
            query: query.query.clone(),
            caller: query.caller.clone(),
            tenant: query.tenant.clone(),
            seed: Some(seed),
            k: Some(k as u32),
            fallback: Some(false),
            at: self.at.clone(),
            explain: true,
            ..ResolveRequest::default()
        };
        self.resolve(&request).await
    }

    /// Resolves any request; one at a time.
    pub async fn resolve(&self, request: &ResolveRequest) -> Result<Asked, Error> {
        let resolved = self.resolver.resolve(&Principal::local("eval"), request).await?;
        let Some((query, list)) = self.last.0.lock().take() else { return Err(Error::internal("a decision was not noted")) };
        let (took_ms, route_ms) = (resolved.took_us as f64 / 1e3, resolved.route_us as f64 / 1e3);
        Ok(Asked { took_ms, route_ms, decision: resolved.decision, query, list })
    }
}

/// A publisher that owns the namespace it is called after.
fn owner(namespace: &str) -> Principal {
    Principal { namespaces: Grant::Only([Arc::from(namespace)].into()), ..Principal::local(namespace) }
}

/// Time of day stands still, instants run: hours and decay are deterministic, latency is measured.
struct FixedClock(ManualClock);

impl Clock for FixedClock {
    fn now_ms(&self) -> i64 {
        self.0.now_ms()
    }

    fn instant(&self) -> std::time::Instant {
        SystemClock.instant()
    }
}

/// An answer with what it was made from.
pub struct Asked {
    /// The decision.
    pub decision: Decision,
    /// The query as it was decided on.
    pub query: Query,
    /// Its shortlist.
    pub list: Shortlist,
    /// Milliseconds, embedding included.
    pub took_ms: f64,
    /// Milliseconds beside embedding.
    pub route_ms: f64,
}

/// Places of the expected entries in an ordering.
fn places<'a>(query: &Labelled, order: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<usize> {
    order.enumerate().filter(|(_, (a, c))| query.is_right(a, c)).map(|(i, _)| i).collect()
}

fn by(items: &[Item], key: impl Fn(&Item) -> Option<f32>) -> impl Iterator<Item = (&str, &str)> {
    let mut order: Vec<(f32, usize)> = items.iter().enumerate().filter_map(|(i, it)| Some((key(it)?, i))).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.into_iter().filter_map(|(_, i)| items.get(i)).map(|i| (&*i.agent.agent_id, &*i.capability))
}

/// What a query got, against what was expected of it.
pub fn judge(query: &Labelled, decision: &Decision) -> Judged {
    let candidates = || decision.candidates.iter().map(|c| (&*c.agent.agent_id, &*c.capability));
    let right = candidates().next().is_some_and(|(a, c)| query.is_right(a, c));
    Judged {
        kind: decision.kind,
        in_scope: !query.expected.is_empty(),
        right,
        whole: right && query.wants_one(),
        held: candidates().any(|(a, c)| query.is_right(a, c)),
        confidence: if decision.candidates.is_empty() { 0.0 } else { f64::from(decision.confidence.get()) },
    }
}

/// Runs the queries of `config` against `bench`; `tick` is called after each.
pub async fn run(bench: &Bench, models: &Models, config: &RunConfig, mut each: impl FnMut(&Labelled, &Asked)) -> Result<Report, Error> {
    let (mut fused, mut dense, mut keyword) = (RankSum::default(), RankSum::default(), RankSum::default());
    let mut judged = Vec::with_capacity(config.queries.len());
    let (mut took, mut route) = (Vec::new(), Vec::new());
    for (i, query) in config.queries.iter().enumerate() {
        let asked = bench.ask(query, config.seed.wrapping_add(i as u64), config.k).await?;
        took.push(asked.took_ms);
        route.push(asked.route_ms);
        let items = &asked.list.items;
        let candidates = &asked.decision.candidates;
        let in_scope = !query.expected.is_empty();
        if in_scope {
            let all = query.mode == Mode::All;
            // the ranking of the answer, continued by the shortlist where the answer ends
            let answered: Vec<(&str, &str)> = candidates.iter().map(|c| (&*c.agent.agent_id, &*c.capability)).collect();
            let rest = by(items, |i| Some(i.fused)).filter(|p| !answered.contains(p));
            let order = answered.iter().copied().chain(rest).collect::<Vec<_>>();
            fused.add(&places(query, order.into_iter()), query.expected.len(), all);
            dense.add(&places(query, by(items, |i| i.cosine)), query.expected.len(), all);
            keyword.add(&places(query, by(items, |i| (i.bm25 > 0.0).then_some(i.bm25))), query.expected.len(), all);
        }
        judged.push(judge(query, &asked.decision));
        each(query, &asked);
    }
    took.sort_by(f64::total_cmp);
    route.sort_by(f64::total_cmp);
    let ranks = fused.ranks();
    let arm = |sum: &RankSum| ArmRanks { top1: sum.ranks().top1, top3: sum.ranks().top3 };
    Ok(Report {
        n_in_scope: judged.iter().filter(|j| j.in_scope).count(),
        n_out_of_scope: judged.iter().filter(|j| !j.in_scope).count(),
        top1: ranks.top1,
        top3: ranks.top3,
        mrr: ranks.mrr,
        recall_at_10: ranks.recall_at_10,
        arms: Arms { dense: arm(&dense), keyword: arm(&keyword), fused: arm(&fused) },
        decisions: metrics::decisions(&judged),
        ece: metrics::ece(&judged),
        brier: metrics::brier(&judged),
        auroc: metrics::auroc(&judged),
        by: parts::of(&config.queries, &judged),
        latency_ms: Latency {
            p50: metrics::quantile(&took, 0.5),
            p95: metrics::quantile(&took, 0.95),
            p99: metrics::quantile(&took, 0.99),
        },
        route_ms_p50: metrics::quantile(&route, 0.5),
        models: models.fingerprints().iter().map(ToString::to_string).collect(),
        agents: bench.batch.agents,
        capabilities: bench.batch.capabilities,
        embedded: bench.batch.embedded,
        taught: bench.taught.clone(),
    })
}

/// Warnings of the registration, shortened for people.
pub fn warnings(bench: &Bench) -> Vec<Fault> {
    bench.batch.warnings.iter().take(20).cloned().collect()
}
