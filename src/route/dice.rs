//! Chance as a parameter: a small seeded generator (SplitMix64, Steele, Lea and Flood 2014), the same on every machine.

/// Seeded dice. Two with the same seed roll the same.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.roll() >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_rolls_and_they_spread() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        assert!((0..100).all(|_| a.roll() == b.roll()));
        let mean = (0..10_000).map(|_| a.unit()).sum::<f32>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
