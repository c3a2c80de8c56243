//! Data was kept for ever when a kill came between a topic's deletion and that of its folders; and it would be lost
//! if folders were deleted that the metadata merely does not know.

use std::sync::Arc;

use klamm_model::{TopicPartition, Uuid};
use klamm_storage::{LogConfig, StoreSettings};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

use super::*;

const MARK: &str = "/data/klamm-metadata/logs-are-older";

const NODE: klamm_model::NodeId = klamm_model::NodeId(1);

fn open(disk: &SimulatedDisk) -> LogStore {
    let (clock, random) = (Arc::new(SimulatedClock::new(1_000)), Arc::new(SeededRandom::new(1)));
    let dirs = vec![PathBuf::from("/data")];
    LogStore::open(StoreSettings::new(dirs, NODE, Arc::new(disk.clone()), clock, random)).unwrap()
}

fn load(disk: &SimulatedDisk) -> LogStore {
    let store = open(disk);
    store.load(&|_| LogConfig::default()).unwrap();
    store
}

fn partition(topic: &str) -> TopicPartition {
    TopicPartition::new(topic, 0)
}

fn ask(disk: &SimulatedDisk) -> bool {
    may_be_deleted(disk, &[PathBuf::from("/data")], Path::new("/data/klamm-metadata")).unwrap()
}

fn image_without_topics() -> Image {
    Image::empty("cluster")
}

#[test]
fn what_a_deletion_left_goes_at_the_next_start() {
    let disk = SimulatedDisk::new(1);
    let store = load(&disk);
    store.create(&partition("left"), Uuid([7; 16]), LogConfig::default()).unwrap();
    clear(&store, NODE, &image_without_topics(), true);
    assert!(store.get(&partition("left")).is_none());
    assert!(!disk.exists(Path::new("/data/left-0")).unwrap());
}

/// After a kill the left-over would be checked for minutes before it is deleted.
#[test]
fn what_a_deletion_left_goes_without_being_recovered() {
    let disk = SimulatedDisk::new(1);
    let store = load(&disk);
    let log = store.create(&partition("left"), Uuid([7; 16]), LogConfig::default()).unwrap();
    let batch = klamm_records::BatchBuilder::v2(klamm_records::BatchSettings::default());
    let batch = klamm_records::Batch::parse({
        let mut batch = batch;
        batch.append(1, None, Some(b"value"), &[]);
        batch.build()
    });
    log.append_replicated(&[batch.unwrap()]).unwrap();
    drop((store, log));
    let disk = disk.kill();
    let store = open(&disk);
    assert_eq!(store.open_logs(&|_| LogConfig::default()).unwrap().unchecked_logs, 1);
    clear(&store, NODE, &image_without_topics(), false);
    assert_eq!(store.unchecked().len(), 1, "it may not be deleted");
    clear(&store, NODE, &image_without_topics(), true);
    assert!(store.unchecked().is_empty() && !disk.exists(Path::new("/data/left-0")).unwrap());
}

/// A log of an Apache Kafka before 2.8 has no topic id: nothing says that its topic was deleted here.
#[test]
fn a_log_without_a_topic_id_stays() {
    let disk = SimulatedDisk::new(1);
    drop(open(&disk));
    disk.create_dir_all(Path::new("/data/old-0")).unwrap();
    let store = load(&disk);
    assert_eq!(store.get(&partition("old")).unwrap().topic_id(), None);
    clear(&store, NODE, &image_without_topics(), true);
    assert!(store.get(&partition("old")).is_some());
}

/// The metadata's directory was lost, or the directories are a Kafka broker's. Then the new metadata knows no
/// topic, and deleting what it does not know would delete everything, at this start or at the next.
#[test]
fn logs_that_are_older_than_the_metadata_stay_at_every_start() {
    let disk = SimulatedDisk::new(1);
    let store = load(&disk);
    store.create(&partition("old"), Uuid([7; 16]), LogConfig::default()).unwrap();
    let allowed = ask(&disk);
    assert!(!allowed);
    clear(&store, NODE, &image_without_topics(), allowed);
    assert!(store.get(&partition("old")).is_some());
    // The next start finds metadata, and the mark in it; so does one after a power cut.
    disk.replace(Path::new("/data/klamm-metadata/log"), b"records").unwrap();
    assert!(!ask(&disk));
    let after = disk.crash_leaving(klamm_testing::Unsynced::Lost);
    assert!(after.exists(Path::new(MARK)).unwrap() && !ask(&after));
}

#[test]
fn a_new_node_deletes_what_is_left_of_its_own_topics() {
    let disk = SimulatedDisk::new(1);
    drop(open(&disk));
    assert!(ask(&disk), "nothing is there yet");
    assert!(!disk.exists(Path::new(MARK)).unwrap());
    disk.create_dir_all(Path::new("/data/klamm-metadata")).unwrap();
    disk.replace(Path::new("/data/klamm-metadata/log"), b"records").unwrap();
    disk.create_dir_all(Path::new("/data/topic-0")).unwrap();
    assert!(ask(&disk), "the metadata was there before the topic");
}
