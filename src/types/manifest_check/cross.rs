//! Rules between the keys of a manifest, checked on the walked value.
//!
//! In: the canonical value, possibly with holes where something was faulty. Out: the same with what follows from other keys filled in
//! (canonical addresses, `burst`), faults and warnings in the walk. Not here: single values (`walk`).

use super::walk::Walk;
use crate::types::address::Use;
use crate::types::manifest::Protocol;
use crate::types::{span, text};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Checks the whole manifest.
pub fn manifest(w: &mut Walk<'_>, manifest: &mut Map<String, Value>) {
    w.inside("endpoints", |w| each(w, manifest.get_mut("endpoints"), endpoint));
    if let Some(Value::Object(retry)) = manifest.get("retry") {
        let ms = |key: &str| retry.get(key).and_then(Value::as_str).and_then(|t| span::parse(t).ok());
        if let (Some(base), Some(max)) = (ms("base"), ms("max"))
            && base > max
        {
            w.inside("retry", |w| {
                w.inside("max", |w| w.fault(format!("at least base ({})", span::format(base)), "raise max or lower base"))
            });
        }
    }
    if let Some(Value::Array(list)) = manifest.get_mut("visible_to") {
        dedup(list);
    }
    let protocols = protocols(manifest);
    w.inside("capabilities", |w| {
        names(w, manifest.get("capabilities"));
        each(w, manifest.get_mut("capabilities"), |w, c| {
            capability(w, c);
            ways(w, c, &protocols);
        });
    });
}

/// The protocols of the endpoints that could be read.
fn protocols(manifest: &Map<String, Value>) -> Vec<String> {
    let endpoints = manifest.get("endpoints").and_then(Value::as_array);
    endpoints.into_iter().flatten().filter_map(|e| e.get("protocol")?.as_str().map(str::to_string)).collect()
}

/// What a capability says about a protocol needs an endpoint that speaks it: else it could not be delivered, or would be delivered otherwise.
fn ways(w: &mut Walk<'_>, capability: &Map<String, Value>, protocols: &[String]) {
    let speaks = |name: &str| protocols.iter().any(|p| p == name);
    if protocols.is_empty() {
        return; // what is wrong there was said
    }
    if capability.contains_key("rest") && !speaks("http") {
        w.inside("rest", |w| {
            w.fault("an endpoint of protocol http", "a mapped service is called over http: add the endpoint, or remove rest")
        });
    }
    if capability.contains_key("tool") && !speaks("mcp") {
        w.inside("tool", |w| w.fault("an endpoint of protocol mcp", "tools are called at MCP servers: add the endpoint, or remove tool"));
    }
}

fn each(w: &mut Walk<'_>, list: Option<&mut Value>, mut check: impl FnMut(&mut Walk<'_>, &mut Map<String, Value>)) {
    let Some(Value::Array(items)) = list else { return };
    for (i, item) in items.iter_mut().enumerate() {
        if let Value::Object(item) = item {
            w.inside(i, |w| check(w, item));
        }
    }
}

fn endpoint(w: &mut Walk<'_>, endpoint: &mut Map<String, Value>) {
    let protocol = match endpoint.get("protocol").and_then(Value::as_str) {
        Some("http") => Protocol::Http,
        Some("grpc") => Protocol::Grpc,
        Some("mcp") => Protocol::Mcp,
        Some("pull") => Protocol::Pull,
        _ => return,
    };
    let address = endpoint.get("address").and_then(Value::as_str).map(str::to_string);
    w.inside("address", |w| match (Use::of(protocol), address) {
        (None, Some(_)) => w.fault("no address", "an agent with protocol pull fetches its work: remove the address"),
        (None, None) => {}
        (Some(_), None) => w.fault("a URL", "add \"address\": where it is called, such as http://10.0.0.5:9000/invoke"),
        (Some(usage), Some(address)) => {
            if let Some(url) = w.address(&address, usage) {
                endpoint.insert("address".into(), json!(url));
            }
        }
    });
}

/// Every capability has a name of its own, aliases included, however they are spelt.
fn names(w: &mut Walk<'_>, capabilities: Option<&Value>) {
    let Some(Value::Array(items)) = capabilities else { return };
    let intent = |item: &Value| item.get("intent").and_then(Value::as_str).map(str::to_string);
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        let Some(name) = intent(item) else { continue };
        let folded = text::fold_name(&name);
        match seen.get(&folded) {
            Some(first) => {
                let hint = format!("capability {first} has the same name (case and separators do not count): rename or merge one of them");
                w.inside(i, |w| w.inside("intent", |w| w.fault("a name that no other capability of this agent has", hint)));
            }
            None => drop(seen.insert(folded, i)),
        }
    }
    for (i, item) in items.iter().enumerate() {
        let own = intent(item).map(|n| text::fold_name(&n));
        if let Some(Value::Array(aliases)) = item.get("aliases") {
            for (j, alias) in aliases.iter().enumerate() {
                let Some(folded) = alias.as_str().map(text::fold_name) else { continue };
                if own.as_deref() != Some(folded.as_str()) && seen.contains_key(&folded) {
                    let hint = "another capability of this agent has that name: a call by name goes to that one";
                    w.inside(i, |w| w.inside("aliases", |w| w.inside(j, |w| w.warn("an alias that is not a name", hint))));
                }
            }
        }
        if let Some(undo) = item.get("compensate").and_then(Value::as_str)
            && !seen.contains_key(&text::fold_name(undo))
        {
            let hint = "no capability of this agent has that name; it must be found elsewhere when it is needed";
            w.inside(i, |w| w.inside("compensate", |w| w.warn("a capability of the same agent", hint)));
        }
    }
}

/// Headers that are ours or the connection's.
const OWN_HEADERS: &[&str] =
    &["host", "content-length", "content-type", "transfer-encoding", "connection", "te", "upgrade", "traceparent", "idempotency-key"];

fn rest(w: &mut Walk<'_>, rest: &Map<String, Value>) {
    let text = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_string);
    let path = |w: &mut Walk<'_>, path: Option<String>| {
        let sound =
            |p: &str| p.starts_with('/') && p.is_ascii() && !p.contains(['#', '?', '\\', ' ', '%']) && !p.split('/').any(|s| s == "..");
        if path.is_some_and(|p| !sound(&p)) {
            w.inside("path", |w| w.fault("a path such as /orders/{order_id}", "begin with / and leave out queries, blanks, % and .."));
        }
    };
    let places = |w: &mut Walk<'_>, map: &Map<String, Value>, keys: &[&str]| {
        for key in keys {
            if text(map, key).is_some_and(|p| !p.starts_with('/')) {
                w.inside(key, |w| w.fault("a JSON pointer such as /order/id", "begin with /"));
            }
        }
    };
    path(w, text(rest, "path"));
    for list in ["fields", "query"] {
        for (i, field) in rest.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
            if let Value::Object(field) = field {
                w.inside(list, |w| w.inside(i, |w| places(w, field, &["from"])));
            }
        }
    }
    if let Some(Value::Object(answer)) = rest.get("answer") {
        w.inside("answer", |w| places(w, answer, &["field", "message", "data"]));
    }
    if let Some(Value::Object(poll)) = rest.get("poll") {
        w.inside("poll", |w| {
            path(w, text(poll, "path"));
            places(w, poll, &["state"]);
        });
    }
    if let Some(Value::Object(auth)) = rest.get("auth") {
        let header = text(auth, "header").unwrap_or_default().to_ascii_lowercase();
        let token = header.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !token || OWN_HEADERS.contains(&header.as_str()) {
            w.inside("auth", |w| {
                w.inside("header", |w| w.fault("the name of a header for credentials", "such as authorization or x-api-key"))
            });
        }
    }
}

fn capability(w: &mut Walk<'_>, capability: &mut Map<String, Value>) {
    if let Some(Value::Object(mapping)) = capability.get("rest") {
        w.inside("rest", |w| rest(w, mapping));
        if mapping.contains_key("poll") && !capability.contains_key("state_machine") {
            w.inside("state_machine", |w| {
                w.fault("the states of the task that is polled", "add state_machine: {processing: [...], failed: [...]}")
            });
        }
    }
    if let Some(Value::Object(limit)) = capability.get_mut("rate_limit")
        && !limit.contains_key("burst")
        && let Some(rate) = limit.get("per_second").and_then(Value::as_f64)
    {
        limit.insert("burst".into(), json!((rate.ceil() as u64).max(1)));
    }
    let own = capability.get("intent").and_then(Value::as_str).map(str::to_string);
    if let Some(Value::Array(aliases)) = capability.get_mut("aliases") {
        dedup(aliases);
        aliases.retain(|a| a.as_str() != own.as_deref());
    }
    for key in ["regions", "scopes"] {
        if let Some(Value::Array(list)) = capability.get_mut(key) {
            dedup(list);
        }
    }
    if let Some(windows) = capability.get_mut("hours").and_then(|h| h.get_mut("windows")).and_then(Value::as_array_mut) {
        for window in windows {
            if let Some(Value::Array(days)) = window.get_mut("days") {
                let order = |d: &Value| crate::types::manifest::DAYS.iter().position(|name| d.as_str() == Some(name));
                days.sort_by_key(order);
                dedup(days);
            }
        }
    }
}

fn dedup(list: &mut Vec<Value>) {
    let mut kept: Vec<Value> = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    *list = kept;
}
