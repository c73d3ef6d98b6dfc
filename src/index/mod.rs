//! Finding capabilities by meaning, by words and by name, within what a principal may see.
//!
//! Documents are capability slots (`u32`, never reused while the process lives), each with a visibility class. Three indexes, each with a
//! writer and an immutable snapshot: [`dense`] (vectors of one model), [`keyword`] (words), [`names`] (exact names).
//! Invariants: a search looks at documents of visible classes only and its result depends on nothing else; a change copies a small
//! delta, never the fleet; order is score descending, then slot ascending.
//! Not here: embedding texts, fusing the arms, thresholds, what a class means.

pub mod dense;
pub mod keyword;
mod layout;
pub mod names;
mod slots;
mod stack;
pub mod text;
mod visible;

pub use slots::Slots;
pub use stack::StackConfig;
pub use visible::Visible;
