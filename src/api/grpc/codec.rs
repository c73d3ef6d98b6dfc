//! The codec of our gRPC services: prost, behind a look at what the bytes would become in memory.
//!
//! Invariant: a message that can't be read is the caller's fault (`invalid_argument`), never ours (`internal`).

use crate::api::grpc::status::status;
use crate::api::grpc::wire::{self, Refusal};
use crate::error::{Code, Error};
use prost::bytes::Buf;
use prost::{Message, Name};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Encodes like prost; decodes like prost what [`wire::look`] lets through.
#[derive(Clone, Debug)]
pub struct BoundedCodec<T, U> {
    types: PhantomData<(T, U)>,
}

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self { types: PhantomData }
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder { message: PhantomData }
    }
}

/// Decodes one message.
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U> {
    message: PhantomData<U>,
}

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        wire::look(&U::full_name(), &bytes).map_err(|refusal| match refusal {
            Refusal::Malformed => malformed(U::NAME, "the bytes are no protobuf message"),
            Refusal::TooMuch(what) => status(&Error::new(Code::PayloadTooLarge, format!("the message {} has too many {what}", U::NAME))),
        })?;
        U::decode(bytes).map(Some).map_err(|e| malformed(U::NAME, &e.to_string()))
    }
}

fn malformed(name: &str, why: &str) -> Status {
    status(&Error::invalid_at("", format!("a message {name}"), why.to_string()))
}
