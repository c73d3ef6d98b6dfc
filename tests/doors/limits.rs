//! Limits: sizes, numbers, times. Whoever breaks one is refused; the others are served.

use crate::fakes::node;
use agent_reach::api::grpc::status::error_of;
use agent_reach::api::{self, pb};
use agent_reach::error::Code;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn request(query: &str) -> pb::ResolveRequest {
    pb::ResolveRequest { query: query.into(), ..Default::default() }
}

#[tokio::test]
async fn messages_have_a_size() {
    let node = node(&[], "").await;
    let most = 4 << 20;
    let body = |n: usize| format!("{{\"query\":\"{}\"}}", "x".repeat(n - 12));
    assert_eq!(body(most).len(), most);
    assert_eq!(node.post("/v1/resolve", body(most)).await.0, 200, "exactly the limit");
    let (status, refused) = node.post("/v1/resolve", body(most + 1)).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (413, Some("payload_too_large")));
    let chunks = futures::stream::iter((0..80).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 16])));
    let (status, _) = node.post("/v1/resolve", reqwest::Body::wrap_stream(chunks)).await;
    assert_eq!(status, 413, "a length that is not declared");

    let mut matcher = node.matcher().await;
    matcher.resolve(request(&"x".repeat(most - 100))).await.unwrap();
    let status = matcher.resolve(request(&"x".repeat(most + 1))).await.unwrap_err();
    assert_eq!((status.code(), error_of(&status).unwrap().code), (tonic::Code::ResourceExhausted, "payload_too_large".into()));
    node.still_serves().await;
}

#[tokio::test]
async fn requests_under_way_are_bounded() {
    let node = node(&[("server.limits.requests", "2")], "").await;
    let busy = futures::future::join_all((0..2).map(|_| node.post("/v1/resolve", r#"{"query":"wait 700"}"#)));
    let refused = async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let response = node.http.post(node.url("/v1/resolve")).body(r#"{"query":"x"}"#).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (503, "1"));
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "overloaded");
        let status = node.matcher().await.resolve(request("x")).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(node.get("/health").await.0, 200, "the process can still be looked at");
    };
    let (busy, ()) = tokio::join!(busy, refused);
    assert!(busy.iter().all(|(status, _)| *status == 200));
    node.still_serves().await;
}

#[tokio::test]
async fn deadlines_are_kept() {
    let node = node(&[("server.limits.deadline_default", "300ms"), ("server.limits.deadline_max", "600ms")], "").await;
    let clock = agent_reach::clock::SystemClock;
    let began = agent_reach::clock::Clock::instant(&clock);
    let (status, refused) = node.post("/v1/resolve", r#"{"query":"slow"}"#).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (504, Some("deadline_exceeded")));
    let (status, _) = node.post("/v1/resolve", r#"{"query":"slow","deadline_ms":3600000}"#).await;
    assert_eq!(status, 504, "nobody waits longer than the longest deadline");
    let (status, _) = node.post("/v1/resolve", r#"{"query":"slow","deadline_ms":10}"#).await;
    assert_eq!(status, 504);
    let mut short = tonic::Request::new(request("slow"));
    short.set_timeout(Duration::from_millis(50));
    let status = node.matcher().await.resolve(short).await.unwrap_err();
    assert!(matches!(status.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled), "{status}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let mut under_way = 1;
    for _ in 0..100 {
        under_way = node.world.resolving.lock().unwrap().0;
        if under_way == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(under_way, 0, "what nobody waits for is dropped");
    node.still_serves().await;
}

#[tokio::test]
async fn open_streams_are_bounded_and_give_their_place_back() {
    let node = node(&[("server.limits.watchers", "2")], "").await;
    let mut registry = node.registry().await;
    let one = registry.watch(pb::WatchRequest {}).await.unwrap();
    let two = node.http.get(node.url("/v1/watch")).send().await.unwrap();
    assert_eq!(two.status(), 200);
    assert_eq!(registry.watch(pb::WatchRequest {}).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(node.get("/v1/watch").await.0, 503);
    drop((one, two));
    for _ in 0..100 {
        if registry.watch(pb::WatchRequest {}).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the places were not given back");
}

/// Writes slowly or never, and sees whether the connection is closed in time.
async fn closed_within(addr: std::net::SocketAddr, first: &[u8], within: Duration) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(within, stream.read_to_end(&mut answer)).await.expect("the connection is closed in time").ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn slow_peers_are_let_go() {
    let settings = [
        ("server.limits.header_timeout", "200ms"),
        ("server.limits.body_timeout", "200ms"),
        ("server.limits.keepalive", "1s"),
        ("server.limits.keepalive_timeout", "200ms"),
    ];
    let node = node(&settings, "").await;
    let patience = Duration::from_secs(5);
    for door in [node.doors.http, node.doors.grpc] {
        closed_within(door, b"", patience).await;
        closed_within(door, b"PRI * HT", patience).await;
        closed_within(door, b"\x16\x03\x01\x02\x00\x01\x00", patience).await;
        closed_within(door, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", patience).await;
    }
    closed_within(node.doors.http, b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\n", patience).await;
    let answer = closed_within(
        node.doors.http,
        b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{\"que",
        patience,
    )
    .await;
    assert!(answer.contains("504") && answer.contains("did not arrive"), "{answer}");
    assert!(closed_within(node.doors.grpc, b"GET / HTTP/1.1\r\n\r\n", patience).await.is_empty());
    let many = format!("GET /health HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(1000));
    assert!(closed_within(node.doors.http, many.as_bytes(), patience).await.contains("431"));
    let long = format!("GET /health HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "b".repeat(1 << 20));
    let mut stream = TcpStream::connect(node.doors.http).await.unwrap();
    stream.write_all(long.as_bytes()).await.ok();
    node.still_serves().await;
}

#[tokio::test]
async fn connections_wait_for_a_place() {
    let node = node(&[("server.limits.connections", "2"), ("server.limits.header_timeout", "400ms")], "").await;
    let silent: Vec<TcpStream> =
        futures::future::join_all((0..2).map(|_| async { TcpStream::connect(node.doors.http).await.unwrap() })).await;
    let (status, _) = node.post("/v1/resolve", r#"{"query":"x"}"#).await;
    assert_eq!(status, 200, "served as soon as the silent ones are let go");
    drop(silent);
}

#[tokio::test]
async fn a_used_port_is_named_with_the_way_out() {
    let node = node(&[], "").await;
    let taken = agent_reach::config::Override::new("server.http_addr", node.doors.http.to_string(), "test");
    let free = agent_reach::config::Override::new("server.grpc_addr", "127.0.0.1:0", "test");
    let config = agent_reach::config::Config::parse("", &[taken, free]).unwrap();
    let e = api::listen::bind(config.server.http_addr, "server.http_addr", "--http-port").await.unwrap_err();
    assert_eq!(e.code, Code::FailedPrecondition);
    assert!(
        e.message.contains("server.http_addr")
            && e.message.contains("--http-port")
            && e.message.contains(&node.doors.http.port().to_string()),
        "{e}"
    );
}

#[tokio::test]
async fn shutdown_finishes_what_is_under_way() {
    let node = node(&[], "").await;
    let matcher = node.matcher().await;
    let watch = node.http.get(node.url("/v1/watch")).send().await.unwrap();
    let grpc_watch = node.registry().await.watch(pb::WatchRequest {}).await.unwrap();
    let idle = futures::stream::pending::<pb::ResolveRequest>();
    let grpc_stream = node.matcher().await.resolve_stream(idle).await;
    let working = async {
        let (over_http, over_grpc) =
            (node.post("/v1/resolve", r#"{"query":"wait 300"}"#), async { matcher.clone().resolve(request("wait 300")).await });
        tokio::join!(over_http, over_grpc)
    };
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.tasks.shutdown(Duration::from_secs(5)).await
    };
    let ((over_http, over_grpc), late) = tokio::join!(working, stopping);
    assert_eq!((over_http.0, over_grpc.is_ok()), (200, true));
    assert!(late.is_empty(), "{late:?}");
    drop((watch, grpc_watch, grpc_stream));
    assert!(TcpStream::connect(node.doors.http).await.is_err(), "the door is closed");
    assert!(node.tasks.running().is_empty());
}

#[tokio::test]
async fn a_batch_has_a_length() {
    let node = node(&[], "").await;
    for n in [0, 257] {
        let (status, refused) = node.post("/v1/resolve/batch", json!({"requests": vec![json!({"query": "x"}); n]}).to_string()).await;
        assert_eq!((status, refused["error"]["faults"][0]["pointer"].as_str().unwrap().starts_with("/requests")), (400, true), "{n}");
    }
    let status = node.matcher().await.resolve_batch(pb::ResolveBatchRequest { requests: vec![request("x"); 257] }).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
}
