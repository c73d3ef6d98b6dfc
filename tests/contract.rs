//! What others build on stays: the wire format is additive only, and no setting is there for show.

#![allow(clippy::unwrap_used)]

use agent_reach::api::pb;
use agent_reach::config::Config;
use agent_reach::telemetry::metrics::{Counter, Gauge, Histogram};
use prost::Message;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CONTRACT: &str = "proto/agentreach/v1/contract.txt";

/// One line for each field and method: what a client depends on.
fn lines() -> BTreeSet<String> {
    let set = prost_types::FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap();
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|f| f.package() == "agentreach.v1") {
        for message in &file.message_type {
            for field in &message.field {
                let kind = if field.type_name().is_empty() {
                    format!("{:?}", field.r#type()).to_lowercase()
                } else {
                    field.type_name().to_string()
                };
                let label = match (field.label() == prost_types::field_descriptor_proto::Label::Repeated, field.proto3_optional()) {
                    (true, _) => "repeated ",
                    (false, true) => "optional ",
                    (false, false) => "",
                };
                lines.insert(format!("{}.{} = {}: {label}{kind}", message.name(), field.name(), field.number()));
            }
        }
        for service in &file.service {
            for method in &service.method {
                let stream = |on: bool| if on { "stream " } else { "" };
                lines.insert(format!(
                    "{}.{}({}{}) -> {}{}",
                    service.name(),
                    method.name(),
                    stream(method.client_streaming()),
                    method.input_type(),
                    stream(method.server_streaming()),
                    method.output_type()
                ));
            }
        }
    }
    lines
}

#[test]
fn the_wire_format_only_grows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(CONTRACT);
    let written: BTreeSet<String> =
        fs::read_to_string(path).unwrap().lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(str::to_string).collect();
    let now = lines();
    let lost: Vec<_> = written.difference(&now).collect();
    let new: Vec<_> = now.difference(&written).collect();
    assert!(lost.is_empty(), "clients depend on these: {lost:#?}");
    assert!(new.is_empty(), "write these lines into {CONTRACT}: {}", new.iter().map(|l| format!("\n{l}")).collect::<String>());
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// A setting that nobody reads changes nothing. The wiring and the doors read them, the policy is read by the matcher.
#[test]
fn every_setting_is_read_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let code = |folders: &[&str]| {
        let mut files = Vec::new();
        folders.iter().for_each(|folder| sources(&root.join(folder), &mut files));
        let texts = files.iter().map(|f| fs::read_to_string(f).unwrap());
        texts.map(|text| text.split("#[cfg(test)]\nmod tests").next().unwrap_or("").to_string()).collect::<Vec<_>>()
    };
    let (wiring, matcher) = (code(&["app", "api", "cli"]), code(&["route", "ingest", "types", "app"]));
    let reads = |code: &[String], field: &str| {
        let access = format!(".{field}");
        code.iter().any(|text| {
            text.match_indices(&access).any(|(at, _)| {
                let next = text[at + access.len()..].chars().next().unwrap_or(' ');
                !next.is_alphanumeric() && next != '_' && next != '('
            })
        })
    };
    let mut dead = Vec::new();
    for key in Config::keys() {
        let field = key.path.rsplit('.').next().unwrap();
        // entries of tokens become principals where they are read
        let read = key.path.starts_with("auth.tokens[]") || reads(if key.path.starts_with("policy.") { &matcher } else { &wiring }, field);
        if !read {
            dead.push(key.path);
        }
    }
    assert!(dead.is_empty(), "settings that nothing reads: {dead:#?}");
    assert!(!reads(&wiring, "no_such_setting"), "the check can fail");
}

/// A metric that nobody sets is a promise that is not kept.
#[test]
fn every_metric_is_set_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let code: Vec<String> = files
        .iter()
        .filter(|f| !f.ends_with("telemetry/metrics.rs"))
        .map(|f| fs::read_to_string(f).unwrap().split("#[cfg(test)]\nmod tests").next().unwrap_or("").to_string())
        .collect();
    let set = |kind: &str, name: &str| {
        let used = format!("{kind}::{name}");
        code.iter().any(|text| {
            text.match_indices(&used).any(|(at, _)| !text[at + used.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let mut dead: Vec<String> = Vec::new();
    let mut look = |kind: &str, name: String| {
        if !set(kind, &name) {
            dead.push(format!("{kind}::{name}"));
        }
    };
    Counter::ALL.iter().for_each(|c| look("Counter", format!("{c:?}")));
    Gauge::ALL.iter().for_each(|g| look("Gauge", format!("{g:?}")));
    Histogram::ALL.iter().for_each(|h| look("Histogram", format!("{h:?}")));
    assert!(dead.is_empty(), "metrics that nothing sets: {dead:#?}");
    assert!(!set("Counter", "NoSuchMetric"), "the check can fail");
}
