//! The log storage against openraft's own suite, and against crashes.

use std::path::Path;
use std::sync::Arc;

use klamm_io::Disk;
use klamm_model::{NodeId, Uuid};
use klamm_protocol::records::cluster_metadata::FeatureLevelRecord;
use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, StorageError};
use tokio::sync::watch;

use super::disk_thread::DiskThread;
use super::entry::log_id;
use super::log::LogStore;
use super::log_file::LogFile;
use super::replica_key::ReplicaKey;
use super::state_machine::StateMachine;
use super::{Batch, Entry, Runtime, TypeConfig, Vote};
use crate::image::Image;

struct OnSimulatedDisk;

impl StoreBuilder<TypeConfig, LogStore, StateMachine> for OnSimulatedDisk {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        let (dir, thread) = (Path::new("/meta"), DiskThread::inline());
        disk.create_dir_all(dir).unwrap();
        let log = LogStore::open(&disk, &thread, dir, 0).unwrap();
        let (published, _) = watch::channel(Arc::new(Image::empty("suite")));
        let machine = StateMachine::open(&disk, &thread, dir, "suite", published, 0).unwrap();
        Ok(((), log, machine))
    }
}

#[test]
fn openrafts_own_suite_accepts_the_storage() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let suite = Suite::<TypeConfig, LogStore, StateMachine, OnSimulatedDisk, ()>::test_all(OnSimulatedDisk);
    runtime.block_on(Runtime::scope(1, suite)).unwrap();
}

fn entries(count: u64) -> Vec<Entry> {
    let record = |index: u64| {
        let name = format!("feature-{index}");
        FeatureLevelRecord { name, feature_level: index as i16 }.into()
    };
    let batch =
        |index| Batch { based_on: index as i64 - 1, records: vec![record(index); 1 + index as usize % 3] };
    (0..count)
        .map(|index| Entry::new(log_id(1 + index / 4, index), EntryPayload::Normal(batch(index))))
        .collect()
}

fn voter() -> ReplicaKey {
    ReplicaKey::new(NodeId(7), Uuid([7; 16]))
}

fn read_all(log: &LogFile) -> Vec<Entry> {
    log.read(0, u64::MAX).unwrap()
}

/// A crash may leave any beginning of what was being written, and zeros or old bytes behind it. Whatever is
/// left, the whole entries before it must be there, and the log must go on behind them.
#[test]
fn a_torn_tail_is_cut_off_at_every_byte() {
    let written = entries(6);
    let path = Path::new("/log");
    for garbage in [&b""[..], &[0; 40], &[0xff; 40]] {
        let mut cut_at = 36;
        loop {
            let disk = SimulatedDisk::new(1);
            let mut log = LogFile::open(&disk, path, 0).unwrap().log;
            let mut ends = vec![36];
            for entry in &written {
                log.append(std::slice::from_ref(entry)).unwrap();
                ends.push(log.file().len().unwrap());
            }
            if cut_at > ends[6] {
                break;
            }
            let intact = disk.read(path).unwrap();
            log.file().set_len(cut_at).unwrap();
            log.file().write_all_at(&[garbage], cut_at).unwrap();
            // A zero in the garbage may be the very byte that was lost.
            let left = disk.read(path).unwrap();
            let is_whole = |end: &&u64| left.starts_with(&intact[..**end as usize]);
            let whole = ends.iter().filter(is_whole).count() - 1;
            let opened = LogFile::open(&disk, path, 0).unwrap();
            assert_eq!(read_all(&opened.log), written[..whole], "cut at {cut_at}");
            assert_eq!(opened.tail, cut_at + garbage.len() as u64 - ends[whole]);
            assert_eq!(opened.witness, None, "cut at {cut_at}");
            let mut log = opened.log;
            log.cut_tail().unwrap();
            log.append(&written[whole..]).unwrap();
            assert_eq!(read_all(&LogFile::open(&disk, path, 0).unwrap().log), written, "cut at {cut_at}");
            cut_at += 1;
        }
    }
}

/// A quorum that fails ends the broker: while the disk is full, the log, the vote and the hint of what was
/// committed must wait for space, or do without, and a node that stops must not wait for ever.
#[test]
fn a_full_disk_is_waited_for_until_the_node_stops() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(Runtime::scope(1, async {
        let simulated = SimulatedDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        let (dir, thread) = (Path::new("/"), DiskThread::inline());
        let mut store = LogStore::open(&disk, &thread, dir, 0).unwrap();
        for (name, times) in [("/log", 3), ("/vote", 3), ("/committed", 1)] {
            simulated.inject(Fault::new(Failure::NoSpace).on(name).times(times));
        }
        store.blocking_append(entries(3)).await.unwrap();
        store.save_committed(Some(log_id(1, 2))).await.unwrap();
        store.save_vote(&Vote::new_committed(1, voter())).await.unwrap();
        drop(store);
        let mut store = LogStore::open(&disk, &thread, dir, 0).unwrap();
        assert_eq!(store.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 2)));
        assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new_committed(1, voter())));

        simulated.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write));
        thread.close();
        let error = store.blocking_append(entries(4).split_off(3)).await.unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
    }));
}

/// Damage to what was acknowledged is no torn tail: starting without it would break what was promised.
#[test]
fn damage_below_what_was_committed_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(Runtime::scope(1, async {
        let simulated = SimulatedDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        let dir = Path::new("/");
        let mut store = LogStore::open(&disk, &DiskThread::inline(), dir, 0).unwrap();
        store.blocking_append(entries(6)).await.unwrap();
        store.save_committed(Some(log_id(2, 5))).await.unwrap();
        let position = disk.read(Path::new("/log")).unwrap().len() as u64 - 3;
        simulated.flip_bits("/log", position, 1).unwrap();
        let damaged = disk.read(Path::new("/log")).unwrap();
        let error = LogStore::open(&disk, &DiskThread::inline(), dir, 0).err().unwrap().to_string();
        assert!(error.contains("entry 5 was acknowledged, and the last whole one is 4"), "{error}");
        assert_eq!(disk.read(Path::new("/log")).unwrap(), damaged, "it must not be touched");
    }));
}

/// One damaged bit in an early entry must not throw away all that follows: also where the hint of what was
/// committed is lost, a later entry tells, and the file stays as it is, to be rescued.
#[test]
fn damage_before_a_later_entry_is_refused_and_changes_nothing() {
    let path = Path::new("/log");
    let ends = {
        let disk = SimulatedDisk::new(1);
        let mut log = LogFile::open(&disk, path, 0).unwrap().log;
        let append = |entry: &Entry| {
            log.append(std::slice::from_ref(entry)).unwrap();
            log.file().len().unwrap()
        };
        entries(6).iter().map(append).collect::<Vec<_>>()
    };
    for position in 36..ends[4] {
        let simulated = SimulatedDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        LogFile::open(&*disk, path, 0).unwrap().log.append(&entries(6)).unwrap();
        simulated.flip_bits("/log", position, 1).unwrap();
        let damaged = disk.read(path).unwrap();
        let error = LogStore::open(&disk, &DiskThread::inline(), Path::new("/"), 0).err();
        let error = error.unwrap_or_else(|| panic!("damage at {position} is not noticed")).to_string();
        assert!(error.contains("builds on entries that are damaged"), "{error}");
        assert_eq!(disk.read(path).unwrap(), damaged, "damage at {position}");
    }
}

/// Two entries that were under way at once may be left as the second alone. Neither was acknowledged: the node
/// must start.
#[test]
fn a_torn_entry_before_a_whole_one_that_does_not_build_on_it_is_cut_off() {
    let simulated = SimulatedDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
    let path = Path::new("/log");
    let mut log = LogFile::open(&*disk, path, 0).unwrap().log;
    log.append(&entries(2)).unwrap();
    let torn_at = log.file().len().unwrap();
    let under_way = Batch { based_on: 1, records: vec![] };
    log.append(&[
        Entry::new(log_id(1, 2), EntryPayload::Blank),
        Entry::new(log_id(1, 3), EntryPayload::Normal(under_way)),
    ])
    .unwrap();
    simulated.flip_bits("/log", torn_at + 10, 1).unwrap();
    LogStore::open(&disk, &DiskThread::inline(), Path::new("/"), 0).unwrap();
    assert_eq!(disk.read(path).unwrap().len() as u64, torn_at);
}

/// A disk that changes bytes under a running node must not get them applied.
#[test]
fn an_entry_that_changed_on_the_disk_is_not_read() {
    let disk = SimulatedDisk::new(1);
    let mut log = LogFile::open(&disk, Path::new("/log"), 0).unwrap().log;
    log.append(&entries(3)).unwrap();
    disk.flip_bits("/log", log.file().len().unwrap() - 1, 0x80).unwrap();
    assert_eq!(log.read(0, 2).unwrap(), entries(2));
    assert!(log.read(0, 3).unwrap_err().to_string().contains("entry 2 has a wrong checksum"));
}

/// What goes to another member at once must fit into one message, however much it lacks.
#[test]
fn a_member_is_sent_entries_up_to_a_size_and_one_at_least() {
    let disk = SimulatedDisk::new(1);
    let mut log = LogFile::open(&disk, Path::new("/log"), 0).unwrap().log;
    let mut ends = vec![log.file().len().unwrap()];
    for entry in entries(5) {
        log.append(&[entry]).unwrap();
        ends.push(log.file().len().unwrap());
    }
    let two = ends[3] - ends[1];
    assert_eq!(log.read_some(1, 5, two).unwrap(), entries(3)[1..]);
    assert_eq!(log.read_some(1, 5, two - 1).unwrap(), entries(2)[1..]);
    assert_eq!(log.read_some(1, 5, 1).unwrap(), entries(2)[1..]);
    assert_eq!(log.read_some(1, 5, u64::MAX).unwrap(), entries(5)[1..]);
}

#[test]
fn purged_and_truncated_logs_open_as_they_were_left() {
    let disk = SimulatedDisk::new(1);
    let path = Path::new("/log");
    let mut log = LogFile::open(&disk, path, 0).unwrap().log;
    log.append(&entries(10)).unwrap();
    log.truncate_after(Some(log_id(2, 7))).unwrap();
    let log = log.without(&disk, log_id(1, 2)).unwrap();
    assert_eq!(read_all(&log), entries(8)[3..]);
    let mut log = LogFile::open(&disk, path, 0).unwrap().log;
    assert_eq!((log.purged(), log.last()), (Some(log_id(1, 2)), Some(log_id(2, 7))));
    assert_eq!(read_all(&log), entries(8)[3..]);
    log.truncate_after(Some(log_id(1, 2))).unwrap();
    assert_eq!((log.last(), read_all(&log)), (Some(log_id(1, 2)), vec![]));
}

#[test]
fn a_batch_reads_back_from_its_text() {
    let entry = entries(3).remove(2);
    let text = serde_json::to_string(&entry).unwrap();
    assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
    let damaged = text.replacen("00", "0x", 1);
    assert!(serde_json::from_str::<Entry>(&damaged).is_err());
}

/// openraft's suite numbers its members.
impl From<u64> for ReplicaKey {
    fn from(number: u64) -> ReplicaKey {
        ReplicaKey::new(NodeId(number as i32), Uuid::ZERO)
    }
}
