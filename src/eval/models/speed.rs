//! Speed, memory and size of a model on this machine. The one part of a comparison that differs from run to run.

use crate::clock::{Clock, SystemClock};
use crate::embed::models::{ArmId, Models};
use crate::embed::worker::WorkClass;
use crate::embed::{Embed, EmbedError};
use serde::Serialize;
use std::sync::Arc;

/// Texts timed one by one.
const ALONE: usize = 40;
/// Texts timed together.
const TOGETHER: usize = 256;

/// What was measured. Zero = not measured (vectors from elsewhere).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Median of one short text on one core, milliseconds.
    pub one_text_ms: f64,
    /// Texts a second through the worker, all its threads.
    pub texts_a_second: f64,
    /// Resident memory that loading added, bytes.
    pub memory_bytes: u64,
    /// Weights on disk, bytes.
    pub weights_bytes: u64,
    /// Texts of the fleet that were embedded.
    pub fleet_texts: usize,
}

/// Resident memory of this process, bytes; 0 where it can't be read.
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Median time of one text on the calling thread, milliseconds. Blocks.
pub fn one_text(arms: &[Arc<dyn Embed>], texts: &[Arc<str>]) -> Result<f64, EmbedError> {
    let clock = SystemClock;
    let mut took = Vec::new();
    for text in texts.iter().take(ALONE) {
        for arm in arms {
            let start = clock.instant();
            arm.embed(&[text])?;
            took.push(clock.instant().duration_since(start).as_secs_f64() * 1e3);
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(took.get(took.len() / 2).copied().unwrap_or(0.0))
}

/// Texts a second through the worker; every text goes through the arms of its language, as in serving.
pub async fn together(models: &Models, texts: &[Arc<str>]) -> Result<f64, EmbedError> {
    let clock = SystemClock;
    let mut by_arm: Vec<(ArmId, Vec<Arc<str>>)> = models.arms().map(|(id, _)| (id, Vec::new())).collect();
    for text in texts.iter().take(TOGETHER) {
        for id in models.for_lang(crate::types::Lang::of(text)) {
            if let Some((_, wanted)) = by_arm.iter_mut().find(|(a, _)| *a == id) {
                wanted.push(text.clone());
            }
        }
    }
    let n: usize = by_arm.iter().map(|(_, t)| t.len()).sum();
    let start = clock.instant();
    futures::future::try_join_all(by_arm.iter().map(|(id, texts)| models.embed(*id, texts, WorkClass::Ingest))).await?;
    Ok(n as f64 / clock.instant().duration_since(start).as_secs_f64().max(1e-9))
}
