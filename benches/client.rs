//! A blocking client that creates a topic and produces a record, through the crate `kafka-protocol`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::describe_quorum_request;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DescribeQuorumRequest, MetadataRequest, ProduceRequest, RequestHeader,
    ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

const METADATA_VERSION: i16 = 9;
const PRODUCE_VERSION: i16 = 9;
const CREATE_TOPICS_VERSION: i16 = 5;
const DESCRIBE_QUORUM_VERSION: i16 = 0;

/// What a batch of one record has beside the record's value, about.
const BATCH_OVERHEAD: usize = 80;

/// No answer that a broker gives a bench is larger.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection to a broker.
pub struct Connection {
    stream: TcpStream,
    correlation_id: i32,
}

impl Connection {
    /// Connects, or says at once that nobody listens.
    pub fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Connection { stream, correlation_id: 0 })
    }

    /// Asks for a topic, which makes it where the broker creates topics by itself. True once its first
    /// partition has a leader.
    pub fn topic_is_ready(&mut self, topic: &str) -> Result<bool> {
        let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request =
            MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(true);
        let response = self.call(METADATA_VERSION, &request)?;
        let found = response.topics.first().context("Metadata answers without the topic")?;
        Ok(found.error_code == 0
            && found
                .partitions
                .first()
                .is_some_and(|partition| partition.error_code == 0 && partition.leader_id.0 >= 0))
    }

    /// Makes a topic whose partitions have so many replicas each.
    pub fn create_topic(&mut self, topic: &str, partitions: i32, replicas: i16) -> Result<()> {
        let topic = CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(replicas);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
        let response = self.call(CREATE_TOPICS_VERSION, &request)?;
        let result = response.topics.first().context("CreateTopics answers without the topic")?;
        match result.error_code {
            0 => Ok(()),
            code => bail!("CreateTopics answers with error {code}: {:?}", result.error_message),
        }
    }

    /// Makes a topic of one partition with these replicas, the leader first. Returns the error code, 0 if it was made.
    pub fn create_topic_on(&mut self, topic: &str, replicas: &[i32]) -> Result<i16> {
        let assignment = CreatableReplicaAssignment::default()
            .with_partition_index(0)
            .with_broker_ids(replicas.iter().map(|id| BrokerId(*id)).collect());
        let topic = CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_assignments(vec![assignment]);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(5_000);
        let response = self.call(CREATE_TOPICS_VERSION, &request)?;
        Ok(response.topics.first().context("CreateTopics answers without the topic")?.error_code)
    }

    /// Who leads the topic's first partition and how many are in sync, as this broker knows.
    pub fn leader_of(&mut self, topic: &str) -> Result<Option<(i32, usize)>> {
        let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request =
            MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(false);
        let response = self.call(METADATA_VERSION, &request)?;
        let partition = response.topics.first().and_then(|topic| topic.partitions.first());
        let led = partition.filter(|partition| partition.leader_id.0 >= 0);
        Ok(led.map(|partition| (partition.leader_id.0, partition.isr_nodes.len())))
    }

    /// Which node leads the metadata quorum.
    pub fn controller(&mut self) -> Result<i32> {
        let partition = describe_quorum_request::PartitionData::default().with_partition_index(0);
        let topic = describe_quorum_request::TopicData::default()
            .with_topic_name(name("__cluster_metadata"))
            .with_partitions(vec![partition]);
        let request = DescribeQuorumRequest::default().with_topics(vec![topic]);
        let response = self.call(DESCRIBE_QUORUM_VERSION, &request)?;
        let partition = response.topics.first().and_then(|topic| topic.partitions.first());
        let partition = partition.context("DescribeQuorum answers without the partition")?;
        match partition.error_code {
            0 => Ok(partition.leader_id.0),
            code => bail!("DescribeQuorum answers with error {code}"),
        }
    }

    /// Produces one record with acks=all. `Ok(None)` if it is acknowledged, else the error code.
    pub fn produce(&mut self, topic: &str, value: &'static [u8]) -> Result<Option<i16>> {
        let partition = PartitionProduceData::default()
            .with_index(0)
            .with_records(Some(batch_of(Bytes::from_static(value))?));
        let data = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![partition]);
        let request =
            ProduceRequest::default().with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![data]);
        let response = self.call(PRODUCE_VERSION, &request)?;
        let answered = response.responses.first().and_then(|topic| topic.partition_responses.first());
        let code = answered.context("Produce answers without the partition")?.error_code;
        Ok((code != 0).then_some(code))
    }

    /// Produces one record to each of the first partitions of a topic, with acks=1, in batches of about so many
    /// bytes.
    pub fn produce_to_all(&mut self, topic: &str, partitions: i32, batch_bytes: usize) -> Result<()> {
        let value = vec![0x61; batch_bytes.saturating_sub(BATCH_OVERHEAD)];
        let batch = batch_of(Bytes::from(value))?;
        let partition =
            |index| PartitionProduceData::default().with_index(index).with_records(Some(batch.clone()));
        let data = TopicProduceData::default()
            .with_name(name(topic))
            .with_partition_data((0..partitions).map(partition).collect());
        let request =
            ProduceRequest::default().with_acks(1).with_timeout_ms(30_000).with_topic_data(vec![data]);
        let response = self.call(PRODUCE_VERSION, &request)?;
        let mut answered = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        match answered.find(|partition| partition.error_code != 0) {
            None => Ok(()),
            Some(failed) => bail!("Produce to partition {} answers {}", failed.index, failed.error_code),
        }
    }

    pub(crate) fn call<Q: Request>(&mut self, version: i16, request: &Q) -> Result<Q::Response> {
        self.correlation_id += 1;
        let header = RequestHeader::default()
            .with_request_api_key(Q::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("klamm-benches")));
        let mut body = BytesMut::new();
        header.encode(&mut body, Q::header_version(version))?;
        request.encode(&mut body, version)?;
        let mut frame = Vec::with_capacity(4 + body.len());
        frame.extend_from_slice(&u32::try_from(body.len())?.to_be_bytes());
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame)?;

        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > RESPONSE_BYTES_MAX {
            bail!("the broker answers with a frame of {length} bytes");
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        let mut answer = Bytes::from(answer);
        let header = ResponseHeader::decode(&mut answer, Q::Response::header_version(version))?;
        if header.correlation_id != self.correlation_id {
            bail!("answer {} to request {}", header.correlation_id, self.correlation_id);
        }
        let response = Q::Response::decode(&mut answer, version)?;
        if answer.has_remaining() {
            bail!("{} bytes are left behind the answer", answer.remaining());
        }
        Ok(response)
    }
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

fn batch_of(value: Bytes) -> Result<Bytes> {
    batch_from(value, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
}

/// A batch of one record, from this producer.
pub(crate) fn batch_from(
    value: Bytes,
    producer_id: i64,
    producer_epoch: i16,
    sequence: i32,
) -> Result<Bytes> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let record = Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id,
        producer_epoch,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence,
        timestamp: i64::try_from(now.as_millis())?,
        key: None,
        value: Some(value),
        headers: Default::default(),
    };
    let mut batch = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut batch, [&record], &options)?;
    Ok(batch.freeze())
}
