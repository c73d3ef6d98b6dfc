//! The same thing asked twice runs once.
//!
//! Two keys name a message: (tenant, caller, intent, idempotency key) and (tenant, caller, message id). In: the key and a digest of the body.
//! Out: new, the same as an earlier one, or a conflict (same key, other body). A key is remembered while its message is open and for
//! [`KEEP_MS`] after it ended; then it is free again. Each caller has a quota of keys.
//! Invariant: of any number of calls with one key inside that span exactly one is new. Cost: O(log n); a digest reads the payload once.
//! Not here: durability; the SQLite store keeps the same promise with unique indexes.

use crate::types::Envelope;
use crate::types::envelope::{ReachId, Source};
pub use crate::types::stored::{KEEP_MS, Scope};
use crate::types::text::fold_name;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Keys of one caller that are remembered at once.
pub const QUOTA: usize = 1_000_000;

/// The scope of the idempotency key, if there is one. A replay is a delivery of its own and has none.
pub fn key_scope(envelope: &Envelope) -> Option<Scope> {
    let key = envelope.idempotency_key.clone().filter(|_| envelope.source == Source::Client)?;
    let intent: String = match (&envelope.intent, &envelope.target) {
        // names are compared folded, here as everywhere
        (Some(intent), _) => fold_name(intent),
        (None, Some(target)) => target.to_string(),
        (None, None) => String::new(),
    };
    Some(Scope { owner: envelope.owner(), intent: Arc::from(format!("key\u{1f}{intent}")), key })
}

/// The scope of the message id, if the caller chose one. A replay keeps the id of its message and is not compared.
pub fn id_scope(envelope: &Envelope) -> Option<Scope> {
    // two calls that replay the same dead letter replay it once
    if let (Source::Replay, Some(dead)) = (envelope.source, envelope.replayed_from) {
        return Some(Scope { owner: envelope.owner(), intent: Arc::from("replay"), key: Arc::from(dead.to_string()) });
    }
    // an escalation has the id of what it takes over: asked twice, it is one
    let chosen = matches!(envelope.source, Source::Client | Source::Escalation) && !envelope.has_own_id();
    chosen.then(|| Scope { owner: envelope.owner(), intent: Arc::from("id"), key: envelope.message_id.clone() })
}

/// What a message asks for, in 32 bytes: recipient, text and payload, the order of keys in objects aside.
pub fn digest(envelope: &Envelope) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    part(&envelope.target.as_ref().map(ToString::to_string).unwrap_or_default());
    part(&envelope.intent.as_deref().map(fold_name).unwrap_or_default());
    part(envelope.query.as_deref().unwrap_or_default());
    part(envelope.data_ref.as_deref().unwrap_or_default());
    match envelope.payload.as_ref().map(|p| (p, p.value())) {
        Some((raw, serde_json::Value::Null)) => part(raw.as_str()),
        Some((_, value)) => {
            let mut text = String::with_capacity(64);
            canonical(&value, &mut text);
            part(&text);
        }
        None => part(""),
    }
    hash.finalize().into()
}

/// JSON with sorted keys. The depth is bounded by the parser.
fn canonical(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Object(map) => {
            out.push('{');
            let sorted: BTreeMap<&String, &serde_json::Value> = map.iter().collect();
            for (k, v) in sorted {
                out.push_str(&serde_json::Value::from(k.as_str()).to_string());
                out.push(':');
                canonical(v, out);
                out.push(',');
            }
            out.push('}');
        }
        serde_json::Value::Array(list) => {
            out.push('[');
            for v in list {
                canonical(v, out);
                out.push(',');
            }
            out.push(']');
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) | serde_json::Value::String(_) => {
            out.push_str(&value.to_string());
        }
    }
}

/// The answer of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nobody had this key: it is now this message's.
    New,
    /// The same thing was asked before.
    Same(ReachId),
    /// The key belongs to another body.
    Conflict(ReachId),
    /// The caller has too many keys.
    Quota,
}

#[derive(Clone, Debug)]
struct Held {
    id: ReachId,
    digest: [u8; 32],
    /// `None` while the message is open.
    free_at_ms: Option<i64>,
}

/// Keys in memory.
#[derive(Clone, Debug)]
pub struct Window {
    quota: usize,
    held: HashMap<Scope, Held>,
    of_message: HashMap<ReachId, Vec<Scope>>,
    of_owner: HashMap<Arc<str>, usize>,
    ending: BTreeSet<(i64, ReachId)>,
}

impl Default for Window {
    fn default() -> Self {
        Self::new(QUOTA)
    }
}

impl Window {
    /// A window with a quota of keys for each caller.
    pub fn new(quota: usize) -> Self {
        Self { quota, held: HashMap::new(), of_message: HashMap::new(), of_owner: HashMap::new(), ending: BTreeSet::new() }
    }

    /// Asks for all `scopes` of one message at once: all become its own, or none does.
    pub fn claim(&mut self, now_ms: i64, scopes: Vec<Scope>, digest: [u8; 32], id: ReachId) -> Seen {
        self.forget(now_ms);
        if let Some(held) = scopes.iter().find_map(|s| self.held.get(s)) {
            return if held.digest == digest { Seen::Same(held.id) } else { Seen::Conflict(held.id) };
        }
        let over = |s: &Scope| self.of_owner.get(&s.owner).is_some_and(|n| *n >= self.quota);
        if scopes.iter().any(over) {
            return Seen::Quota;
        }
        for scope in &scopes {
            *self.of_owner.entry(scope.owner.clone()).or_default() += 1;
            self.held.insert(scope.clone(), Held { id, digest, free_at_ms: None });
        }
        self.of_message.insert(id, scopes);
        Seen::New
    }

    /// The message ended: its keys are kept for [`KEEP_MS`] more.
    pub fn ended(&mut self, now_ms: i64, id: ReachId) {
        let free_at = now_ms.saturating_add(KEEP_MS);
        for scope in self.of_message.get(&id).into_iter().flatten() {
            if let Some(old) = self.held.get_mut(scope).and_then(|held| held.free_at_ms.replace(free_at)) {
                self.ending.remove(&(old, id));
            }
        }
        self.ending.insert((free_at, id));
    }

    /// Gives the keys of a message back at once: it was never taken in.
    pub fn drop_claim(&mut self, id: ReachId) {
        for scope in self.of_message.remove(&id).unwrap_or_default() {
            self.held.remove(&scope);
            if let Some(n) = self.of_owner.get_mut(&scope.owner) {
                *n = n.saturating_sub(1);
                if *n == 0 {
                    self.of_owner.remove(&scope.owner);
                }
            }
        }
    }

    /// Keys that are remembered.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn forget(&mut self, now_ms: i64) {
        while let Some((at, id)) = self.ending.first().copied().filter(|(at, _)| *at <= now_ms) {
            self.ending.remove(&(at, id));
            self.drop_claim(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::envelope::{RawPayload, SubmitRequest};
    use crate::types::principal::Principal;
    use proptest::prelude::*;

    fn envelope(caller: &str, key: &str, payload: &str, id: u128) -> Envelope {
        let r = SubmitRequest {
            intent: Some("pay".into()),
            idempotency_key: Some(key.into()),
            payload: Some(Box::new(RawPayload(payload.into()))),
            ..Default::default()
        };
        r.check(Principal::local(caller), 0, ReachId(id)).unwrap()
    }

    fn claim(w: &mut Window, now: i64, e: &Envelope) -> Seen {
        w.claim(now, vec![key_scope(e).unwrap()], digest(e), e.reach_id)
    }

    #[test]
    fn same_key_same_body_is_the_same_other_body_is_a_conflict() {
        let mut w = Window::default();
        assert_eq!(claim(&mut w, 0, &envelope("c", "k", r#"{"a":1,"b":2}"#, 1)), Seen::New);
        assert_eq!(claim(&mut w, 0, &envelope("c", "k", r#"{"b" : 2, "a":1}"#, 2)), Seen::Same(ReachId(1)));
        assert_eq!(claim(&mut w, 0, &envelope("c", "k", r#"{"a":1,"b":3}"#, 3)), Seen::Conflict(ReachId(1)));
        assert_eq!(claim(&mut w, 0, &envelope("d", "k", r#"{"a":1,"b":3}"#, 4)), Seen::New, "somebody else's key");
    }

    #[test]
    fn a_tenant_is_part_of_the_scope_and_cannot_be_imitated() {
        let mut a = envelope("c", "k", "1", 1);
        a.principal.tenant = Some(Arc::from("t"));
        let b = envelope("tc", "k", "1", 2);
        assert_ne!(key_scope(&a), key_scope(&b));
        assert_ne!(key_scope(&a), id_scope(&a));
    }

    #[test]
    fn a_key_is_free_an_hour_after_the_end() {
        let mut w = Window::default();
        let e = envelope("c", "k", "1", 1);
        claim(&mut w, 0, &e);
        assert_eq!(claim(&mut w, 100 * KEEP_MS, &e), Seen::Same(ReachId(1)), "open messages keep their keys");
        w.ended(200 * KEEP_MS, ReachId(1));
        assert_eq!(claim(&mut w, 201 * KEEP_MS - 1, &e), Seen::Same(ReachId(1)));
        assert_eq!(claim(&mut w, 201 * KEEP_MS, &envelope("c", "k", "2", 2)), Seen::New);
    }

    #[test]
    fn a_caller_has_a_quota() {
        let mut w = Window::new(10);
        let all: Vec<Seen> = (0..20).map(|i| claim(&mut w, 0, &envelope("c", &format!("k{i}"), "1", i))).collect();
        assert_eq!(all.iter().filter(|s| **s == Seen::New).count(), 10);
        assert_eq!(all[15], Seen::Quota);
        assert_eq!(claim(&mut w, 0, &envelope("d", "k", "1", 99)), Seen::New, "one caller does not use up another's");
    }

    proptest! {
        /// Toy model: a list of (key, body, id, end).
        #[test]
        fn one_of_many_is_new(ops in proptest::collection::vec((0u8..4, 0u8..5, 0u8..2, 0i64..2_000_000), 1..200)) {
            let mut w = Window::default();
            let mut toy: Vec<(u8, u8, u128, Option<i64>)> = Vec::new();
            let mut now = 0;
            for (n, (what, key, body, pause)) in ops.into_iter().enumerate() {
                now += pause;
                let id = n as u128;
                if what == 0 {
                    if let Some(open) = toy.iter_mut().find(|t| t.0 == key && t.3.is_none()) {
                        open.3 = Some(now);
                        w.ended(now, ReachId(open.2));
                    }
                    continue;
                }
                toy.retain(|t| t.3.is_none_or(|end| now < end + KEEP_MS));
                let scope = Scope { owner: Arc::from("c"), intent: Arc::from("i"), key: Arc::from(key.to_string()) };
                let got = w.claim(now, vec![scope], [body; 32], ReachId(id));
                match toy.iter().find(|t| t.0 == key) {
                    Some(t) if t.1 == body => prop_assert_eq!(got, Seen::Same(ReachId(t.2))),
                    Some(t) => prop_assert_eq!(got, Seen::Conflict(ReachId(t.2))),
                    None => { prop_assert_eq!(got, Seen::New); toy.push((key, body, id, None)); }
                }
                prop_assert_eq!(w.len(), toy.len());
            }
        }
    }

    #[test]
    fn a_name_is_the_same_name_however_it_is_spelt() {
        let of = |intent: &str| {
            let r = crate::types::envelope::SubmitRequest {
                intent: Some(intent.into()),
                idempotency_key: Some("k".into()),
                ..Default::default()
            };
            let e = r.check(crate::types::Principal::local("me"), 1_000, ReachId(1)).unwrap();
            (key_scope(&e).unwrap().intent, digest(&e))
        };
        assert_eq!(of("Cancel-Order"), of("cancel_order"));
        assert_ne!(of("cancel_order").0, of("create_order").0);
    }
}
