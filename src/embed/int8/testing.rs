//! A tiny encoder with random weights, and what it should give, computed the long way.

use crate::embed::bundle::Shape;
use safetensors::tensor::{Dtype, TensorView};

/// Two layers of two heads of 32, feed-forward 96.
pub fn tiny() -> Shape {
    Shape {
        vocab_size: 50,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 96,
        max_position_embeddings: 300,
        type_vocab_size: 2,
        layer_norm_eps: 1e-12,
    }
}

/// Names, shapes and values of all tensors.
pub fn tiny_tensors(shape: &Shape) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let (h, f) = (shape.hidden_size, shape.intermediate_size);
    let mut names = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![shape.vocab_size, h]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![shape.max_position_embeddings, h]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![shape.type_vocab_size, h]),
    ];
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for i in 0..shape.num_hidden_layers {
        let at = |n: &str| format!("encoder.layer.{i}.{n}");
        let linear = [
            ("attention.self.query", h, h),
            ("attention.self.key", h, h),
            ("attention.self.value", h, h),
            ("attention.output.dense", h, h),
            ("intermediate.dense", f, h),
            ("output.dense", h, f),
        ];
        for (name, n, k) in linear {
            names.push((at(&format!("{name}.weight")), vec![n, k]));
            names.push((at(&format!("{name}.bias")), vec![n]));
        }
        norms.extend([at("attention.output.LayerNorm"), at("output.LayerNorm")]);
    }
    for norm in norms {
        names.push((format!("{norm}.weight"), vec![h]));
        names.push((format!("{norm}.bias"), vec![h]));
    }
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values = |(name, dims): (String, Vec<usize>)| {
        let n = dims.iter().product();
        let gain = name.ends_with("LayerNorm.weight");
        let scale = if name.contains("dense.weight") || name.contains("self") { 0.2 } else { 0.5 };
        // one column is always large, as in the real models
        let value = |i: usize| if gain { 1.0 + 0.2 * noise() + if i == 7 { 8.0 } else { 0.0 } } else { scale * noise() };
        (name, dims, (0..n).map(value).collect())
    };
    names.into_iter().map(values).collect()
}

/// The model as a safetensors file, with the prefix that some exports use.
pub fn tiny_file(shape: &Shape) -> Vec<u8> {
    let tensors = tiny_tensors(shape);
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|(_, _, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, dims, _), data)| (format!("bert.{name}"), TensorView::new(Dtype::F32, dims.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// The first token's vector of one text, in f64 and plain loops.
pub fn reference(shape: &Shape, ids: &[u32]) -> Vec<f64> {
    let all = tiny_tensors(shape);
    let get = |name: &str| &all.iter().find(|(n, _, _)| n == name).unwrap().2;
    let h = shape.hidden_size;
    let norm = |x: &mut Vec<f64>, name: &str| {
        let (gain, offset) = (get(&format!("{name}.weight")), get(&format!("{name}.bias")));
        let mean = x.iter().sum::<f64>() / h as f64;
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / h as f64;
        for (i, x) in x.iter_mut().enumerate() {
            *x = (*x - mean) / (var + shape.layer_norm_eps).sqrt() * f64::from(gain[i]) + f64::from(offset[i]);
        }
    };
    let linear = |x: &[f64], name: &str| -> Vec<f64> {
        let (w, b) = (get(&format!("{name}.weight")), get(&format!("{name}.bias")));
        let row = |(w, b): (&[f32], &f32)| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(*b);
        w.chunks(x.len()).zip(b).map(row).collect()
    };
    let word = get("embeddings.word_embeddings.weight");
    let (place, kind) = (get("embeddings.position_embeddings.weight"), get("embeddings.token_type_embeddings.weight"));
    let mut x: Vec<Vec<f64>> = ids
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let mut row =
                (0..h).map(|c| f64::from(word[*id as usize * h + c]) + f64::from(place[i * h + c]) + f64::from(kind[c])).collect();
            norm(&mut row, "embeddings.LayerNorm");
            row
        })
        .collect();
    let d = h / shape.num_attention_heads;
    for layer in 0..shape.num_hidden_layers {
        let at = |n: &str| format!("encoder.layer.{layer}.{n}");
        let part = |n: &str| x.iter().map(|x| linear(x, &at(n))).collect::<Vec<_>>();
        let (q, k, v) = (part("attention.self.query"), part("attention.self.key"), part("attention.self.value"));
        for (i, x) in x.iter_mut().enumerate() {
            let mut context = vec![0.0; h];
            for head in 0..shape.num_attention_heads {
                let columns = head * d..(head + 1) * d;
                let score = |k: &Vec<f64>| (columns.clone().map(|c| q[i][c] * k[c]).sum::<f64>() / (d as f64).sqrt()).exp();
                let scores: Vec<f64> = k.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                for c in columns {
                    context[c] = scores.iter().zip(&v).map(|(s, v)| s / sum * v[c]).sum();
                }
            }
            let mixed = linear(&context, &at("attention.output.dense"));
            x.iter_mut().zip(&mixed).for_each(|(x, m)| *x += m);
            norm(x, &at("attention.output.LayerNorm"));
            let wide: Vec<f64> = linear(x, &at("intermediate.dense")).into_iter().map(gelu).collect();
            let narrow = linear(&wide, &at("output.dense"));
            x.iter_mut().zip(&narrow).for_each(|(x, n)| *x += n);
            norm(x, &at("output.LayerNorm"));
        }
    }
    x.swap_remove(0)
}

fn gelu(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.max(0.0);
    }
    // Φ by its series
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / (2.0 * f64::from(n));
        sum += term / f64::from(2 * n + 1);
    }
    x * (0.5 + sum / (2.0 * std::f64::consts::PI).sqrt())
}
