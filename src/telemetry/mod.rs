//! Logs and metrics.
//!
//! Invariants: a log event is one line whatever text is in it; names of metrics and their labels are closed enumerations;
//! payloads, credentials and query texts are never logged.

pub mod log;
pub mod metrics;

pub use metrics::{Counter, Gauge, Histogram, count, count_by, observe, set};
