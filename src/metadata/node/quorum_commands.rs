//! What can be asked of the active controller about the quorum itself: who votes, and how far each member is (KIP-595,
//! KIP-853). The refusals and their words are those of Kafka 4.4.0.

use std::cmp::Ordering;
use std::time::Duration;

use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::add_raft_voter::{AddRaftVoterRequest, AddRaftVoterResponse};
use klamm_protocol::messages::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node, PartitionDataResponse, ReplicaState,
    TopicDataResponse,
};
use klamm_protocol::messages::remove_raft_voter::{RemoveRaftVoterRequest, RemoveRaftVoterResponse};
use klamm_protocol::messages::update_raft_voter::{
    CurrentLeader, UpdateRaftVoterRequest, UpdateRaftVoterResponse,
};

use super::commands::Decisions;
use super::membership::{VoterChange, VoterChangeError};
use super::progress::{QuorumState, ReplicaProgress};
use crate::controller::KRAFT_VERSION;
use crate::quorum::replica_key::ReplicaKey;

/// The name under which the metadata log is described.
const METADATA_TOPIC: &str = "__cluster_metadata";

/// An error and its words.
type Refusal = (ErrorCode, String);

impl Decisions<'_> {
    /// DescribeQuorum. As in Kafka, a request for anything but the one partition of the metadata finds nothing at all.
    pub async fn describe_quorum(&self, request: DescribeQuorumRequest) -> DescribeQuorumResponse {
        let state = tokio::time::timeout(self.limit, self.node.describe_quorum()).await;
        let Ok(Some(state)) = state else {
            let code = ErrorCode::NotLeaderOrFollower;
            return DescribeQuorumResponse { error_code: code.code(), ..Default::default() };
        };
        let names_it = match &request.topics[..] {
            [topic] if topic.topic_name == METADATA_TOPIC => {
                matches!(&topic.partitions[..], [partition] if partition.partition_index == 0)
            }
            _ => false,
        };
        let partition = |index| if names_it { described(&state) } else { unknown(index) };
        let topics = request.topics.into_iter().map(|topic| TopicDataResponse {
            partitions: topic.partitions.iter().map(|it| partition(it.partition_index)).collect(),
            topic_name: topic.topic_name,
        });
        let topics = topics.collect();
        let listener = |(host, port): &(String, u16)| Listener {
            name: self.node.listener.clone(),
            host: host.clone(),
            port: *port,
        };
        let node = |(id, address): (&NodeId, &(String, u16))| Node {
            node_id: id.0,
            listeners: vec![listener(address)],
        };
        let nodes = if names_it { state.addresses.iter().map(node).collect() } else { Vec::new() };
        DescribeQuorumResponse { error_code: 0, error_message: Some(String::new()), topics, nodes }
    }

    /// AddRaftVoter. Unlike Kafka, which may answer before the change is committed (version 1), this waits for it.
    pub async fn add_raft_voter(&self, request: AddRaftVoterRequest) -> AddRaftVoterResponse {
        let limit =
            u64::try_from(request.timeout_ms).map_or(self.limit, Duration::from_millis).min(self.limit);
        let added = async {
            let (id, directory_id) = (request.voter_id, request.voter_directory_id);
            let key = self.check_voter("Add", &request.cluster_id, id, directory_id)?;
            let listeners = request.listeners.iter().map(|it| (it.name.as_str(), it.host.clone(), it.port));
            let address = self.address_in("Add", listeners)?;
            self.check_is_dynamic("adding")?;
            self.change(VoterChange::Add(key, address), limit).await
        };
        let (error_code, error_message) = outcome(added.await);
        AddRaftVoterResponse { error_code, error_message, ..Default::default() }
    }

    /// RemoveRaftVoter.
    pub async fn remove_raft_voter(&self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse {
        let removed = async {
            let (id, directory_id) = (request.voter_id, request.voter_directory_id);
            let key = self.check_voter("Remove", &request.cluster_id, id, directory_id)?;
            self.check_is_dynamic("removing")?;
            self.change(VoterChange::Remove(key), self.limit).await
        };
        let (error_code, error_message) = outcome(removed.await);
        RemoveRaftVoterResponse { error_code, error_message, ..Default::default() }
    }

    /// UpdateRaftVoter. It is for voters that have moved, also where the voters are configured.
    pub async fn update_raft_voter(&self, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse {
        let updated = async {
            let (id, directory_id) = (request.voter_id, request.voter_directory_id);
            self.check_asked(&request.cluster_id)?;
            self.check_epoch(request.current_leader_epoch).await?;
            let key = voter_in("Update", id, directory_id)?;
            let listeners = request.listeners.iter().map(|it| (it.name.as_str(), it.host.clone(), it.port));
            let address = self.address_in("Update", listeners)?;
            self.change(VoterChange::Move(key, address), self.limit).await
        };
        let (error_code, _) = outcome(updated.await);
        let state = self.node.describe_quorum().await;
        let current_leader = state.map_or_else(CurrentLeader::default, |state| {
            let (host, port) = state.addresses.get(&state.leader.id).cloned().unwrap_or_default();
            let (leader_id, leader_epoch) = (state.leader.id.0, state.leader_epoch);
            CurrentLeader { leader_id, leader_epoch, host, port: i32::from(port) }
        });
        UpdateRaftVoterResponse { error_code, current_leader, ..Default::default() }
    }

    /// Refuses a change of who votes where the voters are configured.
    fn check_is_dynamic(&self, doing: &str) -> Result<(), Refusal> {
        if self.node.image().feature(KRAFT_VERSION) > 0 {
            return Ok(());
        }
        let why = format!("Cluster doesn't support {doing} voter because the kraft.version feature is 0");
        Err((ErrorCode::UnsupportedVersion, why))
    }

    /// What must be so for any change of a voter, in Kafka's order.
    fn check_voter(
        &self,
        verb: &str,
        cluster_id: &Option<String>,
        id: i32,
        directory_id: Uuid,
    ) -> Result<ReplicaKey, Refusal> {
        self.check_asked(cluster_id)?;
        voter_in(verb, id, directory_id)
    }

    /// Refuses what was meant for another cluster, or for another node.
    fn check_asked(&self, cluster_id: &Option<String>) -> Result<(), Refusal> {
        let image = self.node.image();
        if let Some(given) = cluster_id.as_ref().filter(|given| **given != image.cluster_id) {
            let why =
                format!("The given id \"{given}\" doesn't match the cluster id \"{}\"", image.cluster_id);
            return Err((ErrorCode::InconsistentClusterId, why));
        }
        if !self.node.is_controller() {
            return Err((ErrorCode::NotLeaderOrFollower, VoterChangeError::NotLeader.to_string()));
        }
        Ok(())
    }

    /// Refuses what was meant for the leader of another epoch.
    async fn check_epoch(&self, given: i32) -> Result<(), Refusal> {
        let not_leader = || (ErrorCode::NotLeaderOrFollower, VoterChangeError::NotLeader.to_string());
        let epoch = self.node.describe_quorum().await.ok_or_else(not_leader)?.leader_epoch;
        let code = match given.cmp(&epoch) {
            Ordering::Less => ErrorCode::FencedLeaderEpoch,
            Ordering::Equal => return Ok(()),
            Ordering::Greater => ErrorCode::UnknownLeaderEpoch,
        };
        Err((code, format!("the leader's epoch is {epoch}, and not {given}")))
    }

    /// The address of a voter at the listener that the quorum uses.
    fn address_in<'a>(
        &self,
        verb: &str,
        mut listeners: impl Iterator<Item = (&'a str, String, u16)>,
    ) -> Result<(String, u16), Refusal> {
        let found = listeners.find(|(name, ..)| *name == self.node.listener);
        found.map(|(_, host, port)| (host, port)).ok_or_else(|| {
            let why = format!(
                "{verb} voter request didn't include the endpoint for the default listener ListenerName({})",
                self.node.listener
            );
            (ErrorCode::InvalidRequest, why)
        })
    }

    async fn change(&self, change: VoterChange, limit: Duration) -> Result<(), Refusal> {
        let changed = self.node.change_voters(change, limit).await;
        changed.map_err(|error| {
            let code = match error {
                VoterChangeError::NotLeader => ErrorCode::NotLeaderOrFollower,
                VoterChangeError::Duplicate(_) => ErrorCode::DuplicateVoter,
                VoterChangeError::NotFound(_) => ErrorCode::VoterNotFound,
                VoterChangeError::Last(_) | VoterChangeError::Invalid(_) => ErrorCode::InvalidRequest,
                VoterChangeError::TimedOut(_) => ErrorCode::RequestTimedOut,
            };
            (code, error.to_string())
        })
    }
}

fn voter_in(verb: &str, id: i32, directory_id: Uuid) -> Result<ReplicaKey, Refusal> {
    if id < 0 || directory_id.is_zero() {
        let why = format!("{verb} voter request didn't include a valid voter");
        return Err((ErrorCode::InvalidRequest, why));
    }
    Ok(ReplicaKey::new(NodeId(id), directory_id))
}

fn outcome(result: Result<(), Refusal>) -> (i16, Option<String>) {
    match result {
        Ok(()) => (ErrorCode::None.code(), Some(String::new())),
        Err((code, why)) => (code.code(), Some(why)),
    }
}

fn described(state: &QuorumState) -> PartitionDataResponse {
    let replica = |progress: &ReplicaProgress| ReplicaState {
        replica_id: progress.key.id.0,
        replica_directory_id: progress.key.directory_id,
        log_end_offset: progress.log_end_offset,
        last_fetch_timestamp: progress.last_fetch_timestamp_ms,
        last_caught_up_timestamp: progress.last_caught_up_timestamp_ms,
    };
    PartitionDataResponse {
        partition_index: 0,
        error_code: 0,
        error_message: Some(String::new()),
        leader_id: state.leader.id.0,
        leader_epoch: state.leader_epoch,
        high_watermark: state.high_watermark,
        current_voters: state.voters.iter().map(replica).collect(),
        observers: state.observers.iter().map(replica).collect(),
    }
}

fn unknown(index: i32) -> PartitionDataResponse {
    PartitionDataResponse {
        partition_index: index,
        error_code: ErrorCode::UnknownTopicOrPartition.code(),
        error_message: Some("This server does not host this topic-partition.".to_owned()),
        ..Default::default()
    }
}
