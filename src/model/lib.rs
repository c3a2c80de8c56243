//! The nouns that every crate shares: ids, epochs, offsets and error codes.
//!
//! This crate imports nothing of ours and must never hold helpers: a function that does something, rather
//! than name something, belongs to the crate that needs it.

mod error_code;
mod id;
pub mod topic_name;

pub use error_code::ErrorCode;
pub use id::{LeaderEpoch, Named, NodeId, ProducerEpoch, ProducerId, TopicId, TopicPartition, Uuid};

/// The position of a record in a partition. It is a plain integer because its arithmetic is everywhere; byte
/// positions in files are `u64`, so the two cannot be confused.
pub type Offset = i64;

/// Milliseconds since 1970-01-01 UTC; -1 where a record has none.
pub type TimestampMs = i64;

/// What a reader of a partition wants to see of transactions (KIP-98).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolationLevel {
    /// Everything below the high watermark.
    ReadUncommitted,
    /// Only what stands below the last stable offset, with the list of aborted transactions.
    ReadCommitted,
}

impl IsolationLevel {
    /// From the byte in Fetch and ListOffsets: 1 means read-committed, anything else the weaker one, as in
    /// Kafka.
    pub fn from_wire(level: i8) -> IsolationLevel {
        if level == 1 { IsolationLevel::ReadCommitted } else { IsolationLevel::ReadUncommitted }
    }
}

/// Which time a record carries (`message.timestamp.type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimestampType {
    /// The time that the producer set.
    #[default]
    CreateTime,
    /// The time at which the leader appended it.
    LogAppendTime,
}
