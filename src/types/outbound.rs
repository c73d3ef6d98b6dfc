//! Which hosts may be called: classes of IP addresses, and the policy of the operator.
//!
//! In: an IP address as it was resolved, or a canonical URL, and the [`OutboundPolicy`]. Out: nothing, or a [`Refusal`] code.
//! Invariants: link-local, metadata, wildcard, multicast and reserved addresses are refused under every policy; an IPv6 address that carries an
//! IPv4 one (mapped, NAT64, 6to4) is judged by what it carries. Cost: a few comparisons.
//! Not here: how a URL is written (`types::address`), names (resolved and checked again where the connection is made, `dispatch::guard`).

use crate::types::address::{self, Refusal};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use url::Host;

/// Names of metadata services.
const METADATA: &[&str] = &["metadata", "metadata.google.internal", "instance-data", "metadata.azure.internal", "metadata.tencentyun.com"];

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
    /// Whether plain `http` may be called outside this machine and addresses of private networks.
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

    /// Whether a canonical URL may be called, as far as its text tells: a host that is an address is judged at once, a name when it is resolved.
    pub fn check_url(&self, canonical: &str) -> Result<(), Refusal> {
        let (secure, host) = address::host(canonical).ok_or(Refusal::Malformed)?;
        let near = match &host {
            Host::Ipv4(ip) => {
                self.check(IpAddr::V4(*ip))?;
                class(IpAddr::V4(*ip)) != AddressClass::Public
            }
            Host::Ipv6(ip) => {
                self.check(IpAddr::V6(*ip))?;
                class(IpAddr::V6(*ip)) != AddressClass::Public
            }
            Host::Domain(name) => {
                let local = name == "localhost" || name.ends_with(".localhost");
                if METADATA.contains(&name.as_str()) {
                    return Err(Refusal::Address(AddressClass::Metadata));
                }
                if local && !self.loopback {
                    return Err(Refusal::Address(AddressClass::Loopback));
                }
                local
            }
        };
        if secure || self.plain_http || near { Ok(()) } else { Err(Refusal::Scheme) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::address::{Use, canonical};
    use proptest::prelude::*;

    fn allowed(text: &str, policy: &OutboundPolicy) -> Result<(), Refusal> {
        canonical(text, Use::Web).and_then(|url| policy.check_url(&url))
    }

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
            assert!(allowed(bad, &OutboundPolicy::strict()).is_err(), "{bad}");
        }
        for good in ["http://93.184.216.34/x", "https://example.com:8443/a?b=c", "http://[2606:2800:220:1::1]/"] {
            assert!(allowed(good, &OutboundPolicy::strict()).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_default_opens_one_machine_but_never_the_forbidden() {
        let p = OutboundPolicy::default();
        for good in ["http://127.0.0.1:9001/invoke", "http://localhost:9001/", "http://[::1]:9001/x", "http://192.168.1.7/"] {
            assert!(allowed(good, &p).is_ok(), "{good}");
        }
        for bad in [
            "http://169.254.169.254/",
            "http://0.0.0.0/",
            "http://127.1/",
            "http://[fe80::1]/",
            "http://100.64.0.1/",
            "http://[2002:a9fe:a9fe::]/",
        ] {
            assert!(allowed(bad, &p).is_err(), "{bad}");
        }
        let open = OutboundPolicy { allow: vec!["100.64.0.0/10".parse().unwrap(), "169.254.0.0/16".parse().unwrap()], ..p };
        assert!(allowed("http://100.64.0.1/", &open).is_ok());
        assert!(allowed("http://169.254.169.254/", &open).is_err(), "no list opens metadata");
    }

    #[test]
    fn without_plain_http_only_near_hosts_are_called_in_the_clear() {
        let p = OutboundPolicy { plain_http: false, ..OutboundPolicy::default() };
        for (url, ok) in [
            ("http://agents.example/", false),
            ("https://agents.example/", true),
            ("http://93.184.216.34/", false),
            ("http://127.0.0.1:9001/", true),
            ("http://10.0.0.1/", true),
            ("http://localhost:9001/", true),
        ] {
            assert_eq!(allowed(url, &p).is_ok(), ok, "{url}");
        }
        let grpc = |text: &str| canonical(text, Use::Grpc).and_then(|url| p.check_url(&url));
        assert!(grpc("grpc://agents.example:7000").is_err() && grpc("grpcs://agents.example:7000").is_ok());
        assert!(grpc("grpc://169.254.169.254:7000").is_err());
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
        fn what_carries_a_forbidden_address_is_forbidden(a in any::<u32>()) {
            let v4 = Ipv4Addr::from(a);
            let [w, x] = [(a >> 16) as u16, a as u16];
            for v6 in [[0, 0, 0, 0, 0, 0xffff, w, x], [0x64, 0xff9b, 0, 0, 0, 0, w, x], [0x2002, w, x, 0, 0, 0, 0, 9]] {
                prop_assert_eq!(class(IpAddr::V6(Ipv6Addr::from(v6))), class_v4(v4));
            }
        }
    }
}
