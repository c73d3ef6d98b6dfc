//! Texts as tokens, the same way for documents and queries.
//!
//! In: any text; what lies beyond [`MAX_CHARS`] is cut off before anything else looks at it. Out: tokens that are folded (NFKC, case,
//! traditional → simplified), words stemmed (English), Chinese cut by dictionary, identifiers split and also kept joined.
//! Invariant: never panics, and its time is linear in the characters taken. Cost: about 1 µs a Chinese word, 0.2 µs a Latin one.
//! Not here: weights of tokens, statistics (`keyword`).

mod fold;
mod scan;
mod stop;

use jieba_rs::Jieba;
use rust_stemmers::{Algorithm, Stemmer};
use std::sync::LazyLock;

pub(crate) use fold::{chars as fold_chars, grams};
pub(crate) use scan::{Piece, Script, pieces};

/// Characters of a text that are looked at.
pub const MAX_CHARS: usize = 20_000;
/// Characters of a token that are kept.
pub(crate) const MAX_TOKEN: usize = 64;
/// Most parts of an identifier that are also kept joined.
const MAX_JOINED: usize = 8;

static JIEBA: LazyLock<Jieba> = LazyLock::new(Jieba::new);
static STEMMER: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// Loads the dictionaries now (about 50 ms) instead of at the first Chinese text.
pub fn warm() {
    let _: Vec<Token> = analyze("载入 dictionaries");
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A word of the text; words follow one another without overlap.
    Word,
    /// A word inside a longer Chinese word.
    Inner,
    /// Parts of an identifier or neighbouring words, written together.
    Joined,
    /// Two neighbouring characters of a script without spaces.
    Pair,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Folded (and, if English, stemmed) text.
    pub text: String,
    /// Rank of the word it belongs to.
    pub at: u32,
    /// What it is.
    pub kind: TokenKind,
    /// Whether it is a function word that says nothing about what is wanted.
    pub stop: bool,
}

/// Tokens of a text, in its order.
pub fn analyze(text: &str) -> Vec<Token> {
    let chars = fold::chars(text, MAX_CHARS);
    let pieces = pieces(&chars);
    let mut tokens = Tokens { out: Vec::with_capacity(pieces.len() * 2), at: 0 };
    let mut first = 0;
    while let Some(piece) = pieces.get(first) {
        match piece.script {
            Script::Latin => {
                let mut end = first + 1;
                while pieces.get(end).is_some_and(|next| next.glued && next.script == Script::Latin) {
                    end += 1;
                }
                tokens.compound(pieces.get(first..end).unwrap_or_default());
                first = end;
            }
            Script::Han => {
                tokens.han(&piece.text);
                first += 1;
            }
            Script::Gram => {
                tokens.gram(&piece.text);
                first += 1;
            }
        }
    }
    tokens.out
}

/// The stem of a folded word, if it is English; otherwise the word itself.
pub(crate) fn stem(word: &str) -> String {
    let short: String = word.chars().take(MAX_TOKEN).collect();
    if short.len() > 2 && short.bytes().all(|b| b.is_ascii_lowercase()) { STEMMER.stem(&short).into_owned() } else { short }
}

struct Tokens {
    out: Vec<Token>,
    at: u32,
}

impl Tokens {
    fn push(&mut self, text: String, kind: TokenKind) {
        self.out.push(Token { text, at: self.at, kind, stop: false });
    }

    fn word(&mut self, text: String, stop: bool) {
        self.out.push(Token { text, at: self.at, kind: TokenKind::Word, stop });
        self.at += 1;
    }

    /// An identifier or a plain word.
    fn compound(&mut self, parts: &[Piece]) {
        if parts.len() > 1 && parts.len() <= MAX_JOINED {
            let whole: String = parts.iter().map(|p| p.text.as_str()).collect();
            self.push(stem(&whole), TokenKind::Joined);
            if parts.len() > 2 {
                for pair in parts.windows(2) {
                    let joined: String = pair.iter().map(|p| p.text.as_str()).collect();
                    self.push(stem(&joined), TokenKind::Joined);
                }
            }
        }
        for part in parts {
            self.word(stem(&part.text), parts.len() == 1 && stop::is_stop_en(&part.text));
        }
    }

    /// A run of Han characters: dictionary words, the words inside them, and all pairs of characters.
    fn han(&mut self, run: &str) {
        for cut in JIEBA.cut(run, false) {
            let word = cut.word;
            let bounds: Vec<usize> = word.char_indices().map(|(i, _)| i).chain([word.len()]).collect();
            let n = bounds.len() - 1;
            for len in 2..=3usize {
                if n <= len {
                    break;
                }
                for from in 0..=n - len {
                    let inner = bounds.get(from).zip(bounds.get(from + len)).and_then(|(a, b)| word.get(*a..*b));
                    if let Some(inner) = inner.filter(|inner| JIEBA.has_word(inner)) {
                        self.push(inner.to_owned(), TokenKind::Inner);
                    }
                }
            }
            self.word(word.chars().take(MAX_TOKEN).collect(), stop::is_stop_zh(word));
        }
        self.pairs(run);
    }

    /// A run of a script without spaces and without a dictionary here.
    fn gram(&mut self, run: &str) {
        self.pairs(run);
        // hiragana is grammar: particles and endings
        let grammar = run.chars().all(|c| matches!(c, '\u{3041}'..='\u{309F}'));
        self.word(run.chars().take(MAX_TOKEN).collect(), grammar);
    }

    fn pairs(&mut self, run: &str) {
        let chars: Vec<char> = run.chars().collect();
        for pair in chars.windows(2) {
            // marked, so that a pair never passes for a word
            let text: String = std::iter::once('\u{1}').chain(pair.iter().copied()).collect();
            self.push(text, TokenKind::Pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        analyze(text).into_iter().filter(|t| t.kind == TokenKind::Word).map(|t| t.text).collect()
    }

    fn has(text: &str, token: &str) -> bool {
        analyze(text).iter().any(|t| t.text == token)
    }

    #[test]
    fn identifiers_split_in_every_style() {
        for name in
            ["canvas_create_edge", "canvas-create-edge", "canvasCreateEdge", "CanvasCreateEdge", "canvas.create.edge", "CANVAS_CREATE_EDGE"]
        {
            assert_eq!(words(name), [stem("canvas"), stem("create"), stem("edge")], "{name}");
            assert!(has(name, &stem("canvascreateedge")) && has(name, &stem("createedge")), "{name}");
        }
        assert_eq!(words("HTTPServer parseJSON2 oauth2 v2.1 gpt-4"), ["http", "server", "pars", "json2", "oauth2", "v2", "1", "gpt", "4"]);
        assert!(has("OAuth2", "oauth2"), "the joined form is the plain one");
    }

    #[test]
    fn forms_fold_together() {
        assert_eq!(words("ＲＥＦＵＮＤ　Ｃｒｅａｔｅ"), words("refund create"));
        assert_eq!(words("訂單退款申請"), words("订单退款申请"));
        assert_eq!(words("re\u{200b}fund \u{202e}order"), words("refund order"));
        assert_eq!(words("orders refunded"), words("order refunding"));
        assert_eq!(words("user's don't"), ["user", "dont"].map(stem));
        assert!(has("how to write C++ and C#", "c++") && has("how to write C++ and C#", "c#"));
    }

    #[test]
    fn chinese_and_mixed_text_is_cut_into_words() {
        assert!(has("认证系统使用JWT令牌", "认证") && has("认证系统使用JWT令牌", "jwt") && has("认证系统使用JWT令牌", "令牌"));
        assert!(has("用JWT做认证", "认证") && has("用JWT做认证", "jwt"));
        assert!(has("日本の法令を検索します", "法令") && has("法令を調べて", "法令"));
        assert!(has("中华人民共和国", "共和国"), "words inside a word");
        assert!(analyze("请问 的 the").iter().all(|t| t.stop || t.kind != TokenKind::Word));
    }

    #[test]
    fn hostile_texts_are_only_text() {
        for text in
            ["", "- *", "(((((((", "field:secret", "a* b* c*", "\u{0}\u{1}\u{7f}", "\u{e0041}\u{e007f}", "😀".repeat(100_000).as_str()]
        {
            let _: Vec<Token> = analyze(text);
        }
        let long = "x".repeat(1_000_000);
        assert_eq!(analyze(&long).len(), 1);
        assert!(analyze(&long)[0].text.len() <= MAX_TOKEN);
        assert!(analyze(&"退".repeat(1_000_000)).len() <= 2 * MAX_CHARS);
        assert!(analyze(&"\u{fdfa}".repeat(1_000_000)).len() <= 4 * MAX_CHARS, "characters that unfold into many");
        assert!(analyze(&"a\u{301}".repeat(500_000)).len() <= MAX_CHARS);
        assert!(analyze(&"a_".repeat(500_000)).len() <= 2 * MAX_CHARS);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") { let _: Vec<Token> = analyze(&text); }

        #[test]
        fn never_panics_on_odd_mixes(text in "[a-zA-Z0-9_\\-\\. ()*+#':/\u{4e00}-\u{4e20}\u{3040}-\u{3060}\u{ac00}-\u{ac10}\u{fdf0}-\u{fdff}\u{300}-\u{310}]{0,80}") {
            let tokens = analyze(&text);
            prop_assert!(tokens.iter().all(|t| !t.text.is_empty() && t.text.chars().count() <= MAX_TOKEN));
            prop_assert!(tokens.windows(2).all(|w| w[0].at <= w[1].at));
        }
    }
}
