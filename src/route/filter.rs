//! Who may take a query at all: permission, place, time, price, state. Strict and first; everything dropped keeps its reason.
//!
//! In: a View, a query. Out: for each capability that recall asks about, admitted or the reason why not.
//! Capabilities of namespaces the caller can't see never come here: the indexes skip them, so neither reasons nor timings tell of them.
//! A target skips semantics, never permission. Cost: tens of nanoseconds a capability; the payload is validated last, once a schema.
//! Not here: similarity (`recall`), preferences (`rank`).

use crate::catalog::CapEntry;
use crate::route::{payload, state};
use crate::types::decision::{DropReason, Dropped};
use crate::types::query::Query;
use crate::types::rules::{Effect, QueryRules};
use crate::view::View;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Most dropped candidates that are remembered with their reasons.
const MAX_DROPPED: usize = 64;

/// The filter of one query. Remembers verdicts, so that both arms and the features ask once.
pub struct Gate<'a> {
    view: &'a View,
    query: &'a Query,
    rules: QueryRules<'a>,
    verdicts: HashMap<u32, bool, BuildHasherDefault<SlotHasher>>,
    dropped: Vec<(u32, DropReason)>,
}

/// Spreads slots, which are ours and small: nobody can choose them so that they collide.
#[derive(Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }

    fn write_u32(&mut self, slot: u32) {
        self.0 = (self.0 ^ u64::from(slot)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

impl<'a> Gate<'a> {
    /// A gate for one query.
    pub fn new(view: &'a View, query: &'a Query) -> Self {
        let rules = view.rules.for_query(&query.principal.caller, &query.text);
        Self { view, query, rules, verdicts: HashMap::with_capacity_and_hasher(128, BuildHasherDefault::default()), dropped: Vec::new() }
    }

    /// Whether the capability in `slot` may take the query.
    pub fn admits(&mut self, slot: u32) -> bool {
        if let Some(known) = self.verdicts.get(&slot) {
            return *known;
        }
        let Some(cap) = self.view.cap(slot) else { return false };
        let reason = self.judge(cap);
        let admitted = reason.is_none();
        if let Some(reason) = reason
            && self.dropped.len() < MAX_DROPPED
        {
            self.dropped.push((slot, reason));
        }
        self.verdicts.insert(slot, admitted);
        admitted
    }

    /// The rule that forces a capability, if any.
    pub fn forced(&self, cap: &CapEntry) -> Option<String> {
        if self.rules.may_force() { self.effect(cap).forced } else { None }
    }

    /// Whether some rule may force a capability for this query.
    pub fn may_force(&self) -> bool {
        self.rules.may_force()
    }

    fn effect(&self, cap: &CapEntry) -> Effect {
        if self.rules.is_empty() {
            return Effect::default();
        }
        let (namespace, id) = (cap.agent.key.namespace.as_str(), &*cap.agent.key.agent_id);
        self.rules.effect(namespace, &[namespace, id].join("/"), cap.folded())
    }

    fn judge(&self, cap: &CapEntry) -> Option<DropReason> {
        let (query, capability) = (self.query, cap.capability());
        let key = &cap.agent.key;
        if query.target.as_ref().is_some_and(|t| t != key) {
            return Some(DropReason::NotTarget);
        }
        if query.exclude.contains(key) {
            return Some(DropReason::Excluded);
        }
        if query.only_preferred && !query.preferred.contains(key) {
            return Some(DropReason::NotPreferred);
        }
        let effect = self.effect(cap);
        if let Some(name) = effect.denied {
            return Some(DropReason::Rule { name });
        }
        if let Some(scope) = capability.scopes.iter().find(|s| !query.principal.scopes.has(s)) {
            return Some(DropReason::ScopeMissing { scope: scope.clone() });
        }
        if query.region.as_ref().is_some_and(|region| !cap.serves(region)) {
            return Some(DropReason::Region { serves: capability.regions.clone() });
        }
        if !effect.open.unwrap_or_else(|| cap.is_open(query.at_ms)) {
            let opens = if effect.open == Some(false) { None } else { cap.next_open(query.at_ms) };
            return Some(DropReason::Closed { opens });
        }
        for (name, wanted) in &query.selectors {
            if !cap.agent.manifest.attributes.get(name).is_some_and(|have| have.satisfies(wanted)) {
                return Some(DropReason::Attribute { name: name.clone() });
            }
        }
        if let (Some(cost), Some(max)) = (capability.cost, query.max_cost)
            && cost > max
        {
            return Some(DropReason::Cost { cost, max });
        }
        if let Some(reason) = state::unavailable(self.view, cap, query) {
            return Some(reason);
        }
        query.payload.as_ref().and_then(|p| payload::misfit(cap, p))
    }

    /// What was dropped among the capabilities that were asked about, with the similarity `of` gives them; best first.
    pub fn into_dropped(self, of: impl Fn(u32) -> f32, most: usize) -> Vec<Dropped> {
        let mut out: Vec<(u32, Dropped)> = self
            .dropped
            .into_iter()
            // what the caller asked for needs no explanation
            .filter(|(_, why)| !matches!(why, DropReason::NotTarget | DropReason::NotPreferred))
            .filter_map(|(slot, why)| {
                let cap = self.view.cap(slot)?;
                Some((
                    slot,
                    Dropped { agent: cap.agent.key.clone(), capability: cap.capability().intent.clone(), similarity: of(slot), why },
                ))
            })
            .collect();
        out.sort_by(|a, b| b.1.similarity.total_cmp(&a.1.similarity).then(a.0.cmp(&b.0)));
        out.truncate(most);
        out.into_iter().map(|(_, d)| d).collect()
    }
}
