//! Offline tools: how good is the routing on labelled requests.

pub mod dump;
pub mod metrics;
pub mod queries;
pub mod run;
