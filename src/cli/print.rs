//! Answers for people: what was decided, who takes it, why, who else could, and why others could not.
//!
//! Invariant: texts of manifests are escaped: no answer can drive the terminal. Widths count Chinese characters as two.

use crate::api::pb;
use crate::telemetry::log::escaped;
use crate::types::lang::is_cjk;

const LABEL: usize = 9;

/// The answer to a query, laid out in lines. `colour` for terminals.
pub fn answer(answer: &pb::ResolveResponse, explain: bool, colour: bool) -> String {
    let paint = Paint { colour };
    let mut lines = Vec::new();
    let mark = match answer.decision.as_str() {
        "auto" => paint.green("auto"),
        "suggest" => paint.yellow("suggest"),
        other => paint.red(other),
    };
    let (head, rest) = match answer.decision.as_str() {
        "none" => ("nobody fits".to_string(), answer.candidates.as_slice()),
        _ => match answer.candidates.split_first() {
            Some((first, rest)) => {
                (format!("{}  {}", paint.bold(&escaped(&first.capability)), who(first.agent.as_ref(), &first.agent_version)), rest)
            }
            None => (String::new(), answer.candidates.as_slice()),
        },
    };
    lines.push(format!("{}{head}", pad(&mark, LABEL, answer.decision.chars().count())));
    let mut facts = vec![format!("confidence {}", share(answer.confidence))];
    if answer.decision != "none" {
        facts.push(format!("margin {}", share(answer.margin)));
    }
    if !answer.calibrated {
        facts.push("uncalibrated".into());
    }
    facts.push(answer.preset.clone());
    // inside a reply nobody measured it
    facts.extend((answer.took_us > 0).then(|| took(answer.took_us)));
    lines.push(line("", &paint.dim(&facts.join(" · "))));

    labelled(&mut lines, "why", answer.reasons.iter().map(|n| escaped(&n.text)).collect());
    let label = if answer.decision == "none" { "nearest" } else { "or" };
    labelled(&mut lines, label, table(rest.iter().map(candidate_row).collect()));
    let dropped = answer.dropped.iter().map(|d| vec![escaped(&d.capability), who(d.agent.as_ref(), ""), paint.dim(&escaped(&d.text))]);
    labelled(&mut lines, "not", table(dropped.collect()));
    labelled(&mut lines, "note", answer.warnings.iter().map(|n| paint.yellow(&escaped(&n.text))).collect());
    if explain {
        for candidate in &answer.candidates {
            lines.push(String::new());
            explain_candidate(&mut lines, candidate, &paint);
        }
        lines.push(String::new());
        let generations = answer.generations.clone().unwrap_or_default();
        lines.push(line("asked", &generations.models.iter().map(|m| escaped(m)).collect::<Vec<_>>().join(", ")));
        lines.push(line(
            "state",
            &paint.dim(&format!("catalog {} · policy {} · decision {}", generations.catalog, generations.policy, answer.decision_id)),
        ));
    }
    lines.join("\n")
}

fn candidate_row(c: &pb::Candidate) -> Vec<String> {
    let under = if c.under_floor { "under the floor" } else { "" };
    vec![escaped(&c.capability), who(c.agent.as_ref(), ""), share(c.probability), under.to_string()]
}

fn explain_candidate(lines: &mut Vec<String>, c: &pb::Candidate, paint: &Paint) {
    let found: Vec<String> = c.found_by.iter().map(|f| escaped(f).replace('_', " ")).collect();
    lines.push(format!("{}  {}", paint.bold(&escaped(&c.capability)), who(c.agent.as_ref(), &c.agent_version)));
    lines.push(line("found by", &found.join(", ")));
    let sum = c.terms.iter().map(|t| format!("{} {:.2}×{:.3}", escaped(&t.name), t.weight, t.value)).collect::<Vec<_>>();
    lines.push(line("score", &format!("{:.3} = {}", c.score, if sum.is_empty() { "–".into() } else { sum.join(" + ") })));
    let evidence: Vec<String> = c.evidence.iter().map(|t| format!("{} {:.3}", escaped(&t.name), t.value)).collect();
    if !evidence.is_empty() {
        lines.push(line("evidence", &paint.dim(&evidence.join(" · "))));
    }
}

/// An error in words, with every fault.
pub fn refusal(e: &pb::Error) -> String {
    let mut text = format!("error: {}: {}", escaped(&e.code), escaped(&e.message));
    if e.faults.len() > 1 {
        for fault in &e.faults {
            let place = if fault.pointer.is_empty() { "(document)" } else { &fault.pointer };
            text.push_str(&format!("\n  {}: expected {}; {}", escaped(place), escaped(&fault.expected), escaped(&fault.hint)));
        }
    }
    if let Some(ms) = e.retry_after_ms {
        text.push_str(&format!("\n  try again in {} s", (ms as f64 / 1000.0).max(0.1)));
    }
    text
}

/// `namespace/agent_id`, with the version when there is one.
pub fn who(agent: Option<&pb::AgentRef>, version: &str) -> String {
    let Some(agent) = agent else { return String::new() };
    let domain = if agent.domain.is_empty() || agent.domain == "local" { String::new() } else { format!("{}:", agent.domain) };
    let version = if version.is_empty() { String::new() } else { format!(" {version}") };
    escaped(&format!("{domain}{}/{}{version}", agent.namespace, agent.agent_id))
}

/// Columns, each as wide as its widest entry.
pub fn table(rows: Vec<Vec<String>>) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|i| rows.iter().filter_map(|r| r.get(i)).map(|t| width(t)).max().unwrap_or(0)).collect();
    let join = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(t, w)| pad(t, *w, width(t))).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(join).collect()
}

fn labelled(lines: &mut Vec<String>, label: &str, texts: Vec<String>) {
    for (i, text) in texts.iter().enumerate() {
        lines.push(line(if i == 0 { label } else { "" }, text));
    }
}

fn line(label: &str, text: &str) -> String {
    format!("{}{text}", pad(label, LABEL, label.chars().count()))
}

fn pad(text: &str, to: usize, width: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width)))
}

/// Columns a text takes on a terminal; colours take none.
fn width(text: &str) -> usize {
    let mut inside = false;
    text.chars()
        .map(|c| match c {
            '\x1b' => {
                inside = true;
                0
            }
            'm' if inside => {
                inside = false;
                0
            }
            _ if inside => 0,
            _ if is_cjk(c) || matches!(c as u32, 0x3000..=0x303F | 0xFF01..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1FAFF) => 2,
            _ => 1,
        })
        .sum()
}

fn share(p: f32) -> String {
    format!("{p:.2}")
}

fn took(us: u64) -> String {
    if us < 10_000 { format!("{:.2} ms", us as f64 / 1000.0) } else { format!("{} ms", us / 1000) }
}

struct Paint {
    colour: bool,
}

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.with("2", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("1;32", text)
    }

    fn yellow(&self, text: &str) -> String {
        self.with("33", text)
    }

    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(namespace: &str, id: &str) -> Option<pb::AgentRef> {
        Some(pb::AgentRef { domain: "local".into(), namespace: namespace.into(), agent_id: id.into() })
    }

    fn candidate(capability: &str, namespace: &str, id: &str, probability: f32) -> pb::Candidate {
        pb::Candidate {
            agent: agent(namespace, id),
            agent_version: "1.4.0".into(),
            capability: capability.into(),
            score: 0.9,
            probability,
            found_by: vec!["name_in_text".into(), "dense".into()],
            terms: vec![pb::Term { name: "semantic".into(), weight: 0.5, value: 0.96 }],
            ..Default::default()
        }
    }

    fn sample() -> pb::ResolveResponse {
        pb::ResolveResponse {
            decision: "auto".into(),
            confidence: 0.93,
            margin: 0.41,
            calibrated: true,
            candidates: vec![candidate("refund_create", "orders", "order-desk", 0.93), candidate("退货登记", "orders", "returns", 0.41)],
            dropped: vec![pb::Dropped {
                agent: agent("hr/payroll", "bot"),
                capability: "payroll_export".into(),
                text: "needs the scope payroll:read".into(),
                ..Default::default()
            }],
            reasons: vec![pb::Note { code: "clear_margin".into(), text: "far ahead of the next capability".into() }],
            preset: "balanced".into(),
            took_us: 1234,
            ..Default::default()
        }
    }

    #[test]
    fn an_answer_is_laid_out_in_lines() {
        let expected = "\
auto     refund_create  orders/order-desk 1.4.0
         confidence 0.93 · margin 0.41 · balanced · 1.23 ms
why      far ahead of the next capability
or       退货登记  orders/returns  0.41
not      payroll_export  hr/payroll/bot  needs the scope payroll:read";
        assert_eq!(answer(&sample(), false, false), expected);
        let explained = answer(&sample(), true, false);
        assert!(explained.contains("score    0.900 = semantic 0.50×0.960"), "{explained}");
    }

    #[test]
    fn hostile_texts_stay_texts() {
        let mut hostile = sample();
        hostile.candidates[0].capability = "x\x1b[2J\n\u{202e}".into();
        hostile.reasons[0].text = "a\nb".into();
        let text = answer(&hostile, true, false);
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}') && text.contains("a\\u{a}b"), "{text}");
    }

    #[test]
    fn columns_know_wide_characters() {
        assert_eq!(width("退款ab"), 6);
        assert_eq!(table(vec![vec!["退".into(), "x".into()], vec!["abc".into(), "y".into()]]), ["退   x", "abc  y"]);
    }
}
