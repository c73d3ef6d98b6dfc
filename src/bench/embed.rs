//! Speed and accuracy of an encoder by itself: no queue, no cache.
//!
//! In: an encoder, texts. Out: texts a second of each (threads, batch), the latency of one text alone, cosines to another encoder.
//! Each setting runs for a while, several rounds in turns; the median round counts.

use super::figures::{Quantiles, median, round};
use crate::clock::{Clock, SystemClock};
use crate::embed::{Embed, EmbedError};
use serde::Serialize;
use std::time::Duration;

/// One way to feed an encoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Threads, each with its own calls.
    pub threads: usize,
    /// Texts a call.
    pub batch: usize,
    /// Median of the rounds.
    pub texts_per_s: f64,
    /// Of a call.
    #[serde(flatten)]
    pub latency: Quantiles,
}

/// How nearly two encoders agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// Texts compared.
    pub texts: usize,
    /// Mean cosine.
    pub mean: f64,
    /// Smallest cosine.
    pub min: f64,
}

/// Measures every setting of `threads × batch` for `seconds` a round.
pub fn settings(
    model: &dyn Embed,
    texts: &[String],
    ways: &[(usize, usize)],
    seconds: f64,
    rounds: usize,
) -> Result<Vec<Setting>, EmbedError> {
    let mut runs = vec![(Vec::new(), Vec::new()); ways.len()];
    for _ in 0..rounds.max(1) {
        for ((threads, batch), (rates, took)) in ways.iter().zip(&mut runs) {
            let (rate, mut calls) = round_of(model, texts, *threads, *batch, Duration::from_secs_f64(seconds))?;
            rates.push(rate);
            took.append(&mut calls);
        }
    }
    let mut out = Vec::with_capacity(ways.len());
    for ((threads, batch), (rates, mut took)) in ways.iter().zip(runs) {
        let latency = Quantiles::of(&mut took);
        out.push(Setting { threads: *threads, batch: *batch, texts_per_s: round(median(&rates)), latency });
    }
    Ok(out)
}

/// Texts a second, and how long each call took in milliseconds.
fn round_of(model: &dyn Embed, texts: &[String], threads: usize, batch: usize, length: Duration) -> Result<(f64, Vec<f64>), EmbedError> {
    if texts.is_empty() {
        return Ok((0.0, Vec::new()));
    }
    let clock = SystemClock;
    let begin = clock.instant();
    let work = |thread: usize| -> Result<(usize, Vec<f64>), EmbedError> {
        // candle hands its products to the pool of the calling thread, as on the threads of the worker
        let _pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        let mut took = Vec::new();
        let (mut done, mut at) = (0, thread * texts.len() / threads.max(1));
        while clock.instant().duration_since(begin) < length {
            let call: Vec<&str> = (0..batch).map(|i| texts[(at + i) % texts.len()].as_str()).collect();
            let start = clock.instant();
            model.embed(&call)?;
            took.push(clock.instant().duration_since(start).as_secs_f64() * 1e3);
            done += batch;
            at = (at + batch) % texts.len();
        }
        Ok((done, took))
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().map(|h| h.join().unwrap_or_else(|_| Err(EmbedError::Failed("a measuring thread panicked".into())))).collect()
    });
    let took = clock.instant().duration_since(begin).as_secs_f64();
    let (mut done, mut calls) = (0, Vec::new());
    for part in parts {
        let (n, mut each) = part?;
        done += n;
        calls.append(&mut each);
    }
    Ok((done as f64 / took, calls))
}

/// Cosines of `model`'s vectors to those of `reference`.
pub fn accuracy(model: &dyn Embed, reference: &dyn Embed, texts: &[String]) -> Result<Accuracy, EmbedError> {
    let (mut sum, mut min, mut n) = (0.0f64, 1.0f64, 0usize);
    for chunk in texts.chunks(16) {
        let call: Vec<&str> = chunk.iter().map(String::as_str).collect();
        for (a, b) in model.embed(&call)?.iter().zip(&reference.embed(&call)?) {
            // both are of length 1
            let cosine: f64 = a.vector.iter().zip(b.vector.iter()).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            sum += cosine;
            min = min.min(cosine);
            n += 1;
        }
    }
    Ok(Accuracy { texts: n, mean: sum / n.max(1) as f64, min })
}

/// Mean tokens of the first thousand texts.
pub fn mean_tokens(model: &dyn Embed, texts: &[String]) -> Result<f64, EmbedError> {
    let some: Vec<&str> = texts.iter().take(1_000).map(String::as_str).collect();
    let tokens: u64 = model.embed(&some)?.iter().map(|e| u64::from(e.tokens)).sum();
    Ok(round(tokens as f64 / some.len().max(1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::Fake;
    use crate::types::Lang;

    #[test]
    fn every_setting_is_measured_and_an_encoder_agrees_with_itself() {
        let fake = Fake::new("fake", Lang::En, 8);
        let texts: Vec<String> = ["refund", "invoice", "weather"].map(String::from).into();
        let got = settings(&fake, &texts, &[(1, 1), (2, 4)], 0.01, 2).unwrap();
        assert_eq!(got.iter().map(|s| (s.threads, s.batch)).collect::<Vec<_>>(), [(1, 1), (2, 4)]);
        assert!(got.iter().all(|s| s.texts_per_s > 0.0));
        let same = accuracy(&fake, &fake, &texts).unwrap();
        assert!(same.texts == 3 && (same.min - 1.0).abs() < 1e-5);
    }
}
