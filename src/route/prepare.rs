//! Checks a request and makes a [`Query`] of it: all faults at once, texts cut instead of refused, the principal only narrowed.
//!
//! In: an unchecked request, the credential's principal, limits, the time, a seed. Out: a query without vectors, and notes.
//! Not here: embedding (the resolver shell), anything that needs the View.

use crate::error::Error;
use crate::types::decision::Note;
use crate::types::fault::Fault;
use crate::types::id::{AgentKey, Namespace, parse_agent};
use crate::types::lang::Lang;
use crate::types::manifest::Attribute;
use crate::types::principal::Principal;
use crate::types::query::Query;
use crate::types::request::ResolveRequest;
use crate::types::text;
use std::sync::Arc;

/// Bounds of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Characters of text that are read; the rest is cut with a note.
    pub text_chars: usize,
    /// Largest `k`.
    pub k_max: u32,
    /// Largest number of entries of a list in a request.
    pub list_max: usize,
    /// Bytes of a payload (as JSON) that are accepted.
    pub payload_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { text_chars: 8192, k_max: 50, list_max: 100, payload_bytes: 2 * 1024 * 1024 }
    }
}

fn agents(list: &[String], field: &str, max: usize, faults: &mut Vec<Fault>) -> Vec<AgentKey> {
    if list.len() > max {
        faults.push(Fault::new(format!("/{field}"), format!("at most {max} entries"), "send fewer"));
    }
    let mut keys = Vec::new();
    for (i, entry) in list.iter().take(max).enumerate() {
        match parse_agent(entry) {
            Ok(key) => keys.push(key),
            Err(expected) => faults.push(Fault::new(format!("/{field}/{i}"), expected, "such as \"orders/order-desk\"")),
        }
    }
    keys
}

/// Cuts `text` to `max` characters on a character boundary.
pub fn cut(text: &str, max: usize) -> (&str, bool) {
    match text.char_indices().nth(max) {
        Some((at, _)) => (&text[..at], true),
        None => (text, false),
    }
}

/// What of a text is read: its first `max` characters, cleaned; and whether something was cut off.
pub fn words(text: &str, max: usize) -> (String, bool) {
    // the length is cut before anything else looks at the text
    let (raw, was_cut) = cut(text, max);
    (text::half_width(&text::clean(raw)).trim().to_string(), was_cut)
}

/// Makes a query of a request. `local` says that no tokens are configured, so that the request's caller and tenant are taken at their word.
pub fn prepare(
    principal: &Principal,
    request: &ResolveRequest,
    local: bool,
    limits: &Limits,
    now_ms: i64,
    seed: u64,
) -> Result<(Query, Vec<Note>), Error> {
    let mut faults = Vec::new();
    let mut notes = Vec::new();

    let mut who = principal.clone();
    if local {
        if let Some(caller) = request.caller.as_deref().filter(|c| !c.is_empty()) {
            who.caller = Arc::from(cut(&text::clean(caller), 128).0);
        }
        if let Some(tenant) = request.tenant.as_deref().filter(|t| !t.is_empty()) {
            who.tenant = Some(Arc::from(cut(&text::clean(tenant), 128).0));
        }
    }
    if request.namespaces.len() > limits.list_max || request.scopes.as_ref().is_some_and(|s| s.len() > limits.list_max) {
        faults.push(Fault::new("/namespaces", format!("at most {} namespaces and scopes", limits.list_max), "send fewer"));
    }
    for (i, namespace) in request.namespaces.iter().enumerate() {
        if let Err(expected) = Namespace::new(namespace) {
            faults.push(Fault::new(format!("/namespaces/{i}"), expected, "such as \"orders\" or \"hr/payroll\""));
        }
    }
    if !request.namespaces.is_empty() {
        who.namespaces = who.namespaces.narrowed(&request.namespaces);
    }
    if let Some(scopes) = &request.scopes {
        who.scopes = who.scopes.narrowed(scopes);
    }

    let (cleaned, was_cut) = words(&request.query, limits.text_chars);
    if was_cut {
        notes.push(Note::new("field_truncated", format!("query was cut to its first {} characters", limits.text_chars)));
    }
    let words = cleaned.as_str();
    let capability = request.capability.as_deref().map(|c| text::clean(cut(c, 256).0).trim().to_string()).filter(|c| !c.is_empty());
    let target = request.target.as_deref().filter(|t| !t.is_empty()).and_then(|t| match parse_agent(t) {
        Ok(key) => Some(key),
        Err(expected) => {
            faults.push(Fault::new("/target", expected, "such as \"orders/order-desk\""));
            None
        }
    });
    if words.is_empty() && capability.is_none() && target.is_none() && faults.is_empty() {
        let given = if request.query.is_empty() { "it is empty" } else { "nothing readable is left of it" };
        faults.push(Fault::new("/query", "text that says what is wanted", format!("{given}; or give capability or target instead")));
    }
    let preferred = agents(&request.preferred, "preferred", limits.list_max, &mut faults);
    let exclude = agents(&request.exclude, "exclude", limits.list_max, &mut faults);
    if request.only && request.preferred.is_empty() {
        faults.push(Fault::new("/only", "preferred agents beside it", "name at least one agent in preferred"));
    }
    if request.max_cost.is_some_and(|c| !c.is_finite() || c < 0.0) {
        faults.push(Fault::new("/max_cost", "a finite number ≥ 0", "leave it out for no limit"));
    }
    if request.k.is_some_and(|k| k == 0 || k > limits.k_max) {
        faults.push(Fault::new("/k", format!("a number from 1 to {}", limits.k_max), "leave it out for 5"));
    }
    if request.depth > 8 {
        faults.push(Fault::new("/depth", "at most 8 hops", "the request seems to go in circles"));
    }
    if request.deadline_ms == Some(0) {
        faults.push(Fault::new("/deadline_ms", "at least 1 ms", "leave it out for the default"));
    }
    if request.attributes.len() > limits.list_max {
        faults.push(Fault::new("/attributes", format!("at most {} attributes", limits.list_max), "send fewer"));
    }
    for (name, value) in &request.attributes {
        if matches!(value, Attribute::Number(n) if !n.is_finite()) {
            faults.push(Fault::new(format!("/attributes/{name}"), "a finite number", "NaN and infinity can't be selected by"));
        }
    }
    if let Some(payload) = &request.payload {
        // counted without building the text
        let mut counter = ByteCounter(0);
        if serde_json::to_writer(&mut counter, payload.as_ref()).is_err() || counter.0 > limits.payload_bytes {
            return Err(Error {
                faults: vec![Fault::new(
                    "/payload",
                    format!("at most {} bytes of JSON", limits.payload_bytes),
                    "store the data elsewhere and send a data_ref",
                )],
                ..Error::new(
                    crate::error::Code::PayloadTooLarge,
                    format!("the payload is larger than {} bytes; send a data_ref", limits.payload_bytes),
                )
            });
        }
    }
    let at_ms = match request.at.as_deref().filter(|a| !a.is_empty()) {
        None => now_ms,
        Some(at) => match at.parse::<jiff::Timestamp>() {
            Ok(at) => at.as_millisecond(),
            Err(_) => {
                faults.push(Fault::new("/at", "an RFC 3339 time", "such as \"2026-11-29T09:30:00+08:00\""));
                now_ms
            }
        },
    };
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    let query = Query {
        text: Arc::from(words),
        lang: Lang::of(words),
        vectors: Vec::new(),
        parts: Vec::new(),
        capability,
        payload: request.payload.clone(),
        principal: who,
        region: request.region.as_deref().map(|r| r.trim().to_ascii_lowercase()).filter(|r| !r.is_empty()),
        selectors: request.attributes.clone(),
        target,
        preferred,
        only_preferred: request.only,
        exclude,
        max_cost: request.max_cost,
        deadline_ms: request.deadline_ms,
        preset: request.preset.clone().filter(|p| !p.is_empty()),
        fallback: request.fallback.unwrap_or(true),
        depth: u8::try_from(request.depth).unwrap_or(8),
        previous: request.previous.clone(),
        k: request.k.unwrap_or(5) as usize,
        at_ms,
        seed: request.seed.unwrap_or(seed),
    };
    Ok((query, notes))
}

struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0 += buf.len();
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::principal::Grant;

    fn ask(request: ResolveRequest) -> Result<Query, Error> {
        prepare(&Principal::local("t"), &request, true, &Limits::default(), 0, 1).map(|(q, _)| q)
    }

    #[test]
    fn all_faults_come_at_once_and_name_their_field() {
        let request = ResolveRequest {
            query: "x".into(),
            max_cost: Some(f64::NAN),
            k: Some(0),
            depth: 9,
            target: Some("nowhere".into()),
            preferred: vec!["ok/a".into(), "bad".into()],
            at: Some("yesterday".into()),
            ..Default::default()
        };
        let error = ask(request).unwrap_err();
        let places: Vec<_> = error.faults.iter().map(|f| f.pointer.as_str()).collect();
        for place in ["/max_cost", "/k", "/depth", "/target", "/preferred/1", "/at"] {
            assert!(places.contains(&place), "{place} missing in {places:?}");
        }
    }

    #[test]
    fn empty_is_refused_and_long_is_cut() {
        assert_eq!(ask(ResolveRequest::default()).unwrap_err().faults[0].pointer, "/query");
        assert_eq!(ask(ResolveRequest { query: "\u{0}\u{7}  ".into(), ..Default::default() }).unwrap_err().faults[0].pointer, "/query");
        let long = ask(ResolveRequest { query: "退".repeat(1_000_000), ..Default::default() }).unwrap();
        assert_eq!(long.text.chars().count(), 8192);
    }

    #[test]
    fn a_request_narrows_its_credential() {
        let principal = Principal { namespaces: Grant::Only([Arc::from("a")].into()), ..Principal::local("t") };
        let request = ResolveRequest {
            query: "x".into(),
            namespaces: vec!["a".into(), "b".into()],
            caller: Some("root".into()),
            ..Default::default()
        };
        let (query, _) = prepare(&principal, &request, false, &Limits::default(), 0, 1).unwrap();
        assert_eq!(query.principal.namespaces, Grant::Only([Arc::from("a")].into()));
        assert_eq!(&*query.principal.caller, "t", "with tokens the body can't rename the caller");
    }
}
