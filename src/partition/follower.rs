//! Following: appending what the leader sent, with the leader's offsets and epochs, and cutting what it does
//! not have (KIP-101, KIP-279).
//!
//! Batches of V0 and V1 do not say of which epoch they are. What is fetched in an epoch is as its leader has it, so that
//! epoch is noted for them: without one, nobody would see where logs part.

use bytes::Bytes;
use klamm_model::{LeaderEpoch, NodeId, Offset};
use klamm_records::RecordsError;
use klamm_storage::{Appended, ReadError, StorageError};

use crate::planted::planted;
use crate::{Leadership, Partition, Role};

/// Why replicated records were not appended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicationError {
    /// This replica does not follow in that epoch.
    #[error("this replica does not follow in epoch {0}")]
    NotFollower(LeaderEpoch),
    /// What was fetched does not continue the log.
    #[error("what was fetched begins at offset {found}, but the log ends at {expected}")]
    OutOfOrder {
        /// Where it begins.
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

/// What a leader answered to a fetch.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The offset that was asked for.
    pub from: Offset,
    /// The epoch in which it was asked for.
    pub leader_epoch: LeaderEpoch,
    /// Batches from there on; the last one may be cut.
    pub records: Bytes,
    /// The leader's high watermark.
    pub high_watermark: Offset,
    /// Where the leader's log begins.
    pub log_start: Offset,
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
            if planted!(TruncateToHighWatermark) && leadership.leader_epoch > state.leader_epoch {
                // What followers did before there were leader epochs (KIP-101).
                let _ = self.log().truncate_to(state.watermarks.high_watermark());
            }
            let follows_anew = leader.is_some() && leadership.leader_epoch > state.leader_epoch;
            state.role = Role::Follower { leader };
            state.leader_epoch = leadership.leader_epoch;
            // Out of the ISR it may catch up like any other, and what it lost is asked of the leader.
            state.has_lost_records &= leadership.isr.contains(&self.local);
            drop(state);
            if follows_anew && let Err(error) = self.cut_what_has_no_epoch() {
                tracing::error!("what may part from the leader's log was not cut: {error}");
            }
        }
        self.waiters.wake_all();
    }

    /// Appends whole batches that the leader sent, and takes over its high watermark and where its log begins. A cut
    /// batch at the end is left out: the next fetch brings it. Returns whether `flush.messages` asks for a
    /// [`Partition::flush`] before the leader is told, with the next fetch, that the records are here.
    pub fn append_as_follower(&self, fetched: Fetched) -> Result<Appended, ReplicationError> {
        let _writer = self.writer.lock();
        self.check_follows(fetched.leader_epoch)?;
        let log = self.log();
        let mut expected = log.log_end_offset();
        if fetched.from != expected {
            return Err(ReplicationError::OutOfOrder { found: fetched.from, expected });
        }
        let mut batches = Vec::new();
        for batch in klamm_records::batches(fetched.records).lenient() {
            let batch = batch?;
            batch.check_crc()?;
            if batch.header.base_offset < expected {
                return Err(ReplicationError::OutOfOrder { found: batch.header.base_offset, expected });
            }
            expected = batch.header.next_offset();
            batches.push(batch);
        }
        let (first, has_old) = (batches.first(), batches.iter().any(|batch| batch.header.magic < 2));
        if let Some(first) = first
            && has_old
            && log.latest_epoch() < Some(fetched.leader_epoch)
        {
            log.assign_epoch(fetched.leader_epoch, first.header.base_offset)?;
        }
        let appended = self.space.note(log.append_replicated(&batches), self.clock.monotonic_ms())?;
        let (has_moved, high_watermark) = {
            let mut state = self.state.lock();
            let has_moved = state.watermarks.raise(fetched.high_watermark.min(log.log_end_offset()), &log);
            (has_moved, state.watermarks.high_watermark())
        };
        let log_start = fetched.log_start.min(high_watermark);
        let is_cut = log_start > log.log_start_offset();
        if is_cut {
            match log.delete_records_before(log_start) {
                Ok(_) | Err(ReadError::OutOfRange { .. }) => {}
                Err(ReadError::Storage(error)) => return Err(error.into()),
            }
        }
        if has_moved || is_cut || !batches.is_empty() {
            self.waiters.wake_all();
        }
        Ok(appended)
    }

    /// Cuts what the leader does not have, as far as its answer tells: the largest epoch that it knows of those up to
    /// the one that was fetched last, and where that ends there (KIP-101, KIP-279). If this log does not know that
    /// epoch, the next fetch asks again with an earlier one, until both agree. Returns the new end.
    pub fn truncate_diverging(
        &self,
        (epoch, end): (LeaderEpoch, Offset),
        leader_epoch: LeaderEpoch,
    ) -> Result<Offset, ReplicationError> {
        if planted!(KeepDiverging) {
            return Ok(self.log().log_end_offset());
        }
        let own_end = self
            .log()
            .end_offset_for(epoch)
            .map_or(end, |(known, own_end)| if known == epoch { own_end.min(end) } else { own_end });
        self.truncate_as_follower(own_end, leader_epoch)?;
        let _writer = self.writer.lock();
        self.check_follows(leader_epoch)?;
        self.cut_what_has_no_epoch()?;
        Ok(self.log().log_end_offset())
    }

    /// Removes everything and begins at the leader's first offset: the leader has nothing any more that could continue
    /// this log.
    pub fn restart_as_follower(
        &self,
        log_start: Offset,
        leader_epoch: LeaderEpoch,
    ) -> Result<(), ReplicationError> {
        let _writer = self.writer.lock();
        self.check_follows(leader_epoch)?;
        self.truncate_future(log_start)?;
        self.log().truncate_fully_and_start_at(log_start)?;
        self.state.lock().watermarks.follow_log(&self.log());
        self.waiters.wake_all();
        Ok(())
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

    /// Where not even the first record's epoch is known (old formats that an old version has replicated), nobody can
    /// tell where the logs part, and what is not known to be committed goes, as in Kafka before there were epochs. The
    /// caller holds the writer's lock.
    fn cut_what_has_no_epoch(&self) -> Result<(), StorageError> {
        let (log, high_watermark) = (self.log(), self.state.lock().watermarks.high_watermark());
        if log.latest_epoch().is_some() || log.log_end_offset() <= high_watermark {
            return Ok(());
        }
        self.truncate_future(high_watermark)?;
        log.truncate_to(high_watermark)?;
        self.state.lock().watermarks.follow_log(&log);
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
