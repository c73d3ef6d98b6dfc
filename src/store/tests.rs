use super::*;
use crate::types::manifest_check::{Rules, check};
use crate::types::{AgentKey, ContentHash, DecisionKind, Manifest, Namespace};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn manifest(id: &str, description: &str) -> Arc<Manifest> {
    let value = json!({"namespace": "orders", "agent_id": id, "endpoints": [{"protocol": "pull"}],
        "capabilities": [{"intent": "refund_create", "description": description}]});
    Arc::new(check(&value, &Rules::default()).unwrap().manifest)
}

fn key(id: &str) -> AgentKey {
    AgentKey::local(Namespace::new("orders").unwrap(), id)
}

fn open(folder: &Path) -> Store {
    Store::open(folder, Durability::Full).unwrap()
}

fn opened_err(folder: &Path) -> StoreError {
    Store::open(folder, Durability::Full).err().expect("must be refused")
}

#[allow(clippy::disallowed_methods)]
fn put_file(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn registering_again_changes_nothing_and_restarts_keep_the_set() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let store = open(folder.path());
        for id in ["a", "b", "c"] {
            let (what, now) = store.register(manifest(id, "refund"), "team", false, 1000 + round).await.unwrap();
            let expected = if round == 0 { Registration::New } else { Registration::Unchanged };
            assert_eq!((what, now.registered_ms), (expected, 1000), "{id} in round {round}");
        }
        let loaded = store.load_registry().unwrap();
        assert_eq!((loaded.agents.len(), loaded.generation, loaded.damaged.len()), (3, 3, 0));
        assert_eq!(store.versions(&key("a")).unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_new_version_replaces_and_the_old_one_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (old, new) = (manifest("a", "one"), manifest("a", "two"));
    let (_, first) = store.register(old.clone(), "team", false, 1).await.unwrap();
    let (what, second) = store.register(new.clone(), "team", false, 2).await.unwrap();
    assert_eq!(what, Registration::Replaced(first.hash));
    assert_eq!((second.generation, second.registered_ms, second.changed_ms), (2, 1, 2));
    assert_eq!(store.registered(&key("a")).unwrap().unwrap().manifest, new);
    assert_eq!(store.manifest_version(&key("a"), &first.hash).unwrap().unwrap(), old);
    let versions = store.versions(&key("a")).unwrap();
    assert_eq!(versions.iter().map(|v| (v.hash, v.current)).collect::<Vec<_>>(), [(first.hash, false), (second.hash, true)]);
    // back to the first one: no third version
    let (what, third) = store.register(old, "team", false, 3).await.unwrap();
    assert_eq!((what, third.generation), (Registration::Replaced(second.hash), 3));
    assert_eq!(store.versions(&key("a")).unwrap().len(), 2);
}

#[tokio::test]
async fn an_id_never_passes_to_another_owner() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = open(folder.path());
        store.register(manifest("a", "one"), "team", false, 1).await.unwrap();
        let thief = store.register(manifest("a", "mine now"), "thief", false, 2).await;
        assert_eq!(thief.unwrap_err(), StoreError::OtherOwner("orders/a".into()));
        assert!(store.deregister(&key("a"), "thief", false, 2).await.is_err());
        assert_eq!(store.deregister(&key("a"), "team", false, 3).await.unwrap(), Some(2));
        assert_eq!(store.deregister(&key("a"), "team", false, 4).await.unwrap(), None, "it is gone already");
        assert_eq!(store.deregister(&key("zzz"), "team", false, 4).await.unwrap(), None);
        assert_eq!(store.registered(&key("a")).unwrap(), None);
    }
    let store = open(folder.path());
    assert!(store.register(manifest("a", "mine now"), "thief", false, 5).await.is_err(), "also after a restart");
    let (what, back) = store.register(manifest("a", "one"), "team", false, 6).await.unwrap();
    assert_eq!((what, back.registered_ms), (Registration::Revived, 1));
    let (_, taken) = store.register(manifest("a", "operator"), "operator", true, 7).await.unwrap();
    assert_eq!(&*taken.owner, "operator");
}

#[tokio::test]
async fn watchers_see_every_change_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(manifest("a", "one"), "t", false, 1).await.unwrap();
    store.register(manifest("b", "one"), "t", false, 1).await.unwrap();
    store.register(manifest("a", "two"), "t", false, 1).await.unwrap();
    assert_eq!(store.set_draining(&key("b"), true, 2).await.unwrap(), Some(4));
    assert_eq!(store.set_draining(&key("b"), true, 2).await.unwrap(), None);
    store.deregister(&key("a"), "t", false, 2).await.unwrap();
    let seen = |after| {
        store
            .registry_changes(after, 100)
            .unwrap()
            .iter()
            .map(|c| (c.key.agent_id.to_string(), c.generation, c.now.is_some()))
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(0), [("b".to_string(), 4, true), ("a".to_string(), 5, false)]);
    assert_eq!(seen(4), [("a".to_string(), 5, false)]);
    assert!(store.registered(&key("b")).unwrap().unwrap().draining);
    assert_eq!(store.registry_generation().unwrap(), 5);
}

#[tokio::test]
async fn what_waits_is_written_together_and_failures_stay_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    let before = store.stats().commits.load(Ordering::Relaxed);
    // hold the writer so that the others queue up
    let (go, wait) = std::sync::mpsc::channel::<()>();
    store.writer.write_later(move |_| Ok(wait.recv().is_ok()), drop).unwrap();
    let mut all = Vec::new();
    for i in 0..100 {
        let store = store.clone();
        all.push(async move {
            store
                .writer
                .write(move |c| {
                    meta::set(c, &format!("k{i}"), "v")?;
                    match i {
                        13 => Err(StoreError::Internal("no".into())),
                        14 => panic!("operations may be wrong"),
                        _ => Ok(i),
                    }
                })
                .await
        });
    }
    let release = async {
        tokio::task::yield_now().await;
        go.send(()).unwrap();
    };
    let (results, ()) = futures::future::join(futures::future::join_all(all), release).await;
    assert_eq!(results.iter().filter(|r| r.is_err()).count(), 2);
    assert!(store.stats().commits.load(Ordering::Relaxed) - before <= 3, "100 operations, at most 3 transactions");
    assert_eq!(store.meta("k12").unwrap().as_deref(), Some("v"));
    assert_eq!((store.meta("k13").unwrap(), store.meta("k14").unwrap()), (None, None), "a failed operation leaves nothing");
}

#[tokio::test]
async fn acknowledged_survives_a_crash_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for round in 0..5 {
        store.register(manifest(&format!("a{round}"), "x"), "t", false, 1).await.unwrap();
        // the files as a killed process leaves them: no shared memory, no checkpoint
        let image = tempfile::tempdir().unwrap();
        for name in [FILE.to_string(), format!("{FILE}-wal")] {
            if folder.path().join(&name).exists() {
                std::fs::copy(folder.path().join(&name), image.path().join(&name)).unwrap();
            }
        }
        let survived = open(image.path()).load_registry().unwrap();
        assert_eq!((survived.agents.len(), survived.generation), (round + 1, round as u64 + 1));
    }
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let error = opened_err(folder.path());
    assert_eq!(
        error,
        StoreError::Locked { path: folder.path().display().to_string(), holder: format!(" (process {})", std::process::id()) }
    );
    assert!(error.to_string().contains("--server"), "{error}");
    drop(store);
    open(folder.path());
}

#[test]
fn files_that_are_not_ours_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE);
    put_file(&file, &vec![b'x'; 20_000]);
    let error = opened_err(folder.path());
    assert!(matches!(&error, StoreError::NotAStore { path } if path.ends_with(FILE)), "{error}");
    std::fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(opened_err(folder.path()), StoreError::NotAStore { .. }));
    std::fs::remove_file(&file).unwrap();
    drop(open(folder.path()));
    Connection::open(&file).unwrap().pragma_update(None, "user_version", 999).unwrap();
    let error = opened_err(folder.path());
    assert!(matches!(error, StoreError::NewerFormat { found: 999, .. }), "{error}");
    let blocked = folder.path().join("a-file");
    put_file(&blocked, b"");
    assert!(matches!(opened_err(&blocked.join("data")), StoreError::Folder { .. }));
}

#[tokio::test]
async fn damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for i in 0..200 {
        store.register(manifest(&format!("a{i}"), &"long text ".repeat(50)), "t", false, 1).await.unwrap();
    }
    drop(store);
    let file = folder.path().join(FILE);
    let sound = std::fs::read(&file).unwrap();
    let mut torn = sound.clone();
    torn.truncate(sound.len() - 8192 * 3);
    put_file(&file, &torn);
    assert!(matches!(opened_err(folder.path()), StoreError::Damaged { .. }), "a cut file");
    // one letter inside a manifest: the file is sound, the content is not
    put_file(&file, &sound);
    let flip = "UPDATE manifests SET body = replace(body, 'long text long', 'Long text long') WHERE agent_id = 'a7'";
    Connection::open(&file).unwrap().execute_batch(flip).unwrap();
    let loaded = open(folder.path()).load_registry().unwrap();
    assert_eq!((loaded.agents.len(), loaded.damaged.len()), (199, 1));
    assert!(loaded.damaged[0].1.contains("hash"));
    // registering it again heals it
    let broken = loaded.damaged[0].0.clone();
    let store = open(folder.path());
    let m = manifest(&broken.agent_id, &"long text ".repeat(50));
    store.register(manifest(&broken.agent_id, "other"), "t", false, 2).await.unwrap();
    store.register(m, "t", false, 3).await.unwrap();
    assert_eq!(store.load_registry().unwrap().agents.len(), 200);
}

#[tokio::test]
async fn a_full_disk_refuses_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(manifest("a", "x"), "t", false, 1).await.unwrap();
    let limit = |pages: i64| store.writer.write_later(move |c| Ok(c.pragma_update(None, "max_page_count", pages)?), |r| r.unwrap());
    limit(1).unwrap();
    let big = "x".repeat(4000);
    let mut refused = None;
    for i in 0..50 {
        if let Err(e) = store.register(manifest(&format!("b{i}"), &big), "t", false, 1).await {
            refused = Some(e);
            break;
        }
    }
    assert_eq!(refused, Some(StoreError::DiskFull));
    assert!(store.registered(&key("a")).unwrap().is_some(), "reads go on");
    limit(1_000_000).unwrap();
    store.register(manifest("c", "x"), "t", false, 2).await.unwrap();
}

#[tokio::test]
async fn vectors_come_back_and_bad_rows_heal() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let hash = |i: usize| ContentHash::of_text(&format!("text {i}"));
    let vector = |i: usize| StoredVector { vector: vec![i as f32 * 0.5, -1.0, 0.25].into(), tokens: i as u32, truncated: i == 2 };
    store.put_vectors("m1", (0..3).map(|i| (hash(i), vector(i))).collect()).await.unwrap();
    store.put_vectors("m2", vec![(hash(0), vector(7))]).await.unwrap();
    let got = store.vectors("m1", 3, &[hash(2), hash(9), hash(0)]).unwrap();
    assert_eq!(got, [Some(vector(2)), None, Some(vector(0))]);
    assert_eq!(store.vectors("m2", 3, &[hash(0), hash(1)]).unwrap(), [Some(vector(7)), None], "models are kept apart");
    assert_eq!(store.vectors("m3", 3, &[hash(0)]).unwrap(), [None]);
    assert_eq!(store.vectors("m1", 4, &[hash(0)]).unwrap(), [None], "another dimension is no vector");
    assert_eq!(store.vector_counts().unwrap(), [("m1".into(), 3), ("m2".into(), 1)]);
    store.writer.write(|c| Ok(c.execute("UPDATE vectors SET crc = crc + 1", [])?)).await.unwrap();
    assert_eq!(store.vectors("m1", 3, &[hash(0)]).unwrap(), [None], "a wrong checksum is no vector");
    store.put_vectors("m1", vec![(hash(0), vector(0))]).await.unwrap();
    assert_eq!(store.vectors("m1", 3, &[hash(0)]).unwrap(), [Some(vector(0))]);
    assert_eq!(store.forget_vectors("m1", 2).await.unwrap(), 2);
    assert_eq!(store.forget_vectors("m1", 2).await.unwrap(), 1);
    assert_eq!(store.forget_vectors("m1", 2).await.unwrap(), 0);
    assert_eq!(store.vector_counts().unwrap(), [("m2".into(), 1)]);
}

fn decision(i: i64, at_ms: i64) -> DecisionRecord {
    DecisionRecord {
        id: format!("d{i}"),
        at_ms,
        caller: "c".into(),
        kind: DecisionKind::Suggest,
        text: (i % 2 == 0).then(|| format!("query {i}")),
        body: json!({"candidates": [i, "x".repeat(200)]}),
    }
}

#[tokio::test]
async fn decisions_export_in_order_and_are_forgotten_by_age_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // several a millisecond, more than a page, not in order
    let records: Vec<_> = (0..950).map(|i| decision(i, 1000 + (i * 7) % 100)).collect();
    store.log_decisions(records.clone()).await.unwrap();
    store.log_decisions(vec![decision(5, 99)]).await.unwrap();
    assert_eq!(store.decision("d5").unwrap().unwrap(), records[5], "a known id is not written again");
    assert_eq!(store.decision("zzz").unwrap(), None);
    let all: Vec<_> = store.export_decisions(0, i64::MAX).map(|r| r.unwrap()).collect();
    assert_eq!(all.len(), 950);
    assert!(all.is_sorted_by_key(|r| r.at_ms));
    let inside = records.iter().filter(|r| (1010..1020).contains(&r.at_ms)).count();
    assert_eq!(store.export_decisions(1010, 1020).count(), inside);
    let span = store.decisions_span().unwrap();
    assert_eq!((span.records, span.oldest_ms, span.newest_ms), (950, Some(1000), Some(1099)));
    assert!(span.bytes < 950 * 300, "compressed: {span:?}");
    let old = records.iter().filter(|r| r.at_ms < 1050).count() as u64;
    assert_eq!(store.prune_decisions(Retention { age_ms: 50, bytes: u64::MAX }, 1100).await.unwrap(), old);
    let half = Retention { age_ms: i64::MAX, bytes: span.bytes / 4 };
    assert!((200..300).contains(&store.prune_decisions(half, 1100).await.unwrap()));
    let left = store.decisions_span().unwrap();
    assert!(left.bytes <= half.bytes && left.newest_ms == Some(1099), "{left:?}");
    assert_eq!(store.prune_decisions(half, 1100).await.unwrap(), 0);
    assert!(store.forget_texts(2000).await.unwrap() > 50);
    assert!(store.export_decisions(0, i64::MAX).all(|r| r.unwrap().text.is_none()));
}

#[tokio::test]
async fn a_logged_decision_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.log_decisions(vec![decision(1, 1)]).await.unwrap();
    assert_eq!(store.decision("d1").unwrap(), Some(decision(1, 1)));
    drop(store);
    assert_eq!(open(folder.path()).decisions_span().unwrap().records, 1);
}

/// Format 1, written down once: it opens for ever.
#[test]
fn a_store_of_format_1_opens() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store_v1.sql")).unwrap();
    Connection::open(folder.path().join(FILE)).unwrap().execute_batch(&fixture).unwrap();
    let store = open(folder.path());
    let loaded = store.load_registry().unwrap();
    assert_eq!((loaded.agents.len(), loaded.damaged.as_slice(), loaded.generation), (1, [].as_slice(), 3));
    assert_eq!((&*loaded.agents[0].owner, loaded.agents[0].draining), ("team", true));
    assert_eq!(store.versions(&key("a")).unwrap().len(), 2);
    let text = ContentHash::of_text("refund");
    assert_eq!(store.vectors("m", 2, &[text]).unwrap()[0].as_ref().unwrap().vector.as_ref(), [0.6, -0.8]);
    let decision = store.decision("d1").unwrap().unwrap();
    assert_eq!((decision.kind, decision.text.as_deref(), decision.body), (DecisionKind::Auto, Some("退款"), json!({"k": 1})));
}

/// Prints the fixture of the newest format: `cargo test --lib print_fixture -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "writes a new fixture, for a new format"]
async fn print_fixture() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(manifest("a", "one"), "team", false, 1).await.unwrap();
    store.register(manifest("a", "two"), "team", false, 2).await.unwrap();
    store.set_draining(&key("a"), true, 3).await.unwrap();
    let vector = StoredVector { vector: vec![0.6, -0.8].into(), tokens: 3, truncated: false };
    store.put_vectors("m", vec![(ContentHash::of_text("refund"), vector)]).await.unwrap();
    let decision =
        DecisionRecord { kind: DecisionKind::Auto, text: Some("退款".into()), id: "d1".into(), body: json!({"k": 1}), ..decision(1, 5) };
    store.log_decisions(vec![decision]).await.unwrap();
    drop(store);
    println!("PATH {}", folder.keep().join(FILE).display());
}

/// A store that turned read-only says so, takes no more writes, and is read all the same.
#[tokio::test]
async fn a_read_only_disk_is_named_and_reads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(manifest("a", "x"), "t", false, 1).await.unwrap();
    store.writer.write(|c| Ok(c.pragma_update(None, "query_only", true)?)).await.unwrap();
    for _ in 0..2 {
        let refused = store.register(manifest("b", "x"), "t", false, 2).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Io(why) if why.contains("readonly")), "{refused}");
    }
    assert!(store.registered(&key("a")).unwrap().is_some());
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.load_registry().unwrap().agents.len(), 1, "what was answered is there, what was refused is not");
    store.register(manifest("b", "x"), "t", false, 2).await.unwrap();
}

/// A folder in which nothing can be made is named.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_takes_no_files_is_named() {
    let error = opened_err(Path::new("/proc/self/reach"));
    assert!(matches!(&error, StoreError::Folder { path, .. } if path.contains("/proc/self/reach")), "{error}");
    assert!(error.to_string().contains("--data"));
}

/// A start that died before its store was whole leaves nothing that looks like one.
#[test]
fn a_first_start_that_died_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    put_file(&folder.path().join(format!("{FILE}-new")), b"half a header");
    put_file(&folder.path().join(format!("{FILE}-new-wal")), b"half a log");
    assert_eq!(open(folder.path()).load_registry().unwrap().generation, 0);
    assert!(!folder.path().join(format!("{FILE}-new")).exists());
}

/// A start that is refused changes nothing: it is refused for the same reason the next time, and what it was refused for can be mended.
#[tokio::test]
async fn a_refused_start_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(manifest("a", "x"), "t", false, 1).await.unwrap();
    // as a killed process leaves it
    let image = tempfile::tempdir().unwrap();
    for name in ["", "-wal", "-mark"] {
        std::fs::copy(folder.path().join(format!("{FILE}{name}")), image.path().join(format!("{FILE}{name}"))).unwrap();
    }
    let file = image.path().join(FILE);
    let newer = |n: i64| {
        let c = Connection::open(&file).unwrap();
        c.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        c.pragma_update(None, "user_version", n).unwrap();
    };
    newer(999);
    for _ in 0..3 {
        assert!(matches!(opened_err(image.path()), StoreError::NewerFormat { found: 999, .. }));
    }
    newer(schema::newest());
    for durability in [Durability::Process, Durability::Full, Durability::Full] {
        let store = Store::open(image.path(), durability).unwrap();
        assert_eq!(store.load_registry().unwrap().agents.len(), 1);
        store.set_meta("k", "v").await.unwrap();
    }
}
