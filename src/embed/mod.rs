//! Turns texts into vectors with a bge model that runs on this host.
//!
//! In: texts of any length. Out: L2-normalised `f32` vectors, one a text, in order.
//! Invariant: a text embeds the same alone and in a batch; no call here panics, blocks an async thread or sends text off the host.
//! Cost: milliseconds of one core a text; see the heads of the encoders.
//! Not here: which arm's score means what (`route`), keeping vectors across restarts (`store`).

pub mod bundle;
pub mod cache;
pub mod catalog;
pub mod fetch;
pub mod fp32;
pub mod golden;
pub mod int8;
pub mod local;
pub mod models;
pub mod onnx;
pub mod precomputed;
pub mod slot;
pub mod testing;
pub mod tokens;
pub mod vectors;
pub mod worker;

use crate::error::{Code, Error};
use crate::types::Lang;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One text as a vector.
#[derive(Clone, PartialEq)]
pub struct Embedding {
    /// The vector, L2-normalised; its length is [`ModelInfo::dim`].
    pub vector: Arc<[f32]>,
    /// Tokens that went through the model, with the two that the tokenizer adds.
    pub tokens: u32,
    /// Whether the text was longer than the model reads, so that its end was cut off.
    pub truncated: bool,
}

impl fmt::Debug for Embedding {
    /// Prints lengths only: vectors say too much about texts, and fill logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedding")
            .field("dim", &self.vector.len())
            .field("tokens", &self.tokens)
            .field("truncated", &self.truncated)
            .finish()
    }
}

/// What a loaded model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name in the catalogue, such as `bge-small-zh-v1.5`.
    pub name: Arc<str>,
    /// Language it speaks; [`Lang::Mixed`] = several.
    pub lang: Lang,
    /// Length of its vectors.
    pub dim: usize,
    /// Longest input in tokens, with the two that the tokenizer adds.
    pub max_tokens: usize,
    /// Arithmetic of the encoder: `fp32` or `int8`.
    pub precision: &'static str,
    /// Same fingerprint = comparable vectors: name, precision, and a hash over weights, tokenizer, pooling and instruction.
    pub fingerprint: Arc<str>,
    /// Whether the weights were proven to be those that the name stands for ([`golden`]); thresholds fitted for the name hold only then.
    pub proven: bool,
}

/// One loaded model. CPU-bound: never called on an async thread (the [`worker`] sees to it).
pub trait Embed: Send + Sync {
    /// What the model is.
    fn info(&self) -> &ModelInfo;
    /// Embeds `texts`; the answer has the same length and order. Any text is accepted: an empty one gives the vector of the empty text,
    /// a long one is cut and says so. A text alone and in a batch gives the same vector.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError>;
}

/// Why a text could not be embedded or a model not be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EmbedError {
    /// The queue of the worker is full.
    #[error("the embedding queue is full; try again in {} ms", retry_after.as_millis())]
    Overloaded {
        /// When it makes sense to try again.
        retry_after: Duration,
    },
    /// Models are still being loaded.
    #[error("the embedding models are still being loaded")]
    Warming,
    /// The model is not on this host, and the message says what to do about it.
    #[error("{0}")]
    Missing(String),
    /// A file of the model is there but can't be used.
    #[error("{file}: {why}; delete the model's folder and fetch it again with `reach models pull`")]
    Damaged {
        /// File at fault.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// The encoder failed or panicked.
    #[error("embedding failed: {0}")]
    Failed(String),
    /// The worker has been stopped.
    #[error("the embedding worker has stopped")]
    Stopped,
}

impl EmbedError {
    /// Code in the table of all doors.
    pub fn code(&self) -> Code {
        match self {
            Self::Overloaded { .. } => Code::Overloaded,
            Self::Warming => Code::Warming,
            Self::Missing(_) | Self::Damaged { .. } => Code::FailedPrecondition,
            Self::Failed(_) | Self::Stopped => Code::Internal,
        }
    }
}

impl From<EmbedError> for Error {
    fn from(e: EmbedError) -> Self {
        let retry_after = match &e {
            EmbedError::Overloaded { retry_after } => Some(*retry_after),
            EmbedError::Warming | EmbedError::Missing(_) | EmbedError::Damaged { .. } | EmbedError::Failed(_) | EmbedError::Stopped => None,
        };
        Error { retry_after, ..Error::new(e.code(), e.to_string()) }
    }
}
