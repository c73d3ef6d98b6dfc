//! Teaches a fleet from a file before it is asked: labelled queries or an outcome log, through the same reports as a live node takes.
//!
//! In: JSON lines, either labelled queries (`query`, `expected`; an empty list = nobody can do it) or outcomes (`query`, `chosen`, `outcome`,
//! `correct`, `caller`, `tenant`, `previous`, `at`). Out: what was reported and learned. A seed draws at most so many queries a capability.
//! Not here: learning (`ingest::learn`).

use crate::config::files::read_text;
use crate::error::Error;
use crate::eval::queries;
use crate::ingest::{Ingest, Lesson};
use crate::route::dice::Dice;
use crate::types::outcome::Report;
use crate::types::principal::Grant;
use crate::types::{AgentKey, Fault, Principal};
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Reports sent at once.
const CHUNK: usize = 256;

/// One line of a file of outcomes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Line {
    /// The request.
    pub query: String,
    /// Right answers as (agent id, capability); an empty list = nobody.
    pub expected: Option<Vec<(String, String)>>,
    /// What was chosen, as (agent id, capability).
    pub chosen: Option<(String, String)>,
    /// How it turned out.
    pub outcome: Option<String>,
    /// What would have been right.
    pub correct: Option<(String, String)>,
    /// Split of a labelled query.
    pub split: Option<String>,
    /// Who asked.
    pub caller: Option<String>,
    /// Their tenant.
    pub tenant: Option<String>,
    /// Capability used before.
    pub previous: Option<String>,
    /// When, RFC 3339.
    pub at: Option<String>,
}

/// Which lines are taken.
#[derive(Clone, Debug)]
pub struct Take<'a> {
    /// Only labelled queries of this split; lines without one are always taken.
    pub split: &'a str,
    /// At most so many labelled queries a capability.
    pub per_capability: Option<usize>,
    /// Seed of the draw.
    pub seed: u64,
}

/// What was taught.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Taught {
    /// Outcomes reported.
    pub outcomes: usize,
    /// Of them, reports that nobody can do it.
    pub negatives: usize,
    /// Outcomes that were refused, as what they name is not in the fleet.
    pub unknown: usize,
    /// Capabilities that something was learned of.
    pub classes: usize,
    /// Texts of all heads.
    pub texts: usize,
    /// Labels that the others contradict.
    pub doubted: usize,
}

/// Reads a file; faults name their lines.
pub fn read(path: &Path) -> Result<Vec<Line>, Error> {
    let text =
        read_text(path).map_err(|e| Error::invalid_at(&path.display().to_string(), "a readable JSONL file of outcomes", e.to_string()))?;
    let (mut lines, mut faults) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let why = match serde_json::from_str::<Line>(line) {
            Ok(l) if l.expected.is_some() || l.outcome.is_some() => {
                lines.push(l);
                continue;
            }
            Ok(_) => "it has neither expected nor outcome".to_string(),
            Err(e) => e.to_string(),
        };
        faults.push(Fault::new(format!("{}:{}", path.display(), i + 1), "query with expected, or with chosen and outcome", why));
        if faults.len() >= 20 {
            break;
        }
    }
    if lines.is_empty() && faults.is_empty() {
        return Err(Error::invalid_at(&path.display().to_string(), "at least one outcome", "the file is empty"));
    }
    if faults.is_empty() { Ok(lines) } else { Err(Error::invalid(faults)) }
}

/// What of a file is learned from: labelled queries of `split` (`train` when not said), at most `per_capability` each; all of an outcome log, which has
/// neither splits nor a draw. Nothing left is an error.
pub fn chosen(lines: Vec<Line>, split: Option<&str>, per_capability: Option<usize>, seed: u64) -> Result<Vec<Line>, Error> {
    let fault = |flag: &str, expected: &str, hint: String| Err(Error::invalid_at(flag, expected, hint));
    let there = queries::splits(lines.iter().filter(|l| l.outcome.is_none()).filter_map(|l| l.split.as_deref()));
    if lines.iter().all(|l| l.outcome.is_some()) {
        let given = [("--outcomes-split", split.is_some()), ("--per-capability", per_capability.is_some())];
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            return fault(flag, "labelled queries as --outcomes", "an outcome log is learned from whole".into());
        }
    }
    let split = split.unwrap_or("train");
    let taken = take(lines, &Take { split, per_capability, seed });
    if taken.is_empty() {
        return fault("--outcomes-split", &format!("at least one labelled query of split {split:?}"), there);
    }
    Ok(taken)
}

/// Draws labelled queries, at most so many a capability; other lines stay as they are.
pub fn take(mut lines: Vec<Line>, how: &Take<'_>) -> Vec<Line> {
    lines.retain(|l| l.outcome.is_some() || l.split.as_deref().is_none_or(|s| s == how.split));
    let Some(most) = how.per_capability else { return lines };
    let mut dice = Dice::new(how.seed);
    for i in (1..lines.len()).rev() {
        let j = (dice.roll() % (i as u64 + 1)) as usize;
        lines.swap(i, j);
    }
    let mut taken: HashMap<(String, String), usize> = HashMap::new();
    lines.retain(|l| match l.expected.as_ref().and_then(|e| e.first()) {
        Some(first) => {
            let n = taken.entry(first.clone()).or_default();
            *n += 1;
            *n <= most
        }
        None => true,
    });
    lines
}

fn report(view: &HashMap<Arc<str>, AgentKey>, line: Line) -> Option<Report> {
    let pair = |p: Option<(String, String)>| match p {
        Some((agent, capability)) => view.get(agent.as_str()).map(|key| Some((key.clone(), capability))),
        None => Some(None),
    };
    let base = Report {
        query: Some(line.query),
        caller: line.caller,
        tenant: line.tenant,
        previous: line.previous,
        at: line.at,
        ..Report::default()
    };
    match line.outcome {
        Some(verdict) => Some(Report { verdict, chosen: pair(line.chosen)?, correct: pair(line.correct)?, ..base }),
        None => match line.expected.unwrap_or_default().into_iter().next() {
            Some(first) => Some(Report { verdict: "adopted".into(), chosen: pair(Some(first))?, ..base }),
            None => Some(Report { verdict: "nobody".into(), ..base }),
        },
    }
}

/// Reports the lines and learns from them.
pub async fn teach(view: &View, ingest: &Ingest, lines: Vec<Line>) -> Result<Taught, Error> {
    let mut taught = report_all(view, ingest, lines).await?;
    let lesson = learn(ingest).await?;
    (taught.classes, taught.texts, taught.doubted) = (lesson.classes, lesson.texts, lesson.doubted);
    Ok(taught)
}

/// Reports the lines.
pub async fn report_all(view: &View, ingest: &Ingest, lines: Vec<Line>) -> Result<Taught, Error> {
    let agents: HashMap<Arc<str>, AgentKey> =
        view.catalog.capabilities().map(|c| (c.agent.key.agent_id.clone(), c.agent.key.clone())).collect();
    let mut taught = Taught::default();
    let mut reports = Vec::new();
    for line in lines {
        match report(&agents, line) {
            Some(r) => reports.push(r),
            None => taught.unknown += 1,
        }
    }
    let who = Principal::local("eval");
    for chunk in reports.chunks(CHUNK) {
        for (answer, report) in ingest.report(&who, chunk.to_vec()).await.into_iter().zip(chunk) {
            match answer {
                Ok(_) => {
                    taught.outcomes += 1;
                    taught.negatives += usize::from(report.verdict == "nobody");
                }
                Err(e) if e.code == crate::error::Code::NotFound => taught.unknown += 1,
                Err(e) => return Err(e),
            }
        }
    }
    Ok(taught)
}

/// Learns for the caller of an evaluation, who sees everything.
pub async fn learn(ingest: &Ingest) -> Result<Lesson, Error> {
    ingest.learn_for([Grant::All]);
    ingest.learn(Arc::new(|| true)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(query: &str, expected: &[(&str, &str)], split: &str) -> Line {
        let expected = expected.iter().map(|(a, c)| (a.to_string(), c.to_string())).collect();
        Line { query: query.into(), expected: Some(expected), split: Some(split.into()), ..Line::default() }
    }

    #[test]
    fn at_most_so_many_are_drawn_and_always_the_same() {
        let mut all: Vec<Line> = (0..20).map(|i| line(&format!("q{i}"), &[("a", if i % 2 == 0 { "x" } else { "y" })], "train")).collect();
        all.push(line("test", &[("a", "x")], "test"));
        all.push(line("nobody", &[], "train"));
        let how = Take { split: "train", per_capability: Some(3), seed: 7 };
        let some = take(all.clone(), &how);
        assert_eq!(some.len(), 7);
        assert!(some.iter().any(|l| l.query == "nobody") && some.iter().all(|l| l.query != "test"));
        let texts = |l: &[Line]| l.iter().map(|l| l.query.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&some), texts(&take(all.clone(), &how)));
        assert_ne!(texts(&some), texts(&take(all, &Take { seed: 8, ..how })));
    }

    #[test]
    fn nothing_to_learn_from_is_an_error_and_no_flag_is_passed_over() {
        let all = vec![line("q", &[("a", "x")], "dev"), line("r", &[("a", "x")], "test")];
        let e = chosen(all.clone(), None, None, 7).unwrap_err().to_string();
        assert!(e.contains("\"train\"") && e.contains("dev, test"), "{e}");
        assert_eq!(chosen(all.clone(), Some("dev"), Some(1), 7).unwrap().len(), 1);
        let log = vec![Line { query: "q".into(), outcome: Some("adopted".into()), ..Line::default() }];
        assert_eq!(chosen(log.clone(), None, None, 7).unwrap().len(), 1);
        for (split, most, flag) in [(Some("dev"), None, "--outcomes-split"), (None, Some(3), "--per-capability")] {
            let e = chosen(log.clone(), split, most, 7).unwrap_err().to_string();
            assert!(e.contains(flag) && e.contains("outcome log"), "{e}");
        }
    }

    #[test]
    fn lines_become_reports() {
        let key = AgentKey::local(crate::types::Namespace::new("n").unwrap(), "a");
        let agents = HashMap::from([(Arc::from("a"), key)]);
        assert_eq!(report(&agents, line("q", &[("a", "x")], "")).unwrap().verdict, "adopted");
        assert_eq!(report(&agents, line("q", &[], "")).unwrap().verdict, "nobody");
        assert!(report(&agents, line("q", &[("b", "x")], "")).is_none());
        let logged = Line {
            outcome: Some("overridden".into()),
            chosen: Some(("a".into(), "x".into())),
            correct: Some(("a".into(), "y".into())),
            ..Line::default()
        };
        assert!(report(&agents, logged).unwrap().correct.is_some());
    }
}
