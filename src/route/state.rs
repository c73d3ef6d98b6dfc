//! What the live state of an agent means for a query: whether it may be asked at all, and its values for the ranking.
//!
//! The count of calls this process has under way is read here, at pick time, over the agent's last report: a View that is ten seconds old
//! does not herd traffic.

use crate::catalog::CapEntry;
use crate::live::Reach;
use crate::route::shortlist::LiveTerms;
use crate::types::decision::DropReason;
use crate::types::policy::Preset;
use crate::types::query::Query;
use crate::view::View;

/// Latency is compared with this when the query has no deadline, ms (the default ttl of a message).
pub const DEFAULT_TTL_MS: f32 = 30_000.0;

/// Why an agent can't take anything now.
pub fn unavailable(view: &View, cap: &CapEntry, query: &Query) -> Option<DropReason> {
    if cap.agent.draining {
        return Some(DropReason::Draining);
    }
    let live = view.live.get(&cap.agent.key)?;
    // the lease is checked at the time of the query, not of the snapshot
    let over = live.lease_until_ms.is_some_and(|until| until <= query.at_ms) && !live.stale && !view.live.stale;
    match live.reach {
        Reach::Expired if !view.live.stale => return Some(DropReason::LeaseExpired),
        Reach::Unreachable => return Some(DropReason::Unreachable),
        Reach::Live | Reach::Static | Reach::Expired => {}
    }
    if over && query.at_ms >= view.live.at_ms {
        return Some(DropReason::LeaseExpired);
    }
    if live.draining {
        return Some(DropReason::Draining);
    }
    if live.traffic_share <= 0.0 {
        return Some(DropReason::Breaker);
    }
    let most = preset(view, query).map_or(0.0, |p| p.max_load);
    let load = live.load.unwrap_or(0.0).max(queue_share(live.queue_length, cap).unwrap_or(0.0));
    if (most > 0.0 && load > most) || queue_share(live.queue_length, cap).is_some_and(|q| q >= 1.0) {
        return Some(DropReason::Overloaded);
    }
    None
}

fn preset<'a>(view: &'a View, query: &Query) -> Option<&'a Preset> {
    let policy = &view.policy;
    query.preset.as_ref().and_then(|p| policy.presets.get(p)).or_else(|| policy.presets.get(&policy.default_preset))
}

fn queue_share(queue: Option<u32>, cap: &CapEntry) -> Option<f32> {
    queue.map(|q| q as f32 / cap.agent.manifest.max_queue_depth.max(1) as f32)
}

/// Values for the ranking.
pub fn terms(view: &View, cap: &CapEntry) -> LiveTerms {
    let Some(live) = view.live.get(&cap.agent.key) else { return LiveTerms { traffic_share: 1.0, ..LiveTerms::default() } };
    let (here, waiting) = (live.local_in_flight(), live.local_waiting());
    let queue = match (live.queue_length, waiting) {
        (None, 0) => None,
        (reported, waiting) => Some(reported.unwrap_or(0).max(waiting)),
    };
    let in_flight = match (live.in_flight, here) {
        (None, 0) => None,
        (reported, here) => Some(reported.unwrap_or(0).max(here)),
    };
    LiveTerms {
        queue_share: queue_share(queue, cap).map(|q| q.min(1.0)),
        load: live.load,
        health: live.success_1m,
        p50_ms: live.latency.map(|l| l.p50).or_else(|| cap.capability().latency_hint.map(|h| h.as_millis() as f32)),
        p90_ms: live.latency.map(|l| l.p90),
        in_flight_share: in_flight.map(|n| (n as f32 / cap.agent.manifest.concurrency.max(1) as f32).min(1.0)),
        ack_rate: live.ack_rate,
        success_24h: live.success_24h,
        traffic_share: live.traffic_share,
    }
}
