//! A decision from a View and a query: `shortlist` reads the View, `pick` reads only the shortlist.
//!
//! Pure: no lock, no await, no clock, no chance but the query's seed. Serving, evaluation and replay call these same functions.
//! Not here: embedding and logging (`resolver`).

use crate::error::{Code, Error};
use crate::history::habit;
use crate::history::learned::{Nearest, Part, PartReading, Said};
use crate::index::Visible;
use crate::route::confidence::{self, Confidence};
use crate::route::decide::{self, PickOptions};
use crate::route::filter::Gate;
use crate::route::recall::{self, Ask, Found, Recall};
use crate::route::shortlist::{Item, Named, QueryFacts, Shortlist};
use crate::route::{features, fusion, opposite, reading, state, telling, undo};
use crate::types::AgentKey;
use crate::types::decision::{Candidate, Decision, DecisionKind, DropReason, Generations, Note};
use crate::types::lang::Lang;
use crate::types::query::{PartKind, Query, QueryPart, QueryVector};
use crate::types::score::Probability;
use crate::types::text::fold_name;
use crate::view::View;
use std::collections::HashMap;
use std::sync::Arc;

/// Most dropped candidates in an answer.
const SHOWN_DROPPED: usize = 5;
/// Candidates that a clause takes from each arm: only its best matters, and what is nearly as good.
const PER_CLAUSE: usize = 12;
/// A clause counts as a request of its own when its best candidate is right with at least this probability.
const CLAUSE_SURE: f32 = 0.35;
/// Cosine from which on a text is taken for one of the capability's own.
const LITERAL: f32 = 0.95;
/// A clause asks for what the whole text is most like when that is behind the clause's own best by no more than this, in logits.
const CLAUSE_SAME: f32 = -1.5;

/// What a candidate loses, in logits, that only the model of another language finds, where others are found in the request's own: that model hardly
/// reads the request, and what it finds like it is mostly chance.
/// From 1.5 to 6 the figures of the dev splits are the same (`eval/mixed.py`).
const FOREIGN: f32 = 3.0;
/// Capabilities that each head may add to what vectors and words find.
const LEARNED: usize = 8;

/// One text of a query, recalled and scored.
struct Scored {
    recall: Recall,
    rows: Vec<[f32; features::COUNT]>,
    fused: Vec<f32>,
    /// What learning changed of `fused`.
    learned: Vec<f32>,
    /// Share of the caller's work, or of what followed its last request, that went to each; empty where nothing is known.
    shared: Vec<f32>,
    /// What the caller's habits changed of `fused`.
    habits: Vec<f32>,
    /// Places in `recall.found`, best fused first.
    order: Vec<usize>,
    confidence: Confidence,
    /// How much outcomes say about the best candidate, 0..=1.
    proven: f32,
}

/// What tells capabilities apart: agents that offer the same one count once.
fn capability_of(view: &View, slot: u32) -> u64 {
    view.cap(slot).map_or(0, |c| c.name_id())
}

fn score(view: &View, query: &Query, ask: Ask<'_>, unwanted: Option<&QueryPart>, visible: &Visible, gate: &mut Gate<'_>) -> Scored {
    let Ask { text, vectors, .. } = ask;
    let part = view.learned.part(visible);
    let reading = part.and_then(|p| read(view, p, text, vectors));
    let best = reading.as_ref().map(|r| r.best(LEARNED)).unwrap_or_default();
    let recall = recall::recall(view, query, ask, &best, visible, gate);
    let rows = features::rows(view, &recall);
    let mut fused = fusion::scores(&rows);
    if let Some(unwanted) = unwanted {
        for (f, score) in recall.found.iter().zip(&mut fused) {
            *score -= unwanted_by(view, &recall, f.slot, unwanted);
        }
    }
    foreign(&recall.found, &mut fused);
    let names: Vec<&str> = recall.found.iter().map(|f| view.cap(f.slot).map_or("", |c| c.folded())).collect();
    for (loss, score) in undo::losses(&names, text).into_iter().zip(&mut fused) {
        *score -= loss;
    }
    if let Some(part) = part.filter(|p| view.policy.guards && !p.losses.is_empty()) {
        for (found, score) in recall.found.iter().zip(&mut fused) {
            *score -= part.losses.get(&found.slot).copied().unwrap_or(0.0);
        }
    }
    let said = learned(view, reading.as_ref(), &recall, &fused);
    for (score, change) in fused.iter_mut().zip(&said.changes) {
        *score += change;
    }
    let mut habits = vec![0.0f32; fused.len()];
    let capability = |i: usize| recall.found.get(i).map_or(0, |f| capability_of(view, f.slot));
    let shared = shares(view, query, recall.found.iter().map(|f| f.slot));
    let by_text = if shared.is_empty() { Vec::new() } else { fused.clone() };
    for ((share, score), own) in shared.iter().zip(&mut fused).zip(&mut habits) {
        *own = habit(*share, recall.words);
        *score += *own;
    }
    let order = falling(&fused, &recall.found);
    let small = recall.fleet < recall::SMALL_FLEET;
    let of = |fused: &[f32], order: &[usize]| confidence::of(confidence::features(&recall, view, &rows, fused, order, capability), small);
    let mut plain = of(&fused, &order);
    if habits.iter().any(|h| *h > 0.0) {
        // habits choose among what the text may mean; whether it means any of it, the text says alone
        let text = of(&by_text, &falling(&by_text, &recall.found));
        let most = text.in_scope.max(text.right);
        (plain.right, plain.in_scope) = (plain.right.min(most), plain.in_scope.min(most));
    }
    let evidence = order.first().and_then(|i| said.evidence.get(*i)).copied().unwrap_or(0.0);
    let proven = order.first().and_then(|i| said.proven.get(*i)).copied().unwrap_or(0.0);
    let confidence = {
        let heard = order.first().and_then(|i| said.heard.get(*i)).copied().unwrap_or(0.0);
        let most = if small { plain.in_scope.max(plain.right).max(heard) } else { 1.0 };
        confidence::with_learned(plain, evidence, said.nobody, most)
    };
    Scored { recall, rows, fused, learned: said.changes, shared, habits, order, confidence, proven }
}

/// Places of the candidates, best score first.
fn falling(scores: &[f32], found: &[Found]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(found[*a].slot.cmp(&found[*b].slot)));
    order
}

/// Takes [`FOREIGN`] from what only the model of another language finds and the text does not name.
fn foreign(found: &[Found], fused: &mut [f32]) {
    let native = |f: &Found| !f.cross_language && f.dense.iter().any(Option::is_some);
    if found.iter().any(native) {
        found.iter().zip(fused).filter(|(f, _)| f.cross_language && f.named.is_none()).for_each(|(_, score)| *score -= FOREIGN);
    }
}

/// A text as the heads of its language's models read it.
fn read<'a>(view: &View, part: &'a Part, text: &str, vectors: &[QueryVector]) -> Option<PartReading<'a>> {
    let lang = Lang::of(text);
    let native = view.arms.iter().filter(|a| recall::speaks(a, lang));
    let asked = native.filter_map(|a| vectors.iter().find(|v| v.model == a.model.fingerprint)).map(|v| (&*v.model, &*v.vector));
    part.read(text, asked)
}

/// What the heads change of each candidate's score; zeros where nothing was learned for what this caller sees.
fn learned(view: &View, reading: Option<&PartReading<'_>>, recall: &Recall, fused: &[f32]) -> Said {
    let Some(reading) = reading else { return Said { changes: vec![0.0; fused.len()], ..Said::default() } };
    // one entry a capability: agents that offer the same thing are one
    let mut place: HashMap<(Option<u32>, u64), usize> = HashMap::new();
    let (mut classes, mut best, mut entry) = (Vec::new(), Vec::new(), Vec::with_capacity(fused.len()));
    for (found, score) in recall.found.iter().zip(fused) {
        let class = reading.class(found.slot);
        let key = (class, if class.is_some() { 0 } else { capability_of(view, found.slot) });
        let at = *place.entry(key).or_insert_with(|| {
            classes.push(class);
            best.push(*score);
            classes.len() - 1
        });
        best[at] = best[at].max(*score);
        entry.push(at);
    }
    let lead = recall.arms.iter().find(|a| a.lead).or(recall.arms.first()).and_then(|a| view.arms.get(a.arm));
    let nearest = Nearest {
        cosine: recall.found.iter().filter_map(|f| recall.cosine(f)).fold(-1.0, f32::max),
        spread: lead.map_or(0.05, |arm| arm.background.spread),
    };
    let said = reading.say(&classes, &fusion::shares(&best), nearest);
    let each = |values: &[f32]| entry.iter().map(|at| values.get(*at).copied().unwrap_or(0.0)).collect();
    Said {
        changes: each(&said.changes),
        evidence: each(&said.evidence),
        proven: each(&said.proven),
        heard: each(&said.heard),
        nobody: said.nobody,
    }
}

/// How much nearer a capability is to what is not wanted than to what is, as a loss of its fused score.
fn unwanted_by(view: &View, recall: &Recall, slot: u32, unwanted: &QueryPart) -> f32 {
    let mut loss = 0.0f32;
    for (at, used) in recall.arms.iter().enumerate() {
        let Some(arm) = view.arms.get(used.arm) else { continue };
        let Some(vector) = unwanted.vectors.iter().find(|v| v.model == arm.model.fingerprint) else { continue };
        let wanted =
            recall.found.iter().find(|f| f.slot == slot).and_then(|f| f.dense.get(at).copied().flatten()).map_or(-1.0, |e| e.dense);
        let away = arm.dense.probe(&vector.vector).and_then(|probe| arm.dense.score(&probe, slot)).unwrap_or(-1.0);
        loss = loss.max(((away - wanted) / arm.background.spread).clamp(0.0, 4.0));
    }
    loss * 1.5
}

/// Shares of the caller's work, or of what followed its last request, that went to capabilities. Nothing for who is not known.
fn shares(view: &View, query: &Query, slots: impl Iterator<Item = u32>) -> Vec<f32> {
    let previous = query.previous.as_ref().map(|p| fold_name(p));
    let known = view.history.shares(query.principal.tenant.as_deref(), &query.principal.caller, previous.as_deref(), query.at_ms);
    let Some(known) = known else { return Vec::new() };
    let mut key = String::new();
    slots
        .map(|slot| {
            view.cap(slot).map_or(0.0, |cap| {
                cap.write_key(&mut key);
                known.of(&key)
            })
        })
        .collect()
}

fn item(view: &View, query: &Query, gate: &Gate<'_>, scored: &Scored, at: usize, similarity: f32) -> Option<Item> {
    let found = scored.recall.found.get(at)?;
    let cap = view.cap(found.slot)?;
    let capability = cap.capability();
    let key = &cap.agent.key;
    Some(Item {
        agent: key.clone(),
        agent_version: cap.agent.manifest.agent_version.clone(),
        capability: capability.intent.clone(),
        folded: cap.folded().clone(),
        features: scored.rows.get(at).map(|r| r.to_vec()).unwrap_or_default(),
        fused: scored.fused.get(at).copied().unwrap_or(0.0),
        learned: scored.learned.get(at).copied().unwrap_or(0.0),
        habit: scored.habits.get(at).copied().unwrap_or(0.0),
        similarity,
        named: found.named,
        cosine: scored.recall.cosine(found),
        bm25: found.words.bm25,
        cross_language: found.cross_language,
        live: state::terms(view, cap),
        ttl_ms: query.deadline_ms.map_or(state::DEFAULT_TTL_MS, |d| d as f32),
        cost: capability.cost.unwrap_or(0.0) as f32,
        preferred: query.preferred.contains(key),
        cooccurrence: scored.shared.get(at).copied().unwrap_or(0.0),
        tenant: f32::from(u8::from(query.principal.tenant.as_deref().is_some_and(|t| t == key.namespace.as_str()))),
        quality: 0.5,
        forced: gate.forced(cap),
    })
}

/// Whether the text speaks of something instead of asking for it, and whether it asks for the opposite of what the best candidate does. A capability that
/// explains is asked by asking about; one whose texts speak of translating, songs and the like is asked by asking for those.
fn is_told(view: &View, main: &Scored, text: &str) -> (bool, bool) {
    let best = main.order.first().and_then(|i| main.recall.found.get(*i));
    if best.is_some_and(|found| is_literal(&main.recall, found)) {
        return (false, false);
    }
    let Some(cap) = best.and_then(|found| view.cap(found.slot)) else { return (telling::tells(text, "", &[]), false) };
    let c = cap.capability();
    let mut own: Vec<&str> = [c.description.zh.as_deref(), c.description.en.as_deref()].into_iter().flatten().collect();
    own.extend(c.examples.iter().map(|e| &**e));
    let named = best.is_some_and(|found| found.named == Some(Named::InText));
    let names = std::iter::once(&*c.intent).chain(c.aliases.iter().map(|a| &**a)).map(crate::types::text::fold_name);
    let said = if named { crate::types::text::fold_name(text) } else { String::new() };
    let spoken_of = named && names.into_iter().any(|n| said.contains(&n) && reading::is_spoken_of(text, &n));
    (spoken_of || telling::tells(text, cap.folded(), &own), opposite::asks_opposite(text, cap.folded(), own.iter().copied()))
}

/// Whether the text is one of the candidate's own, nearly to the letter.
fn is_literal(recall: &Recall, found: &recall::Found) -> bool {
    recall.cosine(found).is_some_and(|c| c >= LITERAL)
}

/// Filter, recall, features, similarity: everything about the candidates that is not policy.
pub fn shortlist(view: &View, query: &Query) -> Shortlist {
    let visible = view.visible(&query.principal);
    let mut gate = Gate::new(view, query);
    let part = |kind| query.parts.iter().find(|p| p.kind == kind);
    let unwanted = part(PartKind::Unwanted);
    let (text, vectors): (&Arc<str>, &[QueryVector]) = match part(PartKind::Wanted) {
        Some(wanted) => (&wanted.text, &wanted.vectors),
        None => (&query.text, &query.vectors),
    };
    let main = score(view, query, Ask { text, vectors, per_arm: recall::PER_ARM, cross: true }, unwanted, &visible, &mut gate);
    let mut list = Shortlist::default();
    let exact = main.recall.found.iter().any(|f| f.named == Some(Named::Exact));
    let (told, opposite) = if exact { (false, false) } else { is_told(view, &main, if unwanted.is_some() { &query.text } else { text }) };
    list.facts = QueryFacts {
        features: main.confidence.features.clone(),
        confidence: main.confidence.right,
        in_scope: main.confidence.in_scope,
        proven: main.proven,
        negated: unwanted.is_some(),
        clauses: 1,
        exact,
        thin: reading::content(text) <= 1
            && !main.order.first().and_then(|i| main.recall.found.get(*i)).is_some_and(|f| is_literal(&main.recall, f)),
        told,
        opposite,
        used: main.recall.found.iter().all(|f| {
            f.named != Some(Named::InText)
                || view.cap(f.slot).is_some_and(|c| {
                    let names = std::iter::once(&*c.capability().intent).chain(c.capability().aliases.iter().map(|a| &**a));
                    names.into_iter().any(|n| reading::is_used(text, &crate::types::text::fold_name(n)))
                })
        }),
        calibrated: calibrated(view, &main.recall),
    };
    if list.facts.negated && part(PartKind::Wanted).is_none() {
        // only what is not wanted was said: nothing here can be sure
        list.facts.confidence = list.facts.confidence.min(0.3);
    }

    // similarity of the best is its probability; the others follow by their odds against it
    for i in &main.order {
        let own = main.fused[*i];
        let best = main.order.first().map_or(own, |f| main.fused[*f]);
        let similarity =
            if main.recall.found[*i].named == Some(Named::Exact) { 1.0 } else { list.facts.confidence * ((own - best).exp()).min(1.0) };
        list.items.extend(item(view, query, &gate, &main, *i, similarity.clamp(0.0, 1.0)));
    }

    let clauses: Vec<&QueryPart> = query.parts.iter().filter(|p| p.kind == PartKind::Clause).collect();
    if clauses.len() > 1 && !exact {
        several(view, query, &clauses, &visible, &mut gate, &mut list);
    }
    if gate.may_force() {
        force(view, query, &visible, &mut gate, &main, &mut list);
    }
    let payload_asked = query.payload.is_some();
    let similarity_of = {
        let arms: Vec<_> = main
            .recall
            .arms
            .iter()
            .filter_map(|u| {
                let arm = view.arms.get(u.arm)?;
                let vector = vectors.iter().find(|v| v.model == arm.model.fingerprint)?;
                Some((arm, arm.dense.probe(&vector.vector)?))
            })
            .collect();
        let (confidence, best) = (
            list.facts.confidence,
            main.recall.found.iter().flat_map(|f| f.dense.iter().flatten()).map(|e| e.dense).fold(f32::MIN, f32::max),
        );
        move |slot: u32| {
            arms.iter()
                .filter_map(|(arm, probe)| Some((arm.dense.score(probe, slot)?, arm.background.spread)))
                .map(|(cosine, spread)| {
                    if best > f32::MIN {
                        confidence.max(0.05) * ((cosine - best) / spread).exp().min(1.5)
                    } else {
                        ((cosine - 0.5) * 2.0).clamp(0.0, 1.0)
                    }
                })
                .fold(0.0f32, f32::max)
                .clamp(0.0, 1.0)
        }
    };
    list.dropped = gate.into_dropped(similarity_of, SHOWN_DROPPED);
    if payload_asked && list.items.is_empty() && list.dropped.iter().any(|d| matches!(d.why, DropReason::Payload { .. })) {
        list.warnings.push(Note::new(
            "payload_invalid",
            "the payload fits none of the capabilities that would do; the dropped ones say where and what was expected",
        ));
    }
    if view.arms.is_empty() && !exact {
        // words alone are no meaning: shown, never delivered unasked
        list.facts.confidence = list.facts.confidence.min(0.3);
        list.warnings.push(Note::new("names_only", "this node runs without models: it knows names for sure and can only guess at words"));
    }
    if view.pending > 0 {
        list.warnings.push(Note::new(
            "warming",
            format!("{} capabilities are still being embedded; they are found by their words only", view.pending),
        ));
    }
    if view.live.stale {
        list.warnings.push(Note::new("stale_registry", "most leases ended at once; the last known agents are kept"));
    }
    list
}

/// Whether thresholds fitted for the models in use stand behind the decision: the policy's, where it says for which they were fitted (the same ones, neither
/// more nor fewer), else the shipped ones.
fn calibrated(view: &View, recall: &Recall) -> bool {
    if view.policy.fitted_for.is_empty() {
        return confidence::covers(view, recall);
    }
    let in_use: Vec<&str> = view.arms.iter().map(|a| &*a.model.fingerprint).collect();
    !in_use.is_empty() && view.policy.holds_for(&in_use)
}

/// Two requests in one text: the best of each clause stands in front, and the answer is a suggestion that names them.
///
/// A clause is a request of its own only where it is surely about something else: its best candidate is likely right for it, and what the whole text
/// is most like is not ("book a table and ask for a window seat" stays one request). What the whole text is most like stays first, unless no clause
/// asks for it and one of them is surer.
fn several(view: &View, query: &Query, clauses: &[&QueryPart], visible: &Visible, gate: &mut Gate<'_>, list: &mut Shortlist) {
    let Some(whole) = list.items.first().map(|i| i.folded.clone()) else { return };
    let mut wanted: Vec<(Arc<str>, f32)> = Vec::new();
    // who can do which of them: agents with the same name for something else don't come along
    let mut able: Vec<(AgentKey, Arc<str>)> = Vec::new();
    let mut newcomers: Vec<Item> = Vec::new();
    for (before, clause) in clauses.iter().enumerate() {
        if wanted.len() + clauses.len() - before < 2 {
            // one wish at most: what is left to look at can't change that
            return;
        }
        let scored = score(
            view,
            query,
            Ask { text: &clause.text, vectors: &clause.vectors, per_arm: PER_CLAUSE, cross: false },
            None,
            visible,
            gate,
        );
        let folded = |at: usize| scored.recall.found.get(at).and_then(|f| view.cap(f.slot)).map(|c| c.folded());
        let Some(first) = scored.order.first().copied() else { continue };
        let best = scored.fused.get(first).copied().unwrap_or(f32::MIN);
        let same = scored.order.iter().find(|at| folded(**at).is_some_and(|f| *f == whole));
        let at = same.copied().filter(|at| scored.fused.get(*at).is_some_and(|s| s - best >= CLAUSE_SAME)).unwrap_or(first);
        let Some(cap) = scored.recall.found.get(at).and_then(|f| view.cap(f.slot)) else { continue };
        if scored.confidence.right < CLAUSE_SURE || wanted.iter().any(|(folded, _)| folded == cap.folded()) {
            continue;
        }
        wanted.push((cap.folded().clone(), scored.confidence.right));
        let own = scored.fused.get(at).copied().unwrap_or(f32::MIN);
        let near = scored.order.iter().filter(|i| scored.fused.get(**i).is_some_and(|s| s - own >= CLAUSE_SAME));
        let near = near.filter_map(|i| scored.recall.found.get(*i)).filter_map(|f| view.cap(f.slot));
        able.extend(near.filter(|c| c.folded() == cap.folded()).map(|c| (c.agent.key.clone(), c.folded().clone())));
        if !list.items.iter().any(|i| i.agent == cap.agent.key && i.folded == *cap.folded()) {
            newcomers.extend(item(view, query, gate, &scored, at, scored.confidence.right));
        }
    }
    if wanted.len() < 2 {
        return;
    }
    list.items.append(&mut newcomers);
    list.facts.clauses = wanted.len();
    list.facts.in_scope = wanted.iter().map(|w| w.1).fold(list.facts.in_scope, f32::max);
    let top = list.items.first().map_or(0.0, |i| i.similarity);
    let surest = wanted.iter().map(|w| w.1).fold(0.0, f32::max);
    let kept = wanted.iter().any(|(folded, _)| *folded == whole) || list.facts.confidence >= surest;
    for item in &mut list.items {
        if let Some((place, (_, sure))) = wanted.iter().enumerate().find(|(_, (folded, _))| *folded == item.folded)
            && !(kept && item.folded == whole)
            && able.iter().any(|(agent, folded)| *agent == item.agent && *folded == item.folded)
        {
            // ahead of what only the whole text resembles; never equal to one another, for equals are shuffled
            let raised = item.similarity.max(*sure).max(top).min(if kept { top } else { 1.0 });
            item.similarity = raised * (1.0 - 1e-3 * (place + 1) as f32);
        }
    }
    list.items.sort_by(|a, b| b.similarity.total_cmp(&a.similarity));
}

/// Rules that force: their capabilities join the list even where nothing resembles them.
fn force(view: &View, query: &Query, visible: &Visible, gate: &mut Gate<'_>, main: &Scored, list: &mut Shortlist) {
    let forced: Vec<_> =
        view.catalog.capabilities().filter(|c| visible.contains(c.class) && gate.forced(c).is_some()).take(10).cloned().collect();
    for cap in forced {
        if !gate.admits(cap.slot) || list.items.iter().any(|i| i.agent == cap.agent.key && i.folded == *cap.folded()) {
            continue;
        }
        let mut scored = Scored {
            recall: Recall::default(),
            rows: Vec::new(),
            fused: Vec::new(),
            learned: Vec::new(),
            shared: shares(view, query, std::iter::once(cap.slot)),
            habits: Vec::new(),
            order: Vec::new(),
            confidence: main.confidence.clone(),
            proven: 0.0,
        };
        scored.recall.found.push(recall::Found {
            slot: cap.slot,
            named: None,
            dense: Vec::new(),
            words: Default::default(),
            cross_language: false,
        });
        list.items.extend(item(view, query, gate, &scored, 0, 0.0));
    }
}

/// Options of a pick for a query.
pub fn options(query: &Query) -> PickOptions<'_> {
    PickOptions { preset: query.preset.as_deref(), shipped: confidence::shipped_point(), k: query.k, seed: query.seed }
}

/// The whole decision. The id is empty: the caller gives it one.
pub fn decide(view: &View, query: &Query) -> (Shortlist, Decision) {
    let list = shortlist(view, query);
    let mut decision = decide::pick(&list, &view.policy, &options(query));
    if decision.kind == DecisionKind::None && query.fallback {
        fall_back(view, query, &mut decision);
    }
    if list.items.is_empty()
        && list.dropped.is_empty()
        && let (Some(target), Some(reason)) = (&query.target, decision.reasons.iter_mut().find(|r| r.code == "no_candidate"))
    {
        let visible = view.visible(&query.principal);
        let seen =
            view.catalog.agent(target).is_some_and(|a| a.slots.iter().any(|s| view.cap(*s).is_some_and(|c| visible.contains(c.class))));
        // an agent that may not be seen is one that is not there
        reason.text = match (seen, &query.capability) {
            (false, _) => format!("no agent {target} is there"),
            (true, Some(capability)) => format!("{target} offers no capability {capability:?}"),
            (true, None) => format!("{target} offers nothing like this"),
        };
    }
    decision.generations = Generations {
        catalog: view.catalog.generation(),
        models: view.arms.iter().map(|a| a.model.fingerprint.clone()).collect(),
        policy: view.policy.generation,
    };
    (list, decision)
}

/// The error of a query whose payload fits nobody, when the caller wants one instead of `none`.
pub fn payload_error(list: &Shortlist) -> Option<Error> {
    if !list.items.is_empty() {
        return None;
    }
    let faults: Vec<_> = list
        .dropped
        .iter()
        .filter_map(|d| match &d.why {
            DropReason::Payload { pointer, expected } => Some(crate::types::Fault::new(
                format!("/payload{pointer}"),
                expected.clone(),
                format!("asked by {} {}", d.agent, d.capability),
            )),
            DropReason::ScopeMissing { .. }
            | DropReason::Region { .. }
            | DropReason::Closed { .. }
            | DropReason::Attribute { .. }
            | DropReason::Cost { .. }
            | DropReason::LeaseExpired
            | DropReason::Unreachable
            | DropReason::Draining
            | DropReason::Breaker
            | DropReason::Overloaded
            | DropReason::Rule { .. }
            | DropReason::NotPreferred
            | DropReason::NotTarget
            | DropReason::Excluded
            | DropReason::UnderFloor => None,
        })
        .collect();
    (!faults.is_empty())
        .then(|| Error { faults, ..Error::new(Code::PayloadInvalid, "the payload fits none of the capabilities that would do") })
}

fn fall_back(view: &View, query: &Query, decision: &mut Decision) {
    let Some(fallback) = &view.policy.fallback else { return };
    let folded = crate::types::text::fold_name(&fallback.capability);
    let visible = view.visible(&query.principal);
    let found = view
        .catalog
        .agent(&fallback.agent)
        .and_then(|a| a.slots.iter().filter_map(|s| view.cap(*s)).find(|c| c.is_called(&folded)))
        .filter(|c| visible.contains(c.class));
    let Some(cap) = found else {
        decision.warnings.push(Note::new(
            "fallback_missing",
            format!("the fallback {} {} is not registered or not visible", fallback.agent, fallback.capability),
        ));
        return;
    };
    let mut gate = Gate::new(view, query);
    if !gate.admits(cap.slot) {
        let why = gate.into_dropped(|_| 0.0, 1).first().map(|d| crate::route::explain::words(&d.why)).unwrap_or_default();
        decision.warnings.push(Note::new("fallback_unavailable", format!("the fallback {} can't take it: {why}", fallback.agent)));
        return;
    }
    decision.kind = DecisionKind::Auto;
    decision.reasons.push(Note::new("fallback", format!("nobody fits; the configured fallback {} takes it", fallback.agent)));
    decision.candidates.insert(
        0,
        Candidate {
            agent: cap.agent.key.clone(),
            agent_version: cap.agent.manifest.agent_version.clone(),
            capability: cap.capability().intent.clone(),
            score: 0.0,
            probability: Probability::new(0.0),
            under_floor: false,
            found_by: vec!["fallback".into()],
            terms: Vec::new(),
            evidence: Vec::new(),
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::recall::ArmEvidence;

    #[test]
    fn what_only_another_languages_model_finds_stands_back_behind_the_requests_own() {
        let found = |cross_language: bool, named: Option<Named>| Found {
            slot: 0,
            named,
            words: Default::default(),
            dense: vec![Some(ArmEvidence::default())],
            cross_language,
        };
        let after = |all: &[Found]| {
            let mut fused = vec![1.0; all.len()];
            foreign(all, &mut fused);
            fused
        };
        assert_eq!(after(&[found(false, None), found(true, None)]), [1.0, 1.0 - FOREIGN]);
        assert_eq!(after(&[found(false, None), found(true, Some(Named::InText))]), [1.0, 1.0], "a name is a name in every language");
        assert_eq!(after(&[found(true, None), found(true, None)]), [1.0, 1.0], "a fleet in one language answers the other as before");
    }
}
