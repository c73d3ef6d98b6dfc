//! Push over HTTP: one call a delivery, the answer is the receipt.
//!
//! In: a [`Delivery`]. Out: [`Receipt`]s by status: 200 = done with the result, 202 = accepted (the rest follows by `ack`), 409 = not mine,
//! 422 = payload refused, 429/503 with `Retry-After` = busy, 403/404/410 = refused, anything else or a broken connection = nack(retryable).
//! Invariants: a body that says "error" inside a 200 is no success; a body that is no text is never taken for one; an agent's own words reach the
//! caller only through `echo`. Cost: one pooled connection. Not here: who is called (`engine`), limits on addresses (`guard`).

use crate::dispatch::body;
use crate::dispatch::dice::Dice;
use crate::dispatch::echo;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::guard::{Answer, Call, CallError, Guard};
use crate::dispatch::response::{self, Reading, Said};
use crate::dispatch::spans::span_id;
use crate::error::Code;
use crate::types::envelope::{Envelope, MAX_PAYLOAD, Payload, Source};
use crate::types::manifest::{Endpoint, Protocol};
use crate::types::message::Cause;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The body of a push: what an agent gets to see of an envelope.
#[derive(Debug, Serialize)]
pub struct Pushed<'a> {
    /// Version of this form.
    pub protocol_version: u32,
    /// Identity of the reach.
    pub reach_id: String,
    /// Identity of the message.
    pub message_id: &'a str,
    /// The message that led to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<&'a str>,
    /// Trace.
    pub trace_id: &'a str,
    /// Number that every receipt must name.
    pub delivery: u32,
    /// The same for every attempt at the same thing: run it once.
    pub idempotency_key: String,
    /// Why it comes.
    pub source: Source,
    /// Capability that is wanted.
    pub intent: &'a str,
    /// What is wanted, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<&'a str>,
    /// The work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<&'a Payload>,
    /// Where the work can be fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<&'a str>,
    /// Who asks.
    pub caller: &'a str,
    /// Scopes that were handed down.
    pub scopes: &'a [Arc<str>],
    /// Hops so far, this one included.
    pub depth: u8,
    /// Time left for everything, milliseconds; to be passed on.
    pub budget_ms: u64,
    /// Time for this attempt, milliseconds.
    pub timeout_ms: u64,
    /// The caller's labels.
    pub biz_tags: &'a std::collections::BTreeMap<String, String>,
    /// What was wrong with the result before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<&'a str>,
    /// The dead letter that this work takes over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalation: Option<Given<'a>>,
}

/// A dead letter, as whoever takes it over is told of it.
#[derive(Debug, Serialize)]
pub struct Given<'a> {
    /// Identity of the dead letter.
    pub reach_id: String,
    /// Why it was given up, such as `retries_exhausted`.
    pub tag: &'static str,
    /// In words.
    pub reason: &'a str,
    /// Who had it last, `namespace/agent_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<&'a str>,
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// What the agent of this delivery is sent.
pub fn pushed<'a>(d: &'a Delivery, e: &'a Envelope) -> Pushed<'a> {
    Pushed {
        protocol_version: e.protocol_version,
        reach_id: e.reach_id.to_string(),
        message_id: &e.message_id,
        parent_id: e.parent_id.as_deref(),
        trace_id: &e.trace_id,
        delivery: d.delivery,
        idempotency_key: if d.source == Source::Fix { format!("{}:fix:{}", e.agent_key(), d.delivery) } else { e.agent_key() },
        source: d.source,
        intent: &d.target.capability,
        query: e.query.as_deref(),
        payload: e.payload.as_ref(),
        data_ref: e.data_ref.as_deref(),
        caller: &e.principal.caller,
        scopes: &e.scope_chain,
        depth: e.options.depth.saturating_add(1),
        budget_ms: millis(d.limits.total),
        timeout_ms: millis(d.limits.processing),
        biz_tags: &e.biz_tags,
        fix: d.fix.as_deref(),
        escalation: e.escalation.as_deref().map(|g| Given {
            reach_id: g.reach_id.to_string(),
            tag: g.tag.as_str(),
            reason: &g.reason,
            agent: g.agent.as_ref().map(ToString::to_string),
            intent: g.intent.as_deref(),
        }),
    }
}

/// One of the endpoints that are called, by weight; only those over HTTP for a mapped service.
pub fn choose<'a>(endpoints: &'a [Endpoint], mapped: bool, dice: &mut Dice) -> Option<&'a Endpoint> {
    let fits = |e: &&Endpoint| match e.protocol {
        Protocol::Http => true,
        Protocol::Grpc | Protocol::Mcp => !mapped,
        Protocol::Pull => false,
    };
    let fit = || endpoints.iter().filter(fits);
    let total: u64 = fit().map(|e| u64::from(e.weight)).sum();
    let mut at = dice.below(total.max(1));
    fit().find(|e| {
        let here = at < u64::from(e.weight);
        at = at.saturating_sub(u64::from(e.weight));
        here
    })
}

/// The headers of every call of a delivery: content, key, trace.
pub fn headers(d: &Delivery) -> Vec<(String, String)> {
    let e = &d.envelope;
    vec![
        ("content-type".into(), "application/json".into()),
        ("idempotency-key".into(), header_text(&e.agent_key())),
        ("traceparent".into(), format!("00-{}-{:016x}-01", e.trace_id, span_id(e.reach_id))),
        ("x-reach-delivery".into(), d.delivery.to_string()),
    ]
}

/// Calls the agent and reads its answer as a receipt.
pub async fn deliver(guard: &Guard, d: &Delivery, address: &str) -> Receipt {
    let body = serde_json::to_vec(&pushed(d, &d.envelope)).unwrap_or_default();
    let headers = headers(d);
    let call =
        Call { method: reqwest::Method::POST, url: address.into(), headers, body, within: d.limits.processing, max_body: MAX_PAYLOAD };
    read(guard.call(call).await)
}

/// A header value of plain characters: whatever else is in it becomes `%XX`.
fn header_text(text: &str) -> String {
    text.bytes().map(|b| if b.is_ascii_graphic() && b != b'%' { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The receipt that an answer is.
pub fn read(answer: Result<Answer, CallError>) -> Receipt {
    let nack =
        |cause: Cause, reason: String, retry_after: Option<Duration>| Receipt::Nacked { cause, reason: Arc::from(reason), retry_after };
    let answer = match answer {
        Ok(answer) => answer,
        Err(e) => return broken(e),
    };
    let text = body::text(&answer, MAX_PAYLOAD);
    let words = || match &text {
        Ok(text) => echo::says(&words_of(text)),
        Err(why) => why.to_string(),
    };
    match answer.status {
        200 | 201 | 203 | 204 => match &text {
            Ok(text) => success(text),
            Err(why) => why.receipt(answer.status),
        },
        202 => Receipt::Accepted,
        409 => Receipt::Rejected(Arc::from(words())),
        400 | 422 => Receipt::Refused { code: Code::PayloadInvalid, reason: Arc::from(words()) },
        401 | 403 | 404 | 405 | 410 | 415 => {
            Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(format!("status {}: {}", answer.status, words())) }
        }
        413 => Receipt::Refused { code: Code::PayloadTooLarge, reason: Arc::from(words()) },
        // never followed, and the next call would be sent on as well
        300..=399 => {
            let reason = format!("status {}: redirects are not followed; register the address itself", answer.status);
            Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(reason) }
        }
        429 | 503 => nack(Cause::Busy, format!("status {}, busy: {}", answer.status, words()), answer.retry_after),
        status => nack(Cause::Nack, format!("status {status}: {}", words()), answer.retry_after),
    }
}

/// The receipt of a call without an answer.
pub fn broken(e: CallError) -> Receipt {
    let cause = match e {
        CallError::Blocked(_) => Cause::Blocked,
        CallError::Connect => Cause::Connect,
        CallError::Timeout => Cause::Timeout,
        CallError::Broken | CallError::TooLarge => Cause::Broken,
    };
    Receipt::Nacked { cause, reason: Arc::from(e.to_string()), retry_after: None }
}

/// The words of an error in a body: those of its JSON, else the body itself.
fn words_of(text: &str) -> String {
    match response::find_json(text).and_then(|j| serde_json::from_str::<serde_json::Value>(j).ok()) {
        Some(body) if body.is_object() => response::words(&body, None),
        Some(_) | None => crate::types::text::cut(text, 2_000).to_string(),
    }
}

fn success(text: &str) -> Receipt {
    if text.trim().is_empty() {
        return Receipt::Acked(crate::types::message::Reply::default());
    }
    let reply = response::read(text);
    let said = reply.data.as_ref().map(|d| response::said(&d.value(), &Reading::default()));
    match said {
        Some(Said::Bad(reason)) => Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(echo::says(&reason)) },
        Some(Said::Again(reason)) => Receipt::Nacked { cause: Cause::Nack, reason: Arc::from(echo::says(&reason)), retry_after: None },
        Some(Said::Good) | None => Receipt::Acked(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Receipt {
        with(status, "", "", body.as_bytes())
    }

    fn with(status: u16, content_type: &str, encoding: &str, body: &[u8]) -> Receipt {
        let (content_type, encoding, retry_after) = (content_type.into(), encoding.into(), Some(Duration::from_secs(7)));
        read(Ok(Answer { status, retry_after, content_type, encoding, body: body.to_vec() }))
    }

    fn words_in(receipt: &Receipt) -> String {
        match receipt {
            Receipt::Nacked { reason, .. } | Receipt::Refused { reason, .. } | Receipt::Rejected(reason) => reason.to_string(),
            Receipt::Delivered | Receipt::Accepted | Receipt::Task(_) | Receipt::Progress(_) | Receipt::Acked(_) => {
                panic!("no words in {receipt:?}")
            }
        }
    }

    #[test]
    fn what_is_no_text_is_never_taken_for_text() {
        let mut zipped = Vec::new();
        let mut zip = flate2::read::GzEncoder::new(&b"{\"price\": 7}"[..], flate2::Compression::default());
        std::io::Read::read_to_end(&mut zip, &mut zipped).unwrap();
        assert!(matches!(with(200, "application/json", "gzip", &zipped), Receipt::Acked(r) if r.data.is_some()), "opened");
        let lost = with(200, "application/json", "", &zipped);
        assert!(words_in(&lost).contains("content-type application/json"), "{lost:?}");
        let picture = with(200, "image/png", "", &[0x89, b'P', 0xff]);
        assert!(matches!(&picture, Receipt::Refused { code: Code::AgentRejected, .. }) && words_in(&picture).contains("image/png"));
        assert!(words_in(&with(200, "text/plain", "br", b"x")).contains("content-encoding br"));
        assert!(words_in(&with(500, "image/png", "", &[0xff])).contains("image/png"), "of errors too");
    }

    #[test]
    fn errors_are_shown_short_plain_and_without_credentials() {
        let said =
            words_in(&answer(500, "Traceback\r\n  conn = \"postgres://me:pw@db/x\"\u{1b}[2J Authorization: Bearer sk-CANARY-0123456789"));
        assert!(said.starts_with("status 500: the agent says: Traceback conn"), "{said}");
        assert!(!said.contains("CANARY") && !said.contains("pw@") && !said.contains('\u{1b}') && !said.contains('\n'), "{said}");
        assert!(words_in(&answer(502, &"long ".repeat(1_000_000))).chars().count() < 350);
        let json = words_in(&answer(500, "{\"message\": \"token=abc123 is wrong\"}"));
        assert_eq!(json, "status 500: the agent says: token=[hidden] is wrong");
        assert_eq!(words_in(&answer(503, "")), "status 503, busy: the agent gave no reason");
        assert!(words_in(&answer(200, "{\"code\": 7, \"msg\": \"password: x\"}")).ends_with("password: [hidden]"));
    }

    #[test]
    fn statuses_are_receipts() {
        assert!(matches!(answer(200, "{\"price\": 7}"), Receipt::Acked(r) if r.data.is_some()));
        assert!(matches!(answer(200, "{\"code\": 500, \"message\": \"no\"}"), Receipt::Refused { .. }), "an error inside a 200");
        assert!(matches!(answer(204, ""), Receipt::Acked(_)));
        assert_eq!(answer(202, ""), Receipt::Accepted);
        assert!(matches!(answer(409, "not mine"), Receipt::Rejected(_)));
        assert!(matches!(answer(400, "bad"), Receipt::Refused { code: Code::PayloadInvalid, .. }));
        for busy in [429, 503] {
            assert!(
                matches!(answer(busy, ""), Receipt::Nacked { cause: Cause::Busy, retry_after: Some(d), .. } if d == Duration::from_secs(7))
            );
        }
        assert!(matches!(answer(302, ""), Receipt::Refused { code: Code::AgentRejected, .. }), "nobody follows it, now or later");
        for again in [500, 502, 504] {
            assert!(matches!(answer(again, ""), Receipt::Nacked { cause: Cause::Nack, .. }), "{again}");
        }
        assert!(matches!(read(Err(CallError::Connect)), Receipt::Nacked { cause: Cause::Connect, .. }));
    }

    #[test]
    fn endpoints_share_by_weight() {
        let at = |a: &str, weight: u32| Endpoint { protocol: Protocol::Http, address: a.into(), weight };
        let list = [at("a", 1), at("b", 3), Endpoint { protocol: Protocol::Grpc, address: "c".into(), weight: 4 }];
        let mut dice = Dice::new(1);
        let mut share =
            |mapped: bool, name: &str| (0..4_000).filter(|_| choose(&list, mapped, &mut dice).is_some_and(|e| e.address == name)).count();
        let (mapped, any) = (share(true, "b"), share(false, "c"));
        assert!((2_850..3_150).contains(&mapped) && (1_850..2_150).contains(&any), "{mapped} {any}");
        assert_eq!(share(true, "c"), 0, "a mapped service speaks HTTP");
        assert!(choose(&[], false, &mut dice).is_none());
    }

    #[test]
    fn header_values_are_plain() {
        assert_eq!(header_text("a:b\r\n退"), "a:b%0D%0A%E9%80%80");
    }
}
