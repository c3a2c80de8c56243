//! The stage on which scripts play: one machine, its log in memory, and time that only scripts move.

mod show;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use klamm_coordinator::GroupSettings;
use klamm_coordinator::group::{
    Effects, Fetch, GroupRecord, GroupShard, Join, Now, Origin, Request, Then, Ticket,
};
use klamm_coordinator::machine::Machine;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, ProducerId, Uuid};
use klamm_protocol::messages::heartbeat::HeartbeatRequest;
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use klamm_protocol::messages::leave_group::{LeaveGroupRequest, MemberIdentity};
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use klamm_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

use klamm_testing::Play;

use crate::script::Words;

/// What stands in the log.
enum Entry {
    Record(ProducerId, Bytes, Option<Bytes>),
    End(ProducerId, bool),
}

pub(crate) struct Stage {
    settings: GroupSettings,
    shard: GroupShard,
    log: Vec<Entry>,
    now: Now,
    next_ticket: u64,
    /// Who asked, to be shown with the answer.
    asked: BTreeMap<Ticket, String>,
    next_random: u8,
    /// Writes that wait for `commit-log`, while the log is held.
    held: Option<Vec<Then>>,
    /// The code that appends fail with.
    fails: Option<ErrorCode>,
    shown: Vec<String>,
}

fn origin(offset: i64, transaction_of: ProducerId) -> Origin {
    Origin { offset, transaction_of, written_ms: now_at_start().wall_ms }
}

fn now_at_start() -> Now {
    Now { wall_ms: 1_000_000, monotonic_ms: 0 }
}

fn started(settings: &GroupSettings, log: &[Entry], now: Now) -> (GroupShard, Effects) {
    let mut shard = GroupShard::new(Arc::new(settings.clone()));
    for (offset, entry) in (0..).zip(log) {
        match entry {
            Entry::End(producer, is_commit) => shard.replay_transaction_end(*producer, *is_commit),
            Entry::Record(transaction_of, key, value) => {
                let origin = origin(offset, *transaction_of);
                shard.load(origin, key, value.as_deref());
            }
        }
    }
    let effects = shard.finish_loading(now);
    (shard, effects)
}

impl Play for Stage {
    fn new() -> Stage {
        let settings = GroupSettings::default();
        let (shard, _) = started(&settings, &[], now_at_start());
        Stage {
            settings,
            shard,
            log: Vec::new(),
            now: now_at_start(),
            next_ticket: 0,
            asked: BTreeMap::new(),
            next_random: 0,
            held: None,
            fails: None,
            shown: Vec::new(),
        }
    }

    /// Runs one command.
    ///
    /// - `set KEY=VALUE…` settings; only at the beginning of a script
    /// - `join GROUP CLIENT [member=ID] [v=9] [instance=I] [protocols=range:m,rr:n] [type=consumer]
    ///   [session=MS] [rebalance=MS]`
    /// - `sync GROUP MEMBER generation=N [assign=ID:x,ID:y] [instance=I] [type=T] [name=N]`
    /// - `heartbeat GROUP MEMBER generation=N [instance=I]`
    /// - `leave GROUP MEMBER… [instance=I]`; `-` is the empty member id
    /// - `commit GROUP TOPIC-P=OFFSET… [member=ID] [generation=N] [instance=I] [v=9] [retention=MS]
    ///   [metadata=M]`
    /// - `fetch GROUP [TOPIC-P… | all] [stable=1] [id=N]`, `offset-delete GROUP TOPIC-P…`
    /// - `describe GROUP [v=6]`, `list [states=S] [types=T]`, `delete GROUP`, `topics-deleted TOPIC…`
    /// - `pending PRODUCER GROUP TOPIC-P=OFFSET…`, `end PRODUCER commit|abort`: as found in the log
    /// - `unreadable GROUP [TOPIC-P] [of=PRODUCER]`: a record that cannot be read, as found while loading
    /// - `tombstone GROUP`, `foreign GROUP yes|no`: as found in the log
    /// - `wait MS` time passes; `hold` nothing is committed until `commit-log` or `lose CODE`;
    ///   `fail CODE` appends fail until `heal`; `restart` the machine is loaded from its log
    /// - `topics` how many names of topics the machine holds
    fn run(&mut self, line: &str) -> Vec<String> {
        let words = Words::of(line);
        match words.plain[0] {
            "set" => self.set(&words),
            "wait" => self.wait(words.plain[1].parse().expect("milliseconds")),
            "hold" => self.held = Some(Vec::new()),
            "commit-log" => self.settle(Ok(())),
            "lose" => self.settle(Err(code(words.plain[1]))),
            "fail" => self.fails = Some(code(words.plain[1])),
            "heal" => self.fails = None,
            "restart" => self.restart(),
            "topics" => self.shown.push(format!("names of topics: {}", self.shard.topic_count())),
            "pending" | "end" | "tombstone" | "foreign" | "unreadable" => self.apply_found(&words),
            name => {
                let request = self.request(name, &words);
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                let who = if name == "join" { words.plain.get(2) } else { None };
                self.asked.insert(ticket, who.map_or_else(String::new, |who| format!("{who}: ")));
                let effects = self.shard.handle(self.now, ticket, request);
                self.carry_out(effects);
            }
        }
        self.check_restart();
        std::mem::take(&mut self.shown)
    }
}

impl Stage {
    fn set(&mut self, words: &Words<'_>) {
        for (key, value) in &words.named {
            let value: i32 = value.parse().expect("a number");
            match *key {
                "group_max_size" => self.settings.group_max_size = value,
                "group_initial_rebalance_delay_ms" => self.settings.group_initial_rebalance_delay_ms = value,
                "offset_metadata_max_bytes" => self.settings.offset_metadata_max_bytes = value,
                "offsets_retention_minutes" => self.settings.offsets_retention_minutes = value,
                "offsets_retention_check_interval_ms" => {
                    self.settings.offsets_retention_check_interval_ms = i64::from(value);
                }
                key => panic!("no setting {key}"),
            }
        }
        self.restart();
    }

    fn restart(&mut self) {
        let (shard, effects) = started(&self.settings, &self.log, self.now);
        self.shard = shard;
        self.held = None;
        self.carry_out(effects);
    }

    fn wait(&mut self, by_ms: u64) {
        let end = self.now.monotonic_ms + by_ms;
        while let Some(at) = self.shard.next_deadline_ms().filter(|at| *at <= end) {
            self.move_to(at.max(self.now.monotonic_ms));
            let before = self.shown.len();
            while let Some(effects) = self.shard.expire(self.now) {
                self.carry_out(effects);
            }
            if self.shown.len() > before {
                self.shown.insert(before, format!("at {} ms:", self.now.monotonic_ms));
            }
        }
        self.move_to(end);
    }

    fn move_to(&mut self, monotonic_ms: u64) {
        self.now.wall_ms += (monotonic_ms - self.now.monotonic_ms) as i64;
        self.now.monotonic_ms = monotonic_ms;
    }

    fn carry_out(&mut self, effects: Effects) {
        for (ticket, reply) in effects.replies {
            let who = self.asked.remove(&ticket).expect("a reply to a request that waits");
            self.shown.push(format!("-> {who}{}", show::reply(&reply)));
        }
        for write in effects.writes {
            if let Some(code) = self.fails {
                self.shown.push(format!("append fails: {code}"));
                let effects = self.shard.completed(self.now, write.then, Err(code));
                self.carry_out(effects);
                continue;
            }
            for record in write.records {
                let offset = self.log.len() as i64;
                self.shown.push(format!("{offset}: {}", show::record(&record)));
                let (key, value) = record.encode().expect("encodes");
                self.log.push(Entry::Record(ProducerId::NONE, key, value));
                self.shard.replay(origin(offset, ProducerId::NONE), record);
            }
            match &mut self.held {
                Some(held) => held.push(write.then),
                None => {
                    let effects = self.shard.completed(self.now, write.then, Ok(()));
                    self.carry_out(effects);
                }
            }
        }
    }

    fn settle(&mut self, outcome: Result<(), ErrorCode>) {
        for then in self.held.take().expect("the log is held") {
            let effects = self.shard.completed(self.now, then, outcome);
            self.carry_out(effects);
        }
    }

    /// The machine and one that is loaded from the log must agree on all that is persisted.
    fn check_restart(&self) {
        let (loaded, _) = started(&self.settings, &self.log, self.now);
        assert_eq!(
            show::persisted(&self.shard),
            show::persisted(&loaded),
            "a restart would know something else"
        );
    }

    fn apply_found(&mut self, words: &Words<'_>) {
        let plain = &words.plain;
        let producer = || ProducerId(plain[1].parse().expect("a producer id"));
        match plain[0] {
            "pending" => {
                let group = plain[2];
                let request = commit_request(group, &plain[3..], words);
                let ticket = Ticket(u64::MAX);
                // The records are those of a plain commit by somebody outside the group.
                let mut other = GroupShard::new(Arc::new(self.settings.clone()));
                let request = Request::Commit { version: 9, request: Arc::new(request) };
                for write in other.handle(self.now, ticket, request).writes {
                    for record in write.records {
                        let offset = self.log.len() as i64;
                        self.shown.push(format!(
                            "{offset}: of producer {}: {}",
                            plain[1],
                            show::record(&record)
                        ));
                        let (key, value) = record.encode().expect("encodes");
                        self.log.push(Entry::Record(producer(), key, value));
                        self.shard.replay(origin(offset, producer()), record);
                    }
                }
            }
            "end" => {
                let is_commit = plain[2] == "commit";
                self.log.push(Entry::End(producer(), is_commit));
                self.shard.replay_transaction_end(producer(), is_commit);
            }
            "unreadable" => {
                let group = plain[1].into();
                let record = match plain.get(2).and_then(|place| place.rsplit_once('-')) {
                    None => GroupRecord::Group { group, value: None },
                    Some((topic, partition)) => GroupRecord::Offset {
                        group,
                        topic: topic.into(),
                        partition: partition.parse().expect("a partition"),
                        value: None,
                    },
                };
                let (key, _) = record.encode().expect("encodes");
                // A version that no Kafka writes.
                let value = Some(Bytes::from_static(b"\x00\x63rubbish"));
                let offset = self.log.len() as i64;
                let transaction_of = ProducerId(words.number("of", ProducerId::NONE.0));
                self.log.push(Entry::Record(transaction_of, key.clone(), value.clone()));
                self.shard.load(origin(offset, transaction_of), &key, value.as_deref());
            }
            "tombstone" => {
                let record = GroupRecord::Group { group: plain[1].into(), value: None };
                let (key, value) = record.encode().expect("encodes");
                self.log.push(Entry::Record(ProducerId::NONE, key, value));
                let offset = self.log.len() as i64 - 1;
                self.shard.replay(origin(offset, ProducerId::NONE), record);
            }
            _ => {
                let group = plain[1];
                let mut key = vec![0, 3, 0, group.len() as u8];
                key.extend_from_slice(group.as_bytes());
                let value = (plain[2] == "yes").then(|| Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0]));
                let offset = self.log.len() as i64;
                let record = GroupRecord::decode(&key, value.as_deref(), offset)
                    .expect("a record")
                    .expect("one")
                    .owned();
                self.log.push(Entry::Record(ProducerId::NONE, key.into(), value));
                self.shard.replay(origin(offset, ProducerId::NONE), record);
            }
        }
    }

    fn request(&mut self, name: &str, words: &Words<'_>) -> Request {
        let plain = &words.plain;
        let group_id = plain.get(1).map_or_else(String::new, |group| (*group).to_owned());
        let group_instance_id = words.text("instance");
        let member = |word: &str| show::long_member_id(word);
        match name {
            "join" => self.join_request(group_id, words),
            "sync" => Request::Sync(SyncGroupRequest {
                group_id,
                generation_id: words.number("generation", -1),
                member_id: member(plain[2]),
                group_instance_id,
                protocol_type: words.text("type"),
                protocol_name: words.text("name"),
                assignments: assignments(words),
            }),
            "heartbeat" => Request::Heartbeat(HeartbeatRequest {
                group_id,
                generation_id: words.number("generation", -1),
                member_id: member(plain[2]),
                group_instance_id,
            }),
            "leave" => {
                let identity = |word: &&str| MemberIdentity {
                    member_id: member(word),
                    group_instance_id: group_instance_id.clone(),
                    reason: None,
                };
                let members = plain[2..].iter().map(identity).collect();
                Request::Leave(LeaveGroupRequest { group_id, members, ..Default::default() })
            }
            "commit" => {
                let request = commit_request(&group_id, &plain[2..], words);
                Request::Commit { version: words.number("v", 9), request: Arc::new(request) }
            }
            "fetch" => {
                let id = words.number("id", 1);
                let topics = (plain.get(2) != Some(&"all")).then(|| {
                    by_topic(&plain[2..]).into_iter().map(|(name, partition_indexes)| {
                        OffsetFetchRequestTopics { name, topic_id: Uuid([id; 16]), partition_indexes }
                    })
                });
                let topics = topics.map(|topics| topics.collect());
                let group = OffsetFetchRequestGroup { group_id, topics, ..Default::default() };
                let require_stable = words.named.contains_key("stable");
                Request::Fetch(Fetch { group, require_stable, image: image(words) })
            }
            "offset-delete" => {
                let partition = |index| OffsetDeleteRequestPartition { partition_index: index };
                let topics =
                    by_topic(&plain[2..]).into_iter().map(|(name, partitions)| OffsetDeleteRequestTopic {
                        name,
                        partitions: partitions.into_iter().map(partition).collect(),
                    });
                Request::DeleteOffsets(OffsetDeleteRequest { group_id, topics: topics.collect() })
            }
            "describe" => Request::Describe { version: words.number("v", 6), group: group_id },
            "delete" => Request::Delete { group: group_id },
            "list" => Request::List {
                states: words.text("states").into_iter().collect(),
                types: words.text("types").into_iter().collect(),
            },
            "topics-deleted" => {
                let names: Vec<String> = plain[1..].iter().map(|topic| (*topic).to_owned()).collect();
                let mut image = Image::clone(&image(words));
                if !words.named.contains_key("id") {
                    for name in &names {
                        image.topic_ids.remove(name.as_str());
                    }
                }
                Request::TopicsDeleted { names, image: Arc::new(image) }
            }
            name => panic!("no command {name}"),
        }
    }

    fn join_request(&mut self, group_id: String, words: &Words<'_>) -> Request {
        let protocols = words.named.get("protocols").copied().unwrap_or("range:m");
        let protocol = |text: &str| {
            let (name, metadata) = text.split_once(':').unwrap_or((text, ""));
            let metadata = match metadata.strip_prefix('+') {
                Some(topic) => show::subscription(topic),
                None => Bytes::copy_from_slice(metadata.as_bytes()),
            };
            JoinGroupRequestProtocol { name: name.to_owned(), metadata }
        };
        let protocols = protocols.split(',').filter(|text| !text.is_empty()).map(protocol).collect();
        self.next_random += 1;
        let session_timeout_ms = words.number("session", 10_000);
        Request::Join(Box::new(Join {
            version: words.number("v", 9),
            client_id: words.plain[2].to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            random: [self.next_random; 16],
            request: JoinGroupRequest {
                group_id,
                session_timeout_ms,
                rebalance_timeout_ms: words.number("rebalance", 30_000),
                member_id: words.named.get("member").map(|id| show::long_member_id(id)).unwrap_or_default(),
                group_instance_id: words.text("instance"),
                protocol_type: words.text("type").unwrap_or_else(|| "consumer".to_owned()),
                protocols,
                reason: None,
            },
        }))
    }
}

/// A cluster in which the topics t and u exist, with the id that `id=` says, but not the one that `gone=` names.
fn image(words: &Words<'_>) -> Arc<Image> {
    let mut image = Image::empty("cluster");
    for name in ["t", "u"].into_iter().filter(|name| words.text("gone").as_deref() != Some(*name)) {
        image.topic_ids.insert(name.into(), Uuid([words.number("id", 1); 16]));
    }
    Arc::new(image)
}

fn code(name: &str) -> ErrorCode {
    let found = (-1..150).filter_map(ErrorCode::from_code).find(|code| code.name() == name);
    found.unwrap_or_else(|| panic!("no error {name}"))
}

fn assignments(words: &Words<'_>) -> Vec<SyncGroupRequestAssignment> {
    let pairs = words.named.get("assign").copied().unwrap_or_default();
    let pairs = pairs.split(',').filter_map(|pair| pair.split_once(':'));
    let assignment = |(member, assignment): (&str, &str)| SyncGroupRequestAssignment {
        member_id: show::long_member_id(member),
        assignment: Bytes::copy_from_slice(assignment.as_bytes()),
    };
    pairs.map(assignment).collect()
}

/// `t-0 t-1 u-0` by topic.
fn by_topic(words: &[&str]) -> BTreeMap<String, Vec<i32>> {
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for word in words {
        let (topic, partition) = word.rsplit_once('-').expect("topic-partition");
        topics.entry(topic.to_owned()).or_default().push(partition.parse().expect("a partition"));
    }
    topics
}

fn commit_request(group: &str, offsets: &[&str], words: &Words<'_>) -> OffsetCommitRequest {
    let mut topics: BTreeMap<String, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for word in offsets {
        let (place, offset) = word.split_once('=').expect("topic-partition=offset");
        let (topic, partition) = place.rsplit_once('-').expect("topic-partition");
        topics.entry(topic.to_owned()).or_default().push(OffsetCommitRequestPartition {
            partition_index: partition.parse().expect("a partition"),
            committed_offset: offset.parse().expect("an offset"),
            committed_metadata: words.text("metadata"),
            ..Default::default()
        });
    }
    let topic = |(name, partitions)| OffsetCommitRequestTopic { name, topic_id: Uuid([1; 16]), partitions };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: words.number("generation", -1),
        member_id: words.named.get("member").map(|id| show::long_member_id(id)).unwrap_or_default(),
        group_instance_id: words.text("instance"),
        retention_time_ms: words.number("retention", -1),
        topics: topics.into_iter().map(topic).collect(),
    }
}
