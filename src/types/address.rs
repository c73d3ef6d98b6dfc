//! URLs that a stranger gives us to call: checked and put into one canonical spelling.
//!
//! In: text and what it is for. Out: the canonical URL, or what was expected instead.
//! Invariant: a canonical address has an allowed scheme, a plain ASCII host, no user, no fragment, no control character and no forbidden port.
//! Not here: whether the host may be called. Names are resolved and their addresses judged where the connection is made.

use crate::types::manifest::Protocol;
use url::{Host, Url};

/// Longest accepted address in characters.
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
}

/// Ports of services that read what we would send as commands: mail, shells, file shares, databases, registries, container daemons.
const FORBIDDEN_PORTS: &[u16] = &[
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110, 111, 113, 115,
    117, 119, 123, 135, 137, 138, 139, 143, 161, 162, 179, 389, 427, 445, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556,
    563, 587, 601, 636, 989, 990, 993, 995, 1433, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045, 5060,
    5061, 5432, 5672, 5900, 6000, 6379, 6380, 6566, 6665, 6666, 6667, 6668, 6669, 6697, 9042, 9092, 10080, 10250, 11211, 27017, 27018,
];

/// Checks `text` and returns its canonical form. The error is what was expected and how to mend it.
pub fn canonical(text: &str, usage: Use) -> Result<String, (String, String)> {
    let schemes: &[&str] = match usage {
        Use::Web => &["http", "https"],
        Use::Grpc => &["grpc", "grpcs", "http", "https"],
    };
    let expected = format!("a URL that begins with {}", schemes.iter().map(|s| format!("{s}://")).collect::<Vec<_>>().join(" or "));
    let fail = |hint: &str| Err((expected.clone(), hint.to_string()));
    if text.is_empty() {
        return fail("give the address that clients shall call");
    }
    if text.chars().nth(MAX_ADDRESS).is_some() {
        return fail("shorten it to at most 2,048 characters");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return fail("remove control characters, line breaks and spaces");
    }
    if !text.is_ascii() {
        return fail("write it in plain ASCII; international names and look-alike letters are not accepted");
    }
    if text.contains('\\') {
        return fail("use / instead of \\");
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return fail("write scheme, host and path, such as http://10.0.0.5:9000/invoke");
    };
    let scheme = scheme.to_ascii_lowercase();
    if !schemes.contains(&scheme.as_str()) {
        return fail("other schemes are not called");
    }
    // a gRPC scheme is read as its web twin, so that hosts are normalised the same way
    let twin = match scheme.as_str() {
        "grpc" => "http",
        "grpcs" => "https",
        other => other,
    };
    let Ok(url) = Url::parse(&format!("{twin}://{rest}")) else {
        return fail("it does not parse as a URL");
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return fail("name a host");
    }
    if !url.username().is_empty() || url.password().is_some() || authority.contains('@') {
        return fail("remove user and password from the address; credentials are configured elsewhere");
    }
    if text.contains('#') {
        return fail("remove the fragment (# and what follows)");
    }
    match url.host() {
        None => return fail("name a host"),
        Some(Host::Domain(name)) => {
            if name.split('.').any(|label| label.starts_with("xn--")) {
                return fail("international (xn--) host names are not accepted, they can imitate others; use an ASCII name");
            }
            let plain = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            if !name.strip_suffix('.').unwrap_or(name).split('.').all(plain) {
                return fail("a host name has letters, digits, '-' and '.' only");
            }
        }
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => {}
    }
    if let Some(port) = url.port().filter(|p| FORBIDDEN_PORTS.contains(p)) {
        return fail(&format!("port {port} belongs to another kind of service and is never called"));
    }
    let canonical = url.as_str();
    // "localhost." and "localhost" are one host
    let canonical = match url.host_str().and_then(|h| h.strip_suffix('.').map(|short| (h, short))) {
        Some((host, short)) => canonical.replacen(host, short, 1),
        None => canonical.to_string(),
    };
    Ok(match canonical.strip_prefix(twin) {
        Some(tail) => format!("{scheme}{tail}"),
        None => canonical,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_spelling() {
        for (given, expected) in [
            ("HTTP://Agents.Example:80/Invoke", "http://agents.example/Invoke"),
            ("http://127.1:9000", "http://127.0.0.1:9000/"),
            ("http://0x7f000001/", "http://127.0.0.1/"),
            ("http://2130706433/", "http://127.0.0.1/"),
            ("http://localhost.:8080/a", "http://localhost:8080/a"),
            ("http://a/b/../c", "http://a/c"),
            ("https://[::1]:8443/x?y=1", "https://[::1]:8443/x?y=1"),
        ] {
            assert_eq!(canonical(given, Use::Web).as_deref(), Ok(expected), "{given}");
        }
        assert_eq!(canonical("grpc://Orders:7000", Use::Grpc).as_deref(), Ok("grpc://orders:7000/"));
        assert_eq!(canonical("grpcs://127.1:7000", Use::Grpc).as_deref(), Ok("grpcs://127.0.0.1:7000/"));
    }

    #[test]
    fn what_is_refused() {
        for bad in [
            "",
            "localhost:9000",
            "file:///etc/passwd",
            "gopher://a/",
            "unix:/run/x.sock",
            "javascript:alert(1)",
            "http://ok@evil/",
            "http://@evil/",
            "http://user:pw@evil/",
            "http://a/x\r\nHost: b",
            "http://a/x y",
            "http://a:22/",
            "http://a:6379/",
            "http://a:2379/",
            "http://аррӏе.com/",
            "http://xn--80ak6aa92e.com/",
            "http://退款.example/",
            "http://a/#frag",
            "http:\\\\a\\b",
            "http://",
            "http:///path",
            "http://a..b/",
            "http://[::1/",
            "grpc://a:7000",
            "http://a/\u{202e}",
        ] {
            assert!(canonical(bad, Use::Web).is_err(), "{bad:?} must be refused");
        }
        assert!(canonical(&format!("http://a/{}", "x".repeat(5000)), Use::Web).is_err());
    }

    proptest! {
        #[test]
        fn canonical_is_a_fixed_point(text in "(http|https|grpc)://[ -~]{0,40}") {
            if let Ok(once) = canonical(&text, Use::Grpc) {
                prop_assert_eq!(canonical(&once, Use::Grpc), Ok(once.clone()));
            }
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            prop_assert!(canonical(&text, Use::Web).map_or(true, |url| url.is_ascii()));
        }
    }
}
