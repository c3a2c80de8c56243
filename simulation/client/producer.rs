//! A producer: it sends batches of records to one partition, up to five at a time, and knows of each record how it
//! ended.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use klamm_protocol::messages::{InitProducerIdRequest, ProduceRequest};
use klamm_records::{BatchBuilder, BatchSettings};

use super::connection::NoAnswer;
use super::{Client, Found, PATIENCE};
use crate::history::{Acks, Outcome, Place, Sent, Value};

/// `max.in.flight.requests.per.connection`, the most that keeps the order (KIP-98).
const IN_FLIGHT_MAX: usize = 5;

/// `delivery.timeout.ms`: when a record is given up.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// What kind of producer it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) acks: Acks,
    /// Retries are told apart from new records. Without, there are no retries, since each could be a second record.
    pub(crate) is_idempotent: bool,
}

/// A batch that has not ended.
struct Batch {
    values: Vec<Value>,
    sequence: i32,
    began: Duration,
    /// Whether an earlier try may have been appended.
    may_be_there: bool,
}

/// How a producer goes on after a round.
#[derive(PartialEq, Eq)]
enum Next {
    Round,
    /// Look for the leader first.
    Find,
    /// The producer's id is of no use any more.
    NewProducer,
}

/// One life of a producer id, on one incarnation of a topic.
struct Life {
    /// The number of the life; `None` without idempotence.
    number: Option<u32>,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    place: Place,
    kind: Kind,
    sequence: i32,
    window: VecDeque<Batch>,
}

/// Produces to a partition until it is asked to stop. `number` tells this producer from others.
pub(crate) async fn produce(mut client: Client, number: u32, topic: String, partition: i32, kind: Kind) {
    let mut lives = 0;
    while !client.surroundings.is_stopping() {
        let Some(found) = client.find(&topic, partition).await else {
            client.rest(500).await;
            continue;
        };
        let (mut producer_id, mut producer_epoch) = (ProducerId::NONE, ProducerEpoch::NONE);
        if kind.is_idempotent {
            let request = InitProducerIdRequest { producer_id: -1, producer_epoch: -1, ..Default::default() };
            match client.ask_any(4, &request).await {
                Ok(answer) if answer.error_code == 0 => {
                    producer_id = ProducerId(answer.producer_id);
                    producer_epoch = ProducerEpoch(answer.producer_epoch);
                }
                _ => {
                    client.rest(300).await;
                    continue;
                }
            }
        }
        lives += 1;
        let life = Life {
            number: kind.is_idempotent.then_some(number * 100_000 + lives),
            producer_id,
            producer_epoch,
            place: found.place,
            kind,
            sequence: 0,
            window: VecDeque::new(),
        };
        live(&mut client, life, &topic, found).await;
    }
}

/// Produces with one producer id to one incarnation of a topic, as long as both last.
async fn live(client: &mut Client, mut life: Life, topic: &str, mut found: Found) {
    loop {
        let is_stopping = client.surroundings.is_stopping();
        if is_stopping && life.window.is_empty() {
            return;
        }
        if !is_stopping {
            life.fill(client);
        }
        let mut next = life.round(client, found).await;
        if next == Next::Find {
            client.rest(200).await;
            match client.find(topic, found.place.partition).await {
                Some(new) if new.place == life.place => found = new,
                // Made again, it is another topic.
                Some(_) => next = Next::NewProducer,
                None => {}
            }
        }
        let now = client.surroundings.now();
        let too_late = life.window.front().is_some_and(|batch| now - batch.began > DELIVERY_TIMEOUT);
        if next == Next::NewProducer || too_late {
            while let Some(batch) = life.window.pop_front() {
                let outcome = if batch.may_be_there { Outcome::Unknown } else { Outcome::Failed };
                life.end(client, batch, outcome);
            }
            return;
        }
        client.rest(if client.random.chance(1, 20) { 3000 } else { 150 }).await;
    }
}

impl Life {
    /// Adds new batches behind those that have not ended.
    fn fill(&mut self, client: &Client) {
        let wanted = 1 + client.random.below(IN_FLIGHT_MAX as u64) as usize;
        while self.window.len() < wanted {
            let values: Vec<Value> =
                (0..1 + client.random.below(4)).map(|_| client.surroundings.recorder.value()).collect();
            let (sequence, began) = (self.sequence, client.surroundings.now());
            self.sequence += values.len() as i32;
            self.window.push_back(Batch { values, sequence, began, may_be_there: false });
        }
    }

    /// Sends all batches that have not ended, in order, and sees what comes of them.
    async fn round(&mut self, client: &mut Client, found: Found) -> Next {
        let answers = self.exchange(client, found.leader).await;
        let mut next = Next::Round;
        let mut left = VecDeque::new();
        let batches = std::mem::take(&mut self.window);
        for (mut batch, answer) in batches.into_iter().zip(answers) {
            let is_first = left.is_empty();
            match answer {
                Ok((ErrorCode::None, offset)) => self.end(client, batch, Outcome::Appended(Some(offset))),
                Ok((ErrorCode::DuplicateSequenceNumber, _)) => {
                    self.end(client, batch, Outcome::Appended(None));
                }
                Ok((code, _)) if !self.kind.is_idempotent => {
                    let outcome = if is_definite(code) { Outcome::Failed } else { Outcome::Unknown };
                    self.end(client, batch, outcome);
                    next = Next::Find;
                }
                Err(failure) if !self.kind.is_idempotent => {
                    let is_out = failure == NoAnswer::Lost;
                    let outcome = if is_out { Outcome::Unknown } else { Outcome::Failed };
                    self.end(client, batch, outcome);
                    next = Next::Find;
                }
                Ok((code, _)) => {
                    batch.may_be_there |= !is_definite(code);
                    let is_lost = is_first && code == ErrorCode::OutOfOrderSequenceNumber;
                    let is_of_no_use = is_lost || is_final(code);
                    next = if is_of_no_use || next == Next::NewProducer {
                        Next::NewProducer
                    } else {
                        Next::Find
                    };
                    left.push_back(batch);
                }
                Err(failure) => {
                    batch.may_be_there |= failure == NoAnswer::Lost;
                    next = if next == Next::NewProducer { next } else { Next::Find };
                    left.push_back(batch);
                }
            }
        }
        self.window = left;
        next
    }

    /// One request for each batch, all sent before the first answer is waited for.
    async fn exchange(
        &self,
        client: &mut Client,
        leader: SocketAddr,
    ) -> Vec<Result<(ErrorCode, i64), NoAnswer>> {
        let connection = match client.connection(leader).await {
            Ok(connection) => connection,
            Err(failure) => return vec![Err(failure); self.window.len()],
        };
        let mut pending = Vec::new();
        let mut has_failed = false;
        for batch in &self.window {
            let request = self.request(client, batch);
            let sending = tokio::time::timeout(PATIENCE, connection.send(13, &request));
            let sent = if has_failed {
                Err(NoAnswer::NotSent)
            } else {
                sending.await.unwrap_or(Err(NoAnswer::Lost))
            };
            has_failed |= sent.is_err();
            pending.push(sent);
        }
        let mut answers = Vec::new();
        for sent in pending {
            let answer = match sent {
                Ok(pending) => {
                    let answer = tokio::time::timeout(PATIENCE, pending.answer::<ProduceRequest>());
                    answer.await.unwrap_or(Err(NoAnswer::Lost))
                }
                Err(failure) => Err(failure),
            };
            answers.push(answer.map(|answer| {
                let result = &answer.responses[0].partition_responses[0];
                let code = ErrorCode::from_code(result.error_code).unwrap_or(ErrorCode::UnknownServerError);
                (code, result.base_offset)
            }));
        }
        if answers.iter().any(Result::is_err) {
            client.forget(leader);
        }
        answers
    }

    fn request(&self, client: &Client, batch: &Batch) -> ProduceRequest {
        let settings = BatchSettings {
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            base_sequence: if self.kind.is_idempotent { batch.sequence } else { -1 },
            ..BatchSettings::default()
        };
        let mut builder = BatchBuilder::v2(settings);
        for value in &batch.values {
            let now_ms = client.surroundings.clock.now_ms();
            builder.append(now_ms, None, Some(&value.to_be_bytes()), &[]);
        }
        let partition =
            PartitionProduceData { index: self.place.partition, records: Some(builder.build().into()) };
        let topic = TopicProduceData {
            topic_id: self.place.topic,
            partition_data: vec![partition],
            ..Default::default()
        };
        let acks = if self.kind.acks == Acks::All { -1 } else { 1 };
        ProduceRequest { transactional_id: None, acks, timeout_ms: 3000, topic_data: vec![topic] }
    }

    /// Notes how the records of a batch ended.
    fn end(&self, client: &Client, batch: Batch, outcome: Outcome) {
        let ended = client.surroundings.now();
        client.surroundings.recorder.note(|history| {
            for (index, value) in batch.values.iter().enumerate() {
                let outcome = match outcome {
                    Outcome::Appended(Some(offset)) => Outcome::Appended(Some(offset + index as i64)),
                    other => other,
                };
                history.sent.push(Sent {
                    place: self.place,
                    value: *value,
                    idempotent: self.number,
                    acks: self.kind.acks,
                    began: batch.began,
                    ended,
                    outcome,
                });
            }
        });
    }
}

/// Whether this answer says that this try has appended nothing. A leader that lost its leadership while it waited for
/// its followers says NOT_LEADER_OR_FOLLOWER of what it has appended.
pub(super) fn is_definite(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotEnoughReplicas
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::UnknownProducerId
            | ErrorCode::MessageTooLarge
            | ErrorCode::CorruptMessage
    )
}

/// Whether nothing can be produced with this producer id any more.
fn is_final(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::UnknownProducerId)
}
