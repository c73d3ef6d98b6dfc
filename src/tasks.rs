//! The only place that spawns. Every task has a name, a stage and an owner; shutdown goes stage by stage.
//!
//! In: futures. Out: nothing runs that [`Tasks`] does not know. Invariants: a stage is told to stop only after the stages
//! before it were told and their tasks had gone or the grace was over; a panic ends its task alone, is logged.
//!
//! Not here: what the tasks do, signals (`app`).

use futures::FutureExt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// When a task is told to stop; in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Listeners: no new connections and requests.
    Accept,
    /// Requests under way.
    Serve,
    /// Background work: probes, sweeps, rebuilds.
    Work,
    /// Writers of the store, last.
    Store,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::Accept, Stage::Serve, Stage::Work, Stage::Store];
}

/// A task that was still running when the grace was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// Its name.
    pub name: &'static str,
    /// Its stage.
    pub stage: Stage,
    /// How many of that name.
    pub count: usize,
}

/// Owner of all tasks of a process (or of a test). Clones share it.
#[derive(Clone)]
pub struct Tasks {
    inner: Arc<Inner>,
}

struct Inner {
    stop: [CancellationToken; 4],
    running: Mutex<Running>,
    gone: Notify,
}

#[derive(Default)]
struct Running {
    next: u64,
    tasks: BTreeMap<u64, (Stage, &'static str, Option<tokio::task::AbortHandle>)>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes the task off the list when its future is dropped, however it ended.
struct Listed {
    id: u64,
    inner: Arc<Inner>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.inner.running.lock().tasks.remove(&self.id);
        self.inner.gone.notify_waiters();
    }
}

impl Tasks {
    /// An owner without tasks.
    pub fn new() -> Self {
        let inner = Inner { stop: std::array::from_fn(|_| CancellationToken::new()), running: Mutex::default(), gone: Notify::new() };
        Self { inner: Arc::new(inner) }
    }

    /// The token that tells `stage` to stop.
    pub fn stop(&self, stage: Stage) -> CancellationToken {
        self.inner.stop.get(stage as usize).cloned().unwrap_or_default()
    }

    /// Spawns a task on the current runtime. It should end soon after [`Tasks::stop`] of its stage; after the grace it is aborted.
    #[allow(clippy::disallowed_methods)]
    pub fn spawn<T: Send + 'static>(
        &self,
        stage: Stage,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let listed = self.list(stage, name);
        let id = listed.id;
        let handle = tokio::spawn(async move {
            let _listed = listed;
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(value) => Some(value),
                Err(panic) => {
                    panicked(name, &*panic);
                    None
                }
            }
        });
        if let Some(entry) = self.inner.running.lock().tasks.get_mut(&id) {
            entry.2 = Some(handle.abort_handle());
        }
        handle
    }

    /// Runs work that blocks on the runtime's blocking threads.
    pub fn blocking<T: Send + 'static>(
        &self,
        stage: Stage,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let listed = self.list(stage, name);
        tokio::task::spawn_blocking(move || {
            let _listed = listed;
            match std::panic::catch_unwind(AssertUnwindSafe(work)) {
                Ok(value) => Some(value),
                Err(panic) => {
                    panicked(name, &*panic);
                    None
                }
            }
        })
    }

    /// Starts a thread of its own, for a loop that computes or writes. It must end when its channel closes or its stage stops.
    pub fn thread(
        &self,
        stage: Stage,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        let listed = self.list(stage, name);
        std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let _listed = listed;
            if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(work)) {
                panicked(name, &*panic);
            }
        })
    }

    /// Names of what is running, with their numbers.
    pub fn running(&self) -> Vec<Late> {
        self.late(|_| true)
    }

    /// Stops stage by stage within `grace` in all, and names what was still running then (and is aborted).
    pub async fn shutdown(&self, grace: Duration) -> Vec<Late> {
        let over = tokio::time::sleep(grace);
        tokio::pin!(over);
        let mut late = Vec::new();
        for stage in Stage::ALL {
            self.stop(stage).cancel();
            tokio::select! {
                biased;
                () = self.idle(stage) => {}
                () = &mut over => {
                    late.extend(self.late(|s| s == stage));
                    self.abort(stage);
                    // from here on a stage gets only a moment
                    over.as_mut().reset(tokio::time::Instant::now() + Duration::from_millis(50));
                }
            }
        }
        if !late.is_empty() {
            tracing::warn!(?late, "the grace is over; these were still running");
        }
        late
    }

    async fn idle(&self, stage: Stage) {
        loop {
            let gone = self.inner.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            if !self.inner.running.lock().tasks.values().any(|(s, ..)| *s <= stage) {
                return;
            }
            gone.await;
        }
    }

    fn list(&self, stage: Stage, name: &'static str) -> Listed {
        let mut running = self.inner.running.lock();
        let id = running.next;
        running.next += 1;
        running.tasks.insert(id, (stage, name, None));
        Listed { id, inner: self.inner.clone() }
    }

    fn late(&self, which: impl Fn(Stage) -> bool) -> Vec<Late> {
        let mut counts: BTreeMap<(Stage, &'static str), usize> = BTreeMap::new();
        for (stage, name, _) in self.inner.running.lock().tasks.values().filter(|(s, ..)| which(*s)) {
            *counts.entry((*stage, name)).or_default() += 1;
        }
        counts.into_iter().map(|((stage, name), count)| Late { name, stage, count }).collect()
    }

    fn abort(&self, stage: Stage) {
        let handles: Vec<_> =
            self.inner.running.lock().tasks.values().filter(|(s, ..)| *s == stage).filter_map(|(.., h)| h.clone()).collect();
        handles.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

fn panicked(name: &'static str, panic: &(dyn std::any::Any + Send)) {
    tracing::error!(task = name, "panicked: {}", panic_text(panic));
}

/// What a panic said, for the log.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

/// Lets hyper spawn the streams of a connection here, too.
impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.spawn(Stage::Serve, "http2-stream", future));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn stages_stop_in_order() {
        let tasks = Tasks::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        for (stage, name) in [(Stage::Store, "store"), (Stage::Work, "work"), (Stage::Accept, "accept")] {
            let (stop, order) = (tasks.stop(stage), order.clone());
            tasks.spawn(stage, name, async move {
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                order.lock().push(name);
            });
        }
        assert_eq!(tasks.running().len(), 3);
        assert!(tasks.shutdown(Duration::from_secs(5)).await.is_empty());
        assert_eq!(*order.lock(), ["accept", "work", "store"]);
        assert!(tasks.running().is_empty());
    }

    #[tokio::test]
    async fn the_late_are_named_and_ended() {
        let tasks = Tasks::new();
        for _ in 0..2 {
            tasks.spawn(Stage::Serve, "stubborn", std::future::pending::<()>());
        }
        let stop = tasks.stop(Stage::Store);
        tasks.spawn(Stage::Store, "writer", async move { stop.cancelled().await });
        let late = tasks.shutdown(Duration::from_millis(50)).await;
        assert_eq!(late, [Late { name: "stubborn", stage: Stage::Serve, count: 2 }]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(tasks.running().is_empty(), "{:?}", tasks.running());
    }

    #[tokio::test]
    async fn a_panic_ends_its_task_alone() {
        let tasks = Tasks::new();
        let done = Arc::new(AtomicUsize::new(0));
        let (ok, bad) = (done.clone(), tasks.spawn(Stage::Work, "bad", async { panic!("on purpose") }));
        tasks.spawn(Stage::Work, "good", async move { ok.fetch_add(1, Ordering::SeqCst) }).await.unwrap();
        let bad: Option<()> = bad.await.unwrap();
        assert!(bad.is_none());
        assert_eq!(tasks.blocking(Stage::Work, "sum", || 2 + 2).await.unwrap(), Some(4));
        assert_eq!(done.load(Ordering::SeqCst), 1);
        assert!(tasks.running().is_empty());
    }
}
