//! Messages on every door: the same answers, one life, receipts that count, nothing of others.

#![allow(clippy::disallowed_methods)]

use crate::fakes::{Node, as_json, node, reach};
use agent_reach::api::pb;
use agent_reach::config::auth::hash;
use agent_reach::dispatch::callback::{Secret, Verifier};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Request;

async fn register(node: &Node, namespace: &str, id: &str, endpoint: Value) {
    let manifest = json!({
        "domain": "local", "namespace": namespace, "agent_id": id, "ttl": "none", "max_queue_depth": 1000, "concurrency": 5,
        "endpoints": [endpoint], "capabilities": [{"intent": "work", "description": {"en": "does the work that is tried here"}}],
    });
    let mut request = node.http.post(node.url("/v1/agents")).body(manifest.to_string());
    if namespace != "shop" {
        request = request.bearer_auth(format!("token-{namespace}"));
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
}

/// A pulling agent in this process: what it gets comes out, what is put in is sent.
struct Puller {
    send: mpsc::UnboundedSender<pb::WorkRequest>,
    items: tonic::Streaming<pb::WorkItem>,
}

impl Puller {
    async fn open(node: &Node, namespace: &str, id: &str, want: u32, token: Option<&str>) -> Result<Self, tonic::Status> {
        let (send, take) = mpsc::unbounded_channel();
        let agent = Some(pb::AgentRef { domain: String::new(), namespace: namespace.into(), agent_id: id.into() });
        send.send(pb::WorkRequest { agent, want, ..Default::default() }).unwrap();
        let mut request = Request::new(UnboundedReceiverStream::new(take));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let items = node.dispatch().await.work(request).await?.into_inner();
        Ok(Self { send, items })
    }

    async fn work(&mut self) -> pb::Work {
        loop {
            let item = tokio::time::timeout(Duration::from_secs(20), self.items.message()).await.unwrap().unwrap().unwrap();
            if let Some(work) = item.work {
                return work;
            }
        }
    }

    async fn told(&mut self) -> pb::ReceiptReply {
        loop {
            let item = tokio::time::timeout(Duration::from_secs(20), self.items.message()).await.unwrap().unwrap().unwrap();
            if let Some(reply) = item.receipt {
                return reply;
            }
        }
    }

    fn say(&self, work: &pb::Work, kind: &str, data: Option<&str>) {
        let receipt = pb::WorkReceipt {
            reach_id: work.reach_id.clone(),
            delivery: work.delivery,
            kind: kind.into(),
            data: data.map(str::to_string),
            ..Default::default()
        };
        self.send.send(pb::WorkRequest { want: 1, receipts: vec![receipt], ..Default::default() }).unwrap();
    }
}

/// Echoes for ever.
fn echo(mut puller: Puller) {
    tokio::spawn(async move {
        loop {
            let Ok(Some(item)) = puller.items.message().await else { return };
            if let Some(work) = item.work {
                puller.say(&work, "ack", work.payload.as_deref());
            }
        }
    });
}

#[tokio::test]
async fn one_reply_on_all_doors() {
    let node = node(&[], "").await;
    register(&node, "shop", "desk", json!({"protocol": "pull", "weight": 1})).await;
    echo(Puller::open(&node, "shop", "desk", 5, None).await.unwrap());
    let payload = r#"{"order": 12345678901234567890, "n": [1, null]}"#;
    let body =
        format!(r#"{{"intent": "work", "payload": {payload}, "biz_tags": {{"order_id": "42", "customer": "c7"}}, "message_id": "m1"}}"#);
    let (status, over_http) = node.post("/v1/messages", body.clone()).await;
    assert_eq!((status, over_http["status"]["code"].as_u64(), over_http["state"].as_str()), (200, Some(200), Some("done")), "{over_http}");
    let raw = node.http.post(node.url("/v1/messages")).body(body).send().await.unwrap().text().await.unwrap();
    assert!(raw.contains(payload), "every digit comes back: {raw}");
    let again: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(
        (again["existing"].as_bool(), &again["reach_id"]),
        (Some(true), &over_http["reach_id"]),
        "the same message id is the same message"
    );

    let request = pb::SubmitRequest { intent: Some("work".into()), payload: Some(payload.into()), ..Default::default() };
    let over_grpc = node.dispatch().await.submit(request).await.unwrap().into_inner();
    assert_eq!((over_grpc.state.as_str(), over_grpc.data.as_deref()), ("done", Some(payload)));
    let (code, stdout, stderr) = reach(&node, &["invoke", "--intent", "work", "--payload", payload]).await;
    assert_eq!((code, stdout.trim(), stderr.as_str()), (0, payload, ""));

    // one life, the same on every door
    let id = over_http["reach_id"].as_str().unwrap();
    let (_, life) = node.get(&format!("/v1/messages/{id}")).await;
    let by_grpc =
        node.dispatch().await.get(pb::GetMessageRequest { message_id: id.into(), ..Default::default() }).await.unwrap().into_inner();
    assert_eq!(as_json(&by_grpc), life);
    let (code, stdout, _) = reach(&node, &["messages", "show", id, "--json"]).await;
    assert_eq!((code, serde_json::from_str::<Value>(&stdout).unwrap()), (0, life.clone()));
    let events: Vec<&str> = life["log"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["received", "routing", "routed", "leased", "delivered", "accepted", "acked", "handed_back"]);
    assert_eq!(life["log"][2]["detail"]["score"], 1.0);
    let by_own_id = node.get("/v1/messages/m1?caller=local").await.1;
    assert_eq!(by_own_id["reach_id"], life["reach_id"]);

    // found by its label and by its state, in pages
    let (_, found) = node.get("/v1/messages?tag.order_id=42&state=done").await;
    assert_eq!((found["messages"].as_array().unwrap().len(), &found["messages"][0]["reach_id"]), (1, &life["reach_id"]));
    assert!(found["messages"][0].get("payload").is_none() && found["messages"][0].get("log").is_none());
    let (_, first) = node.get("/v1/messages?limit=2").await;
    let next = first["next"].as_str().unwrap();
    let (_, second) = node.get(&format!("/v1/messages?limit=2&after={next}")).await;
    assert_eq!((first["messages"].as_array().unwrap().len(), second["messages"].as_array().unwrap().len()), (2, 1));
    assert_eq!(node.get("/v1/messages?state=lost").await.0, 400);
    let (code, stdout, _) = reach(&node, &["messages", "--tag", "order_id=42"]).await;
    assert!(code == 0 && stdout.contains(id), "{stdout}");
    let (_, both) = node.get("/v1/messages?tag.order_id=42&tag.customer=c7").await;
    assert_eq!(both["messages"].as_array().map(Vec::len), Some(1), "carries both: {both}");
    let (_, none) = node.get("/v1/messages?tag.order_id=42&tag.customer=c8").await;
    assert_eq!(none["messages"].as_array().map(Vec::len), Some(0), "{none}");
    let (code, stdout, _) = reach(&node, &["messages", "--tag", "order_id=42", "--tag", "customer=c7"]).await;
    assert!(code == 0 && stdout.contains(id), "{stdout}");
    assert_eq!(node.get("/v1/messages?parent_id=").await.0, 400, "an empty name is no filter");
}

#[tokio::test]
async fn what_nobody_takes_comes_back_undelivered() {
    let node = node(&[], "").await;
    let (status, reply) = node.post("/v1/messages", r#"{"query": "qwerty"}"#).await;
    assert_eq!((status, reply["state"].as_str(), reply["status"]["type"].as_str()), (200, Some("route_failed"), Some("no_matched_agent")));
    assert_eq!(reply["decision"]["candidates"].as_array().unwrap().len(), 2, "something to choose from");
    let (code, stdout, stderr) = reach(&node, &["invoke", "qwerty"]).await;
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("no_matched_agent"), "{stderr}");
    for (body, pointer) in [
        ("{}", ""),
        (r#"{"intent":"work","priority":7}"#, "/priority"),
        (r#"{"intent":"work","depth":9}"#, "/depth"),
        (r#"{"intent":"work","colour":1}"#, "/colour"),
        (r#"{"intent":"work","attributes":[1]}"#, "/attributes"),
        (r#"{"target":"nobody"}"#, "/target"),
    ] {
        let (status, e) = node.post("/v1/messages", body).await;
        assert_eq!((status, e["error"]["faults"][0]["pointer"].as_str()), (400, Some(pointer)), "{body}: {e}");
    }
    let large = format!(r#"{{"intent":"work","payload":"{}"}}"#, "x".repeat(2 * 1024 * 1024));
    let (status, e) = node.post("/v1/messages", large).await;
    assert_eq!((status, e["error"]["code"].as_str()), (413, Some("payload_too_large")), "{e}");
    assert!(e["error"]["faults"][0]["hint"].as_str().unwrap().contains("data_ref"), "the way out: {e}");
    let (status, e) = node.post("/v1/messages", r#"{"intent":"work","callback":"http://127.0.0.1:9001/done"}"#).await;
    assert_eq!((status, e["error"]["code"].as_str()), (412, Some("failed_precondition")), "no secret, no callback: {e}");
}

#[tokio::test]
async fn receipts_count_by_their_delivery_and_only_from_the_owner() {
    let tokens = ["shop2", "other"].map(|name| {
        let namespaces = format!("namespaces = [\"{name}\"]\n");
        format!("[[auth.tokens]]\nsha256 = \"{}\"\ncaller = \"{name}\"\n{namespaces}", hex::encode(hash(&format!("token-{name}"))))
    });
    let node = node(&[], &tokens.concat()).await;
    register(&node, "shop2", "desk", json!({"protocol": "pull", "weight": 1})).await;
    let post = async |token: &str, path: &str, body: Value| {
        let response = node.http.post(node.url(path)).bearer_auth(token).body(body.to_string()).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert!(Puller::open(&node, "shop2", "desk", 1, Some("token-other")).await.is_err(), "another's agent is no agent");
    let mut puller = Puller::open(&node, "shop2", "desk", 1, Some("token-shop2")).await.unwrap();
    let (status, sent) = post("token-shop2", "/v1/messages", json!({"intent": "work", "mode": "async", "payload": 1})).await;
    assert_eq!((status, sent["status"]["code"].as_u64()), (202, Some(202)), "{sent}");
    let work = puller.work().await;
    let (id, path) = (work.reach_id.clone(), |what: &str| format!("/v1/messages/{}/{what}", work.reach_id));
    assert_eq!((work.delivery, work.payload.as_deref(), work.caller.as_str()), (1, Some("1"), "shop2"));

    // whatever a stranger tries, there is no such message: the same words as for one that never was
    let nothing = format!("/v1/messages/{}", "0".repeat(32));
    let absent = node.http.get(node.url(&nothing)).bearer_auth("token-other").send().await.unwrap().json::<Value>().await.unwrap();
    let hidden = node.http.get(node.url(&format!("/v1/messages/{id}"))).bearer_auth("token-other").send().await.unwrap();
    assert_eq!((hidden.status().as_u16(), hidden.json::<Value>().await.unwrap()), (404, absent.clone()));
    for (what, body) in [("ack", json!({"delivery": 1})), ("nack", json!({"delivery": 1})), ("cancel", json!({}))] {
        assert_eq!(post("token-other", &path(what), body).await, (404, absent.clone()), "{what}");
    }
    let receipt = json!({"delivery": 1, "kind": "accepted"});
    assert_eq!(post("token-other", &path("receipt"), receipt.clone()).await, (404, absent.clone()));
    let list = node.http.get(node.url("/v1/messages")).bearer_auth("token-other").send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(list["messages"].as_array().unwrap().len(), 0);
    let replay = post("token-other", "/v1/dead-letters/replay", json!({"ids": [id]})).await.1;
    assert_eq!(replay["results"][0]["error"], absent["error"]);

    // the owner: an old delivery is refused, a repeated receipt is no fault, nothing moves after the end
    assert_eq!(post("token-shop2", &path("ack"), json!({"delivery": 2})).await.0, 409);
    assert_eq!(post("token-shop2", &path("receipt"), receipt.clone()).await.1["state"], "accepted");
    assert_eq!(post("token-shop2", &path("receipt"), receipt.clone()).await.1["state"], "accepted");
    puller.say(&work, "ack", Some("2"));
    let told = puller.told().await;
    assert_eq!((told.state.as_deref(), told.error), (Some("done"), None));
    assert_eq!(post("token-shop2", &path("ack"), json!({"delivery": 1, "data": 3})).await.1["state"], "done", "acked twice: nothing new");
    assert_eq!(post("token-shop2", &path("receipt"), receipt).await.0, 409, "accepted after done");
    let life = node.http.get(node.url(&format!("/v1/messages/{id}"))).bearer_auth("token-shop2").send().await.unwrap();
    assert_eq!(life.json::<Value>().await.unwrap()["reply"]["data"], 2);
}

#[tokio::test]
async fn a_message_is_followed_and_called_off() {
    let node = node(&[], "").await;
    register(&node, "shop", "desk", json!({"protocol": "pull", "weight": 1})).await;
    let mut puller = Puller::open(&node, "shop", "desk", 5, None).await.unwrap();
    let request = pb::SubmitRequest { intent: Some("work".into()), ..Default::default() };
    let mut events = node.dispatch().await.submit_stream(request).await.unwrap().into_inner();
    let work = puller.work().await;
    puller.say(&work, "progress", Some("{\"half\": true}"));
    puller.say(&work, "ack", Some("\"whole\""));
    let (mut seen, mut reply) = (Vec::new(), None);
    while let Some(event) = tokio::time::timeout(Duration::from_secs(20), events.message()).await.unwrap().unwrap() {
        seen.extend(event.entry.map(|e| e.event));
        reply = event.reply.or(reply);
    }
    assert_eq!(seen, ["received", "routing", "routed", "leased", "delivered", "accepted", "progress", "acked", "handed_back"]);
    assert_eq!(reply.unwrap().data.as_deref(), Some("\"whole\""));

    // over HTTP as server-sent events; afterwards the same life again
    let streamed = node.http.post(node.url("/v1/messages")).header("accept", "text/event-stream").body(r#"{"intent":"work"}"#).send();
    let (streamed, work) = tokio::join!(streamed, puller.work());
    puller.say(&work, "reject", None);
    let text = streamed.unwrap().text().await.unwrap();
    let names: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("event: ")).collect();
    assert_eq!(names.last(), Some(&"reply"), "{text}");
    assert!(names.contains(&"rejected") && text.contains("agent_rejected"), "{text}");
    let again =
        node.http.get(node.url(&format!("/v1/messages/{}", work.reach_id))).header("accept", "text/event-stream").send().await.unwrap();
    let again = again.text().await.unwrap();
    assert_eq!(again.lines().filter(|l| l.starts_with("event: ")).count(), names.len());

    let (_, sent) = node.post("/v1/messages", r#"{"intent":"work","mode":"async"}"#).await;
    let id = sent["reach_id"].as_str().unwrap();
    let work = puller.work().await;
    let (code, stdout, _) = reach(&node, &["messages", "cancel", id, "--reason", "not needed"]).await;
    assert_eq!((code, stdout.trim()), (0, format!("{id}  cancelled").as_str()));
    let cancel = loop {
        let item = puller.items.message().await.unwrap().unwrap();
        if let Some(cancel) = item.cancel {
            break cancel;
        }
    };
    assert_eq!((cancel.reach_id, cancel.delivery), (work.reach_id.clone(), 1));
    puller.say(&work, "ack", None);
    assert_eq!(puller.told().await.error.unwrap().code, "conflict", "a terminal state never changes");
}

#[tokio::test]
async fn a_broadcast_reaches_everyone_and_one_way_waits_for_nobody() {
    let node = node(&[], "").await;
    for id in ["a", "b", "c"] {
        register(&node, "shop", id, json!({"protocol": "pull", "weight": 1})).await;
        echo(Puller::open(&node, "shop", id, 5, None).await.unwrap());
    }
    let (status, all) = node.post("/v1/messages", r#"{"intent":"work","mode":"broadcast","payload":7,"idempotency_key":"k"}"#).await;
    assert_eq!((status, all["parts"].as_array().unwrap().len()), (202, 3), "{all}");
    let (_, same) = node.post("/v1/messages", r#"{"intent":"work","mode":"broadcast","payload":7,"idempotency_key":"k"}"#).await;
    assert_eq!((same["existing"].as_bool(), &same["parts"][2]["reach_id"]), (Some(true), &all["parts"][2]["reach_id"]));
    for part in all["parts"].as_array().unwrap() {
        let path = format!("/v1/messages/{}", part["reach_id"].as_str().unwrap());
        let mut life = node.get(&path).await.1;
        for _ in 0..100 {
            if life["state"] == "done" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            life = node.get(&path).await.1;
        }
        assert_eq!((life["state"].as_str(), &life["agent"]), (Some("done"), &part["agent_id"]));
    }
    // the broadcast's own id stands for all of them
    let id = all["message_id"].as_str().unwrap();
    let (status, whole) = node.get(&format!("/v1/messages/{id}")).await;
    assert_eq!((status, whole["state"].as_str(), whole["message_id"].as_str()), (200, Some("done"), Some(id)), "{whole}");
    assert_eq!((whole["mode"].as_str(), whole["payload"].as_i64()), (Some("broadcast"), Some(7)), "{whole}");
    assert_eq!(whole["reply"]["parts"].as_array().unwrap().len(), 3, "{whole}");
    let (_, listed) = node.get(&format!("/v1/messages?parent_id={id}")).await;
    assert_eq!(listed["messages"].as_array().unwrap().len(), 3, "{listed}");
    assert_eq!(node.get("/v1/messages?parent_id=nothing").await.1["messages"].as_array().map_or(0, Vec::len), 0);
    let (status, _) = node.post("/v1/messages", r#"{"intent":"work","mode":"one_way"}"#).await;
    assert_eq!(status, 202);
}

/// Nobody pulls: the parts wait, and the id of the broadcast calls all of them off.
#[tokio::test]
async fn a_broadcast_is_called_off_by_its_id() {
    let node = node(&[], "").await;
    for id in ["a", "b"] {
        register(&node, "shop", id, json!({"protocol": "pull", "weight": 1})).await;
    }
    let sent = r#"{"intent":"work","mode":"broadcast","payload":7,"message_id":"notice"}"#;
    let (status, all) = node.post("/v1/messages", sent).await;
    assert_eq!((status, all["message_id"].as_str(), all["parts"].as_array().unwrap().len()), (202, Some("notice"), 2), "{all}");
    let (_, whole) = node.get("/v1/messages/notice").await;
    assert_eq!((whole["state"].as_str(), whole["reply"]["status"]["code"].as_i64()), (Some("queued"), Some(202)), "{whole}");
    let (status, off) = node.post("/v1/messages/notice/cancel", "{}").await;
    assert_eq!((status, off["state"].as_str()), (200, Some("cancelled")), "{off}");
    assert!(off["parts"].as_array().unwrap().iter().all(|p| p["state"] == "cancelled"), "{off}");
    assert_eq!(node.get("/v1/messages/notice").await.1["state"].as_str(), Some("cancelled"));
    assert_eq!(node.get("/v1/messages/unknown").await.0, 404);
}

#[tokio::test]
async fn a_callback_is_signed_and_tried_until_it_is_taken() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let node = node(&[("dispatch.callback_secrets", &format!("[{secret:?}]"))], "").await;
    register(&node, "shop", "desk", json!({"protocol": "pull", "weight": 1})).await;
    echo(Puller::open(&node, "shop", "desk", 5, None).await.unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/done", listener.local_addr().unwrap());
    let sent = node.http.post(node.url("/v1/messages")).header("x-callback", &address).body(r#"{"intent":"work","payload":7}"#).send();
    assert_eq!(sent.await.unwrap().status(), 202, "a callback is asynchronous");
    let mut verifier = Verifier::new(vec![Secret::parse(secret).unwrap()], 10);
    for (n, answer) in ["HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"].iter().enumerate() {
        let (mut stream, _) = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await.unwrap().unwrap();
        let mut bytes = Vec::new();
        let mut part = [0u8; 4096];
        let (headers, body) = loop {
            let n = stream.read(&mut part).await.unwrap();
            bytes.extend_from_slice(&part[..n]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let headers: Vec<(String, String)> =
                head.lines().skip(1).filter_map(|l| l.split_once(": ")).map(|(k, v)| (k.to_lowercase(), v.to_string())).collect();
            let length: usize = headers.iter().find(|(k, _)| k == "content-length").unwrap().1.parse().unwrap();
            if body.len() >= length {
                break (headers, body.to_string());
            }
        };
        let reply: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((reply["status"]["code"].as_u64(), reply["data"].as_u64()), (Some(200), Some(7)));
        let now: i64 = headers.iter().find(|(k, _)| k == "webhook-timestamp").unwrap().1.parse().unwrap();
        if n == 0 {
            assert_eq!(Verifier::new(vec![Secret::parse(secret).unwrap()], 10).check(now, &headers, body.as_bytes()), Ok(()));
        } else {
            assert_eq!(verifier.check(now, &headers, body.as_bytes()), Ok(()));
            assert!(verifier.check(now, &headers, body.as_bytes()).is_err(), "a replayed one is refused");
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_pushed_agent_answers_by_status_and_dead_letters_are_replayed() {
    let node = node(&[], "").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let answers = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = answers.clone();
    let handler = move |body: String| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            let told: Value = serde_json::from_str(&body).unwrap();
            if n == 0 {
                (axum::http::StatusCode::INTERNAL_SERVER_ERROR, "boom".to_string())
            } else {
                (axum::http::StatusCode::OK, told.to_string())
            }
        }
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().route("/invoke", axum::routing::post(handler))).await });
    register(&node, "shop", "desk", json!({"protocol": "http", "address": format!("http://{at}/invoke"), "weight": 100})).await;
    let (_, dead) = node.post("/v1/messages", r#"{"intent":"work","max_attempts":1,"payload":{"n":1},"biz_tags":{"a":"b"}}"#).await;
    assert_eq!((dead["state"].as_str(), dead["status"]["type"].as_str()), (Some("dead_letter"), Some("all_agents_failed")), "{dead}");
    let (code, stdout, _) = reach(&node, &["dead-letters"]).await;
    assert!(code == 0 && stdout.contains("retries_exhausted"), "{stdout}");
    let id = dead["reach_id"].as_str().unwrap();
    let (code, stdout, stderr) = reach(&node, &["dead-letters", "replay", id]).await;
    assert!(code == 0 && stdout.contains(&format!("replays {id}")), "{stdout}{stderr}");
    let new = stdout.split_whitespace().next().unwrap().to_string();
    let mut life = Value::Null;
    for _ in 0..100 {
        life = node.get(&format!("/v1/messages/{new}")).await.1;
        if life["state"] == "done" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // the push carries what the pull stream carries, field by field
    let pushed = life["reply"]["data"].as_object().unwrap();
    let fields = as_json(&pb::Work { ..Default::default() });
    for name in pushed.keys() {
        let known = ["parent_id", "query", "payload", "data_ref", "fix"].contains(&name.as_str()) || fields.get(name).is_some();
        assert!(known || name == "biz_tags", "{name} is in the push alone");
    }
    assert_eq!((pushed["source"].as_str(), pushed["delivery"].as_u64(), &pushed["payload"]), (Some("replay"), Some(1), &json!({"n": 1})));
    assert_eq!(node.get(&format!("/v1/messages/{id}")).await.1["state"], "dead_letter", "the dead letter stays as it is");

    // what was replayed is left alone, by filter and by name
    let (status, again) = node.post("/v1/dead-letters/replay", r#"{"limit":10}"#).await;
    assert_eq!((status, again["results"].as_array().map_or(0, Vec::len)), (200, 0), "{again}");
    let (_, again) = node.post("/v1/dead-letters/replay", json!({"ids": [id, id]}).to_string()).await;
    assert_eq!(again["results"].as_array().map(Vec::len), Some(1), "an id that is given twice counts once: {again}");
    assert_eq!(again["results"][0]["error"]["code"], "failed_precondition", "{again}");
    for limit in [0, 101] {
        assert_eq!(node.post("/v1/dead-letters/replay", json!({"limit": limit}).to_string()).await.0, 400, "{limit}");
    }
    assert_eq!(answers.load(std::sync::atomic::Ordering::SeqCst), 2, "nothing was done again");
    assert_eq!(node.get("/v1/dead-letters?state=done").await.0, 400);
    assert_eq!(node.get("/v1/dead-letters?state=dead_letter").await.0, 200);
}

#[tokio::test]
async fn a_key_may_stand_in_a_header_and_an_id_must_fit_a_path() {
    let node = node(&[], "").await;
    register(&node, "shop", "desk", json!({"protocol": "pull", "weight": 1})).await;
    let send = |key: &'static str, body: &'static str| {
        let request = node.http.post(node.url("/v1/messages")).header("idempotency-key", key).body(body);
        async move {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.json::<Value>().await.unwrap())
        }
    };
    let (first, second) = (r#"{"intent":"work","mode":"async","payload":1}"#, r#"{"intent":"Work","mode":"async","payload":1}"#);
    let (a, b) = (send("k1", first).await.1, send("k1", second).await.1);
    assert!(a["reach_id"].is_string() && a["reach_id"] == b["reach_id"], "{a} {b}");
    let (status, refused) = send("k1", r#"{"intent":"work","payload":1,"idempotency_key":"k2"}"#).await;
    assert!(status == 400 && refused.to_string().contains("/idempotency_key"), "{refused}");
    let (status, refused) = node.post("/v1/messages", r#"{"intent":"work","payload":1,"message_id":".."}"#).await;
    assert!(status == 400 && refused.to_string().contains("/message_id"), "{refused}");
}
