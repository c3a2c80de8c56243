//! The records of `__transaction_state`, as bytes and as values. A key is an int16, its kind 0, and the
//! transactional id.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use klamm_model::{ProducerEpoch, ProducerId};
use klamm_protocol::records::transaction_state::transaction_log_key::TransactionLogKey;
use klamm_protocol::records::transaction_state::transaction_log_value::{
    PartitionsSchema, TransactionLogValue,
};
use klamm_protocol::{DecodeError, EncodeError, decode_versioned, encode_coordinator_key, encode_versioned};

use super::state::{State, Transaction, TransactionVersion};

const TRANSACTION: i16 = 0;

/// The version of values that Kafka 4.4 writes.
const VALUE_VERSION: i16 = 1;

/// The number of the state of a transactional id that is being removed; Kafka 4.4 does not write it.
const DEAD: i8 = 6;

/// A record of `__transaction_state`. A value of `None` is a tombstone.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionRecord {
    /// The transactional id.
    pub transactional_id: Arc<str>,
    /// Its state.
    pub value: Option<Transaction>,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The key is of another kind.
    #[error("the key is of kind {kind}")]
    Kind {
        /// The kind, or -1.
        kind: i16,
    },
    /// The key is cut off.
    #[error("the key cannot be read: {0}")]
    Key(DecodeError),
    /// The value is of no version that is known, or damaged.
    #[error("the value cannot be read: {source}")]
    Value {
        /// The transactional id.
        transactional_id: String,
        /// Why.
        source: DecodeError,
    },
    /// The state has a number that no Kafka up to 4.4 writes.
    #[error("the state has the number {number}")]
    State {
        /// The transactional id.
        transactional_id: String,
        /// The number.
        number: i8,
    },
}

impl TransactionRecord {
    /// Key and value.
    ///
    /// # Errors
    /// When a name is too long for the format.
    pub fn encode(&self) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        let transactional_id = self.transactional_id.to_string();
        let key = encode_coordinator_key(&TransactionLogKey { transactional_id })?;
        let value = self.value.as_ref().map(|value| encode_versioned(&stored(value), VALUE_VERSION));
        Ok((key, value.transpose()?))
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When the bytes are no record of a transaction.
    pub fn decode(key: Bytes, value: Option<Bytes>) -> Result<TransactionRecord, RecordError> {
        let kind = key.first_chunk().map_or(-1, |bytes| i16::from_be_bytes(*bytes));
        if kind != TRANSACTION {
            return Err(RecordError::Kind { kind });
        }
        let (key, _) = decode_versioned::<TransactionLogKey>(key).map_err(RecordError::Key)?;
        let transactional_id: Arc<str> = key.transactional_id.as_str().into();
        let Some(value) = value else {
            return Ok(TransactionRecord { transactional_id, value: None });
        };
        let (value, _) = decode_versioned::<TransactionLogValue>(value).map_err(|source| {
            RecordError::Value { transactional_id: key.transactional_id.clone(), source }
        })?;
        if value.transaction_status == DEAD {
            return Ok(TransactionRecord { transactional_id, value: None });
        }
        let number = value.transaction_status;
        let state = usize::try_from(number).ok().and_then(|number| State::ALL.get(number)).copied();
        let state = state.ok_or(RecordError::State { transactional_id: key.transactional_id, number })?;
        Ok(TransactionRecord { transactional_id, value: Some(loaded(value, state)) })
    }
}

fn stored(value: &Transaction) -> TransactionLogValue {
    let topic = |(topic, partitions): (&Arc<str>, &BTreeSet<i32>)| PartitionsSchema {
        topic: topic.to_string(),
        partition_ids: partitions.iter().copied().collect(),
    };
    TransactionLogValue {
        producer_id: value.producer_id.0,
        previous_producer_id: value.previous_producer_id.0,
        next_producer_id: value.next_producer_id.0,
        producer_epoch: value.producer_epoch.0,
        transaction_timeout_ms: value.timeout_ms,
        transaction_status: value.state as i8,
        transaction_partitions: (value.state != State::Empty)
            .then(|| value.partitions.iter().map(topic).collect()),
        transaction_last_update_timestamp_ms: value.last_update_ms,
        transaction_start_timestamp_ms: value.start_ms,
        client_transaction_version: value.version.0,
        ..TransactionLogValue::default()
    }
}

fn loaded(value: TransactionLogValue, state: State) -> Transaction {
    let topics = value.transaction_partitions.unwrap_or_default().into_iter();
    Transaction {
        producer_id: ProducerId(value.producer_id),
        previous_producer_id: ProducerId(value.previous_producer_id),
        next_producer_id: ProducerId(value.next_producer_id),
        producer_epoch: ProducerEpoch(value.producer_epoch),
        last_producer_epoch: ProducerEpoch::NONE,
        timeout_ms: value.transaction_timeout_ms,
        state,
        partitions: topics
            .map(|topic| (topic.topic.into(), topic.partition_ids.into_iter().collect()))
            .collect(),
        last_update_ms: value.transaction_last_update_timestamp_ms,
        start_ms: value.transaction_start_timestamp_ms,
        version: TransactionVersion(value.client_transaction_version),
    }
}
