//! An image as the records that make it again, for snapshots.

use klamm_model::NodeId;
use klamm_protocol::records::cluster_metadata::{
    ConfigRecord, FeatureLevelRecord, MetadataRecord, PartitionRecord, ProducerIdsRecord,
    RegisterBrokerRecord, TopicRecord, register_broker_record,
};

use crate::image::{Broker, Image, PartitionState, RecoveryState, Topic};

/// Records that, applied to an empty image in this order, give this one.
pub(crate) fn records_of(image: &Image) -> Vec<MetadataRecord> {
    let mut records: Vec<MetadataRecord> = Vec::new();
    for (name, level) in &image.features {
        let record = FeatureLevelRecord { name: name.clone(), feature_level: *level, ..Default::default() };
        records.push(record.into());
    }
    records.extend(image.brokers.values().map(|broker| broker_record(broker)));
    for topic in image.topics.values() {
        let record = TopicRecord { name: topic.name.to_string(), topic_id: topic.id, ..Default::default() };
        records.push(record.into());
        let numbered = (0..).zip(&topic.partitions);
        records.extend(numbered.map(|(index, state)| partition_record(topic, index, state)));
    }
    for (resource, configs) in &image.configs {
        records.extend(configs.iter().map(|(name, value)| {
            MetadataRecord::from(ConfigRecord {
                resource_type: resource.type_code(),
                resource_name: resource.name(),
                name: name.clone(),
                value: Some(value.clone()),
                ..Default::default()
            })
        }));
    }
    if image.next_producer_id > 0 {
        let record = ProducerIdsRecord {
            broker_id: -1,
            broker_epoch: -1,
            next_producer_id: image.next_producer_id,
            ..Default::default()
        };
        records.push(record.into());
    }
    records
}

fn broker_record(broker: &Broker) -> MetadataRecord {
    let end_points = broker.endpoints.iter().map(|endpoint| register_broker_record::BrokerEndpoint {
        name: endpoint.name.clone(),
        host: endpoint.host.clone(),
        port: endpoint.port,
        security_protocol: endpoint.security_protocol,
        ..Default::default()
    });
    let features =
        broker.features.iter().map(|(name, (lowest, highest))| register_broker_record::BrokerFeature {
            name: name.clone(),
            min_supported_version: *lowest,
            max_supported_version: *highest,
            ..Default::default()
        });
    MetadataRecord::from(RegisterBrokerRecord {
        broker_id: broker.id.0,
        incarnation_id: broker.incarnation,
        broker_epoch: broker.epoch,
        end_points: end_points.collect(),
        features: features.collect(),
        rack: broker.rack.clone(),
        fenced: broker.fenced,
        in_controlled_shutdown: broker.in_controlled_shutdown,
        log_dirs: broker.directories.clone(),
        ..Default::default()
    })
}

fn partition_record(topic: &Topic, index: i32, state: &PartitionState) -> MetadataRecord {
    let optional = |list: &[NodeId]| if list.is_empty() { None } else { Some(ids(list)) };
    MetadataRecord::from(PartitionRecord {
        partition_id: index,
        topic_id: topic.id,
        replicas: ids(&state.replicas),
        isr: ids(&state.isr),
        removing_replicas: ids(&state.removing),
        adding_replicas: ids(&state.adding),
        leader: state.leader.map_or(-1, |leader| leader.0),
        leader_recovery_state: i8::from(state.recovery == RecoveryState::Recovering),
        leader_epoch: state.leader_epoch.0,
        partition_epoch: state.partition_epoch,
        directories: state.directories.clone(),
        eligible_leader_replicas: optional(&state.eligible_leaders),
        last_known_elr: optional(&state.last_known_eligible_leaders),
        ..Default::default()
    })
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}
