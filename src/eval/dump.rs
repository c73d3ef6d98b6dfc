//! Writes the features of labelled queries, one JSON object a query, for fitting the fusion and the confidence outside (`eval/fit/README.md`).

use crate::eval::queries::Labelled;
use crate::eval::run::Asked;
use crate::route::{confidence, features};
use serde_json::{Value, json};

/// The first line: names of the columns.
pub fn head() -> Value {
    json!({ "features": features::NAMES, "confidence": confidence::NAMES })
}

/// One query: features of each candidate, whether it is right, the features of the confidence, and what was answered. Numbers are rounded to five digits.
pub fn line(query: &Labelled, asked: &Asked) -> Value {
    let round = |v: &f32| (f64::from(*v) * 1e5).round() / 1e5;
    let items: Vec<Value> = asked
        .list
        .items
        .iter()
        .filter(|i| !i.features.is_empty())
        .map(|i| {
            let right = query.is_right(&i.agent.agent_id, &i.capability);
            json!({ "right": right, "named": i.named.is_some(), "folded": &*i.folded, "x": i.features.iter().map(round).collect::<Vec<_>>() })
        })
        .collect();
    json!({
        "id": query.id,
        "split": query.split,
        "in_scope": !query.expected.is_empty(),
        "answer": {
            "kind": asked.decision.kind,
            "first": asked.decision.candidates.first().map(|c| [&*c.agent.agent_id, &*c.capability]),
            "probability": round(&asked.decision.confidence.get()),
            "right": asked.decision.candidates.first().is_some_and(|c| query.is_right(&c.agent.agent_id, &c.capability)),
            "why": asked.decision.reasons.first().map(|r| r.code.to_string()),
        },
        "confidence": asked.list.facts.features.iter().map(round).collect::<Vec<_>>(),
        "items": items,
    })
}
