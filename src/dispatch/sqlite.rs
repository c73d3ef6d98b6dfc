//! The message store on SQLite: the port over `store::Store`.
//!
//! Commits go to the store's writer thread, where whatever waits shares one sync; reads go to its reading connections on blocking threads.
//! Not here: tables and statements (`store::messages`).

use crate::dispatch::port::{Filter, MessageStore, Page, Pending, Retention, Scope, StoreError, Write, Wrote};
use crate::store::{Store, StoreError as Fault};
use crate::types::envelope::ReachId;
use crate::types::message::{Entry, Message, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct SqliteMessages(Arc<Store>);

impl SqliteMessages {
    /// Messages in `store`.
    pub fn new(store: Arc<Store>) -> Self {
        Self(store)
    }

    fn read<T: Send + 'static>(&self, f: impl FnOnce(&Store) -> Result<T, Fault> + Send + 'static) -> Pending<T> {
        let store = self.0.clone();
        let work = tokio::task::spawn_blocking(move || f(&store));
        Box::pin(async move { work.await.map_err(|_| StoreError::Io("a read panicked".into()))?.map_err(fault) })
    }
}

fn fault(e: Fault) -> StoreError {
    match e {
        Fault::Overloaded | Fault::Closed => StoreError::Refusing(e.to_string()),
        Fault::Folder { .. } | Fault::Locked { .. } | Fault::NotAStore { .. } | Fault::NewerFormat { .. } | Fault::Damaged { .. } => {
            StoreError::Io(e.to_string())
        }
        Fault::Row { .. } | Fault::DiskFull | Fault::Io(_) | Fault::OtherOwner(_) | Fault::Internal(_) => StoreError::Io(e.to_string()),
    }
}

impl MessageStore for SqliteMessages {
    fn commit(&self, writes: Vec<Write>) -> Pending<Vec<Wrote>> {
        let (store, writes) = (self.0.clone(), Arc::new(writes));
        let queue = move || {
            let (tell, told) = oneshot::channel();
            // the caller may have left: then nobody wants the answer
            store.write_messages(writes.clone(), move |result| drop(tell.send(result))).map(|()| told)
        };
        let first = queue();
        Box::pin(async move {
            let mut queued = first;
            loop {
                match queued {
                    Ok(told) => return told.await.unwrap_or(Err(Fault::Closed)).map_err(fault),
                    // others fill the writer's queue: nothing of this was written
                    Err(Fault::Overloaded) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(e) => return Err(fault(e)),
                }
                queued = queue();
            }
        })
    }

    fn get(&self, id: ReachId) -> Pending<Option<Message>> {
        self.read(move |s| s.message(id))
    }

    fn find(&self, scope: Scope) -> Pending<Option<Message>> {
        self.read(move |s| s.message_of_key(&scope))
    }

    fn find_id(&self, owner: Arc<str>, message_id: Arc<str>) -> Pending<Option<Message>> {
        self.read(move |s| s.message_of_id(&owner, &message_id))
    }

    fn log(&self, id: ReachId) -> Pending<Vec<Entry>> {
        self.read(move |s| s.message_log(id))
    }

    fn open(&self, after: Option<i64>, limit: usize) -> Pending<Page> {
        self.read(move |s| s.open_messages(after, limit))
    }

    fn list(&self, filter: Filter) -> Pending<Page> {
        self.read(move |s| s.list_messages(&filter))
    }

    fn counts(&self) -> Pending<BTreeMap<State, u64>> {
        self.read(Store::message_counts)
    }

    fn prune(&self, now_ms: i64, keep: Retention, limit: usize) -> Pending<u64> {
        let store = self.0.clone();
        Box::pin(async move { store.prune_messages(now_ms, keep, limit).await.map_err(fault) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::memory::MemoryStore;
    use crate::dispatch::port::{record, submission};
    use crate::dispatch::state::tests::agent;
    use crate::store::Durability;
    use crate::types::Principal;
    use crate::types::envelope::{RawPayload, Source, SubmitRequest};
    use crate::types::message::{Cause, DeadTag, Event, Reply};
    use proptest::prelude::*;

    fn store(folder: &std::path::Path) -> SqliteMessages {
        SqliteMessages::new(Arc::new(Store::open(folder, Durability::Process).unwrap()))
    }

    fn message(now: i64, id: u128, key: Option<u8>, body: u8, own_id: Option<u8>) -> Write {
        let r = SubmitRequest {
            intent: Some("pay".into()),
            idempotency_key: key.map(|k| format!("k{k}")),
            message_id: own_id.map(|k| format!("m{k}")),
            payload: Some(Box::new(RawPayload(format!("{{\"n\": {body}}}")))),
            biz_tags: [("order".to_string(), format!("{}", body % 2))].into(),
            ..Default::default()
        };
        let e = r.check(Principal::local(if body.is_multiple_of(3) { "x" } else { "y" }), now, ReachId(id)).unwrap();
        let routed = Event::Routed {
            agent: agent(if body.is_multiple_of(2) { "even" } else { "odd" }),
            capability: Arc::from("pay"),
            score: 0.5,
            probability: 0.5,
            decision_id: Arc::from("d"),
            source: Source::Client,
        };
        submission(now, e, vec![Event::Routing { exclude: vec![] }, routed]).unwrap()
    }

    #[derive(Clone, Debug)]
    enum Op {
        Submit { key: Option<u8>, body: u8, own_id: Option<u8> },
        Event { pick: u8, event: Event },
        Stale { pick: u8 },
        Prune,
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let event = prop_oneof![
            Just(Event::Leased { until_ms: 9 }),
            Just(Event::Delivered { delivery: 1 }),
            Just(Event::Acked { delivery: 1, reply: Reply::default() }),
            Just(Event::HandedBack),
            Just(Event::Nacked { delivery: 1, cause: Cause::Nack, reason: Arc::from("n"), retry_after_ms: None }),
            Just(Event::Requeued { source: Source::Retry }),
            Just(Event::Dead { tag: DeadTag::TtlExpired, reason: Arc::from("late") }),
        ];
        prop_oneof![
            3 => (proptest::option::of(0u8..4), 0u8..4, proptest::option::of(0u8..4)).prop_map(|(key, body, own_id)| Op::Submit { key, body, own_id }),
            6 => (any::<u8>(), event).prop_map(|(pick, event)| Op::Event { pick, event }),
            1 => any::<u8>().prop_map(|pick| Op::Stale { pick }),
            1 => Just(Op::Prune),
        ]
    }

    async fn drive(ops: Vec<(Op, u32)>) {
        let folder = tempfile::tempdir().unwrap();
        let (mut real, toy) = (store(folder.path()), MemoryStore::default());
        let (mut now, mut ids) = (1_000_000i64, Vec::<ReachId>::new());
        for (n, (op, pause)) in ops.into_iter().enumerate() {
            now += i64::from(pause);
            match op {
                Op::Submit { key, body, own_id } => {
                    let w = message(now, n as u128 + 1, key, body, own_id);
                    let a = real.commit(vec![w.clone()]).await.unwrap();
                    let b = toy.commit(vec![w.clone()]).await.unwrap();
                    assert_eq!(a, b, "submit {n}");
                    if a == vec![Wrote::Stored] {
                        ids.push(w.id());
                    }
                }
                Op::Event { pick, event } => {
                    let Some(id) = ids.get(usize::from(pick) % ids.len().max(1)).copied() else { continue };
                    let a = record(&real, now, id, event.clone()).await;
                    let b = record(&toy, now, id, event).await;
                    assert_eq!(a.map_err(|e| e.code), b.map_err(|e| e.code));
                }
                Op::Stale { pick } => {
                    let Some(id) = ids.get(usize::from(pick) % ids.len().max(1)).copied() else { continue };
                    let Some(m) = toy.get(id).await.unwrap() else { continue };
                    let w = Write::Record { id, from_seq: m.head.seq + 1, head: m.head, log: vec![] };
                    assert_eq!(real.commit(vec![w]).await.unwrap(), vec![Wrote::Moved]);
                }
                Op::Prune => {
                    let keep = Retention { keep_ms: 2 * 3_600_000, keep_dead_ms: 3 * 3_600_000, most: u64::MAX };
                    assert_eq!(real.prune(now, keep, 2).await.unwrap(), toy.prune(now, keep, 2).await.unwrap());
                }
            }
            if n % 40 == 39 {
                drop(real);
                real = store(folder.path());
            }
        }
        for id in &ids {
            assert_eq!(real.get(*id).await.unwrap(), toy.get(*id).await.unwrap());
            assert_eq!(real.log(*id).await.unwrap(), toy.log(*id).await.unwrap());
        }
        assert_eq!(real.counts().await.unwrap(), toy.counts().await.unwrap());
        assert_eq!(real.open(None, 1_000).await.unwrap().messages, toy.open(None, 1_000).await.unwrap().messages);
        let tag = |v: &str| Some(("order".to_string(), v.to_string()));
        for filter in [
            Filter { limit: 3, ..Filter::default() },
            Filter { limit: 100, state: Some(State::DeadLetter), ..Filter::default() },
            Filter { limit: 100, tags: tag("1").into_iter().collect(), ..Filter::default() },
            Filter { limit: 100, agent: Some(agent("even")), owner: Some(Arc::from("x")), ..Filter::default() },
            Filter { limit: 100, namespaces: Some(vec![agent("even").namespace]), owner: Some(Arc::from("z")), ..Filter::default() },
            Filter { limit: 100, since_ms: Some(1_500_000), until_ms: Some(9_000_000), ..Filter::default() },
        ] {
            assert_eq!(real.list(filter.clone()).await.unwrap().messages, toy.list(filter).await.unwrap().messages);
        }
        for owner in ["x", "y"] {
            for own in 0..4 {
                let (owner, id) = (Arc::<str>::from(owner), Arc::<str>::from(format!("m{own}")));
                assert_eq!(real.find_id(owner.clone(), id.clone()).await.unwrap(), toy.find_id(owner, id).await.unwrap());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..Default::default() })]
        #[test]
        fn does_what_the_toy_does(ops in proptest::collection::vec((any_op(), 0u32..3_000_000), 1..90)) {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(drive(ops));
        }
    }

    #[tokio::test]
    async fn of_two_concurrent_submits_with_one_key_one_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let s = store(folder.path());
        let (a, b) = tokio::join!(s.commit(vec![message(0, 1, Some(1), 1, None)]), s.commit(vec![message(0, 2, Some(1), 1, None)]));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a, vec![Wrote::Stored]);
        assert!(matches!(&b[..], [Wrote::Existing(m)] if m.id() == ReachId(1)));
        assert_eq!(s.commit(vec![message(0, 3, Some(1), 4, None)]).await.unwrap(), vec![Wrote::Conflict(ReachId(1))]);
    }
}
