//! Addresses of the doors, and every limit that stands between a caller and the memory of the process.

use crate::config::reader::Reader;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// `[server]`
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where gRPC listens; port 0 takes a free one.
    pub grpc_addr: SocketAddr,
    /// Where HTTP listens; port 0 takes a free one.
    pub http_addr: SocketAddr,
    /// Whether an address that others can reach is allowed (there is no transport security yet).
    pub insecure_bind: bool,
    /// How long open requests may take after the stop signal.
    pub grace: Duration,
    /// Limits.
    pub limits: Limits,
}

/// `[server.limits]`: the same on both doors.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Largest message, bytes.
    pub message_bytes: usize,
    /// Largest query text in characters; longer ones are cut, not refused.
    pub text_chars: usize,
    /// Most candidates in an answer, 1..=50.
    pub k_max: usize,
    /// Connections of one door; more wait to be accepted.
    pub connections: usize,
    /// Streams (calls at once) of one HTTP/2 connection.
    pub streams: usize,
    /// Requests under way in the whole process; more are refused as `overloaded`.
    pub requests: usize,
    /// Requests of one ResolveStream that are under way at once; further ones are read later.
    pub stream_in_flight: usize,
    /// Watches and streams that are open at once.
    pub watchers: usize,
    /// Largest header list of a request, bytes.
    pub header_bytes: usize,
    /// Time for the headers of a request to arrive.
    pub header_timeout: Duration,
    /// Time for the body of a request to arrive.
    pub body_timeout: Duration,
    /// Pause between pings on an idle HTTP/2 connection.
    pub keepalive: Duration,
    /// Time for a ping to be answered.
    pub keepalive_timeout: Duration,
    /// Time for a request that names no deadline.
    pub deadline_default: Duration,
    /// Longest deadline a request can ask for.
    pub deadline_max: Duration,
}

impl Server {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Self {
            grpc_addr: r.addr("grpc_addr", local(7700)),
            http_addr: r.addr("http_addr", local(7701)),
            insecure_bind: r.flag("insecure_bind", false),
            grace: r.span("grace", "10s", "0s", "10m"),
            limits: r.section("limits", Limits::read),
        };
        if server.grpc_addr == server.http_addr && server.grpc_addr.port() != 0 {
            r.fault("http_addr", "an address other than server.grpc_addr", "choose another port");
        }
        for (name, addr) in [("grpc_addr", server.grpc_addr), ("http_addr", server.http_addr)] {
            if !addr.ip().is_loopback() && !server.insecure_bind {
                let hint = "without transport security others could read and send requests: use 127.0.0.1 behind a proxy, or allow it with --insecure-bind (server.insecure_bind = true)";
                r.fault(name, "a loopback address", hint);
            }
        }
        server
    }
}

impl Limits {
    fn read(r: &mut Reader<'_>) -> Self {
        let limits = Self {
            message_bytes: r.bytes("message_bytes", "4 MiB", 1024..=64 << 20) as usize,
            text_chars: r.int("text_chars", 8192, 16..=1_000_000),
            k_max: r.int("k_max", 50, 1..=50),
            connections: r.int("connections", 1024, 1..=100_000),
            streams: r.int("streams", 256, 1..=10_000),
            requests: r.int("requests", 1024, 1..=100_000),
            stream_in_flight: r.int("stream_in_flight", 16, 1..=1024),
            watchers: r.int("watchers", 256, 1..=100_000),
            header_bytes: r.bytes("header_bytes", "16 KiB", 8192..=1 << 20) as usize,
            header_timeout: r.span("header_timeout", "10s", "10ms", "10m"),
            body_timeout: r.span("body_timeout", "30s", "10ms", "10m"),
            keepalive: r.span("keepalive", "30s", "1s", "1h"),
            keepalive_timeout: r.span("keepalive_timeout", "10s", "100ms", "10m"),
            deadline_default: r.span("deadline_default", "10s", "1ms", "10m"),
            deadline_max: r.span("deadline_max", "60s", "1ms", "1h"),
        };
        if limits.deadline_default > limits.deadline_max {
            r.fault("deadline_default", "at most server.limits.deadline_max", "lower it, or raise deadline_max");
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Override};

    #[test]
    fn only_loopback_without_a_word() {
        let open = Override::new("server.http_addr", "0.0.0.0:7701", "--http-addr");
        let e = Config::parse("", std::slice::from_ref(&open)).unwrap_err();
        assert_eq!(e.faults[0].pointer, "server.http_addr");
        assert!(e.faults[0].hint.contains("--insecure-bind"));
        assert!(Config::parse("", &[open, Override::new("server.insecure_bind", "true", "--insecure-bind")]).is_ok());
        assert!(Config::parse("[server]\nhttp_addr = \"[::1]:7701\"", &[]).is_ok());
    }

    #[test]
    fn doors_need_two_ports() {
        let e = Config::parse("[server]\nhttp_addr = \"127.0.0.1:7700\"", &[]).unwrap_err();
        assert_eq!(e.faults[0].pointer, "server.http_addr");
        assert!(Config::parse("[server]\nhttp_addr = \"127.0.0.1:0\"\ngrpc_addr = \"127.0.0.1:0\"", &[]).is_ok());
    }
}
