//! Texts that speak of a thing instead of asking for it: it is done already ("我已经把订单取消了", "the release has been rolled back already"), it is not the
//! case ("账号没有被锁"), what it means or what would follow is asked ("什么叫主备切换", "what happens if the primary fails"), it is the subject of a text
//! ("write a song about an ambulance") or of a translation, a question is put about it that no doing answers ("who invented the ambulance"), or it is
//! wondered about ("should I freeze my card?"). Vectors hardly tell these from a request, so they are answered with suggestions and never carried out.
//!
//! In: a text, and what the best candidate says of itself: who explains, translates or writes is asked by such texts; questions and reports are no
//! request only for who *does* something. Words of asking speak for a request: "我已经付款了，帮我查物流" is one.
//! Cost: a few searches for short words. Not here: negated requests (`reading`), opposites (`opposite`).

/// Words that ask for something; with one of them a report is the reason for a request.
const ZH_ASKS: &[&str] =
    &["帮", "请", "想", "要", "需", "怎么", "如何", "吗", "？", "?", "查", "能", "可以", "麻烦", "呢", "什么", "哪", "多少", "几", "为何"];
const EN_ASKS: &[&str] = &[
    "please", "can", "could", "help", "want", "need", "would", "how", "let", "i'd", "should", "must", "if", "why", "where", "what", "when",
    "who", "which", "but", "still",
];
/// How a finished thing ends in Chinese, and what says that it is.
const ZH_DONE: &[&str] = &["了", "过"];
const ZH_ALREADY: &[&str] = &["已经", "早就", "早已", "都已"];
/// Ends of clauses that say so by themselves.
const ZH_FINISHED: &[&str] = &["到账了", "批下来了", "办好了", "修好了", "解决了", "搞定了", "完成了", "结束了", "送到了"];
/// Times that are over, with which "过了" reports.
const ZH_BEFORE: &[&str] = &["昨", "前天", "上周", "上个月", "去年", "今早", "刚才", "早上", "上午"];
/// What is said beside a thing that is over.
const ZH_PLEASED: &[&str] = &["谢谢", "感谢", "真开心", "真高兴", "太好了", "真好", "辛苦"];
/// A thing that is not the case, or was not asked for.
const ZH_DENIED: &[&str] = &["没有被", "没被", "没说要", "没有说要", "没说过要", "没有说过要"];
/// Questions after a meaning or a consequence.
const ZH_MEANING: &[&str] = &["什么是", "什么叫", "是什么意思", "有什么区别", "有何区别", "会怎么样", "会怎样"];
const EN_MEANING: &[&str] = &[
    "what does the phrase",
    "what does the word",
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

/// What is written, told or sung.
const EN_PIECES: &[&str] = &[
    "song",
    "songs",
    "poem",
    "poems",
    "poetry",
    "story",
    "stories",
    "joke",
    "jokes",
    "haiku",
    "essay",
    "limerick",
    "rap",
    "lyrics",
    "novel",
    "tale",
    "riddle",
    "screenplay",
    "sonnet",
    "ballad",
];
const EN_MAKES: &[&str] = &["write", "compose", "tell", "sing", "invent", "create", "draw", "narrate", "recite", "make", "generate"];
const ZH_PIECES: &[&str] = &[
    "首诗",
    "的诗",
    "的歌",
    "诗歌",
    "首歌",
    "故事",
    "笑话",
    "作文",
    "小说",
    "段子",
    "谜语",
    "歌词",
    "剧本",
    "童话",
    "造句",
    "顺口溜",
    "对联",
];
const ZH_MAKES: &[&str] = &["写", "编", "讲", "唱", "作", "念", "说", "来", "用"];
/// What a capability's own texts say when writing is its work.
const WRITES: &[&str] =
    &["writ", "compos", "creativ", "lyric", "story", "stories", "poem", "joke", "写", "创作", "文案", "故事", "笑话", "诗", "歌"];
/// Asking for words in another language or form.
const OF_WORDS: &[&str] = &[
    "translate",
    "translation of",
    "how do you say",
    "how to say",
    "how do i say",
    "how do you spell",
    "how to spell",
    "how do you pronounce",
    "rhymes with",
    "synonym",
    "antonym",
    "翻译",
    "译成",
    "用英语怎么说",
    "用英文怎么说",
    "用中文怎么说",
    "怎么读",
    "怎么念",
    "怎么拼",
    "近义词",
    "反义词",
];
/// What a capability's own texts say when words are its work.
const WORDS: &[&str] = &[
    "translat",
    "languag",
    "spell",
    "pronounc",
    "rhym",
    "synonym",
    "dictionar",
    "gloss",
    "翻译",
    "语言",
    "读音",
    "拼写",
    "词典",
    "词语",
    "外语",
];
/// Wondering whether, in both languages.
const WONDERS: &[&str] = &[
    "is it hard to",
    "is it difficult to",
    "is it expensive to",
    "要不要",
    "划算吗",
    "好不好用",
    "should i ",
    "should we ",
    "is it worth",
    "is it safe",
    "is it wise",
    "is it legal",
    "is it ok to",
    "is it okay to",
    "该不该",
    "应不应该",
    "是否应该",
    "值不值得",
    "值得吗",
    "有必要吗",
    "有没有必要",
];
/// First words of questions about the world.
const EN_QUESTION: &[&str] =
    &["how", "who", "who's", "whose", "why", "when", "where", "which", "what", "what's", "did", "was", "were", "does", "is", "are", "has"];
const ZH_QUESTION: &[&str] = &[
    "多少钱",
    "多宽",
    "多高",
    "多重",
    "多长",
    "哪个牌子",
    "哪种",
    "是谁",
    "谁发明",
    "谁能",
    "谁可以",
    "为什么",
    "为何",
    "什么颜色",
    "哪一年",
    "哪年",
    "什么时候",
    "何时",
    "多久",
    "几点",
    "是不是",
    "什么样",
    "由来",
    "历史",
    "有多少",
    "有几个",
    "长什么",
];
/// With these a question is the asker's own business, or a polite request.
const EN_OWN: &[&str] = &[
    "i", "i'm", "i've", "i'd", "i'll", "my", "me", "mine", "we", "we're", "our", "us", "you", "your", "please", "can", "could", "would",
    "way", "possible", "able", "someone", "anyone", "anybody", "somebody",
];
const ZH_OWN: &[&str] = &["能", "怎样", "怎么", "我", "帮", "请", "麻烦", "想", "给", "咱", "可以", "您", "你"];
/// Who a report is about, at its beginning.
const EN_OTHERS: &[&str] =
    &["the", "a", "an", "his", "her", "their", "he", "she", "they", "it", "someone", "somebody", "everyone", "everybody", "people"];
/// Trouble that a report may be a request about.
const TROUBLE: &[&str] = &[
    "not",
    "no",
    "never",
    "wrong",
    "brok",
    "stol",
    "los",
    "miss",
    "fail",
    "error",
    "crash",
    "down",
    "delay",
    "late",
    "stuck",
    "declin",
    "reject",
    "refus",
    "expir",
    "leak",
    "damag",
    "crack",
    "hurt",
    "burn",
    "injur",
    "sick",
    "dead",
    "die",
    "hack",
    "lock",
    "block",
    "froz",
    "suspend",
    "charg",
    "duplicat",
    "slow",
    "stop",
    "drop",
    "jam",
    "overheat",
    "offline",
    "unavail",
    "unrespons",
    "disappear",
    "fell",
    "fall",
    "bleed",
    "unconsc",
    "collaps",
    "need",
    "n't",
    "alarm",
    "alert",
    "complain",
    "troubl",
    "problem",
    "issue",
    "exceed",
    "spik",
    "degrad",
    "overload",
    "full",
    "empty",
];
/// Doings, as names of capabilities begin or end.
const EN_DOES: &[&str] = &[
    "create",
    "cancel",
    "book",
    "reserve",
    "freeze",
    "unfreeze",
    "block",
    "unblock",
    "lock",
    "unlock",
    "start",
    "stop",
    "open",
    "close",
    "dispatch",
    "send",
    "delete",
    "remove",
    "add",
    "update",
    "change",
    "set",
    "submit",
    "apply",
    "pay",
    "transfer",
    "refund",
    "issue",
    "register",
    "enroll",
    "assign",
    "schedule",
    "reschedule",
    "approve",
    "reject",
    "ban",
    "unban",
    "launch",
    "deploy",
    "rollback",
    "restart",
    "reboot",
    "repair",
    "exchange",
    "renew",
    "extend",
    "activate",
    "deactivate",
    "enable",
    "disable",
    "subscribe",
    "unsubscribe",
    "join",
    "ship",
    "withdraw",
    "deposit",
    "replace",
    "reset",
    "release",
    "publish",
    "run",
    "make",
    "request",
    "order",
    "call",
    "move",
    "return",
    "hire",
    "invite",
    "sign",
    "upload",
    "import",
];
/// Names of those who know: of them questions are asked.
const EN_KNOWS: &[&str] = &[
    "query",
    "get",
    "list",
    "search",
    "find",
    "check",
    "show",
    "track",
    "status",
    "info",
    "lookup",
    "faq",
    "answer",
    "explain",
    "report",
    "read",
    "view",
    "history",
    "detail",
    "details",
    "recommend",
    "estimate",
    "calculate",
    "compare",
    "summary",
    "knowledge",
    "docs",
    "weather",
];
const ZH_DOES: &[&str] = &[
    "创建", "新建", "取消", "预约", "预订", "预定", "申请", "提交", "冻结", "解冻", "开具", "发送", "删除", "修改", "更新", "办理", "支付",
    "转账", "退款", "派车", "调度", "启动", "停止", "重启", "部署", "回滚", "封禁", "解封", "挂号", "下单", "开户", "销户", "报名", "登记",
    "起草", "安排", "换货", "退货",
];
const ZH_KNOWS: &[&str] =
    &["查询", "查看", "检索", "搜索", "问答", "统计", "解答", "咨询", "推荐", "对比", "追踪", "跟踪", "状态", "报表", "知识"];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty())
}

/// Whether a text speaks of something instead of asking the capability of this folded name, with these texts of its own, to do it.
pub fn tells(text: &str, name: &str, own: &[&str]) -> bool {
    let says = |what: &[&str]| {
        let all = || std::iter::once(name).chain(own.iter().copied());
        all().any(|t| {
            let lower = t.to_lowercase();
            what.iter().any(|w| lower.contains(w))
        })
    };
    let lower = text.trim().to_lowercase();
    reports(text)
        || (asks_about(text) && !says(EXPLAINS))
        || (is_piece(&lower) && !says(WRITES))
        || (OF_WORDS.iter().any(|w| lower.contains(w)) && !says(WORDS))
        || ((WONDERS.iter().any(|w| lower.contains(w)) || questions(&lower) || recounts(&lower)) && does(name, own))
}

/// Whether a text, in lower case, asks for a poem, a story or the like.
fn is_piece(lower: &str) -> bool {
    let made = words(lower).take(6).position(|w| EN_MAKES.contains(&w));
    let en = made.is_some_and(|at| words(lower).skip(at + 1).take(5).any(|w| EN_PIECES.contains(&w)));
    en || ZH_PIECES.iter().any(|p| lower.find(p).is_some_and(|at| p.starts_with('造') || ZH_MAKES.iter().any(|m| lower[..at].contains(m))))
}

/// Whether it is a question about the world, not about what the asker has or wants.
fn questions(lower: &str) -> bool {
    if lower.chars().any(crate::types::lang::is_cjk) {
        let asked = ZH_QUESTION.iter().any(|w| lower.contains(w)) || lower.trim_end_matches(['?', '？', '。', ' ']).ends_with('吗');
        return asked && !ZH_OWN.iter().any(|w| lower.contains(w));
    }
    // "how to …" asks for the doing
    let how_to = lower.starts_with("how to ") || lower.starts_with("how do ");
    !how_to && words(lower).next().is_some_and(|w| EN_QUESTION.contains(&w)) && !words(lower).any(|w| EN_OWN.contains(&w))
}

/// Whether it recounts, in one English sentence, what others did, and no trouble is in it.
fn recounts(lower: &str) -> bool {
    let past = |w: &str| {
        (w.len() > 4 && w.ends_with("ed"))
            || matches!(w, "came" | "went" | "sent" | "got" | "won" | "bought" | "gave" | "took" | "found" | "sold")
    };
    words(lower).next().is_some_and(|w| EN_OTHERS.contains(&w))
        && !lower.contains([',', ';', '?', ':'])
        && words(lower).skip(1).any(past)
        && !words(lower).any(|w| EN_ASKS.contains(&w) || TROUBLE.iter().any(|t| w.starts_with(t) || (*t == "n't" && w.ends_with(t))))
}

/// Whether a capability does something, by its name or by how its descriptions begin, and is not one of those that know.
fn does(name: &str, own: &[&str]) -> bool {
    let parts = || name.split('_');
    if parts().any(|w| EN_KNOWS.contains(&w)) || ZH_KNOWS.iter().any(|w| name.contains(w) || own.iter().any(|t| t.contains(w))) {
        return false;
    }
    let begins = |text: &&str| {
        let lower = text.to_lowercase();
        let first = words(&lower).next().unwrap_or("").to_string();
        EN_DOES.iter().any(|w| first == *w || first.strip_prefix(w).is_some_and(|end| matches!(end, "s" | "es" | "ing")))
            || ZH_DOES.iter().any(|w| lower.starts_with(w))
    };
    parts().any(|w| EN_DOES.contains(&w)) || ZH_DOES.iter().any(|w| name.contains(w)) || own.iter().any(begins)
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
        let done = |c: &&str| ZH_ALREADY.iter().any(|w| c.contains(w)) && ZH_DONE.iter().any(|end| c.ends_with(end));
        let over =
            |c: &&str| ZH_FINISHED.iter().any(|end| c.ends_with(end)) || (c.ends_with("过了") && ZH_BEFORE.iter().any(|w| c.contains(w)));
        let pleased = clauses.iter().any(|c| c.ends_with('了')) && ZH_PLEASED.iter().any(|w| lower.contains(w));
        return clauses.len() <= 2 && (pleased || clauses.iter().any(|c| done(c) || over(c))) && !ZH_ASKS.iter().any(|w| lower.contains(w));
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
            "公证早就办好了",
            "昨晚服务器重启过了",
            "救护车十分钟就到了，非常感谢",
            "报销的钱到账了",
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
            "取消订单，谢谢",
            "查一下昨天的订单，谢谢",
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
        let text = "what is a rollback";
        assert!(tells(text, "order_cancel", &["Cancels an order"]) && !tells(text, "glossary", &["Looks words up in a dictionary"]));
    }

    #[test]
    fn the_subject_of_a_text_is_not_asked_for() {
        let ambulance = ("ambulance_dispatch", ["Dispatches an ambulance to an address", "派救护车到指定地址"]);
        let told = |text: &str| tells(text, ambulance.0, &ambulance.1);
        for text in [
            "write a song about an ambulance",
            "tell me a short story in which an ambulance is sent",
            "讲个救护车的笑话",
            "写一首关于救护车的诗",
            "translate 'send an ambulance' into French",
            "把“派一辆救护车”翻译成英文",
            "who invented the ambulance",
            "why are ambulances white",
            "救护车是谁发明的",
            "should I call an ambulance for a cold?",
            "the ambulance arrived within five minutes",
            "is the ambulance free of charge",
            "how heavy is an ambulance",
            "救护车一辆多少钱",
            "救护车快吗",
        ] {
            assert!(told(text), "{text}");
        }
        for text in [
            "send an ambulance to 5 High Street",
            "we need an ambulance, an old man fell",
            "can you send an ambulance?",
            "叫一辆救护车到人民路5号",
            "请派救护车，有人晕倒了",
            "a man collapsed at the station",
            "the worker is injured",
            "someone is hurt",
            "什么时候能帮我派车",
            "how to get an ambulance",
            "能派救护车吗",
        ] {
            assert!(!told(text), "{text}");
        }
        assert!(!tells("translate this contract into French", "document_translate", &["Translates documents"]));
        assert!(!tells("write a poem about autumn", "text_write", &["Writes short texts"]));
        assert!(!tells("when does the library close", "opening_hours_query", &["Tells when a place is open"]));
        assert!(!tells("the order was created yesterday", "order_query", &["Looks up an order"]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_will_do(text in "\\PC{0,200}") {
            let _ = (reports(&text), asks_about(&text), tells(&text, &text, &[&text]));
        }
    }
}
