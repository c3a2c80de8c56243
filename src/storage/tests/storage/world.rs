//! A store, and beside it what its users were told: each call is noted before it is made and after it came back,
//! so that at any moment it is known which records must be there, which may be, and which must not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use klamm_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition, Uuid};
use klamm_records::control::EndTxnMarker;
use klamm_records::{Batch, BatchBuilder, BatchSettings, batches};
use klamm_storage::{
    Log, LogConfig, LogStore, Move, MoveError, Past, ReadError, StorageError, StoreSettings, Wanted,
};
use klamm_testing::SimulatedDisk;

use crate::support::NOW;

/// How many keys the records take turns with.
const KEYS: u64 = 7;

/// How many records a batch has.
const BATCH_RECORDS: i64 = 3;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) key: String,
    /// Never the same twice, so that a record in the wrong place is noticed; `None` for a tombstone.
    pub(crate) value: Option<String>,
    pub(crate) timestamp: TimestampMs,
    /// Id and sequence number.
    pub(crate) producer: Option<(i64, i32)>,
    pub(crate) is_transactional: bool,
    /// For a marker: whether it commits.
    pub(crate) commits: Option<bool>,
    pub(crate) epoch: i32,
}

/// What was told of one partition.
#[derive(Clone, Default, Debug)]
pub(crate) struct Held {
    pub(crate) topic_id: Uuid,
    /// Acknowledged, and not removed by what was acknowledged later.
    pub(crate) rows: BTreeMap<Offset, Row>,
    /// May be there or not: what is under way, and what failed in a log that went offline.
    pub(crate) uncertain: BTreeMap<Offset, Vec<Row>>,
    /// Values that were refused while the log stayed in service.
    pub(crate) refused: BTreeSet<String>,
    /// Acknowledged batches of producers, also where their records are gone: id to last sequence and offset.
    pub(crate) producers: BTreeMap<i64, BTreeMap<Offset, i32>>,
    /// What stands below survives a power cut.
    pub(crate) flushed: Offset,
    /// The start of the log that survives everything, and the highest that was ever asked for.
    pub(crate) start: Offset,
    pub(crate) start_wished: Offset,
    pub(crate) is_deletion_wished: bool,
    pub(crate) epoch: i32,
}

/// What was told.
#[derive(Clone, Default, Debug)]
pub(crate) struct Model {
    pub(crate) partitions: BTreeMap<TopicPartition, Held>,
    /// Topics whose deletion was acknowledged.
    pub(crate) deleted: BTreeSet<Uuid>,
    values: u64,
}

/// The store with its disk and what was told.
pub(crate) struct World {
    pub(crate) disk: SimulatedDisk,
    pub(crate) config: LogConfig,
    pub(crate) settings: StoreSettings,
    pub(crate) model: Model,
    /// Whether a stop in order has failed: the process ends all the same.
    pub(crate) is_stopping: bool,
    /// Whether each append waits until it is on the disk.
    pub(crate) group_commit: bool,
    store: Option<LogStore>,
}

/// What a batch is to be.
#[derive(Clone, Copy, Default)]
struct Wish {
    producer: Option<i64>,
    is_transactional: bool,
    is_tombstone: bool,
}

impl World {
    pub(crate) fn new(disk: SimulatedDisk, config: LogConfig, settings: StoreSettings) -> World {
        World {
            disk,
            config,
            settings,
            model: Model::default(),
            is_stopping: false,
            group_commit: false,
            store: None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn store(&self) -> &LogStore {
        self.store.as_ref().expect("the first step of a scenario opens the store")
    }

    pub(crate) fn log(&self, tp: &TopicPartition) -> Arc<Log> {
        self.store().get(tp).expect("the partition was made and not deleted")
    }

    pub(crate) fn held(&mut self, tp: &TopicPartition) -> &mut Held {
        self.model.partitions.get_mut(tp).expect("the partition was made and not deleted")
    }

    /// Opens the store; a log that does not open is an error too.
    pub(crate) fn open(&mut self) -> Result<(), StorageError> {
        let store = LogStore::open(self.settings.clone())?;
        store.set_group_commit(self.group_commit);
        let config = self.config.clone();
        let report = store.load(&|_| config.clone())?;
        self.store = Some(store);
        match report.failed.first() {
            Some((_, error)) => {
                let error = error.clone();
                self.store = None;
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// The process ends without a word; what it leaves is what the next one finds.
    pub(crate) fn kill(&mut self) {
        (self.store, self.is_stopping) = (None, false);
        self.disk = self.disk.kill();
        self.settings.disk = Arc::new(self.disk.clone());
    }

    /// Stops in order. Everything that was acknowledged is on the disk then.
    pub(crate) fn close(&mut self) -> Result<(), StorageError> {
        let Some(store) = &self.store else { return Ok(()) };
        self.is_stopping = true;
        store.close(Some(1))?;
        (self.store, self.is_stopping) = (None, false);
        for held in self.model.partitions.values_mut() {
            held.flushed = held.end();
        }
        Ok(())
    }

    /// Makes a partition, or finds that it is there.
    pub(crate) fn create(&mut self, tp: &TopicPartition, topic_id: Uuid) -> Result<(), StorageError> {
        let known = self.model.partitions.get(tp);
        if known.is_none_or(|held| held.topic_id != topic_id) {
            self.model.partitions.insert(tp.clone(), Held { topic_id, epoch: -1, ..Held::default() });
        }
        self.store().create(tp, topic_id, self.config.clone()).map(|_| ())
    }

    /// Makes partitions of one topic at once, or finds that they are there.
    pub(crate) fn create_all(&mut self, tps: &[TopicPartition], topic_id: Uuid) -> Result<(), StorageError> {
        let mut wanted = Vec::new();
        for tp in tps {
            let known = self.model.partitions.get(tp);
            if known.is_none_or(|held| held.topic_id != topic_id) {
                self.model.partitions.insert(tp.clone(), Held { topic_id, epoch: -1, ..Held::default() });
            }
            let (topic_partition, config) = (tp.clone(), self.config.clone());
            wanted.push(Wanted { topic_partition, topic_id, config, past: Past::None });
        }
        self.store().open_or_make_all(wanted).into_iter().try_for_each(|made| made.map(drop))
    }

    /// Appends a batch without a producer.
    pub(crate) fn append(&mut self, tp: &TopicPartition) -> Result<(), StorageError> {
        self.append_as(tp, Wish::default())
    }

    /// Appends a batch with the next sequence numbers of an idempotent producer.
    pub(crate) fn append_from(&mut self, tp: &TopicPartition, producer: i64) -> Result<(), StorageError> {
        self.append_as(tp, Wish { producer: Some(producer), ..Wish::default() })
    }

    /// Appends a batch to the producer's transaction, which begins with it if there is none.
    pub(crate) fn append_in_transaction(
        &mut self,
        tp: &TopicPartition,
        producer: i64,
    ) -> Result<(), StorageError> {
        self.append_as(tp, Wish { producer: Some(producer), is_transactional: true, is_tombstone: false })
    }

    /// Appends tombstones for the next keys.
    pub(crate) fn append_tombstones(&mut self, tp: &TopicPartition) -> Result<(), StorageError> {
        self.append_as(tp, Wish { is_tombstone: true, ..Wish::default() })
    }

    fn append_as(&mut self, tp: &TopicPartition, wish: Wish) -> Result<(), StorageError> {
        let offset = self.log(tp).log_end_offset();
        let values = self.model.values;
        self.model.values += BATCH_RECORDS as u64;
        let held = self.held(tp);
        let base_sequence = wish.producer.map(|id| held.next_sequence(id));
        let row = |n: i64| {
            let number = values + n as u64;
            Row {
                key: format!("key-{}", number % KEYS),
                value: (!wish.is_tombstone).then(|| format!("value-{number:024}")),
                // They do not rise with the offsets.
                timestamp: NOW + (offset + n) * 1000 - if number.is_multiple_of(5) { 7000 } else { 0 },
                producer: wish.producer.zip(base_sequence.map(|base| base + n as i32)),
                is_transactional: wish.is_transactional,
                commits: None,
                epoch: held.epoch.max(0),
            }
        };
        let rows: Vec<Row> = (0..BATCH_RECORDS).map(row).collect();
        let batch = batch(offset, &rows);
        self.append_rows(tp, offset, rows, batch)
    }

    /// Ends the producer's transaction in this partition.
    pub(crate) fn end_transaction(
        &mut self,
        tp: &TopicPartition,
        producer: i64,
        commit: bool,
    ) -> Result<(), StorageError> {
        let offset = self.log(tp).log_end_offset();
        let epoch = self.held(tp).epoch.max(0);
        let marker = EndTxnMarker { commit, coordinator_epoch: 0 };
        let bytes = marker.batch(offset, NOW, (ProducerId(producer), ProducerEpoch(0)), LeaderEpoch(epoch));
        let row = Row {
            key: String::new(),
            value: None,
            timestamp: NOW,
            producer: Some((producer, -1)),
            is_transactional: true,
            commits: Some(commit),
            epoch,
        };
        self.append_rows(tp, offset, vec![row], parsed(bytes))
    }

    fn append_rows(
        &mut self,
        tp: &TopicPartition,
        offset: Offset,
        rows: Vec<Row>,
        batch: Batch,
    ) -> Result<(), StorageError> {
        let log = self.log(tp);
        let held = self.held(tp);
        for (index, row) in rows.iter().enumerate() {
            held.uncertain.entry(offset + index as i64).or_default().push(row.clone());
        }
        let result = log.append_replicated(&[batch]);
        if result.is_err() && (self.disk.is_down() || log.failure().is_some()) {
            return result.map(|_| ());
        }
        let held = self.held(tp);
        held.uncertain.clear();
        match result {
            Ok(_) => held.acknowledge(offset, rows),
            Err(_) => held.refused.extend(rows.into_iter().filter_map(|row| row.value)),
        }
        if result?.flush_due.comes_before_answer(-1) {
            flush_and_wait(&log)?;
            let held = self.held(tp);
            held.flushed = held.end();
        }
        Ok(())
    }

    /// Brings the log to the disk.
    pub(crate) fn flush(&mut self, tp: &TopicPartition) -> Result<(), StorageError> {
        self.log(tp).flush()?;
        let held = self.held(tp);
        held.flushed = held.end();
        Ok(())
    }

    /// Syncs what rolling has left behind, as a broker does in the background.
    pub(crate) fn flush_due(&mut self) {
        self.store().flush_due();
        for held in self.model.partitions.keys().cloned().collect::<Vec<_>>() {
            let Some(log) = self.store().get(&held) else { continue };
            let recovery_point = log.recovery_point();
            let held = self.held(&held);
            held.flushed = held.flushed.max(recovery_point);
        }
    }

    pub(crate) fn roll(&mut self, tp: &TopicPartition) -> Result<(), StorageError> {
        self.log(tp).roll()
    }

    /// Writes the checkpoint files, with the ends of the logs as high watermarks.
    pub(crate) fn checkpoint(&mut self) -> Result<(), StorageError> {
        let logs = self.store().logs();
        let ends: Vec<_> =
            logs.iter().map(|log| (log.topic_partition().clone(), log.log_end_offset())).collect();
        self.store().checkpoint(&ends)
    }

    /// A leader takes over: its epoch begins at the end of the log.
    pub(crate) fn assign_epoch(&mut self, tp: &TopicPartition, epoch: i32) -> Result<(), StorageError> {
        let log = self.log(tp);
        log.assign_epoch(LeaderEpoch(epoch), log.log_end_offset())?;
        self.held(tp).epoch = epoch;
        Ok(())
    }

    /// What a DeleteRecords does: the start moves and outlives every fault.
    pub(crate) fn delete_records(&mut self, tp: &TopicPartition, before: Offset) -> Result<(), StorageError> {
        let log = self.log(tp);
        let held = self.held(tp);
        held.start_wished = held.start_wished.max(before);
        match log.delete_records_before(before) {
            Ok(_) => {}
            Err(ReadError::Storage(error)) => return Err(error),
            Err(error) => panic!("{error}"),
        }
        self.store().checkpoint_log_start_offsets()?;
        let held = self.held(tp);
        held.start = held.start.max(before);
        held.rows = held.rows.split_off(&before);
        Ok(())
    }

    /// Retention by time, after which the log begins at this offset.
    pub(crate) fn retain_from(&mut self, tp: &TopicPartition, start: Offset) -> Result<(), StorageError> {
        let log = self.log(tp);
        let retention_ms = self.config.retention_ms.expect("the scenario has retention");
        let held = self.held(tp);
        held.start_wished = held.start_wished.max(start);
        log.apply_retention(NOW + start * 1000 + retention_ms / 2, log.log_end_offset())?;
        assert!(log.log_start_offset() <= start, "retention has taken too much");
        let held = self.held(tp);
        held.rows = held.rows.split_off(&log.log_start_offset());
        Ok(())
    }

    /// Removes what was deleted long enough ago, and does what failed before.
    pub(crate) fn maintain(&mut self) {
        self.store().run_maintenance(NOW, &|_| None);
    }

    /// Cuts the end off. Whatever is cut must never show again.
    pub(crate) fn truncate(&mut self, tp: &TopicPartition, to: Offset) -> Result<(), StorageError> {
        let log = self.log(tp);
        let held = self.held(tp);
        let cut = held.rows.split_off(&to);
        held.flushed = held.flushed.min(to);
        for batches in held.producers.values_mut() {
            batches.split_off(&to);
        }
        cut.into_iter().for_each(|(offset, row)| held.uncertain.entry(offset).or_default().push(row));
        log.truncate_to(to)?;
        self.held(tp).uncertain.clear();
        Ok(())
    }

    /// Deletes a topic's partition.
    pub(crate) fn delete(&mut self, tp: &TopicPartition) -> Result<(), StorageError> {
        if let Some(held) = self.model.partitions.get_mut(tp) {
            held.is_deletion_wished = true;
        }
        self.store().delete(tp)?;
        if let Some(held) = self.model.partitions.remove(tp) {
            self.model.deleted.insert(held.topic_id);
        }
        Ok(())
    }

    /// Deletes partitions at once.
    pub(crate) fn delete_all(&mut self, tps: &[TopicPartition]) -> Result<(), StorageError> {
        for tp in tps {
            if let Some(held) = self.model.partitions.get_mut(tp) {
                held.is_deletion_wished = true;
            }
        }
        let mut result = Ok(());
        for (tp, deleted) in tps.iter().zip(self.store().delete_all(tps)) {
            match deleted {
                Ok(_) => {
                    let held = self.model.partitions.remove(tp);
                    self.model.deleted.extend(held.map(|held| held.topic_id));
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Begins to move a partition and copies what is there, unless it is there already.
    pub(crate) fn begin_move(&mut self, tp: &TopicPartition, to: &Path) -> Result<(), StorageError> {
        let begun = self.store().begin_move(tp, to).map_err(|error| match error {
            MoveError::Storage(error) => error,
            // It has failed before, which its status tells.
            MoveError::Directory(_) => self.failure_of(to),
            MoveError::NoLog => panic!("{error}"),
        })?;
        match begun {
            Move::Stays => Ok(()),
            Move::Copies(future) if future.failure().is_some() => {
                self.store().reopen_future(tp);
                self.copy(tp)
            }
            Move::Copies(_) => self.copy(tp),
        }
    }

    fn failure_of(&self, directory: &Path) -> StorageError {
        let statuses = self.store().directory_statuses();
        let failure = statuses.into_iter().find(|status| status.path == directory);
        failure.and_then(|status| status.failure).expect("a directory is refused because it has failed")
    }

    fn copy(&self, tp: &TopicPartition) -> Result<(), StorageError> {
        let (log, Some(future)) = (self.log(tp), self.store().future(tp)) else { return Ok(()) };
        loop {
            let piece = future.next_piece(&log, 700).map_err(|error| match error {
                ReadError::Storage(error) => error,
                error => panic!("{error}"),
            })?;
            if piece.is_empty() {
                return Ok(());
            }
            future.append_piece(&piece)?;
        }
    }

    /// Copies the rest of a partition that moves, and ends the move.
    pub(crate) fn finish_move(&mut self, tp: &TopicPartition, to: &Path) -> Result<(), StorageError> {
        self.begin_move(tp, to)?;
        if self.store().future(tp).is_some() {
            self.store().finish_move(tp, self.log(tp).log_end_offset())?;
        }
        Ok(())
    }

    /// Takes over what a restart has found of the records of which nobody knew.
    pub(crate) fn settle(&mut self, tp: &TopicPartition, end: Offset) {
        let held = self.held(tp);
        let uncertain = std::mem::take(&mut held.uncertain);
        for (offset, mut rows) in uncertain.range(held.end()..end).map(|(at, rows)| (*at, rows.clone())) {
            let row = rows.pop().expect("an offset is uncertain because of a record");
            held.acknowledge(offset, vec![row]);
        }
    }
}

impl Held {
    /// The offset behind the last acknowledged record.
    pub(crate) fn end(&self) -> Offset {
        self.rows.last_key_value().map_or(self.start.max(self.start_wished), |(offset, _)| offset + 1)
    }

    fn next_sequence(&self, producer: i64) -> i32 {
        let batches = self.producers.get(&producer).and_then(|batches| batches.last_key_value());
        batches.map_or(0, |(_, last)| last + 1)
    }

    fn acknowledge(&mut self, offset: Offset, rows: Vec<Row>) {
        for (index, row) in rows.into_iter().enumerate() {
            let at = offset + index as i64;
            if let Some((producer, sequence)) = row.producer.filter(|_| row.commits.is_none()) {
                self.producers.entry(producer).or_default().insert(at, sequence);
            }
            self.rows.insert(at, row);
        }
    }
}

/// Waits for a sync as the acknowledgement of a record does.
fn flush_and_wait(log: &Arc<Log>) -> Result<(), StorageError> {
    let (done, flushed) = mpsc::channel();
    log.flush_then(move |result| drop(done.send(result)));
    flushed.recv().expect("whoever waits for a sync is told of its end")
}

fn batch(offset: Offset, rows: &[Row]) -> Batch {
    let first = &rows[0];
    let (id, sequence) = first.producer.unwrap_or((-1, -1));
    let mut builder = BatchBuilder::v2(BatchSettings {
        base_offset: offset,
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(if id < 0 { -1 } else { 0 }),
        base_sequence: sequence,
        transactional: first.is_transactional,
        partition_leader_epoch: LeaderEpoch(first.epoch),
        ..BatchSettings::default()
    });
    for row in rows {
        builder.append(
            row.timestamp,
            Some(row.key.as_bytes()),
            row.value.as_ref().map(|v| v.as_bytes()),
            &[],
        );
    }
    parsed(builder.build())
}

fn parsed(bytes: Bytes) -> Batch {
    batches(bytes).next().unwrap().unwrap()
}
