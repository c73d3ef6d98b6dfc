//! Texts that speak of a thing instead of asking for it: it is done already ("我已经把订单取消了", "the release has been rolled back already"), it is not the
//! case ("账号没有被锁"), what it means or what would follow is asked ("什么叫主备切换", "what happens if the primary fails"). Vectors hardly tell these from a
//! request, so they are answered with suggestions and never carried out.
//!
//! In: a text. Out: whether it only tells, or only asks about. Words of asking speak for a request: "我已经付款了，帮我查物流" is one.
//! Cost: a few searches for short words. Not here: negated requests (`reading`), what a capability is for (`pipeline` lets those through that explain).

/// Words that ask for something; with one of them a report is the reason for a request.
const ZH_ASKS: &[&str] =
    &["帮", "请", "想", "要", "需", "怎么", "如何", "吗", "？", "?", "查", "能", "可以", "麻烦", "呢", "什么", "哪", "多少", "几", "为何"];
const EN_ASKS: &[&str] = &[
    "please", "can", "could", "help", "want", "need", "would", "how", "let", "i'd", "should", "must", "if", "why", "where", "what", "when",
    "who", "which", "but", "still",
];
/// How a finished thing ends in Chinese.
const ZH_DONE: &[&str] = &["了", "过"];
/// A thing that is not the case, or was not asked for.
const ZH_DENIED: &[&str] = &["没有被", "没被", "没说要", "没有说要", "没说过要", "没有说过要"];
/// Questions after a meaning or a consequence.
const ZH_MEANING: &[&str] = &["什么是", "什么叫", "是什么意思", "有什么区别", "有何区别", "会怎么样", "会怎样"];
const EN_MEANING: &[&str] = &[
    "define ",
    "definition of",
    "meaning of",
    "explain what",
    "difference between",
    "what happens if",
    "what happens when",
    "what would happen",
];
/// What a capability's own texts say when explaining is its work.
const EXPLAINS: &[&str] = &[
    "defin",
    "mean",
    "expla",
    "translat",
    "gloss",
    "dictionar",
    "faq",
    "knowledge",
    "compar",
    "定义",
    "意思",
    "含义",
    "解释",
    "释义",
    "翻译",
    "词典",
    "知识",
    "百科",
    "问答",
    "比较",
    "对比",
    "区别",
];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty())
}

/// Whether the text reports that something is done or is not the case, and asks for nothing.
pub fn reports(text: &str) -> bool {
    let lower = text.to_lowercase();
    if lower.contains(['?', '？']) {
        return false;
    }
    if lower.chars().any(crate::types::lang::is_cjk) {
        if ZH_DENIED.iter().any(|w| lower.contains(w)) {
            return !["帮", "请给", "请把", "怎么", "吗"].iter().any(|w| lower.contains(w));
        }
        let clauses: Vec<&str> =
            lower.split(['，', ',', '。', '；', ';', '！', '!', '\n']).map(str::trim).filter(|c| !c.is_empty()).collect();
        let done = |c: &&str| c.contains("已经") && ZH_DONE.iter().any(|end| c.ends_with(end));
        return clauses.len() <= 2 && clauses.iter().any(done) && !ZH_ASKS.iter().any(|w| lower.contains(w));
    }
    words(&lower).any(|w| w == "already") && !words(&lower).any(|w| EN_ASKS.contains(&w))
}

/// Whether the text asks what something means, or what would follow from it.
pub fn asks_about(text: &str) -> bool {
    let lower = text.trim().to_lowercase();
    if ZH_MEANING.iter().chain(EN_MEANING).any(|w| lower.contains(w)) {
        return true;
    }
    // "what is a failover": nothing but the thing
    let mut rest = words(&lower);
    let opening = matches!((rest.next(), rest.next()), (Some("what"), Some("is" | "are"))) || lower.starts_with("what's a");
    let said: Vec<&str> = words(&lower).skip(if lower.starts_with("what's") { 1 } else { 2 }).collect();
    opening && matches!(said.first(), Some(&("a" | "an"))) && (2..=3).contains(&said.len())
}

/// Whether explaining is what a capability does, by its own texts.
pub fn explains<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    texts.into_iter().any(|text| {
        let lower = text.to_lowercase();
        EXPLAINS.iter().any(|w| lower.contains(w))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_no_requests() {
        for text in [
            "我已经把订单取消了",
            "航班已经改签好了",
            "昨天服务器已经重启过了",
            "退款已经到账了，谢谢",
            "账号没有被锁",
            "我没说要请假",
            "the release has been rolled back already",
            "I already cancelled the order myself",
        ] {
            assert!(reports(text), "{text}");
        }
        for text in [
            "我已经付款了，帮我查一下物流",
            "订单已经三天了还没发货，怎么回事",
            "标记我待完成事项中的徒步任务成已完成",
            "my card is not working",
            "I already paid, where is my parcel?",
            "my card has already expired, I need a new one",
            "包裹还没到，帮我查一下",
            "取消订单",
        ] {
            assert!(!reports(text), "{text}");
        }
    }

    #[test]
    fn questions_about_a_thing_are_no_requests_for_it() {
        for text in [
            "what is a failover",
            "What's a rollback?",
            "什么叫主备切换",
            "主库挂了会怎么样",
            "what happens if the primary database fails",
            "explain what a rollback is",
            "what's the difference between a refund and an exchange",
            "define VPN",
        ] {
            assert!(asks_about(text), "{text}");
        }
        for text in [
            "what is my balance",
            "what is the weather like",
            "what is a good restaurant near the station",
            "what's up",
            "how do I get a refund",
            "什么时候发货",
        ] {
            assert!(!asks_about(text), "{text}");
        }
        assert!(explains(["Looks words up in a dictionary"]) && !explains(["Cancels an order", "取消订单"]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_will_do(text in "\\PC{0,200}") {
            let _ = (reports(&text), asks_about(&text));
        }
    }
}
