//! How much one owner may register: agents in all, and registrations in a time.
//!
//! In: the owner, how many agents it has, the time. Out: may it, or which limit it met and when to try again. One publisher can neither fill the
//! fleet nor keep the encoder busy. Bounded: at most [`OWNERS`] owners are remembered; who is not remembered has a full allowance.
//! Cost: one short lock. Not here: who owns what (`ingest::Ingest`).

use crate::error::{Code, Error};
use crate::types::Fault;
use crate::types::bucket::Bucket;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Owners whose pace is remembered.
const OWNERS: usize = 4096;

/// The limits of one owner. The local principal, who is alone, has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// Most agents; 0 = no limit.
    pub agents: usize,
    /// Most changing registrations in a minute; 0 = no limit. A minute's worth may come at once.
    pub per_minute: usize,
}

/// The pace of each owner.
#[derive(Debug, Default)]
pub struct Pace {
    owners: Mutex<HashMap<Arc<str>, Bucket>>,
}

impl Quota {
    /// Whether `owner`, who has `have` agents, may have one more.
    pub fn admits(&self, owner: &str, have: usize) -> Result<(), Error> {
        if self.agents == 0 || have < self.agents {
            return Ok(());
        }
        let fault = Fault::new(
            "/agent_id",
            format!("at most {} agents of one owner (registry.agents_per_owner)", self.agents),
            "deregister agents that are no longer used, or ask the operator for more",
        );
        Err(Error {
            faults: vec![fault],
            ..Error::new(Code::Conflict, format!("{owner} has {have} agents, the most that it may register"))
        })
    }
}

impl Pace {
    /// Takes one registration of `owner`'s allowance.
    pub fn take(&self, quota: Quota, owner: &str, now_ms: i64) -> Result<(), Error> {
        if quota.per_minute == 0 {
            return Ok(());
        }
        let full = quota.per_minute as f64;
        let mut owners = self.owners.lock();
        if owners.len() >= OWNERS && !owners.contains_key(owner) {
            // whoever has been quiet for a minute has a full allowance anyway
            owners.retain(|_, a| now_ms.saturating_sub(a.at_ms()) < 60_000);
            if owners.len() >= OWNERS {
                owners.clear();
            }
        }
        let allowance = owners.entry(owner.into()).or_insert_with(|| Bucket::full(full / 60.0, full, now_ms));
        allowance.refill(now_ms, 1.0);
        if allowance.take() {
            return Ok(());
        }
        let wait = Duration::from_millis(u64::try_from(allowance.wait_ms()).unwrap_or(0));
        let message = format!("{owner} registers more than {} times a minute (registry.registrations_per_minute)", quota.per_minute);
        Err(Error::overloaded(message, wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_owner_is_told_the_limit() {
        let quota = Quota { agents: 2, per_minute: 0 };
        assert!(quota.admits("a", 1).is_ok());
        let e = quota.admits("a", 2).unwrap_err();
        assert_eq!(e.code, Code::Conflict);
        assert!(e.faults[0].expected.contains("at most 2"), "{e:?}");
        assert!(Quota::default().admits("a", 1_000_000).is_ok());
    }

    #[test]
    fn a_flood_of_one_owner_waits_and_others_do_not() {
        let (pace, quota) = (Pace::default(), Quota { agents: 0, per_minute: 60 });
        for _ in 0..60 {
            pace.take(quota, "flood", 0).unwrap();
        }
        let e = pace.take(quota, "flood", 0).unwrap_err();
        assert_eq!((e.code, e.retry_after), (Code::Overloaded, Some(Duration::from_secs(1))));
        assert!(pace.take(quota, "quiet", 0).is_ok());
        assert!(pace.take(quota, "flood", 1000).is_ok());
        assert!(pace.take(quota, "flood", 1000).is_err());
        assert!(pace.take(quota, "flood", -3_600_000).is_err());
    }

    #[test]
    fn owners_that_are_remembered_are_bounded() {
        let (pace, quota) = (Pace::default(), Quota { agents: 0, per_minute: 1 });
        for i in 0..3 * OWNERS {
            pace.take(quota, &format!("o{i}"), 0).unwrap();
        }
        assert!(pace.owners.lock().len() <= OWNERS);
    }
}
