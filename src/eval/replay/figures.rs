//! What a setting was worth: shares of the answers and how good they were, each with a confidence bound.
//!
//! In: how many decisions fell into each [`Cell`], for the data and for resamples of it. Out: [`Figures`]. Pure.
//! Bounds: 95 %, percentiles of a Poisson bootstrap over distinct requests (the same text asked a hundred times is one request, resampled as one), so
//! that repetition does not feign certainty; widened to Wilson's score interval of the same counts (Wilson 1927) where that reaches further. A bootstrap
//! can't draw what was never seen: 23 of 23 is 23 of 23 in each resample, though a share of 0.86 gives as much once in forty times.

use serde::Serialize;

/// Resamples behind a bound.
pub const RESAMPLES: usize = 200;

/// What became of one decision under one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cell {
    /// `auto`, and right.
    AutoRight,
    /// `auto`, wrong, though somebody (perhaps) could.
    AutoWrong,
    /// `auto` to one of several capabilities that are needed: wrong, though the first one is right.
    AutoPart,
    /// `auto`, though nobody can.
    AutoNobody,
    /// `auto`; whether right is not known.
    AutoUnknown,
    /// `suggest`, the right one first.
    SuggestFirst,
    /// `suggest`, a right one first, and not all that are needed among them.
    SuggestPart,
    /// `suggest`, a right one (all that are needed) among them.
    SuggestHeld,
    /// `suggest` without a right one, or without one that is needed.
    SuggestLacks,
    /// `suggest`, though nobody can.
    SuggestNobody,
    /// `suggest`; not known.
    SuggestUnknown,
    /// `none`, though somebody can.
    NoneMiss,
    /// `none`, and nobody can.
    NoneNobody,
    /// `none`; not known.
    NoneUnknown,
    /// `auto` without a label.
    Auto,
    /// `suggest` without a label.
    Suggest,
    /// `none` without a label.
    None,
}

/// Number of cells.
pub const CELLS: usize = 17;

/// Counts by cell.
pub type Counts = [u64; CELLS];

/// A share with its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// The share in the data.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How many decisions it is a share of.
    pub of: u64,
}

/// The figures of a setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Decisions.
    pub decisions: u64,
    /// Of them, with a label.
    pub labelled: u64,
    /// Labelled `auto` answers of which nobody knows whether they were right.
    pub unknown: u64,
    /// Share answered `auto`.
    pub auto: Option<Share>,
    /// Share answered `suggest`.
    pub suggest: Option<Share>,
    /// Share answered `none`.
    pub none: Option<Share>,
    /// Right among those answered `auto`; when nobody can do it, or one of several that are needed gets it, `auto` is wrong.
    pub auto_precision: Option<Share>,
    /// Misses: answered `none` though somebody can, over requests that somebody can do.
    pub miss: Option<Share>,
    /// Misroutes: answered `auto` and wrong, over labelled requests.
    pub wrong: Option<Share>,
    /// The right one first (`auto` or `suggest`), over requests that somebody can do.
    pub top1: Option<Share>,
    /// A right one among those suggested.
    pub suggest_holds: Option<Share>,
    /// Answered `auto` though nobody can.
    pub out_of_scope_auto: Option<Share>,
    /// Answered `none` where nobody can.
    pub out_of_scope_none: Option<Share>,
}

/// A figure by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share answered `auto`.
    AutoShare,
    /// Share answered `suggest`.
    SuggestShare,
    /// Share answered `none`.
    NoneShare,
    /// Right among `auto`.
    AutoPrecision,
    /// Misses.
    Miss,
    /// Misroutes.
    Wrong,
    /// The right one first.
    Top1,
    /// A right one among those suggested.
    SuggestHolds,
    /// `auto` though nobody can.
    OutOfScopeAuto,
    /// `none` where nobody can.
    OutOfScopeNone,
}

/// Every figure: its name in aims and gates, and the sum of cells it is a share of another sum of.
pub const METRICS: [(Metric, &str); 10] = [
    (Metric::AutoShare, "auto share"),
    (Metric::SuggestShare, "suggest share"),
    (Metric::NoneShare, "none share"),
    (Metric::AutoPrecision, "auto precision"),
    (Metric::Miss, "miss"),
    (Metric::Wrong, "wrong"),
    (Metric::Top1, "top1"),
    (Metric::SuggestHolds, "suggest holds"),
    (Metric::OutOfScopeAuto, "out of scope auto"),
    (Metric::OutOfScopeNone, "out of scope none"),
];

impl Metric {
    /// Its name.
    pub fn name(self) -> &'static str {
        METRICS.iter().find(|(m, _)| *m == self).map_or("", |(_, n)| n)
    }

    /// By its name; `_` and `-` are as good as a space.
    pub fn named(text: &str) -> Option<Self> {
        let plain = text.trim().to_lowercase().replace(['_', '-'], " ");
        METRICS.iter().find(|(_, n)| *n == plain).map(|(m, _)| *m)
    }

    /// Part and whole in some counts.
    fn ratio(self, c: &Counts) -> (u64, u64) {
        use Cell::*;
        let sum = |cells: &[Cell]| cells.iter().map(|x| c[*x as usize]).sum::<u64>();
        let autos = [AutoRight, AutoWrong, AutoPart, AutoNobody, AutoUnknown, Auto];
        let suggests = [SuggestFirst, SuggestPart, SuggestHeld, SuggestLacks, SuggestNobody, SuggestUnknown, Suggest];
        let nones = [NoneMiss, NoneNobody, NoneUnknown, None];
        let all = || c.iter().sum::<u64>();
        let inside = || sum(&[AutoRight, AutoWrong, AutoPart, SuggestFirst, SuggestPart, SuggestHeld, SuggestLacks, NoneMiss]);
        let outside = || sum(&[AutoNobody, SuggestNobody, NoneNobody]);
        match self {
            Self::AutoShare => (sum(&autos), all()),
            Self::SuggestShare => (sum(&suggests), all()),
            Self::NoneShare => (sum(&nones), all()),
            Self::AutoPrecision => (sum(&[AutoRight]), sum(&[AutoRight, AutoWrong, AutoPart, AutoNobody])),
            Self::Miss => (sum(&[NoneMiss]), inside()),
            Self::Wrong => (sum(&[AutoWrong, AutoPart, AutoNobody]), inside() + outside()),
            Self::Top1 => (sum(&[AutoRight, AutoPart, SuggestFirst, SuggestPart]), inside()),
            Self::SuggestHolds => (sum(&[SuggestFirst, SuggestHeld]), sum(&[SuggestFirst, SuggestPart, SuggestHeld, SuggestLacks])),
            Self::OutOfScopeAuto => (sum(&[AutoNobody]), outside()),
            Self::OutOfScopeNone => (sum(&[NoneNobody]), outside()),
        }
    }

    /// Value in some counts; `None` when it is a share of nothing.
    pub fn of(self, counts: &Counts) -> Option<f64> {
        let (part, whole) = self.ratio(counts);
        (whole > 0).then(|| part as f64 / whole as f64)
    }
}

/// Normal quantile of a two-sided 95 % interval.
const Z: f64 = 1.959_964;

/// Wilson's score interval of a share `value` of `n` (Wilson 1927), 95 %. Valid at 0 and 1, and for few. Everything where `n` is 0.
pub fn wilson(value: f64, n: f64) -> (f64, f64) {
    if n <= 0.0 {
        return (0.0, 1.0);
    }
    let z2 = Z * Z;
    let middle = (value + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z * (value * (1.0 - value) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    ((middle - half).clamp(0.0, value), (middle + half).clamp(value, 1.0))
}

/// Largest share of something never seen among `n` requests that they don't rule out: the upper end of Wilson's interval of 0 of `n`.
pub fn unseen(n: f64) -> f64 {
    wilson(0.0, n).1
}

/// How many independent requests stand behind `whole` decisions: as many, unless texts were repeated (Kish 1965). A sum of Poisson resamples of requests
/// that were asked once varies by its mean; one of repeated requests by more. Less than a third more is chance with 200 resamples.
pub fn independent(whole: u64, resampled: impl Iterator<Item = u64>) -> f64 {
    let all: Vec<f64> = resampled.map(|n| n as f64).collect();
    if all.len() < 2 || whole == 0 {
        return whole as f64;
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64;
    let repeated = variance / whole as f64;
    if repeated > REPEATED { whole as f64 / repeated } else { whole as f64 }
}

/// Variance of a resampled sum over its size from which decisions count as repeated: four standard deviations above 1.
const REPEATED: f64 = 1.4;

/// Quantile of values that are sorted here; NaN never comes in.
pub fn percentile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (q * (values.len().saturating_sub(1)) as f64).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}

/// A share with the bounds that `resampled` gives it.
pub fn share(metric: Metric, data: &Counts, resampled: &[Counts]) -> Option<Share> {
    let value = metric.of(data)?;
    let mut values: Vec<f64> = resampled.iter().filter_map(|c| metric.of(c)).collect();
    let (low, high) = if values.is_empty() { (0.0, 1.0) } else { (percentile(&mut values, 0.025), percentile(&mut values, 0.975)) };
    let of = metric.ratio(data).1;
    let (least, most) = wilson(value, independent(of, resampled.iter().map(|c| metric.ratio(c).1)));
    Some(Share { value, low: low.min(least), high: high.max(most), of })
}

impl Figures {
    /// Figures of some counts.
    pub fn of(data: &Counts, resampled: &[Counts]) -> Self {
        let get = |m| share(m, data, resampled);
        let cell = |c: Cell| data[c as usize];
        let decisions: u64 = data.iter().sum();
        Self {
            decisions,
            labelled: decisions - cell(Cell::Auto) - cell(Cell::Suggest) - cell(Cell::None),
            unknown: cell(Cell::AutoUnknown),
            auto: get(Metric::AutoShare),
            suggest: get(Metric::SuggestShare),
            none: get(Metric::NoneShare),
            auto_precision: get(Metric::AutoPrecision),
            miss: get(Metric::Miss),
            wrong: get(Metric::Wrong),
            top1: get(Metric::Top1),
            suggest_holds: get(Metric::SuggestHolds),
            out_of_scope_auto: get(Metric::OutOfScopeAuto),
            out_of_scope_none: get(Metric::OutOfScopeNone),
        }
    }

    /// A figure by name.
    pub fn get(&self, metric: Metric) -> Option<Share> {
        match metric {
            Metric::AutoShare => self.auto,
            Metric::SuggestShare => self.suggest,
            Metric::NoneShare => self.none,
            Metric::AutoPrecision => self.auto_precision,
            Metric::Miss => self.miss,
            Metric::Wrong => self.wrong,
            Metric::Top1 => self.top1,
            Metric::SuggestHolds => self.suggest_holds,
            Metric::OutOfScopeAuto => self.out_of_scope_auto,
            Metric::OutOfScopeNone => self.out_of_scope_none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_and_a_misroute_are_counted_where_they_belong() {
        let mut c: Counts = [0; CELLS];
        c[Cell::AutoRight as usize] = 8;
        c[Cell::AutoWrong as usize] = 1;
        c[Cell::AutoNobody as usize] = 1;
        c[Cell::NoneMiss as usize] = 2;
        c[Cell::NoneNobody as usize] = 3;
        c[Cell::SuggestHeld as usize] = 1;
        c[Cell::Auto as usize] = 4;
        let f = Figures::of(&c, &[]);
        assert_eq!((f.decisions, f.labelled), (20, 16));
        assert_eq!(f.auto_precision.unwrap().value, 0.8);
        assert_eq!(f.miss.unwrap().value, 2.0 / 12.0);
        assert_eq!(f.wrong.unwrap().value, 2.0 / 16.0);
        assert_eq!(f.auto.unwrap().value, 14.0 / 20.0);
        assert_eq!(Metric::named("Auto_Precision"), Some(Metric::AutoPrecision));
        assert!(f.out_of_scope_auto.unwrap().value == 0.25 && Metric::named("joy").is_none());
    }

    /// Wilson 1927; the figures are those of any table of the interval.
    #[test]
    fn bounds_are_valid_at_the_edges() {
        let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 5e-4 && (b - d).abs() < 5e-4;
        assert!(near(wilson(1.0, 13.0), (0.7719, 1.0)), "{:?}", wilson(1.0, 13.0));
        assert!(near(wilson(1.0, 23.0), (0.8569, 1.0)) && near(wilson(0.0, 10.0), (0.0, 0.2775)));
        assert!(near(wilson(0.5, 10.0), (0.2366, 0.7634)) && wilson(0.0, 0.0) == (0.0, 1.0));
        // what never varies in the data does not vary in any resample either
        let mut c: Counts = [0; CELLS];
        c[Cell::AutoRight as usize] = 23;
        let resampled: Vec<Counts> = (0..RESAMPLES)
            .map(|b| {
                let mut r = c;
                r[Cell::AutoRight as usize] = [18, 23, 28][b % 3];
                r
            })
            .collect();
        let precision = share(Metric::AutoPrecision, &c, &resampled).unwrap();
        assert!((precision.low - 0.8569).abs() < 5e-4 && precision.high == 1.0, "{precision:?}");
        let wrong = share(Metric::Wrong, &c, &resampled).unwrap();
        assert!(wrong.low == 0.0 && (wrong.high - 0.1431).abs() < 5e-4, "{wrong:?}");
    }

    #[test]
    fn repetition_does_not_feign_certainty() {
        // one text, asked 30 times: a resample holds it not at all, once, or more often
        let drawn = |b: usize| [0u64, 30, 30, 0, 60][b % 5];
        let n = independent(30, (0..RESAMPLES).map(drawn));
        assert!(n < 3.0, "{n}");
        assert_eq!(independent(30, (0..RESAMPLES).map(|b| [25u64, 30, 35][b % 3])), 30.0);
    }
}
