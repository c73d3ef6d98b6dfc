//! Schemas by URL, only below the addresses that the operator allowed: no redirect, no proxy, 3 s and a size limit.

use crate::catalog::schema::Fetch;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// Longest a schema may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Fetches below allowed beginnings of URLs.
pub struct WebSchemas {
    allowed: Vec<String>,
}

impl WebSchemas {
    /// A fetcher for `allowed` beginnings; nothing when there is none.
    pub fn below(allowed: &[String]) -> Option<Arc<dyn Fetch>> {
        (!allowed.is_empty()).then(|| Arc::new(Self { allowed: allowed.to_vec() }) as Arc<dyn Fetch>)
    }

    /// Whether `url` lies below an allowed beginning: the beginning ends at a path boundary, so that a longer host name is another host.
    fn allows(&self, url: &str) -> bool {
        self.allowed
            .iter()
            .any(|a| url.strip_prefix(a.as_str()).is_some_and(|rest| a.ends_with('/') || rest.is_empty() || rest.starts_with('/')))
    }
}

impl Fetch for WebSchemas {
    fn fetch(&self, url: &str, limit: usize) -> Result<Vec<u8>, String> {
        if !self.allows(url) {
            return Err("the address is not below one of schemas.allow_urls".into());
        }
        let url = url.to_string();
        // a thread of its own: the caller may be an async thread, which must not wait for a runtime inside itself
        let work = move || -> Result<Vec<u8>, String> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
            runtime.block_on(async {
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .redirect(reqwest::redirect::Policy::none())
                    .timeout(PATIENCE)
                    .build()
                    .map_err(|e| e.to_string())?;
                let response = client.get(&url).send().await.map_err(|_| "it could not be fetched".to_string())?;
                if !response.status().is_success() {
                    return Err(format!("the server answered {}", response.status()));
                }
                let mut bytes = Vec::new();
                let mut body = response.bytes_stream();
                while let Some(part) = body.next().await {
                    bytes.extend_from_slice(&part.map_err(|_| "it broke off".to_string())?);
                    if bytes.len() > limit {
                        return Err(format!("it is larger than {limit} bytes"));
                    }
                }
                Ok(bytes)
            })
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

    #[test]
    fn only_below_what_was_allowed() {
        let web = WebSchemas { allowed: vec!["https://schemas.example.com".into(), "http://127.0.0.1:9/a/".into()] };
        assert!(web.allows("https://schemas.example.com/x.json") && web.allows("http://127.0.0.1:9/a/b"));
        assert!(
            !web.allows("https://schemas.example.com.evil.org/x")
                && !web.allows("http://127.0.0.1:9/b")
                && !web.allows("http://127.0.0.1:90/a/")
        );
        assert!(WebSchemas::below(&[]).is_none());
        assert!(web.fetch("https://other.example.com/x", 10).unwrap_err().contains("allow_urls"));
    }
}
