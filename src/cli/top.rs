//! `reach top`: agents, queues and rates as they are now, drawn anew every second; `--once` prints one look.

use crate::api::pb;
use crate::cli::backend::Backend;
use crate::cli::{App, Common, Exit, Failure, Out, print};
use crate::telemetry::log::escaped;
use crate::types::span;
use clap::Args;
use std::collections::BTreeMap;
use std::time::Duration;

/// Shows agents, queues and rates as they are now.
#[derive(Args, Debug)]
pub struct Top {
    /// Pause between looks.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::parse)]
    pub every: Duration,
    /// One look only.
    #[arg(long)]
    pub once: bool,
}

fn counts(stats: &pb::StatsResponse) -> BTreeMap<&str, u64> {
    stats.counts.iter().map(|c| (c.name.as_str(), c.value)).collect()
}

/// One look in lines: rates since the look before, then a line an agent, the busiest first.
pub fn look(now: &pb::StatsResponse, before: Option<&pb::StatsResponse>, seconds: f64) -> Vec<String> {
    let (new, old) = (counts(now), before.map(counts).unwrap_or_default());
    let mut lines = Vec::new();
    if !new.is_empty() {
        let rate = |name: &str| {
            let n = new.get(name).copied().unwrap_or(0).saturating_sub(old.get(name).copied().unwrap_or(0));
            if before.is_some() { format!("{:.1}/s", n as f64 / seconds.max(0.001)) } else { n.to_string() }
        };
        let open = now.open.unwrap_or(0);
        lines.push(format!(
            "open {open}   in {}   done {}   retries {}   failed {}   dead {}   turned away {}",
            rate("submitted"),
            rate("acked"),
            rate("retries"),
            rate("failed"),
            rate("dead"),
            rate("turned_away"),
        ));
    }
    let head = ["AGENT", "WAITING", "RETRIES", "RUNNING", "BREAKER", "P50", "P95", "OK", "CALLS/MIN"].map(String::from).to_vec();
    let mut lanes: Vec<&pb::Lane> = now.lanes.iter().collect();
    lanes.sort_by(|a, b| (b.waiting + b.in_flight, b.calls).cmp(&(a.waiting + a.in_flight, a.calls)).then(a.agent.cmp(&b.agent)));
    let ms = |n: Option<u64>| n.map_or("-".into(), |n| format!("{n} ms"));
    let rows = lanes.iter().map(|l| {
        vec![
            escaped(&l.agent),
            format!("{}/{}", l.waiting, l.places),
            l.retries.to_string(),
            format!("{}/{}", l.in_flight, l.limit),
            l.breaker.clone(),
            ms(l.p50_ms),
            ms(l.p95_ms),
            l.success.map_or("-".into(), |s| format!("{:.0} %", s * 100.0)),
            l.calls.to_string(),
        ]
    });
    lines.extend(print::table(std::iter::once(head).chain(rows).collect()));
    lines
}

impl Top {
    pub(super) async fn run(&self, common: &Common, app: &dyn App, out: &Out) -> Result<Exit, Failure> {
        let backend = Backend::open(common, app).await?;
        let mut before: Option<pb::StatsResponse> = None;
        loop {
            let now = backend.stats().await?;
            if common.json {
                out.json(&now)?;
            } else {
                let lines = look(&now, before.as_ref(), self.every.as_secs_f64()).join("\n");
                // a terminal is drawn anew, anything else gets one look after the other
                out.line(&if out.terminal && !self.once { format!("\x1b[2J\x1b[H{lines}") } else { lines })?;
            }
            if self.once {
                return Ok(Exit::Ok);
            }
            before = Some(now);
            tokio::time::sleep(self.every).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_comes_first_and_rates_are_since_the_look_before() {
        let lane =
            |agent: &str, waiting| pb::Lane { agent: agent.into(), waiting, places: 10, breaker: "passing".into(), ..Default::default() };
        let count = |value| vec![pb::Count { name: "acked".into(), value }];
        let before = pb::StatsResponse { counts: count(10), ..Default::default() };
        let now =
            pb::StatsResponse { counts: count(30), open: Some(3), lanes: vec![lane("a/idle", 0), lane("a/busy", 3)], ..Default::default() };
        let lines = look(&now, Some(&before), 2.0);
        assert!(lines[0].contains("open 3") && lines[0].contains("done 10.0/s"), "{lines:?}");
        assert!(lines[2].starts_with("a/busy") && lines[3].starts_with("a/idle"), "{lines:?}");
    }
}
