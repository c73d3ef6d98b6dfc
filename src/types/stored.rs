//! Messages at rest, as words: what is written, what became of it, what is listed. Shared by the store below and the dispatcher above.
//!
//! Not here: SQL, the order of writes (`dispatch::port`).

use crate::types::envelope::ReachId;
use crate::types::id::{AgentKey, Namespace};
use crate::types::message::{DeadTag, Entry, Head, Message, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How long a key outlives its message, milliseconds.
pub const KEEP_MS: i64 = 3_600_000;

/// What a key is unique in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Tenant and caller; a key of somebody else is another key.
    pub owner: Arc<str>,
    /// The intent for an idempotency key, nothing for a message id.
    pub intent: Arc<str>,
    /// The key.
    pub key: Arc<str>,
}

/// One change of one message.
#[derive(Clone, Debug)]
pub enum Write {
    /// A new message with its first log entries. Refused when a key of it is taken.
    Submit {
        /// The message after these entries.
        message: Message,
        /// Entries from the first on.
        log: Vec<Entry>,
        /// Keys it claims.
        scopes: Vec<Scope>,
        /// What it asks for (see `dispatch::dedup::digest`).
        digest: [u8; 32],
    },
    /// A change of a known message.
    Record {
        /// Which.
        id: ReachId,
        /// `head.seq` before the change.
        from_seq: u32,
        /// Head after it.
        head: Head,
        /// The new entries.
        log: Vec<Entry>,
    },
}

impl Write {
    /// The message it changes.
    pub fn id(&self) -> ReachId {
        match self {
            Self::Submit { message, .. } => message.id(),
            Self::Record { id, .. } => *id,
        }
    }

    /// The head after it.
    pub fn head(&self) -> &Head {
        match self {
            Self::Submit { message, .. } => &message.head,
            Self::Record { head, .. } => head,
        }
    }

    /// The new entries.
    pub fn log(&self) -> &[Entry] {
        match self {
            Self::Submit { log, .. } | Self::Record { log, .. } => log,
        }
    }
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrote {
    /// Durable.
    Stored,
    /// The same thing was submitted before; this is it. Nothing was written.
    Existing(Box<Message>),
    /// The key belongs to another body. Nothing was written.
    Conflict(ReachId),
    /// The caller has too many keys. Nothing was written.
    Quota,
    /// The message is not where the write expected it. Nothing was written.
    Moved,
}

/// Which messages to list. Every given part must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Sent by this tenant and caller (see `Envelope::owner`), or handled by an agent of one of `namespaces`; everything when both are `None`.
    pub owner: Option<Arc<str>>,
    /// Namespaces whose agents' messages are seen too.
    pub namespaces: Option<Vec<Namespace>>,
    /// In this state.
    pub state: Option<State>,
    /// At this agent.
    pub agent: Option<AgentKey>,
    /// Taken in at or after, milliseconds since the epoch.
    pub since_ms: Option<i64>,
    /// Taken in before.
    pub until_ms: Option<i64>,
    /// Carries all of these business tags.
    pub tags: Vec<(String, String)>,
    /// Led to by the message of this id: the parts of a broadcast, what an agent sent on.
    pub parent: Option<Arc<str>>,
    /// Given up for this reason.
    pub dead_tag: Option<DeadTag>,
    /// Cursor of the page before.
    pub after: Option<i64>,
    /// Page size, 1..=1000.
    pub limit: usize,
}

/// A page of messages, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Messages.
    pub messages: Vec<Message>,
    /// Cursor of the next page, absent at the end.
    pub next: Option<i64>,
}

/// How long ended messages stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Ended messages, from their end, milliseconds; an hour at least, so that a result can be asked for.
    pub keep_ms: i64,
    /// Dead letters, from their end, milliseconds.
    pub keep_dead_ms: i64,
    /// Most ended messages at once; the oldest beyond go first, never before their hour is over.
    pub most: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep_ms: 24 * 3_600_000, keep_dead_ms: 7 * 24 * 3_600_000, most: 5_000_000 }
    }
}
