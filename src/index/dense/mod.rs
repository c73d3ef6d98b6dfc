//! Nearest capabilities by cosine, over the vectors of one model.
//!
//! In: L2-normalised vectors, one or more a slot, each with its role. Out: slots by the best cosine among the scanned roles, and where that
//! stands among all visible slots. Where little is visible the result equals a plain scan of about 15 bits a value: int8 only chooses what is
//! rescored, with a proven error bound. Where much is visible, one-bit sketches choose what int8 looks at (`sketch`), and of very much only the nearest lists are
//! read (`lists`); what that finds is measured against the scan.
//! Cost: about 25 µs for 1,000 slots of 3 vectors of 512 dimensions.
//! Not here: comparing two models (their cosines are not comparable), calibration.

mod lists;
mod near;
mod packed;
mod part;
mod quant;
mod recall;
mod search;
mod sketch;
#[cfg(test)]
mod tests;

use super::slots::Slots;
use super::stack::{Renewed, Stack, StackConfig, StackWriter, Upkeep};
use super::visible::Visible;
use packed::Packed;
use part::DensePart;
use quant::LANES;
use search::Scope;
use sketch::Sketcher;
use std::fmt;
use std::sync::Arc;

pub use near::NearConfig;
pub use quant::Probe;
pub use search::{Background, DenseHits};

/// What a vector of a capability was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The name alone; stored for rescoring, not scanned.
    Name,
    /// The description alone; stored for rescoring, not scanned.
    Description,
    /// Field names and words of the schema; stored for rescoring, not scanned.
    Schema,
    /// Agent, name, aliases and tags in words; stored for rescoring, not scanned.
    Label,
    /// Name and description together; scanned.
    Both,
    /// An example of the manifest; scanned.
    Example,
    /// An example learned from outcomes; scanned.
    Learned,
}

impl Role {
    /// Whether a search looks at vectors of this role.
    pub fn is_scanned(self) -> bool {
        match self {
            Self::Both | Self::Example | Self::Learned => true,
            Self::Name | Self::Description | Self::Schema | Self::Label => false,
        }
    }
}

/// The vectors of one capability.
#[derive(Clone)]
pub struct DenseDoc {
    /// Capability slot.
    pub slot: u32,
    /// Visibility class.
    pub class: u32,
    /// L2-normalised vectors. Those of another dimension than the index, or not finite, are left out.
    pub vectors: Vec<(Role, Arc<[f32]>)>,
}

impl fmt::Debug for DenseDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseDoc").field("slot", &self.slot).field("class", &self.class).field("vectors", &self.vectors.len()).finish()
    }
}

/// How a dense index is built and searched.
#[derive(Clone, Debug, Default)]
pub struct DenseConfig {
    /// Sealing and merging.
    pub stack: StackConfig,
    /// When searches are approximate, and how near they come.
    pub near: NearConfig,
}

#[derive(Clone)]
pub(crate) struct PartConfig {
    dim: usize,
    near: NearConfig,
    sketcher: Arc<Sketcher>,
    /// Fixed vectors to which every vector's dot products are kept.
    anchors: Arc<[Arc<[f32]>]>,
}

/// Writer of the vectors of one model.
pub struct DenseIndex {
    writer: StackWriter<DensePart>,
    part: PartConfig,
}

impl DenseIndex {
    /// An empty index for vectors of `dim` dimensions.
    pub fn new(dim: usize, cfg: DenseConfig) -> Self {
        Self::with_anchors(dim, cfg, Vec::new())
    }

    /// An empty index that also keeps the dot products of every vector with each of `anchors` (see [`DenseSnapshot::cosines`]). The first of them
    /// should be near the mean of all vectors: sketches are made of what sets a vector apart from it.
    pub fn with_anchors(dim: usize, cfg: DenseConfig, anchors: Vec<Arc<[f32]>>) -> Self {
        let sketcher = Arc::new(Sketcher::new(dim, anchors.first().map(|a| a.as_ref()).unwrap_or_default()));
        let part = PartConfig { dim, near: cfg.near, sketcher, anchors: anchors.into() };
        Self { writer: StackWriter::new(cfg.stack, part.clone()), part }
    }

    /// Removes slots, then adds documents (a slot that is there already is replaced), and gives the new state. Copies the delta only.
    pub fn apply(&mut self, remove: &[u32], add: Vec<DenseDoc>) -> Arc<DenseSnapshot> {
        self.writer.apply(remove, add.into_iter().map(|doc| Packed::of(doc, &self.part)).collect());
        self.snapshot()
    }

    /// The state as it stands.
    pub fn snapshot(&self) -> Arc<DenseSnapshot> {
        Arc::new(DenseSnapshot { stack: self.writer.stack(), part: self.part.clone() })
    }

    /// The most useful piece of upkeep, if any: merging parts, purging deleted documents, making sketches and lists. Cheap.
    pub fn plan(&self) -> Option<DenseUpkeep> {
        self.writer.plan().map(DenseUpkeep)
    }

    /// Swaps done upkeep in; nothing when it came too late.
    pub fn install(&mut self, done: DenseRenewed) -> Option<Arc<DenseSnapshot>> {
        self.writer.install(done.0).then(|| self.snapshot())
    }

    /// Does all upkeep there is, here and now. For bulk loads, tests and tools; a server runs [`DenseIndex::plan`] in the background.
    pub fn settle(&mut self) -> Arc<DenseSnapshot> {
        while let Some(work) = self.plan() {
            if self.install(work.run()).is_none() {
                break;
            }
        }
        self.snapshot()
    }
}

/// Upkeep to be run away from the writer.
pub struct DenseUpkeep(Upkeep<DensePart>);

/// Upkeep that was run.
pub struct DenseRenewed(Renewed<DensePart>);

impl DenseUpkeep {
    /// Does the work: CPU for up to minutes on the largest parts, nothing others can see.
    pub fn run(self) -> DenseRenewed {
        DenseRenewed(self.0.run())
    }
}

/// An immutable state of a [`DenseIndex`].
pub struct DenseSnapshot {
    stack: Stack<DensePart>,
    part: PartConfig,
}

impl DenseSnapshot {
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.stack.alive()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Dimensions of a vector.
    pub fn dim(&self) -> usize {
        self.part.dim
    }

    /// Number of parts, the delta included.
    pub fn parts(&self) -> usize {
        self.stack.parts.len()
    }

    /// The `k` visible slots nearest to `query` that `gate` lets through, and how all visible slots stand to it.
    ///
    /// A slot counts with its best vector among the scanned roles. `gate` is asked only for slots that would be hits.
    /// A query of another dimension, or one that is not finite, finds nothing.
    pub fn search(&self, query: &[f32], visible: &Visible, k: usize, gate: &mut dyn FnMut(u32) -> bool) -> DenseHits {
        self.find(query, &Scope { visible, among: None, exact: false }, k, gate)
    }

    /// [`DenseSnapshot::search`] for a query that is a probe already, where given for slots of `among` only; how the query stands to others is still
    /// told of all that is visible.
    pub fn nearest(
        &self,
        probe: &Probe,
        visible: &Visible,
        among: Option<&Slots>,
        k: usize,
        gate: &mut dyn FnMut(u32) -> bool,
    ) -> DenseHits {
        search::run(&self.stack, &self.part, probe, &Scope { visible, among, exact: false }, k, gate)
    }

    /// [`DenseSnapshot::search`] without sketches: exact whatever the size.
    pub fn search_exact(&self, query: &[f32], visible: &Visible, k: usize, gate: &mut dyn FnMut(u32) -> bool) -> DenseHits {
        self.find(query, &Scope { visible, among: None, exact: true }, k, gate)
    }

    fn find(&self, query: &[f32], scope: &Scope<'_>, k: usize, gate: &mut dyn FnMut(u32) -> bool) -> DenseHits {
        self.probe(query).map(|probe| search::run(&self.stack, &self.part, &probe, scope, k, gate)).unwrap_or_default()
    }

    /// Number of ranges of vectors that are parted into lists.
    pub fn lists(&self) -> usize {
        self.stack.parts.iter().filter_map(|live| live.part.near()).map(near::Near::lists).sum()
    }

    /// Whether a search of everything is approximate.
    pub fn is_approximate(&self) -> bool {
        search::is_approximate(&self.stack, &self.part, &Visible::All)
    }

    /// Share of the true `k` nearest slots that searches find, over about `sample` queries made from the vectors themselves; 1 where
    /// searches are exact.
    ///
    /// Costs a full scan a query: for a metric, once in a while, never on a request's way.
    pub fn measured_recall(&self, sample: usize, k: usize) -> f64 {
        recall::measure(self, sample, k)
    }

    /// A query as the index compares it; nothing if it has another dimension or is not finite.
    pub fn probe(&self, query: &[f32]) -> Option<Probe> {
        let dim = self.part.dim;
        (dim > 0 && query.len() == dim && query.iter().all(|v| v.is_finite())).then(|| Probe::new(query, dim.div_ceil(LANES) * LANES))
    }

    /// All vectors of a slot, made again from what is kept of them: of scanned roles to about five digits, of others to about three.
    pub fn vectors(&self, slot: u32) -> impl Iterator<Item = (Role, Vec<f32>)> {
        self.part_of(slot).into_iter().flat_map(|(part, doc)| part.vectors(doc))
    }

    /// Cosine of each vector of a slot, and the vector's dot products with the anchors of the index, in their order.
    pub fn cosines<'a>(&'a self, probe: &Probe, slot: u32, each: impl FnMut(Role, f32, &'a [f32])) {
        if let Some((part, doc)) = self.part_of(slot) {
            part.cosines(doc, probe, each);
        }
    }

    /// Best cosine of a slot among the scanned roles.
    pub fn score(&self, probe: &Probe, slot: u32) -> Option<f32> {
        self.part_of(slot).and_then(|(part, doc)| part.exact(doc, probe))
    }

    fn part_of(&self, slot: u32) -> Option<(&DensePart, usize)> {
        let (at, doc) = self.stack.find(slot)?;
        Some((&*self.stack.parts.get(at)?.part, doc))
    }
}

impl fmt::Debug for DenseSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseSnapshot").field("slots", &self.len()).field("dim", &self.part.dim).field("parts", &self.parts()).finish()
    }
}
