//! R4, A3: every setting bites. Each key is given another value, and the configuration that comes of it is another one; each key with a letter too many is
//! refused by name. That the parts read what the configuration holds is `every_setting_is_read_somewhere` of tests/contract.rs.

use agent_reach::config::{Config, Key, Override};
use std::collections::BTreeMap;

/// Keys whose value must be written with others, or in a form of its own: what is set beside it.
fn by_hand(path: &str) -> Option<Vec<(&'static str, &'static str)>> {
    let secret = ("dispatch.callback_secrets", "[\"a secret of sixteen bytes\"]");
    let fallback = vec![("policy.fallback.agent", "ops/desk"), ("policy.fallback.capability", "take_anything")];
    Some(match path {
        "server.grpc_addr" => vec![("server.grpc_addr", "127.0.0.1:9100")],
        "server.http_addr" => vec![("server.http_addr", "127.0.0.1:9101")],
        "models.sources" => vec![("models.sources", "[\"hub\"]")],
        "schemas.allow_urls" => vec![("schemas.allow_urls", "[\"https://schemas.example/\"]")],
        "policy.default_preset" => vec![("policy.default_preset", "gateway")],
        "policy.fallback.agent" | "policy.fallback.capability" => fallback,
        // a point is one only when it is written; its parts must fit each other
        "policy.point.suggest" => vec![("policy.point.suggest", "0.1")],
        "policy.point.auto" => vec![("policy.point.auto", "0.95")],
        "policy.point.auto_learned" => vec![("policy.point.auto_learned", "0.9")],
        "dispatch.callback_secrets" => vec![secret],
        "telemetry.otlp" => vec![("telemetry.otlp", "http://127.0.0.1:4318")],
        "dispatch.alarm_webhook" => vec![("dispatch.alarm_webhook", "http://127.0.0.1:9001/alarm"), secret],
        "outbound.allow" => vec![("outbound.allow", "[\"100.64.0.0/10\"]")],
        "telemetry.log" => vec![("telemetry.log", "debug")],
        _ => return None,
    })
}

/// `30s` as milliseconds, `4 MiB` as bytes, `7` as 7.
fn amount(text: &str) -> Option<f64> {
    let text = text.trim().trim_matches('"');
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-').unwrap_or(text.len());
    let unit = match text[at..].trim() {
        "" | "B" | "ms" => 1.0,
        "s" => 1e3,
        "m" => 6e4,
        "h" => 3.6e6,
        "d" => 8.64e7,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return None,
    };
    Some(text[..at].parse::<f64>().ok()? * unit)
}

/// Another value that the key takes, in the words of [`Key::takes`].
fn another(key: &Key) -> String {
    let range = key.takes.rsplit_once("from ").and_then(|(_, r)| r.split_once(" to ")).and_then(|(a, b)| Some((amount(a)?, amount(b)?)));
    let default = amount(&key.default);
    match (key.takes.as_str(), range) {
        ("true or false", _) => (key.default != "true").to_string(),
        ("a text", _) => "another-text".into(),
        ("a list of texts", _) => "[\"another\"]".into(),
        (words, _) if words.starts_with("one of ") => {
            let words = words.trim_start_matches("one of ").split(", ");
            words.filter(|w| !key.default.contains(w)).last().unwrap().to_string()
        }
        (_, Some((from, to))) => {
            let now = default.unwrap_or_else(|| panic!("{key:?}"));
            // the next one up inside the range, else the lowest
            let up = if now == 0.0 { (to - from).min(1.0) } else { now * 1.25 };
            let other = if from + up <= to && up <= to && up != now { up.max(from) } else { from };
            match key.takes.as_str() {
                t if t.starts_with("a whole number") => (if other.round() == now { now + 1.0 } else { other.round() }).to_string(),
                t if t.starts_with("a number") => other.to_string(),
                t if t.starts_with("a size") => format!("\"{} B\"", other.round()),
                t if t.starts_with("a duration") => format!("\"{}ms\"", other.round()),
                t => panic!("what is {t:?}?"),
            }
        }
        (takes, None) => panic!("{}: write a value for {takes:?} into by_hand", key.path),
    }
}

/// Weights of a preset add up to 1: what one gains another loses.
fn weights(key: &Key, all: &[Key]) -> Vec<(String, String)> {
    let (preset, name) = key.path.rsplit_once('.').unwrap();
    let of = |k: &Key| k.default.parse::<f64>().unwrap();
    let siblings: Vec<&Key> = all.iter().filter(|k| k.path.starts_with(&format!("{preset}."))).collect();
    let largest = siblings.iter().max_by(|a, b| of(a).total_cmp(&of(b))).unwrap();
    let (less, more) =
        if largest.path == key.path { (*largest, *siblings.iter().find(|k| k.path != key.path).unwrap()) } else { (*largest, key) };
    assert!(preset.ends_with(".weights") && !name.is_empty());
    vec![(less.path.clone(), format!("{:.2}", of(less) - 0.1)), (more.path.clone(), format!("{:.2}", of(more) + 0.1))]
}

fn changed(key: &Key, all: &[Key]) -> Vec<(String, String)> {
    if let Some(pairs) = by_hand(&key.path) {
        return pairs.into_iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    }
    if key.path.contains(".weights.") {
        return weights(key, all);
    }
    vec![(key.path.clone(), another(key))]
}

fn parse(pairs: &[(String, String)]) -> Result<Config, agent_reach::config::ConfigError> {
    let overrides: Vec<Override> = pairs.iter().map(|(k, v)| Override::new(k, v.as_str(), "--set")).collect();
    Config::parse("", &overrides)
}

#[test]
fn every_key_changes_the_configuration() {
    let all = Config::keys();
    let default = Config::default();
    for key in all.iter().filter(|k| !k.path.contains("[]")) {
        let pairs = changed(key, &all);
        let with = parse(&pairs).unwrap_or_else(|e| panic!("{}: {pairs:?}: {e}", key.path));
        assert_ne!(with, default, "{} = {pairs:?} changes nothing", key.path);
        // and not only what had to be written beside it
        let beside: Vec<(String, String)> = pairs.iter().filter(|(k, _)| *k != key.path).cloned().collect();
        if let Ok(without) = parse(&beside) {
            assert_ne!(with, without, "{} changes nothing", key.path);
        }
    }
}

/// Entries of lists: a whole entry, and the same with one key of it changed.
#[test]
fn every_key_of_a_list_changes_the_configuration() {
    let lists = [
        (
            "auth.tokens",
            BTreeMap::from([
                ("sha256", [format!("{:?}", "ab".repeat(32)), format!("{:?}", "cd".repeat(32))]),
                ("caller", ["\"bot\"".into(), "\"other\"".into()]),
                ("tenant", ["\"acme\"".into(), "\"umbrella\"".into()]),
                ("namespaces", ["[\"orders\"]".into(), "[\"*\"]".into()]),
                ("scopes", ["[\"a:b\"]".into(), "[]".into()]),
            ]),
        ),
        (
            "policy.rules",
            BTreeMap::from([
                ("name", ["\"one\"".to_string(), "\"two\"".into()]),
                ("action", ["\"deny\"".into(), "\"force\"".into()]),
                ("callers", ["[\"bot-*\"]".into(), "[\"*\"]".into()]),
                ("namespaces", ["[\"hr\"]".into(), "[\"hr/*\"]".into()]),
                ("agents", ["[\"hr/*\"]".into(), "[\"hr/a\"]".into()]),
                ("capabilities", ["[\"*\"]".into(), "[\"x\"]".into()]),
                ("words", ["[\"a\"]".into(), "[\"b\"]".into()]),
            ]),
        ),
        (
            "dispatch.escalation",
            BTreeMap::from([
                ("namespace", ["\"orders\"".to_string(), "\"*\"".into()]),
                ("tags", ["[\"poison\"]".into(), "[]".into()]),
                ("to", ["\"ops/desk\"".into(), "\"ops/night\"".into()]),
                ("capability", ["\"take_over\"".into(), "\"look_after\"".into()]),
                ("ttl", ["\"1h\"".into(), "\"2h\"".into()]),
            ]),
        ),
        (
            "outbound.secrets",
            BTreeMap::from([
                ("name", ["\"orders\"".to_string(), "\"stock\"".into()]),
                ("variable", ["\"ORDERS_TOKEN\"".into(), "\"STOCK_TOKEN\"".into()]),
                ("below", ["[\"https://orders.internal\"]".into(), "[\"https://stock.internal\"]".into()]),
            ]),
        ),
    ];
    let text = |list: &str, entry: &BTreeMap<&str, [String; 2]>, other: &str| {
        let lines = entry.iter().map(|(k, v)| format!("{k} = {}\n", v[usize::from(*k == other)]));
        format!("[[{list}]]\n{}", lines.collect::<String>())
    };
    for key in Config::keys().iter().filter(|k| k.path.contains("[]")) {
        let (list, name) = key.path.split_once("[].").unwrap();
        let (_, entry) = lists.iter().find(|(l, _)| *l == list).unwrap_or_else(|| panic!("write an entry for {list}"));
        assert!(entry.contains_key(name), "write two values for {}", key.path);
        let one = Config::parse(&text(list, entry, ""), &[]).unwrap();
        let two = Config::parse(&text(list, entry, name), &[]).unwrap();
        assert_ne!(one, two, "{} changes nothing", key.path);
        // and a misspelt key of an entry is refused
        let wrong = text(list, entry, "").replace(&format!("{name} = "), &format!("{name}x = "));
        let e = Config::parse(&wrong, &[]).unwrap_err();
        assert!(e.faults.iter().any(|f| f.pointer == format!("{list}[0].{name}x")), "{e}");
    }
}

/// R5: a misspelt key is a fault at the start that says what was meant, from every source.
#[test]
fn a_misspelt_key_is_refused_with_what_was_meant() {
    let all = Config::keys();
    for key in all.iter().filter(|k| !k.path.contains("[]")) {
        let wrong = format!("{}x", key.path);
        let value = changed(key, &all).into_iter().find(|(k, _)| *k == key.path).unwrap().1;
        let e = Config::parse("", &[Override::new(&wrong, value, "--set")]).unwrap_err();
        let fault = e.faults.iter().find(|f| f.pointer == wrong).unwrap_or_else(|| panic!("{wrong}: {e}"));
        let name = key.path.rsplit('.').next().unwrap();
        assert!(fault.hint.contains(&format!("did you mean {name}?")), "{fault}");
    }
}
