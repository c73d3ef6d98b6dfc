//! Counts what every decision became under every setting, with resamples for the bounds, as the log streams by.
//!
//! Invariant: `judge` is pure and may run on any core; `add` is called in the order of the log, so that two runs give the same bytes.
//! Memory: independent of the length of the log, but for a number a decision and a number a distinct request.

use super::Config;
use super::entry::{Entry, hash};
use super::figures::{CELLS, Cell, Counts, RESAMPLES, independent, percentile, unseen};
use super::labels::Truth;
use super::settings::{Axis, Setting};
use crate::route::dice::Dice;
use crate::route::logged::Who;
use crate::types::decision::{Decision, DecisionKind};
use crate::types::policy::Policy;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// An answer, for showing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// `auto`, `suggest` or `none`.
    pub kind: DecisionKind,
    /// `namespace/agent_id capability`, unless nobody.
    pub who: Option<String>,
    /// Confidence, 0..=1.
    pub confidence: f32,
}

/// A decision that a setting changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Id of the decision.
    pub decision_id: String,
    /// Its text, where kept.
    pub query: Option<String>,
    /// Then.
    pub from: Shown,
    /// Now.
    pub to: Shown,
    /// Why, in words.
    pub why: String,
    /// Whether the new answer is `better`, `worse`, `as good`, or `not known`.
    pub now: &'static str,
}

/// What one entry gives.
pub struct Row {
    group: String,
    request: u64,
    labelled: bool,
    negative: bool,
    cells: Vec<Cell>,
    moved: Vec<Option<(DecisionKind, DecisionKind)>>,
    moves: Vec<(usize, Move)>,
    /// Confidence and in-scope probability under the current policy, and whether the first candidate is right.
    confidence: f32,
    top: Option<bool>,
    nobody: bool,
    capability: Option<(String, String)>,
    first: Option<String>,
    reproduced: Option<bool>,
    exact: bool,
    at_ms: i64,
}

/// Counts of one setting in one part of the data.
#[derive(Clone)]
pub struct Part {
    /// The data.
    pub data: Counts,
    /// Resamples: by cell, then by resample.
    resampled: Vec<[u32; RESAMPLES]>,
}

impl Default for Part {
    fn default() -> Self {
        Self { data: [0; CELLS], resampled: vec![[0; RESAMPLES]; CELLS] }
    }
}

impl Part {
    fn add(&mut self, cell: Cell, weights: &[u32; RESAMPLES]) {
        self.data[cell as usize] += 1;
        if let Some(row) = self.resampled.get_mut(cell as usize) {
            for (n, w) in row.iter_mut().zip(weights) {
                *n += w;
            }
        }
    }

    /// Counts of each resample.
    pub fn resamples(&self) -> Vec<Counts> {
        let one = |b: usize| {
            let mut c: Counts = [0; CELLS];
            for (n, row) in c.iter_mut().zip(&self.resampled) {
                *n = u64::from(row[b]);
            }
            c
        };
        (0..RESAMPLES).map(one).collect()
    }

    /// Two parts as one.
    pub fn with(&self, other: &Self) -> Self {
        let mut out = self.clone();
        for (a, b) in out.data.iter_mut().zip(&other.data) {
            *a += b;
        }
        for (a, b) in out.resampled.iter_mut().flatten().zip(other.resampled.iter().flatten()) {
            *a += b;
        }
        out
    }
}

/// By how much `after` is more than `before`, with the 95 % interval of a paired bootstrap: both were counted over the same requests with one seed, so
/// that a resample is the same for both. A resample in which either is a share of nothing is left out. A gain that is the same in every resample is no
/// surer than its number of requests: as many as those don't rule out may lose what the others gain.
pub fn gain(before: &Part, after: &Part, of: impl Fn(&Counts) -> Option<f64>) -> (f64, f64, f64) {
    let resamples = after.resamples();
    let n = independent(after.data.iter().sum(), resamples.iter().map(|c| c.iter().sum()));
    let pairs = before.resamples().into_iter().zip(resamples);
    let mut all: Vec<f64> = pairs.filter_map(|(b, a)| Some(of(&a)? - of(&b)?)).collect();
    let value = of(&after.data).unwrap_or(0.0) - of(&before.data).unwrap_or(0.0);
    let (low, high) = (percentile(&mut all, 0.025), percentile(&mut all, 0.975));
    if low == high && value != 0.0 {
        let doubt = 2.0 * unseen(n) * value.abs();
        return (value, low - doubt, high + doubt);
    }
    (value, low, high)
}

/// Counts of one setting.
#[derive(Clone, Default)]
pub struct OfSetting {
    /// Requests that settings are chosen on.
    pub fit: Part,
    /// Requests that they are not chosen on.
    pub held: Part,
    /// How many decisions moved, by what they were and what they became.
    pub moved: BTreeMap<String, u64>,
    /// The first of them.
    pub moves: Vec<Move>,
}

/// What is known of one capability.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Coverage {
    /// Labelled requests for it.
    pub labelled: u64,
    /// Of them, it came first.
    pub first: u64,
    /// Of them, nobody was found.
    pub missed: u64,
    /// Requests it came first for.
    pub chosen: u64,
}

/// Bins of confidence, as many as `reach eval run` has, so that both give one calibration error for one history.
pub const BINS: usize = 10;

/// Everything counted of decisions by one set of models.
#[derive(Clone)]
pub struct Group {
    /// By setting, in their order.
    pub settings: Vec<OfSetting>,
    /// Decisions.
    pub decisions: u64,
    /// Labelled ones.
    pub labelled: u64,
    /// Labels that say nobody, or wrong.
    pub negatives: u64,
    /// Distinct labelled requests.
    pub requests: HashSet<u64>,
    /// Distinct requests with a negative label.
    pub negative_requests: HashSet<u64>,
    /// By confidence under the current policy: right, wrong, nobody can, not known.
    pub bins: [[u64; 4]; BINS],
    /// Sum of confidences of labelled decisions by bin.
    pub sums: [f64; BINS],
    /// By capability.
    pub coverage: BTreeMap<String, Coverage>,
    /// Decided again as logged: how many the same, of how many.
    pub reproduced: (u64, u64),
    /// Decisions for which the log holds everything that could have mattered under every setting.
    pub exact: u64,
    /// Time of the first and the last, milliseconds.
    pub span: (i64, i64),
}

/// The running counts.
pub struct Tally {
    /// Settings.
    pub settings: Vec<Setting>,
    /// The same for decisions of other models than those their points were fitted for; `None` where they don't say.
    elsewhere: Vec<Option<Policy>>,
    /// By models.
    pub groups: BTreeMap<String, Group>,
    seed: u64,
    holdout: f64,
    show: usize,
    poisson: [u64; 8],
}

fn cell(kind: DecisionKind, truth: &Truth, candidates: &[Who]) -> Cell {
    if !truth.is_known() {
        return match kind {
            DecisionKind::Auto => Cell::Auto,
            DecisionKind::Suggest => Cell::Suggest,
            DecisionKind::None => Cell::None,
        };
    }
    let first = candidates.first().map(|c| truth.of(c));
    match (kind, truth.in_scope(), first) {
        (DecisionKind::Auto, Some(false), _) => Cell::AutoNobody,
        (DecisionKind::Auto, _, Some(Some(true))) if truth.several() => Cell::AutoPart,
        (DecisionKind::Auto, _, Some(Some(true))) => Cell::AutoRight,
        (DecisionKind::Auto, _, Some(Some(false)) | None) => Cell::AutoWrong,
        (DecisionKind::Auto, _, Some(None)) => Cell::AutoUnknown,
        (DecisionKind::Suggest, Some(false), _) => Cell::SuggestNobody,
        (DecisionKind::Suggest, _, Some(Some(true))) if !truth.held_by(candidates) => Cell::SuggestPart,
        (DecisionKind::Suggest, _, Some(Some(true))) => Cell::SuggestFirst,
        (DecisionKind::Suggest, inside, _) => {
            if truth.held_by(candidates) {
                Cell::SuggestHeld
            } else if inside.is_none() || candidates.iter().any(|c| truth.of(c).is_none()) {
                Cell::SuggestUnknown
            } else {
                Cell::SuggestLacks
            }
        }
        (DecisionKind::None, Some(true), _) => Cell::NoneMiss,
        (DecisionKind::None, Some(false), _) => Cell::NoneNobody,
        (DecisionKind::None, None, _) => Cell::NoneUnknown,
    }
}

fn whose(decision: &Decision) -> Vec<Who> {
    decision.candidates.iter().map(|c| Who { agent: c.agent.clone(), capability: c.capability.clone() }).collect()
}

fn shown(kind: DecisionKind, first: Option<&Who>, confidence: f32) -> Shown {
    let who = first.filter(|_| kind != DecisionKind::None).map(|w| format!("{} {}", w.agent, w.capability));
    Shown { kind, who, confidence: (confidence * 1e4).round() / 1e4 }
}

impl Tally {
    /// Nothing counted yet.
    pub fn new(settings: Vec<Setting>, config: &Config) -> Self {
        // Poisson(1): the chance of at most n, in 64 bits
        let (mut sum, mut p) = (0.0f64, (-1.0f64).exp());
        let mut poisson = [u64::MAX; 8];
        for (n, limit) in poisson.iter_mut().enumerate().take(7) {
            sum += p;
            *limit = (sum * u64::MAX as f64) as u64;
            p /= (n + 1) as f64;
        }
        let elsewhere = settings.iter().map(|s| (!s.policy.fitted_for.is_empty()).then(|| s.elsewhere().policy)).collect();
        Self { settings, elsewhere, groups: BTreeMap::new(), seed: config.seed, holdout: config.holdout, show: config.moves, poisson }
    }

    /// For which settings further moved decisions are wanted in full.
    pub fn wants_moves(&self) -> Vec<bool> {
        (0..self.settings.len())
            .map(|s| self.groups.values().all(|g| g.settings.get(s).is_none_or(|of| of.moves.len() < self.show)))
            .collect()
    }

    /// Decides one entry under every setting.
    pub fn judge(&self, entry: &Entry, truth: &Truth, wants: &[bool]) -> Row {
        let logged = &entry.logged;
        let answer = &logged.decision;
        let fell_back = answer.fell_back();
        // what the pick said: the fallback agent came after it
        let then_kind = if fell_back { DecisionKind::None } else { answer.kind };
        let then_who: &[Who] = if fell_back { answer.candidates.get(1..).unwrap_or_default() } else { &answer.candidates };
        let n = self.settings.len();
        let (mut cells, mut moved, mut moves) = (Vec::with_capacity(n), Vec::with_capacity(n), Vec::new());
        let (mut confidence, mut top, mut first_now, mut exact) = (0.0, None, None, true);
        for (s, setting) in self.settings.iter().enumerate() {
            if setting.axis == Axis::Logged {
                cells.push(cell(then_kind, truth, then_who));
                moved.push(None);
                continue;
            }
            let foreign = self.elsewhere.get(s).and_then(Option::as_ref).filter(|_| !setting.policy.holds_for(&answer.generations.models));
            let policy = foreign.unwrap_or(&setting.policy);
            let decision = logged.repick(policy);
            let who = whose(&decision);
            cells.push(cell(decision.kind, truth, &who));
            exact &= logged.exact_under(policy);
            if setting.axis == Axis::Current {
                confidence = if who.is_empty() { 0.0 } else { decision.confidence.get() };
                // nobody was found, though somebody can do it: not right, at a confidence of 0
                top = who.first().map_or_else(|| truth.in_scope().filter(|inside| *inside).map(|_| false), |w| truth.of(w));
                first_now = who.first().map(|w| format!("{} {}", w.agent.agent_id, w.capability));
            }
            let other = decision.kind != DecisionKind::None && who.first() != then_who.first();
            if decision.kind == then_kind && !other {
                moved.push(None);
                continue;
            }
            moved.push(Some((then_kind, decision.kind)));
            if wants.get(s).copied().unwrap_or(false) {
                // one of several is no right answer where it is delivered
                let whole = |kind, first: Option<&Who>| match first.and_then(|w| truth.of(w)) {
                    Some(true) if kind == DecisionKind::Auto && truth.several() => Some(false),
                    other => other,
                };
                let (was, is) = (whole(then_kind, then_who.first()), whole(decision.kind, who.first()));
                moves.push((
                    s,
                    Move {
                        decision_id: entry.id.clone(),
                        query: entry.text.clone(),
                        from: shown(then_kind, then_who.first(), answer.confidence.get()),
                        to: shown(decision.kind, who.first(), decision.confidence.get()),
                        why: decision.reasons.first().map(|r| r.text.clone()).unwrap_or_default(),
                        now: verdict((then_kind, was), (decision.kind, is), truth.in_scope()),
                    },
                ));
            }
        }
        let reproduced = logged.policy.as_ref().map(|policy| {
            let again = logged.repick(policy);
            again.kind == then_kind && whose(&again).first() == then_who.first()
        });
        let request = hash(entry.text.as_deref().map_or(entry.id.as_str(), str::trim));
        Row {
            group: answer.generations.models.join(" + "),
            request,
            labelled: truth.is_known(),
            negative: truth.nobody || !truth.wrong.is_empty(),
            cells,
            moved,
            moves,
            confidence,
            top,
            nobody: truth.nobody,
            capability: truth.right.first().cloned(),
            first: first_now,
            reproduced,
            exact,
            at_ms: entry.at_ms,
        }
    }

    /// Counts one row.
    pub fn add(&mut self, row: Row) {
        let n = self.settings.len();
        let group = self.groups.entry(row.group).or_insert_with(|| Group::new(n));
        let mut dice = Dice::new(self.seed ^ row.request);
        let held = self.holdout > 0.0 && f64::from(dice.unit()) < self.holdout;
        let mut weights = [0u32; RESAMPLES];
        for w in &mut weights {
            let roll = dice.roll();
            *w = self.poisson.iter().take_while(|limit| roll > **limit).count() as u32;
        }
        for (s, (of, cell)) in group.settings.iter_mut().zip(&row.cells).enumerate() {
            let part = if held { &mut of.held } else { &mut of.fit };
            part.add(*cell, &weights);
            if let Some(Some((from, to))) = row.moved.get(s) {
                let what =
                    if from == to { format!("{} → another", from.as_str()) } else { format!("{} → {}", from.as_str(), to.as_str()) };
                *of.moved.entry(what).or_default() += 1;
            }
        }
        for (s, shown) in row.moves {
            if let Some(of) = group.settings.get_mut(s).filter(|of| of.moves.len() < self.show) {
                of.moves.push(shown);
            }
        }
        group.decisions += 1;
        group.exact += u64::from(row.exact);
        group.span = (group.span.0.min(row.at_ms), group.span.1.max(row.at_ms));
        if let Some(same) = row.reproduced {
            group.reproduced.0 += u64::from(same);
            group.reproduced.1 += 1;
        }
        if row.labelled {
            group.labelled += 1;
            group.requests.insert(row.request);
        }
        if row.negative {
            group.negatives += 1;
            group.negative_requests.insert(row.request);
        }
        let bin = ((f64::from(row.confidence) * BINS as f64) as usize).min(BINS - 1);
        let kind = match (row.nobody, row.top) {
            (true, _) => 2,
            (false, Some(true)) => 0,
            (false, Some(false)) => 1,
            (false, None) => 3,
        };
        group.bins[bin][kind] += 1;
        if kind < 3 {
            group.sums[bin] += f64::from(row.confidence);
        }
        if let Some((agent, capability)) = row.capability {
            let agent = agent.rsplit('/').next().unwrap_or(&agent).to_string();
            let of = group.coverage.entry(format!("{agent} {capability}")).or_default();
            of.labelled += 1;
            of.first += u64::from(row.top == Some(true));
            // index 1 is the current policy
            of.missed += u64::from(row.cells.get(1) == Some(&Cell::NoneMiss));
        }
        if let Some(first) = row.first {
            group.coverage.entry(first).or_default().chosen += 1;
        }
    }
}

impl Group {
    fn new(settings: usize) -> Self {
        Self {
            settings: vec![OfSetting::default(); settings],
            decisions: 0,
            labelled: 0,
            negatives: 0,
            requests: HashSet::new(),
            negative_requests: HashSet::new(),
            bins: [[0; 4]; BINS],
            sums: [0.0; BINS],
            coverage: BTreeMap::new(),
            reproduced: (0, 0),
            exact: 0,
            span: (i64::MAX, i64::MIN),
        }
    }
}

/// Whether a moved decision got better. Delivering the right one is best, delivering a wrong one worst.
fn verdict(was: (DecisionKind, Option<bool>), is: (DecisionKind, Option<bool>), in_scope: Option<bool>) -> &'static str {
    let worth = |(kind, right): (DecisionKind, Option<bool>)| match (kind, right, in_scope) {
        (DecisionKind::Auto, Some(true), _) => Some(3),
        (DecisionKind::Auto, Some(false), _) | (DecisionKind::Auto, None, Some(false)) => Some(0),
        (DecisionKind::Suggest, Some(_), Some(true)) => Some(2),
        (DecisionKind::Suggest, _, Some(false)) => Some(1),
        (DecisionKind::None, _, Some(false)) => Some(3),
        (DecisionKind::None, _, Some(true)) => Some(0),
        (DecisionKind::Suggest, Some(false), None) => Some(1),
        (DecisionKind::Auto | DecisionKind::Suggest | DecisionKind::None, _, _) => None,
    };
    match (worth(was), worth(is)) {
        (Some(a), Some(b)) if b > a => "better",
        (Some(a), Some(b)) if b < a => "worse",
        (Some(_), Some(_)) => "as good",
        (None, _) | (_, None) => "not known",
    }
}
