//! What shared history is worth: the same questions before and after an outcome log was reported, by callers it knows and by strangers.
//!
//! In: a fleet, an outcome log, ambiguous requests with their callers, plain requests. Out: top-1 before and after, and how many answers to
//! strangers changed (must be none). Only the history takes part: the heads are not trained on the log. Deterministic.

use crate::error::Error;
use crate::eval::outcomes::Line;
use crate::eval::queries::Labelled;
use crate::eval::run::Bench;
use serde::Serialize;

/// Top-1 before and after.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Requests.
    pub n: usize,
    /// Share with a right answer first, before.
    pub before: f64,
    /// The same after.
    pub after: f64,
    /// Requests whose list of candidates, scores or decision changed at all.
    pub changed: usize,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Outcomes reported.
    pub outcomes: usize,
    /// Ambiguous requests by the callers they came from.
    pub known: Change,
    /// The same by a caller nobody knows.
    pub unknown: Change,
    /// Plain requests, each by a known caller in turn.
    pub plain: Change,
    /// Plain requests by a caller nobody knows.
    pub plain_unknown: Change,
}

/// Callers and tenants of a log, in order of first appearance.
fn callers(lines: &[Line]) -> Vec<(Option<String>, Option<String>)> {
    let mut found: Vec<(Option<String>, Option<String>)> = Vec::new();
    for line in lines.iter().filter(|l| l.caller.is_some()) {
        let pair = (line.caller.clone(), line.tenant.clone());
        if !found.contains(&pair) {
            found.push(pair);
        }
    }
    found
}

/// The decision as text, but for what differs by nature.
fn fingerprint(asked: &crate::eval::run::Asked) -> String {
    let mut decision = asked.decision.clone();
    decision.decision_id.clear();
    format!("{decision:?}")
}

async fn round(bench: &Bench, queries: &[Labelled], k: usize) -> Result<Vec<(bool, String)>, Error> {
    let mut out = Vec::with_capacity(queries.len());
    for (i, query) in queries.iter().enumerate() {
        let asked = bench.ask(query, 7 + i as u64, k).await?;
        let right =
            asked.decision.candidates.first().is_some_and(|c| {
                query.expected.iter().any(|(agent, capability)| *agent == *c.agent.agent_id && *capability == *c.capability)
            });
        out.push((right, fingerprint(&asked)));
    }
    Ok(out)
}

fn change(before: &[(bool, String)], after: &[(bool, String)]) -> Change {
    let share = |r: &[(bool, String)]| r.iter().filter(|(right, _)| *right).count() as f64 / r.len().max(1) as f64;
    let changed = before.iter().zip(after).filter(|(a, b)| a.1 != b.1).count();
    Change { n: before.len(), before: share(before), after: share(after), changed }
}

/// Runs it. `ambiguous` carry their callers; `plain` are asked by the log's callers in turn.
pub async fn run(bench: &mut Bench, lines: Vec<Line>, ambiguous: Vec<Labelled>, plain: Vec<Labelled>) -> Result<Report, Error> {
    let callers = callers(&lines);
    // everything is asked at the end of the log
    bench.at = lines.iter().filter_map(|l| l.at.clone()).max_by_key(|t| t.parse::<jiff::Timestamp>().ok());
    let in_scope = |q: &Labelled| !q.expected.is_empty();
    let plain: Vec<Labelled> = plain.into_iter().filter(in_scope).collect();
    let as_stranger = |q: &Labelled| Labelled { caller: Some("stranger".into()), ..q.clone() };
    let by_known = plain.iter().zip(callers.iter().cycle()).map(|(q, (caller, tenant))| Labelled {
        caller: caller.clone(),
        tenant: tenant.clone(),
        ..q.clone()
    });
    let sets: [Vec<Labelled>; 4] =
        [ambiguous.clone(), ambiguous.iter().map(as_stranger).collect(), by_known.collect(), plain.iter().map(as_stranger).collect()];
    let mut before = Vec::new();
    for set in &sets {
        before.push(round(bench, set, 5).await?);
    }
    let outcomes = bench.remember(lines).await?;
    let mut changes = Vec::new();
    for (set, before) in sets.iter().zip(&before) {
        changes.push(change(before, &round(bench, set, 5).await?));
    }
    let mut next = changes.into_iter();
    let mut take = || next.next().unwrap_or_default();
    Ok(Report { outcomes, known: take(), unknown: take(), plain: take(), plain_unknown: take() })
}
