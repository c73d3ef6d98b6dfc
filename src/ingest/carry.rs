//! What was learned, carried over a registration: newcomers that look like others' work stand back from their first request on, what was learned of a
//! capability stays with it when its agent registers anew, and who sees a new part of the fleet keeps what was learned of the old one.
//!
//! In: the View before, the newest one, what changed. Out: the newest one's learned parts. The next lesson (`learn`) replaces all of it; hubs and the
//! texts of newcomers wait for that. Cost: a few searches a newcomer and part, for at most [`NEWCOMERS`]; a load in bulk is left to the lesson.
//! Not here: what is a copy (`guard`).

use super::guard;
use super::learn::who_asks;
use crate::catalog::CapEntry;
use crate::history::learned::{Learned, Part};
use crate::index::Visible;
use crate::view::View;
use std::collections::HashMap;
use std::sync::Arc;

/// Most newcomers that are looked at here.
const NEWCOMERS: usize = 500;
/// Fleets beyond this are left to the lesson: whoever registers would wait for the searches, once for each part that somebody sees.
const LARGE: usize = 50_000;

/// The learned parts of `now`, after `added` came; `before`: the View without them.
pub(super) fn over(before: &View, now: &View, added: &[Arc<CapEntry>]) -> Learned {
    let mut parts: Vec<(Visible, Arc<Part>)> = Vec::new();
    for (name, grant) in now.learned.demand().grants() {
        let who = who_asks(grant);
        let (then, visible) = (before.visible(&who), now.visible(&who));
        if parts.iter().any(|(v, _)| *v == visible) {
            continue;
        }
        let known = now.learned.part(&then);
        let seen: Vec<&Arc<CapEntry>> = added.iter().filter(|c| visible.contains(c.class)).take(NEWCOMERS + 1).collect();
        let left = seen.len() > NEWCOMERS || now.catalog.capability_count() > LARGE;
        let losses = if left { HashMap::new() } else { guard::newcomers(now, &visible, &seen) };
        let stays = kept(before, known, &seen);
        match known {
            Some(part) if losses.is_empty() && stays.is_empty() => parts.push((visible, part.clone())),
            None if losses.is_empty() => {}
            _ => {
                let mut part = known.map(|p| Part::clone(p)).unwrap_or_default();
                for (slot, class) in stays {
                    part.class_of.insert(slot, class);
                    part.slots_of.get_mut(class as usize).into_iter().for_each(|slots| slots.push(slot));
                }
                part.losses.extend(losses);
                tracing::debug!(part = name, "newcomers were looked at");
                parts.push((visible, Arc::new(part)));
            }
        }
    }
    now.learned.with(parts)
}

/// Slots of who registered anew, with the class that the same capability had before.
fn kept(before: &View, known: Option<&Arc<Part>>, seen: &[&Arc<CapEntry>]) -> Vec<(u32, u32)> {
    let Some(part) = known else { return Vec::new() };
    let class = |cap: &CapEntry| {
        let old = before.catalog.agent(&cap.agent.key)?;
        let slot = old.slots.iter().find(|slot| before.cap(**slot).is_some_and(|c| c.folded() == cap.folded()))?;
        part.class_of.get(slot).copied()
    };
    seen.iter().filter_map(|cap| Some((cap.slot, class(cap)?))).collect()
}
