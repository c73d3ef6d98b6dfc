//! The HTTP probe of health checks: one client without proxy and redirects, 2 s and 64 KiB in all.

use crate::ingest::Probe;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use std::time::Duration;

/// Largest answer that is read, bytes.
const MOST: usize = 64 * 1024;

/// Asks over HTTP.
pub struct HttpProbe {
    client: reqwest::Client,
}

impl HttpProbe {
    /// A probe that waits at most `timeout`.
    pub fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout)
            .timeout(timeout)
            .pool_max_idle_per_host(1)
            .build()?;
        Ok(Self { client })
    }
}

impl Probe for HttpProbe {
    fn ask<'a>(&'a self, address: &'a str) -> BoxFuture<'a, bool> {
        async move {
            let Ok(response) = self.client.get(address).send().await else { return false };
            if !response.status().is_success() {
                return false;
            }
            // an answer without end is no answer
            let mut body = response.bytes_stream();
            let mut read = 0;
            while let Some(part) = body.next().await {
                match part {
                    Ok(bytes) => read += bytes.len(),
                    Err(_) => return false,
                }
                if read > MOST {
                    return false;
                }
            }
            true
        }
        .boxed()
    }
}
