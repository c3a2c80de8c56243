//! Transactional ids whose newest record cannot be read: it is damaged, or of something newer.
//!
//! Nothing is written over such a record while its transaction may be open, since nobody knows its partitions. None is open
//! for longer than `transaction.max.timeout.ms`. After that time the id is as one that is not known: it can be had again, with a producer id of its own: the
//! old one may have an open transaction in some partition, which nothing must be added to.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_model::TimestampMs;

use super::TransactionShard;
use super::message::{Now, Request};

/// When the records were written that cannot be read.
#[derive(Default)]
pub(super) struct UnreadableRecords {
    written_ms: BTreeMap<Arc<str>, TimestampMs>,
}

impl UnreadableRecords {
    pub(super) fn insert(&mut self, id: Arc<str>, written_ms: TimestampMs) {
        self.written_ms.insert(id, written_ms);
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.written_ms.remove(id);
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.written_ms.contains_key(id)
    }

    /// All of them, by name.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.written_ms.keys()
    }

    /// What claims to come from the future counts from now on.
    pub(super) fn start(&mut self, now: Now) {
        self.written_ms.values_mut().for_each(|written_ms| *written_ms = now.wall_ms.min(*written_ms));
    }

    /// Those that were written at a time or before it.
    pub(super) fn written_before(&self, last_ms: TimestampMs) -> impl Iterator<Item = &Arc<str>> {
        self.written_ms.iter().filter(move |(_, written_ms)| **written_ms <= last_ms).map(|(id, _)| id)
    }
}

impl TransactionShard {
    /// Whether a request has to do with what cannot be read. Who looks is told that the id is there.
    pub(super) fn is_unreadable_for(&self, now: Now, request: &Request, id: &str) -> bool {
        let Some(written_ms) = self.unreadable.written_ms.get(id) else { return false };
        let is_looking = matches!(request, Request::Describe { .. });
        let may_be_open_ms = i64::from(self.settings.max_timeout_ms);
        !is_looking && now.wall_ms < written_ms.saturating_add(may_be_open_ms)
    }
}
