//! Visibility classes: agents that the same namespaces may see share one small number.
//!
//! A class is an interned pair of owning namespace and granted namespaces. An index keeps documents by class, so that what a principal may not
//! see is never touched. Invariants: numbers are never reused while the process lives; a principal's classes are exactly those whose
//! agents [`Principal::sees`]. Cost: one look-up for each namespace of the principal, not for each class.
//! Not here: scopes, regions and everything else that the filter asks (`route::filter`).

use crate::types::{Grant, Manifest, Namespace, Principal};
use std::sync::Arc;

/// Owning namespace and what it is granted to, sorted, each once.
type Definition = (Namespace, Arc<[Arc<str>]>);

/// All classes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    numbers: imbl::HashMap<Definition, u32>,
    /// Classes that a holder of the namespace sees, ascending.
    by_namespace: imbl::HashMap<Arc<str>, Arc<[u32]>>,
    /// Classes granted to everybody, ascending.
    public: Arc<[u32]>,
}

impl Classes {
    /// The class of a manifest, made when it is new.
    pub fn intern(&mut self, manifest: &Manifest) -> u32 {
        let mut granted: Vec<Arc<str>> = manifest.visible_to.iter().filter(|g| &***g != manifest.namespace.as_str()).cloned().collect();
        granted.sort_unstable();
        granted.dedup();
        if granted.iter().any(|g| &**g == "*") {
            // who is named beside everybody does not matter
            granted = vec![Arc::from("*")];
        }
        let definition: Definition = (manifest.namespace.clone(), granted.into());
        if let Some(known) = self.numbers.get(&definition) {
            return *known;
        }
        let number = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let own: Arc<str> = Arc::from(definition.0.as_str());
        for name in std::iter::once(&own).chain(definition.1.iter()) {
            if &**name == "*" {
                self.public = with(&self.public, number);
            } else {
                let seen = self.by_namespace.get(name).map_or_else(|| Arc::from([number].as_slice()), |s| with(s, number));
                self.by_namespace.insert(name.clone(), seen);
            }
        }
        self.numbers.insert(definition, number);
        number
    }

    /// The classes a principal sees, ascending; `None` = all of them.
    pub fn visible(&self, principal: &Principal) -> Option<Vec<u32>> {
        let names = match &principal.namespaces {
            Grant::All => return None,
            Grant::Only(names) => names,
        };
        let mut seen: Vec<u32> = self.public.to_vec();
        for name in names {
            seen.extend(self.by_namespace.get(name).iter().flat_map(|s| s.iter()));
        }
        seen.sort_unstable();
        seen.dedup();
        Some(seen)
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

/// `list` with one more number; numbers only grow, so it stays sorted.
fn with(list: &Arc<[u32]>, number: u32) -> Arc<[u32]> {
    list.iter().copied().chain(std::iter::once(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::manifest_check::{Rules, check};
    use proptest::prelude::*;
    use serde_json::json;

    fn manifest(namespace: &str, visible_to: &[String]) -> Manifest {
        let value = json!({"namespace": namespace, "agent_id": "a", "endpoints": [{"protocol": "pull"}], "visible_to": visible_to,
            "capabilities": [{"intent": "x_y", "description": "x"}]});
        check(&value, &Rules::default()).unwrap().manifest
    }

    fn principal(names: &[String]) -> Principal {
        Principal { namespaces: Grant::Only(names.iter().map(|n| Arc::from(n.as_str())).collect()), ..Principal::local("t") }
    }

    #[test]
    fn order_and_repeats_make_no_new_class() {
        let mut classes = Classes::default();
        let a = classes.intern(&manifest("n", &["b".into(), "a".into(), "b".into(), "n".into()]));
        assert_eq!(classes.intern(&manifest("n", &["a".into(), "b".into()])), a);
        assert_ne!(classes.intern(&manifest("m", &["a".into(), "b".into()])), a);
        assert_eq!(classes.len(), 2);
        assert_eq!(classes.visible(&Principal::local("t")), None);
    }

    proptest! {
        #[test]
        fn classes_say_what_principals_see(
            agents in prop::collection::vec(("[abc](/[xy])?", prop::collection::vec("[abc*]", 0..3)), 1..12),
            held in prop::collection::vec("[abc](/[xy])?", 0..3),
        ) {
            let mut classes = Classes::default();
            let principal = principal(&held);
            let known: Vec<(Manifest, u32)> = agents.iter().map(|(n, v)| { let m = manifest(n, v); let c = classes.intern(&m); (m, c) }).collect();
            let visible = classes.visible(&principal).unwrap();
            for (m, class) in &known {
                prop_assert_eq!(visible.binary_search(class).is_ok(), principal.sees(&m.namespace, &m.visible_to), "{} {:?}", m.namespace, m.visible_to);
            }
        }
    }
}
