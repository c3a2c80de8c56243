//! The way to the active controller: this node's own part of the quorum, or another node.

use std::sync::Arc;
use std::time::Duration;

use klamm_io::{BoxFuture, Clock};
use klamm_metadata::{Decisions, MetadataNode};
use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::Request;
use klamm_protocol::messages::*;

use crate::peers::{PeerError, Peers};

/// A request that the active controller decides.
pub(crate) trait ForController: Request {
    /// The version in which it goes to another node; both speak it.
    const VERSION: i16;

    /// Has this node's own part of the quorum decide it. The answer is complete whatever comes of it.
    fn decide(self, controller: Decisions<'_>) -> BoxFuture<'_, Self::Response>;

    /// The error code that tells that another node is the controller, wherever this API has it.
    fn first_code(response: &Self::Response) -> i16;
}

/// How long it waits between two tries, while a new controller is elected.
const PAUSE: Duration = Duration::from_millis(25);

/// Finds the active controller and asks it.
pub(crate) struct ControllerChannel {
    node_id: NodeId,
    metadata: Arc<MetadataNode>,
    peers: Peers,
    clock: Arc<dyn Clock>,
}

impl ControllerChannel {
    pub(crate) fn new(
        node_id: NodeId,
        metadata: Arc<MetadataNode>,
        peers: Peers,
        clock: Arc<dyn Clock>,
    ) -> ControllerChannel {
        ControllerChannel { node_id, metadata, peers, clock }
    }

    /// The same with connections of its own, for a runtime of its own.
    pub(crate) fn beside(&self) -> ControllerChannel {
        let ControllerChannel { node_id, metadata, peers, clock } = self;
        ControllerChannel::new(*node_id, metadata.clone(), peers.beside(), clock.clone())
    }

    /// Has the controller decide a request. While none is known or it cannot be reached, it is asked again; what
    /// it answers when `timeout` is over is an answer without a controller, with NOT_CONTROLLER.
    ///
    /// A request whose connection broke may have been decided and is asked again, as Kafka's brokers do.
    pub(crate) async fn ask<R: ForController>(&self, request: R, timeout: Duration) -> R::Response {
        self.ask_until(request, timeout, || false).await
    }

    /// The same for a client. Where the quorum has lost its majority it is told so, with who is missing, at the half of its
    /// time: it would not wait for an answer that comes with the end of it.
    pub(crate) async fn ask_for_client<R: ForController>(
        &self,
        request: R,
        timeout: Duration,
    ) -> R::Response {
        let patience = self.clock.monotonic().saturating_add(timeout / 2);
        let is_hopeless = || self.clock.monotonic() >= patience && self.metadata.lost_majority().is_some();
        let response = self.ask_until(request.clone(), timeout, is_hopeless).await;
        if !is_misplaced::<R>(&response) {
            return response;
        }
        request.decide(self.metadata.within(PAUSE).telling_why()).await
    }

    /// As [`ControllerChannel::ask`], but waits no longer for a controller once `gives_up`.
    async fn ask_until<R: ForController>(
        &self,
        request: R,
        timeout: Duration,
        gives_up: impl Fn() -> bool,
    ) -> R::Response {
        let deadline = self.clock.monotonic().saturating_add(timeout);
        loop {
            let left = match gives_up() {
                false => deadline.saturating_sub(self.clock.monotonic()),
                true => Duration::ZERO,
            };
            match self.metadata.image().controller {
                Some(node) if node != self.node_id && !left.is_zero() => {
                    match self.ask_node(node, &request, left).await {
                        Ok(response) if !is_misplaced::<R>(&response) => return response,
                        Ok(_) => {}
                        Err(error) => tracing::debug!("controller {node} gave no answer: {error}"),
                    }
                }
                _ => {
                    let response = request.clone().decide(self.metadata.within(left.max(PAUSE))).await;
                    if left.is_zero() || !is_misplaced::<R>(&response) {
                        return response;
                    }
                }
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        }
    }

    async fn ask_node<R: ForController>(
        &self,
        node: NodeId,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, PeerError> {
        let address = self.metadata.address_of(node);
        let address = address.ok_or_else(|| PeerError::Unreachable("its address is not known".to_owned()))?;
        self.peers.ask(&address, R::VERSION, request, timeout).await
    }
}

fn is_misplaced<R: ForController>(response: &R::Response) -> bool {
    R::first_code(response) == ErrorCode::NotController.code()
}

/// The APIs of the quorum itself say NOT_LEADER_OR_FOLLOWER in place of NOT_CONTROLLER.
fn as_misplaced(code: i16) -> i16 {
    if code == ErrorCode::NotLeaderOrFollower.code() { ErrorCode::NotController.code() } else { code }
}

/// Declares requests with the version that is spoken, the method that decides them, and where the code is.
macro_rules! for_controller {
    ($($request:ident $version:literal $decide:ident |$response:ident| $code:expr;)*) => {
        $(impl ForController for $request {
            const VERSION: i16 = $version;

            fn decide(self, controller: Decisions<'_>) -> BoxFuture<'_, Self::Response> {
                Box::pin(async move { controller.$decide(self).await })
            }

            fn first_code($response: &Self::Response) -> i16 {
                $code
            }
        })*
    };
}

for_controller! {
    CreateTopicsRequest 7 create_topics |it| it.topics.first().map_or(0, |topic| topic.error_code);
    DeleteTopicsRequest 6 delete_topics |it| it.responses.first().map_or(0, |topic| topic.error_code);
    CreatePartitionsRequest 3 create_partitions |it| it.results.first().map_or(0, |topic| topic.error_code);
    AlterConfigsRequest 2 alter_configs |it| it.responses.first().map_or(0, |item| item.error_code);
    IncrementalAlterConfigsRequest 1 incremental_alter_configs
        |it| it.responses.first().map_or(0, |item| item.error_code);
    BrokerRegistrationRequest 4 register_broker |it| it.error_code;
    BrokerHeartbeatRequest 1 heartbeat_broker |it| it.error_code;
    AlterPartitionRequest 3 alter_partition |it| it.error_code;
    AssignReplicasToDirsRequest 0 assign_replicas_to_dirs |it| it.error_code;
    AlterClientQuotasRequest 1 alter_client_quotas |it| it.entries.first().map_or(0, |entry| entry.error_code);
    AlterUserScramCredentialsRequest 0 alter_user_scram_credentials
        |it| it.results.first().map_or(0, |result| result.error_code);
    UnregisterBrokerRequest 0 unregister_broker |it| it.error_code;
    UpdateFeaturesRequest 2 update_features |it| it.error_code;
    ElectLeadersRequest 2 elect_leaders |it| it.error_code;
    AlterPartitionReassignmentsRequest 1 alter_partition_reassignments |it| it.error_code;
    ListPartitionReassignmentsRequest 0 list_partition_reassignments |it| it.error_code;
    DescribeQuorumRequest 2 describe_quorum |it| as_misplaced(it.error_code);
    AddRaftVoterRequest 1 add_raft_voter |it| as_misplaced(it.error_code);
    RemoveRaftVoterRequest 0 remove_raft_voter |it| as_misplaced(it.error_code);
    UpdateRaftVoterRequest 0 update_raft_voter |it| as_misplaced(it.error_code);
}

impl ForController for AllocateProducerIdsRequest {
    const VERSION: i16 = 0;

    fn decide(self, controller: Decisions<'_>) -> BoxFuture<'_, AllocateProducerIdsResponse> {
        Box::pin(async move {
            match controller.allocate_producer_ids(NodeId(self.broker_id), self.broker_epoch).await {
                Ok(block) => AllocateProducerIdsResponse {
                    producer_id_start: block.start,
                    producer_id_len: (block.end - block.start) as i32,
                    ..Default::default()
                },
                Err(code) => AllocateProducerIdsResponse { error_code: code.code(), ..Default::default() },
            }
        })
    }

    fn first_code(response: &AllocateProducerIdsResponse) -> i16 {
        response.error_code
    }
}
