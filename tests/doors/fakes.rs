//! A node whose registry and matcher are toys, with real doors.

use agent_reach::api::auth::Authenticator;
use agent_reach::api::grpc::worker::WorkerCodec;
use agent_reach::api::ports::{AdminPort, FeedbackPort, MatcherPort, RegistryPort, Resolved, StatusPort, Version};
use agent_reach::api::service::{Parts, Service};
use agent_reach::api::{self, Doors, pb};
use agent_reach::clock::SystemClock;
use agent_reach::config::{Config, Override};
use agent_reach::dispatch::callback::Secret;
use agent_reach::dispatch::guard::Guard;
use agent_reach::dispatch::memory::MemoryStore;
use agent_reach::dispatch::port::{Choice, NextTarget, Reach, Target};
use agent_reach::dispatch::service::{Dispatcher, Ports, Settings};
use agent_reach::error::{Code, Error};
use agent_reach::tasks::Tasks;
use agent_reach::types::decision::{Candidate, Decision, DecisionKind, DropReason, Dropped, Generations, Note, Term};
use agent_reach::types::envelope::{Envelope, Mode};
use agent_reach::types::manifest::{Manifest, Protocol};
use agent_reach::types::outbound::OutboundPolicy;
use agent_reach::types::outcome::{CapKey, Outcome, OutcomeFilter, OutcomePage, Report, Verdict};
use agent_reach::types::request::{AgentPage, AgentState, Heartbeat, ListRequest, Registered, RegistryEvent, ResolveRequest};
use agent_reach::types::{AgentKey, Fault, Lang, Namespace, Principal, Probability};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the fakes saw and keep.
#[derive(Default)]
pub struct World {
    pub agents: Mutex<BTreeMap<AgentKey, AgentState>>,
    pub callers: Mutex<Vec<Principal>>,
    pub outcomes: Mutex<Vec<Outcome>>,
    pub resolving: Mutex<(usize, usize)>,
}

struct FakeRegistry(Arc<World>);
struct FakeMatcher(Arc<World>);
struct FakeFeedback(Arc<World>);
struct FakeStatus;

fn hidden() -> Error {
    Error::not_found("agent")
}

impl FakeRegistry {
    fn change(&self, who: &Principal, agent: &AgentKey, change: impl FnOnce(&mut AgentState)) -> Result<AgentState, Error> {
        let mut agents = self.0.agents.lock().unwrap();
        let state = agents.get_mut(agent).filter(|_| who.owns(&agent.namespace)).ok_or_else(hidden)?;
        change(state);
        Ok(state.clone())
    }
}

impl RegistryPort for FakeRegistry {
    fn register<'a>(&'a self, who: &'a Principal, manifest: Value) -> BoxFuture<'a, Result<Registered, Error>> {
        async move {
            let manifest: Manifest = serde_json::from_value(manifest).map_err(|e| {
                Error::invalid(vec![Fault::new("", "a manifest", e.to_string()), Fault::new("/x", "another", "so that there are two")])
            })?;
            let key = manifest.key();
            if !who.owns(&key.namespace) {
                return Err(Error::new(Code::Forbidden, "the namespace is another's"));
            }
            let capabilities = manifest.capabilities.len();
            let state = AgentState {
                manifest: Arc::new(manifest),
                generation: 1,
                content_hash: "ab".repeat(32),
                registered_at_ms: 1_700_000_000_000,
                status: "live",
                lease_until_ms: Some(1_700_000_030_000),
                load: None,
                queue_length: None,
                in_flight: None,
            };
            let changed = self.0.agents.lock().unwrap().insert(key.clone(), state).is_none();
            let lint = vec![Fault::new("/capabilities/0", "a longer description", "say more")];
            Ok(Registered { agent: key, generation: 1, content_hash: "ab".repeat(32), changed, capabilities, embedded: 3, lint })
        }
        .boxed()
    }

    fn heartbeat<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, beat: Heartbeat) -> BoxFuture<'a, Result<AgentState, Error>> {
        let answer = self.change(who, agent, |s| {
            (s.load, s.queue_length, s.in_flight) = (beat.load, beat.queue_length, beat.in_flight);
        });
        async move { answer }.boxed()
    }

    fn drain<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, draining: bool) -> BoxFuture<'a, Result<AgentState, Error>> {
        let answer = self.change(who, agent, |s| s.status = if draining { "draining" } else { "live" });
        async move { answer }.boxed()
    }

    fn deregister<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey) -> BoxFuture<'a, Result<(), Error>> {
        let answer = self.change(who, agent, |_| {}).map(|_| drop(self.0.agents.lock().unwrap().remove(agent)));
        async move { answer }.boxed()
    }

    fn get<'a>(&'a self, who: &'a Principal, agent: &'a AgentKey, version: Option<&'a str>) -> BoxFuture<'a, Result<AgentState, Error>> {
        let found = self.0.agents.lock().unwrap().get(agent).cloned();
        let fits = move |s: &AgentState| who.owns(&agent.namespace) && version.is_none_or(|v| v == s.manifest.agent_version);
        async move { found.filter(fits).ok_or_else(hidden) }.boxed()
    }

    fn list<'a>(&'a self, who: &'a Principal, which: ListRequest) -> BoxFuture<'a, Result<AgentPage, Error>> {
        let agents = self.0.agents.lock().unwrap();
        let wanted = |k: &AgentKey| {
            who.owns(&k.namespace)
                && which.namespace.as_deref().is_none_or(|n| n == k.namespace.as_str())
                && which.after.as_deref().is_none_or(|after| k.to_string().as_str() > after)
        };
        let limit = which.limit.unwrap_or(100) as usize;
        let mut found: Vec<AgentState> = agents.iter().filter(|(k, _)| wanted(k)).map(|(_, s)| s.clone()).take(limit + 1).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let next = if more { found.last().map(|s| s.manifest.key().to_string()) } else { None };
        async move { Ok(AgentPage { agents: found, next }) }.boxed()
    }

    fn watch(&self, _: &Principal) -> BoxStream<'static, RegistryEvent> {
        let present: Vec<RegistryEvent> = self
            .0
            .agents
            .lock()
            .unwrap()
            .keys()
            .map(|k| RegistryEvent { generation: 0, kind: "present", agent: Some(k.clone()) })
            .collect();
        futures::stream::iter(present).chain(futures::stream::pending()).boxed()
    }
}

impl MatcherPort for FakeMatcher {
    fn resolve<'a>(&'a self, who: &'a Principal, request: ResolveRequest) -> BoxFuture<'a, Result<Resolved, Error>> {
        async move {
            self.0.callers.lock().unwrap().push(who.clone());
            {
                let mut resolving = self.0.resolving.lock().unwrap();
                resolving.0 += 1;
                resolving.1 = resolving.1.max(resolving.0);
            }
            let _leave = Leave(self.0.clone());
            match request.query.as_str() {
                "panic" => panic!("sk-CANARY-panic is not for callers"),
                "internal" => return Err(Error::internal("sk-CANARY-cause is not for callers")),
                "slow" => tokio::time::sleep(Duration::from_secs(600)).await,
                "busy" => return Err(Error::overloaded("the model has too much to do", Duration::from_millis(1500))),
                "" if request.capability.is_none() => {
                    return Err(Error::invalid_at("/query", "a text or a capability", "say what you want done"));
                }
                text if text.starts_with("wait ") => tokio::time::sleep(Duration::from_millis(text[5..].parse().unwrap())).await,
                _ => {}
            }
            Ok(decide(&request))
        }
        .boxed()
    }

    fn resolve_batch<'a>(&'a self, who: &'a Principal, requests: Vec<ResolveRequest>) -> BoxFuture<'a, Vec<Result<Resolved, Error>>> {
        async move {
            let mut answers = Vec::new();
            for request in requests {
                answers.push(self.resolve(who, request).await);
            }
            answers
        }
        .boxed()
    }
}

struct Leave(Arc<World>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.resolving.lock().unwrap().0 -= 1;
    }
}

/// A decision that shows everything of the request, so that a door that loses something is found out.
fn decide(request: &ResolveRequest) -> Resolved {
    let key = |id: &str| AgentKey::local(Namespace::new("orders").unwrap(), id);
    let candidate = |id: &str, probability: f32| Candidate {
        agent: key(id),
        agent_version: "1.4.0".into(),
        capability: Arc::from(request.capability.as_deref().unwrap_or("refund_create")),
        score: 0.1 + probability,
        probability: Probability::new(probability),
        under_floor: probability < 0.5,
        found_by: vec!["dense".into(), "keyword".into()],
        terms: vec![Term { name: "semantic".into(), weight: 0.5, value: probability }],
        evidence: vec![Term { name: "cosine".into(), weight: 0.0, value: 0.7 }],
    };
    let kind = match request.query.as_str() {
        "qwerty" => DecisionKind::None,
        "which" => DecisionKind::Suggest,
        _ => DecisionKind::Auto,
    };
    Resolved {
        decision: Decision {
            decision_id: "00112233445566778899aabbccddeeff".into(),
            kind,
            confidence: Probability::new(0.93),
            margin: 0.41,
            calibrated: false,
            candidates: vec![candidate("order-desk", 0.93), candidate("returns", 0.1)],
            dropped: vec![
                Dropped {
                    agent: key("night"),
                    capability: Arc::from("refund_create"),
                    similarity: 0.8,
                    why: DropReason::Closed { opens: Some("09:00 Asia/Shanghai".into()) },
                },
                Dropped { agent: key("gone"), capability: Arc::from("refund_create"), similarity: 0.8, why: DropReason::LeaseExpired },
            ],
            reasons: vec![Note::new("echo", format!("{request:?}"))],
            warnings: vec![Note::new("uncalibrated", "no thresholds for these models")],
            preset: request.preset.clone().unwrap_or("balanced".into()),
            generations: Generations { catalog: 7, models: vec![Arc::from("fake-zh")], policy: 1 },
        },
        lang: Lang::of(&request.query),
        took_us: 1234,
        notes: vec![Note::new("field_truncated", "the text was cut")],
    }
}

/// Chooses by exact name among the agents that the caller's namespaces own.
struct FakeNext(Arc<World>);

fn target(manifest: &Manifest, capability: usize) -> Target {
    let push = manifest.endpoints.iter().any(|e| e.protocol == Protocol::Http);
    Target {
        reach: if push { Reach::Push } else { Reach::Pull },
        endpoints: manifest.endpoints.iter().filter(|e| e.protocol == Protocol::Http).cloned().collect(),
        concurrency: manifest.concurrency,
        decision_id: "fake".into(),
        ..Target::plain(manifest.key(), &manifest.capabilities[capability].intent)
    }
}

impl NextTarget for FakeNext {
    fn next(&self, e: Arc<Envelope>, exclude: Vec<AgentKey>) -> BoxFuture<'static, Result<Choice, Error>> {
        let agents = self.0.agents.lock().unwrap();
        let mut targets = Vec::new();
        for (key, state) in agents.iter() {
            let wanted = |c: &agent_reach::types::manifest::Capability| e.intent.is_none() || e.intent.as_deref() == Some(&*c.intent);
            let at = state.manifest.capabilities.iter().position(wanted);
            let fits = e.principal.owns(&key.namespace) && !exclude.contains(key) && e.target.as_ref().is_none_or(|t| t == key);
            targets.extend(at.filter(|_| fits).map(|i| target(&state.manifest, i)));
        }
        if e.mode != Mode::Broadcast {
            targets.truncate(1);
        }
        let decision = decide(&ResolveRequest { query: "which".into(), ..ResolveRequest::default() }).decision;
        let nobody = Choice::Nobody {
            code: Code::NoMatchedAgent,
            reason: "nobody fits".into(),
            faults: Vec::new(),
            decision: Some(Arc::new(decision)),
        };
        let choice = if targets.is_empty() { nobody } else { Choice::Deliver(targets) };
        async move { Ok(choice) }.boxed()
    }

    fn describe(&self, agent: &AgentKey, capability: &str) -> Option<Target> {
        let agents = self.0.agents.lock().unwrap();
        let manifest = &agents.get(agent)?.manifest;
        let at = manifest.capabilities.iter().position(|c| &*c.intent == capability)?;
        Some(target(manifest, at))
    }

    fn agent(&self, agent: &AgentKey) -> Option<Target> {
        let agents = self.0.agents.lock().unwrap();
        Some(Target { reach: Reach::Pull, ..target(&agents.get(agent)?.manifest, 0) })
    }
}

/// Keeps what it is told; an unknown verdict is refused.
impl FeedbackPort for FakeFeedback {
    fn report<'a>(&'a self, who: &'a Principal, reports: Vec<Report>) -> BoxFuture<'a, Vec<Result<String, Error>>> {
        async move {
            let mut kept = self.0.outcomes.lock().unwrap();
            let mut answers = Vec::new();
            for r in reports {
                let Some(verdict) = Verdict::parse(&r.verdict) else {
                    answers.push(Err(Error::invalid_at("/verdict", "a verdict", "say how it turned out")));
                    continue;
                };
                let cap = |pair: Option<(AgentKey, String)>| pair.map(|(agent, capability)| CapKey::new(agent, &capability));
                let id = r.id.unwrap_or_else(|| format!("o{}", kept.len()));
                kept.push(Outcome {
                    id: id.clone(),
                    at_ms: 1_700_000_000_000,
                    decision_id: r.decision_id,
                    text: r.query,
                    tenant: r.tenant,
                    caller: r.caller.unwrap_or_else(|| who.caller.to_string()),
                    reporter: who.caller.to_string(),
                    own: false,
                    scope: "*".into(),
                    verdict,
                    chosen: cap(r.chosen),
                    correct: cap(r.correct),
                    previous: r.previous,
                });
                answers.push(Ok(id));
            }
            answers
        }
        .boxed()
    }

    fn list<'a>(
        &'a self,
        _: &'a Principal,
        which: OutcomeFilter,
        limit: Option<u32>,
        _: Option<String>,
    ) -> BoxFuture<'a, Result<OutcomePage, Error>> {
        let fits = |o: &&Outcome| which.agent.as_ref().is_none_or(|a| o.chosen.as_ref().is_some_and(|c| c.agent == *a));
        let outcomes = self.0.outcomes.lock().unwrap().iter().filter(fits).take(limit.unwrap_or(100) as usize).cloned().collect();
        async move { Ok(OutcomePage { outcomes, next: None }) }.boxed()
    }

    fn forget<'a>(&'a self, _: &'a Principal, which: OutcomeFilter) -> BoxFuture<'a, Result<usize, Error>> {
        async move {
            if which == OutcomeFilter::default() {
                return Err(Error::invalid_at("/reporter", "something to forget", "name it"));
            }
            Ok(std::mem::take(&mut *self.0.outcomes.lock().unwrap()).len())
        }
        .boxed()
    }
}

impl StatusPort for FakeStatus {
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn version(&self) -> Version {
        Version { version: "0.0.0".into(), catalog: 7, models: vec!["fake-zh".into()], durability: "none".into() }
    }
}

struct FakeAdmin;

impl AdminPort for FakeAdmin {
    fn policy(&self) -> BoxFuture<'_, Result<Value, Error>> {
        async { Ok(serde_json::json!({"active": 0})) }.boxed()
    }

    fn change_policy(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>> {
        async move { Ok(serde_json::json!({"asked": request})) }.boxed()
    }

    fn models(&self) -> BoxFuture<'_, Result<Value, Error>> {
        async { Ok(serde_json::json!({"state": "idle"})) }.boxed()
    }

    fn swap_models(&self, request: Value) -> BoxFuture<'_, Result<Value, Error>> {
        async move { Ok(serde_json::json!({"asked": request})) }.boxed()
    }
}

/// A node with open doors; it ends with the test.
pub struct Node {
    pub doors: Doors,
    pub world: Arc<World>,
    pub tasks: Tasks,
    pub http: reqwest::Client,
}

/// Starts a node with settings.
pub async fn node(settings: &[(&str, &str)], more: &str) -> Node {
    let mut overrides =
        vec![Override::new("server.grpc_addr", "127.0.0.1:0", "test"), Override::new("server.http_addr", "127.0.0.1:0", "test")];
    overrides.extend(settings.iter().map(|(k, v)| Override::new(k, *v, "test")));
    let config = Config::parse(more, &overrides).unwrap();
    let world = Arc::new(World::default());
    let tasks = Tasks::new();
    let ports = Ports {
        store: Arc::new(MemoryStore::default()),
        next: Arc::new(FakeNext(world.clone())),
        guard: Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap(),
        grpc: Arc::new(WorkerCodec),
        clock: Arc::new(SystemClock),
        sinks: Vec::new(),
    };
    let secrets = config.dispatch.callback_secrets.iter().map(|s| Secret::parse(s).unwrap()).collect();
    let settings = Settings { local: config.auth.tokens.is_empty(), secrets, ..Settings::default() };
    let dispatcher = Dispatcher::start(ports, tasks.clone(), settings).await.unwrap();
    let service = Service::new(Parts {
        registry: Arc::new(FakeRegistry(world.clone())),
        matcher: Arc::new(FakeMatcher(world.clone())),
        feedback: Arc::new(FakeFeedback(world.clone())),
        status: Arc::new(FakeStatus),
        dispatch: Some(dispatcher),
        waiting: config.dispatch.waiting,
        admin: Arc::new(FakeAdmin),
        auth: Authenticator::new(config.auth.clone()),
        limits: config.server.limits.clone(),
        clock: Arc::new(SystemClock),
    });
    let doors = api::open(&service, &config.server, &tasks).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
    Node { doors, world, tasks, http }
}

impl Node {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.doors.http)
    }

    /// Posts text; status and JSON come back.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let response = self.http.post(self.url(path)).body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.bytes().await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{path} answered {status}, no JSON: {e}: {bytes:?}")))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.http.get(self.url(path)).send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default())
    }

    pub async fn channel(&self) -> tonic::transport::Channel {
        tonic::transport::Endpoint::new(format!("http://{}", self.doors.grpc)).unwrap().connect().await.unwrap()
    }

    pub async fn matcher(&self) -> pb::matcher_client::MatcherClient<tonic::transport::Channel> {
        pb::matcher_client::MatcherClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    pub async fn dispatch(&self) -> pb::dispatch_client::DispatchClient<tonic::transport::Channel> {
        pb::dispatch_client::DispatchClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    pub async fn registry(&self) -> pb::registry_client::RegistryClient<tonic::transport::Channel> {
        pb::registry_client::RegistryClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    /// That everything still works for others.
    pub async fn still_serves(&self) {
        let (status, answer) = self.post("/v1/resolve", r#"{"query":"我要退款"}"#).await;
        assert_eq!((status, answer["decision"].as_str()), (200, Some("auto")), "{answer}");
        let answer = self.matcher().await.resolve(pb::ResolveRequest { query: "我要退款".into(), ..Default::default() }).await.unwrap();
        assert_eq!(answer.into_inner().decision, "auto");
    }
}

/// Runs the binary with arguments: exit code, standard output, standard error.
pub async fn reach(node: &Node, arguments: &[&str]) -> (i32, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_reach"));
    command.args(arguments).env("REACH_SERVER", node.url("")).env_remove("REACH_TOKEN").env_remove("REACH_CONFIG");
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// A manifest that uses every field.
pub fn full_manifest() -> Value {
    serde_json::json!({
        "domain": "local", "namespace": "hr/payroll", "agent_id": "desk-1", "agent_version": "1.4.0", "owner": "orders-team",
        "contact": "orders@example.com", "description": {"zh": "订单台", "en": "order desk"},
        "endpoints": [{"protocol": "http", "address": "http://127.0.0.1:9001/invoke", "weight": 100}, {"protocol": "pull", "weight": 1}],
        "health_check": {"address": "http://127.0.0.1:9001/health", "interval": "30s"},
        "ttl": "30s", "max_queue_depth": 1000, "concurrency": 5, "timeouts": {"connect": "2s", "processing": "1m"},
        "retry": {"max_attempts": 5, "base": "200ms", "max": "5s", "jitter": 0.25},
        "notification_endpoint": "http://127.0.0.1:9001/notify",
        "attributes": {"gold": true, "languages": ["zh", "en"], "tier": "gold", "weight": 1.5},
        "visible_to": ["finance"], "tags": ["order"],
        "capabilities": [{
            "intent": "refund_create", "aliases": ["create_refund", "退款申请"], "description": {"zh": "退款", "en": "refund"},
            "examples": ["我要退款", "refund my order"], "tags": ["refund"],
            "input_schema": {"type": "object", "properties": {"order_id": {"type": "integer", "maximum": 9007199254740993u64}}},
            "output_schema": "schema://orders/refund.json",
            "rate_limit": {"per_second": 50.5, "burst": 100}, "cost": 0.02, "latency_hint": "800ms",
            "hours": {"time_zone": "Asia/Shanghai", "windows": [{"days": ["mon", "sun"], "from": "09:00", "to": "18:00"}]},
            "regions": ["cn-*"], "scopes": ["refund:write"], "idempotent": true,
            "state_machine": {"processing": ["PENDING"], "retryable": ["BUSY"], "failed": ["REFUSED"]}, "compensate": "refund_cancel"
        }]
    })
}

/// What a message is as JSON text: numbers as they are written, not as they are held.
pub fn as_json<T: serde::Serialize>(message: &T) -> Value {
    serde_json::from_str(&serde_json::to_string(message).unwrap()).unwrap()
}
