//! Deliveries to existing REST services: the mapped call, then looks at the task until it is over. Each look is a sign of life of the delivery.

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

impl Dispatcher {
    /// Calls the service and says how it ended; `None` when the delivery is over for another reason.
    pub(super) async fn call_mapped(&self, d: &Delivery, mapping: &Rest, base: &str) -> Option<Receipt> {
        let (guard, secrets) = (&self.inner.guard, &self.inner.settings.header_secrets);
        let call = match rest::call(mapping, base, d.envelope.payload.as_ref(), http::headers(d), secrets, d.limits.processing) {
            Ok(call) => call,
            Err(receipt) => return Some(receipt),
        };
        let task = match rest::read(mapping, base, guard.call(call).await) {
            Meaning::Receipt(receipt) => return Some(receipt),
            Meaning::Task(url) => url,
        };
        let states = d.target.states.clone().unwrap_or_default();
        let every = mapping.poll.as_ref().map_or(Duration::from_secs(1), |p| p.every);
        loop {
            let alive = self.with(|engine, now| engine.receipt(now, d.id, Some(&d.target.agent), d.delivery, Receipt::Progress(None)));
            // called off, or its lease ran out: nobody waits for the task any more
            alive.ok()?;
            tokio::time::sleep(every).await;
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
