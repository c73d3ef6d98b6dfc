//! A fleet of one that nobody sees: readiness routes a query over it, so that "ready" means that routing works, also on an empty fleet.

use super::engine::{ArmWriter, Engine};
use super::{Ingest, vectors::ByText};
use crate::embed::worker::WorkClass;
use crate::error::Error;
use crate::index::dense::DenseConfig;
use crate::index::keyword::LexConfig;
use crate::store::Registered;
use crate::types::hash::ContentHash;
use crate::types::manifest_check;
use crate::view::{View, Views};
use serde_json::json;
use std::sync::Arc;

/// The request that finds the canary.
pub const QUERY: &str = "check that the routing service works";
/// What must be found.
pub const CAPABILITY: &str = "routing_self_test";

impl Ingest {
    /// Builds the canary's View with the loaded models.
    pub async fn canary(&self) -> Result<Arc<Views>, Error> {
        let document = json!({
            "namespace": "reach-canary", "agent_id": "canary", "ttl": "none", "visible_to": ["*"],
            "endpoints": [{"protocol": "pull"}],
            "capabilities": [{
                "intent": CAPABILITY,
                "description": {"en": "Checks that the routing service itself works", "zh": "检查路由服务本身是否正常工作"},
                "examples": [QUERY, "检查路由服务是否正常"],
            }],
        });
        let checked = manifest_check::check(&document, &self.config.rules).map_err(Error::invalid)?;
        let manifest = Arc::new(checked.manifest);
        let current = self.views.load();
        let (by_arm, _): (Vec<ByText>, usize) =
            self.vectors_of(&current.models, std::slice::from_ref(&manifest), WorkClass::Ingest).await?;
        let view = View { catalog: Default::default(), arms: Vec::new(), pending: 0, learned: Arc::default(), ..View::clone(&current) };
        let views = Arc::new(Views::new(view));
        let arms = current.arms.iter().map(|a| ArmWriter::new(a.model.clone(), DenseConfig::default(), a.background.clone())).collect();
        let mut engine = Engine::new(current.models.clone(), arms, LexConfig::default(), views.clone());
        let registered = Registered {
            hash: ContentHash::of_manifest(&manifest),
            manifest,
            generation: 1,
            owner: Arc::from("reach"),
            registered_ms: 0,
            changed_ms: 0,
            draining: false,
        };
        let delta = engine.catalog.register(&registered, &self.schemas);
        engine.apply(&delta, Some(&by_arm));
        engine.publish();
        Ok(views)
    }
}
