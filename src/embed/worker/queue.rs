//! What waits to be embedded: two lanes, each distinct text once. A plain structure: no lock, no thread, no clock.
//!
//! Invariant: a text of a model is in the queue or under way at most once, whoever asks for it and however often; queries go first, but after
//! `ingest_every` batches of queries a waiting ingest batch has its turn; a text that nobody waits for any more is never handed out.

use crate::embed::{Embed, EmbedError, Embedding};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkClass {
    /// A caller waits for a decision.
    Query,
    /// A registration, a rebuild: as much as is left.
    Ingest,
}

/// One caller's wish for one text.
pub struct Waiter {
    /// Where the answer goes; closed when the caller left.
    pub reply: oneshot::Sender<Result<Embedding, EmbedError>>,
    /// Its place in the bounded queue, given back when this is dropped.
    pub slot: Option<OwnedSemaphorePermit>,
}

/// Texts to embed together.
pub struct Batch {
    /// The model.
    pub model: Arc<dyn Embed>,
    /// What the texts are for.
    pub class: WorkClass,
    /// Ids to hand back to [`Queue::finish`], with their texts.
    pub texts: Vec<(u64, Arc<str>)>,
}

struct Task {
    model: Arc<dyn Embed>,
    text: Arc<str>,
    class: WorkClass,
    running: bool,
    waiters: Vec<Waiter>,
}

impl Task {
    fn key(&self) -> (Arc<str>, Arc<str>) {
        (self.model.info().fingerprint.clone(), self.text.clone())
    }
}

/// The queue.
pub struct Queue {
    tasks: HashMap<u64, Task>,
    by_text: HashMap<(Arc<str>, Arc<str>), u64>,
    queries: VecDeque<u64>,
    ingest: VecDeque<u64>,
    next: u64,
    queued: usize,
    in_a_row: u32,
    ingest_every: u32,
}

impl Queue {
    /// An empty queue; see the head of the file for `ingest_every`.
    pub fn new(ingest_every: u32) -> Self {
        Self {
            tasks: HashMap::new(),
            by_text: HashMap::new(),
            queries: VecDeque::new(),
            ingest: VecDeque::new(),
            next: 0,
            queued: 0,
            in_a_row: 0,
            ingest_every,
        }
    }

    /// Distinct texts that wait (not those under way).
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Adds a wish. Returns whether it joined a text that was already there.
    pub fn push(&mut self, model: &Arc<dyn Embed>, text: Arc<str>, class: WorkClass, waiter: Waiter) -> bool {
        let key = (model.info().fingerprint.clone(), text.clone());
        if let Some(id) = self.by_text.get(&key).copied()
            && let Some(task) = self.tasks.get_mut(&id)
        {
            task.waiters.push(waiter);
            if class == WorkClass::Query && task.class == WorkClass::Ingest && !task.running {
                task.class = WorkClass::Query; // its place in the other lane is skipped later
                self.queries.push_back(id);
            }
            return true;
        }
        let id = self.next;
        self.next += 1;
        self.by_text.insert(key, id);
        self.tasks.insert(id, Task { model: model.clone(), text, class, running: false, waiters: vec![waiter] });
        self.lane(class).push_back(id);
        self.queued += 1;
        false
    }

    /// The next texts of one model, at most `max` and at most a fair part when `threads` share the work. Also tells how many texts were
    /// thrown away because their callers had left.
    pub fn take(&mut self, max: usize, threads: usize) -> (Option<Batch>, u64) {
        let mut dropped = 0;
        let ingest_first = self.in_a_row >= self.ingest_every;
        let order = if ingest_first { [WorkClass::Ingest, WorkClass::Query] } else { [WorkClass::Query, WorkClass::Ingest] };
        for class in order {
            let size = self.lane(class).len().div_ceil(threads.max(1)).clamp(1, max.max(1));
            let mut batch: Option<Batch> = None;
            while batch.as_ref().is_none_or(|b| b.texts.len() < size) {
                let model = batch.as_ref().map(|b| b.model.info().fingerprint.clone());
                let Some(id) = self.next_of(class, model.as_deref(), &mut dropped) else { break };
                let Some(task) = self.tasks.get_mut(&id) else { break };
                task.running = true;
                self.queued -= 1;
                let batch = batch.get_or_insert_with(|| Batch { model: task.model.clone(), class, texts: Vec::new() });
                batch.texts.push((id, task.text.clone()));
            }
            if batch.is_some() {
                self.in_a_row = if class == WorkClass::Query { self.in_a_row.saturating_add(1) } else { 0 };
                return (batch, dropped);
            }
        }
        self.in_a_row = 0;
        (None, dropped)
    }

    /// Removes a text that was handed out; returns who waits for it.
    pub fn finish(&mut self, id: u64) -> Vec<Waiter> {
        let Some(task) = self.tasks.remove(&id) else { return Vec::new() };
        self.by_text.remove(&task.key());
        task.waiters
    }

    /// Removes everything.
    pub fn clear(&mut self) -> Vec<Waiter> {
        self.by_text.clear();
        self.queries.clear();
        self.ingest.clear();
        self.queued = 0;
        self.tasks.drain().flat_map(|(_, t)| t.waiters).collect()
    }

    fn lane(&mut self, class: WorkClass) -> &mut VecDeque<u64> {
        match class {
            WorkClass::Query => &mut self.queries,
            WorkClass::Ingest => &mut self.ingest,
        }
    }

    /// Pops the next live text of a lane, unless it belongs to another model than `model`.
    fn next_of(&mut self, class: WorkClass, model: Option<&str>, dropped: &mut u64) -> Option<u64> {
        loop {
            let id = self.lane(class).front().copied()?;
            match self.tasks.get_mut(&id) {
                Some(task) if !task.running && task.class == class => {
                    task.waiters.retain(|w| !w.reply.is_closed());
                    if task.waiters.is_empty() {
                        self.finish(id);
                        self.queued -= 1;
                        *dropped += 1;
                    } else if model.is_some_and(|m| m != &*task.model.info().fingerprint) {
                        return None;
                    } else {
                        self.lane(class).pop_front();
                        return Some(id);
                    }
                }
                Some(_) | None => {} // promoted to the other lane, or gone
            }
            self.lane(class).pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::Fake;
    use crate::types::Lang;

    type Reply = oneshot::Receiver<Result<Embedding, EmbedError>>;

    fn model(name: &str) -> Arc<dyn Embed> {
        Arc::new(Fake::new(name, Lang::Zh, 4))
    }

    fn push(q: &mut Queue, m: &Arc<dyn Embed>, text: &str, class: WorkClass) -> Reply {
        let (reply, receiver) = oneshot::channel();
        q.push(m, text.into(), class, Waiter { reply, slot: None });
        receiver
    }

    fn texts(q: &mut Queue, max: usize, threads: usize) -> Vec<String> {
        q.take(max, threads).0.map(|b| b.texts.iter().map(|(_, t)| t.to_string()).collect()).unwrap_or_default()
    }

    #[test]
    fn queries_go_first_and_ingest_still_moves() {
        let (mut q, m) = (Queue::new(2), model("m"));
        let _kept: Vec<_> = (0..4)
            .flat_map(|i| [(format!("i{i}"), WorkClass::Ingest), (format!("q{i}"), WorkClass::Query)])
            .map(|(t, c)| push(&mut q, &m, &t, c))
            .collect();
        let order: Vec<_> = (0..8).flat_map(|_| texts(&mut q, 1, 1)).collect();
        assert_eq!(order, ["q0", "q1", "i0", "q2", "q3", "i1", "i2", "i3"]);
        assert_eq!(q.queued(), 0);
        assert!(q.take(1, 1).0.is_none());
    }

    #[test]
    fn the_same_text_is_there_once_and_a_query_pulls_it_forward() {
        let (mut q, m, other) = (Queue::new(100), model("m"), model("other"));
        let _a = push(&mut q, &m, "x", WorkClass::Ingest);
        let _b = push(&mut q, &m, "y", WorkClass::Ingest);
        let _c = push(&mut q, &m, "y", WorkClass::Query);
        let _d = push(&mut q, &other, "y", WorkClass::Query);
        assert_eq!(q.queued(), 3);
        let (batch, _) = q.take(8, 1);
        let batch = batch.unwrap();
        assert_eq!(batch.texts.len(), 1, "a batch is of one model");
        let late = push(&mut q, &m, "y", WorkClass::Query);
        assert_eq!(q.queued(), 2, "joined while under way");
        assert_eq!(q.finish(batch.texts[0].0).len(), 3);
        assert_eq!(texts(&mut q, 8, 1), ["y"], "the other model's");
        assert_eq!(texts(&mut q, 8, 1), ["x"]);
        assert!(q.take(8, 1).0.is_none() && q.queued() == 0);
        drop(late);
    }

    #[test]
    fn texts_nobody_waits_for_are_dropped() {
        let (mut q, m) = (Queue::new(8), model("m"));
        let left = push(&mut q, &m, "left", WorkClass::Query);
        let _stays = push(&mut q, &m, "stays", WorkClass::Query);
        let half = push(&mut q, &m, "half", WorkClass::Query);
        let _half = push(&mut q, &m, "half", WorkClass::Query);
        drop((left, half));
        let (batch, dropped) = q.take(8, 1);
        assert_eq!((batch.unwrap().texts.len(), dropped), (2, 1));
        assert_eq!(q.queued(), 0);
    }

    #[test]
    fn work_is_shared_out_fairly() {
        let (mut q, m) = (Queue::new(8), model("m"));
        let _kept: Vec<_> = (0..6).map(|i| push(&mut q, &m, &format!("{i}"), WorkClass::Query)).collect();
        assert_eq!(texts(&mut q, 8, 2).len(), 3);
        assert_eq!(texts(&mut q, 8, 2).len(), 2);
        assert_eq!(texts(&mut q, 8, 2).len(), 1);
        let _kept: Vec<_> = (0..6).map(|i| push(&mut q, &m, &format!("x{i}"), WorkClass::Ingest)).collect();
        assert_eq!(texts(&mut q, 2, 1).len(), 2);
        assert_eq!(q.clear().len(), 6 + 6);
        assert_eq!(q.queued(), 0);
    }
}
