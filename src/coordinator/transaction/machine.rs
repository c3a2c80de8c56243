//! The shard as the runtime drives it.

use std::sync::Arc;

use bytes::Bytes;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, ProducerId, topic_name};
use klamm_protocol::EncodeError;

use super::TransactionShard;
use super::message::{Effects, Now, Reply, Request, Then, Ticket, WriteMarkers};
use super::record::{RecordError, TransactionRecord};
use crate::machine::{Machine, Origin};

impl Machine for TransactionShard {
    type Record = TransactionRecord;
    type Request = Request;
    type Reply = Reply;
    type Then = Then;
    type Command = WriteMarkers;

    const TOPIC: &'static str = topic_name::TRANSACTION_STATE;

    fn encode(record: &TransactionRecord) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        record.encode()
    }

    fn replay(&mut self, _origin: Origin, record: TransactionRecord) {
        TransactionShard::replay(self, record);
    }

    fn load(&mut self, origin: Origin, key: &[u8], value: Option<&[u8]>) {
        let offset = origin.offset;
        match TransactionRecord::decode(Bytes::copy_from_slice(key), value.map(Bytes::copy_from_slice)) {
            Ok(record) => TransactionShard::replay(self, record),
            Err(error @ (RecordError::Kind { .. } | RecordError::Key(_))) => {
                tracing::warn!(offset, %error, "a record of __transaction_state is ignored");
            }
            Err(error) => {
                tracing::error!(offset, %error, "a transaction's record cannot be read: its id is not served \
                     until transaction.max.timeout.ms after the record was written; a producer that comes then gets \
                     another producer id, and the transactions of the old one, if it had any open, have to be looked \
                     for with kafka-transactions find-hanging");
                if let RecordError::Value { transactional_id, .. }
                | RecordError::State { transactional_id, .. } = error
                {
                    let id: Arc<str> = transactional_id.into();
                    self.transactions.remove(&id);
                    self.unreadable.insert(id, origin.written_ms);
                }
            }
        }
    }

    /// No transaction has records here but that of the log itself.
    fn replay_transaction_end(&mut self, _producer: ProducerId, _is_commit: bool) {}

    fn start(&mut self, now: Now, _image: &Image) -> Effects {
        self.finish_loading(now)
    }

    fn handle(&mut self, now: Now, ticket: Ticket, request: Request) -> Effects {
        TransactionShard::handle(self, now, ticket, request)
    }

    fn completed(&mut self, now: Now, then: Then, outcome: Result<(), ErrorCode>) -> Effects {
        TransactionShard::completed(self, now, then, outcome)
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        TransactionShard::next_deadline_ms(self)
    }

    fn expire(&mut self, now: Now) -> Option<Effects> {
        TransactionShard::expire(self, now)
    }

    fn refusal(error: ErrorCode) -> Reply {
        Reply::Refused(error)
    }

    fn reply_when_committed(ticket: Ticket, reply: Reply) -> Then {
        Then::Reply { ticket, reply }
    }

    /// Each answer says something about what was appended last, a refusal too.
    fn reads(_request: &Request) -> bool {
        true
    }

    fn is_batched(_request: &Request) -> bool {
        false
    }

    fn size(&self) -> (&'static str, usize) {
        ("transactional ids", self.transactions.len())
    }
}
