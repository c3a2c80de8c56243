//! Loading what millions of commits have left: it comes to the state that the records say, however they are found again,
//! and tells how far it is.

mod driven;
mod memory;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use driven::Driven;
use klamm_coordinator::group::{CommittedOffset, Fetch, GroupRecord, GroupShard, Reply, Request};
use klamm_coordinator::machine::{Machine, Origin};
use klamm_coordinator::{GroupCoordinator, GroupSettings};
use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch, ProducerId, Uuid};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use klamm_protocol::records::consumer_offsets::group_metadata_value::GroupMetadataValue;
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_testing::{SeededRandom, SimulatedClock, told};
use memory::MemoryLog;
use proptest::prelude::*;
use requests::{committed, surroundings};

const GROUPS: [&str; 3] = ["g", "group-1", "group-2"];
const TOPICS: [&str; 3] = ["t", "topic-1", "topic-2"];
const PARTITIONS: std::ops::Range<i32> = 0..5;

/// Something in the log. The numbers are those of a group and a topic.
#[derive(Clone, Debug)]
enum Found {
    Commit {
        place: Place,
        offset: i64,
        expiry_ms: Option<i64>,
        transaction_of: ProducerId,
    },
    OffsetTombstone {
        place: Place,
    },
    Unreadable {
        place: Place,
        transaction_of: ProducerId,
    },
    Group {
        group: usize,
        generation: Option<i32>,
    },
    UnreadableGroup {
        group: usize,
    },
    /// A record of a kind that tells whether a group of another protocol exists.
    Foreign {
        group: usize,
        exists: bool,
    },
    /// A record of a kind that nobody knows yet.
    Newer,
    End {
        producer: ProducerId,
        is_commit: bool,
    },
}

/// Group, topic, partition.
type Place = (usize, usize, i32);

/// Group, and topic and partition of an offset.
type Key = (usize, Option<(usize, i32)>);

fn found() -> impl Strategy<Value = Found> {
    let place = || (0..GROUPS.len(), 0..TOPICS.len(), PARTITIONS);
    let group = || 0..GROUPS.len();
    let of = || prop_oneof![3 => Just(ProducerId::NONE), 1 => (1..3_i64).prop_map(ProducerId)];
    let expiry_ms = || prop::option::weighted(0.1, 0..9_i64);
    prop_oneof![
        40 => (place(), 0..99_i64, expiry_ms(), of()).prop_map(|(place, offset, expiry_ms, transaction_of)| {
            Found::Commit { place, offset, expiry_ms, transaction_of }
        }),
        10 => place().prop_map(|place| Found::OffsetTombstone { place }),
        1 => (place(), of()).prop_map(|(place, transaction_of)| Found::Unreadable { place, transaction_of }),
        5 => (group(), prop::option::of(0..9)).prop_map(|(group, generation)| Found::Group { group, generation }),
        1 => group().prop_map(|group| Found::UnreadableGroup { group }),
        1 => (group(), any::<bool>()).prop_map(|(group, exists)| Found::Foreign { group, exists }),
        2 => Just(Found::Newer),
        8 => (1..3_i64, any::<bool>()).prop_map(|(producer, is_commit)| {
            Found::End { producer: ProducerId(producer), is_commit }
        }),
    ]
}

fn value_of(offset: i64, expiry_ms: Option<i64>, record_offset: i64) -> CommittedOffset {
    CommittedOffset {
        offset,
        leader_epoch: -1,
        metadata: if offset % 3 == 0 { "metadata".to_owned() } else { String::new() },
        commit_timestamp_ms: record_offset,
        expire_timestamp_ms: expiry_ms,
        topic_id: Uuid::ZERO,
        record_offset,
    }
}

fn stored(generation: i32) -> GroupMetadataValue {
    GroupMetadataValue { protocol_type: "consumer".to_owned(), generation, ..Default::default() }
}

impl Found {
    /// Whose transaction it is in, and the bytes of its record; `None` for the end of a transaction.
    fn record(&self, record_offset: i64) -> Option<(ProducerId, Bytes, Option<Bytes>)> {
        let offset = |(group, topic, partition): Place, value| {
            let (group, topic) = (GROUPS[group].into(), TOPICS[topic].into());
            GroupRecord::Offset { group, topic, partition, value }
        };
        let group = |group: usize, value| GroupRecord::Group { group: GROUPS[group].into(), value };
        let encoded = |record: GroupRecord| record.encode().expect("encodes");
        let unknown_version = Some(Bytes::from_static(&[0, 99, 1, 2, 3]));
        let plain = |(key, value)| Some((ProducerId::NONE, key, value));
        match *self {
            Found::Commit { place, offset: at, expiry_ms, transaction_of } => {
                let (key, value) = encoded(offset(place, Some(value_of(at, expiry_ms, record_offset))));
                Some((transaction_of, key, value))
            }
            Found::OffsetTombstone { place } => plain(encoded(offset(place, None))),
            Found::Unreadable { place, transaction_of } => {
                Some((transaction_of, encoded(offset(place, None)).0, unknown_version))
            }
            Found::Group { group: index, generation } => plain(encoded(group(index, generation.map(stored)))),
            Found::UnreadableGroup { group: index } => {
                plain((encoded(group(index, None)).0, unknown_version))
            }
            Found::Foreign { group: index, exists } => {
                let mut key = encoded(group(index, None)).0.to_vec();
                key[1] = 3;
                plain((key.into(), exists.then(|| Bytes::from_static(&[0, 0]))))
            }
            Found::Newer => plain((Bytes::from_static(&[0, 99, 0, 1, b'g']), unknown_version)),
            Found::End { .. } => None,
        }
    }
}

/// What the records say, put down in the plainest way.
#[derive(Default)]
struct Plain {
    stored: BTreeMap<usize, GroupMetadataValue>,
    offsets: BTreeMap<Place, CommittedOffset>,
    pending: BTreeMap<(ProducerId, Place), CommittedOffset>,
    /// Offset and transaction of the newest record of a key that cannot be read; without a topic that of the group.
    unreadable: BTreeMap<Key, (i64, ProducerId)>,
    foreign: BTreeSet<usize>,
}

impl Plain {
    fn apply(&mut self, found: &Found, at: i64) {
        match *found {
            Found::Commit { place, offset, expiry_ms, transaction_of: ProducerId::NONE } => {
                self.unreadable.remove(&key_of(place));
                self.offsets.insert(place, value_of(offset, expiry_ms, at));
            }
            Found::Commit { place, offset, expiry_ms, transaction_of } => {
                self.pending.insert((transaction_of, place), value_of(offset, expiry_ms, at));
            }
            Found::OffsetTombstone { place } => {
                self.unreadable.remove(&key_of(place));
                self.offsets.remove(&place);
                self.pending.retain(|(_, pending), _| *pending != place);
            }
            Found::Unreadable { place, transaction_of } => {
                self.add_unreadable(key_of(place), (at, transaction_of));
            }
            Found::Group { group, generation } => {
                self.unreadable.remove(&(group, None));
                self.stored.remove(&group);
                self.stored.extend(generation.map(|generation| (group, stored(generation))));
            }
            Found::UnreadableGroup { group } => {
                self.stored.remove(&group);
                self.add_unreadable((group, None), (at, ProducerId::NONE));
            }
            Found::Foreign { group, exists: true } => drop(self.foreign.insert(group)),
            Found::Foreign { group, exists: false } => drop(self.foreign.remove(&group)),
            Found::Newer => {}
            Found::End { producer, is_commit } => self.end(producer, is_commit),
        }
    }

    /// One that counts only if its transaction is committed does not hide one that counts already.
    fn add_unreadable(&mut self, key: Key, record: (i64, ProducerId)) {
        if self.unreadable.get(&key).is_none_or(|(_, of)| *of != ProducerId::NONE) {
            self.unreadable.insert(key, record);
        }
    }

    fn end(&mut self, producer: ProducerId, is_commit: bool) {
        self.unreadable.retain(|_, (_, of)| is_commit || *of != producer);
        for (_, of) in self.unreadable.values_mut().filter(|(_, of)| *of == producer) {
            *of = ProducerId::NONE;
        }
        let (ended, open) =
            std::mem::take(&mut self.pending).into_iter().partition(|((of, _), _)| *of == producer);
        self.pending = open;
        let ended: BTreeMap<(ProducerId, Place), CommittedOffset> = ended;
        for ((_, place), offset) in ended.into_iter().filter(|_| is_commit) {
            if self.unreadable.get(&key_of(place)).is_some_and(|(at, _)| *at < offset.record_offset) {
                self.unreadable.remove(&key_of(place));
            }
            if self.offsets.get(&place).is_none_or(|before| before.record_offset < offset.record_offset) {
                self.offsets.insert(place, offset);
            }
        }
    }

    fn persisted(&self) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        for (index, group) in GROUPS.into_iter().enumerate() {
            if let Some(value) = self.stored.get(&index) {
                records.push(GroupRecord::Group { group: group.into(), value: Some(value.clone()) });
            }
            for ((_, topic, partition), offset) in self.offsets.iter().filter(|(place, _)| place.0 == index) {
                let (group, topic, value) = (group.into(), TOPICS[*topic].into(), Some(offset.clone()));
                records.push(GroupRecord::Offset { group, topic, partition: *partition, value });
            }
        }
        records
    }

    /// How many groups there are once all is loaded.
    fn group_count(&self) -> usize {
        let mut groups: BTreeSet<usize> = self.stored.keys().copied().collect();
        groups.extend(self.offsets.keys().map(|place| place.0));
        groups.extend(self.pending.keys().map(|(_, place)| place.0));
        groups.extend(self.unreadable.keys().map(|(group, _)| *group));
        groups.len()
    }

    /// Offset or error of each place of a group, for one who wants nothing that may still change.
    fn answer(&self, group: usize) -> Result<Vec<(i64, i16)>, ErrorCode> {
        if self.foreign.contains(&group) || self.unreadable.keys().any(|(of, _)| *of == group) {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let places = (0..TOPICS.len()).flat_map(|topic| PARTITIONS.map(move |index| (group, topic, index)));
        let answer = |place: Place| match self.offsets.get(&place) {
            _ if self.pending.keys().any(|(_, pending)| *pending == place) => {
                (-1, ErrorCode::UnstableOffsetCommit.code())
            }
            found => (found.map_or(-1, |found| found.offset), 0),
        };
        Ok(places.map(answer).collect())
    }
}

fn key_of((group, topic, partition): Place) -> Key {
    (group, Some((topic, partition)))
}

/// The same of the machine.
fn answer(groups: &mut Driven<GroupShard>, group: usize) -> Result<Vec<(i64, i16)>, ErrorCode> {
    let topic = |name: &str| OffsetFetchRequestTopics {
        name: name.to_owned(),
        partition_indexes: PARTITIONS.collect(),
        ..Default::default()
    };
    let topics = Some(TOPICS.map(topic).into());
    let group = OffsetFetchRequestGroup { group_id: GROUPS[group].to_owned(), topics, ..Default::default() };
    let image = Arc::new(Image::empty("cluster"));
    let reply = groups.ask(Request::Fetch(Fetch { group, require_stable: true, image })).pop();
    match reply {
        Some(Reply::Fetch(response)) => {
            let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            Ok(partitions.map(|partition| (partition.committed_offset, partition.error_code)).collect())
        }
        Some(Reply::Refused(error)) => Err(error),
        _ => panic!("no answer"),
    }
}

proptest! {
    /// A commit that is found again by a wrong shortcut moves the consumers of another group; one that is passed over
    /// sends its consumers back.
    #[test]
    fn what_is_loaded_is_what_the_records_say(log in prop::collection::vec(found(), 0..200)) {
        let mut groups = GroupShard::new(Arc::new(GroupSettings::default()));
        let mut plain = Plain::default();
        for (offset, found) in (0..).zip(&log) {
            plain.apply(found, offset);
            match (found, found.record(offset)) {
                (_, Some((transaction_of, key, value))) => {
                    groups.load(Origin { offset, transaction_of, written_ms: 0 }, &key, value.as_deref());
                }
                (Found::End { producer, is_commit }, None) => {
                    groups.replay_transaction_end(*producer, *is_commit);
                }
                _ => panic!("{found:?} has no record"),
            }
        }
        prop_assert_eq!(groups.persisted(), plain.persisted());
        let mut groups = Driven::over(groups);
        groups.machine.finish_loading(groups.now);
        prop_assert_eq!(groups.machine.group_count(), plain.group_count());
        for group in 0..GROUPS.len() {
            prop_assert_eq!(answer(&mut groups, group), plain.answer(group));
        }
    }
}

/// Batches of that many commits each with as many bytes of metadata.
fn large_log(batches: i64, commits: i64, metadata_len: usize) -> Arc<MemoryLog> {
    let mut log = Vec::new();
    for base_offset in (0..batches).map(|batch| batch * commits) {
        let mut batch = BatchBuilder::v2(BatchSettings { base_offset, ..BatchSettings::default() });
        for offset in base_offset..base_offset + commits {
            let metadata = "m".repeat(metadata_len);
            let value = Some(CommittedOffset { metadata, ..value_of(offset, None, offset) });
            let record = GroupRecord::Offset { group: "g".into(), topic: "t".into(), partition: 0, value };
            let (key, value) = record.encode().expect("encodes");
            batch.append(0, Some(&key), value.as_deref(), &[]);
        }
        log.extend_from_slice(&batch.build());
    }
    MemoryLog::holding(log.into())
}

/// Whoever waits for a coordinator that loads for minutes and hears nothing takes it for dead, and restarts it.
#[test]
fn who_waits_is_told_how_far_the_loading_is() {
    let log = large_log(20, 40, 30_000);
    let clock = SimulatedClock::default();
    log.slow_down(&clock, Duration::from_millis(250));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let lines = told(|| {
        runtime.block_on(async {
            let settings = GroupSettings { offsets_load_buffer_size: 1 << 20, ..GroupSettings::default() };
            let random = Arc::new(SeededRandom::new(7));
            let coordinator = GroupCoordinator::new(settings, Arc::new(clock), random, surroundings());
            coordinator.open(0, LeaderEpoch(0), log.clone());
            let mut refused = 0;
            while coordinator.loading().loading > 0 {
                let loading = ErrorCode::CoordinatorLoadInProgress.code();
                assert_eq!(committed(&coordinator, "g", "t").await, Err(loading));
                refused += 1;
                tokio::task::yield_now().await;
            }
            assert!(refused >= log.reads(), "{refused} answers in {} reads", log.reads());
            assert_eq!(committed(&coordinator, "g", "t").await, Ok(799));
        });
    });
    let size = log.content().len();
    let batch = size / 20;
    let progress = |batches: usize| {
        let (records, bytes) = (batches * 40, batches * batch);
        format!(
            "INFO the partition is being loaded, 4 MiB a second topic=\"__consumer_offsets\" partition=0 \
             records={records} bytes={bytes} of={size}"
        )
    };
    let end = format!(
        "INFO 1 groups loaded, 4 MiB a second topic=\"__consumer_offsets\" partition=0 records=800 bytes={size} \
         took_ms=5000"
    );
    assert_eq!(lines, [progress(8), progress(16), end]);
}
