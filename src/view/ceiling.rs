//! How near a fleet comes to requests that were not made for it: the scale on which "this fleet has nothing like it" is told.
//!
//! For every request and every line of talk of the model's fixed pools, the best cosine that any capability of a visibility class reaches. A broad
//! fleet with many examples comes near to anything; a request is out of scope when its own best is no better than what unrelated texts reach *on the
//! same fleet*. A raw cosine can't say that: the best in-scope threshold lies at 0.43 on one set and at 0.71 on another, in these units they lie close
//! together. And talk that the fleet answers itself (an agent that tells jokes) is not told from requests by its likeness to talk.
//! Invariant: exact after every change, whatever the order of registrations; depends on visible classes only.
//! Cost: a registration costs one product of its texts with the pools; a removal searches again only for the texts that the removed one led; the
//! reach of what a caller sees is put together once between two changes. Not here: what is made of it (`route::confidence`).

use crate::index::Visible;
use crate::kernel::dot::dot_f32;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;

/// Visible parts whose reach is remembered between two changes.
const REMEMBERED: usize = 64;

/// The best capability for each text of the pool.
type Tops = Vec<Option<(f32, u32)>>;

/// How near a visible part of the fleet comes to texts that were not made for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Mean over the pool's requests of the best cosine.
    pub requests: f32,
    /// Mean over the pool's talk of the best cosine; as `requests` where there is no talk.
    pub talk: f32,
    /// Best cosine to each line of talk; −1 where nothing is near.
    pub lines: Vec<f32>,
}

/// What was put together since the last change: read without a lock, copied to add to it.
type Remembered = Arc<ArcSwap<HashMap<Visible, Option<Arc<Reach>>>>>;

/// Ceilings of all classes under one model. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    /// Texts of the pool that are requests; they come first, talk follows.
    requests: usize,
    by_class: imbl::HashMap<u32, Arc<Tops>>,
    /// Of the whole fleet, for those who see all of it.
    all: Arc<Tops>,
    remembered: Remembered,
}

fn better(new: (f32, u32), old: Option<(f32, u32)>) -> bool {
    // equal ones: the lower slot, so that the order of registrations does not matter
    old.is_none_or(|o| new.0 > o.0 || (new.0 == o.0 && new.1 < o.1))
}

fn raise(tops: &mut Tops, slot: u32, cosines: &[f32]) {
    if tops.len() < cosines.len() {
        tops.resize(cosines.len(), None);
    }
    for (top, cosine) in tops.iter_mut().zip(cosines) {
        if better((*cosine, slot), *top) {
            *top = Some((*cosine, slot));
        }
    }
}

/// Best cosine of each text of the pool to any of `texts`.
fn nearest(pool: &[Arc<[f32]>], texts: &[Vec<f32>]) -> Vec<f32> {
    pool.iter().map(|r| texts.iter().map(|t| dot_f32(r, t)).fold(-1.0, f32::max)).collect()
}

impl Ceilings {
    /// Of nothing. `requests` = texts of the pool that are requests; they come first, talk follows.
    pub fn new(requests: usize) -> Self {
        Self { requests, ..Self::default() }
    }

    /// Takes in a capability: its class, its slot, and the texts that a search looks at. `pool` = the pool's requests, then its talk, the same in
    /// every call.
    pub fn add(&mut self, class: u32, slot: u32, pool: &[Arc<[f32]>], texts: &[Vec<f32>]) {
        if texts.is_empty() || pool.is_empty() {
            return;
        }
        self.remembered = Remembered::default();
        let cosines = nearest(pool, texts);
        raise(Arc::make_mut(&mut self.all), slot, &cosines);
        let mut tops = self.by_class.get(&class).cloned().unwrap_or_default();
        raise(Arc::make_mut(&mut tops), slot, &cosines);
        self.by_class.insert(class, tops);
    }

    /// Forgets a capability. `rest` gives slot and texts of those that stay: of one class, or of all.
    pub fn remove<I: Iterator<Item = (u32, Vec<Vec<f32>>)>>(&mut self, slot: u32, pool: &[Arc<[f32]>], rest: impl Fn(Option<u32>) -> I) {
        self.remembered = Remembered::default();
        let led = |tops: &Tops| tops.iter().any(|t| t.is_some_and(|t| t.1 == slot));
        let again = |tops: &mut Tops, class: Option<u32>| {
            let lost: Vec<usize> = tops.iter().enumerate().filter(|(_, t)| t.is_some_and(|t| t.1 == slot)).map(|(i, _)| i).collect();
            for i in &lost {
                tops[*i] = None;
            }
            for (other, texts) in rest(class).filter(|(other, _)| *other != slot) {
                for i in &lost {
                    let Some(request) = pool.get(*i) else { continue };
                    let cosine = texts.iter().map(|t| dot_f32(request, t)).fold(f32::MIN, f32::max);
                    if cosine > f32::MIN && better((cosine, other), tops[*i]) {
                        tops[*i] = Some((cosine, other));
                    }
                }
            }
        };
        if led(&self.all) {
            again(Arc::make_mut(&mut self.all), None);
        }
        let classes: Vec<u32> = self.by_class.iter().filter(|(_, tops)| led(tops)).map(|(class, _)| *class).collect();
        for class in classes {
            if let Some(mut tops) = self.by_class.remove(&class) {
                again(Arc::make_mut(&mut tops), Some(class));
                if tops.iter().any(Option::is_some) {
                    self.by_class.insert(class, tops);
                }
            }
        }
    }

    /// How near the visible fleet comes to the pool; `None` when nothing is visible.
    pub fn reach(&self, visible: &Visible) -> Option<Arc<Reach>> {
        if let Some(known) = self.remembered.load().get(visible) {
            return known.clone();
        }
        let reach = self.put_together(visible).map(Arc::new);
        self.remembered.rcu(|old| {
            let mut remembered = if old.len() < REMEMBERED { (**old).clone() } else { HashMap::new() };
            remembered.insert(visible.clone(), reach.clone());
            remembered
        });
        reach
    }

    fn put_together(&self, visible: &Visible) -> Option<Reach> {
        let merged: Tops;
        let tops: &Tops = match visible {
            Visible::All => &self.all,
            Visible::Some(classes) => {
                let mut seen = classes.iter().filter_map(|c| self.by_class.get(c));
                let mut tops: Tops = (**seen.next()?).clone();
                for other in seen {
                    for (top, new) in tops.iter_mut().zip(other.iter()) {
                        if new.is_some_and(|n| better(n, *top)) {
                            *top = *new;
                        }
                    }
                }
                merged = tops;
                &merged
            }
        };
        let mean = |tops: &[Option<(f32, u32)>]| {
            let (n, sum) = tops.iter().flatten().fold((0u32, 0.0f32), |(n, sum), top| (n + 1, sum + top.0));
            (n > 0).then(|| sum / n as f32)
        };
        let (of_requests, of_talk) = tops.split_at(self.requests.min(tops.len()));
        let requests = mean(of_requests)?;
        let lines = of_talk.iter().map(|top| top.map_or(-1.0, |t| t.0)).collect();
        Some(Reach { requests, talk: mean(of_talk).unwrap_or(requests), lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(angle: f32) -> Arc<[f32]> {
        Arc::from([angle.cos(), angle.sin()].as_slice())
    }

    #[test]
    fn a_class_counts_for_those_who_see_it_and_a_removed_one_no_longer() {
        let requests = [unit(0.0), unit(1.0)];
        let fleet = [(0u32, 1u32, unit(0.1)), (0, 2, unit(0.9)), (5, 3, unit(0.0))];
        let mut ceilings = Ceilings::new(2);
        for (class, slot, text) in &fleet {
            ceilings.add(*class, *slot, &requests, &[text.to_vec()]);
        }
        let mean = |c: &Ceilings, v: &Visible| c.reach(v).map(|r| r.requests);
        let both = |a: f32, b: f32| Some((a.cos() + b.cos()) / 2.0);
        let near = |a: Option<f32>, b: Option<f32>| assert!((a.unwrap() - b.unwrap()).abs() < 1e-6, "{a:?} {b:?}");
        near(mean(&ceilings, &Visible::of([0])), both(0.1, 0.1));
        near(mean(&ceilings, &Visible::of([5])), both(0.0, 1.0));
        near(mean(&ceilings, &Visible::of([0, 5])), both(0.0, 0.1));
        near(mean(&ceilings, &Visible::all()), both(0.0, 0.1));
        assert_eq!(mean(&ceilings, &Visible::of([9])), None);

        let rest = |class: Option<u32>| {
            let kept: Vec<(u32, Vec<Vec<f32>>)> =
                fleet.iter().filter(|f| f.1 != 2 && class.is_none_or(|c| c == f.0)).map(|f| (f.1, vec![f.2.to_vec()])).collect();
            kept.into_iter()
        };
        ceilings.remove(2, &requests, rest);
        near(mean(&ceilings, &Visible::of([0])), both(0.1, 0.9));
        near(mean(&ceilings, &Visible::all()), both(0.0, 0.9));
        let none = |_: Option<u32>| std::iter::empty();
        for slot in [1, 3] {
            ceilings.remove(slot, &requests, none);
        }
        assert_eq!(mean(&ceilings, &Visible::all()), None);
    }
    #[test]
    fn talk_is_told_line_by_line_and_anew_after_a_change() {
        let pool = [unit(0.0), unit(1.0), unit(2.0)];
        let mut ceilings = Ceilings::new(2);
        assert_eq!(ceilings.reach(&Visible::all()), None);
        ceilings.add(0, 1, &pool, &[unit(1.0).to_vec()]);
        let reach = ceilings.reach(&Visible::all()).unwrap();
        assert!((reach.lines[0] - 1.0f32.cos()).abs() < 1e-6 && reach.talk == reach.lines[0], "{reach:?}");
        ceilings.add(3, 2, &pool, &[unit(2.0).to_vec()]);
        assert!(ceilings.reach(&Visible::all()).unwrap().lines[0] > 0.999, "not what was remembered");
        assert_eq!(ceilings.reach(&Visible::of([0])).unwrap().lines, reach.lines, "others' capabilities don't count");
        // without talk there is one scale
        let mut plain = Ceilings::new(3);
        plain.add(0, 1, &pool, &[unit(1.0).to_vec()]);
        let reach = plain.reach(&Visible::all()).unwrap();
        assert!(reach.lines.is_empty() && reach.talk == reach.requests);
    }
}
