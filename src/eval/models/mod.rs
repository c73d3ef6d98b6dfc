//! Embedding models side by side on one's own fleet and queries: quality, decisions at refitted thresholds, speed, memory, and whether a difference is
//! more than chance.
//!
//! In: model specifications ([`spec`]), manifests, labelled queries. Out: a [`Report`], best model first.
//! Every model goes through the same ingest and route code as serving. Quality is deterministic; speed and memory are of this machine.
//! Not here: swapping a model in a running service (`app`).

pub mod page;
pub mod pairs;
pub mod spec;
pub mod speed;
pub mod table;
pub mod texts;

use crate::embed::models::Models;
use crate::error::Error;
use crate::eval::metrics;
use crate::eval::queries::{Labelled, Mode};
use crate::eval::replay::aim::Aim;
use crate::eval::replay::entry::{Entry, Raw};
use crate::eval::replay::figures::Figures;
use crate::eval::replay::labels::{Labels, RawLabel};
use crate::eval::replay::settings::{Axis, Sweep};
use crate::eval::replay::{self, settings};
use crate::eval::run::{Asked, Bench, judge};
use crate::route::logged::{Body, Logged};
use crate::route::shortlist::Item;
use crate::types::manifest::Manifest;
use crate::types::policy::Policy;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Rank figures over the queries that somebody can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ranks {
    /// Share with a right answer first.
    pub top1: f64,
    /// Share with a right answer among the first three.
    pub top3: f64,
    /// Mean reciprocal rank of the first right answer.
    pub mrr: f64,
    /// Normalised discounted cumulative gain of the first ten (Järvelin and Kekäläinen 2002), each right answer worth 1.
    pub ndcg10: f64,
}

/// Decisions at thresholds fitted on one half of the requests, counted on the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refitted {
    /// The setting.
    pub setting: String,
    /// Whether its bounds keep the aim on the half it was chosen on.
    pub surely: bool,
    /// Figures on the other half.
    pub held_out: Figures,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfModel {
    /// Specification.
    pub name: String,
    /// Fingerprints.
    pub fingerprints: Vec<String>,
    /// Dimensions of each arm.
    pub dims: Vec<usize>,
    /// The whole ranking: meaning, words, names.
    pub whole: Ranks,
    /// Meaning alone.
    pub dense: Ranks,
    /// AUROC of confidence: right first answers against not.
    pub auroc: Option<f64>,
    /// Calibration error of the shipped confidence.
    pub ece: f64,
    /// Whether the shipped calibration was fitted for it.
    pub calibrated: bool,
    /// Decisions at refitted thresholds; `None` = no setting reaches the aim.
    pub refitted: Option<Refitted>,
    /// Why there is none, or what is thin.
    pub note: String,
    /// (auto threshold, auto share, auto precision) of a sweep over all queries.
    pub curve: Vec<(f64, f64, f64)>,
    /// Speed, memory and size on this machine.
    pub speed: speed::Speed,
    /// What each query got, for pairing; not part of the report.
    #[serde(skip)]
    pub each: Vec<Each>,
}

/// What one query got.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Each {
    /// A right answer first.
    pub first: bool,
    /// Reciprocal rank.
    pub rr: f64,
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Queries.
    pub queries: usize,
    /// Of them, with a right answer.
    pub in_scope: usize,
    /// Capabilities.
    pub capabilities: usize,
    /// What thresholds were fitted for.
    pub aim: String,
    /// Models, best mean reciprocal rank first.
    pub models: Vec<OfModel>,
    /// Every pair.
    pub pairs: Vec<pairs::Pair>,
}

#[derive(Default)]
struct Sum {
    n: f64,
    ranks: Ranks,
}

impl Sum {
    /// Adds one query: 0-based places of right answers, ascending, and how many there are.
    fn add(&mut self, places: &[usize], expected: usize) -> Each {
        self.n += 1.0;
        let first = places.first().copied();
        let rr = first.map_or(0.0, |p| 1.0 / (p as f64 + 1.0));
        let gain = |p: usize| 1.0 / (p as f64 + 2.0).log2();
        let ideal: f64 = (0..expected.min(10)).map(gain).sum();
        let got: f64 = places.iter().filter(|p| **p < 10).map(|p| gain(*p)).sum();
        self.ranks.top1 += f64::from(u8::from(first == Some(0)));
        self.ranks.top3 += f64::from(u8::from(first.is_some_and(|p| p < 3)));
        self.ranks.mrr += rr;
        self.ranks.ndcg10 += if ideal > 0.0 { got / ideal } else { 0.0 };
        Each { first: first == Some(0), rr }
    }

    fn mean(&self) -> Ranks {
        let n = self.n.max(1.0);
        let r = self.ranks;
        Ranks { top1: r.top1 / n, top3: r.top3 / n, mrr: r.mrr / n, ndcg10: r.ndcg10 / n }
    }
}

fn places<'a>(query: &Labelled, order: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<usize> {
    order.enumerate().filter(|(_, (a, c))| query.is_right(a, c)).map(|(i, _)| i).collect()
}

fn by_cosine(items: &[Item]) -> Vec<(&str, &str)> {
    let mut order: Vec<(f32, &Item)> = items.iter().filter_map(|i| Some((i.cosine?, i))).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.agent.cmp(&b.1.agent)).then_with(|| a.1.folded.cmp(&b.1.folded)));
    order.into_iter().map(|(_, i)| (&*i.agent.agent_id, &*i.capability)).collect()
}

/// The answer's candidates, continued by the shortlist.
fn whole(asked: &Asked) -> Vec<(&str, &str)> {
    let mut out: Vec<(&str, &str)> = asked.decision.candidates.iter().map(|c| (&*c.agent.agent_id, &*c.capability)).collect();
    for item in &asked.list.items {
        let pair = (&*item.agent.agent_id, &*item.capability);
        if !out.contains(&pair) {
            out.push(pair);
        }
    }
    out
}

/// What to compare on.
pub struct Task {
    /// Fleet.
    pub manifests: Vec<Manifest>,
    /// Labelled queries.
    pub queries: Vec<Labelled>,
    /// What thresholds are fitted for.
    pub aim: Aim,
    /// Policy.
    pub policy: Policy,
    /// Seed.
    pub seed: u64,
}

/// Measures one model. `tick` is called after each query.
pub async fn measure(
    task: &Task,
    name: &str,
    models: Arc<Models>,
    mut speed: speed::Speed,
    folder: &Path,
    mut tick: impl FnMut(),
) -> Result<(OfModel, usize), Error> {
    let bench = Bench::untaught(models.clone(), task.manifests.clone(), task.policy.clone(), folder).await?;
    speed.fleet_texts = bench.batch.embedded;
    let (mut all, mut dense) = (Sum::default(), Sum::default());
    let (mut judged, mut each) = (Vec::new(), Vec::new());
    let (mut entries, mut labels) = (Vec::new(), Labels::default());
    let mut calibrated = true;
    for (i, query) in task.queries.iter().enumerate() {
        let mut asked = bench.ask(query, task.seed.wrapping_add(i as u64), 5).await?;
        if !query.expected.is_empty() {
            // a request that needs several is right when one of them comes first, as in `reach eval run`
            let expected = if query.mode == Mode::All { query.expected.len() } else { query.expected.len().max(1) };
            each.push(all.add(&places(query, whole(&asked).into_iter()), expected));
            dense.add(&places(query, by_cosine(&asked.list.items).into_iter()), expected);
        }
        judged.push(judge(query, &asked.decision));
        calibrated &= asked.decision.calibrated;
        let id = format!("q{i}");
        asked.decision.decision_id.clone_from(&id);
        let body = Body::of(&asked.query, &asked.list, &asked.decision, &task.policy, true).json();
        let logged: Logged = serde_json::from_value(body).map_err(Error::internal)?;
        labels.add(RawLabel {
            decision_id: Some(id.clone()),
            expected: Some(query.expected.clone()),
            mode: query.mode,
            ..RawLabel::default()
        });
        entries.push(Entry { id, at_ms: asked.query.at_ms, caller: String::new(), text: Some(query.query.clone()), logged });
        tick();
    }
    let config = replay::Config { seed: task.seed, holdout: 0.5, aim: task.aim.clone(), moves: 0, swept: vec![Sweep::Threshold] };
    let tried = settings::of(&config.swept, &task.policy);
    let source = entries.into_iter().map(|e| Ok(Raw::Entry(Box::new(e))));
    let fitted = replay::replay(source, &labels, &task.policy, tried, &config, |_| {})?;
    let curve = fitted
        .settings
        .iter()
        .filter(|s| s.axis == Axis::Auto)
        .filter_map(|s| Some((s.at, s.figures.auto?.value, s.figures.auto_precision?.value)))
        .collect();
    let refitted = fitted
        .advice
        .recommended
        .as_ref()
        .and_then(|r| Some(Refitted { setting: r.setting.clone(), surely: r.surely, held_out: r.held_out.clone()? }));
    let note = if refitted.is_some() { fitted.advice.thin.join("; ") } else { fitted.advice.why };
    let of = OfModel {
        name: name.to_string(),
        fingerprints: models.fingerprints().iter().map(ToString::to_string).collect(),
        dims: models.arms().map(|(_, i)| i.dim).collect(),
        whole: all.mean(),
        dense: dense.mean(),
        auroc: metrics::auroc(&judged),
        ece: metrics::ece(&judged),
        calibrated,
        refitted,
        note,
        curve,
        speed,
        each,
    };
    Ok((of, bench.batch.capabilities))
}

/// Ranks models and pairs them.
pub fn report(task: &Task, capabilities: usize, mut models: Vec<OfModel>) -> Report {
    models.sort_by(|a, b| b.whole.mrr.total_cmp(&a.whole.mrr).then_with(|| a.name.cmp(&b.name)));
    Report {
        queries: task.queries.len(),
        in_scope: task.queries.iter().filter(|q| !q.expected.is_empty()).count(),
        capabilities,
        aim: task.aim.to_string(),
        pairs: pairs::all(&models, task.seed),
        models,
    }
}

#[cfg(test)]
mod tests;
