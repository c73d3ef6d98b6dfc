//! Replay: history decided again under other settings, through the same pure functions, and what each setting would have been worth.
//!
//! In: logged decisions in order of time ([`entry`]), what became of them ([`labels`]), settings to try ([`settings`]). Out: a [`report::Report`].
//! Recall once, pick many: the log holds every shortlist at its time and state, so a setting costs one `pick` a decision. The log is streamed:
//! memory does not grow with it. Deterministic: the same input and seed give the same bytes.
//! Not here: routing queries that were never logged (`eval::run`), files and progress (`app`).

pub mod aim;
pub mod entry;
pub mod figures;
pub mod gate;
pub mod labels;
pub mod page;
pub mod recommend;
pub mod report;
pub mod settings;
pub mod table;
pub mod tally;
pub mod told;
pub mod tried;

use crate::error::Error;
use crate::types::AgentKey;
use crate::types::policy::Policy;
use entry::{Entry, Once, Raw};
use labels::Labels;
use rayon::prelude::*;
use report::Report;
use settings::Setting;
use std::collections::{BTreeSet, HashSet};
use tally::{Row, Tally};

/// Log lines decided side by side between two steps of the progress.
pub(super) const BATCH: usize = 512;

/// How to replay.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of the split and of the bounds.
    pub seed: u64,
    /// Share of the requests that settings are not chosen on. Range 0..1; 0 = none.
    pub holdout: f64,
    /// What is wanted of a setting.
    pub aim: aim::Aim,
    /// Moved decisions shown for a setting.
    pub moves: usize,
    /// What was swept, for the report.
    pub swept: Vec<settings::Sweep>,
}

/// Decides every entry under every setting. `tick` is called with the number of entries done since the last call.
pub fn replay(
    source: impl Iterator<Item = Result<Raw, Error>>,
    labels: &Labels,
    current: &Policy,
    tried: Vec<Setting>,
    config: &Config,
    mut tick: impl FnMut(usize),
) -> Result<Report, Error> {
    let mut tally = Tally::new(settings::with_base(current, tried), config);
    let mut seen = Seen::default();
    let mut source = source.peekable();
    while source.peek().is_some() {
        let batch: Vec<Raw> = source.by_ref().take(BATCH).collect::<Result<_, _>>()?;
        let wanted = tally.wants_moves();
        let rows: Vec<Result<(Row, About), Error>> = batch
            .into_par_iter()
            .map(|raw| {
                let entry: Entry = raw.entry()?;
                let truth = labels.of(&entry);
                let row = tally.judge(&entry, &truth, &wanted);
                let agents = if labels.is_empty() { Vec::new() } else { candidates(&entry) };
                Ok((row, About { agents, labels: labels.about(&entry), contradicted: truth.contradicted, id: entry.id }))
            })
            .collect();
        let n = rows.len();
        for row in rows {
            let (row, about) = row?;
            if seen.take(about) {
                tally.add(row);
            }
        }
        tick(n);
    }
    let mut report = report::of(tally, labels, &seen.labels, config)?;
    report.unknown_agents = labels.strangers(&seen.agents).into_iter().collect();
    report.notes.extend(seen.told(labels));
    Ok(report)
}

/// What of an entry is about the input as a whole.
struct About {
    id: String,
    agents: Vec<String>,
    labels: Vec<usize>,
    contradicted: bool,
}

/// What the entries so far had in them.
#[derive(Default)]
struct Seen {
    once: Once,
    agents: BTreeSet<String>,
    labels: HashSet<usize>,
    contradicted: u64,
    /// The first of those.
    example: Option<String>,
}

impl Seen {
    /// Notes an entry; whether it is to be counted.
    fn take(&mut self, about: About) -> bool {
        if !self.once.first(&about.id) {
            return false;
        }
        self.agents.extend(about.agents);
        self.labels.extend(about.labels);
        self.contradicted += u64::from(about.contradicted);
        if about.contradicted && self.example.is_none() {
            self.example = Some(about.id);
        }
        true
    }

    /// In words.
    fn told(&self, labels: &Labels) -> Vec<String> {
        let contradicted = self.example.as_ref().map(|id| {
            format!("{} decisions are labelled twice with different answers, such as {id}: the later line holds", self.contradicted)
        });
        [self.once.told(), labels.unfit(&self.labels), contradicted].into_iter().flatten().collect()
    }
}

/// Agents that were candidates of a decision, each once, dropped ones too.
fn candidates(entry: &Entry) -> Vec<String> {
    let list = &entry.logged.shortlist;
    let mut agents: Vec<&AgentKey> = list.items.iter().map(|i| &i.agent).chain(list.dropped.iter().map(|d| &d.agent)).collect();
    agents.sort_unstable();
    agents.dedup();
    agents.into_iter().map(ToString::to_string).collect()
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
