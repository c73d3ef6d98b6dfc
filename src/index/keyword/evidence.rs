//! What the words say about one capability, beyond a score: inputs for whoever weighs the arms.

use super::Field;
use super::bound::{Bound, share};
use super::part::LexPart;
use crate::index::stack::Part;
use crate::index::text::TokenKind;

/// Evidence of the words for one capability. All shares are 0..=1 and 0 where there is nothing to share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LexEvidence {
    /// The score a search gives it. ≥ 0.
    pub bm25: f32,
    /// Share of the query's mass (rarity of its words, function words aside) that stands anywhere in the capability.
    pub covered: f32,
    /// The same by field, in the order of [`Field::ALL`].
    pub by_field: [f32; 6],
    /// Largest share of a name's words (name or alias) that stand in the query.
    pub name_covered: f32,
    /// Most words of a name that stand in the query side by side in that order.
    pub name_run: u32,
    /// [`LexEvidence::name_run`] against the length of that name: 1 means that the whole name stands in the query.
    pub name_run_share: f32,
    /// Most words of the description that stand in the query side by side in that order.
    pub description_run: u32,
    /// Whether a whole name or alias of two words or more stands in the query, or one of a single word is the whole query.
    pub name_phrase: bool,
    /// Share of a name's pairs of characters that stand in the query: survives typos.
    pub name_grams: f32,
    /// Share of the query's pairs of characters that stand in the capability.
    pub grams: f32,
}

impl LexEvidence {
    /// Share of the query's mass that one field covers.
    pub fn field(&self, field: Field) -> f32 {
        self.by_field.get(field as usize).copied().unwrap_or_default()
    }
}

impl Bound<'_> {
    /// Evidence for a slot; nothing if it is not there or not visible.
    pub fn evidence(&self, slot: u32) -> Option<LexEvidence> {
        let (at, doc) = self.stack.find(slot)?;
        let part: &LexPart = &self.stack.parts.get(at)?.part;
        if !self.visible.contains(part.layout().class_of(doc)) {
            return None;
        }
        let asked = self.asked.get(at)?;
        let fields = asked.fields(part, doc);
        let mut evidence = LexEvidence { bm25: self.score_of(&fields, part.length(doc)), ..LexEvidence::default() };
        let mut covered = 0.0;
        let mut by_field = [0f32; 6];
        for ((term, of), fields) in self.terms.iter().zip(&self.query.terms).zip(fields) {
            if of.kind != TokenKind::Word || of.stop || fields == 0 {
                continue;
            }
            covered += term.weight;
            for (sum, _) in by_field.iter_mut().zip(Field::ALL).filter(|(_, f)| fields & f.bit() != 0) {
                *sum += term.weight;
            }
        }
        evidence.covered = share(covered, self.mass());
        evidence.by_field = by_field.map(|sum| share(sum, self.mass()));
        let (words, places) = (asked.words.as_slice(), asked.places.as_slice());
        for name in part.names(doc) {
            let there = name.iter().filter(|id| places.binary_search_by_key(*id, |(asked, _)| *asked).is_ok()).count();
            let run = longest_run(name, words, places, |_| true);
            evidence.name_covered = evidence.name_covered.max(there as f32 / name.len() as f32);
            evidence.name_run = evidence.name_run.max(run as u32);
            evidence.name_run_share = evidence.name_run_share.max(run as f32 / name.len() as f32);
            evidence.name_phrase |= run == name.len() && (run > 1 || words.len() == 1);
        }
        evidence.description_run = longest_run(part.description(doc), words, places, |id| asked.maybe(id)) as u32;
        let (names, all) = part.grams(doc);
        evidence.name_grams = share(self.query.grams.common(names) as f32, names.len() as f32);
        evidence.grams = share(self.query.grams.common(all) as f32, self.query.grams.len() as f32);
        Some(evidence)
    }
}

/// Longest stretch of `text` that stands in `asked` in the same order. `sorted`: the numbers of `asked` with their places, ascending. `maybe`
/// is false only for words that are not among them.
fn longest_run(text: &[u32], asked: &[u32], sorted: &[(u32, usize)], maybe: impl Fn(u32) -> bool) -> usize {
    let mut longest = 0;
    for (from, id) in text.iter().enumerate().filter(|(_, id)| maybe(**id)) {
        let first = sorted.partition_point(|(asked, _)| asked < id);
        for (_, place) in sorted.iter().skip(first).take_while(|(asked, _)| asked == id) {
            // only where a run begins
            if from > 0 && *place > 0 && text.get(from - 1) == asked.get(place - 1) {
                continue;
            }
            let run = text.iter().skip(from).zip(asked.iter().skip(*place)).take_while(|(a, b)| a == b).count();
            longest = longest.max(run);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_skipped_would_have_said_nothing(
            docs in proptest::collection::vec("[a-z]{1,3}( [a-z]{1,3}){0,40}", 1..20), text in "[a-z]{1,3}( [a-z]{1,3}){0,20}",
        ) {
            use super::super::{LexConfig, LexDoc, LexIndex, LexQuery};
            let doc = |(slot, text): (u32, &String)| LexDoc { slot, class: 0, fields: vec![(Field::Description, text.clone()), (Field::Name, text.chars().take(5).collect())] };
            let snapshot = LexIndex::new(LexConfig::default()).apply(&[], (0u32..).zip(&docs).map(doc).collect());
            let query = LexQuery::new(&text);
            let visible = crate::index::Visible::all();
            let bound = snapshot.bind(&query, &visible);
            for slot in 0..docs.len() as u32 {
                let (at, doc) = bound.stack.find(slot).unwrap();
                let (part, asked) = (&bound.stack.parts[at].part, &bound.asked[at]);
                let fields = asked.fields(part, doc);
                for (term, mask) in bound.terms.iter().zip(fields) {
                    proptest::prop_assert_eq!(mask, term.ids[at].map_or(0, |id| part.fields(doc, id)));
                }
                let run = |maybe: bool| longest_run(part.description(doc), &asked.words, &asked.places, |id| maybe || asked.maybe(id));
                proptest::prop_assert_eq!(run(false), run(true));
            }
        }
    }

    #[test]
    fn runs_are_side_by_side() {
        let run = |text: &[u32], asked: &[u32]| {
            let mut sorted: Vec<(u32, usize)> = asked.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            longest_run(text, asked, &sorted, |_| true)
        };
        assert_eq!(run(&[1, 2, 3], &[9, 1, 2, 9, 2, 3]), 2);
        assert_eq!(run(&[1, 2, 3], &[1, 9, 2, 9, 3]), 1);
        assert_eq!(run(&[1, 1, 2], &[1, 1, 1, 2]), 3);
        assert_eq!(run(&[], &[1]), 0);
    }
}
