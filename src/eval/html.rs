//! One self-contained HTML page: style, tables and charts as inline SVG. No script, nothing loaded from elsewhere.
//!
//! Invariant: every text is escaped; the same data gives the same bytes. Not here: what is shown (`replay::page`, `models::page`).

const STYLE: &str = "\
:root{--ink:#1d2430;--soft:#5d6878;--line:#dde3ea;--bg:#f6f8fa;--card:#fff;--a:#2563c9;--b:#c4432b;--c:#2c8a57;--d:#b07a12}\
@media(prefers-color-scheme:dark){:root{--ink:#e5e9ef;--soft:#9aa6b5;--line:#313b48;--bg:#12171e;--card:#1a212b;--a:#6ea3f5;--b:#ef7f69;--c:#5cc48d;--d:#e0b04a}}\
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI','Noto Sans','Noto Sans CJK SC','PingFang SC',sans-serif}\
main{max-width:1200px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:0 0 12px}\
.lead{color:var(--soft);margin:0 0 20px}.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:0 0 18px}\
.two{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(420px,100%),1fr));gap:18px}.two .card{margin:0}.row{margin-bottom:18px}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(230px,45%),1fr));gap:12px;margin:0 0 18px}.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}\
.tile b{display:block;white-space:nowrap;font-size:20px;font-weight:600;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}th,td{padding:5px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}\
th{color:var(--soft);font-weight:500;position:sticky;top:0;background:var(--card)}td:first-child,th:first-child,.left{text-align:left}td:first-child{white-space:normal;min-width:190px;overflow-wrap:anywhere}td.text{white-space:normal;text-align:left;min-width:180px}\
tr.on td{background:color-mix(in srgb,var(--a) 12%,transparent);font-weight:600}small{color:var(--soft)}pre{background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:10px 12px;overflow-x:auto;margin:10px 0 0}\
.good{color:var(--c)}.bad{color:var(--b)}ul{margin:8px 0 0;padding-left:20px}svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}.notes{margin:10px 0 0;color:var(--soft);font-size:13px}.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}\
.key{display:flex;flex-wrap:wrap;gap:14px;color:var(--soft);font-size:13px;margin:6px 0 0}.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}\
details summary{cursor:pointer;color:var(--soft)}";

/// Colours of series, in their order.
pub const COLOURS: [&str; 4] = ["var(--a)", "var(--b)", "var(--c)", "var(--d)"];

/// Escapes text.
pub fn esc(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => {}
            c => out.push(c),
        }
        out
    })
}

/// A page with a title, a line under it, and its body (already HTML).
pub fn page(title: &str, lead: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{t}</title><style>{STYLE}</style></head>\n<body><main><h1>{t}</h1><p class=\"lead\">{l}</p>\n{body}\n</main></body></html>\n",
        t = esc(title),
        l = esc(lead)
    )
}

/// A card with a heading and its body (already HTML).
pub fn card(heading: &str, body: &str) -> String {
    format!("<section class=\"card\"><h2>{}</h2>{body}</section>\n", esc(heading))
}

/// Cards side by side (already HTML).
pub fn beside(cards: &[String]) -> String {
    format!("<div class=\"two row\">{}</div>\n", cards.concat())
}

/// Numbers with their names.
pub fn tiles(tiles: &[(String, String)]) -> String {
    let all: String =
        tiles.iter().map(|(value, name)| format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>", esc(value), esc(name))).collect();
    format!("<div class=\"tiles\">{all}</div>\n")
}

/// A table. The first column is left-aligned; `on` marks a row; columns named in `text` wrap.
pub fn table(head: &[&str], rows: &[Vec<String>], on: impl Fn(usize) -> bool, text: &[usize]) -> String {
    let class = |i: usize| if text.contains(&i) { " class=\"text\"" } else { "" };
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    for (i, h) in head.iter().enumerate() {
        out.push_str(&format!("<th{}>{}</th>", if text.contains(&i) { " class=\"left\"" } else { "" }, esc(h)));
    }
    out.push_str("</tr></thead><tbody>");
    for (r, row) in rows.iter().enumerate() {
        out.push_str(if on(r) { "<tr class=\"on\">" } else { "<tr>" });
        for (i, cell) in row.iter().enumerate() {
            out.push_str(&format!("<td{}>{}</td>", class(i), esc(cell)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// A series of a chart: points (x, y, lowest y, highest y).
pub struct Series<'a> {
    /// Name in the key.
    pub name: &'a str,
    /// Points by x.
    pub points: Vec<(f64, f64, f64, f64)>,
    /// Whether points are joined.
    pub line: bool,
}

const W: f64 = 520.0;
const H: f64 = 290.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// The axes of a chart.
pub struct Axes<'a> {
    /// Under the x axis.
    pub x: &'a str,
    /// Ends of the x axis.
    pub xs: (f64, f64),
    /// Ends of the y axis.
    pub ys: (f64, f64),
    /// Whether y is shown in percent.
    pub percent: bool,
    /// A vertical mark with its name.
    pub mark: Option<(f64, &'a str)>,
    /// Draws the diagonal of perfect calibration.
    pub diagonal: bool,
}

/// An upper end for an axis of shares: a little above the largest value, on a round step.
pub fn nice(most: f64) -> f64 {
    [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0].into_iter().find(|top| most <= *top).unwrap_or(1.0)
}

/// Round values inside an axis, at most eight, and the digits behind the point that tell them apart.
fn ticks(from: f64, to: f64) -> (Vec<f64>, usize) {
    let span = (to - from).max(1e-9);
    let power = 10f64.powf((span / 6.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| span / s <= 7.0).unwrap_or(10.0 * power);
    let digits = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    let first = (from / step - 1e-6).ceil();
    let all = (0..9).map(|i| (first + f64::from(i)) * step).filter(|v| *v <= to + step * 1e-6).collect();
    (all, digits)
}

fn key(names: &[(&str, &str)]) -> String {
    let all: String =
        names.iter().map(|(name, colour)| format!("<span><i style=\"background:{colour}\"></i>{}</span>", esc(name))).collect();
    format!("<div class=\"key\">{all}</div>")
}

struct Frame {
    xs: (f64, f64),
    ys: (f64, f64),
}

impl Frame {
    fn x(&self, v: f64) -> f64 {
        let span = (self.xs.1 - self.xs.0).max(1e-9);
        LEFT + (W - LEFT - RIGHT) * ((v - self.xs.0) / span).clamp(0.0, 1.0)
    }

    fn y(&self, v: f64) -> f64 {
        let span = (self.ys.1 - self.ys.0).max(1e-9);
        H - BOTTOM - (H - TOP - BOTTOM) * ((v - self.ys.0) / span).clamp(0.0, 1.0)
    }

    fn grid(&self, axes: &Axes<'_>) -> String {
        let mut out = String::new();
        let (rows, digits) = ticks(self.ys.0, self.ys.1);
        for v in rows {
            let y = self.y(v);
            let shown = if axes.percent { format!("{:.*} %", digits.saturating_sub(2), v * 100.0) } else { format!("{v:.digits$}") };
            out.push_str(&format!("<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"var(--line)\"/>", W - RIGHT));
            out.push_str(&format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{shown}</text>", LEFT - 8.0, y + 4.0));
        }
        let (columns, digits) = ticks(self.xs.0, self.xs.1);
        for v in columns {
            out.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{v:.digits$}</text>",
                self.x(v),
                H - BOTTOM + 17.0
            ));
        }
        out.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (W + LEFT - RIGHT) / 2.0,
            H - 5.0,
            esc(axes.x)
        ));
        out
    }
}

fn svg(name: &str, inner: &str) -> String {
    format!("<svg viewBox=\"0 0 {W} {H}\" role=\"img\" aria-label=\"{}\">{inner}</svg>", esc(name))
}

/// Lines with bands between their lowest and highest y.
pub fn lines(name: &str, axes: &Axes<'_>, series: &[Series<'_>]) -> String {
    let frame = Frame { xs: axes.xs, ys: axes.ys };
    let mut out = frame.grid(axes);
    if axes.diagonal {
        let (x1, y1, x2, y2) = (frame.x(0.0), frame.y(0.0), frame.x(1.0), frame.y(1.0));
        out.push_str(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"var(--soft)\" stroke-dasharray=\"4 4\"/>"
        ));
    }
    if let Some((at, _)) = axes.mark {
        let x = frame.x(at);
        out.push_str(&format!(
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"var(--ink)\" stroke-dasharray=\"3 4\"/>",
            H - BOTTOM
        ));
    }
    for (s, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let at = |x: f64, y: f64| format!("{:.1},{:.1}", frame.x(x), frame.y(y));
        let upper = s.points.iter().map(|p| at(p.0, p.3));
        let lower = s.points.iter().rev().map(|p| at(p.0, p.2));
        let band: Vec<String> = upper.chain(lower).collect();
        if s.line {
            out.push_str(&format!("<polygon points=\"{}\" fill=\"{colour}\" fill-opacity=\".14\"/>", band.join(" ")));
            let line: Vec<String> = s.points.iter().map(|p| at(p.0, p.1)).collect();
            out.push_str(&format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", line.join(" ")));
        }
        for p in &s.points {
            let (x, y) = (frame.x(p.0), frame.y(p.1));
            if !s.line {
                out.push_str(&format!(
                    "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
                    frame.y(p.2),
                    frame.y(p.3)
                ));
            }
            let shown = if axes.percent { format!("{:.1} %", p.1 * 100.0) } else { format!("{:.3}", p.1) };
            out.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\" fill=\"{colour}\"><title>{} {shown} at {:.3}</title></circle>",
                if s.line { 2.4 } else { 4.0 },
                esc(s.name),
                p.0
            ));
        }
    }
    // over the lines, so that it can be read
    if let Some((at, text)) = axes.mark {
        let x = frame.x(at);
        let anchor = if x > W * 0.7 { "end" } else { "start" };
        let dx = if anchor == "end" { -5.0 } else { 5.0 };
        out.push_str(&format!(
            "<text class=\"halo\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x + dx,
            TOP + 10.0,
            esc(text)
        ));
    }
    let names: Vec<(&str, &str)> = series.iter().zip(COLOURS.iter().cycle()).map(|(s, c)| (s.name, *c)).collect();
    svg(name, &out) + &key(&names)
}

/// Stacked bars over bins of 0..1. `stacks` = a count for each series in each bin.
pub fn bars(name: &str, x: &str, series: &[(&str, usize)], stacks: &[Vec<u64>]) -> String {
    let most = stacks.iter().map(|s| s.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    let axes = Axes { x, xs: (0.0, 1.0), ys: (0.0, most as f64), percent: false, mark: None, diagonal: false };
    let frame = Frame { xs: axes.xs, ys: axes.ys };
    let mut out = frame.grid(&axes);
    let width = 1.0 / stacks.len().max(1) as f64;
    for (b, stack) in stacks.iter().enumerate() {
        let mut under = 0.0;
        for ((label, colour), n) in series.iter().zip(stack).filter(|(_, n)| **n > 0) {
            let (top, bottom) = (frame.y(under + *n as f64), frame.y(under));
            let (left, right) = (frame.x(b as f64 * width), frame.x((b + 1) as f64 * width));
            out.push_str(&format!(
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: {n}</title></rect>",
                left + 1.0,
                (right - left - 2.0).max(1.0),
                (bottom - top).max(0.5),
                COLOURS[*colour % COLOURS.len()],
                esc(label)
            ));
            under += *n as f64;
        }
    }
    let names: Vec<(&str, &str)> = series.iter().map(|(n, c)| (*n, COLOURS[*c % COLOURS.len()])).collect();
    svg(name, &out) + &key(&names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_charts_are_finite() {
        let shown = |from, to| {
            let (all, digits) = ticks(from, to);
            all.iter().map(|v| format!("{v:.digits$}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(0.3, 0.99), "0.3 0.4 0.5 0.6 0.7 0.8 0.9");
        assert_eq!(shown(0.0, 1.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(shown(0.0, 0.3), "0.00 0.05 0.10 0.15 0.20 0.25 0.30");
        assert_eq!(shown(0.0, 217.0), "0 50 100 150 200");
        assert_eq!(esc("<b a=\"1\">&\u{1b}"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        let axes = Axes { x: "t", xs: (0.5, 0.5), ys: (0.0, 0.0), percent: true, mark: Some((0.5, "now")), diagonal: true };
        let chart = lines("c", &axes, &[Series { name: "<s>", points: vec![(0.5, 0.0, 0.0, 0.0)], line: true }]);
        assert!(!chart.contains("NaN") && !chart.contains("<s>"));
        assert!(!bars("b", "x", &[("a", 0)], &[]).contains("NaN"));
        let html = page("t", "l", &card("h", &table(&["a"], &[vec!["<x>".into()]], |_| true, &[])));
        assert!(!html.contains("<x>") && !html.contains("http"), "nothing is loaded");
    }
}
