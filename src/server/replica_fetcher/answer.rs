//! What a leader's answer means for one partition.

use klamm_io::BoxFuture;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, TopicPartition};
use klamm_partition::{Fetched, Partition, ReplicationError};
use klamm_protocol::messages::fetch::{FetchPartition, PartitionData};
use klamm_storage::StorageError;
use std::sync::Arc;

/// What is to be done next about a partition.
pub(super) enum Next {
    /// To fetch on.
    FetchOn(Taken),
    /// To ask the leader where its log begins and ends: this one has nothing in common with it.
    AskForOffsets,
    /// To wait, and ask again: the leader or this node does not know the latest metadata yet, or the log failed.
    Wait(String),
    /// As `Wait`, and a person must hear of it.
    Fail(String),
}

/// What came with an answer.
#[derive(Default)]
pub(super) struct Taken {
    /// The sync that has to come before the next fetch, if it has to.
    pub(super) sync: Option<BoxFuture<'static, Result<(), StorageError>>>,
    /// How many bytes of records.
    pub(super) bytes: usize,
    /// Whether records are missing that the leader has committed.
    pub(super) is_behind: bool,
}

/// What is asked of a leader about a partition next. An error while the log is offline: asking for its end tells the
/// leader that everything below is here, which a log that has failed cannot say.
pub(super) fn wanted(partition: &Partition, bytes_max: i32) -> Result<FetchPartition, StorageError> {
    let log = partition.log();
    log.check_usable("replicate into")?;
    let offsets = partition.offsets();
    Ok(FetchPartition {
        partition: partition.topic_partition().partition,
        current_leader_epoch: partition.leader_epoch().0,
        fetch_offset: offsets.log_end,
        last_fetched_epoch: log.latest_epoch().unwrap_or(LeaderEpoch::NONE).0,
        log_start_offset: offsets.log_start,
        partition_max_bytes: bytes_max,
        high_watermark: offsets.high_watermark,
        ..Default::default()
    })
}

/// Takes over what a leader sent for a partition, or cuts what the leader does not have.
pub(super) fn take(partition: &Arc<Partition>, asked: &FetchPartition, data: PartitionData) -> Next {
    match ErrorCode::from_code(data.error_code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => {}
        ErrorCode::OffsetOutOfRange => return Next::AskForOffsets,
        code => return Next::Wait(format!("the leader answers {code}")),
    }
    let leader_epoch = LeaderEpoch(asked.current_leader_epoch);
    if data.diverging_epoch.end_offset >= 0 {
        let diverging = (LeaderEpoch(data.diverging_epoch.epoch), data.diverging_epoch.end_offset);
        let before = partition.offsets().log_end;
        return match partition.truncate_diverging(diverging, leader_epoch) {
            Ok(end) => {
                if let Some(line) = told_of_cut(partition.topic_partition(), (before, end), diverging) {
                    tracing::info!("{line}");
                }
                Next::FetchOn(Taken::default())
            }
            Err(error) => failed(partition, &error),
        };
    }
    let fetched = Fetched {
        from: asked.fetch_offset,
        leader_epoch,
        records: data.records.as_ref().and_then(|records| records.bytes()).cloned().unwrap_or_default(),
        high_watermark: data.high_watermark,
        log_start: data.log_start_offset,
    };
    let bytes = fetched.records.len();
    match partition.append_as_follower(fetched) {
        Ok(appended) => {
            let syncs_first = appended.flush_due.comes_before_answer(-1);
            Next::FetchOn(Taken {
                sync: syncs_first.then(|| partition.flush()),
                bytes,
                is_behind: partition.offsets().log_end < data.high_watermark,
            })
        }
        Err(error) => failed(partition, &error),
    }
}

/// What to say when a leader has told where its log parts from this one. Mostly nothing had to be cut: the leader began an
/// epoch where this log ends.
fn told_of_cut(
    name: &TopicPartition,
    (before, end): (Offset, Offset),
    (epoch, ends_at): (LeaderEpoch, Offset),
) -> Option<String> {
    (end < before).then(|| {
        format!(
            "cut {name} from {before} to {end}, because the log of its leader ends epoch {epoch} at {ends_at}"
        )
    })
}

/// Cuts a log that has nothing in common with its leader's, which lies from `earliest` to `latest`. As in Kafka, what
/// is longer is cut to the leader's end, and what ends before the leader's begins anew there.
pub(super) fn take_offsets(
    partition: &Arc<Partition>,
    asked: &FetchPartition,
    earliest: Offset,
    latest: Offset,
) -> Next {
    let leader_epoch = LeaderEpoch(asked.current_leader_epoch);
    let (name, end) = (partition.topic_partition(), partition.offsets().log_end);
    let done = if latest < end {
        tracing::warn!("cut {name} from {end} to {latest}, where its leader's log ends");
        partition.truncate_as_follower(latest, leader_epoch)
    } else if earliest > end {
        tracing::warn!("{name} ends at {end} and begins anew at {earliest}, where its leader's log begins");
        partition.restart_as_follower(earliest, leader_epoch)
    } else {
        return Next::Wait(format!("the leader has no offset {end}, but holds {earliest} to {latest}"));
    };
    done.map_or_else(|error| failed(partition, &error), |()| Next::FetchOn(Taken::default()))
}

fn failed(partition: &Partition, error: &ReplicationError) -> Next {
    let name = partition.topic_partition();
    match error {
        // Another leader by now, of which the fetcher is told.
        ReplicationError::NotFollower(_) => Next::Wait(error.to_string()),
        ReplicationError::Storage(error) => {
            Next::Fail(format!("records of {name} were not replicated, and are fetched again: {error}"))
        }
        ReplicationError::OutOfOrder { .. } | ReplicationError::Records(_) => Next::Fail(format!(
            "the leader of {name} sent what cannot be appended, and is asked again: {error}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use klamm_model::{NodeId, Uuid};
    use klamm_partition::{Leadership, PartitionSettings};
    use klamm_records::{BatchBuilder, BatchSettings};
    use klamm_storage::{LogConfig, LogStore, StoreSettings};
    use klamm_testing::{Failure, Fault, OperationKind, SeededRandom, SimulatedClock, SimulatedDisk};

    use super::*;

    /// A follower that had nothing to cut said that it had cut its log to the end that it had.
    #[test]
    fn a_cut_is_told_only_where_something_was_cut() {
        let name = TopicPartition::new("t3", 0);
        let told = |before, end| told_of_cut(&name, (before, end), (LeaderEpoch(4), 1000));
        assert_eq!(told(1000, 1000), None);
        let line = "cut t3-0 from 1010 to 1000, because the log of its leader ends epoch 4 at 1000";
        assert_eq!(told(1010, 1000).as_deref(), Some(line));
    }

    /// A fetch tells the leader what is here, and the leader counts it as acknowledged.
    #[test]
    fn nothing_is_asked_for_after_a_sync_that_failed_until_the_log_serves_again() {
        let disk = SimulatedDisk::new(1);
        let (clock, random) = (Arc::new(SimulatedClock::new(1_000)), Arc::new(SeededRandom::new(1)));
        let dirs = vec![Path::new("/data").to_owned()];
        let settings = StoreSettings::new(dirs, NodeId(2), Arc::new(disk.clone()), clock.clone(), random);
        let store = LogStore::open(settings).unwrap();
        store.load(&|_| LogConfig::default()).unwrap();
        let (name, topic) = (TopicPartition::new("t", 0), Uuid([7; 16]));
        let log = store.create(&name, topic, LogConfig::default()).unwrap();
        let settings = PartitionSettings::default();
        let partition = Arc::new(Partition::new(topic, NodeId(2), log, 0, settings, clock));
        let nodes = vec![NodeId(1), NodeId(2)];
        partition.become_follower(&Leadership {
            leader: Some(NodeId(1)),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            replicas: nodes.clone(),
            isr: nodes,
            lost: Vec::new(),
        });
        let asked = wanted(&partition, 1).unwrap();
        let mut batch = BatchBuilder::v2(BatchSettings::default());
        batch.append(1, None, Some(b"value"), &[]);
        let mut batch = batch.build().to_vec();
        batch[12..16].copy_from_slice(&0i32.to_be_bytes());
        let data = PartitionData {
            records: Some(klamm_protocol::RecordsField::from(bytes::Bytes::from(batch))),
            ..Default::default()
        };
        assert!(matches!(take(&partition, &asked, data), Next::FetchOn(_)));
        assert_eq!(wanted(&partition, 1).unwrap().fetch_offset, 1);

        let fault = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::SyncData).on("t-0"));
        partition.log().flush().unwrap_err();
        assert!(wanted(&partition, 1).is_err());
        disk.clear(fault);
        assert!(partition.replace_failed_log(|| store.reopen(&name)).unwrap());
        assert_eq!(wanted(&partition, 1).unwrap().fetch_offset, 1);
    }
}
