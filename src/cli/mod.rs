//! The command line: one file a subcommand.
//!
//! Invariants: standard output is data, standard error is words; exit 0 ok (`suggest` too), 1 a negative answer (nothing
//! matched, no such agent, a gate not passed), 2 a fault; a reader that stops reading (broken pipe) is no fault.
//! Commands talk to a running server, or open a store themselves with `--data`.
//!
//! Not here: wiring (`app`, behind [`App`]).

mod agent;
mod agents;
mod backend;
mod bench;
mod doctor;
mod eval;
mod feedback;
mod invoke;
mod load;
mod log;
mod messages;
mod models;
mod out;
mod print;
mod register;
mod replay;
mod resolve;
mod routing;
mod swap;
mod token;
mod top;
mod tune;
mod up;
mod work;
mod wrap;

pub use bench::{Arithmetic, BenchCommand, BenchEmbed, BenchLog, BenchResolve, BenchScale, DoorKind, Speech};
pub use eval::{EvalCommand, EvalGaming, EvalHistory, EvalModels, EvalRun, EvalSet};
pub use log::{LogCommand, LogExport};
pub use models::ModelsCommand;
pub use out::{Failure, Out, say};
pub use print::answer;
pub use replay::{Replay, SweepArg};
pub use tune::{Tune, Won};
pub use up::{Serve, Up};

use crate::api::service::Service;
use crate::config::{Config, Override};
use crate::error::{Code, Error};
use clap::{Args, Parser, Subcommand};
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// How a command ended, beside faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok,
    /// Done, and the answer is no.
    Negative,
}

/// What the commands need of the wiring.
pub trait App: Send + Sync {
    /// Opens a store without doors, for one command.
    fn local(&self, config: Config) -> BoxFuture<'_, Result<Arc<Service>, Error>>;
    /// Runs a server; with the demonstration when `demo` is asked for.
    fn serve<'a>(&'a self, config: Config, up: &'a Up, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
    /// Lists, fetches, imports and checks models.
    fn models<'a>(&'a self, config: Config, command: &'a ModelsCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
    /// Runs an evaluation.
    fn eval<'a>(&'a self, config: Config, command: &'a EvalCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
    /// Runs a measurement of speed.
    fn bench<'a>(&'a self, config: Config, command: &'a BenchCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
    /// Replays history.
    fn replay<'a>(&'a self, config: Config, replay: &'a Replay, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
    /// Fits on history; what is to be applied, and why.
    fn tune<'a>(&'a self, config: Config, tune: &'a Tune, out: &'a Out) -> BoxFuture<'a, Result<Won, Failure>>;
    /// Exports the decision log.
    fn log<'a>(&'a self, config: Config, command: &'a LogCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>>;
}

/// Say what you want done: Agent-Reach finds who can do it and says how sure it is.
#[derive(Parser, Debug)]
#[command(name = "reach", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// What all commands understand.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of every command")]
pub struct Common {
    /// Server to talk to.
    #[arg(long, global = true, env = "REACH_SERVER", default_value = "http://127.0.0.1:7701", value_name = "URL", hide_env_values = true)]
    pub server: String,
    /// Server to pull work from, over gRPC.
    #[arg(long, global = true, env = "REACH_GRPC", default_value = "http://127.0.0.1:7700", value_name = "URL", hide_env_values = true)]
    pub grpc: String,
    /// Token to send.
    #[arg(long, global = true, env = "REACH_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Data folder: a server keeps its state there; other commands open it themselves instead of talking to a server.
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Configuration file.
    #[arg(long, global = true, env = "REACH_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Changes one setting, such as `--set policy.default_preset=gateway`; may be repeated.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Waits this long for the server to come up, such as 60s.
    #[arg(long, global = true, value_name = "DURATION", value_parser = crate::types::span::parse)]
    pub wait: Option<std::time::Duration>,
    /// Prints data as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Starts everything on this machine, with a demonstration if asked for.
    Up(Up),
    /// Starts the server.
    Serve(Serve),
    /// Registers the manifests of a file or folder.
    Register(register::Register),
    /// Asks who can do something.
    Resolve(Box<resolve::Resolve>),
    /// Has something done: finds the agent, delivers, waits for the result.
    Invoke(Box<invoke::Invoke>),
    /// Lists messages; shows one with its whole life, or calls it off.
    Messages(messages::Messages),
    /// Lists dead letters, and delivers them once more.
    DeadLetters(messages::DeadLetters),
    /// Makes an agent of any command line: JSON on its standard input, the result on its standard output.
    Wrap(wrap::Wrap),
    /// Runs a small agent for trying.
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Sends a load of messages to a running server and measures what came of it.
    Load(load::Load),
    /// Shows agents, queues and rates as they are now.
    Top(top::Top),
    /// Checks a node and its fleet, and says what to do.
    Doctor(doctor::Doctor),
    /// Shows and manages registered agents.
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// Says what came of decisions, shows and forgets it.
    #[command(subcommand)]
    Feedback(feedback::FeedbackCommand),
    /// Shows, fetches and checks embedding models.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Measures quality on labelled queries.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Measures speed.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Reads the decision log.
    #[command(subcommand)]
    Log(LogCommand),
    /// Decides history again under other settings, and says what each would have been worth.
    Replay(Box<Replay>),
    /// Fits weights and thresholds on history, and applies what wins.
    Tune(Box<Tune>),
    /// Swaps the models of a running service.
    #[command(subcommand)]
    Swap(swap::SwapCommand),
    /// Makes access tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
}

impl Common {
    /// The configuration: file, variables, `--set`, `--data`, and the flags of the command, in this order.
    pub fn config(&self, flags: Vec<Override>) -> Result<Config, Failure> {
        let mut overrides = Vec::new();
        for text in &self.set {
            let (key, value) = text.split_once('=').ok_or_else(|| Failure::words(format!("--set {text}: write KEY=VALUE")))?;
            overrides.push(Override::new(key.trim(), value.trim(), "--set"));
        }
        if let Some(dir) = &self.data {
            overrides.push(Override::new("data.dir", dir.display().to_string(), "--data"));
        }
        overrides.extend(flags);
        let (config, words) = Config::load(self.config.as_deref(), std::env::vars_os().filter_map(utf8), overrides)
            .map_err(|e| Failure::words(e.to_string()))?;
        for word in words {
            out::say(&format!("warning: {word}"));
        }
        Ok(config)
    }
}

fn utf8((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// Runs the program with the arguments of the process.
pub fn main(app: &dyn App) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // help and version are asked for, the rest is a fault; a closed pipe changes neither
            drop(e.print());
            if !e.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if std::env::args_os().any(|a| a == "--json") {
                let error = Error::new(Code::InvalidArgument, e.to_string().trim_end().to_string());
                drop(Out::standard().json(&serde_json::json!({"error": crate::api::convert::error(&error)})));
            }
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return Failure::words(format!("threads can't be started: {e}")).exit(&Out::standard(), false),
    };
    let json = cli.common.json;
    let mut out = Out::standard();
    out.json = json;
    let exit = match runtime.block_on(run(cli, app, &out)) {
        Ok(Exit::Ok) => ExitCode::SUCCESS,
        Ok(Exit::Negative) => ExitCode::from(1),
        Err(failure) => failure.exit(&out, json),
    };
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    exit
}

/// Runs one command.
pub async fn run(cli: Cli, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
    let common = &cli.common;
    match cli.command {
        Command::Up(up) => app.serve(common.config(up.overrides())?, &up, out).await,
        Command::Serve(serve) => {
            let up = Up::from(serve);
            app.serve(common.config(up.overrides())?, &up, out).await
        }
        Command::Register(register) => register.run(common, app, out).await,
        Command::Resolve(resolve) => resolve.run(common, app, out).await,
        Command::Invoke(invoke) => invoke.run(common, app, out).await,
        Command::Messages(messages) => messages.run(common, app, out).await,
        Command::DeadLetters(letters) => letters.run(common, app, out).await,
        Command::Wrap(wrap) => wrap.run(common, app).await,
        Command::Agent(command) => command.run(common, app).await,
        Command::Load(load) => load.run(common, app, out).await,
        Command::Top(top) => top.run(common, app, out).await,
        Command::Doctor(doctor) => doctor.run(common, app, out).await,
        Command::Agents(command) => command.run(common, app, out).await,
        Command::Feedback(command) => command.run(common, app, out).await,
        Command::Models(command) => app.models(common.config(vec![])?, &command, out).await,
        Command::Eval(command) => app.eval(common.config(vec![])?, &command, out).await,
        Command::Bench(command) => app.bench(common.config(vec![])?, &command, out).await,
        Command::Replay(replay) => app.replay(common.config(vec![])?, &replay, out).await,
        Command::Tune(tune) => tune.run(common, app, out).await,
        Command::Swap(command) => command.run(common, app, out).await,
        Command::Log(command) => app.log(common.config(vec![])?, &command, out).await,
        Command::Token(command) => command.run(common, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn cli_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_become_settings() {
        let cli = Cli::parse_from([
            "reach",
            "up",
            "--demo",
            "--exit",
            "--data",
            "d",
            "--grpc-port",
            "0",
            "--http-port",
            "9001",
            "--set",
            "server.limits.k_max=7",
        ]);
        let Command::Up(up) = &cli.command else { panic!("not up") };
        assert!(up.demo && up.exit);
        let config = cli.common.config(up.overrides()).unwrap();
        assert_eq!((config.server.grpc_addr.port(), config.server.http_addr.port()), (0, 9001));
        assert_eq!((config.data.dir, config.server.limits.k_max), (PathBuf::from("d"), 7));
        assert!(Cli::try_parse_from(["reach", "up", "--exit"]).is_err(), "--exit needs --demo");
    }
}
