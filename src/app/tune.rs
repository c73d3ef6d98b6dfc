//! `reach tune`: opens the history, fits, prints.

use super::replay::{History, aim, open};
use crate::cli::{Exit, Failure, Out, Replay, Tune, Won, say};
use crate::config::Config;
use crate::error::Error;
use crate::eval::replay::entry::{Entry, Once};
use crate::eval::replay::figures::Figures;
use crate::eval::replay::{self};
use crate::eval::tune::{self, Tuned};
use rayon::prelude::*;
use std::collections::{HashSet, VecDeque};

fn figures(f: &Figures) -> String {
    let p = |s: Option<replay::figures::Share>| s.map_or("–".into(), |s| format!("{:.1} %", s.value * 100.0));
    format!("auto {}, precision {}, miss {}, wrong {}, top-1 {}", p(f.auto), p(f.auto_precision), p(f.miss), p(f.wrong), p(f.top1))
}

fn text(tuned: &Tuned) -> String {
    let mut out = vec![
        format!("{} labelled decisions, {} distinct requests; models {}", tuned.decisions, tuned.requests, tuned.models.join(", ")),
        format!("aim: {}", tuned.aim),
    ];
    for part in &tuned.parts {
        out.push(String::new());
        out.push(format!("{}: {}", part.part, if part.kept { "kept" } else { "not kept" }));
        out.push(format!("  {}", part.why));
        out.push(format!("  fitted on, before: {}", figures(&part.before)));
        out.push(format!("  fitted on, after:  {}", figures(&part.after)));
        out.push(format!("  held out, before:  {}", figures(&part.held_before)));
        out.push(format!("  held out, after:   {}", figures(&part.held_after)));
    }
    for note in &tuned.notes {
        out.push(format!("note: {note}"));
    }
    out.push(String::new());
    out.push(if tuned.change.is_empty() {
        "nothing won".into()
    } else {
        format!("to apply: {}", serde_json::to_string(&tuned.change).unwrap_or_default())
    });
    out.join("\n")
}

/// The last labelled entries of a history, in memory.
fn entries(history: &History, limit: usize) -> Result<Vec<Entry>, Error> {
    let mut kept: VecDeque<Entry> = VecDeque::new();
    let (mut once, mut about) = (Once::default(), HashSet::new());
    let mut source = history.entries()?.peekable();
    while source.peek().is_some() {
        let batch: Vec<_> = source.by_ref().take(512).collect::<Result<_, _>>()?;
        let parsed: Vec<Entry> = batch.into_par_iter().map(replay::entry::Raw::entry).collect::<Result<_, _>>()?;
        for entry in parsed {
            if once.first(&entry.id) {
                about.extend(history.labels.about(&entry));
                kept.extend(Some(entry).filter(|e| history.labels.of(e).is_known()));
            }
        }
        while kept.len() > limit {
            kept.pop_front();
        }
    }
    for told in [once.told(), history.labels.unfit(&about)].into_iter().flatten() {
        say(&format!("warning: {told}"));
    }
    Ok(kept.into())
}

/// Runs a tuning. Returns what is to be applied, and why.
pub async fn run(config: Config, command: &Tune, out: &Out) -> Result<Won, Failure> {
    if !(0.1..0.9).contains(&command.holdout) {
        return Err(Failure::words(format!("--holdout {}: write a share from 0.1 to 0.9; without one nothing could win", command.holdout)));
    }
    let wanted = aim(command.aim.as_ref())?;
    let history_args = Replay {
        log: command.log.clone(),
        labels: command.labels.clone(),
        manifests: command.manifests.clone(),
        split: command.split.clone(),
        cache: command.cache.clone(),
        seed: command.seed,
        ..Replay::default()
    };
    let (history, current) = open(&config, &history_args).await?;
    let settings = replay::Config { seed: command.seed, holdout: command.holdout, aim: wanted.clone(), moves: 0, swept: Vec::new() };
    let tuned = tokio::task::block_in_place(|| -> Result<Tuned, Error> {
        let entries = entries(&history, command.limit)?;
        tune::tune(&entries, &history.labels, &current, &wanted, &settings, |what| say(&format!("fitting {what}")))
    })?;
    if out.json {
        out.json(&tuned)?
    } else {
        out.line(&text(&tuned))?
    }
    let won = !tuned.change.is_empty();
    let kept: Vec<&str> = tuned.parts.iter().filter(|p| p.kept).map(|p| p.part.as_str()).collect();
    let why = format!("{} on {} distinct requests, for {}", kept.join(", "), tuned.requests, tuned.aim);
    Ok(Won { exit: if won { Exit::Ok } else { Exit::Negative }, change: won.then_some(tuned.change), why, fitted_on: tuned.models })
}
