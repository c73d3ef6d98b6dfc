//! `agentreach.v1.Dispatch`.

use crate::api::grpc::{call, status::status};
use crate::api::pb;
use crate::api::service::Service;
use crate::error::{Code, Error};
use futures::stream::{BoxStream, StreamExt};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The service over the shared functions.
pub struct Dispatch {
    service: Arc<Service>,
    stop: CancellationToken,
}

impl Dispatch {
    /// Over the shared functions. Streams end when `stop` is cancelled.
    pub fn new(service: Arc<Service>, stop: CancellationToken) -> Self {
        Self { service, stop }
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(answer: Result<T, Error>) -> Answer<T> {
    answer.map(Response::new).map_err(|e| status(&e))
}

#[tonic::async_trait]
impl pb::dispatch_server::Dispatch for Dispatch {
    type SubmitStreamStream = BoxStream<'static, Result<pb::MessageEvent, Status>>;
    type WatchStream = BoxStream<'static, Result<pb::MessageEvent, Status>>;
    type WorkStream = BoxStream<'static, Result<pb::WorkItem, Status>>;

    async fn submit(&self, request: Request<pb::SubmitRequest>) -> Answer<pb::Reply> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.submit(&call, request.into_inner()).await)
    }

    async fn submit_stream(&self, request: Request<pb::SubmitRequest>) -> Answer<Self::SubmitStreamStream> {
        let call = call(&self.service, request.metadata())?;
        let events = self.service.submit_stream(&call, request.into_inner()).await;
        answer(events.map(|events| events.map(Ok).take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn get(&self, request: Request<pb::GetMessageRequest>) -> Answer<pb::Message> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.get_message(&call, request.into_inner()).await)
    }

    async fn watch(&self, request: Request<pb::GetMessageRequest>) -> Answer<Self::WatchStream> {
        let call = call(&self.service, request.metadata())?;
        let events = self.service.watch_message(&call, request.into_inner()).await;
        answer(events.map(|events| events.map(Ok).take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn cancel(&self, request: Request<pb::CancelRequest>) -> Answer<pb::Reply> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.cancel(&call, request.into_inner()).await)
    }

    async fn work(&self, request: Request<Streaming<pb::WorkRequest>>) -> Answer<Self::WorkStream> {
        let call = call(&self.service, request.metadata())?;
        let mut requests = request.into_inner();
        let Some(first) = requests.message().await? else {
            return Err(status(&Error::invalid_at("/agent", "a first request that names the agent", "send it before anything else")));
        };
        let rest = requests.map(|r| r.map_err(|e| Error::new(Code::InvalidArgument, e.message().to_string()))).boxed();
        let items = self.service.work(&call, first, rest).await.map_err(|e| status(&e))?;
        let items = items.map(|item| item.map_err(|e| status(&e)));
        Ok(Response::new(items.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Answer<pb::ReceiptReply> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.ack(&call, request.into_inner()).await)
    }

    async fn nack(&self, request: Request<pb::NackRequest>) -> Answer<pb::ReceiptReply> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.nack(&call, request.into_inner()).await)
    }

    async fn receipt(&self, request: Request<pb::ReceiptRequest>) -> Answer<pb::ReceiptReply> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.receipt(&call, request.into_inner()).await)
    }

    async fn list_messages(&self, request: Request<pb::ListMessagesRequest>) -> Answer<pb::ListMessagesResponse> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.list_messages(&call, request.into_inner(), false).await)
    }

    async fn list_dead_letters(&self, request: Request<pb::ListMessagesRequest>) -> Answer<pb::ListMessagesResponse> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.list_messages(&call, request.into_inner(), true).await)
    }

    async fn replay(&self, request: Request<pb::ReplayRequest>) -> Answer<pb::ReplayResponse> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.replay(&call, request.into_inner()).await)
    }

    async fn stats(&self, request: Request<pb::StatsRequest>) -> Answer<pb::StatsResponse> {
        let call = call(&self.service, request.metadata())?;
        answer(self.service.stats(&call).await)
    }
}
