//! UpdateFeatures (KIP-584, KIP-778): feature levels are raised and lowered, all of a request or none.

use std::collections::BTreeMap;

use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::messages::update_features::{
    FeatureUpdateKey, UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use klamm_protocol::records::cluster_metadata::{FeatureLevelRecord, MetadataRecord, PartitionChangeRecord};

use super::brokers::change_record;
use super::features::{
    ELIGIBLE_LEADERS_VERSION, KRAFT_VERSION, METADATA_VERSION, SUPPORTED, fix_in_sync_replicas_min,
};
use super::{ControllerContext, Refusal};
use crate::image::{Image, PartitionState};

/// "Raise it"; 2 lowers it where nothing is lost by that, and 3 in any case.
const UPGRADE: i8 = 1;
const UNSAFE_DOWNGRADE: i8 = 3;

/// Changes feature levels. As in Kafka, the first one that cannot be changed fails them all.
pub fn update_features(
    image: &Image,
    context: &ControllerContext<'_>,
    request: &UpdateFeaturesRequest,
) -> (Vec<MetadataRecord>, UpdateFeaturesResponse) {
    let mut levels: BTreeMap<&str, i16> = BTreeMap::new();
    for update in &request.feature_updates {
        if let Err(refusal) = check(image, update) {
            let message = format!(
                "The update failed for all features since the following feature had an error: {}",
                refusal.message
            );
            let response = UpdateFeaturesResponse {
                error_code: refusal.code.code(),
                error_message: Some(message),
                ..Default::default()
            };
            return (Vec::new(), response);
        }
        levels.insert(&update.feature, update.max_version_level);
    }
    let results = request.feature_updates.iter().map(|update| UpdatableFeatureResult {
        feature: update.feature.clone(),
        error_code: ErrorCode::None.code(),
        // Kafka's word for success.
        error_message: Some("NONE".to_owned()),
    });
    let response =
        UpdateFeaturesResponse { error_message: None, results: results.collect(), ..Default::default() };
    if request.validate_only {
        return (Vec::new(), response);
    }
    let changed = levels.into_iter().filter(|(name, level)| image.feature(name) != *level);
    let mut records = Vec::new();
    for (name, level) in changed {
        records
            .push(MetadataRecord::from(FeatureLevelRecord { name: name.to_owned(), feature_level: level }));
        if name == ELIGIBLE_LEADERS_VERSION {
            records.extend(match level {
                0 => without_eligible_leaders(image),
                _ => fix_in_sync_replicas_min(image, context),
            });
        }
    }
    (records, response)
}

fn check(image: &Image, update: &FeatureUpdateKey) -> Result<(), Refusal> {
    let FeatureUpdateKey { feature, max_version_level: level, upgrade_type, .. } = update;
    let here = image.controller.map_or_else(String::new, |id| format!(" {id}"));
    let refuse = |why: String| {
        let message = format!("Invalid update version {level} for feature {feature}. {why}");
        Err(Refusal::new(ErrorCode::InvalidUpdateVersion, message))
    };
    if *level < 0 {
        return refuse("A feature version cannot be less than 0.".to_owned());
    }
    let Some((_, lowest, highest)) = SUPPORTED.iter().find(|(name, ..)| name == feature) else {
        return refuse(match level {
            0 => format!("Feature {feature} not found."),
            _ => format!("Local controller{here} does not support this feature."),
        });
    };
    if !(1..=3).contains(upgrade_type) {
        return refuse(format!(
            "there is no kind of change {upgrade_type}: raise (1), lower (2), lower unsafely (3)"
        ));
    }
    if !(*lowest..=*highest).contains(level) {
        return refuse(format!("Local controller{here} only supports versions {lowest}-{highest}"));
    }
    if let Some((broker, range)) = unsupporting(image, feature, *level) {
        let supported = range
            .map_or("no level of it".to_owned(), |(lowest, highest)| format!("levels {lowest} to {highest}"));
        return refuse(format!("broker {broker} supports {supported}"));
    }
    let present = image.feature(feature);
    if *level < present && *upgrade_type == UPGRADE {
        let why = "Can't downgrade the version of this feature without setting the upgrade type to either safe or \
                   unsafe downgrade.";
        return refuse(why.to_owned());
    }
    if *level < present && feature == KRAFT_VERSION {
        return refuse(format!("it is at {present} now, and cannot be lowered"));
    }
    if *level < present && feature == METADATA_VERSION {
        let why = match *upgrade_type {
            UNSAFE_DOWNGRADE => "Unsafe metadata downgrade is not supported in this version.",
            _ => "Refusing to perform the requested downgrade because it might delete metadata information.",
        };
        let message = format!("Unsupported metadata.version downgrade from {present} to {level}. {why}");
        return Err(Refusal::new(ErrorCode::InvalidUpdateVersion, message));
    }
    Ok(())
}

/// A registered broker that does not support a level above 0, and the range that it does.
fn unsupporting(image: &Image, feature: &str, level: i16) -> Option<(NodeId, Option<(i16, i16)>)> {
    let ranges = image.brokers.values().map(|broker| (broker.id, broker.features.get(feature).copied()));
    let lacks = |range: &Option<(i16, i16)>| {
        range.is_none_or(|(lowest, highest)| !(lowest..=highest).contains(&level))
    };
    ranges.into_iter().find(|(_, range)| level > 0 && lacks(range))
}

/// Without eligible leaders, a partition that has nobody in sync could never be led again: the one who led last, or
/// another who was safe to elect, counts as in sync, as the last member of an ISR does.
fn without_eligible_leaders(image: &Image) -> Vec<MetadataRecord> {
    let is_concerned = |state: &PartitionState| {
        !state.eligible_leaders.is_empty()
            || !state.last_known_eligible_leaders.is_empty()
            || state.isr.is_empty()
    };
    let mut records = Vec::new();
    for topic in image.topics.values() {
        for (index, state) in (0..).zip(&topic.partitions).filter(|(_, state)| is_concerned(state)) {
            let last = state.last_known_eligible_leaders.first();
            let is_eligible = |id: &&NodeId| state.eligible_leaders.contains(id);
            let safe = last.filter(is_eligible).or(state.eligible_leaders.first()).or(last);
            let isr = safe.filter(|_| state.isr.is_empty()).map(|safe| vec![safe.0]);
            let change = PartitionChangeRecord {
                isr,
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                ..Default::default()
            };
            records.push(change_record(topic.id, index, change));
        }
    }
    records
}
