//! The committed offsets of all groups of one partition of `__consumer_offsets`.
//!
//! A log of many millions of commits is mostly about offsets that are known already. So an offset has a slot of its own:
//! what was committed together stands side by side, so that the next one is looked for behind the last, and from
//! elsewhere [`Shortcuts`] lead there from a hash of its key. Ordered maps of names tell what belongs to a group; they are
//! asked only where nothing else leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::offsets::CommittedOffset;
use super::shortcuts::{Shortcuts, Slot};

/// Committed offsets by group, topic and partition.
#[derive(Default)]
pub(super) struct OffsetTable {
    entries: Vec<Option<Entry>>,
    /// The slots of entries that are none.
    free: Vec<Slot>,
    /// Without groups and topics that have no offset.
    by_group: BTreeMap<Arc<str>, Topics>,
    shortcuts: Shortcuts,
    /// Where the last offset was found.
    last: Slot,
}

/// Slots by topic and partition.
type Topics = BTreeMap<Arc<str>, BTreeMap<i32, Slot>>;

struct Entry {
    group: Arc<str>,
    topic: Arc<str>,
    partition: i32,
    offset: CommittedOffset,
}

impl Entry {
    fn key(&self) -> OffsetKey<'_> {
        OffsetKey::new(&self.group, &self.topic, self.partition)
    }
}

/// What an offset is found by. The names are bytes: those that are the same as a name that is known need no other check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OffsetKey<'a> {
    pub(super) partition: i32,
    pub(super) group: &'a [u8],
    pub(super) topic: &'a [u8],
}

impl<'a> OffsetKey<'a> {
    pub(super) fn new(group: &'a str, topic: &'a str, partition: i32) -> OffsetKey<'a> {
        OffsetKey { partition, group: group.as_bytes(), topic: topic.as_bytes() }
    }

    fn hash(&self) -> u64 {
        let seed = u64::from(self.partition.cast_unsigned());
        mix(mix(seed, self.group), self.topic)
    }
}

impl OffsetTable {
    pub(super) fn get(&self, group: &str, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        let short = self.find_short(&OffsetKey::new(group, topic, partition));
        let slot = short.or_else(|| self.find_long(group, topic, partition))?;
        self.entry(slot).map(|entry| &entry.offset)
    }

    pub(super) fn get_mut(
        &mut self,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Option<&mut CommittedOffset> {
        let key = OffsetKey::new(group, topic, partition);
        let slot = self.find_next(&key).or_else(|| {
            let slot = self.find_long(group, topic, partition)?;
            self.shortcuts.learn(key.hash(), slot);
            Some(slot)
        })?;
        self.visit(slot)
    }

    /// The same, but only if it is remembered where it is.
    #[inline]
    pub(super) fn recall(&mut self, key: &OffsetKey<'_>) -> Option<&mut CommittedOffset> {
        let slot = self.find_next(key)?;
        self.visit(slot)
    }

    /// Puts an offset where there was none, or in the place of another.
    pub(super) fn insert(
        &mut self,
        group: Arc<str>,
        topic: Arc<str>,
        partition: i32,
        offset: CommittedOffset,
    ) {
        if let Some(known) = self.get_mut(&group, &topic, partition) {
            *known = offset;
            return;
        }
        let hash = OffsetKey::new(&group, &topic, partition).hash();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Slot::last_of(&self.entries)
        });
        let partitions = self.by_group.entry(group.clone()).or_default().entry(topic.clone()).or_default();
        partitions.insert(partition, slot);
        self.make_room_for_shortcuts();
        self.shortcuts.learn(hash, slot);
        self.entries[slot.index()] = Some(Entry { group, topic, partition, offset });
    }

    pub(super) fn remove(&mut self, group: &str, topic: &str, partition: i32) {
        let Some(topics) = self.by_group.get_mut(group) else { return };
        let Some(partitions) = topics.get_mut(topic) else { return };
        let Some(slot) = partitions.remove(&partition) else { return };
        if partitions.is_empty() {
            topics.remove(topic);
        }
        if topics.is_empty() {
            self.by_group.remove(group);
        }
        self.entries[slot.index()] = None;
        self.free.push(slot);
        self.shortcuts.forget(OffsetKey::new(group, topic, partition).hash(), slot);
    }

    /// Whether a group has any.
    pub(super) fn has(&self, group: &str) -> bool {
        self.by_group.contains_key(group)
    }

    /// How many a group has.
    pub(super) fn count_of(&self, group: &str) -> usize {
        self.by_group.get(group).into_iter().flat_map(BTreeMap::values).map(BTreeMap::len).sum()
    }

    /// Those of a group by topic, and by partition, in order.
    pub(super) fn of_group(
        &self,
        group: &str,
    ) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = (i32, &CommittedOffset)>)> {
        let topics = self.by_group.get(group).into_iter().flatten();
        topics.map(|(topic, partitions)| {
            let offset = |(partition, slot): (&i32, &Slot)| Some((*partition, &self.entry(*slot)?.offset));
            (topic, partitions.iter().filter_map(offset))
        })
    }

    #[inline]
    fn entry(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot.index())?.as_ref()
    }

    #[inline]
    fn visit(&mut self, slot: Slot) -> Option<&mut CommittedOffset> {
        self.last = slot;
        self.entries.get_mut(slot.index())?.as_mut().map(|entry| &mut entry.offset)
    }

    #[inline]
    fn find_next(&self, key: &OffsetKey<'_>) -> Option<Slot> {
        let next = self.last.next();
        if self.is_at(next, key) { Some(next) } else { self.find_short(key) }
    }

    fn find_short(&self, key: &OffsetKey<'_>) -> Option<Slot> {
        self.shortcuts.of(key.hash()).find(|slot| self.is_at(*slot, key))
    }

    fn find_long(&self, group: &str, topic: &str, partition: i32) -> Option<Slot> {
        self.by_group.get(group)?.get(topic)?.get(&partition).copied()
    }

    #[inline]
    fn is_at(&self, slot: Slot, key: &OffsetKey<'_>) -> bool {
        self.entry(slot).is_some_and(|entry| entry.key() == *key)
    }

    fn make_room_for_shortcuts(&mut self) {
        if !self.shortcuts.grow_for(self.entries.len()) {
            return;
        }
        for (entry, slot) in self.entries.iter().zip(Slot::all()) {
            if let Some(entry) = entry {
                self.shortcuts.learn(entry.key().hash(), slot);
            }
        }
    }
}

/// Adds bytes to a hash. It has to be fast, and the same each time; who makes keys collide gains nothing.
fn mix(seed: u64, bytes: &[u8]) -> u64 {
    /// Odd, with as many ones as zeros in no pattern: the fraction of the golden ratio.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(MULTIPLIER);
        product as u64 ^ (product >> 64) as u64
    };
    let (words, rest) = bytes.as_chunks();
    let hash = words.iter().fold(seed, |hash, word| fold(hash, u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte));
    fold(hash, rest)
}

#[cfg(test)]
mod tests {
    use klamm_model::Uuid;
    use proptest::prelude::*;

    use super::*;

    type Place = (usize, usize, i32);

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Place),
        /// So many partitions of one topic, one behind the other.
        InsertAll(usize, usize, i32),
        Remove(Place),
        RemoveAll(usize, usize),
        /// The shortcut of one place leads to the slot of another, which may be free.
        LeadAstray(Place, u32),
        ForgetShortcuts,
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || (0..3_usize, 0..2_usize, 0..400_i32);
        prop_oneof![
            20 => place().prop_map(Step::Insert),
            4 => (0..3_usize, 0..2_usize, 0..400_i32).prop_map(|(group, topic, end)| Step::InsertAll(group, topic, end)),
            10 => place().prop_map(Step::Remove),
            1 => (0..3_usize, 0..2_usize).prop_map(|(group, topic)| Step::RemoveAll(group, topic)),
            5 => (place(), 0..500_u32).prop_map(|(place, slot)| Step::LeadAstray(place, slot)),
            1 => Just(Step::ForgetShortcuts),
        ]
    }

    fn offset(offset: i64) -> CommittedOffset {
        CommittedOffset {
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            commit_timestamp_ms: 0,
            expire_timestamp_ms: None,
            topic_id: Uuid::ZERO,
            record_offset: offset,
        }
    }

    const GROUPS: [&str; 3] = ["", "group-1", "group-two"];
    const TOPICS: [&str; 2] = ["t", "a-longer-topic"];

    /// Table and plain map side by side.
    #[derive(Default)]
    struct Both {
        table: OffsetTable,
        plain: BTreeMap<Place, i64>,
        next: i64,
    }

    impl Both {
        fn insert(&mut self, place: Place) {
            let (group, topic, partition) = place;
            let recalled = self.table.recall(&OffsetKey::new(GROUPS[group], TOPICS[topic], partition));
            let known = self.plain.get(&place);
            assert!(recalled.is_none_or(|recalled| Some(&recalled.offset) == known), "{place:?}");
            self.table.insert(GROUPS[group].into(), TOPICS[topic].into(), partition, offset(self.next));
            self.plain.insert(place, self.next);
            self.next += 1;
        }

        fn remove(&mut self, place: Place) {
            let (group, topic, partition) = place;
            self.table.remove(GROUPS[group], TOPICS[topic], partition);
            self.plain.remove(&place);
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Insert(place) => self.insert(place),
                Step::InsertAll(group, topic, end) => {
                    (0..end).for_each(|index| self.insert((group, topic, index)))
                }
                Step::Remove(place) => self.remove(place),
                Step::RemoveAll(group, topic) => {
                    (0..400).for_each(|index| self.remove((group, topic, index)))
                }
                Step::LeadAstray((group, topic, partition), index) => {
                    let slot = Slot::all().nth(index as usize).expect("there are as many");
                    let key = OffsetKey::new(GROUPS[group], TOPICS[topic], partition);
                    self.table.shortcuts.learn(key.hash(), slot);
                }
                Step::ForgetShortcuts => self.table.shortcuts = Shortcuts::default(),
            }
        }

        fn check(&mut self) {
            for (group, name) in GROUPS.iter().enumerate() {
                let of_group = self.table.of_group(name).flat_map(|(topic, offsets)| {
                    let topic = TOPICS.iter().position(|name| **name == **topic).expect("a topic");
                    offsets.map(move |(partition, offset)| ((group, topic, partition), offset.offset))
                });
                let of_group: BTreeMap<Place, i64> = of_group.collect();
                let expected = self.plain.iter().filter(|(place, _)| place.0 == group);
                let expected: BTreeMap<Place, i64> =
                    expected.map(|(place, offset)| (*place, *offset)).collect();
                assert_eq!(self.table.has(name), !expected.is_empty());
                assert_eq!(self.table.count_of(name), expected.len());
                assert_eq!(of_group, expected);
                for (topic, index) in
                    (0..TOPICS.len()).flat_map(|topic| (0..400).map(move |index| (topic, index)))
                {
                    let expected = expected.get(&(group, topic, index)).copied();
                    let found = self.table.get(name, TOPICS[topic], index).map(|found| found.offset);
                    assert_eq!(found, expected);
                    let found = self.table.get_mut(name, TOPICS[topic], index).map(|found| found.offset);
                    assert_eq!(found, expected);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// An offset that is found at a place where another stands now is that of a stranger.
        #[test]
        fn a_shortcut_changes_nothing_but_the_time_it_takes(steps in prop::collection::vec(step(), 0..100)) {
            let mut both = Both::default();
            for step in steps {
                both.take(step);
            }
            both.check();
        }
    }

    /// Slots and shortcuts of what is gone are used again: a group that commits for new topics for ever, and forgets the
    /// old ones, takes no more memory for that.
    #[test]
    fn what_is_removed_makes_room() {
        let mut table = OffsetTable::default();
        for round in 0..1000 {
            let topic: Arc<str> = format!("topic-{round}").into();
            (0..10).for_each(|index| table.insert("g".into(), topic.clone(), index, offset(round)));
            (0..10).for_each(|index| table.remove("g", &topic, index));
        }
        assert_eq!((table.entries.len(), table.free.len()), (10, 10));
        assert!(!table.has("g"));
    }
}
