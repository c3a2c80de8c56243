//! What can be wrong with the bytes of a batch.

use klamm_model::{ErrorCode, Offset};

/// Why bytes are no batch, or no batch of records. `position` counts bytes from the start of what was handed
/// in, `offset` is the base offset that the batch claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The bytes end before the batch does.
    #[error("the batch at byte {position} is cut off: it has {size} bytes, of which {available} are there")]
    Truncated {
        /// Where the batch begins.
        position: usize,
        /// What the batch claims, its head included.
        size: usize,
        /// How many bytes there are.
        available: usize,
    },
    /// The size field is smaller than the smallest batch of that format.
    #[error("the batch at byte {position} claims a size of {size}, less than its head of {minimum} bytes")]
    InvalidSize {
        /// Where the batch begins.
        position: usize,
        /// The size field, which does not count itself and the offset.
        size: i32,
        /// The least that would do.
        minimum: i32,
    },
    /// A message format that does not exist.
    #[error("the batch at byte {position} has the unknown magic {magic}")]
    InvalidMagic {
        /// Where the batch begins.
        position: usize,
        /// The byte found.
        magic: i8,
    },
    /// The checksum does not match.
    #[error("the batch at offset {offset} is corrupt (stored crc = {stored}, computed crc = {computed})")]
    InvalidCrc {
        /// Base offset of the batch.
        offset: Offset,
        /// What the batch says.
        stored: u32,
        /// What its bytes say.
        computed: u32,
    },
    /// Attributes name a codec that does not exist.
    #[error("unknown compression type id: {id}")]
    UnknownCompression {
        /// The lowest three bits of the attributes.
        id: u8,
    },
    /// The codec exists, but not where it was found: zstd needs V2.
    #[error("the batch at offset {offset} is compressed with {codec}, which message format V{magic} has not")]
    UnsupportedCompression {
        /// Base offset of the batch.
        offset: Offset,
        /// The codec's name.
        codec: &'static str,
        /// The format that does not know it.
        magic: i8,
    },
    /// Bytes that the codec did not write.
    #[error("{codec} data does not decompress: {reason}")]
    Decompression {
        /// The codec's name.
        codec: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// The compressed data end too early.
    #[error("{codec} data end too early")]
    CompressedTruncated {
        /// The codec's name.
        codec: &'static str,
    },
    /// The batch expands to more than is allowed.
    #[error("{codec} data expand to more than {limit} bytes")]
    ExpandsTooFar {
        /// The codec's name.
        codec: &'static str,
        /// The bound, in bytes.
        limit: usize,
    },
    /// The records in the batch are not what the format or the batch's head says.
    #[error("the batch at offset {offset} holds an invalid record: {reason}")]
    InvalidRecord {
        /// Base offset of the batch.
        offset: Offset,
        /// What is wrong.
        reason: &'static str,
    },
}

impl RecordsError {
    /// The code with which Kafka answers a Produce that carries such bytes.
    pub fn code(&self) -> ErrorCode {
        match self {
            RecordsError::Truncated { .. } | RecordsError::InvalidRecord { .. } => ErrorCode::InvalidRecord,
            RecordsError::InvalidSize { .. }
            | RecordsError::InvalidMagic { .. }
            | RecordsError::InvalidCrc { .. } => ErrorCode::CorruptMessage,
            RecordsError::UnsupportedCompression { .. } => ErrorCode::UnsupportedCompressionType,
            RecordsError::CompressedTruncated { .. } => ErrorCode::InvalidRecord,
            RecordsError::ExpandsTooFar { .. } => ErrorCode::MessageTooLarge,
            RecordsError::UnknownCompression { .. } | RecordsError::Decompression { .. } => {
                ErrorCode::UnknownServerError
            }
        }
    }
}
