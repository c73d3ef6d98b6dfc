//! Offline tools: how good is the routing on labelled requests.

pub mod again;
pub mod agree;
pub mod dump;
pub mod gaming;
pub mod history;
pub mod html;
pub mod metrics;
pub mod models;
pub mod outcomes;
pub mod parts;
pub mod past;
pub mod queries;
pub mod replay;
pub mod run;
pub mod tune;
