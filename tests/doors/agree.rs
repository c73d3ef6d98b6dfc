//! The same request gets the same answer on every door.

use crate::fakes::{as_json, full_manifest, node, reach};
use agent_reach::api::grpc::status::error_of;
use agent_reach::api::http::routes::ROUTES;
use agent_reach::api::pb;
use futures::StreamExt;
use serde_json::{Value, json};

fn everything() -> Value {
    json!({
        "query": "我要退款 please", "capability": "refund_create", "payload": {"order": 9007199254740993u64, "n": [1, null, "x"]},
        "caller": "me", "tenant": "t", "namespaces": ["orders"], "scopes": ["refund:write"], "region": "cn-east",
        "attributes": {"tier": "gold", "languages": ["zh"], "gold": true, "weight": 1.5}, "target": "orders/order-desk",
        "preferred": ["orders/a"], "only": true, "exclude": ["orders/b"], "max_cost": 0.5, "deadline_ms": 5000, "preset": "gateway",
        "fallback": false, "depth": 2, "previous": "order_query", "k": 7, "at": "2026-01-01T00:00:00Z", "seed": 18446744073709551615u64,
        "explain": true
    })
}

#[tokio::test]
async fn one_answer_on_all_doors() {
    let node = node(&[], "").await;
    let request: pb::ResolveRequest = serde_json::from_value(everything()).unwrap();
    let (status, over_http) = node.post("/v1/resolve", everything().to_string()).await;
    assert_eq!(status, 200, "{over_http}");
    let over_grpc = node.matcher().await.resolve(request).await.unwrap().into_inner();
    assert_eq!(as_json(&over_grpc), over_http);
    assert!(over_http["reasons"][0]["text"].as_str().unwrap().contains("18446744073709551615"), "the whole request arrived");
    assert_eq!(over_http["decision"], "auto");
    assert_eq!(over_http["agent"]["agent_id"], "order-desk");
    assert_eq!(over_http["dropped"][0]["detail"]["opens"], "09:00 Asia/Shanghai");
    assert_eq!(over_http["dropped"][1]["reason"], "lease_expired");
    assert!(over_http["dropped"][1].get("detail").is_none());

    let arguments = "resolve|--json|我要退款 please|--capability|refund_create|--payload|{\"order\":9007199254740993,\"n\":[1,null,\"x\"]}|--caller|me|--tenant|t\
        |--namespace|orders|--scope|refund:write|--region|cn-east|--attr|tier=gold|--attr|languages=[\"zh\"]|--attr|gold=true|--attr|weight=1.5\
        |--target|orders/order-desk|--prefer|orders/a|--only|--exclude|orders/b|--max-cost|0.5|--deadline|5s|--preset|gateway|--no-fallback\
        |--depth|2|--previous|order_query|--k|7|--at|2026-01-01T00:00:00Z|--seed|18446744073709551615|--explain";
    let (code, stdout, stderr) = reach(&node, &arguments.split('|').collect::<Vec<_>>()).await;
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), over_http);
}

#[tokio::test]
async fn outcomes_are_the_same_on_all_doors() {
    let node = node(&[], "").await;
    let outcomes = json!({"outcomes": [
        {"id": "a", "query": "我要退款", "verdict": "adopted", "agent": "orders/order-desk", "capability": "refund_create", "caller": "me"},
        {"query": "x", "verdict": "great"},
        {"query": "x", "verdict": "adopted", "agent": "orders/order-desk"}
    ]});
    let (status, taken) = node.post("/v1/feedback", outcomes.to_string()).await;
    assert_eq!((status, &taken["results"][0]["id"]), (200, &json!("a")), "{taken}");
    assert_eq!(taken["results"][1]["error"]["faults"][0]["pointer"], "/verdict");
    assert_eq!(taken["results"][2]["error"]["faults"][0]["pointer"], "/capability");
    let (status, unknown) = node.post("/v1/feedback", r#"{"outcomes":[{"verdikt":"adopted"}]}"#).await;
    assert_eq!(status, 400, "{unknown}");
    let mut client = pb::feedback_client::FeedbackClient::new(node.channel().await);
    let (_, over_http) = node.get("/v1/feedback?agent=orders%2Forder-desk&limit=5").await;
    let which = pb::ListOutcomesRequest { agent: Some("orders/order-desk".into()), limit: Some(5), ..Default::default() };
    assert_eq!(as_json(&client.list(which).await.unwrap().into_inner()), over_http);
    assert_eq!(over_http["outcomes"][0]["capability"], "refund_create");
    let (code, stdout, stderr) = reach(&node, &["feedback", "list", "--json", "--agent", "orders/order-desk"]).await;
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), over_http["outcomes"][0]);
    let (code, stdout, _) =
        reach(&node, &["feedback", "report", "modified", "--query", "换货", "--agent", "orders/order-desk", "--capability", "exchange"])
            .await;
    assert!(code == 0 && stdout.starts_with("kept"), "{stdout}");
    assert_eq!(client.forget(pb::ForgetRequest::default()).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let gone = node.http.delete(node.url("/v1/feedback?reporter=local")).send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(gone["forgotten"], 2);
    assert_eq!(reach(&node, &["feedback", "list"]).await.0, 1, "nothing to show is a negative answer");
}

#[tokio::test]
async fn explanations_come_when_asked() {
    let node = node(&[], "").await;
    let (_, short) = node.post("/v1/resolve", r#"{"query":"退款"}"#).await;
    assert!(short["candidates"][0].get("terms").is_none() && short["dropped"].as_array().unwrap().is_empty());
    let (_, none) = node.post("/v1/resolve", r#"{"query":"qwerty"}"#).await;
    assert_eq!((none["decision"].as_str(), none["agent"].is_null()), (Some("none"), true));
    assert_eq!(none["dropped"].as_array().unwrap().len(), 2, "why not is told whenever nobody fits");
}

#[tokio::test]
async fn the_command_line_answers_by_exit_code() {
    let node = node(&[], "").await;
    for (query, code) in [("退款", 0), ("which", 0), ("qwerty", 1), ("internal", 2)] {
        let (got, stdout, stderr) = reach(&node, &["resolve", query]).await;
        assert_eq!(got, code, "{query}: {stdout} {stderr}");
        assert_eq!(stdout.is_empty(), code == 2, "data on standard output, words on standard error");
    }
    let (code, stdout, _) = reach(&node, &["resolve", "--json", "busy"]).await;
    assert_eq!(code, 2);
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["error"]["code"], "overloaded");
    let (code, _, stderr) = reach(&node, &["resolve", "x", "--server", "http://127.0.0.1:9"]).await;
    assert!(code == 2 && stderr.contains("reach up"), "{stderr}");
    let (code, _, stderr) = reach(&node, &["resolve", "x", "--set", "server.limits.k_max=many", "--data", "d"]).await;
    assert!(code == 2 && stderr.contains("server.limits.k_max"), "{stderr}");
}

#[tokio::test]
async fn a_closed_pipe_is_no_fault() {
    let node = node(&[], "").await;
    let script =
        format!("{} resolve 退款 --explain --server {} | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_reach"), node.url(""));
    let output = tokio::process::Command::new("bash").args(["-c", &script]).output().await.unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[tokio::test]
async fn errors_are_the_same_error() {
    let node = node(&[], "").await;
    let mut matcher = node.matcher().await;
    for (query, status) in [("busy", 503), ("", 400)] {
        let (got, over_http) = node.post("/v1/resolve", json!({"query": query}).to_string()).await;
        let over_grpc = matcher.resolve(pb::ResolveRequest { query: query.into(), ..Default::default() }).await.unwrap_err();
        assert_eq!(got, status, "{over_http}");
        assert_eq!(as_json(&error_of(&over_grpc).unwrap()), over_http["error"]);
    }
    let (_, over_http) = node
        .post("/v1/resolve/batch", r#"{"requests":[{"query":"a"},{"query":"busy"},{"query":"b","attributes":[1]},{"query":"which"}]}"#)
        .await;
    let answers: Vec<&str> = over_http["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["response"]["decision"].as_str().or(r["error"]["code"].as_str()).unwrap())
        .collect();
    assert_eq!(answers, ["auto", "overloaded", "invalid_argument", "suggest"]);
    let requests =
        serde_json::from_value(json!([{"query":"a"},{"query":"busy"},{"query":"b","attributes":[1]},{"query":"which"}])).unwrap();
    let over_grpc = matcher.resolve_batch(pb::ResolveBatchRequest { requests }).await.unwrap().into_inner();
    assert_eq!(as_json(&over_grpc), over_http);
}

#[tokio::test]
async fn a_manifest_survives_both_doors() {
    let node = node(&[], "").await;
    let manifest = full_manifest();
    let (status, receipt) = node.post("/v1/agents", manifest.to_string()).await;
    assert_eq!((status, receipt["changed"].as_bool()), (200, Some(true)), "{receipt}");
    let mut registry = node.registry().await;
    let message: pb::Manifest = serde_json::from_value(manifest.clone()).unwrap();
    let again = registry.register(pb::RegisterRequest { manifest: Some(message.clone()) }).await.unwrap().into_inner();
    assert!(!again.changed);
    assert_eq!(serde_json::to_value(&again).unwrap()["lint"], receipt["lint"]);

    let (status, over_http) = node.get("/v1/agents/hr%2Fpayroll/desk-1").await;
    assert_eq!((status, &over_http["manifest"]), (200, &manifest));
    assert_eq!(over_http["registered_at"], "2023-11-14T22:13:20Z");
    let agent = Some(pb::AgentRef { domain: String::new(), namespace: "hr/payroll".into(), agent_id: "desk-1".into() });
    let over_grpc = registry.get(pb::GetRequest { agent: agent.clone(), version: None }).await.unwrap().into_inner();
    assert_eq!(over_grpc.manifest.as_ref(), Some(&message));
    assert_eq!(as_json(&over_grpc), over_http);

    let yaml = "domain: local\nnamespace: hr/payroll\nagent_id: desk-2\nttl: none\nmax_queue_depth: 10\nconcurrency: 1\ncapabilities: []\n";
    let response = node.http.post(node.url("/v1/agents")).header("content-type", "application/yaml").body(yaml).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    let listed = registry.list(pb::ListRequest { limit: Some(1), ..Default::default() }).await.unwrap().into_inner();
    let (_, page) = node.get("/v1/agents?limit=1").await;
    assert_eq!(as_json(&listed), page);
    let (_, rest) = node.get(&format!("/v1/agents?limit=1&after={}", listed.next.unwrap())).await;
    assert_eq!(rest["agents"][0]["agent"]["agent_id"], "desk-2");

    let beat = json!({"load": 0.25, "queue_length": 3, "in_flight": 1});
    let (status, beaten) = node.post("/v1/agents/hr%2Fpayroll/desk-1/heartbeat", beat.to_string()).await;
    assert_eq!((status, beaten["queue_length"].as_u64()), (200, Some(3)), "{beaten}");
    let (status, refused) = node.post("/v1/agents/hr%2Fpayroll/desk-1/heartbeat", r#"{"load": 1.5}"#).await;
    assert_eq!((status, refused["error"]["faults"][0]["pointer"].as_str()), (400, Some("/load")));
    let (status, refused) = node.post("/v1/agents/hr%2Fpayroll/desk-1/drain", r#"{"agent":{"namespace":"a","agent_id":"b"}}"#).await;
    assert_eq!((status, refused["error"]["faults"][0]["pointer"].as_str()), (400, Some("/agent")));
    let (_, drained) = node.post("/v1/agents/hr%2Fpayroll/desk-1/drain", "").await;
    assert_eq!(drained["status"], "draining");
    let resumed = registry.drain(pb::DrainRequest { agent: agent.clone(), draining: Some(false) }).await.unwrap().into_inner();
    assert_eq!(resumed.status, "live");
    let gone = node.http.delete(node.url("/v1/agents/hr%2Fpayroll/desk-1")).send().await.unwrap();
    assert_eq!(gone.status(), 200);
    assert_eq!(registry.get(pb::GetRequest { agent, version: None }).await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(node.get("/v1/agents/hr%2Fpayroll/desk-1").await.0, 404);
}

#[tokio::test]
async fn the_command_line_registers_and_lists() {
    let node = node(&[], "").await;
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("team");
    std::fs::create_dir(&below).unwrap();
    let file = below.join("desk.json");
    agent_reach::config::files::write_atomic(&file, full_manifest().to_string().as_bytes()).unwrap();
    agent_reach::config::files::write_atomic(&dir.path().join("README.md"), b"not a manifest").unwrap();
    let (code, stdout, stderr) = reach(&node, &["register", dir.path().to_str().unwrap()]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("registered  hr/payroll/desk-1  1 capabilities"), "{stdout}");
    assert!(stderr.contains("advice: hr/payroll/desk-1 /capabilities/0"), "{stderr}");
    agent_reach::config::files::write_atomic(&below.join("bad.json"), b"{\"namespace\": 7}").unwrap();
    let (code, stdout, stderr) = reach(&node, &["register", "--json", dir.path().to_str().unwrap()]).await;
    assert_eq!(code, 2, "one refused manifest is a fault, the others are registered: {stdout} {stderr}");
    assert!(stdout.lines().count() == 2 && stderr.contains("bad.json") && stderr.contains("/namespace"), "{stdout} {stderr}");

    let (code, stdout, _) = reach(&node, &["agents", "list"]).await;
    assert_eq!((code, stdout.trim()), (0, "hr/payroll/desk-1  1.4.0  live  refund_create"));
    let (code, stdout, _) = reach(&node, &["agents", "get", "--json", "hr/payroll/desk-1"]).await;
    assert_eq!((code, serde_json::from_str::<Value>(&stdout).unwrap()["manifest"].clone()), (0, full_manifest()));
    assert_eq!(reach(&node, &["agents", "drain", "hr/payroll/desk-1"]).await.0, 0);
    assert_eq!(reach(&node, &["agents", "deregister", "hr/payroll/desk-1"]).await.0, 0);
    assert_eq!(reach(&node, &["agents", "get", "hr/payroll/desk-1"]).await.0, 1);
    assert_eq!(reach(&node, &["agents", "list"]).await.0, 1);
    assert_eq!(reach(&node, &["register", "no/such/file.json"]).await.0, 2);
}

#[tokio::test]
async fn a_stream_answers_in_order_within_its_bound() {
    let node = node(&[("server.limits.stream_in_flight", "4")], "").await;
    let waits = [80, 5, 60, 1, 40, 2, 20, 3, 10, 1];
    let requests: Vec<_> = waits.iter().map(|ms| pb::ResolveRequest { query: format!("wait {ms}"), ..Default::default() }).collect();
    let answers = node.matcher().await.resolve_stream(futures::stream::iter(requests)).await.unwrap().into_inner();
    let order: Vec<String> = answers.map(|a| a.unwrap().response.unwrap().reasons[0].text.clone()).collect().await;
    assert_eq!(order.len(), waits.len());
    for (text, ms) in order.iter().zip(waits) {
        assert!(text.contains(&format!("\"wait {ms}\"")), "{text}");
    }
    assert!((2..=4).contains(&node.world.resolving.lock().unwrap().1), "several at once, never more than the bound");
}

#[tokio::test]
async fn watches_show_what_is_there() {
    let node = node(&[], "").await;
    node.post("/v1/agents", full_manifest().to_string()).await;
    let mut events = node.registry().await.watch(pb::WatchRequest {}).await.unwrap().into_inner();
    let first = events.next().await.unwrap().unwrap();
    assert_eq!((first.kind.as_str(), first.agent.clone().unwrap().agent_id.as_str()), ("present", "desk-1"));
    let response = node.http.get(node.url("/v1/watch")).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let chunk = response.bytes_stream().next().await.unwrap().unwrap();
    let text = String::from_utf8(chunk.to_vec()).unwrap();
    assert!(text.contains("event: present") && text.contains(&serde_json::to_string(&first).unwrap()), "{text}");
}

#[tokio::test]
async fn every_route_answers_and_is_described() {
    let node = node(&[], "").await;
    let (_, document) = node.get("/openapi.json").await;
    for route in ROUTES {
        let path = route.path.replace("{namespace}", "n").replace("{agent_id}", "a");
        let request = node.http.request(route.method.parse().unwrap(), node.url(&path)).body("{}");
        let response = request.send().await.unwrap();
        let known = response.status() != 405 && response.headers()["content-type"].to_str().unwrap().starts_with(route.media);
        assert!(known, "{} {}: {}", route.method, route.path, response.status());
        assert!(document["paths"][route.path][route.method.to_lowercase()].is_object());
    }
    assert_eq!(node.get("/nope").await.0, 404);
    assert_eq!(node.post("/openapi.json", "").await.0, 405);
    let metrics = node.http.get(node.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("reach_requests_total{door=\"http\",method=\"resolve\""), "{metrics}");
    assert_eq!(node.get("/ready").await, (200, json!({"status": "ready"})));
}

#[tokio::test]
async fn health_and_reflection_stand_beside() {
    let node = node(&[], "").await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(node.channel().await);
    let mut last = 0;
    for _ in 0..50 {
        last = health
            .check(tonic_health::pb::HealthCheckRequest { service: "agentreach.v1.Matcher".into() })
            .await
            .map_or(0, |r| r.into_inner().status);
        if last == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(last, 1, "serving");
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient, server_reflection_request::MessageRequest,
        server_reflection_response::MessageResponse,
    };
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(MessageRequest::ListServices(String::new())) };
    let mut answers =
        ServerReflectionClient::new(node.channel().await).server_reflection_info(futures::stream::iter([ask])).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) = answers.next().await.unwrap().unwrap().message_response else {
        panic!("no list")
    };
    let names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
    assert!(names.contains(&"agentreach.v1.Registry".into()) && names.contains(&"agentreach.v1.Matcher".into()), "{names:?}");
}
