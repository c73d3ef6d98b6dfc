//! The read and the write path together, on encoders without weights: who may see what, what survives a restart, what is embedded and how often,
//! what a decision says. Names in comments are the cases they answer (docs of the field: T decisions, L words, I registration, E embedding, F filters).

#![allow(clippy::unwrap_used)]

mod decisions;
mod feedback;
mod gaming;
#[allow(dead_code)]
mod harness;
mod lifecycle;
mod real;
mod swap;
mod visibility;
