//! A consumer: it reads partitions from their start on, over and over, and asks now and then where they end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use klamm_model::{ErrorCode, IsolationLevel, Offset};
use klamm_protocol::messages::fetch::{AbortedTransaction, FetchPartition, FetchTopic};
use klamm_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use klamm_protocol::messages::{FetchRequest, ListOffsetsRequest};
use klamm_records::control::ControlRecord;
use klamm_records::{Batch, RecordsError, batches};

use super::{Client, Found};
use crate::history::{End, OutOfRange, Place, Read, Value};

/// A partition that is read.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// Whether it is never deleted, so that its name means one topic.
    pub(crate) lasts: bool,
}

/// What a consumer knows of the partitions that it reads.
struct Consumer {
    client: Client,
    number: u32,
    isolation: IsolationLevel,
    next: BTreeMap<Place, Offset>,
}

/// The aborted transactions among the records of one answer, which a read-committed consumer leaves out (KIP-98).
struct Aborted {
    /// By their first offsets.
    later: VecDeque<AbortedTransaction>,
    /// The producers of those that have begun and have not ended.
    open: BTreeSet<i64>,
}

impl Aborted {
    fn new(told: &[AbortedTransaction]) -> Aborted {
        let mut later = told.to_vec();
        later.sort_by_key(|aborted| aborted.first_offset);
        Aborted { later: later.into(), open: BTreeSet::new() }
    }

    /// Whether the next batch is left out.
    fn leaves_out(&mut self, batch: &Batch) -> Result<bool, RecordsError> {
        let producer = batch.header.producer_id.0;
        while let Some(begun) =
            self.later.pop_front_if(|begun| begun.first_offset < batch.header.next_offset())
        {
            self.open.insert(begun.producer_id);
        }
        if batch.header.is_control() {
            if let ControlRecord::EndTxn(end) = batch.control_record()?
                && !end.commit
            {
                self.open.remove(&producer);
            }
            return Ok(true);
        }
        Ok(batch.header.is_transactional() && self.open.contains(&producer))
    }
}

/// The records of an answer from an offset on that a consumer sees, and the offset behind all.
fn records_of(
    bytes: Bytes,
    from: Offset,
    mut aborted: Aborted,
) -> Result<(Vec<(Offset, Value)>, Offset), RecordsError> {
    let mut records = Vec::new();
    let mut next = from;
    for batch in batches(bytes).lenient() {
        let batch = batch?;
        batch.check_crc()?;
        next = batch.header.next_offset();
        if aborted.leaves_out(&batch)? {
            continue;
        }
        for record in batch.records()?.into_iter().filter(|record| record.offset >= from) {
            let value = record.value.as_deref().and_then(|value| value.try_into().ok());
            records.push((record.offset, Value::from_be_bytes(value.unwrap_or_default())));
        }
    }
    Ok((records, next))
}

/// Reads until it is asked to stop.
pub(crate) async fn consume(client: Client, number: u32, isolation: IsolationLevel, subjects: Vec<Subject>) {
    let mut consumer = Consumer { client, number, isolation, next: BTreeMap::new() };
    while !consumer.client.surroundings.is_stopping() {
        let subject = &subjects[consumer.client.random.below(subjects.len() as u64) as usize];
        let Some(found) = consumer.client.find(&subject.topic, subject.partition).await else {
            consumer.client.rest(500).await;
            continue;
        };
        if subject.lasts && consumer.client.random.chance(1, 4) {
            consumer.ask_end(&subject.topic, found).await;
        }
        for _ in 0..1 + consumer.client.random.below(8) {
            if !consumer.fetch(found).await {
                break;
            }
        }
        if consumer.client.random.chance(1, 30) {
            consumer.next.remove(&found.place);
        }
        consumer.client.rest(300).await;
    }
}

/// Asks for the end of a partition over and over, and so soon after each change of its leader.
pub(crate) async fn watch_end(client: Client, number: u32, isolation: IsolationLevel, subject: Subject) {
    let mut consumer = Consumer { client, number, isolation, next: BTreeMap::new() };
    while !consumer.client.surroundings.is_stopping() {
        if let Some(found) = consumer.client.find(&subject.topic, subject.partition).await {
            while consumer.ask_end(&subject.topic, found).await && !consumer.client.surroundings.is_stopping()
            {
                consumer.client.rest(150).await;
            }
        }
        consumer.client.rest(40).await;
    }
}

/// All records of a partition that a consumer can read, from its leader. `None` if that does not go well; the reads
/// go into the history all the same.
pub(crate) async fn read_all(
    client: Client,
    isolation: IsolationLevel,
    topic: &str,
    partition: i32,
) -> (Client, Option<(Place, Vec<(Offset, Value)>)>) {
    let number = if isolation == IsolationLevel::ReadCommitted { 1001 } else { 1000 };
    let mut consumer = Consumer { client, number, isolation, next: BTreeMap::new() };
    let read = consumer.read_to_end(topic, partition).await;
    (consumer.client, read)
}

impl Consumer {
    async fn read_to_end(&mut self, topic: &str, partition: i32) -> Option<(Place, Vec<(Offset, Value)>)> {
        let found = self.client.find(topic, partition).await?;
        let mut all = Vec::new();
        loop {
            let from = self.next.get(&found.place).copied().unwrap_or(0);
            let (records, next, high_watermark) = self.read(found, from).await?;
            all.extend(records);
            if next >= high_watermark {
                return Some((found.place, all));
            }
        }
    }

    /// Fetches once. False if it is better to look for the leader again.
    async fn fetch(&mut self, found: Found) -> bool {
        let from = self.next.get(&found.place).copied().unwrap_or(0);
        self.read(found, from).await.is_some()
    }

    /// Fetches from an offset on; returns the records, the next offset, and the high watermark.
    async fn read(&mut self, found: Found, from: Offset) -> Option<(Vec<(Offset, Value)>, Offset, Offset)> {
        let partition = FetchPartition {
            partition: found.place.partition,
            current_leader_epoch: found.leader_epoch,
            fetch_offset: from,
            last_fetched_epoch: -1,
            log_start_offset: -1,
            partition_max_bytes: 16 << 10,
            ..Default::default()
        };
        let topic =
            FetchTopic { topic_id: found.place.topic, partitions: vec![partition], ..Default::default() };
        let request = FetchRequest {
            replica_id: -1,
            max_wait_ms: 300,
            min_bytes: 1,
            max_bytes: 64 << 10,
            isolation_level: i8::from(self.isolation == IsolationLevel::ReadCommitted),
            session_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        let answer = self.client.ask(found.leader, 16, &request).await.ok()?;
        let result = answer.responses.first()?.partitions.first()?;
        let at = self.client.surroundings.now();
        let (consumer, place) = (self.number, found.place);
        if result.error_code == ErrorCode::OffsetOutOfRange.code() {
            let event = OutOfRange { consumer, place, at, offset: from };
            self.client.surroundings.recorder.note(|history| history.out_of_range.push(event));
            self.next.remove(&place);
        }
        if answer.error_code != 0 || result.error_code != 0 {
            return None;
        }
        let bytes = result.records.as_ref().and_then(|records| records.bytes()).cloned().unwrap_or_default();
        let is_committed = self.isolation == IsolationLevel::ReadCommitted;
        let aborted = result.aborted_transactions.as_deref().filter(|_| is_committed).unwrap_or_default();
        let (records, next) = records_of(bytes, from, Aborted::new(aborted))
            .unwrap_or_else(|error| panic!("{place:?} from {from} on: {error}"));
        self.next.insert(place, next);
        let event = Read { consumer, place, at, from, is_committed, records: records.clone() };
        self.client.surroundings.recorder.note(|history| history.reads.push(event));
        Some((records, next, result.high_watermark))
    }

    /// Asks where a partition ends. False if there was no answer to that.
    async fn ask_end(&mut self, topic: &str, found: Found) -> bool {
        const LATEST: i64 = -1;
        let partition = ListOffsetsPartition {
            partition_index: found.place.partition,
            current_leader_epoch: found.leader_epoch,
            timestamp: LATEST,
            ..Default::default()
        };
        let is_stable = self.isolation == IsolationLevel::ReadCommitted;
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: i8::from(is_stable),
            topics: vec![ListOffsetsTopic { name: topic.to_owned(), partitions: vec![partition] }],
            timeout_ms: Duration::from_secs(3).as_millis() as i32,
        };
        let Ok(answer) = self.client.ask(found.leader, 6, &request).await else { return false };
        let result = answer.topics.first().and_then(|topic| topic.partitions.first());
        let result = result.filter(|result| result.error_code == 0);
        if let Some(result) = result {
            let at = self.client.surroundings.now();
            let (consumer, place, offset) = (self.number, found.place, result.offset);
            let event = End { consumer, place, at, is_stable, offset };
            self.client.surroundings.recorder.note(|history| history.ends.push(event));
        }
        result.is_some()
    }
}
