//! The command line as a script sees it: with `--json` whatever happens is data.

use crate::fakes::{node, reach};
use serde_json::Value;
use std::process::Command;

fn run(arguments: &[&str]) -> (i32, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reach"));
    // nobody listens on port 1
    command.args(arguments).args(["--json", "--server", "http://127.0.0.1:1"]).env_remove("REACH_TOKEN").env_remove("REACH_CONFIG");
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let data = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {:?} {words}", output.stdout));
    (output.status.code().unwrap(), data, words)
}

#[test]
fn with_json_no_server_is_data_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let manifest = "{namespace: n, agent_id: a, endpoints: [{protocol: pull}], capabilities: [{intent: x_y, description: does it}]}";
    std::fs::File::create(&file).and_then(|mut f| std::io::Write::write_all(&mut f, manifest.as_bytes())).unwrap();
    let file = file.to_str().unwrap();
    let commands: [&[&str]; 9] = [
        &["resolve", "x"],
        &["resolve", "--target", "n/a"],
        &["invoke", "x"],
        &["agents", "list"],
        &["messages"],
        &["dead-letters"],
        &["feedback", "list"],
        &["top", "--once"],
        &["register", file],
    ];
    for arguments in commands {
        let (code, data, words) = run(arguments);
        assert_eq!((code, data["error"]["code"].as_str()), (2, Some("failed_precondition")), "{arguments:?}: {data}");
        assert!(data["error"]["message"].as_str().unwrap().contains("can't reach http://127.0.0.1:1"), "{arguments:?}: {data}");
        assert!(words.contains("error: can't reach"), "people are told as well: {words}");
    }
    let (code, data, _) = run(&["resolve"]);
    assert_eq!((code, data["error"]["code"].as_str()), (2, Some("invalid_argument")), "{data}");
}

#[tokio::test]
async fn one_look_is_one_line_of_data() {
    let node = node(&[], "").await;
    let (code, stdout, stderr) = reach(&node, &["top", "--json", "--once"]).await;
    assert_eq!((code, stdout.lines().count()), (0, 1), "{stdout} {stderr}");
    assert!(serde_json::from_str::<Value>(&stdout).unwrap()["retention_ms"].is_number(), "{stdout}");
}
