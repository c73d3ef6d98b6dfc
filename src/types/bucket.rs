//! A token bucket: so much at once, so much a second. Time is a parameter.
//!
//! Invariants: it never holds more than its burst; time that goes backwards gives nothing and takes nothing. Cost: O(1).

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at_ms: i64,
}

impl Bucket {
    /// A full bucket: `burst` tokens (at least one), `per_second` new ones a second (more than none).
    pub fn full(per_second: f64, burst: f64, now_ms: i64) -> Self {
        let burst = burst.max(1.0);
        Self { per_second: per_second.max(0.001), burst, tokens: burst, at_ms: now_ms }
    }

    /// Lets time pass at a `pace` of 0..=1 of the rate.
    pub fn refill(&mut self, now_ms: i64, pace: f64) {
        let passed = now_ms.saturating_sub(self.at_ms).max(0) as f64 / 1_000.0;
        self.tokens = (self.tokens + passed * self.per_second * pace.clamp(0.0, 1.0)).min(self.burst);
        self.at_ms = now_ms;
    }

    /// Whether there is a token.
    pub fn has(&self) -> bool {
        self.tokens >= 1.0
    }

    /// Takes a token if there is one.
    pub fn take(&mut self) -> bool {
        let ok = self.has();
        if ok {
            self.tokens -= 1.0;
        }
        ok
    }

    /// Milliseconds until the next token at the full rate; 0 when there is one.
    pub fn wait_ms(&self) -> i64 {
        if self.has() { 0 } else { (((1.0 - self.tokens) / self.per_second * 1_000.0) - 1e-6).ceil().max(1.0) as i64 }
    }

    /// When it was looked at last, milliseconds.
    pub fn at_ms(&self) -> i64 {
        self.at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_its_burst_then_its_rate() {
        let mut b = Bucket::full(1.0, 3.0, 0);
        let mut take = |now, pace| {
            b.refill(now, pace);
            (b.take(), b.wait_ms())
        };
        assert_eq!([take(0, 1.0), take(0, 1.0), take(0, 1.0)].map(|t| t.0), [true; 3]);
        assert_eq!(take(0, 1.0), (false, 1_000));
        assert_eq!(take(500, 1.0), (false, 500));
        assert_eq!(take(1_500, 0.5), (true, 1_000), "half the pace, half the tokens");
        assert!(!take(-3_600_000, 1.0).0, "a clock set back gives nothing");
        assert_eq!(Bucket::full(0.0, 0.0, 7).at_ms(), 7);
    }
}
