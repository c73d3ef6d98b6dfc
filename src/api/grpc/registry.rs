//! `agentreach.v1.Registry`.

use crate::api::convert;
use crate::api::grpc::{call, status::status};
use crate::api::pb;
use crate::api::service::Service;
use futures::stream::{BoxStream, StreamExt};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// The service over the shared functions.
pub struct Registry {
    service: Arc<Service>,
    stop: CancellationToken,
}

impl Registry {
    /// Over the shared functions. Watches end when `stop` is cancelled.
    pub fn new(service: Arc<Service>, stop: CancellationToken) -> Self {
        Self { service, stop }
    }
}

#[tonic::async_trait]
impl pb::registry_server::Registry for Registry {
    type WatchStream = BoxStream<'static, Result<pb::RegistryEvent, Status>>;

    async fn register(&self, request: Request<pb::RegisterRequest>) -> Result<Response<pb::RegisterResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        let document = convert::manifest_document(request.into_inner().manifest).map_err(|e| status(&e))?;
        self.service.register(&call, document).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn heartbeat(&self, request: Request<pb::HeartbeatRequest>) -> Result<Response<pb::AgentState>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.heartbeat(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn drain(&self, request: Request<pb::DrainRequest>) -> Result<Response<pb::AgentState>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.drain(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn deregister(&self, request: Request<pb::DeregisterRequest>) -> Result<Response<pb::DeregisterResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.deregister(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::AgentState>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.get(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Result<Response<pb::ListResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.list(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let call = call(&self.service, request.metadata())?;
        let events = self.service.watch(&call).map_err(|e| status(&e))?;
        Ok(Response::new(events.map(Ok).take_until(self.stop.clone().cancelled_owned()).boxed()))
    }
}
