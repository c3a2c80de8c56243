//! Feature levels: what the cluster as a whole agreed to use (KIP-584). ApiVersions tells clients.

use klamm_protocol::records::cluster_metadata::{FeatureLevelRecord, MetadataRecord};

use crate::image::Image;

/// Name, lowest and highest level that this Klamm supports. A feature that is not built stands not here, so
/// that clients take it for level 0: `group.version`, `share.version`, `streams.version`
/// and `eligible.leader.replicas.version`.
pub(crate) const SUPPORTED: &[(&str, i16, i16)] = &[(METADATA_VERSION, 7, 33), (TRANSACTION_VERSION, 0, 2)];

/// The feature that says which metadata records are in use. 33 is that of Kafka 4.4.
const METADATA_VERSION: &str = "metadata.version";

/// The feature that says how producers and brokers end transactions. With 2 each end raises the producer's epoch,
/// and brokers add partitions to transactions (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";

/// What a new cluster finalizes: the highest level of everything. Nothing where a level is set already.
pub fn initial_features(image: &Image) -> Vec<MetadataRecord> {
    let missing = SUPPORTED.iter().filter(|(name, _, highest)| *highest > 0 && image.feature(name) == 0);
    missing
        .map(|(name, _, highest)| {
            let name = (*name).to_owned();
            MetadataRecord::FeatureLevel(FeatureLevelRecord { name, feature_level: *highest })
        })
        .collect()
}
