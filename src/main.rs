//! The `reach` binary.

use agent_reach::api::service::Service;
use agent_reach::cli::{self, App, EvalCommand, Exit, Failure, LogCommand, ModelsCommand, Out, Up};
use agent_reach::config::Config;
use agent_reach::error::{Code, Error};
use futures::future::{BoxFuture, FutureExt};
use std::process::ExitCode;
use std::sync::Arc;

/// Stands in for `app` until it is there: commands that need no wiring work.
struct Unwired;

fn unwired() -> Error {
    Error::new(Code::FailedPrecondition, "this build has no wiring yet: talk to a running server with --server")
}

impl App for Unwired {
    fn local(&self, _: Config) -> BoxFuture<'_, Result<Arc<Service>, Error>> {
        async { Err(unwired()) }.boxed()
    }

    fn serve<'a>(&'a self, _: Config, _: &'a Up, _: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        async { Err(unwired().into()) }.boxed()
    }

    fn models<'a>(&'a self, _: Config, _: &'a ModelsCommand, _: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        async { Err(unwired().into()) }.boxed()
    }

    fn eval<'a>(&'a self, _: Config, _: &'a EvalCommand, _: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        async { Err(unwired().into()) }.boxed()
    }

    fn log<'a>(&'a self, _: Config, _: &'a LogCommand, _: &'a Out) -> BoxFuture<'a, Result<Exit, Failure>> {
        async { Err(unwired().into()) }.boxed()
    }
}

fn main() -> ExitCode {
    cli::main(&Unwired)
}
