//! One immutable set of vectors: f32 for the last word, int8 rows for the scan.
//!
//! Rows of one document stand side by side, documents in the order of [`Layout`]; only scanned roles have rows.
//! A large part also has sketches and lists (`near`) once it is finished.
//! Memory: `4·dim` bytes a vector (shared with whoever gave it), `dim + 12` bytes a row; 76 more a row with sketches, and again with each list.

use super::lists::Rows;
use super::near::Near;
use super::quant::{LANES, Probe, push_row};
use super::{DenseDoc, PartConfig, Role};
use crate::index::layout::Layout;
use crate::index::stack::{Dead, Part};
use crate::kernel::dot::{Planes, dot_f32, gather_i8, scan_i8};
use std::ops::Range;
use std::sync::Arc;

/// Rows scanned in one go; their dot products stay in the first-level cache.
const BLOCK: usize = 1024;

#[derive(Clone)]
pub(crate) struct DensePart {
    core: Arc<Core>,
    /// Nothing as long as it is not built, and for small parts.
    near: Option<Arc<Near>>,
}

struct Core {
    layout: Layout,
    /// All vectors, document after document, scanned roles first.
    vectors: Vec<(Role, Arc<[f32]>)>,
    /// Dot products of each vector with the anchors.
    marks: Vec<f32>,
    /// First vector of each document, and the end.
    vector_at: Vec<u32>,
    anchors: usize,
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
        let mut part = Core {
            layout: Layout::new(docs.iter().map(|doc| (doc.class, doc.slot))),
            vectors: Vec::new(),
            marks: Vec::new(),
            vector_at: vec![0],
            anchors: cfg.anchors.len(),
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
            part.marks.extend(doc.vectors.iter().flat_map(|(_, v)| cfg.anchors.iter().map(|a| dot_f32(v, a))));
            part.vectors.append(&mut doc.vectors);
            part.vector_at.push(part.vectors.len() as u32);
            part.row_at.push(part.sums.len() as u32);
        }
        part.rows.shrink_to_fit();
        Self { core: Arc::new(part), near: None }
    }

    fn layout(&self) -> &Layout {
        &self.core.layout
    }

    fn extract(&self, doc: usize) -> Option<DenseDoc> {
        (doc < self.layout().len()).then(|| DenseDoc {
            slot: self.layout().slot(doc),
            class: self.layout().class_of(doc),
            vectors: self.vectors(doc).to_vec(),
        })
    }

    fn bury(&self, _doc: usize, _scar: &mut ()) {}

    fn finish(&self, cfg: &PartConfig) -> Option<Self> {
        if !self.unfinished(cfg) {
            return None;
        }
        let rows = Rows { width: self.core.width, rows: &self.core.rows, scales: &self.core.scales };
        let docs: Vec<u32> = (0..self.layout().len()).flat_map(|doc| span(&self.core.row_at, doc).map(move |_| doc as u32)).collect();
        let vectors = (0..self.layout().len()).flat_map(|doc| self.scanned(doc)).map(|(_, vector)| vector.as_ref());
        let classes = (0..self.layout().class_count()).filter_map(|rank| self.layout().class(rank)).map(|(_, docs)| self.rows_of(&docs));
        let near = Near::build(rows, docs, vectors, classes, cfg);
        Some(Self { core: Arc::clone(&self.core), near: Some(Arc::new(near)) })
    }

    fn unfinished(&self, cfg: &PartConfig) -> bool {
        self.near.is_none() && Near::wanted(self.core.sums.len(), cfg)
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

    fn scanned(&self, doc: usize) -> &[(Role, Arc<[f32]>)] {
        self.vectors(doc).get(..span(&self.core.row_at, doc).len()).unwrap_or_default()
    }

    /// Vectors of a document.
    pub(crate) fn vectors(&self, doc: usize) -> &[(Role, Arc<[f32]>)] {
        self.core.vectors.get(span(&self.core.vector_at, doc)).unwrap_or_default()
    }

    /// Dot products of a document's vectors with the anchors.
    pub(crate) fn marks(&self, doc: usize) -> &[f32] {
        let vectors = span(&self.core.vector_at, doc);
        self.core.marks.get(vectors.start * self.core.anchors..vectors.end * self.core.anchors).unwrap_or_default()
    }

    /// Best cosine of a document among the scanned roles.
    pub(crate) fn exact(&self, doc: usize, query: &[f32]) -> Option<f32> {
        self.scanned(doc).iter().map(|(_, vector)| dot_f32(query, vector).clamp(-1.0, 1.0)).reduce(f32::max)
    }

    /// [`DensePart::exact`] after a scan: the vector that looked best is taken first, the others only if they can still be better.
    pub(crate) fn exact_after(&self, seen: &Seen, query: &[f32]) -> Option<f32> {
        let (_, vector) = self.vectors(seen.doc as usize).get(seen.best_row as usize)?;
        let score = dot_f32(query, vector).clamp(-1.0, 1.0);
        if seen.others < score { Some(score) } else { self.exact(seen.doc as usize, query) }
    }

    /// Looks at chosen rows, ascending: what they say of their documents. `near`: its own.
    pub(crate) fn look(&self, near: &Near, rows: &[u32], probe: &Probe, mut seen: impl FnMut(Seen)) {
        let mut dots = vec![(0, 0); rows.len()];
        gather_i8(Planes { hi: &probe.hi, lo: &probe.lo }, &self.core.rows, &self.core.sums, rows, &mut dots);
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
            let (Some(block), Some(sums), Some(scales), Some(losses), Some(dots), Some(edges)) = (
                self.core.rows.get(rows.start * self.core.width..rows.end * self.core.width),
                self.core.sums.get(rows.clone()),
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
