//! One table of error codes for all doors, and one classifier.

use crate::types::Fault;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Try again, later or elsewhere.
    Retry,
    /// Something is under way: wait for it.
    Wait,
    /// The same request will fail again.
    Final,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $http:literal, $class:ident;)*) => {
        /// Stable error codes. Data, not words: clients may compare them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($(#[$doc])* $name,)* }
        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            /// Name on the wire.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// HTTP status.
            pub fn http(self) -> u16 { match self { $(Self::$name => $http,)* } }
            /// What a caller may do.
            pub fn class(self) -> Class { match self { $(Self::$name => Class::$class,)* } }
        }
    };
}

codes! {
    /// The agent's queue is full.
    AgentBusy = "agent_busy", 503, Retry;
    /// The agent is over its load limit.
    AgentOverloaded = "agent_overloaded", 503, Retry;
    /// The agent can't be reached or its breaker is tripped.
    AgentUnavailable = "agent_unavailable", 503, Retry;
    /// The agent said "not mine".
    AgentRejected = "agent_rejected", 409, Retry;
    /// Nobody fits.
    NoMatchedAgent = "no_matched_agent", 404, Final;
    /// Every candidate failed.
    AllAgentsFailed = "all_agents_failed", 502, Retry;
    /// The payload does not fit the input schema.
    PayloadInvalid = "payload_invalid", 422, Final;
    /// The payload is too large; send a reference.
    PayloadTooLarge = "payload_too_large", 413, Final;
    /// Same key, other content.
    Conflict = "conflict", 409, Final;
    /// The service has too much to do; try again after a while.
    Overloaded = "overloaded", 503, Retry;
    /// An operator rule stopped it.
    AbortedByPolicy = "aborted_by_policy", 403, Final;
    /// Not allowed.
    Forbidden = "forbidden", 403, Final;
    /// No valid credential.
    Unauthenticated = "unauthenticated", 401, Final;
    /// An upstream did not answer in time.
    UpstreamTimeout = "upstream_timeout", 504, Retry;
    /// The message outlived its ttl.
    TtlExpired = "ttl_expired", 504, Final;
    /// The result does not fit the output schema.
    SchemaValidationFailed = "schema_validation_failed", 502, Final;
    /// The request itself is faulty; the faults say where.
    InvalidArgument = "invalid_argument", 400, Final;
    /// Not there, or not visible to the caller: the two are not told apart.
    NotFound = "not_found", 404, Final;
    /// Not configured or not switched on.
    FailedPrecondition = "failed_precondition", 412, Final;
    /// Models are still being loaded.
    Warming = "warming", 503, Wait;
    /// The deadline of the request passed.
    DeadlineExceeded = "deadline_exceeded", 504, Retry;
    /// A fault of ours.
    Internal = "internal", 500, Retry;
}

/// An error that any door can carry.
#[derive(Clone, Debug)]
pub struct Error {
    /// Stable code.
    pub code: Code,
    /// Words for people; names no secret and no other tenant's data.
    pub message: String,
    /// Places at fault.
    pub faults: Vec<Fault>,
    /// When it makes sense to try again.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// An error with words.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), faults: Vec::new(), retry_after: None }
    }

    /// `invalid_argument` with every fault.
    pub fn invalid(faults: Vec<Fault>) -> Self {
        let message = match faults.as_slice() {
            [one] => one.to_string(),
            many => format!("{} faults; the first: {}", many.len(), many.first().map(ToString::to_string).unwrap_or_default()),
        };
        Self { code: Code::InvalidArgument, message, faults, retry_after: None }
    }

    /// `invalid_argument` at one place.
    pub fn invalid_at(pointer: &str, expected: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::invalid(vec![Fault::new(pointer, expected, hint)])
    }

    /// `not_found`, the same words whether it is absent or hidden.
    pub fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("no such {what}"))
    }

    /// `internal`, with the cause for the log.
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::new(Code::Internal, cause.to_string())
    }

    /// `overloaded`, with a hint when to come back.
    pub fn overloaded(message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Code::Overloaded, message) }
    }

    /// What a caller may do.
    pub fn class(&self) -> Class {
        self.code.class()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_closed_and_consistent() {
        let mut names: Vec<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!((400..600).contains(&code.http()));
        }
    }
}
