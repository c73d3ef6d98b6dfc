//! Configuration: what was written, then what it means.
//!
//! In: the shipped defaults, a TOML file, `REACH_*` variables, flags (later ones win). Out: a [`Config`] in which every
//! value is in range and fits the others, or *all* faults at once, each with its key path. `reach.toml` (shipped) spells
//! out every setting with its default; a test holds the two together.
//!
//! Invariant: no default lives anywhere but in the `read` functions of this module.
//! Not here: what the settings do (`docs/configuration.md` and the parts that own them).

pub mod auth;
pub mod delivery;
pub mod engine;
pub mod files;
mod policy;
mod reader;
pub mod server;

pub use auth::{Auth, Token};
pub use delivery::{Dispatch, Outbound, OutboundSecret};
pub use engine::{
    AgentLabels, Data, DecisionLog, FeedbackConfig, IndexConfig, LiveConfig, ModelsConfig, RegistryConfig, Schemas, Source, Telemetry,
};
pub use reader::Key;
pub use server::{Limits, Server};

use crate::types::Fault;
use crate::types::policy::Policy;
use std::fmt;
use std::path::{Path, PathBuf};

/// The shipped file: every setting, documented, at its default.
pub const SHIPPED: &str = include_str!("../../reach.toml");

/// Every setting, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Addresses and limits of the doors.
    pub server: Server,
    /// Where state lives.
    pub data: Data,
    /// Embedding models.
    pub models: ModelsConfig,
    /// Who may call.
    pub auth: Auth,
    /// Where schemas by reference come from.
    pub schemas: Schemas,
    /// How the index is built.
    pub index: IndexConfig,
    /// How candidates are ranked and decided upon.
    pub policy: Policy,
    /// What is kept of decisions.
    pub decision_log: DecisionLog,
    /// What one owner may register.
    pub registry: RegistryConfig,
    /// What is kept of outcomes, and when it is learned.
    pub feedback: FeedbackConfig,
    /// Load and health of agents.
    pub live: LiveConfig,
    /// Delivery of messages.
    pub dispatch: Dispatch,
    /// What may be called.
    pub outbound: Outbound,
    /// Logs.
    pub telemetry: Telemetry,
}

impl Default for Config {
    fn default() -> Self {
        read(&toml::Table::new(), &[]).config
    }
}

/// A configuration with faults: all of them.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// The file, when the faults are in one.
    pub file: Option<PathBuf>,
    /// What is wrong, with key paths.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "configuration {}:", file.display())?,
            None => write!(f, "configuration:")?,
        }
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for ConfigError {}

/// One setting given from outside the file: key path and value as text (`server.grpc_addr`, `127.0.0.1:9000`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Key path.
    pub key: String,
    /// Value as text; lists in TOML form.
    pub value: String,
    /// Where it comes from, for messages: `--grpc-port`, `REACH_SERVER_GRPC_ADDR`.
    pub from: String,
}

impl Override {
    /// A setting from a flag.
    pub fn new(key: &str, value: impl Into<String>, from: &str) -> Self {
        Self { key: key.into(), value: value.into(), from: from.into() }
    }
}

struct Outcome {
    config: Config,
    faults: Vec<Fault>,
    keys: Vec<Key>,
}

fn read(table: &toml::Table, overrides: &[Override]) -> Outcome {
    let (config, faults, keys) = reader::run(table, overrides, |r| Config {
        server: r.section("server", Server::read),
        data: r.section("data", Data::read),
        models: r.section("models", ModelsConfig::read),
        auth: r.section("auth", Auth::read),
        schemas: r.section("schemas", Schemas::read),
        index: r.section("index", IndexConfig::read),
        policy: r.section("policy", policy::read),
        decision_log: r.section("decision_log", DecisionLog::read),
        registry: r.section("registry", RegistryConfig::read),
        feedback: r.section("feedback", FeedbackConfig::read),
        live: r.section("live", LiveConfig::read),
        dispatch: r.section("dispatch", Dispatch::read),
        outbound: r.section("outbound", Outbound::read),
        telemetry: r.section("telemetry", Telemetry::read),
    });
    Outcome { config, faults, keys }
}

impl Config {
    /// Every setting there is, with its kind, its default and the variable that overrides it.
    pub fn keys() -> Vec<Key> {
        read(&toml::Table::new(), &[]).keys
    }

    /// Reads a configuration from TOML text and overrides.
    pub fn parse(text: &str, overrides: &[Override]) -> Result<Self, ConfigError> {
        let table: toml::Table = toml::from_str(text).map_err(|e: toml::de::Error| {
            let line = e.span().map_or(1, |span| text.get(..span.start).unwrap_or("").lines().count().max(1));
            let fault = Fault::new("", "TOML", format!("line {line}: {}", e.message()));
            ConfigError { file: None, faults: vec![fault] }
        })?;
        let outcome = read(&table, overrides);
        if outcome.faults.is_empty() { Ok(outcome.config) } else { Err(ConfigError { file: None, faults: outcome.faults }) }
    }

    /// Loads the configuration of a process: the file (which must exist when it was named), then variables, then flags.
    /// `vars` are the `REACH_*` variables of the environment. Words for people about unknown ones come back beside it.
    pub fn load(
        file: Option<&Path>,
        vars: impl IntoIterator<Item = (String, String)>,
        flags: Vec<Override>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let text = match file {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|e| ConfigError {
                file: Some(path.into()),
                faults: vec![Fault::new("", "a readable file", format!("{e}; `reach up` without --config runs on the defaults"))],
            })?,
        };
        let (mut overrides, words) = from_vars(vars);
        overrides.extend(flags);
        let config = Self::parse(&text, &overrides).map_err(|e| ConfigError { file: file.map(Path::to_path_buf), ..e })?;
        Ok((config, words))
    }
}

/// Variables of the command line that are no settings.
const OTHER_VARS: &[&str] = &[
    "REACH_SERVER",
    "REACH_GRPC",
    "REACH_TOKEN",
    "REACH_CONFIG",
    "REACH_DATA",
    "REACH_KERNEL",
    "REACH_MODELS",
    // what `reach wrap` tells the command that it runs
    "REACH_ID",
    "REACH_MESSAGE_ID",
    "REACH_TRACE_ID",
    "REACH_DELIVERY",
    "REACH_IDEMPOTENCY_KEY",
    "REACH_INTENT",
    "REACH_QUERY",
    "REACH_CALLER",
    "REACH_DEPTH",
    "REACH_DEADLINE_MS",
    "REACH_TIMEOUT_MS",
];

fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> (Vec<Override>, Vec<String>) {
    let keys = Config::keys();
    let (mut overrides, mut words) = (Vec::new(), Vec::new());
    for (name, value) in vars {
        if !name.starts_with("REACH_") || OTHER_VARS.contains(&name.as_str()) {
            continue;
        }
        match keys.iter().find(|k| k.variable == name) {
            Some(key) => overrides.push(Override { key: key.path.clone(), value, from: name }),
            None => words.push(format!("{name} is not a setting; it is ignored")),
        }
    }
    (overrides, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_file_is_the_default() {
        assert_eq!(Config::parse(SHIPPED, &[]).unwrap(), Config::default());
    }

    #[test]
    fn shipped_file_spells_out_every_setting() {
        let table: toml::Table = toml::from_str(SHIPPED).unwrap();
        for key in Config::keys() {
            let parts: Vec<&str> = key.path.split('.').collect();
            // entries of lists, and what has no default, are shown as comments
            if SHIPPED.contains(&format!("# {} = ", parts.last().unwrap())) {
                continue;
            }
            let (last, above) = parts.split_last().unwrap();
            let section = above.iter().try_fold(&table, |t, part| t.get(*part).and_then(toml::Value::as_table));
            assert!(section.is_some_and(|t| t.contains_key(*last)), "reach.toml lacks {}", key.path);
        }
    }

    #[test]
    fn all_faults_come_at_once_with_their_keys() {
        let text = r#"
            colour = "red"
            [server]
            grpc_addr = "here"
            http_addr = 7
            [server.limits]
            message_bytes = "4 elephants"
            deadline_default = "2h"
            k_maxx = 3
            [policy]
            default_preset = "best"
            [[auth.tokens]]
            caller = "a"
            sha256 = "abc"
        "#;
        let faults = Config::parse(text, &[]).unwrap_err().faults;
        let keys: Vec<&str> = faults.iter().map(|f| f.pointer.as_str()).collect();
        for key in [
            "colour",
            "server.grpc_addr",
            "server.http_addr",
            "server.limits.message_bytes",
            "server.limits.deadline_default",
            "server.limits.k_maxx",
            "policy.default_preset",
            "auth.tokens[0].sha256",
        ] {
            assert!(keys.contains(&key), "{key} is missing in {keys:?}");
        }
        let near = faults.iter().find(|f| f.pointer == "server.limits.k_maxx").unwrap();
        assert!(near.hint.contains("k_max"), "{near}");
    }

    #[test]
    fn later_sources_win() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("reach.toml");
        files::write_atomic(&file, b"[server]\ngrpc_addr = \"127.0.0.1:1\"\nhttp_addr = \"127.0.0.1:2\"\n[data]\ndir = \"a\"\n").unwrap();
        let vars = [("REACH_DATA_DIR", "b"), ("REACH_SERVER_HTTP_ADDR", "127.0.0.1:3"), ("REACH_NOPE", "1"), ("PATH", "x")];
        let vars = vars.map(|(k, v)| (k.to_string(), v.to_string()));
        let flags = vec![Override::new("data.dir", "c", "--data"), Override::new("server.limits.k_max", "7", "--set")];
        let (config, words) = Config::load(Some(&file), vars, flags).unwrap();
        assert_eq!(config.server.grpc_addr.port(), 1);
        assert_eq!(config.server.http_addr.port(), 3);
        assert_eq!(config.data.dir, PathBuf::from("c"));
        assert_eq!(config.server.limits.k_max, 7);
        assert_eq!(words.len(), 1);
    }

    #[test]
    fn faults_of_variables_and_unknown_keys_name_their_source() {
        let e = Config::parse("", &[Override::new("server.limits.k_max", "many", "REACH_SERVER_LIMITS_K_MAX")]).unwrap_err();
        assert!(e.to_string().contains("REACH_SERVER_LIMITS_K_MAX"), "{e}");
        let e = Config::parse("", &[Override::new("server.limits.nope", "1", "--set")]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "server.limits.nope");
        let missing = Config::load(Some(Path::new("no/such/reach.toml")), [], vec![]).unwrap_err();
        assert!(missing.to_string().contains("no/such/reach.toml"));
        let broken = Config::parse("[server\n", &[]).unwrap_err();
        assert!(broken.to_string().contains("line 1"), "{broken}");
    }

    #[test]
    fn every_setting_can_be_overridden_by_one_variable() {
        let keys = Config::keys();
        let mut names: Vec<&str> = keys.iter().map(|k| k.variable.as_str()).filter(|v| !v.is_empty()).collect();
        let n = names.len();
        assert!(n > 40, "{n}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
        assert!(OTHER_VARS.iter().all(|other| !names.contains(other)));
    }
}
