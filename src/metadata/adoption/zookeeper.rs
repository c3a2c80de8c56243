//! Directories of Apache Kafka with ZooKeeper: the topics stand in ZooKeeper, which is not here, so they are made
//! from the folders.
//!
//! What ZooKeeper said about a topic is unknown, its retention among it. The defaults would delete what is older
//! than a week, and with `log.cleanup.policy=compact` all but the latest value of each key. So each topic gets
//! settings of its own under which nothing is deleted, and it is told which topics need their real ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_model::{LeaderEpoch, TopicId, TopicPartition, Uuid};
use klamm_storage::{LogStore, PartitionFolder};

use super::folders::Folders;
use super::{Adoption, AdoptionError, AdoptionSettings, report};
use crate::controller::InternalTopic;
use crate::image::{ConfigResource, Image, PartitionState, RecoveryState, Topic};

/// Settings under which nothing of a topic is deleted.
const KEEP_ALL: [(&str, &str); 3] =
    [("cleanup.policy", "delete"), ("retention.bytes", "-1"), ("retention.ms", "-1")];

/// How far above every producer id that is seen the next one lies. Ids that were handed out and never used leave
/// no trace; ZooKeeper counted them in blocks of a thousand.
const PRODUCER_IDS_SKIPPED: i64 = 1_000_000;

/// The image's offset: the import stands in the log as its second entry.
const OFFSET: i64 = 1;

pub(super) fn plan(
    store: &LogStore,
    settings: &AdoptionSettings<'_>,
    folders: &Folders,
) -> Result<Adoption, AdoptionError> {
    let mut image = Image::empty(store.cluster_id());
    image.offset = OFFSET;
    let mut by_topic: BTreeMap<Arc<str>, Vec<&PartitionFolder>> = BTreeMap::new();
    for folder in folders.by_partition.values() {
        by_topic.entry(Arc::clone(&folder.topic_partition.topic)).or_default().push(folder);
    }
    for (name, mut of_topic) in by_topic {
        of_topic.sort_by_key(|folder| folder.topic_partition.partition);
        let topic = topic_of(&name, &of_topic, settings)?;
        image.topic_ids.insert(Arc::clone(&name), topic.id);
        image.configs.insert(ConfigResource::Topic(name.to_string()), Arc::new(configs(&name, settings)));
        image.topics.insert(topic.id, Arc::new(topic));
    }
    let highest = folders.highest_producer_id.map_or(-1, |id| id.0);
    image.next_producer_id = highest.saturating_add(1).saturating_add(PRODUCER_IDS_SKIPPED);
    let mut lines = vec![format!(
        "Apache Kafka with ZooKeeper wrote this directory (cluster {}); its topics are made from their folders",
        image.cluster_id
    )];
    lines.extend(report::contents(&image, folders));
    Ok(Adoption {
        report: lines,
        warnings: warnings(&image),
        has_unknown_folders: false,
        is_after_release: false,
        image,
    })
}

fn topic_of(
    name: &Arc<str>,
    folders: &[&PartitionFolder],
    settings: &AdoptionSettings<'_>,
) -> Result<Topic, AdoptionError> {
    for (expected, folder) in (0..).zip(folders) {
        let found = folder.topic_partition.partition;
        if found != expected {
            let missing = TopicPartition::new(Arc::clone(name), expected);
            return Err(AdoptionError::Refused(format!(
                "there is {}, but no {missing}. Name all directories that Apache Kafka used in log.dirs; a node of a \
                 larger cluster cannot be taken over",
                folder.topic_partition
            )));
        }
    }
    let mut ids: Vec<(TopicId, &PartitionFolder)> =
        folders.iter().filter_map(|folder| Some((folder.topic_id?, *folder))).collect();
    ids.dedup_by_key(|(id, _)| *id);
    let id = match &ids[..] {
        [] => Uuid::from_random(settings.random.next_16()),
        [(id, _)] => *id,
        [(one, _), (other, folder), ..] => {
            return Err(AdoptionError::Refused(format!(
                "the folders of topic {name} have different topic ids: {} has {other}, another one {one}; move those \
                 of the earlier topic away",
                folder.path.display()
            )));
        }
    };
    let partitions = folders.iter().map(|folder| PartitionState {
        replicas: vec![settings.node_id],
        directories: vec![folder.directory_id],
        isr: vec![settings.node_id],
        removing: Vec::new(),
        adding: Vec::new(),
        leader: None,
        // Leaders' terms only rise, and the next one of this partition is one above.
        leader_epoch: folder.leader_epoch.unwrap_or(LeaderEpoch(0)),
        partition_epoch: 0,
        recovery: RecoveryState::Recovered,
        eligible_leaders: Vec::new(),
        last_known_eligible_leaders: Vec::new(),
    });
    Ok(Topic { name: Arc::clone(name), id, partitions: partitions.collect() })
}

fn configs(name: &str, settings: &AdoptionSettings<'_>) -> BTreeMap<String, String> {
    match InternalTopic::by_name(name) {
        Some(internal) => internal.configs(settings.defaults),
        None => KEEP_ALL.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    }
}

/// What ZooKeeper held and is not here.
fn warnings(image: &Image) -> Vec<String> {
    let user_topics: Vec<&str> = image
        .topic_ids
        .keys()
        .map(|name| &**name)
        .filter(|name| InternalTopic::by_name(name).is_none())
        .collect();
    let mut lines = vec![
        "what ZooKeeper held is not in this directory, and none of it is in force: settings of topics and of brokers \
         that were changed while they ran, access control entries, SCRAM passwords, client quotas, delegation tokens"
            .to_owned(),
    ];
    if !user_topics.is_empty() {
        lines.push(format!(
            "the settings of these topics are unknown, and until you set them with kafka-configs nothing of them is \
             deleted or compacted (cleanup.policy=delete, retention.ms=-1, retention.bytes=-1): {}",
            user_topics.join(", ")
        ));
    }
    lines
}
