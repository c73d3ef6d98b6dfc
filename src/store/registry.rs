//! The registry at rest: what is registered now, every version that ever was, and to whom each id belongs.
//!
//! Invariants: the same manifest again changes nothing; each change has a generation of its own, rising by one; an id belongs to its first
//! owner for ever, deregistered or not; a body that does not match its hash is reported, never used.
//! Not here: leases and load (`live`), compiled forms (`catalog`), who may write where (`ingest`).

use super::sum::Sum;
use super::{Store, StoreError, meta};
use crate::types::{AgentKey, ContentHash, Manifest, Namespace};
use rusqlite::{Connection, OptionalExtension, Row, named_params};
use std::sync::Arc;

/// Key of the registry's generation in `meta`.
const GENERATION: &str = "registry.generation";

/// One agent as it is registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// Hash of the manifest's content.
    pub hash: ContentHash,
    /// Generation of the registry at its last change.
    pub generation: u64,
    /// Caller that registered it first; only this one may change it.
    pub owner: Arc<str>,
    /// When it was registered first, milliseconds since the epoch.
    pub registered_ms: i64,
    /// When it changed last.
    pub changed_ms: i64,
    /// Whether it takes no new work.
    pub draining: bool,
}

/// What a registration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The id was not known.
    New,
    /// It was registered with this exact content: nothing changed.
    Unchanged,
    /// Another version was registered before; it stays readable under this hash.
    Replaced(ContentHash),
    /// The owner had deregistered it and brings it back.
    Revived,
}

/// What is in the registry.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Every registered agent, by key.
    pub agents: Vec<Registered>,
    /// Agents whose stored manifest can't be used, and why. They must be registered again.
    pub damaged: Vec<(AgentKey, String)>,
    /// Generation of the registry.
    pub generation: u64,
}

/// One version of an agent's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Hash of its content.
    pub hash: ContentHash,
    /// When it was registered first.
    pub first_ms: i64,
    /// Whether it holds now.
    pub current: bool,
}

/// A change of the registry, for watchers.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which agent.
    pub key: AgentKey,
    /// Generation of the change.
    pub generation: u64,
    /// What holds now; nothing when it was deregistered.
    pub now: Option<Registered>,
}

impl Store {
    /// Registers or replaces an agent for `owner`. With `force`, an operator takes over an id of another owner.
    pub async fn register(
        &self,
        manifest: Arc<Manifest>,
        owner: &str,
        force: bool,
        now_ms: i64,
    ) -> Result<(Registration, Registered), StoreError> {
        let owner: Arc<str> = Arc::from(owner);
        let hash = ContentHash::of_manifest(&manifest);
        let body = serde_json::to_string(&*manifest).map_err(|e| StoreError::Internal(e.to_string()))?;
        self.writer.write(move |c| register(c, manifest, hash, &body, owner, force, now_ms)).await
    }

    /// Deregisters an agent: it is gone at once, its id stays with its owner. `false` when it was not registered.
    pub async fn deregister(&self, key: &AgentKey, owner: &str, force: bool, now_ms: i64) -> Result<Option<u64>, StoreError> {
        let (key, owner) = (key.clone(), owner.to_string());
        self.writer
            .write(move |c| {
                let known = match find(c, &key)? {
                    None => return Ok(None),
                    Some(row) if row.manifest.is_none() => return Ok(None),
                    Some(row) if *row.owner != *owner && !force => return Err(StoreError::OtherOwner(key.to_string())),
                    Some(row) => row,
                };
                let generation = next_generation(c)?;
                put(c, &key, &Known { manifest: None, draining: false, generation, changed_ms: now_ms, ..known })?;
                Ok(Some(unsigned(generation)))
            })
            .await
    }

    /// Sets whether an agent takes new work; its generation when that changed something.
    pub async fn set_draining(&self, key: &AgentKey, draining: bool, now_ms: i64) -> Result<Option<u64>, StoreError> {
        let key = key.clone();
        self.writer
            .write(move |c| {
                let Some(known) = find(c, &key)?.filter(|row| row.manifest.is_some() && row.draining != draining) else {
                    return Ok(None);
                };
                let generation = next_generation(c)?;
                put(c, &key, &Known { draining, generation, changed_ms: now_ms, ..known })?;
                Ok(Some(unsigned(generation)))
            })
            .await
    }

    /// Everything that is registered, ordered by key.
    pub fn load_registry(&self) -> Result<Loaded, StoreError> {
        load(&self.readers)
    }

    /// One agent, if it is registered.
    pub fn registered(&self, key: &AgentKey) -> Result<Option<Registered>, StoreError> {
        self.readers.read(|c| {
            let sql = format!("{SELECT} WHERE a.domain = ?1 AND a.namespace = ?2 AND a.agent_id = ?3");
            let mut statement = c.prepare_cached(&sql)?;
            let mut rows = statement.query((&*key.domain, key.namespace.as_str(), &*key.agent_id))?;
            match rows.next()? {
                None => Ok(None),
                Some(row) => match read(row)? {
                    Ok(change) => Ok(change.now),
                    Err((key, why)) => Err(StoreError::Damaged { path: format!("the manifest of {key}"), what: why }),
                },
            }
        })
    }

    /// Changes after `generation`, oldest first, one for each agent that changed, at most `limit`.
    pub fn registry_changes(&self, after: u64, limit: usize) -> Result<Vec<Change>, StoreError> {
        self.readers.read(|c| {
            let mut statement = c.prepare_cached(&format!("{SELECT} WHERE a.generation > ?1 ORDER BY a.generation LIMIT ?2"))?;
            let mut rows = statement.query((signed(after), i64::try_from(limit).unwrap_or(i64::MAX)))?;
            let mut changes = Vec::new();
            while let Some(row) = rows.next()? {
                if let Ok(change) = read(row)? {
                    changes.push(change);
                }
            }
            Ok(changes)
        })
    }

    /// Every version that was ever registered under an id, oldest first.
    pub fn versions(&self, key: &AgentKey) -> Result<Vec<Version>, StoreError> {
        self.readers.read(|c| {
            let mut statement = c.prepare_cached(
                "SELECT m.hash, m.first_ms, m.id IS a.manifest FROM manifests m
                 LEFT JOIN agents a ON a.domain = m.domain AND a.namespace = m.namespace AND a.agent_id = m.agent_id
                 WHERE m.domain = ?1 AND m.namespace = ?2 AND m.agent_id = ?3 ORDER BY m.id",
            )?;
            let rows = statement.query_map((&*key.domain, key.namespace.as_str(), &*key.agent_id), |row| {
                Ok(Version { hash: ContentHash(row.get(0)?), first_ms: row.get(1)?, current: row.get(2)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// One version of an agent's manifest.
    pub fn manifest_version(&self, key: &AgentKey, hash: &ContentHash) -> Result<Option<Arc<Manifest>>, StoreError> {
        let body: Option<String> = self.readers.read(|c| {
            Ok(c.prepare_cached("SELECT body FROM manifests WHERE domain = ?1 AND namespace = ?2 AND agent_id = ?3 AND hash = ?4")?
                .query_row((&*key.domain, key.namespace.as_str(), &*key.agent_id, &hash.0), |row| row.get(0))
                .optional()?)
        })?;
        match body {
            None => Ok(None),
            Some(body) => match parse(&body, hash) {
                Ok(manifest) => Ok(Some(Arc::new(manifest))),
                Err(what) => Err(StoreError::Damaged { path: format!("version {hash} of {key}"), what }),
            },
        }
    }

    /// Generation of the registry: rises by one with each change.
    pub fn registry_generation(&self) -> Result<u64, StoreError> {
        self.readers.read(generation).map(unsigned)
    }
}

/// What is known of an id, registered or not.
struct Known {
    owner: String,
    manifest: Option<i64>,
    hash: Option<ContentHash>,
    generation: i64,
    registered_ms: i64,
    changed_ms: i64,
    draining: bool,
}

impl Known {
    fn sum(&self, key: &AgentKey) -> Sum {
        Sum::default()
            .text(&key.domain)
            .text(key.namespace.as_str())
            .text(&key.agent_id)
            .text(&self.owner)
            .maybe_number(self.manifest)
            .number(self.generation)
            .number(self.registered_ms)
            .number(self.changed_ms)
            .number(i64::from(self.draining))
    }
}

fn find(c: &Connection, key: &AgentKey) -> Result<Option<Known>, StoreError> {
    let mut statement = c.prepare_cached(
        "SELECT a.owner, a.manifest, m.hash, a.generation, a.registered_ms, a.changed_ms, a.draining, a.crc
         FROM agents a LEFT JOIN manifests m ON m.id = a.manifest WHERE a.domain = ?1 AND a.namespace = ?2 AND a.agent_id = ?3",
    )?;
    let row = statement.query_row((&*key.domain, key.namespace.as_str(), &*key.agent_id), |row| {
        let known = Known {
            owner: row.get(0)?,
            manifest: row.get(1)?,
            hash: row.get::<_, Option<[u8; 32]>>(2)?.map(ContentHash),
            generation: row.get(3)?,
            registered_ms: row.get(4)?,
            changed_ms: row.get(5)?,
            draining: row.get(6)?,
        };
        Ok((known, row.get::<_, Option<i64>>(7)?))
    });
    let Some((known, crc)) = row.optional()? else { return Ok(None) };
    known.sum(key).check(crc, || format!("the registration of {key}"))?;
    Ok(Some(known))
}

/// Writes the row of an id.
fn put(c: &Connection, key: &AgentKey, row: &Known) -> Result<(), StoreError> {
    c.prepare_cached(
        "INSERT INTO agents (domain, namespace, agent_id, owner, manifest, generation, registered_ms, changed_ms, draining, crc)
         VALUES (:d, :n, :a, :owner, :manifest, :generation, :registered, :changed, :draining, :crc)
         ON CONFLICT (domain, namespace, agent_id) DO UPDATE SET owner = excluded.owner, manifest = excluded.manifest,
             generation = excluded.generation, registered_ms = excluded.registered_ms, changed_ms = excluded.changed_ms,
             draining = excluded.draining, crc = excluded.crc",
    )?
    .execute(named_params! {
        ":d": &*key.domain, ":n": key.namespace.as_str(), ":a": &*key.agent_id,
        ":owner": row.owner, ":manifest": row.manifest, ":generation": row.generation, ":registered": row.registered_ms,
        ":changed": row.changed_ms, ":draining": row.draining, ":crc": row.sum(key).done(),
    })?;
    Ok(())
}

fn register(
    c: &Connection,
    manifest: Arc<Manifest>,
    hash: ContentHash,
    body: &str,
    owner: Arc<str>,
    force: bool,
    now_ms: i64,
) -> Result<(Registration, Registered), StoreError> {
    let key = manifest.key();
    let known = find(c, &key)?;
    if let Some(known) = &known
        && *known.owner != *owner
        && !force
    {
        return Err(StoreError::OtherOwner(key.to_string()));
    }
    let what = match &known {
        None => Registration::New,
        Some(known) => match known.hash {
            None => Registration::Revived,
            Some(old) if old == hash => {
                let same = Registered {
                    manifest,
                    hash,
                    generation: unsigned(known.generation),
                    owner: Arc::from(known.owner.as_str()),
                    registered_ms: known.registered_ms,
                    changed_ms: known.changed_ms,
                    draining: known.draining,
                };
                return Ok((Registration::Unchanged, same));
            }
            Some(old) => Registration::Replaced(old),
        },
    };
    let place =
        named_params! {":d": &*key.domain, ":n": key.namespace.as_str(), ":a": &*key.agent_id, ":h": &hash.0, ":b": body, ":t": now_ms};
    // the body is written again with its hash, so that a damaged row heals
    let id: i64 = c
        .prepare_cached(
            "INSERT INTO manifests (domain, namespace, agent_id, hash, body, first_ms) VALUES (:d, :n, :a, :h, :b, :t)
             ON CONFLICT (domain, namespace, agent_id, hash) DO UPDATE SET body = excluded.body RETURNING id",
        )?
        .query_row(place, |row| row.get(0))?;
    let generation = next_generation(c)?;
    let registered_ms = known.as_ref().map_or(now_ms, |k| k.registered_ms);
    let draining = known.is_some_and(|k| k.draining);
    let row =
        Known { owner: owner.to_string(), manifest: Some(id), hash: Some(hash), generation, registered_ms, changed_ms: now_ms, draining };
    put(c, &key, &row)?;
    Ok((what, Registered { manifest, hash, generation: unsigned(generation), owner, registered_ms, changed_ms: now_ms, draining }))
}

const SELECT: &str =
    "SELECT a.domain, a.namespace, a.agent_id, a.owner, a.generation, a.registered_ms, a.changed_ms, a.draining, m.hash, m.body, a.manifest, a.crc
     FROM agents a LEFT JOIN manifests m ON m.id = a.manifest";

type Faulty = (AgentKey, String);

/// Reads a row of [`SELECT`]; the inner error is a row that can't be used.
fn read(row: &Row<'_>) -> Result<Result<Change, Faulty>, StoreError> {
    let (domain, namespace, agent_id): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let namespace = Namespace::new(&namespace).map_err(|_| StoreError::Row {
        row: format!("the registration of {namespace}/{agent_id}"),
        what: "its namespace is none".into(),
    })?;
    let key = AgentKey { domain: Arc::from(domain), namespace, agent_id: Arc::from(agent_id) };
    let generation = unsigned(row.get(4)?);
    let hash: Option<[u8; 32]> = row.get(8)?;
    let body: Option<String> = row.get(9)?;
    let known = Known {
        owner: row.get(3)?,
        manifest: row.get(10)?,
        hash: None,
        generation: row.get(4)?,
        registered_ms: row.get(5)?,
        changed_ms: row.get(6)?,
        draining: row.get(7)?,
    };
    if known.sum(&key).check(row.get(11)?, String::new).is_err() {
        return Ok(Err((key, "the checksum of its registration is wrong; restore a copy of the data folder".into())));
    }
    if known.manifest.is_some() && hash.is_none() {
        return Ok(Err((key, "its manifest is gone".into())));
    }
    let now = match (hash.map(ContentHash), body) {
        (Some(hash), Some(body)) => match parse(&body, &hash) {
            Ok(manifest) if manifest.key() == key => Some(Registered {
                manifest: Arc::new(manifest),
                hash,
                generation,
                owner: Arc::from(known.owner),
                registered_ms: known.registered_ms,
                changed_ms: known.changed_ms,
                draining: known.draining,
            }),
            Ok(_) => return Ok(Err((key, "it names another agent".into()))),
            Err(why) => return Ok(Err((key, why))),
        },
        _ => None,
    };
    Ok(Ok(Change { key, generation, now }))
}

/// The hash is that of the stored value, not of what today's types make of it: old rows stay sound when a field is added.
fn parse(body: &str, hash: &ContentHash) -> Result<Manifest, String> {
    let value: serde_json::Value = serde_json::from_str(body).map_err(|e| e.to_string())?;
    if ContentHash::of_value(&value) != *hash {
        return Err("its content does not match its hash".into());
    }
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn generation(c: &Connection) -> Result<i64, StoreError> {
    Ok(meta::get(c, GENERATION)?.and_then(|t| t.parse().ok()).unwrap_or(0))
}

fn next_generation(c: &Connection) -> Result<i64, StoreError> {
    let next = generation(c)? + 1;
    meta::set(c, GENERATION, &next.to_string())?;
    Ok(next)
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Everything that is registered, by any reader.
pub(super) fn load(readers: &super::readers::Readers) -> Result<Loaded, StoreError> {
    readers.read(|c| {
        let mut loaded = Loaded { generation: unsigned(generation(c)?), ..Loaded::default() };
        let mut statement = c.prepare(&format!("{SELECT} ORDER BY a.domain, a.namespace, a.agent_id"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            match read(row)? {
                Ok(change) => loaded.agents.extend(change.now),
                Err((key, why)) => loaded.damaged.push((key, why)),
            }
        }
        Ok(loaded)
    })
}
