//! The HTTP probe of health checks, through the guarded client: 64 KiB and a few seconds at most, no redirect, no proxy.

use crate::dispatch::guard::{Call, CallError, Guard, HEALTH_BODY};
use crate::ingest::{Judge, Probe};
use crate::live::Probed;
use futures::future::{BoxFuture, FutureExt};
use std::time::Duration;

/// Asks over HTTP.
pub struct HttpProbe {
    /// The client of all outbound calls.
    pub guard: Guard,
    /// Longest an answer may take.
    pub timeout: Duration,
}

impl Probe for HttpProbe {
    fn ask<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Probed> {
        let call = Call {
            method: reqwest::Method::GET,
            url: address.to_string(),
            headers: Vec::new(),
            body: Vec::new(),
            within: self.timeout,
            max_body: HEALTH_BODY,
        };
        async move {
            match self.guard.call(call).await {
                Ok(answer) if (200..300).contains(&answer.status) => Probed::Good,
                Err(CallError::Blocked(_)) => Probed::Blocked,
                Ok(_) | Err(CallError::Connect | CallError::Timeout | CallError::Broken | CallError::TooLarge) => Probed::Failed,
            }
        }
        .boxed()
    }
}

/// Longest a name may take to be judged.
const JUDGED: Duration = Duration::from_millis(500);

/// Judges by the guarded client's own rules.
pub struct ByGuard(pub Guard);

impl Judge for ByGuard {
    fn refuses<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<&'static str>> {
        async move { self.0.foresee(address, JUDGED).await.err().map(|why| why.as_str()) }.boxed()
    }
}
