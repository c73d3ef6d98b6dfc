//! A whole dispatcher on a toy clock: the real engine, a store in memory, agents and a network that misbehave by dice. One seed = one history.
//!
//! The shell here is the same loop as the real one (`shell`), with events in a heap in place of tasks. Not here: sockets, SQLite.

mod chaos;
mod members;
mod storm;
pub(crate) mod world;
