//! Capabilities by words: BM25 over weighted fields, with statistics of the visible documents and of nothing else.
//!
//! In: the texts of a capability by field; a query text. Out: slots by score (≥ 0), and evidence a slot for those who weigh the arms.
//! A word counts once a field, however often it stands there, and length only ever takes away: a longer text gains nothing by being long.
//! Invariant: two snapshots with the same visible documents give the same bits, whatever else they hold and in whatever order it came:
//! counts are integers over visible, living documents, and sums run in the order of the query.
//! Cost: about 20 µs a query over 1,000 capabilities. Not here: exact names (`names`), vectors, fusion.

mod bound;
mod evidence;
mod part;
mod query;
mod search;
#[cfg(test)]
mod tests;

use super::stack::{Part, Renewed, Stack, StackConfig, StackWriter, Upkeep};
use super::visible::Visible;
use part::LexPart;
use rayon::prelude::*;
use std::fmt;
use std::sync::Arc;

pub use bound::Bound;
pub use evidence::LexEvidence;
pub use part::Analyzed;
pub use query::LexQuery;
pub use search::LexHit;

/// Where a text of a capability stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// The intent.
    Name,
    /// Another name.
    Alias,
    /// What it does.
    Description,
    /// What a request looks like.
    Example,
    /// A tag.
    Tag,
    /// Field names and descriptions of the schemas.
    Schema,
}

impl Field {
    /// Every field.
    pub const ALL: [Field; 6] = [Field::Name, Field::Alias, Field::Description, Field::Example, Field::Tag, Field::Schema];

    pub(crate) fn bit(self) -> u8 {
        1 << (self as u8)
    }
}

/// The texts of one capability.
#[derive(Clone, Debug)]
pub struct LexDoc {
    /// Capability slot.
    pub slot: u32,
    /// Visibility class.
    pub class: u32,
    /// Texts by field, in any order; a field may occur several times.
    pub fields: Vec<(Field, String)>,
}

/// Documents from which on they are analysed on all cores.
const IN_BULK: usize = 1_024;
/// Documents of a word that [`LexSnapshot::holders`] looks through.
const MAX_HOLDERS: usize = 4_096;

/// How words are weighed.
#[derive(Clone, Debug)]
pub struct LexConfig {
    /// Sealing and merging.
    pub stack: StackConfig,
    /// Weight of a word in each field, in the order of [`Field::ALL`]. Each ≥ 0.
    pub weights: [f32; 6],
    /// Saturation. > 0.
    pub k1: f32,
    /// How much length takes away. Range 0..=1.
    pub b: f32,
    /// Weight of a word inside a longer Chinese word, of a joined form, and of a pair of characters, against 1 for a word. Each ≥ 0.
    pub inner: f32,
    /// See `inner`.
    pub joined: f32,
    /// See `inner`.
    pub pair: f32,
    /// Weight of a function word, against 1 for another word. ≥ 0.
    pub stop: f32,
    /// A word in more documents than this is not searched for when the query has a rarer one; it still counts for what is found.
    pub common: u64,
}

impl Default for LexConfig {
    fn default() -> Self {
        Self {
            stack: StackConfig::default(),
            weights: [2.0, 1.5, 1.0, 1.0, 0.8, 0.4],
            k1: 1.2,
            b: 0.5,
            inner: 0.5,
            joined: 0.3,
            pair: 0.4,
            stop: 0.3,
            common: 20_000,
        }
    }
}

/// Writer of the keyword index.
pub struct LexIndex {
    writer: StackWriter<LexPart>,
    cfg: Arc<LexConfig>,
}

impl LexIndex {
    /// An empty index.
    pub fn new(cfg: LexConfig) -> Self {
        let cfg = Arc::new(cfg);
        Self { writer: StackWriter::new(cfg.stack.clone(), Arc::clone(&cfg)), cfg }
    }

    /// Removes slots, then adds documents (a slot that is there already is replaced), and gives the new state. Copies the delta only.
    pub fn apply(&mut self, remove: &[u32], add: Vec<LexDoc>) -> Arc<LexSnapshot> {
        // a start brings the whole fleet at once
        self.apply_analyzed(
            remove,
            if add.len() < IN_BULK { add.iter().map(Analyzed::new).collect() } else { add.par_iter().map(Analyzed::new).collect() },
        )
    }

    /// [`LexIndex::apply`] for documents whose texts were analysed elsewhere, say on another thread.
    pub fn apply_analyzed(&mut self, remove: &[u32], add: Vec<Analyzed>) -> Arc<LexSnapshot> {
        self.writer.apply(remove, add);
        self.snapshot()
    }

    /// The state as it stands.
    pub fn snapshot(&self) -> Arc<LexSnapshot> {
        Arc::new(LexSnapshot { stack: self.writer.stack(), cfg: Arc::clone(&self.cfg) })
    }

    /// The most useful piece of upkeep, if any: merging parts, purging deleted documents. Cheap.
    pub fn plan(&self) -> Option<LexUpkeep> {
        self.writer.plan().map(LexUpkeep)
    }

    /// Swaps done upkeep in; nothing when it came too late.
    pub fn install(&mut self, done: LexRenewed) -> Option<Arc<LexSnapshot>> {
        self.writer.install(done.0).then(|| self.snapshot())
    }

    /// Does all upkeep there is, here and now. For bulk loads, tests and tools.
    pub fn settle(&mut self) -> Arc<LexSnapshot> {
        while let Some(work) = self.plan() {
            if self.install(work.run()).is_none() {
                break;
            }
        }
        self.snapshot()
    }
}

/// Upkeep to be run away from the writer.
pub struct LexUpkeep(Upkeep<LexPart>);

/// Upkeep that was run.
pub struct LexRenewed(Renewed<LexPart>);

impl LexUpkeep {
    /// Does the work: CPU for up to seconds on the largest parts, nothing others can see.
    pub fn run(self) -> LexRenewed {
        LexRenewed(self.0.run())
    }
}

/// An immutable state of a [`LexIndex`].
pub struct LexSnapshot {
    stack: Stack<LexPart>,
    cfg: Arc<LexConfig>,
}

impl LexSnapshot {
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.stack.alive()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of parts, the delta included.
    pub fn parts(&self) -> usize {
        self.stack.parts.len()
    }

    /// Visible documents that hold all of these words, however inflected, and all visible documents. Counts up to `limit` of the former,
    /// and gives up (as `limit`) where even the rarest word stands in very many.
    pub fn holders(&self, words: &[String], visible: &Visible, limit: u64) -> (u64, u64) {
        let (mut held, mut docs) = (0, 0);
        for live in &self.stack.parts {
            let layout = live.part.layout();
            docs += layout.visible_ranks(visible).into_iter().map(|rank| live.part.total(rank, &live.dead.scar).docs).sum::<u64>();
            let Some(ids) = words.iter().map(|word| live.part.id(word)).collect::<Option<Vec<u32>>>() else { continue };
            let Some(rarest) = ids.iter().copied().min_by_key(|id| live.part.postings(*id).0.len()) else { continue };
            let list = live.part.postings(rarest).0;
            let below = |edge: usize| list.partition_point(|doc| (*doc as usize) < edge);
            for run in layout.runs(visible) {
                let docs = list.get(below(run.start)..below(run.end)).unwrap_or_default();
                if docs.len() > MAX_HOLDERS {
                    held = limit;
                }
                let all = |doc: &&u32| !live.dead.has(**doc as usize) && ids.iter().all(|id| live.part.fields(**doc as usize, *id) != 0);
                held += docs.iter().take(MAX_HOLDERS).filter(all).take(limit as usize).count() as u64;
            }
        }
        (held.min(limit), docs)
    }

    /// Looks the query's words up and counts them over what is visible; everything else is asked of the outcome.
    pub fn bind<'a>(&'a self, query: &'a LexQuery, visible: &'a Visible) -> Bound<'a> {
        Bound::new(&self.stack, &self.cfg, query, visible)
    }
}

impl fmt::Debug for LexSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LexSnapshot").field("slots", &self.len()).field("parts", &self.parts()).finish()
    }
}
