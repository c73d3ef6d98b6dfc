//! Listening sockets and their connections: the same loop and the same limits under both doors.
//!
//! Invariants: at most `limits.connections` connections of a door (further ones wait in the kernel's queue); every
//! connection is a task of [`Tasks`]; headers that come too slowly, too large header lists, too many streams and peers
//! that no longer answer end their connection, not the server. On shutdown connections finish what is under way.
//!
//! Not here: bodies and messages (the doors), transport security.

use crate::api::service::Door;
use crate::config::Limits;
use crate::error::{Code, Error};
use crate::tasks::{Stage, Tasks};
use crate::telemetry::metrics::{Gauge, add};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// What a door speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1 and HTTP/2.
    Any,
    /// HTTP/2 alone.
    Http2Only,
}

/// Binds an address. `key` is its setting and `flag` what changes it, for the message.
pub async fn bind(addr: SocketAddr, key: &str, flag: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(addr).await.map_err(|e| {
        let hint = if e.kind() == std::io::ErrorKind::AddrInUse {
            format!("another program listens there: stop it, or choose another port with {flag}")
        } else if e.kind() == std::io::ErrorKind::PermissionDenied {
            format!("ports under 1024 need rights: choose another with {flag}")
        } else {
            format!("choose another address with {flag}")
        };
        Error::new(Code::FailedPrecondition, format!("can't listen on {addr} ({key}): {e}; {hint}"))
    })
}

/// Serves `router` on `listener` until the stage [`Stage::Accept`] stops; connections then get [`Stage::Serve`]'s time.
pub fn serve(tasks: &Tasks, listener: TcpListener, door: Door, protocol: Protocol, limits: &Limits, router: axum::Router) {
    let limits = limits.clone();
    let owner = tasks.clone();
    let accepting = async move {
        let places = Arc::new(Semaphore::new(limits.connections));
        let stop = owner.stop(Stage::Accept);
        let builder = builder(&owner, &limits);
        let patience = limits.header_timeout;
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let stream = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(e) => {
                        // out of file descriptors, or the peer left: neither is the end
                        tracing::warn!(door = door.as_str(), "a connection could not be accepted: {e}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            let (builder, router, stop) = (builder.clone(), router.clone(), stop.clone());
            let connection = async move {
                let _place = place;
                add(Gauge::Connections, &[door.as_str()], 1.0);
                serve_one(&builder, stream, router, stop, protocol, patience).await;
                add(Gauge::Connections, &[door.as_str()], -1.0);
            };
            drop(owner.spawn(Stage::Serve, connection_name(door), connection));
        }
    };
    drop(tasks.spawn(Stage::Accept, door.as_str(), accepting));
}

fn connection_name(door: Door) -> &'static str {
    match door {
        Door::Grpc => "grpc-connection",
        Door::Http => "http-connection",
    }
}

fn builder(tasks: &Tasks, limits: &Limits) -> auto::Builder<Tasks> {
    let mut builder = auto::Builder::new(tasks.clone());
    let streams = u32::try_from(limits.streams).unwrap_or(u32::MAX);
    let headers = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8192))
        .max_headers(64);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(headers)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .max_send_buf_size(256 * 1024)
        .keep_alive_interval(limits.keepalive)
        .keep_alive_timeout(limits.keepalive_timeout);
    builder
}

/// Whether the peer begins with the preface of HTTP/2; nothing when it does not say anything in time, or something else than the door speaks.
async fn speaks_http2(stream: &TcpStream, protocol: Protocol, patience: Duration) -> Option<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let looking = async {
        let mut first = [0u8; 24];
        loop {
            let n = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
            let seen = first.get(..n)?;
            if seen == PREFACE {
                return Some(true);
            }
            if !PREFACE.starts_with(seen) {
                return (protocol == Protocol::Any).then_some(false);
            }
            // a part of the preface: more must come
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(patience, looking).await.ok().flatten()
}

async fn serve_one(
    builder: &auto::Builder<Tasks>,
    stream: TcpStream,
    router: axum::Router,
    stop: tokio_util::sync::CancellationToken,
    protocol: Protocol,
    patience: Duration,
) {
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!("TCP_NODELAY: {e}");
    }
    let Some(http2) = speaks_http2(&stream, protocol, patience).await else { return };
    let builder = if http2 { builder.clone().http2_only() } else { builder.clone().http1_only() };
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        // the peer's doing (reset, too slow, not HTTP): of interest only when one looks for it
        tracing::debug!("a connection ended early: {e}");
    }
}
