//! An agent that pulls: registers itself, keeps its lease, asks for work over gRPC, does it, sends receipts; comes back after every break.
//!
//! In: a manifest and what to do with a piece of work. Invariants: no more pieces at once than the manifest's `concurrency`; `accepted` is sent
//! before the work begins and a sign of life every few seconds while it goes on; a result that could not be sent is sent over the next connection
//! (the server knows by its delivery number whether it still counts). Told to stop, it takes nothing new and finishes what it has.
//! Not here: the work itself (`wrap`, `agent`).

use crate::api::grpc::status::error_of;
use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Failure, say};
use crate::error::Code;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// Pause between signs of life of a running piece of work.
const ALIVE: Duration = Duration::from_secs(5);
/// Longest pause before a new connection.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How a piece of work ended.
#[derive(Clone, Debug)]
pub enum Done {
    /// With a result as JSON.
    Data(Option<String>),
    /// With whatever the text holds.
    Text(String),
    /// Not: another attempt may help.
    Retry(String),
    /// It was begun and broke off: another attempt only where doing it twice is the same as once.
    Broken(String),
    /// Not, and no attempt can help.
    Refuse(String),
    /// Not its work.
    Reject(String),
    /// Nothing is said.
    Silence,
}

/// A piece of work and how it is called off.
pub struct Job {
    /// The work.
    pub work: pb::Work,
    /// Cancelled when the server no longer wants it.
    pub stop: CancellationToken,
}

/// What does the work.
pub type Worker = dyn Fn(Job) -> BoxFuture<'static, Done> + Send + Sync;

/// A registered agent of this process.
pub struct Puller {
    backend: Backend,
    grpc: String,
    token: Option<String>,
    document: Value,
    agent: pb::AgentRef,
    concurrency: u32,
    beat: Option<Duration>,
}

type Running = FuturesUnordered<BoxFuture<'static, (String, u32, Done)>>;

/// What outlives a connection.
struct State {
    running: Running,
    stops: HashMap<(String, u32), CancellationToken>,
    unsent: VecDeque<pb::WorkReceipt>,
    started: bool,
}

/// Why a connection ended.
enum Ended {
    Stopped,
    Broken(String),
    Unregistered,
}

impl Puller {
    /// By the common options; registers the manifest in `document`.
    pub async fn register(common: &Common, app: &dyn App, document: Value) -> Result<Self, Failure> {
        let backend = Backend::open(common, app).await?;
        if matches!(backend, Backend::Local(..)) {
            return Err(Failure::words("an agent talks to a running server: leave out --data"));
        }
        let receipt = backend.register(document.clone()).await?;
        let agent = receipt.agent.unwrap_or_default();
        let state = backend.get(agent.clone(), None).await?;
        let manifest = state.manifest.unwrap_or_default();
        let ttl = manifest.ttl.as_deref().and_then(|t| crate::types::span::parse(t).ok());
        Ok(Self {
            backend,
            grpc: common.grpc.clone(),
            token: common.token.clone(),
            document,
            agent,
            concurrency: manifest.concurrency.unwrap_or(5).max(1),
            beat: ttl.map(|t| (t / 3).clamp(Duration::from_millis(200), Duration::from_secs(10))),
        })
    }

    /// `namespace/agent_id`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.agent.namespace, self.agent.agent_id)
    }

    /// Works until the process is told to stop, then finishes what it has.
    pub async fn run(&self, worker: &Worker) -> Result<(), Failure> {
        let stop = CancellationToken::new();
        let signal = async {
            stopped().await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.pull(worker, &stop) => {
                let beat = pb::HeartbeatRequest { leaving: Some(true), ..Default::default() };
                if self.beat.is_some() {
                    // the lease ends soon anyway
                    drop(tokio::time::timeout(Duration::from_secs(1), self.backend.heartbeat(self.agent.clone(), beat)).await);
                }
                ended
            }
            () = self.beats() => Ok(()),
            () = signal => Ok(()),
        }
    }

    async fn beats(&self) {
        let Some(every) = self.beat else { return std::future::pending().await };
        loop {
            let beat = pb::HeartbeatRequest { draining: Some(false), ..Default::default() };
            match self.backend.heartbeat(self.agent.clone(), beat).await {
                Ok(_) => {}
                Err(Failure::Service(e)) if e.code == Code::NotFound.as_str() => self.register_again().await,
                // told where the connection is told
                Err(_) => {}
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn register_again(&self) {
        match self.backend.register(self.document.clone()).await {
            Ok(_) => say(&format!("{}: registered again", self.name())),
            Err(Failure::Service(e)) => say(&format!("{}: {}", self.name(), crate::cli::print::refusal(&e))),
            Err(_) => {}
        }
    }

    async fn pull(&self, worker: &Worker, stop: &CancellationToken) -> Result<(), Failure> {
        let mut state = State { running: FuturesUnordered::new(), stops: HashMap::new(), unsent: VecDeque::new(), started: true };
        let mut pause = Duration::from_millis(100);
        let mut told = false;
        loop {
            match self.connected(worker, stop, &mut state, &mut told).await {
                Ended::Stopped => return Ok(()),
                Ended::Unregistered => self.register_again().await,
                Ended::Broken(why) => {
                    if !told {
                        say(&format!("{}: {why}; trying again", self.name()));
                    }
                    told = true;
                }
            }
            if stop.is_cancelled() && state.running.is_empty() {
                return Ok(());
            }
            pause = if told { (pause * 2).min(LONGEST_PAUSE) } else { Duration::from_millis(100) };
            // what runs goes on meanwhile; its result waits for the next connection
            let sleep = tokio::time::sleep(pause);
            tokio::pin!(sleep);
            loop {
                tokio::select! {
                    () = &mut sleep => break,
                    Some(done) = state.running.next(), if !state.running.is_empty() => state.finish(done),
                }
            }
        }
    }

    async fn channel(&self) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(self.grpc.clone()).map_err(|e| format!("--grpc {}: {e}", self.grpc))?;
        let endpoint = endpoint.connect_timeout(Duration::from_secs(3)).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(Duration::from_secs(10)).keep_alive_timeout(Duration::from_secs(10));
        endpoint.connect().await.map_err(|_| format!("can't reach {} for work", self.grpc))
    }

    async fn connected(&self, worker: &Worker, stop: &CancellationToken, state: &mut State, told: &mut bool) -> Ended {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(why) => return Ended::Broken(why),
        };
        let (give, take) = mpsc::unbounded_channel::<pb::WorkRequest>();
        let free = self.concurrency.saturating_sub(u32::try_from(state.running.len()).unwrap_or(u32::MAX));
        let want = if stop.is_cancelled() { 0 } else { free };
        let receipts: Vec<pb::WorkReceipt> = state.unsent.drain(..).collect();
        let first = pb::WorkRequest { agent: Some(self.agent.clone()), want, receipts, started: state.started };
        // the receiving end is ours
        give.send(first).ok();
        let mut request = Request::new(UnboundedReceiverStream::new(take));
        if let Some(Ok(value)) = self.token.as_ref().map(|t| format!("Bearer {t}").parse()) {
            request.metadata_mut().insert("authorization", value);
        }
        let mut client = pb::dispatch_client::DispatchClient::new(channel).max_decoding_message_size(16 << 20);
        let mut items = match client.work(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return refused(&status),
        };
        if *told {
            say(&format!("{}: connected again", self.name()));
        }
        (state.started, *told) = (false, false);
        let mut alive = tokio::time::interval(ALIVE);
        alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled(), if state.running.is_empty() && state.unsent.is_empty() => {
                    // the server reads what was sent before it sees the end
                    drop(give);
                    drop(tokio::time::timeout(Duration::from_secs(2), async { while let Ok(Some(_)) = items.message().await {} }).await);
                    return Ended::Stopped;
                }
                Some(done) = state.running.next(), if !state.running.is_empty() => {
                    state.finish(done);
                    let receipts: Vec<pb::WorkReceipt> = state.unsent.drain(..).collect();
                    let want = u32::from(!stop.is_cancelled());
                    if let Err(e) = give.send(pb::WorkRequest { agent: None, want, receipts, started: false }) {
                        state.unsent.extend(e.0.receipts);
                        return Ended::Broken("the connection broke".into());
                    }
                }
                _ = alive.tick(), if !state.running.is_empty() => {
                    let receipts = state.stops.keys().map(|(id, delivery)| receipt(id, *delivery, "progress")).collect();
                    give.send(pb::WorkRequest { agent: None, want: 0, receipts, started: false }).ok();
                }
                item = items.message() => match item {
                    Ok(Some(item)) => {
                        if let Some(work) = item.work {
                            let accepted = receipt(&work.reach_id, work.delivery, "accepted");
                            give.send(pb::WorkRequest { agent: None, want: 0, receipts: vec![accepted], started: false }).ok();
                            state.begin(work, worker);
                        }
                        if let Some(cancel) = item.cancel
                            && let Some(stop) = state.stops.get(&(cancel.reach_id, cancel.delivery))
                        {
                            stop.cancel();
                        }
                        if let Some(answer) = item.receipt
                            && let Some(e) = answer.error.filter(|e| e.code != Code::Conflict.as_str())
                        {
                            say(&format!("{}: a receipt was refused: {}", self.name(), crate::cli::print::refusal(&e)));
                        }
                    }
                    Ok(None) => return Ended::Broken("the server ended the session".into()),
                    Err(status) => return refused(&status),
                }
            }
        }
    }
}

impl State {
    fn begin(&mut self, work: pb::Work, worker: &Worker) {
        let stop = CancellationToken::new();
        let (id, delivery) = (work.reach_id.clone(), work.delivery);
        self.stops.insert((id.clone(), delivery), stop.clone());
        let doing = worker(Job { work, stop });
        self.running.push(Box::pin(async move { (id, delivery, doing.await) }));
    }

    fn finish(&mut self, (id, delivery, done): (String, u32, Done)) {
        let called_off = self.stops.remove(&(id.clone(), delivery)).is_some_and(|s| s.is_cancelled());
        if called_off {
            return;
        }
        let receipt = match done {
            Done::Data(data) => pb::WorkReceipt { data, ..receipt(&id, delivery, "ack") },
            Done::Text(text) => pb::WorkReceipt { text: Some(text), ..receipt(&id, delivery, "ack") },
            Done::Retry(reason) => pb::WorkReceipt { reason: Some(reason), ..receipt(&id, delivery, "nack") },
            Done::Broken(reason) => pb::WorkReceipt { reason: Some(reason), ..receipt(&id, delivery, "broken") },
            Done::Refuse(reason) => pb::WorkReceipt { reason: Some(reason), ..receipt(&id, delivery, "refuse") },
            Done::Reject(reason) => pb::WorkReceipt { reason: Some(reason), ..receipt(&id, delivery, "reject") },
            Done::Silence => return,
        };
        self.unsent.push_back(receipt);
    }
}

fn receipt(id: &str, delivery: u32, kind: &str) -> pb::WorkReceipt {
    pb::WorkReceipt { reach_id: id.into(), delivery, kind: kind.into(), ..Default::default() }
}

fn refused(status: &tonic::Status) -> Ended {
    match error_of(status) {
        Some(e) if e.code == Code::NotFound.as_str() => Ended::Unregistered,
        Some(e) => Ended::Broken(format!("{}: {}", e.code, e.message)),
        None => Ended::Broken(format!("the connection broke ({})", status.code())),
    }
}

#[cfg(unix)]
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn stopped() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
