//! A disk that fails for a while: nothing acknowledged may be lost, and nothing half done may show.

use std::path::Path;

use klamm_model::Uuid;
use klamm_storage::{LogConfig, StorageErrorKind};
use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk};

use crate::support::*;

/// The disk is full in the middle of a batch. The log must be as before, and go on when there is room.
#[test]
fn an_append_to_a_full_disk_leaves_no_trace() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig::default());
    append(&log).unwrap();
    let (size, records, producers) = (log.size(), read_all(&log), log.producers());
    let data = Draft { producer: Some((1, 0, 0)), value_bytes: 5000, ..Draft::at(3) };
    for room in [0, 1, 60, 5000] {
        let used = 1 << 40;
        let free = klamm_io::Disk::space(&disk, std::path::Path::new(LOGS)).unwrap().1;
        disk.set_capacity(Some(used - free + room));
        let error = log.append_replicated(&[data.batch()]).unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::DiskFull, "{error}");
        assert!(error.to_string().contains("00000000000000000000.log at "), "{error}");
        assert_eq!((log.size(), log.log_end_offset(), log.producers()), (size, 3, producers.clone()));
        assert_eq!(files(&disk, &folder(), ".log")[0].1.len() as u64, size, "the file is cut back");
        disk.set_capacity(None);
    }
    log.append_replicated(&[data.batch()]).unwrap();
    assert_eq!(read_all(&log)[..3], records);
    assert_eq!(offsets(&read_all(&log)), [0, 1, 2, 3, 4, 5]);
}

/// If not even the cut succeeds, no later append may come behind the garbage.
#[test]
fn an_append_that_cannot_be_undone_takes_the_log_offline() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig::default());
    append(&log).unwrap();
    let faults = [OperationKind::Write, OperationKind::SetLen]
        .map(|kind| disk.inject(Fault::new(Failure::NoSpace).of(kind)));
    let error = append(&log).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::DiskFull);
    faults.into_iter().for_each(|fault| disk.clear(fault));
    let error = append(&log).unwrap_err();
    assert!(matches!(error.kind, StorageErrorKind::Offline(_)), "{error}");
    assert!(log.failure().is_some() && log.read(0, 1, 3, true).is_err());
    let store = open(&disk.kill(), &LogConfig::default());
    assert_eq!(offsets(&read_all(&store.log())), [0, 1, 2]);
}

/// Each call that rolling makes may fail. The append then fails, and the next one succeeds.
#[test]
fn a_roll_that_fails_anywhere_is_tried_again() {
    for kind in [OperationKind::Create, OperationKind::Write, OperationKind::SetLen] {
        for nth in 1..=6 {
            let disk = SimulatedDisk::new(1);
            let (_store, log) = with_partition(&disk, &small());
            while log.size() < 1200 {
                append(&log).unwrap();
            }
            let fault = disk.inject(Fault::new(Failure::NoSpace).of(kind).from_call(nth).times(1));
            let mut failures = 0;
            for _ in 0..12 {
                failures += usize::from(append(&log).is_err());
            }
            disk.clear(fault);
            let end = log.log_end_offset();
            assert!(failures <= 1 && log.segment_count() > 1, "{kind:?} {nth}");
            assert_eq!(offsets(&read_all(&log)), (0..end).collect::<Vec<_>>(), "{kind:?} {nth}");
            let store = open(&disk.kill(), &small());
            assert_eq!(offsets(&read_all(&store.log())), (0..end).collect::<Vec<_>>(), "{kind:?} {nth}");
        }
    }
}

/// After a failed sync nobody knows what is on the disk: the recovery point must not move, now or later.
#[test]
fn a_failed_sync_is_never_papered_over() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    log.flush().unwrap();
    disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::SyncData).times(1));
    append(&log).unwrap();
    assert!(log.flush().is_err());
    assert_eq!(log.recovery_point(), 3);
    assert!(matches!(log.flush().unwrap_err().kind, StorageErrorKind::Offline(_)));
    assert!(store.close(None).is_err());
    let store = open(&disk.crash(), &small());
    assert_eq!(store.report.recovered_logs, 1, "the directory was not marked clean");
    assert_eq!(offsets(&read_all(&store.log()))[..3], [0, 1, 2]);
}

#[test]
fn one_log_that_cannot_be_opened_does_not_keep_the_others_from_it() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let other = klamm_model::TopicPartition::new("other", 0);
    append(&store.create(&other, TOPIC_ID, small()).unwrap()).unwrap();
    append_many(&log, 4);
    log.delete_records_before(7).unwrap();
    store.checkpoint(&[(partition(), 9)]).unwrap();
    drop((store, log));
    let disk = disk.kill();
    disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Read).on("/t-0/"));
    let store = try_open(&disk, &small()).unwrap();
    assert_eq!(store.report.logs, 1);
    assert_eq!(store.report.failed.len(), 1);
    assert_eq!(store.report.failed[0].0, partition());
    assert_eq!(store.get(&other).unwrap().log_end_offset(), 3);
    assert_eq!(store.create(&partition(), TOPIC_ID, small()).err().as_ref(), Some(&store.report.failed[0].1));
    // Its records still wait for a recovery, so the directory must not be taken for clean, and what the
    // checkpoints know of it must not be forgotten.
    store.close(None).unwrap();
    drop(store);
    let store = open(&disk.kill(), &small());
    assert_eq!(store.report.recovered_logs, 1, "the other one was closed in order and is as it was");
    assert_eq!(offsets(&read_all(&store.log())), [7, 8, 9, 10, 11]);
    assert_eq!(store.high_watermark(&partition()), Some(9));
}

/// A folder that cannot be renamed must not stand in the way of a new topic of the same name until a restart, nor
/// may the old records come back to life.
#[test]
fn a_deletion_that_fails_is_tried_again() {
    for kind in [OperationKind::Rename, OperationKind::SyncDir] {
        for retry in ["delete", "create", "maintain"] {
            let disk = SimulatedDisk::new(1);
            let (store, log) = with_partition(&disk, &small());
            append(&log).unwrap();
            let fault = disk.inject(Fault::new(Failure::NoSpace).of(kind));
            assert!(store.delete(&partition()).is_err());
            assert!(store.get(&partition()).is_none() && append(&log).is_err(), "it is not served any more");
            assert!(store.create(&partition(), Uuid([8; 16]), small()).is_err());
            disk.clear(fault);
            match retry {
                "delete" => assert!(store.delete(&partition()).unwrap()),
                "maintain" => assert_eq!(store.run_maintenance(NOW, &|_| None), 0),
                _ => {}
            }
            if retry != "create" {
                assert!(!names(&disk, Path::new(LOGS)).contains(&"t-0".to_owned()), "{kind:?} {retry}");
                assert!(!store.delete(&partition()).unwrap());
            }
            let log = store.create(&partition(), Uuid([8; 16]), small()).unwrap();
            assert_eq!(log.log_end_offset(), 0, "{kind:?} {retry}");
            store.close(None).unwrap();
        }
    }
}

/// What could not be deleted was not closed in order either; the next start must look at its batches.
#[test]
fn a_directory_with_a_failed_deletion_is_not_clean() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    let fault = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Rename).on("/t-0"));
    assert!(store.delete(&partition()).is_err());
    disk.clear(fault);
    store.close(None).unwrap();
    drop((store, log));
    let store = open(&disk.kill(), &small());
    assert_eq!((store.report.recovered_logs, store.log().log_end_offset()), (1, 3));
}

/// A topic whose log cannot be opened can still be deleted, and made again.
#[test]
fn a_log_that_cannot_be_opened_can_be_deleted() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    drop((store, log));
    let disk = disk.kill();
    put(&disk, &folder().join("partition.metadata"), b"version: 7\ntopic_id: x");
    let store = try_open(&disk, &small()).unwrap();
    assert!(matches!(store.report.failed[0].1.kind, StorageErrorKind::UnknownVersion { .. }));
    assert!(store.create(&partition(), TOPIC_ID, small()).is_err());
    assert!(store.delete(&partition()).unwrap());
    assert_eq!(store.create(&partition(), TOPIC_ID, small()).unwrap().log_end_offset(), 0);
}

/// A folder without its topic's id would be taken for that of another topic of its name, with all that is in it.
#[test]
fn a_partition_that_finds_no_room_is_made_whole_later_or_not_at_all() {
    let disk = SimulatedDisk::new(1);
    let store = open(&disk, &small());
    let used = || {
        let free = klamm_io::Disk::space(&disk, Path::new(LOGS)).unwrap().1;
        (1 << 40) - free
    };
    let mut refused = 0;
    for room in 0..80 {
        disk.set_capacity(None);
        let capacity = used() + room;
        disk.set_capacity(Some(capacity));
        let made = store.create(&partition(), TOPIC_ID, small());
        if let Err(error) = &made {
            assert_eq!(error.kind, StorageErrorKind::DiskFull, "{error}");
            assert!(!klamm_io::Disk::exists(&disk, &folder()).unwrap(), "{room} bytes of room");
            refused += 1;
            continue;
        }
        disk.set_capacity(None);
        let id = klamm_io::Disk::read(&disk, &folder().join("partition.metadata")).unwrap();
        assert!(id.starts_with(b"version: 0\ntopic_id: "), "{room} bytes of room");
        store.delete(&partition()).unwrap();
    }
    assert!(refused > 20, "{refused}");
    store.create(&partition(), Uuid([9; 16]), small()).unwrap();
}

/// A node that was killed while its disk is full starts, and what it holds can be read: what recovery would make is
/// there already, or can wait.
#[test]
fn a_start_on_a_full_disk_costs_no_reads() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    log.assign_epoch(klamm_model::LeaderEpoch(0), 0).unwrap();
    append_many(&log, 20);
    let end = log.log_end_offset();
    drop((store, log));
    let mut disk = disk.kill();
    for start in 0..3 {
        let free = klamm_io::Disk::space(&disk, Path::new(LOGS)).unwrap().1;
        disk.set_capacity(Some((1 << 40) - free));
        let before = disk.operations().len();
        let store = open(&disk, &small());
        let is_write = |kind| matches!(kind, OperationKind::Write | OperationKind::SetLen);
        let written: Vec<_> = disk.operations()[before..]
            .iter()
            .filter(|operation| is_write(operation.kind) && operation.path.starts_with(folder()))
            .map(|operation| operation.path.clone())
            .collect();
        assert_eq!(written, Vec::<std::path::PathBuf>::new(), "start {start}");
        assert_eq!(offsets(&read_all(&store.log())), (0..end).collect::<Vec<_>>(), "start {start}");
        assert_eq!(append(&store.log()).unwrap_err().kind, StorageErrorKind::DiskFull);
        drop(store);
        disk.set_capacity(None);
        disk = disk.kill();
    }
    append(&open(&disk, &small()).log()).unwrap();
}
