//! Files that change at rest or are cut off: what was acknowledged is there, or the fault is named. Never a panic, never silence.

use crate::harness::{agent, key};
use agent_reach::dispatch::port::{Filter, MessageStore, Write, Wrote, record, submission};
use agent_reach::dispatch::sqlite::SqliteMessages;
use agent_reach::store::{Durability, FILE, LOCK, OutcomeQuery, Store, StoreError};
use agent_reach::types::envelope::{RawPayload, ReachId, Source, SubmitRequest};
use agent_reach::types::manifest_check::{Rules, check};
use agent_reach::types::message::{Event, Reply};
use agent_reach::types::{CapKey, Manifest, Outcome, Principal, Verdict};
use std::path::Path;
use std::sync::Arc;

const MESSAGES: u128 = 18;
const NOW: i64 = 1_767_578_400_000;

fn manifest(id: &str, text: &str) -> Arc<Manifest> {
    Arc::new(check(&agent("orders", id, &[("refund_create", text)]), &Rules::default()).unwrap().manifest)
}

fn submit(n: u128) -> Write {
    let r = SubmitRequest {
        intent: Some("pay".into()),
        idempotency_key: n.is_multiple_of(2).then(|| format!("key-{n}")),
        message_id: n.is_multiple_of(3).then(|| format!("order-{n}")),
        payload: Some(Box::new(RawPayload(format!("{{\"amount\": {n}, \"note\": \"refund the order as agreed\"}}")))),
        biz_tags: [("order".to_string(), format!("o{}", n % 4))].into(),
        ..SubmitRequest::default()
    };
    let routed = Event::Routed {
        agent: key("orders", "a1"),
        capability: Arc::from("pay"),
        score: 0.5,
        probability: 0.5,
        decision_id: Arc::from("d"),
        source: Source::Client,
    };
    let e = r.check(Principal::local("caller"), NOW, ReachId(n)).unwrap();
    submission(NOW, e, vec![Event::Routing { exclude: vec![] }, routed]).unwrap()
}

fn outcome(n: i64) -> Outcome {
    Outcome {
        id: format!("outcome-{n}"),
        at_ms: NOW + n,
        decision_id: None,
        text: Some(format!("please refund order {n}")),
        tenant: None,
        caller: "caller".into(),
        reporter: "caller".into(),
        own: false,
        scope: "*".into(),
        verdict: Verdict::Adopted,
        chosen: Some(CapKey::new(key("orders", "a1"), "refund_create")),
        correct: None,
        previous: None,
    }
}

fn open(folder: &Path, durability: Durability) -> Result<Arc<Store>, String> {
    Store::open(folder, durability).map(Arc::new).map_err(|e| e.to_string())
}

async fn a_message(messages: &SqliteMessages, n: u128) {
    assert_eq!(messages.commit(vec![submit(n)]).await.unwrap(), [Wrote::Stored]);
    let events = [
        Event::Leased { until_ms: NOW + 30_000 },
        Event::Delivered { delivery: 1 },
        Event::Accepted { delivery: 1, until_ms: NOW + 30_000, task: None },
        Event::Acked { delivery: 1, reply: Reply::default() },
        Event::HandedBack,
    ];
    for event in events.into_iter().take(n as usize % 6) {
        record(messages, NOW + 10, ReachId(n), event).await.unwrap().unwrap();
    }
}

/// A small store of everything that is acknowledged to somebody.
async fn fill(store: &Arc<Store>) {
    for (id, text) in [("a1", "refunds an order"), ("a2", "tracks a parcel"), ("a3", "writes a mail"), ("a1", "refunds an order at once")] {
        store.register(manifest(id, text), "team", false, NOW).await.unwrap();
    }
    store.set_draining(&key("orders", "a2"), true, NOW).await.unwrap();
    store.deregister(&key("orders", "a3"), "team", false, NOW).await.unwrap();
    store.set_meta("policy.active", "3").await.unwrap();
    store.put_outcomes((0..12).map(outcome).collect()).await.unwrap();
    let messages = SqliteMessages::new(store.clone());
    for n in 1..=MESSAGES {
        a_message(&messages, n).await;
    }
}

/// Everything that was acknowledged, as a restarted service would read it; or the fault in words.
async fn held(folder: &Path) -> Result<Vec<String>, String> {
    let store = open(folder, Durability::Process)?;
    let words = |e: &dyn std::fmt::Display| e.to_string();
    let loaded = store.load_registry().map_err(|e| words(&e))?;
    if let Some((agent, why)) = loaded.damaged.first() {
        return Err(format!("{agent}: {why}"));
    }
    let mut all: Vec<String> = loaded.agents.iter().map(|a| format!("{a:?}")).collect();
    all.push(format!("{:?}", store.versions(&key("orders", "a1")).map_err(|e| words(&e))?));
    all.push(format!("{:?}", store.meta("policy.active").map_err(|e| words(&e))?));
    all.push(format!("{:?}", store.outcomes(&OutcomeQuery::default(), 100).map_err(|e| words(&e))?));
    // an id stays with its owner, registered or not
    let taken = store.register(manifest("a3", "steals"), "thief", false, NOW).await;
    all.push(match taken {
        Err(StoreError::OtherOwner(agent)) => agent,
        Err(e) => return Err(words(&e)),
        Ok(_) => "stolen".into(),
    });
    let messages = SqliteMessages::new(store);
    all.push(format!("{:?}", messages.open(None, 100).await.map_err(|e| words(&e))?));
    all.push(format!("{:?}", messages.list(Filter { limit: 100, ..Filter::default() }).await.map_err(|e| words(&e))?));
    let tags = vec![("order".to_string(), "o1".to_string())];
    all.push(format!("{:?}", messages.list(Filter { limit: 100, tags, ..Filter::default() }).await.map_err(|e| words(&e))?));
    for n in 1..=MESSAGES {
        all.push(format!("{:?}", messages.log(ReachId(n)).await.map_err(|e| words(&e))?));
    }
    for n in [2, 6, 10] {
        // the same key again finds the message
        let again = messages.commit(vec![submit(n)]).await.map_err(|e| words(&e))?;
        all.push(match &again[..] {
            [Wrote::Existing(m)] => format!("{:?}", m.id()),
            other => format!("not found by its key: {other:?}"),
        });
    }
    Ok(all)
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |e: std::fs::DirEntry| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap());
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| read(e.unwrap())).collect();
    all.sort();
    all
}

fn put(folder: &Path, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        std::fs::File::create(folder.join(name)).and_then(|mut f| std::io::Write::write_all(&mut f, bytes)).unwrap();
    }
}

async fn held_of(files: &[(String, Vec<u8>)]) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), files);
    held(folder.path()).await
}

fn sound(what: &str, whole: &[String], got: Result<Vec<String>, String>) -> bool {
    match got {
        Ok(got) => {
            let first = got.iter().zip(whole).find(|(a, b)| a != b);
            assert!(first.is_none(), "{what}: silently other than it was: {first:?}");
            true
        }
        Err(words) => {
            let named =
                ["damaged", "is not a store", "has format", "checksum", "hash", "malformed", "not readable", "gone", "does not parse"];
            assert!(named.iter().any(|n| words.contains(n)), "{what}: the fault is not named: {words}");
            false
        }
    }
}

/// A small sequence of numbers, the same each time.
struct Seeds(u64);

impl Seeds {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// The files of a store that was closed, and of one that was killed.
async fn images() -> [Vec<(String, Vec<u8>)>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Durability::Full).unwrap();
    fill(&store).await;
    // the files as a killed process leaves them
    let killed = files(folder.path());
    drop(store);
    [files(folder.path()), killed]
}

#[tokio::test]
async fn flipped_bits_change_nothing_or_are_named() {
    let mut seeds = Seeds(7);
    for (image, what) in images().await.into_iter().zip(["closed", "killed"]) {
        let whole = held_of(&image).await.unwrap();
        let mut named = 0;
        for (at, (name, bytes)) in image.iter().enumerate().filter(|(_, f)| !f.1.is_empty()) {
            // pages are mostly empty: two flips of three go where something is written
            let written: Vec<usize> = bytes.iter().enumerate().filter(|(_, b)| **b != 0).map(|(i, _)| i).collect();
            let count = match name.as_str() {
                LOCK => 3,
                _ if bytes.len() < 64 => bytes.len(),
                _ => 64,
            };
            for n in 0..count {
                let place = match (count < 64, n % 3) {
                    (true, _) => n % bytes.len(),
                    (false, 0) => seeds.below(bytes.len()),
                    (false, _) => written[seeds.below(written.len())],
                };
                let mut files = image.clone();
                files[at].1[place] ^= 1 << seeds.below(8);
                named += usize::from(!sound(&format!("{what}: {name} at {place}"), &whole, held_of(&files).await));
            }
            // the beginning says what kind of file it is
            for place in (0..bytes.len().min(100)).step_by(3) {
                let mut files = image.clone();
                files[at].1[place] ^= 1 << seeds.below(8);
                named += usize::from(!sound(&format!("{what}: {name} at {place}"), &whole, held_of(&files).await));
            }
        }
        assert!(named > 20, "{what}: flips that matter were among them: {named}");
    }
}

/// A file that is there and empty is not a new store; one that is missing beside its own log is not, either.
#[tokio::test]
async fn empty_cut_and_missing_files_are_named() {
    let [closed, killed] = images().await;
    let whole = held_of(&closed).await.unwrap();
    for image in [&closed, &killed] {
        let db = image.iter().position(|f| f.0 == FILE).unwrap();
        for length in [0, 1, 100, 511, 512, 4096, 8192, image[db].1.len() / 2, image[db].1.len() - 1] {
            let mut files = image.clone();
            files[db].1.truncate(length);
            let got = held_of(&files).await;
            let kept = sound(&format!("cut to {length}"), &whole, got.clone());
            assert!(!kept || length >= 4096, "cut to {length} bytes");
            if length < 512 {
                let words = got.unwrap_err();
                assert!(words.contains(FILE) && words.contains("cut off") && words.contains("restore a copy"), "{words}");
            }
        }
    }
    let without = |name: &str| killed.iter().filter(|f| f.0 != name).cloned().collect::<Vec<_>>();
    assert!(held_of(&without(FILE)).await.unwrap_err().contains("it is missing"));
    assert!(held_of(&without(&format!("{FILE}-wal"))).await.unwrap_err().contains("reach.db-wal is missing"));
    // nothing at all, or a lock alone, is a new store
    let lock: Vec<_> = closed.iter().filter(|f| f.0 == LOCK).cloned().collect();
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), &lock);
    assert!(open(folder.path(), Durability::Process).unwrap().load_registry().unwrap().agents.is_empty());
}

/// A crash in the middle of any commit: its log written up to any place. What was answered before is there.
#[tokio::test]
async fn a_commit_that_is_cut_anywhere_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Durability::Full).unwrap();
    let messages = SqliteMessages::new(store.clone());
    let mut seeds = Seeds(3);
    let mut before = files(folder.path());
    for n in 1..=12u128 {
        messages.commit(vec![submit(n)]).await.unwrap();
        let after = files(folder.path());
        let log = after.iter().position(|f| f.0.ends_with("-wal")).unwrap();
        let start = before.iter().find(|f| f.0.ends_with("-wal")).map_or(0, |f| f.1.len());
        for _ in 0..6 {
            let cut = start + seeds.below(after[log].1.len() - start + 1);
            // the next commit has reached the log in part, and nothing else
            let mut files = before.clone();
            files.retain(|f| !f.0.ends_with("-wal") && !f.0.ends_with("-shm"));
            files.push((after[log].0.clone(), after[log].1[..cut].to_vec()));
            let folder = tempfile::tempdir().unwrap();
            put(folder.path(), &files);
            let messages = SqliteMessages::new(open(folder.path(), Durability::Process).unwrap_or_else(|e| panic!("{n}: {e}")));
            let there = messages.list(Filter { limit: 100, ..Filter::default() }).await.unwrap().messages.len();
            assert!(there >= n as usize - 1, "{} answered, {there} there, cut at {cut}", n - 1);
        }
        // cut before what was answered: that is no crash, and it is named
        let mut files = after.clone();
        let short = files[log].1.len() - 1 - seeds.below(4_000);
        files[log].1.truncate(short);
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), &files);
        let words = open(folder.path(), Durability::Process).err().expect("an answered commit is gone");
        assert!(words.contains("its log reach.db-wal is"), "{words}");
        before = after;
    }
}
