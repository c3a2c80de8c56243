//! Brokers come, live and go: registration, heartbeats, and what that means for the partitions they hold
//! (KIP-631, KIP-841).

use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::broker_heartbeat::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};
use klamm_protocol::messages::broker_registration::{BrokerRegistrationRequest, BrokerRegistrationResponse};
use klamm_protocol::messages::unregister_broker::{UnregisterBrokerRequest, UnregisterBrokerResponse};
use klamm_protocol::records::cluster_metadata::{
    BrokerRegistrationChangeRecord, MetadataRecord, PartitionChangeRecord, RegisterBrokerRecord,
    UnregisterBrokerRecord, register_broker_record,
};

use super::features::initial_features;
use crate::apply::{LEADER_UNCHANGED, apply_to};
use crate::image::{Image, PartitionState};

/// Registers a broker, fenced. A second run of the process takes the place of the first: whatever that one
/// led is without a leader until the new one is unfenced. It is refused while the first one `has_session`, unless
/// the second knows its epoch: then the first has stopped cleanly.
pub fn register_broker(
    image: &Image,
    request: &BrokerRegistrationRequest,
    has_session: bool,
) -> (Vec<MetadataRecord>, BrokerRegistrationResponse) {
    let refuse = |code: ErrorCode| {
        (
            Vec::new(),
            BrokerRegistrationResponse { error_code: code.code(), broker_epoch: -1, ..Default::default() },
        )
    };
    if request.cluster_id != image.cluster_id {
        return refuse(ErrorCode::InconsistentClusterId);
    }
    let id = NodeId(request.broker_id);
    let present = image.brokers.get(&id);
    if let Some(present) = present
        && present.incarnation != request.incarnation_id
        && present.is_active()
        && has_session
        && request.previous_broker_epoch != present.epoch
    {
        return refuse(ErrorCode::DuplicateBrokerRegistration);
    }
    let epoch = next_epoch(image, id);
    // The first broker of a new cluster brings its features with it.
    let mut records = initial_features(image);
    if present.is_some_and(|present| present.incarnation != request.incarnation_id) {
        records.extend(leave_partitions(image, id));
    }
    records.push(registration_record(request, epoch));
    (records, BrokerRegistrationResponse { broker_epoch: epoch, ..Default::default() })
}

/// Broker epochs rise with the log, so that an older one is told apart from a newer one.
fn next_epoch(image: &Image, id: NodeId) -> i64 {
    let after_present = image.brokers.get(&id).map_or(0, |present| present.epoch + 1);
    after_present.max(image.offset + 1)
}

fn registration_record(request: &BrokerRegistrationRequest, epoch: i64) -> MetadataRecord {
    let end_points = request.listeners.iter().map(|listener| register_broker_record::BrokerEndpoint {
        name: listener.name.clone(),
        host: listener.host.clone(),
        port: listener.port,
        security_protocol: listener.security_protocol,
    });
    let features = request.features.iter().map(|feature| register_broker_record::BrokerFeature {
        name: feature.name.clone(),
        min_supported_version: feature.min_supported_version,
        max_supported_version: feature.max_supported_version,
    });
    MetadataRecord::RegisterBroker(RegisterBrokerRecord {
        broker_id: request.broker_id,
        incarnation_id: request.incarnation_id,
        broker_epoch: epoch,
        end_points: end_points.collect(),
        features: features.collect(),
        rack: request.rack.clone(),
        fenced: true,
        log_dirs: request.log_dirs.clone(),
        ..Default::default()
    })
}

/// A broker says that it lives: it is unfenced when it has caught up and wants to be, and begins a controlled
/// shutdown when it asks to.
pub fn heartbeat_broker(
    image: &Image,
    request: &BrokerHeartbeatRequest,
) -> (Vec<MetadataRecord>, BrokerHeartbeatResponse) {
    let refuse = |code: ErrorCode| {
        (Vec::new(), BrokerHeartbeatResponse { error_code: code.code(), ..Default::default() })
    };
    let id = NodeId(request.broker_id);
    let Some(broker) = image.brokers.get(&id) else { return refuse(ErrorCode::BrokerIdNotRegistered) };
    if broker.epoch != request.broker_epoch {
        return refuse(ErrorCode::StaleBrokerEpoch);
    }
    let is_caught_up = request.current_metadata_offset >= broker.epoch;
    let mut records = Vec::new();
    let mut response =
        BrokerHeartbeatResponse { is_caught_up, is_fenced: broker.fenced, ..Default::default() };
    let change = |fenced: i8, in_controlled_shutdown: i8| {
        MetadataRecord::BrokerRegistrationChange(BrokerRegistrationChangeRecord {
            broker_id: id.0,
            broker_epoch: broker.epoch,
            fenced,
            in_controlled_shutdown,
            ..Default::default()
        })
    };
    if request.want_shut_down {
        records.extend(leave_partitions(image, id));
        response.should_shut_down = records.is_empty();
        if !broker.in_controlled_shutdown {
            records.push(change(0, 1));
        }
        if response.should_shut_down && !broker.fenced {
            records.push(change(1, 0));
            response.is_fenced = true;
        }
    } else if request.want_fence && !broker.fenced {
        records.extend(leave_partitions(image, id));
        records.push(change(1, 0));
        response.is_fenced = true;
    } else if !request.want_fence && broker.fenced && is_caught_up {
        let record = change(-1, 0);
        let mut planned = image.clone();
        apply_to(&mut planned, &record);
        records.push(record);
        records.extend(return_to_partitions(&planned, id));
        response.is_fenced = false;
    }
    (records, response)
}

/// Fences brokers that are not known to be alive: each leaves what it leads, and every ISR that has another
/// member.
pub fn fence_brokers(image: &Image, expired: &[NodeId]) -> Vec<MetadataRecord> {
    let mut planned = image.clone();
    let mut records = Vec::new();
    for id in expired {
        let Some(broker) = planned.brokers.get(id).filter(|broker| !broker.fenced).cloned() else { continue };
        let mut fencing = leave_partitions(&planned, *id);
        fencing.push(MetadataRecord::BrokerRegistrationChange(BrokerRegistrationChangeRecord {
            broker_id: id.0,
            broker_epoch: broker.epoch,
            fenced: 1,
            ..Default::default()
        }));
        fencing.iter().for_each(|record| apply_to(&mut planned, record));
        records.extend(fencing);
    }
    records
}

/// Takes a broker out of the cluster; 102 for one that is not in it.
pub fn unregister_broker(
    image: &Image,
    request: &UnregisterBrokerRequest,
) -> (Vec<MetadataRecord>, UnregisterBrokerResponse) {
    let id = NodeId(request.broker_id);
    let Some(broker) = image.brokers.get(&id) else {
        let response = UnregisterBrokerResponse {
            error_code: ErrorCode::BrokerIdNotRegistered.code(),
            error_message: Some(format!("There is no broker {id}")),
            ..Default::default()
        };
        return (Vec::new(), response);
    };
    let mut records = leave_partitions(image, id);
    records.push(MetadataRecord::UnregisterBroker(UnregisterBrokerRecord {
        broker_id: id.0,
        broker_epoch: broker.epoch,
    }));
    (records, UnregisterBrokerResponse { error_message: None, ..Default::default() })
}

/// A broker is about to be gone: others of the ISR take over what it leads, and it leaves every ISR that has
/// another member. The last member stays in the ISR, since only it has everything, and leads no more.
fn leave_partitions(image: &Image, id: NodeId) -> Vec<MetadataRecord> {
    let mut records = Vec::new();
    for (topic, index, state) in partitions(image) {
        if !state.isr.contains(&id) {
            continue;
        }
        let others: Vec<i32> = state.isr.iter().filter(|other| **other != id).map(|other| other.0).collect();
        let alive = |other: &&NodeId| {
            **other != id
                && state.isr.contains(other)
                && image.brokers.get(*other).is_some_and(|broker| broker.is_active())
        };
        let next = state.replicas.iter().find(alive).map_or(-1, |next| next.0);
        let leads = state.leader == Some(id);
        if others.is_empty() && !leads {
            continue;
        }
        records.push(change_record(
            topic,
            index,
            PartitionChangeRecord {
                isr: (!others.is_empty()).then_some(others),
                leader: if leads { next } else { LEADER_UNCHANGED },
                ..Default::default()
            },
        ));
    }
    records
}

/// A broker is back: it leads what has no leader and has it in the ISR, and what it led before under a new
/// epoch.
fn return_to_partitions(image: &Image, id: NodeId) -> Vec<MetadataRecord> {
    let leads = |state: &PartitionState| {
        state.isr.contains(&id) && (state.leader.is_none() || state.leader == Some(id))
    };
    partitions(image)
        .filter(|(_, _, state)| leads(state))
        .map(|(topic, index, _)| {
            change_record(topic, index, PartitionChangeRecord { leader: id.0, ..Default::default() })
        })
        .collect()
}

fn partitions(image: &Image) -> impl Iterator<Item = (Uuid, i32, &PartitionState)> {
    image
        .topics
        .values()
        .flat_map(|topic| (0..).zip(&topic.partitions).map(|(index, state)| (topic.id, index, state)))
}

fn change_record(topic: Uuid, index: i32, change: PartitionChangeRecord) -> MetadataRecord {
    let identified = PartitionChangeRecord { topic_id: topic, partition_id: index, ..change };
    MetadataRecord::PartitionChange(identified)
}
