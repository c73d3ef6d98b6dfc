//! History decided again by other models: every logged text is embedded and recalled anew, at its own time, with the state that was logged.
//!
//! In: a fleet on the models to try ([`Bench`]), logged decisions with their texts. Out: the same decisions with the shortlists of those models, counted
//! under some settings. What the log knows of the agents (load, health, who was dropped, what the caller did before) holds; what it does not know of a
//! candidate that was not in its shortlist is as of an idle agent. A decision without its text is left out and counted.
//! Cost: one embedding a distinct text, half a millisecond a decision beside it. Not here: what the models were worth (`replay::tried`).

use crate::error::{Class, Error};
use crate::eval::replay::entry::{Entry, Once, Raw};
use crate::eval::replay::labels::Labels;
use crate::eval::replay::settings::Setting;
use crate::eval::replay::tally::{Row, Tally};
use crate::eval::replay::{BATCH, Config};
use crate::eval::run::Bench;
use crate::route::logged::Logged;
use crate::route::shortlist::{Item, Shortlist};
use crate::types::AgentKey;
use crate::types::request::ResolveRequest;
use futures::{StreamExt, TryStreamExt, stream};
use rayon::prelude::*;
use std::collections::HashMap;

/// Texts under way at once.
const SIDE_BY_SIDE: usize = 8;

fn request(entry: &Entry, text: &str) -> ResolveRequest {
    let logged = &entry.logged;
    let names = |keys: &[AgentKey]| keys.iter().map(ToString::to_string).collect();
    ResolveRequest {
        query: text.to_string(),
        capability: logged.capability.clone(),
        region: logged.region.clone(),
        target: logged.target.as_ref().map(ToString::to_string),
        preferred: names(&logged.preferred),
        only: logged.only_preferred,
        exclude: names(&logged.exclude),
        max_cost: logged.max_cost,
        fallback: Some(false),
        depth: u32::from(logged.depth),
        previous: logged.previous.clone(),
        k: u32::try_from(logged.k).ok(),
        at: jiff::Timestamp::from_millisecond(entry.at_ms).ok().map(|t| t.to_string()),
        seed: Some(logged.seed),
        ..ResolveRequest::default()
    }
}

/// Gives the candidates the state that was logged, and drops whom the log dropped.
fn as_it_was(list: &mut Shortlist, then: &Shortlist) {
    let known: HashMap<(&AgentKey, &str), &Item> = then.items.iter().map(|i| ((&i.agent, &*i.folded), i)).collect();
    list.items.retain(|i| !then.dropped.iter().any(|d| d.agent == i.agent && d.capability == i.capability));
    for item in &mut list.items {
        item.features = Vec::new();
        if let Some(was) = known.get(&(&item.agent, &*item.folded)) {
            item.live = was.live.clone();
            item.preferred = was.preferred;
            item.cooccurrence = was.cooccurrence;
            item.tenant = was.tenant;
            item.quality = was.quality;
            item.forced.clone_from(&was.forced);
        }
    }
}

/// A logged decision with the shortlist that `bench` makes of its text. `None` = its text was not kept, or can't be asked any more.
pub async fn again(bench: &Bench, entry: Entry) -> Result<Option<Entry>, Error> {
    let Some(text) = entry.text.as_deref().filter(|t| !t.trim().is_empty()) else { return Ok(None) };
    let mut list = match bench.shortlist(&entry.logged.principal, &request(&entry, text)).await {
        Ok(list) => list,
        Err(e) if e.code.class() == Class::Final => return Ok(None),
        Err(e) => return Err(e),
    };
    as_it_was(&mut list, &entry.logged.shortlist);
    let mut decision = entry.logged.decision.clone();
    decision.generations.models = bench.view().models.fingerprints();
    // without its policy: it was not decided on this shortlist, so it can't be checked against itself
    let logged = Logged { policy: None, items: list.items.len(), rest: 0.0, shortlist: list, decision, ..entry.logged.clone() };
    Ok(Some(Entry { logged, ..entry }))
}

/// Decisions counted, and how many were left out.
pub struct Counted {
    /// Counts by setting.
    pub tally: Tally,
    /// Decisions without a text that can be asked.
    pub left_out: u64,
}

/// Decides every entry of `source` again on `bench`, under every setting. `tick` is called with the number of entries done since the last call.
pub async fn count(
    bench: &Bench,
    source: impl Iterator<Item = Result<Raw, Error>>,
    labels: &Labels,
    settings: Vec<Setting>,
    config: &Config,
    mut tick: impl FnMut(usize),
) -> Result<Counted, Error> {
    let mut tally = Tally::new(settings, config);
    let mut left_out = 0;
    let mut once = Once::default();
    let mut source = source.peekable();
    while source.peek().is_some() {
        let batch: Vec<Raw> = source.by_ref().take(BATCH).collect::<Result<_, _>>()?;
        let n = batch.len();
        let mut entries: Vec<Entry> = batch.into_par_iter().map(Raw::entry).collect::<Result<_, _>>()?;
        entries.retain(|e| once.first(&e.id));
        let asked = stream::iter(entries.into_iter().map(|e| again(bench, e))).buffered(SIDE_BY_SIDE);
        let decided: Vec<Option<Entry>> = asked.try_collect().await?;
        left_out += decided.iter().filter(|e| e.is_none()).count() as u64;
        let wanted = tally.wants_moves();
        let rows: Vec<Row> = decided.into_par_iter().flatten_iter().map(|e| tally.judge(&e, &labels.of(&e), &wanted)).collect();
        for row in rows {
            tally.add(row);
        }
        tick(n);
    }
    Ok(Counted { tally, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::testing::fakes;
    use crate::eval::queries;
    use crate::eval::replay::settings;
    use crate::ingest::files;
    use crate::route::logged::Body;
    use crate::types::manifest_check::Rules;
    use crate::types::policy::Policy;
    use std::path::Path;
    use std::sync::Arc;

    /// The same models over the same fleet decide as was logged; the log's state holds.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_models_in_use_decide_again_as_they_did() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
        let manifests = files::read(&root.join("fleet"), &Rules::default()).unwrap().manifests;
        let folder = tempfile::tempdir().unwrap();
        let policy = Policy::default();
        let bench = Bench::untaught(Arc::new(fakes()), manifests, policy.clone(), folder.path()).await.unwrap();
        let all = queries::sample(queries::read(&root.join("queries.jsonl"), Some("dev")).unwrap(), Some(30), 3);
        let mut entries = Vec::new();
        for (i, query) in all.iter().enumerate() {
            let mut asked = bench.ask(query, i as u64, 5).await.unwrap();
            asked.decision.decision_id = format!("d{i}");
            let body = Body::of(&asked.query, &asked.list, &asked.decision, &policy, true).json();
            let logged: Logged = serde_json::from_value(body).unwrap();
            let (at_ms, text) = (asked.query.at_ms, Some(query.query.clone()));
            entries.push(Entry { id: format!("d{i}"), at_ms, caller: String::new(), text, logged });
        }
        for entry in entries.clone() {
            let then = entry.logged.decision.clone();
            let now = again(&bench, entry).await.unwrap().unwrap().logged.repick(&policy);
            let first = now.candidates.first().map(|c| (&c.agent, &c.capability));
            assert_eq!((now.kind, first), (then.kind, then.candidates.first().map(|c| (&c.agent, &c.capability))));
            assert_eq!(now.confidence, then.confidence);
        }
        // whoever was away then is away again
        let i = entries.iter().position(|e| e.logged.shortlist.items.len() > 1).unwrap();
        let gone = entries[i].logged.shortlist.items.remove(0);
        entries[i].logged.shortlist.dropped.push(crate::types::decision::Dropped {
            agent: gone.agent.clone(),
            capability: gone.capability.clone(),
            similarity: gone.similarity,
            why: crate::types::decision::DropReason::Unreachable,
        });
        let list = again(&bench, entries[i].clone()).await.unwrap().unwrap().logged.shortlist;
        assert!(!list.items.iter().any(|it| it.agent == gone.agent && it.capability == gone.capability));
        // a decision without its text is left out and counted
        entries[0].text = None;
        let n = entries.len() as u64;
        let config = Config { seed: 7, holdout: 0.5, aim: Default::default(), moves: 0, swept: Vec::new() };
        let source = entries.into_iter().map(|e| Ok(Raw::Entry(Box::new(e))));
        let counted = count(&bench, source, &Labels::default(), settings::with_base(&policy, Vec::new()), &config, |_| {}).await.unwrap();
        assert_eq!((counted.left_out, counted.tally.groups.values().map(|g| g.decisions).sum::<u64>()), (1, n - 1));
    }
}
