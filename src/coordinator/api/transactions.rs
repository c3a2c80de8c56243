//! InitProducerId with a transactional id, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, and the questions that a
//! broker asks before it appends.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch, ProducerEpoch, ProducerId, topic_name};
use klamm_protocol::messages::add_offsets_to_txn::AddOffsetsToTxnRequest;
use klamm_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult, AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
};
use klamm_protocol::messages::end_txn::{EndTxnRequest, EndTxnResponse};
use klamm_protocol::messages::init_producer_id::InitProducerIdRequest;

use crate::transaction::{End, Init, Partitions, Producer, Reply, Request, TransactionVersion};
use crate::transaction_coordinator::TransactionCoordinator;

/// The first versions whose clients know PRODUCER_FENCED (KIP-588).
const FIRST_INIT_WITH_FENCED: i16 = 4;
const FIRST_ADD_WITH_FENCED: i16 = 2;
const FIRST_END_WITH_FENCED: i16 = 2;

/// The first version of AddPartitionsToTxn with several transactions, for brokers (KIP-890).
const FIRST_ADD_BY_BROKERS: i16 = 4;

/// The first version of AddPartitionsToTxn of clients that raise their epochs (KIP-890).
const FIRST_ADD_WITH_EPOCH: i16 = 5;

/// The first version of EndTxn that raises the epoch (KIP-890).
const FIRST_END_WITH_EPOCH: i16 = 5;

/// What a broker wants to know before it appends to a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Whether the partitions are part of the transaction.
    Verify,
    /// That they are part of it, for producers that do not add them themselves.
    Add,
}

/// The error of a reply that is not of the kind that was asked for.
pub(super) fn refused(reply: &Reply) -> ErrorCode {
    match reply {
        Reply::Refused(error) => *error,
        _ => ErrorCode::UnknownServerError,
    }
}

/// Older clients take PRODUCER_FENCED for an error that they do not know.
fn for_version(error: ErrorCode, version: i16, first_with_fenced: i16) -> ErrorCode {
    match error {
        ErrorCode::ProducerFenced if version < first_with_fenced => ErrorCode::InvalidProducerEpoch,
        error => error,
    }
}

impl TransactionCoordinator {
    /// InitProducerId of a producer with a transactional id: its id and epoch.
    pub async fn init_producer_id(
        &self,
        version: i16,
        request: &InitProducerIdRequest,
    ) -> Result<(ProducerId, ProducerEpoch), ErrorCode> {
        let transactional_id = request.transactional_id.clone().unwrap_or_default();
        let has = match (request.producer_id, request.producer_epoch) {
            (-1, -1) => None,
            (-1, _) | (_, -1) => return Err(ErrorCode::InvalidRequest),
            (id, epoch) => Some((ProducerId(id), ProducerEpoch(epoch))),
        };
        let timeout_ms = request.transaction_timeout_ms;
        if transactional_id.is_empty() {
            return Err(ErrorCode::InvalidRequest);
        }
        if !(1..=self.settings.max_timeout_ms).contains(&timeout_ms) {
            return Err(ErrorCode::InvalidTransactionTimeout);
        }
        let init = |unused| {
            let transactional_id = transactional_id.clone();
            Request::Init(Init { transactional_id, timeout_ms, has, unused })
        };
        match self.ask_with_id(&transactional_id, init).await {
            Reply::Producer(id, epoch) => Ok((id, epoch)),
            other => Err(for_version(refused(&other), version, FIRST_INIT_WITH_FENCED)),
        }
    }

    /// AddPartitionsToTxn.
    pub async fn add_partitions(
        &self,
        version: i16,
        request: AddPartitionsToTxnRequest,
    ) -> AddPartitionsToTxnResponse {
        if version >= FIRST_ADD_BY_BROKERS {
            let mut response = AddPartitionsToTxnResponse::default();
            for transaction in request.transactions {
                let transactional_id = transaction.transactional_id.clone();
                let topic_results = self.add_to_one(version, transaction).await;
                response
                    .results_by_transaction
                    .push(AddPartitionsToTxnResult { transactional_id, topic_results });
            }
            return response;
        }
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            verify_only: false,
            topics: request.v3_and_below_topics,
        };
        AddPartitionsToTxnResponse {
            results_by_topic_v3_and_below: self.add_to_one(version, transaction).await,
            ..AddPartitionsToTxnResponse::default()
        }
    }

    async fn add_to_one(
        &self,
        version: i16,
        transaction: AddPartitionsToTxnTransaction,
    ) -> Vec<AddPartitionsToTxnTopicResult> {
        let AddPartitionsToTxnTransaction { topics, verify_only, .. } = transaction;
        if let Some(refused) = refuse(version, &self.env.image(), &topics) {
            return refused;
        }
        let producer = Producer {
            transactional_id: transaction.transactional_id,
            id: ProducerId(transaction.producer_id),
            epoch: ProducerEpoch(transaction.producer_epoch),
        };
        let mut partitions = Partitions::new();
        for topic in &topics {
            partitions.entry(topic.name.as_str().into()).or_default().extend(&topic.partitions);
        }
        let question = if verify_only { Question::Verify } else { Question::Add };
        let client = match version >= FIRST_ADD_WITH_EPOCH {
            true => TransactionVersion::NEW,
            false => TransactionVersion::OLD,
        };
        match self.answer(producer, partitions, question, client).await {
            Ok(errors) => {
                let errors: BTreeMap<(&str, i32), ErrorCode> =
                    errors.iter().map(|(name, index, error)| ((&**name, *index), *error)).collect();
                results(&topics, |topic, index| {
                    errors.get(&(topic, index)).copied().unwrap_or(ErrorCode::None)
                })
            }
            Err(error) => {
                let error = for_version(error, version, FIRST_ADD_WITH_FENCED);
                results(&topics, |_, _| error)
            }
        }
    }

    /// AddOffsetsToTxn: the partition of `__consumer_offsets` that a group belongs to becomes part of the
    /// transaction.
    pub async fn add_offsets(
        &self,
        version: i16,
        request: AddOffsetsToTxnRequest,
        offsets_partition: i32,
    ) -> ErrorCode {
        let producer = Producer {
            transactional_id: request.transactional_id,
            id: ProducerId(request.producer_id),
            epoch: ProducerEpoch(request.producer_epoch),
        };
        let partitions = Partitions::from([(topic_name::GROUP_METADATA.into(), [offsets_partition].into())]);
        match self.answer(producer, partitions, Question::Add, TransactionVersion::OLD).await {
            Ok(_) => ErrorCode::None,
            Err(error) => for_version(error, version, FIRST_ADD_WITH_FENCED),
        }
    }

    /// Answers a broker's question: the errors of the partitions that have one, or the error of all.
    pub async fn answer_broker(
        &self,
        producer: Producer,
        partitions: Partitions,
        question: Question,
    ) -> Result<Vec<(Arc<str>, i32, ErrorCode)>, ErrorCode> {
        self.answer(producer, partitions, question, TransactionVersion::NEW).await
    }

    async fn answer(
        &self,
        producer: Producer,
        partitions: Partitions,
        question: Question,
        version: TransactionVersion,
    ) -> Result<Vec<(Arc<str>, i32, ErrorCode)>, ErrorCode> {
        if producer.transactional_id.is_empty() {
            return Err(ErrorCode::InvalidRequest);
        }
        let transactional_id = producer.transactional_id.clone();
        let request = match question {
            Question::Verify => Request::Verify { producer, partitions },
            Question::Add => Request::Add { producer, partitions, version },
        };
        match self.ask(&transactional_id, request).await {
            Reply::Done => Ok(Vec::new()),
            Reply::Verified(mut verified) => {
                verified.retain(|(_, _, error)| *error != ErrorCode::None);
                Ok(verified)
            }
            other => Err(refused(&other)),
        }
    }

    /// EndTxn.
    pub async fn end(&self, version: i16, request: EndTxnRequest) -> EndTxnResponse {
        let producer = Producer {
            transactional_id: request.transactional_id,
            id: ProducerId(request.producer_id),
            epoch: ProducerEpoch(request.producer_epoch),
        };
        let ended = if producer.transactional_id.is_empty() {
            Reply::Refused(ErrorCode::InvalidRequest)
        } else {
            let is_commit = request.committed;
            let version = match version >= FIRST_END_WITH_EPOCH {
                true => TransactionVersion::NEW,
                false => TransactionVersion::OLD,
            };
            let end = |unused| Request::End(End { producer: producer.clone(), is_commit, version, unused });
            self.ask_with_id(&producer.transactional_id, end).await
        };
        match ended {
            Reply::Producer(ProducerId(producer_id), ProducerEpoch(producer_epoch)) => {
                EndTxnResponse { producer_id, producer_epoch, ..EndTxnResponse::default() }
            }
            other => {
                let error_code = for_version(refused(&other), version, FIRST_END_WITH_FENCED).code();
                EndTxnResponse { error_code, ..EndTxnResponse::default() }
            }
        }
    }

    /// All markers of a transaction stand in their partitions. Returns when this is noted, or if this node is not
    /// the coordinator in that epoch any more: the next one writes them all again.
    ///
    /// # Errors
    /// It could not be noted and has to be tried again, or the transaction would never be over. A full disk answers
    /// NOT_COORDINATOR too, so that only the leadership itself tells whether there is somebody else to do it.
    pub async fn markers_written(&self, producer: Producer, epoch: LeaderEpoch) -> Result<(), ErrorCode> {
        let transactional_id = producer.transactional_id.clone();
        let request = |unused| Request::MarkersWritten { producer: producer.clone(), unused };
        match self.ask_with_id(&transactional_id, request).await {
            Reply::Done => Ok(()),
            _ if !self.leads(&transactional_id, epoch) => Ok(()),
            other => Err(refused(&other)),
        }
    }
}

/// The answer if some of the partitions cannot be added, which makes all fail.
fn refuse(
    version: i16,
    image: &Image,
    topics: &[AddPartitionsToTxnTopic],
) -> Option<Vec<AddPartitionsToTxnTopicResult>> {
    let refusal = |topic: &str, index| {
        // Clients add these with AddOffsetsToTxn.
        if version < FIRST_ADD_BY_BROKERS && topic_name::is_internal(topic) {
            return Some(ErrorCode::TopicAuthorizationFailed);
        }
        (!exists(image, topic, index)).then_some(ErrorCode::UnknownTopicOrPartition)
    };
    let is_refused = |topic: &AddPartitionsToTxnTopic| {
        topic.partitions.iter().any(|index| refusal(&topic.name, *index).is_some())
    };
    topics.iter().any(is_refused).then(|| {
        results(topics, |topic, index| refusal(topic, index).unwrap_or(ErrorCode::OperationNotAttempted))
    })
}

fn exists(image: &Image, topic: &str, index: i32) -> bool {
    image.topic_by_name(topic).is_some_and(|topic| topic.partition(index).is_some())
}

fn results(
    topics: &[AddPartitionsToTxnTopic],
    error: impl Fn(&str, i32) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topic = |topic: &AddPartitionsToTxnTopic| {
        let partition = |&index: &i32| AddPartitionsToTxnPartitionResult {
            partition_index: index,
            partition_error_code: error(&topic.name, index).code(),
        };
        AddPartitionsToTxnTopicResult {
            name: topic.name.clone(),
            results_by_partition: topic.partitions.iter().map(partition).collect(),
        }
    };
    topics.iter().map(topic).collect()
}
