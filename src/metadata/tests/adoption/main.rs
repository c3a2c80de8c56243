//! Directories that real Apache Kafka wrote are taken over: what is read from them, what is refused, and what a
//! crash leaves.
#![allow(clippy::disallowed_methods)]

#[path = "../joining/mod.rs"]
mod joining;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use klamm_io::Disk;
use klamm_metadata::{Broker, ConfigResource, Image, PartitionState, Topic, adoption};
use klamm_model::{LeaderEpoch, NodeId, ProducerId, Uuid};
use klamm_protocol::records::cluster_metadata::{
    AbortTransactionRecord, AccessControlEntryRecord, BeginTransactionRecord, ConfigRecord,
    EndTransactionRecord, FeatureLevelRecord, MetadataRecord, PartitionRecord, RegisterBrokerRecord,
    TopicRecord,
};
use klamm_protocol::records::control::leader_change_message::Voter;
use klamm_storage::{Keeper, LogStore};
use klamm_testing::{SimulatedDisk, Unsynced};

use stage::*;

fn check_topics(image: &Image, version: &str) {
    let topics = [("__consumer_offsets", 2), ("__transaction_state", 2), ("alpha", 2), ("beta.with_dots", 1)];
    let found: Vec<(&str, usize)> =
        image.topic_ids.iter().map(|(name, id)| (&**name, image.topics[id].partitions.len())).collect();
    assert_eq!(found, topics, "{version}");
    for topic in image.topics.values() {
        for state in &topic.partitions {
            assert_eq!((&state.replicas[..], &state.isr[..]), (&[NODE][..], &[NODE][..]), "{version}");
        }
    }
    let config = |topic: &str, key: &str| image.topic_config(topic).get(key).cloned();
    assert_eq!(config("__consumer_offsets", "cleanup.policy").as_deref(), Some("compact"), "{version}");
    assert_eq!(config("__transaction_state", "cleanup.policy").as_deref(), Some("compact"), "{version}");
    assert_eq!(config("alpha", "retention.ms").as_deref(), Some("-1"), "{version}");
}

#[test]
fn kraft_directories_bring_topics_settings_features_and_ids() {
    for (version, metadata_version, end, alpha) in [
        ("4.4", 33, 184, Some("2r5ug5U4SnShtLB6oTD0zA")),
        ("3.9", 21, 96, None),
        ("4.4-killed", 33, 91, None),
    ] {
        let disk = fixture(version);
        let before = files(&disk);
        let store = open(&disk).unwrap();
        assert_eq!(store.keeper(), Keeper::KafkaWithKraft);
        let adoption = plan(&store, &disk).unwrap();
        assert_eq!(files(&disk), before, "{version}: a plan must write nothing");
        let image = adoption.image();
        check_topics(image, version);
        assert_eq!(image.offset, end - 1, "{version}");
        assert_eq!(image.feature("metadata.version"), metadata_version, "{version}");
        assert_eq!(image.next_producer_id, 1000, "{version}");
        if let Some(alpha) = alpha {
            assert_eq!(image.topic_ids["alpha"].to_string(), alpha);
            assert_eq!(image.feature("transaction.version"), 2);
            let cluster = image.config_of(&ConfigResource::Broker(None));
            assert_eq!(cluster.get("min.insync.replicas").map(String::as_str), Some("1"));
        }
        let report = adoption.report().join("\n");
        assert!(report.contains("topics: 4, partitions: 7"), "{report}");
        assert!(adoption.warnings().is_empty() && !adoption.has_unknown_folders(), "{version}");
    }
}

/// The defaults would delete records of 2023 at once, and nobody would have asked for it.
#[test]
fn a_zookeeper_directory_brings_its_topics_and_nothing_of_them_may_be_deleted() {
    let disk = fixture("2.8");
    let before = files(&disk);
    let store = open(&disk).unwrap();
    assert_eq!(store.keeper(), Keeper::KafkaWithZookeeper);
    let adoption = plan(&store, &disk).unwrap();
    assert_eq!(files(&disk), before, "a plan must write nothing");
    let image = adoption.image();
    check_topics(image, "2.8");
    for topic in ["alpha", "beta.with_dots"] {
        let configs = image.topic_config(topic);
        assert_eq!(configs["cleanup.policy"], "delete");
        assert_eq!(configs["retention.bytes"], "-1");
        let id: Uuid = image.topic_ids[topic];
        // This version wrote partition.metadata already, and its ids are kept.
        let written = disk.read(&Path::new(LOGS).join(format!("{topic}-0/partition.metadata")));
        if let Ok(written) = written {
            assert!(String::from_utf8(written).unwrap().contains(&id.to_string()));
        }
    }
    // Two idempotent producers wrote, and none that comes may get the id of one of them.
    let highest = ["alpha-0", "alpha-1"].map(|folder| {
        let folders = store.partition_folders().unwrap();
        let folder = folders.iter().find(|found| found.path.ends_with(folder)).unwrap().clone();
        store.inspect(&folder).unwrap().highest_producer_id
    });
    assert!(highest.iter().any(|id| *id > Some(ProducerId(0))), "{highest:?}");
    assert!(highest.iter().all(|id| id.is_none_or(|id| id.0 + 1000 < image.next_producer_id)));
    let warnings = adoption.warnings().join("\n");
    assert!(
        warnings.contains("access control entries") && warnings.contains("alpha, beta.with_dots"),
        "{warnings}"
    );
}

fn topic(name: &str, id: u8) -> MetadataRecord {
    TopicRecord { name: name.to_owned(), topic_id: Uuid([id; 16]) }.into()
}

fn partition(topic_id: u8, replicas: &[i32], directory: Uuid) -> MetadataRecord {
    PartitionRecord {
        partition_id: 0,
        topic_id: Uuid([topic_id; 16]),
        replicas: replicas.to_vec(),
        isr: replicas.to_vec(),
        directories: vec![directory; replicas.len()],
        leader: replicas[0],
        ..Default::default()
    }
    .into()
}

fn feature(name: &str, feature_level: i16) -> MetadataRecord {
    FeatureLevelRecord { name: name.to_owned(), feature_level }.into()
}

#[test]
fn what_cannot_be_taken_over_is_refused_with_the_reason_and_nothing_is_written() {
    let broker = |broker_id| RegisterBrokerRecord { broker_id, ..Default::default() }.into();
    let known = feature("metadata.version", 33);
    for (records, message) in [
        (vec![feature("metadata.version", 34)], "its metadata.version is 34, and this Klamm knows up to 33"),
        (vec![feature("teleport.version", 1)], "it uses the feature teleport.version (level 1)"),
        (vec![known.clone(), broker(1), broker(3)], "other brokers belong to its cluster (node 3)"),
        (
            vec![known.clone(), topic("t", 1), partition(1, &[1, 2], Uuid::ZERO)],
            "the replicas of t-0 are on the nodes 1, 2, not on node 1 alone",
        ),
        (
            vec![known.clone(), topic("t", 1), partition(1, &[2], Uuid::ZERO)],
            "the replicas of t-0 are on the nodes 2, not on node 1 alone",
        ),
        (
            vec![known.clone(), topic("t", 1), partition(1, &[1], Uuid([9; 16]))],
            "is in none of log.dirs; name all directories",
        ),
        (
            vec![known.clone(), AccessControlEntryRecord { id: Uuid([1; 16]), ..Default::default() }.into()],
            "it has 1 access control entries, and this version of Klamm enforces none",
        ),
    ] {
        let disk = kraft_directory(&[batch(0, &records)]);
        let before = files(&disk);
        let message_found = plan(&open(&disk).unwrap(), &disk).unwrap_err().to_string();
        assert!(message_found.contains(message), "{message_found}");
        assert!(message_found.starts_with("this directory of Apache Kafka cannot be taken over: "));
        assert_eq!(files(&disk), before);
    }
}

#[test]
fn a_voter_beside_this_node_is_refused() {
    let voters = |ids: &[i32]| {
        ids.iter().map(|voter_id| Voter { voter_id: *voter_id, ..Default::default() }).collect()
    };
    let disk =
        kraft_directory(&[leader_change(0, voters(&[1])), batch(1, &[feature("metadata.version", 33)])]);
    assert_eq!(plan(&open(&disk).unwrap(), &disk).unwrap().image().feature("metadata.version"), 33);
    let disk = kraft_directory(&[leader_change(0, voters(&[1, 2, 3]))]);
    let message = plan(&open(&disk).unwrap(), &disk).unwrap_err().to_string();
    assert!(message.contains("the controllers of its cluster are others too (node 2, 3)"), "{message}");
}

#[test]
fn entries_of_access_control_are_kept_when_somebody_said_so() {
    let entry = AccessControlEntryRecord { id: Uuid([1; 16]), ..Default::default() };
    let disk = kraft_directory(&[batch(0, &[feature("metadata.version", 33), entry.into()])]);
    let adoption = plan_as(&open(&disk).unwrap(), &disk, true).unwrap();
    assert_eq!(adoption.image().kept.access_control_entries.len(), 1);
    assert!(adoption.warnings()[0].contains("NOT ENFORCED"), "{:?}", adoption.warnings());
}

/// Records of a change that spans batches count when it ends, and never if it was given up or cut off (KIP-868).
#[test]
fn changes_that_were_not_finished_do_not_count() {
    let disk = kraft_directory(&[
        batch(0, &[BeginTransactionRecord::default().into(), topic("ended", 1)]),
        batch(2, &[topic("ended-too", 2), EndTransactionRecord::default().into()]),
        batch(
            4,
            &[
                BeginTransactionRecord::default().into(),
                topic("given-up", 3),
                AbortTransactionRecord::default().into(),
            ],
        ),
        batch(7, &[BeginTransactionRecord::default().into(), topic("cut-off", 4)]),
    ]);
    let adoption = plan(&open(&disk).unwrap(), &disk).unwrap();
    let names: Vec<&str> = adoption.image().topic_ids.keys().map(|name| &**name).collect();
    assert_eq!(names, ["ended", "ended-too"]);
}

#[test]
fn a_torn_end_is_what_a_kill_leaves_and_damage_before_the_end_is_refused() {
    let batches =
        [batch(0, &[topic("one", 1)]), batch(1, &[topic("two", 2)]), batch(2, &[topic("three", 3)])];
    let names = |batches: &[bytes::Bytes]| {
        let disk = kraft_directory(batches);
        let adoption = plan(&open(&disk).unwrap(), &disk);
        adoption.map(|adoption| adoption.image().topic_ids.len()).map_err(|error| error.to_string())
    };
    assert_eq!(names(&batches), Ok(3));
    for cut in 1..batches[2].len() {
        let torn = [batches[0].clone(), batches[1].clone(), batches[2].slice(..cut)];
        assert_eq!(names(&torn), Ok(2), "cut at {cut}");
    }
    let flip = |batch: &bytes::Bytes| {
        let mut bytes = batch.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        bytes::Bytes::from(bytes)
    };
    assert_eq!(names(&[batches[0].clone(), batches[1].clone(), flip(&batches[2])]), Ok(2));
    assert_eq!(names(&[batches[0].clone(), vec![0; 300].into()]), Ok(1));
    let message = names(&[batches[0].clone(), flip(&batches[1]), batches[2].clone()]).unwrap_err();
    let position = batches[0].len();
    assert!(message.contains(&format!("00000000000000000000.log: at position {position}: ")), "{message}");
    let message = names(&[batches[0].clone(), batches[2].clone()]).unwrap_err();
    assert!(message.contains("it goes on at offset 2, and what is before it ends at 1"), "{message}");
}

#[test]
fn zookeeper_directories_with_holes_are_refused() {
    let refused = |change: &dyn Fn(&SimulatedDisk)| {
        let disk = fixture("2.8");
        change(&disk);
        plan(&open(&disk).unwrap(), &disk).unwrap_err().to_string()
    };
    let message = refused(&|disk| disk.remove_dir_all(&Path::new(LOGS).join("alpha-0")).unwrap());
    assert!(message.contains("there is alpha-1, but no alpha-0. Name all directories"), "{message}");
    let message = refused(&|disk| {
        for (folder, id) in [("alpha-0", Uuid([1; 16])), ("alpha-1", Uuid([2; 16]))] {
            let path = Path::new(LOGS).join(folder).join("partition.metadata");
            disk.replace(&path, format!("version: 0\ntopic_id: {id}").as_bytes()).unwrap();
        }
    });
    assert!(message.contains("the folders of topic alpha have different topic ids"), "{message}");
}

/// Terms of leaders only rise: one that was there before would let followers and clients take old for new.
#[test]
fn leader_epochs_go_on_above_those_in_the_folders() {
    let disk = fixture("2.8");
    let path = Path::new(LOGS).join("alpha-1/leader-epoch-checkpoint");
    disk.replace(&path, b"0\n2\n0 0\n7 1\n").unwrap();
    let adoption = plan(&open(&disk).unwrap(), &disk).unwrap();
    let topic = adoption.image().topic_by_name("alpha").unwrap();
    assert_eq!(topic.partitions[1].leader_epoch, LeaderEpoch(7));
    let image = started(&disk);
    assert!(image.topic_by_name("alpha").unwrap().partitions[1].leader_epoch > LeaderEpoch(7));
}

/// Whoever puts Apache Kafka's meta.properties back by hand must not lose what Klamm did since.
#[test]
fn klamms_own_metadata_is_never_imported_over() {
    let disk = fixture("4.4");
    let identity = Path::new(LOGS).join("meta.properties");
    let original = disk.read(&identity).unwrap();
    started(&disk);
    assert_eq!(open(&disk).unwrap().keeper(), Keeper::Klamm);
    disk.replace(&identity, &original).unwrap();
    let message = plan(&open(&disk).unwrap(), &disk).unwrap_err().to_string();
    assert!(message.contains("Klamm's own metadata is there too, in /logs/klamm-metadata"), "{message}");
}

#[test]
fn a_node_with_another_id_is_refused() {
    let disk = fixture("3.9");
    let settings = klamm_storage::StoreSettings { node_id: NodeId(2), ..store_settings(&disk) };
    let message = LogStore::open(settings).err().unwrap().to_string();
    assert!(message.contains("the directory has node.id=1, but this node has node.id=2"), "{message}");
}

/// The switch is journalled: wherever the machine dies, the next start completes it or does it again, the records
/// are untouched, and the directory is either Apache Kafka's or Klamm's.
#[test]
fn a_crash_at_any_step_of_the_switch_is_mended_by_the_next_start() {
    for version in ["4.4", "2.8"] {
        let disk = fixture(version);
        let records = record_files(&disk);
        let before = disk.counters().changes();
        drop(switch(&disk).unwrap());
        let changes = disk.counters().changes() - before;
        let expected = started(&disk);
        assert!(changes > 20, "{version}: only {changes} changes");
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn, Unsynced::Scattered] {
            for point in 0..changes {
                let name = format!("{version}: {unsynced:?} after {point} changes");
                let disk = fixture(version);
                disk.crash_after(point);
                assert!(switch(&disk).is_err() && disk.is_down(), "{name}");
                let disk = disk.crash_leaving(unsynced);
                let image = started(&disk);
                assert_eq!(record_files(&disk), records, "{name}: records were touched");
                check_topics(&image, &name);
                let configs = |image: &Image| format!("{:?}", image.configs);
                assert_eq!(configs(&image), configs(&expected), "{name}");
                assert_eq!(image.next_producer_id, expected.next_producer_id, "{name}");
                let identity = disk.read(&Path::new(LOGS).join("meta.properties")).unwrap();
                assert!(String::from_utf8(identity).unwrap().contains("version=Klamm 1 "), "{name}");
            }
        }
    }
}

/// A snapshot of Apache Kafka names the partitions of a topic in any order.
#[test]
fn partitions_come_in_any_order_and_none_may_be_missing() {
    let numbered = |partition_id| -> MetadataRecord {
        let MetadataRecord::Partition(record) = partition(1, &[1], Uuid::ZERO) else { unreachable!() };
        PartitionRecord { partition_id, leader_epoch: partition_id, ..record }.into()
    };
    let records = [topic("t", 1), numbered(2), numbered(0), numbered(1), topic("u", 2)];
    let disk = kraft_directory(&[batch(0, &records)]);
    let adoption = plan(&open(&disk).unwrap(), &disk).unwrap();
    let epochs =
        adoption.image().topic_by_name("t").unwrap().partitions.iter().map(|state| state.leader_epoch.0);
    assert_eq!(epochs.collect::<Vec<_>>(), [0, 1, 2]);
    let disk = kraft_directory(&[batch(0, &[topic("t", 1), numbered(2), numbered(0)])]);
    let message = plan(&open(&disk).unwrap(), &disk).unwrap_err().to_string();
    assert!(message.contains("there is partition 2 of topic t, but not the one before it"), "{message}");
}

#[test]
fn a_topic_config_of_a_type_that_nobody_knows_is_passed_over() {
    let odd = ConfigRecord {
        resource_type: 99,
        name: "k".to_owned(),
        value: Some("v".to_owned()),
        ..Default::default()
    };
    let disk = kraft_directory(&[batch(0, &[odd.into(), topic("t", 1)])]);
    assert_eq!(plan(&open(&disk).unwrap(), &disk).unwrap().image().topic_ids.len(), 1);
}

/// Whoever goes on with what one node has must be told what may be missing, and meet nothing of the lost ones again.
#[test]
fn a_node_that_is_left_alone_has_all_partitions_and_says_what_may_be_missing() {
    let disk = fixture("4.4");
    let mut image = started(&disk);
    let others = [NodeId(2), NodeId(3)];
    for id in others {
        let broker = Arc::new(Broker { id, ..(*image.brokers[&NODE]).clone() });
        image.brokers.insert(id, broker);
        let config =
            Arc::new(BTreeMap::from([("leader.replication.throttled.rate".to_owned(), "1".to_owned())]));
        image.configs.insert(ConfigResource::Broker(Some(id)), config);
    }
    image.features.insert("kraft.version".to_owned(), 1);
    let alpha = image.topic_ids["alpha"];
    let topic = Arc::make_mut(image.topics.get_mut(&alpha).unwrap());
    for state in &mut topic.partitions {
        (state.replicas, state.isr) = (vec![NodeId(2), NODE], vec![NodeId(2), NODE]);
    }
    topic.partitions[1].isr = vec![NodeId(2)];
    let partitions = vec![PartitionState { replicas: others.to_vec(), ..topic.partitions[0].clone() }];
    let gone = Topic { name: "gone".into(), id: Uuid([7; 16]), partitions };
    image.topic_ids.insert(gone.name.clone(), gone.id);
    image.topics.insert(gone.id, Arc::new(gone));

    let (alone, lines) = adoption::left_alone(&image, &open(&disk).unwrap(), NODE, "new").unwrap();
    assert_eq!(alone.cluster_id, "new");
    assert_eq!(alone.brokers.keys().collect::<Vec<_>>(), [&NODE]);
    assert!(!others.iter().any(|id| alone.configs.contains_key(&ConfigResource::Broker(Some(*id)))));
    assert_eq!(alone.features.get("kraft.version"), None);
    for state in alone.topics.values().flat_map(|topic| &topic.partitions) {
        assert_eq!(
            (&state.replicas[..], &state.isr[..], state.directories.len()),
            (&[NODE][..], &[NODE][..], 1)
        );
    }
    assert!(
        lines[1].starts_with("1 of the partitions were not in sync here") && lines[1].ends_with(": alpha-1"),
        "{lines:?}"
    );
    assert!(
        lines[2].starts_with("1 of the partitions had no replica here") && lines[2].ends_with(": gone-0"),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 3, "{lines:?}");
}
