//! ListOffsets (key 2), versions 0 to 11.
//!
//! v0 answers a list of offsets of segments; v1 one offset with its time (KIP-79); v2 isolation; v4 leader epochs
//! (KIP-320); v7 the largest timestamp (KIP-734); v8 the earliest local offset (KIP-405); v9 the last one in remote
//! storage (KIP-1005); v10 a time-out (KIP-1075); v11 the earliest that waits for its upload (KIP-1023).

use std::collections::{BTreeMap, BTreeSet};

use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch};
use klamm_partition::{LookUp, LookUpError, Partition, Reader};
use klamm_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse,
};

use super::Call;
use crate::context::Context;

/// From this version on answers carry leader epochs.
const EPOCHS_SINCE: i16 = 4;
/// From this version on clients know OFFSET_NOT_AVAILABLE (KIP-207).
const NOT_AVAILABLE_SINCE: i16 = 5;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let table = context.partitions.load();
    let reader = if request.replica_id >= 0 {
        Reader::Follower
    } else {
        Reader::Consumer(IsolationLevel::from_wire(request.isolation_level))
    };
    let mut named = BTreeMap::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            *named.entry((topic.name.as_str(), partition.partition_index)).or_insert(0) += 1;
        }
    }
    let mut answered = BTreeSet::new();
    let answer = |topic: &str, wanted: &ListOffsetsPartition| {
        let repeated = named.get(&(topic, wanted.partition_index)).is_some_and(|count| *count > 1);
        let partition =
            table.topic_by_name(topic).and_then(|topic| topic.partitions.get(&wanted.partition_index));
        let answered = match partition {
            _ if repeated => Err(ErrorCode::InvalidRequest),
            None => Err(context.missing_partition(None, topic, wanted.partition_index)),
            Some(partition) => look_up(call.version, partition, wanted, reader),
        };
        answered.unwrap_or_else(|code| ListOffsetsPartitionResponse {
            partition_index: wanted.partition_index,
            error_code: code.code(),
            ..Default::default()
        })
    };
    // A topic that is named twice is answered once, and so is a partition; one without partitions is not.
    let mut topics: Vec<ListOffsetsTopicResponse> = Vec::with_capacity(request.topics.len());
    let mut places = BTreeMap::new();
    for topic in request.topics.iter().filter(|topic| !topic.partitions.is_empty()) {
        let place = *places.entry(topic.name.as_str()).or_insert_with(|| {
            topics.push(ListOffsetsTopicResponse { name: topic.name.clone(), ..Default::default() });
            topics.len() - 1
        });
        for wanted in &topic.partitions {
            if answered.insert((topic.name.as_str(), wanted.partition_index)) {
                topics[place].partitions.push(answer(&topic.name, wanted));
            }
        }
    }
    ListOffsetsResponse { topics, ..Default::default() }
}

fn look_up(
    version: i16,
    partition: &Partition,
    wanted: &ListOffsetsPartition,
    reader: Reader,
) -> Result<ListOffsetsPartitionResponse, ErrorCode> {
    let failed = |error: LookUpError| {
        if let LookUpError::Storage(error) = &error {
            tracing::error!("looking up an offset of {} failed: {error}", partition.topic_partition());
        }
        match error {
            LookUpError::NotAvailable if version < NOT_AVAILABLE_SINCE => ErrorCode::LeaderNotAvailable,
            error => error.code(),
        }
    };
    if version == 0 {
        let most = usize::try_from(wanted.max_num_offsets).unwrap_or(0);
        let offsets = partition.segment_offsets_before(wanted.timestamp, most, reader).map_err(failed)?;
        return Ok(ListOffsetsPartitionResponse {
            partition_index: wanted.partition_index,
            old_style_offsets: offsets,
            ..Default::default()
        });
    }
    let what = what(version, wanted.timestamp)?;
    let epoch = LeaderEpoch(wanted.current_leader_epoch);
    let epoch = (epoch != LeaderEpoch::NONE).then_some(epoch);
    let found = partition.look_up(what, reader, epoch).map_err(failed)?;
    Ok(ListOffsetsPartitionResponse {
        partition_index: wanted.partition_index,
        timestamp: found.timestamp,
        offset: found.offset,
        leader_epoch: found.leader_epoch.filter(|_| version >= EPOCHS_SINCE).unwrap_or(LeaderEpoch::NONE).0,
        ..Default::default()
    })
}

/// What a timestamp asks for; the negative ones are names.
fn what(version: i16, timestamp: i64) -> Result<LookUp, ErrorCode> {
    match timestamp {
        -1 => Ok(LookUp::Latest),
        -2 => Ok(LookUp::Earliest),
        -3 if version >= 7 => Ok(LookUp::MaxTimestamp),
        -4 if version >= 8 => Ok(LookUp::EarliestLocal),
        -5 if version >= 9 => Ok(LookUp::LatestTiered),
        -6 if version >= 11 => Ok(LookUp::LatestTiered),
        0.. => Ok(LookUp::AtOrAfter(timestamp)),
        _ => Err(ErrorCode::UnsupportedVersion),
    }
}
