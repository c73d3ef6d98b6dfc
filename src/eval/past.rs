//! A history of any length, made of labelled queries: what replay is measured on.
//!
//! In: a fleet ([`Bench`]), queries, a seed. Out: decisions as a node would have logged them over [`DAYS`] days, each with what came of it. Every one goes
//! through the real route; only the state of the agents (queue, health, latency) is drawn. The same seed gives the same bytes.
//! Cost: one route a decision; a text is embedded once. Not here: files and the store (`app`).

use crate::error::Error;
use crate::eval::queries::Labelled;
use crate::eval::run::{AT_MS, Bench};
use crate::route::decide;
use crate::route::dice::Dice;
use crate::route::logged::Body;
use crate::route::pipeline::options;
use crate::route::shortlist::LiveTerms;
use crate::store::DecisionRecord;
use crate::types::AgentKey;
use crate::types::outcome::{CapKey, Outcome, Verdict};
use crate::types::policy::Policy;
use crate::types::request::ResolveRequest;
use std::collections::HashMap;
use std::sync::Arc;

/// Days the history spans.
pub const DAYS: i64 = 30;
/// Callers that ask.
const CALLERS: u64 = 40;

/// One decision, and what came of it.
pub struct Made {
    /// As it is logged.
    pub record: DecisionRecord,
    /// What was asked.
    pub query: Labelled,
    /// What the caller reports.
    pub outcome: Outcome,
}

/// Makes one decision after the other.
pub struct Past<'a> {
    bench: &'a Bench,
    queries: &'a [Labelled],
    policy: Policy,
    agents: HashMap<Arc<str>, AgentKey>,
    dice: Dice,
    made: i64,
    of: i64,
}

impl<'a> Past<'a> {
    /// A history of `of` decisions.
    pub fn new(bench: &'a Bench, queries: &'a [Labelled], policy: Policy, seed: u64, of: usize) -> Self {
        let view = bench.view();
        let agents = view.catalog.agents().map(|a| (a.entry.key.agent_id.clone(), a.entry.key.clone())).collect();
        Self { bench, queries, policy, agents, dice: Dice::new(seed), made: 0, of: i64::try_from(of.max(1)).unwrap_or(i64::MAX) }
    }

    fn state(&mut self) -> LiveTerms {
        LiveTerms {
            queue_share: Some(self.dice.unit() * 0.8),
            health: Some(0.7 + 0.3 * self.dice.unit()),
            p50_ms: Some(50.0 + 3_000.0 * self.dice.unit()),
            traffic_share: 1.0,
            ..LiveTerms::default()
        }
    }

    /// The next decision.
    pub async fn next(&mut self) -> Result<Made, Error> {
        let place = self.dice.roll() as usize % self.queries.len().max(1);
        let Some(query) = self.queries.get(place).cloned() else { return Err(Error::internal("no queries to make a history of")) };
        let at_ms = AT_MS + DAYS * 86_400_000 / self.of * self.made;
        self.made += 1;
        let caller = query.caller.clone().unwrap_or_else(|| format!("caller-{:02}", self.dice.roll() % CALLERS));
        let request = ResolveRequest {
            query: query.query.clone(),
            caller: Some(caller.clone()),
            tenant: query.tenant.clone(),
            at: jiff::Timestamp::from_millisecond(at_ms).ok().map(|t| t.to_string()),
            seed: Some(self.dice.roll()),
            fallback: Some(false),
            ..ResolveRequest::default()
        };
        let asked = self.bench.resolve(&request).await?;
        let mut list = asked.list;
        for item in &mut list.items {
            item.live = self.state();
        }
        let mut decision = decide::pick(&list, &self.policy, &options(&asked.query));
        let id = format!("{:016x}{:016x}", self.dice.roll(), self.dice.roll());
        decision.decision_id.clone_from(&id);
        decision.generations = asked.decision.generations;
        let first = decision.candidates.first().map(|c| (c.agent.clone(), c.capability.clone()));
        let right = first.as_ref().is_some_and(|(a, c)| query.expected.iter().any(|e| *e.0 == *a.agent_id && *e.1 == **c));
        let expected = query.expected.first().and_then(|(a, c)| Some(CapKey::new(self.agents.get(a.as_str())?.clone(), c)));
        let chosen = first.map(|(a, c)| CapKey::new(a, &c));
        let (verdict, chosen, correct) = match (right, expected) {
            (true, _) => (Verdict::Adopted, chosen, None),
            (false, None) => (Verdict::Nobody, None, None),
            (false, correct) => (Verdict::Overridden, chosen, correct),
        };
        let outcome = Outcome {
            id: id.clone(),
            at_ms,
            decision_id: Some(id.clone()),
            text: Some(query.query.clone()),
            tenant: query.tenant.clone(),
            caller: caller.clone(),
            reporter: caller.clone(),
            own: false,
            scope: "*".into(),
            verdict,
            chosen,
            correct,
            previous: None,
        };
        let body = Body::of(&asked.query, &list, &decision, &self.policy, true).json();
        let record = DecisionRecord { id, at_ms, caller, kind: decision.kind, text: Some(query.query.clone()), body };
        Ok(Made { record, query, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::fakes;
    use crate::eval::queries;
    use crate::eval::replay::entry::Raw;
    use crate::eval::replay::told;
    use crate::ingest::files;
    use crate::types::manifest_check::Rules;
    use std::path::Path;

    #[tokio::test]
    async fn a_history_is_made_of_real_decisions_and_is_the_same_again() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
        let manifests = files::read(&root.join("fleet"), &Rules::default()).unwrap().manifests;
        let folder = tempfile::tempdir().unwrap();
        let policy = Policy::default();
        let bench = Bench::untaught(Arc::new(fakes()), manifests, policy.clone(), folder.path()).await.unwrap();
        let all = queries::sample(queries::read(&root.join("queries.jsonl"), Some("dev")).unwrap(), Some(40), 3);
        let mut bytes = Vec::new();
        for _ in 0..2 {
            let mut past = Past::new(&bench, &all, policy.clone(), 7, 30);
            let (mut made, mut outcomes) = (Vec::new(), Vec::new());
            for _ in 0..30 {
                let one = past.next().await.unwrap();
                outcomes.push(one.outcome);
                made.push((one.record, one.query));
            }
            bytes.push(made.iter().map(|(r, _)| r.body.to_string()).collect::<Vec<_>>());
            let labels = told::labels(outcomes);
            for (record, query) in made {
                let entry = Raw::Record(Box::new(record)).entry().unwrap();
                let policy = entry.logged.policy.clone().unwrap();
                assert_eq!(entry.logged.repick(&policy).kind, entry.logged.decision.kind);
                // what callers report says the same as the query's label
                let truth = labels.of(&entry);
                assert_eq!(truth.in_scope(), Some(!query.expected.is_empty()), "{}", query.query);
                for who in entry.logged.decision.candidates.iter().take(1) {
                    let right = query.expected.iter().any(|(a, c)| **a == *who.agent.agent_id && **c == *who.capability);
                    assert_eq!(truth.of(who), Some(right), "{}", query.query);
                }
            }
        }
        assert_eq!(bytes[0], bytes[1]);
    }
}
