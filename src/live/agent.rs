//! What is remembered of one agent, and what the others are shown of it.

use super::demotion::Demotion;
use super::windows::{Counts, Latency, Quantiles};
use crate::types::request::Heartbeat;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Probes in a row that must fail before an agent counts as unreachable.
pub const PROBE_FAILURES: u32 = 3;

/// What the registry says about how an agent is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Lease, ms; `None` = static.
    pub ttl_ms: Option<i64>,
    /// Pause between probes, ms, when it has a health check.
    pub probe_ms: Option<i64>,
    /// Drained by the registry.
    pub draining: bool,
    /// Failed probes in a row that make it unreachable; at least 1.
    pub probe_failures: u32,
}

/// Whether an agent can be reached, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Its lease holds.
    Live,
    /// It has no lease and nothing speaks against it.
    Static,
    /// No heartbeat inside the lease.
    Expired,
    /// Three probes in a row failed.
    Unreachable,
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It works.
    Good,
    /// No good answer.
    Failed,
    /// Its address may not be called (any more): nothing was sent.
    Blocked,
}

/// State of one agent at a moment; what a decision reads. `None` = no data: the reader applies its stated prior.
#[derive(Clone, Debug)]
pub struct AgentLive {
    /// Whether it can be reached.
    pub reach: Reach,
    /// Its lease is over but it is kept, because most leases ended at once (protection mode).
    pub stale: bool,
    /// When its lease ends, ms since the epoch.
    pub lease_until_ms: Option<i64>,
    /// Its health address may not be called: unreachable for that reason, not because it failed.
    pub blocked: bool,
    /// Takes no new work.
    pub draining: bool,
    /// Load it reported, 0..=1.
    pub load: Option<f32>,
    /// Messages that wait at it.
    pub queue_length: Option<u32>,
    /// Calls under way, as it reported.
    pub in_flight: Option<u32>,
    /// Success rate of the last minute, 0..=1.
    pub success_1m: Option<f32>,
    /// Success rate of the last 24 h.
    pub success_24h: Option<f32>,
    /// Share of acks among the receipts of the last minute.
    pub ack_rate: Option<f32>,
    /// Durations of the last minute, ms.
    pub latency: Option<Quantiles>,
    /// Share of its normal traffic that it may take (demotion, slow start), 0..=1.
    pub traffic_share: f32,
    /// Failures in a row.
    pub failures: u32,
    /// What this process has at it; moves between snapshots.
    local: Arc<Local>,
}

/// Load of an agent by this process.
#[derive(Debug, Default)]
struct Local {
    /// Calls under way.
    in_flight: AtomicU32,
    /// Messages that wait for it here.
    waiting: AtomicU32,
}

impl AgentLive {
    /// Whether it may be chosen at all: reachable and not draining. Its traffic share is for ranking.
    pub fn is_available(&self) -> bool {
        matches!(self.reach, Reach::Live | Reach::Static) && !self.draining
    }

    /// Calls this process has under way at it now.
    pub fn local_in_flight(&self) -> u32 {
        self.local.in_flight.load(Ordering::Relaxed)
    }

    /// Messages that wait for it in this process now.
    pub fn local_waiting(&self) -> u32 {
        self.local.waiting.load(Ordering::Relaxed)
    }

    /// `live`, `static`, `expired`, `unreachable`, `blocked_url` or `draining`.
    pub fn status(&self) -> &'static str {
        match self.reach {
            Reach::Expired => "expired",
            Reach::Unreachable if self.blocked => "blocked_url",
            Reach::Unreachable => "unreachable",
            Reach::Live | Reach::Static if self.draining => "draining",
            Reach::Live => "live",
            Reach::Static => "static",
        }
    }
}

/// Windows of an agent that has traffic; the others don't pay for them.
#[derive(Debug)]
struct Traffic {
    minute: Counts,
    day: Counts,
    acks: Counts,
    latency: Latency,
}

impl Default for Traffic {
    fn default() -> Self {
        let minute = || Counts::new(12, 5_000);
        Self { minute: minute(), day: Counts::new(48, 1_800_000), acks: minute(), latency: Latency::default() }
    }
}

/// What is remembered of one agent.
#[derive(Debug)]
pub struct AgentMemory {
    /// How it is kept alive.
    pub terms: Terms,
    /// When its lease began or was renewed last.
    renewed_ms: i64,
    /// Whether it ever sent a heartbeat: then its lease decides, not probes.
    beats: bool,
    last: Heartbeat,
    probe_failures: u32,
    blocked: bool,
    next_probe_ms: i64,
    demotion: Demotion,
    traffic: Option<Box<Traffic>>,
    local: Arc<Local>,
    /// What was shown last.
    pub shown: Option<Reach>,
}

impl AgentMemory {
    /// A newly registered agent; `spread` (0..=1) spreads first probes over the interval.
    pub fn new(terms: Terms, now_ms: i64, spread: f64) -> Self {
        let first = terms.probe_ms.map_or(0, |p| (p as f64 * spread) as i64);
        Self {
            terms,
            renewed_ms: now_ms,
            beats: false,
            last: Heartbeat::default(),
            probe_failures: 0,
            blocked: false,
            next_probe_ms: now_ms.saturating_add(first),
            demotion: Demotion::default(),
            traffic: None,
            local: Arc::default(),
            shown: None,
        }
    }

    /// A heartbeat that was checked.
    pub fn beat(&mut self, beat: &Heartbeat, now_ms: i64) {
        self.beats = true;
        self.renewed_ms = self.renewed_ms.max(now_ms);
        self.probe_failures = 0;
        self.blocked = false;
        // what a heartbeat leaves out stays as it was
        self.last = Heartbeat {
            load: beat.load.or(self.last.load),
            queue_length: beat.queue_length.or(self.last.queue_length),
            in_flight: beat.in_flight.or(self.last.in_flight),
            draining: beat.draining.or(self.last.draining),
        };
    }

    /// Whether a probe is due; if so the next one is set.
    pub fn take_probe(&mut self, now_ms: i64) -> bool {
        let due = !self.beats && self.terms.probe_ms.is_some() && self.next_probe_ms <= now_ms;
        if due {
            self.next_probe_ms = now_ms.saturating_add(self.terms.probe_ms.unwrap_or(0).max(100));
        }
        due
    }

    /// Result of a probe.
    pub fn probed(&mut self, answer: Probed) {
        self.blocked = answer == Probed::Blocked;
        self.probe_failures = match answer {
            Probed::Good => 0,
            Probed::Failed => self.probe_failures.saturating_add(1),
            // not its health is at fault: it needs no second chance, and gets one with the next good answer
            Probed::Blocked => u32::MAX,
        };
    }

    /// What this process has at it now.
    pub fn load(&self, in_flight: u32, waiting: u32) {
        self.local.in_flight.store(in_flight, Ordering::Relaxed);
        self.local.waiting.store(waiting, Ordering::Relaxed);
    }

    /// An outcome; whether it demoted the agent.
    pub fn outcome(&mut self, good: bool, latency_ms: Option<f32>, now_ms: i64) -> bool {
        let traffic = self.traffic.get_or_insert_default();
        traffic.minute.add(now_ms, good);
        traffic.day.add(now_ms, good);
        if let Some(ms) = latency_ms.filter(|_| good) {
            traffic.latency.add(now_ms, ms);
        }
        self.demotion.on(now_ms, good)
    }

    /// A receipt: acked or not.
    pub fn receipt(&mut self, acked: bool, now_ms: i64) {
        self.traffic.get_or_insert_default().acks.add(now_ms, acked);
    }

    /// When its lease ends, if a lease decides: it has one, and it heartbeats or can't be probed.
    pub fn lease_until_ms(&self) -> Option<i64> {
        let ttl = self.terms.ttl_ms?;
        (self.beats || self.terms.probe_ms.is_none()).then(|| self.renewed_ms.saturating_add(ttl))
    }

    /// State at a moment. `forgive_from`: leases that ended at or after it count as held (protection mode).
    pub fn at(&self, now_ms: i64, forgive_from: Option<i64>) -> AgentLive {
        let lease_until_ms = self.lease_until_ms();
        let over = lease_until_ms.is_some_and(|until| until <= now_ms);
        let stale = over && forgive_from.is_some_and(|from| lease_until_ms.is_some_and(|until| until >= from));
        let reach = if over && !stale {
            Reach::Expired
        } else if self.probe_failures >= self.terms.probe_failures.max(1) {
            Reach::Unreachable
        } else if self.terms.ttl_ms.is_some() {
            Reach::Live
        } else {
            Reach::Static
        };
        let traffic = self.traffic.as_deref();
        AgentLive {
            reach,
            stale,
            lease_until_ms,
            blocked: self.blocked,
            draining: self.terms.draining || self.last.draining.unwrap_or(false),
            load: self.last.load.map(|l| l as f32),
            queue_length: self.last.queue_length,
            in_flight: self.last.in_flight,
            success_1m: traffic.and_then(|t| t.minute.rate(now_ms)),
            success_24h: traffic.and_then(|t| t.day.rate(now_ms)),
            ack_rate: traffic.and_then(|t| t.acks.rate(now_ms)),
            latency: traffic.and_then(|t| t.latency.quantiles(now_ms)),
            traffic_share: self.demotion.share(now_ms),
            failures: self.demotion.failures(),
            local: self.local.clone(),
        }
    }
}
