//! OffsetForLeaderEpoch (key 23), versions 0 to 4.
//!
//! v1 the epoch of the answer (KIP-279); v2 the reader's epoch (KIP-320); v3 open to consumers; v4 flexible.

use klamm_model::LeaderEpoch;
use klamm_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};

use super::Call;
use crate::context::Context;

/// From this version on the answer says to which epoch the end belongs.
const EPOCHS_SINCE: i16 = 1;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let table = context.partitions.load();
    let answer = |topic: &str, wanted: &OffsetForLeaderPartition| {
        let unknown = || EpochEndOffset { partition: wanted.partition, ..Default::default() };
        let local = table.topic_by_name(topic);
        let Some(partition) = local.and_then(|topic| topic.partitions.get(&wanted.partition)) else {
            let code = context.missing_partition(None, topic, wanted.partition);
            return EpochEndOffset { error_code: code.code(), ..unknown() };
        };
        let current = LeaderEpoch(wanted.current_leader_epoch);
        let current = (current != LeaderEpoch::NONE).then_some(current);
        match partition.end_of_epoch(LeaderEpoch(wanted.leader_epoch), current) {
            Ok(None) => unknown(),
            Ok(Some((epoch, end_offset))) => {
                let epoch = if call.version >= EPOCHS_SINCE { epoch } else { LeaderEpoch::NONE };
                EpochEndOffset { leader_epoch: epoch.0, end_offset, ..unknown() }
            }
            Err(error) => EpochEndOffset { error_code: error.code().code(), ..unknown() },
        }
    };
    OffsetForLeaderEpochResponse {
        topics: request
            .topics
            .iter()
            .map(|topic| OffsetForLeaderTopicResult {
                topic: topic.topic.clone(),
                partitions: topic.partitions.iter().map(|wanted| answer(&topic.topic, wanted)).collect(),
            })
            .collect(),
        ..Default::default()
    }
}
