//! The settings of the group coordinator, with Kafka's names and defaults.

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
