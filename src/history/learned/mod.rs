//! What was learned, as decisions read it: for each part of the fleet that a caller can see, heads of their own.
//!
//! Invariant: a head was trained from the texts and outcomes of what its callers see and of nothing else, in an order that depends on nothing
//! else, so that what a principal can't see changes not a bit of its scores. Where nothing was learned for a part, nothing changes.
//! Not here: training in the background (`ingest::learn`), what the changes do to an order (`route::pipeline`).

pub mod blend;
pub mod head;
mod logistic;
mod sketch;

use crate::index::Visible;
use crate::kernel::dot::dot_f32;
use crate::types::principal::Grant;
use crate::types::text::fold_name;
use head::Head;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

/// Parts of the fleet that heads are kept for; beyond, the one asked for longest ago goes.
pub const MAX_PARTS: usize = 32;
/// Most capabilities of one head.
pub const MAX_CLASSES: usize = 2_000;

/// Vectors of one model.
pub type Vectors = Vec<Arc<[f32]>>;

/// Heads of one visible part of the fleet.
#[derive(Clone, Default)]
pub struct Part {
    /// What its inputs were, so that nothing is trained twice.
    pub fingerprint: u64,
    /// Class of each capability, by slot: agents that offer the same thing share one.
    pub class_of: HashMap<u32, u32>,
    /// Slots of each class, ascending.
    pub slots_of: Vec<Vec<u32>>,
    /// One head a model, by its fingerprint.
    pub heads: Vec<(Arc<str>, Arc<Head>)>,
    /// What capabilities lose that look like others' work or like everything at once, logits, by slot.
    pub losses: HashMap<u32, f32>,
    /// Class of requests that nobody can do, with the number of such reports.
    pub nobody: Option<(u32, f32)>,
    /// Vectors of those requests, by the fingerprint of their model.
    pub strangers: Vec<(Arc<str>, Vectors)>,
    /// Requests that outcomes of others than the agent itself gave to a class, by their folded text: class and number of reporters.
    pub heard: HashMap<String, Vec<(u32, f32)>>,
}

/// How far the best candidate stands from a request, by cosine under the model that leads.
#[derive(Clone, Copy, Debug)]
pub struct Nearest {
    /// Cosine of the nearest text of any candidate.
    pub cosine: f32,
    /// The model's own unit of distance.
    pub spread: f32,
}

/// What it is worth to be the very text that was reported, logits, by many reporters; by one, half of it.
const HEARD: f32 = 8.0;

/// A request as the heads of a part read it.
pub struct PartReading<'a> {
    part: &'a Part,
    /// Each head with its scores of all classes, and the cosine of the nearest request that nobody could do.
    readings: Vec<(&'a Head, Vec<f32>, f32)>,
    /// What was reported of this very text.
    heard: &'a [(u32, f32)],
}

/// What the heads say of the candidates of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Change of each candidate's score, logits.
    pub changes: Vec<f32>,
    /// Evidence behind each, 0..1.
    pub evidence: Vec<f32>,
    /// What of it are outcomes, 0..1: texts that were really asked, not written by who wants to be asked.
    pub proven: Vec<f32>,
    /// How far each was reported for this very text, 0..1.
    pub heard: Vec<f32>,
    /// Probability that nobody can do it, by reports alone, 0..1.
    pub nobody: f32,
}

impl Part {
    /// Reads a request whose vectors are given with the fingerprints of their models; `None` where no head speaks for them.
    pub fn read<'a, 'v>(&'a self, text: &str, vectors: impl Iterator<Item = (&'v str, &'v [f32])> + Clone) -> Option<PartReading<'a>> {
        let readings: Vec<_> = self
            .heads
            .iter()
            .filter_map(|(model, head)| {
                let (_, vector) = vectors.clone().find(|(m, _)| *m == &**model)?;
                let strangers = self.strangers.iter().filter(|(m, _)| m == model).flat_map(|(_, all)| all);
                let near = strangers.filter(|v| v.len() == vector.len()).map(|v| dot_f32(v, vector)).fold(-1.0, f32::max);
                Some((&**head, head.scores(text, vector), near))
            })
            .collect();
        let heard = if self.heard.is_empty() { None } else { self.heard.get(&fold_name(text)) };
        (!readings.is_empty()).then_some(PartReading { part: self, readings, heard: heard.map_or(&[], |h| h) })
    }

    /// Labelled texts behind a capability.
    pub fn count(&self, slot: u32) -> f32 {
        let class = self.class_of.get(&slot).copied();
        class.map_or(0.0, |c| self.heads.iter().map(|(_, h)| h.count(c)).fold(0.0, f32::max))
    }
}

impl PartReading<'_> {
    /// Class of a capability, if it has one here.
    pub fn class(&self, slot: u32) -> Option<u32> {
        self.part.class_of.get(&slot).copied()
    }

    /// Slots of the classes that the heads score best, up to `classes` of each head; they may not be what vectors and words find.
    pub fn best(&self, classes: usize) -> Vec<u32> {
        let slots = |c: &u32| self.part.slots_of.get(*c as usize);
        let mut out: Vec<u32> = self.heard.iter().filter_map(|(c, _)| slots(c)).flatten().copied().collect();
        for (head, scores, _) in &self.readings {
            let mut order: Vec<u32> = (0..scores.len() as u32).filter(|c| head.count(*c) > 0.0).collect();
            order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
            out.extend(order.iter().take(classes).filter_map(slots).flatten());
        }
        out
    }

    /// What is said of candidates, each a class (or none) and its zero-shot probability; classes are distinct. Reports that nobody can do something count
    /// where the best candidate has been learned of, too, so that the two are of one kind; else as far as the request is nearer to what nobody could do
    /// than to anything that the candidates say of themselves: many reports about one thing must not speak for another.
    pub fn say(&self, classes: &[Option<u32>], zero_shot: &[f32], nearest: Nearest) -> Said {
        let n = classes.len();
        let (mut changes, mut evidence, mut proven, mut nobody) = (vec![0.0f32; n], vec![0.0f32; n], vec![0.0f32; n], 0.0f32);
        for (head, all, near) in &self.readings {
            let own: Vec<f32> = classes.iter().map(|c| c.map_or(0.0, |c| blend::evidence(head.count(c)))).collect();
            let scores: Vec<f32> = classes.iter().map(|c| c.and_then(|c| all.get(c as usize)).copied().unwrap_or(0.0)).collect();
            for (sum, change) in changes.iter_mut().zip(blend::changes(zero_shot, &own, &scores)) {
                *sum += change;
            }
            evidence.iter_mut().zip(&own).for_each(|(e, o)| *e = e.max(*o));
            let outcomes = classes.iter().map(|c| c.map_or(0.0, |c| blend::evidence(head.outcomes(c))));
            proven.iter_mut().zip(outcomes).for_each(|(p, o)| *p = p.max(o));
            if let Some((class, count)) = self.part.nobody {
                // against all classes, as the right one need not be a candidate
                let most = all.iter().copied().fold(f32::MIN, f32::max);
                let sum: f32 = all.iter().map(|s| (s - most).exp()).sum();
                let share = all.get(class as usize).map_or(0.0, |s| (s - most).exp() / sum);
                let best = zero_shot.iter().zip(&changes).zip(&own).max_by(|a, b| (a.0.0.ln() + a.0.1).total_cmp(&(b.0.0.ln() + b.0.1)));
                let known = best.map_or(0.0, |(_, own)| *own);
                let nearer = ((near - nearest.cosine) / nearest.spread.max(1e-3)).clamp(0.0, 1.0);
                nobody = nobody.max(share * count / (count + 10.0) * (known + (1.0 - known) * nearer));
            }
        }
        let heads = self.readings.len().max(1) as f32;
        changes.iter_mut().for_each(|c| *c /= heads);
        let mut heard = vec![0.0f32; n];
        let all: f32 = self.heard.iter().map(|(_, n)| n).sum();
        for (i, class) in classes.iter().enumerate() {
            let Some((_, n)) = self.heard.iter().find(|(c, _)| Some(*c) == *class) else { continue };
            // who disagree take from each other
            heard[i] = n / (n + 1.0) * (2.0 * n / all - 1.0).max(0.0);
            changes[i] += HEARD * heard[i];
            evidence[i] = evidence[i].max(heard[i]);
            proven[i] = proven[i].max(heard[i]);
        }
        Said { changes, evidence, proven, heard, nobody }
    }
}

/// Everything that was learned.
#[derive(Clone, Default)]
pub struct Learned {
    parts: Arc<Vec<(Visible, Arc<Part>)>>,
    /// Raised by every training.
    pub generation: u64,
    demand: Arc<Demand>,
}

impl Learned {
    /// With new parts in the place of the old ones.
    pub fn with(&self, parts: Vec<(Visible, Arc<Part>)>) -> Self {
        Self { parts: Arc::new(parts), generation: self.generation + 1, demand: self.demand.clone() }
    }

    /// The heads for exactly what a caller sees.
    pub fn part(&self, visible: &Visible) -> Option<&Arc<Part>> {
        self.parts.iter().find(|(v, _)| v == visible).map(|(_, p)| p)
    }

    /// Everything there is.
    pub fn parts(&self) -> &[(Visible, Arc<Part>)] {
        &self.parts
    }

    /// Who is learned for, and the bell.
    pub fn demand(&self) -> &Arc<Demand> {
        &self.demand
    }
}

/// Grants by their names, with the count of asking when each asked last.
#[derive(Default)]
struct Wanted {
    asked: u64,
    grants: BTreeMap<String, (Grant, u64)>,
}

/// Who asks: each distinct grant gets heads of its own. The bell rings when somebody new asks or when there is something new to learn.
#[derive(Default)]
pub struct Demand {
    wanted: Mutex<Wanted>,
    bell: Notify,
}

fn name_of(grant: &Grant) -> String {
    match grant {
        Grant::All => "*".into(),
        Grant::Only(names) => names.iter().map(|n| &**n).collect::<Vec<_>>().join(","),
    }
}

impl Demand {
    /// Somebody with this grant asks.
    pub fn ask(&self, grant: &Grant) {
        let mut wanted = self.wanted.lock();
        wanted.asked += 1;
        let now = wanted.asked;
        if let Some(known) = wanted.grants.get_mut(&name_of(grant)) {
            known.1 = now;
            return;
        }
        if wanted.grants.len() >= MAX_PARTS
            && let Some(oldest) = wanted.grants.iter().min_by_key(|(_, (_, at))| *at).map(|(name, _)| name.clone())
        {
            wanted.grants.remove(&oldest);
        }
        wanted.grants.insert(name_of(grant), (grant.clone(), now));
        drop(wanted);
        self.bell.notify_one();
    }

    /// Grants that are learned for, in a fixed order, each with its name: `*`, or namespaces joined by commas.
    pub fn grants(&self) -> Vec<(String, Grant)> {
        self.wanted.lock().grants.iter().map(|(name, (grant, _))| (name.clone(), grant.clone())).collect()
    }

    /// There is something new to learn.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits for the bell.
    pub async fn changed(&self) {
        self.bell.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::head::{Centres, Kind, Labelled};
    use super::*;

    const FAR: Nearest = Nearest { cosine: 0.9, spread: 0.05 };

    /// Vectors of two clusters of requests, told apart by their first number.
    fn labelled(class: u32, text: &str, first: f32) -> Labelled {
        let vector: Arc<[f32]> = Arc::from([first, 1.0 - first.abs(), 0.3].as_slice());
        Labelled { class, weight: 1.0, kind: Kind::Outcome, text: Arc::from(text), vector }
    }

    fn part(texts: &[Labelled], nobody: Option<(u32, f32)>, classes: usize) -> Part {
        let head = Head::train(texts, classes, &Centres { requests: &[0.0, 0.5, 0.3], descriptions: &[0.0; 3] }, &|| true).unwrap();
        Part {
            fingerprint: 1,
            class_of: HashMap::from([(10, 0), (11, 1), (12, 0)]),
            heads: vec![(Arc::from("m"), Arc::new(head))],
            losses: HashMap::new(),
            slots_of: vec![vec![10, 12], vec![11]],
            nobody,
            strangers: Vec::new(),
            heard: HashMap::new(),
        }
    }

    fn texts() -> Vec<Labelled> {
        let mut all: Vec<Labelled> = (0..6).map(|i| labelled(0, &format!("refund order {i}"), 0.9)).collect();
        all.extend((0..6).map(|i| labelled(1, &format!("weather in town {i}"), -0.9)));
        all
    }

    #[test]
    fn outcomes_turn_an_order_around() {
        let part = part(&texts(), None, 2);
        let vector = [0.9f32, 0.1, 0.3];
        let reading = part.read("please refund it", std::iter::once(("m", vector.as_slice()))).unwrap();
        assert_eq!((reading.class(10), reading.class(12), reading.class(99)), (Some(0), Some(0), None));
        let said = reading.say(&[Some(1), Some(0), None], &[0.5, 0.3, 0.2], FAR);
        assert_eq!(reading.best(1), [10, 12]);
        assert!(said.changes[1] > 0.5 && said.changes[0] < -1.0, "{said:?}");
        assert_eq!((said.changes[2], said.evidence[2], said.nobody), (0.0, 0.0, 0.0));
        assert!(said.proven[0] > 0.7 && said.proven[2] == 0.0);
        assert!(part.read("x", std::iter::once(("other", vector.as_slice()))).is_none());
    }

    #[test]
    fn reports_of_nobody_are_heard() {
        let mut all = texts();
        all.extend((0..20).map(|i| labelled(2, &format!("sing a song {i}"), 0.0)));
        let part = part(&all, Some((2, 20.0)), 3);
        let nobody = |text: &str, v: [f32; 3]| {
            part.read(text, std::iter::once(("m", v.as_slice()))).unwrap().say(&[Some(0), Some(1)], &[0.6, 0.4], FAR).nobody
        };
        assert!(nobody("sing me a song", [0.0, 1.0, 0.3]) > 0.4);
        assert!(nobody("refund order", [0.9, 0.1, 0.3]) < 0.1);
    }

    #[test]
    fn reports_of_nobody_say_nothing_of_who_was_never_reported() {
        let mut all = texts();
        let strangers: Vec<Labelled> = (0..20).map(|i| labelled(2, &format!("sing a song {i}"), 0.0)).collect();
        let vectors = strangers.iter().map(|l| l.vector.clone()).collect();
        all.extend(strangers);
        let part = Part { strangers: vec![(Arc::from("m"), vectors)], ..part(&all, Some((2, 20.0)), 3) };
        let nobody = |class: Option<u32>, cosine: f32| {
            let reading = part.read("sing me a song", std::iter::once(("m", [0.0f32, 0.9, 0.2].as_slice()))).unwrap();
            reading.say(&[class], &[0.9], Nearest { cosine, spread: 0.05 }).nobody
        };
        assert!(nobody(Some(0), 0.99) > 0.3, "of one that was taught it counts as before");
        assert_eq!(nobody(None, 0.99), 0.0, "what nobody could do is further away than what the candidate says of itself");
        assert!(nobody(None, 0.7) > 0.4, "it is much nearer");
    }

    #[test]
    fn the_very_text_that_was_reported_is_remembered() {
        let heard = [("order_pizza".to_string(), vec![(1u32, 1.0f32)]), ("both".to_string(), vec![(0, 2.0), (1, 2.0)])].into();
        let (plain, taught) = (part(&texts(), None, 2), Part { heard, ..part(&texts(), None, 2) });
        let say = |part: &Part, text: &str| {
            let reading = part.read(text, std::iter::once(("m", [0.9f32, 0.1, 0.3].as_slice()))).unwrap();
            (reading.best(0), reading.say(&[Some(0), Some(1)], &[0.5, 0.5], FAR))
        };
        let ((_, before), (best, known)) = (say(&plain, "Order  pizza"), say(&taught, "Order  pizza"));
        assert_eq!(best, [11], "it is looked at even where nothing else finds it");
        assert!((known.changes[1] - before.changes[1] - HEARD / 2.0).abs() < 1e-5, "{before:?} {known:?}");
        assert_eq!(say(&taught, "both").1, say(&plain, "both").1, "reporters who disagree say nothing");
    }

    #[test]
    fn a_contradicted_label_counts_almost_nothing() {
        let mut all: Vec<Labelled> = (0..30).map(|i| labelled(0, &format!("refund the order {i}"), 0.9)).collect();
        all.extend((0..30).map(|i| labelled(1, &format!("weather in the town {i}"), -0.9)));
        all.push(labelled(1, "refund the order 77", 0.9));
        let head = Head::train(&all, 2, &Centres { requests: &[0.0, 0.5, 0.3], descriptions: &[0.0; 3] }, &|| true).unwrap();
        assert_eq!(head.doubted, 1);
        assert!(head.count(1) < 30.1 && head.count(0) == 30.0);
    }

    #[test]
    fn who_asks_is_remembered_and_bounded() {
        let demand = Demand::default();
        demand.ask(&Grant::All);
        for i in 0..100 {
            demand.ask(&Grant::All);
            demand.ask(&Grant::Only([Arc::from(format!("n{i}"))].into()));
        }
        let grants = demand.grants();
        assert_eq!(grants.len(), MAX_PARTS);
        assert!(grants.iter().any(|g| g.0 == "*") && grants.iter().any(|g| g.0 == "n99"));
    }
}
