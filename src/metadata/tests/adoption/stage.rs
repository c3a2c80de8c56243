//! Directories of Apache Kafka on a simulated disk, and a node that starts on them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use klamm_config::BrokerConfig;
use klamm_io::{Disk, SystemDisk};
use klamm_metadata::adoption::{Adoption, AdoptionError, AdoptionSettings};
use klamm_metadata::{
    Identity, Image, KafkaRules, MetadataNode, NoPeers, QuorumSettings, Settings, TopicDefaults, Voter,
};
use klamm_model::{LeaderEpoch, NodeId};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_protocol::records::control::LeaderChangeMessage;
use klamm_protocol::records::control::leader_change_message::Voter as NamedVoter;
use klamm_protocol::{Message, Writer, encode_metadata_record};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::{Keeper, LogStore, StorageError, StoreSettings};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

use crate::joining;

pub(crate) const LOGS: &str = "/logs";
pub(crate) const NODE: NodeId = NodeId(1);

/// A copy of a directory as a real broker left it.
pub(crate) fn fixture(version: &str) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dir").join(version).join("data");
    disk.copy_from(&SystemDisk, &source, Path::new(LOGS)).unwrap();
    disk
}

/// A directory whose quorum log holds these batches and nothing else.
pub(crate) fn kraft_directory(batches: &[Bytes]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let folder = Path::new(LOGS).join("__cluster_metadata-0");
    disk.create_dir_all(&folder).unwrap();
    let identity =
        "node.id=1\ndirectory.id=Le_O1iMlKvvF63DFbgscEw\nversion=1\ncluster.id=22ZIq6LATRGAhqKkbBaRwg\n";
    disk.replace(&Path::new(LOGS).join("meta.properties"), identity.as_bytes()).unwrap();
    disk.replace(&folder.join("00000000000000000000.log"), &batches.concat()).unwrap();
    disk
}

fn settings_at(base_offset: i64, control: bool) -> BatchSettings {
    BatchSettings { base_offset, control, partition_leader_epoch: LeaderEpoch(1), ..BatchSettings::default() }
}

/// A batch of metadata records.
pub(crate) fn batch(base_offset: i64, records: &[MetadataRecord]) -> Bytes {
    let mut builder = BatchBuilder::v2(settings_at(base_offset, false));
    for record in records {
        let value = encode_metadata_record(record, *record.versions().end()).unwrap();
        builder.append(0, None, Some(&value), &[]);
    }
    builder.build()
}

/// The batch that a new leader begins with.
pub(crate) fn leader_change(base_offset: i64, voters: Vec<NamedVoter>) -> Bytes {
    let message = LeaderChangeMessage { leader_id: 1, voters, ..Default::default() };
    let mut writer = Writer::with_capacity(64);
    message.encode(&mut writer, 0).unwrap();
    let mut builder = BatchBuilder::v2(settings_at(base_offset, true));
    builder.append(0, Some(&[0, 0, 0, 2]), Some(&writer.finish().into_bytes()), &[]);
    builder.build()
}

pub(crate) fn store_settings(disk: &SimulatedDisk) -> StoreSettings {
    let clock = Arc::new(SimulatedClock::new(1_700_000_100_000));
    let random = Arc::new(SeededRandom::new(3));
    StoreSettings::new(vec![LOGS.into()], NODE, Arc::new(disk.clone()), clock, random)
}

pub(crate) fn open(disk: &SimulatedDisk) -> Result<LogStore, StorageError> {
    LogStore::open(store_settings(disk))
}

pub(crate) fn plan(store: &LogStore, disk: &SimulatedDisk) -> Result<Adoption, AdoptionError> {
    plan_as(store, disk, false)
}

pub(crate) fn plan_as(
    store: &LogStore,
    disk: &SimulatedDisk,
    ignores_access_control: bool,
) -> Result<Adoption, AdoptionError> {
    let settings = AdoptionSettings {
        node_id: NODE,
        defaults: &TopicDefaults::default(),
        ignores_access_control,
        disk,
        random: &SeededRandom::new(4),
    };
    Adoption::plan(store, &settings)
}

/// What a start does with the directories before it opens the metadata.
pub(crate) fn switch(disk: &SimulatedDisk) -> Result<LogStore, Box<dyn std::error::Error>> {
    let store = open(disk)?;
    let dir = store.metadata_dir();
    if store.keeper() != Keeper::Klamm {
        plan(&store, disk)?.write(disk, &dir, NODE, store.directory_ids()[0].1)?;
        store.take_over()?;
    }
    Adoption::finish(disk, &dir)?;
    Ok(store)
}

/// The image of a node that was started on the directory and registered.
pub(crate) fn started(disk: &SimulatedDisk) -> Image {
    let store = switch(disk).unwrap();
    let directory_id = store.directory_ids()[0].1;
    let settings = Settings {
        node_id: NODE,
        directory_id,
        identity: Identity::Of(store.cluster_id().to_owned()),
        address: (String::new(), 0),
        listener: "CONTROLLER".to_owned(),
        voters: vec![Voter { id: NODE, host: String::new(), port: 0 }],
        bootstrap_servers: Vec::new(),
        dir: store.metadata_dir(),
        disk: Arc::new(disk.clone()),
        clock: Arc::new(SimulatedClock::new(1_700_000_100_000)),
        random: Arc::new(SeededRandom::new(5)),
        network: Arc::new(NoPeers),
        defaults: TopicDefaults::default(),
        rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
        quorum: QuorumSettings::default(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (node, running) = MetadataNode::start_here(settings).await.unwrap();
        let found = node.image().offset;
        let script = async {
            let epoch = joining::register(&node, NODE, 1, directory_id).await.unwrap();
            assert!(epoch > found, "the epoch must be above all that were given before");
            joining::unfence(&node, NODE, epoch).await.unwrap();
            let image = Image::clone(&node.image());
            node.shutdown();
            image
        };
        tokio::join!(running, script).1
    })
}

/// All files with their content.
pub(crate) fn files(disk: &SimulatedDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from(LOGS)];
    while let Some(folder) = folders.pop() {
        for entry in disk.read_dir(&folder).unwrap() {
            let path = folder.join(&entry.name);
            if entry.is_dir {
                folders.push(path);
            } else if entry.name != ".lock" {
                found.insert(path.clone(), disk.read(&path).unwrap());
            }
        }
    }
    found
}

/// The files that hold records, Apache Kafka's metadata among them.
pub(crate) fn record_files(disk: &SimulatedDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_klamms = |path: &Path| path.starts_with(Path::new(LOGS).join("klamm-metadata"));
    let mut found = files(disk);
    found.retain(|path, _| !is_klamms(path) && !path.to_string_lossy().contains("meta.properties"));
    found
}
