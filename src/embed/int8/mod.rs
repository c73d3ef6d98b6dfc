//! The fast encoder: BERT in 8 bits, on the kernels of this CPU.
//!
//! In: token ids. Out: the first token's vector, L2-normalised. Shapes: any BERT or XLM-RoBERTa whose widths are multiples of 32.
//! Invariant: a text gives the same bits alone and in any company (on one kernel; kernels differ in the last bits of their floats).
//! Accuracy: mean cosine to the f32 reference 0.9996 (zh) and 0.9998 (en), minimum 0.9994 over a thousand texts each; `reach bench embed --accuracy 1000` measures it.
//! Cost: about 1 ms of one core for a short text; loading reads one file ([`cache`]). One thread a call.
//! Not here: threads and queues (`worker`), the arithmetic itself (`crate::kernel`).

pub mod cache;
pub mod forward;
#[cfg(test)]
mod testing;
pub mod weights;

use super::bundle::Bundle;
use super::cache::{Cache, Files, WEIGHTS};
use super::catalog::{Arch, ModelSpec};
use super::fp32::normalised;
use super::tokens::{Tokeniser, Tokens};
use super::{Embed, EmbedError, Embedding, ModelInfo};
use crate::kernel::Kernel;
use forward::Workspace;
use parking_lot::Mutex;
use std::path::PathBuf;
use weights::Net;

/// Tokens that go through the layers together: enough that the weights are read once for several texts, few enough that all stays in the second cache.
const TOGETHER: usize = 112;

/// A model in 8 bits.
pub struct Int8 {
    info: ModelInfo,
    tokeniser: Tokeniser,
    net: Net,
    kernel: Kernel,
    spare: Mutex<Vec<Workspace>>,
}

impl Int8 {
    /// Loads a model of the cache: its quantised weights if they are there and sound, else the published ones, which are quantised and kept for the next time.
    pub fn load(spec: &ModelSpec, cache: &Cache) -> Result<Self, EmbedError> {
        let bundle = Bundle::read_light(spec, cache)?;
        let first_position = match spec.arch {
            Arch::Bert => 0,
            Arch::XlmRoberta => 2,
        };
        let kept = kept(&bundle.files);
        let net = kept.as_ref().and_then(|(path, source)| match cache::read(path, source, &bundle.shape, first_position) {
            Ok(net) => Some(net),
            Err(why) => {
                if path.exists() {
                    tracing::warn!(file = %path.display(), why, "the kept int8 weights are of no use; they are made anew");
                }
                None
            }
        });
        let net = match net {
            Some(net) => net,
            None => {
                let file = bundle.files.read_checked(WEIGHTS)?;
                let net = Net::quantise(&file, &bundle.shape, first_position, Kernel::best()).map_err(|e| bundle.damaged_weights(e))?;
                if let Some((path, source)) = kept
                    && let Err(error) = cache::write(&path, &source, &net)
                {
                    tracing::warn!(file = %path.display(), %error, "the int8 weights can't be kept; the next start makes them again");
                }
                net
            }
        };
        Ok(Self { info: bundle.info("int8"), tokeniser: bundle.tokeniser, net, kernel: Kernel::best(), spare: Mutex::default() })
    }

    /// Makes the encoder of a model that was read whole, and keeps nothing of it on disk.
    pub fn of(bundle: Bundle) -> Result<Self, EmbedError> {
        let first_position = match bundle.spec.arch {
            Arch::Bert => 0,
            Arch::XlmRoberta => 2,
        };
        let net =
            Net::quantise(&bundle.files.weights, &bundle.shape, first_position, Kernel::best()).map_err(|e| bundle.damaged_weights(e))?;
        Ok(Self { info: bundle.info("int8"), tokeniser: bundle.tokeniser, net, kernel: Kernel::best(), spare: Mutex::default() })
    }

    /// Proves the weights by a few texts.
    pub fn prove(mut self) -> Self {
        self.info.proven = crate::embed::golden::proves(&self);
        self
    }

    /// The same model on another kernel, for comparisons.
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self
    }

    /// The kernel it runs on.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn vectors(&self, texts: &[Tokens]) -> Result<Vec<Embedding>, EmbedError> {
        let ids: Vec<&[u32]> = texts.iter().map(|t| t.ids.as_slice()).collect();
        let mut workspace = self.spare.lock().pop().unwrap_or_default();
        let rows = forward::run(&self.net, self.kernel, &mut workspace, &ids, None).map_err(EmbedError::Failed)?;
        self.spare.lock().push(workspace);
        let one = |(row, text): (&[f32], &Tokens)| {
            let vector = normalised(row.to_vec()).ok_or_else(|| EmbedError::Failed("the vector is not a number".into()))?;
            Ok(Embedding { vector: vector.into(), tokens: u32::try_from(text.ids.len()).unwrap_or(u32::MAX), truncated: text.truncated })
        };
        rows.chunks_exact(self.info.dim).zip(texts).map(one).collect()
    }
}

impl Embed for Int8 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let tokens: Vec<Tokens> = texts.iter().map(|t| self.tokeniser.encode(t)).collect::<Result<_, _>>().map_err(EmbedError::Failed)?;
        let mut out = Vec::with_capacity(texts.len());
        let mut rest = tokens.as_slice();
        let mut left: usize = tokens.iter().map(|t| t.ids.len()).sum();
        while !rest.is_empty() {
            // groups of about equal size: a small last one would cost as much as a full one
            let fair = left.div_ceil(left.div_ceil(TOGETHER).max(1));
            let (mut sum, mut count) = (0, 0);
            for text in rest {
                let more = sum + text.ids.len();
                if count > 0 && (more > TOGETHER || sum >= fair || more - fair.min(more) > fair - sum.min(fair)) {
                    break;
                }
                (sum, count) = (more, count + 1);
            }
            left -= sum;
            let (now, later) = rest.split_at(count);
            out.extend(self.vectors(now)?);
            rest = later;
        }
        Ok(out)
    }
}

/// Where the quantised weights of a model are kept, and the checksum of the weights they come from.
fn kept(files: &Files) -> Option<(PathBuf, [u8; 32])> {
    let mut source = [0; 32];
    hex::decode_to_slice(files.sums.files.get(WEIGHTS)?, &mut source).ok()?;
    Some((files.folder.join(cache::FILE), source))
}
