//! The one thread that writes. Operations wait in a bounded queue; whatever waits is written in one transaction, and answered after the commit.
//!
//! In: closures over the connection. Out: their results, once they are durable. What nobody waits for (logs) lingers for company, so that it shares the
//! transaction of something urgent instead of making one of its own.
//! Invariants: an operation that fails or panics undoes itself alone (a savepoint of its own); nothing is answered before the commit; when the
//! commit fails every operation of the batch gets that error; after an I/O error no further write is taken (a full disk is not one).
//! Each commit is marked before it is answered (`store::mark`). Cost: one sync a batch. Not here: what is written.

use super::checkpoint::Checkpoints;
use super::error::StoreError;
use super::mark::Mark;
use crate::clock::{Clock, SystemClock};
use crate::telemetry::metrics::{Histogram, observe};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Operations that may wait.
const QUEUE: usize = 4096;
/// Operations in one transaction.
const BATCH: usize = 512;
/// How long an operation that nobody waits for looks for company.
const LINGER: Duration = Duration::from_millis(10);

trait Job: Send {
    /// Runs inside the transaction; whether it may be kept.
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError>;
    /// Answers. `batch` is the fate of the transaction.
    fn answer(self: Box<Self>, batch: Result<(), StoreError>);
}

struct Operation<T, F, R> {
    work: Option<F>,
    result: Option<Result<T, StoreError>>,
    reply: R,
}

impl<T, F, R> Job for Operation<T, F, R>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, StoreError> + Send,
    R: FnOnce(Result<T, StoreError>) + Send,
{
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let result = catch_unwind(AssertUnwindSafe(|| work(connection)))
            .unwrap_or_else(|_| Err(StoreError::Internal("an operation panicked".into())));
        let fate = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.result = Some(result);
        fate
    }

    fn answer(self: Box<Self>, batch: Result<(), StoreError>) {
        let own = self.result.unwrap_or(Err(StoreError::Closed));
        (self.reply)(batch.and(own));
    }
}

/// Counters of the writer.
#[derive(Debug, Default)]
pub struct WriterStats {
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Operations committed.
    pub operations: AtomicU64,
    /// Operations refused because the queue was full.
    pub refused: AtomicU64,
}

/// Handle of the writer thread.
pub struct Writer {
    jobs: Option<Sender<Box<dyn Job>>>,
    idle: Option<Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<WriterStats>,
}

impl Writer {
    /// Starts the thread on its connection; `mark` is kept after each commit, and `checkpoints` told of it.
    pub fn start(connection: Connection, mark: Option<Mark>, checkpoints: Option<Checkpoints>) -> Result<Self, StoreError> {
        let ((jobs, queue), (idle, idle_queue)) = (bounded(QUEUE), bounded(QUEUE));
        let queues = Queues { urgent: queue, idle: idle_queue };
        let stats = Arc::new(WriterStats::default());
        let seen = stats.clone();
        let thread = std::thread::Builder::new()
            .name("reach-store".into())
            .spawn(move || write_all(connection, mark, checkpoints, &queues, &seen))
            .map_err(|e| StoreError::Internal(format!("no thread for the writer: {e}")))?;
        Ok(Self { jobs: Some(jobs), idle: Some(idle), thread: Some(thread), stats })
    }

    /// Counters.
    pub fn stats(&self) -> &WriterStats {
        &self.stats
    }

    fn put(&self, queue: Option<&Sender<Box<dyn Job>>>, job: Box<dyn Job>) -> Result<(), StoreError> {
        queue.ok_or(StoreError::Closed)?.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => {
                self.stats.refused.fetch_add(1, Ordering::Relaxed);
                StoreError::Overloaded
            }
            TrySendError::Disconnected(_) => StoreError::Closed,
        })
    }

    /// Queues `work`; the answer comes after its commit. A full queue refuses at once.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_by(self.jobs.as_ref(), work).await
    }

    /// The same for what can wait for others: a log, a lesson. It is written with the next urgent operation, or after 10 ms.
    pub async fn write_beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_by(self.idle.as_ref(), work).await
    }

    async fn write_by<T: Send + 'static>(
        &self,
        queue: Option<&Sender<Box<dyn Job>>>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        // the caller may have left: then nobody wants the answer
        let reply = move |result| drop(answer.send(result));
        self.put(queue, Box::new(Operation { work: Some(work), result: None, reply }))?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Queues `work` without waiting; `done` runs on the writer thread after the commit, so it must be quick.
    pub fn write_later<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        done: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) -> Result<(), StoreError> {
        self.put(self.jobs.as_ref(), Box::new(Operation { work: Some(work), result: None, reply: done }))
    }
}

impl Drop for Writer {
    /// Takes no more, writes what waits, then ends the thread.
    fn drop(&mut self) {
        (self.jobs, self.idle) = (None, None);
        if let Some(thread) = self.thread.take() {
            // a panic of the thread was answered to its callers already
            drop(thread.join());
        }
    }
}

/// What waits to be written.
struct Queues {
    urgent: Receiver<Box<dyn Job>>,
    idle: Receiver<Box<dyn Job>>,
}

impl Queues {
    /// What belongs into the next transaction, urgent operations first; waits for something. Empty when both queues are closed and done.
    fn next(&self) -> Vec<Box<dyn Job>> {
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        let mut company: Vec<Box<dyn Job>> = Vec::new();
        select! {
            recv(self.urgent) -> job => batch.extend(job),
            recv(self.idle) -> job => company.extend(job),
        }
        if batch.is_empty() {
            batch.extend(self.urgent.recv_timeout(LINGER));
        }
        batch.extend(self.urgent.try_iter().take(BATCH.saturating_sub(batch.len())));
        batch.append(&mut company);
        batch.extend(self.idle.try_iter().take(BATCH.saturating_sub(batch.len())));
        if batch.is_empty() {
            // one of the two is closed: the other's end is waited for
            batch.extend(self.urgent.recv());
        }
        if batch.is_empty() {
            batch.extend(self.idle.recv());
        }
        batch
    }
}

fn write_all(connection: Connection, mut mark: Option<Mark>, mut checkpoints: Option<Checkpoints>, queues: &Queues, stats: &WriterStats) {
    let mut broken: Option<StoreError> = None;
    loop {
        let mut batch = queues.next();
        if batch.is_empty() {
            break;
        }
        let fate = match &broken {
            Some(error) => Err(error.clone()),
            None => {
                let begin = SystemClock.instant();
                let fate = commit(&connection, &mut batch);
                observe(Histogram::StoreWrite, &["commit"], SystemClock.instant().duration_since(begin).as_secs_f64());
                fate
            }
        };
        match &fate {
            Ok(()) => {
                if let Some(mark) = &mut mark {
                    mark.set();
                }
                stats.commits.fetch_add(1, Ordering::Relaxed);
                stats.operations.fetch_add(batch.len() as u64, Ordering::Relaxed);
            }
            Err(error @ (StoreError::Io(_) | StoreError::Damaged { .. })) if broken.is_none() => {
                tracing::error!(%error, "the store takes no further writes");
                broken = Some(error.clone());
            }
            Err(_) => {}
        }
        for job in batch {
            let fate = fate.clone();
            // an answer that panics must not end the writer
            drop(catch_unwind(AssertUnwindSafe(move || job.answer(fate))));
        }
        if let Some(checkpoints) = &mut checkpoints
            && broken.is_none()
        {
            checkpoints.committed(&connection);
        }
    }
    drop(checkpoints);
    // the mark goes first: it must never expect what is no longer in the log
    if let Some(mark) = &mut mark {
        mark.clear();
    }
    // tidy up: the next start finds a small log and fresh statistics; failing here loses nothing
    drop(connection.execute_batch("PRAGMA optimize; PRAGMA wal_checkpoint(TRUNCATE);"));
}

fn commit(connection: &Connection, batch: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    say(connection, "BEGIN IMMEDIATE")?;
    let written = run_all(connection, batch).and_then(|()| say(connection, "COMMIT"));
    if written.is_err() && !connection.is_autocommit() {
        // SQLite rolls back by itself on the worst errors; otherwise it is asked to
        drop(connection.execute_batch("ROLLBACK"));
    }
    written
}

/// Runs a statement that is needed again and again, parsed once.
fn say(connection: &Connection, statement: &str) -> Result<(), StoreError> {
    connection.prepare_cached(statement)?.execute([])?;
    Ok(())
}

fn run_all(connection: &Connection, batch: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    for job in batch {
        say(connection, "SAVEPOINT operation")?;
        match job.run(connection) {
            Ok(()) => say(connection, "RELEASE operation")?,
            Err(fatal @ (StoreError::Io(_) | StoreError::DiskFull | StoreError::Damaged { .. })) => return Err(fatal),
            Err(_) => connection.execute_batch("ROLLBACK TO operation; RELEASE operation")?,
        }
    }
    Ok(())
}
