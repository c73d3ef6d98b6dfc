//! One immutable set of vectors: f32 for the last word, int8 rows for the scan.
//!
//! Rows of one document stand side by side, documents in the order of [`Layout`]; only scanned roles have rows.
//! Memory: `4·dim` bytes a vector (shared with whoever gave it) and `dim + 12` bytes a row.

use super::quant::{LANES, Probe, push_row};
use super::{DenseDoc, PartConfig, Role};
use crate::index::layout::Layout;
use crate::index::stack::{Dead, Part};
use crate::kernel::dot::{Planes, dot_f32, scan_i8};
use std::ops::Range;
use std::sync::Arc;

/// Rows scanned in one go; their dot products stay in the first-level cache.
const BLOCK: usize = 1024;

pub(crate) struct DensePart {
    layout: Layout,
    /// All vectors, document after document, scanned roles first.
    vectors: Vec<(Role, Arc<[f32]>)>,
    /// First vector of each document, and the end.
    vector_at: Vec<u32>,
    width: usize,
    rows: Vec<i8>,
    sums: Vec<i32>,
    scales: Vec<f32>,
    losses: Vec<f32>,
    /// First row of each document, and the end.
    row_at: Vec<u32>,
    /// Largest norm of a scanned vector.
    longest: f32,
}

impl Part for DensePart {
    type Doc = DenseDoc;
    type Scar = ();
    type Config = PartConfig;

    fn slot(doc: &DenseDoc) -> u32 {
        doc.slot
    }

    fn build(mut docs: Vec<DenseDoc>, cfg: &PartConfig) -> Self {
        docs.sort_unstable_by_key(|doc| (doc.class, doc.slot));
        let width = cfg.dim.div_ceil(LANES) * LANES;
        let mut part = Self {
            layout: Layout::new(docs.iter().map(|doc| (doc.class, doc.slot))),
            vectors: Vec::new(),
            vector_at: vec![0],
            width,
            rows: Vec::new(),
            sums: Vec::new(),
            scales: Vec::new(),
            losses: Vec::new(),
            row_at: vec![0],
            longest: 0.0,
        };
        for mut doc in docs {
            doc.vectors.retain(|(_, v)| v.len() == cfg.dim && v.iter().all(|x| x.is_finite()));
            doc.vectors.sort_by_key(|(role, _)| !role.is_scanned());
            for (_, vector) in doc.vectors.iter().filter(|(role, _)| role.is_scanned()) {
                let from = part.rows.len();
                let (scale, loss) = push_row(vector, width, &mut part.rows);
                part.sums.push(part.rows.get(from..).unwrap_or_default().iter().map(|v| i32::from(*v)).sum());
                part.scales.push(scale);
                part.losses.push(loss);
                part.longest = part.longest.max(dot_f32(vector, vector).sqrt() * 1.000_01);
            }
            part.vectors.append(&mut doc.vectors);
            part.vector_at.push(part.vectors.len() as u32);
            part.row_at.push(part.sums.len() as u32);
        }
        part.rows.shrink_to_fit();
        part
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn extract(&self, doc: usize) -> Option<DenseDoc> {
        (doc < self.layout.len()).then(|| DenseDoc {
            slot: self.layout.slot(doc),
            class: self.layout.class_of(doc),
            vectors: self.vectors(doc).to_vec(),
        })
    }

    fn bury(&self, _doc: usize, _scar: &mut ()) {}

    fn finish(&self, _cfg: &PartConfig) -> Option<Self> {
        None
    }

    fn unfinished(&self, _cfg: &PartConfig) -> bool {
        false
    }
}

fn span(at: &[u32], doc: usize) -> Range<usize> {
    let edge = |i: usize| at.get(i).map_or(0, |v| *v as usize);
    edge(doc)..edge(doc + 1)
}

impl DensePart {
    /// Vectors of a document.
    pub(crate) fn vectors(&self, doc: usize) -> &[(Role, Arc<[f32]>)] {
        self.vectors.get(span(&self.vector_at, doc)).unwrap_or_default()
    }

    /// Best cosine of a document among the scanned roles.
    pub(crate) fn exact(&self, doc: usize, query: &[f32]) -> Option<f32> {
        let scanned = self.vectors(doc).get(..span(&self.row_at, doc).len()).unwrap_or_default();
        scanned.iter().map(|(_, vector)| dot_f32(query, vector).clamp(-1.0, 1.0)).reduce(f32::max)
    }

    /// Approximate best cosine of every living document of `docs` that has rows, and the most it can be: `seen(doc, score, most)`.
    pub(crate) fn scan(&self, docs: Range<usize>, dead: &Dead<()>, probe: &Probe, mut seen: impl FnMut(usize, f32, f32)) {
        let mut dots = vec![(0, 0); BLOCK];
        let planes = Planes { hi: &probe.hi, lo: &probe.lo };
        let extra = probe.margin(0.0, self.longest);
        let weight = probe.margin(1.0, 0.0);
        let mut from = docs.start;
        while from < docs.end {
            let first = span(&self.row_at, from).start;
            // as many documents as fit, one at least
            let fit = self.row_at.get(from + 1..=docs.end).unwrap_or_default().partition_point(|end| *end as usize <= first + BLOCK);
            let to = from + fit.max(1);
            let rows = first..span(&self.row_at, to - 1).end;
            if dots.len() < rows.len() {
                dots.resize(rows.len(), (0, 0));
            }
            let (Some(block), Some(sums), Some(scales), Some(losses), Some(dots)) = (
                self.rows.get(rows.start * self.width..rows.end * self.width),
                self.sums.get(rows.clone()),
                self.scales.get(rows.clone()),
                self.losses.get(rows.clone()),
                dots.get_mut(..rows.len()),
            ) else {
                return;
            };
            scan_i8(planes, block, sums, dots);
            let mut rest = dots.iter().zip(scales).zip(losses);
            for doc in from..to {
                let n = span(&self.row_at, doc).len();
                let (mut best, mut most) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
                for ((dot, scale), loss) in rest.by_ref().take(n) {
                    let score = probe.score(*dot, *scale);
                    best = best.max(score);
                    most = most.max(score + weight * loss);
                }
                if n > 0 && !dead.has(doc) {
                    seen(doc, best, most + extra);
                }
            }
            from = to;
        }
    }
}
