//! Who asks for what: decayed counts caller→capability and capability→next capability, kept apart per tenant.
//!
//! In: events (tenant, caller, capability, weight, time). Out: a share 0..=1 of the caller's recent, confirmed work that went to a
//! capability, shrunk towards zero while there is little evidence. An unknown caller gets exactly 0. Counts halve every
//! [`HALF_LIFE_MS`]. Memory is bounded: callers beyond [`MAX_CALLERS`] push out the least recently used.
//! Cost: O(1) per look-up. Not here: how much it may move a score (policy), reading outcomes from the store.

use crate::types::outcome::Outcome;
use std::collections::HashMap;
use std::sync::Arc;

/// Counts halve in this time: 14 days, in milliseconds.
pub const HALF_LIFE_MS: i64 = 14 * 24 * 3600 * 1000;
/// Largest number of callers (and of previous capabilities) that are remembered.
pub const MAX_CALLERS: usize = 100_000;
/// Largest number of capabilities remembered of one caller.
pub const MAX_PER_CALLER: usize = 256;
/// Pseudo-count that shrinks a share towards zero while evidence is thin.
const PRIOR: f32 = 4.0;
/// What an override or a "not mine" counts.
const AGAINST: f32 = -0.5;

/// Decayed weights of one caller (or of one previous capability).
#[derive(Clone, Debug, Default)]
struct Row {
    /// Time the weights are decayed to, ms since the epoch.
    at_ms: i64,
    total: f32,
    weights: HashMap<Arc<str>, f32>,
}

impl Row {
    fn decay_to(&mut self, now_ms: i64) {
        if now_ms > self.at_ms {
            let factor = decay(now_ms - self.at_ms);
            self.total *= factor;
            for weight in self.weights.values_mut() {
                *weight *= factor;
            }
            self.at_ms = now_ms;
        }
    }

    /// What is left of the weights at a time.
    fn left(&self, now_ms: i64) -> f32 {
        decay((now_ms - self.at_ms).max(0))
    }

    fn share(&self, key: &str, left: f32) -> f32 {
        let Some(weight) = self.weights.get(key) else { return 0.0 };
        (weight * left / (self.total * left + PRIOR)).clamp(0.0, 1.0)
    }
}

fn decay(elapsed_ms: i64) -> f32 {
    (0.5f64).powf(elapsed_ms as f64 / HALF_LIFE_MS as f64) as f32
}

/// Share at which a habit begins to count.
const HABIT: f32 = 0.01;
/// Logits a factor of e of habit is worth.
const PER_E: f32 = 1.5;
/// Most that a habit is worth, logits.
pub const MOST: f32 = 5.0;
/// Words up to which a request leaves the most to its caller's habits, and from which on it leaves nothing.
const SHORT: (f32, f32) = (3.0, 6.0);

/// What a share of a caller's work is worth for a request of so many meaningful words, logits, 0..=`MOST`. A long request says what it wants;
/// a short one means what its caller mostly means. Exactly 0 without a share.
pub fn habit(share: f32, words: usize) -> f32 {
    let open = ((SHORT.1 - words as f32) / (SHORT.1 - SHORT.0)).clamp(0.0, 1.0);
    if share <= 0.0 { 0.0 } else { (PER_E * (1.0 + share / HABIT).ln()).min(MOST) * open }
}

/// What is known of one request: of its caller, and of what followed its last one.
pub struct Shares<'a>([Option<(&'a Row, f32)>; 2]);

impl Shares<'_> {
    /// Share of the caller's confirmed work that went to `capability`, or of what followed the last request, whichever is more. 0..=1.
    pub fn of(&self, capability: &str) -> f32 {
        self.0.iter().flatten().map(|(row, left)| row.share(capability, *left)).fold(0.0, f32::max)
    }
}

/// Counts of all callers. Cloning shares rows: a snapshot costs one pointer a caller.
#[derive(Clone, Debug, Default)]
pub struct Cooccurrence {
    callers: imbl::HashMap<Arc<str>, Arc<Row>>,
    nexts: imbl::HashMap<Arc<str>, Arc<Row>>,
}

fn row_key(tenant: Option<&str>, name: &str) -> String {
    format!("{}\u{1f}{name}", tenant.unwrap_or(""))
}

impl Cooccurrence {
    /// Counts that `caller` had `capability` (a stable key such as `namespace/agent#intent` or the folded intent) confirmed with `weight`
    /// (1 acked or adopted, less for modified; negative for overridden), after `previous` if that is known.
    pub fn record(&mut self, tenant: Option<&str>, caller: &str, capability: &str, previous: Option<&str>, weight: f32, at_ms: i64) {
        if caller.is_empty() || !weight.is_finite() {
            return;
        }
        add(&mut self.callers, row_key(tenant, caller), capability, weight, at_ms);
        if let Some(previous) = previous {
            add(&mut self.nexts, row_key(tenant, previous), capability, weight, at_ms);
        }
    }

    /// Counts an outcome: what was right, and against what was wrong. One that names nobody, or says nothing about who was meant, counts nothing.
    pub fn learn(&mut self, outcome: &Outcome) {
        let (tenant, previous) = (outcome.tenant.as_deref(), outcome.previous.as_deref());
        if let Some((right, weight)) = outcome.right() {
            self.record(tenant, &outcome.caller, &right.to_string(), previous, weight, outcome.at_ms);
        }
        if let Some(wrong) = outcome.wrong() {
            self.record(tenant, &outcome.caller, &wrong.to_string(), previous, AGAINST, outcome.at_ms);
        }
    }

    /// What is known of one request's caller and of what followed its `previous` capability; nothing where neither is known.
    pub fn shares(&self, tenant: Option<&str>, caller: &str, previous: Option<&str>, now_ms: i64) -> Option<Shares<'_>> {
        let rows = [self.callers.get(row_key(tenant, caller).as_str()), previous.and_then(|p| self.nexts.get(row_key(tenant, p).as_str()))];
        let rows = rows.map(|row| row.map(|row| (&**row, row.left(now_ms))));
        rows.iter().any(Option::is_some).then_some(Shares(rows))
    }

    /// Forgets a caller.
    pub fn forget(&mut self, tenant: Option<&str>, caller: &str) -> bool {
        self.callers.remove(row_key(tenant, caller).as_str()).is_some()
    }

    /// Number of callers remembered.
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// Whether nobody is remembered.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.nexts.is_empty()
    }
}

fn add(rows: &mut imbl::HashMap<Arc<str>, Arc<Row>>, key: String, capability: &str, weight: f32, at_ms: i64) {
    if rows.len() >= MAX_CALLERS && !rows.contains_key(key.as_str()) {
        // rare: one pass over the rows for the stalest one
        if let Some(oldest) = rows.iter().min_by_key(|(_, row)| row.at_ms).map(|(k, _)| k.clone()) {
            rows.remove(&oldest);
        }
    }
    let mut row = rows.get(key.as_str()).map_or_else(Row::default, |row| Row::clone(row));
    if row.at_ms == 0 {
        row.at_ms = at_ms;
    }
    row.decay_to(at_ms);
    if row.weights.len() >= MAX_PER_CALLER
        && !row.weights.contains_key(capability)
        && let Some(least) = row.weights.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(k, _)| k.clone())
    {
        row.total -= row.weights.remove(&least).unwrap_or(0.0);
    }
    // an event from the past counts with what is left of it
    let weight = weight * decay((row.at_ms - at_ms).max(0));
    let slot = row.weights.entry(Arc::from(capability)).or_insert(0.0);
    let before = *slot;
    *slot = (before + weight).max(0.0);
    row.total = (row.total + *slot - before).max(0.0);
    rows.insert(Arc::from(key), Arc::new(row));
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600 * 1000;

    fn of_caller(c: &Cooccurrence, tenant: Option<&str>, caller: &str, capability: &str, now_ms: i64) -> f32 {
        c.shares(tenant, caller, None, now_ms).map_or(0.0, |s| s.of(capability))
    }

    #[test]
    fn known_callers_have_shares_unknown_ones_none() {
        let mut c = Cooccurrence::default();
        for i in 0..20 {
            c.record(Some("acme"), "warehouse", "return_goods", None, 1.0, i * 1000);
        }
        c.record(Some("acme"), "warehouse", "refund", None, 1.0, 20_000);
        assert!(of_caller(&c, Some("acme"), "warehouse", "return_goods", 30_000) > 0.7);
        assert!(of_caller(&c, Some("acme"), "warehouse", "refund", 30_000) < 0.1);
        assert_eq!(of_caller(&c, Some("acme"), "stranger", "refund", 30_000), 0.0);
        assert_eq!(of_caller(&c, Some("other"), "warehouse", "return_goods", 30_000), 0.0, "tenants are kept apart");
    }

    #[test]
    fn evidence_fades_and_can_be_taken_back() {
        let mut c = Cooccurrence::default();
        c.record(None, "a", "x", None, 8.0, DAY);
        let fresh = of_caller(&c, None, "a", "x", DAY);
        let old = of_caller(&c, None, "a", "x", 60 * DAY);
        assert!(old < fresh / 2.0 && old > 0.0, "{old} of {fresh}");
        c.record(None, "a", "x", None, -100.0, DAY);
        assert_eq!(of_caller(&c, None, "a", "x", DAY), 0.0);
        assert!(c.forget(None, "a") && c.shares(None, "a", None, DAY).is_none());
    }

    #[test]
    fn habits_count_for_short_requests_alone() {
        assert_eq!((habit(0.0, 1), habit(0.9, 6), habit(0.9, 40)), (0.0, 0.0, 0.0));
        assert!(habit(0.1, 1) > 3.0 && habit(0.1, 1) < habit(0.3, 1) && habit(1.0, 1) <= MOST);
        assert!(habit(0.3, 5) < habit(0.3, 4) && habit(0.3, 3) == habit(0.3, 1));
    }

    #[test]
    fn a_snapshot_does_not_change() {
        let mut c = Cooccurrence::default();
        c.record(None, "a", "x", Some("y"), 1.0, DAY);
        let snapshot = c.clone();
        c.record(None, "a", "x", Some("y"), 50.0, DAY);
        assert!(of_caller(&snapshot, None, "a", "x", DAY) < of_caller(&c, None, "a", "x", DAY));
        assert!(c.shares(None, "b", Some("y"), DAY).is_some_and(|s| s.of("x") > 0.5));
    }
}
