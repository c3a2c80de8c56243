//! The settings of the coordinators, with Kafka's names and defaults.

use crate::runtime::RuntimeSettings;

/// What a broker's configuration says about groups. Each field is the config key of the same name, with
/// underscores for dots.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`: members of one group
    pub group_max_size: i32,
    /// `offset.metadata.max.bytes`, counted as Kafka does, in UTF-16 units
    pub offset_metadata_max_bytes: i32,
    /// `offsets.retention.minutes`
    pub offsets_retention_minutes: i32,
    /// `offsets.retention.check.interval.ms`
    pub offsets_retention_check_interval_ms: i64,
    /// `offsets.commit.timeout.ms`: how long a reply waits for its records to be committed
    pub offsets_commit_timeout_ms: i32,
    /// `offsets.load.buffer.size`: bytes read at once while a partition is loaded
    pub offsets_load_buffer_size: i32,
    /// `queued.max.requests`: requests that may wait in one mailbox
    pub queued_max_requests: i32,
    /// `group.coordinator.cached.buffer.max.bytes`: bytes of commits that go into one append
    pub group_coordinator_cached_buffer_max_bytes: i32,
}

impl GroupSettings {
    /// The part of it that the runtime acts on.
    pub(crate) fn runtime(&self) -> RuntimeSettings {
        RuntimeSettings {
            queue_max: self.queued_max_requests,
            load_bytes: self.offsets_load_buffer_size,
            commit_timeout_ms: self.offsets_commit_timeout_ms,
            append_bytes_max: self.group_coordinator_cached_buffer_max_bytes,
        }
    }
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: 3_000,
            group_max_size: i32::MAX,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_minutes: 10_080,
            offsets_retention_check_interval_ms: 600_000,
            offsets_commit_timeout_ms: 5_000,
            offsets_load_buffer_size: 5 * 1024 * 1024,
            queued_max_requests: 500,
            group_coordinator_cached_buffer_max_bytes: 1_048_588,
        }
    }
}

/// What a broker's configuration says about transactions. Each field is the config key of the same name, some with
/// `transaction.` or `transaction.state.log.` in front, with underscores for dots.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionSettings {
    /// `transaction.max.timeout.ms`
    pub max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`
    pub transactional_id_expiration_ms: i32,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`
    pub abort_timed_out_transaction_cleanup_interval_ms: i32,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`
    pub remove_expired_transaction_cleanup_interval_ms: i32,
    /// `transaction.state.log.load.buffer.size`: bytes read at once while a partition is loaded
    pub load_buffer_size: i32,
    /// `queued.max.requests`: requests that may wait in one mailbox
    pub queued_max_requests: i32,
    /// `request.timeout.ms`: how long a reply waits for its records to be committed
    pub request_timeout_ms: i32,
    /// Bytes of records that go into one append
    pub append_bytes_max: i32,
}

impl TransactionSettings {
    /// The part of it that the runtime acts on.
    pub(crate) fn runtime(&self) -> RuntimeSettings {
        RuntimeSettings {
            queue_max: self.queued_max_requests,
            load_bytes: self.load_buffer_size,
            commit_timeout_ms: self.request_timeout_ms,
            append_bytes_max: self.append_bytes_max,
        }
    }
}

impl Default for TransactionSettings {
    fn default() -> TransactionSettings {
        TransactionSettings {
            max_timeout_ms: 900_000,
            transactional_id_expiration_ms: 604_800_000,
            abort_timed_out_transaction_cleanup_interval_ms: 10_000,
            remove_expired_transaction_cleanup_interval_ms: 3_600_000,
            load_buffer_size: 5 * 1024 * 1024,
            queued_max_requests: 500,
            request_timeout_ms: 30_000,
            append_bytes_max: 1_048_588,
        }
    }
}
