//! Delivery: keeps promises about messages and knows at any moment where each one is.
//!
//! Pure machines, each in a file of its own, take the time as a value: `state`, `breaker`, `retry`, `budget`, `priority`, `limit`, `pace`,
//! `backpressure`, `timeouts`, `dedup`, `poison`, `response`, `callback`. They know no clock, no socket and no store.

pub mod backpressure;
pub mod body;
pub mod breaker;
pub mod budget;
pub mod callback;
pub mod dedup;
pub mod dice;
pub mod echo;
pub mod engine;
pub mod grpc;
pub mod guard;
pub mod http;
pub mod limit;
pub mod mcp;
pub mod memory;
pub mod pace;
pub mod poison;
pub mod port;
pub mod priority;
pub mod reply;
pub mod response;
pub mod rest;
pub mod retry;
pub mod service;
#[cfg(test)]
mod sim;
pub mod spans;
pub mod sqlite;
pub mod state;
pub mod steady;
pub mod timeouts;
