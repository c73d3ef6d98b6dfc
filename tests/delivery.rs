//! Delivery by the real binary (routing by names, without models): addresses that may not be called, schemas, what the matcher learns, restarts.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, dead_code)]

#[path = "kill/server.rs"]
mod server;

use serde_json::{Value, json};
use server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

async fn post(server: &Server, path: &str, body: Value) -> (u16, Value) {
    let response = server.http.post(server.url(path)).body(body.to_string()).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

fn manifest(id: &str, address: &str) -> Value {
    json!({
        "namespace": "shop", "agent_id": id, "ttl": "none", "endpoints": [{"protocol": "http", "address": address}],
        "capabilities": [{"intent": "work_try", "description": "does the work that is tried here"}],
    })
}

/// An agent over HTTP that answers by turns; the last answer stays.
async fn agent(answers: Vec<(u16, Value)>) -> (String, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let handler = move || {
        let n = count.fetch_add(1, Ordering::SeqCst) as usize;
        let (status, body) = answers[n.min(answers.len() - 1)].clone();
        async move { (axum::http::StatusCode::from_u16(status).unwrap(), body.to_string()) }
    };
    let app = axum::Router::new().route("/invoke", axum::routing::post(handler)).route("/health", axum::routing::get(|| async { "fine" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (base, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_may_not_be_called_are_refused_at_register_and_at_connect() {
    let data = tempfile::tempdir().unwrap();
    let mut node = Server::new(data.path());
    node.settings = vec!["live.probe_interval=200ms".into()];
    node.start().await;
    // whatever the policy: metadata, link-local, wildcard, hidden spellings, other schemes and services, look-alikes
    for bad in [
        "http://169.254.169.254/latest",
        "http://127.1/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[fec0::1]/",
        "http://0.0.0.0/",
        "http://100.64.0.1/",
        "http://metadata.google.internal/",
        "file:///etc/passwd",
        "gopher://a/",
        "unix:/run/x",
        "http://ok@evil/",
        "http://a/\r\nHost: b",
        "http://a:22/",
        "http://a:6379/",
        "http://a:2379/",
        "http://xn--80ak6aa92e.com/",
        "http://аррӏе.com/",
    ] {
        for place in ["endpoints", "health_check", "notification_endpoint"] {
            let mut m = manifest("bad", "http://127.0.0.1:9001/");
            match place {
                "endpoints" => m["endpoints"][0]["address"] = bad.into(),
                "health_check" => m["health_check"] = json!({"address": bad}),
                _ => m["notification_endpoint"] = bad.into(),
            }
            let (status, e) = post(&node, "/v1/agents", m).await;
            assert_eq!((status, e["error"]["code"].as_str()), (400, Some("invalid_argument")), "{bad} as {place}: {e}");
            assert!(e["error"]["faults"][0]["pointer"].as_str().unwrap().starts_with(&format!("/{place}")), "{bad}: {e}");
        }
    }
    // open when it was registered …
    let (base, calls) = agent(vec![(200, json!({"done": true}))]).await;
    let mut good = manifest("desk", &format!("{base}/invoke"));
    good["health_check"] = json!({"address": format!("{base}/health"), "interval": "1s"});
    assert_eq!(post(&node, "/v1/agents", good).await.0, 200);
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try"})).await;
    assert_eq!(reply["state"], "done", "{reply}");
    // … and closed by the operator afterwards: refused at connect, and shown as what it is
    node.kill();
    node.settings.extend(["outbound.loopback=false".into(), "outbound.private=false".into()]);
    node.start().await;
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try", "max_attempts": 1})).await;
    let life = node.get(&format!("/v1/messages/{}", reply["reach_id"].as_str().unwrap())).await;
    let nack = life["log"].as_array().unwrap().iter().find(|e| e["event"] == "nacked").unwrap_or_else(|| panic!("{life:#}"));
    assert_eq!(nack["detail"]["cause"], "blocked", "{life:#}");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "nothing was sent");
    let mut status = Value::Null;
    for _ in 0..100 {
        status = node.get("/v1/agents/shop/desk").await["status"].clone();
        if status == "blocked_url" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status, "blocked_url", "not merely unreachable");
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_and_results_are_held_against_their_schemas() {
    let data = tempfile::tempdir().unwrap();
    let mut node = Server::new(data.path());
    node.start().await;
    let (base, calls) = agent(vec![(200, json!({"price": "seven"})), (200, json!({"price": 7})), (200, json!({"price": "eight"}))]).await;
    let mut m = manifest("desk", &format!("{base}/invoke"));
    m["capabilities"][0]["input_schema"] = json!({"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}});
    m["capabilities"][0]["output_schema"] = json!({"type": "object", "required": ["price"], "properties": {"price": {"type": "number"}}});
    assert_eq!(post(&node, "/v1/agents", m.clone()).await.0, 200);
    let (status, e) = post(&node, "/v1/messages", json!({"intent": "work_try", "payload": {"item": 7}})).await;
    assert_eq!((status, e["error"]["code"].as_str()), (422, Some("payload_invalid")), "{e}");
    assert_eq!(e["error"]["faults"][0]["pointer"], "/payload/item", "{e}");
    // none at all is no way round the schema: by name, by target, with null, to all; the matcher alone needs none
    for mut message in [json!({"intent": "work_try"}), json!({"target": "shop/desk"}), json!({"intent": "work_try", "mode": "broadcast"})] {
        for payload in [Value::Null, json!({})] {
            message["payload"] = payload;
            let (status, e) = post(&node, "/v1/messages", message.clone()).await;
            assert_eq!((status, e["error"]["code"].as_str()), (422, Some("payload_invalid")), "{message}: {e}");
            let fault = &e["error"]["faults"][0];
            assert_eq!(
                (fault["pointer"].as_str(), fault["expected"].as_str()),
                (Some("/payload/item"), Some("the property \"item\"")),
                "{e}"
            );
            assert!(fault["hint"].as_str().is_some_and(|h| !h.is_empty()), "{e}");
        }
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0, "nothing was sent");
    let (status, answer) = post(&node, "/v1/resolve", json!({"capability": "work_try"})).await;
    assert_eq!((status, answer["decision"].as_str()), (200, Some("auto")), "{answer}");
    let mut free = manifest("free", &format!("{base}/free"));
    free["capabilities"][0] = json!({"intent": "look_round", "description": "looks round", "input_schema": {"type": "object", "properties": {"far": {"type": "boolean"}}}});
    assert_eq!(post(&node, "/v1/agents", free).await.0, 200);
    let (status, reply) = post(&node, "/v1/messages", json!({"intent": "look_round", "max_attempts": 1})).await;
    assert_eq!(status, 200, "nothing is demanded, so nothing is missing: {reply}");
    let referred =
        json!({"target": "shop/desk", "data_ref": "https://data.example/1", "mode": "async", "max_attempts": 1, "ttl_ms": 1_000});
    assert_eq!(post(&node, "/v1/messages", referred).await.0, 202, "what is fetched elsewhere is the agent's to judge");
    let (base, _) = agent(vec![(200, json!({"price": "seven"})), (200, json!({"price": 7})), (200, json!({"price": "eight"}))]).await;
    m["endpoints"][0]["address"] = format!("{base}/invoke").into();
    assert_eq!(post(&node, "/v1/agents", m).await.0, 200);
    // a result that does not fit: one corrective attempt with the reasons
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try", "payload": {"item": "apple"}})).await;
    assert_eq!((reply["state"].as_str(), &reply["data"]["price"]), (Some("done"), &json!(7)), "{reply}");
    let life = node.get(&format!("/v1/messages/{}", reply["reach_id"].as_str().unwrap())).await;
    assert_eq!((life["source"].as_str(), life["delivery"].as_u64()), (Some("fix"), Some(2)));
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try", "payload": {"item": "pear"}})).await;
    assert_eq!(reply["status"]["type"], "schema_validation_failed", "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_sure_is_not_delivered_and_outcomes_are_learnt_from() {
    let data = tempfile::tempdir().unwrap();
    let mut node = Server::new(data.path());
    node.settings = vec!["live.refresh=200ms".into()];
    node.start().await;
    let (good, calls) = agent(vec![(200, json!({"ok": 1}))]).await;
    let (bad, _) = agent(vec![(500, json!({}))]).await;
    assert_eq!(post(&node, "/v1/agents", manifest("good", &format!("{good}/invoke"))).await.0, 200);
    assert_eq!(post(&node, "/v1/agents", manifest("bad", &format!("{bad}/invoke"))).await.0, 200);
    // words alone are no name: shown, not delivered, unless the sender says so or names the agent
    let (_, reply) = post(&node, "/v1/messages", json!({"query": "please does the work that is tried here"})).await;
    assert_eq!(reply["state"], "route_failed", "{reply}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let (_, reply) = post(&node, "/v1/messages", json!({"target": "shop/good"})).await;
    assert_eq!((reply["state"].as_str(), reply["agent_id"].as_str()), (Some("done"), Some("shop/good")), "{reply}");
    // every message ends well, whoever is asked first, and the one that fails is asked less and less
    for n in 0..12 {
        let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try", "payload": n})).await;
        assert_eq!((reply["state"].as_str(), reply["agent_id"].as_str()), (Some("done"), Some("shop/good")), "{reply}");
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (_, answer) = post(&node, "/v1/resolve", json!({"capability": "work_try", "explain": true})).await;
    let health = |id: &str| {
        let candidate = answer["candidates"].as_array().unwrap().iter().find(|c| c["agent"]["agent_id"] == id)?;
        candidate["terms"].as_array().unwrap().iter().find(|t| t["name"] == "health")?["value"].as_f64()
    };
    assert_eq!(health("good"), Some(1.0), "{answer:#}");
    assert!(health("bad").is_none_or(|h| h < 1.0), "{answer:#}");
    let metrics = node.http.get(node.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("reach_delivery_seconds_count{end=\"acked\"}"), "{metrics}");
    // the payload is too large to send: the way out is named
    let large = json!({"intent": "work_try", "payload": "x".repeat(2 * 1024 * 1024)});
    let (status, e) = post(&node, "/v1/messages", large).await;
    assert!(status == 413 && e.to_string().contains("data_ref"), "{e}");
}

/// Bodies that a collector was sent.
type Sent = Arc<std::sync::Mutex<Vec<Vec<u8>>>>;

/// A collector that keeps what it is sent; it is busy at first.
async fn collector() -> (String, Sent) {
    let sent = Sent::default();
    let (keep, busy) = (sent.clone(), Arc::new(AtomicU32::new(0)));
    let take = move |body: axum::body::Bytes| {
        let first = busy.fetch_add(1, Ordering::SeqCst) == 0;
        if !first {
            keep.lock().unwrap().push(body.to_vec());
        }
        async move { if first { axum::http::StatusCode::SERVICE_UNAVAILABLE } else { axum::http::StatusCode::OK } }
    };
    let app = axum::Router::new().route("/v1/traces", axum::routing::post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (base, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_the_spans_of_a_message_with_its_labels() {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message as _;
    let data = tempfile::tempdir().unwrap();
    let (collector, sent) = collector().await;
    let mut node = Server::new(data.path());
    node.settings = vec![format!("telemetry.otlp={collector}")];
    node.start().await;
    let (base, _) = agent(vec![(503, json!({})), (200, json!({"done": true}))]).await;
    let mut m = manifest("desk", &format!("{base}/invoke"));
    m["capabilities"][0]["idempotent"] = true.into();
    assert_eq!(post(&node, "/v1/agents", m).await.0, 200);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try", "trace_id": trace, "biz_tags": {"order_id": "42"}})).await;
    assert_eq!(reply["state"], "done", "{reply}");
    let mut spans = Vec::new();
    for _ in 0..200 {
        let bodies = std::mem::take(&mut *sent.lock().unwrap());
        let requests = bodies.iter().map(|b| ExportTraceServiceRequest::decode(b.as_slice()).unwrap());
        spans.extend(requests.flat_map(|r| r.resource_spans).flat_map(|r| r.scope_spans).flat_map(|s| s.spans));
        if !spans.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let names: Vec<&str> = spans.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names[0], "reach work_try");
    assert_eq!(names.iter().filter(|n| **n == "deliver").count(), 2, "the busy agent, then the answer: {names:?}");
    assert!(names.contains(&"route") && names.contains(&"queue"), "{names:?}");
    assert!(spans.iter().all(|s| hex::encode(&s.trace_id) == trace), "the caller's trace");
    assert!(spans[0].attributes.iter().any(|a| a.key == "biz.order_id"), "its labels");
    assert!(spans[1..].iter().all(|s| s.parent_span_id == spans[0].span_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_a_collector_refuses_are_counted_and_delay_nobody() {
    let data = tempfile::tempdir().unwrap();
    // it has no such path
    let (nobody, _) = agent(vec![(200, json!({}))]).await;
    let mut node = Server::new(data.path());
    node.settings = vec![format!("telemetry.otlp={nobody}")];
    node.start().await;
    let (base, _) = agent(vec![(200, json!({"done": true}))]).await;
    assert_eq!(post(&node, "/v1/agents", manifest("desk", &format!("{base}/invoke"))).await.0, 200);
    let (_, reply) = post(&node, "/v1/messages", json!({"intent": "work_try"})).await;
    assert_eq!(reply["state"], "done", "{reply}");
    let mut lost = 0;
    for _ in 0..100 {
        let metrics = node.http.get(node.url("/metrics")).send().await.unwrap().text().await.unwrap();
        lost = metrics.lines().find_map(|l| l.strip_prefix("reach_spans_lost_total ")?.parse().ok()).unwrap_or(0);
        if lost > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(lost, 4, "the message, its route, its queue, its delivery");
}
