//! Produce (key 0), versions 0 to 13.
//!
//! v1 throttle time; v2 message format V1 and the time of the append; v3 format V2 and transactional ids
//! (KIP-98); v5 log start; v7 zstd (KIP-110); v8 errors by record (KIP-467); v9 flexible; v10 the new leader
//! (KIP-951); v12 implicit transactions (KIP-890); v13 topic ids (KIP-516).
//!
//! Deviations: null records, which make Kafka 4.4 hang and 2.8 answer twice, are INVALID_RECORD.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_coordinator::Question as Ask;
use klamm_coordinator::transaction::Producer;
use klamm_io::BoxFuture;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, TopicId, topic_name};
use klamm_partition::{AppendError, AppendOptions, Appended, Origin, Partition, Verification};
use klamm_protocol::messages::produce::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceRequest,
    ProduceResponse, TopicProduceData, TopicProduceResponse,
};
use klamm_protocol::{Reader, RecordsField};
use klamm_records::BatchHeader;
use klamm_storage::StorageError;

use super::{Answer, Begun, Call, Closed, decode, encode};
use crate::client_quotas::Quota;
use crate::context::Context;
use crate::leader_hints::{LeaderHints, Reached};
use crate::partition_table::{LocalTopic, Table};
use crate::transaction_verification::{self, Clients, Subject};

/// The client id of Kafka's own tools that may write to internal topics.
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// From this version on topics are named by their ids.
const TOPIC_IDS_SINCE: i16 = 13;

/// From this version on clients are told who leads, if it is another node.
const LEADERS_SINCE: i16 = 10;

/// From this version on the client knows TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 11;

/// From this version on the client does not add partitions to its transactions itself.
const IMPLICIT_SINCE: i16 = 12;

/// Fewer bytes than this hold no batch.
const HEAD_BYTES: usize = 17;

/// An append whose acknowledgement is not due yet.
struct Pending {
    partition: Arc<Partition>,
    offset: Offset,
    leader_epoch: LeaderEpoch,
    /// The sync that has to come first, if it has to.
    flush: Option<BoxFuture<'static, Result<(), StorageError>>>,
    /// Where its place in the response is: topic, then partition.
    place: (usize, usize),
}

/// Topic, id and partition.
type Place = (String, TopicId, i32);

/// What the coordinators of transactions said about the batches that need it.
type Verified = BTreeMap<Place, transaction_verification::Verified>;

/// The first stage, in the order of the requests: all records are appended, or refused. The answer waits for
/// what `acks` asks for. Where a transaction begins in a partition, its coordinator is asked first.
pub(crate) fn begin(context: Arc<Context>, call: Call, mut reader: Reader) -> Result<Begun, Closed> {
    let request: ProduceRequest = decode(&call, &mut reader)?;
    let questions = questions(&context, &call, &request);
    if questions.is_empty() {
        return append_and_wait(&context, call, request, &Verified::new()).map(Begun::Done);
    }
    Ok(Begun::Waits(Box::pin(async move {
        let (places, subjects): (Vec<_>, Vec<_>) = questions.into_iter().unzip();
        let answers = transaction_verification::verify(&context, &subjects, clients(&call)).await;
        let verified = places.into_iter().zip(answers).collect();
        append_and_wait(&context, call, request, &verified)
    })))
}

fn append_and_wait(
    context: &Arc<Context>,
    call: Call,
    request: ProduceRequest,
    verified: &Verified,
) -> Result<Answer, Closed> {
    let (context, acks, timeout_ms) = (context.clone(), request.acks, request.timeout_ms);
    let (mut response, mut pending) = append_all(&context, &call, request, verified);
    response.throttle_time_ms = call.count(&context, Quota::Produce, call.bytes as f64);
    if acks == 0 {
        let failed = partitions(&response).any(|partition| partition.error_code != ErrorCode::None.code());
        if failed {
            return Err(Closed::Refused);
        }
        return Ok(Box::pin(async move {
            flush(&mut pending, &mut response).await;
            Ok(None)
        }));
    }
    Ok(Box::pin(async move {
        flush(&mut pending, &mut response).await;
        if acks == -1 {
            let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
            await_replicas(pending, timeout, &mut response).await;
        }
        name_leaders(&context, &call, &mut response);
        encode(&call, &response).map(Some)
    }))
}

/// Says where to go, where this node does not lead (KIP-951).
fn name_leaders(context: &Context, call: &Call, response: &mut ProduceResponse) {
    if call.version < LEADERS_SINCE {
        return;
    }
    let mut hints = LeaderHints::new(context, call);
    for topic in &mut response.responses {
        for partition in &mut topic.partition_responses {
            if partition.error_code == ErrorCode::NotLeaderOrFollower.code() {
                let (leader_id, leader_epoch) = hints.leader_of(topic.topic_id, &topic.name, partition.index);
                partition.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
            }
        }
    }
    let endpoint = |Reached { node_id, host, port, rack }| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = hints.reached().map(endpoint).collect();
}

/// What clients of this version expect where a transaction begins.
fn clients(call: &Call) -> Clients {
    Clients {
        question: if call.version >= IMPLICIT_SINCE { Ask::Add } else { Ask::Verify },
        know_abortable: call.version >= ABORTABLE_SINCE,
    }
}

/// The batches that may be the first of a transaction in their partitions.
fn questions(context: &Context, call: &Call, request: &ProduceRequest) -> Vec<(Place, Subject)> {
    let Some(transactional_id) = &request.transactional_id else { return Vec::new() };
    if refuse_all(request).is_some() {
        return Vec::new();
    }
    let is_implicit = clients(call).question == Ask::Add;
    let table = context.partitions.load();
    let mut questions = Vec::new();
    for topic in &request.topic_data {
        let local = named(call, &table, &topic.name, topic.topic_id);
        for data in &topic.partition_data {
            let partition = local.and_then(|local| local.partitions.get(&data.index));
            let Some(partition) = partition.filter(|partition| partition.is_leader()) else { continue };
            let Some(header) = data.records.as_ref().and_then(transactional) else { continue };
            let (id, epoch, base_sequence) =
                (header.producer_id, header.producer_epoch, header.base_sequence);
            let known = partition.verify_transaction(id, epoch, base_sequence, is_implicit);
            if let Verification::Needed(_) = known {
                let producer = Producer { transactional_id: transactional_id.clone(), id, epoch };
                let subject = Subject { partition: partition.clone(), producer, base_sequence };
                questions.push(((topic.name.clone(), topic.topic_id, data.index), subject));
            }
        }
    }
    questions
}

/// The topic that a request means: from v13 on by its id, before by its name.
fn named<'a>(call: &Call, table: &'a Table, name: &str, id: TopicId) -> Option<&'a Arc<LocalTopic>> {
    if call.version >= TOPIC_IDS_SINCE { table.topic(id) } else { table.topic_by_name(name) }
}

/// The head of a transactional batch.
fn transactional(records: &RecordsField) -> Option<BatchHeader> {
    match records.bytes().map(|bytes| klamm_records::peek_batch(bytes)) {
        Some(Ok(Some(header))) if header.magic == 2 && header.is_transactional() => Some(header),
        _ => None,
    }
}

fn partitions(response: &ProduceResponse) -> impl Iterator<Item = &PartitionProduceResponse> {
    response.responses.iter().flat_map(|topic| &topic.partition_responses)
}

fn append_all(
    context: &Context,
    call: &Call,
    request: ProduceRequest,
    verified: &Verified,
) -> (ProduceResponse, Vec<Pending>) {
    let refused = refuse_all(&request);
    let table = context.partitions.load();
    let mut response = ProduceResponse::default();
    let mut pending = Vec::new();
    for ((name, id), records_of) in by_topic(request.topic_data) {
        let local = named(call, &table, &name, id);
        let named_by_id = (call.version >= TOPIC_IDS_SINCE).then_some(id);
        let internal = local.is_some_and(|topic| topic_name::is_internal(&topic.name))
            && call.client_id.as_deref() != Some(ADMIN_CLIENT_ID);
        let mut responses = Vec::with_capacity(records_of.len());
        for (index, records) in records_of {
            let refusal = refused.or(internal.then_some(ErrorCode::InvalidTopicException));
            let partition = local.and_then(|topic| topic.partitions.get(&index));
            let verified = verified.get(&(name.clone(), id, index));
            let result = match (refusal, partition, verified) {
                (Some(code), _, _) => Err(refusal_response(code, None)),
                (None, None, _) => {
                    Err(refusal_response(context.missing_partition(named_by_id, &name, index), None))
                }
                (None, Some(_), Some(Err(error))) => Err(unverified(call.version, *error)),
                (None, Some(partition), verified) => {
                    let options = AppendOptions {
                        origin: Origin::Client,
                        produce_version: call.version,
                        acks: request.acks,
                        expected_leader_epoch: None,
                        guard: verified.and_then(|verified| verified.clone().ok().flatten()),
                    };
                    let records = records.as_ref().and_then(RecordsField::bytes);
                    append(partition, records, &options).inspect(|appended| {
                        pending.push(Pending {
                            partition: partition.clone(),
                            offset: appended.last_offset + 1,
                            leader_epoch: appended.leader_epoch,
                            // It begins now, for all partitions at once.
                            flush: appended
                                .flush_due
                                .comes_before_answer(request.acks)
                                .then(|| partition.flush()),
                            place: (response.responses.len(), responses.len()),
                        });
                    })
                }
            };
            responses
                .push(PartitionProduceResponse { index, ..result.map_or_else(|refused| *refused, success) });
        }
        response.responses.push(TopicProduceResponse { name, topic_id: id, partition_responses: responses });
    }
    (response, pending)
}

/// The records by topic and partition. A topic that is named twice counts once, and so does a partition, with
/// what was said last; a topic without partitions is not answered.
fn by_topic(data: Vec<TopicProduceData>) -> BTreeMap<(String, TopicId), BTreeMap<i32, Option<RecordsField>>> {
    let mut topics: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for topic in data.into_iter().filter(|topic| !topic.partition_data.is_empty()) {
        let partitions = topics.entry((topic.name, topic.topic_id)).or_default();
        partitions.extend(topic.partition_data.into_iter().map(|one| (one.index, one.records)));
    }
    topics
}

/// What is wrong with the request as a whole.
fn refuse_all(request: &ProduceRequest) -> Option<ErrorCode> {
    if !matches!(request.acks, -1..=1) {
        return Some(ErrorCode::InvalidRequiredAcks);
    }
    let mut all = request.topic_data.iter().flat_map(|topic| &topic.partition_data);
    let is_transactional = all.any(|partition| partition.records.as_ref().and_then(transactional).is_some());
    (is_transactional && request.transactional_id.is_none())
        .then_some(ErrorCode::TransactionalIdAuthorizationFailed)
}

/// The answer where a coordinator did not let a batch into its transaction. Clients before KIP-890 do not expect
/// errors of a coordinator here, and try again after this one.
fn unverified(version: i16, error: ErrorCode) -> Box<PartitionProduceResponse> {
    match error {
        ErrorCode::InvalidTxnState => {
            let message = "Partition was not added to the transaction".to_owned();
            refusal_response(error, Some(message))
        }
        ErrorCode::ConcurrentTransactions if version >= IMPLICIT_SINCE => refusal_response(error, None),
        ErrorCode::ConcurrentTransactions
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::NotCoordinator => {
            let message = format!("It could not be asked whether the transaction is open: {error}");
            refusal_response(ErrorCode::NotEnoughReplicas, Some(message))
        }
        _ => refusal_response(error, None),
    }
}

fn append(
    partition: &Partition,
    records: Option<&Bytes>,
    options: &AppendOptions,
) -> Result<Appended, Box<PartitionProduceResponse>> {
    let Some(records) = records else {
        let message = "The request holds no records for this partition".to_owned();
        return Err(refusal_response(ErrorCode::InvalidRecord, Some(message)));
    };
    partition.append_as_leader(records.clone(), options).map_err(|error| {
        let mut response = refusal_response(error.code(), None);
        if is_found_late(&error, records) {
            response.log_start_offset = partition.offsets().log_start;
        }
        match &error {
            AppendError::Invalid(invalid) => {
                // Kafka says this only beside errors of records; the reason is of use to everybody.
                response.error_message = Some(invalid.message.clone());
                response.record_errors = invalid.record_errors.iter().map(record_error).collect();
            }
            AppendError::Storage(error) => {
                let name = partition.topic_partition();
                tracing::error!("records for {name} were not appended: {error}");
            }
            _ => {}
        }
        response
    })
}

/// Whether Kafka finds this error only when it has the log before it; then it tells where the log starts.
fn is_found_late(error: &AppendError, records: &Bytes) -> bool {
    let is_one_batch = || match klamm_records::peek_batch(records) {
        Ok(Some(header)) if header.magic == 2 => {
            records.len() >= header.size && records.len() - header.size < HEAD_BYTES
        }
        _ => false,
    };
    match error {
        AppendError::Invalid(invalid) => match invalid.code {
            ErrorCode::InvalidRecord => is_one_batch(),
            ErrorCode::InvalidTimestamp | ErrorCode::UnknownServerError => true,
            _ => false,
        },
        AppendError::ProducerFenced { .. } | AppendError::OutOfOrderSequence { .. } => true,
        _ => false,
    }
}

fn record_error((index, message): &(i32, Option<String>)) -> BatchIndexAndErrorMessage {
    BatchIndexAndErrorMessage { batch_index: *index, batch_index_error_message: message.clone() }
}

fn refusal_response(code: ErrorCode, message: Option<String>) -> Box<PartitionProduceResponse> {
    Box::new(PartitionProduceResponse {
        error_code: code.code(),
        base_offset: -1,
        error_message: message,
        ..Default::default()
    })
}

fn success(appended: Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        base_offset: appended.base_offset,
        log_append_time_ms: appended.log_append_time,
        log_start_offset: appended.log_start_offset,
        ..Default::default()
    }
}

/// The second stage, where `flush.messages` or group commit asks for it: waits until the disk has it.
async fn flush(pending: &mut [Pending], response: &mut ProduceResponse) {
    for Pending { partition, flush, place, .. } in pending {
        let Some(flush) = flush.take() else { continue };
        if let Err(reason) = flush.await {
            let name = partition.topic_partition();
            tracing::error!("records for {name} are not known to be on the disk: {reason}");
            refuse(*place, ErrorCode::KafkaStorageError, response);
        }
    }
}

/// Puts an error in the place of what was a success before the wait.
fn refuse(place: (usize, usize), code: ErrorCode, response: &mut ProduceResponse) {
    let place = &mut response.responses[place.0].partition_responses[place.1];
    *place = PartitionProduceResponse { index: place.index, ..*refusal_response(code, None) };
}

/// The second stage: waits until the in-sync replicas have all of it, or until time is up.
async fn await_replicas(pending: Vec<Pending>, timeout: Duration, response: &mut ProduceResponse) {
    let deadline = tokio::time::Instant::now() + timeout;
    for append in pending {
        let Pending { partition, offset, leader_epoch, place, .. } = append;
        let committed = match partition.is_committed(offset, leader_epoch) {
            Ok(false) => {
                let wait = partition.wait_for_high_watermark(offset, leader_epoch);
                tokio::time::timeout_at(deadline, wait).await.map_err(|_| ErrorCode::RequestTimedOut)
            }
            done => Ok(done.map(drop)),
        };
        let code = match committed {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.code(),
            Err(code) => code,
        };
        refuse(place, code, response);
    }
}
