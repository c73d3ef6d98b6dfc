//! The real binary on the real models: every door gives the same answer, a kill loses nothing, faults of a start are named.
//! The embedded store and free ports are all it needs.

#![allow(clippy::unwrap_used)]

use agent_reach::api::pb;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const BIN: &str = env!("CARGO_BIN_EXE_reach");

struct Server {
    child: Child,
    grpc: String,
    http: String,
}

impl Server {
    // killed and waited for when it is dropped; a panic before that ends the test process
    #[allow(clippy::zombie_processes)]
    fn start(data: &Path) -> Self {
        let mut child = Command::new(BIN)
            // an encoder without optimisation may need minutes for its first texts on a processor without wide vectors
            .args(["serve", "--set", "server.limits.deadline_default=10m", "--set", "server.limits.deadline_max=10m"])
            .args(["--http-port", "0", "--grpc-port", "0", "--data"])
            .arg(data)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (lines, told) = mpsc::channel();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut seen = Vec::new();
        loop {
            // models may have to be fetched first
            let line = told.recv_timeout(Duration::from_secs(900)).unwrap_or_else(|_| panic!("the server did not start: {seen:#?}"));
            if let Some((grpc, http)) = line.strip_prefix("gRPC on ").and_then(|l| l.split_once(", HTTP on ")) {
                let (grpc, http) = (grpc.to_string(), http.to_string());
                std::thread::spawn(move || while told.recv().is_ok() {});
                return Self { child, grpc, http };
            }
            seen.push(line);
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn reach(&self, args: &[&str]) -> Output {
        Command::new(BIN).args(args).args(["--server", &self.http]).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const MANIFEST: &str = "
namespace: shop
agent_id: desk
agent_version: '1.0'
ttl: none
endpoints: [{protocol: http, address: 'http://127.0.0.1:9001/invoke'}]
capabilities:
  - intent: refund_create
    description: {zh: 为订单办理退款，把钱退还给顾客, en: Refunds an order and returns the money to the customer}
  - intent: shipment_track
    description: {zh: 查询包裹现在到了哪里, en: Tells where a parcel is right now}
---
namespace: office
agent_id: translator
ttl: none
endpoints: [{protocol: pull}]
capabilities:
  - intent: translate_text
    description: {zh: 把一段文字翻译成另一种语言, en: Translates a text into another language}
    input_schema: {type: object, required: [text], properties: {text: {type: string}}}
";

/// What must be equal on every door: everything but time and id.
fn essence(mut answer: Value) -> Value {
    let map = answer.as_object_mut().unwrap();
    for volatile in ["took_us", "decision_id"] {
        map.remove(volatile);
    }
    answer
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_door_gives_the_same_answer_before_and_after_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("fleet.yaml");
    std::fs::File::create(&file).and_then(|mut f| std::io::Write::write_all(&mut f, MANIFEST.as_bytes())).unwrap();
    let store = data.path().join("store");
    let server = Server::start(&store);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();

    let registered = server.reach(&["register", file.to_str().unwrap(), "--json"]);
    assert!(registered.status.success(), "{}", String::from_utf8_lossy(&registered.stderr));
    let again = server.reach(&["register", file.to_str().unwrap(), "--json"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("\"changed\":false"), "{}", String::from_utf8_lossy(&again.stdout));
    assert_eq!(http.get(format!("{}/ready", server.http)).send().await.unwrap().status(), 200);
    let mut counted = false;
    for _ in 0..50 {
        counted = http.get(format!("{}/metrics", server.http)).send().await.unwrap().text().await.unwrap().contains("reach_capabilities 3");
        if counted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(counted, "the gauge of capabilities shows the fleet");

    let queries = [
        "我的包裹到哪里了",
        "money back for my order please",
        "translate_text",
        "what is the capital of Iceland?",
        "帮我 track 一下 my parcel",
    ];
    let mut before = Vec::new();
    for query in queries {
        let body = json!({"query": query, "seed": 7, "explain": true, "caller": "test", "at": "2026-01-05T10:00:00+08:00"});
        let by_http: Value = http.post(format!("{}/v1/resolve", server.http)).json(&body).send().await.unwrap().json().await.unwrap();
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap().connect().await.unwrap();
        let mut client = pb::matcher_client::MatcherClient::new(channel);
        let request: pb::ResolveRequest = serde_json::from_value(body).unwrap();
        // through text: f32 as JSON text, not as f64
        let by_grpc: Value =
            serde_json::from_str(&serde_json::to_string(&client.resolve(request).await.unwrap().into_inner()).unwrap()).unwrap();
        let cli = server.reach(&[
            "resolve",
            query,
            "--seed",
            "7",
            "--explain",
            "--caller",
            "test",
            "--at",
            "2026-01-05T10:00:00+08:00",
            "--json",
        ]);
        let by_cli = json_of(&cli);
        let decision = by_http["decision"].as_str().unwrap().to_string();
        assert_eq!(cli.status.code(), Some(i32::from(decision == "none")), "{query}");
        let (a, b, c) = (essence(by_http), essence(by_grpc), essence(by_cli));
        assert_eq!(a, b, "HTTP and gRPC: {query}");
        assert_eq!(a, c, "HTTP and command line: {query}");
        before.push(a);
    }
    assert_eq!(before[2]["decision"], "auto");
    assert_eq!(before[2]["capability"], "translate_text");

    // nothing that was answered is lost, and the answers stay the same
    server.kill();
    let server = Server::start(&store);
    for (query, was) in queries.iter().zip(&before) {
        let body = json!({"query": query, "seed": 7, "explain": true, "caller": "test", "at": "2026-01-05T10:00:00+08:00"});
        let now: Value = http.post(format!("{}/v1/resolve", server.http)).json(&body).send().await.unwrap().json().await.unwrap();
        assert_eq!(essence(now), *was, "{query}");
    }

    // a second process may not open the same store, and says which
    let second = Command::new(BIN).args(["serve", "--http-port", "0", "--grpc-port", "0", "--data"]).arg(&store).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("store"), "{}", String::from_utf8_lossy(&second.stderr));
    // a port in use is named with the way out
    let other = data.path().join("other");
    let port = server.http.rsplit(':').next().unwrap().to_string();
    let taken = Command::new(BIN).args(["serve", "--grpc-port", "0", "--http-port", &port, "--data"]).arg(&other).output().unwrap();
    assert_eq!(taken.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&taken.stderr).contains("--http-port"), "{}", String::from_utf8_lossy(&taken.stderr));
    // a name that nobody has is a negative answer, a wrong flag a fault
    assert_eq!(server.reach(&["resolve", "--capability", "no_such_thing"]).status.code(), Some(1));
    assert_eq!(server.reach(&["resolve", "x", "--k", "0"]).status.code(), Some(2));

    // the log holds what was decided
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.kill();
    let log = Command::new(BIN).args(["log", "export", "--data"]).arg(&store).output().unwrap();
    let lines: Vec<Value> = String::from_utf8_lossy(&log.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().any(|l| l["query"] == queries[0] && l["body"]["shortlist"]["items"].as_array().is_some_and(|i| !i.is_empty())));
}

#[test]
fn faults_of_a_start_are_named() {
    let data = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        Command::new(BIN).args(args).args(["--http-port", "0", "--grpc-port", "0", "--data"]).arg(data.path()).output().unwrap()
    };
    let says = |output: &Output, words: &str| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(words), "{text} should say {words}");
    };
    says(&run(&["serve", "--set", "models.zh=no-such-model"]), "no-such-model");
    says(&run(&["serve", "--set", "no.such.key=1"]), "known here");
    let open =
        Command::new(BIN).args(["serve", "--http-addr", "0.0.0.0:0", "--grpc-port", "0", "--data"]).arg(data.path()).output().unwrap();
    says(&open, "--insecure-bind");
    let file = data.path().join("reach.db");
    std::fs::File::create(&file)
        .and_then(|mut f| std::io::Write::write_all(&mut f, b"this is not a database, not at all, whatever its name says"))
        .unwrap();
    says(&run(&["serve"]), "reach.db");
}
