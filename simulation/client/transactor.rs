//! A transactional producer: each transaction spans partitions, and at times an offset of a group; it is committed or
//! aborted. Two producers share a transactional id and fence each other, and now and then one is slower than a
//! transaction may be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::{ErrorCode, Offset, ProducerEpoch, ProducerId};
use klamm_protocol::messages::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use klamm_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use klamm_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use klamm_protocol::messages::{
    AddOffsetsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest,
};
use klamm_records::{BatchBuilder, BatchSettings};

use super::connection::NoAnswer;
use super::member::{self, Group};
use super::producer::is_definite;
use super::{Client, Coordinated, Found};
use crate::history::{Acks, Committer, Fate, Outcome, Place, Sent, Transaction, Value};

/// `transaction.timeout.ms`.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one step of a transaction is tried.
const STEP_MAX: Duration = Duration::from_secs(8);

/// How long it is asked for the end of a transaction.
const END_MAX: Duration = Duration::from_secs(30);

/// Who adds partitions to transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// The producer, whose epoch stays (KIP-98).
    Old,
    /// The brokers, and each transaction has an epoch of its own (KIP-890).
    New,
}

/// What all producers of one transactional id share.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) protocol: Protocol,
    pub(crate) topic: String,
    pub(crate) partitions: i32,
    /// The number of the last transaction that was begun.
    pub(crate) last: AtomicI64,
}

impl Identity {
    fn name(&self) -> String {
        format!("transactional-{}", self.number)
    }

    /// The group whose offsets are committed in its transactions.
    pub(crate) fn group(&self) -> Group {
        Group { committer: Committer::Transactions(self.number), topic: self.topic.clone(), partitions: 1 }
    }
}

struct Transactor {
    client: Client,
    number: u32,
    identity: Arc<Identity>,
    lives: u32,
}

/// A producer's id and epoch, and how far it is with them.
struct Life {
    /// Tells records of one epoch from others.
    number: u32,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    sequences: BTreeMap<Place, i32>,
}

/// Makes one transaction after another until it is asked to stop. `number` tells this producer from others.
pub(crate) async fn transact(client: Client, number: u32, identity: Arc<Identity>) {
    let mut transactor = Transactor { client, number, identity, lives: 0 };
    while !transactor.client.surroundings.is_stopping() {
        let Some(mut life) = transactor.begin().await else {
            transactor.client.rest(500).await;
            continue;
        };
        let group = transactor.identity.group();
        // For the history: whether what earlier transactions have committed is there.
        member::committed(&mut transactor.client, &group, &[0]).await;
        while !transactor.client.surroundings.is_stopping() {
            if !transactor.transaction(&mut life).await || transactor.client.random.chance(1, 30) {
                break;
            }
            transactor.client.rest(1000).await;
        }
        // Whoever was fenced leaves the other alone for a while.
        transactor.client.rest(10_000).await;
    }
}

impl Transactor {
    fn next_life(&mut self) -> u32 {
        self.lives += 1;
        self.number * 100_000 + self.lives
    }

    /// Gets an epoch, which fences who had one before.
    async fn begin(&mut self) -> Option<Life> {
        let coordinator = self.client.coordinator(Coordinated::Transaction, &self.identity.name()).await?;
        let request = InitProducerIdRequest {
            transactional_id: Some(self.identity.name()),
            transaction_timeout_ms: TRANSACTION_TIMEOUT.as_millis() as i32,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let answer = self.client.ask(coordinator, 4, &request).await.ok()?;
        (answer.error_code == 0).then(|| Life {
            number: self.next_life(),
            producer_id: ProducerId(answer.producer_id),
            producer_epoch: ProducerEpoch(answer.producer_epoch),
            sequences: BTreeMap::new(),
        })
    }

    /// One transaction. False if another epoch is needed before the next.
    async fn transaction(&mut self, life: &mut Life) -> bool {
        let number = 1 + self.identity.last.fetch_add(1, Ordering::Relaxed);
        let mut open = Transaction {
            id: self.identity.number,
            number,
            values: Vec::new(),
            has_offset: false,
            commit_began: None,
            ended: Duration::ZERO,
            fate: Fate::Refused,
        };
        let is_well = self.fill(life, &mut open).await;
        let is_commit = is_well && !self.client.random.chance(1, 5);
        // Some leave what has failed to the coordinator, which aborts it in the end.
        let ends = is_well || self.client.random.chance(1, 2);
        if ends {
            open.fate = self.end(life, &mut open, is_commit).await;
        }
        open.ended = self.client.surroundings.now();
        let goes_on = is_well && open.fate == Fate::Done;
        self.client.surroundings.recorder.note(|history| history.transactions.push(open));
        goes_on
    }

    /// Appends what belongs to a transaction. False if some of it is not known to be there.
    async fn fill(&mut self, life: &mut Life, open: &mut Transaction) -> bool {
        let mut added = BTreeSet::new();
        for _ in 0..1 + self.client.random.below(3) {
            let partition = self.client.random.below(self.identity.partitions as u64) as i32;
            let is_new = added.insert(partition);
            if is_new && self.identity.protocol == Protocol::Old && !self.add(life, partition).await {
                return false;
            }
            if !self.append(life, open, partition).await {
                return false;
            }
            if self.client.random.chance(1, 25) {
                let most = Duration::from_millis(self.client.random.below(10_000));
                tokio::time::sleep(TRANSACTION_TIMEOUT - Duration::from_secs(2) + most).await;
            }
        }
        if self.client.random.chance(1, 2) {
            open.has_offset = self.commit_offset(life, open.number).await;
            return open.has_offset;
        }
        true
    }

    /// Adds a partition to the transaction (KIP-98).
    async fn add(&mut self, life: &Life, partition: i32) -> bool {
        let topic =
            AddPartitionsToTxnTopic { name: self.identity.topic.clone(), partitions: vec![partition] };
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: self.identity.name(),
            v3_and_below_producer_id: life.producer_id.0,
            v3_and_below_producer_epoch: life.producer_epoch.0,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
        let until = self.client.surroundings.now() + STEP_MAX;
        while self.client.surroundings.now() < until {
            if let Some(coordinator) =
                self.client.coordinator(Coordinated::Transaction, &self.identity.name()).await
                && let Ok(answer) = self.client.ask(coordinator, 3, &request).await
            {
                let topic = answer.results_by_topic_v3_and_below.first();
                let code = topic.and_then(|topic| topic.results_by_partition.first());
                match code.map(|code| code.partition_error_code) {
                    Some(0) => return true,
                    Some(code) if is_final(code) => return false,
                    _ => {}
                }
            }
            self.client.rest(200).await;
        }
        false
    }

    /// Appends a batch, however often that takes. False if it is not known to be there.
    async fn append(&mut self, life: &mut Life, open: &mut Transaction, partition: i32) -> bool {
        let count = 1 + self.client.random.below(3);
        let values: Vec<Value> = (0..count).map(|_| self.client.surroundings.recorder.value()).collect();
        open.values.extend(&values);
        let began = self.client.surroundings.now();
        let mut tried: Option<Place> = None;
        let mut outcome = Outcome::Failed;
        while self.client.surroundings.now() < began + STEP_MAX {
            if let Some(found) = self.client.find(&self.identity.topic, partition).await {
                tried = Some(found.place);
                match self.produce(life, found, &values).await {
                    Ok((ErrorCode::None, offset)) => outcome = Outcome::Appended(Some(offset)),
                    Ok((ErrorCode::DuplicateSequenceNumber, _)) => outcome = Outcome::Appended(None),
                    Ok((code, _)) => {
                        if !is_definite(code) {
                            outcome = Outcome::Unknown;
                        }
                        if is_final(code.code()) {
                            break;
                        }
                    }
                    Err(NoAnswer::NotSent) => {}
                    Err(NoAnswer::Lost) => outcome = Outcome::Unknown,
                }
            }
            if matches!(outcome, Outcome::Appended(_)) {
                break;
            }
            self.client.rest(200).await;
        }
        let Some(place) = tried else { return false };
        *life.sequences.entry(place).or_default() += values.len() as i32;
        self.note(life, place, &values, began, outcome);
        matches!(outcome, Outcome::Appended(_))
    }

    async fn produce(
        &mut self,
        life: &Life,
        found: Found,
        values: &[Value],
    ) -> Result<(ErrorCode, Offset), NoAnswer> {
        let settings = BatchSettings {
            producer_id: life.producer_id,
            producer_epoch: life.producer_epoch,
            base_sequence: life.sequences.get(&found.place).copied().unwrap_or(0),
            transactional: true,
            ..BatchSettings::default()
        };
        let mut builder = BatchBuilder::v2(settings);
        for value in values {
            let now_ms = self.client.surroundings.clock.now_ms();
            builder.append(now_ms, None, Some(&value.to_be_bytes()), &[]);
        }
        let records = Some(builder.build().into());
        let mut topic = TopicProduceData {
            partition_data: vec![PartitionProduceData { index: found.place.partition, records }],
            ..Default::default()
        };
        let version = match self.identity.protocol {
            Protocol::Old => {
                topic.name = self.identity.topic.clone();
                11
            }
            Protocol::New => {
                topic.topic_id = found.place.topic;
                13
            }
        };
        let request = ProduceRequest {
            transactional_id: Some(self.identity.name()),
            acks: -1,
            timeout_ms: 3000,
            topic_data: vec![topic],
        };
        let answer = self.client.ask(found.leader, version, &request).await?;
        let result = &answer.responses[0].partition_responses[0];
        let code = ErrorCode::from_code(result.error_code).unwrap_or(ErrorCode::UnknownServerError);
        Ok((code, result.base_offset))
    }

    fn note(&self, life: &Life, place: Place, values: &[Value], began: Duration, outcome: Outcome) {
        let ended = self.client.surroundings.now();
        let idempotent = Some(life.number);
        self.client.surroundings.recorder.note(|history| {
            for (index, &value) in values.iter().enumerate() {
                let outcome = match outcome {
                    Outcome::Appended(Some(offset)) => Outcome::Appended(Some(offset + index as i64)),
                    other => other,
                };
                history.sent.push(Sent { place, value, idempotent, acks: Acks::All, began, ended, outcome });
            }
        });
    }

    /// Commits the transaction's number as an offset of the id's group, as part of the transaction.
    async fn commit_offset(&mut self, life: &Life, number: Offset) -> bool {
        if self.identity.protocol == Protocol::Old && !self.add_offsets(life).await {
            return false;
        }
        let partition = TxnOffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: number,
            committed_leader_epoch: -1,
            committed_metadata: None,
        };
        let topic = TxnOffsetCommitRequestTopic {
            name: self.identity.topic.clone(),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = TxnOffsetCommitRequest {
            transactional_id: self.identity.name(),
            group_id: self.identity.group().name(),
            producer_id: life.producer_id.0,
            producer_epoch: life.producer_epoch.0,
            generation_id_or_member_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        let version = if self.identity.protocol == Protocol::Old { 3 } else { 5 };
        let until = self.client.surroundings.now() + STEP_MAX;
        while self.client.surroundings.now() < until {
            if let Some(coordinator) = self.client.coordinator(Coordinated::Group, &request.group_id).await
                && let Ok(answer) = self.client.ask(coordinator, version, &request).await
            {
                let topic = answer.topics.first();
                match topic.and_then(|topic| topic.partitions.first()).map(|code| code.error_code) {
                    Some(0) => return true,
                    Some(code) if is_final(code) => return false,
                    _ => {}
                }
            }
            self.client.rest(200).await;
        }
        false
    }

    /// Adds the group's partition of `__consumer_offsets` to the transaction (KIP-98).
    async fn add_offsets(&mut self, life: &Life) -> bool {
        let request = AddOffsetsToTxnRequest {
            transactional_id: self.identity.name(),
            producer_id: life.producer_id.0,
            producer_epoch: life.producer_epoch.0,
            group_id: self.identity.group().name(),
        };
        let until = self.client.surroundings.now() + STEP_MAX;
        while self.client.surroundings.now() < until {
            if let Some(coordinator) =
                self.client.coordinator(Coordinated::Transaction, &self.identity.name()).await
                && let Ok(answer) = self.client.ask(coordinator, 3, &request).await
            {
                match answer.error_code {
                    0 => return true,
                    code if is_final(code) => return false,
                    _ => {}
                }
            }
            self.client.rest(200).await;
        }
        false
    }

    /// Ends the transaction. What was refused without an earlier try that may have gone well has not happened.
    async fn end(&mut self, life: &mut Life, open: &mut Transaction, is_commit: bool) -> Fate {
        let request = EndTxnRequest {
            transactional_id: self.identity.name(),
            producer_id: life.producer_id.0,
            producer_epoch: life.producer_epoch.0,
            committed: is_commit,
        };
        let version = if self.identity.protocol == Protocol::Old { 3 } else { 5 };
        let until = self.client.surroundings.now() + END_MAX;
        let mut may_be_done = false;
        while self.client.surroundings.now() < until {
            if let Some(coordinator) =
                self.client.coordinator(Coordinated::Transaction, &self.identity.name()).await
            {
                if is_commit {
                    open.commit_began.get_or_insert(self.client.surroundings.now());
                }
                match self.client.ask(coordinator, version, &request).await {
                    Ok(answer) if answer.error_code == 0 => {
                        self.adopt(life, answer.producer_id, answer.producer_epoch);
                        return Fate::Done;
                    }
                    Ok(answer) if is_final(answer.error_code) => {
                        return if may_be_done { Fate::Unknown } else { Fate::Refused };
                    }
                    _ => may_be_done = true,
                }
            }
            self.client.rest(200).await;
        }
        Fate::Unknown
    }

    /// Goes on with the epoch that the end of a transaction has brought (KIP-890).
    fn adopt(&mut self, life: &mut Life, producer_id: i64, producer_epoch: i16) {
        if self.identity.protocol == Protocol::New {
            *life = Life {
                number: self.next_life(),
                producer_id: ProducerId(producer_id),
                producer_epoch: ProducerEpoch(producer_epoch),
                sequences: BTreeMap::new(),
            };
        }
    }
}

/// Whether this epoch can do nothing more in this transaction.
fn is_final(code: i16) -> bool {
    matches!(
        ErrorCode::from_code(code),
        Some(
            ErrorCode::InvalidProducerEpoch
                | ErrorCode::ProducerFenced
                | ErrorCode::InvalidTxnState
                | ErrorCode::InvalidProducerIdMapping
                | ErrorCode::UnknownProducerId
                | ErrorCode::OutOfOrderSequenceNumber
                | ErrorCode::TransactionAbortable
        )
    )
}
