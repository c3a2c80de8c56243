//! The shard as the runtime drives it.

use std::convert::Infallible;

use bytes::Bytes;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, ProducerId, topic_name};
use klamm_protocol::EncodeError;

use super::message::{Effects, Now, Reply, Request, Then, Ticket};
use super::record::{GroupRecord, RecordError};
use super::unreadable::RecordKey;
use super::{GroupShard, Origin};
use crate::machine::Machine;

impl Machine for GroupShard {
    type Record = GroupRecord;
    type Request = Request;
    type Reply = Reply;
    type Then = Then;
    type Command = Infallible;

    const TOPIC: &'static str = topic_name::GROUP_METADATA;

    fn encode(record: &GroupRecord) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        record.encode()
    }

    fn replay(&mut self, origin: Origin, record: GroupRecord) {
        GroupShard::replay(self, origin, record);
    }

    fn load(&mut self, origin: Origin, key: &[u8], value: Option<&[u8]>) {
        if self.replay_again(origin, key, value) {
            return;
        }
        let offset = origin.offset;
        match GroupRecord::decode(key, value, offset) {
            Ok(Some(record)) => self.replay(origin, record),
            Ok(None) => {}
            Err(error @ RecordError::Key { .. }) => {
                tracing::warn!(offset, %error, "a record of __consumer_offsets is ignored");
            }
            Err(RecordError::Value { key, source }) => {
                let RecordKey { group, place } = &key;
                tracing::error!(
                    offset,
                    group = &**group,
                    ?place,
                    error = %source,
                    "a group's record cannot be read: the group is not served until a newer record of the same key \
                     is found; a group without members can be deleted"
                );
                self.replay_unreadable(origin, key);
            }
        }
    }

    fn replay_transaction_end(&mut self, producer: ProducerId, is_commit: bool) {
        GroupShard::replay_transaction_end(self, producer, is_commit);
    }

    fn start(&mut self, now: Now, image: &Image) -> Effects {
        let mut effects = self.finish_loading(now);
        effects.extend(self.drop_stale_offsets(image));
        effects
    }

    fn handle(&mut self, now: Now, ticket: Ticket, request: Request) -> Effects {
        GroupShard::handle(self, now, ticket, request)
    }

    fn completed(&mut self, now: Now, then: Then, outcome: Result<(), ErrorCode>) -> Effects {
        GroupShard::completed(self, now, then, outcome)
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        GroupShard::next_deadline_ms(self)
    }

    fn expire(&mut self, now: Now) -> Option<Effects> {
        GroupShard::expire(self, now)
    }

    fn refusal(error: ErrorCode) -> Reply {
        Reply::Refused(error)
    }

    fn reply_when_committed(ticket: Ticket, reply: Reply) -> Then {
        Then::Reply { ticket, reply }
    }

    /// All that tell what is stored. That a group or an offset is not there rests on a tombstone, which may be lost
    /// as well as what is there.
    fn reads(request: &Request) -> bool {
        match request {
            Request::Fetch(_)
            | Request::Describe { .. }
            | Request::List { .. }
            | Request::Delete { .. }
            | Request::DeleteOffsets(_) => true,
            Request::Join(_)
            | Request::Sync(_)
            | Request::Heartbeat(_)
            | Request::Leave(_)
            | Request::Commit { .. }
            | Request::CommitInTransaction { .. }
            | Request::EndTransaction(_)
            | Request::TopicsDeleted { .. } => false,
        }
    }

    fn is_batched(request: &Request) -> bool {
        matches!(request, Request::Commit { .. })
    }

    fn size(&self) -> (&'static str, usize) {
        ("groups", self.group_count())
    }
}
