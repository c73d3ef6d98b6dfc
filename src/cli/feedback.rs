//! `reach feedback`: says what came of a decision, shows what is kept, forgets it.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::telemetry::log::escaped;
use clap::{Args, Subcommand};

/// Says what came of decisions, shows and forgets it.
#[derive(Subcommand, Debug)]
pub enum FeedbackCommand {
    /// Reports one outcome.
    Report(Box<FeedbackReport>),
    /// Shows outcomes, newest first.
    List {
        /// Only those about this agent.
        #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
        agent: Option<String>,
        /// Only those about this capability of the agent.
        #[arg(long, requires = "agent")]
        capability: Option<String>,
        /// Only those of this reporter.
        #[arg(long)]
        reporter: Option<String>,
        /// Most outcomes to show.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Forgets outcomes and everything learned from them.
    #[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["agent", "reporter", "id"])))]
    Forget {
        /// Those about this agent.
        #[arg(long, value_name = "NAMESPACE/AGENT_ID")]
        agent: Option<String>,
        /// Those about this capability of the agent.
        #[arg(long, requires = "agent")]
        capability: Option<String>,
        /// Those of this reporter.
        #[arg(long)]
        reporter: Option<String>,
        /// The one with this id.
        #[arg(long)]
        id: Option<String>,
    },
}

/// One outcome.
#[derive(Args, Debug)]
pub struct FeedbackReport {
    /// How it turned out: adopted, acked, modified, overridden, rejected, timeout, or nobody.
    #[arg(value_name = "VERDICT")]
    verdict: String,
    /// Decision it is about.
    #[arg(long, value_name = "ID", required_unless_present = "query")]
    decision: Option<String>,
    /// What was asked, in words.
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Agent that was chosen; the decision's first when left out.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID", requires = "capability")]
    agent: Option<String>,
    /// Capability that was chosen.
    #[arg(long, value_name = "NAME", requires = "agent")]
    capability: Option<String>,
    /// Agent that would have been right.
    #[arg(long, value_name = "NAMESPACE/AGENT_ID", requires = "correct_capability")]
    correct_agent: Option<String>,
    /// Capability that would have been right.
    #[arg(long, value_name = "NAME", requires = "correct_agent")]
    correct_capability: Option<String>,
    /// Who asked.
    #[arg(long)]
    caller: Option<String>,
    /// Capability that the caller used before.
    #[arg(long, value_name = "NAME")]
    previous: Option<String>,
    /// Id to keep it under; the same again replaces.
    #[arg(long)]
    id: Option<String>,
}

impl FeedbackCommand {
    pub(super) async fn run(self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        match self {
            Self::Report(r) => report(&backend, *r, common, out).await,
            Self::List { agent, capability, reporter, limit } => {
                let which = pb::ListOutcomesRequest { agent, capability, reporter, limit: None, after: None };
                list(&backend, which, limit, common, out).await
            }
            Self::Forget { agent, capability, reporter, id } => {
                let gone = backend.forget(pb::ForgetRequest { agent, capability, reporter, id }).await?;
                if common.json {
                    out.json(&gone)?
                } else {
                    out.line(&format!("forgotten  {}", gone.forgotten))?
                }
                Ok(if gone.forgotten == 0 { Exit::Negative } else { Exit::Ok })
            }
        }
    }
}

async fn report(backend: &Backend, r: FeedbackReport, common: &Common, out: &Out) -> Result<Exit, Failure> {
    let outcome = pb::OutcomeRequest {
        id: r.id,
        decision_id: r.decision,
        query: r.query,
        verdict: r.verdict,
        agent: r.agent,
        capability: r.capability,
        correct_agent: r.correct_agent,
        correct_capability: r.correct_capability,
        caller: r.caller,
        tenant: None,
        previous: r.previous,
        at: None,
    };
    let mut answer = backend.report(pb::ReportRequest { outcomes: vec![outcome] }).await?;
    let result = answer.results.pop().unwrap_or_default();
    if let Some(error) = result.error {
        return Err(Failure::Service(error));
    }
    if common.json {
        out.json(&result)?
    } else {
        out.line(&format!("kept  {}", escaped(result.id.as_deref().unwrap_or("-"))))?
    }
    Ok(Exit::Ok)
}

async fn list(backend: &Backend, mut which: pb::ListOutcomesRequest, most: usize, common: &Common, out: &Out) -> Result<Exit, Failure> {
    let (mut left, mut shown) = (most, 0);
    while left > 0 {
        which.limit = Some(u32::try_from(left.min(500)).unwrap_or(500));
        let page = backend.outcomes(which.clone()).await?;
        left = left.saturating_sub(page.outcomes.len().max(1));
        shown += page.outcomes.len();
        if common.json {
            for outcome in &page.outcomes {
                out.json(outcome)?;
            }
        } else {
            for row in print::table(page.outcomes.iter().map(row).collect()) {
                out.line(&row)?;
            }
        }
        match page.next {
            Some(after) => which.after = Some(after),
            None => break,
        }
    }
    Ok(if shown == 0 { Exit::Negative } else { Exit::Ok })
}

fn row(o: &pb::Outcome) -> Vec<String> {
    let cap = |agent: Option<&pb::AgentRef>, name: &Option<String>| match name {
        Some(name) => format!("{} {}", print::who(agent, ""), escaped(name)),
        None => "-".into(),
    };
    let correct = o.correct_capability.as_ref().map(|_| format!("→ {}", cap(o.correct_agent.as_ref(), &o.correct_capability)));
    let text: String = o.query.as_deref().unwrap_or("").chars().take(60).collect();
    vec![
        o.at.clone(),
        escaped(&o.verdict),
        cap(o.agent.as_ref(), &o.capability),
        correct.unwrap_or_default(),
        escaped(&o.reporter),
        escaped(&text),
    ]
}
