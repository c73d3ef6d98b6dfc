//! Errors as gRPC statuses: the code nearest in meaning, and the whole error as JSON in the trailer `reach-error-bin`.

use crate::api::{convert, json, pb};
use crate::error::{Code, Error};
use tonic::metadata::{AsciiMetadataValue, MetadataMap, MetadataValue};
use tonic::{Code as Grpc, Status};

/// Trailer with the JSON of the error.
pub const DETAIL: &str = "reach-error-bin";
/// Largest detail, bytes: clients refuse trailers of more than a few kilobytes.
const MAX_DETAIL: usize = 4096;
/// Longest message in characters.
const MAX_MESSAGE: usize = 500;

/// The gRPC code of an error.
pub fn grpc_code(code: Code) -> Grpc {
    match code {
        Code::AgentBusy | Code::AgentUnavailable | Code::Warming | Code::AllAgentsFailed => Grpc::Unavailable,
        Code::AgentOverloaded | Code::Overloaded | Code::PayloadTooLarge => Grpc::ResourceExhausted,
        Code::AgentRejected | Code::FailedPrecondition | Code::AbortedByPolicy => Grpc::FailedPrecondition,
        Code::NoMatchedAgent | Code::NotFound => Grpc::NotFound,
        Code::PayloadInvalid | Code::InvalidArgument => Grpc::InvalidArgument,
        Code::Conflict => Grpc::AlreadyExists,
        Code::Forbidden => Grpc::PermissionDenied,
        Code::Unauthenticated => Grpc::Unauthenticated,
        Code::UpstreamTimeout | Code::TtlExpired | Code::DeadlineExceeded => Grpc::DeadlineExceeded,
        Code::SchemaValidationFailed | Code::Internal => Grpc::Internal,
    }
}

/// The status of an error. Faults that do not fit into the trailer are left out from the end; the first one is always there.
pub fn status(e: &Error) -> Status {
    let mut wire = convert::error(e);
    wire.message = wire.message.chars().take(MAX_MESSAGE).collect();
    let message = wire.message.clone();
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(DETAIL, MetadataValue::from_bytes(&detail(wire)));
    if let Some(Ok(value)) = e.retry_after.map(|after| AsciiMetadataValue::try_from(after.as_millis().to_string())) {
        metadata.insert("grpc-retry-pushback-ms", value);
    }
    Status::with_metadata(grpc_code(e.code), message, metadata)
}

fn detail(mut wire: pb::Error) -> Vec<u8> {
    for fault in &mut wire.faults {
        for text in [&mut fault.pointer, &mut fault.expected, &mut fault.hint] {
            *text = text.chars().take(300).collect();
        }
    }
    loop {
        let bytes = json::write(&wire).unwrap_or_default();
        if bytes.len() <= MAX_DETAIL || wire.faults.len() <= 1 {
            return bytes;
        }
        let keep = wire.faults.len() / 2;
        wire.faults.truncate(keep);
    }
}

/// The error in a status that one of our doors sent; for clients and tests.
pub fn error_of(status: &Status) -> Option<pb::Error> {
    let bytes = status.metadata().get_bin(DETAIL)?.to_bytes().ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Fault;
    use std::time::Duration;

    #[test]
    fn the_error_comes_back_whole() {
        let e = Error::overloaded("full", Duration::from_millis(1500));
        let status = status(&e);
        assert_eq!(status.code(), Grpc::ResourceExhausted);
        assert_eq!(error_of(&status).unwrap(), convert::error(&e));
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1500");
        for code in Code::ALL {
            assert_eq!(error_of(&super::status(&Error::new(*code, "x"))).unwrap().code, code.as_str());
        }
    }

    #[test]
    fn many_faults_fit_into_a_trailer() {
        let faults = (0..5000).map(|i| Fault::new(format!("/capabilities/{i}"), "某".repeat(2000), "x".repeat(2000))).collect();
        let status = status(&Error::invalid(faults));
        let bytes = status.metadata().get_bin(DETAIL).unwrap().to_bytes().unwrap();
        assert!(bytes.len() <= MAX_DETAIL && error_of(&status).unwrap().faults[0].pointer == "/capabilities/0");
    }
}
