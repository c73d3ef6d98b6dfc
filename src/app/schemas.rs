//! Schemas by URL, only below the addresses that the operator allowed, through the guarded client: no redirect, no proxy, 3 s, a size limit.

use crate::catalog::schema::Fetch;
use crate::config::Outbound;
use crate::dispatch::guard::{Call, CallError, Guard};
use crate::dispatch::rest::is_below;
use crate::types::outbound::OutboundPolicy;
use std::sync::Arc;
use std::time::Duration;

/// Longest a schema may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Fetches below allowed beginnings of URLs.
pub struct WebSchemas {
    allowed: Vec<String>,
    policy: OutboundPolicy,
    connect: Duration,
}

impl WebSchemas {
    /// A fetcher for `allowed` beginnings; nothing when there is none.
    pub fn below(allowed: &[String], outbound: &Outbound) -> Option<Arc<dyn Fetch>> {
        let policy = super::delivery::policy(outbound);
        let this = Self { allowed: allowed.to_vec(), policy, connect: outbound.connect_timeout };
        (!allowed.is_empty()).then(|| Arc::new(this) as Arc<dyn Fetch>)
    }

    /// Whether `url` lies below an allowed beginning: the beginning ends at a path boundary, so that a longer host name is another host.
    fn allows(&self, url: &str) -> bool {
        self.allowed.iter().any(|a| is_below(url, a))
    }
}

impl Fetch for WebSchemas {
    fn fetch(&self, url: &str, limit: usize) -> Result<Vec<u8>, String> {
        if !self.allows(url) {
            return Err("the address is not below one of schemas.allow_urls".into());
        }
        let (policy, connect) = (self.policy.clone(), self.connect);
        let call = Call {
            method: reqwest::Method::GET,
            url: url.to_string(),
            headers: Vec::new(),
            body: Vec::new(),
            within: PATIENCE,
            max_body: limit,
        };
        // a thread with a runtime and a client of its own: the caller may be an async thread, which must not wait inside itself
        let work = move || -> Result<Vec<u8>, String> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
            let guard = Guard::new(policy, connect)?;
            match runtime.block_on(guard.call(call)) {
                Ok(answer) if (200..300).contains(&answer.status) => Ok(answer.body),
                Ok(answer) => Err(format!("the server answered {}", answer.status)),
                Err(CallError::TooLarge) => Err(format!("it is larger than {limit} bytes")),
                Err(e @ (CallError::Blocked(_) | CallError::Connect | CallError::Timeout | CallError::Broken)) => Err(e.to_string()),
            }
        };
        std::thread::Builder::new()
            .name("schema-fetch".into())
            .spawn(work)
            .map_err(|e| e.to_string())?
            .join()
            .unwrap_or_else(|_| Err("it could not be fetched".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn only_below_what_was_allowed_and_only_what_may_be_called() {
        let outbound = Config::default().outbound;
        let web = WebSchemas {
            allowed: vec!["https://schemas.example.com".into(), "http://127.0.0.1:9/a/".into(), "http://169.254.169.254".into()],
            policy: super::super::delivery::policy(&outbound),
            connect: Duration::from_secs(1),
        };
        assert!(web.allows("https://schemas.example.com/x.json") && web.allows("http://127.0.0.1:9/a/b"));
        assert!(
            !web.allows("https://schemas.example.com.evil.org/x")
                && !web.allows("http://127.0.0.1:9/b")
                && !web.allows("http://127.0.0.1:90/a/")
        );
        assert!(WebSchemas::below(&[], &outbound).is_none());
        assert!(web.fetch("https://other.example.com/x", 10).unwrap_err().contains("allow_urls"));
        assert!(web.fetch("http://169.254.169.254/latest", 10).unwrap_err().contains("blocked_url"), "no list opens metadata");
        assert!(web.fetch("http://127.0.0.1:9/a/b", 10).unwrap_err().contains("url_port"));
    }
}
