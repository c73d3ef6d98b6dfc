//! Finds the candidates of a query: exact names first, then the nearest by meaning and the best by words, inside what the filter admits.
//!
//! In: a View, a query, one text with its vectors, a gate. Out: raw evidence of each candidate, at most about [`PER_ARM`] an arm.
//! Strict filtering happens inside the searches, so a small namespace is never starved by nearer strangers.
//! A capability that is written only in another language than the query's is looked for by the other model, on its own scale.
//! Cost: one exact scan and one keyword search an arm. Not here: weighing the evidence (`features`, `fusion`).

use crate::index::Visible;
use crate::index::dense::{Probe, Role};
use crate::index::keyword::{LexEvidence, LexQuery};
use crate::kernel::dot::dot_f32;
use crate::route::filter::Gate;
use crate::route::shortlist::Named;
use crate::types::lang::Lang;
use crate::types::query::{Query, QueryVector};
use crate::view::{Arm, Background, View};

/// Candidates taken from each arm.
pub const PER_ARM: usize = 30;
/// Candidates taken from the arm of another language where the request's own has some: they stand behind those.
const PER_CROSS: usize = 10;
/// Capabilities below which a fleet is too small to set its own scale: nearly every request stands out from so few.
pub const SMALL_FLEET: u64 = 12;
/// Most candidates by name.
const BY_NAME: usize = 50;

/// Cosines of one candidate under one model; `None` where it has no such text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArmEvidence {
    /// To the name.
    pub name: Option<f32>,
    /// To the description.
    pub description: Option<f32>,
    /// To name and description together.
    pub both: Option<f32>,
    /// To agent, name, aliases and tags.
    pub label: Option<f32>,
    /// To the words of the schema.
    pub schema: Option<f32>,
    /// To the nearest example.
    pub example: Option<f32>,
    /// Mean of the two nearest examples.
    pub examples: Option<f32>,
    /// Number of examples.
    pub count: u32,
    /// Mean cosine to name, description and both after the pools' mean vectors were taken away: what is common to all texts does not count.
    pub centred: Option<f32>,
    /// How near the capability stands to requests of all kinds.
    pub hub: f32,
    /// What the dense arm alone ranks by: the best over name-and-description and examples.
    pub dense: f32,
}

/// One candidate as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Slot of the capability.
    pub slot: u32,
    /// How its name stood in the query.
    pub named: Option<Named>,
    /// Evidence by model, in the order of [`Recall::arms`].
    pub dense: Vec<Option<ArmEvidence>>,
    /// Evidence of the words.
    pub words: LexEvidence,
    /// It has no text in the language of the query.
    pub cross_language: bool,
}

/// One model's part in a recall.
#[derive(Clone, Debug)]
pub struct ArmUsed {
    /// Index into `View::arms`.
    pub arm: usize,
    /// It does not speak the query's language.
    pub cross: bool,
    /// It speaks the language the query leans to: plain cosines are told on its scale.
    pub lead: bool,
    /// Mean and standard deviation of the query's cosines to the model's pool of descriptions, and the best of them.
    pub pool: (f32, f32, f32),
    /// Best cosine to the pool of talk that asks for nothing.
    pub talk: f32,
    /// Mean and standard deviation over the visible fleet.
    pub fleet: (f32, f32),
    /// Best cosine to a line of that talk which the visible fleet does not answer itself.
    pub foreign_talk: f32,
    /// What that talk reaches on the visible fleet at best, on average.
    pub talk_ceiling: f32,
}

impl Recall {
    /// Best cosine of a candidate, on the scale of the leading model. A candidate that only another model knows is placed by how far it stands out
    /// from that model's pool of descriptions: cosines of two models are never compared raw. `None` where no model knows it.
    pub fn cosine(&self, found: &Found) -> Option<f32> {
        let known = || self.arms.iter().zip(&found.dense).filter_map(|(arm, e)| e.map(|e| (arm, e.dense)));
        if let Some((_, cosine)) = known().find(|(arm, _)| arm.lead) {
            return Some(cosine);
        }
        let (mean, std, _) = self.arms.iter().find(|a| a.lead).map_or((0.0, 0.0, 0.0), |lead| lead.pool);
        known()
            .map(|(arm, cosine)| if std > 0.0 { (mean + std * (cosine - arm.pool.0) / arm.pool.1).clamp(-1.0, 1.0) } else { cosine })
            .reduce(f32::max)
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// Candidates, unordered but deterministic.
    pub found: Vec<Found>,
    /// Models that were asked.
    pub arms: Vec<ArmUsed>,
    /// Most that any capability could score by words.
    pub max_bm25: f32,
    /// Share of the query's word mass that the visible fleet knows.
    pub known: f32,
    /// Words of the query that carry meaning.
    pub words: usize,
    /// Visible capabilities.
    pub fleet: u64,
}

/// Evidence of a slot under one model.
fn arm_evidence(arm: &Arm, probe: &Probe, centre: &Centred, slot: u32) -> Option<ArmEvidence> {
    let mut out = ArmEvidence { dense: f32::MIN, hub: arm.hubs.get(slot).unwrap_or(arm.background.mean), ..ArmEvidence::default() };
    let (mut centred, mut texts) = (0.0f32, 0.0f32);
    let (mut first, mut second) = (f32::MIN, f32::MIN);
    let mut any = false;
    let max = |old: Option<f32>, new: f32| Some(old.map_or(new, |o| o.max(new)));
    arm.dense.cosines(probe, slot, |role, cosine, marks| {
        any = true;
        if matches!(role, Role::Name | Role::Description | Role::Both) {
            centred += centre.cosine(cosine, marks);
            texts += 1.0;
        }
        match role {
            Role::Name => out.name = max(out.name, cosine),
            Role::Description => out.description = max(out.description, cosine),
            Role::Label => out.label = max(out.label, cosine),
            Role::Schema => out.schema = max(out.schema, cosine),
            Role::Both => {
                out.both = max(out.both, cosine);
                out.dense = out.dense.max(cosine);
            }
            Role::Example | Role::Learned => {
                out.count += 1;
                out.dense = out.dense.max(cosine);
                if cosine > first {
                    (first, second) = (cosine, first);
                } else {
                    second = second.max(cosine);
                }
            }
        }
    });
    if !any || out.dense == f32::MIN {
        return None;
    }
    out.centred = (texts > 0.0).then(|| centred / texts);
    if first > f32::MIN {
        out.example = Some(first);
        out.examples = Some(if second > f32::MIN { (first + second) / 2.0 } else { first });
    }
    Some(out)
}

/// What of a centred cosine depends on the query alone.
struct Centred {
    /// Query · mean of the descriptions.
    to_descriptions: f32,
    /// Mean of the requests · mean of the descriptions.
    centres: f32,
    /// Length of the query after the mean of the requests was taken away.
    length: f32,
    /// Squared length of the mean of the descriptions.
    description_square: f32,
    /// Whether the model's scale has centres at all.
    known: bool,
}

impl Centred {
    fn new(background: &Background, query: &[f32]) -> Self {
        let (requests, descriptions) = (&background.request_centre, &background.description_centre);
        if requests.len() != query.len() || descriptions.len() != query.len() {
            return Self { to_descriptions: 0.0, centres: 0.0, length: 1.0, description_square: 0.0, known: false };
        }
        let square = 1.0 - 2.0 * dot_f32(query, requests) + dot_f32(requests, requests);
        Self {
            to_descriptions: dot_f32(query, descriptions),
            centres: dot_f32(requests, descriptions),
            length: square.max(1e-6).sqrt(),
            description_square: dot_f32(descriptions, descriptions),
            known: true,
        }
    }

    /// Cosine of (query − mean request) and (text − mean description), from the plain cosine of the two and the text's products with
    /// [`Background::anchors`].
    fn cosine(&self, plain: f32, marks: &[f32]) -> f32 {
        let (true, [to_descriptions, to_requests]) = (self.known, marks) else { return plain };
        let length = (1.0 - 2.0 * to_descriptions + self.description_square).max(1e-6).sqrt();
        (plain - self.to_descriptions - to_requests + self.centres) / (self.length * length)
    }
}

/// What a query is to the model's pools.
struct Pools {
    /// Mean and standard deviation of the cosines to the descriptions, and the best of them.
    descriptions: (f32, f32, f32),
    /// Best cosine to talk.
    talk: f32,
    /// The same to talk that the visible fleet does not answer.
    foreign_talk: f32,
    /// What talk reaches on the visible fleet at best, on average.
    talk_ceiling: f32,
}

fn pools(arm: &Arm, probe: &Probe, visible: &Visible, fleet: (u64, f32)) -> Pools {
    let (cosines, count) = (arm.background.cosines(probe), arm.background.descriptions.len());
    let (of_descriptions, of_talk) = cosines.split_at(count.min(cosines.len()));
    let (mut sum, mut squares, mut best) = (0.0f32, 0.0f32, -1.0f32);
    for cosine in of_descriptions.iter().copied() {
        sum += cosine;
        squares += cosine * cosine;
        best = best.max(cosine);
    }
    let n = count.max(1) as f32;
    let mean = sum / n;
    let descriptions = (mean, (squares / n - mean * mean).max(0.0).sqrt().max(1e-3), best);
    let reach = arm.ceilings.reach(visible);
    let (requests, mut talk_ceiling) = reach.as_ref().map_or((fleet.1, fleet.1), |r| (r.requests, r.talk));
    if fleet.0 < SMALL_FLEET {
        talk_ceiling = talk_ceiling.max(arm.background.generic_talk);
    }
    let (mut talk, mut foreign_talk) = (-1.0f32, -1.0f32);
    for (i, cosine) in of_talk.iter().copied().enumerate() {
        talk = talk.max(cosine);
        if reach.as_ref().and_then(|r| r.lines.get(i)).is_none_or(|reached| *reached < requests) {
            foreign_talk = foreign_talk.max(cosine);
        }
    }
    Pools { descriptions, talk, foreign_talk, talk_ceiling }
}

/// Slots that were asked for by name: as the capability of the query, or distinctively inside its text.
pub fn named(view: &View, query: &Query, text: &str, visible: &Visible, gate: &mut Gate<'_>) -> Vec<(u32, Named)> {
    let mut out: Vec<(u32, Named)> = Vec::new();
    if let Some(name) = &query.capability {
        let slots = view.names.exact(name, visible);
        return slots.into_iter().filter(|s| gate.admits(*s)).take(BY_NAME).map(|s| (s, Named::Exact)).collect();
    }
    if let Some(target) = query.target.as_ref().filter(|_| text.is_empty()) {
        // a target alone: what it can do, if that is one thing
        let slots = view.catalog.agent(target).map(|a| a.slots.to_vec()).unwrap_or_default();
        // who may not see the agent gets what it gets for one that isn't there, before anything is asked of the gate
        let seen = |slot: &u32| view.cap(*slot).is_some_and(|c| visible.contains(c.class));
        return slots.into_iter().filter(seen).filter(|s| gate.admits(*s)).take(BY_NAME).map(|s| (s, Named::Exact)).collect();
    }
    for hit in view.names.find_in_text(text, visible, &view.words).into_iter().filter(|h| h.counts()) {
        let named = if hit.whole { Named::Exact } else { Named::InText };
        for slot in hit.slots {
            if out.len() < BY_NAME && !out.iter().any(|(s, _)| *s == slot) && gate.admits(slot) {
                out.push((slot, named));
            }
        }
    }
    out
}

/// Whether an arm speaks a language.
pub fn speaks(arm: &Arm, lang: Lang) -> bool {
    arm.model.lang == lang || arm.model.lang == Lang::Mixed || lang == Lang::Mixed
}

/// What is looked for.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The text.
    pub text: &'a str,
    /// Its vectors.
    pub vectors: &'a [QueryVector],
    /// Candidates taken from each arm.
    pub per_arm: usize,
    /// Whether arms of other languages are asked where the request's own has something.
    pub cross: bool,
}

/// Places of the arms: of the language that the text leans to, of others that it is in, of the rest.
fn by_language(view: &View, text: &str, lang: Lang) -> Vec<usize> {
    let leaning = Lang::leaning(text);
    let mut places: Vec<usize> = (0..view.arms.len()).collect();
    places.sort_by_key(|i| view.arms.get(*i).map(|arm| (!speaks(arm, lang), arm.model.lang != leaning)));
    places
}

/// Recalls candidates for a text of the query; `learned` are those that outcomes speak for.
pub fn recall(view: &View, query: &Query, ask: Ask<'_>, learned: &[u32], visible: &Visible, gate: &mut Gate<'_>) -> Recall {
    let Ask { text, vectors, per_arm, cross: others } = ask;
    let lang = Lang::of(text);
    let mut out = Recall { words: 0, ..Recall::default() };
    let mut slots: Vec<(u32, Option<Named>)> = named(view, query, text, visible, gate).into_iter().map(|(s, n)| (s, Some(n))).collect();
    // who says a name has said it all: nothing is searched for beside it
    let by_name = slots.iter().any(|(_, named)| *named == Some(Named::Exact));
    let exact = by_name || query.capability.is_some() || (text.is_empty() && query.target.is_some());
    // about sixty at most: looking through them beats a hash table
    let add = |slot: u32, slots: &mut Vec<(u32, Option<Named>)>| {
        if !slots.iter().any(|(s, _)| *s == slot) {
            slots.push((slot, None));
        }
    };
    let mut used: Vec<(&Arm, Probe, Centred)> = Vec::new();
    if !exact {
        let mut native = false;
        for i in by_language(view, text, lang) {
            let Some(arm) = view.arms.get(i) else { continue };
            let Some(vector) = vectors.iter().find(|v| v.model == arm.model.fingerprint) else { continue };
            let Some(probe) = arm.dense.probe(&vector.vector).filter(|_| !arm.dense.is_empty()) else { continue };
            let cross = !speaks(arm, lang);
            if cross && native && !others {
                continue;
            }
            // of another language's arm only what has no text in the request's own, and of that the best
            let (among, most) = if cross && native { (Some(&arm.lone), per_arm.min(PER_CROSS)) } else { (None, per_arm) };
            let hits = arm.dense.nearest(&probe, visible, among, most, &mut |slot| gate.admits(slot));
            if hits.background.count == 0 {
                continue;
            }
            native |= !cross;
            out.fleet = out.fleet.max(hits.background.count);
            let pools = pools(arm, &probe, visible, (hits.background.count, hits.background.mean));
            out.arms.push(ArmUsed {
                arm: i,
                cross,
                lead: false,
                pool: pools.descriptions,
                talk: pools.talk,
                foreign_talk: pools.foreign_talk,
                fleet: (hits.background.mean, hits.background.std),
                talk_ceiling: pools.talk_ceiling,
            });
            used.push((arm, probe, Centred::new(&arm.background, &vector.vector)));
            for (slot, _) in &hits.hits {
                add(*slot, &mut slots);
            }
        }
    }
    let leaning = Lang::leaning(text);
    let lead = used.iter().position(|(arm, ..)| arm.model.lang == leaning).or_else(|| out.arms.iter().position(|a| !a.cross));
    if let Some(arm) = lead.and_then(|i| out.arms.get_mut(i)) {
        arm.lead = true;
    }
    // a name that was said outright is not weighed by its words
    let lex = LexQuery::new(if exact { "" } else { text });
    let bound = view.words.bind(&lex, visible);
    if !exact {
        for hit in bound.search(per_arm, &mut |slot| gate.admits(slot)) {
            add(hit.slot, &mut slots);
        }
    }
    if !exact {
        for slot in learned {
            if gate.admits(*slot) {
                add(*slot, &mut slots);
            }
        }
    }
    out.max_bm25 = bound.max_bm25();
    out.known = bound.known();
    out.words = lex.words();
    out.fleet = out.fleet.max(bound.docs());
    out.found = slots
        .into_iter()
        .map(|(slot, named)| {
            let dense: Vec<Option<ArmEvidence>> = used.iter().map(|(arm, probe, centre)| arm_evidence(arm, probe, centre, slot)).collect();
            let native = out.arms.iter().zip(&dense).any(|(a, e)| !a.cross && e.is_some());
            let cross_language = !native && out.arms.iter().zip(&dense).any(|(a, e)| a.cross && e.is_some());
            Found { slot, named, words: bound.evidence(slot).unwrap_or_default(), dense, cross_language }
        })
        .collect();
    out
}
