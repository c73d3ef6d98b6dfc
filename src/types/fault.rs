//! One thing wrong with an input: where it is, what was expected, how to mend it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A fault in a request, a manifest or a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// JSON pointer (RFC 6901) of the faulty place; empty for the whole document. Configuration faults use the key path.
    pub pointer: String,
    /// What was expected there.
    pub expected: String,
    /// How to mend it.
    pub hint: String,
}

impl Fault {
    /// A fault at `pointer`.
    pub fn new(pointer: impl Into<String>, expected: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), expected: expected.into(), hint: hint.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "(document)" } else { &self.pointer };
        write!(f, "{place}: expected {}; {}", self.expected, self.hint)
    }
}
