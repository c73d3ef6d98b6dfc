//! The order in which one agent's waiting messages go: by class and weight, within a class the capabilities in turn, within these first come first.
//!
//! Classes and weights: priority 0 = 10, 1 = 5, 2 = 2, replayed messages = 1 (so 0 : 2 = 5 : 1 while both wait). An idle class saves nothing up.
//! Invariants: what goes in comes out once, in order within (class, capability); a class that waits always moves; a capability that may not go now
//! (its rate limit) holds up nobody else. Priority 2 may fill a fifth of the places. Cost: O(capabilities that wait) a pick, O(1) a push.
//! Not here: whether the queue takes it (`backpressure`), when (`limit`).

use crate::types::envelope::{Priority, ReachId, Source};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

/// Class of a waiting message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueClass {
    /// Priority 0.
    High,
    /// Priority 1.
    Normal,
    /// Priority 2.
    Low,
    /// Taken out of the dead letters.
    Replay,
}

const CLASSES: [QueueClass; 4] = [QueueClass::High, QueueClass::Normal, QueueClass::Low, QueueClass::Replay];

impl QueueClass {
    /// The class of a message.
    pub fn of(priority: Priority, source: Source) -> Self {
        match (source, priority) {
            (Source::Replay, _) => Self::Replay,
            (_, Priority::High) => Self::High,
            (_, Priority::Normal) => Self::Normal,
            (_, Priority::Low) => Self::Low,
        }
    }

    /// Steps a pick costs: the inverse of the weight.
    fn stride(self) -> u64 {
        match self {
            Self::High => 10,
            Self::Normal => 20,
            Self::Low => 50,
            Self::Replay => 100,
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Debug, Default)]
struct Class {
    /// Steps taken so far; the waiting class with the fewest goes next.
    pass: u64,
    len: usize,
    by_capability: BTreeMap<Arc<str>, VecDeque<ReachId>>,
    /// Capability served last: the next one in the order is served next.
    last: Option<Arc<str>>,
}

/// The waiting messages of one agent.
#[derive(Clone, Debug, Default)]
pub struct ClassQueue {
    classes: [Class; 4],
    pass: u64,
    /// Taken back while waiting; skipped when they come up.
    gone: HashSet<ReachId>,
}

impl ClassQueue {
    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.classes.iter().map(|c| c.len).sum()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Messages of a class that wait.
    pub fn len_of(&self, class: QueueClass) -> usize {
        self.classes[class.index()].len
    }

    /// Appends a message. Each id may wait once.
    pub fn push(&mut self, class: QueueClass, capability: &Arc<str>, id: ReachId) {
        if self.gone.remove(&id) {
            // it still lies where it was before it was taken back: clear that place first
            self.sweep(id);
        }
        let now = self.pass;
        let c = &mut self.classes[class.index()];
        if c.len == 0 {
            c.pass = c.pass.max(now);
        }
        c.len += 1;
        match c.by_capability.get_mut(capability) {
            Some(list) => list.push_back(id),
            None => {
                c.by_capability.insert(capability.clone(), VecDeque::from([id]));
            }
        }
    }

    /// Takes back a message that waits in `class`.
    pub fn remove(&mut self, class: QueueClass, id: ReachId) {
        let c = &mut self.classes[class.index()];
        if self.gone.insert(id) {
            c.len = c.len.saturating_sub(1);
        }
        if self.gone.len() > 1_024 && self.gone.len() > self.len() {
            self.compact();
        }
    }

    /// The next message whose capability may go now.
    pub fn pop(&mut self, mut may_go: impl FnMut(&str) -> bool) -> Option<ReachId> {
        let mut order: Vec<QueueClass> = CLASSES.into_iter().filter(|c| self.classes[c.index()].len > 0).collect();
        order.sort_by_key(|c| (self.classes[c.index()].pass, c.index()));
        for class in order {
            if let Some(id) = self.pop_class(class, &mut may_go) {
                let c = &mut self.classes[class.index()];
                self.pass = self.pass.max(c.pass);
                c.pass += class.stride();
                return Some(id);
            }
        }
        None
    }

    fn pop_class(&mut self, class: QueueClass, may_go: &mut impl FnMut(&str) -> bool) -> Option<ReachId> {
        let c = &mut self.classes[class.index()];
        let after = c.last.clone();
        let next: Vec<Arc<str>> = match &after {
            // in turn: those behind the last one first
            Some(last) => {
                let behind = c.by_capability.range::<str, _>((std::ops::Bound::Excluded(&**last), std::ops::Bound::Unbounded));
                let ahead = c.by_capability.range::<str, _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(&**last)));
                behind.chain(ahead).map(|(k, _)| k.clone()).collect()
            }
            None => c.by_capability.keys().cloned().collect(),
        };
        for capability in next {
            let Some(list) = c.by_capability.get_mut(&capability) else { continue };
            while list.front().is_some_and(|id| self.gone.remove(id)) {
                list.pop_front();
            }
            if list.is_empty() {
                c.by_capability.remove(&capability);
                continue;
            }
            if !may_go(&capability) {
                continue;
            }
            let id = list.pop_front();
            if list.is_empty() {
                c.by_capability.remove(&capability);
            }
            c.last = Some(capability);
            c.len -= 1;
            return id;
        }
        None
    }

    fn sweep(&mut self, id: ReachId) {
        for list in self.classes.iter_mut().flat_map(|c| c.by_capability.values_mut()) {
            list.retain(|i| *i != id);
        }
    }

    fn compact(&mut self) {
        for list in self.classes.iter_mut().flat_map(|c| c.by_capability.values_mut()) {
            list.retain(|i| !self.gone.contains(i));
        }
        self.gone.clear();
    }
}

/// Whether one more message of priority 2 may wait: they may fill a fifth of the places.
pub fn low_fits(low: usize, places: u32) -> bool {
    low < (places as usize / 5).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cap(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    #[test]
    fn weights_hold_while_both_wait() {
        let mut q = ClassQueue::default();
        for i in 0..600u128 {
            q.push(QueueClass::High, &cap("a"), ReachId(i));
            q.push(QueueClass::Low, &cap("a"), ReachId(10_000 + i));
        }
        let first: Vec<ReachId> = (0..120).filter_map(|_| q.pop(|_| true)).collect();
        let low = first.iter().filter(|id| id.0 >= 10_000).count();
        assert_eq!(low, 20, "one in six");
    }

    #[test]
    fn an_idle_class_saves_nothing_up() {
        let mut q = ClassQueue::default();
        (0..500u128).for_each(|i| q.push(QueueClass::High, &cap("a"), ReachId(i)));
        (0..400).for_each(|_| assert!(q.pop(|_| true).is_some()));
        (0..100u128).for_each(|i| q.push(QueueClass::Low, &cap("a"), ReachId(1_000 + i)));
        let low = (0..12).filter_map(|_| q.pop(|_| true)).filter(|id| id.0 >= 1_000).count();
        assert!((1..=3).contains(&low), "{low}");
    }

    #[test]
    fn a_capability_that_may_not_go_holds_up_nobody() {
        let mut q = ClassQueue::default();
        q.push(QueueClass::High, &cap("slow"), ReachId(1));
        q.push(QueueClass::Low, &cap("fast"), ReachId(2));
        assert_eq!(q.pop(|c| c != "slow"), Some(ReachId(2)));
        assert_eq!(q.pop(|c| c != "slow"), None);
        assert_eq!(q.pop(|_| true), Some(ReachId(1)));
    }

    #[test]
    fn capabilities_take_turns() {
        let mut q = ClassQueue::default();
        (0..100u128).for_each(|i| q.push(QueueClass::Normal, &cap("many"), ReachId(i)));
        q.push(QueueClass::Normal, &cap("one"), ReachId(500));
        let two: Vec<_> = (0..2).filter_map(|_| q.pop(|_| true)).collect();
        assert!(two.contains(&ReachId(500)), "{two:?}");
    }

    #[test]
    fn a_message_taken_back_can_come_again() {
        let mut q = ClassQueue::default();
        q.push(QueueClass::Normal, &cap("a"), ReachId(1));
        q.remove(QueueClass::Normal, ReachId(1));
        assert!(q.is_empty());
        q.push(QueueClass::Normal, &cap("b"), ReachId(1));
        assert_eq!((q.len(), q.pop(|_| true), q.pop(|_| true)), (1, Some(ReachId(1)), None));
    }

    #[test]
    fn a_fifth_for_priority_two() {
        assert!(low_fits(199, 1_000) && !low_fits(200, 1_000) && low_fits(0, 1));
    }

    proptest! {
        /// Toy model: one list for each (class, capability).
        #[test]
        fn is_a_set_of_lists(ops in proptest::collection::vec((0u8..5, 0u8..4, 0u8..3, 0u8..40), 1..400)) {
            let mut q = ClassQueue::default();
            let mut toy: BTreeMap<(QueueClass, Arc<str>), VecDeque<ReachId>> = BTreeMap::new();
            let mut where_is: BTreeMap<ReachId, (QueueClass, Arc<str>)> = BTreeMap::new();
            for (what, class, c, id) in ops {
                let (class, c, id) = (CLASSES[class as usize], cap(["x", "y", "z"][c as usize]), ReachId(u128::from(id)));
                match what {
                    0..=1 if !where_is.contains_key(&id) => {
                        q.push(class, &c, id);
                        toy.entry((class, c.clone())).or_default().push_back(id);
                        where_is.insert(id, (class, c));
                    }
                    2 => if let Some(place) = where_is.remove(&id) {
                        q.remove(place.0, id);
                        toy.get_mut(&place).unwrap().retain(|i| *i != id);
                    },
                    _ => {
                        let got = q.pop(|_| true);
                        match got {
                            None => prop_assert!(where_is.is_empty()),
                            Some(id) => {
                                let place = where_is.remove(&id).expect("it waits");
                                prop_assert_eq!(toy.get_mut(&place).unwrap().pop_front(), Some(id));
                            }
                        }
                    }
                }
                prop_assert_eq!(q.len(), where_is.len());
                for class in CLASSES {
                    prop_assert_eq!(q.len_of(class), where_is.values().filter(|p| p.0 == class).count());
                }
            }
        }
    }
}
