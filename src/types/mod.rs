//! The words of the project: validated domain types without I/O, shared by every layer above.
//!
//! Not here: anything that reads a clock, a file, a socket or a model.

pub mod address;
pub mod bucket;
pub mod decision;
pub mod document;
pub mod envelope;
pub mod escalation;
pub mod fault;
pub mod hash;
pub mod hours;
pub mod id;
pub mod lang;
pub mod manifest;
pub mod manifest_check;
pub mod message;
pub mod outbound;
pub mod outcome;
pub mod plain;
pub mod policy;
pub mod principal;
pub mod query;
pub mod request;
pub mod rules;
pub mod score;
pub mod span;
pub mod stored;
pub mod text;

pub use decision::{Candidate, Decision, DecisionKind, DropReason, Dropped, Note, Term};
pub use envelope::{Envelope, ReachId, SubmitRequest};
pub use fault::Fault;
pub use hash::ContentHash;
pub use id::{AgentKey, Namespace};
pub use lang::Lang;
pub use manifest::{Capability, Manifest};
pub use message::{Head, Message, State};
pub use outcome::{CapKey, Outcome, Verdict};
pub use policy::Policy;
pub use principal::{Grant, Principal};
pub use query::{PartKind, Query, QueryPart, QueryVector};
pub use score::{Cosine, Probability};
