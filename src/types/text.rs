//! Text from strangers, made harmless; and names, folded so that spellings of one name are equal.
//!
//! In: any text. Out: NFC text without characters that hide or steer (`clean`); words of a name (`fold_name`, `words_of_name`).
//! Invariant: `clean` and `fold_name` are idempotent; neither panics nor grows a text by more than normalisation does.
//! Cost: linear, no regex. Not here: length limits (`manifest_check`), tokens of the keyword index (`index`).

use crate::types::lang::is_cjk;
use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// A cleaned text, and whether something that should not have been there was taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// NFC, trimmed, on one line.
    pub text: String,
    /// Whether control, invisible or direction-changing characters were removed. Line breaks and tabs become spaces and do not count.
    pub removed: bool,
}

/// Cleans `text`: NFC, one line, no control, format, tag or other invisible characters, no terminal escapes, single spaces, trimmed.
///
/// Joiners (ZWJ, ZWNJ) stay between two characters of scripts or emoji that need them.
pub fn clean_flagged(text: &str) -> Cleaned {
    let mut cleaned = pass(text);
    // what was removed may have kept its neighbours from composing, which can change what a joiner stands between
    for _ in 0..3 {
        let again = pass(&cleaned.text);
        if again.text == cleaned.text {
            break;
        }
        cleaned = Cleaned { text: again.text, removed: true };
    }
    cleaned
}

fn pass(text: &str) -> Cleaned {
    let mut out = String::with_capacity(text.len());
    let mut removed = false;
    let mut chars = text.nfc().peekable();
    let mut last: Option<char> = None;
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            if last.is_some_and(|l| l != ' ') {
                out.push(' ');
                last = Some(' ');
            }
        } else if c == '\u{1b}' {
            removed = true;
            skip_escape(&mut chars);
        } else if is_joiner(c) && last.is_some_and(joins) && chars.peek().copied().is_some_and(joins) {
            out.push(c);
            last = Some(c);
        } else if is_hidden(c) {
            removed = true;
        } else {
            out.push(c);
            last = Some(c);
        }
    }
    let text: String = out.trim_end().nfc().collect();
    Cleaned { text, removed }
}

/// [`clean_flagged`] without the flag.
pub fn clean(text: &str) -> String {
    clean_flagged(text).text
}

fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

/// Whether a joiner beside `c` can mean something: emoji and joining scripts, not Latin, not Han.
fn joins(c: char) -> bool {
    !c.is_ascii() && !is_cjk(c) && !is_hidden(c) && !c.is_whitespace()
}

/// Characters that are not seen but change what is read: Cc, Cf, tags, variation supplements, blank letters, non-characters.
fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    matches!(c as u32,
        0xE0000..=0xE0FFF | 0x115F | 0x1160 | 0x17B4 | 0x17B5 | 0x180B..=0x180F | 0x2800 | 0x3164 | 0xFFA0 | 0xFFF0..=0xFFFB | 0xFDD0..=0xFDEF)
        || (c as u32) & 0xFFFE == 0xFFFE
        || matches!(get_general_category(c), GeneralCategory::Control | GeneralCategory::Format)
}

/// Skips the rest of a terminal escape after ESC: `[ … letter`, or `] … BEL`; at most 64 characters.
fn skip_escape<I: Iterator<Item = char> + Clone>(chars: &mut std::iter::Peekable<I>) {
    match chars.peek().copied() {
        Some('[') => {
            chars.next();
            for _ in 0..64 {
                match chars.peek().copied() {
                    Some(c) if ('\u{20}'..='\u{3f}').contains(&c) => {
                        chars.next();
                    }
                    Some(c) if ('\u{40}'..='\u{7e}').contains(&c) => {
                        chars.next();
                        return;
                    }
                    _ => return,
                }
            }
        }
        Some(']') => {
            let rest = chars.clone().take(64).position(|c| c == '\u{7}');
            for _ in 0..rest.map_or(1, |n| n + 1) {
                chars.next();
            }
        }
        _ => {}
    }
}

/// The words of a name: NFKC, split at separators, at camelCase humps and between Han and other letters; lower case.
fn words(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.nfkc().filter(|c| !is_hidden(*c)).collect();
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut previous: Option<char> = None;
    for (i, &c) in chars.iter().enumerate() {
        if !(c.is_alphanumeric() || (is_combining_mark(c) && !word.is_empty())) {
            finish(&mut word, &mut words);
            previous = None;
            continue;
        }
        let next_is_lower = chars.get(i + 1).is_some_and(|n| n.is_lowercase());
        let hump = previous.is_some_and(|p| {
            (c.is_uppercase() && (p.is_lowercase() || (p.is_uppercase() && next_is_lower)))
                || (is_cjk(p) != is_cjk(c) && !is_combining_mark(c))
                || (c.is_uppercase() && p.is_numeric() && next_is_lower)
        });
        if hump {
            finish(&mut word, &mut words);
        }
        word.extend(c.to_lowercase());
        previous = Some(c);
    }
    finish(&mut word, &mut words);
    words
}

fn finish(word: &mut String, words: &mut Vec<String>) {
    if !word.is_empty() {
        words.push(std::mem::take(word).nfkc().collect());
    }
}

/// The folded form of a name: its words joined by `_`. `refundCreate`, `refund-create`, `Refund Create`, `ＲＥＦＵＮＤ＿create` are all `refund_create`.
pub fn fold_name(text: &str) -> String {
    words(text).join("_")
}

/// The words of a name with spaces between: `refundCreate` → `refund create`.
pub fn words_of_name(text: &str) -> String {
    words(text).join(" ")
}

/// Full-width Latin letters, digits and spaces as the plain ones that models and people mean by them. Punctuation stays: Chinese text is written with it.
pub fn half_width(text: &str) -> String {
    let plain = |c: char| match c {
        '０'..='９' | 'Ａ'..='Ｚ' | 'ａ'..='ｚ' => char::from_u32(c as u32 - 0xFEE0).unwrap_or(c),
        '\u{3000}' => ' ',
        other => other,
    };
    text.chars().map(plain).collect()
}

/// Cuts `text` after at most `max` characters, at a character boundary.
pub fn cut(text: &str, max: usize) -> &str {
    match text.char_indices().nth(max) {
        Some((at, _)) => text.get(..at).unwrap_or(text),
        None => text,
    }
}

/// A short quoted form of hostile text for messages: cleaned, at most 60 characters.
pub fn quoted(text: &str) -> String {
    let cleaned = clean(cut(text, 400));
    let short = cut(&cleaned, 60);
    if short.len() < cleaned.len() || text.chars().nth(400).is_some() { format!("\"{short}…\"") } else { format!("\"{short}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn full_width_letters_are_plain_ones() {
        assert_eq!(half_width("ＲＥＦＵＮＤ\u{3000}ｐｌｅａｓｅ１，好"), "REFUND please1，好");
    }

    #[test]
    fn hostile_characters_are_removed_and_flagged() {
        for (dirty, expected) in [
            ("a\u{1b}[2Jb", "ab"),
            ("a\u{1b}]0;title\u{7}b", "ab"),
            ("refund\u{202e}dnufer", "refunddnufer"),
            ("hi\u{e0049}\u{e0067}", "hi"),
            ("a\u{200b}b\u{feff}", "ab"),
            ("a\u{0}b", "ab"),
            ("or\u{200d}der", "order"),
            ("退\u{200d}款", "退款"),
        ] {
            let got = clean_flagged(dirty);
            assert_eq!((got.text.as_str(), got.removed), (expected, true), "{dirty:?}");
        }
    }

    #[test]
    fn lines_and_needed_joiners_stay_harmless() {
        assert_eq!(clean_flagged(" one\r\n\ttwo\u{2028}three  "), Cleaned { text: "one two three".into(), removed: false });
        for kept in ["👩\u{200d}💻 coder", "می\u{200c}خواهم", "ordinary text, 退款怎么申请？"] {
            assert_eq!(clean_flagged(kept), Cleaned { text: kept.into(), removed: false });
        }
        assert_eq!(clean("e\u{301}"), "é");
    }

    #[test]
    fn spellings_of_one_name_are_equal() {
        for same in [
            "refund_create",
            "refund-create",
            "refundCreate",
            "RefundCreate",
            "Refund Create",
            "ＲＥＦＵＮＤ＿ｃｒｅａｔｅ",
            "refund.create",
            "REFUND_CREATE",
        ] {
            assert_eq!(fold_name(same), "refund_create", "{same}");
        }
        assert_eq!(words_of_name("refundCreate"), "refund create");
        assert_eq!(words_of_name("parseHTTPResponse2"), "parse http response2");
        assert_eq!(words_of_name("OAuth2Token"), "o auth2 token");
        assert_eq!(fold_name("退款申请"), "退款申请");
        assert_eq!(fold_name("查询order状态"), "查询_order_状态");
        assert_eq!(fold_name("***"), "");
    }

    #[test]
    fn quoted_is_short_and_one_line() {
        assert_eq!(quoted("a\nb"), "\"a b\"");
        assert!(quoted(&"x".repeat(1_000_000)).chars().count() < 64);
    }

    proptest! {
        #[test]
        fn clean_is_idempotent(text in any::<String>()) {
            let once = clean_flagged(&text);
            prop_assert_eq!(clean_flagged(&once.text), Cleaned { text: once.text.clone(), removed: false });
        }

        #[test]
        fn folding_is_idempotent(text in any::<String>()) {
            let once = fold_name(&text);
            prop_assert_eq!(fold_name(&once), once.clone());
            prop_assert_eq!(words_of_name(&text).replace(' ', "_"), once);
        }
    }
}
