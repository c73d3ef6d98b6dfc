//! `reach agent echo`: a small agent for trying. It gives back what it gets, and can be told to fail, to reject, to hang and to be slow.

use crate::cli::work::{Done, Job, Puller, Worker};
use crate::cli::{App, Common, Exit, Failure, say};
use crate::dispatch::dice::Dice;
use crate::types::span;
use clap::{Args, Subcommand};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Runs a small agent for trying.
#[derive(Subcommand, Debug)]
pub enum AgentCommand {
    /// Gives back the payload that it gets.
    Echo(Echo),
}

/// Gives back the payload that it gets.
#[derive(Args, Debug)]
pub struct Echo {
    /// Who it is.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID", default_value = "demo/echo")]
    pub agent: String,
    /// What it can do.
    #[arg(long, value_name = "NAME", default_value = "echo")]
    pub intent: String,
    /// Pieces of work at once.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub concurrency: u32,
    /// Time each piece takes.
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = span::parse)]
    pub delay: Duration,
    /// Share of work that it fails at, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub fail: f64,
    /// Share of work that it says is not its own.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub reject: f64,
    /// Share of work that it never answers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub hang: f64,
    /// Seed of these chances.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Doing it twice is the same as once.
    #[arg(long)]
    pub idempotent: bool,
}

impl AgentCommand {
    pub(super) async fn run(self, common: &Common, app: &dyn App) -> Result<Exit, Failure> {
        let Self::Echo(echo) = self;
        let agent = crate::cli::backend::agent_ref(&echo.agent).map_err(|e| Failure::words(format!("--agent {}: {e}", echo.agent)))?;
        let document = json!({
            "namespace": agent.namespace, "agent_id": agent.agent_id, "ttl": "30s", "concurrency": echo.concurrency,
            "max_queue_depth": 100_000, "endpoints": [{"protocol": "pull"}],
            "capabilities": [{
                "intent": echo.intent,
                "description": {"en": "Gives back what it gets; for trying", "zh": "原样返回收到的内容，供试用"},
                "idempotent": echo.idempotent,
            }],
        });
        let puller = Puller::register(common, app, document).await?;
        say(&format!("{} is ready for work", puller.name()));
        let dice = Arc::new(Mutex::new(Dice::new(echo.seed)));
        let (delay, fail, reject, hang) = (echo.delay, echo.fail, echo.reject, echo.hang);
        let worker: Box<Worker> = Box::new(move |job: Job| {
            let roll = dice.lock().share();
            Box::pin(async move {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                if roll < fail {
                    Done::Retry("it fails on purpose".into())
                } else if roll < fail + reject {
                    Done::Reject("it rejects on purpose".into())
                } else if roll < fail + reject + hang {
                    // no receipt and no sign of life: the lease runs out
                    Done::Silence
                } else {
                    Done::Data(job.work.payload.or(Some("null".into())))
                }
            })
        });
        puller.run(&*worker).await?;
        Ok(Exit::Ok)
    }
}
