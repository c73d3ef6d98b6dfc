//! Tokens and the principals they stand for. Stored as SHA-256 of the token, never the token itself.

use crate::config::reader::Reader;
use crate::types::{Grant, Namespace, Principal};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// `[auth]`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// Tokens; when there are none, every caller is the one local principal.
    pub tokens: Vec<Token>,
}

/// `[[auth.tokens]]`: one token.
#[derive(Clone, PartialEq)]
pub struct Token {
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
    /// Who calls with it.
    pub principal: Principal,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({})", self.principal.caller)
    }
}

impl Auth {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        let tokens = r.tables("tokens", |r| {
            let sha256 = read_hash(r);
            let caller = r.text("caller", "");
            if caller.is_empty() {
                r.fault("caller", "a name", "say who calls with this token");
            }
            let tenant = r.optional("tenant");
            let namespaces = r.list("namespaces", &[]);
            for name in namespaces.iter().filter(|n| *n != "*") {
                if let Err(expected) = Namespace::new(name) {
                    r.fault("namespaces", expected, format!("{name:?} is none; \"*\" alone means all"));
                }
            }
            let scopes = r.list("scopes", &[]);
            let principal = Principal {
                caller: Arc::from(caller),
                tenant: tenant.map(Arc::from),
                namespaces: grant(&namespaces),
                scopes: grant(&scopes),
            };
            Token { sha256, principal }
        });
        for (i, token) in tokens.iter().enumerate() {
            if tokens.iter().take(i).any(|t| t.sha256 == token.sha256) {
                r.fault(&format!("tokens[{i}].sha256"), "a token that no other entry has", "make one with `reach token new`");
            }
        }
        Self { tokens }
    }
}

fn read_hash(r: &mut Reader<'_>) -> [u8; 32] {
    let text = r.text("sha256", "");
    let mut hash = [0; 32];
    if hex::decode_to_slice(&text, &mut hash).is_err() {
        r.fault("sha256", "64 hexadecimal digits", "write the hash that `reach token new` printed, not the token");
    }
    hash
}

fn grant(names: &[String]) -> Grant {
    if names.iter().any(|n| n == "*") { Grant::All } else { Grant::Only(names.iter().map(|n| Arc::from(n.as_str())).collect()) }
}

/// SHA-256 of a token, as it is stored.
pub fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A new token: 256 random bits as text.
pub fn new_token() -> Result<String, String> {
    let mut bits = [0u8; 32];
    getrandom::fill(&mut bits).map_err(|e| format!("the system gave no random bits: {e}"))?;
    Ok(format!("reach_{}", hex::encode(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn tokens_become_principals() {
        let token = new_token().unwrap();
        assert_ne!(token, new_token().unwrap());
        let text = format!(
            "[[auth.tokens]]\nsha256 = \"{}\"\ncaller = \"bot\"\ntenant = \"acme\"\nnamespaces = [\"orders\", \"hr/payroll\"]\nscopes = [\"*\"]\n",
            hex::encode(hash(&token))
        );
        let auth = Config::parse(&text, &[]).unwrap().auth;
        assert_eq!(auth.tokens[0].sha256, hash(&token));
        assert!(auth.tokens[0].principal.namespaces.has("orders") && !auth.tokens[0].principal.namespaces.has("hr"));
        assert_eq!(auth.tokens[0].principal.scopes, Grant::All);
        assert!(!format!("{auth:?}").contains(&hex::encode(hash(&token))), "hashes stay out of logs");
        let twice = Config::parse(&format!("{text}{text}"), &[]).unwrap_err();
        assert_eq!(twice.faults[0].pointer, "auth.tokens[1].sha256");
    }
}
