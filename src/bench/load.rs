//! Load on something that answers: as fast as it goes with so many calls under way, or so many calls a second whatever it does (open loop).
//!
//! In: a function that makes a call. Out: how many were answered, refused and lost, and how long each took. In the open loop a call's time
//! begins when it was due, so a stalled server can't hide behind a generator that waits for it.

use super::figures::{Quantiles, round};
use crate::clock::{Clock, SystemClock};
use futures::stream::{FuturesUnordered, StreamExt};
use serde::Serialize;
use std::future::Future;
use std::time::{Duration, Instant};

/// How calls follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many under way at any time.
    Max(usize),
    /// So many a second, at random times.
    Rate(f64),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answered.
    Done,
    /// Refused because there was too much.
    Refused,
    /// Failed for another reason.
    Failed,
}

/// What came out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Calls answered a second.
    pub per_s: f64,
    /// Calls that were due a second (open loop).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Calls answered.
    pub done: usize,
    /// Calls refused.
    pub refused: usize,
    /// Calls that failed otherwise.
    pub failed: usize,
    /// Time of an answer.
    #[serde(flatten)]
    pub latency: Quantiles,
    /// Time of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Quantiles>,
    /// Seconds of it.
    pub seconds: f64,
}

/// Times of a Poisson process: gaps of mean `1 / per_s` seconds, the same for the same seed.
struct Gaps {
    state: u64,
    per_s: f64,
}

impl Gaps {
    fn next(&mut self) -> Duration {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let unit = ((self.state >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        Duration::from_secs_f64((-unit.ln() / self.per_s.max(1e-6)).min(1.0))
    }
}

#[derive(Default)]
struct Times {
    done: Vec<f64>,
    refused: Vec<f64>,
    failed: usize,
}

impl Times {
    fn take(&mut self, (answer, ms): (Answer, f64)) {
        match answer {
            Answer::Done => self.done.push(ms),
            Answer::Refused => self.refused.push(ms),
            Answer::Failed => self.failed += 1,
        }
    }

    fn outcome(mut self, seconds: f64) -> Outcome {
        Outcome {
            per_s: round(self.done.len() as f64 / seconds),
            offered_per_s: None,
            done: self.done.len(),
            refused: self.refused.len(),
            failed: self.failed,
            latency: Quantiles::of(&mut self.done),
            refusal: (!self.refused.is_empty()).then(|| Quantiles::of(&mut self.refused)),
            seconds: round(seconds),
        }
    }
}

/// Makes calls for `seconds` and waits for the last of them. `call` gets the number of the call.
pub async fn run<F, Fut>(pace: Pace, seconds: f64, call: F) -> Outcome
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = Answer>,
{
    let clock = SystemClock;
    let begin = clock.instant();
    let end = begin + Duration::from_secs_f64(seconds);
    let timed = |number: u64, due: Instant| {
        let future = call(number);
        async move { (future.await, SystemClock.instant().duration_since(due).as_secs_f64() * 1e3) }
    };
    let (mut times, mut number) = (Times::default(), 0u64);
    let mut under_way = FuturesUnordered::new();
    match pace {
        Pace::Max(most) => {
            for _ in 0..most.max(1) {
                under_way.push(timed(number, clock.instant()));
                number += 1;
            }
            while let Some(ended) = under_way.next().await {
                times.take(ended);
                if clock.instant() < end {
                    under_way.push(timed(number, clock.instant()));
                    number += 1;
                }
            }
        }
        Pace::Rate(per_s) => {
            let mut due = due_times(per_s, begin, end);
            let mut more = true;
            while more || !under_way.is_empty() {
                tokio::select! {
                    next = due.recv(), if more => match next {
                        Some(at) => {
                            under_way.push(timed(number, at));
                            number += 1;
                        }
                        None => more = false,
                    },
                    Some(ended) = under_way.next(), if !under_way.is_empty() => times.take(ended),
                }
            }
        }
    }
    let took = clock.instant().duration_since(begin).as_secs_f64();
    // answers that came after the end belong to the time they were asked in
    let mut outcome = times.outcome(if matches!(pace, Pace::Rate(_)) { seconds } else { took });
    if let Pace::Rate(_) = pace {
        outcome.offered_per_s = Some(round(number as f64 / seconds));
    }
    outcome
}

/// A thread that tells when calls are due: timers of the runtime are a millisecond coarse.
fn due_times(per_s: f64, begin: Instant, end: Instant) -> tokio::sync::mpsc::UnboundedReceiver<Instant> {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let clock = SystemClock;
        let mut gaps = Gaps { state: 0x9E37_79B9_7F4A_7C15, per_s };
        let mut at = begin + gaps.next();
        while at < end {
            std::thread::sleep(at.saturating_duration_since(clock.instant()));
            if tell.send(at).is_err() {
                return;
            }
            at += gaps.next();
        }
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_is_counted_once() {
        let out = run(Pace::Max(4), 0.02, |n| async move { if n % 3 == 0 { Answer::Refused } else { Answer::Done } }).await;
        assert!(out.done > 0 && out.refused > 0 && out.failed == 0 && out.refusal.is_some());
        let out = run(Pace::Rate(2_000.0), 0.05, |_| async { Answer::Failed }).await;
        assert!(out.failed > 20 && out.done == 0 && out.offered_per_s.is_some());
    }

    #[test]
    fn gaps_have_the_mean_asked_for() {
        let mut gaps = Gaps { state: 7, per_s: 100.0 };
        let sum: Duration = (0..10_000).map(|_| gaps.next()).sum();
        assert!((90.0..110.0).contains(&sum.as_secs_f64()), "{sum:?}");
    }
}
