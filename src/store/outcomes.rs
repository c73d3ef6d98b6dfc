//! Labelled outcomes: what learning reads, what people inspect and forget.
//!
//! In: outcomes. Out: the same, in order of arrival (learning) or newest first (people). Invariants: an id of a reporter is kept once, the newest
//! word counts; the table never refuses because it is full: the reporter with the most loses its oldest, so a flood pushes out itself first.
//! Cost: one row an outcome. Not here: who may report or read what (`ingest`), what is learned (`history`).

use super::readers::Readers;
use super::sum::Sum;
use super::{Store, StoreError};
use crate::types::outcome::{CapKey, Outcome, Verdict};
use rusqlite::{Connection, Row, params_from_iter};

/// The table, as a migration.
pub(super) const TABLES: &str = "CREATE TABLE outcomes (
        seq INTEGER PRIMARY KEY,
        reporter TEXT NOT NULL,
        id TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        decision TEXT,
        text TEXT,
        tenant TEXT,
        caller TEXT NOT NULL,
        own INTEGER NOT NULL CHECK (own IN (0, 1)),
        scope TEXT NOT NULL,
        verdict TEXT NOT NULL,
        chosen TEXT,
        correct TEXT,
        previous TEXT,
        UNIQUE (reporter, id)
    ) STRICT;
    CREATE INDEX outcomes_at ON outcomes (at_ms, seq);
    CREATE INDEX outcomes_chosen ON outcomes (chosen);
    CREATE INDEX outcomes_correct ON outcomes (correct);";

const COLUMNS: &str = "seq, reporter, id, at_ms, decision, text, tenant, caller, own, scope, verdict, chosen, correct, previous, crc";
/// Outcomes removed in one transaction.
const CHUNK: i64 = 5_000;

/// How long outcomes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Oldest kept, milliseconds.
    pub age_ms: i64,
    /// Most kept.
    pub records: u64,
}

/// Which outcomes are meant; every part that is given must fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeQuery {
    /// Key texts of chosen or correct that begin so: `namespace/agent_id#` or the whole key.
    pub subject: Option<String>,
    /// Reporter.
    pub reporter: Option<String>,
    /// Id.
    pub id: Option<String>,
    /// Only those that came before this one.
    pub before_seq: Option<i64>,
}

impl OutcomeQuery {
    fn sql(&self) -> (String, Vec<rusqlite::types::Value>) {
        let (mut parts, mut values): (Vec<String>, Vec<rusqlite::types::Value>) = (vec!["1 = 1".into()], Vec::new());
        if let Some(subject) = &self.subject {
            // a prefix that ends in `#` means all capabilities of the agent
            let end = format!("{subject}{}", if subject.ends_with('#') { "\u{10ffff}" } else { "" });
            parts.push("(chosen BETWEEN ?1 AND ?2 OR correct BETWEEN ?1 AND ?2)".into());
            values.extend([subject.clone().into(), end.into()]);
        }
        let mut with = |part: &str, value: rusqlite::types::Value| {
            values.push(value);
            parts.push(format!("{part} ?{}", values.len()));
        };
        if let Some(reporter) = &self.reporter {
            with("reporter =", reporter.clone().into());
        }
        if let Some(id) = &self.id {
            with("id =", id.clone().into());
        }
        if let Some(seq) = self.before_seq {
            with("seq <", seq.into());
        }
        (parts.join(" AND "), values)
    }
}

fn insert(c: &Connection, outcomes: &[Outcome]) -> Result<(), StoreError> {
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO outcomes (reporter, id, at_ms, decision, text, tenant, caller, own, scope, verdict, chosen, correct, previous, crc)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    for o in outcomes {
        let (chosen, correct) = (o.chosen.as_ref().map(ToString::to_string), o.correct.as_ref().map(ToString::to_string));
        let crc = sum(o, o.verdict.as_str(), chosen.as_deref(), correct.as_deref()).done();
        insert.execute(rusqlite::params![
            &o.reporter,
            &o.id,
            o.at_ms,
            &o.decision_id,
            &o.text,
            &o.tenant,
            &o.caller,
            i64::from(o.own),
            &o.scope,
            o.verdict.as_str(),
            chosen,
            correct,
            &o.previous,
            crc,
        ])?;
    }
    Ok(())
}

impl Store {
    /// Writes outcomes and waits until they are durable. An id that its reporter used before is replaced.
    pub async fn put_outcomes(&self, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        self.writer.write(move |c| insert(c, &outcomes)).await
    }

    /// The same for those that nobody waits for: written in the company of something urgent.
    pub async fn put_outcomes_beside(&self, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        self.writer.write_beside(move |c| insert(c, &outcomes)).await
    }

    /// Outcomes newest first, each with its place; at most `limit`.
    pub fn outcomes(&self, which: &OutcomeQuery, limit: usize) -> Result<Vec<(i64, Outcome)>, StoreError> {
        let (clause, mut values) = which.sql();
        values.push(i64::try_from(limit).unwrap_or(i64::MAX).into());
        let sql = format!("SELECT {COLUMNS} FROM outcomes WHERE {clause} ORDER BY seq DESC LIMIT ?{}", values.len());
        self.readers.read(|c| {
            let mut statement = c.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(values), raw)?;
            rows.map(|r| r.map_err(StoreError::from)?.unpack()).collect()
        })
    }

    /// Every outcome, oldest first by its own time: the log that learning replays.
    pub fn all_outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        all(&self.readers)
    }

    /// Forgets outcomes; how many.
    pub async fn forget_outcomes(&self, which: OutcomeQuery) -> Result<usize, StoreError> {
        self.writer
            .write(move |c| {
                let (clause, values) = which.sql();
                Ok(c.execute(&format!("DELETE FROM outcomes WHERE {clause}"), params_from_iter(values))?)
            })
            .await
    }

    /// Forgets what is too old, then, while there are too many, the oldest of the reporter with the most. How many.
    pub async fn prune_outcomes(&self, keep: Keep, now_ms: i64) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        loop {
            let gone = self
                .writer
                .write(move |c| {
                    let old = c
                        .prepare_cached(
                            "DELETE FROM outcomes WHERE seq IN (SELECT seq FROM outcomes WHERE at_ms < ?1 ORDER BY at_ms LIMIT ?2)",
                        )?
                        .execute((now_ms.saturating_sub(keep.age_ms), CHUNK))?;
                    if old > 0 {
                        return Ok(old);
                    }
                    let count: i64 = c.prepare_cached("SELECT count(*) FROM outcomes")?.query_row([], |r| r.get(0))?;
                    let over = count.saturating_sub(i64::try_from(keep.records).unwrap_or(i64::MAX));
                    if over <= 0 {
                        return Ok(0);
                    }
                    let most: Vec<(String, i64)> = c
                        .prepare_cached("SELECT reporter, count(*) AS n FROM outcomes GROUP BY reporter ORDER BY n DESC, reporter LIMIT 2")?
                        .query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?
                        .collect::<Result<_, _>>()?;
                    let Some((reporter, n)) = most.first() else { return Ok(0) };
                    // down to the second largest, a tenth at least, so that the loop ends soon
                    let lead = n - most.get(1).map_or(0, |m| m.1);
                    let take = lead.max(n / 10).max(1).min(over).min(CHUNK);
                    Ok(c.prepare_cached(
                        "DELETE FROM outcomes WHERE seq IN (SELECT seq FROM outcomes WHERE reporter = ?1 ORDER BY at_ms, seq LIMIT ?2)",
                    )?
                    .execute((reporter, take))?)
                })
                .await?;
            if gone == 0 {
                return Ok(forgotten);
            }
            forgotten += gone;
        }
    }
}

/// Every outcome, oldest first by its own time.
pub(super) fn all(readers: &Readers) -> Result<Vec<Outcome>, StoreError> {
    readers.read(|c| {
        let mut statement = c.prepare_cached(&format!("SELECT {COLUMNS} FROM outcomes ORDER BY at_ms, seq"))?;
        let rows = statement.query_map([], raw)?;
        rows.map(|r| r.map_err(StoreError::from)?.unpack().map(|(_, o)| o)).collect()
    })
}

/// A row as it is stored.
struct Raw {
    seq: i64,
    outcome: Outcome,
    verdict: String,
    chosen: Option<String>,
    correct: Option<String>,
    crc: Option<i64>,
}

/// Everything but the place.
fn sum(o: &Outcome, verdict: &str, chosen: Option<&str>, correct: Option<&str>) -> Sum {
    Sum::default()
        .text(&o.reporter)
        .text(&o.id)
        .number(o.at_ms)
        .maybe(o.decision_id.as_deref())
        .maybe(o.text.as_deref())
        .maybe(o.tenant.as_deref())
        .text(&o.caller)
        .number(i64::from(o.own))
        .text(&o.scope)
        .text(verdict)
        .maybe(chosen)
        .maybe(correct)
        .maybe(o.previous.as_deref())
}

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    let outcome = Outcome {
        reporter: row.get(1)?,
        id: row.get(2)?,
        at_ms: row.get(3)?,
        decision_id: row.get(4)?,
        text: row.get(5)?,
        tenant: row.get(6)?,
        caller: row.get(7)?,
        own: row.get::<_, i64>(8)? != 0,
        scope: row.get(9)?,
        verdict: Verdict::Timeout,
        chosen: None,
        correct: None,
        previous: row.get(13)?,
    };
    Ok(Raw { seq: row.get(0)?, outcome, verdict: row.get(10)?, chosen: row.get(11)?, correct: row.get(12)?, crc: row.get(14)? })
}

impl Raw {
    fn unpack(self) -> Result<(i64, Outcome), StoreError> {
        let row = || format!("outcome {}", self.seq);
        sum(&self.outcome, &self.verdict, self.chosen.as_deref(), self.correct.as_deref()).check(self.crc, row)?;
        let damaged = |what: String| StoreError::Row { row: row(), what };
        let key = |text: Option<String>| text.map(|t| CapKey::parse(&t).map_err(damaged)).transpose();
        let verdict = Verdict::parse(&self.verdict).ok_or_else(|| damaged(format!("unknown verdict {}", self.verdict)))?;
        Ok((self.seq, Outcome { verdict, chosen: key(self.chosen)?, correct: key(self.correct)?, ..self.outcome }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Durability;
    use crate::types::{AgentKey, Namespace};

    fn outcome(reporter: &str, id: &str, agent: &str, at_ms: i64) -> Outcome {
        Outcome {
            id: id.into(),
            at_ms,
            decision_id: None,
            text: Some(format!("text of {id}")),
            tenant: None,
            caller: reporter.into(),
            reporter: reporter.into(),
            own: false,
            scope: "*".into(),
            verdict: Verdict::Adopted,
            chosen: Some(CapKey::new(AgentKey::local(Namespace::new("n").unwrap(), agent), "x_y")),
            correct: None,
            previous: None,
        }
    }

    #[tokio::test]
    async fn they_are_kept_replaced_found_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let all = vec![outcome("a", "1", "one", 10), outcome("a", "2", "on", 5), outcome("b", "1", "one", 7)];
        {
            let store = Store::open(folder.path(), Durability::Full).unwrap();
            store.put_outcomes(all.clone()).await.unwrap();
            let other = Outcome { verdict: Verdict::Overridden, correct: all[1].chosen.clone(), ..all[0].clone() };
            store.put_outcomes(vec![other]).await.unwrap();
        }
        let store = Store::open(folder.path(), Durability::Full).unwrap();
        let read = store.all_outcomes().unwrap();
        assert_eq!(read.iter().map(|o| o.at_ms).collect::<Vec<_>>(), [5, 7, 10]);
        assert_eq!(read[2].verdict, Verdict::Overridden);
        let of = |subject: &str| OutcomeQuery { subject: Some(subject.into()), ..OutcomeQuery::default() };
        assert_eq!(store.outcomes(&of("n/on#"), 10).unwrap().len(), 2, "as chosen, and as the correct one; `one` is another agent");
        let whole = all[0].chosen.as_ref().unwrap().to_string();
        assert_eq!(store.outcomes(&of(&whole), 10).unwrap().len(), 2);
        let page = store.outcomes(&OutcomeQuery::default(), 1).unwrap();
        let rest = OutcomeQuery { before_seq: Some(page[0].0), ..OutcomeQuery::default() };
        assert_eq!(store.outcomes(&rest, 10).unwrap().len(), 2);
        let gone = store.forget_outcomes(OutcomeQuery { reporter: Some("a".into()), ..of("n/on#") }).await.unwrap();
        assert_eq!((gone, store.all_outcomes().unwrap().len()), (2, 1));
    }

    #[tokio::test]
    async fn a_flood_pushes_out_itself() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), Durability::Process).unwrap();
        store.put_outcomes((0..10).map(|i| outcome("honest", &i.to_string(), "one", 100 + i)).collect()).await.unwrap();
        store.put_outcomes((0..500).map(|i| outcome("flood", &i.to_string(), "two", 200 + i)).collect()).await.unwrap();
        let gone = store.prune_outcomes(Keep { age_ms: 1_000, records: 50 }, 700).await.unwrap();
        let left = store.all_outcomes().unwrap();
        assert_eq!((gone, left.len()), (460, 50));
        assert_eq!(left.iter().filter(|o| o.reporter == "honest").count(), 10);
        assert_eq!(left.last().unwrap().at_ms, 699, "the newest stay");
        store.prune_outcomes(Keep { age_ms: 50, records: 50 }, 700).await.unwrap();
        assert!(store.all_outcomes().unwrap().iter().all(|o| o.at_ms >= 650));
    }
}
