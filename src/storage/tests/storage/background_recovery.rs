//! A node that was killed serves at once what nobody had written to, and the rest as its check ends.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use klamm_io::{Clock, Disk, OpenMode};
use klamm_model::{TimestampMs, TopicPartition, Uuid};
use klamm_storage::{LoadReport, LogStore, StorageErrorKind};
use klamm_testing::{GatedDisk, SimulatedClock, SimulatedDisk};

use crate::support::*;

const MARK: &str = ".kafka_cleanshutdown";

fn tp(topic: &str) -> TopicPartition {
    TopicPartition::new(topic, 0)
}

/// A node with two partitions that was stopped in order, started again, and killed after only one of them was
/// written to.
fn killed(disk: &SimulatedDisk) -> SimulatedDisk {
    let store = open(disk, &small());
    for topic in ["busy", "idle"] {
        append_many(&store.create(&tp(topic), TOPIC_ID, small()).unwrap(), 8);
    }
    store.close(None).unwrap();
    drop(store);
    let store = open(disk, &small());
    append_many(&store.get(&tp("busy")).unwrap(), 8);
    store.checkpoint(&[(tp("busy"), 30), (tp("idle"), 24)]).unwrap();
    drop(store);
    disk.kill()
}

fn opened(disk: Arc<dyn Disk>, simulated: &SimulatedDisk) -> (LogStore, LoadReport) {
    let mut settings = settings(simulated);
    settings.disk = disk;
    let store = LogStore::open(settings).unwrap();
    let report = store.open_logs(&|_| small()).unwrap();
    (store, report)
}

fn opened_plainly(disk: &SimulatedDisk) -> (LogStore, LoadReport) {
    opened(Arc::new(disk.clone()), disk)
}

/// Opens a store, and does something while its busy log is being checked.
fn during_the_check<T: Send>(
    disk: &SimulatedDisk,
    action: impl FnOnce(&LogStore) -> T + Send,
) -> (LogStore, T, LoadReport) {
    let gate = GatedDisk::new(disk.clone(), "busy-0", "log");
    let (store, _) = opened(Arc::new(gate.clone()), disk);
    let (done, report) = std::thread::scope(|scope| {
        let recovery = scope.spawn(|| store.recover(&|| {}));
        gate.await_arrival();
        let action = scope.spawn(|| action(&store));
        gate.open_up();
        (action.join().unwrap(), recovery.join().unwrap())
    });
    (store, done, report)
}

#[test]
fn what_was_not_written_to_is_there_before_the_recovery() {
    let disk = killed(&SimulatedDisk::new(1));
    let (store, report) = opened_plainly(&disk);
    assert_eq!((report.logs, report.unchecked_logs, report.failed.len()), (1, 1, 0));
    let idle = store.get(&tp("idle")).unwrap();
    assert_eq!((idle.log_end_offset(), idle.recovery_point()), (24, 24));
    append(&idle).unwrap();
    assert!(store.get(&tp("busy")).is_none());
    assert_eq!(store.failure_of(&tp("busy")).unwrap().kind, StorageErrorKind::Recovering);
    let refused = |id| store.create(&tp("busy"), id, small()).err().unwrap().kind;
    assert_eq!(refused(TOPIC_ID), StorageErrorKind::Recovering);
    assert!(matches!(refused(Uuid([8; 16])), StorageErrorKind::InconsistentTopicId { .. }));
    let unchecked = store.unchecked();
    assert_eq!((&unchecked[0].topic_partition, unchecked[0].topic_id), (&tp("busy"), Some(TOPIC_ID)));
    // What the checkpoints say of it outlives a checkpoint that is written meanwhile.
    let points = Path::new(LOGS).join("recovery-point-offset-checkpoint");
    let before = disk.read(&points).unwrap();
    store.checkpoint(&[(tp("idle"), 27)]).unwrap();
    assert_eq!(disk.read(&points).unwrap(), before);
    assert_eq!(store.high_watermark(&tp("busy")), Some(30));
    let calls = Mutex::new(0);
    let report = store.recover(&|| *calls.lock().unwrap() += 1);
    assert_eq!((report.recovered_logs, report.unchecked_logs, *calls.lock().unwrap()), (1, 0, 1));
    let status = store.recovery_status();
    assert_eq!((status.logs, status.logs_done), (1, 1));
    assert!(status.bytes > 0 && status.bytes == status.bytes_done);
    let busy = store.create(&tp("busy"), TOPIC_ID, small()).unwrap();
    assert_eq!(offsets(&read_all(&busy)), (0..48).collect::<Vec<_>>());
    store.close(None).unwrap();
    assert!(disk.exists(&Path::new(LOGS).join(MARK)).unwrap());
}

/// After a power cut the files may have lost what the recovery point says is there, or hold a part of what was
/// written behind it. Neither is the log as it was closed.
#[test]
fn a_log_that_differs_from_its_recovery_point_is_checked() {
    let disk = killed(&SimulatedDisk::new(1));
    let idle = Path::new(LOGS).join("idle-0");
    let last = names(&disk, &idle).into_iter().rfind(|name| name.ends_with(".log")).unwrap();
    let base = last.trim_end_matches(".log").to_owned();
    let len = |disk: &SimulatedDisk, name: &str| disk.read(&idle.join(name)).unwrap().len() as u64;
    let set_len = |disk: &SimulatedDisk, name: &str, len| {
        disk.open(&idle.join(name), OpenMode::ReadWrite).unwrap().set_len(len).unwrap();
    };
    type Change<'a> = &'a dyn Fn(&SimulatedDisk);
    let index = format!("{base}.index");
    let times = format!("{base}.timeindex");
    let changes: [(&str, Change<'_>); 6] = [
        ("one byte more", &|disk| set_len(disk, &last, len(disk, &last) + 1)),
        ("zeros behind", &|disk| set_len(disk, &last, len(disk, &last) + 512)),
        ("one byte less", &|disk| set_len(disk, &last, len(disk, &last) - 1)),
        ("without times", &|disk| set_len(disk, &times, 0)),
        ("without index", &|disk| disk.remove_file(&idle.join(&index)).unwrap()),
        ("without snapshot", &|disk| {
            disk.remove_file(&idle.join(format!("{:020}.snapshot", 24))).unwrap();
        }),
    ];
    for (what, change) in changes {
        let disk = disk.kill();
        change(&disk);
        let (store, report) = opened_plainly(&disk);
        assert_eq!((report.logs, report.unchecked_logs), (0, 2), "{what}");
        let report = store.recover(&|| {});
        assert_eq!((report.recovered_logs, report.failed.len()), (2, 0), "{what}");
        let end = if what == "one byte less" { 21 } else { 24 };
        assert_eq!(store.get(&tp("idle")).unwrap().log_end_offset(), end, "{what}");
    }
}

/// A stop must not wait for gigabytes, and what was not checked must not be taken for clean.
#[test]
fn a_stop_before_the_recovery_is_no_clean_one() {
    let disk = killed(&SimulatedDisk::new(1));
    let (store, _) = opened_plainly(&disk);
    store.close(None).unwrap();
    assert_eq!(store.recover(&|| {}).unchecked_logs, 1, "a recovery that comes too late does nothing");
    drop(store);
    assert!(!disk.exists(&Path::new(LOGS).join(MARK)).unwrap());
    let (store, report) = opened_plainly(&disk.kill());
    assert_eq!((report.logs, report.unchecked_logs), (1, 1));
    store.recover(&|| {});
    assert_eq!(store.get(&tp("busy")).unwrap().log_end_offset(), 48);
}

#[test]
fn a_partition_that_waits_can_be_deleted_and_made_again() {
    let disk = killed(&SimulatedDisk::new(1));
    let (store, _) = opened_plainly(&disk);
    assert!(store.delete(&tp("busy")).unwrap());
    let log = store.create(&tp("busy"), Uuid([8; 16]), small()).unwrap();
    assert_eq!(log.log_end_offset(), 0);
    let report = store.recover(&|| {});
    assert_eq!((report.recovered_logs, report.unchecked_logs), (0, 0));
    assert!(Arc::ptr_eq(&store.get(&tp("busy")).unwrap(), &log));
    store.close(None).unwrap();
    assert!(disk.exists(&Path::new(LOGS).join(MARK)).unwrap());
}

/// A deletion in the middle of a check must not let it work on in the folder of a new topic of that name.
#[test]
fn a_partition_that_is_being_checked_can_be_deleted_and_made_again() {
    let disk = killed(&SimulatedDisk::new(1));
    let (store, log, report) = during_the_check(&disk, |store| {
        assert!(store.delete(&tp("busy")).unwrap());
        let log = store.create(&tp("busy"), Uuid([8; 16]), small()).unwrap();
        append(&log).unwrap();
        log
    });
    assert_eq!(report.unchecked_logs, 0);
    assert_eq!(offsets(&read_all(&log)), [0, 1, 2]);
    store.close(None).unwrap();
    drop(store);
    assert_eq!(open(&disk, &small()).get(&tp("busy")).unwrap().log_end_offset(), 3);
}

#[test]
fn a_stop_ends_a_check_that_is_under_way() {
    let disk = killed(&SimulatedDisk::new(1));
    let (store, closed, _) = during_the_check(&disk, |store| store.close(None));
    closed.unwrap();
    drop(store);
    let store = open(&disk.kill(), &small());
    assert_eq!(offsets(&read_all(&store.get(&tp("busy")).unwrap())), (0..48).collect::<Vec<_>>());
}

/// `num.recovery.threads.per.data.dir` can be raised while a recovery is under way.
#[test]
fn more_threads_take_part_when_the_setting_is_raised() {
    let disk = SimulatedDisk::new(1);
    let store = open(&disk, &small());
    for index in 0..6 {
        append(&store.create(&TopicPartition::new("many", index), TOPIC_ID, small()).unwrap()).unwrap();
    }
    drop(store);
    let disk = disk.kill();
    let (store, report) = opened_plainly(&disk);
    assert_eq!(report.unchecked_logs, 6);
    let threads = Mutex::new(std::collections::BTreeSet::new());
    let report = store.recover(&|| {
        store.set_recovery_threads(3);
        let mut threads = threads.lock().unwrap();
        threads.insert(format!("{:?}", std::thread::current().id()));
        drop(threads);
        std::thread::sleep(Duration::from_millis(20));
    });
    assert_eq!(report.recovered_logs, 6);
    assert!(threads.lock().unwrap().len() > 1, "one began, and others came");
}

/// A clock on which each look takes some seconds.
struct SlowClock(SimulatedClock);

impl Clock for SlowClock {
    fn now_ms(&self) -> TimestampMs {
        self.0.now_ms()
    }
    fn monotonic(&self) -> Duration {
        self.0.advance(Duration::from_secs(3));
        self.0.monotonic()
    }
}

/// A large recovery says from time to time how far it is and how long it will take, and at the end what it did.
#[test]
fn progress_is_told() {
    let disk = killed(&SimulatedDisk::new(1));
    let store = open(&disk, &small());
    for index in 0..6 {
        append_many(&store.create(&TopicPartition::new("many", index), TOPIC_ID, small()).unwrap(), 9);
    }
    drop(store);
    let disk = disk.kill();
    let mut settings = settings(&disk);
    settings.clock = Arc::new(SlowClock(SimulatedClock::new(NOW)));
    let store = LogStore::open(settings).unwrap();
    let lines = told(|| {
        store.load(&|_| small()).unwrap();
    });
    let progress: Vec<&String> = lines.iter().filter(|line| line.contains("are checked")).collect();
    assert!((2..20).contains(&progress.len()), "{lines:?}");
    assert!(progress[1].contains(" of 7 partitions") && progress[1].contains("s left"), "{}", progress[1]);
    let end = lines.iter().find(|line| line.contains("recovery is done")).unwrap();
    assert!(end.contains("7 partitions") && end.contains("0 bytes were cut off"), "{end}");
}
