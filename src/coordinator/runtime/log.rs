//! What a mailbox asks of its partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use klamm_io::BoxFuture;
use klamm_model::{ErrorCode, LeaderEpoch, Offset};
use klamm_partition::{
    AppendError, AppendOptions, Appended, Partition, ReadError, ReadOptions, Reader, TransactionMarker,
    VerificationGuard,
};

/// Why a log did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogFault {
    /// This node does not lead the partition, or not in the epoch in which it was loaded.
    #[error("this node does not lead the partition any more")]
    NotLeader,
    /// Too few replicas are in sync.
    #[error("too few replicas are in sync")]
    NotEnoughReplicas,
    /// The batch is larger than the topic allows.
    #[error("the records are too large for the topic")]
    TooLarge,
    /// The records or the marker do not belong to a transaction that is open, as the code says.
    #[error("the transaction does not allow it: {0}")]
    Transaction(ErrorCode),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl LogFault {
    /// What clients are told when their records could not be written, as Kafka maps it.
    pub fn code(&self) -> ErrorCode {
        match self {
            LogFault::NotLeader => ErrorCode::NotCoordinator,
            LogFault::NotEnoughReplicas => ErrorCode::CoordinatorNotAvailable,
            LogFault::TooLarge => ErrorCode::UnknownServerError,
            LogFault::Transaction(code) => *code,
            LogFault::Other(_) => ErrorCode::NotCoordinator,
        }
    }
}

/// A partition of a coordinator's topic, as far as the coordinator needs one.
pub trait CoordinatorLog: Send + Sync + 'static {
    /// The first offset.
    fn start_offset(&self) -> Offset;

    /// The offset that the next record gets.
    fn end_offset(&self) -> Offset;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Batches from the one that holds `from`, about `bytes_max` bytes but the first batch whole; the last
    /// one may be cut. Reads up to the end of the log, beyond the high watermark.
    fn read(&self, from: Offset, bytes_max: usize) -> Result<Bytes, LogFault>;

    /// The largest batch that it takes now, in bytes.
    fn batch_bytes_max(&self) -> usize;

    /// Appends one batch, with the guard that the first one of a transaction needs; returns the offset of its
    /// first record.
    fn append(&self, batch: Bytes, guard: Option<VerificationGuard>) -> Result<Offset, LogFault>;

    /// Appends the end of a transaction; returns its offset, or nothing if it stands there already.
    fn end_transaction(&self, marker: &TransactionMarker) -> Result<Option<Offset>, LogFault>;

    /// Whether all records below an offset are committed, and on the disk where that is asked for.
    fn is_committed(&self, below: Offset) -> Result<bool, LogFault>;

    /// Returns when that is so.
    fn wait_committed(&self, below: Offset) -> BoxFuture<'_, Result<(), LogFault>>;
}

/// A partition of this node, in one epoch of its leadership.
pub struct PartitionLog {
    partition: Arc<Partition>,
    epoch: LeaderEpoch,
    /// What was appended below has to be on the disk before it counts as committed.
    flush_below: AtomicI64,
    /// What was appended below is not known to be on the disk after a sync that failed.
    unflushed_below: AtomicI64,
}

impl PartitionLog {
    /// A view of a partition that this node leads in `epoch`.
    pub fn new(partition: Arc<Partition>, epoch: LeaderEpoch) -> PartitionLog {
        PartitionLog { partition, epoch, flush_below: AtomicI64::new(0), unflushed_below: AtomicI64::new(0) }
    }

    fn note_flush_due(&self, appended: &Appended) {
        if appended.flush_due.comes_before_answer(-1) {
            self.flush_below.fetch_max(appended.last_offset + 1, Ordering::AcqRel);
        }
    }

    /// Whether all below an offset is on the disk that has to be.
    fn is_flushed(&self, below: Offset) -> Result<bool, LogFault> {
        let needed = below.min(self.flush_below.load(Ordering::Acquire));
        if self.partition.log().recovery_point() >= needed {
            return Ok(true);
        }
        if needed <= self.unflushed_below.load(Ordering::Acquire) {
            return Err(LogFault::Other("the records are not known to be on the disk".to_owned()));
        }
        Ok(false)
    }
}

impl CoordinatorLog for PartitionLog {
    fn start_offset(&self) -> Offset {
        self.partition.offsets().log_start
    }

    fn end_offset(&self) -> Offset {
        self.partition.offsets().log_end
    }

    fn size(&self) -> u64 {
        self.partition.log().size()
    }

    fn read(&self, from: Offset, bytes_max: usize) -> Result<Bytes, LogFault> {
        let options = ReadOptions {
            reader: Reader::Follower,
            bytes_max,
            at_least_one: true,
            current_leader_epoch: Some(self.epoch),
            last_fetched_epoch: None,
        };
        let read = self.partition.read(from, &options).map_err(|error| match error {
            ReadError::NotLeader | ReadError::FencedEpoch | ReadError::UnknownEpoch => LogFault::NotLeader,
            error => LogFault::Other(error.to_string()),
        })?;
        let Some(slice) = read.slice else { return Ok(Bytes::new()) };
        slice.to_bytes().map_err(|error| LogFault::Other(error.to_string()))
    }

    fn batch_bytes_max(&self) -> usize {
        let segment_bytes =
            usize::try_from(self.partition.log().config().segment_bytes).unwrap_or(usize::MAX);
        self.partition.settings().batch_bytes_max.min(segment_bytes)
    }

    fn append(&self, batch: Bytes, guard: Option<VerificationGuard>) -> Result<Offset, LogFault> {
        let options = AppendOptions::of_coordinator(Some(self.epoch), guard);
        let appended = self.partition.append_as_leader(batch, &options).map_err(fault)?;
        self.note_flush_due(&appended);
        Ok(appended.base_offset)
    }

    fn end_transaction(&self, marker: &TransactionMarker) -> Result<Option<Offset>, LogFault> {
        let ended = self.partition.end_transaction(marker, Some(self.epoch)).map_err(fault)?;
        self.note_flush_due(&ended.appended);
        Ok((!ended.is_repeated).then_some(ended.appended.base_offset))
    }

    fn is_committed(&self, below: Offset) -> Result<bool, LogFault> {
        Ok(self.partition.is_committed(below, self.epoch).map_err(fault)? && self.is_flushed(below)?)
    }

    fn wait_committed(&self, below: Offset) -> BoxFuture<'_, Result<(), LogFault>> {
        Box::pin(async move {
            self.partition.wait_for_high_watermark(below, self.epoch).await.map_err(fault)?;
            if self.is_flushed(below)? {
                return Ok(());
            }
            self.partition.flush().await.map_err(|error| {
                self.unflushed_below.fetch_max(below, Ordering::AcqRel);
                LogFault::Other(error.to_string())
            })
        })
    }
}

fn fault(error: AppendError) -> LogFault {
    match error {
        AppendError::NotLeader => LogFault::NotLeader,
        AppendError::NotEnoughReplicas { .. } | AppendError::NotEnoughReplicasAfterAppend => {
            LogFault::NotEnoughReplicas
        }
        AppendError::Invalid(invalid)
            if matches!(invalid.code, ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge) =>
        {
            LogFault::TooLarge
        }
        AppendError::ProducerFenced { .. }
        | AppendError::NoTransaction { .. }
        | AppendError::OutOfOrderSequence { .. }
        | AppendError::CoordinatorFenced { .. } => LogFault::Transaction(error.code()),
        error => LogFault::Other(error.to_string()),
    }
}
