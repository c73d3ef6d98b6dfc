//! The service over a store whose n-th commit fails, for every n: before it is written, or after (written, and an error all the same).

use super::tests::{ask, me, pull, sqlite, start};
use super::*;
use crate::dispatch::engine::Receipt;
use crate::dispatch::port::{Filter, Page, Pending, Retention, Scope, StoreError, Target, Write, Wrote};
use crate::types::envelope::SubmitRequest;
use crate::types::message::{Entry, Reply};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// When a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Before,
    After,
}

/// A store that works but for one commit.
struct Unreliable {
    inner: Arc<dyn MessageStore>,
    commits: Arc<AtomicU64>,
    at: u64,
    how: Fails,
}

impl MessageStore for Unreliable {
    fn commit(&self, writes: Vec<Write>) -> Pending<Vec<Wrote>> {
        let n = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        let failed = || Err(StoreError::Io("on purpose".into()));
        if n != self.at {
            return self.inner.commit(writes);
        }
        match self.how {
            Fails::Before => Box::pin(async move { failed() }),
            Fails::After => {
                let written = self.inner.commit(writes);
                Box::pin(async move { written.await.and_then(|_| failed()) })
            }
        }
    }

    fn get(&self, id: ReachId) -> Pending<Option<Message>> {
        self.inner.get(id)
    }

    fn find(&self, scope: Scope) -> Pending<Option<Message>> {
        self.inner.find(scope)
    }

    fn find_id(&self, owner: Arc<str>, message_id: Arc<str>) -> Pending<Option<Message>> {
        self.inner.find_id(owner, message_id)
    }

    fn log(&self, id: ReachId) -> Pending<Vec<Entry>> {
        self.inner.log(id)
    }

    fn open(&self, after: Option<i64>, limit: usize) -> Pending<Page> {
        self.inner.open(after, limit)
    }

    fn list(&self, filter: Filter) -> Pending<Page> {
        self.inner.list(filter)
    }

    fn counts(&self) -> Pending<BTreeMap<State, u64>> {
        self.inner.counts()
    }

    fn prune(&self, now_ms: i64, keep: Retention, limit: usize) -> Pending<u64> {
        self.inner.prune(now_ms, keep, limit)
    }
}

/// An agent whose lease ends soon, so that a delivery which was written and never sent comes again soon.
fn quick() -> Target {
    Target { processing: Some(Duration::from_secs(1)), hint: Some(Duration::from_millis(100)), idempotent: true, ..pull("a") }
}

/// An agent that repeats each receipt until it is taken, as a careful agent does.
fn careful(d: &Dispatcher, tasks: &Tasks) {
    let target = quick();
    let mut work = d.work(&target);
    let d = d.clone();
    tasks.spawn(Stage::Work, "test-careful", async move {
        work.demand(10);
        while let Some(told) = work.recv().await {
            if let Pulled::Work(w) = told {
                while d.receipt(&target.agent, w.id, w.delivery, Receipt::Acked(Reply::default())).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                work.demand(1);
            }
        }
    });
}

/// Waits until the message is over, also across a store that failed meanwhile.
async fn over(d: &Dispatcher, id: ReachId) -> Message {
    for _ in 0..100 {
        if let Ok(m) = d.wait(id, Duration::from_secs(5)).await
            && m.head.state.is_terminal()
        {
            return m;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("message {id} never ends");
}

/// A message that is submitted until it is acknowledged, as a careful caller does; how many commits that took.
async fn history(at: u64, how: Fails) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let commits = Arc::new(AtomicU64::new(0));
    let store = Arc::new(Unreliable { inner: sqlite(folder.path()), commits: commits.clone(), at, how });
    let (d, tasks) = start(store, vec![quick()]).await;
    careful(&d, &tasks);
    let id = loop {
        match d.submit(me(), SubmitRequest { ttl_ms: Some(600_000), timeout_ms: Some(1_000), ..ask(Some("key")) }).await {
            Ok(taken) => break taken.message.id(),
            Err(e) => assert_eq!(e.code, crate::error::Code::Overloaded, "commit {at}, {how:?}: {e}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let done = over(&d, id).await;
    assert_eq!(done.head.state, State::Done, "commit {at}, {how:?}: acknowledged, and it did not end well");
    let kept = d.counts().await.unwrap();
    assert_eq!(kept.values().sum::<u64>(), 1, "commit {at}, {how:?}: one message a key: {kept:?}");
    commits.load(Ordering::SeqCst)
}

#[tokio::test]
async fn any_commit_may_fail_and_nothing_acknowledged_is_lost() {
    let commits = history(0, Fails::Before).await;
    assert!(commits >= 3, "{commits}");
    for n in 1..=commits {
        for how in [Fails::Before, Fails::After] {
            assert!(history(n, how).await >= n, "commit {n} was reached");
        }
    }
}
