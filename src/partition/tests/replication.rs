//! Two replicas in one process, connected by hand: who may read what, and when an append counts as committed.
//! What fails here in a cluster loses acknowledged records or shows records that vanish.

mod replica;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use klamm_io::Clock;
use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId};
use klamm_partition::{
    ActiveBrokers, AppendError, AppendOptions, Appended, Fetched, FollowerProgress, IsrAnswer, Leadership,
    LookUp, Origin, PartitionSettings, ReadError, ReadOptions, Reader,
};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::LogConfig;
use replica::Replica;

const LEADER: NodeId = NodeId(1);
const FOLLOWER: NodeId = NodeId(2);
const CONSUMER: Reader = Reader::Consumer(IsolationLevel::ReadUncommitted);

fn replica(node: NodeId, settings: PartitionSettings) -> Replica {
    Replica::new(node, 1_700_000_000_000, LogConfig::default(), settings)
}

fn leadership(epoch: i32, isr: &[NodeId]) -> Leadership {
    Leadership {
        leader: Some(LEADER),
        leader_epoch: LeaderEpoch(epoch),
        partition_epoch: epoch,
        replicas: vec![LEADER, FOLLOWER],
        isr: isr.to_vec(),
        lost: Vec::new(),
    }
}

/// A leader and a follower, both in sync.
fn pair(settings: PartitionSettings) -> (Replica, Replica) {
    let (leader, follower) = (replica(LEADER, settings.clone()), replica(FOLLOWER, settings));
    leader.partition.become_leader(&leadership(0, &[LEADER, FOLLOWER])).unwrap();
    follower.partition.become_follower(&leadership(0, &[LEADER, FOLLOWER]));
    (leader, follower)
}

fn batch(values: &[&str], producer: Option<(i64, i16, i32)>) -> Bytes {
    let (id, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
    let mut builder = BatchBuilder::v2(BatchSettings {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: sequence,
        ..Default::default()
    });
    for value in values {
        builder.append(1_700_000_000_000, None, Some(value.as_bytes()), &[]);
    }
    builder.build()
}

fn append(replica: &Replica, records: Bytes, acks: i16) -> Result<Appended, AppendError> {
    let options = AppendOptions {
        origin: Origin::Client,
        produce_version: 9,
        acks,
        expected_leader_epoch: None,
        guard: None,
    };
    replica.partition.append_as_leader(records, &options)
}

fn options(reader: Reader) -> ReadOptions {
    ReadOptions {
        reader,
        bytes_max: 1 << 20,
        at_least_one: true,
        current_leader_epoch: None,
        last_fetched_epoch: None,
    }
}

/// The follower fetches once: says what it has, gets what is next and the high watermark, and appends it.
fn fetch_once(leader: &Replica, follower: &Replica) {
    let from = follower.partition.offsets().log_end;
    let leader_epoch = leader.partition.leader_epoch();
    let progress =
        FollowerProgress { leader_epoch: Some(leader_epoch), ..FollowerProgress::at(FOLLOWER, from) };
    let read = leader.partition.read_for_follower(&options(Reader::Follower), progress).unwrap();
    let fetched = Fetched {
        from,
        leader_epoch,
        records: read.slice.map(|slice| slice.to_bytes().unwrap()).unwrap_or_default(),
        high_watermark: read.offsets.high_watermark,
        log_start: read.offsets.log_start,
    };
    follower.partition.append_as_follower(fetched).unwrap();
}

fn visible(replica: &Replica, from: Offset) -> bool {
    replica.partition.read(from, &options(CONSUMER)).unwrap().slice.is_some()
}

/// Metadata comes while followers fetch and the ISR is looked at: none of them may see a leader that knows no
/// followers, or the high watermark is at the end of its log and it is alone in the ISR.
#[test]
fn a_leader_that_hears_of_the_same_epoch_again_never_forgets_its_followers() {
    let leader = replica(LEADER, PartitionSettings::default());
    let nodes: Vec<NodeId> = (1..=32).map(NodeId).collect();
    let told = |partition_epoch| Leadership {
        leader: Some(LEADER),
        leader_epoch: LeaderEpoch(0),
        partition_epoch,
        replicas: nodes.clone(),
        isr: nodes.clone(),
        lost: Vec::new(),
    };
    leader.partition.become_leader(&told(0)).unwrap();
    append(&leader, batch(&["a"], None), -1).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let progress = FollowerProgress {
                    leader_epoch: Some(LeaderEpoch(0)),
                    ..FollowerProgress::at(FOLLOWER, 0)
                };
                assert!(leader.partition.follower_fetched(progress), "the follower is a replica");
                leader.partition.reconsider_high_watermark();
                assert_eq!(leader.partition.propose_isr_change(), None, "all of them are in sync");
            }
        });
        (1..20_000)
            .for_each(|partition_epoch| leader.partition.become_leader(&told(partition_epoch)).unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(leader.partition.offsets().high_watermark, 0, "no follower has the record");
}

#[test]
fn a_record_is_shown_only_when_both_replicas_have_it() {
    let (leader, follower) = pair(PartitionSettings::default());
    let appended = append(&leader, batch(&["a", "b"], None), -1).unwrap();
    assert_eq!((appended.base_offset, appended.last_offset), (0, 1));
    let offsets = leader.partition.offsets();
    assert_eq!((offsets.high_watermark, offsets.log_end), (0, 2), "the high watermark lags the log end");
    assert!(!visible(&leader, 0));
    assert!(!leader.partition.is_committed(2, appended.leader_epoch).unwrap());

    fetch_once(&leader, &follower);
    assert_eq!(
        leader.partition.offsets().high_watermark,
        0,
        "it has asked for 0, so nothing is known to be there"
    );
    fetch_once(&leader, &follower);
    assert_eq!(leader.partition.offsets().high_watermark, 2, "it asks for 2: it has all below");
    assert!(leader.partition.is_committed(2, appended.leader_epoch).unwrap());
    assert!(visible(&leader, 0));
    assert_eq!(follower.partition.offsets().high_watermark, 2, "the answer to that fetch tells the follower");
    assert_eq!(follower.partition.offsets().log_end, 2);
}

#[tokio::test]
async fn an_acknowledgement_waits_for_the_follower_and_fails_with_the_leadership() {
    let (leader, follower) = pair(PartitionSettings::default());
    let appended = append(&leader, batch(&["a"], None), -1).unwrap();
    let leader = Arc::new(leader);
    let waiting = tokio::spawn({
        let leader = leader.clone();
        async move { leader.partition.wait_for_high_watermark(1, appended.leader_epoch).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    fetch_once(&leader, &follower);
    fetch_once(&leader, &follower);
    waiting.await.unwrap().unwrap();

    let appended = append(&leader, batch(&["b"], None), -1).unwrap();
    let waiting = tokio::spawn({
        let leader = leader.clone();
        async move { leader.partition.wait_for_high_watermark(2, appended.leader_epoch).await }
    });
    tokio::task::yield_now().await;
    leader.partition.become_follower(&Leadership { leader: Some(FOLLOWER), ..leadership(1, &[FOLLOWER]) });
    assert!(matches!(waiting.await.unwrap(), Err(AppendError::NotLeader)));
}

#[test]
fn too_few_replicas_in_sync_refuse_and_hold_the_high_watermark() {
    let settings = PartitionSettings { in_sync_replicas_min: 2, ..Default::default() };
    let (leader, _follower) = pair(settings);
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    let refused = append(&leader, batch(&["a"], None), -1).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotEnoughReplicas);
    append(&leader, batch(&["a"], None), 1).expect("acks=1 asks nobody");
    assert_eq!(leader.partition.offsets().high_watermark, 0, "KIP-966: it stands still whatever the acks");
}

/// The record may be lost with the one replica that is left, and the producer must hear that.
#[test]
fn an_isr_that_shrinks_after_the_append_is_told_to_the_producer() {
    let settings = PartitionSettings { in_sync_replicas_min: 2, ..Default::default() };
    let (leader, follower) = pair(settings);
    let appended = append(&leader, batch(&["a"], None), -1).unwrap();
    fetch_once(&leader, &follower);
    fetch_once(&leader, &follower);
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    let told = leader.partition.is_committed(1, appended.leader_epoch).unwrap_err();
    assert_eq!(told.code(), ErrorCode::NotEnoughReplicasAfterAppend);
}

#[test]
fn a_silent_follower_leaves_the_isr_and_comes_back_when_it_has_caught_up() {
    let (leader, follower) = pair(PartitionSettings::default());
    append(&leader, batch(&["a"], None), 1).unwrap();
    assert_eq!(leader.partition.propose_isr_change(), None);
    leader.clock.advance(Duration::from_secs(31));
    let change = leader.partition.propose_isr_change().expect("replica.lag.time.max.ms has passed");
    assert_eq!(change.isr, [(LEADER, -1)]);
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    assert_eq!(leader.partition.offsets().high_watermark, 1, "the rest of the ISR has it all");
    assert_eq!(leader.partition.propose_isr_change(), None);

    fetch_once(&leader, &follower);
    assert_eq!(leader.partition.propose_isr_change(), None, "it has not got there yet");
    fetch_once(&leader, &follower);
    assert_eq!(leader.partition.propose_isr_change().unwrap().isr, [(LEADER, -1), (FOLLOWER, -1)]);
}

#[test]
fn an_idempotent_producer_s_batch_stands_once() {
    let (leader, _) = pair(PartitionSettings::default());
    let first = append(&leader, batch(&["a", "b"], Some((9, 0, 0))), 1).unwrap();
    let second = append(&leader, batch(&["c"], Some((9, 0, 2))), 1).unwrap();
    let again = append(&leader, batch(&["a", "b"], Some((9, 0, 0))), 1).unwrap();
    assert_eq!((again.base_offset, again.last_offset), (first.base_offset, first.last_offset));
    assert_eq!(again.log_append_time, 1_700_000_000_000, "Kafka answers a duplicate with the batch's time");
    assert_eq!(leader.partition.offsets().log_end, second.last_offset + 1, "nothing was appended");

    let gap = append(&leader, batch(&["e"], Some((9, 0, 4))), 1).unwrap_err();
    assert_eq!(gap.code(), ErrorCode::OutOfOrderSequenceNumber);
    let new_epoch = append(&leader, batch(&["f"], Some((9, 1, 3))), 1).unwrap_err();
    assert_eq!(new_epoch.code(), ErrorCode::OutOfOrderSequenceNumber, "a new epoch begins at 0");
    append(&leader, batch(&["f"], Some((9, 1, 0))), 1).unwrap();
    let fenced = append(&leader, batch(&["g"], Some((9, 0, 3))), 1).unwrap_err();
    assert_eq!(fenced.code(), ErrorCode::InvalidProducerEpoch);
    append(&leader, batch(&["z"], Some((10, 4, 77))), 1)
        .expect("of an unknown producer any sequence is taken");
}

#[test]
fn readers_with_another_epoch_or_a_wild_offset_are_told() {
    let (leader, follower) = pair(PartitionSettings::default());
    append(&leader, batch(&["a"], None), 1).unwrap();
    let read = |replica: &Replica, from, epoch| {
        let options = ReadOptions { current_leader_epoch: Some(LeaderEpoch(epoch)), ..options(CONSUMER) };
        replica.partition.read(from, &options).map(drop)
    };
    leader.partition.become_leader(&leadership(3, &[LEADER])).unwrap();
    assert!(matches!(read(&leader, 0, 2), Err(ReadError::FencedEpoch)));
    assert!(matches!(read(&leader, 0, 4), Err(ReadError::UnknownEpoch)));
    assert!(read(&leader, 0, 3).is_ok());
    assert!(matches!(read(&leader, 2, 3), Err(ReadError::OutOfRange(_))));
    assert!(matches!(read(&leader, -1, 3), Err(ReadError::OutOfRange(_))));
    assert!(read(&leader, 1, 3).is_ok(), "the end itself is where a consumer waits");
    assert!(matches!(read(&follower, 0, 0), Err(ReadError::NotLeader)));
}

#[test]
fn a_new_leader_does_not_tell_an_end_that_it_does_not_know() {
    let (leader, follower) = pair(PartitionSettings::default());
    append(&leader, batch(&["a"], None), 1).unwrap();
    fetch_once(&leader, &follower);
    // The old leader dies before the follower hears that offset 0 is committed.
    let promoted = Leadership { leader: Some(FOLLOWER), ..leadership(1, &[LEADER, FOLLOWER]) };
    follower.partition.become_leader(&promoted).unwrap();
    let end = follower.partition.look_up(LookUp::Latest, CONSUMER, None).unwrap_err();
    assert_eq!(end.code(), ErrorCode::OffsetNotAvailable, "KIP-207");
    follower
        .partition
        .become_leader(&Leadership { partition_epoch: 2, isr: vec![FOLLOWER], ..promoted })
        .unwrap();
    assert_eq!(follower.partition.look_up(LookUp::Latest, CONSUMER, None).unwrap().offset, 1);
}

#[test]
fn a_follower_learns_where_its_log_parts_from_the_leader_s() {
    let (leader, _) = pair(PartitionSettings::default());
    append(&leader, batch(&["a", "b"], None), 1).unwrap();
    leader.partition.become_leader(&leadership(2, &[LEADER])).unwrap();
    append(&leader, batch(&["c"], None), 1).unwrap();
    let fetch = |from, epoch| {
        let reader = Reader::Follower;
        let options = ReadOptions { last_fetched_epoch: Some(LeaderEpoch(epoch)), ..options(reader) };
        leader.partition.read(from, &options).map(|read| read.diverging)
    };
    let fetched = |from, epoch| fetch(from, epoch).unwrap();
    assert_eq!(fetched(3, 2), None);
    assert_eq!(fetched(2, 0), None);
    assert_eq!(fetched(3, 0), Some((LeaderEpoch(0), 2)), "epoch 0 ends at 2 here: cut there");
    assert_eq!(fetched(2, 1), Some((LeaderEpoch(0), 2)), "epoch 1 never was here");
    assert!(
        matches!(fetch(2, 3), Err(ReadError::OutOfRange(_))),
        "epoch 3 has not begun here: the leader cannot judge"
    );
}

#[test]
fn deleted_records_are_gone_for_readers() {
    let (leader, _) = pair(PartitionSettings::default());
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    append(&leader, batch(&["a"], None), 1).unwrap();
    append(&leader, batch(&["b"], None), 1).unwrap();
    assert_eq!(leader.partition.delete_records_before(1).unwrap(), 1);
    assert!(matches!(leader.partition.read(0, &options(CONSUMER)), Err(ReadError::OutOfRange(_))));
    let beyond = leader.partition.delete_records_before(3).unwrap_err();
    assert_eq!(beyond.code(), ErrorCode::OffsetOutOfRange);
    assert_eq!(leader.partition.delete_records_before(-1).unwrap(), 2, "-1 means the high watermark");
}

/// The controller may have added the member whose addition was proposed, and elect it: what it lacks is not committed,
/// however long the answer takes (KIP-497).
#[test]
fn the_high_watermark_waits_for_a_member_that_may_have_been_added() {
    let (leader, follower) = pair(PartitionSettings::default());
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    append(&leader, batch(&["a"], None), 1).unwrap();
    fetch_once(&leader, &follower);
    fetch_once(&leader, &follower);
    let change = leader.partition.propose_isr_change().expect("it has caught up");
    leader.clock.advance(Duration::from_secs(31));
    append(&leader, batch(&["b"], None), 1).unwrap();
    assert_eq!(leader.partition.offsets().high_watermark, 1);
    leader.partition.isr_answered(&change, IsrAnswer::Unknown);
    leader.partition.reconsider_high_watermark();
    assert_eq!(leader.partition.offsets().high_watermark, 1, "the metadata will tell");
    assert_eq!(leader.partition.propose_isr_change(), None, "one at a time");
    leader.partition.isr_answered(&change, IsrAnswer::Refused);
    assert_eq!(leader.partition.offsets().high_watermark, 2, "it was not added");
}

/// A broker that was fenced, or registered anew since its replica fetched, is neither proposed nor waited for
/// (KIP-841, KIP-903).
#[test]
fn only_a_replica_of_an_active_broker_is_proposed() {
    let brokers = Arc::new(ActiveBrokers::default());
    let (leader, _) = pair(PartitionSettings::default());
    let leader = Replica { partition: leader.partition.with_brokers(brokers.clone()), ..leader };
    leader.partition.become_leader(&Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) }).unwrap();
    let fetched = || {
        let progress = FollowerProgress { broker_epoch: 5, ..FollowerProgress::at(FOLLOWER, 0) };
        assert!(leader.partition.follower_fetched(progress));
        leader.partition.has_caught_up(FOLLOWER)
    };
    brokers.replace([(LEADER, 1)].into());
    assert!(!fetched(), "it is fenced");
    brokers.replace([(LEADER, 1), (FOLLOWER, 6)].into());
    assert!(!fetched(), "its broker has registered anew");
    assert_eq!(leader.partition.propose_isr_change(), None);
    brokers.replace([(LEADER, 1), (FOLLOWER, 5)].into());
    assert!(fetched());
    assert_eq!(leader.partition.propose_isr_change().unwrap().isr, [(LEADER, -1), (FOLLOWER, 5)]);
}

/// A replica that is in no directory, for its disk is full, follows and cannot be in sync: nobody waits for it, though it
/// lags by nothing.
#[test]
fn a_replica_in_no_directory_is_not_waited_for() {
    let (leader, _) = pair(PartitionSettings::default());
    let lost = Leadership { partition_epoch: 1, lost: vec![FOLLOWER], ..leadership(0, &[LEADER]) };
    leader.partition.become_leader(&lost).unwrap();
    leader.partition.follower_fetched(FollowerProgress::at(FOLLOWER, 0));
    assert!(!leader.partition.has_caught_up(FOLLOWER));
    assert_eq!(leader.partition.propose_isr_change(), None);
    append(&leader, batch(&["one"], None), -1).unwrap();
    assert_eq!(leader.partition.offsets().high_watermark, 1);

    let found = Leadership { partition_epoch: 2, lost: Vec::new(), ..lost };
    leader.partition.become_leader(&found).unwrap();
    leader.partition.follower_fetched(FollowerProgress::at(FOLLOWER, 1));
    assert!(leader.partition.has_caught_up(FOLLOWER));
}

/// What a leader has only read from itself is certain when its followers show that they follow it still. Two fetches are not
/// enough: they may have been under way since before they left.
#[test]
fn followers_that_fetch_show_that_nobody_else_leads() {
    let (leader, _) = pair(PartitionSettings { in_sync_replicas_min: 2, ..Default::default() });
    let fetches = |log_end| leader.partition.follower_fetched(FollowerProgress::at(FOLLOWER, log_end));
    fetches(0);
    fetches(0);
    fetches(0);
    leader.clock.advance(Duration::from_millis(1));
    let time = leader.clock.monotonic();
    assert!(!leader.partition.was_leader_at(time), "what was before shows nothing");
    fetches(0);
    fetches(0);
    assert!(!leader.partition.was_leader_at(time), "they may be old ones");
    fetches(0);
    assert!(leader.partition.was_leader_at(time));

    let alone = Leadership { partition_epoch: 1, ..leadership(0, &[LEADER]) };
    leader.partition.become_leader(&alone).unwrap();
    assert!(!leader.partition.was_leader_at(time), "one that is eligible may lead without this one");
    leader.partition.become_follower(&leadership(1, &[LEADER, FOLLOWER]));
    assert!(!leader.partition.was_leader_at(time));

    leader.clock.advance(Duration::from_millis(1));
    leader.partition.become_leader(&leadership(2, &[LEADER, FOLLOWER])).unwrap();
    (0..3).for_each(|_| assert!(fetches(0)));
    assert!(!leader.partition.was_leader_at(time), "another one led in between");
}
