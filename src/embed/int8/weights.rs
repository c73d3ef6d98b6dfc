//! The weights of an encoder in 8 bits, made from the published floats.
//!
//! In: a safetensors file with the names of Hugging Face's BERT (any prefix) and the [`Shape`]. Out: a [`Net`].
//! A scale a row of weights; activations get theirs a token at a time while running. Columns that are always large (bge has some at 20 times the median)
//! would cost all others their precision, so the inputs of Q, K, V and of the feed-forward part are balanced: input `j` is divided by √(its usual size) and
//! its weights are multiplied by it. The usual sizes come from running sequences of random tokens once (no texts needed).
//! Cost: about 0.3 s for a small model, once; then see `cache`. Not here: arithmetic of a text (`forward`).

use super::forward::{self, Workspace};
use crate::embed::bundle::Shape;
use crate::kernel::Kernel;
use crate::kernel::panel::{PANEL, Weights};
use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::{Dtype, SafeTensors};

/// Gain and offset of a LayerNorm.
#[derive(Clone)]
pub struct Norm {
    /// Gain a column.
    pub gain: Vec<f32>,
    /// Offset a column.
    pub offset: Vec<f32>,
}

/// A linear layer, and what its inputs are multiplied by before they become bytes.
#[derive(Clone)]
pub struct Linear {
    /// Weights, scales, bias.
    pub weights: Weights,
    /// Factor a column.
    pub factors: Vec<f32>,
}

/// A layer of the encoder.
#[derive(Clone)]
pub struct Layer {
    /// Q, K and V, one after the other.
    pub qkv: Linear,
    /// Output of the attention.
    pub mix: Linear,
    /// LayerNorm after it.
    pub mix_norm: Norm,
    /// First half of the feed-forward part.
    pub up: Linear,
    /// Second half.
    pub down: Linear,
    /// LayerNorm after it.
    pub down_norm: Norm,
}

/// An encoder in 8 bits.
#[derive(Clone)]
pub struct Net {
    /// Its shape.
    pub shape: Shape,
    /// Position of the first token; RoBERTa counts from 2.
    pub first_position: usize,
    /// A vector a token, half precision.
    pub tokens: Vec<f16>,
    /// A vector a position, that of segment 0 added.
    pub positions: Vec<f32>,
    /// LayerNorm of their sum.
    pub norm: Norm,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// Random sequences for the usual sizes.
const PROBES: usize = 48;
/// A column that is never used counts as this share of the median.
const FLOOR: f32 = 0.1;

impl Net {
    /// Quantises a model. The error says what doesn't fit.
    pub fn quantise(file: &[u8], shape: &Shape, first_position: usize, kernel: Kernel) -> Result<Self, String> {
        check(shape)?;
        let tensors = Tensors::open(file)?;
        let mut net = build(&tensors, shape, first_position)?;
        let sizes = usual_sizes(&net, kernel)?;
        for ((i, layer), sizes) in net.layers.iter_mut().enumerate().zip(&sizes) {
            let names = LayerNames::of(i);
            layer.qkv = tensors.linear(&names.qkv(), &balanced(&sizes.qkv))?;
            layer.up = tensors.linear(&[names.up()], &balanced(&sizes.up))?;
        }
        net.gather();
        Ok(net)
    }

    /// Puts all weights into one block of memory, in the order in which they are used.
    pub fn gather(&mut self) {
        Weights::gather(self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.mix, &mut l.up, &mut l.down]).map(|l| &mut l.weights));
    }
}

/// Whether the kernels can run this shape.
pub fn check(shape: &Shape) -> Result<(), String> {
    let (h, f, heads) = (shape.hidden_size, shape.intermediate_size, shape.num_attention_heads);
    let sound = h > 0 && heads > 0 && h % heads == 0 && h % PANEL == 0 && f > 0 && f % PANEL == 0 && h.max(f) <= 1 << 14;
    let sound = sound && shape.num_hidden_layers > 0 && shape.vocab_size > 0 && shape.max_position_embeddings > 0;
    if sound {
        Ok(())
    } else {
        Err(format!("int8 needs widths in multiples of {PANEL} up to 16384; this model has {h} in {heads} heads, and {f}"))
    }
}

fn build(tensors: &Tensors<'_>, shape: &Shape, first_position: usize) -> Result<Net, String> {
    let (h, f) = (shape.hidden_size, shape.intermediate_size);
    let tokens = tensors.floats("embeddings.word_embeddings.weight", shape.vocab_size * h)?;
    let mut positions = tensors.floats("embeddings.position_embeddings.weight", shape.max_position_embeddings * h)?;
    let kinds = tensors.floats("embeddings.token_type_embeddings.weight", shape.type_vocab_size * h)?;
    for row in positions.chunks_exact_mut(h) {
        row.iter_mut().zip(&kinds).for_each(|(p, k)| *p += k);
    }
    let (plain, plain_wide) = (vec![1.0; h], vec![1.0; f]);
    let layer = |i: usize| -> Result<Layer, String> {
        let names = LayerNames::of(i);
        Ok(Layer {
            qkv: tensors.linear(&names.qkv(), &plain)?,
            mix: tensors.linear(&[names.mix()], &plain)?,
            mix_norm: tensors.norm(&names.mix_norm(), h)?,
            up: tensors.linear(&[names.up()], &plain)?,
            down: tensors.linear(&[names.down()], &plain_wide)?,
            down_norm: tensors.norm(&names.down_norm(), h)?,
        })
    };
    let net = Net {
        shape: shape.clone(),
        first_position,
        tokens: Vec::from_iter(tokens.into_iter().map(f16::from_f32)),
        positions,
        norm: tensors.norm("embeddings.LayerNorm", h)?,
        layers: (0..shape.num_hidden_layers).map(layer).collect::<Result<_, _>>()?,
    };
    let fits = |l: &Layer| {
        [(&l.qkv, 3 * h, h), (&l.mix, h, h), (&l.up, f, h), (&l.down, h, f)]
            .iter()
            .all(|(linear, n, k)| (linear.weights.outputs(), linear.weights.inputs()) == (*n, *k))
    };
    if net.layers.iter().all(fits) { Ok(net) } else { Err("the weights have another shape than the configuration".into()) }
}

/// Root mean square of each column that goes into the balanced products of a layer.
#[derive(Clone, Default)]
pub struct Sizes {
    /// Before Q, K and V.
    pub qkv: Vec<f32>,
    /// Before the feed-forward part.
    pub up: Vec<f32>,
}

fn usual_sizes(net: &Net, kernel: Kernel) -> Result<Vec<Sizes>, String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below.max(1)
    };
    let longest = (net.shape.max_position_embeddings - net.first_position.min(net.shape.max_position_embeddings - 1)).min(40);
    let probes: Vec<Vec<u32>> = (0..PROBES).map(|_| (0..1 + next(longest)).map(|_| next(net.shape.vocab_size) as u32).collect()).collect();
    let refs: Vec<&[u32]> = probes.iter().map(Vec::as_slice).collect();
    let mut sizes = vec![Sizes::default(); net.layers.len()];
    forward::run(net, kernel, &mut Workspace::default(), &refs, Some(&mut sizes))?;
    Ok(sizes)
}

/// Factors of the inputs: 1/√size, 1 for a column of median size.
fn balanced(sizes: &[f32]) -> Vec<f32> {
    let mut sorted = sizes.to_vec();
    sorted.sort_by(f32::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(1.0).max(f32::MIN_POSITIVE);
    sizes.iter().map(|s| (s / median).max(FLOOR).sqrt().recip()).collect()
}

struct LayerNames(String);

impl LayerNames {
    fn of(layer: usize) -> Self {
        Self(format!("encoder.layer.{layer}"))
    }
    fn qkv(&self) -> [String; 3] {
        ["query", "key", "value"].map(|n| format!("{}.attention.self.{n}", self.0))
    }
    fn mix(&self) -> String {
        format!("{}.attention.output.dense", self.0)
    }
    fn mix_norm(&self) -> String {
        format!("{}.attention.output.LayerNorm", self.0)
    }
    fn up(&self) -> String {
        format!("{}.intermediate.dense", self.0)
    }
    fn down(&self) -> String {
        format!("{}.output.dense", self.0)
    }
    fn down_norm(&self) -> String {
        format!("{}.output.LayerNorm", self.0)
    }
}

/// A safetensors file, read by name whatever its prefix.
struct Tensors<'a> {
    file: SafeTensors<'a>,
    prefix: String,
}

impl<'a> Tensors<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, String> {
        const ANCHOR: &str = "embeddings.word_embeddings.weight";
        let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        let prefix = file.names().into_iter().find_map(|n| n.strip_suffix(ANCHOR)).ok_or_else(|| format!("no `{ANCHOR}`"))?.to_owned();
        Ok(Self { file, prefix })
    }

    /// A tensor of any float type, as `n` floats.
    fn floats(&self, name: &str, n: usize) -> Result<Vec<f32>, String> {
        let tensor = self.file.tensor(&format!("{}{name}", self.prefix)).map_err(|e| format!("{name}: {e}"))?;
        let data = tensor.data();
        let floats: Vec<f32> = if tensor.dtype() == Dtype::F32 {
            data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        } else if tensor.dtype() == Dtype::F16 {
            data.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        } else if tensor.dtype() == Dtype::BF16 {
            data.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
        } else {
            return Err(format!("{name} holds {:?}, not floats", tensor.dtype()));
        };
        if floats.len() != n {
            return Err(format!("{name} has {} numbers instead of {n}", floats.len()));
        }
        if floats.iter().all(|x| x.is_finite()) { Ok(floats) } else { Err(format!("{name} holds what is not a number")) }
    }

    fn norm(&self, name: &str, h: usize) -> Result<Norm, String> {
        Ok(Norm { gain: self.floats(&format!("{name}.weight"), h)?, offset: self.floats(&format!("{name}.bias"), h)? })
    }

    /// Linear layers with the same inputs, one under the other.
    fn linear(&self, names: &[String], factors: &[f32]) -> Result<Linear, String> {
        let (mut w, mut bias) = (vec![], vec![]);
        for name in names {
            let full = format!("{}{name}.bias", self.prefix);
            let n: usize = self.file.tensor(&full).map_err(|e| format!("{name}: {e}"))?.shape().iter().product();
            bias.extend(self.floats(&format!("{name}.bias"), n)?);
            w.extend(self.floats(&format!("{name}.weight"), n * factors.len())?);
        }
        if bias.is_empty() {
            return Err(format!("{names:?} have no outputs"));
        }
        Ok(Linear { weights: Weights::quantise(&w, &bias, factors), factors: factors.to_vec() })
    }
}

impl Net {
    /// Writes the vector of a token into `out`; an unknown id is token 0.
    pub fn token(&self, id: u32, out: &mut [f32]) {
        let h = self.shape.hidden_size;
        let row = |id: usize| self.tokens.get(id * h..(id + 1) * h);
        if let Some(row) = row(id as usize).or_else(|| row(0)) {
            row.convert_to_f32_slice(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::int8::testing::{tiny, tiny_file};

    #[test]
    fn what_does_not_fit_is_said() {
        let shape = tiny();
        let file = tiny_file(&shape);
        let error = |file: &[u8], shape: &Shape| Net::quantise(file, shape, 0, Kernel::Scalar).err().unwrap();
        assert!(error(b"no weights", &shape).len() > 3);
        assert!(error(&file, &Shape { hidden_size: 48, ..shape.clone() }).contains("multiples of 32"));
        assert!(error(&file, &Shape { vocab_size: 51, ..shape.clone() }).contains("word_embeddings"));
        assert!(error(&file, &Shape { num_hidden_layers: 3, ..shape.clone() }).contains("encoder.layer.2"));
        assert!(error(&file, &Shape { intermediate_size: 128, ..shape.clone() }).contains("output.dense"));
    }

    #[test]
    fn large_columns_are_balanced() {
        let shape = tiny();
        let net = Net::quantise(&tiny_file(&shape), &shape, 0, Kernel::best()).unwrap();
        for layer in &net.layers {
            for factors in [&layer.qkv.factors, &layer.up.factors] {
                assert!(factors[7] < 0.6, "column 7 is nine times the others: {}", factors[7]);
                assert!(factors.iter().all(|f| (0.05..=4.0).contains(f)));
            }
            assert!(layer.mix.factors.iter().all(|f| *f == 1.0));
        }
    }
}
