//! The demonstration: registers the fleet of `datasets/`, asks three questions, shows the answers with their reasons.

use super::parts::Parts;
use crate::api::Doors;
use crate::api::pb;
use crate::api::service::{Call, Door, Service};
use crate::cli::{Failure, Out, answer, say};
use crate::ingest::{Awaited, files};
use crate::types::manifest_check::Rules;
use crate::types::{Manifest, Principal};
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

/// Agents registered between two publications: queries are served in between, and one sees it go on.
const PIECE: usize = 4;

/// The demonstration, read and announced: from here on nothing is ready until its fleet can be found.
pub struct Demo {
    fleet: Vec<Manifest>,
    awaited: Awaited,
}

impl Demo {
    /// Reads the fleet.
    pub fn read(parts: &Parts) -> Result<Self, Failure> {
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
        let count = read.manifests.iter().map(|m| m.capabilities.len()).sum();
        Ok(Self { fleet: read.manifests, awaited: parts.ingest.await_many(count) })
    }

    /// Runs it against a serving process.
    pub async fn run(mut self, parts: &Parts, service: &Arc<Service>, doors: &Doors, out: &Out) -> Result<(), Failure> {
        let (agents, count) = (self.fleet.len(), self.fleet.iter().map(|m| m.capabilities.len()).sum::<usize>());
        say(&format!("registering the demo fleet: {agents} agents with {count} capabilities"));
        let (mut embedded, mut changed) = (0, 0);
        for piece in self.fleet.chunks(PIECE) {
            let batch = parts.ingest.register_many(&Principal::local("demo"), piece.to_vec()).await?;
            for (agent, error) in &batch.refused {
                say(&format!("{agent}: {error}"));
            }
            embedded += batch.embedded;
            changed += batch.changed;
            self.awaited.came(piece.iter().map(|m| m.capabilities.len()).sum());
        }
        drop(self);
        say(&format!("{embedded} texts embedded, {changed} agents changed"));
        super::serve::ready(parts, service).await?;
        ask(service, doors, out).await
    }
}

async fn ask(service: &Arc<Service>, doors: &Doors, out: &Out) -> Result<(), Failure> {
    let call = Call { who: Principal::local("demo"), door: Door::Http, deadline: None, trace: None };
    for question in QUESTIONS {
        let request = pb::ResolveRequest { query: question.into(), k: Some(3), ..pb::ResolveRequest::default() };
        let response = service.resolve(&call, request).await?;
        out.line(&format!("\n> {question}\n{}", answer(&response, false, out.terminal)))?;
    }
    out.line("")?;
    say(&format!(
        "ready; ask for yourself: reach resolve \"…\" --server http://{}   (or POST {{\"query\": \"…\"}} to http://{}/v1/resolve)",
        doors.http, doors.http
    ));
    Ok(())
}
