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
use klamm_model::{ErrorCode, IsolationLevel, LeaderEpoch, NodeId, Offset};
use klamm_partition::{FollowerProgress, Partition, PartitionRead, ReadError, ReadOptions, Reader as Who};
use klamm_protocol::messages::fetch::{
    AbortedTransaction, EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData,
};
use klamm_protocol::{Reader, RecordsField};
use klamm_records::{ConversionLimit, RecordsError};
use klamm_storage::{LogSlice, StorageError};
use tokio::sync::Notify;

use super::{Answer, Call, Closed, Reply, decode, encode, encode_with};
use crate::context::Context;
use crate::fetch_sessions::{Key, Kind, Session, Told, Wanted};
use crate::partition_table::Table;

/// From this version on the largest batch comes whole even if it is above the limits (KIP-74).
const AT_LEAST_ONE_SINCE: i16 = 3;
/// From this version on clients read format V1.
const V1_SINCE: i16 = 2;
/// From this version on clients read format V2.
const V2_SINCE: i16 = 4;
/// From this version on no client is sent V0 or V1: those that know it need not know the old formats.
const ONLY_V2_SINCE: i16 = 12;
/// From this version on clients read zstd.
const ZSTD_SINCE: i16 = 10;
/// From this version on replicas tell the epoch of their broker (KIP-903).
const REPLICA_STATE_SINCE: i16 = 15;
/// From this version on topics are named by their ids.
const TOPIC_IDS_SINCE: i16 = 13;

/// How many bytes of batches that an old client does not see are passed over for one partition in one answer.
const HIDDEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The limits of one request.
struct Limits {
    who: Who,
    /// The replica that fetches, if it is one.
    follower: Option<Replica>,
    bytes_max: usize,
    bytes_min: usize,
    wait: Duration,
}

/// A replica that fetches.
#[derive(Clone, Copy)]
struct Replica {
    node: NodeId,
    /// The epoch of its broker's registration; -1 before v15.
    broker_epoch: i64,
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
    Read { read: PartitionRead, records: Records },
    Failed(ReadError),
    Unknown(ErrorCode),
}

/// Records on their way out.
enum Records {
    Slice(LogSlice),
    Converted(Bytes),
    /// None that this client sees, in so many bytes; others may stand from the offset on.
    Hidden {
        until: Offset,
        bytes: u64,
    },
    Nothing,
    /// They cannot be shown to this client.
    Refused(ErrorCode),
}

/// What was read for a client, before it is put into a format that the client reads.
struct ToShow {
    slice: Option<LogSlice>,
    bytes_max: usize,
    is_for_follower: bool,
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
        compose(&call, &kind, &wanted, found).map(Some)
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
        let registered = image.brokers.get(&node).filter(|broker| !broker.fenced);
        let is_stale = broker_epoch != -1 && registered.is_some_and(|broker| broker.epoch > broker_epoch);
        Replica { node, broker_epoch, is_stale }
    });
    let who = match follower {
        Some(_) => Who::Follower,
        None => Who::Consumer(IsolationLevel::from_wire(request.isolation_level)),
    };
    let positive = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
    let fetch_max = positive(context.config().fetch_max_bytes);
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
        if enough || tokio::time::timeout_at(deadline, wake.notified()).await.is_err() {
            return found;
        }
    }
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
            Found::Read { records, read } => {
                bytes += records.len();
                enough |= read.diverging.is_some() || matches!(records, Records::Refused(_));
                // Acknowledgements and the other replicas' readers wait for the high watermark.
                enough |= limits.follower.is_some() && read.offsets.high_watermark > wanted.high_watermark;
            }
            Found::Failed(_) | Found::Unknown(_) => enough = true,
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
        _ => partition.read(wanted.fetch_offset, &options),
    };
    match read {
        Err(error) => Found::Failed(error),
        Ok(mut read) => {
            let is_for_follower = limits.who == Who::Follower;
            let shown = ToShow { slice: read.slice.take(), bytes_max, is_for_follower };
            let records = records_for(call, partition, wanted, shown)
                .and_then(|records| behind_hidden(call, partition, wanted, &options, records));
            match records {
                Ok(records) => Found::Read { read, records },
                Err(error) => Found::Failed(error.into()),
            }
        }
    }
}

/// The first records that an old client sees, behind those that it does not.
fn behind_hidden(
    call: &Call,
    partition: &Partition,
    wanted: &Wanted,
    options: &ReadOptions,
    mut records: Records,
) -> Result<Records, StorageError> {
    let mut passed = 0;
    while let Records::Hidden { until, bytes } = records {
        passed += bytes;
        if passed > HIDDEN_BYTES_MAX {
            tracing::warn!(
                "{} holds nothing that a client of Fetch v{} can read from {} to {until}; it does not get past that",
                partition.topic_partition(),
                call.version,
                wanted.fetch_offset
            );
            return Ok(Records::Nothing);
        }
        let slice = match partition.read(until, options) {
            Ok(read) => read.slice,
            Err(ReadError::Storage(error)) => return Err(error),
            // The log or its leader is another one by now, which the next request will hear.
            Err(_) => return Ok(Records::Nothing),
        };
        let shown = ToShow { slice, bytes_max: options.bytes_max, is_for_follower: false };
        records = records_for(call, partition, wanted, shown)?;
    }
    Ok(records)
}

/// The records as this client can read them.
fn records_for(
    call: &Call,
    partition: &Partition,
    wanted: &Wanted,
    read: ToShow,
) -> Result<Records, StorageError> {
    let zstd = partition.settings().compression == Some(klamm_records::Compression::Zstd);
    if zstd && call.version < ZSTD_SINCE {
        return Ok(Records::Refused(ErrorCode::UnsupportedCompressionType));
    }
    let Some(slice) = read.slice else {
        return Ok(Records::Nothing);
    };
    let target = match call.version {
        ..V1_SINCE => 0,
        V1_SINCE..V2_SINCE => 1,
        ONLY_V2_SINCE.. if !read.is_for_follower && slice.holds_old_formats()? => 2,
        _ => return Ok(Records::Slice(slice)),
    };
    let failed = |error| StorageError::io(&partition.log().dir(), "read records of", &error);
    let bytes = slice.to_bytes().map_err(failed)?;
    // What the client allows may come, also where it has grown. Kafka cuts at the size of what is stored; then the
    // partitions of one topic come to what their client cannot read one after the other, and the error of the first
    // costs an old consumer what the others bring.
    let limit = ConversionLimit { bytes_max: bytes.len().max(read.bytes_max) };
    let converted = match target {
        2 => klamm_records::up_convert_to_v2(bytes.clone(), limit),
        _ => klamm_records::down_convert(bytes.clone(), target, wanted.fetch_offset, limit),
    };
    match converted {
        Ok(converted) if converted.is_empty() => Ok(Records::hidden(bytes)),
        Ok(converted) if call.version < AT_LEAST_ONE_SINCE => {
            // Here a message that is larger than the limit arrives cut, and the client asks for more.
            let len = converted.len().min(read.bytes_max);
            Ok(Records::Converted(converted.slice(..len)))
        }
        Ok(converted) => Ok(Records::Converted(converted)),
        Err(error) => {
            let (name, offset) = (partition.topic_partition(), wanted.fetch_offset);
            if matches!(error, RecordsError::UnsupportedCompression { .. }) {
                tracing::debug!(
                    "records of {name} from {offset} on cannot be shown in format V{target}: {error}"
                );
                return Ok(Records::Refused(ErrorCode::UnsupportedCompressionType));
            }
            tracing::error!("records of {name} from {offset} on cannot be read: {error}");
            Ok(Records::Refused(ErrorCode::CorruptMessage))
        }
    }
}

impl Records {
    /// Nothing of these bytes is seen.
    fn hidden(bytes: Bytes) -> Records {
        let len = bytes.len() as u64;
        let last = klamm_records::batches(bytes).map_while(Result::ok).last();
        last.map_or(Records::Nothing, |batch| Records::Hidden {
            until: batch.header.next_offset(),
            bytes: len,
        })
    }

    fn len(&self) -> usize {
        match self {
            Records::Slice(slice) => slice.len as usize,
            Records::Converted(bytes) => bytes.len(),
            Records::Hidden { .. } | Records::Nothing | Records::Refused(_) => 0,
        }
    }
}

/// Writes the answer: all partitions, or in a session that goes on those about which there is news.
fn compose(call: &Call, kind: &Kind, wanted: &[Wanted], found: Vec<Found>) -> Result<Reply, Closed> {
    let mut slices = Vec::new();
    let mut response = FetchResponse {
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
        let data = partition_data(wanted.partition, found, &mut slices);
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
    encode_with(call, &response, slices)
}

fn is_told(kind: &Kind, wanted: &Wanted, found: &Found) -> bool {
    let told = |session: &Session| match found {
        Found::Read { read, records } => {
            let told =
                Told { high_watermark: read.offsets.high_watermark, log_start: read.offsets.log_start };
            let is_error = matches!(records, Records::Refused(_)) || read.diverging.is_some();
            session.tell(wanted, records.len() > 0, (!is_error).then_some(told))
        }
        Found::Failed(_) | Found::Unknown(_) => session.tell(wanted, false, None),
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
        Found::Failed(error) => PartitionData { error_code: error.code().code(), ..nothing() },
        Found::Read { read, records } => {
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
