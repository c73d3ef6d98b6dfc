//! Agents that are MCP servers, over streamable HTTP: `initialize` once, then one `tools/call` a delivery; its answer is the receipt.
//!
//! In: a [`Delivery`], the name of the tool, the address. Out: the receipt that ends the delivery, or nothing when nobody waits for it any more; progress is
//! told on the way. The answer may be one JSON document or a stream of events. A session that the server has forgotten is begun anew, once.
//! Invariants: every call goes through the guard; a tool is called at most once a delivery (the second try follows only an answer that says that
//! nothing was run). Cost: one pooled connection, and two short calls more for the first delivery to an address.
//! Not here: the messages (`message`), events (`sse`), other transports of MCP (stdio, the older HTTP+SSE).

pub mod message;
pub mod sse;

use crate::dispatch::body;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::grpc::OnTheWay;
use crate::dispatch::guard::{Answer, Call, CallError, Guard, Opened, Piece};
use crate::dispatch::http;
use crate::dispatch::timeouts::LONGEST;
use crate::error::Code;
use crate::types::envelope::MAX_PAYLOAD;
use crate::types::message::Cause;
use message::Incoming;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Largest answer in bytes when it is one document.
const MAX_ANSWER: usize = sse::MAX_EVENT;
/// Most bytes of one stream.
const MAX_STREAM: usize = 16 * MAX_PAYLOAD;
/// Sessions that are remembered.
const MAX_SESSIONS: usize = 10_000;
/// Longest short call: a notification, an answer to the server.
const SHORT: Duration = Duration::from_secs(5);
/// Requests of the server that are answered during one call.
const MAX_ASKED: u32 = 16;
/// Signs of progress that are kept of one call; later ones count, one in fifty.
const MAX_SIGNS: u32 = 100;
/// A sign of life is good for this long at least.
const SIGN: Duration = Duration::from_secs(30);

/// A session with one server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    /// What the server calls it; servers without state have none.
    id: Option<String>,
    version: String,
}

/// Sessions by address.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    fn get(&self, address: &str) -> Option<Session> {
        self.0.lock().get(address).cloned()
    }

    fn put(&self, address: &str, session: Session) {
        let mut all = self.0.lock();
        if all.len() >= MAX_SESSIONS && !all.contains_key(address) {
            // beginning anew costs two calls; a session that is forgotten ends at the server by its own rules
            all.clear();
        }
        all.insert(address.to_string(), session);
    }

    /// Forgets `session`, unless another one was begun meanwhile.
    fn forget(&self, address: &str, session: &Session) {
        let mut all = self.0.lock();
        if all.get(address) == Some(session) {
            all.remove(address);
        }
    }
}

fn nack(cause: Cause, reason: impl Into<String>) -> Receipt {
    Receipt::Nacked { cause, reason: Arc::from(reason.into()), retry_after: None }
}

/// One client of one server, for one delivery.
struct Client<'a> {
    guard: &'a Guard,
    delivery: &'a Delivery,
    address: &'a str,
}

/// How a request ended.
enum Ended {
    /// With a result.
    Result(Box<RawValue>),
    /// Without one.
    Receipt(Receipt),
    /// Nobody waits for it any more.
    Left,
    /// The server does not know the session: nothing was run.
    Forgotten,
}

/// Calls the tool. `None`: nobody waits any more.
pub async fn deliver(
    guard: &Guard,
    sessions: &Sessions,
    d: &Delivery,
    address: &str,
    tool: &str,
    on_the_way: &OnTheWay<'_>,
) -> Option<Receipt> {
    let request = match message::tool_call(d, tool) {
        Ok(request) => request,
        Err(receipt) => return Some(receipt),
    };
    let client = Client { guard, delivery: d, address };
    for _ in 0..2 {
        let known = sessions.get(address);
        let fresh = known.is_none();
        let session = match known {
            Some(session) => session,
            None => match client.begin().await {
                Ok(session) => session,
                Err(receipt) => return Some(not_called(receipt)),
            },
        };
        if fresh {
            sessions.put(address, session.clone());
        }
        match client.call(&session, request.clone(), fresh, on_the_way).await {
            Ended::Result(result) => return Some(message::receipt_of_result(&result)),
            Ended::Receipt(receipt) => {
                if matches!(receipt, Receipt::Nacked { cause: Cause::Timeout, .. }) {
                    client.cancel(&session).await;
                }
                return Some(receipt);
            }
            Ended::Left => return None,
            Ended::Forgotten => sessions.forget(address, &session),
        }
    }
    Some(nack(Cause::Broken, "the MCP server forgets its sessions at once"))
}

/// A session that could not be begun is like a connection that could not be made: the tool was not called, so another attempt does no harm.
fn not_called(receipt: Receipt) -> Receipt {
    match receipt {
        Receipt::Nacked { cause: Cause::Broken | Cause::Timeout, reason, retry_after } => {
            Receipt::Nacked { cause: Cause::Connect, reason: Arc::from(format!("no session: {reason}")), retry_after }
        }
        other @ (Receipt::Delivered | Receipt::Accepted | Receipt::Task(_) | Receipt::Progress(_) | Receipt::Acked(_)) => other,
        other @ (Receipt::Nacked { .. } | Receipt::Refused { .. } | Receipt::Rejected(_)) => other,
    }
}

/// Tells the server that nobody waits for a delivery any more.
pub async fn cancel(guard: &Guard, sessions: &Sessions, d: &Delivery, address: &str) {
    if let Some(session) = sessions.get(address) {
        Client { guard, delivery: d, address }.cancel(&session).await;
    }
}

impl Client<'_> {
    fn request(&self, session: Option<&Session>, body: Vec<u8>, within: Duration, max_body: usize) -> Call {
        let mut headers = http::headers(self.delivery);
        headers.push(("accept".into(), "application/json, text/event-stream".into()));
        if let Some(session) = session {
            headers.push(("mcp-protocol-version".into(), session.version.clone()));
            headers.extend(session.id.clone().map(|id| ("mcp-session-id".to_string(), id)));
        }
        Call { method: reqwest::Method::POST, url: self.address.into(), headers, body, within, max_body }
    }

    /// A notification or an answer of ours; nothing depends on what comes back.
    async fn tell(&self, session: &Session, body: Vec<u8>) {
        self.guard.call(self.request(Some(session), body, SHORT, 64 * 1024)).await.ok();
    }

    async fn cancel(&self, session: &Session) {
        self.tell(session, message::cancelled(&message::id_of(self.delivery))).await;
    }

    /// Begins a session.
    async fn begin(&self) -> Result<Session, Receipt> {
        const ID: &str = "initialize";
        let call = self.request(None, message::initialize(ID), LONGEST, MAX_ANSWER);
        let opened = self.opened(call).await?;
        let id = Some(opened.header("mcp-session-id")).filter(|t| !t.is_empty() && t.len() <= 1_024).map(str::to_string);
        let result = match self.ended(opened, ID, None, &|_| true).await {
            Ended::Result(result) => result,
            Ended::Receipt(receipt) => return Err(receipt),
            Ended::Left | Ended::Forgotten => return Err(nack(Cause::Broken, "the MCP server begins no session")),
        };
        let session = Session { id, version: message::version_of(&result)? };
        self.tell(&session, message::initialized()).await;
        Ok(session)
    }

    /// Calls the tool in a session; `fresh`: it has just been begun, so that an unknown session is a fault and not forgetfulness.
    async fn call(&self, session: &Session, body: Vec<u8>, fresh: bool, on_the_way: &OnTheWay<'_>) -> Ended {
        let opened = match self.opened(self.request(Some(session), body, LONGEST, MAX_STREAM)).await {
            Ok(opened) => opened,
            Err(receipt) => return Ended::Receipt(receipt),
        };
        // by the protocol 404; many servers say 400
        if !fresh && session.id.is_some() && matches!(opened.status(), 400 | 404) {
            return Ended::Forgotten;
        }
        self.ended(opened, &message::id_of(self.delivery), Some(session), on_the_way).await
    }

    async fn opened(&self, call: Call) -> Result<Opened, Receipt> {
        match tokio::time::timeout(self.delivery.limits.processing, self.guard.open(call)).await {
            Ok(opened) => opened.map_err(http::broken),
            Err(_) => Err(http::broken(CallError::Timeout)),
        }
    }

    /// Reads the answer to the request `id`, whichever form it has.
    async fn ended(&self, opened: Opened, id: &str, session: Option<&Session>, on_the_way: &OnTheWay<'_>) -> Ended {
        let kind = opened.header("content-type").split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if opened.status() == 200 && kind == "text/event-stream" {
            return self.stream(opened, id, session, on_the_way).await;
        }
        let answer = match tokio::time::timeout(self.delivery.limits.processing, opened.whole()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(e)) => return Ended::Receipt(http::broken(e)),
            Err(_) => return Ended::Receipt(http::broken(CallError::Timeout)),
        };
        Ended::Receipt(match document(&answer, id) {
            Ok(Some(Incoming::Answer(Ok(result)))) if answer.status == 200 => return Ended::Result(result),
            // who may not ask, or asks too often, is told so by the status
            Ok(Some(Incoming::Answer(Err(e)))) if !matches!(answer.status, 401 | 403 | 404 | 429 | 503) => message::receipt_of_error(&e),
            Ok(_) if answer.status == 200 && kind != "application/json" => {
                let reason = "the address answers like no MCP server: neither application/json nor text/event-stream";
                Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(reason) }
            }
            Ok(_) => match http::read(Ok(answer)) {
                Receipt::Acked(_) | Receipt::Accepted => nack(Cause::Broken, "the MCP server gave no answer to the request"),
                other @ (Receipt::Delivered | Receipt::Task(_) | Receipt::Progress(_) | Receipt::Nacked { .. }) => other,
                other @ (Receipt::Refused { .. } | Receipt::Rejected(_)) => other,
            },
            Err(receipt) => receipt,
        })
    }

    /// Follows a stream of events up to the answer.
    async fn stream(&self, mut opened: Opened, id: &str, session: Option<&Session>, on_the_way: &OnTheWay<'_>) -> Ended {
        let over = |cause: Cause, reason: &str| Ended::Receipt(nack(cause, reason));
        let encoding = opened.header("content-encoding").to_ascii_lowercase();
        if !matches!(encoding.as_str(), "" | "identity") {
            return Ended::Receipt(body::Unreadable::Encoding(encoding).receipt(200));
        }
        let (mut events, mut asked, mut signs) = (sse::Events::default(), 0u32, 0u32);
        let mut wait = self.delivery.limits.processing;
        loop {
            let data = match tokio::time::timeout(wait, opened.next()).await {
                Ok(Ok(Some(Piece::Data(data)))) => data,
                Ok(Ok(Some(Piece::Trailers(_)))) => continue,
                Ok(Ok(None)) => return over(Cause::Broken, "the stream ended without an answer"),
                Ok(Err(e)) => return Ended::Receipt(http::broken(e)),
                Err(_) => return Ended::Receipt(http::broken(CallError::Timeout)),
            };
            let Ok(whole) = events.push(&data) else { return Ended::Receipt(http::broken(CallError::TooLarge)) };
            for event in whole {
                let Ok(text) = std::str::from_utf8(&event) else { return over(Cause::Broken, "an event that is no UTF-8 text") };
                if text.trim().is_empty() {
                    continue;
                }
                let messages = match message::read(text, id) {
                    Ok(messages) => messages,
                    Err(why) => return over(Cause::Broken, &why),
                };
                for one in messages {
                    match one {
                        Incoming::Answer(Ok(result)) => return Ended::Result(result),
                        Incoming::Answer(Err(e)) => return Ended::Receipt(message::receipt_of_error(&e)),
                        Incoming::Progress(partial) => {
                            signs += 1;
                            wait = self.delivery.limits.processing.max(SIGN);
                            if (signs <= MAX_SIGNS || signs.is_multiple_of(50)) && !on_the_way(Receipt::Progress(partial)) {
                                return Ended::Left;
                            }
                        }
                        Incoming::Asked { id, method } if asked < MAX_ASKED => {
                            asked += 1;
                            if let Some(session) = session {
                                self.tell(session, message::answer(&id, &method)).await;
                            }
                        }
                        Incoming::Asked { .. } | Incoming::Other => {}
                    }
                }
            }
        }
    }
}

/// The answer to `id` in a document, if there is one.
fn document(answer: &Answer, id: &str) -> Result<Option<Incoming>, Receipt> {
    let text = match body::text(answer, MAX_ANSWER) {
        Ok(text) => text,
        Err(why) if answer.status == 200 => return Err(why.receipt(answer.status)),
        Err(_) => return Ok(None),
    };
    let messages = message::read(&text, id).unwrap_or_default();
    Ok(messages.into_iter().find(|m| matches!(m, Incoming::Answer(_))))
}
