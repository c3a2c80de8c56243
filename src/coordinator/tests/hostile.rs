//! Bytes that no client and no Kafka would write: in the blobs of requests that coordinators look into, and in the records
//! that they read back. Nothing panics, nothing is lost but what cannot be read, and all can be described and removed.

mod driven;

use std::sync::Arc;

use bytes::Bytes;
use driven::Driven;
use klamm_coordinator::group::{CommittedOffset, GroupRecord, GroupShard, Join, Reply, Request};
use klamm_coordinator::machine::{Machine, Origin};
use klamm_coordinator::transaction::{self, Init, State, TransactionRecord, TransactionShard};
use klamm_coordinator::{GroupSettings, TransactionSettings};
use klamm_model::{ProducerId, Uuid};
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use klamm_protocol::messages::leave_group::{LeaveGroupRequest, MemberIdentity};
use klamm_protocol::messages::list_transactions::TransactionState;
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use klamm_protocol::records::consumer_offsets::offset_commit_value::OffsetCommitValue;
use klamm_protocol::{decode_versioned, encode_versioned};
use proptest::prelude::*;

/// The kinds of keys that tell of consumer, share and streams groups.
const FOREIGN: [i16; 3] = [3, 11, 17];

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// What befell some bytes.
#[derive(Clone, Debug)]
enum Damage {
    Nothing,
    Cut(prop::sample::Index),
    Flipped(prop::sample::Index, u8),
    /// The first two bytes, which are the version or the kind.
    Version(i16),
    Followed(Vec<u8>),
    Replaced(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        2 => Just(Damage::Nothing),
        2 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        3 => (any::<prop::sample::Index>(), 1..=u8::MAX).prop_map(|(at, by)| Damage::Flipped(at, by)),
        2 => any::<i16>().prop_map(Damage::Version),
        1 => (-1..30_i16).prop_map(Damage::Version),
        1 => prop::collection::vec(any::<u8>(), 1..20).prop_map(Damage::Followed),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Damage::Replaced),
    ]
}

impl Damage {
    fn of(&self, bytes: &[u8]) -> Bytes {
        let mut bytes = bytes.to_vec();
        match self {
            Damage::Nothing => {}
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Damage::Flipped(at, by) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            Damage::Flipped(..) => {}
            Damage::Version(version) => {
                let head = bytes.len().min(2);
                bytes[..head].copy_from_slice(&version.to_be_bytes()[..head]);
            }
            Damage::Followed(more) => bytes.extend(more),
            Damage::Replaced(other) => bytes.clone_from(other),
        }
        bytes.into()
    }
}

/// Which record, what befell its key and its value, and whether it is of a transaction or a tombstone.
type Found = (usize, Damage, Damage, bool, bool);

fn found(kinds: usize) -> impl Strategy<Value = Vec<Found>> {
    let rare = || prop::bool::weighted(0.1);
    let key = prop_oneof![3 => Just(Damage::Nothing), 1 => damage()];
    prop::collection::vec((0..kinds, key, damage(), rare(), rare()), 0..30)
}

fn load<M: Machine>(machine: &mut M, records: &[(Bytes, Option<Bytes>)], found: &[Found]) {
    for (offset, (which, key, value, is_transactional, is_tombstone)) in (0..).zip(found) {
        let (whole_key, whole_value) = &records[*which];
        let value = whole_value.as_ref().filter(|_| !is_tombstone).map(|whole| value.of(whole));
        let transaction_of = if *is_transactional { ProducerId(7) } else { ProducerId::NONE };
        let key = key.of(whole_key);
        // Groups of protocols that are not served are kept as they are.
        if FOREIGN.iter().any(|kind| key.starts_with(&kind.to_be_bytes())) {
            continue;
        }
        machine.load(Origin { offset, transaction_of, written_ms: offset }, &key, value.as_deref());
    }
}

/// Records of two groups, as they are written.
fn group_records() -> Vec<(Bytes, Option<Bytes>)> {
    let mut groups = Driven::start(GroupShard::new(Arc::new(GroupSettings::default())));
    let mut records = Vec::new();
    for group in ["g", "h"] {
        stable(&mut groups, group, subscription(&["t", "u"], b"user data"), Bytes::from_static(b"assigned"));
        for (topic, metadata) in [("t", ""), ("u", "metadata")] {
            let value = CommittedOffset {
                offset: 5,
                leader_epoch: 3,
                metadata: metadata.to_owned(),
                commit_timestamp_ms: 0,
                expire_timestamp_ms: None,
                topic_id: Uuid([1; 16]),
                record_offset: -1,
            };
            let value = Some(value);
            records.push(GroupRecord::Offset {
                group: group.into(),
                topic: topic.into(),
                partition: 0,
                value,
            });
        }
    }
    records.extend(groups.machine.persisted());
    records.iter().map(|record| record.encode().expect("encodes")).collect()
}

/// A subscription as consumers write it in its first version.
fn subscription(topics: &[&str], user_data: &[u8]) -> Bytes {
    let mut bytes = vec![0, 0];
    bytes.extend((topics.len() as i32).to_be_bytes());
    for topic in topics {
        bytes.extend((topic.len() as i16).to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    bytes.extend((user_data.len() as i32).to_be_bytes());
    bytes.extend(user_data);
    bytes.into()
}

/// Makes a group with one member that offers this and is assigned that; returns the member's id.
fn stable(groups: &mut Driven<GroupShard>, group: &str, metadata: Bytes, assignment: Bytes) -> String {
    let request = JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".to_owned(), metadata }],
        ..Default::default()
    };
    let (client_id, client_host) = ("c".to_owned(), "/127.0.0.1".to_owned());
    groups.ask(Request::Join(Box::new(Join {
        version: 3,
        client_id,
        client_host,
        random: [1; 16],
        request,
    })));
    groups.wait(3_000);
    let heard = groups.ask(Request::Describe { version: 5, group: "nobody".to_owned() });
    let joined = heard.into_iter().find_map(|reply| match reply {
        Reply::Join(joined) => Some(joined),
        _ => None,
    });
    let joined = joined.expect("it has joined");
    assert_eq!(joined.error_code, 0);
    let member_id = joined.member_id;
    let assignments = vec![SyncGroupRequestAssignment { member_id: member_id.clone(), assignment }];
    let request = SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: member_id.clone(),
        assignments,
        ..Default::default()
    };
    groups.ask(Request::Sync(request));
    member_id
}

fn group_names(groups: &mut Driven<GroupShard>) -> Vec<String> {
    match groups.ask(Request::List { states: Vec::new(), types: Vec::new() }).pop() {
        Some(Reply::List(listed)) => listed.into_iter().map(|group| group.group_id).collect(),
        other => panic!("{other:?}"),
    }
}

fn transactional_ids(transactions: &mut Driven<TransactionShard>) -> Vec<TransactionState> {
    let filter = transaction::Filter { longer_than_ms: -1, ..Default::default() };
    match transactions.ask(transaction::Request::List(filter)).pop() {
        Some(transaction::Reply::Listed(listed)) => listed,
        other => panic!("{other:?}"),
    }
}

/// Records of two transactional ids in each state, as they are written.
fn transaction_records() -> Vec<(Bytes, Option<Bytes>)> {
    let mut records = Vec::new();
    for id in ["a", "b"] {
        for state in State::ALL {
            let value = transaction::Transaction {
                producer_id: ProducerId(7),
                previous_producer_id: ProducerId(6),
                next_producer_id: ProducerId(8),
                producer_epoch: klamm_model::ProducerEpoch(3),
                last_producer_epoch: klamm_model::ProducerEpoch(-1),
                timeout_ms: 60_000,
                state,
                partitions: [("t".into(), [0, 1].into())].into(),
                last_update_ms: 5,
                start_ms: 5,
                version: transaction::TransactionVersion(2),
            };
            let record = TransactionRecord { transactional_id: id.into(), value: Some(value) };
            records.push(record.encode().expect("encodes"));
        }
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is found, each group that is listed can be described and, once its members are gone, deleted; and a group
    /// that was hurt serves again.
    #[test]
    fn groups_can_be_removed_whatever_the_log_holds(found in found(6)) {
        let records = group_records();
        let mut shard = GroupShard::new(Arc::new(GroupSettings::default()));
        load(&mut shard, &records, &found);
        shard.replay_transaction_end(ProducerId(7), found.len() % 2 == 0);
        let mut groups = Driven::start(shard);
        groups.records = found.len() as i64;
        // Sessions that no client would ask for are stored as they are.
        for group in group_names(&mut groups) {
            let described = groups.ask(Request::Describe { version: 5, group: group.clone() }).pop();
            let Some(Reply::Describe(described)) = described else { panic!("{described:?}") };
            for member in described.members {
                let members = vec![MemberIdentity { member_id: member.member_id, ..Default::default() }];
                groups.ask(Request::Leave(LeaveGroupRequest { group_id: group.clone(), members, ..Default::default() }));
            }
        }
        groups.wait(60_000);
        for group in group_names(&mut groups) {
            groups.ask(Request::Delete { group });
        }
        let left = group_names(&mut groups);
        groups.wait(30 * DAY_MS);
        prop_assert!(group_names(&mut groups).is_empty(), "{left:?}");
        stable(&mut groups, "g", Bytes::new(), Bytes::new());
    }

    /// Whatever is found, each transactional id can be had again, and is forgotten in the end.
    #[test]
    fn transactional_ids_can_be_had_again_whatever_the_log_holds(found in found(12)) {
        let settings = TransactionSettings {
            abort_timed_out_transaction_cleanup_interval_ms: 3_600_000,
            ..TransactionSettings::default()
        };
        let mut shard = TransactionShard::new(Arc::new(settings), 1);
        load(&mut shard, &transaction_records(), &found);
        let mut transactions = Driven::start(shard);
        let end_all = |transactions: &mut Driven<TransactionShard>| {
            for markers in std::mem::take(&mut transactions.commands) {
                let (producer, unused) = (markers.producer, Some(ProducerId(99)));
                transactions.ask(transaction::Request::MarkersWritten { producer, unused });
            }
        };
        end_all(&mut transactions);
        let listed = transactional_ids(&mut transactions);
        for state in &listed {
            let transactional_id = state.transactional_id.clone();
            let described = transactions.ask(transaction::Request::Describe { transactional_id }).pop();
            prop_assert!(matches!(described, Some(transaction::Reply::Described(_))), "{described:?}");
        }
        for state in listed {
            let ask = |transactions: &mut Driven<TransactionShard>| {
                let (transactional_id, unused) = (state.transactional_id.clone(), Some(ProducerId(100)));
                let init = Init { transactional_id, timeout_ms: 1, has: None, unused };
                transactions.ask(transaction::Request::Init(init)).pop()
            };
            ask(&mut transactions);
            end_all(&mut transactions);
            let again = ask(&mut transactions);
            prop_assert!(matches!(again, Some(transaction::Reply::Producer(..))), "{again:?} for {state:?}");
        }
        transactions.wait(9 * DAY_MS);
        prop_assert!(transactional_ids(&mut transactions).is_empty());
    }

    /// Commits are read in place where they are as usual, and as the schema says where they are not: both say the same.
    #[test]
    fn a_commit_is_read_as_its_schema_says(
        damage in damage(), version in 0..=4_i16, metadata in ".{0,3}|x{126,129}", has_topic_id: bool,
    ) {
        let value = OffsetCommitValue {
            offset: 5,
            leader_epoch: 3,
            metadata,
            commit_timestamp: 7,
            expire_timestamp: if version == 1 { 9 } else { -1 },
            topic_id: if has_topic_id { Uuid([1; 16]) } else { Uuid::ZERO },
        };
        let value = OffsetCommitValue {
            leader_epoch: if version < 3 { -1 } else { value.leader_epoch },
            topic_id: if version < 4 { Uuid::ZERO } else { value.topic_id },
            ..value
        };
        let bytes = damage.of(&encode_versioned(&value, version).expect("encodes"));
        let record = GroupRecord::Offset { group: "g".into(), topic: "t".into(), partition: 0, value: None };
        let (key, _) = record.encode().expect("encodes");
        let read = match GroupRecord::decode(&key, Some(&bytes), 11) {
            Ok(Some(GroupRecord::Offset { value, .. })) => value,
            Err(_) => None,
            other => panic!("{other:?}"),
        };
        let expected = decode_versioned::<OffsetCommitValue>(bytes).ok().map(|(value, _)| CommittedOffset {
            offset: value.offset,
            leader_epoch: value.leader_epoch,
            metadata: value.metadata,
            commit_timestamp_ms: value.commit_timestamp,
            expire_timestamp_ms: Some(value.expire_timestamp).filter(|expiry| *expiry >= 0),
            topic_id: value.topic_id,
            record_offset: 11,
        });
        prop_assert_eq!(read, expected);
    }

    /// What members say of themselves is theirs: whatever it is, the group comes to be stable, and goes on after a restart.
    #[test]
    fn groups_come_to_be_stable_whatever_their_members_say(metadata in damage(), assignment in damage()) {
        let mut groups = Driven::start(GroupShard::new(Arc::new(GroupSettings::default())));
        let metadata = metadata.of(&subscription(&["t", "u"], b"user data"));
        let assignment = assignment.of(b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff");
        let member = stable(&mut groups, "g", metadata.clone(), assignment.clone());
        let persisted = groups.machine.persisted();
        let mut restarted = GroupShard::new(Arc::new(GroupSettings::default()));
        for (offset, record) in (0..).zip(persisted) {
            let (key, value) = record.encode().expect("encodes");
            let origin = Origin { offset, transaction_of: ProducerId::NONE, written_ms: 0 };
            restarted.load(origin, &key, value.as_deref());
        }
        let mut restarted = Driven::start(restarted);
        for groups in [&mut groups, &mut restarted] {
            let described = groups.ask(Request::Describe { version: 5, group: "g".to_owned() }).pop();
            let Some(Reply::Describe(described)) = described else { panic!("{described:?}") };
            prop_assert_eq!(&described.group_state, "Stable");
            prop_assert_eq!(&described.members[0].member_id, &member);
            prop_assert_eq!(&described.members[0].member_metadata, &metadata);
            prop_assert_eq!(&described.members[0].member_assignment, &assignment);
        }
    }
}
