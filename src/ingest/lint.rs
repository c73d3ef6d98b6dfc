//! Advice on a fresh registration that needs its neighbours: near-duplicates, examples that land elsewhere, names that are common words.
//!
//! In: the View after the registration, the owner's principal. Out: advice, never a refusal. Looks only at what the owner may see.
//! Cost: a few searches a capability, at most [`MAX_CHECKED`] capabilities.

use crate::catalog::lint::{Facts, lint};
use crate::index::dense::Role;
use crate::ingest::texts::pieces;
use crate::types::Principal;
use crate::types::fault::Fault;
use crate::types::manifest::{Capability, Manifest};
use crate::types::text::fold_name;
use crate::view::View;

/// Capabilities of one registration that are compared with their neighbours.
const MAX_CHECKED: usize = 50;
/// Neighbours that are looked at for copies.
const COPIES: usize = 5;
/// Examples of one capability that are tried.
const MAX_EXAMPLES: usize = 8;

/// Whether two capabilities have the same description in some language, word for word.
fn copies(a: &Capability, b: &Capability) -> bool {
    let same = |a: Option<&str>, b: Option<&str>| a.is_some_and(|a| b.is_some_and(|b| fold_name(a) == fold_name(b)));
    same(a.description.zh.as_deref(), b.description.zh.as_deref()) || same(a.description.en.as_deref(), b.description.en.as_deref())
}

/// Advice on `manifest`, which is in `view` already.
pub fn advise(view: &View, who: &Principal, manifest: &Manifest) -> Vec<Fault> {
    let visible = view.visible(who);
    let Some(record) = view.catalog.agent(&manifest.key()) else { return lint(manifest, &[]) };
    let mut facts = Vec::new();
    for slot in record.slots.iter().take(MAX_CHECKED) {
        let Some(cap) = view.cap(*slot) else { continue };
        let mut fact = Facts { capability: cap.index, ..Facts::default() };
        let name_of = |other: u32| view.cap(other).map(|c| format!("{} of {}", c.capability().intent, c.agent.key)).unwrap_or_default();
        for arm in &view.arms {
            let vectors: Vec<(Role, Vec<f32>)> =
                arm.dense.vectors(*slot).filter(|(role, _)| matches!(role, Role::Both | Role::Example)).collect();
            let mut examples = 0;
            for (role, vector) in &vectors {
                // another agent's offer of the same capability is not a neighbour to be told apart from
                let mut other = |s: u32| s != *slot && view.cap(s).is_some_and(|c| c.folded() != cap.folded());
                if *role == Role::Both {
                    let best = arm.dense.search(vector, &visible, COPIES, &mut other).hits;
                    // the same description under another name is a copy, however far the name takes it away
                    let copied = best.iter().find(|(s, _)| view.cap(*s).is_some_and(|c| copies(cap.capability(), c.capability())));
                    let best = copied.map(|(s, _)| (*s, 1.0)).or(best.first().copied());
                    if let Some((near, cosine)) = &best
                        && fact.nearest.as_ref().is_none_or(|(_, c)| cosine > c)
                    {
                        fact.nearest = Some((name_of(*near), *cosine));
                    }
                } else if examples < MAX_EXAMPLES {
                    let index = examples;
                    examples += 1;
                    // against the other capabilities' texts and this one's own description, not the example itself
                    let own = vectors
                        .iter()
                        .filter(|(r, _)| *r == Role::Both)
                        .map(|(_, v)| crate::kernel::dot::dot_f32(v, vector))
                        .fold(-1.0, f32::max);
                    let best = arm.dense.search(vector, &visible, 1, &mut other).hits;
                    if let Some((near, _)) = best.first().filter(|(_, cosine)| *cosine > own + 0.02) {
                        let texts = pieces(manifest, cap.capability(), "", arm.model.lang).into_iter().filter(|p| p.role == Role::Example);
                        // the place in the manifest, which holds examples of other languages too
                        let place = texts
                            .into_iter()
                            .nth(index)
                            .and_then(|p| cap.capability().examples.iter().position(|e| e.trim().starts_with(&*p.text)));
                        let found = (place.unwrap_or(index), name_of(*near));
                        if fact.strayed.iter().all(|s| s.0 != found.0) {
                            fact.strayed.push(found);
                        }
                    }
                }
            }
        }
        let name = crate::types::text::words_of_name(&cap.capability().intent);
        if !name.contains(' ') {
            let (holders, docs) = view.words.holders(std::slice::from_ref(&name), &visible, u64::MAX);
            if docs > 1 {
                fact.name_share = Some(holders.saturating_sub(1) as f32 / (docs - 1) as f32);
            }
        }
        facts.push(fact);
    }
    lint(manifest, &facts)
}
