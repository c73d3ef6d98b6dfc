//! How near each capability stands to requests of all kinds under one model, by slot.
//!
//! A tree of blocks of numbers: four bytes a slot, a clone shares all of it, and a look-up hashes nothing.

/// See the head of this file. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Hubs(imbl::Vector<f32>);

impl Hubs {
    /// The hub value of a slot, if it has one.
    pub fn get(&self, slot: u32) -> Option<f32> {
        self.0.get(slot as usize).copied().filter(|hub| !hub.is_nan())
    }

    /// Sets the value of a slot; not a number takes it away.
    pub fn set(&mut self, slot: u32, hub: f32) {
        let at = slot as usize;
        while self.0.len() <= at {
            self.0.push_back(f32::NAN);
        }
        self.0.set(at, hub);
    }

    /// Forgets a slot.
    pub fn remove(&mut self, slot: u32) {
        if (slot as usize) < self.0.len() {
            self.set(slot, f32::NAN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_there_until_it_is_removed() {
        let mut hubs = Hubs::default();
        hubs.set(3, 0.5);
        let before = hubs.clone();
        hubs.set(100, 0.25);
        hubs.remove(3);
        hubs.remove(1_000);
        assert_eq!((hubs.get(3), hubs.get(100), hubs.get(4), hubs.get(1_000)), (None, Some(0.25), None, None));
        assert_eq!((before.get(3), before.get(100)), (Some(0.5), None));
    }
}
