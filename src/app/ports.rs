//! The ports of the doors, over the write and the read path.

use crate::api::ports::{FeedbackPort, MatcherPort, RegistryPort, Resolved, StatusPort, Version};
use crate::error::{Code, Error};
use crate::ingest::{Ingest, canary};
use crate::route::resolver::{self, Resolver};
use crate::telemetry::metrics::{Counter, count};
use crate::types::decision::DecisionKind;
use crate::types::outcome::{OutcomeFilter, OutcomePage, Report};
use crate::types::request::{AgentPage, AgentState, Heartbeat, ListRequest, Registered, RegistryEvent, ResolveRequest};
use crate::types::{AgentKey, Principal};
use crate::view::Views;
use arc_swap::ArcSwap;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt};
use serde_json::Value;
use std::sync::Arc;

/// The registry.
pub struct Registry {
    /// Write path.
    pub ingest: Arc<Ingest>,
}

impl RegistryPort for Registry {
    fn register<'a>(&'a self, who: &'a Principal, manifest: Value) -> BoxFuture<'a, Result<Registered, Error>> {
        async move {
            let answer = self.ingest.register(who, &manifest).await;
            let result = match &answer {
                Ok(registered) if registered.changed => "changed",
                Ok(_) => "unchanged",
                Err(_) => "refused",
            };
            count(Counter::Registrations, &[result]);
            answer
        }
        .boxed()
    }

    fn heartbeat<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, beat: Heartbeat) -> BoxFuture<'a, Result<AgentState, Error>> {
        async move {
            let answer = self.ingest.heartbeat(who, agent, beat).await;
            count(Counter::Heartbeats, &[if answer.is_ok() { "taken" } else { "refused" }]);
            answer
        }
        .boxed()
    }

    fn drain<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, draining: bool) -> BoxFuture<'a, Result<AgentState, Error>> {
        self.ingest.drain(who, agent, draining).boxed()
    }

    fn deregister<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey) -> BoxFuture<'a, Result<(), Error>> {
        self.ingest.deregister(who, agent).boxed()
    }

    fn get<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, version: Option<&'a str>) -> BoxFuture<'a, Result<AgentState, Error>> {
        self.ingest.get(who, agent, version).boxed()
    }

    fn list<'a>(&'a self, who: &'a Principal, which: ListRequest) -> BoxFuture<'a, Result<AgentPage, Error>> {
        async move { self.ingest.list(who, &which) }.boxed()
    }

    fn watch(&self, who: &Principal) -> BoxStream<'static, RegistryEvent> {
        self.ingest.watch(who).boxed()
    }
}

/// Outcomes.
pub struct Feedback {
    /// Write path.
    pub ingest: Arc<Ingest>,
}

impl FeedbackPort for Feedback {
    fn report<'a>(&'a self, who: &'a Principal, reports: Vec<Report>) -> BoxFuture<'a, Vec<Result<String, Error>>> {
        self.ingest.report(who, reports).boxed()
    }

    fn list<'a>(
        &'a self,
        who: &'a Principal,
        which: OutcomeFilter,
        limit: Option<u32>,
        after: Option<String>,
    ) -> BoxFuture<'a, Result<OutcomePage, Error>> {
        async move { self.ingest.outcomes(who, &which, limit, after.as_deref()) }.boxed()
    }

    fn forget<'a>(&'a self, who: &'a Principal, which: OutcomeFilter) -> BoxFuture<'a, Result<usize, Error>> {
        async move { self.ingest.forget(who, &which).await }.boxed()
    }
}

/// The matcher.
pub struct Matcher {
    /// Read path.
    pub resolver: Arc<Resolver>,
}

/// What a caller is shown. The catalog's generation counts everybody's registrations: operators see it, others 0.
fn shown(who: &Principal, resolved: resolver::Resolved) -> Resolved {
    let mut decision = resolved.decision;
    if !who.is_operator() {
        decision.generations.catalog = 0;
    }
    Resolved { decision, lang: resolved.lang, took_us: resolved.took_us, notes: resolved.notes }
}

impl MatcherPort for Matcher {
    fn resolve<'a>(&'a self, who: &'a Principal, request: ResolveRequest) -> BoxFuture<'a, Result<Resolved, Error>> {
        async move { self.resolver.resolve(who, &request).await.map(|r| shown(who, r)) }.boxed()
    }

    fn resolve_batch<'a>(&'a self, who: &'a Principal, requests: Vec<ResolveRequest>) -> BoxFuture<'a, Vec<Result<Resolved, Error>>> {
        async move { self.resolver.resolve_batch(who, &requests).await.into_iter().map(|r| r.map(|r| shown(who, r))).collect() }.boxed()
    }
}

/// State of the whole.
pub struct Status {
    /// Resolves over the canary's fleet.
    pub canary: Arc<ArcSwap<Resolver>>,
    /// Current View.
    pub views: Arc<Views>,
    /// Write path: knows what is still being embedded.
    pub ingest: Arc<Ingest>,
    /// Durability of the store, as it is in force.
    pub durability: String,
}

impl StatusPort for Status {
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let request = if self.views.load().models.fingerprints().is_empty() {
                // without models only names are known for sure
                ResolveRequest { capability: Some(canary::CAPABILITY.into()), fallback: Some(false), ..ResolveRequest::default() }
            } else {
                ResolveRequest { query: canary::QUERY.into(), fallback: Some(false), ..ResolveRequest::default() }
            };
            let resolved = self.canary.load_full().resolve(&Principal::local("readiness"), &request).await?;
            let found = resolved.decision.candidates.first().is_some_and(|c| &*c.capability == canary::CAPABILITY);
            if !found || resolved.decision.kind == DecisionKind::None {
                return Err(Error::new(Code::Internal, "the canary query was not routed to the canary"));
            }
            let left = self.ingest.left();
            if left > 0 {
                return Err(Error::new(Code::Warming, format!("{left} capabilities are still being embedded")));
            }
            Ok(())
        }
        .boxed()
    }

    fn version(&self) -> Version {
        let view = self.views.load();
        Version {
            version: env!("CARGO_PKG_VERSION").into(),
            catalog: view.catalog.generation(),
            models: view.models.fingerprints().iter().map(ToString::to_string).collect(),
            durability: self.durability.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::schema::Schemas;
    use crate::clock::{Clock, SystemClock};
    use crate::embed::Embed;
    use crate::embed::models::Models;
    use crate::embed::testing::Fake;
    use crate::embed::worker::WorkerConfig;
    use crate::index::dense::DenseConfig;
    use crate::index::keyword::LexConfig;
    use crate::ingest::{Boot, IngestConfig};
    use crate::route::resolver::ResolverConfig;
    use crate::store::{Durability, Store};
    use crate::types::Lang;
    use crate::types::policy::Policy;
    use serde_json::json;

    async fn open(folder: &std::path::Path, model: &str) -> (Status, Arc<Ingest>) {
        let fakes = [(Lang::Zh, "zh"), (Lang::En, "en")].map(|(lang, of)| Arc::new(Fake::new(&format!("{model}-{of}"), lang, 32)));
        let arms = fakes.iter().map(|f| f.clone() as Arc<dyn Embed>).collect();
        let models = Arc::new(Models::from_arms(arms, &WorkerConfig { threads: 1, ..WorkerConfig::default() }, 1 << 20).unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let boot = Boot {
            store: Arc::new(Store::open(folder, Durability::Process).unwrap()),
            models,
            schemas: Schemas::inline(),
            clock: clock.clone(),
            policy: Policy::default(),
            dense: DenseConfig::default(),
            words: LexConfig::default(),
            config: IngestConfig::default(),
        };
        let (views, ingest) = crate::ingest::start(boot).await.unwrap();
        ingest.load().await.unwrap();
        let canary = Resolver::new(ingest.canary().await.unwrap(), clock, None, ResolverConfig::default());
        let canary = Arc::new(ArcSwap::from_pointee(canary));
        (Status { canary, views, ingest: ingest.clone(), durability: String::new() }, ingest)
    }

    /// Ready means that everything registered is found by meaning: what a restart finds without vectors and what is announced is waited for.
    #[tokio::test]
    async fn ready_waits_for_vectors() {
        let folder = tempfile::tempdir().unwrap();
        let who = Principal::local("test");
        let manifest = |id: &str| {
            json!({"namespace": "ns", "agent_id": id, "ttl": "none", "endpoints": [{"protocol": "pull"}],
            "capabilities": [{"intent": "translate_text", "description": "translates a text"}]})
        };
        let (status, ingest) = open(folder.path(), "one").await;
        status.ready().await.unwrap();
        {
            let mut awaited = ingest.await_many(2);
            let left = |e: Error| (e.code, e.message);
            assert_eq!(left(status.ready().await.unwrap_err()), (Code::Warming, "2 capabilities are still being embedded".into()));
            ingest.register(&who, &manifest("a")).await.unwrap();
            awaited.came(1);
            assert!(status.ready().await.unwrap_err().message.starts_with("1 "));
        }
        status.ready().await.expect("an announcement that was given up is not waited for");
        drop((status, ingest));
        // other models: the vectors that the store holds are of no use
        let (status, ingest) = open(folder.path(), "two").await;
        assert_eq!(status.ready().await.unwrap_err().code, Code::Warming);
        while ingest.fill().await.unwrap() > 0 {}
        status.ready().await.unwrap();
        assert_eq!(ingest.current().arms.iter().map(|a| a.dense.len()).max(), Some(1), "ready means that it can be found by its vector");
    }
}
