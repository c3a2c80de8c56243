//! Brokers come, live and go: registration, heartbeats, and what that means for the partitions they hold
//! (KIP-631, KIP-841).

use std::sync::Arc;

use klamm_model::{ErrorCode, NodeId, TopicId};
use klamm_protocol::messages::broker_heartbeat::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};
use klamm_protocol::messages::broker_registration::{
    BrokerRegistrationRequest, BrokerRegistrationResponse, Feature,
};
use klamm_protocol::messages::unregister_broker::{UnregisterBrokerRequest, UnregisterBrokerResponse};
use klamm_protocol::records::cluster_metadata::{
    BrokerRegistrationChangeRecord, MetadataRecord, PartitionChangeRecord, RegisterBrokerRecord,
    UnregisterBrokerRecord, register_broker_record,
};

use super::ControllerContext;
use super::directories::take_offline;
use super::election::{Candidates, ElectionRules, PartitionTarget};
use super::features::{ELIGIBLE_LEADERS_VERSION, initial_features};
use crate::apply::apply_to;
use crate::image::{Broker, Image, PartitionState};

/// Registers a broker, fenced. A process that asks again, because the answer was lost or late, keeps the epoch that it
/// has. A second run of the process takes the place of the first: whatever that one
/// led is without a leader until the new one is unfenced. It is refused while the first one `has_session`, unless
/// the second knows its epoch: then the first has stopped cleanly. One that does not know it comes back from an
/// unclean stop, and may have lost what it had acknowledged: it is neither in sync nor eligible (KIP-966). One that
/// does not support a feature at its level is refused (KIP-584).
pub fn register_broker(
    image: &Image,
    context: &ControllerContext<'_>,
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
    let lacks_level = |feature: &Feature| {
        let level = image.feature(&feature.name);
        level > 0 && !(feature.min_supported_version..=feature.max_supported_version).contains(&level)
    };
    if request.features.iter().any(lacks_level) {
        return refuse(ErrorCode::UnsupportedVersion);
    }
    if let Some(present) = present.filter(|present| is_registered_so(present, request)) {
        let response = BrokerRegistrationResponse { broker_epoch: present.epoch, ..Default::default() };
        return (Vec::new(), response);
    }
    let epoch = next_epoch(image, id);
    // The first broker of a new cluster brings its features with it.
    let mut records = initial_features(image, context);
    if present.is_none_or(|present| present.incarnation != request.incarnation_id) {
        let is_clean = present.is_some_and(|present| present.epoch == request.previous_broker_epoch)
            || image.feature(ELIGIBLE_LEADERS_VERSION) == 0;
        let candidates = match is_clean {
            true => Candidates { leaving: Some(id), ..Candidates::default() },
            false => Candidates { unclean: Some(id), ..Candidates::default() },
        };
        records.extend(leave_partitions(image, context, candidates));
    }
    records.push(registration_record(request, epoch));
    (records, BrokerRegistrationResponse { broker_epoch: epoch, ..Default::default() })
}

/// Whether a broker is registered by this very process, and as it says that it is.
fn is_registered_so(present: &Arc<Broker>, request: &BrokerRegistrationRequest) -> bool {
    if present.incarnation != request.incarnation_id || present.in_controlled_shutdown {
        return false;
    }
    let mut image = Image::empty(&request.cluster_id);
    apply_to(&mut image, &registration_record(request, present.epoch));
    image.brokers.get(&present.id).is_some_and(|asked| {
        let fenced = present.fenced;
        Broker { fenced, ..(**asked).clone() } == **present
    })
}

/// Broker epochs rise with the log, so that an older one is told apart from a newer one. Each is the offset of the
/// entry that has the registration, but where brokers came from another log.
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

/// A broker says that it lives, and which of its log directories are offline. It is unfenced when it has caught up and wants to be, and begins a controlled
/// shutdown when it asks to. After one it must register again.
pub fn heartbeat_broker(
    image: &Image,
    context: &ControllerContext<'_>,
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
    // Nobody can have more than there is.
    let is_caught_up = request.current_metadata_offset >= broker.epoch.min(image.offset);
    let leaving = Candidates { leaving: Some(id), ..Candidates::default() };
    let mut records = take_offline(image, context, broker, &request.offline_log_dirs);
    let mut planned = image.clone();
    records.iter().for_each(|record| apply_to(&mut planned, record));
    let image = &planned;
    let mut response =
        BrokerHeartbeatResponse { is_caught_up, is_fenced: broker.fenced, ..Default::default() };
    if request.want_shut_down {
        let handed_over = leave_partitions(image, context, leaving);
        response.should_shut_down = broker.fenced || request.want_fence || handed_over.is_empty();
        if response.should_shut_down {
            records.extend(handed_over);
            if !broker.fenced {
                records.push(registration_change(broker, Fencing::Fenced, false));
            }
            response.is_fenced = true;
        } else {
            if !broker.in_controlled_shutdown {
                records.push(registration_change(broker, Fencing::Unchanged, true));
            }
            records.extend(handed_over);
        }
    } else if request.want_fence && !broker.fenced {
        records.extend(leave_partitions(image, context, leaving));
        records.push(registration_change(broker, Fencing::Fenced, false));
        response.is_fenced = true;
    } else if !request.want_fence && broker.fenced && is_caught_up && !broker.in_controlled_shutdown {
        records.push(registration_change(broker, Fencing::Unfenced, false));
        records.extend(return_to_partitions(image, context, id));
        response.is_fenced = false;
    }
    (records, response)
}

/// What a record changes about a broker's fence.
enum Fencing {
    Fenced,
    Unfenced,
    Unchanged,
}

fn registration_change(broker: &Broker, fencing: Fencing, in_controlled_shutdown: bool) -> MetadataRecord {
    let fenced = match fencing {
        Fencing::Fenced => 1,
        Fencing::Unfenced => -1,
        Fencing::Unchanged => 0,
    };
    MetadataRecord::BrokerRegistrationChange(BrokerRegistrationChangeRecord {
        broker_id: broker.id.0,
        broker_epoch: broker.epoch,
        fenced,
        in_controlled_shutdown: i8::from(in_controlled_shutdown),
        ..Default::default()
    })
}

/// Fences brokers that are not known to be alive: each leaves what it leads, and every ISR. One that has registered
/// again since, so that its epoch is another, is let be.
pub fn fence_brokers(
    image: &Image,
    context: &ControllerContext<'_>,
    expired: &[(NodeId, i64)],
) -> Vec<MetadataRecord> {
    let mut planned = image.clone();
    let mut records = Vec::new();
    for (id, epoch) in expired {
        let is_meant = |broker: &&Arc<Broker>| !broker.fenced && broker.epoch == *epoch;
        let Some(broker) = planned.brokers.get(id).filter(is_meant).cloned() else { continue };
        let leaving = Candidates { leaving: Some(*id), ..Candidates::default() };
        let mut fencing = leave_partitions(&planned, context, leaving);
        fencing.push(registration_change(&broker, Fencing::Fenced, false));
        if expired.len() > 1 {
            fencing.iter().for_each(|record| apply_to(&mut planned, record));
        }
        records.extend(fencing);
    }
    records
}

/// Takes a broker out of the cluster; 102 for one that is not in it.
pub fn unregister_broker(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &UnregisterBrokerRequest,
) -> (Vec<MetadataRecord>, UnregisterBrokerResponse) {
    let id = NodeId(request.broker_id);
    let Some(broker) = image.brokers.get(&id) else {
        let response = UnregisterBrokerResponse {
            error_code: ErrorCode::BrokerIdNotRegistered.code(),
            error_message: Some(format!("Broker ID {id} is not currently registered")),
            ..Default::default()
        };
        return (Vec::new(), response);
    };
    let leaving = Candidates { leaving: Some(id), ..Candidates::default() };
    let mut records = leave_partitions(image, context, leaving);
    records.push(MetadataRecord::UnregisterBroker(UnregisterBrokerRecord {
        broker_id: id.0,
        broker_epoch: broker.epoch,
    }));
    (records, UnregisterBrokerResponse { error_message: None, ..Default::default() })
}

/// A broker is about to be gone, or was: others take over what it leads, and it leaves every ISR. Where eligible
/// leaders are not in use, the last member stays in the ISR, since only it has everything, and leads no more.
fn leave_partitions(
    image: &Image,
    context: &ControllerContext<'_>,
    candidates: Candidates,
) -> Vec<MetadataRecord> {
    let goes = |id: &NodeId| candidates.leaving == Some(*id) || candidates.unclean == Some(*id);
    let concerns = |state: &PartitionState| {
        let was_eligible = candidates.unclean.is_some_and(|id| state.eligible_leaders.contains(&id));
        state.isr.iter().any(goes) || was_eligible
    };
    elect_where(image, context, concerns, |target| {
        target.candidates = candidates;
        target.isr.retain(|id| !goes(id));
    })
}

/// A broker is back: it leads what has no leader, where it may.
fn return_to_partitions(image: &Image, context: &ControllerContext<'_>, id: NodeId) -> Vec<MetadataRecord> {
    elect_where(
        image,
        context,
        |state| state.leader.is_none(),
        |target| {
            target.candidates.arriving = Some(id);
        },
    )
}

/// Plans each partition that is concerned towards what `aim` wants of it.
pub(super) fn elect_where(
    image: &Image,
    context: &ControllerContext<'_>,
    concerns: impl Fn(&PartitionState) -> bool,
    aim: impl Fn(&mut PartitionTarget<'_>),
) -> Vec<MetadataRecord> {
    let mut records = Vec::new();
    for topic in image.topics.values() {
        let mut rules = None;
        for (index, state) in (0..).zip(&topic.partitions).filter(|(_, state)| concerns(state)) {
            let rules = *rules.get_or_insert_with(|| ElectionRules::of(image, context, &topic.name));
            let mut target = PartitionTarget::new(image, context, state, rules);
            aim(&mut target);
            records.extend(target.plan().map(|change| change_record(topic.id, index, change)));
        }
    }
    records
}

pub(super) fn change_record(topic: TopicId, index: i32, change: PartitionChangeRecord) -> MetadataRecord {
    let identified = PartitionChangeRecord { topic_id: topic, partition_id: index, ..change };
    MetadataRecord::PartitionChange(identified)
}
