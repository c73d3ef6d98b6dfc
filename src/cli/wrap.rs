//! `reach wrap -- CMD`: makes an agent of any command line. One run of the command is one piece of work: the payload stands on its standard input as
//! JSON, what it prints is the result.
//!
//! Exit codes: 0 done · 65 the payload is wrong, no further attempt · 66 not its work, the next agent is asked · anything else: it failed, another
//! attempt may help (the last lines of standard error are the reason). A run that takes longer than it may, or is called off, is killed; what was killed,
//! by whomever, broke off in the middle and is only run again with `--idempotent`.
//! Not here: the connection (`work`).

use crate::api::pb;
use crate::cli::work::{Done, Job, Puller, Worker};
use crate::cli::{App, Common, Exit, Failure, say};
use crate::clock::{Clock, SystemClock};
use crate::types::document::{self, Format};
use crate::types::span;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Largest output of a command, bytes.
const MOST: u64 = 2 * 1024 * 1024;
/// How long the output of a command that has ended is waited for.
const GRACE: Duration = Duration::from_millis(500);
/// The payload is wrong (`EX_DATAERR` of sysexits).
const WRONG: i32 = 65;
/// Not its work.
const NOT_MINE: i32 = 66;

/// Makes an agent of any command line: JSON on its standard input, the result on its standard output.
#[derive(Args, Debug)]
pub struct Wrap {
    /// Who it is.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID", required_unless_present = "manifest", conflicts_with = "manifest")]
    pub agent: Option<String>,
    /// What it can do: name of a capability; may be repeated.
    #[arg(long, value_name = "NAME", required_unless_present = "manifest", conflicts_with = "manifest")]
    pub intent: Vec<String>,
    /// What the capabilities do, in words; one for each --intent, in their order.
    #[arg(long, value_name = "TEXT", conflicts_with = "manifest")]
    pub describe: Vec<String>,
    /// Its manifest, instead of the flags above; the endpoint must be `pull`.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Runs at once.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "manifest")]
    pub concurrency: u32,
    /// Doing it twice is the same as once: it may be tried again after it may have run.
    #[arg(long, conflicts_with = "manifest")]
    pub idempotent: bool,
    /// Longest run; a command that takes longer is killed.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = span::parse)]
    pub timeout: Duration,
    /// The whole delivery stands on standard input, not only the payload.
    #[arg(long)]
    pub envelope: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

impl Wrap {
    fn document(&self) -> Result<Value, Failure> {
        if let Some(file) = &self.manifest {
            let name = file.display().to_string();
            let bytes = std::fs::read(file).map_err(|e| Failure::words(format!("{name}: {e}")))?;
            let mut read =
                document::read(&bytes, Format::of_name(&name)).map_err(|faults| Failure::from(crate::error::Error::invalid(faults)))?;
            return match (read.pop(), read.is_empty()) {
                (Some(one), true) => Ok(one.value),
                _ => Err(Failure::words(format!("{name}: one manifest is needed"))),
            };
        }
        let who = self.agent.as_deref().unwrap_or_default();
        let agent = crate::cli::backend::agent_ref(who).map_err(|e| Failure::words(format!("--agent {who}: {e}")))?;
        let capabilities = self.intent.iter().enumerate().map(|(i, intent)| {
            let text = self.describe.get(i).cloned().unwrap_or_else(|| intent.replace('_', " "));
            json!({"intent": intent, "description": text, "idempotent": self.idempotent})
        });
        Ok(json!({
            "namespace": agent.namespace, "agent_id": agent.agent_id, "ttl": "30s", "concurrency": self.concurrency,
            "endpoints": [{"protocol": "pull"}], "capabilities": capabilities.collect::<Vec<_>>(),
        }))
    }

    pub(super) async fn run(self, common: &Common, app: &dyn App) -> Result<Exit, Failure> {
        let puller = Puller::register(common, app, self.document()?).await?;
        say(&format!("{} is ready for work", puller.name()));
        let how = Arc::new(How {
            command: self.command,
            envelope: self.envelope,
            longest: self.timeout,
            server: common.server.clone(),
            grpc: common.grpc.clone(),
        });
        let worker: Box<Worker> = Box::new(move |job| {
            let how = how.clone();
            Box::pin(async move { run(&how, job).await })
        });
        puller.run(&*worker).await?;
        Ok(Exit::Ok)
    }
}

/// How the command is run.
struct How {
    command: Vec<String>,
    envelope: bool,
    longest: Duration,
    server: String,
    grpc: String,
}

/// What the command reads.
fn input(work: &pb::Work, envelope: bool) -> String {
    if envelope {
        return serde_json::to_string(work).unwrap_or_default();
    }
    match (&work.payload, &work.data_ref, &work.query) {
        (Some(payload), ..) => payload.clone(),
        (None, Some(data_ref), _) => json!({"data_ref": data_ref}).to_string(),
        (None, None, Some(query)) => json!({"query": query}).to_string(),
        (None, None, None) => "{}".into(),
    }
}

async fn run(how: &How, job: Job) -> Done {
    let Some((program, arguments)) = how.command.split_first() else { return Done::Retry("no command".into()) };
    let w = &job.work;
    let deadline = SystemClock.now_ms().saturating_add(i64::try_from(w.budget_ms).unwrap_or(i64::MAX));
    let mut child = Command::new(program);
    child
        .args(arguments)
        .env("REACH_SERVER", &how.server)
        .env("REACH_GRPC", &how.grpc)
        .env("REACH_ID", &w.reach_id)
        .env("REACH_MESSAGE_ID", &w.message_id)
        .env("REACH_TRACE_ID", &w.trace_id)
        .env("REACH_DELIVERY", w.delivery.to_string())
        .env("REACH_IDEMPOTENCY_KEY", &w.idempotency_key)
        .env("REACH_INTENT", &w.intent)
        .env("REACH_QUERY", w.query.as_deref().unwrap_or_default())
        .env("REACH_CALLER", &w.caller)
        .env("REACH_DEPTH", w.depth.to_string())
        .env("REACH_DEADLINE_MS", deadline.to_string())
        .env("REACH_TIMEOUT_MS", w.timeout_ms.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // a group of its own, so that what the command started ends with it
    #[cfg(unix)]
    child.process_group(0);
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(e) => return Done::Retry(format!("{program}: {e}")),
    };
    let group = child.id();
    let mut stdin = child.stdin.take();
    let text = input(w, how.envelope);
    let feed = async move {
        if let Some(stdin) = &mut stdin {
            // a command need not read its input
            drop(stdin.write_all(text.as_bytes()).await);
            drop(stdin.write_all(b"\n").await);
        }
        drop(stdin);
    };
    let too_much = CancellationToken::new();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let whole = async {
        let pipes = (child.stdout.take(), child.stderr.take());
        let reads = async { tokio::join!(feed, read(pipes.0, &mut out, Some(&too_much)), read(pipes.1, &mut err, None)) };
        tokio::pin!(reads);
        tokio::select! {
            _ = &mut reads => child.wait().await,
            status = child.wait() => {
                // what it started may hold the pipes open; the command itself has said all it had to say
                drop(tokio::time::timeout(GRACE, &mut reads).await);
                status
            }
        }
    };
    let ended = tokio::select! {
        status = whole => Some(status),
        () = too_much.cancelled() => {
            kill_group(group).await;
            return Done::Refuse(format!("the result is larger than {MOST} bytes: store it and print where it is"));
        }
        () = job.stop.cancelled() => None,
        () = tokio::time::sleep(how.longest) => None,
    };
    let Some(status) = ended else {
        kill_group(group).await;
        return Done::Broken("it was killed: called off, or out of time".into());
    };
    let reason = || tail(&err).unwrap_or_else(|| "the command failed and said nothing".into());
    match status.map(|s| s.code()) {
        Ok(Some(0)) => match String::from_utf8(out) {
            Ok(text) => Done::Text(text.trim_end().to_string()),
            Err(_) => Done::Refuse("the result is no UTF-8 text: store it and print where it is".into()),
        },
        Ok(Some(WRONG)) => Done::Refuse(reason()),
        Ok(Some(NOT_MINE)) => Done::Reject(reason()),
        Ok(Some(code)) => Done::Retry(format!("exit {code}: {}", reason())),
        Ok(None) => Done::Broken("the command was killed".into()),
        Err(e) => Done::Retry(e.to_string()),
    }
}

/// Reads to the end, and throws away what is beyond the limit, so that the command is not blocked; tells `too_much` that there was such.
async fn read(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>, too_much: Option<&CancellationToken>) {
    let Some(mut from) = from else { return };
    let mut part = vec![0u8; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut part).await {
        if kept.len() as u64 <= MOST {
            kept.extend_from_slice(part.get(..n).unwrap_or_default());
        } else if let Some(too_much) = too_much {
            too_much.cancel();
        }
    }
}

/// The last words of standard error.
fn tail(err: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(err);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join(" / ");
    let cut: String = last.chars().rev().take(400).collect::<Vec<_>>().into_iter().rev().collect();
    Some(cut).filter(|c| !c.is_empty())
}

#[cfg(unix)]
async fn kill_group(group: Option<u32>) {
    if let Some(id) = group {
        // signals need unsafe code or another process; whoever is gone already needs none
        let kill = |signal: &'static str| Command::new("kill").args([signal, "--", &format!("-{id}")]).stderr(Stdio::null()).status();
        drop(kill("-TERM").await);
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(kill("-KILL").await);
    }
}

#[cfg(not(unix))]
async fn kill_group(_: Option<u32>) {}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str, work: pb::Work) -> Done {
        run(&how(&["sh", "-c", script]), Job { work, stop: CancellationToken::new() }).await
    }

    fn how(command: &[&str]) -> How {
        let command = command.iter().map(|t| t.to_string()).collect();
        How { command, envelope: false, longest: Duration::from_secs(20), server: "s".into(), grpc: "g".into() }
    }

    fn work(payload: &str) -> pb::Work {
        pb::Work { payload: Some(payload.into()), budget_ms: 5_000, timeout_ms: 5_000, trace_id: "ab".repeat(16), ..Default::default() }
    }

    #[tokio::test]
    async fn exit_codes_are_receipts() {
        assert!(matches!(sh("cat", work("{\"a\": 1}")).await, Done::Text(t) if t == "{\"a\": 1}"));
        assert!(matches!(sh("echo $REACH_TRACE_ID", work("1")).await, Done::Text(t) if t == "ab".repeat(16)));
        assert!(matches!(sh("echo bad order >&2; exit 65", work("1")).await, Done::Refuse(r) if r == "bad order"));
        assert!(matches!(sh("exit 66", work("1")).await, Done::Reject(_)));
        assert!(matches!(sh("echo a >&2; echo b >&2; exit 3", work("1")).await, Done::Retry(r) if r == "exit 3: a / b"));
        assert!(matches!(sh("kill -9 $$", work("1")).await, Done::Broken(_)));
        assert!(matches!(sh("printf '\\377\\376'", work("1")).await, Done::Refuse(_)), "no text");
        let job = Job { work: work("1"), stop: CancellationToken::new() };
        assert!(matches!(run(&how(&["no-such-command-here"]), job).await, Done::Retry(_)));
    }

    #[tokio::test]
    async fn what_is_called_off_is_killed() {
        let job = Job { work: work("1"), stop: CancellationToken::new() };
        job.stop.cancel();
        assert!(matches!(run(&how(&["sh", "-c", "sleep 60"]), job).await, Done::Broken(_)));
        let job = Job { work: work("1"), stop: CancellationToken::new() };
        let short = How { longest: Duration::from_millis(100), ..how(&["sh", "-c", "sleep 60"]) };
        assert!(matches!(run(&short, job).await, Done::Broken(_)), "out of time");
    }

    #[tokio::test]
    async fn a_large_output_does_not_block_and_is_refused() {
        assert!(matches!(sh("head -c 3000000 /dev/zero", work("1")).await, Done::Refuse(_)));
    }

    #[tokio::test]
    async fn what_a_command_leaves_running_is_not_waited_for() {
        let done = tokio::time::timeout(Duration::from_secs(15), sh("sleep 60 & echo 1", work("1"))).await;
        assert!(matches!(done, Ok(Done::Text(t)) if t == "1"));
    }

    #[tokio::test]
    async fn output_without_end_is_cut_off() {
        let done = tokio::time::timeout(Duration::from_secs(15), sh("yes", work("1"))).await;
        assert!(matches!(done, Ok(Done::Refuse(_))));
    }

    #[test]
    fn what_the_command_reads() {
        assert_eq!(input(&work("{\"n\":12345678901234567890}"), false), "{\"n\":12345678901234567890}");
        let asked = pb::Work { query: Some("退款".into()), ..Default::default() };
        assert_eq!(input(&asked, false), "{\"query\":\"退款\"}");
        assert!(input(&work("{}"), true).contains("\"payload\":{}"));
    }
}
