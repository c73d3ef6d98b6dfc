//! Situations that broke comparable products, played on the parts of this one where no part's own tests show them. The names in comments are those
//! of `docs/cases.md`, which lists every case and its test. Encoders are fakes, time is a clock that is told what time it is.

#![allow(clippy::unwrap_used)]

mod damage;
mod deciding;
mod delivery;
mod escalation;
mod fleet;
#[allow(dead_code)]
#[path = "../route/harness.rs"]
mod harness;
mod hostile;
mod load;
mod protocols;
mod settings;
