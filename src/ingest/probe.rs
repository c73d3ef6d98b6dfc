//! Asks agents that don't heartbeat whether they work. Three failures in a row make one unreachable, one success brings it back.
//!
//! In: the agents that are due. Out: their answers, noted in the live table. The request itself goes through a port, so that every outbound
//! call of the project can be guarded in one place. A slow agent delays nobody: probes run side by side, bounded in number and time.

use super::Ingest;
use crate::live::Probed;
use crate::types::AgentKey;
use futures::StreamExt;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Probes under way at once.
const AT_ONCE: usize = 32;

/// Asks one address. Implementations bound time and size, follow no redirects and use no proxy.
pub trait Probe: Send + Sync {
    /// Whether the agent answered that it works.
    fn ask<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Probed>;
}

/// Judges an address by what its name leads to now. Implementations bound their time.
pub trait Judge: Send + Sync {
    /// Why the address would not be called, as a reason code; `None` when it would be, or when that is not known.
    fn refuses<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<&'static str>>;
}

/// What a round of probes found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeRound {
    /// Agents that were asked.
    pub asked: usize,
    /// Of them, those that did not answer well.
    pub failed: usize,
}

async fn ask(probe: &dyn Probe, key: AgentKey, address: String) -> (AgentKey, Probed) {
    let answer = probe.ask(&address).await;
    (key, answer)
}

impl Ingest {
    /// Has the addresses of registrations judged from now on. The first judge stays.
    pub fn judge_with(&self, judge: Arc<dyn Judge>) {
        // a second one would be the same client
        drop(self.judge.set(judge));
    }

    /// Probes every agent that is due and takes the results into the View.
    pub async fn probe_due(&self, probe: &dyn Probe) -> ProbeRound {
        let due = self.live.lock().due_probes(self.clock.now_ms());
        if due.is_empty() {
            return ProbeRound::default();
        }
        let view = self.views.load();
        let targets: Vec<(AgentKey, String)> = due
            .into_iter()
            .filter_map(|key| {
                let address = view.catalog.agent(&key)?.entry.manifest.health_check.as_ref()?.address.clone();
                Some((key, address))
            })
            .collect();
        let mut round = ProbeRound::default();
        let asks: Vec<_> = targets.into_iter().map(|(key, address)| ask(probe, key, address)).collect();
        let mut answers = futures::stream::iter(asks).buffer_unordered(AT_ONCE);
        while let Some((key, answer)) = answers.next().await {
            round.asked += 1;
            round.failed += usize::from(answer != Probed::Good);
            self.live.lock().probed(&key, answer);
        }
        self.refresh_live();
        round
    }
}
