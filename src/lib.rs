//! Agent-Reach: the routing brain for teams that run many agents.
//!
//! Callers say what they want done; the matcher finds the agent that can do it and says how sure it is.
//! `docs/ARCHITECTURE.md` is the map; the layers named there are enforced by `tests/layers.rs`.

pub mod api;
pub mod app;
pub mod bench;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod embed;
pub mod error;
pub mod eval;
pub mod history;
pub mod index;
pub mod ingest;
pub mod kernel;
pub mod live;
pub mod route;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod types;
pub mod view;
