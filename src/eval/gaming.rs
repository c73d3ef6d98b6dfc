//! How much an attacker's manifests win, with the guards on and off.
//!
//! In: a fleet, labelled queries, a kind of attack. The fleet is registered one namespace after another, each by a publisher of its own; then
//! one attacker adds a share of manifests in a namespace of its own, seen by all. Out: the share of in-scope queries whose first candidate is
//! the attacker's, and top-1 of the honest fleet before and after. Deterministic; uses nothing of the queries to build the attack.

use crate::error::Error;
use crate::eval::queries::Labelled;
use crate::eval::run::Bench;
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{Long, Rules, check};
use serde::Serialize;
use serde_json::{Value, json};

/// Namespace of the attacker.
pub const ATTACKER: &str = "attacker";

/// What the attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Descriptions of all others' names and words, examples taken from all over the fleet.
    Stuffed,
    /// Copies of others' descriptions and examples under names of its own.
    Copies,
    /// The same catch-all over and over, with small changes.
    Flood,
    /// Texts that resemble requests of every kind.
    Hub,
}

impl Attack {
    /// Every one, with its name.
    pub const ALL: [(&'static str, Self); 4] =
        [("stuffed", Self::Stuffed), ("copies", Self::Copies), ("flood", Self::Flood), ("hub", Self::Hub)];
}

/// Figures of one attack. Shares are fractions of the in-scope queries.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The attack.
    pub attack: String,
    /// Capabilities of the honest fleet.
    pub honest: usize,
    /// Capabilities of the attacker.
    pub attackers: usize,
    /// In-scope queries.
    pub n: usize,
    /// Honest top-1 without the attack, guards off.
    pub top1_off: f64,
    /// The same with guards on.
    pub top1_on: f64,
    /// Queries won by the attacker, guards off.
    pub won_off: f64,
    /// The same with guards on.
    pub won_on: f64,
    /// Honest top-1 under attack, guards off.
    pub attacked_off: f64,
    /// The same with guards on.
    pub attacked_on: f64,
}

/// One capability of the fleet, as an attacker sees it.
struct Seen {
    name: String,
    zh: Option<String>,
    en: Option<String>,
    examples: Vec<String>,
}

fn seen(fleet: &[Manifest]) -> Vec<Seen> {
    let caps = fleet.iter().flat_map(|m| &m.capabilities);
    caps.map(|c| Seen {
        name: crate::types::text::words_of_name(&c.intent),
        zh: c.description.zh.clone(),
        en: c.description.en.clone(),
        examples: c.examples.clone(),
    })
    .collect()
}

/// Texts of a language from all over the fleet, every one as long as the others let it.
fn spread<'a>(all: &'a [Seen], of: impl Fn(&'a Seen) -> Option<&'a String>, most: usize) -> String {
    let texts: Vec<&str> = all.iter().filter_map(of).map(String::as_str).collect();
    let step = texts.len().div_ceil(60).max(1);
    let joined = texts.iter().step_by(step).copied().collect::<Vec<_>>().join(" ");
    joined.chars().take(most).collect()
}

/// The attacker's manifests: one capability each.
pub fn attackers(attack: Attack, fleet: &[Manifest], share: f64) -> Result<Vec<Manifest>, Error> {
    let all = seen(fleet);
    let n = ((all.len() as f64 * share).ceil() as usize).max(1);
    let chinese = all.iter().any(|s| s.zh.is_some());
    let english = all.iter().any(|s| s.en.is_some());
    let texts = |zh: String, en: String| -> Value {
        let mut map = serde_json::Map::new();
        if chinese && !zh.is_empty() {
            map.insert("zh".into(), zh.into());
        }
        if english && !en.is_empty() {
            map.insert("en".into(), en.into());
        }
        Value::Object(map)
    };
    let make = |i: usize| -> Value {
        let victim = &all[(i * all.len() / n + all.len() / 3) % all.len()];
        let capability = match attack {
            Attack::Stuffed => {
                let names: String = all.iter().map(|s| s.name.clone()).collect::<Vec<_>>().join(", ").chars().take(1500).collect();
                let (zh, en) = (spread(&all, |s| s.zh.as_ref(), 1500), spread(&all, |s| s.en.as_ref(), 1500));
                let pool: Vec<String> = all.iter().flat_map(|s| s.examples.iter().take(1).chain(&s.en).chain(&s.zh)).cloned().collect();
                let step = (pool.len() / 64).max(1);
                let examples: Vec<String> = pool.into_iter().skip(i % step).step_by(step).take(64).collect();
                json!({"intent": format!("best_agent_for_everything_{i}"), "description": texts(format!("最好的选择 {names} {zh}"), format!("best agent for {names} {en}")), "examples": examples})
            }
            Attack::Copies => {
                let (zh, en) = (victim.zh.clone().unwrap_or_default(), victim.en.clone().unwrap_or_default());
                json!({"intent": format!("{} pro", victim.name), "description": texts(format!("{zh}（专业版）"), format!("{en}, the best")), "examples": victim.examples})
            }
            Attack::Flood => json!({
                "intent": format!("universal_assistant_{i}"),
                "description": texts(format!("通用助手：查询、办理、修改、取消各种业务和问题，第{i}版"), format!("Universal assistant: looks up, sets, changes and cancels anything you ask about, edition {i}")),
                "examples": ["帮我处理一下", "please take care of this for me", "can you help me with this", "我想问一下"],
            }),
            Attack::Hub => {
                let pool = crate::view::POOLS;
                let take = |text: &str, on: bool| -> Vec<String> {
                    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
                    let step = (lines.len() / 32).max(1);
                    if on { lines.iter().skip(i % step).step_by(step).take(32).map(|l| l.to_string()).collect() } else { Vec::new() }
                };
                let examples: Vec<String> = take(pool[0].requests, chinese).into_iter().chain(take(pool[1].requests, english)).collect();
                json!({"intent": format!("request_{i}"), "description": texts("回答请求".into(), "Handles a request".into()), "examples": examples})
            }
        };
        json!({"namespace": ATTACKER, "agent_id": format!("evil-{i}"), "ttl": "none", "endpoints": [{"protocol": "pull"}], "visible_to": ["*"], "capabilities": [capability]})
    };
    (0..n).map(|i| check(&make(i), &Rules { long: Long::Cut }).map(|c| c.manifest).map_err(Error::invalid)).collect()
}

/// Share won by the attacker and share right.
async fn ask(bench: &Bench, queries: &[Labelled]) -> Result<(f64, f64), Error> {
    let (mut won, mut right) = (0usize, 0usize);
    for (i, query) in queries.iter().enumerate() {
        let asked = bench.ask(query, 7 + i as u64, 5).await?;
        if let Some(first) = asked.decision.candidates.first() {
            won += usize::from(first.agent.namespace.as_str() == ATTACKER);
            right += usize::from(query.expected.iter().any(|(a, c)| **a == *first.agent.agent_id && **c == *first.capability));
        }
    }
    let n = queries.len().max(1) as f64;
    Ok((won as f64 / n, right as f64 / n))
}

/// Runs one attack on two benches over the same fleet: guards off and on.
pub async fn run(
    name: &str,
    attack: Attack,
    off: &mut Bench,
    on: &mut Bench,
    fleet: &[Manifest],
    queries: &[Labelled],
    share: f64,
) -> Result<Report, Error> {
    let queries: Vec<Labelled> = queries.iter().filter(|q| !q.expected.is_empty()).cloned().collect();
    let evil = attackers(attack, fleet, share)?;
    let mut report = Report {
        attack: name.into(),
        attackers: evil.len(),
        honest: fleet.iter().map(|m| m.capabilities.len()).sum(),
        n: queries.len(),
        ..Report::default()
    };
    off.learn().await?;
    on.learn().await?;
    report.top1_off = ask(off, &queries).await?.1;
    report.top1_on = ask(on, &queries).await?.1;
    off.publish(ATTACKER, evil.clone()).await?;
    on.publish(ATTACKER, evil).await?;
    off.learn().await?;
    on.learn().await?;
    (report.won_off, report.attacked_off) = ask(off, &queries).await?;
    (report.won_on, report.attacked_on) = ask(on, &queries).await?;
    off.withdraw(ATTACKER).await?;
    on.withdraw(ATTACKER).await?;
    Ok(report)
}
