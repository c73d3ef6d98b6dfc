//! The service functions that every door calls: messages in, messages out.
//!
//! In: the principal and a message. Out: a message or an [`Error`]. Each call takes one of a bounded number of places
//! (or is refused as `overloaded`), has a deadline, is counted, and can't bring the process down by a panic.
//!
//! Not here: bytes and status codes (`grpc`, `http`), what the registry and the matcher do (behind the ports).

use crate::api::auth::Authenticator;
use crate::api::convert;
use crate::api::json::MAX_BATCH;
use crate::api::pb;
use crate::api::ports::{AdminPort, FeedbackPort, MatcherPort, RegistryPort, StatusPort};
use crate::clock::Clock;
use crate::config::Limits;
use crate::dispatch::service::Dispatcher;
use crate::error::{Code, Error};
use crate::tasks::panic_text;
use crate::telemetry::metrics::{Counter, Gauge, Histogram, add, count, observe};
use crate::types::Principal;
use crate::types::principal::ADMIN;
use futures::future::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use serde_json::Value;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Which door a request came through, for metrics alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// gRPC.
    Grpc,
    /// HTTP and JSON.
    Http,
}

impl Door {
    /// `grpc` or `http`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }
}

/// Who calls, through which door, and how long they are willing to wait.
#[derive(Clone, Debug)]
pub struct Call {
    /// Principal by the credential.
    pub who: Principal,
    /// Door.
    pub door: Door,
    /// Deadline by the transport, if it has one.
    pub deadline: Option<Duration>,
    /// Trace that came with the call, 32 hexadecimal digits.
    pub trace: Option<Arc<str>>,
}

/// What the service needs.
pub struct Parts {
    /// Registry.
    pub registry: Arc<dyn RegistryPort>,
    /// Matcher.
    pub matcher: Arc<dyn MatcherPort>,
    /// Outcomes.
    pub feedback: Arc<dyn FeedbackPort>,
    /// State of the whole.
    pub status: Arc<dyn StatusPort>,
    /// Delivery; only in a process that serves.
    pub dispatch: Option<Dispatcher>,
    /// What operators do.
    pub admin: Arc<dyn AdminPort>,
    /// Tokens.
    pub auth: Authenticator,
    /// Limits.
    pub limits: Limits,
    /// Callers that may wait for a result at once.
    pub waiting: usize,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The service functions.
pub struct Service {
    pub(super) parts: Parts,
    places: Arc<Semaphore>,
    pub(super) waiting: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    last_ready: tokio::sync::Mutex<Option<(Instant, Result<(), Error>)>>,
}

/// How long an answer to "are you ready?" holds.
const READY_HOLDS: Duration = Duration::from_millis(500);

/// A stream that holds its place among the open ones.
pub(super) struct Open {
    _place: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        add(Gauge::Streams, &[], -1.0);
    }
}

impl Service {
    /// Over its parts.
    pub fn new(parts: Parts) -> Arc<Self> {
        let (places, streams, waiting) = (parts.limits.requests, parts.limits.watchers, parts.waiting);
        Arc::new(Self {
            parts,
            places: Arc::new(Semaphore::new(places)),
            waiting: Arc::new(Semaphore::new(waiting)),
            streams: Arc::new(Semaphore::new(streams)),
            last_ready: tokio::sync::Mutex::new(None),
        })
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Limits.
    pub fn limits(&self) -> &Limits {
        &self.parts.limits
    }

    /// Whether callers need a token.
    pub fn needs_token(&self) -> bool {
        self.parts.auth.required()
    }

    /// The principal behind the `authorization` headers of a request.
    pub fn principal<'a>(&self, door: Door, headers: impl IntoIterator<Item = &'a [u8]>) -> Result<Principal, Error> {
        self.parts.auth.principal(headers).inspect_err(|_| count(Counter::AuthFailures, &[door.as_str()]))
    }

    /// Registers the manifest in `document`.
    pub async fn register(&self, call: &Call, document: Value) -> Result<pb::RegisterResponse, Error> {
        self.run(call, "register", None, async { self.parts.registry.register(&call.who, document).await.map(convert::registered) }).await
    }

    /// Renews a lease.
    pub async fn heartbeat(&self, call: &Call, message: pb::HeartbeatRequest) -> Result<pb::AgentState, Error> {
        self.run(call, "heartbeat", None, async {
            let agent = convert::agent_key(message.agent.as_ref())?;
            let mut beat = convert::heartbeat(&message)?;
            if message.leaving == Some(true) && self.parts.dispatch.as_ref().is_none_or(|d| d.sessions_of(&agent) == 0) {
                beat.draining = Some(true);
            }
            convert::state(&self.parts.registry.heartbeat(&call.who, &agent, beat).await?)
        })
        .await
    }

    /// Takes an agent out of new work, or back into it.
    pub async fn drain(&self, call: &Call, message: pb::DrainRequest) -> Result<pb::AgentState, Error> {
        self.run(call, "drain", None, async {
            let agent = convert::agent_key(message.agent.as_ref())?;
            convert::state(&self.parts.registry.drain(&call.who, &agent, message.draining.unwrap_or(true)).await?)
        })
        .await
    }

    /// Removes an agent.
    pub async fn deregister(&self, call: &Call, message: pb::DeregisterRequest) -> Result<pb::DeregisterResponse, Error> {
        self.run(call, "deregister", None, async {
            let agent = convert::agent_key(message.agent.as_ref())?;
            self.parts.registry.deregister(&call.who, &agent).await?;
            Ok(pb::DeregisterResponse { agent: Some(convert::agent_ref(&agent)) })
        })
        .await
    }

    /// Shows an agent.
    pub async fn get(&self, call: &Call, message: pb::GetRequest) -> Result<pb::AgentState, Error> {
        self.run(call, "get", None, async {
            let agent = convert::agent_key(message.agent.as_ref())?;
            convert::state(&self.parts.registry.get(&call.who, &agent, message.version.as_deref()).await?)
        })
        .await
    }

    /// Lists agents.
    pub async fn list(&self, call: &Call, message: pb::ListRequest) -> Result<pb::ListResponse, Error> {
        self.run(call, "list", None, async { convert::page(&self.parts.registry.list(&call.who, convert::list(message)).await?) }).await
    }

    /// Resolves one request.
    pub async fn resolve(&self, call: &Call, message: pb::ResolveRequest) -> Result<pb::ResolveResponse, Error> {
        let asked = message.deadline_ms.map(Duration::from_millis);
        self.run(call, "resolve", asked, async {
            let explain = message.explain;
            let resolved = self.parts.matcher.resolve(&call.who, convert::request(message)?).await?;
            Ok(convert::response(&resolved, explain))
        })
        .await
    }

    /// Resolves several. What is wrong with one is answered at its place and does not disturb the others.
    pub async fn resolve_batch(&self, call: &Call, message: pb::ResolveBatchRequest) -> Result<pb::ResolveBatchResponse, Error> {
        if message.requests.is_empty() || message.requests.len() > MAX_BATCH {
            return Err(Error::invalid_at("/requests", format!("1 to {MAX_BATCH} requests"), "split the batch"));
        }
        let asked = message.requests.iter().map(|r| r.deadline_ms).try_fold(0, |longest, d| d.map(|d| d.max(longest)));
        self.run(call, "resolve_batch", asked.map(Duration::from_millis), async {
            let explain: Vec<bool> = message.requests.iter().map(|r| r.explain).collect();
            let mut results: Vec<Option<Error>> = Vec::with_capacity(explain.len());
            let mut good = Vec::new();
            for request in message.requests {
                match convert::request(request) {
                    Ok(request) => {
                        good.push(request);
                        results.push(None);
                    }
                    Err(e) => results.push(Some(e)),
                }
            }
            let mut answers = self.parts.matcher.resolve_batch(&call.who, good).await.into_iter();
            let results = results.into_iter().zip(explain).map(|(refused, explain)| {
                let answer = match refused {
                    Some(e) => Err(e),
                    None => answers.next().unwrap_or_else(|| Err(Error::internal("the matcher gave too few answers"))),
                };
                self.result(answer.map(|resolved| convert::response(&resolved, explain)))
            });
            Ok(pb::ResolveBatchResponse { results: results.collect() })
        })
        .await
    }

    /// Resolves a stream: answers in the order of the requests, a bounded number under way.
    pub fn resolve_stream(
        self: &Arc<Self>,
        call: Call,
        requests: BoxStream<'static, pb::ResolveRequest>,
    ) -> Result<BoxStream<'static, pb::ResolveResult>, Error> {
        let open = self.open()?;
        let service = self.clone();
        let answers = requests.map(move |request| {
            let (service, call) = (service.clone(), call.clone());
            async move {
                let answer = service.resolve(&call, request).await;
                service.result(answer)
            }
        });
        let answers = answers.buffered(self.parts.limits.stream_in_flight).inspect(move |_| {
            let _open = &open;
        });
        Ok(answers.boxed())
    }

    /// Only operators: the local principal, and tokens with the scope `admin`.
    fn operator(call: &Call) -> Result<(), Error> {
        if call.who.scopes.has(ADMIN) {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, format!("the scope `{ADMIN}` is needed")))
    }

    /// The policy in force and its versions.
    pub async fn policy(&self, call: &Call) -> Result<Value, Error> {
        self.run(call, "policy", None, async { Self::operator(call).map(|()| self.parts.admin.policy())?.await }).await
    }

    /// Puts a change of the policy in force, or rolls back.
    pub async fn change_policy(&self, call: &Call, request: Value) -> Result<Value, Error> {
        self.run(call, "change_policy", None, async { Self::operator(call).map(|()| self.parts.admin.change_policy(request))?.await }).await
    }

    /// The models in use, and how far a swap is.
    pub async fn models(&self, call: &Call) -> Result<Value, Error> {
        self.run(call, "models", None, async { Self::operator(call).map(|()| self.parts.admin.models())?.await }).await
    }

    /// Prepares, makes, undoes or drops a swap of models.
    pub async fn swap_models(&self, call: &Call, request: Value) -> Result<Value, Error> {
        self.run(call, "swap_models", None, async { Self::operator(call).map(|()| self.parts.admin.swap_models(request))?.await }).await
    }

    /// What is there, then each change.
    pub fn watch(&self, call: &Call) -> Result<BoxStream<'static, pb::RegistryEvent>, Error> {
        let open = self.open()?;
        let events = self.parts.registry.watch(&call.who).map(move |event| {
            let _open = &open;
            convert::event(&event)
        });
        Ok(events.boxed())
    }

    /// Whether a query can be answered now. Asked by whoever likes, so it is found out once at a time and holds for `READY_HOLDS`.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut last = self.last_ready.lock().await;
        let now = self.parts.clock.instant();
        if let Some((_, ready)) = last.as_ref().filter(|(at, _)| now.duration_since(*at) < READY_HOLDS) {
            return ready.clone();
        }
        let ready = self.look_ready().await;
        *last = Some((self.parts.clock.instant(), ready.clone()));
        ready
    }

    async fn look_ready(&self) -> Result<(), Error> {
        let checked = AssertUnwindSafe(tokio::time::timeout(self.parts.limits.deadline_default, self.parts.status.ready())).catch_unwind();
        let ready = match checked.await {
            Ok(Ok(ready)) => ready,
            Ok(Err(_)) => Err(Error::new(Code::DeadlineExceeded, "the built-in query was not answered in time")),
            Err(panic) => Err(self.panicked("ready", &*panic)),
        };
        ready.map_err(|e| self.outward("ready", e))
    }

    /// What is running.
    pub fn version(&self) -> crate::api::ports::Version {
        self.parts.status.version()
    }

    pub(super) fn open(&self) -> Result<Open, Error> {
        match self.streams.clone().try_acquire_owned() {
            Ok(place) => {
                add(Gauge::Streams, &[], 1.0);
                Ok(Open { _place: place })
            }
            Err(_) => {
                count(Counter::Shed, &["streams"]);
                let most = self.parts.limits.watchers;
                Err(Error::overloaded(
                    format!("{most} streams are open, which is the most (server.limits.watchers)"),
                    Duration::from_secs(5),
                ))
            }
        }
    }

    fn result(&self, answer: Result<pb::ResolveResponse, Error>) -> pb::ResolveResult {
        match answer {
            Ok(response) => pb::ResolveResult { response: Some(response), error: None },
            Err(e) => pb::ResolveResult { response: None, error: Some(convert::error(&self.outward("resolve", e))) },
        }
    }

    /// Runs one call: a place, a deadline, a net under panics, and a count of how it ended.
    pub(super) async fn run<T>(
        &self,
        call: &Call,
        method: &'static str,
        asked: Option<Duration>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let began = self.parts.clock.instant();
        let answer = match self.places.try_acquire() {
            Ok(_place) => {
                add(Gauge::InFlight, &[], 1.0);
                let limits = &self.parts.limits;
                let asked = [asked, call.deadline].into_iter().flatten().min();
                let within = asked.unwrap_or(limits.deadline_default).min(limits.deadline_max);
                let answer = match AssertUnwindSafe(tokio::time::timeout(within, work)).catch_unwind().await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) => Err(Error::new(Code::DeadlineExceeded, format!("no answer within {} ms", within.as_millis()))),
                    Err(panic) => Err(self.panicked(method, &*panic)),
                };
                add(Gauge::InFlight, &[], -1.0);
                answer
            }
            Err(_) => {
                count(Counter::Shed, &["requests"]);
                let most = self.parts.limits.requests;
                Err(Error::overloaded(
                    format!("{most} requests are under way, which is the most (server.limits.requests)"),
                    Duration::from_secs(1),
                ))
            }
        };
        let answer = answer.map_err(|e| self.outward(method, e));
        let door = call.door.as_str();
        let code = answer.as_ref().map_or_else(|e| e.code.as_str(), |_| "ok");
        let took = self.parts.clock.instant().duration_since(began);
        count(Counter::Requests, &[door, method, code]);
        observe(Histogram::Request, &[door, method], took.as_secs_f64());
        tracing::debug!(door, method, code, caller = &*call.who.caller, took_us = took.as_micros() as u64, "answered");
        answer
    }

    fn panicked(&self, method: &'static str, panic: &(dyn std::any::Any + Send)) -> Error {
        count(Counter::Panics, &[method]);
        Error::internal(format!("panic: {}", panic_text(panic)))
    }

    /// What a caller gets to see: the cause of a fault of ours stays in the log, under a reference.
    pub(super) fn outward(&self, method: &'static str, e: Error) -> Error {
        if e.code != Code::Internal || e.message.starts_with(OUTWARD) {
            return e;
        }
        let mut bits = [0u8; 8];
        let reference = getrandom::fill(&mut bits).map_or_else(|_| "none".to_string(), |()| hex::encode(bits));
        tracing::error!(method, reference, "internal fault: {}", e.message);
        Error { message: format!("{OUTWARD}; the log has the cause under the reference {reference}"), faults: Vec::new(), ..e }
    }
}

const OUTWARD: &str = "a fault of the service, not of the request";
