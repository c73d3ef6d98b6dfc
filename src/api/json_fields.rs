/// Fields that hold a JSON document as text in protobuf and stand as the document itself in HTTP JSON (`Message.field`).
/// Read by `build.rs` as well as by the OpenAPI document.
pub const JSON_FIELDS: &[&str] = &[
    "Manifest.attributes",
    "Capability.input_schema",
    "Capability.output_schema",
    "ResolveRequest.payload",
    "ResolveRequest.attributes",
    "Dropped.detail",
    "SubmitRequest.payload",
    "SubmitRequest.attributes",
    "Reply.data",
    "Message.payload",
    "LogEntry.detail",
    "WorkReceipt.data",
    "Work.payload",
    "AckRequest.data",
    "ReceiptRequest.partial",
];
