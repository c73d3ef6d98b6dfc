//! `reach up` and `reach serve`: the arguments; what they do is `app`.

use crate::config::Override;
use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};

/// Starts everything on this machine, with a demonstration if asked for.
#[derive(Args, Debug, Default)]
pub struct Up {
    /// Registers the demonstration fleet, asks three questions and shows the answers.
    #[arg(long)]
    pub demo: bool,
    /// Stops after the answers.
    #[arg(long, requires = "demo")]
    pub exit: bool,
    /// Where to listen.
    #[command(flatten)]
    pub listen: Listen,
}

/// Starts the server.
#[derive(Args, Debug, Default)]
pub struct Serve {
    /// Where to listen.
    #[command(flatten)]
    pub listen: Listen,
}

/// Where to listen.
#[derive(Args, Debug, Default)]
pub struct Listen {
    /// Port of gRPC; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    pub grpc_port: Option<u16>,
    /// Port of HTTP; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    pub http_port: Option<u16>,
    /// Address and port of gRPC, such as 127.0.0.1:7700.
    #[arg(long, value_name = "IP:PORT", conflicts_with = "grpc_port")]
    pub grpc_addr: Option<SocketAddr>,
    /// Address and port of HTTP, such as 127.0.0.1:7701.
    #[arg(long, value_name = "IP:PORT", conflicts_with = "http_port")]
    pub http_addr: Option<SocketAddr>,
    /// Allows an address that other machines can reach, without transport security.
    #[arg(long)]
    pub insecure_bind: bool,
}

impl From<Serve> for Up {
    fn from(serve: Serve) -> Self {
        Self { demo: false, exit: false, listen: serve.listen }
    }
}

impl Up {
    /// The settings that these flags change.
    pub fn overrides(&self) -> Vec<Override> {
        let listen = &self.listen;
        let mut overrides = Vec::new();
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let doors = [
            ("server.grpc_addr", listen.grpc_addr, listen.grpc_port, "--grpc-addr", "--grpc-port"),
            ("server.http_addr", listen.http_addr, listen.http_port, "--http-addr", "--http-port"),
        ];
        for (key, addr, port, by_addr, by_port) in doors {
            if let Some(addr) = addr {
                overrides.push(Override::new(key, addr.to_string(), by_addr));
            } else if let Some(port) = port {
                overrides.push(Override::new(key, local(port).to_string(), by_port));
            }
        }
        if listen.insecure_bind {
            overrides.push(Override::new("server.insecure_bind", "true", "--insecure-bind"));
        }
        overrides
    }
}
