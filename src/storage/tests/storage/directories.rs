//! To whom log directories belong, and how partitions come and go in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use klamm_io::{Disk, SystemClock, SystemDisk, SystemRandom};
use klamm_model::{NodeId, TopicPartition, Uuid};
use klamm_storage::{LogConfig, LogStore, Past, StorageErrorKind, StoreSettings, Wanted};
use klamm_testing::{Failure, Fault, GatedDisk, OperationKind, SimulatedDisk};

use crate::support::*;

#[test]
fn a_new_directory_gets_an_identity_and_keeps_it() {
    let disk = SimulatedDisk::new(1);
    let store = LogStore::open(settings(&disk)).unwrap();
    let (cluster, ids) = (store.cluster_id().to_owned(), store.directory_ids());
    assert_eq!(cluster.parse::<Uuid>().unwrap().to_string(), cluster);
    assert_eq!(store.metadata_dir(), Path::new("/logs/klamm-metadata"));
    drop(store);
    // The identity is on the disk before anything else happens.
    let store = LogStore::open(settings(&disk.crash())).unwrap();
    assert_eq!((store.cluster_id(), store.directory_ids()), (cluster.as_str(), ids));
}

#[test]
fn foreign_directories_are_refused() {
    let disk = SimulatedDisk::new(1);
    drop(LogStore::open(StoreSettings { cluster_id: Some("one".to_owned()), ..settings(&disk) }).unwrap());
    let kind = |settings| LogStore::open(settings).err().unwrap().kind;
    let other_cluster = StoreSettings { cluster_id: Some("other".to_owned()), ..settings(&disk) };
    let foreign = |what, found: &str, expected: &str| StorageErrorKind::Foreign {
        what,
        found: found.to_owned(),
        expected: expected.to_owned(),
    };
    assert_eq!(kind(other_cluster), foreign("cluster.id", "one", "other"));
    let other_node = StoreSettings { node_id: NodeId(2), ..settings(&disk) };
    assert_eq!(kind(other_node), foreign("node.id", "1", "2"));
    // Two directories of two clusters cannot be used together, whichever comes first.
    let second = StoreSettings {
        cluster_id: Some("two".to_owned()),
        log_dirs: vec!["/more".into()],
        ..settings(&disk)
    };
    drop(LogStore::open(second).unwrap());
    let both = StoreSettings { log_dirs: vec![LOGS.into(), "/more".into()], ..settings(&disk) };
    assert_eq!(kind(both), foreign("cluster.id", "two", "one"));
    put(&disk, Path::new("/logs/meta.properties"), b"version=2\nnode.id=1\ncluster.id=one\n");
    assert!(matches!(kind(settings(&disk)), StorageErrorKind::UnknownVersion { .. }));
}

/// Others learn the id of a new directory before it belongs to a cluster, so it must outlive a crash. Where only the
/// first directory is new, the node has lost its metadata, whatever the others say.
#[test]
fn a_directory_joins_a_cluster_later_and_keeps_its_id() {
    let disk = SimulatedDisk::new(1);
    let later = |disk: &SimulatedDisk| StoreSettings { joins_later: true, ..settings(disk) };
    let store = LogStore::open(later(&disk)).unwrap();
    assert_eq!((store.cluster_id(), store.wanted_cluster_id()), ("", None));
    store.write_identities().unwrap();
    let ids = store.directory_ids();
    drop(store);
    let disk = disk.crash();
    let store = LogStore::open(later(&disk)).unwrap();
    assert_eq!((store.cluster_id(), store.directory_ids()), ("", ids.clone()));
    store.join_cluster("one").unwrap();
    assert_eq!(store.cluster_id(), "one");
    drop(store);
    let disk = disk.crash();
    let store = LogStore::open(later(&disk)).unwrap();
    assert_eq!((store.cluster_id(), store.directory_ids()), ("one", ids.clone()));
    drop(store);

    let log_dirs = || vec!["/new".into(), LOGS.into()];
    let new_first = || StoreSettings { log_dirs: log_dirs(), random: Arc::new(SystemRandom), ..later(&disk) };
    let store = LogStore::open(new_first()).unwrap();
    assert_eq!((store.cluster_id(), store.wanted_cluster_id()), ("", Some("one")));
    assert_eq!(store.directory_ids()[1].1, ids[0].1);
    store.join_cluster("one").unwrap();
    drop(store);
    assert_eq!(LogStore::open(new_first()).unwrap().cluster_id(), "one");
}

/// Whoever asked for the health of a node in its first moments took its directory offline, and the node ended.
#[test]
fn a_directory_that_has_no_identity_yet_has_not_lost_it() {
    let disk = SimulatedDisk::new(1);
    let store = LogStore::open(settings(&disk)).unwrap();
    let failure = || store.directory_statuses()[0].failure.as_ref().map(ToString::to_string);
    assert_eq!(failure(), None);
    store.write_identities().unwrap();
    assert_eq!(failure(), None);
    disk.remove_file(Path::new("/logs/meta.properties")).unwrap();
    assert!(failure().unwrap().contains("the file is gone"));
}

#[test]
fn partitions_without_identity_are_refused() {
    let disk = SimulatedDisk::new(1);
    disk.create_dir_all(Path::new("/logs/t-0")).unwrap();
    let error = LogStore::open(settings(&disk)).err().unwrap();
    assert!(error.to_string().contains("no meta.properties"), "{error}");
}

#[test]
fn a_directory_is_used_by_one_at_a_time() {
    let disk = SimulatedDisk::new(1);
    let store = LogStore::open(settings(&disk)).unwrap();
    let error = LogStore::open(settings(&disk)).err().unwrap();
    assert_eq!(error.kind, StorageErrorKind::Locked);
    assert!(error.to_string().contains("another process uses this log directory"));
    drop(store);
    LogStore::open(settings(&disk)).unwrap();
}

#[test]
fn a_second_directory_joins_and_new_partitions_go_where_there_are_fewest() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let cluster = store.cluster_id().to_owned();
    append(&log).unwrap();
    store.close(None).unwrap();
    drop((store, log));
    let log_dirs: Vec<PathBuf> = vec![LOGS.into(), "/more".into()];
    let both = || StoreSettings { log_dirs: log_dirs.clone(), ..settings(&disk) };
    let store = LogStore::open(both()).unwrap();
    store.load(&|_| small()).unwrap();
    assert_eq!(store.cluster_id(), cluster);
    for partition in 1..4 {
        store.create(&TopicPartition::new("t", partition), TOPIC_ID, small()).unwrap();
    }
    let counts =
        log_dirs.iter().map(|dir| store.logs().iter().filter(|log| log.dir().starts_with(dir)).count());
    assert_eq!(counts.collect::<Vec<_>>(), [2, 2]);
    store.close(None).unwrap();
    drop(store);
    let store = LogStore::open(both()).unwrap();
    let report = store.load(&|_| small()).unwrap();
    assert_eq!((report.logs, report.recovered_logs), (4, 0));
}

/// Deleting and making a topic again must leave nothing of the old one: no records, no offsets in checkpoints.
#[test]
fn a_partition_made_again_has_nothing_of_the_old_one() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 20);
    log.delete_records_before(40).unwrap();
    log.flush().unwrap();
    store.checkpoint(&[(partition(), 60)]).unwrap();
    assert!(store.delete(&partition()).unwrap());
    assert!(!store.delete(&partition()).unwrap());
    assert_eq!(
        log.read(50, 1, 60, true).unwrap_err().to_string(),
        "read /logs/t-0: the partition was deleted"
    );
    assert!(append(&log).is_err());

    let new_id = Uuid([8; 16]);
    let log = store.create(&partition(), new_id, small()).unwrap();
    append(&log).unwrap();
    assert_eq!(store.high_watermark(&partition()), None);
    drop((store, log));
    let store = open(&disk.kill(), &small());
    let log = store.log();
    assert_eq!((log.log_start_offset(), log.log_end_offset(), log.topic_id()), (0, 3, Some(new_id)));
    assert_eq!(store.high_watermark(&partition()), None);
    // The folder of the old one is removed at last.
    let deleted =
        |disk: &SimulatedDisk| names(disk, Path::new(LOGS)).iter().filter(|n| n.ends_with("-delete")).count();
    let disk = disk.kill();
    let store = {
        drop((store, log));
        open(&disk, &small())
    };
    assert_eq!(deleted(&disk), 1);
    store.run_maintenance(NOW, &|_| None);
    assert_eq!(deleted(&disk), 0);
}

#[test]
fn a_folder_of_another_topic_is_not_taken_over() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let same = store.create(&partition(), TOPIC_ID, LogConfig::default()).unwrap();
    assert!(Arc::ptr_eq(&log, &same));
    assert_eq!(log.config().segment_bytes, 1 << 30, "the settings are taken over");
    let error = store.create(&partition(), Uuid([8; 16]), small()).err().unwrap();
    assert!(matches!(error.kind, StorageErrorKind::InconsistentTopicId { .. }));
    let metadata = disk.read(&folder().join("partition.metadata")).unwrap();
    assert_eq!(metadata, format!("version: 0\ntopic_id: {TOPIC_ID}").as_bytes());
}

/// The same on a real file system, where locks are the kernel's and files have descriptors.
#[test]
fn a_real_disk_does_as_the_simulated_one() {
    let folder = tempfile::tempdir().unwrap();
    let settings = || {
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        StoreSettings::new(vec![folder.path().join("logs")], NodeId(1), Arc::new(SystemDisk), clock, random)
    };
    for round in 0..3 {
        let store = LogStore::open(settings()).unwrap();
        let report = store.load(&|_| small()).unwrap();
        assert_eq!((report.recovered_logs, report.failed.len()), (0, 0));
        let log = store.create(&partition(), TOPIC_ID, small()).unwrap();
        assert_eq!(log.log_end_offset(), round * 60);
        append_many(&log, 20);
        let records = read_all(&log);
        assert_eq!(offsets(&records), (0..round * 60 + 60).collect::<Vec<_>>());
        let slice = log.read(0, 100, 60, true).unwrap().unwrap();
        assert!(slice.file.descriptor().is_some());
        store.close(None).unwrap();
    }
}

/// Tasks of the server may still hold a log when the store is closed. What they append then would stand behind
/// the mark of a clean stop, and be lost.
#[test]
fn a_closed_log_takes_nothing_more() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    store.close(None).unwrap();
    assert_eq!(append(&log).unwrap_err().kind, StorageErrorKind::Closed);
    assert_eq!(log.truncate_to(0).unwrap_err().kind, StorageErrorKind::Closed);
    assert_eq!(log.roll().unwrap_err().kind, StorageErrorKind::Closed);
    assert_eq!(read_all(&log).len(), 3);
}

/// A store that is closed before it was loaded knows nothing, and must not write that down.
#[test]
fn a_store_that_never_loaded_leaves_everything_as_it_is() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 20);
    log.delete_records_before(30).unwrap();
    store.close(None).unwrap();
    drop((store, log));
    let store = LogStore::open(settings(&disk)).unwrap();
    store.checkpoint(&[(partition(), 0)]).unwrap();
    store.close(None).unwrap();
    drop(store);
    let store = open(&disk, &small());
    assert_eq!((store.report.recovered_logs, store.log().log_start_offset()), (0, 30));
}

fn wanted(partitions: std::ops::Range<i32>) -> Vec<Wanted> {
    let wanted = |index| Wanted {
        topic_partition: TopicPartition::new("t", index),
        topic_id: TOPIC_ID,
        config: small(),
        past: Past::None,
    };
    partitions.map(wanted).collect()
}

/// The logs of a topic were made one after the other: with thousands of partitions, each of which waits for the disk, that
/// took many seconds.
#[test]
fn a_log_that_waits_for_the_disk_holds_up_no_other() {
    let disk = SimulatedDisk::new(1);
    let gated = GatedDisk::of_syncs(disk.clone(), "t-0", "tmp");
    let settings = StoreSettings { disk: Arc::new(gated.clone()), recovery_threads: 2, ..settings(&disk) };
    let store = LogStore::open(settings).unwrap();
    store.load(&|_| small()).unwrap();
    let made = std::thread::scope(|scope| {
        let making = scope.spawn(|| store.open_or_make_all(wanted(0..20)));
        gated.await_arrival();
        let is_made =
            |index| disk.exists(&Path::new(LOGS).join(format!("t-{index}/partition.metadata"))).unwrap();
        let begun = std::time::Instant::now();
        while !(1..20).all(is_made) && begun.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        let others = (1..20).all(is_made);
        gated.open_up();
        assert!(others, "the others are made meanwhile");
        making.join().unwrap()
    });
    for (index, log) in made.into_iter().enumerate() {
        let log = log.unwrap();
        assert_eq!((log.topic_partition().partition, log.topic_id()), (index as i32, Some(TOPIC_ID)));
        assert!(Arc::ptr_eq(&log, &store.get(log.topic_partition()).unwrap()));
    }
    drop(store);
    let ids = |disk: &SimulatedDisk| -> Vec<Option<Uuid>> {
        open(disk, &small()).logs().iter().map(|log| log.topic_id()).collect()
    };
    assert_eq!(ids(&disk.kill()), [Some(TOPIC_ID); 20]);
    assert!(
        ids(&disk.crash()).iter().all(|id| *id == Some(TOPIC_ID)),
        "no power cut takes the id of a log that is left"
    );
}

/// New partitions that are made at once are spread as those that come one by one, and one that cannot be made leaves
/// nothing behind and keeps no other from it.
#[test]
fn of_many_new_partitions_each_goes_its_own_way() {
    let disk = SimulatedDisk::new(1);
    let log_dirs: Vec<PathBuf> = vec![LOGS.into(), MORE.into()];
    let store = LogStore::open(StoreSettings { log_dirs, ..settings(&disk) }).unwrap();
    store.load(&|_| small()).unwrap();
    store.wish(&TopicPartition::new("t", 0), Path::new(MORE)).unwrap();
    let full = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Create).on("t-3"));
    let made = store.open_or_make_all(wanted(0..6));
    let places: Vec<Option<PathBuf>> =
        made.iter().map(|log| Some(log.as_ref().ok()?.dir().parent()?.to_owned())).collect();
    let (logs, more) = (Some(PathBuf::from(LOGS)), Some(PathBuf::from(MORE)));
    assert_eq!(places, [more.clone(), logs.clone(), logs.clone(), None, logs.clone(), more]);
    assert_eq!(made[3].as_ref().err().unwrap().kind, StorageErrorKind::DiskFull);
    assert!(!store.has_folder(&TopicPartition::new("t", 3)));
    disk.clear(full);
    let again = store.open_or_make_all(wanted(0..6));
    assert!(again.iter().all(Result::is_ok));
    assert!(Arc::ptr_eq(made[0].as_ref().unwrap(), again[0].as_ref().unwrap()));
}

/// Each of a topic's partitions had the directory synced when it was deleted.
#[test]
fn partitions_that_are_deleted_together_are_synced_together() {
    let disk = SimulatedDisk::new(1);
    let store = open(&disk, &small());
    store.open_or_make_all(wanted(0..50)).into_iter().for_each(|made| drop(made.unwrap()));
    let synced = || disk.operations().iter().filter(|call| call.kind == OperationKind::SyncDir).count();
    let before = synced();
    let names: Vec<TopicPartition> = wanted(0..60).into_iter().map(|one| one.topic_partition).collect();
    let deleted: Vec<bool> = store.delete_all(&names).into_iter().map(Result::unwrap).collect();
    assert_eq!(deleted, (0..60).map(|index| index < 50).collect::<Vec<_>>(), "what was there");
    assert_eq!(synced() - before, 1);
    drop(store);
    assert_eq!(open(&disk.crash(), &small()).logs().len(), 0);
}
