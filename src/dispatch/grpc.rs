//! Push over gRPC: one call of `agentreach.v1.Worker/Deliver` a delivery; the agent answers with a stream of receipts, and the status that ends it.
//!
//! In: a [`Delivery`] and the codec of its messages. Out: the receipt that ends the delivery, or nothing when the rest follows by `Ack`, or when nobody
//! waits for it any more; receipts on the way (`delivered`, `accepted`, `progress`) are told as they come.
//! Statuses are the twins of the HTTP ones: OK = done (or accepted, when a receipt said so), ABORTED and ALREADY_EXISTS = 409 not mine, as
//! UNIMPLEMENTED; INVALID_ARGUMENT and OUT_OF_RANGE = 422 payload refused; RESOURCE_EXHAUSTED and UNAVAILABLE = 429/503 busy; NOT_FOUND,
//! PERMISSION_DENIED, UNAUTHENTICATED, FAILED_PRECONDITION = refused; anything else or a broken stream = nack(retryable).
//! Invariants: goes through the guard like every call; a message of the agent's is bounded before it is read; what is wrong on our side of the wire is
//! never taken for a status of the agent's. Cost: a stream of a pooled HTTP/2 connection. Not here: protobuf (`api`), addresses (`guard`).

use crate::dispatch::echo;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::guard::{Call, Guard, Opened, Piece};
use crate::dispatch::http;
use crate::error::Code;
use crate::types::envelope::MAX_PAYLOAD;
use crate::types::message::{Cause, Reply};
use hyper::body::{Buf, Bytes};
use reqwest::header::HeaderMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The method that agents implement.
pub const METHOD: &str = "/agentreach.v1.Worker/Deliver";
/// Largest message of an agent in bytes: a payload and what surrounds it.
const MAX_MESSAGE: usize = MAX_PAYLOAD + 64 * 1024;
/// Most bytes of one call: many partial results.
const MAX_STREAM: usize = 16 * MAX_PAYLOAD;
/// A sign of life is good for this long at least.
const SIGN: Duration = Duration::from_secs(30);
/// How long the end of a stream is waited for after its last receipt.
const GOODBYE: Duration = Duration::from_millis(20);

/// The messages of the call as bytes: they are generated with the doors.
pub trait Codec: Send + Sync + 'static {
    /// `agentreach.v1.Work`.
    fn work(&self, delivery: &Delivery) -> Vec<u8>;
    /// `agentreach.v1.WorkReceipt`, an answer to `delivery`; in words what is wrong with it.
    fn receipt(&self, delivery: &Delivery, bytes: &[u8]) -> Result<Receipt, String>;
}

/// Told of receipts on the way; false when nobody waits for the delivery any more.
pub type OnTheWay<'a> = dyn Fn(Receipt) -> bool + Send + Sync + 'a;

/// The same address as it is called: `grpc` is HTTP/2 in the clear, `grpcs` is encrypted.
fn url(address: &str) -> String {
    let web = match address.split_once("://") {
        Some(("grpc", rest)) => format!("http://{rest}"),
        Some(("grpcs", rest)) => format!("https://{rest}"),
        Some(_) | None => address.to_string(),
    };
    format!("{}{METHOD}", web.trim_end_matches('/'))
}

/// A message behind its five bytes of frame.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 5);
    out.push(0);
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
    out
}

fn nack(cause: Cause, reason: impl Into<String>) -> Receipt {
    Receipt::Nacked { cause, reason: Arc::from(reason.into()), retry_after: None }
}

/// Calls the agent. `None`: the rest follows by receipts of its own, or nobody waits any more.
pub async fn deliver(guard: &Guard, codec: &dyn Codec, d: &Delivery, address: &str, on_the_way: &OnTheWay<'_>) -> Option<Receipt> {
    let wait = d.limits.processing;
    let ours = |name: &str| name == "content-type";
    let mut headers: Vec<(String, String)> = http::headers(d).into_iter().filter(|(name, _)| !ours(name)).collect();
    headers.push(("content-type".into(), "application/grpc".into()));
    headers.push(("te".into(), "trailers".into()));
    headers.push(("grpc-accept-encoding".into(), "identity".into()));
    headers.push(("grpc-timeout".into(), timeout(d.limits.total.max(wait))));
    let body = framed(&codec.work(d));
    // how long it may take in all is the engine's to say: it ends a delivery whose lease runs out
    let within = crate::dispatch::timeouts::LONGEST.max(d.limits.total);
    let call = Call { method: reqwest::Method::POST, url: url(address), headers, body, within, max_body: MAX_STREAM };
    let opened = match tokio::time::timeout(wait, guard.open_http2(call)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return Some(http::broken(e)),
        Err(_) => return Some(nack(Cause::Timeout, "no answer in time")),
    };
    if opened.status() != 200 {
        return Some(match opened.whole().await {
            Ok(answer) => match http::read(Ok(answer)) {
                // no agent of ours speaks like this: something in between answered
                Receipt::Acked(_) | Receipt::Accepted => nack(Cause::Broken, "the answer is no gRPC"),
                other @ (Receipt::Delivered | Receipt::Task(_) | Receipt::Progress(_) | Receipt::Nacked { .. }) => other,
                other @ (Receipt::Refused { .. } | Receipt::Rejected(_)) => other,
            },
            Err(e) => http::broken(e),
        });
    }
    if !opened.header("content-type").starts_with("application/grpc") {
        return Some(nack(Cause::Broken, "the answer is no gRPC: the address speaks plain HTTP"));
    }
    follow(opened, codec, d, on_the_way).await
}

/// Reads receipts until one ends the delivery or the stream ends.
async fn follow(mut opened: Opened, codec: &dyn Codec, d: &Delivery, on_the_way: &OnTheWay<'_>) -> Option<Receipt> {
    // a refusal without any message carries its status in the headers
    if let Some(status) = Status::of(opened.headers()) {
        return Some(status.receipt());
    }
    let (mut frames, mut signs) = (Frames::default(), 0u32);
    let mut wait = d.limits.processing;
    loop {
        let piece = match tokio::time::timeout(wait, opened.next()).await {
            Ok(Ok(piece)) => piece,
            Ok(Err(e)) => return Some(http::broken(e)),
            Err(_) => return Some(nack(Cause::Timeout, "no further receipt in time")),
        };
        match piece {
            Some(Piece::Data(data)) => frames.push(data),
            Some(Piece::Trailers(trailers)) => {
                return match Status::of(&trailers) {
                    Some(status) if status.code == 0 => end(signs),
                    Some(status) => Some(status.receipt()),
                    None => Some(nack(Cause::Broken, "the stream ended without a status")),
                };
            }
            None => return Some(nack(Cause::Broken, "the stream ended without a status")),
        }
        loop {
            let message = match frames.next() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(why) => return Some(nack(Cause::Broken, why)),
            };
            match codec.receipt(d, &message) {
                Ok(receipt @ (Receipt::Delivered | Receipt::Accepted | Receipt::Task(_) | Receipt::Progress(_))) => {
                    signs += 1;
                    wait = d.limits.processing.max(SIGN);
                    if !on_the_way(receipt) {
                        return None;
                    }
                }
                Ok(receipt @ (Receipt::Acked(_) | Receipt::Nacked { .. } | Receipt::Refused { .. } | Receipt::Rejected(_))) => {
                    // its status usually comes with it: who hangs up first would look like a cancellation
                    tokio::time::timeout(GOODBYE, opened.next()).await.ok();
                    return Some(receipt);
                }
                Err(why) => return Some(nack(Cause::Broken, format!("a receipt that can't be read: {why}"))),
            }
        }
    }
}

/// A stream that ends well without a last receipt: nothing was said = done without a result, else the rest follows by `Ack`.
fn end(signs: u32) -> Option<Receipt> {
    if signs == 0 { Some(Receipt::Acked(Reply::default())) } else { Some(Receipt::Accepted) }
}

/// `grpc-timeout` takes at most eight digits.
fn timeout(span: Duration) -> String {
    match span.as_millis() {
        ms @ ..100_000_000 => format!("{ms}m"),
        ms => format!("{}S", (ms / 1_000).min(99_999_999)),
    }
}

/// Cuts the bytes of a stream into messages.
#[derive(Default)]
struct Frames {
    waiting: VecDeque<Bytes>,
    len: usize,
}

impl Frames {
    fn push(&mut self, data: Bytes) {
        self.len += data.len();
        self.waiting.push_back(data);
    }

    fn take(&mut self, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n);
        while out.len() < n {
            let Some(first) = self.waiting.front_mut() else { break };
            let some = first.len().min(n - out.len());
            out.extend_from_slice(first.get(..some).unwrap_or_default());
            first.advance(some);
            if first.is_empty() {
                self.waiting.pop_front();
            }
        }
        self.len -= out.len();
        out
    }

    /// The next whole message; in words why there can be none.
    fn next(&mut self) -> Result<Option<Vec<u8>>, &'static str> {
        let mut head = self.waiting.iter().flat_map(|b| b.iter().copied());
        let head: Vec<u8> = head.by_ref().take(5).collect();
        let [compressed, a, b, c, d] = head.as_slice() else { return Ok(None) };
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if *compressed != 0 {
            return Err("the answer is compressed, which was not offered");
        }
        if len > MAX_MESSAGE {
            return Err("the answer is too large");
        }
        if self.len < len + 5 {
            return Ok(None);
        }
        self.take(5);
        Ok(Some(self.take(len)))
    }
}

/// The status that ends a call.
struct Status {
    code: u32,
    message: String,
    retry_after: Option<Duration>,
}

impl Status {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        // what is no number is an error of unknown kind
        let code = text("grpc-status")?.trim().parse().unwrap_or(2);
        let number = |name: &str| text(name).and_then(|t| t.trim().parse::<u64>().ok());
        let retry_after = number("grpc-retry-pushback-ms")
            .or_else(|| number("retry-after-ms"))
            .map(Duration::from_millis)
            .or_else(|| number("retry-after").map(Duration::from_secs));
        Some(Self { code, message: percent_decoded(text("grpc-message").unwrap_or_default()), retry_after })
    }

    fn receipt(self) -> Receipt {
        let said = echo::says(&self.message);
        let named = |name: &str| Arc::from(format!("status {name}: {said}"));
        let refused = |name: &str| Receipt::Refused { code: Code::AgentRejected, reason: named(name) };
        let misfit = || Receipt::Refused { code: Code::PayloadInvalid, reason: Arc::from(said.as_str()) };
        let busy = |name: &str| Receipt::Nacked {
            cause: Cause::Busy,
            reason: Arc::from(format!("status {name}, busy: {said}")),
            retry_after: self.retry_after,
        };
        let again = |name: &str| Receipt::Nacked { cause: Cause::Nack, reason: named(name), retry_after: self.retry_after };
        match self.code {
            0 => Receipt::Acked(Reply::default()),
            1 => again("CANCELLED"),
            3 | 11 => misfit(),
            4 => again("DEADLINE_EXCEEDED"),
            5 => refused("NOT_FOUND"),
            6 | 10 => Receipt::Rejected(Arc::from(said.as_str())),
            7 => refused("PERMISSION_DENIED"),
            8 => busy("RESOURCE_EXHAUSTED"),
            9 => refused("FAILED_PRECONDITION"),
            12 => Receipt::Rejected(named("UNIMPLEMENTED")),
            13 => again("INTERNAL"),
            14 => busy("UNAVAILABLE"),
            15 => again("DATA_LOSS"),
            16 => refused("UNAUTHENTICATED"),
            2 => again("UNKNOWN"),
            other => again(&other.to_string()),
        }
    }
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&b) = bytes.get(at) {
        let digit = |n: usize| bytes.get(at + n).and_then(|d| char::from(*d).to_digit(16));
        let coded = if b == b'%' { digit(1).zip(digit(2)).and_then(|(a, b)| u8::try_from(a * 16 + b).ok()) } else { None };
        out.push(coded.unwrap_or(b));
        at += if coded.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(pairs: &[(&'static str, &'static str)]) -> Receipt {
        let headers: HeaderMap = pairs.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        Status::of(&headers).unwrap().receipt()
    }

    #[test]
    fn statuses_are_the_twins_of_the_http_ones() {
        let of = |code: &'static str| status(&[("grpc-status", code), ("grpc-message", "no%20such%20%E5%8D%95")]);
        assert!(matches!(of("0"), Receipt::Acked(_)));
        for not_mine in ["6", "10", "12"] {
            assert!(matches!(of(not_mine), Receipt::Rejected(_)), "{not_mine}");
        }
        for misfit in ["3", "11"] {
            assert!(
                matches!(of(misfit), Receipt::Refused { code: Code::PayloadInvalid, reason } if &*reason == "the agent says: no such 单"),
                "{misfit}"
            );
        }
        for refused in ["5", "7", "9", "16"] {
            assert!(matches!(of(refused), Receipt::Refused { code: Code::AgentRejected, .. }), "{refused}");
        }
        for again in ["1", "2", "4", "13", "15", "99", "many"] {
            assert!(matches!(of(again), Receipt::Nacked { cause: Cause::Nack, .. }), "{again}");
        }
        for hint in [("grpc-retry-pushback-ms", "7000"), ("retry-after-ms", "7000"), ("retry-after", "7")] {
            for busy in ["8", "14"] {
                let receipt = status(&[("grpc-status", busy), hint]);
                let seven = Some(Duration::from_secs(7));
                assert!(
                    matches!(receipt, Receipt::Nacked { cause: Cause::Busy, retry_after, .. } if retry_after == seven),
                    "{busy} {hint:?}"
                );
            }
        }
        assert!(Status::of(&HeaderMap::new()).is_none());
    }

    #[test]
    fn addresses_are_called_as_they_are_meant() {
        for (address, called) in [
            ("grpc://a:7000/", "http://a:7000/agentreach.v1.Worker/Deliver"),
            ("grpcs://a:7000", "https://a:7000/agentreach.v1.Worker/Deliver"),
            ("http://a:7000/below/", "http://a:7000/below/agentreach.v1.Worker/Deliver"),
            ("https://a/", "https://a/agentreach.v1.Worker/Deliver"),
        ] {
            assert_eq!(url(address), called);
        }
        assert_eq!((timeout(Duration::from_millis(1_500)).as_str(), timeout(Duration::from_secs(200_000)).as_str()), ("1500m", "200000S"));
    }

    #[test]
    fn silence_is_done_and_signs_of_life_are_accepted() {
        assert!(matches!(end(0), Some(Receipt::Acked(r)) if r == Reply::default()));
        assert_eq!(end(2), Some(Receipt::Accepted));
    }

    #[test]
    fn large_and_compressed_messages_are_refused_before_they_are_read() {
        let mut large = Frames::default();
        large.push(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]));
        assert_eq!(large.next(), Err("the answer is too large"));
        let mut compressed = Frames::default();
        compressed.push(Bytes::from_static(&[1, 0, 0, 0, 1, 9]));
        assert!(compressed.next().is_err());
    }

    proptest! {
        #[test]
        fn messages_come_out_however_the_stream_is_cut(messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6), cut in 1usize..9) {
            let whole: Vec<u8> = messages.iter().flat_map(|m| framed(m)).collect();
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            for piece in whole.chunks(cut) {
                frames.push(Bytes::copy_from_slice(piece));
                while let Some(message) = frames.next().unwrap() {
                    seen.push(message);
                }
            }
            prop_assert_eq!(seen, messages);
        }

        #[test]
        fn decoding_never_panics(text in "[ -~]{0,40}") {
            let _text = percent_decoded(&text);
        }
    }
}
