use super::*;
use crate::types::Namespace;
use crate::types::manifest_check::{Rules, check};
use proptest::prelude::*;
use serde_json::json;

fn key(id: &str) -> AgentKey {
    AgentKey::local(Namespace::new("n").unwrap(), id)
}

fn manifest(id: &str, ttl: &str, health: bool) -> Manifest {
    let mut value = json!({"namespace": "n", "agent_id": id, "ttl": ttl, "endpoints": [{"protocol": "pull"}],
        "capabilities": [{"intent": "x_y", "description": "x"}]});
    if health {
        value["health_check"] = json!({"address": "http://a/health", "interval": "30s"});
    }
    check(&value, &Rules::default()).unwrap().manifest
}

fn table(agents: &[(&str, &str, bool)]) -> LiveTable {
    let mut table = LiveTable::default();
    for (id, ttl, health) in agents {
        table.register(&manifest(id, ttl, *health), false, 0);
    }
    table
}

fn beat(table: &mut LiveTable, id: &str, at: i64) {
    table.heartbeat(&key(id), &Heartbeat::default(), at).unwrap();
}

fn reach(table: &mut LiveTable, id: &str, at: i64) -> Reach {
    table.refresh(at).0.get(&key(id)).unwrap().reach
}

#[test]
fn a_lease_without_heartbeats_ends() {
    let mut t = table(&[("a", "30s", false), ("s", "none", false)]);
    assert_eq!((reach(&mut t, "a", 29_999), reach(&mut t, "s", 29_999)), (Reach::Live, Reach::Static));
    let (snapshot, changes) = t.refresh(30_000);
    assert_eq!(changes, [LiveChange { agent: key("a"), now: Reach::Expired }]);
    let a = snapshot.get(&key("a")).unwrap();
    assert!(!a.is_available() && a.status() == "expired" && a.lease_until_ms == Some(30_000));
    assert_eq!(t.heartbeat(&key("a"), &Heartbeat::default(), 40_000).unwrap(), Some(Some(70_000)));
    assert_eq!(t.refresh(40_000).1, [LiveChange { agent: key("a"), now: Reach::Live }]);
    assert_eq!(reach(&mut t, "s", i64::MAX), Reach::Static);
    assert_eq!(t.heartbeat(&key("zzz"), &Heartbeat::default(), 0).unwrap(), None);
    t.remove(&key("a"));
    assert!(t.refresh(40_000).0.get(&key("a")).is_none());
}

#[test]
fn a_heartbeat_is_checked_and_kept() {
    let mut t = table(&[("a", "30s", false)]);
    for load in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        let fault = t.heartbeat(&key("a"), &Heartbeat { load: Some(load), ..Heartbeat::default() }, 1).unwrap_err();
        assert_eq!(fault.pointer, "/load");
    }
    t.heartbeat(&key("a"), &Heartbeat { load: Some(0.5), queue_length: Some(7), in_flight: Some(2), draining: Some(true) }, 1).unwrap();
    t.heartbeat(&key("a"), &Heartbeat { load: Some(0.25), ..Heartbeat::default() }, 2).unwrap();
    let live = t.refresh(3).0.get(&key("a")).unwrap().clone();
    assert_eq!((live.load, live.queue_length, live.in_flight, live.status()), (Some(0.25), Some(7), Some(2), "draining"));
    assert!(!live.is_available());
    t.heartbeat(&key("a"), &Heartbeat { draining: Some(false), ..Heartbeat::default() }, 3).unwrap();
    assert!(t.refresh(3).0.get(&key("a")).unwrap().is_available());
    t.register(&manifest("a", "30s", false), true, 4);
    assert_eq!(t.refresh(4).0.get(&key("a")).unwrap().status(), "draining", "drained by the registry");
}

#[test]
fn probes_decide_for_those_that_do_not_heartbeat() {
    let mut t = table(&[("p", "30s", true), ("b", "30s", true), ("s", "none", true), ("n", "none", false)]);
    beat(&mut t, "b", 10);
    let mut probed: HashMap<AgentKey, u32> = HashMap::new();
    for second in 0..90 {
        for agent in t.due_probes(second * 1000) {
            *probed.entry(agent).or_default() += 1;
        }
    }
    let count = |id: &str| probed.get(&key(id)).copied().unwrap_or(0);
    assert_eq!(
        (count("p"), count("s"), count("b"), count("n")),
        (3, 3, 0, 0),
        "every 30 s, only those with a health check and no heartbeat"
    );
    assert_eq!(reach(&mut t, "p", 90_000), Reach::Live, "its probes have not failed");
    for failed in 1..=3 {
        t.probed(&key("p"), Probed::Failed);
        let expected = if failed < PROBE_FAILURES { Reach::Live } else { Reach::Unreachable };
        assert_eq!(reach(&mut t, "p", 90_000), expected);
    }
    t.probed(&key("p"), Probed::Good);
    assert_eq!(reach(&mut t, "p", 90_000), Reach::Live);
    assert_eq!(reach(&mut t, "b", 90_000), Reach::Expired, "it heartbeat once: its lease decides");
}

#[test]
fn no_data_is_no_number() {
    let mut t = table(&[("a", "none", false)]);
    let live = t.refresh(0).0.get(&key("a")).unwrap().clone();
    assert_eq!((live.success_1m, live.success_24h, live.ack_rate, live.latency, live.load), (None, None, None, None, None));
    assert_eq!((live.traffic_share, live.failures, live.local_in_flight()), (1.0, 0, 0));
}

#[test]
fn windows_and_demotion() {
    let mut t = table(&[("a", "none", false)]);
    let good = CallOutcome { good: true, latency_ms: Some(100.0) };
    let bad = CallOutcome { good: false, latency_ms: Some(9_000.0) };
    for i in 0..9 {
        assert!(!t.finished(&key("a"), good, i * 100));
        t.receipt(&key("a"), true, i * 100);
    }
    t.finished(&key("a"), bad, 1_000);
    t.receipt(&key("a"), false, 1_000);
    let live = t.refresh(1_000).0.get(&key("a")).unwrap().clone();
    assert_eq!((live.success_1m, live.ack_rate, live.latency.unwrap().p95), (Some(0.9), Some(0.9), 100.0));
    let later = t.refresh(120_000).0.get(&key("a")).unwrap().clone();
    assert_eq!((later.success_1m, later.success_24h, later.latency), (None, Some(0.9), None));
    assert!(!t.finished(&key("a"), bad, 200_000) && t.finished(&key("a"), bad, 200_000), "with the one before it is the third");
    assert_eq!(t.refresh(200_000).0.get(&key("a")).unwrap().traffic_share, 0.0);
    assert_eq!(t.refresh(231_000).0.get(&key("a")).unwrap().traffic_share, 0.05);
}

#[test]
fn the_load_of_this_process_is_seen_between_snapshots() {
    let mut t = table(&[("a", "none", false)]);
    let snapshot = t.refresh(0).0;
    let now = |s: &LiveSnapshot| s.get(&key("a")).map(|l| (l.local_in_flight(), l.local_waiting())).unwrap();
    t.load(&key("a"), 2, 7);
    t.load(&key("nobody"), 9, 9);
    assert_eq!(now(&snapshot), (2, 7));
    t.register(&manifest("a", "30s", false), false, 2);
    assert_eq!(now(&snapshot), (2, 7), "a new version keeps it");
    t.load(&key("a"), 0, 0);
    assert_eq!(now(&snapshot), (0, 0));
}

fn fleet(n: usize) -> (LiveTable, Vec<String>) {
    let names: Vec<String> = (0..n).map(|i| format!("a{i}")).collect();
    let mut t = LiveTable::default();
    for id in &names {
        t.register(&manifest(id, "30s", false), false, 0);
        beat(&mut t, id, 0);
    }
    (t, names)
}

#[test]
fn when_most_leases_end_at_once_the_table_is_kept() {
    let (mut t, names) = fleet(20);
    // 80 % of the heartbeats are cut
    for at in [10_000, 20_000, 30_000, 40_000] {
        names.iter().take(4).for_each(|id| beat(&mut t, id, at));
    }
    let (snapshot, changes) = t.refresh(40_000);
    assert!(snapshot.stale && changes.is_empty());
    assert_eq!(snapshot.iter().filter(|(_, a)| a.is_available()).count(), 20);
    assert_eq!(snapshot.iter().filter(|(_, a)| a.stale).count(), 16);
    // a long time later still, but not for ever
    names.iter().take(4).for_each(|id| beat(&mut t, id, 1_000_000));
    assert!(t.refresh(1_000_000).0.stale);
    names.iter().take(4).for_each(|id| beat(&mut t, id, 4_000_000));
    let late = t.refresh(4_000_000).0;
    assert!(!late.stale);
    assert_eq!(late.iter().filter(|(_, a)| a.is_available()).count(), 4);
}

#[test]
fn protection_ends_when_they_are_back_and_spares_single_losses() {
    let (mut t, names) = fleet(20);
    assert!(t.refresh(31_000).0.stale);
    names.iter().take(16).for_each(|id| beat(&mut t, id, 35_000));
    let back = t.refresh(36_000).0;
    assert!(!back.stale);
    assert_eq!(back.iter().filter(|(_, a)| a.is_available()).count(), 16, "those that did not come back are gone");
    let (mut t, names) = fleet(20);
    names.iter().take(14).for_each(|id| beat(&mut t, id, 20_000));
    let some = t.refresh(31_000).0;
    assert!(!some.stale);
    assert_eq!(some.iter().filter(|(_, a)| a.is_available()).count(), 14);
    let (mut t, _) = fleet(4);
    assert!(!t.refresh(31_000).0.stale, "too few to tell");
}

proptest! {
    #[test]
    fn any_sequence_is_safe(events in prop::collection::vec((0u8..6, 0u8..3, any::<i32>(), any::<bool>()), 0..80)) {
        let mut t = table(&[("a", "30s", true), ("b", "1s", false), ("c", "none", true)]);
        for (what, who, at, good) in events {
            let (agent, at) = (key(["a", "b", "c"][usize::from(who)]), i64::from(at));
            match what {
                0 => drop(t.heartbeat(&agent, &Heartbeat { load: Some(f64::from(who) / 2.0), ..Heartbeat::default() }, at)),
                1 => t.load(&agent, at as u32 % 7, 1),
                2 => drop(t.finished(&agent, CallOutcome { good, latency_ms: Some(at as f32) }, at)),
                3 => t.receipt(&agent, good, at),
                4 => t.probed(&agent, if good { Probed::Good } else { Probed::Failed }),
                _ => drop(t.due_probes(at)),
            }
            let (snapshot, _) = t.refresh(at);
            for (_, live) in snapshot.iter() {
                prop_assert!((0.0..=1.0).contains(&live.traffic_share));
                prop_assert!(live.success_1m.is_none_or(|r| (0.0..=1.0).contains(&r)));
                prop_assert!(live.local_in_flight() < 100);
            }
        }
    }
}

#[test]
fn one_agent_is_shown_without_looking_at_the_others() {
    let mut t = table(&[("a", "30s", false), ("b", "30s", false)]);
    let (before, _) = t.refresh(0);
    beat(&mut t, "a", 20_000);
    t.register(&manifest("c", "none", false), false, 20_000);
    let (a, _) = t.refresh_one(&before, &key("a"), 31_000);
    let (c, change) = t.refresh_one(&a, &key("c"), 31_000);
    assert!(change.is_none(), "a new agent is no change of reach");
    assert_eq!(c.get(&key("a")).unwrap().lease_until_ms, Some(50_000));
    assert_eq!((c.len(), c.get(&key("c")).unwrap().reach), (3, Reach::Static));
    assert_eq!(c.get(&key("b")).unwrap().reach, Reach::Live, "the others wait for the next refresh");
    assert_eq!(t.refresh_one(&c, &key("b"), 31_000).1, Some(LiveChange { agent: key("b"), now: Reach::Expired }));
    t.remove(&key("a"));
    let (gone, _) = t.refresh_one(&c, &key("a"), 32_000);
    assert!(gone.get(&key("a")).is_none() && gone.len() == 2 && gone.iter().all(|(k, _)| *k != key("a")));
    assert_eq!(c.len(), 3, "a snapshot does not change");
}
