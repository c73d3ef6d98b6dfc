//! The read path: from a request to a decision with its reasons.
//!
//! `prepare` → (`resolver` embeds) → `pipeline`: `filter` → `recall` → `features` → `fusion` → `confidence` → `rank` → `decide`.
//! Everything but the `resolver` is pure.

pub mod confidence;
pub mod courtesy;
pub mod decide;
pub mod dice;
pub mod explain;
pub mod features;
pub mod filter;
pub mod fusion;
pub mod logged;
pub mod opposite;
pub mod payload;
pub mod pipeline;
pub mod prepare;
pub mod rank;
pub mod reading;
pub mod recall;
pub mod resolver;
pub mod rider;
pub mod scorer;
pub mod shortlist;
pub mod state;
pub mod telling;
pub mod undo;
