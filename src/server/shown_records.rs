//! Records on their way to a client, in a format that it reads. Only what a client cannot read is converted, in memory:
//! for Fetch v0 and v1 to V0, for v2 and v3 to V1 at the newest; and from v12 on to V2.

use bytes::Bytes;
use klamm_model::{ErrorCode, Offset};
use klamm_partition::{Partition, ReadError, ReadOptions};
use klamm_records::{ConversionLimit, RecordsError};
use klamm_storage::{LogSlice, StorageError};

/// From this version of Fetch on the largest batch comes whole even if it is above the limits (KIP-74).
pub(crate) const AT_LEAST_ONE_SINCE: i16 = 3;
/// From this version on clients read format V1.
const V1_SINCE: i16 = 2;
/// From this version on clients read format V2.
pub(crate) const V2_SINCE: i16 = 4;
/// From this version on no client is sent V0 or V1: those that know it need not know the old formats.
const ONLY_V2_SINCE: i16 = 12;
/// From this version on clients read zstd.
const ZSTD_SINCE: i16 = 10;

/// How many bytes of batches that an old client does not see are passed over for one partition in one answer.
const HIDDEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Records on their way out.
pub(crate) enum Records {
    Slice(LogSlice),
    Converted(Bytes),
    /// None that this client sees, in so many bytes; others may stand from the offset on.
    Hidden {
        until: Offset,
        bytes: u64,
    },
    Nothing,
    /// They cannot be shown to this client.
    Refused(ErrorCode),
}

/// What was read for a client, before it is put into a format that the client reads.
pub(crate) struct ToShow {
    pub(crate) slice: Option<LogSlice>,
    pub(crate) bytes_max: usize,
    pub(crate) is_for_follower: bool,
}

/// The records as a client that speaks `version` of Fetch can read them; of those that it sees, the first ones from
/// `from` on.
pub(crate) fn show(
    version: i16,
    partition: &Partition,
    from: Offset,
    options: &ReadOptions,
    read: ToShow,
) -> Result<Records, StorageError> {
    let records = records_for(version, partition, from, read)?;
    behind_hidden(version, partition, from, options, records)
}

/// The first records that an old client sees, behind those that it does not.
fn behind_hidden(
    version: i16,
    partition: &Partition,
    from: Offset,
    options: &ReadOptions,
    mut records: Records,
) -> Result<Records, StorageError> {
    let mut passed = 0;
    while let Records::Hidden { until, bytes } = records {
        passed += bytes;
        if passed > HIDDEN_BYTES_MAX {
            tracing::warn!(
                "{} holds nothing that a client of Fetch v{} can read from {} to {until}; it does not get past that",
                partition.topic_partition(),
                version,
                from
            );
            return Ok(Records::Nothing);
        }
        let slice = match partition.read(until, options) {
            Ok(read) => read.slice,
            Err(ReadError::Storage(error)) => return Err(error),
            // The log or its leader is another one by now, which the next request will hear.
            Err(_) => return Ok(Records::Nothing),
        };
        let shown = ToShow { slice, bytes_max: options.bytes_max, is_for_follower: false };
        records = records_for(version, partition, from, shown)?;
    }
    Ok(records)
}

/// The records as this client can read them.
fn records_for(
    version: i16,
    partition: &Partition,
    from: Offset,
    read: ToShow,
) -> Result<Records, StorageError> {
    let zstd = partition.settings().compression == Some(klamm_records::Compression::Zstd);
    if zstd && version < ZSTD_SINCE {
        return Ok(Records::Refused(ErrorCode::UnsupportedCompressionType));
    }
    let Some(slice) = read.slice else {
        return Ok(Records::Nothing);
    };
    let target = match version {
        ..V1_SINCE => 0,
        V1_SINCE..V2_SINCE => 1,
        ONLY_V2_SINCE.. if !read.is_for_follower && slice.holds_old_formats()? => 2,
        _ => return Ok(Records::Slice(slice)),
    };
    let failed = |error| StorageError::io(&partition.log().dir(), "read records of", &error);
    let bytes = slice.to_bytes().map_err(failed)?;
    // What the client allows may come, also where it has grown. Kafka cuts at the size of what is stored; then the
    // partitions of one topic come to what their client cannot read one after the other, and the error of the first
    // costs an old consumer what the others bring.
    let limit = ConversionLimit { bytes_max: bytes.len().max(read.bytes_max) };
    let converted = match target {
        2 => klamm_records::up_convert_to_v2(bytes.clone(), limit),
        _ => klamm_records::down_convert(bytes.clone(), target, from, limit),
    };
    match converted {
        Ok(converted) if converted.is_empty() => Ok(Records::hidden(bytes)),
        Ok(converted) if version < AT_LEAST_ONE_SINCE => {
            // Here a message that is larger than the limit arrives cut, and the client asks for more.
            let len = converted.len().min(read.bytes_max);
            Ok(Records::Converted(converted.slice(..len)))
        }
        Ok(converted) => Ok(Records::Converted(converted)),
        Err(error) => {
            let (name, offset) = (partition.topic_partition(), from);
            if matches!(error, RecordsError::UnsupportedCompression { .. }) {
                tracing::debug!(
                    "records of {name} from {offset} on cannot be shown in format V{target}: {error}"
                );
                return Ok(Records::Refused(ErrorCode::UnsupportedCompressionType));
            }
            tracing::error!("records of {name} from {offset} on cannot be read: {error}");
            Ok(Records::Refused(ErrorCode::CorruptMessage))
        }
    }
}

impl Records {
    /// Nothing of these bytes is seen.
    fn hidden(bytes: Bytes) -> Records {
        let len = bytes.len() as u64;
        let last = klamm_records::batches(bytes).map_while(Result::ok).last();
        last.map_or(Records::Nothing, |batch| Records::Hidden {
            until: batch.header.next_offset(),
            bytes: len,
        })
    }

    /// How many bytes of an answer they take.
    pub(crate) fn len(&self) -> usize {
        match self {
            Records::Slice(slice) => slice.len as usize,
            Records::Converted(bytes) => bytes.len(),
            Records::Hidden { .. } | Records::Nothing | Records::Refused(_) => 0,
        }
    }
}
