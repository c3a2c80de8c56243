//! Group commit: acknowledgements that wait for a shared sync.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

use klamm_model::{TopicPartition, Uuid};
use klamm_storage::{FlushDue, Log, LogConfig, LogStore, StorageError, StorageErrorKind, StoreSettings};
use klamm_testing::{Failure, Fault, GatedDisk, OperationKind, SimulatedDisk};

use crate::support::{Draft, NOW, TOPIC_ID, open, partition, settings, small, with_partition};

/// An acknowledgement that is on its way.
type Acknowledgement = Receiver<Result<(), StorageError>>;

/// What a broker does with a batch of a client that waits for the answer.
fn produce(log: &Arc<Log>) -> Acknowledgement {
    let (done, acknowledgement) = mpsc::channel();
    let appended = log.append_replicated(&[Draft::at(log.log_end_offset()).batch()]).unwrap();
    assert_eq!(appended.flush_due, FlushDue::BeforeAcknowledgement);
    log.flush_then(move |result| drop(done.send(result)));
    acknowledgement
}

fn syncs(disk: &SimulatedDisk) -> u64 {
    let counters = disk.counters();
    counters.calls(OperationKind::SyncData) + counters.calls(OperationKind::SyncDir)
}

/// Syncs of segments' bytes in the partition's folder.
fn segment_syncs(disk: &SimulatedDisk) -> usize {
    let of_segment = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "log");
    let operations = disk.operations();
    operations.iter().filter(|call| call.kind == OperationKind::SyncData && of_segment(&call.path)).count()
}

/// A store whose syncs of the segments of `t-0` wait.
fn gated(disk: &SimulatedDisk) -> (LogStore, Arc<Log>, GatedDisk) {
    let gate = GatedDisk::of_syncs(disk.clone(), "t-0", "log");
    let store = LogStore::open(StoreSettings { disk: Arc::new(gate.clone()), ..settings(disk) }).unwrap();
    store.load(&|_| small()).unwrap();
    store.set_group_commit(true);
    let config = LogConfig { segment_bytes: 1 << 20, ..small() };
    let log = store.create(&partition(), TOPIC_ID, config).unwrap();
    (store, log, gate)
}

#[test]
fn who_comes_while_a_sync_runs_shares_the_next_one() {
    let disk = SimulatedDisk::new(1);
    let (_store, log, gate) = gated(&disk);
    let first = produce(&log);
    gate.await_arrival();
    let others: Vec<Acknowledgement> = (0..63).map(|_| produce(&log)).collect();
    for acknowledgement in others.iter().chain([&first]) {
        assert_eq!(acknowledgement.try_recv(), Err(TryRecvError::Empty), "nothing is on the disk yet");
    }
    gate.open_up();
    for acknowledgement in others.iter().chain([&first]) {
        assert_eq!(acknowledgement.recv(), Ok(Ok(())));
    }
    assert_eq!(segment_syncs(&disk), 2, "64 acknowledgements");
    assert_eq!(log.recovery_point(), 64 * 3);
}

#[test]
fn a_sync_that_hangs_holds_up_no_other_log() {
    let disk = SimulatedDisk::new(1);
    let (store, log, gate) = gated(&disk);
    let hanging = produce(&log);
    gate.await_arrival();
    for index in 1..20 {
        let other = TopicPartition::new("other", index);
        let other = store.create(&other, Uuid([8; 16]), small()).unwrap();
        assert_eq!(produce(&other).recv(), Ok(Ok(())));
    }
    assert_eq!(hanging.try_recv(), Err(TryRecvError::Empty));
    gate.open_up();
    assert_eq!(hanging.recv(), Ok(Ok(())));
}

#[test]
fn all_who_wait_are_told_of_a_sync_that_failed() {
    let disk = SimulatedDisk::new(1);
    let (_store, log, gate) = gated(&disk);
    let first = produce(&log);
    gate.await_arrival();
    let second = produce(&log);
    disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData).on("t-0").times(1));
    gate.open_up();
    let told = first.recv().unwrap().unwrap_err();
    assert!(matches!(told.kind, StorageErrorKind::Io(..)), "{told}");
    // The disk is sound again, but what it has is not known any more.
    let told = second.recv().unwrap().unwrap_err();
    assert!(told.to_string().contains("offline"), "{told}");
    assert!(log.failure().is_some());
}

#[test]
fn the_policy_changes_while_the_store_is_open() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let append = || log.append_replicated(&[Draft::at(log.log_end_offset()).batch()]).unwrap().flush_due;
    assert_eq!(append(), FlushDue::No);
    store.set_group_commit(true);
    assert_eq!(append(), FlushDue::BeforeAcknowledgement);
    assert_eq!(produce(&log).recv(), Ok(Ok(())));
    assert_eq!(log.recovery_point(), 9, "with what was appended before");
    assert_eq!(log.flush_due(), FlushDue::No);
    log.update_config(LogConfig { flush_messages: 1, ..small() });
    assert_eq!(append(), FlushDue::Always);
    assert!(!FlushDue::BeforeAcknowledgement.comes_before_answer(0), "acks=0 asks for no answer");
    assert!(FlushDue::Always.comes_before_answer(0));
    log.update_config(small());
    store.set_group_commit(false);
    assert_eq!(append(), FlushDue::No);
}

/// An idle broker must leave a disk that sleeps alone.
#[test]
fn an_idle_store_syncs_nothing() {
    for group_commit in [false, true] {
        let disk = SimulatedDisk::new(1);
        let (store, log) = with_partition(&disk, &LogConfig { segment_bytes: 1 << 20, ..small() });
        store.set_group_commit(group_commit);
        log.append_replicated(&[Draft::at(0).batch()]).unwrap();
        let work = || {
            store.flush_due();
            store.checkpoint(&[(partition(), log.log_end_offset())]).unwrap();
            store.run_maintenance(NOW, &|_| Some(log.log_end_offset()));
        };
        // What there is to tell is told once.
        work();
        let before = (syncs(&disk), disk.counters().changes());
        (0..100).for_each(|_| work());
        assert_eq!((syncs(&disk), disk.counters().changes()), before, "group commit: {group_commit}");
    }
}

#[test]
fn flush_ms_syncs_in_the_background_when_its_time_is_over() {
    let disk = SimulatedDisk::new(1);
    let clock = Arc::new(klamm_testing::SimulatedClock::new(NOW));
    let store = LogStore::open(StoreSettings { clock: clock.clone(), ..settings(&disk) }).unwrap();
    let config = LogConfig { flush_ms: Some(5000), ..small() };
    store.load(&|_| config.clone()).unwrap();
    let log = store.create(&partition(), TOPIC_ID, config.clone()).unwrap();
    log.append_replicated(&[Draft::at(0).batch()]).unwrap();
    // A clock of the wall that is set back must not put the sync off.
    clock.set_wall(NOW - 86_400_000);
    clock.advance(Duration::from_millis(4999));
    store.flush_due();
    assert_eq!(log.recovery_point(), 0);
    clock.advance(Duration::from_millis(1));
    store.flush_due();
    assert_eq!(log.recovery_point(), 3);
    drop((store, log));
    let store = open(&disk.crash_leaving(klamm_testing::Unsynced::Lost), &small());
    assert_eq!(store.log().log_end_offset(), 3);
}
