use super::*;
use crate::types::document;
use crate::types::manifest_check::{Rules, check, check_all};
use crate::types::{ContentHash, Grant, Namespace};
use proptest::prelude::*;
use serde_json::{Value, json};

fn registered(namespace: &str, id: &str, generation: u64, capabilities: Value, visible_to: Value) -> Registered {
    let value = json!({"namespace": namespace, "agent_id": id, "endpoints": [{"protocol": "pull"}], "visible_to": visible_to, "capabilities": capabilities});
    let manifest = Arc::new(check(&value, &Rules::default()).unwrap().manifest);
    let hash = ContentHash::of_manifest(&manifest);
    Registered { manifest, hash, generation, owner: Arc::from("t"), registered_ms: 1, changed_ms: 2, draining: false }
}

fn cap(name: &str, description: &str) -> Value {
    json!({"intent": name, "description": description})
}

fn key(namespace: &str, id: &str) -> AgentKey {
    AgentKey::local(Namespace::new(namespace).unwrap(), id)
}

#[test]
fn only_what_changed_is_indexed_again() {
    let schemas = Schemas::inline();
    let mut catalog = Catalog::default();
    let first = catalog.register(&registered("n", "a", 1, json!([cap("x_one", "1"), cap("x_two", "2")]), json!([])), &schemas);
    assert_eq!((first.added.len(), first.removed.len(), first.kept.len()), (2, 0, 0));
    let snapshot = catalog.clone();
    let second = catalog
        .register(&registered("n", "a", 2, json!([cap("x_three", "3"), cap("x_one", "1"), cap("x_two", "new")]), json!([])), &schemas);
    assert_eq!((second.added.len(), second.removed.as_slice(), second.kept.as_slice()), (2, [1].as_slice(), [0].as_slice()));
    assert_eq!(catalog.capability(0).unwrap().index, 1, "the kept one knows its new place");
    assert_eq!(catalog.capability(0).unwrap().agent.generation, 2);
    assert_eq!(&*catalog.agent(&key("n", "a")).unwrap().slots, [2, 0, 3]);
    // another visibility: everything moves to another class
    let third = catalog.register(&registered("n", "a", 3, json!([cap("x_one", "1")]), json!(["m"])), &schemas);
    assert_eq!((third.added.len(), third.removed.len(), third.kept.len()), (1, 3, 0));
    let gone = catalog.deregister(&key("n", "a"), 4);
    assert_eq!(
        (gone.removed.as_slice(), catalog.capability_count(), catalog.agent_count(), catalog.generation()),
        ([4].as_slice(), 0, 0, 4)
    );
    let again = catalog.register(&registered("n", "a", 5, json!([cap("x_one", "1")]), json!([])), &schemas);
    assert_eq!(again.added[0].slot, 5, "slots are never reused");
    assert_eq!(
        (snapshot.capability_count(), snapshot.generation(), snapshot.capability(1).is_some()),
        (2, 1, true),
        "a clone never changes"
    );
}

#[test]
fn an_entry_answers_what_the_filter_asks() {
    let mut catalog = Catalog::default();
    let capability = json!([{
        "intent": "refundCreate", "aliases": ["create-refund", "refund_create", "退款申请"], "description": "x", "regions": ["cn-*", "EU-west-?"],
        "hours": {"time_zone": "Asia/Shanghai", "windows": [{"from": "09:00", "to": "18:00"}]},
        "input_schema": {"type": "object", "required": ["order_id"], "properties": {"order_id": {"type": "string"}}},
    }]);
    let delta = catalog.register(&registered("n", "a", 1, capability, json!([])), &Schemas::inline());
    let c = &delta.added[0];
    assert_eq!((&**c.folded(), c.folded_aliases().len()), ("refund_create", 2));
    assert!(c.is_called("refund_create") && c.is_called("create_refund") && c.is_called("退款申请") && !c.is_called("refund"));
    assert!(c.serves("cn-north") && c.serves("CN-north") && c.serves("eu-west-1") && !c.serves("eu-west-10") && !c.serves("us"));
    let noon = 1_741_147_200_000; // 2025-03-05 12:00 in Shanghai
    assert!(c.is_open(noon) && !c.is_open(noon + 10 * 3_600_000));
    assert_eq!(c.next_open(noon + 10 * 3_600_000).as_deref(), Some("Thu 09:00 Asia/Shanghai"));
    assert_eq!(c.input().unwrap().validate(&json!({})).unwrap_err()[0].pointer, "/order_id");
    assert_eq!(c.schema_words(), "order id");
    assert!(c.broken().is_empty() && c.output().is_none());
}

#[test]
fn schemas_are_checked_with_places_in_the_manifest() {
    let capabilities = json!([cap("a_b", "x"), {"intent": "c_d", "description": "x", "input_schema": {"properties": {"a": {"$ref": "http://x/"}}}, "output_schema": "schema://none.json"}]);
    let r = registered("n", "a", 1, capabilities, json!([]));
    let faults = check_schemas(&r.manifest, &Schemas::inline()).unwrap_err();
    let places: Vec<_> = faults.iter().map(|f| f.pointer.as_str()).collect();
    assert_eq!(places, ["/capabilities/1/input_schema/properties/a/$ref", "/capabilities/1/output_schema"]);
    // kept as words all the same
    let delta = Catalog::default().register(&r, &Schemas::inline());
    assert_eq!((delta.added[1].schema_words().as_str(), delta.added[1].output().is_none()), ("a", true));
}

#[test]
fn pages_hold_what_the_principal_sees() {
    let mut catalog = Catalog::default();
    for (n, id, to) in [
        ("acme", "b", json!([])),
        ("acme-corp", "a", json!([])),
        ("acme/x", "a", json!([])),
        ("zeta", "a", json!(["acme"])),
        ("zeta", "b", json!(["*"])),
    ] {
        catalog.register(&registered(n, id, 1, json!([cap("x_y", "1")]), to), &Schemas::inline());
    }
    let acme = Principal { namespaces: Grant::Only([Arc::from("acme")].into()), ..Principal::local("t") };
    let seen = |after| catalog.page(&acme, after).map(|r| r.entry.key.to_string()).collect::<Vec<_>>();
    assert_eq!(seen(None), ["acme/b", "zeta/a", "zeta/b"]);
    assert_eq!(seen(Some(&key("acme", "b"))), ["zeta/a", "zeta/b"]);
    assert_eq!(catalog.page(&Principal::local("t"), None).count(), 5);
}

#[test]
fn the_demo_fleet_registers_without_a_warning() {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("datasets/fleet");
    let mut open = vec![root];
    let (mut catalog, mut generation) = (Catalog::default(), 0);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        let name = path.display().to_string();
        let Some(format) = document::Format::of_name(&name) else { continue };
        let all = check_all(&document::read(&std::fs::read(&path).unwrap(), Some(format)).unwrap(), &Rules::default());
        assert_eq!(all.faulty, [], "{name}");
        for checked in all.manifests {
            assert_eq!(checked.warnings, [], "{name}");
            assert_eq!(check_schemas(&checked.manifest, &Schemas::inline()), Ok(()), "{name}");
            generation += 1;
            let hash = ContentHash::of_manifest(&checked.manifest);
            let manifest = Arc::new(checked.manifest);
            let owner = Arc::from("demo");
            let delta = catalog.register(
                &Registered { manifest, hash, generation, owner, registered_ms: 1, changed_ms: 1, draining: false },
                &Schemas::inline(),
            );
            assert!(delta.added.iter().all(|c| c.broken().is_empty()), "{name}");
        }
    }
    assert!(
        catalog.agent_count() >= 25 && catalog.capability_count() >= 80,
        "{} agents, {} capabilities",
        catalog.agent_count(),
        catalog.capability_count()
    );
}

#[derive(Clone, Debug)]
enum Step {
    Register { id: u8, capabilities: Vec<u8>, public: bool },
    Deregister { id: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let register = (0u8..4, prop::collection::btree_set(0u8..6, 1..4), any::<bool>())
        .prop_map(|(id, capabilities, public)| Step::Register { id, capabilities: capabilities.into_iter().collect(), public });
    prop::collection::vec(prop_oneof![3 => register, 1 => (0u8..4).prop_map(|id| Step::Deregister { id })], 1..30)
}

proptest! {
    #[test]
    fn deltas_lead_from_one_state_to_the_next(steps in steps()) {
        let mut catalog = Catalog::default();
        let mut indexed = std::collections::BTreeMap::new();
        let mut expected: std::collections::BTreeMap<String, Vec<String>> = Default::default();
        for (generation, step) in steps.into_iter().enumerate() {
            let delta = match step {
                Step::Register { id, capabilities, public } => {
                    expected.insert(format!("a{id}"), capabilities.iter().map(|c| format!("c{c}")).collect());
                    let list = capabilities.iter().map(|c| cap(&format!("c{c}"), "same")).collect::<Vec<_>>();
                    let to = if public { json!(["*"]) } else { json!([]) };
                    catalog.register(&registered("n", &format!("a{id}"), generation as u64, json!(list), to), &Schemas::inline())
                }
                Step::Deregister { id } => {
                    expected.remove(&format!("a{id}"));
                    catalog.deregister(&key("n", &format!("a{id}")), generation as u64)
                }
            };
            for slot in &delta.removed {
                prop_assert!(indexed.remove(slot).is_some());
            }
            for c in &delta.added {
                prop_assert!(indexed.insert(c.slot, c.class).is_none(), "a slot was reused");
            }
            // what an index was told is what the catalog holds
            let held: std::collections::BTreeMap<u32, u32> = catalog.capabilities().map(|c| (c.slot, c.class)).collect();
            prop_assert_eq!(&held, &indexed);
            prop_assert_eq!(catalog.capability_count(), indexed.len());
            let names: std::collections::BTreeMap<String, Vec<String>> = catalog.agents().map(|r| {
                let names = r.slots.iter().map(|s| catalog.capability(*s).unwrap().capability().intent.to_string()).collect();
                (r.entry.key.agent_id.to_string(), names)
            }).collect();
            prop_assert_eq!(&names, &expected);
        }
    }
}
