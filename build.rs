//! Compiles `proto/` into Rust with `protox`, so that no system `protoc` is needed.
//!
//! The HTTP twin's JSON is the protobuf messages themselves: the serde attributes that make it so are put on here, from
//! the descriptors, so that a new field needs no second place. Output: `agentreach.v1.rs` and the descriptor set
//! `agentreach.bin` (reflection, OpenAPI, the bounded decoder).

use prost::Message;
use std::path::PathBuf;

include!("src/api/json_fields.rs");

const PACKAGE: &str = "agentreach.v1";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=src/api/json_fields.rs");
    let mut files: Vec<PathBuf> = std::fs::read_dir("proto/agentreach/v1")?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "proto"))
        .collect();
    files.sort();
    let set = protox::compile(&files, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::File::create(out.join("agentreach.bin")).and_then(|mut f| std::io::Write::write_all(&mut f, &set.encode_to_vec()))?;

    fleet(&out)?;
    let mut build = tonic_prost_build::configure().codec_path("crate::api::grpc::codec::BoundedCodec").emit_rerun_if_changed(false);
    for file in set.file.iter().filter(|f| f.package() == PACKAGE) {
        let of_manifest = file.name().ends_with("manifest.proto");
        for message in &file.message_type {
            let path = format!("{PACKAGE}.{}", message.name());
            // what a caller writes is checked strictly; what the service writes may gain fields
            let strict = of_manifest || message.name().ends_with("Request") || message.name() == "AgentRef";
            build = build.type_attribute(&path, "#[derive(serde::Serialize, serde::Deserialize)]");
            build = build.type_attribute(&path, if strict { "#[serde(default, deny_unknown_fields)]" } else { "#[serde(default)]" });
            for field in &message.field {
                let short = format!("{}.{}", message.name(), field.name());
                let place = format!("{PACKAGE}.{short}");
                let list = field.label() == prost_types::field_descriptor_proto::Label::Repeated;
                let entry = field.type_name().rsplit('.').next().unwrap_or_default();
                let map = message.nested_type.iter().any(|n| n.name() == entry && n.options.as_ref().is_some_and(|o| o.map_entry()));
                let mut with = |attribute: &str| {
                    build = std::mem::replace(&mut build, tonic_prost_build::configure()).field_attribute(&place, attribute)
                };
                if JSON_FIELDS.contains(&short.as_str()) {
                    with("#[serde(with = \"crate::api::json::free\", skip_serializing_if = \"Option::is_none\")]");
                } else if map {
                    with("#[serde(skip_serializing_if = \"std::collections::BTreeMap::is_empty\")]");
                } else if short == "ResolveRequest.scopes" || short == "SubmitRequest.scopes" {
                    with("#[serde(with = \"crate::api::json::scopes\", skip_serializing_if = \"Option::is_none\")]");
                } else if short == "ResolveBatchRequest.requests" {
                    with("#[serde(deserialize_with = \"crate::api::json::batch\")]");
                } else if field.proto3_optional() || field.r#type() == prost_types::field_descriptor_proto::Type::Message && !list {
                    with("#[serde(skip_serializing_if = \"Option::is_none\")]");
                    if strict && !of_manifest && field.r#type() == prost_types::field_descriptor_proto::Type::Message {
                        with("#[serde(deserialize_with = \"crate::api::json::object\")]");
                    }
                } else if list
                    && (strict
                        || matches!(
                            short.as_str(),
                            "Candidate.terms"
                                | "Candidate.evidence"
                                | "Reply.parts"
                                | "Message.log"
                                | "Message.failed"
                                | "Message.rejected"
                        ))
                {
                    with("#[serde(skip_serializing_if = \"Vec::is_empty\")]");
                }
            }
        }
    }
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    config.btree_map(["."]);
    build.compile_fds_with_config(set, config)?;
    Ok(())
}

/// The demonstration fleet as a list of (name, text), so that it travels with the program.
fn fleet(out: &std::path::Path) -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=datasets/fleet");
    let mut folders = vec![PathBuf::from("datasets/fleet")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut text = String::from("&[\n");
    for file in files {
        let whole = std::fs::canonicalize(&file)?;
        text.push_str(&format!("({:?}, include_str!({:?})),\n", file.display().to_string(), whole.display().to_string()));
    }
    text.push_str("]\n");
    std::fs::File::create(out.join("fleet.rs")).and_then(|mut f| std::io::Write::write_all(&mut f, text.as_bytes()))
}
