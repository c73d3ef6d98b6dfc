//! Fills a stage from the hub: three files of one commit, streamed to disk.
//!
//! `hf-hub` retries five times and its client never times out. Here: one retry, a limit on the first answer, a limit on silence inside a file,
//! and a runtime of its own that is left behind when a name lookup hangs.

use super::folder::{check_dim, check_tokenizer};
use super::{Event, FetchConfig, Progress, check_pin};
use crate::embed::cache::{CONFIG, Stage, TOKENIZER, WEIGHTS, file_sha256};
use crate::embed::catalog::{HubSource, ModelSpec, Pin};
use futures::StreamExt;
use hf_hub::HFClient;
use std::fs::File;
use std::io::Write;
use std::time::Duration;
use tokio::time::timeout;

/// Why the hub did not help.
pub struct HubError {
    /// In words.
    pub why: String,
    /// It did not answer at all: pointless to ask it for the next model.
    pub unreachable: bool,
}

impl HubError {
    fn answered(why: impl ToString) -> Self {
        Self { why: why.to_string(), unreachable: false }
    }

    fn silent(why: impl ToString) -> Self {
        Self { why: format!("not reachable: {}", why.to_string()), unreachable: true }
    }
}

/// Downloads the three files. Returns where they came from, in words.
pub fn fill(hub: &HubSource, spec: &ModelSpec, stage: &Stage, limits: &FetchConfig, progress: &dyn Progress) -> Result<String, HubError> {
    if std::env::var_os("HF_HUB_OFFLINE").is_some_and(|v| v == "1") {
        return Err(HubError::silent("HF_HUB_OFFLINE is set"));
    }
    // a thread of its own: the caller may be inside another runtime
    std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HubError::answered)?;
            let result = runtime.block_on(download(hub, spec, stage, limits, progress));
            runtime.shutdown_background();
            result
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(HubError::answered("the download panicked")))
    })
}

async fn download(
    hub: &HubSource,
    spec: &ModelSpec,
    stage: &Stage,
    limits: &FetchConfig,
    progress: &dyn Progress,
) -> Result<String, HubError> {
    let http = reqwest::Client::builder()
        .connect_timeout(limits.hub_answer.min(Duration::from_secs(3)))
        .read_timeout(limits.hub_stall)
        .build()
        .map_err(HubError::answered)?;
    let mut client =
        HFClient::builder().client(http).retry_max_attempts(1).retry_base_delay(Duration::from_millis(50)).cache_enabled(false);
    if let Some(endpoint) = &limits.hub_endpoint {
        client = client.endpoint(endpoint);
    }
    let client = client.build().map_err(HubError::answered)?;
    let (owner, name) = hf_hub::split_id(&hub.repo);
    let repo = client.model(owner, name);

    let wanted = match &hub.revision {
        Pin::Known(commit) => commit.clone(),
        Pin::Unknown => "main".to_owned(),
    };
    let info = timeout(limits.hub_answer, repo.info().revision(wanted.clone()).send())
        .await
        .map_err(|_| HubError::silent(format!("no answer within {} s", limits.hub_answer.as_secs_f32())))?
        .map_err(|e| if e.to_string().contains("404") { HubError::answered(short(&e)) } else { HubError::silent(short(&e)) })?;
    let commit = info.sha.unwrap_or(wanted);

    for file in [CONFIG, TOKENIZER, WEIGHTS] {
        let step = repo.download_file_stream().filename(file).revision(commit.clone()).send();
        let (total, mut stream) = timeout(limits.hub_stall, step)
            .await
            .map_err(|_| HubError::answered(format!("{file}: no answer within {} s", limits.hub_stall.as_secs())))?
            .map_err(|e| HubError::answered(format!("{file}: {}", short(&e))))?;
        let path = stage.dir().join(file);
        let mut out = File::create(&path).map_err(HubError::answered)?;
        let mut done = 0;
        loop {
            let next = timeout(limits.hub_stall, stream.next());
            let next = next.await.map_err(|_| HubError::answered(format!("{file}: stalled after {done} bytes")))?;
            let Some(chunk) = next else { break };
            let chunk = chunk.map_err(|e| HubError::answered(format!("{file}: {}", short(&e))))?;
            out.write_all(&chunk).map_err(HubError::answered)?;
            done += chunk.len() as u64;
            progress.on(&Event::Bytes { model: &spec.name, file, done, total });
        }
        if total.is_some_and(|t| t != done) {
            return Err(HubError::answered(format!("{file}: {done} of {} bytes came", total.unwrap_or(0))));
        }
        let seen = file_sha256(&path).map_err(HubError::answered)?;
        check_pin(file, &seen, hub.sha256.get(file)).map_err(HubError::answered)?;
    }
    let read = |file: &str| std::fs::read(stage.dir().join(file)).map_err(HubError::answered);
    check_dim(&read(CONFIG)?, spec).map_err(HubError::answered)?;
    check_tokenizer(&read(TOKENIZER)?).map_err(HubError::answered)?;
    Ok(format!("hub {} revision {commit}", hub.repo))
}

/// An error with its causes, in one line.
fn short(e: &dyn std::error::Error) -> String {
    let mut words = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let more = c.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = c.source();
    }
    // the address is said twice, and the message is kept for the next model too
    let plain: Vec<&str> = words.lines().next().unwrap_or_default().split_whitespace().filter(|w| !w.contains("://")).collect();
    plain.join(" ").chars().take(240).collect()
}
