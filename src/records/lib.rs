//! The bytes that records are made of: batches of the message formats V0, V1 and V2, their checksums, codecs,
//! control records, the validation of what a client wants to append, and conversion between the formats.
//!
//! This crate must never do I/O, read a clock, use tokio or panic on bytes: all that it reads may come from a
//! hostile socket or a broken disk. Nothing is allocated for what bytes merely claim; what a compressed batch
//! may expand to is bounded ([`compression::EXPANDED_BYTES_MAX`]) wherever it is held in memory.
//!
//! Sources: <https://kafka.apache.org/documentation/#recordbatch>, KIP-31, KIP-32 (V1), KIP-98 (V2), KIP-467
//! (record errors), KIP-534 (delete horizon).

mod batch;
mod builder;
pub mod compression;
pub mod control;
mod conversion;
mod entries;
mod error;
mod header;
mod legacy;
mod look_up;
mod record;
mod retained;
mod stream;
mod validation;
mod varint;
mod visit;
mod wrapper;

pub use batch::{Batch, BatchIter, RecordIter, batches};
pub use builder::{BatchBuilder, BatchSettings};
pub use compression::Compression;
pub use conversion::{ConversionLimit, down_convert, up_convert_to_v2};
pub use entries::Entry;
pub use error::RecordsError;
pub use header::{BatchHeader, HEAD_LEN, LOG_OVERHEAD, MAGIC_POSITION, peek_batch};
pub use record::{Header, Record};
pub use validation::{AppendRules, InvalidRecords, Origin, ValidBatch, ValidHead, validate_for_append};

/// The time that stands for "none".
pub const NO_TIMESTAMP: klamm_model::TimestampMs = -1;

/// The sequence that stands for "none".
pub const NO_SEQUENCE: i32 = -1;
