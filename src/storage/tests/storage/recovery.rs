//! What a start does with what the last stop has left.

use std::path::Path;

use klamm_io::{Disk, OpenMode};
use klamm_storage::{Log, LogConfig, LogStore};
use klamm_testing::SimulatedDisk;

use crate::support::*;

/// A log of several segments with producers and an aborted transaction, not closed.
fn filled(disk: &SimulatedDisk) -> (Store, std::sync::Arc<Log>) {
    let (store, log) = with_partition(disk, &small());
    for sequence in 0..10 {
        let offset = log.log_end_offset();
        let data =
            Draft { producer: Some((1, 0, sequence * 3)), is_transactional: true, ..Draft::at(offset) };
        log.append_replicated(&[data.batch(), marker(offset + 3, (1, 0), sequence % 2 == 0)]).unwrap();
        append(&log).unwrap();
    }
    assert!(log.segment_count() > 2);
    (store, log)
}

/// A node whose log lost records while it was stopped said that it had stopped cleanly, so that it was elected, and what
/// it had acknowledged was gone.
#[test]
fn a_log_that_changed_after_a_clean_stop_is_counted() {
    let folder = Path::new(LOGS).join(partition().to_string());
    let last = |disk: &SimulatedDisk| {
        let names = disk.read_dir(&folder).unwrap().into_iter().map(|entry| entry.name);
        folder.join(names.filter(|name| name.ends_with(".log")).max().unwrap())
    };
    let cut = |disk: &SimulatedDisk| {
        let file = disk.open(&last(disk), OpenMode::ReadWrite).unwrap();
        file.set_len(file.len().unwrap() - 1).unwrap();
    };
    let empty =
        |disk: &SimulatedDisk| disk.open(&last(disk), OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
    let remove = |disk: &SimulatedDisk| disk.remove_dir_all(&folder).unwrap();
    let nothing: &dyn Fn(&SimulatedDisk) = &|_| {};
    let changes =
        [("nothing", nothing, 0), ("cut", &cut, 1), ("emptied", &empty, 1), ("removed", &remove, 1)];
    for (how, change, changed) in changes {
        let disk = SimulatedDisk::new(1);
        let (store, log) = filled(&disk);
        store.close(Some(42)).unwrap();
        drop((store, log));
        let disk = disk.kill();
        change(&disk);
        let store = LogStore::open(settings(&disk)).unwrap();
        assert_eq!(store.previous_broker_epoch(), Some(42), "{how}");
        assert_eq!(store.open_logs(&|_| small()).unwrap().changed_logs.len(), changed, "{how}");
    }
}

/// The machine stopped while the last batch was written: any number of its bytes may be there.
#[test]
fn a_torn_last_batch_is_cut_at_every_byte() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = filled(&disk);
    let end = log.log_end_offset();
    let last = Draft { producer: Some((9, 0, 0)), ..Draft::at(end) }.batch();
    let before = read_all(&log);
    let producers = log.producers();
    log.append_replicated(std::slice::from_ref(&last)).unwrap();
    let path = folder().join(format!("{:020}.log", log.segment_offsets().last().unwrap()));
    let size = disk.read(&path).unwrap().len();
    let stopped = disk.kill();
    for cut in 0..last.bytes.len() {
        let disk = stopped.kill();
        let whole = size - last.bytes.len();
        disk.open(&path, klamm_io::OpenMode::ReadWrite).unwrap().set_len((whole + cut) as u64).unwrap();
        let store = open(&disk, &small());
        assert_eq!(store.report.cut_bytes, cut as u64);
        let log = store.log();
        assert_eq!(log.log_end_offset(), end, "cut at {cut}");
        assert_eq!(read_all(&log), before);
        assert_eq!(log.producers(), producers, "the producers do not know the torn batch");
        assert_eq!(disk.read(&path).unwrap().len(), whole);
        // And it goes on from there.
        log.append_replicated(std::slice::from_ref(&last)).unwrap();
        assert_eq!(read_all(&log).len(), before.len() + 3);
    }
}

/// A damaged first segment ends the log there, but the whole segments behind it may be all that somebody has.
#[test]
fn segments_behind_the_cut_are_kept_beside_the_log() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = filled(&disk);
    let bases = log.segment_offsets();
    let file = |base: i64, suffix: &str| folder().join(format!("{base:020}{suffix}"));
    let stopped = disk.kill();
    let behind = stopped.read(&file(bases[1], ".log")).unwrap();
    stopped.flip_bits(file(bases[0], ".log"), 70, 1).unwrap();
    let log = open(&stopped, &small()).log();
    assert!(log.log_end_offset() < bases[1]);
    assert!(!stopped.exists(&file(bases[1], ".log")).unwrap());
    assert_eq!(stopped.read(&file(bases[1], ".log.cut")).unwrap(), behind);
    append(&log).unwrap();
    drop(log);
    let again = open(&stopped.kill(), &small()).log();
    assert!(again.log_end_offset() < bases[1], "what was set aside does not come back by itself");
}

/// Decay in the middle of the last segment looks at first like the torn end of a write, and cutting there took every
/// acknowledged record behind it with it for good.
#[test]
fn whole_batches_behind_a_damaged_one_are_kept_beside_the_log() {
    for damaged_byte in [8u64, 10, 16, 30, 100] {
        let disk = SimulatedDisk::new(1);
        let (_store, log) = with_partition(&disk, &LogConfig { segment_bytes: 1 << 20, ..small() });
        append_many(&log, 9);
        let path = folder().join(format!("{:020}.log", 0));
        let content = disk.read(&path).unwrap();
        let batch_bytes = content.len() as u64 / 9;
        let disk = disk.kill();
        disk.flip_bits(&path, 4 * batch_bytes + damaged_byte, 0x40).unwrap();
        let damaged = disk.read(&path).unwrap();
        let store = open(&disk, &small());
        assert_eq!(offsets(&read_all(&store.log())), (0..12).collect::<Vec<_>>(), "byte {damaged_byte}");
        let cut = 4 * batch_bytes;
        let kept = disk.read(&folder().join(format!("{:020}.{cut}.log.cut", 0))).unwrap();
        assert!(kept == damaged[cut as usize..], "byte {damaged_byte}: all that follows is kept as it was");
        append(&store.log()).unwrap();
        drop(store);
        assert_eq!(
            open(&disk.kill(), &small()).log().log_end_offset(),
            15,
            "it does not come back by itself"
        );
    }
}

/// Offsets are not covered by the checksum. A batch that goes back would give one offset two values.
#[test]
fn a_batch_with_an_offset_of_the_past_ends_the_log() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig { segment_bytes: 1 << 20, ..small() });
    append_many(&log, 3);
    let path = folder().join(format!("{:020}.log", 0));
    let batch_bytes = disk.read(&path).unwrap().len() as u64 / 3;
    let disk = disk.kill();
    disk.flip_bits(&path, 2 * batch_bytes + 7, 0x06).unwrap();
    assert_eq!(open(&disk, &small()).log().log_end_offset(), 6);
}

/// An index that is lost makes recovery begin below the recovery point. Stopped in the middle, it left half an index
/// that nobody looked at again: read_committed readers saw aborted records.
#[test]
fn an_interrupted_recovery_below_the_recovery_point_is_begun_again() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    let aborted = |log: &Log| log.aborted_transactions(0, 1000).unwrap();
    let (before, records) = (aborted(&log), read_all(&log));
    let second = log.segment_offsets()[1];
    store.close(None).unwrap();
    drop((store, log));
    disk.remove_file(&folder().join(format!("{second:020}.timeindex"))).unwrap();
    for changes in 0..200 {
        for is_kill in [true, false] {
            let stopped = disk.kill();
            stopped.crash_after(changes);
            let opened = try_open(&stopped, &small());
            if opened.is_ok_and(|store| store.report.failed.is_empty()) && !stopped.is_down() && is_kill {
                assert!(changes > 10, "the recovery changes files");
                return;
            }
            let stopped = if is_kill { stopped.kill() } else { stopped.crash() };
            let store = open(&stopped, &small());
            assert_eq!(aborted(&store.log()), before, "{changes} {is_kill}");
            assert_eq!(read_all(&store.log()), records);
        }
    }
    panic!("a recovery of some segments has fewer than 200 changes");
}

/// Any bit of the last batch may have turned over, or be from a sector that was never written.
#[test]
fn a_flipped_bit_in_the_last_batch_cuts_it() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = filled(&disk);
    let end = log.log_end_offset();
    let last = Draft { value_bytes: 1, ..Draft::at(end) }.batch();
    log.append_replicated(std::slice::from_ref(&last)).unwrap();
    let path = folder().join(format!("{:020}.log", log.segment_offsets().last().unwrap()));
    let whole = disk.read(&path).unwrap().len() - last.bytes.len();
    let stopped = disk.kill();
    for byte in 0..last.bytes.len() {
        // The leader epoch (bytes 12 to 15) and the base offset are not covered by the checksum.
        if byte < 8 || (12..16).contains(&byte) {
            continue;
        }
        for bit in 0..8 {
            let disk = stopped.kill();
            disk.flip_bits(&path, (whole + byte) as u64, 1 << bit).unwrap();
            let store = open(&disk, &small());
            assert_eq!(store.log().log_end_offset(), end, "bit {bit} of byte {byte}");
            assert!(store.report.cut_bytes > 0);
        }
    }
}

/// Decay in an earlier, not yet synced segment: what follows it cannot stay, or there would be a gap.
#[test]
fn segments_behind_a_broken_batch_go() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = filled(&disk);
    let second = log.segment_offsets()[1];
    let disk = disk.kill();
    disk.flip_bits(folder().join(format!("{second:020}.log")), 100, 1).unwrap();
    let store = open(&disk, &small());
    let log = store.log();
    assert_eq!(log.log_end_offset(), second);
    assert_eq!(log.segment_offsets(), [0, second]);
    assert_eq!(files(&disk, &folder(), ".log").len(), 2);
    assert!(
        files(&disk, &folder(), ".snapshot")
            .iter()
            .all(|(name, _)| *name <= format!("{second:020}.snapshot"))
    );
    append(&log).unwrap();
    assert_eq!(offsets(&read_all(&log)), (0..second + 3).collect::<Vec<_>>());
}

/// What was synced before the recovery point is not read again: a start takes the time of what was written
/// since, not of all there is.
#[test]
fn recovery_begins_at_the_recovery_point() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    log.flush().unwrap();
    store.checkpoint(&[(partition(), 70)]).unwrap();
    append(&log).unwrap();
    let (end, producers) = (log.log_end_offset(), log.producers());
    let active = *log.segment_offsets().last().unwrap();
    let disk = disk.kill();
    // Nobody looks at the first segment, so nobody minds what is in it.
    disk.flip_bits(folder().join(format!("{:020}.log", 0)), 100, 1).unwrap();
    let store = open(&disk, &small());
    assert_eq!(store.report.cut_bytes, 0);
    assert!(store.report.scanned_bytes <= 1500 && store.log().log_end_offset() == end);
    let scanned = format!("{active:020}.log");
    let reads =
        disk.operations().into_iter().filter(|o| o.kind == klamm_testing::OperationKind::Read && o.len > 0);
    let logs = reads.filter(|read| read.path.extension().is_some_and(|end| end == "log"));
    assert!(logs.map(|read| read.path).all(|path| path.ends_with(&scanned)));
    assert_eq!(store.high_watermark(&partition()), Some(70));
    // Of older batches the snapshot keeps one a producer.
    let last =
        |producers: &[klamm_storage::ProducerState]| producers[0].batches.back().map(|b| b.last_sequence);
    assert_eq!(last(&store.log().producers()), last(&producers));
}

/// A broker registers before it opens its logs. When the epoch of its clean stop was not known by then, all that it had
/// acknowledged counted as lost: it was no eligible leader any more.
#[test]
fn the_epoch_of_a_clean_stop_is_known_before_the_logs_are_opened() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    store.close(Some(42)).unwrap();
    drop((store, log));
    let store = LogStore::open(settings(&disk)).unwrap();
    assert_eq!(store.previous_broker_epoch(), Some(42));
    drop(store);
    // Looking has changed nothing; opening the logs has.
    let store = open(&disk, &small());
    assert_eq!(store.previous_broker_epoch(), Some(42));
    drop(store);
    let store = LogStore::open(settings(&disk.kill())).unwrap();
    assert_eq!(store.previous_broker_epoch(), None);
}

#[test]
fn a_clean_restart_reads_only_the_end_of_the_log() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    let (before, producers) = (read_all(&log), log.producers());
    store.close(Some(42)).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let store = open(&disk, &small());
    assert_eq!((store.report.recovered_logs, store.report.logs), (0, 1));
    let tail = log_bytes_read(&disk);
    assert!(tail <= 1500, "only the end of the last segment is looked at: {tail} bytes");
    let counters = disk.counters();
    let log = store.log();
    assert_eq!(store.previous_broker_epoch(), Some(42));
    assert_eq!(log.recovery_point(), log.log_end_offset());
    let sequences = |producers: &[klamm_storage::ProducerState]| producers[0].last_sequence();
    assert_eq!(sequences(&log.producers()), sequences(&producers));
    // The mark is gone: a second start after a kill must not trust it.
    assert!(!disk.exists(&Path::new(LOGS).join(".kafka_cleanshutdown")).unwrap());
    assert!(counters.changes() <= 3, "a clean restart changes nothing but the mark: {counters:?}");
    assert_eq!(read_all(&log), before);
    append(&log).unwrap();
    drop((store, log));
    let store = open(&disk.kill(), &small());
    assert_eq!(store.report.recovered_logs, 1);
    assert_eq!(read_all(&store.log()).len(), before.len() + 3);
}

/// A checkpoint can be from another time than the files, after a restore from a backup.
#[test]
fn a_recovery_point_that_contradicts_the_files_is_not_believed() {
    for lie in ["t 0 0", "t 0 3", "t 0 100000"] {
        let disk = SimulatedDisk::new(1);
        let (store, log) = filled(&disk);
        let end = log.log_end_offset();
        store.close(None).unwrap();
        drop((store, log));
        let path = Path::new(LOGS).join("recovery-point-offset-checkpoint");
        put(&disk, &path, format!("0\n1\n{lie}\n").as_bytes());
        let store = open(&disk, &small());
        assert_eq!(store.log().log_end_offset(), end, "{lie}");
    }
}

#[test]
fn lost_indexes_and_epochs_are_made_again() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    let before = (read_all(&log), log.leader_epochs(), log.aborted_transactions(0, 1000).unwrap());
    store.close(None).unwrap();
    drop((store, log));
    let all = |disk: &SimulatedDisk| [".index", ".timeindex", ".txnindex"].map(|s| files(disk, &folder(), s));
    let indexes = all(&disk);
    for suffix in [".index", ".timeindex"] {
        let disk = disk.kill();
        for (name, _) in files(&disk, &folder(), suffix) {
            disk.remove_file(&folder().join(name)).unwrap();
        }
        let store = open(&disk, &small());
        let log = store.log();
        assert_eq!((read_all(&log), log.leader_epochs(), log.aborted_transactions(0, 1000).unwrap()), before);
        store.close(None).unwrap();
        assert_eq!(all(&disk), indexes);
    }
    // After a power cut the file of the epochs may hold anything.
    let disk = disk.kill();
    disk.remove_file(&Path::new(LOGS).join(".kafka_cleanshutdown")).unwrap();
    put(&disk, &folder().join("leader-epoch-checkpoint"), &[0; 12]);
    assert_eq!(open(&disk, &small()).log().leader_epochs(), before.1);
}

/// Indexes that lie (decay, a bug of long ago) cost time, never records.
#[test]
fn wrong_index_entries_lose_no_record() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    let before = read_all(&log);
    store.close(None).unwrap();
    drop((store, log));
    for flipped in [3u64, 6, 7] {
        let disk = disk.kill();
        for (name, content) in files(&disk, &folder(), ".index") {
            for entry in 0..content.len() as u64 / 8 {
                disk.flip_bits(folder().join(&name), entry * 8 + flipped, 0x15).unwrap();
            }
        }
        let store = open(&disk, &small());
        let log = store.log();
        for record in &before {
            assert_eq!(offsets(&read_from(&log, record.offset, 1))[0], record.offset);
        }
    }
}

#[test]
fn what_a_cleaner_or_a_deletion_left_half_done_is_put_in_order() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = filled(&disk);
    let bases = log.segment_offsets();
    let before = read_all(&log);
    store.close(None).unwrap();
    drop((store, log));
    // A cleaner had merged the first two segments and was renaming the result when the process was killed.
    let name = |offset: i64, suffix: &str| folder().join(format!("{offset:020}{suffix}"));
    let merged =
        [disk.read(&name(bases[0], ".log")).unwrap(), disk.read(&name(bases[1], ".log")).unwrap()].concat();
    put(&disk, &name(bases[0], ".log.swap"), &merged);
    put(&disk, &name(bases[2], ".log.cleaned"), b"unfinished");
    put(&disk, &name(bases[1], ".index.deleted"), b"");
    put(&disk, &name(12345, ".timeindex"), b"an orphan");
    let store = open(&disk, &small());
    let log = store.log();
    assert_eq!(read_all(&log), before);
    assert_eq!(log.segment_offsets()[..2], [bases[0], bases[2]]);
    let left = names(&disk, &folder()).join(" ");
    assert!(
        !left.contains("swap")
            && !left.contains("cleaned")
            && !left.contains("deleted")
            && !left.contains("12345"),
        "{left}"
    );
}

/// Preallocated files end in zeros after a kill; they are no batches.
#[test]
fn a_preallocated_segment_is_cut_to_its_batches() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig { preallocate: true, ..small() };
    let (_store, log) = with_partition(&disk, &config);
    append_many(&log, 12);
    let before = read_all(&log);
    let store = open(&disk.kill(), &config);
    assert_eq!(read_all(&store.log()), before);
    assert!(store.report.cut_bytes > 0);
}

/// Several logs at once, on several threads, give the same as one after the other.
#[test]
fn many_logs_recover_on_several_threads() {
    let disk = SimulatedDisk::new(1);
    let store = open(&disk, &small());
    for index in 0..20 {
        let tp = klamm_model::TopicPartition::new("many", index);
        let log = store.create(&tp, TOPIC_ID, small()).unwrap();
        append_many(&log, index + 1);
    }
    drop(store);
    let disk = disk.kill();
    let mut settings = settings(&disk);
    settings.recovery_threads = 4;
    let store = LogStore::open(settings).unwrap();
    let report = store.load(&|_| small()).unwrap();
    assert_eq!((report.logs, report.recovered_logs, report.cut_bytes), (20, 20, 0));
    for log in store.logs() {
        assert_eq!(log.log_end_offset(), 3 * i64::from(log.topic_partition().partition + 1));
    }
}
