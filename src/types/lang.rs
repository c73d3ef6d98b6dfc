//! Language of a text, told by its script. Two languages are first-class: Chinese and English.

use serde::{Deserialize, Serialize};

/// Language of a text as the embedding arms see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lang {
    /// Chinese (Han characters; kana and hangul are treated the same way: the Chinese model has them in its vocabulary, the English one does not).
    Zh,
    /// English and every other text in Latin script.
    En,
    /// Both scripts carry meaning.
    Mixed,
}

/// Whether `c` belongs to a script written without spaces that the Chinese model reads: Han, kana, hangul, bopomofo.
pub fn is_cjk(c: char) -> bool {
    matches!(c as u32,
        0x3040..=0x30FF | 0x3105..=0x312F | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xAC00..=0xD7AF | 0xF900..=0xFAFF | 0x20000..=0x323AF)
}

impl Lang {
    /// Tells the language of `text` by script. A text without letters is English.
    ///
    /// Mixed means: Han characters together with at least two Latin words that are not codes (an order number or a
    /// single product name inside a Chinese sentence leaves it Chinese).
    pub fn of(text: &str) -> Self {
        let han = text.chars().filter(|c| is_cjk(*c)).count();
        if han == 0 {
            return Self::En;
        }
        let words =
            text.split(|c: char| !c.is_alphabetic() || is_cjk(c)).filter(|w| w.len() >= 3 && w.chars().any(|c| c.is_lowercase())).count();
        // about two Han characters to a word
        match words {
            0 | 1 => Self::Zh,
            n if han <= 2 && n >= 4 => Self::En,
            _ => Self::Mixed,
        }
    }

    /// Which of the two scripts says more: about two Han characters weigh as much as a Latin word. Never `Mixed`.
    pub fn leaning(text: &str) -> Self {
        let han = text.chars().filter(|c| is_cjk(*c)).count();
        let words = text.split(|c: char| !c.is_alphabetic() || is_cjk(c)).filter(|w| w.len() >= 2).count();
        if han > 0 && han.div_ceil(2) >= words { Self::Zh } else { Self::En }
    }

    /// Short name: `zh`, `en`, `mixed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Zh => "zh",
            Self::En => "en",
            Self::Mixed => "mixed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_decide() {
        assert_eq!(Lang::of("退款怎么申请"), Lang::Zh);
        assert_eq!(Lang::of("how do I get a refund"), Lang::En);
        assert_eq!(Lang::of("查一下订单 SO-2025 的物流"), Lang::Zh);
        assert_eq!(Lang::of("帮我 review 一下这个 pull request 的代码"), Lang::Mixed);
        assert_eq!(Lang::of("日本の法令を検索"), Lang::Zh);
        assert_eq!(Lang::of(""), Lang::En);
        assert_eq!(Lang::leaning("帮我 review 一下这个 pull request 的代码"), Lang::Zh);
        assert_eq!(Lang::leaning("please translate 合同 for the legal team"), Lang::En);
        assert_eq!(Lang::leaning(""), Lang::En);
        assert_eq!(Lang::of("1234 !!"), Lang::En);
    }
}
