//! The report as a table for people.

use super::figures::{Figures, Share};
use super::report::Report;
use super::settings::Axis;
use super::tried::{OfModel, Tried};

fn percent(share: Option<Share>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{:.1}", s.value * 100.0))
}

fn bounded(share: Option<Share>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{:.1} [{:.1}, {:.1}]", s.value * 100.0, s.low * 100.0, s.high * 100.0))
}

fn row(name: &str, f: &Figures, moved: u64, width: usize) -> String {
    format!(
        "{name:width$}  {:>5}  {:>20}  {:>7}  {:>18}  {:>18}  {:>6}",
        percent(f.auto),
        bounded(f.auto_precision),
        percent(f.suggest),
        bounded(f.miss),
        bounded(f.wrong),
        moved
    )
}

/// Lines about other models.
fn models(tried: &Tried) -> Vec<String> {
    let left_out = if tried.left_out > 0 { format!("; {} without their text left out", tried.left_out) } else { String::new() };
    let mut out = vec![
        String::new(),
        format!(
            "models: {} decisions asked again{left_out}; thresholds fitted for each on {:.0} % of the requests, figures of the others",
            tried.decisions,
            100.0 * (1.0 - tried.holdout)
        ),
    ];
    let name = |m: &OfModel| if m.in_use { format!("{} (in use)", m.model) } else { m.model.clone() };
    let width = tried.models.iter().map(|m| name(m).chars().count()).max().unwrap_or(8).max(8);
    out.push(format!(
        "{:width$}  {:>5}  {:>20}  {:>18}  {:>18}  {:>18}  {:>22}  {:>6}",
        "%", "auto", "auto precision", "miss", "wrong", "top1", "gain of top1", "moved"
    ));
    for m in &tried.models {
        let f = &m.held_out;
        let gain = m.top1_gain.map_or("–".into(), |g| format!("{:+.1} [{:+.1}, {:+.1}]", g.0 * 100.0, g.1 * 100.0, g.2 * 100.0));
        out.push(format!(
            "{:width$}  {:>5}  {:>20}  {:>18}  {:>18}  {:>18}  {gain:>22}  {:>6}",
            name(m),
            percent(f.auto),
            bounded(f.auto_precision),
            bounded(f.miss),
            bounded(f.wrong),
            bounded(f.top1),
            m.moved
        ));
    }
    for m in &tried.models {
        let setting = m.setting.as_deref().unwrap_or("no thresholds reach the aim; those it came with");
        let doubts = m.doubts().map(|d| format!("; {d}")).unwrap_or_default();
        out.push(format!("  {}: {setting}{doubts}", m.model));
    }
    out.push(match &tried.recommended {
        Some(model) => format!("recommended: {model} ({})", tried.why),
        None => format!("no recommendation: {}", tried.why),
    });
    out
}

/// Lines of text. Shares are in percent, with their 95 % bounds.
pub fn text(report: &Report) -> String {
    let mut out = Vec::new();
    let span = report.span.as_ref().map(|(a, b)| format!(", {a} to {b}")).unwrap_or_default();
    out.push(format!(
        "{} decisions ({} labelled, {} distinct requests, {} negative){span}",
        report.decisions, report.labelled, report.requests, report.negatives
    ));
    out.push(format!("models: {}", report.models.join(", ")));
    if !report.unknown_agents.is_empty() {
        let shown: Vec<&str> = report.unknown_agents.iter().take(5).map(String::as_str).collect();
        let more = report.unknown_agents.len().saturating_sub(shown.len());
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        out.push(format!("warning: labels name agents that no decision ever had as a candidate: {}{rest}; mistyped?", shown.join(", ")));
    }
    out.extend(report.notes.iter().map(|n| format!("warning: {n}")));
    for (models, n) in &report.by_other_models {
        out.push(format!("left out: {n} decisions by other models ({models}); thresholds hold for one set of models"));
    }
    let (same, of) = report.reproduced;
    if of > 0 {
        out.push(format!("decided again as logged: {same} of {of} came out the same"));
    }
    if report.exact < report.decisions {
        out.push(format!(
            "under some of the settings, candidates that the log left out could have come first: {} decisions",
            report.decisions - report.exact
        ));
    }
    if let Some(error) = report.calibration_error {
        out.push(format!("calibration error of the confidence here: {error:.3}"));
    }
    out.push(String::new());
    let width = report.settings.iter().map(|s| s.setting.chars().count()).max().unwrap_or(10).max(8);
    out.push(format!(
        "{:width$}  {:>5}  {:>20}  {:>7}  {:>18}  {:>18}  {:>6}",
        "%", "auto", "auto precision", "suggest", "miss", "wrong", "moved"
    ));
    for s in &report.settings {
        let moved = if s.axis == Axis::Logged { 0 } else { s.moved };
        out.push(row(&s.setting, &s.figures, moved, width));
    }
    out.push(String::new());
    out.push(format!("aim: {}", report.advice.aim));
    match &report.advice.recommended {
        Some(r) => {
            out.push(format!("recommended: {}", r.setting));
            out.push(format!("  {}", report.advice.why));
            if let Some(range) = r.range {
                let ((a, b), (c, d)) = (range.auto, range.suggest);
                out.push(format!("  the same choice on 95 % of resamples: auto between {a} and {b}, suggest between {c} and {d}"));
            }
            if !r.rivals.is_empty() {
                out.push(format!("  nearly as good: {}", r.rivals.join(" | ")));
            }
            let part = |name: &str, f: &Figures| {
                format!(
                    "  {name}: auto {}, precision {}, miss {}, wrong {}",
                    percent(f.auto),
                    bounded(f.auto_precision),
                    bounded(f.miss),
                    bounded(f.wrong)
                )
            };
            out.push(part("chosen on", &r.chosen_on));
            if let Some(held) = &r.held_out {
                out.push(part("held out ", held));
            }
            for line in r.write.lines() {
                out.push(format!("    {line}"));
            }
        }
        None if report.advice.why.is_empty() => {}
        None => out.push(format!("no recommendation: {}", report.advice.why)),
    }
    for thin in &report.advice.thin {
        out.push(format!("thin: {thin}"));
    }
    let shown = report.settings.iter().rev().find(|s| !s.moves.is_empty());
    if let Some(s) = shown {
        out.push(String::new());
        out.push(format!("{}: {} decisions move", s.setting, s.moved));
        for m in s.moves.iter().take(10) {
            let side = |x: &super::tally::Shown| format!("{} {}", x.kind.as_str(), x.who.as_deref().unwrap_or("")).trim().to_string();
            let query: String = m.query.as_deref().unwrap_or(&m.decision_id).chars().take(60).collect();
            out.push(format!("  {query}: {} → {} ({}; {})", side(&m.from), side(&m.to), m.now, m.why));
        }
    }
    if let Some(tried) = &report.tried {
        out.extend(models(tried));
    }
    let bare = report.coverage.iter().filter(|c| c.counts.labelled == 0).count();
    let few = report.coverage.iter().filter(|c| (1..5).contains(&c.counts.labelled)).count();
    out.push(String::new());
    out.push(format!("coverage: {} capabilities; {bare} without a label, {few} with fewer than 5", report.coverage.len()));
    for c in report.coverage.iter().filter(|c| c.counts.labelled >= 5 && c.counts.first * 2 < c.counts.labelled).take(10) {
        out.push(format!("  weak: {} first in {} of {}, missed {}", c.capability, c.counts.first, c.counts.labelled, c.counts.missed));
    }
    if let Some(broken) = &report.gate {
        out.push(String::new());
        out.push(if broken.is_empty() { "gate: passed".into() } else { format!("gate: NOT passed\n  {}", broken.join("\n  ")) });
    }
    out.join("\n")
}
