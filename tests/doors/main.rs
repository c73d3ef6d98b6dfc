//! The front doors against fakes of the registry and the matcher: they agree, keep their limits, and survive bad input.

#![allow(clippy::unwrap_used)]

mod agree;
mod bad_input;
mod cli;
mod fakes;
mod limits;
mod messages;
mod who;
