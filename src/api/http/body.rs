//! Bodies of requests: bounded in size and in time, never unpacked.

use crate::api::json;
use crate::error::{Code, Error};
use crate::types::document;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use std::time::Duration;

/// Reads the body. A larger one, a slower one and a compressed one are refused.
pub async fn read(request: Request, limit: usize, within: Duration) -> Result<Vec<u8>, Error> {
    let headers = request.headers();
    if headers.get(header::CONTENT_ENCODING).is_some_and(|v| v != "identity") {
        return Err(Error::invalid_at("", "a body that is not compressed", "send it without content-encoding"));
    }
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(json::too_large(limit));
    }
    let collected = tokio::time::timeout(within, Limited::new(request.into_body(), limit).collect());
    match collected.await {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(json::too_large(limit)),
        Ok(Err(_)) => Err(Error::invalid_at("", "a whole body", "the connection broke off before it was there")),
        Err(_) => Err(Error::new(Code::DeadlineExceeded, format!("the body did not arrive within {} s", within.as_secs_f32()))),
    }
}

/// Whether the content type says YAML.
pub fn is_yaml(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    matches!(kind.as_str(), "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" | "text/vnd.yaml")
        || kind.ends_with("+yaml")
}

/// Reads one document, JSON or YAML.
pub fn document(bytes: &[u8], yaml: bool) -> Result<Value, Error> {
    if !yaml {
        let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
        return document::json(bytes).map_err(|mut fault| {
            if first.is_some_and(|b| !matches!(b, b'{' | b'[')) {
                fault.hint = format!("{}; YAML is read with the header content-type: application/yaml", fault.hint);
            }
            Error::invalid(vec![fault])
        });
    }
    let mut documents = document::read(bytes, Some(document::Format::Yaml)).map_err(Error::invalid)?;
    match (documents.pop(), documents.is_empty()) {
        (Some(one), true) => Ok(one.value),
        (Some(_), false) => Err(Error::invalid_at("", "one document", "register each agent with a request of its own")),
        (None, _) => Err(Error::invalid_at("", "a manifest", "the body is empty")),
    }
}
