//! The layers point one way: a module may use only modules of lower layers (docs/ARCHITECTURE.md §3).
//! Also guarded here: file sizes, `unsafe` only in `kernel/`, and paths and tests named in the documentation exist.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Layer of each top-level module. Modules of one layer don't import each other, except within `types`, and `error` may use `types`.
const LAYERS: &[(u8, &[&str])] = &[
    (0, &["types", "error", "clock", "tasks", "config", "telemetry", "kernel"]),
    (1, &["embed", "index", "store", "live"]),
    (2, &["catalog", "history"]),
    (3, &["view"]),
    (4, &["ingest", "route", "dispatch"]),
    (5, &["api", "bench", "eval", "cluster"]),
    (6, &["app", "cli", "main", "lib"]),
];

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(_, names)| names.contains(&module)).map(|(n, _)| *n)
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of the project").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn top_module(root: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(root).expect("inside src");
    let first = relative.components().next().expect("a component").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_string()
}

/// Names after `crate::` in non-comment code, braces of one level expanded (`use crate::{a, b::c}`).
fn crate_uses(text: &str) -> Vec<String> {
    let code: String = text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` in macros counts too; `some_crate::` does not
        if code[..at].chars().last().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(inner) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            for c in inner.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    name.push(c)
                }
            }
            found.extend(name.split(',').map(|n| n.trim().split("::").next().unwrap_or("").trim().to_string()).filter(|n| !n.is_empty()));
        } else {
            found.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    found
}

fn allowed(from: &str, to: &str) -> bool {
    if from == to || from == "lib" {
        return true;
    }
    match (layer(from), layer(to)) {
        // words are one vocabulary: error uses types, config and telemetry use both
        (Some(0), Some(0)) => matches!(to, "types" | "error" | "clock") || (from == "telemetry" && to == "config"),
        (Some(a), Some(b)) if a < 6 => b < a,
        (Some(6), Some(_)) => true,
        _ => false,
    }
}

#[test]
fn imports_follow_the_layers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    assert!(files.len() > 10, "the source tree was read");
    let mut wrong = Vec::new();
    for file in &files {
        let from = top_module(&root, file);
        assert!(layer(&from).is_some(), "{} belongs to no layer; see docs/ARCHITECTURE.md §3", file.display());
        let text = fs::read_to_string(file).expect("readable");
        for used in crate_uses(&text) {
            // items of the crate root (macros, re-exports) are not modules
            if layer(&used).is_some() && !allowed(&from, &used) {
                wrong.push(format!("{} may not use crate::{used}", file.strip_prefix(&root).expect("inside").display()));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/ARCHITECTURE.md §3:\n{}", wrong.join("\n"));
}

#[test]
fn the_layer_check_can_fail() {
    assert_eq!(crate_uses("use crate::{route::x, api::{a, b}};\n// crate::cli\nlet y = crate::store::z();"), ["route", "api", "store"]);
    assert!(!allowed("route", "dispatch") && !allowed("dispatch", "route") && !allowed("embed", "index"));
    assert!(!allowed("types", "route") && allowed("route", "view") && allowed("api", "route") && !allowed("api", "eval"));
}

#[test]
fn unsafe_lives_in_kernel_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        let lifts = text.contains("allow(unsafe_code)");
        assert!(!lifts || top_module(&root, &file) == "kernel", "{} lifts the ban on unsafe code", file.display());
    }
}

#[test]
fn files_are_one_concept() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        let lines = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("").lines().count();
        assert!(lines <= 700, "{} has {lines} lines without its tests: two concepts in one?", file.display());
    }
}

#[test]
fn paths_named_in_the_documentation_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    let docs = fs::read_dir(root.join("docs")).expect("docs").flatten().map(|e| e.path()).chain([root.join("README.md")]);
    for doc in docs.filter(|p| p.extension().is_some_and(|e| e == "md")) {
        let text = fs::read_to_string(&doc).unwrap_or_default();
        for word in text.split('`').skip(1).step_by(2) {
            let starts = ["src/", "tests/", "docs/", "eval/", "benches/", "datasets/", "models/", "proto/"];
            if starts.iter().any(|s| word.starts_with(s)) && !word.contains(['*', '<', ' ', '{']) {
                let path = word.split("::").next().unwrap_or(word).split(':').next().unwrap_or(word);
                if !root.join(path).exists() {
                    missing.push(format!("{}: {word}", doc.file_name().unwrap_or_default().to_string_lossy()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "dead paths:\n{}", missing.join("\n"));
}

/// `path::name` on the page of cases is a test in that file.
#[test]
fn tests_named_on_the_page_of_cases_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/cases.md")).expect("docs/cases.md");
    let named: Vec<(&str, &str)> = page.split('`').skip(1).step_by(2).filter_map(|word| word.split_once("::")).collect();
    assert!(named.len() > 100, "the page was read: {}", named.len());
    let holds = |path: &str, name: &str| fs::read_to_string(root.join(path)).is_ok_and(|text| text.contains(&format!("fn {name}(")));
    let missing: Vec<String> =
        named.iter().filter(|(path, name)| !holds(path, name)).map(|(path, name)| format!("{path}::{name}")).collect();
    assert!(missing.is_empty(), "docs/cases.md names tests that are not there:\n{}", missing.join("\n"));
    assert!(!holds("tests/layers.rs", "no_such_test"), "the check can fail");
}
