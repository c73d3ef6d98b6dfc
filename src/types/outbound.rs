//! Which addresses may be called: classes of IP addresses, and the one canonical form of a URL.
//!
//! In: a URL as somebody wrote it, or an IP address as it was resolved, and the [`OutboundPolicy`]. Out: the canonical URL, or a [`Refusal`] code.
//! Invariants: link-local, metadata, wildcard, multicast and reserved addresses are refused under every policy; an IPv6 address that carries an
//! IPv4 one (mapped, NAT64, 6to4) is judged by what it carries; a host that hides an address (`127.1`, `0x7f000001`, `2130706433`) is refused as
//! such; what passes is canonical, so that what is checked is what is called. Cost: one parse. Not here: names (resolved and checked again by `dispatch::guard`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use url::{Host, Url};

/// Longest URL in bytes.
pub const MAX_URL: usize = 2_048;

/// What kind of address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressClass {
    /// Anybody's.
    Public,
    /// This machine.
    Loopback,
    /// A private network (RFC 1918, unique local).
    Private,
    /// Shared by a provider (100.64.0.0/10).
    Shared,
    /// This link only, cloud metadata included.
    LinkLocal,
    /// A metadata service outside the link-local range.
    Metadata,
    /// No address of one machine: wildcard, broadcast, multicast, documentation, reserved.
    Reserved,
}

/// Class of an IPv4 address.
fn class_v4(ip: Ipv4Addr) -> AddressClass {
    let [a, b, c, d] = ip.octets();
    match (a, b, c, d) {
        (100, 100, 100, 200) | (168, 63, 129, 16) | (192, 0, 0, 192) => AddressClass::Metadata,
        (127, ..) => AddressClass::Loopback,
        (10, ..) | (192, 168, ..) => AddressClass::Private,
        (172, 16..=31, ..) => AddressClass::Private,
        (100, 64..=127, ..) => AddressClass::Shared,
        (169, 254, ..) => AddressClass::LinkLocal,
        (0, ..) | (192, 0, 0 | 2, _) | (192, 88, 99, _) | (198, 18 | 19, ..) | (198, 51, 100, _) | (203, 0, 113, _) | (224.., ..) => {
            AddressClass::Reserved
        }
        _ => AddressClass::Public,
    }
}

/// Class of an IP address.
pub fn class(ip: IpAddr) -> AddressClass {
    let ip = match ip {
        IpAddr::V4(ip) => return class_v4(ip),
        IpAddr::V6(ip) => ip,
    };
    if let Some(inner) = embedded(ip) {
        return class_v4(inner);
    }
    let s = ip.segments();
    if ip == Ipv6Addr::LOCALHOST {
        AddressClass::Loopback
    } else if s[..] == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] || s[..] == [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] {
        AddressClass::Metadata
    } else if s[0] & 0xfe00 == 0xfc00 {
        AddressClass::Private
    } else if s[0] & 0xffc0 == 0xfe80 || s[0] & 0xffc0 == 0xfec0 {
        AddressClass::LinkLocal
    } else if s[0] & 0xe000 != 0x2000 || (s[0] == 0x2001 && (s[1] < 0x200 || s[1] == 0xdb8)) || s[0] & 0xfff0 == 0x3ff0 {
        // outside global unicast (wildcard, multicast, discard …), Teredo and other protocol ranges, documentation
        AddressClass::Reserved
    } else {
        AddressClass::Public
    }
}

/// The IPv4 address that an IPv6 address carries: mapped, compatible, NAT64 or 6to4.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = ip.segments();
    let v4 = |hi: u16, lo: u16| {
        let ([a, b], [c, d]) = (hi.to_be_bytes(), lo.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, hi, lo] | [0, 0, 0, 0, 0xffff, 0, hi, lo] => Some(v4(hi, lo)),
        [0x64, 0xff9b, 0, 0, 0, 0, hi, lo] | [0x64, 0xff9b, 1, _, _, _, hi, lo] => Some(v4(hi, lo)),
        [0x2002, hi, lo, ..] => Some(v4(hi, lo)),
        _ => None,
    }
}

/// A range of addresses such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Whether it holds `ip`. An IPv4-mapped address counts as the IPv4 one.
    pub fn holds(&self, ip: IpAddr) -> bool {
        match (self.base, ip.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                u32::from(base) & mask == u32::from(ip) & mask
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                u128::from(base) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "an address range such as 10.0.0.0/8 or fd00::/8".to_string();
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let base: IpAddr = ip.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |b| b.parse::<u8>().map_err(|_| wrong()))?;
        if bits > most { Err(wrong()) } else { Ok(Self { base, bits }) }
    }
}

/// What may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundPolicy {
    /// This machine.
    pub loopback: bool,
    /// Private networks.
    pub private: bool,
    /// Further ranges; they open private and shared addresses, never the forbidden ones.
    pub allow: Vec<Cidr>,
    /// Whether plain `http` may be called outside this machine and private networks.
    pub plain_http: bool,
}

impl Default for OutboundPolicy {
    /// One machine and its own network: loopback and private are open.
    fn default() -> Self {
        Self { loopback: true, private: true, allow: Vec::new(), plain_http: true }
    }
}

impl OutboundPolicy {
    /// Public addresses only.
    pub fn strict() -> Self {
        Self { loopback: false, private: false, allow: Vec::new(), plain_http: true }
    }

    /// Whether `ip` may be called.
    pub fn check(&self, ip: IpAddr) -> Result<(), Refusal> {
        let class = class(ip);
        let listed = self.allow.iter().any(|c| c.holds(ip));
        let ok = match class {
            AddressClass::Public => true,
            AddressClass::Loopback => self.loopback || listed,
            AddressClass::Private => self.private || listed,
            AddressClass::Shared => listed,
            AddressClass::LinkLocal | AddressClass::Metadata | AddressClass::Reserved => false,
        };
        if ok { Ok(()) } else { Err(Refusal::Address(class)) }
    }
}

/// Why an address is not called. Carries no detail that would tell a stranger what the inside looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not a URL, or longer than [`MAX_URL`].
    Malformed,
    /// Neither `http` nor `https`.
    Scheme,
    /// A user name or password in it.
    Userinfo,
    /// Control characters, blanks or backslashes.
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
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a URL of at most 2,048 bytes",
            Self::Scheme => "only http and https are called",
            Self::Userinfo => "no user name or password in a URL",
            Self::Characters => "no control characters, blanks or backslashes in a URL",
            Self::Host => "a plain host name or a plain address",
            Self::Port => "this port belongs to another protocol",
            Self::Address(_) => "this address is not open to calls",
        })
    }
}

impl std::error::Error for Refusal {}

/// Ports that speak something else and could be talked into mischief.
const PORTS: &[u16] = &[
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 79, 87, 95, 109, 110, 111, 113, 119, 123, 135, 137, 139, 143,
    161, 179, 389, 427, 445, 465, 512, 513, 514, 515, 540, 548, 554, 563, 587, 601, 636, 873, 989, 990, 993, 995, 1433, 1521, 1723, 2049,
    2181, 2375, 2376, 2379, 2380, 3306, 3389, 4045, 5060, 5061, 5432, 5672, 5900, 6000, 6379, 6667, 6697, 9042, 9092, 11211, 26379, 27017,
];

/// Names of metadata services.
const METADATA: &[&str] = &["metadata", "metadata.google.internal", "instance-data", "metadata.azure.internal", "metadata.tencentyun.com"];

/// The canonical form of `text`, or why it is refused. A host that is an address is checked at once, a name when it is resolved.
pub fn canonical(text: &str, policy: &OutboundPolicy) -> Result<Url, Refusal> {
    if text.is_empty() || text.len() > MAX_URL {
        return Err(Refusal::Malformed);
    }
    // the parser would silently drop some of these
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(Refusal::Characters);
    }
    let mut url = Url::parse(text).map_err(|_| Refusal::Malformed)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Refusal::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() || authority(text).contains('@') {
        return Err(Refusal::Userinfo);
    }
    let lower = url.path().to_ascii_lowercase();
    if ["%0d", "%0a", "%00"].iter().any(|bad| lower.contains(bad) || url.query().is_some_and(|q| q.to_ascii_lowercase().contains(bad))) {
        return Err(Refusal::Characters);
    }
    if url.port_or_known_default().is_none_or(|p| PORTS.contains(&p)) {
        return Err(Refusal::Port);
    }
    url.set_fragment(None);
    let ip = match url.host().ok_or(Refusal::Host)? {
        Host::Ipv4(ip) => {
            // `127.1`, `0x7f.1`, `2130706433`, full-width digits: whoever writes it so wants to hide it
            if host_of(text) != ip.to_string() {
                return Err(Refusal::Host);
            }
            Some(IpAddr::V4(ip))
        }
        Host::Ipv6(ip) => Some(IpAddr::V6(ip)),
        Host::Domain(name) => {
            let plain = name.strip_suffix('.').unwrap_or(name).to_string();
            let labels_ok = !plain.is_empty() && plain.split('.').all(|l| !l.is_empty() && l.len() <= 63 && !l.starts_with("xn--"));
            if !labels_ok || plain.len() > 253 || !host_of(text).is_ascii() || METADATA.contains(&plain.as_str()) {
                return Err(Refusal::Host);
            }
            let local = plain == "localhost" || plain.ends_with(".localhost");
            if local && !policy.loopback {
                return Err(Refusal::Address(AddressClass::Loopback));
            }
            if plain.len() != name.len() {
                url.set_host(Some(&plain)).map_err(|_| Refusal::Host)?;
            }
            None
        }
    };
    if let Some(ip) = ip {
        policy.check(ip)?;
    }
    Ok(url)
}

/// The part between `//` and the path, as written.
fn authority(text: &str) -> &str {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// The host as written, without the port.
fn host_of(text: &str) -> &str {
    let a = authority(text);
    a.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map_or(a, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_that_hide_are_refused_by_the_strict_policy() {
        for bad in [
            "http://169.254.169.254/",
            "http://127.1/",
            "http://127.0.0.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:7f00:1::]/",
            "http://[fec0::1]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://[::]/",
            "http://[::1]/",
            "http://0.0.0.0/",
            "http://localhost/",
            "http://localhost./",
            "http://api.localhost/",
            "http://100.64.0.1/",
            "http://100.100.100.200/",
            "http://10.0.0.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://metadata.google.internal/",
            "http://１２７.0.0.1/",
        ] {
            assert!(canonical(bad, &OutboundPolicy::strict()).is_err(), "{bad}");
        }
        for good in ["http://93.184.216.34/x", "https://example.com:8443/a?b=c", "http://[2606:2800:220:1::1]/"] {
            assert!(canonical(good, &OutboundPolicy::strict()).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_default_opens_one_machine_but_never_the_forbidden() {
        let p = OutboundPolicy::default();
        for good in [
            "http://127.0.0.1:9001/invoke",
            "http://localhost:9001/",
            "http://[::1]:9/x".replace(":9/", ":9001/").as_str(),
            "http://192.168.1.7/",
        ] {
            assert!(canonical(good, &p).is_ok(), "{good}");
        }
        for bad in [
            "http://169.254.169.254/",
            "http://0.0.0.0/",
            "http://127.1/",
            "http://[fe80::1]/",
            "http://100.64.0.1/",
            "http://[2002:a9fe:a9fe::]/",
        ] {
            assert!(canonical(bad, &p).is_err(), "{bad}");
        }
        let open = OutboundPolicy { allow: vec!["100.64.0.0/10".parse().unwrap(), "169.254.0.0/16".parse().unwrap()], ..p };
        assert!(canonical("http://100.64.0.1/", &open).is_ok());
        assert!(canonical("http://169.254.169.254/", &open).is_err(), "no list opens metadata");
    }

    #[test]
    fn schemes_names_and_ports() {
        let p = OutboundPolicy::default();
        for (bad, why) in [
            ("file:///etc/passwd", Refusal::Scheme),
            ("gopher://x/", Refusal::Scheme),
            ("unix:/run/x", Refusal::Scheme),
            ("http://ok@evil.example/", Refusal::Userinfo),
            ("http://@evil.example/", Refusal::Userinfo),
            ("http://a.example/\r\nHost: b", Refusal::Characters),
            ("http://a.example/%0d%0aHost:b", Refusal::Characters),
            ("http://a.example\\@b.example/", Refusal::Characters),
            ("http://a.example:22/", Refusal::Port),
            ("http://a.example:6379/", Refusal::Port),
            ("http://a.example:2379/", Refusal::Port),
            ("http://exаmple.com/", Refusal::Host),
            ("http://xn--exmple-cua.com/", Refusal::Host),
            ("http://退款.example/", Refusal::Host),
            ("not a url", Refusal::Characters),
            ("http://", Refusal::Malformed),
        ] {
            assert_eq!(canonical(bad, &p), Err(why), "{bad}");
        }
        assert_eq!(canonical("HTTP://Example.COM.:80/a/../b#frag", &p).unwrap().as_str(), "http://example.com/b");
    }

    #[test]
    fn ranges() {
        let c: Cidr = "10.1.0.0/16".parse().unwrap();
        assert!(
            c.holds("10.1.255.1".parse().unwrap()) && !c.holds("10.2.0.1".parse().unwrap()) && c.holds("::ffff:10.1.0.1".parse().unwrap())
        );
        assert!("0.0.0.0/0".parse::<Cidr>().unwrap().holds("1.2.3.4".parse().unwrap()));
        assert!("::/0".parse::<Cidr>().unwrap().holds("fd00::1".parse().unwrap()));
        for bad in ["10.0.0.0/33", "x/8", "10.0.0.0/", "::/129"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_is_stable(text in "(http|https|ftp)://[a-z0-9.@:\\[\\]x/%?#-]{0,40}") {
            if let Ok(url) = canonical(&text, &OutboundPolicy::default()) {
                prop_assert_eq!(canonical(url.as_str(), &OutboundPolicy::default()).unwrap(), url);
            }
        }

        #[test]
        fn what_carries_a_forbidden_address_is_forbidden(a in any::<u32>()) {
            let v4 = Ipv4Addr::from(a);
            let [w, x] = [(a >> 16) as u16, a as u16];
            for v6 in [[0, 0, 0, 0, 0, 0xffff, w, x], [0x64, 0xff9b, 0, 0, 0, 0, w, x], [0x2002, w, x, 0, 0, 0, 0, 9]] {
                prop_assert_eq!(class(IpAddr::V6(Ipv6Addr::from(v6))), class_v4(v4));
            }
        }
    }
}
