//! Who calls, and what they may see.

use crate::types::id::Namespace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Scope of operators: policy, models, and figures that tell of other tenants.
pub const ADMIN: &str = "admin";
/// Scope that lets an agent be granted to namespaces that are not the publisher's own: `publish` for all of them (`*` included), `publish:NAMESPACE` for one.
pub const PUBLISH: &str = "publish";

/// What a principal was granted of one kind (namespaces or scopes).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// Everything: the one local principal of a node without configured tokens.
    All,
    /// Only the named ones, compared as exact text.
    Only(BTreeSet<Arc<str>>),
}

impl Grant {
    /// Whether `name` is granted.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(set) => set.contains(name),
        }
    }

    /// The part of this grant that `wanted` asks for; a request may narrow its credential, never widen it.
    pub fn narrowed(&self, wanted: &[String]) -> Self {
        match self {
            Self::All => Self::Only(wanted.iter().map(|w| Arc::from(w.as_str())).collect()),
            Self::Only(set) => Self::Only(set.iter().filter(|s| wanted.iter().any(|w| **w == ***s)).cloned().collect()),
        }
    }
}

/// The caller of an operation. Comes from the credential; a request body may only narrow it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Principal {
    /// Caller id, for history and audit.
    pub caller: Arc<str>,
    /// Tenant the caller belongs to; history is kept apart per tenant.
    pub tenant: Option<Arc<str>>,
    /// Namespaces it belongs to or was granted.
    pub namespaces: Grant,
    /// Scopes it holds.
    pub scopes: Grant,
}

impl Principal {
    /// The one principal of a node without configured tokens: sees everything, its caller name is taken at its word.
    pub fn local(caller: &str) -> Self {
        Self { caller: Arc::from(caller), tenant: None, namespaces: Grant::All, scopes: Grant::All }
    }

    /// Whether it may see an agent of namespace `own` that is granted to `visible_to` (`*` = everyone).
    pub fn sees(&self, own: &Namespace, visible_to: &[Arc<str>]) -> bool {
        self.namespaces.has(own.as_str()) || visible_to.iter().any(|v| &**v == "*" || self.namespaces.has(v))
    }

    /// Whether it may know what the whole node does: counts that rise with everybody's work, names of agents it does not see.
    pub fn is_operator(&self) -> bool {
        self.namespaces == Grant::All || self.scopes.has(ADMIN)
    }

    /// Whether it may grant its agents to `namespace` (`*` = everyone): its own ones always, others by a scope.
    pub fn may_grant(&self, namespace: &str) -> bool {
        self.namespaces.has(namespace)
            || [ADMIN, PUBLISH].iter().any(|s| self.scopes.has(s))
            || self.scopes.has(&format!("{PUBLISH}:{namespace}"))
    }

    /// Whether it may write (register, drain, deregister) in namespace `own`.
    pub fn owns(&self, own: &Namespace) -> bool {
        self.namespaces.has(own.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_not_namespaces() {
        let p = Principal { namespaces: Grant::Only([Arc::from("acme")].into()), ..Principal::local("t") };
        assert!(p.sees(&Namespace::new("acme").unwrap(), &[]));
        assert!(!p.sees(&Namespace::new("acme-corp").unwrap(), &[]));
        assert!(!p.sees(&Namespace::new("acme/x").unwrap(), &[]));
        assert!(p.sees(&Namespace::new("other").unwrap(), &[Arc::from("acme")]));
    }

    #[test]
    fn who_may_grant_to_whom() {
        let with = |scopes: &[&str]| Principal {
            namespaces: Grant::Only([Arc::from("acme")].into()),
            scopes: Grant::Only(scopes.iter().map(|s| Arc::from(*s)).collect()),
            ..Principal::local("t")
        };
        assert!(with(&[]).may_grant("acme") && !with(&[]).may_grant("other") && !with(&["refund:write"]).may_grant("*"));
        assert!(with(&["publish"]).may_grant("*") && with(&["publish"]).may_grant("other"));
        assert!(with(&["publish:other"]).may_grant("other") && !with(&["publish:other"]).may_grant("*"));
        assert!(with(&["publish:*"]).may_grant("*") && !with(&["publish:*"]).may_grant("other"), "everyone is one name of its own");
        assert!(with(&["admin"]).may_grant("*") && Principal::local("t").may_grant("*"));
        assert!(with(&["admin"]).is_operator() && !with(&["publish"]).is_operator() && Principal::local("t").is_operator());
    }

    #[test]
    fn a_body_narrows_but_never_widens() {
        let g = Grant::Only([Arc::from("a"), Arc::from("b")].into());
        assert_eq!(g.narrowed(&["b".into(), "c".into()]), Grant::Only([Arc::from("b")].into()));
    }
}
