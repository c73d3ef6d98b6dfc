//! Function words: they carry grammar, not what is wanted. Documents keep them; queries give them no weight unless nothing else is there.

use std::collections::HashSet;
use std::sync::LazyLock;

const EN: &str = "a an the and or but if then than so of at by for with about into from to in on off up out over under as is are was were be been \
    being am do does did doing have has had having can could will would shall should may might must i me my mine myself we us our ours you your yours \
    he him his she her hers it its they them their theirs this that these those there here what which who whom whose when where why how all any both \
    each few more most other some such no nor not only own same too very just also please thanks thank hi hello hey want need like let lets im ive \
    youre dont cant wont isnt whats hows theres tell give get got make go going know";

const ZH: &str = "的 了 着 过 地 得 之 和 与 及 或 而 但 但是 并 并且 而且 因为 所以 如果 那么 就 才 又 也 都 还 很 太 更 最 在 从 向 往 对 对于 关于 把 被 将 \
    给 让 使 由 于 到 以 为 是 有 没有 没 不 不是 吗 呢 吧 啊 呀 哦 嗯 嘛 我 我们 你 你们 您 他 她 它 他们 她们 它们 咱们 自己 这 那 这个 那个 这些 那些 这里 那里 \
    哪 哪个 哪些 哪里 什么 怎么 怎样 怎么样 如何 为什么 谁 几 多少 一 一个 一下 一些 一点 个 些 请 请问 麻烦 谢谢 你好 您好 想 想要 要 需要 帮 帮我 帮忙 帮助 能 能否 能不能 可以 \
    可否 会 应该 必须 知道 告诉 进行 以及 其 其中 其他 等 等等 下 上 里 中 内 外 时 时候 说 看看 看 来 去 做";

static STOP_EN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| EN.split_whitespace().collect());
static STOP_ZH: LazyLock<HashSet<&'static str>> = LazyLock::new(|| ZH.split_whitespace().collect());

/// Whether a folded, unstemmed Latin word is one.
pub(crate) fn is_stop_en(word: &str) -> bool {
    STOP_EN.contains(word)
}

/// Whether a folded Chinese word is one.
pub(crate) fn is_stop_zh(word: &str) -> bool {
    STOP_ZH.contains(word)
}
