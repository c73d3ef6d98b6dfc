//! Messages at rest: what was sent, what became of it, its whole log, its keys and tags.
//!
//! In: [`Write`]s, each with the log position it follows. Out: one [`Wrote`] a write. A batch is one operation of the writer: durable as a whole, each
//! write atomic for its message.
//! Invariants: a write whose position is not the stored one changes nothing; a key belongs to one message while that is open and an hour longer;
//! what ended stays for its retention, an hour at least.
//! Cost of a message that is done without a detour: 2 writes (3 where it had to wait for its agent), about 12 b-tree operations. Envelopes are written once and never again, so that a large
//! payload costs nothing when its state changes. Not here: which change is allowed (`dispatch::state`), the order of writes (`dispatch::port`).

use super::sum::Sum;
use super::{Store, StoreError};
use crate::types::envelope::{Envelope, ReachId};
use crate::types::message::{Entry, Head, Message, State};
use crate::types::stored::{Filter, KEEP_MS, Page, Retention, Scope, Write, Wrote};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params, params};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys of one owner that are remembered at once.
const KEY_QUOTA: i64 = 1_000_000;

/// Tables of messages, as a migration.
pub(super) const TABLES: &str = "
    -- what changes, small; position = entries in the log; ended_ms NULL = open; message_id NULL = the id in hexadecimal
    CREATE TABLE messages (
        seq INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        owner TEXT NOT NULL,
        message_id TEXT,
        at_ms INTEGER NOT NULL,
        state TEXT NOT NULL,
        agent TEXT,
        namespace TEXT,
        tag TEXT,
        position INTEGER NOT NULL,
        ended_ms INTEGER,
        head TEXT NOT NULL
    ) STRICT;
    CREATE INDEX messages_open ON messages (seq) WHERE ended_ms IS NULL;
    CREATE INDEX messages_ended ON messages (ended_ms) WHERE ended_ms IS NOT NULL;
    CREATE INDEX messages_dead ON messages (seq) WHERE state = 'dead_letter';
    CREATE INDEX messages_owner ON messages (owner, message_id, seq) WHERE message_id IS NOT NULL;
    CREATE INDEX messages_agent ON messages (agent, seq);

    -- what was sent, JSON, never changed
    CREATE TABLE envelopes (
        seq INTEGER PRIMARY KEY,
        body TEXT NOT NULL
    ) STRICT;

    -- one row a write: a JSON list of entries, the first of which has this position
    CREATE TABLE message_log (
        message INTEGER NOT NULL,
        position INTEGER NOT NULL,
        entries TEXT NOT NULL,
        PRIMARY KEY (message, position)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE message_keys (
        owner TEXT NOT NULL,
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        digest BLOB NOT NULL,
        message INTEGER NOT NULL,
        PRIMARY KEY (owner, scope, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX message_keys_message ON message_keys (message);
    CREATE TABLE message_owners (
        owner TEXT NOT NULL PRIMARY KEY,
        keys INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE message_tags (
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        message INTEGER NOT NULL,
        PRIMARY KEY (name, value, message)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX message_tags_message ON message_tags (message);
";

impl Store {
    /// Queues a batch of writes; `done` runs on the writer thread after the commit, so it must be quick. A full queue refuses at once.
    pub fn write_messages(
        &self,
        writes: Arc<Vec<Write>>,
        done: impl FnOnce(Result<Vec<Wrote>, StoreError>) + Send + 'static,
    ) -> Result<(), StoreError> {
        self.writer.write_later(move |c| writes.iter().map(|w| apply(c, w)).collect(), done)
    }

    /// A message.
    pub fn message(&self, id: ReachId) -> Result<Option<Message>, StoreError> {
        self.readers.read(|c| message_where(c, "m.id = ?1", params![id.to_bytes()]))
    }

    /// The message that holds a key.
    pub fn message_of_key(&self, scope: &Scope) -> Result<Option<Message>, StoreError> {
        let of = "m.seq = (SELECT message FROM message_keys WHERE owner = ?1 AND scope = ?2 AND key = ?3)";
        self.readers.read(|c| message_where(c, of, params![&*scope.owner, &*scope.intent, &*scope.key]))
    }

    /// The newest message of an owner under a message id.
    pub fn message_of_id(&self, owner: &str, message_id: &str) -> Result<Option<Message>, StoreError> {
        self.readers.read(|c| {
            let named = message_where(c, "m.owner = ?1 AND m.message_id = ?2 ORDER BY m.seq DESC LIMIT 1", params![owner, message_id])?;
            match (named, message_id.parse::<ReachId>()) {
                (Some(message), _) => Ok(Some(message)),
                (None, Ok(id)) => message_where(c, "m.id = ?1 AND m.owner = ?2", params![id.to_bytes(), owner]),
                (None, Err(_)) => Ok(None),
            }
        })
    }

    /// The whole log of a message, oldest first.
    pub fn message_log(&self, id: ReachId) -> Result<Vec<Entry>, StoreError> {
        self.readers.read(|c| {
            let mut find = c.prepare_cached(
                "SELECT l.entries, l.crc, l.message, l.position, m.position FROM messages m LEFT JOIN message_log l ON l.message = m.seq
                 WHERE m.id = ?1 ORDER BY l.position",
            )?;
            type Part = (Option<String>, Option<i64>, Option<i64>, Option<i64>, i64);
            let rows = find.query_map(params![id.to_bytes()], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?)))?;
            let (mut log, mut length) = (Vec::new(), 0);
            for row in rows {
                let (entries, crc, message, position, all): Part = row?;
                length = all;
                let (Some(entries), Some(message), Some(position)) = (entries, message, position) else { continue };
                log_sum(message, position, &entries).check(crc, || format!("the log of message {id}"))?;
                log.extend(parse::<Vec<Entry>>(&entries)?);
            }
            if as_i64(log.len()) != length {
                let what = format!("it has {} entries of {length}", log.len());
                return Err(StoreError::Row { row: format!("the log of message {id}"), what });
            }
            Ok(log)
        })
    }

    /// Open messages in the order they came; `after` is the cursor of the batch before.
    pub fn open_messages(&self, after: Option<i64>, limit: usize) -> Result<Page, StoreError> {
        self.readers.read(|c| {
            let sql = format!("{SELECT} WHERE m.ended_ms IS NULL AND m.seq > ?1 ORDER BY m.seq LIMIT ?2");
            page(c, &sql, params![after.unwrap_or(0), as_i64(limit)], limit)
        })
    }

    /// Messages by filter, newest first.
    pub fn list_messages(&self, f: &Filter) -> Result<Page, StoreError> {
        let limit = f.limit.clamp(1, 1_000);
        let mut wants: Vec<String> = vec!["m.seq < ?".into()];
        let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(f.after.unwrap_or(i64::MAX))];
        let mut want = |sql: &str, value: Option<Box<dyn ToSql>>| {
            if let Some(value) = value {
                wants.push(sql.into());
                values.push(value);
            }
        };
        want("m.state = ?", f.state.map(|s| Box::new(s.as_str()) as Box<dyn ToSql>));
        want("m.agent = ?", f.agent.as_ref().map(|a| Box::new(a.to_string()) as Box<dyn ToSql>));
        want("m.at_ms >= ?", f.since_ms.map(|t| Box::new(t) as Box<dyn ToSql>));
        want("m.at_ms < ?", f.until_ms.map(|t| Box::new(t) as Box<dyn ToSql>));
        want("m.parent = ?", f.parent.as_ref().map(|p| Box::new(p.to_string()) as Box<dyn ToSql>));
        want("m.tag = ?", f.dead_tag.map(|t| Box::new(t.as_str()) as Box<dyn ToSql>));
        for (name, value) in &f.tags {
            wants.push("m.seq IN (SELECT message FROM message_tags WHERE name = ? AND value = ?)".into());
            values.push(Box::new(name.clone()));
            values.push(Box::new(value.clone()));
        }
        let mut seen: Vec<String> = Vec::new();
        if let Some(owner) = &f.owner {
            seen.push("m.owner = ?".into());
            values.push(Box::new(owner.to_string()));
        }
        if let Some(spaces) = &f.namespaces {
            seen.push(format!("m.namespace IN ({})", vec!["?"; spaces.len()].join(", ")));
            values.extend(spaces.iter().map(|s| Box::new(s.to_string()) as Box<dyn ToSql>));
        }
        if !seen.is_empty() {
            wants.push(format!("({})", seen.join(" OR ")));
        }
        let sql = format!("{SELECT} WHERE {} ORDER BY m.seq DESC LIMIT {limit}", wants.join(" AND "));
        let refs: Vec<&dyn ToSql> = values.iter().map(|v| &**v).collect();
        self.readers.read(|c| page(c, &sql, &refs[..], limit))
    }

    /// How many messages are in each state.
    pub fn message_counts(&self) -> Result<BTreeMap<State, u64>, StoreError> {
        self.readers.read(|c| {
            let mut find = c.prepare_cached("SELECT state, count(*) FROM messages GROUP BY state")?;
            let rows = find.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get::<_, i64>(1)?)))?;
            let mut counts = BTreeMap::new();
            for row in rows {
                let (state, n) = row?;
                if let Some(state) = State::parse(&state) {
                    counts.insert(state, u64::try_from(n).unwrap_or(0));
                }
            }
            Ok(counts)
        })
    }

    /// Removes at most `limit` messages that are past their retention; answers how many.
    pub async fn prune_messages(&self, now_ms: i64, keep: Retention, limit: usize) -> Result<u64, StoreError> {
        self.writer.write(move |c| prune(c, now_ms, keep, limit)).await
    }
}

const SELECT: &str =
    "SELECT m.seq, e.body, m.head, e.crc, m.crc, m.id, m.owner, m.message_id, m.at_ms, m.state, m.agent, m.namespace, m.tag,
    m.position, m.ended_ms FROM messages m LEFT JOIN envelopes e ON e.seq = m.seq";

/// What never changes of a message.
fn envelope_sum(id: &[u8], owner: &str, message_id: Option<&str>, at_ms: i64, body: &str) -> Sum {
    Sum::default().blob(id).text(owner).maybe(message_id).number(at_ms).text(body)
}

/// What changes with its state.
struct Changing<'a> {
    state: &'a str,
    agent: Option<&'a str>,
    namespace: Option<&'a str>,
    tag: Option<&'a str>,
    position: i64,
    ended: Option<i64>,
    head: &'a str,
}

impl Changing<'_> {
    fn sum(&self, id: &[u8]) -> Sum {
        let sum = Sum::default().blob(id).text(self.state).maybe(self.agent).maybe(self.namespace).maybe(self.tag);
        sum.number(self.position).maybe_number(self.ended).text(self.head)
    }
}

fn log_sum(message: i64, position: i64, entries: &str) -> Sum {
    Sum::default().number(message).number(position).text(entries)
}

fn key_sum(scope: &Scope, digest: &[u8], message: i64) -> Sum {
    Sum::default().text(&scope.owner).text(&scope.intent).text(&scope.key).blob(digest).number(message)
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Row { row: "a message".into(), what: format!("it does not parse: {e}") })
}

fn write_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::Internal(e.to_string()))
}

fn as_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn text<'r>(row: &'r Row<'_>, at: usize) -> Result<Option<&'r str>, StoreError> {
    row.get_ref(at)?.as_str_or_null().map_err(|_| StoreError::Row { row: "a message".into(), what: "a text is none".into() })
}

/// Reads a row of [`SELECT`], checked.
fn rebuilt(row: &Row<'_>) -> Result<(i64, Message), StoreError> {
    let seq: i64 = row.get(0)?;
    let fault = |what: &str| StoreError::Row { row: format!("message number {seq}"), what: what.into() };
    let id: [u8; 16] = row.get(5)?;
    let (Some(body), Some(head)) = (text(row, 1)?, text(row, 2)?) else { return Err(fault("its envelope is gone")) };
    let (Some(owner), Some(state)) = (text(row, 6)?, text(row, 9)?) else { return Err(fault("a column is empty")) };
    envelope_sum(&id, owner, text(row, 7)?, row.get(8)?, body).check(row.get(3)?, || format!("message number {seq}"))?;
    let changing = Changing {
        state,
        agent: text(row, 10)?,
        namespace: text(row, 11)?,
        tag: text(row, 12)?,
        position: row.get(13)?,
        ended: row.get(14)?,
        head,
    };
    changing.sum(&id).check(row.get(4)?, || format!("the state of message number {seq}"))?;
    Ok((seq, Message { envelope: Arc::new(parse::<Envelope>(body)?), head: parse::<Head>(head)? }))
}

fn message_where(c: &Connection, of: &str, values: &[&dyn ToSql]) -> Result<Option<Message>, StoreError> {
    let mut find = c.prepare_cached(&format!("{SELECT} WHERE {of}"))?;
    let mut rows = find.query(values)?;
    rows.next()?.map(|row| rebuilt(row).map(|(_, message)| message)).transpose()
}

fn page(c: &Connection, sql: &str, values: &[&dyn ToSql], limit: usize) -> Result<Page, StoreError> {
    let mut find = c.prepare_cached(sql)?;
    let mut rows = find.query(values)?;
    let (mut messages, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        let (seq, message) = rebuilt(row)?;
        messages.push(message);
        last = Some(seq);
    }
    let next = last.filter(|_| messages.len() == limit);
    Ok(Page { messages, next })
}

/// One write inside the writer's transaction. Nothing is changed before everything is checked.
fn apply(c: &Connection, write: &Write) -> Result<Wrote, StoreError> {
    match write {
        Write::Submit { message, log, scopes, digest } => submit(c, message, log, scopes, digest),
        Write::Record { id, from_seq, head, log } => record(c, *id, *from_seq, head, log),
    }
}

fn submit(c: &Connection, message: &Message, log: &[Entry], scopes: &[Scope], digest: &[u8; 32]) -> Result<Wrote, StoreError> {
    let (e, h) = (&message.envelope, &message.head);
    for scope in scopes {
        let mut find = c.prepare_cached(
            "SELECT k.digest, m.id, m.ended_ms, m.seq, k.crc FROM message_keys k JOIN messages m ON m.seq = k.message
             WHERE k.owner = ?1 AND k.scope = ?2 AND k.key = ?3",
        )?;
        type Held = (Vec<u8>, [u8; 16], Option<i64>, i64, Option<i64>);
        let held: Option<Held> = find
            .query_row(params![&*scope.owner, &*scope.intent, &*scope.key], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?)))
            .optional()?;
        let Some((other, id, ended, seq, crc)) = held else { continue };
        key_sum(scope, &other, seq).check(crc, || format!("the key {} of message number {seq}", scope.key))?;
        if ended.is_some_and(|end| end.saturating_add(KEEP_MS) <= h.updated_ms) {
            free_keys(c, seq)?;
            continue;
        }
        let id = ReachId::from_bytes(id);
        return if other == digest {
            let found = message_where(c, "m.id = ?1", params![id.to_bytes()])?;
            Ok(found.map_or(Wrote::Moved, |m| Wrote::Existing(Box::new(m))))
        } else {
            Ok(Wrote::Conflict(id))
        };
    }
    if let (Some(first), n @ 1..) = (scopes.first(), as_i64(scopes.len())) {
        let mut count = c.prepare_cached("SELECT keys FROM message_owners WHERE owner = ?1")?;
        let keys: i64 = count.query_row([&*first.owner], |r| r.get(0)).optional()?.unwrap_or(0);
        if keys + n > KEY_QUOTA {
            return Ok(Wrote::Quota);
        }
        c.prepare_cached("INSERT INTO message_owners (owner, keys) VALUES (?1, ?2) ON CONFLICT (owner) DO UPDATE SET keys = keys + ?2")?
            .execute(params![&*first.owner, n])?;
    }
    let id = e.reach_id.to_bytes();
    let (owner, message_id) = (e.owner(), (!e.has_own_id()).then_some(&*e.message_id));
    let (agent, head) = (h.agent.as_ref().map(ToString::to_string), write_json(h)?);
    let changing = changing(h, agent.as_deref(), &head);
    let inserted = c
        .prepare_cached(
            "INSERT INTO messages (id, owner, message_id, at_ms, state, agent, namespace, tag, position, ended_ms, head, crc, parent)
             VALUES (:id, :owner, :message_id, :at, :state, :agent, :namespace, :tag, :position, :ended, :head, :crc, :parent) ON CONFLICT (id) DO NOTHING",
        )?
        .execute(named_params! {
            ":id": id,
            ":owner": &*owner,
            ":message_id": message_id,
            ":at": e.timestamp_ms,
            ":state": changing.state,
            ":agent": changing.agent,
            ":namespace": changing.namespace,
            ":tag": changing.tag,
            ":position": changing.position,
            ":ended": changing.ended,
            ":head": changing.head,
            ":crc": changing.sum(&id).done(),
            ":parent": e.parent_id.as_deref(),
        })?;
    if inserted == 0 {
        return Ok(Wrote::Moved);
    }
    let seq = c.last_insert_rowid();
    let body = write_json(&**e)?;
    let crc = envelope_sum(&id, &owner, message_id, e.timestamp_ms, &body).done();
    c.prepare_cached("INSERT INTO envelopes (seq, body, crc) VALUES (?1, ?2, ?3)")?.execute(params![seq, body, crc])?;
    append(c, seq, log)?;
    for scope in scopes {
        c.prepare_cached("INSERT INTO message_keys (owner, scope, key, digest, message, crc) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![&*scope.owner, &*scope.intent, &*scope.key, &digest[..], seq, key_sum(scope, &digest[..], seq).done()])?;
    }
    for (name, value) in &e.biz_tags {
        c.prepare_cached("INSERT OR IGNORE INTO message_tags (name, value, message) VALUES (?1, ?2, ?3)")?
            .execute(params![name, value, seq])?;
    }
    Ok(Wrote::Stored)
}

fn changing<'a>(h: &'a Head, agent: Option<&'a str>, head: &'a str) -> Changing<'a> {
    Changing {
        state: h.state.as_str(),
        agent,
        namespace: h.agent.as_ref().map(|a| a.namespace.as_str()),
        tag: h.tag.map(|t| t.as_str()),
        position: i64::from(h.seq),
        ended: h.state.is_terminal().then_some(h.updated_ms),
        head,
    }
}

fn record(c: &Connection, id: ReachId, from_seq: u32, h: &Head, log: &[Entry]) -> Result<Wrote, StoreError> {
    let mut change = c.prepare_cached(
        "UPDATE messages SET state = :state, agent = :agent, namespace = :namespace, tag = :tag, position = :position, ended_ms = :ended, head = :head,
         crc = :crc WHERE id = :id AND position = :from RETURNING seq",
    )?;
    let id = id.to_bytes();
    let (agent, head) = (h.agent.as_ref().map(ToString::to_string), write_json(h)?);
    let changing = changing(h, agent.as_deref(), &head);
    let seq: Option<i64> = change
        .query_row(
            named_params! {
                ":id": id,
                ":from": from_seq,
                ":state": changing.state,
                ":agent": changing.agent,
                ":namespace": changing.namespace,
                ":tag": changing.tag,
                ":position": changing.position,
                ":ended": changing.ended,
                ":head": changing.head,
                ":crc": changing.sum(&id).done(),
            },
            |r| r.get(0),
        )
        .optional()?;
    let Some(seq) = seq else { return Ok(Wrote::Moved) };
    append(c, seq, log)?;
    Ok(Wrote::Stored)
}

fn append(c: &Connection, seq: i64, log: &[Entry]) -> Result<(), StoreError> {
    let Some(first) = log.first() else { return Ok(()) };
    let entries = write_json(&log)?;
    let crc = log_sum(seq, i64::from(first.seq), &entries).done();
    c.prepare_cached("INSERT INTO message_log (message, position, entries, crc) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![seq, first.seq, entries, crc])?;
    Ok(())
}

/// Gives the keys of a message back.
fn free_keys(c: &Connection, seq: i64) -> Result<(), StoreError> {
    let owner: Option<String> =
        c.prepare_cached("SELECT owner FROM message_keys WHERE message = ?1 LIMIT 1")?.query_row([seq], |r| r.get(0)).optional()?;
    let Some(owner) = owner else { return Ok(()) };
    let n = c.prepare_cached("DELETE FROM message_keys WHERE message = ?1")?.execute([seq])?;
    c.prepare_cached("UPDATE message_owners SET keys = max(keys - ?2, 0) WHERE owner = ?1")?.execute(params![owner, as_i64(n)])?;
    Ok(())
}

fn prune(c: &Connection, now_ms: i64, keep: Retention, limit: usize) -> Result<u64, StoreError> {
    let hour_ago = now_ms - KEEP_MS;
    // counting looks at every message, so it is done only where there may be too many
    let span = "SELECT coalesce((SELECT max(seq) FROM messages) - (SELECT min(seq) FROM messages) + 1, 0)";
    let count = |sql: &str| -> Result<u64, StoreError> { Ok(u64::try_from(c.query_row(sql, [], |r| r.get::<_, i64>(0))?).unwrap_or(0)) };
    let over = match count(span)? {
        most if most <= keep.most => 0,
        _ => count("SELECT count(*) FROM messages WHERE ended_ms IS NOT NULL")?.saturating_sub(keep.most),
    };
    let mut gone: Vec<i64> = Vec::new();
    {
        let mut old = c.prepare_cached(
            "SELECT seq FROM messages WHERE ended_ms IS NOT NULL AND ended_ms < ?1
             AND ended_ms < CASE state WHEN 'dead_letter' THEN ?2 ELSE ?3 END ORDER BY ended_ms LIMIT ?4",
        )?;
        let (dead, other) = (now_ms.saturating_sub(keep.keep_dead_ms), now_ms.saturating_sub(keep.keep_ms));
        for seq in old.query_map(params![hour_ago, dead, other, as_i64(limit)], |r| r.get(0))? {
            gone.push(seq?);
        }
        if gone.len() < limit && over > gone.len() as u64 {
            let room = (limit - gone.len()).min(usize::try_from(over).unwrap_or(usize::MAX));
            let mut oldest =
                c.prepare_cached("SELECT seq FROM messages WHERE ended_ms IS NOT NULL AND ended_ms < ?1 ORDER BY ended_ms LIMIT ?2")?;
            for seq in oldest.query_map(params![hour_ago, as_i64(room)], |r| r.get(0))? {
                gone.push(seq?);
            }
            gone.sort_unstable();
            gone.dedup();
        }
    }
    for seq in &gone {
        free_keys(c, *seq)?;
        for sql in [
            "DELETE FROM message_tags WHERE message = ?1",
            "DELETE FROM message_log WHERE message = ?1",
            "DELETE FROM envelopes WHERE seq = ?1",
            "DELETE FROM messages WHERE seq = ?1",
        ] {
            c.prepare_cached(sql)?.execute([seq])?;
        }
    }
    Ok(gone.len() as u64)
}
