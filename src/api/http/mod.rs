//! The HTTP door: JSON of the messages of `proto/`, over [`crate::api::service`].
//!
//! Invariants: the credential is checked before the body is read; a body is bounded in size and in time; whatever is wrong
//! with a request is a 4xx that names the place; a panic is a 500 with a reference, and the next request is served.

mod body;
mod messages;
pub mod openapi;
pub mod routes;

use crate::api::service::{Call, Door, Service};
use crate::api::trace::trace_id;
use crate::api::{json, listen, pb};
use crate::error::{Code, Error};
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures::StreamExt;
use futures::future::FutureExt;
use routes::{Op, ROUTES, Route};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// What the door speaks, for [`listen`].
pub const PROTOCOL: listen::Protocol = listen::Protocol::Any;

/// The routes of the door.
pub fn routes(service: &Arc<Service>, tasks: &Tasks) -> Router {
    let door = Arc::new(HttpDoor { service: service.clone(), tasks: tasks.clone() });
    let mut router = Router::new();
    for route in ROUTES {
        let door = door.clone();
        let filter =
            MethodFilter::try_from(Method::from_bytes(route.method.as_bytes()).unwrap_or(Method::GET)).unwrap_or(MethodFilter::GET);
        let handler = move |path: Params, request: Request| {
            let door = door.clone();
            async move { door.answer(route, path, request).await }
        };
        router = router.route(route.path, on(filter, handler));
    }
    router
        .fallback(|| async { refused(&Error::new(Code::NotFound, "no such path; GET /openapi.json lists them")) })
        .method_not_allowed_fallback(|| async {
            let e = Error::new(Code::InvalidArgument, "this path has other methods; GET /openapi.json lists them");
            let mut response = refused(&e);
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response
        })
}

struct HttpDoor {
    service: Arc<Service>,
    tasks: Tasks,
}

/// A JSON object.
fn object(bytes: &[u8]) -> Result<serde_json::Value, Error> {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(Error::invalid_at("", "a JSON object", "write {…}")),
        Err(e) => Err(Error::invalid_at("", "a JSON object", e.to_string())),
    }
}

type Params = Result<Path<BTreeMap<String, String>>, PathRejection>;

impl HttpDoor {
    async fn answer(&self, route: &Route, params: Params, request: Request) -> Response {
        match AssertUnwindSafe(self.dispatch(route, params, request)).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => refused(&e),
            Err(panic) => {
                tracing::error!(path = route.path, "panic in the HTTP door: {}", crate::tasks::panic_text(&*panic));
                refused(&Error::internal("a fault of the service, not of the request"))
            }
        }
    }

    async fn dispatch(&self, route: &Route, params: Params, request: Request) -> Result<Response, Error> {
        if route.open {
            return self.open_route(route.op).await;
        }
        self.same_origin(&request)?;
        let headers = request.headers().get_all(header::AUTHORIZATION);
        let who = self.service.principal(Door::Http, headers.iter().map(HeaderValue::as_bytes))?;
        let trace = request.headers().get("traceparent").and_then(|v| v.to_str().ok()).and_then(trace_id);
        let call = Call { who, door: Door::Http, deadline: None, trace };
        let query = query(route, request.uri())?;
        let agent = match &params {
            Ok(Path(params)) => named_agent(params),
            Err(PathRejection::MissingPathParams(_)) => None,
            Err(_) => return Err(Error::invalid_at("", "a path in UTF-8", "write special characters as %XX")),
        };
        let service = &self.service;
        match route.op {
            Op::Register => {
                let yaml = body::is_yaml(request.headers());
                let bytes = self.body(request).await?;
                let document = body::document(&bytes, yaml)?;
                ok(&service.register(&call, document).await?)
            }
            Op::List => ok(&service.list(&call, list_request(&query)?).await?),
            Op::Get => ok(&service.get(&call, pb::GetRequest { agent, version: query.get("version").cloned() }).await?),
            Op::Deregister => ok(&service.deregister(&call, pb::DeregisterRequest { agent }).await?),
            Op::Heartbeat => {
                let mut message: pb::HeartbeatRequest = self.message_or_default(request).await?;
                same_agent(&mut message.agent, agent)?;
                ok(&service.heartbeat(&call, message).await?)
            }
            Op::Drain => {
                let mut message: pb::DrainRequest = self.message_or_default(request).await?;
                same_agent(&mut message.agent, agent)?;
                ok(&service.drain(&call, message).await?)
            }
            Op::Resolve => {
                let bytes = self.body(request).await?;
                ok(&service.resolve(&call, json::read(&bytes)?).await?)
            }
            Op::ResolveBatch => {
                let bytes = self.body(request).await?;
                ok(&service.resolve_batch(&call, json::read(&bytes)?).await?)
            }
            Op::Policy => ok(&service.policy(&call).await?),
            Op::ChangePolicy => {
                let bytes = self.body(request).await?;
                ok(&service.change_policy(&call, object(&bytes)?).await?)
            }
            Op::Models => ok(&service.models(&call).await?),
            Op::SwapModels => {
                let bytes = self.body(request).await?;
                ok(&service.swap_models(&call, object(&bytes)?).await?)
            }
            Op::Watch => self.watch(&call),
            Op::Submit
            | Op::Messages
            | Op::Message
            | Op::Cancel
            | Op::Ack
            | Op::Nack
            | Op::Receipt
            | Op::DeadLetters
            | Op::Replay
            | Op::Stats => self.messages(route.op, &call, params.as_ref().ok().map(|p| &p.0), &query, request).await,
            Op::Report => {
                let bytes = self.body(request).await?;
                ok(&service.report(&call, json::read(&bytes)?).await?)
            }
            Op::Outcomes => {
                let text = |name: &str| query.get(name).cloned();
                let (agent, capability, reporter) = (text("agent"), text("capability"), text("reporter"));
                let which = pb::ListOutcomesRequest { agent, capability, reporter, limit: limit(&query)?, after: text("after") };
                ok(&service.outcomes(&call, which).await?)
            }
            Op::Forget => {
                let text = |name: &str| query.get(name).cloned();
                let (agent, capability, reporter) = (text("agent"), text("capability"), text("reporter"));
                ok(&service.forget(&call, pb::ForgetRequest { agent, capability, reporter, id: text("id") }).await?)
            }
            Op::Health | Op::Ready | Op::Metrics | Op::OpenApi => self.open_route(route.op).await,
        }
    }

    async fn open_route(&self, op: Op) -> Result<Response, Error> {
        match op {
            Op::Ready => {
                self.service.ready().await?;
                ok(&serde_json::json!({"status": "ready"}))
            }
            Op::Metrics => Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::render()).into_response()),
            Op::OpenApi => Ok(([(header::CONTENT_TYPE, "application/json")], openapi::document().to_string()).into_response()),
            Op::Health
            | Op::Register
            | Op::List
            | Op::Get
            | Op::Deregister
            | Op::Heartbeat
            | Op::Drain
            | Op::Resolve
            | Op::ResolveBatch
            | Op::Policy
            | Op::ChangePolicy
            | Op::Models
            | Op::SwapModels
            | Op::Watch
            | Op::Submit
            | Op::Messages
            | Op::Message
            | Op::Cancel
            | Op::Ack
            | Op::Nack
            | Op::Receipt
            | Op::DeadLetters
            | Op::Replay
            | Op::Stats
            | Op::Report
            | Op::Outcomes
            | Op::Forget => {
                let version = self.service.version();
                let mut health = serde_json::json!({
                    "status": "ok", "version": version.version, "models": version.models, "durability": version.durability,
                });
                // it counts everybody's registrations, and whoever asks here has shown no token
                if !self.service.needs_token() {
                    health["catalog"] = version.catalog.into();
                }
                ok(&health)
            }
        }
    }

    /// A page of some website must not use the caller's browser to reach a node that knows no tokens.
    fn same_origin(&self, request: &Request) -> Result<(), Error> {
        let Some(origin) = request.headers().get(header::ORIGIN).filter(|_| !self.service.needs_token()) else { return Ok(()) };
        let host = origin.to_str().ok().and_then(|o| o.parse::<axum::http::Uri>().ok()).and_then(|u| u.host().map(str::to_string));
        match host.as_deref() {
            Some("localhost" | "127.0.0.1" | "[::1]") => Ok(()),
            Some(_) | None => Err(Error::new(Code::Forbidden, "pages of other origins are served only when tokens are configured")),
        }
    }

    async fn body(&self, request: Request) -> Result<Vec<u8>, Error> {
        let limits = self.service.limits();
        body::read(request, limits.message_bytes, limits.body_timeout).await
    }

    /// A message that may be left out altogether.
    async fn message_or_default<T: serde::de::DeserializeOwned + Default>(&self, request: Request) -> Result<T, Error> {
        let bytes = self.body(request).await?;
        if bytes.is_empty() { Ok(T::default()) } else { json::read(&bytes) }
    }

    fn watch(&self, call: &Call) -> Result<Response, Error> {
        let stop = self.tasks.stop(Stage::Serve);
        let events = self.service.watch(call)?.take_until(stop.cancelled_owned());
        let events = events.map(|event| {
            let data = json::write(&event).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
            Ok::<_, Infallible>(Event::default().event(&event.kind).id(event.generation.to_string()).data(data))
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response())
    }
}

fn named_agent(params: &BTreeMap<String, String>) -> Option<pb::AgentRef> {
    Some(pb::AgentRef { domain: String::new(), namespace: params.get("namespace")?.clone(), agent_id: params.get("agent_id")?.clone() })
}

/// The agent of the path; a body may repeat it, not contradict it.
fn same_agent(body: &mut Option<pb::AgentRef>, path: Option<pb::AgentRef>) -> Result<(), Error> {
    if let (Some(body), Some(path)) = (&body, &path) {
        let local = body.domain.is_empty() || body.domain == "local";
        if !local || body.namespace != path.namespace || body.agent_id != path.agent_id {
            return Err(Error::invalid_at("/agent", "the agent of the path, or nothing", "leave it out"));
        }
    }
    *body = path;
    Ok(())
}

/// The query parameters, each once, none that the route does not know.
fn query(route: &Route, uri: &Uri) -> Result<BTreeMap<String, String>, Error> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|_| Error::invalid_at("", "query parameters name=value", "write special characters as %XX"))?;
    let mut read = BTreeMap::new();
    for (name, value) in pairs {
        let shown: String = name.chars().take(40).collect();
        let label = name.starts_with("tag.") && name.len() > 4 && route.query.1.contains(&"tag.*");
        if !label && !route.query.1.contains(&name.as_str()) {
            let known = if route.query.1.is_empty() { "none".to_string() } else { route.query.1.join(", ") };
            return Err(Error::invalid_at(&format!("/{shown}"), "a known query parameter", format!("known here: {known}")));
        }
        if read.insert(name, value).is_some() {
            return Err(Error::invalid_at(&format!("/{shown}"), "each query parameter once", "remove one"));
        }
    }
    Ok(read)
}

fn limit(query: &BTreeMap<String, String>) -> Result<Option<u32>, Error> {
    let limit = query.get("limit").map(|text| text.parse::<u32>()).transpose();
    limit.map_err(|_| Error::invalid_at("/limit", "a whole number from 1 to 1000", "correct it"))
}

fn list_request(query: &BTreeMap<String, String>) -> Result<pb::ListRequest, Error> {
    Ok(pb::ListRequest {
        namespace: query.get("namespace").cloned(),
        tag: query.get("tag").cloned(),
        capability: query.get("capability").cloned(),
        limit: limit(query)?,
        after: query.get("after").cloned(),
    })
}

fn ok<T: serde::Serialize>(message: &T) -> Result<Response, Error> {
    let bytes = json::write(message)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// An error as a response.
pub fn refused(e: &Error) -> Response {
    let body = serde_json::json!({"error": crate::api::convert::error(e)}).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(e.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(after) = e.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_millis().div_ceil(1000) as u64));
    }
    if e.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
