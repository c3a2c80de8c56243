//! What Apache Kafka answered to right and wrong group requests of every version, byte for byte.
//!
//! The files hold requests in the order in which one client sent them to a broker of that version
//! (`group.max.size=3`, one topic `t` with two partitions), and its answers. Each request is served here in
//! the same order; the answer must be the same frame. Where Klamm means to differ, `normalized` makes both
//! equal and tells the reason.

mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_coordinator::{Client, GroupCoordinator, GroupSettings};
use klamm_io::{Random, SystemClock};
use klamm_model::{LeaderEpoch, Uuid};
use klamm_protocol::messages::delete_groups::DeleteGroupsRequest;
use klamm_protocol::messages::describe_groups::DescribeGroupsRequest;
use klamm_protocol::messages::heartbeat::HeartbeatRequest;
use klamm_protocol::messages::join_group::JoinGroupRequest;
use klamm_protocol::messages::leave_group::LeaveGroupRequest;
use klamm_protocol::messages::list_groups::ListGroupsRequest;
use klamm_protocol::messages::offset_commit::OffsetCommitRequest;
use klamm_protocol::messages::offset_delete::OffsetDeleteRequest;
use klamm_protocol::messages::offset_fetch::OffsetFetchRequest;
use klamm_protocol::messages::sync_group::SyncGroupRequest;
use klamm_protocol::{ApiKey, Message, Reader, Request, RequestHeader, decode_response, encode_response};
use memory::{MemoryLog, Surroundings};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

/// Gives out what the recorded broker drew.
#[derive(Default)]
struct RecordedRandom(Mutex<[u8; 16]>);

impl Random for RecordedRandom {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.lock()[..bytes.len()]);
    }
}

fn from_hex(text: &str) -> Bytes {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect::<Vec<u8>>().into()
}

/// The random part of a member id.
fn random_of(member_id: &str) -> Option<[u8; 16]> {
    let uuid = member_id.get(member_id.len().checked_sub(36)?..)?.replace('-', "");
    from_hex(&uuid)[..].try_into().ok()
}

macro_rules! serve {
    ($coordinator:expr, $client:expr, $reader:expr, $version:expr, $correlation:expr, $($request:ident => $method:ident),*) => {
        |key: ApiKey| {
            let (coordinator, client, mut reader) = ($coordinator, $client, $reader);
            $(if key == $request::KEY {
                let request = $request::decode(&mut reader, $version).expect("a request");
                return tokio::spawn(async move {
                    let response = coordinator.$method(&client, request).await;
                    let frame = encode_response(key, $version, $correlation, &response).expect("encodes");
                    frame.into_bytes().slice(4..)
                });
            })*
            panic!("no handler for {key:?}")
        }
    };
}

fn serve(coordinator: Arc<GroupCoordinator>, frame: Bytes) -> (ApiKey, i16, JoinHandle<Bytes>) {
    let mut reader = Reader::new(frame);
    let header = RequestHeader::decode(&mut reader).expect("a header");
    let (version, correlation) = (header.api_version, header.correlation_id);
    let key = ApiKey::from_i16(header.api_key).expect("a key");
    let client = Client {
        client_id: header.client_id.unwrap_or_default(),
        client_host: "/127.0.0.1".to_owned(),
        api_version: version,
    };
    let start = serve!(coordinator, client, reader, version, correlation,
        JoinGroupRequest => join_group, SyncGroupRequest => sync_group, HeartbeatRequest => heartbeat,
        LeaveGroupRequest => leave_group, DescribeGroupsRequest => describe_groups,
        ListGroupsRequest => list_groups, DeleteGroupsRequest => delete_groups,
        OffsetCommitRequest => offset_commit, OffsetFetchRequest => offset_fetch,
        OffsetDeleteRequest => offset_delete);
    (key, version, start(key))
}

fn decoded<R: Request>(version: i16, frame: &Bytes) -> R::Response {
    decode_response::<R>(frame.clone(), version).expect("a response").1
}

/// What differs on purpose, made equal. Returns both answers in a form to be compared.
fn normalized(
    broker: &str,
    title: &str,
    key: ApiKey,
    version: i16,
    theirs: &Bytes,
    ours: &Bytes,
) -> (String, String) {
    // In 2.8 a commit of version 0 goes to ZooKeeper; here it has made the group that these ask about.
    if broker == "2.8.2" && ["commit generation 1, no group", "offset delete no group"].contains(&title) {
        return Default::default();
    }
    let show = |frame: &Bytes| match key {
        // What a client may do is added by the server.
        ApiKey::DescribeGroups => {
            let mut response = decoded::<DescribeGroupsRequest>(version, frame);
            response.groups.iter_mut().for_each(|group| group.authorized_operations = 0);
            let is_known = title != "describe after a refused join"
                // 2.8 forgets a group with its last offset, 4.4 later, as we do.
                && (broker != "2.8.2" || title != "describe after the last offset");
            // A refused JoinGroup leaves an empty group behind in Kafka. Nobody has a use for it.
            if is_known { format!("{response:?}") } else { String::new() }
        }
        // We say why.
        ApiKey::DeleteGroups => {
            let mut response = decoded::<DeleteGroupsRequest>(version, frame);
            response.results.iter_mut().for_each(|result| result.error_message = None);
            format!("{response:?}")
        }
        // The order of a hash map; and groups that a refused JoinGroup left behind.
        ApiKey::ListGroups => {
            let mut response = decoded::<ListGroupsRequest>(version, frame);
            response.groups.retain(|group| !group.group_id.starts_with("empty-"));
            response.groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
            format!("{response:?}")
        }
        ApiKey::OffsetCommit => {
            let mut response = decoded::<OffsetCommitRequest>(version, frame);
            // 2.8 refuses to make a path in ZooKeeper for the empty group.
            if broker == "2.8.2" && version == 0 && title == "commit empty group id" {
                return String::new();
            }
            response.topics.iter_mut().for_each(|topic| topic.partitions.sort_by_key(|p| p.partition_index));
            format!("{response:?}")
        }
        ApiKey::OffsetFetch => {
            let mut response = decoded::<OffsetFetchRequest>(version, frame);
            // Version 0 reads ZooKeeper in 2.8, where only commits of version 0 are.
            if version == 0 && title == "simple fetch" {
                return String::new();
            }
            response.topics.iter_mut().for_each(|topic| topic.partitions.sort_by_key(|p| p.partition_index));
            format!("{response:?}")
        }
        // The order of a hash map.
        ApiKey::JoinGroup => {
            let mut response = decoded::<JoinGroupRequest>(version, frame);
            response.members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
            format!("{response:?}")
        }
        _ => format!("{frame:02x?}"),
    };
    (show(theirs), show(ours))
}

async fn replay(broker: &str, recording: &str) {
    let events: Vec<Value> =
        recording.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let id = from_hex(events[0]["id"].as_str().expect("the topic's id"));
    let topic_id = Uuid(id[..].try_into().expect("16 bytes"));
    let received = |event: &Value| Some((event["receive"].as_u64()?, from_hex(event["frame"].as_str()?)));
    let answers: BTreeMap<u64, Bytes> = events.iter().filter_map(received).collect();
    let settings = GroupSettings {
        group_max_size: 3,
        group_initial_rebalance_delay_ms: 100,
        ..GroupSettings::default()
    };
    let random = Arc::new(RecordedRandom::default());
    let surroundings = Surroundings::with_topics(&[("t", topic_id, 2), ("gone", Uuid([7; 16]), 1)]);
    let clock = Arc::new(SystemClock::new());
    let coordinator = Arc::new(GroupCoordinator::new(settings, clock, random.clone(), surroundings));
    coordinator.open(0, LeaderEpoch(0), MemoryLog::new());
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut open = BTreeMap::new();
    let mut differences = Vec::new();
    for event in &events[1..] {
        if let Some(number) = event["send"].as_u64() {
            let frame = from_hex(event["frame"].as_str().expect("a frame"));
            let title = event["title"].as_str().expect("a title").to_owned();
            if event["api"] == "JoinGroup" {
                let version = event["version"].as_i64().expect("a version") as i16;
                let answer = decoded::<JoinGroupRequest>(version, &answers[&number]);
                *random.0.lock() = random_of(&answer.member_id).unwrap_or_default();
            }
            let (key, version, handle) = serve(coordinator.clone(), frame);
            // The request is to reach the mailbox before the next one.
            tokio::task::yield_now().await;
            open.insert(number, (title, key, version, handle));
        } else if let Some(number) = event["receive"].as_u64() {
            let (title, key, version, handle) = open.remove(&number).expect("it was sent");
            let ours = tokio::time::timeout(Duration::from_secs(5), handle).await;
            let ours = ours.unwrap_or_else(|_| panic!("no answer to: {title}, version {version}"));
            let ours = ours.expect("it does not panic");
            let theirs = &answers[&number];
            if ours != *theirs {
                let (theirs, ours) = normalized(broker, &title, key, version, theirs, &ours);
                if theirs != ours {
                    differences
                        .push(format!("{title}, version {version}:\n  Kafka {theirs}\n  Klamm {ours}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn answers_are_those_of_kafka_4_4_0() {
    replay("4.4.0", include_str!("oracle-4.4.0.jsonl")).await;
}

#[tokio::test]
async fn answers_are_those_of_kafka_2_8_2() {
    replay("2.8.2", include_str!("oracle-2.8.2.jsonl")).await;
}
