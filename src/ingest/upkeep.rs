//! Upkeep of the indexes beside the service: merges small parts, rewrites parts with many deleted documents, makes sketches and lists.
//!
//! Registrations only append and mark as deleted; without this a fleet that changes for days would grow by everything it ever was. The plan is made
//! under the writer's lock (cheap), the work runs on a thread of its own (seconds for large parts), its outcome is swapped in under the lock again.
//! Invariant: answers are the same before and after, but for what an approximate search may miss, which is measured ([`Ingest::measured_recall`]).
//! Not here: what is worth doing (`index::stack`).

use super::Ingest;
use crate::error::Error;
use crate::index::dense::{DenseRenewed, DenseUpkeep};
use crate::index::keyword::{LexRenewed, LexUpkeep};
use crate::telemetry::metrics::{Counter, count};
use std::sync::Arc;

/// Queries that recall is measured with.
const SAMPLE: usize = 32;
/// Nearest neighbours that each of them must find.
const NEAREST: usize = 10;

/// A piece of upkeep to be run.
pub enum Upkeep {
    /// Of the keyword index.
    Words(LexUpkeep),
    /// Of the vectors of the model with this fingerprint.
    Vectors(Arc<str>, DenseUpkeep),
}

/// A piece of upkeep that was run.
pub enum Renewed {
    /// Of the keyword index.
    Words(Box<LexRenewed>),
    /// Of the vectors of the model with this fingerprint.
    Vectors(Arc<str>, DenseRenewed),
}

impl Upkeep {
    /// Does the work.
    pub fn run(self) -> Renewed {
        match self {
            Self::Words(work) => Renewed::Words(Box::new(work.run())),
            Self::Vectors(model, work) => Renewed::Vectors(model, work.run()),
        }
    }
}

impl Ingest {
    /// Does one piece of upkeep, if one is due, while others register and ask. Whether anything was done; call it until it is not.
    pub async fn upkeep(&self) -> Result<bool, Error> {
        let Some(work) = self.engine.lock().await.plan() else { return Ok(false) };
        let done = tokio::task::spawn_blocking(move || work.run()).await.map_err(Error::internal)?;
        let fitted = self.engine.lock().await.install(done);
        if fitted {
            count(Counter::IndexRebuilds, &[]);
        }
        Ok(fitted)
    }

    /// Slots with vectors, by model.
    pub fn index_size(&self) -> Vec<(Arc<str>, usize)> {
        self.views.load().arms.iter().map(|arm| (arm.model.name.clone(), arm.dense.len())).collect()
    }

    /// Share of the true nearest neighbours that searches find, by model: 1 where searches are exact. Some exact scans: for a metric, once in a while.
    pub async fn measured_recall(&self) -> Result<Vec<(Arc<str>, f64)>, Error> {
        let view = self.views.load();
        let measure = move || view.arms.iter().map(|arm| (arm.model.name.clone(), arm.dense.measured_recall(SAMPLE, NEAREST))).collect();
        tokio::task::spawn_blocking(measure).await.map_err(Error::internal)
    }
}
