//! The threads that run encoders, behind a bounded queue.
//!
//! In: texts and a model. Out: embeddings in order, or `overloaded` at once when the queue is full.
//! How: one thread a core, shared by all models, each running one text after another; texts go together only when a queue has built up, so nobody
//! waits for company. Each thread is a candle/rayon pool of its own, so parallel texts don't fight over cores.
//! Invariant: nothing here blocks an async thread; a panic of an encoder is an error of that text, not a dead worker; a text under way is computed
//! once for all who want it; who leaves costs nothing more. A long call keeps at most `window` texts in the queue and waits for room with the rest.
//! Not here: vectors that were computed before (`vectors`), which model a text goes to (`models`).

mod queue;

pub use queue::WorkClass;

use super::vectors::VectorCache;
use super::{Embed, EmbedError, Embedding};
use crate::clock::{Clock, SystemClock};
use crate::telemetry::metrics::{Histogram, bounded, observe};
use parking_lot::{Condvar, Mutex};
use queue::{Batch, Queue, Waiter};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

/// Sizes of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Inference threads; 0 = one a core.
    pub threads: usize,
    /// Texts of queries that may wait or be under way.
    pub query_slots: usize,
    /// Texts of ingest that may wait or be under way.
    pub ingest_slots: usize,
    /// Texts of one call that are in the queue at once; the rest of the call waits for room.
    pub window: usize,
    /// Most texts handed to an encoder together.
    pub max_batch: usize,
    /// After so many batches of queries, one of ingest has its turn.
    pub ingest_every: u32,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self { threads: 0, query_slots: 512, ingest_slots: 512, window: 64, max_batch: 8, ingest_every: 8 }
    }
}

/// Counters of a worker since its start, and its queue now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Threads.
    pub threads: u64,
    /// Texts that went through an encoder.
    pub embedded: u64,
    /// Wishes that joined a text already there.
    pub joined: u64,
    /// Wishes refused because the queue was full.
    pub shed: u64,
    /// Texts dropped because their callers had left.
    pub dropped: u64,
    /// Texts that ended in an error.
    pub failed: u64,
    /// Panics of encoders.
    pub panics: u64,
    /// Calls of encoders.
    pub batches: u64,
    /// Time spent in encoders, all threads together, in microseconds.
    pub busy_us: u64,
    /// Distinct texts that wait now.
    pub queued: u64,
    /// Recent time of one text in its encoder, in microseconds; 0 before the first.
    pub us_per_text: u64,
}

#[derive(Default)]
struct Counters {
    embedded: AtomicU64,
    joined: AtomicU64,
    shed: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    panics: AtomicU64,
    batches: AtomicU64,
    busy_us: AtomicU64,
    us_per_text: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

struct State {
    queue: Queue,
    stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    counters: Counters,
    threads: usize,
    max_batch: usize,
    /// Where vectors of queries are kept. They are put there before their text leaves the queue, so that a text in flight is found in one of both.
    keep: Option<Arc<VectorCache>>,
}

/// Inference threads and their queue. Dropped, it stops.
pub struct Worker {
    shared: Arc<Shared>,
    query_slots: Arc<Semaphore>,
    ingest_slots: Arc<Semaphore>,
    window: usize,
}

impl Worker {
    /// Starts the threads. Fails only when the system has no thread left.
    pub fn start(config: &WorkerConfig, keep: Option<Arc<VectorCache>>) -> Result<Self, EmbedError> {
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State { queue: Queue::new(config.ingest_every.max(1)), stopped: false }),
            work: Condvar::new(),
            counters: Counters::default(),
            threads,
            max_batch: config.max_batch.max(1),
            keep,
        });
        let slots = |n: usize| Arc::new(Semaphore::new(n.clamp(1, Semaphore::MAX_PERMITS)));
        let worker = Self {
            query_slots: slots(config.query_slots),
            ingest_slots: slots(config.ingest_slots),
            window: config.window.clamp(1, config.query_slots.min(config.ingest_slots).max(1)),
            shared,
        };
        for i in 0..threads {
            let shared = worker.shared.clone();
            let thread = std::thread::Builder::new().name(format!("embed-{i}"));
            thread.spawn(move || run(&shared)).map_err(|e| EmbedError::Failed(format!("no inference thread: {e}")))?;
        }
        Ok(worker)
    }

    /// Embeds texts with a model, in order. Fails with `overloaded` when there is no room for its first texts; once begun it waits for room.
    /// Dropping the future takes back what has not begun.
    pub async fn embed(&self, model: &Arc<dyn Embed>, texts: Vec<Arc<str>>, class: WorkClass) -> Result<Vec<Embedding>, EmbedError> {
        let slots = match class {
            WorkClass::Query => &self.query_slots,
            WorkClass::Ingest => &self.ingest_slots,
        };
        let mut reserved = self.reserve(slots, texts.len().min(self.window))?;
        let mut out = Vec::with_capacity(texts.len());
        let mut pending = VecDeque::with_capacity(self.window);
        for text in texts {
            if pending.len() >= self.window
                && let Some(oldest) = pending.pop_front()
            {
                out.push(answer(oldest).await?);
            }
            let slot = match reserved.as_mut().and_then(|r| r.split(1)) {
                Some(slot) => slot,
                None => slots.clone().acquire_owned().await.map_err(|_| EmbedError::Stopped)?,
            };
            pending.push_back(self.push(model, text, class, slot)?);
        }
        for receiver in pending {
            out.push(answer(receiver).await?);
        }
        Ok(out)
    }

    /// Counters, and the queue now.
    pub fn stats(&self) -> WorkerStats {
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.shared.counters;
        WorkerStats {
            threads: self.shared.threads as u64,
            embedded: read(&c.embedded),
            joined: read(&c.joined),
            shed: read(&c.shed),
            dropped: read(&c.dropped),
            failed: read(&c.failed),
            panics: read(&c.panics),
            batches: read(&c.batches),
            busy_us: read(&c.busy_us),
            queued: self.shared.state.lock().queue.queued() as u64,
            us_per_text: read(&c.us_per_text),
        }
    }

    /// Takes no more work and answers what waits with [`EmbedError::Stopped`]. Threads end after the text they are at.
    pub fn stop(&self) {
        self.query_slots.close();
        self.ingest_slots.close();
        let waiters = {
            let mut state = self.shared.state.lock();
            state.stopped = true;
            state.queue.clear()
        };
        self.shared.work.notify_all();
        for waiter in waiters {
            deliver(waiter, Err(EmbedError::Stopped));
        }
    }

    fn reserve(&self, slots: &Arc<Semaphore>, n: usize) -> Result<Option<OwnedSemaphorePermit>, EmbedError> {
        match slots.clone().try_acquire_many_owned(u32::try_from(n).unwrap_or(u32::MAX)) {
            Ok(permits) => Ok(Some(permits)),
            Err(TryAcquireError::Closed) => Err(EmbedError::Stopped),
            Err(TryAcquireError::NoPermits) => {
                add(&self.shared.counters.shed, n as u64);
                Err(EmbedError::Overloaded { retry_after: self.shared.clears_in() })
            }
        }
    }

    fn push(
        &self,
        model: &Arc<dyn Embed>,
        text: Arc<str>,
        class: WorkClass,
        slot: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<Result<Embedding, EmbedError>>, EmbedError> {
        let (reply, receiver) = oneshot::channel();
        let joined = {
            let mut state = self.shared.state.lock();
            if state.stopped {
                return Err(EmbedError::Stopped);
            }
            // it may have been computed since the caller looked
            let known = self.shared.keep.as_ref().filter(|_| class == WorkClass::Query);
            if let Some(vector) = known.and_then(|keep| keep.peek(&model.info().fingerprint, &text)) {
                drop(state);
                add(&self.shared.counters.joined, 1);
                deliver(Waiter { reply, slot: Some(slot) }, Ok(vector));
                return Ok(receiver);
            }
            state.queue.push(model, text, class, Waiter { reply, slot: Some(slot) })
        };
        if joined {
            add(&self.shared.counters.joined, 1);
        } else {
            self.shared.work.notify_one();
        }
        Ok(receiver)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn answer(receiver: oneshot::Receiver<Result<Embedding, EmbedError>>) -> Result<Embedding, EmbedError> {
    receiver.await.unwrap_or(Err(EmbedError::Stopped))
}

fn deliver(waiter: Waiter, result: Result<Embedding, EmbedError>) {
    let Waiter { reply, slot } = waiter;
    drop(slot); // room first, so that the caller finds it free
    if reply.send(result).is_err() {
        tracing::trace!("the caller of an embedding had left");
    }
}

impl Shared {
    /// When about half of the queue will be gone, by the recent speed. Between 20 ms and 10 s.
    fn clears_in(&self) -> Duration {
        let us = self.counters.us_per_text.load(Ordering::Relaxed).max(1_000);
        let half = self.state.lock().queue.queued() as u64 / 2 / self.threads.max(1) as u64;
        Duration::from_micros(us.saturating_mul(half)).clamp(Duration::from_millis(20), Duration::from_secs(10))
    }

    fn next(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let (batch, dropped) = state.queue.take(self.max_batch, self.threads);
            add(&self.counters.dropped, dropped);
            if batch.is_some() {
                return batch;
            }
            self.work.wait(&mut state);
        }
    }

    fn finish(&self, id: u64, result: &Result<Embedding, EmbedError>) {
        let waiters = self.state.lock().queue.finish(id);
        add(if result.is_ok() { &self.counters.embedded } else { &self.counters.failed }, 1);
        for waiter in waiters {
            deliver(waiter, result.clone());
        }
    }

    /// Runs an encoder; a panic is an error. On an error each text of the batch is tried alone, so that one bad text spoils no other.
    fn process(&self, batch: &Batch) {
        let texts: Vec<&str> = batch.texts.iter().map(|(_, t)| &**t).collect();
        match self.call(&*batch.model, &texts) {
            Ok(vectors) => {
                for ((id, text), v) in batch.texts.iter().zip(vectors) {
                    if let Some(keep) = self.keep.as_ref().filter(|_| batch.class == WorkClass::Query) {
                        keep.put(&batch.model.info().fingerprint, text, &v);
                    }
                    self.finish(*id, &Ok(v));
                }
            }
            Err(e) if texts.len() == 1 => batch.texts.iter().for_each(|(id, _)| self.finish(*id, &Err(e.clone()))),
            Err(_) => {
                for (id, text) in &batch.texts {
                    let one = self.call(&*batch.model, &[text]);
                    let result = one.and_then(|v| v.into_iter().next().ok_or_else(|| EmbedError::Failed("no vector".into())));
                    self.finish(*id, &result);
                }
            }
        }
    }

    fn call(&self, model: &dyn Embed, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let clock = SystemClock;
        let start = clock.instant();
        let result = catch_unwind(AssertUnwindSafe(|| model.embed(texts)));
        let took = clock.instant().duration_since(start);
        let name = bounded(&model.info().name);
        observe(Histogram::Embed, &[name], took.as_secs_f64());
        observe(Histogram::EmbedBatch, &[name], texts.len() as f64);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&self.counters.batches, 1);
        add(&self.counters.busy_us, us);
        let each = us / texts.len().max(1) as u64;
        let before = self.counters.us_per_text.load(Ordering::Relaxed);
        let now = if before == 0 { each } else { (before.saturating_mul(15).saturating_add(each)) / 16 };
        self.counters.us_per_text.store(now.max(1), Ordering::Relaxed);
        match result {
            Ok(Ok(vectors)) if vectors.len() != texts.len() => {
                Err(EmbedError::Failed(format!("{} vectors for {} texts", vectors.len(), texts.len())))
            }
            Ok(result) => result,
            Err(panic) => {
                add(&self.counters.panics, 1);
                let words = panic_words(&*panic);
                tracing::error!(model = %model.info().name, panic = %words, "an encoder panicked");
                Err(EmbedError::Failed(format!("the encoder panicked: {words}")))
            }
        }
    }
}

fn panic_words(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    words.unwrap_or_else(|| "without words".into())
}

fn run(shared: &Shared) {
    // candle hands its products to the rayon pool of the calling thread: this one is its own pool, so two texts on two threads run side by side
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    if let Err(e) = &pool {
        tracing::warn!(error = %e, "an inference thread shares the common thread pool");
    }
    while let Some(batch) = shared.next() {
        shared.process(&batch);
    }
}

#[cfg(test)]
mod tests;
