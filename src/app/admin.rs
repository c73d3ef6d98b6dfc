//! What operators do to a running service: versions of the policy, and swaps of models.
//!
//! A swap goes `idle` → `preparing` → `ready` → `switched`; the models in use serve until the switch, and those before it stay beside afterwards, ready to
//! be taken back. Models, indexes and thresholds change in one publication; what is in force is written down, so that a restart serves the same.

use super::policies::{self, Versions};
use crate::api::ports::AdminPort;
use crate::clock::Clock;
use crate::embed::fetch::Quiet;
use crate::embed::models::{Models, ModelsConfig};
use crate::error::{Code, Error};
use crate::eval::agree::{Agreement, agree};
use crate::eval::models::spec::Spec;
use crate::eval::replay::aim::Aim;
use crate::eval::replay::entry::{Entry, Raw};
use crate::eval::replay::labels::{Labels, RawLabel};
use crate::ingest::{Beside, Ingest};
use crate::route::resolver::{Resolver, ResolverConfig};
use crate::store::Store;
use crate::tasks::{Stage, Tasks};
use crate::types::fault::Fault;
use crate::types::policy::{Policy, PolicyChange};
use arc_swap::ArcSwap;
use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of the value in the store that says which models serve, when it is not the configuration.
pub(super) const ACTIVE_MODELS: &str = "models.active";
/// Recent decisions that models are compared on.
const RECENT: usize = 500;

/// How far a swap is.
enum State {
    Idle,
    Preparing { spec: String, done: usize, of: usize },
    Ready { spec: String, beside: Beside, report: Arc<Agreement> },
    Switching { spec: String },
    Switched { spec: String, before: Beside, spec_before: Option<String>, version_before: u64, report: Arc<Agreement> },
    Failed { spec: String, why: String },
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Preparing { .. } => "preparing",
            Self::Ready { .. } => "ready",
            Self::Switching { .. } => "switching",
            Self::Switched { .. } => "switched",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The operator's side of a running service.
pub struct Admin {
    store: Arc<Store>,
    ingest: Arc<Ingest>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    configured: Policy,
    models: ModelsConfig,
    resolver: ResolverConfig,
    canary: Arc<ArcSwap<Resolver>>,
    versions: tokio::sync::Mutex<Versions>,
    state: Mutex<State>,
}

/// What [`Admin`] is made of.
pub struct AdminParts {
    /// Durable state.
    pub store: Arc<Store>,
    /// Write path.
    pub ingest: Arc<Ingest>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Owner of the tasks.
    pub tasks: Tasks,
    /// Policy of the configuration.
    pub configured: Policy,
    /// How models are loaded.
    pub models: ModelsConfig,
    /// Settings of the canary's resolver.
    pub resolver: ResolverConfig,
    /// The canary's resolver, which follows a swap.
    pub canary: Arc<ArcSwap<Resolver>>,
    /// Versions as they stand in the store.
    pub versions: Versions,
}

/// Loads models by a specification, with the worker and cache of the configuration. Blocks.
fn load(spec: &str, config: &ModelsConfig) -> Result<Arc<Models>, Error> {
    let spec: Spec =
        spec.parse().map_err(|e: String| Error::invalid_at("/prepare", "models as `reach eval models --models` names them", e))?;
    let (arms, _) = spec.load(&config.dir, config.fetch.as_ref(), &Quiet)?;
    let models = Models::from_arms(arms, &config.worker, config.vector_cache_bytes)?;
    models.warm_up()?;
    Ok(Arc::new(models))
}

/// The models that the last switch left in use, if it was not the configuration's.
pub fn switched_to(store: &Store, config: &ModelsConfig) -> Result<Option<Arc<Models>>, Error> {
    match store.meta(ACTIVE_MODELS)?.filter(|s| !s.is_empty()) {
        None => Ok(None),
        Some(spec) => {
            tracing::info!(models = spec, "serving with the models of the last switch, not with those of the configuration");
            load(&spec, config).map(Some).map_err(|e| Error {
                message: format!(
                    "the models of the last switch ({spec}) can't be loaded: {}; bring them back, or delete the value {ACTIVE_MODELS}",
                    e.message
                ),
                ..e
            })
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyRequest {
    apply: Option<PolicyChange>,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    why: String,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    fitted_on: Vec<String>,
    #[serde(default, deserialize_with = "present")]
    rollback: Option<Option<u64>>,
}

/// Tells `"rollback": null` from no `rollback` at all.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::<u64>::deserialize(d).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelsRequest {
    prepare: Option<String>,
    #[serde(default)]
    aim: Option<String>,
    #[serde(default)]
    labels: Vec<RawLabel>,
    #[serde(default)]
    switch: bool,
    #[serde(default)]
    rollback: bool,
    #[serde(default)]
    drop: bool,
}

fn asked<T: serde::de::DeserializeOwned>(request: Value) -> Result<T, Error> {
    serde_json::from_value(request).map_err(|e| Error::invalid_at("", "a request as the OpenAPI document describes it", e.to_string()))
}

fn not_now(what: &str, state: &State) -> Error {
    Error::new(Code::FailedPrecondition, format!("{what}; the swap is {}", state.name()))
}

impl Admin {
    /// Puts it together.
    pub fn new(parts: AdminParts) -> Arc<Self> {
        Arc::new(Self {
            store: parts.store,
            ingest: parts.ingest,
            clock: parts.clock,
            tasks: parts.tasks,
            configured: parts.configured,
            models: parts.models,
            resolver: parts.resolver,
            canary: parts.canary,
            versions: tokio::sync::Mutex::new(parts.versions),
            state: Mutex::new(State::Idle),
        })
    }

    fn shown_policy(&self, versions: &Versions) -> Value {
        json!({ "active": versions.active, "policy": versions.effective(&self.configured), "versions": versions.versions })
    }

    async fn change(&self, request: Value) -> Result<Value, Error> {
        let request: PolicyRequest = asked(request)?;
        let mut versions = self.versions.lock().await;
        let mut next = versions.clone();
        match (request.apply, request.rollback) {
            (Some(change), None) => {
                policies::check(&change, &self.configured)?;
                if !request.force {
                    let in_use: Vec<Arc<str>> = self.ingest.models().fingerprints();
                    policies::fits(&change, &request.fitted_on, &in_use.iter().map(|f| &**f).collect::<Vec<_>>())?;
                }
                next.add(self.clock.now_ms(), request.by.as_deref().unwrap_or("hand"), &request.why, change);
            }
            (None, Some(to)) => {
                next.roll_back(to)?;
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(Error::invalid_at("", "one of apply and rollback", "send one"));
            }
        }
        next.save(&self.store).await?;
        self.ingest.set_policy(next.effective(&self.configured));
        *versions = next;
        Ok(self.shown_policy(&versions))
    }

    fn shown_models(&self) -> Value {
        let models: Vec<String> = self.ingest.models().fingerprints().iter().map(ToString::to_string).collect();
        let state = self.state.lock();
        let mut out = json!({ "models": models, "state": state.name() });
        match &*state {
            State::Idle => {}
            State::Preparing { spec, done, of } => {
                out["prepare"] = json!(spec);
                out["capabilities"] = json!({ "done": done, "of": of });
            }
            State::Ready { spec, report, beside } => {
                out["prepare"] = json!(spec);
                out["capabilities"] = json!({ "done": beside.len(), "of": beside.len() });
                out["report"] = json!(report);
            }
            State::Switching { spec } => out["prepare"] = json!(spec),
            State::Switched { spec, report, before, .. } => {
                out["prepare"] = json!(spec);
                out["report"] = json!(report);
                out["before"] = json!(before.models.fingerprints());
            }
            State::Failed { spec, why } => {
                out["prepare"] = json!(spec);
                out["why"] = json!(why);
            }
        }
        out
    }

    fn recent(&self) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        for record in self.store.last_decisions(RECENT)? {
            // a record of a format that is not known any more can't be compared
            if let Ok(entry) = Raw::Record(Box::new(record)).entry()
                && entry.text.as_ref().is_some_and(|t| !t.trim().is_empty())
            {
                out.push(entry);
            }
        }
        Ok(out)
    }

    async fn prepare(&self, spec: &str, aim: &Aim, labels: &Labels) -> Result<(Beside, Arc<Agreement>), Error> {
        let (spec_, config) = (spec.to_string(), self.models.clone());
        let models = tokio::task::spawn_blocking(move || load(&spec_, &config)).await.map_err(Error::internal)??;
        if models.fingerprints() == self.ingest.models().fingerprints() {
            return Err(Error::new(Code::FailedPrecondition, "these models are in use already"));
        }
        let beside = self
            .ingest
            .beside(models, |done, of| {
                if let State::Preparing { done: d, of: o, .. } = &mut *self.state.lock() {
                    (*d, *o) = (done, of);
                }
            })
            .await?;
        let now = self.ingest.current();
        let then = self.ingest.view_beside(&beside, (*now.policy).clone());
        let report = agree(now, then, self.clock.clone(), &self.recent()?, labels, aim, &mut || ()).await?;
        Ok((beside, Arc::new(report)))
    }

    fn begin(self: &Arc<Self>, spec: String, aim: Option<&str>, labels: Vec<RawLabel>) -> Result<(), Error> {
        let aim: Aim = aim.map_or_else(|| Ok(Aim::default()), str::parse).map_err(|e: String| Error::invalid_at("/aim", "an aim", e))?;
        spec.parse::<Spec>().map_err(|e| Error::invalid_at("/prepare", "models as `reach eval models --models` names them", e))?;
        let unsound = labels.iter().enumerate().filter_map(|(i, l)| Some((i, l.check().err()?)));
        let faults: Vec<Fault> =
            unsound.take(20).map(|(i, why)| Fault::new(format!("/labels/{i}"), "a label as docs/replay.md describes it", why)).collect();
        if !faults.is_empty() {
            return Err(Error::invalid(faults));
        }
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Idle | State::Failed { .. }) {
                return Err(not_now("only one set of models can be beside; drop it first", &state));
            }
            *state = State::Preparing { spec: spec.clone(), done: 0, of: 0 };
        }
        let mut all = Labels::default();
        labels.into_iter().for_each(|l| all.add(l));
        let (this, stop) = (self.clone(), self.tasks.stop(Stage::Work));
        drop(self.tasks.spawn(Stage::Work, "swap", async move {
            let done = tokio::select! { () = stop.cancelled() => return, done = this.prepare(&spec, &aim, &all) => done };
            let mut state = this.state.lock();
            *state = match done {
                Ok((beside, report)) => State::Ready { spec, beside, report },
                Err(e) => {
                    tracing::warn!(models = spec, error = %e, "models could not be prepared");
                    State::Failed { spec, why: e.to_string() }
                }
            };
        }));
        Ok(())
    }

    /// Takes the state out for a switch; puts `Switching` in its place.
    fn taken(&self, want: &'static str) -> Result<State, Error> {
        let mut state = self.state.lock();
        if state.name() != want {
            return Err(not_now(
                if want == "ready" { "nothing is ready to be switched to" } else { "there is nothing to go back to" },
                &state,
            ));
        }
        let spec = match &*state {
            State::Ready { spec, .. } | State::Switched { spec, .. } => spec.clone(),
            State::Idle | State::Preparing { .. } | State::Switching { .. } | State::Failed { .. } => String::new(),
        };
        Ok(std::mem::replace(&mut *state, State::Switching { spec }))
    }

    async fn new_canary(&self) -> Result<(), Error> {
        let views = self.ingest.canary().await?;
        self.canary.store(Arc::new(Resolver::new(views, self.clock.clone(), None, self.resolver.clone())));
        Ok(())
    }

    async fn switch(&self) -> Result<(), Error> {
        let State::Ready { spec, beside, report } = self.taken("ready")? else {
            return Err(Error::internal("the state of the swap changed"));
        };
        let mut versions = self.versions.lock().await;
        let version_before = versions.active;
        let mut next = versions.clone();
        next.add(self.clock.now_ms(), "swap", &format!("models {spec}"), report.change.clone());
        match self.ingest.swap(beside, next.effective(&self.configured)).await {
            Err((e, beside)) => {
                *self.state.lock() = State::Ready { spec, beside, report };
                Err(e)
            }
            Ok(before) => {
                let spec_before = self.store.meta(ACTIVE_MODELS)?.filter(|s| !s.is_empty());
                *self.state.lock() = State::Switched { spec: spec.clone(), before, spec_before, version_before, report };
                *versions = next;
                versions.save(&self.store).await?;
                self.store.set_meta(ACTIVE_MODELS, &spec).await?;
                self.new_canary().await
            }
        }
    }

    async fn back(&self) -> Result<(), Error> {
        let State::Switched { spec, before, spec_before, version_before, report } = self.taken("switched")? else {
            return Err(Error::internal("the state of the swap changed"));
        };
        let mut versions = self.versions.lock().await;
        let mut next = versions.clone();
        next.roll_back(Some(version_before))?;
        match self.ingest.swap(before, next.effective(&self.configured)).await {
            Err((e, before)) => {
                *self.state.lock() = State::Switched { spec, before, spec_before, version_before, report };
                Err(e)
            }
            Ok(beside) => {
                *self.state.lock() = State::Ready { spec, beside, report };
                *versions = next;
                versions.save(&self.store).await?;
                self.store.set_meta(ACTIVE_MODELS, spec_before.as_deref().unwrap_or("")).await?;
                self.new_canary().await
            }
        }
    }

    fn let_go(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if matches!(*state, State::Preparing { .. } | State::Switching { .. }) {
            return Err(not_now("wait until it is done", &state));
        }
        match std::mem::replace(&mut *state, State::Idle) {
            State::Ready { beside, .. } => beside.models.stop(),
            State::Switched { before, .. } => before.models.stop(),
            State::Idle | State::Preparing { .. } | State::Switching { .. } | State::Failed { .. } => {}
        }
        Ok(())
    }
}

/// The door's side of [`Admin`].
pub struct AdminDoor(pub Arc<Admin>);

impl AdminPort for AdminDoor {
    fn policy(&self) -> BoxFuture<'_, Result<Value, Error>> {
        async move { Ok(self.0.shown_policy(&*self.0.versions.lock().await)) }.boxed()
    }

    fn change_policy(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>> {
        self.0.change(request).boxed()
    }

    fn models(&self) -> BoxFuture<'_, Result<Value, Error>> {
        async move { Ok(self.0.shown_models()) }.boxed()
    }

    fn swap_models(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>> {
        async move {
            let request: ModelsRequest = asked(request)?;
            let admin = &self.0;
            match (request.prepare, request.switch, request.rollback, request.drop) {
                (Some(spec), false, false, false) => admin.begin(spec, request.aim.as_deref(), request.labels)?,
                (None, true, false, false) => finish(admin.clone(), |a| async move { a.switch().await }).await?,
                (None, false, true, false) => finish(admin.clone(), |a| async move { a.back().await }).await?,
                (None, false, false, true) => admin.let_go()?,
                _ => return Err(Error::invalid_at("", "one of prepare, switch, rollback and drop", "send one")),
            }
            Ok(admin.shown_models())
        }
        .boxed()
    }
}

/// Runs a step that must not stop half-way because its caller left.
async fn finish<F>(admin: Arc<Admin>, step: impl FnOnce(Arc<Admin>) -> F + Send + 'static) -> Result<(), Error>
where
    F: std::future::Future<Output = Result<(), Error>> + Send + 'static,
{
    let (done, told) = tokio::sync::oneshot::channel();
    let tasks = admin.tasks.clone();
    drop(tasks.spawn(Stage::Work, "swap", async move {
        // whoever asked may have left
        drop(done.send(step(admin).await));
    }));
    told.await.map_err(|_| Error::internal("the step ended without an answer"))?
}
