//! The gRPC door: `agentreach.v1` with health and reflection, over [`crate::api::service`].
//!
//! Invariants: messages are bounded before they are decoded; compressed ones are refused (a kilobyte can unfold to a
//! gigabyte); every error carries the shared error as a detail; a call's `grpc-timeout` is kept.

pub mod codec;
mod dispatch;
mod feedback;
mod matcher;
mod registry;
pub mod status;
pub mod wire;
pub mod worker;

use crate::api::listen;
use crate::api::pb;
use crate::api::service::{Call, Door, Service};
use crate::api::trace::trace_id;
use crate::error::{Code, Error};
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::future::FutureExt;
use status::{DETAIL, status};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic_health::server::HealthReporter;

/// The routes of the door, and the switch of the standard health service. Streams end when `stop` is cancelled.
pub fn routes(service: &Arc<Service>, stop: &CancellationToken) -> Result<(axum::Router, HealthReporter), Error> {
    let most = service.limits().message_bytes;
    let registry = pb::registry_server::RegistryServer::new(registry::Registry::new(service.clone(), stop.clone()))
        .max_decoding_message_size(most)
        .max_encoding_message_size(usize::MAX);
    let matcher = pb::matcher_server::MatcherServer::new(matcher::Matcher::new(service.clone(), stop.clone()))
        .max_decoding_message_size(most)
        .max_encoding_message_size(usize::MAX);
    let dispatch = pb::dispatch_server::DispatchServer::new(dispatch::Dispatch::new(service.clone(), stop.clone()))
        .max_decoding_message_size(most)
        .max_encoding_message_size(usize::MAX);
    let feedback = pb::feedback_server::FeedbackServer::new(feedback::Feedback::new(service.clone()))
        .max_decoding_message_size(most)
        .max_encoding_message_size(usize::MAX);
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = tonic::service::Routes::new(registry)
        .add_service(matcher)
        .add_service(dispatch)
        .add_service(feedback)
        .add_service(health)
        .add_service(reflection().build_v1().map_err(Error::internal)?)
        .add_service(reflection().build_v1alpha().map_err(Error::internal)?);
    let router = routes.prepare().into_axum_router().layer(axum::middleware::from_fn(finish));
    Ok((router, reporter))
}

/// Turns what the framework refused by itself, and panics, into the errors of our table.
async fn finish(request: Request, next: Next) -> Response {
    let response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!("panic in the gRPC door: {}", crate::tasks::panic_text(&*panic));
            return status(&Error::internal("a fault of the service, not of the request")).into_http();
        }
    };
    match refusal(&response) {
        Some(e) => status(&e).into_http::<Body>(),
        None => response,
    }
}

/// The error of our table for a status that the framework made.
fn refusal(response: &Response) -> Option<Error> {
    if response.headers().contains_key(DETAIL) {
        return None;
    }
    let made = Status::from_header_map(response.headers())?;
    let code = match made.code() {
        tonic::Code::Ok => return None,
        tonic::Code::OutOfRange => Code::PayloadTooLarge,
        tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => Code::DeadlineExceeded,
        tonic::Code::Unimplemented if made.message().is_empty() => Code::NotFound,
        tonic::Code::Unimplemented | tonic::Code::InvalidArgument | tonic::Code::Internal | tonic::Code::Unknown => Code::InvalidArgument,
        tonic::Code::ResourceExhausted => Code::Overloaded,
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::Forbidden,
        tonic::Code::AlreadyExists | tonic::Code::Aborted => Code::Conflict,
        tonic::Code::FailedPrecondition => Code::FailedPrecondition,
        tonic::Code::Unavailable | tonic::Code::DataLoss => return None,
    };
    let words = if made.message().is_empty() { "no such method" } else { made.message() };
    Some(Error::new(code, words.chars().take(300).collect::<String>()))
}

/// Who calls, and until when.
fn call(service: &Service, metadata: &MetadataMap) -> Result<Call, Status> {
    let headers = metadata.get_all("authorization");
    let who = service.principal(Door::Grpc, headers.iter().map(|v| v.as_encoded_bytes())).map_err(|e| status(&e))?;
    let deadline = metadata.get("grpc-timeout").and_then(|v| v.to_str().ok()).and_then(timeout);
    let trace = metadata.get("traceparent").and_then(|v| v.to_str().ok()).and_then(trace_id);
    Ok(Call { who, door: Door::Grpc, deadline, trace })
}

/// Reads a `grpc-timeout`: up to 8 digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let split = text.len().checked_sub(1)?;
    let (digits, unit) = (text.get(..split)?, text.get(split..)?);
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

/// What the door speaks, for [`listen`].
pub const PROTOCOL: listen::Protocol = listen::Protocol::Http2Only;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_read_as_the_protocol_says() {
        assert_eq!(timeout("5S"), Some(Duration::from_secs(5)));
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        for bad in ["", "S", "5", "5x", "-1S", "123456789S", "5退"] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
    }
}
