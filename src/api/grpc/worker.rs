//! The messages of `agentreach.v1.Worker`, which agents implement and the dispatcher calls.
//!
//! Invariant: what an agent answers is bounded before it is decoded, as on every door. Not here: the call (`dispatch::grpc`).

use crate::api::convert_message::{work, work_receipt};
use crate::api::grpc::wire::{self, Refusal};
use crate::api::pb;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::grpc::Codec;
use prost::{Message, Name};

/// Generated messages on both sides.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerCodec;

impl Codec for WorkerCodec {
    fn work(&self, delivery: &Delivery) -> Vec<u8> {
        work(delivery).encode_to_vec()
    }

    fn receipt(&self, delivery: &Delivery, bytes: &[u8]) -> Result<Receipt, String> {
        wire::look(&pb::WorkReceipt::full_name(), bytes).map_err(|refusal| match refusal {
            Refusal::Malformed => "the bytes are no protobuf message".to_string(),
            Refusal::TooMuch(what) => format!("it has too many {what}"),
        })?;
        let m = pb::WorkReceipt::decode(bytes).map_err(|e| e.to_string())?;
        let other =
            (!m.reach_id.is_empty() && m.reach_id != delivery.id.to_string()) || (m.delivery != 0 && m.delivery != delivery.delivery);
        if other {
            return Err("it names another delivery than the one that was sent".into());
        }
        work_receipt(m).map_err(|e| e.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::port::Target;
    use crate::dispatch::timeouts::{Known, limits};
    use crate::types::envelope::{ReachId, Source, SubmitRequest};
    use crate::types::{AgentKey, Namespace, Principal};
    use std::sync::Arc;

    fn delivery() -> Delivery {
        let biz_tags = [("order".to_string(), "7".to_string())].into();
        let request = SubmitRequest { intent: Some("work".into()), biz_tags, ..SubmitRequest::default() };
        let envelope = Arc::new(request.check(Principal::local("me"), 0, ReachId(7)).unwrap());
        let target = Target::plain(AgentKey::local(Namespace::new("ns").unwrap(), "a"), "work");
        Delivery {
            id: ReachId(7),
            delivery: 2,
            envelope,
            target,
            source: Source::Client,
            fix: None,
            task: None,
            limits: limits(&Known::default()),
        }
    }

    fn read(m: pb::WorkReceipt) -> Result<Receipt, String> {
        WorkerCodec.receipt(&delivery(), &m.encode_to_vec())
    }

    #[test]
    fn receipts_belong_to_the_delivery_that_was_sent() {
        let ack = pb::WorkReceipt { kind: "ack".into(), data: Some("7".into()), ..Default::default() };
        assert!(matches!(read(ack.clone()), Ok(Receipt::Acked(_))), "names may be left out");
        let named = pb::WorkReceipt { reach_id: ReachId(7).to_string(), delivery: 2, ..ack.clone() };
        assert!(matches!(read(named), Ok(Receipt::Acked(_))));
        assert!(read(pb::WorkReceipt { delivery: 1, ..ack.clone() }).is_err());
        assert!(read(pb::WorkReceipt { reach_id: ReachId(8).to_string(), ..ack.clone() }).is_err());
        assert!(read(pb::WorkReceipt { kind: "finished".into(), ..ack.clone() }).is_err());
        assert!(read(pb::WorkReceipt { data: Some("{".into()), ..ack }).is_err());
        assert!(WorkerCodec.receipt(&delivery(), &[0xff; 40]).is_err());
    }

    #[test]
    fn work_is_the_twin_of_the_push_over_http() {
        let m = pb::Work::decode(WorkerCodec.work(&delivery()).as_slice()).unwrap();
        let pushed = serde_json::to_value(crate::dispatch::http::pushed(&delivery(), &delivery().envelope)).unwrap();
        let twin = serde_json::to_value(&m).unwrap();
        for (key, value) in pushed.as_object().unwrap() {
            assert_eq!(&twin[key], value, "{key}");
        }
    }
}
