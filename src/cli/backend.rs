//! Whom a command talks to: a server over HTTP, or a store that it opened itself. The same messages either way.
//!
//! The client uses no proxy and follows no redirect: it talks to the server that was named and to no other.

use crate::api::pb;
use crate::api::service::{Call, Door, Service};
use crate::cli::{App, Common, Failure};
use crate::types::Principal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A server or an open store.
pub enum Backend {
    /// Over HTTP.
    Server(Client),
    /// In this process.
    Local(Arc<Service>, Call),
}

/// An HTTP client of one server.
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl Backend {
    /// By the common options: `--data` opens a store, otherwise `--server`.
    pub async fn open(common: &Common, app: &dyn App) -> Result<Self, Failure> {
        if common.data.is_some() {
            let service = app.local(common.config(vec![])?).await?;
            return Ok(Self::Local(service, Call { who: Principal::local("cli"), door: Door::Http, deadline: None, trace: None }));
        }
        let base = common.server.trim_end_matches('/').to_string();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(Failure::words(format!("--server {base}: write a URL such as http://127.0.0.1:7701")));
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(3))
            .timeout(Duration::from_secs(120))
            .build()
            .map_err(|e| Failure::words(format!("no HTTP client: {e}")))?;
        let client = Client { http, base, token: common.token.clone() };
        if let Some(within) = common.wait {
            client.up(within).await?;
        }
        Ok(Self::Server(client))
    }

    /// Registers one manifest.
    pub async fn register(&self, document: Value) -> Result<pb::RegisterResponse, Failure> {
        match self {
            Self::Server(client) => client.post("/v1/agents", &document).await,
            Self::Local(service, call) => Ok(service.register(call, document).await?),
        }
    }

    /// Resolves one request.
    pub async fn resolve(&self, request: pb::ResolveRequest) -> Result<pb::ResolveResponse, Failure> {
        match self {
            Self::Server(client) => client.post("/v1/resolve", &request).await,
            Self::Local(service, call) => Ok(service.resolve(call, request).await?),
        }
    }

    /// What operators do: `what` = `policy` or `models`; without a body it is shown, with one it is changed.
    pub async fn admin(&self, what: &str, body: Option<Value>) -> Result<Value, Failure> {
        match (self, body) {
            (Self::Server(client), None) => client.call(reqwest::Method::GET, &format!("/v1/admin/{what}"), None::<&()>).await,
            (Self::Server(client), Some(body)) => client.post(&format!("/v1/admin/{what}"), &body).await,
            (Self::Local(service, call), None) if what == "policy" => Ok(service.policy(call).await?),
            (Self::Local(service, call), Some(body)) if what == "policy" => Ok(service.change_policy(call, body).await?),
            (Self::Local(service, call), None) => Ok(service.models(call).await?),
            (Self::Local(service, call), Some(body)) => Ok(service.swap_models(call, body).await?),
        }
    }

    /// Reports outcomes.
    pub async fn report(&self, request: pb::ReportRequest) -> Result<pb::ReportResponse, Failure> {
        match self {
            Self::Server(client) => client.post("/v1/feedback", &request).await,
            Self::Local(service, call) => Ok(service.report(call, request).await?),
        }
    }

    /// Shows a page of outcomes.
    pub async fn outcomes(&self, which: pb::ListOutcomesRequest) -> Result<pb::ListOutcomesResponse, Failure> {
        match self {
            Self::Server(client) => {
                let limit = which.limit.map(|n| n.to_string());
                let pairs = [
                    ("agent", &which.agent),
                    ("capability", &which.capability),
                    ("reporter", &which.reporter),
                    ("limit", &limit),
                    ("after", &which.after),
                ];
                client.call(reqwest::Method::GET, &format!("/v1/feedback?{}", parameters(&pairs)), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.outcomes(call, which).await?),
        }
    }

    /// Forgets outcomes.
    pub async fn forget(&self, which: pb::ForgetRequest) -> Result<pb::ForgetResponse, Failure> {
        match self {
            Self::Server(client) => {
                let pairs = [("agent", &which.agent), ("capability", &which.capability), ("reporter", &which.reporter), ("id", &which.id)];
                client.call(reqwest::Method::DELETE, &format!("/v1/feedback?{}", parameters(&pairs)), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.forget(call, which).await?),
        }
    }

    /// Shows an agent.
    pub async fn get(&self, agent: pb::AgentRef, version: Option<String>) -> Result<pb::AgentState, Failure> {
        match self {
            Self::Server(client) => {
                let version = version.map(|v| format!("?version={}", encoded(&v))).unwrap_or_default();
                client.call(reqwest::Method::GET, &format!("{}{version}", path(&agent)), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.get(call, pb::GetRequest { agent: Some(agent), version }).await?),
        }
    }

    /// Lists a page of agents.
    pub async fn list(&self, which: pb::ListRequest) -> Result<pb::ListResponse, Failure> {
        match self {
            Self::Server(client) => {
                let limit = which.limit.map(|n| n.to_string());
                let pairs = [
                    ("namespace", &which.namespace),
                    ("tag", &which.tag),
                    ("capability", &which.capability),
                    ("limit", &limit),
                    ("after", &which.after),
                ];
                client.call(reqwest::Method::GET, &format!("/v1/agents?{}", parameters(&pairs)), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.list(call, which).await?),
        }
    }

    /// Renews a lease.
    pub async fn heartbeat(&self, agent: pb::AgentRef, mut beat: pb::HeartbeatRequest) -> Result<pb::AgentState, Failure> {
        match self {
            Self::Server(client) => client.post(&format!("{}/heartbeat", path(&agent)), &beat).await,
            Self::Local(service, call) => {
                beat.agent = Some(agent);
                Ok(service.heartbeat(call, beat).await?)
            }
        }
    }

    /// Takes in a message; waits for its result when the message says so.
    pub async fn submit(&self, message: pb::SubmitRequest) -> Result<pb::Reply, Failure> {
        match self {
            Self::Server(client) => client.post("/v1/messages", &message).await,
            Self::Local(service, call) => Ok(service.submit(call, message).await?),
        }
    }

    /// The whole life of a message.
    pub async fn message(&self, which: pb::GetMessageRequest) -> Result<pb::Message, Failure> {
        match self {
            Self::Server(client) => {
                let caller = which.caller.map(|c| format!("?caller={}", encoded(&c))).unwrap_or_default();
                client.call(reqwest::Method::GET, &format!("/v1/messages/{}{caller}", encoded(&which.message_id)), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.get_message(call, which).await?),
        }
    }

    /// Calls a message off.
    pub async fn cancel(&self, which: pb::CancelRequest) -> Result<pb::Reply, Failure> {
        match self {
            Self::Server(client) => client.post(&format!("/v1/messages/{}/cancel", encoded(&which.message_id)), &which).await,
            Self::Local(service, call) => Ok(service.cancel(call, which).await?),
        }
    }

    /// Lists a page of messages, or of dead letters.
    pub async fn messages(&self, which: pb::ListMessagesRequest, dead: bool) -> Result<pb::ListMessagesResponse, Failure> {
        match self {
            Self::Server(client) => {
                let limit = which.limit.map(|n| n.to_string());
                let pairs = [
                    ("state", &which.state),
                    ("agent", &which.agent),
                    ("since", &which.since),
                    ("until", &which.until),
                    ("dead_tag", &which.dead_tag),
                    ("parent_id", &which.parent_id),
                    ("limit", &limit),
                    ("after", &which.after),
                ];
                let tags = which.tags.iter().chain(which.tag_name.as_ref().zip(which.tag_value.as_ref()));
                let tags = tags.map(|(name, value)| format!("tag.{}={}", encoded(name), encoded(value)));
                let pairs = pairs.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?))));
                let query: Vec<String> = pairs.chain(tags).collect();
                let path = if dead { "/v1/dead-letters" } else { "/v1/messages" };
                client.call(reqwest::Method::GET, &format!("{path}?{}", query.join("&")), None::<&()>).await
            }
            Self::Local(service, call) => Ok(service.list_messages(call, which, dead).await?),
        }
    }

    /// The text at an open path such as `/metrics`; nothing when it is refused, or without a server.
    pub async fn text(&self, path: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Server(client) => {
                let response = client.http.get(format!("{}{path}", client.base)).send().await.map_err(|e| client.unreachable(&e))?;
                let good = response.status().is_success();
                let text = response.text().await.map_err(|e| client.unreachable(&e))?;
                Ok(good.then_some(text))
            }
            Self::Local(..) => Ok(None),
        }
    }

    /// What delivery does now.
    pub async fn stats(&self) -> Result<pb::StatsResponse, Failure> {
        match self {
            Self::Server(client) => client.call(reqwest::Method::GET, "/v1/stats", None::<&()>).await,
            Self::Local(service, call) => Ok(service.stats(call).await?),
        }
    }

    /// Delivers dead letters once more.
    pub async fn replay(&self, which: pb::ReplayRequest) -> Result<pb::ReplayResponse, Failure> {
        match self {
            Self::Server(client) => client.post("/v1/dead-letters/replay", &which).await,
            Self::Local(service, call) => Ok(service.replay(call, which).await?),
        }
    }

    /// Takes an agent out of new work, or back into it.
    pub async fn drain(&self, agent: pb::AgentRef, draining: bool) -> Result<pb::AgentState, Failure> {
        match self {
            Self::Server(client) => {
                client.post(&format!("{}/drain", path(&agent)), &pb::DrainRequest { agent: None, draining: Some(draining) }).await
            }
            Self::Local(service, call) => {
                Ok(service.drain(call, pb::DrainRequest { agent: Some(agent), draining: Some(draining) }).await?)
            }
        }
    }

    /// Removes an agent.
    pub async fn deregister(&self, agent: pb::AgentRef) -> Result<pb::DeregisterResponse, Failure> {
        match self {
            Self::Server(client) => client.call(reqwest::Method::DELETE, &path(&agent), None::<&()>).await,
            Self::Local(service, call) => Ok(service.deregister(call, pb::DeregisterRequest { agent: Some(agent) }).await?),
        }
    }
}

impl Client {
    /// Waits until the server answers that it is ready.
    async fn up(&self, within: Duration) -> Result<(), Failure> {
        let trying = async {
            loop {
                let ready = self.http.get(format!("{}/ready", self.base)).send().await;
                if ready.is_ok_and(|r| r.status().is_success()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let late = |_| Failure::words(format!("{} is not ready after {} s", self.base, within.as_secs_f32()));
        tokio::time::timeout(within, trying).await.map_err(late)
    }

    async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, Failure> {
        self.call(reqwest::Method::POST, path, Some(body)).await
    }

    async fn call<B: Serialize, T: DeserializeOwned>(&self, method: reqwest::Method, path: &str, body: Option<&B>) -> Result<T, Failure> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        if status.is_success() {
            return serde_json::from_slice(&bytes)
                .map_err(|e| Failure::words(format!("{} answered something else than expected: {e}", self.base)));
        }
        #[derive(serde::Deserialize)]
        struct Refusal {
            error: pb::Error,
        }
        match serde_json::from_slice::<Refusal>(&bytes) {
            Ok(refusal) => Err(Failure::Service(refusal.error)),
            Err(_) => Err(Failure::words(format!("{} answered {status}: is it an Agent-Reach server?", self.base))),
        }
    }

    fn unreachable(&self, e: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = e;
        while let Some(next) = cause.source() {
            cause = next;
        }
        Failure::words(format!(
            "can't reach {}: {cause}\n  start a server with `reach up`, name another with --server, or open a store with --data DIR",
            self.base
        ))
    }
}

/// Query parameters of what is given.
fn parameters(pairs: &[(&str, &Option<String>)]) -> String {
    let given: Vec<String> = pairs.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?)))).collect();
    given.join("&")
}

fn path(agent: &pb::AgentRef) -> String {
    format!("/v1/agents/{}/{}", encoded(&agent.namespace), encoded(&agent.agent_id))
}

/// Percent-encodes everything but unreserved characters.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, b| {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(b)),
            _ => out.push_str(&format!("%{b:02X}")),
        }
        out
    })
}

/// Reads `namespace/agent_id`.
pub fn agent_ref(text: &str) -> Result<pb::AgentRef, String> {
    match text.rsplit_once('/') {
        Some((namespace, agent_id)) if !namespace.is_empty() && !agent_id.is_empty() => {
            Ok(pb::AgentRef { domain: String::new(), namespace: namespace.into(), agent_id: agent_id.into() })
        }
        Some(_) | None => Err("write NAMESPACE/AGENT_ID, such as orders/order-desk".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_have_paths() {
        let agent = agent_ref("hr/payroll/bot-1").unwrap();
        assert_eq!(path(&agent), "/v1/agents/hr%2Fpayroll/bot-1");
        assert!(agent_ref("bot").is_err() && agent_ref("/bot").is_err() && agent_ref("hr/").is_err());
        assert_eq!(encoded("退 a&b"), "%E9%80%80%20a%26b");
    }
}
