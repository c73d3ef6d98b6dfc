//! JSON-RPC messages of an MCP server: what is sent to it, and what its answers mean as receipts.
//!
//! In: a delivery, or the text of a message. Out: the text of a request, or an [`Incoming`]. Invariants: payloads and results pass digit for digit; what a
//! server says is shown only through `echo`. Pure. Not here: transport, sessions (`mcp`).

use crate::dispatch::echo;
use crate::dispatch::engine::{Delivery, Receipt};
use crate::dispatch::response;
use crate::error::Code;
use crate::types::envelope::Payload;
use crate::types::message::{Cause, Reply};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// The version that is asked for.
pub const VERSION: &str = "2025-06-18";
/// Versions that speak this transport.
const KNOWN: &[&str] = &["2025-03-26", "2025-06-18", "2025-11-25"];

/// The first request of a session.
pub fn initialize(id: &str) -> Vec<u8> {
    let info = json!({"name": "agent-reach", "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": info});
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}).to_string().into_bytes()
}

/// Says that the session has begun.
pub fn initialized() -> Vec<u8> {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string().into_bytes()
}

/// Says that nobody waits for a request any more.
pub fn cancelled(id: &str) -> Vec<u8> {
    let params = json!({"requestId": id, "reason": "nobody waits for it any more"});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string().into_bytes()
}

/// Answers a request of the server's: only `ping` is served.
pub fn answer(id: &RawValue, method: &str) -> Vec<u8> {
    let id: Value = serde_json::from_str(id.get()).unwrap_or(Value::Null);
    let body = if method == "ping" {
        json!({"jsonrpc": "2.0", "id": id, "result": {}})
    } else {
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "this client serves ping only"}})
    };
    body.to_string().into_bytes()
}

/// The identity of the request of a delivery.
pub fn id_of(d: &Delivery) -> String {
    format!("{}:{}", d.id, d.delivery)
}

#[derive(Serialize)]
struct ToolCall<'a> {
    jsonrpc: &'static str,
    id: &'a str,
    method: &'static str,
    params: Params<'a>,
}

#[derive(Serialize)]
struct Params<'a> {
    name: &'a str,
    arguments: Cow<'a, RawValue>,
    #[serde(rename = "_meta")]
    meta: Value,
}

/// The call of a tool with the payload as its arguments; a receipt when the payload can't be that.
pub fn tool_call(d: &Delivery, tool: &str) -> Result<Vec<u8>, Receipt> {
    let refused = || Receipt::Refused {
        code: Code::PayloadInvalid,
        reason: Arc::from("/payload: an object is expected: a tool of an MCP server takes arguments by name"),
    };
    let arguments: Cow<'_, RawValue> = match &d.envelope.payload {
        None => Cow::Owned(RawValue::from_string("{}".into()).map_err(|_| refused())?),
        Some(p) if p.as_str().trim_start().starts_with('{') => Cow::Borrowed(serde_json::from_str(p.as_str()).map_err(|_| refused())?),
        Some(_) => return Err(refused()),
    };
    let id = id_of(d);
    let meta = json!({"progressToken": id, "trace_id": &*d.envelope.trace_id, "idempotency_key": d.envelope.agent_key()});
    let call = ToolCall { jsonrpc: "2.0", id: &id, method: "tools/call", params: Params { name: tool, arguments, meta } };
    serde_json::to_vec(&call).map_err(|_| refused())
}

/// An error of JSON-RPC.
#[derive(Clone, Debug, Deserialize)]
pub struct RpcError {
    /// Its code.
    #[serde(default)]
    pub code: i64,
    /// In words.
    #[serde(default)]
    pub message: String,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

/// One message of the server's.
#[derive(Debug)]
pub enum Incoming {
    /// The answer to our request.
    Answer(Result<Box<RawValue>, RpcError>),
    /// How far it is.
    Progress(Option<Payload>),
    /// It asks us.
    Asked {
        /// Identity of its request.
        id: Box<RawValue>,
        /// What it wants.
        method: String,
    },
    /// Something else: logs, news about tools, answers to others.
    Other,
}

/// Reads a text: one message, or a list of them. `id` is the request whose answer is waited for.
pub fn read(text: &str, id: &str) -> Result<Vec<Incoming>, String> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let list: Vec<Wire<'_>> =
        if text.starts_with('[') { serde_json::from_str(text) } else { serde_json::from_str(text).map(|one| vec![one]) }
            .map_err(|_| "the answer is no JSON-RPC message".to_string())?;
    Ok(list.into_iter().map(|w| incoming(w, id)).collect())
}

fn incoming(w: Wire<'_>, id: &str) -> Incoming {
    let ours = w.id.is_some_and(|raw| serde_json::from_str::<&str>(raw.get()).is_ok_and(|text| text == id));
    // an error about a request that it could not read has no identity
    let nameless = w.id.is_none_or(|raw| raw.get() == "null");
    match (w.method, w.id, w.result, w.error) {
        (None, _, _, Some(error)) if ours || nameless => Incoming::Answer(Err(error)),
        (None, _, Some(result), None) if ours => Incoming::Answer(Ok(result.to_owned())),
        (Some(method), Some(asked), ..) if !nameless => Incoming::Asked { id: asked.to_owned(), method: method.into_owned() },
        (Some(method), ..) if method == "notifications/progress" => Incoming::Progress(w.params.and_then(|p| Payload::new(p.get()).ok())),
        _ => Incoming::Other,
    }
}

/// Reads the answer to [`initialize`]: the version that both speak.
pub fn version_of(result: &RawValue) -> Result<String, Receipt> {
    let version = serde_json::from_str::<Value>(result.get()).ok().and_then(|v| v.get("protocolVersion")?.as_str().map(str::to_string));
    match version {
        Some(v) if KNOWN.contains(&v.as_str()) => Ok(v),
        Some(v) => {
            let reason = format!("the MCP server speaks version {}, this client {}", echo::plain(&v), KNOWN.join(", "));
            Err(Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(reason) })
        }
        None => {
            Err(Receipt::Nacked { cause: Cause::Broken, reason: Arc::from("the MCP server names no protocolVersion"), retry_after: None })
        }
    }
}

/// The receipt that an error is.
pub fn receipt_of_error(e: &RpcError) -> Receipt {
    let said = echo::says(&e.message);
    let lower = e.message.to_lowercase();
    let unknown_tool = lower.contains("tool") && ["unknown", "not found", "no such", "does not exist"].iter().any(|w| lower.contains(w));
    let reason: Arc<str> = Arc::from(format!("MCP error {}: {said}", e.code));
    match e.code {
        // it has no such tool: not its work
        -32602 | -32601 | -32002 if unknown_tool => Receipt::Rejected(reason),
        -32602 => Receipt::Refused { code: Code::PayloadInvalid, reason },
        -32700 | -32600 | -32601 => Receipt::Refused { code: Code::AgentRejected, reason },
        _ => Receipt::Nacked { cause: Cause::Nack, reason, retry_after: None },
    }
}

#[derive(Deserialize)]
struct ToolResult<'a> {
    #[serde(borrow, default)]
    content: Vec<&'a RawValue>,
    #[serde(borrow, default, rename = "structuredContent")]
    structured: Option<&'a RawValue>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

/// The text of a block, when it is a text.
fn text_of(block: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Block<'_>>(block.get()).ok().filter(|b| b.kind == "text").and_then(|b| b.text)
}

/// The receipt that the result of a tool is: what is structured first, then its texts, then the blocks as they are.
pub fn receipt_of_result(result: &RawValue) -> Receipt {
    let broken = |why: &str| Receipt::Nacked { cause: Cause::Broken, reason: Arc::from(why), retry_after: None };
    let Ok(r) = serde_json::from_str::<ToolResult<'_>>(result.get()) else { return broken("the answer is no result of a tool") };
    let texts: Option<Vec<Cow<'_, str>>> = r.content.iter().map(|b| text_of(b)).collect();
    if r.is_error {
        let said = match (&texts, r.structured) {
            (Some(texts), _) if !texts.is_empty() => texts.join(" "),
            (_, Some(raw)) => raw.get().to_string(),
            _ => String::new(),
        };
        return Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(format!("the tool failed; {}", echo::says(&said))) };
    }
    let payload = |text: &str| Payload::new(text).map(|p| Reply { data: Some(p), ..Reply::default() });
    let reply = match (r.structured.filter(|s| s.get() != "null"), texts) {
        (Some(raw), _) => payload(raw.get()),
        (None, Some(texts)) if texts.is_empty() => Ok(Reply::default()),
        (None, Some(texts)) => Ok(response::read(&texts.join("\n"))),
        (None, None) => {
            let blocks: Vec<&str> = r.content.iter().map(|b| b.get()).collect();
            payload(&format!("{{\"content\": [{}]}}", blocks.join(", ")))
        }
    };
    reply.map_or_else(|_| broken("the answer is too large"), Receipt::Acked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).unwrap()
    }

    fn result(value: Value) -> Receipt {
        receipt_of_result(&raw(value))
    }

    fn error(code: i64, message: &str) -> Receipt {
        receipt_of_error(&RpcError { code, message: message.into() })
    }

    #[test]
    fn results_are_receipts() {
        let both = json!({"content": [{"type": "text", "text": "7 EUR"}], "structuredContent": {"price": 7}});
        assert!(matches!(result(both), Receipt::Acked(r) if r.data.as_ref().unwrap().as_str() == "{\"price\":7}" && r.text.is_none()));
        let text = json!({"content": [{"type": "text", "text": "{\"price\":"}, {"type": "text", "text": " 7}"}]});
        assert!(matches!(result(text), Receipt::Acked(r) if r.data.as_ref().unwrap().value() == json!({"price": 7})));
        let words = json!({"content": [{"type": "text", "text": "seven"}]});
        assert!(matches!(result(words), Receipt::Acked(r) if r.text.as_deref() == Some("seven")));
        let picture = json!({"content": [{"type": "text", "text": "see"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]});
        assert!(matches!(result(picture), Receipt::Acked(r) if r.data.as_ref().unwrap().value()["content"][1]["type"] == "image"));
        assert!(matches!(result(json!({"content": []})), Receipt::Acked(r) if r == Reply::default()));
        let failed = json!({"content": [{"type": "text", "text": "token=abc is expired"}], "isError": true});
        assert!(
            matches!(result(failed), Receipt::Refused { code: Code::AgentRejected, reason } if &*reason == "the tool failed; the agent says: token=[hidden] is expired")
        );
        assert!(matches!(result(json!([1])), Receipt::Nacked { cause: Cause::Broken, .. }));
        let digits = RawValue::from_string("{\"structuredContent\": {\"n\": 123456789012345678901234567890}}".into()).unwrap();
        assert!(matches!(receipt_of_result(&digits), Receipt::Acked(r) if r.data.as_ref().unwrap().as_str().contains("901234567890")));
    }

    #[test]
    fn errors_are_receipts() {
        assert!(matches!(error(-32602, "Unknown tool: refund"), Receipt::Rejected(_)));
        assert!(matches!(error(-32602, "order_id is required"), Receipt::Refused { code: Code::PayloadInvalid, .. }));
        for refused in [-32700, -32600, -32601] {
            assert!(matches!(error(refused, "no"), Receipt::Refused { code: Code::AgentRejected, .. }), "{refused}");
        }
        for again in [-32603, -32000, 0] {
            assert!(matches!(error(again, "boom"), Receipt::Nacked { cause: Cause::Nack, .. }), "{again}");
        }
    }

    #[test]
    fn only_the_answer_to_the_request_is_one() {
        let kinds = |text: &str| -> Vec<&str> {
            read(text, "r:1")
                .unwrap()
                .iter()
                .map(|i| match i {
                    Incoming::Answer(Ok(_)) => "result",
                    Incoming::Answer(Err(_)) => "error",
                    Incoming::Progress(_) => "progress",
                    Incoming::Asked { .. } => "asked",
                    Incoming::Other => "other",
                })
                .collect()
        };
        assert_eq!(kinds(r#"{"jsonrpc":"2.0","id":"r:1","result":{}}"#), ["result"]);
        assert_eq!(kinds(r#"{"jsonrpc":"2.0","id":"r:2","result":{}}"#), ["other"]);
        assert_eq!(kinds(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#), ["error"]);
        assert_eq!(kinds(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#), ["asked"]);
        let list = r#"[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}, {"jsonrpc":"2.0","method":"notifications/message"}]"#;
        assert_eq!(kinds(list), ["progress", "other"]);
        assert!(read("<html>", "r:1").is_err());
        assert!(String::from_utf8(answer(&raw(json!(7)), "ping")).unwrap().contains("\"result\":{}"));
        assert!(String::from_utf8(answer(&raw(json!("a")), "sampling/createMessage")).unwrap().contains("-32601"));
    }

    #[test]
    fn versions_that_speak_another_transport_are_refused() {
        assert_eq!(version_of(&raw(json!({"protocolVersion": "2025-03-26"}))).unwrap(), "2025-03-26");
        assert!(matches!(version_of(&raw(json!({"protocolVersion": "2024-11-05"}))), Err(Receipt::Refused { .. })));
        assert!(matches!(version_of(&raw(json!({}))), Err(Receipt::Nacked { cause: Cause::Broken, .. })));
    }
}
