//! `agentreach.v1.Feedback`.

use crate::api::grpc::{call, status::status};
use crate::api::pb;
use crate::api::service::Service;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service over the shared functions.
pub struct Feedback {
    service: Arc<Service>,
}

impl Feedback {
    /// Over the shared functions.
    pub fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl pb::feedback_server::Feedback for Feedback {
    async fn report(&self, request: Request<pb::ReportRequest>) -> Result<Response<pb::ReportResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.report(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn list(&self, request: Request<pb::ListOutcomesRequest>) -> Result<Response<pb::ListOutcomesResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.outcomes(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }

    async fn forget(&self, request: Request<pb::ForgetRequest>) -> Result<Response<pb::ForgetResponse>, Status> {
        let call = call(&self.service, request.metadata())?;
        self.service.forget(&call, request.into_inner()).await.map(Response::new).map_err(|e| status(&e))
    }
}
