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

/// What a record needs at most beside key and value: its length, attributes, timestamp, offset, the lengths of both,
/// and the number of headers.
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

/// The records of one write, and what follows it.
pub(super) struct EncodedWrite<M: Machine> {
    pub(super) records: Vec<Encoded<M>>,
    pub(super) size: usize,
    pub(super) then: M::Then,
}

impl<M: Machine> EncodedWrite<M> {
    pub(super) fn new(records: Vec<Encoded<M>>, then: M::Then) -> EncodedWrite<M> {
        let size = records.iter().map(|record| record.size).sum();
        EncodedWrite { records, size, then }
    }

    /// Takes its first records, as many as fit, where it is larger than a batch and consists of tombstones alone, as
    /// the deletion of a group with very many offsets: these may as well be written one by one. All other
    /// writes are one whole, as in Kafka.
    pub(super) fn take_part(&mut self, bytes_max: usize) -> Option<Vec<Encoded<M>>> {
        if self.size <= bytes_max || self.records.iter().any(|record| record.value.is_some()) {
            return None;
        }
        let mut size = 0;
        let fitting = self.records.iter().take_while(|record| {
            size += record.size;
            size <= bytes_max
        });
        let count = fitting.count().max(1);
        if count >= self.records.len() {
            return None;
        }
        let rest = self.records.split_off(count);
        let part = std::mem::replace(&mut self.records, rest);
        self.size -= part.iter().map(|record| record.size).sum::<usize>();
        Some(part)
    }
}

/// A batch that is being filled.
pub(super) struct Pending<M: Machine> {
    pub(super) writes: Vec<EncodedWrite<M>>,
    pub(super) size: usize,
}

impl<M: Machine> Default for Pending<M> {
    fn default() -> Pending<M> {
        Pending { writes: Vec::new(), size: 0 }
    }
}

impl<M: Machine> Pending<M> {
    pub(super) fn push(&mut self, write: EncodedWrite<M>) {
        self.size += write.size;
        self.writes.push(write);
    }
}

/// A batch of these records, of a transaction or of none.
pub(super) fn build<'a, M: Machine>(
    records: impl Iterator<Item = &'a Encoded<M>>,
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
