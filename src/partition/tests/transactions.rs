//! What a partition accepts of transactions. What fails here lets records into a log outside of a transaction
//! (and consumers hang on them for ever), or lets an end of one transaction touch the next.

mod replica;

use bytes::Bytes;
use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId};
use klamm_partition::{
    AppendOptions, Ended, Leadership, Origin, PartitionSettings, ReadOptions, Reader, TransactionMarker,
    Verification, VerificationGuard,
};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::LogConfig;
use replica::Replica;

const NODE: NodeId = NodeId(1);
const PRODUCER: ProducerId = ProducerId(5);

fn leader() -> Replica {
    let settings = PartitionSettings::default();
    let leader = Replica::new(NODE, 1_700_000_000_000, LogConfig::default(), settings);
    leader.lead_alone(NODE);
    leader
}

fn batch(epoch: i16, sequence: i32, transactional: bool) -> Bytes {
    let mut builder = BatchBuilder::v2(BatchSettings {
        producer_id: PRODUCER,
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: sequence,
        transactional,
        ..Default::default()
    });
    builder.append(1_700_000_000_000, None, Some(b"v"), &[]);
    builder.build()
}

impl Replica {
    fn append(&self, records: Bytes, guard: Option<VerificationGuard>) -> Result<Offset, ErrorCode> {
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: 11,
            acks: -1,
            expected_leader_epoch: None,
            guard,
        };
        let appended = self.partition.append_as_leader(records, &options);
        appended.map(|appended| appended.base_offset).map_err(|error| error.code())
    }

    fn guard(&self, epoch: i16, sequence: i32) -> VerificationGuard {
        self.guard_for(epoch, sequence, false)
    }

    fn guard_for(&self, epoch: i16, sequence: i32, is_implicit: bool) -> VerificationGuard {
        let epoch = ProducerEpoch(epoch);
        match self.partition.verify_transaction(PRODUCER, epoch, sequence, is_implicit) {
            Verification::Needed(guard) => guard,
            Verification::Ongoing => panic!("a transaction is open"),
        }
    }

    fn is_ongoing(&self, epoch: i16) -> bool {
        let verification = self.partition.verify_transaction(PRODUCER, ProducerEpoch(epoch), 0, false);
        matches!(verification, Verification::Ongoing)
    }

    fn end(&self, marker: TransactionMarker) -> Result<Option<Offset>, ErrorCode> {
        let ended = self.partition.end_transaction(&marker, None);
        let offset = |ended: Ended| (!ended.is_repeated).then_some(ended.appended.base_offset);
        ended.map(offset).map_err(|error| error.code())
    }

    fn last_stable(&self) -> Offset {
        self.partition.offsets().last_stable
    }
}

/// A marker of a producer that does not raise its epoch.
fn old_marker(epoch: i16, coordinator_epoch: i32, is_commit: bool) -> TransactionMarker {
    TransactionMarker {
        producer_id: PRODUCER,
        producer_epoch: ProducerEpoch(epoch),
        coordinator_epoch,
        is_commit,
        transaction_version: 0,
    }
}

/// A marker of a producer that does.
fn marker(epoch: i16, is_commit: bool) -> TransactionMarker {
    TransactionMarker { transaction_version: 2, ..old_marker(epoch, 0, is_commit) }
}

#[test]
fn nothing_is_appended_to_a_transaction_that_nobody_vouched_for() {
    let leader = leader();
    assert_eq!(leader.append(batch(0, 0, true), None), Err(ErrorCode::InvalidTxnState));
    assert_eq!(leader.partition.offsets().log_end, 0);
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    // From then on the open transaction speaks for itself.
    assert!(leader.is_ongoing(0));
    assert_eq!(leader.append(batch(0, 1, true), None), Ok(1));
    assert_eq!((leader.last_stable(), leader.partition.offsets().high_watermark), (0, 2));
}

#[test]
fn a_late_answer_of_the_coordinator_lets_nothing_into_an_ended_transaction() {
    let leader = leader();
    let asked_before = leader.guard(0, 0);
    assert_eq!(leader.end(old_marker(0, 0, false)), Ok(Some(0)));
    assert_eq!(leader.append(batch(0, 0, true), Some(asked_before)), Err(ErrorCode::InvalidTxnState));
    // The next question is another one, even if the first guard is still around.
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(1));
    assert_eq!(leader.end(old_marker(0, 0, false)), Ok(Some(2)));
    assert_eq!(leader.append(batch(0, 1, true), None), Err(ErrorCode::InvalidTxnState));
    assert_eq!(leader.last_stable(), 3);
}

#[test]
fn a_guard_is_good_for_one_epoch() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(1, 0, true), Some(guard)), Err(ErrorCode::InvalidTxnState));
}

#[test]
fn two_first_batches_in_flight_share_the_question() {
    let leader = leader();
    let (first, second) = (leader.guard(0, 0), leader.guard(0, 1));
    // The second overtakes the first: its records would come first.
    assert_eq!(
        leader.append(batch(0, 1, true), Some(second.clone())),
        Err(ErrorCode::OutOfOrderSequenceNumber)
    );
    assert_eq!(leader.append(batch(0, 0, true), Some(first)), Ok(0));
    assert_eq!(leader.append(batch(0, 1, true), Some(second)), Ok(1));
}

/// Batch 0 was refused because the partition was not part of the transaction yet; now it is, and batch 5 is here
/// first. Observed on Kafka 4.4.0.
#[test]
fn a_batch_whose_question_failed_still_comes_before_the_next_one() {
    let leader = leader();
    drop(leader.guard(0, 0));
    let guard = leader.guard(0, 5);
    assert_eq!(leader.append(batch(0, 5, true), Some(guard)), Err(ErrorCode::OutOfOrderSequenceNumber));
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.append(batch(0, 1, true), None), Ok(1));
    // The next transaction knows nothing of it.
    assert_eq!(leader.end(old_marker(0, 0, true)), Ok(Some(2)));
    let guard = leader.guard(0, 2);
    assert_eq!(leader.append(batch(0, 2, true), Some(guard)), Ok(3));
}

#[test]
fn a_later_question_about_an_earlier_batch_moves_the_beginning() {
    let leader = leader();
    let second = leader.guard(0, 1);
    let first = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 1, true), Some(second)), Err(ErrorCode::OutOfOrderSequenceNumber));
    assert_eq!(leader.append(batch(0, 0, true), Some(first)), Ok(0));
}

/// Neither a zombie nor a stray with an epoch of the future takes the rightful producer's guard away.
#[test]
fn other_epochs_do_not_disturb_a_question() {
    let leader = leader();
    let guard = leader.guard(2, 0);
    let zombie = leader.guard(1, 0);
    drop(leader.guard(3, 0));
    assert_eq!(leader.append(batch(2, 0, true), Some(zombie.clone())), Err(ErrorCode::InvalidTxnState));
    // The zombie's own transaction was found open before it was fenced; its late end is none of epoch 2.
    assert_eq!(leader.append(batch(1, 0, true), Some(zombie)), Ok(0));
    assert_eq!(leader.end(old_marker(1, 0, false)), Ok(Some(1)));
    assert_eq!(leader.append(batch(2, 0, true), Some(guard)), Ok(2));
}

#[test]
fn a_guard_tells_whether_it_is_worth_anything() {
    let leader = leader();
    let before = leader.guard(1, 0);
    assert!(leader.partition.is_valid(&before));
    assert_eq!(leader.end(marker(1, true)), Ok(Some(0)));
    assert!(!leader.partition.is_valid(&before));
    assert!(leader.partition.is_valid(&leader.guard(1, 0)));
}

/// Producers whose questions fail are remembered for the order of their batches, but not any number of them; one
/// that waits for its answer is never forgotten.
#[test]
fn a_flood_of_failing_producers_takes_no_guard_away() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    for other in 0..5000 {
        let producer = ProducerId(1000 + other);
        drop(leader.partition.verify_transaction(producer, ProducerEpoch(0), 0, false));
    }
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
}

#[test]
fn a_producer_that_raises_its_epoch_begins_each_transaction_with_sequence_0() {
    let leader = leader();
    let guard = leader.guard_for(0, 3, true);
    assert_eq!(leader.append(batch(0, 3, true), Some(guard)), Err(ErrorCode::OutOfOrderSequenceNumber));
    let guard = leader.guard_for(0, 0, true);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.end(marker(1, true)), Ok(Some(1)));
    let guard = leader.guard_for(1, 1, true);
    assert_eq!(leader.append(batch(1, 1, true), Some(guard)), Err(ErrorCode::OutOfOrderSequenceNumber));
}

#[test]
fn a_batch_outside_of_the_open_transaction_is_refused() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.append(batch(0, 1, false), None), Err(ErrorCode::InvalidTxnState));
    assert_eq!(leader.end(old_marker(0, 0, true)), Ok(Some(1)));
    assert_eq!(leader.append(batch(0, 1, false), None), Ok(2));
}

/// A plain batch of the next epoch was taken while the transaction was open. Its end was fenced then, and consumers hung
/// before it for ever. Kafka 4.4.0 answers the same codes.
#[test]
fn a_plain_batch_of_a_later_epoch_is_refused_while_a_transaction_is_open() {
    let leader = leader();
    let guard = leader.guard(3, 0);
    assert_eq!(leader.append(batch(3, 0, true), Some(guard)), Ok(0));
    for epoch in [3, 4, 9] {
        let sequence = if epoch == 3 { 1 } else { 0 };
        assert_eq!(leader.append(batch(epoch, sequence, false), None), Err(ErrorCode::InvalidTxnState));
    }
    assert_eq!(leader.append(batch(4, 1, false), None), Err(ErrorCode::OutOfOrderSequenceNumber));
    assert_eq!(leader.append(batch(2, 0, false), None), Err(ErrorCode::InvalidProducerEpoch));
    assert_eq!(leader.end(old_marker(3, 0, true)), Ok(Some(1)));
    assert_eq!(leader.append(batch(4, 0, false), None), Ok(2));
    assert_eq!(leader.last_stable(), 3);
}

/// A transaction whose marker was lost is ended with the producer's next one, which its coordinator vouches for.
#[test]
fn a_transaction_that_hangs_ends_with_the_next_one_of_its_producer() {
    let leader = leader();
    let guard = leader.guard(3, 0);
    assert_eq!(leader.append(batch(3, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.append(batch(4, 0, true), None), Err(ErrorCode::InvalidTxnState));
    let guard = leader.guard(4, 0);
    assert_eq!(leader.append(batch(4, 0, true), Some(guard)), Ok(1));
    assert_eq!(leader.last_stable(), 0);
    assert_eq!(leader.end(old_marker(4, 0, true)), Ok(Some(2)));
    assert_eq!(leader.last_stable(), 3);
}

#[test]
fn a_duplicate_is_answered_even_when_its_transaction_has_ended() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.end(old_marker(0, 0, true)), Ok(Some(1)));
    assert_eq!(leader.append(batch(0, 0, true), None), Ok(0));
    assert_eq!(leader.partition.offsets().log_end, 2);
}

/// KAFKA-19999: a coordinator that took over sends all markers again, and must not wait for ever for one that it
/// was refused.
#[test]
fn a_marker_that_is_sent_again_changes_nothing() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.end(marker(1, true)), Ok(Some(1)));
    for _ in 0..2 {
        assert_eq!(leader.end(TransactionMarker { coordinator_epoch: 3, ..marker(1, true) }), Ok(None));
    }
    assert_eq!(leader.partition.offsets().log_end, 2);
}

/// A marker that stood only in the leader's own log was answered as written when it was sent again: with the leader it was
/// gone, and the transaction never ended.
#[test]
fn a_marker_that_is_sent_again_is_written_when_the_replicas_have_it() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    let leadership = Leadership {
        leader: Some(NODE),
        leader_epoch: LeaderEpoch(1),
        partition_epoch: 1,
        replicas: vec![NODE, NodeId(2)],
        isr: vec![NODE, NodeId(2)],
        lost: Vec::new(),
    };
    leader.partition.become_leader(&leadership).unwrap();
    let end = || leader.partition.end_transaction(&marker(1, true), None).unwrap();
    for is_repeated in [false, true, true] {
        let ended = end();
        assert_eq!((ended.is_repeated, ended.appended.last_offset), (is_repeated, 1));
        let awaited = (ended.appended.last_offset + 1, ended.appended.leader_epoch);
        assert!(
            !leader.partition.is_committed(awaited.0, awaited.1).unwrap(),
            "the other replica has not fetched it"
        );
        assert_eq!(leader.partition.appended_so_far().unwrap().last_offset, 1);
    }
}

#[test]
fn a_marker_of_an_earlier_transaction_never_ends_the_next_one() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.end(marker(1, true)), Ok(Some(1)));
    let guard = leader.guard(1, 0);
    assert_eq!(leader.append(batch(1, 0, true), Some(guard)), Ok(2));
    for is_commit in [true, false] {
        assert_eq!(leader.end(marker(1, is_commit)), Err(ErrorCode::InvalidProducerEpoch));
        assert_eq!(leader.end(marker(0, is_commit)), Err(ErrorCode::InvalidProducerEpoch));
    }
    assert_eq!(leader.last_stable(), 2);
    assert_eq!(leader.end(marker(2, false)), Ok(Some(3)));
    assert_eq!(leader.last_stable(), 4);
}

#[test]
fn an_earlier_coordinator_ends_nothing() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    assert_eq!(leader.end(old_marker(0, 5, true)), Ok(Some(1)));
    let guard = leader.guard(0, 1);
    assert_eq!(leader.append(batch(0, 1, true), Some(guard)), Ok(2));
    assert_eq!(leader.end(old_marker(0, 4, false)), Err(ErrorCode::TransactionCoordinatorFenced));
    assert!(leader.partition.has_open_transaction(PRODUCER));
    assert_eq!(leader.end(old_marker(0, 5, false)), Ok(Some(3)));
    assert!(!leader.partition.has_open_transaction(PRODUCER));
}

#[test]
fn a_fence_holds_in_partitions_without_records_too() {
    let leader = leader();
    assert_eq!(leader.end(marker(4, false)), Ok(Some(0)));
    assert_eq!(leader.append(batch(3, 0, false), None), Err(ErrorCode::InvalidProducerEpoch));
    let guard = leader.guard(3, 0);
    assert_eq!(leader.append(batch(3, 0, true), Some(guard)), Err(ErrorCode::InvalidProducerEpoch));
}

#[test]
fn aborted_records_are_listed_for_read_committed_readers() {
    let leader = leader();
    let guard = leader.guard(0, 0);
    assert_eq!(leader.append(batch(0, 0, true), Some(guard)), Ok(0));
    let read = |leader: &Replica| {
        let options = ReadOptions {
            reader: Reader::Consumer(IsolationLevel::ReadCommitted),
            bytes_max: 1 << 20,
            at_least_one: true,
            current_leader_epoch: None,
            last_fetched_epoch: None,
        };
        let read = leader.partition.read(0, &options).unwrap();
        (read.slice.is_some(), read.aborted.unwrap().len())
    };
    assert_eq!(read(&leader), (false, 0));
    leader.end(marker(1, false)).unwrap();
    assert_eq!(read(&leader), (true, 1));
}
