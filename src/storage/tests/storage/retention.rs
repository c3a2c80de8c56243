//! What makes a log shorter at its beginning.

use klamm_io::Disk;
use klamm_storage::{CleanupPolicy, LogConfig, ReadError};
use klamm_testing::SimulatedDisk;

use crate::support::*;

fn filled(disk: &SimulatedDisk, config: &LogConfig) -> (Store, std::sync::Arc<klamm_storage::Log>) {
    let (store, log) = with_partition(disk, config);
    append_many(&log, 30);
    assert!(log.segment_count() > 3);
    (store, log)
}

#[test]
fn old_segments_go_and_never_what_is_not_replicated() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk, &LogConfig { retention_ms: Some(1000), ..small() });
    let bases = log.segment_offsets();
    // The newest record of the first segment is more than a second old, that of the second just a second.
    let now = NOW + (bases[2] - 1) * 1000 + 1000;
    assert_eq!(
        log.apply_retention(now, bases[1] - 1).unwrap(),
        0,
        "the high watermark is in the first segment"
    );
    assert_eq!(log.apply_retention(now, 90).unwrap(), 1);
    assert_eq!(log.apply_retention(now + 1, 90).unwrap(), 1);
    assert_eq!(log.log_start_offset(), bases[2]);
    assert!(
        matches!(log.read(0, 1, 90, true), Err(ReadError::OutOfRange { start, .. }) if start == bases[2])
    );
    // Deleted files live on under another name for a while.
    assert_eq!(files(&disk, &folder(), ".log.deleted").len(), 2);
    store.run_maintenance(NOW + 59_999, &|_| None);
    assert_eq!(files(&disk, &folder(), ".log.deleted").len(), 2);
    store.run_maintenance(NOW + 60_000, &|_| None);
    assert_eq!(files(&disk, &folder(), ".deleted").len(), 0);
    drop((store, log));
    assert_eq!(open(&disk.kill(), &small()).log().log_start_offset(), bases[2]);
}

#[test]
fn when_all_is_old_an_empty_segment_goes_on() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk, &LogConfig { retention_ms: Some(1000), ..small() });
    let segments = log.segment_count();
    assert_eq!(log.apply_retention(NOW + 1_000_000, 90).unwrap(), segments);
    assert_eq!((log.log_start_offset(), log.log_end_offset(), log.size()), (90, 90, 0));
    assert_eq!(log.apply_retention(NOW + 1_000_000, 90).unwrap(), 0, "an empty segment stays");
    append(&log).unwrap();
    store.close(None).unwrap();
    drop((store, log));
    let store = open(&disk, &small());
    assert_eq!(offsets(&read_all(&store.log())), [90, 91, 92]);
}

#[test]
fn too_many_bytes_go_from_the_front() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = filled(&disk, &LogConfig { retention_bytes: Some(3000), ..small() });
    assert!(log.apply_retention(NOW, 90).unwrap() > 0);
    let size = log.size();
    assert!((3000..4500).contains(&size), "whole segments go, as long as enough stays: {size}");
    assert_eq!(log.apply_retention(NOW, 90).unwrap(), 0);
}

/// A compacted topic keeps the last record of each key for ever: age and size are no reason to delete.
#[test]
fn a_compacted_log_keeps_everything() {
    let disk = SimulatedDisk::new(1);
    let cleanup = CleanupPolicy { delete: false, compact: true };
    let config = LogConfig { cleanup, retention_ms: Some(0), retention_bytes: Some(0), ..small() };
    let (_store, log) = filled(&disk, &config);
    assert_eq!(log.apply_retention(i64::MAX, 90).unwrap(), 0);
    let start = log.segment_offsets()[2];
    log.delete_records_before(start).unwrap();
    assert_eq!(log.apply_retention(i64::MAX, 90).unwrap(), 2, "what is before the start goes all the same");
}

#[test]
fn deleted_records_stay_deleted_over_restarts() {
    for is_clean in [true, false] {
        let disk = SimulatedDisk::new(1);
        let (store, log) = filled(&disk, &small());
        let within = log.segment_offsets()[1] + 4;
        assert_eq!(log.delete_records_before(within).unwrap(), within);
        assert_eq!(log.delete_records_before(within - 1).unwrap(), within, "the start does not go back");
        assert!(log.delete_records_before(91).is_err());
        store.checkpoint_log_start_offsets().unwrap();
        if is_clean {
            store.close(None).unwrap();
        }
        drop((store, log));
        let store = open(&disk.kill(), &small());
        let log = store.log();
        assert_eq!(log.log_start_offset(), within);
        assert_eq!(offsets(&read_all(&log))[0], within);
        assert!(log.read(within - 1, 1, 90, true).is_err());
        assert_eq!(log.apply_retention(NOW, 90).unwrap(), 1);
        drop((store, log));
        assert_eq!(open(&disk.kill(), &small()).log().log_start_offset(), within);
    }
}

#[test]
fn all_records_can_be_deleted() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk, &small());
    log.delete_records_before(90).unwrap();
    assert_eq!(log.offset_for_timestamp(0).unwrap(), None);
    store.checkpoint(&[]).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let store = open(&disk, &small());
    assert_eq!((store.log().log_start_offset(), store.log().log_end_offset()), (90, 90));
    append(&store.log()).unwrap();
    assert_eq!(offsets(&read_all(&store.log())), [90, 91, 92]);
}

/// A search by time must not end in the segment that holds the start of the log, only because a record before
/// the start would have fitted.
#[test]
fn times_are_found_behind_deleted_records() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    let at = |offset, timestamp| Draft { timestamps: vec![timestamp], ..Draft::at(offset) }.batch();
    log.append_replicated(&[at(0, NOW + 500), at(1, NOW)]).unwrap();
    log.roll().unwrap();
    log.append_replicated(&[at(2, NOW + 900)]).unwrap();
    log.delete_records_before(1).unwrap();
    let found = log.offset_for_timestamp(NOW + 100).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp), (2, NOW + 900));
}

/// Removing what waits must survive a disk that refuses for a while.
#[test]
fn a_deletion_that_fails_is_tried_again() {
    use klamm_testing::{Failure, Fault, OperationKind};
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk, &LogConfig { retention_ms: Some(0), ..small() });
    log.apply_retention(i64::MAX, 90).unwrap();
    let fault = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Remove));
    store.run_maintenance(i64::MAX, &|_| None);
    assert!(!files(&disk, &folder(), ".deleted").is_empty());
    disk.clear(fault);
    store.run_maintenance(i64::MAX, &|_| None);
    assert!(files(&disk, &folder(), ".deleted").is_empty());
    assert!(disk.exists(&folder()).unwrap());
}
