//! The comparison as a table for people.

use super::{Refitted, Report};

fn mb(bytes: u64) -> String {
    if bytes == 0 { "–".into() } else { format!("{:.0}", bytes as f64 / 1e6) }
}

/// Precision of `auto` at refitted thresholds with its 95 % bounds, and whether the aim is kept by luck.
fn bounds(r: &Refitted) -> String {
    let luck = if r.surely { "" } else { "; may be luck" };
    r.held_out.auto_precision.map_or_else(String::new, |s| {
        format!(", precision {:.1} [{:.1}, {:.1}] of {}{luck}", s.value * 100.0, s.low * 100.0, s.high * 100.0, s.of)
    })
}

/// Lines of text. Quality in percent.
pub fn text(report: &Report) -> String {
    let mut out = vec![format!(
        "{} queries ({} with a right answer), {} capabilities; thresholds refitted for {}",
        report.queries, report.in_scope, report.capabilities, report.aim
    )];
    let width = report.models.iter().map(|m| m.name.chars().count()).max().unwrap_or(8).max(8);
    out.push(String::new());
    out.push(format!(
        "{:width$}  {:>6} {:>6} {:>6} {:>6}  {:>9} {:>9}  {:>6}  {:>6} {:>10}  {:>7} {:>9} {:>8} {:>8}",
        "%",
        "top-1",
        "top-3",
        "MRR",
        "nDCG",
        "dense t-1",
        "dense t-3",
        "AUROC",
        "auto",
        "precision",
        "ms/text",
        "texts/s",
        "mem MB",
        "disk MB"
    ));
    for m in &report.models {
        let p = |v: f64| format!("{:.1}", v * 100.0);
        let (auto, precision) = m.refitted.as_ref().map_or(("–".into(), "–".into()), |r| {
            (r.held_out.auto.map_or("–".into(), |s| p(s.value)), r.held_out.auto_precision.map_or("–".into(), |s| p(s.value)))
        });
        let speed = |v: f64, digits: usize| if v == 0.0 { "–".to_string() } else { format!("{v:.digits$}") };
        out.push(format!(
            "{:width$}  {:>6} {:>6} {:>6} {:>6}  {:>9} {:>9}  {:>6}  {:>6} {:>10}  {:>7} {:>9} {:>8} {:>8}",
            m.name,
            p(m.whole.top1),
            p(m.whole.top3),
            p(m.whole.mrr),
            p(m.whole.ndcg10),
            p(m.dense.top1),
            p(m.dense.top3),
            m.auroc.map_or("–".into(), |a| format!("{a:.3}")),
            auto,
            precision,
            speed(m.speed.one_text_ms, 2),
            speed(m.speed.texts_a_second, 0),
            mb(m.speed.memory_bytes),
            mb(m.speed.weights_bytes)
        ));
    }
    out.push(String::new());
    for m in &report.models {
        let fitted =
            m.refitted.as_ref().map_or_else(|| "no setting reaches the aim".to_string(), |r| format!("{}{}", r.setting, bounds(r)));
        let note = if m.note.is_empty() { String::new() } else { format!(" ({})", m.note) };
        let calibrated = if m.calibrated { "" } else { "; confidence was not fitted for it" };
        out.push(format!("{}: {fitted}{note}{calibrated}", m.name));
    }
    out.push(String::new());
    for pair in &report.pairs {
        let (gain, low, high) = pair.mrr_gain;
        out.push(format!(
            "{} over {}: right alone {} against {}, p = {:.2e}; MRR {:+.3} [{:+.3}, {:+.3}]",
            pair.better, pair.worse, pair.only_better, pair.only_worse, pair.p, gain, low, high
        ));
    }
    out.join("\n")
}
