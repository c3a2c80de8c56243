//! What a client can make grow, and when it is gone again. The bounds are Kafka's: `group.max.size`, a session,
//! `offsets.retention.minutes`, `transaction.max.timeout.ms`, `transactional.id.expiration.ms`.

mod driven;
mod memory;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use driven::Driven;
use klamm_coordinator::group::{GroupShard, Join, Request};
use klamm_coordinator::machine::Ticket;
use klamm_coordinator::transaction::{self, Init, Producer, State, TransactionShard, TransactionVersion};
use klamm_coordinator::{GroupSettings, TransactionSettings};
use klamm_io::{Clock, SystemClock};
use klamm_model::ProducerId;
use klamm_protocol::messages::delete_groups::DeleteGroupsRequest;
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use memory::MemoryLog;
use requests::{client, commit_of, serving, settings};

const COUNT: usize = 1_000;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

fn groups(settings: GroupSettings) -> Driven<GroupShard> {
    Driven::start(GroupShard::new(Arc::new(settings)))
}

fn join(version: i16, group: &str, number: usize) -> Request {
    let metadata = bytes::Bytes::from(vec![7; 1_000]);
    let request = JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 30 * MINUTE_MS as i32,
        rebalance_timeout_ms: i32::MAX,
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".to_owned(), metadata }],
        ..Default::default()
    };
    let (client_id, client_host) = ("c".to_owned(), "/127.0.0.1".to_owned());
    let random = (number as u128).to_be_bytes();
    Request::Join(Box::new(Join { version, client_id, client_host, random, request }))
}

/// Ids that were given out and never used, each in a group that came into being for it.
#[test]
fn groups_that_nobody_joined_are_gone_after_a_session() {
    let mut groups = groups(GroupSettings::default());
    for number in 0..COUNT {
        groups.ask(join(9, &format!("group-{number}"), number));
    }
    assert_eq!(groups.machine.group_count(), COUNT);
    groups.wait(45 * MINUTE_MS);
    assert_eq!(groups.machine.group_count(), 0);
}

/// Members that never hear of the end of the rebalance, however long they allow it to take.
#[test]
fn members_that_only_joined_are_gone_with_their_group() {
    let mut groups = groups(GroupSettings::default());
    for number in 0..COUNT {
        groups.ask(join(3, "group", number));
    }
    let described = |groups: &mut Driven<GroupShard>| {
        let request = Request::Describe { version: 5, group: "group".to_owned() };
        let effects = groups.machine.handle(groups.now, Ticket(0), request);
        match effects.replies.into_iter().next().expect("an answer").1 {
            klamm_coordinator::group::Reply::Describe(group) => group.members.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(described(&mut groups), COUNT);
    groups.wait(45 * MINUTE_MS);
    assert_eq!(described(&mut groups), 0);
    groups.wait(15 * MINUTE_MS);
    assert_eq!(groups.machine.group_count(), 0);
}

#[test]
fn a_group_has_no_more_members_than_group_max_size() {
    let settings = GroupSettings { group_max_size: 10, ..GroupSettings::default() };
    let mut groups = groups(settings);
    for number in 0..COUNT {
        groups.ask(join(3, "group", number));
    }
    let request = Request::Describe { version: 5, group: "group".to_owned() };
    let effects = groups.machine.handle(groups.now, Ticket(0), request);
    let described = format!("{:?}", effects.replies);
    assert_eq!(described.matches("DescribedGroupMember").count(), 10);
}

/// Offsets that somebody committed without a group, and never again.
#[test]
fn committed_offsets_are_gone_with_their_groups_and_names() {
    let mut groups = groups(GroupSettings::default());
    for number in 0..COUNT {
        let request = commit_of(&format!("group-{number}"), &format!("topic-{number}"), 0..2, 5);
        groups.ask(Request::Commit { version: 9, request: Arc::new(request) });
    }
    assert_eq!((groups.machine.group_count(), groups.machine.topic_count()), (COUNT, COUNT));
    groups.wait(8 * DAY_MS);
    assert_eq!((groups.machine.group_count(), groups.machine.topic_count()), (0, 0));
}

/// Transactional ids, half of them with a transaction that is never ended.
#[test]
fn transactional_ids_are_gone_whether_their_transactions_were_ended_or_not() {
    let abort_timed_out_transaction_cleanup_interval_ms = MINUTE_MS as i32;
    let settings = TransactionSettings {
        abort_timed_out_transaction_cleanup_interval_ms,
        ..TransactionSettings::default()
    };
    let mut transactions = Driven::start(TransactionShard::new(Arc::new(settings), 0));
    let id = |number: usize| format!("id-{number}");
    for number in 0..COUNT {
        let producer_id = ProducerId(number as i64);
        transactions.ask(transaction::Request::Init(Init {
            transactional_id: id(number),
            timeout_ms: 15 * MINUTE_MS as i32,
            has: None,
            unused: Some(producer_id),
        }));
        if number % 2 == 0 {
            let epoch = klamm_model::ProducerEpoch(0);
            let producer = Producer { transactional_id: id(number), id: producer_id, epoch };
            let partitions = [("t".into(), [0].into())].into();
            let version = TransactionVersion::NEW;
            transactions.ask(transaction::Request::Add { producer, partitions, version });
        }
    }
    let ongoing = |transactions: &Driven<TransactionShard>| {
        transactions.machine.transactions().filter(|(_, known)| known.state == State::Ongoing).count()
    };
    assert_eq!((transactions.machine.transactions().len(), ongoing(&transactions)), (COUNT, COUNT / 2));
    transactions.wait(16 * MINUTE_MS);
    assert_eq!(ongoing(&transactions), 0);
    for markers in std::mem::take(&mut transactions.commands) {
        let producer = markers.producer;
        transactions.ask(transaction::Request::MarkersWritten { producer, unused: None });
    }
    transactions.wait(8 * DAY_MS);
    assert_eq!(transactions.machine.transactions().len(), 0);
}

/// A request of a few megabytes that names a million groups kept a processor busy for hours, since each name was
/// compared with all before it.
#[tokio::test]
async fn very_many_groups_are_deleted_in_good_time() {
    let coordinator = serving(settings(), &MemoryLog::new()).await;
    let groups_names: Vec<String> = (0..50_000).map(|number| number.to_string()).collect();
    let clock = SystemClock::new();
    let response = coordinator.delete_groups(&client(2), DeleteGroupsRequest { groups_names }).await;
    assert_eq!(response.results.len(), 50_000);
    let took = clock.monotonic();
    assert!(took < Duration::from_secs(20), "{took:?}");
}
