//! Clauses that only say whom to tell what came of it: "…and let me know how it went", "…顺便抄送给运营", "…, cc finance". They ride on the request before
//! them, are no request of their own, and say nothing of who can do it.
//!
//! In: a text, or a clause that is not the first of one. Out: where they begin at its end; whether a clause is one. A clause that says anything else beside
//! ("and tell me the weather in Paris"), or has others told (there may be an agent for that), is not. Cost: one pass over a short text, no model.
//! Not here: how a text comes apart into requests (`reading`).

use super::courtesy::{among, longest};

/// English beginnings that ask to be told, at a word boundary; what follows must speak of the outcome alone.
const EN_TELL: &[&str] = &[
    "tell me",
    "tell us",
    "let me know",
    "let us know",
    "report back",
    "report to me",
    "notify me",
    "notify us",
    "inform me",
    "inform us",
    "update me",
    "update us",
    "ping me",
    "message me",
    "keep me",
    "keep us",
    "get back to me",
    "get back to us",
    "come back to me",
    "show me",
    "give me",
    "send me",
];
/// The same, where something must follow.
const EN_SAY: &[&str] = &["say", "confirm"];
/// English words that speak of how the request before went.
const EN_OUTCOME: &str = "the a an result results outcome answer status progress confirmation reason reasons when once if as soon it it's its is was \
    has have been are done ready finished complete completed worked succeeded failed fails goes went why how whether that this you did about of to on \
    please thanks thank asap me us posted updated informed afterwards after then and or not there problem problems any with by back everything all so";
/// English beginnings that pass a copy on, each followed by people alone.
const EN_COPY: &[&str] = &["cc", "bcc", "copy", "loop in", "loop"];
/// Who a copy goes to: people and departments.
const EN_PEOPLE: &str = "me us him her them everyone everybody my our the a team teams group manager managers boss lead colleague colleagues management \
    operations ops finance legal hr sales marketing support engineering security procurement logistics accounting compliance product warehouse owner \
    department and in on as well too please thanks it of about to";
/// What may stand before either.
const EN_LEAD: &str = "please then also kindly just and finally afterwards";

/// What passes a copy on in Chinese, to whomever.
const ZH_COPY: &str = "抄送 抄报 知会";
/// What asks to be told in Chinese, where the caller stands beside.
const ZH_TELL: &str = "告诉 告知 通知 回复 答复 回个话 反馈 汇报 说明 说一下 说下 说一声 发给 发我 发一份";
/// The caller.
const ZH_ME: &str = "我们 我";
/// Others.
const ZH_OTHERS: &str = "他们 大家 所有人 同事 领导 老板 经理 主管 负责人 团队 部门 小组 运营 财务 法务 人事 行政 销售 市场 客服 仓库 采购 产品 研发 技术 物流 \
    他 她 部 组";
/// What is left of such a clause in Chinese: what came of it, and what only binds.
const ZH_REST: &str = "处理结果 执行结果 最终 最后 结果 进度 进展 情况 状态 原因 为什么 为何 怎么样 如何 失败 成功 完成 办好 做完 弄好 好了 是否 有没有 什么时候 一下 \
    一声 一份 一并 及时 并且 然后 之后 顺便 同时 麻烦 相关 帮我 你 给 把 向 对 和 与 及 并 也 都 再 就 请 帮 要 了 的 下 会 后 它 这 到 还 没 句 个";

/// What stands before a clause; each begins one.
const BEFORE: &[&str] = &[
    ",", "，", "。", ";", "；", "!", "！", "?", "？", "\n", "、", ". ", " and ", " then ", "之后", "然后", "并且", "同时", "顺便", "另外",
    "接着", "还要", "并", "再",
];
/// Where the longest end of `text` that rides on what is before it begins; a word in it may look like the beginning of another.
pub fn begin(text: &str) -> Option<usize> {
    let cuts = BEFORE.iter().flat_map(|b| text.match_indices(b));
    cuts.filter(|(at, b)| !text[..*at].trim().is_empty() && is_rider(&text[at + b.len()..])).map(|(at, _)| at).min()
}

/// Whether `clause`, which follows a request, only says whom to tell what came of that request.
pub fn is_rider(clause: &str) -> bool {
    if clause.chars().any(crate::types::lang::is_cjk) { chinese(clause) } else { english(clause) }
}

fn chinese(clause: &str) -> bool {
    let (mut rest, mut tells, mut copies, mut others, mut me) = (clause, false, false, false, false);
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() || first.is_ascii_punctuation() || "，。！；、“”".contains(first) {
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let mut none = false;
        let mut lists = [(ZH_COPY, &mut copies), (ZH_TELL, &mut tells), (ZH_OTHERS, &mut others), (ZH_ME, &mut me), (ZH_REST, &mut none)];
        // the longest word first, so that "后" does not stand for "后天"'s beginning where the whole is known
        let known = lists.iter_mut().filter_map(|(list, seen)| {
            let word = longest(rest, list)?;
            Some((word, &mut **seen))
        });
        let Some((word, seen)) = known.max_by_key(|(word, _)| word.len()) else { return false };
        *seen = true;
        me |= word == "发我";
        rest = &rest[word.len()..];
    }
    copies || tells && me && !others
}

fn english(clause: &str) -> bool {
    let lower = clause.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty()).collect();
    let start = words.iter().position(|w| !among(w, EN_LEAD)).unwrap_or(words.len());
    let words = &words[start..];
    let follows = |begins: &[&str], then: &str, least: usize| {
        begins.iter().any(|begin| {
            let begin: Vec<&str> = begin.split(' ').collect();
            words.strip_prefix(begin.as_slice()).is_some_and(|rest| rest.len() >= least && rest.iter().all(|w| among(w, then)))
        })
    };
    follows(EN_TELL, EN_OUTCOME, 0) || follows(EN_SAY, EN_OUTCOME, 1) || follows(EN_COPY, EN_PEOPLE, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_to_be_told_how_it_went_asks_for_nothing_else() {
        let riders = "tell me the result|let me know when it is done|say why it failed|please keep me posted|report back|confirm that it is done|\
            send me the results|copy operations|cc my manager|cc the finance team|抄送给运营|告诉我结果|通知我一下|把结果发给我|发我一份|反馈给我|回复我处理结果";
        for text in riders.split('|') {
            assert!(is_rider(text), "{text}");
        }
    }

    #[test]
    fn what_says_more_is_a_request() {
        let requests = "tell me the weather in Paris|send me the invoice|show me my last orders|copy the file to the archive|explain why it failed|\
            notify customers about the delay|notify the finance team|confirm the reservation|confirm|restart the service||告诉我明天的天气|\
            通知客户延迟发货|通知财务|向领导汇报进展|发一张发票|把合同发给供应商|重启服务|回复|发情况|说明原因|怎么说|说明书翻译成英文";
        for text in requests.split('|') {
            assert!(!is_rider(text), "{text}");
        }
    }

    #[test]
    fn it_begins_where_the_request_ends() {
        for (text, request) in [
            ("restart the service and tell me the result", "restart the service"),
            ("cancel the order, then refund it, and cc my manager", "cancel the order, then refund it"),
            ("取消订单 SO-1 的物流顺便抄送给运营", "取消订单 SO-1 的物流"),
            ("取消订单并通知我", "取消订单"),
        ] {
            assert_eq!(begin(text), Some(request.len()), "{text}");
        }
        for text in [
            "tell me the result",
            "tell me the weather and pack my bag",
            "查询系统并发",
            "查看客户邮件并回复",
            "translate this and show me how to say it",
            "",
        ] {
            assert_eq!(begin(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,80}", end in "(, |，| and |并)(tell me|告诉我)") {
            let whole = format!("{text}{end}");
            proptest::prop_assert!(begin(&whole).is_none_or(|at| whole.is_char_boundary(at)));
        }
    }
}
