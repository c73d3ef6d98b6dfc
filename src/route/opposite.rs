//! Asking for the opposite: "freeze my card" where only `card_unfreeze` is there to take it. Vectors of the two are nearly the same, so the best that is
//! left after the right one was drained or deregistered may be the one that undoes it.
//!
//! In: a text and what a capability says of itself. Out: whether the text asks for one side of a pair of doings and the capability does the other. It
//! only ever turns `auto` into `suggest`. States are no requests for themselves ("my account is locked" asks for the unlocking), so only plain verbs of
//! the text count. Cost: a few searches for short words, for the best candidate alone. Not here: siblings that are both there (`undo`).

use std::collections::HashSet;
use std::sync::LazyLock;

/// Doings and their undoings.
struct Pair {
    /// English verbs in their plain form; phrases of two words.
    does: &'static [&'static str],
    undoes: &'static [&'static str],
    zh_does: &'static [&'static str],
    zh_undoes: &'static [&'static str],
    /// The undoing word takes the other as its object: "取消预约", "lift the ban".
    takes: bool,
}

const PAIRS: &[Pair] = &[
    Pair {
        does: &["freeze", "block", "lock", "suspend", "disable", "deactivate", "ban", "mute", "pause", "restrict"],
        undoes: &[
            "unfreeze",
            "lift",
            "unblock",
            "unlock",
            "thaw",
            "resume",
            "enable",
            "activate",
            "reactivate",
            "unban",
            "unmute",
            "reopen",
            "reinstate",
            "restore",
        ],
        zh_does: &["冻结", "挂失", "封禁", "封号", "封停", "封掉", "锁定", "禁用", "停用", "禁言", "拉黑", "暂停"],
        zh_undoes: &["解冻", "解除", "解封", "解锁", "启用", "恢复", "解禁", "激活", "移出黑名单"],
        takes: true,
    },
    Pair {
        does: &["start", "begin", "launch", "turn on", "switch on", "power on"],
        undoes: &["stop", "halt", "terminate", "kill", "turn off", "switch off", "shut down", "power off"],
        zh_does: &["开始", "启动", "打开", "开启"],
        zh_undoes: &["停止", "停掉", "关闭", "关掉", "关停", "结束"],
        takes: false,
    },
    Pair {
        does: &["book", "reserve", "create", "schedule", "subscribe", "enroll", "enrol", "join", "apply", "submit", "add", "buy", "place"],
        undoes: &["cancel", "unsubscribe", "withdraw", "quit", "revoke", "delete", "remove", "call off", "void"],
        zh_does: &["预约", "预订", "预定", "挂号", "下单", "创建", "新建", "添加", "新增", "订阅", "报名", "加入", "申请", "购买"],
        zh_undoes: &["取消", "退订", "退号", "撤销", "撤回", "删除", "移除", "退出", "注销", "作废", "退掉"],
        takes: true,
    },
    Pair {
        does: &["increase", "raise", "upgrade"],
        undoes: &["decrease", "lower", "reduce", "downgrade"],
        zh_does: &["提高", "增加", "上调", "升级", "调高", "调大"],
        zh_undoes: &["降低", "减少", "下调", "降级", "调低", "调小"],
        takes: false,
    },
    Pair {
        does: &["check in", "clock in", "log in", "sign in", "deposit", "import", "upload", "borrow"],
        undoes: &["check out", "clock out", "log out", "sign out", "withdraw", "export", "download", "return"],
        zh_does: &["入库", "入住", "登录", "存入", "导入", "上传", "转入", "上架", "上线", "借书"],
        zh_undoes: &["出库", "退房", "登出", "退出登录", "取出", "提现", "导出", "下载", "转出", "下架", "下线", "还书"],
        takes: false,
    },
    Pair {
        does: &["approve", "accept"],
        undoes: &["reject", "decline", "deny", "refuse"],
        zh_does: &["批准", "同意"],
        zh_undoes: &["驳回", "拒绝"],
        takes: false,
    },
    Pair {
        does: &["connect", "bind", "install", "pair", "publish", "open account"],
        undoes: &["disconnect", "unbind", "uninstall", "unpair", "unpublish", "close account"],
        zh_does: &["连接", "绑定", "安装", "发布", "开户", "入职"],
        zh_undoes: &["断开", "解绑", "卸载", "撤下", "销户", "离职"],
        takes: false,
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Does,
    Undoes,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Does => Self::Undoes,
            Self::Undoes => Self::Does,
        }
    }
}

/// A text in lower case, with its words set apart by single spaces.
struct Words(String, String);

impl Words {
    fn of(text: &str) -> Self {
        let lower = text.to_lowercase();
        let mut spaced = String::with_capacity(lower.len() + 2);
        spaced.push(' ');
        for word in lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty()) {
            spaced.push_str(word);
            spaced.push(' ');
        }
        Self(lower, spaced)
    }

    /// Whether a plain verb or a phrase stands there.
    fn says(&self, word: &str) -> bool {
        self.1.match_indices(word).any(|(at, _)| self.1[..at].ends_with(' ') && self.1[at + word.len()..].starts_with(' '))
    }

    /// The same in any of its forms: "freezes", "freezing", "cancellation".
    fn mentions(&self, word: &str) -> bool {
        let stem = word.strip_suffix('e').unwrap_or(word);
        self.1.match_indices(stem).any(|(at, _)| self.1[..at].ends_with(' '))
    }

    fn zh(&self, words: &[&str]) -> bool {
        words.iter().any(|w| self.0.contains(w))
    }
}

impl Pair {
    /// The side that a request asks for.
    fn asked(&self, text: &Words) -> Option<Side> {
        let does = self.does.iter().any(|w| text.says(w)) || text.zh(self.zh_does);
        let undoes = self.undoes.iter().any(|w| text.says(w)) || text.zh(self.zh_undoes);
        match (does, undoes) {
            (true, false) => Some(Side::Does),
            (false, true) => Some(Side::Undoes),
            (true, true) if self.takes => Some(Side::Undoes),
            (true, true) | (false, false) => None,
        }
    }

    fn mentioned(&self, side: Side, text: &Words) -> bool {
        let (en, zh) = if side == Side::Does { (self.does, self.zh_does) } else { (self.undoes, self.zh_undoes) };
        en.iter().any(|w| text.mentions(w)) || text.zh(zh)
    }

    /// The side that a capability is on: by its name, else by its texts, where they speak of one side alone.
    fn offered(&self, name: &Words, texts: &[Words]) -> Option<Side> {
        let by_texts = |side: Side| texts.iter().any(|t| self.mentioned(side, t));
        let said = |en: &[&str], zh: &[&str]| en.iter().any(|w| name.says(w)) || name.zh(zh);
        let named = match (said(self.does, self.zh_does), said(self.undoes, self.zh_undoes)) {
            (_, true) => Some(Side::Undoes),
            (true, false) => Some(Side::Does),
            (false, false) => None,
        };
        let side = named.or_else(|| match (by_texts(Side::Does), by_texts(Side::Undoes)) {
            (true, false) => Some(Side::Does),
            (false, true) => Some(Side::Undoes),
            (true, true) | (false, false) => None,
        })?;
        // what undoes something names what it undoes; but who does one thing and speaks of the other may do both
        (side == Side::Undoes || !by_texts(Side::Undoes)).then_some(side)
    }
}

/// The single English words of all pairs, and everything that is looked for as a piece of the text.
static DOINGS: LazyLock<(HashSet<&str>, Vec<&str>)> = LazyLock::new(|| {
    let english = || PAIRS.iter().flat_map(|p| p.does.iter().chain(p.undoes)).copied();
    let chinese = PAIRS.iter().flat_map(|p| p.zh_does.iter().chain(p.zh_undoes)).copied();
    (english().filter(|w| !w.contains(' ')).collect(), english().filter(|w| w.contains(' ')).chain(chinese).collect())
});

/// Whether any word of any pair stands in a text: most texts have none, and are done with.
fn speaks_of_doing(text: &Words) -> bool {
    let (words, pieces) = &*DOINGS;
    let han = text.0.chars().any(crate::types::lang::is_cjk);
    text.1.split(' ').any(|w| words.contains(w)) || pieces.iter().any(|p| (han || p.is_ascii()) && text.1.contains(p))
}

/// Words of states and of refusals, with which a verb is no plain request.
const UNLIKE: &[&str] = &["被", "别", "不", "没"];
const EN_UNLIKE: &[&str] = &["not", "don't", "dont", "never", "without", "instead", "can't", "cannot", "won't"];

/// Whether `text` asks for the opposite of what a capability of this folded name does, by its own descriptions and examples.
pub fn asks_opposite<'a>(text: &str, name: &str, own: impl IntoIterator<Item = &'a str>) -> bool {
    let asked = Words::of(text);
    if !speaks_of_doing(&asked) {
        return false;
    }
    if asked.zh(UNLIKE) || EN_UNLIKE.iter().any(|w| asked.says(w)) {
        return false;
    }
    let mut about: Option<(Words, Vec<Words>)> = None;
    let mut own = Some(own);
    PAIRS.iter().any(|pair| {
        let Some(side) = pair.asked(&asked) else { return false };
        if about.is_none() {
            about = own.take().map(|own| (Words::of(&name.replace('_', " ")), own.into_iter().map(Words::of).collect()));
        }
        about.as_ref().is_some_and(|(name, texts)| pair.offered(name, texts) == Some(side.other()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opposite_is_told() {
        for (text, name, own) in [
            ("freeze my bank card", "card_unfreeze", "Unfreezes a frozen card"),
            ("帮我把银行卡冻结", "card_unfreeze", "解冻银行卡"),
            ("unfreeze my card please", "card_freeze", "Freezes a card"),
            ("start watering field 3", "irrigation_stop", "Stops irrigation of a field"),
            ("停止灌溉三号田", "irrigation_start", "开始灌溉"),
            ("cancel my booking for tonight", "table_book", "Books a table"),
            ("取消预约", "appointment_book", "预约挂号"),
            ("我想预约皮肤科", "appointment_cancel", "取消挂号预约"),
            ("unban this player", "player_ban", "封禁违规玩家"),
            ("lift the ban on my account", "player_ban", "Bans a player"),
            ("解除银行卡冻结", "card_freeze", "冻结银行卡"),
            ("挂失银行卡", "card_unfreeze", "解冻银行卡"),
        ] {
            assert!(asks_opposite(text, name, [own]), "{text} {name}");
        }
    }

    #[test]
    fn what_is_asked_for_is_not() {
        for (text, name, own) in [
            ("freeze my bank card", "card_freeze", "Freezes a card; unfreeze it later"),
            ("my account is locked", "account_unlock", "Unlocks an account that was locked"),
            ("账号被冻结了", "account_unfreeze", "解冻账号"),
            ("我的卡冻结了，帮我解冻", "card_unfreeze", "解冻银行卡"),
            ("book or cancel a table", "table_book", "Books, moves and cancels tables"),
            ("cancel my order", "order_cancel", "Cancels an order that was placed"),
            ("book a table", "table_service", "Books, moves and cancels tables"),
            ("where is my parcel", "parcel_track", "Tracks a parcel"),
            ("don't start the pump", "pump_stop", "Stops a pump"),
            ("取消订单", "order_cancel", "取消已创建的订单"),
        ] {
            assert!(!asks_opposite(text, name, [own]), "{text} {name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_will_do(text in "\\PC{0,200}", name in "[a-z_]{0,20}") {
            let _ = asks_opposite(&text, &name, [&*text]);
        }
    }
}
