//! Appending: leadership, validation, sequences, offsets, then the log.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use klamm_io::BoxFuture;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TimestampType};
use klamm_records::{AppendRules, InvalidRecords, ValidBatch, validate_for_append};
use klamm_storage::{FlushDue, Log, ProducerBatch, StorageError, StorageErrorKind};
use tokio::sync::oneshot;

use crate::planted::planted;
use crate::sequence::{self, Refusal, Verdict};
use crate::transactions::has_open;
use crate::verifications::VerificationGuard;
use crate::{Partition, Role};

pub use klamm_records::Origin;

/// Produce's newest version.
const PRODUCE_VERSION: i16 = 13;

/// How to append.
#[derive(Clone, Debug)]
pub struct AppendOptions {
    /// Who appends: a client or a coordinator of this node.
    pub origin: Origin,
    /// The version of the Produce request, which decides what may stand in it; the newest for coordinators.
    pub produce_version: i16,
    /// -1 waits for all in-sync replicas and refuses while they are too few.
    pub acks: i16,
    /// For a coordinator: the epoch in which it was loaded. It must not write as the leader of another.
    pub expected_leader_epoch: Option<LeaderEpoch>,
    /// Of the first batch of a transaction: what [`Partition::verify_transaction`] gave.
    pub guard: Option<VerificationGuard>,
}

impl AppendOptions {
    /// How a coordinator of this node appends: by the newest rules, and only while enough replicas are in sync.
    pub fn of_coordinator(
        expected_leader_epoch: Option<LeaderEpoch>,
        guard: Option<VerificationGuard>,
    ) -> AppendOptions {
        let (origin, produce_version) = (Origin::Coordinator, PRODUCE_VERSION);
        AppendOptions { origin, produce_version, acks: -1, expected_leader_epoch, guard }
    }
}

/// Where records were put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The first record's offset; for a duplicate, where it was put the first time.
    pub base_offset: Offset,
    /// The last record's offset.
    pub last_offset: Offset,
    /// The time of the append where the topic uses it (or the batch is a duplicate), else -1.
    pub log_append_time: TimestampMs,
    /// The first offset of the log.
    pub log_start_offset: Offset,
    /// Under which leader; what [`Partition::wait_for_high_watermark`] wants.
    pub leader_epoch: LeaderEpoch,
    /// Whether they need a [`Partition::flush`] before they are acknowledged.
    pub flush_due: FlushDue,
}

/// Why records were not appended, or, after an append, not known to be committed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// This replica does not lead, or no longer.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// Fewer in-sync replicas than `min.insync.replicas`, found before the append.
    #[error("{in_sync} replicas are in sync, min.insync.replicas asks for {needed}")]
    NotEnoughReplicas {
        /// How many are in sync.
        in_sync: usize,
        /// How many are needed.
        needed: usize,
    },
    /// The same, found after the append.
    #[error("the in-sync replicas became fewer than min.insync.replicas after the append")]
    NotEnoughReplicasAfterAppend,
    /// The records break a rule.
    #[error("{}", .0.message)]
    Invalid(InvalidRecords),
    /// The producer was fenced by one with a later epoch.
    #[error("producer {producer} has epoch {found}, but the partition has seen {current}")]
    ProducerFenced {
        /// The producer.
        producer: ProducerId,
        /// The epoch of the batch.
        found: ProducerEpoch,
        /// The epoch of the partition.
        current: ProducerEpoch,
    },
    /// A batch is missing before this one.
    #[error("producer {producer} sent sequence {found} after {last}")]
    OutOfOrderSequence {
        /// The producer.
        producer: ProducerId,
        /// The first sequence of the batch.
        found: i32,
        /// The last sequence that the partition has.
        last: i32,
    },
    /// A transactional batch, and no transaction is known to be open here.
    #[error("producer {producer} has no transaction under way")]
    NoTransaction {
        /// The producer.
        producer: ProducerId,
    },
    /// A batch outside of the transaction that its producer has under way.
    #[error("producer {producer} has a transaction under way, and the batch is not part of it")]
    NotTransactional {
        /// The producer.
        producer: ProducerId,
    },
    /// A marker of a transaction coordinator that another one has taken over from.
    #[error(
        "the marker of producer {producer} is of coordinator epoch {found}, the partition has seen {current}"
    )]
    CoordinatorFenced {
        /// The producer.
        producer: ProducerId,
        /// The epoch of the marker.
        found: i32,
        /// The epoch of the partition.
        current: i32,
    },
    /// The disk failed: nothing was appended, or the log is offline.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Partition {
    /// Appends records as the leader, and returns where they stand. Nothing is waited for: they are committed
    /// when [`Partition::wait_for_high_watermark`] says so.
    pub fn append_as_leader(&self, records: Bytes, options: &AppendOptions) -> Result<Appended, AppendError> {
        let _writer = self.writer.lock();
        let leader_epoch = self.check_may_append(options)?;
        let rules = self.append_rules(leader_epoch, options);
        let batches = validate_for_append(records, &rules).map_err(AppendError::Invalid)?;
        if let Some(duplicate) = self.judge_sequences(&batches, options)? {
            return Ok(Appended {
                base_offset: duplicate.base_offset,
                last_offset: duplicate.last_offset,
                log_append_time: duplicate.timestamp,
                log_start_offset: self.log().log_start_offset(),
                leader_epoch,
                // The first answer may have been a failed flush, which is why it was sent again.
                flush_due: self.log().flush_due(),
            });
        }
        let appended = self.append_batches(&batches, &rules)?;
        for batch in batches.iter().filter(|batch| batch.header.is_transactional()) {
            self.transaction_began(batch.header.producer_id, batch.header.producer_epoch);
        }
        Ok(appended)
    }

    /// Appends batches that were judged. The caller holds the writer's lock.
    pub(crate) fn append_batches(
        &self,
        batches: &[ValidBatch],
        rules: &AppendRules,
    ) -> Result<Appended, AppendError> {
        let (first, last) = (batches.first(), batches.last());
        let mut appended = Appended {
            // Old clients may send no whole message; that is no error, and nothing is appended.
            base_offset: first.map_or(-1, |batch| batch.first_offset),
            last_offset: last.map_or(-1, |batch| batch.header.last_offset()),
            log_append_time: match rules.timestamp_type {
                TimestampType::LogAppendTime if !batches.is_empty() => rules.now_ms,
                _ => -1,
            },
            log_start_offset: self.log().log_start_offset(),
            leader_epoch: rules.leader_epoch,
            flush_due: FlushDue::No,
        };
        if !batches.is_empty() {
            self.check_fits_a_segment(batches)?;
            let in_log = self.space.note(self.log().append(batches), self.clock.monotonic_ms())?;
            appended.flush_due = in_log.flush_due;
            self.after_local_append(rules.leader_epoch);
        }
        Ok(appended)
    }

    /// Has all that was appended so far brought to the disk: what an append asks for with
    /// [`Appended::flush_due`]. The work begins at once, on another thread, and several callers share it; the
    /// future ends with it.
    pub fn flush(self: &Arc<Partition>) -> BoxFuture<'static, Result<(), StorageError>> {
        let (partition, mut log) = (self.clone(), self.log());
        let mut flushed = flush_log(&log);
        Box::pin(async move {
            loop {
                let told = flushed.await.unwrap_or_else(|_| {
                    let gone = io::Error::other("the store was closed");
                    Err(StorageError::io(&log.dir(), "sync", &gone))
                });
                match told {
                    Err(error) if error.kind == StorageErrorKind::Deleted && partition.has_left(&log) => {
                        log = partition.log();
                        flushed = flush_log(&log);
                    }
                    told => return told,
                }
            }
        })
    }

    /// Whether the partition has moved out of a log. A move that is about to end comes first.
    fn has_left(&self, log: &Arc<Log>) -> bool {
        let _writer = self.writer.lock();
        !Arc::ptr_eq(log, &self.log())
    }

    pub(crate) fn check_may_append(&self, options: &AppendOptions) -> Result<LeaderEpoch, AppendError> {
        let state = self.state.lock();
        let Role::Leader(leader) = &state.role else {
            return Err(AppendError::NotLeader);
        };
        if options.expected_leader_epoch.is_some_and(|expected| expected != state.leader_epoch) {
            return Err(AppendError::NotLeader);
        }
        let needed = leader.min_in_sync(&self.settings.load());
        let in_sync = leader.isr().len();
        if options.acks == -1 && in_sync < needed && !planted!(AcknowledgeBelowMinIsr) {
            return Err(AppendError::NotEnoughReplicas { in_sync, needed });
        }
        Ok(state.leader_epoch)
    }

    pub(crate) fn append_rules(&self, leader_epoch: LeaderEpoch, options: &AppendOptions) -> AppendRules {
        let settings = self.settings.load();
        AppendRules {
            produce_version: options.produce_version,
            target_magic: settings.target_magic,
            timestamp_type: settings.timestamp_type,
            now_ms: self.clock.now_ms(),
            timestamp_before_max_ms: settings.timestamp_before_max_ms,
            timestamp_after_max_ms: settings.timestamp_after_max_ms,
            max_batch_bytes: settings.batch_bytes_max,
            is_compacted: settings.is_compacted,
            compression_type: settings.compression,
            level: settings.compression_level,
            expanded_bytes_max: settings.expanded_bytes_max,
            first_offset: self.log().log_end_offset(),
            leader_epoch,
            origin: options.origin,
            topic_partition: self.topic_partition().clone(),
        }
    }

    /// What does not fit into one segment is refused as a whole.
    fn check_fits_a_segment(&self, batches: &[ValidBatch]) -> Result<(), AppendError> {
        let size: usize = batches.iter().map(|batch| batch.header.size).sum();
        let most = self.log().config().segment_bytes;
        if size as u64 <= most {
            return Ok(());
        }
        let name = self.topic_partition();
        Err(AppendError::Invalid(InvalidRecords {
            code: ErrorCode::RecordListTooLarge,
            message: format!("The records for {name} take {size} bytes; segment.bytes is {most}"),
            record_errors: Vec::new(),
        }))
    }

    /// The first batch that stands in the log already, if there is one.
    fn judge_sequences(
        &self,
        batches: &[ValidBatch],
        options: &AppendOptions,
    ) -> Result<Option<ProducerBatch>, AppendError> {
        if planted!(IgnoreSequences) {
            return Ok(None);
        }
        for batch in batches.iter().map(|batch| &batch.header).filter(|header| header.has_producer_id()) {
            let known = self.log().producer(batch.producer_id);
            let judged = match options.origin {
                Origin::Client => sequence::judge(batch, known.as_ref()),
                Origin::Coordinator => sequence::judge_epoch(batch, known.as_ref()),
            };
            if let Ok(Verdict::Duplicate(kept)) = &judged {
                return Ok(Some(*kept));
            }
            if batch.is_transactional() {
                self.check_in_transaction(batch, known.as_ref(), options.guard.as_ref())?;
            }
            judged.map_err(|refusal| refused(batch, refusal))?;
            // Of whatever epoch the transaction is: a later one in a plain batch would fence the transaction's own end.
            if !batch.is_transactional() && has_open(known.as_ref()) {
                return Err(AppendError::NotTransactional { producer: batch.producer_id });
            }
        }
        Ok(None)
    }

    /// The leader's own end has moved: with no other replica in sync, so has the high watermark.
    fn after_local_append(&self, leader_epoch: LeaderEpoch) {
        {
            let mut state = self.state.lock();
            if state.leader_epoch == leader_epoch {
                state.raise_high_watermark(self);
            }
        }
        self.waiters.wake_all();
    }
}

fn flush_log(log: &Arc<Log>) -> oneshot::Receiver<Result<(), StorageError>> {
    let (done, flushed) = oneshot::channel();
    // Whoever asked may have gone.
    log.flush_then(move |result| drop(done.send(result)));
    flushed
}

fn refused(batch: &klamm_records::BatchHeader, refusal: Refusal) -> AppendError {
    match refusal {
        Refusal::Fenced { current } => {
            AppendError::ProducerFenced { producer: batch.producer_id, found: batch.producer_epoch, current }
        }
        Refusal::OutOfOrder { last_sequence } => AppendError::OutOfOrderSequence {
            producer: batch.producer_id,
            found: batch.base_sequence,
            last: last_sequence,
        },
    }
}

impl AppendError {
    /// The code that Kafka answers a Produce with.
    pub fn code(&self) -> ErrorCode {
        match self {
            AppendError::NotLeader => ErrorCode::NotLeaderOrFollower,
            AppendError::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
            AppendError::NotEnoughReplicasAfterAppend => ErrorCode::NotEnoughReplicasAfterAppend,
            AppendError::Invalid(invalid) => invalid.code,
            AppendError::ProducerFenced { .. } => ErrorCode::InvalidProducerEpoch,
            AppendError::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
            AppendError::NoTransaction { .. } | AppendError::NotTransactional { .. } => {
                ErrorCode::InvalidTxnState
            }
            AppendError::CoordinatorFenced { .. } => ErrorCode::TransactionCoordinatorFenced,
            AppendError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}
