//! The figures of a run by language and by kind of difficulty, as the queries are labelled.
//!
//! In: queries with what they got. Out: a [`Part`] a label. Pure. Not here: the figures of the whole run (`eval::run`).

use crate::eval::metrics::Judged;
use crate::eval::queries::Labelled;
use crate::types::decision::DecisionKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of the queries with one label. Shares are fractions; `None` = there is no such query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// Queries with a right answer.
    pub n_in_scope: usize,
    /// Queries that nobody can do.
    pub n_out_of_scope: usize,
    /// Share of those in scope with a right answer first.
    pub top1: Option<f64>,
    /// Share of those in scope that were answered `none`.
    pub in_scope_none: Option<f64>,
    /// Share of `auto` among all.
    pub auto_share: Option<f64>,
    /// Share of right ones among `auto`.
    pub auto_precision: Option<f64>,
    /// Share of those out of scope that were answered `none`.
    pub out_of_scope_none: Option<f64>,
}

/// Parts by language and by tag.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// By language as labelled.
    pub lang: BTreeMap<String, Part>,
    /// By tag; a query with several counts for each.
    pub tag: BTreeMap<String, Part>,
}

fn part(all: &[&Judged]) -> Part {
    let share = |part: usize, of: usize| (of > 0).then(|| part as f64 / of as f64);
    let count = |want: &dyn Fn(&Judged) -> bool| all.iter().filter(|j| want(j)).count();
    let (inside, outside) = (count(&|j| j.in_scope), count(&|j| !j.in_scope));
    let auto = count(&|j| j.kind == DecisionKind::Auto);
    Part {
        n_in_scope: inside,
        n_out_of_scope: outside,
        top1: share(count(&|j| j.in_scope && j.right), inside),
        in_scope_none: share(count(&|j| j.in_scope && j.kind == DecisionKind::None), inside),
        auto_share: share(auto, all.len()),
        auto_precision: share(count(&|j| j.kind == DecisionKind::Auto && j.right), auto),
        out_of_scope_none: share(count(&|j| !j.in_scope && j.kind == DecisionKind::None), outside),
    }
}

/// Parts of queries and what each got, in one order.
pub fn of(queries: &[Labelled], judged: &[Judged]) -> Parts {
    let (mut lang, mut tag) = (BTreeMap::<&str, Vec<&Judged>>::new(), BTreeMap::<&str, Vec<&Judged>>::new());
    for (query, one) in queries.iter().zip(judged) {
        if !query.lang.is_empty() {
            lang.entry(&query.lang).or_default().push(one);
        }
        for t in &query.tags {
            tag.entry(t).or_default().push(one);
        }
    }
    let parts = |by: BTreeMap<&str, Vec<&Judged>>| by.into_iter().map(|(k, v)| (k.to_string(), part(&v))).collect();
    Parts { lang: parts(lang), tag: parts(tag) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_its_own_figures() {
        let query = |lang: &str, tags: &[&str]| -> Labelled {
            serde_json::from_value(serde_json::json!({"query": "q", "lang": lang, "tags": tags})).unwrap()
        };
        let judged = |kind, in_scope, right| Judged { kind, in_scope, right, whole: right, held: right, confidence: 0.5 };
        let queries = [query("zh", &["typo"]), query("zh", &["typo", "long"]), query("en", &[]), query("en", &[])];
        let all = [
            judged(DecisionKind::Auto, true, true),
            judged(DecisionKind::None, true, false),
            judged(DecisionKind::Auto, false, false),
            judged(DecisionKind::None, false, false),
        ];
        let parts = of(&queries, &all);
        assert_eq!((parts.lang["zh"].top1, parts.lang["zh"].in_scope_none), (Some(0.5), Some(0.5)));
        let en = parts.lang["en"];
        assert_eq!((en.n_in_scope, en.top1, en.auto_precision, en.out_of_scope_none), (0, None, Some(0.0), Some(0.5)));
        assert_eq!((parts.tag["typo"].n_in_scope, parts.tag["long"].n_in_scope), (2, 1));
    }
}
