//! Proof that weights are those of the model whose name they bear: a few vectors of the reference implementation, computed again at load.
//!
//! A calibration holds for the model it was fitted with. Names can be given to any weights, and one model has several files (converted, re-saved), so
//! neither a name nor a hash says it; what the weights make of a text does. In: a loaded encoder. Out: whether it is proven.
//! Cost: four short texts a model, some milliseconds. Not here: what is done without a proof (`route::confidence`: the decision says `uncalibrated`).

use super::Embed;
use crate::kernel::dot::dot_f32;
use base64::Engine;
use half::f16;
use serde::Deserialize;
use std::sync::LazyLock;

/// Least cosine to the reference: int8 stays above 0.9994, other weights of the same kind stay well below.
pub const SAME: f32 = 0.999;

/// Vectors of one model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    model: String,
    golden: Vec<Golden>,
}

/// One text with its vector: `f16`, little-endian, in base64.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    text: String,
    vector: String,
}

impl Golden {
    fn vector(&self) -> Option<Vec<f32>> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.vector).ok()?;
        let (values, rest) = bytes.as_chunks::<2>();
        rest.is_empty().then(|| values.iter().map(|v| f16::from_le_bytes(*v).to_f32()).collect())
    }
}

static SHIPPED: LazyLock<Vec<Reference>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../models/golden.json")).unwrap_or_default());

/// The lowest cosine of what `model` makes of the shipped texts to what the model of its name makes of them; `None` when nothing is shipped for that
/// name, or when it fails.
pub fn lowest(model: &dyn Embed) -> Option<f32> {
    let reference = SHIPPED.iter().find(|r| *r.model == *model.info().name)?;
    let texts: Vec<&str> = reference.golden.iter().map(|g| g.text.as_str()).collect();
    let got = model.embed(&texts).ok()?;
    let cosine = |(e, g): (&super::Embedding, &Golden)| {
        let wanted = g.vector().filter(|v| v.len() == e.vector.len())?;
        let length = dot_f32(&wanted, &wanted).sqrt();
        Some(dot_f32(&e.vector, &wanted) / length).filter(|c| c.is_finite())
    };
    got.iter().zip(&reference.golden).map(cosine).try_fold(1.0f32, |low, c| c.map(|c| low.min(c)))
}

/// Whether the weights of `model` are those its name stands for. Says so in the log when they are others.
pub fn proves(model: &dyn Embed) -> bool {
    let info = model.info();
    match lowest(model) {
        Some(cosine) if cosine >= SAME => true,
        Some(cosine) => {
            tracing::warn!(
                model = &*info.name,
                cosine,
                "these weights are not those of the model whose name they bear: decisions say `uncalibrated`"
            );
            false
        }
        None => {
            tracing::debug!(model = &*info.name, "nothing is shipped to prove these weights by");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::Fake;
    use crate::types::Lang;

    #[test]
    fn what_is_shipped_is_readable() {
        assert_eq!(SHIPPED.iter().map(|r| r.model.as_str()).collect::<Vec<_>>(), ["bge-small-zh-v1.5", "bge-small-en-v1.5"]);
        for g in SHIPPED.iter().flat_map(|r| &r.golden) {
            let v = g.vector().unwrap();
            assert!((dot_f32(&v, &v) - 1.0).abs() < 1e-2 && v.len() >= 384, "{}", g.text);
        }
    }

    #[test]
    fn a_name_proves_nothing() {
        assert_eq!(lowest(&Fake::new("nothing-shipped", Lang::En, 384)), None);
        let impostor = Fake::new("bge-small-en-v1.5", Lang::En, 384);
        assert!(lowest(&impostor).is_some_and(|c| c < SAME) && !proves(&impostor));
        assert!(!proves(&Fake::new("bge-small-en-v1.5", Lang::En, 64)), "other dimensions are other weights");
    }
}
