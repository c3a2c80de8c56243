//! Batches that a mailbox fills.

use bytes::Bytes;
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId, TimestampMs};
use klamm_protocol::EncodeError;
use klamm_records::{BatchBuilder, BatchSettings};

use crate::machine::Machine;

/// A record and its bytes.
pub(super) struct Encoded<M: Machine> {
    pub(super) record: M::Record,
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
    pub(super) size: usize,
}

/// More than what a record needs beside key and value.
const RECORD_OVERHEAD: usize = 32;

impl<M: Machine> Encoded<M> {
    /// Encodes the records of a write; all of them or none.
    pub(super) fn all(records: Vec<M::Record>) -> Result<Vec<Encoded<M>>, ErrorCode> {
        let encoded: Result<Vec<_>, EncodeError> = records.into_iter().map(Encoded::new).collect();
        encoded.map_err(|error| {
            tracing::warn!(topic = M::TOPIC, %error, "a record cannot be written");
            ErrorCode::UnknownServerError
        })
    }

    fn new(record: M::Record) -> Result<Encoded<M>, EncodeError> {
        let (key, value) = M::encode(&record)?;
        let size = RECORD_OVERHEAD + key.len() + value.as_ref().map_or(0, Bytes::len);
        Ok(Encoded { record, key, value, size })
    }
}

/// A batch that is being filled.
pub(super) struct Pending<M: Machine> {
    pub(super) records: Vec<Encoded<M>>,
    pub(super) size: usize,
    pub(super) thens: Vec<M::Then>,
}

impl<M: Machine> Default for Pending<M> {
    fn default() -> Pending<M> {
        Pending { records: Vec::new(), size: 0, thens: Vec::new() }
    }
}

impl<M: Machine> Pending<M> {
    pub(super) fn push(&mut self, record: Encoded<M>) {
        self.size += record.size;
        self.records.push(record);
    }
}

/// A batch of these records, of a transaction or of none.
pub(super) fn build<M: Machine>(
    records: &[Encoded<M>],
    now_ms: TimestampMs,
    transaction: Option<(ProducerId, ProducerEpoch)>,
) -> Bytes {
    let mut settings = BatchSettings::default();
    if let Some((producer_id, producer_epoch)) = transaction {
        settings = BatchSettings { producer_id, producer_epoch, transactional: true, ..settings };
    }
    let mut builder = BatchBuilder::v2(settings);
    for record in records {
        builder.append(now_ms, Some(&record.key), record.value.as_deref(), &[]);
    }
    builder.build()
}
