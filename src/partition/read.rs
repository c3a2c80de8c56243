//! Reading: who may read how far, and where in the log that is.

use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, Offset};
use klamm_storage::{AbortedTransaction, LogSlice, ReadError as LogReadError, StorageError};

use crate::planted::planted;
use crate::{Partition, PartitionOffsets, Role};

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A client: up to the high watermark, or the last stable offset.
    Consumer(IsolationLevel),
    /// A replica, or a coordinator that loads its state: up to the log end.
    Follower,
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Who reads.
    pub reader: Reader,
    /// How many bytes at the most.
    pub bytes_max: usize,
    /// Whether the first batch comes whole even if it is larger (KIP-74).
    pub at_least_one: bool,
    /// The epoch that the reader believes in; another one is an error (KIP-320).
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// The epoch of the last record that the reader has; where the logs part is told (KIP-595).
    pub last_fetched_epoch: Option<LeaderEpoch>,
}

/// What was found.
#[derive(Debug)]
pub struct PartitionRead {
    /// The records: a part of a segment that begins with the batch that holds the offset. `None` where there
    /// is nothing yet.
    pub slice: Option<LogSlice>,
    /// The partition's offsets at the time of reading.
    pub offsets: PartitionOffsets,
    /// For a read-committed reader: the aborted transactions that touch these records.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// Where the reader's log parts from this one: the last epoch that both may share, and its end here.
    pub diverging: Option<(LeaderEpoch, Offset)>,
}

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// This replica does not lead.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// The reader's epoch is older than the leader's.
    #[error("the epoch is older than the leader's")]
    FencedEpoch,
    /// The reader's epoch is newer than this node knows of.
    #[error("the epoch is newer than this node knows of")]
    UnknownEpoch,
    /// No such offset.
    #[error("the log holds {} to {}", .0.log_start, .0.log_end)]
    OutOfRange(PartitionOffsets),
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl ReadError {
    /// The code that Kafka answers a Fetch with.
    pub fn code(&self) -> ErrorCode {
        match self {
            ReadError::NotLeader => ErrorCode::NotLeaderOrFollower,
            ReadError::FencedEpoch => ErrorCode::FencedLeaderEpoch,
            ReadError::UnknownEpoch => ErrorCode::UnknownLeaderEpoch,
            ReadError::OutOfRange(_) => ErrorCode::OffsetOutOfRange,
            ReadError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}

impl Partition {
    /// Finds the records from an offset on. The bytes stay in the file.
    pub fn read(&self, from: Offset, options: &ReadOptions) -> Result<PartitionRead, ReadError> {
        self.read_up_to(from, options, self.offsets_for_reader(options.current_leader_epoch)?)
    }

    /// As [`Partition::read`], also where this replica follows (KIP-392): a consumer sees what this one knows to be
    /// committed.
    pub fn read_from_any_replica(
        &self,
        from: Offset,
        options: &ReadOptions,
    ) -> Result<PartitionRead, ReadError> {
        self.read_up_to(from, options, self.offsets_of_any_replica(options.current_leader_epoch)?)
    }

    fn read_up_to(
        &self,
        from: Offset,
        options: &ReadOptions,
        offsets: PartitionOffsets,
    ) -> Result<PartitionRead, ReadError> {
        if let Some(diverging) = self.divergence(from, options.last_fetched_epoch, &offsets)? {
            return Ok(PartitionRead { slice: None, offsets, aborted: None, diverging: Some(diverging) });
        }
        if from < offsets.log_start || from > offsets.log_end {
            return Err(ReadError::OutOfRange(offsets));
        }
        let (below, read_committed) = match options.reader {
            Reader::Follower => (offsets.log_end, false),
            Reader::Consumer(_) if planted!(ServeAboveHighWatermark) => (offsets.log_end, false),
            Reader::Consumer(IsolationLevel::ReadUncommitted) => (offsets.high_watermark, false),
            Reader::Consumer(IsolationLevel::ReadCommitted) => (offsets.last_stable, true),
        };
        let slice = if from >= below {
            None
        } else {
            match self.with_log(|log| log.read(from, options.bytes_max, below, options.at_least_one)) {
                Ok(slice) => slice,
                Err(LogReadError::OutOfRange { .. }) => return Err(ReadError::OutOfRange(offsets)),
                Err(LogReadError::Storage(error)) => return Err(ReadError::Storage(error)),
            }
        };
        let aborted = match (&slice, read_committed) {
            (_, false) => None,
            (None, true) => Some(Vec::new()),
            (Some(_), true) if planted!(ForgetAbortedTransactions) => Some(Vec::new()),
            (Some(_), true) => Some(self.with_log(|log| log.aborted_transactions(from, below))?),
        };
        Ok(PartitionRead { slice, offsets, aborted, diverging: None })
    }

    /// The offsets, if this replica leads and the reader's epoch is the leader's.
    pub(crate) fn offsets_for_reader(
        &self,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<PartitionOffsets, ReadError> {
        self.offsets_where(current_leader_epoch, |role| matches!(role, Role::Leader(_)))
    }

    /// The offsets, if this replica leads or follows, and the reader's epoch is the leader's.
    fn offsets_of_any_replica(
        &self,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<PartitionOffsets, ReadError> {
        self.offsets_where(current_leader_epoch, |role| {
            matches!(role, Role::Leader(_) | Role::Follower { leader: Some(_) })
        })
    }

    fn offsets_where(
        &self,
        current_leader_epoch: Option<LeaderEpoch>,
        may_serve: impl Fn(&Role) -> bool,
    ) -> Result<PartitionOffsets, ReadError> {
        let state = self.state.lock();
        if !may_serve(&state.role) {
            return Err(ReadError::NotLeader);
        }
        match current_leader_epoch.filter(|_| !planted!(SkipEpochCheck)) {
            Some(epoch) if epoch < state.leader_epoch => Err(ReadError::FencedEpoch),
            Some(epoch) if epoch > state.leader_epoch => Err(ReadError::UnknownEpoch),
            _ => {
                let log = self.log();
                log.check_usable("look into")?;
                Ok(state.watermarks.offsets(&log))
            }
        }
    }

    fn divergence(
        &self,
        from: Offset,
        last_fetched_epoch: Option<LeaderEpoch>,
        offsets: &PartitionOffsets,
    ) -> Result<Option<(LeaderEpoch, Offset)>, ReadError> {
        let last_fetched = last_fetched_epoch.filter(|_| from >= offsets.log_start);
        let Some(last_fetched) = last_fetched.filter(|_| !planted!(SkipEpochCheck)) else {
            return Ok(None);
        };
        // An epoch above all that is known here has no end here.
        let end_offset = self.log().end_offset_for(last_fetched);
        let (epoch, end) = end_offset.ok_or(ReadError::OutOfRange(*offsets))?;
        Ok((epoch < last_fetched || end < from).then_some((epoch, end)))
    }
}
