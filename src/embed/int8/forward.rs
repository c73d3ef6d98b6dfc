//! The forward pass: token ids to the first token's vector, in 8 bits with floats in between.
//!
//! Texts lie one after the other, nothing is padded: linear layers see rows, attention sees a text at a time. In the last layer only the first token's
//! row goes on after K and V. Everything a row goes through depends on that row and its text alone, so a text gives the same bits alone and in a batch.
//! Long inputs go through the feed-forward part in blocks of rows that stay in the second cache.
//! Cost: `tokens · weights` 8-bit multiply-adds, and the weights read once a block. Not here: threads, tokenising, the length of the vector.

use super::weights::{Linear, Net, Norm, Sizes};
use crate::kernel::Kernel;
use crate::kernel::aligned::Aligned;
use crate::kernel::quant::Activations;
use crate::kernel::sgemm::View;

/// Most rows that go through the linear layers together.
const BLOCK: usize = 112;
/// Floats a row of scores is padded to.
const LANES: usize = 16;
/// Texts of so many tokens have their values copied together first: their rows are kilobytes apart, and would fight over the cache.
const PACK: usize = 48;

/// Memory of a forward pass, to be used again: a first long text pays for the pages, later ones don't.
#[derive(Default)]
pub struct Workspace {
    hidden: Floats,
    first: Floats,
    qkv: Floats,
    query: Floats,
    context: Floats,
    wide: Floats,
    narrow: Floats,
    keys: Floats,
    scores: Floats,
    values: Floats,
    bytes: Activations,
}

/// A buffer of floats that grows.
#[derive(Default)]
struct Floats(Aligned);

impl Floats {
    /// `n` floats; their content is whatever was there.
    fn take(&mut self, n: usize) -> &mut [f32] {
        self.0.grow(n * 4);
        self.0.f32s_mut().get_mut(..n).unwrap_or_default()
    }
}

/// Where each text's rows are.
struct Span {
    start: usize,
    len: usize,
}

/// Runs `texts` (token ids, at least one each, at most as many as there are positions) and gives the first token's vector of each, one after the other.
/// With `sizes`, also measures what goes into the balanced products.
pub fn run(net: &Net, kernel: Kernel, ws: &mut Workspace, texts: &[&[u32]], mut sizes: Option<&mut [Sizes]>) -> Result<Vec<f32>, String> {
    let h = net.shape.hidden_size;
    if net.layers.is_empty() {
        return Err("a model without layers".into());
    }
    let mut spans = Vec::with_capacity(texts.len());
    let mut rows = 0;
    for text in texts {
        if text.is_empty() || text.len() + net.first_position > net.shape.max_position_embeddings {
            return Err(format!("a text of {} tokens", text.len()));
        }
        spans.push(Span { start: rows, len: text.len() });
        rows += text.len();
    }
    let last = net.layers.len() - 1;
    embed(net, kernel, ws, texts, rows);
    for (i, layer) in net.layers.iter().enumerate() {
        if let Some(sizes) = sizes.as_deref_mut().and_then(|s| s.get_mut(i)) {
            sizes.qkv = column_sizes(ws.hidden.take(rows * h), h);
        }
        if i == last {
            let (hidden, first) = (ws.hidden.take(rows * h), ws.first.take(spans.len() * h));
            for (span, out) in spans.iter().zip(first.chunks_exact_mut(h)) {
                out.copy_from_slice(hidden.get(span.start * h..(span.start + 1) * h).unwrap_or_default());
            }
            kernel.quantise(first, &layer.qkv.factors, &mut ws.bytes);
            kernel.gemm(&ws.bytes, &layer.qkv.weights, 0..h, ws.query.take(spans.len() * h), h);
        }
        attention(net, kernel, ws, &spans, rows, i == last);
        rest(net, kernel, ws, i, if i == last { spans.len() } else { rows }, sizes.as_deref_mut().and_then(|s| s.get_mut(i)));
    }
    Ok(ws.first.take(spans.len() * h).to_vec())
}

/// The first output of Q, K and V that a layer needs of every row: in the last one, Q is asked only of the first rows.
fn wanted(net: &Net, layer: usize) -> usize {
    if layer + 1 == net.layers.len() { net.shape.hidden_size } else { 0 }
}

/// Vectors of the tokens and positions, normalised, into `ws.hidden`, and from there the first layer's Q, K and V.
fn embed(net: &Net, kernel: Kernel, ws: &mut Workspace, texts: &[&[u32]], rows: usize) {
    let h = net.shape.hidden_size;
    let from = wanted(net, 0);
    let width = 3 * h - from;
    let (hidden, qkv) = (ws.hidden.take(rows * h), ws.qkv.take(rows * width));
    let mut places = texts.iter().flat_map(|text| text.iter().enumerate());
    for (x, qkv) in hidden.chunks_mut(BLOCK * h).zip(qkv.chunks_mut(BLOCK * width)) {
        let add = ws.narrow.take(x.len());
        for ((x, add), (i, id)) in x.chunks_exact_mut(h).zip(add.chunks_exact_mut(h)).zip(&mut places) {
            net.token(*id, x);
            let at = (net.first_position + i) * h;
            add.copy_from_slice(net.positions.get(at..at + h).unwrap_or_default());
        }
        if let Some(layer) = net.layers.first() {
            norm(net, kernel, x, add, &net.norm, &layer.qkv, &mut ws.bytes);
            kernel.gemm(&ws.bytes, &layer.qkv.weights, from..3 * h, qkv, width);
        }
    }
}

/// LayerNorm of `x + add`, and its bytes for the linear layer that comes next.
fn norm(net: &Net, kernel: Kernel, x: &mut [f32], add: &[f32], norm: &Norm, next: &Linear, bytes: &mut Activations) {
    kernel.layer_norm_quantise(x, add, &norm.gain, &norm.offset, net.shape.layer_norm_eps as f32, &next.factors, bytes);
}

/// Attention of each text and head into `ws.context`: a row for each row, or for each text in the last layer.
fn attention(net: &Net, kernel: Kernel, ws: &mut Workspace, spans: &[Span], rows: usize, last: bool) {
    let (h, heads) = (net.shape.hidden_size, net.shape.num_attention_heads);
    let d = h / heads;
    let width = if last { 2 * h } else { 3 * h };
    let qkv: &[f32] = ws.qkv.take(rows * width);
    let query: &[f32] = ws.query.take(if last { spans.len() * h } else { 0 });
    let context = ws.context.take(if last { spans.len() } else { rows } * h);
    let factor = 1.0 / (d as f32).sqrt();
    for (t, span) in spans.iter().enumerate() {
        let n = span.len;
        let stride = row_stride(n);
        let (asking, first_out) = if last { (1, t) } else { (n, span.start) };
        let keys = ws.keys.take(d * stride);
        let scores = ws.scores.take(asking * stride);
        for head in 0..heads {
            let at = |part: usize| qkv.get(span.start * width + part * h + head * d..).unwrap_or_default();
            let (q, k, v) = if last {
                (View { data: query.get(t * h + head * d..).unwrap_or_default(), stride: h }, at(0), at(1))
            } else {
                (View { data: at(0), stride: width }, at(1), at(2))
            };
            kernel.transpose(View { data: k, stride: width }, n, d, keys, stride);
            kernel.matmul(q, View { data: keys, stride }, scores, stride, asking, n, d);
            kernel.softmax(scores, stride, n, factor);
            let out = context.get_mut(first_out * h + head * d..).unwrap_or_default();
            let v = View { data: v, stride: width };
            let v = if n < PACK { v } else { packed(v, n, d, ws.values.take(n * d)) };
            kernel.matmul(View { data: scores, stride }, v, out, h, asking, d, n);
        }
    }
}

/// Floats from a row of `n` scores to the next: whole vectors, and no multiple of 512 bytes, which would put all rows in the same few sets of the cache.
fn row_stride(n: usize) -> usize {
    let stride = n.next_multiple_of(LANES);
    if stride.is_multiple_of(128) { stride + LANES } else { stride }
}

/// Copies `rows` rows of `width` so that they lie together.
fn packed<'a>(a: View<'_>, rows: usize, width: usize, out: &'a mut [f32]) -> View<'a> {
    for (row, out) in a.data.chunks(a.stride).zip(out.chunks_exact_mut(width)).take(rows) {
        out.copy_from_slice(row.get(..width).unwrap_or_default());
    }
    View { data: out, stride: width }
}

/// What follows the attention in a layer, and the next layer's Q, K and V: a block of rows at a time.
fn rest(net: &Net, kernel: Kernel, ws: &mut Workspace, at: usize, rows: usize, mut sizes: Option<&mut Sizes>) {
    let (h, f) = (net.shape.hidden_size, net.shape.intermediate_size);
    let (Some(layer), next) = (net.layers.get(at), net.layers.get(at + 1)) else { return };
    let from = wanted(net, at + 1);
    let width = 3 * h - from;
    let state = if next.is_some() { &mut ws.hidden } else { &mut ws.first }.take(rows * h);
    let (context, qkv) = (ws.context.take(rows * h), ws.qkv.take(rows * width));
    let blocks = state.chunks_mut(BLOCK * h).zip(context.chunks(BLOCK * h)).zip(qkv.chunks_mut(BLOCK * width));
    for ((x, context), qkv) in blocks {
        let (narrow, wide) = (ws.narrow.take(x.len()), ws.wide.take(x.len() / h * f));
        kernel.quantise(context, &layer.mix.factors, &mut ws.bytes);
        kernel.gemm(&ws.bytes, &layer.mix.weights, 0..h, narrow, h);
        norm(net, kernel, x, narrow, &layer.mix_norm, &layer.up, &mut ws.bytes);
        if let Some(sizes) = sizes.as_deref_mut() {
            sizes.up = column_sizes(x, h);
        }
        kernel.gemm(&ws.bytes, &layer.up.weights, 0..f, wide, f);
        kernel.gelu_quantise(wide, f, &mut ws.bytes);
        kernel.gemm(&ws.bytes, &layer.down.weights, 0..h, narrow, h);
        match next {
            Some(next) => {
                norm(net, kernel, x, narrow, &layer.down_norm, &next.qkv, &mut ws.bytes);
                kernel.gemm(&ws.bytes, &next.qkv.weights, from..3 * h, qkv, width);
            }
            None => kernel.layer_norm(x, narrow, &layer.down_norm.gain, &layer.down_norm.offset, net.shape.layer_norm_eps as f32),
        }
    }
}

/// Root mean square of each column.
fn column_sizes(x: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0f32; width];
    for row in x.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(s, x)| *s += x * x);
    }
    let rows = (x.len() / width).max(1) as f32;
    sums.into_iter().map(|s| (s / rows).sqrt()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::int8::testing::{reference, tiny, tiny_file};

    fn texts() -> Vec<Vec<u32>> {
        let lengths = [1, 2, 7, 16, 17, 150, 33];
        lengths.iter().enumerate().map(|(t, n)| (0..*n).map(|i| ((i * 7 + t * 3) % 50) as u32).collect()).collect()
    }

    fn cos(a: &[f32], b: &[f64]) -> f64 {
        let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum();
        dot / (a.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>() * b.iter().map(|b| b * b).sum::<f64>()).sqrt()
    }

    #[test]
    fn every_kernel_is_close_to_the_long_way() {
        let shape = tiny();
        let net = Net::quantise(&tiny_file(&shape), &shape, 0, Kernel::best()).unwrap();
        for kernel in Kernel::available() {
            for text in texts() {
                let got = run(&net, kernel, &mut Workspace::default(), &[&text], None).unwrap();
                let close = cos(&got, &reference(&shape, &text));
                assert!(close > 0.9985, "{} {} tokens: {close}", kernel.name(), text.len());
            }
        }
    }

    #[test]
    fn alone_and_in_company_the_same_bits() {
        let shape = tiny();
        let net = Net::quantise(&tiny_file(&shape), &shape, 0, Kernel::best()).unwrap();
        let texts = texts();
        let refs: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        for kernel in Kernel::available() {
            let mut ws = Workspace::default();
            let together = run(&net, kernel, &mut ws, &refs, None).unwrap();
            for (text, row) in refs.iter().zip(together.chunks(64)) {
                assert_eq!(run(&net, kernel, &mut ws, &[text], None).unwrap(), row, "{} {}", kernel.name(), text.len());
            }
        }
    }

    #[test]
    fn impossible_texts_are_refused_and_unknown_ids_are_not() {
        let shape = tiny();
        let net = Net::quantise(&tiny_file(&shape), &shape, 2, Kernel::best()).unwrap();
        let mut ws = Workspace::default();
        assert!(run(&net, Kernel::best(), &mut ws, &[&[]], None).is_err());
        assert!(run(&net, Kernel::best(), &mut ws, &[&[1; 299]], None).is_err(), "two positions are taken");
        assert_eq!(run(&net, Kernel::best(), &mut ws, &[&[1; 298]], None).unwrap().len(), 64);
        let unknown = run(&net, Kernel::best(), &mut ws, &[&[u32::MAX, 3]], None).unwrap();
        assert_eq!(unknown, run(&net, Kernel::best(), &mut ws, &[&[0, 3]], None).unwrap());
        assert!(run(&net, Kernel::best(), &mut ws, &[], None).unwrap().is_empty());
    }
}
