//! The log store: partitions as Apache Kafka's folders of segments, indexes and checkpoints, byte for byte.
//!
//! This crate must never know the wire protocol, replication or a topic's config by name: its settings come as
//! a [`LogConfig`]. It must never judge what may be appended (`partition` does), never touch a disk but through
//! [`klamm_io::Disk`], never panic on what it finds there, and never allocate for what bytes merely claim.
//!
//! # What is durable when
//!
//! An append is one write. It survives the end of the process at once, and the end of the machine after
//! [`Log::flush`], which moves the recovery point. A clean stop ([`LogStore::close`]) leaves the marker
//! `.kafka_cleanshutdown`; without it the next [`LogStore::load`] scans each log from its recovery point on,
//! cuts what is torn, and makes the indexes of the scanned segments anew. So the indexes of the segment that
//! takes appends are written in blocks, when it suits, and never synced.

mod checkpoint;
mod cleaner;
mod config;
mod deletion;
mod entry_file;
mod error;
mod formats;
mod health;
mod index_entry;
mod leader_epochs;
mod log;
mod open_files;
mod partition_metadata;
mod planted;
mod positions;
mod producer_snapshot;
mod producers;
mod segment;
mod small_files;
mod store;
mod syncer;
mod walk;

pub use cleaner::{CleanedLog, Cleaner, CleanerSettings, CleanerStatus, Outcome};
pub use config::{CleanupPolicy, LogConfig};
pub use error::{ReadError, StorageError, StorageErrorKind};
pub use leader_epochs::EpochEntry;
pub use log::{AbortedTransaction, Appended, FlushDue, Log, LogSlice, Piece, Recovery};
#[cfg(debug_assertions)]
pub use planted::PlantedBug;
pub use producers::{BATCHES_MAX, ProducerBatch, ProducerState};
pub use segment::FoundOffset;
pub use store::{
    DirectoryStatus, FolderContents, Keeper, LoadReport, LogStore, Move, MoveError, PartitionFolder, Past,
    PlacementError, RecoveryStatus, StoreSettings, UncheckedPartition, Wanted, identity,
};
