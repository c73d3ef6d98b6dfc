//! Which setting to take for an aim, how sure that is, and when the evidence is too thin to say.
//!
//! In: counts of every setting on the requests that settings are chosen on. Out: [`Advice`]. Pure.
//! A setting is recommended only when its *bounds* keep the limits where there is one like that, else when its values do (and the advice says so); among
//! those, the one with most of what is to be maximized. The range is what the same choice gives on resamples of the data.

use super::aim::Aim;
use super::figures::{Counts, Figures, Metric, percentile};
use super::settings::{Axis, Setting, Sweep};
use super::tally::Group;
use serde::Serialize;

/// Distinct labelled requests below which nothing is recommended.
pub const LEAST: usize = 30;
/// Distinct labelled requests below which the evidence is called thin.
pub const THIN: usize = 100;
/// Width of an interval above which a figure is called uncertain.
const WIDE: f64 = 0.15;

/// A recommended setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommended {
    /// Its name.
    pub setting: String,
    /// Its place among the settings.
    pub index: usize,
    /// Figures on the requests it was chosen on.
    pub chosen_on: Figures,
    /// Figures on the requests it was not chosen on.
    pub held_out: Option<Figures>,
    /// Whether the bounds keep the aim's limits, not only the values.
    pub surely: bool,
    /// Where the thresholds of the same choice fall on 95 % of resamples; for sweeps of thresholds.
    pub range: Option<Range>,
    /// Other settings that are the choice on at least one resample in twenty.
    pub rivals: Vec<String>,
    /// The change, as it is written into the configuration.
    pub write: String,
}

/// Intervals of the thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Of `policy.point.auto`.
    pub auto: (f64, f64),
    /// Of `policy.point.suggest`.
    pub suggest: (f64, f64),
}

/// What replay advises.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The aim in words.
    pub aim: String,
    /// The setting to take; `None` = none can be advised, and `why` says why.
    pub recommended: Option<Recommended>,
    /// In words.
    pub why: String,
    /// What is thin about the evidence.
    pub thin: Vec<String>,
}

struct Weighed {
    index: usize,
    most: f64,
    harm: f64,
    broken: f64,
    surely: bool,
}

fn weigh(aim: &Aim, index: usize, data: &Counts, figures: Option<&Figures>) -> Weighed {
    let broken = aim.limits.iter().map(|l| l.metric.of(data).map_or(0.0, |v| l.broken_by(v))).sum();
    // a limit on a figure that is a share of nothing is not kept surely
    let surely = figures
        .is_some_and(|f| aim.limits.iter().all(|l| f.get(l.metric).is_some_and(|s| l.keeps(if l.at_least { s.low } else { s.high }))));
    let harm = Metric::Miss.of(data).unwrap_or(0.0) + Metric::Wrong.of(data).unwrap_or(0.0);
    Weighed { index, most: aim.most.of(data).unwrap_or(0.0), harm, broken, surely }
}

/// The best of some weighed settings: most of what is wanted, then least harm, then the first.
fn best<'w>(weighed: impl Iterator<Item = &'w Weighed>) -> Option<&'w Weighed> {
    weighed.min_by(|a, b| b.most.total_cmp(&a.most).then(a.harm.total_cmp(&b.harm)).then(a.index.cmp(&b.index)))
}

/// A threshold as it is written.
fn round(x: f32) -> f64 {
    (f64::from(x) * 1e4).round() / 1e4
}

fn is_threshold(axis: Axis) -> bool {
    match axis {
        Axis::Auto | Axis::Suggest | Axis::Margin | Axis::Both => true,
        Axis::Logged | Axis::Current | Axis::Weight | Axis::Extra | Axis::Preset => false,
    }
}

/// Settings that are weighed against each other on resamples: thresholds with thresholds, the others by what they change.
fn kind(axis: Axis) -> Axis {
    if is_threshold(axis) { Axis::Auto } else { axis }
}

/// Advises on the settings of a group.
pub fn advise(aim: &Aim, settings: &[Setting], group: &Group, swept: &[Sweep], holdout: bool) -> Advice {
    let requests = group.requests.len();
    let mut thin = Vec::new();
    let nothing = |why: String, thin: Vec<String>| Advice { aim: aim.to_string(), recommended: None, why, thin };
    if requests < THIN {
        thin.push(format!("{requests} distinct labelled requests; with fewer than {THIN} every figure is a rough guess"));
    }
    if swept.is_empty() {
        return nothing("no setting was swept; add --sweep threshold, weights or preset".into(), thin);
    }
    if requests < LEAST {
        return nothing(format!("too little evidence: {requests} distinct labelled requests, {LEAST} are the least"), thin);
    }
    let no_negatives = group.negatives == 0;
    if no_negatives {
        thin.push("no negatives: no label says that nobody can do a request, or that an answer was wrong".into());
        if swept == [Sweep::Threshold] {
            return nothing(
                "no negatives, cannot fit: thresholds tell right from wrong, and every label here is a right answer; add requests that nobody can do \
                 (\"expected\": []) or outcomes such as rejected and overridden"
                    .into(),
                thin,
            );
        }
    } else if group.negative_requests.len() < 20 {
        thin.push(format!("only {} distinct requests with a negative label; thresholds rest on them", group.negative_requests.len()));
    }
    let eligible: Vec<usize> = settings
        .iter()
        .enumerate()
        .filter(|(_, s)| s.axis != Axis::Logged && !(no_negatives && is_threshold(s.axis)))
        .map(|(i, _)| i)
        .collect();
    let resamples: Vec<Vec<Counts>> = eligible.iter().map(|i| group.settings[*i].fit.resamples()).collect();
    let weighed: Vec<Weighed> = eligible
        .iter()
        .zip(&resamples)
        .map(|(i, res)| {
            let data = &group.settings[*i].fit.data;
            weigh(aim, *i, data, Some(&Figures::of(data, res)))
        })
        .collect();
    let chosen = best(weighed.iter().filter(|w| w.surely)).or_else(|| best(weighed.iter().filter(|w| w.broken == 0.0)));
    let Some(chosen) = chosen else {
        let nearest = weighed.iter().min_by(|a, b| a.broken.total_cmp(&b.broken)).map_or("none", |w| settings[w.index].name.as_str());
        return nothing(format!("no setting reaches {aim}; the nearest is {nearest}"), thin);
    };
    let setting = &settings[chosen.index];
    // the same choice on each resample, among the settings of the same kind
    let same_kind: Vec<usize> = (0..eligible.len())
        .filter(|e| {
            let axis = settings[eligible[*e]].axis;
            kind(axis) == kind(setting.axis) || axis == Axis::Current || setting.axis == Axis::Current
        })
        .collect();
    let mut won = vec![0usize; settings.len()];
    let (mut autos, mut suggests) = (Vec::new(), Vec::new());
    let mut choose = |b: usize| {
        let all: Vec<Weighed> = same_kind.iter().map(|e| weigh(aim, eligible[*e], &resamples[*e][b], None)).collect();
        if let Some(w) = best(all.iter().filter(|w| w.broken == 0.0)) {
            won[w.index] += 1;
            let point = super::settings::point_of(&settings[w.index].policy);
            autos.push(round(point.auto));
            suggests.push(round(point.suggest));
        }
    };
    (0..super::figures::RESAMPLES).for_each(&mut choose);
    let thresholds = is_threshold(setting.axis) || (setting.axis == Axis::Current && swept.contains(&Sweep::Threshold));
    let range = (thresholds && !autos.is_empty()).then(|| {
        let point = super::settings::point_of(&setting.policy);
        let interval = |all: &mut Vec<f64>, own: f64| (percentile(all, 0.025).min(own), percentile(all, 0.975).max(own));
        Range { auto: interval(&mut autos, round(point.auto)), suggest: interval(&mut suggests, round(point.suggest)) }
    });
    let rivals = won
        .iter()
        .enumerate()
        .filter(|(i, n)| *i != chosen.index && **n * 20 >= super::figures::RESAMPLES)
        .map(|(i, _)| settings[i].name.clone())
        .collect();
    let of = &group.settings[chosen.index];
    let chosen_on = Figures::of(&of.fit.data, &of.fit.resamples());
    for limit in &aim.limits {
        if let Some(s) = chosen_on.get(limit.metric).filter(|s| s.high - s.low > WIDE) {
            thin.push(format!(
                "{} lies between {:.2} and {:.2} ({} decisions): more labels would tell",
                limit.metric.name(),
                s.low,
                s.high,
                s.of
            ));
        }
    }
    let why = if chosen.surely {
        format!("{} keeps {} with its bounds", setting.name, aim.limits_in_words())
    } else {
        format!("{} keeps {} in the data, but not with its bounds: it may be luck", setting.name, aim.limits_in_words())
    };
    let recommended = Recommended {
        setting: setting.name.clone(),
        index: chosen.index,
        held_out: holdout.then(|| Figures::of(&of.held.data, &of.held.resamples())),
        chosen_on,
        surely: chosen.surely,
        range,
        rivals,
        write: write(setting),
    };
    Advice { aim: aim.to_string(), recommended: Some(recommended), why, thin }
}

/// The setting as configuration.
pub fn write(setting: &Setting) -> String {
    let policy = &setting.policy;
    let point = super::settings::point_of(policy);
    let points = || {
        let learned = point.auto_learned.map(|v| format!("auto_learned = {v}\n")).unwrap_or_default();
        format!(
            "[policy.point]\nauto = {}\n{learned}auto_margin = {}\nsuggest = {}\nfloor = {}\nkeep_under_floor = {}\n",
            point.auto, point.auto_margin, point.suggest, point.floor, point.keep_under_floor
        )
    };
    match setting.axis {
        Axis::Logged | Axis::Current => String::new(),
        Axis::Auto | Axis::Suggest | Axis::Margin | Axis::Both => points(),
        Axis::Preset => format!("[policy]\ndefault_preset = \"{}\"\n", policy.default_preset),
        Axis::Extra => format!(
            "[policy]\nlive_margin = {}\n\n[policy.bonus]\npreferred = {}\ncooccurrence = {}\n",
            policy.live_margin, policy.bonus.preferred, policy.bonus.cooccurrence
        ),
        Axis::Weight => {
            let weights = policy.presets.get(&policy.default_preset).map(|p| p.weights.clone()).unwrap_or_default();
            let lines: Vec<String> = weights.named().iter().map(|(n, w)| format!("{n} = {w}")).collect();
            format!("[policy.presets.{}.weights]\n{}\n", policy.default_preset, lines.join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::policy::Policy;

    /// What is advised is what was tried: written into the configuration it is the same point.
    #[test]
    fn what_is_written_is_what_was_tried() {
        for setting in super::super::settings::thresholds(&Policy::default()) {
            let read = crate::config::Config::parse(&write(&setting), &[]).unwrap().policy;
            assert_eq!(read.point, setting.policy.point, "{}", setting.name);
        }
    }
}
