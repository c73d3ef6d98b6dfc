//! How near a fleet comes to requests that were not made for it: the scale on which "this fleet has nothing like it" is told.
//!
//! For every request of the model's fixed pool, the best cosine that any capability of a visibility class reaches. A broad fleet with many examples
//! comes near to anything; a request is out of scope when its own best is no better than what unrelated requests reach *on the same fleet*. A raw
//! cosine can't say that: the best in-scope threshold lies at 0.43 on one set and at 0.71 on another, in these units they lie close together.
//! Invariant: exact after every change, whatever the order of registrations; depends on visible classes only.
//! Cost: a registration costs one product of its texts with the pool; a removal searches again only for the requests that the removed one led.
//! Not here: what is made of it (`route::confidence`).

use crate::index::Visible;
use crate::kernel::dot::dot_f32;
use std::sync::Arc;

/// The best capability for each request of the pool.
type Tops = Vec<Option<(f32, u32)>>;

/// Ceilings of all classes under one model. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    by_class: imbl::HashMap<u32, Arc<Tops>>,
    /// Of the whole fleet, for those who see all of it.
    all: Arc<Tops>,
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

/// Best cosine of each request to any of `texts`.
fn nearest(requests: &[Arc<[f32]>], texts: &[&[f32]]) -> Vec<f32> {
    requests.iter().map(|r| texts.iter().map(|t| dot_f32(r, t)).fold(-1.0, f32::max)).collect()
}

impl Ceilings {
    /// Takes in a capability: its class, its slot, and the texts that a search looks at.
    pub fn add(&mut self, class: u32, slot: u32, requests: &[Arc<[f32]>], texts: &[&[f32]]) {
        if texts.is_empty() || requests.is_empty() {
            return;
        }
        let cosines = nearest(requests, texts);
        raise(Arc::make_mut(&mut self.all), slot, &cosines);
        let mut tops = self.by_class.get(&class).cloned().unwrap_or_default();
        raise(Arc::make_mut(&mut tops), slot, &cosines);
        self.by_class.insert(class, tops);
    }

    /// Forgets a capability. `rest` gives slot and texts of those that stay: of one class, or of all.
    pub fn remove<'a, I: Iterator<Item = (u32, Vec<&'a [f32]>)>>(
        &mut self,
        slot: u32,
        requests: &[Arc<[f32]>],
        rest: impl Fn(Option<u32>) -> I,
    ) {
        let led = |tops: &Tops| tops.iter().any(|t| t.is_some_and(|t| t.1 == slot));
        let again = |tops: &mut Tops, class: Option<u32>| {
            let lost: Vec<usize> = tops.iter().enumerate().filter(|(_, t)| t.is_some_and(|t| t.1 == slot)).map(|(i, _)| i).collect();
            for i in &lost {
                tops[*i] = None;
            }
            for (other, texts) in rest(class).filter(|(other, _)| *other != slot) {
                for i in &lost {
                    let Some(request) = requests.get(*i) else { continue };
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

    /// Mean over the pool's requests of the best cosine that the visible fleet reaches; `None` when nothing is visible.
    pub fn mean(&self, visible: &Visible) -> Option<f32> {
        let mean = |tops: &Tops| {
            let (n, sum) = tops.iter().flatten().fold((0u32, 0.0f32), |(n, sum), top| (n + 1, sum + top.0));
            (n > 0).then(|| sum / n as f32)
        };
        match visible {
            Visible::All => mean(&self.all),
            Visible::Some(classes) => {
                let mut seen = classes.iter().filter_map(|c| self.by_class.get(c));
                let first = seen.next()?;
                let mut tops: Tops = (**first).clone();
                for other in seen {
                    for (top, new) in tops.iter_mut().zip(other.iter()) {
                        if new.is_some_and(|n| better(n, *top)) {
                            *top = *new;
                        }
                    }
                }
                mean(&tops)
            }
        }
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
        let mut ceilings = Ceilings::default();
        for (class, slot, text) in &fleet {
            ceilings.add(*class, *slot, &requests, &[text]);
        }
        let both = |a: f32, b: f32| Some((a.cos() + b.cos()) / 2.0);
        let near = |a: Option<f32>, b: Option<f32>| assert!((a.unwrap() - b.unwrap()).abs() < 1e-6, "{a:?} {b:?}");
        near(ceilings.mean(&Visible::of([0])), both(0.1, 0.1));
        near(ceilings.mean(&Visible::of([5])), both(0.0, 1.0));
        near(ceilings.mean(&Visible::of([0, 5])), both(0.0, 0.1));
        near(ceilings.mean(&Visible::all()), both(0.0, 0.1));
        assert_eq!(ceilings.mean(&Visible::of([9])), None);

        let rest = |class: Option<u32>| {
            let kept: Vec<(u32, Vec<&[f32]>)> =
                fleet.iter().filter(|f| f.1 != 2 && class.is_none_or(|c| c == f.0)).map(|f| (f.1, vec![&*f.2])).collect();
            kept.into_iter()
        };
        ceilings.remove(2, &requests, rest);
        near(ceilings.mean(&Visible::of([0])), both(0.1, 0.9));
        near(ceilings.mean(&Visible::all()), both(0.0, 0.9));
        let none = |_: Option<u32>| std::iter::empty();
        for slot in [1, 3] {
            ceilings.remove(slot, &requests, none);
        }
        assert_eq!(ceilings.mean(&Visible::all()), None);
    }
}
