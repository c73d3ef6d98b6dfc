//! The ports of the doors, over the write and the read path.

use crate::api::ports::{FeedbackPort, MatcherPort, RegistryPort, Resolved, StatusPort, Version};
use crate::error::{Code, Error};
use crate::ingest::{Ingest, canary};
use crate::route::resolver::{self, Resolver};
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
        async move { self.ingest.register(who, &manifest).await }.boxed()
    }

    fn heartbeat<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, beat: Heartbeat) -> BoxFuture<'a, Result<AgentState, Error>> {
        self.ingest.heartbeat(who, agent, beat).boxed()
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

fn shown(resolved: resolver::Resolved) -> Resolved {
    Resolved { decision: resolved.decision, lang: resolved.lang, took_us: resolved.took_us, notes: resolved.notes }
}

impl MatcherPort for Matcher {
    fn resolve<'a>(&'a self, who: &'a Principal, request: ResolveRequest) -> BoxFuture<'a, Result<Resolved, Error>> {
        async move { self.resolver.resolve(who, &request).await.map(shown) }.boxed()
    }

    fn resolve_batch<'a>(&'a self, who: &'a Principal, requests: Vec<ResolveRequest>) -> BoxFuture<'a, Vec<Result<Resolved, Error>>> {
        async move { self.resolver.resolve_batch(who, &requests).await.into_iter().map(|r| r.map(shown)).collect() }.boxed()
    }
}

/// State of the whole.
pub struct Status {
    /// Resolves over the canary's fleet.
    pub canary: Arc<ArcSwap<Resolver>>,
    /// Current View.
    pub views: Arc<Views>,
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
            let pending = self.views.load().pending;
            if pending > 0 {
                return Err(Error::new(Code::Warming, format!("{pending} capabilities are still being embedded")));
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
