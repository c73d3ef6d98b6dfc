//! The OpenAPI 3.1 document, made from the descriptors of `proto/` and the table of routes: what can be called can't be
//! missing in it. Descriptions are the comments of the `.proto` files. Cost: made once.

use crate::api::http::routes::{ROUTES, Route};
use crate::api::json_fields::JSON_FIELDS;
use crate::api::pb;
use crate::error::Code;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The document.
pub fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
    &DOCUMENT
}

fn build() -> Value {
    let set = prost_types::FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap_or_default();
    let mut schemas = Map::new();
    for file in set.file.iter().filter(|f| f.package() == "agentreach.v1") {
        let comments = comments(file);
        for (i, message) in file.message_type.iter().enumerate() {
            schemas.insert(message.name().to_string(), schema(message, i, &comments));
        }
    }
    for of in ["ResolveRequest", "SubmitRequest"] {
        if let Some(scopes) = schemas.get_mut(of).and_then(|s| s.pointer_mut("/properties/scopes")) {
            let description = scopes.get("description").cloned().unwrap_or_default();
            *scopes = json!({"type": "array", "items": {"type": "string"}, "description": description});
        }
    }
    schemas.remove("ScopeList");
    if let Some(code) = schemas.get_mut("Error").and_then(|s| s.pointer_mut("/properties/code")) {
        let codes: Vec<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        code["enum"] = json!(codes);
    }
    schemas.insert("Refusal".into(), json!({"type": "object", "properties": {"error": reference("Error")}, "required": ["error"]}));
    schemas.extend(admin());
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        paths.entry(route.path).or_default().insert(route.method.to_ascii_lowercase(), operation(route, &schemas));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Agent-Reach",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Say what you want done: Agent-Reach finds who can do it and says how sure it is. The same interface as gRPC agentreach.v1, as JSON.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Needed when tokens are configured."}}
        }
    })
}

/// Messages of operators, which no `.proto` describes: they are documents of the configuration, not of the wire.
fn admin() -> [(String, Value); 4] {
    let text = |description: &str| json!({"type": "string", "description": description});
    let flag = |description: &str| json!({"type": "boolean", "description": description});
    let object = |description: &str, properties: Value| json!({"type": "object", "description": description, "properties": properties});
    let policy_request = object(
        "One of `apply` and `rollback`.",
        json!({
            "apply": {"type": "object", "description": "A change of the policy: point, points, fitted_for, presets, default_preset, live_margin, bonus."},
            "why": text("Why, for those who read the versions later."),
            "fitted_on": {"type": "array", "items": {"type": "string"}, "description": "Fingerprints of the models whose decisions the change was fitted on; refused unless they are those in use."},
            "force": flag("Applies thresholds although they were fitted for other models than those in use; decisions then say `uncalibrated`."),
            "rollback": {"type": ["integer", "null"], "description": "Version to go back to; 0 = the configuration alone, null = the one before."},
        }),
    );
    let policy_state = object(
        "The policy in force and its versions.",
        json!({
            "active": {"type": "integer", "description": "Version in force; 0 = the configuration alone."},
            "policy": {"type": "object", "description": "The whole policy in force."},
            "versions": {"type": "array", "items": {"type": "object"}, "description": "Every version, oldest first."},
        }),
    );
    let models_request = object(
        "One of `prepare`, `switch`, `rollback` and `drop`.",
        json!({
            "prepare": text("Models to put beside those in use, as `reach eval models --models` names them."),
            "aim": text("What thresholds are refitted for."),
            "labels": {"type": "array", "items": {"type": "object"}, "description": "Labels, as docs/replay.md describes them."},
            "switch": flag("Serves with the prepared models from now on."),
            "rollback": flag("Serves with the models before the last switch again."),
            "drop": flag("Lets go of what is beside."),
        }),
    );
    let models_state = object(
        "The models in use, and how far a swap is.",
        json!({
            "models": {"type": "array", "items": {"type": "string"}, "description": "Fingerprints of the models in use."},
            "state": text("`idle`, `preparing`, `ready`, `switched` or `failed`."),
            "report": {"type": "object", "description": "How the prepared models agree with those in use, and the refitted thresholds."},
        }),
    );
    [
        ("PolicyRequest".into(), policy_request),
        ("PolicyState".into(), policy_state),
        ("ModelsRequest".into(), models_request),
        ("ModelsState".into(), models_state),
    ]
}

fn operation(route: &Route, schemas: &Map<String, Value>) -> Value {
    let mut parameters = Vec::new();
    for name in route.path.split(['{', '}']).skip(1).step_by(2) {
        let description = match name {
            "namespace" => "Namespace; a `/` in it is written as %2F.",
            "message_id" => "Reach id, or your own message id.",
            _ => "Id inside the namespace.",
        };
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}, "description": description}));
    }
    for name in route.query.1 {
        if *name == "tag.*" {
            let description = "A label: `tag.order_id=42`. The name stands after the dot.";
            parameters.push(
                json!({"name": "tag.NAME", "in": "query", "required": false, "schema": {"type": "string"}, "description": description}),
            );
            continue;
        }
        let of_field = schemas.get(route.query.0).and_then(|s| s.pointer(&format!("/properties/{name}"))).cloned();
        let mut field = of_field.unwrap_or_else(|| json!({"type": "string"}));
        let description = field.as_object_mut().and_then(|f| f.shift_remove("description")).unwrap_or_default();
        parameters.push(json!({"name": name, "in": "query", "required": false, "schema": field, "description": description}));
    }
    let answer = if route.answer.is_empty() { json!({}) } else { reference(route.answer) };
    let mut operation = json!({
        "operationId": format!("{:?}", route.op),
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {route.media: {"schema": answer}}},
            "default": {"description": "Refused.", "content": {"application/json": {"schema": reference("Refusal")}}}
        }
    });
    if !route.body.is_empty() {
        let mut content = json!({"application/json": {"schema": reference(route.body)}});
        if route.body == "Manifest" {
            content["application/yaml"] = json!({"schema": reference(route.body)});
        }
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    if !route.open {
        operation["security"] = json!([{"token": []}, {}]);
    }
    operation
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

type Comments = BTreeMap<Vec<i32>, String>;

/// Leading comments by the path of what they describe.
fn comments(file: &FileDescriptorProto) -> Comments {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations.filter_map(|l| Some((l.path.clone(), l.leading_comments.as_ref()?.trim().replace('\n', " ")))).collect()
}

fn schema(message: &DescriptorProto, index: usize, comments: &Comments) -> Value {
    let at = |rest: &[i32]| {
        let mut path = vec![4, i32::try_from(index).unwrap_or(-1)];
        path.extend(rest);
        comments.get(&path).cloned().unwrap_or_default()
    };
    let mut properties = Map::new();
    for (i, field) in message.field.iter().enumerate() {
        let mut value = kind(message, field);
        let text = at(&[2, i32::try_from(i).unwrap_or(-1)]);
        let text = text.strip_prefix("JSON text: ").unwrap_or(&text);
        if let Some(map) = value.as_object_mut().filter(|_| !text.is_empty()) {
            map.insert("description".into(), json!(text));
        }
        properties.insert(field.name().to_string(), value);
    }
    json!({"type": "object", "description": at(&[]), "properties": properties})
}

fn kind(message: &DescriptorProto, field: &FieldDescriptorProto) -> Value {
    let path = format!("{}.{}", message.name(), field.name());
    if JSON_FIELDS.contains(&path.as_str()) {
        return if field.name() == "attributes" || field.name() == "detail" { json!({"type": "object"}) } else { json!({}) };
    }
    let entry = field.type_name().rsplit('.').next().unwrap_or_default();
    if message.nested_type.iter().any(|n| n.name() == entry && n.options.as_ref().is_some_and(|o| o.map_entry())) {
        return json!({"type": "object", "additionalProperties": {"type": "string"}});
    }
    let one = match field.r#type() {
        Type::Double | Type::Float => json!({"type": "number"}),
        Type::Bool => json!({"type": "boolean"}),
        Type::Int64 | Type::Int32 | Type::Sint32 | Type::Sint64 | Type::Sfixed32 | Type::Sfixed64 => json!({"type": "integer"}),
        Type::Uint64 | Type::Uint32 | Type::Fixed32 | Type::Fixed64 => json!({"type": "integer", "minimum": 0}),
        Type::Message | Type::Group => reference(field.type_name().rsplit('.').next().unwrap_or_default()),
        Type::String | Type::Bytes | Type::Enum => json!({"type": "string"}),
    };
    if field.label() == Label::Repeated { json!({"type": "array", "items": one}) } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_in_it() {
        for route in ROUTES {
            let operation = &document()["paths"][route.path][route.method.to_ascii_lowercase()];
            assert!(operation.is_object(), "{} {}", route.method, route.path);
            assert_eq!(operation["requestBody"].is_object(), !route.body.is_empty());
        }
    }

    #[test]
    fn every_field_is_in_it_described() {
        let set = prost_types::FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap();
        let mut fields = 0;
        for message in set.file.iter().filter(|f| f.package() == "agentreach.v1").flat_map(|f| &f.message_type) {
            for field in &message.field {
                if message.name() == "ScopeList" {
                    continue;
                }
                let schema = &document()["components"]["schemas"][message.name()]["properties"][field.name()];
                assert!(schema.is_object(), "{}.{}", message.name(), field.name());
                assert!(schema["description"].as_str().is_some_and(|d| d.len() > 3), "{}.{} has no comment", message.name(), field.name());
                fields += 1;
            }
        }
        assert!(fields > 100, "{fields}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                        assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                    }
                    map.values().for_each(|v| walk(v, document));
                }
                Value::Array(items) => items.iter().for_each(|v| walk(v, document)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        walk(document(), document());
    }

    #[test]
    fn what_serde_writes_is_what_it_says() {
        let written = serde_json::to_value(pb::ResolveResponse { agent: Some(pb::AgentRef::default()), ..Default::default() }).unwrap();
        let properties = document()["components"]["schemas"]["ResolveResponse"]["properties"].as_object().unwrap();
        for (name, value) in written.as_object().unwrap() {
            let kind = properties[name]["type"].as_str().unwrap_or("object");
            let fits = match value {
                Value::String(_) => kind == "string",
                Value::Bool(_) => kind == "boolean",
                Value::Number(_) => kind == "number" || kind == "integer",
                Value::Array(_) => kind == "array",
                Value::Object(_) => kind == "object",
                Value::Null => false,
            };
            assert!(fits, "{name}: {value} is no {kind}");
        }
    }
}
