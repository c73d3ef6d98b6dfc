//! Numbers that carry their range in their type.

use serde::{Deserialize, Serialize};

/// Cosine of two L2-normalised vectors. Range −1.0..=1.0; never NaN.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cosine(f32);

impl Cosine {
    /// Takes a raw dot product; NaN becomes −1, values are clamped into the range.
    pub fn new(raw: f32) -> Self {
        Self(if raw.is_nan() { -1.0 } else { raw.clamp(-1.0, 1.0) })
    }

    /// The value, −1.0..=1.0.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// A probability or a share. Range 0.0..=1.0; never NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Probability(f32);

impl Probability {
    /// Clamps into the range; NaN becomes 0.
    pub fn new(raw: f32) -> Self {
        Self(if raw.is_nan() { 0.0 } else { raw.clamp(0.0, 1.0) })
    }

    /// The value, 0.0..=1.0.
    pub fn get(self) -> f32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_nan_never_outside() {
        assert_eq!(Cosine::new(f32::NAN).get(), -1.0);
        assert_eq!(Cosine::new(7.0).get(), 1.0);
        assert_eq!(Probability::new(f32::NAN).get(), 0.0);
        assert_eq!(Probability::new(-3.0).get(), 0.0);
    }
}
