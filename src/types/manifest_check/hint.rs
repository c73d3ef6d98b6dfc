//! "Did you mean": the known key that a misspelt one stands for.
//!
//! In: what was written and what is known. Out: the nearest known word, if one is near. Cost: bounded by the lengths of known words.

use crate::types::text;

/// Words that other formats use for ours.
const ELSEWHERE: &[(&str, &str)] = &[
    ("id", "agent_id"),
    ("agent", "agent_id"),
    ("name", "intent"),
    ("name", "agent_id"),
    ("capability", "intent"),
    ("title", "intent"),
    ("version", "agent_version"),
    ("url", "address"),
    ("uri", "address"),
    ("endpoint", "endpoints"),
    ("skills", "capabilities"),
    ("tools", "capabilities"),
    ("functions", "capabilities"),
    ("parameters", "input_schema"),
    ("schema", "input_schema"),
    ("input", "input_schema"),
    ("output", "output_schema"),
    ("labels", "attributes"),
    ("metadata", "attributes"),
    ("timezone", "time_zone"),
    ("tz", "time_zone"),
    ("price", "cost"),
    ("latency", "latency_hint"),
    ("region", "regions"),
    ("permissions", "scopes"),
    ("health", "health_check"),
    ("lease", "ttl"),
    ("type", "protocol"),
    ("start", "from"),
    ("end", "to"),
    ("until", "to"),
    ("callback", "notification_endpoint"),
    ("synonyms", "aliases"),
    ("utterances", "examples"),
    ("rps", "per_second"),
    ("undo", "compensate"),
];

/// Ways to reach an agent that others speak and we don't, and what to do instead.
const UNSPOKEN: &[(&[&str], &str)] = &[
    (
        &["ws", "wss", "websocket"],
        "WebSockets are not spoken: answer over http, implement agentreach.v1.Worker (grpc), or fetch the work (pull)",
    ),
    (
        &["mq", "amqp", "kafka", "nats", "mqtt", "redis", "rabbitmq"],
        "message queues are not spoken: let a small worker fetch the work (pull, or `reach wrap`) and put it into the queue",
    ),
    (&["stdio", "sse"], "of MCP only streamable HTTP is spoken (mcp); a command on this machine joins by `reach wrap -- CMD`"),
    (&["https", "rest"], "write http; the address says whether it is encrypted, and `rest` in a capability maps an existing service"),
    (&["grpcs", "grpc-web"], "write grpc; the address says whether it is encrypted (grpcs:// or https://)"),
    (&["a2a", "acp"], "this protocol is not spoken: answer over http, grpc or mcp, or fetch the work (pull)"),
];

/// What to do instead of an agent of another domain.
const FOREIGN: &str = "agents of another domain can't be addressed from here: leave it out, and tell teams apart by namespace";

/// What to write instead of a word that is none of `known`, if that can be guessed.
pub fn of_word(written: &str, known: &[&str]) -> Option<String> {
    let lower = text::cut(written, 80).to_lowercase();
    if known == ["local"] {
        return Some(FOREIGN.to_owned());
    }
    if let Some((_, hint)) = UNSPOKEN.iter().find(|(names, _)| known.contains(&"pull") && names.contains(&lower.as_str())) {
        return Some((*hint).to_owned());
    }
    nearest(written, known).map(|word| format!("did you mean \"{word}\"?"))
}

/// The known word nearest to `written`, if any is near enough to be meant.
pub fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded = text::fold_name(text::cut(written, 80));
    let same = |w: &&&str| text::fold_name(w) == folded;
    if let Some(word) = known.iter().find(same) {
        return Some(word);
    }
    let elsewhere = ELSEWHERE.iter().filter(|(theirs, _)| *theirs == folded).find_map(|(_, ours)| known.iter().find(|k| *k == ours));
    if let Some(word) = elsewhere {
        return Some(word);
    }
    known
        .iter()
        .map(|word| (distance(&folded, word), *word))
        .filter(|(d, word)| *d <= (word.chars().count() / 3).clamp(1, 3))
        .min_by_key(|(d, _)| *d)
        .map(|(_, word)| word)
}

/// Number of letters to insert, remove, replace or swap with a neighbour to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let width = b.len() + 1;
    let mut table: Vec<usize> = vec![0; (a.len() + 1) * width];
    let get = |t: &[usize], i: usize, j: usize| t.get(i * width + j).copied().unwrap_or(0);
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let cell = if i == 0 || j == 0 {
                i + j
            } else {
                let same = a.get(i - 1) == b.get(j - 1);
                let mut best =
                    (get(&table, i - 1, j) + 1).min(get(&table, i, j - 1) + 1).min(get(&table, i - 1, j - 1) + usize::from(!same));
                if i > 1 && j > 1 && a.get(i - 1) == b.get(j - 2) && a.get(i - 2) == b.get(j - 1) {
                    best = best.min(get(&table, i - 2, j - 2) + 1);
                }
                best
            };
            if let Some(slot) = table.get_mut(i * width + j) {
                *slot = cell;
            }
        }
    }
    get(&table, a.len(), b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["intent", "input_schema", "description", "regions", "agent_id"];
        for (written, expected) in [
            ("inputSchema", Some("input_schema")),
            ("input-schema", Some("input_schema")),
            ("descripton", Some("description")),
            ("decsription", Some("description")),
            ("parameters", Some("input_schema")),
            ("region", Some("regions")),
            ("name", Some("intent")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, &known), expected, "{written}");
        }
    }
}
