//! `reach load`: a load of messages against a running server, callers and agent in this process, and what came of it.
//!
//! In: a rate (open loop) or a number of callers (closed loop). Out: reaches a second, and three spreads in milliseconds: `answer` (submit until the
//! reply), `received` (submit until the durable receipt, with `--mode async`), `inside` (submit until the agent has it, plus its ack until the caller
//! has the reply: the time that is not the agent's). Everything goes over gRPC and real sockets. Cost: it shares the machine with the server.
//! Not here: the machine's own limits, but for `--fsync`, which measures them.

use crate::api::pb;
use crate::api::pb::dispatch_client::DispatchClient;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, say};
use crate::clock::{Clock, SystemClock};
use crate::tasks::{Stage, Tasks};
use crate::types::span;
use clap::{Args, ValueEnum};
use parking_lot::Mutex;
use serde_json::json;
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// What a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// The result.
    Sync,
    /// The durable receipt.
    Async,
}

/// Sends a load of messages to a running server and measures what came of it.
#[derive(Args, Debug)]
pub struct Load {
    /// How long.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::parse)]
    pub time: Duration,
    /// Messages a second; without it as many as the callers can.
    #[arg(long, value_name = "N")]
    pub rate: Option<u64>,
    /// Callers at once, where there is no rate.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub callers: usize,
    /// What a caller waits for.
    #[arg(long, value_enum, default_value = "sync")]
    pub mode: Wait,
    /// Bytes of the payload.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub bytes: usize,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub connections: usize,
    /// How long at the beginning nothing is measured: connections are made, caches fill.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::parse)]
    pub warm_up: Duration,
    /// First measures what a sync of the disk in this folder costs.
    #[arg(long, value_name = "DIR")]
    pub fsync: Option<PathBuf>,
}

/// Where the agent of the load is registered.
const AGENT: &str = "bench/echo";
const INTENT: &str = "bench_echo";

#[derive(Default)]
struct Seen {
    /// By message number: when the agent had it and when it sent its ack.
    agent: Vec<Option<(Instant, Instant)>>,
    /// By message number: when it was sent and when the reply came.
    caller: Vec<Option<(Instant, Instant)>>,
    failed: u64,
    first_failure: Option<String>,
}

fn put(list: &mut Vec<Option<(Instant, Instant)>>, n: u64, times: (Instant, Instant)) {
    let at = usize::try_from(n).unwrap_or(usize::MAX);
    if list.len() <= at {
        list.resize(at + 1, None);
    }
    if let Some(slot) = list.get_mut(at) {
        *slot = Some(times);
    }
}

/// Median, 95th and 99th percentile and largest, milliseconds.
fn spread(mut all: Vec<f64>) -> serde_json::Value {
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let round = |x: f64| (x * 1_000.0).round() / 1_000.0;
    json!({"p50": round(at(0.5)), "p95": round(at(0.95)), "p99": round(at(0.99)), "max": round(at(1.0)), "n": all.len()})
}

async fn channel(common: &Common) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(common.grpc.clone()).map_err(|e| Failure::words(format!("--grpc {}: {e}", common.grpc)))?;
    let endpoint = endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(3));
    endpoint.connect().await.map_err(|e| Failure::words(format!("can't reach {}: {e}", common.grpc)))
}

/// Spread of one small write and its sync, milliseconds.
fn disk(folder: &std::path::Path) -> Result<serde_json::Value, Failure> {
    let fault = |e: std::io::Error| Failure::words(format!("{}: {e}", folder.display()));
    let path = folder.join("fsync-probe");
    let mut file = std::fs::File::create(&path).map_err(fault)?;
    let mut took = Vec::new();
    for n in 0..400u64 {
        let at = SystemClock.instant();
        file.seek(std::io::SeekFrom::Start((n % 64) * 8_192)).map_err(fault)?;
        file.write_all(&[7u8; 8_192]).and_then(|()| file.sync_data()).map_err(fault)?;
        took.push(SystemClock.instant().duration_since(at).as_secs_f64() * 1e3);
    }
    std::fs::remove_file(&path).map_err(fault)?;
    Ok(spread(took))
}

impl Load {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let fsync = self.fsync.as_deref().map(disk).transpose()?;
        let backend = Backend::open(common, app).await?;
        let document = json!({
            "namespace": "bench", "agent_id": "echo", "ttl": "none", "concurrency": 4096, "max_queue_depth": 1_000_000,
            "endpoints": [{"protocol": "pull"}],
            "capabilities": [{"intent": INTENT, "description": "Gives back what it gets; for measuring"}],
        });
        backend.register(document).await?;
        let tasks = Tasks::new();
        let seen = Arc::new(Mutex::new(Seen::default()));
        self.agent(common, &tasks, &seen).await?;
        let mut channels = Vec::new();
        for _ in 0..self.connections.max(1) {
            channels.push(channel(common).await?);
        }
        let counter = Arc::new(AtomicU64::new(0));
        let begin = SystemClock.instant();
        let end = begin + self.time;
        match self.rate {
            Some(rate) => self.open_loop(&channels, &tasks, &seen, rate, begin, end).await,
            None => self.closed_loop(&channels, &tasks, &seen, &counter, end).await,
        }
        let warm = begin + self.warm_up.min(self.time / 2);
        let passed = SystemClock.instant().duration_since(warm);
        if self.mode == Wait::Async {
            // what was taken in is still done, only nobody waits for it
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        drop(tasks.shutdown(Duration::from_secs(1)).await);
        let report = self.report(&seen.lock(), warm, passed, fsync);
        out.line(&if common.json { report.to_string() } else { serde_json::to_string_pretty(&report).unwrap_or_default() })?;
        Ok(if seen.lock().failed == 0 { Exit::Ok } else { Exit::Negative })
    }

    async fn agent(&self, common: &Common, tasks: &Tasks, seen: &Arc<Mutex<Seen>>) -> Result<(), Failure> {
        let (give, take) = mpsc::unbounded_channel();
        let agent = Some(crate::cli::backend::agent_ref(AGENT).map_err(Failure::words)?);
        give.send(pb::WorkRequest { agent, want: 4_096, ..Default::default() }).map_err(|e| Failure::words(e.to_string()))?;
        let mut client = DispatchClient::new(channel(common).await?);
        let refused = |e: tonic::Status| Failure::words(format!("no session for the agent: {}", e.message()));
        let mut items = client.work(UnboundedReceiverStream::new(take)).await.map_err(refused)?.into_inner();
        let seen = seen.clone();
        drop(tasks.spawn(Stage::Serve, "load-agent", async move {
            while let Ok(Some(item)) = items.message().await {
                let Some(work) = item.work else { continue };
                let got = SystemClock.instant();
                let n = work.payload.as_deref().and_then(number).unwrap_or(u64::MAX);
                let receipt = pb::WorkReceipt {
                    reach_id: work.reach_id,
                    delivery: work.delivery,
                    kind: "ack".into(),
                    data: work.payload,
                    ..Default::default()
                };
                if n != u64::MAX {
                    put(&mut seen.lock().agent, n, (got, SystemClock.instant()));
                }
                if give.send(pb::WorkRequest { agent: None, want: 1, receipts: vec![receipt], started: false }).is_err() {
                    return;
                }
            }
        }));
        Ok(())
    }

    async fn closed_loop(&self, channels: &[Channel], tasks: &Tasks, seen: &Arc<Mutex<Seen>>, counter: &Arc<AtomicU64>, end: Instant) {
        let callers: Vec<_> = channels
            .iter()
            .cycle()
            .take(self.callers)
            .map(|channel| {
                let (client, counter, seen) = (DispatchClient::new(channel.clone()), counter.clone(), seen.clone());
                let (mode, bytes) = (self.mode, self.bytes);
                tasks.spawn(Stage::Accept, "load-caller", async move {
                    while SystemClock.instant() < end {
                        let n = counter.fetch_add(1, Ordering::Relaxed);
                        one(client.clone(), n, mode, bytes, &seen).await;
                    }
                })
            })
            .collect();
        for caller in callers {
            // a caller that panicked has said so
            drop(caller.await);
        }
    }

    async fn open_loop(&self, channels: &[Channel], tasks: &Tasks, seen: &Arc<Mutex<Seen>>, rate: u64, begin: Instant, end: Instant) {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        let (mut n, mut waiting) = (0u64, Vec::new());
        loop {
            tick.tick().await;
            let now = SystemClock.instant();
            if now >= end {
                break;
            }
            let due = (now.duration_since(begin).as_secs_f64() * rate as f64) as u64;
            while n < due {
                let Some(channel) = channels.get(usize::try_from(n).unwrap_or(0) % channels.len()) else { break };
                let (client, seen, mode, bytes) = (DispatchClient::new(channel.clone()), seen.clone(), self.mode, self.bytes);
                waiting.push(tasks.spawn(Stage::Accept, "load-call", async move { one(client, n, mode, bytes, &seen).await }));
                n += 1;
            }
        }
        for call in waiting {
            drop(call.await);
        }
    }

    fn report(&self, seen: &Seen, warm: Instant, passed: Duration, fsync: Option<serde_json::Value>) -> serde_json::Value {
        let ms = |a: Instant, b: Instant| b.saturating_duration_since(a).as_secs_f64() * 1e3;
        // an answer counts where it came while it was measured, its time where all of it did
        let done = seen.caller.iter().flatten().filter(|(_, got)| *got >= warm).count();
        let counted = |c: &(Instant, Instant)| c.0 >= warm;
        let answers: Vec<f64> = seen.caller.iter().flatten().filter(|c| counted(c)).map(|(sent, got)| ms(*sent, *got)).collect();
        let both = seen.caller.iter().zip(&seen.agent).filter_map(|(c, a)| Some((c.as_ref().filter(|c| counted(c))?, a.as_ref()?)));
        let inside: Vec<f64> = both.map(|((sent, got), (had, acked))| ms(*sent, *had) + ms(*acked, *got)).collect();
        let mut report = json!({
            "mode": if self.mode == Wait::Sync { "sync" } else { "async" },
            "seconds": (passed.as_secs_f64() * 100.0).round() / 100.0,
            "done": done,
            "failed": seen.failed,
            "first_failure": seen.first_failure,
            "per_second": (done as f64 / passed.as_secs_f64()).round(),
            "fsync_ms": fsync,
        });
        match self.mode {
            Wait::Sync => {
                report["answer_ms"] = spread(answers);
                report["inside_ms"] = spread(inside);
            }
            Wait::Async => report["received_ms"] = spread(answers),
        }
        report
    }
}

fn number(payload: &str) -> Option<u64> {
    payload.strip_prefix("{\"n\":")?.split(',').next()?.parse().ok()
}

async fn one(mut client: DispatchClient<Channel>, n: u64, mode: Wait, bytes: usize, seen: &Mutex<Seen>) {
    let request = pb::SubmitRequest {
        intent: Some(INTENT.into()),
        payload: Some(format!("{{\"n\":{n},\"fill\":\"{}\"}}", "x".repeat(bytes))),
        mode: Some(if mode == Wait::Sync { "sync" } else { "async" }.into()),
        ..Default::default()
    };
    let sent = SystemClock.instant();
    let answer = client.submit(request).await;
    let got = SystemClock.instant();
    let fault = match answer {
        Ok(reply) => {
            let reply = reply.into_inner();
            let fine = mode == Wait::Async || reply.state == "done";
            (!fine).then(|| format!("{}: {}", reply.state, reply.status.unwrap_or_default().message))
        }
        Err(e) => Some(e.message().to_string()),
    };
    let mut seen = seen.lock();
    match fault {
        None => put(&mut seen.caller, n, (sent, got)),
        Some(why) => {
            seen.failed += 1;
            if seen.first_failure.is_none() {
                say(&format!("the first failure: {why}"));
                seen.first_failure = Some(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_the_sorted_values() {
        let s = spread((1..=100).rev().map(f64::from).collect());
        assert_eq!((s["p50"].as_f64(), s["p99"].as_f64(), s["max"].as_f64()), (Some(51.0), Some(100.0), Some(100.0)));
        assert_eq!(spread(vec![])["n"], 0);
        assert_eq!(number("{\"n\":17,\"fill\":\"x\"}"), Some(17));
    }
}
