//! Offsets that nobody uses any more expire, and with the last one an empty group.

use klamm_model::TimestampMs;

use super::GroupShard;
use super::classic::{CONSUMER, Group, State};
use super::message::{Effects, Now, Then, Write};
use super::offsets::CommittedOffset;
use super::record::GroupRecord;
use super::timer::Timer;
use crate::planted::planted;

impl GroupShard {
    /// Looks through all groups, and sets the time of the next look.
    pub(super) fn clean_up(&mut self, now: Now) -> Effects {
        self.forget_unused_topics();
        let mut effects = Effects::default();
        for (id, group) in &self.groups {
            if self.foreign.contains_key(id) || self.unreadable.has(id) {
                continue;
            }
            let mut records = self.expired_offsets(now.wall_ms, group);
            let is_left = self.offsets.count_of(id) > records.len();
            let is_unused = !is_left
                && group.state == State::Empty
                && group.pending_join.is_empty()
                && self.pending.places_of(id).next().is_none();
            if is_unused {
                records.push(GroupRecord::Group { group: id.clone(), value: None });
                tracing::info!(group = &**id, "the group has no members and no offsets left: removed");
            }
            if !records.is_empty() {
                effects.writes.push(Write::plain(records, Then::Nothing));
            }
        }
        let check_ms = u64::try_from(self.settings.offsets_retention_check_interval_ms).unwrap_or(0);
        self.deadlines.set(Timer::CleanUp, now.monotonic_ms + check_ms.max(1));
        effects
    }

    fn expired_offsets(&self, now_ms: TimestampMs, group: &Group) -> Vec<GroupRecord> {
        let retention_ms = i64::from(self.settings.offsets_retention_minutes) * 60_000;
        let mut records = Vec::new();
        let Some(basis) = Basis::of(group) else { return records };
        for (topic, partitions) in self.offsets.of_group(&group.id) {
            let is_used = group.state != State::Empty && group.is_subscribed_to(topic);
            if is_used && !planted!(ExpireLiveOffsets) {
                continue;
            }
            for (partition, offset) in partitions {
                let is_expired = basis.is_expired(offset, now_ms, retention_ms);
                if is_expired && !self.pending.contains(&group.id, topic, partition) {
                    let group = group.id.clone();
                    records.push(GroupRecord::Offset { group, topic: topic.clone(), partition, value: None });
                }
            }
        }
        records
    }
}

/// From when on the retention time of an offset counts.
enum Basis {
    /// From when the group became empty.
    Since(TimestampMs),
    /// From the commit.
    Commit,
}

impl Basis {
    /// `None` while nothing of the group may expire.
    fn of(group: &Group) -> Option<Basis> {
        let Some(protocol_type) = &group.protocol_type else {
            // Nobody ever joined: its consumers assign themselves, and nothing tells whether they live.
            return Some(Basis::Commit);
        };
        if planted!(ExpireLiveOffsets) {
            return Some(Basis::Commit);
        }
        match group.state {
            // Groups stored by old versions do not tell since when they are empty.
            State::Empty => Some(group.state_since_ms.map_or(Basis::Commit, Basis::Since)),
            State::Stable if protocol_type == CONSUMER && group.subscribed_topics.is_some() => {
                Some(Basis::Commit)
            }
            _ => None,
        }
    }

    fn is_expired(&self, offset: &CommittedOffset, now_ms: TimestampMs, retention_ms: i64) -> bool {
        if let Some(expiry_ms) = offset.expire_timestamp_ms {
            return now_ms >= expiry_ms;
        }
        let from_ms = match self {
            Basis::Since(since_ms) => *since_ms,
            Basis::Commit => offset.commit_timestamp_ms,
        };
        now_ms.saturating_sub(from_ms) >= retention_ms
    }
}
