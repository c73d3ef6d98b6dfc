//! Validation errors in words: where in the payload, what was expected, how to mend it. Values of the payload are not repeated.

use crate::types::manifest_check::nearest;
use crate::types::{Fault, text};
use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value;

/// Alternatives that are explained.
const ALTERNATIVES: usize = 5;

/// One error as a fault.
pub fn fault(e: &ValidationError<'_>) -> Fault {
    let at = e.instance_path().as_str();
    let under = |name: &str| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
    #[allow(clippy::wildcard_enum_match_arm)]
    match e.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            Fault::new(under(name), format!("the property {}", text::quoted(name)), near_miss(name, e.instance()))
        }
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let name = unexpected.first().map(String::as_str).unwrap_or_default();
            let names = unexpected.iter().take(5).map(|n| text::quoted(n)).collect::<Vec<_>>().join(", ");
            Fault::new(under(name), "only the properties that the schema names", format!("remove {names}"))
        }
        Kind::Type { kind } => Fault::new(at, types(kind), format!("this is {}", kind_of(e.instance()))),
        Kind::Enum { options } => Fault::new(at, format!("one of {}", values(options)), near_option(options, e.instance())),
        Kind::Constant { expected_value } => Fault::new(at, format!("exactly {}", value(expected_value)), "change it to that"),
        // what each would need is part of what was expected: it is told wherever the fault is told
        Kind::OneOfNotValid { context } => {
            Fault::new(at, format!("exactly one of several alternatives: {}", alternatives(context)), "choose one and fill it")
        }
        Kind::AnyOf { context } => {
            Fault::new(at, format!("at least one of several alternatives: {}", alternatives(context)), "choose one and fill it")
        }
        Kind::OneOfMultipleValid { .. } => {
            Fault::new(at, "exactly one of several alternatives, and it fits more than one of them", "leave out what belongs to the others")
        }
        Kind::MinLength { limit } => Fault::new(at, format!("text of at least {limit} characters"), "lengthen it"),
        Kind::MaxLength { limit } => Fault::new(at, format!("text of at most {limit} characters"), "shorten it"),
        Kind::Minimum { limit } => Fault::new(at, format!("a number of at least {limit}"), "raise it"),
        Kind::Maximum { limit } => Fault::new(at, format!("a number of at most {limit}"), "lower it"),
        Kind::ExclusiveMinimum { limit } => Fault::new(at, format!("a number above {limit}"), "raise it"),
        Kind::ExclusiveMaximum { limit } => Fault::new(at, format!("a number below {limit}"), "lower it"),
        Kind::MultipleOf { multiple_of } => Fault::new(at, format!("a multiple of {multiple_of}"), "round it"),
        Kind::MinItems { limit } => Fault::new(at, format!("a list of at least {limit}"), "add items"),
        Kind::MaxItems { limit } => Fault::new(at, format!("a list of at most {limit}"), "remove items"),
        Kind::UniqueItems => Fault::new(at, "a list in which nothing stands twice", "remove the repeats"),
        Kind::Pattern { pattern } => Fault::new(at, format!("text that matches {}", text::quoted(pattern)), "change it to that form"),
        Kind::FalseSchema => Fault::new(at, "nothing here", "remove it"),
        _ => Fault::new(at, "a value that fits the schema", short(&e.masked().to_string())),
    }
}

/// Words of a library, cleaned and cut.
pub fn short(words: &str) -> String {
    text::cut(&text::clean(text::cut(words, 800)), 200).to_string()
}

fn near_miss(name: &str, instance: &Value) -> String {
    let given: Vec<&str> = instance.as_object().map(|o| o.keys().map(String::as_str).take(100).collect()).unwrap_or_default();
    match nearest(name, &given) {
        Some(close) => format!("add it; is {} meant?", text::quoted(close)),
        None => "add it".into(),
    }
}

fn near_option(options: &Value, instance: &Value) -> String {
    let known: Vec<&str> = options.as_array().map(|o| o.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    match instance.as_str().and_then(|given| nearest(given, &known)) {
        Some(close) => format!("is {} meant?", text::quoted(close)),
        None => "choose one of them".into(),
    }
}

/// What each alternative would have needed.
fn alternatives(context: &[Vec<ValidationError<'static>>]) -> String {
    let mut words: Vec<String> = context
        .iter()
        .take(ALTERNATIVES)
        .enumerate()
        .map(|(i, errors)| match errors.first() {
            None => format!("({}) fits", i + 1),
            Some(first) => {
                let needs = fault(first);
                let place = if needs.pointer.is_empty() { String::new() } else { format!(" at {}", needs.pointer) };
                format!("({}) needs {}{place}", i + 1, needs.expected)
            }
        })
        .collect();
    if context.len() > ALTERNATIVES {
        words.push(format!("{} more", context.len() - ALTERNATIVES));
    }
    text::cut(&words.join("; "), 600).to_string()
}

fn types(kind: &TypeKind) -> String {
    let name = |t: String| match t.as_str() {
        "string" => "text".to_string(),
        "number" => "a number".into(),
        "integer" => "a whole number".into(),
        "boolean" => "true or false".into(),
        "array" => "a list".into(),
        "object" => "an object".into(),
        other => other.to_string(),
    };
    match kind {
        TypeKind::Single(one) => name(one.to_string()),
        TypeKind::Multiple(several) => several.iter().map(|t| name(t.to_string())).collect::<Vec<_>>().join(" or "),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn values(options: &Value) -> String {
    let all = options.as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = all.iter().take(10).map(value).collect::<Vec<_>>().join(", ");
    if all.len() > 10 { format!("{shown} and {} more", all.len() - 10) } else { shown }
}

/// A value of the schema, short.
fn value(value: &Value) -> String {
    match value {
        Value::String(t) => text::quoted(t),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) => "a certain list".into(),
        Value::Object(_) => "a certain object".into(),
    }
}
