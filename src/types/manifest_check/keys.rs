//! What may stand in a manifest: every key with its shape, its default and one line about it.
//!
//! One table serves three readers: the walker that checks a document, the published JSON Schema and `docs/manifest.md`.
//! Not here: rules between keys (`cross`).

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Text of 1 to `max` characters; cleaned.
    Text {
        /// Largest number of characters.
        max: usize,
    },
    /// A name in a fixed alphabet, kept as written.
    Name(Name),
    /// One of a few words.
    Word(&'static [&'static str]),
    /// A whole number.
    Integer {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A number.
    Number {
        /// Smallest.
        min: f64,
        /// Whether `min` itself is refused.
        above: bool,
        /// Largest.
        max: f64,
    },
    /// `true` or `false`.
    Bool,
    /// A duration, milliseconds.
    Span {
        /// Shortest.
        min_ms: u64,
        /// Longest.
        max_ms: u64,
        /// Whether the word `none` is allowed.
        or_none: bool,
    },
    /// A URL (http, https).
    Url,
    /// An address whose scheme depends on the protocol beside it.
    Address,
    /// `HH:MM`.
    Minute,
    /// An IANA time zone.
    TimeZone,
    /// One text, or a text for each language.
    Texts {
        /// Largest number of characters of one.
        max: usize,
    },
    /// A list of example texts, or one for each language.
    Examples {
        /// Most examples in all.
        items: usize,
        /// Largest number of characters of one.
        max: usize,
    },
    /// A list of tags; folded, each once.
    Tags,
    /// A list.
    List {
        /// Shape of each item.
        item: &'static Shape,
        /// Fewest items.
        min: usize,
        /// Most items.
        max: usize,
    },
    /// An object with known keys.
    Object(&'static Table),
    /// Free attributes: text, number, bool or list of texts.
    Attributes,
    /// A JSON Schema, or a reference `schema://…`.
    Schema,
}

/// Alphabets of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Domain or agent id.
    AgentId,
    /// Namespace.
    Namespace,
    /// Namespace or `*`.
    Grant,
    /// Capability name.
    Intent,
    /// Region glob; lower case.
    Region,
    /// Scope.
    Scope,
}

impl Name {
    /// The same as a regular expression, for the published schema.
    pub fn pattern(self) -> &'static str {
        match self {
            Self::AgentId => "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$",
            Self::Namespace => "^[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,7}$",
            Self::Grant => "^(\\*|[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,7})$",
            Self::Intent => "^[\\p{L}\\p{N}]([\\p{L}\\p{N}\\p{M}_. :/-]{0,126}[\\p{L}\\p{N}\\p{M}])?$",
            Self::Region => "^[A-Za-z0-9*?_.-]{1,64}$",
            Self::Scope => "^[A-Za-z0-9][A-Za-z0-9_.:/*-]{0,127}$",
        }
    }
}

/// One key of an object.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name.
    pub name: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// What it must look like.
    pub shape: Shape,
    /// What holds when it is absent, as JSON; empty when there is no such thing.
    pub default: &'static str,
    /// One line about it.
    pub doc: &'static str,
}

/// The keys of one object.
#[derive(Debug)]
pub struct Table {
    /// Name of the object, for messages and for the schema.
    pub name: &'static str,
    /// One line about it.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, shape: Shape, default: &'static str, doc: &'static str) -> Key {
    Key { name, required: false, shape, default, doc }
}

const fn must(name: &'static str, shape: Shape, doc: &'static str) -> Key {
    Key { name, required: true, shape, default: "", doc }
}

const SHORT: Shape = Shape::Text { max: 200 };
const LABEL: Shape = Shape::Text { max: 64 };
const PLACE: Shape = Shape::Text { max: 300 };
const LABELS: Shape = Shape::List { item: &LABEL, min: 0, max: 50 };
const INTENT: Shape = Shape::Name(Name::Intent);
const SCOPE: Shape = Shape::Name(Name::Scope);
const REGION: Shape = Shape::Name(Name::Region);
const GRANT: Shape = Shape::Name(Name::Grant);
const DAY: Shape = Shape::Word(&crate::types::manifest::DAYS);
const DAY_MS: u64 = 86_400_000;

/// A manifest.
pub static MANIFEST: Table = Table {
    name: "manifest",
    doc: "One agent: what it is, how it is reached and what it can do.",
    keys: &[
        key(
            "domain",
            Shape::Word(&["local"]),
            "\"local\"",
            "Administrative domain: only `local`, this node's own; agents of other domains register at a node of theirs.",
        ),
        must("namespace", Shape::Name(Name::Namespace), "Owning namespace: lower-case segments joined by `/`; compared by exact segments."),
        must("agent_id", Shape::Name(Name::AgentId), "Id inside the namespace."),
        key("agent_version", LABEL, "", "Version of the agent, free text."),
        key("owner", SHORT, "", "Team or person that owns it."),
        key("contact", SHORT, "", "How to reach the owner."),
        key("description", Shape::Texts { max: 4000 }, "", "What the agent is as a whole."),
        must("endpoints", Shape::List { item: &Shape::Object(&ENDPOINT), min: 1, max: 20 }, "Where and how it is called."),
        key("health_check", Shape::Object(&HEALTH_CHECK), "", "Where its health can be asked; used when it does not heartbeat."),
        key(
            "ttl",
            Shape::Span { min_ms: 1000, max_ms: DAY_MS, or_none: true },
            "\"30s\"",
            "Lease: without a heartbeat inside it the agent is gone. `none` = static, never expires.",
        ),
        key("max_queue_depth", Shape::Integer { min: 1, max: 1_000_000 }, "1000", "Messages that may wait for it."),
        key("concurrency", Shape::Integer { min: 1, max: 100_000 }, "5", "Calls it takes at once."),
        key("timeouts", Shape::Object(&TIMEOUTS), "", "Timeouts it suggests."),
        key("retry", Shape::Object(&RETRY), "", "Its own retry policy."),
        key("notification_endpoint", Shape::Url, "", "Where it wants to be told of results and alarms."),
        key(
            "attributes",
            Shape::Attributes,
            "",
            "Free attributes that queries can select by: text, number, true/false or a list of texts.",
        ),
        key(
            "visible_to",
            Shape::List { item: &GRANT, min: 0, max: 100 },
            "",
            "Namespaces it is granted to, beside its own; `*` = all. Those that the credential does not cover need its scope `publish`, or `publish:NAMESPACE`.",
        ),
        key("tags", Shape::Tags, "", "Tags; `code_review` and `code-review` are the same."),
        must("capabilities", Shape::List { item: &Shape::Object(&CAPABILITY), min: 1, max: 500 }, "What it can do."),
    ],
};

/// A capability.
pub static CAPABILITY: Table = Table {
    name: "capability",
    doc: "One thing an agent can do.",
    keys: &[
        must("intent", INTENT, "Name, best in snake_case; matching folds case, `_`, `-` and camelCase."),
        key("aliases", Shape::List { item: &INTENT, min: 0, max: 30 }, "", "Other names."),
        must(
            "description",
            Shape::Texts { max: 4000 },
            "What it does: one text (its language is told by its script) or one for each language.",
        ),
        key("examples", Shape::Examples { items: 200, max: 2000 }, "", "Requests it serves, in the caller's words."),
        key("tags", Shape::Tags, "", "Tags."),
        key("input_schema", Shape::Schema, "", "JSON Schema of the payload, or `schema://folder/name.json`."),
        key("output_schema", Shape::Schema, "", "JSON Schema of the result, or a reference."),
        key("rate_limit", Shape::Object(&RATE_LIMIT), "", "Calls it takes."),
        key("cost", Shape::Number { min: 0.0, above: false, max: 1e12 }, "", "Price of one call in a free unit."),
        key("latency_hint", Shape::Span { min_ms: 1, max_ms: DAY_MS, or_none: false }, "", "Typical duration, until it has been measured."),
        key("hours", Shape::Object(&HOURS), "", "When it is open; always when absent."),
        key("regions", Shape::List { item: &REGION, min: 0, max: 50 }, "", "Regions it serves, as globs (`cn-*`); everywhere when empty."),
        key("scopes", Shape::List { item: &SCOPE, min: 0, max: 50 }, "", "Scopes a caller needs, all of them."),
        key("idempotent", Shape::Bool, "false", "Whether doing it twice is the same as once."),
        key("state_machine", Shape::Object(&STATE_MACHINE), "", "How to read the states of a service that is polled."),
        key("compensate", INTENT, "", "The capability that undoes this one."),
        key("rest", Shape::Object(&REST), "", "How an existing REST service is called for it, instead of with the whole delivery."),
        key("tool", Shape::Text { max: 128 }, "", "Name of the tool at an `mcp` endpoint; the intent when absent."),
    ],
};

/// One line of the flat form.
pub static FLAT: Table = Table {
    name: "flat line",
    doc: "One capability a line; lines of one namespace and agent_id make one static agent that pulls its work.",
    keys: &[
        must("agent_id", Shape::Name(Name::AgentId), "Id of the agent."),
        must("namespace", Shape::Name(Name::Namespace), "Its namespace."),
        must("capability", INTENT, "Name of the capability."),
        key("description", Shape::Texts { max: 4000 }, "", "What it does."),
        key("tags", Shape::Tags, "", "Tags."),
        key("examples", Shape::Examples { items: 200, max: 2000 }, "", "Requests it serves."),
        key("input_schema", Shape::Schema, "", "JSON Schema of the payload."),
    ],
};

static ENDPOINT: Table = Table {
    name: "endpoint",
    doc: "One way to reach an agent.",
    keys: &[
        must(
            "protocol",
            Shape::Word(&["http", "grpc", "pull", "mcp"]),
            "`http`, `grpc` (`agentreach.v1.Worker`) and `mcp` (streamable HTTP) are called at their address; with `pull` the agent fetches its work.",
        ),
        key("address", Shape::Address, "", "URL; required except for `pull`, which has none."),
        key("weight", Shape::Integer { min: 1, max: 10_000 }, "100", "Share among the endpoints."),
    ],
};

static HEALTH_CHECK: Table = Table {
    name: "health_check",
    doc: "Where the health of an agent is asked.",
    keys: &[
        must("address", Shape::Url, "URL that answers 2xx when the agent works."),
        key(
            "interval",
            Shape::Span { min_ms: 1000, max_ms: DAY_MS, or_none: false },
            "",
            "Pause between probes; left out, the one of the node (`live.probe_interval`).",
        ),
    ],
};

static TIMEOUTS: Table = Table {
    name: "timeouts",
    doc: "Timeouts an agent suggests.",
    keys: &[
        key("connect", Shape::Span { min_ms: 1, max_ms: 600_000, or_none: false }, "", "To connect."),
        key("processing", Shape::Span { min_ms: 1, max_ms: DAY_MS, or_none: false }, "", "From accepted to done."),
    ],
};

static RETRY: Table = Table {
    name: "retry",
    doc: "An agent's own retry policy.",
    keys: &[
        key("max_attempts", Shape::Integer { min: 1, max: 10 }, "5", "Attempts in all."),
        key("base", Shape::Span { min_ms: 1, max_ms: 3_600_000, or_none: false }, "\"200ms\"", "First delay."),
        key("max", Shape::Span { min_ms: 1, max_ms: 3_600_000, or_none: false }, "\"5s\"", "Largest delay."),
        key("jitter", Shape::Number { min: 0.0, above: false, max: 1.0 }, "0.25", "Random share added."),
    ],
};

static RATE_LIMIT: Table = Table {
    name: "rate_limit",
    doc: "A token bucket.",
    keys: &[
        must("per_second", Shape::Number { min: 0.0, above: true, max: 1e6 }, "Calls a second."),
        key("burst", Shape::Integer { min: 1, max: 1_000_000 }, "", "Calls at once; `per_second` rounded up when absent."),
    ],
};

static STATE_MACHINE: Table = Table {
    name: "state_machine",
    doc: "Which words of a polled state mean what.",
    keys: &[
        key("processing", LABELS, "[]", "Still at work: ask again."),
        key("retryable", LABELS, "[]", "Failed, may be tried again."),
        key("failed", LABELS, "[]", "Failed for good."),
    ],
};

static REST: Table = Table {
    name: "rest",
    doc: "How a call to an existing REST service is made of a payload, and a result of its answer. Places in a document are JSON pointers, such as `/order/id`.",
    keys: &[
        key("method", Shape::Word(&["get", "post", "put", "patch", "delete"]), "\"post\"", "HTTP method."),
        must("path", PLACE, "Path behind the endpoint's address; `{name}` is the payload's field of that name."),
        key(
            "fields",
            Shape::List { item: &Shape::Object(&REST_FIELD), min: 0, max: 100 },
            "",
            "Fields of the body; the payload itself when absent.",
        ),
        key("query", Shape::List { item: &Shape::Object(&REST_FIELD), min: 0, max: 100 }, "", "Query parameters."),
        key("auth", Shape::Object(&REST_AUTH), "", "Header with a secret that the operator holds."),
        key("answer", Shape::Object(&REST_ANSWER), "", "How success and result are read; by the usual signs when absent."),
        key(
            "poll",
            Shape::Object(&REST_POLL),
            "",
            "The answer is a task that is asked about until it is over; `state_machine` says which states mean what.",
        ),
    ],
};

static REST_FIELD: Table = Table {
    name: "rest field",
    doc: "One field of a call.",
    keys: &[must("to", LABEL, "Its name in the call."), must("from", PLACE, "Where it stands in the payload.")],
};

static REST_AUTH: Table = Table {
    name: "rest auth",
    doc: "A header with a secret.",
    keys: &[
        must("header", LABEL, "Name of the header, such as `authorization`."),
        must(
            "secret",
            Shape::Name(Name::AgentId),
            "Name of the secret under `outbound.secrets`; it is sent only to the addresses that are named there.",
        ),
    ],
};

static REST_ANSWER: Table = Table {
    name: "rest answer",
    doc: "How an answer is read.",
    keys: &[
        key("field", PLACE, "", "The field that tells."),
        key("good", LABELS, "", "Its values that mean success, as text (`0`, `true`, `OK`)."),
        key("retryable", LABELS, "", "Its values that mean \"try again\"."),
        key("message", PLACE, "", "The words of an error."),
        key("data", PLACE, "", "The result; the whole answer when absent."),
    ],
};

static REST_POLL: Table = Table {
    name: "rest poll",
    doc: "How a task is asked about.",
    keys: &[
        must("path", PLACE, "Path behind the endpoint's address; `{name}` is the first answer's field of that name."),
        must("state", PLACE, "Where its state stands in the answer."),
        key("every", Shape::Span { min_ms: 50, max_ms: 3_600_000, or_none: false }, "\"1s\"", "Pause between two looks."),
    ],
};

static HOURS: Table = Table {
    name: "hours",
    doc: "When a capability is open, by the wall clock of one time zone.",
    keys: &[
        must("time_zone", Shape::TimeZone, "IANA time zone, such as `Asia/Shanghai`."),
        must("windows", Shape::List { item: &Shape::Object(&WINDOW), min: 1, max: 50 }, "Open when any window is."),
    ],
};

static WINDOW: Table = Table {
    name: "window",
    doc: "One daily window.",
    keys: &[
        key(
            "days",
            Shape::List { item: &DAY, min: 1, max: 7 },
            "[\"mon\",\"tue\",\"wed\",\"thu\",\"fri\",\"sat\",\"sun\"]",
            "Days it begins on.",
        ),
        must("from", Shape::Minute, "First minute, `HH:MM`."),
        must("to", Shape::Minute, "Last minute, inclusive; earlier than `from` = past midnight."),
    ],
};

/// Every table, in the order of the documentation.
pub static TABLES: [&Table; 16] = [
    &MANIFEST,
    &ENDPOINT,
    &HEALTH_CHECK,
    &TIMEOUTS,
    &RETRY,
    &CAPABILITY,
    &RATE_LIMIT,
    &HOURS,
    &WINDOW,
    &STATE_MACHINE,
    &REST,
    &REST_FIELD,
    &REST_AUTH,
    &REST_ANSWER,
    &REST_POLL,
    &FLAT,
];
