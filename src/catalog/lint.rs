//! Advice on a manifest: what makes its capabilities hard to find or easy to confuse. Never a refusal.
//!
//! In: a checked manifest; for what needs vectors or the whole corpus, the small facts that `ingest` computed ([`Facts`]).
//! Out: faults used as advice, each with place, expectation and cure. Pure. Cost: linear in the texts.
//! Not here: computing similarities (`ingest`), hostile characters (`types::manifest_check`).

use crate::types::lang::is_cjk;
use crate::types::{Capability, Fault, Manifest, text};

/// Cosine from which two capabilities are near-duplicates.
pub const NEAR_DUPLICATE: f32 = 0.97;
/// Share of other capabilities' texts in which a name may stand before it counts as common.
pub const COMMON_NAME: f32 = 0.01;

/// What is known about one capability among the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Index of the capability in its manifest.
    pub capability: usize,
    /// Most similar other capability, by description: its name as the owner may see it, and the cosine.
    pub nearest: Option<(String, f32)>,
    /// Examples that are nearer to another capability than to their own: index, the other's name.
    pub strayed: Vec<(usize, String)>,
    /// Share of other capabilities' texts in which its name's words stand, 0..=1.
    pub name_share: Option<f32>,
}

/// Everything that can be said from the manifest alone and from `facts`.
pub fn lint(manifest: &Manifest, facts: &[Facts]) -> Vec<Fault> {
    let mut advice = Vec::new();
    for (i, capability) in manifest.capabilities.iter().enumerate() {
        descriptions(i, capability, &mut advice);
        name(i, capability, facts.iter().find(|f| f.capability == i), &mut advice);
    }
    for fact in facts {
        let place = format!("/capabilities/{}", fact.capability);
        if let Some((other, cosine)) = fact.nearest.as_ref().filter(|(_, cosine)| *cosine >= NEAR_DUPLICATE) {
            advice.push(Fault::new(
                format!("{place}/description"),
                "a description that sets it apart",
                format!("it is nearly the same as that of {other} (cosine {cosine:.2}): say what differs, or merge them"),
            ));
        }
        for (example, other) in &fact.strayed {
            advice.push(Fault::new(
                format!("{place}/examples/{example}"),
                "an example of this capability",
                format!("it is nearer to {other}: make it more specific, or move it there"),
            ));
        }
    }
    advice
}

fn descriptions(i: usize, capability: &Capability, advice: &mut Vec<Fault>) {
    let place = format!("/capabilities/{i}/description");
    let texts = [("zh", &capability.description.zh), ("en", &capability.description.en)];
    for (lang, other) in [("zh", "en"), ("en", "zh")] {
        let has = |wanted: &str| texts.iter().any(|(l, t)| *l == wanted && t.is_some());
        if !has(lang) && has(other) {
            let name = if lang == "zh" { "Chinese" } else { "English" };
            advice.push(Fault::new(
                format!("{place}/{lang}"),
                format!("a description in {name} too"),
                format!("requests in {name} reach it only as suggestions: add \"{lang}\""),
            ));
        }
    }
    for (lang, description) in texts.iter().filter_map(|(l, t)| t.as_deref().map(|t| (l, t))) {
        let at = format!("{place}/{lang}");
        let chinese = description.chars().any(is_cjk);
        if chinese != (**lang == *"zh") && description.chars().any(char::is_alphabetic) && !(chinese && is_mostly_latin(description)) {
            let (name, other) = if **lang == *"zh" { ("Chinese", "en") } else { ("English", "zh") };
            advice.push(Fault::new(
                at,
                format!("a description in {name}"),
                format!("it is in the other language: write it in {name}, or move it to \"{other}\""),
            ));
        } else if is_short(description) {
            advice.push(Fault::new(
                at,
                "a sentence that says what it does and to what",
                "too short to be told apart: add object, purpose and limits",
            ));
        } else if is_generic(description, &capability.intent) {
            advice.push(Fault::new(
                at,
                "what it does in particular",
                "it says little more than its name or fits anything: name the object and the result",
            ));
        } else if praises(description) {
            advice.push(Fault::new(
                at,
                "what it does, soberly",
                "claims such as \"best\" or \"everything\" do not help it to be chosen: remove them",
            ));
        }
    }
    if capability.examples.is_empty() {
        advice.push(Fault::new(
            format!("/capabilities/{i}/examples"),
            "a few requests in the callers' words",
            "three to five different ones make it easier to find",
        ));
    }
}

fn name(i: usize, capability: &Capability, fact: Option<&Facts>, advice: &mut Vec<Fault>) {
    let words = text::words_of_name(&capability.intent);
    let single = !words.contains(' ');
    let share = fact.and_then(|f| f.name_share).unwrap_or(0.0);
    let common = single && COMMON_WORDS.contains(&words.as_str()) || (single && words.chars().all(is_cjk) && words.chars().count() <= 2);
    if common || share > COMMON_NAME {
        advice.push(Fault::new(
            format!("/capabilities/{i}/intent"),
            "a name that does not stand in other texts by chance",
            format!("\"{words}\" is common: inside a text it does not count as a name; add the object, such as {words}_order"),
        ));
    }
}

/// Whether more is said in Latin script than in Han characters, two of which are about a word.
fn is_mostly_latin(text: &str) -> bool {
    let (han, latin) = counts(text);
    2 * latin > han
}

/// Han characters and words of Latin script.
fn counts(text: &str) -> (usize, usize) {
    let han = text.chars().filter(|c| is_cjk(*c)).count();
    (han, text.split(|c: char| !c.is_alphanumeric() || is_cjk(c)).filter(|w| !w.is_empty()).count())
}

/// Fewer than 3 words of Latin script and fewer than 6 Han characters.
fn is_short(description: &str) -> bool {
    let (han, latin) = counts(description);
    han < 6 && latin < 3
}

/// Nothing but the name's words and words that fit anything.
fn is_generic(description: &str, intent: &str) -> bool {
    let lower = description.to_lowercase();
    let name = text::words_of_name(intent);
    let known: Vec<&str> = name.split(' ').collect();
    let latin: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric() || is_cjk(c)).filter(|w| !w.is_empty()).collect();
    let mut han: String = lower.chars().filter(|c| is_cjk(*c)).collect();
    for filler in GENERIC_HAN {
        han = han.replace(filler, "");
    }
    for word in &known {
        han = han.replace(word, "");
    }
    let told = latin.iter().filter(|w| !GENERIC_WORDS.contains(*w) && !known.contains(*w)).count();
    told == 0 && han.chars().count() < 2
}

fn praises(description: &str) -> bool {
    let lower = description.to_lowercase();
    let padded = format!(" {} ", lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" "));
    [
        " best agent ",
        " best tool ",
        " the best ",
        " everything ",
        " anything ",
        " any task ",
        " any request ",
        " all requests ",
        " all tasks ",
    ]
    .iter()
    .any(|p| padded.contains(p))
        || ["万能", "最好的", "任何任务", "任何请求", "一切任务", "所有任务", "所有请求", "什么都能"].iter().any(|p| lower.contains(p))
}

/// Single words that stand in requests by chance.
const COMMON_WORDS: &[&str] = &[
    "accept",
    "add",
    "alert",
    "analyze",
    "answer",
    "apply",
    "approve",
    "ask",
    "assign",
    "book",
    "build",
    "buy",
    "calculate",
    "call",
    "cancel",
    "chat",
    "check",
    "close",
    "collect",
    "compare",
    "confirm",
    "connect",
    "convert",
    "copy",
    "count",
    "create",
    "date",
    "delete",
    "deploy",
    "describe",
    "do",
    "download",
    "edit",
    "email",
    "evaluate",
    "execute",
    "explain",
    "export",
    "extract",
    "fetch",
    "file",
    "filter",
    "find",
    "fix",
    "format",
    "generate",
    "get",
    "give",
    "go",
    "help",
    "import",
    "info",
    "insert",
    "invoke",
    "join",
    "label",
    "list",
    "load",
    "log",
    "login",
    "lookup",
    "mail",
    "make",
    "manage",
    "merge",
    "message",
    "monitor",
    "move",
    "name",
    "news",
    "no",
    "note",
    "notify",
    "open",
    "order",
    "parse",
    "pay",
    "plan",
    "play",
    "post",
    "predict",
    "print",
    "process",
    "publish",
    "query",
    "read",
    "receive",
    "record",
    "refund",
    "register",
    "remove",
    "rename",
    "reply",
    "report",
    "request",
    "reset",
    "resolve",
    "restart",
    "return",
    "review",
    "run",
    "save",
    "scan",
    "schedule",
    "score",
    "search",
    "select",
    "send",
    "set",
    "share",
    "show",
    "sort",
    "start",
    "status",
    "stop",
    "submit",
    "subscribe",
    "summarize",
    "summary",
    "support",
    "sync",
    "test",
    "text",
    "time",
    "track",
    "train",
    "transfer",
    "translate",
    "translation",
    "update",
    "upload",
    "validate",
    "verify",
    "view",
    "watch",
    "weather",
    "write",
    "yes",
];

/// Words that fit any description.
const GENERIC_WORDS: &[&str] = &[
    "a",
    "agent",
    "all",
    "an",
    "and",
    "any",
    "api",
    "assist",
    "assistant",
    "can",
    "capability",
    "data",
    "do",
    "does",
    "for",
    "from",
    "function",
    "general",
    "good",
    "handle",
    "handles",
    "help",
    "helper",
    "helpful",
    "helps",
    "in",
    "information",
    "is",
    "it",
    "of",
    "on",
    "or",
    "perform",
    "performs",
    "process",
    "processes",
    "processing",
    "provide",
    "provides",
    "purpose",
    "request",
    "requests",
    "service",
    "some",
    "something",
    "stuff",
    "support",
    "supports",
    "system",
    "task",
    "tasks",
    "that",
    "the",
    "thing",
    "things",
    "this",
    "to",
    "tool",
    "use",
    "used",
    "useful",
    "user",
    "users",
    "various",
    "very",
    "with",
    "work",
    "works",
    "you",
    "your",
];

/// The same in Chinese, longest first.
const GENERIC_HAN: &[&str] = &[
    "智能体",
    "能力",
    "功能",
    "工具",
    "服务",
    "助手",
    "处理",
    "支持",
    "提供",
    "各种",
    "通用",
    "相关",
    "用户",
    "帮助",
    "进行",
    "任务",
    "请求",
    "数据",
    "信息",
    "一个",
    "这个",
    "可以",
    "用于",
    "用来",
    "操作",
    "系统",
    "接口",
    "的",
    "是",
    "和",
    "与",
    "了",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::manifest_check::{Rules, check};
    use serde_json::{Value, json};

    fn advice(capability: Value, facts: &[Facts]) -> Vec<String> {
        let value = json!({"namespace": "n", "agent_id": "a", "endpoints": [{"protocol": "pull"}], "capabilities": [capability]});
        let manifest = check(&value, &Rules::default()).unwrap().manifest;
        lint(&manifest, facts)
            .into_iter()
            .map(|f| format!("{}: {}", f.pointer.trim_start_matches("/capabilities/0/"), f.expected))
            .collect()
    }

    fn good() -> Value {
        json!({"intent": "refund_create", "examples": ["我要退款"],
            "description": {"zh": "为已付款的订单发起退款申请", "en": "Create a refund for a paid order"}})
    }

    fn with(key: &str, value: Value) -> Value {
        let mut capability = good();
        capability[key] = value;
        capability
    }

    fn holds(list: &[String], words: &str) -> bool {
        list.iter().any(|a| a.contains(words))
    }

    #[test]
    fn a_good_capability_gets_no_advice() {
        assert_eq!(advice(good(), &[]), Vec::<String>::new());
    }

    #[test]
    fn short_generic_and_boasting_descriptions() {
        for short in ["Refund", "退款", "Do it"] {
            assert!(holds(&advice(with("description", json!(short)), &[]), "a sentence that says"), "{short}");
        }
        for generic in
            ["This tool handles various user requests", "A helpful assistant for the refund create task", "这是一个通用的处理工具"]
        {
            assert!(holds(&advice(with("description", json!(generic)), &[]), "in particular"), "{generic}");
        }
        for boast in ["The best agent for everything about orders", "万能客服，订单退款什么都能做"] {
            assert!(holds(&advice(with("description", json!(boast)), &[]), "soberly"), "{boast}");
        }
    }

    #[test]
    fn languages_that_were_mixed_up() {
        let swapped = json!({"zh": "Create a refund for a paid order", "en": "为已付款的订单发起退款申请"});
        let list = advice(with("description", swapped), &[]);
        assert!(holds(&list, "a description in Chinese") && holds(&list, "a description in English"), "{list:?}");
        let mixed = json!({"zh": "为 SKU 创建 SO 单", "en": "Create an order (采购单) for a SKU in the warehouse"});
        assert!(!holds(&advice(with("description", mixed), &[]), "a description in"));
    }

    #[test]
    fn missing_languages_and_examples() {
        let list = advice(json!({"intent": "refund_create", "description": "Create a refund for a paid order"}), &[]);
        assert_eq!(list, ["description/zh: a description in Chinese too", "examples: a few requests in the callers' words"]);
        assert!(holds(&advice(with("description", json!("为已付款的订单发起退款申请")), &[]), "in English too"));
    }

    #[test]
    fn common_names() {
        for common in ["check", "Create", "退款"] {
            assert!(holds(&advice(with("intent", json!(common)), &[]), "by chance"), "{common}");
        }
        for fine in ["check_order", "kubectl", "退款申请"] {
            assert!(!holds(&advice(with("intent", json!(fine)), &[]), "by chance"), "{fine}");
        }
        let share = |name_share| [Facts { name_share: Some(name_share), ..Facts::default() }];
        assert!(holds(&advice(good(), &share(0.05)), "by chance") && !holds(&advice(good(), &share(0.001)), "by chance"));
    }

    #[test]
    fn neighbours() {
        let facts = |cosine| {
            [Facts { nearest: Some(("orders/other refund_make".into(), cosine)), strayed: vec![(0, "x".into())], ..Facts::default() }]
        };
        let list = advice(good(), &facts(0.98));
        assert!(holds(&list, "sets it apart") && holds(&list, "an example of this capability"), "{list:?}");
        assert!(!holds(&advice(good(), &facts(0.9)), "sets it apart"));
    }
}
