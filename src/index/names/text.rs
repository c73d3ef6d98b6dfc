//! A text as letters and digits, with what stood between them: where names may begin and end in it.
//!
//! In: folded characters. Out: stretches of letters that a name may cover, each with its [`Print`]. Cost: linear in the text; the print of a stretch is
//! two products. Not here: which names there are.

use crate::index::text::{Piece, Script, pieces};
use std::sync::LazyLock;

/// A number that equal names share and others hardly ever do: a polynomial over the letters, modulo 2⁶⁴, its bits mixed.
pub(super) type Print = u64;

/// The polynomial's place: odd, and another one in each process, so that nobody can choose names that share a print.
static BASE: LazyLock<u64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    // without a source of chance names are told apart all the same, only not against somebody's will
    if getrandom::fill(&mut bytes).is_err() {
        bytes = 0x9E37_79B9_7F4A_7C15u64.to_le_bytes();
    }
    u64::from_le_bytes(bytes) | 1
});

fn next(sum: u64, letter: char) -> u64 {
    sum.wrapping_mul(*BASE).wrapping_add(u64::from(u32::from(letter)) + 1)
}

fn mixed(sum: u64) -> Print {
    let sum = (sum ^ (sum >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    sum ^ (sum >> 32)
}

/// Print of a name.
pub(super) fn print(name: &str) -> Print {
    mixed(name.chars().fold(0, next))
}

/// A text as letters and digits, with what stood between them.
pub(super) struct Text<'a> {
    chars: &'a [char],
    pieces: Vec<Piece>,
    /// All letters and digits, end to end.
    pub(super) letters: Vec<char>,
    /// The polynomial over the letters before each place, and the powers of its base.
    sums: Vec<u64>,
    powers: Vec<u64>,
    /// Piece of each letter, and the first letter of each piece.
    piece_of: Vec<u32>,
    first_of: Vec<usize>,
    /// End of the stretch that a name may cover, a piece.
    wall: Vec<usize>,
}

impl<'a> Text<'a> {
    /// Cuts folded characters.
    pub(super) fn new(chars: &'a [char]) -> Self {
        let pieces = pieces(chars);
        let (mut letters, mut piece_of, mut first_of) = (Vec::new(), Vec::new(), Vec::new());
        for (at, piece) in (0u32..).zip(&pieces) {
            first_of.push(letters.len());
            letters.extend(piece.text.chars());
            piece_of.resize(letters.len(), at);
        }
        let mut wall = vec![letters.len(); pieces.len()];
        for at in (1..pieces.len()).rev() {
            let gap = pieces.get(at - 1).zip(pieces.get(at)).and_then(|(a, b)| chars.get(a.end..b.start)).unwrap_or_default();
            let soft = gap.len() <= 2 && gap.iter().all(|c| c.is_whitespace() && *c != '\n' || matches!(c, '_' | '-' | '.'));
            let end = if soft { wall.get(at).copied() } else { first_of.get(at).copied() };
            if let (Some(place), Some(end)) = (wall.get_mut(at - 1), end) {
                *place = end;
            }
        }
        let (mut sums, mut powers) = (Vec::with_capacity(letters.len() + 1), Vec::with_capacity(letters.len() + 1));
        let (mut sum, mut power) = (0u64, 1u64);
        for letter in &letters {
            sums.push(sum);
            powers.push(power);
            (sum, power) = (next(sum, *letter), power.wrapping_mul(*BASE));
        }
        sums.push(sum);
        powers.push(power);
        Self { chars, pieces, letters, sums, powers, piece_of, first_of, wall }
    }

    /// Print of the letters `from..to`.
    pub(super) fn print(&self, from: usize, to: usize) -> Option<Print> {
        let (before, whole, power) = (self.sums.get(from)?, self.sums.get(to)?, self.powers.get(to.checked_sub(from)?)?);
        Some(mixed(whole.wrapping_sub(before.wrapping_mul(*power))))
    }

    /// Whether the letters `from..to` are this name.
    pub(super) fn is(&self, from: usize, to: usize, name: &str) -> bool {
        self.letters.get(from..to).is_some_and(|letters| name.chars().eq(letters.iter().copied()))
    }

    /// How the stretch `from..to` was written, folded but for case, and whether it was called (`name(`) or quoted as code.
    pub(super) fn written(&self, from: usize, to: usize) -> (&[char], bool) {
        let (start, end) = self.span(from, to);
        let after = self.chars.get(end);
        let quoted = start > 0 && self.chars.get(start - 1) == Some(&'`') && after == Some(&'`');
        (self.chars.get(start..end).unwrap_or_default(), after == Some(&'(') || quoted)
    }

    fn piece(&self, letter: usize) -> Option<(usize, &Piece)> {
        let at = *self.piece_of.get(letter)? as usize;
        self.pieces.get(at).map(|piece| (at, piece))
    }

    /// What a name that begins at this letter may cover; nothing if none may begin here.
    pub(super) fn from(&self, letter: usize) -> Option<&[char]> {
        let (at, piece) = self.piece(letter)?;
        let at_start = self.first_of.get(at) == Some(&letter);
        if piece.script == Script::Latin && (!at_start || self.is_cut(at)) {
            return None;
        }
        self.letters.get(letter..*self.wall.get(at)?)
    }

    /// Whether a name may end before letter `end`.
    pub(super) fn may_end(&self, end: usize) -> bool {
        let Some((last, piece)) = end.checked_sub(1).and_then(|letter| self.piece(letter)) else { return false };
        piece.script != Script::Latin || self.first_of.get(last + 1).copied().unwrap_or(self.letters.len()) == end && !self.is_cut(last + 1)
    }

    /// Whether the boundary before a piece runs through an identifier. A dot does not bind: `orders.refund_create` holds a name.
    fn is_cut(&self, piece: usize) -> bool {
        let Some(at) = self.pieces.get(piece).filter(|p| p.glued) else { return false };
        let gap = piece.checked_sub(1).and_then(|before| self.pieces.get(before)).and_then(|b| self.chars.get(b.end..at.start));
        gap != Some(&['.'])
    }

    /// Place of a stretch of letters in the folded text.
    pub(super) fn span(&self, from: usize, to: usize) -> (usize, usize) {
        let place = |letter: usize| {
            self.piece(letter).map(|(at, piece)| match piece.script {
                Script::Latin => (piece.start, piece.end),
                Script::Han | Script::Gram => {
                    let here = piece.start + letter - self.first_of.get(at).copied().unwrap_or(letter);
                    (here, here + 1)
                }
            })
        };
        (place(from).map_or(0, |p| p.0), to.checked_sub(1).and_then(place).map_or(0, |p| p.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stretch_has_the_print_of_its_letters(letters in "[a-z0-9退换货]{0,40}", cut in 0usize..40, end in 0usize..40) {
            let chars: Vec<char> = letters.chars().collect();
            let text = Text::new(&chars);
            let (from, to) = (cut.min(chars.len()), end.min(chars.len()));
            if from <= to {
                let name: String = chars[from..to].iter().collect();
                prop_assert_eq!(text.print(from, to), Some(print(&name)));
                prop_assert!(text.is(from, to, &name));
            } else {
                prop_assert_eq!(text.print(from, to), None);
            }
        }
    }
}
