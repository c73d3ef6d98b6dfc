//! Clauses that are only manners: greetings, thanks, apologies, asking for help as such, saying that it is urgent. They stand around a request and say nothing
//! of who can do it; a text of nothing else is left as it is, for then they are what it says.
//!
//! In: a clause. Out: whether it is one. Cost: one pass, no model. Not here: what asks to be told how it went (`rider`).

/// English words of manners that make a clause one; everything beside them must be among [`EN_REST`].
const EN: &str = "hi hello hey hiya greetings morning afternoon evening thanks thank thx ty cheers please pls sorry appreciate appreciated grateful urgent \
    urgently asap hurry help assist assistance hope regards bother disturb dear question";
/// What may stand beside them.
const EN_REST: &str = "a an the i i'm i'd im am we you your yours there everyone all folks team guys sir madam assistant bot good well doing is it it's its \
    this that's that be been would could can will may might so much very really quite pretty rather a lot many in advance kindly as soon possible now right \
    today day have has nice great best kind again ok okay just quick quickly one small me us my with for of and to do need want some any if don't mind are was \
    feel get give hand favor favour something wondering question who on fast able";
/// Chinese words of manners.
const ZH: &str = "你好 您好 大家好 早上好 上午好 中午好 下午好 晚上好 早安 晚安 哈喽 哈啰 嗨 在吗 在不在 有人吗 请问 打扰 不好意思 抱歉 麻烦 谢谢 谢啦 多谢 感谢 辛苦 拜托 \
    急 着急 加急 紧急 尽快 赶紧 抓紧 越快越好 快点 快一点 帮帮忙 帮个忙 帮忙 帮帮我 帮我看 帮我查 看看 看一下 看下 咨询 想问 问一下 问下 请教 有个问题 有件事 有个事";
/// What may stand beside them.
const ZH_REST: &str = "你们 您们 我们 你 您 我 请 帮 给 一下 一个 下 个 了 的 地 啊 呀 哦 哈 吧 呢 哟 啦 嘛 吗 想 要 需要 有 这 这个 这边 那 是 就 很 太 非常 比较 十分 特别 \
    真的 挺 有点 处理 各位 老师 客服 亲爱的 亲 小助手 助手 同学 朋友 事情 事 问题 件 点 先 再 也 都 能 可以 能否 可否 能不能 可不可以 现在 今天 情况";

/// Thanks that may end a text without a mark before them.
const THANKS: &[&str] = &[
    "thank you very much",
    "thank you so much",
    "thanks in advance",
    "thanks very much",
    "thanks so much",
    "many thanks",
    "thanks a lot",
    "thank you",
    "thanks",
    "thx",
    "谢谢你",
    "谢谢您",
    "非常感谢",
    "谢谢",
    "谢谢啦",
    "多谢",
    "感谢",
];
/// What stands before thanks that are spoken of, not said.
const SPOKEN: &str = "say says said saying write writing send mean means meaning translate word words phrase a an the to of for with my your our big and or no \
    说 写 发 译 句 声 个 的 词 表示 道 和";

/// Where thanks at the very end begin, where something is said before them.
pub fn thanks(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let at = THANKS.iter().filter_map(|t| lower.strip_suffix(t)).map(str::len).min()?;
    let before = text[..at].trim_end();
    let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let apart = at > before.len() || !word.ends_with(|c: char| c.is_ascii_alphanumeric());
    let spoken = SPOKEN.split_whitespace().any(|s| if s.is_ascii() { word.eq_ignore_ascii_case(s) } else { word.ends_with(s) });
    (!word.is_empty() && apart && !spoken).then_some(before.len())
}

/// Whether `clause` is only manners.
pub fn is_courtesy(clause: &str) -> bool {
    if clause.chars().any(crate::types::lang::is_cjk) { chinese(clause) } else { english(clause) }
}

/// Whether a word stands in a list of words parted by spaces.
pub(super) fn among(word: &str, list: &str) -> bool {
    list.split_whitespace().any(|w| w == word)
}

/// The longest word of such a list that a text begins with.
pub(super) fn longest(text: &str, list: &'static str) -> Option<&'static str> {
    list.split_whitespace().filter(|w| text.starts_with(w)).max_by_key(|w| w.len())
}

fn english(clause: &str) -> bool {
    let lower = clause.to_lowercase().replace('’', "'");
    let words = || lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty());
    words().any(|w| among(w, EN)) && words().all(|w| among(w, EN) || among(w, EN_REST))
}

fn chinese(clause: &str) -> bool {
    let (mut rest, mut manners) = (clause, false);
    while let Some(first) = rest.chars().next() {
        if !first.is_alphanumeric() {
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (own, other) = (longest(rest, ZH), longest(rest, ZH_REST));
        let Some(word) = own.into_iter().chain(other).max_by_key(|w| w.len()) else { return false };
        manners |= own == Some(word);
        rest = &rest[word.len()..];
    }
    manners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manners_say_nothing_of_what_is_wanted() {
        let manners = "Hi there|hello|hope you are doing well|could you please help me with this|Thank you so much!|thanks in advance|this is really urgent|\
            sorry to bother you|I need some help|good morning team|as soon as possible please|你好|您好，在吗|麻烦您帮我看一下|非常感谢|比较急|尽快处理|请问一下|\
            我想咨询一下|不好意思打扰了|帮个忙";
        for text in manners.split('|') {
            assert!(is_courtesy(text), "{text}");
        }
        let others = "refund my order|help me refund my order|good morning america news|say hello in French|what is the weather today|that's all|\
            is it possible||帮我查一下订单|请尽快退款|你好世界程序|紧急联系人|感谢信|麻烦取消订单|看看天气";
        for text in others.split('|') {
            assert!(!is_courtesy(text), "{text}");
        }
    }

    #[test]
    fn thanks_need_no_mark_before_them() {
        for (text, before) in [
            ("cancel my card thank you so much", Some("cancel my card")),
            ("what is my balance thanks", Some("what is my balance")),
            ("帮我查下订单谢谢", Some("帮我查下订单")),
            ("how do you say thank you", None),
            ("translate thank you", None),
            ("send a big thanks", None),
            ("怎么用日语说谢谢", None),
            ("thank you", None),
            ("谢谢", None),
            ("unthanks", None),
        ] {
            assert_eq!(thanks(text), before.map(str::len), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_clause_is_read(text in "\\PC{0,80}") {
            is_courtesy(&text);
            proptest::prop_assert!(thanks(&text).is_none_or(|at| text.is_char_boundary(at)));
        }
    }
}
