//! Messages of `agentreach.v1.Feedback` to and from the types of the service, and its service functions, the same for every door.

use crate::api::convert::{agent_ref, error, time};
use crate::api::json::MAX_BATCH;
use crate::api::pb;
use crate::api::ports::FeedbackPort;
use crate::api::service::{Call, Service};
use crate::error::Error;
use crate::types::outcome::{Outcome, OutcomeFilter, Report};
use crate::types::{AgentKey, Fault, Principal, id::parse_agent};

fn agent(text: Option<&String>, pointer: &str, faults: &mut Vec<Fault>) -> Option<AgentKey> {
    let text = text.filter(|t| !t.is_empty())?;
    parse_agent(text).map_err(|expected| faults.push(Fault::new(pointer, expected, "such as \"orders/order-desk\""))).ok()
}

/// An agent and a capability that belong together.
fn pair(of: (Option<&String>, Option<&String>), pointers: (&str, &str), faults: &mut Vec<Fault>) -> Option<(AgentKey, String)> {
    let key = agent(of.0, pointers.0, faults);
    match (key, of.1.filter(|c| !c.is_empty())) {
        (Some(key), Some(capability)) => Some((key, capability.clone())),
        (Some(_), None) => {
            faults.push(Fault::new(pointers.1, "the capability of that agent", "name both, or neither"));
            None
        }
        (None, Some(_)) if of.0.is_none_or(String::is_empty) => {
            faults.push(Fault::new(pointers.0, "the agent of that capability", "name both, or neither"));
            None
        }
        (None, _) => None,
    }
}

fn report(m: pb::OutcomeRequest) -> Result<Report, Error> {
    let mut faults = Vec::new();
    let chosen = pair((m.agent.as_ref(), m.capability.as_ref()), ("/agent", "/capability"), &mut faults);
    let places = ("/correct_agent", "/correct_capability");
    let correct = pair((m.correct_agent.as_ref(), m.correct_capability.as_ref()), places, &mut faults);
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(Report {
        id: m.id,
        decision_id: m.decision_id,
        query: m.query,
        verdict: m.verdict,
        chosen,
        correct,
        caller: m.caller,
        tenant: m.tenant,
        previous: m.previous,
        at: m.at,
    })
}

fn outcome(o: Outcome) -> pb::Outcome {
    let name = |c: &Option<crate::types::CapKey>| c.as_ref().map(|c| c.capability.to_string());
    pb::Outcome {
        capability: name(&o.chosen),
        correct_capability: name(&o.correct),
        agent: o.chosen.as_ref().map(|c| agent_ref(&c.agent)),
        correct_agent: o.correct.as_ref().map(|c| agent_ref(&c.agent)),
        id: o.id,
        at: time(o.at_ms),
        verdict: o.verdict.as_str().into(),
        decision_id: o.decision_id,
        query: o.text,
        caller: o.caller,
        tenant: o.tenant,
        reporter: o.reporter,
        own: o.own,
        previous: o.previous,
    }
}

fn filter(agent_text: Option<&String>, capability: Option<String>, reporter: Option<String>) -> Result<OutcomeFilter, Error> {
    let mut faults = Vec::new();
    let key = agent(agent_text, "/agent", &mut faults);
    let some = |t: Option<String>| t.filter(|t| !t.is_empty());
    if faults.is_empty() {
        Ok(OutcomeFilter { agent: key, capability: some(capability), reporter: some(reporter), id: None })
    } else {
        Err(Error::invalid(faults))
    }
}

/// Takes reports: those that can't be read are answered at their place.
pub(super) async fn take(port: &dyn FeedbackPort, who: &Principal, m: pb::ReportRequest) -> Vec<Result<String, Error>> {
    let read: Vec<Result<Report, Error>> = m.outcomes.into_iter().map(report).collect();
    let good: Vec<Report> = read.iter().filter_map(|r| r.as_ref().ok()).cloned().collect();
    let mut answers = if good.is_empty() { Vec::new() } else { port.report(who, good).await }.into_iter();
    let next = |r: Result<Report, Error>| match r {
        Err(e) => Err(e),
        Ok(_) => answers.next().unwrap_or_else(|| Err(Error::internal("too few answers"))),
    };
    read.into_iter().map(next).collect()
}

impl Service {
    /// Takes outcomes.
    pub async fn report(&self, call: &Call, message: pb::ReportRequest) -> Result<pb::ReportResponse, Error> {
        if message.outcomes.is_empty() || message.outcomes.len() > MAX_BATCH {
            return Err(Error::invalid_at("/outcomes", format!("1 to {MAX_BATCH} outcomes"), "split the report"));
        }
        self.run(call, "report", None, async {
            let results = take(&*self.parts().feedback, &call.who, message).await;
            let one = |r: Result<String, Error>| match r {
                Ok(id) => pb::ReportResult { id: Some(id), error: None },
                Err(e) => pb::ReportResult { id: None, error: Some(error(&self.outward("report", e))) },
            };
            Ok(pb::ReportResponse { results: results.into_iter().map(one).collect() })
        })
        .await
    }

    /// Shows outcomes.
    pub async fn outcomes(&self, call: &Call, m: pb::ListOutcomesRequest) -> Result<pb::ListOutcomesResponse, Error> {
        self.run(call, "outcomes", None, async {
            let which = filter(m.agent.as_ref(), m.capability, m.reporter)?;
            let page = self.parts().feedback.list(&call.who, which, m.limit, m.after).await?;
            Ok(pb::ListOutcomesResponse { outcomes: page.outcomes.into_iter().map(outcome).collect(), next: page.next })
        })
        .await
    }

    /// Forgets outcomes.
    pub async fn forget(&self, call: &Call, m: pb::ForgetRequest) -> Result<pb::ForgetResponse, Error> {
        self.run(call, "forget", None, async {
            let which = OutcomeFilter { id: m.id.filter(|t| !t.is_empty()), ..filter(m.agent.as_ref(), m.capability, m.reporter)? };
            let forgotten = self.parts().feedback.forget(&call.who, which).await?;
            Ok(pb::ForgetResponse { forgotten: forgotten as u64 })
        })
        .await
    }
}
