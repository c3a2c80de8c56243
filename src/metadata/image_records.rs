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
        let record = FeatureLevelRecord { name: name.clone(), feature_level: *level };
        records.push(record.into());
    }
    records.extend(image.brokers.values().map(|broker| broker_record(broker)));
    for topic in image.topics.values() {
        let record = TopicRecord { name: topic.name.to_string(), topic_id: topic.id };
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
            })
        }));
    }
    records.extend(image.kept.records());
    if image.next_producer_id > 0 {
        let record =
            ProducerIdsRecord { broker_id: -1, broker_epoch: -1, next_producer_id: image.next_producer_id };
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
    });
    let features =
        broker.features.iter().map(|(name, (lowest, highest))| register_broker_record::BrokerFeature {
            name: name.clone(),
            min_supported_version: *lowest,
            max_supported_version: *highest,
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
    })
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use klamm_model::{LeaderEpoch, Uuid};
    use klamm_protocol::records::cluster_metadata::AccessControlEntryRecord;

    use super::*;
    use crate::apply::apply_to;
    use crate::image::{ConfigResource, Endpoint};

    /// An image in which every field has something in it that is not its default.
    fn full_image() -> Image {
        let mut image = Image::empty("full");
        let broker = Broker {
            id: NodeId(7),
            epoch: 40,
            incarnation: Uuid([1; 16]),
            endpoints: vec![Endpoint {
                name: "PLAINTEXT".to_owned(),
                host: "localhost".to_owned(),
                port: 9092,
                security_protocol: 2,
            }],
            rack: Some("r".to_owned()),
            fenced: true,
            in_controlled_shutdown: true,
            directories: vec![Uuid([2; 16])],
            features: BTreeMap::from([("metadata.version".to_owned(), (7, 33))]),
        };
        image.brokers.insert(broker.id, Arc::new(broker));
        let partition = |leader| PartitionState {
            replicas: vec![NodeId(7), NodeId(8), NodeId(9)],
            directories: vec![Uuid([2; 16]), Uuid([3; 16]), Uuid::ZERO],
            isr: vec![NodeId(8)],
            removing: vec![NodeId(9)],
            adding: vec![NodeId(7)],
            leader,
            leader_epoch: LeaderEpoch(5),
            partition_epoch: 6,
            recovery: RecoveryState::Recovering,
            eligible_leaders: vec![NodeId(7)],
            last_known_eligible_leaders: vec![NodeId(9)],
        };
        let topic = Topic {
            name: "t".into(),
            id: Uuid([4; 16]),
            partitions: vec![partition(Some(NodeId(8))), partition(None)],
        };
        image.topic_ids.insert(Arc::clone(&topic.name), topic.id);
        image.topics.insert(topic.id, Arc::new(topic));
        let configs = |value: &str| Arc::new(BTreeMap::from([("key".to_owned(), value.to_owned())]));
        image.configs.insert(ConfigResource::Topic("t".to_owned()), configs("1"));
        image.configs.insert(ConfigResource::Broker(None), configs("2"));
        image.configs.insert(ConfigResource::Broker(Some(NodeId(7))), configs("3"));
        image.configs.insert(ConfigResource::Group("g".to_owned()), configs("4"));
        image.features.insert("metadata.version".to_owned(), 33);
        image.next_producer_id = 3000;
        let entry = AccessControlEntryRecord { id: Uuid([5; 16]), ..Default::default() };
        image.kept.access_control_entries.insert(entry.id, Arc::new(entry));
        image
    }

    /// What a snapshot forgets is lost with the log that it replaces.
    #[test]
    fn a_snapshots_records_give_the_same_image() {
        let image = full_image();
        let mut again = Image::empty("full");
        records_of(&image).iter().for_each(|record| apply_to(&mut again, record));
        assert_eq!(again, image);
    }

    #[test]
    fn records_about_what_is_not_there_change_nothing() {
        let mut empty = Image::empty("full");
        let about_partition: Vec<_> = records_of(&full_image())
            .into_iter()
            .filter(|record| matches!(record, MetadataRecord::Partition(_)))
            .collect();
        assert_eq!(about_partition.len(), 2);
        about_partition.iter().for_each(|record| apply_to(&mut empty, record));
        assert_eq!(empty, Image::empty("full"));
    }
}
