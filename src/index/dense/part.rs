//! One immutable set of vectors: f32 for the last word, int8 rows for the scan.
//!
//! Rows of one document stand side by side, documents in the order of [`Layout`]; only scanned roles have rows.
//! A large part also has a graph over all its rows and one over each of its large classes, so that what is searched never reaches beyond
//! what is visible. Memory: `4·dim` bytes a vector (shared with whoever gave it), `dim + 12` bytes a row, about 140 a row and graph.

use super::dump::{Fingerprint, fingerprint};
use super::graph::{Graph, Rows};
use super::quant::{LANES, Probe, push_row};
use super::{DenseDoc, PartConfig, Role};
use crate::index::layout::Layout;
use crate::index::stack::{Dead, Part};
use crate::kernel::dot::{Planes, dot_f32, scan_i8};
use std::ops::Range;
use std::sync::Arc;

/// Rows scanned in one go; their dot products stay in the first-level cache.
const BLOCK: usize = 1024;

#[derive(Clone)]
pub(crate) struct DensePart {
    core: Arc<Core>,
    /// Over nested ranges of rows, widest first; nothing as long as they are not built.
    graphs: Arc<Vec<Covered>>,
}

/// A range of rows and the graph over it.
pub(crate) struct Covered {
    rows: Range<usize>,
    graph: Arc<Graph>,
}

impl Covered {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
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
        Self { core: Arc::new(part), graphs: Arc::default() }
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
        let wanted = if self.graphs.is_empty() { self.wanted(cfg) } else { Vec::new() };
        if wanted.is_empty() {
            return None;
        }
        let over = |rows: Range<usize>| {
            let cut = self.rows().cut(&rows);
            let offered = if cfg.offered.is_empty() { None } else { cfg.offered.get(&fingerprint(cut, &cfg.graph)).map(Arc::clone) };
            Covered { rows, graph: offered.unwrap_or_else(|| Arc::new(Graph::build(cut, &cfg.graph))) }
        };
        let graphs = wanted.into_iter().map(over).collect();
        Some(Self { core: Arc::clone(&self.core), graphs: Arc::new(graphs) })
    }

    fn unfinished(&self, cfg: &PartConfig) -> bool {
        self.graphs.is_empty() && self.core.sums.len() >= cfg.graph.min_rows
    }
}

fn span(at: &[u32], doc: usize) -> Range<usize> {
    let edge = |i: usize| at.get(i).map_or(0, |v| *v as usize);
    edge(doc)..edge(doc + 1)
}

/// What to look at: a range of documents, by scanning it or by a graph.
pub(crate) enum Stretch<'a> {
    Scan(Range<usize>),
    Graph(&'a Covered, Range<usize>),
}

impl DensePart {
    fn rows(&self) -> Rows<'_> {
        Rows { width: self.core.width, rows: &self.core.rows, sums: &self.core.sums, scales: &self.core.scales }
    }

    /// Rows of a range of documents.
    fn rows_of(&self, docs: &Range<usize>) -> Range<usize> {
        let edge = |doc: usize| self.core.row_at.get(doc).map_or(0, |row| *row as usize);
        edge(docs.start)..edge(docs.end)
    }

    /// Ranges of rows that want a graph: everything, and each large class if there are several.
    fn wanted(&self, cfg: &PartConfig) -> Vec<Range<usize>> {
        let mut wanted: Vec<Range<usize>> = Vec::new();
        let all = 0..self.core.sums.len();
        let classes = (0..self.layout().class_count()).filter_map(|rank| self.layout().class(rank)).map(|(_, docs)| self.rows_of(&docs));
        for range in std::iter::once(all).chain(classes) {
            if range.len() >= cfg.graph.min_rows.max(2) && !wanted.contains(&range) {
                wanted.push(range);
            }
        }
        wanted
    }

    /// Splits visible runs into what a graph covers exactly and the rest.
    pub(crate) fn stretches(&self, runs: Vec<Range<usize>>) -> Vec<Stretch<'_>> {
        if self.graphs.is_empty() {
            return runs.into_iter().map(Stretch::Scan).collect();
        }
        let mut out: Vec<Stretch<'_>> = Vec::new();
        let covers = |docs: &Range<usize>| self.graphs.iter().find(|graph| graph.rows == self.rows_of(docs));
        for run in runs {
            if let Some(graph) = covers(&run) {
                out.push(Stretch::Graph(graph, run));
                continue;
            }
            // class by class
            let mut from = run.start;
            while let Some((_, docs)) = self.layout().class(self.layout().rank_of(from)).filter(|_| from < run.end) {
                from = docs.end;
                match (covers(&docs), out.last_mut()) {
                    (Some(graph), _) => out.push(Stretch::Graph(graph, docs)),
                    (None, Some(Stretch::Scan(last))) if last.end == docs.start => last.end = docs.end,
                    (None, Some(_) | None) => out.push(Stretch::Scan(docs)),
                }
            }
        }
        out
    }

    /// Documents that a graph finds near, each once, and the score below which there may be more.
    pub(crate) fn ask(&self, graph: &Covered, dead: &Dead<()>, probe: &Probe, ef: usize) -> (Vec<Seen>, f32) {
        let rows = graph.graph.search(self.rows().cut(&graph.rows), probe, ef);
        let floor = if rows.len() < ef { f32::NEG_INFINITY } else { rows.last().map_or(f32::NEG_INFINITY, |(_, score)| *score) };
        let margin = probe.margin(0.0, self.core.longest);
        let mut seen: Vec<Seen> = rows
            .into_iter()
            .map(|(node, score)| {
                let row = node + graph.rows.start as u32;
                let doc = self.core.row_at.partition_point(|first| *first <= row).saturating_sub(1);
                let most = score + margin + probe.margin(1.0, 0.0) * self.core.losses.get(row as usize).copied().unwrap_or_default();
                // its other rows were not looked at
                Seen { doc: doc as u32, score, most, others: f32::INFINITY, best_row: 0 }
            })
            .filter(|seen| !dead.has(seen.doc as usize))
            .collect();
        seen.sort_by(|a, b| a.doc.cmp(&b.doc).then(b.most.total_cmp(&a.most)));
        seen.dedup_by_key(|seen| seen.doc);
        (seen, floor)
    }

    /// Its graphs, each with the fingerprint of the rows it belongs to.
    pub(crate) fn dump(&self, cfg: &PartConfig) -> impl Iterator<Item = (Fingerprint, &Graph)> {
        self.graphs.iter().map(|of| (fingerprint(self.rows().cut(&of.rows), &cfg.graph), of.graph.as_ref()))
    }

    /// Number of graphs.
    pub(crate) fn graphs(&self) -> usize {
        self.graphs.len()
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
        let scanned = self.vectors(doc).get(..span(&self.core.row_at, doc).len()).unwrap_or_default();
        scanned.iter().map(|(_, vector)| dot_f32(query, vector).clamp(-1.0, 1.0)).reduce(f32::max)
    }

    /// [`DensePart::exact`] after a scan: the vector that looked best is taken first, the others only if they can still be better.
    pub(crate) fn exact_after(&self, seen: &Seen, query: &[f32]) -> Option<f32> {
        let (_, vector) = self.vectors(seen.doc as usize).get(seen.best_row as usize)?;
        let score = dot_f32(query, vector).clamp(-1.0, 1.0);
        if seen.others < score { Some(score) } else { self.exact(seen.doc as usize, query) }
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
