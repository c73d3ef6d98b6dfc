//! A model's files, read, checked and understood: the common ground of the encoders.
//!
//! In: a name of the catalogue and the cache. Out: weights as bytes, a [`Tokeniser`], the shape of the encoder, and its [`ModelInfo`].
//! Invariant: checksums hold, and tokenizer, configuration and catalogue agree; else the error names the file.
//! Cost: one read and one hash of the weights. Not here: arithmetic.

use super::cache::{CONFIG, Cache, Files, TOKENIZER, WEIGHTS};
use super::catalog::{ModelSpec, Pooling};
use super::tokens::Tokeniser;
use super::{EmbedError, ModelInfo};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Shape of an encoder, from `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Shape {
    /// Token ids.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Positions that have a vector.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// Small number of the layer norms.
    pub layer_norm_eps: f64,
}

/// A model ready to be made into an encoder.
pub struct Bundle {
    /// Its entry in the catalogue.
    pub spec: ModelSpec,
    /// Its files, checked; `files.weights` can be taken, and is empty after [`Bundle::read_light`].
    pub files: Files,
    /// Its tokenizer.
    pub tokeniser: Tokeniser,
    /// Its shape.
    pub shape: Shape,
}

impl Bundle {
    /// Reads a model out of the cache.
    pub fn read(spec: &ModelSpec, cache: &Cache) -> Result<Self, EmbedError> {
        Self::of(spec, cache.read(&spec.name)?)
    }

    /// Reads a model without its weights, for encoders that have a faster way to theirs.
    pub fn read_light(spec: &ModelSpec, cache: &Cache) -> Result<Self, EmbedError> {
        Self::of(spec, cache.read_light(&spec.name)?)
    }

    /// Checks files that were read elsewhere.
    pub fn of(spec: &ModelSpec, files: Files) -> Result<Self, EmbedError> {
        let shape: Shape = serde_json::from_slice(&files.config).map_err(|e| files.damaged(CONFIG, e))?;
        if shape.hidden_size != spec.dim || shape.num_attention_heads == 0 || !shape.hidden_size.is_multiple_of(shape.num_attention_heads) {
            return Err(files.damaged(
                CONFIG,
                format!("{} dimensions in {} heads don't fit the catalogue's {}", shape.hidden_size, shape.num_attention_heads, spec.dim),
            ));
        }
        if shape.max_position_embeddings < spec.max_tokens {
            return Err(
                files.damaged(CONFIG, format!("{} positions, the catalogue has {} tokens", shape.max_position_embeddings, spec.max_tokens))
            );
        }
        let tokeniser = Tokeniser::new(&files.tokenizer, spec.max_tokens, spec.lowercase).map_err(|e| files.damaged(TOKENIZER, e))?;
        if tokeniser.vocabulary() > shape.vocab_size {
            return Err(files.damaged(
                TOKENIZER,
                format!("{} ids, the weights have {}: files of different models", tokeniser.vocabulary(), shape.vocab_size),
            ));
        }
        Ok(Self { spec: spec.clone(), files, tokeniser, shape })
    }

    /// Description of the model when it runs in `precision`.
    pub fn info(&self, precision: &'static str) -> ModelInfo {
        ModelInfo {
            name: Arc::from(self.spec.name.as_str()),
            lang: self.spec.lang,
            dim: self.spec.dim,
            max_tokens: self.spec.max_tokens,
            precision,
            fingerprint: self.fingerprint(precision),
            proven: false,
        }
    }

    /// `name/precision/` and 16 hex digits over everything that changes a vector.
    fn fingerprint(&self, precision: &str) -> Arc<str> {
        let pooling = match self.spec.pooling {
            Pooling::Cls => "cls",
        };
        let mut hash = Sha256::new();
        for file in [WEIGHTS, TOKENIZER, CONFIG] {
            hash.update(self.files.sums.files.get(file).map(String::as_bytes).unwrap_or_default());
        }
        let rest = format!("{pooling}|{}|{}|{}", self.spec.query_instruction, self.spec.lowercase, self.spec.max_tokens);
        hash.update(rest.as_bytes());
        let digest = hex::encode(hash.finalize());
        format!("{}/{precision}/{}", self.spec.name, digest.get(..16).unwrap_or(&digest)).into()
    }

    /// An error that names the file of the weights.
    pub fn damaged_weights(&self, why: impl ToString) -> EmbedError {
        self.files.damaged(WEIGHTS, why)
    }
}
