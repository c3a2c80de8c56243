//! Cutting the end of a log off, as a follower does when its leader has another one.

use klamm_model::LeaderEpoch;
use klamm_storage::{EpochEntry, LogConfig};
use klamm_testing::{SimulatedDisk, Unsynced};

use crate::support::*;

#[test]
fn a_log_can_be_cut_at_every_offset_and_goes_on() {
    for offset in 0..=63 {
        let disk = SimulatedDisk::new(1);
        let (store, log) = with_partition(&disk, &small());
        for _ in 0..20 {
            let offset = log.log_end_offset();
            log.append_replicated(&[Draft { epoch: (offset / 20) as i32, ..Draft::at(offset) }.batch()])
                .unwrap();
        }
        log.flush().unwrap();
        assert_eq!(log.truncate_to(offset).unwrap(), offset < 60);
        // Batches have three records; one that holds the offset goes as a whole.
        let end = (offset / 3 * 3).min(60);
        assert_eq!(log.log_end_offset(), end);
        assert!(log.recovery_point() <= end);
        assert_eq!(offsets(&read_all(&log)), (0..end).collect::<Vec<_>>());
        assert!(log.leader_epochs().iter().all(|entry| entry.start_offset < end));
        let changed = Draft { epoch: 9, timestamps: vec![NOW + 900_000], ..Draft::at(end) };
        log.append_replicated(&[changed.batch()]).unwrap();
        assert_eq!(
            log.leader_epochs().last(),
            Some(&EpochEntry { epoch: LeaderEpoch(9), start_offset: end })
        );
        assert_eq!(log.offset_for_timestamp(NOW + 500_000).unwrap().unwrap().offset, end);
        let all = read_all(&log);
        drop((store, log));
        let store = open(&disk.kill(), &small());
        assert_eq!(read_all(&store.log()), all, "after a kill");
    }
}

/// A transaction whose data or marker was cut must be as if it had not been.
#[test]
fn producers_are_what_they_were_at_the_cut() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    let data = |offset, sequence| {
        Draft { producer: Some((1, 0, sequence)), is_transactional: true, ..Draft::at(offset) }.batch()
    };
    log.append_replicated(&[data(0, 0), data(3, 3), marker(6, (1, 0), false), data(7, 6)]).unwrap();
    assert_eq!(log.first_unstable_offset(), Some(0), "the end of the first is not replicated yet");
    log.on_high_watermark(10);
    assert_eq!(log.first_unstable_offset(), Some(7));
    log.truncate_to(6).unwrap();
    assert_eq!(log.first_unstable_offset(), Some(0));
    assert_eq!(log.producers()[0].last_sequence(), 5);
    assert_eq!(log.aborted_transactions(0, 100).unwrap(), []);
    log.truncate_to(0).unwrap();
    assert_eq!(log.producers(), []);
    assert_eq!(log.first_unstable_offset(), None);
}

#[test]
fn a_log_can_start_anew_anywhere() {
    for offset in [0, 30, 1_000_000] {
        let disk = SimulatedDisk::new(1);
        let (store, log) = with_partition(&disk, &small());
        append_many(&log, 20);
        log.truncate_fully_and_start_at(offset).unwrap();
        assert_eq!((log.log_start_offset(), log.log_end_offset()), (offset, offset));
        assert!(log.read(offset, 1, offset, true).unwrap().is_none());
        assert_eq!((log.leader_epochs(), log.producers()), (vec![], vec![]));
        append(&log).unwrap();
        drop((store, log));
        let store = open(&disk.kill(), &small());
        assert_eq!(offsets(&read_all(&store.log())), [offset, offset + 1, offset + 2]);
    }
}

/// A reader that remembers where offsets stood must not be led astray after others took their place.
#[test]
fn remembered_positions_are_void_after_a_cut() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig::default());
    append_many(&log, 5);
    assert_eq!(read_all(&log).len(), 15);
    log.truncate_to(3).unwrap();
    for offset in [3, 6, 9, 12] {
        log.append_replicated(&[Draft { value_bytes: 77, ..Draft::at(offset) }.batch()]).unwrap();
        for below in (3..=offset + 3).step_by(3) {
            let slice = log.read(0, usize::MAX, below, true).unwrap().unwrap();
            let last = klamm_records::batches(slice.to_bytes().unwrap()).last().unwrap().unwrap();
            assert_eq!(last.header.next_offset(), below);
        }
    }
}

/// The checkpoint on the disk says that all is synced up to 60; the log is cut, and other records are written in
/// the place of the old ones. After a power cut recovery must look at them, although they are below 60.
#[test]
fn recovery_looks_at_what_was_written_after_a_cut() {
    for unsynced in [Unsynced::Lost, Unsynced::Torn, Unsynced::Scattered, Unsynced::Seeded] {
        for seed in 0..20 {
            let disk = SimulatedDisk::new(seed);
            let (store, log) = with_partition(&disk, &small());
            append_many(&log, 20);
            log.flush().unwrap();
            store.checkpoint(&[]).unwrap();
            log.truncate_to(15).unwrap();
            for offset in (15..60).step_by(3) {
                log.append_replicated(&[Draft { epoch: 1, value_bytes: 40, ..Draft::at(offset) }.batch()])
                    .unwrap();
            }
            let store = open(&disk.crash_leaving(unsynced), &small());
            let records = read_all(&store.log());
            assert_eq!(offsets(&records), (0..store.log().log_end_offset()).collect::<Vec<_>>());
            assert!(records.len() >= 15);
            let is_new = |record: &klamm_records::Record| record.value.as_ref().unwrap().len() == 40;
            assert!(records.iter().skip(15).all(is_new), "records that were cut are back");
        }
    }
}

/// A leader that wrote nothing leaves its epoch at the end of its log. Kept, it would stand for what was fetched last,
/// and a follower would ask its next leader about it for ever.
#[test]
fn an_epoch_that_begins_at_the_end_goes_with_a_truncation_that_cuts_no_record() {
    let (_store, log) = with_partition(&SimulatedDisk::new(1), &small());
    log.append_replicated(&[Draft { epoch: 3, ..Draft::at(0) }.batch()]).unwrap();
    let end = log.log_end_offset();
    log.assign_epoch(LeaderEpoch(5), end).unwrap();
    assert!(!log.truncate_to(end).unwrap(), "no record goes");
    let kept = EpochEntry { epoch: LeaderEpoch(3), start_offset: 0 };
    assert_eq!(log.leader_epochs(), [kept]);
}
