//! Which newcomers look like somebody else's work, or like everything at once: a loss of score for each, by what one caller can see.
//!
//! In: the View and the visible capabilities. Out: losses in logits, by slot. Compared are publishers (whoever registered), never the
//! capabilities of one publisher among themselves, and only with what was registered before: an original never loses to its copy. A copy stays
//! in the list behind its original and takes over when that one is away; outcomes can lift it again.
//! - a near-copy of one older capability: [`COPY`]; texts copied from several: [`STUFFED`];
//! - descriptions and examples that spell out many others' names: [`STUFFED`];
//! - a text that is nearest to very many others' texts (a hub, by vectors or by words): grows with how many.
//!
//! Cost: a few searches a recent capability. Not here: what becomes of the losses (`route::pipeline`), switching them off (policy).

use crate::catalog::CapEntry;
use crate::index::Visible;
use crate::index::dense::Role;
use crate::index::keyword::LexQuery;
use crate::view::View;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Loss of a near-copy.
pub const COPY: f32 = 2.0;
/// Loss of a text made of others' texts; also the most.
pub const STUFFED: f32 = 6.0;
/// Cosine from which on a text is a copy.
const SAME_TEXT: f32 = 0.94;
/// Others whose texts may be alike before it is stuffing.
const ALIKE: usize = 2;
/// Others' names of several words that may stand in a text before it is stuffing.
const NAMES: usize = 4;
/// Most recent capabilities that are looked at.
const RECENT: usize = 5_000;
/// Others' texts that hubs are looked for with.
const SAMPLE: usize = 400;
/// Share of others' texts that one capability may be nearest to, at least.
const SHARE: f32 = 0.04;
/// The same as a multiple of a fair share.
const FAIR: f32 = 6.0;

/// Losses of visible capabilities; `caps` in an order that depends on nothing hidden.
pub(super) fn losses(view: &View, visible: &Visible, caps: &[Arc<CapEntry>]) -> HashMap<u32, f32> {
    let mut out = HashMap::new();
    let Some(first) = caps.first() else { return out };
    if caps.iter().all(|c| c.agent.owner == first.agent.owner) {
        return out;
    }
    let hubs = hubs(view, visible, caps);
    let mut recent: Vec<&Arc<CapEntry>> = caps.iter().collect();
    recent.sort_by_key(|c| std::cmp::Reverse(c.agent.registered_ms));
    for cap in recent.into_iter().take(RECENT) {
        let loss = of_texts(view, visible, cap).max(hubs.get(&cap.slot).copied().unwrap_or(0.0));
        if loss > 0.0 {
            out.insert(cap.slot, loss);
        }
    }
    out
}

/// Losses of capabilities that have just come, by their texts alone.
pub(super) fn newcomers(view: &View, visible: &Visible, caps: &[&Arc<CapEntry>]) -> HashMap<u32, f32> {
    let losses = caps.iter().map(|cap| (cap.slot, of_texts(view, visible, cap)));
    losses.filter(|(_, loss)| *loss > 0.0).collect()
}

/// What a capability loses for texts that are others'.
fn of_texts(view: &View, visible: &Visible, cap: &CapEntry) -> f32 {
    let older = |slot: u32| view.cap(slot).is_some_and(|o| before(o, cap));
    let mut alike: HashSet<Arc<str>> = HashSet::new();
    for arm in &view.arms {
        let own: Vec<Vec<f32>> = arm.dense.vectors(cap.slot).filter(|(r, _)| r.is_scanned()).map(|(_, v)| v).collect();
        for vector in own {
            let hits = arm.dense.search(&vector, visible, 4, &mut |slot| older(slot));
            alike.extend(hits.hits.iter().filter(|h| h.1 >= SAME_TEXT).filter_map(|h| view.cap(h.0)).map(|c| c.folded().clone()));
        }
    }
    if alike.len() > ALIKE || names_in(view, visible, cap) > NAMES {
        STUFFED
    } else if alike.is_empty() {
        0.0
    } else {
        COPY
    }
}

/// Another publisher's, registered before.
fn before(older: &CapEntry, cap: &CapEntry) -> bool {
    older.agent.owner != cap.agent.owner && older.agent.registered_ms < cap.agent.registered_ms
}

/// Older names of others, of several words, that stand in the texts of a capability.
fn names_in(view: &View, visible: &Visible, cap: &CapEntry) -> usize {
    let capability = cap.capability();
    let mut text = String::new();
    for part in [&capability.description.zh, &capability.description.en].into_iter().flatten().chain(&capability.examples) {
        text.push_str(part);
        text.push_str(" . ");
    }
    let hits = view.names.find_in_text(&text, visible, &view.words);
    let of_others = |h: &&crate::index::names::NameHit| h.slots.iter().filter_map(|s| view.cap(*s)).any(|o| before(o, cap));
    hits.iter().filter(|h| h.words > 1).filter(of_others).map(|h| h.name.clone()).collect::<HashSet<_>>().len()
}

/// Losses of capabilities that are nearest to very many texts of others.
fn hubs(view: &View, visible: &Visible, caps: &[Arc<CapEntry>]) -> HashMap<u32, f32> {
    let step = caps.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<&Arc<CapEntry>> = caps.iter().step_by(step).collect();
    let limit = SHARE.max(FAIR / caps.len() as f32);
    let mut out = HashMap::new();
    if sample.len() < 20 {
        return out;
    }
    let mut judge = |count: HashMap<u32, f32>, asked: f32| {
        for (slot, n) in count {
            let share = n / asked.max(1.0);
            if share > limit {
                let loss = (1.0 + 2.0 * (share / limit).ln()).min(STUFFED);
                let known: &mut f32 = out.entry(slot).or_insert(0.0);
                *known = known.max(loss);
            }
        }
    };
    for arm in &view.arms {
        let (mut count, mut asked) = (HashMap::new(), 0.0f32);
        for cap in &sample {
            let Some(vector) = arm.dense.vectors(cap.slot).find(|(r, _)| *r == Role::Both).map(|(_, v)| v) else {
                continue;
            };
            asked += 1.0;
            let other = |slot: u32| view.cap(slot).is_some_and(|o| o.agent.key != cap.agent.key && o.folded() != cap.folded());
            let hits = arm.dense.search(&vector, visible, 1, &mut |slot| other(slot));
            if let Some(nearest) = hits.hits.first().and_then(|h| view.cap(h.0)).filter(|o| before(cap, o)) {
                *count.entry(nearest.slot).or_insert(0.0) += 1.0;
            }
        }
        judge(count, asked);
    }
    let (mut count, mut asked) = (HashMap::new(), 0.0f32);
    for cap in &sample {
        let description = &cap.capability().description;
        for text in [&description.zh, &description.en].into_iter().flatten() {
            asked += 1.0;
            let query = LexQuery::new(text);
            let bound = view.words.bind(&query, visible);
            let other = |slot: u32| view.cap(slot).is_some_and(|o| o.agent.key != cap.agent.key && o.folded() != cap.folded());
            let hits = bound.search(1, &mut |slot| other(slot));
            if let Some(nearest) = hits.first().and_then(|h| view.cap(h.slot)).filter(|o| before(cap, o)) {
                *count.entry(nearest.slot).or_insert(0.0) += 1.0;
            }
        }
    }
    judge(count, asked);
    out
}
