//! Feature levels: what the cluster as a whole agreed to use (KIP-584). ApiVersions tells clients.

use std::collections::BTreeMap;

use klamm_protocol::records::cluster_metadata::{ConfigRecord, FeatureLevelRecord, MetadataRecord};

use super::ControllerContext;
use super::election::MIN_IN_SYNC_REPLICAS;
use crate::image::{ConfigResource, Image};

/// Name, lowest and highest level that this Klamm supports. A feature that is not built stands not here, so
/// that clients take it for level 0: `group.version`, `share.version` and `streams.version`.
pub(crate) const SUPPORTED: &[(&str, i16, i16)] = &[
    (METADATA_VERSION, 7, 33),
    (TRANSACTION_VERSION, 0, 2),
    (ELIGIBLE_LEADERS_VERSION, 0, 1),
    (KRAFT_VERSION, 0, 1),
];

/// The feature that says which metadata records are in use. 33 is that of Kafka 4.4.
pub(super) const METADATA_VERSION: &str = "metadata.version";

/// The feature that says how producers and brokers end transactions. With 2 each end raises the producer's epoch,
/// and brokers add partitions to transactions (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";

/// The feature that lets replicas outside of the ISR be elected that are known to have all that was acknowledged
/// (KIP-966).
pub(super) const ELIGIBLE_LEADERS_VERSION: &str = "eligible.leader.replicas.version";

/// The feature that says whether the voters of the quorum can be changed by commands (KIP-853).
pub(crate) const KRAFT_VERSION: &str = "kraft.version";

/// What a new cluster finalizes: the highest level of everything, except that its owner says whether commands may change
/// the voters. Nothing where levels are set already: somebody may have lowered one.
pub(super) fn initial_features(image: &Image, context: &ControllerContext<'_>) -> Vec<MetadataRecord> {
    if image.feature(METADATA_VERSION) > 0 {
        return Vec::new();
    }
    let level = |(name, _, highest): &(&str, i16, i16)| {
        MetadataRecord::from(FeatureLevelRecord { name: (*name).to_owned(), feature_level: *highest })
    };
    let initial = SUPPORTED.iter().filter(|(name, ..)| *name != KRAFT_VERSION);
    let mut records: Vec<MetadataRecord> = initial.map(level).collect();
    records.extend(fix_in_sync_replicas_min(image, context));
    records
}

/// Gives all brokers the same `min.insync.replicas` for topics that do not say, as Kafka does when eligible leaders
/// come into use: who is eligible depends on it, and the controller must know it.
pub(super) fn fix_in_sync_replicas_min(
    image: &Image,
    context: &ControllerContext<'_>,
) -> Vec<MetadataRecord> {
    let config = |resource: &ConfigResource, value: Option<&str>| {
        MetadataRecord::from(ConfigRecord {
            resource_type: resource.type_code(),
            resource_name: resource.name(),
            name: MIN_IN_SYNC_REPLICAS.to_owned(),
            value: value.map(str::to_owned),
        })
    };
    let is_set = |resource: &ConfigResource| image.config_of(resource).contains_key(MIN_IN_SYNC_REPLICAS);
    let all = ConfigResource::Broker(None);
    let mut records = Vec::new();
    if !is_set(&all) {
        let nothing = BTreeMap::new();
        let value = context.rules.topic_setting(MIN_IN_SYNC_REPLICAS, &nothing, &nothing);
        records.push(config(&all, Some(value.as_deref().unwrap_or("1"))));
    }
    let single = image.configs.keys().filter(|resource| matches!(resource, ConfigResource::Broker(Some(_))));
    records.extend(single.filter(|resource| is_set(resource)).map(|resource| config(resource, None)));
    records
}
