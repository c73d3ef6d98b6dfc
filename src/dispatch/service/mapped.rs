//! Deliveries to existing REST services: the mapped call, then looks at the task until it is over. Looks are signs of life of the delivery.
//!
//! Invariants: where the task is asked about is durable with its being accepted, so that a restart looks again and begins nothing anew; a task that never
//! ends is given up when its processing time and its ttl are both over. Not here: what a call and an answer are (`rest`).

use super::Dispatcher;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::http;
use crate::dispatch::rest::{self, Meaning};
use crate::types::manifest::Rest;
use crate::types::message::Cause;
use std::sync::Arc;
use std::time::Duration;

/// Longest one look may take.
const LOOK: Duration = Duration::from_secs(10);
/// Between two signs of life: each is a line of the log.
const SIGN: Duration = Duration::from_secs(10);

impl Dispatcher {
    /// Calls the service and says how it ended; `None` when the delivery is over for another reason.
    pub(super) async fn call_mapped(&self, d: &Delivery, mapping: &Rest, base: &str) -> Option<Receipt> {
        let (guard, secrets) = (&self.inner.guard, &self.inner.settings.header_secrets);
        let tell = |receipt: Receipt| self.with(|engine, now| engine.receipt(now, d.id, Some(&d.target.agent), d.delivery, receipt));
        let task = match &d.task {
            Some(task) => task.to_string(),
            None => {
                let call = match rest::call(mapping, base, d.envelope.payload.as_ref(), http::headers(d), secrets, d.limits.processing) {
                    Ok(call) => call,
                    Err(receipt) => return Some(receipt),
                };
                let task = match rest::read(mapping, base, guard.call(call).await) {
                    Meaning::Receipt(receipt) => return Some(receipt),
                    Meaning::Task(url) => url,
                };
                // called off meanwhile: nobody waits for the task any more
                tell(Receipt::Task(Arc::from(&*task))).ok()?;
                task
            }
        };
        let states = d.target.states.clone().unwrap_or_default();
        let every = mapping.poll.as_ref().map_or(Duration::from_secs(1), |p| p.every);
        let begin = self.now_ms();
        let past = |since: i64, span: Duration| self.now_ms().saturating_sub(since) >= i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let mut sign = begin;
        loop {
            tokio::time::sleep(every).await;
            if past(begin, d.limits.processing.max(d.limits.total)) {
                let reason = Arc::from("the task was still at work when its time was over");
                return Some(Receipt::Nacked { cause: Cause::Timeout, reason, retry_after: None });
            }
            if past(sign, SIGN) {
                sign = self.now_ms();
                tell(Receipt::Progress(None)).ok()?;
            }
            let look = match rest::look(mapping, &task, secrets, LOOK) {
                Ok(look) => look,
                Err(reason) => return Some(Receipt::Nacked { cause: Cause::Blocked, reason: Arc::from(reason), retry_after: None }),
            };
            if let Some(receipt) = rest::read_look(mapping, &states, guard.call(look).await) {
                return Some(receipt);
            }
        }
    }
}
