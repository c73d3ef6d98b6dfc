//! Signed callbacks, in the manner of Standard Webhooks.
//!
//! Signed text = `id.timestamp.body`; signature = `v1,` + base64(HMAC-SHA-256). Headers: `webhook-id`, `webhook-timestamp` (seconds),
//! `webhook-signature` (several, separated by blanks, while a secret is rotated).
//! Verifying refuses: a missing or repeated header, a time more than five minutes away, a wrong signature, an id seen before.
//! Invariants: an id is remembered for twice the window, so nothing can be replayed inside it; the memory is bounded (full = refuse);
//! signatures are compared in constant time. Cost: one HMAC a secret. Not here: sending.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::{BTreeSet, HashSet};

/// Header of the id.
pub const ID: &str = "webhook-id";
/// Header of the time, seconds since the epoch.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// Header of the signatures.
pub const SIGNATURE: &str = "webhook-signature";
/// How far the time may be off, seconds.
pub const TOLERANCE_S: i64 = 300;
/// Ids that are remembered.
pub const MEMORY: usize = 1_000_000;

/// A shared secret, at least 16 bytes.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes raw bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < 16 { Err("a secret of at least 16 bytes".into()) } else { Ok(Self(bytes.to_vec())) }
    }

    /// Reads `whsec_` + base64, or takes the text's own bytes.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("whsec_") {
            Some(b64) => Self::new(&STANDARD.decode(b64).map_err(|_| "base64 after whsec_".to_string())?),
            None => Self::new(text.as_bytes()),
        }
    }

    fn mac(&self, id: &str, timestamp_s: i64, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        Some(mac)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The three headers of a callback. With two secrets it carries two signatures.
pub fn sign(secrets: &[Secret], id: &str, timestamp_s: i64, body: &[u8]) -> [(&'static str, String); 3] {
    let signatures: Vec<String> = secrets
        .iter()
        .filter_map(|s| s.mac(id, timestamp_s, body))
        .map(|mac| format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        .collect();
    [(ID, id.to_string()), (TIMESTAMP, timestamp_s.to_string()), (SIGNATURE, signatures.join(" "))]
}

/// Why a callback is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A header is missing, repeated or malformed: 401.
    Header,
    /// Too old or too new: 401.
    Time,
    /// No signature fits: 401.
    Signature,
    /// Seen before: 409.
    Replayed,
    /// Too many ids to remember: 503.
    Full,
}

impl Doubt {
    /// HTTP status of the refusal.
    pub fn http(self) -> u16 {
        match self {
            Self::Header | Self::Time | Self::Signature => 401,
            Self::Replayed => 409,
            Self::Full => 503,
        }
    }
}

/// Checks callbacks and remembers their ids.
#[derive(Debug)]
pub struct Verifier {
    secrets: Vec<Secret>,
    capacity: usize,
    seen: HashSet<String>,
    /// (second until which it is remembered, id).
    until: BTreeSet<(i64, String)>,
}

impl Verifier {
    /// Believes any of `secrets` (two while one is rotated).
    pub fn new(secrets: Vec<Secret>, capacity: usize) -> Self {
        Self { secrets, capacity, seen: HashSet::new(), until: BTreeSet::new() }
    }

    /// Checks one callback at `now_s`, seconds since the epoch. Header names in any case.
    pub fn check(&mut self, now_s: i64, headers: &[(String, String)], body: &[u8]) -> Result<(), Doubt> {
        let one = |name: &str| {
            let mut found = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            match (found.next(), found.next()) {
                (Some((_, value)), None) => Ok(value.as_str()),
                _ => Err(Doubt::Header),
            }
        };
        let (id, time, signatures) = (one(ID)?, one(TIMESTAMP)?, one(SIGNATURE)?);
        if id.is_empty() || id.len() > 128 || id.contains('.') {
            return Err(Doubt::Header);
        }
        let timestamp: i64 = time.parse().map_err(|_| Doubt::Header)?;
        if now_s.abs_diff(timestamp) > TOLERANCE_S as u64 {
            return Err(Doubt::Time);
        }
        let fits = |signature: &str| {
            let Some(bytes) = signature.strip_prefix("v1,").and_then(|b| STANDARD.decode(b).ok()) else { return false };
            self.secrets.iter().filter_map(|s| s.mac(id, timestamp, body)).any(|mac| mac.verify_slice(&bytes).is_ok())
        };
        if !signatures.split(' ').take(8).any(fits) {
            return Err(Doubt::Signature);
        }
        while let Some((until, old)) = self.until.first().cloned().filter(|(until, _)| *until < now_s) {
            self.seen.remove(&old);
            self.until.remove(&(until, old));
        }
        if self.seen.contains(id) {
            return Err(Doubt::Replayed);
        }
        if self.seen.len() >= self.capacity {
            return Err(Doubt::Full);
        }
        self.seen.insert(id.to_string());
        // counted from the later of the two clocks, so that it outlives the time it could be sent again
        self.until.insert((now_s.max(timestamp) + 2 * TOLERANCE_S, id.to_string()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_800_000_000;

    fn secret(n: u8) -> Secret {
        Secret::new(&[n; 24]).unwrap()
    }

    fn headers(h: [(&'static str, String); 3]) -> Vec<(String, String)> {
        h.into_iter().map(|(n, v)| (n.to_string(), v)).collect()
    }

    fn verifier() -> Verifier {
        Verifier::new(vec![secret(1)], 100)
    }

    #[test]
    fn the_published_test_vector_fits() {
        let s = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let [_, _, (_, signature)] = sign(&[s], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_signed_is_believed_once() {
        let mut v = verifier();
        let h = headers(sign(&[secret(1)], "m1", NOW, b"{}"));
        assert_eq!(v.check(NOW, &h, b"{}"), Ok(()));
        assert_eq!(v.check(NOW + 299, &h, b"{}"), Err(Doubt::Replayed));
        assert_eq!(v.check(NOW + 600, &h, b"{}"), Err(Doubt::Time), "after ten minutes");
    }

    #[test]
    fn changed_doubled_and_missing_parts_are_refused() {
        let mut v = verifier();
        let h = headers(sign(&[secret(1)], "m1", NOW, b"{}"));
        assert_eq!(v.check(NOW, &h, b"{ }"), Err(Doubt::Signature));
        let mut doubled = h.clone();
        doubled.push((SIGNATURE.to_uppercase(), h[2].1.clone()));
        assert_eq!(v.check(NOW, &doubled, b"{}"), Err(Doubt::Header));
        for missing in 0..3 {
            let part: Vec<_> = h.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, x)| x.clone()).collect();
            assert_eq!(v.check(NOW, &part, b"{}"), Err(Doubt::Header));
        }
        let other_id = vec![("webhook-id".to_string(), "m2".to_string()), h[1].clone(), h[2].clone()];
        assert_eq!(v.check(NOW, &other_id, b"{}"), Err(Doubt::Signature));
        assert_eq!(v.check(NOW + 3_600, &h, b"{}"), Err(Doubt::Time), "clock an hour ahead");
        assert_eq!(v.check(NOW, &h, b"{}"), Ok(()), "nothing of that changed anything");
    }

    #[test]
    fn two_secrets_while_one_is_rotated() {
        let both = [secret(1), secret(2)];
        let h = headers(sign(&both, "m", NOW, b"x"));
        for own in [1, 2] {
            assert_eq!(Verifier::new(vec![secret(own)], 9).check(NOW, &h, b"x"), Ok(()));
        }
        assert_eq!(Verifier::new(vec![secret(3)], 9).check(NOW, &h, b"x"), Err(Doubt::Signature));
    }

    #[test]
    fn a_full_memory_refuses_and_recovers() {
        let mut v = Verifier::new(vec![secret(1)], 1);
        let h = |id: &str, at: i64| headers(sign(&[secret(1)], id, at, b""));
        assert_eq!(v.check(NOW, &h("a", NOW), b""), Ok(()));
        assert_eq!(v.check(NOW, &h("b", NOW), b""), Err(Doubt::Full));
        assert_eq!(v.check(NOW + 601, &h("b", NOW + 601), b""), Ok(()));
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(body in proptest::collection::vec(any::<u8>(), 1..60), at in any::<proptest::sample::Index>(), bit in 0u8..8) {
            let h = headers(sign(&[secret(1)], "m", NOW, &body));
            let mut changed = body.clone();
            let i = at.index(body.len());
            changed[i] ^= 1 << bit;
            prop_assert_eq!(verifier().check(NOW, &h, &changed), Err(Doubt::Signature));
        }
    }
}
