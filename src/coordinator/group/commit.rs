//! OffsetCommit and OffsetDelete.

use std::collections::BTreeSet;
use std::sync::Arc;

use klamm_metadata::Image;
use klamm_model::{ErrorCode, TimestampMs};
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use klamm_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};

use super::classic::{CONSUMER, Group, State};
use super::message::{Effects, InTransaction, Now, Reply, Then, Ticket};
use super::offsets::CommittedOffset;
use super::record::GroupRecord;
use super::unreadable::RecordKey;
use super::{GroupShard, Turn};
use crate::machine::Form;
use crate::planted::planted;

/// The first version whose clients know GROUP_ID_NOT_FOUND as an answer (KIP-848).
const FIRST_VERSION_WITH_GROUP_NOT_FOUND: i16 = 9;
/// The same of TxnOffsetCommit.
const FIRST_TRANSACTION_WITH_GROUP_NOT_FOUND: i16 = 6;

impl GroupShard {
    pub(super) fn commit(
        &mut self,
        now: Now,
        ticket: Ticket,
        version: i16,
        request: &OffsetCommitRequest,
    ) -> Effects {
        let checked = match self.turn(now, &request.group_id) {
            Some((group, turn)) => check(turn, group, request),
            None => check_without_group(request, version >= FIRST_VERSION_WITH_GROUP_NOT_FOUND),
        };
        match checked {
            Ok(()) => self.write_offsets(now, ticket, request, Form::Plain),
            Err(error) => Effects::reply(ticket, Reply::Refused(error)),
        }
    }

    /// As [`GroupShard::commit`], but what is written counts only when the transaction is committed (KIP-447).
    pub(super) fn commit_in_transaction(
        &mut self,
        now: Now,
        ticket: Ticket,
        version: i16,
        request: &OffsetCommitRequest,
        transaction: InTransaction,
    ) -> Effects {
        let checked = match self.groups.get(&*request.group_id) {
            Some(group) => check_in_transaction(group, request),
            None => check_without_group(request, version >= FIRST_TRANSACTION_WITH_GROUP_NOT_FOUND),
        };
        let InTransaction { producer_id, producer_epoch, guard } = transaction;
        let form = Form::OfTransaction { producer_id, producer_epoch, guard };
        match checked {
            Ok(()) => self.write_offsets(now, ticket, request, form),
            Err(error) => Effects::reply(ticket, Reply::Refused(error)),
        }
    }

    /// Writes what a commit that was let through brings, but for what is too long.
    fn write_offsets(&self, now: Now, ticket: Ticket, request: &OffsetCommitRequest, form: Form) -> Effects {
        let (records, reply) = self.records_of(now, request);
        let reply = Reply::Commit(reply);
        if records.is_empty() {
            return Effects::reply(ticket, reply);
        }
        Effects::write_as(form, records, Then::Reply { ticket, reply })
    }

    fn records_of(
        &self,
        now: Now,
        request: &OffsetCommitRequest,
    ) -> (Vec<GroupRecord>, OffsetCommitResponse) {
        let known = self.groups.get_key_value(&*request.group_id).map(|(id, _)| id.clone());
        let group = known.unwrap_or_else(|| request.group_id.as_str().into());
        let metadata_max = usize::try_from(self.settings.offset_metadata_max_bytes).unwrap_or(0);
        let mut records = Vec::new();
        let mut reply = OffsetCommitResponse::default();
        for topic in &request.topics {
            let known = self.topics.get(&*topic.name).cloned();
            let name: Arc<str> = known.unwrap_or_else(|| topic.name.as_str().into());
            let mut answered = answer_topic(topic);
            for partition in &topic.partitions {
                let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
                let is_too_long =
                    metadata.len() > metadata_max && metadata.encode_utf16().count() > metadata_max;
                if is_too_long {
                    answered.partitions.push(answer(partition, ErrorCode::OffsetMetadataTooLarge));
                    continue;
                }
                answered.partitions.push(answer(partition, ErrorCode::None));
                records.push(GroupRecord::Offset {
                    group: group.clone(),
                    topic: name.clone(),
                    partition: partition.partition_index,
                    value: Some(committed(now.wall_ms, request, topic, partition)),
                });
            }
            reply.topics.push(answered);
        }
        (records, reply)
    }

    pub(super) fn delete_offsets(&mut self, ticket: Ticket, request: OffsetDeleteRequest) -> Effects {
        let checked = match self.groups.get_key_value(&*request.group_id) {
            None => Err(ErrorCode::GroupIdNotFound),
            Some((_, group)) if group.state == State::Empty => Ok(group),
            Some((_, group)) if group.protocol_type.as_deref() == Some(CONSUMER) => Ok(group),
            Some(_) => Err(ErrorCode::NonEmptyGroup),
        };
        let group = match checked {
            Ok(group) => group,
            Err(error) => {
                let reply = OffsetDeleteResponse { error_code: error.code(), ..Default::default() };
                return Effects::reply(ticket, Reply::DeleteOffsets(reply));
            }
        };
        let mut records = Vec::new();
        let mut reply = OffsetDeleteResponse::default();
        for topic in &request.topics {
            let is_read = group.state != State::Empty && group.is_subscribed_to(&topic.name);
            let error = if is_read { ErrorCode::GroupSubscribedToTopic } else { ErrorCode::None };
            let mut answered = OffsetDeleteResponseTopic { name: topic.name.clone(), ..Default::default() };
            for partition in topic.partitions.iter().map(|partition| partition.partition_index) {
                let error_code = error.code();
                let answer = OffsetDeleteResponsePartition { partition_index: partition, error_code };
                answered.partitions.push(answer);
                if !is_read {
                    records.extend(self.offset_tombstone(group, &topic.name, partition));
                }
            }
            reply.topics.push(answered);
        }
        let reply = Reply::DeleteOffsets(reply);
        if records.is_empty() {
            return Effects::reply(ticket, reply);
        }
        Effects::write(records, Then::Reply { ticket, reply })
    }

    /// The tombstone for a partition that has a committed or a pending offset, or one that cannot be read.
    pub(super) fn offset_tombstone(&self, group: &Group, topic: &str, partition: i32) -> Option<GroupRecord> {
        let known = self.topics.get(topic).cloned();
        let name: Arc<str> = known.unwrap_or_else(|| topic.into());
        let is_committed = self.offsets.get(&group.id, topic, partition).is_some();
        let key = RecordKey::of_offset(&group.id, &name, partition);
        let is_there = is_committed
            || self.pending.contains(&group.id, &name, partition)
            || self.unreadable.contains(&key);
        let group = group.id.clone();
        is_there.then_some(GroupRecord::Offset { group, topic: name, partition, value: None })
    }

    /// Deletes the offsets of topics that were deleted, pending ones too. What was committed since for a new
    /// topic of the same name stays.
    pub(super) fn drop_topics(&self, ticket: Ticket, names: &[String], image: &Image) -> Effects {
        let is_named = |topic: &str| names.iter().any(|name| name == topic);
        let records = self.tombstones(is_named, |topic, offset| {
            image.topic_ids.get(topic).is_none_or(|successor| *successor != offset.topic_id)
        });
        if records.is_empty() {
            return Effects::reply(ticket, Reply::TopicsDeleted);
        }
        Effects::write(records, Then::Reply { ticket, reply: Reply::TopicsDeleted })
    }

    /// Deletes the offsets of topics that are no more, or whose name another topic has now; to be called after
    /// loading. The node that led before may have ended between the deletion of a topic and that of its offsets.
    pub fn drop_stale_offsets(&self, image: &Image) -> Effects {
        let records = self.tombstones(|_| true, |topic, offset| offset.is_stale(image, topic));
        if records.is_empty() {
            return Effects::default();
        }
        tracing::info!(offsets = records.len(), "dropped the offsets of topics that were deleted");
        Effects::write(records, Then::Nothing)
    }

    /// Tombstones for the places, among those of some topics, where all that is committed and pending is to go.
    fn tombstones(
        &self,
        is_looked_at: impl Fn(&str) -> bool,
        is_to_go: impl Fn(&str, &CommittedOffset) -> bool,
    ) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        for id in self.groups.keys() {
            let committed = self.offsets.of_group(id).filter(|(topic, _)| is_looked_at(topic));
            let committed = committed.flat_map(|(topic, all)| all.map(move |(index, _)| (topic, index)));
            let pending = self.pending.places_of(id).map(|(_, topic, index)| (topic, *index));
            let pending = pending.filter(|(topic, _)| is_looked_at(topic));
            let places: BTreeSet<(&Arc<str>, i32)> = committed.chain(pending).collect();
            for (topic, partition) in places {
                let committed = self.offsets.get(id, topic, partition);
                let mut offsets = committed.into_iter().chain(self.pending.offsets_at(id, topic, partition));
                if offsets.all(|offset| is_to_go(topic, offset)) {
                    let (group, topic) = (id.clone(), topic.clone());
                    records.push(GroupRecord::Offset { group, topic, partition, value: None });
                }
            }
        }
        records
    }
}

/// Whether a commit may make its group. Without a generation it comes from a consumer that assigns itself, or from
/// a tool: the offsets alone make the group.
fn check_without_group(request: &OffsetCommitRequest, knows_not_found: bool) -> Result<(), ErrorCode> {
    match request.generation_id_or_member_epoch {
        ..0 => Ok(()),
        _ if knows_not_found => Err(ErrorCode::GroupIdNotFound),
        _ => Err(ErrorCode::IllegalGeneration),
    }
}

/// Whether the commit is one that the group allows now.
fn check(mut turn: Turn<'_>, group: &Group, request: &OffsetCommitRequest) -> Result<(), ErrorCode> {
    let generation = request.generation_id_or_member_epoch;
    let instance_id = request.group_instance_id.as_deref();
    if generation < 0 && group.state == State::Empty {
        return Ok(());
    }
    if generation < 0 && request.member_id.is_empty() && instance_id.is_none() {
        return Err(ErrorCode::UnknownMemberId);
    }
    if planted!(AcceptOldGeneration) {
        return Ok(());
    }
    group.check_member(&request.member_id, instance_id)?;
    if generation != group.generation {
        return Err(ErrorCode::IllegalGeneration);
    }
    match group.state {
        State::CompletingRebalance => Err(ErrorCode::RebalanceInProgress),
        State::Stable | State::PreparingRebalance => {
            // A commit shows that the member lives as well as a heartbeat does.
            turn.restart_session(group, &request.member_id);
            Ok(())
        }
        State::Empty => Ok(()),
    }
}

/// Producers before KIP-447 name neither member nor generation, and are let through. A rebalance is no reason to
/// refuse: whoever has an old generation is told so.
fn check_in_transaction(group: &Group, request: &OffsetCommitRequest) -> Result<(), ErrorCode> {
    let generation = request.generation_id_or_member_epoch;
    let instance_id = request.group_instance_id.as_deref();
    let names_nobody = generation < 0 && request.member_id.is_empty() && instance_id.is_none();
    if names_nobody || (generation < 0 && group.state == State::Empty) {
        return Ok(());
    }
    group.check_member(&request.member_id, instance_id)?;
    if generation == group.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
}

fn committed(
    now_ms: TimestampMs,
    request: &OffsetCommitRequest,
    topic: &OffsetCommitRequestTopic,
    partition: &OffsetCommitRequestPartition,
) -> CommittedOffset {
    let retention_ms = Some(request.retention_time_ms).filter(|retention| *retention >= 0);
    let said = partition.commit_timestamp;
    CommittedOffset {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.committed_metadata.clone().unwrap_or_default(),
        commit_timestamp_ms: if said < 0 { now_ms } else { said },
        expire_timestamp_ms: retention_ms.map(|retention| now_ms.saturating_add(retention)),
        topic_id: topic.topic_id,
        record_offset: -1,
    }
}

fn answer_topic(topic: &OffsetCommitRequestTopic) -> OffsetCommitResponseTopic {
    OffsetCommitResponseTopic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        ..OffsetCommitResponseTopic::default()
    }
}

fn answer(partition: &OffsetCommitRequestPartition, error: ErrorCode) -> OffsetCommitResponsePartition {
    let partition_index = partition.partition_index;
    OffsetCommitResponsePartition { partition_index, error_code: error.code() }
}
