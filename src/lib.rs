//! Agent-Reach: the routing brain for teams that run many agents.
//!
//! Callers say what they want done; the matcher finds the agent that can do it and says how sure it is.
//! `docs/ARCHITECTURE.md` is the map; the layers named there are enforced by `tests/layers.rs`.

pub mod clock;
pub mod dispatch;
pub mod error;
pub mod types;
