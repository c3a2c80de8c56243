//! Asking the coordinator of a transaction whether a partition is part of it, before something is appended
//! (KIP-890).

use klamm_coordinator::Question;
use klamm_coordinator::transaction::{Partitions, Producer};
use klamm_model::ErrorCode;
use klamm_partition::{Partition, Verification, VerificationGuard};

use crate::context::Context;

/// What the clients of a version expect.
#[derive(Clone, Copy)]
pub(crate) struct Clients {
    /// Whether they add partitions to their transactions themselves.
    pub(crate) question: Question,
    /// Whether they know TRANSACTION_ABORTABLE.
    pub(crate) know_abortable: bool,
}

/// What lets an append into a producer's transaction, `None` where one is open already. `base_sequence` is that of
/// the batch.
pub(crate) async fn verify(
    context: &Context,
    partition: &Partition,
    producer: Producer,
    base_sequence: i32,
    clients: Clients,
) -> Result<Option<VerificationGuard>, ErrorCode> {
    let is_implicit = clients.question == Question::Add;
    let needed = partition.verify_transaction(producer.id, producer.epoch, base_sequence, is_implicit);
    let Verification::Needed(guard) = needed else { return Ok(None) };
    if !is_implicit && !context.config().transaction_partition_verification_enable {
        return Ok(Some(guard));
    }
    let name = partition.topic_partition();
    let partitions = Partitions::from([(name.topic.clone(), [name.partition].into())]);
    let refused = match context.transactions.answer_broker(producer, partitions, clients.question).await {
        Ok(errors) => errors.first().map(|(_, _, error)| *error),
        Err(error) => Some(error),
    };
    match refused {
        None => Ok(Some(guard)),
        Some(ErrorCode::ProducerFenced) => Err(ErrorCode::InvalidProducerEpoch),
        Some(ErrorCode::TransactionAbortable) if !clients.know_abortable => Err(ErrorCode::InvalidTxnState),
        Some(error) => Err(error),
    }
}
