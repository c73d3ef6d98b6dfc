//! Cost of a route beside embedding at 1,000 capabilities of the scale corpora: with a plain View, and with everything on (live state of every
//! agent, history of the caller, rules, a principal that sees half). Needs the models; `cargo bench --bench route`.

use agent_reach::bench::corpus;
use agent_reach::catalog::schema::Schemas;
use agent_reach::clock::SystemClock;
use agent_reach::embed::fetch::Quiet;
use agent_reach::embed::models::{Models, ModelsConfig};
use agent_reach::history::Cooccurrence;
use agent_reach::index::dense::DenseConfig;
use agent_reach::index::keyword::LexConfig;
use agent_reach::ingest::{self, Boot, Ingest, IngestConfig};
use agent_reach::route::pipeline;
use agent_reach::route::resolver::{Resolver, ResolverConfig};
use agent_reach::store::{Durability, Store};
use agent_reach::types::policy::Policy;
use agent_reach::types::query::Query;
use agent_reach::types::request::{Heartbeat, ResolveRequest};
use agent_reach::types::rules::RuleSet;
use agent_reach::types::{Grant, Lang, Principal};
use agent_reach::view::{View, Views};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CAPABILITIES: usize = 1_000;

struct Fleet {
    views: Arc<Views>,
    ingest: Arc<Ingest>,
    resolver: Resolver,
    folder: tempfile::TempDir,
}

async fn fleet() -> Option<Fleet> {
    let models = match Models::load(&ModelsConfig { fetch: None, ..ModelsConfig::default() }, &Quiet) {
        Ok(models) => Arc::new(models),
        Err(e) => {
            println!("skipped: {e}");
            return None;
        }
    };
    let folder = tempfile::tempdir().ok()?;
    let clock = Arc::new(SystemClock);
    let boot = Boot {
        store: Arc::new(Store::open(folder.path(), Durability::Process).ok()?),
        models: models.clone(),
        schemas: Schemas::inline(),
        clock: clock.clone(),
        policy: Policy::default(),
        dense: DenseConfig::default(),
        words: LexConfig::default(),
        config: IngestConfig { lenient_schemas: true, lint: false, ..IngestConfig::default() },
    };
    let (views, ingest) = ingest::start(boot).await.ok()?;
    let all = corpus::read(&corpus::places()).ok()?;
    let batch = ingest.register_many(&Principal::local("bench"), corpus::take(&all, CAPABILITIES, 7)).await.ok()?;
    println!("{} capabilities of {} agents from {:?}", batch.capabilities, batch.agents, corpus::places());
    let resolver = Resolver::new(views.clone(), clock, None, ResolverConfig::default());
    Some(Fleet { views, ingest, resolver, folder })
}

async fn queries(fleet: &Fleet, who: &Principal, lang: Lang) -> Vec<Query> {
    let mut out = Vec::new();
    for (seed, text) in corpus::texts(lang, None).map(|t| t.0).unwrap_or_default().into_iter().take(200).enumerate() {
        let request = ResolveRequest { query: text, seed: Some(seed as u64), ..ResolveRequest::default() };
        out.extend(fleet.resolver.prepared(who, &request).await.ok().map(|(query, _)| query));
    }
    out
}

/// The View of a service that has been busy for a while.
fn everything(fleet: &Fleet) -> View {
    let view = fleet.views.load();
    let mut history = Cooccurrence::default();
    for (i, cap) in view.catalog.capabilities().enumerate().take(300) {
        history.record(None, "bench", &cap.key_text(), None, 1.0 + (i % 7) as f32, 1_700_000_000_000);
    }
    for agent in view.catalog.agents() {
        let beat = Heartbeat { load: Some(0.3), queue_length: Some(1), in_flight: Some(1), ..Heartbeat::default() };
        drop(fleet.ingest.live().lock().heartbeat(&agent.entry.key, &beat, 1_767_578_400_000));
    }
    fleet.ingest.refresh_live();
    let view = fleet.views.load();
    let rules = [
        r#"{"name":"no-docker-for-guests","action":"deny","callers":["guest-*"],"agents":["docker_mcp/*"]}"#,
        r#"{"name":"closed","action":"close","capabilities":["never_called"]}"#,
    ];
    let rules: Vec<_> = rules.iter().filter_map(|r| serde_json::from_str(r).ok()).collect();
    let rules = RuleSet::new(&rules).map(Arc::new).unwrap_or_else(|_| view.rules.clone());
    View { history: Arc::new(history), rules, ..(*view).clone() }
}

/// What a route costs at the median: of all requests, of those with one wish, of those with several.
// a bench is about time
#[allow(clippy::disallowed_methods)]
fn spread(name: &str, view: &View, asked: &[Query]) {
    // request after request, as they come in service: what one leaves in the caches is not the next one's
    let mut each = vec![Vec::new(); asked.len()];
    for _ in 0..20 {
        for (query, costs) in asked.iter().zip(&mut each) {
            let start = std::time::Instant::now();
            black_box(pipeline::decide(black_box(view), query));
            costs.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut costs: Vec<(bool, f64)> = Vec::new();
    for (query, mut each) in asked.iter().zip(each) {
        each.sort_by(f64::total_cmp);
        costs.push((query.parts.len() > 1, each.get(each.len() / 2).copied().unwrap_or_default()));
    }
    costs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let median = |of: &dyn Fn(bool) -> bool| {
        let costs: Vec<f64> = costs.iter().filter(|(several, _)| of(*several)).map(|(_, cost)| *cost).collect();
        format!("{:.3} ms ({} requests)", costs.get(costs.len() / 2).copied().unwrap_or_default(), costs.len())
    };
    println!("{name}: p50 {}, one wish {}, several {}", median(&|_| true), median(&|several| !several), median(&|several| several));
}

fn route(c: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return };
    let Some(fleet) = runtime.block_on(fleet()) else { return };
    let bare = fleet.views.load();
    let busy = everything(&fleet);
    let everyone = Principal::local("bench");
    let spaces: std::collections::BTreeSet<Arc<str>> =
        bare.catalog.agents().map(|a| Arc::from(a.entry.key.namespace.as_str())).step_by(2).collect();
    let some = Principal { namespaces: Grant::Only(spaces), ..Principal::local("bench") };
    for lang in [Lang::Zh, Lang::En] {
        for (name, view, who) in [("bare", &*bare, &everyone), ("everything on", &busy, &some)] {
            let asked = runtime.block_on(queries(&fleet, who, lang));
            spread(&format!("route/{CAPABILITIES}/{}/{name}", lang.as_str()), view, &asked);
            let mut at = 0;
            c.bench_function(&format!("route/{CAPABILITIES}/{}/{name}", lang.as_str()), |b| {
                b.iter(|| {
                    at = (at + 1) % asked.len().max(1);
                    asked.get(at).map(|query| pipeline::decide(black_box(view), query))
                })
            });
        }
    }
    drop(fleet.folder);
}

criterion_group!(benches, route);
criterion_main!(benches);
