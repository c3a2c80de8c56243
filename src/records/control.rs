//! Control records: what a broker writes into a partition for readers of transactions. Clients never see them.

use bytes::Bytes;
use klamm_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

use crate::batch::Batch;
use crate::builder::{BatchBuilder, BatchSettings};
use crate::error::RecordsError;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;
const VERSION: i16 = 0;

/// The end of a transaction in one partition (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// Whether the transaction's records count.
    pub commit: bool,
    /// The transaction coordinator's epoch: an older coordinator's marker is refused.
    pub coordinator_epoch: i32,
}

/// What a control record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRecord {
    /// The end of a transaction.
    EndTxn(EndTxnMarker),
    /// A kind that a partition of a topic needs not know (those of KRaft).
    Other {
        /// The type in the record's key.
        kind: i16,
    },
}

impl EndTxnMarker {
    /// A whole control batch with this marker, for [`crate::validate_for_append`] or a direct append.
    pub fn batch(
        self,
        base_offset: Offset,
        timestamp: TimestampMs,
        producer: (ProducerId, ProducerEpoch),
        partition_leader_epoch: LeaderEpoch,
    ) -> Bytes {
        let mut key = [0; 4];
        key[..2].copy_from_slice(&VERSION.to_be_bytes());
        key[2..].copy_from_slice(&(if self.commit { COMMIT } else { ABORT }).to_be_bytes());
        let mut value = [0; 6];
        value[..2].copy_from_slice(&VERSION.to_be_bytes());
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        let mut builder = BatchBuilder::v2(BatchSettings {
            base_offset,
            partition_leader_epoch,
            producer_id: producer.0,
            producer_epoch: producer.1,
            transactional: true,
            control: true,
            ..BatchSettings::default()
        });
        builder.append(timestamp, Some(&key), Some(&value), &[]);
        builder.build()
    }
}

impl Batch {
    /// What the control record in this batch says. A control batch holds exactly one.
    pub fn control_record(&self) -> Result<ControlRecord, RecordsError> {
        let invalid = |reason| RecordsError::InvalidRecord { offset: self.header.base_offset, reason };
        if !self.header.is_control() {
            return Err(invalid("it is no control record"));
        }
        let record =
            self.record_iter()?.next().ok_or_else(|| invalid("a control batch without a record"))??;
        let key = record.key.ok_or_else(|| invalid("a control record without a key"))?;
        let [v1, v2, k1, k2, ..] = key[..] else {
            return Err(invalid("the key of a control record is too short"));
        };
        if i16::from_be_bytes([v1, v2]) < 0 {
            return Err(invalid("a control record of a negative version"));
        }
        let kind = i16::from_be_bytes([k1, k2]);
        if kind != ABORT && kind != COMMIT {
            return Ok(ControlRecord::Other { kind });
        }
        let value = record.value.unwrap_or_default();
        let [v1, v2, e1, e2, e3, e4, ..] = value[..] else {
            return Err(invalid("the value of a transaction marker is too short"));
        };
        if i16::from_be_bytes([v1, v2]) < 0 {
            return Err(invalid("a transaction marker of a negative version"));
        }
        let coordinator_epoch = i32::from_be_bytes([e1, e2, e3, e4]);
        Ok(ControlRecord::EndTxn(EndTxnMarker { commit: kind == COMMIT, coordinator_epoch }))
    }
}
