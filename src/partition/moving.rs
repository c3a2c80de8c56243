//! Moving into another log directory while records come and go (KIP-113).
//!
//! A copy of the log grows beside it. It takes what the log has, batch by batch; when little is missing, appends
//! wait for the rest of it and for the swap.

use std::sync::Arc;

use klamm_model::Offset;
use klamm_storage::{Log, Piece, ReadError, StorageError};

use crate::{Partition, Role};

/// The copy that is being made.
pub(crate) struct Moving {
    future: Arc<Log>,
    /// How often the log was cut meanwhile. What was read before a cut must not be copied after it.
    cuts: u64,
}

/// What one step of copying did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// Bytes of batches.
    pub bytes: u64,
    /// How many offsets the copy still lacks.
    pub lag: Offset,
}

impl Partition {
    /// Sets the copy that the log moves into, or ends the move.
    pub fn set_future(&self, future: Option<Arc<Log>>) {
        let mut moving = self.moving.lock();
        let same = match (&*moving, &future) {
            (Some(moving), Some(future)) => Arc::ptr_eq(&moving.future, future),
            (None, None) => true,
            _ => false,
        };
        if !same {
            *moving = future.map(|future| Moving { future, cuts: 0 });
        }
    }

    /// The copy that the log moves into.
    pub fn future(&self) -> Option<Arc<Log>> {
        self.moving.lock().as_ref().map(|moving| moving.future.clone())
    }

    /// Copies about `bytes_max` bytes, if the partition moves.
    pub fn copy_to_future(&self, bytes_max: usize) -> Result<Copied, StorageError> {
        let Some((future, cuts)) = self.moving.lock().as_ref().map(|m| (m.future.clone(), m.cuts)) else {
            return Ok(Copied::default());
        };
        let log = self.log();
        let Some(piece) = unless_gone(future.next_piece(&log, bytes_max))? else {
            // Retention was faster; the next step begins where the log begins then.
            return Ok(Copied { bytes: 0, lag: future.lag_behind(&log).max(1) });
        };
        let moving = self.moving.lock();
        match &*moving {
            Some(now) if Arc::ptr_eq(&now.future, &future) && now.cuts == cuts => {
                future.append_piece(&piece)?;
                Ok(Copied { bytes: piece.size(), lag: future.lag_behind(&log) })
            }
            _ => Ok(Copied::default()),
        }
    }

    /// Copies the rest while appends wait, and makes the copy the log. `swap` does so on the disk; it is given the
    /// high watermark, and returns the log. Returns whether the partition has moved.
    pub fn finish_move(
        &self,
        swap: impl FnOnce(Offset) -> Result<Arc<Log>, StorageError>,
    ) -> Result<bool, StorageError> {
        /// Of the last bit, so much at a time.
        const PIECE_BYTES: usize = 1 << 20;
        let _writer = self.writer.lock();
        let mut moving = self.moving.lock();
        let Some(Moving { future, .. }) = &*moving else { return Ok(false) };
        let source = self.log();
        loop {
            let Some(piece) = unless_gone(future.next_piece(&source, PIECE_BYTES))? else { return Ok(false) };
            if piece.is_empty() {
                break;
            }
            future.append_piece(&piece)?;
        }
        if future.log_end_offset() != source.log_end_offset() {
            return Ok(false);
        }
        let log = swap(self.state.lock().watermarks.high_watermark())?;
        self.log.store(log);
        *moving = None;
        drop(moving);
        // Who waits looks again, into the log that is there now.
        self.waiters.wake_all();
        Ok(true)
    }

    /// Takes a log that was opened anew in the place of one that had failed; `reopen` does so, which may take minutes:
    /// appends and news of leaders do not wait for it. Returns whether there was one.
    ///
    /// If the disk has lost the end of the log, a leader stops to lead: the others, who have the lost records, would
    /// cut them. See [`Partition::has_lost_records`].
    pub fn replace_failed_log(
        &self,
        reopen: impl FnOnce() -> Result<Option<Arc<Log>>, StorageError>,
    ) -> Result<bool, StorageError> {
        let failed = self.log();
        let Some(log) = reopen()? else { return Ok(false) };
        let _writer = self.writer.lock();
        if !Arc::ptr_eq(&failed, &self.log()) {
            return Ok(false);
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_shorter = log.log_end_offset() < failed.log_end_offset();
        match &state.role {
            Role::Leader(leader) if is_shorter && leader.isr().iter().any(|node| *node != self.local) => {
                state.has_lost_records = true;
                state.role = Role::Follower { leader: None };
            }
            // Nobody else could lead.
            Role::Leader(_) => {}
            Role::Idle | Role::Follower { .. } => state.has_lost_records |= is_shorter,
        }
        state.watermarks.follow_log(&log);
        self.log.store(log);
        drop(guard);
        self.waiters.wake_all();
        Ok(true)
    }

    /// Cuts the copy like the log. The caller holds the writer's lock.
    pub(crate) fn truncate_future(&self, offset: Offset) -> Result<(), StorageError> {
        let mut moving = self.moving.lock();
        let Some(moving) = &mut *moving else { return Ok(()) };
        moving.cuts += 1;
        moving.future.truncate_to(offset).map(drop)
    }

    /// Does something with the log, and does it again if the log was swapped meanwhile: the old one answers
    /// nobody any more.
    pub(crate) fn with_log<T, E>(&self, action: impl Fn(&Log) -> Result<T, E>) -> Result<T, E> {
        loop {
            let log = self.log();
            match action(&log) {
                Err(_) if !Arc::ptr_eq(&log, &self.log()) => {}
                result => return result,
            }
        }
    }
}

/// A copy is read from where the log says it begins; where it begins later by now, there is nothing to read.
fn unless_gone(piece: Result<Piece, ReadError>) -> Result<Option<Piece>, StorageError> {
    match piece {
        Ok(piece) => Ok(Some(piece)),
        Err(ReadError::OutOfRange { .. }) => Ok(None),
        Err(ReadError::Storage(error)) => Err(error),
    }
}
