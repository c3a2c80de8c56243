//! A partition moves into another log directory while it is written. Whatever call fails, and wherever the power
//! goes, it stands in one directory afterwards, with all that was acknowledged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_io::Disk;
use klamm_model::{Offset, TopicPartition, Uuid};
use klamm_storage::{
    Log, LogConfig, LogStore, Move, MoveError, Past, PlacementError, StorageErrorKind, StoreSettings, Wanted,
};
use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk, Unsynced};

use crate::support::*;

fn two(disk: &SimulatedDisk) -> StoreSettings {
    StoreSettings { log_dirs: vec![LOGS.into(), MORE.into()], ..settings(disk) }
}

fn open_two(disk: &SimulatedDisk) -> LogStore {
    let store = LogStore::open(two(disk)).unwrap();
    let report = store.load(&|_| small()).unwrap();
    assert_eq!(report.failed, [], "every log opens");
    store
}

/// Copies until nothing is missing.
fn copy(store: &LogStore, future: &Log) -> Result<(), MoveError> {
    let log = store.get(&partition()).ok_or(MoveError::NoLog)?;
    loop {
        let piece = future.next_piece(&log, 500).map_err(|error| match error {
            klamm_storage::ReadError::Storage(error) => MoveError::Storage(error),
            error => panic!("{error}"),
        })?;
        if piece.is_empty() {
            return Ok(());
        }
        future.append_piece(&piece)?;
    }
}

/// Moves the partition as a whole; records come between the copying and the swap.
fn move_to(store: &LogStore, directory: &str) -> Result<(), MoveError> {
    let Move::Copies(future) = store.begin_move(&partition(), Path::new(directory))? else { return Ok(()) };
    copy(store, &future)?;
    if let Some(log) = store.get(&partition()) {
        append(&log)?;
    }
    copy(store, &future)?;
    let end = future.log_end_offset();
    Ok(store.finish_move(&partition(), end).map(drop)?)
}

/// The folders that have the partition's own name.
fn places(disk: &SimulatedDisk) -> Vec<PathBuf> {
    let all = [LOGS, MORE].map(|dir| Path::new(dir).join("t-0"));
    all.into_iter().filter(|path| disk.exists(path).unwrap()).collect()
}

/// What somebody can ask of a log.
fn answers(log: &Log) -> impl PartialEq + std::fmt::Debug + use<> {
    let end = log.log_end_offset();
    (
        (log.topic_id(), log.log_start_offset(), end, log.leader_epochs(), log.producers()),
        (log.first_unstable_offset(), log.last_stable_offset(end), log.open_transactions()),
        (log.aborted_transactions(log.log_start_offset(), end).unwrap(), read_all(log)),
    )
}

/// What of it outlives a process: a snapshot keeps no times of single batches.
fn durable(log: &Log) -> impl PartialEq + std::fmt::Debug + use<> {
    let producers = log.producers();
    let producers =
        producers.iter().map(|one| (one.id, one.epoch, one.last_sequence(), one.coordinator_epoch));
    (
        (log.topic_id(), log.log_start_offset(), log.log_end_offset(), log.leader_epochs()),
        (producers.collect::<Vec<_>>(), log.open_transactions(), read_all(log)),
        log.aborted_transactions(log.log_start_offset(), log.log_end_offset()).unwrap(),
    )
}

/// A log with producers, an aborted transaction, an open one, epochs of which one has no record, and a start
/// within a batch. One producer is known although its records are gone.
fn eventful(store: &LogStore) -> Arc<Log> {
    let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
    let add = |producer: (i64, i16, i32), is_transactional: bool, epoch: i32| {
        let offset = log.log_end_offset();
        let draft = Draft { producer: Some(producer), is_transactional, epoch, ..Draft::at(offset) };
        log.append_replicated(&[draft.batch()]).unwrap();
    };
    add((4, 0, 0), false, 0);
    append_many(&log, 30);
    add((5, 0, 0), true, 0);
    log.append_replicated(&[marker(log.log_end_offset(), (5, 0), false)]).unwrap();
    add((6, 2, 0), false, 3);
    append_many(&log, 10);
    add((7, 0, 0), true, 3);
    log.assign_epoch(klamm_model::LeaderEpoch(5), log.log_end_offset()).unwrap();
    log.delete_records_before(34).unwrap();
    log
}

#[test]
fn a_log_that_has_moved_answers_as_before() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    let log = eventful(&store);
    let before = answers(&log);
    let slice = log.read(40, 200, 60, true).unwrap().unwrap();
    let bytes = slice.to_bytes().unwrap();
    let Move::Copies(future) = store.begin_move(&partition(), Path::new(MORE)).unwrap() else { panic!() };
    assert!(log.is_moving());
    copy(&store, &future).unwrap();
    let moved = store.finish_move(&partition(), log.log_end_offset()).unwrap();
    assert_eq!(answers(&moved), before);
    assert_eq!(slice.to_bytes().unwrap(), bytes, "who reads the old files reads on");
    assert_eq!(places(&disk), [Path::new("/more/t-0")]);
    assert!(store.future(&partition()).is_none() && !moved.is_moving());
    // Retention and deletions of the new log work, and after a kill it is the same.
    append_many(&moved, 5);
    let after = durable(&moved);
    let killed = disk.kill();
    let store = open_two(&killed);
    assert_eq!(durable(&store.get(&partition()).unwrap()), after);
    // And back, which the mark of the first move must not hinder.
    move_to(&store, LOGS).unwrap();
    assert_eq!(places(&killed), [Path::new("/logs/t-0")]);
    store.close(None).unwrap();
    drop(store);
    let store = open_two(&killed.crash());
    assert_eq!(store.get(&partition()).unwrap().log_end_offset(), moved.log_end_offset() + 3);
}

#[test]
fn a_move_is_called_off_redirected_and_ended_with_its_partition() {
    let disk = SimulatedDisk::new(1);
    let third =
        StoreSettings { log_dirs: vec![LOGS.into(), MORE.into(), "/third".into()], ..settings(&disk) };
    let store = LogStore::open(third).unwrap();
    store.load(&|_| small()).unwrap();
    let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
    append_many(&log, 10);
    let futures =
        |dir: &str| names(&disk, Path::new(dir)).iter().filter(|name| name.ends_with("-future")).count();
    let begin = |dir: &str| store.begin_move(&partition(), Path::new(dir));
    let Move::Copies(first) = begin(MORE).unwrap() else { panic!() };
    let Move::Copies(same) = begin(MORE).unwrap() else { panic!() };
    assert!(Arc::ptr_eq(&first, &same), "asked twice, it goes on");
    assert!(matches!(begin("/third").unwrap(), Move::Copies(_)));
    assert_eq!((futures(MORE), futures("/third")), (0, 1));
    assert!(matches!(begin(LOGS).unwrap(), Move::Stays));
    assert_eq!(futures("/third"), 0);
    assert!(store.future(&partition()).is_none() && !log.is_moving());
    assert_eq!(begin("/nowhere").err(), Some(MoveError::Directory(PlacementError::Unknown)));
    let other = TopicPartition::new("other", 0);
    assert_eq!(store.begin_move(&other, Path::new(MORE)).err(), Some(MoveError::NoLog));
    begin(MORE).unwrap();
    assert!(store.delete(&partition()).unwrap());
    assert_eq!((futures(MORE), store.future(&partition()).is_none()), (0, true));
    assert!(store.finish_move(&partition(), 30).is_err());
}

/// A restart in the middle goes on where the copy is. What a power cut took from the original is not kept by the
/// copy: other records have got its offsets.
#[test]
fn a_move_goes_on_after_a_restart() {
    for how in ["stop", "kill", "power cut"] {
        let disk = SimulatedDisk::new(1);
        let store = open_two(&disk);
        let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
        append_many(&log, 20);
        log.flush().unwrap();
        store.checkpoint(&[]).unwrap();
        append_many(&log, 10);
        let Move::Copies(future) = store.begin_move(&partition(), Path::new(MORE)).unwrap() else { panic!() };
        copy(&store, &future).unwrap();
        future.flush().unwrap();
        store.checkpoint(&[]).unwrap();
        let disk = match how {
            "stop" => {
                store.close(None).unwrap();
                disk.kill()
            }
            "kill" => disk.kill(),
            _ => disk.crash_leaving(Unsynced::Lost),
        };
        let store = open_two(&disk);
        let (log, future) = (store.get(&partition()).unwrap(), store.future(&partition()).unwrap());
        assert!(log.is_moving(), "{how}");
        // The copy is cut to the last whole batch below the recovery point of the original. After a kill that is
        // short of what was flushed; after a power cut the original was made anew from its last segment on.
        let expected = match how {
            "stop" => 90,
            "kill" => 57,
            _ => 42,
        };
        assert_eq!(future.log_end_offset(), expected, "{how}");
        assert!(how == "stop" || future.log_end_offset() <= log.recovery_point(), "{how}");
        let at = log.log_end_offset();
        log.append_replicated(&[Draft { value_bytes: 77, ..Draft::at(at) }.batch()]).unwrap();
        copy(&store, &future).unwrap();
        let before = answers(&log);
        let moved = store.finish_move(&partition(), log.log_end_offset()).unwrap();
        assert_eq!(answers(&moved), before, "{how}");
    }
}

/// What the run was told: every acknowledged record, and up to where it was synced.
fn run(disk: &SimulatedDisk) -> (Offset, Offset) {
    let (mut appended, mut synced) = (0, 0);
    let mut work = || -> Result<(), MoveError> {
        let store = LogStore::open(two(disk))?;
        store.load(&|_| small())?;
        let log = store.create(&partition(), TOPIC_ID, small())?;
        for _ in 0..8 {
            append(&log)?;
            appended = log.log_end_offset();
        }
        log.flush()?;
        synced = appended;
        store.checkpoint(&[(partition(), appended)])?;
        for directory in [MORE, LOGS] {
            let Move::Copies(future) = store.begin_move(&partition(), Path::new(directory))? else {
                panic!()
            };
            copy(&store, &future)?;
            let log = store.get(&partition()).ok_or(MoveError::NoLog)?;
            append(&log)?;
            appended = log.log_end_offset();
            copy(&store, &future)?;
            let moved = store.finish_move(&partition(), appended)?;
            synced = appended;
            append(&moved)?;
            appended = moved.log_end_offset();
            store.checkpoint(&[(partition(), appended)])?;
        }
        store.close(None)?;
        synced = appended;
        Ok(())
    };
    let _ = work();
    (appended, synced)
}

fn check(disk: &SimulatedDisk, survives: Offset, context: &str) {
    let store = LogStore::open(two(disk)).unwrap_or_else(|error| panic!("{context}: {error}"));
    let report = store.load(&|_| small()).unwrap();
    assert_eq!(report.failed, [], "{context}");
    let Some(log) = store.get(&partition()) else {
        assert_eq!(survives, 0, "{context}: the partition is gone");
        return;
    };
    assert_eq!(places(disk).len(), 1, "{context}");
    let records = offsets(&read_all(&log));
    assert_eq!(records, (0..log.log_end_offset()).collect::<Vec<_>>(), "{context}");
    assert!(log.log_end_offset() >= survives, "{context}: ends at {}, not {survives}", log.log_end_offset());
    // It can be moved on, whatever was left.
    let target = if log.dir().starts_with(LOGS) { MORE } else { LOGS };
    move_to(&store, target).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(offsets(&read_all(&store.get(&partition()).unwrap())).len(), records.len() + 3, "{context}");
}

#[test]
fn a_crash_at_any_call_of_a_move_leaves_the_partition_in_one_place() {
    let whole = SimulatedDisk::new(1);
    let (appended, synced) = run(&whole);
    assert_eq!((appended, synced), (36, 36), "the run is what it is meant to be");
    for changes in 0..whole.counters().changes() {
        let disk = SimulatedDisk::new(changes);
        disk.crash_after(changes);
        let (appended, synced) = run(&disk);
        check(&disk.kill(), appended, &format!("killed after {changes} changes"));
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn] {
            let context = format!("crashed after {changes} changes, {unsynced:?}");
            check(&disk.crash_leaving(unsynced), synced, &context);
        }
    }
}

/// A call of a move fails once, or for as long as the move is tried. The partition serves on, unless it is its own
/// directory that has failed, and nothing is lost; with room again, the move succeeds.
#[test]
fn a_failure_of_any_call_of_a_move_loses_nothing() {
    for failure in [Failure::NoSpace, Failure::Device] {
        for times in [1, u64::MAX] {
            for nth in 1.. {
                let disk = SimulatedDisk::new(nth);
                let store = open_two(&disk);
                let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
                append_many(&log, 8);
                let fault = disk.inject(Fault::new(failure).from_call(nth).times(times));
                let before_it = disk.operations().len() as u64;
                let result = move_to(&store, MORE);
                let is_hit = disk.operations().len() as u64 - before_it >= nth;
                disk.clear(fault);
                let context = format!("{failure:?} {times} {nth}: {result:?}");
                let log = store.get(&partition()).unwrap();
                let log = store.reopen(&partition()).unwrap().unwrap_or(log);
                let before = offsets(&read_or_nothing(&log));
                let works = append(&log).is_ok();
                if failure == Failure::NoSpace {
                    assert!(works && before.len() >= 24, "{context}");
                    if result.is_err() {
                        if store.future(&partition()).is_some_and(|future| future.failure().is_some()) {
                            store.reopen_future(&partition());
                        }
                        move_to(&store, MORE).unwrap_or_else(|error| panic!("{context}: {error}"));
                    }
                }
                let end = store.get(&partition()).unwrap().log_end_offset();
                drop(store);
                check(&disk.kill(), end, &context);
                if !is_hit {
                    assert!(nth > 50 && result.is_ok(), "the faults hit all calls of the move");
                    break;
                }
            }
        }
    }
}

fn read_or_nothing(log: &Log) -> Vec<klamm_records::Record> {
    match log.check_usable("read") {
        Ok(()) => read_all(log),
        Err(_) => Vec::new(),
    }
}

/// Folders that nobody has marked: one may be a copy that somebody made by hand. The wrong choice would lose
/// records, so there is none, and the topic's id decides where it can.
#[test]
fn two_folders_without_a_mark_are_left_alone() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    append_many(&store.create(&partition(), TOPIC_ID, small()).unwrap(), 5);
    drop(store);
    let disk = disk.kill();
    let twin = Path::new("/more/t-0");
    disk.create_dir_all(twin).unwrap();
    for (name, content) in files(&disk, &folder(), "") {
        disk.replace(&twin.join(name), &content).unwrap();
    }
    let store = LogStore::open(two(&disk)).unwrap();
    let report = store.load(&|_| small()).unwrap();
    let message = report.failed[0].1.to_string();
    assert!(message.contains("/logs/t-0") && message.contains("/more/t-0"), "{message}");
    assert!(store.create(&partition(), TOPIC_ID, small()).is_err());
    assert_eq!(places(&disk).len(), 2);
    drop(store);
    // A folder of a topic that was deleted while its directory was offline, and was made again meanwhile.
    let disk = disk.kill();
    let metadata = format!("version: 0\ntopic_id: {}", Uuid([8; 16]));
    disk.replace(&twin.join("partition.metadata"), metadata.as_bytes()).unwrap();
    let store = LogStore::open(two(&disk)).unwrap();
    store.load(&|_| small()).unwrap();
    let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
    assert_eq!((log.dir(), log.log_end_offset()), (folder(), 15));
}

#[test]
fn a_directory_that_fails_takes_only_its_own_partitions_along() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    let other = TopicPartition::new("t", 1);
    let here = store.create(&partition(), TOPIC_ID, small()).unwrap();
    let there = store.create(&other, TOPIC_ID, small()).unwrap();
    assert!(there.dir().starts_with(MORE));
    append_many(&here, 3);
    append_many(&there, 3);
    disk.inject(Fault::new(Failure::Device).on(MORE));
    assert!(append(&there).is_err());
    disk.clear_faults();
    let error = there.read(0, 100, 9, true).unwrap_err().to_string();
    assert!(error.contains("the log directory is offline"), "{error}");
    append(&here).unwrap();
    // Checkpoints, maintenance and new partitions do with the other directory.
    store.checkpoint(&[(partition(), 12)]).unwrap();
    store.run_maintenance(NOW, &|_| None);
    for index in 2..5 {
        let log = store.create(&TopicPartition::new("t", index), TOPIC_ID, small()).unwrap();
        assert!(log.dir().starts_with(LOGS));
    }
    assert!(matches!(
        store.create(&other, TOPIC_ID, small()).err().unwrap().kind,
        StorageErrorKind::DirectoryOffline(_)
    ));
    let statuses = store.directory_statuses();
    assert!(statuses[0].failure.is_none() && statuses[1].failure.is_some());
    assert!(matches!(
        store.begin_move(&partition(), Path::new(MORE)).err(),
        Some(MoveError::Directory(PlacementError::Offline(_)))
    ));
    // A topic can be deleted; its folder is found when the directory is back.
    let error = store.delete(&other).unwrap_err();
    assert!(matches!(error.kind, StorageErrorKind::DirectoryOffline(_)), "{error}");
    assert!(store.get(&other).is_none() && store.create(&other, Uuid([8; 16]), small()).is_ok());
    store.close(None).unwrap();
    drop(store);
    let disk = disk.kill();
    let store = LogStore::open(two(&disk)).unwrap();
    assert_eq!(store.load(&|_| small()).unwrap().failed.len(), 1, "it stands in both directories");
    assert_eq!(store.create(&other, TOPIC_ID, small()).unwrap().log_end_offset(), 9);
    assert_eq!(store.get(&partition()).unwrap().log_end_offset(), 12);
}

/// A partition that was there before this start.
fn of_before(tp: &TopicPartition) -> Wanted {
    Wanted { topic_partition: tp.clone(), topic_id: TOPIC_ID, config: small(), past: Past::Unknown }
}

#[test]
fn a_start_does_without_a_directory_but_not_without_the_first() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    store.create(&partition(), TOPIC_ID, small()).unwrap();
    let lost = TopicPartition::new("t", 1);
    assert!(store.create(&lost, TOPIC_ID, small()).unwrap().dir().starts_with(MORE));
    let ids = store.directory_ids();
    drop(store);
    let disk = disk.kill();
    disk.inject(Fault::new(Failure::Device).on(MORE));
    let store = open_two(&disk);
    assert!(store.get(&partition()).is_some() && store.get(&lost).is_none());
    // It may lie in the other directory, so nothing is made in its place. What is new is made.
    let error = store.open_or_make(of_before(&lost)).err().unwrap();
    assert!(error.to_string().contains(MORE), "{error}");
    assert!(store.create(&TopicPartition::new("t", 2), TOPIC_ID, small()).is_ok());
    drop(store);
    disk.clear_faults();
    disk.inject(Fault::new(Failure::Device).on(LOGS));
    assert!(LogStore::open(two(&disk)).is_err());
    disk.clear_faults();
    // The directory was replaced by an empty one: its id is not there any more.
    let one = StoreSettings { log_dirs: vec![LOGS.into(), "/empty".into()], ..settings(&disk) };
    let store = LogStore::open(one).unwrap();
    store.load(&|_| small()).unwrap();
    let known: Vec<Uuid> = ids.iter().map(|(_, id)| *id).collect();
    assert_eq!(store.note_known_directories(&known), [ids[1].1]);
    let error = store.open_or_make(of_before(&lost)).err().unwrap();
    assert!(error.to_string().contains(&ids[1].1.to_string()), "{error}");
}

/// A directory that is removed, or whose file system is unmounted, gives no error of the device: what is made
/// there would vanish when the real one is back.
#[test]
fn a_directory_without_its_identity_is_offline() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    store.create(&partition(), TOPIC_ID, small()).unwrap();
    disk.rename(Path::new(MORE), Path::new("/gone")).unwrap();
    let log = store.create(&TopicPartition::new("t", 1), TOPIC_ID, small()).unwrap();
    assert!(log.dir().starts_with(LOGS) && !disk.exists(Path::new(MORE)).unwrap());
    assert!(store.directory_statuses()[1].failure.is_some());
}

#[test]
fn a_partition_is_made_where_it_was_asked_for_and_not_where_nothing_new_is_wanted() {
    let disk = SimulatedDisk::new(1);
    let store = open_two(&disk);
    let make = |index: i32| store.create(&TopicPartition::new("t", index), TOPIC_ID, small()).unwrap().dir();
    for index in 0..3 {
        store.wish(&TopicPartition::new("t", index), Path::new(MORE)).unwrap();
        assert!(make(index).starts_with(MORE));
    }
    assert_eq!(store.wish(&partition(), Path::new("/nowhere")), Err(PlacementError::Unknown));
    store.set_cordoned(vec![LOGS.into()]);
    assert!(make(3).starts_with(MORE));
    store.set_cordoned(vec![LOGS.into(), MORE.into()]);
    assert!(make(4).starts_with(LOGS), "somewhere it must be");
}

/// A full disk kept a log from being opened at the start; nobody tried it again before the next start.
#[test]
fn a_log_that_could_not_be_opened_is_tried_again() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 10);
    log.delete_records_before(7).unwrap();
    store.checkpoint(&[(partition(), 30)]).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write).on("/t-0/"));
    let store = try_open(&disk, &LogConfig { preallocate: false, ..small() }).unwrap();
    assert_eq!(store.report.failed.len(), 1);
    assert!(store.create(&partition(), TOPIC_ID, small()).is_err());
    disk.clear(full);
    let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
    assert_eq!(offsets(&read_all(&log)), (7..30).collect::<Vec<_>>());
    assert_eq!(store.high_watermark(&partition()), Some(30));
    store.close(None).unwrap();
}
