//! A message store in memory: the toy that the real one is compared with, and the store of simulations.
//!
//! It can fail on purpose: refuse, fail before a write, fail *after* it (written but not acknowledged), lose everything since the last sync.
//! Invariant: acknowledged ⇒ there. Cost: maps; listing walks everything. Not here: durability.

use crate::dispatch::dedup::{Scope, Seen, Window};
use crate::dispatch::port::{Filter, MessageStore, Page, Pending, Retention, StoreError, Write, Wrote};
use crate::types::envelope::ReachId;
use crate::types::message::{Entry, Message, State};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How the next commit goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Nothing is written, an error comes.
    Before,
    /// Everything is written, and an error comes all the same.
    After,
    /// The first half is written, an error comes.
    Half,
}

#[derive(Clone, Default)]
struct Inner {
    order: i64,
    messages: BTreeMap<ReachId, (i64, Message, Vec<Entry>)>,
    by_order: BTreeMap<i64, ReachId>,
    window: Window,
    newest: HashMap<(Arc<str>, Arc<str>), ReachId>,
    scopes: HashMap<Scope, ReachId>,
    mischief: Option<Mischief>,
    planned: Option<(u64, Mischief)>,
    refusing: bool,
    commits: u64,
}

/// The store. Cheap to clone; clones share their content.
#[derive(Clone, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
}

impl MemoryStore {
    /// Makes the next commit go wrong.
    pub fn mischief(&self, how: Mischief) {
        self.inner.lock().mischief = Some(how);
    }

    /// Makes the `n`-th commit from the beginning go wrong, counted from 1.
    pub fn mischief_at(&self, n: u64, how: Mischief) {
        self.inner.lock().planned = Some((n, how));
    }

    /// Opens it again after an error: what was written is there.
    pub fn reopen(&self) {
        let mut inner = self.inner.lock();
        inner.refusing = false;
        inner.mischief = None;
    }

    /// Commits so far.
    pub fn commits(&self) -> u64 {
        self.inner.lock().commits
    }

    /// Commits at once.
    pub fn commit_now(&self, writes: Vec<Write>) -> Result<Vec<Wrote>, StoreError> {
        let mut inner = self.inner.lock();
        if inner.refusing {
            return Err(StoreError::Refusing("an earlier error".into()));
        }
        inner.commits += 1;
        let planned = inner.planned.filter(|(n, _)| *n == inner.commits).map(|(_, how)| how);
        let mischief = inner.mischief.take().or(planned);
        inner.refusing = mischief.is_some();
        let all = writes.len();
        let take = match mischief {
            Some(Mischief::Before) => 0,
            Some(Mischief::Half) => all / 2,
            Some(Mischief::After) | None => all,
        };
        let wrote = writes.into_iter().take(take).map(|w| inner.apply(w)).collect();
        if mischief.is_some() { Err(StoreError::Io("on purpose".into())) } else { Ok(wrote) }
    }

    /// Every message, in the order they came, with its log.
    pub fn all(&self) -> Vec<(Message, Vec<Entry>)> {
        let inner = self.inner.lock();
        inner.by_order.values().filter_map(|id| inner.messages.get(id)).map(|(_, m, l)| (m.clone(), l.clone())).collect()
    }

    fn read<T: Send + 'static>(&self, f: impl FnOnce(&Inner) -> T) -> Pending<T> {
        let got = f(&self.inner.lock());
        Box::pin(async move { Ok(got) })
    }
}

impl Inner {
    fn apply(&mut self, write: Write) -> Wrote {
        match write {
            Write::Submit { message, log, scopes, digest } => {
                let id = message.id();
                match self.window.claim(message.head.updated_ms, scopes.clone(), digest, id) {
                    Seen::Same(old) => {
                        return self.messages.get(&old).map_or(Wrote::Moved, |(_, m, _)| Wrote::Existing(Box::new(m.clone())));
                    }
                    Seen::Conflict(old) => return Wrote::Conflict(old),
                    Seen::Quota => return Wrote::Quota,
                    Seen::New => {}
                }
                if self.messages.contains_key(&id) {
                    return Wrote::Moved;
                }
                self.order += 1;
                self.by_order.insert(self.order, id);
                self.newest.insert((message.envelope.owner(), message.envelope.message_id.clone()), id);
                self.scopes.extend(scopes.into_iter().map(|s| (s, id)));
                if message.head.state.is_terminal() {
                    self.window.ended(message.head.updated_ms, id);
                }
                self.messages.insert(id, (self.order, message, log));
                Wrote::Stored
            }
            Write::Record { id, from_seq, head, log } => {
                let Some((_, message, all)) = self.messages.get_mut(&id).filter(|(_, m, _)| m.head.seq == from_seq) else {
                    return Wrote::Moved;
                };
                if head.state.is_terminal() {
                    self.window.ended(head.updated_ms, id);
                }
                message.head = head;
                all.extend(log);
                Wrote::Stored
            }
        }
    }
}

/// Whether a message belongs to a listing.
pub fn matches(m: &Message, f: &Filter) -> bool {
    let seen = match (&f.owner, &f.namespaces) {
        (None, None) => true,
        (owner, spaces) => {
            owner.as_ref().is_some_and(|o| *o == m.envelope.owner())
                || spaces.as_ref().is_some_and(|s| m.head.agent.as_ref().is_some_and(|a| s.contains(&a.namespace)))
        }
    };
    seen && f.state.is_none_or(|s| s == m.head.state)
        && f.agent.as_ref().is_none_or(|a| Some(a) == m.head.agent.as_ref())
        && f.since_ms.is_none_or(|t| m.envelope.timestamp_ms >= t)
        && f.until_ms.is_none_or(|t| m.envelope.timestamp_ms < t)
        && f.tags.iter().all(|(k, v)| m.envelope.biz_tags.get(k) == Some(v))
        && f.parent.as_ref().is_none_or(|p| Some(p) == m.envelope.parent_id.as_ref())
        && f.dead_tag.is_none_or(|t| m.head.tag == Some(t))
}

impl MessageStore for MemoryStore {
    fn commit(&self, writes: Vec<Write>) -> Pending<Vec<Wrote>> {
        let got = self.commit_now(writes);
        Box::pin(async move { got })
    }

    fn get(&self, id: ReachId) -> Pending<Option<Message>> {
        self.read(|i| i.messages.get(&id).map(|(_, m, _)| m.clone()))
    }

    fn find(&self, scope: Scope) -> Pending<Option<Message>> {
        self.read(|i| i.scopes.get(&scope).and_then(|id| i.messages.get(id)).map(|(_, m, _)| m.clone()))
    }

    fn find_id(&self, owner: Arc<str>, message_id: Arc<str>) -> Pending<Option<Message>> {
        self.read(|i| i.newest.get(&(owner, message_id)).and_then(|id| i.messages.get(id)).map(|(_, m, _)| m.clone()))
    }

    fn log(&self, id: ReachId) -> Pending<Vec<Entry>> {
        self.read(|i| i.messages.get(&id).map(|(_, _, l)| l.clone()).unwrap_or_default())
    }

    fn open(&self, after: Option<i64>, limit: usize) -> Pending<Page> {
        self.read(|i| {
            let from = after.unwrap_or(0) + 1;
            let open = |id: &ReachId| i.messages.get(id).filter(|(_, m, _)| !m.head.state.is_terminal());
            let found: Vec<(i64, Message)> =
                i.by_order.range(from..).filter_map(|(n, id)| open(id).map(|(_, m, _)| (*n, m.clone()))).take(limit).collect();
            let next = (found.len() == limit).then(|| found.last().map(|(n, _)| *n)).flatten();
            Page { messages: found.into_iter().map(|(_, m)| m).collect(), next }
        })
    }

    fn list(&self, filter: Filter) -> Pending<Page> {
        self.read(|i| {
            let before = filter.after.unwrap_or(i64::MAX);
            let limit = filter.limit.clamp(1, 1_000);
            let newest_first = i.by_order.range(..before).rev().filter_map(|(n, id)| i.messages.get(id).map(|(_, m, _)| (*n, m)));
            let found: Vec<(i64, Message)> =
                newest_first.filter(|(_, m)| matches(m, &filter)).take(limit).map(|(n, m)| (n, m.clone())).collect();
            let next = (found.len() == limit).then(|| found.last().map(|(n, _)| *n)).flatten();
            Page { messages: found.into_iter().map(|(_, m)| m).collect(), next }
        })
    }

    fn counts(&self) -> Pending<BTreeMap<State, u64>> {
        self.read(|i| {
            let mut counts = BTreeMap::new();
            i.messages.values().for_each(|(_, m, _)| *counts.entry(m.head.state).or_default() += 1);
            counts
        })
    }

    fn prune(&self, now_ms: i64, keep: Retention, limit: usize) -> Pending<u64> {
        let mut inner = self.inner.lock();
        let hour = 3_600_000;
        let ended: Vec<(i64, ReachId, i64, State)> = inner
            .messages
            .iter()
            .filter(|(_, v)| v.1.head.state.is_terminal())
            .map(|(id, v)| (v.0, *id, v.1.head.updated_ms, v.1.head.state))
            .collect();
        let over = (ended.len() as u64).saturating_sub(keep.most) as usize;
        let mut oldest = ended;
        oldest.sort_unstable_by_key(|(order, _, end, _)| (*end, *order));
        let gone: Vec<(i64, ReachId)> = oldest
            .iter()
            .enumerate()
            .filter(|(n, (_, _, end, state))| {
                let keep_ms = if *state == State::DeadLetter { keep.keep_dead_ms } else { keep.keep_ms };
                let age = now_ms - end;
                age > keep_ms.max(hour) || (*n < over && age > hour)
            })
            .take(limit)
            .map(|(_, (order, id, _, _))| (*order, *id))
            .collect();
        for (order, id) in &gone {
            inner.messages.remove(id);
            inner.by_order.remove(order);
            inner.window.drop_claim(*id);
            inner.scopes.retain(|_, v| v != id);
            inner.newest.retain(|_, v| v != id);
        }
        let n = gone.len() as u64;
        Box::pin(async move { Ok(n) })
    }
}
