//! The demonstration: registers the fleet of `datasets/`, asks three questions, shows the answers with their reasons.

use super::parts::Parts;
use crate::api::Doors;
use crate::api::pb;
use crate::api::service::{Call, Door, Service};
use crate::cli::{Failure, Out, answer, say};
use crate::ingest::files;
use crate::types::Principal;
use crate::types::manifest_check::Rules;
use std::path::PathBuf;
use std::sync::Arc;

/// What is asked: Chinese, English, and something that nobody here does.
const QUESTIONS: [&str; 3] =
    ["上周买的鞋子尺码不合适，想换大一号的", "where is my parcel, it has not moved for three days", "what is the capital of Iceland?"];

/// The fleet travels with the program, so that the demonstration runs from any folder.
const FLEET: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/fleet.rs"));

fn folder() -> Option<PathBuf> {
    let beside = PathBuf::from("datasets/fleet");
    beside.is_dir().then_some(beside)
}

/// Runs the demonstration against a serving process.
pub async fn run(parts: &Parts, service: &Arc<Service>, doors: &Doors, out: &Out) -> Result<(), Failure> {
    let read = match folder() {
        Some(folder) => files::read(&folder, &Rules::default())?,
        None => {
            let mut all = files::FromFiles::default();
            for (name, text) in FLEET {
                let one = files::read_text(name, text.as_bytes(), &Rules::default());
                all.manifests.extend(one.manifests);
                all.faults.extend(one.faults);
            }
            all
        }
    };
    for fault in &read.faults {
        say(&format!("datasets/fleet: {fault}"));
    }
    let count: usize = read.manifests.iter().map(|m| m.capabilities.len()).sum();
    say(&format!("registering the demo fleet: {} agents with {count} capabilities", read.manifests.len()));
    let batch = parts.ingest.register_many(&Principal::local("demo"), read.manifests).await?;
    for (agent, error) in &batch.refused {
        say(&format!("{agent}: {error}"));
    }
    say(&format!("{} texts embedded, {} agents changed", batch.embedded, batch.changed));
    let call = Call { who: Principal::local("demo"), door: Door::Http, deadline: None };
    for question in QUESTIONS {
        let request = pb::ResolveRequest { query: question.into(), k: Some(3), ..pb::ResolveRequest::default() };
        let response = service.resolve(&call, request).await?;
        out.line(&format!("\n> {question}\n{}", answer(&response, false, out.terminal)))?;
    }
    out.line("")?;
    say(&format!(
        "ask for yourself: reach resolve \"…\" --server http://{}   (or POST {{\"query\": \"…\"}} to http://{}/v1/resolve)",
        doors.http, doors.http
    ));
    Ok(())
}
