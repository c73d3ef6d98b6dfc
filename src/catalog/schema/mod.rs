//! JSON Schemas of strangers: measured, compiled once, and held against payloads within a budget.
//!
//! In: a schema (`Value`) and later payloads. Out: a [`CompiledSchema`] or faults; for a payload nothing or faults in words.
//! Invariants: nothing is fetched while compiling or validating; patterns run on a linear engine; the work of one validation is bounded before
//! it starts. Never panics. Cost: compiling about 100 µs for a small schema; validating a few µs.
//! Not here: reading references (`files`), words for the keyword index (`words`).

mod explain;
mod files;
mod guard;
mod words;

pub use files::{Fetch, Schemas};
pub use guard::{MAX_DEPTH, MAX_NODES, MAX_SCHEMA};
pub use words::schema_words;

use crate::types::Fault;
use crate::types::manifest_check::deeper_than;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// Largest payload that is validated, bytes of text and number of values together.
pub const MAX_PAYLOAD: usize = 2 << 20;
/// Most steps of one validation: paths through the schema times values of the payload.
const MAX_STEPS: u64 = 50_000_000;
/// Text that patterns may have to read in one validation, bytes.
const MAX_PATTERN_TEXT: usize = 256 << 10;
/// Deepest payload.
const MAX_PAYLOAD_DEPTH: usize = 64;
/// Faults reported for one payload.
const MAX_FAULTS: usize = 20;

/// A schema that passed the guard and compiled.
pub struct CompiledSchema {
    validator: Validator,
    measures: guard::Measures,
}

impl std::fmt::Debug for CompiledSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledSchema({:?})", self.measures)
    }
}

impl CompiledSchema {
    /// Measures and compiles. Faults carry pointers into the schema.
    pub fn new(schema: &Value) -> Result<Self, Vec<Fault>> {
        let measures = guard::measure(schema)?;
        let mut schema = schema.clone();
        if let Value::Object(root) = &mut schema {
            // references inside the document only: the name of the document says nothing
            root.remove("$id");
            root.remove("id").filter(Value::is_object).and_then(|id| root.insert("id".into(), id));
        }
        let compile = || {
            jsonschema::options()
                .offline()
                .should_validate_formats(false)
                .with_pattern_options(PatternOptions::regex().size_limit(128 << 10).dfa_size_limit(512 << 10))
                .build(&schema)
                .map_err(|e| {
                    let pointer = e.instance_path().as_str().to_string();
                    Fault::new(
                        pointer,
                        "a valid JSON Schema (2020-12 unless $schema says otherwise)",
                        explain::short(&e.masked().to_string()),
                    )
                })
        };
        match catch_unwind(AssertUnwindSafe(compile)) {
            Ok(Ok(validator)) => Ok(Self { validator, measures }),
            Ok(Err(fault)) => Err(vec![fault]),
            Err(_) => Err(vec![Fault::new("", "a JSON Schema that compiles", "it is too unusual for the validator: simplify it")]),
        }
    }

    /// Holds a payload against the schema. At most 20 faults, with pointers into the payload.
    pub fn validate(&self, payload: &Value) -> Result<(), Vec<Fault>> {
        self.affordable(payload).map_err(|f| vec![f])?;
        let check = || {
            if self.validator.is_valid(payload) {
                return Ok(());
            }
            let faults: Vec<Fault> = self.validator.iter_errors(payload).take(MAX_FAULTS).map(|e| explain::fault(&e)).collect();
            Err(faults)
        };
        catch_unwind(AssertUnwindSafe(check))
            .unwrap_or_else(|_| Err(vec![Fault::new("", "a payload that can be checked", "the validator failed on it: simplify it")]))
    }

    /// Refuses a payload whose validation could take long, before it begins.
    fn affordable(&self, payload: &Value) -> Result<(), Fault> {
        let too_much =
            |what: &str| Fault::new("", format!("a payload that can be checked: {what}"), "shorten it, or pass large data by reference");
        let depth = self.measures.recursion_depth.min(MAX_PAYLOAD_DEPTH);
        if deeper_than(payload, depth) {
            return Err(too_much(&format!("at most {depth} levels of nesting for this schema")));
        }
        let (mut values, mut text) = (0usize, 0usize);
        let mut open = vec![payload];
        while let Some(value) = open.pop() {
            values += 1;
            match value {
                Value::String(t) => text += t.len(),
                Value::Array(items) => open.extend(items),
                Value::Object(members) => {
                    text += members.keys().map(String::len).sum::<usize>();
                    open.extend(members.values());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        if values + text > MAX_PAYLOAD {
            return Err(too_much("at most 2 MiB"));
        }
        if self.measures.patterns > 0 && text > MAX_PATTERN_TEXT {
            return Err(too_much("at most 256 KiB of text where the schema has patterns"));
        }
        if self.measures.paths.saturating_mul(values as u64) > MAX_STEPS {
            return Err(too_much("fewer values for a schema with so many alternatives"));
        }
        Ok(())
    }
}

/// A resolved schema that is compiled when it is first needed, once.
#[derive(Debug)]
pub struct SchemaSlot {
    source: Arc<Value>,
    compiled: OnceLock<Result<CompiledSchema, Vec<Fault>>>,
}

impl SchemaSlot {
    /// A slot for a schema whose references were read.
    pub fn new(source: Arc<Value>) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// The schema.
    pub fn source(&self) -> &Arc<Value> {
        &self.source
    }

    /// The compiled schema, or why it can't be used.
    pub fn compiled(&self) -> Result<&CompiledSchema, &[Fault]> {
        self.compiled.get_or_init(|| CompiledSchema::new(&self.source)).as_ref().map_err(Vec::as_slice)
    }

    /// Holds a payload against the schema. A schema that can't be used says nothing about a payload: everything fits it.
    pub fn validate(&self, payload: &Value) -> Result<(), Vec<Fault>> {
        self.compiled().map_or(Ok(()), |schema| schema.validate(payload))
    }
}

#[cfg(test)]
mod tests;
