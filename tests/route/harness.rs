//! A matcher in a temporary folder, with counted fake encoders.

use agent_reach::catalog::schema::Schemas;
use agent_reach::clock::{Clock, ManualClock};
use agent_reach::embed::models::Models;
use agent_reach::embed::testing::Fake;
use agent_reach::embed::worker::WorkerConfig;
use agent_reach::embed::{Embed, testing};
use agent_reach::error::Error;
use agent_reach::index::StackConfig;
use agent_reach::index::dense::DenseConfig;
use agent_reach::index::keyword::LexConfig;
use agent_reach::ingest::{self, Boot, Ingest, IngestConfig, Quota};
use agent_reach::route::resolver::{Resolved, Resolver, ResolverConfig};
use agent_reach::store::{Durability, Store};
use agent_reach::types::policy::Policy;
use agent_reach::types::request::{Registered, ResolveRequest};
use agent_reach::types::{AgentKey, Grant, Lang, Namespace, Principal};
use agent_reach::view::Views;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Monday 2026-01-05, 10:00 in Shanghai.
pub const MONDAY: i64 = 1_767_578_400_000;

pub struct World {
    pub folder: tempfile::TempDir,
    pub fakes: Vec<Arc<Fake>>,
    pub models: Arc<Models>,
    pub clock: ManualClock,
    pub views: Arc<Views>,
    pub ingest: Arc<Ingest>,
    pub resolver: Arc<Resolver>,
    pub loaded: ingest::Loaded,
}

pub async fn world() -> World {
    open(tempfile::tempdir().unwrap(), Policy::default(), "fake").await
}

pub async fn world_with(policy: Policy) -> World {
    open(tempfile::tempdir().unwrap(), policy, "fake").await
}

/// Opens a world in a folder that may hold one already. `model` names the encoders: another name is another model.
pub async fn open(folder: tempfile::TempDir, policy: Policy, model: &str) -> World {
    let (models, fakes) = encoders(model);
    build(folder, policy, models, fakes).await
}

fn encoders(model: &str) -> (Arc<Models>, Vec<Arc<Fake>>) {
    let fakes = vec![Arc::new(Fake::new(&format!("{model}-zh"), Lang::Zh, 64)), Arc::new(Fake::new(&format!("{model}-en"), Lang::En, 64))];
    let arms = fakes.iter().map(|f| f.clone() as Arc<dyn Embed>).collect();
    let worker = WorkerConfig { threads: 1, ..WorkerConfig::default() };
    (Arc::new(Models::from_arms(arms, &worker, 1 << 20).unwrap()), fakes)
}

/// The same on the real models.
pub async fn real(folder: tempfile::TempDir) -> World {
    let models = testing::models().expect("the small models can be had from the hub or through mvn");
    build(folder, Policy::default(), models, Vec::new()).await
}

/// A world whose indexes are cut into parts of other sizes.
pub async fn world_of_parts(stack: StackConfig) -> World {
    let (models, fakes) = encoders("fake");
    build_of(tempfile::tempdir().unwrap(), Policy::default(), models, fakes, stack).await
}

/// A world with these models.
pub async fn build(folder: tempfile::TempDir, policy: Policy, models: Arc<Models>, fakes: Vec<Arc<Fake>>) -> World {
    build_of(folder, policy, models, fakes, StackConfig::default()).await
}

async fn build_of(folder: tempfile::TempDir, policy: Policy, models: Arc<Models>, fakes: Vec<Arc<Fake>>, stack: StackConfig) -> World {
    let store = Arc::new(Store::open(folder.path(), Durability::Process).unwrap());
    let clock = ManualClock::at(MONDAY);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let boot = Boot {
        store,
        models: models.clone(),
        schemas: Schemas::inline(),
        clock: shared.clone(),
        policy,
        dense: DenseConfig { stack: stack.clone(), ..DenseConfig::default() },
        words: LexConfig { stack, ..LexConfig::default() },
        config: IngestConfig { quota: Quota { agents: 40, per_minute: 100 }, ..IngestConfig::default() },
    };
    let (views, ingest) = ingest::start(boot).await.unwrap();
    let loaded = ingest.load().await.unwrap();
    let resolver = Arc::new(Resolver::new(views.clone(), shared, None, ResolverConfig::default()));
    World { folder, fakes, models, clock, views, ingest, resolver, loaded }
}

impl World {
    /// Lets go of everything but the folder.
    pub fn close(self) -> tempfile::TempDir {
        self.models.stop();
        self.folder
    }

    pub async fn register(&self, manifest: Value) -> Registered {
        self.ingest.register(&Principal::local("test"), &manifest).await.unwrap()
    }

    pub async fn ask(&self, query: &str) -> Resolved {
        self.resolve(&Principal::local("test"), ResolveRequest { query: query.into(), ..asking() }).await.unwrap()
    }

    pub async fn resolve(&self, who: &Principal, request: ResolveRequest) -> Result<Resolved, Error> {
        self.resolver.resolve(who, &request).await
    }

    /// Texts that went through the encoders.
    pub fn embedded(&self) -> usize {
        self.fakes.iter().map(|f| f.seen().len()).sum()
    }
}

pub fn asking() -> ResolveRequest {
    ResolveRequest { seed: Some(7), explain: true, ..ResolveRequest::default() }
}

/// A static agent with capabilities given as (intent, English description).
pub fn agent(namespace: &str, id: &str, capabilities: &[(&str, &str)]) -> Value {
    let capabilities: Vec<Value> = capabilities.iter().map(|(intent, text)| json!({"intent": intent, "description": text})).collect();
    json!({"namespace": namespace, "agent_id": id, "ttl": "none", "endpoints": [{"protocol": "pull"}], "capabilities": capabilities})
}

pub fn member(namespaces: &[&str], scopes: &[&str]) -> Principal {
    let set = |names: &[&str]| Grant::Only(names.iter().map(|n| Arc::from(*n)).collect());
    Principal { namespaces: set(namespaces), scopes: set(scopes), ..Principal::local("member") }
}

pub fn key(namespace: &str, id: &str) -> AgentKey {
    AgentKey::local(Namespace::new(namespace).unwrap(), id)
}

/// The shared development data, or a word that the test is skipped.
pub fn shared(test: &str) -> Option<std::path::PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: {test}: ../shared is not here");
    None
}
