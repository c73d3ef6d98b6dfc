//! The pump: makes what the engine decided durable, then lets it act; begins anew from the store when that fails.
//!
//! Invariant: nothing is told to anybody before the commit that says so. Not here: what is decided (`engine`).

use super::{Dispatcher, Mark};
use crate::dispatch::port::{Write, Wrote};
use crate::error::Error;
use crate::tasks::Stage;
use crate::types::message::{Entry, Message};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Log entries of one write, with the message that they belong to.
struct Traced {
    message: Message,
    log: Vec<Entry>,
}

impl Traced {
    /// One line an event: route, queue, delivery, receipts, under the trace of the message and with the caller's labels.
    fn tell(&self) {
        let (e, h) = (&self.message.envelope, &self.message.head);
        for entry in &self.log {
            tracing::debug!(
                target: "agent_reach::message",
                trace_id = &*e.trace_id,
                reach_id = %e.reach_id,
                parent_id = e.parent_id.as_deref(),
                caller = &*e.principal.caller,
                seq = entry.seq,
                at_ms = entry.at_ms,
                state = entry.state.as_str(),
                agent = h.agent.as_ref().map(tracing::field::display),
                capability = h.capability.as_deref(),
                delivery = h.delivery,
                labels = ?e.biz_tags,
                "message"
            );
        }
    }
}

impl Dispatcher {
    /// Reads every open message from the store into the engine.
    pub(super) async fn take_up(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = self.inner.store.open(after, 1_000).await?;
            after = page.next;
            self.with(|engine, now| {
                for message in page.messages {
                    let (agent, capability) = (message.head.agent.clone(), message.head.capability.clone());
                    let target = agent.zip(capability).and_then(|(a, c)| self.inner.next.describe(&a, &c));
                    engine.resume(now, message, target);
                }
            });
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Writes what waits and lets the engine act on it, for ever.
    pub(super) async fn pump(&self) {
        let stop = self.inner.tasks.stop(Stage::Store);
        loop {
            let writes = std::mem::take(&mut *self.inner.outbox.lock());
            if !writes.is_empty() {
                self.commit(writes).await;
                continue;
            }
            if stop.is_cancelled() {
                return;
            }
            let now = self.now_ms();
            let wake = self.inner.engine.lock().next_wake_ms(now);
            let pause = wake.map_or(Duration::from_secs(60), |at| Duration::from_millis(u64::try_from(at - now).unwrap_or(0)));
            tokio::select! {
                () = self.inner.pump.notified() => {}
                () = tokio::time::sleep(pause) => self.with(|engine, now| engine.tick(now)),
                () = stop.cancelled() => {}
            }
        }
    }

    async fn commit(&self, writes: Vec<Write>) {
        let marks: Vec<Mark> = {
            let watched = self.inner.watchers.lock();
            let log = |w: &Write| if watched.contains_key(&w.id()) { w.log().to_vec() } else { Vec::new() };
            let end = |w: &Write| w.head().state.is_terminal().then(|| w.head().clone());
            writes.iter().map(|w| Mark { id: w.id(), seq: w.head().seq, end: end(w), log: log(w) }).collect()
        };
        let trace = self.trace(&writes);
        match self.inner.store.commit(writes).await {
            Ok(wrote) => {
                trace.iter().for_each(Traced::tell);
                self.inner.failing.store(false, Ordering::Relaxed);
                self.with(|engine, now| {
                    for (mark, how) in marks.iter().zip(&wrote) {
                        engine.wrote(now, mark.id, mark.seq, how);
                    }
                });
                for (mark, how) in marks.into_iter().zip(wrote) {
                    self.tell(mark, how);
                }
            }
            Err(e) => self.begin_anew(e.into()).await,
        }
    }

    /// What is told of these writes when they are durable, where somebody wants to know (`telemetry.log = "info,agent_reach::message=debug"`).
    fn trace(&self, writes: &[Write]) -> Vec<Traced> {
        if !tracing::enabled!(target: "agent_reach::message", tracing::Level::DEBUG) {
            return Vec::new();
        }
        let engine = self.inner.engine.lock();
        let of = |w: &Write| Some(Traced { message: engine.message(w.id())?, log: w.log().to_vec() });
        writes.iter().filter_map(of).collect()
    }

    fn tell(&self, mark: Mark, how: Wrote) {
        let Mark { id, seq, end, log } = mark;
        let over = end.is_some();
        {
            let mut waiting = self.inner.durable.lock();
            if let Some(list) = waiting.get_mut(&id) {
                let all = std::mem::take(list);
                let (ready, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at <= seq || how != Wrote::Stored);
                *list = later;
                if list.is_empty() {
                    waiting.remove(&id);
                }
                for (_, tell) in ready {
                    // who asked may have left
                    tell.send(Ok(how.clone())).ok();
                }
            }
        }
        if let (Some(head), Wrote::Stored) = (end, &how) {
            self.inner.sinks.iter().for_each(|sink| sink.ended(id));
            for tell in self.inner.finals.lock().remove(&id).unwrap_or_default() {
                // who waited may have left
                tell.send(head.clone()).ok();
            }
        }
        let mut watchers = self.inner.watchers.lock();
        if let Some(watcher) = watchers.get(&id) {
            let last = log.len().saturating_sub(1);
            for (n, entry) in log.into_iter().enumerate() {
                watcher.send((entry, over && n == last)).ok();
            }
            if over {
                watchers.remove(&id);
            }
        }
    }

    /// The store failed: nothing of what was in memory counts any more. Waits until it works again, then reads it.
    async fn begin_anew(&self, error: Error) {
        tracing::error!(%error, "the message store failed; the dispatcher stops until it works again");
        self.inner.failing.store(true, Ordering::Relaxed);
        {
            let mut engine = self.inner.engine.lock();
            engine.forget_messages();
            self.inner.outbox.lock().clear();
        }
        for (_, list) in self.inner.durable.lock().drain() {
            for (_, tell) in list {
                tell.send(Err(error.clone())).ok();
            }
        }
        self.inner.watchers.lock().clear();
        self.inner.finals.lock().clear();
        let stop = self.inner.tasks.stop(Stage::Store);
        for n in 0u32.. {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(200u64 << n.min(5))) => {}
            }
            // an empty commit asks whether it takes writes
            if self.inner.store.commit(Vec::new()).await.is_ok() && self.take_up().await.is_ok() {
                self.inner.failing.store(false, Ordering::Relaxed);
                return;
            }
        }
    }
}
