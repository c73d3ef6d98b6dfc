//! Agents that are called over gRPC and MCP: what they answer becomes the same receipts as over HTTP, through the same guard.

use crate::delivery::{start, start_with};
use crate::harness::key;
use agent_reach::api::pb;
use agent_reach::dispatch::engine::Receipt;
use agent_reach::dispatch::guard::{Guard, Lookup};
use agent_reach::dispatch::port::{Reach, Target};
use agent_reach::dispatch::service::Dispatcher;
use agent_reach::error::Code;
use agent_reach::tasks::{Stage, Tasks};
use agent_reach::types::Principal;
use agent_reach::types::envelope::{Payload, RawPayload, ReachId, SubmitRequest};
use agent_reach::types::manifest::{Endpoint, Protocol};
use agent_reach::types::message::{Cause, DeadTag, Event, Message, Reply, State};
use agent_reach::types::outbound::OutboundPolicy;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::Status;

fn me() -> Principal {
    Principal::local("me")
}

fn called(id: &str, protocol: Protocol, address: String, capability: &str) -> Target {
    let endpoints = Arc::from([Endpoint { protocol, address, weight: 100 }]);
    Target { reach: Reach::Push, endpoints, ..Target::plain(key("ns", id), capability) }
}

fn ask(payload: Value) -> SubmitRequest {
    SubmitRequest {
        intent: Some("work".into()),
        payload: Some(Box::new(RawPayload(payload.to_string()))),
        max_attempts: Some(1),
        ttl_ms: Some(20_000),
        ..SubmitRequest::default()
    }
}

async fn ends(d: &Dispatcher, payload: Value) -> Message {
    let s = d.submit(me(), ask(payload)).await.unwrap();
    d.wait(s.message.id(), Duration::from_secs(20)).await.unwrap()
}

fn words(m: &Message) -> String {
    m.head.reason.as_deref().unwrap_or_default().to_string()
}

async fn nacks(d: &Dispatcher, id: ReachId) -> Vec<(Cause, String, Option<u64>)> {
    let log = d.log(id).await.unwrap();
    let nack = |e: &Event| {
        let Event::Nacked { cause, reason, retry_after_ms, .. } = e else { return None };
        Some((*cause, reason.to_string(), *retry_after_ms))
    };
    log.iter().filter_map(|e| nack(&e.event)).collect()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} never came");
}

/// What the agent saw: deliveries, and calls that were dropped before they ended.
#[derive(Default)]
struct Seen {
    works: Mutex<Vec<pb::Work>>,
    dropped: Arc<AtomicUsize>,
}

/// Does what the payload says under `do`.
struct Worker(Arc<Seen>);

struct Guarded(Arc<AtomicUsize>);

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn receipt(kind: &str) -> pb::WorkReceipt {
    pb::WorkReceipt { kind: kind.into(), ..Default::default() }
}

fn with_data(kind: &str, data: &str) -> pb::WorkReceipt {
    pb::WorkReceipt { data: Some(data.into()), ..receipt(kind) }
}

#[tonic::async_trait]
impl pb::worker_server::Worker for Worker {
    type DeliverStream = BoxStream<'static, Result<pb::WorkReceipt, Status>>;

    async fn deliver(&self, request: tonic::Request<pb::Work>) -> Result<tonic::Response<Self::DeliverStream>, Status> {
        let work = request.into_inner();
        let payload: Value = serde_json::from_str(work.payload.as_deref().unwrap_or("{}")).unwrap();
        let delivery = work.delivery;
        self.0.works.lock().push(work);
        let list = match payload["do"].as_str().unwrap_or_default() {
            "ack" => vec![
                Ok(receipt("delivered")),
                Ok(receipt("accepted")),
                Ok(with_data("progress", "{\"half\": true}")),
                Ok(with_data("ack", "{\"price\": 123456789012345678901234567890}")),
            ],
            "nothing" => vec![],
            "later" => vec![Ok(receipt("accepted"))],
            "nack" => vec![Ok(pb::WorkReceipt { reason: Some("lock held".into()), ..receipt("nack") })],
            "huge" => vec![Ok(with_data("ack", &format!("{:?}", "x".repeat(3_000_000))))],
            "nonsense" => vec![Ok(receipt("finished"))],
            "halfway" => vec![Ok(receipt("accepted")), Err(Status::internal("the disk is full, password=hunter2"))],
            "misfit" => return Err(Status::invalid_argument("no such order")),
            "not mine" => return Err(Status::aborted("another desk")),
            "unknown" => return Err(Status::unimplemented("")),
            "refused" => return Err(Status::permission_denied("not for you")),
            "busy once" if delivery == 1 => {
                let mut status = Status::unavailable("restarting");
                status.metadata_mut().insert("retry-after-ms", "3".parse().unwrap());
                return Err(status);
            }
            "busy once" => vec![Ok(receipt("ack"))],
            "hang" => {
                let guard = Guarded(self.0.dropped.clone());
                let hanging = futures::stream::unfold((guard, true), |(guard, first)| async move {
                    if !first {
                        futures::future::pending::<()>().await;
                    }
                    Some((Ok(receipt("accepted")), (guard, false)))
                });
                return Ok(tonic::Response::new(hanging.boxed()));
            }
            other => panic!("what is {other}?"),
        };
        Ok(tonic::Response::new(futures::stream::iter(list).boxed()))
    }
}

async fn worker(tasks: &Tasks) -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let service = pb::worker_server::WorkerServer::new(Worker(seen.clone()));
    let server = tonic::transport::Server::builder().add_service(service);
    drop(tasks.spawn(Stage::Accept, "case-worker", async move {
        server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)).await.ok();
    }));
    (at, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_says_over_grpc_is_a_receipt() {
    let tasks = Tasks::new();
    let (at, seen) = worker(&tasks).await;
    let (d, _tasks) = start(&[called("a", Protocol::Grpc, format!("grpc://{at}/"), "work")]).await;
    let done = ends(&d, json!({"do": "ack"})).await;
    assert_eq!(done.head.state, State::Done, "{done:?}");
    let data = done.head.reply.clone().unwrap().data.unwrap();
    assert_eq!(data, Payload::new("{\"price\": 123456789012345678901234567890}").unwrap(), "digit for digit");
    let log = d.log(done.id()).await.unwrap();
    assert!(
        log.iter().any(|e| matches!(&e.event, Event::Progress { partial: Some(p), .. } if p.as_str() == "{\"half\": true}")),
        "{log:?}"
    );
    {
        let works = seen.works.lock();
        let work = works.first().unwrap();
        assert_eq!((work.reach_id.as_str(), work.delivery, work.intent.as_str()), (done.id().to_string().as_str(), 1, "work"));
        assert_eq!(work.trace_id, *done.envelope.trace_id);
    }
    let quiet = ends(&d, json!({"do": "nothing"})).await;
    assert_eq!((quiet.head.state, quiet.head.reply), (State::Done, Some(Reply::default())));
    for (what, code) in [("misfit", Code::PayloadInvalid), ("refused", Code::AgentRejected)] {
        let failed = ends(&d, json!({"do": what})).await;
        assert_eq!((failed.head.state, failed.head.code), (State::Failed, Some(code)), "{what}");
        assert!(words(&failed).contains("the agent says"), "{}", words(&failed));
    }
    for what in ["not mine", "unknown"] {
        let rejected = ends(&d, json!({"do": what})).await;
        assert_eq!(rejected.head.tag, Some(DeadTag::AgentRejected), "{what}");
    }
    for (what, cause, said) in [
        ("nack", Cause::Nack, "lock held"),
        ("huge", Cause::Broken, "too large"),
        ("nonsense", Cause::Broken, "can't be read"),
        ("halfway", Cause::Nack, "status INTERNAL: the agent says: the disk is full, password=[hidden]"),
    ] {
        let dead = ends(&d, json!({"do": what})).await;
        assert_eq!(dead.head.state, State::DeadLetter, "{what}: {dead:?}");
        let all = nacks(&d, dead.id()).await;
        assert!(all[0].0 == cause && all[0].1.contains(said), "{what}: {all:?}");
    }
    let again = SubmitRequest { max_attempts: Some(3), ..ask(json!({"do": "busy once"})) };
    let s = d.submit(me(), again).await.unwrap();
    let done = d.wait(s.message.id(), Duration::from_secs(20)).await.unwrap();
    assert_eq!((done.head.state, done.head.delivery), (State::Done, 2));
    assert!(matches!(nacks(&d, done.id()).await.as_slice(), [(Cause::Busy, _, Some(3))]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_may_accept_now_and_end_later() {
    let tasks = Tasks::new();
    let (at, seen) = worker(&tasks).await;
    let target = called("a", Protocol::Grpc, format!("http://{at}"), "work");
    let (d, _tasks) = start(std::slice::from_ref(&target)).await;
    let s = d.submit(me(), ask(json!({"do": "later"}))).await.unwrap();
    let id = s.message.id();
    let open = d.wait(id, Duration::from_millis(300)).await.unwrap();
    assert!(open.head.accepted_ms.is_some() && !open.head.state.is_terminal(), "{open:?}");
    d.receipt(&target.agent, id, 1, Receipt::Acked(Reply::default())).await.unwrap();
    assert_eq!(d.wait(id, Duration::from_secs(5)).await.unwrap().head.state, State::Done);
    // called off while the stream is open: the call is dropped, so that the agent hears of it
    let s = d.submit(me(), ask(json!({"do": "hang"}))).await.unwrap();
    until("the call", || seen.works.lock().len() == 2).await;
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 0);
    assert_eq!(d.cancel(&me(), &s.message.id().to_string(), "never mind").await.unwrap().head.state, State::Cancelled);
    until("the end of the call", || seen.dropped.load(Ordering::SeqCst) == 1).await;
}

/// Every name is this machine.
struct Inward;

impl Lookup for Inward {
    fn lookup(&self, _: &str) -> futures::future::BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(vec!["93.184.216.34".parse().unwrap(), "127.0.0.1".parse().unwrap()]) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_goes_through_the_guard() {
    let tasks = Tasks::new();
    let (at, seen) = worker(&tasks).await;
    let server = Mcp::start(&tasks).await;
    for (protocol, address) in [
        (Protocol::Grpc, format!("grpc://{at}/")),
        (Protocol::Grpc, format!("grpc://agent.example:{}/", at.port())),
        (Protocol::Mcp, server.address.clone()),
        (Protocol::Mcp, server.address.replace("127.0.0.1", "agent.example")),
    ] {
        let guard = Guard::with_lookup(OutboundPolicy::strict(), Duration::from_secs(2), Arc::new(Inward)).unwrap();
        let (d, _tasks) = start_with(guard, &[called("a", protocol, address.clone(), "work")]).await;
        let dead = ends(&d, json!({"do": "ack"})).await;
        let all = nacks(&d, dead.id()).await;
        assert!(matches!(all.as_slice(), [(Cause::Blocked, ..)]), "{address}: {all:?}");
    }
    assert!(seen.works.lock().is_empty() && server.state.calls.lock().is_empty(), "nothing was sent");
    // nobody listens; who listens speaks something else: no status of the agent's is made of it
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (d, _tasks) = start(&[called("a", Protocol::Grpc, format!("grpc://{free}/"), "work")]).await;
    let dead = ends(&d, json!({"do": "ack"})).await;
    assert!(matches!(nacks(&d, dead.id()).await.as_slice(), [(Cause::Connect, ..)]));
    let web = server.address.replace("/mcp", "/");
    for (protocol, address) in [(Protocol::Mcp, format!("http://{at}/")), (Protocol::Grpc, web)] {
        let (d, _tasks) = start(&[called("a", protocol, address.clone(), "work")]).await;
        let m = ends(&d, json!({"do": "ack"})).await;
        assert!(m.head.state == State::DeadLetter || m.head.code == Some(Code::AgentRejected), "{address}: {m:?}");
    }
    assert!(seen.works.lock().is_empty());
}

/// A small MCP server over streamable HTTP. Tools by name; sessions that it can forget.
struct Mcp {
    address: String,
    state: Arc<McpState>,
}

#[derive(Default)]
struct McpState {
    /// Requests and notifications: method (or tool), session.
    calls: Mutex<Vec<(String, Option<String>)>>,
    /// Whole bodies.
    bodies: Mutex<Vec<Value>>,
    session: Mutex<Option<String>>,
    begun: AtomicUsize,
}

fn sse(events: &[Value], open: bool) -> Response<Body> {
    let text: String = events.iter().map(|e| format!("event: message\r\ndata: {e}\r\n\r\n")).collect();
    let first = futures::stream::once(async move { Ok::<_, std::io::Error>(text) });
    let body = if open { Body::from_stream(first.chain(futures::stream::pending())) } else { Body::from_stream(first) };
    Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
}

fn document(value: &Value) -> Response<Body> {
    Response::builder().header("content-type", "application/json; charset=utf-8").body(Body::from(value.to_string())).unwrap()
}

fn bare(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

impl McpState {
    async fn answer(&self, headers: HeaderMap, body: Value) -> Response<Body> {
        let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_string());
        let accept = text("accept").unwrap_or_default();
        if !accept.contains("application/json") || !accept.contains("text/event-stream") {
            return bare(StatusCode::NOT_ACCEPTABLE);
        }
        let method = body["method"].as_str().unwrap_or("answer").to_string();
        let named = if method == "tools/call" { body["params"]["name"].as_str().unwrap().to_string() } else { method.clone() };
        self.calls.lock().push((named.clone(), text("mcp-session-id")));
        self.bodies.lock().push(body.clone());
        if method == "initialize" {
            let id = format!("s{}", self.begun.fetch_add(1, Ordering::SeqCst) + 1);
            *self.session.lock() = Some(id.clone());
            let result =
                json!({"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}});
            let mut answer = document(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
            answer.headers_mut().insert("mcp-session-id", id.parse().unwrap());
            return answer;
        }
        if text("mcp-session-id") != *self.session.lock() {
            return bare(StatusCode::NOT_FOUND);
        }
        assert_eq!(text("mcp-protocol-version").as_deref(), Some("2025-03-26"), "the version that was agreed upon");
        let result = |value: Value| json!({"jsonrpc": "2.0", "id": body["id"], "result": value});
        let error = |code: i64, message: &str| json!({"jsonrpc": "2.0", "id": body["id"], "error": {"code": code, "message": message}});
        match named.as_str() {
            "notifications/initialized" | "notifications/cancelled" | "answer" => bare(StatusCode::ACCEPTED),
            "price" => document(&result(json!({
                "content": [{"type": "text", "text": "seven"}],
                "structuredContent": {"price": 7, "of": body["params"]["arguments"]["item"]},
            }))),
            "stream" => sse(
                &[
                    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": body["params"]["_meta"]["progressToken"], "progress": 1, "total": 2}}),
                    json!({"jsonrpc": "2.0", "id": 99, "method": "ping"}),
                    json!({"jsonrpc": "2.0", "id": "someone else", "result": {"structuredContent": {"wrong": true}}}),
                    result(json!({"content": [{"type": "text", "text": "{\"ok\": true}"}]})),
                ],
                true,
            ),
            "cut" => sse(&[json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})], false),
            "fails" => document(&result(json!({"content": [{"type": "text", "text": "api_key=abc123 is wrong"}], "isError": true}))),
            "misfit" => document(&error(-32602, "Invalid arguments: item is required")),
            "gone" => document(&error(-32602, "Unknown tool: gone")),
            "crash" => document(&error(-32603, "boom")),
            "busy" => bare(StatusCode::SERVICE_UNAVAILABLE),
            "closed" => bare(StatusCode::UNAUTHORIZED),
            "page" => Response::builder().header("content-type", "text/html").body(Body::from("<html>")).unwrap(),
            "hangs" => sse(&[], true),
            other => panic!("what is {other}?"),
        }
    }
}

impl Mcp {
    async fn start(tasks: &Tasks) -> Self {
        let state = Arc::new(McpState::default());
        let own = state.clone();
        let handler = move |headers: HeaderMap, body: String| {
            let state = own.clone();
            async move { state.answer(headers, serde_json::from_str(&body).unwrap()).await }
        };
        let app = axum::Router::new().route("/mcp", axum::routing::post(handler));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/mcp", listener.local_addr().unwrap());
        drop(tasks.spawn(Stage::Accept, "case-mcp", async move { axum::serve(listener, app).await }));
        Self { address, state }
    }

    fn count(&self, name: &str) -> usize {
        self.state.calls.lock().iter().filter(|(n, _)| n == name).count()
    }

    async fn tool(&self, name: &str) -> (Dispatcher, Tasks) {
        start(&[called("a", Protocol::Mcp, self.address.clone(), name)]).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_an_mcp_server_are_agents() {
    let tasks = Tasks::new();
    let server = Mcp::start(&tasks).await;
    // the name of the tool may differ from the capability's
    let target = Target { tool: Some("price".into()), ..called("a", Protocol::Mcp, server.address.clone(), "price_of") };
    let (d, _tasks) = start(&[target]).await;
    for n in 1..=3 {
        let done = ends(&d, json!({"item": "apple"})).await;
        assert_eq!(done.head.state, State::Done, "{done:?}");
        assert_eq!(done.head.reply.unwrap().data.unwrap().value(), json!({"price": 7, "of": "apple"}), "what is structured comes first");
        assert_eq!((server.count("price"), server.count("initialize"), server.count("notifications/initialized")), (n, 1, 1));
    }
    // a server that started anew knows the session no more: begun again, the tool is called once
    *server.state.session.lock() = None;
    assert_eq!(ends(&d, json!({"item": "pear"})).await.head.state, State::Done);
    assert_eq!((server.count("initialize"), server.count("price")), (2, 5), "one of the five was turned away");
    let refused = ends(&d, json!([1, 2])).await;
    assert_eq!((refused.head.state, refused.head.code), (State::Failed, Some(Code::PayloadInvalid)));
    assert!(words(&refused).contains("/payload"), "{}", words(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_may_stream_and_ask() {
    let tasks = Tasks::new();
    let server = Mcp::start(&tasks).await;
    let (d, _tasks) = server.tool("stream").await;
    let done = ends(&d, json!({})).await;
    assert_eq!(done.head.state, State::Done, "{done:?}");
    assert_eq!(done.head.reply.unwrap().data.unwrap().value(), json!({"ok": true}));
    let log = d.log(done.head.agent.map(|_| done.envelope.reach_id).unwrap()).await.unwrap();
    let half = |e: &Event| matches!(e, Event::Progress { partial: Some(p), .. } if p.value()["progress"] == 1);
    assert!(log.iter().any(|e| half(&e.event)), "{log:?}");
    let answered = server.state.bodies.lock().iter().any(|b| b["id"] == 99 && b["result"] == json!({}));
    assert!(answered, "a ping is answered");
    // called off: a server is not told by a closed connection, so it is told in words
    let (d, _tasks) = server.tool("hangs").await;
    let s = d.submit(me(), ask(json!({}))).await.unwrap();
    until("the call", || server.count("hangs") == 1).await;
    d.cancel(&me(), &s.message.id().to_string(), "never mind").await.unwrap();
    until("the cancellation", || server.count("notifications/cancelled") == 1).await;
    let bodies = server.state.bodies.lock();
    let call = bodies.iter().find(|b| b["params"]["name"] == "hangs").unwrap();
    assert_eq!(bodies.last().unwrap()["params"]["requestId"], call["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_an_mcp_server_are_receipts() {
    let tasks = Tasks::new();
    let server = Mcp::start(&tasks).await;
    for (tool, state, code) in [
        ("fails", State::Failed, Code::AgentRejected),
        ("misfit", State::Failed, Code::PayloadInvalid),
        ("closed", State::Failed, Code::AgentRejected),
        ("page", State::Failed, Code::AgentRejected),
        ("gone", State::DeadLetter, Code::AgentRejected),
        ("crash", State::DeadLetter, Code::AllAgentsFailed),
        ("busy", State::DeadLetter, Code::AgentBusy),
        ("cut", State::DeadLetter, Code::AllAgentsFailed),
    ] {
        let (d, _tasks) = server.tool(tool).await;
        let m = ends(&d, json!({})).await;
        assert_eq!((m.head.state, m.head.code), (state, Some(code)), "{tool}: {m:?}");
        let cause = nacks(&d, m.id()).await.first().map(|n| n.0);
        let expected = match tool {
            "crash" => Some(Cause::Nack),
            "busy" => Some(Cause::Busy),
            "cut" => Some(Cause::Broken),
            _ => None,
        };
        assert_eq!(cause, expected, "{tool}");
        assert!(!format!("{m:?}").contains("abc123"), "{tool}: a credential is shown");
    }
}
