//! The sockets of a node: the only crate that turns wire requests into calls, and calls' results into answers.
//!
//! It must never hold rules of its domain: what may be appended is `klamm-partition`'s matter, what a group does
//! `klamm-coordinator`'s, what a topic may be called or configured `klamm-metadata`'s. `api` has one file for each
//! API key; a handler holds no state and calls no other.

mod admin;
mod adoption;
mod api;
mod authorized_operations;
mod background;
mod broker_channel;
mod cleaning;
mod client_quotas;
mod connection;
mod context;
mod controller_channel;
mod coordinators;
mod directories;
mod directory_assignments;
mod elections;
mod fetch_sessions;
mod format;
mod image_follower;
mod isr_changes;
mod leader_hints;
mod lease;
mod lifecycle;
mod limits;
mod listener;
mod loggers;
mod marker_channel;
mod metadata_folder;
mod metrics;
mod moves;
mod partition_table;
mod peers;
mod pipeline;
mod planted;
mod producer_ids;
mod release;
mod replica_fetcher;
mod replication_throttle;
mod shown_records;
mod start;
mod stop;
mod strays;
mod suspicion;
mod topic_creation;
mod transaction_markers;
mod transaction_verification;
mod view;

pub use adoption::TakeoverError;
pub use format::{Format, FormatError, format};
pub use listener::{BindError, Bound, Endpoint, bind};
pub use loggers::{LogLevel, Loggers, ROOT_LOGGER};
#[cfg(debug_assertions)]
pub use planted::{PlantedBug, plant};
pub use release::{Others, ReleaseError, release};
pub use start::{Machine, Server, StartError, start};
pub use view::NodeView;
