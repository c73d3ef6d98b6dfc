//! The front doors: gRPC and HTTP over the same service functions.
//!
//! A door turns bytes into the messages of `proto/`, the credential into a [`crate::types::Principal`], calls
//! [`service`], and turns the answer or the [`crate::error::Error`] back into bytes. What it may not do is decide anything:
//! the same request gets the same answer on every door.
//!
//! Not here: what the registry and the matcher do (behind [`ports`]), wiring (`app`), the command line (`cli`).

pub mod auth;
pub mod convert;
pub mod convert_message;
mod deliver;
mod feedback;
pub mod grpc;
pub mod http;
pub mod json;
mod json_fields;
pub mod listen;
pub mod pb;
pub mod ports;
pub mod service;
mod trace;

use crate::config::Server;
use crate::error::Error;
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Gauge, set, upkeep};
use service::{Door, Service};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Where the doors stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    /// gRPC.
    pub grpc: SocketAddr,
    /// HTTP.
    pub http: SocketAddr,
}

/// Whether both doors can be bound, told before anything slow is begun. Nothing stays bound.
pub async fn check(server: &Server) -> Result<(), Error> {
    drop(listen::bind(server.grpc_addr, "server.grpc_addr", "--grpc-port").await?);
    drop(listen::bind(server.http_addr, "server.http_addr", "--http-port").await?);
    Ok(())
}

/// Binds both doors and serves until `tasks` stop. Both are bound before either is served.
pub async fn open(service: &Arc<Service>, server: &Server, tasks: &Tasks) -> Result<Doors, Error> {
    let grpc = listen::bind(server.grpc_addr, "server.grpc_addr", "--grpc-port").await?;
    let http = listen::bind(server.http_addr, "server.http_addr", "--http-port").await?;
    let doors = Doors { grpc: grpc.local_addr().map_err(Error::internal)?, http: http.local_addr().map_err(Error::internal)? };
    let (grpc_routes, health) = grpc::routes(service, &tasks.stop(Stage::Serve))?;
    listen::serve(tasks, grpc, Door::Grpc, grpc::PROTOCOL, &server.limits, grpc_routes);
    listen::serve(tasks, http, Door::Http, http::PROTOCOL, &server.limits, http::routes(service, tasks));
    let (service, stop) = (service.clone(), tasks.stop(Stage::Accept));
    let reporting = async move {
        loop {
            let ready = tokio::select! {
                () = stop.cancelled() => false,
                ready = service.ready() => ready.is_ok(),
            };
            let status = if ready { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing };
            for name in ["", "agentreach.v1.Registry", "agentreach.v1.Matcher", "agentreach.v1.Dispatch"] {
                health.set_service_status(name, status).await;
            }
            set(Gauge::Ready, &[], f64::from(u8::from(ready)));
            upkeep();
            if stop.is_cancelled() {
                return;
            }
            let pause = if ready { HEALTH_PAUSE } else { HEALTH_PAUSE / 10 };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    };
    drop(tasks.spawn(Stage::Accept, "health", reporting));
    Ok(doors)
}

/// Pause between looks at readiness for the standard gRPC health service; a tenth of it while not ready.
const HEALTH_PAUSE: Duration = Duration::from_secs(5);
