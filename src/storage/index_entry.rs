//! The entries of the three indexes of a segment, in Kafka's bytes.

use klamm_model::Offset;

/// One entry of an index.
pub(crate) trait Entry: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// Bytes of an entry; at most 64.
    const SIZE: usize;
    /// What errors call the file.
    const READ_CONTEXT: &'static str;
    const WRITE_CONTEXT: &'static str;
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(bytes: &[u8]) -> Self;
    /// Whether this is part of the zeros with which Kafka allocates index files in advance.
    fn is_padding(&self) -> bool;
}

/// An entry of `.index`: at which position of the log a batch stands. 8 bytes: offset relative to the
/// segment's, position.
///
/// Kafka 2.8 and later write the last offset of the batch, 0.11 and earlier the first: for a search it is a
/// lower bound and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    pub(crate) relative_offset: u32,
    pub(crate) position: u32,
}

impl Entry for OffsetEntry {
    const SIZE: usize = 8;
    const READ_CONTEXT: &'static str = "read the offset index";
    const WRITE_CONTEXT: &'static str = "write the offset index";

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.relative_offset.to_be_bytes());
        out.extend(self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> OffsetEntry {
        OffsetEntry { relative_offset: u32_at(bytes, 0), position: u32_at(bytes, 4) }
    }

    /// The batch at position 0 never has an entry.
    fn is_padding(&self) -> bool {
        self.position == 0
    }
}

/// An entry of `.timeindex`: the largest timestamp so far and an offset at or behind the record that has it. 12
/// bytes: timestamp, offset relative to the segment's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub(crate) timestamp: i64,
    pub(crate) relative_offset: u32,
}

impl Entry for TimeEntry {
    const SIZE: usize = 12;
    const READ_CONTEXT: &'static str = "read the time index";
    const WRITE_CONTEXT: &'static str = "write the time index";

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.timestamp.to_be_bytes());
        out.extend(self.relative_offset.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> TimeEntry {
        TimeEntry { timestamp: i64_at(bytes, 0), relative_offset: u32_at(bytes, 8) }
    }

    /// A real entry of time 0 at the first offset looks the same; losing it costs a search nothing.
    fn is_padding(&self) -> bool {
        self.timestamp == 0 && self.relative_offset == 0
    }
}

/// An entry of `.txnindex`: an aborted transaction. 34 bytes: version 0, producer id, first offset, last
/// offset, last stable offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortedEntry {
    pub(crate) producer_id: i64,
    pub(crate) first_offset: Offset,
    /// The offset of the marker.
    pub(crate) last_offset: Offset,
    /// The last stable offset right after the marker: all transactions below it have an entry by then.
    pub(crate) last_stable_offset: Offset,
}

impl Entry for AbortedEntry {
    const SIZE: usize = 34;
    const READ_CONTEXT: &'static str = "read the transaction index";
    const WRITE_CONTEXT: &'static str = "write the transaction index";

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(0i16.to_be_bytes());
        for field in [self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset] {
            out.extend(field.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> AbortedEntry {
        AbortedEntry {
            producer_id: i64_at(bytes, 2),
            first_offset: i64_at(bytes, 10),
            last_offset: i64_at(bytes, 18),
            last_stable_offset: i64_at(bytes, 26),
        }
    }

    fn is_padding(&self) -> bool {
        false
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | i64::from(*byte))
}
