//! The root: puts the parts together, starts and stops them in order. No logic of its own.

mod admin;
mod bench;
mod commands;
mod compare;
mod decision_log;
mod delivery;
mod demo;
mod evaluation;
mod parts;
mod policies;
mod ports;
mod probe;
mod replay;
mod replay_models;
mod schemas;
mod serve;
mod tune;

pub use parts::Parts;

use crate::api::service::Service;
use crate::cli::{App, BenchCommand, EvalCommand, Exit, Failure, LogCommand, ModelsCommand, Out, Replay, Tune, Up, Won};
use crate::config::Config;
use crate::error::Error;
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;

/// The wiring behind the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Root;

impl App for Root {
    fn local(&self, config: Config) -> BoxFuture<'_, Result<Arc<Service>, Error>> {
        async move { Ok(Parts::open(config, &crate::embed::fetch::Quiet).await?.service()) }.boxed()
    }

    fn serve<'a>(&'a self, config: Config, up: &'a Up, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        serve::run(config, up, out).boxed()
    }

    fn models<'a>(&'a self, config: Config, command: &'a ModelsCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        commands::models(config, command, out).boxed()
    }

    fn eval<'a>(&'a self, config: Config, command: &'a EvalCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        evaluation::run(config, command, out).boxed()
    }

    fn bench<'a>(&'a self, config: Config, command: &'a BenchCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        bench::run(config, command, out).boxed()
    }

    fn replay<'a>(&'a self, config: Config, command: &'a Replay, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        replay::run(config, command, out).boxed()
    }

    fn tune<'a>(&'a self, config: Config, command: &'a Tune, out: &'a Out) -> BoxFuture<'a, Result<Won, Failure>> {
        tune::run(config, command, out).boxed()
    }

    fn log<'a>(&'a self, config: Config, command: &'a LogCommand, out: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        commands::log(config, command, out).boxed()
    }
}
