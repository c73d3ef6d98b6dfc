//! The comparison as one HTML page.

use super::{OfModel, Report};
use crate::eval::html::{Axes, Series, beside, card, lines, page, table, tiles};

fn percent(v: f64) -> String {
    format!("{:.1}", v * 100.0)
}

fn measured(v: f64, digits: usize) -> String {
    if v == 0.0 { "–".into() } else { format!("{v:.digits$}") }
}

fn quality(models: &[OfModel]) -> String {
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|m| {
            vec![
                m.name.clone(),
                percent(m.whole.top1),
                percent(m.whole.top3),
                percent(m.whole.mrr),
                percent(m.whole.ndcg10),
                percent(m.dense.top1),
                percent(m.dense.top3),
                percent(m.dense.mrr),
                m.auroc.map_or("–".into(), |a| format!("{a:.3}")),
                format!("{:.3}", m.ece),
                if m.calibrated { "yes".into() } else { "no".into() },
            ]
        })
        .collect();
    let head = ["model (%)", "top-1", "top-3", "MRR", "nDCG@10", "dense top-1", "dense top-3", "dense MRR", "AUROC", "ECE", "calibrated"];
    card("Quality, best first", &table(&head, &rows, |i| i == 0, &[]))
}

fn decisions(models: &[OfModel]) -> String {
    let share = |s: Option<crate::eval::replay::figures::Share>| {
        s.map_or_else(|| "–".into(), |s| format!("{:.1} ({:.1}–{:.1})", s.value * 100.0, s.low * 100.0, s.high * 100.0))
    };
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|m| match &m.refitted {
            Some(r) => {
                let f = &r.held_out;
                vec![
                    m.name.clone(),
                    r.setting.clone(),
                    share(f.auto),
                    share(f.auto_precision),
                    share(f.miss),
                    share(f.wrong),
                    m.note.clone(),
                ]
            }
            None => vec![m.name.clone(), "none reaches the aim".into(), "–".into(), "–".into(), "–".into(), "–".into(), m.note.clone()],
        })
        .collect();
    let head = ["model (%)", "refitted on one half", "auto", "auto precision", "miss", "wrong", "note"];
    card("Decisions on the other half, at refitted thresholds", &table(&head, &rows, |_| false, &[6]))
}

fn speed(models: &[OfModel]) -> String {
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|m| {
            let s = &m.speed;
            let dims: Vec<String> = m.dims.iter().map(ToString::to_string).collect();
            vec![
                m.name.clone(),
                dims.join(" + "),
                measured(s.one_text_ms, 2),
                measured(s.texts_a_second, 0),
                measured(s.memory_bytes as f64 / 1e6, 0),
                measured(s.weights_bytes as f64 / 1e6, 0),
            ]
        })
        .collect();
    let head = ["model", "dimensions", "ms a text, one core", "texts a second", "memory, MB", "weights, MB"];
    card("Speed and size on this machine", &table(&head, &rows, |_| false, &[]))
}

fn pairs(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .pairs
        .iter()
        .map(|p| {
            let (gain, low, high) = p.mrr_gain;
            let surely = if p.p < 0.01 {
                "surely"
            } else if p.p < 0.05 {
                "probably"
            } else {
                "may be chance"
            };
            vec![
                p.better.clone(),
                p.worse.clone(),
                p.only_better.to_string(),
                p.only_worse.to_string(),
                format!("{:.2e}", p.p),
                format!("{gain:+.3} ({low:+.3} to {high:+.3})"),
                surely.into(),
            ]
        })
        .collect();
    let head = ["better", "than", "right alone", "the other alone", "p (McNemar)", "gain in MRR", "better?"];
    card("Pairs on the same queries", &table(&head, &rows, |_| false, &[1]))
}

/// The page.
pub fn html(report: &Report) -> String {
    let head = tiles(&[
        (report.models.len().to_string(), "models".into()),
        (report.queries.to_string(), "queries".into()),
        (report.in_scope.to_string(), "with a right answer".into()),
        (report.capabilities.to_string(), "capabilities".into()),
    ]);
    let curve = |f: fn(&(f64, f64, f64)) -> (f64, f64)| {
        report.models.iter().take(4).map(move |m| Series {
            name: &m.name,
            points: {
                let mut points: Vec<_> = m.curve.iter().map(|c| (f(c).0, f(c).1, f(c).1, f(c).1)).collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                points
            },
            line: true,
        })
    };
    let axes = |x| Axes { x, xs: (0.0, 1.0), ys: (0.0, 1.0), percent: true, mark: None, diagonal: false };
    let by_share: Vec<Series<'_>> = curve(|c| (c.1, c.2)).collect();
    let by_threshold: Vec<Series<'_>> = curve(|c| (c.0, c.1)).collect();
    let charts = beside(&[
        card("Precision of auto by its share", &lines("precision by share", &axes("auto share"), &by_share)),
        card("Share of auto by threshold", &lines("share by threshold", &axes("policy.point.auto"), &by_threshold)),
    ]);
    let lead = format!("thresholds refitted for {}", report.aim);
    page(
        "Models compared",
        &lead,
        &[head, quality(&report.models), charts, decisions(&report.models), pairs(report), speed(&report.models)].concat(),
    )
}
