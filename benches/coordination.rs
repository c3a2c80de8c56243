//! What a client asks of coordinators: groups of one member, their offsets, and producer ids.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest,
    OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, ProducerId, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::client::{Connection, batch_from, name};

/// The last in which a member joins with one request (KIP-394).
const JOIN_GROUP_VERSION: i16 = 3;
const SYNC_GROUP_VERSION: i16 = 2;
const HEARTBEAT_VERSION: i16 = 2;
const OFFSET_COMMIT_VERSION: i16 = 6;
const OFFSET_FETCH_VERSION: i16 = 5;
const FIND_COORDINATOR_VERSION: i16 = 3;
const INIT_PRODUCER_ID_VERSION: i16 = 1;
const PRODUCE_VERSION: i16 = 9;

/// The longest that brokers grant by default.
const SESSION_TIMEOUT_MS: i32 = 1_800_000;

/// What a member's subscription or assignment takes, about.
const PROTOCOL_BYTES: &[u8] = &[0x61; 40];

/// Not an error of a request but a coordinator that is not there yet: it loads, it is being made, it is elsewhere.
const NOT_YET: [i16; 3] = [14, 15, 16];

/// The one member of a group.
#[derive(Clone, Debug)]
pub struct Member {
    group: GroupId,
    id: StrBytes,
    generation: i32,
}

/// A producer's id, and the sequence of its next record.
#[derive(Clone, Debug)]
pub struct Producer {
    id: i64,
    epoch: i16,
    sequence: i32,
}

fn group_id(group: &str) -> GroupId {
    GroupId(StrBytes::from_string(group.to_owned()))
}

fn succeeded(what: &str, code: i16) -> Result<()> {
    match code {
        0 => Ok(()),
        code => bail!("{what} answers with error {code}"),
    }
}

impl Connection {
    /// Whether groups have coordinators, which are made by being asked for.
    pub fn has_coordinator(&mut self, group: &str) -> Result<bool> {
        let request = FindCoordinatorRequest::default()
            .with_key(StrBytes::from_string(group.to_owned()))
            .with_key_type(0);
        Ok(self.call(FIND_COORDINATOR_VERSION, &request)?.error_code == 0)
    }

    /// Joins a group as its only member, and takes its assignment. `None` while its coordinator is not there yet.
    pub fn join_alone(&mut self, group: &str) -> Result<Option<Member>> {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str("range"))
            .with_metadata(Bytes::from_static(PROTOCOL_BYTES));
        let request = JoinGroupRequest::default()
            .with_group_id(group_id(group))
            .with_session_timeout_ms(SESSION_TIMEOUT_MS)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_protocols(vec![protocol]);
        let joined = self.call(JOIN_GROUP_VERSION, &request)?;
        if NOT_YET.contains(&joined.error_code) {
            return Ok(None);
        }
        succeeded("JoinGroup", joined.error_code)?;
        let member =
            Member { group: group_id(group), id: joined.member_id, generation: joined.generation_id };
        let assignment = SyncGroupRequestAssignment::default()
            .with_member_id(member.id.clone())
            .with_assignment(Bytes::from_static(PROTOCOL_BYTES));
        let request = SyncGroupRequest::default()
            .with_group_id(member.group.clone())
            .with_generation_id(member.generation)
            .with_member_id(member.id.clone())
            .with_assignments(vec![assignment]);
        succeeded("SyncGroup", self.call(SYNC_GROUP_VERSION, &request)?.error_code)?;
        Ok(Some(member))
    }

    /// Says that a member lives.
    pub fn heartbeat(&mut self, member: &Member) -> Result<()> {
        let request = HeartbeatRequest::default()
            .with_group_id(member.group.clone())
            .with_generation_id(member.generation)
            .with_member_id(member.id.clone());
        succeeded("Heartbeat", self.call(HEARTBEAT_VERSION, &request)?.error_code)
    }

    /// A member commits this offset of the first partition of a topic.
    pub fn commit(&mut self, member: &Member, topic: &str, offset: i64) -> Result<()> {
        let request = OffsetCommitRequest::default()
            .with_group_id(member.group.clone())
            .with_generation_id_or_member_epoch(member.generation)
            .with_member_id(member.id.clone());
        self.commit_as(request, topic, 1, offset)
    }

    /// Commits this offset of each of the first partitions of a topic, for a group without members.
    pub fn commit_simply(&mut self, group: &str, topic: &str, partitions: i32, offset: i64) -> Result<()> {
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id_or_member_epoch(-1);
        self.commit_as(request, topic, partitions, offset)
    }

    fn commit_as(
        &mut self,
        request: OffsetCommitRequest,
        topic: &str,
        partitions: i32,
        offset: i64,
    ) -> Result<()> {
        let partition = |index| {
            OffsetCommitRequestPartition::default().with_partition_index(index).with_committed_offset(offset)
        };
        let topic = OffsetCommitRequestTopic::default()
            .with_name(name(topic))
            .with_partitions((0..partitions).map(partition).collect());
        let answer = self.call(OFFSET_COMMIT_VERSION, &request.with_topics(vec![topic]))?;
        let codes = answer.topics.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code);
        codes.into_iter().try_for_each(|code| succeeded("OffsetCommit", code))
    }

    /// What a group has committed of one partition of a topic. `None` while its coordinator is not there yet.
    pub fn committed(&mut self, group: &str, topic: &str, partition: i32) -> Result<Option<i64>> {
        let topic =
            OffsetFetchRequestTopic::default().with_name(name(topic)).with_partition_indexes(vec![partition]);
        let request =
            OffsetFetchRequest::default().with_group_id(group_id(group)).with_topics(Some(vec![topic]));
        let answer = self.call(OFFSET_FETCH_VERSION, &request)?;
        if NOT_YET.contains(&answer.error_code) {
            return Ok(None);
        }
        succeeded("OffsetFetch", answer.error_code)?;
        let partition = answer.topics.first().and_then(|topic| topic.partitions.first());
        Ok(Some(partition.context("OffsetFetch answers without the partition")?.committed_offset))
    }

    /// A new producer id, as soon as the broker has one to give: it gets them in blocks.
    pub fn init_producer(&mut self) -> Result<Producer> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let mut answer = self.call(INIT_PRODUCER_ID_VERSION, &request)?;
        while NOT_YET.contains(&answer.error_code) {
            std::thread::sleep(Duration::from_millis(1));
            answer = self.call(INIT_PRODUCER_ID_VERSION, &request)?;
        }
        succeeded("InitProducerId", answer.error_code)?;
        Ok(Producer { id: answer.producer_id.0, epoch: answer.producer_epoch, sequence: 0 })
    }

    /// Produces a producer's next record to the first partition of a topic, with acks=all.
    pub fn produce_next(&mut self, producer: &mut Producer, topic: &str) -> Result<()> {
        let value = Bytes::from_static(PROTOCOL_BYTES);
        let batch = batch_from(value, producer.id, producer.epoch, producer.sequence)?;
        let partition = PartitionProduceData::default().with_index(0).with_records(Some(batch));
        let data = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![partition]);
        let request =
            ProduceRequest::default().with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![data]);
        let answer = self.call(PRODUCE_VERSION, &request)?;
        let answered = answer.responses.first().and_then(|topic| topic.partition_responses.first());
        succeeded("Produce", answered.context("Produce answers without the partition")?.error_code)?;
        producer.sequence += 1;
        Ok(())
    }
}
