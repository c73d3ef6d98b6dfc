//! The report as one HTML page: curves of misses against misroutes, reliability, histograms, the settings, what moves, coverage.

use super::figures::{Figures, Share, wilson};
use super::report::{OfSetting, Report};
use super::settings::Axis;
use super::tried::Tried;
use crate::eval::html::{Axes, Series, bars, beside, card, esc, lines, nice, page, table, tiles};

fn percent(share: Option<Share>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{:.1} %", s.value * 100.0))
}

/// A share in a column of percents.
fn plain(share: Option<Share>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{:.1}", s.value * 100.0))
}

fn bounded(share: Option<Share>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{:.1} ({:.1}–{:.1})", s.value * 100.0, s.low * 100.0, s.high * 100.0))
}

fn points(report: &Report, axis: Axis, of: impl Fn(&Figures) -> Option<Share>) -> Vec<(f64, f64, f64, f64)> {
    let on = |s: &&OfSetting| s.axis == axis;
    let mut all: Vec<_> =
        report.settings.iter().filter(on).filter_map(|s| of(&s.figures).map(|f| (s.at, f.value, f.low, f.high))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn most(series: &[&Vec<(f64, f64, f64, f64)>]) -> f64 {
    series.iter().flat_map(|s| s.iter().map(|p| p.3)).fold(0.0, f64::max)
}

fn curves(report: &Report) -> Vec<String> {
    let mut out = Vec::new();
    let chosen = report.advice.recommended.as_ref();
    let marked = |axis: Axis| chosen.and_then(|r| report.settings.get(r.index)).filter(|s| s.axis == axis).map(|s| (s.at, "recommended"));
    for (axis, name) in
        [(Axis::Auto, "policy.point.auto"), (Axis::Suggest, "policy.point.suggest"), (Axis::Margin, "policy.point.auto_margin")]
    {
        let (miss, wrong) = (points(report, axis, |f| f.miss), points(report, axis, |f| f.wrong));
        let (auto, precision) = (points(report, axis, |f| f.auto), points(report, axis, |f| f.auto_precision));
        if auto.len() < 2 {
            continue;
        }
        let xs = (auto.first().map_or(0.0, |p| p.0), auto.last().map_or(1.0, |p| p.0));
        if most(&[&miss, &wrong]) > 0.0 {
            let axes = Axes { x: name, xs, ys: (0.0, nice(most(&[&miss, &wrong]))), percent: true, mark: marked(axis), diagonal: false };
            let series = [Series { name: "miss", points: miss, line: true }, Series { name: "wrong", points: wrong, line: true }];
            out.push(card(&format!("Misses and misroutes by {name}"), &lines("misses and misroutes", &axes, &series)));
        }
        let axes = Axes { x: name, xs, ys: (0.0, 1.0), percent: true, mark: marked(axis), diagonal: false };
        let series =
            [Series { name: "auto share", points: auto, line: true }, Series { name: "auto precision", points: precision, line: true }];
        out.push(card(&format!("Share and precision of auto by {name}"), &lines("auto", &axes, &series)));
    }
    out
}

fn confidence(report: &Report) -> Vec<String> {
    let reliable: Vec<_> = report
        .bins
        .iter()
        .filter_map(|b| {
            let (c, r) = b.confidence.zip(b.share_right)?;
            let n = (b.right + b.wrong + b.nobody) as f64;
            let (low, high) = wilson(r, n);
            Some((c, r, low, high))
        })
        .collect();
    let mut out = Vec::new();
    if !reliable.is_empty() {
        let axes = Axes { x: "confidence", xs: (0.0, 1.0), ys: (0.0, 1.0), percent: true, mark: None, diagonal: true };
        out.push(card(
            "Reliability: share of right answers by confidence",
            &lines("reliability", &axes, &[Series { name: "right first answers", points: reliable, line: false }]),
        ));
    }
    let stacks: Vec<Vec<u64>> = report.bins.iter().map(|b| vec![b.right, b.wrong, b.nobody, b.unknown]).collect();
    let series = [("right", 2), ("wrong", 1), ("nobody can", 3), ("not labelled", 0)];
    out.push(card("Decisions by confidence", &bars("decisions by confidence", "confidence", &series, &stacks)));
    out
}

fn advice(report: &Report) -> String {
    let a = &report.advice;
    if a.why.is_empty() {
        return String::new();
    }
    let mut body = format!("<p><small>aim: {}</small></p>", esc(&a.aim));
    match &a.recommended {
        Some(r) => {
            body.push_str(&format!("<p><b>{}</b><br>{}</p>", esc(&r.setting), esc(&a.why)));
            let mut rows = vec![figures("chosen on", &r.chosen_on)];
            rows.extend(r.held_out.as_ref().map(|h| figures("held out", h)));
            body.push_str(&table(&HEAD[..HEAD.len() - 1], &rows, |_| false, &[]));
            if let Some(range) = r.range {
                let ((a, b), (c, d)) = (range.auto, range.suggest);
                body.push_str(&format!(
                    "<p>The same choice on 95 % of resamples: auto between {a} and {b}, suggest between {c} and {d}.</p>"
                ));
            }
            if !r.rivals.is_empty() {
                body.push_str(&format!("<p>Nearly as good: {}</p>", esc(&r.rivals.join(" · "))));
            }
            if !r.write.is_empty() {
                body.push_str(&format!("<pre>{}</pre>", esc(&r.write)));
            }
        }
        None => body.push_str(&format!("<p class=\"bad\">No recommendation: {}</p>", esc(&a.why))),
    }
    if !a.thin.is_empty() {
        let all: String = a.thin.iter().map(|t| format!("<li>{}</li>", esc(t))).collect();
        body.push_str(&format!("<p>The evidence is thin:</p><ul>{all}</ul>"));
    }
    card("Advice", &body)
}

const HEAD: [&str; 9] = ["setting (%)", "auto", "auto precision", "suggest", "suggest holds", "miss", "wrong", "top-1", "moved"];

fn figures(name: &str, f: &Figures) -> Vec<String> {
    vec![
        name.to_string(),
        plain(f.auto),
        bounded(f.auto_precision),
        plain(f.suggest),
        bounded(f.suggest_holds),
        bounded(f.miss),
        bounded(f.wrong),
        bounded(f.top1),
    ]
}

fn settings(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .settings
        .iter()
        .map(|s| {
            let mut row = figures(&s.setting, &s.figures);
            row.push(if s.axis == Axis::Logged { "–".into() } else { s.moved.to_string() });
            row
        })
        .collect();
    let on = report.advice.recommended.as_ref().map(|r| r.index);
    card("Settings, with 95 % bounds", &table(&HEAD, &rows, |i| Some(i) == on, &[]))
}

fn moves(report: &Report) -> String {
    let one = |s: &OfSetting| {
        let by: Vec<String> = s.moved_by.iter().map(|(what, n)| format!("{what}: {n}")).collect();
        let rows: Vec<Vec<String>> = s
            .moves
            .iter()
            .map(|m| {
                let side = |x: &super::tally::Shown| format!("{} {} {:.2}", x.kind.as_str(), x.who.as_deref().unwrap_or(""), x.confidence);
                vec![m.query.clone().unwrap_or_else(|| m.decision_id.clone()), side(&m.from), side(&m.to), m.now.to_string(), m.why.clone()]
            })
            .collect();
        let shown = table(&["request", "then", "now", "which is", "why"], &rows, |_| false, &[0, 1, 2, 3, 4]);
        card(
            &format!("What moves under {}: {} decisions", s.setting, s.moved),
            &format!("<p><small>{}</small></p>{shown}", esc(&by.join(" · "))),
        )
    };
    report.settings.iter().filter(|s| !s.moves.is_empty()).map(one).collect()
}

fn coverage(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .coverage
        .iter()
        .map(|c| {
            let n = &c.counts;
            vec![c.capability.clone(), n.labelled.to_string(), n.first.to_string(), n.missed.to_string(), n.chosen.to_string()]
        })
        .collect();
    let shown = table(&["capability", "labelled", "came first", "missed", "chosen"], &rows, |_| false, &[]);
    card("Coverage, fewest labels first", &format!("<details><summary>{} capabilities</summary>{shown}</details>", rows.len()))
}

fn models(tried: &Tried) -> String {
    let gained = |g: Option<(f64, f64, f64)>| {
        g.map_or_else(|| "–".into(), |g| format!("{:+.1} ({:+.1} to {:+.1})", g.0 * 100.0, g.1 * 100.0, g.2 * 100.0))
    };
    let rows: Vec<Vec<String>> = tried
        .models
        .iter()
        .map(|m| {
            let f = &m.held_out;
            vec![
                if m.in_use { format!("{} (in use)", m.model) } else { m.model.clone() },
                plain(f.auto),
                bounded(f.auto_precision),
                bounded(f.miss),
                bounded(f.wrong),
                bounded(f.top1),
                gained(m.top1_gain),
                m.moved.to_string(),
                m.setting.clone().unwrap_or_else(|| "none reaches the aim".into()),
            ]
        })
        .collect();
    let head = ["model (%)", "auto", "auto precision", "miss", "wrong", "top-1", "gain of top-1", "moved", "thresholds"];
    let on = tried.models.iter().position(|m| Some(&m.model) == tried.recommended.as_ref());
    let left_out = if tried.left_out > 0 { format!(" {} without their text were left out.", tried.left_out) } else { String::new() };
    let verdict = match &tried.recommended {
        Some(model) => format!("<p><b>{}</b><br>{}</p>", esc(model), esc(&tried.why)),
        None => format!("<p class=\"bad\">No recommendation: {}</p>", esc(&tried.why)),
    };
    let lead = format!(
        "<p><small>{} decisions asked again.{left_out} Thresholds were fitted for each model on {:.0} % of the requests; the figures are of the others.</small></p>",
        tried.decisions,
        100.0 * (1.0 - tried.holdout)
    );
    let axes = Axes { x: "auto share", xs: (0.0, 1.0), ys: (0.0, 1.0), percent: true, mark: None, diagonal: false };
    let series: Vec<Series<'_>> = tried
        .models
        .iter()
        .map(|m| {
            let mut points: Vec<_> = m.curve.iter().map(|(_, share, precision)| (*share, *precision, *precision, *precision)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: &m.model, points, line: true }
        })
        .collect();
    let chart = lines("auto precision by auto share", &axes, &series);
    let notes: String = tried
        .models
        .iter()
        .filter_map(|m| Some((m, m.doubts()?)))
        .map(|(m, doubts)| format!("<li>{}: {}</li>", esc(&m.model), esc(&doubts)))
        .collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul class=\"notes\">{notes}</ul>") };
    card("Models", &[lead, verdict, table(&head, &rows, |i| Some(i) == on, &[8]), notes].concat())
        + &beside(&[card("Auto precision by auto share, all requests", &chart)])
}

/// The page.
pub fn html(report: &Report) -> String {
    let current = report.settings.get(1).map(|s| s.figures.clone()).unwrap_or_default();
    let (same, of) = report.reproduced;
    let head = tiles(&[
        (report.decisions.to_string(), "decisions".into()),
        (format!("{} / {}", report.labelled, report.requests), "labelled / distinct requests".into()),
        (report.negatives.to_string(), "negative labels".into()),
        (percent(current.auto), "auto, current setting".into()),
        (percent(current.auto_precision), "of them right".into()),
        (percent(current.miss), "misses".into()),
        (if of > 0 { format!("{:.2} %", 100.0 * same as f64 / of as f64) } else { "–".into() }, "decided again as logged".into()),
        (report.calibration_error.map_or_else(|| "–".into(), |e| format!("{e:.3}")), "calibration error".into()),
    ]);
    let gate = report.gate.as_ref().map_or_else(String::new, |broken| {
        if broken.is_empty() {
            card("Gate", "<p class=\"good\">passed</p>")
        } else {
            let all: String = broken.iter().map(|b| format!("<li>{}</li>", esc(b))).collect();
            card("Gate", &format!("<p class=\"bad\">not passed</p><ul>{all}</ul>"))
        }
    });
    let span = report.span.as_ref().map(|(a, b)| format!("{a} to {b} · ")).unwrap_or_default();
    let lead = format!("{span}{}", report.models.join(", "));
    let charts: String = [curves(report), confidence(report)].iter().flat_map(|c| c.chunks(2)).map(beside).collect();
    let models = report.tried.as_ref().map_or_else(String::new, models);
    page("Replay", &lead, &[head, gate, advice(report), models, charts, settings(report), moves(report), coverage(report)].concat())
}
