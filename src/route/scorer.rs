//! Small models over feature rows: linear, boosted trees, one hidden layer, and weighted sums of them. Read from JSON, checked once.
//!
//! In: a row of named features. Out: a score (a logit where the model was fitted as a classifier). Cost: microseconds a row.
//! Not here: fitting (see `eval/fit/README.md`), what a score means (`fusion`, `confidence`).

use serde::{Deserialize, Serialize};

/// Features that are gathered without asking for memory.
const FEW: usize = 64;

/// A weighted sum of models over the features they name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scorer {
    /// Features the models read, in their order.
    pub features: Vec<String>,
    /// Models and what each counts.
    pub members: Vec<Member>,
    /// Divides the sum; makes differences of scores logits.
    #[serde(default = "one")]
    pub temperature: f32,
    #[serde(skip)]
    places: Vec<usize>,
}

fn one() -> f32 {
    1.0
}

/// A model of a sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Weight in the sum.
    pub weight: f32,
    /// The model.
    pub model: Model,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    /// bias + Σ weight·(x − mean)/scale.
    Linear {
        /// Subtracted from each feature.
        mean: Vec<f32>,
        /// Divides each feature.
        scale: Vec<f32>,
        /// Weights.
        weights: Vec<f32>,
        /// Constant.
        bias: f32,
    },
    /// bias + Σ trees. A node goes left when `x[feature]` ≤ threshold; a leaf has feature −1.
    Trees {
        /// Constant.
        bias: f32,
        /// Trees.
        trees: Vec<Tree>,
    },
    /// bias + Σ v·tanh(W·(x − mean)/scale + b).
    Hidden {
        /// Subtracted from each feature.
        mean: Vec<f32>,
        /// Divides each feature.
        scale: Vec<f32>,
        /// Rows of the hidden layer.
        hidden: Vec<Vec<f32>>,
        /// Its constants.
        offsets: Vec<f32>,
        /// Output weights.
        out: Vec<f32>,
        /// Output constant.
        bias: f32,
    },
}

/// A binary tree in arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Feature tested at a node, as a place in the scorer's list; −1 at a leaf.
    pub feature: Vec<i32>,
    /// Threshold at a node.
    pub threshold: Vec<f32>,
    /// Left child.
    pub left: Vec<u32>,
    /// Right child.
    pub right: Vec<u32>,
    /// Value of a leaf.
    pub value: Vec<f32>,
}

impl Tree {
    fn score(&self, x: &[f32]) -> f32 {
        let mut at = 0usize;
        // children lie behind their parents (checked), so this ends
        while let Some(feature) = self.feature.get(at).and_then(|f| usize::try_from(*f).ok()) {
            let left = x.get(feature).copied().unwrap_or(0.0) <= self.threshold.get(at).copied().unwrap_or(0.0);
            at = if left { self.left[at] } else { self.right[at] } as usize;
        }
        self.value.get(at).copied().unwrap_or(0.0)
    }

    fn fault(&self, features: usize) -> Option<&'static str> {
        let n = self.feature.len();
        if n == 0 || [self.threshold.len(), self.left.len(), self.right.len(), self.value.len()].iter().any(|l| *l != n) {
            return Some("a tree's arrays must be of one length");
        }
        let sound = (0..n).all(|i| match usize::try_from(self.feature[i]) {
            Err(_) => true,
            Ok(f) => f < features && [self.left[i], self.right[i]].iter().all(|c| (*c as usize) > i && (*c as usize) < n),
        });
        (!sound).then_some("a tree's children must lie behind their parents and test known features")
    }
}

impl Model {
    fn score(&self, x: &[f32]) -> f32 {
        let scaled = |mean: &[f32], scale: &[f32], i: usize| (x[i] - mean[i]) / scale[i];
        match self {
            Self::Linear { mean, scale, weights, bias } => {
                bias + weights.iter().enumerate().map(|(i, w)| w * scaled(mean, scale, i)).sum::<f32>()
            }
            Self::Trees { bias, trees } => bias + trees.iter().map(|t| t.score(x)).sum::<f32>(),
            Self::Hidden { mean, scale, hidden, offsets, out, bias } => {
                let x: Vec<f32> = (0..x.len()).map(|i| scaled(mean, scale, i)).collect();
                let unit = |(row, offset): (&Vec<f32>, &f32)| (offset + row.iter().zip(&x).map(|(w, v)| w * v).sum::<f32>()).tanh();
                bias + hidden.iter().zip(offsets).map(unit).zip(out).map(|(h, v)| h * v).sum::<f32>()
            }
        }
    }

    fn fault(&self, n: usize) -> Option<&'static str> {
        let sized = |parts: &[&Vec<f32>]| parts.iter().all(|p| p.len() == n && p.iter().all(|v| v.is_finite()));
        let nonzero = |scale: &[f32]| scale.iter().all(|s| *s != 0.0);
        match self {
            Self::Linear { mean, scale, weights, .. } => {
                (!sized(&[mean, scale, weights]) || !nonzero(scale)).then_some("one mean, scale ≠ 0 and weight a feature")
            }
            Self::Trees { trees, .. } => trees.iter().find_map(|t| t.fault(n)),
            Self::Hidden { mean, scale, hidden, offsets, out, .. } => (!sized(&[mean, scale])
                || !nonzero(scale)
                || hidden.iter().any(|h| h.len() != n)
                || hidden.len() != offsets.len()
                || hidden.len() != out.len())
            .then_some("one mean and scale ≠ 0 a feature, one row, offset and output a hidden unit"),
        }
    }
}

impl Scorer {
    /// Reads and checks a scorer whose rows are made of `names`.
    pub fn parse(json: &str, names: &[&str]) -> Result<Self, String> {
        let scorer: Self = serde_json::from_str(json).map_err(|e| e.to_string())?;
        scorer.bound(names)
    }

    /// Binds a scorer to rows made of `names`.
    pub fn bound(mut self, names: &[&str]) -> Result<Self, String> {
        if self.temperature.is_nan() || self.temperature <= 0.0 {
            return Err("temperature must be > 0".into());
        }
        self.places = self
            .features
            .iter()
            .map(|f| names.iter().position(|n| n == f).ok_or_else(|| format!("there is no feature {f:?}")))
            .collect::<Result<_, _>>()?;
        match self.members.iter().find_map(|m| m.model.fault(self.features.len())) {
            Some(fault) => Err(fault.into()),
            None => Ok(self),
        }
    }

    /// Scores a row.
    pub fn score(&self, row: &[f32]) -> f32 {
        let mut few = [0.0f32; FEW];
        let many: Vec<f32>;
        let value = |p: &usize| row.get(*p).copied().unwrap_or(0.0);
        let x = match few.get_mut(..self.places.len()) {
            Some(x) => {
                x.iter_mut().zip(&self.places).for_each(|(x, p)| *x = value(p));
                &*x
            }
            None => {
                many = self.places.iter().map(value).collect();
                many.as_slice()
            }
        };
        self.members.iter().map(|m| m.weight * m.model.score(x)).sum::<f32>() / self.temperature
    }
}

/// 1 / (1 + e^−x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["a", "b"];

    #[test]
    fn linear_trees_and_hidden_add_up() {
        let json = r#"{"features":["b","a"],"temperature":2.0,"members":[
          {"weight":1.0,"model":{"kind":"linear","mean":[1,0],"scale":[2,1],"weights":[3,5],"bias":0.5}},
          {"weight":2.0,"model":{"kind":"trees","bias":0.25,"trees":[{"feature":[1,-1,-1],"threshold":[0.5,0,0],"left":[1,0,0],"right":[2,0,0],"value":[0,10,20]}]}},
          {"weight":1.0,"model":{"kind":"hidden","mean":[0,0],"scale":[1,1],"hidden":[[0,0]],"offsets":[0],"out":[7],"bias":1.0}}]}"#;
        let s = Scorer::parse(json, NAMES).unwrap();
        // a = 1, b = 3: linear 0.5 + 3·(3−1)/2 + 5·1 = 8.5; trees 2·(0.25 + 20); hidden 1
        assert!((s.score(&[1.0, 3.0]) - (8.5 + 40.5 + 1.0) / 2.0).abs() < 1e-5);
    }

    #[test]
    fn unsound_models_are_refused() {
        for bad in [
            r#"{"features":["zz"],"members":[]}"#,
            r#"{"features":["a"],"members":[{"weight":1,"model":{"kind":"linear","mean":[],"scale":[],"weights":[],"bias":0}}]}"#,
            r#"{"features":["a"],"members":[{"weight":1,"model":{"kind":"trees","bias":0,"trees":[{"feature":[0],"threshold":[0],"left":[0],"right":[0],"value":[0]}]}}]}"#,
            r#"{"features":["a"],"temperature":0,"members":[]}"#,
        ] {
            assert!(Scorer::parse(bad, NAMES).is_err(), "{bad}");
        }
    }
}
