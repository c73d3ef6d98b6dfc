//! From a credential to a principal: one function for every door.
//!
//! Invariant: whatever is wrong with a credential (absent, empty, huge, unknown, a prefix of a good one, given twice), the
//! answer is the same `unauthenticated`, after the same work: one hash and one comparison with every stored hash.
//! Not here: what a principal may do (behind the ports).

use crate::config::Auth;
use crate::config::auth::hash;
use crate::error::{Code, Error};
use crate::types::Principal;
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Longest token that is looked at; a longer one is none of ours.
const MAX_TOKEN: usize = 512;

/// Knows the tokens.
#[derive(Clone, Debug, Default)]
pub struct Authenticator {
    auth: Auth,
}

impl Authenticator {
    /// With the configured tokens; without any, everybody is the local principal.
    pub fn new(auth: Auth) -> Self {
        Self { auth }
    }

    /// Whether callers need a token.
    pub fn required(&self) -> bool {
        !self.auth.tokens.is_empty()
    }

    /// The principal of a request by its `authorization` headers (all of them: two are none).
    pub fn principal<'a>(&self, headers: impl IntoIterator<Item = &'a [u8]>) -> Result<Principal, Error> {
        if !self.required() {
            return Ok(Principal::local("local"));
        }
        let mut headers = headers.into_iter();
        let token = match (headers.next(), headers.next()) {
            (Some(one), None) => bearer(one).unwrap_or(""),
            (None, _) | (Some(_), Some(_)) => "",
        };
        let given = hash(token);
        let (mut found, mut at) = (subtle::Choice::from(0), 0u64);
        for (i, known) in (0u64..).zip(&self.auth.tokens) {
            let same = known.sha256.ct_eq(&given);
            at = u64::conditional_select(&at, &i, same);
            found |= same;
        }
        let known = usize::try_from(at).ok().and_then(|i| self.auth.tokens.get(i));
        match known {
            Some(known) if bool::from(found) => Ok(known.principal.clone()),
            Some(_) | None => Err(Error::new(Code::Unauthenticated, "a valid token is needed: send `authorization: Bearer TOKEN`")),
        }
    }
}

fn bearer(header: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Token;
    use crate::types::Grant;
    use std::sync::Arc;

    fn tokens(names: &[&str]) -> Authenticator {
        let token = |name: &&str| Token {
            sha256: hash(&format!("token-of-{name}")),
            principal: Principal { namespaces: Grant::Only([Arc::from(*name)].into()), ..Principal::local(name) },
        };
        Authenticator::new(Auth { tokens: names.iter().map(token).collect() })
    }

    #[test]
    fn each_token_is_its_principal() {
        let auth = tokens(&["a", "b", "c"]);
        for name in ["a", "b", "c"] {
            let header = format!("bEaReR token-of-{name}");
            assert_eq!(&*auth.principal([header.as_bytes()]).unwrap().caller, name);
        }
    }

    #[test]
    fn whatever_is_wrong_is_the_same() {
        let auth = tokens(&["a", "b"]);
        let huge = format!("Bearer {}", "x".repeat(1 << 20));
        let good = b"Bearer token-of-a".as_slice();
        let cases: [&[&[u8]]; 12] = [
            &[],
            &[b""],
            &[b"Bearer "],
            &[b"Bearer"],
            &[b"Bearer token-of-"],
            &[b"Bearer token-of-aa"],
            &[b"Basic token-of-a"],
            &[b"token-of-a"],
            &[huge.as_bytes()],
            &[b"Bearer ' OR 1=1 --"],
            &[b"Bearer {\"alg\":\"none\"}\xff"],
            &[good, good],
        ];
        for case in cases {
            let e = auth.principal(case.iter().copied()).unwrap_err();
            assert_eq!(
                (e.code, e.message.as_str()),
                (Code::Unauthenticated, "a valid token is needed: send `authorization: Bearer TOKEN`")
            );
            assert!(e.faults.is_empty());
        }
    }

    #[test]
    fn without_tokens_everybody_is_local() {
        let who = Authenticator::default().principal([b"Bearer whatever".as_slice()]).unwrap();
        assert_eq!(who, Principal::local("local"));
    }
}
