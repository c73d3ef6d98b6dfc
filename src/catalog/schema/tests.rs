use super::*;
use proptest::prelude::*;
use serde_json::json;

fn compile(schema: Value) -> CompiledSchema {
    CompiledSchema::new(&schema).unwrap_or_else(|f| panic!("{f:#?}"))
}

fn refused(schema: &Value) -> Fault {
    CompiledSchema::new(schema).expect_err("must be refused").remove(0)
}

fn refund() -> Value {
    json!({"$id": "https://example.com/refund.json", "type": "object", "required": ["order_id", "reason"], "additionalProperties": false, "properties": {
        "order_id": {"type": "string", "pattern": "^SO-[0-9]+$", "description": "订单号"},
        "reason": {"enum": ["damaged", "late", "other"]},
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "to": {"oneOf": [{"type": "object", "required": ["iban"], "properties": {"iban": {"type": "string"}}}, {"const": "original"}]}}})
}

#[test]
fn misfits_are_explained() {
    let schema = compile(refund());
    assert_eq!(schema.validate(&json!({"order_id": "SO-1", "reason": "late", "amount": 1.5, "to": "original"})), Ok(()));
    let faults = schema.validate(&json!({"orderId": "SO-1", "reason": "lat", "amount": 0, "to": {"bic": "x"}})).unwrap_err();
    for (pointer, words) in [
        ("/order_id", "is \"orderId\" meant"),
        ("/orderId", "remove"),
        ("/reason", "is \"late\" meant"),
        ("/amount", "above 0"),
        ("/to", "(1) needs the property \"iban\" at /to/iban; (2) needs exactly \"original\""),
    ] {
        let fault = faults.iter().find(|f| f.pointer == pointer).unwrap_or_else(|| panic!("nothing at {pointer}: {faults:#?}"));
        assert!(fault.to_string().contains(words), "{fault}");
    }
    assert_eq!(schema.validate(&json!([])).unwrap_err()[0], Fault::new("", "an object", "this is a list"));
    assert!(schema.validate(&json!({"order_id": "secret value", "reason": "late"})).unwrap_err()[0].to_string().contains("matches"));
}

#[test]
fn nothing_outside_is_read() {
    for reference in
        ["http://example.com/x.json", "file:///etc/passwd", "other.json", "https://json-schema.org/draft/2020-12/schema", "//a/b", "../x"]
    {
        let fault = refused(&json!({"properties": {"a": {"$ref": reference}}}));
        assert_eq!(fault.pointer, "/properties/a/$ref", "{reference}");
        assert!(fault.hint.contains("$defs"), "{fault}");
    }
    assert_eq!(refused(&json!({"$ref": "#/$defs/missing"})).pointer, "/$ref");
    assert_eq!(refused(&json!({"properties": {"a": {"$id": "http://evil/", "type": "string"}}})).pointer, "/properties/a/$id");
}

#[test]
fn loops_of_references_are_refused_and_recursion_is_not() {
    assert!(refused(&json!({"$ref": "#"})).hint.contains("itself"));
    let ring =
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "properties": {"x": {"$ref": "#/$defs/a"}}});
    assert!(refused(&ring).hint.contains("loop"));
    assert!(CompiledSchema::new(&json!({"$dynamicRef": "#node", "$dynamicAnchor": "node"})).is_err());
    let tree = compile(
        json!({"$dynamicAnchor": "node", "type": "object", "properties": {"children": {"type": "array", "items": {"$dynamicRef": "#node"}}}}),
    );
    assert_eq!(tree.validate(&json!({"children": [{"children": []}]})), Ok(()));
    assert!(tree.validate(&json!({"children": [{"children": [3]}]})).is_err());
    let list = compile(json!({"type": "object", "properties": {"next": {"$ref": "#"}}}));
    let mut deep = json!({});
    for _ in 0..60 {
        deep = json!({ "next": deep });
    }
    assert_eq!(list.validate(&deep), Ok(()), "a plain recursion may be deep");
}

#[test]
fn sizes_are_bounded() {
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"allOf": [deep]});
    }
    assert!(refused(&deep).expected.contains("32 levels"));
    let options: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
    assert!(refused(&json!({"enum": options})).expected.contains("64 KiB"));
    assert!(refused(&json!({"enum": (0..2500).collect::<Vec<_>>()})).expected.contains("nodes"));
    for wrong in [json!(3), json!("x"), json!([]), json!(null)] {
        assert!(refused(&wrong).expected.contains("JSON Schema"));
    }
    assert!(CompiledSchema::new(&json!({"type": "dict"})).is_err() && CompiledSchema::new(&json!({"type": "float"})).is_err());
    assert!(CompiledSchema::new(&json!(true)).is_ok());
}

#[test]
fn alternatives_that_multiply_are_refused() {
    // a chain of references, each twice: 2^40 ways
    let mut defs = serde_json::Map::new();
    for i in 0..40 {
        defs.insert(format!("d{i}"), json!({"anyOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]}));
    }
    defs.insert("d40".into(), json!({"type": "string"}));
    assert!(refused(&json!({"$defs": defs, "$ref": "#/$defs/d0"})).expected.contains("alternatives"));
    // the same through recursion: the payload may not be deep
    let wide = compile(
        json!({"anyOf": [{"type": "string"}, {"items": {"$ref": "#"}, "minItems": 1}, {"items": {"$ref": "#"}, "maxItems": 3}], "not": {"const": 7}}),
    );
    let mut deep = json!(7);
    for _ in 0..60 {
        deep = json!([deep]);
    }
    assert!(wide.validate(&deep).unwrap_err()[0].expected.contains("levels of nesting"));
    assert_eq!(wide.validate(&json!([["a"]])), Ok(()));
}

#[test]
fn long_chains_of_references_do_not_exhaust_the_stack() {
    let chain = |n: usize, link: &dyn Fn(String) -> Value| {
        let mut defs = serde_json::Map::new();
        for i in 0..n {
            defs.insert(format!("d{i}"), link(format!("#/$defs/d{}", i + 1)));
        }
        defs.insert(format!("d{n}"), json!({"type": "string"}));
        json!({"$defs": defs, "$ref": "#/$defs/d0"})
    };
    // many threads have 2 MiB; the half of it must do
    let run = move || {
        for schema in [chain(1_500, &|next| json!({ "$ref": next })), chain(500, &|next| json!({"properties": {"a": {"$ref": next}}}))] {
            match CompiledSchema::new(&schema) {
                Ok(compiled) => assert!(compiled.validate(&json!({"a": {"a": 7}})).map_or(true, |()| true)),
                Err(faults) => assert!(faults[0].expected.contains("chain"), "{faults:?}"),
            }
        }
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
}

#[test]
fn patterns_are_linear() {
    let schema = compile(json!({"type": "string", "pattern": "^(a+)+$"}));
    let hostile = format!("{}!", "a".repeat(100_000));
    assert!(schema.validate(&json!(hostile)).is_err());
    assert_eq!(schema.validate(&json!("aaa")), Ok(()));
    assert!(schema.validate(&json!("a".repeat(300_000))).unwrap_err()[0].expected.contains("patterns"));
    assert!(CompiledSchema::new(&json!({"pattern": "(?=a)b"})).is_err(), "look-around needs a backtracking engine");
    assert!(CompiledSchema::new(&json!({"pattern": "((a{1,100}){1,100}){1,100}"})).is_err(), "a pattern that compiles into too much");
    assert!(refused(&json!({"pattern": "a".repeat(513)})).expected.contains("512"));
}

#[test]
fn payloads_are_bounded() {
    let schema = compile(json!({"type": "array", "uniqueItems": true}));
    let many: Vec<Value> = (0..100_000).map(|i| json!({ "k": i })).collect();
    assert_eq!(schema.validate(&json!(many)), Ok(()));
    assert!(schema.validate(&json!("x".repeat(MAX_PAYLOAD + 1))).unwrap_err()[0].expected.contains("2 MiB"));
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    assert!(schema.validate(&deep).is_err());
}

#[test]
fn a_slot_compiles_once_and_a_bad_schema_says_nothing() {
    let slot = SchemaSlot::new(Arc::new(refund()));
    assert!(std::ptr::eq(slot.compiled().unwrap(), slot.compiled().unwrap()));
    assert!(slot.validate(&json!({})).is_err());
    let bad = SchemaSlot::new(Arc::new(json!({"type": "dict"})));
    assert!(bad.compiled().is_err());
    assert_eq!(bad.validate(&json!({})), Ok(()));
}

#[test]
fn words_are_evidence() {
    let words = schema_words(&refund());
    assert!(words.starts_with("order id reason amount to"), "{words}");
    for word in ["订单号", "damaged", "original", "iban"] {
        assert!(words.contains(word), "{words}");
    }
    assert!(!words.contains("object") && !words.contains("SO-"), "{words}");
    assert!(
        schema_words(&json!({"type": "dict", "properties": {"cityName": {"type": "float", "description": "a\u{202e}b"}}}))
            .contains("city name")
    );
    let long: serde_json::Map<String, Value> = (0..5000).map(|i| (format!("field{i}"), json!({"description": "y".repeat(500)}))).collect();
    assert!(schema_words(&json!({ "properties": long })).chars().count() <= words::MAX_WORDS);
    assert_eq!(schema_words(&json!("schema://x")), "");
}

#[test]
fn references_come_from_the_folder_only() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("schemas");
    std::fs::create_dir_all(root.join("orders")).unwrap();
    #[allow(clippy::disallowed_methods)]
    let put = |path: std::path::PathBuf, text: &str| std::fs::write(path, text).unwrap();
    put(root.join("orders/refund.json"), "{\"type\":\"object\"}");
    put(root.join("orders/again.json"), "\"schema://orders/refund.json\"");
    put(root.join("broken.json"), "{");
    put(root.join("large.json"), &format!("[\"{}\"]", "x".repeat(MAX_SCHEMA)));
    put(folder.path().join("secret.json"), "{\"type\":\"string\"}");
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path().join("secret.json"), root.join("link.json")).unwrap();
    let schemas = Schemas::new(Some(root.clone()), None);
    let resolve = |reference: &str| schemas.resolve(&Arc::new(json!(reference)));
    let got = resolve("schema://orders/refund.json").unwrap();
    assert_eq!(*got, json!({"type": "object"}));
    put(root.join("orders/refund.json"), "{\"type\":\"array\"}");
    assert!(Arc::ptr_eq(&got, &resolve("schema://orders/refund.json").unwrap()), "read once");
    schemas.forget();
    assert_eq!(*resolve("schema://orders/refund.json").unwrap(), json!({"type": "array"}));
    for bad in [
        "schema://../secret.json",
        "schema://orders/../../secret.json",
        "schema:///etc/passwd",
        "schema://link.json",
        "schema://orders",
        "schema://missing.json",
        "schema://",
        "schema://a\u{0}b",
        "schema://broken.json",
        "schema://large.json",
        "schema://orders/again.json",
        "https://example.com/a.json",
        "http://127.0.0.1/a.json",
    ] {
        assert!(resolve(bad).is_err(), "{bad}");
    }
    let inline = Arc::new(json!({"type": "string"}));
    assert!(Arc::ptr_eq(&Schemas::inline().resolve(&inline).unwrap(), &inline));
    assert!(Schemas::inline().resolve(&Arc::new(json!("schema://a.json"))).unwrap_err().hint.contains("configured"));
}

struct Web;

impl Fetch for Web {
    fn fetch(&self, url: &str, _: usize) -> Result<Vec<u8>, String> {
        if url == "https://example.com/a.json" { Ok(b"{\"type\":\"object\"}".to_vec()) } else { Err("no".into()) }
    }
}

#[test]
fn the_web_only_when_it_is_allowed() {
    let schemas = Schemas::new(None, Some(Arc::new(Web)));
    assert!(schemas.resolve(&Arc::new(json!("HTTPS://Example.com/a.json"))).is_ok());
    assert!(schemas.resolve(&Arc::new(json!("https://user@example.com/a.json"))).is_err());
    assert!(schemas.resolve(&Arc::new(json!("https://example.com/b.json"))).is_err());
}

/// Schemas made of known keywords with likely and unlikely values.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["string", "object", "array", "dict", "integer"]).prop_map(|t| json!({ "type": t })),
        prop::sample::select(vec!["#", "#/properties/a", "#/$defs/a", "#a", "http://x/", "#/%zz"]).prop_map(|r| json!({ "$ref": r })),
        "[a-z(+*)\\[\\\\]{0,8}".prop_map(|p| json!({ "pattern": p })),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        Just(json!({"minLength": -1})),
        Just(json!({"$anchor": "a"})),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let key = prop::sample::select(vec![
            "anyOf",
            "allOf",
            "oneOf",
            "not",
            "items",
            "properties",
            "$defs",
            "additionalProperties",
            "if",
            "then",
            "prefixItems",
            "patternProperties",
            "contains",
            "dependentSchemas",
            "unevaluatedProperties",
            "enum",
            "required",
        ]);
        let value = prop_oneof![
            inner.clone(),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            inner.clone().prop_map(|v| json!({ "a": v })),
        ];
        prop::collection::vec((key, value), 1..4).prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_string(), v)).collect()))
    })
}

fn any_payload() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c]", inner), 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_schema_compiles_or_is_refused(schema in any_schema(), payload in any_payload()) {
        prop_assert!(schema_words(&schema).len() <= 4 * words::MAX_WORDS);
        match CompiledSchema::new(&schema) {
            Ok(compiled) => prop_assert!(compiled.validate(&payload).map_or_else(|f| !f.is_empty() && f.len() <= MAX_FAULTS, |()| true)),
            Err(faults) => prop_assert!(!faults.is_empty()),
        }
    }
}
