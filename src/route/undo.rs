//! The opposite of what was asked: `refund_cancel` stands beside `refund_create` and shares all its words but one.
//!
//! In: the folded names of the candidates and the text. Out: a loss for each that undoes something the text does not ask to undo, where a sibling
//! that shares a word of its name does not. Vectors of the two are nearly the same, and the undoing one often has the shorter texts.
//! Cost: one look through about sixty names. Not here: negation in the request itself (`reading`).

/// Words of a name that say something is taken back.
const UNDOES: &[&str] =
    &["cancel", "void", "revoke", "undo", "abort", "withdraw", "revert", "terminate", "reject", "disable", "delete", "remove", "release"];

/// What a text says when something is to be taken back, in both languages; beginnings of words.
const ASKED: &[&str] = &[
    "cancel",
    "void",
    "revok",
    "undo",
    "abort",
    "withdraw",
    "revers",
    "revert",
    "roll",
    "terminat",
    "unsubscrib",
    "delet",
    "remov",
    "releas",
    "reject",
    "disabl",
    "stop",
    "call off",
    "drop",
    "no longer",
    "don't",
    "dont",
    "not ",
    "scrap",
    "invalid",
    "get rid",
    "free up",
    "take back",
    "clear",
    "clean",
    "close",
    "declin",
    "changed my mind",
    "取消",
    "撤",
    "作废",
    "解除",
    "解绑",
    "终止",
    "中止",
    "停",
    "退订",
    "回滚",
    "不要",
    "不想",
    "不用",
    "不需要",
    "删",
    "移除",
    "释放",
    "拒",
    "驳回",
    "关",
    "禁用",
    "算了",
    "别",
    "注销",
    "清",
    "废",
];

/// What an unasked undoing costs, in logits of the fused score.
const LOSS: f32 = 3.5;

fn undoes(name: &str) -> bool {
    name.split('_').any(|w| UNDOES.contains(&w))
}

/// The loss of each candidate, in the order of `names` (folded). All zero where the text asks to take something back.
pub fn losses(names: &[&str], text: &str) -> Vec<f32> {
    let mut out = vec![0.0; names.len()];
    if !names.iter().any(|n| undoes(n)) {
        return out;
    }
    let lower = text.to_lowercase();
    if ASKED.iter().any(|w| lower.contains(w)) {
        return out;
    }
    for (loss, name) in out.iter_mut().zip(names).filter(|(_, n)| undoes(n)) {
        let own = || name.split('_').filter(|w| w.chars().count() >= 3 && !UNDOES.contains(w));
        if names.iter().any(|other| !undoes(other) && own().any(|w| other.split('_').any(|o| o == w))) {
            *loss = LOSS;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opposite_sibling_stands_back_unless_it_is_asked_for() {
        let names = ["refund_cancel", "refund_create", "order_cancel"];
        assert_eq!(losses(&names, "I need a refund"), [LOSS, 0.0, 0.0], "order_cancel has no sibling here");
        assert_eq!(losses(&names, "申请退款"), [LOSS, 0.0, 0.0]);
        for text in ["cancel my refund", "退款不要了", "撤销退款", "please stop the refund"] {
            assert_eq!(losses(&names, text), [0.0; 3], "{text}");
        }
        assert_eq!(losses(&["order_cancel"], "my order"), [0.0]);
    }
}
