//! Following: appending what the leader sent, with the leader's offsets and epochs, and cutting what it does
//! not have (KIP-101, KIP-279).

use bytes::Bytes;
use klamm_model::{LeaderEpoch, NodeId, Offset};
use klamm_records::RecordsError;
use klamm_storage::{Appended, StorageError};

use crate::{Leadership, Partition, Role};

/// Why replicated records were not appended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicationError {
    /// This replica does not follow in that epoch.
    #[error("this replica does not follow in epoch {0}")]
    NotFollower(LeaderEpoch),
    /// The leader sent records that do not continue the log.
    #[error("the leader sent offset {found}, but the log ends at {expected}")]
    OutOfOrder {
        /// The first offset that was sent.
        found: Offset,
        /// The end of the log.
        expected: Offset,
    },
    /// The bytes are damaged.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The disk failed. Batches that were put into an earlier segment stay; the next fetch goes on behind them.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Partition {
    /// Follows from now on; older news than what is known changes nothing.
    pub fn become_follower(&self, leadership: &Leadership) {
        let _writer = self.writer.lock();
        {
            let mut state = self.state.lock();
            if leadership.leader_epoch < state.leader_epoch {
                return;
            }
            let leader: Option<NodeId> = leadership.leader.filter(|node| *node != self.local);
            state.role = Role::Follower { leader };
            state.leader_epoch = leadership.leader_epoch;
        }
        self.waiters.wake_all();
    }

    /// Appends whole batches that the leader sent, and takes over its high watermark. A cut batch at the end
    /// is left out: the next fetch brings it. Returns whether `flush.messages` asks for a [`Partition::flush`]
    /// before the leader is told, with the next fetch, that the records are here.
    pub fn append_as_follower(
        &self,
        records: Bytes,
        leader_epoch: LeaderEpoch,
        leader_high_watermark: Offset,
    ) -> Result<Appended, ReplicationError> {
        let _writer = self.writer.lock();
        self.check_follows(leader_epoch)?;
        let mut expected = self.log().log_end_offset();
        let mut batches = Vec::new();
        for batch in klamm_records::batches(records).lenient() {
            let batch = batch?;
            batch.check_crc()?;
            if batch.header.base_offset < expected {
                return Err(ReplicationError::OutOfOrder { found: batch.header.base_offset, expected });
            }
            expected = batch.header.next_offset();
            batches.push(batch);
        }
        let appended = self.log().append_replicated(&batches)?;
        {
            let mut state = self.state.lock();
            let to = leader_high_watermark.min(self.log().log_end_offset());
            state.watermarks.raise(to, &self.log());
        }
        self.waiters.wake_all();
        Ok(appended)
    }

    /// Cuts the log back to what the leader has of `leader_epoch`'s predecessor: all from `offset` on goes.
    pub fn truncate_as_follower(
        &self,
        offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> Result<(), ReplicationError> {
        let _writer = self.writer.lock();
        self.check_follows(leader_epoch)?;
        self.truncate_future(offset)?;
        self.log().truncate_to(offset)?;
        self.state.lock().watermarks.follow_log(&self.log());
        self.waiters.wake_all();
        Ok(())
    }

    fn check_follows(&self, leader_epoch: LeaderEpoch) -> Result<(), ReplicationError> {
        let state = self.state.lock();
        match state.role {
            Role::Follower { .. } if state.leader_epoch == leader_epoch => Ok(()),
            _ => Err(ReplicationError::NotFollower(leader_epoch)),
        }
    }
}
