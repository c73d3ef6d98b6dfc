//! The flat form: one capability a line, as evaluation sets have it. Lines of one namespace and agent id become one agent.
//!
//! In: values with a key `capability`. Out: manifests of static agents that pull their work.
//! Invariant: agents stand in the order of their first line, capabilities in the order of the lines.

use super::walk::Walk;
use super::{CheckedAll, Rules, check, keys};
use crate::types::document::Document;
use crate::types::fault::Fault;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Whether this is a line of the flat form rather than a manifest.
pub fn is_line(value: &Value) -> bool {
    value.get("capability").is_some() && value.get("capabilities").is_none()
}

/// Lines read so far, grouped.
#[derive(Default)]
pub struct Lines {
    order: HashMap<(String, String), usize>,
    agents: Vec<Agent>,
}

struct Agent {
    place: usize,
    namespace: String,
    agent_id: String,
    capabilities: Vec<Value>,
    warnings: Vec<Fault>,
}

impl Lines {
    /// Checks one line and puts it to its agent.
    pub fn add(&mut self, document: &Document, rules: &Rules) -> Result<(), Vec<Fault>> {
        let mut value = document.value.clone();
        if let Value::Object(members) = &mut value {
            // sets write what they do not have as an empty text or list
            members.retain(|_, v| !matches!(v, Value::String(t) if t.trim().is_empty()));
            if let Some(Value::Array(examples)) = members.get_mut("examples") {
                examples.retain(|e| !matches!(e, Value::String(t) if t.trim().is_empty()));
            }
        }
        let mut walk = Walk::new(rules);
        let members = walk.object(&value, &keys::FLAT);
        let (faults, warnings) = walk.finish();
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut members: Map<String, Value> = members.unwrap_or_default();
        let mut take = |key: &str| match members.remove(key) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let (namespace, agent_id, intent) = (take("namespace"), take("agent_id"), take("capability"));
        // a capability without a description is described by its name
        let mut capability = Map::from_iter([("intent".to_string(), json!(intent.clone()))]);
        capability.extend(members);
        capability.entry("description").or_insert_with(|| json!(crate::types::text::words_of_name(&intent)));
        let at = *self.order.entry((namespace.clone(), agent_id.clone())).or_insert_with(|| {
            self.agents.push(Agent { place: document.place, namespace, agent_id, capabilities: Vec::new(), warnings: Vec::new() });
            self.agents.len() - 1
        });
        if let Some(agent) = self.agents.get_mut(at) {
            let prefix = format!("/capabilities/{}", agent.capabilities.len());
            agent.warnings.extend(warnings.into_iter().map(|f| Fault { pointer: format!("{prefix}{}", f.pointer), ..f }));
            agent.capabilities.push(Value::Object(capability));
        }
        Ok(())
    }

    /// Turns the groups into manifests.
    pub fn finish(self, all: &mut CheckedAll, rules: &Rules) {
        for agent in self.agents {
            let manifest = json!({
                "namespace": agent.namespace,
                "agent_id": agent.agent_id,
                "ttl": "none",
                "endpoints": [{"protocol": "pull"}],
                "capabilities": agent.capabilities,
            });
            match check(&manifest, rules) {
                Ok(mut checked) => {
                    checked.warnings.extend(agent.warnings);
                    all.manifests.push(checked);
                }
                Err(faults) => all.faulty.push((agent.place, faults)),
            }
        }
    }
}
