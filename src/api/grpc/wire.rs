//! Looks at a protobuf message before it is decoded: a few bytes on the wire can be a lot of memory.
//!
//! An empty sub-message takes 2 bytes on the wire and some hundred in memory, so a message of the allowed size could still
//! fill the heap. In: the bytes and the name of their message. Out: nothing, or which limit they break. Invariant: never
//! allocates, never recurses deeper than [`MAX_DEPTH`]. Cost: one pass over the keys and lengths.
//!
//! Not here: decoding (prost), the size of the whole message (tonic's limit).

use crate::api::pb;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Deepest nesting of messages.
pub const MAX_DEPTH: usize = 16;
/// Most sub-messages in one message, at all levels.
pub const MAX_MESSAGES: usize = 20_000;
/// Most entries of lists in one message, at all levels.
pub const MAX_ENTRIES: usize = 200_000;

/// Why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They are no protobuf message.
    Malformed,
    /// Too many sub-messages or entries, or nested too deeply.
    TooMuch(&'static str),
}

struct Field {
    number: u64,
    list: bool,
    inner: Option<usize>,
}

struct Shapes {
    by_name: HashMap<String, usize>,
    shapes: Vec<Vec<Field>>,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    let set = prost_types::FileDescriptorSet::decode(pb::DESCRIPTORS).unwrap_or_default();
    let messages: Vec<_> = set.file.iter().flat_map(|f| f.message_type.iter().map(move |m| (f.package(), m))).collect();
    let by_name: HashMap<String, usize> =
        messages.iter().enumerate().map(|(i, (package, m))| (format!("{package}.{}", m.name()), i)).collect();
    let shapes = messages.iter().map(|(_, m)| {
        let fields = m.field.iter().map(|f| Field {
            number: u64::try_from(f.number()).unwrap_or_default(),
            list: f.label() == Label::Repeated,
            inner: if f.r#type() == Type::Message { by_name.get(f.type_name().trim_start_matches('.')).copied() } else { None },
        });
        fields.collect()
    });
    Shapes { shapes: shapes.collect(), by_name }
});

struct Budget {
    messages: usize,
    entries: usize,
}

/// Looks at the bytes of a message by its full name. A message that is not ours (health, reflection) has no shape and passes.
pub fn look(name: &str, bytes: &[u8]) -> Result<(), Refusal> {
    let shape = SHAPES.by_name.get(name).copied();
    walk(bytes, shape, 0, &mut Budget { messages: MAX_MESSAGES, entries: MAX_ENTRIES })
}

fn walk(mut bytes: &[u8], shape: Option<usize>, depth: usize, budget: &mut Budget) -> Result<(), Refusal> {
    if depth > MAX_DEPTH {
        return Err(Refusal::TooMuch("levels of nesting"));
    }
    let fields = shape.and_then(|i| SHAPES.shapes.get(i)).map(Vec::as_slice).unwrap_or_default();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = fields.iter().find(|f| f.number == key >> 3);
        if field.is_some_and(|f| f.list) {
            budget.entries = budget.entries.checked_sub(1).ok_or(Refusal::TooMuch("entries of lists"))?;
        }
        match key & 7 {
            0 => drop(varint(&mut bytes)?),
            1 => drop(take(&mut bytes, 8)?),
            2 => {
                let length = varint(&mut bytes)?;
                let body = take(&mut bytes, length)?;
                if let Some(inner) = field.and_then(|f| f.inner) {
                    budget.messages = budget.messages.checked_sub(1).ok_or(Refusal::TooMuch("messages inside it"))?;
                    walk(body, Some(inner), depth + 1, budget)?;
                }
            }
            5 => drop(take(&mut bytes, 4)?),
            // groups are not used, 6 and 7 do not exist
            _ => return Err(Refusal::Malformed),
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Refusal> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(Refusal::Malformed)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or_default();
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Refusal::Malformed)
}

fn take<'a>(bytes: &mut &'a [u8], n: u64) -> Result<&'a [u8], Refusal> {
    let n = usize::try_from(n).map_err(|_| Refusal::Malformed)?;
    let (body, rest) = bytes.split_at_checked(n).ok_or(Refusal::Malformed)?;
    *bytes = rest;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Name;

    fn batch(n: usize) -> Vec<u8> {
        [0x0a, 0x00].repeat(n)
    }

    #[test]
    fn real_messages_pass() {
        let request =
            pb::ResolveRequest { query: "退款".into(), k: Some(3), seed: Some(u64::MAX), max_cost: Some(0.5), ..Default::default() };
        look(&pb::ResolveRequest::full_name(), &request.encode_to_vec()).unwrap();
        let batch = pb::ResolveBatchRequest { requests: vec![request; 100] };
        look(&pb::ResolveBatchRequest::full_name(), &batch.encode_to_vec()).unwrap();
        look("other.Message", b"").unwrap();
    }

    #[test]
    fn small_on_the_wire_is_not_small() {
        let name = pb::ResolveBatchRequest::full_name();
        look(&name, &batch(MAX_MESSAGES)).unwrap();
        assert_eq!(look(&name, &batch(1_000_000)), Err(Refusal::TooMuch("messages inside it")));
        // empty tags of a manifest's only capability: entries, not messages
        let tags = [0x2a, 0x00].repeat(1_000_000);
        let capability = pb::Capability::decode(&*tags).unwrap();
        let manifest = pb::Manifest { capabilities: vec![capability], ..Default::default() };
        let register = pb::RegisterRequest { manifest: Some(manifest) }.encode_to_vec();
        assert_eq!(look(&pb::RegisterRequest::full_name(), &register), Err(Refusal::TooMuch("entries of lists")));
    }

    #[test]
    fn no_bytes_are_trusted() {
        let name = pb::RegisterRequest::full_name();
        for bad in [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0x0a], &[0xff; 11], &[0x0b], &[0x0f], &[0x0d, 1, 2], &[0x09, 1]] {
            assert_eq!(look(&name, bad), Err(Refusal::Malformed), "{bad:?}");
        }
        // text that looks like fields is not looked into
        let text = pb::ResolveRequest { query: "\n\0".repeat(500_000), ..Default::default() };
        look(&pb::ResolveRequest::full_name(), &text.encode_to_vec()).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_never_refuses_what_prost_takes(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let looked = look(&pb::ResolveBatchRequest::full_name(), &bytes);
            // groups are the one thing that prost skips and we refuse
            if pb::ResolveBatchRequest::decode(&*bytes).is_ok() && !bytes.iter().any(|b| b & 7 == 3) {
                proptest::prop_assert_eq!(looked, Ok(()));
            }
        }
    }
}
