//! The 8-bit products of one pass of bge-small-zh, by kernel and by rows that go through together. `cargo bench --bench gemm`.

use agent_reach::kernel::Kernel;
use agent_reach::kernel::panel::Weights;
use agent_reach::kernel::quant::Activations;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// (outputs, inputs) of the linear layers of one layer of the model.
const SHAPES: [(usize, usize); 4] = [(1536, 512), (512, 512), (2048, 512), (512, 2048)];
const LAYERS: u32 = 4;

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn pass(c: &mut Criterion) {
    let weights = |layer: u32| SHAPES.map(|(n, k)| Weights::quantise(&noise(n * k, layer), &noise(n, 2), &vec![1.0; k]));
    let mut all: Vec<Weights> = (0..LAYERS).flat_map(weights).collect();
    Weights::gather(all.iter_mut());
    let weights: usize = SHAPES.iter().map(|(n, k)| n * k).sum::<usize>() * LAYERS as usize;
    let mut group = c.benchmark_group("gemm");
    for rows in [1usize, 18, 32, 64, 112] {
        let activations = [512, 2048].map(|k| {
            let mut a = Activations::default();
            Kernel::best().quantise(&noise(rows * k, 3), &vec![1.0; k], &mut a);
            a
        });
        let mut out = vec![0f32; rows * 2048];
        group.throughput(Throughput::Elements((weights * rows) as u64));
        for kernel in Kernel::available().filter(|k| *k != Kernel::Scalar) {
            group.bench_function(format!("{rows} rows/{}", kernel.name()), |b| {
                b.iter(|| {
                    for w in &all {
                        let a = if w.inputs() == 2048 { &activations[1] } else { &activations[0] };
                        kernel.gemm(black_box(a), w, 0..w.width(), &mut out, w.width());
                    }
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pass);
criterion_main!(benches);
