//! Memory of what happened: who asks for what, and what requests of a kind turned out to mean.

mod cooccurrence;
pub mod learned;

pub use cooccurrence::{Cooccurrence, HALF_LIFE_MS, MAX_CALLERS, MAX_PER_CALLER, Shares, habit};
pub use learned::Learned;
