//! TxnOffsetCommit (key 28), versions 0 to 6.
//!
//! v2 leader epochs (KIP-320); v3 flexible, member and generation (KIP-447); v4 the error TRANSACTION_ABORTABLE;
//! v5 the partition of the group becomes part of the transaction by this (KIP-890); v6 topic ids.

use klamm_coordinator::transaction::Producer;
use klamm_coordinator::{GroupCoordinator, Question};
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId, topic_name};
use klamm_partition::VerificationGuard;
use klamm_protocol::messages::txn_offset_commit::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::Call;
use crate::context::Context;
use crate::transaction_verification::{self, Clients, Subject};

/// From this version on the client knows TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 4;
/// From this version on the client does not add the partition itself.
const IMPLICIT_SINCE: i16 = 5;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let client = call.client();
    match verify(context, call.version, &request).await {
        Ok(guard) => context.groups.txn_offset_commit(&client, request, guard).await,
        Err(error) => GroupCoordinator::refuse_txn_offset_commit(&client, request, error),
    }
}

async fn verify(
    context: &Context,
    version: i16,
    request: &TxnOffsetCommitRequest,
) -> Result<Option<VerificationGuard>, ErrorCode> {
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let index = context.offsets_partition_of(&request.group_id).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let partition = context.partitions.by_name(topic_name::GROUP_METADATA, index);
    let partition = partition.filter(|partition| partition.is_leader()).ok_or(ErrorCode::NotCoordinator)?;
    let producer = Producer {
        transactional_id: request.transactional_id.clone(),
        id: ProducerId(request.producer_id),
        epoch: ProducerEpoch(request.producer_epoch),
    };
    let clients = Clients {
        question: if version >= IMPLICIT_SINCE { Question::Add } else { Question::Verify },
        know_abortable: version >= ABORTABLE_SINCE,
    };
    let subject = Subject { partition, producer, base_sequence: -1 };
    let mut verified = transaction_verification::verify(context, &[subject], clients).await;
    verified.pop().unwrap_or(Err(ErrorCode::UnknownServerError))
}
