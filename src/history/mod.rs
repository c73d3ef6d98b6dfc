//! Memory of what happened: who asks for what, and (with outcomes) what it was worth.

mod cooccurrence;

pub use cooccurrence::{Cooccurrence, HALF_LIFE_MS, MAX_CALLERS, MAX_PER_CALLER};
