//! TxnOffsetCommit: an OffsetCommit that counts when its transaction is committed; topics by id from version 6
//! on. And the markers that say so.

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_partition::{TransactionMarker, VerificationGuard};
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponseTopic,
};
use klamm_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestTopic, TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};

use super::error_of;
use super::offset_commit::{answer_all, merge, resolve};
use crate::coordinator::{Client, GroupCoordinator};
use crate::group::{InTransaction, Reply, Request};

const FIRST_VERSION_WITH_IDS: i16 = 6;

/// Producers before this version stop for good when a coordinator loads (KAFKA-7296).
const FIRST_VERSION_WITH_LOADING: i16 = 2;

impl GroupCoordinator {
    /// TxnOffsetCommit. The guard shows that the transaction was found to include the group's partition.
    pub async fn txn_offset_commit(
        &self,
        client: &Client,
        request: TxnOffsetCommitRequest,
        guard: Option<VerificationGuard>,
    ) -> TxnOffsetCommitResponse {
        let version = client.api_version;
        let transaction = InTransaction {
            producer_id: ProducerId(request.producer_id),
            producer_epoch: ProducerEpoch(request.producer_epoch),
            guard,
        };
        let request = plain(request);
        if request.group_id.is_empty() {
            return response(version, answer_all(&request, ErrorCode::InvalidGroupId).topics);
        }
        let (request, refused) = resolve(&self.env.image(), version >= FIRST_VERSION_WITH_IDS, request);
        if request.topics.is_empty() && !refused.is_empty() {
            return response(version, refused);
        }
        let request = std::sync::Arc::new(request);
        let asked = Request::CommitInTransaction { version, request: request.clone(), transaction };
        let mut topics = match self.ask(&request.group_id, asked).await {
            Reply::Commit(response) => response.topics,
            other => answer_all(&request, error_of(&other)).topics,
        };
        merge(&mut topics, refused);
        response(version, topics)
    }

    /// The answer to a TxnOffsetCommit that was not let through to the group.
    pub fn refuse_txn_offset_commit(
        client: &Client,
        request: TxnOffsetCommitRequest,
        error: ErrorCode,
    ) -> TxnOffsetCommitResponse {
        response(client.api_version, answer_all(&plain(request), error).topics)
    }

    /// Ends a transaction in a partition of `__consumer_offsets`: what it committed counts, or is dropped.
    pub async fn end_transaction(&self, partition: i32, marker: TransactionMarker) -> Result<(), ErrorCode> {
        match self.mailboxes.ask_partition(partition, Request::EndTransaction(marker)).await {
            Reply::TransactionEnded => Ok(()),
            other => Err(error_of(&other)),
        }
    }
}

/// The commit without its transaction.
fn plain(request: TxnOffsetCommitRequest) -> OffsetCommitRequest {
    let topic = |topic: TxnOffsetCommitRequestTopic| {
        let partitions = topic.partitions.into_iter().map(|partition| OffsetCommitRequestPartition {
            partition_index: partition.partition_index,
            committed_offset: partition.committed_offset,
            committed_leader_epoch: partition.committed_leader_epoch,
            committed_metadata: partition.committed_metadata,
            ..OffsetCommitRequestPartition::default()
        });
        OffsetCommitRequestTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: partitions.collect(),
        }
    };
    OffsetCommitRequest {
        group_id: request.group_id,
        generation_id_or_member_epoch: request.generation_id_or_member_epoch,
        member_id: request.member_id,
        group_instance_id: request.group_instance_id,
        topics: request.topics.into_iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    }
}

fn response(version: i16, topics: Vec<OffsetCommitResponseTopic>) -> TxnOffsetCommitResponse {
    let code = |code: i16| match version < FIRST_VERSION_WITH_LOADING {
        true if code == ErrorCode::CoordinatorLoadInProgress.code() => {
            ErrorCode::CoordinatorNotAvailable.code()
        }
        _ => code,
    };
    let topics = topics.into_iter().map(|topic| TxnOffsetCommitResponseTopic {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .into_iter()
            .map(|partition| TxnOffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code(partition.error_code),
            })
            .collect(),
    });
    TxnOffsetCommitResponse { topics: topics.collect(), ..TxnOffsetCommitResponse::default() }
}
