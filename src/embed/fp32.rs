//! The reference encoder: BERT and XLM-RoBERTa in f32 on candle.
//!
//! In: texts. Out: the first token's vector of each, L2-normalised.
//! Invariant: no padding: only texts of the same number of tokens go through together, so company changes a vector by rounding at most.
//! Cost: about 15 ms of one core for a short text with the small models, about half of it for each of several texts of equal length (the weights are
//! read once for all of them). Not here: speed (`int8`).

use super::bundle::{Bundle, Shape};
use super::catalog::Arch;
use super::tokens::{Tokeniser, Tokens};
use super::{Embed, EmbedError, Embedding, ModelInfo};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, xlm_roberta};
use std::sync::Arc;

/// Most texts that go through together: more measured slower, the activations leave the cache.
const GROUP: usize = 4;

enum Net {
    Bert(bert::BertModel),
    XlmRoberta(xlm_roberta::XLMRobertaModel),
}

/// A model in f32.
pub struct Fp32 {
    info: ModelInfo,
    tokeniser: Tokeniser,
    net: Net,
}

impl Fp32 {
    /// Builds the encoder. The error names the file at fault.
    pub fn load(bundle: Bundle) -> Result<Self, EmbedError> {
        let net = net(&bundle).map_err(|e| bundle.damaged_weights(e))?;
        Ok(Self { info: bundle.info("fp32"), tokeniser: bundle.tokeniser, net })
    }

    /// Proves the weights by a few texts.
    pub fn prove(mut self) -> Self {
        self.info.proven = super::golden::proves(&self);
        self
    }

    /// Vectors of the first tokens; all of `ids` have the same length.
    fn first_tokens(&self, ids: &[&[u32]]) -> candle_core::Result<Vec<Vec<f32>>> {
        let width = ids.first().map_or(0, |row| row.len());
        let ids = Tensor::from_vec(ids.concat(), (ids.len(), width), &Device::Cpu)?;
        let types = ids.zeros_like()?;
        let hidden = match &self.net {
            Net::Bert(net) => net.forward(&ids, &types, None)?,
            Net::XlmRoberta(net) => net.forward(&ids, &ids.ones_like()?, &types, None, None, None)?,
        };
        hidden.narrow(1, 0, 1)?.squeeze(1)?.to_vec2()
    }

    fn group(&self, ids: &[&[u32]]) -> Result<Vec<Arc<[f32]>>, EmbedError> {
        let vectors = self.first_tokens(ids).map_err(|e| EmbedError::Failed(e.to_string()))?;
        let scaled = |v| normalised(v).map(Arc::from).ok_or_else(|| EmbedError::Failed("the vector is not a number".into()));
        vectors.into_iter().map(scaled).collect()
    }
}

impl Embed for Fp32 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let tokens: Vec<Tokens> = texts.iter().map(|t| self.tokeniser.encode(t)).collect::<Result<_, _>>().map_err(EmbedError::Failed)?;
        let mut vectors: Vec<(usize, Arc<[f32]>)> = Vec::with_capacity(texts.len());
        let mut by_length: Vec<(usize, &[u32])> = tokens.iter().map(|t| t.ids.as_slice()).enumerate().collect();
        by_length.sort_by_key(|(_, ids)| ids.len());
        for equal in by_length.chunk_by(|(_, a), (_, b)| a.len() == b.len()) {
            for group in equal.chunks(GROUP) {
                let ids: Vec<&[u32]> = group.iter().map(|(_, ids)| *ids).collect();
                vectors.extend(group.iter().map(|(i, _)| *i).zip(self.group(&ids)?));
            }
        }
        vectors.sort_by_key(|(i, _)| *i);
        let finished = tokens.iter().zip(vectors).map(|(t, (_, vector))| Embedding {
            vector,
            tokens: u32::try_from(t.ids.len()).unwrap_or(u32::MAX),
            truncated: t.truncated,
        });
        Ok(finished.collect())
    }
}

fn net(bundle: &Bundle) -> candle_core::Result<Net> {
    let vars = VarBuilder::from_slice_safetensors(&bundle.files.weights, DType::F32, &Device::Cpu)?;
    Ok(match bundle.spec.arch {
        Arch::Bert => Net::Bert(bert::BertModel::load(vars, &bert_config(&bundle.shape))?),
        Arch::XlmRoberta => {
            let vars = if vars.contains_tensor("roberta.embeddings.word_embeddings.weight") { vars.pp("roberta") } else { vars };
            Net::XlmRoberta(xlm_roberta::XLMRobertaModel::new(&xlm_config(&bundle.shape), vars)?)
        }
    })
}

fn bert_config(shape: &Shape) -> bert::Config {
    bert::Config {
        vocab_size: shape.vocab_size,
        hidden_size: shape.hidden_size,
        num_hidden_layers: shape.num_hidden_layers,
        num_attention_heads: shape.num_attention_heads,
        intermediate_size: shape.intermediate_size,
        hidden_act: bert::HiddenAct::Gelu,
        max_position_embeddings: shape.max_position_embeddings,
        type_vocab_size: shape.type_vocab_size,
        layer_norm_eps: shape.layer_norm_eps,
        ..bert::Config::default()
    }
}

fn xlm_config(shape: &Shape) -> xlm_roberta::Config {
    xlm_roberta::Config {
        vocab_size: shape.vocab_size,
        hidden_size: shape.hidden_size,
        num_hidden_layers: shape.num_hidden_layers,
        num_attention_heads: shape.num_attention_heads,
        intermediate_size: shape.intermediate_size,
        hidden_act: candle_nn::Activation::Gelu,
        max_position_embeddings: shape.max_position_embeddings,
        type_vocab_size: shape.type_vocab_size,
        layer_norm_eps: shape.layer_norm_eps,
        attention_probs_dropout_prob: 0.0,
        hidden_dropout_prob: 0.0,
        position_embedding_type: "absolute".into(),
        pad_token_id: 1,
    }
}

/// Scales to length 1; `None` when that can't be done.
pub fn normalised(mut v: Vec<f32>) -> Option<Vec<f32>> {
    let length = v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if !length.is_finite() || length == 0.0 {
        return None;
    }
    for x in &mut v {
        *x = (f64::from(*x) / length) as f32;
    }
    Some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_scaled_or_refused() {
        assert_eq!(normalised(vec![3.0, 4.0]), Some(vec![0.6, 0.8]));
        assert!(normalised(vec![0.0, 0.0]).is_none() && normalised(vec![f32::NAN]).is_none() && normalised(vec![f32::INFINITY]).is_none());
    }
}
