//! Exact names: what is called so, and which names stand in a text.
//!
//! In: intents and aliases as written; a text. Out: slots. A name is known by its letters and digits alone, folded (NFKC, case, traditional
//! → simplified), so `create_edge`, `create-edge`, `createEdge`, `Create Edge` and full-width forms are one name.
//! A name that is a common word stands in many texts by chance; only a *distinctive* one ([`Distinct`]) may count inside a text.
//! Invariant: only visible slots are found, and only the names of visible slots count as there at all.
//! Cost: one look-up a word (a character, in Chinese) of the text, about 50 ns each; a snapshot is a pointer.
//! Not here: what a found name is worth (`route::recall`).

mod text;

use super::keyword::LexSnapshot;
use super::text::{MAX_CHARS, Piece, TokenKind, analyze, fold_chars, pieces};
use super::visible::Visible;
use imbl::GenericHashMap;
use imbl::shared_ptr::DefaultSharedPtr;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use text::{Print, Text, print};

/// Longest name that is looked for inside texts, in letters and digits.
const MAX_IN_TEXT: usize = 120;
/// Characters of a text that can be a bare name.
const MAX_BARE: usize = 256;
/// Visible documents from which on rarity says anything.
const MIN_DOCS: u64 = 200;
/// Words of a name that is not said by chance.
const MANY_WORDS: usize = 4;
/// Letters of a rare word.
const MIN_RARE: usize = 4;

/// The names of one capability.
#[derive(Clone, Debug)]
pub struct NameDoc {
    /// Capability slot.
    pub slot: u32,
    /// Visibility class.
    pub class: u32,
    /// Its intent.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
}

/// Why a name found in a text is hardly there by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distinct {
    /// It was written like code: `snake_case`, camelCase, in backticks, with parentheses.
    CodeForm,
    /// It has several words, and no other visible capability speaks of all of them (or it has four and more).
    Words,
    /// It is one word, and no other visible capability speaks of it.
    Rare,
}

/// A name found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameHit {
    /// Visible slots of that name, ascending.
    pub slots: Vec<u32>,
    /// The name, folded.
    pub name: Arc<str>,
    /// Where it begins and ends in the folded text, in characters.
    pub span: (usize, usize),
    /// Its words.
    pub words: u32,
    /// Whether it is the whole text.
    pub whole: bool,
    /// Why it may count inside a text; nothing if it may not.
    pub distinct: Option<Distinct>,
}

impl NameHit {
    /// Whether it may come ahead of ranked hits: distinctive, or all there is.
    pub fn counts(&self) -> bool {
        self.whole || self.distinct.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    slot: u32,
    class: u32,
}

#[derive(Clone)]
struct Entry {
    owners: Vec<Owner>,
    /// Its words as the keyword index knows them.
    words: Vec<String>,
}

/// The first two characters of a name.
type Head = (char, char);

/// Takes a [`Print`] for its own hash.
#[derive(Clone, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }

    fn write_u64(&mut self, print: u64) {
        self.0 = print;
    }
}

type ByPrint<V> = GenericHashMap<Print, V, BuildHasherDefault<Mixed>, DefaultSharedPtr>;

/// An immutable table of names. Cloning copies four pointers.
#[derive(Clone, Default)]
pub struct NameTable {
    names: imbl::HashMap<Arc<str>, Arc<Entry>>,
    /// Names by their print: nearly always one.
    prints: ByPrint<Arc<[Arc<str>]>>,
    /// Lengths of the names that begin so, and how many have it.
    heads: imbl::HashMap<Head, Arc<Vec<(u16, u32)>>>,
    /// Names of a slot.
    slots: imbl::HashMap<u32, Arc<[Arc<str>]>>,
}

/// Writer of a [`NameTable`].
#[derive(Default)]
pub struct NameIndex {
    table: NameTable,
}

impl NameIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes slots, then adds documents (a slot that is there already is replaced), and gives the new state.
    pub fn apply(&mut self, remove: &[u32], add: Vec<NameDoc>) -> Arc<NameTable> {
        for slot in remove.iter().copied().chain(add.iter().map(|doc| doc.slot)) {
            self.table.remove(slot);
        }
        for doc in add {
            self.table.remove(doc.slot);
            self.table.add(&doc);
        }
        self.snapshot()
    }

    /// The state as it stands.
    pub fn snapshot(&self) -> Arc<NameTable> {
        Arc::new(self.table.clone())
    }
}

/// The letters and digits of a text, folded: what a name is known by.
pub fn fold_name(text: &str) -> String {
    key(&pieces(&fold_chars(text, MAX_BARE)))
}

fn key(pieces: &[Piece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

fn head(name: &str) -> Option<Head> {
    let mut chars = name.chars();
    chars.next().map(|first| (first, chars.next().unwrap_or('\0')))
}

impl NameTable {
    fn add(&mut self, doc: &NameDoc) {
        let owner = Owner { slot: doc.slot, class: doc.class };
        let mut own: Vec<Arc<str>> = Vec::new();
        for written in std::iter::once(&doc.name).chain(&doc.aliases) {
            let name: Arc<str> = fold_name(written).into();
            let Some(head) = head(&name).filter(|_| !own.contains(&name)) else { continue };
            if let Some(entry) = self.names.get_mut(&name) {
                let entry = Arc::make_mut(entry);
                if let Err(at) = entry.owners.binary_search(&owner) {
                    entry.owners.insert(at, owner);
                }
            } else {
                let words = analyze(written).into_iter().filter(|t| t.kind == TokenKind::Word).map(|t| t.text).collect();
                self.names.insert(Arc::clone(&name), Arc::new(Entry { owners: vec![owner], words }));
                let alike = self.prints.entry(print(&name)).or_default();
                *alike = alike.iter().cloned().chain([Arc::clone(&name)]).collect();
                let length = name.chars().count().min(usize::from(u16::MAX)) as u16;
                let lengths = Arc::make_mut(self.heads.entry(head).or_default());
                match lengths.binary_search_by_key(&length, |(l, _)| *l) {
                    Ok(at) => {
                        if let Some((_, n)) = lengths.get_mut(at) {
                            *n += 1;
                        }
                    }
                    Err(at) => lengths.insert(at, (length, 1)),
                }
            }
            own.push(name);
        }
        self.slots.insert(doc.slot, own.into());
    }

    fn remove(&mut self, slot: u32) {
        for name in self.slots.remove(&slot).iter().flat_map(|names| names.iter()) {
            let Some(entry) = self.names.get_mut(name) else { continue };
            let entry = Arc::make_mut(entry);
            entry.owners.retain(|owner| owner.slot != slot);
            if !entry.owners.is_empty() {
                continue;
            }
            self.names.remove(name);
            let print = print(name);
            let rest: Arc<[Arc<str>]> =
                self.prints.get(&print).map(|alike| alike.iter().filter(|other| *other != name).cloned().collect()).unwrap_or_default();
            if rest.is_empty() {
                self.prints.remove(&print);
            } else {
                self.prints.insert(print, rest);
            }
            let Some(head) = head(name) else { continue };
            let length = name.chars().count().min(usize::from(u16::MAX)) as u16;
            if let Some(lengths) = self.heads.get_mut(&head) {
                let lengths = Arc::make_mut(lengths);
                lengths.iter_mut().filter(|(l, _)| *l == length).for_each(|(_, n)| *n -= 1);
                lengths.retain(|(_, n)| *n > 0);
                if lengths.is_empty() {
                    self.heads.remove(&head);
                }
            }
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Visible slots whose name or alias is the whole of `text`, ascending.
    pub fn exact(&self, text: &str, visible: &Visible) -> Vec<u32> {
        if text.chars().nth(MAX_BARE).is_some() {
            return Vec::new();
        }
        self.owners(&fold_name(text), visible)
    }

    fn owners(&self, name: &str, visible: &Visible) -> Vec<u32> {
        let owners = self.names.get(name).map_or(&[][..], |entry| entry.owners.as_slice());
        owners.iter().filter(|owner| visible.contains(owner.class)).map(|owner| owner.slot).collect()
    }

    /// Names of visible slots that stand in `text`, in its order, in whatever form; of names inside a longer name only the longer one.
    ///
    /// A name stands there if it begins and ends where words do (in scripts without spaces: anywhere) and is not part of a longer
    /// identifier. `words` tells which words are rare; it should hold the same slots.
    pub fn find_in_text(&self, text: &str, visible: &Visible, words: &LexSnapshot) -> Vec<NameHit> {
        let chars = fold_chars(text, MAX_CHARS);
        let text = Text::new(&chars);
        let mut hits: Vec<NameHit> = Vec::new();
        let mut reach = 0;
        for from in 0..text.letters.len() {
            let Some(stretch) = text.from(from) else { continue };
            let Some(first) = stretch.first() else { continue };
            let pair = (*first, stretch.get(1).copied().unwrap_or('\0'));
            let single = self.heads.get(&(*first, '\0'));
            for (length, _) in single.iter().chain(&self.heads.get(&pair)).flat_map(|lengths| lengths.iter()).rev() {
                let (length, to) = (usize::from(*length), from + usize::from(*length));
                // not beyond where a name may end, nor inside a longer one that was found before
                if length > stretch.len().min(MAX_IN_TEXT) || to <= reach || !text.may_end(to) {
                    continue;
                }
                let alike = text.print(from, to).and_then(|print| self.prints.get(&print));
                let Some(name) = alike.and_then(|names| names.iter().find(|name| text.is(from, to, name))) else { continue };
                let Some(entry) = self.names.get(name) else { continue };
                let slots: Vec<u32> = entry.owners.iter().filter(|owner| visible.contains(owner.class)).map(|owner| owner.slot).collect();
                if slots.is_empty() {
                    continue;
                }
                reach = to;
                let owners = slots.len() as u64;
                hits.push(NameHit {
                    slots,
                    name: Arc::clone(name),
                    span: text.span(from, to),
                    words: entry.words.len() as u32,
                    whole: from == 0 && to == text.letters.len(),
                    distinct: entry.distinct(text.written(from, to), owners, || words.holders(&entry.words, visible, owners + 1)),
                });
            }
        }
        hits
    }
}

impl Entry {
    /// Why the name may count where it is `written` like this, perhaps as code. `holders`: visible documents that hold all its words, and all
    /// visible ones.
    fn distinct(&self, (written, as_code): (&[char], bool), owners: u64, holders: impl FnOnce() -> (u64, u64)) -> Option<Distinct> {
        let camel = written.windows(2).any(|w| matches!(w, [a, b] if a.is_lowercase() && b.is_uppercase()));
        if as_code || camel || written.contains(&'_') {
            return Some(Distinct::CodeForm);
        }
        if self.words.len() >= MANY_WORDS {
            return Some(Distinct::Words);
        }
        let (held, docs) = holders();
        if held > owners {
            return None;
        }
        match self.words.as_slice() {
            [] => None,
            [word] => (docs >= MIN_DOCS && word.chars().count() >= MIN_RARE).then_some(Distinct::Rare),
            [_, _, ..] => Some(Distinct::Words),
        }
    }
}

impl fmt::Debug for NameTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameTable").field("slots", &self.slots.len()).field("names", &self.names.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::keyword::{Field, LexConfig, LexDoc, LexIndex};
    use super::*;
    use proptest::prelude::*;

    fn table(names: &[(&str, u32)]) -> (Arc<NameTable>, Arc<LexSnapshot>) {
        let (mut index, mut lex) = (NameIndex::new(), LexIndex::new(LexConfig::default()));
        let slots = || (0u32..).zip(names);
        let docs =
            slots().map(|(slot, (name, class))| NameDoc { slot, class: *class, name: (*name).to_owned(), aliases: Vec::new() }).collect();
        let texts =
            slots().map(|(slot, (name, class))| LexDoc { slot, class: *class, fields: vec![(Field::Name, (*name).to_owned())] }).collect();
        (index.apply(&[], docs), lex.apply(&[], texts))
    }

    fn found(names: &[&str], text: &str) -> Vec<u32> {
        let (table, lex) = table(&names.iter().map(|n| (*n, 0)).collect::<Vec<_>>());
        let mut slots: Vec<u32> =
            table.find_in_text(text, &Visible::all(), &lex).into_iter().filter(NameHit::counts).flat_map(|h| h.slots).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn seven_names_in_one_query_are_seven_names() {
        let names = [
            "search_graph",
            "trace_path",
            "get_code_snippet",
            "query_graph",
            "search_code",
            "index_repository",
            "codebase-memory",
            "graph",
            "search",
        ];
        let text = "search_graph trace_path get_code_snippet query_graph search_code index_repository codebase-memory";
        assert_eq!(found(&names, text), [0, 1, 2, 3, 4, 5, 6]);
        let spoken = "please run SearchGraph, trace path; getCodeSnippet QUERY-GRAPH search　code `index_repository` and codebase memory";
        assert_eq!(found(&names, spoken), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn every_form_is_the_name() {
        let (table, _) = table(&[("canvas_create_edge", 0), ("退款申请", 0)]);
        for text in [
            "canvas_create_edge",
            "Canvas Create Edge",
            "canvasCreateEdge",
            "CANVAS-CREATE-EDGE",
            "ｃａｎｖａｓ＿create.edge",
            "canvascreateedge",
        ] {
            assert_eq!(table.exact(text, &Visible::all()), [0], "{text}");
        }
        assert_eq!(table.exact("退款申請", &Visible::all()), [1], "traditional");
        assert!(table.exact("canvas create", &Visible::all()).is_empty());
        assert!(table.exact("", &Visible::all()).is_empty() && table.exact("- *", &Visible::all()).is_empty());
    }

    #[test]
    fn names_in_chinese_text_need_no_spaces() {
        let names = ["退款申请", "查询订单", "search_graph", "导出PDF报表", "退款"];
        assert_eq!(found(&names, "我要退款申请一下，再帮我查询订单"), [0, 1]);
        assert_eq!(found(&names, "请用search_graph查一下"), [2]);
        assert_eq!(found(&names, "帮我导出 pdf 报表吧"), [3]);
        assert_eq!(found(&names, "退款"), [4], "a bare name is the whole query");
        assert_eq!(found(&names, "我想退款啊"), [] as [u32; 0], "one common word inside a text");
    }

    #[test]
    fn common_words_do_not_misfire_and_code_does() {
        let names = ["check", "create", "data"];
        assert_eq!(found(&names, "check my data and create a report"), [] as [u32; 0]);
        assert_eq!(found(&names, "call `check` then create(x)"), [0, 1]);
        assert_eq!(found(&names, "Check"), [0]);
    }

    #[test]
    fn part_of_an_identifier_is_not_the_name() {
        let names = ["search_graph", "create_edge"];
        assert_eq!(found(&names, "search_graph_v2 canvas_create_edge searchGraphs xsearch_graph"), [] as [u32; 0]);
        assert_eq!(found(&names, "orders.search_graph"), [0]);
        assert_eq!(found(&names, "search: graph, create, edge"), [] as [u32; 0], "punctuation parts");
    }

    #[test]
    fn hidden_names_are_not_there() {
        let (table, lex) = table(&[("refund_create", 1), ("refund_create", 2), ("refund_create_all", 2)]);
        let ask = |classes: &[u32], text: &str| {
            let visible = Visible::of(classes.iter().copied());
            table.find_in_text(text, &visible, &lex).into_iter().map(|h| (h.slots, h.name.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(ask(&[1], "refund_create_all please"), [] as [(Vec<u32>, String); 0]);
        assert_eq!(ask(&[1], "refund create all"), [(vec![0], "refundcreate".to_owned())], "the longer name is hidden and hides nothing");
        assert_eq!(ask(&[2], "refund create all"), [(vec![2], "refundcreateall".to_owned())]);
        assert_eq!(ask(&[1, 2], "refund_create"), [(vec![0, 1], "refundcreate".to_owned())]);
        assert_eq!(table.exact("refund_create", &Visible::of([2])), [1]);
    }

    #[test]
    fn removing_and_renaming_leaves_nothing_behind() {
        let mut index = NameIndex::new();
        let doc =
            |slot, name: &str| NameDoc { slot, class: 0, name: name.to_owned(), aliases: vec!["alias".to_owned(), "Alias".to_owned()] };
        let old = index.apply(&[], vec![doc(0, "one_name"), doc(1, "one_name")]);
        let new = index.apply(&[1], vec![doc(0, "other_name")]);
        assert_eq!((old.exact("one name", &Visible::all()), old.exact("alias", &Visible::all())), (vec![0, 1], vec![0, 1]));
        assert_eq!((new.exact("one name", &Visible::all()), new.exact("other-name", &Visible::all())), (vec![], vec![0]));
        let empty = index.apply(&[0], Vec::new());
        assert!(empty.is_empty() && empty.names.is_empty() && empty.prints.is_empty() && empty.heads.is_empty());
    }

    proptest! {
        #[test]
        fn any_text_any_name(name in "\\PC{0,30}", text in "\\PC{0,80}", odd in "[a-zA-Z_\\-. `(\u{4e00}-\u{4e08}+#']{0,60}") {
            let (table, lex) = table(&[(&name, 0), (&odd, 0)]);
            for text in [&text, &odd, &format!("{text} {name} {odd}")] {
                for hit in table.find_in_text(text, &Visible::all(), &lex) {
                    prop_assert!(hit.span.0 < hit.span.1);
                }
            }
            if !fold_name(&name).is_empty() { prop_assert!(table.exact(&name, &Visible::all()).contains(&0)); }
        }
    }
}
