//! Learning in the background: from the fleet's own texts and the kept outcomes to the heads that decisions read.
//!
//! In: the View, the outcomes, who asks. Out: a new View with new heads. Nothing waits for it: decisions read the old heads until the new ones
//! are whole. Deterministic given registry and outcomes. What is bounded here, so that nobody talks itself up: examples of a capability count
//! as at most [`EXAMPLES_COUNT`] requests, votes of an agent for itself as at most [`OWN_VOTES`], a reporter has [`A_REPORTER`] votes for one
//! capability, and the same words count once a reporter.
//! Cost: embedding of new texts once; training seconds for 10⁴ outcomes on one core, with pauses. Not here: the mathematics (`history::learned`).

use super::Ingest;
use super::texts::{self, langs_of};
use super::vectors::{ByText, vectors};
use crate::catalog::CapEntry;
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::history::learned::head::{Centres, Head, Kind, Labelled};
use crate::history::learned::{MAX_CLASSES, Part};
use crate::index::Visible;
use crate::index::dense::Role;
use crate::kernel::dot::dot_f32;
use crate::types::Principal;
use crate::types::lang::Lang;
use crate::types::outcome::{Outcome, Verdict};
use crate::types::principal::Grant;
use crate::types::text::fold_name;
use crate::view::View;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Requests that the examples of one capability count as, at most.
const EXAMPLES_COUNT: f32 = 8.0;
/// Capabilities of a fleet that is looked at before the service is ready.
const AT_START: usize = 2_000;
/// Votes of an agent for itself, at most.
const OWN_VOTES: f32 = 2.0;
/// Votes of one reporter for one capability.
const A_REPORTER: usize = 50;
/// Labelled texts of one capability.
const A_CLASS: usize = 200;
/// Labelled texts of one head.
const A_HEAD: usize = 20_000;
/// Reports that nobody can do something.
const NOBODY: usize = 500;
/// Others' outcomes that halve the loss of who looked like a copy.
const REDEEMED: f32 = 5.0;
/// What a name or description counts.
const OWN_TEXT: f32 = 0.7;
/// Cosine from which on two agents' capabilities of one name are the same thing.
const SAME: f32 = 0.8;

/// What a round of learning did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lesson {
    /// Parts of the fleet with heads now.
    pub parts: usize,
    /// Of them, trained anew.
    pub trained: usize,
    /// Capabilities with examples or outcomes, over all parts.
    pub classes: usize,
    /// Labelled texts, over all parts and models.
    pub texts: usize,
    /// Labels that all the others contradict.
    pub doubted: usize,
}

/// A text that will be a row of a head.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Text {
    class: u32,
    /// Thousandths.
    weight: u32,
    kind: u8,
    text: Arc<str>,
}

/// What one part learns from.
struct Plan {
    name: String,
    visible: Visible,
    class_of: HashMap<u32, u32>,
    losses: HashMap<u32, f32>,
    classes: usize,
    nobody: Option<(u32, f32)>,
    /// Texts by arm.
    texts: Vec<Vec<Text>>,
    /// See [`Part::heard`].
    heard: HashMap<String, Vec<(u32, f32)>>,
    fingerprint: u64,
}

/// Somebody with this grant, as the View sees them.
pub(super) fn who_asks(grant: Grant) -> Principal {
    Principal { namespaces: grant, ..Principal::local("learning") }
}

fn reads(lang: Lang, text: &str) -> bool {
    lang == Lang::Mixed || langs_of(text).contains(&lang)
}

impl Ingest {
    /// Learns for everybody who asks. `pause` is called between pieces of work; once it says `false`, learning ends soon and changes nothing.
    pub async fn learn(&self, pause: Arc<dyn Fn() -> bool + Send + Sync>) -> Result<Lesson, Error> {
        let view = self.views.load();
        let store = self.store.clone();
        let outcomes = tokio::task::spawn_blocking(move || store.all_outcomes()).await.map_err(Error::internal)??;
        let grants = view.learned.demand().grants();
        let langs: Vec<Lang> = view.arms.iter().map(|a| a.model.lang).collect();
        let mut plans = Vec::new();
        let mut seen: Vec<Visible> = Vec::new();
        for (name, grant) in grants {
            let visible = view.visible(&who_asks(grant));
            if seen.contains(&visible) {
                continue;
            }
            seen.push(visible.clone());
            plans.extend(plan(&view, name, visible, &outcomes, &langs));
        }
        self.stand_back(&plans);
        let mut by_arm: Vec<ByText> = Vec::new();
        let models = view.models.clone();
        for (at, (arm, _)) in models.arms().enumerate() {
            let texts: Vec<Arc<str>> = plans.iter().flat_map(|p| p.texts.get(at).into_iter().flatten()).map(|t| t.text.clone()).collect();
            by_arm.push(vectors(&self.store, &models, arm, &texts, WorkClass::Ingest).await?.0);
        }
        let go_on = pause.clone();
        let (parts, lesson) = tokio::task::spawn_blocking(move || train(&view, plans, &by_arm, &*pause)).await.map_err(Error::internal)?;
        if !go_on() {
            return Ok(Lesson::default());
        }
        let known = self.views.load().learned.parts().len();
        self.views.update(|old| View { learned: Arc::new(old.learned.with(parts.clone())), ..old.clone() });
        if lesson.trained > 0 || known != parts.len() {
            self.keep_lessons().await;
        }
        Ok(lesson)
    }

    /// Who looks like others' work stands back at once; heads take longer.
    fn stand_back(&self, plans: &[Plan]) {
        let changed = |view: &View, p: &Plan| match view.learned.part(&p.visible) {
            Some(part) => part.losses != p.losses,
            None => !p.losses.is_empty(),
        };
        let view = self.views.load();
        if !plans.iter().any(|p| changed(&view, p)) {
            return;
        }
        self.views.update(|old| {
            let mut parts: Vec<(Visible, Arc<Part>)> = old.learned.parts().to_vec();
            for plan in plans.iter().filter(|p| changed(old, p)) {
                let known = old.learned.part(&plan.visible).map(|p| Part::clone(p)).unwrap_or_default();
                parts.retain(|(v, _)| *v != plan.visible);
                parts.push((plan.visible.clone(), Arc::new(Part { losses: plan.losses.clone(), ..known })));
            }
            View { learned: Arc::new(old.learned.with(parts)), ..old.clone() }
        });
    }

    /// Before the first request: who looks like others' work, for everybody who is learned for; a large fleet is left to the first lesson.
    pub fn look_around(&self) {
        let view = self.views.load();
        if view.catalog.capability_count() > AT_START {
            return;
        }
        let mut parts: Vec<(Visible, Arc<Part>)> = Vec::new();
        for (_, grant) in view.learned.demand().grants() {
            let visible = view.visible(&who_asks(grant));
            let caps = seen_by(&view, &visible);
            let mut losses = super::guard::losses(&view, &visible, &caps);
            let known = view.learned.part(&visible).map(|p| Part::clone(p));
            // what outcomes have lifted stays lifted
            losses.extend(known.iter().flat_map(|p| &p.losses));
            if (known.is_some() || !losses.is_empty()) && !parts.iter().any(|(v, _)| *v == visible) {
                parts.push((visible, Arc::new(Part { losses, ..known.unwrap_or_default() })));
            }
        }
        self.views.update(|old| View { learned: Arc::new(old.learned.with(parts.clone())), ..old.clone() });
    }

    /// Says whose requests are to be learned for from the start.
    pub fn learn_for(&self, grants: impl IntoIterator<Item = Grant>) {
        grants.into_iter().for_each(|g| self.learning.ask(&g));
    }

    /// Waits until there is something new to learn.
    pub async fn lesson_due(&self) {
        self.learning.changed().await;
    }
}

/// Agents that offer the same thing share a class: one name, and descriptions that are alike.
fn classes(view: &View, caps: &[Arc<CapEntry>]) -> (Vec<usize>, usize) {
    let mut by_name: HashMap<&str, Vec<(usize, u32)>> = HashMap::new();
    let mut of = Vec::with_capacity(caps.len());
    let mut next = 0;
    for cap in caps {
        let known = by_name.entry(cap.folded()).or_default();
        let found = known.iter().find(|(_, slot)| alike(view, *slot, cap.slot)).map(|(class, _)| *class);
        let class = found.unwrap_or_else(|| {
            known.push((next, cap.slot));
            next += 1;
            next - 1
        });
        of.push(class);
    }
    (of, next)
}

fn alike(view: &View, a: u32, b: u32) -> bool {
    let both = |arm: &'_ crate::view::Arm, slot| arm.dense.vectors(slot).find(|(role, _)| *role == Role::Both).map(|(_, v)| v);
    let cosines: Vec<f32> = view.arms.iter().filter_map(|arm| Some(dot_f32(&both(arm, a)?, &both(arm, b)?))).collect();
    cosines.is_empty() || cosines.iter().any(|c| *c >= SAME)
}

/// Votes about one class, newest first.
#[derive(Default)]
struct Votes {
    texts: Vec<(Arc<str>, f32)>,
    /// Of these, those that others than the agent itself reported.
    heard: Vec<Arc<str>>,
    own: f32,
    of: HashMap<String, usize>,
    said: HashSet<(String, String)>,
}

impl Votes {
    fn take(&mut self, outcome: &Outcome, text: &Arc<str>, weight: f32, most: usize) {
        if self.texts.len() >= most || !self.said.insert((outcome.reporter.clone(), fold_name(text))) {
            return;
        }
        let mut weight = weight;
        if outcome.own {
            weight = weight.min(OWN_VOTES - self.own);
            if weight <= 0.0 {
                return;
            }
            self.own += weight;
        }
        let n = self.of.entry(outcome.reporter.clone()).or_default();
        if *n < A_REPORTER {
            *n += 1;
            self.texts.push((text.clone(), weight));
            if !outcome.own && weight >= 1.0 {
                self.heard.push(text.clone());
            }
        }
    }
}

/// What is visible, by name, not by slot: slots tell of others' registrations.
fn seen_by(view: &View, visible: &Visible) -> Vec<Arc<CapEntry>> {
    let mut caps: Vec<Arc<CapEntry>> = view.catalog.capabilities().filter(|c| visible.contains(c.class)).cloned().collect();
    caps.sort_by_cached_key(|c| c.key_text());
    caps
}

fn plan(view: &View, name: String, visible: Visible, outcomes: &[Outcome], langs: &[Lang]) -> Option<Plan> {
    let caps = seen_by(view, &visible);
    let mut losses = super::guard::losses(view, &visible, &caps);
    let (all_of, all) = classes(view, &caps);
    let by_key: HashMap<String, usize> = caps.iter().zip(&all_of).map(|(c, class)| (c.key_text(), *class)).collect();

    let most = (A_HEAD / all.max(1)).clamp(4, A_CLASS);
    let mut votes: BTreeMap<usize, Votes> = BTreeMap::new();
    let mut nobody = Votes::default();
    for outcome in outcomes.iter().rev() {
        let Some(text) = outcome.text.as_deref().map(str::trim).filter(|t| !t.is_empty()) else { continue };
        let text: Arc<str> = Arc::from(text);
        if outcome.verdict == Verdict::Nobody && outcome.scope == name && nobody.texts.len() < NOBODY {
            nobody.take(&Outcome { own: false, ..outcome.clone() }, &text, 1.0, NOBODY);
        } else if let Some((right, weight)) = outcome.right()
            && let Some(class) = by_key.get(&right.to_string())
        {
            votes.entry(*class).or_default().take(outcome, &text, weight, most);
        }
    }
    // outcomes speak for who looked like a copy
    let guarded: HashSet<u32> = losses.keys().copied().collect();
    for (cap, class) in caps.iter().zip(&all_of) {
        if let (Some(loss), Some(votes)) = (losses.get_mut(&cap.slot), votes.get(class)) {
            let others: f32 = votes.texts.iter().map(|t| t.1).sum::<f32>() - votes.own;
            *loss *= REDEEMED / (REDEEMED + others.max(0.0));
        }
    }
    let mut examples: BTreeMap<usize, Vec<Arc<str>>> = BTreeMap::new();
    // who copies others' examples teaches nothing with them
    for (cap, class) in caps.iter().zip(&all_of).filter(|(c, _)| !guarded.contains(&c.slot)) {
        for example in cap.capability().examples.iter().take(texts::MAX_EXAMPLES) {
            let known = examples.entry(*class).or_default();
            if known.len() < most && !known.iter().any(|k| **k == **example) {
                known.push(Arc::from(example.as_str()));
            }
        }
    }
    let mut chosen: Vec<usize> = votes.keys().chain(examples.keys()).copied().collect();
    chosen.sort_unstable();
    chosen.dedup();
    if chosen.len() > MAX_CLASSES {
        chosen = votes.keys().copied().collect();
        chosen.sort_by_key(|c| (std::cmp::Reverse(votes.get(c).map_or(0, |v| v.texts.len())), *c));
        chosen.truncate(MAX_CLASSES);
        chosen.sort_unstable();
    }
    let number: HashMap<usize, u32> = chosen.iter().enumerate().map(|(n, c)| (*c, n as u32)).collect();
    let nobody_class = (!nobody.texts.is_empty()).then_some((chosen.len() as u32, nobody.texts.len() as f32));
    let count = chosen.len() + usize::from(nobody_class.is_some());
    if (chosen.is_empty() || count < 2) && losses.is_empty() {
        return None;
    }

    let mut class_of = HashMap::new();
    let mut rows: Vec<Vec<Text>> = vec![Vec::new(); langs.len()];
    let push = |rows: &mut Vec<Vec<Text>>, at: usize, class: u32, weight: f32, kind: u8, text: &Arc<str>| {
        if let Some(rows) = rows.get_mut(at) {
            rows.push(Text { class, weight: (weight * 1000.0) as u32, kind, text: text.clone() });
        }
    };
    for (cap, class) in caps.iter().zip(&all_of) {
        let Some(class) = number.get(class) else { continue };
        class_of.insert(cap.slot, *class);
        for (at, lang) in langs.iter().enumerate() {
            for piece in texts::pieces(&cap.agent.manifest, cap.capability(), "", *lang) {
                if matches!(piece.role, Role::Name | Role::Description | Role::Both) {
                    push(&mut rows, at, *class, OWN_TEXT, 0, &piece.text);
                }
            }
        }
    }
    let labelled = chosen.iter().filter_map(|c| Some((*number.get(c)?, examples.get(c), votes.get(c))));
    for (class, examples, votes) in labelled {
        let n = examples.map_or(0, Vec::len);
        for text in examples.into_iter().flatten() {
            let weight = (EXAMPLES_COUNT / n as f32).min(1.0);
            langs.iter().enumerate().filter(|(_, l)| reads(**l, text)).for_each(|(at, _)| push(&mut rows, at, class, weight, 1, text));
        }
        for (text, weight) in votes.into_iter().flat_map(|v| &v.texts) {
            langs.iter().enumerate().filter(|(_, l)| reads(**l, text)).for_each(|(at, _)| push(&mut rows, at, class, *weight, 2, text));
        }
    }
    if let Some((class, _)) = nobody_class {
        for (text, weight) in &nobody.texts {
            langs.iter().enumerate().filter(|(_, l)| reads(**l, text)).for_each(|(at, _)| push(&mut rows, at, class, *weight, 2, text));
        }
    }
    let mut heard: HashMap<String, Vec<(u32, f32)>> = HashMap::new();
    for (class, votes) in &votes {
        let Some(class) = number.get(class) else { continue };
        for text in &votes.heard {
            let known = heard.entry(fold_name(text)).or_default();
            match known.iter_mut().find(|(c, _)| c == class) {
                Some((_, n)) => *n += 1.0,
                None => known.push((*class, 1.0)),
            }
        }
    }
    let mut hasher = DefaultHasher::new();
    rows.hash(&mut hasher);
    // by name: slots are numbered anew at every start
    for cap in &caps {
        (cap.key_text(), class_of.get(&cap.slot)).hash(&mut hasher);
    }
    view.arms.iter().for_each(|a| a.model.fingerprint.hash(&mut hasher));
    Some(Plan { name, visible, class_of, losses, classes: count, nobody: nobody_class, texts: rows, heard, fingerprint: hasher.finish() })
}

fn slots_of(class_of: &HashMap<u32, u32>, classes: usize) -> Vec<Vec<u32>> {
    let mut of: Vec<Vec<u32>> = vec![Vec::new(); classes];
    for (slot, class) in class_of {
        if let Some(slots) = of.get_mut(*class as usize) {
            slots.push(*slot);
        }
    }
    of.iter_mut().for_each(|slots| slots.sort_unstable());
    of
}

fn train(
    view: &View,
    plans: Vec<Plan>,
    by_arm: &[ByText],
    pause: &(dyn Fn() -> bool + Send + Sync),
) -> (Vec<(Visible, Arc<Part>)>, Lesson) {
    let mut lesson = Lesson::default();
    let mut parts = Vec::new();
    for plan in plans {
        lesson.parts += 1;
        lesson.classes += plan.classes;
        lesson.texts += plan.texts.iter().map(Vec::len).sum::<usize>();
        if let Some(known) = view.learned.part(&plan.visible).filter(|p| p.fingerprint == plan.fingerprint) {
            lesson.doubted += known.heads.iter().map(|h| h.1.doubted).sum::<usize>();
            let slots_of = slots_of(&plan.class_of, plan.classes);
            let part = Part { class_of: plan.class_of, slots_of, losses: plan.losses, ..Part::clone(known) };
            parts.push((plan.visible, Arc::new(part)));
            continue;
        }
        lesson.trained += 1;
        let (mut heads, mut strangers) = (Vec::new(), Vec::new());
        for ((arm, texts), vectors) in view.arms.iter().zip(&plan.texts).zip(by_arm) {
            let labelled: Vec<Labelled> = texts
                .iter()
                .filter_map(|t| {
                    let kind = match t.kind {
                        0 => Kind::Own,
                        1 => Kind::Example,
                        _ => Kind::Outcome,
                    };
                    let vector = vectors.get(&t.text)?.clone();
                    Some(Labelled { class: t.class, weight: t.weight as f32 / 1000.0, kind, text: t.text.clone(), vector })
                })
                .collect();
            if let Some((nobody, _)) = plan.nobody {
                let of_nobody = labelled.iter().filter(|l| l.class == nobody).map(|l| l.vector.clone()).collect();
                strangers.push((arm.model.fingerprint.clone(), of_nobody));
            }
            let centres = Centres { requests: &arm.background.request_centre, descriptions: &arm.background.description_centre };
            if plan.classes > 1
                && labelled.iter().any(|l| l.kind != Kind::Own)
                && let Some(head) = Head::train(&labelled, plan.classes, &centres, pause)
            {
                lesson.doubted += head.doubted;
                heads.push((arm.model.fingerprint.clone(), Arc::new(head)));
            }
        }
        tracing::debug!(part = plan.name, classes = plan.classes, heads = heads.len(), "learned");
        let Plan { visible, class_of, losses, nobody, heard, fingerprint, .. } = plan;
        let slots_of = slots_of(&class_of, plan.classes);
        parts.push((visible, Arc::new(Part { fingerprint, class_of, slots_of, losses, heads, nobody, strangers, heard })));
    }
    (parts, lesson)
}
