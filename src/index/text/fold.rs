//! Folding of characters: compatibility forms, invisible ones, traditional Chinese.

use hanconv::RawDictionary;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;

/// First and last character of the table.
const TABLE: std::ops::RangeInclusive<u32> = 0x3400..=0x9FFF;

/// Traditional → simplified, character by character (OpenCC's table); where a character has several simplified forms, the first.
static SIMPLIFIED: LazyLock<Vec<char>> = LazyLock::new(|| {
    let mut table: Vec<char> = TABLE.filter_map(char::from_u32).collect();
    for (from, to) in RawDictionary::TSCharacters.iter() {
        if let (Some(from), Some(to)) = (single(from), single(to))
            && let Some(place) = table.get_mut((from as usize).wrapping_sub(*TABLE.start() as usize))
        {
            *place = to;
        }
    }
    table
});

fn single(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

fn simplified(c: char) -> char {
    if TABLE.contains(&u32::from(c)) { SIMPLIFIED.get((u32::from(c) - TABLE.start()) as usize).copied().unwrap_or(c) } else { c }
}

/// Characters that are not seen and must not part a word: zero width, direction, soft hyphen, variation selectors, tags.
fn is_invisible(c: char) -> bool {
    matches!(u32::from(c),
        0xAD | 0x34F | 0x61C | 0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F | 0xFE00..=0xFE0F | 0xFEFF | 0xE0000..=0xE0FFF)
}

/// At most `limit` characters of `text`, folded except for case (which tells where identifiers part).
pub(crate) fn chars(text: &str, limit: usize) -> Vec<char> {
    let taken = text.chars().take(limit).filter(|c| !is_invisible(*c));
    // some characters unfold into eighteen
    if text.is_ascii() { taken.collect() } else { taken.nfkc().filter(|c| !is_invisible(*c)).take(limit).map(simplified).collect() }
}

/// Lower case of a character, one for one.
pub(crate) fn lower(c: char) -> char {
    let mut lower = c.to_lowercase();
    lower.next().filter(|_| lower.next().is_none()).unwrap_or(c)
}

/// Pairs of neighbouring letters and digits of a folded text, as 16-bit hashes: ascending, each once, at most `limit` characters looked at.
pub(crate) fn grams(text: &str, limit: usize) -> Vec<u16> {
    let mut grams: Vec<u16> = Vec::new();
    let mut last: Option<char> = None;
    for c in chars(text, limit).into_iter().map(lower) {
        let c = if c.is_alphanumeric() { c } else { ' ' };
        if let Some(before) = last
            && !(before == ' ' && c == ' ')
        {
            let mixed = (u32::from(before).wrapping_mul(0x9E37_79B1) ^ u32::from(c)).wrapping_mul(0x85EB_CA6B);
            grams.push((mixed >> 16) as u16);
        }
        last = Some(c);
    }
    grams.sort_unstable();
    grams.dedup();
    grams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simplifies_and_keeps_the_rest() {
        assert_eq!(chars("訂單與發票，Ａ①", 99).into_iter().collect::<String>(), "订单与发票,A1");
        assert_eq!(chars("abc", 2), ['a', 'b']);
        assert_eq!(lower('İ'), 'İ');
    }

    #[test]
    fn grams_survive_typos() {
        let (a, b) = (grams("refund order", 99), grams("refnud order", 99));
        let shared = a.iter().filter(|g| b.binary_search(g).is_ok()).count();
        assert!(shared * 10 >= a.len() * 6, "{shared} of {}", a.len());
    }
}
