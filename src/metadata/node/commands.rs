//! What can be asked of the active controller: one method a request. Each returns when this node's image has
//! what the request changed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::messages::alter_client_quotas::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, EntryDataResponse,
};
use klamm_protocol::messages::alter_configs::{self, AlterConfigsRequest, AlterConfigsResponse};
use klamm_protocol::messages::alter_partition::{AlterPartitionRequest, AlterPartitionResponse};
use klamm_protocol::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
};
use klamm_protocol::messages::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
};
use klamm_protocol::messages::assign_replicas_to_dirs::{
    AssignReplicasToDirsRequest, AssignReplicasToDirsResponse,
};
use klamm_protocol::messages::broker_heartbeat::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};
use klamm_protocol::messages::broker_registration::{BrokerRegistrationRequest, BrokerRegistrationResponse};
use klamm_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use klamm_protocol::messages::create_topics::{
    CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};
use klamm_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse,
};
use klamm_protocol::messages::elect_leaders::{ElectLeadersRequest, ElectLeadersResponse};
use klamm_protocol::messages::incremental_alter_configs::{
    self, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use klamm_protocol::messages::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use klamm_protocol::messages::unregister_broker::{UnregisterBrokerRequest, UnregisterBrokerResponse};
use klamm_protocol::messages::update_features::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use tokio::sync::oneshot;

use super::controller_task::Decision;
use super::{MetadataNode, SubmitError};
use crate::controller::{self, ControllerContext};
use crate::image::Image;

/// What the controller is asked, and how long whoever asks will wait. A disk that is full holds decisions up for
/// as long as it is; that no answer came in time says nothing of what will become of the request.
#[derive(Clone, Copy)]
pub struct Decisions<'a> {
    pub(super) node: &'a MetadataNode,
    pub(super) limit: Duration,
    /// Whether whoever asks is told by words that the majority is lost.
    pub(super) tells_why: bool,
}

impl MetadataNode {
    /// Decisions for which one waits no longer than `limit`.
    pub fn within(&self, limit: Duration) -> Decisions<'_> {
        Decisions { node: self, limit, tells_why: false }
    }
}

impl Decisions<'_> {
    /// The same; where the quorum has lost its majority, the answer is REQUEST_TIMED_OUT with words for a person on who is
    /// missing, in place of NOT_CONTROLLER, after which clients would look for a controller and try again without a word.
    pub fn telling_why(self) -> Self {
        Decisions { tells_why: true, ..self }
    }

    /// CreateTopics.
    pub async fn create_topics(&self, request: CreateTopicsRequest) -> CreateTopicsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided =
            self.submit(move |image, context| controller::create_topics(image, context, &asked)).await;
        decided.unwrap_or_else(|error| {
            let result = |name: &str| CreatableTopicResult {
                name: name.to_owned(),
                error_code: error.code(),
                error_message: Some(error.to_string()),
                configs: Some(Vec::new()),
                ..Default::default()
            };
            let topics = request.topics.iter().map(|topic| result(&topic.name)).collect();
            CreateTopicsResponse { topics, ..Default::default() }
        })
    }

    /// DeleteTopics.
    pub async fn delete_topics(&self, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided =
            self.submit(move |image, context| controller::delete_topics(image, context, &asked)).await;
        decided.unwrap_or_else(|error| {
            let result = |name: Option<String>, topic_id| DeletableTopicResult {
                name,
                topic_id,
                error_code: error.code(),
                error_message: Some(error.to_string()),
            };
            let named = request.topic_names.iter().map(|name| result(Some(name.clone()), Default::default()));
            let either = request.topics.iter().map(|topic| result(topic.name.clone(), topic.topic_id));
            DeleteTopicsResponse { responses: named.chain(either).collect(), ..Default::default() }
        })
    }

    /// CreatePartitions.
    pub async fn create_partitions(&self, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided =
            self.submit(move |image, context| controller::create_partitions(image, context, &asked)).await;
        decided.unwrap_or_else(|error| {
            let result = |name: &str| CreatePartitionsTopicResult {
                name: name.to_owned(),
                error_code: error.code(),
                error_message: Some(error.to_string()),
            };
            let results = request.topics.iter().map(|topic| result(&topic.name)).collect();
            CreatePartitionsResponse { results, ..Default::default() }
        })
    }

    /// IncrementalAlterConfigs.
    pub async fn incremental_alter_configs(
        &self,
        request: IncrementalAlterConfigsRequest,
    ) -> IncrementalAlterConfigsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided = self
            .submit(move |image, context| controller::incremental_alter_configs(image, context, &asked))
            .await;
        decided.unwrap_or_else(|error| {
            let responses = request.resources.iter().map(|resource| {
                incremental_alter_configs::AlterConfigsResourceResponse {
                    error_code: error.code(),
                    error_message: Some(error.to_string()),
                    resource_type: resource.resource_type,
                    resource_name: resource.resource_name.clone(),
                }
            });
            IncrementalAlterConfigsResponse { responses: responses.collect(), ..Default::default() }
        })
    }

    /// AlterConfigs.
    pub async fn alter_configs(&self, request: AlterConfigsRequest) -> AlterConfigsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided =
            self.submit(move |image, context| controller::alter_configs(image, context, &asked)).await;
        decided.unwrap_or_else(|error| {
            let responses =
                request.resources.iter().map(|resource| alter_configs::AlterConfigsResourceResponse {
                    error_code: error.code(),
                    error_message: Some(error.to_string()),
                    resource_type: resource.resource_type,
                    resource_name: resource.resource_name.clone(),
                });
            AlterConfigsResponse { responses: responses.collect(), ..Default::default() }
        })
    }

    /// Makes topics that a client asked for, or internal ones, as the defaults say. The reply has one result a
    /// name, as that of CreateTopics.
    pub async fn auto_create_topics(&self, names: Vec<String>) -> CreateTopicsResponse {
        let asked = names.clone();
        let decided = self.submit(move |image, context| {
            let names = asked.iter().map(String::as_str);
            let request = controller::request_for_auto_creation(names, context.defaults);
            controller::create_topics(image, context, &request)
        });
        decided.await.unwrap_or_else(|error| {
            let result = |name: String| CreatableTopicResult {
                name,
                error_code: error.code(),
                error_message: Some(error.to_string()),
                ..Default::default()
            };
            CreateTopicsResponse { topics: names.into_iter().map(result).collect(), ..Default::default() }
        })
    }

    /// BrokerRegistration.
    pub async fn register_broker(&self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse {
        let has_session = self.node.sessions.has_session(NodeId(request.broker_id));
        let decided = self
            .submit(move |image, context| controller::register_broker(image, context, &request, has_session))
            .await;
        decided.unwrap_or_else(|error| BrokerRegistrationResponse {
            error_code: error.code(),
            ..Default::default()
        })
    }

    /// BrokerHeartbeat. The process of a broker that is not registered, or is in another run, ends with the answer: it
    /// is told so only when a majority confirms that this node is the controller.
    pub async fn heartbeat_broker(&self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse {
        let broker = NodeId(request.broker_id);
        let request = Arc::new(request);
        let decide = || {
            let request = Arc::clone(&request);
            self.submit(move |image, context| controller::heartbeat_broker(image, context, &request))
        };
        let mut decided = decide().await;
        if decided.as_ref().is_ok_and(ends_the_broker) {
            let confirmed = tokio::time::timeout(self.limit, self.node.confirm()).await;
            decided = match confirmed.unwrap_or(false) {
                true => decide().await,
                false => Err(SubmitError::NotController(self.node.id)),
            };
        }
        // One with the epoch of an earlier registration says nothing of the broker that is registered now.
        if decided.as_ref().is_ok_and(|response| response.error_code == ErrorCode::None.code()) {
            self.node.sessions.heard(broker);
        }
        decided.unwrap_or_else(|error| BrokerHeartbeatResponse {
            error_code: error.code(),
            ..Default::default()
        })
    }

    /// Fences a broker at once that is proven to be dead, in the run that has this epoch: its sockets are closed, so
    /// its session need not end first. One that has registered again since is let be. Returns whether it was fenced
    /// by this.
    ///
    /// # Errors
    /// 41 where this is not the controller; the other codes of a decision that was not made.
    pub async fn fence_dead(&self, broker: NodeId, broker_epoch: i64) -> Result<bool, ErrorCode> {
        let decided = self.submit(move |image, context| {
            let records = controller::fence_brokers(image, context, &[(broker, broker_epoch)]);
            let is_fenced = !records.is_empty();
            (records, is_fenced)
        });
        decided.await.map_err(|error| error.error_code())
    }

    /// AlterClientQuotas.
    pub async fn alter_client_quotas(&self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse {
        let entities: Vec<_> = request.entries.iter().map(|entry| entry.entity.clone()).collect();
        let decided = self.submit(move |image, _| controller::alter_client_quotas(image, &request)).await;
        decided.unwrap_or_else(|error| {
            let refused = entities.into_iter().map(|entity| EntryDataResponse {
                error_code: error.code(),
                error_message: Some(error.to_string()),
                entity,
            });
            AlterClientQuotasResponse { entries: refused.collect(), ..Default::default() }
        })
    }

    /// AlterUserScramCredentials.
    pub async fn alter_user_scram_credentials(
        &self,
        request: AlterUserScramCredentialsRequest,
    ) -> AlterUserScramCredentialsResponse {
        let removed = request.deletions.iter().map(|deletion| deletion.name.clone());
        let users: BTreeSet<String> =
            removed.chain(request.upsertions.iter().map(|upsertion| upsertion.name.clone())).collect();
        let decided =
            self.submit(move |image, _| controller::alter_user_scram_credentials(image, &request)).await;
        decided.unwrap_or_else(|error| {
            let refused = users.into_iter().map(|user| AlterUserScramCredentialsResult {
                user,
                error_code: error.code(),
                error_message: Some(error.to_string()),
            });
            AlterUserScramCredentialsResponse { results: refused.collect(), ..Default::default() }
        })
    }

    /// UnregisterBroker.
    pub async fn unregister_broker(&self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse {
        let decided =
            self.submit(move |image, context| controller::unregister_broker(image, context, &request)).await;
        decided.unwrap_or_else(|error| UnregisterBrokerResponse {
            error_code: error.code(),
            error_message: Some(error.to_string()),
            ..Default::default()
        })
    }

    /// AlterPartition: a leader proposes a new ISR.
    pub async fn alter_partition(&self, request: AlterPartitionRequest) -> AlterPartitionResponse {
        let decided =
            self.submit(move |image, context| controller::alter_partition(image, context, &request)).await;
        decided
            .unwrap_or_else(|error| AlterPartitionResponse { error_code: error.code(), ..Default::default() })
    }

    /// AssignReplicasToDirs.
    pub async fn assign_replicas_to_dirs(
        &self,
        request: AssignReplicasToDirsRequest,
    ) -> AssignReplicasToDirsResponse {
        let decided = self
            .submit(move |image, context| controller::assign_replicas_to_dirs(image, context, &request))
            .await;
        decided.unwrap_or_else(|error| AssignReplicasToDirsResponse {
            error_code: error.code(),
            ..Default::default()
        })
    }

    /// UpdateFeatures.
    pub async fn update_features(&self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse {
        let decided =
            self.submit(move |image, context| controller::update_features(image, context, &request)).await;
        decided.unwrap_or_else(|error| UpdateFeaturesResponse {
            error_code: error.code(),
            error_message: Some(error.to_string()),
            ..Default::default()
        })
    }

    /// ElectLeaders.
    pub async fn elect_leaders(&self, request: ElectLeadersRequest) -> ElectLeadersResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided =
            self.submit(move |image, context| controller::elect_leaders(image, context, &asked)).await;
        decided.unwrap_or_else(|error| {
            controller::refuse_elections(&request, error.error_code(), &error.to_string())
        })
    }

    /// AlterPartitionReassignments.
    pub async fn alter_partition_reassignments(
        &self,
        request: AlterPartitionReassignmentsRequest,
    ) -> AlterPartitionReassignmentsResponse {
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let decided = self
            .submit(move |image, context| controller::alter_partition_reassignments(image, context, &asked))
            .await;
        decided.unwrap_or_else(|error| {
            controller::refuse_reassignments(&request, error.error_code(), &error.to_string())
        })
    }

    /// ListPartitionReassignments: as the controller knows them, so that what was begun is seen at once.
    pub async fn list_partition_reassignments(
        &self,
        request: ListPartitionReassignmentsRequest,
    ) -> ListPartitionReassignmentsResponse {
        let decided = self
            .submit(move |image, _| (Vec::new(), controller::list_partition_reassignments(image, &request)));
        decided.await.unwrap_or_else(|error| ListPartitionReassignmentsResponse {
            error_code: error.code(),
            error_message: Some(error.to_string()),
            ..Default::default()
        })
    }

    /// Gives a broker its next block of producer ids. Blocks are never given twice, also not after a crash.
    ///
    /// # Errors
    /// 102 and 77 for a broker that is not registered in this epoch; 41 where this is not the controller.
    pub async fn allocate_producer_ids(
        &self,
        broker: NodeId,
        broker_epoch: i64,
    ) -> Result<Range<i64>, ErrorCode> {
        let decided =
            self.submit(move |image, _| controller::allocate_producer_ids(image, broker, broker_epoch)).await;
        decided.unwrap_or_else(|error| Err(error.error_code()))
    }

    /// Has a request decided and waits until what it changed is on disk, committed and in the image.
    async fn submit<F, R>(&self, decide: F) -> Result<R, SubmitError>
    where
        F: FnMut(&Image, &ControllerContext<'_>) -> (Vec<MetadataRecord>, R) + Send + 'static,
        R: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let MetadataNode { id, jobs, .. } = self.node;
        let unavailable = || SubmitError::Unavailable(*id);
        let decided = async {
            jobs.send(Box::new(Decision::new(decide, sender))).await.map_err(|_| unavailable())?;
            receiver.await.map_err(|_| unavailable())?
        };
        let limit = self.limit;
        let decided = tokio::time::timeout(limit, decided).await;
        match decided.unwrap_or(Err(SubmitError::TimedOut { node: *id, limit })) {
            Err(SubmitError::NotController(node)) if self.tells_why => Err(match self.node.lost_majority() {
                Some(why) => SubmitError::NoMajority(why),
                None => SubmitError::NotController(node),
            }),
            decided => decided,
        }
    }
}

/// Whether the broker's process has lost its place in the cluster.
fn ends_the_broker(response: &BrokerHeartbeatResponse) -> bool {
    [ErrorCode::BrokerIdNotRegistered, ErrorCode::StaleBrokerEpoch]
        .iter()
        .any(|code| code.code() == response.error_code)
}

impl SubmitError {
    /// Kafka's code for it.
    fn error_code(&self) -> ErrorCode {
        match self {
            SubmitError::NotController(_) => ErrorCode::NotController,
            SubmitError::Unavailable(_) => ErrorCode::KafkaStorageError,
            SubmitError::TimedOut { .. } | SubmitError::NoMajority(_) => ErrorCode::RequestTimedOut,
            SubmitError::NotEncodable(_) | SubmitError::TooLarge { .. } => ErrorCode::InvalidRequest,
        }
    }

    fn code(&self) -> i16 {
        self.error_code().code()
    }
}
