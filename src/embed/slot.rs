//! The place where the models will be: empty while they load, then full, or a standing reason why not.
//!
//! Invariant: nobody is ever answered from nothing. A request before the models are there gets `warming`, or waits; after a failed load it gets the
//! reason, not `warming` for ever.

use super::EmbedError;
use super::models::Models;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

type State = Option<Result<Arc<Models>, EmbedError>>;

/// A slot for the models.
#[derive(Clone)]
pub struct ModelsSlot {
    state: Arc<watch::Sender<State>>,
}

impl Default for ModelsSlot {
    fn default() -> Self {
        Self { state: Arc::new(watch::Sender::new(None)) }
    }
}

impl ModelsSlot {
    /// A slot that is full from the start.
    pub fn ready(models: Arc<Models>) -> Self {
        let slot = Self::default();
        slot.set(Ok(models));
        slot
    }

    /// Puts in the models, or the reason why there are none; replaces what was there.
    pub fn set(&self, loaded: Result<Arc<Models>, EmbedError>) {
        self.state.send_replace(Some(loaded));
    }

    /// The models now, or [`EmbedError::Warming`], or why loading failed.
    pub fn get(&self) -> Result<Arc<Models>, EmbedError> {
        self.state.borrow().clone().unwrap_or(Err(EmbedError::Warming))
    }

    /// The models, waiting for them at most `limit`.
    pub async fn wait(&self, limit: Duration) -> Result<Arc<Models>, EmbedError> {
        let mut changes = self.state.subscribe();
        let full = tokio::time::timeout(limit, changes.wait_for(Option::is_some)).await;
        match full {
            Ok(Ok(state)) => state.clone().unwrap_or(Err(EmbedError::Warming)),
            Ok(Err(_)) => Err(EmbedError::Stopped),
            Err(_) => Err(EmbedError::Warming),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::fakes;

    #[tokio::test]
    async fn warming_then_ready_for_all_who_waited() {
        let slot = ModelsSlot::default();
        assert_eq!(slot.get().err(), Some(EmbedError::Warming));
        assert_eq!(slot.wait(Duration::from_millis(1)).await.err(), Some(EmbedError::Warming));
        let waiting = futures::future::join_all((0..50).map(|_| slot.wait(Duration::from_secs(20))));
        let models = Arc::new(fakes());
        let (got, ()) = futures::join!(waiting, async { slot.set(Ok(models.clone())) });
        assert!(got.into_iter().all(|m| Arc::ptr_eq(&m.unwrap(), &models)), "one load serves all");
    }

    #[tokio::test]
    async fn a_failed_load_is_a_reason_not_a_wait() {
        let slot = ModelsSlot::default();
        slot.set(Err(EmbedError::Missing("no weights".into())));
        assert_eq!(slot.get().err(), Some(EmbedError::Missing("no weights".into())));
        assert_eq!(slot.wait(Duration::from_secs(20)).await.err(), Some(EmbedError::Missing("no weights".into())));
    }
}
