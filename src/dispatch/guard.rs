//! The one client through which every outbound call goes: agents, health checks, callbacks, schema references.
//!
//! In: a [`Call`] with its limits. Out: status, headers and the body, whole or piece by piece, or a [`CallError`] that says whose fault it is.
//! Each call: canonical URL → resolve → every address checked → connection to exactly these addresses. No redirects, no proxies from the
//! environment, no decompression; time, body and headers are bounded. Invariant: no byte is sent to an address that the policy refuses, whatever a
//! name resolved to before. Cost: a pooled connection. Not here: what a status means (`transport`), the rules (`types::address`, `types::outbound`).

use crate::types::address::{Refusal, Use, canonical};
use crate::types::outbound::OutboundPolicy;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Largest body of a health check in bytes.
pub const HEALTH_BODY: usize = 64 * 1024;
/// Largest headers of an answer over HTTP/2, in bytes.
const MAX_HEADERS: u32 = 64 * 1024;
/// Longest health check.
pub const HEALTH_TIME: Duration = Duration::from_secs(2);

/// Turns a name into addresses. A parameter, so that tests can play a server that changes its mind.
pub trait Lookup: Send + Sync + 'static {
    /// All addresses of `name`.
    fn lookup(&self, name: &str) -> futures::future::BoxFuture<'static, std::io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, name: &str) -> futures::future::BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let name = name.to_string();
        Box::pin(async move { Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.map(|a| a.ip()).collect()) })
    }
}

/// Resolves, checks every address, and hands on only what was checked: the connection is made to these.
struct Pinned {
    policy: Arc<OutboundPolicy>,
    lookup: Arc<dyn Lookup>,
}

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, found) = (self.policy.clone(), self.lookup.lookup(name.as_str()));
        Box::pin(async move {
            let ips = found.await?;
            for ip in &ips {
                // one bad address among good ones is enough: the next connection might take it
                policy.check(*ip)?;
            }
            let addrs: Addrs = Box::new(ips.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addrs)
        })
    }
}

/// One outbound call.
#[derive(Clone, Debug)]
pub struct Call {
    /// `GET`, `POST` or `PUT`.
    pub method: reqwest::Method,
    /// Where to.
    pub url: String,
    /// Headers, our own names only.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
    /// For everything, connecting included.
    pub within: Duration,
    /// Largest answer in bytes.
    pub max_body: usize,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Retry-After`, if it is a number of seconds.
    pub retry_after: Option<Duration>,
    /// `Content-Type`.
    pub content_type: String,
    /// `Content-Encoding`; the body is as it came.
    pub encoding: String,
    /// Body.
    pub body: Vec<u8>,
}

/// The beginning of an answer. Its body is read piece by piece, within the bounds of the call.
pub struct Opened {
    status: u16,
    headers: HeaderMap,
    body: reqwest::Body,
    read: usize,
    max_body: usize,
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes of the body, in order.
    Data(Bytes),
    /// What follows the body (HTTP/2).
    Trailers(HeaderMap),
}

impl Opened {
    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// All headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// A header as text; empty when it is absent or no text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Piece>, CallError> {
        while let Some(frame) = self.body.frame().await {
            let frame = match frame.map_err(|e| reason(&e))?.into_data() {
                Ok(data) => {
                    self.read = self.read.saturating_add(data.len());
                    return if self.read > self.max_body { Err(CallError::TooLarge) } else { Ok(Some(Piece::Data(data))) };
                }
                Err(frame) => frame,
            };
            if let Ok(trailers) = frame.into_trailers() {
                return Ok(Some(Piece::Trailers(trailers)));
            }
        }
        Ok(None)
    }

    /// The whole answer.
    pub async fn whole(mut self) -> Result<Answer, CallError> {
        let retry_after = self.header("retry-after").trim().parse().ok().map(Duration::from_secs);
        let (content_type, encoding) = (self.header("content-type").to_string(), self.header("content-encoding").to_ascii_lowercase());
        if self.body.size_hint().lower() > self.max_body as u64 {
            return Err(CallError::TooLarge);
        }
        let mut body = Vec::new();
        while let Some(piece) = self.next().await? {
            if let Piece::Data(data) = piece {
                body.extend_from_slice(&data);
            }
        }
        Ok(Answer { status: self.status, retry_after, content_type, encoding, body })
    }
}

/// Why there is no answer. Words without addresses or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The address may not be called.
    Blocked(Refusal),
    /// No connection: nothing was sent.
    Connect,
    /// Out of time.
    Timeout,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// The answer is larger than allowed.
    TooLarge,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blocked(why) => write!(f, "{}: {why}", why.as_str()),
            Self::Connect => f.write_str("no connection"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Broken => f.write_str("the connection broke"),
            Self::TooLarge => f.write_str("the answer is too large"),
        }
    }
}

/// The guarded client; cheap to clone.
#[derive(Clone)]
pub struct Guard {
    client: reqwest::Client,
    /// The same under the same rules, for HTTP/2 without asking first.
    http2: reqwest::Client,
    policy: Arc<OutboundPolicy>,
    lookup: Arc<dyn Lookup>,
}

impl Guard {
    /// A client under `policy` that uses the system's resolver.
    pub fn new(policy: OutboundPolicy, connect: Duration) -> Result<Self, String> {
        Self::with_lookup(policy, connect, Arc::new(SystemLookup))
    }

    /// The same with a resolver of one's own.
    pub fn with_lookup(policy: OutboundPolicy, connect: Duration, lookup: Arc<dyn Lookup>) -> Result<Self, String> {
        let policy = Arc::new(policy);
        let builder = || {
            reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .referer(false)
                .connect_timeout(connect)
                .pool_idle_timeout(Duration::from_secs(30))
                .pool_max_idle_per_host(32)
                .tcp_nodelay(true)
                .user_agent("agent-reach")
                .dns_resolver(Arc::new(Pinned { policy: policy.clone(), lookup: lookup.clone() }))
        };
        let http2 = builder().http2_prior_knowledge().http2_max_header_list_size(MAX_HEADERS);
        let client = builder().build().map_err(|e| e.to_string())?;
        let http2 = http2.build().map_err(|e| e.to_string())?;
        Ok(Self { client, http2, policy, lookup })
    }

    /// The rules it follows.
    pub fn policy(&self) -> &OutboundPolicy {
        &self.policy
    }

    /// The canonical form of an address that may be called, as far as its text tells. Names are judged again at every connection.
    pub fn check(&self, address: &str) -> Result<String, Refusal> {
        let url = canonical(address, Use::Web)?;
        self.policy.check_url(&url).map(|()| url)
    }

    /// Whether an address would be called, by what its name leads to now; a name that leads nowhere within `within` is not refused.
    pub async fn foresee(&self, address: &str, within: Duration) -> Result<(), Refusal> {
        let url = self.check(address)?;
        let host = url::Url::parse(&url).ok().and_then(|u| match u.host() {
            Some(url::Host::Domain(name)) => Some(name.to_string()),
            Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)) | None => None,
        });
        let Some(host) = host else { return Ok(()) };
        match tokio::time::timeout(within, self.lookup.lookup(&host)).await {
            Ok(Ok(found)) => found.into_iter().try_for_each(|ip| self.policy.check(ip)),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Makes one call and reads its whole answer.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        self.open(call).await?.whole().await
    }

    /// Makes one call; the body of the answer is read piece by piece.
    pub async fn open(&self, call: Call) -> Result<Opened, CallError> {
        self.begin(&self.client, call).await
    }

    /// The same over HTTP/2, in the clear too: what gRPC speaks.
    pub async fn open_http2(&self, call: Call) -> Result<Opened, CallError> {
        self.begin(&self.http2, call).await
    }

    async fn begin(&self, client: &reqwest::Client, call: Call) -> Result<Opened, CallError> {
        // addresses written as such never reach the resolver: checked here, names in `Pinned`
        let url = self.check(&call.url).map_err(CallError::Blocked)?;
        let mut request = client.request(call.method, url).timeout(call.within).body(call.body);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(|e| reason(&e))?;
        let (head, body) = hyper::Response::<reqwest::Body>::from(answer).into_parts();
        Ok(Opened { status: head.status.as_u16(), headers: head.headers, body, read: 0, max_body: call.max_body })
    }

    /// Asks a health address: true for 2xx inside two seconds and 64 KiB.
    pub async fn healthy(&self, url: &str) -> Result<bool, CallError> {
        let call = Call {
            method: reqwest::Method::GET,
            url: url.to_string(),
            headers: Vec::new(),
            body: Vec::new(),
            within: HEALTH_TIME,
            max_body: HEALTH_BODY,
        };
        self.call(call).await.map(|a| (200..300).contains(&a.status))
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("policy", &self.policy).finish_non_exhaustive()
    }
}

fn reason(e: &reqwest::Error) -> CallError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(inner) = source {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return CallError::Blocked(*refusal);
        }
        source = inner.source();
    }
    if e.is_connect() {
        CallError::Connect
    } else if e.is_timeout() {
        CallError::Timeout
    } else {
        CallError::Broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::outbound::AddressClass;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers every connection with `parts`, one after the other; counts connections.
    async fn server(parts: Vec<(Duration, Vec<u8>)>, endless: bool) -> (SocketAddr, Arc<AtomicU32>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, count) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
        let seen = count.clone();
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                seen.fetch_add(1, Ordering::SeqCst);
                let parts = parts.clone();
                tokio::spawn(async move {
                    let mut buf = [0u8; 4096];
                    if stream.read(&mut buf).await.is_err() {
                        return;
                    }
                    loop {
                        for (pause, bytes) in &parts {
                            tokio::time::sleep(*pause).await;
                            if stream.write_all(bytes).await.is_err() {
                                return;
                            }
                        }
                        if !endless {
                            return;
                        }
                    }
                });
            }
        });
        (at, count)
    }

    fn guard() -> Guard {
        Guard::new(OutboundPolicy::default(), Duration::from_secs(2)).unwrap()
    }

    const NOW: Duration = Duration::ZERO;

    #[tokio::test]
    async fn no_redirect_is_followed() {
        let (inner, inner_seen) = server(vec![(NOW, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())], false).await;
        let redirect = format!("HTTP/1.1 302 Found\r\nlocation: http://{inner}/\r\ncontent-length: 0\r\n\r\n");
        let (outer, _) = server(vec![(NOW, redirect.into_bytes())], false).await;
        assert_eq!(guard().healthy(&format!("http://{outer}/")).await, Ok(false));
        assert_eq!(inner_seen.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn endless_bodies_are_cut_off() {
        let head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        let (at, _) = server(vec![(NOW, head), (NOW, vec![b'x'; 100_000])], true).await;
        assert_eq!(guard().healthy(&format!("http://{at}/")).await, Err(CallError::TooLarge));
        let (at, _) = server(vec![(NOW, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n".to_vec())], false).await;
        assert_eq!(guard().healthy(&format!("http://{at}/")).await, Err(CallError::TooLarge));
    }

    #[tokio::test]
    async fn one_byte_at_a_time_is_too_slow() {
        let start = b"HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n".to_vec();
        let (at, _) = server(vec![(NOW, start), (Duration::from_millis(100), vec![b'x'])], true).await;
        assert!(matches!(guard().healthy(&format!("http://{at}/")).await, Err(CallError::Timeout | CallError::Broken)));
    }

    #[tokio::test]
    async fn headers_of_a_megabyte_break_the_call() {
        let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(1_000_000));
        let (at, _) = server(vec![(NOW, head.into_bytes())], false).await;
        assert!(guard().healthy(&format!("http://{at}/")).await.is_err());
    }

    #[tokio::test]
    async fn compressed_bodies_stay_compressed() {
        let body = vec![0u8; 1_000];
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1000\r\n\r\n".to_vec();
        answer.extend(&body);
        let (at, _) = server(vec![(NOW, answer)], false).await;
        let call = Call {
            method: reqwest::Method::GET,
            url: format!("http://{at}/"),
            headers: vec![],
            body: vec![],
            within: HEALTH_TIME,
            max_body: 2_000,
        };
        assert_eq!(guard().call(call).await.unwrap().body, body);
    }

    #[tokio::test]
    async fn nobody_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(guard().healthy(&format!("http://{at}/")).await, Err(CallError::Connect));
    }

    /// Public at the first question, this machine at the second.
    struct Turncoat(AtomicU32);

    impl Lookup for Turncoat {
        fn lookup(&self, _: &str) -> futures::future::BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
            let first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
            let ips = if first {
                vec!["192.0.2.1".parse().unwrap()]
            } else {
                vec!["93.184.216.34".parse().unwrap(), "127.0.0.1".parse().unwrap()]
            };
            Box::pin(async move { Ok(ips) })
        }
    }

    #[tokio::test]
    async fn a_name_that_turns_inward_is_refused_at_connect() {
        let (at, seen) = server(vec![(NOW, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())], false).await;
        let g = Guard::with_lookup(OutboundPolicy::strict(), Duration::from_millis(200), Arc::new(Turncoat(AtomicU32::new(0)))).unwrap();
        let url = format!("http://agent.example:{}/", at.port());
        assert!(g.check(&url).is_ok(), "the name itself says nothing");
        assert_eq!(g.healthy(&url).await, Err(CallError::Blocked(Refusal::Address(AddressClass::Reserved))));
        assert_eq!(g.healthy(&url).await, Err(CallError::Blocked(Refusal::Address(AddressClass::Loopback))), "one of two is enough");
        assert_eq!(seen.load(Ordering::SeqCst), 0);
    }

    /// Judged before any call: an address by its text, a name by what it leads to now; a name that leads nowhere yet is no fault.
    #[tokio::test]
    async fn what_a_name_leads_to_is_foreseen() {
        let g = Guard::with_lookup(OutboundPolicy::strict(), Duration::from_millis(200), Arc::new(Turncoat(AtomicU32::new(0)))).unwrap();
        let soon = Duration::from_millis(200);
        assert_eq!(g.foresee("http://127.0.0.1:9001/", soon).await, Err(Refusal::Address(AddressClass::Loopback)));
        assert_eq!(g.foresee("http://agent.example/", soon).await, Err(Refusal::Address(AddressClass::Reserved)));
        assert_eq!(g.foresee("http://agent.example/", soon).await, Err(Refusal::Address(AddressClass::Loopback)), "one of two is enough");
        struct Nowhere;
        impl Lookup for Nowhere {
            fn lookup(&self, _: &str) -> futures::future::BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
                Box::pin(async { Err(std::io::ErrorKind::NotFound.into()) })
            }
        }
        let g = Guard::with_lookup(OutboundPolicy::strict(), soon, Arc::new(Nowhere)).unwrap();
        assert_eq!(g.foresee("http://agent.example/", soon).await, Ok(()));
    }
}
