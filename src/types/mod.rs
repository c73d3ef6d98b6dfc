//! The words of the project: validated domain types without I/O, shared by every layer above.
//!
//! Not here: anything that reads a clock, a file, a socket or a model.

pub mod decision;
pub mod fault;
pub mod id;
pub mod lang;
pub mod manifest;
pub mod policy;
pub mod principal;
pub mod query;
pub mod request;
pub mod rules;
pub mod score;
pub mod span;

pub use decision::{Candidate, Decision, DecisionKind, DropReason, Dropped, Note, Term};
pub use fault::Fault;
pub use id::{AgentKey, Namespace};
pub use lang::Lang;
pub use policy::Policy;
pub use manifest::{Capability, Manifest};
pub use principal::{Grant, Principal};
pub use query::Query;
pub use score::{Cosine, Probability};
