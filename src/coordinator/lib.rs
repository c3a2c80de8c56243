//! The coordinators: classic consumer groups and committed offsets, kept in `__consumer_offsets`, and transactions,
//! kept in `__transaction_state`.
//!
//! `group` and `transaction` hold the pure state machines of one partition of these topics, `machine` what they
//! have in common; `runtime` gives each partition that this node leads a mailbox, a log and a timer; `api` turns
//! version-free requests into messages to the right mailboxes and joins their replies.
//!
//! This crate must never open a file or a socket, never answer before the records that the answer rests
//! on are below the high watermark, and never change what the log persists except through
//! [`group::GroupShard::replay`] and [`transaction::TransactionShard::replay`]. The state machines must never read
//! a clock, draw a random number or spawn a task: time and randomness are handed to them.

mod api;
mod coordinator;
mod deadlines;
pub mod group;
pub mod machine;
mod planted;
pub mod runtime;
mod settings;
pub mod transaction;
mod transaction_coordinator;

pub use api::{Question, Repeats};
pub use coordinator::{Client, GroupCoordinator, GroupEnvironment};
#[cfg(debug_assertions)]
pub use planted::{PlantedBug, plant};
pub use settings::{GroupSettings, TransactionSettings};
pub use transaction_coordinator::{TransactionCoordinator, TransactionEnvironment};

/// The partition of `__consumer_offsets` that a group belongs to, or of `__transaction_state` that a transactional
/// id belongs to, out of `count`: the absolute value of
/// Java's `String.hashCode`, 0 for the smallest int, as Kafka's `Utils.abs`.
pub fn partition_of(group: &str, count: i32) -> i32 {
    let hash =
        group.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    hash.checked_abs().unwrap_or(0) % count.max(1)
}

#[cfg(test)]
mod tests {
    use super::partition_of;

    /// A group that is looked for in another partition than where Kafka put it has lost its offsets.
    /// These are partitions in which Apache Kafka stored the groups.
    #[test]
    fn groups_are_where_kafka_puts_them() {
        for (group, partition) in [("static", 38), ("simple", 26), ("classic", 32), ("left", 17), ("", 0)] {
            assert_eq!(partition_of(group, 50), partition, "{group}");
        }
        // The hash of this string is i32::MIN, whose absolute value does not exist.
        assert_eq!(partition_of("polygenelubricants", 50), 0);
        assert_eq!(partition_of("群组", 50), partition_of("\u{7fa4}\u{7ec4}", 50));
    }
}
