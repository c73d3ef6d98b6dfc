//! Credentials: the same principal and the same refusal on every door; secrets leave no trace.

use crate::fakes::{full_manifest, node, reach};
use agent_reach::api::grpc::status::error_of;
use agent_reach::api::pb;
use agent_reach::config::auth::hash;
use agent_reach::telemetry::log::subscriber;
use serde_json::Value;
use std::io::Write;
use std::sync::{Arc, Mutex};
use tonic::Request;

fn tokens() -> String {
    let entry = |name: &str, namespaces: &str| {
        format!(
            "[[auth.tokens]]\nsha256 = \"{}\"\ncaller = \"{name}\"\nnamespaces = [{namespaces}]\n",
            hex::encode(hash(&format!("token-{name}")))
        )
    };
    entry("hr", "\"hr/payroll\"") + &entry("other", "\"hr\"")
}

fn with_token<T>(message: T, header: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", header.parse().unwrap());
    request
}

#[tokio::test]
async fn whatever_is_wrong_is_one_refusal() {
    let node = node(&[], &tokens()).await;
    let mut seen = Vec::new();
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer token-h",
        "Bearer token-hrx",
        "Basic token-hr",
        "token-hr",
        "Bearer ' OR '1'='1",
        "Bearer {\"alg\":\"none\"}",
    ] {
        let response = node.http.post(node.url("/v1/resolve")).header("authorization", header).body("not even JSON").send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["www-authenticate"].to_str().unwrap()), (401, "Bearer"), "{header}");
        seen.push(response.json::<Value>().await.unwrap());
        let status = node.matcher().await.resolve(with_token(pb::ResolveRequest::default(), header)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
        seen.push(serde_json::json!({"error": error_of(&status).unwrap()}));
    }
    let status = node.registry().await.watch(pb::WatchRequest {}).await.unwrap_err();
    seen.push(serde_json::json!({"error": error_of(&status).unwrap()}));
    assert!(seen.windows(2).all(|w| w[0] == w[1]), "{seen:?}");
    let huge = node.http.post(node.url("/v1/resolve")).header("authorization", format!("Bearer {}", "x".repeat(1 << 20))).send().await;
    assert!(huge.is_err() || huge.unwrap().status().is_client_error());
    for open in ["/health", "/ready", "/metrics", "/openapi.json"] {
        assert_eq!(node.get(open).await.0, 200, "{open}");
    }
}

#[tokio::test]
async fn a_token_is_its_principal_on_every_door() {
    let node = node(&[], &tokens()).await;
    let post = |token: &'static str| node.http.post(node.url("/v1/agents")).bearer_auth(token).body(full_manifest().to_string()).send();
    assert_eq!(post("token-hr").await.unwrap().status(), 200);
    assert_eq!(post("token-other").await.unwrap().status(), 403, "hr does not cover hr/payroll");
    let agent = Some(pb::AgentRef { domain: String::new(), namespace: "hr/payroll".into(), agent_id: "desk-1".into() });
    let get = pb::GetRequest { agent, version: None };
    let mut registry = node.registry().await;
    registry.get(with_token(get.clone(), "bearer token-hr")).await.unwrap();
    let hidden = registry.get(with_token(get.clone(), "bearer token-other")).await.unwrap_err();
    let mut absent = get;
    absent.agent.as_mut().unwrap().agent_id = "nobody".into();
    let missing = registry.get(with_token(absent, "bearer token-other")).await.unwrap_err();
    assert_eq!(error_of(&hidden), error_of(&missing), "hidden and absent are not told apart");
    let (code, stdout, _) = reach(&node, &["agents", "list", "--token", "token-hr"]).await;
    assert!(code == 0 && stdout.contains("desk-1"));
    let (code, _, stderr) = reach(&node, &["agents", "list"]).await;
    assert!(code == 2 && stderr.contains("unauthenticated"), "{stderr}");
    node.matcher()
        .await
        .resolve(with_token(pb::ResolveRequest { query: "x".into(), caller: Some("root".into()), ..Default::default() }, "Bearer token-hr"))
        .await
        .unwrap();
    assert_eq!(&*node.world.callers.lock().unwrap().last().unwrap().caller, "hr", "the body does not say who calls");
}

#[tokio::test]
async fn pages_of_other_origins_are_refused_without_tokens() {
    let open = node(&[], "").await;
    let from = |origin: &'static str| open.http.post(open.url("/v1/resolve")).header("origin", origin).body(r#"{"query":"x"}"#).send();
    assert_eq!(from("https://evil.example").await.unwrap().status(), 403);
    assert_eq!(from("null").await.unwrap().status(), 403);
    assert_eq!(from("http://localhost:3000").await.unwrap().status(), 200);
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One runtime on one thread, so that everything logs into the test's own subscriber.
#[test]
fn secrets_leave_no_trace() {
    let sink = Sink::default();
    let writer = sink.clone();
    let _logs = tracing::subscriber::set_default(subscriber("debug", false, move || writer.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (replies, metrics) = runtime.block_on(async {
        let node = node(&[], "").await;
        let mut replies = String::new();
        for (path, body) in [
            ("/v1/resolve?key=sk-CANARY-query", "{}"),
            ("/v1/resolve", r#"{"query":"sk-CANARY-text","payload":{"key":"sk-CANARY-payload"},"explain":false,"nope":1}"#),
            ("/v1/resolve", r#"{"query":"panic","payload":{"key":"sk-CANARY-payload"}}"#),
            ("/v1/resolve", r#"{"query":"internal"}"#),
            ("/v1/agents", r#"{"namespace":"sk-CANARY-namespace"}"#),
        ] {
            let response = node
                .http
                .post(node.url(path))
                .bearer_auth("sk-CANARY-token")
                .header("x-key", "sk-CANARY-header")
                .body(body)
                .send()
                .await
                .unwrap();
            replies += &response.text().await.unwrap();
        }
        let metrics = node.http.get(node.url("/metrics")).send().await.unwrap().text().await.unwrap();
        node.tasks.shutdown(std::time::Duration::from_secs(2)).await;
        (replies, metrics)
    });
    let logs = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    assert!(logs.contains("internal fault"), "the log was captured: {logs}");
    // the causes of internal faults are for the log; what came from outside is for nobody
    let foreign = logs.lines().filter(|l| l.contains("sk-CANARY-") && !l.contains("sk-CANARY-cause") && !l.contains("sk-CANARY-panic"));
    assert_eq!(foreign.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(!replies.contains("sk-CANARY-"), "{replies}");
    assert!(!metrics.contains("CANARY"));
    assert!(replies.contains("under the reference"), "{replies}");
}
