//! Measures a schema before anything compiles it: size, depth, nodes, references, patterns, and how often one value could be looked at.
//!
//! Invariants of what passes: ≤ 64 KiB, ≤ 32 levels, ≤ 2,000 nodes; every reference points into the document and no chain of references
//! comes back to itself without a step into the payload; ≤ 100 patterns of ≤ 512 characters; `paths` and `recursion_depth` bound a validation.
//! Cost: linear in the schema. Nothing here recurses deeper than the depth limit allows.

use crate::types::Fault;
use crate::types::manifest_check::deeper_than;
use serde_json::Value;
use std::collections::HashMap;

/// Largest schema, bytes of JSON.
pub const MAX_SCHEMA: usize = 64 << 10;
/// Deepest nesting.
pub const MAX_DEPTH: usize = 32;
/// Most objects, lists and list items.
pub const MAX_NODES: usize = 2_000;
const MAX_PATTERNS: usize = 100;
const MAX_PATTERN: usize = 512;
/// Most ways through the schema for one value.
const MAX_PATHS: u64 = 10_000;
/// Steps that a recursive schema may take in all.
const RECURSION_STEPS: f64 = 1e7;

/// Keywords whose value is a schema for the same value of the payload.
const IN_PLACE: &[&str] = &["not", "if", "then", "else"];
/// Keywords whose value is a list of schemas for the same value.
const IN_PLACE_LISTS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords whose value is an object of schemas for the same value.
const IN_PLACE_MAPS: &[&str] = &["dependentSchemas", "dependencies"];
/// Keywords whose value is a schema (or a list of them) for parts of the value.
const STEPS: &[&str] = &[
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords whose value is an object of schemas for parts of the value.
const STEP_MAPS: &[&str] = &["properties", "patternProperties"];
/// Places of schemas that are only referred to.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];

/// What bounds the validation of a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measures {
    /// Number of patterns.
    pub patterns: usize,
    /// Ways through the schema, recursion counted once.
    pub paths: u64,
    /// Deepest payload that keeps a recursive schema within its steps; large when the schema is not recursive.
    pub recursion_depth: usize,
}

/// A subschema and where it leads.
#[derive(Default)]
struct Node {
    pointer: String,
    in_place: Vec<usize>,
    steps: Vec<usize>,
    named_steps: Vec<usize>,
    depth: usize,
}

/// Measures `schema`, or says everything that is wrong with it.
pub fn measure(schema: &Value) -> Result<Measures, Vec<Fault>> {
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err(vec![Fault::new("", "a JSON Schema: an object, true or false", "replace it")]);
    }
    if deeper_than(schema, MAX_DEPTH) {
        return Err(vec![Fault::new("", format!("a schema of at most {MAX_DEPTH} levels"), "flatten it, or move parts to $defs")]);
    }
    if serde_json::to_vec(schema).map_or(usize::MAX, |bytes| bytes.len()) > MAX_SCHEMA {
        return Err(vec![Fault::new("", "a schema of at most 64 KiB", "shorten descriptions and enumerations")]);
    }
    if nodes(schema) > MAX_NODES {
        return Err(vec![Fault::new(
            "",
            format!("a schema of at most {MAX_NODES} nodes"),
            "shorten enumerations, or split the capability",
        )]);
    }
    let mut walk =
        Walk { root: schema, nodes: Vec::new(), index: HashMap::new(), anchors: anchors(schema), faults: Vec::new(), patterns: 0 };
    walk.all();
    if walk.patterns > MAX_PATTERNS {
        walk.faults.push(Fault::new("", format!("at most {MAX_PATTERNS} patterns"), "use enum, minLength or fewer patterns"));
    }
    if !walk.faults.is_empty() {
        walk.faults.truncate(50);
        return Err(walk.faults);
    }
    let count = Count::of(&walk.nodes).map_err(|at| {
        let pointer = walk.nodes.get(at).map(|n| n.pointer.clone()).unwrap_or_default();
        vec![Fault::new(pointer, "references that end", "this one leads back to itself without a step into the payload: break the loop")]
    })?;
    if count.paths > MAX_PATHS {
        return Err(vec![Fault::new(
            "",
            format!("a schema with at most {MAX_PATHS} alternatives for one value"),
            "nested anyOf, oneOf and allOf multiply: flatten them",
        )]);
    }
    Ok(Measures { patterns: walk.patterns, paths: count.paths.max(1), recursion_depth: count.recursion_depth() })
}

/// Objects, lists and list items.
fn nodes(schema: &Value) -> usize {
    let (mut count, mut open) = (0, vec![schema]);
    while let Some(value) = open.pop() {
        match value {
            Value::Object(members) => {
                count += 1;
                open.extend(members.values().filter(|v| v.is_object() || v.is_array()));
            }
            Value::Array(items) => {
                count += 1 + items.iter().filter(|v| !v.is_object() && !v.is_array()).count();
                open.extend(items.iter().filter(|v| v.is_object() || v.is_array()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    count
}

/// Every `$anchor` and `$dynamicAnchor` with its place.
fn anchors(schema: &Value) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut open = vec![(schema, String::new())];
    while let Some((value, pointer)) = open.pop() {
        match value {
            Value::Object(members) => {
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(Value::String(name)) = members.get(key) {
                        found.insert(name.clone(), pointer.clone());
                    }
                }
                open.extend(members.iter().map(|(k, v)| (v, format!("{pointer}/{}", escape(k)))));
            }
            Value::Array(items) => open.extend(items.iter().enumerate().map(|(i, v)| (v, format!("{pointer}/{i}")))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    found
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Turns `%41` into `A`; nothing when the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&b) = bytes.get(at) {
        match (b, text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(decoded)) => {
                out.push(decoded);
                at += 3;
            }
            _ => {
                out.push(b);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

struct Walk<'v> {
    root: &'v Value,
    nodes: Vec<Node>,
    index: HashMap<String, usize>,
    anchors: HashMap<String, String>,
    faults: Vec<Fault>,
    patterns: usize,
}

impl<'v> Walk<'v> {
    /// Visits every subschema that stands in a schema's place or is referred to.
    fn all(&mut self) {
        self.node(String::new());
        let mut next = 0;
        while next < self.nodes.len() && self.faults.len() < 50 {
            let pointer = self.nodes.get(next).map(|n| n.pointer.clone()).unwrap_or_default();
            if let Some(Value::Object(members)) = self.root.pointer(&pointer) {
                self.visit(next, &pointer, members);
            }
            next += 1;
        }
    }

    /// Number of the node at `pointer`, new or known.
    fn node(&mut self, pointer: String) -> usize {
        if let Some(known) = self.index.get(&pointer) {
            return *known;
        }
        let at = self.nodes.len();
        self.index.insert(pointer.clone(), at);
        self.nodes.push(Node { pointer, ..Node::default() });
        at
    }

    fn visit(&mut self, at: usize, pointer: &str, members: &'v serde_json::Map<String, Value>) {
        let mut node = Node::default();
        for (key, value) in members {
            let place = format!("{pointer}/{}", escape(key));
            let name = key.as_str();
            match value {
                Value::String(text) => self.text(name, text, &place, pointer, &mut node),
                Value::Object(inner) if IN_PLACE_MAPS.contains(&name) => {
                    node.in_place.extend(inner.keys().map(|k| self.node(format!("{place}/{}", escape(k)))));
                }
                Value::Object(inner) if STEP_MAPS.contains(&name) => {
                    if name == "patternProperties" {
                        inner.keys().for_each(|pattern| self.pattern(pattern, &place));
                        node.steps.extend(inner.keys().map(|k| self.node(format!("{place}/{}", escape(k)))));
                    } else {
                        node.named_steps.extend(inner.keys().map(|k| self.node(format!("{place}/{}", escape(k)))));
                    }
                }
                Value::Object(inner) if DEFINITIONS.contains(&name) => {
                    for name in inner.keys() {
                        self.node(format!("{place}/{}", escape(name)));
                    }
                }
                Value::Object(_) if IN_PLACE.contains(&name) => node.in_place.push(self.node(place)),
                Value::Object(_) if STEPS.contains(&name) => node.steps.push(self.node(place)),
                Value::Array(items) if IN_PLACE_LISTS.contains(&name) => {
                    node.in_place.extend((0..items.len()).map(|i| self.node(format!("{place}/{i}"))));
                }
                Value::Array(items) if STEPS.contains(&name) => {
                    node.named_steps.extend((0..items.len()).map(|i| self.node(format!("{place}/{i}"))));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {}
            }
        }
        if let Some(slot) = self.nodes.get_mut(at) {
            node.pointer = std::mem::take(&mut slot.pointer);
            node.depth = pointer.matches('/').count();
            *slot = node;
        }
    }

    /// A keyword with a text: references, ids and patterns.
    fn text(&mut self, name: &str, text: &str, place: &str, pointer: &str, node: &mut Node) {
        match name {
            "$ref" | "$dynamicRef" | "$recursiveRef" => match self.target(text) {
                Some(target) if target == pointer => {
                    self.faults.push(Fault::new(place, "references that end", "this one refers to itself: remove it"));
                }
                Some(target) => node.in_place.push(self.node(target)),
                None if text.starts_with('#') => {
                    self.faults.push(Fault::new(place, "a reference to a part of this schema", "nothing stands there: add it under $defs"));
                }
                None => self.faults.push(Fault::new(
                    place,
                    "a reference inside this schema (#/…)",
                    "other documents are not fetched: copy the part under $defs",
                )),
            },
            "$id" if !pointer.is_empty() => {
                self.faults.push(Fault::new(
                    place,
                    "no $id inside the schema",
                    "only the root may have one: remove it, refer by #/$defs/…",
                ));
            }
            "pattern" => self.pattern(text, place),
            _ => {}
        }
    }

    fn pattern(&mut self, pattern: &str, place: &str) {
        self.patterns += 1;
        if pattern.chars().nth(MAX_PATTERN).is_some() {
            self.faults.push(Fault::new(place, format!("a pattern of at most {MAX_PATTERN} characters"), "shorten it"));
        }
    }

    /// Where a reference leads, as a pointer that exists.
    fn target(&self, reference: &str) -> Option<String> {
        let fragment = percent_decoded(reference.strip_prefix('#')?)?;
        let pointer = if fragment.is_empty() || fragment.starts_with('/') { fragment } else { self.anchors.get(&fragment)?.clone() };
        self.root.pointer(&pointer).map(|_| pointer)
    }
}

/// Ways through the graph.
struct Count {
    paths: u64,
    branching: u64,
}

/// State of a node while ways are counted.
#[derive(Clone, Copy)]
enum Mark {
    New,
    /// Being counted; the number of in-place steps since the last step into the payload lies on the stack.
    Open,
    /// Ways, and ways that end in a recursion.
    Done(u64, u64),
}

impl Count {
    /// Counts ways from the root. The error is a node on a loop that takes no step into the payload.
    fn of(nodes: &[Node]) -> Result<Self, usize> {
        loops(nodes)?;
        let mut marks = vec![Mark::New; nodes.len()];
        let mut count = Self { paths: 0, branching: 0 };
        // an explicit stack: references make chains longer than the depth of the document
        for start in 0..nodes.len() {
            let mut stack = vec![start];
            while let Some(&at) = stack.last() {
                let Some(node) = nodes.get(at) else { break };
                match marks.get(at).copied() {
                    Some(Mark::New) => {
                        set(&mut marks, at, Mark::Open);
                        let children = node.in_place.iter().chain(&node.steps).chain(&node.named_steps);
                        stack.extend(children.filter(|c| matches!(marks.get(**c), Some(Mark::New))));
                    }
                    Some(Mark::Open) => {
                        let ways = |children: &[usize]| -> Vec<(u64, u64)> {
                            children
                                .iter()
                                .map(|c| match marks.get(*c) {
                                    Some(Mark::Done(paths, back)) => (*paths, *back),
                                    // back to something open: recursion
                                    Some(Mark::Open | Mark::New) | None => (1, 1),
                                })
                                .collect()
                        };
                        let sum =
                            |ways: &[(u64, u64)]| ways.iter().fold((0u64, 0u64), |a, w| (a.0.saturating_add(w.0), a.1.saturating_add(w.1)));
                        let (in_place, steps, named) = (sum(&ways(&node.in_place)), sum(&ways(&node.steps)), ways(&node.named_steps));
                        // different properties are different values: the widest counts, not their sum
                        let widest = named.iter().fold((0, 0), |a: (u64, u64), w| (a.0.max(w.0), a.1.max(w.1)));
                        let paths = 1u64.saturating_add(in_place.0).saturating_add(steps.0).saturating_add(widest.0);
                        let back = in_place.1.saturating_add(steps.1).saturating_add(widest.1);
                        set(&mut marks, at, Mark::Done(paths, back));
                        count.branching = count.branching.max(back);
                        if at == 0 {
                            count.paths = paths;
                        }
                        stack.pop();
                    }
                    Some(Mark::Done(..)) | None => {
                        stack.pop();
                    }
                }
            }
        }
        Ok(count)
    }

    fn recursion_depth(&self) -> usize {
        if self.branching < 2 { usize::MAX } else { (RECURSION_STEPS.ln() / (self.branching as f64).ln()).floor().max(1.0) as usize }
    }
}

fn set(marks: &mut [Mark], at: usize, mark: Mark) {
    if let Some(slot) = marks.get_mut(at) {
        *slot = mark;
    }
}

/// Finds a loop over in-place edges: the validator would never take a step.
fn loops(nodes: &[Node]) -> Result<(), usize> {
    let mut incoming = vec![0usize; nodes.len()];
    for target in nodes.iter().flat_map(|n| &n.in_place) {
        if let Some(n) = incoming.get_mut(*target) {
            *n += 1;
        }
    }
    let mut free: Vec<usize> = incoming.iter().enumerate().filter(|(_, n)| **n == 0).map(|(i, _)| i).collect();
    let mut done = 0;
    while let Some(at) = free.pop() {
        done += 1;
        for target in nodes.get(at).map(|n| n.in_place.as_slice()).unwrap_or_default() {
            if let Some(n) = incoming.get_mut(*target) {
                *n -= 1;
                if *n == 0 {
                    free.push(*target);
                }
            }
        }
    }
    if done == nodes.len() { Ok(()) } else { Err(incoming.iter().position(|n| *n > 0).unwrap_or(0)) }
}
