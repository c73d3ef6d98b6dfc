//! The reference encoder: BERT and XLM-RoBERTa in f32 on candle.
//!
//! In: token ids. Out: the first token's vector, L2-normalised.
//! Invariant: one text at a time and no padding, so that a text gives the same bits alone and in any company.
//! Cost: about 15 ms of one core for a short text with the small models; batches of equal length measured no faster (see the commit). Not here: speed (`int8`).

use super::bundle::{Bundle, Shape};
use super::catalog::Arch;
use super::tokens::Tokeniser;
use super::{Embed, EmbedError, Embedding, ModelInfo};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, xlm_roberta};

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

    fn one(&self, text: &str) -> Result<Embedding, EmbedError> {
        let tokens = self.tokeniser.encode(text).map_err(EmbedError::Failed)?;
        let first = self.first_token(&tokens.ids).map_err(|e| EmbedError::Failed(e.to_string()))?;
        let vector = normalised(first).ok_or_else(|| EmbedError::Failed("the vector is not a number".into()))?;
        Ok(Embedding { vector: vector.into(), tokens: u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX), truncated: tokens.truncated })
    }

    fn first_token(&self, ids: &[u32]) -> candle_core::Result<Vec<f32>> {
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let types = ids.zeros_like()?;
        let hidden = match &self.net {
            Net::Bert(net) => net.forward(&ids, &types, None)?,
            Net::XlmRoberta(net) => net.forward(&ids, &ids.ones_like()?, &types, None, None, None)?,
        };
        hidden.get(0)?.get(0)?.to_vec1()
    }
}

impl Embed for Fp32 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        texts.iter().map(|t| self.one(t)).collect()
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
