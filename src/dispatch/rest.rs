//! Existing REST services as agents: a call made of a payload by the manifest's mapping, and a receipt read out of the answer.
//!
//! In: the mapping, the payload, the endpoint's address, the secrets that the operator named. Out: a [`Call`] or why the payload does not do; for an
//! answer a receipt, or the task to ask about. Invariants: a secret goes only to addresses below those it was named for; values in a path are
//! percent-encoded, so that a payload can't choose another path. Pure. Not here: the call itself (`guard`), the pauses of polling (`service`).

use crate::dispatch::body;
use crate::dispatch::echo;
use crate::dispatch::engine::Receipt;
use crate::dispatch::guard::{Answer, Call, CallError};
use crate::dispatch::http;
use crate::dispatch::response::{self, Reading, Said};
use crate::error::Code;
use crate::types::envelope::{MAX_PAYLOAD, Payload};
use crate::types::manifest::{Rest, RestField, StateMachine};
use crate::types::message::{Cause, Reply};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// A secret of the operator's, and where it may be sent.
#[derive(Clone)]
pub struct HeaderSecret {
    /// Name by which manifests ask for it.
    pub name: String,
    /// Beginnings of addresses that it may be sent to.
    pub below: Vec<String>,
    /// The secret.
    pub value: String,
}

impl std::fmt::Debug for HeaderSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeaderSecret({})", self.name)
    }
}

/// Whether `url` lies below `beginning`, which ends at a path boundary: a longer host name is another host.
pub fn is_below(url: &str, beginning: &str) -> bool {
    url.strip_prefix(beginning).is_some_and(|rest| beginning.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, b| {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(b)),
            _ => out.push_str(&format!("%{b:02X}")),
        }
        out
    })
}

/// Fills `{name}`s from the fields of `from`.
fn filled(template: &str, from: &Value) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}') else { return Err(format!("{template} has no closing brace")) };
        let value = from.get(name).or_else(|| from.pointer(&format!("/{}", name.replace('.', "/")))).and_then(as_text);
        let value = value.filter(|v| !v.is_empty()).ok_or_else(|| format!("/{name}: a text or a number is needed for the path"))?;
        out.push_str(before);
        out.push_str(&encoded(&value));
        rest = behind;
    }
    out.push_str(rest);
    // "." and ".." are steps in a path however they are written
    if out.split(['/', '\\']).any(|part| [".", ".."].contains(&&*part.to_ascii_lowercase().replace("%2e", "."))) {
        return Err(format!("{template}: no part of a path may be \".\" or \"..\""));
    }
    Ok(out)
}

fn pick(fields: &[RestField], payload: &Value) -> Map<String, Value> {
    fields.iter().filter_map(|f| Some((f.to.clone(), payload.pointer(&f.from)?.clone()))).collect()
}

fn address(base: &str, path: &str) -> String {
    format!("{}{path}", base.trim_end_matches('/'))
}

fn method(name: &str) -> reqwest::Method {
    reqwest::Method::from_bytes(name.to_ascii_uppercase().as_bytes()).unwrap_or(reqwest::Method::POST)
}

/// The header with the secret, when the mapping asks for one.
fn auth(rest: &Rest, url: &str, secrets: &[HeaderSecret]) -> Result<Option<(String, String)>, String> {
    let Some(auth) = &rest.auth else { return Ok(None) };
    // as it will be called: with the steps in its path taken
    let url = reqwest::Url::parse(url).map_err(|e| format!("{url} is no address: {e}"))?;
    let url = url.as_str();
    let secret = secrets.iter().find(|s| s.name == auth.secret && s.below.iter().any(|b| is_below(url, b)));
    match secret {
        Some(secret) => Ok(Some((auth.header.to_ascii_lowercase(), secret.value.clone()))),
        None => Err(format!("no secret is called {:?} for this address: an operator names it under outbound.secrets", auth.secret)),
    }
}

/// The call for a payload. The error is a receipt: without it nothing can be sent.
pub fn call(
    rest: &Rest,
    base: &str,
    payload: Option<&Payload>,
    headers: Vec<(String, String)>,
    secrets: &[HeaderSecret],
    within: Duration,
) -> Result<Call, Receipt> {
    let value = payload.map_or(Value::Null, Payload::value);
    let refused = |reason: String| Receipt::Refused { code: Code::PayloadInvalid, reason: Arc::from(reason) };
    let mut url = address(base, &filled(&rest.path, &value).map_err(refused)?);
    let secret = auth(rest, &url, secrets).map_err(|reason| Receipt::Nacked {
        cause: Cause::Blocked,
        reason: Arc::from(reason),
        retry_after: None,
    })?;
    let query: Vec<String> =
        pick(&rest.query, &value).iter().filter_map(|(name, v)| Some(format!("{}={}", encoded(name), encoded(&as_text(v)?)))).collect();
    if !query.is_empty() {
        url = format!("{url}?{}", query.join("&"));
    }
    let body = match (rest.method.as_str(), rest.fields.is_empty()) {
        ("get" | "delete", true) => Vec::new(),
        (_, true) => payload.map(|p| p.as_str().as_bytes().to_vec()).unwrap_or_default(),
        (_, false) => Value::Object(pick(&rest.fields, &value)).to_string().into_bytes(),
    };
    let headers = headers.into_iter().chain(secret).collect();
    Ok(Call { method: method(&rest.method), url, headers, body, within, max_body: MAX_PAYLOAD })
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// It is over.
    Receipt(Receipt),
    /// A task was begun; this is where it is asked about.
    Task(String),
}

fn reading(rest: &Rest) -> Reading {
    let a = rest.answer.clone().unwrap_or_default();
    Reading { field: a.field, good: a.good, retryable: a.retryable, message: a.message, data: a.data }
}

fn result_of(rest: &Rest, body: &Value, text: &str) -> Reply {
    let place = rest.answer.as_ref().and_then(|a| a.data.as_deref());
    match place {
        Some(place) => {
            let found = body.pointer(place).cloned().unwrap_or(Value::Null);
            Reply { data: Payload::of(&found).ok(), ..Reply::default() }
        }
        None => response::read(text),
    }
}

/// By its status, when it is no success.
fn by_status(answer: Answer) -> Receipt {
    match http::read(Ok(Answer { status: answer.status, ..answer.clone() })) {
        // a conflict of the business is no "not mine"
        Receipt::Rejected(reason) => Receipt::Refused { code: Code::AgentRejected, reason },
        // without receipts of its own it can accept nothing
        Receipt::Accepted => match body::text(&answer, MAX_PAYLOAD) {
            Ok(text) => Receipt::Acked(response::read(&text)),
            Err(why) => why.receipt(answer.status),
        },
        other @ (Receipt::Delivered
        | Receipt::Task(_)
        | Receipt::Progress(_)
        | Receipt::Acked(_)
        | Receipt::Nacked { .. }
        | Receipt::Refused { .. }) => other,
    }
}

/// Reads the answer to the call.
pub fn read(rest: &Rest, base: &str, answer: Result<Answer, CallError>) -> Meaning {
    let answer = match answer {
        Ok(answer) if (200..300).contains(&answer.status) => answer,
        Ok(answer) => return Meaning::Receipt(by_status(answer)),
        Err(e) => return Meaning::Receipt(http::read(Err(e))),
    };
    let text = match body::text(&answer, MAX_PAYLOAD) {
        Ok(text) => text,
        Err(why) => return Meaning::Receipt(why.receipt(answer.status)),
    };
    let body: Value = response::find_json(&text).and_then(|j| serde_json::from_str(j).ok()).unwrap_or(Value::Null);
    match response::said(&body, &reading(rest)) {
        Said::Bad(reason) => {
            return Meaning::Receipt(Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(echo::says(&reason)) });
        }
        Said::Again(reason) => {
            let reason = Arc::from(echo::says(&reason));
            return Meaning::Receipt(Receipt::Nacked { cause: Cause::Nack, reason, retry_after: None });
        }
        Said::Good => {}
    }
    match &rest.poll {
        None => Meaning::Receipt(Receipt::Acked(result_of(rest, &body, &text))),
        Some(poll) => match filled(&poll.path, &body) {
            Ok(path) => Meaning::Task(address(base, &path)),
            Err(why) => {
                let reason = Arc::from(format!("the answer names no task: {why}"));
                Meaning::Receipt(Receipt::Nacked { cause: Cause::Broken, reason, retry_after: None })
            }
        },
    }
}

/// A look at a task.
pub fn look(rest: &Rest, url: &str, secrets: &[HeaderSecret], within: Duration) -> Result<Call, String> {
    let headers = auth(rest, url, secrets)?.into_iter().collect();
    Ok(Call { method: reqwest::Method::GET, url: url.into(), headers, body: Vec::new(), within, max_body: MAX_PAYLOAD })
}

/// Reads a look at a task; `None` = it is still at work. A look that fails says nothing about the task: it is looked at again while the lease holds.
pub fn read_look(rest: &Rest, states: &StateMachine, answer: Result<Answer, CallError>) -> Option<Receipt> {
    let answer = answer.ok().filter(|a| !matches!(a.status, 429 | 500..=599))?;
    if !(200..300).contains(&answer.status) {
        return Some(by_status(answer));
    }
    let text = match body::text(&answer, MAX_PAYLOAD) {
        Ok(text) => text,
        Err(why) => return Some(why.receipt(answer.status)),
    };
    let body: Value = response::find_json(&text).and_then(|j| serde_json::from_str(j).ok()).unwrap_or(Value::Null);
    let place = rest.poll.as_ref().map_or("", |p| p.state.as_str());
    let Some(state) = body.pointer(place).and_then(as_text) else {
        let reason = Arc::from(format!("the answer about the task has no state at {place}: correct poll.state of the manifest"));
        return Some(Receipt::Refused { code: Code::AgentRejected, reason });
    };
    let has = |list: &[String]| list.iter().any(|s| s.eq_ignore_ascii_case(&state));
    let said = || response::words(&body, rest.answer.as_ref().and_then(|a| a.message.as_deref()));
    let words = || Arc::from(format!("task {}: {}", echo::plain(&state), echo::says(&said())));
    if has(&states.processing) {
        None
    } else if has(&states.retryable) {
        Some(Receipt::Nacked { cause: Cause::Nack, reason: words(), retry_after: None })
    } else if has(&states.failed) {
        Some(Receipt::Refused { code: Code::AgentRejected, reason: words() })
    } else {
        Some(Receipt::Acked(result_of(rest, &body, &text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rest(more: Value) -> Rest {
        let mut all = json!({"method": "post", "path": "/orders/{order_id}/refunds"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn payload(value: Value) -> Payload {
        Payload::of(&value).unwrap()
    }

    fn answer(status: u16, body: Value) -> Result<Answer, CallError> {
        Ok(Answer { status, retry_after: None, content_type: String::new(), encoding: String::new(), body: body.to_string().into_bytes() })
    }

    fn secret() -> HeaderSecret {
        HeaderSecret { name: "orders".into(), below: vec!["http://orders.example".into()], value: "Bearer s".into() }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_call_is_made_of_the_payload() {
        let r = rest(
            json!({"fields": [{"to": "orderId", "from": "/order_id"}, {"to": "why", "from": "/reason/text"}, {"to": "no", "from": "/absent"}],
            "query": [{"to": "lang", "from": "/lang"}]}),
        );
        let p = payload(json!({"order_id": "a/../b?c", "reason": {"text": "退款"}, "lang": "zh cn"}));
        let c = call(&r, "http://orders.example/api/", Some(&p), vec![], &[], SECOND).unwrap();
        assert_eq!(c.url, "http://orders.example/api/orders/a%2F%2E%2E%2Fb%3Fc/refunds?lang=zh%20cn", "a payload chooses no other path");
        assert_eq!(serde_json::from_slice::<Value>(&c.body).unwrap(), json!({"orderId": "a/../b?c", "why": "退款"}));
        let whole = call(&rest(json!({"path": "/x"})), "http://o", Some(&p), vec![], &[], SECOND).unwrap();
        assert_eq!(whole.body, p.as_str().as_bytes());
        for id in ["..", "."] {
            let stepping = call(&r, "http://o", Some(&payload(json!({"order_id": id}))), vec![], &[], SECOND);
            assert!(matches!(stepping, Err(Receipt::Refused { code: Code::PayloadInvalid, .. })), "{id} chooses another path");
        }
        assert!(matches!(
            call(&r, "http://o", Some(&payload(json!({}))), vec![], &[], SECOND),
            Err(Receipt::Refused { code: Code::PayloadInvalid, .. })
        ));
    }

    #[test]
    fn a_secret_goes_only_where_it_was_named_for() {
        let r = rest(json!({"path": "/x", "auth": {"header": "Authorization", "secret": "orders"}}));
        let c = call(&r, "http://orders.example/api", None, vec![], &[secret()], SECOND).unwrap();
        assert_eq!(c.headers, vec![("authorization".to_string(), "Bearer s".to_string())]);
        let below = HeaderSecret { below: vec!["http://orders.example/api".into()], ..secret() };
        assert!(call(&r, "http://orders.example/api/..", None, vec![], &[below], SECOND).is_err(), "not below when its steps are taken");
        for elsewhere in ["http://orders.example.evil.org", "http://evil.org/http://orders.example", "https://orders.example"] {
            assert!(
                matches!(call(&r, elsewhere, None, vec![], &[secret()], SECOND), Err(Receipt::Nacked { cause: Cause::Blocked, .. })),
                "{elsewhere}"
            );
        }
        assert!(!format!("{:?}", secret()).contains("Bearer"));
    }

    #[test]
    fn success_is_read_as_the_mapping_says() {
        let r = rest(json!({"answer": {"field": "/code", "good": ["0"], "retryable": ["17"], "message": "/msg", "data": "/data/refund"}}));
        let receipt = |body: Value| match read(&r, "http://o", answer(200, body)) {
            Meaning::Receipt(receipt) => receipt,
            Meaning::Task(_) => panic!("no task"),
        };
        assert!(
            matches!(receipt(json!({"code": 0, "data": {"refund": {"id": 7}}})), Receipt::Acked(r) if r.data == Some(payload(json!({"id": 7}))))
        );
        assert!(
            matches!(receipt(json!({"code": 17, "msg": "later"})), Receipt::Nacked { reason, .. } if &*reason == "the agent says: later")
        );
        assert!(
            matches!(receipt(json!({"code": 3, "msg": "no such order"})), Receipt::Refused { reason, .. } if &*reason == "the agent says: no such order")
        );
        assert!(matches!(read(&r, "http://o", answer(409, json!({"message": "twice"}))), Meaning::Receipt(Receipt::Refused { .. })));
        assert!(matches!(read(&r, "http://o", answer(503, json!({}))), Meaning::Receipt(Receipt::Nacked { cause: Cause::Busy, .. })));
        let plain = rest(json!({}));
        assert!(matches!(
            read(&plain, "http://o", answer(200, json!({"success": false, "msg": "no"}))),
            Meaning::Receipt(Receipt::Refused { .. })
        ));
        assert!(matches!(read(&plain, "http://o", answer(201, json!({"success": true}))), Meaning::Receipt(Receipt::Acked(_))));
    }

    #[test]
    fn a_task_is_followed_to_its_end() {
        let r = rest(json!({"poll": {"path": "/tasks/{task_id}", "state": "/status", "every": "1s"}, "answer": {"data": "/result"}}));
        assert_eq!(read(&r, "http://o/", answer(202, json!({"task_id": 9}))), Meaning::Task("http://o/tasks/9".into()));
        assert!(matches!(read(&r, "http://o", answer(200, json!({}))), Meaning::Receipt(Receipt::Nacked { cause: Cause::Broken, .. })));
        let list = |words: &[&str]| words.iter().map(|w| w.to_string()).collect();
        let states = StateMachine { processing: list(&["PENDING"]), retryable: list(&["BUSY"]), failed: list(&["REFUSED"]) };
        let at = |body: Value| read_look(&r, &states, answer(200, body));
        assert_eq!(at(json!({"status": "pending"})), None);
        assert!(matches!(at(json!({"state": "OK"})), Some(Receipt::Refused { .. })), "no state is no success");
        assert_eq!(read_look(&r, &states, answer(502, json!({}))), None, "a look that fails says nothing about the task");
        assert_eq!(read_look(&r, &states, Err(CallError::Connect)), None);
        assert!(matches!(at(json!({"status": "BUSY"})), Some(Receipt::Nacked { .. })));
        assert!(matches!(at(json!({"status": "REFUSED", "message": "no"})), Some(Receipt::Refused { .. })));
        assert!(matches!(at(json!({"status": "OK", "result": 5})), Some(Receipt::Acked(r)) if r.data == Some(payload(json!(5)))));
        assert!(matches!(read_look(&r, &states, answer(404, json!({}))), Some(Receipt::Refused { .. })), "the task is gone");
    }
}
