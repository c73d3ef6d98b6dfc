//! Opens the store, loads the models, fills the View, and hands out the service functions.

use super::admin::{Admin, AdminDoor, AdminParts, switched_to};
use super::decision_log::DecisionLog;
use super::delivery;
use super::policies::Versions;
use super::ports::{Feedback, Matcher, Registry, Status};
use super::schemas::WebSchemas;
use crate::api::auth::Authenticator;
use crate::api::service::{Parts as ServiceParts, Service};
use crate::catalog::schema::Schemas;
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, IndexConfig, Source};
use crate::dispatch::service::Dispatcher;
use crate::embed::fetch::{FetchConfig, Progress};
use crate::embed::models::{Models, ModelsConfig, Precision};
use crate::embed::worker::WorkerConfig;
use crate::error::Error;
use crate::index::StackConfig;
use crate::index::dense::{DenseConfig, NearConfig};
use crate::index::keyword::LexConfig;
use crate::ingest::{self, Boot, Ingest, IngestConfig, Loaded, Quota};
use crate::route::prepare::Limits;
use crate::route::resolver::{DecisionSink, Resolver, ResolverConfig};
use crate::store::{Durability, Store};
use crate::tasks::Tasks;
use crate::types::Grant;
use crate::view::Views;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Duration;

/// Everything that runs.
pub struct Parts {
    /// Settings.
    pub config: Config,
    /// Owner of all tasks.
    pub tasks: Tasks,
    /// Durable state.
    pub store: Arc<Store>,
    /// Current View.
    pub views: Arc<Views>,
    /// Write path.
    pub ingest: Arc<Ingest>,
    /// Read path.
    pub resolver: Arc<Resolver>,
    /// Delivery; only in a process that serves, for it takes up what the store holds.
    pub dispatcher: Option<Dispatcher>,
    /// What the start found in the store.
    pub loaded: Loaded,
    /// Milliseconds one short text takes, by model.
    pub embed_ms: Vec<(Arc<str>, f64)>,
    clock: Arc<dyn Clock>,
    canary: Arc<ArcSwap<Resolver>>,
    admin: Arc<Admin>,
}

/// Settings of the models by the configuration.
pub fn models_config(config: &Config) -> ModelsConfig {
    let m = &config.models;
    let fetch = FetchConfig {
        folder: m.folder.clone().filter(|_| m.sources.contains(&Source::Folder)),
        hub: m.sources.contains(&Source::Hub),
        maven: m.sources.contains(&Source::Maven),
        ..FetchConfig::default()
    };
    ModelsConfig {
        names: [m.zh.clone(), m.en.clone()].into_iter().flatten().collect(),
        dir: m.cache.clone().unwrap_or_else(|| ModelsConfig::default().dir),
        fetch: Some(fetch),
        worker: WorkerConfig { threads: m.workers, query_slots: m.queue, ingest_slots: m.queue, ..WorkerConfig::default() },
        vector_cache_bytes: m.query_cache_bytes,
        precision: if m.f32 { Precision::Fp32 } else { Precision::Int8 },
    }
}

fn stack(index: &IndexConfig) -> StackConfig {
    StackConfig { delta_max: index.delta_max, fan: index.fan, purge_share: index.purge_share }
}

/// Loads the models on a thread of their own.
pub async fn load_models(config: ModelsConfig, progress: &(dyn Progress + 'static)) -> Result<(Arc<Models>, Vec<(Arc<str>, f64)>), Error> {
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| -> Result<_, Error> {
            let models = Arc::new(Models::load(&config, progress)?);
            let mut took: Vec<_> = models.warm_up()?.into_iter().collect();
            took.sort_by(|a, b| a.0.cmp(&b.0));
            Ok((models, took))
        });
        loading.join().unwrap_or_else(|_| Err(Error::internal("loading the models panicked")))
    })
}

impl Parts {
    /// Opens everything. Models that are not on this machine are fetched.
    pub async fn open(config: Config, progress: &(dyn Progress + 'static)) -> Result<Self, Error> {
        let store = Arc::new(Store::open(&config.data.dir, Durability::Full)?);
        crate::index::text::warm();
        let settings = models_config(&config);
        let switched = {
            let (store, settings) = (store.clone(), settings.clone());
            tokio::task::spawn_blocking(move || switched_to(&store, &settings)).await.map_err(Error::internal)??
        };
        let (models, embed_ms) = match switched {
            Some(models) => (models, Vec::new()),
            None => load_models(settings.clone(), progress).await?,
        };
        let versions = Versions::of(&store)?;
        if versions.active > 0 {
            tracing::info!(version = versions.active, "a version of the policy is in force over the configuration");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let tasks = Tasks::new();
        let boot = Boot {
            store: store.clone(),
            models,
            schemas: Schemas::new(config.schemas.folder.clone(), WebSchemas::below(&config.schemas.allow_urls, &config.outbound)),
            clock: clock.clone(),
            policy: versions.effective(&config.policy),
            dense: DenseConfig {
                stack: stack(&config.index),
                near: NearConfig {
                    min_rows: config.index.min_rows,
                    list_rows: config.index.list_rows,
                    keep: config.index.keep,
                    probe: config.index.probe,
                    probe_rows: config.index.probe_rows,
                },
            },
            words: LexConfig { stack: stack(&config.index), ..LexConfig::default() },
            config: IngestConfig {
                quota: Quota { agents: config.registry.agents_per_owner, per_minute: config.registry.registrations_per_minute },
                probe_failures: u32::try_from(config.live.probe_failures).unwrap_or(u32::MAX),
                probe_interval: config.live.probe_interval,
                outbound: delivery::policy(&config.outbound),
                ..IngestConfig::default()
            },
        };
        let (views, ingest) = ingest::start(boot).await?;
        let loaded = ingest.load().await?;
        for (agent, why) in &loaded.damaged {
            tracing::warn!(%agent, why, "a stored manifest is damaged and was left out; register it again");
        }
        let outcomes = ingest.recall_history().await?;
        tracing::debug!(outcomes, "history loaded");
        let grants: Vec<Grant> = config.auth.tokens.iter().map(|t| t.principal.namespaces.clone()).collect();
        ingest.learn_for(if grants.is_empty() { vec![Grant::All] } else { grants });
        let parts = ingest.recall_lessons().await;
        tracing::debug!(parts, "the last lesson taken up");
        ingest.look_around();
        let log: Arc<dyn DecisionSink> = Arc::new(DecisionLog::start(store.clone(), &config.decision_log, &tasks));
        let limits = &config.server.limits;
        let resolver_config = ResolverConfig {
            limits: Limits { text_chars: limits.text_chars, k_max: u32::try_from(limits.k_max).unwrap_or(50), ..Limits::default() },
            local: config.auth.tokens.is_empty(),
            deadline: limits.deadline_default,
        };
        let resolver = Arc::new(Resolver::new(views.clone(), clock.clone(), Some(log), resolver_config.clone()));
        let canary = Resolver::new(ingest.canary().await?, clock.clone(), None, resolver_config.clone());
        let canary = Arc::new(ArcSwap::from_pointee(canary));
        let admin = Admin::new(AdminParts {
            store: store.clone(),
            ingest: ingest.clone(),
            clock: clock.clone(),
            tasks: tasks.clone(),
            configured: config.policy.clone(),
            models: settings,
            resolver: resolver_config,
            canary: canary.clone(),
            versions,
        });
        Ok(Self { config, tasks, store, views, ingest, resolver, loaded, embed_ms, clock, canary, admin, dispatcher: None })
    }

    /// Starts delivery. From here on messages that the store holds go on their way.
    pub async fn deliver(&mut self) -> Result<(), Error> {
        let around = delivery::Around {
            config: &self.config,
            store: &self.store,
            views: &self.views,
            resolver: &self.resolver,
            ingest: &self.ingest,
            clock: &self.clock,
            tasks: &self.tasks,
        };
        self.dispatcher = Some(delivery::start(around).await?);
        Ok(())
    }

    /// The service functions of all doors.
    pub fn service(&self) -> Arc<Service> {
        let parts = ServiceParts {
            registry: Arc::new(Registry { ingest: self.ingest.clone() }),
            matcher: Arc::new(Matcher { resolver: self.resolver.clone() }),
            dispatch: self.dispatcher.clone(),
            status: Arc::new(Status {
                canary: self.canary.clone(),
                views: self.views.clone(),
                ingest: self.ingest.clone(),
                durability: self.store.durability().to_string(),
            }),
            admin: Arc::new(AdminDoor(self.admin.clone())),
            feedback: Arc::new(Feedback { ingest: self.ingest.clone() }),
            auth: Authenticator::new(self.config.auth.clone()),
            limits: self.config.server.limits.clone(),
            waiting: self.config.dispatch.waiting,
            clock: self.clock.clone(),
        };
        Service::new(parts)
    }

    /// Writes what waits and lets go of the store. Last of all.
    pub async fn close(self) -> Vec<crate::tasks::Late> {
        let grace = self.config.server.grace;
        let late = self.tasks.shutdown(grace).await;
        self.ingest.models().stop();
        // the writer's queue is emptied when the last handle of the store goes
        drop(self);
        tokio::time::sleep(Duration::from_millis(1)).await;
        late
    }
}
