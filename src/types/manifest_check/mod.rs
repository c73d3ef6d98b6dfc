//! Reads manifests: every fault at once, each with its place, what was expected and how to mend it.
//!
//! In: JSON values from a stranger (`types::document` made them). Out: [`Manifest`]s in canonical form with warnings, or all faults.
//! Invariants: unknown keys are refused; every text and list is bounded; a manifest that passed reads back from its own serialised form
//! unchanged. Never panics. Cost: linear in the document.
//! Not here: what an input schema may contain (`catalog::schema`), whether names and texts are any good (`catalog::lint`).

mod cross;
mod flat;
mod hint;
pub mod keys;
pub mod publish;
mod walk;

use crate::types::document::{Document, MAX_DOCUMENT};
use crate::types::fault::Fault;
use crate::types::manifest::Manifest;
use serde_json::Value;
use walk::Walk;

pub use hint::nearest;
pub use walk::deeper_than;

/// What to do with a text that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Long {
    /// A fault.
    #[default]
    Refuse,
    /// A warning; the text is cut.
    Cut,
}

/// How strict to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Texts that are too long.
    pub long: Long,
}

/// A manifest that passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The manifest, canonical.
    pub manifest: Manifest,
    /// What is odd about it, with places: removed characters, cut texts, names that shadow each other.
    pub warnings: Vec<Fault>,
}

/// Manifests of one file or request.
#[derive(Clone, Debug, Default)]
pub struct CheckedAll {
    /// Those that passed.
    pub manifests: Vec<Checked>,
    /// Those that did not: the line (or number) of the document, and its faults.
    pub faulty: Vec<(usize, Vec<Fault>)>,
}

/// Checks one manifest.
pub fn check(value: &Value, rules: &Rules) -> Result<Checked, Vec<Fault>> {
    let mut walk = Walk::new(rules);
    if deeper_than(value, 100) {
        return Err(vec![Fault::new("", "at most 64 levels of nesting", "flatten the document")]);
    }
    let mut members = walk.object(value, &keys::MANIFEST);
    if let Some(members) = &mut members {
        cross::manifest(&mut walk, members);
    }
    let (mut faults, warnings) = walk.finish();
    if !faults.is_empty() {
        return Err(faults);
    }
    let value = Value::Object(members.unwrap_or_default());
    if serde_json::to_vec(&value).map_or(usize::MAX, |bytes| bytes.len()) > MAX_DOCUMENT {
        faults.push(Fault::new("", "a manifest of at most 1 MiB", "split it into several agents"));
        return Err(faults);
    }
    match serde_json::from_value::<Manifest>(value) {
        Ok(manifest) => Ok(Checked { manifest, warnings }),
        Err(e) => Err(vec![Fault::new("", "a manifest", e.to_string())]),
    }
}

/// Checks every document of a file: manifests, or lines of the flat form (one capability a line), which are grouped into agents.
pub fn check_all(documents: &[Document], rules: &Rules) -> CheckedAll {
    let mut all = CheckedAll::default();
    let mut lines = flat::Lines::default();
    for document in documents {
        if flat::is_line(&document.value) {
            if let Err(faults) = lines.add(document, rules) {
                all.faulty.push((document.place, faults));
            }
            continue;
        }
        match check(&document.value, rules) {
            Ok(checked) => all.manifests.push(checked),
            Err(faults) => all.faulty.push((document.place, faults)),
        }
    }
    lines.finish(&mut all, rules);
    all
}

#[cfg(test)]
mod tests;
