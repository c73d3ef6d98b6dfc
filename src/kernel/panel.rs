//! 8-bit weights, packed in the order in which the products read them.
//!
//! A weight matrix has `n` outputs of `k` inputs. Panel `p` holds outputs `32p..32p+32`; in it, for each group of four inputs, the four weights of
//! output 0, then of output 1, …: 128 bytes a group. Inputs are padded to 64 and outputs to 32 with zeros. One stream of memory a product, front to back.
//! `w ≈ scale[output] · q`, q in −127..=127. Cost: `n · k` bytes. Not here: the products (`gemm`), the file (`embed::int8::cache`).

use super::aligned::{Aligned, LINE};
use std::sync::Arc;

/// Outputs in a panel.
pub const PANEL: usize = 32;

/// Packed weights with what it takes to turn their sums into floats.
#[derive(Clone, Default)]
pub struct Weights {
    outputs: usize,
    inputs: usize,
    data: Arc<Aligned>,
    start: usize,
    scale: Vec<f32>,
    sums: Vec<i32>,
    bias: Vec<f32>,
}

impl Weights {
    /// Quantises a matrix of `bias.len()` rows of `factors.len()` inputs; each input's weights are divided by its factor (the activations are multiplied by it).
    ///
    /// # Panics
    /// If the lengths don't fit.
    pub fn quantise(w: &[f32], bias: &[f32], factors: &[f32]) -> Self {
        let (n, k) = (bias.len(), factors.len());
        assert!(n > 0 && k > 0 && w.len() == n * k, "{} weights for {n} outputs of {k} inputs", w.len());
        let mut bytes = vec![0i8; n * k];
        let mut scale = Vec::with_capacity(n);
        for (row, q) in w.chunks_exact(k).zip(bytes.chunks_exact_mut(k)) {
            let high = row.iter().zip(factors).map(|(w, f)| (w / f).abs()).fold(0f32, f32::max);
            let inverse = if high > 0.0 { 127.0 / high } else { 0.0 };
            for ((q, w), f) in q.iter_mut().zip(row).zip(factors) {
                *q = (w / f * inverse).round_ties_even() as i8;
            }
            scale.push(high / 127.0);
        }
        Self::pack(&bytes, &scale, bias)
    }

    /// Packs bytes that are already quantised: `scale.len()` rows.
    ///
    /// # Panics
    /// If the lengths don't fit.
    pub fn pack(bytes: &[i8], scale: &[f32], bias: &[f32]) -> Self {
        let n = scale.len();
        assert!(n > 0 && n == bias.len() && bytes.len().is_multiple_of(n) && !bytes.is_empty(), "{} bytes for {n} outputs", bytes.len());
        let k = bytes.len() / n;
        let mut data = Aligned::zeroed(packed_bytes(n, k));
        let out = data.bytes_mut();
        let panel_bytes = PANEL * k.div_ceil(LINE) * LINE;
        for (row, w) in bytes.chunks_exact(k).enumerate() {
            let base = row / PANEL * panel_bytes + row % PANEL * 4;
            for (column, w) in w.iter().enumerate() {
                out[base + column / 4 * PANEL * 4 + column % 4] = w.cast_unsigned();
            }
        }
        Self::assemble(n, k, data, scale, bias)
    }

    /// From bytes that were packed before ([`Weights::packed`]); `None` when the lengths don't fit.
    pub fn from_packed(outputs: usize, inputs: usize, data: Aligned, scale: &[f32], bias: &[f32]) -> Option<Self> {
        let fits = outputs > 0
            && inputs > 0
            && scale.len() == outputs
            && bias.len() == outputs
            && data.bytes().len() == packed_bytes(outputs, inputs);
        fits.then(|| Self::assemble(outputs, inputs, data, scale, bias))
    }

    fn assemble(outputs: usize, inputs: usize, data: Aligned, scale: &[f32], bias: &[f32]) -> Self {
        let width = outputs.next_multiple_of(PANEL);
        let padded = |x: &[f32]| x.iter().copied().chain(std::iter::repeat(0.0)).take(width).collect();
        let mut sums = vec![0i32; width];
        let panel_bytes = packed_bytes(outputs, inputs) / (width / PANEL);
        for (panel, sums) in data.bytes().chunks_exact(panel_bytes).zip(sums.chunks_exact_mut(PANEL)) {
            for group in panel.chunks_exact(PANEL * 4) {
                for (sum, w) in sums.iter_mut().zip(group.chunks_exact(4)) {
                    *sum += w.iter().map(|w| i32::from(w.cast_signed())).sum::<i32>();
                }
            }
        }
        Self { outputs, inputs, data: Arc::new(data), start: 0, scale: padded(scale), sums, bias: padded(bias) }
    }

    /// Outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs, rounded up to whole panels: the width of a row of results.
    pub fn width(&self) -> usize {
        self.scale.len()
    }

    /// The packed bytes.
    pub fn packed(&self) -> &[u8] {
        self.data.bytes().get(self.start..self.start + packed_bytes(self.outputs, self.inputs)).unwrap_or_default()
    }

    /// Moves the packed bytes of all of them into one block, in their order: one stream, and huge pages where there are any.
    pub fn gather<'a>(all: impl IntoIterator<Item = &'a mut Self>) {
        let mut all: Vec<&mut Self> = all.into_iter().collect();
        let mut block = Aligned::zeroed(all.iter().map(|w| w.packed().len()).sum());
        let mut rest = block.bytes_mut();
        for w in &all {
            let (here, after) = rest.split_at_mut(w.packed().len());
            here.copy_from_slice(w.packed());
            rest = after;
        }
        let block = Arc::new(block);
        let mut start = 0;
        for w in &mut all {
            (w.data, w.start) = (block.clone(), start);
            start += w.packed().len();
        }
    }

    /// Value of a step of each output, padded to [`Weights::width`].
    pub fn scales(&self) -> &[f32] {
        &self.scale
    }

    /// Sum of the weights of each output, padded to [`Weights::width`].
    pub fn sums(&self) -> &[i32] {
        &self.sums
    }

    /// Bias of each output, padded to [`Weights::width`].
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// The quantised weight of an output and input.
    pub fn get(&self, output: usize, input: usize) -> Option<i8> {
        if output >= self.outputs || input >= self.inputs {
            return None;
        }
        let panel_bytes = PANEL * self.inputs.next_multiple_of(LINE);
        self.packed().get(output / PANEL * panel_bytes + output % PANEL * 4 + input / 4 * PANEL * 4 + input % 4).map(|w| w.cast_signed())
    }
}

/// Bytes that `n` outputs of `k` inputs take when packed.
pub fn packed_bytes(n: usize, k: usize) -> usize {
    n.next_multiple_of(PANEL) * k.next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_is_found_again(n in 1usize..70, k in 1usize..140, seed in prop::collection::vec(-1f32..1.0, 64)) {
            let w: Vec<f32> = (0..n * k).map(|i| seed[i * 7 % 64] * (1.0 + (i % 13) as f32)).collect();
            let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let factors: Vec<f32> = (0..k).map(|i| 0.5 + (i % 3) as f32).collect();
            let packed = Weights::quantise(&w, &bias, &factors);
            prop_assert_eq!((packed.outputs(), packed.inputs(), packed.width() % PANEL), (n, k, 0));
            for row in 0..n {
                let q: Vec<i32> = (0..k).map(|c| i32::from(packed.get(row, c).unwrap())).collect();
                prop_assert_eq!(q.iter().sum::<i32>(), packed.sums()[row]);
                for (c, q) in q.iter().enumerate() {
                    let back = *q as f32 * packed.scales()[row] * factors[c];
                    prop_assert!((back - w[row * k + c]).abs() <= packed.scales()[row] * factors[c] * 0.51);
                }
            }
            prop_assert_eq!(packed.get(n, 0), None);
            let copy = || {
                let mut data = Aligned::zeroed(packed.packed().len());
                data.bytes_mut().copy_from_slice(packed.packed());
                data
            };
            let again = Weights::from_packed(n, k, copy(), &packed.scales()[..n], &bias).unwrap();
            prop_assert_eq!(again.sums(), packed.sums());
            prop_assert!(Weights::from_packed(n + 64, k, copy(), &packed.scales()[..n], &bias).is_none());

            let (mut one, mut other) = (again, Weights::pack(&[5; 40], &[1.0; 8], &[0.0; 8]));
            Weights::gather([&mut one, &mut other]);
            prop_assert_eq!(one.packed(), packed.packed());
            prop_assert_eq!((other.get(7, 4), other.get(7, 5)), (Some(5), None));
        }
    }
}
