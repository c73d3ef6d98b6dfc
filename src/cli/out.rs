//! Standard output, where data goes, and how a command fails.

use crate::api::pb;
use crate::cli::print;
use crate::error::{Code, Error};
use crate::telemetry::log::escaped;
use parking_lot::Mutex;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// Where data is written: standard output, or a buffer in tests.
pub struct Out {
    to: Mutex<Box<dyn Write + Send>>,
    /// Whether people look at it: colours and tables.
    pub terminal: bool,
    /// Whether data is wanted as JSON.
    pub json: bool,
}

impl Out {
    /// The process's standard output.
    pub fn standard() -> Self {
        let terminal = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { to: Mutex::new(Box::new(io::stdout())), terminal, json: false }
    }

    /// Writes elsewhere.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self { to: Mutex::new(Box::new(writer)), terminal: false, json: false }
    }

    /// Writes a line, or several.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        let mut to = self.to.lock();
        writeln!(to, "{text}").and_then(|()| to.flush()).map_err(Failure::Io)
    }

    /// Writes a value as one line of JSON.
    pub fn json<T: serde::Serialize>(&self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| Failure::words(e.to_string()))?;
        self.line(&text)
    }
}

/// Words for people, on standard error. That nobody reads them is no fault.
pub fn say(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// How a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error of the service.
    Service(pb::Error),
    /// Words for people: a wrong flag, a file that is not there, no server.
    Words(String),
    /// The sum of failures that the data told already, one by one.
    Told(String),
    /// Data could not be written.
    Io(io::Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Service(crate::api::convert::error(&e))
    }
}

impl Failure {
    /// With words.
    pub fn words(text: impl Into<String>) -> Self {
        Self::Words(text.into())
    }

    /// Says what failed and returns the exit code: 1 when the answer is only no, 2 for faults, 0 when the reader left. With `json` the same is data
    /// too: an object with an `error`, as the service itself answers.
    pub fn exit(self, out: &Out, json: bool) -> ExitCode {
        let error = match self {
            Self::Io(e) if e.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Io(e) => {
                say(&format!("error: the output can't be written: {e}"));
                return ExitCode::from(2);
            }
            Self::Told(words) => {
                say(&format!("error: {}", escaped(&words)));
                return ExitCode::from(2);
            }
            Self::Words(words) => {
                say(&format!("error: {}", words.lines().map(escaped).collect::<Vec<_>>().join("\n")));
                pb::Error { code: Code::FailedPrecondition.as_str().into(), message: words, ..pb::Error::default() }
            }
            Self::Service(e) => {
                say(&print::refusal(&e));
                e
            }
        };
        let negative = [Code::NotFound, Code::NoMatchedAgent].iter().any(|code| code.as_str() == error.code);
        if json {
            // the exit code says what matters, should this not be written
            drop(out.json(&serde_json::json!({"error": error})));
        }
        ExitCode::from(if negative { 1 } else { 2 })
    }
}
