//! The product's micro-kernel in plain Rust: the twin that the others are compared with.

use super::aligned::LINE;
use super::gemm::Tile;
use super::panel::PANEL;

/// Rows in a block.
pub(super) const MAX_ROWS: usize = 4;

/// `rows` rows times one panel.
///
/// # Safety
/// The tile's pointers reach what it says, for `rows` rows.
pub(super) unsafe fn tile(rows: usize, _fetch: usize, t: &Tile) {
    for row in 0..rows {
        let mut sums = [0i32; PANEL];
        for block in 0..t.blocks {
            // SAFETY: block `block` of the row has 64 bytes, and of the panel 64 · 32.
            let (a, w) = unsafe {
                (
                    &*t.a.add(block * t.a_step + row * LINE).cast::<[u8; LINE]>(),
                    &*t.w.add(block * LINE * PANEL).cast::<[[[i8; 4]; PANEL]; LINE / 4]>(),
                )
            };
            for (a, w) in a.chunks_exact(4).zip(w) {
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum += a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(*w)).sum::<i32>();
                }
            }
        }
        // SAFETY: every row has a zero point and a scale, the panel 32 of each of its own, and there is room for 32 results a row.
        unsafe {
            let (zero, scale) = (t.zero.add(row).read(), t.scale.add(row).read());
            for (i, sum) in sums.into_iter().enumerate() {
                let whole = (sum - zero * t.sums.add(i).read()) as f32;
                t.out.add(row * t.stride + i).write(whole * (scale * t.w_scale.add(i).read()) + t.bias.add(i).read());
            }
        }
    }
}
