//! What calls go through: a server in a process of its own by gRPC or HTTP, or the resolver in this one.

use crate::api::pb;
use crate::app::parts::Parts;
use crate::bench::load::Answer;
use crate::cli::DoorKind;
use crate::config::Config;
use crate::embed::models::Models;
use crate::error::{Code, Error};
use crate::route::resolver::Resolver;
use crate::types::Principal;
use crate::types::request::ResolveRequest;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tonic::transport::Channel;

/// Connections of the client.
const CONNECTIONS: usize = 4;

/// A server of its own process.
pub struct Server {
    child: Child,
    grpc: String,
    http: String,
    /// Seconds from its start until it served.
    pub ready_s: f64,
}

impl Server {
    /// Starts this program as a server on a data folder.
    pub async fn start(data: &Path, settings: &[String]) -> Result<Self, Error> {
        use crate::clock::{Clock, SystemClock};
        let program = std::env::current_exe().map_err(Error::internal)?;
        let begin = SystemClock.instant();
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(data).args(["--grpc-port", "0", "--http-port", "0"]);
        for setting in settings {
            command.arg("--set").arg(setting);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::internal)?;
        let mut lines = BufReader::new(child.stderr.take().ok_or_else(|| Error::internal("the server has no standard error"))?).lines();
        let mut last = String::new();
        while let Some(line) = lines.next_line().await.map_err(Error::internal)? {
            // "gRPC on ADDR, HTTP on http://ADDR"
            if let Some((grpc, http)) = line.strip_prefix("gRPC on ").and_then(|rest| rest.split_once(", HTTP on ")) {
                let ready_s = SystemClock.instant().duration_since(begin).as_secs_f64();
                let server = Self { grpc: format!("http://{}", grpc.trim()), http: http.trim().to_owned(), child, ready_s };
                // its words must be read, or it waits for room
                server.drain(lines);
                return Ok(server);
            }
            last = line;
        }
        Err(Error::internal(format!("the server ended before it served: {last}")))
    }

    #[allow(clippy::disallowed_methods)]
    fn drain(&self, mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>) {
        // ends with the server, which ends with this command
        drop(tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} }));
    }

    /// What its encoders have done so far, by its metrics.
    pub async fn encoded(&self) -> Option<Encoded> {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().ok()?;
        let text = client.get(format!("{}/metrics", self.http)).send().await.ok()?.text().await.ok()?;
        let sum = |name: &str| -> f64 {
            let lines = text.lines().filter(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
            lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Some(Encoded { texts: sum("reach_embed_batch_texts_sum"), busy_s: sum("reach_embed_seconds_sum") })
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.child.kill().await.map_err(Error::internal)
    }
}

/// Work of encoders since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Encoded {
    /// Texts.
    pub texts: f64,
    /// Seconds in encoders, all threads together.
    pub busy_s: f64,
}

impl Encoded {
    /// Of the models in this process.
    pub fn by(models: &Models) -> Self {
        let worker = models.stats().worker;
        Self { texts: worker.embedded as f64, busy_s: worker.busy_us as f64 / 1e6 }
    }

    /// What was done since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { texts: self.texts - before.texts, busy_s: self.busy_s - before.busy_s }
    }

    /// Share of the time of all cores, over so many seconds.
    pub fn share(self, seconds: f64) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.busy_s / (cores as f64 * seconds.max(1e-9))
    }
}

/// A way to make calls.
#[derive(Clone)]
pub enum Caller {
    /// By gRPC.
    Grpc(Arc<[pb::matcher_client::MatcherClient<Channel>]>),
    /// By HTTP.
    Http(reqwest::Client, String),
    /// By the library, with the models that it asks.
    Lib(Arc<Resolver>, Arc<Models>),
}

impl Caller {
    /// A caller of a server.
    pub async fn of(kind: DoorKind, server: &Server) -> Result<Self, Error> {
        match kind {
            DoorKind::Grpc => {
                let mut clients = Vec::new();
                for _ in 0..CONNECTIONS {
                    let channel = Channel::from_shared(server.grpc.clone()).map_err(Error::internal)?.tcp_nodelay(true);
                    clients.push(pb::matcher_client::MatcherClient::new(channel.connect().await.map_err(Error::internal)?));
                }
                Ok(Self::Grpc(clients.into()))
            }
            DoorKind::Http | DoorKind::Lib => {
                let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().map_err(Error::internal)?;
                Ok(Self::Http(client, format!("{}/v1/resolve", server.http)))
            }
        }
    }

    /// Asks one text, or names one capability.
    pub async fn ask(self, number: u64, text: Arc<str>) -> Answer {
        let refused = |code: &str| if code == Code::Overloaded.as_str() { Answer::Refused } else { Answer::Failed };
        match self {
            Self::Grpc(clients) => {
                let Some(client) = clients.get(number as usize % clients.len().max(1)) else { return Answer::Failed };
                match client.clone().resolve(pb::ResolveRequest { query: text.to_string(), ..Default::default() }).await {
                    Ok(_) => Answer::Done,
                    Err(status) if status.code() == tonic::Code::ResourceExhausted => Answer::Refused,
                    Err(_) => Answer::Failed,
                }
            }
            Self::Http(client, url) => {
                let body = pb::ResolveRequest { query: text.to_string(), ..Default::default() };
                match client.post(url).json(&body).send().await {
                    Ok(response) => {
                        let status = response.status();
                        match response.bytes().await {
                            Ok(_) if status.is_success() => Answer::Done,
                            Ok(_) if status.as_u16() == 429 || status.as_u16() == 503 => Answer::Refused,
                            Ok(_) | Err(_) => Answer::Failed,
                        }
                    }
                    Err(_) => Answer::Failed,
                }
            }
            Self::Lib(resolver, _) => {
                let request = ResolveRequest { query: text.to_string(), ..ResolveRequest::default() };
                match resolver.resolve(&Principal::local("bench"), &request).await {
                    Ok(_) => Answer::Done,
                    Err(e) => refused(e.code.as_str()),
                }
            }
        }
    }
}

/// The library on a data folder.
pub async fn library(config: Config) -> Result<Parts, Error> {
    Parts::open(config, &crate::embed::fetch::Quiet).await
}
