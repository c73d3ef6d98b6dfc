//! Callbacks, tried until they are taken, and the sweep of what is past its retention.

use super::Dispatcher;
use crate::dispatch::callback;
use crate::dispatch::guard::Call;
use crate::tasks::Stage;
use crate::telemetry::metrics::{Counter, count};
use crate::types::message::Message;
use std::time::Duration;

impl Dispatcher {
    pub(super) async fn call_back(&self, message: Message) {
        let (id, url) = (message.id(), message.envelope.callback.clone());
        if let (Some(url), false) = (url, self.inner.settings.secrets.is_empty()) {
            let body = serde_json::to_vec(&crate::dispatch::reply::envelope(&message)).unwrap_or_default();
            if !self.post_signed(&url, &format!("msg_{id}"), body).await {
                count(Counter::CallbacksGivenUp, &[]);
                tracing::warn!(reach_id = %id, url = &*url, tries = self.inner.settings.callback_tries, "the callback was not taken; the result can be asked for");
            }
        }
        self.with(|engine, now| engine.called_back(now, id));
    }

    /// Posts a signed body until it is taken, at most `callback_tries` times; whether it was.
    pub(super) async fn post_signed(&self, url: &str, id: &str, body: Vec<u8>) -> bool {
        for n in 0..self.inner.settings.callback_tries {
            let signed = callback::sign(&self.inner.settings.secrets, id, self.now_ms() / 1_000, &body);
            let mut headers: Vec<(String, String)> = signed.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
            headers.push(("content-type".into(), "application/json".into()));
            let (url, body) = (url.to_string(), body.clone());
            let call = Call { method: reqwest::Method::POST, url, headers, body, within: Duration::from_secs(10), max_body: 4_096 };
            if self.inner.guard.call(call).await.is_ok_and(|a| (200..300).contains(&a.status)) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(500u64 << n.min(6))).await;
        }
        false
    }

    /// Removes what is past its retention, once a minute.
    pub(super) async fn sweep(&self) {
        let stop = self.inner.tasks.stop(Stage::Work);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(60)) => {}
            }
            while self.inner.store.prune(self.now_ms(), self.inner.settings.retention, 500).await.is_ok_and(|n| n == 500) {
                tokio::task::yield_now().await;
            }
        }
    }
}
