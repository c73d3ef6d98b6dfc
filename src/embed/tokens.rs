//! Text to token ids, the same way for every encoder.
//!
//! In: any text. Out: ids with the two special tokens, at most `max_tokens`, and whether something was cut off.
//! Invariant: work is bounded by [`CHARS_A_TOKEN`] characters for each token the model reads, whatever the length of the text; a text never fails.
//! What a user writes is text: `[SEP]` in it is four characters and brackets, not the special token.
//! Cost: about 15 µs for a short text. Not here: the vectors.

use std::borrow::Cow;
use tokenizers::{Tokenizer, TruncationParams};

/// Characters read for each token that the model takes: more than any language needs, so that only absurd texts are cut before they are tokenised.
pub const CHARS_A_TOKEN: usize = 16;

/// A text as the encoder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Ids, the special ones included.
    pub ids: Vec<u32>,
    /// Whether the end of the text was cut off.
    pub truncated: bool,
}

/// A loaded tokenizer.
pub struct Tokeniser {
    inner: Tokenizer,
    lowercase: bool,
    max_chars: usize,
}

impl Tokeniser {
    /// Reads a `tokenizer.json`. The error says what is wrong with it.
    pub fn new(file: &[u8], max_tokens: usize, lowercase: bool) -> Result<Self, String> {
        let mut inner = Tokenizer::from_bytes(file).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        inner
            .with_truncation(Some(TruncationParams { max_length: max_tokens, ..TruncationParams::default() }))
            .map_err(|e| e.to_string())?;
        inner.set_encode_special_tokens(true);
        Ok(Self { inner, lowercase, max_chars: max_tokens.saturating_mul(CHARS_A_TOKEN) })
    }

    /// Number of different ids.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Result<Tokens, String> {
        let text = text.trim();
        let (text, cut) = match text.char_indices().nth(self.max_chars) {
            Some((end, _)) => (text.get(..end).unwrap_or(text), true),
            None => (text, false),
        };
        let text: Cow<'_, str> = if self.lowercase { text.to_lowercase().into() } else { text.into() };
        let encoding = self.inner.encode_fast(&*text, true).map_err(|e| e.to_string())?;
        let truncated = cut || !encoding.get_overflowing().is_empty();
        Ok(Tokens { ids: encoding.get_ids().to_vec(), truncated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word-piece tokenizer over a handful of words.
    const TINY: &str = r###"{"version":"1.0",
        "added_tokens":[
            {"id":1,"content":"[CLS]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
            {"id":2,"content":"[SEP]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":false},
        "pre_tokenizer":{"type":"BertPreTokenizer"},
        "post_processor":{"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]},
        "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
            "vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"b":4,"退":5,"[":6,"]":7}}}"###;

    fn tiny(max: usize, lowercase: bool) -> Tokeniser {
        Tokeniser::new(TINY.as_bytes(), max, lowercase).unwrap()
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        let t = tiny(8, false);
        assert_eq!(t.encode("a b").unwrap(), Tokens { ids: vec![1, 3, 4, 2], truncated: false });
        assert_eq!(t.encode("a a a a a a").unwrap(), Tokens { ids: vec![1, 3, 3, 3, 3, 3, 3, 2], truncated: false });
        assert_eq!(t.encode("a a a a a a b").unwrap(), Tokens { ids: vec![1, 3, 3, 3, 3, 3, 3, 2], truncated: true });
        let one_word = t.encode(&"退".repeat(1_000_000)).unwrap();
        assert!(one_word.truncated && one_word.ids.len() == 8);
        let cut = t.encode(&"b".repeat(1_000_000)).unwrap();
        assert!(cut.truncated && cut.ids == [1, 0, 2]);
    }

    #[test]
    fn odd_texts_are_texts() {
        let t = tiny(8, false);
        assert_eq!(t.encode("").unwrap().ids, [1, 2]);
        assert_eq!(t.encode(" \u{0}\u{7}\u{200b}\n").unwrap().ids.first(), Some(&1));
        assert_eq!(t.encode("[SEP]").unwrap().ids, [1, 6, 0, 7, 2], "a special token cannot be typed");
        assert_eq!(t.encode("A").unwrap().ids, [1, 0, 2]);
        assert_eq!(tiny(8, true).encode("A").unwrap().ids, [1, 3, 2]);
        assert!(Tokeniser::new(b"{}", 8, false).is_err());
    }
}
