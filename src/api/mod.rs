//! The front doors: gRPC and HTTP over the same service functions.
//!
//! A door turns bytes into the messages of `proto/`, the credential into a [`crate::types::Principal`], calls
//! [`service`], and turns the answer or the [`crate::error::Error`] back into bytes. What it may not do is decide anything:
//! the same request gets the same answer on every door.
//!
//! Not here: what the registry and the matcher do (behind [`ports`]), wiring (`app`), the command line (`cli`).

pub mod convert;
pub mod grpc;
pub mod json;
pub mod pb;
