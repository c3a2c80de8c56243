//! The power goes, or the process is killed, between any two calls to the disk. What was synced is there
//! afterwards, every log opens, and no log shows what it never was told.

use std::path::Path;

use klamm_io::Disk;
use klamm_model::{TopicPartition, Uuid};
use klamm_records::Record;
use klamm_storage::{LogConfig, LogStore, StorageError};
use klamm_testing::{SimulatedDisk, Unsynced};

use crate::support::*;

/// What a run was told before it ended.
#[derive(Default)]
struct Told {
    /// End of what was appended, and of what was synced.
    appended: i64,
    synced: i64,
    /// From where on the log began, at least, and at most (a deletion may have got half way).
    start: i64,
    start_wished: i64,
    is_deleted: bool,
    wishes_deletion: bool,
    is_made: bool,
    is_recreated: bool,
}

fn config() -> LogConfig {
    LogConfig { retention_ms: Some(1000), file_delete_delay_ms: 0, ..small() }
}

/// Produces, rolls, syncs, deletes old segments, truncates nothing, deletes the topic and makes it again.
fn run(disk: &SimulatedDisk, told: &mut Told) -> Result<(), StorageError> {
    let store = LogStore::open(settings(disk))?;
    store.load(&|_| config())?;
    let log = store.create(&partition(), TOPIC_ID, config())?;
    told.is_made = true;
    for round in 0..4 {
        for _ in 0..7 {
            append(&log)?;
            told.appended = log.log_end_offset();
        }
        if round % 2 == 0 {
            log.flush()?;
            told.synced = log.log_end_offset();
        } else {
            store.flush_due();
        }
        store.checkpoint(&[(partition(), told.appended)])?;
    }
    told.start_wished = log.segment_offsets()[2];
    log.apply_retention(NOW + told.start_wished * 1000 + 500, told.appended)?;
    told.start = log.log_start_offset();
    store.run_maintenance(NOW, &|_| None);
    store.checkpoint(&[])?;
    append(&log)?;
    told.appended = log.log_end_offset();
    told.wishes_deletion = true;
    store.delete(&partition())?;
    told.is_deleted = true;
    store.run_maintenance(NOW, &|_| None);
    let log = store.create(&partition(), Uuid([9; 16]), config())?;
    append(&log)?;
    log.flush()?;
    told.is_recreated = true;
    store.close(Some(1))
}

fn check(disk: &SimulatedDisk, told: &Told, survives: i64, context: &str) {
    let store = LogStore::open(settings(disk)).unwrap_or_else(|error| panic!("{context}: {error}"));
    let report = store.load(&|_| config()).unwrap();
    assert_eq!(report.failed, [], "{context}");
    let Some(log) = store.get(&partition()) else {
        assert!(survives == 0 || told.wishes_deletion, "{context}: the log is gone");
        assert!(!told.is_recreated, "{context}: the new log is gone");
        return;
    };
    let records = read_all(&log);
    check_content(&records, context);
    if told.is_deleted && log.topic_id() != Some(TOPIC_ID) {
        assert!(
            log.log_end_offset() <= 3 && log.log_start_offset() == 0,
            "{context}: nothing of the old topic"
        );
        assert!(!told.is_recreated || log.log_end_offset() == 3, "{context}");
    } else {
        assert!(!told.is_deleted, "{context}: a deleted topic is back");
        assert!(log.log_end_offset() >= survives, "{context}: {} < {survives}", log.log_end_offset());
        let start = log.log_start_offset();
        assert!(start <= told.start_wished.max(told.start), "{context}: the log starts at {start}");
    }
    // And it works.
    let log = store.create(&partition(), log.topic_id().unwrap_or(TOPIC_ID), config()).unwrap();
    append(&log).unwrap();
    assert_eq!(read_all(&log).len(), records.len() + 3, "{context}");
    store.close(None).unwrap();
    drop((store, log));
    let store = open(disk, &config());
    assert_eq!(store.report.recovered_logs, 0, "{context}");
    assert_eq!(read_all(&store.log()).len(), records.len() + 3, "{context}");
}

/// Each record says its own offset, and there is no gap.
fn check_content(records: &[Record], context: &str) {
    for pair in records.windows(2) {
        assert_eq!(pair[0].offset + 1, pair[1].offset, "{context}: a gap");
    }
    for record in records {
        assert_eq!(record.value.as_deref(), Some(format!("{:030}", record.offset).as_bytes()), "{context}");
    }
}

fn changes_of_a_whole_run() -> u64 {
    let disk = SimulatedDisk::new(1);
    run(&disk, &mut Told::default()).unwrap();
    disk.counters().changes()
}

#[test]
fn a_kill_between_any_two_calls_loses_nothing_that_was_appended() {
    for changes in 0..changes_of_a_whole_run() {
        let disk = SimulatedDisk::new(changes);
        disk.crash_after(changes);
        let mut told = Told::default();
        run(&disk, &mut told).unwrap_err();
        check(&disk.kill(), &told, told.appended, &format!("killed after {changes} changes"));
    }
}

#[test]
fn a_power_cut_between_any_two_calls_loses_nothing_that_was_synced() {
    for changes in 0..changes_of_a_whole_run() {
        for unsynced in ENDINGS.into_iter().flatten() {
            let disk = SimulatedDisk::new(changes);
            disk.crash_after(changes);
            let mut told = Told::default();
            run(&disk, &mut told).unwrap_err();
            let context = format!("{unsynced:?} after {changes} changes");
            check(&disk.crash_leaving(unsynced), &told, told.synced, &context);
        }
    }
}

/// A recovery that is interrupted anywhere must not make things worse.
#[test]
fn a_crash_in_the_middle_of_a_recovery_is_recovered_from() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 20);
    log.flush().unwrap();
    append_many(&log, 10);
    drop((store, log));
    for changes in 0..60 {
        let stopped = disk.kill();
        stopped.crash_after(changes);
        let is_interrupted = try_open(&stopped, &small()).is_err() || stopped.is_down();
        let store = open(&stopped.crash(), &small());
        let records = read_all(&store.log());
        check_content(&records, &format!("interrupted after {changes} changes"));
        assert!(records.len() >= 60, "{changes}: {}", records.len());
        if !is_interrupted {
            return;
        }
    }
    panic!("a recovery of three segments has fewer than 60 changes");
}

/// The mark of a clean stop must not come back to life after a power cut.
#[test]
fn the_mark_of_a_clean_stop_counts_once() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    store.close(None).unwrap();
    drop((store, log));
    let store = open(&disk, &small());
    append(&store.log()).unwrap();
    drop(store);
    let disk = disk.crash_leaving(Unsynced::Lost);
    assert!(!disk.exists(&Path::new(LOGS).join(".kafka_cleanshutdown")).unwrap());
    let store = open(&disk, &small());
    assert_eq!(offsets(&read_all(&store.log())), [0, 1, 2]);
}

/// Closing is worth something only if all of it is on the disk.
#[test]
fn a_clean_stop_survives_a_power_cut() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 20);
    let other = TopicPartition::new("empty", 3);
    store.create(&other, TOPIC_ID, small()).unwrap();
    let before = read_all(&log);
    store.close(None).unwrap();
    let disk = disk.crash_leaving(Unsynced::Lost);
    let store = open(&disk, &small());
    assert_eq!((store.report.recovered_logs, store.report.logs), (0, 2));
    assert_eq!(read_all(&store.log()), before);
    assert_eq!(store.get(&other).unwrap().topic_id(), Some(TOPIC_ID));
}

/// A log that had lost its topic's id was taken for that of a later topic of the same name, and served the records of the
/// earlier one as the new one's.
#[test]
fn a_log_with_records_knows_its_topic_after_any_power_cut() {
    for (seed, ending) in (1..=30).flat_map(|seed| ENDINGS.map(|ending| (seed, ending))) {
        let disk = SimulatedDisk::new(seed);
        let (_store, log) = with_partition(&disk, &small());
        append_many(&log, 20);
        let store = open(&found_after(ending, &disk), &small());
        let found = store.get(&partition()).filter(|log| log.log_end_offset() > 0);
        assert!(found.is_none_or(|log| log.topic_id() == Some(TOPIC_ID)), "seed {seed}, {ending:?}");
    }
}
