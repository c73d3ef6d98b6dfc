//! Chance as a value: a small seeded generator (SplitMix64), so that a simulation can be repeated from its seed.
//!
//! Not here: ids and secrets, which take the operating system's randomness.

/// A seeded source of even chance.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A share, 0.0..1.0.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_in_range_and_repeat_by_seed() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        let shares: Vec<f64> = (0..1_000).map(|_| a.share()).collect();
        assert!(shares.iter().all(|s| (0.0..1.0).contains(s)));
        assert_eq!(shares[0], b.share());
        let mean = shares.iter().sum::<f64>() / 1_000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert!((0..100).all(|_| a.below(3) < 3) && a.below(0) == 0);
    }
}
