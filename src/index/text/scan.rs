//! Cuts folded characters into pieces: words, parts of identifiers, runs of scripts without spaces.

use super::fold::lower;

/// How a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// With spaces or separators between words: Latin, Cyrillic, digits and so on.
    Latin,
    /// Chinese characters.
    Han,
    /// Kana, hangul, Thai and others without spaces or a dictionary here.
    Gram,
}

/// A stretch of text of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Folded text, lower case.
    pub(crate) text: String,
    /// First character in the folded text.
    pub(crate) start: usize,
    /// End in the folded text.
    pub(crate) end: usize,
    /// How it is written.
    pub(crate) script: Script,
    /// Whether only a connector (`_`, `-`, `.`) or a change of case parts it from the piece before.
    pub(crate) glued: bool,
}

fn script(c: char) -> Option<Script> {
    match u32::from(c) {
        0x3005 | 0x3007 | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x323AF => Some(Script::Han),
        0x3041..=0x30FF
        | 0x3105..=0x312F
        | 0x31F0..=0x31FF
        | 0x1100..=0x11FF
        | 0xAC00..=0xD7AF
        | 0x0E01..=0x0EFF
        | 0x1000..=0x109F
        | 0x1780..=0x17FF => Some(Script::Gram),
        _ if c.is_alphanumeric() => Some(Script::Latin),
        _ => None,
    }
}

/// Parts words of an identifier when a letter or digit follows at once.
fn is_connector(c: char) -> bool {
    matches!(c, '_' | '-' | '.' | '\u{2010}' | '\u{2011}')
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '\u{2019}' | '`')
}

/// Combining marks continue a word.
fn is_mark(c: char) -> bool {
    matches!(u32::from(c), 0x300..=0x36F | 0x483..=0x489 | 0x591..=0x5C7 | 0x610..=0x61A | 0x64B..=0x65F | 0x900..=0x903 | 0x93A..=0x94F)
}

/// Pieces of folded characters, in their order.
pub(crate) fn pieces(chars: &[char]) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    let at = |i: usize| chars.get(i).copied();
    let latin = |i: usize| at(i).and_then(script) == Some(Script::Latin);
    let mut i = 0;
    while let Some(c) = at(i) {
        let Some(script_here) = script(c) else {
            i += 1;
            continue;
        };
        let start = i;
        if script_here != Script::Latin {
            while at(i).and_then(script) == Some(script_here) {
                i += 1;
            }
            let text = chars.get(start..i).unwrap_or_default().iter().collect();
            out.push(Piece { text, start, end: i, script: script_here, glued: false });
            continue;
        }
        let glued = out.last().is_some_and(|last| {
            let gap = chars.get(last.end..start).unwrap_or_default();
            last.script == Script::Latin && (gap.is_empty() || matches!(gap, [one] if is_connector(*one)))
        });
        let mut text = String::new();
        while let Some(c) = at(i) {
            if is_apostrophe(c) && i > start && latin(i + 1) {
                i += 1;
                continue;
            }
            if !(latin(i) || is_mark(c) && i > start) {
                break;
            }
            // aB and the last capital of ABc begin a part
            if i > start && c.is_uppercase() {
                let before = at(i - 1).is_some_and(|b| !b.is_uppercase());
                let after = at(i + 1).is_some_and(char::is_lowercase) && at(i - 1).is_some_and(char::is_uppercase);
                if before || after {
                    break;
                }
            }
            text.push(lower(c));
            i += 1;
        }
        // C++, C#, F#
        if text.len() == 1 {
            let tail: String = chars.iter().skip(i).take(2).take_while(|c| matches!(**c, '+' | '#')).collect();
            if !latin(i + tail.len()) {
                i += tail.len();
                text.push_str(&tail);
            }
        }
        out.push(Piece { text, start, end: i, script: Script::Latin, glued });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(String, bool)> {
        pieces(&text.chars().collect::<Vec<_>>()).into_iter().map(|p| (p.text, p.glued)).collect()
    }

    #[test]
    fn parts_of_identifiers_are_glued() {
        let want = |parts: &[(&str, bool)]| parts.iter().map(|(t, g)| ((*t).to_owned(), *g)).collect::<Vec<_>>();
        assert_eq!(
            cut("getUserID by-name. Then"),
            want(&[("get", false), ("user", true), ("id", true), ("by", false), ("name", true), ("then", false)])
        );
        assert_eq!(cut("用JWT做"), want(&[("用", false), ("jwt", false), ("做", false)]));
        assert_eq!(cut("a--b a._b"), want(&[("a", false), ("b", false), ("a", false), ("b", false)]));
    }
}
