//! What callers and agents say about decisions: checked, stored, remembered at once in the history, learned from in the background.
//!
//! In: a principal and reports. Out: receipts; pages of what is kept; how many were forgotten. Invariants: what is answered is durable; a
//! capability that the principal can't see is refused in the same words as one that is not there; a decision of another caller does not exist;
//! a principal reads its own reports and those about agents of its namespaces, and forgets its own; the one local principal may do all.
//! Not here: what is learned (`history`), when (`ingest::learn`).

use super::Ingest;
use crate::error::{Code, Error};
use crate::store::OutcomeQuery;
use crate::types::outcome::{CapKey, Outcome, OutcomeFilter, OutcomePage, Report, Verdict};
use crate::types::principal::Grant;
use crate::types::text::{self, fold_name};
use crate::types::{AgentKey, Fault, Principal};
use crate::view::View;
use std::sync::Arc;
use std::time::Duration;

/// Characters of a text that are kept.
const TEXT_CHARS: usize = 8192;
/// Characters of names and ids.
const NAME_CHARS: usize = 128;
/// How far ahead of our clock a report may be, milliseconds.
const AHEAD_MS: i64 = 5 * 60 * 1000;
/// Outcomes of a page.
const PAGE: u32 = 100;

/// A receipt of an agent, for what learns from deliveries.
#[derive(Clone, Debug)]
pub struct ReceiptEvent {
    /// Decision behind the delivery.
    pub decision_id: String,
    /// Who received it.
    pub agent: AgentKey,
    /// For which capability, as written.
    pub capability: String,
    /// `acked` or `rejected`, or `timeout` for every other end.
    pub verdict: Verdict,
    /// When, milliseconds since the epoch.
    pub at_ms: i64,
    /// What was asked in words, as the decision read it; absent when texts are not kept.
    pub text: Option<String>,
    /// Who asked.
    pub caller: String,
    /// Their tenant.
    pub tenant: Option<String>,
    /// Capability that they used before.
    pub previous: Option<String>,
}

fn name(text: &str) -> Option<String> {
    let cleaned = text::clean(text);
    let cleaned = cleaned.trim();
    (!cleaned.is_empty()).then(|| cleaned.chars().take(NAME_CHARS).collect())
}

/// What a principal sees, as text.
pub(super) fn scope_of(who: &Principal) -> String {
    match &who.namespaces {
        Grant::All => "*".into(),
        Grant::Only(names) => names.iter().map(|n| &**n).collect::<Vec<_>>().join(","),
    }
}

/// What the decision log is behind at most when it keeps up: who reports at once is not told that there was no such decision.
const LOG_LAG: Duration = Duration::from_millis(100);

/// The end of a delivery as an outcome.
fn ended(event: ReceiptEvent) -> Outcome {
    let subject = CapKey::new(event.agent, &event.capability);
    Outcome {
        id: event.decision_id.clone(),
        at_ms: event.at_ms,
        decision_id: Some(event.decision_id),
        text: event.text,
        tenant: event.tenant,
        caller: event.caller,
        reporter: format!("agent:{}", subject.agent),
        own: true,
        scope: String::new(),
        verdict: event.verdict,
        chosen: Some(subject),
        correct: None,
        previous: event.previous.map(|p| fold_name(&p)),
    }
}

impl Ingest {
    /// Takes reports; each is answered for itself with the id it is kept under.
    pub async fn report(&self, who: &Principal, reports: Vec<Report>) -> Vec<Result<String, Error>> {
        let view = self.views.load();
        let mut checked: Vec<Result<Outcome, Error>> = reports.iter().map(|r| self.outcome(&view, who, r.clone())).collect();
        let unknown =
            |r: &Report, c: &Result<Outcome, Error>| r.decision_id.is_some() && c.as_ref().is_err_and(|e| e.code == Code::NotFound);
        if reports.iter().zip(&checked).any(|(report, checked)| unknown(report, checked)) {
            tokio::time::sleep(LOG_LAG).await;
            for (report, checked) in reports.into_iter().zip(&mut checked).filter(|(report, checked)| unknown(report, checked)) {
                *checked = self.outcome(&view, who, report);
            }
        }
        let good: Vec<Outcome> = checked.iter().filter_map(|r| r.as_ref().ok()).cloned().collect();
        let stored = if good.is_empty() { Ok(()) } else { self.keep(good).await };
        checked
            .into_iter()
            .map(|r| match (&stored, r) {
                (_, Err(e)) => Err(e),
                (Err(e), Ok(_)) => Err(e.clone()),
                (Ok(()), Ok(o)) => Ok(o.id),
            })
            .collect()
    }

    /// Takes ends of deliveries, in one write. Their agents speak for themselves, so what they praise counts only up to a bound. Answers how many were kept.
    pub async fn delivered(&self, events: Vec<ReceiptEvent>) -> Result<usize, Error> {
        let outcomes: Vec<Outcome> = events.into_iter().map(ended).collect();
        let kept = outcomes.len();
        if kept > 0 {
            self.store.put_outcomes_beside(outcomes.clone()).await?;
            self.learn_of(&outcomes);
        }
        Ok(kept)
    }

    async fn keep(&self, outcomes: Vec<Outcome>) -> Result<(), Error> {
        self.store.put_outcomes(outcomes.clone()).await?;
        self.learn_of(&outcomes);
        Ok(())
    }

    fn learn_of(&self, outcomes: &[Outcome]) {
        self.remember(outcomes);
        // heads learn from texts: what was asked for by name changes the history alone
        if outcomes.iter().any(|o| o.text.as_deref().is_some_and(|t| !t.trim().is_empty())) {
            self.learning.ring();
        }
    }

    fn outcome(&self, view: &View, who: &Principal, report: Report) -> Result<Outcome, Error> {
        let mut faults = Vec::new();
        let now = self.clock.now_ms();
        let verdict = Verdict::parse(&report.verdict);
        if verdict.is_none() {
            let known: Vec<&str> = Verdict::ALL.iter().map(|v| v.as_str()).collect();
            faults.push(Fault::new("/verdict", known.join(", "), "say how it turned out"));
        }
        let at_ms = match report.at.as_deref().filter(|t| !t.is_empty()).map(str::parse::<jiff::Timestamp>) {
            None => now,
            Some(Ok(at)) if at.as_millisecond() <= now + AHEAD_MS => at.as_millisecond(),
            Some(_) => {
                faults.push(Fault::new("/at", "a time in RFC 3339 that is not in the future", "leave it out for now"));
                now
            }
        };
        // the decision of somebody else does not exist
        let local = who.namespaces == Grant::All;
        let logged = match report.decision_id.as_deref().filter(|d| !d.is_empty()) {
            None => None,
            Some(id) => match self.store.decision(id)?.filter(|d| local || d.caller == *who.caller) {
                Some(logged) => Some(logged),
                None => return Err(Error::not_found("decision")),
            },
        };
        let of_log = |pointer: &str| {
            let found = logged.as_ref().and_then(|l| l.body.pointer(pointer)).and_then(serde_json::Value::as_str);
            found.map(str::to_string)
        };
        let said = report.query.as_deref().map(text::clean).map(|t| t.trim().chars().take(TEXT_CHARS).collect::<String>());
        let words = said.filter(|t| !t.is_empty()).or_else(|| logged.as_ref().and_then(|l| l.text.clone()));
        if words.is_none() && logged.is_none() {
            faults.push(Fault::new("/query", "the request in words, or a decision_id", "say what the outcome is about"));
        }
        let chosen = match report.chosen {
            Some((agent, capability)) => Some(self.visible(view, who, &agent, &capability, "/capability")?),
            None => {
                // the log's first candidate is what was chosen
                let first = logged.as_ref().and_then(|l| l.body.pointer("/decision/candidates/0"));
                let agent = first.and_then(|c| serde_json::from_value::<AgentKey>(c["agent"].clone()).ok());
                let capability = first.and_then(|c| c["capability"].as_str().map(str::to_string));
                agent.zip(capability).map(|(agent, capability)| CapKey::new(agent, &capability))
            }
        };
        let correct = match report.correct {
            Some((agent, capability)) => Some(self.visible(view, who, &agent, &capability, "/correct_capability")?),
            None => None,
        };
        match verdict {
            Some(Verdict::Adopted | Verdict::Acked | Verdict::Modified | Verdict::Rejected | Verdict::Timeout) if chosen.is_none() => {
                faults.push(Fault::new("/capability", "the capability that was chosen, with its agent", "name agent and capability"));
            }
            Some(Verdict::Overridden) if chosen.is_none() && correct.is_none() => {
                faults.push(Fault::new("/correct_capability", "what was chosen, what would have been right, or both", "name one"));
            }
            Some(Verdict::Nobody) if correct.is_some() => {
                faults.push(Fault::new("/correct_capability", "nothing, as nobody fits", "leave it out, or say overridden"));
            }
            Some(_) | None => {}
        }
        let Some(verdict) = verdict.filter(|_| faults.is_empty()) else { return Err(Error::invalid(faults)) };
        let caller = report.caller.as_deref().filter(|_| local).and_then(name).or_else(|| logged.as_ref().map(|l| l.caller.clone()));
        let caller = caller.unwrap_or_else(|| who.caller.to_string());
        let tenant = report.tenant.as_deref().filter(|_| local).and_then(name).or_else(|| of_log("/principal/tenant"));
        let tenant = tenant.or_else(|| who.tenant.as_deref().map(str::to_string));
        let id = report.id.as_deref().and_then(name).or_else(|| logged.as_ref().map(|l| l.id.clone()));
        let chosen = if verdict == Verdict::Nobody { None } else { chosen };
        let reporter = if local { caller.clone() } else { who.caller.to_string() };
        let praised = if matches!(verdict, Verdict::Overridden | Verdict::Rejected) { &correct } else { &chosen };
        let own = praised.as_ref().is_some_and(|c| {
            let owner = view.catalog.agent(&c.agent).map(|a| a.entry.owner.clone());
            *c.agent.agent_id == *reporter || !local && owner.is_some_and(|o| *o == *who.caller)
        });
        Ok(Outcome {
            id: id.map_or_else(draw, Ok)?,
            at_ms,
            decision_id: logged.as_ref().map(|l| l.id.clone()),
            text: words,
            tenant,
            caller,
            reporter,
            own,
            scope: scope_of(who),
            verdict,
            chosen,
            correct,
            previous: report.previous.or_else(|| of_log("/previous")).as_deref().and_then(name).map(|p| fold_name(&p)),
        })
    }

    /// A capability that the principal sees. Hidden and absent ones are refused alike.
    fn visible(&self, view: &View, who: &Principal, agent: &AgentKey, capability: &str, pointer: &str) -> Result<CapKey, Error> {
        let folded = fold_name(capability);
        let known = view.catalog.agent(agent).filter(|a| who.sees(&agent.namespace, &a.entry.manifest.visible_to));
        let found = known.and_then(|a| a.slots.iter().filter_map(|s| view.cap(*s)).find(|c| c.is_called(&folded)));
        match found {
            Some(cap) => Ok(CapKey { agent: agent.clone(), capability: cap.folded().clone() }),
            None => {
                let fault = Fault::new(pointer, "a capability of an agent that you can see", "GET /v1/agents lists them");
                Err(Error { faults: vec![fault], ..Error::not_found("capability of that agent") })
            }
        }
    }

    fn query(&self, which: &OutcomeFilter) -> OutcomeQuery {
        let subject = which.agent.as_ref().map(|agent| match which.capability.as_deref().filter(|c| !c.is_empty()) {
            Some(capability) => CapKey::new(agent.clone(), capability).to_string(),
            None => format!("{agent}#"),
        });
        OutcomeQuery { subject, reporter: which.reporter.clone(), id: which.id.clone(), before_seq: None }
    }

    /// A page of what is kept and the principal may read: its own reports, and those about agents of its namespaces.
    pub fn outcomes(&self, who: &Principal, which: &OutcomeFilter, limit: Option<u32>, after: Option<&str>) -> Result<OutcomePage, Error> {
        let limit = limit.unwrap_or(PAGE);
        if !(1..=1000).contains(&limit) {
            return Err(Error::invalid_at("/limit", "a number from 1 to 1000", "leave it out for 100"));
        }
        if which.capability.is_some() && which.agent.is_none() {
            return Err(Error::invalid_at("/agent", "the agent of the capability", "name it as namespace/agent_id"));
        }
        let mut query = self.query(which);
        if let Some(after) = after.filter(|a| !a.is_empty()) {
            let seq = after.parse().map_err(|_| Error::invalid_at("/after", "the cursor `next` of the page before", "copy it"))?;
            query.before_seq = Some(seq);
        }
        let reads = |o: &Outcome| {
            let subjects = [&o.chosen, &o.correct];
            who.namespaces == Grant::All
                || o.reporter == *who.caller
                || subjects.iter().copied().flatten().next().is_some()
                    && subjects.iter().copied().flatten().all(|c| who.owns(&c.agent.namespace))
        };
        let mut page = OutcomePage::default();
        loop {
            let rows = self.store.outcomes(&query, limit as usize)?;
            let Some(last) = rows.last().map(|r| r.0) else { return Ok(page) };
            let whole = rows.len() == limit as usize;
            for (seq, outcome) in rows.into_iter().filter(|(_, o)| reads(o)) {
                page.outcomes.push(outcome);
                if page.outcomes.len() == limit as usize {
                    page.next = Some(seq.to_string());
                    return Ok(page);
                }
            }
            if !whole {
                return Ok(page);
            }
            query.before_seq = Some(last);
        }
    }

    /// Forgets outcomes, everything that was learned from them included. A principal forgets its own; the local one whatever it names.
    pub async fn forget(&self, who: &Principal, which: &OutcomeFilter) -> Result<usize, Error> {
        if *which == OutcomeFilter::default() {
            return Err(Error::invalid_at("/reporter", "an agent, a capability of it, a reporter or an id", "say what is to be forgotten"));
        }
        if which.capability.is_some() && which.agent.is_none() {
            return Err(Error::invalid_at("/agent", "the agent of the capability", "name it as namespace/agent_id"));
        }
        let mut query = self.query(which);
        if who.namespaces != Grant::All {
            if query.reporter.as_deref().is_some_and(|r| r != &*who.caller) {
                return Err(Error::new(Code::Forbidden, "only an operator forgets what others reported"));
            }
            query.reporter = Some(who.caller.to_string());
        }
        let gone = self.store.forget_outcomes(query).await?;
        if gone > 0 {
            self.drop_lessons();
            self.recall_history().await?;
            self.learning.ring();
        }
        Ok(gone)
    }

    /// Takes outcomes into the history that decisions read, at once.
    fn remember(&self, outcomes: &[Outcome]) {
        self.views.update(|old| {
            let mut history = (*old.history).clone();
            outcomes.iter().for_each(|o| history.learn(o));
            View { history: Arc::new(history), ..old.clone() }
        });
    }

    /// Builds the history anew from what is kept: at the start, and after something was forgotten.
    pub async fn recall_history(&self) -> Result<usize, Error> {
        let store = self.store.clone();
        let all = tokio::task::spawn_blocking(move || store.all_outcomes()).await.map_err(Error::internal)??;
        let mut history = crate::history::Cooccurrence::default();
        all.iter().for_each(|o| history.learn(o));
        let history = Arc::new(history);
        self.views.update(|old| View { history: history.clone(), ..old.clone() });
        Ok(all.len())
    }
}

/// An id of 128 random bits.
fn draw() -> Result<String, Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(Error::internal)?;
    Ok(hex::encode(bytes))
}
