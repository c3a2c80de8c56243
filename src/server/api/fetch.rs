//! Fetch (key 1), versions 0 to 18.
//!
//! v1 throttle time; v3 a limit for the whole answer (KIP-74); v4 format V2 and isolation (KIP-98); v5 log start;
//! v7 sessions (KIP-227); v9 leader epochs (KIP-320); v10 zstd (KIP-110); v11 racks (KIP-392); v12 flexible and
//! diverging epochs (KIP-595); v13 topic ids (KIP-516); v15 replica state (KIP-903); v16 node endpoints
//! (KIP-951); v17 directories (KIP-853); v18 the follower's high watermark (KIP-1166).
//!
//! Records leave as parts of files. Only what a client cannot read is converted, in memory: for v0 and v1 to V0, for v2
//! and v3 to V1 at the newest; and from v12 on to V2.
//!
//! An old client moves on by the records that it gets, and there are batches of which it gets none: control batches,
//! and those that compaction has emptied. Where a segment ends with them its answer goes on with what is behind.
//! Kafka 2.8 has it stand still there.
//!
//! Deviation: Kafka 2.8 sends V0 and V1 as they are stored also in v12, and later ones do too. Clients of today know no
//! old formats (librdkafka from 2.5 on returns nothing for them), so these get V2.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, NodeId};
use klamm_partition::{
    FollowerProgress, Partition, PartitionOffsets, PartitionRead, ReadError, ReadOptions, Reader as Who,
};
use klamm_protocol::messages::fetch::{
    AbortedTransaction, EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse,
    LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use klamm_protocol::{Reader, RecordsField};
use klamm_storage::LogSlice;
use tokio::sync::Notify;

use super::{Answer, Call, Closed, Reply, decode, encode, encode_with};
use crate::client_quotas::Quota;
use crate::context::Context;
use crate::fetch_sessions::{Key, Kind, Session, Told, Wanted};
use crate::leader_hints::{LeaderHints, Reached};
use crate::partition_table::Table;
use crate::shown_records::{self, AT_LEAST_ONE_SINCE, Records, ToShow, V2_SINCE};

/// From this version on replicas tell the epoch of their broker (KIP-903).
const REPLICA_STATE_SINCE: i16 = 15;
/// From this version on clients are told who leads, if it is another node (KIP-951).
const LEADERS_SINCE: i16 = 16;
/// From this version on consumers may read from followers, and tell their rack (KIP-392).
const RACKS_SINCE: i16 = 11;
/// From this version on topics are named by their ids.
const TOPIC_IDS_SINCE: i16 = 13;

/// The limits of one request.
struct Limits {
    who: Who,
    /// The replica that fetches, if it is one.
    follower: Option<Replica>,
    bytes_max: usize,
    bytes_min: usize,
    wait: Duration,
    /// The rack that the client named, if replicas are chosen by it (`replica.selector.class`).
    rack: Option<String>,
}

/// A replica that fetches.
#[derive(Clone, Copy)]
struct Replica {
    node: NodeId,
    /// The epoch of its broker's registration; -1 before v15.
    broker_epoch: i64,
    /// Whether it is known to be the broker that is registered now. What anybody else says of a replica's progress counts
    /// for nothing: it would acknowledge records that the replica does not have.
    is_known: bool,
    /// Whether its broker has registered anew since: what it says is of a process that is gone (KIP-903).
    is_stale: bool,
}

/// Whether a pass over the partitions is the one that says how far a replica is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    First,
    Later,
}

/// One pass over the partitions of a request.
#[derive(Clone, Copy)]
struct Asked<'a> {
    context: &'a Context,
    call: &'a Call,
    limits: &'a Limits,
    pass: Pass,
}

/// What was found for one partition: records, an error of the log, or no such partition.
enum Found {
    Read {
        read: PartitionRead,
        records: Records,
        /// Whether they count for the throttle of replicas that catch up.
        is_throttled: bool,
    },
    /// The client had better read from another replica.
    Elsewhere {
        offsets: PartitionOffsets,
        replica: NodeId,
    },
    Failed(ReadError),
    Unknown(ErrorCode),
}

/// Answers a fetch.
pub(crate) fn answer(context: Arc<Context>, call: Call, mut reader: Reader) -> Answer {
    Box::pin(async move {
        let request: FetchRequest = decode(&call, &mut reader)?;
        let (wanted, forgotten) = named_partitions(&request);
        let now = context.clock.monotonic();
        let by_id = call.version >= TOPIC_IDS_SINCE;
        let kind = context.fetch_sessions.open(
            request.session_id,
            request.session_epoch,
            &wanted,
            &forgotten,
            by_id,
            now,
        );
        let kind = match kind {
            Ok(kind) => kind,
            Err(code) => {
                let response = FetchResponse { error_code: code.code(), ..Default::default() };
                return encode(&call, &response).map(Some);
            }
        };
        let wanted = match &kind {
            Kind::Next(session) => session.wanted(),
            Kind::Sessionless | Kind::First(_) => without_repeats(wanted),
            Kind::Ended => Vec::new(),
        };
        let limits = limits(&context, &call, &request);
        let found = read_all(&context, &call, &wanted, &limits).await;
        count_throttled(&context, &found);
        let is_for_broker = limits.follower.as_ref().is_some_and(|replica| replica.is_known);
        let throttle_time_ms = if is_for_broker { 0 } else { count_fetched(&context, &call, &found) };
        let reply = compose(&context, &call, &kind, &wanted, found, throttle_time_ms)?;
        Ok(Some(Reply { is_for_broker, ..reply }))
    })
}

fn named_partitions(request: &FetchRequest) -> (Vec<Wanted>, Vec<Key>) {
    let mut wanted = Vec::new();
    for topic in &request.topics {
        let name: Arc<str> = topic.topic.as_str().into();
        for partition in &topic.partitions {
            wanted.push(Wanted {
                topic_id: topic.topic_id,
                topic: name.clone(),
                partition: partition.partition,
                fetch_offset: partition.fetch_offset,
                bytes_max: partition.partition_max_bytes,
                current_leader_epoch: LeaderEpoch(partition.current_leader_epoch),
                last_fetched_epoch: LeaderEpoch(partition.last_fetched_epoch),
                log_start: partition.log_start_offset,
                high_watermark: partition.high_watermark,
            });
        }
    }
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        let name: Arc<str> = topic.topic.as_str().into();
        forgotten.extend(topic.partitions.iter().map(|index| (topic.topic_id, name.clone(), *index)));
    }
    (wanted, forgotten)
}

/// A partition that is named twice is answered once, with what was said last, in the place of the first.
fn without_repeats(wanted: Vec<Wanted>) -> Vec<Wanted> {
    let mut unique: Vec<Wanted> = Vec::with_capacity(wanted.len());
    let mut places = std::collections::BTreeMap::new();
    for one in wanted {
        let key = (one.topic_id, one.topic.clone(), one.partition);
        match places.get(&key) {
            Some(place) => {
                let place: usize = *place;
                unique[place] = one;
            }
            None => {
                places.insert(key, unique.len());
                unique.push(one);
            }
        }
    }
    unique
}

fn limits(context: &Context, call: &Call, request: &FetchRequest) -> Limits {
    let state = &request.replica_state;
    let (node, broker_epoch) = match call.version {
        REPLICA_STATE_SINCE.. => (NodeId(state.replica_id), state.replica_epoch),
        _ => (NodeId(request.replica_id), -1),
    };
    let follower = (node.0 >= 0).then(|| {
        let image = context.image();
        let registered = image.brokers.get(&node);
        let is_known = registered.is_some_and(|broker| broker.epoch == broker_epoch);
        let is_stale = broker_epoch != -1
            && registered.is_some_and(|broker| !broker.fenced && broker.epoch > broker_epoch);
        Replica { node, broker_epoch, is_known, is_stale }
    });
    let who = match follower {
        Some(_) => Who::Follower,
        None => Who::Consumer(IsolationLevel::from_wire(request.isolation_level)),
    };
    let positive = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
    let fetch_max = positive(context.config().fetch_max_bytes);
    let fetch_max = match &follower {
        Some(replica) if replica.is_known => fetch_max,
        _ => {
            let client = call.client_id.as_deref();
            fetch_max.min(context.client_quotas.fetched_at_once(&call.quotas, client))
        }
    };
    let bytes_max = if call.version < AT_LEAST_ONE_SINCE {
        fetch_max
    } else {
        positive(request.max_bytes).min(fetch_max)
    };
    Limits {
        who,
        follower,
        bytes_max,
        bytes_min: positive(request.min_bytes).min(bytes_max),
        wait: Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)),
        rack: Some(request.rack_id.clone()).filter(|rack| {
            let is_consumer = follower.is_none() && call.version >= RACKS_SINCE;
            is_consumer && !rack.is_empty() && context.static_config.selects_replicas_by_rack()
        }),
    }
}

/// Reads all partitions, and waits while they give fewer bytes than the client wants to wait for.
async fn read_all(context: &Context, call: &Call, wanted: &[Wanted], limits: &Limits) -> Vec<Found> {
    let mut asked = Asked { context, call, limits, pass: Pass::First };
    let (found, enough) = read_once(&asked, wanted);
    if enough || limits.wait.is_zero() || wanted.is_empty() {
        return found;
    }
    let deadline = tokio::time::Instant::now() + limits.wait;
    let wake = Arc::new(Notify::new());
    asked.pass = Pass::Later;
    loop {
        register(&context.partitions.load(), wanted, &wake);
        let (found, enough) = read_once(&asked, wanted);
        if enough {
            return found;
        }
        // Replicas that are throttled are read again when more may be sent.
        let is_throttled = |found: &Found| matches!(found, Found::Read { is_throttled: true, .. });
        let pause = context.leader_throttle.wait(context.clock.monotonic());
        let pause = pause.filter(|_| found.iter().any(is_throttled));
        let until = pause.map_or(deadline, |pause| deadline.min(tokio::time::Instant::now() + pause));
        if tokio::time::timeout_at(until, wake.notified()).await.is_err() && until == deadline {
            return found;
        }
    }
}

/// Counts what a consumer gets. It gets all of it, and is stopped for as long as it was ahead of its quota.
fn count_fetched(context: &Context, call: &Call, found: &[Found]) -> i32 {
    let bytes = found.iter().map(|found| match found {
        Found::Read { records, .. } => records.len(),
        _ => 0,
    });
    call.count(context, Quota::Fetch, bytes.sum::<usize>() as f64)
}

/// Counts what goes to replicas that are throttled.
fn count_throttled(context: &Context, found: &[Found]) {
    let bytes = found.iter().map(|found| match found {
        Found::Read { records, is_throttled: true, .. } => records.len(),
        _ => 0,
    });
    context.leader_throttle.count(bytes.sum(), context.clock.monotonic());
}

fn register(table: &Table, wanted: &[Wanted], wake: &Arc<Notify>) {
    for wanted in wanted {
        if let Some(partition) = table.find(wanted.topic_id, &wanted.topic, wanted.partition) {
            partition.wake_on_progress(wake);
        }
    }
}

/// One pass over the partitions; says whether the answer may leave.
fn read_once(asked: &Asked<'_>, wanted: &[Wanted]) -> (Vec<Found>, bool) {
    let Asked { context, call, limits, .. } = *asked;
    let table = context.partitions.load();
    let mut bytes = 0;
    let mut enough = false;
    let mut found = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let left = limits.bytes_max.saturating_sub(bytes);
        let at_least_one = bytes == 0 && call.version >= AT_LEAST_ONE_SINCE;
        let one = match table.find(wanted.topic_id, &wanted.topic, wanted.partition) {
            None => {
                let id = (call.version >= TOPIC_IDS_SINCE).then_some(wanted.topic_id);
                Found::Unknown(context.missing_partition(id, &wanted.topic, wanted.partition))
            }
            Some(_) if limits.follower.is_some_and(|replica| replica.is_stale) => {
                Found::Failed(ReadError::NotLeader)
            }
            Some(partition) => {
                let left = Left { bytes: left, at_least_one };
                read_partition(asked, partition, wanted, left)
            }
        };
        match &one {
            Found::Read { records, read, .. } => {
                bytes += records.len();
                enough |= read.diverging.is_some() || matches!(records, Records::Refused(_));
                // Acknowledgements and the other replicas' readers wait for the high watermark.
                enough |= limits.follower.is_some() && read.offsets.high_watermark > wanted.high_watermark;
            }
            Found::Failed(_) | Found::Unknown(_) | Found::Elsewhere { .. } => enough = true,
        }
        found.push(one);
    }
    (found, enough || bytes >= limits.bytes_min)
}

/// What an answer still has room for.
struct Left {
    bytes: usize,
    /// Whether the first batch comes even if it is larger.
    at_least_one: bool,
}

fn read_partition(asked: &Asked<'_>, partition: &Arc<Partition>, wanted: &Wanted, left: Left) -> Found {
    let Asked { context, call, limits, pass } = *asked;
    let known = |epoch: LeaderEpoch| (epoch.0 >= 0).then_some(epoch);
    // An old client gets its records in another format and so with another size: it is shown the first batch
    // whole, and what is cut off is cut after the conversion.
    let converts = call.version < V2_SINCE;
    let bytes_max = usize::try_from(wanted.bytes_max).unwrap_or(0).min(left.bytes);
    let options = ReadOptions {
        reader: limits.who,
        bytes_max,
        at_least_one: left.at_least_one || (converts && bytes_max > 0),
        current_leader_epoch: known(wanted.current_leader_epoch),
        last_fetched_epoch: known(wanted.last_fetched_epoch),
    };
    let read = match limits.follower {
        Some(Replica { node, is_known, .. }) if !is_known || options.current_leader_epoch.is_none() => {
            partition.read_for_unknown_follower(&options, node, wanted.fetch_offset)
        }
        Some(Replica { node, broker_epoch, .. }) if pass == Pass::First => {
            let progress = FollowerProgress {
                node,
                broker_epoch,
                leader_epoch: options.current_leader_epoch,
                log_end: wanted.fetch_offset,
                log_start: wanted.log_start,
            };
            let read = partition.read_for_follower(&options, progress);
            if partition.has_caught_up(node) {
                context.isr_changes.note_due(partition);
            }
            read
        }
        Some(_) => partition.read(wanted.fetch_offset, &options),
        None if call.version < RACKS_SINCE => partition.read(wanted.fetch_offset, &options),
        None => partition.read_from_any_replica(wanted.fetch_offset, &options),
    };
    if let (Ok(PartitionRead { offsets, .. }), Some(rack)) = (&read, &limits.rack)
        && let Some(replica) = replica_in_rack(context, partition, wanted, rack)
    {
        return Found::Elsewhere { offsets: *offsets, replica };
    }
    match read {
        Err(error) => Found::Failed(error),
        Ok(mut read) => {
            // As in Kafka, replicas in sync are never held up: acknowledgements wait for them.
            let is_throttled = limits.follower.is_some_and(|replica| {
                partition.settings().is_throttled_as_leader && !partition.is_in_sync(replica.node)
            });
            if is_throttled && context.leader_throttle.wait(context.clock.monotonic()).is_some() {
                read.slice = None;
            }
            let is_for_follower = limits.who == Who::Follower;
            let shown = ToShow { slice: read.slice.take(), bytes_max, is_for_follower };
            let records = shown_records::show(call.version, partition, wanted.fetch_offset, &options, shown);
            match records {
                Ok(records) => Found::Read { read, records, is_throttled },
                Err(error) => Found::Failed(error.into()),
            }
        }
    }
}

/// The replica in the client's rack that has what it asks for, if the leader asks for nothing better: it is in no other
/// rack than the client, or no replica that could serve it is there.
fn replica_in_rack(context: &Context, partition: &Partition, wanted: &Wanted, rack: &str) -> Option<NodeId> {
    let image = context.image();
    let is_there = |node: NodeId| {
        let broker = image.brokers.get(&node).filter(|broker| !broker.fenced);
        broker.is_some_and(|broker| broker.rack.as_deref() == Some(rack))
    };
    if is_there(context.node_id) {
        return None;
    }
    partition.furthest_in_sync_follower(wanted.fetch_offset, is_there)
}

/// Writes the answer: all partitions, or in a session that goes on those about which there is news.
fn compose(
    context: &Context,
    call: &Call,
    kind: &Kind,
    wanted: &[Wanted],
    found: Vec<Found>,
    throttle_time_ms: i32,
) -> Result<Reply, Closed> {
    let mut slices = Vec::new();
    let mut hints = LeaderHints::new(context, call);
    let mut response = FetchResponse {
        throttle_time_ms,
        session_id: match kind {
            Kind::Sessionless | Kind::Ended => 0,
            Kind::First(session) | Kind::Next(session) => session.id(),
        },
        ..Default::default()
    };
    for (wanted, found) in wanted.iter().zip(found) {
        if !is_told(kind, wanted, &found) {
            continue;
        }
        let mut data = partition_data(wanted.partition, found, &mut slices);
        let leads_not = [ErrorCode::NotLeaderOrFollower, ErrorCode::FencedLeaderEpoch];
        if call.version >= LEADERS_SINCE && leads_not.iter().any(|code| code.code() == data.error_code) {
            let (leader_id, leader_epoch) = hints.leader_of(wanted.topic_id, &wanted.topic, wanted.partition);
            data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        }
        let same = |topic: &FetchableTopicResponse| {
            topic.topic_id == wanted.topic_id && *topic.topic == *wanted.topic
        };
        // Only neighbours are joined: the order of partitions is the order of reading.
        match response.responses.last_mut() {
            Some(topic) if same(topic) => topic.partitions.push(data),
            _ => response.responses.push(FetchableTopicResponse {
                topic: wanted.topic.to_string(),
                topic_id: wanted.topic_id,
                partitions: vec![data],
            }),
        }
    }
    let endpoint = |Reached { node_id, host, port, rack }| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = hints.reached().map(endpoint).collect();
    encode_with(call, &response, slices)
}

fn is_told(kind: &Kind, wanted: &Wanted, found: &Found) -> bool {
    let told = |session: &Session| match found {
        Found::Read { read, records, .. } => {
            let told =
                Told { high_watermark: read.offsets.high_watermark, log_start: read.offsets.log_start };
            let is_error = matches!(records, Records::Refused(_)) || read.diverging.is_some();
            session.tell(wanted, records.len() > 0, (!is_error).then_some(told))
        }
        Found::Failed(_) | Found::Unknown(_) | Found::Elsewhere { .. } => session.tell(wanted, false, None),
    };
    match kind {
        Kind::Sessionless | Kind::Ended => true,
        Kind::First(session) => {
            told(session);
            true
        }
        Kind::Next(session) => told(session),
    }
}

fn partition_data(index: i32, found: Found, slices: &mut Vec<LogSlice>) -> PartitionData {
    let nothing = || PartitionData {
        partition_index: index,
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        aborted_transactions: None,
        records: Some(RecordsField::Bytes(Bytes::new())),
        ..Default::default()
    };
    match found {
        Found::Unknown(code) => PartitionData {
            error_code: code.code(),
            // Kafka writes an empty list here and null for other errors.
            aborted_transactions: Some(Vec::new()),
            ..nothing()
        },
        Found::Elsewhere { offsets, replica } => PartitionData {
            high_watermark: offsets.high_watermark,
            last_stable_offset: offsets.last_stable,
            log_start_offset: offsets.log_start,
            preferred_read_replica: replica.0,
            ..nothing()
        },
        Found::Failed(error) => PartitionData { error_code: error.code().code(), ..nothing() },
        Found::Read { read, records, .. } => {
            let mut data = PartitionData {
                high_watermark: read.offsets.high_watermark,
                last_stable_offset: read.offsets.last_stable,
                log_start_offset: read.offsets.log_start,
                aborted_transactions: read.aborted.map(|list| list.iter().map(aborted).collect()),
                ..nothing()
            };
            if let Some((epoch, end_offset)) = read.diverging {
                data.diverging_epoch = EpochEndOffset { epoch: epoch.0, end_offset };
            }
            match records {
                Records::Slice(slice) => {
                    let field = RecordsField::External { index: slices.len() as u32, len: slice.len as u32 };
                    data.records = Some(field);
                    slices.push(slice);
                }
                Records::Converted(bytes) => data.records = Some(RecordsField::Bytes(bytes)),
                Records::Hidden { .. } | Records::Nothing => {}
                Records::Refused(code) => data.error_code = code.code(),
            }
            data
        }
    }
}

fn aborted(transaction: &klamm_storage::AbortedTransaction) -> AbortedTransaction {
    AbortedTransaction { producer_id: transaction.producer_id.0, first_offset: transaction.first_offset }
}
