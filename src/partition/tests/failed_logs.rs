//! A log that has failed is opened again while its partition lives on: nothing waits for that, and what the disk has
//! lost is cut nowhere else.

mod replica;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use klamm_io::{Disk, OpenMode};
use klamm_model::{LeaderEpoch, NodeId, TopicPartition};
use klamm_partition::{AppendOptions, Leadership, Origin, PartitionSettings};
use klamm_records::{BatchBuilder, BatchSettings};
use klamm_storage::LogConfig;
use klamm_testing::{Failure, Fault, OperationKind};
use replica::Replica;

const LOCAL: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn leadership(leader: NodeId, epoch: i32, isr: &[NodeId]) -> Leadership {
    Leadership {
        leader: Some(leader),
        leader_epoch: LeaderEpoch(epoch),
        partition_epoch: epoch,
        replicas: vec![LOCAL, OTHER],
        isr: isr.to_vec(),
        lost: Vec::new(),
    }
}

fn record() -> Bytes {
    let mut builder = BatchBuilder::v2(BatchSettings::default());
    builder.append(1_700_000_000_000, None, Some(b"value"), &[]);
    builder.build()
}

fn options() -> AppendOptions {
    AppendOptions {
        origin: Origin::Client,
        produce_version: 9,
        acks: 1,
        expected_leader_epoch: None,
        guard: None,
    }
}

/// A leader of two records whose log has failed for a reason that passes.
fn failed_leader(isr: &[NodeId]) -> Replica {
    let replica = Replica::new(LOCAL, 1_700_000_000_000, LogConfig::default(), PartitionSettings::default());
    replica.partition.become_leader(&leadership(LOCAL, 0, isr)).unwrap();
    for _ in 0..2 {
        replica.partition.append_as_leader(record(), &options()).unwrap();
    }
    fail(&replica);
    replica
}

fn fail(replica: &Replica) {
    let fault = replica.disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::SyncData));
    replica.partition.log().flush().unwrap_err();
    replica.disk.clear(fault);
    assert!(replica.partition.log().failure().is_some());
}

fn reopen(replica: &Replica) {
    let name = TopicPartition::new("t", 0);
    assert!(replica.partition.replace_failed_log(|| replica.store.reopen(&name)).unwrap());
    assert!(replica.partition.log().failure().is_none());
}

/// The disk has only the first record.
fn lose_the_second_record(replica: &Replica) {
    let path = Path::new("/data/t-0/00000000000000000000.log");
    let file = replica.disk.open(path, OpenMode::ReadWrite).unwrap();
    file.set_len(file.len().unwrap() / 2).unwrap();
}

/// Appends wait on the workers that serve all connections, and news of leaders on the one task that follows the
/// metadata: a log of a gigabyte that is written again must not hold them.
#[test]
fn nobody_waits_for_a_log_that_is_opened_again() {
    let replica = failed_leader(&[LOCAL, OTHER]);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let reopen = || {
            scope.spawn(|| {
                let refused = replica.partition.append_as_leader(record(), &options()).is_err();
                replica.partition.become_follower(&leadership(OTHER, 1, &[LOCAL, OTHER]));
                done.send(refused).unwrap();
            });
            let refused = is_done.recv_timeout(Duration::from_secs(10));
            assert_eq!(refused, Ok(true), "the append is refused at once");
            replica.store.reopen(&TopicPartition::new("t", 0))
        };
        assert!(replica.partition.replace_failed_log(reopen).unwrap());
    });
    assert!(!replica.partition.is_leader(), "what was learnt meanwhile stays");
    assert!(replica.partition.log().failure().is_none());
}

#[test]
fn a_leader_whose_log_comes_back_whole_goes_on() {
    let replica = failed_leader(&[LOCAL, OTHER]);
    reopen(&replica);
    assert!(replica.partition.is_leader() && !replica.partition.has_lost_records());
    assert_eq!(replica.partition.append_as_leader(record(), &options()).unwrap().base_offset, 2);
}

/// Its followers have what it has lost, and would cut it. So it leads in no epoch before it was out of the ISR.
#[test]
fn a_leader_whose_log_comes_back_shorter_leads_no_more() {
    let replica = failed_leader(&[LOCAL, OTHER]);
    lose_the_second_record(&replica);
    reopen(&replica);
    let partition = &replica.partition;
    assert!(partition.has_lost_records() && !partition.is_leader());
    assert!(partition.append_as_leader(record(), &options()).is_err());
    for epoch in [0, 1] {
        let error = partition.become_leader(&leadership(LOCAL, epoch, &[LOCAL, OTHER])).unwrap_err();
        assert!(error.to_string().contains("the disk has lost records behind offset 1"), "{error}");
        assert!(!partition.is_leader());
    }
    partition.become_follower(&leadership(OTHER, 2, &[LOCAL, OTHER]));
    assert!(partition.has_lost_records(), "it counts as in sync still");
    partition.become_follower(&leadership(OTHER, 2, &[OTHER]));
    assert!(!partition.has_lost_records());
    partition.become_leader(&leadership(LOCAL, 3, &[LOCAL, OTHER])).unwrap();
    assert!(partition.is_leader());
}

#[test]
fn the_last_replica_in_sync_leads_with_what_the_disk_has_left() {
    let replica = failed_leader(&[LOCAL]);
    lose_the_second_record(&replica);
    reopen(&replica);
    assert!(replica.partition.is_leader() && !replica.partition.has_lost_records());
    assert_eq!(replica.partition.offsets().high_watermark, 1);
}

#[test]
fn a_follower_whose_log_comes_back_shorter_does_not_lead_while_it_counts_as_in_sync() {
    let replica = failed_leader(&[LOCAL, OTHER]);
    replica.partition.become_follower(&leadership(OTHER, 1, &[LOCAL, OTHER]));
    lose_the_second_record(&replica);
    reopen(&replica);
    assert!(replica.partition.has_lost_records());
    replica.partition.become_leader(&leadership(LOCAL, 2, &[LOCAL, OTHER])).unwrap_err();
    replica.partition.become_leader(&leadership(LOCAL, 3, &[LOCAL])).unwrap();
    assert!(!replica.partition.has_lost_records(), "there is nobody else");
}
