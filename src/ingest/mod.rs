//! The write path: checks a manifest, embeds it, stores it, indexes it and publishes a new View; renews leases; lists and watches.
//!
//! In: a principal and a document. Out: receipts, pages, events. Invariants: what is answered is durable (the store's transaction comes before
//! the View); the same manifest again changes nothing and embeds nothing; a principal writes in its own namespaces and sees nothing of others.
//! Embedding happens before the writer's lock is taken, so that one slow registration holds up nobody.
//! Not here: how documents are read (`types::manifest_check`), what the store keeps (`store`), probing (`ingest::probe`).

mod awaited;
mod boot;
pub mod canary;
mod carry;
mod engine;
mod feedback;
pub mod files;
mod guard;
mod learn;
mod lessons;
mod lint;
mod load;
mod probe;
mod quota;
mod register;
mod registry;
mod swap;
pub mod texts;
mod upkeep;
mod vectors;
mod watch;

pub use awaited::Awaited;
pub use boot::{Boot, start};
pub use engine::{ArmWriter, Engine};
pub use feedback::ReceiptEvent;
pub use learn::Lesson;
pub use load::Loaded;
pub use probe::{Judge, Probe, ProbeRound};
pub use quota::Quota;
pub use register::Batch;
pub use swap::Beside;
pub use vectors::ByText;

use crate::catalog::schema::Schemas;
use crate::clock::Clock;
use crate::embed::models::Models;
use crate::error::Error;
use crate::history::learned::Demand;
use crate::index::dense::DenseConfig;
use crate::live::{LiveTable, Protection};
use crate::store::Store;
use crate::types::manifest_check::Rules;
use crate::types::outbound::OutboundPolicy;
use crate::types::policy::Policy;
use crate::types::principal::PUBLISH;
use crate::types::request::RegistryEvent;
use crate::types::{AgentKey, Fault, Manifest, Principal};
use crate::view::Views;
use parking_lot::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::broadcast;

/// Events that a slow watcher may fall behind before it is told to list again.
const EVENTS: usize = 1024;

/// Settings of the write path.
#[derive(Clone, Debug)]
pub struct IngestConfig {
    /// How strictly manifests are read.
    pub rules: Rules,
    /// Whether schemas that can't be compiled are kept as words with a warning (evaluation) instead of refused.
    pub lenient_schemas: bool,
    /// Whether the registration lint runs.
    pub lint: bool,
    /// What one owner may register.
    pub quota: Quota,
    /// Failed probes in a row that make an agent unreachable.
    pub probe_failures: u32,
    /// Pause between probes of an agent whose manifest names none.
    pub probe_interval: Duration,
    /// What may be called: an address that may not is refused at registration (and again at every connection).
    pub outbound: OutboundPolicy,
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            lenient_schemas: false,
            lint: true,
            quota: Quota::default(),
            probe_failures: crate::live::PROBE_FAILURES,
            probe_interval: Duration::from_secs(30),
            outbound: OutboundPolicy::default(),
        }
    }
}

/// The write path and the registry.
pub struct Ingest {
    pub(crate) store: Arc<Store>,
    pub(crate) schemas: Schemas,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) views: Arc<Views>,
    pub(crate) engine: tokio::sync::Mutex<Engine>,
    pub(crate) live: Arc<Mutex<LiveTable>>,
    pub(crate) events: broadcast::Sender<RegistryEvent>,
    pub(crate) pace: quota::Pace,
    pub(crate) dense: DenseConfig,
    pub(crate) config: IngestConfig,
    pub(crate) learning: Arc<Demand>,
    pub(crate) awaited: Arc<AtomicUsize>,
    pub(crate) judge: OnceLock<Arc<dyn Judge>>,
}

impl Ingest {
    /// Puts the write path together around an empty engine; `load` fills it from the store.
    pub fn new(
        store: Arc<Store>,
        schemas: Schemas,
        clock: Arc<dyn Clock>,
        views: Arc<Views>,
        engine: Engine,
        dense: DenseConfig,
        config: IngestConfig,
    ) -> Self {
        let protection = Protection {
            probe_failures: config.probe_failures,
            probe_ms: i64::try_from(config.probe_interval.as_millis()).unwrap_or(i64::MAX),
            ..Protection::default()
        };
        let live = Arc::new(Mutex::new(LiveTable::new(protection)));
        let learning = views.load().learned.demand().clone();
        Self {
            store,
            schemas,
            clock,
            views,
            engine: tokio::sync::Mutex::new(engine),
            live,
            events: broadcast::channel(EVENTS).0,
            pace: quota::Pace::default(),
            dense,
            config,
            learning,
            awaited: Arc::default(),
            judge: OnceLock::new(),
        }
    }

    /// The View in use.
    pub fn current(&self) -> Arc<crate::view::View> {
        self.views.load()
    }

    /// The models in use.
    pub fn models(&self) -> Arc<Models> {
        self.views.load().models.clone()
    }

    /// The table of live state, for those that report outcomes.
    pub fn live(&self) -> &Arc<Mutex<LiveTable>> {
        &self.live
    }

    /// Owner under which a principal registers: ids never pass to another one.
    fn owner(who: &Principal) -> &str {
        match who.namespaces {
            // one local principal: its caller's name is only a word
            crate::types::Grant::All => "local",
            crate::types::Grant::Only(_) => &who.caller,
        }
    }

    fn may_write(who: &Principal, key: &AgentKey) -> Result<(), Error> {
        if who.owns(&key.namespace) {
            return Ok(());
        }
        Err(Error::new(crate::error::Code::Forbidden, format!("your credential does not belong to the namespace {}", key.namespace)))
    }

    /// Whether it may show its agents to whom the manifest names.
    fn may_grant(who: &Principal, manifest: &Manifest) -> Result<(), Error> {
        let foreign: Vec<&str> = manifest.visible_to.iter().map(|n| &**n).filter(|n| !who.may_grant(n)).collect();
        if foreign.is_empty() {
            return Ok(());
        }
        let named = foreign.join(", ");
        let fault = Fault::new(
            "/visible_to",
            format!("namespaces of your own credential; it does not cover {named}"),
            format!("leave {named} out, or ask the operator for the scope `{PUBLISH}` or `{PUBLISH}:{}`", foreign[0]),
        );
        let words = format!("your credential may not show agents to {named}");
        Err(Error { faults: vec![fault], ..Error::new(crate::error::Code::Forbidden, words) })
    }

    /// A generation as `who` may see it: operators see the registry's count; for others, whom it would tell how much is registered by strangers, it is
    /// the time of the change, which rises as well.
    fn shown_generation(who: &Principal, generation: u64, changed_ms: i64) -> u64 {
        if who.is_operator() { generation } else { u64::try_from(changed_ms).unwrap_or(0) }
    }

    /// Takes the live table's state into the View, now. Watchers are told of agents that went or came back.
    pub fn refresh_live(&self) {
        let now = self.clock.now_ms();
        let changes = {
            // held until the View has it: of two refreshes the later one stays
            let mut live = self.live.lock();
            let (snapshot, changes) = live.refresh(now);
            self.views.update(|old| crate::view::View { live: snapshot.clone(), ..old.clone() });
            changes
        };
        for change in changes {
            self.tell(watch::kind_of(change.now), Some(change.agent));
        }
    }

    /// Takes one agent's state into the View, now: what a registration costs must not grow with the fleet.
    pub(crate) fn refresh_live_of(&self, agent: &AgentKey) {
        let now = self.clock.now_ms();
        let change = {
            let mut live = self.live.lock();
            let (snapshot, change) = live.refresh_one(&self.views.load().live, agent, now);
            self.views.update(|old| crate::view::View { live: snapshot.clone(), ..old.clone() });
            change
        };
        if let Some(change) = change {
            self.tell(watch::kind_of(change.now), Some(change.agent));
        }
    }

    /// Puts another policy in force, from the next decision on.
    pub fn set_policy(&self, policy: Policy) {
        let policy = Arc::new(policy);
        self.views.update(|old| crate::view::View { policy: policy.clone(), ..old.clone() });
    }

    pub(crate) fn tell(&self, kind: &'static str, agent: Option<AgentKey>) {
        let generation = self.views.load().catalog.generation();
        if matches!(kind, "registered" | "deregistered") {
            self.learning.ring();
        }
        // nobody may be watching
        drop(self.events.send(RegistryEvent { generation, kind, agent }));
    }
}
