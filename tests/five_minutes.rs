//! The newcomer's five minutes: exactly the lines of the README, with the real binary. Everything in them is asked for
//! by name, so the node runs without models here and starts at once.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};

/// The lines between the fence ` ```sh five-minutes ` and its end.
fn lines() -> String {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```sh five-minutes\n").unwrap();
    rest.split_once("\n```").unwrap().0.to_string()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_readme_does_what_it_says() {
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: python3 is needed for the agents of the README");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (grpc, http, agent) = (free_port(), free_port(), free_port());
    // the same lines; only the ports are free ones, and everything ends with the shell
    let script = format!("set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n{}\n", lines().replace("9001", &agent.to_string()));
    let bin = Path::new(env!("CARGO_BIN_EXE_reach")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("REACH_SERVER_GRPC_ADDR", format!("127.0.0.1:{grpc}"))
        .env("REACH_SERVER_HTTP_ADDR", format!("127.0.0.1:{http}"))
        .env("REACH_GRPC", format!("http://127.0.0.1:{grpc}"))
        .env("REACH_SERVER", format!("http://127.0.0.1:{http}"))
        .env("REACH_MODELS_ZH", "none")
        .env("REACH_MODELS_EN", "none")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let logs = || {
        let read = |name: &str| format!("{name}: {}\n", std::fs::read_to_string(folder.path().join(name)).unwrap_or_default());
        ["node.log", "prices.log", "totals.log", "spare.log"].map(read).concat()
    };
    assert!(output.status.success(), "{out}\n{err}\n{}", logs());
    for expected in [
        "registered  shop/prices",
        "{\"total\": 9}",
        "{\"item\": \"apple\", \"price\": 5}",
        "no connection",
        "\"agent\":\"shop/spare\"",
        "kept as a dead letter",
        "dead_letter retries_exhausted",
        "replays",
        "\"price\": 4",
    ] {
        assert!(out.contains(expected), "{expected:?} is missing:\n{out}\n{err}\n{}", logs());
    }
}
