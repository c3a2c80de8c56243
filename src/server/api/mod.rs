//! The table of APIs: what is served, in which versions, on which listeners, by which function. Nothing else
//! in this crate looks at API keys.

mod add_offsets_to_txn;
mod add_partitions_to_txn;
mod add_raft_voter;
mod allocate_producer_ids;
mod alter_client_quotas;
mod alter_configs;
mod alter_partition;
mod alter_partition_reassignments;
mod alter_replica_log_dirs;
mod alter_user_scram_credentials;
mod api_versions;
mod assign_replicas_to_dirs;
mod broker_heartbeat;
mod broker_registration;
mod create_acls;
mod create_delegation_token;
mod create_partitions;
mod create_topics;
mod delete_acls;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_acls;
mod describe_client_quotas;
mod describe_cluster;
mod describe_configs;
mod describe_delegation_token;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_quorum;
mod describe_topic_partitions;
mod describe_transactions;
mod describe_user_scram_credentials;
mod elect_leaders;
mod end_txn;
mod expire_delegation_token;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_config_resources;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
mod list_transactions;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod produce;
mod remove_raft_voter;
mod renew_delegation_token;
mod sync_group;
mod txn_offset_commit;
mod unregister_broker;
mod update_features;
mod update_raft_voter;
mod write_txn_markers;

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::BoxFuture;
use klamm_metadata::QuorumMessage;
use klamm_protocol::messages::*;
use klamm_protocol::{
    ApiKey, Chunk, Frame, HeaderPeek, ListenerKind, Message, Reader, Request, RequestHeader,
};
use klamm_storage::LogSlice;

use crate::client_quotas::{ConnectionQuotas, Quota, throttle_time_ms};
use crate::context::Context;
use crate::listener::Endpoint;
use crate::peers::QUORUM_KEY;

/// Who every client is while none is authenticated: a principal of the type `User`.
pub(crate) const ANONYMOUS: &str = "ANONYMOUS";

/// A request's circumstances.
pub(crate) struct Call {
    /// Which API.
    pub(crate) key: ApiKey,
    /// In which version.
    pub(crate) version: i16,
    /// The number that the answer carries.
    pub(crate) correlation_id: i32,
    /// How long its frame is.
    pub(crate) bytes: usize,
    /// The client's name for itself.
    pub(crate) client_id: Option<String>,
    /// What its connection keeps of quotas.
    pub(crate) quotas: Arc<ConnectionQuotas>,
    /// The listener that it came in on.
    pub(crate) endpoint: Arc<Endpoint>,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
}

/// An answer: bytes with holes, and what fills the holes.
pub(crate) struct Reply {
    pub(crate) frame: Frame,
    pub(crate) slices: Vec<LogSlice>,
    /// Whether it goes to another broker, which no quota binds.
    pub(crate) is_for_broker: bool,
}

impl Reply {
    fn new(frame: Frame, slices: Vec<LogSlice>) -> Reply {
        Reply { frame, slices, is_for_broker: false }
    }
}

/// Why this side ends a connection.
#[derive(Debug)]
pub(crate) enum Closed {
    /// The client sent what cannot be parsed or is not served.
    Malformed(String),
    /// The client does not read its answers.
    NotRead,
    /// The socket failed.
    Io(io::Error),
    /// A request that wants no answer failed, so that closing is the only way to say so.
    Refused,
}

/// The future of an answer; `None` where the client wants none.
pub(crate) type Answer = BoxFuture<'static, Result<Option<Reply>, Closed>>;

/// A pipelined request that has begun.
pub(crate) enum Begun {
    /// Its first stage is done.
    Done(Answer),
    /// Its first stage waits for another coordinator. The requests behind it wait too.
    Waits(BoxFuture<'static, Result<Answer, Closed>>),
}

/// How an API runs.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// When all earlier requests of the connection have been answered.
    Serial(fn(Arc<Context>, Call, Reader) -> Answer),
    /// As serial, but it may wait long for others. It is given up when its client goes or the node stops.
    Waiting(fn(Arc<Context>, Call, Reader) -> Answer),
    /// Its first stage in order; its answer when it is ready, in order too.
    Pipelined(fn(Arc<Context>, Call, Reader) -> Result<Begun, Closed>),
}

/// A row of the table.
pub(crate) struct Entry {
    /// The API.
    pub(crate) key: ApiKey,
    /// The versions that are served and told.
    pub(crate) versions: RangeInclusive<i16>,
    /// What serves it.
    pub(crate) handler: Handler,
}

/// A row whose handler is an `async fn(&Context, &Call, Request) -> Response`.
macro_rules! row {
    ($kind:ident $key:ident, $versions:expr, $module:ident, $request:ident) => {
        Entry {
            key: ApiKey::$key,
            versions: $versions,
            handler: Handler::$kind(|context, call, mut reader| {
                Box::pin(async move {
                    let request = decode::<$request>(&call, &mut reader)?;
                    let response = $module::handle(&context, &call, request).await;
                    encode(&call, &response).map(Some)
                })
            }),
        }
    };
}

/// All that is served.
pub(crate) static TABLE: &[Entry] = &[
    Entry { key: ApiKey::Produce, versions: 0..=13, handler: Handler::Pipelined(produce::begin) },
    Entry { key: ApiKey::Fetch, versions: 0..=18, handler: Handler::Waiting(fetch::answer) },
    row!(Serial ListOffsets, 0..=11, list_offsets, ListOffsetsRequest),
    row!(Serial Metadata, 0..=13, metadata, MetadataRequest),
    row!(Serial OffsetCommit, 0..=10, offset_commit, OffsetCommitRequest),
    row!(Serial OffsetFetch, 0..=10, offset_fetch, OffsetFetchRequest),
    row!(Serial FindCoordinator, 0..=6, find_coordinator, FindCoordinatorRequest),
    row!(Waiting JoinGroup, 0..=9, join_group, JoinGroupRequest),
    row!(Serial Heartbeat, 0..=4, heartbeat, HeartbeatRequest),
    row!(Serial LeaveGroup, 0..=5, leave_group, LeaveGroupRequest),
    row!(Waiting SyncGroup, 0..=5, sync_group, SyncGroupRequest),
    row!(Serial DescribeGroups, 0..=6, describe_groups, DescribeGroupsRequest),
    row!(Serial ListGroups, 0..=5, list_groups, ListGroupsRequest),
    row!(Serial ApiVersions, 0..=5, api_versions, ApiVersionsRequest),
    row!(Serial CreateTopics, 0..=7, create_topics, CreateTopicsRequest),
    row!(Serial DeleteTopics, 0..=6, delete_topics, DeleteTopicsRequest),
    row!(Waiting DeleteRecords, 0..=2, delete_records, DeleteRecordsRequest),
    row!(Serial InitProducerId, 0..=5, init_producer_id, InitProducerIdRequest),
    row!(Serial OffsetForLeaderEpoch, 0..=4, offset_for_leader_epoch, OffsetForLeaderEpochRequest),
    row!(Serial AddPartitionsToTxn, 0..=5, add_partitions_to_txn, AddPartitionsToTxnRequest),
    row!(Serial AddOffsetsToTxn, 0..=4, add_offsets_to_txn, AddOffsetsToTxnRequest),
    row!(Serial EndTxn, 0..=5, end_txn, EndTxnRequest),
    row!(Serial WriteTxnMarkers, 0..=2, write_txn_markers, WriteTxnMarkersRequest),
    row!(Serial TxnOffsetCommit, 0..=6, txn_offset_commit, TxnOffsetCommitRequest),
    row!(Serial DescribeAcls, 0..=3, describe_acls, DescribeAclsRequest),
    row!(Serial CreateAcls, 0..=3, create_acls, CreateAclsRequest),
    row!(Serial DeleteAcls, 0..=3, delete_acls, DeleteAclsRequest),
    row!(Serial DescribeConfigs, 0..=4, describe_configs, DescribeConfigsRequest),
    row!(Serial AlterConfigs, 0..=2, alter_configs, AlterConfigsRequest),
    row!(Serial AlterReplicaLogDirs, 0..=2, alter_replica_log_dirs, AlterReplicaLogDirsRequest),
    row!(Serial DescribeLogDirs, 0..=5, describe_log_dirs, DescribeLogDirsRequest),
    row!(Serial CreatePartitions, 0..=3, create_partitions, CreatePartitionsRequest),
    row!(Serial CreateDelegationToken, 0..=3, create_delegation_token, CreateDelegationTokenRequest),
    row!(Serial RenewDelegationToken, 0..=2, renew_delegation_token, RenewDelegationTokenRequest),
    row!(Serial ExpireDelegationToken, 0..=2, expire_delegation_token, ExpireDelegationTokenRequest),
    row!(Serial DescribeDelegationToken, 0..=3, describe_delegation_token, DescribeDelegationTokenRequest),
    row!(Serial DeleteGroups, 0..=3, delete_groups, DeleteGroupsRequest),
    row!(Serial ElectLeaders, 0..=2, elect_leaders, ElectLeadersRequest),
    row!(
        Serial AlterPartitionReassignments,
        0..=1,
        alter_partition_reassignments,
        AlterPartitionReassignmentsRequest
    ),
    row!(
        Serial ListPartitionReassignments,
        0..=0,
        list_partition_reassignments,
        ListPartitionReassignmentsRequest
    ),
    row!(Serial IncrementalAlterConfigs, 0..=1, incremental_alter_configs, IncrementalAlterConfigsRequest),
    row!(Serial OffsetDelete, 0..=0, offset_delete, OffsetDeleteRequest),
    row!(Serial DescribeClientQuotas, 0..=1, describe_client_quotas, DescribeClientQuotasRequest),
    row!(Serial AlterClientQuotas, 0..=1, alter_client_quotas, AlterClientQuotasRequest),
    row!(Serial AlterPartition, 2..=3, alter_partition, AlterPartitionRequest),
    row!(
        Serial DescribeUserScramCredentials,
        0..=0,
        describe_user_scram_credentials,
        DescribeUserScramCredentialsRequest
    ),
    row!(
        Serial AlterUserScramCredentials,
        0..=0,
        alter_user_scram_credentials,
        AlterUserScramCredentialsRequest
    ),
    row!(Serial DescribeQuorum, 0..=2, describe_quorum, DescribeQuorumRequest),
    row!(Serial UpdateFeatures, 0..=2, update_features, UpdateFeaturesRequest),
    row!(Serial UnregisterBroker, 0..=0, unregister_broker, UnregisterBrokerRequest),
    row!(Serial DescribeCluster, 0..=2, describe_cluster, DescribeClusterRequest),
    row!(Serial BrokerRegistration, 0..=4, broker_registration, BrokerRegistrationRequest),
    row!(Serial BrokerHeartbeat, 0..=1, broker_heartbeat, BrokerHeartbeatRequest),
    row!(Serial AllocateProducerIds, 0..=0, allocate_producer_ids, AllocateProducerIdsRequest),
    row!(Serial AssignReplicasToDirs, 0..=0, assign_replicas_to_dirs, AssignReplicasToDirsRequest),
    row!(Serial DescribeProducers, 0..=0, describe_producers, DescribeProducersRequest),
    row!(Serial DescribeTransactions, 0..=0, describe_transactions, DescribeTransactionsRequest),
    row!(Serial ListTransactions, 0..=2, list_transactions, ListTransactionsRequest),
    row!(Serial ListConfigResources, 0..=1, list_config_resources, ListConfigResourcesRequest),
    row!(Serial DescribeTopicPartitions, 0..=0, describe_topic_partitions, DescribeTopicPartitionsRequest),
    row!(Serial AddRaftVoter, 0..=1, add_raft_voter, AddRaftVoterRequest),
    row!(Serial RemoveRaftVoter, 0..=0, remove_raft_voter, RemoveRaftVoterRequest),
    row!(Serial UpdateRaftVoter, 0..=0, update_raft_voter, UpdateRaftVoterRequest),
];

/// What Kafka's controllers serve and Klamm's do not: its own quorum speaks another protocol.
const NOT_ON_CONTROLLERS: ApiKey = ApiKey::Fetch;

/// The rows that a listener serves: what Kafka serves on listeners of its kind. Those of controllers serve the
/// brokers, and tools with `--bootstrap-controller` (KIP-919).
fn rows(endpoint: &Endpoint) -> impl Iterator<Item = &'static Entry> {
    let kind = if endpoint.is_controller { ListenerKind::Controller } else { ListenerKind::Broker };
    TABLE.iter().filter(move |entry| {
        entry.key.listeners().contains(&kind)
            && !(kind == ListenerKind::Controller && entry.key == NOT_ON_CONTROLLERS)
    })
}

/// The body of a frame of the quorum's own protocol, and the number that its answer carries. Only listeners of
/// controllers serve it, or that for brokers where there is none, and nobody is told of it.
pub(crate) fn quorum_message(frame: &Bytes, endpoint: &Endpoint) -> Option<(i32, Bytes)> {
    let HeaderPeek { api_key, correlation_id, .. } = RequestHeader::peek(frame)?;
    let is_ours = endpoint.serves_quorum && api_key == QUORUM_KEY;
    (is_ours && frame.len() >= QUORUM_HEADER_BYTES)
        .then(|| (correlation_id, frame.slice(QUORUM_HEADER_BYTES..)))
}

/// Key, version, correlation id, and the client's name, which is null.
const QUORUM_HEADER_BYTES: usize = 10;

/// Answers a message of another node of the quorum.
pub(crate) fn answer_quorum(context: Arc<Context>, correlation_id: i32, message: Bytes) -> Answer {
    Box::pin(async move {
        let answer = context.metadata.answer_peer(QuorumMessage(message)).await;
        let answer =
            answer.map_err(|error| Closed::Malformed(format!("a message of the quorum: {error}")))?;
        let len = i32::try_from(4 + answer.len()).map_err(|_| Closed::Refused)?;
        let head = [len.to_be_bytes(), correlation_id.to_be_bytes()].concat();
        let chunks = vec![Chunk::Bytes(head.into()), Chunk::Bytes(answer)];
        Ok(Some(Reply::new(Frame { chunks }, Vec::new())))
    })
}

/// Whether only brokers ask this, as a part of the cluster that no quota binds.
pub(crate) fn is_of_brokers(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::AlterPartition
            | ApiKey::AllocateProducerIds
            | ApiKey::AssignReplicasToDirs
            | ApiKey::BrokerHeartbeat
            | ApiKey::BrokerRegistration
            | ApiKey::OffsetForLeaderEpoch
            | ApiKey::WriteTxnMarkers
    )
}

/// Reads a frame's header and finds its row; the reader stands at the body.
pub(crate) fn open(
    frame: Bytes,
    endpoint: Arc<Endpoint>,
    peer: SocketAddr,
    local: SocketAddr,
    quotas: Arc<ConnectionQuotas>,
) -> Result<(Call, Reader, &'static Entry), Closed> {
    let Some(HeaderPeek { api_key: key, api_version: version, .. }) = RequestHeader::peek(&frame) else {
        return Err(Closed::Malformed(format!("a frame of {} bytes, too short for a header", frame.len())));
    };
    let Some(entry) = rows(&endpoint).find(|entry| entry.key as i16 == key) else {
        return Err(Closed::Malformed(format!("a request with API key {key}, which is not served")));
    };
    // ApiVersions is answered in any version: a client asks which to use.
    if !entry.versions.contains(&version) && entry.key != ApiKey::ApiVersions {
        return Err(Closed::Malformed(format!(
            "{} version {version}; versions {} to {} are served",
            entry.key.name(),
            entry.versions.start(),
            entry.versions.end()
        )));
    }
    let bytes = frame.len();
    let mut reader = Reader::new(frame);
    let header = RequestHeader::decode(&mut reader)
        .map_err(|error| Closed::Malformed(format!("{} with a bad header: {error}", entry.key.name())))?;
    let call = Call {
        key: entry.key,
        version,
        correlation_id: header.correlation_id,
        bytes,
        client_id: header.client_id,
        quotas,
        endpoint,
        peer,
        local,
    };
    Ok((call, reader, entry))
}

/// Reads the body of a request.
pub(crate) fn decode<R: Request>(call: &Call, reader: &mut Reader) -> Result<R, Closed> {
    let version =
        if call.key == ApiKey::ApiVersions { api_versions::body_version(call.version) } else { call.version };
    R::decode(reader, version).map_err(|error| {
        Closed::Malformed(format!("{} v{version} that cannot be read: {error}", call.key.name()))
    })
}

/// Writes an answer without records.
pub(crate) fn encode<M: Message>(call: &Call, response: &M) -> Result<Reply, Closed> {
    encode_with(call, response, Vec::new())
}

/// Writes an answer whose records are slices of files.
pub(crate) fn encode_with<M: Message>(
    call: &Call,
    response: &M,
    slices: Vec<LogSlice>,
) -> Result<Reply, Closed> {
    let version =
        if call.key == ApiKey::ApiVersions { api_versions::body_version(call.version) } else { call.version };
    let frame = klamm_protocol::encode_response(call.key, version, call.correlation_id, response);
    match frame {
        Ok(frame) => Ok(Reply::new(frame, slices)),
        Err(error) => {
            // Only a fault of ours gets here; the client sees a closed connection and tries again.
            tracing::error!("no answer to {} v{version} could be written: {error}", call.key.name());
            Err(Closed::Refused)
        }
    }
}

impl Call {
    /// Counts what the request took of a quota. Who is over it is not heard for a while; returns the throttle time.
    pub(crate) fn count(&self, context: &Context, quota: Quota, amount: f64) -> i32 {
        let client = self.client_id.as_deref();
        let throttle = context.client_quotas.count(&self.quotas, client, quota, amount);
        self.quotas.mute.extend(context.clock.monotonic_ms(), throttle);
        throttle_time_ms(throttle)
    }

    /// The throttle time where the client may not change topics now, in a version that knows such a refusal. What
    /// brokers pass on was counted where it came in.
    pub(crate) fn changes_refused(&self, context: &Context, known_since: i16) -> Option<i32> {
        if self.endpoint.is_controller || self.version < known_since {
            return None;
        }
        let throttle_time_ms = self.count(context, Quota::ControllerMutation, 0.0);
        (throttle_time_ms > 0).then_some(throttle_time_ms)
    }

    /// Counts partitions that were created or deleted.
    pub(crate) fn count_changes(&self, context: &Context, partitions: usize) -> i32 {
        if self.endpoint.is_controller || partitions == 0 {
            return 0;
        }
        self.count(context, Quota::ControllerMutation, partitions as f64)
    }

    /// The client as the group coordinator knows it.
    fn client(&self) -> klamm_coordinator::Client {
        klamm_coordinator::Client {
            client_id: self.client_id.clone().unwrap_or_default(),
            // As Java writes an address without a name.
            client_host: format!("/{}", self.peer.ip().to_canonical()),
            api_version: self.version,
        }
    }
}
