//! Settings of the engines: where state lives, models, schemas, index, decision log, live state, logs.

use crate::config::reader::Reader;
use crate::types::address::{Use, canonical};
use std::path::PathBuf;
use std::time::Duration;

/// `[data]`
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Folder of the store and everything else that survives a restart.
    pub dir: PathBuf,
}

impl Data {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let dir = r.text("dir", "data");
        if dir.is_empty() {
            r.fault("dir", "a folder", "name one; it is made when it is absent");
        }
        Self { dir: dir.into() }
    }
}

/// Where model files can come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configured folder.
    Folder,
    /// The model hub.
    Hub,
    /// The Maven artifact.
    Maven,
}

/// `[models]`
#[derive(Clone, Debug, PartialEq)]
pub struct ModelsConfig {
    /// Catalogue name of the model for Chinese texts; absent = none.
    pub zh: Option<String>,
    /// Catalogue name of the model for English texts; absent = none.
    pub en: Option<String>,
    /// Folder that fetched models are kept in; absent = the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Folder with model files that were brought by hand.
    pub folder: Option<PathBuf>,
    /// Sources in the order they are tried.
    pub sources: Vec<Source>,
    /// Threads that embed; 0 = one a core.
    pub workers: usize,
    /// Texts that may wait to be embedded; more are refused as `overloaded`.
    pub queue: usize,
    /// Memory for vectors of queries seen before, bytes.
    pub query_cache_bytes: u64,
    /// Whether the reference in 32-bit floats computes the vectors instead of the quicker 8-bit encoder.
    pub f32: bool,
}

impl ModelsConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let written = r.list("sources", &["folder", "hub", "maven"]);
        let mut sources = Vec::new();
        for name in &written {
            match name.as_str() {
                "folder" => sources.push(Source::Folder),
                "hub" => sources.push(Source::Hub),
                "maven" => sources.push(Source::Maven),
                other => r.fault("sources", "folder, hub or maven", format!("{other:?} is none of them")),
            }
        }
        let none = |t: String| Some(t).filter(|t| t != "none");
        Self {
            zh: none(r.text("zh", "bge-small-zh-v1.5")),
            en: none(r.text("en", "bge-small-en-v1.5")),
            cache: r.optional("cache").map(PathBuf::from),
            folder: r.optional("folder").map(PathBuf::from),
            sources,
            workers: r.int("workers", 0, 0..=1024),
            queue: r.int("queue", 1024, 1..=1_000_000),
            query_cache_bytes: r.bytes("query_cache_bytes", "64 MiB", 0..=1 << 40),
            f32: r.word("precision", "int8", &["int8", "f32"]) == "f32",
        }
    }
}

/// `[schemas]`
#[derive(Clone, Debug, PartialEq)]
pub struct Schemas {
    /// Folder that `schema://…` names a file in; absent = such references are refused.
    pub folder: Option<PathBuf>,
    /// Beginnings of URLs that a schema may be fetched from; empty = none is ever fetched.
    pub allow_urls: Vec<String>,
}

impl Schemas {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let allow_urls = r.list("allow_urls", &[]);
        for url in &allow_urls {
            if !url.starts_with("https://") && !url.starts_with("http://") {
                r.fault("allow_urls", "beginnings of http or https URLs", format!("{url:?} is none"));
            }
        }
        Self { folder: r.optional("folder").map(PathBuf::from), allow_urls }
    }
}

/// `[index]`
#[derive(Clone, Debug, PartialEq)]
pub struct IndexConfig {
    /// Visible vectors from which on a search compares one-bit sketches first; below, it is exact.
    pub min_rows: usize,
    /// Vectors of a part of the index, or of a class within it, from which on they are parted into lists.
    pub list_rows: usize,
    /// Vectors that sketches choose for a closer look, at least.
    pub keep: usize,
    /// Share of listed vectors whose sketches are compared. Range 0..=1.
    pub probe: f64,
    /// Listed vectors whose sketches are compared, at least.
    pub probe_rows: usize,
    /// Documents the newest part holds before it is sealed.
    pub delta_max: usize,
    /// Parts of similar size that are merged into one.
    pub fan: usize,
    /// Share of deleted documents above which a part is rewritten in the background. Range 0..=1.
    pub purge_share: f64,
}

impl IndexConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            min_rows: r.int("min_rows", 32_768, 256..=100_000_000),
            list_rows: r.int("list_rows", 131_072, 256..=100_000_000),
            keep: r.int("keep", 1_024, 8..=100_000),
            probe: r.number("probe", 0.15, 0.001..=1.0),
            probe_rows: r.int("probe_rows", 32_768, 1..=100_000_000),
            delta_max: r.int("delta_max", 256, 1..=100_000),
            fan: r.int("fan", 6, 2..=64),
            purge_share: r.number("purge_share", 0.1, 0.01..=1.0),
        }
    }
}

/// `[decision_log]`
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionLog {
    /// Whether the text of a query is kept; when not, its vector alone.
    pub keep_text: bool,
    /// Age at which an entry is removed.
    pub max_age: Duration,
    /// Size above which the oldest entries are removed, bytes.
    pub max_bytes: u64,
}

impl DecisionLog {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            keep_text: r.flag("keep_text", true),
            max_age: r.span("max_age", "30d", "1m", "3650d"),
            max_bytes: r.bytes("max_bytes", "256 MiB", 1 << 20..=1 << 40),
        }
    }
}

/// `[feedback]`
#[derive(Clone, Debug, PartialEq)]
pub struct FeedbackConfig {
    /// Age at which an outcome is removed.
    pub max_age: Duration,
    /// Outcomes above which the reporter with the most loses its oldest.
    pub max_records: u64,
    /// Pause between an outcome and the training that takes it in, so that many are learned at once.
    pub settle: Duration,
}

impl FeedbackConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            max_age: r.span("max_age", "180d", "1m", "3650d"),
            max_records: r.int("max_records", 200_000, 1..=10_000_000) as u64,
            settle: r.span("settle", "5s", "10ms", "1h"),
        }
    }
}

/// `[live]`
#[derive(Clone, Debug, PartialEq)]
pub struct LiveConfig {
    /// Pause between refreshes of live state in the view.
    pub refresh: Duration,
    /// Pause between probes of agents that send no heartbeats, unless their manifest says another.
    pub probe_interval: Duration,
    /// Time for a probe to be answered.
    pub probe_timeout: Duration,
    /// Failed probes in a row after which an agent is unreachable.
    pub probe_failures: usize,
}

impl LiveConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            refresh: r.span("refresh", "10s", "100ms", "10m"),
            probe_interval: r.span("probe_interval", "30s", "100ms", "1h"),
            probe_timeout: r.span("probe_timeout", "2s", "10ms", "1m"),
            probe_failures: r.int("probe_failures", 3, 1..=100),
        }
    }
}

/// `[registry]`
#[derive(Clone, Debug, PartialEq)]
pub struct RegistryConfig {
    /// Most agents of one owner with a token of its own; 0 = no limit.
    pub agents_per_owner: usize,
    /// Most changing registrations of one such owner in a minute; 0 = no limit.
    pub registrations_per_minute: usize,
}

impl RegistryConfig {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            agents_per_owner: r.int("agents_per_owner", 1000, 0..=10_000_000),
            registrations_per_minute: r.int("registrations_per_minute", 600, 0..=10_000_000),
        }
    }
}

/// `[telemetry]`
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// What is logged: levels, also by module, such as `info,agent_reach::index=debug`.
    pub log: String,
    /// Whether log lines are JSON.
    pub json: bool,
    /// When `/metrics` names agents.
    pub agent_labels: AgentLabels,
    /// Collector that gets the spans of messages, as `http(s)://host:port`; OTLP over HTTP.
    pub otlp: Option<String>,
}

/// When `/metrics`, which needs no token, names agents in its labels; else they are summed up as `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentLabels {
    /// While no tokens are configured: with tokens, tenants must not learn each other's names.
    #[default]
    WithoutTokens,
    /// Always: who can reach the port may know all agents.
    Always,
    /// Never.
    Never,
}

impl Telemetry {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let log = r.text("log", "info");
        if let Err(e) = log.parse::<tracing_subscriber::filter::targets::Targets>() {
            r.fault("log", "levels such as \"info\" or \"warn,agent_reach::index=debug\"", e.to_string());
        }
        let agent_labels = match r.word("agent_labels", "without_tokens", &["without_tokens", "always", "never"]).as_str() {
            "always" => AgentLabels::Always,
            "never" => AgentLabels::Never,
            _ => AgentLabels::WithoutTokens,
        };
        let otlp = r.optional("otlp");
        if let Some(Err(why)) = otlp.as_deref().map(|url| canonical(url, Use::Web)) {
            r.fault("otlp", Use::Web.expected(), why.hint());
        }
        Self { log, json: r.flag("json", false), agent_labels, otlp }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn models_can_be_left_out() {
        assert_eq!(Config::parse("[models]\nzh = \"none\"", &[]).unwrap().models.zh, None);
        let none = Config::parse("[models]\nzh = \"none\"\nen = \"none\"", &[]).unwrap().models;
        assert_eq!((none.zh, none.en), (None, None), "a node that routes by names");
        let e = Config::parse("[models]\nsources = [\"ftp\"]", &[]).unwrap_err();
        assert_eq!(e.faults.len(), 1, "{e}");
    }

    #[test]
    fn log_levels_are_checked() {
        assert!(Config::parse("[telemetry]\nlog = \"warn,agent_reach=debug\"", &[]).is_ok());
        assert!(Config::parse("[telemetry]\nlog = \"a=b=c\"", &[]).is_err());
    }
}
