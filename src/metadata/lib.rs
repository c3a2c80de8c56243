//! The cluster's metadata: the image that every node holds, the records that change it, the controller that
//! turns requests into records, and the quorum that commits them.
//!
//! This crate must never open sockets (its network is the trait [`QuorumNetwork`], which the server
//! implements), know what is in a partition's log, or let anything but [`apply`] change an [`Image`]. The
//! functions in [`controller`] are pure: request, image and context in, records and reply out.

pub mod adoption;
mod apply;
pub mod controller;
mod format;
mod image;
mod image_records;
mod kept;
mod node;
mod planted;
mod quorum;
mod rules;

pub use apply::{apply, apply_to};
pub use controller::{BrokerConfigError, ConfigRules, DescribedConfig, InternalTopic, TopicDefaults};
pub use format::{InitialVoters, format};
pub use image::{
    Broker, ConfigResource, DIRECTORY_LOST, Endpoint, Image, PartitionState, RecoveryState, Topic,
    feature_ranges,
};
pub use kept::{Kept, QuotaEntity};
pub use node::{
    Decisions, Identity, Keep, MetadataNode, QuorumSettings, QuorumState, ReplicaProgress, Settings,
    StartError, Voter, VoterChange, VoterChangeError, holds_metadata,
};
pub use planted::Planted;
#[cfg(debug_assertions)]
pub use planted::{PlantedBug, plant};
pub use quorum::network::{NoPeers, PeerError, QuorumMessage, QuorumNetwork};
pub use quorum::replica_key::ReplicaKey;
pub use rules::KafkaRules;
