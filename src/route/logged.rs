//! A decision as the log keeps it: everything that `pick` reads, so that replay picks again under other settings without the View.
//!
//! In: a query, its shortlist, the decision and the policy it was made under. Out: one JSON body; and back.
//! Format 2 (format 1 had neither `policy` nor `items`, and is still read; later ones are refused by name).
//! Invariant: picking again from the body under the logged policy gives the logged answer ([`Logged::repick`]; tested over a whole fleet). Candidates
//! beyond the first [`KEPT`] are left out unless they are named, forced, preferred, known to the caller, over the floor, or near enough to the best to take its place; `rest` bounds what
//! the others could have been worth, and [`Logged::exact_under`] tells under which settings they could have come first. (What is left out can only
//! change which two candidates *under the floor* are shown.)
//! Not here: writing and reading the store (`app`, `store`), what a setting is worth (`eval::replay`).

use crate::route::confidence;
use crate::route::decide::{self, PickOptions};
use crate::route::shortlist::{Item, Shortlist};
use crate::types::decision::{Decision, DecisionKind};
use crate::types::policy::{OperatingPoint, Policy};
use crate::types::principal::Principal;
use crate::types::query::{Query, QueryVector};
use crate::types::score::Probability;
use crate::types::{AgentKey, Lang};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// Format that is written.
pub const FORMAT: u32 = 2;
/// Candidates kept of a shortlist, beside those that are named or forced.
pub const KEPT: usize = 20;

/// What the log keeps of a query and its shortlist.
#[derive(Clone, Debug, Serialize)]
pub struct Body {
    version: u32,
    principal: Principal,
    capability: Option<String>,
    region: Option<String>,
    target: Option<AgentKey>,
    preferred: Vec<AgentKey>,
    only_preferred: bool,
    exclude: Vec<AgentKey>,
    max_cost: Option<f64>,
    preset: Option<String>,
    fallback: bool,
    previous: Option<String>,
    depth: u8,
    k: usize,
    seed: u64,
    lang: Lang,
    vectors: Option<Vec<QueryVector>>,
    policy: Policy,
    items: usize,
    rest: f32,
    shortlist: Shortlist,
    decision: Decision,
}

/// The part of a policy that a pick reads, with the shipped operating point written out.
fn read_by_pick(policy: &Policy, preset: Option<&str>) -> Policy {
    let used = preset.filter(|p| policy.presets.contains_key(*p)).unwrap_or(&policy.default_preset);
    Policy {
        presets: policy.presets.iter().filter(|(name, _)| *name == used).map(|(n, p)| (n.clone(), p.clone())).collect(),
        point: Some(policy.point.clone().unwrap_or_else(shipped)),
        rules: Vec::new(),
        fallback: None,
        ..policy.clone()
    }
}

impl Body {
    /// Takes what is to be kept. `keep_text` = the text is kept beside the body, so that the vectors need not be.
    pub fn of(query: &Query, list: &Shortlist, decision: &Decision, policy: &Policy, keep_text: bool) -> Self {
        let floor = policy.point.as_ref().map_or_else(|| shipped().floor, |p| p.floor);
        let best = list.items.iter().map(|i| i.similarity).fold(0.0, f32::max);
        let near = (best - 2.0 * window(policy)).min(floor);
        let kept = |(place, item): &(usize, &Item)| {
            let singled_out = item.named.is_some() || item.forced.is_some() || item.preferred || item.cooccurrence > 0.0;
            *place < KEPT || singled_out || item.similarity >= near
        };
        let items: Vec<Item> =
            list.items.iter().enumerate().filter(kept).map(|(_, i)| Item { features: Vec::new(), ..i.clone() }).collect();
        let rest = list.items.iter().enumerate().filter(|e| !kept(e)).map(|(_, i)| i.similarity).fold(0.0, f32::max);
        Self {
            version: FORMAT,
            principal: query.principal.clone(),
            capability: query.capability.clone(),
            region: query.region.clone(),
            target: query.target.clone(),
            preferred: query.preferred.clone(),
            only_preferred: query.only_preferred,
            exclude: query.exclude.clone(),
            max_cost: query.max_cost,
            preset: query.preset.clone(),
            fallback: query.fallback,
            previous: query.previous.clone(),
            depth: query.depth,
            k: query.k,
            seed: query.seed,
            lang: query.lang,
            vectors: (!keep_text).then(|| query.vectors.clone()),
            policy: read_by_pick(policy, query.preset.as_deref()),
            items: list.items.len(),
            rest,
            shortlist: Shortlist { items, dropped: list.dropped.clone(), facts: list.facts.clone(), warnings: Vec::new() },
            decision: decision.clone(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Agent and capability of an answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Who {
    /// Agent.
    pub agent: AgentKey,
    /// Capability as written.
    pub capability: Arc<str>,
}

/// A stable code of a reason.
#[derive(Clone, Debug, Deserialize)]
pub struct Code {
    /// Such as `unsure` or `fallback`.
    pub code: String,
}

/// What was answered, without what replay does not need.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// The answer.
    pub kind: DecisionKind,
    /// Its confidence.
    pub confidence: Probability,
    /// Candidates, best first.
    pub candidates: Vec<Who>,
    /// Codes of the reasons.
    #[serde(default)]
    pub reasons: Vec<Code>,
    /// Preset that was used.
    #[serde(default)]
    pub preset: String,
    /// Models and generations.
    #[serde(default)]
    pub generations: crate::types::decision::Generations,
}

impl Answer {
    /// Whether the fallback agent took what nobody fits: the pick itself was `none`.
    pub fn fell_back(&self) -> bool {
        self.reasons.iter().any(|r| r.code == "fallback")
    }
}

/// A body as it is read back.
#[derive(Clone, Debug, Deserialize)]
pub struct Logged {
    /// Format.
    pub version: u32,
    /// Who asked.
    pub principal: Principal,
    /// Preset the query named.
    #[serde(default)]
    pub preset: Option<String>,
    /// Largest number of candidates.
    pub k: usize,
    /// Seed of the dice.
    pub seed: u64,
    /// Capability name given outright. This and the next eight are needed only to recall again (`eval::again`).
    #[serde(default)]
    pub capability: Option<String>,
    /// Region of the caller.
    #[serde(default)]
    pub region: Option<String>,
    /// Agent that must take it.
    #[serde(default)]
    pub target: Option<AgentKey>,
    /// Agents that get a bonus.
    #[serde(default)]
    pub preferred: Vec<AgentKey>,
    /// Only the preferred may take it.
    #[serde(default)]
    pub only_preferred: bool,
    /// Agents that must not take it.
    #[serde(default)]
    pub exclude: Vec<AgentKey>,
    /// Highest cost.
    #[serde(default)]
    pub max_cost: Option<f64>,
    /// Capability used before.
    #[serde(default)]
    pub previous: Option<String>,
    /// Hops so far.
    #[serde(default)]
    pub depth: u8,
    /// Policy it was decided under, as far as a pick reads it; absent in format 1.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// Candidates before the list was cut; 0 in format 1.
    #[serde(default)]
    pub items: usize,
    /// Highest similarity among those that were left out.
    #[serde(default)]
    pub rest: f32,
    /// Candidates and facts.
    pub shortlist: Shortlist,
    /// What was answered.
    pub decision: Answer,
}

impl Logged {
    /// Checks the format of what was read.
    pub fn checked(self) -> Result<Self, String> {
        match self.version {
            1 | 2 => Ok(self),
            other => Err(format!(
                "format {other} of the decision log is later than the {FORMAT} that this program reads; use the one that wrote it"
            )),
        }
    }

    /// Options of a pick for this query.
    pub fn options(&self) -> PickOptions<'_> {
        PickOptions { preset: self.preset.as_deref(), shipped: shipped(), k: self.k, seed: self.seed }
    }

    /// Decides again under `policy`.
    pub fn repick(&self, policy: &Policy) -> Decision {
        decide::pick(&self.shortlist, policy, &self.options())
    }

    /// Whether the candidates that were left out can't have come first under `policy`: none of them reaches the window in which anything but similarity
    /// orders. Always true of a list that was kept whole.
    pub fn exact_under(&self, policy: &Policy) -> bool {
        if self.version < 2 {
            return self.shortlist.items.len() < KEPT;
        }
        let kept = &self.shortlist.items;
        if self.items <= kept.len() {
            return true;
        }
        // those with a bonus were kept
        let best = kept.iter().map(|i| i.similarity).fold(0.0, f32::max);
        self.rest + 2.0 * window(policy) < best
    }
}

/// Similarity inside which live terms may reorder, as ranking takes it for agents of one capability.
fn window(policy: &Policy) -> f32 {
    policy.live_margin.max(0.05)
}

fn shipped() -> OperatingPoint {
    confidence::shipped_point()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::shortlist::QueryFacts;
    use crate::route::shortlist::testing::item;

    fn list(n: usize) -> Shortlist {
        let items = (0..n).map(|i| item(&format!("a{i}"), &format!("c{}", i / 2), 0.9 * 0.8f32.powi(i as i32))).collect();
        let facts = QueryFacts { confidence: 0.9, in_scope: 0.95, calibrated: true, ..Default::default() };
        Shortlist { items, facts, ..Default::default() }
    }

    fn logged(list: &Shortlist, policy: &Policy, seed: u64) -> (Decision, Logged) {
        let query = Query::new(Principal::local("t"), "退款", 0, seed);
        let decision = decide::pick(list, policy, &crate::route::pipeline::options(&query));
        let body = Body::of(&query, list, &decision, policy, true).json();
        let line = serde_json::to_string(&body).unwrap();
        (decision, serde_json::from_str::<Logged>(&line).unwrap().checked().unwrap())
    }

    #[test]
    fn a_log_decides_as_it_was_decided() {
        let policy = Policy { explore: 0.5, ..Policy::default() };
        for seed in 0..200 {
            for n in [0, 1, 7, 20, 64] {
                let (decision, back) = logged(&list(n), &policy, seed);
                let again = back.repick(back.policy.as_ref().unwrap());
                assert_eq!(
                    (again.kind, again.confidence, again.margin, &again.candidates, &again.reasons, again.preset.as_str()),
                    (
                        decision.kind,
                        decision.confidence,
                        decision.margin,
                        &decision.candidates,
                        &decision.reasons,
                        decision.preset.as_str()
                    ),
                    "seed {seed}, {n} candidates"
                );
                assert!(back.exact_under(&policy), "{n}");
            }
        }
    }

    #[test]
    fn what_was_left_out_is_told_when_it_could_matter() {
        let (_, back) = logged(&list(64), &Policy::default(), 1);
        assert!(back.items == 64 && (KEPT..KEPT + 4).contains(&back.shortlist.items.len()), "{}", back.shortlist.items.len());
        assert!(back.exact_under(&Policy::default()));
        assert!(!back.exact_under(&Policy { live_margin: 1.0, ..Policy::default() }));
    }

    #[test]
    fn named_and_forced_candidates_are_never_left_out() {
        let mut list = list(40);
        list.items[35].forced = Some("rule".into());
        let (decision, back) = logged(&list, &Policy::default(), 1);
        assert_eq!(&*decision.candidates[0].agent.agent_id, "a35");
        assert_eq!(&*back.repick(&Policy::default()).candidates[0].agent.agent_id, "a35");
    }

    #[test]
    fn the_first_format_is_read_and_later_ones_are_refused_by_name() {
        let (_, whole) = logged(&list(3), &Policy::default(), 1);
        let query = Query::new(Principal::local("t"), "退款", 0, 1);
        let decision = whole.repick(&Policy::default());
        let mut body = Body::of(&query, &list(3), &decision, &Policy::default(), true).json();
        for key in ["policy", "items", "rest", "fallback"] {
            body.as_object_mut().unwrap().remove(key);
        }
        body["version"] = 1.into();
        let old: Logged = serde_json::from_value(body.clone()).unwrap();
        assert!(old.clone().checked().is_ok() && old.policy.is_none());
        body["version"] = 3.into();
        let e = serde_json::from_value::<Logged>(body).unwrap().checked().unwrap_err();
        assert!(e.contains("format 3"), "{e}");
    }
}
