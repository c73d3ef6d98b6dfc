//! The vectors of one capability as whole numbers: made once, then copied from part to part.
//!
//! Vectors that are searched have two planes, int8 each: the upper one is scanned, both together are the last word (what they lose is about 1/65,000 of
//! the largest value). The others, which are only looked at after a capability was found, have the upper plane.
//! Memory: `2 · width` bytes a searched vector and `width` each other, `width` the dimension rounded up to 64; 20 more each.

use super::quant::{LANES, Row, push_row};
use super::{DenseDoc, PartConfig, Role};
use crate::kernel::dot::dot_f32;

/// What is known of a vector beside its planes.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) role: Role,
    pub(crate) row: Row,
}

/// See the head of this file. Searched vectors come first.
pub(crate) struct Packed {
    pub(crate) slot: u32,
    pub(crate) class: u32,
    pub(crate) heads: Vec<Head>,
    /// Number of searched vectors.
    pub(crate) searched: usize,
    /// Upper planes of the searched vectors, their lower planes, upper planes of the others.
    pub(crate) planes: Vec<i8>,
    /// Dot products of each vector with the anchors.
    pub(crate) marks: Vec<f32>,
    /// No searched vector is longer.
    pub(crate) longest: f32,
}

impl Packed {
    /// Packs a capability's vectors; those of another dimension, or not finite, are left out.
    pub(crate) fn of(mut doc: DenseDoc, cfg: &PartConfig) -> Self {
        doc.vectors.retain(|(_, v)| v.len() == cfg.dim && v.iter().all(|x| x.is_finite()));
        doc.vectors.sort_by_key(|(role, _)| !role.is_scanned());
        let searched = doc.vectors.iter().filter(|(role, _)| role.is_scanned()).count();
        let width = cfg.dim.div_ceil(LANES) * LANES;
        let mut packed = Self {
            slot: doc.slot,
            class: doc.class,
            heads: Vec::with_capacity(doc.vectors.len()),
            searched,
            planes: Vec::with_capacity((doc.vectors.len() + searched) * width),
            marks: Vec::with_capacity(doc.vectors.len() * cfg.anchors.len()),
            longest: 0.0,
        };
        let mut lower = Vec::with_capacity(width);
        let mut all_lower = Vec::with_capacity(searched * width);
        for (place, (role, vector)) in doc.vectors.iter().enumerate() {
            if place == searched {
                packed.planes.append(&mut all_lower);
            }
            let row = push_row(vector, width, &mut packed.planes, &mut lower);
            if place < searched {
                all_lower.extend_from_slice(&lower);
                packed.longest = packed.longest.max(dot_f32(vector, vector).sqrt() * 1.000_1);
            }
            packed.heads.push(Head { role: *role, row });
            packed.marks.extend(cfg.anchors.iter().map(|anchor| dot_f32(vector, anchor)));
        }
        packed.planes.append(&mut all_lower);
        packed
    }
}
