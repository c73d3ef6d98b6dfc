//! Messages over HTTP: the same service functions, with `X-Callback`, `Idempotency-Key`, `Accept: text/event-stream`, and `tag.NAME=VALUE` in lists.
//!
//! Not here: what the functions do (`api::deliver`).

use super::routes::Op;
use super::{HttpDoor, ok};
use crate::api::service::Call;
use crate::api::{json, pb};
use crate::error::Error;
use crate::tasks::Stage;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

type Pairs = BTreeMap<String, String>;

impl HttpDoor {
    pub(super) async fn messages(
        &self,
        op: Op,
        call: &Call,
        path: Option<&Pairs>,
        query: &Pairs,
        request: Request,
    ) -> Result<Response, Error> {
        let service = &self.service;
        let id = path.and_then(|p| p.get("message_id")).cloned().unwrap_or_default();
        let streams = wants_events(request.headers());
        match op {
            Op::Messages => ok(&service.list_messages(call, list_request(query)?, false).await?),
            Op::DeadLetters => ok(&service.list_messages(call, list_request(query)?, true).await?),
            Op::Message => {
                let which =
                    pb::GetMessageRequest { message_id: id, caller: query.get("caller").cloned(), tenant: query.get("tenant").cloned() };
                if streams {
                    return Ok(self.events(service.watch_message(call, which).await?));
                }
                ok(&service.get_message(call, which).await?)
            }
            Op::Submit => {
                let callback = one_header(request.headers(), "x-callback", "/callback")?;
                let key = one_header(request.headers(), "idempotency-key", "/idempotency_key")?;
                let bytes = self.body(request).await?;
                let mut message: pb::SubmitRequest = json::read(&bytes)?;
                if let Some(callback) = callback {
                    if message.callback.as_ref().is_some_and(|c| *c != callback) {
                        return Err(Error::invalid_at("/callback", "the address of X-Callback, or nothing", "leave one of them out"));
                    }
                    message.callback = Some(callback);
                }
                if let Some(key) = key {
                    if message.idempotency_key.as_ref().is_some_and(|k| *k != key) {
                        let expected = "the key of Idempotency-Key, or nothing";
                        return Err(Error::invalid_at("/idempotency_key", expected, "leave one of them out"));
                    }
                    message.idempotency_key = Some(key);
                }
                if streams || message.mode.as_deref() == Some("stream") {
                    return Ok(self.events(service.submit_stream(call, message).await?));
                }
                replied(&service.submit(call, message).await?)
            }
            Op::Cancel => {
                let mut message: pb::CancelRequest = self.message_or_default(request).await?;
                same(&mut message.message_id, id)?;
                replied(&service.cancel(call, message).await?)
            }
            Op::Ack => {
                let mut message: pb::AckRequest = self.message_or_default(request).await?;
                same(&mut message.message_id, id)?;
                ok(&service.ack(call, message).await?)
            }
            Op::Nack => {
                let mut message: pb::NackRequest = self.message_or_default(request).await?;
                same(&mut message.message_id, id)?;
                ok(&service.nack(call, message).await?)
            }
            Op::Receipt => {
                let mut message: pb::ReceiptRequest = self.message_or_default(request).await?;
                same(&mut message.message_id, id)?;
                ok(&service.receipt(call, message).await?)
            }
            Op::Replay => {
                let bytes = self.body(request).await?;
                ok(&service.replay(call, json::read(&bytes)?).await?)
            }
            Op::Stats => ok(&service.stats(call).await?),
            Op::Register
            | Op::List
            | Op::Get
            | Op::Deregister
            | Op::Heartbeat
            | Op::Drain
            | Op::Resolve
            | Op::ResolveBatch
            | Op::Policy
            | Op::ChangePolicy
            | Op::Models
            | Op::SwapModels
            | Op::Report
            | Op::Outcomes
            | Op::Forget
            | Op::Watch => Err(Error::internal("no route of messages")),
            Op::Health | Op::Ready | Op::Metrics | Op::OpenApi => Err(Error::internal("no route of messages")),
        }
    }

    fn events(&self, events: BoxStream<'static, pb::MessageEvent>) -> Response {
        let events = events.take_until(self.tasks.stop(Stage::Serve).cancelled_owned()).map(|event| {
            let data = json::write(&event).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
            let (name, id) = match &event.entry {
                Some(entry) => (entry.event.clone(), entry.seq.to_string()),
                None => ("reply".to_string(), "end".to_string()),
            };
            Ok::<_, Infallible>(Event::default().event(name).id(id).data(data))
        });
        Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
    }
}

/// A reply: 200 when the message is over, 202 while it goes on. How it ended stands in its `status`.
fn replied(reply: &pb::Reply) -> Result<Response, Error> {
    let mut response = ok(reply)?;
    if reply.status.as_ref().is_some_and(|s| s.code == 202) {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    accept.split(',').any(|kind| kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("text/event-stream"))
}

fn one_header(headers: &HeaderMap, name: &str, field: &str) -> Result<Option<String>, Error> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => {
            let text = one.to_str().map_err(|_| Error::invalid_at(field, "plain ASCII", format!("correct the header {name}")))?;
            Ok(Some(text.to_string()))
        }
        (Some(_), Some(_)) => Err(Error::invalid_at(field, format!("one header {name}"), "remove the others")),
    }
}

/// The message of the path; a body may repeat it, not contradict it.
fn same(body: &mut String, path: String) -> Result<(), Error> {
    if !body.is_empty() && *body != path {
        return Err(Error::invalid_at("/message_id", "the message of the path, or nothing", "leave it out"));
    }
    *body = path;
    Ok(())
}

fn list_request(query: &Pairs) -> Result<pb::ListMessagesRequest, Error> {
    let get = |name: &str| query.get(name).cloned();
    let limit = query.get("limit").map(|text| text.parse::<u32>()).transpose();
    let tags = query.iter().filter_map(|(name, value)| Some((name.strip_prefix("tag.")?.to_string(), value.clone()))).collect();
    Ok(pb::ListMessagesRequest {
        state: get("state"),
        agent: get("agent"),
        since: get("since"),
        until: get("until"),
        tag_name: None,
        tag_value: None,
        tags,
        dead_tag: get("dead_tag"),
        parent_id: get("parent_id"),
        limit: limit.map_err(|_| Error::invalid_at("/limit", "a whole number from 1 to 1000", "correct it"))?,
        after: get("after"),
    })
}
