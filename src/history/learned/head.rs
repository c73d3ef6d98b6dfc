//! A linear head over one model's vectors: trained on what a fleet says of itself and on what outcomes say of it.
//!
//! In: labelled texts with their vectors. Out: for a request, how likely each class is among the classes with evidence. Classes are what a
//! caller of this head can see and nothing else, so nothing hidden can move a score. Examples and outcomes that all the others contradict
//! (found by leaving each third out once) count almost nothing: a wrong label costs little, and so does a stolen example.
//! Deterministic given its rows. Cost: training seconds for 10⁴ texts; a request one row, one product a candidate.
//! Not here: which texts and how much each counts (`ingest::learn`), what becomes of the shares (`blend`).

use super::logistic::{Data, Fit};
use super::sketch::{Features, Rarity, WORDS};
use crate::kernel::dot::dot_f32;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Penalty.
const L2: f32 = 0.2;
/// Steps of the head, and of each trial that leaves a third out.
const STEPS: usize = 60;
const TRIAL_STEPS: usize = 12;
/// Parts of which each is left out once.
const PARTS: usize = 3;
/// A label is contradicted when the head that never saw it gives it less than this…
const DOUBT: f32 = 0.02;
/// … and another class more than this.
const SURE: f32 = 0.8;
/// What a contradicted label counts.
const CONTRADICTED: f32 = 0.05;

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Name or description: written by who registered it, in the manner of descriptions.
    Own,
    /// An example of the manifest: in the manner of requests.
    Example,
    /// A request with its outcome.
    Outcome,
}

/// One labelled text.
pub struct Labelled {
    /// Its class.
    pub class: u32,
    /// What it counts.
    pub weight: f32,
    /// What it is.
    pub kind: Kind,
    /// The text.
    pub text: Arc<str>,
    /// Its vector.
    pub vector: Arc<[f32]>,
}

/// Mean vectors of a model, that are taken away from what is learned.
pub struct Centres<'a> {
    /// Of requests.
    pub requests: &'a [f32],
    /// Of descriptions.
    pub descriptions: &'a [f32],
}

/// A trained head of one model.
#[derive(Serialize, Deserialize)]
pub struct Head {
    width: usize,
    weights: Vec<f32>,
    rarity: Rarity,
    centre: Vec<f32>,
    /// Labelled texts a class after doubts: what its examples and outcomes count.
    counts: Vec<f32>,
    /// Of them, outcomes.
    outcomes: Vec<f32>,
    /// How many labels were contradicted.
    pub doubted: usize,
}

impl Head {
    /// Trains a head; `None` without a text.
    pub fn train(texts: &[Labelled], classes: usize, centres: &Centres<'_>, pause: &(dyn Fn() -> bool + Sync)) -> Option<Self> {
        let width = texts.first()?.vector.len() + WORDS;
        let features: Vec<Features> = texts.iter().map(|t| Features::of(&t.text)).collect();
        let rarity = Rarity::of(features.iter());
        let mut rows = Vec::with_capacity(texts.len() * width);
        for (text, features) in texts.iter().zip(&features) {
            let centre = if text.kind == Kind::Own { centres.descriptions } else { centres.requests };
            rarity.row(features, &text.vector, centre, &mut rows);
        }
        let class: Vec<u32> = texts.iter().map(|t| t.class).collect();
        let mut weight: Vec<f32> = texts.iter().map(|t| t.weight).collect();
        let doubted = doubt(texts, &rows, width, &class, &mut weight, classes, pause);
        let data = Data { rows: &rows, width, class: &class, weight: &weight, classes };
        let weights = data.fit(&Fit { l2: L2, steps: STEPS, pause });
        let (mut counts, mut outcomes) = (vec![0.0; classes], vec![0.0; classes]);
        for (text, weight) in texts.iter().zip(&weight).filter(|(t, _)| t.kind != Kind::Own) {
            counts[text.class as usize] += weight;
            if text.kind == Kind::Outcome {
                outcomes[text.class as usize] += weight;
            }
        }
        Some(Self { width, weights, rarity, centre: centres.requests.to_vec(), counts, outcomes, doubted })
    }

    /// Labelled texts of a class, by what they count.
    pub fn count(&self, class: u32) -> f32 {
        self.counts.get(class as usize).copied().unwrap_or(0.0)
    }

    /// Outcomes of a class, by what they count.
    pub fn outcomes(&self, class: u32) -> f32 {
        self.outcomes.get(class as usize).copied().unwrap_or(0.0)
    }

    /// Scores of all classes for a request; differences are logits.
    pub fn scores(&self, text: &str, vector: &[f32]) -> Vec<f32> {
        let mut row = Vec::with_capacity(self.width);
        self.rarity.row(&Features::of(text), vector, &self.centre, &mut row);
        row.resize(self.width, 0.0);
        self.weights.chunks_exact(self.width).map(|w| dot_f32(w, &row)).collect()
    }
}

/// Lowers the weights of labels that the others contradict; how many.
fn doubt(
    texts: &[Labelled],
    rows: &[f32],
    width: usize,
    class: &[u32],
    weight: &mut [f32],
    classes: usize,
    pause: &(dyn Fn() -> bool + Sync),
) -> usize {
    let labels: Vec<usize> = (0..texts.len()).filter(|i| texts[*i].kind != Kind::Own).collect();
    if labels.len() < 2 * PARTS || classes < 2 {
        return 0;
    }
    let mut part_of = vec![usize::MAX; texts.len()];
    labels.iter().enumerate().for_each(|(n, i)| part_of[*i] = n % PARTS);
    let mut doubted = Vec::new();
    for part in 0..PARTS {
        let without: Vec<f32> = weight.iter().zip(&part_of).map(|(w, p)| if *p == part { 0.0 } else { *w }).collect();
        let data = Data { rows, width, class, weight: &without, classes };
        let w = data.fit(&Fit { l2: L2, steps: TRIAL_STEPS, pause });
        for i in labels.iter().filter(|i| part_of[**i] == part) {
            let row = &rows[i * width..(i + 1) * width];
            let scores: Vec<f32> = w.chunks_exact(width).map(|w| dot_f32(w, row)).collect();
            let most = scores.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = scores.iter().map(|s| (s - most).exp()).sum();
            if 1.0 / sum > SURE && (scores[class[*i] as usize] - most).exp() / sum < DOUBT {
                doubted.push(*i);
            }
        }
    }
    doubted.iter().for_each(|i| weight[*i] *= CONTRADICTED);
    doubted.len()
}
