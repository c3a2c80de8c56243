//! Records that cannot be read: written by something newer, or damaged.
//!
//! A group with one is not served, so that nothing is written over what cannot be read, and so that no consumer is
//! told an older offset than it committed. It is served again once a record that can be read, or a tombstone, stands
//! behind the last one that cannot: each key has its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_model::{Offset, ProducerId};

use super::Origin;

/// What a record of a group is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordKey {
    /// The group.
    pub group: Arc<str>,
    /// Topic and partition of an offset; `None` for the group itself.
    pub place: Option<(Arc<str>, i32)>,
}

impl RecordKey {
    /// Of the group itself.
    pub(super) fn of_group(group: &Arc<str>) -> RecordKey {
        RecordKey { group: group.clone(), place: None }
    }

    /// Of one committed offset.
    pub(super) fn of_offset(group: &Arc<str>, topic: &Arc<str>, partition: i32) -> RecordKey {
        RecordKey { group: group.clone(), place: Some((topic.clone(), partition)) }
    }
}

/// The keys whose newest record cannot be read.
#[derive(Default)]
pub(super) struct UnreadableRecords {
    by_key: BTreeMap<RecordKey, Origin>,
}

impl UnreadableRecords {
    pub(super) fn insert(&mut self, key: RecordKey, origin: Origin) {
        match self.by_key.get(&key) {
            // An offset that counts only if its transaction is committed does not hide one that counts already.
            Some(known) if known.transaction_of == ProducerId::NONE => {}
            _ => {
                self.by_key.insert(key, origin);
            }
        }
    }

    /// A record that can be read, or a tombstone, counts from now on, and stands at an offset of the log.
    pub(super) fn replaced(&mut self, key: &RecordKey, at: Offset) {
        if self.by_key.get(key).is_some_and(|unreadable| unreadable.offset < at) {
            self.by_key.remove(key);
        }
    }

    pub(super) fn end_transaction(&mut self, producer: ProducerId, is_commit: bool) {
        if is_commit {
            let of_it = self.by_key.values_mut().filter(|origin| origin.transaction_of == producer);
            of_it.for_each(|origin| origin.transaction_of = ProducerId::NONE);
        } else {
            self.by_key.retain(|_, origin| origin.transaction_of != producer);
        }
    }

    /// The keys of one group.
    pub(super) fn keys_of(&self, group: &str) -> impl Iterator<Item = &RecordKey> {
        let group: Arc<str> = group.into();
        let first = RecordKey::of_group(&group);
        self.by_key.range(first..).map(|(key, _)| key).take_while(move |key| key.group == group)
    }

    pub(super) fn has(&self, group: &str) -> bool {
        !self.by_key.is_empty() && self.keys_of(group).next().is_some()
    }

    pub(super) fn contains(&self, key: &RecordKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
