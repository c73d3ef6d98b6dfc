//! Quality figures of a run, from what was expected and what was answered. Pure.
//!
//! Ranks count distinct (agent, capability) pairs. Shares are fractions 0..=1; `None` where the denominator is empty.

use serde::Serialize;

/// Rank-based figures of one ordering over in-scope queries.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ranks {
    /// Share with a right answer first.
    pub top1: f64,
    /// Share with a right answer among the first three.
    pub top3: f64,
    /// Mean reciprocal rank of the first right answer (0 when beyond the list).
    pub mrr: f64,
    /// Share of right answers within the first ten: for `mode: all` a share of the set.
    pub recall_at_10: f64,
}

/// Adds up ranks.
#[derive(Clone, Debug, Default)]
pub struct RankSum {
    n: usize,
    top1: f64,
    top3: f64,
    mrr: f64,
    recall: f64,
}

impl RankSum {
    /// One in-scope query: 0-based positions of the expected entries that were found, how many were expected, and whether all are needed.
    pub fn add(&mut self, found: &[usize], expected: usize, all: bool) {
        self.n += 1;
        if let Some(first) = found.iter().min() {
            self.top1 += f64::from(u8::from(*first == 0));
            self.top3 += f64::from(u8::from(*first < 3));
            self.mrr += 1.0 / (*first as f64 + 1.0);
        }
        let within = found.iter().filter(|p| **p < 10).count();
        self.recall += if all { within as f64 / expected.max(1) as f64 } else { f64::from(u8::from(within > 0)) };
    }

    /// The means.
    pub fn ranks(&self) -> Ranks {
        let n = self.n.max(1) as f64;
        Ranks { top1: self.top1 / n, top3: self.top3 / n, mrr: self.mrr / n, recall_at_10: self.recall / n }
    }
}

/// One decision with its truth.
#[derive(Clone, Debug)]
pub struct Judged {
    /// `auto`, `suggest` or `none`.
    pub kind: crate::types::DecisionKind,
    /// Whether the query has a right answer at all.
    pub in_scope: bool,
    /// Whether the first candidate is right.
    pub right: bool,
    /// Whether the first candidate is all that was asked for: false where a request needs several capabilities, for `auto` goes to one.
    pub whole: bool,
    /// Whether a right answer is among those suggested.
    pub held: bool,
    /// Confidence of the first candidate, 0..=1.
    pub confidence: f64,
}

/// Shares of the three answers and how good they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Decisions {
    /// Share of all queries answered `auto`.
    pub auto: f64,
    /// Share answered `suggest`.
    pub suggest: f64,
    /// Share answered `none`.
    pub none: f64,
    /// Right among those answered `auto`; an out-of-scope query answered `auto` counts as wrong.
    pub auto_precision: Option<f64>,
    /// Of those answered `auto`, right ones that are one of several capabilities which the request needs.
    pub auto_part: Option<f64>,
    /// In-scope queries answered `none`.
    pub in_scope_none: Option<f64>,
    /// Out-of-scope queries answered `auto`.
    pub out_of_scope_auto: Option<f64>,
    /// Out-of-scope queries answered `none`.
    pub out_of_scope_none: Option<f64>,
    /// Right answer among those suggested, over in-scope queries answered `suggest`.
    pub suggest_holds: Option<f64>,
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Counts decisions.
pub fn decisions(judged: &[Judged]) -> Decisions {
    use crate::types::DecisionKind::{Auto, None as Nobody, Suggest};
    let count = |f: &dyn Fn(&Judged) -> bool| judged.iter().filter(|j| f(j)).count();
    let n = judged.len();
    let inside = count(&|j| j.in_scope);
    let part = |kind| share(count(&|j| j.kind == kind), n).unwrap_or(0.0);
    Decisions {
        auto: part(Auto),
        suggest: part(Suggest),
        none: part(Nobody),
        auto_precision: share(count(&|j| j.kind == Auto && j.right), count(&|j| j.kind == Auto)),
        auto_part: share(count(&|j| j.kind == Auto && j.right && !j.whole), count(&|j| j.kind == Auto)),
        in_scope_none: share(count(&|j| j.in_scope && j.kind == Nobody), inside),
        out_of_scope_auto: share(count(&|j| !j.in_scope && j.kind == Auto), n - inside),
        out_of_scope_none: share(count(&|j| !j.in_scope && j.kind == Nobody), n - inside),
        suggest_holds: share(count(&|j| j.in_scope && j.kind == Suggest && j.held), count(&|j| j.in_scope && j.kind == Suggest)),
    }
}

/// Expected calibration error over ten equal-width bins of confidence (Naeini, Cooper and Hauskrecht 2015); out of scope = wrong.
pub fn ece(judged: &[Judged]) -> f64 {
    let mut bins = [(0usize, 0.0f64, 0usize); 10];
    for j in judged {
        let bin = ((j.confidence * 10.0) as usize).min(9);
        bins[bin].0 += 1;
        bins[bin].1 += j.confidence;
        bins[bin].2 += usize::from(j.right);
    }
    let n = judged.len().max(1) as f64;
    bins.iter().filter(|b| b.0 > 0).map(|(count, sum, right)| (sum - *right as f64).abs() / *count as f64 * (*count as f64 / n)).sum()
}

/// Mean squared difference of confidence and truth (Brier 1950).
pub fn brier(judged: &[Judged]) -> f64 {
    judged.iter().map(|j| (j.confidence - f64::from(u8::from(j.right))).powi(2)).sum::<f64>() / judged.len().max(1) as f64
}

/// Area under the ROC curve of confidence: right top answer against not (Mann–Whitney, ties count half). `None` when one side is empty.
pub fn auroc(judged: &[Judged]) -> Option<f64> {
    let mut sorted: Vec<(f64, bool)> = judged.iter().map(|j| (j.confidence, j.right)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let right = sorted.iter().filter(|s| s.1).count();
    let wrong = sorted.len() - right;
    if right == 0 || wrong == 0 {
        return None;
    }
    let mut rank_sum = 0.0;
    let mut i = 0;
    while i < sorted.len() {
        let mut j = i;
        while j < sorted.len() && sorted[j].0 == sorted[i].0 {
            j += 1;
        }
        let mean_rank = (i + 1 + j) as f64 / 2.0;
        rank_sum += mean_rank * sorted[i..j].iter().filter(|s| s.1).count() as f64;
        i = j;
    }
    Some((rank_sum - (right * (right + 1)) as f64 / 2.0) / (right as f64 * wrong as f64))
}

/// Quantile of sorted values by the nearest rank; 0 when empty.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return 0.0;
    }
    let at = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DecisionKind::{Auto, None as Nobody, Suggest};

    fn j(kind: crate::types::DecisionKind, in_scope: bool, right: bool, confidence: f64) -> Judged {
        Judged { kind, in_scope, right, whole: right, held: right, confidence }
    }

    #[test]
    fn ranks_and_sets() {
        let mut sum = RankSum::default();
        sum.add(&[0], 1, false);
        sum.add(&[2, 12], 2, true);
        sum.add(&[], 1, false);
        let r = sum.ranks();
        assert!((r.top1 - 1.0 / 3.0).abs() < 1e-9 && (r.top3 - 2.0 / 3.0).abs() < 1e-9);
        assert!((r.mrr - (1.0 + 1.0 / 3.0) / 3.0).abs() < 1e-9);
        assert!((r.recall_at_10 - 0.5).abs() < 1e-9);
    }

    #[test]
    fn out_of_scope_auto_is_wrong() {
        let d =
            decisions(&[j(Auto, true, true, 0.9), j(Auto, false, false, 0.9), j(Nobody, false, false, 0.1), j(Suggest, true, true, 0.5)]);
        assert_eq!(
            (d.auto_precision, d.out_of_scope_auto, d.out_of_scope_none, d.suggest_holds),
            (Some(0.5), Some(0.5), Some(0.5), Some(1.0))
        );
        assert_eq!(d.in_scope_none, Some(0.0));
    }

    /// Of two capabilities that a request needs, one is half an answer: right, and told.
    #[test]
    fn one_of_several_is_told() {
        let part = Judged { whole: false, ..j(Auto, true, true, 0.9) };
        let d = decisions(&[part.clone(), j(Auto, true, true, 0.9), Judged { kind: Suggest, ..part.clone() }]);
        assert_eq!((d.auto_precision, d.auto_part), (Some(1.0), Some(0.5)));
        assert!(ece(&[part]) < 0.11, "what its confidence speaks of is right");
    }

    #[test]
    fn calibration_figures() {
        let perfect: Vec<_> = (0..100).map(|i| j(Auto, true, i < 75, 0.75)).collect();
        assert!(ece(&perfect) < 1e-9);
        let over: Vec<_> = (0..100).map(|i| j(Auto, true, i < 50, 0.95)).collect();
        assert!((ece(&over) - 0.45).abs() < 1e-9);
        assert_eq!(auroc(&[j(Auto, true, true, 0.9), j(Auto, true, false, 0.1)]), Some(1.0));
        assert_eq!(auroc(&[j(Auto, true, true, 0.5), j(Auto, true, false, 0.5)]), Some(0.5));
        assert_eq!(auroc(&[j(Auto, true, true, 0.5)]), None);
    }
}
