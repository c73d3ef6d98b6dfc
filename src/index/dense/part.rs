//! One immutable set of vectors, as whole numbers end to end: planes that a scan reads, planes for the last word, planes of vectors that are not scanned.
//!
//! Rows of one document stand side by side, documents in the order of [`Layout`]; all that is known of a document is a few stretches of memory.
//! A large part also has sketches and lists (`near`) once it is finished.
//! Memory: see `packed`; 76 more a scanned row with sketches, and again with each list.

use super::lists::Rows;
use super::near::Near;
use super::packed::{Head, Packed};
use super::quant::{LANES, Probe, Row, restored};
use super::{PartConfig, Role};
use crate::index::layout::Layout;
use crate::index::stack::{Dead, Part};
use crate::kernel::dot::{Planes, gather_i8, scan_i8};
use std::ops::Range;
use std::sync::Arc;

/// Rows scanned in one go; their dot products stay in the first-level cache.
const BLOCK: usize = 1024;
/// Rows of one document that are looked at in one go.
const FEW: usize = 8;

#[derive(Clone)]
pub(crate) struct DensePart {
    core: Arc<Core>,
    /// Nothing as long as it is not built, and for small parts.
    near: Option<Arc<Near>>,
}

/// Planes of one kind, row after row.
#[derive(Default)]
struct Plane {
    rows: Vec<i8>,
    sums: Vec<i32>,
}

impl Plane {
    fn with_capacity(rows: usize, width: usize) -> Self {
        Self { rows: Vec::with_capacity(rows * width), sums: Vec::with_capacity(rows) }
    }

    /// Bytes and sums of a range of rows.
    fn range(&self, rows: Range<usize>, width: usize) -> Option<(&[i8], &[i32])> {
        Some((self.rows.get(rows.start * width..rows.end * width)?, self.sums.get(rows)?))
    }
}

struct Core {
    layout: Layout,
    dim: usize,
    /// `dim` rounded up.
    width: usize,
    /// Of scanned vectors.
    upper: Plane,
    lower: Plane,
    scales: Vec<f32>,
    losses: Vec<f32>,
    /// Of the others.
    side: Plane,
    side_scales: Vec<f32>,
    /// Roles of all vectors, document after document, scanned ones first.
    roles: Vec<Role>,
    /// Dot products of each of them with the anchors.
    marks: Vec<f32>,
    anchors: usize,
    /// First vector of each document, and the end.
    vector_at: Vec<u32>,
    /// First scanned one of each document, and the end.
    row_at: Vec<u32>,
    /// No scanned vector is longer.
    longest: f32,
}

impl Part for DensePart {
    type Doc = Packed;
    type Scar = ();
    type Config = PartConfig;

    fn slot(doc: &Packed) -> u32 {
        doc.slot
    }

    fn build(mut docs: Vec<Packed>, cfg: &PartConfig) -> Self {
        docs.sort_unstable_by_key(|doc| (doc.class, doc.slot));
        let width = cfg.dim.div_ceil(LANES) * LANES;
        let (all, rows) = docs.iter().fold((0, 0), |(all, rows), doc| (all + doc.heads.len(), rows + doc.searched));
        let mut part = Core {
            layout: Layout::new(docs.iter().map(|doc| (doc.class, doc.slot))),
            dim: cfg.dim,
            width,
            upper: Plane::with_capacity(rows, width),
            lower: Plane::with_capacity(rows, width),
            scales: Vec::with_capacity(rows),
            losses: Vec::with_capacity(rows),
            side: Plane::with_capacity(all - rows, width),
            side_scales: Vec::with_capacity(all - rows),
            roles: Vec::with_capacity(all),
            marks: Vec::with_capacity(all * cfg.anchors.len()),
            anchors: cfg.anchors.len(),
            vector_at: vec![0],
            row_at: vec![0],
            longest: 0.0,
        };
        for doc in docs {
            let (searched, others) = doc.heads.split_at(doc.searched.min(doc.heads.len()));
            let (upper, rest) = doc.planes.split_at(searched.len() * width);
            let (lower, side) = rest.split_at(searched.len() * width);
            part.upper.rows.extend_from_slice(upper);
            part.upper.sums.extend(searched.iter().map(|head| head.row.sum));
            part.lower.rows.extend_from_slice(lower);
            part.lower.sums.extend(searched.iter().map(|head| head.row.lower_sum));
            part.scales.extend(searched.iter().map(|head| head.row.scale));
            part.losses.extend(searched.iter().map(|head| head.row.loss));
            part.side.rows.extend_from_slice(side);
            part.side.sums.extend(others.iter().map(|head| head.row.sum));
            part.side_scales.extend(others.iter().map(|head| head.row.scale));
            part.roles.extend(doc.heads.iter().map(|head| head.role));
            part.marks.extend_from_slice(&doc.marks);
            part.longest = part.longest.max(doc.longest);
            part.vector_at.push(part.roles.len() as u32);
            part.row_at.push(part.scales.len() as u32);
        }
        Self { core: Arc::new(part), near: None }
    }

    fn layout(&self) -> &Layout {
        &self.core.layout
    }

    fn extract(&self, doc: usize) -> Option<Packed> {
        let core = &*self.core;
        let (rows, side) = (span(&core.row_at, doc), core.side_of(doc));
        let (upper, upper_sums) = core.upper.range(rows.clone(), core.width)?;
        let (lower, lower_sums) = core.lower.range(rows.clone(), core.width)?;
        let (others, side_sums) = core.side.range(side.clone(), core.width)?;
        let scanned = upper_sums.iter().zip(lower_sums).zip(core.scales.get(rows.clone())?).zip(core.losses.get(rows.clone())?);
        let scanned = scanned.map(|(((sum, lower_sum), scale), loss)| Row { scale: *scale, loss: *loss, sum: *sum, lower_sum: *lower_sum });
        let rest = side_sums.iter().zip(core.side_scales.get(side)?);
        let rest = rest.map(|(sum, scale)| Row { scale: *scale, sum: *sum, ..Row::default() });
        let heads = scanned.chain(rest).zip(core.roles_of(doc)).map(|(row, role)| Head { role: *role, row }).collect();
        (doc < self.layout().len()).then(|| Packed {
            slot: self.layout().slot(doc),
            class: self.layout().class_of(doc),
            heads,
            searched: rows.len(),
            planes: [upper, lower, others].concat(),
            marks: core.marks_of(doc).to_vec(),
            longest: core.longest,
        })
    }

    fn bury(&self, _doc: usize, _scar: &mut ()) {}

    fn finish(&self, cfg: &PartConfig) -> Option<Self> {
        if !self.unfinished(cfg) {
            return None;
        }
        let rows = Rows { width: self.core.width, rows: &self.core.upper.rows, scales: &self.core.scales };
        let docs: Vec<u32> = (0..self.layout().len()).flat_map(|doc| span(&self.core.row_at, doc).map(move |_| doc as u32)).collect();
        let vectors = (0..self.core.scales.len()).map(|row| self.core.scanned(row));
        let classes = (0..self.layout().class_count()).filter_map(|rank| self.layout().class(rank)).map(|(_, docs)| self.rows_of(&docs));
        let near = Near::build(rows, docs, vectors, classes, cfg);
        Some(Self { core: Arc::clone(&self.core), near: Some(Arc::new(near)) })
    }

    fn unfinished(&self, cfg: &PartConfig) -> bool {
        self.near.is_none() && Near::wanted(self.core.scales.len(), cfg)
    }
}

impl Core {
    /// Where a document's vectors that are not scanned stand among their like.
    fn side_of(&self, doc: usize) -> Range<usize> {
        let (all, rows) = (span(&self.vector_at, doc), span(&self.row_at, doc));
        all.start.saturating_sub(rows.start)..all.end.saturating_sub(rows.end)
    }

    fn roles_of(&self, doc: usize) -> &[Role] {
        self.roles.get(span(&self.vector_at, doc)).unwrap_or_default()
    }

    fn marks_of(&self, doc: usize) -> &[f32] {
        let vectors = span(&self.vector_at, doc);
        self.marks.get(vectors.start * self.anchors..vectors.end * self.anchors).unwrap_or_default()
    }

    /// A scanned vector.
    fn scanned(&self, row: usize) -> Vec<f32> {
        let (upper, lower) = (self.upper.range(row..row + 1, self.width), self.lower.range(row..row + 1, self.width));
        let (upper, lower) = (upper.unwrap_or_default().0, lower.unwrap_or_default().0);
        restored(upper, lower, self.scales.get(row).copied().unwrap_or_default(), self.dim)
    }

    /// Cosines of a few scanned rows, both planes.
    fn fine(&self, rows: Range<usize>, probe: &Probe, mut each: impl FnMut(f32)) {
        let planes = Planes { hi: &probe.hi, lo: &probe.lo };
        let (mut upper, mut lower) = ([(0, 0); FEW], [(0, 0); FEW]);
        for from in rows.clone().step_by(FEW) {
            let part = from..(from + FEW).min(rows.end);
            let (Some(a), Some(b), Some(scales)) =
                (self.upper.range(part.clone(), self.width), self.lower.range(part.clone(), self.width), self.scales.get(part.clone()))
            else {
                return;
            };
            scan_i8(planes, a.0, a.1, upper.get_mut(..part.len()).unwrap_or_default());
            scan_i8(planes, b.0, b.1, lower.get_mut(..part.len()).unwrap_or_default());
            for ((upper, lower), scale) in upper.iter().zip(&lower).zip(scales) {
                each(probe.fine(*upper, *lower, *scale).clamp(-1.0, 1.0));
            }
        }
    }
}

fn span(at: &[u32], doc: usize) -> Range<usize> {
    let edge = |i: usize| at.get(i).map_or(0, |v| *v as usize);
    edge(doc)..edge(doc + 1)
}

impl DensePart {
    /// Rows of a range of documents.
    pub(crate) fn rows_of(&self, docs: &Range<usize>) -> Range<usize> {
        let edge = |doc: usize| self.core.row_at.get(doc).map_or(0, |row| *row as usize);
        edge(docs.start)..edge(docs.end)
    }

    /// Its sketches and lists, if it is large and finished.
    pub(crate) fn near(&self) -> Option<&Near> {
        self.near.as_deref()
    }

    /// A vector of a document, with its role left out: the scanned ones come first.
    pub(crate) fn vector(&self, doc: usize, at: usize) -> Option<Vec<f32>> {
        let core = &*self.core;
        let (rows, side) = (span(&core.row_at, doc), core.side_of(doc));
        if at < rows.len() {
            return Some(core.scanned(rows.start + at));
        }
        let row = side.start + at - rows.len();
        let plane = core.side.range(row..row + 1, core.width).filter(|_| row < side.end)?.0;
        Some(restored(plane, &[], core.side_scales.get(row).copied()?, core.dim))
    }

    /// Vectors of a document with their roles: the scanned ones to about five digits, the others to about three.
    pub(crate) fn vectors(&self, doc: usize) -> impl Iterator<Item = (Role, Vec<f32>)> {
        self.core.roles_of(doc).iter().enumerate().filter_map(move |(at, role)| Some((*role, self.vector(doc, at)?)))
    }

    /// Cosine of each vector of a document, with its dot products with the anchors.
    pub(crate) fn cosines<'a>(&'a self, doc: usize, probe: &Probe, mut each: impl FnMut(Role, f32, &'a [f32])) {
        let core = &*self.core;
        let mut about =
            core.roles_of(doc).iter().zip(core.marks_of(doc).chunks(core.anchors.max(1)).chain(std::iter::repeat(&[] as &[f32])));
        let mut tell = |cosine: f32| {
            if let Some((role, marks)) = about.next() {
                each(*role, cosine, marks);
            }
        };
        core.fine(span(&core.row_at, doc), probe, &mut tell);
        let side = core.side_of(doc);
        let planes = Planes { hi: &probe.hi, lo: &probe.lo };
        let mut dots = [(0, 0); FEW];
        for from in side.clone().step_by(FEW) {
            let part = from..(from + FEW).min(side.end);
            let (Some((rows, sums)), Some(scales)) = (core.side.range(part.clone(), core.width), core.side_scales.get(part.clone())) else {
                return;
            };
            scan_i8(planes, rows, sums, dots.get_mut(..part.len()).unwrap_or_default());
            dots.iter().zip(scales).for_each(|(dots, scale)| tell(probe.score(*dots, *scale).clamp(-1.0, 1.0)));
        }
    }

    /// Best cosine of a document among the scanned roles.
    pub(crate) fn exact(&self, doc: usize, probe: &Probe) -> Option<f32> {
        let rows = span(&self.core.row_at, doc);
        let mut best = f32::NEG_INFINITY;
        self.core.fine(rows.clone(), probe, |cosine| best = best.max(cosine));
        (!rows.is_empty()).then_some(best)
    }

    /// [`DensePart::exact`] after a scan: the vector that looked best is taken first, the others only if they can still be better.
    pub(crate) fn exact_after(&self, seen: &Seen, probe: &Probe) -> Option<f32> {
        let row = span(&self.core.row_at, seen.doc as usize).nth(seen.best_row as usize)?;
        let mut score = f32::NEG_INFINITY;
        self.core.fine(row..row + 1, probe, |cosine| score = cosine);
        if seen.others < score { Some(score) } else { self.exact(seen.doc as usize, probe) }
    }

    /// Looks at chosen rows, ascending: what they say of their documents. `near`: its own.
    pub(crate) fn look(&self, near: &Near, rows: &[u32], probe: &Probe, mut seen: impl FnMut(Seen)) {
        let mut dots = vec![(0, 0); rows.len()];
        gather_i8(Planes { hi: &probe.hi, lo: &probe.lo }, &self.core.upper.rows, &self.core.upper.sums, rows, &mut dots);
        let (extra, weight) = (probe.margin(0.0, self.core.longest), probe.margin(1.0, 0.0));
        let mut last: Option<Seen> = None;
        for (row, dots) in rows.iter().zip(dots) {
            let of_row = |values: &[f32]| values.get(*row as usize).copied().unwrap_or_default();
            let score = probe.score(dots, of_row(&self.core.scales));
            let most = score + weight * of_row(&self.core.losses) + extra;
            let doc = near.doc(*row);
            match last.as_mut().filter(|last| last.doc == doc) {
                Some(last) => (last.score, last.most) = (last.score.max(score), last.most.max(most)),
                // its other rows may be anything: they were not looked at
                None => {
                    last.replace(Seen { doc, score, most, others: f32::INFINITY, best_row: 0 }).into_iter().for_each(&mut seen);
                }
            }
        }
        last.into_iter().for_each(seen);
    }

    /// Looks at every living document of `docs` that has rows.
    pub(crate) fn scan(&self, docs: Range<usize>, dead: &Dead<()>, probe: &Probe, mut seen: impl FnMut(Seen)) {
        let mut dots = vec![(0, 0); BLOCK];
        let planes = Planes { hi: &probe.hi, lo: &probe.lo };
        let extra = probe.margin(0.0, self.core.longest);
        let weight = probe.margin(1.0, 0.0);
        let mut from = docs.start;
        while from < docs.end {
            let first = span(&self.core.row_at, from).start;
            // as many documents as fit, one at least
            let fit = self.core.row_at.get(from + 1..=docs.end).unwrap_or_default().partition_point(|end| *end as usize <= first + BLOCK);
            let to = from + fit.max(1);
            let rows = first..span(&self.core.row_at, to - 1).end;
            if dots.len() < rows.len() {
                dots.resize(rows.len(), (0, 0));
            }
            let (Some((block, sums)), Some(scales), Some(losses), Some(dots), Some(edges)) = (
                self.core.upper.range(rows.clone(), self.core.width),
                self.core.scales.get(rows.clone()),
                self.core.losses.get(rows.clone()),
                dots.get_mut(..rows.len()),
                self.core.row_at.get(from..=to),
            ) else {
                return;
            };
            scan_i8(planes, block, sums, dots);
            let mut rest = dots.iter().zip(scales).zip(losses);
            for (doc, edge) in (from..to).zip(edges.windows(2)) {
                let n = if let [a, b] = edge { b - a } else { 0 };
                let mut best =
                    Seen { doc: doc as u32, score: f32::NEG_INFINITY, most: f32::NEG_INFINITY, others: f32::NEG_INFINITY, best_row: 0 };
                for row in 0..n {
                    let Some(((dot, scale), loss)) = rest.next() else { break };
                    let score = probe.score(*dot, *scale);
                    let most = score + weight * loss;
                    best.score = best.score.max(score);
                    // without a branch: which row wins is a coin toss
                    best.others = best.others.max(most.min(best.most));
                    best.best_row = if most > best.most { row } else { best.best_row };
                    best.most = best.most.max(most);
                }
                if n > 0 && !dead.has(doc) {
                    best.most += extra;
                    best.others += extra;
                    seen(best);
                }
            }
            from = to;
        }
    }
}

/// What a scan saw of a document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The document.
    pub(crate) doc: u32,
    /// Approximate best cosine.
    pub(crate) score: f32,
    /// Most that its best cosine can be.
    pub(crate) most: f32,
    /// Most that the cosine of any but the row that can be best can be.
    pub(crate) others: f32,
    /// The row that can be best, counted within the document.
    pub(crate) best_row: u32,
}
