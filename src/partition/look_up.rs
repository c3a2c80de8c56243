//! Looking for offsets: by kind, by time, by epoch.

use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, Offset, TimestampMs};
use klamm_storage::StorageError;

use crate::planted::planted;
use crate::{Partition, PartitionOffsets, ReadError, Reader, Role};

/// What ListOffsets asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookUp {
    /// The end that this reader sees.
    Latest,
    /// The log start.
    Earliest,
    /// The record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The first offset on the local disk (KIP-405); without tiered storage the log start.
    EarliestLocal,
    /// The last offset that was moved to remote storage: there is none.
    LatestTiered,
    /// The first record whose time is at or after this.
    AtOrAfter(TimestampMs),
}

/// What was found; offset -1 where nothing fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundTimestamp {
    /// The record's offset.
    pub offset: Offset,
    /// Its time, where it was asked by time, else -1.
    pub timestamp: TimestampMs,
    /// The epoch in which it was written, where known.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// Why nothing could be looked up.
#[derive(Debug, thiserror::Error)]
pub enum LookUpError {
    /// This replica does not lead.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// The reader's epoch is older than the leader's.
    #[error("the epoch is older than the leader's")]
    FencedEpoch,
    /// The reader's epoch is newer than this node knows of.
    #[error("the epoch is newer than this node knows of")]
    UnknownEpoch,
    /// A new leader does not know yet how far its records are committed (KIP-207).
    #[error("the leader is too new to know its high watermark")]
    NotAvailable,
    /// The topic stores V0, which has no timestamps.
    #[error("the topic stores records in format V0 (message.format.version), which has no timestamps")]
    NoTimestamps,
    /// The offset lies beyond the high watermark, or is negative.
    #[error("the offset is out of range")]
    OutOfRange,
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl LookUpError {
    /// The code that Kafka answers ListOffsets, OffsetForLeaderEpoch and DeleteRecords with.
    pub fn code(&self) -> ErrorCode {
        match self {
            LookUpError::NotLeader => ErrorCode::NotLeaderOrFollower,
            LookUpError::FencedEpoch => ErrorCode::FencedLeaderEpoch,
            LookUpError::UnknownEpoch => ErrorCode::UnknownLeaderEpoch,
            LookUpError::NotAvailable => ErrorCode::OffsetNotAvailable,
            LookUpError::NoTimestamps => ErrorCode::UnsupportedForMessageFormat,
            LookUpError::OutOfRange => ErrorCode::OffsetOutOfRange,
            LookUpError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}

impl From<ReadError> for LookUpError {
    fn from(error: ReadError) -> LookUpError {
        match error {
            ReadError::NotLeader => LookUpError::NotLeader,
            ReadError::FencedEpoch => LookUpError::FencedEpoch,
            ReadError::UnknownEpoch => LookUpError::UnknownEpoch,
            ReadError::OutOfRange(_) => LookUpError::OutOfRange,
            ReadError::Storage(error) => LookUpError::Storage(error),
        }
    }
}

impl Partition {
    /// Finds an offset for a reader.
    pub fn look_up(
        &self,
        what: LookUp,
        reader: Reader,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<FoundTimestamp, LookUpError> {
        let offsets = self.offsets_for_reader(current_leader_epoch)?;
        let end = match reader {
            Reader::Follower => offsets.log_end,
            Reader::Consumer(IsolationLevel::ReadUncommitted) => offsets.high_watermark,
            Reader::Consumer(IsolationLevel::ReadCommitted) => offsets.last_stable,
        };
        // Before a new leader knows how far its records are committed it can tell what surely is, and no more.
        let check_end_is_known = || {
            let is_known = matches!(reader, Reader::Follower) || self.knows_high_watermark(&offsets);
            if is_known { Ok(()) } else { Err(LookUpError::NotAvailable) }
        };
        if self.settings.load().target_magic == 0
            && matches!(what, LookUp::MaxTimestamp | LookUp::AtOrAfter(_))
        {
            return Err(LookUpError::NoTimestamps);
        }
        let at = |offset: Offset| FoundTimestamp {
            offset,
            timestamp: -1,
            leader_epoch: self.log().epoch_of(offset),
        };
        let nothing = FoundTimestamp { offset: -1, timestamp: -1, leader_epoch: None };
        Ok(match what {
            LookUp::Latest => {
                check_end_is_known()?;
                FoundTimestamp { leader_epoch: Some(self.leader_epoch()), ..at(end) }
            }
            LookUp::Earliest | LookUp::EarliestLocal => at(offsets.log_start),
            LookUp::LatestTiered => nothing,
            LookUp::MaxTimestamp | LookUp::AtOrAfter(_) => {
                let found = match what {
                    LookUp::AtOrAfter(timestamp) => {
                        self.with_log(|log| log.offset_for_timestamp(timestamp))?
                    }
                    _ => self.with_log(|log| log.max_timestamp())?,
                };
                // What is not committed yet may still vanish, so it is not found.
                let Some(found) = found.filter(|found| found.offset < end) else {
                    check_end_is_known()?;
                    return Ok(nothing);
                };
                FoundTimestamp {
                    offset: found.offset,
                    timestamp: found.timestamp,
                    leader_epoch: Some(found.leader_epoch).filter(|epoch| *epoch != LeaderEpoch::NONE),
                }
            }
        })
    }

    /// What ListOffsets v0 asks for: where segments begin, newest first, at most `most` of them. -1 begins with
    /// the end that the reader sees, -2 is the log start alone, a time leaves out what is younger.
    pub fn segment_offsets_before(
        &self,
        timestamp: TimestampMs,
        most: usize,
        reader: Reader,
    ) -> Result<Vec<Offset>, LookUpError> {
        let offsets = self.offsets_for_reader(None)?;
        if timestamp == -2 {
            return Ok(vec![offsets.log_start; most.min(1)]);
        }
        if timestamp < -2 {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        // The end counts as a segment that begins now.
        if timestamp == -1 || timestamp >= self.clock.now_ms() {
            found.push(match reader {
                Reader::Follower => offsets.log_end,
                Reader::Consumer(_) => offsets.high_watermark,
            });
        }
        let begins = self.with_log(|log| log.segment_offsets_before(timestamp))?;
        let begins = begins.into_iter().map(|begin| begin.max(offsets.log_start));
        found.extend(begins.filter(|begin| *begin <= offsets.high_watermark));
        found.sort_unstable();
        found.dedup();
        Ok(found.into_iter().rev().take(most).collect())
    }

    /// The last epoch at or below `epoch` and where it ends here (OffsetForLeaderEpoch, KIP-101).
    pub fn end_of_epoch(
        &self,
        epoch: LeaderEpoch,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<(LeaderEpoch, Offset)>, LookUpError> {
        self.offsets_for_reader(current_leader_epoch)?;
        Ok(self.log().end_offset_for(epoch))
    }

    fn knows_high_watermark(&self, offsets: &PartitionOffsets) -> bool {
        match &self.state.lock().role {
            Role::Leader(leader) => {
                offsets.high_watermark >= leader.epoch_start() || planted!(TellUnknownEnd)
            }
            _ => false,
        }
    }
}
