//! The one place that changes an image: metadata records, in the order of the log.
//!
//! Replay must accept whatever a log may hold, so a record about a topic or broker that is not there is
//! passed over; it is logged, since the controller never writes one.

use std::sync::Arc;

use klamm_model::{LeaderEpoch, NodeId, TopicId, Uuid};
use klamm_protocol::records::cluster_metadata::{
    BrokerRegistrationChangeRecord, ConfigRecord, MetadataRecord, PartitionChangeRecord, PartitionRecord,
    RegisterBrokerRecord, RemoveTopicRecord, TopicRecord,
};

use crate::image::{Broker, ConfigResource, Endpoint, Image, PartitionState, RecoveryState, Topic};
use crate::planted::planted;

/// "The leader stays" in a PartitionChangeRecord; -1 means that there is none.
pub(crate) const LEADER_UNCHANGED: i32 = -2;

/// The image with one record applied.
pub fn apply(image: &Image, record: &MetadataRecord) -> Image {
    let mut image = image.clone();
    apply_to(&mut image, record);
    image
}

/// Applies one record in place.
pub fn apply_to(image: &mut Image, record: &MetadataRecord) {
    match record {
        MetadataRecord::Topic(record) => apply_topic(image, record),
        MetadataRecord::Partition(record) => apply_partition(image, record),
        MetadataRecord::PartitionChange(record) => apply_partition_change(image, record),
        MetadataRecord::RemoveTopic(record) => apply_remove_topic(image, record),
        MetadataRecord::Config(record) => apply_config(image, record),
        MetadataRecord::RegisterBroker(record) => apply_register_broker(image, record),
        MetadataRecord::UnregisterBroker(record) => {
            image.brokers.remove(&NodeId(record.broker_id));
        }
        MetadataRecord::BrokerRegistrationChange(record) => apply_registration_change(image, record),
        MetadataRecord::FenceBroker(record) => {
            change_broker(image, record.id, record.epoch, |broker| broker.fenced = true);
        }
        MetadataRecord::UnfenceBroker(record) => {
            change_broker(image, record.id, record.epoch, |broker| broker.fenced = false);
        }
        MetadataRecord::FeatureLevel(record) => {
            if record.feature_level == 0 {
                image.features.remove(&record.name);
            } else {
                image.features.insert(record.name.clone(), record.feature_level);
            }
        }
        MetadataRecord::ProducerIds(record) => {
            image.next_producer_id = image.next_producer_id.max(record.next_producer_id);
        }
        MetadataRecord::ClearElr(record) => apply_clear_eligible_leaders(image, &record.topic_name),
        // Controllers register anew with each start, a migration from ZooKeeper is of the past, and transactions of
        // records are whole before they come here.
        MetadataRecord::NoOp(_)
        | MetadataRecord::RegisterController(_)
        | MetadataRecord::UnregisterController(_)
        | MetadataRecord::ZkMigrationState(_)
        | MetadataRecord::BeginTransaction(_)
        | MetadataRecord::EndTransaction(_)
        | MetadataRecord::AbortTransaction(_) => {}
        other => {
            let is_kept = image.kept.apply(other);
            debug_assert!(is_kept, "each kind of record has a place: {other:?}");
        }
    }
}

fn apply_topic(image: &mut Image, record: &TopicRecord) {
    let name: Arc<str> = record.name.as_str().into();
    let topic = Topic { name: Arc::clone(&name), id: record.topic_id, partitions: Vec::new() };
    image.topic_ids.insert(name, record.topic_id);
    image.topics.insert(record.topic_id, Arc::new(topic));
}

fn apply_partition(image: &mut Image, record: &PartitionRecord) {
    let Some(topic) = image.topics.get_mut(&record.topic_id) else {
        tracing::warn!("a partition of the unknown topic {} is passed over", record.topic_id);
        return;
    };
    let partitions = &mut Arc::make_mut(topic).partitions;
    let state = partition_of(record);
    match usize::try_from(record.partition_id) {
        Ok(index) if index < partitions.len() => partitions[index] = state,
        Ok(index) if index == partitions.len() => partitions.push(state),
        _ => tracing::warn!(
            "partition {} of topic {} does not follow the {} that are there and is passed over",
            record.partition_id,
            record.topic_id,
            partitions.len()
        ),
    }
}

fn partition_of(record: &PartitionRecord) -> PartitionState {
    let mut directories = record.directories.clone();
    directories.resize(record.replicas.len(), Uuid::ZERO);
    PartitionState {
        replicas: nodes(&record.replicas),
        directories,
        isr: nodes(&record.isr),
        removing: nodes(&record.removing_replicas),
        adding: nodes(&record.adding_replicas),
        leader: leader(record.leader),
        leader_epoch: LeaderEpoch(record.leader_epoch),
        partition_epoch: record.partition_epoch,
        recovery: recovery(record.leader_recovery_state),
        eligible_leaders: nodes(record.eligible_leader_replicas.as_deref().unwrap_or_default()),
        last_known_eligible_leaders: nodes(record.last_known_elr.as_deref().unwrap_or_default()),
    }
}

fn apply_partition_change(image: &mut Image, record: &PartitionChangeRecord) {
    let found = image.topics.get_mut(&record.topic_id).and_then(|topic| {
        Arc::make_mut(topic).partitions.get_mut(usize::try_from(record.partition_id).ok()?)
    });
    let Some(state) = found else {
        tracing::warn!(
            "a change of the unknown partition {} of topic {} is passed over",
            record.partition_id,
            record.topic_id
        );
        return;
    };
    change_partition(state, record);
}

/// A partition's state after a change.
pub(crate) fn changed(state: &PartitionState, record: &PartitionChangeRecord) -> PartitionState {
    let mut state = state.clone();
    change_partition(&mut state, record);
    state
}

/// A named leader, even the same one, is an election and begins a new epoch; so does "none".
fn change_partition(state: &mut PartitionState, record: &PartitionChangeRecord) {
    if let Some(replicas) = &record.replicas {
        state.replicas = nodes(replicas);
        state.directories.resize(replicas.len(), Uuid::ZERO);
    }
    if let Some(directories) = &record.directories {
        state.directories.clone_from(directories);
    }
    let lists = [
        (&record.isr, &mut state.isr),
        (&record.removing_replicas, &mut state.removing),
        (&record.adding_replicas, &mut state.adding),
        (&record.eligible_leader_replicas, &mut state.eligible_leaders),
        (&record.last_known_elr, &mut state.last_known_eligible_leaders),
    ];
    for (change, list) in lists {
        if let Some(change) = change {
            *list = nodes(change);
        }
    }
    if record.leader != LEADER_UNCHANGED {
        state.leader = leader(record.leader);
        state.leader_epoch.0 += i32::from(!planted!(ElectWithoutNewEpoch));
    }
    if record.leader_recovery_state >= 0 {
        state.recovery = recovery(record.leader_recovery_state);
    }
    state.partition_epoch += 1;
}

/// Forgets the eligible leaders of a topic, or with an empty name those of all (KIP-966).
fn apply_clear_eligible_leaders(image: &mut Image, topic_name: &str) {
    let ids: Vec<TopicId> = match image.topic_ids.get(topic_name) {
        Some(id) => vec![*id],
        None if topic_name.is_empty() => image.topic_ids.values().copied().collect(),
        None => Vec::new(),
    };
    for id in ids {
        let has_any = |state: &PartitionState| {
            !state.eligible_leaders.is_empty() || !state.last_known_eligible_leaders.is_empty()
        };
        let Some(topic) = image.topics.get_mut(&id) else { continue };
        if topic.partitions.iter().any(has_any) {
            for state in &mut Arc::make_mut(topic).partitions {
                state.eligible_leaders.clear();
                state.last_known_eligible_leaders.clear();
            }
        }
    }
}

fn apply_remove_topic(image: &mut Image, record: &RemoveTopicRecord) {
    if let Some(topic) = image.topics.remove(&record.topic_id) {
        image.topic_ids.remove(&topic.name);
        image.configs.remove(&ConfigResource::Topic(topic.name.to_string()));
    }
}

fn apply_config(image: &mut Image, record: &ConfigRecord) {
    let Some(resource) = ConfigResource::from_wire(record.resource_type, &record.resource_name) else {
        tracing::warn!(
            "a setting of the unknown resource '{}' of type {} is passed over",
            record.resource_name,
            record.resource_type
        );
        return;
    };
    // Changed in place: the first record of a batch copies what the published image shares, the others do not.
    match &record.value {
        Some(value) => {
            let configs = Arc::make_mut(image.configs.entry(resource).or_default());
            configs.insert(record.name.clone(), value.clone());
        }
        None => {
            let Some(configs) = image.configs.get_mut(&resource) else { return };
            let configs = Arc::make_mut(configs);
            configs.remove(&record.name);
            if configs.is_empty() {
                image.configs.remove(&resource);
            }
        }
    }
}

fn apply_register_broker(image: &mut Image, record: &RegisterBrokerRecord) {
    let endpoint =
        |found: &klamm_protocol::records::cluster_metadata::register_broker_record::BrokerEndpoint| {
            Endpoint {
                name: found.name.clone(),
                host: found.host.clone(),
                port: found.port,
                security_protocol: found.security_protocol,
            }
        };
    let features = record.features.iter().map(|feature| {
        (feature.name.clone(), (feature.min_supported_version, feature.max_supported_version))
    });
    let broker = Broker {
        id: NodeId(record.broker_id),
        epoch: record.broker_epoch,
        incarnation: record.incarnation_id,
        endpoints: record.end_points.iter().map(endpoint).collect(),
        rack: record.rack.clone(),
        fenced: record.fenced,
        in_controlled_shutdown: record.in_controlled_shutdown,
        directories: record.log_dirs.clone(),
        features: features.collect(),
    };
    image.brokers.insert(broker.id, Arc::new(broker));
}

fn apply_registration_change(image: &mut Image, record: &BrokerRegistrationChangeRecord) {
    change_broker(image, record.broker_id, record.broker_epoch, |broker| {
        match record.fenced {
            1 => broker.fenced = true,
            -1 => broker.fenced = false,
            _ => {}
        }
        if record.in_controlled_shutdown == 1 {
            broker.in_controlled_shutdown = true;
        }
        if !record.log_dirs.is_empty() {
            broker.directories.clone_from(&record.log_dirs);
        }
    });
}

fn change_broker(image: &mut Image, id: i32, epoch: i64, change: impl FnOnce(&mut Broker)) {
    match image.brokers.get_mut(&NodeId(id)) {
        Some(broker) if broker.epoch == epoch => change(Arc::make_mut(broker)),
        _ => {
            tracing::warn!("a change of broker {id} in its epoch {epoch}, which it is not in, is passed over")
        }
    }
}

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn leader(id: i32) -> Option<NodeId> {
    (id >= 0).then_some(NodeId(id))
}

fn recovery(state: i8) -> RecoveryState {
    if state == 1 { RecoveryState::Recovering } else { RecoveryState::Recovered }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: Option<&str>) -> MetadataRecord {
        MetadataRecord::Config(ConfigRecord {
            resource_type: 4,
            resource_name: "1".to_owned(),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        })
    }

    /// A request may set many keys of one resource. If each copied those before it, the work would grow with
    /// the square of their number, now and at each start.
    #[test]
    fn a_setting_is_applied_without_a_copy_of_the_others() {
        let resource = ConfigResource::Broker(Some(NodeId(1)));
        let mut image = Image::empty("c");
        apply_to(&mut image, &setting("a", Some("1")));
        let published = image.clone();
        let place = |image: &Image| Arc::as_ptr(&image.configs[&resource]);
        apply_to(&mut image, &setting("b", Some("2")));
        let copied = place(&image);
        assert_ne!(copied, place(&published), "an image that was handed out must not change");
        for (name, value) in [("c", Some("3")), ("d", Some("4")), ("a", None)] {
            apply_to(&mut image, &setting(name, value));
            assert_eq!(place(&image), copied, "{name}");
        }
        assert_eq!(image.configs[&resource].keys().collect::<Vec<_>>(), ["b", "c", "d"]);
        assert_eq!(published.configs[&resource].keys().collect::<Vec<_>>(), ["a"]);
        ["b", "c", "d", "e"].iter().for_each(|name| apply_to(&mut image, &setting(name, None)));
        assert!(image.configs.is_empty());
    }
}
