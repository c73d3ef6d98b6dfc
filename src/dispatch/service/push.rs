//! Deliveries to agents that are called: the endpoint, the call over its protocol, the receipt; and the end of a call that nobody waits for any more.
//!
//! Invariant: a call whose delivery is over (called off, its lease ran out) is dropped at once: the connection closes or the stream is reset, and an MCP
//! server, which is not told by that, is told in words. Not here: the protocols (`http`, `grpc`, `mcp`), who is called (`engine`).

use super::Dispatcher;
use crate::dispatch::engine::{Delivery, NoReceipt, Receipt};
use crate::dispatch::port::Reach;
use crate::dispatch::state::Refused;
use crate::dispatch::{grpc, http, mcp};
use crate::tasks::Stage;
use crate::types::AgentKey;
use crate::types::envelope::ReachId;
use crate::types::manifest::{Endpoint, Protocol};
use crate::types::message::Cause;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

impl Dispatcher {
    /// Hands a delivery to its agent.
    pub(super) fn send(&self, delivery: Box<Delivery>) {
        if self.inner.next.describe(&delivery.target.agent, &delivery.target.capability).is_none() {
            // it was taken away while the message waited
            return self.unsent(&delivery, "the agent is no longer registered with this capability");
        }
        if delivery.target.reach == Reach::Pull {
            return self.hand_over(delivery);
        }
        let (this, stop) = (self.clone(), CancellationToken::new());
        self.inner.calls.lock().insert((delivery.id, delivery.delivery), stop.clone());
        self.inner.tasks.spawn(Stage::Work, "dispatch-push", async move {
            let (id, number, agent) = (delivery.id, delivery.delivery, delivery.target.agent.clone());
            let mapped = delivery.target.rest.is_some();
            let endpoint = http::choose(&delivery.target.endpoints, mapped, &mut this.inner.dice.lock()).cloned();
            let receipt = match &endpoint {
                Some(endpoint) => tokio::select! {
                    receipt = this.call_agent(&delivery, endpoint) => receipt,
                    () = stop.cancelled() => {
                        if endpoint.protocol == Protocol::Mcp {
                            mcp::cancel(&this.inner.guard, &this.inner.mcp, &delivery, &endpoint.address).await;
                        }
                        None
                    }
                },
                None => Some(Receipt::Nacked { cause: Cause::Connect, reason: Arc::from("no address to call"), retry_after: None }),
            };
            this.inner.calls.lock().remove(&(id, number));
            if let Some(receipt) = receipt {
                let receipt = this.checked(&agent, &delivery.target.capability, receipt);
                // it may be over meanwhile: then nobody waits for this
                this.with(|engine, now| engine.receipt(now, id, Some(&agent), number, receipt).ok());
            }
        });
    }

    /// Drops the call of a delivery that is over, if there is one.
    pub(super) fn hang_up(&self, id: ReachId, delivery: u32) {
        if let Some(stop) = self.inner.calls.lock().remove(&(id, delivery)) {
            stop.cancel();
        }
    }

    /// Calls the agent and reads its answer; `None` when the rest follows by itself or nobody waits any more.
    async fn call_agent(&self, d: &Delivery, endpoint: &Endpoint) -> Option<Receipt> {
        let (guard, address) = (&self.inner.guard, endpoint.address.as_str());
        let on_the_way = |receipt: Receipt| {
            let told = self.with(|engine, now| engine.receipt(now, d.id, Some(&d.target.agent), d.delivery, receipt));
            matches!(told, Ok(_) | Err(NoReceipt::Refused(Refused::Already)))
        };
        match (endpoint.protocol, d.target.rest.clone()) {
            (Protocol::Http, Some(mapping)) => self.call_mapped(d, &mapping, address).await,
            (Protocol::Http, None) => Some(http::deliver(guard, d, address).await),
            (Protocol::Grpc, _) => grpc::deliver(guard, &*self.inner.grpc, d, address, &on_the_way).await,
            (Protocol::Mcp, _) => {
                let tool = d.target.tool.as_deref().unwrap_or(&d.target.capability);
                mcp::deliver(guard, &self.inner.mcp, d, address, tool, &on_the_way).await
            }
            (Protocol::Pull, _) => {
                Some(Receipt::Nacked { cause: Cause::Connect, reason: Arc::from("it fetches its work"), retry_after: None })
            }
        }
    }

    /// Holds a result against the output schema: what does not fit becomes a failed attempt with the reasons.
    pub(super) fn checked(&self, agent: &AgentKey, capability: &str, receipt: Receipt) -> Receipt {
        let Receipt::Acked(reply) = &receipt else { return receipt };
        let data = reply.data.as_ref().map(|d| d.value()).unwrap_or(serde_json::Value::Null);
        let faults = self.inner.next.faults_of_result(agent, capability, &data);
        let Some(first) = faults.first() else { return receipt };
        let more = if faults.len() > 1 { format!(" (and {} more)", faults.len() - 1) } else { String::new() };
        Receipt::Nacked { cause: Cause::Schema, reason: Arc::from(format!("the result does not fit: {first}{more}")), retry_after: None }
    }
}
