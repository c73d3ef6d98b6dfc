//! The table of HTTP routes: the router and the OpenAPI document are both made from it, so that neither can lack one.

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Registers a manifest.
    Register,
    /// Lists agents.
    List,
    /// Shows an agent.
    Get,
    /// Removes an agent.
    Deregister,
    /// Renews a lease.
    Heartbeat,
    /// Takes an agent out of new work, or back into it.
    Drain,
    /// Resolves one request.
    Resolve,
    /// Resolves several.
    ResolveBatch,
    /// Streams changes of the registry.
    Watch,
    /// Takes in a message.
    Submit,
    /// Lists messages.
    Messages,
    /// Shows a message, or follows it.
    Message,
    /// Calls a message off.
    Cancel,
    /// The agent has done it.
    Ack,
    /// The agent has not done it.
    Nack,
    /// Another receipt of the agent.
    Receipt,
    /// Lists dead letters.
    DeadLetters,
    /// Delivers dead letters once more.
    Replay,
    /// What delivery does now.
    Stats,
    /// Shows the policy in force and its versions.
    Policy,
    /// Puts a change of the policy in force, or rolls back.
    ChangePolicy,
    /// Shows the models in use, and how far a swap is.
    Models,
    /// Prepares, makes, undoes or drops a swap of models.
    SwapModels,
    /// Takes outcomes.
    Report,
    /// Shows outcomes.
    Outcomes,
    /// Forgets outcomes.
    Forget,
    /// Whether the process lives.
    Health,
    /// Whether a query can be answered.
    Ready,
    /// Metrics.
    Metrics,
    /// This interface, described.
    OpenApi,
}

/// One route.
pub struct Route {
    /// What it does.
    pub op: Op,
    /// HTTP method.
    pub method: &'static str,
    /// Path; parts in braces are parameters.
    pub path: &'static str,
    /// Message of the body; empty = none.
    pub body: &'static str,
    /// Message of the answer; empty = described by `answers`.
    pub answer: &'static str,
    /// Names of query parameters, which are fields of the named message.
    pub query: (&'static str, &'static [&'static str]),
    /// Media type of the answer.
    pub media: &'static str,
    /// Whether it is answered without a token.
    pub open: bool,
    /// One sentence.
    pub summary: &'static str,
}

const JSON: &str = "application/json";
const NONE: (&str, &[&str]) = ("", &[]);

/// Every route.
pub const ROUTES: &[Route] = &[
    Route {
        op: Op::Register,
        method: "POST",
        path: "/v1/agents",
        body: "Manifest",
        answer: "RegisterResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Registers an agent or a new version of it. The same manifest again changes nothing.",
    },
    Route {
        op: Op::List,
        method: "GET",
        path: "/v1/agents",
        body: "",
        answer: "ListResponse",
        query: ("ListRequest", &["namespace", "tag", "capability", "limit", "after"]),
        media: JSON,
        open: false,
        summary: "Lists agents, page by page.",
    },
    Route {
        op: Op::Get,
        method: "GET",
        path: "/v1/agents/{namespace}/{agent_id}",
        body: "",
        answer: "AgentState",
        query: ("GetRequest", &["version"]),
        media: JSON,
        open: false,
        summary: "Shows one agent.",
    },
    Route {
        op: Op::Deregister,
        method: "DELETE",
        path: "/v1/agents/{namespace}/{agent_id}",
        body: "",
        answer: "DeregisterResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Removes an agent. Its id stays with its owner.",
    },
    Route {
        op: Op::Heartbeat,
        method: "POST",
        path: "/v1/agents/{namespace}/{agent_id}/heartbeat",
        body: "HeartbeatRequest",
        answer: "AgentState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Renews the lease and reports load.",
    },
    Route {
        op: Op::Drain,
        method: "POST",
        path: "/v1/agents/{namespace}/{agent_id}/drain",
        body: "DrainRequest",
        answer: "AgentState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Takes an agent out of new work, or back into it.",
    },
    Route {
        op: Op::Resolve,
        method: "POST",
        path: "/v1/resolve",
        body: "ResolveRequest",
        answer: "ResolveResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Resolves one request.",
    },
    Route {
        op: Op::ResolveBatch,
        method: "POST",
        path: "/v1/resolve/batch",
        body: "ResolveBatchRequest",
        answer: "ResolveBatchResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Resolves several requests; answers stand in their order.",
    },
    Route {
        op: Op::Watch,
        method: "GET",
        path: "/v1/watch",
        body: "",
        answer: "RegistryEvent",
        query: NONE,
        media: "text/event-stream",
        open: false,
        summary: "Streams what is there and then each change, one event each.",
    },
    Route {
        op: Op::Submit,
        method: "POST",
        path: "/v1/messages",
        body: "SubmitRequest",
        answer: "Reply",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Takes in a message, durably, and waits for the result: 200 when it is over, 202 while it goes on. `X-Callback` names a callback, `Idempotency-Key` the key; `Accept: text/event-stream` follows it instead.",
    },
    Route {
        op: Op::Messages,
        method: "GET",
        path: "/v1/messages",
        body: "",
        answer: "ListMessagesResponse",
        query: ("ListMessagesRequest", &["state", "agent", "since", "until", "dead_tag", "parent_id", "limit", "after", "tag.*"]),
        media: JSON,
        open: false,
        summary: "Lists messages, newest first, without payload and log.",
    },
    Route {
        op: Op::Message,
        method: "GET",
        path: "/v1/messages/{message_id}",
        body: "",
        answer: "Message",
        query: ("GetMessageRequest", &["caller", "tenant"]),
        media: JSON,
        open: false,
        summary: "The whole life of a message; with `Accept: text/event-stream` it is followed until it is over.",
    },
    Route {
        op: Op::Cancel,
        method: "POST",
        path: "/v1/messages/{message_id}/cancel",
        body: "CancelRequest",
        answer: "Reply",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Calls a message off.",
    },
    Route {
        op: Op::Ack,
        method: "POST",
        path: "/v1/messages/{message_id}/ack",
        body: "AckRequest",
        answer: "ReceiptReply",
        query: NONE,
        media: JSON,
        open: false,
        summary: "The agent has done it.",
    },
    Route {
        op: Op::Nack,
        method: "POST",
        path: "/v1/messages/{message_id}/nack",
        body: "NackRequest",
        answer: "ReceiptReply",
        query: NONE,
        media: JSON,
        open: false,
        summary: "The agent has not done it: another attempt may help, or not, or it is not its work.",
    },
    Route {
        op: Op::Receipt,
        method: "POST",
        path: "/v1/messages/{message_id}/receipt",
        body: "ReceiptRequest",
        answer: "ReceiptReply",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Other receipts of the agent: delivered, accepted, progress.",
    },
    Route {
        op: Op::DeadLetters,
        method: "GET",
        path: "/v1/dead-letters",
        body: "",
        answer: "ListMessagesResponse",
        query: ("ListMessagesRequest", &["state", "agent", "since", "until", "dead_tag", "parent_id", "limit", "after", "tag.*"]),
        media: JSON,
        open: false,
        summary: "Lists dead letters, newest first.",
    },
    Route {
        op: Op::Replay,
        method: "POST",
        path: "/v1/dead-letters/replay",
        body: "ReplayRequest",
        answer: "ReplayResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Delivers dead letters once more, each as a reach of its own.",
    },
    Route {
        op: Op::Stats,
        method: "GET",
        path: "/v1/stats",
        body: "",
        answer: "StatsResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "What delivery does now: queues, breakers, counts.",
    },
    Route {
        op: Op::Policy,
        method: "GET",
        path: "/v1/admin/policy",
        body: "",
        answer: "PolicyState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Shows the policy in force and its versions. Needs the scope `admin`.",
    },
    Route {
        op: Op::ChangePolicy,
        method: "POST",
        path: "/v1/admin/policy",
        body: "PolicyRequest",
        answer: "PolicyState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Puts a change of the policy in force, or rolls back. Needs the scope `admin`.",
    },
    Route {
        op: Op::Models,
        method: "GET",
        path: "/v1/admin/models",
        body: "",
        answer: "ModelsState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Shows the models in use, and how far a swap is. Needs the scope `admin`.",
    },
    Route {
        op: Op::SwapModels,
        method: "POST",
        path: "/v1/admin/models",
        body: "ModelsRequest",
        answer: "ModelsState",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Prepares, makes, undoes or drops a swap of models. Needs the scope `admin`.",
    },
    Route {
        op: Op::Report,
        method: "POST",
        path: "/v1/feedback",
        body: "ReportRequest",
        answer: "ReportResponse",
        query: NONE,
        media: JSON,
        open: false,
        summary: "Takes outcomes of decisions; answers stand in their order.",
    },
    Route {
        op: Op::Outcomes,
        method: "GET",
        path: "/v1/feedback",
        body: "",
        answer: "ListOutcomesResponse",
        query: ("ListOutcomesRequest", &["agent", "capability", "reporter", "limit", "after"]),
        media: JSON,
        open: false,
        summary: "Shows outcomes, newest first, page by page.",
    },
    Route {
        op: Op::Forget,
        method: "DELETE",
        path: "/v1/feedback",
        body: "",
        answer: "ForgetResponse",
        query: ("ForgetRequest", &["agent", "capability", "reporter", "id"]),
        media: JSON,
        open: false,
        summary: "Forgets outcomes and everything learned from them.",
    },
    Route {
        op: Op::Health,
        method: "GET",
        path: "/health",
        body: "",
        answer: "",
        query: NONE,
        media: JSON,
        open: true,
        summary: "Whether the process lives.",
    },
    Route {
        op: Op::Ready,
        method: "GET",
        path: "/ready",
        body: "",
        answer: "",
        query: NONE,
        media: JSON,
        open: true,
        summary: "Whether a built-in query was really answered.",
    },
    Route {
        op: Op::Metrics,
        method: "GET",
        path: "/metrics",
        body: "",
        answer: "",
        query: NONE,
        media: "text/plain; version=0.0.4",
        open: true,
        summary: "Metrics in the Prometheus text format.",
    },
    Route {
        op: Op::OpenApi,
        method: "GET",
        path: "/openapi.json",
        body: "",
        answer: "",
        query: NONE,
        media: JSON,
        open: true,
        summary: "This document.",
    },
];
