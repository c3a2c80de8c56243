//! Kafka's protocol: every API in every version from 0 up, their headers and frames, and the records that are
//! stored in logs with the same encoding. The messages are generated from the facts in `schema/`.
//!
//! This crate does no I/O, reads no clock and knows no runtime. It must never panic on the bytes it is given,
//! never allocate out of proportion to them ([`Reader`] has the rules), never copy record payloads, and never
//! decide what an answer should say.

mod api_key;
#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
mod error;
mod frame;
mod header;
mod json;
mod message;
mod reader;
mod stored;
mod writer;

pub use api_key::{ApiKey, ListenerKind};
pub use error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
pub use frame::{Chunk, Frame, decode_response, encode_request, encode_response};
pub use header::{HeaderPeek, RequestHeader};
pub use json::JsonView;
pub use message::{CoordinatorKey, Fields, Message, RecordsField, Request};
pub use reader::Reader;
pub use stored::{
    decode_metadata_record, decode_versioned, encode_coordinator_key, encode_metadata_record,
    encode_versioned,
};
pub use writer::Writer;

/// What every generated file uses.
pub(crate) mod generated_prelude {
    pub(crate) use std::ops::RangeInclusive;

    pub(crate) use bytes::Bytes;
    pub(crate) use klamm_model::Uuid;

    pub(crate) use crate::json::Hidden;
    pub(crate) use crate::{
        ApiKey, CoordinatorKey, DecodeError, EncodeError, Fields, JsonView, Message, Reader, RecordsField,
        Request, Writer,
    };
}

/// The requests and responses, one module an API. Their top-level structs stand here too.
// Generated: the lints that judge a writer's habits have nobody to teach there.
#[allow(clippy::all, unused_variables, unused_imports, missing_docs)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The records that are stored in logs, one module a topic or purpose.
#[allow(clippy::all, unused_variables, unused_imports, missing_docs)]
pub mod records {
    include!(concat!(env!("OUT_DIR"), "/records.rs"));
}

include!(concat!(env!("OUT_DIR"), "/for_each.rs"));
