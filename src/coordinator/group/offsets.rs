//! Committed offsets, and those of transactions that have not ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_metadata::Image;
use klamm_model::{Offset, ProducerId, TimestampMs, Uuid};

/// What a group committed for one partition.
#[derive(Clone, PartialEq, Debug)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: Offset,
    /// The leader epoch of the last record that was read, or -1 (KIP-320).
    pub leader_epoch: i32,
    /// What the consumer wrote beside it.
    pub metadata: String,
    /// When it was committed.
    pub commit_timestamp_ms: TimestampMs,
    /// When it expires, if the commit said so (versions 2 to 4).
    pub expire_timestamp_ms: Option<TimestampMs>,
    /// The topic's id; zero if it was not known.
    pub topic_id: Uuid,
    /// Where its record stands in the log; -1 until it is there.
    pub record_offset: Offset,
}

impl CommittedOffset {
    /// Whether it was committed for a topic of that name that was deleted since.
    pub(super) fn is_of_another_topic(&self, topic_id: Uuid) -> bool {
        !self.topic_id.is_zero() && !topic_id.is_zero() && self.topic_id != topic_id
    }

    /// Whether the topic that it was committed for is not the one that has the name in this image, if any has.
    pub(super) fn is_stale(&self, image: &Image, topic: &str) -> bool {
        image.topic_ids.get(topic).is_none_or(|id| self.is_of_another_topic(*id))
    }
}

/// Group, topic, partition.
type Place = (Arc<str>, Arc<str>, i32);

/// Offsets that were committed in transactions that are still open.
#[derive(Default)]
pub(super) struct PendingOffsets {
    by_producer: BTreeMap<ProducerId, BTreeMap<Place, CommittedOffset>>,
    by_place: BTreeMap<Place, BTreeSet<ProducerId>>,
}

impl PendingOffsets {
    pub(super) fn insert(&mut self, producer: ProducerId, place: Place, offset: CommittedOffset) {
        self.by_place.entry(place.clone()).or_default().insert(producer);
        self.by_producer.entry(producer).or_default().insert(place, offset);
    }

    /// Takes all that one producer has pending.
    pub(super) fn take(&mut self, producer: ProducerId) -> BTreeMap<Place, CommittedOffset> {
        let taken = self.by_producer.remove(&producer).unwrap_or_default();
        for place in taken.keys() {
            self.unlink(place, producer);
        }
        taken
    }

    /// Forgets what is pending for one place, after its tombstone.
    pub(super) fn forget(&mut self, place: &Place) {
        for producer in self.by_place.remove(place).unwrap_or_default() {
            if let Some(offsets) = self.by_producer.get_mut(&producer) {
                offsets.remove(place);
                if offsets.is_empty() {
                    self.by_producer.remove(&producer);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    pub(super) fn contains(&self, group: &Arc<str>, topic: &Arc<str>, partition: i32) -> bool {
        !self.by_place.is_empty() && self.by_place.contains_key(&(group.clone(), topic.clone(), partition))
    }

    /// The topics and partitions of a group with something pending.
    pub(super) fn places_of(&self, group: &Arc<str>) -> impl Iterator<Item = &Place> {
        let first = (group.clone(), Arc::from(""), i32::MIN);
        let group = group.clone();
        self.by_place.range(first..).map(|(place, _)| place).take_while(move |place| place.0 == group)
    }

    /// What is pending for one place.
    pub(super) fn offsets_at(
        &self,
        group: &Arc<str>,
        topic: &Arc<str>,
        partition: i32,
    ) -> impl Iterator<Item = &CommittedOffset> {
        let place = (group.clone(), topic.clone(), partition);
        let producers = self.by_place.get(&place).into_iter().flatten();
        producers.filter_map(move |producer| self.by_producer.get(producer)?.get(&place))
    }

    fn unlink(&mut self, place: &Place, producer: ProducerId) {
        if let Some(producers) = self.by_place.get_mut(place) {
            producers.remove(&producer);
            if producers.is_empty() {
                self.by_place.remove(place);
            }
        }
    }
}
