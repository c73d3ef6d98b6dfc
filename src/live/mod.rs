//! Live state: who is alive, how loaded, how quick, how often right. Pure: every call gets `now_ms`.
//!
//! In: registrations, heartbeats, results of probes, outcomes. Out: a [`LiveSnapshot`] for the next View, probes that are due, changes for watchers.
//! Rules: the lease decides for agents that heartbeat, probes (3 failures) for those that don't; when most leases end at once it is our network
//! that failed: the table is kept and flagged stale (protection mode). Missing data is missing (`None`), never zero and never perfect.
//! Invariants: counts are never negative; a NaN never enters. Cost: O(1) an event, O(agents) a snapshot (about 0.3 µs each).
//! Not here: probing (`app`), breakers and queues (`dispatch`), priors for missing data (`route::rank`).

mod agent;
mod demotion;
mod windows;

pub use agent::{AgentLive, PROBE_FAILURES, Probed, Reach};
pub use demotion::{COOL_DOWN_MS, FAILURES};
pub use windows::Quantiles;

use crate::types::request::Heartbeat;
use crate::types::{AgentKey, Fault, Manifest};
use agent::{AgentMemory, Terms};
use foldhash::quality::RandomState;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Protection mode: when it begins and ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protection {
    /// Fewest agents with leases; below, every end of a lease counts.
    pub min_agents: usize,
    /// Share of leases that must end inside `burst_ms`.
    pub share: f64,
    /// How close together they must end, ms.
    pub burst_ms: i64,
    /// It ends when this share of the leases holds again …
    pub recovered: f64,
    /// … or after this long, ms.
    pub longest_ms: i64,
    /// Failed probes in a row that make an agent unreachable.
    pub probe_failures: u32,
    /// Pause between probes of an agent whose manifest names none, ms.
    pub probe_ms: i64,
}

impl Default for Protection {
    fn default() -> Self {
        Self {
            min_agents: 5,
            share: 0.5,
            burst_ms: 60_000,
            recovered: 0.75,
            longest_ms: 3_600_000,
            probe_failures: PROBE_FAILURES,
            probe_ms: 30_000,
        }
    }
}

/// How a call ended, as far as the agent is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallOutcome {
    /// Whether it did what it was asked.
    pub good: bool,
    /// How long it took, ms.
    pub latency_ms: Option<f32>,
}

/// A change of an agent's reach between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveChange {
    /// Which agent.
    pub agent: AgentKey,
    /// How it is now.
    pub now: Reach,
}

/// The live state of all agents at a moment. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LiveSnapshot {
    /// Two looks a candidate in every decision: a quick hash, keyed by chance so that nobody can choose ids that collide.
    agents: Arc<HashMap<AgentKey, AgentLive, RandomState>>,
    /// Agents that changed since then; nothing for those that are gone.
    newer: imbl::HashMap<AgentKey, Option<AgentLive>>,
    /// When it was taken, ms since the epoch.
    pub at_ms: i64,
    /// Protection mode is on: leases may be over though agents are shown as live.
    pub stale: bool,
}

impl LiveSnapshot {
    /// State of one agent.
    pub fn get(&self, agent: &AgentKey) -> Option<&AgentLive> {
        if !self.newer.is_empty()
            && let Some(newer) = self.newer.get(agent)
        {
            return newer.as_ref();
        }
        self.agents.get(agent)
    }

    /// Every agent.
    pub fn iter(&self) -> impl Iterator<Item = (&AgentKey, &AgentLive)> {
        let older = self.agents.iter().filter(|(agent, _)| !self.newer.contains_key(*agent));
        older.chain(self.newer.iter().filter_map(|(agent, live)| Some((agent, live.as_ref()?))))
    }

    /// Number of agents.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// The table that events are told to.
#[derive(Debug, Default)]
pub struct LiveTable {
    agents: HashMap<AgentKey, AgentMemory>,
    protection: Protection,
    /// When protection began; leases that ended at or after `.0` are forgiven.
    protecting: Option<(i64, i64)>,
}

impl LiveTable {
    /// An empty table.
    pub fn new(protection: Protection) -> Self {
        Self { protection, ..Self::default() }
    }

    /// An agent was registered, replaced or drained. A known one keeps its windows and its lease.
    pub fn register(&mut self, manifest: &Manifest, draining: bool, now_ms: i64) {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let terms = Terms {
            ttl_ms: manifest.ttl.map(ms),
            probe_ms: manifest.health_check.as_ref().map(|h| h.interval.map_or(self.protection.probe_ms, ms)),
            draining,
            probe_failures: self.protection.probe_failures,
        };
        let key = manifest.key();
        match self.agents.get_mut(&key) {
            Some(known) => known.terms = terms,
            None => {
                let mut hasher = DefaultHasher::new();
                key.hash(&mut hasher);
                let spread = (hasher.finish() % 1000) as f64 / 1000.0;
                self.agents.insert(key, AgentMemory::new(terms, now_ms, spread));
            }
        }
    }

    /// An agent was deregistered.
    pub fn remove(&mut self, agent: &AgentKey) {
        self.agents.remove(agent);
    }

    /// Takes a heartbeat and renews the lease; when it ends now, ms since the epoch (`None` for a static agent).
    /// The outer `None` is an agent that is not there.
    pub fn heartbeat(&mut self, agent: &AgentKey, beat: &Heartbeat, now_ms: i64) -> Result<Option<Option<i64>>, Fault> {
        if let Some(load) = beat.load
            && !(0.0..=1.0).contains(&load)
        {
            return Err(Fault::new("/load", "a number from 0 to 1", "report the share of capacity in use"));
        }
        Ok(self.agents.get_mut(agent).map(|memory| {
            memory.beat(beat, now_ms);
            memory.lease_until_ms()
        }))
    }

    /// Agents whose probe is due; each is returned once an interval.
    pub fn due_probes(&mut self, now_ms: i64) -> Vec<AgentKey> {
        self.agents.iter_mut().filter_map(|(key, memory)| memory.take_probe(now_ms).then(|| key.clone())).collect()
    }

    /// Result of a probe.
    pub fn probed(&mut self, agent: &AgentKey, answer: Probed) {
        if let Some(memory) = self.agents.get_mut(agent) {
            memory.probed(answer);
        }
    }

    /// What this process has at the agent now: calls under way, messages that wait. Seen at once, between snapshots.
    pub fn load(&self, agent: &AgentKey, in_flight: u32, waiting: u32) {
        if let Some(memory) = self.agents.get(agent) {
            memory.load(in_flight, waiting);
        }
    }

    /// A call to the agent ended; whether that demoted it.
    pub fn finished(&mut self, agent: &AgentKey, outcome: CallOutcome, now_ms: i64) -> bool {
        self.agents.get_mut(agent).is_some_and(|memory| memory.outcome(outcome.good, outcome.latency_ms, now_ms))
    }

    /// A receipt of the agent: acked or not.
    pub fn receipt(&mut self, agent: &AgentKey, acked: bool, now_ms: i64) {
        if let Some(memory) = self.agents.get_mut(agent) {
            memory.receipt(acked, now_ms);
        }
    }

    /// The state for the next View, and whose reach changed since the last one.
    pub fn refresh(&mut self, now_ms: i64) -> (LiveSnapshot, Vec<LiveChange>) {
        self.protect(now_ms);
        let forgive_from = self.protecting.map(|(from, _)| from);
        let mut changes = Vec::new();
        let mut agents = HashMap::with_capacity_and_hasher(self.agents.len(), RandomState::default());
        for (key, memory) in &mut self.agents {
            let live = memory.at(now_ms, forgive_from);
            if memory.shown.is_some_and(|shown| shown != live.reach) {
                changes.push(LiveChange { agent: key.clone(), now: live.reach });
            }
            memory.shown = Some(live.reach);
            agents.insert(key.clone(), live);
        }
        changes.sort_unstable_by(|a, b| a.agent.cmp(&b.agent));
        let stale = self.protecting.is_some();
        (LiveSnapshot { agents: Arc::new(agents), newer: imbl::HashMap::new(), at_ms: now_ms, stale }, changes)
    }

    /// `before` with the state of one agent as it is now, and whether its reach changed. Costs the same in every fleet; leases of others are
    /// looked at by the next [`LiveTable::refresh`].
    pub fn refresh_one(&mut self, before: &LiveSnapshot, agent: &AgentKey, now_ms: i64) -> (LiveSnapshot, Option<LiveChange>) {
        let forgive_from = self.protecting.map(|(from, _)| from);
        let mut change = None;
        let live = self.agents.get_mut(agent).map(|memory| {
            let live = memory.at(now_ms, forgive_from);
            if memory.shown.is_some_and(|shown| shown != live.reach) {
                change = Some(LiveChange { agent: agent.clone(), now: live.reach });
            }
            memory.shown = Some(live.reach);
            live
        });
        (LiveSnapshot { newer: before.newer.update(agent.clone(), live), ..before.clone() }, change)
    }

    /// Begins or ends protection mode.
    fn protect(&mut self, now_ms: i64) {
        let rules = self.protection;
        let count = |from: i64| {
            let ends = self.agents.values().filter_map(AgentMemory::lease_until_ms);
            ends.fold((0usize, 0usize), |(held, ended), until| match until {
                until if until > now_ms => (held + 1, ended),
                until if until >= from => (held, ended + 1),
                _ => (held, ended),
            })
        };
        match self.protecting {
            None => {
                let from = now_ms.saturating_sub(rules.burst_ms);
                let (held, ended) = count(from);
                let all = held + ended;
                if all >= rules.min_agents && ended as f64 >= rules.share * all as f64 {
                    self.protecting = Some((from, now_ms));
                }
            }
            Some((from, began)) => {
                let (held, ended) = count(from);
                if held as f64 >= rules.recovered * (held + ended) as f64 || now_ms.saturating_sub(began) >= rules.longest_ms {
                    self.protecting = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
