//! The one way in which what the log persists gets into memory, while loading and while serving.

use std::collections::BTreeSet;
use std::sync::Arc;

use klamm_model::ProducerId;

use super::classic::{Group, State};
use super::message::Request;
use super::offsets::CommittedOffset;
use super::record::{GroupRecord, decode_common_commit, offset_key};
use super::timer::Timer;
use super::unreadable::RecordKey;
use super::{Effects, GroupShard, Now, Origin, rebalance};

impl GroupShard {
    /// Applies one record. Any order that compaction can leave is fine: a tombstone without a value before
    /// it, an offset without its group.
    pub fn replay<Name: AsRef<str>>(&mut self, origin: Origin, record: GroupRecord<Name>) {
        if !self.unreadable.is_empty() && origin.transaction_of == ProducerId::NONE {
            record.key().into_iter().for_each(|key| self.unreadable.replaced(&key, origin.offset));
        }
        match record {
            GroupRecord::Group { group, value: Some(value) } => {
                self.group_entry(group.as_ref()).stored = Some(value);
            }
            GroupRecord::Group { group, value: None } => self.replay_group_tombstone(group.as_ref()),
            GroupRecord::Offset { group, topic, partition, value: Some(value) } => {
                let value = CommittedOffset { record_offset: origin.offset, ..value };
                self.replay_offset(origin.transaction_of, group.as_ref(), topic.as_ref(), partition, value);
            }
            GroupRecord::Offset { group, topic, partition, value: None } => {
                self.replay_offset_tombstone(group.as_ref(), topic.as_ref(), partition);
            }
            GroupRecord::Foreign { group, exists: true } => {
                self.foreign.entry(group.as_ref().into()).or_insert(false);
            }
            GroupRecord::Foreign { group, exists: false } => {
                self.foreign.remove(group.as_ref());
            }
        }
    }

    /// Applies the commit of an offset that is known already, without a look at anything else: nearly all records of a
    /// log are that. Returns false, and does nothing, for all others, which [`GroupShard::replay`] is for.
    pub(super) fn replay_again(&mut self, origin: Origin, key: &[u8], value: Option<&[u8]>) -> bool {
        if origin.transaction_of != ProducerId::NONE || !self.unreadable.is_empty() {
            return false;
        }
        let (Some(value), Some(key)) = (value, offset_key(key)) else { return false };
        let Some(known) = self.offsets.recall(&key) else { return false };
        let Some(commit) = decode_common_commit(value, origin.offset) else { return false };
        *known = commit;
        true
    }

    /// Applies a record of which only the key can be read. What was known under that key is not true any more.
    pub fn replay_unreadable(&mut self, origin: Origin, key: RecordKey) {
        let group = self.group_entry(&key.group);
        if key.place.is_none() {
            group.stored = None;
        }
        self.unreadable.insert(key, origin);
    }

    /// Applies the end of a transaction: what it committed becomes visible, or is dropped. A plain commit
    /// that stands later in the log wins over one of the transaction.
    pub fn replay_transaction_end(&mut self, producer: ProducerId, is_commit: bool) {
        self.unreadable.end_transaction(producer, is_commit);
        for ((group, topic, partition), offset) in self.pending.take(producer) {
            if !is_commit {
                continue;
            }
            let key = RecordKey::of_offset(&group, &topic, partition);
            self.unreadable.replaced(&key, offset.record_offset);
            let before = self.offsets.get(&group, &topic, partition);
            if before.is_none_or(|before| before.record_offset < offset.record_offset) {
                let group = self.group_id(&group);
                self.offsets.insert(group, topic, partition, offset);
            }
        }
    }

    /// Starts serving what was replayed: members get a session from now, deadlines run.
    pub fn finish_loading(&mut self, now: Now) -> Effects {
        let (offsets, pending, unreadable) = (&self.offsets, &self.pending, &self.unreadable);
        let is_used = |id: &Arc<str>, group: &Group| {
            group.stored.is_some()
                || offsets.has(id)
                || pending.places_of(id).next().is_some()
                || unreadable.has(id)
        };
        self.groups.retain(|id, group| is_used(id, group));
        self.forget_unused_topics();
        let check_ms = u64::try_from(self.settings.offsets_retention_check_interval_ms).unwrap_or(0);
        self.deadlines.set(Timer::CleanUp, now.monotonic_ms + check_ms.max(1));
        let ids: Vec<_> = self.groups.keys().cloned().collect();
        let mut effects = Effects::default();
        for id in ids {
            if self.foreign.contains_key(&id) {
                continue;
            }
            let Some((group, mut turn)) = self.turn(now, &id) else { continue };
            group.restore();
            let members: Vec<_> = group.members().map(|member| member.id.clone()).collect();
            for member in &members {
                turn.restart_session(group, member);
            }
            let size_max = usize::try_from(turn.settings.group_max_size).unwrap_or(0);
            if group.state == State::Stable && members.len() > size_max {
                rebalance::begin(&mut turn, group, "more members were loaded than are allowed");
            }
            effects.extend(turn.effects);
        }
        effects
    }

    /// All that is persisted, one record a group and an offset, by name. Offsets of open transactions are left
    /// out. Loading these records instead of the log leads to the same state.
    pub fn persisted(&self) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        for (id, group) in &self.groups {
            if let Some(value) = &group.stored {
                records.push(GroupRecord::Group { group: id.clone(), value: Some(value.clone()) });
            }
            for (topic, partitions) in self.offsets.of_group(id) {
                records.extend(partitions.map(|(partition, offset)| GroupRecord::Offset {
                    group: id.clone(),
                    topic: topic.clone(),
                    partition,
                    value: Some(offset.clone()),
                }));
            }
        }
        records
    }

    /// Whether a group is of a protocol that is not served; the first question is told to the log.
    pub(super) fn is_foreign(&mut self, group: &str) -> bool {
        let Some(is_told) = self.foreign.get_mut(group) else { return false };
        if !std::mem::replace(is_told, true) {
            tracing::warn!(
                group,
                "the group uses a consumer, share or streams protocol that is not served; its records are kept"
            );
        }
        true
    }

    /// Whether a request has to do with what cannot be read. Who looks is told that the group is there, its members can
    /// be removed, and it can be deleted, as can an offset.
    pub(super) fn is_unreadable_for(&self, request: &Request, group: &str) -> bool {
        match request {
            Request::Describe { .. } | Request::Delete { .. } => false,
            Request::Leave(_) | Request::DeleteOffsets(_) => {
                self.unreadable.contains(&RecordKey::of_group(&group.into()))
            }
            _ => self.unreadable.has(group),
        }
    }

    /// The one copy of a group's id; the group is made if it is new.
    fn group_id(&mut self, id: &str) -> Arc<str> {
        if let Some((known, _)) = self.groups.get_key_value(id) {
            return known.clone();
        }
        self.group_entry(id).id.clone()
    }

    fn group_entry(&mut self, id: &str) -> &mut Group {
        self.groups.entry(id.into()).or_insert_with_key(|id| Group::new(id.clone()))
    }

    /// A coordinator loads millions of these, of which nearly all take the place of another.
    fn replay_offset(
        &mut self,
        transaction_of: ProducerId,
        group: &str,
        topic: &str,
        partition: i32,
        value: CommittedOffset,
    ) {
        let is_plain = transaction_of == ProducerId::NONE;
        if is_plain && let Some(known) = self.offsets.get_mut(group, topic, partition) {
            *known = value;
            return;
        }
        let group = self.group_id(group);
        let topic = the_one_copy(&mut self.topics, topic);
        if is_plain {
            self.offsets.insert(group, topic, partition, value);
        } else {
            self.pending.insert(transaction_of, (group, topic, partition), value);
        }
    }

    /// Forgets the names of topics without offsets. Whoever has offsets of a topic holds its name.
    pub(super) fn forget_unused_topics(&mut self) {
        self.topics.retain(|topic| Arc::strong_count(topic) > 1);
    }

    fn replay_group_tombstone(&mut self, id: &str) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.stored = None;
        // While serving, only an empty group is deleted. One that members have come to since, or that still
        // has offsets, as in the middle of a log, lives on.
        let is_unused = !self.offsets.has(id)
            && group.size() == 0
            && group.state == State::Empty
            && self.pending.places_of(&group.id).next().is_none()
            && !self.unreadable.has(id);
        if is_unused {
            self.drop_group(id);
        }
    }

    fn replay_offset_tombstone(&mut self, id: &str, topic: &str, partition: i32) {
        if !self.pending.is_empty() {
            self.pending.forget(&(id.into(), topic.into(), partition));
        }
        self.offsets.remove(id, topic, partition);
    }

    /// Forgets a group and its deadlines.
    fn drop_group(&mut self, id: &str) {
        let Some(group) = self.groups.remove(id) else { return };
        let id = &group.id;
        for member in group.pending_join {
            self.deadlines.cancel(&Timer::Session { group: id.clone(), member });
        }
        self.deadlines.cancel(&Timer::Join { group: id.clone() });
        self.deadlines.cancel(&Timer::Sync { group: id.clone() });
    }
}

/// The one copy of a topic's name.
fn the_one_copy(topics: &mut BTreeSet<Arc<str>>, topic: &str) -> Arc<str> {
    if let Some(known) = topics.get(topic) {
        return known.clone();
    }
    let name: Arc<str> = topic.into();
    topics.insert(name.clone());
    name
}
