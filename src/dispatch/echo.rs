//! What an agent said, made fit to be shown to its caller: short, on one line, without what looks like a credential.
//!
//! In: any text of an agent's: the body of a 500, the message of an error. Out: at most [`LONGEST`] characters that say where they come from.
//! Invariants: no control, invisible or direction-changing characters; the value after a word such as `authorization` or `password`, tokens of
//! well-known shapes and long random words are hidden. Best effort: it sees shapes, not meanings. Cost: linear in a bounded beginning of the text.

use crate::types::text;

/// Longest echo in characters.
pub const LONGEST: usize = 300;
/// What stands where something was hidden.
pub const HIDDEN: &str = "[hidden]";

/// Words whose value is a secret, wherever they stand in a name.
const SECRET_NAMES: &[&str] = &[
    "authorization",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "private_key",
    "privatekey",
    "credential",
    "cookie",
    "signature",
    "sessionid",
    "session_id",
    "密码",
    "口令",
    "令牌",
    "密钥",
];
/// Schemes that stand before a credential, and how long what follows must be to be one.
const SCHEMES: &[(&str, usize)] = &[("bearer", 6), ("basic", 12), ("digest", 12), ("negotiate", 12), ("apikey", 12)];
/// Beginnings of tokens of well-known issuers.
const SHAPES: &[&str] = &[
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "whsec_",
    "eyJ",
];

/// An agent's own words for its caller, with where they come from.
pub fn says(text: &str) -> String {
    match plain(text) {
        words if words.is_empty() => "the agent gave no reason".to_string(),
        words => format!("the agent says: {words}"),
    }
}

/// The same without saying whose words they are.
pub fn plain(text: &str) -> String {
    // what is hidden may be longer than what stands for it: look a little further than what is shown
    let hidden = redacted(&text::clean(text::cut(text, 4 * LONGEST)));
    let short = text::cut(&hidden, LONGEST);
    if short.len() < hidden.len() { format!("{}…", short.trim_end()) } else { hidden }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+' | '~' | '$')
}

/// Hides what looks like a credential.
fn redacted(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut secret_follows = false;
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        if !is_word(c) {
            if secret_follows && matches!(c, '"' | '\'') {
                // a value in quotes ends with them
                let end = chars.iter().skip(at + 1).position(|q| *q == c).map_or(chars.len(), |n| at + 1 + n);
                out.extend([c, '\0', c]);
                (at, secret_follows) = ((end + 1).min(chars.len()), false);
                continue;
            }
            out.push(c);
            at += 1;
            continue;
        }
        let end = word_end(&chars, at);
        let word: String = chars.get(at..end).unwrap_or_default().iter().collect();
        let lower = word.to_lowercase();
        let scheme = SCHEMES.iter().find(|(name, _)| *name == lower).map(|(_, len)| *len);
        if secret_follows && scheme.is_none() {
            out.push('\0');
            (at, secret_follows) = (value_end(&chars, at), false);
            continue;
        }
        let assigned = assigned(&chars, end);
        if let Some(len) = scheme {
            secret_follows |= next_word(&chars, end).is_some_and(|n| n >= len);
            out.push_str(&word);
        } else if let Some(inside) = userinfo(&chars, end) {
            out.push_str(&word);
            out.push_str("://\0");
            at = inside;
            continue;
        } else if let Some(value) = assigned.filter(|_| SECRET_NAMES.iter().any(|name| lower.contains(name))) {
            secret_follows = true;
            out.extend(chars.get(at..value).unwrap_or_default());
            at = value;
            continue;
        } else if is_token(&word) {
            out.push('\0');
        } else {
            out.push_str(&word);
        }
        at = end;
    }
    out.replace('\0', HIDDEN)
}

fn word_end(chars: &[char], from: usize) -> usize {
    chars.iter().skip(from).position(|c| !is_word(*c)).map_or(chars.len(), |n| from + n)
}

/// The end of a value without quotes.
fn value_end(chars: &[char], from: usize) -> usize {
    let ends = |c: &char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '&' | '}' | ')' | ']' | '<');
    chars.iter().skip(from).position(ends).map_or(chars.len(), |n| from + n)
}

/// The place behind a `:` or `=` that follows, perhaps after a quote.
fn assigned(chars: &[char], end: usize) -> Option<usize> {
    let at = end + chars.iter().skip(end).take_while(|c| matches!(c, '"' | '\'' | ' ')).count();
    matches!(chars.get(at), Some(':' | '=' | '：')).then_some(at + 1)
}

/// Length of the word that follows after blanks.
fn next_word(chars: &[char], end: usize) -> Option<usize> {
    let from = end + chars.iter().skip(end).take_while(|c| **c == ' ').count();
    (from > end).then(|| word_end(chars, from) - from)
}

/// The place of the `@` of `scheme://user:password@host`, when `end` is the end of the scheme.
fn userinfo(chars: &[char], end: usize) -> Option<usize> {
    let rest = chars.get(end..)?.strip_prefix(&[':', '/', '/'])?;
    let authority = rest.iter().position(|c| matches!(c, '/' | '?' | '#') || c.is_whitespace()).unwrap_or(rest.len());
    rest.get(..authority)?.iter().rposition(|c| *c == '@').map(|n| end + 3 + n)
}

/// A token by its shape: a known beginning, or a long word of mixed letters and digits that no person would write.
fn is_token(word: &str) -> bool {
    let known = word.len() >= 12 && SHAPES.iter().any(|s| word.starts_with(s));
    let mixed = word.chars().any(|c| c.is_ascii_digit()) && word.chars().any(|c| c.is_ascii_alphabetic());
    let one_piece = !word.contains('/') && word.is_ascii() && word.split(['.', '-']).any(|part| part.len() >= 33);
    known || (mixed && one_piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_looks_like_a_credential_is_hidden() {
        for (said, shown) in [
            ("call failed: Authorization: Bearer abc.def-123", "call failed: Authorization: Bearer [hidden]"),
            ("{\"authorization\": \"Basic dXNlcjpwYXNz\", \"n\": 1}", "{\"authorization\": \"[hidden]\", \"n\": 1}"),
            ("bearer sometoken123 was refused", "bearer [hidden] was refused"),
            ("password=hunter2&user=me", "password=[hidden]&user=me"),
            ("db_password = 'two words', host db", "db_password = '[hidden]', host db"),
            ("X-Api-Key: k!y#1 rejected", "X-Api-Key: [hidden] rejected"),
            ("postgres://me:pw@db.local/x failed", "postgres://[hidden]@db.local/x failed"),
            ("upstream said sk-CANARY-0123456789 twice", "upstream said [hidden] twice"),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s3cr3t", "jwt [hidden]"),
            ("key 0123456789abcdef0123456789abcdef0123456789abcdef", "key [hidden]"),
            ("密码：x", "密码：[hidden]"),
            ("密码: 一二三", "密码: [hidden]"),
        ] {
            assert_eq!(plain(said), shown, "{said}");
        }
    }

    #[test]
    fn plain_words_stay() {
        for said in [
            "unexpected token < in JSON at position 0",
            "basic problem: no such order 4711",
            "order 7f3c9a2e-11aa-4bbb-8ccc-0123456789ab is closed",
            "reach 0123456789abcdef0123456789abcdef is unknown",
            "see https://docs.example/errors/invalid-order for help",
            "退款失败：订单不存在",
        ] {
            assert_eq!(plain(said), said);
        }
        assert_eq!(says("  \u{1b}[2J "), "the agent gave no reason");
        assert_eq!(says("boom"), "the agent says: boom");
    }

    #[test]
    fn it_is_short_and_on_one_line() {
        let shown = plain(&format!("line one\r\n\u{202e}line two\u{0}\u{1b}[31m {}", "x ".repeat(10_000)));
        assert!(shown.starts_with("line one line two x x"), "{shown}");
        assert!(shown.chars().count() <= LONGEST + 1 && !shown.chars().any(char::is_control), "{shown}");
    }

    proptest! {
        #[test]
        fn a_secret_after_its_name_never_shows(before in "[a-z .]{0,20}", name in "(password|Authorization|access_token|cookie)", sep in "(=|: |\": \")", after in "[a-z ,]{0,20}") {
            let said = format!("{before} {name}{sep}Zq7-canary_9 {after}");
            prop_assert!(!plain(&said).contains("canary"), "{}", plain(&said));
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            prop_assert!(plain(&text).chars().count() <= LONGEST + 1);
        }
    }
}
