//! Fills a stage from a Maven artifact: a jar with an ONNX fp32 export and a tokenizer, copied by the Maven client.
//!
//! The client runs as a bounded child process: short network timeouts, no questions, killed at the limit.

use super::folder::{check_tokenizer, fill_from_onnx};
use super::{Event, FetchConfig, Progress, check_pin};
use crate::clock::{Clock, SystemClock};
use crate::embed::cache::{Stage, TOKENIZER, file_sha256, hex_sha256};
use crate::embed::catalog::{MavenSource, ModelSpec};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Largest file taken out of a jar.
const MAX_ENTRY: u64 = 3 << 30;
/// The client of Maven.
const CLIENT: &str = "mvn";

/// Has the artifact copied and takes the model out of it. Returns where it came from, in words.
pub fn fill(
    artifact: &MavenSource,
    spec: &ModelSpec,
    stage: &Stage,
    limits: &FetchConfig,
    progress: &dyn Progress,
) -> Result<String, String> {
    let jar = copy(artifact, spec, stage, limits, progress)?;
    let seen = file_sha256(&jar).map_err(|e| e.to_string())?;
    check_pin("the jar", &seen, artifact.sha256.get("artifact.jar"))?;

    progress.on(&Event::Converting { model: &spec.name });
    let mut zip =
        zip::ZipArchive::new(File::open(&jar).map_err(|e| e.to_string())?).map_err(|e| format!("the jar can't be opened: {e}"))?;
    let tokenizer = entry(&mut zip, TOKENIZER)?;
    check_pin(TOKENIZER, &hex_sha256(&tokenizer), artifact.sha256.get(TOKENIZER))?;
    check_tokenizer(&tokenizer)?;
    stage.put(TOKENIZER, &tokenizer).map_err(|e| e.to_string())?;
    let onnx = entry(&mut zip, ".onnx")?;
    check_pin("model.onnx", &hex_sha256(&onnx), artifact.sha256.get("model.onnx"))?;
    fill_from_onnx(onnx, spec, stage)?;
    Ok(format!("maven {}", artifact.artifact))
}

/// The one entry whose name ends in `ending`.
fn entry(zip: &mut zip::ZipArchive<File>, ending: &str) -> Result<Vec<u8>, String> {
    let missing = || format!("the jar has no *{ending}");
    let place = (0..zip.len()).find(|i| zip.by_index(*i).is_ok_and(|f| f.name().is_ok_and(|n| n.ends_with(ending)))).ok_or_else(missing)?;
    let file = zip.by_index(place).map_err(|e| e.to_string())?;
    let mut data = Vec::new();
    file.take(MAX_ENTRY).read_to_end(&mut data).map_err(|e| format!("*{ending} in the jar: {e}"))?;
    Ok(data)
}

/// Runs the client; returns the jar that it copied.
fn copy(artifact: &MavenSource, spec: &ModelSpec, stage: &Stage, limits: &FetchConfig, progress: &dyn Progress) -> Result<PathBuf, String> {
    let into = stage.dir().join("jar");
    fs::create_dir(&into).map_err(|e| e.to_string())?;
    let log = stage.dir().join("mvn.log");
    let out = File::create(&log).map_err(|e| e.to_string())?;
    let child = Command::new(CLIENT)
        .args(["-B", "-q", "dependency:copy", "-Dmdep.useBaseVersion=true"])
        .arg(format!("-Dartifact={}", artifact.artifact))
        .arg(format!("-DoutputDirectory={}", into.display()))
        // both generations of Maven's transport
        .args(["-Daether.connector.connectTimeout=4000", "-Daether.connector.requestTimeout=60000"])
        .args(["-Daether.connector.http.retryHandler.count=1", "-Dmaven.wagon.http.retryHandler.count=1", "-Dmaven.wagon.rto=60000"])
        .current_dir(stage.dir())
        .stdin(Stdio::null())
        .stderr(out.try_clone().map_err(|e| e.to_string())?)
        .stdout(out)
        .spawn();
    let child = child.map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            format!("the Maven client (`{CLIENT}`) is not installed")
        } else {
            format!("the Maven client can't be started: {e}")
        }
    })?;
    let status = wait(child, limits.maven_limit, || {
        let done = folder_size(&into);
        if done > 0 {
            progress.on(&Event::Bytes { model: &spec.name, file: "artifact.jar", done, total: None });
        }
    });
    let status = status.map_err(|e| e.to_string())?.ok_or_else(|| format!("no result within {} s", limits.maven_limit.as_secs()))?;
    if !status.success() {
        return Err(format!("the Maven client failed: {}", complaint(&fs::read_to_string(&log).unwrap_or_default())));
    }
    let jars = fs::read_dir(&into).map_err(|e| e.to_string())?.flatten().map(|e| e.path());
    jars.into_iter().find(|p| p.extension().is_some_and(|e| e == "jar")).ok_or_else(|| "the Maven client copied no jar".to_owned())
}

/// Waits for `child`; kills it at the limit and returns `None`. `tick` is called a few times a second.
fn wait(mut child: Child, limit: Duration, mut tick: impl FnMut()) -> io::Result<Option<ExitStatus>> {
    let clock = SystemClock;
    let start = clock.instant();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if clock.instant().duration_since(start) > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        tick();
        std::thread::sleep(Duration::from_millis(200).min(limit));
    }
}

fn folder_size(folder: &Path) -> u64 {
    fs::read_dir(folder).map(|entries| entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()).unwrap_or(0)
}

/// The first complaint in the client's output, without what may stand before `@` in an address.
fn complaint(log: &str) -> String {
    let line = log.lines().find(|l| l.contains("ERROR")).or_else(|| log.lines().rfind(|l| !l.trim().is_empty())).unwrap_or("no output");
    let mut words = String::new();
    for word in line.split_whitespace() {
        let safe = match word.split_once("://").map(|(scheme, rest)| (scheme, rest.split_once('@'))) {
            Some((scheme, Some((_, host)))) => format!("{scheme}://{host}"),
            Some((_, None)) | None => word.to_owned(),
        };
        words.push_str(&safe);
        words.push(' ');
    }
    words.trim().chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_killed() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = SystemClock.instant();
        assert!(wait(child, Duration::from_millis(200), || {}).unwrap().is_none());
        assert!(SystemClock.instant().duration_since(start) < Duration::from_secs(10));
        let child = Command::new("sleep").arg("0").spawn().unwrap();
        assert!(wait(child, Duration::from_secs(20), || {}).unwrap().unwrap().success());
    }

    #[test]
    fn complaints_show_no_credentials() {
        let log = "[INFO] x\n[ERROR] Could not transfer from https://user:secret@repo.example/maven2 timed out\n[ERROR] more";
        assert_eq!(complaint(log), "[ERROR] Could not transfer from https://repo.example/maven2 timed out");
        assert_eq!(complaint("only words\n\n"), "only words");
        assert_eq!(complaint(""), "no output");
    }
}
