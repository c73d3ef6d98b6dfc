//! Quantised weights on disk, beside the weights they come from.
//!
//! ```text
//! file   := "ARINT8" version:u16 source:[u8; 32] shape body sha256:[u8; 32]          all numbers little-endian
//! shape  := vocabulary hidden layers heads feed_forward positions segments first_position, each u32; layer_norm_eps: f64
//! body   := tokens:[f16; vocabulary · hidden]  positions:[f32; positions · hidden]  norm  layer…
//! norm   := gain:[f32; hidden]  offset:[f32; hidden]
//! layer  := linear(qkv)  linear(mix)  norm  linear(up)  linear(down)  norm
//! linear := factors:[f32; inputs]  scales:[f32; outputs]  bias:[f32; outputs]  packed:[i8; see kernel::panel]
//! ```
//! `source` is the SHA-256 of the published weights, the last field that of everything before it. Version 1 also stands for this way of packing
//! and of quantising: whoever changes either counts it up. Invariant: a file that is cut, changed, of another version or of other weights is refused;
//! it can be made again at any time. Cost: one read and one hash, about 50 ms for a small model.

use super::weights::{Layer, Linear, Net, Norm};
use crate::config::files::write_atomic;
use crate::embed::bundle::Shape;
use crate::kernel::aligned::Aligned;
use crate::kernel::panel::{Weights, packed_bytes};
use half::f16;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Name of the file in a model's folder.
pub const FILE: &str = "model.int8";

const MAGIC: &[u8; 6] = b"ARINT8";
const VERSION: u16 = 1;

/// Writes `net`, which was made of weights with the checksum `source`.
pub fn write(path: &Path, source: &[u8; 32], net: &Net) -> io::Result<()> {
    let mut out = header(source, &net.shape, net.first_position);
    out.extend(net.tokens.iter().flat_map(|x| x.to_le_bytes()));
    floats(&mut out, &net.positions);
    norm(&mut out, &net.norm);
    for layer in &net.layers {
        linear(&mut out, &layer.qkv);
        linear(&mut out, &layer.mix);
        norm(&mut out, &layer.mix_norm);
        linear(&mut out, &layer.up);
        linear(&mut out, &layer.down);
        norm(&mut out, &layer.down_norm);
    }
    let sum = Sha256::digest(&out);
    out.extend_from_slice(&sum);
    write_atomic(path, &out)
}

/// Reads what [`write()`] wrote for the same weights and shape; else says why not.
pub fn read(path: &Path, source: &[u8; 32], shape: &Shape, first_position: usize) -> Result<Net, String> {
    super::weights::check(shape)?;
    let (h, f) = (shape.hidden_size, shape.intermediate_size);
    let mut input = Input { file: File::open(path).map_err(|e| e.to_string())?, hash: Sha256::new() };
    let wanted = header(source, shape, first_position);
    if input.bytes(wanted.len())? != wanted {
        return Err("it is of another version, of other weights or of another shape".into());
    }
    let tokens = input.bytes(shape.vocab_size * h * 2)?;
    let mut net = Net {
        shape: shape.clone(),
        first_position,
        tokens: tokens.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b)).collect(),
        positions: input.floats(shape.max_position_embeddings * h)?,
        norm: input.norm(h)?,
        layers: (0..shape.num_hidden_layers)
            .map(|_| {
                Ok(Layer {
                    qkv: input.linear(3 * h, h)?,
                    mix: input.linear(h, h)?,
                    mix_norm: input.norm(h)?,
                    up: input.linear(f, h)?,
                    down: input.linear(h, f)?,
                    down_norm: input.norm(h)?,
                })
            })
            .collect::<Result<_, String>>()?,
    };
    let found = input.hash.clone().finalize();
    if input.bytes(32)? != found.as_slice() {
        return Err("its checksum is wrong".into());
    }
    match input.file.read(&mut [0]) {
        Ok(0) => {
            net.gather();
            Ok(net)
        }
        Ok(_) => Err("it is too long".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn header(source: &[u8; 32], shape: &Shape, first_position: usize) -> Vec<u8> {
    let mut out = [MAGIC.as_slice(), &VERSION.to_le_bytes(), source].concat();
    let numbers = [
        shape.vocab_size,
        shape.hidden_size,
        shape.num_hidden_layers,
        shape.num_attention_heads,
        shape.intermediate_size,
        shape.max_position_embeddings,
        shape.type_vocab_size,
        first_position,
    ];
    out.extend(numbers.iter().flat_map(|n| u32::try_from(*n).unwrap_or(u32::MAX).to_le_bytes()));
    out.extend(shape.layer_norm_eps.to_le_bytes());
    out
}

fn floats(out: &mut Vec<u8>, x: &[f32]) {
    out.extend(x.iter().flat_map(|x| x.to_le_bytes()));
}

fn norm(out: &mut Vec<u8>, n: &Norm) {
    floats(out, &n.gain);
    floats(out, &n.offset);
}

fn linear(out: &mut Vec<u8>, l: &Linear) {
    floats(out, &l.factors);
    // outputs are whole panels in every shape that is accepted, so nothing here is padding
    floats(out, l.weights.scales());
    floats(out, l.weights.bias());
    out.extend_from_slice(l.weights.packed());
}

/// A file that is hashed while it is read.
struct Input {
    file: File,
    hash: Sha256,
}

impl Input {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        self.file.read_exact(out).map_err(|e| e.to_string())?;
        self.hash.update(out);
        Ok(())
    }

    fn bytes(&mut self, n: usize) -> Result<Vec<u8>, String> {
        let mut out = vec![0; n];
        self.fill(&mut out)?;
        Ok(out)
    }

    fn floats(&mut self, n: usize) -> Result<Vec<f32>, String> {
        Ok(self.bytes(n * 4)?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn norm(&mut self, h: usize) -> Result<Norm, String> {
        Ok(Norm { gain: self.floats(h)?, offset: self.floats(h)? })
    }

    fn linear(&mut self, outputs: usize, inputs: usize) -> Result<Linear, String> {
        let (factors, scale, bias) = (self.floats(inputs)?, self.floats(outputs)?, self.floats(outputs)?);
        let mut data = Aligned::zeroed(packed_bytes(outputs, inputs));
        self.fill(data.bytes_mut())?;
        let weights = Weights::from_packed(outputs, inputs, data, &scale, &bias).ok_or("its weights have another shape")?;
        Ok(Linear { weights, factors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::int8::forward::{self, Workspace};
    use crate::embed::int8::testing::{tiny, tiny_file};
    use crate::kernel::Kernel;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let shape = tiny();
        let net = Net::quantise(&tiny_file(&shape), &shape, 0, Kernel::best()).unwrap();
        let source = [7; 32];
        assert!(read(&path, &source, &shape, 0).is_err(), "no file");
        write(&path, &source, &net).unwrap();

        let again = read(&path, &source, &shape, 0).unwrap();
        let run = |net: &Net| forward::run(net, Kernel::Scalar, &mut Workspace::default(), &[&[1, 5, 9]], None).unwrap();
        assert_eq!(run(&net), run(&again));

        assert!(read(&path, &[8; 32], &shape, 0).is_err(), "other weights");
        assert!(read(&path, &source, &Shape { num_hidden_layers: 1, ..shape.clone() }, 0).is_err(), "another shape");
        assert!(read(&path, &source, &shape, 2).is_err(), "another first position");

        let good = std::fs::read(&path).unwrap();
        for at in [0, 6, 40, 80, good.len() / 2, good.len() - 33, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            write_atomic(&path, &bad).unwrap();
            assert!(read(&path, &source, &shape, 0).is_err(), "byte {at} changed");
        }
        for bad in [&good[..good.len() - 1], &good[..50], &[], &[&good[..], b"x"].concat()] {
            write_atomic(&path, bad).unwrap();
            assert!(read(&path, &source, &shape, 0).is_err(), "{} bytes", bad.len());
        }
    }
}
