//! URLs that a stranger gives us to call: checked and put into one canonical spelling.
//!
//! In: text and what it is for. Out: the canonical URL, or a [`Refusal`]: a stable code, and in words how to mend it.
//! Invariants: a canonical address has an allowed scheme, a plain ASCII host, no user, no fragment, no control character and no port of another
//! protocol; a host that hides an address (`127.1`, `0x7f000001`, `2130706433`) is refused as such; what passes is canonical, so that what is
//! checked is what is called. Cost: one parse.
//! Not here: whether the host may be called (`types::outbound`). Names are resolved and judged where the connection is made.

use crate::types::manifest::Protocol;
use crate::types::outbound::AddressClass;
use std::fmt;
use url::{Host, Url};

/// Longest accepted address in bytes.
pub const MAX_ADDRESS: usize = 2048;

/// What an address is used for; decides the schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// `http`, `https`.
    Web,
    /// `grpc`, `grpcs`, `http`, `https`.
    Grpc,
}

impl Use {
    /// What an endpoint of this protocol needs; `None` for `pull`, which has no address.
    pub fn of(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Http | Protocol::Mcp => Some(Self::Web),
            Protocol::Grpc => Some(Self::Grpc),
            Protocol::Pull => None,
        }
    }

    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Web => &["http", "https"],
            Self::Grpc => &["grpc", "grpcs", "http", "https"],
        }
    }

    /// What is expected, in words.
    pub fn expected(self) -> String {
        format!("a URL that begins with {}", self.schemes().iter().map(|s| format!("{s}://")).collect::<Vec<_>>().join(" or "))
    }
}

/// Why an address is not called. Carries no detail that would tell a stranger what the inside looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not a URL, or longer than [`MAX_ADDRESS`].
    Malformed,
    /// A scheme that is not called.
    Scheme,
    /// A user name or password in it.
    Userinfo,
    /// Control characters, blanks, backslashes, letters outside ASCII, a fragment.
    Characters,
    /// No host, or one that hides an address or imitates another name.
    Host,
    /// A port of another protocol.
    Port,
    /// An address that is not open.
    Address(AddressClass),
}

impl Refusal {
    /// Stable reason code.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "url_malformed",
            Self::Scheme => "url_scheme",
            Self::Userinfo => "url_userinfo",
            Self::Characters => "url_characters",
            Self::Host => "url_host",
            Self::Port => "url_port",
            Self::Address(_) => "blocked_url",
        }
    }

    /// How to mend it.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Malformed => "write scheme, host and path in at most 2,048 bytes, such as http://10.0.0.5:9000/invoke",
            Self::Scheme => "other schemes are not called (and plain http only where outbound.plain_http allows it)",
            Self::Userinfo => "remove user and password from the address; credentials are configured elsewhere",
            Self::Characters => "plain ASCII, without blanks, control characters, backslashes and fragment (# and what follows)",
            Self::Host => {
                "a plain name (no international or look-alike letters) or an address in its usual spelling (not 127.1 or 0x7f000001)"
            }
            Self::Port => "this port belongs to another kind of service and is never called",
            Self::Address(_) => "this address is not open to calls; an operator opens ranges of their own under [outbound]",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hint())
    }
}

impl std::error::Error for Refusal {}

/// Ports of services that read what we would send as commands: mail, shells, file shares, databases, registries, container daemons.
const FORBIDDEN_PORTS: &[u16] = &[
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110, 111, 113, 115,
    117, 119, 123, 135, 137, 138, 139, 143, 161, 162, 179, 389, 427, 445, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556,
    563, 587, 601, 636, 873, 989, 990, 993, 995, 1433, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045,
    5060, 5061, 5432, 5672, 5900, 6000, 6379, 6380, 6566, 6665, 6666, 6667, 6668, 6669, 6697, 9042, 9092, 10080, 10250, 11211, 26379,
    27017, 27018,
];

/// The web scheme that reads hosts the same way.
fn twin(scheme: &str) -> &str {
    match scheme {
        "grpc" => "http",
        "grpcs" => "https",
        other => other,
    }
}

/// Checks `text` and returns its canonical form.
pub fn canonical(text: &str, usage: Use) -> Result<String, Refusal> {
    if text.is_empty() || text.len() > MAX_ADDRESS {
        return Err(Refusal::Malformed);
    }
    // the parser would silently drop some of these
    if !text.is_ascii() || text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\' || c == '#') {
        return Err(Refusal::Characters);
    }
    let (scheme, rest) = text.split_once("://").ok_or(if text.contains(':') { Refusal::Scheme } else { Refusal::Malformed })?;
    let scheme = scheme.to_ascii_lowercase();
    if !usage.schemes().contains(&scheme.as_str()) {
        return Err(Refusal::Scheme);
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err(Refusal::Malformed);
    }
    if authority.contains('@') {
        return Err(Refusal::Userinfo);
    }
    let twin = twin(&scheme);
    let mut url = Url::parse(&format!("{twin}://{rest}")).map_err(|_| Refusal::Malformed)?;
    let lower = rest.to_ascii_lowercase();
    if ["%0d", "%0a", "%00"].iter().any(|bad| lower.contains(bad)) {
        return Err(Refusal::Characters);
    }
    if url.port_or_known_default().is_none_or(|p| FORBIDDEN_PORTS.contains(&p)) {
        return Err(Refusal::Port);
    }
    let written =
        authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map_or(authority, |(host, _)| host);
    match url.host().ok_or(Refusal::Host)? {
        // `127.1`, `0x7f.1`, `2130706433`: whoever writes it so wants to hide it
        Host::Ipv4(ip) if written != ip.to_string() => return Err(Refusal::Host),
        Host::Ipv4(_) | Host::Ipv6(_) => {}
        Host::Domain(name) => {
            let plain = name.strip_suffix('.').unwrap_or(name).to_string();
            let fits = |l: &str| {
                let letters = l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
                !l.is_empty() && l.len() <= 63 && letters && !l.starts_with("xn--")
            };
            if plain.len() > 253 || !plain.split('.').all(fits) {
                return Err(Refusal::Host);
            }
            if plain.len() != name.len() {
                // "localhost." and "localhost" are one host
                url.set_host(Some(&plain)).map_err(|_| Refusal::Host)?;
            }
        }
    }
    let canonical = url.as_str();
    Ok(canonical.strip_prefix(twin).map_or_else(|| canonical.to_string(), |tail| format!("{scheme}{tail}")))
}

/// Whether a canonical address is encrypted, and its host.
pub fn host(canonical: &str) -> Option<(bool, Host<String>)> {
    let (scheme, rest) = canonical.split_once("://")?;
    let twin = twin(scheme);
    let url = Url::parse(&format!("{twin}://{rest}")).ok()?;
    Some((twin == "https", url.host()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_spelling() {
        for (given, expected) in [
            ("HTTP://Agents.Example:80/Invoke", "http://agents.example/Invoke"),
            ("http://127.0.0.1:9000", "http://127.0.0.1:9000/"),
            ("http://localhost.:8080/a", "http://localhost:8080/a"),
            ("http://a/b/../c", "http://a/c"),
            ("https://[::1]:8443/x?y=1", "https://[::1]:8443/x?y=1"),
            ("HTTP://Example.COM.:80/a/../b", "http://example.com/b"),
        ] {
            assert_eq!(canonical(given, Use::Web).as_deref(), Ok(expected), "{given}");
        }
        assert_eq!(canonical("grpc://Orders:7000", Use::Grpc).as_deref(), Ok("grpc://orders:7000/"));
    }

    #[test]
    fn what_is_refused_and_why() {
        for (bad, why) in [
            ("", Refusal::Malformed),
            ("not-a-url", Refusal::Malformed),
            ("localhost:9000", Refusal::Scheme),
            ("file:///etc/passwd", Refusal::Scheme),
            ("gopher://a/", Refusal::Scheme),
            ("unix:/run/x.sock", Refusal::Scheme),
            ("javascript:alert(1)", Refusal::Scheme),
            ("grpc://a:7000", Refusal::Scheme),
            ("http://ok@evil/", Refusal::Userinfo),
            ("http://@evil/", Refusal::Userinfo),
            ("http://user:pw@evil/", Refusal::Userinfo),
            ("http://a/x\r\nHost: b", Refusal::Characters),
            ("http://a.example/%0d%0aHost:b", Refusal::Characters),
            ("http://a/x y", Refusal::Characters),
            ("http://a/#frag", Refusal::Characters),
            ("http:\\\\a\\b", Refusal::Characters),
            ("http://а.example\\@b.example/", Refusal::Characters),
            ("http://аррӏе.com/", Refusal::Characters),
            ("http://退款.example/", Refusal::Characters),
            ("http://a/\u{202e}", Refusal::Characters),
            ("http://a:22/", Refusal::Port),
            ("http://a:6379/", Refusal::Port),
            ("http://a:2379/", Refusal::Port),
            ("http://xn--80ak6aa92e.com/", Refusal::Host),
            ("http://127.1:9000", Refusal::Host),
            ("http://0x7f000001/", Refusal::Host),
            ("http://2130706433/", Refusal::Host),
            ("http://0177.0.0.1/", Refusal::Host),
            ("http://a..b/", Refusal::Host),
            ("http://", Refusal::Malformed),
            ("http:///path", Refusal::Malformed),
            ("http://[::1/", Refusal::Malformed),
        ] {
            assert_eq!(canonical(bad, Use::Web), Err(why), "{bad:?}");
        }
        assert_eq!(canonical("grpcs://127.1:7000", Use::Grpc), Err(Refusal::Host));
        assert!(canonical(&format!("http://a/{}", "x".repeat(5000)), Use::Web).is_err());
    }

    proptest! {
        #[test]
        fn canonical_is_a_fixed_point(text in "(http|https|grpc)://[ -~]{0,40}") {
            if let Ok(once) = canonical(&text, Use::Grpc) {
                prop_assert_eq!(canonical(&once, Use::Grpc), Ok(once.clone()));
                prop_assert!(host(&once).is_some());
            }
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            prop_assert!(canonical(&text, Use::Web).map_or(true, |url| url.is_ascii()));
        }
    }
}
