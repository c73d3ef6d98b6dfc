//! `agentreach.v1.Matcher`.

use crate::api::grpc::{call, status::status};
use crate::api::pb;
use crate::api::service::Service;
use futures::stream::{self, BoxStream, StreamExt};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The service over the shared functions.
pub struct Matcher {
    service: Arc<Service>,
    stop: CancellationToken,
}

impl Matcher {
    /// Over the shared functions. Streams read no further requests when `stop` is cancelled.
    pub fn new(service: Arc<Service>, stop: CancellationToken) -> Self {
        Self { service, stop }
    }
}

#[tonic::async_trait]
impl pb::matcher_server::Matcher for Matcher {
    type ResolveStreamStream = BoxStream<'static, Result<pb::ResolveResult, Status>>;

    async fn resolve(&self, request: Request<pb::ResolveRequest>) -> Result<Response<pb::ResolveResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.resolve(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn resolve_batch(&self, request: Request<pb::ResolveBatchRequest>) -> Result<Response<pb::ResolveBatchResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.resolve_batch(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn resolve_stream(&self, request: Request<Streaming<pb::ResolveRequest>>) -> Result<Response<Self::ResolveStreamStream>, Status> {
        let call = call(&self.service, request.metadata())?;
        // requests that can't be read end the stream: answers to those before come first, then the status
        let broken: Arc<Mutex<Option<Status>>> = Arc::default();
        let noted = broken.clone();
        let requests = request.into_inner().scan((), move |(), next| {
            let next = next.map_err(|e| *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(e)).ok();
            futures::future::ready(next)
        });
        let requests = requests.take_until(self.stop.clone().cancelled_owned());
        let answers = self.service.resolve_stream(call, requests.boxed()).map_err(|e| status(&e))?;
        let last = stream::once(async move { broken.lock().unwrap_or_else(PoisonError::into_inner).take() });
        let last = last.filter_map(|e| futures::future::ready(e.map(Err)));
        Ok(Response::new(answers.map(Ok).chain(last).boxed()))
    }
}
